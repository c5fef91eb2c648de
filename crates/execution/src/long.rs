//! Long computations: compute fragments that take longer than an event loop may stand still are given to a work thread.
//!
//! A fragment begins on its event loop, with a bound of [`PATIENCE`] on its work ([`Locals::patience`]). If it gives up, it
//! has done nothing, and the driver's work thread runs it again from its beginning, without a bound. Both runs are functions
//! of the same inputs, so it does not show which of them has come to the end. Its transaction keeps its grants
//! meanwhile, and the records in its hands are away as if a shard of another node computed.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_model::procedure::{Locals, Slots};
use ordain_model::{Abort, Cell, Chunk, Gsn, Millis, ProcedureId, Registry, SlotNo, Stop, Stopwatch};

use crate::shipped::ShippedRecords;
use crate::step::Step;

/// The work that a fragment may do on its event loop, in instructions of a script: some milliseconds.
pub const PATIENCE: u64 = 200_000;

/// A compute fragment that has given up, with all that it needs.
#[derive(Debug)]
pub struct Long {
    /// The chunk that its transaction is in.
    pub chunk: Arc<Chunk>,
    /// The transaction's place in the chunk.
    pub at: usize,
    /// The fragment, counted from the transaction's first.
    pub n: usize,
    /// The number of the transaction, by which an operator is told of it.
    pub number: u64,
    /// The transaction's seed.
    pub seed: u64,
    /// The time that the transaction sees.
    pub now: Millis,
    /// The procedures.
    pub registry: Arc<Registry>,
    /// The answers of earlier fragments that are its inputs.
    pub answers: InputSlots,
    /// The records shipped to it, by fragment.
    pub records: BTreeMap<SlotNo, (Cell, Gsn)>,
}

/// The slots of a fragment's inputs.
#[derive(Debug, Default)]
pub struct InputSlots(BTreeMap<SlotNo, Vec<u8>>);

impl InputSlots {
    /// Copies those of the inputs of a fragment.
    pub fn of_inputs(chunk: &Chunk, at: usize, n: usize, slots: &dyn Slots) -> InputSlots {
        let fragments = chunk.fragments(&chunk.txns()[at]);
        let inputs = chunk.plans().inputs_of(&fragments[n]).iter();
        let answered = inputs.filter(|slot| !fragments[slot.0 as usize].shipped);
        InputSlots(answered.map(|slot| (*slot, slots.slot(*slot).to_vec())).collect())
    }
}

impl Slots for InputSlots {
    fn slot(&self, slot: SlotNo) -> &[u8] {
        self.0.get(&slot).map_or(&[], |bytes| bytes)
    }
}

/// The result of a fragment that was given away.
#[derive(Debug, PartialEq)]
pub struct Computed {
    /// The fragment.
    pub n: usize,
    /// The records that it was shipped for writing, and whether each has changed.
    pub records: Vec<(SlotNo, Cell, bool)>,
    /// Its answer.
    pub answer: Vec<u8>,
    /// Its abort, if it aborts its transaction.
    pub result: Result<(), Abort>,
}

impl Long {
    /// The fragment's procedure, and whether its transaction is in a log, in which case others may compute it too.
    pub fn what(&self) -> (ProcedureId, bool) {
        let txn = &self.chunk.txns()[self.at];
        (self.chunk.fragments(txn)[self.n].procedure, txn.logged)
    }

    /// Runs the fragment to its end, or until the flag is set.
    pub fn run(mut self, stop: Option<Stop>, stopwatch: Option<Arc<dyn Stopwatch>>) -> Computed {
        let Long { chunk, at, n, number: _, seed, now, registry, answers, records } = &mut self;
        let (n, txn) = (*n, &chunk.txns()[*at]);
        let mut shipped = ShippedRecords::of_copies(chunk, txn, n, records);
        let step = Step { registry, chunk, txn, n, now: *now, seed: *seed, slots: &*answers };
        let mut answer = Vec::new();
        let mut locals = Locals::default();
        locals.stop = stop;
        locals.stopwatch = stopwatch;
        let result = step.compute(&mut shipped, |_| false, &mut locals, &mut answer);
        let written = shipped.held.into_iter().filter(|held| held.writable);
        let records = written.map(|held| (held.slot, held.cell, held.changed)).collect();
        Computed { n, records, answer, result }
    }
}
