//! Execution in the order of stamps, for engines that have no log of what they execute: what is known of a transaction differs.
//!
//! One whose request and seed are known is run. The others are known by what they have left, or by their answers alone, and
//! then their seeds are not known.

use super::{Before, Circumstances, Key, MapTable, Record, ReferenceExecutor, Result};
use crate::cell::Cell;
use crate::chunk::{Chunk, Txn};
use crate::ids::{Db, Gsn, Millis};
use crate::table::Table;

impl ReferenceExecutor {
    /// Runs one transaction under circumstances of its own.
    pub fn run_under(&mut self, under: Circumstances, chunk: &Chunk, txn: &Txn) -> Result {
        self.run_kept(under, chunk, txn)
    }

    /// Runs one transaction and takes back what it has changed. Answers whether it has committed a change of what is there at its time.
    pub fn try_under(&mut self, under: Circumstances, chunk: &Chunk, txn: &Txn) -> (Result, bool) {
        let mut before = self.images(chunk, txn);
        let result = self.run_alone(under, chunk, txn, &mut before);
        let is_commit = result.status == crate::OutcomeStatus::Committed;
        let has_changed = is_commit && self.differs(&before, under.now);
        self.restore(before);
        (result, has_changed)
    }

    /// Leaves a record as a transaction has that is not run; removes one that is absent then.
    pub fn leave(&mut self, db: Db, key: &[u8], cell: Cell, version: Gsn) {
        match cell.value {
            Some(_) => self.put_back(db, key, cell, version),
            None => _ = self.map.remove(&self.name(db, key)),
        }
    }

    /// Every record, for a change by a transaction that is not run.
    pub fn table(&mut self, version: Gsn) -> impl Table + '_ {
        MapTable { map: &mut self.map, gsn: version }
    }

    /// The record with a name at a time.
    pub fn record(&self, db: Db, key: &[u8], now: Millis) -> &Cell {
        live(self.map.get(&self.name(db, key)), now)
    }

    /// True if a record is another at a time than before.
    fn differs(&self, before: &Before, now: Millis) -> bool {
        let differs = |at: &Key, before: Option<&Record>| live(before, now) != live(self.map.get(at), now);
        match before {
            Before::Nothing => false,
            Before::Records(records) => records.iter().any(|(at, before)| differs(at, before.as_ref())),
            Before::Map(map) => {
                let mut names = map.keys().chain(self.map.keys());
                names.any(|at| differs(at, map.get(at)))
            }
        }
    }
}

fn live(record: Option<&Record>, now: Millis) -> &Cell {
    record.filter(|record| record.cell.is_live(now)).map_or(&Cell::ABSENT, |record| &record.cell)
}
