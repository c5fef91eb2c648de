//! Requests that append to lists and read them, judged without a log: by the answers, and by the lists at the end.
//!
//! The requests become a history of [`dependencies`], a connection a session of it, and the judge there
//! holds it to an isolation level.

use std::collections::BTreeMap;

use ordain_model::{Micros, OutcomeStatus, Stamp};

use crate::dependencies::{self, Anomaly, Finding, Level, Observed, Outcome, Txn, judge, judge_within};
use crate::history::{Answer, History, Moment, Request};
use crate::{RequestId, Violation, ViolationKind};

/// The protocol of the requests: how arguments and replies are read.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// Tells the requests of the protocol from others in the history.
    pub is_one: fn(&Request) -> bool,
    /// The appends of a request and the transaction's base, as far as the arguments say.
    pub asked: fn(&Request) -> Txn,
    /// The transaction that a committed answer reports; `None` for any other answer.
    pub committed: fn(&Answer) -> Option<Txn>,
}

/// Checks that the answers and the lists at the end are those of an isolation level.
///
/// # Errors
/// [`ViolationKind::AnswersDiffer`], [`ViolationKind::WrongAnswer`], [`ViolationKind::RealTime`] and
/// [`ViolationKind::Overtaken`].
pub fn check(
    level: Level,
    history: &History,
    lists: &BTreeMap<u64, Vec<u64>>,
    protocol: Protocol,
) -> Result<(), Violation> {
    let Gathered { all, requests } = gather(history, lists, protocol, Measure::Moments)?;
    judge(level, &all).map_err(|finding| violation(&finding, &requests))
}

/// Checks that the answers and the lists at the end are strictly serializable, but for transactions that are no further apart in virtual
/// time than `bound`. Answers need their times ([`History::note_now`]).
///
/// # Errors
/// As [`check`].
pub fn check_within(
    bound: Micros,
    history: &History,
    lists: &BTreeMap<u64, Vec<u64>>,
    protocol: Protocol,
) -> Result<(), Violation> {
    let Gathered { all, requests } = gather(history, lists, protocol, Measure::Time)?;
    judge_within(bound.0, &all).map_err(|finding| {
        let violation = violation(&finding, &requests);
        Violation { message: format!("{} (beyond {} us)", violation.message, bound.0), ..violation }
    })
}

/// The measure of time between asking and answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    /// Moments, of which no two are the same.
    Moments,
    /// Virtual time, microseconds.
    Time,
}

/// A history for the judge, and the request of each of its transactions.
struct Gathered {
    all: dependencies::History,
    requests: Vec<RequestId>,
}

fn gather(
    history: &History,
    lists: &BTreeMap<u64, Vec<u64>>,
    protocol: Protocol,
    measure: Measure,
) -> Result<Gathered, Violation> {
    let of = |moment: Moment, at: Micros| if measure == Measure::Time { at.0 } else { moment.0 };
    let mut all = dependencies::History { orders: lists.clone(), ..Default::default() };
    let mut requests = Vec::new();
    let mut connections = BTreeMap::new();
    for (id, request) in history.requests().filter(|(_, request)| (protocol.is_one)(request)) {
        let appends = (protocol.asked)(request);
        let (place, may_be_overtaken) = place_of(request, appends.is_update());
        let (session, asked) =
            (session_of(request, place, &mut connections), Some(of(request.moment, request.at)));
        let mut add = |txn: Observed| {
            requests.push(id);
            all.txns.push(Observed { session, may_be_overtaken, asked, ..txn });
        };
        let answers = answers_of(id, request, appends.is_update())?;
        for answer in answers {
            match (protocol.committed)(answer) {
                Some(txn) => {
                    let stamp = (answer.stamp != Stamp::NONE).then(|| answer.stamp.number());
                    let answered = Some(of(answer.moment, answer.at));
                    add(Observed { answered, stamp, ..Observed::committed(txn) });
                }
                None if matches!(answer.status, OutcomeStatus::Aborted(_)) => {
                    add(Observed::new(appends.clone(), Outcome::Aborted));
                }
                None => {
                    let text = format!("an answer is no history: {answer:?}");
                    return Err(Violation::new(ViolationKind::WrongAnswer, text).of(id));
                }
            }
        }
        if answers.is_empty() {
            let end = if request.is_rejected() { Outcome::Aborted } else { Outcome::Unknown };
            add(Observed::new(appends, end));
        }
    }
    Ok(Gathered { all, requests })
}

fn violation(finding: &Finding, requests: &[RequestId]) -> Violation {
    let violation = Violation::new(kind_of(finding), finding.to_string());
    finding.txns.iter().fold(violation, |violation, txn| violation.of(requests[*txn]))
}

/// The place of a request among its client's connections, and whether later requests of that connection may take effect before
/// it. An update stands behind what its first connection had sent before. A read is run anew each time that it is sent, and an
/// answer is to the last time: a connection that was opened for it has seen nothing of the one before, and owes it nothing.
fn place_of(request: &Request, is_update: bool) -> ((u32, Moment), bool) {
    match request.again.filter(|_| !is_update && !request.answers.is_empty()) {
        Some(again) => (again, false),
        None => ((request.connection, request.moment), request.may_be_overtaken()),
    }
}

/// The session that a request is of, by a number of its own, and its place there.
fn session_of(
    request: &Request,
    (connection, moment): (u32, Moment),
    connections: &mut BTreeMap<(usize, u32), u64>,
) -> Option<(u64, u64)> {
    let client = request.client.filter(|_| connection > 0)?;
    let next = connections.len() as u64;
    let session = *connections.entry((client, connection)).or_insert(next);
    Some((session, moment.0))
}

/// The answers that say what a request did and saw. One that only reads may be run again for each time that it is asked;
/// all answers to another are the same.
fn answers_of(id: RequestId, request: &Request, is_update: bool) -> Result<&[Answer], Violation> {
    let answers = &request.answers[..];
    let Some((first, others)) = answers.split_first().filter(|_| is_update) else { return Ok(answers) };
    if let Some(other) = others.iter().find(|other| other.reply != first.reply) {
        let text = format!("one request was answered {:?} and {:?}", first.reply, other.reply);
        return Err(Violation::new(ViolationKind::AnswersDiffer, text).of(id));
    }
    Ok(&answers[..1])
}

/// The promise that an anomaly breaks.
fn kind_of(finding: &Finding) -> ViolationKind {
    use Anomaly as A;
    match finding.anomaly {
        A::RealTime | A::StaleRead => ViolationKind::RealTime,
        A::MonotonicWrites
        | A::WritesFollowReads
        | A::ReadYourWrites
        | A::MonotonicReads
        | A::SessionFork
        | A::SessionSkew => ViolationKind::Overtaken,
        _ => ViolationKind::WrongAnswer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dependencies::Op;
    use ordain_model::{Call, Db, Gsn, Micros, ProcedureId};

    /// Requests whose arguments are the transaction's appends, and whose replies are the transaction.
    const PROTOCOL: Protocol = Protocol {
        is_one: |_| true,
        asked: |request| {
            let mut txn = Txn::decode(&request.args).unwrap_or_default();
            txn.ops.retain(|op| matches!(op, Op::Append { .. }));
            txn
        },
        committed: |answer| Txn::decode(&answer.reply).filter(|_| answer.status == OutcomeStatus::Committed),
    };

    fn append(base: u64, list: u64) -> Vec<u8> {
        let mut txn = Vec::new();
        Txn::encode_head(base, 1, &mut txn);
        Txn::encode_append(list, &mut txn);
        txn
    }

    fn read(base: u64, list: u64, values: &[u64]) -> Vec<u8> {
        let mut txn = Vec::new();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Txn::encode_head(base, 1, &mut txn);
        Txn::encode_read(list, &bytes, &mut txn);
        txn
    }

    fn send(history: &mut History, client: usize, txn: &[u8]) -> RequestId {
        history.sent_over((Some(client), 1), Micros(0), Call::new(ProcedureId(1), Db(0)), txn.to_vec())
    }

    fn answer(history: &mut History, id: RequestId, reply: &[u8]) {
        history.answered(id, OutcomeStatus::Committed, Gsn(1), reply);
    }

    fn verdict(history: &History) -> Result<(), ViolationKind> {
        ends_with(history, &[0x100])
    }

    fn ends_with(history: &History, list: &[u64]) -> Result<(), ViolationKind> {
        at(Level::StrictSerializable, history, list)
    }

    fn at(level: Level, history: &History, list: &[u64]) -> Result<(), ViolationKind> {
        let lists = [(1, list.to_vec())].into();
        check(level, history, &lists, PROTOCOL).map_err(|violation| violation.kind)
    }

    #[test]
    fn a_read_has_what_was_answered_before_it_was_asked() {
        for (values, expected) in [(&[0x100][..], Ok(())), (&[], Err(ViolationKind::RealTime))] {
            let (mut history, write) = (History::default(), append(0x100, 1));
            let writer = send(&mut history, 1, &write);
            answer(&mut history, writer, &write);
            let read = read(0x200, 1, values);
            let reader = send(&mut history, 2, &read);
            answer(&mut history, reader, &read);
            assert_eq!(verdict(&history), expected);
        }
    }

    /// The writer is answered at 10 us, and the reader, which sees nothing of it, is asked at 25 us.
    #[test]
    fn an_inversion_in_time_counts_beyond_its_bound() {
        let (mut history, write, read) = (History::default(), append(0x100, 1), read(0x200, 1, &[]));
        let writer = send(&mut history, 1, &write);
        history.note_now(Micros(10));
        answer(&mut history, writer, &write);
        let call = Call::new(ProcedureId(1), Db(0));
        let reader = history.sent_over((Some(2), 1), Micros(25), call, read.clone());
        answer(&mut history, reader, &read);
        let lists = [(1, vec![0x100])].into();
        let within = |bound| check_within(Micros(bound), &history, &lists, PROTOCOL);
        assert_eq!(
            [14, 15].map(|bound| within(bound).map_err(|violation| violation.kind)),
            [Err(ViolationKind::RealTime), Ok(())]
        );
        assert!(within(14).unwrap_err().to_string().contains("(beyond 14 us)"));
    }

    #[test]
    fn a_read_has_what_its_connection_sent_before_it() {
        for (client, expected) in [(2, Ok(())), (1, Err(ViolationKind::Overtaken))] {
            let (mut history, write, read) = (History::default(), append(0x100, 1), read(0x200, 1, &[]));
            let (writer, reader) = (send(&mut history, 1, &write), send(&mut history, client, &read));
            answer(&mut history, writer, &write);
            answer(&mut history, reader, &read);
            assert_eq!(verdict(&history), expected);
        }
    }

    #[test]
    fn appends_of_a_connection_are_in_the_order_in_which_they_were_sent() {
        for (client, list, expected) in [
            (1, [0x100, 0x200], Ok(())),
            (1, [0x200, 0x100], Err(ViolationKind::Overtaken)),
            (2, [0x200, 0x100], Ok(())),
        ] {
            // Both are sent before any is answered: real time leaves them free.
            let (mut history, first, second) = (History::default(), append(0x100, 1), append(0x200, 1));
            let (one, other) = (send(&mut history, 1, &first), send(&mut history, client, &second));
            answer(&mut history, other, &second);
            answer(&mut history, one, &first);
            assert_eq!(ends_with(&history, &list), expected, "{client} {list:x?}");
        }
    }

    #[test]
    fn a_request_that_was_sent_again_has_left_its_place() {
        let (mut history, first, second) = (History::default(), append(0x100, 1), append(0x200, 1));
        let (one, other) = (send(&mut history, 1, &first), send(&mut history, 1, &second));
        history.sent_again(one);
        answer(&mut history, other, &second);
        answer(&mut history, one, &first);
        assert_eq!(ends_with(&history, &[0x200, 0x100]), Ok(()));
    }

    /// A client appends over its first connection and is answered, sends a read that is lost, and sends it again over another
    /// connection, or the same. With `later` that connection then reads again.
    fn read_again(over: u32, seen: &[u64], later: Option<&[u64]>) -> History {
        let (mut history, write) = (History::default(), append(0x100, 1));
        let writer = send(&mut history, 1, &write);
        answer(&mut history, writer, &write);
        let lost = read(0x200, 1, seen);
        let reader = send(&mut history, 1, &lost);
        history.sent_again_over(over, reader);
        answer(&mut history, reader, &lost);
        if let Some(values) = later {
            let next = read(0x300, 1, values);
            let call = Call::new(ProcedureId(1), Db(0));
            let reader = history.sent_over((Some(1), over), Micros(0), call, next.clone());
            answer(&mut history, reader, &next);
        }
        history
    }

    /// Found by two seeds of `walter`: a client whose node was killed asked the next one, which cannot know what it had been answered.
    #[test]
    fn what_has_moved_to_another_connection_owes_nothing_to_those_before() {
        for (has_moved, expected) in [(false, Err(ViolationKind::Overtaken)), (true, Ok(()))] {
            for is_update in [false, true] {
                let (mut history, first) = (History::default(), append(0x100, 1));
                let writer = send(&mut history, 1, &first);
                answer(&mut history, writer, &first);
                let (later, list) = match is_update {
                    false => (read(0x200, 1, &[]), vec![0x100]),
                    true => (append(0x200, 1), vec![0x200, 0x100]),
                };
                let again = send(&mut history, 1, &later);
                history.sent_again(again);
                if has_moved {
                    history.moved_to(2, again);
                }
                answer(&mut history, again, &later);
                assert_eq!(at(Level::SessionParallelSnapshot, &history, &list), expected, "{is_update}");
            }
        }
    }

    #[test]
    fn a_read_that_is_sent_again_is_of_the_session_of_its_last_connection() {
        use ViolationKind::{Overtaken, RealTime};
        let session =
            |over, seen: &[u64], later| at(Level::SessionReads, &read_again(over, seen, later), &[0x100]);
        assert_eq!(session(1, &[], None), Err(Overtaken), "its own connection has appended");
        assert_eq!(session(2, &[], None), Ok(()), "a new connection has seen nothing");
        assert_eq!(session(2, &[], Some(&[])), Ok(()));
        assert_eq!(session(2, &[], Some(&[0x100])), Ok(()));
        assert_eq!(session(2, &[0x100], Some(&[])), Err(Overtaken), "the new connection goes back");
        // Where reads are strict, they see what was answered to anybody.
        assert_eq!(ends_with(&read_again(2, &[], None), &[0x100]), Err(RealTime));
        // An update stands behind what its first connection was answered, over whatever connection it is sent again.
        let (mut history, [first, second]) = (History::default(), [0x100, 0x200].map(|base| append(base, 1)));
        let writer = send(&mut history, 1, &first);
        answer(&mut history, writer, &first);
        let other = send(&mut history, 1, &second);
        history.sent_again_over(2, other);
        answer(&mut history, other, &second);
        assert!(at(Level::SessionReads, &history, &[0x200, 0x100]).is_err());
        assert_eq!(at(Level::SessionReads, &history, &[0x100, 0x200]), Ok(()));
    }

    #[test]
    fn a_request_of_an_unknown_end_may_take_effect_after_those_behind_it() {
        let (mut history, first, second) = (History::default(), append(0x100, 1), append(0x200, 1));
        let (one, other) = (send(&mut history, 1, &first), send(&mut history, 1, &second));
        history.answered(one, OutcomeStatus::Unknown, Gsn::NONE, b"");
        answer(&mut history, other, &second);
        assert_eq!(ends_with(&history, &[0x200, 0x100]), Ok(()));
    }

    /// The ends of a request that may be overtaken.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum End {
        GivenUp,
        Unanswered,
        Retried,
    }

    fn end(history: &mut History, id: RequestId, end: End, txn: &[u8]) {
        match end {
            End::GivenUp => history.answered(id, OutcomeStatus::Unknown, Gsn::NONE, b""),
            End::Unanswered => {}
            End::Retried => {
                history.sent_again(id);
                answer(history, id, txn);
            }
        }
    }

    #[test]
    fn what_may_be_overtaken_stands_behind_what_was_sent_before_it() {
        for how in [End::GivenUp, End::Unanswered, End::Retried] {
            for (client, list, expected) in [
                (1, [0x100, 0x200], Ok(())),
                (1, [0x200, 0x100], Err(ViolationKind::Overtaken)),
                (2, [0x200, 0x100], Ok(())),
            ] {
                // All are sent before any is answered: real time leaves them free.
                let mut history = History::default();
                let [first, second] = [0x100, 0x200].map(|base| append(base, 1));
                let one = send(&mut history, 1, &first);
                // A read between them carries the order on.
                let between = send(&mut history, 1, &read(0x300, 2, &[]));
                let other = send(&mut history, client, &second);
                answer(&mut history, one, &first);
                answer(&mut history, between, &read(0x300, 2, &[]));
                end(&mut history, other, how, &second);
                assert_eq!(ends_with(&history, &list), expected, "{how:?} {client} {list:x?}");
            }
        }
    }

    #[test]
    fn one_that_may_be_overtaken_leaves_the_order_of_those_around_it() {
        for list in
            [[0x100, 0x200, 0x300], [0x100, 0x300, 0x200], [0x200, 0x100, 0x300], [0x300, 0x100, 0x200]]
        {
            let mut history = History::default();
            let txns = [0x100, 0x200, 0x300].map(|base| append(base, 1));
            let [first, middle, last] = [0, 1, 2].map(|at| send(&mut history, 1, &txns[at]));
            end(&mut history, middle, End::GivenUp, &txns[1]);
            answer(&mut history, first, &txns[0]);
            answer(&mut history, last, &txns[2]);
            let keeps = |before, after| {
                let place = |value| list.iter().position(|other| *other == value);
                place(before) < place(after)
            };
            let expected = keeps(0x100, 0x200) && keeps(0x100, 0x300);
            assert_eq!(ends_with(&history, &list).is_ok(), expected, "{list:x?}");
        }
    }

    #[test]
    fn two_of_unknown_end_may_take_effect_in_either_order() {
        for list in [[0x100, 0x200], [0x200, 0x100]] {
            let mut history = History::default();
            for base in [0x100, 0x200] {
                let id = send(&mut history, 1, &append(base, 1));
                end(&mut history, id, End::GivenUp, b"");
            }
            assert_eq!(ends_with(&history, &list), Ok(()));
        }
    }

    #[test]
    fn what_was_turned_away_has_no_effect() {
        for (list, expected) in [(&[][..], Ok(())), (&[0x100], Err(ViolationKind::WrongAnswer))] {
            let mut history = History::default();
            let id = send(&mut history, 1, &append(0x100, 1));
            history.answered(id, OutcomeStatus::Busy, Gsn::NONE, b"");
            assert_eq!(ends_with(&history, list), expected);
        }
    }

    #[test]
    fn a_request_without_an_answer_may_have_happened_and_not_before_it_was_asked() {
        assert_eq!(ends_with(&before_a_write(&[0x100]), &[0x100]), Err(ViolationKind::RealTime));
        let nothing = before_a_write(&[]);
        assert_eq!(ends_with(&nothing, &[]), Ok(()));
        assert_eq!(ends_with(&nothing, &[0x100]), Ok(()));
    }

    /// A reader that was answered these values before a write, of which nothing is known, was asked.
    fn before_a_write(values: &[u64]) -> History {
        let (mut history, read) = (History::default(), read(0x200, 1, values));
        let reader = send(&mut history, 2, &read);
        answer(&mut history, reader, &read);
        send(&mut history, 1, &append(0x100, 1));
        history
    }

    #[test]
    fn answers_that_differ_or_are_none_are_found() {
        for (reply, expected) in
            [(append(0x100, 1), ViolationKind::AnswersDiffer), (vec![1], ViolationKind::WrongAnswer)]
        {
            let (mut history, write) = (History::default(), append(0x100, 1));
            let writer = send(&mut history, 1, &write);
            answer(&mut history, writer, &reply);
            if expected == ViolationKind::AnswersDiffer {
                answer(&mut history, writer, &append(0x300, 1));
            }
            assert_eq!(verdict(&history), Err(expected));
        }
    }
}
