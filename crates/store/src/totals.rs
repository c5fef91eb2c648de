//! What the records of a store add up to, kept as they change so that asking costs nothing.

use ordain_model::value::record_hash;
use ordain_model::{Db, Digest};

use crate::slab::Record;

/// What one record's content contributes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    hash: u128,
    size: Size,
}

/// The part of a share that is known without reading the value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    heap_bytes: u64,
    expires: bool,
}

impl Size {
    #[inline]
    pub(crate) fn of(record: &Record) -> Option<Size> {
        let value = record.cell.value.as_ref()?;
        Some(Size { heap_bytes: value.heap_bytes() as u64, expires: record.cell.expires_at.0 != 0 })
    }
}

impl Share {
    /// The share of a record; none if it has no content.
    #[inline]
    pub(crate) fn of(record: &Record) -> Option<Share> {
        let value = record.cell.value.as_ref()?;
        let hash = record_hash(record.db(), record.key(), value, record.cell.expires_at);
        Size::of(record).map(|size| Share { hash, size })
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Database {
    records: u64,
    hashes: u128,
}

/// The sums. A database has its own, so that clearing it reads no value.
#[derive(Debug)]
pub(crate) struct Totals {
    databases: Box<[Database; 256]>,
    /// Of all databases together.
    digest: Digest,
    /// Of each slot, in order, how many records have an expiry: the sweep passes over slots without any.
    expiring: Vec<u32>,
    first_slot: usize,
    pub(crate) value_bytes: u64,
    pub(crate) key_bytes: u64,
    pub(crate) index_bytes: u64,
}

impl Totals {
    pub(crate) fn new(slots: &std::ops::Range<usize>) -> Totals {
        Totals {
            databases: Box::new([Database::default(); 256]),
            digest: Digest::default(),
            expiring: vec![0; slots.len()],
            first_slot: slots.start,
            value_bytes: 0,
            key_bytes: 0,
            index_bytes: 0,
        }
    }

    /// So many slots more, before the first, which is another then, and after the last.
    pub(crate) fn own(&mut self, first_slot: usize, before: usize, after: usize) {
        self.expiring.splice(0..0, std::iter::repeat_n(0, before));
        self.expiring.extend(std::iter::repeat_n(0, after));
        self.first_slot = first_slot;
    }

    pub(crate) fn records(&self, db: Db) -> u64 {
        self.databases[db.0 as usize].records
    }

    /// How many records of the slot, counted from the first, have an expiry.
    pub(crate) fn expiring(&self, slot: usize) -> u32 {
        self.expiring[slot]
    }

    pub(crate) const fn digest(&self) -> Digest {
        self.digest
    }

    /// A record's share has become another.
    #[inline]
    pub(crate) fn exchange(&mut self, record: &Record, before: Option<Share>, after: Option<Share>) {
        let database = &mut self.databases[record.db().0 as usize];
        if let Some(share) = before {
            database.records -= 1;
            database.hashes = database.hashes.wrapping_sub(share.hash);
            self.value_bytes -= share.size.heap_bytes;
            self.digest.remove(share.hash);
        }
        if let Some(share) = after {
            database.records += 1;
            database.hashes = database.hashes.wrapping_add(share.hash);
            self.value_bytes += share.size.heap_bytes;
            self.digest.add(share.hash);
        }
        let expires = |share: Option<Share>| share.is_some_and(|share| share.size.expires);
        if expires(before) != expires(after) {
            let expiring = &mut self.expiring[record.hash().slot() - self.first_slot];
            if expires(after) { *expiring += 1 } else { *expiring -= 1 }
        }
    }

    /// An index has become larger or smaller.
    #[inline]
    pub(crate) fn index_resized(&mut self, before: usize, after: usize) {
        self.index_bytes = self.index_bytes + after as u64 - before as u64;
    }

    /// A record loses its content because its database is cleared; [`Totals::cleared`] does the rest.
    pub(crate) fn clear_one(&mut self, slot: usize, size: Size) {
        self.value_bytes -= size.heap_bytes;
        self.expiring[slot] -= u32::from(size.expires);
    }

    /// Every record of a database has lost its content.
    pub(crate) fn cleared(&mut self, db: Db) {
        let Database { records, hashes } = std::mem::take(&mut self.databases[db.0 as usize]);
        self.digest = self.digest.minus(Digest { sum: hashes, records: records as u32 });
    }
}
