//! Appends and reads of lists, checked without a log: by the answers, and by the lists at the end.
//!
//! Strict serializability: there is no [anomaly](crate::dependencies), what was answered before a reader asked is in what it
//! read, and what one connection has sent takes effect in the order in which it was sent.

use std::collections::{BTreeMap, BTreeSet};

use ordain_model::{Abort, OutcomeStatus};

use crate::dependencies::history::{History as Appends, Op, Txn, base_of};
use crate::dependencies::{self, Class};
use crate::history::{Answer, History, Moment, Request};
use crate::{RequestId, Violation, ViolationKind};

/// The protocol of the requests: how arguments and replies are read.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// The appends of a request and the transaction's base, as far as the arguments say.
    pub asked: fn(&Request) -> Txn,
    /// The transaction that a committed answer reports; `None` for any other answer.
    pub committed: fn(&Answer) -> Option<Txn>,
}

/// A committed transaction with the moments at which it was asked and answered.
struct Answered {
    asked: Moment,
    answered: Moment,
    txn: Txn,
    id: RequestId,
}

/// Checks that a history is strictly serializable, by the lists at its end.
///
/// # Errors
/// [`ViolationKind::AnswersDiffer`], [`ViolationKind::WrongAnswer`], [`ViolationKind::RealTime`] and
/// [`ViolationKind::Overtaken`].
pub fn check(
    history: &History,
    lists: &BTreeMap<u64, Vec<u64>>,
    protocol: Protocol,
) -> Result<(), Violation> {
    let there: BTreeSet<u64> = lists.values().flatten().map(|value| base_of(*value)).collect();
    let mut all = Appends::default();
    let mut answered = Vec::new();
    for (id, request) in history.requests() {
        let appends = (protocol.asked)(request);
        // A transaction that only reads may be run again for each time that it is asked.
        let mut answers = &request.answers[..];
        if !appends.ops.is_empty()
            && let Some((first, others)) = answers.split_first()
        {
            if let Some(other) = others.iter().find(|other| other.reply != first.reply) {
                let text = format!("one request was answered {:?} and {:?}", first.reply, other.reply);
                return Err(Violation::new(ViolationKind::AnswersDiffer, text).of(id));
            }
            answers = &answers[..1];
        }
        for answer in answers {
            match (protocol.committed)(answer) {
                Some(txn) => {
                    all.committed.push(txn.clone());
                    answered.push(Answered { asked: request.moment, answered: answer.moment, txn, id });
                }
                None if matches!(answer.status, OutcomeStatus::Aborted(Abort::Logic)) => {
                    all.aborted.insert(appends.base);
                }
                None => {
                    let text = format!("an answer is no history: {answer:?}");
                    return Err(Violation::new(ViolationKind::WrongAnswer, text).of(id));
                }
            }
        }
        // A transaction without an answer that has appended has happened; what it has read stays unknown.
        if answers.is_empty() && there.contains(&appends.base) {
            all.committed.push(appends);
        }
    }
    let anomalies = dependencies::check(&all, lists);
    if let Some((count, example)) = Class::ALL.into_iter().find_map(|class| anomalies.of(class)) {
        return Err(Violation::new(ViolationKind::WrongAnswer, format!("{count} times such as: {example}")));
    }
    check_connections(history, lists, protocol)?;
    check_real_time(&answered)
}

/// Checks that a read has all appends that were answered before it was asked.
fn check_real_time(answered: &[Answered]) -> Result<(), Violation> {
    for reader in answered {
        for op in &reader.txn.ops {
            let Op::Read { key, values } = op else { continue };
            let before = answered.iter().filter(|writer| writer.answered < reader.asked);
            let missed = before.flat_map(|writer| &writer.txn.ops).find_map(|op| match op {
                Op::Append { key: other, value } if other == key && !values.contains(value) => Some(*value),
                _ => None,
            });
            if let Some(value) = missed {
                let text = format!("list {key} was read without {value}, which was answered before");
                return Err(Violation::new(ViolationKind::RealTime, text).of(reader.id));
            }
        }
    }
    Ok(())
}

/// Checks that a later request of a connection sees and follows the appends of an earlier one.
fn check_connections(
    history: &History,
    lists: &BTreeMap<u64, Vec<u64>>,
    protocol: Protocol,
) -> Result<(), Violation> {
    let mut sent: BTreeMap<(usize, u32), Vec<(RequestId, Txn)>> = BTreeMap::new();
    // A request that was sent again has left its place.
    for (id, request) in history.requests().filter(|(_, request)| request.attempts <= 1) {
        let (Some(client), Some(txn)) =
            (request.client, request.answers.first().and_then(protocol.committed))
        else {
            continue;
        };
        let earlier = sent.entry((client, request.connection)).or_default();
        for (before, first) in &*earlier {
            for (op, done) in txn.ops.iter().flat_map(|op| first.ops.iter().map(move |done| (op, done))) {
                let Op::Append { key, value } = done else { continue };
                let place =
                    |value: &u64| lists.get(key).and_then(|list| list.iter().position(|v| v == value));
                let is_right = match op {
                    Op::Read { key: other, values } => other != key || values.contains(value),
                    Op::Append { key: other, value: next } => other != key || place(value) < place(next),
                };
                if !is_right {
                    let text = format!(
                        "list {key}: {op:?} came before {value}, which its connection had sent before"
                    );
                    return Err(Violation::new(ViolationKind::Overtaken, text).of(*before).of(id));
                }
            }
        }
        earlier.push((id, txn));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_model::{Call, Db, Gsn, Micros, ProcedureId};

    /// Requests whose arguments are the transaction's appends, and whose replies are the transaction.
    const PROTOCOL: Protocol = Protocol {
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
        check(history, &[(1, vec![0x100])].into(), PROTOCOL).map_err(|violation| violation.kind)
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
