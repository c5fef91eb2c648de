//! The shards of a replica that has several partitions, without sequencers, logs and exchanges: the test says what is
//! sealed, and what arrives when.
//!
//! Each partition's node is handed the batches as its exchange would: its own whole, of the others its slices, in order.
//! Remote results between nodes cross as bytes; they come late, in any order between pairs of nodes, in order within a pair,
//! and now and then once more. A node may be killed: it begins again with nothing, is handed all its input again, and
//! everything that it has ever received, again in any order between pairs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ordain_deterministic::sequencing::{ExchangeMessage, Log, Reading, Sequencing};
use ordain_deterministic::shard::{self, Message, Places, Scheduling, Shard, ShardMessage};
use ordain_engines::{calvin, qstore};
use ordain_execution::TierSettings;
use ordain_log::{MemoryDirectory, carry_out};
use ordain_model::args::Args;
use ordain_model::wire::{Codec as _, Reader};
use ordain_model::{
    Batch, Call, Cascade, CheckpointMode, Choice, Chunk, ChunkNo, Digest, Epoch, Front, GatewayId, Isolation,
    Layout, Layouts, Micros, Millis, OutcomeStatus, PartitionId, Placed, ReferenceExecutor, Registry,
    SessionId,
};
use ordain_replication::Saving;
use ordain_role::{Address, DiskRequest, Event, NodeId, Now, Outbox, Role, TimerId, Work};
use ordain_sim::Random;
use ordain_store::MemoryStore;

use super::saved::Saved;
use super::{Answer, GATEWAY, SEQUENCER, SHARD, gauge, grants_gauge, registry, verify_records};

const EXCHANGE: u16 = 2;
const CHECKPOINTER: u16 = 6;
/// The timer by which a shard does its chores.
const SWEEP: TimerId = TimerId(2);
/// The replica whose shards these are.
pub const REPLICA: u16 = 1;

/// How a cluster is set up.
#[derive(Clone, Debug)]
pub struct Shape {
    pub partitions: usize,
    /// Shards a partition.
    pub threads: usize,
    pub window: usize,
    /// How transactions get their turns; not by a lock manager, which is not here.
    pub scheduling: Scheduling,
    /// What they see of each other.
    pub isolation: Isolation,
    /// Whether batches say now and then that they may be executed before it is known what of them aborts.
    pub speculative: bool,
    /// What then becomes of what used what is undone.
    pub cascade: Cascade,
    pub seed: u64,
    /// How many remote results of a million come once more.
    pub doubled: u32,
    /// Whether reads are run on snapshots too.
    pub snapshots: bool,
    /// Whether checkpoints are taken. About how many bytes a shard gives away at once; 0: there are none.
    pub checkpoint_piece: usize,
    /// How the state of one is kept.
    pub checkpoints: CheckpointMode,
    /// Bytes of memory that the records of a shard may take, if their values may be on disk.
    pub memory_budget: Option<u64>,
}

impl Default for Shape {
    fn default() -> Self {
        Shape {
            partitions: 2,
            threads: 1,
            window: 2000,
            scheduling: calvin::SCHEDULING,
            isolation: Isolation::default(),
            speculative: false,
            cascade: Cascade::default(),
            seed: 0,
            doubled: 0,
            snapshots: false,
            checkpoint_piece: 0,
            checkpoints: CheckpointMode::default(),
            memory_budget: None,
        }
    }
}

impl Shape {
    /// A shape with all but its size drawn: for drawn transactions while slots move and nodes are killed.
    pub fn drawn(random: &mut Random, seed: u64, partitions: usize, threads: usize) -> Shape {
        let (queues, read_committed) = (qstore::SCHEDULING, Isolation::ReadCommitted);
        let modes = [
            (calvin::SCHEDULING, false, Isolation::Serializable),
            (queues, false, read_committed),
            (queues, true, read_committed),
        ];
        let (scheduling, speculative, isolation) = modes[random.index(modes.len())];
        Shape {
            partitions,
            threads,
            window: 1 + random.index(30),
            seed,
            doubled: 100_000,
            checkpoint_piece: [1, 50, 1 << 16][random.index(3)],
            scheduling,
            speculative,
            cascade: [Cascade::Repair, Cascade::Abort][random.index(2)],
            isolation,
            // None of half of them has any value in memory for longer than it is used.
            memory_budget: [None, None, Some(0), Some(12_000)][random.index(4)],
            ..Shape::default()
        }
    }
}

/// A request: its gateway's chunk and index in it.
pub type Ticket = (GatewayId, ChunkNo, u32);

/// Something that may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Next {
    /// A shard is handed its next batch.
    Batch(usize),
    /// The next message from one shard to another of its node.
    Inside(usize, usize),
    /// The next remote result from one node to another.
    Across(usize, usize),
    /// The same, and it stays to come again.
    Twice(usize, usize),
    /// The last remote result from one node to another that is under way, ahead of all before it.
    Last(usize, usize),
    /// What a shard has read for another.
    Part(usize, usize),
    /// A shard's timer for another turn.
    Turn(usize),
    /// A checkpointer has written a piece of a shard.
    Taken(usize),
    /// A computation that a shard has given away is done.
    Work(usize),
    /// The disk has done the next thing that a shard has asked for; in the background, or not.
    Disk(usize, bool),
    /// The values of a shard that are on disk are put in order.
    Sweep(usize),
    /// A node is killed and begins again.
    Kill(usize),
}

struct Node {
    /// What it was ever handed.
    input: Vec<Arc<Batch>>,
    /// Remote results that it has received, by sender.
    received: BTreeMap<usize, Vec<RemoteResult>>,
    restarts: usize,
}

/// A remote result on its way: the shard it is for, and its bytes.
#[derive(Clone)]
struct RemoteResult {
    to: u16,
    bytes: Vec<u8>,
    /// It is in the journal of the node that it is for: whatever becomes of its sender.
    kept: bool,
}

/// The shards of all partitions, and what is under way between them.
pub struct Cluster {
    pub shape: Shape,
    pub layout: Arc<Layout>,
    /// By which gateways plan: they may not know of a move, or know of it before others do.
    pub plans: Arc<Layout>,
    pub registry: Arc<Registry>,
    pub random: Random,
    pub shards: Vec<Shard<MemoryStore>>,
    nodes: Vec<Node>,
    /// By shard: batches not handed in yet, and the ends of their epochs.
    batches: Vec<VecDeque<Message>>,
    inside: BTreeMap<(usize, usize), VecDeque<ShardMessage>>,
    across: BTreeMap<(usize, usize), VecDeque<RemoteResult>>,
    /// What shards have read for each other, as bytes.
    parts: BTreeMap<(usize, usize), VecDeque<Vec<u8>>>,
    /// Reads on snapshots: the chunk, its epoch and its time.
    reads: BTreeMap<(GatewayId, ChunkNo), (Arc<Chunk>, Epoch, Millis)>,
    /// The epoch as of which each shard can show the state, by its message.
    kept: BTreeMap<usize, Epoch>,
    /// By shard: the timers that have run out.
    turns: BTreeMap<usize, VecDeque<TimerId>>,
    held: BTreeSet<(usize, usize)>,
    /// By shard: computations that it has given away.
    work: BTreeMap<usize, VecDeque<Work>>,
    /// By shard: its disk, and what that is to do.
    disks: BTreeMap<usize, MemoryDirectory>,
    asked: BTreeMap<(usize, bool), VecDeque<DiskRequest>>,
    /// Shards that have been handed something since they put their values in order.
    unswept: BTreeSet<usize>,
    /// What checkpointers were given.
    pub saved: Saved,
    /// By shard: pieces that are not written yet, by the checkpoint's epoch.
    pieces: BTreeMap<usize, VecDeque<Epoch>>,
    /// Whether the disks are so slow that nothing of a checkpoint is written.
    pub writes_nothing: bool,
    /// The applied epoch in the last message of each shard.
    applied: BTreeMap<usize, (Epoch, PartitionId)>,
    /// Chunks that are being built, by home, version of the map and gateway.
    building: BTreeMap<(usize, u32, u16), Chunk>,
    chunks: u64,
    epoch: Epoch,
    pub now: Millis,
    /// In order.
    pub sealed: Vec<Arc<Batch>>,
    answers: BTreeMap<Ticket, Vec<Answer>>,
    pub halted: Option<String>,
}

impl Cluster {
    /// A replica without records.
    pub fn new(shape: Shape) -> Cluster {
        Cluster::with(shape, registry())
    }

    /// The same, with procedures that are there already.
    pub fn with(shape: Shape, registry: Arc<Registry>) -> Cluster {
        let layout = Arc::new(Layout::even(shape.partitions, shape.threads).expect("a layout"));
        let shards = layout.shards();
        let nodes = (0..shape.partitions)
            .map(|_| Node { input: Vec::new(), received: BTreeMap::new(), restarts: 0 })
            .collect();
        let mut cluster = Cluster {
            random: Random::new(shape.seed),
            registry,
            shards: Vec::new(),
            nodes,
            batches: vec![VecDeque::new(); shards],
            inside: BTreeMap::new(),
            across: BTreeMap::new(),
            parts: BTreeMap::new(),
            reads: BTreeMap::new(),
            kept: BTreeMap::new(),
            turns: BTreeMap::new(),
            held: BTreeSet::new(),
            work: BTreeMap::new(),
            disks: BTreeMap::new(),
            asked: BTreeMap::new(),
            unswept: BTreeSet::new(),
            saved: Saved::default(),
            pieces: BTreeMap::new(),
            writes_nothing: false,
            applied: BTreeMap::new(),
            building: BTreeMap::new(),
            chunks: 0,
            epoch: Epoch(0),
            now: Millis(1_000_000),
            sealed: Vec::new(),
            answers: BTreeMap::new(),
            halted: None,
            plans: layout.clone(),
            layout,
            shape,
        };
        cluster.shards = (0..shards).map(|number| cluster.shard(number)).collect();
        (0..shards).for_each(|shard| cluster.handle(shard, Event::Start));
        if cluster.shape.snapshots {
            (0..shards).for_each(|shard| _ = cluster.keep(shard));
        }
        cluster
    }

    fn node_of(&self, shard: usize) -> usize {
        usize::from(self.layout.partition_of_shard(shard).0)
    }

    fn shard(&self, number: usize) -> Shard<MemoryStore> {
        let (node, threads) = (self.node_of(number), self.shape.threads);
        // Nodes of the second replica of two.
        let id = |node: usize| NodeId(node as u16 + REPLICA * self.layout.partitions());
        let at = |role| Address { node: id(node), role };
        let address =
            |shard| Address { node: id(self.node_of(shard)), role: SHARD + (shard % threads) as u16 };
        let places = Places {
            layout: self.layout.clone(),
            replica: REPLICA,
            replicas: 1,
            shards: (0..self.layout.shards()).map(address).collect(),
            sequencer: at(SEQUENCER),
            lock_manager: None,
            exchange: Some(at(EXCHANGE)),
            gateways: [(GatewayId::of(id(node).0, 0), at(GATEWAY))].into(),
            first_gateway: GATEWAY,
        };
        let Shape { window, scheduling, isolation, checkpoint_piece: piece, checkpoints, .. } = self.shape;
        let mut settings =
            shard::Settings { window, isolation, checkpoints, ..shard::Settings::new(scheduling) };
        if piece > 0 {
            settings.piece = piece;
        }
        settings.values = self.shape.memory_budget.map(|budget| TierSettings::within(budget, 0));
        if self.shape.seed % 2 == 1 {
            // Transactions rest between all of their fragments.
            settings.fragment_bytes = 0;
        }
        let layout = &self.layout;
        let store = MemoryStore::placed(layout.slots_of_shard(number), layout.placement().clone());
        let shard = Shard::new(number, places, settings, self.registry.clone(), store);
        if piece > 0 { shard.with_checkpointer(at(CHECKPOINTER)) } else { shard }
    }

    /// A key that begins with `name` and lies in a partition.
    pub fn key_in(&self, name: &str, partition: usize) -> Vec<u8> {
        let owner = |key: &[u8]| usize::from(self.layout.region_of(key).0);
        let mut keys = (0u32..).map(|i| format!("{name}{i}").into_bytes());
        keys.find(|key| owner(key) == partition).expect("every partition has slots")
    }

    /// A session at home in a partition.
    pub fn session_in(&self, partition: usize) -> SessionId {
        let home = |id: &SessionId| usize::from(self.layout.home_partition_of(*id).0) == partition;
        (1..).map(SessionId).find(home).expect("every partition has slots")
    }

    // ---- what is asked and sealed --------------------------------------------------------------------------

    /// Plans a request at a node's gateway and adds it to what its home has waiting; nothing if it is refused.
    pub fn submit(&mut self, node: usize, replica: u16, call: Call, args: &[u8]) -> Option<Ticket> {
        let args = Args::parse(args).expect("an encoding");
        let gateway = GatewayId::of(node as u16 + REPLICA * self.layout.partitions(), 0);
        let empty = || Chunk::new(gateway, ChunkNo(0)).in_cluster(replica, self.plans.clone());
        let mut planned = empty();
        let txn = planned
            .push(&self.registry, call, |out| args.iter().for_each(|arg| _ = out.push(arg.bytes)))
            .ok()?
            .clone();
        let only = planned.participants(&txn, &self.plans).only();
        let session = txn.call.session.filter(|_| !txn.read_only);
        let home = match (session, only) {
            (Some((session, _)), _) => self.layout.home_partition_of(session),
            (None, Some(only)) => only,
            (None, None) => PartitionId(node as u16),
        };
        let key = (usize::from(home.0), self.plans.map().version(), node as u16 | replica << 8);
        let chunks = &mut self.chunks;
        let chunk = self.building.entry(key).or_insert_with(|| {
            *chunks += 1;
            let mut chunk = empty();
            chunk.number = ChunkNo(*chunks);
            chunk
        });
        chunk.take(&mut planned);
        Some((gateway, chunk.number, chunk.span() - 1))
    }

    /// The mark of a batch about its epoch, if any.
    fn chosen(&mut self) -> Option<Choice> {
        match self.random.below(3) {
            0 => Some(Choice::Speculate(self.shape.cascade)),
            1 => Some(Choice::Wait),
            _ => None,
        }
    }

    /// Seals what waits, in one epoch, and hands every node what it takes part in.
    pub fn seal(&mut self) {
        self.epoch = Epoch(self.epoch.0 + 1 + self.random.below(3));
        let mut homes: BTreeMap<usize, Vec<Placed>> = BTreeMap::new();
        for ((home, ..), chunk) in std::mem::take(&mut self.building) {
            let placed = homes.entry(home).or_default();
            let base = placed.last().map_or(0, |last: &Placed| last.base + last.chunk.span());
            placed.push(Placed::whole(base, Arc::new(chunk)));
        }
        let mut layouts = Layouts::new(self.layout.clone());
        for (home, chunks) in homes {
            let total = chunks.last().map_or(0, |last| last.base + last.chunk.span());
            let batch = Arc::new(Batch {
                epoch: self.epoch,
                partition: PartitionId(home as u16),
                layout: self.layout.version(),
                choice: self.shape.speculative.then(|| self.chosen()).flatten(),
                now: self.now,
                total,
                chunks,
                ..Batch::default()
            });
            for node in 0..self.shape.partitions {
                let slice = if node == home {
                    batch.clone()
                } else {
                    let slice = batch.encode_slice(PartitionId(node as u16), &mut layouts);
                    let Some(slice) = slice else { continue };
                    Arc::new(Batch::decode(&self.registry, &slice).expect("a slice"))
                };
                for shard in self.layout.shards_of(PartitionId(node as u16)) {
                    self.batches[shard].push_back(Log::Sealed(slice.clone()).into());
                }
                self.nodes[node].input.push(slice);
            }
            self.sealed.push(batch);
        }
        if self.shape.scheduling == qstore::SCHEDULING {
            let passed = Message::from(Sequencing::Passed(self.epoch));
            self.batches.iter_mut().for_each(|queue| queue.push_back(passed.clone()));
        }
    }

    /// How many slices of others' batches nodes were handed, and how many remote results of others they have received.
    pub fn crossed(&self) -> (usize, usize) {
        let foreign = |(node, at): (usize, &Node)| {
            let is_foreign = |batch: &&Arc<Batch>| usize::from(batch.partition.0) != node;
            let remote_results: usize = at.received.values().map(Vec::len).sum();
            (at.input.iter().filter(is_foreign).count(), remote_results)
        };
        let sum = |(a, b): (usize, usize), (c, d): (usize, usize)| (a + c, b + d);
        self.nodes.iter().enumerate().map(foreign).fold((0, 0), sum)
    }

    /// Submits, seals, settles, and returns the answer.
    pub fn ask(&mut self, call: Call, args: &[u8]) -> Answer {
        let ticket = self.submit(0, REPLICA, call, args).expect("a request that is not refused");
        self.seal();
        self.settle();
        self.answer(ticket).expect("everything was delivered").clone()
    }

    /// The answer to a request, if it is there.
    pub fn answer(&self, ticket: Ticket) -> Option<&Answer> {
        self.answers.get(&ticket)?.first()
    }

    // ---- reads on snapshots ------------------------------------------------------------------------------

    /// The last epoch that was sealed.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Gives the shards of a node the end of an epoch: they have all up to there.
    pub fn pass(&mut self, node: usize, epoch: Epoch) {
        for shard in self.layout.shards_of(PartitionId(node as u16)) {
            self.say(shard, Sequencing::Passed(epoch).into());
        }
    }

    /// Announces reads to a shard by all sequencers; returns the epoch as of which it can show the state.
    pub fn keep(&mut self, shard: usize) -> Epoch {
        for partition in (0..self.layout.partitions()).map(PartitionId) {
            self.say(shard, Reading::Keep(partition).into());
        }
        self.kept[&shard]
    }

    /// Gives a shard the news of a sequencer that knows of no reads.
    pub fn forget(&mut self, shard: usize, partition: u16) {
        self.say(shard, Reading::Forget(PartitionId(partition)).into());
    }

    /// Gives all shards, by all sequencers, the low watermark of reads.
    pub fn floor(&mut self, epoch: Epoch) {
        for shard in 0..self.layout.shards() {
            for partition in (0..self.layout.partitions()).map(PartitionId) {
                self.say(shard, Reading::LowWatermark { partition, epoch }.into());
            }
        }
    }

    /// A chunk with one read, not sent to anybody.
    pub fn read(&mut self, call: Call, args: &[u8], at: Epoch) -> Ticket {
        self.chunks += 1;
        let (gateway, number) = (self.gateway(0), ChunkNo(self.chunks));
        let mut chunk = Chunk::new(gateway, number).in_cluster(REPLICA, self.plans.clone());
        let args = Args::parse(args).expect("an encoding");
        let push =
            |out: &mut ordain_model::ArgsBuilder<'_>| args.iter().for_each(|arg| _ = out.push(arg.bytes));
        let txn = chunk.push(&self.registry, call, push).expect("a plan");
        assert!(txn.detached, "it can be run on a snapshot");
        self.reads.insert((gateway, number), (Arc::new(chunk), at, self.now));
        (gateway, number, 0)
    }

    /// Gives a shard the read to run.
    pub fn run_read(&mut self, shard: usize, (gateway, number, _): Ticket) {
        let (chunk, at, now) = self.reads[&(gateway, number)].clone();
        let run: Message = Reading::Run { chunk, at, now }.into();
        self.say(shard, Reader::of(&self.registry, &run.to_bytes()).whole().expect("it travels"));
    }

    /// Gives all shards a read to run as of an epoch.
    pub fn read_at(&mut self, call: Call, args: &[u8], at: Epoch) -> Ticket {
        let ticket = self.read(call, args, at);
        (0..self.layout.shards()).for_each(|shard| self.run_read(shard, ticket));
        ticket
    }

    fn say(&mut self, shard: usize, message: Message) {
        self.handle(shard, Event::Message { from: Address::default(), message });
    }

    // ---- what happens next ---------------------------------------------------------------------------------

    /// Keeps remote results from one node to another until [`Cluster::release`].
    pub fn hold(&mut self, from: usize, to: usize) {
        self.held.insert((from, to));
    }

    /// Lets them go again.
    pub fn release(&mut self, from: usize, to: usize) {
        self.held.remove(&(from, to));
    }

    /// Everything that may happen next.
    pub fn choices(&self) -> Vec<Next> {
        if self.halted.is_some() {
            return Vec::new();
        }
        let batches = self.batches.iter().enumerate().filter(|(_, queue)| !queue.is_empty());
        let inside = self.inside.iter().filter(|(_, queue)| !queue.is_empty());
        let across =
            self.across.iter().filter(|(link, queue)| !queue.is_empty() && !self.held.contains(link));
        batches
            .map(|(shard, _)| Next::Batch(shard))
            .chain(inside.map(|((from, to), _)| Next::Inside(*from, *to)))
            .chain(across.map(|((from, to), _)| Next::Across(*from, *to)))
            .chain(
                self.parts
                    .iter()
                    .filter(|(link, queue)| !queue.is_empty() && !self.held.contains(link))
                    .map(|((from, to), _)| Next::Part(*from, *to)),
            )
            .chain(
                self.turns
                    .iter()
                    .filter(|(_, timers)| !timers.is_empty())
                    .map(|(shard, _)| Next::Turn(*shard)),
            )
            .chain(
                self.pieces
                    .iter()
                    .filter(|(_, queue)| !queue.is_empty() && !self.writes_nothing)
                    .map(|(shard, _)| Next::Taken(*shard)),
            )
            .chain(
                self.asked
                    .iter()
                    .filter(|(_, queue)| !queue.is_empty())
                    .map(|((shard, is_aside), _)| Next::Disk(*shard, *is_aside)),
            )
            .chain(self.unswept.iter().map(|shard| Next::Sweep(*shard)))
            .chain(
                self.work.iter().filter(|(_, queue)| !queue.is_empty()).map(|(shard, _)| Next::Work(*shard)),
            )
            .collect()
    }

    /// Lets something happen; nothing if it cannot.
    pub fn happen(&mut self, next: Next) {
        let tell = |message| Event::Message { from: Address::default(), message };
        match next {
            Next::Batch(shard) => {
                if let Some(next) = self.batches[shard].pop_front() {
                    if self.shape.memory_budget.is_some() {
                        self.unswept.insert(shard);
                    }
                    self.handle(shard, tell(next));
                }
            }
            Next::Inside(from, to) => {
                if let Some(remote_result) = self.inside.get_mut(&(from, to)).and_then(VecDeque::pop_front) {
                    self.handle(to, tell(Message::Engine(remote_result)));
                }
            }
            Next::Across(from, to) => {
                let Some(queue) = self.across.get_mut(&(from, to)) else { return };
                let Some(remote_result) = queue.pop_front() else { return };
                if self.random.chance(self.shape.doubled) {
                    queue.push_back(remote_result.clone());
                }
                self.nodes[to].received.entry(from).or_default().push(remote_result.clone());
                let read = ShardMessage::from_bytes(&remote_result.bytes).expect("a remote result");
                assert_eq!(self.node_of(read.from), from);
                self.handle(usize::from(remote_result.to), tell(Message::Engine(read)));
            }
            Next::Twice(from, to) => {
                let Some(queue) = self.across.get_mut(&(from, to)) else { return };
                let Some(remote_result) = queue.front().cloned() else { return };
                queue.push_back(remote_result);
                self.happen(Next::Across(from, to));
            }
            Next::Last(from, to) => {
                let Some(queue) = self.across.get_mut(&(from, to)) else { return };
                queue.rotate_right(1);
                self.happen(Next::Across(from, to));
            }
            Next::Part(from, to) => {
                if let Some(part) = self.parts.get_mut(&(from, to)).and_then(VecDeque::pop_front) {
                    self.say(to, Reader::of(&self.registry, &part).whole().expect("it travels"));
                }
            }
            Next::Taken(shard) => {
                if let Some(epoch) = self.pieces.get_mut(&shard).and_then(VecDeque::pop_front) {
                    self.say(shard, Saving::Taken(epoch).into());
                }
            }
            Next::Work(shard) => {
                if let Some(work) = self.work.get_mut(&shard).and_then(VecDeque::pop_front) {
                    self.handle(shard, Event::Work(work.run()));
                }
            }
            Next::Disk(shard, is_aside) => {
                let asked = self.asked.get_mut(&(shard, is_aside)).and_then(VecDeque::pop_front);
                if let Some(request) = asked {
                    let done = carry_out(self.disks.entry(shard).or_default(), &request);
                    self.handle(shard, Event::Disk(done));
                }
            }
            Next::Sweep(shard) => {
                self.unswept.remove(&shard);
                self.handle(shard, Event::Timer(SWEEP));
            }
            Next::Kill(node) => self.kill(node),
            Next::Turn(shard) => {
                if let Some(timer) = self.turns.get_mut(&shard).and_then(VecDeque::pop_front) {
                    self.handle(shard, Event::Timer(timer));
                }
            }
        }
    }

    /// Lets one thing happen, by a seeded choice; returns whether there was any.
    pub fn step(&mut self) -> bool {
        let choices = self.choices();
        if choices.is_empty() {
            return false;
        }
        let next = choices[self.random.index(choices.len())];
        self.happen(next);
        true
    }

    /// Goes on until nothing is left but what is held.
    pub fn settle(&mut self) {
        while self.step() {}
    }

    /// Everything that one node has ever received from another comes once more.
    pub fn repeat(&mut self, from: usize, to: usize) {
        let received = self.nodes[to].received.get(&from).cloned().unwrap_or_default();
        self.across.entry((from, to)).or_default().extend(received);
    }

    /// The last remote result that one node has received from another.
    pub fn last_received(&self, from: usize, to: usize) -> ShardMessage {
        let remote_results = self.nodes[to].received.get(&from);
        let last = remote_results.and_then(|remote_results| remote_results.last()).expect("a remote result");
        ShardMessage::from_bytes(&last.bytes).expect("a remote result")
    }

    /// A remote result that no shard has written goes on its way.
    pub fn forge(&mut self, to: usize, remote_result: &ShardMessage) {
        let bytes = remote_result.to_bytes();
        let link = (self.node_of(remote_result.from), self.node_of(to));
        self.across.entry(link).or_default().push_back(RemoteResult { to: to as u16, bytes, kept: false });
    }

    /// The last batch comes once more, to all shards.
    pub fn hand_again(&mut self) {
        let last = self.sealed.last().expect("a batch");
        self.batches.iter_mut().for_each(|queue| queue.push_back(Log::Sealed(last.clone()).into()));
    }

    /// A node loses everything but its log, the journal of what it has received and its checkpoints, and begins again. Of
    /// what it had under way to others, the first part arrives.
    pub fn kill(&mut self, node: usize) {
        let newest = self.saved.complete(self.layout.shards()).last().copied();
        self.kill_to(node, newest);
    }

    /// The same, and it begins from this checkpoint, or from none.
    pub fn kill_to(&mut self, node: usize, begun: Option<Epoch>) {
        let partition = PartitionId(node as u16);
        let mine = self.layout.shards_of(partition);
        self.nodes[node].restarts += 1;
        self.inside.retain(|(from, _), _| !mine.contains(from));
        for ((from, to), queue) in &mut self.across {
            if *from == node {
                let mut arrive = self.random.index(queue.len() + 1);
                queue.retain(|remote_result| {
                    let arrives = remote_result.kept || arrive > 0;
                    arrive = arrive.saturating_sub(1);
                    arrives
                });
            }
            if *to == node {
                let again = self.nodes[node].received.remove(from).unwrap_or_default();
                let again =
                    again.into_iter().map(|remote_result| RemoteResult { kept: true, ..remote_result });
                again.rev().for_each(|remote_result| queue.push_front(remote_result));
            }
        }
        // What the log does not keep is gone: reads of this partition alone, whose clients know nothing.
        let log: Vec<Arc<Batch>> = self.nodes[node]
            .input
            .iter()
            .filter(|batch| {
                (batch.is_logged() || batch.choice.is_some()) && begun.is_none_or(|begun| batch.epoch > begun)
            })
            .map(|batch| Arc::new(Batch::decode(&self.registry, &batch.encode()).expect("a log entry")))
            .collect();
        for shard in mine.clone() {
            self.shards[shard] = self.shard(shard);
            self.batches[shard] = log.iter().cloned().map(|batch| Log::Sealed(batch).into()).collect();
            if self.shape.scheduling == qstore::SCHEDULING {
                self.batches[shard].push_back(Sequencing::Passed(self.epoch).into());
            }
            self.turns.remove(&shard);
            self.work.remove(&shard);
            self.disks.remove(&shard);
            self.asked.retain(|(of, _), _| *of != shard);
            self.pieces.remove(&shard);
            self.applied.remove(&shard);
        }
        if let Some(begun) = begun {
            self.saved.restore(begun, &self.layout, mine, &mut self.shards);
        }
    }

    fn handle(&mut self, shard: usize, event: Event<Message>) {
        if self.halted.is_some() {
            return;
        }
        let mut out = Outbox::default();
        let node = self.node_of(shard);
        let now = Now { elapsed: Micros(0), wall: Micros(self.now.0 * 1000) };
        self.shards[shard].handle(now, event, &mut out);
        assert_eq!(self.shards[shard].check(), Ok(()));
        for (to, message) in out.sends {
            if let Message::Reading(Reading::Kept(epoch)) = message {
                self.kept.insert(shard, epoch);
                continue;
            }
            let its_node = usize::from(to.node.0 - REPLICA * self.layout.partitions());
            let is_answer = matches!(message, Message::Front(_) | Message::Reading(_));
            assert!(
                is_answer || its_node == node,
                "what is for another node goes by the exchange: {message:?}"
            );
            match message {
                Message::Engine(remote_result) => {
                    let to =
                        self.layout.shards_of(PartitionId(node as u16)).start + usize::from(to.role - SHARD);
                    self.inside.entry((shard, to)).or_default().push_back(remote_result);
                }
                Message::Reading(_) => {
                    let bytes = message.to_bytes();
                    let to = its_node * self.shape.threads + usize::from(to.role - SHARD);
                    self.parts.entry((shard, to)).or_default().push_back(bytes);
                }
                Message::Exchange(ExchangeMessage::RemoteResult { to: receiver, remote_result }) => {
                    assert_eq!(to.role, EXCHANGE);
                    let bytes = remote_result.to_bytes();
                    let link = (node, self.node_of(usize::from(receiver)));
                    self.across.entry(link).or_default().push_back(RemoteResult {
                        to: receiver,
                        bytes,
                        kept: false,
                    });
                }
                Message::Front(Front::Outcomes(outcomes)) => {
                    assert_eq!((outcomes.gateway, to.role), (self.gateway(its_node), GATEWAY));
                    for outcome in &outcomes.outcomes {
                        let reply = outcomes.reply(outcome).to_vec();
                        let answer = Answer { status: outcome.status, gsn: outcome.stamp.into(), reply };
                        let ticket = (outcomes.gateway, outcome.chunk, outcome.index);
                        self.answers.entry(ticket).or_default().push(answer);
                    }
                }
                Message::Sequencing(Sequencing::Expired { .. }) => {}
                Message::Sequencing(Sequencing::Applied { epoch, partition }) => {
                    assert_eq!(to.role, EXCHANGE);
                    let before = self.applied.insert(shard, (epoch, partition)).unwrap_or_default();
                    assert!(before <= (epoch, partition));
                }
                Message::Saving(Saving::Piece { epoch, piece }) => {
                    assert_eq!(to.role, CHECKPOINTER);
                    self.saved.take(shard, epoch, piece);
                    self.pieces.entry(shard).or_default().push_back(epoch);
                }
                Message::Saving(Saving::Last(epoch)) => self.saved.end(shard, epoch),
                Message::Saving(Saving::Past(_) | Saving::Skipped(_)) => {}
                other => panic!("shard {shard} sends {other:?}"),
            }
        }
        for (timer, delay) in out.timers {
            if delay.is_none_or(|delay| delay >= Micros::from_millis(100)) {
                continue;
            }
            let timers = self.turns.entry(shard).or_default();
            if !timers.contains(&timer) {
                timers.push_back(timer);
            }
        }
        self.work.entry(shard).or_default().extend(out.work);
        for request in out.disk {
            self.asked.entry((shard, request.in_background)).or_default().push_back(request);
        }
        self.halted = out.halt;
    }

    fn gateway(&self, node: usize) -> GatewayId {
        GatewayId::of(node as u16 + REPLICA * self.layout.partitions(), 0)
    }

    // ---- what must be true ---------------------------------------------------------------------------------

    /// The digest of the state.
    pub fn digest(&self) -> Digest {
        self.shards.iter().fold(Digest::default(), |sum, shard| sum.plus(shard.digest()))
    }

    /// One of the gauges of all shards of a node, summed.
    pub fn gauge(&self, node: usize, name: &str) -> f64 {
        self.layout.shards_of(PartitionId(node as u16)).map(|shard| gauge(&self.shards[shard], name)).sum()
    }

    /// A read on a snapshot was answered as the reference executor does at the end of its epoch, or not at all.
    fn verify_read(&self, reference: &mut ReferenceExecutor, chunk: &Chunk, at: Epoch, now: Millis) -> usize {
        let answers = self.answers.get(&(chunk.gateway, chunk.number, 0));
        let answers = answers.map_or(&[][..], |answers| answers);
        let is_told = |status| !matches!(status, OutcomeStatus::TooOld | OutcomeStatus::Moved);
        for answer in answers.iter().filter(|answer| is_told(answer.status)) {
            assert!(answer.gsn.is_of_read() && answer.gsn.epoch() == at);
            let result = reference.run_txn(answer.gsn, now, chunk, &chunk.txns()[0]);
            assert_eq!((answer.status, &answer.reply), (result.status, &result.reply), "as of {at}");
        }
        answers.len()
    }

    /// Everything was delivered: every client was answered, as often as may be, as the reference executor does; the state
    /// is its state; nothing is left over.
    pub fn verify(&mut self) {
        assert_eq!(self.halted, None);
        assert_eq!(self.choices(), [], "something is under way");
        for node in 0..self.shape.partitions {
            let grants = grants_gauge(self.shape.scheduling);
            for name in [grants, "ordain_shard_in_flight", "ordain_shard_out_of_order_items"] {
                assert_eq!(self.gauge(node, name), 0.0, "{name} of node {node}");
            }
        }
        let mut reference = ReferenceExecutor::new(self.registry.clone())
            .in_cluster((*self.layout).clone())
            .isolated(self.shape.isolation);
        let restarts: usize = self.nodes.iter().map(|node| node.restarts).sum();
        let mut answered = 0;
        let mut reads: Vec<_> = self.reads.values().collect();
        reads.sort_by_key(|(_, at, _)| *at);
        let mut reads = reads.into_iter().peekable();
        for batch in &self.sealed {
            while let Some((chunk, at, now)) = reads.next_if(|(_, at, _)| *at < batch.epoch) {
                answered += self.verify_read(&mut reference, chunk, *at, *now);
            }
            let results = reference.run(batch);
            for ((gsn, chunk, txn), result) in batch.txns().zip(results) {
                assert_eq!(gsn, result.gsn);
                let answers = self.answers.get(&(chunk.gateway, chunk.number, txn.index));
                let answers = answers.map_or(&[][..], |answers| answers);
                let name = self.registry.name(txn.call.procedure).unwrap_or("?");
                let what = || format!("{gsn} {name} {}", chunk.args(txn).encoded().escape_ascii());
                for answer in answers {
                    let answered = (answer.gsn, answer.status, &answer.reply);
                    assert_eq!(answered, (result.gsn, result.status, &result.reply), "{}", what());
                }
                let home = &self.nodes[usize::from(batch.partition.0)];
                // What is not logged only this replica knows, so it answers.
                let is_ours = chunk.replica == REPLICA || !txn.logged;
                let least = usize::from(is_ours && (txn.logged || home.restarts == 0));
                let most = if is_ours { 1 + restarts } else { 0 };
                assert!((least..=most).contains(&answers.len()), "{}: {} answers", what(), answers.len());
                answered += answers.len();
            }
        }
        for (chunk, at, now) in reads {
            answered += self.verify_read(&mut reference, chunk, *at, *now);
        }
        assert_eq!(answered, self.answers.values().map(Vec::len).sum::<usize>(), "answers to no client");
        assert_eq!(self.digest(), reference.digest(), "the state is not the reference executor's");
        verify_records(&self.shards, &reference);
        for (number, shard) in self.shards.iter().enumerate() {
            assert_eq!(shard.digest(), shard.store().recompute_digest());
            let mut input = self.nodes[self.node_of(number)].input.iter();
            let last = if self.nodes[self.node_of(number)].restarts > 0 {
                input.rfind(|batch| batch.is_logged())
            } else {
                input.next_back()
            };
            let last = last.map_or((Epoch(0), PartitionId(0)), |batch| (batch.epoch, batch.partition));
            assert!(shard.applied() >= last, "shard {number} has applied {:?} of {last:?}", shard.applied());
            if last.0 > Epoch(0) {
                assert_eq!(self.applied.get(&number).copied(), Some(shard.applied()));
            }
        }
    }
}
