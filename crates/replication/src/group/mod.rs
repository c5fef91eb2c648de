//! The log of a replication group: members agree on every entry before any of them hands it on
//! (docs/protocols/calvin.md, section 4.1, `sync`; section 4.11).
//!
//! ```text
//!  appender ──Append──▶ GroupLog ◀──Group──▶ GroupLog of each member
//!      ▲  ▲                │   │
//!      │  └─Logged, Lost,──┘   └─Sealed──▶ sinks, on every member
//!      │    Leader
//! ```
//!
//! The members are a Raft group. The crate `raft` is the protocol; this role gives it time (a timer), a disk (a journal
//! that an [`ordain_log::LogWriter`] writes), messages (module `wire`), and entries that have left memory. The journal is
//! the crate's module `journal`, as for all logs that several nodes keep.
//!
//! The appender may rely on this:
//! - an entry is *open* from [`Log::Append`] until it is [`Log::Logged`] or [`Log::Lost`], and it is exactly one of the
//!   two unless the node stops before. Nobody ever applies a lost entry;
//! - every member sends [`Log::Sealed`] for the same entries in the same order, each once in the life of its node. The
//!   entries given to the visitor of [`GroupLog::open`] and those that the node's checkpoint covers count as sent.
//!   Numbers rise along them, and terms do not fall;
//! - [`Log::Leader`] with `is_me` comes when everything agreed on before, up to an entry of that term, was sealed here;
//! - every [`Log::Confirm`] has one answer. [`Log::Confirmed`] comes while this member is announced as leader of its term,
//!   and after everything that any member had handed on before the question was sealed here, too (module `confirmation`).
//!
//! An entry is lost only when an entry of a later term is committed at its place or before: until then a member that holds
//! it might be elected and have it committed. So it stays open meanwhile, and it may be logged although this node
//! leads no more.
//!
//! Every appended entry becomes a Raft entry, also one that need not be durable: so all members see the same numbers. The
//! proposer hands on the entry that it was given, with what the bytes do not say; the others have nobody to answer.
//!
//! Durability: what the protocol wants durable before a message may leave is one record of the journal, and the message
//! waits for it. Records that gather while the disk is busy are written and synced together. A leader sends entries to its
//! members while it writes them itself. How far entries are committed is written along with the next record: a member that
//! starts again learns it from the leader. Behind a change of the membership it is written at once, and a newcomer counts
//! as a voter when that is durable: members that forgot the change would wait for the vote of one that is gone.
//!
//! Trimming: what a checkpoint covers is let go ([`Log::Trim`]; modules `journal` and `trimming`). The leader tells a member
//! that needs some of it. The member stays where it is until it has got a checkpoint: nobody agrees in its place.
//!
//! Beginning: a founder takes part once all founders have met, so that a founder which has forgotten its past is noticed
//! (module `founding`).
//!
//! Replacement: a member that has lost its disk has forgotten its votes, so it must not come back as who it was. Its node
//! comes back with a larger *generation*, which makes it another member, and asks to be let in (module `membership`).

mod agreement;
mod confirmation;
mod founding;
mod inspect;
mod leadership;
mod membership;
#[cfg(test)]
mod tests;
mod trimming;
mod wire;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use ordain_log::{LogConfig, LogError, Recovered, in_space};
use ordain_model::{Epoch, Micros};
use ordain_role::{Address, Bugs, Directory, Event, NodeId, Now, Outbox, Role, TimerId};
use raft::eraftpb::Message as RaftMessage;
use raft::{Config, RawNode, StateRole};

use crate::entry::EntryType;
use crate::journal::store::Store;
use crate::journal::{self, Journal};
use crate::message::{Carrier, GroupMessage, Log, Message};
use confirmation::Confirmations;
use founding::Founding;
use membership::Member;
use wire::Wire;

pub use inspect::{GroupContent, GroupEntry, GroupJournal, GroupRecord, Standing};
pub use membership::found_after;

/// The settings of a group's log.
#[derive(Clone, Debug)]
pub struct GroupSettings {
    /// The address of this role. It has the same number on every member.
    pub me: Address,
    /// The nodes that hold the partition, this one among them; in the same order on all of them.
    pub members: Vec<NodeId>,
    /// The number of times that this node has come back without what it had on disk.
    pub generation: u32,
    /// The epoch up to which a checkpoint has everything already: no such entry is sealed again.
    pub executed: Epoch,
    /// The role that gets a checkpoint for a member that is too far behind, if there is one.
    pub checkpointer: Option<Address>,
    /// The bytes of dispatched entries that are kept in memory for members that lag.
    pub tail_bytes: usize,
    /// The bytes that are kept on disk, though a checkpoint covers them, for members that are catching up.
    pub kept_max: u64,
    /// The bytes, about, beyond which entries that a checkpoint covers go, though members that are away may want them.
    pub keep_bytes: u64,
    /// An entry longer than this has a message of its own; shorter ones share.
    pub message_bytes: usize,
    /// Bugs that a test has planted.
    pub bugs: Bugs,
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
            bugs: Bugs::NONE,
        }
    }
}

/// The reason why a group's log could not be opened.
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
/// The timer of the mark: an idle journal is marked as synced, as the input log of a node on its own is.
const MARK: TimerId = TimerId(3);
const MARK_AFTER: Micros = Micros::from_millis(200);

/// The pace of a leader's heartbeats, in ticks.
const HEARTBEAT: usize = 2;
/// The time, in ticks, for which a voter sticks to a leader that it hears from, and a leader goes on without a
/// majority.
const LEASE: usize = 10;
/// In ticks: after how long without a leader the first member stands for election, and how much later the last.
const ELECTION: (usize, usize) = (12, 8);
/// The number of messages with entries that a member may have to answer. It bounds what the member keeps while it
/// cannot write, and what a link keeps until it is there: a link must have room for what is sent to a member that
/// lags.
const MESSAGES_OPEN: usize = 16;
/// The pace, in ticks, at which a member hears that what it needs is not kept any more.
const BEHIND_EVERY: u64 = 25;

/// Agrees with its members on entries, makes them durable and dispatches them.
pub struct GroupLog<T: EntryType, M> {
    settings: GroupSettings,
    member: Member,
    context: Arc<T::Context>,
    appender: Address,
    sinks: Vec<Address>,
    raft: RawNode<Store>,
    journal: Journal,
    /// The open proposals of this member, by index.
    proposals: BTreeMap<u64, Proposal<T::Entry>>,
    /// Steps of the protocol that wait for the journal, in order.
    waiting: VecDeque<Waiting>,
    /// Index and epoch of what was dispatched last.
    dispatched: (u64, Epoch),
    /// The epoch up to which the leader keeps nothing any more that this member needs next.
    behind: Option<Epoch>,
    /// The members that need what the leader does not keep any more.
    late: BTreeSet<u64>,
    announced: Option<Announced>,
    /// The record behind which the membership is known to this member when it starts again.
    membership_record: Epoch,
    /// The open questions of the appender whether this member leads.
    confirmations: Confirmations,
    /// The state of founding; until the group has begun this member takes no part.
    founding: Option<Founding>,
    /// The time since which this member leads, and when it has heard from each other one since.
    leads_since: Micros,
    last_received: BTreeMap<u64, Micros>,
    ticks: u64,
    /// A leader that cannot write has asked another to lead.
    gives_way: bool,
    is_stopping: bool,
    /// The first part of the names of its journal's files, before that of all journals.
    prefix: &'static str,
    counts: Counts,
    marker: std::marker::PhantomData<fn() -> M>,
}

/// An entry that was proposed.
#[derive(Debug)]
struct Proposal<E> {
    term: u64,
    entry: E,
}

/// A step of the protocol that is done when a record is durable.
#[derive(Debug)]
struct Waiting {
    /// The number of the step.
    number: u64,
    /// The record.
    record: Epoch,
    /// Index of the last entry when it was written, and how long it is.
    last: u64,
    bytes: u64,
    messages: Vec<RaftMessage>,
}

/// The latest word to the appender on leadership.
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
    /// Opens the journal of a directory, or makes one, and hands `visit` the bytes of every entry that it knows to be
    /// agreed on, in order. Later entries that were agreed on are sealed when the leader confirms them.
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn open(
        directory: &mut dyn Directory,
        config: LogConfig,
        settings: GroupSettings,
        context: Arc<T::Context>,
        (appender, sinks): (Address, Vec<Address>),
        visit: impl FnMut(u64, &[u8]) -> Result<(), String>,
    ) -> Result<(GroupLog<T, M>, Recovered), GroupError> {
        let founders = membership::founders(&settings.members);
        let membership =
            journal::Membership { founders, change: membership::replay_change, keeps_vote: false };
        let opened =
            journal::open(directory, config, (membership, settings.executed), settings.tail_bytes, visit)?;
        let journal::Opened { journal, store, dispatched, recovered } = opened;
        let is_new = settings.generation == 0 && store.hard.term == 0 && store.last() == 0;
        let mut log = GroupLog::start(settings, context, (appender, sinks), journal, store, dispatched)?;
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
        (appender, sinks): (Address, Vec<Address>),
    ) -> Result<GroupLog<T, M>, GroupError> {
        let store = Store::new(membership::founders(&settings.members), 0);
        GroupLog::start(settings, context, (appender, sinks), Journal::none(), store, (0, Epoch(0)))
    }

    fn start(
        settings: GroupSettings,
        context: Arc<T::Context>,
        (appender, sinks): (Address, Vec<Address>),
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
            appender,
            sinks,
            raft,
            journal,
            proposals: BTreeMap::new(),
            waiting: VecDeque::new(),
            dispatched,
            behind: None,
            late: BTreeSet::new(),
            announced: None,
            membership_record: Epoch(0),
            confirmations: Confirmations::default(),
            founding: None,
            leads_since: Micros(0),
            last_received: BTreeMap::new(),
            ticks: 0,
            gives_way: false,
            is_stopping: false,
            prefix: "",
            counts: Counts::default(),
            marker: std::marker::PhantomData,
        })
    }

    /// Names the [`ordain_log::Space`] in which the journal was opened.
    #[must_use]
    pub fn in_space(self, prefix: &'static str) -> GroupLog<T, M> {
        GroupLog { prefix, ..self }
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
                Ok(Message::Log(Log::Confirm(n))) => self.confirm(n, out),
                Ok(Message::Log(Log::Trim(covered))) => self.journal.cover(covered),
                Ok(Message::Group(GroupMessage { head, tail, .. })) => {
                    self.receive(now, from.node, Wire::decode_shared(&head, &tail), out);
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
                    self.send_behind(out);
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
                // The next leader need not find out by itself that this node is gone.
                if self.raft.raft.state == StateRole::Leader
                    && let Some(successor) = self.successor()
                {
                    self.raft.transfer_leader(successor);
                }
                self.is_stopping = true;
            }
        }
        self.found(out);
        self.begin_round();
        self.advance(out);
        self.announce(now, out);
        if self.begin_round() {
            // What has waited for the beginning of the term.
            self.advance(out);
        }
        self.refuse_confirmations(out);
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
        if !self.waiting.iter().map(|waiting| (waiting.record, waiting.number)).is_sorted_by(|a, b| a < b) {
            return Err("what waits for the journal does not wait in its order".to_owned());
        }
        let epochs = self.proposals.values().map(|proposal| T::epoch(&proposal.entry));
        if !epochs.clone().is_sorted_by(|a, b| a < b)
            || epochs.min().is_some_and(|first| first <= self.dispatched.1)
        {
            return Err(format!("open proposals are not in order behind epoch {}", self.dispatched.1));
        }
        if self.dispatched.0 > log.committed {
            return Err(format!("entry {} is dispatched and not agreed on", self.dispatched.0));
        }
        if self.proposals.keys().next().is_some_and(|index| *index <= self.dispatched.0) {
            return Err("a proposal is open although its place is taken".to_owned());
        }
        self.confirmations.check()
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
        report("ordain_group_is_voter", f64::from(u8::from(self.is_lasting_voter())));
        report("ordain_group_learners", self.raft.store().members.learners.len() as f64);
        report("ordain_group_last", raft.raft_log.last_index() as f64);
        report("ordain_group_commit", raft.raft_log.committed as f64);
        report("ordain_group_dispatched", self.dispatched.0 as f64);
        report("ordain_group_open_proposals", self.proposals.len() as f64);
        report("ordain_group_lost_total", self.counts.lost as f64);
        report("ordain_group_entries_in_memory", entries as f64);
        report("ordain_group_bytes_in_memory", bytes as f64);
        report("ordain_group_fetches_total", self.counts.fetches as f64);
        report("ordain_group_confirm_rounds_total", self.confirmations.rounds as f64);
        report("ordain_group_confirmed_total", self.confirmations.confirmed as f64);
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
