//! The part of a population of clients that most workloads share: its random numbers, the records that it has yet to
//! load, and the records of the transaction that it made up last.

use std::ops::Range;

use ordain_model::{ArgsBuilder, Random};

use crate::pool::{Drawn, share_of};

/// Population `number` of several, which share the loading of numbered records between them.
#[derive(Clone, Debug)]
pub struct Population {
    pub random: Random,
    to_load: Range<u64>,
    /// The records of the transaction made up last.
    pub drawn: Drawn,
}

impl Population {
    /// The most records that a transaction of loading inserts.
    pub const LOAD_BATCH: usize = 64;

    pub fn new(seed: u64, number: usize, populations: usize, records: u64) -> Population {
        Population::loading(seed, number, share_of(records, number, populations))
    }

    /// Population `number`, which loads these records alone.
    pub fn loading(seed: u64, number: usize, to_load: Range<u64>) -> Population {
        Population { random: Random::stream(seed, number as u64), to_load, drawn: Drawn::default() }
    }

    /// Makes up a transaction that loads the next records, at most `batch`; false if all are loaded.
    pub fn load(&mut self, batch: usize) -> bool {
        self.drawn.begin(batch);
        self.to_load.by_ref().take(batch).for_each(|record| _ = self.drawn.add(record));
        !self.drawn.records().is_empty()
    }

    /// Writes the keys of the records.
    pub fn write_keys<K: AsRef<[u8]>>(&self, key: impl Fn(u64) -> K, args: &mut ArgsBuilder<'_>) {
        self.drawn.records().iter().for_each(|record| _ = args.push(key(*record).as_ref()));
    }
}
