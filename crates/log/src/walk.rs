//! Reads a whole log, judges it, and changes nothing.
//!
//! One walk serves recovery, verification and inspection, so that what `ordain log verify` calls sound is what
//! the node starts from. The judgement that matters is at the first place where no valid entry stands: is this
//! the tail that a crash may cut, or damage to what had been synced? Each entry says up to where everything had
//! been synced when it was written, so any valid entry from later on can bear witness (see [`witness`]).

use ordain_model::Epoch;
use ordain_role::{Directory, DiskError};

use crate::config::LogError;
use crate::format::{
    EARLY, EntryHead, HEAD, HEADER, HeaderError, Kind, SegmentHeader, file_name, padding, parse_name,
};

/// The bytes read at a time. An entry that is longer is read in one piece.
pub(crate) const READ: usize = 1 << 20;

/// A segment that was met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// The file.
    pub file: String,
    /// The epoch after that of the last entry before the segment.
    pub first_epoch: Epoch,
    /// The length in bytes, as reserved.
    pub len: u64,
    /// Everything before the segment was synced when it was begun.
    pub synced_before: bool,
    /// The owner of the log.
    pub identity: Vec<u8>,
}

/// An entry that was met, and is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryInfo {
    /// The segment's file.
    pub file: String,
    /// The place in the file where the entry begins.
    pub offset: u64,
    /// Bytes that it takes, head and padding included.
    pub size: u64,
    /// The entry's kind.
    pub kind: Kind,
    /// The epoch; of a mark or link, that of the entry before.
    pub epoch: Epoch,
    /// The term.
    pub term: u32,
    /// The offset of the segment before which everything was synced when the entry was written.
    pub synced: u64,
}

/// An item of a log, in order.
#[derive(Debug)]
pub enum Item {
    /// A segment begins.
    Segment(SegmentInfo),
    /// An entry, with its payload.
    Entry(EntryInfo, Vec<u8>),
}

/// The tail that a crash tore and that recovery cuts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The segment.
    pub file: String,
    /// The place where the log ends.
    pub offset: u64,
    /// Bytes from there to the last one that is not zero.
    pub bytes: u64,
    /// The kind of damage at `offset`.
    pub reason: &'static str,
}

/// The last entry of a segment that another follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub head: EntryHead,
    /// The first epoch of the segment that it names.
    pub next: Epoch,
}

impl Link {
    /// Tells whether the segment was begun before it was durable, header and name, by a writer that did not wait.
    pub const fn is_early(&self) -> bool {
        self.head.term == EARLY
    }
}

/// A log that is sound up to where it ends.
#[derive(Debug)]
pub(crate) struct Walk {
    /// The segments, in order.
    pub segments: Vec<SegmentHeader>,
    /// Offset in the last segment at which the log ends.
    pub position: u64,
    /// Checksum of the last data entry or mark.
    pub chain: u32,
    /// Epoch of the last data entry.
    pub last_epoch: Epoch,
    /// The synced offset that the last entry of the last segment attests.
    pub synced: u64,
    /// The link to the last segment, in the one before it.
    pub link: Option<Link>,
    /// Kind of the last entry of the last segment.
    pub last_kind: Option<Kind>,
    /// The last segment has a data entry.
    pub has_data: bool,
    /// Data entries.
    pub entries: u64,
    /// Their payload bytes.
    pub payload_bytes: u64,
    /// The torn tail, which has to be cut.
    pub torn: Option<Torn>,
    /// Files of segments that were begun and never used, to be removed.
    pub leftover: Vec<String>,
}

/// The visitor of each item; an error stops the walk.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(Item) -> Result<(), String>;

/// A file read through a window.
struct Window<'a> {
    dir: &'a dyn Directory,
    file: &'a str,
    base: u64,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    fn new(dir: &'a dyn Directory, file: &'a str) -> Window<'a> {
        Window { dir, file, base: 0, bytes: Vec::new() }
    }

    /// Reads up to `len` bytes from `offset` on; fewer only at the end of the file.
    fn slice(&mut self, offset: u64, len: usize) -> Result<&[u8], DiskError> {
        let inside = offset >= self.base && offset + len as u64 <= self.base + self.bytes.len() as u64;
        if !inside {
            self.bytes = self.dir.read(self.file, offset, len.max(READ))?;
            self.base = offset;
        }
        let rest = &self.bytes[(offset - self.base) as usize..];
        Ok(&rest[..len.min(rest.len())])
    }

    fn owned(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, DiskError> {
        if len > READ / 4 {
            self.dir.read(self.file, offset, len)
        } else {
            Ok(self.slice(offset, len)?.to_vec())
        }
    }

    /// Calls `f` with all bytes from `from` to `to`, piece by piece.
    fn pieces(&mut self, from: u64, to: u64, mut f: impl FnMut(u64, &[u8])) -> Result<(), DiskError> {
        let mut at = from;
        while at < to {
            let piece = self.slice(at, READ.min((to - at) as usize))?;
            if piece.is_empty() {
                break;
            }
            f(at, piece);
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// The place after the last byte from `from` to `to` that is not zero.
    fn last_nonzero(&mut self, from: u64, to: u64) -> Result<Option<u64>, DiskError> {
        let mut last = None;
        self.pieces(from, to, |at, piece| {
            // Whole pieces of zeros are the rule, and comparing them is much faster than looking for a byte.
            if piece.chunks(64).any(|chunk| chunk.iter().fold(0, |all, byte| all | byte) != 0) {
                last = piece.iter().rposition(|byte| *byte != 0).map(|index| at + index as u64 + 1);
            }
        })?;
        Ok(last)
    }

    /// Tells whether the checksum in `head` is right, without holding the payload.
    fn holds(&mut self, head: &EntryHead, seed: u32) -> Result<bool, DiskError> {
        let mut crc = crc32c::crc32c_append(seed, &head.encode()[4..]);
        self.pieces(head.offset + HEAD, head.end(), |_, piece| crc = crc32c::crc32c_append(crc, piece))?;
        Ok(crc == head.crc)
    }
}

/// The finding at a place.
enum Found {
    Entry(EntryHead, Vec<u8>),
    /// Zeros to the end of the segment.
    End,
    /// No valid entry, and the reason.
    Nothing(&'static str),
    /// An entry that is whole and cannot follow the one before it: no crash writes that.
    Wrong(&'static str),
}

struct Segment {
    file: String,
    header: SegmentHeader,
}

impl Segment {
    fn info(&self) -> SegmentInfo {
        SegmentInfo {
            file: self.file.clone(),
            first_epoch: self.header.first_epoch,
            len: self.header.len,
            synced_before: self.header.synced_before,
            identity: self.header.identity.clone(),
        }
    }

    fn find(
        &self,
        window: &mut Window<'_>,
        offset: u64,
        chain: u32,
        last: Epoch,
    ) -> Result<Found, DiskError> {
        let len = self.header.len;
        let room = len.saturating_sub(offset).min(HEAD) as usize;
        let bytes = window.slice(offset, room)?;
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(match window.last_nonzero(offset, len)? {
                None => Found::End,
                Some(_) => Found::Nothing("an entry is missing before bytes that were written after it"),
            });
        }
        let head = match EntryHead::decode(bytes, offset, len) {
            Ok(head) => head,
            Err(reason) => return Ok(Found::Nothing(reason)),
        };
        let payload = window.owned(offset + HEAD, (head.end() - offset - HEAD) as usize)?;
        let crc = crc32c::crc32c_append(self.header.seed(), &head.encode()[4..]);
        if crc32c::crc32c_append(crc, &payload) != head.crc {
            return Ok(Found::Nothing("the entry's checksum is wrong"));
        }
        let follows = match head.kind {
            Kind::Data => head.epoch > last,
            Kind::Mark | Kind::Link => head.epoch == last,
        };
        let says_what_can_be = head.synced == 0 || head.synced >= HEADER;
        if head.previous != chain || !follows || !says_what_can_be {
            return Ok(Found::Wrong("a whole entry that does not follow the one before it"));
        }
        let mut payload = payload;
        let padding = padding(head.len).len();
        payload.truncate(payload.len() - padding);
        Ok(Found::Entry(head, payload))
    }
}

/// Looks for a valid entry after `from` that attests more than `threshold` synced bytes of the segment; answers its
/// place and epoch.
fn witness(
    dir: &dyn Directory,
    segment: &Segment,
    from: u64,
    threshold: u64,
) -> Result<Option<(u64, Epoch)>, DiskError> {
    let mut window = Window::new(dir, &segment.file);
    let len = segment.header.len;
    let mut offset = from;
    while offset + HEAD <= len {
        let bytes = window.slice(offset, HEAD as usize)?;
        if let Ok(head) = EntryHead::decode(bytes, offset, len)
            && head.synced > threshold
            && window.holds(&head, segment.header.seed())?
        {
            return Ok(Some((offset, head.epoch)));
        }
        offset += 8;
    }
    Ok(None)
}

fn damaged(file: &str, offset: u64, reason: impl Into<String>) -> LogError {
    LogError::Damaged { file: file.to_owned(), offset, reason: reason.into() }
}

/// The log's files.
struct Files {
    /// In order.
    segments: Vec<Segment>,
    /// A last one that was being created when the machine stopped.
    unfinished: Option<Unfinished>,
}

/// A segment without a header, or that is shorter than its header says.
struct Unfinished {
    file: String,
    first_epoch: Epoch,
    /// The place and the kind of what is missing.
    lacks: (u64, String),
    /// Something was written to it besides.
    is_used: bool,
}

impl Unfinished {
    fn damaged(&self) -> LogError {
        damaged(&self.file, self.lacks.0, self.lacks.1.clone())
    }

    /// Tells whether the segment may have been lost: its writer never knew it to be durable, header and name. Else it
    /// is damaged.
    fn may_be_lost(&self, dir: &dyn Directory, before: &[Segment]) -> Result<(), LogError> {
        let Some(Segment { header, .. }) = before.last().filter(|_| self.is_used) else { return Ok(()) };
        let files = dir.list()?;
        let len = files.iter().find(|(file, _)| *file == self.file).map_or(0, |(_, len)| *len);
        let header = SegmentHeader { first_epoch: self.first_epoch, len, ..header.clone() };
        let segment = Segment { file: self.file.clone(), header };
        match witness(dir, &segment, HEADER, HEADER - 1)? {
            Some(_) => Err(self.damaged()),
            None => Ok(()),
        }
    }
}

/// Reads the headers of all segments.
fn segments(dir: &dyn Directory, identity: Option<&[u8]>) -> Result<Files, LogError> {
    let mut found: Vec<(Epoch, String, u64)> = dir
        .list()?
        .into_iter()
        .filter_map(|(file, len)| parse_name(&file).map(|first| (first, file, len)))
        .collect();
    found.sort();
    let mut segments: Vec<Segment> = Vec::with_capacity(found.len());
    let count = found.len();
    for (index, (first, file, file_len)) in found.into_iter().enumerate() {
        let mut window = Window::new(dir, &file);
        let header = match SegmentHeader::decode(window.slice(0, HEADER as usize)?) {
            Ok(header) => header,
            Err(HeaderError::Version(found)) => return Err(LogError::Version { file, found }),
            Err(HeaderError::Damaged(reason)) => {
                let is_used = window.last_nonzero(HEADER, file_len)?.is_some();
                let lacks = (0, reason.to_owned());
                let unfinished = Unfinished { file, first_epoch: first, lacks, is_used };
                if index + 1 == count && !(is_used && segments.is_empty()) {
                    return Ok(Files { segments, unfinished: Some(unfinished) });
                }
                return Err(unfinished.damaged());
            }
        };
        if header.first_epoch != first {
            return Err(damaged(&file, 16, "the header belongs to a segment of another name"));
        }
        let expected = identity.or(segments.first().map(|segment| segment.header.identity.as_slice()));
        if expected.is_some_and(|expected| expected != header.identity) {
            return Err(LogError::Identity { file });
        }
        if header.len > file_len {
            let lacks = (file_len, format!("the file ends here and had {} bytes", header.len));
            let unfinished = Unfinished { file, first_epoch: first, lacks, is_used: true };
            if index + 1 == count && !segments.is_empty() {
                return Ok(Files { segments, unfinished: Some(unfinished) });
            }
            return Err(unfinished.damaged());
        }
        segments.push(Segment { file, header });
    }
    Ok(Files { segments, unfinished: None })
}

/// The headers of all segments, in order, without what was left of an unfinished creation.
pub(crate) fn headers(
    dir: &dyn Directory,
    identity: Option<&[u8]>,
) -> Result<Vec<(String, SegmentHeader)>, LogError> {
    let Files { segments, unfinished } = segments(dir, identity)?;
    unfinished.iter().try_for_each(|unfinished| unfinished.may_be_lost(dir, &segments))?;
    Ok(segments.into_iter().map(|segment| (segment.file, segment.header)).collect())
}

/// Reads the log from its beginning to its end. Without `identity`, the first segment's is taken to be right.
///
/// # Errors
/// [`LogError`] if anything is there that a crash cannot have left.
pub(crate) fn walk(dir: &dyn Directory, identity: Option<&[u8]>, visit: Visit<'_>) -> Result<Walk, LogError> {
    let Files { segments: mut found, unfinished } = segments(dir, identity)?;
    let mut walk = Walk {
        segments: Vec::new(),
        position: HEADER,
        chain: found.first().map_or(0, |segment| segment.header.chain),
        last_epoch: found.first().map_or(Epoch(0), |segment| segment.header.previous_epoch()),
        synced: HEADER,
        link: None,
        last_kind: None,
        has_data: false,
        entries: 0,
        payload_bytes: 0,
        torn: None,
        leftover: unfinished.iter().map(|unfinished| unfinished.file.clone()).collect(),
    };
    for index in 0..found.len() {
        let segment = &found[index];
        if segment.header.chain != walk.chain || segment.header.previous_epoch() != walk.last_epoch {
            return Err(damaged(&segment.file, 0, "the segment does not continue the one before it"));
        }
        visit(Item::Segment(segment.info())).map_err(|reason| damaged(&segment.file, 0, reason))?;
        let link = match walk_segment(dir, segment, &mut walk, visit)? {
            Ended::Linked(link) => link,
            Ended::Here(reason) => {
                unfinished.iter().try_for_each(|unfinished| unfinished.may_be_lost(dir, &found))?;
                settle(dir, &found[index..], reason, &mut walk)?;
                found.truncate(index + 1);
                break;
            }
        };
        match (found.get(index + 1), &unfinished) {
            (Some(segment), _) if segment.header.first_epoch == link.next => {
                walk.link = Some(link);
            }
            (None, Some(unfinished)) if unfinished.first_epoch == link.next => {
                if !link.is_early() {
                    return Err(unfinished.damaged());
                }
                unfinished.may_be_lost(dir, &found)?;
                walk.torn = torn(dir, segment, walk.position, LOST)?;
                break;
            }
            (None, None) if link.is_early() => {
                walk.torn = torn(dir, segment, walk.position, LOST)?;
                break;
            }
            _ => {
                return Err(LogError::Missing { file: file_name(link.next), before: segment.file.clone() });
            }
        }
    }
    walk.segments = found.into_iter().map(|segment| segment.header).collect();
    Ok(walk)
}

/// The reason for a cut before a link.
const LOST: &str = "the segment that it links to was not on the disk yet";

/// The end of a segment: at a link, or where no valid entry stands, with the reason if it is not plain zeros. The
/// walk's position is there.
enum Ended {
    Linked(Link),
    Here(Option<&'static str>),
}

fn walk_segment(
    dir: &dyn Directory,
    segment: &Segment,
    walk: &mut Walk,
    visit: Visit<'_>,
) -> Result<Ended, LogError> {
    let mut window = Window::new(dir, &segment.file);
    (walk.position, walk.synced, walk.last_kind, walk.has_data) = (HEADER, HEADER, None, false);
    loop {
        let offset = walk.position;
        let (head, payload) = match segment.find(&mut window, offset, walk.chain, walk.last_epoch)? {
            Found::Entry(head, payload) => (head, payload),
            Found::End => return Ok(Ended::Here(None)),
            Found::Nothing(reason) => return Ok(Ended::Here(Some(reason))),
            Found::Wrong(reason) => return Err(damaged(&segment.file, offset, reason)),
        };
        let next = payload.as_slice().try_into().map(u64::from_le_bytes);
        let info = EntryInfo {
            file: segment.file.clone(),
            offset,
            size: head.end() - offset,
            kind: head.kind,
            epoch: head.epoch,
            term: head.term,
            synced: head.synced,
        };
        if head.kind == Kind::Data {
            walk.has_data = true;
            walk.entries += 1;
            walk.payload_bytes += head.len;
        }
        visit(Item::Entry(info, payload)).map_err(|reason| LogError::Refused {
            file: segment.file.clone(),
            offset,
            epoch: head.epoch,
            reason,
        })?;
        if head.kind == Kind::Link {
            return match next {
                Ok(next) => Ok(Ended::Linked(Link { head, next: Epoch(next) })),
                Err(_) => Err(damaged(&segment.file, offset, "a link that names no segment")),
            };
        }
        (walk.position, walk.synced, walk.last_kind) = (head.end(), head.synced, Some(head.kind));
        (walk.chain, walk.last_epoch) = (head.crc, head.epoch);
    }
}

/// Decides what the end of the first of `segments` is, where the log cannot be read on: its end, a tail to cut, or
/// damage. The others are segments after it.
fn settle(
    dir: &dyn Directory,
    segments: &[Segment],
    reason: Option<&'static str>,
    walk: &mut Walk,
) -> Result<(), LogError> {
    let Some((last, later)) = segments.split_first() else { return Ok(()) };
    let offset = walk.position;
    let mut unused = Vec::new();
    for segment in later {
        unused.push(Window::new(dir, &segment.file).last_nonzero(HEADER, segment.header.len)?.is_none());
    }
    // The next segment was begun and the machine stopped before this one was linked to it, or while it was. That
    // segment knows the last entry, so nothing but the link can be missing here.
    let only_begun = match later {
        [next] => {
            unused[0]
                && walk.leftover.is_empty()
                && (next.header.chain, next.header.previous_epoch()) == (walk.chain, walk.last_epoch)
        }
        _ => false,
    };
    let ended = reason.is_none() && later.is_empty();
    if !ended && !only_begun {
        let what = reason.unwrap_or("the log ends here although it was continued");
        if let Some((at, epoch)) = witness(dir, last, offset + 8, offset)? {
            let since = format!("{what}; all up to here was synced before epoch {epoch} at byte {at}");
            return Err(damaged(&last.file, offset, since));
        }
        for segment in later {
            let synced = segment.header.synced_before || witness(dir, segment, HEADER, HEADER)?.is_some();
            if synced {
                let since = format!("{what}; all of it was synced before {} was used", segment.file);
                return Err(damaged(&last.file, offset, since));
            }
        }
        walk.torn = torn(dir, last, offset, what)?;
    } else if let Some(what) = reason {
        walk.torn = torn(dir, last, offset, what)?;
    }
    walk.leftover.splice(0..0, later.iter().map(|segment| segment.file.clone()));
    Ok(())
}

fn torn(
    dir: &dyn Directory,
    segment: &Segment,
    offset: u64,
    reason: &'static str,
) -> Result<Option<Torn>, DiskError> {
    let end = Window::new(dir, &segment.file).last_nonzero(offset, segment.header.len)?;
    let bytes = end.map_or(0, |end| end - offset);
    Ok(Some(Torn { file: segment.file.clone(), offset, bytes, reason }))
}
