//! The log of a database server of a region: it writes, or follows who does (regions.md, section 4.10).
//!
//! ```text
//!  follows ──no leader speaks──▶ stands ──majority sealed, lines fetched──▶ leads
//!     ▲                            │                                          │
//!     └────a larger ballot─────────┴──────────────────────────────────────────┘
//! ```
//!
//! - Who *follows* fetches what is durable from a replica and hands it on, so its node is warm (module `following`).
//! - Who *stands* has a majority of the replicas promise its ballot, takes the newest of their logs and fetches what it lacks
//!   (module `standing`).
//! - Who *leads* sends lines to the replicas and counts what they have synced (modules `leading`, `peer`, `quorum`).
//!
//! The appender may rely on the contract of [`Log`], as that of a [`GroupLog`](crate::GroupLog) may. An entry that was taken is
//! [`Log::Logged`] when it is durable; [`Log::Lost`] when a durable line of another ballot stands in its place, or before it with a
//! larger ballot; and otherwise open: a leader that meets a larger ballot cannot know (commit.md, schedule 8).
//!
//! *Early apply*: a leader hands an entry on, and says [`Log::Logged`], when it takes it; [`Log::Durable`] follows. If it meets a
//! larger ballot while something that it has handed on is not durable, its node has applied what may never be: it has to start
//! again from its last checkpoint ([`Outbox::restart`]). Who follows hands on what is durable in any case.
//!
//! Nothing is kept on disk: a server that starts asks the replicas for the lines behind its checkpoint. Its ballots are unique
//! all the same, as a replica promises each only once.

mod confirming;
mod following;
mod leading;
mod peer;
mod standing;
mod telling;

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use ordain_model::{Epoch, Micros};
use ordain_role::{Address, Event, NodeId, Now, Outbox, PeerChange, PeerState, Rebuild, Role, TimerId};

use super::configuration::StorageMember;
use super::lines::Lines;
use super::message::{After, Ballot, Content, Line, ReplicaState, Storage, Written};
use super::{StorageError, StorageLogSettings, check_region};
use crate::entry::{EntryType, epoch_of};
use crate::message::{Carrier, Log, Message};
use confirming::Confirmations;
use following::Following;
use leading::Leading;
use standing::Standing;
pub use telling::StorageObstacle;
use telling::Told;

const TICK: TimerId = TimerId(1);
const TICK_EVERY: Micros = Micros::from_millis(20);
/// The pace of questions for the state of replicas.
const ASK_EVERY: Micros = Micros::from_millis(200);
/// The time after which a state is too old to count.
const FRESH: Micros = Micros::from_millis(700);
/// The silence after which a leader is taken for gone.
const SILENCE: Micros = Micros::from_millis(1000);
/// How much later the server of the next rank stands.
const STAND_STEP: Micros = Micros::from_millis(150);
/// The time after which what is not answered is given up.
const PATIENCE: Micros = Micros::from_millis(1000);
/// The pace of a leader's words to each replica.
const HEARTBEAT_EVERY: Micros = Micros::from_millis(100);
/// The pace at which a checkpoint is asked for.
const BEHIND_EVERY: Micros = Micros::from_millis(500);

/// Writes the log of a region, or follows who does.
pub struct StorageLog<T: EntryType, M> {
    settings: StorageLogSettings,
    rank: usize,
    context: Arc<T::Context>,
    appender: Address,
    sinks: Vec<Address>,
    /// The lines in memory; none until a replica has said where they begin.
    lines: Option<Lines>,
    /// The line up to which all are known to be durable.
    durable: u64,
    /// The last line that was handed on, and the epoch of the last entry.
    handed: (u64, Epoch),
    /// The last line that the appender knows to be durable, and its epoch; only where entries are handed on early.
    told: (u64, Epoch),
    /// The entries that this server has taken and whose fate is not told, by line.
    open: BTreeMap<u64, Open<T::Entry>>,
    /// The largest ballot that any replica is known to have promised.
    promised: Ballot,
    /// What replicas have said last of their state, and when.
    states: BTreeMap<NodeId, (ReplicaState, Micros)>,
    /// The replicas that are in the way of a majority, and what was told of them.
    obstacle: StorageObstacle,
    told_obstacle: Told,
    stage: Stage,
    announced: Option<Announced>,
    confirmations: Confirmations,
    /// The number of the last question for lines.
    questions: u64,
    /// The epoch up to which no replica keeps what this server needs next.
    behind: Option<Epoch>,
    /// The appender knows that nothing can be written.
    is_full: bool,
    is_stopping: bool,
    counts: Counts,
    marker: PhantomData<fn() -> M>,
}

/// An entry that was taken.
#[derive(Debug)]
struct Open<E> {
    ballot: Ballot,
    entry: E,
}

/// What a server does.
#[derive(Debug)]
enum Stage {
    Follows(Following),
    Stands(Standing),
    Leads(Leading),
    /// Its node starts again.
    Ended,
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
    handed: u64,
    lost: u64,
    won: u64,
    stood: u64,
    relayed: u64,
    reconfigured: u64,
}

impl<T: EntryType, M: Carrier<T::Entry>> StorageLog<T, M> {
    /// The log of a database server, which begins with what its node has and keeps nothing on disk.
    ///
    /// # Errors
    /// [`StorageError::Settings`].
    pub fn new(
        settings: StorageLogSettings,
        context: Arc<T::Context>,
        (appender, sinks): (Address, Vec<Address>),
    ) -> Result<StorageLog<T, M>, StorageError> {
        let rank = check_region(settings.me.node, &settings.servers, &settings.servers, &settings.replicas)?;
        let begun = settings.begun;
        Ok(StorageLog {
            settings,
            rank,
            context,
            appender,
            sinks,
            lines: None,
            durable: 0,
            handed: (0, begun),
            told: (0, begun),
            open: BTreeMap::new(),
            promised: Ballot(0),
            states: BTreeMap::new(),
            obstacle: StorageObstacle::default(),
            told_obstacle: Told::default(),
            stage: Stage::Follows(Following::default()),
            announced: None,
            confirmations: Confirmations::default(),
            questions: 0,
            behind: None,
            is_full: false,
            is_stopping: false,
            counts: Counts::default(),
            marker: PhantomData,
        })
    }

    fn at(&self, node: NodeId) -> Address {
        Address { node, ..self.settings.me }
    }

    fn tell_replicas(&self, message: &Storage, out: &mut Outbox<M>) {
        for node in &self.settings.replicas {
            out.send(self.at(*node), message.clone());
        }
    }

    fn ask_states(&self, out: &mut Outbox<M>) {
        self.tell_replicas(&Storage::Ask, out);
    }

    /// The place behind which the next lines are wanted.
    fn place(&self) -> After {
        match &self.lines {
            Some(lines) => After::Lsn(lines.last().lsn),
            None => After::Epoch(self.settings.begun),
        }
    }

    /// The last line that is here.
    fn last(&self) -> Line {
        self.lines.as_ref().map_or(Line::default(), Lines::last)
    }

    /// The largest epoch of an entry here.
    fn last_epoch(&self) -> Epoch {
        let open = self.open.values().next_back().map(|open| T::epoch(&open.entry));
        open.unwrap_or_default().max(self.handed.1)
    }

    // ---- messages ----------------------------------------------------------------------------------------

    fn receive(&mut self, now: Now, from: NodeId, message: Storage, out: &mut Outbox<M>) {
        match message {
            Storage::State(state) => self.note_state(now, from, state),
            Storage::Sealed { ballot, state } => self.sealed(now, from, ballot, state, out),
            Storage::Appended { ballot, generation, number, through, is_full } => {
                let from = StorageMember { node: from, generation };
                self.appended(now, from, ballot, (number, through, is_full));
            }
            Storage::Unfit { ballot, generation, number, durable } => {
                self.unfit(now, StorageMember { node: from, generation }, ballot, (number, durable));
            }
            Storage::Refused { ballot, promised } => self.refused(now, ballot, promised, out),
            Storage::Fetched { number, ballot, after, previous, lines, durable } => match &self.stage {
                Stage::Follows(_) if ballot == Ballot(0) && after == self.place() => {
                    self.tailed(now, from, number, (previous, lines, durable), out);
                }
                Stage::Stands(standing) if ballot == standing.ballot && after == self.place() => {
                    self.fetched(now, number, previous, lines, out);
                }
                Stage::Leads(leading) if ballot == Ballot(0) || ballot == leading.ballot => {
                    self.relay(now, (from, number), (previous, lines, durable), out);
                }
                // What an earlier life has asked for.
                Stage::Follows(_) | Stage::Stands(_) | Stage::Leads(_) | Stage::Ended => {}
            },
            Storage::Trimmed { number, after, base } => match &self.stage {
                Stage::Follows(_) if after == self.place() => {
                    self.tail_trimmed(now, from, number, &base, out);
                }
                Stage::Stands(_) if after == self.place() => self.fetch_trimmed(now, number, &base, out),
                Stage::Leads(_) => self.relay_trimmed(now, from, number, base, out),
                Stage::Follows(_) | Stage::Stands(_) | Stage::Ended => {}
            },
            Storage::Confirmed { ballot, generation, n } => {
                self.round_answered(StorageMember { node: from, generation }, ballot, n);
            }
            // Late, or of a node that speaks as another kind.
            Storage::Ask
            | Storage::Seal(_)
            | Storage::Append { .. }
            | Storage::Fetch { .. }
            | Storage::Confirm { .. }
            | Storage::Behind { .. }
            | Storage::Watch { .. }
            | Storage::Resign(_) => {}
        }
    }

    fn note_state(&mut self, now: Now, from: NodeId, state: ReplicaState) {
        self.promised = self.promised.max(state.promised);
        self.states.insert(from, (state, now.elapsed));
    }

    /// A replica has promised a ballot that is no smaller than this server's: that is over.
    fn refused(&mut self, now: Now, ballot: Ballot, promised: Ballot, out: &mut Outbox<M>) {
        self.promised = self.promised.max(promised);
        match &self.stage {
            Stage::Stands(standing) if standing.ballot == ballot => self.follow(now),
            Stage::Leads(leading) if leading.ballot == ballot && promised > ballot => {
                let reason = format!(
                    "a replica has promised ballot {} and this server leads by {}",
                    promised.0, ballot.0
                );
                self.end_lead(now, &reason, out);
            }
            _ => {}
        }
    }

    fn follow(&mut self, now: Now) {
        if let Some(lines) = &mut self.lines {
            lines.cut_after(self.durable);
        }
        let pause = Micros(STAND_STEP.0 * (1 + self.rank as u64));
        self.stage = Stage::Follows(Following::after(now.elapsed, now.elapsed.plus(pause)));
    }

    /// This server leads no more. What is not durable stays open: it may be so on some replica.
    fn end_lead(&mut self, now: Now, reason: &str, out: &mut Outbox<M>) {
        self.refuse_confirmations(out);
        let has_early = self.handed.0 > self.durable
            && (self.durable + 1..=self.handed.0).any(|lsn| self.entry_at(lsn).is_some());
        if has_early {
            // A node that stops begins again in any case.
            out.restart = (!self.is_stopping).then(|| {
                format!(
                    "{reason}; entries up to {} were applied and may never be durable: the node begins again from its last \
                     checkpoint and the log",
                    self.handed.1
                )
            });
            self.stage = Stage::Ended;
            return;
        }
        self.handed.0 = self.handed.0.min(self.durable);
        self.follow(now);
    }

    // ---- entries -----------------------------------------------------------------------------------------

    /// The bytes of the entry in a line, if it is one.
    fn entry_at(&self, lsn: u64) -> Option<&[u8]> {
        match &self.lines.as_ref()?.get(lsn)?.content {
            Content::Entry(bytes) => Some(bytes),
            Content::Begin | Content::Configuration(_) => None,
        }
    }

    fn append(&mut self, entry: T::Entry, out: &mut Outbox<M>) {
        let epoch = T::epoch(&entry);
        let fits = !self.is_stopping && epoch > self.last_epoch();
        let (Stage::Leads(leading), Some(lines), true) = (&mut self.stage, &mut self.lines, fits) else {
            return self.lose(entry, out);
        };
        if !leading.leads() {
            return self.lose(entry, out);
        }
        if leading.is_blocked() {
            self.is_full = true;
            out.send(self.appender, Log::Rejected(entry));
            return;
        }
        let ballot = leading.ballot;
        let content = Content::Entry(T::encode(&entry).into());
        let Some(lsn) = lines.push(Written { ballot, content }) else {
            return out.halt("a leader's line is of a smaller ballot than the one before");
        };
        if self.settings.early {
            self.handed = (lsn, epoch);
            out.send(self.appender, Log::Logged(epoch));
            self.hand_to_sinks(entry, ballot, out);
        } else {
            self.open.insert(lsn, Open { ballot, entry });
        }
    }

    fn lose(&mut self, entry: T::Entry, out: &mut Outbox<M>) {
        self.counts.lost += 1;
        out.send(self.appender, Log::Lost(entry));
    }

    fn hand_to_sinks(&mut self, mut entry: T::Entry, ballot: Ballot, out: &mut Outbox<M>) {
        self.counts.handed += 1;
        T::note_term(&mut entry, ballot.term());
        for sink in &self.sinks {
            out.send(*sink, Log::Sealed(entry.clone()));
        }
    }

    /// Lines up to one are durable: they are handed on, and what was open in their place is decided.
    fn hand_on(&mut self, through: u64, out: &mut Outbox<M>) {
        self.durable = self.durable.max(through);
        while self.handed.0 < through {
            let lsn = self.handed.0 + 1;
            let Some(line) = self.lines.as_ref().and_then(|lines| lines.get(lsn)).cloned() else {
                return out.halt(format!("line {lsn} is durable and not in memory"));
            };
            let own = self.open.remove(&lsn);
            let (own, other) = match own {
                Some(own) if own.ballot == line.ballot => (Some(own.entry), None),
                other => (None, other),
            };
            // A log with an entry of a smaller ballot here or behind cannot have this line, and every leader from now on
            // has it.
            let lost = self.open.extract_if(.., |_, open| open.ballot < line.ballot);
            let lost: Vec<Open<T::Entry>> = other.into_iter().chain(lost.map(|(_, open)| open)).collect();
            lost.into_iter().for_each(|open| self.lose(open.entry, out));
            self.handed.0 = lsn;
            if let Content::Entry(bytes) = &line.content
                && let Err(reason) = self.hand_on_entry(lsn, line.ballot, bytes, own, out)
            {
                return out.halt(reason);
            }
        }
        self.tell_durable(out);
    }

    fn hand_on_entry(
        &mut self,
        lsn: u64,
        ballot: Ballot,
        bytes: &[u8],
        own: Option<T::Entry>,
        out: &mut Outbox<M>,
    ) -> Result<(), String> {
        let epoch = epoch_of(bytes).ok_or_else(|| format!("line {lsn} is an entry and has no number"))?;
        if epoch <= self.settings.begun {
            return Ok(());
        }
        if epoch <= self.handed.1 {
            return Err(format!("epoch {epoch} is durable in line {lsn} after epoch {}", self.handed.1));
        }
        self.handed.1 = epoch;
        if own.is_some() {
            out.send(self.appender, Log::Logged(epoch));
        }
        let entry = match own {
            Some(entry) => entry,
            None => T::decode(&self.context, bytes)
                .map_err(|error| format!("line {lsn} is durable and cannot be read: {error}"))?,
        };
        self.hand_to_sinks(entry, ballot, out);
        Ok(())
    }

    /// Says what is durable, where that is not the same as handed on.
    fn tell_durable(&mut self, out: &mut Outbox<M>) {
        if !self.settings.early {
            return;
        }
        let entries = (self.told.0 + 1..=self.durable).filter_map(|lsn| epoch_of(self.entry_at(lsn)?));
        let epoch = entries.max().unwrap_or_default();
        self.told.0 = self.durable;
        if epoch > self.told.1 {
            self.told.1 = epoch;
            for to in std::iter::once(self.appender).chain(self.settings.durable.iter().copied()) {
                out.send(to, Log::Durable(epoch));
            }
        }
    }

    // ---- leadership --------------------------------------------------------------------------------------

    /// Tells the appender who leads, if that has changed.
    fn announce(&mut self, now: Now, out: &mut Outbox<M>) {
        let (node, term, is_me) = match &self.stage {
            Stage::Leads(leading) if leading.leads() && !self.is_stopping => {
                (Some(self.settings.me.node), leading.ballot.term(), true)
            }
            Stage::Leads(_) | Stage::Ended => (None, self.promised.term(), false),
            Stage::Stands(standing) => (None, standing.ballot.term(), false),
            Stage::Follows(_) => (self.leader(now), self.promised.term(), false),
        };
        let announced = Announced { node, term, is_me };
        if self.announced == Some(announced) {
            return;
        }
        self.announced = Some(announced);
        out.send(self.appender, Log::Leader { node, term, is_me, last: self.last_epoch() });
    }

    /// The owner of the largest ballot, if a replica has heard it lately.
    fn leader(&self, now: Now) -> Option<NodeId> {
        let speaks = |(state, at): &&(ReplicaState, Micros)| {
            state.promised == self.promised && state.silence.plus(now.elapsed.since(*at)) < SILENCE
        };
        self.states.values().find(speaks)?;
        let owner = self.promised.owner().filter(|rank| *rank != self.rank)?;
        self.settings.servers.get(owner).copied()
    }

    /// The node stops: another server need not wait for this one's silence.
    fn resign(&mut self, now: Now, out: &mut Outbox<M>) {
        self.is_stopping = true;
        let Stage::Leads(leading) = &self.stage else { return };
        let resign = Storage::Resign(leading.ballot);
        self.tell_replicas(&resign, out);
        for node in self.settings.servers.iter().filter(|node| **node != self.settings.me.node) {
            out.send(self.at(*node), resign.clone());
        }
        self.end_lead(now, "the node stops", out);
    }

    fn peer_changed(&mut self, now: Now, change: PeerChange) {
        if !matches!(change.state, PeerState::Fresh | PeerState::Lost) {
            return;
        }
        // What was under way may be lost.
        match &mut self.stage {
            Stage::Follows(following) => following.forget(change.node),
            Stage::Stands(_) | Stage::Ended => {}
            Stage::Leads(leading) => leading.reset_peer(change.node, now),
        }
    }

    fn tick(&mut self, now: Now, out: &mut Outbox<M>) {
        match &self.stage {
            Stage::Follows(_) => self.tick_following(now, out),
            Stage::Stands(_) => self.tick_standing(now, out),
            Stage::Leads(_) => self.tick_leading(now, out),
            Stage::Ended => {}
        }
        self.tell_obstacle(now, out);
    }

    /// Keeps no more durable lines in memory than the settings say.
    fn shrink(&mut self) {
        let may_go = self.durable.min(self.handed.0);
        let may_go = if self.settings.early { may_go.min(self.told.0) } else { may_go };
        if let Some(lines) = &mut self.lines {
            lines.shrink(may_go, self.settings.kept_bytes);
        }
    }
}

impl<T: EntryType, M: Carrier<T::Entry>> Role for StorageLog<T, M> {
    type Message = M;

    fn handle(&mut self, now: Now, event: Event<M>, out: &mut Outbox<M>) {
        if matches!(self.stage, Stage::Ended) {
            return;
        }
        match event {
            Event::Message { from, message } => match message.try_into() {
                Ok(Message::Log(Log::Append(entry))) => self.append(entry, out),
                Ok(Message::Log(Log::Confirm(n))) => self.confirm(now, n, out),
                // Nothing of it is on this node's disk.
                Ok(Message::Log(Log::Trim(_))) => {}
                Ok(Message::Log(Log::BeginAgain(_))) => {
                    out.rebuild(Rebuild { without_log: false, without_receive_journal: true });
                }
                Ok(Message::Storage(message)) if self.settings.replicas.contains(&from.node) => {
                    self.receive(now, from.node, message, out);
                }
                Ok(Message::Storage(Storage::Resign(_))) if self.settings.servers.contains(&from.node) => {
                    self.ask_states(out);
                }
                // Of a node that is none of the region's.
                Ok(Message::Storage(_)) => {}
                Ok(Message::Peer(change)) => self.peer_changed(now, change),
                Ok(_) | Err(_) => out.halt("the log of a region was sent a message that is not for it"),
            },
            Event::Timer(TICK) => {
                self.tick(now, out);
                out.set_timer(TICK, TICK_EVERY);
            }
            Event::Timer(_) | Event::Work(_) | Event::Disk(_) => {}
            Event::Start => {
                self.ask_states(out);
                out.set_timer(TICK, TICK_EVERY);
            }
            Event::Stop => self.resign(now, out),
        }
        self.lead_on(now, out);
        self.announce(now, out);
        self.answer_confirmed(now, out);
        self.shrink();
    }

    fn name(&self) -> &'static str {
        "storage-log"
    }

    fn check(&self) -> Result<(), String> {
        let Some(lines) = &self.lines else { return Ok(()) };
        lines.check()?;
        let (last, handed) = (lines.last().lsn, self.handed.0);
        if self.durable > last || handed > last || (handed > self.durable && !self.settings.early) {
            return Err(format!(
                "line {last} is the last, {} is durable, and {handed} was handed on",
                self.durable
            ));
        }
        if let Some(lsn) = self.open.keys().next().filter(|lsn| **lsn <= self.durable) {
            return Err(format!("the entry of line {lsn} is open although the line is durable"));
        }
        if let Stage::Leads(leading) = &self.stage {
            leading.check(lines)?;
        }
        self.confirmations.check()
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let leading = match &self.stage {
            Stage::Leads(leading) => Some(leading),
            _ => None,
        };
        let is_leader = leading.is_some_and(Leading::leads);
        report("ordain_storage_ballot", self.promised.0 as f64);
        report("ordain_storage_is_leader", f64::from(u8::from(is_leader)));
        let node = self.announced.and_then(|announced| announced.node);
        report("ordain_storage_leader", node.map_or(-1.0, |node| f64::from(node.0)));
        report("ordain_storage_last_line", self.last().lsn as f64);
        report("ordain_storage_durable_line", self.durable as f64);
        report("ordain_storage_handed_line", self.handed.0 as f64);
        report("ordain_storage_open_entries", self.open.len() as f64);
        report("ordain_storage_bytes_in_memory", self.lines.as_ref().map_or(0, Lines::bytes) as f64);
        report("ordain_storage_lost_total", self.counts.lost as f64);
        report("ordain_storage_handed_total", self.counts.handed as f64);
        report("ordain_storage_stood_total", self.counts.stood as f64);
        report("ordain_storage_won_total", self.counts.won as f64);
        report("ordain_storage_relayed_total", self.counts.relayed as f64);
        report("ordain_storage_reconfigured_total", self.counts.reconfigured as f64);
        report("ordain_storage_confirm_rounds_total", self.confirmations.rounds as f64);
        report("ordain_storage_confirmed_total", self.confirmations.confirmed as f64);
        report("ordain_storage_full", f64::from(u8::from(self.is_full)));
        report("ordain_log_behind_epoch", self.behind.unwrap_or_default().0 as f64);
        self.obstacle_gauges(report);
        if let Some(leading) = leading {
            leading.gauges(self.last().lsn, report);
        }
    }
}

impl<T: EntryType, M> fmt::Debug for StorageLog<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageLog")
            .field("rank", &self.rank)
            .field("stage", &self.stage)
            .field("durable", &self.durable)
            .field("handed", &self.handed)
            .finish_non_exhaustive()
    }
}
