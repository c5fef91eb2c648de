//! What clients of bytes have said and heard in a run, and whether that can be.

use std::collections::BTreeMap;

use ordain_checker::appends::{self, Protocol};
use ordain_checker::dependencies::{Op, Txn};
use ordain_checker::history::{Answer, Moment, Request};
use ordain_checker::keyspace::{
    Change, Look, Mortal, Scan, Span, Together, check_mortal, check_scans, check_together,
};
use ordain_checker::lengths::{self, Length};
use ordain_checker::{History, Level, Promise, RequestId, Violation, ViolationKind};
use ordain_model::{Abort, Call, Db, Isolation, Micros, OutcomeStatus, ProcedureId, Random, Stamp};
use ordain_resp::client::Reply;

use super::unit::{End, Kind, Pair, Unexpected, Unit};
use super::{Speaker, scan};
use crate::faults::{Fault, Faults};

/// Transactions are written into histories under no procedure's name.
const SPOKEN: Call = Call { procedure: ProcedureId(0), db: Db(0), session: None };
/// The most that times of batches may be off the true one, when clocks are right: they are whole milliseconds.
const SLACK: Micros = Micros(2_000);

/// All that was said and heard.
#[derive(Debug, Default)]
pub(crate) struct Speech {
    /// Transactions of appends and reads.
    pub(super) history: History,
    lengths: Vec<Length>,
    mortals: Vec<(Mortal, bool)>,
    together: Vec<Together>,
    changes: BTreeMap<String, Vec<Change>>,
    scans: Vec<Scan>,
    /// Scripts and functions that are gone although a load of them was answered.
    forgotten: Vec<String>,
    bases: u64,
    moments: u64,
    /// The time of the event that is handled.
    pub(super) now: Micros,
    /// FLUSHALL is among what is sent: what was written is gone then, and nothing but the serial execution tells when.
    pub(super) flushes: bool,
    /// Interactive transactions are most of what is sent, and single commands and blocks all else.
    pub(super) steps: bool,
}

/// What a run promises its clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) promise: Promise,
    pub(crate) isolation: Isolation,
    /// The level of an engine whose transactions need not stand in the order of real time.
    pub(crate) relaxed: Option<Level>,
    pub(crate) faults: Faults,
}

impl Terms {
    /// The level of transactions that append and read.
    fn level(self) -> Level {
        match (self.isolation, self.promise, self.relaxed) {
            (Isolation::ReadCommitted, ..) => Level::ReadCommitted,
            (Isolation::Serializable, _, Some(relaxed)) => relaxed,
            (Isolation::Serializable, Promise::Strict, None) => Level::StrictSerializable,
            (Isolation::Serializable, Promise::Session, None) => Level::SessionReads,
            (Isolation::Serializable, Promise::Previous | Promise::Serializable, None) => {
                Level::SnapshotReads
            }
        }
    }
}

impl Speech {
    /// A name for a transaction.
    pub(super) fn base(&mut self) -> u64 {
        self.bases += 1;
        self.bases << 8
    }

    pub(super) fn moment(&mut self) -> Moment {
        self.moments += 1;
        Moment(self.moments)
    }

    /// Notes that a transaction is sent.
    pub(super) fn sent(&mut self, unit: &Unit, client: usize, connection: u32) -> RequestId {
        self.history.sent_over((Some(client), connection), self.now, SPOKEN, unit.asked())
    }

    pub(super) fn send(&mut self, unit: &mut Unit, client: usize, connection: u32) {
        unit.request = Some(self.sent(unit, client, connection));
    }

    /// Notes that a transaction will have no effect, whatever happens.
    pub(super) fn never(&mut self, unit: &Unit) {
        if let Some(request) = unit.request {
            self.answer(request, OutcomeStatus::Aborted(Abort::Logic), &[]);
        }
    }

    fn answer(&mut self, request: RequestId, status: OutcomeStatus, reply: &[u8]) {
        self.history.answered(request, status, Stamp::NONE, reply);
    }

    pub(super) fn mortal_key(&self, which: usize) -> &str {
        &self.mortals[which].0.key
    }

    pub(super) fn new_mortal(&mut self, client: usize, lives: Micros) -> (usize, String) {
        let which = self.mortals.len();
        let key = format!("e:{client}.{which}");
        let written = Span { asked: self.now, answered: self.now };
        self.mortals.push((Mortal { key: key.clone(), written, lives, looks: Vec::new() }, false));
        (which, key)
    }

    pub(super) fn change(&mut self, key: &str, is_there: bool) -> usize {
        let asked = self.moment();
        let changes = self.changes.entry(key.to_owned()).or_default();
        changes.push(Change { asked, answered: None, is_there });
        changes.len() - 1
    }

    /// Takes the end of what a client has sent.
    pub(super) fn finish(
        &mut self,
        speaker: &mut Speaker,
        unit: &Unit,
        out: &mut Vec<u8>,
        random: &mut Random,
    ) -> Result<(), Unexpected> {
        let has_failed = unit.error.is_some();
        match &unit.kind {
            Kind::Whole | Kind::Refused | Kind::CompareAndSet { .. } | Kind::Interactive { .. } => {
                return self.finish_transaction(speaker, unit);
            }
            Kind::Word => {}
            Kind::Script => {
                if let Some(Reply::Bulk(name)) = unit.other.clone().filter(|_| !has_failed) {
                    speaker.script = Some(name);
                }
            }
            Kind::Function => speaker.has_function |= !has_failed,
            Kind::Write(which) if !has_failed => {
                let (mortal, is_written) = &mut self.mortals[*which];
                mortal.written.answered = self.now;
                *is_written = true;
                speaker.mortals.push(*which);
            }
            Kind::Look(which, asked) if !has_failed => {
                let span = Span { asked: *asked, answered: self.now };
                let found = match &unit.other {
                    Some(Reply::Nil | Reply::Int(-2)) => Look::Gone,
                    Some(Reply::Bulk(value)) if value == b"v" => Look::There,
                    Some(Reply::Int(ms @ 0..)) => Look::Left(Micros::from_millis(*ms as u64)),
                    other => return Err(Unexpected(format!("{other:?}, for a key with a limited time"))),
                };
                self.mortals[*which].0.looks.push((span, found));
            }
            Kind::Pair(pair) if !has_failed => self.together.push(found_together(pair)?),
            Kind::Write(_) | Kind::Look(..) | Kind::Pair(_) => {}
            Kind::Change(key, at) => {
                let answered = Some(self.moment());
                let changes = self.changes.entry(key.clone()).or_default();
                match &unit.error {
                    None => changes[*at].answered = answered,
                    Some(text) if text.starts_with(b"UNKNOWN") => {}
                    // It has changed nothing: as if what was there before had been written again.
                    Some(_) => {
                        let before = changes[..*at].iter().rev().find(|change| change.answered.is_some());
                        changes[*at].is_there = before.is_some_and(|change| change.is_there);
                    }
                }
            }
            Kind::Scan => self.scanned(speaker, unit, out, random)?,
        }
        Ok(())
    }

    fn finish_transaction(&mut self, speaker: &mut Speaker, unit: &Unit) -> Result<(), Unexpected> {
        let end = unit.end()?;
        let is_to_repeat = match &end {
            End::Committed(_) => false,
            End::Unknown => true,
            End::Aborted(text) => text.starts_with(b"BUSY") || text.starts_with(b"MISCONF"),
        };
        if speaker.session.is_some() && is_to_repeat {
            return Ok(());
        }
        speaker.retry = None;
        let Some(request) = unit.request else { return Ok(()) };
        match end {
            End::Committed(txn) => {
                let lengths = unit.lengths().map(|(list, value, length)| Length { list, value, length });
                self.lengths.extend(lengths);
                self.answer(request, OutcomeStatus::Committed, &txn);
            }
            End::Aborted(text) => {
                if text.starts_with(b"NOSCRIPT") || text.starts_with(b"ERR Function not found") {
                    self.forgotten.push(String::from_utf8_lossy(&text).into_owned());
                }
                self.answer(request, OutcomeStatus::Aborted(Abort::Logic), &text);
            }
            End::Unknown => self.answer(request, OutcomeStatus::Unknown, &[]),
        }
        Ok(())
    }

    fn scanned(
        &mut self,
        speaker: &mut Speaker,
        unit: &Unit,
        out: &mut Vec<u8>,
        random: &mut Random,
    ) -> Result<(), Unexpected> {
        let Some(mut iteration) = speaker.iteration.take().filter(|_| unit.error.is_none()) else {
            return Ok(());
        };
        let wrong = || Unexpected(format!("{:?}, for a step of an iteration", unit.other));
        let Some(Reply::Array(parts)) = &unit.other else { return Err(wrong()) };
        let [Reply::Bulk(cursor), Reply::Array(keys)] = &parts[..] else { return Err(wrong()) };
        for key in keys {
            let Reply::Bulk(key) = key else { return Err(wrong()) };
            iteration.found.insert(String::from_utf8_lossy(key).into_owned());
        }
        if cursor == b"0" {
            let ended = self.moment();
            self.scans.push(Scan { begun: iteration.begun, ended, found: iteration.found });
        } else {
            speaker.iteration = Some(iteration);
            scan(cursor, speaker, out, random);
        }
        Ok(())
    }

    /// The number of transactions.
    pub(crate) fn len(&self) -> u64 {
        self.history.len() as u64
    }

    /// The lists that were ever appended to.
    pub(crate) fn lists(&self) -> Vec<u64> {
        let txns = self.history.requests().filter_map(|(_, request)| Txn::decode(&request.args));
        let lists: std::collections::BTreeSet<u64> =
            txns.flat_map(|txn| txn.ops).map(|op| op.key()).collect();
        lists.into_iter().collect()
    }

    /// Judges all of it, by the lists as they are in the end.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn judge(&self, lists: &BTreeMap<u64, Vec<u64>>, terms: Terms) -> Result<(), Violation> {
        if let Some(text) = self.forgotten.first() {
            let text = format!("what was loaded and answered is gone: {text}");
            return Err(Violation::new(ViolationKind::AcknowledgedLost, text));
        }
        if self.flushes {
            return Ok(());
        }
        lengths::check(&self.lengths, lists)?;
        let is_strict = terms.level() == Level::StrictSerializable;
        let protocol = Protocol { is_one: |_| true, asked, committed };
        appends::check(terms.level(), &self.history, lists, protocol)?;
        if is_strict {
            check_scans(&self.changes, &self.scans)?;
        }
        // A partition whose clock is fast removes its key of two before the other's is gone.
        if !terms.faults.has(Fault::Clock) {
            check_together(&self.together)?;
            let written = self.mortals.iter().filter(|(_, is_written)| *is_written);
            check_mortal(written.map(|(mortal, _)| mortal), SLACK, !is_strict)?;
        }
        Ok(())
    }
}

/// The findings of a committed transaction about two keys that end together.
fn found_together(Pair { keys, left, .. }: &Pair) -> Result<Together, Unexpected> {
    let left_of = |answer: &Option<Reply>| match answer {
        Some(Reply::Int(-2)) => Ok(None),
        Some(Reply::Int(ms @ 0..)) => Ok(Some(*ms as u64)),
        other => Err(Unexpected(format!("{other:?}, for the time that a key has left"))),
    };
    Ok(Together { keys: keys.clone(), left_ms: [left_of(&left[0])?, left_of(&left[1])?] })
}

/// What a request asked for: its appends alone.
fn asked(request: &Request) -> Txn {
    let mut txn = Txn::decode(&request.args).unwrap_or_default();
    txn.ops.retain(|op| matches!(op, Op::Append { .. }));
    txn
}

fn committed(answer: &Answer) -> Option<Txn> {
    Txn::decode(&answer.reply).filter(|_| answer.status == OutcomeStatus::Committed)
}

#[cfg(test)]
mod tests {
    use super::super::unit::{Form, ListOp};
    use super::*;

    const TERMS: Terms = Terms {
        promise: Promise::Strict,
        isolation: Isolation::Serializable,
        relaxed: None,
        faults: Faults::NONE,
    };

    /// What a client would hear.
    struct Heard {
        client: usize,
        speech: Speech,
        speaker: Speaker,
        random: Random,
    }

    impl Heard {
        fn new(session: Option<u64>) -> Heard {
            let (speech, speaker) = (Speech::default(), Speaker::new(session));
            Heard { client: 1, speech, speaker, random: Random::new(1) }
        }

        fn unit(&mut self, ops: &[(u64, bool)], kind: Kind) -> Unit {
            let ops = ops.iter().map(|(list, appends)| ListOp { list: *list, appends: *appends }).collect();
            let mut unit = Unit::new(self.speech.base(), ops);
            unit.kind = kind;
            self.speech.send(&mut unit, self.client, 1);
            unit
        }

        /// Takes the replies to a unit, and its end.
        fn hear(&mut self, mut unit: Unit, replies: Vec<Reply>) {
            for reply in replies {
                unit.take(reply).unwrap();
                while unit.expected.is_empty() && unit.go_on(&mut Vec::new()) {}
            }
            let Heard { speech, speaker, random, .. } = self;
            speech.finish(speaker, &unit, &mut Vec::new(), random).unwrap();
        }

        fn append(&mut self, list: u64, length: i64) -> u64 {
            let mut unit = self.unit(&[(list, true)], Kind::Whole);
            unit.write(&Form::Plain, &mut Vec::new());
            let value = unit.base;
            self.hear(unit, vec![Reply::Int(8 * length)]);
            value
        }

        fn verdict(&self, values: &[u64]) -> Result<(), ViolationKind> {
            self.verdict_on(TERMS, values)
        }

        fn verdict_on(&self, terms: Terms, values: &[u64]) -> Result<(), ViolationKind> {
            self.speech.judge(&[(1, values.to_vec())].into(), terms).map_err(|violation| violation.kind)
        }
    }

    fn ok() -> Reply {
        Reply::Status(b"OK".to_vec())
    }

    /// Watches list 1, sees nothing in it, and is told that its block has run, or has not.
    fn compare_and_set(heard: &mut Heard, end: Reply) -> u64 {
        let mut unit = heard.unit(&[(1, false), (1, true)], Kind::CompareAndSet { is_sent: false });
        unit.begin(&mut Vec::new());
        let value = unit.base + 1;
        heard.hear(unit, vec![ok(), Reply::Nil, ok(), Reply::Status(b"QUEUED".to_vec()), end]);
        value
    }

    #[test]
    fn a_block_whose_watched_key_had_changed_must_have_had_no_effect() {
        let ran = Reply::Array(vec![Reply::Int(16)]);
        for (end, takes_effect, verdict) in [
            (Reply::Nil, false, Ok(())),
            (Reply::Nil, true, Err(ViolationKind::WrongAnswer)),
            // WATCH that never fails: another append came between the read and the block.
            (ran, true, Err(ViolationKind::WrongAnswer)),
        ] {
            let mut heard = Heard::new(None);
            let other = heard.append(1, 1);
            let value = compare_and_set(&mut heard, end);
            let values = if takes_effect { vec![other, value] } else { vec![other] };
            assert_eq!(heard.verdict(&values), verdict);
        }
    }

    #[test]
    fn a_retry_that_is_run_twice_is_refused() {
        let mut heard = Heard::new(Some(7));
        let value = heard.append(1, 1);
        assert_eq!(heard.verdict(&[value]), Ok(()));
        assert_eq!(heard.verdict(&[value, value]), Err(ViolationKind::WrongAnswer));
        assert_eq!(heard.verdict(&[]), Err(ViolationKind::WrongAnswer));
    }

    #[test]
    fn without_real_time_the_order_of_sessions_binds() {
        use ViolationKind::{Overtaken, RealTime};
        for (client, strict, in_sessions) in [(1, Overtaken, Err(Overtaken)), (2, RealTime, Ok(()))] {
            let mut heard = Heard::new(None);
            // The second is asked once the first is answered, and stands before it.
            let first = heard.append(1, 2);
            heard.client = client;
            let second = heard.append(1, 1);
            let values = [second, first];
            assert_eq!(heard.verdict(&values), Err(strict));
            assert_eq!(
                heard.verdict_on(Terms { relaxed: Some(Level::SessionSerializable), ..TERMS }, &values),
                in_sessions
            );
        }
    }

    #[test]
    fn an_unanswered_append_may_be_there_once_and_need_not() {
        let mut heard = Heard::new(None);
        let value = heard.unit(&[(1, true)], Kind::Whole).base;
        assert_eq!(heard.verdict(&[]), Ok(()));
        assert_eq!(heard.verdict(&[value]), Ok(()));
        assert_eq!(heard.verdict(&[value, value]), Err(ViolationKind::WrongAnswer));
    }

    #[test]
    fn a_reply_that_is_another_requests_is_refused() {
        let mut heard = Heard::new(None);
        let [first, second] = [2, 1].map(|length| heard.append(1, length));
        // A session that has swapped the replies of two requests.
        assert_eq!(heard.verdict(&[first, second]), Err(ViolationKind::WrongAnswer));
    }

    #[test]
    fn a_discarded_block_and_an_aborted_transaction_have_no_effect() {
        let mut heard = Heard::new(None);
        let unit = heard.unit(&[(1, true)], Kind::Whole);
        heard.speech.never(&unit);
        assert_eq!(heard.verdict(&[]), Ok(()));
        assert_eq!(heard.verdict(&[unit.base]), Err(ViolationKind::WrongAnswer));
        let aborts = Kind::Interactive { sent: 0, aborts: true, is_over: false };
        let mut unit = heard.unit(&[(1, true)], aborts);
        unit.begin(&mut Vec::new());
        let value = unit.base;
        heard.hear(unit, vec![ok(), Reply::Int(8), ok()]);
        assert_eq!(heard.verdict(&[value]), Err(ViolationKind::WrongAnswer));
    }

    #[test]
    fn keys_that_end_together_are_found_so_by_a_transaction_that_commits() {
        let (gone, there) = (Reply::Int(-2), Reply::Int(3));
        let refused = Reply::Error(b"TXNABORT a record was changed".to_vec());
        for (second, end, verdict) in [
            (&there, ok(), Ok(())),
            (&gone, ok(), Err(ViolationKind::WrongAnswer)),
            (&Reply::Int(2), ok(), Err(ViolationKind::WrongAnswer)),
            (&gone, refused, Ok(())),
        ] {
            let mut heard = Heard::new(None);
            let unit = Unit::pair(Pair::new("p:1.".to_owned(), 5, true), &mut Vec::new());
            heard.hear(unit, vec![ok(), ok(), there.clone(), second.clone(), end]);
            assert_eq!(heard.verdict(&[]), verdict, "{second:?}");
        }
        // Nothing can be said of one that broke off, which is left in good order.
        let (mut heard, mut out) = (Heard::new(None), Vec::new());
        let mut unit = Unit::pair(Pair::new("p:1.".to_owned(), 5, true), &mut out);
        for reply in [ok(), ok(), Reply::Error(b"BUSY".to_vec())] {
            unit.take(reply).unwrap();
            assert!(unit.go_on(&mut out));
        }
        assert!(out.ends_with(b"TXN.ABORT\r\n"));
        heard.hear(unit, vec![ok()]);
        assert_eq!(heard.verdict(&[]), Ok(()));
    }

    #[test]
    fn what_was_loaded_is_not_forgotten() {
        let mut heard = Heard::new(None);
        let mut unit = heard.unit(&[(1, true)], Kind::Whole);
        unit.write(&Form::EvalSha(b"name".to_vec()), &mut Vec::new());
        heard.hear(unit, vec![Reply::Error(b"NOSCRIPT No matching script.".to_vec())]);
        assert_eq!(heard.verdict(&[]), Err(ViolationKind::AcknowledgedLost));
    }

    #[test]
    fn a_request_of_a_session_is_asked_again_until_it_is_known() {
        let mut heard = Heard::new(Some(7));
        for (error, goes_on) in [("BUSY", true), ("MISCONF", true), ("UNKNOWN", true), ("TXNABORT", false)] {
            let mut unit = heard.unit(&[(1, true)], Kind::Whole);
            heard.speaker.retry = Some(super::super::Retry {
                number: 1,
                base: unit.base,
                ops: unit.ops.clone(),
                form: Form::Plain,
                request: unit.request.unwrap(),
            });
            unit.write(&Form::Plain, &mut Vec::new());
            heard.hear(unit, vec![Reply::Error(error.as_bytes().to_vec())]);
            assert_eq!(heard.speaker.retry.is_some(), goes_on, "{error}");
        }
    }
}
