//! The smallest system that keeps the promises: one role orders requests and logs them, another runs the
//! durable batches through the reference executor. In a cluster the other nodes follow: they log and run copies of the
//! batches. Mistakes can be planted in it.

mod follow;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ordain_checker::{NodeLog, ViolationKind};
use ordain_family::Incoming;
use ordain_gateway::{Gateway, Owed, Route, Router};
use ordain_log::{LogConfig, LogWriter, Progress};
use ordain_model::wire::{Form, Reader};
use ordain_model::{
    Batch, Chunk, ChunkNo, Digest, Epoch, Front, GatewayId, Gsn, Layout, Lookup, Micros, Millis,
    OutcomeBatch, OutcomeStatus, PartitionId, Placed, ReferenceExecutor, Registry, RequestNo, SessionId,
    codec, reference, system,
};
use ordain_role::{
    Address, Bytes, Directory, DiskOp, Event, NodeId, Now, Outbox, PeerChange, PeerState, ReplicaId, Role,
    TimerId, Wire, shared,
};

use crate::system::{FrontDoor, Roles, System};
use crate::verdict::{Ending, Verdict};
use crate::workload::procedures;
use follow::{FOLLOW, Follow};

const ORDER: u16 = 0;
const EXECUTE: u16 = 1;
/// Role number of a node's first front door, and more than the most doors of a node.
const DOORS: u16 = 100;
const MAIN: NodeId = NodeId(0);
/// The gateway of transactions whose outcomes no client waits for.
const NOBODY: GatewayId = GatewayId::HOUSE;

/// A mistake that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A batch is run, and its outcomes sent, before it is durable.
    AckBeforeDurable,
    /// A sync that failed is taken for one that did not.
    IgnoreFailedSync,
    /// The log is written and not synced.
    NoSync,
    /// One transaction in some is not run.
    SkipTransaction,
    /// Two transactions of a batch are run in the wrong order.
    Reorder,
    /// A retried request is sequenced again.
    ForgetSession,
    /// A retry is answered with another outcome than the first attempt.
    AnswerAnew,
    /// After a restart, epochs that held reads alone are used again.
    ReuseEpochs,
    /// The time of a batch is the wall clock's, whatever the batch before had.
    TimeGoesBack,
    /// An aborted transaction keeps its writes.
    KeepAborted,
    /// A role finds its invariant broken.
    BreakInvariant,
    /// A role panics.
    Panic,
    /// A role stops its node.
    Halt,
    /// Outcomes are never sent.
    LoseOutcomes,
    /// The last segment of the log is damaged while the node is down.
    DamageLog,
    /// Requests are refused and run all the same.
    RunRefused,
    /// The state digest that is reported is wrong.
    WrongDigest,
    /// A follower that asks is not sent what it has missed.
    SkipMissed,
    /// A follower logs something else now and then.
    ForkCopy,
    /// A request that was sequenced for one node is sequenced again for another.
    ForgetOtherNodes,
}

impl Mistake {
    /// Each with faults under which it must be found, and as what.
    pub const ALL: [(Mistake, &'static str, &'static [ViolationKind]); 15] = {
        use ViolationKind as V;
        [
            (
                Mistake::AckBeforeDurable,
                "crash",
                &[V::AcknowledgedLost, V::RealTime, V::WrongAnswer, V::WrongPlace],
            ),
            (
                Mistake::IgnoreFailedSync,
                "disk",
                &[V::AcknowledgedLost, V::Recovery, V::WrongAnswer, V::WrongState],
            ),
            (Mistake::NoSync, "none", &[V::AcknowledgedLost, V::Recovery, V::WrongAnswer, V::WrongState]),
            (Mistake::SkipTransaction, "none", &[V::WrongAnswer, V::WrongState, V::AnswersDiffer]),
            (Mistake::Reorder, "none", &[V::WrongAnswer, V::WrongState]),
            (Mistake::ForgetSession, "crash", &[V::EffectTwice]),
            (
                Mistake::AnswerAnew,
                "duplicate",
                &[V::AnswersDiffer, V::WrongAnswer, V::WrongPlace, V::AcknowledgedLost],
            ),
            (Mistake::ReuseEpochs, "crash", &[V::RealTime, V::WrongAnswer, V::WrongPlace]),
            (Mistake::TimeGoesBack, "clock", &[V::LogOrder]),
            (Mistake::KeepAborted, "none", &[V::WrongAnswer, V::WrongState]),
            (Mistake::BreakInvariant, "none", &[V::Invariant]),
            (Mistake::Panic, "none", &[V::Panicked]),
            (Mistake::Halt, "none", &[V::Halted]),
            (Mistake::RunRefused, "none", &[V::Phantom, V::WrongAnswer, V::EffectTwice]),
            (Mistake::WrongDigest, "none", &[V::WrongState]),
        ]
    };

    /// The same for those that take a cluster.
    pub const CLUSTER: [(Mistake, &'static str, &'static [ViolationKind]); 4] = {
        use ViolationKind as V;
        [
            (Mistake::SkipMissed, "crash", &[V::Halted]),
            (Mistake::ForkCopy, "none", &[V::LogOrder]),
            (Mistake::ForgetOtherNodes, "crash", &[V::EffectTwice]),
            (Mistake::AckBeforeDurable, "crash", &[V::AcknowledgedLost, V::LogOrder, V::Halted, V::RealTime]),
        ]
    };
}

#[derive(Clone, Debug)]
pub enum Message {
    Front(Front),
    /// Between the roles of the main node.
    Run(Arc<Batch>),
    /// To a follower: the batch that comes after the one of epoch `before`.
    Copy {
        before: Epoch,
        batch: Arc<Batch>,
    },
    /// From a follower: it wants all batches after this epoch, and those to come.
    Follow {
        after: Epoch,
    },
    Peer(PeerChange),
}

impl From<PeerChange> for Message {
    fn from(change: PeerChange) -> Message {
        Message::Peer(change)
    }
}

codec!(enum Message {
    0 => Front(front),
    1 => Copy { before, batch as LogEntry },
    2 => Follow { after },
}, local Run | Peer);

/// The form of a batch: that of its log entry.
enum LogEntry {}

impl Form<Arc<Batch>> for LogEntry {
    const LEAST: usize = 0;

    fn encode(batch: &Arc<Batch>, out: &mut Vec<u8>) {
        out.extend(batch.encode());
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Arc<Batch>> {
        Batch::decode(bytes.registry()?, bytes.take_rest()).ok().map(Arc::new)
    }
}

impl Wire for Message {}

impl From<Front> for Message {
    fn from(front: Front) -> Message {
        Message::Front(front)
    }
}

impl ordain_family::Message for Message {
    fn incoming(self) -> Incoming<Message> {
        match self {
            Message::Front(front) => Incoming::Front(front),
            other => Incoming::Role(other),
        }
    }
}

/// The digest of each node's state, and the last logged batch in it.
type Digests = Arc<Mutex<BTreeMap<NodeId, (Epoch, Digest)>>>;

/// The system: node 0 orders and answers everything; the front doors of other nodes send their requests to it.
pub struct Toy {
    registry: Arc<Registry>,
    mistake: Option<Mistake>,
    digests: Digests,
    /// The cost of all steps so far, nanoseconds, if they have one.
    costs: Option<Arc<AtomicU64>>,
}

/// The cost of a step, nanoseconds.
pub const STEP_NS: u64 = 700_300;

/// The procedures of the simulator.
pub fn registry() -> Arc<Registry> {
    let mut registry = Registry::default();
    system::register(&mut registry);
    procedures::register(&mut registry);
    Arc::new(registry)
}

impl Toy {
    pub fn new(mistake: Option<Mistake>) -> Toy {
        Toy { registry: registry(), mistake, digests: Arc::default(), costs: None }
    }

    /// The system on nodes of one core, of which every step takes [`STEP_NS`]; their sum is counted.
    pub fn costing(self, costs: Arc<AtomicU64>) -> Toy {
        Toy { costs: Some(costs), ..self }
    }

    fn open(&self, disk: &mut dyn Directory) -> Result<(LogWriter, Vec<Batch>), String> {
        let config = LogConfig { segment_bytes: 4096, ..LogConfig::new("toy") };
        let mut batches = Vec::new();
        let opened = LogWriter::open(disk, config, |entry| {
            let batch = Batch::decode(&self.registry, &entry.payload).map_err(|e| e.to_string())?;
            batches.push(batch);
            Ok(())
        });
        opened.map(|(writer, _)| (writer, batches)).map_err(|e| e.to_string())
    }
}

impl Toy {
    pub fn log(&self, disk: &mut dyn Directory) -> Result<Vec<Batch>, String> {
        self.open(disk).map(|(_, batches)| batches)
    }
}

impl System for Toy {
    type Message = Message;

    fn cost_ns(&self, _: NodeId, _: u16, _: &Event<Message>) -> Option<u64> {
        self.costs.as_ref()?.fetch_add(STEP_NS, Ordering::Relaxed);
        Some(STEP_NS)
    }

    fn registry(&self) -> Arc<Registry> {
        self.registry.clone()
    }

    fn start(
        &mut self,
        node: NodeId,
        incarnation: u32,
        disk: &mut dyn Directory,
    ) -> Result<Roles<Message>, String> {
        if node != MAIN {
            let (log, batches) = self.open(disk)?;
            let follow = Follow::new(node, self, log, &batches);
            return Ok(vec![(FOLLOW, Box::new(follow))]);
        }
        if self.mistake == Some(Mistake::DamageLog) && incarnation > 0 {
            let (file, _) = disk.list().map_err(|e| e.to_string())?.remove(0);
            let data = vec![Bytes::from(vec![0xff; 64])];
            disk.apply(&DiskOp::Write { file, offset: 700, data }).map_err(|e| e.to_string())?;
        }
        let (log, batches) = self.open(disk)?;
        let has = |mistake| self.mistake == Some(mistake);
        let mut order = Order {
            mistake: self.mistake,
            log,
            epoch: Epoch(u64::from(incarnation) << 24),
            now: Millis(0),
            open: Vec::new(),
            sealed: VecDeque::new(),
            seen: BTreeSet::new(),
            asked: 0,
            logged: Vec::new(),
            followers: BTreeSet::new(),
        };
        let mut execute = Execute {
            mistake: self.mistake,
            registry: self.registry.clone(),
            reference: ReferenceExecutor::new(self.registry.clone()),
            outcomes: BTreeMap::new(),
            run: 0,
            digests: self.digests.clone(),
            last: Epoch(0),
        };
        if has(Mistake::ReuseEpochs) {
            order.epoch = Epoch(0);
        }
        for batch in batches {
            order.epoch = order.epoch.max(batch.epoch);
            order.now = batch.now;
            let sessions = batch.txns().filter_map(|(_, _, txn)| txn.call.session);
            order.seen.extend(sessions.map(|session| (NodeId(0), session)));
            execute.run(&batch, &mut Outbox::default());
            order.logged.push(Arc::new(batch));
        }
        Ok(vec![(ORDER, Box::new(order)), (EXECUTE, Box::new(execute))])
    }

    fn door(&self, node: NodeId, incarnation: u32, n: u16) -> FrontDoor {
        let (id, layout) = (GatewayId::of(node.0, n), Arc::new(Layout::single(1)));
        let first = ChunkNo(u64::from(incarnation) << 32);
        let gateway = Gateway::new(id, self.registry.clone(), layout, (0, PartitionId(0)), first);
        let router = Box::new(ToMain { has_met: node == MAIN });
        FrontDoor { address: Address { node, role: DOORS + n }, gateway, router }
    }

    fn peer_watchers(&self, node: NodeId) -> Vec<u16> {
        vec![if node == MAIN { ORDER } else { FOLLOW }]
    }

    fn check(&mut self, mut ending: Ending<'_>) -> Verdict {
        let mut logs = Vec::new();
        for (node, disk) in &mut ending.disks {
            match self.log(&mut **disk) {
                Ok(batches) => logs.push(NodeLog { node: *node, partition: PartitionId(0), batches }),
                Err(reason) => return Verdict::unreadable(*node, &reason),
            }
        }
        ending.by_replay(&logs, None, &BTreeSet::new())
    }

    /// A follower without the last batch has another state, and rightly.
    fn digest(&mut self, node: NodeId) -> Option<Digest> {
        let digests = self.digests.lock().ok()?;
        let (last, _) = digests.get(&MAIN)?;
        digests.get(&node).filter(|(epoch, _)| epoch == last).map(|(_, digest)| *digest)
    }
}

/// Everything is asked of the main node, once it has been met.
#[derive(Debug)]
struct ToMain {
    has_met: bool,
}

impl Router for ToMain {
    fn home(&mut self, _: PartitionId, _: &mut dyn Iterator<Item = PartitionId>) -> Option<Route> {
        self.has_met.then_some(Route { to: Address { node: MAIN, role: ORDER }, replica: ReplicaId(0) })
    }

    fn snapshot(&mut self) -> Option<Route> {
        None
    }

    fn words(&self, _: NodeId) -> Option<Address> {
        None
    }

    fn change(&mut self, _: Micros, change: PeerChange) -> Option<Owed> {
        let is_new = change.node == MAIN && change.state == PeerState::Fresh;
        let owes = is_new && std::mem::replace(&mut self.has_met, true);
        let (node, partition) = (MAIN.0, PartitionId(0));
        owes.then_some(Owed { node, replica: 0, partition, is_gone: true, has_members: false })
    }

    fn greeted(&mut self, _: NodeId) -> Option<Owed> {
        None
    }

    fn give_up(&mut self, _: Micros) -> Vec<Owed> {
        Vec::new()
    }

    fn lacks_any(&self) -> bool {
        false
    }

    fn is_complete(&self) -> bool {
        self.has_met
    }

    fn others(&self) -> Vec<NodeId> {
        Vec::new()
    }

    fn partition_of(&self, _: NodeId) -> PartitionId {
        PartitionId(0)
    }
}

/// Where outcomes for a gateway go.
fn door_of(gateway: GatewayId) -> Address {
    Address { node: NodeId(gateway.node()), role: DOORS + gateway.number() }
}

/// A sealed batch and whether it is logged.
struct Sealed {
    batch: Arc<Batch>,
    logged: bool,
}

struct Order {
    mistake: Option<Mistake>,
    log: LogWriter,
    epoch: Epoch,
    now: Millis,
    open: Vec<Arc<Chunk>>,
    /// Not durable yet, or behind one that is not.
    sealed: VecDeque<Sealed>,
    /// Requests of sessions that were sequenced; for the mistake that minds, with the node that asked.
    seen: BTreeSet<(NodeId, (SessionId, RequestNo))>,
    asked: u64,
    /// What is logged and durable.
    logged: Vec<Arc<Batch>>,
    /// Who has all of that, or has it on its way.
    followers: BTreeSet<NodeId>,
}

const RETRY: TimerId = TimerId(1);

impl Order {
    fn has(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn seal(&mut self, now: Now, out: &mut Outbox<Message>) {
        let wall = now.wall.to_millis();
        self.now = if self.has(Mistake::TimeGoesBack) { wall } else { wall.max(self.now) };
        self.epoch = self.epoch.next();
        let mut batch = Batch { epoch: self.epoch, layout: 1, now: self.now, ..Batch::default() };
        for chunk in std::mem::take(&mut self.open) {
            let mut skipped = Vec::new();
            for txn in chunk.txns().iter().filter(|txn| !txn.read_only) {
                let Some((session, request)) = txn.call.session else { continue };
                let node = if self.has(Mistake::ForgetOtherNodes) { chunk.gateway.node() } else { 0 };
                let is_new = self.seen.insert((NodeId(node), (session, request)));
                if !is_new && !self.has(Mistake::ForgetSession) {
                    skipped.push(txn.index);
                    let (gateway, chunk, index) = (chunk.gateway, chunk.number, txn.index);
                    batch.lookups.push(Lookup { session, request, gateway, chunk, index });
                }
            }
            let base = batch.total;
            batch.total += chunk.span();
            batch.chunks.push(Placed { base, chunk, skipped });
        }
        let logged = batch.is_logged();
        if logged {
            let mut parts = vec![Bytes::from(batch.encode_head())];
            parts.extend(batch.logged().map(|placed| shared(placed.chunk.clone())));
            if let Err(error) = self.log.append(batch.epoch, 0, parts) {
                return out.halt(error.to_string());
            }
        }
        self.sealed.push_back(Sealed { batch: Arc::new(batch), logged });
        self.dispatch(out);
    }

    fn dispatch(&mut self, out: &mut Outbox<Message>) {
        let early = self.has(Mistake::AckBeforeDurable);
        while let Some(first) = self.sealed.front() {
            if first.logged && first.batch.epoch > self.log.durable() && !early {
                break;
            }
            let address = Address { node: MAIN, role: EXECUTE };
            out.send(address, Message::Run(first.batch.clone()));
            if first.logged {
                let before = self.logged.last().map_or(Epoch(0), |batch| batch.epoch);
                for node in &self.followers {
                    out.send(follow::of(*node), Message::Copy { before, batch: first.batch.clone() });
                }
                self.logged.push(first.batch.clone());
            }
            self.sealed.pop_front();
        }
        while let Some(mut request) = self.log.next_request() {
            if self.has(Mistake::NoSync) {
                request.ops.retain(|op| !matches!(op, DiskOp::Sync { .. }));
            }
            out.disk(request);
        }
    }
}

impl Role for Order {
    type Message = Message;

    fn name(&self) -> &'static str {
        "order"
    }

    fn handle(&mut self, now: Now, event: Event<Message>, out: &mut Outbox<Message>) {
        match event {
            Event::Start => self.dispatch(out),
            Event::Message { message: Message::Front(Front::Submit(chunk)), .. } => {
                self.asked += 1;
                if self.asked == 40 && self.has(Mistake::Panic) {
                    std::panic::resume_unwind(Box::new("planted"));
                }
                if self.asked == 40 && self.has(Mistake::Halt) {
                    out.halt("planted");
                }
                let run_refused = self.asked == 40 && self.has(Mistake::RunRefused);
                if self.log.is_full() || run_refused {
                    let mut refused = OutcomeBatch::new(chunk.gateway);
                    for txn in chunk.txns() {
                        refused.push(chunk.number, txn.index, Gsn::NONE, OutcomeStatus::Refused, |_| ());
                    }
                    out.send(door_of(chunk.gateway), Front::Outcomes(refused));
                } else {
                    self.open.push(chunk.clone());
                }
                if run_refused {
                    // No client uses this gateway, so the outcomes are not sent twice.
                    let mut orphan = (*chunk).clone();
                    orphan.gateway = NOBODY;
                    self.open.push(Arc::new(orphan));
                }
                if self.log.is_idle() {
                    self.seal(now, out);
                }
            }
            Event::Message { message: Message::Peer(change), .. } => {
                if change.state == PeerState::Fresh {
                    self.followers.remove(&change.node);
                }
            }
            Event::Message { from, message: Message::Follow { after } } => {
                let mut before = after;
                let skips = self.has(Mistake::SkipMissed);
                for batch in self.logged.iter().filter(|batch| batch.epoch > after && !skips) {
                    out.send(from, Message::Copy { before, batch: batch.clone() });
                    before = batch.epoch;
                }
                self.followers.insert(from.node);
            }
            Event::Message { .. } => out.halt("not for me"),
            Event::Disk(mut done) => {
                if self.has(Mistake::IgnoreFailedSync) {
                    done.result = Ok(());
                }
                match self.log.done(&done) {
                    Some(Progress::Full { .. }) => out.set_timer(RETRY, Micros::from_millis(3)),
                    Some(Progress::Failed { reason }) => out.halt(reason),
                    Some(Progress::Durable(_)) | None => {}
                }
                if self.log.is_idle() && !self.open.is_empty() {
                    self.seal(now, out);
                }
                self.dispatch(out);
            }
            Event::Timer(_) => {
                self.log.retry();
                self.dispatch(out);
            }
            Event::Work(_) | Event::Stop => {}
        }
    }

    fn check(&self) -> Result<(), String> {
        match self.mistake {
            Some(Mistake::BreakInvariant) if self.asked > 40 => Err("planted".to_owned()),
            _ => Ok(()),
        }
    }
}

struct Execute {
    mistake: Option<Mistake>,
    registry: Arc<Registry>,
    reference: ReferenceExecutor,
    outcomes: BTreeMap<(SessionId, RequestNo), reference::Result>,
    run: u64,
    digests: Digests,
    /// The last logged batch that was run.
    last: Epoch,
}

impl Execute {
    fn run(&mut self, batch: &Batch, out: &mut Outbox<Message>) {
        let has = |mistake| self.mistake == Some(mistake);
        let mut answers: BTreeMap<GatewayId, OutcomeBatch> = BTreeMap::new();
        let answer = |gateway| OutcomeBatch::new(gateway);
        let mut txns: Vec<_> = batch.txns().collect();
        if has(Mistake::Reorder) && txns.len() > 1 {
            txns.reverse();
        }
        for (gsn, chunk, txn) in txns {
            self.run += 1;
            let mut result = if has(Mistake::SkipTransaction) && self.run.is_multiple_of(50) {
                let reply = vec![0];
                reference::Result { gsn, status: OutcomeStatus::Committed, reply }
            } else {
                self.reference.run_txn(gsn, batch.now, chunk, txn)
            };
            if has(Mistake::KeepAborted) && result.status != OutcomeStatus::Committed {
                let mut write = Chunk::new(GatewayId(0), ChunkNo(0));
                let call = ordain_model::Call::new(
                    crate::workload::procedures::INCREMENT,
                    crate::workload::procedures::COUNTERS,
                );
                if write.push(&self.registry, call, |args| _ = args.push(b"n0")).is_ok() {
                    self.reference.run_txn(gsn, batch.now, &write, &write.txns()[0]);
                }
            }
            if let (Some(session), false) = (txn.call.session, txn.read_only) {
                self.outcomes.entry(session).or_insert_with(|| result.clone());
            }
            let reference::Result { gsn, status, reply } = &mut result;
            let to = answers.entry(chunk.gateway).or_insert_with(|| answer(chunk.gateway));
            to.push(chunk.number, txn.index, *gsn, *status, |out| out.extend_from_slice(reply));
        }
        for lookup in &batch.lookups {
            let Some(found) = self.outcomes.get(&(lookup.session, lookup.request)) else {
                out.halt("a retry before its first attempt");
                continue;
            };
            let gsn = if has(Mistake::AnswerAnew) { batch_start(batch) } else { found.gsn };
            let to = answers.entry(lookup.gateway).or_insert_with(|| answer(lookup.gateway));
            let reply = |out: &mut Vec<u8>| out.extend_from_slice(&found.reply);
            to.push(lookup.chunk, lookup.index, gsn, found.status, reply);
        }
        for (gateway, outcomes) in answers {
            if gateway != NOBODY && !has(Mistake::LoseOutcomes) {
                out.send(door_of(gateway), Front::Outcomes(outcomes));
            }
        }
        let mut digest = self.reference.digest();
        if has(Mistake::WrongDigest) {
            digest.add(1);
        }
        if batch.is_logged() {
            self.last = batch.epoch;
        }
        if let Ok(mut digests) = self.digests.lock() {
            digests.insert(MAIN, (self.last, digest));
        }
    }
}

fn batch_start(batch: &Batch) -> Gsn {
    Gsn::new(batch.epoch, batch.partition, 0)
}

impl Role for Execute {
    type Message = Message;

    fn name(&self) -> &'static str {
        "execute"
    }

    fn handle(&mut self, _now: Now, event: Event<Message>, out: &mut Outbox<Message>) {
        match event {
            Event::Start | Event::Stop => {}
            Event::Message { message: Message::Run(batch), .. } => self.run(&batch, out),
            _ => out.halt("not for me"),
        }
    }
}
