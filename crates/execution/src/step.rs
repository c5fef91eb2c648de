//! One step of a transaction: a fragment, its inputs, and the record that it runs on.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ordain_model::cell::CellMut;
use ordain_model::plan::nested_args;
use ordain_model::procedure::{Inputs, Locals, Slots, Target};
use ordain_model::serial::key_of;
use ordain_model::{
    Abort, Access, Cell, Chunk, Db, Fragment, FragmentContext, KeyHash, Millis, Registry, Txn, Version,
};

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

/// Records as one transaction sees them.
pub trait Records {
    /// Runs code that reads a record, with the version of its content: [`Version::NONE`] if it is absent or its time has come
    /// by `now`.
    fn read<R>(&mut self, name: Name<'_>, now: Millis, run: impl FnOnce(&Cell, Version) -> R) -> R;

    /// Runs code that writes a record, with the version of the content before.
    fn write<R>(&mut self, name: Name<'_>, now: Millis, run: impl FnOnce(CellMut<'_>, Version) -> R) -> R;
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
    pub fn fragment(&self) -> &'a Fragment {
        &self.chunk.fragments(self.txn)[self.n]
    }

    /// The name of the fragment's record; empty if it has none.
    pub fn name(&self) -> Name<'a> {
        let fragment = self.fragment();
        Name { db: fragment.db, key: key_of(self.chunk.args(self.txn), fragment).bytes, hash: fragment.hash }
    }

    /// Runs the fragment, which reads or writes one record by itself, and appends its result to `out`.
    ///
    /// # Errors
    /// The fragment aborts its transaction; `out` has what it answers then.
    ///
    /// # Panics
    /// If the fragment is of another kind ([`Step::is_point`]), or if it panics and is not abortable.
    pub fn run(
        self,
        records: &mut impl Records,
        locals: &mut Locals,
        out: &mut Vec<u8>,
    ) -> Result<(), Abort> {
        let (fragment, name) = (self.fragment(), self.name());
        let Some(code) = self.registry.get(fragment.procedure) else { return Err(Abort::Panic) };
        let args = self.chunk.args(self.txn);
        let cx = FragmentContext {
            args: nested_args(args, fragment.call_at),
            db: fragment.db,
            key: key_of(args, fragment),
            now: self.now,
            seed: self.seed,
            version: Version::NONE,
            inputs: Inputs { slots: self.slots, list: self.chunk.plans().inputs_of(fragment) },
            target: Target::Read(&Cell::ABSENT),
            children: None,
            locals,
            registry: self.registry,
            share: self.registry.limits().share(self.txn.carriers),
            most: self.registry.limits().reply,
            out,
        };
        assert!(
            self.is_point(),
            "the fragment is not one that reads or writes a single record: {fragment:?}"
        );
        match fragment.access {
            Access::Write => records.write(name, self.now, |cell, version| {
                let mut cx = FragmentContext { target: Target::Write(cell), version, children: None, ..cx };
                guarded(fragment.abortable, || code.run(fragment.code, &mut cx))
            }),
            _ => records.read(name, self.now, |cell, version| {
                let mut cx = FragmentContext { target: Target::Read(cell), version, children: None, ..cx };
                guarded(fragment.abortable, || code.run(fragment.code, &mut cx))
            }),
        }
    }

    /// Whether the fragment reads or writes a single record by itself.
    pub fn is_point(&self) -> bool {
        let fragment = self.fragment();
        fragment.is_keyed() && !fragment.shipped && !fragment.with_children
    }
}

/// Runs code; a panic of an abortable fragment is an abort like any other. A panic of any other fragment is a bug of ours
/// and stops the node.
///
/// # Errors
/// As the code, or [`Abort::Panic`].
#[inline]
pub fn guarded(abortable: bool, run: impl FnOnce() -> Result<(), Abort>) -> Result<(), Abort> {
    if abortable { catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(Abort::Panic)) } else { run() }
}
