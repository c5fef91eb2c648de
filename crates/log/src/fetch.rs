//! Reads old entries of a log while it is being written: what has left a role's memory and is asked for again.
//!
//! Whoever may want an entry again remembers the [`Place`] of one before it, which [`LogWriter::place`] tells as
//! the log grows and [`LogWriter::open_placed`] at the start. A [`Fetch`] goes on from there, a piece at a time and
//! by requests to the disk like any other. Each entry's checksum is looked at again. Where the log ends is not for a
//! fetch to judge: ask it only for what is known to be durable.
//!
//! [`LogWriter::place`]: crate::LogWriter::place
//! [`LogWriter::open_placed`]: crate::LogWriter::open_placed

use ordain_model::Epoch;
use ordain_role::{DiskOp, Fetched};

use crate::config::LogError;
use crate::format::{EntryHead, HEAD, HEADER, Kind, file_name, seed};
use crate::recovery::Entry;

/// The place in a log where an entry begins, or will.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The first epoch in the segment's name.
    pub(crate) segment: Epoch,
    pub(crate) offset: u64,
}

/// The bytes read at a time, unless an entry is longer.
const PIECE: usize = 1 << 20;

/// The length that no entry has: a head with a longer one is damaged.
const LONGEST: u64 = 1 << 32;

/// Reads a log from a place on.
#[derive(Debug)]
pub struct Fetch {
    identity: Vec<u8>,
    at: Place,
    /// The bytes to read next.
    len: usize,
}

impl Fetch {
    /// Reads the log of this identity from a place on.
    pub fn new(identity: &[u8], from: Place) -> Fetch {
        Fetch { identity: identity.to_vec(), at: from, len: PIECE }
    }

    /// The place where the next read begins.
    pub fn place(&self) -> Place {
        self.at
    }

    /// The disk operation that reads the next piece.
    pub fn op(&self, into: &Fetched) -> DiskOp {
        DiskOp::Read {
            file: file_name(self.at.segment),
            offset: self.at.offset,
            len: self.len,
            into: into.clone(),
        }
    }

    /// Takes the piece and gives the entries that are in it as a whole. There may be none; the next piece follows
    /// them in any case.
    ///
    /// # Errors
    /// [`LogError::Damaged`] if no entry stands where one must.
    pub fn take(&mut self, piece: &[u8]) -> Result<Vec<Entry>, LogError> {
        let asked = std::mem::replace(&mut self.len, PIECE);
        let mut entries = Vec::new();
        let mut rest = piece;
        loop {
            let (head, payload) = match self.parse(rest) {
                Ok(found) => found,
                // A write may be under way behind the entries.
                Err(_) if rest.len() < piece.len() => return Ok(entries),
                Err(Parse::Longer(len)) if piece.len() == asked && len > asked => {
                    self.len = len;
                    return Ok(entries);
                }
                Err(_) => {
                    return Err(LogError::Damaged {
                        file: file_name(self.at.segment),
                        offset: self.at.offset,
                        reason: "an entry that was synced cannot be read again".to_owned(),
                    });
                }
            };
            let size = (head.end() - head.offset) as usize;
            self.at.offset = head.end();
            match head.kind {
                Kind::Data => {
                    entries.push(Entry { epoch: head.epoch, term: head.term, payload: payload.to_vec() });
                }
                Kind::Mark => {}
                Kind::Link => {
                    let next = payload.try_into().map_or(0, u64::from_le_bytes);
                    self.at = Place { segment: Epoch(next), offset: HEADER };
                    return Ok(entries);
                }
            }
            rest = &rest[size..];
            if rest.is_empty() {
                return Ok(entries);
            }
        }
    }

    /// The entry at the front of the bytes.
    fn parse<'a>(&self, bytes: &'a [u8]) -> Result<(EntryHead, &'a [u8]), Parse> {
        if bytes.len() < HEAD as usize {
            return Err(Parse::Longer(PIECE + 1));
        }
        let offset = self.at.offset;
        let head =
            EntryHead::decode(bytes, offset, offset.saturating_add(LONGEST)).map_err(|_| Parse::Invalid)?;
        let size = (head.end() - offset) as usize;
        let Some(body) = bytes.get(HEAD as usize..size) else { return Err(Parse::Longer(size)) };
        let crc = crc32c::crc32c_append(seed(&self.identity, self.at.segment), &head.encode()[4..]);
        if crc32c::crc32c_append(crc, body) != head.crc {
            return Err(Parse::Invalid);
        }
        Ok((head, &body[..head.len as usize]))
    }
}

enum Parse {
    /// An entry needs so many bytes.
    Longer(usize),
    /// No valid entry.
    Invalid,
}

#[cfg(test)]
mod tests {
    use ordain_role::{Bytes, Directory};

    use super::*;
    use crate::{LogConfig, LogWriter, MemoryDirectory, carry_out};

    const IDENTITY: &[u8] = b"fetch";

    fn config() -> LogConfig {
        LogConfig { segment_bytes: LogConfig::MIN_SEGMENT_BYTES, ..LogConfig::new(IDENTITY) }
    }

    fn payload(epoch: u64) -> Vec<u8> {
        // One of them is longer than a piece.
        let len = if epoch == 20 { 3 * PIECE } else { (epoch as usize * 37) % 300 };
        vec![epoch as u8; len]
    }

    /// A log of 40 entries, some of them after a mark, and where each was told to begin.
    fn written() -> (MemoryDirectory, LogWriter, Vec<Place>) {
        let mut disk = MemoryDirectory::new();
        let (mut writer, _) = LogWriter::open(&mut disk, config(), |_| Ok(())).unwrap();
        let mut places = Vec::new();
        for epoch in 1..=40 {
            places.push(writer.place());
            writer.append(Epoch(epoch), 7, vec![Bytes::from(payload(epoch))]).unwrap();
            if epoch % 3 == 0 {
                writer.mark();
            }
            while let Some(request) = writer.next_request() {
                let done = carry_out(&mut disk, &request);
                writer.done(&done);
            }
        }
        (disk, writer, places)
    }

    fn fetch_all(disk: &mut MemoryDirectory, from: Place, last: u64) -> Result<Vec<Entry>, LogError> {
        let mut fetch = Fetch::new(IDENTITY, from);
        let mut entries: Vec<Entry> = Vec::new();
        while entries.last().is_none_or(|entry| entry.epoch.0 < last) {
            let into = Fetched::default();
            disk.apply(&fetch.op(&into))?;
            entries.extend(fetch.take(into.bytes())?);
        }
        Ok(entries)
    }

    #[test]
    fn every_entry_is_found_again_from_every_place_before_it() {
        let (mut disk, _writer, places) = written();
        for (before, place) in places.iter().enumerate() {
            let entries = fetch_all(&mut disk, *place, 40).unwrap();
            let expected: Vec<Entry> = (before as u64 + 1..=40)
                .map(|epoch| Entry { epoch: Epoch(epoch), term: 7, payload: payload(epoch) })
                .collect();
            assert_eq!(entries, expected);
        }
    }

    #[test]
    fn recovery_tells_places_too() {
        let (mut disk, _writer, _) = written();
        let mut places = Vec::new();
        let visit = |place, entry: Entry| {
            places.push((place, entry.epoch));
            Ok(())
        };
        LogWriter::open_placed(&mut disk, config(), visit).unwrap();
        assert_eq!(places.len(), 40);
        for (place, epoch) in places {
            assert_eq!(fetch_all(&mut disk, place, 40).unwrap()[0].epoch, epoch);
        }
    }

    #[test]
    fn damage_and_the_end_of_the_log_are_refused() {
        let (mut disk, writer, places) = written();
        assert!(matches!(fetch_all(&mut disk, writer.place(), 41), Err(LogError::Damaged { .. })));
        let place = places[2];
        disk.damage(&file_name(place.segment), place.offset + HEAD + 1, 4);
        assert!(matches!(fetch_all(&mut disk, places[2], 40), Err(LogError::Damaged { .. })));
        assert!(matches!(fetch_all(&mut disk, places[1], 40), Err(LogError::Damaged { .. })));
        assert_eq!(fetch_all(&mut disk, places[0], 2).unwrap().len(), 2);
    }
}
