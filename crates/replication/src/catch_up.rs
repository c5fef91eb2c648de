//! Catch-up from files: entries of a log that is being written are read again for readers that are behind.
//!
//! An [`Index`] says roughly where entries stand. One [`CatchUps`] holds how far each reader is. The log that ships and the
//! receive journal serve their members so. Of what was read only about what the disk gives at once is held in memory.

use std::collections::{BTreeMap, VecDeque};

use ordain_log::{Fetch, Place, in_space};
use ordain_model::Epoch;
use ordain_role::{DiskDone, DiskRequest, Fetched, Outbox};

/// A rough index of a log: made while the log is read at the start, and kept up as it grows.
#[derive(Clone, Debug)]
pub struct Index {
    /// Number, place, epoch: entries from the number on stand at the place or behind it, and those before have nothing
    /// to do with epochs beyond the epoch. Ascending in all.
    places: Vec<(Epoch, Place, Epoch)>,
    /// The largest epoch of anything so far.
    largest: Epoch,
    /// Bytes since the last place.
    since: usize,
    /// The least number of bytes between two places.
    stride: usize,
}

impl Index {
    /// An index of a log with segments of this length. Each segment has some tens of places.
    pub fn new(segment_bytes: u64) -> Index {
        let stride = (segment_bytes / 64).clamp(1, 1 << 20) as usize;
        Index { places: Vec::new(), largest: Epoch(0), since: 0, stride }
    }

    /// Notes that the log begins later: before all that was noted there were entries of epochs up to this one.
    pub fn note_beginning(&mut self, up_to: Epoch) {
        self.largest = self.largest.max(up_to);
        self.places.iter_mut().for_each(|(.., before)| *before = up_to.max(*before));
    }

    /// The entry of this epoch begins here or behind, and has so many bytes: of a log whose entries are numbered by their
    /// epochs.
    pub fn note_batch(&mut self, epoch: Epoch, place: Place, bytes: usize) {
        self.note_entry(epoch, place, bytes, epoch);
    }

    /// The entry with this number begins here or behind; it has so many bytes and is of epochs up to this one.
    pub fn note_entry(&mut self, number: Epoch, place: Place, bytes: usize, epoch: Epoch) {
        self.reach(number, place);
        self.grow(bytes, epoch);
    }

    /// Notes that the log has grown by so many bytes, of epochs up to this one.
    pub fn grow(&mut self, bytes: usize, epoch: Epoch) {
        self.since += bytes;
        self.largest = self.largest.max(epoch);
    }

    /// The next entry will have this number, or a larger one, and stand here or behind.
    pub fn reach(&mut self, number: Epoch, place: Place) {
        if self.places.is_empty() || self.since >= self.stride {
            self.since = 0;
            self.places.push((number, place, self.largest));
        }
    }

    /// The largest epoch of anything so far.
    pub fn largest(&self) -> Epoch {
        self.largest
    }

    /// Forgets what stands before a place. All entries from a number on are behind it, and those before have nothing
    /// to do with epochs beyond this one.
    pub fn trim(&mut self, begins: Place, (kept, before): (Epoch, Epoch)) {
        let gone = self.places.partition_point(|(number, place, _)| *place < begins && *number < kept);
        self.places.drain(..gone);
        let late = self.places.iter_mut().take_while(|(_, place, _)| *place < begins);
        late.for_each(|(_, place, _)| *place = begins);
        if gone > 0 && self.places.first().is_none_or(|(number, ..)| *number > kept) {
            self.places.insert(0, (kept, begins, before));
        }
    }

    /// The epoch up to which entries may be gone.
    pub fn begins_after(&self) -> Epoch {
        self.places.first().map_or(self.largest, |(.., before)| *before)
    }

    /// The last place before which no entry has this number or a larger one, or to do with epochs beyond one: the
    /// number of the first entry there, and the largest epoch before.
    pub fn covered_by(&self, epoch: Epoch, number: Epoch) -> Option<(Epoch, Epoch)> {
        let is_covered = |(first, _, before): &(Epoch, Place, Epoch)| *before <= epoch && *first <= number;
        let (first, _, before) = self.places.get(self.places.partition_point(is_covered).checked_sub(1)?)?;
        Some((*first, *before))
    }

    /// About how many bytes there are from the entry with this number on.
    pub fn bytes_from(&self, number: Epoch) -> usize {
        let before = self.places.partition_point(|(first, ..)| *first <= number);
        (self.places.len() - before) * self.stride + self.since
    }

    /// The place where a reader begins that wants the entries from a number on and needs nothing up to an epoch, with
    /// the number of the first entry to be found there.
    pub fn find(&self, number: Epoch, after: Epoch) -> Option<(Epoch, Place)> {
        let by_number = self.places.partition_point(|(first, ..)| *first <= number);
        let by_epoch = self.places.partition_point(|(.., before)| *before <= after);
        let (first, place, _) = self.places.get(by_number.max(by_epoch).checked_sub(1)?)?;
        Some((*first, *place))
    }
}

/// The readers of a log that is being written.
#[derive(Debug)]
pub struct CatchUps<K> {
    /// The beginning of the names of the log's files.
    prefix: &'static str,
    identity: Vec<u8>,
    readers: BTreeMap<K, CatchUp>,
    reads: u64,
    /// The place before which nothing is read any more.
    begins: Option<Place>,
}

/// The state of one reader.
#[derive(Debug)]
struct CatchUp {
    fetch: Fetch,
    into: Fetched,
    /// The token of the disk request that is under way.
    token: Option<u64>,
    /// The entry that was asked for, and the first that was not given yet.
    asked: Epoch,
    next: Epoch,
    /// Entries that were read, in order.
    found: VecDeque<(Epoch, Vec<u8>)>,
    /// The reader has come to entries that it was not to read, and cannot go on from here.
    is_over: bool,
}

/// A piece that a reader is given.
#[derive(Debug)]
pub struct Piece {
    /// The entry that it has asked for.
    pub asked: Epoch,
    /// The entry that it is to ask for next.
    pub next: Epoch,
    /// The entries, in order. If there are none, no entry from the one that it has asked for on is durable.
    pub entries: Vec<(Epoch, Vec<u8>)>,
}

/// Marks the requests that read; the others are the writer's.
const READ: u64 = 1 << 63;

/// Tells whether an answer of the disk is to a request that reads.
pub fn is_read(done: &DiskDone) -> bool {
    done.token & READ != 0
}

impl CatchUp {
    /// Tells whether all that was read is given, and the next would stand before a place.
    fn is_before(&self, place: Option<Place>) -> bool {
        self.found.is_empty() && place.is_some_and(|place| self.fetch.place() < place)
    }
}

impl<K: Ord + Copy> CatchUps<K> {
    /// No reader yet, of the log of this identity in files of this prefix.
    pub fn new(prefix: &'static str, identity: Vec<u8>) -> CatchUps<K> {
        CatchUps { prefix, identity, readers: BTreeMap::new(), reads: 0, begins: None }
    }

    /// Begins to read the entries from a number on, for a reader that needs nothing up to an epoch. `None` if the log
    /// does not go back as far.
    pub fn ask(&mut self, who: K, index: &Index, (from, after): (Epoch, Epoch)) -> Option<()> {
        // A reader that goes on where it has stopped needs no new place.
        let goes_on = |reading: &CatchUp| reading.next == from && reading.token.is_none() && !reading.is_over;
        if !self.readers.get(&who).is_some_and(goes_on) {
            let (first, place) = index.find(from, after)?;
            let reading = CatchUp {
                fetch: Fetch::new(&self.identity, place),
                into: Fetched::default(),
                token: None,
                asked: from,
                next: from.max(first),
                found: VecDeque::new(),
                is_over: false,
            };
            self.readers.insert(who, reading);
        }
        self.readers.get_mut(&who)?.asked = from;
        Some(())
    }

    /// Gives a reader about so many bytes of what was read, or reads more. Nothing is read that is not durable yet.
    pub fn next_piece<M>(
        &mut self,
        who: K,
        most: usize,
        durable: Epoch,
        out: &mut Outbox<M>,
    ) -> Option<Piece> {
        let reading = self.readers.get_mut(&who)?;
        if reading.token.is_some() || reading.is_before(self.begins) {
            return None;
        }
        if reading.found.is_empty() && reading.next <= durable {
            self.reads += 1;
            let token = READ | self.reads;
            (reading.token, reading.into) = (Some(token), Fetched::default());
            let request = DiskRequest::in_background(token, vec![reading.fetch.op(&reading.into)]);
            out.disk(in_space(request, self.prefix));
            return None;
        }
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while let Some((number, entry)) = reading.found.pop_front_if(|_| bytes < most) {
            reading.next = number.next();
            bytes += entry.len();
            entries.push((number, entry));
        }
        Some(Piece { asked: reading.asked, next: reading.next, entries })
    }

    /// Takes what the disk has read, up to the entry with this number, and answers the reader; `None` if that wants it
    /// no more.
    pub fn was_read(&mut self, done: &DiskDone, up_to: Epoch) -> Result<Option<K>, String> {
        let found = self.readers.iter_mut().find(|(_, reading)| reading.token == Some(done.token));
        let Some((who, reading)) = found else { return Ok(None) };
        done.result.clone().map_err(|error| error.to_string())?;
        reading.token = None;
        for entry in reading.fetch.take(reading.into.bytes()).map_err(|error| error.to_string())? {
            if entry.epoch > up_to {
                reading.is_over = true;
            } else if entry.epoch >= reading.next {
                reading.found.push_back((entry.epoch, entry.payload));
            }
        }
        Ok(Some(*who))
    }

    /// Forbids to read what stands before a place.
    pub fn trim(&mut self, begins: Place) {
        self.begins = Some(begins);
    }

    /// Drops the readers that would have to read what is gone, and answers them.
    pub fn late(&mut self) -> Vec<K> {
        let begins = self.begins;
        let is_late = |reading: &CatchUp| reading.token.is_none() && reading.is_before(begins);
        self.readers.extract_if(.., |_, reading| is_late(reading)).map(|(who, _)| who).collect()
    }

    /// The next entry of the reader that is the farthest behind.
    pub fn least(&self) -> Option<Epoch> {
        self.readers.values().map(|reading| reading.next).min()
    }

    /// Removes a reader.
    pub fn leave(&mut self, who: K) {
        self.readers.remove(&who);
    }

    /// Removes all readers.
    pub fn clear(&mut self) {
        self.readers.clear();
    }
}

#[cfg(test)]
mod tests {
    use ordain_log::{LogConfig, LogWriter, MemoryDirectory, carry_out};
    use ordain_role::Bytes;

    use super::*;

    /// A log of 20 entries of 300 bytes in segments of 1,024, an index of it, and where each begins.
    fn written() -> (LogWriter, MemoryDirectory, Index) {
        let mut disk = MemoryDirectory::new();
        let config = LogConfig { segment_bytes: 1024, ..LogConfig::new(*b"index") };
        let (mut writer, _) = LogWriter::open(&mut disk, config, |_| Ok(())).unwrap();
        let mut index = Index::new(64 * 500);
        for number in 1..=20 {
            // Every entry has to do with twice the epoch, and every second has a place.
            index.note_entry(Epoch(number), writer.place(), 300, Epoch(2 * number));
            writer.append(Epoch(number), 0, vec![Bytes::from(vec![7; 300])]).unwrap();
            while let Some(request) = writer.next_request() {
                let done = carry_out(&mut disk, &request);
                writer.done(&done);
            }
        }
        (writer, disk, index)
    }

    #[test]
    fn an_index_finds_what_is_there_and_nothing_that_is_not() {
        let (mut writer, _disk, mut index) = written();
        assert_eq!(index.find(Epoch(1), Epoch(0)).unwrap().0, Epoch(1));
        assert_eq!(index.find(Epoch(8), Epoch(0)).unwrap().0, Epoch(7));
        assert_eq!(index.find(Epoch(1), Epoch(16)).unwrap().0, Epoch(9), "nothing up to epoch 16 is of use");
        assert_eq!(index.begins_after(), Epoch(0));
        assert_eq!(index.covered_by(Epoch(21), Epoch(100)), Some((Epoch(11), Epoch(20))));
        assert_eq!(index.covered_by(Epoch(21), Epoch(6)), Some((Epoch(5), Epoch(8))));
        assert!(index.bytes_from(Epoch(11)) < index.bytes_from(Epoch(3)));

        writer.truncate_before(Epoch(12));
        index.trim(writer.begins(), (Epoch(12), Epoch(22)));
        assert_eq!(index.begins_after(), Epoch(22));
        assert_eq!(index.find(Epoch(1), Epoch(21)), None, "something of epoch 22 was before");
        assert_eq!(index.find(Epoch(11), Epoch(0)), None);
        let (first, place) = index.find(Epoch(12), Epoch(0)).unwrap();
        assert!((first, place) == (Epoch(12), writer.begins()));
        assert_eq!(index.find(Epoch(1), Epoch(22)).unwrap().0, Epoch(12));
        // Once more, to where nothing is noted yet.
        writer.truncate_before(Epoch(100));
        index.trim(writer.begins(), (Epoch(21), Epoch(40)));
        assert_eq!((index.begins_after(), index.find(Epoch(20), Epoch(39))), (Epoch(40), None));
        assert_eq!(index.find(Epoch(21), Epoch(0)).unwrap().0, Epoch(21));
    }

    #[test]
    fn a_log_that_begins_later_has_nothing_from_before() {
        let (_, _, mut index) = written();
        index.note_beginning(Epoch(9));
        assert_eq!(index.begins_after(), Epoch(9));
        // Entries before the first that is here have smaller numbers.
        let missing = Epoch(0);
        assert_eq!((index.find(missing, Epoch(8)), index.covered_by(Epoch(8), Epoch(100))), (None, None));
        assert_eq!(index.find(missing, Epoch(9)).unwrap().0, Epoch(5));
    }
}
