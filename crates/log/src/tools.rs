//! What the command line does with the log of a stopped node: look, verify, trim.

use ordain_model::Epoch;
use ordain_role::{Directory, DiskOp};

use crate::config::LogError;
use crate::format::SegmentHeader;
use crate::walk::{Item, Torn, headers, walk};

/// What a sound log holds.
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

/// Reads the whole log and shows each segment and valid entry on the way. Changes nothing. Without an identity,
/// that of the first segment is taken to be right.
///
/// # Errors
/// Whatever a start would refuse the log for; everything before the damage has been shown by then. Also what
/// `visit` says.
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
        // One at a time: if two removals could reach the disk in either order, a crash could leave a gap.
        directory.apply(&DiskOp::Remove { file: file.clone() })?;
        directory.apply(&DiskOp::SyncDirectory)?;
        removed.push(file.clone());
    }
    Ok(removed)
}
