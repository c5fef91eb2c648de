//! The journal of a log that several nodes keep: records written by a [`LogWriter`], and read again for those that lag.
//!
//! Members of a replication group and the storage replicas of a region keep their logs in this way: entries by index and term,
//! of which later ones take the place of earlier ones (module `record`), in memory and on disk (module `store`), from a
//! base on (module `base`).

pub(crate) mod base;
pub(crate) mod record;
pub(crate) mod store;

use ordain_log::{AppendError, Fetch, LogConfig, LogError, LogWriter, Memo, Place, Progress, Recovered};
use ordain_model::Epoch;
use ordain_role::{Directory, DiskDone, DiskError, DiskRequest, Fetched, Outbox};
use raft::GetEntriesContext;
use raft::eraftpb::{ConfState, Entry, HardState};

use crate::message::Covered;

use base::{Base, Beginning, MEMO, Records};
use store::{Store, epoch_of, is_change};

/// The bytes of entries that are read for a member before it gets some.
const FETCH_BYTES: usize = 4 << 20;

/// Marks the requests that read; the others are the writer's.
const READ: u64 = 1 << 63;

/// Marks the request that writes the memo.
const BASE: u64 = 1 << 62;

/// The journal, or none for a member that keeps everything in memory.
#[derive(Debug)]
pub(crate) struct Journal {
    writer: Option<LogWriter>,
    /// The file with the log's base.
    memo: Option<Memo>,
    /// The write that is under way there.
    memo_write: Option<MemoWrite>,
    /// The base at which the log may begin with a checkpoint, by the memo.
    offered: Option<Base>,
    covered: Covered,
    identity: Vec<u8>,
    /// The index up to which entries are committed, by the last record.
    commit: u64,
    reading: Option<MemberFetch>,
    reads: u64,
    /// The last record that a mark stands behind.
    marked: Epoch,
    /// The last durable record when a mark was last considered.
    unmarked: Option<Epoch>,
    /// Bytes of the entries that were written, without their records.
    entry_bytes: u64,
}

/// Entries that are being read from disk.
#[derive(Debug)]
struct MemberFetch {
    token: u64,
    fetch: Fetch,
    into: Fetched,
    /// The first entry, and the end.
    low: u64,
    high: u64,
    found: Vec<Entry>,
    bytes: usize,
}

/// A write of the memo.
#[derive(Debug)]
enum MemoWrite {
    /// The log begins after this from now on, and before that place the journal can go.
    Trim(Base, Place),
    /// The log may begin after this with a checkpoint.
    Offer(Base),
}

/// The meaning of an answer of the disk.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Nothing yet: no role waits for the answer, or more has to be done first.
    Nothing,
    /// More may be durable.
    Durable,
    /// The disk is full.
    Full,
    /// Entries were read for these.
    Fetched(Vec<GetEntriesContext>),
    /// The memo allows the log to begin later, with a checkpoint of this epoch or a later one.
    Offered(Epoch),
}

/// A journal that was opened.
pub(crate) struct Opened {
    pub journal: Journal,
    /// The log's entries.
    pub store: Store,
    /// Index and epoch of the last entry that is known to be agreed on.
    pub dispatched: (u64, Epoch),
    pub recovered: Recovered,
}

/// The members with which a log begins, and how one of its entries changes them.
pub(crate) struct Membership {
    /// The first members.
    pub founders: Vec<u64>,
    /// Makes the change that the bytes of an entry are.
    pub change: fn(&mut ConfState, &[u8]) -> Result<(), String>,
    /// The vote is no vote of the term, and outlasts it: the number that the directory was given when it was made.
    pub keeps_vote: bool,
}

/// Opens or makes a journal of a log that began with these members, and hands over the entries that it knows to be
/// agreed on.
///
/// The log begins at a base that the leader has offered, if a checkpoint of everything up to `executed` covers that,
/// and the log does not reach there by itself.
pub(crate) fn open(
    directory: &mut dyn Directory,
    config: LogConfig,
    (membership, executed): (Membership, Epoch),
    tail_bytes: usize,
    mut visit: impl FnMut(u64, &[u8]) -> Result<(), String>,
) -> Result<Opened, LogError> {
    let (identity, segment_bytes) = (config.identity.clone(), config.segment_bytes);
    let damaged = |reason: String| LogError::Damaged { file: MEMO.to_owned(), offset: 0, reason };
    let (store, offered) = match Memo::read(directory, MEMO, Some(&identity))? {
        None => (Store::new(membership.founders, segment_bytes), None),
        Some(bytes) => {
            let beginning = Beginning::of_memo(&bytes).ok_or("it does not say where a group's log begins");
            let Beginning { base, offered } = beginning.map_err(|reason| damaged(reason.to_owned()))?;
            (Store::after(base, segment_bytes), offered)
        }
    };
    let (base, void) = (store.base().index, store.base().void);
    let dispatched = (base, store.base().epoch);
    let Membership { change, keeps_vote, .. } = membership;
    let mut replay = Replay { hard: store.hard.clone(), dispatched, store, change, keeps_vote };
    let mut records = Records::after(replay.store.base());
    let (writer, mut recovered) = LogWriter::open_placed(directory, config, |place, entry| {
        let unfit = "no record of a replication group, or none that can follow those before it";
        replay.store.note_place(replay.store.last() + 1, place, entry.payload.len() as u64);
        let (hard, mut entries) = record::decode(&entry.payload).ok_or(unfit)?;
        if hard.term >= replay.hard.term {
            (replay.hard.term, replay.hard.vote) = (hard.term, hard.vote);
        } else if keeps_vote {
            replay.hard.vote = hard.vote;
        }
        if entry.epoch <= void {
            return Ok(());
        }
        let places = entries.iter().map(|entry| (entry.index, entry.term));
        entries.drain(..records.take(hard.commit, places).ok_or(unfit)?);
        if !replay.store.append(entries) {
            return Err(unfit.to_owned());
        }
        replay.agree(hard.commit, &mut visit)?;
        replay.store.shrink(replay.dispatched.0, tail_bytes, true);
        Ok(())
    })?;
    if !records.may_end() || (recovered.starts_after > Epoch(0) && base == 0) {
        let reason = format!("the log begins after entry {base}, and the next ones are not in the journal");
        return Err(damaged(reason));
    }
    let (mut memo, _) = Memo::open(directory, MEMO, &identity)?;
    let is_of_use = |offered: &Base| offered.index > replay.dispatched.0 && offered.epoch <= executed;
    if let Some(offered) = offered.filter(is_of_use) {
        if replay.store.has(offered.index, offered.term) {
            replay.agree(offered.index, &mut visit).map_err(damaged)?;
        } else {
            let base = Base { void: writer.appended(), ..offered };
            let ops = memo.write(&Beginning { base: base.clone(), offered: None }.memo());
            ops.iter().flatten().try_for_each(|op| directory.apply(op))?;
            memo.written();
            replay.begin_after(base, segment_bytes);
        }
    }
    let Replay { mut store, hard, dispatched, .. } = replay;
    if recovered.entries == 0 || store.base().void == writer.appended() {
        store.note_place(store.last() + 1, writer.place(), 0);
    }
    recovered.starts_after = store.base().epoch;
    let commit = hard.commit;
    store.hard = hard;
    let journal = Journal { writer: Some(writer), memo: Some(memo), identity, commit, ..Journal::none() };
    Ok(Opened { journal, store, dispatched, recovered })
}

/// Gives a directory without a journal the beginning of a log whose members all have a checkpoint of everything up to an
/// epoch. Their log holds what comes after that.
///
/// # Errors
/// The disk's.
pub(crate) fn begin_after(
    directory: &mut dyn Directory,
    identity: &[u8],
    voters: Vec<u64>,
    epoch: Epoch,
) -> Result<(), LogError> {
    let members = ConfState { voters, ..ConfState::default() };
    // An entry that no member ever has: with none the log would begin at its beginning, without a checkpoint.
    let base = Base { index: 1, term: 1, epoch, members, void: Epoch(0) };
    let (memo, _) = Memo::open(directory, MEMO, identity)?;
    let ops = memo.write(&Beginning { base, offered: None }.memo());
    Ok(ops.iter().flatten().try_for_each(|op| directory.apply(op))?)
}

/// A log as far as its journal has been read.
struct Replay {
    store: Store,
    hard: HardState,
    dispatched: (u64, Epoch),
    change: fn(&mut ConfState, &[u8]) -> Result<(), String>,
    keeps_vote: bool,
}

impl Replay {
    /// Entries are agreed on up to this index.
    fn agree(
        &mut self,
        commit: u64,
        visit: &mut impl FnMut(u64, &[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        self.hard.commit = self.hard.commit.max(commit);
        let agreed = self.store.from(self.dispatched.0 + 1).take_while(|entry| entry.index <= commit);
        for entry in agreed.cloned().collect::<Vec<Entry>>() {
            if is_change(&entry) {
                (self.change)(&mut self.store.members, &entry.data)?;
            } else if !entry.data.is_empty() {
                visit(entry.term, &entry.data)?;
                self.dispatched.1 = epoch_of(&entry).unwrap_or(self.dispatched.1);
            }
            self.dispatched.0 = entry.index;
            self.store.dispatched(&entry, self.dispatched.1);
        }
        Ok(())
    }

    /// The log is given up for one that begins later; for whom this member has voted it must not forget.
    fn begin_after(&mut self, base: Base, segment_bytes: u64) {
        if base.term > self.hard.term {
            let vote = if self.keeps_vote { self.hard.vote } else { 0 };
            (self.hard.term, self.hard.vote) = (base.term, vote);
        }
        self.hard.commit = base.index;
        self.dispatched = (base.index, base.epoch);
        self.store = Store::after(base, segment_bytes);
    }
}

impl Journal {
    /// A journal that keeps nothing.
    pub fn none() -> Journal {
        Journal {
            writer: None,
            memo: None,
            memo_write: None,
            offered: None,
            covered: Covered::default(),
            identity: Vec::new(),
            commit: 0,
            reading: None,
            reads: 0,
            marked: Epoch(0),
            unmarked: None,
            entry_bytes: 0,
        }
    }

    /// Tells whether the journal is on a disk.
    pub fn is_on_disk(&self) -> bool {
        self.writer.is_some()
    }

    /// Tells whether the disk was full at the last attempt.
    pub fn is_full(&self) -> bool {
        self.writer.as_ref().is_some_and(LogWriter::is_full)
    }

    /// There may be space now.
    pub fn retry(&mut self) {
        self.writer.iter_mut().for_each(LogWriter::retry);
    }

    /// Queues a record and answers its length, bytes.
    pub fn write(&mut self, hard: &HardState, entries: &[Entry]) -> Result<u64, AppendError> {
        let Some(writer) = &mut self.writer else { return Ok(0) };
        let parts = record::encode(hard, entries);
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        // The label serves readers of the log; the record has the term too.
        writer.append(writer.appended().next(), u32::try_from(hard.term).unwrap_or(u32::MAX), parts)?;
        self.commit = hard.commit;
        self.entry_bytes += entries.iter().map(|entry| entry.data.len() as u64).sum::<u64>();
        Ok(bytes)
    }

    /// Queues a record for the sake of how far entries are committed, unless that is known to the last one.
    pub fn write_commit(&mut self, hard: &HardState) {
        if hard.commit > self.commit {
            // The writer refuses nothing but what is out of order, and everything once it has failed.
            let _ = self.write(hard, &[]);
        }
    }

    /// The last record that was queued.
    pub fn written(&self) -> Epoch {
        self.writer.as_ref().map_or(Epoch(0), LogWriter::appended)
    }

    /// The last record that is durable.
    pub fn durable(&self) -> Epoch {
        self.writer.as_ref().map_or(Epoch(0), LogWriter::durable)
    }

    /// The earliest place of the record after the last durable one.
    pub fn place(&self) -> Option<Place> {
        self.writer.as_ref().map(LogWriter::place)
    }

    /// Asks the disk for whatever is next to be written.
    pub fn ask_disk<M>(&mut self, out: &mut Outbox<M>) {
        while let Some(request) = self.writer.as_mut().and_then(LogWriter::next_request) {
            out.disk(request);
        }
    }

    /// Marks the journal if it has been idle since it was asked for the last time, or if it `is_last`. Says whether to
    /// ask again in a while.
    pub fn mark(&mut self, is_due: bool, is_last: bool) -> bool {
        let Some(writer) = &mut self.writer else { return false };
        let durable = writer.durable();
        if !writer.is_idle() || durable <= self.marked {
            return false;
        }
        if is_last || (is_due && self.unmarked == Some(durable)) {
            (self.marked, self.unmarked) = (durable, None);
            writer.mark();
            return false;
        }
        let is_new = self.unmarked.is_none();
        self.unmarked = Some(self.unmarked.filter(|_| !is_due).unwrap_or(durable));
        is_new || is_due
    }

    /// Begins to read what members want that has left memory, if nothing is being read. Says whether it did.
    pub fn fetch<M>(&mut self, store: &Store, out: &mut Outbox<M>) -> bool {
        if self.reading.is_some() {
            return false;
        }
        let Some((low, place, high)) = store.wanted() else { return false };
        self.reads += 1;
        let fetch = Fetch::new(&self.identity, place);
        let token = READ | self.reads;
        let reading =
            MemberFetch { token, fetch, into: Fetched::default(), low, high, found: Vec::new(), bytes: 0 };
        out.disk(self.reading.insert(reading).request());
        true
    }

    /// Checkpoints cover so much.
    pub fn cover(&mut self, covered: Covered) {
        self.covered = covered;
    }

    /// Lets go what checkpoints cover, but nothing after an index. What the log begins after then has to be on disk
    /// before anything is removed.
    pub fn trim<M>(&mut self, store: &Store, index: u64, keep_bytes: u64, out: &mut Outbox<M>) {
        let bytes = self.writer.as_ref().map_or(0, |writer| writer.stats().bytes);
        let covered = self.covered.through(bytes, keep_bytes);
        // Entries before the first entry are of no epoch: nothing covers them if nothing is covered.
        if covered == Epoch(0) {
            return;
        }
        let Some((base, place)) = store.base_for(covered, index) else { return };
        // Only whole segments go.
        if self.writer.as_ref().is_some_and(|writer| writer.can_trim_to(place)) {
            self.write_memo(MemoWrite::Trim(base, place), store, out);
        }
    }

    /// Writes down where the log may begin when there is a checkpoint that covers that. Says whether that is on disk.
    pub fn offer<M>(&mut self, offered: Base, store: &Store, out: &mut Outbox<M>) -> bool {
        let is_on_disk = self.offered.as_ref() == Some(&offered);
        if !is_on_disk {
            self.write_memo(MemoWrite::Offer(offered), store, out);
        }
        is_on_disk
    }

    /// Has the disk write something about the log's beginning, unless it is writing something else about it.
    fn write_memo<M>(&mut self, memo_write: MemoWrite, store: &Store, out: &mut Outbox<M>) {
        let (Some(memo), None) = (&self.memo, &self.memo_write) else { return };
        let (base, offered) = match &memo_write {
            // The offer stays: the checkpoint that lets this log begin there also lets its own entries be trimmed.
            MemoWrite::Trim(base, _) => {
                (base.clone(), self.offered.clone().filter(|offered| offered.index > base.index))
            }
            MemoWrite::Offer(offered) => (store.base().clone(), Some(offered.clone())),
        };
        let Some(ops) = memo.write(&Beginning { base, offered }.memo()) else { return };
        out.disk(DiskRequest::new(BASE, ops));
        self.memo_write = Some(memo_write);
    }

    /// The log's beginning is on disk, or the disk has refused it.
    fn memo_written(&mut self, done: &DiskDone, store: &mut Store) -> Result<Outcome, String> {
        let Some(memo_write) = self.memo_write.take() else { return Ok(Outcome::Nothing) };
        match &done.result {
            Ok(()) => self.memo.iter_mut().for_each(Memo::written),
            // The disk has space again only when asked.
            Err(DiskError::Full { .. }) => {
                self.covered = Covered::default();
                return Ok(Outcome::Nothing);
            }
            Err(error) => return Err(error.to_string()),
        }
        match memo_write {
            MemoWrite::Offer(offered) => Ok(Outcome::Offered(self.offered.insert(offered).epoch)),
            MemoWrite::Trim(base, place) => {
                self.offered.take_if(|offered| offered.index <= base.index);
                // Entries that are being read may be gone.
                let first = base.index + 1;
                store.trim(base);
                if let Some(writer) = &mut self.writer {
                    writer.truncate_to(place);
                    let begins = writer.begins();
                    self.reading.take_if(|reading| reading.low < first || reading.fetch.place() < begins);
                }
                Ok(Outcome::Nothing)
            }
        }
    }

    /// Takes an answer of the disk.
    pub fn done<M>(
        &mut self,
        done: &DiskDone,
        store: &mut Store,
        out: &mut Outbox<M>,
    ) -> Result<Outcome, String> {
        if let Some(mut reading) = self.reading.take_if(|reading| reading.token == done.token) {
            done.result.clone().map_err(|error| error.to_string())?;
            if reading.take(store)? {
                return Ok(Outcome::Fetched(store.fetched(reading.found)));
            }
            out.disk(self.reading.insert(reading).request());
            return Ok(Outcome::Nothing);
        }
        if done.token == BASE {
            return self.memo_written(done, store);
        }
        match self.writer.as_mut().and_then(|writer| writer.done(done)) {
            Some(Progress::Durable(_)) => Ok(Outcome::Durable),
            Some(Progress::Full { .. }) => Ok(Outcome::Full),
            Some(Progress::Failed { reason }) => Err(reason),
            None => Ok(Outcome::Nothing),
        }
    }

    /// Numbers for metrics.
    pub fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let Some(writer) = &self.writer else { return };
        report("ordain_log_durable_record", writer.durable().0 as f64);
        let stats = writer.stats();
        report("ordain_log_segments", stats.segments as f64);
        report("ordain_log_pending_entries", stats.pending_entries as f64);
        report("ordain_log_bytes", stats.bytes as f64);
        report("ordain_log_entry_bytes_total", self.entry_bytes as f64);
        report("ordain_log_full", f64::from(u8::from(writer.is_full())));
    }
}

impl MemberFetch {
    /// The next request. The same place to put it serves no two.
    fn request(&mut self) -> DiskRequest {
        self.into = Fetched::default();
        DiskRequest::in_background(self.token, vec![self.fetch.op(&self.into)])
    }

    /// Takes the entries that were read; true if they are enough.
    fn take(&mut self, store: &Store) -> Result<bool, String> {
        for piece in self.fetch.take(self.into.bytes()).map_err(|error| error.to_string())? {
            let Some((_, entries)) = record::decode(&piece.payload) else {
                return Err("a record of the group's journal cannot be read again".to_owned());
            };
            for entry in entries {
                let next = self.low + self.found.len() as u64;
                if entry.index == next && next <= self.high && store.is_valid(&entry) {
                    self.bytes += entry.data.len();
                    self.found.push(entry);
                }
            }
        }
        Ok(self.bytes >= FETCH_BYTES || self.low + self.found.len() as u64 > self.high)
    }
}
