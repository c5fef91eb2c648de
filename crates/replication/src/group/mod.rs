//! The input log of a partition that has members: they agree on every batch before any of them may see it (calvin.md,
//! section 4.1, `sync`; section 4.11).
//!
//! ```text
//!  Sequencer ──Append──▶ GroupLog ◀──Group──▶ GroupLog of each member
//!      ▲  ▲                │   │
//!      │  └─Logged, Lost,──┘   └─Sealed──▶ sinks, on every member
//!      │    Leader
//! ```
//!
//! The members of a partition are a Raft group. The crate `raft` is the protocol; this role gives it what it has none
//! of: time, by a timer; a disk, by a journal that an [`ordain_log::LogWriter`] writes (module `record`); messages;
//! and entries that have left memory (module `store`).
//!
//! What the sequencer may rely on:
//! - a batch is *open* from [`Log::Append`] until it is [`Log::Logged`] or [`Log::Lost`], and it is
//!   exactly one of the two unless the node stops before. A lost batch is executed by nobody, ever;
//! - every member sends [`Log::Sealed`] for the same batches in the same order, each once in the life of its
//!   node, those given to the visitor of [`GroupLog::open`] and those that its checkpoint has included. Epochs rise along
//!   them;
//! - [`Log::Leader`] with `is_me` says that everything agreed on before has been sealed here.
//!
//! A batch is lost for certain only when an entry of a later term is committed at its place or before: until then a
//! member that holds it might still be elected and have it committed. So it stays open meanwhile, and it may be
//! logged although this node leads no more.
//!
//! Every batch is an entry, also one that only reads: the proposer's members then see the same epochs. The reads
//! themselves are not part of the entry. The proposer executes them with the batch that it has kept; the others
//! have nobody to answer.
//!
//! Durability: whatever the protocol wants durable before a message may leave is one record of the journal, and the
//! message waits for it. Records that gather while the disk is busy are written and synced together. A leader sends
//! entries to its members while it writes them itself. How far entries are committed is written along with the next
//! record and never for its own sake: a member that starts again hears it from the leader.
//!
//! Trimming: what a checkpoint covers is let go ([`Log::Trim`]; module `base`). A member that needs some of it is told
//! so by the leader. It stays where it is until it has got a checkpoint: nobody agrees on anything in its place.
//!
//! Beginning: a founder takes part once all founders have met, so that one which has forgotten its past is noticed
//! (module `founding`).
//!
//! Replacement: a member that has lost its disk must not come back as who it was, for it has forgotten its votes. Its
//! node comes back with a larger *generation*, which makes it another member, and asks to be let in (module
//! `membership`).

mod base;
mod founding;
mod journal;
mod membership;
mod record;
mod said;
mod shown;
mod store;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use ordain_log::{LogConfig, LogError, Recovered, in_space};
use ordain_model::{Epoch, Micros};
use ordain_role::{Address, Directory, Event, NodeId, Now, Outbox, PeerChange, PeerState, Role, TimerId};
use raft::eraftpb::{Entry, Message as RaftMessage, MessageType};
use raft::{Config, RawNode, StateRole};

use crate::entry::EntryType;
use crate::message::{Carrier, GroupMessage, Log, Message};
use base::Base;
use founding::Founding;
use journal::Journal;
use membership::Member;
use said::Said;
use store::{Store, epoch_of, is_change};

pub use journal::found_after;
pub use shown::{GroupContent, GroupEntry, GroupJournal, GroupRecord, Standing};

/// How a group's log is set up.
#[derive(Clone, Debug)]
pub struct GroupSettings {
    /// Where this role is. It has the same number on every member.
    pub me: Address,
    /// The nodes that hold the partition, this one among them; in the same order on all of them.
    pub members: Vec<NodeId>,
    /// How often this node has come back without what it had on disk.
    pub generation: u32,
    /// Up to this epoch a checkpoint has everything already: no such batch is sealed again.
    pub executed: Epoch,
    /// Who gets a checkpoint for a member that is too far behind, if there is such a role.
    pub checkpointer: Option<Address>,
    /// How much of what is dispatched is kept in memory for members that lag.
    pub tail_bytes: usize,
    /// How much is kept on disk, though a checkpoint covers it, for members that are catching up.
    pub kept_max: u64,
    /// About how many bytes there may be before what members that are away may want goes, once a checkpoint covers it.
    pub keep_bytes: u64,
    /// An entry longer than this has a message of its own; shorter ones share.
    pub message_bytes: usize,
}

impl GroupSettings {
    /// The defaults for a member at `me` of a group of `members`.
    pub fn new(me: Address, members: Vec<NodeId>) -> GroupSettings {
        GroupSettings {
            me,
            members,
            generation: 0,
            executed: Epoch(0),
            checkpointer: None,
            tail_bytes: 64 << 20,
            kept_max: 256 << 20,
            keep_bytes: u64::MAX,
            message_bytes: 1 << 20,
        }
    }
}

/// Why a group's log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The journal is refused.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The settings cannot be.
    #[error("replication group: {0}")]
    Settings(String),
}

const TICK: TimerId = TimerId(1);
const TICK_EVERY: Micros = Micros::from_millis(20);
/// A full disk is tried again.
const PROBE: TimerId = TimerId(2);
const PROBE_EVERY: Micros = Micros::from_millis(500);
/// A journal that has been idle for a while is marked as synced, as the input log of a node on its own is.
const MARK: TimerId = TimerId(3);
const MARK_AFTER: Micros = Micros::from_millis(200);

/// In ticks: how often a leader is heard from.
const HEARTBEAT: usize = 2;
/// In ticks: for how long a voter that hears from a leader sticks to it, and a leader that hears from no majority
/// goes on.
const LEASE: usize = 10;
/// In ticks: after how long without a leader the first member stands for election, and how much later the last.
const ELECTION: (usize, usize) = (12, 8);
/// How many messages with entries a member may have to answer: how much it may have to keep while it cannot write, and a
/// link until it is there. A member that lags must not be sent more than a link has room for.
const MESSAGES_OPEN: usize = 16;
/// In ticks: how often a member is told that what it needs is not kept any more.
const TELL_EVERY: u64 = 25;

/// Agrees with its members on batches, makes them durable and dispatches them.
pub struct GroupLog<T: EntryType, M> {
    settings: GroupSettings,
    member: Member,
    context: Arc<T::Context>,
    sequencer: Address,
    sinks: Vec<Address>,
    raft: RawNode<Store>,
    journal: Journal,
    /// What was proposed here and is open, by index.
    proposals: BTreeMap<u64, Proposal<T::Entry>>,
    /// What waits for the journal, in order.
    waiting: VecDeque<Waiting>,
    /// Index and epoch of what was dispatched last.
    dispatched: (u64, Epoch),
    /// What comes next is not kept any more by the leader up to this epoch.
    behind: Option<Epoch>,
    /// Who is to be told that of itself.
    late: BTreeSet<u64>,
    announced: Option<Announced>,
    /// It has yet to learn that the group has begun: until then it takes no part.
    founding: Option<Founding>,
    /// Since when this member leads, and when it has heard from each other one since.
    leads_since: Micros,
    heard: BTreeMap<u64, Micros>,
    ticks: u64,
    /// A leader that cannot write has asked another to lead.
    gives_way: bool,
    is_stopping: bool,
    /// What the names of its journal's files begin with, before what all journals' begin with.
    prefix: &'static str,
    counts: Counts,
    marker: std::marker::PhantomData<fn() -> M>,
}

/// A batch that was proposed.
#[derive(Debug)]
struct Proposal<E> {
    term: u64,
    entry: E,
}

/// What becomes true when a record is durable.
#[derive(Debug)]
struct Waiting {
    /// Of the protocol's step.
    number: u64,
    /// The record.
    record: Epoch,
    /// Index of the last entry when it was written, and how long it is.
    last: u64,
    bytes: u64,
    messages: Vec<RaftMessage>,
}

/// What the sequencer was told about leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Announced {
    node: Option<NodeId>,
    term: u64,
    is_me: bool,
}

#[derive(Debug, Default)]
struct Counts {
    dispatched: u64,
    lost: u64,
    elections: u64,
    fetches: u64,
}

impl<T: EntryType, M: Carrier<T::Entry>> GroupLog<T, M> {
    /// Opens the journal of a directory, or makes one, and shows the bytes of every batch that it knows to be agreed
    /// on to `visit`, in order. What was agreed on beyond that is sealed when the leader says so.
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn open(
        directory: &mut dyn Directory,
        config: LogConfig,
        settings: GroupSettings,
        context: Arc<T::Context>,
        (sequencer, sinks): (Address, Vec<Address>),
        visit: impl FnMut(u64, &[u8]) -> Result<(), String>,
    ) -> Result<(GroupLog<T, M>, Recovered), GroupError> {
        let founders = membership::founders(&settings.members);
        let opened =
            journal::open(directory, config, (founders, settings.executed), settings.tail_bytes, visit)?;
        let journal::Opened { journal, store, dispatched, recovered } = opened;
        let is_new = settings.generation == 0 && store.hard.term == 0 && store.last() == 0;
        let mut log = GroupLog::start(settings, context, (sequencer, sinks), journal, store, dispatched)?;
        if is_new && log.settings.members.len() > 1 {
            log.founding = Some(Founding::new(recovered.entries > 0));
        }
        Ok((log, recovered))
    }

    /// A member that keeps everything in memory. Like one that has lost its disk, it must not come back as who it was.
    ///
    /// # Errors
    /// [`GroupError::Settings`].
    pub fn in_memory(
        settings: GroupSettings,
        context: Arc<T::Context>,
        (sequencer, sinks): (Address, Vec<Address>),
    ) -> Result<GroupLog<T, M>, GroupError> {
        let store = Store::new(membership::founders(&settings.members), 0);
        GroupLog::start(settings, context, (sequencer, sinks), Journal::none(), store, (0, Epoch(0)))
    }

    fn start(
        settings: GroupSettings,
        context: Arc<T::Context>,
        (sequencer, sinks): (Address, Vec<Address>),
        journal: Journal,
        store: Store,
        dispatched: (u64, Epoch),
    ) -> Result<GroupLog<T, M>, GroupError> {
        let refused = |reason: &str| Err(GroupError::Settings(reason.to_owned()));
        let Some(rank) = settings.members.iter().position(|member| *member == settings.me.node) else {
            return refused("this node is not among the members of its partition");
        };
        let mut sorted = settings.members.clone();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return refused("a node is named twice among the members of its partition");
        }
        let member = Member { node: settings.me.node, generation: settings.generation };
        let (first, spread) = ELECTION;
        // The crate draws the timeout from a range. This one has one value, another on every member: nothing is left
        // to chance, and no two stand for election together for long.
        let election = first + rank * spread / (settings.members.len() - 1).max(1);
        let config = Config {
            id: member.id(),
            election_tick: LEASE,
            min_election_tick: election,
            max_election_tick: election + 1,
            heartbeat_tick: HEARTBEAT,
            applied: dispatched.0,
            max_size_per_msg: settings.message_bytes as u64,
            max_inflight_msgs: MESSAGES_OPEN,
            check_quorum: true,
            pre_vote: true,
            batch_append: true,
            ..Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raft = RawNode::new(&config, store, &logger).map_err(|e| GroupError::Settings(e.to_string()))?;
        Ok(GroupLog {
            settings,
            member,
            context,
            sequencer,
            sinks,
            raft,
            journal,
            proposals: BTreeMap::new(),
            waiting: VecDeque::new(),
            dispatched,
            behind: None,
            late: BTreeSet::new(),
            announced: None,
            founding: None,
            leads_since: Micros(0),
            heard: BTreeMap::new(),
            ticks: 0,
            gives_way: false,
            is_stopping: false,
            prefix: "",
            counts: Counts::default(),
            marker: std::marker::PhantomData,
        })
    }

    /// The same log, whose journal was opened in an [`ordain_log::Space`].
    #[must_use]
    pub fn in_space(self, prefix: &'static str) -> GroupLog<T, M> {
        GroupLog { prefix, ..self }
    }

    /// The largest epoch in this member's log.
    fn last_epoch(&self) -> Epoch {
        let open = self.raft.store().from(self.dispatched.0 + 1).rev().find_map(epoch_of);
        open.unwrap_or(self.dispatched.1)
    }

    /// Whether this member leads, knows all that was agreed on before, and can write.
    fn may_propose(&self) -> bool {
        let raft = &self.raft.raft;
        raft.state == StateRole::Leader
            && raft.apply_to_current_term()
            && !self.journal.is_full()
            && !self.is_stopping
    }

    fn append(&mut self, entry: T::Entry, out: &mut Outbox<M>) {
        let fits = self.may_propose() && T::epoch(&entry) > self.last_epoch();
        // The crate fills in index and term.
        if !fits || self.raft.propose(Vec::new(), T::encode(&entry)).is_err() {
            self.lose(entry, out);
            return;
        }
        let (index, term) = (self.raft.raft.raft_log.last_index(), self.raft.raft.term);
        self.proposals.insert(index, Proposal { term, entry });
    }

    fn lose(&mut self, entry: T::Entry, out: &mut Outbox<M>) {
        self.counts.lost += 1;
        out.send(self.sequencer, Log::Lost(entry));
    }

    fn receive(&mut self, now: Now, from: NodeId, said: Option<Said>, out: &mut Outbox<M>) {
        match said {
            Some(Said::Raft(message)) => self.step(now, from, message, out),
            Some(Said::Join(newcomer)) if newcomer.node == from => self.let_in(now, newcomer),
            Some(Said::Found { is_ready, has_begun }) => self.hear_founding(from, (is_ready, has_begun), out),
            Some(Said::Behind(base)) => self.hear_behind(from, base, out),
            // Bytes that nobody of this version sends.
            Some(Said::Join(_)) | None => {}
        }
    }

    /// Takes a message of the protocol, unless it is for somebody else or of a kind that no member sends.
    fn step(&mut self, now: Now, from: NodeId, message: RaftMessage, out: &mut Outbox<M>) {
        use MessageType::*;
        let is_from_there = Member::of(message.from).is_some_and(|sender| sender.node == from);
        let is_in_order = message.entries.iter().zip(message.index + 1..).all(|(e, index)| e.index == index);
        if message.to != self.member.id() || !is_from_there || !is_in_order || self.founding.is_some() {
            return;
        }
        match message.msg_type {
            MsgAppend | MsgHeartbeat if message.term >= self.raft.raft.term => {
                if let Err(reason) = self.judge(&message) {
                    out.halt(reason);
                    return;
                }
            }
            MsgAppend
            | MsgHeartbeat
            | MsgAppendResponse
            | MsgHeartbeatResponse
            | MsgRequestVote
            | MsgRequestVoteResponse
            | MsgRequestPreVote
            | MsgRequestPreVoteResponse
            | MsgTimeoutNow => {}
            _ => return,
        }
        if self.raft.raft.prs().get(message.from).is_some() {
            self.heard.insert(message.from, now.elapsed);
        }
        // It refuses what comes from somebody who is no member; that is as good as lost.
        let _ = self.raft.step(message);
    }

    /// Looks for what a leader can only say if one of the two has lost what it had made durable. The crate would
    /// panic.
    fn judge(&self, message: &RaftMessage) -> Result<(), String> {
        let log = &self.raft.raft.raft_log;
        if message.msg_type == MessageType::MsgHeartbeat && message.commit > log.last_index() {
            return Err(format!(
                "the leader knows that this node had entry {} and it has only {}: it has lost what it had \
                 acknowledged; start it with an empty directory and --join",
                message.commit,
                log.last_index()
            ));
        }
        // Of what is trimmed the term is not known any more.
        let known = log.first_index().saturating_sub(1)..=log.committed;
        let differs =
            |entry: &&Entry| known.contains(&entry.index) && !log.match_term(entry.index, entry.term);
        if let Some(entry) = message.entries.iter().find(differs) {
            return Err(format!(
                "the leader has something else in place of entry {}, which was agreed on: one of the two \
                 nodes has lost what it had acknowledged",
                entry.index
            ));
        }
        Ok(())
    }

    /// Carries out what the protocol wants done, until it wants nothing more.
    fn advance(&mut self, out: &mut Outbox<M>) {
        while self.raft.has_ready() && out.halt.is_none() {
            let mut ready = self.raft.ready();
            self.counts.elections += u64::from(ready.ss().is_some_and(|s| s.raft_state == StateRole::Leader));
            let (number, must_write) = (ready.number(), ready.must_sync());
            for message in ready.take_messages() {
                self.send(message, out);
            }
            let (entries, committed) = (ready.take_entries(), ready.take_committed_entries());
            let messages = ready.take_persisted_messages();
            let store = self.raft.mut_store();
            if let Some(hard) = ready.hs() {
                store.hard = hard.clone();
            }
            let mut bytes = 0;
            if must_write {
                match self.journal.write(&store.hard, &entries) {
                    Ok(len) => bytes = len,
                    Err(refusal) => out.halt(format!("the group's journal refused a record: {refusal}")),
                }
            }
            if !store.append(entries) {
                out.halt("the protocol appends entries that do not fit the log");
            }
            let last = store.last();
            self.raft.advance_append_async(ready);
            self.wait(Waiting { number, record: self.journal.written(), last, bytes, messages });
            self.commit(committed, out);
            self.release(out);
        }
    }

    /// What waits for the same record as what is there already waits with it.
    fn wait(&mut self, mut waiting: Waiting) {
        if self.journal.is_full() {
            // It may be long until there is space, and whatever is said then is old. Messages may always be lost.
            waiting.messages.clear();
        }
        match self.waiting.back_mut() {
            Some(back) if back.record == waiting.record => {
                back.number = waiting.number;
                back.last = waiting.last;
                back.messages.append(&mut waiting.messages);
            }
            _ => self.waiting.push_back(waiting),
        }
    }

    /// Lets go what has waited for records that are durable now.
    fn release(&mut self, out: &mut Outbox<M>) {
        let durable = self.journal.durable();
        let (mut last, mut bytes) = (0, 0);
        while let Some(waiting) = self.waiting.pop_front_if(|waiting| waiting.record <= durable) {
            self.raft.on_persist_ready(waiting.number);
            for message in waiting.messages {
                self.send(message, out);
            }
            (last, bytes) = (waiting.last, bytes + waiting.bytes);
        }
        if bytes > 0
            && let Some(place) = self.journal.place()
        {
            self.raft.mut_store().note_place(last + 1, place, bytes);
        }
    }

    fn send(&self, message: RaftMessage, out: &mut Outbox<M>) {
        let Some(to) = Member::of(message.to) else { return };
        self.tell(to.node, &Said::Raft(message), out);
    }

    fn tell(&self, node: NodeId, said: &Said, out: &mut Outbox<M>) {
        let (head, tail) = said.encode();
        let message = GroupMessage { from: self.settings.me.node, head: head.into(), tail };
        out.send(Address { node, ..self.settings.me }, message);
    }

    /// Takes what was agreed on, in order, and decides what becomes of this member's proposals.
    fn commit(&mut self, entries: Vec<Entry>, out: &mut Outbox<M>) {
        let Some(last) = entries.last().map(|entry| entry.index) else { return };
        for entry in entries {
            let own = self.proposals.remove(&entry.index);
            let (own, other) = match own {
                Some(own) if own.term == entry.term => (Some(own.entry), None),
                other => (None, other),
            };
            // A log that has a proposal of an earlier term here or behind cannot have this entry, and every leader
            // from now on has it.
            let lost = self.proposals.extract_if(.., |_, proposal| proposal.term < entry.term);
            let lost: Vec<Proposal<T::Entry>> =
                other.into_iter().chain(lost.map(|(_, proposal)| proposal)).collect();
            lost.into_iter().for_each(|proposal| self.lose(proposal.entry, out));
            if is_change(&entry) {
                if let Err(reason) = self.change(&entry) {
                    out.halt(reason);
                }
            } else if !entry.data.is_empty() {
                self.dispatch(&entry, own, out);
            }
            self.dispatched.0 = entry.index;
            self.raft.mut_store().dispatched(&entry, self.dispatched.1);
        }
        self.behind = None;
        self.raft.advance_apply_to(last);
    }

    fn dispatch(&mut self, agreed: &Entry, own: Option<T::Entry>, out: &mut Outbox<M>) {
        let is_own = own.is_some();
        let mut entry = match own.map_or_else(|| T::decode(&self.context, &agreed.data), Ok) {
            Ok(entry) => entry,
            Err(error) => {
                out.halt(format!("entry {} was agreed on and cannot be read: {error}", agreed.index));
                return;
            }
        };
        let epoch = T::epoch(&entry);
        if epoch <= self.dispatched.1 {
            out.halt(format!("epoch {epoch} was agreed on after epoch {}", self.dispatched.1));
            return;
        }
        self.dispatched.1 = epoch;
        self.counts.dispatched += 1;
        if is_own {
            out.send(self.sequencer, Log::Logged(epoch));
        }
        if epoch <= self.settings.executed {
            return;
        }
        T::note_term(&mut entry, agreed.term);
        for sink in &self.sinks {
            out.send(*sink, Log::Sealed(entry.clone()));
        }
    }

    /// A change of the membership was agreed on.
    fn change(&mut self, entry: &Entry) -> Result<(), String> {
        let change = membership::parse_change(&entry.data)?;
        let members = self
            .raft
            .apply_conf_change(&change)
            .map_err(|e| format!("a change of the group's membership cannot be applied: {e}"))?;
        self.raft.mut_store().members = members;
        Ok(())
    }

    /// Tells the sequencer who leads, if that has changed. A leader leads when it has dispatched an entry of its own
    /// term: then it knows what was agreed on before.
    fn announce(&mut self, at: Now, out: &mut Outbox<M>) {
        let raft = &self.raft.raft;
        let is_me = self.may_propose();
        let node = match raft.state {
            StateRole::Leader => is_me.then_some(self.settings.me.node),
            _ => Member::of(raft.leader_id).map(|leader| leader.node),
        };
        let now = Announced { node, term: raft.term, is_me };
        if self.announced == Some(now) {
            return;
        }
        self.announced = Some(now);
        if is_me {
            // A leader hears from all members, a follower only from leaders.
            self.leads_since = at.elapsed;
            self.heard.clear();
        }
        let Announced { node, term, is_me } = now;
        out.send(self.sequencer, Log::Leader { node, term, is_me, last: self.last_epoch() });
    }

    /// The disk is full. A leader lets somebody else lead who can write; if that comes to nothing, it lets go all the
    /// same, and the others elect one.
    fn yield_leadership(&mut self) {
        let raft = &self.raft.raft;
        if raft.state != StateRole::Leader || self.raft.store().members.voters.len() < 2 {
            self.gives_way = false;
            return;
        }
        match self.successor().filter(|_| !self.gives_way) {
            Some(successor) => self.raft.transfer_leader(successor),
            None => {
                let term = raft.term;
                self.raft.raft.become_follower(term, raft::INVALID_ID);
            }
        }
        self.gives_way = !self.gives_way;
    }

    /// The other voter that has most of the log, among those that were heard from lately.
    fn successor(&self) -> Option<u64> {
        let raft = &self.raft.raft;
        let voters = &self.raft.store().members.voters;
        let able = raft.prs().iter().filter(|(id, progress)| {
            **id != self.member.id() && voters.contains(*id) && progress.recent_active
        });
        able.max_by_key(|(id, progress)| (progress.matched, std::cmp::Reverse(**id))).map(|(id, _)| *id)
    }

    fn peer(&mut self, change: PeerChange, out: &mut Outbox<M>) {
        if !self.settings.members.contains(&change.node) {
            return;
        }
        if change.state == PeerState::Fresh && self.founding.is_some() {
            self.tell_founding(change.node, out);
        }
        // Of what was on its way something may be lost: go back to what is known to have arrived.
        if matches!(change.state, PeerState::Lost | PeerState::Fresh) {
            let of_node = |id: &u64| Member::of(*id).is_some_and(|member| member.node == change.node);
            let ids: Vec<u64> = self.raft.raft.prs().iter().map(|(id, _)| *id).filter(of_node).collect();
            ids.into_iter().for_each(|id| self.raft.report_unreachable(id));
        }
    }

    /// Everything else is done: the journal is written, what memory need not hold is dropped, what is wanted from
    /// disk is asked for.
    fn housekeeping(&mut self, now: Now, out: &mut Outbox<M>) {
        // What is dispatched is durable here.
        let (dispatched, bytes) = (self.dispatched.0, self.settings.tail_bytes);
        self.raft.mut_store().shrink(dispatched, bytes, self.journal.is_on_disk());
        if self.is_stopping && self.waiting.is_empty() {
            self.journal.write_commit(&self.raft.store().hard);
        }
        let spared = self.spared(now);
        let keep_bytes = self.settings.keep_bytes;
        self.journal.trim(self.raft.store(), spared.min(dispatched), keep_bytes, out);
        self.counts.fetches += u64::from(self.journal.fetch(self.raft.store(), out));
        self.journal.ask_disk(out);
        if self.journal.mark(false, self.is_stopping) {
            out.set_timer(MARK, MARK_AFTER);
        }
        self.journal.ask_disk(out);
    }

    /// The last entry that may go as far as members are concerned that can be reached and are catching up. Only a leader
    /// knows how far they are.
    fn spared(&self, now: Now) -> u64 {
        let (raft, store) = (&self.raft.raft, self.raft.store());
        if raft.state != StateRole::Leader {
            return u64::MAX;
        }
        let others = raft.prs().iter().filter(|(id, _)| **id != self.member.id());
        let reached =
            others.filter(|(id, _)| !self.is_silent(**id, now)).map(|(_, progress)| progress.matched);
        let most = self.settings.kept_max;
        let is_near = |at: &u64| *at >= store.base().index && store.bytes_after(*at) <= most;
        reached.filter(is_near).min().unwrap_or(u64::MAX)
    }

    /// Tells members that are too far behind, now and then.
    fn tell_behind(&mut self, out: &mut Outbox<M>) {
        let base = self.raft.store().base().clone();
        self.late.append(&mut self.raft.mut_store().take_behind());
        if self.raft.raft.state != StateRole::Leader || !self.journal.is_on_disk() {
            self.late.clear();
        }
        if self.ticks.is_multiple_of(TELL_EVERY) {
            for member in std::mem::take(&mut self.late).into_iter().filter_map(Member::of) {
                self.tell(member.node, &Said::Behind(base.clone()), out);
            }
        }
    }

    /// The leader does not keep any more what this member needs next.
    fn hear_behind(&mut self, from: NodeId, base: Base, out: &mut Outbox<M>) {
        let raft = &self.raft.raft;
        if Member::of(raft.leader_id).is_none_or(|leader| leader.node != from) {
            return;
        }
        if base.index <= self.dispatched.0 {
            // It has come back with a checkpoint, or its log, and the leader does not know.
            let (to, from, term) = (raft.leader_id, self.member.id(), raft.term);
            let (index, commit) = (self.dispatched.0, raft.raft_log.committed);
            let msg_type = MessageType::MsgAppendResponse;
            let said = RaftMessage { msg_type, to, from, term, index, commit, ..RaftMessage::default() };
            self.send(said, out);
        } else {
            let epoch = base.epoch;
            self.behind = Some(epoch);
            if self.journal.offer(base, self.raft.store(), out) {
                self.ask_for_checkpoint(epoch, out);
            }
        }
    }

    /// With a checkpoint this member can go on, if it still needs one.
    fn ask_for_checkpoint(&self, epoch: Epoch, out: &mut Outbox<M>) {
        let checkpointer = self.settings.checkpointer.filter(|_| self.behind.is_some());
        checkpointer.into_iter().for_each(|to| out.send(to, Log::Behind(epoch)));
    }

    fn disk(&mut self, done: &ordain_role::DiskDone, out: &mut Outbox<M>) {
        match self.journal.done(done, self.raft.mut_store(), out) {
            Ok(journal::Outcome::Fetched(contexts)) => {
                contexts.into_iter().for_each(|context| self.raft.on_entries_fetched(context));
            }
            Ok(journal::Outcome::Full) => {
                self.waiting.iter_mut().for_each(|waiting| waiting.messages.clear());
                self.yield_leadership();
                out.set_timer(PROBE, PROBE_EVERY);
            }
            Ok(journal::Outcome::Durable) => self.release(out),
            Ok(journal::Outcome::Offered(epoch)) => self.ask_for_checkpoint(epoch, out),
            Ok(journal::Outcome::Nothing) => {}
            Err(reason) => out.halt(format!("the group's journal failed: {reason}")),
        }
    }
}

impl<T: EntryType, M: Carrier<T::Entry>> Role for GroupLog<T, M> {
    type Message = M;

    fn handle(&mut self, now: Now, event: Event<M>, out: &mut Outbox<M>) {
        let asked = out.disk.len();
        match event {
            Event::Message { from, message } => match message.try_into() {
                Ok(Message::Log(Log::Append(entry))) => self.append(entry, out),
                Ok(Message::Log(Log::Trim(covered))) => self.journal.cover(covered),
                Ok(Message::Group(GroupMessage { head, tail, .. })) => {
                    self.receive(now, from.node, Said::decode(&head, &tail), out);
                }
                Ok(Message::Peer(change)) => self.peer(change, out),
                Ok(_) | Err(_) => out.halt("the group's log was sent a message that is not for it"),
            },
            Event::Disk(done) => self.disk(&done, out),
            Event::Timer(TICK) => {
                if self.founding.is_some() {
                    self.tick_founding(out);
                } else {
                    self.raft.tick();
                    self.ask_to_join(out);
                    self.tell_behind(out);
                }
                out.set_timer(TICK, TICK_EVERY);
            }
            Event::Timer(PROBE) => self.journal.retry(),
            Event::Timer(MARK) => {
                if self.journal.mark(true, false) {
                    out.set_timer(MARK, MARK_AFTER);
                }
            }
            Event::Timer(_) | Event::Work(_) => {}
            Event::Start => {
                out.set_timer(TICK, TICK_EVERY);
                if self.journal.is_full() {
                    out.set_timer(PROBE, PROBE_EVERY);
                }
            }
            Event::Stop => {
                // Whoever takes over need not find out by itself that this node is gone.
                if self.raft.raft.state == StateRole::Leader
                    && let Some(successor) = self.successor()
                {
                    self.raft.transfer_leader(successor);
                }
                self.is_stopping = true;
            }
        }
        self.found(out);
        self.advance(out);
        self.announce(now, out);
        self.housekeeping(now, out);
        let requests = out.disk.split_off(asked).into_iter();
        out.disk.extend(requests.map(|request| in_space(request, self.prefix)));
    }

    fn name(&self) -> &'static str {
        "group-log"
    }

    fn check(&self) -> Result<(), String> {
        let log = &self.raft.raft.raft_log;
        self.raft.store().check()?;
        if self.dispatched.0 > log.committed {
            return Err(format!("entry {} is dispatched and not agreed on", self.dispatched.0));
        }
        if self.proposals.keys().next().is_some_and(|index| *index <= self.dispatched.0) {
            return Err("a proposal is open although its place is taken".to_owned());
        }
        Ok(())
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let raft = &self.raft.raft;
        let (entries, bytes) = self.raft.store().in_memory();
        report("ordain_group_term", raft.term as f64);
        report("ordain_group_is_leader", f64::from(u8::from(self.may_propose())));
        report("ordain_group_unfounded", self.unfounded() as f64);
        let leader = Member::of(raft.leader_id).map_or(-1.0, |leader| f64::from(leader.node.0));
        report("ordain_group_leader", leader);
        report("ordain_group_elections_won_total", self.counts.elections as f64);
        report("ordain_group_members", self.raft.store().members.voters.len() as f64);
        report("ordain_group_is_voter", f64::from(u8::from(self.is_voter())));
        report("ordain_group_learners", self.raft.store().members.learners.len() as f64);
        report("ordain_group_last", raft.raft_log.last_index() as f64);
        report("ordain_group_commit", raft.raft_log.committed as f64);
        report("ordain_group_dispatched", self.dispatched.0 as f64);
        report("ordain_group_open_proposals", self.proposals.len() as f64);
        report("ordain_group_lost_total", self.counts.lost as f64);
        report("ordain_group_entries_in_memory", entries as f64);
        report("ordain_group_bytes_in_memory", bytes as f64);
        report("ordain_group_fetches_total", self.counts.fetches as f64);
        report("ordain_group_first", self.raft.store().base().index as f64 + 1.0);
        report("ordain_log_behind_epoch", self.behind.unwrap_or_default().0 as f64);
        report("ordain_log_dispatched_batches_total", self.counts.dispatched as f64);
        self.journal.gauges(report);
    }
}

impl<T: EntryType, M> fmt::Debug for GroupLog<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupLog")
            .field("member", &self.member)
            .field("term", &self.raft.raft.term)
            .field("state", &self.raft.raft.state)
            .field("dispatched", &self.dispatched)
            .field("proposals", &self.proposals)
            .finish_non_exhaustive()
    }
}
