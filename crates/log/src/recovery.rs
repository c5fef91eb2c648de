//! From what a crash left to a writer: cut the torn tail, make what was read durable, go on.

use std::collections::VecDeque;

use ordain_model::Epoch;
use ordain_role::{Bytes, Directory, DiskError, DiskOp};

use crate::carry_out;
use crate::config::{LogConfig, LogError};
use crate::fetch::Place;
use crate::format::{AHEAD, EntryHead, HEAD, Kind, SegmentHeader, file_name};
use crate::walk::{Item, Link, Torn, Walk, walk};
use crate::writer::{Current, LogWriter, Progress, encode_link, zeros};

/// An entry of a log that is being opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The entry's epoch.
    pub epoch: Epoch,
    /// The entry's term.
    pub term: u32,
    /// The entry's bytes.
    pub payload: Vec<u8>,
}

/// The result of opening a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// There was no log; there is one now.
    pub created: bool,
    /// Epoch of the last entry before the first segment, which a checkpoint must cover; 0 if nothing was trimmed.
    pub starts_after: Epoch,
    /// Epoch of the last entry.
    pub last_epoch: Epoch,
    /// Entries.
    pub entries: u64,
    /// Their payload bytes.
    pub payload_bytes: u64,
    /// The torn tail that was cut, for the operator's log.
    pub torn: Option<Torn>,
    /// Segments that were removed with the tail, or were begun and never used.
    pub removed: Vec<String>,
}

impl LogWriter {
    /// Opens the log of a directory, or makes one, and hands every entry in order to `visit`.
    ///
    /// All checks come before the first change. When this returns, every entry handed over is durable, whatever became
    /// of the process that wrote it; so nothing that follows from the entries may leave the node before. If the disk
    /// is full, the writer may [be full](LogWriter::is_full).
    ///
    /// # Errors
    /// [`LogError`]; see there. If it is the disk's, opening again is safe.
    pub fn open(
        directory: &mut dyn Directory,
        config: LogConfig,
        mut visit: impl FnMut(Entry) -> Result<(), String>,
    ) -> Result<(LogWriter, Recovered), LogError> {
        LogWriter::open_placed(directory, config, |_, entry| visit(entry))
    }

    /// Opens a log as [`LogWriter::open`], and hands over each entry's place too, for a later [`Fetch`](crate::Fetch).
    ///
    /// # Errors
    /// As [`LogWriter::open`].
    pub fn open_placed(
        directory: &mut dyn Directory,
        config: LogConfig,
        visit: impl FnMut(Place, Entry) -> Result<(), String>,
    ) -> Result<(LogWriter, Recovered), LogError> {
        Unopened::read(directory, config, visit)?.open(directory)
    }
}

/// A log that was read and found to be in order, and of which nothing was changed yet.
#[derive(Debug)]
pub struct Unopened {
    config: LogConfig,
    walk: Walk,
}

impl Unopened {
    /// Reads the log of a directory as [`LogWriter::open_placed`] does, and changes nothing. The entries may not be
    /// durable before [`Unopened::open`].
    ///
    /// # Errors
    /// As [`LogWriter::open`], where there is no log and one is expected too.
    pub fn read(
        directory: &dyn Directory,
        config: LogConfig,
        mut visit: impl FnMut(Place, Entry) -> Result<(), String>,
    ) -> Result<Unopened, LogError> {
        config.check()?;
        let mut segment = Epoch(0);
        let walk = walk(directory, Some(&config.identity), &mut |item| match item {
            Item::Entry(info, payload) if info.kind == Kind::Data => {
                let place = Place { segment, offset: info.offset };
                visit(place, Entry { epoch: info.epoch, term: info.term, payload })
            }
            Item::Entry(..) => Ok(()),
            Item::Segment(info) => {
                segment = info.first_epoch;
                Ok(())
            }
        })?;
        if walk.segments.is_empty() && config.expect_existing {
            return Err(LogError::Absent);
        }
        Ok(Unopened { config, walk })
    }

    /// Epoch of the last entry; of a log that is yet to be made, the one that it begins after.
    pub fn last_epoch(&self) -> Epoch {
        if self.walk.segments.is_empty() { self.config.begins_after } else { self.walk.last_epoch }
    }

    /// The epoch of the last entry before the first segment, or after which a log begins that is yet to be made.
    pub fn starts_after(&self) -> Epoch {
        self.walk.segments.first().map_or(self.config.begins_after, SegmentHeader::previous_epoch)
    }

    /// Cuts the torn tail, makes what was read durable, or makes the log.
    ///
    /// # Errors
    /// The disk's; opening again is safe then.
    pub fn open(self, directory: &mut dyn Directory) -> Result<(LogWriter, Recovered), LogError> {
        let Unopened { config, walk } = self;
        // A segment prepared ahead was never written to, and its length is unknown.
        let ahead = directory.list()?.into_iter().map(|(file, _)| file).find(|file| file == AHEAD);
        if let Some(file) = ahead {
            directory.apply(&DiskOp::Remove { file })?;
        }
        // Removal goes from the end on, so that a crash in between leaves a log.
        for file in walk.leftover.iter().rev() {
            directory.apply(&DiskOp::Remove { file: file.clone() })?;
            directory.apply(&DiskOp::SyncDirectory)?;
        }
        let mut recovered = Recovered {
            created: walk.segments.is_empty(),
            starts_after: walk.segments.first().map_or(Epoch(0), SegmentHeader::previous_epoch),
            last_epoch: walk.last_epoch,
            entries: walk.entries,
            payload_bytes: walk.payload_bytes,
            torn: walk.torn.clone(),
            removed: walk.leftover.clone(),
        };
        recovered.removed.sort();
        let mut last_epoch = walk.last_epoch;
        let current = match walk.segments.last() {
            None => {
                last_epoch = config.begins_after;
                (recovered.starts_after, recovered.last_epoch) = (last_epoch, last_epoch);
                Current::empty(create(directory, &config)?)
            }
            Some(header) => {
                make_durable(directory, header, &walk)?;
                Current {
                    header: header.clone(),
                    position: walk.position,
                    synced: walk.position,
                    has_data: walk.has_data,
                }
            }
        };
        let is_marked = walk.last_kind == Some(Kind::Mark) && walk.synced + HEAD == walk.position;
        let mut older: VecDeque<Epoch> = walk.segments.iter().map(|header| header.first_epoch).collect();
        older.pop_back();
        let mut writer = LogWriter::new(config, current, older, walk.chain, last_epoch, is_marked);
        if walk.last_kind.is_some() && !is_marked {
            // Behind this mark damage to any entry handed over is damage, not a torn tail.
            writer.force_mark();
            while !writer.is_idle()
                && let Some(request) = writer.next_request()
            {
                let done = carry_out(directory, &request);
                if let (Some(Progress::Failed { .. }), Err(error)) = (writer.done(&done), done.result) {
                    return Err(error.into());
                }
            }
        }
        Ok((writer, recovered))
    }
}

fn create(directory: &mut dyn Directory, config: &LogConfig) -> Result<SegmentHeader, DiskError> {
    let header = SegmentHeader {
        first_epoch: config.begins_after.next(),
        len: config.segment_len(0),
        chain: 0,
        synced_before: true,
        identity: config.identity.clone(),
    };
    let file = file_name(header.first_epoch);
    directory.apply(&DiskOp::Create { file: file.clone(), len: header.len })?;
    let data = vec![Bytes::from(header.encode())];
    directory.apply(&DiskOp::Write { file: file.clone(), offset: 0, data })?;
    directory.apply(&DiskOp::Sync { file })?;
    directory.apply(&DiskOp::SyncDirectory)?;
    Ok(header)
}

/// Makes the last segment as the walk found it, and every entry of the walk durable.
///
/// Bytes that were read may never have reached the disk: written and not synced, or forgotten by the system after a
/// failed sync. So all that no entry attests is written again.
fn make_durable(directory: &mut dyn Directory, header: &SegmentHeader, walk: &Walk) -> Result<(), DiskError> {
    const PIECE: u64 = 1 << 20;
    let file = file_name(header.first_epoch);
    let write = |offset, data| DiskOp::Write { file: file.clone(), offset, data };
    if let Some(torn) = &walk.torn
        && torn.bytes > 0
    {
        directory.apply(&write(torn.offset, zeros(torn.bytes)))?;
    }
    let mut at = walk.synced;
    while at < walk.position {
        let len = PIECE.min(walk.position - at);
        let bytes = directory.read(&file, at, len as usize)?;
        directory.apply(&write(at, vec![Bytes::from(bytes)]))?;
        at += len;
    }
    if !walk.has_data {
        directory.apply(&write(0, vec![Bytes::from(header.encode())]))?;
    }
    let link = match (&walk.link, walk.segments.as_slice()) {
        (Some(link), [.., before, _]) => Some((link, before)),
        _ => None,
    };
    // An entry behind it proves that the link to its segment was synced, if entries are.
    if let Some((link, before)) = link.filter(|_| walk.last_kind.is_none()) {
        write_link(directory, before, link)?;
    }
    let mut following = None;
    for segment in walk.segments.iter().rev() {
        if following.is_some_and(|following: &SegmentHeader| following.synced_before) {
            break;
        }
        directory.apply(&DiskOp::Sync { file: file_name(segment.first_epoch) })?;
        following = Some(segment);
    }
    directory.apply(&DiskOp::SyncDirectory)?;
    match link.filter(|(link, _)| link.is_early()) {
        Some((link, before)) => {
            let head = EntryHead { term: 0, ..link.head };
            write_link(directory, before, &Link { head, ..*link })
        }
        None => Ok(()),
    }
}

/// Writes a link where it stands, and syncs it.
fn write_link(directory: &mut dyn Directory, before: &SegmentHeader, link: &Link) -> Result<(), DiskError> {
    let (file, offset) = (file_name(before.first_epoch), link.head.offset);
    let mut data = Vec::new();
    encode_link(link.head, before.seed(), link.next, &mut data);
    directory.apply(&DiskOp::Write { file: file.clone(), offset, data })?;
    directory.apply(&DiskOp::Sync { file })
}
