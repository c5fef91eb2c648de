//! The bytes of a segment file: its header block, its entries' heads, and the checksums that bind them.
//!
//! All numbers are little-endian. `docs/log-format.md` has the tables and the reasons.

use ordain_model::Epoch;

/// Version of the format that this crate reads and writes.
pub const VERSION: u32 = 4;

/// Longest identity that a header can hold.
pub const MAX_IDENTITY: usize = 256;

/// Length of the header block: one sector, so that it is written whole or not at all.
pub(crate) const HEADER: u64 = 512;

/// Length of an entry's head.
pub(crate) const HEAD: u64 = 48;

/// Length of a link entry. A segment keeps that much free so that it can always be closed.
pub(crate) const LINK: u64 = HEAD + 8;

/// The term of a link whose segment was not known to be durable, header and name, when it was written: it is written again,
/// with 0, when it is. The terms of data are their writers'.
pub(crate) const EARLY: u32 = 1;

const MAGIC: [u8; 8] = *b"ORDAINLG";
const ENTRY_MAGIC: u32 = 0x4c4e_4500;

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A payload that was appended.
    Data,
    /// A mark: everything before it is durable.
    Mark,
    /// The last of its segment: names the next one.
    Link,
}

impl Kind {
    fn encode(self) -> u32 {
        ENTRY_MAGIC
            | match self {
                Kind::Data => 1,
                Kind::Mark => 2,
                Kind::Link => 3,
            }
    }

    fn decode(word: u32) -> Option<Kind> {
        [Kind::Data, Kind::Mark, Kind::Link].into_iter().find(|kind| kind.encode() == word)
    }
}

/// The name of the segment whose entries have epochs from `first` on.
pub(crate) fn file_name(first: Epoch) -> String {
    format!("log-{:016x}.seg", first.0)
}

/// The name of a file that is to become the next segment: what an epoch it begins with is not known yet.
pub(crate) const AHEAD: &str = "log-ahead.seg";

/// The first epoch in a segment's name, or `None` if the file is not ours.
pub(crate) fn parse_name(file: &str) -> Option<Epoch> {
    let digits = file.strip_prefix("log-")?.strip_suffix(".seg")?;
    let first = Epoch(u64::from_str_radix(digits, 16).ok()?);
    (file_name(first) == file).then_some(first)
}

/// A segment's header block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// The epoch after that of the last entry before this segment, as in the file's name.
    pub first_epoch: Epoch,
    /// The least length of the file, bytes, header included.
    pub len: u64,
    /// Checksum of the last entry before this segment.
    pub chain: u32,
    /// Every segment before this one was synced before this header was written.
    pub synced_before: bool,
    /// The owner of the log.
    pub identity: Vec<u8>,
}

/// The reason why a block is not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    Version(u32),
    Damaged(&'static str),
}

impl SegmentHeader {
    pub fn encode(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(HEADER as usize);
        block.extend_from_slice(&MAGIC);
        block.extend_from_slice(&VERSION.to_le_bytes());
        block.extend_from_slice(&u32::from(self.synced_before).to_le_bytes());
        block.extend_from_slice(&self.first_epoch.0.to_le_bytes());
        block.extend_from_slice(&self.len.to_le_bytes());
        block.extend_from_slice(&self.chain.to_le_bytes());
        block.extend_from_slice(&(self.identity.len() as u32).to_le_bytes());
        block.extend_from_slice(&self.identity);
        block.resize(HEADER as usize - 4, 0);
        let crc = crc32c::crc32c(&block);
        block.extend_from_slice(&crc.to_le_bytes());
        block
    }

    pub fn decode(block: &[u8]) -> Result<SegmentHeader, HeaderError> {
        let Some((block, _)) = block.split_first_chunk::<{ HEADER as usize }>() else {
            return Err(HeaderError::Damaged("the file ends inside the segment header"));
        };
        if block[..8] != MAGIC {
            return Err(HeaderError::Damaged("the segment header has no magic number"));
        }
        if u32_at(block, 8) != VERSION {
            return Err(HeaderError::Version(u32_at(block, 8)));
        }
        if crc32c::crc32c(&block[..HEADER as usize - 4]) != u32_at(block, HEADER as usize - 4) {
            return Err(HeaderError::Damaged("the segment header's checksum is wrong"));
        }
        let identity = u32_at(block, 36) as usize;
        let header = SegmentHeader {
            first_epoch: Epoch(u64_at(block, 16)),
            len: u64_at(block, 24),
            chain: u32_at(block, 32),
            synced_before: u32_at(block, 12) != 0,
            identity: block.get(40..40 + identity.min(MAX_IDENTITY)).unwrap_or_default().to_vec(),
        };
        if identity > MAX_IDENTITY || header.len < HEADER + LINK || header.first_epoch == Epoch(0) {
            return Err(HeaderError::Damaged("the segment header contradicts itself"));
        }
        Ok(header)
    }

    /// Epoch of the last entry before this segment.
    pub fn previous_epoch(&self) -> Epoch {
        Epoch(self.first_epoch.0.saturating_sub(1))
    }

    /// The start of the checksum of every entry of this segment, so that an entry of another log or segment does not
    /// pass in this one.
    pub fn seed(&self) -> u32 {
        seed(&self.identity, self.first_epoch)
    }
}

/// See [`SegmentHeader::seed`].
pub(crate) fn seed(identity: &[u8], first_epoch: Epoch) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(identity), &first_epoch.0.to_le_bytes())
}

/// The head of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryHead {
    /// Checksum of all that follows, padding included.
    pub crc: u32,
    /// Checksum of the entry before.
    pub previous: u32,
    /// Payload bytes.
    pub len: u64,
    /// The epoch; of a mark or link, that of the entry before.
    pub epoch: Epoch,
    /// The term.
    pub term: u32,
    /// The entry's kind.
    pub kind: Kind,
    /// The place in the segment where the entry begins.
    pub offset: u64,
    /// The offset before which, as all earlier segments, the segment was synced before this entry was written.
    pub synced: u64,
}

impl EntryHead {
    pub fn encode(&self) -> [u8; HEAD as usize] {
        let mut head = [0; HEAD as usize];
        head[..4].copy_from_slice(&self.crc.to_le_bytes());
        head[4..8].copy_from_slice(&self.previous.to_le_bytes());
        head[8..16].copy_from_slice(&self.len.to_le_bytes());
        head[16..24].copy_from_slice(&self.epoch.0.to_le_bytes());
        head[24..28].copy_from_slice(&self.term.to_le_bytes());
        head[28..32].copy_from_slice(&self.kind.encode().to_le_bytes());
        head[32..40].copy_from_slice(&self.offset.to_le_bytes());
        head[40..48].copy_from_slice(&self.synced.to_le_bytes());
        head
    }

    /// Reads a head, and refuses one whose entry cannot stand at `offset` of a segment of `segment_len` bytes. The
    /// caller checks the checksum.
    pub fn decode(head: &[u8], offset: u64, segment_len: u64) -> Result<EntryHead, &'static str> {
        let Some((head, _)) = head.split_first_chunk::<{ HEAD as usize }>() else {
            return Err("the segment ends inside an entry");
        };
        let Some(kind) = Kind::decode(u32_at(head, 28)) else {
            return Err("no entry begins here");
        };
        let entry = EntryHead {
            crc: u32_at(head, 0),
            previous: u32_at(head, 4),
            len: u64_at(head, 8),
            epoch: Epoch(u64_at(head, 16)),
            term: u32_at(head, 24),
            kind,
            offset: u64_at(head, 32),
            synced: u64_at(head, 40),
        };
        if entry.offset != offset {
            return Err("the entry was written for another place");
        }
        if entry.len > segment_len || entry.end() > segment_len {
            return Err("the entry is longer than its segment");
        }
        if entry.synced > offset {
            return Err("the entry contradicts itself");
        }
        Ok(entry)
    }

    /// The place where the next entry begins.
    pub fn end(&self) -> u64 {
        self.offset + entry_size(self.len)
    }
}

/// Bytes that an entry with a payload of `len` bytes takes.
pub(crate) fn entry_size(len: u64) -> u64 {
    HEAD + len.next_multiple_of(8)
}

/// Zeros that fill a payload of `len` bytes up.
pub(crate) fn padding(len: u64) -> &'static [u8] {
    &[0; 8][..(len.next_multiple_of(8) - len) as usize]
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader {
            first_epoch: Epoch(17),
            len: 4096,
            chain: 0xdead_beef,
            synced_before: true,
            identity: b"cluster/node".to_vec(),
        }
    }

    #[test]
    fn a_header_comes_back_and_any_flipped_bit_is_seen() {
        let block = header().encode();
        assert_eq!(block.len() as u64, HEADER);
        assert_eq!(SegmentHeader::decode(&block), Ok(header()));
        for bit in 0..block.len() * 8 {
            let mut flipped = block.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&flipped).is_err(), "bit {bit}");
        }
        assert!(SegmentHeader::decode(&block[..511]).is_err());
    }

    #[test]
    fn another_version_is_named() {
        let mut block = header().encode();
        block[8] = 9;
        assert_eq!(SegmentHeader::decode(&block), Err(HeaderError::Version(9)));
    }

    #[test]
    fn only_our_names_are_ours() {
        assert_eq!(file_name(Epoch(255)), "log-00000000000000ff.seg");
        assert_eq!(parse_name("log-00000000000000ff.seg"), Some(Epoch(255)));
        for foreign in [
            "log-ff.seg",
            "log-00000000000000FF.seg",
            "log-00000000000000ff.seg.bak",
            "LOCK",
            "log-+0000000000000ff.seg",
        ] {
            assert_eq!(parse_name(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_head_stands_only_where_it_was_written() {
        let head = EntryHead {
            crc: 1,
            previous: 2,
            len: 13,
            epoch: Epoch(3),
            term: 4,
            kind: Kind::Data,
            offset: 512,
            synced: 512,
        };
        assert_eq!(EntryHead::decode(&head.encode(), 512, 1024), Ok(head));
        assert_eq!(head.end(), 512 + 48 + 16);
        assert!(EntryHead::decode(&head.encode(), 520, 1024).is_err());
        assert!(EntryHead::decode(&head.encode(), 512, 570).is_err());
        let huge = EntryHead { len: u64::MAX, ..head };
        assert!(EntryHead::decode(&huge.encode(), 512, 1024).is_err());
    }
}
