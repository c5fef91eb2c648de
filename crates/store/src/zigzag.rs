//! The second copies of records around a virtual point of consistency (the Calvin paper, section 5, the variant of
//! Zig-Zag; calvin.md, section 4.14, mode 2).
//!
//! The point is the end of an epoch, and nobody stops for it. From when it is known each record has a *before*, which only
//! what precedes the point changes, and once something after it has, an *after*:
//!
//! ```text
//!  rest        one copy
//!  prepare     epoch ≤ point: writes the one copy          epoch > point: the one copy becomes before, it writes after
//!  capture     all of the point is executed, so nothing changes a before any more: position by position it is read,
//!              and what has an after gives its before away; records that were captured have one copy again
//!  rest
//! ```
//!
//! Zig-Zag keeps two copies of every record for good, and two bits that say which is read and which is overwritten. Here the
//! record's own line is always the one that is read and written, so that neither reading nor resting costs anything, and the
//! before of those that have two lies beside it, under the record's number. Of the bits one is left, whether a record is
//! captured, and it needs no memory: captured is what stands before the position that the capture has reached. Because of
//! that the walk is in order of position and not of the slab, as the sheet has it: positions do not move when an index
//! grows, either.
//!
//! This is not the store of [past states](crate::versions): that keeps a queue of contents for readers of many epochs, and a
//! cut is one more reader to it. Here there is one content a record at most, it is found by an array access, none is made of
//! what is captured already, and each goes when it is captured and not when the whole state is.

use std::ops::Range;

use ordain_model::{Cell, Epoch, Gsn, Placement, Position};

use crate::RecordId;
use crate::slab::Record;

/// No change is of a later epoch.
const NEVER: Epoch = Epoch(u64::MAX);
/// The places of a chunk: 12 KiB of them.
const CHUNK_BITS: u32 = 8;
const CHUNK: usize = 1 << CHUNK_BITS;
/// So many chunks of a capture that is over, or was given up, go at once.
const FREED: usize = 16;

/// What a record held at the point, if it has been changed since; absent content if it was in another store then.
type Before = Option<(Cell, Gsn)>;

/// By number, the befores of so many records.
#[derive(Debug)]
struct Chunk {
    places: Box<[Before; CHUNK]>,
    /// How many there are.
    used: usize,
}

impl Chunk {
    fn new() -> Chunk {
        Chunk { places: Box::new([const { None }; CHUNK]), used: 0 }
    }
}

/// The befores of one store.
#[derive(Debug)]
pub(crate) struct ZigZag {
    /// The point, or never, at rest.
    point: Epoch,
    /// What stands before this position is captured.
    captured: Position,
    /// By chunk of record numbers; none where no record has two copies.
    chunks: Vec<Option<Chunk>>,
    /// Those of the point before, until they are freed, and by which records they are.
    leftovers: Vec<(usize, Chunk)>,
    /// Bytes that befores hold beside their places.
    heap_bytes: u64,
}

impl Default for ZigZag {
    fn default() -> ZigZag {
        ZigZag {
            point: NEVER,
            captured: Position::default(),
            chunks: Vec::new(),
            leftovers: Vec::new(),
            heap_bytes: 0,
        }
    }
}

fn place_of(record: RecordId) -> (usize, usize) {
    (record.0 as usize >> CHUNK_BITS, record.0 as usize % CHUNK)
}

impl ZigZag {
    /// Begins to keep what records hold at the end of an epoch, or does not keep it any more.
    pub(crate) fn set(&mut self, point: Option<Epoch>) {
        let chunks = std::mem::take(&mut self.chunks);
        let chunks = chunks.into_iter().enumerate();
        self.leftovers.extend(chunks.filter_map(|(number, chunk)| Some((number, chunk?))));
        self.point = point.unwrap_or(NEVER);
        self.captured = Position::default();
    }

    /// The point; [`Epoch`]'s largest at rest.
    pub(crate) const fn point(&self) -> Epoch {
        self.point
    }

    /// Whether no record has two copies, nor is to.
    pub(crate) fn is_idle(&self) -> bool {
        self.point == NEVER && self.leftovers.is_empty()
    }

    /// Whether a change by this epoch is to leave the record's content as its before.
    #[inline]
    pub(crate) fn wants(&self, by: Epoch, id: RecordId, record: &Record, placement: &Placement) -> bool {
        by > self.point && self.needs(id, record, placement)
    }

    /// What is absent was so at the point, or has a before; so was what a later epoch has written.
    fn needs(&self, id: RecordId, record: &Record, placement: &Placement) -> bool {
        record.cell.value.is_some()
            && record.version.epoch() <= self.point
            && self.before(id).is_none()
            && record.hash(placement).position() >= self.captured
    }

    /// Whether it is to be noted of a record that comes in from another store in this epoch, with an older version, that it
    /// was not here at the point.
    pub(crate) fn wants_absence(
        &self,
        by: Epoch,
        id: RecordId,
        record: &Record,
        placement: &Placement,
    ) -> bool {
        by > self.point && self.before(id).is_none() && record.hash(placement).position() >= self.captured
    }

    /// Keeps a before.
    pub(crate) fn put(&mut self, id: RecordId, cell: Cell, version: Gsn) {
        let (chunk, place) = place_of(id);
        if self.chunks.len() <= chunk {
            self.chunks.resize_with(chunk + 1, || None);
        }
        let chunk = self.chunks[chunk].get_or_insert_with(Chunk::new);
        self.heap_bytes += heap_bytes(&cell);
        chunk.used += 1;
        chunk.places[place] = Some((cell, version));
    }

    /// What the record held at the point, if that is not what it holds now.
    #[inline]
    pub(crate) fn before(&self, id: RecordId) -> Option<(&Cell, Gsn)> {
        let (chunk, place) = place_of(id);
        let chunk = self.chunks.get(chunk)?.as_ref()?;
        chunk.places[place].as_ref().map(|(cell, version)| (cell, *version))
    }

    /// What the record held at the point. All of it must be executed, and the record not be captured.
    #[inline]
    pub(crate) fn at_point<'a>(&'a self, id: RecordId, record: &'a Record) -> Option<(&'a Cell, Gsn)> {
        let is_before = record.cell.value.is_some() && record.version.epoch() <= self.point;
        match self.before(id) {
            Some((cell, version)) => cell.value.is_some().then_some((cell, version)),
            None => is_before.then_some((&record.cell, record.version)),
        }
    }

    /// From where on records are not captured.
    pub(crate) fn captured(&self) -> Position {
        self.captured
    }

    /// Everything before this position is captured; the before of each such record is to be [dropped](ZigZag::drop_before).
    pub(crate) fn capture(&mut self, to: Position) -> Range<Position> {
        let from = std::mem::replace(&mut self.captured, to);
        from..to
    }

    /// Whether the record had a before; it has none any more.
    pub(crate) fn drop_before(&mut self, id: RecordId) -> bool {
        let (number, place) = place_of(id);
        let Some(Some(chunk)) = self.chunks.get_mut(number) else { return false };
        let Some((cell, _)) = chunk.places[place].take() else { return false };
        self.heap_bytes -= heap_bytes(&cell);
        chunk.used -= 1;
        if chunk.used == 0 {
            self.chunks[number] = None;
        }
        true
    }

    /// Frees some of what is left of a point that is over; answers which records had it.
    pub(crate) fn free_some(&mut self) -> Vec<RecordId> {
        let mut records = Vec::new();
        for (number, chunk) in self.leftovers.drain(self.leftovers.len().saturating_sub(FREED)..) {
            for (place, before) in chunk.places.iter().enumerate() {
                if let Some((cell, _)) = before {
                    self.heap_bytes -= heap_bytes(cell);
                    records.push(RecordId((number * CHUNK + place) as u32));
                }
            }
        }
        records
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> u64 {
        let chunks = self.chunks.iter().flatten().count() + self.leftovers.len();
        (chunks * size_of::<[Before; CHUNK]>()) as u64 + self.heap_bytes
    }
}

fn heap_bytes(cell: &Cell) -> u64 {
    cell.value.as_ref().map_or(0, |value| value.heap_bytes() as u64)
}
