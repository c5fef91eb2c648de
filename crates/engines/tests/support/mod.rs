//! A test bench: one node's roles without a driver, where the test decides what happens next.
//!
//! Sequencer, input log, shards and gateways are wired as a node wires them. Every message waits on the link
//! from its sender to its receiver until it is delivered: by name ([`Bench::deliver`]), or by a seeded choice
//! ([`Bench::step`], [`Bench::settle`]). The order on one link is kept, as drivers promise; everything else is
//! up to the test. Disk requests wait in the same way, and timers fire only when [`Bench::advance`] lets time
//! pass.
//!
//! After each event the role's own invariants are checked, and [`Bench::verify`] holds what was answered, and
//! the state, against the reference executor (calvin.md, section 8, oracles 1, 3, 8 and 9).

pub mod cluster;
pub mod procedures;
pub mod saved;
pub mod script;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ordain_deterministic::sequencing::{Batches, Log, Neighbours, Readers, Reading, Sequencer};
use ordain_deterministic::shard::{self, LockManager, Message, Places, Scheduling, Shard, ShardMessage};
use ordain_engines::{calvin, calvin_paper, qstore};
use ordain_gateway::{Gateway, Ticket};
use ordain_log::{LogConfig, LogWriter, MemoryDirectory, carry_out};
use ordain_model::args::Args;
use ordain_model::key::shard_of_slot;
use ordain_model::reference::Result as TxnResult;
use ordain_model::{
    Batch, Call, Cell, Chunk, ChunkNo, Datum, Db, Digest, Epoch, Front, GatewayId, Gsn, Isolation, KeyHash,
    Layout, Limits, Micros, Millis, OutcomeBatch, OutcomeStatus, PlanError, Position, Reads,
    ReferenceExecutor, Registry, RequestNo, SessionId, View, system,
};
use ordain_replication::{InputLog, LogSettings, resume_after};
use ordain_role::{Address, Bugs, DiskRequest, Event, NodeId, Now, Outbox, Role, TimerId, Work};
use ordain_sim::Random;
use ordain_store::{MemoryStore, RecordStore};

/// The sequencer's role number.
pub const SEQUENCER: u16 = 0;
/// The input log's.
pub const LOG: u16 = 1;
/// The lock manager's, if there is one.
pub const LOCK_MANAGER: u16 = 7;
/// The first shard's.
pub const SHARD: u16 = 16;
/// The first gateway's.
pub const GATEWAY: u16 = 128;

/// Holds every record of the shards to the reference executor's: what the digest does not see too, the order of a hash's fields
/// and how its string was written.
///
/// # Panics
/// If one differs.
pub fn verify_records(shards: &[Shard<MemoryStore>], reference: &ReferenceExecutor) {
    let mut held: BTreeMap<(Db, &[u8]), &Cell> = BTreeMap::new();
    for shard in shards {
        shard.store().visit(Position::default(), |entry| {
            held.insert((entry.db, entry.key), entry.cell);
            true
        });
    }
    for (db, key, cell) in reference.records().filter(|(_, _, cell)| cell.value.is_some()) {
        let found = held.remove(&(db, key));
        let is_evicted = |found: &Cell| {
            let evicted = found.evicted().zip(cell.value.as_ref());
            evicted.is_some_and(|(evicted, value)| evicted.is_of(value))
                && found.expires_at == cell.expires_at
        };
        if !found.is_some_and(is_evicted) {
            assert_eq!(found, Some(cell), "{} of {db:?} is not the reference executor's", key.escape_ascii());
        }
    }
    assert_eq!(held.len(), 0, "the reference executor has not {:?}", held.first_key_value());
}

/// How a bench is set up.
#[derive(Clone, Debug)]
pub struct Options {
    pub shards: usize,
    pub gateways: usize,
    pub window: usize,
    /// Whether there is a log; without one nothing survives a crash.
    pub log: bool,
    pub segment_bytes: u64,
    pub sequencer: ordain_deterministic::sequencing::Settings,
    /// How what only reads is run.
    pub reads: Reads,
    /// How transactions get their turns.
    pub scheduling: Scheduling,
    /// What they see of each other.
    pub isolation: Isolation,
    /// How much each may hold of what it reads.
    pub limits: Limits,
    /// [`shard::Settings::fragment_bytes`].
    pub fragment_bytes: usize,
    pub bugs: Bugs,
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            shards: 2,
            gateways: 1,
            window: 2000,
            log: false,
            segment_bytes: 64 << 10,
            sequencer: ordain_deterministic::sequencing::Settings::default(),
            reads: Reads::Ordered,
            scheduling: calvin::SCHEDULING,
            isolation: Isolation::default(),
            limits: Limits::default(),
            fragment_bytes: shard::Settings::new(calvin::SCHEDULING).fragment_bytes,
            bugs: Bugs::NONE,
            seed: 0,
        }
    }
}

/// How a request ended, as its client saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub status: OutcomeStatus,
    pub gsn: Gsn,
    pub reply: Vec<u8>,
}

/// Who waits for an outcome: gateway, chunk, index.
type Place = (GatewayId, ChunkNo, u32);

/// One node's roles, and everything that is under way between them.
pub struct Bench {
    pub options: Options,
    pub registry: Arc<Registry>,
    pub sequencer: Sequencer<ShardMessage>,
    pub log: InputLog<Batches, Message>,
    pub lock_manager: Option<Box<dyn LockManager>>,
    pub shards: Vec<Shard<MemoryStore>>,
    gateways: Vec<Gateway>,
    pub directory: MemoryDirectory,
    links: BTreeMap<(u16, u16), VecDeque<Message>>,
    /// Links that wait for a release.
    held: BTreeSet<(u16, u16)>,
    disk: VecDeque<DiskRequest>,
    /// Computations that shards have given away.
    pub work: VecDeque<(u16, Work)>,
    pub work_held: bool,
    pub disk_held: bool,
    timers: BTreeMap<(u16, TimerId), Micros>,
    pub now: Now,
    pub random: Random,
    /// Why the node has stopped, if it has.
    pub halted: Option<String>,
    /// Batches that the log held at the last start.
    recovered: Vec<Arc<Batch>>,
    /// Batches sealed since.
    pub sealed: Vec<Arc<Batch>>,
    /// Reads on snapshots since the last start: the chunk, its epoch and its time.
    pub reads: BTreeMap<(GatewayId, ChunkNo), (Arc<Chunk>, Epoch, Millis)>,
    /// Outcomes since the last start, by who waits for them.
    outcomes: BTreeMap<Place, Vec<Answer>>,
    /// The answers about writes to any client.
    acknowledged: BTreeMap<Gsn, Answer>,
    answers: BTreeMap<Ticket, Answer>,
    /// Tickets without an answer yet.
    pub waiting: BTreeSet<Ticket>,
    tickets: u64,
}

/// The procedures that the tests use: the database's, the simulator's, the commands and a few of their own.
pub fn registry() -> Arc<Registry> {
    limited(Limits::default())
}

/// The same under limits.
pub fn limited(limits: Limits) -> Arc<Registry> {
    let mut registry = Registry::default();
    system::register(&mut registry);
    ordain_sim::workload::procedures::register(&mut registry);
    ordain_commands::register(&mut registry);
    ordain_workload::register(&mut registry);
    procedures::register(&mut registry);
    Arc::new(registry.limited(limits))
}

/// A key that begins with `name` and lies on a shard.
pub fn key_on(name: &str, shard: usize, shards: usize) -> Vec<u8> {
    (0u32..)
        .map(|i| format!("{name}{i}").into_bytes())
        .find(|key| shard_of_slot(KeyHash::of(key).slot(), shards) == shard)
        .expect("every shard has slots")
}

fn at(role: u16) -> Address {
    Address { node: NodeId(0), role }
}

/// One of a role's gauges.
pub fn gauge(role: &dyn Role<Message = Message>, name: &str) -> f64 {
    let mut found = None;
    role.gauges(&mut |gauge, value| {
        if gauge == name {
            found = Some(value);
        }
    });
    found.unwrap_or_else(|| panic!("{} has no gauge {name}", role.name()))
}

/// The engines that schedule each in a way of its own.
pub const SCHEDULINGS: [Scheduling; 3] = [calvin::SCHEDULING, calvin_paper::SCHEDULING, qstore::SCHEDULING];

/// The gauge of a shard that is 0 when nothing is granted or waits for a grant.
pub fn grants_gauge(scheduling: Scheduling) -> &'static str {
    match scheduling.name {
        "calvin" => "ordain_shard_locked_records",
        "calvin-paper" => "ordain_shard_out_of_order_grants",
        "qstore" => "ordain_shard_queued_fragments",
        other => panic!("{other} has no gauge"),
    }
}

/// Where the neighbours of the sequencer of a node with so many shards are.
fn neighbours(shards: usize) -> Neighbours {
    Neighbours {
        me: at(SEQUENCER),
        log: at(LOG),
        executors: (0..shards as u16).map(|i| at(SHARD + i)).collect(),
        exchange: None,
        gateways: GATEWAY,
        readers: Readers {
            layout: Arc::new(Layout::single(shards.max(1))),
            shards: (0..shards as u16).map(|i| at(SHARD + i)).collect(),
        },
    }
}

impl Bench {
    /// A node that has never run.
    pub fn new(options: Options) -> Bench {
        let registry = limited(options.limits);
        let mut bench = Bench {
            sequencer: Sequencer::new(options.sequencer.clone(), registry.clone(), neighbours(0), false),
            log: InputLog::new(LogSettings::default(), None, at(SEQUENCER), Vec::new()),
            lock_manager: None,
            shards: Vec::new(),
            gateways: Vec::new(),
            directory: MemoryDirectory::new(),
            links: BTreeMap::new(),
            held: BTreeSet::new(),
            disk: VecDeque::new(),
            work: VecDeque::new(),
            work_held: false,
            disk_held: false,
            timers: BTreeMap::new(),
            now: Now { elapsed: Micros(0), wall: Micros::from_millis(1_000_000) },
            random: Random::new(options.seed),
            halted: None,
            recovered: Vec::new(),
            sealed: Vec::new(),
            reads: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            answers: BTreeMap::new(),
            waiting: BTreeSet::new(),
            tickets: 0,
            registry,
            options,
        };
        bench.start();
        bench
    }

    /// Builds the roles from the directory, as a node does at its start.
    fn start(&mut self) {
        let Options { shards, gateways, window, bugs, .. } = self.options;
        let shard_places: Vec<Address> = (0..shards as u16).map(|i| at(SHARD + i)).collect();
        let gateway_places: BTreeMap<GatewayId, Address> =
            (0..gateways as u16).map(|i| (GatewayId::of(0, i), at(GATEWAY + i))).collect();
        let (reads, snapshots) = (self.options.reads, self.options.reads != Reads::Ordered);
        let settings =
            ordain_deterministic::sequencing::Settings { bugs, snapshots, ..self.options.sequencer.clone() };
        self.sequencer = Sequencer::new(settings, self.registry.clone(), neighbours(shards), false);
        let layout = Arc::new(Layout::single(shards));
        let places = Places {
            layout: layout.clone(),
            replica: 0,
            replicas: 1,
            shards: shard_places.clone(),
            sequencer: at(SEQUENCER),
            lock_manager: self.options.scheduling.has_lock_manager().then(|| at(LOCK_MANAGER)),
            exchange: None,
            gateways: gateway_places.clone(),
            first_gateway: GATEWAY,
        };
        let Options { scheduling, isolation, fragment_bytes, .. } = self.options;
        let settings =
            shard::Settings { window, isolation, fragment_bytes, bugs, ..shard::Settings::new(scheduling) };
        self.lock_manager = scheduling.lock_manager(&places, settings);
        self.shards = (0..shards)
            .map(|number| {
                let store = MemoryStore::new(layout.slots_of_shard(number));
                Shard::new(number, places.clone(), settings, self.registry.clone(), store)
            })
            .collect();
        self.recovered.clear();
        let mut writer = None;
        if self.options.log {
            let segment_bytes = self.options.segment_bytes;
            let config = LogConfig { segment_bytes, bugs, ..LogConfig::new("bench") };
            let Bench { directory, registry, sequencer, lock_manager, shards, recovered, .. } = self;
            let (opened, _) = LogWriter::open(directory, config, |entry| {
                let batch = Batch::decode(registry, &entry.payload).map_err(|e| e.to_string())?;
                let batch = Arc::new(batch);
                sequencer.replay(&batch);
                recovered.push(batch.clone());
                let lock_manager = lock_manager.as_mut().map(|role| (at(LOCK_MANAGER), &mut **role));
                shard::Replay::new(shards, lock_manager, None).batch(batch)
            })
            .expect("what a crash leaves is a log");
            let last = self.recovered.last().map_or(Epoch(0), |batch| batch.epoch);
            let last = resume_after(last);
            self.sequencer.resume_after(last);
            self.shards.iter_mut().for_each(|shard| shard.resume_after(last));
            writer = Some(opened);
        }
        self.log =
            InputLog::new(LogSettings { bugs, ..Default::default() }, writer, at(SEQUENCER), shard_places);
        let registry = &self.registry;
        self.gateways = (0..gateways as u16)
            .map(|i| Gateway::alone(GatewayId::of(0, i), registry.clone()).with_reads(reads))
            .collect();
        for role in [SEQUENCER, LOG].into_iter().chain((0..shards as u16).map(|i| SHARD + i)) {
            self.handle(role, Event::Start);
        }
    }

    /// The machine loses power: what was under way is gone, and of the disk what was not synced. Then the node
    /// starts again, with space on the disk, and everything that any client was answered must be in its log.
    pub fn crash(&mut self) {
        self.verify_answers(false);
        if let Some(request) = self.disk.pop_front() {
            let done = self.random.index(request.ops.len() + 1);
            let ops = request.ops[..done].to_vec();
            carry_out(&mut self.directory, &DiskRequest::new(request.token, ops));
        }
        let random = &mut self.random;
        self.directory.crash(|| random.bits());
        self.directory.set_full_from(None);
        self.links.clear();
        self.held.clear();
        self.disk.clear();
        self.work.clear();
        self.disk_held = false;
        self.timers.clear();
        self.halted = None;
        self.sealed.clear();
        self.reads.clear();
        self.outcomes.clear();
        self.waiting.clear();
        self.now.elapsed = Micros(0);
        self.start();
        let found: BTreeSet<Gsn> =
            self.recovered.iter().flat_map(|batch| batch.txns().map(|(gsn, ..)| gsn)).collect();
        let lost = self.acknowledged.keys().find(|gsn| !found.contains(gsn));
        assert_eq!(lost, None, "a write that was answered is gone");
        self.verify_state();
    }

    // ---- clients -----------------------------------------------------------------------------------------

    /// Hands a request to a gateway, which keeps it until [`Bench::flush`].
    pub fn submit(&mut self, gateway: usize, call: Call, args: &[u8]) -> Result<Ticket, PlanError> {
        self.submit_to(gateway, View::Since(Epoch(0).into()), call, args)
    }

    /// The same; if it only reads it sees what the view says.
    pub fn submit_to(
        &mut self,
        gateway: usize,
        view: View,
        call: Call,
        args: &[u8],
    ) -> Result<Ticket, PlanError> {
        let ticket = Ticket(self.tickets + 1);
        let args = Args::parse(args).expect("an encoding");
        self.gateways[gateway].submit_to(ticket, call, view, |out| {
            for arg in args.iter() {
                out.push(arg.bytes);
            }
        })?;
        self.tickets += 1;
        self.waiting.insert(ticket);
        Ok(ticket)
    }

    /// Sends what a gateway has gathered.
    pub fn flush(&mut self, gateway: usize) {
        while let Some(departure) = self.gateways[gateway].flush() {
            let link = (GATEWAY + gateway as u16, SEQUENCER);
            self.links.entry(link).or_default().push_back(departure.into_message().into());
        }
    }

    /// Submits, flushes and settles, and returns the answer.
    pub fn ask(&mut self, call: Call, args: &[u8]) -> Answer {
        let ticket = self.submit(0, call, args).expect("a request that is not refused");
        self.flush(0);
        self.settle();
        self.answer(ticket).cloned().expect("everything was delivered")
    }

    /// The answer to a request, if it is there.
    pub fn answer(&self, ticket: Ticket) -> Option<&Answer> {
        self.answers.get(&ticket)
    }

    // ---- what happens next -------------------------------------------------------------------------------

    /// Keeps the messages of a link until [`Bench::release`].
    pub fn hold(&mut self, from: u16, to: u16) {
        self.held.insert((from, to));
    }

    /// Lets a link's messages go again.
    pub fn release(&mut self, from: u16, to: u16) {
        self.held.remove(&(from, to));
    }

    /// How many messages wait on a link.
    pub fn pending(&self, from: u16, to: u16) -> usize {
        self.links.get(&(from, to)).map_or(0, VecDeque::len)
    }

    /// Delivers the next message of a link, held or not; returns whether there was one.
    pub fn deliver(&mut self, from: u16, to: u16) -> bool {
        let Some(message) = self.links.get_mut(&(from, to)).and_then(VecDeque::pop_front) else {
            return false;
        };
        if to >= GATEWAY {
            match message {
                Message::Front(Front::Outcomes(outcomes)) => {
                    self.take_outcomes((to - GATEWAY) as usize, &outcomes)
                }
                other => panic!("a gateway was sent {other:?}"),
            }
        } else {
            self.handle(to, Event::Message { from: at(from), message });
        }
        true
    }

    /// Puts a message on a link, as a role that has gone wrong might.
    pub fn inject(&mut self, from: u16, to: u16, message: Message) {
        self.links.entry((from, to)).or_default().push_back(message);
    }

    /// Carries out the oldest disk request; returns whether there was one.
    pub fn disk_step(&mut self) -> bool {
        let Some(request) = self.disk.pop_front() else { return false };
        let done = carry_out(&mut self.directory, &request);
        self.handle(LOG, Event::Disk(done));
        true
    }

    /// Does the oldest computation that was given away; returns whether there was one.
    pub fn work_step(&mut self) -> bool {
        let Some((role, work)) = self.work.pop_front() else { return false };
        self.handle(role, Event::Work(work.run()));
        true
    }

    /// How many disk requests wait.
    pub fn disk_pending(&self) -> usize {
        self.disk.len()
    }

    /// Does one thing of all that may happen next, by a seeded choice; returns whether there was any.
    pub fn step(&mut self) -> bool {
        if self.halted.is_some() {
            return false;
        }
        let mut ready: Vec<(u16, u16)> = Vec::new();
        for (link, queue) in &self.links {
            if !queue.is_empty() && !self.held.contains(link) {
                ready.push(*link);
            }
        }
        let disk = usize::from(!self.disk.is_empty() && !self.disk_held);
        let due = self.timers.iter().filter(|(_, due)| **due <= self.now.elapsed);
        let due: Vec<(u16, TimerId)> = due.map(|(timer, _)| *timer).collect();
        let work = if self.work_held { 0 } else { self.work.len() };
        let choices = ready.len() + due.len() + disk + work;
        if choices == 0 {
            return false;
        }
        let pick = self.random.index(choices);
        match (ready.get(pick), due.get(pick.saturating_sub(ready.len()))) {
            (Some((from, to)), _) => self.deliver(*from, *to),
            (None, Some((role, timer))) => {
                self.timers.remove(&(*role, *timer));
                self.handle(*role, Event::Timer(*timer));
                true
            }
            (None, None) if pick < ready.len() + due.len() + disk => self.disk_step(),
            // Computations end in any order.
            (None, None) => {
                self.work.swap(0, pick - ready.len() - due.len() - disk);
                self.work_step()
            }
        }
    }

    /// Goes on until nothing is left but what is held.
    pub fn settle(&mut self) {
        while self.step() {}
    }

    /// Lets time pass, and fires the timers that are due, in order.
    pub fn advance(&mut self, by: Micros) {
        let end = self.now.elapsed.plus(by);
        while let Some((&(role, timer), &due)) = self.timers.iter().min_by_key(|(_, due)| **due) {
            if due > end || self.halted.is_some() {
                break;
            }
            self.timers.remove(&(role, timer));
            self.pass(due);
            self.handle(role, Event::Timer(timer));
        }
        self.pass(end);
    }

    fn pass(&mut self, until: Micros) {
        self.now.wall = self.now.wall.plus(until.since(self.now.elapsed));
        self.now.elapsed = self.now.elapsed.max(until);
    }

    fn role(&mut self, role: u16) -> &mut dyn Role<Message = Message> {
        match role {
            SEQUENCER => &mut self.sequencer,
            LOG => &mut self.log,
            LOCK_MANAGER => self.lock_manager.as_mut().expect("an engine that has one"),
            shard => &mut self.shards[(shard - SHARD) as usize],
        }
    }

    fn handle(&mut self, role: u16, event: Event<Message>) {
        if self.halted.is_some() {
            return;
        }
        let now = self.now;
        let mut out = Outbox::default();
        self.role(role).handle(now, event, &mut out);
        let check = self.role(role).check();
        for (to, message) in out.sends {
            if let Message::Reading(Reading::Run { chunk, at, now }) = &message {
                self.reads.insert((chunk.gateway, chunk.number), (chunk.clone(), *at, *now));
            }
            if let (LOG, SHARD, Message::Log(Log::Sealed(batch))) = (role, to.role, &message) {
                self.sealed.push(batch.clone());
            }
            self.links.entry((role, to.role)).or_default().push_back(message);
        }
        for (timer, delay) in out.timers {
            match delay {
                Some(delay) => self.timers.insert((role, timer), now.elapsed.plus(delay)),
                None => self.timers.remove(&(role, timer)),
            };
        }
        self.disk.extend(out.disk);
        self.work.extend(out.work.into_iter().map(|work| (role, work)));
        self.halted = out.halt;
        assert_eq!(check, Ok(()));
    }

    fn take_outcomes(&mut self, gateway: usize, batch: &OutcomeBatch) {
        for outcome in &batch.outcomes {
            let answer = Answer {
                status: outcome.status,
                gsn: outcome.stamp.into(),
                reply: batch.reply(outcome).to_vec(),
            };
            self.outcomes.entry((batch.gateway, outcome.chunk, outcome.index)).or_default().push(answer);
        }
        let Bench { gateways, answers, waiting, .. } = self;
        gateways[gateway].take_outcomes(batch, |finished| {
            assert!(waiting.remove(&finished.ticket), "{:?} was answered twice", finished.ticket);
            let (status, gsn, reply) = (finished.status, finished.stamp.into(), finished.reply.to_vec());
            answers.insert(finished.ticket, Answer { status, gsn, reply });
        });
        self.flush(gateway);
    }

    // ---- what must be true -------------------------------------------------------------------------------

    /// Everything was delivered: every request has its answer, the answers and the state are the reference
    /// executor's, no lock is held and no message is left over.
    pub fn verify(&mut self) {
        assert_eq!(self.halted, None);
        assert!(self.links.values().all(VecDeque::is_empty), "something is under way: {:?}", self.links);
        assert!(self.waiting.is_empty(), "without an answer: {:?}; {}", self.waiting, self.gauges());
        self.verify_answers(true);
        self.verify_state();
        for shard in &self.shards {
            assert_eq!(gauge(shard, grants_gauge(self.options.scheduling)), 0.0);
            assert_eq!(gauge(shard, "ordain_shard_in_flight"), 0.0);
            assert_eq!(gauge(shard, "ordain_shard_out_of_order_items"), 0.0);
        }
        if let Some(lock_manager) = &self.lock_manager {
            assert_eq!(gauge(lock_manager, "ordain_lock_manager_locked_keys"), 0.0);
            assert_eq!(gauge(lock_manager, "ordain_lock_manager_in_flight"), 0.0);
        }
    }

    /// Every role's numbers, for a message.
    fn gauges(&self) -> String {
        let mut text = String::new();
        let shards = self.shards.iter().map(|shard| shard as &dyn Role<Message = Message>);
        for role in [&self.sequencer as &dyn Role<Message = Message>, &self.log].into_iter().chain(shards) {
            role.gauges(&mut |name, value| text.push_str(&format!("{name} {value}, ")));
        }
        text
    }

    /// What was done, as the reference executor does it, and what it leaves.
    fn reference(&self) -> (BTreeMap<Gsn, TxnResult>, ReferenceExecutor) {
        let mut reference = ReferenceExecutor::new(self.registry.clone()).isolated(self.options.isolation);
        let mut results = BTreeMap::new();
        for batch in self.recovered.iter().chain(&self.sealed) {
            results.extend(reference.run(batch).into_iter().map(|result| (result.gsn, result)));
        }
        (results, reference)
    }

    fn verify_answers(&mut self, all: bool) {
        let (results, _) = self.reference();
        let as_reference = |answer: &Answer| {
            let result =
                results.get(&answer.gsn).unwrap_or_else(|| panic!("{} was never sealed", answer.gsn));
            let what = || self.describe(answer.gsn);
            assert_eq!((answer.status, &answer.reply), (result.status, &result.reply), "{}", what());
        };
        let mut acknowledged: Vec<(Gsn, Answer)> = Vec::new();
        let mut expected: BTreeSet<Place> = BTreeSet::new();
        let mut last_epoch = self.recovered.last().map_or(Epoch(0), |batch| batch.epoch);
        let mut chunks: BTreeMap<GatewayId, ChunkNo> = BTreeMap::new();
        for batch in &self.sealed {
            assert!(batch.epoch > last_epoch, "epoch {} after {last_epoch}", batch.epoch);
            last_epoch = batch.epoch;
            for placed in &batch.chunks {
                let number = placed.chunk.number;
                let before = chunks.insert(placed.chunk.gateway, number);
                assert!(before.is_none_or(|before| before < number), "a gateway's chunks changed places");
            }
            for (gsn, chunk, txn) in batch.txns().filter(|(_, chunk, _)| chunk.gateway != GatewayId::HOUSE) {
                let place = (chunk.gateway, chunk.number, txn.index);
                expected.insert(place);
                let answered = self.outcomes.get(&place).map_or(&[][..], |answered| answered);
                assert!(
                    answered.len() == 1 || !all && answered.is_empty(),
                    "{gsn} has {} outcomes",
                    answered.len()
                );
                for answer in answered {
                    assert_eq!(answer.gsn, gsn);
                    as_reference(answer);
                    if !txn.read_only {
                        acknowledged.push((gsn, answer.clone()));
                    }
                }
            }
            for lookup in &batch.lookups {
                let place = (lookup.gateway, lookup.chunk, lookup.index);
                expected.insert(place);
                let answered = self.outcomes.get(&place).map_or(&[][..], |answered| answered);
                assert!(
                    answered.len() == 1 || !all && answered.is_empty(),
                    "{lookup:?} has {} answers",
                    answered.len()
                );
                answered.iter().filter(|answer| answer.gsn != Gsn::NONE).for_each(as_reference);
            }
        }
        let mut reference = ReferenceExecutor::new(self.registry.clone()).isolated(self.options.isolation);
        let mut batches = self.recovered.iter().chain(&self.sealed).peekable();
        let mut reads: Vec<_> = self.reads.values().collect();
        reads.sort_by_key(|(_, at, _)| *at);
        for (chunk, at, now) in reads {
            while let Some(batch) = batches.next_if(|batch| batch.epoch <= *at) {
                reference.run(batch);
            }
            for txn in chunk.txns() {
                let place = (chunk.gateway, chunk.number, txn.index);
                expected.insert(place);
                let answered = self.outcomes.get(&place).map_or(&[][..], |answered| answered);
                assert!(answered.len() <= 1, "a read has {} outcomes", answered.len());
                for answer in answered.iter().filter(|answer| answer.gsn.is_of_read()) {
                    assert_eq!(answer.gsn.epoch(), *at);
                    let result = reference.run_txn(answer.gsn, *now, chunk, txn);
                    assert_eq!((answer.status, &answer.reply), (result.status, &result.reply), "as of {at}");
                }
            }
        }
        for (place, answers) in &self.outcomes {
            let refused = |a: &Answer| matches!(a.status, OutcomeStatus::Busy | OutcomeStatus::Refused);
            assert!(
                expected.contains(place) || answers.len() == 1 && answers.iter().all(refused),
                "{place:?}"
            );
        }
        // Exactly once: no request of a session takes effect twice.
        let mut done: BTreeSet<(SessionId, RequestNo)> = BTreeSet::new();
        for batch in self.recovered.iter().chain(&self.sealed) {
            for (gsn, _, txn) in batch.txns().filter(|(_, _, txn)| !txn.read_only) {
                let Some((session, request)) = txn.call.session else { continue };
                if results[&gsn].status == OutcomeStatus::Committed {
                    let first = done.insert((session, RequestNo(request.0 >> 8)));
                    assert!(first, "request {request} of session {session} took effect twice");
                }
            }
        }
        self.acknowledged.extend(acknowledged);
    }

    fn verify_state(&self) {
        let (results, reference) = self.reference();
        assert_eq!(self.digest(), reference.digest(), "the state is not the reference executor's");
        verify_records(&self.shards, &reference);
        for (gsn, answer) in &self.acknowledged {
            let result = &results[gsn];
            assert_eq!(
                (answer.status, &answer.reply),
                (result.status, &result.reply),
                "{gsn} after a restart"
            );
        }
        for shard in &self.shards {
            assert_eq!(shard.digest(), shard.store().recompute_digest());
        }
    }

    /// The digest of the state.
    pub fn digest(&self) -> Digest {
        self.shards.iter().fold(Digest::default(), |sum, shard| sum.plus(shard.digest()))
    }

    /// A transaction and its arguments, for a message.
    fn describe(&self, gsn: Gsn) -> String {
        let mut txns = self.recovered.iter().chain(&self.sealed).flat_map(|batch| batch.txns());
        let Some((_, chunk, txn)) = txns.find(|(at, ..)| *at == gsn) else { return gsn.to_string() };
        let name = self.registry.name(txn.call.procedure).unwrap_or("?");
        format!("{gsn} {name} {}", chunk.args(txn).encoded().escape_ascii())
    }

    /// Whether a sealed transaction is one that writes.
    pub fn writes(&self, gsn: Gsn) -> bool {
        let mut txns = self.recovered.iter().chain(&self.sealed).flat_map(|batch| batch.txns());
        txns.any(|(at, _, txn)| at == gsn && !txn.read_only)
    }

    /// How many transactions with this procedure's name were sealed, ever.
    pub fn sealed_calls(&self, procedure: &str) -> usize {
        let id = self.registry.find(procedure).expect("a procedure");
        let batches = self.recovered.iter().chain(&self.sealed);
        batches.flat_map(|batch| batch.txns()).filter(|(_, _, txn)| txn.call.procedure == id).count()
    }
}

/// The text of a reply; nothing for what was not sequenced.
pub fn render(reply: &[u8]) -> String {
    let mut text = String::new();
    if reply.is_empty() {
        return text;
    }
    let rest = render_one(reply, &mut text);
    assert!(rest.is_empty(), "more than one value: {reply:?}");
    text
}

fn render_one<'a>(bytes: &'a [u8], text: &mut String) -> &'a [u8] {
    let (datum, mut rest) = Datum::split(bytes).expect("a reply is a datum");
    let items = match datum {
        Datum::Array(n) | Datum::Set(n) => n,
        Datum::Map(n) | Datum::Pairs(n) => 2 * n,
        _ => 0,
    };
    text.push_str(&match datum {
        Datum::Nil => "nil".to_string(),
        Datum::NilArray => "nil-array".to_string(),
        Datum::Int(i) => i.to_string(),
        Datum::Bulk(bytes) => format!("\"{}\"", bytes.escape_ascii()),
        Datum::Status(status) => String::from_utf8_lossy(status).into_owned(),
        Datum::Error(error) => format!("({})", String::from_utf8_lossy(error)),
        Datum::Array(_) | Datum::Set(_) | Datum::Map(_) | Datum::Pairs(_) => "[".to_string(),
        other => format!("{other:?}"),
    });
    for i in 0..items {
        if i > 0 {
            text.push(' ');
        }
        rest = render_one(rest, text);
    }
    if matches!(datum, Datum::Array(_) | Datum::Set(_) | Datum::Map(_) | Datum::Pairs(_)) {
        text.push(']');
    }
    rest
}
