//! The overlay of a view: what transactions of this region have committed in the other one, until its log tells of that (regions.md, 4.12).
//!
//! A transaction is taken in when its part is asked for, so that the log never tells of it first. It is shown from its commit on, all of its
//! records at once, and goes when the view has applied its outcome. The version of a record is the place of that outcome, which the other
//! region alone knows at first: until it has told that, a read names the transaction.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use ordain_execution::Write;
use ordain_model::{Cell, Epoch, Gsn};
use ordain_role::{Bug, Bugs};
use ordain_store::{MemoryStore, RecordId, RecordStore};

use crate::ids::AttemptId;

/// The most records of an overlay: a transaction that would make it larger is not taken in.
const RECORDS_MAX: usize = 16_384;
/// The most bytes of their contents and keys, about.
const BYTES_MAX: usize = 8 << 20;

/// News for a view about a transaction of its own region that writes in the other one.
#[derive(Clone, Debug)]
pub enum Laid {
    /// The other region is asked for its part of this transaction, which writes these records there.
    Asked(AttemptId, Vec<Write>),
    /// The transaction has committed.
    Committed(AttemptId),
    /// Its outcome stands at this place of the other region's log, and is durable.
    Placed(AttemptId, Epoch),
    /// The transaction has not committed and never will.
    Dropped(AttemptId),
    /// The view has applied its outcome, at this place.
    Told(AttemptId, Epoch),
    /// The region's server begins or ends a term, or the view has begun with a checkpoint: nothing is known of any transaction.
    Cleared,
}

/// The origin of a content that a view shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The log, with this version.
    Log(Gsn),
    /// A transaction of the own region, of which the log has not told.
    Own(AttemptId),
}

/// A transaction of this region, as far as it has written in the other one.
#[derive(Debug, Default)]
struct Written {
    cells: BTreeMap<RecordId, Cell>,
    bytes: usize,
    has_committed: bool,
    /// The place of its outcome in the other region's log, once that has told it.
    place: Option<Gsn>,
}

impl Written {
    /// The version of what it has left, and the transaction by which a read names that, if nothing else is known.
    fn version(&self, of: AttemptId, cell: &Cell) -> (Gsn, Option<AttemptId>) {
        let by = self.place.is_none().then_some(of);
        match (&cell.value, self.place) {
            (None, _) => (Gsn::NONE, by),
            (Some(_), Some(place)) => (place, None),
            (Some(_), None) => (unplaced(of), by),
        }
    }
}

/// A number that stands for the version of what a transaction has left, while its place is not known: that of no place.
const fn unplaced(of: AttemptId) -> Gsn {
    Gsn(1 << 63 | of.seed() >> 1)
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    own: BTreeMap<AttemptId, Written>,
    /// The committed ones of each record, in the order in which their commits were heard of. The last one's content is shown.
    shown: BTreeMap<RecordId, Vec<AttemptId>>,
    records: usize,
    bytes: usize,
    /// Transactions that were not taken in, for want of space.
    left_out: u64,
    /// The last place of which the log has told something here.
    told: Epoch,
}

impl Overlay {
    /// The log has told of something at a place.
    pub(super) fn pass(&mut self, place: Epoch) {
        self.told = self.told.max(place);
    }

    /// The content that is shown of a record, with the transaction that has left it.
    pub(super) fn content(&self, record: RecordId) -> Option<(&Cell, AttemptId)> {
        let of = *self.shown.get(&record)?.last()?;
        Some((self.own.get(&of)?.cells.get(&record)?, of))
    }

    /// The contents that are shown.
    pub(super) fn contents(&self) -> impl Iterator<Item = (RecordId, &Cell)> {
        self.shown.keys().filter_map(|record| Some((*record, self.content(*record)?.0)))
    }

    /// The version of what a transaction has left in a record, and the transaction, if a read has to name that.
    pub(super) fn version(&self, record: RecordId, of: AttemptId) -> (Gsn, Option<AttemptId>) {
        let written = self.own.get(&of);
        let version = written.and_then(|written| Some(written.version(of, written.cells.get(&record)?)));
        version.unwrap_or((unplaced(of), Some(of)))
    }

    /// Takes in a transaction, whose part is asked for.
    ///
    /// A transaction that changes child records is left out: a view knows those by no version of their own.
    pub(super) fn ask(&mut self, store: &mut MemoryStore, of: AttemptId, writes: Vec<Write>) {
        let has_children = writes.iter().any(|write| write.db.holds_children());
        let bytes: usize = writes.iter().map(|write| write.key.len() + write.cell.weight()).sum();
        let fits = self.records + writes.len() <= RECORDS_MAX && self.bytes + bytes <= BYTES_MAX;
        if has_children || !fits || self.own.contains_key(&of) {
            self.left_out += u64::from(!fits);
            return;
        }
        let mut written = Written { bytes, ..Written::default() };
        for Write { db, key, hash, cell } in writes {
            let record = store.find_or_reserve(db, &key, hash);
            if written.cells.insert(record, cell).is_none() {
                store.set_lock(record, store.lock(record) + 1);
            }
        }
        self.records += written.cells.len();
        self.bytes += bytes;
        self.own.insert(of, written);
    }

    /// A transaction has committed: answers whether more is shown.
    pub(super) fn commit(&mut self, of: AttemptId) -> bool {
        let Some(written) = self.own.get_mut(&of).filter(|written| !written.has_committed) else {
            return false;
        };
        written.has_committed = true;
        for record in written.cells.keys() {
            self.shown.entry(*record).or_default().push(of);
        }
        true
    }

    /// The outcome of a transaction stands at a place; answers whether the log has told of that here already.
    pub(super) fn place(&mut self, of: AttemptId, place: Epoch) -> bool {
        if let Some(written) = self.own.get_mut(&of) {
            written.place = Some(Gsn(place.0));
        }
        place <= self.told
    }

    /// Drops a transaction; adds the records that nobody holds any more, and answers those that it has written.
    pub(super) fn drop_one(
        &mut self,
        store: &mut MemoryStore,
        of: AttemptId,
        released: &mut Vec<RecordId>,
    ) -> Vec<RecordId> {
        let Some(Written { cells, bytes, .. }) = self.own.remove(&of) else { return Vec::new() };
        self.records -= cells.len();
        self.bytes -= bytes;
        for record in cells.keys() {
            if let Some(all) = self.shown.get_mut(record) {
                all.retain(|other| *other != of);
                if all.is_empty() {
                    self.shown.remove(record);
                }
            }
            let holders = store.lock(*record) - 1;
            store.set_lock(*record, holders);
            if holders == 0 {
                released.push(*record);
            }
        }
        cells.into_keys().collect()
    }

    /// The transactions that are taken in.
    pub(super) fn all(&self) -> Vec<AttemptId> {
        self.own.keys().copied().collect()
    }

    /// The records of transactions that are taken in, each as often as one has written it.
    pub(super) fn held(&self) -> impl Iterator<Item = RecordId> + '_ {
        self.own.values().flat_map(|written| written.cells.keys().copied())
    }

    /// Checks what must hold between two events.
    ///
    /// # Errors
    /// The first broken invariant.
    pub(super) fn check(&self) -> Result<(), String> {
        let is_told = |written: &Written| written.place.is_some_and(|place| place.0 <= self.told.0);
        if let Some((of, _)) = self.own.iter().find(|(_, written)| is_told(written)) {
            return Err(format!(
                "the overlay has attempt {of}, of which the log has told: older than the view"
            ));
        }
        let (records, bytes) = (self.held().count(), self.own.values().map(|written| written.bytes).sum());
        if (self.records, self.bytes) != (records, bytes) {
            return Err(format!("the overlay has {records} records of {bytes} bytes, and counts others"));
        }
        let has = |record: &RecordId, of: &AttemptId| {
            let written = self.own.get(of).filter(|written| written.has_committed);
            written.is_some_and(|written| written.cells.contains_key(record))
        };
        match self.shown.iter().find(|(record, all)| all.is_empty() || !all.iter().all(|of| has(record, of)))
        {
            Some((record, all)) => Err(format!("{record:?} is shown by {all:?}, which have not written it")),
            None => Ok(()),
        }
    }

    /// Reports gauges and counters.
    pub(super) fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        report("ordain_view_overlay_records", self.records as f64);
        report("ordain_view_overlay_left_out_total", self.left_out as f64);
    }
}

/// True if a transaction stays in the overlay though the log has told of it.
pub(super) const fn stays(bugs: Bugs) -> bool {
    // Planted, ONE-MOMENT.
    bugs.has(Bug::KeepOverlay)
}
