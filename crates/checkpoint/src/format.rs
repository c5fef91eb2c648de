//! The bytes of a checkpoint's files: names, header block, heads of frames, end, seal.
//!
//! All numbers are little-endian. `docs/checkpoint-format.md` has the tables.

use ordain_model::wire::{self, Codec, Reader};
use ordain_model::{Epoch, Layout, Millis, PartitionId, Placement, codec};

use crate::write::Totals;

/// Version of the format that this crate writes of a layout in which regions have prefixes. Every other layout is written in the
/// version before, which has no place for them.
pub const VERSION: u32 = 4;
const WITHOUT_REGIONS: u32 = 3;

/// The oldest version that this crate reads.
pub const OLDEST_VERSION: u32 = 2;

/// Length of the header block: one sector, so that it is written whole or not at all.
pub(crate) const HEADER: u64 = 512;

/// Longest identity that a header can hold: as long as that of a log.
const MAX_IDENTITY: usize = 256;

/// Length of a frame's head.
pub(crate) const HEAD: usize = 24;

/// Kind of the end frame; those before it are of [pieces](crate::Kind).
pub(crate) const KIND_END: u32 = 0x4b43_4504;

/// Kind of the frame with the prefixes of regions, which belongs to the header and stands right behind it.
pub(crate) const KIND_REGIONS: u32 = 0x4b43_4506;

const MAGIC: [u8; 8] = *b"ORDAINCK";
const SEAL_MAGIC: [u8; 8] = *b"ORDAINCS";
const PREFIX: &str = "checkpoint-";

/// The name of the file that holds the state at the end of an epoch.
pub fn file_name(epoch: Epoch) -> String {
    format!("{PREFIX}{:016x}.state", epoch.0)
}

/// The name of the file that marks the checkpoint of an epoch as complete.
pub fn seal_name(epoch: Epoch) -> String {
    format!("{PREFIX}{:016x}.seal", epoch.0)
}

/// The epoch in the name of one of a checkpoint's two files, and whether it is the seal; `None` if the file is not ours.
pub(crate) fn parse_name(file: &str) -> Option<(Epoch, bool)> {
    let (digits, kind) = file.strip_prefix(PREFIX)?.split_once('.')?;
    let epoch = Epoch(u64::from_str_radix(digits, 16).ok()?);
    let is_seal = kind == "seal";
    let name = if is_seal { seal_name(epoch) } else { file_name(epoch) };
    (name == file).then_some((epoch, is_seal))
}

/// The first block of a checkpoint: the cluster, partition and epoch of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The identity of the node's cluster, as in the node's log.
    pub identity: Vec<u8>,
    /// The version of the layout.
    pub layout: u32,
    /// The number of partitions.
    pub partitions: u16,
    /// The partition.
    pub partition: PartitionId,
    /// The partition's slots by the cluster's file. Slots that were moved by then are in a frame of their own.
    pub slots: std::ops::Range<u16>,
    /// The prefixes of regions; they are not in the block.
    pub placement: Placement,
    /// The last epoch whose effects are in the checkpoint.
    pub epoch: Epoch,
}

/// The reason why a block is not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    Short,
    Version(u32),
    Damaged(&'static str),
}

impl Header {
    /// The header of the checkpoint of a partition.
    pub fn new(identity: &[u8], layout: &Layout, partition: PartitionId, epoch: Epoch) -> Header {
        let shards = layout.shards_of(partition);
        let first = layout.slots_of_shard(shards.start).start;
        let end = layout.slots_of_shard(shards.end - 1).end;
        Header {
            identity: identity.to_vec(),
            layout: layout.version(),
            partitions: layout.partitions(),
            partition,
            slots: first as u16..end as u16,
            placement: layout.placement().clone(),
            epoch,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(HEADER as usize);
        let version = if self.placement.is_none() { WITHOUT_REGIONS } else { VERSION };
        (MAGIC, version, self.layout).encode(&mut block);
        (self.partitions, self.partition).encode(&mut block);
        (self.slots.start, self.slots.end, self.epoch).encode(&mut block);
        wire::bytes(&mut block, &self.identity[..self.identity.len().min(MAX_IDENTITY)]);
        block.resize(HEADER as usize - 4, 0);
        let crc = crc32c::crc32c(&block);
        wire::u32(&mut block, crc);
        block
    }

    /// Reads a header block, the checksum that all frames continue from, and whether the first frame has the prefixes of regions.
    pub(crate) fn decode(block: &[u8]) -> Result<(Header, u32, bool), HeaderError> {
        if (block.len() as u64) < HEADER {
            return Err(HeaderError::Short);
        }
        let (body, crc) = block.split_at(HEADER as usize - 4);
        let rest = body.strip_prefix(&MAGIC).ok_or(HeaderError::Damaged("the header has no magic number"))?;
        let mut rest = Reader::new(rest);
        // Another version may have its checksum elsewhere.
        let version = match rest.u32() {
            Some(version @ OLDEST_VERSION..=VERSION) => version,
            found => return Err(HeaderError::Version(found.unwrap_or_default())),
        };
        let chain = crc32c::crc32c(body);
        if u32::from_bytes(crc) != Some(chain) {
            return Err(HeaderError::Damaged("the header's checksum is wrong"));
        }
        let mut parse = || {
            let (layout, partitions, partition) = Codec::decode(&mut rest)?;
            let ((first, end, epoch), identity) = Codec::decode(&mut rest)?;
            let (slots, placement) = (first..end, Placement::NONE);
            Some(Header { identity, layout, partitions, partition, slots, placement, epoch })
        };
        let header = parse().ok_or(HeaderError::Damaged("the header contradicts itself"))?;
        Ok((header, chain, version > WITHOUT_REGIONS))
    }
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub kind: u32,
    /// The number of items.
    pub count: u32,
    /// The length of the payload, bytes; 64 bits, as a hash of many fields is in one frame.
    pub len: u64,
    /// Checksum of the payload.
    pub payload: u32,
    /// Checksum of all this, continued from that of the frame before.
    pub chain: u32,
}

codec!(struct Head { kind, count, len, payload, chain });

impl Head {
    pub fn of(chain: u32, kind: u32, count: u32, payload: &[u8]) -> Head {
        let mut head =
            Head { kind, count, len: payload.len() as u64, payload: crc32c::crc32c(payload), chain: 0 };
        head.chain = head.chain_from(chain);
        head
    }

    fn chain_from(&self, chain: u32) -> u32 {
        crc32c::crc32c_append(chain, &self.to_bytes()[..HEAD - size_of_val(&self.chain)])
    }

    /// Reads a head that must continue from `chain`.
    pub fn read(bytes: &[u8], chain: u32) -> Option<Head> {
        let head = Head::decode(&mut Reader::new(bytes))?;
        (head.chain_from(chain) == head.chain).then_some(head)
    }
}

codec!(struct Totals { records, outcomes, digest });

/// The mark of a complete checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The checkpoint's epoch.
    pub epoch: Epoch,
    /// The time when it became complete, by the node's wall clock.
    pub at: Millis,
}

impl Seal {
    /// The whole content of its file.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = (SEAL_MAGIC, self.epoch, self.at).to_bytes();
        let crc = crc32c::crc32c(&bytes);
        wire::u32(&mut bytes, crc);
        bytes
    }

    /// Reads the content of its file. A crash may have cut it short: then there is no seal.
    pub fn decode(bytes: &[u8]) -> Option<Seal> {
        let (body, crc) = bytes.split_last_chunk()?;
        let (SEAL_MAGIC, epoch, at) = Codec::from_bytes(body)? else { return None };
        (u32::from_le_bytes(*crc) == crc32c::crc32c(body)).then_some(Seal { epoch, at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_names_are_ours() {
        for epoch in [0, 255, u64::MAX].map(Epoch) {
            assert_eq!(parse_name(&file_name(epoch)), Some((epoch, false)));
            assert_eq!(parse_name(&seal_name(epoch)), Some((epoch, true)));
        }
        for foreign in ["checkpoint-ff.state", "checkpoint-00000000000000FF.seal", "log-00000000000000ff.seg"]
        {
            assert_eq!(parse_name(foreign), None, "{foreign}");
        }
        assert_eq!(parse_name("checkpoint-00000000000000ff.state.bak"), None);
        assert_eq!(parse_name("checkpoint-+0000000000000ff.seal"), None);
    }

    #[test]
    fn a_header_comes_back_and_says_whose_slots_it_is_of() {
        let layout = Layout::ranges(4, vec![0, 10, 1000], 2).expect("a layout");
        let header = Header::new(b"cluster", &layout, PartitionId(2), Epoch(7));
        assert_eq!(header.slots, 1000..1024);
        let block = header.encode();
        assert_eq!(block.len() as u64, HEADER);
        assert_eq!(
            Header::decode(&block).map(|(read, _, has_regions)| (read, has_regions)),
            Ok((header, false))
        );
        assert_eq!(Header::decode(&block[..511]), Err(HeaderError::Short));
    }

    #[test]
    fn older_versions_are_read_and_others_named() {
        let layout = Layout::ranges(1, vec![0], 2).expect("a layout");
        let header = Header::new(b"cluster", &layout, PartitionId(0), Epoch(7));
        for version in 0..9 {
            let mut block = header.encode();
            block[8] = version;
            let body = HEADER as usize - 4;
            let crc = crc32c::crc32c(&block[..body]);
            block[body..].copy_from_slice(&crc.to_le_bytes());
            let read = Header::decode(&block).map(|(read, _, has_regions)| (read, has_regions));
            let is_read = (2..=4).contains(&version);
            let expected = (header.clone(), version == 4);
            assert_eq!(read, if is_read { Ok(expected) } else { Err(HeaderError::Version(version.into())) });
        }
    }

    #[test]
    fn a_seal_counts_whole_and_unchanged_or_not_at_all() {
        let seal = Seal { epoch: Epoch(3), at: Millis(1_700_000_000_000) };
        let bytes = seal.encode();
        assert_eq!(Seal::decode(&bytes), Some(seal));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Seal::decode(&flipped), None, "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert_eq!(Seal::decode(&bytes[..len]), None);
        }
    }
}
