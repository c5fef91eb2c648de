//! The smallest system that keeps the promises: one role orders requests and logs them, another runs the
//! durable batches through the reference executor. Mistakes can be planted in it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use ordain_log::{LogConfig, LogWriter, Progress};
use ordain_model::{
    Batch, Chunk, Digest, Epoch, Front, GatewayId, Gsn, Lookup, Millis, OutcomeBatch, OutcomeStatus,
    PartitionId, Placed, ReferenceExecutor, Registry, RequestNo, SessionId,
};
use ordain_model::{Micros, reference};
use ordain_role::{
    Address, Bytes, Directory, DiskOp, DiskRequest, Event, NodeId, Now, Outbox, Role, TimerId,
};

use crate::ViolationKind;
use crate::check::fixture;
use crate::system::{FrontDoor, Roles, System};

const ORDER: u16 = 0;
const EXECUTE: u16 = 1;
/// Role number of a node's first front door, and more than the most doors of a node.
const DOORS: u16 = 100;
const MAIN: NodeId = NodeId(0);
/// The gateway of transactions whose outcomes nobody waits for.
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
    /// The state digest that is told is wrong.
    WrongDigest,
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
            (Mistake::SkipTransaction, "none", &[V::WrongAnswer, V::WrongState]),
            (Mistake::Reorder, "none", &[V::WrongAnswer, V::WrongState]),
            (Mistake::ForgetSession, "crash", &[V::EffectTwice]),
            (
                Mistake::AnswerAnew,
                "duplicate",
                &[V::AnswersDiffer, V::WrongAnswer, V::WrongPlace, V::AcknowledgedLost],
            ),
            (Mistake::ReuseEpochs, "crash", &[V::RealTime, V::WrongAnswer]),
            (Mistake::TimeGoesBack, "clock", &[V::LogOrder]),
            (Mistake::KeepAborted, "none", &[V::WrongAnswer, V::WrongState]),
            (Mistake::BreakInvariant, "none", &[V::Invariant]),
            (Mistake::Panic, "none", &[V::Panicked]),
            (Mistake::Halt, "none", &[V::Halted]),
            (Mistake::RunRefused, "none", &[V::Phantom, V::WrongAnswer, V::EffectTwice]),
            (Mistake::WrongDigest, "none", &[V::WrongState]),
        ]
    };
}

#[derive(Clone, Debug)]
pub enum Message {
    Front(Front),
    Run(Arc<Batch>),
}

impl From<Front> for Message {
    fn from(front: Front) -> Message {
        Message::Front(front)
    }
}

impl TryFrom<Message> for Front {
    type Error = ();

    fn try_from(message: Message) -> Result<Front, ()> {
        match message {
            Message::Front(front) => Ok(front),
            Message::Run(_) => Err(()),
        }
    }
}

/// The system: node 0 does everything; the front doors of other nodes send their requests to it.
pub struct Toy {
    registry: Arc<Registry>,
    mistake: Option<Mistake>,
    digest: Arc<Mutex<Option<Digest>>>,
}

impl Toy {
    pub fn new(mistake: Option<Mistake>) -> Toy {
        Toy { registry: fixture::registry(), mistake, digest: Arc::default() }
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

impl System for Toy {
    type Message = Message;

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
            return Ok(Vec::new());
        }
        if self.mistake == Some(Mistake::DamageLog) && incarnation > 0 {
            let (file, _) = disk.list().map_err(|e| e.to_string())?.remove(0);
            let data = vec![Bytes::Owned(vec![0xff; 64])];
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
        };
        let mut execute = Execute {
            mistake: self.mistake,
            registry: self.registry.clone(),
            reference: ReferenceExecutor::new(self.registry.clone()),
            outcomes: BTreeMap::new(),
            run: 0,
            digest: self.digest.clone(),
        };
        if has(Mistake::ReuseEpochs) {
            order.epoch = Epoch(0);
        }
        for batch in batches {
            order.epoch = order.epoch.max(batch.epoch);
            order.now = batch.now;
            order.seen.extend(batch.txns().filter_map(|(_, _, txn)| txn.call.session));
            execute.run(&batch, &mut Outbox::default());
        }
        Ok(vec![(ORDER, Box::new(order)), (EXECUTE, Box::new(execute))])
    }

    fn door(&self, node: NodeId, n: u16) -> FrontDoor {
        FrontDoor {
            id: GatewayId::of(node.0, n),
            address: Address { node, role: DOORS + n },
            engine: Address { node: MAIN, role: ORDER },
        }
    }

    fn log(&mut self, node: NodeId, disk: &mut dyn Directory) -> Result<Vec<Batch>, String> {
        if node != MAIN {
            return Ok(Vec::new());
        }
        self.open(disk).map(|(_, batches)| batches)
    }

    fn digest(&mut self, node: NodeId) -> Option<Digest> {
        let digest = *self.digest.lock().ok()?;
        digest.filter(|_| node == MAIN)
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
    seen: BTreeSet<(SessionId, RequestNo)>,
    asked: u64,
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
        let mut batch = Batch {
            epoch: self.epoch,
            partition: PartitionId(0),
            layout: 1,
            now: self.now,
            total: 0,
            chunks: Vec::new(),
            lookups: Vec::new(),
        };
        for chunk in std::mem::take(&mut self.open) {
            let mut skipped = Vec::new();
            for txn in chunk.txns().iter().filter(|txn| !txn.read_only) {
                let Some((session, request)) = txn.call.session else { continue };
                if !self.seen.insert((session, request)) && !self.has(Mistake::ForgetSession) {
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
            let mut parts = vec![Bytes::Owned(batch.encode_head())];
            parts.extend(batch.logged().map(|placed| Bytes::Shared(placed.chunk.clone())));
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
            self.sealed.pop_front();
        }
        while let Some(DiskRequest { token, mut ops }) = self.log.next_request() {
            if self.has(Mistake::NoSync) {
                ops.retain(|op| !matches!(op, DiskOp::Sync { .. }));
            }
            out.disk(DiskRequest { token, ops });
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
                    // Nobody knows this gateway, so the outcomes are not sent twice.
                    let mut orphan = (*chunk).clone();
                    orphan.gateway = NOBODY;
                    self.open.push(Arc::new(orphan));
                }
                if self.log.is_idle() {
                    self.seal(now, out);
                }
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
            Event::Stop => {}
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
    digest: Arc<Mutex<Option<Digest>>>,
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
                let mut write = Chunk::new(GatewayId(0), ordain_model::ChunkNo(0));
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
        if let Ok(mut told) = self.digest.lock() {
            *told = Some(digest);
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
