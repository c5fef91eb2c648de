//! Serial equivalence (calvin.md, section 8, oracle 1): the reference executor runs the durable log one
//! transaction at a time, and every acknowledged answer must be the one that it gives.
//!
//! Transactions that only read have a place in the order like all others, and most are not logged (those are in which
//! several partitions take part): the ones that were answered are run at their places, between those that write. The
//! time that such a transaction saw is that of its batch; where its batch held reads alone and so is not in the log,
//! it is some time between those of its partition's logged batches around it: its answer must be right at one of them. A read on
//! a snapshot has the time of whichever partition's sequencer was asked.
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
    Abort, Batch, Call, Chunk, ChunkNo, Db, Digest, GatewayId, Gsn, Millis, OutcomeStatus, PartitionId,
    ProcedureId, ReferenceExecutor, Registry, RequestNo, SessionId, Txn, Writer, system,
};

/// Checks every answer against a serial execution of the log, and every digest against its end.
///
/// # Errors
/// [`ViolationKind::AcknowledgedLost`], [`ViolationKind::WrongPlace`], [`ViolationKind::WrongAnswer`],
/// [`ViolationKind::EffectTwice`], [`ViolationKind::Phantom`] and [`ViolationKind::WrongState`].
pub fn check(run: &Run<'_>, log: &[Batch]) -> Result<Digest, Violation> {
    let Run { registry, layout, history, digests, isolation, .. } = *run;
    let mut reads = Vec::new();
    let mut acknowledged: BTreeMap<Gsn, Vec<(RequestId, &Request, &Answer)>> = BTreeMap::new();
    let logged: BTreeSet<Gsn> = log.iter().flat_map(|batch| batch.txns().map(|(gsn, ..)| gsn)).collect();
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
    let mut times: BTreeMap<PartitionId, Millis> = BTreeMap::new();
    for batch in run.before {
        reference.open(batch);
        for (gsn, chunk, txn) in batch.txns().filter(|(_, _, txn)| !txn.read_only) {
            reference.run_placed(gsn, batch.now, chunk, txn);
        }
        times.insert(batch.partition, batch.now);
    }
    for batch in log {
        let start = Gsn::new(batch.epoch, batch.partition, 0);
        while let Some(read) = reads.next_if(|read| read.answer.gsn() < start) {
            read.check(run, &mut reference, read.times(Some(batch), &times))?;
        }
        reference.open(batch);
        for (gsn, chunk, txn) in batch.txns() {
            while let Some(read) = reads.next_if(|read| read.answer.gsn() <= gsn) {
                read.check(run, &mut reference, read.times(Some(batch), &times))?;
                if read.answer.gsn() == gsn && !is_same(registry, history.get(read.id), chunk, txn) {
                    return Err(misplaced(registry, history.get(read.id), txn, gsn).of(read.id));
                }
            }
            if txn.read_only && !is_dependent(registry, txn.call.procedure) {
                // It changes nothing, however often it was asked; the answered ones are among the reads.
                continue;
            }
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
            ledger.settle(gsn, chunk, txn, &expected)?;
            for (id, request, answer) in acknowledged.remove(&gsn).unwrap_or_default() {
                if !is_same(registry, request, chunk, txn) {
                    return Err(misplaced(registry, request, txn, gsn).of(id));
                }
                compare(registry, id, request.call.procedure, answer, &expected)?;
            }
        }
        times.insert(batch.partition, batch.now);
    }
    for read in reads {
        read.check(run, &mut reference, read.times(None, &times))?;
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
        None => Ok(digest),
    }
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

/// An answered transaction that only reads.
struct Read<'h> {
    id: RequestId,
    answer: &'h Answer,
    /// The transaction; none: a reconnaissance has to find its keys.
    chunk: Option<Chunk>,
}

impl Read<'_> {
    /// The first and the last time that it may have, of the partition that has sequenced it: `next` is the logged batch where
    /// it stands or before which, and `times` are those of the last logged batches of all partitions.
    fn times(&self, next: Option<&Batch>, times: &BTreeMap<PartitionId, Millis>) -> (Millis, Millis) {
        let (gsn, open) = (self.answer.gsn(), Millis(u64::MAX));
        if gsn.is_of_read() {
            return (times.values().copied().min().unwrap_or_default(), open);
        }
        let last = times.get(&gsn.partition()).copied().unwrap_or_default();
        match next.filter(|next| next.partition == gsn.partition()) {
            Some(next) if next.epoch == gsn.epoch() => (next.now, next.now),
            Some(next) => (last, next.now),
            None => (last, open),
        }
    }

    fn check(
        &self,
        run: &Run<'_>,
        reference: &mut ReferenceExecutor,
        (from, to): (Millis, Millis),
    ) -> Result<(), Violation> {
        let registry = run.registry;
        let Some(chunk) = &self.chunk else {
            let at_first = self.check_found(run, reference, from);
            return at_first.or_else(|violation| self.check_found(run, reference, to).map_err(|_| violation));
        };
        chunk.txns().iter().try_for_each(|txn| {
            let mut at = |now| {
                let expected = reference.run_txn(self.answer.gsn(), now, chunk, txn);
                compare(registry, self.id, txn.call.procedure, self.answer, &expected)
            };
            let at_first = at(from);
            if at_first.is_ok() || at(to).is_ok() {
                return Ok(());
            }
            // Of several records some may have expired by then, and others not.
            let between = from.0 + 1..to.0.min(from.0.saturating_add(BETWEEN_MS_MAX));
            if between.into_iter().any(|now| at(Millis(now)).is_ok()) { Ok(()) } else { at_first }
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
    open: BTreeMap<Asked, u32>,
}

impl Ledger<'_> {
    fn of<'r>(registry: &'r Registry, history: &History) -> Ledger<'r> {
        let mut ledger = Ledger { registry, open: BTreeMap::new() };
        for (_, request) in history.requests().filter(|(_, r)| !r.is_rejected()) {
            let asked = ledger.key(request.call, &request.args, request.call.session);
            *ledger.open.entry(asked).or_insert(0) += 1;
        }
        ledger
    }

    fn key(&self, call: Call, args: &[u8], session: Option<(SessionId, RequestNo)>) -> Asked {
        let args = if is_dependent(self.registry, call.procedure) { Vec::new() } else { args.to_vec() };
        (call.procedure, call.db, session, args)
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
            Some(left) if *left > 0 => *left -= 1,
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

    use super::super::fixture::{Ask, batch, batch_of_two, good, registry, reply_int, run, tampered};
    use super::super::{NodeLog, check as check_all};
    use super::*;
    use ordain_model::Micros;
    use ordain_role::NodeId;
    use ordain_sim::workload::procedures as p;

    const ADD: Ask<'static> = (p::INCREMENT, p::COUNTERS, &["n"], None);
    const SEE: Ask<'static> = (p::GET, p::COUNTERS, &["n"], None);

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
            let run = Run {
                registry: &registry,
                fatal: &[],
                aborted: &std::collections::BTreeSet::new(),
                layout: None,
                before: &[],
                logs: &logs,
                history: &history,
                digests: &digests,
                conserved: &[],
                promise: super::super::Promise::Strict,
                isolation: ordain_model::Isolation::Serializable,
            };
            check_all(&run).map_err(|violation| violation.kind)
        };
        assert_eq!(verdict(right), Ok(right));
        assert_eq!(verdict(Digest::default()), Err(ViolationKind::WrongState));
    }
}
