//! Chunks: the transactions that a gateway submits together, planned, with their bytes as they are logged.
//!
//! A chunk is built once, at the front door, and then only shared: the sequencer puts it in a batch without
//! copying, the log writes [`Chunk::logged`] as it is, the shards read plans and arguments in place. Replay
//! turns the same bytes back into the same chunk.

use std::ops::Range;
use std::sync::Arc;

use crate::args::{Args, ArgsBuilder};
use crate::error::PlanError;
use crate::ids::{ChunkNo, Db, GatewayId, Gsn, PartitionId, ProcedureId, RequestNo, SessionId};
use crate::layout::{Layout, PartitionSet};
use crate::map::Map;
use crate::plan::{Access, CallSpan, Fragment, Planner, Plans, mark_snapshot_readable};
use crate::procedure::Registry;
use crate::wire::{Codec, Reader};

/// A call of a procedure, by a client's request or without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The procedure.
    pub procedure: ProcedureId,
    /// The selected database.
    pub db: Db,
    /// The session and the request's number in it, for exactly-once retry.
    pub session: Option<(SessionId, RequestNo)>,
}

impl Call {
    /// A call without a session.
    pub const fn new(procedure: ProcedureId, db: Db) -> Call {
        Call { procedure, db, session: None }
    }
}

/// A transaction of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Txn {
    /// The call.
    pub call: Call,
    /// Its place in the chunk; unique and ascending, not dense once a log has left out the reads.
    pub index: u32,
    /// True if the transaction cannot change the state, and no other attempt at its request can have: one that a session
    /// numbers, and whose plan [is found by reading](crate::Procedure::is_dependent), may have written before and find
    /// nothing to write now. It is answered from what the session keeps of it, as a write is.
    pub read_only: bool,
    /// True if the log keeps it: it may change the state, or several partitions take part, of which one may have to
    /// hear of it again.
    pub logged: bool,
    /// True if it follows others of its connection that are under way. Under another map than its chunk's one of them may be
    /// turned back, so it is turned back too, wherever its own slots are: nothing overtakes what is planned again.
    pub follows: bool,
    /// True if one of its fragments may abort it.
    pub abortable: bool,
    /// The number of its fragments that are handed records by others.
    pub carriers: u32,
    /// Its first fragment from which on none may abort it.
    pub abortable_until: u32,
    /// True if one of its fragments is over the whole table.
    pub table: bool,
    /// True if it can be run on a snapshot: it only reads, and nothing that it reads elsewhere depends on what it has
    /// read.
    pub detached: bool,
    /// True if its fragments need nothing of each other, each has a record of its own to run on, and none may abort: then
    /// they can be run apart, each when its record is free (qstore.md, section 4.2).
    pub independent: bool,
    /// The first and the last of the slots of its fragments.
    slots: (u16, u16),
    args: Range<u32>,
    fragments: Range<u32>,
    calls: Range<u32>,
}

impl Txn {
    /// The places of its fragments among those of the chunk's [plans](Chunk::plans).
    #[inline]
    pub fn fragments(&self) -> Range<usize> {
        self.fragments.start as usize..self.fragments.end as usize
    }

    /// The place of its bytes, those of its head included.
    fn record(&self) -> Range<usize> {
        let head = HEAD + if self.call.session.is_some() { SESSION } else { 0 };
        self.args.start as usize - head..self.args.end as usize
    }

    /// The place of its arguments, for [`Chunk::args_at`].
    #[inline]
    pub fn args(&self) -> Range<u32> {
        self.args.clone()
    }
}

/// Planned transactions and their bytes.
#[derive(Clone, Debug, Default)]
pub struct Chunk {
    /// The gateway that built it and waits for the outcomes.
    pub gateway: GatewayId,
    /// Its number among that gateway's chunks.
    pub number: ChunkNo,
    /// The replica that sends the outcomes.
    pub replica: u16,
    /// The layout of a cluster of several partitions; only while the chunk is built.
    layout: Option<Arc<Layout>>,
    /// Under which map its transactions were planned.
    pub map: Map,
    logged: Vec<u8>,
    unlogged: Vec<u8>,
    txns: Vec<Txn>,
    plans: Plans,
}

/// A logged chunk that cannot be what was written: the log is damaged or of another version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// The bytes do not parse.
    #[error("transaction at byte {at} of its chunk does not parse")]
    Damaged {
        /// Offset in the chunk.
        at: usize,
    },
    /// A transaction parses but is refused by its procedure, which it was not when it was logged.
    #[error("transaction at byte {at} of its chunk is refused by this version: {source}")]
    Refused {
        /// Offset in the chunk.
        at: usize,
        /// The refusal.
        source: PlanError,
    },
}

/// The most bytes of arguments that one transaction may have.
pub const MAX_TXN_BYTES: usize = 512 << 20;

/// For so many transactions, or parts of a plan, there is room in advance at most.
const ROOM_MAX: usize = 1 << 17;

const HEAD: usize = 12;
const SESSION: usize = 16;
const HAS_SESSION: u8 = 1;
const FOLLOWS: u8 = 2;
/// The offset of a transaction's flags in its bytes.
const FLAGS: usize = 11;

impl Codec for Chunk {
    const LEAST: usize = 26;

    fn encode(&self, out: &mut Vec<u8>) {
        (self.gateway, self.number, self.replica).encode(out);
        self.map.encode(out);
        self.logged.encode(out);
        self.unlogged.encode(out);
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Chunk> {
        let (gateway, number, replica) = Codec::decode(bytes)?;
        let (map, logged, unlogged) = Codec::decode(bytes)?;
        let chunk = Chunk::rebuild(bytes.registry()?, gateway, logged, unlogged).ok()?;
        Some(Chunk { number, replica, map, ..chunk })
    }
}

impl Chunk {
    /// An empty chunk.
    pub fn new(gateway: GatewayId, number: ChunkNo) -> Chunk {
        Chunk { gateway, number, ..Chunk::default() }
    }

    /// The empty chunk for a cluster: outcomes are sent by a replica, records live where the layout says.
    #[must_use]
    pub fn in_cluster(self, replica: u16, layout: Arc<Layout>) -> Chunk {
        let map = layout.map().clone();
        let layout = Some(layout).filter(|layout| layout.partitions() > 1);
        Chunk { replica, layout, map, ..self }
    }

    /// An empty chunk after another of the same gateway, with room for about as much as late ones held: chunks are now large
    /// and now small, and one that has to grow is copied again and again.
    pub fn after(last: &Chunk) -> Chunk {
        fn room<T>(last: &Vec<T>) -> Vec<T> {
            Vec::with_capacity(last.len().max(last.capacity() - last.capacity().div_ceil(16)))
        }
        Chunk {
            gateway: last.gateway,
            number: ChunkNo(last.number.0 + 1),
            replica: last.replica,
            layout: last.layout.clone(),
            map: last.map.clone(),
            logged: room(&last.logged),
            unlogged: room(&last.unlogged),
            txns: room(&last.txns),
            plans: Plans {
                fragments: room(&last.plans.fragments),
                inputs: room(&last.plans.inputs),
                calls: room(&last.plans.calls),
            },
        }
    }

    /// Plans a call and appends it; `write_args` writes its arguments, once, where they will be logged.
    ///
    /// # Errors
    /// The refusal of the arguments; the chunk is unchanged then.
    pub fn push(
        &mut self,
        registry: &Registry,
        call: Call,
        write_args: impl FnOnce(&mut ArgsBuilder<'_>),
    ) -> Result<&Txn, PlanError> {
        let index = self.txns.last().map_or(0, |t| t.index + 1);
        let start = self.logged.len();
        let blob = &mut self.logged;
        blob.extend_from_slice(&[0; 4]);
        blob.extend_from_slice(&index.to_le_bytes());
        blob.extend_from_slice(&call.procedure.0.to_le_bytes());
        blob.push(call.db.0);
        blob.push(if call.session.is_some() { HAS_SESSION } else { 0 });
        if let Some((session, request)) = call.session {
            blob.extend_from_slice(&session.0.to_le_bytes());
            blob.extend_from_slice(&request.0.to_le_bytes());
        }
        let args = blob.len();
        write_args(&mut ArgsBuilder::new(blob));
        let len = blob.len() - start - 4;
        if len > MAX_TXN_BYTES || index >= Gsn::MAX_BATCH {
            blob.truncate(start);
            return Err(PlanError::fixed("ERR transaction exceeds the limit of 512 MiB of arguments"));
        }
        blob[start..start + 4].copy_from_slice(&(len as u32).to_le_bytes());
        let admitted = self.admit(registry, (call, false), index, args..self.logged.len(), true);
        if let Err(refusal) = admitted {
            self.logged.truncate(start);
            return Err(refusal);
        }
        let txn = self.txns.last().expect("admitted just above");
        let is_shared = |layout: &Arc<Layout>| self.only_partition(txn, layout).is_none();
        if txn.read_only && !self.layout.as_ref().is_some_and(is_shared) {
            // It has no effect to recover and no other partition takes part, so it does not reach the log.
            let at = (self.unlogged.len() + args - start) as u32;
            self.unlogged.extend_from_slice(&self.logged[start..]);
            self.logged.truncate(start);
            let end = self.unlogged.len() as u32;
            if let Some(txn) = self.txns.last_mut() {
                txn.args = at..end;
                txn.logged = false;
            }
        }
        Ok(self.txns.last().expect("admitted just above"))
    }

    /// Empties the chunk, with its room kept.
    pub fn clear(&mut self) {
        let Plans { fragments, inputs, calls } = &mut self.plans;
        fragments.clear();
        inputs.clear();
        calls.clear();
        self.txns.clear();
        self.logged.clear();
        self.unlogged.clear();
    }

    /// Marks the last transaction as one that [follows](Txn::follows) others of its connection.
    pub fn mark_follower(&mut self) {
        let Some(txn) = self.txns.last_mut() else { return };
        txn.follows = true;
        let flags = txn.record().start + FLAGS;
        let blob = if txn.logged { &mut self.logged } else { &mut self.unlogged };
        blob[flags] |= FOLLOWS;
    }

    /// Has the log keep transactions that only read as well, by index: those that must not be run a second time at another
    /// place, and those in which the partition that sequences them takes no part.
    pub fn log_also(&mut self, is_kept: impl Fn(u32) -> bool) {
        let moves = |txn: &Txn| !txn.logged && is_kept(txn.index);
        let Some(first) = self.txns.iter().position(moves) else { return };
        let (logged, unlogged) = (std::mem::take(&mut self.logged), std::mem::take(&mut self.unlogged));
        // What stands before the first that moves stays as it is.
        let before = |is_logged| {
            let ends = self.txns[..first].iter().filter(|txn| txn.logged == is_logged);
            ends.map(|txn| txn.args.end as usize).max().unwrap_or(0)
        };
        self.logged = logged[..before(true)].to_vec();
        self.unlogged = unlogged[..before(false)].to_vec();
        for txn in &mut self.txns[first..] {
            let record = txn.record();
            let bytes = if txn.logged { &logged[record.clone()] } else { &unlogged[record.clone()] };
            txn.logged |= is_kept(txn.index);
            let blob = if txn.logged { &mut self.logged } else { &mut self.unlogged };
            let start = blob.len() as u32;
            blob.extend_from_slice(bytes);
            let head = txn.args.start - record.start as u32;
            txn.args = start + head..blob.len() as u32;
        }
    }

    /// Takes over the last transaction of another chunk, planned as it is.
    pub fn take(&mut self, other: &mut Chunk) {
        let Some(mut txn) = other.txns.pop() else { return };
        txn.index = self.span();
        let was = txn.clone();
        let from = other.record(&txn);
        let blob = if txn.logged { &mut self.logged } else { &mut self.unlogged };
        let start = blob.len();
        blob.extend_from_slice(from);
        blob[start + 4..start + 8].copy_from_slice(&txn.index.to_le_bytes());
        let head = from.len() as u32 - (txn.args.end - txn.args.start);
        txn.args = start as u32 + head..blob.len() as u32;
        let others = &mut other.plans;
        let (first_fragment, first_call) = (was.fragments.start as usize, was.calls.start as usize);
        // Plans are appended whole, so the inputs of the last one are the last inputs.
        let dependents = others.fragments[first_fragment..].iter().filter(|fragment| fragment.inputs_len > 0);
        let first_input = dependents.map(|fragment| fragment.inputs_at).min();
        let first_input = first_input.unwrap_or(others.inputs.len() as u32);
        let Plans { fragments, inputs, calls } = &mut self.plans;
        let (first, input, call) = (fragments.len() as u32, inputs.len() as u32, calls.len() as u32);
        fragments.extend(others.fragments.drain(first_fragment..).map(|mut fragment| {
            fragment.inputs_at = fragment.inputs_at.saturating_sub(first_input) + input;
            fragment
        }));
        inputs.extend(others.inputs.drain(first_input as usize..));
        calls.extend(others.calls.drain(first_call..));
        txn.fragments = first..fragments.len() as u32;
        txn.calls = call..calls.len() as u32;
        let blob = if was.logged { &mut other.logged } else { &mut other.unlogged };
        blob.truncate(was.record().start);
        self.txns.push(txn);
    }

    /// The chunk of some of its transactions alone, by their places in the list, ascending; each keeps its index.
    pub fn part(&self, places: impl IntoIterator<Item = usize>) -> Chunk {
        let (gateway, number, replica) = (self.gateway, self.number, self.replica);
        let mut part = Chunk { gateway, number, replica, map: self.map.clone(), ..Chunk::default() };
        for was in places.into_iter().filter_map(|place| self.txns.get(place)) {
            let from = self.record(was);
            let blob = if was.logged { &mut part.logged } else { &mut part.unlogged };
            let head = from.len() as u32 - (was.args.end - was.args.start);
            let start = blob.len() as u32 + head;
            blob.extend_from_slice(from);
            let args = start..blob.len() as u32;
            let Plans { fragments, inputs, calls } = &mut part.plans;
            let (first, call) = (fragments.len() as u32, calls.len() as u32);
            for fragment in self.fragments(was) {
                let needs = self.plans.inputs_of(fragment);
                fragments.push(Fragment { inputs_at: inputs.len() as u32, ..*fragment });
                inputs.extend_from_slice(needs);
            }
            calls.extend_from_slice(self.calls(was));
            let (fragments, calls) = (first..fragments.len() as u32, call..calls.len() as u32);
            part.txns.push(Txn { args, fragments, calls, ..was.clone() });
        }
        part
    }

    /// Rebuilds a chunk from the bytes of its transactions: those that the log keeps, and those that it does not.
    ///
    /// # Errors
    /// [`ChunkError`]; nothing of the chunk may be used then.
    pub fn rebuild(
        registry: &Registry,
        gateway: GatewayId,
        logged: Vec<u8>,
        unlogged: Vec<u8>,
    ) -> Result<Chunk, ChunkError> {
        let mut chunk = Chunk { gateway, logged, unlogged, ..Chunk::default() };
        let (mut at, mut at_unlogged) = (0, 0);
        let bytes = chunk.logged.len() + chunk.unlogged.len();
        loop {
            let next = |blob: &[u8], at: usize| match at < blob.len() {
                true => parse_head(blob, at).map(Some).ok_or(ChunkError::Damaged { at }),
                false => Ok(None),
            };
            let (logged, unlogged) = (next(&chunk.logged, at)?, next(&chunk.unlogged, at_unlogged)?);
            let is_logged = match (&logged, &unlogged) {
                (None, None) => return Ok(chunk),
                (Some(logged), Some(unlogged)) => logged.1 < unlogged.1,
                (logged, _) => logged.is_some(),
            };
            let (at, blob) =
                if is_logged { (&mut at, &chunk.logged) } else { (&mut at_unlogged, &chunk.unlogged) };
            let damaged = ChunkError::Damaged { at: *at };
            let Some((call, index, args)) = (if is_logged { logged } else { unlogged }) else {
                return Err(damaged);
            };
            if chunk.txns.last().is_some_and(|t| t.index >= index)
                || Args::parse(&blob[args.clone()]).is_none()
            {
                return Err(damaged);
            }
            let begin = std::mem::replace(at, args.end);
            let len = args.end - begin;
            chunk
                .admit(registry, call, index, args, is_logged)
                .map_err(|source| ChunkError::Refused { at: begin, source })?;
            if chunk.txns.len() == 1 {
                chunk.expect((bytes - len) / len);
            }
            if !is_logged && chunk.txns.last().is_some_and(|txn| !txn.read_only) {
                return Err(damaged);
            }
        }
    }

    /// Makes room for so many transactions more that are like the first, unless that is very much: then it grows.
    fn expect(&mut self, more: usize) {
        fn expect<T>(list: &mut Vec<T>, more: usize) {
            list.reserve(list.len().saturating_mul(more).min(ROOM_MAX));
        }
        expect(&mut self.txns, more);
        expect(&mut self.plans.fragments, more);
        expect(&mut self.plans.inputs, more);
        expect(&mut self.plans.calls, more);
    }

    /// Plans the transaction whose arguments stand in one of the blobs and appends it.
    fn admit(
        &mut self,
        registry: &Registry,
        (call, follows): (Call, bool),
        index: u32,
        args: Range<usize>,
        logged: bool,
    ) -> Result<(), PlanError> {
        let first = self.plans.fragments.len();
        let first_call = self.plans.calls.len();
        let blob = if logged { &self.logged } else { &self.unlogged };
        let view = Args::trusted(&blob[args.clone()]);
        Planner::plan(registry, call.procedure, call.db, view, &mut self.plans)?;
        let (mut writes, mut abortable_until, mut table, mut table_written) = (false, 0, false, false);
        let (mut is_chained, mut independent, mut carriers) = (false, true, 0);
        let mut slots = (u16::MAX, 0);
        for (n, fragment) in self.plans.fragments[first..].iter().enumerate() {
            if table_written && fragment.abortable {
                self.plans.fragments.truncate(first);
                self.plans.calls.truncate(first_call);
                return Err(PlanError::fixed(
                    "ERR a step that may abort cannot follow a write of the whole table",
                ));
            }
            table_written |= fragment.access == Access::TableWrite;
            writes |= fragment.writes();
            let needs = !self.plans.inputs_of(fragment).is_empty();
            is_chained |= fragment.access != Access::Compute && needs;
            independent &= fragment.is_keyed() && !fragment.shipped && !fragment.abortable && !needs;
            if fragment.abortable {
                abortable_until = n as u32 + 1;
            }
            table |= fragment.is_table();
            carriers += u32::from(fragment.carries);
            let slot = fragment.hash.slot() as u16;
            slots = (slot.min(slots.0), slot.max(slots.1));
        }
        writes |= call.session.is_some()
            && registry.get(call.procedure).is_some_and(|procedure| procedure.is_dependent());
        mark_snapshot_readable(&mut self.plans.fragments[first..]);
        self.txns.push(Txn {
            call,
            index,
            read_only: !writes,
            logged,
            follows,
            abortable: abortable_until > 0,
            carriers,
            abortable_until,
            table,
            detached: !writes && !is_chained,
            independent,
            slots,
            args: args.start as u32..args.end as u32,
            fragments: first as u32..self.plans.fragments.len() as u32,
            calls: first_call as u32..self.plans.calls.len() as u32,
        });
        Ok(())
    }

    /// The transactions, in order.
    #[inline]
    pub fn txns(&self) -> &[Txn] {
        &self.txns
    }

    /// The largest index plus one.
    pub fn span(&self) -> u32 {
        self.txns.last().map_or(0, |t| t.index + 1)
    }

    /// The bytes that the chunk holds.
    pub fn bytes(&self) -> usize {
        self.logged.len() + self.unlogged.len()
    }

    /// The fragments of a transaction.
    #[inline]
    pub fn fragments(&self, txn: &Txn) -> &[Fragment] {
        &self.plans.fragments[txn.fragments()]
    }

    /// The plans of all transactions: where a fragment's inputs are found.
    #[inline]
    pub fn plans(&self) -> &Plans {
        &self.plans
    }

    /// The arguments of a transaction.
    #[inline]
    pub fn args(&self, txn: &Txn) -> Args<'_> {
        self.args_at(txn.args.clone(), txn.logged)
    }

    /// The arguments at a [place](Txn::args) of the logged bytes, or of those that the log does not keep.
    #[inline]
    pub fn args_at(&self, place: Range<u32>, is_logged: bool) -> Args<'_> {
        let blob = if is_logged { &self.logged } else { &self.unlogged };
        Args::trusted(&blob[place.start as usize..place.end as usize])
    }

    /// The bytes of a transaction: what [`Chunk::decode`] reads.
    pub fn record(&self, txn: &Txn) -> &[u8] {
        let blob = if txn.logged { &self.logged } else { &self.unlogged };
        &blob[txn.record()]
    }

    /// The shard that composes the reply and sends it: the home of the session for a request that must not take effect
    /// twice, or else the owner of the first fragment; of one without any, the first shard of all.
    #[inline]
    pub fn collector(&self, txn: &Txn, layout: &Layout) -> usize {
        match txn.call.session {
            Some((session, _)) if !txn.read_only => layout.home_of(session),
            _ => {
                let first = self.fragments(txn).first().filter(|fragment| !fragment.is_table());
                first.map_or(0, |fragment| layout.shard_of(fragment.hash.slot()))
            }
        }
    }

    /// The only shard that takes part in a transaction, its reply included. None if several do, or if that takes a look at
    /// each of its fragments: this function takes none.
    #[inline]
    pub fn only_shard(&self, txn: &Txn, layout: &Layout) -> Option<usize> {
        let (first, last) = txn.slots;
        if txn.table || first > last {
            return None;
        }
        let owner = layout.shard_of_all(usize::from(first)..=usize::from(last));
        let is_owned = |fragment: &Fragment| owner == Some(layout.shard_of(fragment.hash.slot()));
        debug_assert!(owner.is_none() || self.fragments(txn).iter().all(is_owned));
        owner.filter(|owner| self.collector(txn, layout) == *owner)
    }

    /// The partitions that take part in a transaction: those that own a fragment, and the collector's.
    pub fn participants(&self, txn: &Txn, layout: &Layout) -> PartitionSet {
        if txn.table {
            return layout.all();
        }
        let mut participants = PartitionSet::EMPTY;
        participants.insert(layout.partition_of_shard(self.collector(txn, layout)));
        if self.only_shard(txn, layout).is_some() {
            return participants;
        }
        for fragment in self.fragments(txn) {
            participants.insert(layout.partition_of(fragment.hash.slot()));
        }
        participants
    }

    /// The only partition that takes part in a transaction, if there is one.
    pub fn only_partition(&self, txn: &Txn, layout: &Layout) -> Option<PartitionId> {
        let first = layout.partition_of_shard(self.collector(txn, layout));
        let is_first = |f: &Fragment| layout.partition_of(f.hash.slot()) == first;
        let is_only = match self.only_shard(txn, layout) {
            Some(_) => true,
            None if txn.table => layout.partitions() == 1,
            None => self.fragments(txn).iter().all(is_first),
        };
        debug_assert_eq!(is_only.then_some(first), self.participants(txn, layout).only());
        is_only.then_some(first)
    }

    /// True if a partition takes part: that is known as soon as one of its fragments is found.
    pub fn takes_part(&self, txn: &Txn, layout: &Layout, partition: PartitionId) -> bool {
        if txn.table {
            return true;
        }
        let owns = |shard: usize| layout.partition_of_shard(shard) == partition;
        let takes_part = match self.only_shard(txn, layout) {
            Some(shard) => owns(shard),
            None => {
                owns(self.collector(txn, layout))
                    || self.fragments(txn).iter().any(|f| layout.partition_of(f.hash.slot()) == partition)
            }
        };
        debug_assert_eq!(takes_part, self.participants(txn, layout).contains(partition));
        takes_part
    }

    /// True if a slot of a transaction has moved since the map that it was planned under. True as well if it
    /// [follows](Txn::follows) others of which that may be so. Fragments over whole tables have no slot that could move.
    pub fn is_moved(&self, txn: &Txn, layout: &Layout) -> bool {
        let keyed = self.fragments(txn).iter().filter(|fragment| !fragment.is_table());
        let mut slots = keyed.map(|fragment| fragment.hash.slot());
        self.map != *layout.map() && (txn.follows || slots.any(|slot| layout.is_moved(slot, &self.map)))
    }

    /// True if a slot that a transaction reads as of an earlier moment was elsewhere then: no shard has that state where
    /// the slot is now. True as well if it [follows](Txn::follows) others of which that may be so.
    pub fn reads_moved(&self, txn: &Txn, then: &Layout, now: &Layout) -> bool {
        let mut slots = self.fragments(txn).iter().filter(|f| f.snapshot_readable).map(|f| f.hash.slot());
        let is_behind = txn.follows && then.map() != now.map();
        is_behind || slots.any(|slot| now.is_moved(slot, then.map()))
    }

    /// The calls inside a transaction.
    #[inline]
    pub fn calls(&self, txn: &Txn) -> &[CallSpan] {
        &self.plans.calls[txn.calls.start as usize..txn.calls.end as usize]
    }

    /// The bytes that the log keeps: every transaction that may change the state.
    pub fn logged(&self) -> &[u8] {
        &self.logged
    }

    /// The bytes that it does not keep.
    pub fn unlogged(&self) -> &[u8] {
        &self.unlogged
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.logged
    }
}

fn parse_head(blob: &[u8], at: usize) -> Option<((Call, bool), u32, Range<usize>)> {
    let head = blob.get(at..at + HEAD)?;
    let word = |i: usize| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
    let end = at.checked_add(4)?.checked_add(word(0) as usize)?;
    let record = blob.get(..end)?;
    let mut args = at + HEAD;
    let follows = head[FLAGS] & FOLLOWS != 0;
    let session = match head[FLAGS] & !FOLLOWS {
        0 => None,
        HAS_SESSION => {
            let (session, rest) = record.get(args..)?.split_first_chunk::<8>()?;
            let request = rest.first_chunk::<8>()?;
            args += SESSION;
            Some((SessionId(u64::from_le_bytes(*session)), RequestNo(u64::from_le_bytes(*request))))
        }
        _ => return None,
    };
    let procedure = ProcedureId(u16::from_le_bytes([head[8], head[9]]));
    let call = Call { procedure, db: Db(head[10]), session };
    (args <= end).then_some(((call, follows), word(4), args..end))
}
