//! The records of one shard: where they lie, how they are found, and what they add up to.
//!
//! A store owns a contiguous run of the slots of the key space and all records in them. It keeps a record's
//! content, the version of that content and one lock word that it does not interpret; it does not know what a
//! transaction, a lock or a log is. [`RecordStore`] is what engines are generic over, [`MemoryStore`] keeps
//! everything in memory.
//!
//! The way to use it: resolve a key to a [`RecordId`] once, then address the record by it. An absent key that
//! is to be locked or written gets a *placeholder*, a record without content, which is invisible to everything
//! that counts, walks or sums records.
//!
//! **An id stays valid** until the record is released, which happens in two ways only, both only while it has
//! no content and its lock word is 0: by [`RecordStore::release_if_absent`], or by an operation over the whole
//! [table](RecordStore::table). So whoever holds an id across other work on the same key sets the lock word.

mod index;
mod memory;
mod slab;
mod table;
mod totals;

use ordain_model::{Cell, Db, Digest, Gsn, KeyHash, Millis, Table};

pub use memory::{Entry, MemoryStore};

/// A record's number in its store. A number is used again after its record was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId(pub u32);

/// The records of one shard.
pub trait RecordStore {
    /// The record or placeholder of a key.
    ///
    /// # Panics
    /// Here and in [`RecordStore::find_or_reserve`], if the key's slot is not one of the store's: whoever
    /// routes keys to shards has made a mistake.
    fn find(&self, db: Db, key: &[u8], hash: KeyHash) -> Option<RecordId>;

    /// The record of a key, or else a placeholder for it, to be released when it is no longer needed.
    fn find_or_reserve(&mut self, db: Db, key: &[u8], hash: KeyHash) -> RecordId;

    /// Brings what is found under some keys into the processor's caches, values included, while the misses
    /// overlap. For a dozen or two keys that will be worked on right after; it changes nothing.
    fn prefetch(&self, hashes: impl Iterator<Item = KeyHash> + Clone);

    /// Releases the record if it has no content and its lock word is 0; the id is invalid then.
    fn release_if_absent(&mut self, id: RecordId);

    /// The name of a record.
    fn key(&self, id: RecordId) -> (Db, &[u8]);

    /// The content of a record.
    fn cell(&self, id: RecordId) -> &Cell;

    /// Who wrote the content; [`Gsn::NONE`] if there is none.
    fn version(&self, id: RecordId) -> Gsn;

    /// Changes the content in place. If `change` sets its flag, the content's version becomes `version`, or
    /// [`Gsn::NONE`] if there is no content left. Whoever undoes a change gives the version of before it.
    ///
    /// If `change` panics, the store is as sound as if it had returned at that point.
    fn edit<R>(&mut self, id: RecordId, version: Gsn, change: impl FnOnce(&mut Cell, &mut bool) -> R) -> R;

    /// Takes content and version out, to be lent to another shard without a copy. The record is absent
    /// meanwhile; it is its lock word that keeps its place.
    fn take(&mut self, id: RecordId) -> (Cell, Gsn);

    /// Replaces content and version, such as with those that were taken out.
    fn put_back(&mut self, id: RecordId, cell: Cell, version: Gsn);

    /// The record's lock word. Its owner gives it meaning, except that 0 is "not in use".
    fn lock(&self, id: RecordId) -> u32;

    /// Sets the lock word.
    fn set_lock(&mut self, id: RecordId, word: u32);

    /// Access to all records at once. Records that it moves get `version`, as the reference executor does it.
    /// Lock words stay with the names they were set for.
    fn table(&mut self, version: Gsn) -> impl Table;

    /// Whether a record of these slots has outlived its time at `now`.
    fn has_expired(&self, now: Millis, slots: std::ops::Range<usize>) -> bool;

    /// The digest of all content.
    fn digest(&self) -> Digest;

    /// The memory held.
    fn memory(&self) -> Memory;
}

/// Bytes of memory that a store holds, by use; what the allocator adds is not in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Records, vacant places included.
    pub records: u64,
    /// Indexes from key to record.
    pub indexes: u64,
    /// Keys that do not fit into their record.
    pub keys: u64,
    /// Values.
    pub values: u64,
}

impl Memory {
    /// All of it.
    pub const fn total(self) -> u64 {
        self.records + self.indexes + self.keys + self.values
    }
}
