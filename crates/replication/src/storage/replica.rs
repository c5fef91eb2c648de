//! The log of a storage node: lines that the region's database servers write, kept durably (regions.md, section 4.10).
//!
//! A replica knows nothing of what entries say except their numbers. Lines and the promise stand in one journal, as in that
//! of a replication group's member: a record holds the promise, the line up to which all are known to be durable, and lines, which
//! take the place of earlier ones. What a record promises is answered when it is synced.
//!
//! A line that is known to be durable stays for good. Others go when an append of a ballot that is no smaller than the promised
//! one has something else in their place.
//!
//! The *generation* of a replica is drawn when it begins with an empty journal, and stands in every record in the place of
//! a vote. As long as there is no record nothing was promised, so another one may be drawn at the next start.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::marker::PhantomData;

use ordain_log::{LogConfig, LogError, Recovered, in_space};
use ordain_model::wire::Codec;
use ordain_model::{Epoch, Micros};
use ordain_role::{Address, Bug, Directory, DiskDone, Event, Now, Outbox, Rebuild, Role, TimerId};
use raft::eraftpb::{ConfState, Entry, EntryType};
use raft::{GetEntriesContext, Storage as _, StorageError as ReadError};

use super::configuration::{StorageConfiguration, StorageMember};
use super::message::{After, Ballot, Content, Line, LogBase, ReplicaState, Storage, Written};
use super::{StorageError, StorageReplicaSettings, check_region};
use crate::journal::base::Base;
use crate::journal::store::{Store, epoch_of, is_change};
use crate::journal::{self, Journal, Membership};
use crate::message::{Carrier, Log, Message};

/// A full disk is tried again.
const PROBE: TimerId = TimerId(1);
const PROBE_EVERY: Micros = Micros::from_millis(500);
/// The timer of the mark: an idle journal is marked as synced.
const MARK: TimerId = TimerId(2);
const MARK_AFTER: Micros = Micros::from_millis(200);

/// The most readers that are served at a time. One that is forgotten asks again.
const READERS_MAX: usize = 16;

/// Makes the change of the configuration that an entry of the journal is.
fn replay_configuration(members: &mut ConfState, bytes: &[u8]) -> Result<(), String> {
    let configuration = StorageConfiguration::from_bytes(bytes);
    *members = configuration.ok_or("a configuration in the journal cannot be read")?.to_members();
    Ok(())
}

/// The line as the journal keeps it.
pub(super) fn entry_of(lsn: u64, line: &Written) -> Entry {
    let mut entry = Entry { index: lsn, term: line.ballot.0, ..Entry::default() };
    match &line.content {
        Content::Entry(bytes) => entry.data = bytes.clone(),
        Content::Begin => {}
        Content::Configuration(configuration) => {
            entry.entry_type = EntryType::EntryConfChange;
            entry.data = configuration.to_bytes().into();
        }
    }
    entry
}

/// The line that the journal keeps so; `None` if it is a configuration that cannot be read.
pub(super) fn line_of(entry: &Entry) -> Option<Written> {
    let content = match &entry.data {
        data if is_change(entry) => Content::Configuration(Codec::from_bytes(data)?),
        data if data.is_empty() => Content::Begin,
        data => Content::Entry(data.clone()),
    };
    Some(Written { ballot: Ballot(entry.term), content })
}

/// Gives a directory without a journal the beginning of a log whose region goes on from checkpoints of everything up to an
/// epoch. Who counts is said by the first line, as in every region that begins.
///
/// # Errors
/// The disk's.
pub fn found_storage_after(
    directory: &mut dyn Directory,
    identity: &[u8],
    epoch: Epoch,
) -> Result<(), LogError> {
    journal::begin_after(directory, identity, Vec::new(), epoch)
}

/// Keeps the lines of a region's log.
pub struct StorageReplica<E, M> {
    settings: StorageReplicaSettings,
    store: Store,
    journal: Journal,
    /// The answers that wait for the journal, in order.
    waiting: VecDeque<Waiting>,
    /// The last line that is synced.
    synced: u64,
    /// The last line that is known to be durable and is synced here, and the epoch of the last entry up to it.
    settled: (u64, Epoch),
    /// The time when the owner of the promised ballot has spoken last; none if it leads no more, or there is none.
    spoke: Option<Micros>,
    readers: Vec<Reader>,
    /// Servers of other regions that wait for lines, the last question of each.
    watchers: BTreeMap<Address, Reader>,
    /// The epoch up to which no other replica keeps what this one needs next.
    behind: Option<Epoch>,
    is_stopping: bool,
    prefix: &'static str,
    counts: Counts,
    marker: PhantomData<fn() -> (E, M)>,
}

/// Answers that may leave when a record is synced.
#[derive(Debug)]
struct Waiting {
    record: Epoch,
    /// The last line when it was written, and how long the record is.
    last: u64,
    bytes: u64,
    answers: Vec<(Address, Storage)>,
}

/// A server that wants lines.
#[derive(Clone, Copy, Debug)]
struct Reader {
    to: Address,
    number: u64,
    ballot: Ballot,
    after: After,
}

#[derive(Debug, Default)]
struct Counts {
    appended: u64,
    cut: u64,
    refused: u64,
    fetches: u64,
}

impl<E, M: Carrier<E>> StorageReplica<E, M> {
    /// Opens the journal of a directory, or makes one.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn open(
        directory: &mut dyn Directory,
        config: LogConfig,
        settings: StorageReplicaSettings,
    ) -> Result<(StorageReplica<E, M>, Recovered), StorageError> {
        StorageReplica::open_showing(directory, config, settings, |_, _| Ok(()))
    }

    /// As [`StorageReplica::open`], and hands `visit` the term and the bytes of every entry that is known to be durable, in order.
    ///
    /// # Errors
    /// [`StorageError`]; what `visit` answers is one too.
    pub fn open_showing(
        directory: &mut dyn Directory,
        config: LogConfig,
        settings: StorageReplicaSettings,
        visit: impl FnMut(u64, &[u8]) -> Result<(), String>,
    ) -> Result<(StorageReplica<E, M>, Recovered), StorageError> {
        check_region(settings.me.node, &settings.replicas, &settings.servers, &settings.replicas)?;
        // Nobody counts before the first line of the log.
        let membership = Membership { founders: Vec::new(), change: replay_configuration, keeps_vote: true };
        let opened =
            journal::open(directory, config, (membership, settings.executed), settings.tail_bytes, visit)?;
        let journal::Opened { journal, mut store, dispatched, recovered } = opened;
        if recovered.entries == 0 {
            store.hard.vote = StorageMember::generation_of(settings.generation);
        } else if store.hard.vote == 0 {
            return Err(StorageError::Generation);
        }
        Ok((StorageReplica::start(settings, journal, store, dispatched), recovered))
    }

    /// A replica that keeps everything in memory. It forgets what it has promised, so it comes back in another generation.
    ///
    /// # Errors
    /// [`StorageError::Settings`].
    pub fn in_memory(settings: StorageReplicaSettings) -> Result<StorageReplica<E, M>, StorageError> {
        check_region(settings.me.node, &settings.replicas, &settings.servers, &settings.replicas)?;
        let mut store = Store::new(Vec::new(), 0);
        store.hard.vote = StorageMember::generation_of(settings.generation);
        Ok(StorageReplica::start(settings, Journal::none(), store, (0, Epoch(0))))
    }

    fn start(
        settings: StorageReplicaSettings,
        journal: Journal,
        store: Store,
        settled: (u64, Epoch),
    ) -> StorageReplica<E, M> {
        StorageReplica {
            settings,
            synced: store.last(),
            store,
            journal,
            waiting: VecDeque::new(),
            settled,
            spoke: None,
            readers: Vec::new(),
            watchers: BTreeMap::new(),
            behind: None,
            is_stopping: false,
            prefix: "",
            counts: Counts::default(),
            marker: PhantomData,
        }
    }

    /// Names the [`ordain_log::Space`] in which the journal was opened.
    #[must_use]
    pub fn in_space(self, prefix: &'static str) -> StorageReplica<E, M> {
        StorageReplica { prefix, ..self }
    }

    /// The number of the last line.
    #[cfg(test)]
    pub(super) fn store_last(&self) -> u64 {
        self.store.last()
    }

    fn promised(&self) -> Ballot {
        Ballot(self.store.hard.term)
    }

    fn last(&self) -> Line {
        let lsn = self.store.last();
        Line { ballot: self.ballot_at(lsn), lsn }
    }

    /// The ballot of a line that is not before the beginning.
    fn ballot_at(&self, lsn: u64) -> Ballot {
        Ballot(self.store.term(lsn).unwrap_or(0))
    }

    /// The generation of this replica.
    fn generation(&self) -> u64 {
        self.store.hard.vote
    }

    /// The newest configuration, durable or not, and a line that is no earlier than its own and durable if that is.
    fn configuration(&self) -> (StorageConfiguration, u64) {
        let unsettled = self.store.from(self.settled.0 + 1).rev().find(|entry| is_change(entry));
        match unsettled.and_then(|entry| Some((line_of(entry)?.content, entry.index))) {
            Some((Content::Configuration(newest), lsn)) => (newest, lsn),
            _ => (StorageConfiguration::of_members(&self.store.members), self.settled.0),
        }
    }

    /// Tells whether this replica counts in its generation, as far as it knows for certain.
    fn is_counted(&self) -> bool {
        let settled = StorageConfiguration::of_members(&self.store.members);
        settled.counts(self.settings.me.node, self.generation())
    }

    fn state(&self, now: Now) -> ReplicaState {
        let silence = self.spoke.map_or(ReplicaState::NEVER, |spoke| now.elapsed.since(spoke));
        let (configuration, configured) = self.configuration();
        ReplicaState {
            generation: self.generation(),
            promised: self.promised(),
            silence,
            last: self.last(),
            durable: self.settled.0,
            configuration,
            configured,
            is_full: self.journal.is_full(),
        }
    }

    /// The beginning of the log, as others are told of it.
    fn base(&self) -> LogBase {
        let Base { index, term, epoch, ref members, .. } = *self.store.base();
        let configuration = StorageConfiguration::of_members(members);
        LogBase { last: Line { ballot: Ballot(term), lsn: index }, epoch, configuration }
    }

    fn receive(&mut self, now: Now, from: Address, message: Storage, out: &mut Outbox<M>) {
        let promised = self.promised();
        match message {
            Storage::Ask => out.send(from, Storage::State(self.state(now))),
            Storage::Seal(ballot) => self.seal(now, from, ballot, out),
            Storage::Append { ballot, number, previous, lines, durable, generation, acknowledged } => {
                // Planted, ONE-LOG.
                if ballot < promised && !self.settings.bugs.has(Bug::TakeSealed) {
                    return self.refuse(from, ballot, out);
                }
                if generation != self.generation() {
                    return self.correct(now, from, (ballot, number), out);
                }
                let last = self.store.last();
                if acknowledged > last && ballot >= promised {
                    return out.halt(format!(
                        "the server of ballot {} knows that this storage node had line {acknowledged} and it has only \
                         {last}: its directory is older than what it has acknowledged, as a copy would be; start it with an \
                         empty one, and the others will give it all",
                        ballot.0
                    ));
                }
                self.append(now, from, (ballot, number), (previous, lines), durable, out);
            }
            Storage::Confirm { ballot, .. } if ballot < promised => self.refuse(from, ballot, out),
            Storage::Confirm { ballot, n } => {
                self.hear(now, ballot);
                out.send(from, Storage::Confirmed { ballot, generation: self.generation(), n });
            }
            Storage::Fetch { ballot, .. } if ballot > Ballot(0) && ballot < promised => {
                self.refuse(from, ballot, out);
            }
            Storage::Fetch { number, ballot, after } => {
                self.readers.truncate(READERS_MAX - 1);
                self.hear(now, ballot);
                self.readers.push(Reader { to: from, number, ballot, after });
                self.serve(out);
            }
            Storage::Behind { ballot, base } if ballot == promised => {
                self.hear(now, ballot);
                self.fall_behind(from, ballot, &base, out);
            }
            Storage::Resign(ballot) => {
                if ballot == promised {
                    self.spoke = None;
                }
            }
            // Late, or of a node that speaks as another kind.
            Storage::Watch { .. }
            | Storage::Behind { .. }
            | Storage::State(_)
            | Storage::Sealed { .. }
            | Storage::Appended { .. }
            | Storage::Unfit { .. }
            | Storage::Refused { .. }
            | Storage::Fetched { .. }
            | Storage::Trimmed { .. }
            | Storage::Confirmed { .. } => {}
        }
    }

    /// The owner of a ballot has spoken.
    fn hear(&mut self, now: Now, ballot: Ballot) {
        // Who only follows speaks for no ballot.
        if ballot > Ballot(0) && ballot == self.promised() {
            self.spoke = Some(now.elapsed);
        }
    }

    fn refuse(&mut self, from: Address, ballot: Ballot, out: &mut Outbox<M>) {
        self.counts.refused += 1;
        out.send(from, Storage::Refused { ballot, promised: self.promised() });
    }

    /// Tells the leader, which believes this replica to be in another generation, what that has: it may have forgotten more than
    /// it is asked to go on from.
    fn correct(&mut self, now: Now, from: Address, (ballot, number): (Ballot, u64), out: &mut Outbox<M>) {
        self.hear(now, ballot);
        let (generation, durable) = (self.generation(), self.settled.0);
        out.send(from, Storage::Unfit { ballot, generation, number, durable });
    }

    /// Promises a ballot that is larger than all before. A promise cannot be kept that the disk has no space for.
    fn seal(&mut self, now: Now, from: Address, ballot: Ballot, out: &mut Outbox<M>) {
        if ballot <= self.promised() || ballot >= Ballot::END {
            return self.refuse(from, ballot, out);
        }
        if self.journal.is_full() {
            return;
        }
        self.store.hard.term = ballot.0;
        self.spoke = Some(now.elapsed);
        let state = self.state(now);
        self.write(&[], out);
        self.wait(from, Storage::Sealed { ballot, state });
    }

    /// Queues a record with some lines.
    fn write(&mut self, entries: &[Entry], out: &mut Outbox<M>) {
        match self.journal.write(&self.store.hard, entries) {
            Ok(bytes) => {
                let (record, last) = (self.journal.written(), self.store.last());
                self.waiting.push_back(Waiting { record, last, bytes, answers: Vec::new() });
            }
            Err(refusal) => out.halt(format!("the journal of the region's log refused a record: {refusal}")),
        }
    }

    /// Answers once all that was written until now is synced.
    fn wait(&mut self, to: Address, answer: Storage) {
        let (record, last) = (self.journal.written(), self.store.last());
        if self.waiting.is_empty() {
            self.waiting.push_back(Waiting { record, last, bytes: 0, answers: Vec::new() });
        }
        let Some(back) = self.waiting.back_mut() else { return };
        // Of what is appended the last answer says all.
        if let Storage::Appended { ballot: of, number, through, .. } = &answer
            && let Some((before, Storage::Appended { ballot, number: old, through: least, .. })) =
                back.answers.last_mut()
            && *before == to
            && ballot == of
        {
            (*old, *least) = ((*old).max(*number), (*least).max(*through));
            return;
        }
        back.answers.push((to, answer));
    }

    /// Takes lines of the leader, in the place of others if need be.
    fn append(
        &mut self,
        now: Now,
        from: Address,
        (ballot, number): (Ballot, u64),
        (previous, lines): (Line, Vec<Written>),
        durable: u64,
        out: &mut Outbox<M>,
    ) {
        let is_new = ballot > self.promised();
        let ballots = std::iter::once(previous.ballot).chain(lines.iter().map(|line| line.ballot));
        let Some(through) = previous.lsn.checked_add(lines.len() as u64) else { return };
        // No server of this version sends such lines.
        if !ballots.is_sorted()
            || lines.last().is_some_and(|line| line.ballot > ballot)
            || ballot >= Ballot::END
        {
            return;
        }
        if self.journal.is_full() {
            // It may be long until there is space. The leader sends again what it has sent now.
            self.hear(now, ballot);
            return self.tell_full(from, ballot, out);
        }
        self.store.hard.term = self.store.hard.term.max(ballot.0);
        self.hear(now, ballot);
        let fits = previous.lsn <= self.settled.0 || self.store.has(previous.lsn, previous.ballot.0);
        let mut entries = Vec::new();
        if fits {
            for (line, lsn) in lines.iter().zip(previous.lsn + 1..) {
                let has = self.store.has(lsn, line.ballot.0);
                if lsn <= self.settled.0 {
                    // The ballot of a trimmed line is not known any more.
                    if !has && lsn > self.store.base().index {
                        return out.halt(format!(
                            "the leader of ballot {} has something else in place of line {lsn}, which is durable: one of \
                             the region's storage nodes has lost what it had acknowledged",
                            ballot.0
                        ));
                    }
                } else if !entries.is_empty() || !has {
                    entries.push(entry_of(lsn, line));
                }
            }
        }
        if let Some(first) = entries.first().map(|entry| entry.index) {
            self.counts.cut += (self.store.last() + 1).saturating_sub(first);
            self.counts.appended += entries.len() as u64;
            self.synced = self.synced.min(first - 1);
            self.waiting.iter_mut().for_each(|waiting| waiting.last = waiting.last.min(first - 1));
            if !self.store.append(entries.clone()) {
                return out.halt(format!("lines from {first} on do not fit the log"));
            }
        }
        if fits {
            let hard = &mut self.store.hard;
            hard.commit = hard.commit.max(durable.min(through));
        }
        if is_new || !entries.is_empty() {
            self.write(&entries, out);
        }
        // Settled lines are in every log from now on.
        let generation = self.generation();
        let through = through.max(self.settled.0);
        let answer = match fits {
            true => Storage::Appended { ballot, generation, number, through, is_full: false },
            false => Storage::Unfit { ballot, generation, number, durable: self.settled.0 },
        };
        self.wait(from, answer);
    }

    /// Tells the leader that nothing is synced at present, and that this replica lives.
    fn tell_full(&self, to: Address, ballot: Ballot, out: &mut Outbox<M>) {
        let generation = self.generation();
        out.send(to, Storage::Appended { ballot, generation, number: 0, through: 0, is_full: true });
    }

    /// Lets go the answers that have waited for records which are synced now.
    fn release(&mut self, out: &mut Outbox<M>) {
        let durable = self.journal.durable();
        let (mut last, mut bytes) = (0, 0);
        while let Some(waiting) = self.waiting.pop_front_if(|waiting| waiting.record <= durable) {
            self.synced = self.synced.max(waiting.last);
            (last, bytes) = (waiting.last, bytes + waiting.bytes);
            waiting.answers.into_iter().for_each(|(to, answer)| out.send(to, answer));
        }
        if bytes > 0
            && let Some(place) = self.journal.place()
        {
            self.store.note_place(last + 1, place, bytes);
        }
        self.settle();
    }

    /// Notes lines that are durable, and are so here.
    fn settle(&mut self) {
        let through = self.store.hard.commit.min(self.synced);
        let settled: Vec<Entry> =
            self.store.from(self.settled.0 + 1).take_while(|entry| entry.index <= through).cloned().collect();
        for entry in settled {
            if let Some(Content::Configuration(configuration)) = line_of(&entry).map(|line| line.content) {
                self.store.members = configuration.to_members();
            }
            self.settled = (entry.index, epoch_of(&entry).unwrap_or(self.settled.1));
            self.store.dispatched(&entry, self.settled.1);
            self.behind = None;
        }
    }

    /// A server of another region waits for lines.
    fn watch(&mut self, from: Address, number: u64, after: After) {
        let has_room = self.watchers.len() < READERS_MAX || self.watchers.contains_key(&from);
        if has_room {
            self.watchers.insert(from, Reader { to: from, number, ballot: Ballot(0), after });
        }
    }

    /// Has the watchers served whose lines are there.
    fn serve_watchers(&mut self, out: &mut Outbox<M>) {
        let settled = self.settled;
        let is_due = |reader: &Reader| match reader.after {
            After::Lsn(lsn) => lsn < settled.0,
            After::Epoch(epoch) => epoch < settled.1,
        };
        let due: Vec<Reader> = self.watchers.values().filter(|reader| is_due(reader)).copied().collect();
        if due.is_empty() {
            return;
        }
        due.iter().for_each(|reader| _ = self.watchers.remove(&reader.to));
        self.readers.retain(|reader| due.iter().all(|other| other.to != reader.to));
        self.readers.extend(due);
        self.serve(out);
    }

    // ---- readers -----------------------------------------------------------------------------------------

    /// Answers the readers whose lines are in memory.
    fn serve(&mut self, out: &mut Outbox<M>) {
        for reader in std::mem::take(&mut self.readers) {
            match self.read(reader) {
                Some(answer) => out.send(reader.to, answer),
                None => self.readers.push(reader),
            }
        }
    }

    /// The answer to a reader; `None` if the disk has to be asked first.
    fn read(&self, Reader { number, ballot, after: asked, .. }: Reader) -> Option<Storage> {
        let trimmed = || Some(Storage::Trimmed { number, after: asked, base: self.base() });
        let base = self.store.base();
        let after = match asked {
            After::Epoch(epoch) if base.epoch > epoch => return trimmed(),
            After::Lsn(lsn) if lsn < base.index => return trimmed(),
            After::Epoch(epoch) => self.store.index_before(epoch),
            After::Lsn(lsn) => lsn,
        };
        // Who has this replica's promise may see what is not known to be durable.
        let is_owner = ballot > Ballot(0) && ballot == self.promised();
        let through = if is_owner { self.store.last() } else { self.settled.0 };
        let durable = self.settled.0;
        let of_previous = if after <= self.store.last() { self.ballot_at(after) } else { Ballot(0) };
        let previous = Line { ballot: of_previous, lsn: after };
        let fetched =
            |lines| Some(Storage::Fetched { number, ballot, after: asked, previous, lines, durable });
        if after >= through {
            return fetched(Vec::new());
        }
        let most = self.settings.message_bytes as u64;
        match self.store.entries(after + 1, through + 1, most, GetEntriesContext::empty(true)) {
            Ok(entries) => fetched(entries.iter().map_while(line_of).collect()),
            Err(raft::Error::Store(ReadError::LogTemporarilyUnavailable)) => None,
            Err(_) => trimmed(),
        }
    }

    // ---- disk --------------------------------------------------------------------------------------------

    fn disk(&mut self, done: &DiskDone, out: &mut Outbox<M>) {
        match self.journal.done(done, &mut self.store, out) {
            Ok(journal::Outcome::Fetched(_)) => self.serve(out),
            Ok(journal::Outcome::Full) => {
                let promised = self.promised();
                let owner = promised.owner().and_then(|rank| self.settings.servers.get(rank));
                if let Some(node) = owner {
                    self.tell_full(Address { node: *node, ..self.settings.me }, promised, out);
                }
                out.set_timer(PROBE, PROBE_EVERY);
            }
            Ok(journal::Outcome::Durable) => self.release(out),
            Ok(journal::Outcome::Offered(epoch)) => self.ask_for_checkpoint(epoch, out),
            Ok(journal::Outcome::Nothing) => {}
            Err(reason) => out.halt(format!("the journal of the region's log failed: {reason}")),
        }
    }

    /// No replica that the leader reaches keeps what this one needs next.
    fn fall_behind(&mut self, from: Address, ballot: Ballot, base: &LogBase, out: &mut Outbox<M>) {
        if base.last.lsn <= self.settled.0 {
            // The replica has come back with a checkpoint, or its log, and the leader does not know.
            let (generation, through) = (self.generation(), self.settled.0);
            let has = Storage::Appended { ballot, generation, number: 0, through, is_full: false };
            return self.wait(from, has);
        }
        self.behind = Some(base.epoch);
        let members = base.configuration.to_members();
        let Line { ballot, lsn } = base.last;
        let offered = Base { index: lsn, term: ballot.0, epoch: base.epoch, members, void: Epoch(0) };
        if self.journal.offer(offered, &self.store, out) {
            self.ask_for_checkpoint(base.epoch, out);
        }
    }

    /// Asks for a checkpoint with which this replica can begin later, if it still needs one.
    fn ask_for_checkpoint(&self, epoch: Epoch, out: &mut Outbox<M>) {
        let checkpointer = self.settings.checkpointer.filter(|_| self.behind.is_some());
        checkpointer.into_iter().for_each(|to| out.send(to, Log::<E>::Behind(epoch)));
    }

    /// Keeps house after everything else.
    fn housekeeping(&mut self, out: &mut Outbox<M>) {
        self.release(out);
        self.serve_watchers(out);
        self.store.shrink(self.settled.0, self.settings.tail_bytes, self.journal.is_on_disk());
        if self.is_stopping && self.waiting.is_empty() {
            self.journal.write_commit(&self.store.hard);
        }
        self.journal.trim(&self.store, self.settled.0, self.settings.keep_bytes, out);
        self.counts.fetches += u64::from(self.journal.fetch(&self.store, out));
        self.journal.ask_disk(out);
        if self.journal.mark(false, self.is_stopping) {
            out.set_timer(MARK, MARK_AFTER);
        }
        self.journal.ask_disk(out);
    }
}

impl<E, M: Carrier<E>> Role for StorageReplica<E, M> {
    type Message = M;

    fn handle(&mut self, now: Now, event: Event<M>, out: &mut Outbox<M>) {
        let asked = out.disk.len();
        match event {
            Event::Message { from, message } => match message.try_into() {
                Ok(Message::Storage(Storage::Watch { number, after })) => self.watch(from, number, after),
                Ok(Message::Storage(message)) if self.settings.servers.contains(&from.node) => {
                    self.receive(now, from, message, out);
                }
                // Of a node that is none of the region's servers.
                Ok(Message::Storage(_)) => {}
                Ok(Message::Log(Log::Trim(covered))) => self.journal.cover(covered),
                Ok(Message::Log(Log::BeginAgain(_))) => {
                    out.rebuild(Rebuild { without_log: false, without_receive_journal: true });
                }
                Ok(Message::Peer(change)) => {
                    self.readers.retain(|reader| reader.to.node != change.node);
                    self.watchers.retain(|to, _| to.node != change.node);
                }
                Ok(_) | Err(_) => out.halt("a storage replica was sent a message that is not for it"),
            },
            Event::Disk(done) => self.disk(&done, out),
            Event::Timer(PROBE) => self.journal.retry(),
            Event::Timer(MARK) => {
                if self.journal.mark(true, false) {
                    out.set_timer(MARK, MARK_AFTER);
                }
            }
            Event::Timer(_) | Event::Work(_) => {}
            Event::Start => {
                self.spoke = (self.promised() > Ballot(0)).then_some(now.elapsed);
                if self.journal.is_full() {
                    out.set_timer(PROBE, PROBE_EVERY);
                }
            }
            Event::Stop => self.is_stopping = true,
        }
        self.housekeeping(out);
        let requests = out.disk.split_off(asked).into_iter();
        out.disk.extend(requests.map(|request| in_space(request, self.prefix)));
    }

    fn name(&self) -> &'static str {
        "storage-replica"
    }

    fn check(&self) -> Result<(), String> {
        self.store.check()?;
        if !self.waiting.iter().map(|waiting| waiting.record).is_sorted() {
            return Err("answers do not wait for the journal in its order".to_owned());
        }
        if self.generation() == 0 {
            return Err("it is in no generation".to_owned());
        }
        let (settled, durable, last) = (self.settled.0, self.store.hard.commit, self.last());
        if settled > durable || settled > self.synced || self.synced > last.lsn || durable > last.lsn {
            return Err(format!(
                "line {settled} is settled, {durable} durable, {} synced, and {} the last",
                self.synced, last.lsn
            ));
        }
        if last.ballot > self.promised() {
            return Err(format!(
                "line {} is of ballot {} and {} is promised",
                last.lsn,
                last.ballot.0,
                self.promised().0
            ));
        }
        Ok(())
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let (lines, bytes) = self.store.in_memory();
        report("ordain_storage_ballot", self.promised().0 as f64);
        report("ordain_storage_last_line", self.store.last() as f64);
        report("ordain_storage_durable_line", self.settled.0 as f64);
        report("ordain_storage_synced_line", self.synced as f64);
        report("ordain_storage_first_line", self.store.base().index as f64 + 1.0);
        report("ordain_storage_configuration", self.configuration().0.required.len() as f64);
        report("ordain_storage_is_counted", f64::from(u8::from(self.is_counted())));
        report("ordain_storage_lines_in_memory", lines as f64);
        report("ordain_storage_bytes_in_memory", bytes as f64);
        report("ordain_storage_appended_total", self.counts.appended as f64);
        report("ordain_storage_cut_total", self.counts.cut as f64);
        report("ordain_storage_refused_total", self.counts.refused as f64);
        report("ordain_storage_fetches_total", self.counts.fetches as f64);
        report("ordain_log_behind_epoch", self.behind.unwrap_or_default().0 as f64);
        self.journal.gauges(report);
    }
}

impl<E, M> fmt::Debug for StorageReplica<E, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageReplica")
            .field("promised", &self.store.hard.term)
            .field("last", &self.store.last())
            .field("settled", &self.settled)
            .field("synced", &self.synced)
            .finish_non_exhaustive()
    }
}
