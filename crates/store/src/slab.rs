//! Where records lie: one cache line each, in chunks that never move.
//!
//! The line holds all that finding, locking and reading a record needs, except the bytes of the value and of
//! a long key: key, lock word, version and the cell's header (calvin.md, section 9). A chunk is filled as it
//! is needed and never copied, so adding a record costs the same at a thousand and at a hundred million.

use ordain_model::{Cell, Db, Gsn, KeyHash, Placement, Value};

use crate::RecordId;
use crate::fetch::fetch_bytes;

/// The longest key that lies in the record's own line.
pub(crate) const SHORT_KEY: usize = 16;
/// A chunk of a MiB: the allocator adds some 64 KiB to an allocation that is large and aligned.
const CHUNK_BITS: u32 = 14;
const CHUNK: usize = 1 << CHUNK_BITS;

/// A record, a placeholder for an absent one, or a vacant place.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Record {
    /// Its content; absent in a placeholder.
    pub(crate) cell: Cell,
    /// Who wrote the content; [`Gsn::NONE`] if it is absent.
    pub(crate) version: Gsn,
    head: Head,
}

/// Lock word and name. They share an enum because a `Box` next to an inline alternative would cost a word
/// for the discriminant alone. What the record held before is elsewhere (`versions.rs`), as few have any at a time;
/// the mark tells without a look there that the newest of that was not replaced by a certain epoch.
///
/// Beside it stand whether the record is noted as one whose content is not in the digest (`totals.rs`), and whether it was used of late
/// (`eviction.rs`): with the length of a short key, as its highest bits.
#[derive(Debug)]
enum Head {
    Vacant { next: Option<RecordId>, is_noted: bool },
    Short { lock: u32, db: Db, mark: u8, len: u8, key: [u8; SHORT_KEY] },
    Long { lock: u32, db: Db, mark: u8, flags: u8, key: Box<[u8]> },
}

/// The bits of a short key's length, and of the flags of a long one, that say whether the record is noted, and whether it was used.
const NOTED: u8 = 0x80;
const USED: u8 = 0x40;
const FLAGS: u8 = NOTED | USED;

const _: () = assert!(size_of::<Record>() == 64 && size_of::<Head>() == 24);

const STALE: &str = "a record's id is not used after the record was released";

impl Record {
    fn new(db: Db, key: &[u8]) -> Record {
        let head = if key.len() <= SHORT_KEY {
            let mut bytes = [0; SHORT_KEY];
            bytes[..key.len()].copy_from_slice(key);
            Head::Short { lock: 0, db, mark: 0, len: key.len() as u8, key: bytes }
        } else {
            Head::Long { lock: 0, db, mark: 0, flags: 0, key: key.into() }
        };
        Record { cell: Cell::ABSENT, version: Gsn::NONE, head }
    }

    /// Whether this is the record of that key.
    #[inline]
    pub(crate) fn is(&self, db: Db, key: &[u8]) -> bool {
        match &self.head {
            Head::Short { db: d, len, key: k, .. } => {
                *d == db
                    && (*len & !FLAGS) as usize == key.len()
                    && k.get(..key.len()).is_some_and(|k| is_same(k, key))
            }
            Head::Long { db: d, key: k, .. } => *d == db && **k == *key,
            Head::Vacant { .. } => false,
        }
    }

    pub(crate) fn is_vacant(&self) -> bool {
        matches!(self.head, Head::Vacant { .. })
    }

    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        match &self.head {
            Head::Short { len, key, .. } => &key[..(*len & !FLAGS) as usize],
            Head::Long { key, .. } => key,
            Head::Vacant { .. } => unreachable!("{STALE}"),
        }
    }

    #[inline]
    pub(crate) fn db(&self) -> Db {
        match &self.head {
            Head::Short { db, .. } | Head::Long { db, .. } => *db,
            Head::Vacant { .. } => unreachable!("{STALE}"),
        }
    }

    pub(crate) fn rename(&mut self, to: Db) {
        match &mut self.head {
            Head::Short { db, .. } | Head::Long { db, .. } => *db = to,
            Head::Vacant { .. } => unreachable!("{STALE}"),
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> u32 {
        match &self.head {
            Head::Short { lock, .. } | Head::Long { lock, .. } => *lock,
            Head::Vacant { .. } => unreachable!("{STALE}"),
        }
    }

    #[inline]
    pub(crate) fn set_lock(&mut self, word: u32) {
        match &mut self.head {
            Head::Short { lock, .. } | Head::Long { lock, .. } => *lock = word,
            Head::Vacant { .. } => unreachable!("{STALE}"),
        }
    }

    #[inline]
    pub(crate) fn mark(&self) -> u8 {
        match &self.head {
            Head::Short { mark, .. } | Head::Long { mark, .. } => *mark,
            Head::Vacant { .. } => unreachable!("{STALE}"),
        }
    }

    #[inline]
    pub(crate) fn set_mark(&mut self, to: u8) {
        match &mut self.head {
            Head::Short { mark, .. } | Head::Long { mark, .. } => *mark = to,
            Head::Vacant { .. } => unreachable!("{STALE}"),
        }
    }

    /// Whether the record, or its place if it is vacant, is noted as one whose content is not in the digest.
    #[inline]
    pub(crate) fn is_noted(&self) -> bool {
        match &self.head {
            Head::Short { len: flags, .. } | Head::Long { flags, .. } => flags & NOTED != 0,
            Head::Vacant { is_noted, .. } => *is_noted,
        }
    }

    #[inline]
    pub(crate) fn note(&mut self, to: bool) {
        match &mut self.head {
            Head::Short { len: flags, .. } | Head::Long { flags, .. } => {
                *flags = *flags & !NOTED | if to { NOTED } else { 0 };
            }
            Head::Vacant { is_noted, .. } => *is_noted = to,
        }
    }

    /// Notes that the record is used.
    #[inline]
    pub(crate) fn set_used(&mut self) {
        if let Head::Short { len: flags, .. } | Head::Long { flags, .. } = &mut self.head {
            *flags |= USED;
        }
    }

    /// Clears the note that the record is used, and tells whether it was set.
    pub(crate) fn take_used(&mut self) -> bool {
        let (Head::Short { len: flags, .. } | Head::Long { flags, .. }) = &mut self.head else {
            return false;
        };
        let was_used = *flags & USED != 0;
        *flags &= !USED;
        was_used
    }

    /// Has what lies outside the record's line on its way to the cache.
    #[inline]
    pub(crate) fn fetch_heap(&self) {
        if let Some(Value::String(value)) = &self.cell.value {
            fetch_bytes(value);
        }
        if let Head::Long { key, .. } = &self.head {
            fetch_bytes(key);
        }
    }

    /// Hashes the key anew: it is not kept, and asked for only when a record goes or its expiry changes.
    pub(crate) fn hash(&self, placement: &Placement) -> KeyHash {
        placement.hash_of_record(self.db(), self.key())
    }

    /// Bytes that the key holds beside the record.
    #[inline]
    pub(crate) fn key_heap_bytes(&self) -> usize {
        match &self.head {
            Head::Long { key, .. } => key.len(),
            _ => 0,
        }
    }
}

/// Whether two short keys of one length are the same.
///
/// The library's comparison reads 32 bytes at once and ignores what is too much. From a key in a record's line that
/// reaches into the line behind, which is somebody else's and in no cache: it cost a quarter of an access.
#[inline]
fn is_same(a: &[u8], b: &[u8]) -> bool {
    match a.len() {
        8.. => a.first_chunk::<8>() == b.first_chunk::<8>() && a.last_chunk::<8>() == b.last_chunk::<8>(),
        4.. => a.first_chunk::<4>() == b.first_chunk::<4>() && a.last_chunk::<4>() == b.last_chunk::<4>(),
        _ => a.iter().eq(b),
    }
}

const _: () = assert!(SHORT_KEY <= 16);

/// All records of a store, by number.
#[derive(Debug, Default)]
pub(crate) struct Slab {
    /// All but the last hold `CHUNK` records.
    chunks: Vec<Vec<Record>>,
    /// The vacant place that was vacated last.
    vacant: Option<RecordId>,
}

impl Slab {
    #[inline]
    pub(crate) fn get(&self, id: RecordId) -> &Record {
        &self.chunks[(id.0 >> CHUNK_BITS) as usize][id.0 as usize % CHUNK]
    }

    /// The record of a number that may have been given before all were cleared.
    #[inline]
    pub(crate) fn find(&self, id: RecordId) -> Option<&Record> {
        self.chunks.get((id.0 >> CHUNK_BITS) as usize)?.get(id.0 as usize % CHUNK)
    }

    /// Leaves no place at all; answers the chunks with what was there.
    pub(crate) fn clear(&mut self) -> Vec<Vec<Record>> {
        self.vacant = None;
        std::mem::take(&mut self.chunks)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: RecordId) -> &mut Record {
        &mut self.chunks[(id.0 >> CHUNK_BITS) as usize][id.0 as usize % CHUNK]
    }

    /// Makes a placeholder.
    ///
    /// # Panics
    /// At 2^32 - 1 records, which would take 256 GiB for their lines alone.
    pub(crate) fn add(&mut self, db: Db, key: &[u8]) -> RecordId {
        let record = Record::new(db, key);
        if let Some(id) = self.vacant {
            let place = self.get_mut(id);
            let Head::Vacant { next, is_noted } = place.head else {
                unreachable!("the list holds vacant places only")
            };
            *place = record;
            place.note(is_noted);
            self.vacant = next;
            return id;
        }
        self.add_place(record)
    }

    /// Makes a placeholder in a place that is not noted.
    ///
    /// # Panics
    /// As [`Slab::add`].
    pub(crate) fn add_settled(&mut self, db: Db, key: &[u8]) -> RecordId {
        match self.vacant {
            Some(id) if self.get(id).is_noted() => self.add_place(Record::new(db, key)),
            _ => self.add(db, key),
        }
    }

    fn add_place(&mut self, record: Record) -> RecordId {
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let number = self.chunks.len() - 1;
        let chunk = &mut self.chunks[number];
        let id = number * CHUNK + chunk.len();
        chunk.push(record);
        let id = u32::try_from(id).ok().filter(|&id| id < u32::MAX);
        RecordId(id.expect("a shard's memory does not hold 2^32 records"))
    }

    /// Vacates a record's place. If that is noted it stays so.
    pub(crate) fn free(&mut self, id: RecordId) {
        let next = self.vacant.replace(id);
        let record = self.get_mut(id);
        let head = Head::Vacant { next, is_noted: record.is_noted() };
        *record = Record { cell: Cell::ABSENT, version: Gsn::NONE, head };
    }

    /// All places that are not vacant.
    #[cfg(test)]
    pub(crate) fn records(&self) -> impl Iterator<Item = &Record> {
        self.chunks.iter().flatten().filter(|record| !record.is_vacant())
    }

    /// The number of places, vacant ones included.
    pub(crate) fn places(&self) -> usize {
        self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * CHUNK + last.len())
    }

    /// Bytes of memory used so far, those of keys and values beside the records excluded.
    pub(crate) fn bytes(&self) -> usize {
        self.places() * size_of::<Record>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again_and_others_stay() {
        let mut slab = Slab::default();
        let ids: Vec<RecordId> = (0..3 * CHUNK).map(|i| slab.add(Db(0), &i.to_le_bytes())).collect();
        let bytes = slab.bytes();
        for &id in ids.iter().step_by(2) {
            slab.free(id);
            assert!(slab.get(id).is_vacant() && !slab.get(id).is(Db(0), &[]));
        }
        for i in 0..3 * CHUNK / 2 {
            slab.add(Db(1), format!("a key that is too long to lie in the line {i}").as_bytes());
        }
        assert_eq!(slab.bytes(), bytes);
        assert_eq!(slab.records().filter(|r| r.db() == Db(0)).count(), 3 * CHUNK / 2);
        assert!(slab.get(ids[1]).is(Db(0), &1usize.to_le_bytes()));
    }

    #[test]
    fn keys_of_every_length_are_kept_whole() {
        let mut slab = Slab::default();
        for len in [0, 1, SHORT_KEY - 1, SHORT_KEY, SHORT_KEY + 1, 5000] {
            let key = vec![7; len];
            let id = slab.add(Db(3), &key);
            let record = slab.get(id);
            assert_eq!(record.key(), key);
            assert!(record.is(Db(3), &key) && !record.is(Db(2), &key));
            assert!(!record.is(Db(3), &[&key[..], b"\0"].concat()));
            assert_eq!(record.key_heap_bytes(), if len > SHORT_KEY { len } else { 0 });
        }
    }

    #[test]
    fn short_keys_are_told_apart_by_every_byte() {
        for len in 0..=SHORT_KEY {
            let key: Vec<u8> = (0..len as u8).collect();
            assert!(is_same(&key, &key.clone()));
            for at in 0..len {
                let mut other = key.clone();
                other[at] ^= 0x10;
                assert!(!is_same(&key, &other) && !is_same(&other, &key), "{len} {at}");
            }
        }
    }

    #[test]
    fn the_lock_word_and_the_name_do_not_disturb_each_other() {
        let mut slab = Slab::default();
        for key in [&b"short"[..], b"longer than sixteen bytes"] {
            let id = slab.add(Db(1), key);
            slab.get_mut(id).set_lock(u32::MAX);
            slab.get_mut(id).rename(Db(9));
            let record = slab.get(id);
            assert_eq!((record.lock(), record.db(), record.key()), (u32::MAX, Db(9), key));
        }
    }
}
