//! A cluster of the commit family without a drawn number: messages take as long as is fixed, and a script holds and delivers
//! them, cuts members off, stops clocks, and asks for transactions like a client.

mod at_rest;
mod disk;
mod regions;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub use disk::on_disk;
use ordain_checker::Level;
use ordain_checker::dependencies::history;
use ordain_checker::dependencies::{self, Anomaly, Observed, Outcome, Txn, findings, judge, judge_within};
use ordain_commit::options::RO_LOCAL;
use ordain_commit::{CommitEngine, CommitFamily, Content, Entry, Message, Order, Protocol};
use ordain_family::{Family as _, NodeSettings, Opened as _, Services, places};
use ordain_gateway::Gateway;
use ordain_log::MemoryDirectory;
use ordain_model::{
    Call, Chunk, ChunkNo, Datum, Front, GatewayId, Layout, Micros, Options, OutcomeStatus, PartitionId,
    ProcedureId, Registry, RequestNo, RoLocal, SessionId, Stamp, Token, View, system,
};
use ordain_replication::Log;
use ordain_role::{
    Address, Bugs, Directory as _, DiskDone, Event, NodeId, Now, Outbox, PeerChange, PeerState, Role,
    TimerId, Topology,
};
use ordain_workload::append;

/// A message takes so long between nodes, and a step or disk request within one.
const BETWEEN: Micros = Micros(200);
const WITHIN: Micros = Micros(5);
/// The wall clock of every node when its own clock shows 0.
const WALL: Micros = Micros(1_700_000_000_000_000);
/// The number of what asks for a checkpoint.
const SAVES: ChunkNo = ChunkNo(u64::MAX);
/// A script waits for something so long at most.
const PATIENCE: Micros = Micros::from_millis(20_000);

/// What a transaction does with a list.
#[derive(Clone, Copy, Debug)]
pub enum Do {
    Read(u64),
    Append(u64),
}

/// A procedure and its arguments.
type Procedure = (ProcedureId, Vec<Vec<u8>>);

/// An answer to a client.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: OutcomeStatus,
    pub reply: Vec<u8>,
    at: Micros,
    /// Where it has taken effect.
    stamp: Stamp,
}

#[derive(Debug)]
struct Asked {
    base: u64,
    /// The operations on lists; none if it calls another procedure.
    ops: Vec<Do>,
    call: Procedure,
    at: Micros,
    session: Option<(u64, u64)>,
    /// The request that is asked again by this one.
    of: Option<usize>,
    answer: Option<Answer>,
}

/// A transaction that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(usize);

#[derive(Default)]
struct Node {
    roles: BTreeMap<u16, Box<dyn Role<Message = Message>>>,
    disk: MemoryDirectory,
    /// The number of times that it has started.
    life: u64,
    /// The number of entries about attempts that it has proposed to its log.
    written: u64,
    /// The valid setting of each timer.
    timers: BTreeMap<(u16, TimerId), u64>,
    /// How far its wall clock is ahead of the others.
    ahead: Micros,
    /// How far its clock is behind, and since when it stands still.
    behind: Micros,
    stopped: Option<Micros>,
    /// Timers that have come due meanwhile.
    late: Vec<Due>,
}

enum Due {
    Deliver { from: Address, to: Address, message: Box<Message> },
    Timer { at: Address, timer: TimerId, setting: u64 },
    Disk { at: Address, done: DiskDone },
}

/// A stream of messages that keep their order: between two nodes, or between two roles of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stream {
    Nodes(NodeId, NodeId),
    Roles(Address, Address),
}

/// A test of a message by its sender, receiver and content.
pub type Which = Box<dyn Fn(Address, Address, &Message) -> bool>;

pub struct World {
    family: CommitFamily,
    settings: NodeSettings,
    registry: Arc<Registry>,
    nodes: Vec<Node>,
    due: BTreeMap<(Micros, u64), Due>,
    sequence: u64,
    now: Micros,
    /// A message takes so long between nodes of two partitions.
    apart: Micros,
    /// The disks take so long for values.
    values_after: Micros,
    /// Ways that are cut.
    severed: BTreeSet<(NodeId, NodeId)>,
    holds: BTreeMap<u32, Which>,
    /// Streams that are held, from the first message that was to be held on.
    held: BTreeMap<Stream, VecDeque<(Address, Address, Message)>>,
    asked: Vec<Asked>,
    /// Connections of clients: their nodes, and the gateways that keep their requests in order. Number 0 of the gateways of a node
    /// is that of requests without a connection.
    connections: Vec<(NodeId, Gateway)>,
    /// The first node that has stopped, with its reason.
    pub halted: Option<String>,
    is_sound: bool,
}

impl World {
    /// A cluster of partitions with three members each, one shard a partition, when each partition has a leader.
    pub fn new(engine: CommitEngine, partitions: usize, bugs: Bugs) -> World {
        World::with(engine, Options::new(engine.name, &[]), partitions, bugs)
    }

    /// Such a cluster with options of its engine.
    pub fn with(engine: CommitEngine, options: Options, partitions: usize, bugs: Bugs) -> World {
        World::sharded(engine, options, (partitions, 1), bugs)
    }

    /// Such a cluster of some partitions, each of some shards.
    pub fn sharded(engine: CommitEngine, options: Options, size: (usize, usize), bugs: Bugs) -> World {
        World::built(engine, (options, bugs), grid(size), |settings| settings)
    }

    /// A cluster of one partition whose members keep hardly anything of the log behind what checkpoints cover.
    pub fn forgetful(engine: CommitEngine, bugs: Bugs) -> World {
        World::built(engine, (Options::new(engine.name, &[]), bugs), grid((1, 1)), |settings| NodeSettings {
            segment_bytes: 4 << 10,
            log_keep_bytes: 1,
            ..settings
        })
    }

    fn built(
        engine: CommitEngine,
        (options, bugs): (Options, Bugs),
        topology: Topology,
        settle: impl FnOnce(NodeSettings) -> NodeSettings,
    ) -> World {
        let mut registry = Registry::default();
        ordain_workload::register(&mut registry);
        ordain_commands::register(&mut registry);
        system::register(&mut registry);
        crate::children::register(&mut registry);
        let (count, partitions) = (topology.nodes(), usize::from(topology.layout.partitions()));
        let identity = b"scheduled".to_vec();
        let settings =
            disk::settings(NodeSettings { topology, identity, bugs, ..NodeSettings::new(options) });
        let settings = settle(settings);
        let mut world = World {
            family: CommitFamily { engine, services: Services::ALL },
            settings,
            registry: Arc::new(registry),
            nodes: Vec::new(),
            due: BTreeMap::new(),
            sequence: 0,
            now: Micros(0),
            apart: BETWEEN,
            values_after: WITHIN,
            severed: BTreeSet::new(),
            holds: BTreeMap::new(),
            held: BTreeMap::new(),
            asked: Vec::new(),
            connections: Vec::new(),
            halted: None,
            is_sound: bugs == Bugs::NONE,
        };
        for node in (0..count).map(NodeId) {
            world.nodes.push(Node::default());
            world.start(node);
        }
        for partition in 0..partitions {
            world.until("a leader", |w| w.leader(partition).is_some());
        }
        world.run(Micros::from_millis(50));
        world
    }

    /// Starts a node with what is on its disk.
    fn start(&mut self, node: NodeId) {
        let own = &mut self.nodes[usize::from(node.0)];
        own.life += 1;
        let settings = NodeSettings { node, life: own.life, ..self.settings.clone() };
        let opened =
            self.family.open(Some(&mut own.disk), &settings, &self.registry).expect("a sound directory");
        own.roles = opened.into_roles().into_iter().collect();
        let numbers: Vec<u16> = own.roles.keys().copied().collect();
        numbers.into_iter().for_each(|role| self.step(Address { node, role }, Event::Start));
        for other in (0..self.settings.topology.nodes()).map(NodeId).filter(|other| *other != node) {
            self.tell(node, other, PeerState::Fresh);
        }
    }

    // ---- what a script does --------------------------------------------------------------------------------

    /// The node that serves a partition, in the latest term of those that say so.
    pub fn leader(&self, partition: usize) -> Option<NodeId> {
        let members = self.settings.topology.group(PartitionId(partition as u16));
        let is =
            |node: NodeId, names: [&str; 2]| names.map(|name| self.gauge(node, name)).iter().sum::<f64>();
        let leads = members.filter(|n| is(*n, ["ordain_group_is_leader", "ordain_storage_is_leader"]) == 1.0);
        leads.max_by_key(|node| is(*node, ["ordain_group_term", "ordain_storage_ballot"]) as u64)
    }

    /// The nodes of a partition.
    pub fn members(&self, partition: usize) -> Vec<NodeId> {
        self.settings.topology.group(PartitionId(partition as u16)).collect()
    }

    /// The leader of a partition.
    pub fn led_by(&self, partition: usize) -> NodeId {
        self.leader(partition).expect("a leader")
    }

    /// Waits until another node than one leads its partition, and serves.
    pub fn another_leads(&mut self, partition: usize, than: NodeId) -> NodeId {
        self.until("another leader", |w| w.leader(partition).is_some_and(|node| node != than));
        self.run(Micros::from_millis(20));
        self.led_by(partition)
    }

    /// A number that the roles of a node report, their sum; 0 if none does.
    pub fn gauge(&self, node: NodeId, name: &str) -> f64 {
        let mut sum = 0.0;
        for role in self.nodes[usize::from(node.0)].roles.values() {
            role.gauges(&mut |known, value| sum += if known == name { value } else { 0.0 });
        }
        sum
    }

    /// Has a node lose its power and start once more. What it has asked of its disk is done.
    pub fn start_again(&mut self, node: NodeId) {
        let own = &mut self.nodes[usize::from(node.0)];
        (own.timers, own.late, own.stopped) = (BTreeMap::new(), Vec::new(), None);
        let is_its = |due: &Due| match due {
            Due::Deliver { from, to, .. } => from.node == node || to.node == node,
            Due::Disk { at, .. } | Due::Timer { at, .. } => at.node == node,
        };
        self.due.retain(|_, due| !is_its(due));
        self.held.retain(|stream, _| match stream {
            Stream::Nodes(from, to) => ![from, to].contains(&&node),
            Stream::Roles(from, _) => from.node != node,
        });
        self.start(node);
        for other in (0..self.settings.topology.nodes()).map(NodeId).filter(|other| *other != node) {
            self.tell(other, node, PeerState::Fresh);
        }
    }

    /// The number of entries about attempts that a node has proposed to its log.
    pub fn written(&self, node: NodeId) -> u64 {
        self.nodes[usize::from(node.0)].written
    }

    /// The number of times that a node has started.
    pub fn lives(&self, node: NodeId) -> u64 {
        self.nodes[usize::from(node.0)].life
    }

    /// Damages the newest checkpoint on the disk of a node.
    pub fn spoil(&mut self, node: NodeId) {
        let disk = &mut self.nodes[usize::from(node.0)].disk;
        let found = ordain_checkpoint::list(disk).expect("a sound disk");
        let newest = found.iter().rfind(|found| found.is_complete()).expect("a checkpoint");
        let middle = newest.bytes.expect("a complete checkpoint") / 2;
        disk.damage(&ordain_checkpoint::file_name(newest.epoch), middle, 1);
    }

    /// Cuts a member off from the others of its partition. Clients and nodes of other partitions reach it, and it does not see
    /// time pass, so that it takes itself for the leader for as long as it is so.
    pub fn depose(&mut self, node: NodeId) {
        self.sever(node);
        self.nodes[usize::from(node.0)].stopped = Some(self.now);
    }

    /// Cuts a member off from the others of its partition.
    pub fn sever(&mut self, node: NodeId) {
        let partition = self.settings.topology.partition_of(node);
        for other in self.settings.topology.group(partition).filter(|other| *other != node) {
            self.severed.extend([(node, other), (other, node)]);
        }
    }

    /// A member hears the others again, and its clock goes on.
    pub fn restore(&mut self, node: NodeId) {
        self.severed.retain(|(from, to)| *from != node && *to != node);
        let Node { behind, stopped, late, .. } = &mut self.nodes[usize::from(node.0)];
        if let Some(since) = stopped.take() {
            *behind = behind.plus(self.now.since(since));
        }
        std::mem::take(late).into_iter().for_each(|due| self.push(WITHIN, due));
        self.deliver_held();
    }

    /// Makes the disk of a node full, or gives it space again.
    pub fn fill(&mut self, node: NodeId, is_full: bool) {
        let disk = &mut self.nodes[usize::from(node.0)].disk;
        let from = is_full.then(|| disk.ops());
        disk.set_full_from(from);
    }

    /// The streams between two nodes begin anew: what is on its way over them is lost, and both ends are told.
    pub fn renew(&mut self, a: NodeId, b: NodeId) {
        let pairs = [(a, b), (b, a)];
        self.held.retain(|stream, _| !pairs.iter().any(|(from, to)| *stream == Stream::Nodes(*from, *to)));
        let is_between = |due: &Due| match due {
            Due::Deliver { from, to, .. } => pairs.contains(&(from.node, to.node)),
            Due::Timer { .. } | Due::Disk { .. } => false,
        };
        self.due.retain(|_, due| !is_between(due));
        pairs.into_iter().for_each(|(node, other)| self.tell(node, other, PeerState::Fresh));
    }

    /// Tells a node of the state of its stream with another.
    fn tell(&mut self, node: NodeId, other: NodeId, state: PeerState) {
        let settings = NodeSettings { node, ..self.settings.clone() };
        for role in self.family.peer_watchers(&settings) {
            let at = Address { node, role };
            let change = PeerChange { node: other, state };
            self.push(WITHIN, Due::Deliver { from: at, to: at, message: Box::new(Message::Peer(change)) });
        }
    }

    /// Sets how far a node's wall clock is ahead of the others.
    pub fn set_ahead(&mut self, node: NodeId, ahead: Micros) {
        self.nodes[usize::from(node.0)].ahead = ahead;
    }

    /// Holds messages, and all that come behind one on its stream, until [`World::release`] with the number that is answered.
    pub fn hold(&mut self, which: impl Fn(Address, Address, &Message) -> bool + 'static) -> u32 {
        let number = self.holds.last_key_value().map_or(0, |(last, _)| last + 1);
        self.holds.insert(number, Box::new(which));
        number
    }

    /// Delivers what was held, in order.
    pub fn release(&mut self, number: u32) {
        self.holds.remove(&number);
        self.deliver_held();
    }

    /// True if a message is held that was to be.
    pub fn holds_something(&self) -> bool {
        let is_cut =
            |(from, to, _): &(Address, Address, Message)| self.severed.contains(&(from.node, to.node));
        self.held.values().any(|queue| queue.front().is_some_and(|first| !is_cut(first)))
    }

    /// True if an access of one node to another is held.
    pub fn holds_access(&self, from: NodeId, to: NodeId) -> bool {
        let is_access = |message: &Message| {
            let Message::Termed(termed) = message else { return false };
            matches!(termed.content, Protocol::Access(_))
        };
        let queue = self.held.get(&Stream::Nodes(from, to));
        queue.is_some_and(|queue| queue.iter().any(|(.., message)| is_access(message)))
    }

    /// The number that tells where a transaction has taken effect; 0 if it is not answered.
    pub fn stamp(&self, ticket: Ticket) -> u64 {
        self.answer(ticket).map_or(0, |answer| answer.stamp.number())
    }

    /// The number of a list of a partition, each time another one.
    pub fn list_in(&self, partition: usize, nth: usize) -> u64 {
        let layout = &self.settings.topology.layout;
        let is_there = |list: &u64| usize::from(layout.region_of(&append::key(*list)).0) == partition;
        (0..).filter(is_there).nth(nth).expect("every partition has slots")
    }

    /// The address of a node's shard, by its number on the node.
    pub fn shard_at(&self, node: NodeId, nth: u16) -> Address {
        Address { node, role: places::SHARDS + nth }
    }

    /// A list of a shard, for each number another one.
    pub fn list_at(&self, shard: usize, nth: usize) -> u64 {
        let layout = &self.settings.topology.layout;
        let is_there =
            |list: &u64| layout.shard_of(layout.placement().hash_of(&append::key(*list)).slot()) == shard;
        (0..).filter(is_there).nth(nth).expect("every shard has slots")
    }

    /// A key of a partition, for each number another one.
    pub fn key_in(&self, partition: usize, nth: usize) -> Vec<u8> {
        let layout = &self.settings.topology.layout;
        let is_there = |key: &Vec<u8>| usize::from(layout.region_of(key).0) == partition;
        let mut keys = (0..).map(|n| format!("key{n}").into_bytes()).filter(is_there);
        keys.nth(nth).expect("every partition has slots")
    }

    /// A key of a shard, for each number another one.
    pub fn key_on(&self, shard: usize, nth: usize) -> Vec<u8> {
        let layout = &self.settings.topology.layout;
        let is_there = |key: &Vec<u8>| layout.shard_of(layout.placement().hash_of(key).slot()) == shard;
        let mut keys = (0..).map(|n| format!("key{n}").into_bytes()).filter(is_there);
        keys.nth(nth).expect("every shard has slots")
    }

    /// A session at home in a partition.
    pub fn session_in(&self, partition: usize) -> u64 {
        let layout = &self.settings.topology.layout;
        let is_home = |id: &u64| usize::from(layout.home_partition_of(SessionId(*id)).0) == partition;
        (1..).find(is_home).expect("every partition has slots")
    }

    /// Asks a node for a transaction.
    pub fn ask(&mut self, node: NodeId, ops: &[Do]) -> Ticket {
        self.ask_in(node, None, ops)
    }

    /// Asks a node for a session's request.
    pub fn ask_in(&mut self, node: NodeId, session: Option<(u64, u64)>, ops: &[Do]) -> Ticket {
        let call = self.appends(ops, false);
        let ticket = self.note(session, ops, call, None);
        self.send(node, ticket)
    }

    /// Asks a node for a transaction that aborts by its own logic at its last operation.
    pub fn ask_to_fail(&mut self, node: NodeId, ops: &[Do]) -> Ticket {
        let call = self.appends(ops, true);
        let ticket = self.note(None, ops, call, None);
        self.send(node, ticket)
    }

    /// Asks a node for what another one was asked for, as a client does that has not got its answer.
    pub fn ask_again(&mut self, node: NodeId, of: Ticket) -> Ticket {
        let Asked { ops, session, call, .. } = &self.asked[of.0];
        let (ops, session, call) = (ops.clone(), *session, call.clone());
        let ticket = self.note(session, &ops, call, Some(of.0));
        self.send(node, ticket)
    }

    /// Asks a node for a command.
    pub fn command(&mut self, node: NodeId, procedure: ProcedureId, args: &[&[u8]]) -> Ticket {
        self.command_in(node, None, procedure, args)
    }

    /// Asks a node for a session's command.
    pub fn command_in(
        &mut self,
        node: NodeId,
        session: Option<(u64, u64)>,
        procedure: ProcedureId,
        args: &[&[u8]],
    ) -> Ticket {
        let args = args.iter().map(|arg| arg.to_vec()).collect();
        let ticket = self.note(session, &[], (procedure, args), None);
        self.send(node, ticket)
    }

    /// Opens a connection to a node; answers its number.
    pub fn connect(&mut self, node: NodeId) -> usize {
        let settings = NodeSettings { node, ..self.settings.clone() };
        let number = self.connections.len() as u16 + 1;
        let gateway = self.family.gateway(&settings, number, 1, &self.registry);
        self.connections.push((node, gateway.planting(settings.bugs)));
        self.connections.len() - 1
    }

    /// Asks over a connection, whether or not the last request over it is answered.
    pub fn ask_over(&mut self, connection: usize, ops: &[Do]) -> Ticket {
        let call = self.appends(ops, false);
        let (procedure, args) = call.clone();
        let ticket = self.note(None, ops, call, None);
        let write = |out: &mut ordain_model::ArgsBuilder<'_>| args.iter().for_each(|arg| _ = out.push(arg));
        let (call, view) = (Call::new(procedure, append::DB), View::Since(Token::NOTHING));
        let (_, gateway) = &mut self.connections[connection];
        let name = ordain_gateway::Ticket(ticket.0 as u64);
        gateway.submit_in_order(ordain_gateway::Stream(0), name, call, view, write).expect("a plan");
        self.flush(connection);
        ticket
    }

    fn flush(&mut self, connection: usize) {
        let (node, gateway) = &mut self.connections[connection];
        let node = *node;
        let leaving: Vec<Front> =
            std::iter::from_fn(|| gateway.flush()).map(ordain_gateway::Departure::into_message).collect();
        for front in leaving {
            self.hand_in(node, front);
        }
    }

    /// The call of a transaction on lists that is asked for next.
    fn appends(&self, ops: &[Do], fails: bool) -> Procedure {
        let mut mask = 0u8;
        let mut args = Vec::new();
        for (n, op) in ops.iter().enumerate() {
            mask |= u8::from(matches!(op, Do::Append(_))) << n;
            args.push(append::key(list_of(op)).to_vec());
        }
        args.push([&[mask, u8::from(fails)][..], &self.next_base().to_le_bytes()].concat());
        (append::RUN, args)
    }

    fn next_base(&self) -> u64 {
        (self.asked.len() as u64 + 1) << 8
    }

    fn note(
        &mut self,
        session: Option<(u64, u64)>,
        ops: &[Do],
        call: Procedure,
        of: Option<usize>,
    ) -> Ticket {
        // What is asked after an answer is not asked at the same moment.
        self.run(Micros(1));
        let (base, at, ops) = (self.next_base(), self.now, ops.to_vec());
        self.asked.push(Asked { base, ops, call, at, session, of, answer: None });
        Ticket(self.asked.len() - 1)
    }

    fn send(&mut self, node: NodeId, ticket: Ticket) -> Ticket {
        let chunk = self.chunk(node, ticket);
        self.hand_in(node, Front::Submit(chunk));
        ticket
    }

    /// What asks a node for a transaction.
    fn chunk(&self, node: NodeId, ticket: Ticket) -> Arc<Chunk> {
        let Asked { session, call: (procedure, args), .. } = &self.asked[ticket.0];
        let call = Call::new(*procedure, append::DB);
        let call = Call { session: session.map(|(id, n)| (SessionId(id), RequestNo(n))), ..call };
        let gateway = GatewayId::of(node.0, 0);
        let layout = self.settings.topology.layout.clone();
        let replica = self.settings.topology.replica_of(node).0;
        let mut chunk = Chunk::new(gateway, ChunkNo(ticket.0 as u64 + 1)).in_cluster(replica, layout);
        let write = |out: &mut ordain_model::ArgsBuilder<'_>| args.iter().for_each(|arg| _ = out.push(arg));
        chunk.push(&self.registry, call, write).expect("a plan");
        Arc::new(chunk)
    }

    fn hand_in(&mut self, node: NodeId, front: Front) {
        let door = Address { node, role: places::GATEWAYS };
        let message = Message::Front(front);
        self.push(
            WITHIN,
            Due::Deliver { from: door, to: Address { node, role: 0 }, message: Box::new(message) },
        );
    }

    /// Asks a node for a checkpoint. Its answer is not waited for.
    pub fn save(&mut self, node: NodeId) {
        let mut chunk = Chunk::new(GatewayId::of(node.0, 0), SAVES);
        chunk.push(&self.registry, Call::new(system::CHECKPOINT, append::DB), |_| {}).expect("a plan");
        let door = Address { node, role: places::GATEWAYS };
        let message = Message::Front(Front::Submit(Arc::new(chunk)));
        self.push(
            WITHIN,
            Due::Deliver { from: door, to: Address { node, role: 0 }, message: Box::new(message) },
        );
    }

    /// What the log of a partition's leader holds.
    pub fn log(&mut self, partition: usize) -> Vec<Arc<Entry>> {
        let node = self.led_by(partition);
        let settings = NodeSettings { node, life: 1, ..self.settings.clone() };
        let disk = &mut self.nodes[usize::from(node.0)].disk;
        CommitFamily::entries(disk, &settings).expect("a sound log").1
    }

    /// The answer to a transaction, if it has come.
    pub fn answer(&self, ticket: Ticket) -> Option<&Answer> {
        self.asked[ticket.0].answer.as_ref()
    }

    /// Waits for the answer to a transaction.
    pub fn answered(&mut self, ticket: Ticket) -> Answer {
        self.until("an answer", |w| w.answer(ticket).is_some() || w.halted.is_some());
        self.answer(ticket).cloned().unwrap_or(Answer {
            status: OutcomeStatus::Unknown,
            reply: Vec::new(),
            at: self.now,
            stamp: Stamp::NONE,
        })
    }

    /// Waits for the answer to a transaction, which must have committed.
    pub fn committed(&mut self, ticket: Ticket) {
        let answer = self.answered(ticket);
        assert!(answer.status == OutcomeStatus::Committed || self.halted.is_some(), "{answer:?}");
    }

    /// Runs for a time.
    pub fn run(&mut self, time: Micros) {
        let end = self.now.plus(time);
        while self.due.first_key_value().is_some_and(|((at, _), _)| *at <= end) {
            self.next();
        }
        self.now = end;
    }

    /// Runs until something holds.
    ///
    /// # Panics
    /// If it does not hold within [`PATIENCE`].
    pub fn until(&mut self, what: &str, is_so: impl Fn(&World) -> bool) {
        let end = self.now.plus(PATIENCE);
        while !is_so(self) {
            assert!(self.now <= end && !self.due.is_empty(), "waited for {what} in vain at {:?}", self.now);
            self.next();
        }
    }

    /// Lets all go on, waits until all is answered, and judges what clients have seen.
    ///
    /// # Errors
    /// A node has stopped, something is not answered or not at rest, or the answers are not of the engine's level.
    pub fn end(self) -> Result<(), String> {
        self.end_showing().map(|_| ())
    }

    /// Ends as [`World::end`], and answers what the answers show that no serial order does, as far as the engine's level allows it.
    ///
    /// # Errors
    /// As [`World::end`].
    pub fn end_showing(self) -> Result<BTreeSet<Anomaly>, String> {
        let (engine, options) = (self.family.engine, self.settings.options.clone());
        let resolves = options.choice::<RoLocal>(&RO_LOCAL) == RoLocal::Resolved;
        let seen = self.seen()?;
        let levels = match engine.order(&options) {
            Order::RealTime if resolves => &[Level::SnapshotReads][..],
            Order::RealTime if engine.is_strict => &[Level::StrictSerializable][..],
            Order::RealTime => &[Level::StampOrder, Level::StrictSerializable],
            Order::Sessions => &[Level::StampOrder],
            Order::Stamps => &[Level::StampsAlone],
            Order::Parallel => &[Level::SessionParallelSnapshot],
            Order::FreshParallel => &[Level::FreshParallelSnapshot],
        };
        levels.iter().try_for_each(|level| judge(*level, &seen)).map_err(|finding| finding.to_string())?;
        Ok(findings(Level::Serializable, &seen).anomalies().collect())
    }

    /// Ends as [`World::end`], and answers too whether the answers are those of the order of real time, but for transactions that are
    /// no further apart than each of the bounds.
    ///
    /// # Errors
    /// As [`World::end`].
    pub fn end_within<const N: usize>(self, bounds: [Micros; N]) -> Result<[bool; N], String> {
        let seen = self.seen()?;
        judge(Level::StampsAlone, &seen).map_err(|finding| finding.to_string())?;
        Ok(bounds.map(|bound| judge_within(bound.0, &seen).is_ok()))
    }

    /// Lets all go on, waits until all is answered, and answers what clients have seen.
    fn seen(mut self) -> Result<dependencies::History, String> {
        (0..self.nodes.len()).for_each(|node| self.restore(NodeId(node as u16)));
        self.holds.clear();
        self.deliver_held();
        self.run(Micros::from_millis(8_000));
        let roles = self.nodes.iter().flat_map(|node| node.roles.values()).filter(|_| self.is_sound);
        for role in roles {
            role.check_at_rest().map_err(|reason| format!("a {} is not at rest: {reason}", role.name()))?;
        }
        let lists: BTreeSet<u64> =
            self.asked.iter().flat_map(|asked| asked.ops.iter().map(list_of)).collect();
        let mut orders = BTreeMap::new();
        for list in lists {
            let layout = &self.settings.topology.layout;
            let partition = layout.region_of(&append::key(list));
            let door = self.led_by(usize::from(partition.0));
            // An update, so that it is answered also where no leader can prove that it leads.
            let ticket = self.ask(door, &[Do::Read(list), Do::Append(list)]);
            let answer = self.answered(ticket);
            if let Some(reason) = self.halted.take() {
                return Err(reason);
            }
            let read =
                read(&answer).ok_or_else(|| format!("a read of list {list} was answered {answer:?}"))?;
            let [history::Op::Read { values, .. }, history::Op::Append { value, .. }] = &read.ops[..] else {
                panic!("{read:?}")
            };
            let values: Vec<u64> = values.iter().copied().chain([*value]).collect();
            orders.insert(list, values);
        }
        for node in (0..self.nodes.len()).map(|node| NodeId(node as u16)) {
            for name in at_rest::NAMES {
                if self.gauge(node, name) > 0.0 {
                    return Err(format!("node {} is not at rest: {name}", node.0));
                }
            }
        }
        self.compare_digests()?;
        self.compare_outcomes()?;
        for (asked, first) in self.asked.iter().filter_map(|asked| Some((asked, &self.asked[asked.of?]))) {
            let replies = [asked, first].map(|asked| asked.answer.as_ref().map(|answer| &answer.reply));
            if replies[0] != replies[1] {
                return Err(format!("one request was answered {replies:?}"));
            }
        }
        let once = self.asked.iter().filter(|asked| asked.of.is_none() && !asked.ops.is_empty());
        let txns = once.map(observed).collect::<Result<_, _>>()?;
        Ok(dependencies::History { txns, orders, ..Default::default() })
    }

    // ---- steps ---------------------------------------------------------------------------------------------

    fn push(&mut self, delay: Micros, due: Due) {
        self.sequence += 1;
        self.due.insert((self.now.plus(delay), self.sequence), due);
    }

    fn next(&mut self) {
        let Some(((at, _), due)) = self.due.pop_first() else { return };
        self.now = at;
        match due {
            Due::Deliver { from, to, message } => self.deliver(from, to, *message),
            Due::Disk { at, done } => self.step(at, Event::Disk(done)),
            due @ Due::Timer { at, timer, setting } => {
                let node = &mut self.nodes[usize::from(at.node.0)];
                if node.timers.get(&(at.role, timer)) != Some(&setting) {
                    return;
                }
                if node.stopped.is_some() {
                    return node.late.push(due);
                }
                node.timers.remove(&(at.role, timer));
                self.step(at, Event::Timer(timer));
            }
        }
    }

    fn deliver(&mut self, from: Address, to: Address, message: Message) {
        let stream = match from.node == to.node {
            true => Stream::Roles(from, to),
            false => Stream::Nodes(from.node, to.node),
        };
        let is_held = self.severed.contains(&(from.node, to.node))
            || self.holds.values().any(|which| which(from, to, &message));
        if is_held || self.held.contains_key(&stream) {
            return self.held.entry(stream).or_default().push_back((from, to, message));
        }
        if to.role >= places::GATEWAYS {
            return self.take_outcomes(message);
        }
        if let Message::Log(Log::Append(entry)) = &message {
            let is_of_an_attempt = !matches!(
                entry.content,
                Content::Begin | Content::Reserve(_) | Content::Mark | Content::Announce(_)
            );
            self.nodes[usize::from(to.node.0)].written += u64::from(is_of_an_attempt);
        }
        self.step(to, Event::Message { from, message });
    }

    /// Delivers what is held and is not to be held any more.
    fn deliver_held(&mut self) {
        for (_, queue) in std::mem::take(&mut self.held) {
            for (from, to, message) in queue {
                self.deliver(from, to, message);
            }
        }
    }

    fn take_outcomes(&mut self, message: Message) {
        let Message::Front(Front::Outcomes(batch)) = message else { return };
        let mut ended: Vec<(usize, Answer)> = Vec::new();
        let at = self.now;
        let connection = usize::from(batch.gateway.number()).checked_sub(1);
        match connection {
            None => {
                let own = batch.outcomes.iter().filter(|outcome| outcome.chunk != SAVES);
                ended.extend(own.map(|outcome| {
                    let reply = batch.reply(outcome).to_vec();
                    let answer = Answer { status: outcome.status, reply, at, stamp: outcome.stamp };
                    (outcome.chunk.0 as usize - 1, answer)
                }));
            }
            Some(connection) => {
                self.connections[connection].1.take_outcomes(&batch, |finished| {
                    let reply = finished.reply.to_vec();
                    let answer = Answer { status: finished.status, reply, at, stamp: finished.stamp };
                    ended.push((finished.ticket.0 as usize, answer));
                });
                self.flush(connection);
            }
        }
        for (of, answer) in ended {
            self.asked[of].answer.get_or_insert(answer);
        }
    }

    fn step(&mut self, at: Address, event: Event<Message>) {
        let node = &mut self.nodes[usize::from(at.node.0)];
        let shown = node.stopped.unwrap_or(self.now).since(node.behind);
        let now = Now { elapsed: shown, wall: WALL.plus(shown).plus(node.ahead) };
        let Some(role) = node.roles.get_mut(&at.role) else { return };
        let mut out = Outbox::default();
        role.handle(now, event, &mut out);
        if let Err(reason) = role.check()
            && self.is_sound
        {
            out.halt(reason);
        }
        if let Some(reason) = out.halt {
            let reason = format!("node {} stopped: {reason}", at.node.0);
            assert!(!self.is_sound, "{reason}");
            node.roles.clear();
            self.halted.get_or_insert(reason);
            return;
        }
        assert!(out.work.is_empty(), "no schedule needs that");
        if out.rebuild.is_some() {
            // A rebuild discards nothing of a node of this family, which has a checkpoint to begin with.
            return self.start_again(at.node);
        }
        for (timer, delay) in out.timers {
            self.sequence += 1;
            let (key, setting) = ((at.role, timer), self.sequence);
            match delay {
                Some(delay) => {
                    self.nodes[usize::from(at.node.0)].timers.insert(key, setting);
                    self.push(delay, Due::Timer { at, timer, setting });
                }
                None => _ = self.nodes[usize::from(at.node.0)].timers.remove(&key),
            }
        }
        for request in out.disk {
            let disk = &mut self.nodes[usize::from(at.node.0)].disk;
            let result = request.ops.iter().try_for_each(|op| disk.apply(op));
            let after = if disk::is_of_values(&request) { self.values_after } else { WITHIN };
            self.push(after, Due::Disk { at, done: DiskDone { token: request.token, result } });
        }
        for (to, message) in out.sends {
            let delay = self.way(at.node, to.node);
            self.push(delay, Due::Deliver { from: at, to, message: Box::new(message) });
        }
    }
}

/// Partitions of three members each, by their number and that of their shards.
fn grid((partitions, shards): (usize, usize)) -> Topology {
    Topology::replicated(Arc::new(Layout::even(partitions, shards).expect("a layout")), 3)
}

const fn list_of(op: &Do) -> u64 {
    let (Do::Read(list) | Do::Append(list)) = op;
    *list
}

/// The transaction that a committed answer reports.
pub fn read(answer: &Answer) -> Option<Txn> {
    let Datum::Bulk(bytes) = Datum::first(&answer.reply) else { return None };
    (answer.status == OutcomeStatus::Committed).then(|| Txn::decode(bytes))?
}

/// What a client has seen of a transaction.
fn observed(asked: &Asked) -> Result<Observed, String> {
    let Asked { base, ops, at, session, answer, .. } = asked;
    let Some(answer) = answer else { return Err(format!("transaction {base} is not answered")) };
    let appends = (0..).zip(ops).filter_map(|(n, op)| match op {
        Do::Append(list) => Some(history::Op::Append { key: *list, value: base + n }),
        Do::Read(_) => None,
    });
    let asked_for = Txn { base: *base, ops: appends.collect() };
    let seen = match (read(answer), answer.status) {
        (Some(txn), _) => {
            let stamp = (answer.stamp != Stamp::NONE).then(|| answer.stamp.number());
            Observed { stamp, ..Observed::committed(txn).between(at.0, Some(answer.at.0)) }
        }
        (None, OutcomeStatus::Unknown) => Observed::new(asked_for, Outcome::Unknown).between(at.0, None),
        (None, _) => Observed::new(asked_for, Outcome::Aborted).between(at.0, None),
    };
    Ok(Observed { session: *session, ..seen })
}
