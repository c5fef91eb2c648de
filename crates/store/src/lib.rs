//! The records of one shard: where they lie, how they are found, and what they add up to.
//!
//! A store owns some slots of the key space and all records in them; it may give them away and get others. It keeps a record's
//! content, the version of that content and one lock word that it does not interpret; it does not know what a
//! transaction, a lock or a log is. [`RecordStore`] is what engines are generic over, [`MemoryStore`] keeps
//! everything in memory.
//!
//! The way to use it: resolve a key to a [`RecordId`] once, then address the record by it. An absent key that
//! is to be locked or written gets a *placeholder*, a record without content, which is invisible to everything
//! that counts, walks or sums records.
//!
//! **An id stays valid** until the record is released, which happens in three ways only, all only while it has
//! no content and its lock word is 0: by [`RecordStore::release_if_absent`], by an operation over the whole
//! [table](RecordStore::table), or by [`RecordStore::keep`] and [`RecordStore::capture`]. So whoever holds an id across other work on the same
//! key sets the lock word.
//!
//! **Past states.** A store can show what it held at the end of an epoch that is over
//! ([`RecordStore::as_of`]; paxflow.md, sections 4.7 and 4.8), if it was told to [keep](RecordStore::keep) that state
//! before a later epoch changed anything. All changes count, those of whole-table operations and of records that are
//! shipped too. What is undone with the version of before was never there.
//!
//! **The point.** Beside that, for a checkpoint alone, it can keep what each record holds at the end of one epoch, until it
//! is captured ([`RecordStore::point`]; calvin.md, section 4.14, mode 2).

mod buckets;
mod eviction;
mod fetch;
mod handover;
mod index;
mod memory;
mod past;
mod queue;
mod slab;
mod table;
mod totals;
mod versions;
mod zigzag;

use ordain_model::{Cell, Db, Digest, Epoch, Gsn, KeyHash, Millis, Placement, Position, Table};

pub use eviction::{Candidate, Evicting, LEAST};
pub use handover::{Handover, Name};
pub use memory::{Entry, MemoryStore};

/// A record's number in its store. A number is used again after its record was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId(pub u32);

/// Which past states a store can still show; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Those at the end of this epoch and of all later ones, for readers.
    pub since: Option<Epoch>,
    /// That at the end of this epoch, for a checkpoint: of a record at most one older content is kept for it.
    pub cut: Option<Epoch>,
    /// What stands before this position need not be kept for the checkpoint: it has been given away.
    pub given: Position,
}

/// A past state: a table that is never written to.
pub trait Snapshot: Table {
    /// The content that a key had, and who had written it; `None` if it was absent.
    fn find(&self, db: Db, key: &[u8], hash: KeyHash) -> Option<(&Cell, Gsn)>;

    /// [Finds](Snapshot::find) a record that is likely [this one](RecordStore::guess).
    fn find_at(&self, guess: Option<RecordId>, db: Db, key: &[u8], hash: KeyHash) -> Option<(&Cell, Gsn)>;

    /// Shows the records at `from` or later in canonical order (position, then database, then key), until
    /// `visit` says to stop with `false`.
    fn visit<'a>(&'a self, from: Position, visit: impl FnMut(Entry<'a>) -> bool);
}

/// The records of one shard.
pub trait RecordStore: Handover + Evicting {
    /// The placement by which records are hashed here.
    fn placement(&self) -> &Placement;

    /// The record or placeholder of a key.
    ///
    /// # Panics
    /// Here and in [`RecordStore::find_or_reserve`], if the key's slot is not one of the store's: whoever
    /// routes keys to shards has made a mistake.
    fn find(&self, db: Db, key: &[u8], hash: KeyHash) -> Option<RecordId>;

    /// The record of a key, or else a placeholder for it, to be released when it is no longer needed.
    fn find_or_reserve(&mut self, db: Db, key: &[u8], hash: KeyHash) -> RecordId;

    /// Brings the records of some keys into the processor's caches, values included, while the misses overlap. For a dozen
    /// or two keys that will be worked on right after; it changes nothing.
    fn prefetch(&self, hashes: impl Iterator<Item = KeyHash> + Clone);

    /// [Prefetches](RecordStore::prefetch) records, and returns for each key the record that is likely its own. A caller
    /// asks first whether it [is](RecordStore::is_of), as [`Snapshot::find_at`] does: the store may change meanwhile.
    fn guess(&self, hashes: impl Iterator<Item = KeyHash> + Clone, records: &mut Vec<Option<RecordId>>);

    /// Prefetches the place of a key in the index: the first of three steps through a long list of keys.
    fn fetch_index(&self, hash: KeyHash);

    /// Prefetches the record that is likely a key's own, once its place in the index is there: the second step.
    fn fetch_record(&self, hash: KeyHash) -> Option<RecordId>;

    /// Prefetches what lies outside a record that is there: the third step.
    fn fetch_value(&self, id: RecordId);

    /// Whether a record that was found earlier, and may have been released since, is that of a key.
    fn is_of(&self, id: RecordId, db: Db, key: &[u8]) -> bool;

    /// Releases the record if it has no content and its lock word is 0; the id is invalid then.
    fn release_if_absent(&mut self, id: RecordId);

    /// The name of a record.
    fn key(&self, id: RecordId) -> (Db, &[u8]);

    /// The content of a record.
    fn cell(&self, id: RecordId) -> &Cell;

    /// The transaction that wrote the content; [`Gsn::NONE`] if there is none.
    fn version(&self, id: RecordId) -> Gsn;

    /// Changes the content in place. If `change` sets its flag, the content's version becomes `version`, or
    /// [`Gsn::NONE`] if there is no content left. Undoing a change takes the version of before it.
    ///
    /// If `change` panics, the store is as sound as if it had returned at that point.
    fn edit<R>(&mut self, id: RecordId, version: Gsn, change: impl FnOnce(&mut Cell, &mut bool) -> R) -> R;

    /// Takes content and version out for transaction `by`, to be shipped to another shard without a copy. The record is
    /// absent meanwhile; it is its lock word that keeps its place. Readers of past states still see it.
    fn take(&mut self, id: RecordId, by: Gsn) -> (Cell, Gsn);

    /// Replaces content and version, such as with those that were taken out.
    fn put_back(&mut self, id: RecordId, cell: Cell, version: Gsn);

    /// From the first of its slots to the last.
    fn slots(&self) -> std::ops::Range<usize>;

    /// Shows the records at `from` or later in canonical order (position, then database, then key), until
    /// `visit` says to stop with `false`.
    fn visit<'a>(&'a self, from: Position, visit: impl FnMut(Entry<'a>) -> bool);

    /// These slots are its own from now on too, and those between them and its others.
    fn own(&mut self, slots: std::ops::Range<usize>);

    /// Takes in content that another store has given away, in an epoch: as of earlier ones it was not here.
    fn take_in(&mut self, id: RecordId, cell: Cell, version: Gsn, by: Epoch);

    /// The record's lock word. Its owner gives it meaning, except that 0 is "not in use".
    fn lock(&self, id: RecordId) -> u32;

    /// Sets the lock word.
    fn set_lock(&mut self, id: RecordId, word: u32);

    /// Access to all records at once. Records that it moves get `version`, as the reference executor does it.
    /// Lock words stay with the names they were set for.
    fn table(&mut self, version: Gsn) -> impl Table;

    /// Keeps these past states from now on, and frees what was kept for others: some thousands of contents, or twice as
    /// many as were added since the last call if that has left some. The rest goes with further calls, so this is called
    /// with every batch, also with the same states: then what is not needed gets less from call to call.
    /// A state can be kept only if nothing of a later epoch has changed anything yet, or if it was kept all along.
    fn keep(&mut self, keep: Keep);

    /// Gives back the memory of about so many of the records that were cleared all together, or of fewer that have
    /// [departed](Handover::depart) and that no reader can see any more; returns whether there are more.
    fn free_some(&mut self, most: usize) -> bool;

    /// The state at the end of an epoch. All of the epoch must be executed, and its state be [kept](RecordStore::keep).
    fn as_of(&self, epoch: Epoch) -> impl Snapshot;

    /// How many older contents are kept.
    fn older(&self) -> u64;

    /// How older contents are divided among records. Of many only some are inspected, so it never takes long.
    fn spread(&self) -> Spread;

    /// From now on a record that is changed by an epoch after this one has two copies, that of before and that of after it,
    /// until the one of before is [captured](RecordStore::capture); with `None` no more are made, and those that there are go
    /// by and by, with calls of [`RecordStore::keep`]. Nothing of a later epoch may have changed anything yet.
    fn point(&mut self, point: Option<Epoch>);

    /// Captures records as they were at the [point](RecordStore::point), in canonical order, until `visit` says to stop
    /// with `false`; what it was shown then is not captured, nor is anything at the same position. Goes on where it stopped.
    /// All of the point's epoch and of those before it must be executed. Answers whether that was all.
    fn capture(&mut self, visit: impl FnMut(Entry<'_>) -> bool) -> bool;

    /// Looks at about `most` records from a position on, in slots where some have an expiry, for those that have outlived their time at
    /// `now`: the positions between which they are, and where to look next, [`Position::END`] if that was all.
    fn expired(
        &self,
        now: Millis,
        from: Position,
        most: usize,
    ) -> (Option<std::ops::Range<Position>>, Position);

    /// How many records there are in a slot, of the 1,024: those that are absent for now included. 0 for a slot that it never had.
    fn records_in(&self, slot: usize) -> usize;

    /// How many records have content, modulo 2^32.
    fn records(&self) -> u32;

    /// The digest of all content. It costs as much as records were changed and have not been [settled](RecordStore::settle)
    /// since: a twentieth of a microsecond each, and more for large contents.
    fn digest(&self) -> Digest;

    /// How many records that were changed count for nothing yet: the next [digest](RecordStore::digest) hashes so many.
    fn unsettled(&self) -> usize;

    /// Has at most so many of the records that were changed count for nothing when the [digest](RecordStore::digest) is asked
    /// for.
    fn settle(&mut self, most: usize);

    /// From now on a record is settled as it is changed, as the digest is asked for all the time.
    fn settle_at_once(&mut self);

    /// The memory held.
    fn memory(&self) -> Memory;
}

/// How the older contents that are kept are divided among records, about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// How many records have some.
    pub records: u64,
    /// How many 99 in a hundred of these have at most.
    pub p99: u64,
    /// How many the one has that has most.
    pub max: u64,
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
    /// What is kept of past states, values included.
    pub older: u64,
}

impl Memory {
    /// All of it.
    pub const fn total(self) -> u64 {
        self.records + self.indexes + self.keys + self.values + self.older
    }
}
