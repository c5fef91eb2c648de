//! Reads a checkpoint, and refuses it at the first byte that is not what was written.

use ordain_model::value::record_hash;
use ordain_model::wire::Codec as _;
use ordain_model::{Digest, Epoch, Map, Placement};
use ordain_role::{Directory, DiskError};

use crate::format::{
    HEAD, HEADER, Head, Header, HeaderError, KIND_END, KIND_REGIONS, OLDEST_VERSION, VERSION, file_name,
};
use crate::piece::{Item, Kind, items};
use crate::write::Totals;

/// The reason why a checkpoint is refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// The disk failed, or there is no such file.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Written by another version.
    #[error(
        "{file} has checkpoint format version {found} and this program reads versions {OLDEST_VERSION} to {VERSION}: use the program that wrote it"
    )]
    Version {
        /// The file.
        file: String,
        /// The version in the file.
        found: u32,
    },
    /// The checkpoint is of another cluster or node.
    #[error("{file} belongs to another node or cluster: check the data directory")]
    Identity {
        /// The file.
        file: String,
    },
    /// The key space was divided in another way when it was taken, or it is of another partition.
    #[error(
        "{file} is of {found}, and this node holds {expected}: check the data directory and the cluster's file"
    )]
    Layout {
        /// The file.
        file: String,
        /// The state that the file is of.
        found: String,
        /// The state that it should be of.
        expected: String,
    },
    /// The bytes are not what was written.
    #[error("checkpoint damaged: {file} at byte {offset}: {reason}")]
    Damaged {
        /// The file.
        file: String,
        /// The place of the first damage.
        offset: u64,
        /// The kind of damage.
        reason: &'static str,
    },
    /// The file ends before its end frame: it was being written, or was cut.
    #[error("checkpoint unfinished: {file} ends at byte {len}, before its end frame")]
    Unfinished {
        /// The file.
        file: String,
        /// The length of the file, bytes.
        len: u64,
    },
    /// The receiver of the items could not use one.
    #[error("{file} at byte {offset} cannot be used: {reason}")]
    Refused {
        /// The file.
        file: String,
        /// The place where the frame begins.
        offset: u64,
        /// The receiver's reason.
        reason: String,
    },
}

/// Reads the header of a checkpoint, and nothing more.
///
/// # Errors
/// [`CheckpointError`].
pub fn read_header(directory: &dyn Directory, epoch: Epoch) -> Result<Header, CheckpointError> {
    Source { directory, file: file_name(epoch) }.header(epoch).map(|(header, _)| header)
}

/// Reads the checkpoint of `expected.epoch`, hands its items to `visit`, and answers their totals. It must be of the
/// same cluster, layout and partition.
///
/// # Errors
/// [`CheckpointError`]; the items handed over until then are not to be used.
pub fn read(
    directory: &dyn Directory,
    expected: &Header,
    mut visit: impl FnMut(Item<'_>) -> Result<(), String>,
) -> Result<Totals, CheckpointError> {
    let source = Source { directory, file: file_name(expected.epoch) };
    let (header, begin) = source.header(expected.epoch)?;
    source.compare(&header, expected)?;
    source.frames(&header, begin, &mut visit)
}

/// Reads all of a checkpoint, whosever it is, and checks it.
///
/// # Errors
/// [`CheckpointError`].
pub fn verify(directory: &dyn Directory, epoch: Epoch) -> Result<(Header, Totals), CheckpointError> {
    let source = Source { directory, file: file_name(epoch) };
    let (header, begin) = source.header(epoch)?;
    let totals = source.frames(&header, begin, &mut |_| Ok(()))?;
    Ok((header, totals))
}

/// The reason why a frame is refused.
#[derive(Debug)]
pub(crate) enum Unfit {
    Damaged(&'static str),
    Refused(String),
}

impl Unfit {
    pub(crate) fn at(self, file: String, offset: u64) -> CheckpointError {
        match self {
            Unfit::Damaged(reason) => CheckpointError::Damaged { file, offset, reason },
            Unfit::Refused(reason) => CheckpointError::Refused { file, offset, reason },
        }
    }
}

/// The frames behind a header, as far as they were taken.
#[derive(Debug)]
pub(crate) struct Frames {
    pub(crate) header: Header,
    map: Map,
    pub(crate) totals: Totals,
}

impl Frames {
    pub(crate) fn of(header: Header) -> Frames {
        Frames { header, map: Map::FIRST, totals: Totals::default() }
    }

    /// Takes the next frame, which is not the last, and shows its items.
    pub(crate) fn take(
        &mut self,
        head: &Head,
        payload: &[u8],
        visit: &mut dyn FnMut(Item<'_>) -> Result<(), String>,
    ) -> Result<(), Unfit> {
        let kind = Kind::from_code(head.kind).ok_or(Unfit::Damaged("a frame of no kind"))?;
        let Frames { header, map, totals } = self;
        let slots = usize::from(header.slots.start)..usize::from(header.slots.end);
        let mut digest = Digest::default();
        let mut stray = false;
        let shown = items((kind, head.count), payload, &mut |item| {
            if let Item::Map(moved) = &item {
                *map = moved.clone();
            }
            if let Item::Record { db, key, cell, .. } = &item
                && let Some(value) = &cell.value
            {
                digest.add(record_hash(*db, key, value, cell.expires_at));
                let slot = header.placement.hash_of_record(*db, key).slot();
                stray |= match map.place(slot).map(|place| place.owner) {
                    Some(owner) => owner != header.partition,
                    None => !slots.contains(&slot),
                };
            }
            visit(item)
        });
        match shown {
            None => return Err(Unfit::Damaged("the frame does not hold what it says")),
            Some(Err(reason)) => return Err(Unfit::Refused(reason)),
            Some(Ok(())) if stray => return Err(Unfit::Damaged("a record of another partition's slots")),
            Some(Ok(())) => totals.add(kind, head.count, digest),
        }
        Ok(())
    }
}

/// Where the frames of a file begin, and the checksum that the first of them continues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begin {
    pub(crate) offset: u64,
    pub(crate) chain: u32,
}

pub(crate) struct Source<'a> {
    pub(crate) directory: &'a dyn Directory,
    pub(crate) file: String,
}

impl Source<'_> {
    fn damaged(&self, offset: u64, reason: &'static str) -> CheckpointError {
        CheckpointError::Damaged { file: self.file.clone(), offset, reason }
    }

    fn unfinished(&self, len: u64) -> CheckpointError {
        CheckpointError::Unfinished { file: self.file.clone(), len }
    }

    pub(crate) fn header(&self, epoch: Epoch) -> Result<(Header, Begin), CheckpointError> {
        let block = self.directory.read(&self.file, 0, HEADER as usize)?;
        let (mut header, chain, has_regions) = Header::decode(&block).map_err(|error| match error {
            HeaderError::Short => self.unfinished(block.len() as u64),
            HeaderError::Version(found) => CheckpointError::Version { file: self.file.clone(), found },
            HeaderError::Damaged(reason) => self.damaged(0, reason),
        })?;
        if header.epoch != epoch {
            return Err(self.damaged(0, "the header is of another epoch than the file's name"));
        }
        let mut begin = Begin { offset: HEADER, chain };
        if has_regions {
            let (head, payload, next) = self.frame(begin)?;
            let placement = Placement::from_bytes(&payload).filter(|placement| !placement.is_none());
            let placement = placement.filter(|_| (head.kind, head.count) == (KIND_REGIONS, 1));
            header.placement = placement.ok_or_else(|| {
                self.damaged(begin.offset, "the header's prefixes of regions do not follow it")
            })?;
            begin = Begin { offset: next, chain: head.chain };
        }
        Ok((header, begin))
    }

    /// A frame, its payload, and the place behind it.
    fn frame(&self, Begin { offset, chain }: Begin) -> Result<(Head, Vec<u8>, u64), CheckpointError> {
        let bytes = self.directory.read(&self.file, offset, HEAD)?;
        if bytes.len() < HEAD {
            return Err(self.unfinished(offset + bytes.len() as u64));
        }
        let head = Head::read(&bytes, chain)
            .ok_or_else(|| self.damaged(offset, "no frame that continues the one before begins here"))?;
        let at = offset + HEAD as u64;
        let payload = self.directory.read(&self.file, at, head.len as usize)?;
        if (payload.len() as u64) < head.len {
            return Err(self.unfinished(at + payload.len() as u64));
        }
        if crc32c::crc32c(&payload) != head.payload {
            return Err(self.damaged(offset, "the frame's checksum is wrong"));
        }
        Ok((head, payload, at + head.len))
    }

    fn compare(&self, header: &Header, expected: &Header) -> Result<(), CheckpointError> {
        let file = self.file.clone();
        if header.identity != expected.identity {
            return Err(CheckpointError::Identity { file });
        }
        let place = |header: &Header| {
            let regions = match header.placement.is_none() {
                true => String::new(),
                false => format!(", prefixes of regions {:?}", header.placement.texts()),
            };
            format!(
                "partition {} of {}, slots {} to {}, layout {}{regions}",
                header.partition,
                header.partitions,
                header.slots.start,
                header.slots.end.saturating_sub(1),
                header.layout
            )
        };
        let (found, wanted) = (place(header), place(expected));
        if found != wanted {
            return Err(CheckpointError::Layout { file, found, expected: wanted });
        }
        Ok(())
    }

    fn frames(
        &self,
        header: &Header,
        begin: Begin,
        visit: &mut dyn FnMut(Item<'_>) -> Result<(), String>,
    ) -> Result<Totals, CheckpointError> {
        let mut frames = Frames::of(header.clone());
        let Begin { mut offset, mut chain } = begin;
        loop {
            let (head, payload, next) = self.frame(Begin { offset, chain })?;
            chain = head.chain;
            if head.kind == KIND_END {
                return self.end(offset, next, &payload, frames.totals);
            }
            frames.take(&head, &payload, visit).map_err(|unfit| unfit.at(self.file.clone(), offset))?;
            offset = next;
        }
    }

    fn end(&self, offset: u64, next: u64, payload: &[u8], totals: Totals) -> Result<Totals, CheckpointError> {
        if Totals::from_bytes(payload) != Some(totals) {
            return Err(self.damaged(offset, "what it holds does not add up to what its end says"));
        }
        if !self.directory.read(&self.file, next, 1)?.is_empty() {
            return Err(self.damaged(next, "something follows the end"));
        }
        Ok(totals)
    }
}
