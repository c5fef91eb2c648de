//! The reference executor: the transactions of a log one at a time, single-threaded, on a plain ordered map.
//!
//! It is the oracle (calvin.md, `ref_exec`). It shares the plans and the fragments' code with the engines and
//! nothing else: no locks, no shards, no batching, no journal. It restores whole records when a transaction
//! aborts, which no engine could afford. Blind writes are run twice, to see that they are blind.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use crate::args::Args;
use crate::batch::Batch;
use crate::cell::{Cell, CellMut, Journal};
use crate::children::{Children, READ_ONLY_PARENT, change_child, child_key};
use crate::chunk::{Chunk, Txn};
use crate::datum::{Writer, bounded_reply};
use crate::digest::Digest;
use crate::error::Abort;
use crate::execution::{Cascade, Choice};
use crate::ids::{Db, Epoch, Gsn, Millis, SlotNo};
use crate::isolation::Isolation;
use crate::key::{KeyHash, Position};
use crate::layout::Layout;
use crate::map::Map;
use crate::outcome::OutcomeStatus;
use crate::plan::{Access, Fragment, nested_args};
use crate::procedure::{Frame, Inputs, Locals, Members, Procedure, Registry, ReplyContext, Target};
use crate::serial::{key_of, seed_of};
use crate::stamp::Version;
use crate::system;
use crate::table::Table;
use crate::value::record_hash;

type Key = (Position, Db, Vec<u8>);

#[derive(Clone, Debug)]
struct Record {
    cell: Cell,
    version: Gsn,
}

/// The result of a transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Result {
    /// Its place in the order.
    pub gsn: Gsn,
    /// The end of the transaction.
    pub status: OutcomeStatus,
    /// Its reply, encoded as a [`crate::Datum`].
    pub reply: Vec<u8>,
}

/// The circumstances of a transaction, beside the state that it finds.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    /// Its place in the order: the version of what it writes.
    pub gsn: Gsn,
    /// Its time.
    pub now: Millis,
    /// The seed of all that it draws.
    pub seed: u64,
}

/// A state and the means to run transactions on it.
#[derive(Debug)]
pub struct ReferenceExecutor {
    registry: Arc<Registry>,
    map: BTreeMap<Key, Record>,
    locals: Locals,
    /// The layout of a cluster. It decides nothing but whether a transaction was planned under another map.
    layout: Option<Layout>,
    /// The state that snapshot-readable fragments see, if not the one that everything else does.
    past: Option<Past>,
    /// The transactions to drop with what aborts.
    cascade: Option<Dropped>,
}

/// The part of an epoch in which whatever uses what a dropped transaction was to write is dropped too (qstore.md, section 8,
/// oracle 2).
#[derive(Debug)]
struct Dropped {
    /// The beginning, and the choice of the batch there: mostly that nothing is dropped. No later batch changes that.
    from: Gsn,
    choice: Choice,
    /// The keys that dropped transactions were to write, since the whole table was written last.
    keys: BTreeSet<KeyHash>,
}

/// The state at the end of the epoch before the one that is being run.
#[derive(Debug, Default)]
struct Past {
    epoch: Epoch,
    /// The contents, before its first change in the epoch, of each record that the epoch has changed.
    changed: BTreeMap<Key, Option<Record>>,
    /// All other records, once it has changed the whole table.
    table: Option<BTreeMap<Key, Record>>,
    /// The layout at the end of that epoch.
    layout: Option<Layout>,
}

impl Past {
    fn get<'a>(&'a self, map: &'a BTreeMap<Key, Record>, at: &Key) -> Option<&'a Record> {
        match self.changed.get(at) {
            Some(before) => before.as_ref(),
            None => self.table.as_ref().unwrap_or(map).get(at),
        }
    }

    /// A record is about to be changed.
    fn keep(&mut self, map: &BTreeMap<Key, Record>, at: &Key) {
        if self.table.is_none() && !self.changed.contains_key(at) {
            self.changed.insert(at.clone(), map.get(at).cloned());
        }
    }
}

impl ReferenceExecutor {
    /// The empty state.
    pub fn new(registry: Arc<Registry>) -> ReferenceExecutor {
        ReferenceExecutor {
            registry,
            map: BTreeMap::new(),
            locals: Locals::default(),
            layout: None,
            past: None,
            cascade: None,
        }
    }

    /// The executor of a cluster, in which slots may move.
    #[must_use]
    pub fn in_cluster(self, layout: Layout) -> ReferenceExecutor {
        ReferenceExecutor { layout: Some(layout), ..self }
    }

    /// The executor at an isolation level.
    #[must_use]
    pub fn isolated(self, level: Isolation) -> ReferenceExecutor {
        let past = (level == Isolation::ReadCommitted).then(Past::default);
        ReferenceExecutor { past, ..self }
    }

    /// The slots are where a map says, as they were when what it begins with was kept.
    pub fn begin_under(&mut self, map: &Map) {
        self.layout = self.layout.as_ref().map(|layout| layout.under(map));
    }

    /// The layout now; of a cluster only.
    pub fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    /// Runs a batch in order; one result a transaction.
    pub fn run(&mut self, batch: &Batch) -> Vec<Result> {
        self.open(batch);
        batch.txns().map(|(gsn, chunk, txn)| self.run_placed(gsn, batch.now, chunk, txn)).collect()
    }

    /// Opens a batch, before its transactions are run one by one.
    pub fn open(&mut self, batch: &Batch) {
        let is_of_epoch = |dropped: &Dropped| dropped.from.epoch() == batch.epoch;
        if let Some(choice) = batch.choice.filter(|_| !self.cascade.as_ref().is_some_and(is_of_epoch)) {
            let from = Gsn::new(batch.epoch, batch.partition, 0);
            self.cascade = Some(Dropped { from, choice, keys: BTreeSet::new() });
        }
    }

    /// The digest of the state.
    pub fn digest(&self) -> Digest {
        digest_of(&self.map)
    }

    /// Every record, in canonical order: database, key, content.
    pub fn records(&self) -> impl Iterator<Item = (Db, &[u8], &Cell)> {
        self.map.iter().map(|((_, db, key), record)| (*db, &**key, &record.cell))
    }

    /// Puts a record into the state, as its writer left it.
    pub fn put_back(&mut self, db: Db, key: &[u8], cell: Cell, version: Gsn) {
        self.map.insert(self.name(db, key), Record { cell, version });
    }

    fn name(&self, db: Db, key: &[u8]) -> Key {
        (self.registry.placement().hash_of_record(db, key).position(), db, key.to_vec())
    }

    /// Every record with its version, in canonical order.
    pub fn versions(&self) -> impl Iterator<Item = (Db, &[u8], &Cell, Gsn)> {
        self.map.iter().map(|((_, db, key), record)| (*db, &**key, &record.cell, record.version))
    }

    /// Runs one transaction of the order: not one that was planned under a map by which its slots are elsewhere.
    pub fn run_placed(&mut self, gsn: Gsn, now: Millis, chunk: &Chunk, txn: &Txn) -> Result {
        self.reach(gsn);
        let then = self.past.as_ref().and_then(|past| past.layout.as_ref());
        let is_moved = |layout: &&Layout| {
            chunk.is_moved(txn, layout) || then.is_some_and(|then| chunk.reads_moved(txn, then, layout))
        };
        if let Some(layout) = self.layout.as_ref().filter(is_moved) {
            let mut reply = Vec::new();
            crate::wire::Codec::encode(layout.map(), &mut reply);
            return Result { gsn, status: OutcomeStatus::Moved, reply };
        }
        if let Some(layout) = self.layout.as_mut().filter(|_| txn.table)
            && let Some(after) = system::rearranged(txn.call.procedure, chunk.args(txn), layout)
        {
            *layout = after;
        }
        self.run_txn(gsn, now, chunk, txn)
    }

    /// The order has come to a transaction.
    fn reach(&mut self, gsn: Gsn) {
        let epoch = gsn.epoch();
        if let Some(past) = self.past.as_mut().filter(|past| past.epoch != epoch) {
            *past = Past { epoch, layout: self.layout.clone(), ..Past::default() };
        }
    }

    /// The keys that dropped transactions were to write, where a transaction that uses one of them is dropped too.
    fn dropped_keys(&mut self, gsn: Gsn) -> Option<&mut BTreeSet<KeyHash>> {
        let is_in = |dropped: &&mut Dropped| {
            dropped.choice == Choice::Speculate(Cascade::Abort)
                && dropped.from.epoch() == gsn.epoch()
                && gsn >= dropped.from
                && !gsn.is_of_read()
        };
        self.cascade.as_mut().filter(is_in).map(|dropped| &mut dropped.keys)
    }

    /// Runs one transaction.
    pub fn run_txn(&mut self, gsn: Gsn, now: Millis, chunk: &Chunk, txn: &Txn) -> Result {
        let is_past = self.past.is_some();
        let under = Circumstances { gsn, now, seed: seed_of(gsn) };
        let Some(dropped) = self.dropped_keys(gsn) else { return self.run_kept(under, chunk, txn) };
        if txn.table {
            // It runs alone, when what came before is decided.
            if !txn.read_only {
                dropped.clear();
            }
            return self.run_kept(under, chunk, txn);
        }
        let keyed =
            || chunk.fragments(txn).iter().filter(|f| f.is_keyed() && !(is_past && f.snapshot_readable));
        let uses_dropped = keyed().any(|fragment| dropped.contains(&fragment.hash));
        let result = if uses_dropped {
            let mut reply = Vec::new();
            Writer(&mut reply).abort(Abort::Cascade);
            Result { gsn, status: OutcomeStatus::Aborted(Abort::Cascade), reply }
        } else {
            self.run_kept(under, chunk, txn)
        };
        if result.status != OutcomeStatus::Committed
            && let Some(dropped) = self.dropped_keys(gsn)
        {
            dropped.extend(keyed().filter(|fragment| fragment.writes()).map(|fragment| fragment.hash));
        }
        result
    }

    /// Runs a transaction that uses nothing that a dropped one was to write.
    fn run_kept(&mut self, under: Circumstances, chunk: &Chunk, txn: &Txn) -> Result {
        self.reach(under.gsn);
        let may_abort = txn.abortable && !txn.read_only;
        let mut before = if may_abort { self.images(chunk, txn) } else { Before::Nothing };
        if let Some(past) = self.past.as_mut().filter(|_| !txn.read_only) {
            for fragment in chunk.fragments(txn).iter().filter(|f| f.access == Access::Write) {
                past.keep(&self.map, &map_key(fragment, key_of(chunk.args(txn), fragment).bytes));
            }
            if txn.table && past.table.is_none() {
                past.table = Some(self.map.clone());
            }
        }
        let result = self.run_alone(under, chunk, txn, &mut before);
        if result.status != OutcomeStatus::Committed {
            self.restore(before);
        }
        result
    }

    /// Runs a transaction, and leaves what it has written if it aborts.
    fn run_alone(&mut self, under: Circumstances, chunk: &Chunk, txn: &Txn, before: &mut Before) -> Result {
        let (slots, failure) = self.run_fragments(under, chunk, txn, before);
        let (status, reply) = self.reply(chunk, txn, slots, failure);
        Result { gsn: under.gsn, status, reply }
    }

    /// Runs the fragments of a transaction in order. Answers their slots, and the first failure with its slot.
    fn run_fragments(
        &mut self,
        under: Circumstances,
        chunk: &Chunk,
        txn: &Txn,
        before: &mut Before,
    ) -> (Vec<Vec<u8>>, Option<(SlotNo, Abort)>) {
        let registry = self.registry.clone();
        let args = chunk.args(txn);
        let fragments = chunk.fragments(txn);
        let mut slots: Vec<Vec<u8>> = Vec::with_capacity(fragments.len());
        let mut failed: Vec<bool> = Vec::with_capacity(fragments.len());
        let mut failure: Option<(SlotNo, Abort)> = None;
        for (n, fragment) in fragments.iter().enumerate() {
            let inputs = chunk.plans().inputs_of(fragment);
            let lacks_input = inputs.iter().any(|s| failed[s.0 as usize]);
            if lacks_input || fragment.shipped {
                slots.push(Vec::new());
                failed.push(lacks_input);
                continue;
            }
            let mut out = Vec::new();
            let step =
                Step { registry: &registry, under, args, txn, fragments, fragment, inputs, slots: &slots };
            let result = catch_unwind(AssertUnwindSafe(|| self.run_fragment(&step, before, &mut out)));
            let result = match result {
                Ok(result) => result,
                Err(_) if fragment.abortable => {
                    out.clear();
                    Err(Abort::Panic)
                }
                Err(panic) => resume_unwind(panic),
            };
            if fragment.is_table() {
                let part = std::mem::take(&mut out);
                Writer(&mut out).array(1);
                out.extend_from_slice(&part);
            }
            slots.push(out);
            failed.push(result.is_err());
            if let (Err(abort), None) = (result, failure) {
                failure = Some((SlotNo(n as u32), abort));
            }
        }
        (slots, failure)
    }

    /// Composes the reply from the slots.
    fn reply(
        &self,
        chunk: &Chunk,
        txn: &Txn,
        mut slots: Vec<Vec<u8>>,
        failure: Option<(SlotNo, Abort)>,
    ) -> (OutcomeStatus, Vec<u8>) {
        let registry = &*self.registry;
        let fragments = chunk.fragments(txn);
        let limit = registry.limits().reply;
        let answers = slots.iter_mut().zip(fragments).filter(|(_, fragment)| fragment.only_answers());
        let answers: Vec<&mut Vec<u8>> = answers.map(|(slot, _)| slot).collect();
        let is_too_long = answers.iter().map(|slot| slot.len()).sum::<usize>() > limit;
        if is_too_long {
            answers.into_iter().for_each(|slot| *slot = Vec::new());
        }
        let cx = ReplyContext {
            txn_args: chunk.args(txn),
            call_at: 0,
            db: txn.call.db,
            slots: &slots,
            first: 0,
            count: fragments.len() as u32,
            calls: chunk.calls(txn),
            registry,
        };
        let mut reply = Vec::new();
        let procedure = registry.get(txn.call.procedure).expect("planned, so registered");
        match failure {
            None => {
                bounded_reply(limit, &mut reply, |reply| match is_too_long {
                    true => Writer(reply).too_long(),
                    false => procedure.reply(&cx, reply),
                });
                (OutcomeStatus::Committed, reply)
            }
            Some((slot, abort)) => {
                bounded_reply(limit, &mut reply, |reply| procedure.abort_reply(abort, slot, &cx, reply));
                (OutcomeStatus::Aborted(abort), reply)
            }
        }
    }

    fn run_fragment(
        &mut self,
        step: &Step<'_>,
        before: &mut Before,
        out: &mut Vec<u8>,
    ) -> std::result::Result<(), Abort> {
        let Step { registry, under: Circumstances { gsn, now, seed }, txn, fragment, .. } = *step;
        let share = registry.limits().share(txn.carriers);
        let key = key_of(step.args, fragment);
        let frame = Frame {
            args: nested_args(step.args, fragment.call_at),
            db: fragment.db,
            key,
            now,
            seed,
            inputs: Inputs { slots: step.slots, list: step.inputs },
            registry,
            share,
            most: registry.limits().reply,
        };
        let mut cx = frame.on(Target::Read(&Cell::ABSENT), Version::NONE, None, &mut self.locals, out);
        let code = registry.get(fragment.procedure).expect("planned, so registered");
        let (map, past) = (&mut self.map, &mut self.past);
        match fragment.access {
            Access::Read | Access::Write => {
                let at = map_key(fragment, key.bytes);
                let writes = fragment.access == Access::Write;
                let mut record = match writes {
                    true => take(map, &at, now),
                    false => seen(read(map, past, step, fragment, &at), now),
                };
                let mut changed = false;
                cx.version = record.version.into();
                let is_past = is_past(gsn, fragment);
                let key = key.bytes;
                let mut children =
                    MapChildren { map: &mut *map, past, is_past, before, parent: fragment, key, gsn };
                if fragment.with_children {
                    cx.children = Some(&mut children);
                }
                cx.target = if writes {
                    Target::Write(CellMut::new(&mut record.cell, &mut changed, None))
                } else {
                    Target::Read(&record.cell)
                };
                let result = code.run(fragment.code, &mut cx);
                if fragment.is_blind {
                    let left = result.is_ok().then_some((&record.cell, changed));
                    check_blind(fragment, (code, frame), &mut self.locals, (result, out), left);
                }
                if writes {
                    put(map, at, record, changed, gsn);
                }
                result
            }
            Access::TableRead | Access::TableWrite => {
                let mut table = MapTable { map, gsn };
                cx.target = Target::Table(&mut table);
                code.run(fragment.code, &mut cx)
            }
            Access::Compute => {
                let mut members = Hand { held: Vec::new(), journal: Journal::whole() };
                let mut carried = 0;
                for slot in step.inputs {
                    let shipped = &step.fragments[slot.0 as usize];
                    if shipped.shipped {
                        let at = map_key(shipped, key_of(step.args, shipped).bytes);
                        let writable = shipped.access == Access::Write;
                        let record = match writable {
                            true => take(map, &at, now),
                            false => seen(read(map, past, step, shipped, &at), now),
                        };
                        if shipped.hash.slot() != fragment.hash.slot() {
                            carried += record.cell.weight();
                        }
                        members.held.push(Held { at, record, changed: false, writable });
                    }
                }
                cx.target = Target::Compute(&mut members);
                let result = match carried > share {
                    true => refuse(fragment, cx.out),
                    false => code.run(fragment.code, &mut cx),
                };
                for Held { at, record, changed, writable } in members.held {
                    if writable {
                        put(map, at, record, changed, gsn);
                    }
                }
                result
            }
        }
    }

    fn images(&self, chunk: &Chunk, txn: &Txn) -> Before {
        if txn.table {
            return Before::Map(self.map.clone());
        }
        let keys = chunk.fragments(txn).iter().filter(|f| f.access == Access::Write);
        Before::Records(
            keys.map(|f| {
                let at = map_key(f, key_of(chunk.args(txn), f).bytes);
                let record = self.map.get(&at).cloned();
                (at, record)
            })
            .collect(),
        )
    }

    fn restore(&mut self, before: Before) {
        match before {
            Before::Nothing => {}
            Before::Map(map) => self.map = map,
            Before::Records(records) => {
                for (at, record) in records {
                    match record {
                        Some(record) => self.map.insert(at, record),
                        None => self.map.remove(&at),
                    };
                }
            }
        }
    }
}

/// The state before a transaction, as far as it may change it.
enum Before {
    Nothing,
    /// The records that its plan writes, and those that it has changed below them.
    Records(BTreeMap<Key, Option<Record>>),
    Map(BTreeMap<Key, Record>),
}

struct Step<'a> {
    registry: &'a Registry,
    under: Circumstances,
    args: Args<'a>,
    txn: &'a Txn,
    fragments: &'a [Fragment],
    fragment: &'a Fragment,
    inputs: &'a [SlotNo],
    slots: &'a Vec<Vec<u8>>,
}

/// Refuses a compute fragment that has more in its hands than may be carried.
fn refuse(fragment: &Fragment, out: &mut Vec<u8>) -> std::result::Result<(), Abort> {
    Writer(out).too_much();
    if fragment.abortable { Err(Abort::Budget) } else { Ok(()) }
}

fn map_key(fragment: &Fragment, key: &[u8]) -> Key {
    (fragment.hash.position(), fragment.db, key.to_vec())
}

/// Runs a blind write once more, on an absent record.
///
/// # Panics
/// If it did not do the same to the record that there was, or has not replaced it: then it must not be planned as one.
fn check_blind(
    fragment: &Fragment,
    (code, frame): (&dyn Procedure, Frame<'_>),
    locals: &mut Locals,
    (result, answer): (std::result::Result<(), Abort>, &[u8]),
    left: Option<(&Cell, bool)>,
) {
    let (mut cell, mut changed, mut out) = (Cell::ABSENT, false, Vec::new());
    let target = Target::Write(CellMut::new(&mut cell, &mut changed, None));
    let again = code.run(fragment.code, &mut frame.on(target, Version::NONE, None, locals, &mut out));
    assert_eq!((again, &*out), (result, answer), "a blind write depends on its record: {fragment:?}");
    if let Some(left) = left {
        assert_eq!(left, (&cell, true), "a blind write does not replace its record: {fragment:?}");
    }
}

/// Takes a record out to be written; one whose time has come is gone for good.
fn take(map: &mut BTreeMap<Key, Record>, at: &Key, now: Millis) -> Record {
    map.remove(at)
        .filter(|record| record.cell.is_live(now))
        .unwrap_or(Record { cell: Cell::ABSENT, version: Gsn::NONE })
}

fn put(map: &mut BTreeMap<Key, Record>, at: Key, mut record: Record, changed: bool, gsn: Gsn) {
    if record.cell.value.is_some() {
        if changed {
            record.version = gsn;
        }
        map.insert(at, record);
    }
}

/// True if a fragment sees the state before its epoch, where there is one that differs. Its transaction must be of the
/// order: one that is run on a snapshot sees that.
const fn is_past(gsn: Gsn, fragment: &Fragment) -> bool {
    fragment.snapshot_readable && !gsn.is_of_read()
}

/// The record that a fragment finds which reads.
fn read<'a>(
    map: &'a BTreeMap<Key, Record>,
    past: &'a Option<Past>,
    step: &Step<'_>,
    fragment: &Fragment,
    at: &Key,
) -> Option<&'a Record> {
    match past {
        Some(past) if is_past(step.under.gsn, fragment) => past.get(map, at),
        _ => map.get(at),
    }
}

/// A copy of what is found.
fn seen(record: Option<&Record>, now: Millis) -> Record {
    let record = record.filter(|record| record.cell.is_live(now));
    record.cloned().unwrap_or(Record { cell: Cell::ABSENT, version: Gsn::NONE })
}

/// The child records of a fragment's record.
struct MapChildren<'a> {
    map: &'a mut BTreeMap<Key, Record>,
    past: &'a mut Option<Past>,
    is_past: bool,
    before: &'a mut Before,
    parent: &'a Fragment,
    key: &'a [u8],
    gsn: Gsn,
}

impl MapChildren<'_> {
    fn name(&self, suffix: &[u8]) -> Key {
        let position = KeyHash::child(self.parent.hash, suffix).position();
        (position, self.parent.db.children(), child_key(self.key, suffix).to_vec())
    }
}

impl Children for MapChildren<'_> {
    fn read(&self, suffix: &[u8]) -> &Cell {
        let at = self.name(suffix);
        let record = match &*self.past {
            Some(past) if self.is_past => past.get(self.map, &at),
            _ => self.map.get(&at),
        };
        record.map_or(&Cell::ABSENT, |record| &record.cell)
    }

    fn edit(&mut self, suffix: &[u8], change: &mut dyn FnMut(&mut CellMut<'_>)) {
        assert!(self.parent.access == Access::Write, "{READ_ONLY_PARENT}");
        let at = self.name(suffix);
        if let Before::Records(records) = self.before {
            records.entry(at.clone()).or_insert_with(|| self.map.get(&at).cloned());
        }
        if let Some(past) = self.past {
            past.keep(self.map, &at);
        }
        let mut record = take(self.map, &at, Millis(0));
        let mut changed = false;
        change_child(CellMut::new(&mut record.cell, &mut changed, None), change);
        put(self.map, at, record, changed, self.gsn);
    }
}

struct Hand {
    held: Vec<Held>,
    journal: Journal,
}

struct Held {
    at: Key,
    record: Record,
    changed: bool,
    writable: bool,
}

impl Members for Hand {
    fn len(&self) -> usize {
        self.held.len()
    }

    fn find(&self, db: Db, key: &[u8]) -> Option<usize> {
        self.held.iter().position(|h| h.at.1 == db && h.at.2 == key)
    }

    fn cell(&self, member: usize) -> &Cell {
        &self.held[member].record.cell
    }

    fn version(&self, member: usize) -> Version {
        self.held[member].record.version.into()
    }

    fn cell_mut(&mut self, member: usize) -> Option<CellMut<'_>> {
        let Hand { held, journal } = self;
        let Held { record, changed, writable, .. } = &mut held[member];
        writable.then(|| CellMut::new(&mut record.cell, changed, Some((journal, member as u32))))
    }

    fn undo_bytes(&self) -> usize {
        self.journal.bytes()
    }

    fn roll_back(&mut self) {
        let Hand { held, journal } = self;
        journal.roll_back(0, |member, undo| undo(&mut held[member as usize].record.cell));
        held.iter_mut().for_each(|h| h.changed = false);
    }
}

fn digest_of(map: &BTreeMap<Key, Record>) -> Digest {
    let mut digest = Digest::default();
    for ((_, db, key), record) in map {
        if let Some(value) = &record.cell.value {
            digest.add(record_hash(*db, key, value, record.cell.expires_at));
        }
    }
    digest
}

struct MapTable<'a> {
    map: &'a mut BTreeMap<Key, Record>,
    gsn: Gsn,
}

impl Table for MapTable<'_> {
    fn len(&self, db: Db) -> u64 {
        self.map.keys().filter(|(_, d, _)| *d == db).count() as u64
    }

    fn digest(&mut self) -> Digest {
        digest_of(self.map)
    }

    fn scan(&self, db: Db, from: Position, visit: &mut dyn FnMut(Position, &[u8], &Cell) -> bool) {
        for ((position, d, key), record) in self.map.range((from, Db(0), Vec::new())..) {
            if *d == db && !visit(*position, key, &record.cell) {
                return;
            }
        }
    }

    fn clear(&mut self, db: Option<Db>) {
        self.map.retain(|(_, d, _), _| match db {
            Some(db) => d.home() != db,
            None => d.home().0 >= Db::COUNT,
        });
    }

    fn swap(&mut self, a: Db, b: Db) {
        if a == b {
            return;
        }
        for ((position, db, key), mut record) in std::mem::take(self.map) {
            let to = match db.home() {
                home if home == a => b,
                home if home == b => a,
                home => home,
            };
            let moved = if db.holds_children() { to.children() } else { to };
            if moved != db {
                record.version = self.gsn;
            }
            self.map.insert((position, moved, key), record);
        }
    }

    fn expire(&mut self, now: Millis, positions: std::ops::Range<Position>) -> u64 {
        let before = self.map.len();
        self.map.retain(|(p, _, _), r| !positions.contains(p) || !r.cell.is_expired(now));
        (before - self.map.len()) as u64
    }
}

mod stamped;
#[cfg(test)]
mod tests;
