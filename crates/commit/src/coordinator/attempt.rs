//! An attempt while participants run it: which fragments have run, which may, and what they have answered.
//!
//! The fragments on one shard are run in the order of the plan, so that a later one on the same record sees what an earlier one
//! has written. A shard is sent as many as need nothing that is not known yet, in one access, and has one access at a time;
//! all shards run at once. Two kinds of fragments concern several shards:
//!
//! - A *compute* fragment runs on the shard of its place. Records of other shards are shipped to it by way of the coordinator, and
//!   those that it has changed are returned: with the owner's next access, or with the request to promise the attempt if
//!   there is none. Until it has run, the owner goes no further than to the fragment before it.
//! - A fragment over the whole *table* runs on every shard, and its result is the array of theirs. A partition is asked once those before
//!   it have answered (R-TABLE): two attempts meet at the first partition, and not each at the other's.
//!
//! Where the first read fixes the attempt's snapshot, one shard is asked for it, and others that read once it has answered.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_execution::{TableChange, Write};
use ordain_model::datum::bounded_reply;
use ordain_model::{
    Abort, Access as FragmentAccess, Chunk, Fragment, Layout, Millis, OutcomeStatus, PartitionId, Registry,
    ReplyContext, SlotNo, Txn, Writer,
};

use super::parts::Elsewhere;
use crate::concurrency::Reads;
use crate::desk::{Desk, Site};
use crate::ids::{Age, AttemptId, Lead};
use crate::message::{Access, Accessed, Failure, Read, Shipped, Snapshot};

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
    /// The answers of shards to fragments over the whole table, until all have answered.
    tables: BTreeMap<u32, BTreeMap<usize, Vec<u8>>>,
    /// Records that are on their way to compute fragments.
    shipped: BTreeMap<SlotNo, Shipped>,
    /// The compute fragments that may change records of other shards, each with one of these.
    borrowers: Vec<(u32, usize)>,
    /// Bytes of results that only the reply needs.
    shown: usize,
    /// The reply is too long, and the results that only it needs are left out.
    is_too_long: bool,
    /// The first fragment that aborts the transaction: those after it are not run.
    failure: Option<(SlotNo, Abort)>,
    /// The number of the step that runs, in an open transaction; 0 in any other.
    step: u32,
}

/// The remains of an open transaction's earlier steps, for the next.
#[derive(Debug, Default)]
pub struct Former {
    now: Millis,
    parts: BTreeMap<usize, Part>,
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
    /// Its records as compute fragments elsewhere have left them, until it is told.
    returned: Vec<Write>,
    changes: Vec<TableChange>,
    writes: Vec<Write>,
    /// The records that were read so far, in a view.
    seen: Vec<Read>,
}

impl Executing {
    pub fn new(chunk: &Chunk, txn: &Txn, site: &Site, now: Millis, seed: u64) -> Executing {
        let fragments = chunk.fragments(txn);
        let shard_of = |fragment: &Fragment| site.holder_of(fragment.hash.slot());
        let (mut parts, mut borrowers): (BTreeMap<usize, Part>, Vec<(u32, usize)>) = Default::default();
        for (n, fragment) in (0..).zip(fragments) {
            if fragment.is_table() {
                (0..site.layout.shards()).for_each(|shard| parts.entry(shard).or_default().fragments.push(n));
                continue;
            }
            let at = shard_of(fragment);
            parts.entry(at).or_default().fragments.push(n);
            if fragment.access == FragmentAccess::Compute {
                let members =
                    chunk.plans().inputs_of(fragment).iter().map(|slot| &fragments[slot.0 as usize]);
                let lent = members.filter(|member| member.shipped && member.access == FragmentAccess::Write);
                borrowers.extend(lent.map(shard_of).filter(|owner| *owner != at).map(|owner| (n, owner)));
            }
        }
        // One for each pair, whatever the number of records.
        borrowers.sort_unstable();
        borrowers.dedup();
        Executing {
            now,
            seed,
            slots: vec![Vec::new(); fragments.len()],
            has_run: vec![false; fragments.len()],
            parts,
            tables: BTreeMap::new(),
            shipped: BTreeMap::new(),
            borrowers,
            shown: 0,
            is_too_long: false,
            failure: None,
            step: 0,
        }
    }

    /// The attempt as the first step of an open transaction.
    pub fn at_step(self, step: u32) -> Executing {
        Executing { step, ..self }
    }

    /// The attempt as a later step of an open transaction.
    pub fn after(mut self, former: &Former, step: u32) -> Executing {
        for (shard, left) in &former.parts {
            let part = self.parts.entry(*shard).or_default();
            (part.lead, part.has_written) = (left.lead, left.has_written);
            part.returned.clone_from(&left.returned);
            part.changes.clone_from(&left.changes);
            part.writes.clone_from(&left.writes);
            part.seen.clone_from(&left.seen);
        }
        self.at_step(step)
    }

    /// The shards that this step has asked for something.
    pub fn asked(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().filter(|(_, part)| part.sent > 0).map(|(shard, _)| *shard)
    }

    /// The remains of the steps so far, for the next.
    pub fn leave(&mut self) -> Former {
        let parts = std::mem::take(&mut self.parts).into_iter().filter(|(_, part)| part.lead.is_some());
        Former { now: self.now, parts: parts.collect() }
    }

    /// Sends every fragment that can be run; answers whether all participants that are needed are there, in the term in which they
    /// were asked before.
    pub fn send(
        &mut self,
        who: AttemptId,
        age: Age,
        (chunk, at): (&Arc<Chunk>, usize),
        snapshot: &Snapshot,
        desk: &mut Desk<'_>,
    ) -> bool {
        let fragments = chunk.fragments(&chunk.txns()[at]);
        let shards: Vec<usize> = self.parts.keys().copied().collect();
        let fixing = self.first_reader(fragments);
        for shard in shards {
            let until = self.may_run(shard, chunk, fragments, &desk.site.layout);
            let part = &self.parts[&shard];
            let first = part.sent;
            if part.is_awaited || until == first {
                continue;
            }
            let is_reading =
                part.fragments[first..until].iter().any(|n| reads_something(&fragments[*n as usize]));
            if snapshot.reads == Reads::First && is_reading && Some(shard) != fixing {
                continue;
            }
            let Some(participant) = desk.participant(shard) else { return false };
            if part.lead.is_some_and(|lead| lead != participant.1) {
                return false;
            }
            let sending = part.fragments[first..until].to_vec();
            let (inputs, shipped) = self.inputs_of(shard, &sending, chunk, fragments);
            let Executing { now, seed, parts, step, .. } = self;
            let part = parts.get_mut(&shard).expect("its key was found above");
            part.lead = Some(participant.1);
            part.sent = until;
            part.is_awaited = true;
            let access = Access {
                attempt: who,
                age,
                at: at as u32,
                fragments: sending,
                inputs,
                shipped,
                returned: std::mem::take(&mut part.returned),
                now: *now,
                seed: *seed,
                step: *step,
                snapshot: snapshot.clone(),
                is_last: *step == 0 && until == part.fragments.len(),
            };
            desk.access(participant, chunk, access);
        }
        true
    }

    /// The shard that runs the first fragment of all that looks at something: its answer fixes the attempt's snapshot. A fragment over the
    /// whole table looks at the first shard first.
    fn first_reader(&self, fragments: &[Fragment]) -> Option<usize> {
        let firsts = self.parts.iter().filter_map(|(shard, part)| {
            let first = part.fragments.iter().find(|n| reads_something(&fragments[**n as usize]))?;
            Some((*first, *shard))
        });
        firsts.min().map(|(_, shard)| shard)
    }

    /// The number of a shard's fragments up to which nothing is missing that they need.
    fn may_run(&self, shard: usize, chunk: &Chunk, fragments: &[Fragment], layout: &Layout) -> usize {
        let part = &self.parts[&shard];
        let limit = self.failure.map_or(u32::MAX, |(slot, _)| slot.0);
        let has_run = |n: u32| self.has_run[n as usize];
        let mut until = part.sent;
        while let Some(n) = part.fragments.get(until).copied().filter(|n| *n < limit) {
            let fragment = &fragments[n as usize];
            let is_lent = self.borrowers.iter().any(|(by, of)| *of == shard && *by < n && !has_run(*by));
            let runs_before = |input: u32| {
                let ahead = &part.fragments[part.sent..until];
                !fragments[input as usize].is_table() && ahead.binary_search(&input).is_ok()
            };
            let mut inputs = chunk.plans().inputs_of(fragment).iter();
            let is_turn = !fragment.is_table() || self.is_table_turn(n, shard, layout);
            if is_lent || !is_turn || !inputs.all(|slot| has_run(slot.0) || runs_before(slot.0)) {
                break;
            }
            until += 1;
        }
        until
    }

    /// True if every shard of the partitions before a shard's has answered a fragment over the whole table.
    fn is_table_turn(&self, n: u32, shard: usize, layout: &Layout) -> bool {
        let before = layout.shards_of(layout.partition_of_shard(shard)).start;
        self.tables.get(&n).map_or(0, |answered| answered.range(..before).count()) == before
    }

    /// The results and the records that fragments of a shard need of earlier ones elsewhere.
    fn inputs_of(
        &mut self,
        shard: usize,
        sending: &[u32],
        chunk: &Chunk,
        fragments: &[Fragment],
    ) -> (Vec<(SlotNo, Vec<u8>)>, Vec<Shipped>) {
        let (mut inputs, mut shipped) = (Vec::new(), Vec::new());
        let own = &self.parts[&shard].fragments;
        for slot in sending.iter().flat_map(|n| chunk.plans().inputs_of(&fragments[*n as usize])) {
            let fragment = &fragments[slot.0 as usize];
            if own.binary_search(&slot.0).is_ok() && !fragment.is_table() {
                continue;
            }
            match fragment.shipped {
                true => shipped.extend(self.shipped.remove(slot)),
                false => inputs.push((*slot, self.slots[slot.0 as usize].clone())),
            }
        }
        (inputs, shipped)
    }

    /// Takes an answer; answers whether it was awaited.
    pub fn take(&mut self, from: Lead, accessed: Accessed, fragments: &[Fragment], desk: &Desk<'_>) -> bool {
        let Accessed { shard, slots, failure, shipped, returned, .. } = accessed;
        let Accessed { is_too_long, has_written, changes, writes, seen, .. } = accessed;
        let (layout, shard) = (&desk.site.layout, usize::from(shard));
        let Some(part) = self.parts.get_mut(&shard) else { return false };
        if !part.is_awaited || part.lead != Some(from) {
            return false;
        }
        part.is_awaited = false;
        part.has_written = has_written;
        part.changes = changes;
        part.writes = writes;
        part.seen = seen;
        self.is_too_long |= is_too_long;
        self.shipped.extend(shipped.into_iter().map(|shipped| (shipped.slot, shipped)));
        for write in returned {
            let owner = desk.site.holder_of(write.hash.slot());
            if let Some(part) = self.parts.get_mut(&owner) {
                part.returned.push(write);
            }
        }
        let most = desk.site.registry.limits().reply;
        for (slot, result) in slots.into_iter().filter(|(slot, _)| (slot.0 as usize) < fragments.len()) {
            self.take_result(slot.0, shard, result, &fragments[slot.0 as usize], (most, layout.shards()));
        }
        if let Some(Failure::Aborted(slot, abort)) = failure {
            let is_first = self.failure.is_none_or(|(first, _)| slot < first);
            if is_first {
                self.failure = Some((slot, abort));
            }
        }
        true
    }

    fn take_result(
        &mut self,
        n: u32,
        shard: usize,
        result: Vec<u8>,
        fragment: &Fragment,
        (most, shards): (usize, usize),
    ) {
        let at = n as usize;
        if fragment.is_table() {
            let answered = self.tables.entry(n).or_default();
            answered.insert(shard, result);
            self.has_run[at] = answered.len() == shards;
            if self.has_run[at] {
                let slot = &mut self.slots[at];
                Writer(slot).array(shards);
                answered.values_mut().for_each(|part| slot.append(part));
            }
            return;
        }
        self.has_run[at] = true;
        if fragment.only_answers() {
            self.shown = self.shown.saturating_add(result.len());
            self.is_too_long |= self.shown > most;
            if self.is_too_long {
                return;
            }
        }
        self.slots[at] = result;
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
        self.parts.values().any(|part| part.has_written || !part.returned.is_empty())
    }

    /// Takes the reads and writes in views, by the regions that these show.
    pub fn take_elsewhere(&mut self, site: &Site) -> BTreeMap<PartitionId, Elsewhere> {
        let mut all: BTreeMap<PartitionId, Elsewhere> = BTreeMap::new();
        for part in self.parts.values_mut() {
            let Some(lead) = part.lead.filter(|lead| site.is_foreign(lead.partition)) else { continue };
            let (reads, mut writes) = (std::mem::take(&mut part.seen), std::mem::take(&mut part.writes));
            writes.append(&mut part.returned);
            if !reads.is_empty() || !writes.is_empty() {
                all.insert(lead.partition, Elsewhere { reads, writes });
            }
        }
        all
    }

    /// The changes of whole databases, and the records of this node's partition that were changed, in order of shards.
    pub fn take_writes(&mut self, own: PartitionId) -> (Vec<TableChange>, Vec<Write>) {
        let (mut changes, mut writes) = (Vec::new(), Vec::new());
        let is_own = |part: &&mut Part| part.lead.is_none_or(|lead| lead.partition == own);
        for part in self.parts.values_mut().filter(is_own) {
            // A fragment over the whole table does the same on every shard.
            if changes.is_empty() {
                changes = std::mem::take(&mut part.changes);
            }
            writes.append(&mut part.writes);
        }
        writes.append(&mut self.take_returned(own));
        (changes, writes)
    }

    /// The records of a partition as compute fragments elsewhere have left them, which its participants do not know yet.
    pub fn take_returned(&mut self, partition: PartitionId) -> Vec<Write> {
        let there = |part: &&mut Part| part.lead.is_some_and(|lead| lead.partition == partition);
        self.parts.values_mut().filter(there).flat_map(|part| std::mem::take(&mut part.returned)).collect()
    }

    /// The time that the attempt sees.
    pub const fn now(&self) -> Millis {
        self.now
    }
}

impl Former {
    /// The time that all steps see.
    pub const fn now(&self) -> Millis {
        self.now
    }

    /// The shards that were asked for something, each with the claim of who runs it.
    pub fn shards(&self) -> impl Iterator<Item = (usize, Lead)> {
        self.parts.iter().filter_map(|(shard, part)| Some((*shard, part.lead?)))
    }

    /// The claim of who runs a shard.
    pub fn lead(&self, shard: usize) -> Option<Lead> {
        self.parts.get(&shard)?.lead
    }

    /// The shards of some partitions where something was written.
    pub fn written_at(&self, is_meant: impl Fn(PartitionId) -> bool) -> impl Iterator<Item = (usize, Lead)> {
        let written = self.parts.iter().filter(|(_, part)| part.has_written);
        let written = written.filter_map(|(shard, part)| Some((*shard, part.lead?)));
        written.filter(move |(_, lead)| is_meant(lead.partition))
    }

    /// Takes what was written at a shard, and what was read there if it is a view's.
    pub fn put_writes(
        &mut self,
        shard: usize,
        (changes, writes): (Vec<TableChange>, Vec<Write>),
        seen: Vec<Read>,
    ) {
        if let Some(part) = self.parts.get_mut(&shard) {
            (part.changes, part.writes, part.seen) = (changes, writes, seen);
        }
    }

    /// Takes over who was asked in a step that is taken back, and nothing of what it has done.
    pub fn take_back(&mut self, step: Executing) {
        self.now = step.now;
        for (shard, part) in step.parts {
            let lead = part.lead;
            self.parts.entry(shard).or_default().lead = lead;
        }
        self.parts.retain(|_, part| part.lead.is_some());
    }
}

impl Executing {
    /// The end of a transaction that has run as far as it does.
    pub fn end(
        &self,
        registry: &Registry,
        chunk: &Chunk,
        txn: &Txn,
        failure: Option<(SlotNo, Abort)>,
    ) -> End {
        let status = failure.map_or(OutcomeStatus::Committed, |(_, abort)| OutcomeStatus::Aborted(abort));
        End { status, reply: reply_of(registry, chunk, txn, (&self.slots, self.is_too_long), failure) }
    }
}

/// The reply of a transaction, or of the fragment that has aborted it.
fn reply_of(
    registry: &Registry,
    chunk: &Chunk,
    txn: &Txn,
    (slots, is_too_long): (&Vec<Vec<u8>>, bool),
    failure: Option<(SlotNo, Abort)>,
) -> Vec<u8> {
    let mut reply = Vec::new();
    if is_too_long && failure.is_none() {
        Writer(&mut reply).too_long();
        return reply;
    }
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

/// True if a fragment looks at a record or at the whole table.
pub fn reads_something(fragment: &Fragment) -> bool {
    fragment.is_table() || fragment.is_keyed() && !fragment.is_blind
}
