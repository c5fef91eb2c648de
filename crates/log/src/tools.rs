//! What the command line does with the log of a stopped node: look, verify, trim, copy up to an epoch.

use ordain_model::Epoch;
use ordain_role::{Bytes, Directory, DiskError, DiskOp};

use crate::config::LogError;
use crate::format::{HEADER, Kind, SegmentHeader, parse_name};
use crate::walk::{Item, READ, SegmentInfo, Torn, headers, walk};

/// The content of a sound log, in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Segment files.
    pub segments: usize,
    /// Entries, marks and links not counted.
    pub entries: u64,
    /// Their bytes.
    pub payload_bytes: u64,
    /// Epoch of the last entry before the first segment; 0 if nothing was trimmed.
    pub starts_after: Epoch,
    /// Epoch of the last entry.
    pub last_epoch: Epoch,
    /// The tail that the next start will cut.
    pub torn: Option<Torn>,
    /// Segments that were begun and never used; the next start removes them.
    pub leftover: Vec<String>,
}

/// Reads the whole log and hands over each segment and valid entry on the way. Changes nothing. Without an identity,
/// that of the first segment is taken to be right.
///
/// # Errors
/// The reason for which a start would refuse the log, after everything before the damage was handed over; also the
/// error of `visit`.
pub fn inspect(
    directory: &dyn Directory,
    identity: Option<&[u8]>,
    mut visit: impl FnMut(Item) -> Result<(), String>,
) -> Result<Report, LogError> {
    let walk = walk(directory, identity, &mut visit)?;
    Ok(Report {
        segments: walk.segments.len(),
        entries: walk.entries,
        payload_bytes: walk.payload_bytes,
        starts_after: walk.segments.first().map_or(Epoch(0), SegmentHeader::previous_epoch),
        last_epoch: walk.last_epoch,
        torn: walk.torn,
        leftover: walk.leftover,
    })
}

/// Epoch of the last entry before the first segment, by the segments' names; `None` where there is no segment. Changes
/// nothing and reads no segment.
///
/// # Errors
/// The disk's.
pub fn starts_after(directory: &dyn Directory) -> Result<Option<Epoch>, DiskError> {
    let first = directory.list()?.iter().filter_map(|(file, _)| parse_name(file)).min();
    Ok(first.map(|first| Epoch(first.0.saturating_sub(1))))
}

/// Reads the whole log and checks everything that a start would check. Changes nothing.
///
/// # Errors
/// Whatever a start would refuse the log for.
pub fn verify(directory: &dyn Directory, identity: Option<&[u8]>) -> Result<Report, LogError> {
    inspect(directory, identity, |_| Ok(()))
}

/// Removes the segments that hold nothing but epochs before `before`, and returns their names. The last segment
/// always stays.
///
/// # Errors
/// [`LogError`]; what was removed until then stays removed, and what is left is a log.
pub fn trim(
    directory: &mut dyn Directory,
    identity: Option<&[u8]>,
    before: Epoch,
) -> Result<Vec<String>, LogError> {
    let segments = headers(directory, identity)?;
    let mut removed = Vec::new();
    for pair in segments.windows(2) {
        let [(file, _), (_, next)] = pair else { break };
        if next.first_epoch > before {
            break;
        }
        // Removals go one at a time: in either order on the disk, a crash between two could leave a gap.
        directory.apply(&DiskOp::Remove { file: file.clone() })?;
        directory.apply(&DiskOp::SyncDirectory)?;
        removed.push(file.clone());
    }
    Ok(removed)
}

/// Copies a log into a directory without one, but for the entries of epochs after `last`, and syncs the copy. It is what the
/// log was when `last` had been written and nothing after it.
///
/// # Errors
/// Whatever a start would refuse the log for; nothing was copied then. Or that of either disk.
pub fn copy_until(from: &dyn Directory, to: &mut dyn Directory, last: Epoch) -> Result<(), LogError> {
    let mut segments: Vec<(SegmentInfo, u64)> = Vec::new();
    let mut is_over = false;
    walk(from, None, &mut |item| {
        match item {
            Item::Segment(info) if !is_over => segments.push((info, HEADER)),
            Item::Entry(entry, _) => {
                is_over |= entry.kind == Kind::Data && entry.epoch > last;
                let end = segments.last_mut().filter(|_| !is_over);
                end.into_iter().for_each(|(_, end)| *end = entry.offset + entry.size);
            }
            Item::Segment(_) => {}
        }
        Ok(())
    })?;
    // Zeros follow, as after the last entry of any log.
    for (SegmentInfo { file, len, .. }, end) in &segments {
        copy_file(from, to, file, *end, *len)?;
    }
    Ok(to.apply(&DiskOp::SyncDirectory)?)
}

/// Copies the first `end` bytes of a file into a new one of the same name and `len` bytes, and syncs that.
///
/// # Errors
/// The error of either disk.
pub fn copy_file(
    from: &dyn Directory,
    to: &mut dyn Directory,
    file: &str,
    end: u64,
    len: u64,
) -> Result<(), DiskError> {
    to.apply(&DiskOp::Create { file: file.to_owned(), len })?;
    let mut offset = 0;
    while offset < end {
        let piece = from.read(file, offset, READ.min((end - offset) as usize))?;
        if piece.is_empty() {
            return Err(DiskError::Io { file: file.to_owned(), reason: format!("it ends at byte {offset}") });
        }
        let read = piece.len() as u64;
        // Reserved bytes read as zeros already, and most of a log is reserved.
        if piece.iter().any(|byte| *byte != 0) {
            to.apply(&DiskOp::Write { file: file.to_owned(), offset, data: vec![Bytes::from(piece)] })?;
        }
        offset += read;
    }
    to.apply(&DiskOp::Sync { file: file.to_owned() })
}
