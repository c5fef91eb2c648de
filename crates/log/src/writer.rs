//! The group commit: what was appended while one request was under way goes out with the next.
//!
//! One request is in flight at a time, and each does one of a few things ([`Work`]), chosen so that after a full
//! disk the very same request can be made again: it writes the same bytes to the same place. Only creating a file
//! cannot be repeated, so it is a request of its own. That is why a batch never spans two segments.
//!
//! To create a file of a segment's length may have to wait until the file system has committed what others sync. So that is
//! done ahead, in the background, once half of the current segment is written, and the file renamed when it is needed: what is
//! known only then is the epoch in its name. Where there is none, it is created then.
//!
//! Trimmed segments are removed beside that, in the background: to remove a file takes as long as many groups. The oldest
//! goes first, and the next one only when that is durable, so that no crash leaves a gap.
//!
//! Where entries are not synced, a new segment is not waited for either: its header and its name are synced in the background
//! while it is written. Until then the link to it and its entries say so, and a loss of power may take it.

use std::collections::VecDeque;

use ordain_model::Epoch;
use ordain_role::{Bug, Bytes, DiskDone, DiskError, DiskOp, DiskRequest};

use crate::config::{Durability, LogConfig};
use crate::fetch::Place;
use crate::format::{
    AHEAD, EARLY, EntryHead, HEADER, Kind, LINK, SegmentHeader, entry_size, file_name, padding,
};

/// The end of a request, for the role that waits for entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Everything up to this epoch is durable. It may be the epoch of the answer before.
    Durable(Epoch),
    /// The disk is full. What was not durable is still pending, nothing of it may be acknowledged, and nothing is
    /// asked of the disk (but to remove trimmed segments) until [`LogWriter::retry`].
    Full {
        /// The file that found no space.
        file: String,
    },
    /// The disk failed. What has reached it is unknown, so the node must stop; recovery will find out.
    Failed {
        /// The operation that failed, and how.
        reason: String,
    },
}

/// The reason why an entry was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Epochs only grow.
    #[error("epoch {epoch} was appended to the log after epoch {last}")]
    Order {
        /// The entry's.
        epoch: Epoch,
        /// The largest that was appended, durable or not.
        last: Epoch,
    },
    /// The log has failed.
    #[error("the log has failed and takes no more entries: {0}")]
    Failed(String),
}

/// An entry that was appended and is not durable.
#[derive(Clone, Debug)]
pub struct Pending {
    /// The entry's epoch.
    pub epoch: Epoch,
    /// The entry's term.
    pub term: u32,
    /// The payload, in parts.
    pub parts: Vec<Bytes>,
}

/// Numbers for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogStats {
    /// Segment files.
    pub segments: usize,
    /// About how long they are in all: as if none was longer than the others.
    pub bytes: u64,
    /// Entries that wait or are under way.
    pub pending_entries: usize,
    /// Their payload bytes.
    pub pending_bytes: u64,
    /// Offset in the last segment.
    pub position: u64,
}

#[derive(Debug)]
struct Queued {
    /// `None` for a mark.
    epoch: Option<Epoch>,
    term: u32,
    len: u64,
    parts: Vec<Bytes>,
}

/// The segment that is written.
#[derive(Clone, Debug)]
pub(crate) struct Current {
    pub header: SegmentHeader,
    /// The place of the next entry.
    pub position: u64,
    /// The offset up to which everything is known to be synced; 0 while not even the header is.
    pub synced: u64,
    /// The segment has a data entry.
    pub has_data: bool,
}

impl Current {
    /// A segment in which nothing has been written but its header.
    pub fn empty(header: SegmentHeader) -> Current {
        Current { header, position: HEADER, synced: HEADER, has_data: false }
    }

    pub fn file(&self) -> String {
        file_name(self.header.first_epoch)
    }

    fn fits(&self, size: u64) -> bool {
        self.position + size + LINK <= self.header.len
    }
}

/// The purpose of a request.
#[derive(Clone, Debug)]
enum Work {
    /// Write the first `count` queued entries, up to offset `end`.
    Group { count: usize, end: u64, chain: u32, last: Epoch, has_data: bool },
    /// Create the file of the next segment.
    Create(SegmentHeader),
    /// Give the file that was made ahead the next segment's name.
    Rename(SegmentHeader),
    /// Remove what a failed creation of the segment with this first epoch may have left.
    Clear(Epoch),
    /// Write the next segment's header and link the current one to it: once it is durable, if entries are synced.
    Link(SegmentHeader),
    /// Make the current segment, which has no data, longer.
    Grow(SegmentHeader),
    /// Write zeros from the position to here, over entries that were given up.
    Zero(u64),
}

/// The file of a segment to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ahead {
    /// There is none.
    None,
    /// The file is being created by the request with this token, with this length.
    Asked(u64, u64),
    /// The file is there, with this length.
    Ready(u64),
    /// There was no space for it, or for its new name. What is left of it is not touched before the next start.
    Refused,
}

/// The state of the removal of trimmed segments.
#[derive(Debug, Default)]
struct Removal {
    /// The epoch before which everything may go.
    before: Epoch,
    /// The request that is in flight.
    token: Option<u64>,
    /// The oldest segment is removed, which is not durable yet.
    is_removed: bool,
    /// There was no space even for that: whether the oldest is gone is unknown, so no further one is touched.
    is_blocked: bool,
}

/// The syncs of the current segment's header and name, which entries that are not synced do not wait for; then the
/// link to it once more, as one to a durable segment. The next segment waits for that, so only the last segment of a
/// log may be lost with its file.
#[derive(Debug)]
struct Settling {
    ops: Vec<DiskOp>,
    /// The request that is in flight.
    token: Option<u64>,
    /// There was no space for it.
    found_full: bool,
}

/// The writing end of a log.
#[derive(Debug)]
pub struct LogWriter {
    config: LogConfig,
    current: Current,
    chain: u32,
    /// The epoch of the last entry on disk.
    last_epoch: Epoch,
    /// The largest that was appended.
    appended: Epoch,
    durable: Epoch,
    queue: VecDeque<Queued>,
    pending_bytes: u64,
    in_flight: Option<Work>,
    /// The work that comes before any other.
    next: Option<Work>,
    /// The offset up to which failed attempts may have written.
    dirty: u64,
    full: bool,
    /// The last entry on disk is a mark.
    marked: bool,
    failed: Option<String>,
    /// The token of the request that was made last.
    last_token: u64,
    /// The token of the request in flight.
    token: u64,
    /// First epochs of the segments before the current one.
    older: VecDeque<Epoch>,
    removal: Removal,
    settling: Option<Settling>,
    ahead: Ahead,
}

impl LogWriter {
    pub(crate) fn new(
        config: LogConfig,
        current: Current,
        older: VecDeque<Epoch>,
        chain: u32,
        last_epoch: Epoch,
        marked: bool,
    ) -> LogWriter {
        LogWriter {
            config,
            dirty: current.position,
            current,
            chain,
            last_epoch,
            appended: last_epoch,
            durable: last_epoch,
            queue: VecDeque::new(),
            pending_bytes: 0,
            in_flight: None,
            next: None,
            full: false,
            marked,
            failed: None,
            last_token: 0,
            token: 0,
            older,
            removal: Removal::default(),
            settling: None,
            ahead: Ahead::None,
        }
    }

    /// Queues an entry. Its epoch must be larger than any that was appended before; there may be gaps. Nothing is copied: the parts are kept until the entry is durable.
    ///
    /// # Errors
    /// [`AppendError`]; the entry was not taken.
    pub fn append(&mut self, epoch: Epoch, term: u32, parts: Vec<Bytes>) -> Result<(), AppendError> {
        if let Some(reason) = &self.failed {
            return Err(AppendError::Failed(reason.clone()));
        }
        if epoch <= self.appended {
            return Err(AppendError::Order { epoch, last: self.appended });
        }
        self.appended = epoch;
        let len = parts.iter().map(|part| part.len() as u64).sum();
        self.pending_bytes += len;
        self.queue.push_back(Queued { epoch: Some(epoch), term, len, parts });
        Ok(())
    }

    /// Queues a mark: everything before it is durable, as each later entry attests too. Recovery refuses damage to the
    /// last batch then, rather than take it for a torn one; worth it when the log goes idle and at a clean stop.
    /// Nothing is queued behind a mark, or if there is nothing new.
    pub fn mark(&mut self) {
        let says_nothing = match self.queue.back() {
            Some(last) => last.epoch.is_none(),
            None => self.marked || self.current.position == HEADER,
        };
        if !says_nothing && self.config.durability == Durability::Fsync {
            self.force_mark();
        }
    }

    /// Queues a mark as [`LogWriter::mark`], in every mode and on top of a mark.
    pub(crate) fn force_mark(&mut self) {
        self.queue.push_back(Queued { epoch: None, term: 0, len: 0, parts: Vec::new() });
    }

    /// Asks for the removal of the segments that hold nothing but epochs before `epoch`. The current one stays.
    pub fn truncate_before(&mut self, epoch: Epoch) {
        self.removal.before = self.removal.before.max(epoch);
    }

    /// Asks for the removal of the segments that end before a place.
    pub fn truncate_to(&mut self, place: Place) {
        self.truncate_before(place.segment);
    }

    /// Tells whether [`LogWriter::truncate_to`] would remove anything, and leave an entry that is durable.
    pub fn can_trim_to(&self, place: Place) -> bool {
        (self.begins().segment.next()..=self.durable).contains(&place.segment)
    }

    /// The place where the log begins once the removal under way is done; what stands before must not be read any
    /// more. Only grows.
    pub fn begins(&self) -> Place {
        let segments = || self.older.iter().chain([&self.current.header.first_epoch]);
        let stays =
            segments().take_while(|first| **first <= self.removal.before).last().or(segments().next());
        Place { segment: stays.copied().unwrap_or_default(), offset: HEADER }
    }

    /// The next request, if there is work: one is in flight at a time, and others in the background beside it. The
    /// caller carries it out and brings the answer to [`LogWriter::done`].
    pub fn next_request(&mut self) -> Option<DiskRequest> {
        if self.failed.is_some() {
            return None;
        }
        if self.in_flight.is_none()
            && let Some((work, ops)) = self.choose()
        {
            self.in_flight = Some(work);
            self.token = self.new_token();
            return Some(DiskRequest::new(self.token, ops));
        }
        let token = self.last_token + 1;
        if !self.full
            && let Some(settling) = self.settling.as_mut().filter(|settling| settling.token.is_none())
        {
            settling.token = Some(token);
            let ops = settling.ops.clone();
            return Some(DiskRequest::in_background(self.new_token(), ops));
        }
        if self.wants_ahead() {
            let len = self.config.segment_len(0);
            self.ahead = Ahead::Asked(self.new_token(), len);
            let create = DiskOp::Create { file: AHEAD.to_owned(), len };
            return Some(DiskRequest::in_background(self.last_token, vec![create]));
        }
        let removal = self.next_removal()?;
        let token = self.new_token();
        self.removal.token = Some(token);
        Some(DiskRequest::in_background(token, vec![removal]))
    }

    fn new_token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    /// Tells whether the file of the next segment is to be made: the current one is half full, and the log is in use.
    fn wants_ahead(&self) -> bool {
        let is_half_full = self.current.position * 2 >= self.current.header.len;
        let is_in_use = self.current.has_data && !self.marked;
        !self.full && self.ahead == Ahead::None && is_half_full && is_in_use
    }

    /// The next step of removing segments that hold nothing but what may go.
    fn next_removal(&self) -> Option<DiskOp> {
        let Removal { before, token, is_removed, is_blocked } = self.removal;
        let next_first = self.older.get(1).copied().unwrap_or(self.current.header.first_epoch);
        let oldest = self.older.front().filter(|_| {
            // The segment before the current one may have to be written to once more.
            next_first <= before && token.is_none() && !is_blocked && self.settling.is_none()
        })?;
        Some(if is_removed { DiskOp::SyncDirectory } else { DiskOp::Remove { file: file_name(*oldest) } })
    }

    fn choose(&mut self) -> Option<(Work, Vec<DiskOp>)> {
        if self.full {
            return None;
        }
        if (self.cleans_up() || !self.queue.is_empty())
            && let Some(work) = self.next.take()
        {
            let ops = self.ops_of(&work);
            return Some((work, ops));
        }
        let size = entry_size(self.queue.front()?.len);
        if self.current.fits(size) {
            return Some(self.gather());
        }
        let work = if self.current.has_data {
            if self.settling.is_some() {
                return None;
            }
            let next = SegmentHeader {
                first_epoch: self.last_epoch.next(),
                len: self.config.segment_len(size),
                chain: self.chain,
                synced_before: self.config.durability == Durability::Fsync,
                identity: self.config.identity.clone(),
            };
            if self.ahead == Ahead::Ready(next.len) { Work::Rename(next) } else { Work::Create(next) }
        } else {
            // An empty segment can become long enough; its successor would have the same name.
            let len = self.config.segment_len(self.current.position - HEADER + size);
            Work::Grow(SegmentHeader { len, ..self.current.header.clone() })
        };
        let ops = self.ops_of(&work);
        Some((work, ops))
    }

    /// Gathers all that is queued and fits into the current segment.
    fn gather(&self) -> (Work, Vec<DiskOp>) {
        let (mut end, mut chain, mut last) = (self.current.position, self.chain, self.last_epoch);
        let (mut count, mut has_data) = (0, self.current.has_data);
        let seed = self.current.header.seed();
        let mut data = Vec::new();
        for queued in &self.queue {
            let size = entry_size(queued.len);
            // A mark attests what was synced before its own request.
            let begins_a_request = queued.epoch.is_none();
            if end + size + LINK > self.current.header.len || begins_a_request && count > 0 {
                break;
            }
            last = queued.epoch.unwrap_or(last);
            has_data |= queued.epoch.is_some();
            let head = EntryHead {
                crc: 0,
                previous: chain,
                len: queued.len,
                epoch: last,
                term: queued.term,
                kind: if queued.epoch.is_some() { Kind::Data } else { Kind::Mark },
                offset: end,
                synced: self.current.synced,
            };
            chain = encode_entry(head, seed, &queued.parts, &mut data);
            end += size;
            count += 1;
        }
        let file = self.current.file();
        let mut ops = vec![DiskOp::Write { file: file.clone(), offset: self.current.position, data }];
        if self.syncs() {
            ops.push(DiskOp::Sync { file });
        }
        (Work::Group { count, end, chain, last, has_data }, ops)
    }

    /// Tells whether entries are synced at all.
    fn syncs(&self) -> bool {
        self.config.durability == Durability::Fsync && !self.config.bugs.has(Bug::SkipSync)
    }

    fn ops_of(&self, work: &Work) -> Vec<DiskOp> {
        let write = |file: &str, offset, data| DiskOp::Write { file: file.to_owned(), offset, data };
        let header_of = |header: &SegmentHeader| vec![Bytes::from(header.encode())];
        let file = self.current.file();
        match work {
            // A group's operations are made where it is chosen.
            Work::Group { .. } => Vec::new(),
            Work::Create(next) => {
                vec![DiskOp::Create { file: file_name(next.first_epoch), len: next.len }]
            }
            Work::Rename(next) => {
                vec![DiskOp::Rename { file: AHEAD.to_owned(), to: file_name(next.first_epoch) }]
            }
            Work::Clear(first) => vec![DiskOp::Remove { file: file_name(*first) }],
            Work::Link(next) if self.config.durability == Durability::Os => {
                let header = write(&file_name(next.first_epoch), 0, header_of(next));
                vec![header, write(&file, self.current.position, self.link(next, EARLY))]
            }
            Work::Link(next) => {
                let header = write(&file_name(next.first_epoch), 0, header_of(next));
                let mut ops: Vec<DiskOp> = [header].into_iter().chain(self.settle(next)).collect();
                if self.syncs() {
                    ops.push(DiskOp::Sync { file });
                }
                ops
            }
            // The file must have its length for certain before the header may claim it.
            Work::Grow(header) => vec![
                DiskOp::SetLen { file: file.clone(), len: header.len },
                DiskOp::Sync { file: file.clone() },
                write(&file, 0, header_of(header)),
                DiskOp::Sync { file },
            ],
            Work::Zero(end) => vec![
                write(&file, self.current.position, zeros(end - self.current.position)),
                DiskOp::Sync { file },
            ],
        }
    }

    /// The link to the next segment.
    fn link(&self, next: &SegmentHeader, term: u32) -> Vec<Bytes> {
        let head = EntryHead {
            crc: 0,
            previous: self.chain,
            len: 8,
            epoch: self.last_epoch,
            term,
            kind: Kind::Link,
            offset: self.current.position,
            synced: self.current.synced,
        };
        let mut link = Vec::new();
        encode_link(head, self.current.header.seed(), next.first_epoch, &mut link);
        link
    }

    /// The syncs of the next segment's header and name, in every mode: recovery knows then that a damaged header is
    /// damage. The link attests it.
    fn settle(&self, next: &SegmentHeader) -> [DiskOp; 3] {
        let (offset, data) = (self.current.position, self.link(next, 0));
        [
            DiskOp::Sync { file: file_name(next.first_epoch) },
            DiskOp::SyncDirectory,
            DiskOp::Write { file: self.current.file(), offset, data },
        ]
    }

    /// Takes the answer to a request. `None` if it is not the answer that the log waits for.
    pub fn done(&mut self, done: &DiskDone) -> Option<Progress> {
        if self.removal.token.take_if(|token| *token == done.token).is_some() {
            return Some(self.removed(&done.result));
        }
        if let Ahead::Asked(token, len) = self.ahead
            && token == done.token
        {
            self.ahead = match &done.result {
                Ok(()) => Ahead::Ready(len),
                // The log can do without it.
                Err(DiskError::Full { .. }) => Ahead::Refused,
                Err(error) => return Some(self.fail(error)),
            };
            return Some(Progress::Durable(self.durable));
        }
        if self.settling.as_ref().is_some_and(|settling| settling.token == Some(done.token)) {
            return Some(self.settled(&done.result));
        }
        if done.token != self.token {
            return None;
        }
        let work = self.in_flight.take()?;
        Some(match (&done.result, work) {
            (Ok(()), work) => {
                self.succeed(work);
                Progress::Durable(self.durable)
            }
            // Whether the file was there is unknown. If it still is, creating it will fail.
            (Err(DiskError::Io { .. }), Work::Clear(_)) => Progress::Durable(self.durable),
            (Err(DiskError::Full { file }), work) => {
                self.full = true;
                self.next = match work {
                    Work::Group { end, .. } => {
                        self.dirty = self.dirty.max(end);
                        None
                    }
                    Work::Create(next) => Some(Work::Clear(next.first_epoch)),
                    Work::Rename(next) => {
                        self.ahead = Ahead::Refused;
                        Some(Work::Clear(next.first_epoch))
                    }
                    again => Some(again),
                };
                Progress::Full { file: file.clone() }
            }
            (Err(error), _) => self.fail(error),
        })
    }

    /// A step of a removal is done.
    fn removed(&mut self, result: &Result<(), DiskError>) -> Progress {
        match result {
            Ok(()) => {
                self.removal.is_removed = !self.removal.is_removed;
                if !self.removal.is_removed {
                    self.older.pop_front();
                }
            }
            // Old segments do no harm.
            Err(DiskError::Full { .. }) => self.removal.is_blocked = true,
            Err(error) => return self.fail(error),
        }
        Progress::Durable(self.durable)
    }

    /// The current segment is durable, header and name, or there was no space for that.
    fn settled(&mut self, result: &Result<(), DiskError>) -> Progress {
        match (result, &mut self.settling) {
            (Err(DiskError::Full { file }), Some(settling)) => {
                (settling.token, settling.found_full) = (None, true);
                self.full = true;
                Progress::Full { file: file.clone() }
            }
            (Err(error), _) => self.fail(error),
            (Ok(()), _) => {
                self.settling = None;
                self.current.synced = self.current.synced.max(HEADER);
                Progress::Durable(self.durable)
            }
        }
    }

    fn fail(&mut self, error: &DiskError) -> Progress {
        let reason = error.to_string();
        self.failed = Some(reason.clone());
        Progress::Failed { reason }
    }

    fn succeed(&mut self, work: Work) {
        match work {
            Work::Group { count, end, chain, last, has_data } => {
                let bytes: u64 = self
                    .queue
                    .drain(..count)
                    .map(|queued| {
                        self.marked = queued.epoch.is_none();
                        queued.len
                    })
                    .sum();
                self.pending_bytes -= bytes;
                (self.chain, self.last_epoch, self.durable) = (chain, last, last);
                (self.current.position, self.current.has_data) = (end, has_data);
                self.dirty = self.dirty.max(end);
                if self.config.durability == Durability::Fsync {
                    self.current.synced = end;
                }
            }
            Work::Create(next) => self.next = Some(Work::Link(next)),
            Work::Rename(next) => {
                self.ahead = Ahead::None;
                self.next = Some(Work::Link(next));
            }
            Work::Clear(_) => {}
            Work::Link(next) => {
                let is_early = self.config.durability == Durability::Os;
                self.settling = is_early.then(|| Settling {
                    ops: self.settle(&next).to_vec(),
                    token: None,
                    found_full: false,
                });
                self.older.push_back(self.current.header.first_epoch);
                self.current = Current::empty(next);
                if is_early {
                    self.current.synced = 0;
                }
                self.dirty = HEADER;
            }
            Work::Grow(header) => self.current.header = header,
            Work::Zero(_) => self.dirty = self.current.position,
        }
    }

    /// After [`Progress::Full`]: there may be space now.
    pub fn retry(&mut self) {
        self.full = false;
        self.settling.iter_mut().for_each(|settling| settling.found_full = false);
    }

    /// Hands back, after [`Progress::Full`], all entries that are not durable, and forgets them, so that their epochs
    /// can be used again. Their remains on the disk are overwritten before anything else is written; until the log [is
    /// idle](LogWriter::is_idle), a crash may still bring some back. The log is not full any more, unless the
    /// overwriting, or the syncs of a new segment, found no space: that waits for [`LogWriter::retry`].
    ///
    /// Nothing is given back during a write, or if the disk is not full.
    pub fn give_up(&mut self) -> Vec<Pending> {
        if !self.full || self.in_flight.is_some() {
            return Vec::new();
        }
        match self.next {
            // Cleaning up found no space: it is tried again only on request.
            Some(Work::Zero(_)) => {}
            // Begun for an entry that is given up. What has been done of it does no harm.
            Some(Work::Create(_) | Work::Grow(_)) => {
                self.next = None;
                self.full = false;
            }
            _ if self.dirty > self.current.position => {
                self.next = Some(Work::Zero(self.dirty));
                self.full = false;
            }
            _ => self.full = false,
        }
        self.full |= self.settling.as_ref().is_some_and(|settling| settling.found_full);
        self.appended = self.last_epoch;
        self.pending_bytes = 0;
        let pending = |queued: Queued| {
            queued.epoch.map(|epoch| Pending { epoch, term: queued.term, parts: queued.parts })
        };
        self.queue.drain(..).filter_map(pending).collect()
    }

    /// Tells whether the disk was full at the last attempt.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// The reason why the log has failed, if it has.
    pub fn failure(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// The epoch up to which everything is durable.
    pub fn durable(&self) -> Epoch {
        self.durable
    }

    /// The largest epoch that was appended, durable or not.
    pub fn appended(&self) -> Epoch {
        self.appended
    }

    /// The earliest place of the next entry that is written: all that is durable stands before.
    pub fn place(&self) -> Place {
        Place { segment: self.current.header.first_epoch, offset: self.current.position }
    }

    /// Tells whether nothing is queued or being written, and nothing that was given up can come back.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.in_flight.is_none() && !self.cleans_up()
    }

    /// Tells whether something has to be put right even if no entry waits.
    fn cleans_up(&self) -> bool {
        matches!(self.next, Some(Work::Zero(_) | Work::Clear(_)))
    }

    /// Numbers for metrics.
    pub fn stats(&self) -> LogStats {
        LogStats {
            segments: self.older.len() + 1,
            bytes: self.older.len() as u64 * self.config.segment_bytes + self.current.position,
            pending_entries: self.queue.len(),
            pending_bytes: self.pending_bytes,
            position: self.current.position,
        }
    }
}

/// Appends a link to the segment of this first epoch.
pub(crate) fn encode_link(head: EntryHead, seed: u32, next: Epoch, data: &mut Vec<Bytes>) {
    encode_entry(head, seed, &[Bytes::from(next.0.to_le_bytes().to_vec())], data);
}

/// Appends an entry to `data`: head, payload, padding. Returns its checksum.
fn encode_entry(head: EntryHead, seed: u32, parts: &[Bytes], data: &mut Vec<Bytes>) -> u32 {
    let padding = padding(head.len);
    let mut crc = crc32c::crc32c_append(seed, &head.encode()[4..]);
    for part in parts {
        crc = crc32c::crc32c_append(crc, part);
    }
    crc = crc32c::crc32c_append(crc, padding);
    let head = EntryHead { crc, ..head };
    data.push(Bytes::from(head.encode().to_vec()));
    data.extend(parts.iter().cloned());
    if !padding.is_empty() {
        data.push(Bytes::from(padding.to_vec()));
    }
    crc
}

/// Parts that are `len` zeros.
pub(crate) fn zeros(len: u64) -> Vec<Bytes> {
    const PIECE: u64 = 1 << 16;
    let piece = Bytes::from(vec![0; len.min(PIECE) as usize]);
    let mut parts = Vec::new();
    let mut left = len;
    while left > 0 {
        let taken = left.min(PIECE);
        parts.push(piece.slice(..taken as usize));
        left -= taken;
    }
    parts
}
