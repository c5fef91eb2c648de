//! Slots that go to another partition, as `ordain cluster move` has it: copied part by part while clients write to them, each
//! step by the answer to the one before, and asked for again when no answer comes.

use ordain_model::key::SLOTS;
use ordain_model::system::{self, CopyPart};
use ordain_model::{ArgsBuilder, Call, Datum, Db, KeyHash, OutcomeStatus, PartitionId, ProcedureId, Random};
use ordain_sim::Workload;

use crate::cluster::relocation::{Relocation, Step};

/// After so many requests of others without an answer a step is asked for again.
const PATIENCE: u32 = 80;

/// A workload beside which slots move.
pub(super) struct Relocating {
    beside: Box<dyn Workload>,
    partitions: u16,
    keys: u64,
    under_way: Option<UnderWay>,
}

struct UnderWay {
    relocation: Relocation,
    to: PartitionId,
    /// The step that has no answer yet, and how many requests ago it was asked for.
    asked: Option<((ProcedureId, Vec<u8>), u32)>,
    /// The step was not asked for before.
    is_first: bool,
    /// How many records and bytes are copied at a time.
    at_a_time: (usize, usize),
}

impl Relocating {
    pub(super) fn new(beside: Box<dyn Workload>, partitions: u16, keys: u64) -> Relocating {
        Relocating { beside, partitions, keys, under_way: None }
    }

    fn begin(&mut self, random: &mut Random) -> UnderWay {
        let prefix = ['a', 'b', 'c', 'l', 'n', 'o', 'p'][random.index(7)];
        let slot = KeyHash::of(format!("{prefix}{}", random.below(self.keys)).as_bytes()).slot();
        let (more, at_a_time) = [(0, 1), (2, 1), (20, 8), (200, 100)][random.index(4)];
        let slots = slot..=(slot + more).min(SLOTS - 1);
        UnderWay {
            relocation: Relocation::new(slots, at_a_time),
            to: PartitionId(random.below(u64::from(self.partitions)) as u16),
            asked: None,
            is_first: true,
            at_a_time: [(1, 100), (3, 1_000), (1_000, 100_000)][random.index(3)],
        }
    }

    /// The step that is due, if one is.
    fn step(&mut self, random: &mut Random) -> Option<(Call, Vec<u8>)> {
        if self.under_way.is_none() && random.chance(15_000) {
            self.under_way = Some(self.begin(random));
        }
        let under_way = self.under_way.as_mut()?;
        if let Some((_, since)) = &mut under_way.asked {
            *since += 1;
            if *since < PATIENCE {
                return None;
            }
            under_way.is_first = false;
        } else if !random.chance(200_000) {
            return None;
        }
        let Some(step) = under_way.relocation.next() else {
            self.under_way = None;
            return None;
        };
        let (to, (records, bytes), mut args) = (under_way.to, under_way.at_a_time, Vec::new());
        let mut builder = ArgsBuilder::new(&mut args);
        let procedure = match step {
            Step::Copy { from, .. } => {
                CopyPart { to, from, records, bytes }.write(&mut builder);
                system::COPY
            }
            Step::Move { first, last } => {
                system::move_args(&(first..last + 1), to, &mut builder);
                system::MOVE
            }
        };
        under_way.asked = Some(((procedure, args.clone()), 0));
        Some((Call::new(procedure, Db(0)), args))
    }
}

impl Workload for Relocating {
    fn next(&mut self, random: &mut Random) -> (Call, Vec<u8>) {
        match self.step(random) {
            Some(step) => step,
            None => self.beside.next(random),
        }
    }

    fn conserved(&self) -> Vec<(ProcedureId, Vec<u8>)> {
        self.beside.conserved()
    }

    fn loads(&self) -> bool {
        self.beside.loads()
    }

    fn load(&mut self, random: &mut Random) -> Option<(Call, Vec<u8>)> {
        self.beside.load(random)
    }

    fn audits(&self) -> Vec<ProcedureId> {
        self.beside.audits()
    }

    fn heard(&mut self, (procedure, args): (ProcedureId, &[u8]), status: OutcomeStatus, reply: &[u8]) {
        let Some(under_way) = &mut self.under_way else { return };
        if under_way.asked.as_ref().is_none_or(|((of, with), _)| (*of, &**with) != (procedure, args)) {
            return;
        }
        under_way.asked = None;
        let next = Datum::first(reply).as_int();
        match (status, next) {
            (OutcomeStatus::Committed, Some(next)) => {
                under_way.relocation.done(next, std::mem::replace(&mut under_way.is_first, true));
            }
            (OutcomeStatus::Committed, None) => {
                under_way.relocation.done(0, std::mem::replace(&mut under_way.is_first, true));
            }
            _ => under_way.is_first = false,
        }
    }
}
