//! The sequencer: decides the order (calvin.md, section 4.1).
//!
//! Epochs are adaptive. A batch closes as soon as the pipeline can take it: the log has the batch before, and
//! the shards are not too far behind. Whatever arrives meanwhile gathers into the next one. So a lone client
//! waits for nobody, and under load batches grow to just the size at which fsync and execution keep up.
//!
//! In a cluster the sequencers keep their epochs together without a clock: whoever closes a batch says which epoch it
//! opens, and whoever hears of an epoch beyond its own seals it too, with what is waiting or with nothing. So an idle
//! cluster is silent, and nobody waits for a tick (calvin.md, section 4.9, where the epochs follow a schedule).
//!
//! Where members agree on the batches, one of them leads. The others pass on what gateways submit to them, and pass it on
//! again when another leads: what was agreed on already is left out then.
//!
//! Reads on a snapshot it does not order, but says as of which epoch they are run (the module `snapshots`).
//!
//! A log that has to ask other nodes takes several batches at once ([`Settings::in_log_max`]): one that waited for the
//! fate of the one before would cost a request two round trips. They follow each other at a distance, so that under load
//! they grow all the same: a share of the time that the log has taken lately, or a millisecond if that is more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ordain_model::{
    ArgsBuilder, Batch, Call, Cascade, Chunk, ChunkNo, Db, Epoch, Execution, Flow, Front, GatewayId, Gsn,
    Histogram, Lane, Lookup, Micros, Millis, OutcomeBatch, OutcomeStatus, PartitionId, PauseNo, Placed,
    Position, ProcedureId, Registry, RequestNo, SessionId, Snapshot, Txn, system,
};
use ordain_role::{
    Address, Bug, Bugs, Event, NodeId, Now, Outbox, PeerChange, PeerState, Role, Series, TimerId,
};

use crate::chunks::Chunks;
use crate::message::{Log, Message, Post, Reading, Saving, Sequencing};
use crate::sessions::Sessions;
use crate::snapshots::{Readers, Snapshots, Wanted};
use crate::speculation::Speculation;

mod saving;

use saving::{Checkpoints, LAG_STANDING};

pub use saving::{input_at, time_of_input};

/// How the sequencer is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The partition whose sequencer this is.
    pub partition: PartitionId,
    /// The version of the layout, for the batches.
    pub layout: u32,
    /// Most transactions in a batch (calvin.md, section 6, `batch_cap`).
    pub batch_cap: u32,
    /// Most bytes of a batch, but for one chunk that is larger.
    pub batch_bytes: usize,
    /// How many of its batches may be unexecuted before no new one is closed (`lag_max`).
    pub lag_max: u64,
    /// How long an open batch waits for more before it closes although the pipeline is ready.
    pub linger: Micros,
    /// How many batches may be in the log at once.
    pub in_log_max: usize,
    /// Reads are run on snapshots: the shards are told which are still wanted.
    pub snapshots: bool,
    /// After about so long without any of them the shards need not keep anything for them.
    pub silence: Micros,
    /// Chunks are passed on to whoever leads in pieces of about so many bytes.
    pub piece: usize,
    /// How many transactions may wait for a batch; beyond it chunks are answered with BUSY.
    pub backlog_max: usize,
    /// After so many bytes of batches a checkpoint is asked for; 0 for never.
    pub checkpoint_bytes: u64,
    /// Of how many replicas one at a time takes a checkpoint; all do at once if it is one.
    pub checkpoint_turns: u16,
    /// Which batches are executed before it is known what aborts.
    pub execution: Execution,
    /// What becomes of what was executed before that was known, on what was undone.
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

/// Where a sequencer's neighbours are.
#[derive(Clone, Debug)]
pub struct Neighbours {
    /// This very role; on the other nodes it has the same number.
    pub me: Address,
    /// The input log.
    pub log: Address,
    /// Who says what is executed here: the shards, or the exchange for them.
    pub executors: Vec<Address>,
    /// The exchange, if there are other partitions.
    pub exchange: Option<Address>,
    /// The role number of the first gateway on every node.
    pub gateways: u16,
    /// The shards of this replica.
    pub readers: Readers,
}

impl Neighbours {
    /// Where outcomes for a gateway go, if anybody waits for them.
    pub fn gateway(&self, gateway: GatewayId) -> Option<Address> {
        door(self.gateways, gateway)
    }
}

/// Where a gateway is, given the role number of the first on every node.
pub fn door(first: u16, gateway: GatewayId) -> Option<Address> {
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
    waiting: VecDeque<Arc<Chunk>>,
    /// How many of them, in front, are of batches that were lost: of those that follow, what is lost too comes behind.
    returned: usize,
    waiting_txns: usize,
    /// Since when something has been waiting; after a batch was closed, since then.
    waits_since: Option<Micros>,
    stages: Stages,
    /// The epoch sealed last.
    epoch: Epoch,
    /// Its time; the time of a batch is never smaller than that of the one before.
    now: Millis,
    /// The batches that the log has not made durable yet, in order.
    in_log: VecDeque<InLog>,
    /// How long the log has taken lately.
    log_takes: Micros,
    /// The timer for the next batch that may follow those in the log is set.
    pacing: bool,
    /// What each executor has applied; the pipeline's window counts from the smallest.
    applied: BTreeMap<Address, Epoch>,
    /// Batches that were closed and are not applied, by epoch.
    under_way: VecDeque<Epoch>,
    /// The largest epoch that any partition has opened.
    reached: Epoch,
    /// Whose batches count, and which role of it to pass chunks on to. Where there are no members: this one's.
    leader: Leader,
    sessions: Sessions,
    members: Option<Members>,
    snapshots: Snapshots,
    speculation: Speculation,
    /// The timer for telling the floor to other nodes is set.
    flooring: bool,
    /// The timer for reads that take too long is set.
    is_looking: bool,
    /// The timer for reads that are held is set.
    holding: bool,
    /// The disk is full: only reads are sequenced.
    full: bool,
    /// The timer that closes a lingering batch is set.
    lingering: bool,
    /// The log has turned a batch away, and has not said that another leads: it is asked again a little later.
    pausing: bool,
    house: u64,
    /// Slots whose sweep is waiting, so that each is asked for once.
    sweeps: BTreeSet<Position>,
    checkpoints: Checkpoints,
    counts: Counts,
    marker: std::marker::PhantomData<fn() -> X>,
}

/// How long batches take on their way through the sequencer, in microseconds, and how large they are.
#[derive(Debug, Default)]
struct Stages {
    /// From the first of a batch's transactions to when it is closed.
    waiting: Histogram,
    /// From then until it is durable, or agreed on.
    log: Histogram,
    /// From then until everything of it is executed by this node.
    execution: Histogram,
    /// The batches that are being executed, and since when.
    executing: VecDeque<(Epoch, Micros)>,
    /// Transactions of each batch, less one.
    txns: Histogram,
    /// Bytes of each batch, less one.
    bytes: Histogram,
}

/// A batch that the log has and has said nothing of.
#[derive(Debug)]
struct InLog {
    batch: Arc<Batch>,
    since: Micros,
    /// The last request of each session in it, as far as they are first attempts.
    requests: BTreeMap<SessionId, RequestNo>,
    /// Who waits for it to be sealed, to read as of it.
    wanted: Vec<Wanted>,
}

/// Whose batches the members take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leader {
    Me,
    Other(NodeId),
    /// Nobody, or nobody that is known.
    Nobody,
}

/// What a sequencer with members knows of chunks.
#[derive(Debug, Default)]
struct Members {
    sealed: Chunks,
    /// Those that were turned away here. Whoever asked has been told, but may not have heard it.
    away: Chunks,
    /// Those that wait here, or are on their way.
    queued: BTreeSet<(GatewayId, ChunkNo)>,
    /// Those of them that others have had, and may yet put into a batch: nobody can say for sure that they will not.
    travelled: BTreeSet<(GatewayId, ChunkNo)>,
    /// Those that have left for whoever leads and were not seen since, with when they left, oldest first.
    passed_on: VecDeque<(Micros, Arc<Chunk>)>,
    /// What is passed on to whoever leads. What waits there has not left: it is not dropped however long it takes.
    flow: Flow<Arc<Chunk>>,
}

impl Members {
    /// After so long a chunk that was passed on is not passed on again: nobody waits for it any more.
    const PATIENCE: Micros = Micros::from_millis(10_000);

    /// A chunk does not wait here any more.
    fn forget(&mut self, id: (GatewayId, ChunkNo)) {
        self.queued.remove(&id);
        self.travelled.remove(&id);
    }

    /// A chunk was turned away: whoever asked has been told, so nothing of it may come to be here later.
    fn turn_away(&mut self, chunk: &Chunk) {
        self.forget((chunk.gateway, chunk.number));
        self.away.note_chunk(chunk);
    }

    /// Whether a chunk that is submitted again will never be answered by those that execute batches: it was turned away
    /// here, or is too old for anybody to say what has become of it.
    fn is_unanswered(&self, chunk: &Chunk) -> bool {
        self.sealed.is_forgotten(chunk) || self.away.is_known(chunk) && !self.sealed.is_known(chunk)
    }

    /// Members have agreed on a batch.
    fn note(&mut self, batch: &Batch) {
        self.sealed.note(batch);
        let mut agreed = BTreeSet::new();
        for placed in &batch.chunks {
            let id = (placed.chunk.gateway, placed.chunk.number);
            self.forget(id);
            agreed.insert(id);
        }
        if !agreed.is_empty() {
            let is_open =
                |(_, chunk): &(Micros, Arc<Chunk>)| !agreed.contains(&(chunk.gateway, chunk.number));
            self.passed_on.retain(is_open);
        }
    }
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
/// How soon a batch may follow another that is still in the log.
const PACE_MIN: Micros = Micros::from_millis(1);
/// Shards of other nodes are told this often at most which states are still wanted.
const FLOOR: TimerId = TimerId(5);
const FLOOR_EVERY: Micros = Micros::from_millis(2);
/// When reads are looked for that nobody has answered, and whether there were any.
const LATE: TimerId = TimerId(6);
/// So long reads wait for shards that have not said that they keep what is needed.
const HOLD: TimerId = TimerId(7);
const HOLD_FOR: Micros = Micros::from_millis(20);

impl<X> Sequencer<X> {
    /// A sequencer that has sealed nothing yet. With members it leads once it is told to.
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
            flooring: false,
            is_looking: false,
            holding: false,
            settings,
            registry,
            neighbours,
            waiting: VecDeque::new(),
            returned: 0,
            waiting_txns: 0,
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
        if self.waiting_txns + chunk.txns().len() > self.settings.backlog_max {
            self.counts.busy += chunk.txns().len() as u64;
            self.answer_all(&chunk, OutcomeStatus::Busy, |_| true, out);
            self.members.iter_mut().for_each(|members| members.turn_away(&chunk));
            return;
        }
        self.waiting_txns += chunk.txns().len();
        self.waiting.push_back(chunk);
    }

    /// Answers the transactions of a chunk that `which` names without executing them. The status says it all: the
    /// words for it are the session's.
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

    /// Whether the log takes batches of this sequencer, and has room.
    fn has_turn(&self) -> bool {
        self.in_log.len() < self.settings.in_log_max && self.leader == Leader::Me && !self.pausing
    }

    /// Whether there is something to close and the pipeline can take it.
    fn may_close(&self) -> bool {
        !self.waiting.is_empty() && self.has_turn() && self.has_room()
    }

    /// Whether execution is not too far behind what the log has let go.
    fn has_room(&self) -> bool {
        let is_let_go = |epoch: &&Epoch| self.in_log.front().is_none_or(|first| **epoch < first.batch.epoch);
        let lag_max = if self.checkpoints.stands_still { LAG_STANDING } else { self.settings.lag_max };
        (self.under_way.iter().take_while(is_let_go).count() as u64) < lag_max
    }

    /// How long it is too soon to let a batch follow the last one into the log.
    fn too_soon(&self, now: Now) -> Micros {
        let Some(last) = self.in_log.back() else { return Micros(0) };
        let pace = Micros(self.log_takes.0 / self.settings.in_log_max as u64).max(PACE_MIN);
        pace.since(now.elapsed.since(last.since))
    }

    /// Closes the open batch if the pipeline can take it. An epoch that others have opened is sealed even if there is
    /// nothing to put in it, or nothing may.
    fn try_close(&mut self, now: Now, out: &mut Outbox<Message<X>>) {
        let is_awaited = self.reached > self.epoch;
        let may_close = self.may_close();
        let is_wanted = !self.snapshots.wanted.is_empty();
        let must_seal = (is_awaited || is_wanted) && self.has_turn();
        if !may_close && !must_seal {
            return;
        }
        let too_soon = self.too_soon(now);
        if too_soon > Micros(0) {
            if !self.pacing {
                self.pacing = true;
                out.set_timer(PACE, too_soon);
            }
            return;
        }
        if !may_close {
            let empty = self.open(now);
            self.announce(empty.epoch, out);
            return self.append(now, empty, BTreeMap::new(), out);
        }
        let enough = is_awaited || is_wanted || self.waiting_txns >= self.settings.batch_cap as usize;
        if self.settings.linger.0 > 0 && !enough {
            if !self.lingering {
                self.lingering = true;
                out.set_timer(LINGER, self.settings.linger);
            }
            return;
        }
        self.close(now, out);
    }

    /// The next batch, with nothing in it.
    fn open(&mut self, now: Now) -> Batch {
        self.now = self.now.max(now.wall.to_millis());
        Batch {
            epoch: self.epoch.next().max(self.reached),
            partition: self.settings.partition,
            layout: self.settings.layout,
            choice: None,
            now: self.now,
            total: 0,
            chunks: Vec::new(),
            lookups: Vec::new(),
        }
    }

    /// Tells the other partitions of an epoch that this one is the first to open.
    fn announce(&self, epoch: Epoch, out: &mut Outbox<Message<X>>) {
        if let Some(exchange) = self.neighbours.exchange.filter(|_| epoch > self.reached) {
            out.send(exchange, Post::Opened(epoch));
        }
    }

    fn close(&mut self, now: Now, out: &mut Outbox<Message<X>>) {
        let mut batch = self.open(now);
        self.announce(batch.epoch, out);
        let mut requests = BTreeMap::new();
        let mut bytes = 0;
        while let Some(chunk) = self.waiting.front() {
            let end = batch.total + chunk.span();
            bytes += chunk.bytes();
            let is_full = end > self.settings.batch_cap || bytes > self.settings.batch_bytes;
            if end > Gsn::MAX_BATCH || (batch.total > 0 && is_full) {
                break;
            }
            let Some(chunk) = self.waiting.pop_front() else { break };
            self.returned = self.returned.saturating_sub(1);
            self.waiting_txns -= chunk.txns().len();
            let mut skipped = Vec::new();
            let is_known = self.members.as_ref().is_some_and(|members| members.sealed.is_known(&chunk));
            if self.full && self.turn_away(&chunk, out) {
                continue;
            }
            for txn in chunk.txns() {
                if let Some(lookup) = self.lookup(&chunk, txn, !is_known, &mut requests) {
                    batch.lookups.push(lookup);
                    skipped.push(txn.index);
                } else if txn.logged && (self.full || is_known) {
                    skipped.push(txn.index);
                }
            }
            if self.full && !is_known {
                self.refuse_writes(&chunk, &batch.lookups, out);
            }
            batch.chunks.push(Placed { base: batch.total, chunk, skipped });
            batch.total = end;
        }
        batch.choice = self.speculation.choose(now.elapsed, &batch, &self.neighbours.readers.layout);
        self.sweeps.clear();
        self.counts.batches += 1;
        self.counts.txns += u64::from(batch.total);
        self.counts.duplicates += batch.lookups.len() as u64;
        self.under_way.push_back(batch.epoch);
        if batch.total > 0 {
            let since = self.waits_since.take().unwrap_or(now.elapsed);
            self.stages.waiting.record_time(now.elapsed.since(since));
            self.stages.txns.record_size(u64::from(batch.total));
            let bytes = batch.chunks.iter().map(|placed| placed.chunk.bytes() as u64).sum();
            self.stages.bytes.record_size(bytes);
        }
        self.append(now, batch, requests, out);
    }

    fn append(
        &mut self,
        now: Now,
        batch: Batch,
        requests: BTreeMap<SessionId, RequestNo>,
        out: &mut Outbox<Message<X>>,
    ) {
        let batch = Arc::new(batch);
        self.epoch = batch.epoch;
        let wanted = std::mem::take(&mut self.snapshots.wanted);
        self.in_log.push_back(InLog { batch: batch.clone(), since: now.elapsed, requests, wanted });
        out.send(self.neighbours.log, Log::Append(batch));
    }

    /// A batch in the log is durable: from now on its requests are known.
    fn logged(&mut self, now: Now, epoch: Epoch, out: &mut Outbox<Message<X>>) {
        if let Some(InLog { batch, since, wanted, .. }) = self.leaves_log(epoch) {
            let took = now.elapsed.since(since);
            self.log_takes = Micros((self.log_takes.0 + took.0) / 2);
            if batch.total > 0 {
                self.stages.log.record_time(took);
                self.stages.executing.push_back((epoch, now.elapsed));
            }
            self.sessions.note(&batch);
            if self.members.is_none() {
                self.note_durable(&batch);
            }
            wanted.into_iter().for_each(|wanted| self.grant(now, wanted, epoch, out));
        }
    }

    fn leaves_log(&mut self, epoch: Epoch) -> Option<InLog> {
        let at = self.in_log.iter().position(|entry| entry.batch.epoch == epoch)?;
        self.in_log.remove(at)
    }

    /// A batch did not come to be: whoever was to read as of it waits for another.
    fn want_again(&mut self, epoch: Epoch) {
        let wanted = self.leaves_log(epoch).map(|entry| entry.wanted);
        self.snapshots.wanted.extend(wanted.into_iter().flatten());
    }

    /// Reads that are run on a snapshot.
    fn read(&mut self, now: Now, chunk: Arc<Chunk>, snapshot: Snapshot, out: &mut Outbox<Message<X>>) {
        if self.snapshots.hold(&chunk, &snapshot, out) {
            if !self.holding {
                self.holding = true;
                out.set_timer(HOLD, HOLD_FOR);
            }
            return;
        }
        let kept = self.snapshots.kept();
        let at = match snapshot {
            Snapshot::Closed => self.epoch.max(kept),
            Snapshot::Published(since) => Epoch::from(&since).max(self.snapshots.earliest()),
            Snapshot::At(token) => Epoch::from(&token),
            Snapshot::Latest(since) if self.snapshots.is_alone(self.members.is_some()) => {
                Epoch::from(&since).max(self.epoch).max(kept)
            }
            Snapshot::Latest(since) => {
                self.snapshots.wanted.push(Wanted::Here(chunk, Epoch::from(&since)));
                return self.ask_leader(out);
            }
        };
        self.run_reads(now, &chunk, at, out);
    }

    fn run_reads(&mut self, now: Now, chunk: &Arc<Chunk>, at: Epoch, out: &mut Outbox<Message<X>>) {
        // What is written later is not of an earlier time.
        self.now = self.now.max(now.wall.to_millis());
        self.snapshots.run((at, self.now), now.elapsed, chunk, out);
        self.look_for_late(out);
    }

    /// Some shards keep what reads may need: those that were held for that are run.
    fn run_held(&mut self, now: Now, held: Vec<(Arc<Chunk>, Snapshot)>, out: &mut Outbox<Message<X>>) {
        for (chunk, snapshot) in held {
            self.read(now, chunk, snapshot, out);
        }
    }

    fn look_for_late(&mut self, out: &mut Outbox<Message<X>>) {
        if (self.snapshots.is_open() || self.snapshots.is_keeping()) && !self.is_looking {
            self.is_looking = true;
            out.set_timer(LATE, self.settings.silence);
        }
    }

    /// An epoch is sealed that was not when this was wanted.
    fn grant(&mut self, now: Now, wanted: Wanted, epoch: Epoch, out: &mut Outbox<Message<X>>) {
        match wanted {
            Wanted::Here(chunk, since) => {
                self.read(now, chunk, Snapshot::Published(epoch.max(since).into()), out)
            }
            Wanted::Member(node, (gateway, number)) => {
                out.send(Address { node, ..self.neighbours.me }, Reading::Stamp(gateway, number, epoch));
            }
        }
    }

    /// Where another leads it is for that one to say what the latest state is.
    fn ask_leader(&mut self, out: &mut Outbox<Message<X>>) {
        let Leader::Other(node) = self.leader else { return };
        let is_here = |wanted: &mut Wanted| matches!(wanted, Wanted::Here(..));
        let here: Vec<Wanted> = self.snapshots.wanted.extract_if(.., is_here).collect();
        for wanted in here {
            let Wanted::Here(chunk, since) = wanted else { continue };
            let (gateway, number) = (chunk.gateway, chunk.number);
            self.snapshots.asked.insert((gateway, number), (chunk, since));
            out.send(Address { node, ..self.neighbours.me }, Reading::Ask(gateway, number));
        }
    }

    /// Whoever was asked may not have heard of it, or does not lead any more.
    fn ask_leader_again(&mut self, out: &mut Outbox<Message<X>>) {
        let asked = std::mem::take(&mut self.snapshots.asked).into_values();
        self.snapshots.wanted.extend(asked.map(|(chunk, since)| Wanted::Here(chunk, since)));
        self.ask_leader(out);
    }

    fn take_reading(&mut self, now: Now, from: Address, reading: Reading, out: &mut Outbox<Message<X>>) {
        match reading {
            // One that does not lead, or does not know it yet, answers when it does: another may have by then.
            Reading::Ask(gateway, number) => {
                self.snapshots.wanted.push(Wanted::Member(from.node, (gateway, number)));
            }
            Reading::Stamp(gateway, number, epoch) => {
                if let Some((chunk, since)) = self.snapshots.asked.remove(&(gateway, number)) {
                    self.read(now, chunk, Snapshot::Published(epoch.max(since).into()), out);
                }
            }
            Reading::Kept(epoch) => {
                let held = self.snapshots.note_kept(from, epoch);
                self.run_held(now, held, out);
            }
            Reading::Run { .. }
            | Reading::Parts(_)
            | Reading::Floor { .. }
            | Reading::Keep(_)
            | Reading::Forget(_) => {
                out.halt("the sequencer was sent reads that are for a shard");
            }
        }
    }

    /// Tells shards which states are still wanted.
    fn tell_floor(&mut self, far: bool, out: &mut Outbox<Message<X>>) {
        if self.settings.snapshots && self.snapshots.tell_floor(far, out) && !self.flooring {
            self.flooring = true;
            out.set_timer(FLOOR, FLOOR_EVERY);
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

    /// Another leads now, or this one does.
    fn led_by(&mut self, now: Now, leader: Leader, last: Epoch, out: &mut Outbox<Message<X>>) {
        let is_new = std::mem::replace(&mut self.leader, leader) != leader;
        self.epoch = self.epoch.max(last);
        if is_new && leader != Leader::Nobody {
            self.pass_on_again(now, out);
            self.ask_leader_again(out);
        }
        if let Leader::Other(node) = leader {
            self.waiting_txns = 0;
            self.returned = 0;
            for chunk in std::mem::take(&mut self.waiting) {
                self.pass_on(now, node, chunk, out);
            }
            if self.reached > self.epoch {
                out.send(Address { node, ..self.neighbours.me }, Sequencing::Reached(self.reached));
            }
        }
    }

    /// Whoever led may not have come to what was passed on to it: it goes on its way again, before what did not leave yet.
    fn pass_on_again(&mut self, now: Now, out: &mut Outbox<Message<X>>) {
        let Some(members) = &mut self.members else { return };
        let passed_on = std::mem::take(&mut members.passed_on).into_iter();
        let recent = passed_on.filter(|(at, _)| now.elapsed.since(*at) < Members::PATIENCE);
        let again: Vec<_> = recent.map(|(_, chunk)| chunk).chain(members.flow.give_up(true)).collect();
        self.pass_on_all(now, again, out);
    }

    fn pass_on_all(
        &mut self,
        now: Now,
        chunks: impl IntoIterator<Item = Arc<Chunk>>,
        out: &mut Outbox<Message<X>>,
    ) {
        for chunk in chunks {
            match self.leader {
                Leader::Other(node) => self.pass_on(now, node, chunk, out),
                Leader::Me | Leader::Nobody => self.submit(now, true, chunk, out),
            }
        }
    }

    /// Another leads: it is for that one to put the chunk in a batch.
    fn pass_on(&mut self, now: Now, node: NodeId, chunk: Arc<Chunk>, out: &mut Outbox<Message<X>>) {
        // The house's own are made again by the leader.
        if chunk.gateway == GatewayId::HOUSE {
            return;
        }
        let id = (chunk.gateway, chunk.number);
        let is_it = |placed: &Placed| (placed.chunk.gateway, placed.chunk.number) == id;
        let is_in_log = self.in_log.iter().any(|entry| entry.batch.chunks.iter().any(is_it));
        let Some(members) = &mut self.members else { return };
        if is_in_log {
            // It is on its way still: should that batch be lost, it waits here again, and not twice.
            members.travelled.insert(id);
        } else {
            members.forget(id);
        }
        let Some(chunk) = members.flow.admit(chunk) else { return };
        let is_late = |(at, _): &(Micros, _)| now.elapsed.since(*at) >= Members::PATIENCE;
        while members.passed_on.pop_front_if(|passed| is_late(passed)).is_some() {}
        members.passed_on.push_back((now.elapsed, chunk.clone()));
        self.counts.passed_on += chunk.txns().len() as u64;
        let pause = members.flow.note_sent(chunk.bytes(), self.settings.piece);
        let to = Address { node, ..self.neighbours.me };
        out.send(to, Front::Submit(chunk));
        pause.into_iter().for_each(|pause| out.send(to, Front::Pause(pause)));
    }

    /// Whoever leads has what was passed on to it before a pause: there is room for more.
    fn go_on_passing(&mut self, now: Now, pause: PauseNo, out: &mut Outbox<Message<X>>) {
        let waiting = self.members.as_mut().map(|members| members.flow.note_come(pause));
        self.pass_on_all(now, waiting.unwrap_or_default(), out);
    }

    /// A batch did not come to be: its transactions are sequenced again, here or by whoever leads.
    fn lost(&mut self, now: Now, batch: &Batch, out: &mut Outbox<Message<X>>) {
        self.counts.lost += u64::from(batch.total);
        self.want_again(batch.epoch);
        self.under_way.retain(|epoch| *epoch != batch.epoch);
        for placed in &batch.chunks {
            self.waiting_txns += placed.chunk.txns().len();
            self.waiting.insert(self.returned, placed.chunk.clone());
            self.returned += 1;
        }
        self.pausing = true;
        out.set_timer(PAUSE, PAUSE_FOR);
        self.led_by(now, self.leader, self.epoch, out);
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

    /// A request that was sequenced before, here, in a batch that is in the log or earlier in this very one, is looked
    /// up instead. Should the batch in the log be lost, who looks it up is answered when it is sequenced again.
    fn lookup(
        &mut self,
        chunk: &Chunk,
        txn: &Txn,
        may_be_first: bool,
        requests: &mut BTreeMap<SessionId, RequestNo>,
    ) -> Option<Lookup> {
        let (session, request) = txn.call.session?;
        if txn.read_only || self.settings.bugs.has(Bug::ForgetSession) {
            return None;
        }
        let is_in_log = |entry: &InLog| entry.requests.get(&session).is_some_and(|last| *last >= request);
        let mut known = self.sessions.is_known(session, request) || self.in_log.iter().any(is_in_log);
        // While writes are refused, an earlier one of this batch is no first attempt either; nor is one that was turned
        // away before.
        if !known && !self.full && may_be_first {
            known = requests.get(&session).is_some_and(|latest| *latest >= request);
            if !known {
                requests.insert(session, request);
            }
        }
        let Chunk { gateway, number, .. } = *chunk;
        known.then_some(Lookup { session, request, gateway, chunk: number, index: txn.index })
    }

    /// Refuses the writes of a chunk that are not retries of something that was done before.
    fn refuse_writes(&mut self, chunk: &Chunk, lookups: &[Lookup], out: &mut Outbox<Message<X>>) {
        let refused = |txn: &Txn| {
            let asked =
                |l: &Lookup| (l.gateway, l.chunk, l.index) == (chunk.gateway, chunk.number, txn.index);
            txn.logged && !lookups.iter().any(asked)
        };
        self.counts.refused += chunk.txns().iter().filter(|txn| refused(txn)).count() as u64;
        self.answer_all(chunk, OutcomeStatus::Refused, refused, out);
    }

    /// The disk was full: the reads of the batch are sequenced again, its writes are refused.
    fn rejected(&mut self, now: Now, batch: &Batch, out: &mut Outbox<Message<X>>) {
        self.full = true;
        self.want_again(batch.epoch);
        if !batch.is_logged() {
            // Not even a mark fits on the disk, and the epochs that need none are used up. This one can be had
            // again: nobody has seen it.
            self.epoch = Epoch(batch.epoch.0 - 1);
            self.under_way.retain(|epoch| *epoch != batch.epoch);
            batch.chunks.iter().for_each(|placed| {
                self.answer_all(
                    &placed.chunk,
                    OutcomeStatus::Refused,
                    |txn| !placed.is_skipped(txn.index),
                    out,
                );
            });
            batch.lookups.iter().for_each(|lookup| self.refuse_lookup(lookup, out));
            if let Some(members) = &mut self.members {
                batch.chunks.iter().for_each(|placed| members.turn_away(&placed.chunk));
            }
            return;
        }
        // The epoch too can be had again: to use it up would count as a lag that nobody ever makes up for.
        let mut reads = batch.clone();
        // What is not in the log says nothing to anybody but this node.
        reads.choice = None;
        let away = batch.chunks.iter().filter(|placed| self.turn_away(&placed.chunk, out));
        let away: BTreeSet<_> = away.map(|placed| (placed.chunk.gateway, placed.chunk.number)).collect();
        reads.chunks.retain(|placed| !away.contains(&(placed.chunk.gateway, placed.chunk.number)));
        reads.lookups.retain(|lookup| !away.contains(&(lookup.gateway, lookup.chunk)));
        for placed in &mut reads.chunks {
            let chunk = placed.chunk.clone();
            let already = std::mem::take(&mut placed.skipped);
            let writes = |txn: &Txn| txn.logged && already.binary_search(&txn.index).is_err();
            self.counts.refused += chunk.txns().iter().filter(|t| writes(t)).count() as u64;
            self.answer_all(&chunk, OutcomeStatus::Refused, writes, out);
            placed.skipped = chunk
                .txns()
                .iter()
                .filter(|txn| txn.logged || already.binary_search(&txn.index).is_ok())
                .map(|txn| txn.index)
                .collect();
        }
        let (known, lost): (Vec<_>, Vec<_>) =
            reads.lookups.iter().partition(|l| self.sessions.is_known(l.session, l.request));
        reads.lookups = known;
        for lookup in lost {
            self.refuse_lookup(&lookup, out);
        }
        self.append(now, reads, BTreeMap::new(), out);
    }

    /// Where others might still take a chunk, one that writes is turned away as a whole if its writes cannot be taken: no
    /// part of it may go on its way again. Says whether it was.
    fn turn_away(&mut self, chunk: &Chunk, out: &mut Outbox<Message<X>>) -> bool {
        let is_known = |members: &Members| members.sealed.is_known(chunk);
        if self.members.as_ref().is_none_or(is_known) || !chunk.txns().iter().any(|txn| txn.logged) {
            return false;
        }
        self.counts.refused += chunk.txns().len() as u64;
        self.answer_all(chunk, OutcomeStatus::Refused, |_| true, out);
        self.members.iter_mut().for_each(|members| members.turn_away(chunk));
        true
    }

    /// Answers a retry whose first attempt cannot be looked up now, or was refused as well.
    fn refuse_lookup(&self, lookup: &Lookup, out: &mut Outbox<Message<X>>) {
        let Some(gateway) = self.neighbours.gateway(lookup.gateway) else { return };
        let mut outcomes = OutcomeBatch::new(lookup.gateway);
        outcomes.push(lookup.chunk, lookup.index, Gsn::NONE, OutcomeStatus::Refused, |_| {});
        out.send(gateway, Front::Outcomes(outcomes));
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

    /// Submits the move of slots between a partition's lanes.
    fn balance(&mut self, partition: PartitionId, lanes: &[(usize, Option<Lane>)]) {
        if self.leads() {
            self.submit_for_house(system::BALANCE, |args| system::balance_args(partition, lanes, args));
        }
    }

    /// Whether what the partition itself has to do is submitted here, and can be.
    fn leads(&self) -> bool {
        !self.full && self.leader == Leader::Me
    }

    /// Submits what nobody waits for.
    fn submit_for_house(&mut self, procedure: ProcedureId, write: impl FnOnce(&mut ArgsBuilder<'_>)) {
        self.house += 1;
        let mut chunk = Chunk::new(GatewayId::HOUSE, ChunkNo(self.house));
        if chunk.push(&self.registry, Call::new(procedure, Db(0)), write).is_ok() {
            self.waiting_txns += 1;
            self.waiting.push_back(Arc::new(chunk));
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
                Message::Peer(PeerChange { node, state: PeerState::Fresh }) => {
                    if self.settings.snapshots {
                        self.snapshots.tell_keeping(Some(node), out);
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
                Message::Sequencing(Sequencing::Uneven(partition, lanes)) => self.balance(partition, &lanes),
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
            Event::Timer(FLOOR) => {
                self.flooring = false;
                self.tell_floor(true, out);
            }
            Event::Timer(LATE) => {
                self.is_looking = false;
                self.snapshots.rest(out);
                for chunk in self.snapshots.give_up(now.elapsed) {
                    self.answer_all(&chunk, OutcomeStatus::Busy, |_| true, out);
                }
                self.look_for_late(out);
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
        self.tell_floor(false, out);
        self.waits_since = (!self.waiting.is_empty()).then(|| self.waits_since.unwrap_or(now.elapsed));
    }

    fn name(&self) -> &'static str {
        "sequencer"
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        report("ordain_sequencer_epoch", self.epoch.0 as f64);
        report("ordain_sequencer_batches_total", self.counts.batches as f64);
        report("ordain_sequencer_transactions_total", self.counts.txns as f64);
        report("ordain_sequencer_busy_total", self.counts.busy as f64);
        report("ordain_sequencer_refused_total", self.counts.refused as f64);
        report("ordain_sequencer_duplicates_total", self.counts.duplicates as f64);
        report("ordain_sequencer_waiting", self.waiting_txns as f64);
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
        Message::Post(_) => "post",
        Message::Group(_) => "group",
        Message::Ship(_) => "ship",
        Message::Configuration(_) => "counsel",
        Message::Saving(_) => "saving",
        Message::Peer(_) => "peer",
    }
}
