//! The sequencer decides the order of its partition's transactions (docs/protocols/calvin.md, section 4.1).
//!
//! Epochs are adaptive (module `order`). A batch closes as soon as the pipeline can take it: the log has the batch before,
//! and the shards are not too far behind. Chunks that arrive meanwhile gather into the next batch (module `waiting`). So a
//! lone client waits for nobody, and under load batches grow to the size at which fsync and execution keep up.
//!
//! Sequencers of a cluster keep their epochs together without a clock. A sequencer that closes a batch says which epoch it
//! opens, and a sequencer that learns of an epoch beyond its own seals that too, with what waits or with nothing. So an idle
//! cluster is silent, and nobody waits for a tick (docs/protocols/calvin.md, section 4.9).
//!
//! Where members agree on the batches, one of them leads (module `members`). The others pass on to it what gateways submit
//! to them, and again when another one leads; what was agreed on already is then left out.
//!
//! Reads on a snapshot are not ordered: the sequencer says as of which epoch they are run (modules `reads`, `snapshots`).
//!
//! A log that has to ask other nodes takes several batches at once ([`Settings::in_log_max`]): a batch that waited for the
//! fate of the one before would cost a request two round trips. Batches follow each other at a distance, so that they grow
//! under load all the same: a share of the time that the log has taken lately, or a millisecond if that is more.
//!
//! A full disk refuses writes and nothing else (module `full_disk`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ordain_family::TAKES_TRANSACTIONS;
use ordain_model::{
    ArgsBuilder, Batch, Call, Cascade, Chunk, ChunkNo, Db, Epoch, Execution, Front, GatewayId, Gsn,
    Histogram, Micros, Millis, OutcomeBatch, OutcomeStatus, PartitionId, Position, ProcedureId, Registry,
    RequestNo, SessionId, Txn, VirtualShard, system,
};
use ordain_replication::Saving;
use ordain_role::{Address, Bugs, Event, NodeId, Now, Outbox, PeerChange, PeerState, Role, Series, TimerId};

use crate::sequencing::message::{Log, Message, Sequencing};
use crate::sequencing::sessions::Sessions;
use crate::sequencing::snapshots::{Readers, Snapshots, Wanted};
use crate::sequencing::speculation::Speculation;

mod full_disk;
mod members;
mod order;
mod reads;
mod saving;
mod waiting;

use members::{Leader, Members};
use saving::Checkpoints;
use waiting::Waiting;

pub use saving::{input_at, time_of_input};

/// The settings of a sequencer.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The partition whose sequencer this is.
    pub partition: PartitionId,
    /// The version of the layout, for the batches.
    pub layout: u32,
    /// Most transactions in a batch (docs/protocols/calvin.md, section 4.19).
    pub batch_cap: u32,
    /// Most bytes of a batch, but for one chunk that is larger.
    pub batch_bytes: usize,
    /// The number of its batches that may be unexecuted before no new one is closed (`lag_max`).
    pub lag_max: u64,
    /// The time for which an open batch waits for more before it closes although the pipeline is ready.
    pub linger: Micros,
    /// The number of batches that may be in the log at once.
    pub in_log_max: usize,
    /// Reads are run on snapshots: the shards are sent low watermarks.
    pub snapshots: bool,
    /// After about so long without any of them the shards need not keep anything for them.
    pub silence: Micros,
    /// The bytes, about, of a piece of the chunks that are passed on to the leader.
    pub piece: usize,
    /// The number of transactions that may wait for a batch; beyond it chunks are answered with BUSY.
    pub backlog_max: usize,
    /// After so many bytes of batches a checkpoint is asked for; 0 for never.
    pub checkpoint_bytes: u64,
    /// The number of replicas that take checkpoints one after the other; 1: all do at once.
    pub checkpoint_turns: u16,
    /// Which batches are executed before it is known what aborts.
    pub execution: Execution,
    /// The fate of what was executed speculatively on what was undone.
    pub cascade: Cascade,
    /// Bugs that a test has planted.
    pub bugs: Bugs,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            partition: PartitionId(0),
            layout: 1,
            batch_cap: Gsn::MAX_BATCH,
            batch_bytes: 16 << 20,
            lag_max: 4,
            linger: Micros(0),
            in_log_max: 1,
            snapshots: false,
            silence: Micros::from_millis(1000),
            piece: 1 << 20,
            backlog_max: 1 << 18,
            checkpoint_bytes: 0,
            checkpoint_turns: 1,
            execution: Execution::default(),
            cascade: Cascade::default(),
            bugs: Bugs::NONE,
        }
    }
}

/// The addresses of a sequencer's neighbours.
#[derive(Clone, Debug)]
pub struct Neighbours {
    /// The address of this role; it has the same number on the other nodes.
    pub me: Address,
    /// The input log.
    pub log: Address,
    /// The roles that report what is executed here: the shards, or the exchange for them.
    pub executors: Vec<Address>,
    /// The exchange, if there are other partitions.
    pub exchange: Option<Address>,
    /// The role number of the first gateway on every node.
    pub gateways: u16,
    /// The shards of this replica.
    pub readers: Readers,
}

impl Neighbours {
    /// The address for a gateway's outcomes, if a gateway waits for them.
    pub fn gateway(&self, gateway: GatewayId) -> Option<Address> {
        gateway_address(self.gateways, gateway)
    }
}

/// The address of a gateway, given the role number of the first on every node.
pub fn gateway_address(first: u16, gateway: GatewayId) -> Option<Address> {
    let at = Address { node: NodeId(gateway.node()), role: first.wrapping_add(gateway.number()) };
    (gateway != GatewayId::HOUSE).then_some(at)
}

/// Collects requests and closes epochs.
#[derive(Debug)]
pub struct Sequencer<X> {
    settings: Settings,
    registry: Arc<Registry>,
    neighbours: Neighbours,
    /// Chunks in order of arrival, not yet in a batch.
    waiting: Waiting,
    /// Since when something has been waiting; after a batch was closed, since then.
    waits_since: Option<Micros>,
    stages: Stages,
    /// The epoch sealed last.
    epoch: Epoch,
    /// The time of the last batch; the next is never of an earlier one.
    now: Millis,
    /// The batches that the log has not made durable yet, in order.
    in_log: VecDeque<InLog>,
    /// The time that the log has taken lately.
    log_takes: Micros,
    /// The timer for the next batch that may follow those in the log is set.
    pacing: bool,
    /// The epoch that each executor has applied; the pipeline's window counts from the smallest.
    applied: BTreeMap<Address, Epoch>,
    /// Batches that were closed and are not applied, by epoch.
    under_way: VecDeque<Epoch>,
    /// The largest epoch that any partition has opened.
    reached: Epoch,
    /// The node whose batches count, and its role that chunks are passed on to. Without members: this one.
    leader: Leader,
    sessions: Sessions,
    members: Option<Members>,
    snapshots: Snapshots,
    speculation: Speculation,
    /// The timer for telling the low watermark to other nodes is set.
    is_reporting: bool,
    /// The timer for reads that take too long is set.
    is_checking_late: bool,
    /// The timer for reads that are held is set.
    holding: bool,
    /// The nodes of the replica have not met: nothing is closed.
    is_unfounded: bool,
    /// The disk is full: only reads are sequenced.
    full: bool,
    /// The timer that closes a lingering batch is set.
    lingering: bool,
    /// The log has turned a batch away without naming another leader: it is asked again a little later.
    pausing: bool,
    house: u64,
    /// Slots whose sweep is waiting, so that each is asked for once.
    sweeps: BTreeSet<Position>,
    checkpoints: Checkpoints,
    counts: Counts,
    marker: std::marker::PhantomData<fn() -> X>,
}

/// The times of batches on their way through the sequencer, in microseconds, and their sizes.
#[derive(Debug, Default)]
struct Stages {
    /// The time from the first of a batch's transactions until it is closed.
    waiting: Histogram,
    /// The time from then until it is durable, or agreed on.
    log: Histogram,
    /// The time from then until everything of it is executed by this node.
    execution: Histogram,
    /// The batches that are being executed, and since when.
    executing: VecDeque<(Epoch, Micros)>,
    /// Transactions of each batch, less one.
    txns: Histogram,
    /// Bytes of each batch, less one.
    bytes: Histogram,
}

/// A batch that the log has and has not answered.
#[derive(Debug)]
struct InLog {
    batch: Arc<Batch>,
    since: Micros,
    /// The last request of each session in it, as far as they are first attempts.
    requests: BTreeMap<SessionId, RequestNo>,
    /// Reads that wait for the batch to be sealed, to be run as of it.
    wanted: Vec<Wanted>,
}

#[derive(Debug, Default)]
struct Counts {
    batches: u64,
    txns: u64,
    busy: u64,
    refused: u64,
    duplicates: u64,
    passed_on: u64,
    lost: u64,
}

const LINGER: TimerId = TimerId(1);
const PAUSE: TimerId = TimerId(2);
const PAUSE_FOR: Micros = Micros::from_millis(5);
const PACE: TimerId = TimerId(4);
/// The time after which a batch may follow another that is still in the log.
const PACE_MIN: Micros = Micros::from_millis(1);
/// The timer of low watermarks for shards of other nodes.
const LOW_WATERMARK: TimerId = TimerId(5);
const LOW_WATERMARK_EVERY: Micros = Micros::from_millis(2);
/// The timer of the search for reads that were never answered.
const LATE: TimerId = TimerId(6);
/// The timer of reads that wait for shards to keep what is needed.
const HOLD: TimerId = TimerId(7);
const HOLD_FOR: Micros = Micros::from_millis(20);

impl<X> Sequencer<X> {
    /// Makes a sequencer that has sealed nothing yet. With members it leads once the log names it.
    pub fn new(
        settings: Settings,
        registry: Arc<Registry>,
        neighbours: Neighbours,
        has_members: bool,
    ) -> Sequencer<X> {
        let applied = neighbours.executors.iter().map(|executor| (*executor, Epoch(0))).collect();
        let speculation = Speculation::new(settings.execution, settings.cascade);
        let snapshots = Snapshots::new(neighbours.me, settings.partition, neighbours.readers.clone());
        Sequencer {
            snapshots,
            speculation,
            is_reporting: false,
            is_checking_late: false,
            holding: false,
            settings,
            registry,
            neighbours,
            waiting: Waiting::default(),
            waits_since: None,
            stages: Stages::default(),
            epoch: Epoch(0),
            now: Millis(0),
            in_log: VecDeque::new(),
            log_takes: Micros(0),
            pacing: false,
            applied,
            under_way: VecDeque::new(),
            reached: Epoch(0),
            leader: if has_members { Leader::Nobody } else { Leader::Me },
            sessions: Sessions::default(),
            members: has_members.then(Members::default),
            is_unfounded: false,
            full: false,
            lingering: false,
            pausing: false,
            house: 0,
            sweeps: BTreeSet::new(),
            checkpoints: Checkpoints::default(),
            counts: Counts::default(),
            marker: std::marker::PhantomData,
        }
    }

    /// Takes note of a batch that the log held at start.
    pub fn replay(&mut self, batch: &Batch) {
        self.agreed(batch);
    }

    /// Says where to go on after replay: the first batch gets an epoch after `epoch`, which must be at least as
    /// large as any that was ever handed out.
    pub fn resume_after(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        self.snapshots.resume_after(epoch);
    }

    /// Closes nothing until the nodes of the replica have met.
    pub fn wait_for_peers(&mut self) {
        self.is_unfounded = true;
    }

    /// Takes a chunk, which a gateway of this node may have sent only here, or others have had as well.
    fn submit(&mut self, now: Now, has_travelled: bool, chunk: Arc<Chunk>, out: &mut Outbox<Message<X>>) {
        if let Leader::Other(node) = self.leader {
            return self.pass_on(now, node, chunk, out);
        }
        if self.members.as_ref().is_some_and(|members| members.is_unanswered(&chunk)) {
            return self.answer_all(&chunk, OutcomeStatus::Unknown, |_| true, out);
        }
        let id = (chunk.gateway, chunk.number);
        if let Some(members) = &mut self.members {
            if has_travelled {
                members.travelled.insert(id);
            }
            if !members.queued.insert(id) {
                return;
            }
        }
        if self.waiting.txns() + chunk.txns().len() > self.settings.backlog_max {
            self.counts.busy += chunk.txns().len() as u64;
            self.answer_all(&chunk, OutcomeStatus::Busy, |_| true, out);
            self.members.iter_mut().for_each(|members| members.turn_away(&chunk));
            return;
        }
        self.waiting.push(chunk);
    }

    /// Answers the transactions of a chunk that `which` names without executing them. The status is the whole answer:
    /// the session has the words for it.
    fn answer_all(
        &self,
        chunk: &Chunk,
        status: OutcomeStatus,
        which: impl Fn(&Txn) -> bool,
        out: &mut Outbox<Message<X>>,
    ) {
        let Some(gateway) = self.neighbours.gateway(chunk.gateway) else { return };
        let mut outcomes = OutcomeBatch::new(chunk.gateway);
        let id = (chunk.gateway, chunk.number);
        let is_elsewhere = self.members.as_ref().is_some_and(|members| members.travelled.contains(&id));
        let status = if is_elsewhere { OutcomeStatus::Unknown } else { status };
        for txn in chunk.txns().iter().filter(|txn| which(txn)) {
            outcomes.push(chunk.number, txn.index, Gsn::NONE, status, |_| {});
        }
        if !outcomes.is_empty() {
            out.send(gateway, Front::Outcomes(outcomes));
        }
    }

    /// Members have agreed on a batch, this one's or another's: its requests are known from now on, and its epoch and
    /// time are past.
    fn agreed(&mut self, batch: &Batch) {
        self.epoch = self.epoch.max(batch.epoch);
        self.now = self.now.max(batch.now);
        self.sessions.note(batch);
        self.members.iter_mut().for_each(|members| members.note(batch));
        self.note_durable(batch);
    }

    /// Another partition has opened an epoch.
    fn reach(&mut self, epoch: Epoch, out: &mut Outbox<Message<X>>) {
        if epoch <= self.reached {
            return;
        }
        self.reached = epoch;
        if let Leader::Other(node) = self.leader {
            out.send(Address { node, ..self.neighbours.me }, Sequencing::Reached(epoch));
        }
    }

    fn applied(&mut self, now: Now, executor: Address, epoch: Epoch) {
        if let Some(applied) = self.applied.get_mut(&executor) {
            *applied = (*applied).max(epoch);
        }
        let slowest = self.applied.values().min().copied().unwrap_or(epoch);
        self.snapshots.note_published(slowest);
        while self.under_way.front().is_some_and(|epoch| *epoch <= slowest) {
            self.under_way.pop_front();
        }
        let Stages { executing, execution, .. } = &mut self.stages;
        while let Some((_, since)) = executing.pop_front_if(|(epoch, _)| *epoch <= slowest) {
            execution.record_time(now.elapsed.since(since));
        }
    }

    /// Submits the sweep of slots that hold records whose time has come.
    fn sweep(&mut self, positions: &std::ops::Range<Position>) {
        if self.leads() && self.sweeps.insert(positions.start) {
            self.submit_for_house(system::EXPIRE, |args| system::expire_args(positions, args));
        }
    }

    /// Submits the move of slots between a partition's virtual shards.
    fn balance(&mut self, partition: PartitionId, virtual_shards: &[(usize, Option<VirtualShard>)]) {
        if self.leads() {
            self.submit_for_house(system::BALANCE, |args| {
                system::balance_args(partition, virtual_shards, args)
            });
        }
    }

    /// Tells whether the partition's own transactions are submitted here, and can be.
    fn leads(&self) -> bool {
        !self.full && self.leader == Leader::Me
    }

    /// Submits a transaction that no client waits for.
    fn submit_for_house(&mut self, procedure: ProcedureId, write: impl FnOnce(&mut ArgsBuilder<'_>)) {
        self.house += 1;
        let mut chunk = Chunk::new(GatewayId::HOUSE, ChunkNo(self.house));
        if chunk.push(&self.registry, Call::new(procedure, Db(0)), write).is_ok() {
            self.waiting.push(Arc::new(chunk));
        }
    }
}

impl<X: Send> Role for Sequencer<X> {
    type Message = Message<X>;

    fn handle(&mut self, now: Now, event: Event<Message<X>>, out: &mut Outbox<Message<X>>) {
        match event {
            Event::Message { from, message } => match message {
                Message::Front(Front::Submit(chunk)) => {
                    self.submit(now, from.node != self.neighbours.me.node, chunk, out);
                }
                Message::Front(Front::Read(chunk, snapshot)) => self.read(now, chunk, snapshot, out),
                Message::Front(Front::ReadDone(gateway, number)) => self.snapshots.done((gateway, number)),
                Message::Front(Front::Pause(pause)) => out.send(from, Front::Continue(pause)),
                Message::Front(Front::Continue(pause)) => self.go_on_passing(now, pause, out),
                Message::Reading(reading) => self.take_reading(now, from, reading, out),
                Message::Log(Log::Logged(epoch)) => self.logged(now, epoch, out),
                Message::Sequencing(Sequencing::Applied { epoch, .. }) => self.applied(now, from, epoch),
                Message::Log(Log::Sealed(batch)) => self.agreed(&batch),
                Message::Log(Log::Lost(batch)) => self.lost(now, &batch, out),
                Message::Log(Log::Leader { node, is_me, last, .. }) => {
                    self.pausing = false;
                    let other = node.filter(|node| *node != self.neighbours.me.node);
                    let leader = other.map_or(Leader::Nobody, Leader::Other);
                    self.led_by(now, if is_me { Leader::Me } else { leader }, last, out);
                }
                Message::Sequencing(Sequencing::Reached(epoch)) => self.reach(epoch, out),
                Message::Sequencing(Sequencing::Founded) => self.is_unfounded = false,
                Message::Peer(PeerChange { node, state: PeerState::Fresh }) => {
                    if self.settings.snapshots {
                        self.snapshots.request_keeping(Some(node), out);
                    }
                    if self.leader == Leader::Other(node) {
                        self.pass_on_again(now, out);
                        self.ask_leader_again(out);
                        out.send(Address { node, ..self.neighbours.me }, Sequencing::Reached(self.reached));
                    }
                }
                Message::Peer(_) => {}
                Message::Log(Log::Rejected(batch)) => self.rejected(now, &batch, out),
                Message::Log(Log::Writable) => self.full = false,
                Message::Sequencing(Sequencing::Expired { positions }) => self.sweep(&positions),
                Message::Sequencing(Sequencing::Uneven(partition, virtual_shards)) => {
                    self.balance(partition, &virtual_shards)
                }
                Message::Saving(Saving::Begun(epoch)) => self.note_begun(from, epoch),
                Message::Saving(Saving::Wanted) => self.checkpoints.is_wanted = true,
                Message::Saving(Saving::StandsStill(is)) => self.checkpoints.stands_still = is,
                other => out.halt(format!(
                    "the sequencer was sent a message that is not for it: {}",
                    name_of(&other)
                )),
            },
            Event::Timer(PAUSE) => self.pausing = false,
            Event::Timer(PACE) => self.pacing = false,
            Event::Timer(LOW_WATERMARK) => {
                self.is_reporting = false;
                self.report_low_watermark(true, out);
            }
            Event::Timer(LATE) => {
                self.is_checking_late = false;
                self.snapshots.rest(out);
                for chunk in self.snapshots.give_up(now.elapsed) {
                    self.answer_all(&chunk, OutcomeStatus::Busy, |_| true, out);
                }
                self.check_late(out);
            }
            Event::Timer(HOLD) => {
                self.holding = false;
                let held = self.snapshots.hold_no_longer();
                self.run_held(now, held, out);
            }
            Event::Timer(LINGER) => {
                self.lingering = false;
                if self.may_close() && self.too_soon(now) == Micros(0) {
                    self.close(now, out);
                }
            }
            Event::Start | Event::Timer(_) | Event::Disk(_) | Event::Work(_) | Event::Stop => {}
        }
        self.save(out);
        self.try_close(now, out);
        self.report_low_watermark(false, out);
        self.waits_since = (!self.waiting.is_empty()).then(|| self.waits_since.unwrap_or(now.elapsed));
    }

    fn name(&self) -> &'static str {
        "sequencer"
    }

    fn check(&self) -> Result<(), String> {
        self.waiting.check()?;
        self.snapshots.check()?;
        self.members.as_ref().map_or(Ok(()), |members| members.check(self.waiting.chunks()))?;
        let of_log: Vec<Epoch> = self.in_log.iter().map(|entry| entry.batch.epoch).collect();
        if !of_log.is_sorted_by(|a, b| a < b) || of_log.len() > self.settings.in_log_max {
            return Err(format!("epochs {of_log:?} are in the log, of {} at most", self.settings.in_log_max));
        }
        if !self.under_way.iter().is_sorted_by(|a, b| a < b) {
            return Err(format!("epochs are under way out of order: {:?}", self.under_way));
        }
        let last = of_log.last().max(self.under_way.back()).copied().unwrap_or_default();
        if last > self.epoch {
            return Err(format!("epoch {last} is closed, and the last one is {}", self.epoch));
        }
        if matches!(self.leader, Leader::Other(_)) && !self.waiting.is_empty() {
            return Err("chunks wait here although another node leads".to_owned());
        }
        if self.members.is_none() && self.leader != Leader::Me {
            return Err("a sequencer without members does not lead".to_owned());
        }
        if self.waits_since.is_some() == self.waiting.is_empty() {
            return Err("the time since which chunks wait does not fit the chunks".to_owned());
        }
        Ok(())
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        report(TAKES_TRANSACTIONS, 1.0);
        report("ordain_sequencer_epoch", self.epoch.0 as f64);
        report("ordain_sequencer_batches_total", self.counts.batches as f64);
        report("ordain_sequencer_transactions_total", self.counts.txns as f64);
        report("ordain_sequencer_busy_total", self.counts.busy as f64);
        report("ordain_sequencer_refused_total", self.counts.refused as f64);
        report("ordain_sequencer_duplicates_total", self.counts.duplicates as f64);
        report("ordain_sequencer_waiting", self.waiting.txns() as f64);
        report("ordain_sequencer_passed_on_total", self.counts.passed_on as f64);
        report("ordain_sequencer_in_log", self.in_log.len() as f64);
        report("ordain_sequencer_lost_total", self.counts.lost as f64);
        report("ordain_sequencer_read_chunks_total", self.snapshots.chunks as f64);
    }

    fn histograms(&self, report: &mut dyn FnMut(Series, &Histogram)) {
        report(Series::stage("sequencing"), &self.stages.waiting);
        let log = if self.members.is_some() { "agreement" } else { "log" };
        report(Series::stage(log), &self.stages.log);
        report(Series::stage("execution"), &self.stages.execution);
        report(Series::new("ordain_batch_transactions"), &self.stages.txns);
        report(Series::new("ordain_batch_bytes"), &self.stages.bytes);
    }
}

fn name_of<X>(message: &Message<X>) -> &'static str {
    match message {
        Message::Front(Front::Submit(_)) => "submit",
        Message::Front(_) => "front",
        Message::Log(_) | Message::ConfigurationLog(_) => "log",
        Message::Sequencing(_) => "sequencing",
        Message::Reading(_) => "reading",
        Message::Engine(_) => "engine",
        Message::Exchange(_) => "exchange",
        Message::Group(_) => "group",
        Message::Ship(_) => "ship",
        Message::Configuration(_) => "configuration",
        Message::Saving(_) => "saving",
        Message::Peer(_) => "peer",
    }
}
