//! The exchange of a node carries everything that crosses partitions.
//!
//! Sending (module `sending`): it cuts slices of this partition's batches for the others (docs/protocols/calvin.md, section
//! 4.1, rule 4), and carries the remote results of this node's shards. It *keeps* what it has sent until every node that may
//! ask for it has said that it needs it no more (module `outgoing`).
//!
//! Receiving (module `receiving`): it puts the slices of all sequencers in the one order and hands them to the shards, and
//! hands on remote results. It writes what it receives to the *receive journal*, off the critical path (modules `journal`,
//! `progress`).
//!
//! Keeping and the journal together bring a node back (docs/protocols/calvin.md, section 4.13). The node executes again by
//! itself what it received and has on disk, and asks for what it received last and has not. *Progress* is the border:
//! everything up to that epoch is executed, and all that it came from is on this node's disk.
//!
//! A member of another replica *substitutes* for a lost node of this one (module `peers`): it sends what it has kept for its
//! own peer, which is the same (docs/protocols/calvin.md, section 4.11), until the lost node is back and up to date.
//!
//! Nodes that meet for the first time begin together (module `founding`): so a node that comes back with an empty disk is told
//! from a new one, and refused.
//!
//! A node that misses what no sender keeps any more, because it was away for too long or has lost its disk, reads it in the
//! journal of a member (module `catch_up`). Where primaries may change, a *fence* holds back what may not count (module
//! `fence`).

mod catch_up;
mod fence;
mod founding;
mod journal;
mod outgoing;
mod peers;
mod progress;
mod receiving;
mod sending;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ordain_model::{Epoch, Layouts, Micros, PartitionId, Registry};
use ordain_replication::{Arrival, Configuration, Covered, Saving, Ship};
use ordain_role::{Address, Bugs, Event, NodeId, Now, Outbox, Role, TimerId, Topology};

use crate::sequencing::interleave::Interleave;
use crate::sequencing::message::{ExchangeMessage, Log, Message, RemoteResult, Sequencing};

pub use founding::Beginning;
pub use journal::{Counting, JournalRecord, Opened};

use catch_up::CatchUp;
use fence::InputFence;
use founding::Founding;
use journal::Journal;
use outgoing::Outgoing;
use peers::Substitute;

/// The settings of an exchange.
#[derive(Clone, Debug)]
pub struct ExchangeSettings {
    /// The cluster.
    pub topology: Topology,
    /// The address of this role; it has the same number on the other nodes.
    pub me: Address,
    /// The sequencer of this node.
    pub sequencer: Address,
    /// The role that gets a checkpoint for a node that is too far behind, if there is one.
    pub checkpointer: Option<Address>,
    /// The shards of this node, in order.
    pub shards: Vec<Address>,
    /// The most bytes kept for the nodes of a partition that are behind the majority of them. Batches that the
    /// majority has not on disk yet are kept in any case.
    pub kept_max: usize,
    /// The bytes, about, beyond which journal entries that a checkpoint covers go, though members that are away may
    /// want them.
    pub keep_bytes: u64,
    /// About how many bytes are sent again, read again or written at once at most. A link has room for several times as
    /// many.
    pub piece: usize,
    /// The node's introduction in this life, where primaries may change.
    pub arrival: Option<Arrival>,
    /// Bugs that a test has planted.
    pub bugs: Bugs,
}

/// The role.
#[derive(Debug)]
pub struct Exchange<X> {
    settings: ExchangeSettings,
    registry: Arc<Registry>,
    partition: PartitionId,
    /// The layouts by which batches are divided: by the map of each chunk, whether or not this node has come to it.
    layouts: Layouts,
    order: Interleave,
    /// The largest epoch that this partition's log has sealed.
    sealed: Epoch,
    /// The epoch up to which everything was executed before the node began.
    begun: Epoch,
    /// The messages to each partition; none to this one.
    outgoing: Vec<Outgoing<X>>,
    /// Batches that were handed to the shards and are not executed by all, in order.
    handed: VecDeque<(Epoch, PartitionId)>,
    /// The epoch up to which the shards know that they have all.
    passed: Epoch,
    /// The last batch that each shard has executed.
    applied: BTreeMap<Address, (Epoch, PartitionId)>,
    /// The largest epoch of which, and of all before it, everything is executed here.
    progress: Epoch,
    /// The largest epoch that any sequencer has opened, as far as is known here.
    opened: Epoch,
    journal: Option<Journal>,
    /// Progress as far as all that it came from is on disk.
    durable: Epoch,
    /// The part of it that was reported to the other nodes of this replica, and to all that keep something for this
    /// one.
    reported_to_peers: Epoch,
    reported_to_all: Epoch,
    /// The timer that ends a pause in writing is set.
    pausing: bool,
    /// The timer that ends a pause in reporting is set.
    reporting: bool,
    /// Nodes that cannot be reached.
    lost: BTreeSet<NodeId>,
    /// The substitutes of the nodes of this replica that are lost, or are back and not up to date.
    substitutes: BTreeMap<NodeId, Substitute>,
    catch_up: CatchUp,
    /// The fence, where primaries may change.
    fence: Option<InputFence<X>>,
    /// The first meeting of the replica's nodes, as long as this one has not begun: then it sends and takes nothing else.
    founding: Option<Founding<X>>,
    /// The nodes of the replica are known to have begun.
    knows_begun: bool,
    /// The checkpointer waits until all that has come in up to an epoch is on disk.
    saving: Option<(Address, Epoch)>,
    /// Messages that leave once the journal's entry of that number is durable.
    deferred: VecDeque<(Epoch, NodeId, ExchangeMessage<X>)>,
    covered: Covered,
    /// The epoch up to which nothing can be lost with a primary, where primaries may change.
    stable: Epoch,
    /// The node executes again what it had before it was stopped: nothing leaves.
    is_replaying: bool,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    slices_out: u64,
    slices_in: u64,
    remote_results_out: u64,
    remote_results_in: u64,
    known: u64,
    gaps: u64,
    sent_again: u64,
    substituted: u64,
    fetched: u64,
    served: u64,
}

const FLUSH: TimerId = TimerId(1);
const PROBE: TimerId = TimerId(2);
/// The timer of the next look at a member's journal.
const FETCH: TimerId = TimerId(3);
const FETCH_EVERY: Micros = Micros::from_millis(200);
/// The timer of reports of progress.
const REPORT: TimerId = TimerId(4);
/// The time after which progress is reported to nodes that get no other message. Until then they keep more than they
/// need to.
const REPORT_EVERY: Micros = Micros::from_millis(100);
/// The time for which messages that came in may wait to be written. Until then their sender keeps them.
const FLUSH_EVERY: Micros = Micros::from_millis(10);
const PROBE_EVERY: Micros = Micros::from_millis(500);

impl<X: RemoteResult> Exchange<X> {
    /// An exchange of a node that has received nothing yet.
    pub fn new(settings: ExchangeSettings, registry: Arc<Registry>) -> Exchange<X> {
        let topology = &settings.topology;
        let (node, layout) = (settings.me.node, &topology.layout);
        let (replica, partition) = (topology.replica_of(node), topology.partition_of(node));
        let outgoing = (0..layout.partitions()).map(PartitionId).map(|to| {
            let near = (to != partition).then(|| topology.node(replica, to));
            Outgoing::new(topology.group(to), near)
        });
        let fence = settings.arrival.map(|_| InputFence::new(layout.partitions(), settings.bugs));
        Exchange {
            order: Interleave::new(layout.partitions()),
            outgoing: outgoing.collect(),
            applied: settings.shards.iter().map(|shard| (*shard, (Epoch(0), PartitionId(0)))).collect(),
            partition,
            layouts: Layouts::new(settings.topology.layout.clone()),
            settings,
            registry,
            sealed: Epoch(0),
            begun: Epoch(0),
            handed: VecDeque::new(),
            passed: Epoch(0),
            progress: Epoch(0),
            opened: Epoch(0),
            journal: None,
            durable: Epoch(0),
            reported_to_peers: Epoch(0),
            reported_to_all: Epoch(0),
            pausing: false,
            reporting: false,
            lost: BTreeSet::new(),
            substitutes: BTreeMap::new(),
            catch_up: CatchUp::default(),
            fence,
            founding: None,
            knows_begun: false,
            saving: None,
            deferred: VecDeque::new(),
            covered: Covered::default(),
            stable: Epoch(0),
            is_replaying: true,
            counts: Counts::default(),
        }
    }

    /// Reads an entry of a journal: what came in, in order.
    pub fn journal_records(registry: &Registry, entry: &[u8]) -> Option<Vec<JournalRecord<X>>> {
        JournalRecord::read(registry, entry)
    }

    /// Takes note again of what came in before the node was stopped. What it asks for is for this node's own roles.
    pub fn replay(&mut self, journal_record: JournalRecord<X>, out: &mut Outbox<Message<X>>) {
        match journal_record {
            JournalRecord::Message(from, message) => self.receive(from, message, out),
            JournalRecord::Progress(node, epoch) => self.note_progress(node, epoch),
            JournalRecord::Stable(epoch) => self.stable = self.stable.max(epoch),
            JournalRecord::Incarnation(..) | JournalRecord::Ready | JournalRecord::Begun => {}
        }
        self.deliver(out);
    }

    /// Begins where everything of an epoch and before was executed: the exchange knows nothing of that any more, and
    /// will not be asked. To be called first.
    pub fn begin_after(&mut self, epoch: Epoch) {
        self.order = Interleave::after(self.partitions(), epoch);
        (self.begun, self.sealed, self.progress, self.durable) = (epoch, epoch, epoch, epoch);
        self.opened = epoch;
        self.outgoing.iter_mut().for_each(|outgoing| outgoing.begin_after(epoch));
    }

    /// Begins normal work after the replay, or asks its peers whether it may. From now on messages that come in are kept in a
    /// journal, if there is one, and no batch of this partition up to `sealed` is still to come.
    pub fn begin(&mut self, journal: Option<Opened>, sealed: Epoch, beginning: Beginning) {
        self.is_replaying = false;
        self.founding = Founding::new(beginning);
        self.knows_begun = beginning == Beginning::Begun;
        self.fence.iter_mut().for_each(|fence| fence.begin_after(self.begun));
        self.sealed = self.sealed.max(sealed);
        self.order.put(self.partition, Epoch(0), self.sealed, None);
        let stable = self.stable_progress();
        self.journal = journal.map(|opened| Journal::new(opened, stable));
        let durable = self.journal.as_ref().map_or(Epoch(0), |journal| journal.durable);
        self.durable = self.durable.max(durable);
        // Each node that is met gets a report.
        (self.reported_to_peers, self.reported_to_all) = (self.durable, self.durable);
    }

    /// The largest epoch of which, and of all before it, everything is executed here.
    pub fn progress(&self) -> Epoch {
        self.progress
    }

    /// The progress that no node has to take back: others hear of no more, and keep the rest.
    fn stable_progress(&self) -> Epoch {
        let stable = self.fence.as_ref().map_or(Epoch(u64::MAX), |_| self.stable.max(self.begun));
        self.progress.min(stable)
    }

    fn partitions(&self) -> u16 {
        self.settings.topology.layout.partitions()
    }

    fn at(&self, node: NodeId) -> Address {
        Address { node, ..self.settings.me }
    }

    /// The other nodes of this replica.
    fn peers(&self) -> impl Iterator<Item = NodeId> + use<X> {
        let me = self.settings.me.node;
        self.settings.topology.replica(self.settings.topology.replica_of(me)).filter(move |node| *node != me)
    }

    fn is_peer(&self, node: NodeId) -> bool {
        self.settings.topology.replica_of(node) == self.settings.topology.replica_of(self.settings.me.node)
    }
}

impl<X: RemoteResult> Role for Exchange<X> {
    type Message = Message<X>;

    fn handle(&mut self, _now: Now, event: Event<Message<X>>, out: &mut Outbox<Message<X>>) {
        match event {
            Event::Message { from, message } => match message {
                Message::Log(Log::Sealed(batch)) => self.sealed(batch, out),
                Message::Sequencing(Sequencing::Applied { epoch, partition }) => {
                    if let Some(applied) = self.applied.get_mut(&from) {
                        *applied = (epoch, partition).max(*applied);
                    }
                }
                Message::Sequencing(house @ (Sequencing::Expired { .. } | Sequencing::Uneven(..))) => {
                    out.send(self.settings.sequencer, house);
                }
                Message::Exchange(ExchangeMessage::Opened(epoch)) if from.node == self.settings.me.node => {
                    self.opened = self.opened.max(epoch);
                    if self.founding.is_none() {
                        self.peers().for_each(|node| out.send(self.at(node), ExchangeMessage::Opened(epoch)));
                    }
                }
                Message::Exchange(ExchangeMessage::RemoteResult { to, remote_result })
                    if from.node == self.settings.me.node =>
                {
                    self.send_remote_result(to, remote_result, out);
                }
                Message::Exchange(message) => self.admit(from.node, message, out),
                Message::Configuration(Configuration::Records { leadership_records, .. }) => {
                    let released = self.note_records(leadership_records, out);
                    released.into_iter().for_each(|(from, message)| self.receive(from, message, out));
                }
                Message::Configuration(Configuration::LowWatermarks(epochs)) => {
                    self.fence.iter_mut().for_each(|fence| fence.forget(&epochs));
                    let stable = epochs.into_iter().min().unwrap_or_default();
                    self.stable = self.stable.max(stable);
                    self.settings
                        .shards
                        .iter()
                        .for_each(|shard| out.send(*shard, Configuration::Stable(stable)));
                }
                Message::Log(Log::Trim(covered)) => {
                    self.covered = covered;
                    self.trim(out);
                    self.journal.iter_mut().for_each(|journal| journal.ask(out));
                }
                Message::Ship(Ship::Collect { partition, term, after }) => {
                    self.collect(from, (partition, term), after, out);
                }
                Message::Peer(change) => self.peer_changed(change, out),
                Message::Saving(Saving::Covered(epoch)) => self.saving = Some((from, epoch)),
                _ => out.halt("the exchange was sent a message that is not for it"),
            },
            Event::Disk(done) => self.disk(&done, out),
            Event::Timer(FETCH) => self.go_on_catching_up(out),
            Event::Timer(FLUSH) => {
                self.pausing = false;
                self.flush(out);
            }
            Event::Timer(REPORT) => {
                self.reporting = false;
                self.report_to_all(out);
            }
            Event::Timer(PROBE) => {
                if let Some(journal) = &mut self.journal {
                    journal.writer.retry();
                    journal.ask(out);
                }
            }
            Event::Stop => {
                self.flush(out);
                if let Some(journal) = &mut self.journal {
                    journal.writer.mark();
                    journal.ask(out);
                }
            }
            Event::Start => {
                // Epochs that others had opened are in the journal, and the sequencer begins with what is in the log.
                if self.opened > self.sealed {
                    out.send(self.settings.sequencer, Sequencing::Reached(self.opened));
                }
            }
            Event::Timer(_) | Event::Work(_) => {}
        }
        self.deliver(out);
        self.pace(out);
        if let Some((to, epoch)) = self.saving.take_if(|(_, epoch)| *epoch <= self.durable) {
            out.send(to, Saving::Covered(epoch));
        }
    }

    fn name(&self) -> &'static str {
        "exchange"
    }

    fn check(&self) -> Result<(), String> {
        let (told, durable, executed) = (self.reported_to_all, self.durable, self.progress);
        if told > self.reported_to_peers || self.reported_to_peers > durable || durable > executed {
            return Err(format!(
                "others were told of progress {told} and {}, of which {durable} is durable and {executed} executed",
                self.reported_to_peers
            ));
        }
        if executed > self.order.passed() || self.passed > self.order.passed() {
            return Err(format!(
                "epoch {executed} is executed and {} handed on, and the order is complete up to {} only",
                self.passed,
                self.order.passed()
            ));
        }
        if self.founding.is_some() && executed > self.begun {
            return Err(format!("epoch {executed} is executed before the nodes of the replica have met"));
        }
        if !self.handed.iter().is_sorted_by(|a, b| a < b) {
            return Err("batches were handed to the shards out of order".to_owned());
        }
        if !self.deferred.iter().map(|(number, ..)| number).is_sorted() {
            return Err("deferred messages do not wait in the order of the journal".to_owned());
        }
        let me = self.settings.me.node;
        if let Some(node) = self.substitutes.keys().find(|node| **node == me || !self.is_peer(**node)) {
            return Err(format!("node {} has a substitute and is no peer", node.0));
        }
        self.outgoing.iter().try_for_each(Outgoing::check)?;
        self.fence.as_ref().map_or(Ok(()), InputFence::check)
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let kept: usize = self.outgoing.iter().map(Outgoing::bytes).sum();
        let counts = &self.counts;
        report("ordain_exchange_progress_epoch", self.progress.0 as f64);
        report("ordain_exchange_durable_epoch", self.durable.0 as f64);
        report("ordain_exchange_sealed_epoch", self.sealed.0 as f64);
        report("ordain_exchange_kept_bytes", kept as f64);
        report("ordain_exchange_waiting_batches", self.order.waiting() as f64);
        report("ordain_exchange_unfinished_batches", self.handed.len() as f64);
        report("ordain_exchange_lost_nodes", self.lost.len() as f64);
        report("ordain_exchange_slices_sent_total", counts.slices_out as f64);
        report("ordain_exchange_slices_received_total", counts.slices_in as f64);
        report("ordain_exchange_remote_results_sent_total", counts.remote_results_out as f64);
        report("ordain_exchange_remote_results_received_total", counts.remote_results_in as f64);
        report("ordain_exchange_duplicates_total", counts.known as f64);
        report("ordain_exchange_gaps_total", counts.gaps as f64);
        report("ordain_exchange_sent_again_total", counts.sent_again as f64);
        report("ordain_exchange_substituted_total", counts.substituted as f64);
        report("ordain_exchange_held_back", self.fence.as_ref().map_or(0, InputFence::held) as f64);
        report("ordain_exchange_unfounded", self.unfounded() as f64);
        report("ordain_exchange_catch_up_epoch", self.catch_up.up_to().0 as f64);
        let behind = self.catch_up.beyond_help(&self.members()).unwrap_or_default();
        report("ordain_exchange_behind_epoch", behind.0 as f64);
        report("ordain_exchange_fetched_total", counts.fetched as f64);
        report("ordain_exchange_served_total", counts.served as f64);
    }
}
