//! An attempt while participants run it: which fragments have run, which may, and what they have answered.
//!
//! The fragments on one shard are run in the order of the plan, so that a later one on the same record sees what an earlier one
//! has written. A shard is sent as many as need nothing that is not known yet, in one access, and has one access at a time;
//! all shards run at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_execution::Write;
use ordain_model::datum::bounded_reply;
use ordain_model::{
    Abort, Chunk, Layout, Millis, OutcomeStatus, PartitionId, Registry, ReplyContext, SlotNo, Txn,
};

use crate::desk::Desk;
use crate::ids::{Age, AttemptId, Lead};
use crate::message::{Access, Accessed, Failure};

/// The end of a transaction.
#[derive(Clone, Debug)]
pub struct End {
    pub status: OutcomeStatus,
    pub reply: Vec<u8>,
}

/// See the module.
#[derive(Debug)]
pub struct Executing {
    now: Millis,
    seed: u64,
    /// The results of fragments; empty ones of those that have not run.
    slots: Vec<Vec<u8>>,
    has_run: Vec<bool>,
    parts: BTreeMap<usize, Part>,
    /// The first fragment that aborts the transaction: those after it are not run.
    failure: Option<(SlotNo, Abort)>,
}

/// The part of an attempt that one shard runs.
#[derive(Debug, Default)]
struct Part {
    /// Its fragments, ascending.
    fragments: Vec<u32>,
    /// The number of them that were sent.
    sent: usize,
    /// The claim of the node that runs them, once some were sent.
    lead: Option<Lead>,
    /// An access is not answered.
    is_awaited: bool,
    has_written: bool,
    writes: Vec<Write>,
}

impl Executing {
    pub fn new(chunk: &Chunk, txn: &Txn, layout: &Layout, now: Millis, seed: u64) -> Executing {
        let fragments = chunk.fragments(txn);
        let mut parts: BTreeMap<usize, Part> = BTreeMap::new();
        for (n, fragment) in fragments.iter().enumerate() {
            parts.entry(layout.shard_of(fragment.hash.slot())).or_default().fragments.push(n as u32);
        }
        let (slots, has_run) = (vec![Vec::new(); fragments.len()], vec![false; fragments.len()]);
        Executing { now, seed, slots, has_run, parts, failure: None }
    }

    /// Sends every fragment that can be run; answers whether all participants that are needed are there, in the term in which they
    /// were asked before.
    pub fn send(
        &mut self,
        who: AttemptId,
        age: Age,
        (chunk, at): (&Arc<Chunk>, usize),
        desk: &mut Desk<'_>,
    ) -> bool {
        let txn = &chunk.txns()[at];
        let fragments = chunk.fragments(txn);
        let limit = self.failure.map_or(u32::MAX, |(slot, _)| slot.0);
        let Executing { now, seed, slots, has_run, parts, .. } = self;
        for (shard, part) in parts.iter_mut().filter(|(_, part)| !part.is_awaited) {
            let first = part.sent;
            let known_here = |slot: &SlotNo, until: usize| {
                has_run[slot.0 as usize] || part.fragments[first..until].contains(&slot.0)
            };
            let mut until = first;
            while let Some(n) = part.fragments.get(until).filter(|n| **n < limit) {
                let inputs = chunk.plans().inputs_of(&fragments[*n as usize]);
                if !inputs.iter().all(|slot| known_here(slot, until)) {
                    break;
                }
                until += 1;
            }
            if until == first {
                continue;
            }
            let Some(participant) = desk.participant(*shard) else { return false };
            if part.lead.is_some_and(|lead| lead != participant.1) {
                return false;
            }
            part.lead = Some(participant.1);
            let sending = part.fragments[first..until].to_vec();
            let needs = sending.iter().flat_map(|n| chunk.plans().inputs_of(&fragments[*n as usize]));
            let elsewhere = needs.filter(|slot| !part.fragments.contains(&slot.0));
            let inputs = elsewhere.map(|slot| (*slot, slots[slot.0 as usize].clone())).collect();
            part.sent = until;
            part.is_awaited = true;
            let access = Access {
                attempt: who,
                age,
                at: at as u32,
                fragments: sending,
                inputs,
                now: *now,
                seed: *seed,
                is_last: until == part.fragments.len(),
            };
            desk.access(participant, chunk, access);
        }
        true
    }

    /// Takes an answer; answers whether it was awaited.
    pub fn take(&mut self, from: Lead, accessed: Accessed) -> bool {
        let Accessed { shard, slots, failure, has_written, writes, .. } = accessed;
        let Some(part) = self.parts.get_mut(&usize::from(shard)) else { return false };
        if !part.is_awaited || part.lead != Some(from) {
            return false;
        }
        part.is_awaited = false;
        part.has_written = has_written;
        part.writes = writes;
        for (slot, result) in slots {
            let n = slot.0 as usize;
            if n < self.slots.len() {
                self.slots[n] = result;
                self.has_run[n] = true;
            }
        }
        if let Some(Failure::Aborted(slot, abort)) = failure {
            let is_first = self.failure.is_none_or(|(first, _)| slot < first);
            if is_first {
                self.failure = Some((slot, abort));
            }
        }
        true
    }

    /// True if every fragment has run, or every one before the first that aborts the transaction.
    pub fn is_done(&self) -> bool {
        let limit = self.failure.map_or(u32::MAX, |(slot, _)| slot.0);
        self.parts
            .values()
            .all(|part| !part.is_awaited && part.fragments.get(part.sent).is_none_or(|next| *next >= limit))
    }

    /// True if an answer is awaited.
    pub fn awaits(&self) -> bool {
        self.parts.values().any(|part| part.is_awaited)
    }

    /// The shards that were sent something, each with the claim of who runs it.
    pub fn shards(&self) -> Vec<(usize, Lead)> {
        self.parts.iter().filter_map(|(shard, part)| Some((*shard, part.lead?))).collect()
    }

    /// True if something was sent to a partition.
    pub fn touches(&self, partition: PartitionId) -> bool {
        self.parts.values().any(|part| part.lead.is_some_and(|lead| lead.partition == partition))
    }

    /// The first fragment that aborts the transaction, if one does.
    pub const fn failure(&self) -> Option<(SlotNo, Abort)> {
        self.failure
    }

    /// True if something was changed.
    pub fn has_written(&self) -> bool {
        self.parts.values().any(|part| part.has_written)
    }

    /// The changes on this node, in order of shards.
    pub fn take_writes(&mut self) -> Vec<Write> {
        self.parts.values_mut().flat_map(|part| std::mem::take(&mut part.writes)).collect()
    }

    /// The results of fragments.
    pub const fn slots(&self) -> &Vec<Vec<u8>> {
        &self.slots
    }

    /// The time that the attempt sees.
    pub const fn now(&self) -> Millis {
        self.now
    }
}

/// The refusal of a transaction that the family does not run yet.
pub fn refusal(chunk: &Chunk, txn: &Txn) -> Option<&'static str> {
    let is_run = chunk.fragments(txn).iter().all(|fragment| fragment.is_keyed() && !fragment.shipped);
    (!is_run).then_some(
        "ERR this engine runs transactions whose steps each read or write one key, and this one does more: use another \
         engine",
    )
}

/// The reply of a transaction, or of the fragment that has aborted it.
pub fn reply_of(
    registry: &Registry,
    chunk: &Chunk,
    txn: &Txn,
    slots: &Vec<Vec<u8>>,
    failure: Option<(SlotNo, Abort)>,
) -> Vec<u8> {
    let mut reply = Vec::new();
    let Some(procedure) = registry.get(txn.call.procedure) else { return reply };
    let cx = ReplyContext {
        txn_args: chunk.args(txn),
        call_at: 0,
        db: txn.call.db,
        slots,
        first: 0,
        count: chunk.fragments(txn).len() as u32,
        calls: chunk.calls(txn),
        registry,
    };
    bounded_reply(registry.limits().reply, &mut reply, |reply| match failure {
        None => procedure.reply(&cx, reply),
        Some((slot, abort)) => procedure.abort_reply(abort, slot, &cx, reply),
    });
    reply
}
