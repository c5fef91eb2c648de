//! What the records of a store add up to, kept as they change.
//!
//! The hashes of contents are summed up late: to hash what is written, and once more when it is replaced, was a sixth of what a
//! write cost. When a record is changed its hash is taken out of the sums, and the record *noted*; as long as it is, it
//! is not hashed again. What is noted is summed up before somebody asks (`settle`), or else only looked at. Where
//! somebody asks all the time nothing is noted: what is written is hashed at once, while it is near.

use ordain_model::table::Expiring;
use ordain_model::value::{name_hash, named_hash};
use ordain_model::{Db, Digest, Expiry, Placement};

use crate::RecordId;
use crate::fetch::fetch;
use crate::handover::{Sum, Sums};
use crate::slab::{Record, Slab};

/// So many records ahead of the one that is hashed are fetched, and the values of half as many.
const AHEAD: usize = 16;

/// What the content of a record that is about to change contributes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// That of its name and that of all of it. Nothing, if that is not in the sums.
    hashes: Option<(u64, u128)>,
    size: Option<Size>,
}

/// The part of a share that is known without reading the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    heap_bytes: u64,
    expires_at: Expiry,
}

impl Size {
    #[inline]
    pub(crate) fn of(record: &Record) -> Option<Size> {
        let value = record.cell.value.as_ref()?;
        Some(Size { heap_bytes: value.heap_bytes() as u64, expires_at: record.cell.expires_at })
    }
}

impl Share {
    #[inline]
    pub(crate) fn of(record: &Record) -> Share {
        let value = record.cell.value.as_ref().filter(|_| !record.is_noted());
        let hashes = value.map(|value| {
            let name = name_hash(record.db(), record.key());
            (name, named_hash(name, value, record.cell.expires_at))
        });
        Share { hashes, size: Size::of(record) }
    }
}

/// The hash of a record, if it has content.
#[inline]
pub(crate) fn hash_of(record: &Record) -> Option<u128> {
    named_hash_of(None, record)
}

/// The same, if that of its name may be known.
#[inline]
fn named_hash_of(name: Option<u64>, record: &Record) -> Option<u128> {
    let value = record.cell.value.as_ref()?;
    let name = name.unwrap_or_else(|| name_hash(record.db(), record.key()));
    Some(named_hash(name, value, record.cell.expires_at))
}

#[derive(Clone, Copy, Debug, Default)]
struct Database {
    records: u64,
    hashes: u128,
    expiring: Expiring,
}

/// The sums. A database has its own, so that clearing it reads no value.
#[derive(Debug)]
pub(crate) struct Totals {
    databases: Box<[Database; 256]>,
    /// Of all databases together.
    digest: Digest,
    /// The places that are noted, each once: the hashes of what is there are not in the sums.
    noted: Vec<RecordId>,
    /// Nothing is noted: somebody asks all the time.
    at_once: bool,
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
            noted: Vec::new(),
            at_once: false,
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

    /// What the expiries of a database's records add up to.
    pub(crate) fn expiring_of(&self, db: Db) -> Expiring {
        self.databases[db.0 as usize].expiring
    }

    /// How many records of the slot, counted from the first, have an expiry.
    pub(crate) fn expiring(&self, slot: usize) -> u32 {
        self.expiring[slot]
    }

    /// How many records there are in all databases together.
    pub(crate) const fn all_records(&self) -> u32 {
        self.digest.records
    }

    /// The digest of all content. What is noted is hashed for it.
    pub(crate) fn digest(&self, slab: &Slab) -> Digest {
        let noted = self.noted.iter().filter_map(|id| hash_of(slab.get(*id)));
        Digest { sum: noted.fold(self.digest.sum, u128::wrapping_add), ..self.digest }
    }

    /// Nothing is noted from now on.
    pub(crate) fn settle_at_once(&mut self, slab: &mut Slab) {
        self.settle(slab, usize::MAX);
        self.at_once = true;
    }

    /// How many records are noted.
    pub(crate) const fn noted(&self) -> usize {
        self.noted.len()
    }

    /// Bytes of memory by which they are.
    pub(crate) const fn noted_bytes(&self) -> usize {
        self.noted.capacity() * size_of::<RecordId>()
    }

    /// Sums up what is noted, at most so much of it.
    pub(crate) fn settle(&mut self, slab: &mut Slab, most: usize) {
        let Totals { databases, digest, noted, .. } = self;
        let begin = noted.len().saturating_sub(most);
        for at in begin..noted.len() {
            // They lie anywhere: their misses overlap.
            if let Some(id) = noted.get(at + AHEAD) {
                fetch(slab.get(*id));
            }
            if let Some(id) = noted.get(at + AHEAD / 2) {
                slab.get(*id).fetch_heap();
            }
            let record = slab.get_mut(noted[at]);
            record.note(false);
            if let Some(hash) = hash_of(record) {
                let database = &mut databases[record.db().0 as usize];
                database.hashes = database.hashes.wrapping_add(hash);
                digest.sum = digest.sum.wrapping_add(hash);
            }
        }
        noted.truncate(begin);
    }

    /// The content of a record has changed.
    #[inline]
    pub(crate) fn exchange(
        &mut self,
        id: RecordId,
        record: &mut Record,
        before: Share,
        placement: &Placement,
    ) {
        // Mostly it is as large as it was, and was noted before if that is done here.
        let is_as_large = before.size.is_some() && before.size == Size::of(record);
        match before.hashes {
            None if is_as_large && record.is_noted() => {}
            Some((name, hash)) if is_as_large && self.at_once => {
                let change = named_hash_of(Some(name), record).unwrap_or_default().wrapping_sub(hash);
                self.add(record.db(), change);
            }
            _ => self.exchange_all(id, record, before, placement),
        }
    }

    /// The hashes of a database's contents add up to so much more.
    #[inline]
    fn add(&mut self, db: Db, hash: u128) {
        let database = &mut self.databases[db.0 as usize];
        database.hashes = database.hashes.wrapping_add(hash);
        self.digest.sum = self.digest.sum.wrapping_add(hash);
    }

    #[inline(never)]
    fn exchange_all(&mut self, id: RecordId, record: &mut Record, before: Share, placement: &Placement) {
        let after = Size::of(record);
        if let Some((_, hash)) = before.hashes {
            self.add(record.db(), hash.wrapping_neg());
        }
        if let Some(size) = before.size {
            self.databases[record.db().0 as usize].records -= 1;
            self.digest.records = self.digest.records.wrapping_sub(1);
            self.value_bytes -= size.heap_bytes;
        }
        if let Some(size) = after {
            self.databases[record.db().0 as usize].records += 1;
            self.digest.records = self.digest.records.wrapping_add(1);
            self.value_bytes += size.heap_bytes;
            if self.at_once {
                let name = before.hashes.map(|(name, _)| name);
                self.add(record.db(), named_hash_of(name, record).unwrap_or_default());
            } else if !record.is_noted() {
                record.note(true);
                self.noted.push(id);
            }
        }
        let time = |size: Option<Size>| size.map_or(0, |size| size.expires_at.time().0);
        let (from, to) = (time(before.size), time(after));
        if from != to {
            let sum = &mut self.databases[record.db().0 as usize].expiring;
            sum.records = sum.records + u64::from(to != 0) - u64::from(from != 0);
            sum.at_sum_ms = sum.at_sum_ms + u128::from(to) - u128::from(from);
        }
        if (from != 0) != (to != 0) {
            let expiring = &mut self.expiring[record.hash(placement).slot() - self.first_slot];
            if to != 0 { *expiring += 1 } else { *expiring -= 1 }
        }
    }

    /// All records of a slot, counted from the first, have come; none of them is noted. Their bytes are counted already.
    pub(crate) fn gain(&mut self, slot: usize, sums: &Sums) {
        for (db, sum) in &sums.databases {
            let database = &mut self.databases[db.0 as usize];
            database.records += u64::from(sum.digest.records);
            database.hashes = database.hashes.wrapping_add(sum.digest.sum);
            database.expiring.records += sum.expiring.records;
            database.expiring.at_sum_ms += sum.expiring.at_sum_ms;
            self.digest = self.digest.plus(sum.digest);
            self.expiring[slot] += sum.expiring.records as u32;
        }
    }

    /// All records of a slot have gone; none of them is noted. Their bytes are there until they are freed.
    pub(crate) fn lose(&mut self, slot: usize, sums: &Sums) {
        for (db, sum) in &sums.databases {
            let database = &mut self.databases[db.0 as usize];
            database.records -= u64::from(sum.digest.records);
            database.hashes = database.hashes.wrapping_sub(sum.digest.sum);
            database.expiring.records -= sum.expiring.records;
            database.expiring.at_sum_ms -= sum.expiring.at_sum_ms;
            self.digest = self.digest.minus(sum.digest);
            self.expiring[slot] -= sum.expiring.records as u32;
        }
    }

    /// An index has become larger or smaller.
    #[inline]
    pub(crate) fn index_resized(&mut self, before: usize, after: usize) {
        self.index_bytes = self.index_bytes + after as u64 - before as u64;
    }

    /// All records have lost their content, and their places.
    pub(crate) fn clear_all(&mut self) {
        *self = Totals {
            databases: Box::new([Database::default(); 256]),
            digest: Digest::default(),
            noted: Vec::new(),
            at_once: self.at_once,
            expiring: vec![0; self.expiring.len()],
            first_slot: self.first_slot,
            value_bytes: 0,
            key_bytes: 0,
            index_bytes: 0,
        };
    }

    /// All records have gone, and none is noted: what they added up to. Their bytes are there until they are freed.
    pub(crate) fn lose_all(&mut self) -> Sums {
        let mut sums = Sums::default();
        for (db, database) in (0..=u8::MAX).map(Db).zip(self.databases.iter_mut()) {
            let Database { records, hashes, expiring } = std::mem::take(database);
            let sum = Sum { digest: Digest { sum: hashes, records: records as u32 }, expiring };
            if sum != Sum::default() {
                sums.databases.insert(db, sum);
            }
        }
        self.digest = Digest::default();
        self.expiring.fill(0);
        sums
    }

    /// A record loses its content because its database is cleared; [`Totals::cleared`] does the rest.
    pub(crate) fn clear_one(&mut self, slot: usize, size: Size) {
        self.value_bytes -= size.heap_bytes;
        self.expiring[slot] -= u32::from(!size.expires_at.is_never());
    }

    /// Every record of a database has lost its content.
    pub(crate) fn cleared(&mut self, db: Db) {
        let Database { records, hashes, .. } = std::mem::take(&mut self.databases[db.0 as usize]);
        self.digest = self.digest.minus(Digest { sum: hashes, records: records as u32 });
    }
}
