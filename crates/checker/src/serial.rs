//! Serial equivalence (calvin.md, section 8, oracle 1): the reference executor runs the durable log one
//! transaction at a time, and every acknowledged answer must be the one that it gives.
//!
//! Transactions that only read have a place in the order like all others, and most are not logged (those are in which
//! several partitions take part): the ones that were answered are run at their places, between those that write. The
//! time that such a transaction saw is that of its batch. Where its batch held reads alone and so is not in the log, all of
//! these must be right at one time, not before that of the last logged batch of its partition, and not after the latest that
//! any clock had shown. Where clocks are true it is not before that of an earlier batch of reads either, nor after that of the
//! next logged batch. A read on a snapshot has the time of whichever partition's sequencer was asked; one of a state that was
//! read before has the time of that read.
//!
//! With read committed what a transaction only reads is taken from the state before its epoch, by the reference executor too.

use std::collections::{BTreeMap, BTreeSet};

use super::sessions::clients_number;
use super::{Run, Violation, ViolationKind};
use crate::found;
use crate::history::{Answer, History, Request, RequestId};
use ordain_model::args::{Args, ArgsBuilder};
use ordain_model::reference::Result as Expected;
use ordain_model::{
    Abort, Batch, Call, Chunk, ChunkNo, Db, Digest, Epoch, GatewayId, Gsn, Millis, OutcomeStatus,
    PartitionId, ProcedureId, ReferenceExecutor, Registry, RequestNo, SessionId, Txn, Writer, system,
};

/// The places of requests that were not answered and are in the log. One of several that ask for the same is left out.
pub type Found = BTreeMap<RequestId, Gsn>;

/// Checks every answer against a serial execution of the log, and every digest against its end. Returns the digest of the
/// serial execution, and the places of requests that were not answered.
///
/// # Errors
/// [`ViolationKind::AcknowledgedLost`], [`ViolationKind::WrongPlace`], [`ViolationKind::WrongAnswer`],
/// [`ViolationKind::EffectTwice`], [`ViolationKind::Phantom`] and [`ViolationKind::WrongState`].
pub fn check(run: &Run<'_>, log: &[Batch]) -> Result<(Digest, Found), Violation> {
    let Run { registry, layout, history, digests, isolation, .. } = *run;
    let mut reads = Vec::new();
    let mut acknowledged: BTreeMap<Gsn, Vec<(RequestId, &Request, &Answer)>> = BTreeMap::new();
    let all = run.before.iter().chain(log);
    let logged: BTreeSet<Gsn> = all.flat_map(|batch| batch.txns().map(|(gsn, ..)| gsn)).collect();
    for (id, request, answer) in history.answers() {
        match read_only(registry, request) {
            Some(chunk) => reads.push(Read { id, answer, chunk: Some(chunk) }),
            None if is_dependent(registry, request.call.procedure) && !logged.contains(&answer.gsn()) => {
                reads.push(Read { id, answer, chunk: None });
            }
            None => acknowledged.entry(answer.gsn()).or_default().push((id, request, answer)),
        }
    }
    reads.sort_by_key(|read| read.answer.gsn());
    let mut reads = reads.into_iter().peekable();
    let mut ledger = Ledger::of(registry, history);
    let mut reference = ReferenceExecutor::new(registry.clone()).isolated(isolation);
    if let Some(layout) = layout {
        reference = reference.in_cluster(layout.clone());
    }
    let mut times = Times::of(run, log);
    for batch in run.before {
        reference.open(batch);
        for (gsn, chunk, txn) in batch.txns().filter(|(_, _, txn)| !txn.read_only) {
            let expected = expected(run, &mut reference, (batch, gsn), (chunk, txn))?;
            // A session that goes on asks its last request again: it has had its effect, and has that end.
            if ledger.knows_session(chunk, txn) {
                ledger.settle(gsn, chunk, txn, &expected)?;
            }
            for (id, request, answer) in acknowledged.remove(&gsn).unwrap_or_default() {
                if !is_same(registry, request, chunk, txn) {
                    return Err(misplaced(registry, request, txn, gsn).of(id));
                }
                compare(registry, id, request.call.procedure, answer, &expected)?;
            }
        }
    }
    for batch in log {
        let start = Gsn::new(batch.epoch, batch.partition, 0);
        while let Some(of_batch) = Reads::next_before(start, &mut reads) {
            of_batch.check(run, &mut reference, &mut times)?;
        }
        reference.open(batch);
        for (gsn, chunk, txn) in batch.txns() {
            while let Some(read) = reads.next_if(|read| read.answer.gsn() <= gsn) {
                let (id, is_here) = (read.id, read.answer.gsn() == gsn);
                Reads(vec![read]).check(run, &mut reference, &mut times)?;
                if is_here && !is_same(registry, history.get(id), chunk, txn) {
                    return Err(misplaced(registry, history.get(id), txn, gsn).of(id));
                }
            }
            if txn.read_only && !is_dependent(registry, txn.call.procedure) {
                // It changes nothing, however often it was asked; the answered ones are among the reads.
                continue;
            }
            let expected = expected(run, &mut reference, (batch, gsn), (chunk, txn))?;
            ledger.settle(gsn, chunk, txn, &expected)?;
            for (id, request, answer) in acknowledged.remove(&gsn).unwrap_or_default() {
                if !is_same(registry, request, chunk, txn) {
                    return Err(misplaced(registry, request, txn, gsn).of(id));
                }
                compare(registry, id, request.call.procedure, answer, &expected)?;
            }
        }
    }
    while let Some(of_batch) = Reads::next_before(Gsn(u64::MAX), &mut reads) {
        of_batch.check(run, &mut reference, &mut times)?;
    }
    if let Some((id, request, answer)) = acknowledged.into_values().flatten().next() {
        return Err(lost(registry, request, answer, id));
    }
    let digest = reference.digest();
    match digests.iter().find(|(_, found)| *found != digest) {
        Some((node, found)) => {
            let text = format!("node {} has digest {found}, a serial execution {digest}", node.0);
            Err(Violation::new(ViolationKind::WrongState, text))
        }
        None => Ok((digest, ledger.found)),
    }
}

/// The end of a logged transaction in a serial execution, as an operator has it.
fn expected(
    run: &Run<'_>,
    reference: &mut ReferenceExecutor,
    (batch, gsn): (&Batch, Gsn),
    (chunk, txn): (&Chunk, &Txn),
) -> Result<Expected, Violation> {
    let mut expected = reference.run_placed(gsn, batch.now, chunk, txn);
    if run.aborted.contains(&gsn) && expected.status != OutcomeStatus::Moved {
        if !run.fatal.contains(&txn.call.procedure) {
            let text = "an operator aborts what ends no process";
            return Err(Violation::new(ViolationKind::WrongPlace, text).at(gsn));
        }
        // It has no effect here either.
        expected.status = OutcomeStatus::Aborted(Abort::Operator);
        expected.reply.clear();
        Writer(&mut expected.reply).abort(Abort::Operator);
    }
    Ok(expected)
}

fn misplaced(registry: &Registry, request: &Request, txn: &Txn, gsn: Gsn) -> Violation {
    let text = format!(
        "a request for {} was acknowledged where the log holds one for {}",
        name(registry, request.call.procedure),
        name(registry, txn.call.procedure)
    );
    Violation::new(ViolationKind::WrongPlace, text).at(gsn)
}

fn name(registry: &Registry, procedure: ProcedureId) -> String {
    registry.name(procedure).map_or_else(|| format!("procedure {procedure}"), str::to_owned)
}

fn is_dependent(registry: &Registry, procedure: ProcedureId) -> bool {
    registry.get(procedure).is_some_and(|p| p.is_dependent())
}

/// The request as a chunk of its own if it cannot change the state. One whose keys have to be found first is
/// taken to write: its real arguments are known from the log only.
fn read_only(registry: &Registry, request: &Request) -> Option<Chunk> {
    if is_dependent(registry, request.call.procedure) {
        return None;
    }
    let mut chunk = Chunk::new(GatewayId(0), ChunkNo(0));
    let args = Args::parse(&request.args)?;
    let write = |out: &mut ArgsBuilder<'_>| args.iter().for_each(|arg| _ = out.push(arg.bytes));
    chunk.push(registry, request.call, write).ok().filter(|txn| txn.read_only)?;
    Some(chunk)
}

/// Whether a logged transaction is what a request asked for.
fn is_same(registry: &Registry, request: &Request, chunk: &Chunk, txn: &Txn) -> bool {
    let session = txn.call.session.map(|(session, number)| (session, clients_number(number)));
    (request.call.procedure, request.call.db, request.call.session)
        == (txn.call.procedure, txn.call.db, session)
        && (is_dependent(registry, txn.call.procedure) || request.args == chunk.args(txn).encoded())
}

fn compare(
    registry: &Registry,
    id: RequestId,
    procedure: ProcedureId,
    answer: &Answer,
    expected: &Expected,
) -> Result<(), Violation> {
    // The gateway answers a client that may retry in words of its own.
    let in_words = answer.status == OutcomeStatus::Aborted(Abort::Restart);
    if answer.status == expected.status && (in_words || answer.reply == expected.reply) {
        return Ok(());
    }
    let text = format!(
        "{} was answered {:?} {:?}, a serial execution answers {:?} {:?}",
        name(registry, procedure),
        answer.status,
        answer.reply,
        expected.status,
        expected.reply
    );
    Err(Violation::new(ViolationKind::WrongAnswer, text).at(expected.gsn).of(id))
}

/// The most times that are tried between two logged batches, milliseconds.
const BETWEEN_MS_MAX: u64 = 10_000;

/// The times of batches. Those of a partition never go back in its log, nor elsewhere while clocks are true.
struct Times {
    /// Times of logged batches, by partition and epoch.
    logged: BTreeMap<PartitionId, BTreeMap<Epoch, Millis>>,
    /// The latest time of the batches before the run.
    before: Millis,
    /// The least time that the last batch of a partition can have had of which only reads were answered.
    read: BTreeMap<PartitionId, Millis>,
    clocks_are_true: bool,
}

/// The times that a read may have.
#[derive(Clone, Copy)]
struct Range {
    least: Millis,
    most: Millis,
    /// The first time to try, if the answer tells none.
    tried: Millis,
}

impl Range {
    const fn exactly(now: Millis) -> Range {
        Range { least: now, most: now, tried: now }
    }

    fn and(self, other: Range) -> Range {
        Range {
            least: self.least.max(other.least),
            most: self.most.min(other.most),
            tried: self.tried.max(other.tried),
        }
    }
}

impl Times {
    fn of(run: &Run<'_>, log: &[Batch]) -> Times {
        let before = run.before.iter().map(|batch| batch.now).max().unwrap_or_default();
        let (logged, read) = (BTreeMap::new(), BTreeMap::new());
        let mut times = Times { logged, before, read, clocks_are_true: run.clocks_are_true };
        for batch in run.before.iter().chain(log) {
            times.logged.entry(batch.partition).or_default().insert(batch.epoch, batch.now);
        }
        times
    }

    fn range(&self, read: &Read<'_>, history: &History) -> Range {
        let (gsn, epoch) = (read.answer.gsn(), read.answer.gsn().epoch());
        if let Some(now) = history.get(read.id).snapshot_time.filter(|_| gsn.is_of_read()) {
            return Range::exactly(now);
        }
        // A sequencer begins with the time of the log that it finds, and goes on with its clock's.
        let latest = read.answer.wall.map_or(Millis(u64::MAX), |wall| wall.max(self.before));
        let last = |of: &BTreeMap<Epoch, Millis>| of.range(..=epoch).next_back().map(|(_, now)| *now);
        if gsn.is_of_read() {
            // Nobody knows which sequencer was asked. It may not know the batches yet that the read will see.
            let tried = self.logged.values().filter_map(last).min().unwrap_or_default();
            let least = if self.clocks_are_true { tried } else { Millis(0) };
            return Range { least, most: latest, tried };
        }
        let Some(of) = self.logged.get(&gsn.partition()) else {
            return Range { least: Millis(0), most: latest, tried: Millis(0) };
        };
        if let Some(now) = of.get(&epoch) {
            return Range::exactly(*now);
        }
        let (mut least, mut most) = (last(of).unwrap_or_default(), latest);
        if self.clocks_are_true {
            least = least.max(self.read.get(&gsn.partition()).copied().unwrap_or_default());
            most = of.range(epoch..).next().map_or(latest, |(_, now)| latest.min(*now));
        }
        Range { least, most, tried: least }
    }
}

/// An answered transaction that only reads.
struct Read<'h> {
    id: RequestId,
    answer: &'h Answer,
    /// The transaction; none: a reconnaissance has to find its keys.
    chunk: Option<Chunk>,
}

/// Reads of one batch that is not logged, or a single read.
struct Reads<'h>(Vec<Read<'h>>);

impl<'h> Reads<'h> {
    /// Takes the next read before a place, with the others of its batch.
    fn next_before(
        start: Gsn,
        reads: &mut std::iter::Peekable<impl Iterator<Item = Read<'h>>>,
    ) -> Option<Reads<'h>> {
        let first = reads.next_if(|read| read.answer.gsn() < start)?;
        let gsn = first.answer.gsn();
        let is_of_batch = |read: &Read<'_>| {
            let other = read.answer.gsn();
            let is_same = (other.epoch(), other.partition()) == (gsn.epoch(), gsn.partition());
            is_same && other < start && !other.is_of_read() && !gsn.is_of_read()
        };
        let mut all = vec![first];
        while let Some(read) = reads.next_if(is_of_batch) {
            all.push(read);
        }
        Some(Reads(all))
    }

    /// Checks that all of them are answered rightly as of one time, which is not before that of the batch before.
    fn check(
        &self,
        run: &Run<'_>,
        reference: &mut ReferenceExecutor,
        times: &mut Times,
    ) -> Result<(), Violation> {
        let ranges = self.0.iter().map(|read| times.range(read, run.history));
        let Some(range) = ranges.reduce(Range::and) else { return Ok(()) };
        let told = self.0.iter().find_map(|read| read.told(run));
        let is_allowed = |now: &Millis| (range.least..=range.most).contains(now);
        let (tried, most) = (range.tried.0, range.most.0);
        // Of several records some may have ended by then, and others not. A clock may have jumped far ahead.
        let ends = reference.records().map(|(_, _, cell)| cell.expires_at).filter(|at| !at.is_never());
        let ends: BTreeSet<u64> = ends.flat_map(|at| [at.time().0, at.time().0 + 1]).collect();
        // Answers may also tell how much time is left.
        let later = (tried..most.min(tried.saturating_add(BETWEEN_MS_MAX))).chain([most]);
        let earlier = (tried.saturating_sub(BETWEEN_MS_MAX)..tried).rev();
        let any = [tried].into_iter().chain(ends).chain(later).chain(earlier);
        let any = any.map(Millis).filter(|_| told.is_none());
        let mut first = None;
        for now in told.into_iter().chain(any).filter(is_allowed) {
            match self.0.iter().try_for_each(|read| read.holds(run, reference, now)) {
                Ok(()) => {
                    let gsn = self.0.first().map(|read| read.answer.gsn());
                    let of = gsn.filter(|gsn| !gsn.is_of_read()).map(Gsn::partition);
                    times.read.extend(of.map(|of| (of, now)));
                    return Ok(());
                }
                Err(violation) => first = first.or(Some(violation)),
            }
        }
        Err(first.unwrap_or_else(|| self.untimely(told, range)))
    }

    /// The violation of reads that were answered as of a time that cannot be.
    fn untimely(&self, told: Option<Millis>, Range { least, most, .. }: Range) -> Violation {
        let told = told.map_or_else(|| "some time".to_owned(), |told| format!("{told}"));
        let text = format!("was answered as of {told}, which is not between {least} and {most}");
        let violation = Violation::new(ViolationKind::WrongAnswer, text);
        self.0.iter().fold(violation, |violation, read| violation.at(read.answer.gsn()).of(read.id))
    }
}

impl Read<'_> {
    /// The time as of which it was answered, if the answer tells.
    fn told(&self, run: &Run<'_>) -> Option<Millis> {
        let is_read = run.history.get(self.id).call.procedure == system::READ;
        let has_read = is_read && self.answer.status == OutcomeStatus::Committed;
        has_read.then(|| system::read_time(&self.answer.reply)).flatten()
    }

    /// Checks that it is answered as at a time.
    fn holds(&self, run: &Run<'_>, reference: &mut ReferenceExecutor, now: Millis) -> Result<(), Violation> {
        let Some(chunk) = &self.chunk else { return self.check_found(run, reference, now) };
        chunk.txns().iter().try_for_each(|txn| {
            let expected = reference.run_txn(self.answer.gsn(), now, chunk, txn);
            compare(run.registry, self.id, txn.call.procedure, self.answer, &expected)
        })
    }
}

impl Read<'_> {
    /// Checks one whose keys a reconnaissance finds. One that has found too often what did not hold has no effect.
    fn check_found(
        &self,
        run: &Run<'_>,
        reference: &mut ReferenceExecutor,
        now: Millis,
    ) -> Result<(), Violation> {
        if self.answer.status == OutcomeStatus::Aborted(Abort::Restart) {
            return Ok(());
        }
        let (registry, request, gsn) = (run.registry, run.history.get(self.id), self.answer.gsn());
        match found::run(registry, reference, (gsn, now), (request.call, &request.args)) {
            Some(expected) => compare(registry, self.id, request.call.procedure, self.answer, &expected),
            None => Err(lost(registry, request, self.answer, self.id)),
        }
    }
}

/// An answer to what should be in the log and is not.
fn lost(registry: &Registry, request: &Request, answer: &Answer, id: RequestId) -> Violation {
    let text = format!(
        "{} was acknowledged as {:?} and is not in the durable log",
        name(registry, request.call.procedure),
        answer.status
    );
    Violation::new(ViolationKind::AcknowledgedLost, text).at(answer.gsn()).of(id)
}

/// What a logged transaction must have been asked for: procedure, database, session and arguments. The
/// arguments of a dependent transaction are its reconnaissance's, and so left out.
type Asked = (ProcedureId, Db, Option<(SessionId, RequestNo)>, Vec<u8>);

/// How often each transaction may still be found in the log.
struct Ledger<'r> {
    registry: &'r Registry,
    /// With the request that was never answered, if no other asks for as much.
    open: BTreeMap<Asked, (u32, Option<RequestId>)>,
    found: Found,
}

impl Ledger<'_> {
    fn of<'r>(registry: &'r Registry, history: &History) -> Ledger<'r> {
        let mut ledger = Ledger { registry, open: BTreeMap::new(), found: Found::new() };
        for (id, request) in history.requests().filter(|(_, r)| !r.is_rejected()) {
            let asked = ledger.key(request.call, &request.args, request.call.session);
            let unanswered = Some(id).filter(|_| request.answers.is_empty());
            let (count, sole) = ledger.open.entry(asked).or_insert((0, unanswered));
            *count += 1;
            *sole = sole.filter(|_| *count == 1);
        }
        ledger
    }

    fn key(&self, call: Call, args: &[u8], session: Option<(SessionId, RequestNo)>) -> Asked {
        let args = if is_dependent(self.registry, call.procedure) { Vec::new() } else { args.to_vec() };
        (call.procedure, call.db, session, args)
    }

    /// Tells whether a transaction is a request of a session that is in the history.
    fn knows_session(&self, chunk: &Chunk, txn: &Txn) -> bool {
        let session = txn.call.session.map(|(session, number)| (session, clients_number(number)));
        session.is_some() && self.open.contains_key(&self.key(txn.call, chunk.args(txn).encoded(), session))
    }

    fn settle(&mut self, gsn: Gsn, chunk: &Chunk, txn: &Txn, result: &Expected) -> Result<(), Violation> {
        // The database submits these by itself. A stale reconnaissance has no effect and is tried again, and
        // so is what was planned by a stale map.
        let by_itself = [system::EXPIRE, system::CHECKPOINT, system::BALANCE].contains(&txn.call.procedure)
            && chunk.gateway == GatewayId::HOUSE;
        let is_tried_again =
            matches!(result.status, OutcomeStatus::Aborted(Abort::Restart) | OutcomeStatus::Moved);
        if by_itself || is_tried_again {
            return Ok(());
        }
        let session = txn.call.session.map(|(session, number)| (session, clients_number(number)));
        let asked = self.key(txn.call, chunk.args(txn).encoded(), session);
        match self.open.get_mut(&asked) {
            Some((left, sole)) if *left > 0 => {
                *left -= 1;
                self.found.extend(sole.map(|id| (id, gsn)));
            }
            Some(_) if session.is_some() => {
                let text = "a request of a session took effect more than once";
                return Err(Violation::new(ViolationKind::EffectTwice, text).at(gsn));
            }
            _ => {
                let text = format!(
                    "the log holds {} of {session:?} with arguments {:02x?}, of gateway {} chunk {}, more often than \
                     clients asked for it and were not refused",
                    name(self.registry, txn.call.procedure),
                    chunk.args(txn).encoded(),
                    chunk.gateway.0,
                    chunk.number.0
                );
                return Err(Violation::new(ViolationKind::Phantom, text).at(gsn));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::fixture::{
        Ask, batch, batch_of_two, good, plain, registry, reply_int, run, run_after, tampered,
    };
    use super::super::{NodeLog, check as check_all};
    use super::*;
    use ordain_model::{Epoch, Micros, Writer};
    use ordain_role::NodeId;
    use ordain_sim::workload::procedures as p;

    const ADD: Ask<'static> = (p::INCREMENT, p::COUNTERS, &["n"], None);
    const SEE: Ask<'static> = (p::GET, p::COUNTERS, &["n"], None);

    /// A session asks its last request again at a cluster that was restored.
    #[test]
    fn a_request_of_former_times_is_answered_as_then_and_done_once() {
        let registry = registry();
        let ask: Ask<'_> = (p::INCREMENT, p::COUNTERS, &["n"], Some((7, 3)));
        let other: Ask<'_> = (p::INCREMENT, p::COUNTERS, &["n"], Some((8, 1)));
        let (before, history) = good(&registry, &[batch(&registry, 1, &[ask])]);
        assert!(run_after(&registry, &before, &[], &history).is_ok(), "it is answered as it was");
        let wrong = tampered(&history, 0, |request| request.answers[0].reply = reply_int(2));
        assert_eq!(run_after(&registry, &before, &[], &wrong), Err(ViolationKind::WrongAnswer));
        let unanswered = tampered(&history, 0, |request| request.answers.clear());
        let again = [batch(&registry, 2, &[ask])];
        let twice = run_after(&registry, &before, &good(&registry, &again).0, &unanswered);
        assert_eq!(twice, Err(ViolationKind::EffectTwice));
        // A request that the former cluster had not logged takes effect now.
        let (before, _) = good(&registry, &[batch(&registry, 1, &[other])]);
        let (log, _) = good(&registry, &again);
        assert!(run_after(&registry, &before, &log, &unanswered).is_ok());
    }

    #[test]
    fn an_acknowledged_write_that_the_log_lost_is_caught() {
        let registry = registry();
        let (mut log, history) = good(&registry, &[batch(&registry, 1, &[ADD]), batch(&registry, 2, &[ADD])]);
        log.pop();
        assert_eq!(run(&registry, &log, &history), Err(ViolationKind::AcknowledgedLost));
    }

    #[test]
    fn a_wrong_reply_and_a_wrong_status_are_caught() {
        let registry = registry();
        let (log, history) = good(&registry, &[batch(&registry, 1, &[ADD, SEE])]);
        for request in [0, 1] {
            let wrong = tampered(&history, request, |r| r.answers[0].reply = reply_int(8));
            assert_eq!(run(&registry, &log, &wrong), Err(ViolationKind::WrongAnswer));
            let aborted = OutcomeStatus::Aborted(Abort::Logic);
            let wrong = tampered(&history, request, |r| r.answers[0].status = aborted);
            assert_eq!(run(&registry, &log, &wrong), Err(ViolationKind::WrongAnswer));
        }
    }

    #[test]
    fn a_read_is_held_to_its_place_between_the_writes() {
        let registry = registry();
        let batches = [batch(&registry, 1, &[ADD]), batch(&registry, 2, &[SEE]), batch(&registry, 3, &[ADD])];
        let (log, history) = good(&registry, &batches);
        assert!(run(&registry, &log, &history).is_ok());
        // The reply with a place before the first or after the last write.
        for epoch in [0, 4] {
            let place = Gsn::new(ordain_model::Epoch(epoch), ordain_model::PartitionId(0), 1);
            let wrong = tampered(&history, 1, |r| r.answers[0].stamp = place.into());
            assert_eq!(run(&registry, &log, &wrong), Err(ViolationKind::WrongAnswer));
        }
    }

    /// Reads of the system's own, which tell their time: a logged batch at 1001 ms, two of reads, and a logged one.
    fn told(reads: [u64; 3], clocks_are_true: bool) -> Result<(), ViolationKind> {
        let registry = registry();
        let read: Ask<'_> = (system::READ, Db(0), &["\0", "n"], None);
        let batches =
            [vec![ADD], vec![read, read], vec![read], vec![ADD]].map(|asks| batch(&registry, 1, &asks));
        let nows = [1_001, reads[0], reads[2], 1_020];
        let batches: Vec<Batch> = (1..)
            .zip(batches)
            .zip(nows)
            .map(|((epoch, batch), now)| Batch { epoch: Epoch(epoch), now: Millis(now), ..batch })
            .collect();
        let (log, mut history) = good(&registry, &batches);
        // The second read of the batch tells a time of its own.
        history = tampered(&history, 2, |request| {
            let mut reply = Vec::new();
            let mut w = Writer(&mut reply);
            w.array(3);
            w.int(reads[1] as i64);
            reply.extend_from_slice(&request.answers[0].reply[reply.len()..]);
            request.answers[0].reply = reply;
        });
        let logs = [NodeLog { node: NodeId(0), partition: ordain_model::PartitionId(0), batches: log }];
        let run = Run { clocks_are_true, ..plain(&registry, &logs, &history) };
        check_all(&run).map(|_| ()).map_err(|violation| violation.kind)
    }

    #[test]
    fn reads_of_one_batch_have_one_time_and_times_go_on() {
        let wrong = Err(ViolationKind::WrongAnswer);
        for (reads, when_true, when_not) in [
            ([1_005, 1_005, 1_009], Ok(()), Ok(())),
            ([1_001, 1_001, 1_020], Ok(()), Ok(())),
            // Two times in one batch.
            ([1_005, 1_006, 1_009], wrong, wrong),
            // Before the logged batch.
            ([1_000, 1_000, 1_009], wrong, wrong),
            // A clock was set back: before the batch before, and after the next logged one.
            ([1_009, 1_009, 1_005], wrong, Ok(())),
            ([1_005, 1_005, 1_021], wrong, Ok(())),
        ] {
            assert_eq!(told(reads, true), when_true, "{reads:?}");
            assert_eq!(told(reads, false), when_not, "{reads:?}");
        }
    }

    #[test]
    fn a_place_that_belongs_to_another_is_caught() {
        let registry = registry();
        let other: Ask<'_> = (p::INCREMENT, p::COUNTERS, &["m"], None);
        let (log, history) = good(&registry, &[batch(&registry, 1, &[ADD, other])]);
        let place = history.get(RequestId(0)).answers[0].gsn();
        let wrong = tampered(&history, 1, |r| r.answers[0].stamp = place.into());
        assert_eq!(run(&registry, &log, &wrong), Err(ViolationKind::WrongPlace));
    }

    #[test]
    fn effects_that_nobody_asked_for_are_caught() {
        let registry = registry();
        let batches = [batch(&registry, 1, &[ADD]), batch(&registry, 2, &[ADD])];
        let (log, history) = good(&registry, &batches);
        // Once without an answer is an effect that may be; never asked is not.
        let unknown = tampered(&history, 1, |r| r.answers.clear());
        assert!(run(&registry, &log, &unknown).is_ok());
        let mut once = History::default();
        let first = history.get(RequestId(0));
        let id = once.sent(Micros(0), first.call, first.args.clone());
        once.answered(id, first.answers[0].status, first.answers[0].gsn(), &first.answers[0].reply);
        assert_eq!(run(&registry, &log, &once), Err(ViolationKind::Phantom));
        // Nor is one that was refused.
        let id = once.sent(Micros(0), first.call, first.args.clone());
        once.answered(id, OutcomeStatus::Busy, Gsn::NONE, b"");
        assert_eq!(run(&registry, &log, &once), Err(ViolationKind::Phantom));
    }

    #[test]
    fn reads_in_the_log_are_held_to_their_answers_and_owe_nobody() {
        let registry = registry();
        let all: Ask<'_> = (p::GET, p::COUNTERS, &["n", "a", "b", "c", "d", "e", "f", "g"], Some((7, 1)));
        let some: Ask<'_> = (p::GET, p::COUNTERS, &["g", "f", "e", "d", "c", "b", "a", "n"], None);
        let batches =
            [batch_of_two(&registry, 1, &[ADD, all]), batch_of_two(&registry, 2, &[ADD, all, some])];
        let (log, history) = good(&registry, &batches);
        assert_eq!(log.iter().flat_map(Batch::txns).filter(|(_, _, txn)| txn.read_only).count(), 3);
        // A request of a session may be read twice, and see two states.
        assert!(run(&registry, &log, &history).is_ok());
        for request in [1, 3] {
            let unanswered = tampered(&history, request, |r| r.answers.clear());
            assert!(run(&registry, &log, &unanswered).is_ok(), "none was asked twice, or for nothing");
            let wrong = tampered(&history, request, |r| r.answers[0].reply = reply_int(8));
            assert_eq!(run(&registry, &log, &wrong), Err(ViolationKind::WrongAnswer));
        }
        // The right answer at a place that is another's.
        let twice = [batch_of_two(&registry, 1, &[all, some])];
        let (log, history) = good(&registry, &twice);
        let place = history.get(RequestId(1)).answers[0].gsn();
        let wrong = tampered(&history, 0, |r| r.answers[0].stamp = place.into());
        assert_eq!(run(&registry, &log, &wrong), Err(ViolationKind::WrongPlace));
    }

    #[test]
    fn a_session_s_request_with_two_effects_is_caught_across_attempts() {
        let registry = registry();
        let ask = |attempt| {
            let mut b = batch(&registry, 1 + attempt, &[(p::INCREMENT, p::COUNTERS, &["n"], Some((7, 3)))]);
            let mut chunk = Chunk::new(GatewayId(0), ChunkNo(attempt));
            for (_, old, txn) in b.txns() {
                let mut call = txn.call;
                if let Some((_, number)) = &mut call.session {
                    number.0 += attempt;
                }
                chunk.push(&registry, call, |out| _ = out.push(old.args(txn).get(0).unwrap())).unwrap();
            }
            b.chunks = vec![ordain_model::Placed::whole(0, Arc::new(chunk))];
            b
        };
        let (log, _) = good(&registry, &[ask(0), ask(1)]);
        let (_, history) = good(&registry, &[ask(0)]);
        assert_eq!(run(&registry, &log, &history), Err(ViolationKind::EffectTwice));
    }

    #[test]
    fn a_node_with_another_state_is_caught() {
        let registry = registry();
        let (log, history) = good(&registry, &[batch(&registry, 1, &[ADD])]);
        let right = run(&registry, &log, &history).unwrap();
        let logs = [NodeLog { node: NodeId(0), partition: ordain_model::PartitionId(0), batches: log }];
        let verdict = |digest| {
            let digests = [(NodeId(0), right), (NodeId(3), digest)];
            let run = Run { digests: &digests, ..plain(&registry, &logs, &history) };
            check_all(&run).map_err(|violation| violation.kind)
        };
        assert_eq!(verdict(right), Ok(right));
        assert_eq!(verdict(Digest::default()), Err(ViolationKind::WrongState));
    }
}
