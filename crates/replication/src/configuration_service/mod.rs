//! The configuration service says who is primary of what, where a log is shipped to members (docs/protocols/calvin.md,
//! section 4.12).
//!
//! A primary seals entries without asking anybody. So somebody else has to say who is primary, and where the entries of one
//! primary end and those of the next begin: up to three nodes that agree on [`ConfigurationEntry`]s, by a [`GroupLog`] of
//! their own. The configuration entries make [`LeadershipRecords`], and every node acts by the latest that it knows.
//!
//! Every node has this role. It *reports* to the members of the service, and their leader answers with the leadership
//! records. The leader notices a primary that is silent, and has a term prepared (module `decider`): all nodes refuse what
//! comes from the former primary (the *fence*), and a candidate gathers what is left of it (module `succession`). What the
//! candidate concludes becomes a configuration entry.
//!
//! ```text
//!         every node                     the leader's node                     members
//!  ┌──────────────────────┐  Report   ┌──────────────────────┐  Append   ┌────────────────────┐
//!  │ log ◀──┐             │ ────────▶ │ ConfigurationService │ ────────▶ │ GroupLog of the    │
//!  │        ├── Config-   │ ◀──────── │                      │ ◀──────── │ service            │
//!  │ exchange ◀┘ uration  │   State   └──────────────────────┘  Sealed   └────────────────────┘
//!  │             Service  │
//!  └──────────────────────┘
//! ```
//!
//! A node believes no leadership records before a configuration entry says that it has arrived in this life of its. So a
//! member that has lost the leadership and does not know it cannot make a node that has just started forget a fence that
//! the node has promised to keep.
//!
//! A primary that has no answer of the service for a while seals nothing more. That keeps small what is lost when the
//! service has given it up; correctness does not depend on it, or on any clock.
//!
//! [`GroupLog`]: crate::GroupLog

mod configuration_entry;
mod decider;
mod frame;
mod leadership_records;
mod succession;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_model::{Epoch, Micros, PartitionId, codec};
use ordain_role::{
    Address, Bug, Bugs, Event, NodeId, Now, Outbox, Rebuild, ReplicaId, Role, TimerId, Topology,
};

use crate::entry::EntryType;
use crate::message::{Carrier, Configuration, Log, Message, Ship};

pub use configuration_entry::{ConfigurationEntry, Decision, Decisions};
pub use leadership_records::{Arrival, Eviction, Fence, LeadershipRecord, LeadershipRecords};

use decider::{Decider, Report};
use succession::{Knowledge, Succession};

/// The settings of a node's part of the configuration service.
#[derive(Clone, Debug)]
pub struct ConfigurationServiceSettings<T: EntryType> {
    /// The cluster.
    pub topology: Topology,
    /// The address of this role; it has the same number on the other nodes.
    pub me: Address,
    /// The role number of the configuration service's own log, on its members.
    pub configuration_service_log: u16,
    /// The role number of the partition's log, on all nodes.
    pub log: u16,
    /// The role number of the exchange, where there are other partitions.
    pub exchange: Option<u16>,
    /// The role number of the checkpointer.
    pub checkpointer: u16,
    /// The node's introduction: how often it was rebuilt, and a number of this life that is never used again.
    pub arrival: Arrival,
    /// The pace of reports. Every wait is a multiple of it.
    pub pace: Micros,
    /// The context for entries of the partitions' logs.
    pub context: Arc<T::Context>,
    /// Bugs that a test has planted.
    pub bugs: Bugs,
}

/// The members of the configuration service: three nodes of different replicas if there are so many, or else of different
/// partitions too.
pub fn configuration_service_members(topology: &Topology) -> Vec<NodeId> {
    let partitions = (0..topology.layout.partitions()).map(PartitionId);
    partitions.flat_map(|partition| topology.group(partition)).take(3).collect()
}

const TICK: TimerId = TimerId(1);
/// A node that is silent for so many reports is given up.
const SILENCE: u64 = 8;
/// A primary that has no answer of the configuration service for so long seals nothing more.
const TOUCH: u64 = 6;
/// A candidate waits for so long for those that do not answer, after the last answer.
const PATIENCE: u64 = 4;
/// A candidate that has not become primary after so long is replaced.
const PREPARATION: u64 = 30;

/// The role.
pub struct ConfigurationService<T: EntryType, M> {
    settings: ConfigurationServiceSettings<T>,
    /// The latest that are known.
    leadership_records: Arc<LeadershipRecords>,
    /// The configuration entry of this node's arrival was among them.
    has_arrived: bool,
    /// The time of the leader's last answer.
    last_contact: Option<Micros>,
    /// The latest report of this node's log on itself.
    kept: Kept,
    succession: Option<Succession>,
    /// The state of a member of the service.
    decider: Option<Decider>,
    counts: Counts,
    marker: std::marker::PhantomData<fn() -> M>,
}

/// The extent of a node's log.
#[derive(Clone, Debug, Default)]
struct Kept {
    through: Epoch,
    in_sync: Vec<NodeId>,
}

/// The conclusion that a candidate reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The partition.
    pub partition: PartitionId,
    /// The term that is being prepared.
    pub term: u64,
    /// The last epoch that is decided of the terms before.
    pub end: Epoch,
    /// The first of the new term.
    pub first: Epoch,
    /// The nodes that did not answer.
    pub absent: BTreeSet<NodeId>,
    /// The replicas whose nodes may have executed what is lost.
    pub suspects: BTreeSet<ReplicaId>,
}

codec!(struct Ending { partition, term, end, first, absent, suspects });

#[derive(Debug, Default)]
struct Counts {
    configuration_entries: u64,
    successions: u64,
    restored: u64,
}

impl<T: EntryType, M: Carrier<Decision>> ConfigurationService<T, M> {
    /// A node's part of it, before any answer.
    pub fn new(settings: ConfigurationServiceSettings<T>) -> ConfigurationService<T, M> {
        let leadership_records = LeadershipRecords::new(&settings.topology);
        let is_member = configuration_service_members(&settings.topology).contains(&settings.me.node);
        let decider = is_member.then(|| Decider {
            pace: settings.pace,
            leadership_records: leadership_records.clone(),
            leads: false,
            last: Epoch(0),
            is_open: false,
            since: Micros(0),
            earlier_lives: BTreeSet::new(),
            reports: BTreeMap::new(),
            joining: BTreeMap::new(),
            fenced: BTreeMap::new(),
        });
        ConfigurationService {
            settings,
            leadership_records: Arc::new(leadership_records),
            has_arrived: false,
            last_contact: None,
            kept: Kept::default(),
            succession: None,
            decider,
            counts: Counts::default(),
            marker: std::marker::PhantomData,
        }
    }

    /// Takes note of a decision that the configuration service's log held at start.
    ///
    /// # Errors
    /// This node is no member of the service.
    pub fn replay(&mut self, decision: &Decision) -> Result<(), String> {
        self.decided(Micros(0), decision)
    }

    /// A multiple of the pace.
    fn times(&self, times: u64) -> Micros {
        Micros(self.settings.pace.0 * times)
    }

    fn at(&self, node: NodeId, role: u16) -> Address {
        Address { node, role }
    }

    fn node(&self) -> NodeId {
        self.settings.me.node
    }

    fn partition(&self) -> PartitionId {
        self.settings.topology.partition_of(self.node())
    }

    /// Takes the leadership records from the leader's answer.
    fn take_records(&mut self, now: Micros, leadership_records: LeadershipRecords, out: &mut Outbox<M>) {
        if leadership_records.version < self.leadership_records.version
            || leadership_records.leadership_records.len() != self.leadership_records.leadership_records.len()
            || leadership_records.check(&self.settings.topology).is_err()
        {
            // An earlier leader's answer, or one of another cluster, or damage.
            return;
        }
        self.has_arrived |= leadership_records.arrivals.get(&self.node()) == Some(&self.settings.arrival);
        if !self.has_arrived {
            return;
        }
        self.last_contact = Some(now);
        if leadership_records.version > self.leadership_records.version
            || leadership_records != *self.leadership_records
        {
            self.leadership_records = Arc::new(leadership_records);
        }
        self.pass_on_records(now, out);
        self.rebuild_if_evicted(out);
        self.stand(now, out);
    }

    /// Tells the roles of this node what the leadership records are.
    fn pass_on_records(&mut self, now: Micros, out: &mut Outbox<M>) {
        if !self.has_arrived {
            return;
        }
        let in_touch = self.last_contact.is_some_and(|heard| now.since(heard) < self.times(TOUCH));
        for role in [Some(self.settings.log), self.settings.exchange].into_iter().flatten() {
            let leadership_records = self.leadership_records.clone();
            out.send(self.at(self.node(), role), Configuration::Records { leadership_records, in_touch });
        }
    }

    /// Has an evicted node rebuilt, but not before another node has what only this one may have.
    fn rebuild_if_evicted(&self, out: &mut Outbox<M>) {
        let (node, leadership_record) = (self.node(), self.leadership_records.of(self.partition()));
        let Some(mut eviction) = self.leadership_records.eviction(node, self.settings.arrival.incarnation)
        else {
            return;
        };
        // Planted, DECIDED-ONLY.
        eviction.without_log &= !self.settings.bugs.has(Bug::KeepUndecided);
        let has_leadership_record = leadership_record.primary == node || leadership_record.fence.is_some();
        if !eviction.without_log || !has_leadership_record {
            out.rebuild(Rebuild { without_log: eviction.without_log, without_receive_journal: false });
        }
    }

    /// Becomes a candidate if it is to be one, and ceases to be if it is not.
    fn stand(&mut self, now: Micros, out: &mut Outbox<M>) {
        let (me, partition) = (self.node(), self.partition());
        let term = self
            .leadership_records
            .of(partition)
            .fence
            .filter(|fence| fence.candidate == me)
            .map(|fence| fence.term);
        if self.succession.as_ref().map(|succession| succession.term) == term {
            return;
        }
        let topology = &self.settings.topology;
        let logs =
            topology.group(partition).filter(|node| *node != me).map(|node| self.at(node, self.settings.log));
        let exchanges =
            (0..topology.nodes()).filter_map(|node| Some(self.at(NodeId(node), self.settings.exchange?)));
        let others: Vec<Address> = logs.chain(exchanges).collect();
        self.succession = term.map(|term| Succession::new((partition, term), others.into_iter(), now));
        if let Some(term) = term {
            self.counts.successions += 1;
            // The candidate's own log is fenced by now, and answers its last epoch.
            let after = Epoch(u64::MAX);
            out.send(self.at(me, self.settings.log), Ship::Collect { partition, term, after });
        }
    }

    /// A log or an exchange has answered the candidate.
    fn gather(
        &mut self,
        (now, from): (Micros, Address),
        (partition, term): (PartitionId, u64),
        far: Knowledge,
        (held, is_all): (Vec<crate::Held>, bool),
        out: &mut Outbox<M>,
    ) {
        let Some(succession) = &mut self.succession else { return };
        if (succession.partition, succession.term) != (partition, term) {
            return;
        }
        let is_log = from.role == self.settings.log;
        if is_log && from.node == self.settings.me.node {
            if succession.own().is_none() {
                succession.begin(far.through);
                succession.last_answer = now;
                self.ask(out);
            }
            return;
        }
        if succession.take_answer((from, is_log, now), far, held, is_all) {
            let next = succession.questions().into_iter().find(|(at, _)| *at == from);
            if let Some((at, after)) = next {
                out.send(at, Ship::Collect { partition, term, after });
            }
        }
        self.conclude(now, out);
    }

    /// Asks the nodes that have not answered everything.
    fn ask(&self, out: &mut Outbox<M>) {
        let Some(succession) = &self.succession else { return };
        let (partition, term) = (succession.partition, succession.term);
        for (at, after) in succession.questions() {
            out.send(at, Ship::Collect { partition, term, after });
        }
    }

    /// Concludes once all have answered everything, or the wait for the others is over.
    fn conclude(&mut self, now: Micros, out: &mut Outbox<M>) {
        let (patience, me) = (self.times(PATIENCE), self.node());
        let Some(succession) = self.succession.as_mut().filter(|s| s.conclusion.is_none()) else { return };
        let is_late = now.since(succession.last_answer) >= patience && succession.has_answer_of(me);
        if !succession.has_all_answers() && !is_late {
            return;
        }
        let term = succession.term;
        let topology = &self.settings.topology;
        let Some(conclusion) = succession.conclude::<T>(topology, &self.settings.context) else { return };
        self.counts.restored += conclusion.entries.len() as u64;
        let log = Address { role: self.settings.log, ..self.settings.me };
        out.send(log, Ship::Decided { term, entries: conclusion.entries.clone() });
        self.report(out);
    }

    /// Tells the members how far this node is.
    fn report(&self, out: &mut Outbox<M>) {
        let ending = self.succession.as_ref().and_then(|succession| {
            // No node is to be primary of what it would not have after a crash: while a term is being prepared, the
            // log reports only what is on its disk.
            let conclusion = succession.conclusion.as_ref().filter(|c| self.kept.through >= c.end)?;
            Some(Ending {
                partition: succession.partition,
                term: succession.term,
                end: conclusion.end,
                // Planted, ONE-PRIMARY.
                first: match self.settings.bugs.has(Bug::BeginAtEnd) {
                    true => conclusion.end.next(),
                    false => conclusion.first,
                },
                absent: conclusion.absent.clone(),
                suspects: conclusion.suspects.clone(),
            })
        });
        let version = if self.has_arrived { self.leadership_records.version } else { 0 };
        for member in configuration_service_members(&self.settings.topology) {
            let report = Configuration::Report {
                arrival: self.settings.arrival,
                version,
                through: self.kept.through,
                in_sync: self.kept.in_sync.clone(),
                ending: ending.clone(),
            };
            out.send(self.at(member, self.settings.me.role), report);
        }
    }

    /// The members have agreed on a decision.
    fn decided(&mut self, now: Micros, decision: &Decision) -> Result<(), String> {
        let Some(decider) = &mut self.decider else {
            return Err("this node is no member of the configuration service".to_owned());
        };
        decider.last = decision.epoch;
        self.counts.configuration_entries += 1;
        decider.apply(&decision.entry);
        if let ConfigurationEntry::Fence { partition, fence } = &decision.entry {
            decider.fenced.insert((*partition, fence.term), now);
        }
        Ok(())
    }

    fn lead(&mut self, now: Micros, out: &mut Outbox<M>) {
        let (topology, me) = (&self.settings.topology, self.settings.me);
        let Some(decider) = self.decider.as_mut().filter(|decider| decider.leads && !decider.is_open) else {
            return;
        };
        let Some(configuration_entry) = decider.next_configuration_entry(topology, now) else { return };
        let log = Address { role: self.settings.configuration_service_log, ..me };
        decider.is_open = true;
        out.send(log, Log::Append(Decision { epoch: decider.last.next(), entry: configuration_entry }));
    }

    /// Answers a node's report, as the leader.
    fn answer(&self, node: NodeId, out: &mut Outbox<M>) {
        let Some(decider) = self.decider.as_ref().filter(|decider| decider.leads) else {
            return;
        };
        let topology = &self.settings.topology;
        let low_watermarks: Vec<Epoch> = (0..topology.layout.partitions())
            .map(|p| decider.low_watermark(topology, PartitionId(p), self.settings.bugs))
            .collect();
        let to = self.at(node, self.settings.me.role);
        out.send(
            to,
            Configuration::State {
                leadership_records: Box::new(decider.leadership_records.clone()),
                low_watermarks,
            },
        );
    }
}

impl<T: EntryType, M: Carrier<Decision>> Role for ConfigurationService<T, M> {
    type Message = M;

    fn handle(&mut self, now: Now, event: Event<M>, out: &mut Outbox<M>) {
        let at = now.elapsed;
        match event {
            Event::Start | Event::Timer(TICK) => {
                self.report(out);
                self.pass_on_records(at, out);
                self.ask(out);
                self.conclude(at, out);
                self.lead(at, out);
                out.set_timer(TICK, self.settings.pace);
            }
            Event::Message { from, message } => match message.try_into() {
                Ok(Message::Configuration(Configuration::Report {
                    arrival,
                    version,
                    through,
                    in_sync,
                    ending,
                })) => {
                    let kept = Kept { through, in_sync };
                    if let Some(decider) = &mut self.decider {
                        let report = Report { at, arrival, version, kept, conclusion: ending };
                        decider.reports.insert(from.node, report);
                        decider.note_joining(from.node);
                    }
                    self.answer(from.node, out);
                    self.lead(at, out);
                }
                Ok(Message::Configuration(Configuration::State { leadership_records, low_watermarks })) => {
                    self.take_records(at, *leadership_records, out);
                    if self.has_arrived {
                        let stable = low_watermarks.iter().min().copied().unwrap_or_default();
                        let checkpointer = self.at(self.node(), self.settings.checkpointer);
                        out.send(checkpointer, Configuration::Stable(stable));
                        if let Some(exchange) = self.settings.exchange {
                            let exchange = self.at(self.node(), exchange);
                            out.send(exchange, Configuration::LowWatermarks(low_watermarks));
                        }
                    }
                }
                Ok(Message::Configuration(Configuration::Kept { through, in_sync })) => {
                    self.kept = Kept { through, in_sync };
                }
                Ok(Message::Ship(Ship::Collected {
                    partition,
                    term,
                    since,
                    through,
                    executed,
                    held,
                    is_all,
                })) => {
                    let (about, far) = ((partition, term), Knowledge { since, through, executed });
                    self.gather((at, from), about, far, (held, is_all), out);
                }
                Ok(Message::Log(Log::Sealed(decision))) => match self.decided(at, &decision) {
                    Ok(()) => self.lead(at, out),
                    Err(reason) => out.halt(reason),
                },
                Ok(Message::Log(Log::Logged(_) | Log::Lost(_))) => {
                    self.decider.iter_mut().for_each(|decider| decider.is_open = false);
                    self.lead(at, out);
                }
                Ok(Message::Log(Log::Leader { is_me, last, .. })) => {
                    if let Some(decider) = &mut self.decider {
                        if is_me && !decider.leads {
                            decider.since = at;
                            decider.reports.clear();
                            decider.joining.clear();
                        }
                        decider.leads = is_me;
                        decider.last = decider.last.max(last);
                    }
                }
                _ => out.halt("the configuration service was sent a message that is not for it"),
            },
            Event::Timer(_) | Event::Disk(_) | Event::Work(_) | Event::Stop => {}
        }
    }

    fn name(&self) -> &'static str {
        "configuration_service"
    }

    fn check(&self) -> Result<(), String> {
        let topology = &self.settings.topology;
        let known = [
            Some(&*self.leadership_records),
            self.decider.as_ref().map(|decider| &decider.leadership_records),
        ];
        known.into_iter().flatten().try_for_each(|records| records.check(topology))?;
        let fence = self.leadership_records.of(self.partition()).fence;
        let own = fence.filter(|fence| fence.candidate == self.node()).map(|fence| fence.term);
        match self.succession.as_ref().filter(|succession| Some(succession.term) != own) {
            Some(succession) => {
                Err(format!("the node prepares term {}, and is to prepare {own:?}", succession.term))
            }
            None => Ok(()),
        }
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let leadership_record = self.leadership_records.of(self.partition());
        report("ordain_configuration_service_version", self.leadership_records.version as f64);
        report("ordain_configuration_service_term", leadership_record.term as f64);
        report("ordain_configuration_service_primary", f64::from(leadership_record.primary.0));
        report(
            "ordain_configuration_service_is_fenced",
            f64::from(u8::from(self.leadership_records.is_fenced())),
        );
        report("ordain_configuration_service_has_arrived", f64::from(u8::from(self.has_arrived)));
        report("ordain_configuration_service_in_sync", leadership_record.in_sync.len() as f64);
        report(
            "ordain_configuration_service_leads",
            f64::from(u8::from(self.decider.as_ref().is_some_and(|c| c.leads))),
        );
        report("ordain_configuration_entries_total", self.counts.configuration_entries as f64);
        report("ordain_configuration_service_successions_total", self.counts.successions as f64);
        report("ordain_configuration_service_restored_batches_total", self.counts.restored as f64);
    }
}
