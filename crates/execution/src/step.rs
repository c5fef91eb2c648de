//! One step of a transaction: a fragment, its inputs, and the records that it runs on.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use ordain_model::cell::CellMut;
use ordain_model::children::{ChildKey, child_key};
use ordain_model::plan::nested_args;
use ordain_model::procedure::{Inputs, Locals, Slots, Target};
use ordain_model::serial::key_of;
use ordain_model::table::Table;
use ordain_model::value::EVICTED;
use ordain_model::{
    Abort, Access, Cell, Children, Chunk, Db, Fragment, Frame, KeyHash, Members as _, Millis, Procedure,
    Registry, SlotNo, Txn, Version, Writer,
};

use crate::shipped::ShippedRecords;

/// The name of a record: its database, its key, and the hash of both by which it is found.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    /// The database.
    pub db: Db,
    /// The key.
    pub key: &'a [u8],
    /// The hash.
    pub hash: KeyHash,
}

impl Name<'_> {
    /// The name of a child record of this one: database, key, hash.
    #[inline]
    pub(crate) fn child(&self, suffix: &[u8]) -> (Db, ChildKey, KeyHash) {
        (self.db.children(), child_key(self.key, suffix), self.child_hash(suffix))
    }

    /// The hash of a child record of this one.
    #[inline]
    pub(crate) fn child_hash(&self, suffix: &[u8]) -> KeyHash {
        KeyHash::child(self.hash, suffix)
    }
}

/// Records as one transaction sees them. A record whose time has come by `now` is absent, and an absent one has no version.
pub trait Records {
    /// Runs code that reads a record, with the version of its content.
    fn read<R>(&mut self, name: Name<'_>, now: Millis, run: impl FnOnce(&Cell, Version) -> R) -> R;

    /// Runs code that writes a record, with the version of the content before.
    fn write<R>(&mut self, name: Name<'_>, now: Millis, run: impl FnOnce(CellMut<'_>, Version) -> R) -> R;

    /// Runs code of a [blind write](Fragment::is_blind): it replaces the record, and neither what it leaves nor what it answers
    /// depends on the content or the version that it is given. So an implementation may give it an absent record with
    /// [`Version::NONE`] whatever there is. By default it is given what [`Records::write`] gives.
    ///
    /// Code that changes nothing, as where it aborts its transaction, leaves the record as it is.
    #[inline]
    fn overwrite<R>(
        &mut self,
        name: Name<'_>,
        now: Millis,
        run: impl FnOnce(CellMut<'_>, Version) -> R,
    ) -> R {
        self.write(name, now, run)
    }

    /// Runs code that reads a record and its child records.
    fn read_parent<R>(
        &mut self,
        name: Name<'_>,
        now: Millis,
        run: impl FnOnce(&Cell, Version, &mut dyn Children) -> R,
    ) -> R;

    /// Runs code that writes a record and its child records.
    fn write_parent<R>(
        &mut self,
        name: Name<'_>,
        now: Millis,
        run: impl FnOnce(CellMut<'_>, Version, &mut dyn Children) -> R,
    ) -> R;

    /// Runs code over the whole table of the shard.
    fn table<R>(&mut self, run: impl FnOnce(&mut dyn Table) -> R) -> R;
}

/// The slots of a transaction none of whose fragments has run: a fragment without inputs needs no other.
pub const NO_SLOTS: &dyn Slots = &NoSlots;

struct NoSlots;

impl Slots for NoSlots {
    fn slot(&self, _: SlotNo) -> &[u8] {
        &[]
    }
}

/// A transaction of a chunk, at one fragment of its plan.
#[derive(Clone, Copy)]
pub struct Step<'a> {
    /// The procedures.
    pub registry: &'a Registry,
    /// The chunk that the transaction is in.
    pub chunk: &'a Chunk,
    /// The transaction.
    pub txn: &'a Txn,
    /// The fragment, counted from the transaction's first.
    pub n: usize,
    /// The time that the transaction sees.
    pub now: Millis,
    /// The transaction's seed.
    pub seed: u64,
    /// The results of earlier fragments.
    pub slots: &'a dyn Slots,
}

impl<'a> Step<'a> {
    /// The fragment.
    #[inline]
    pub fn fragment(&self) -> &'a Fragment {
        &self.chunk.fragments(self.txn)[self.n]
    }

    /// The name of the fragment's record; empty if it has none.
    #[inline]
    pub fn name(&self) -> Name<'a> {
        name_of(self.chunk, self.txn, self.fragment())
    }

    /// Runs the fragment, unless it computes, and appends its answer to `out`.
    ///
    /// # Errors
    /// The fragment aborts its transaction; `out` has what it answers then. [`Abort::Panic`] if its procedure is not there.
    ///
    /// # Panics
    /// If the fragment panics and is not abortable; if it [computes](Step::compute); or if it writes and the records are of a past
    /// state.
    #[inline]
    pub fn run(
        self,
        records: &mut impl Records,
        locals: &mut Locals,
        out: &mut Vec<u8>,
    ) -> Result<(), Abort> {
        let (fragment, now) = (self.fragment(), self.now);
        debug_assert!(
            !fragment.shipped,
            "a shipped record is worked on by its compute fragment: {fragment:?}"
        );
        let Some(code) = self.registry.get(fragment.procedure) else { return Err(Abort::Panic) };
        let frame = self.frame(fragment);
        let name = Name { db: fragment.db, key: frame.key.bytes, hash: fragment.hash };
        match fragment.access {
            Access::Read if fragment.with_children => {
                records.read_parent(name, now, |cell, version, children| {
                    call(code, fragment, frame, (Target::Read(cell), version, Some(children)), locals, out)
                })
            }
            Access::Write if fragment.with_children => {
                records.write_parent(name, now, |cell, version, children| {
                    call(code, fragment, frame, (Target::Write(cell), version, Some(children)), locals, out)
                })
            }
            Access::Read => records.read(name, now, |cell, version| {
                call(code, fragment, frame, (Target::Read(cell), version, None), locals, out)
            }),
            Access::Write if fragment.is_blind => records.overwrite(name, now, |cell, version| {
                call(code, fragment, frame, (Target::Write(cell), version, None), locals, out)
            }),
            Access::Write => records.write(name, now, |cell, version| {
                call(code, fragment, frame, (Target::Write(cell), version, None), locals, out)
            }),
            Access::TableRead | Access::TableWrite => records.table(|table| {
                call(code, fragment, frame, (Target::Table(table), Version::NONE, None), locals, out)
            }),
            Access::Compute => panic!("a compute fragment runs on shipped records: {fragment:?}"),
        }
    }

    /// Runs a compute fragment on its records and appends its answer to `out`. On an error the records are as they were.
    ///
    /// It is refused if its records are together more than its share of what may be shipped. A record in the fragment's
    /// own hash slot is always on its shard, and does not count; one that `is_held_back` by its owner for this very
    /// reason counts for all.
    ///
    /// # Errors
    /// The fragment aborts its transaction; `out` has what it answers then.
    ///
    /// # Panics
    /// If the fragment panics and is not abortable.
    pub fn compute(
        self,
        records: &mut ShippedRecords<'_>,
        is_held_back: impl Fn(SlotNo) -> bool,
        locals: &mut Locals,
        out: &mut Vec<u8>,
    ) -> Result<(), Abort> {
        let fragments = self.chunk.fragments(self.txn);
        let fragment = &fragments[self.n];
        let frame = self.frame(fragment);
        let mut carried = 0;
        let is_too_much = records.held.iter().any(|held| {
            let is_near = fragments[held.slot.0 as usize].hash.slot() == fragment.hash.slot();
            carried += if is_near { 0 } else { held.cell.weight() };
            carried > frame.share || is_held_back(held.slot)
        });
        if is_too_much {
            Writer(out).too_much();
            return if fragment.abortable { Err(Abort::Budget) } else { Ok(()) };
        }
        let Some(code) = self.registry.get(fragment.procedure) else { return Err(Abort::Panic) };
        let target = Target::Compute(records);
        let result = call(code, fragment, frame, (target, Version::NONE, None), locals, out);
        if result.is_err() {
            records.roll_back();
        }
        result
    }

    /// Whether the fragment reads or writes a single record by itself.
    pub fn is_point(&self) -> bool {
        let fragment = self.fragment();
        fragment.is_keyed() && !fragment.shipped && !fragment.with_children
    }

    #[inline]
    fn frame(&self, fragment: &'a Fragment) -> Frame<'a> {
        let args = self.chunk.args(self.txn);
        let limits = self.registry.limits();
        Frame {
            args: nested_args(args, fragment.call_at),
            db: fragment.db,
            key: key_of(args, fragment),
            now: self.now,
            seed: self.seed,
            inputs: Inputs { slots: self.slots, list: self.chunk.plans().inputs_of(fragment) },
            registry: self.registry,
            share: limits.share(self.txn.carriers),
            most: limits.reply,
        }
    }
}

/// The name of a fragment's record; empty if it has none.
#[inline]
pub(crate) fn name_of<'a>(chunk: &'a Chunk, txn: &Txn, fragment: &Fragment) -> Name<'a> {
    Name { db: fragment.db, key: key_of(chunk.args(txn), fragment).bytes, hash: fragment.hash }
}

/// Calls a fragment's code on what it works on.
#[inline(always)]
fn call<'a>(
    code: &dyn Procedure,
    fragment: &Fragment,
    frame: Frame<'a>,
    (target, version, children): (Target<'a>, Version, Option<&'a mut dyn Children>),
    locals: &'a mut Locals,
    out: &'a mut Vec<u8>,
) -> Result<(), Abort> {
    let mut cx = frame.on(target, version, children, locals, out);
    guarded(fragment.abortable, || code.run(fragment.code, &mut cx))
}

/// Runs code; a panic of an abortable fragment is an abort like any other, the same on every replica. A panic of any other
/// fragment is a bug of ours and stops the node (`docs/protocols/qstore.md`, Q27).
///
/// # Errors
/// As the code, or [`Abort::Panic`].
#[inline]
pub fn guarded(abortable: bool, run: impl FnOnce() -> Result<(), Abort>) -> Result<(), Abort> {
    if !abortable {
        return run();
    }
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text =
            panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        // A bug of ours whatever the fragment is: a replica that has the value in memory would not abort.
        if text.is_some_and(|text| text.contains(EVICTED)) {
            resume_unwind(panic);
        }
        Err(Abort::Panic)
    })
}
