//! The discrete-event driver: one queue of happenings in virtual time, one random source, one thread.
//!
//! Everything that a driver promises a role (see `ordain_role`) it keeps, and beyond that it is as unhelpful as
//! the faults allow: roles of one node run at any relative speed, packets between nodes are late, lost, doubled and
//! reordered (the module `network`), disks are slow and full, nodes stand still and lose power between any
//! two disk operations.
//!
//! Happenings at one time are handled in the order in which they were scheduled, so the run is a function of
//! the seed alone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt::{self, Debug, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ordain_family::{Incoming, Message};
use ordain_model::{Front, Gsn, Micros, PauseNo, Registry};
use ordain_role::{Address, Directory, DiskOp, DiskRequest, Event, NodeId, Outbox, TimerId, WorkDone};
use xxhash_rust::xxh3::xxh3_64;

use crate::client::{Client, Door, Waiter};
use crate::clock::Clock;
use crate::faults::Intensity;
use crate::network::{Cuts, DRIVER, Packet};
use crate::node::{FailingDirectory, Node, Slot};
use crate::run::Config;
use crate::system::System;
use crate::trace::{Sink, Trace};
use crate::workload::Workload;
use ordain_checker::{History, RequestId};
use ordain_checker::{Violation, ViolationKind};
use ordain_model::Random;

/// The longest time that work takes which a role gives away, microseconds: longer than most of what happens meanwhile.
const WORK_US_MAX: u64 = 20_000;

/// Something that will happen. A life is a node's incarnation: what belongs to an earlier one is void.
#[derive(Debug)]
pub(crate) enum Happening<M> {
    /// A message arrives at another role of its node.
    Deliver { life: u32, from: Address, to: Address, message: M },
    /// A packet arrives from another node.
    Arrive { from: usize, to: usize, packet: Packet },
    /// One side of a link has a connection.
    Connect { here: usize, there: usize, life: u32 },
    /// One side of a link notices that its connection is gone.
    Part { here: usize, there: usize, life: u32 },
    /// A node looks whether another is still there.
    Beat { here: usize, there: usize, life: u32 },
    /// A node sends again what another has not acknowledged.
    Retransmit { here: usize, there: usize, life: u32 },
    /// A role handles the first event of its mailbox.
    Turn { node: usize, life: u32, role: u16 },
    /// A timer fires, if this setting of it still holds.
    Timer { node: usize, life: u32, role: u16, timer: TimerId, setting: u64 },
    /// Work that a role gave away is done.
    Work { node: usize, life: u32, role: u16, done: WorkDone },
    /// A role's disk operation is carried out.
    Disk { node: usize, life: u32, role: u16, line: usize },
    /// A request reaches a front door that stood still.
    Ask { door: usize, life: u32, waiter: Waiter },
    /// A front door sends what it has gathered.
    Flush { door: usize, life: u32 },
    /// A client's lane has thought and asks.
    Think { client: usize, lane: usize },
    /// A client sends a request again that was rejected.
    Resend { client: usize, request: RequestId, attempt: u32 },
    /// A client has waited long enough, drops its connection and sends everything again over another.
    Impatient { client: usize, request: RequestId, attempt: u32 },
    /// A client whose node was down connects again.
    Reconnect { client: usize },
    /// A crash is due.
    CrashDue { node: usize, life: u32 },
    /// A node starts.
    Restart { node: usize },
    /// A disk becomes full.
    Fill { node: usize },
    /// A disk has space again.
    Space { node: usize },
    /// The network falls apart.
    Cut,
    /// The network is whole again.
    Mend,
    /// A connection breaks.
    Break,
    /// Some node may lose its disk.
    Lose,
    /// A node stands still.
    Freeze { node: usize },
    /// It goes on.
    Thaw { node: usize, life: u32 },
    /// A wall clock jumps.
    Jump { node: usize },
    /// An operator looks after the nodes that have ended, and aborts what has ended them.
    Operate,
}

impl<M> Happening<M> {
    /// The node that cannot let this happen while it stands still.
    fn node(&self) -> Option<usize> {
        match self {
            Happening::Deliver { to, .. } => Some(to.node.0 as usize),
            Happening::Arrive { to, .. } => Some(*to),
            Happening::Connect { here, .. }
            | Happening::Part { here, .. }
            | Happening::Beat { here, .. }
            | Happening::Retransmit { here, .. } => Some(*here),
            Happening::Turn { node, .. }
            | Happening::Timer { node, .. }
            | Happening::Work { node, .. }
            | Happening::Disk { node, .. } => Some(*node),
            _ => None,
        }
    }
}

#[derive(Debug)]
struct Scheduled<M> {
    at: Micros,
    sequence: u64,
    happening: Happening<M>,
}

impl<M> Scheduled<M> {
    fn key(&self) -> (Micros, u64) {
        (self.at, self.sequence)
    }
}

impl<M> PartialEq for Scheduled<M> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<M> Eq for Scheduled<M> {}

impl<M> PartialOrd for Scheduled<M> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<M> Ord for Scheduled<M> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// What happened, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Crashes of nodes, those during recovery included.
    pub crashes: u32,
    /// Starts of nodes after a crash.
    pub restarts: u32,
    /// Times that a disk became full.
    pub shortages: u32,
    /// Disks that were lost.
    pub disks_lost: u32,
    /// Times that a node was rebuilt.
    pub rebuilds: u32,
    /// Syncs that failed.
    pub sync_failures: u32,
    /// Times that the network fell apart.
    pub partitions: u32,
    /// Times that a wall clock jumped.
    pub jumps: u32,
    /// Times that a node stood still.
    pub freezes: u32,
    /// Times that a connection between nodes broke.
    pub breaks: u32,
    /// Packets between nodes that were lost.
    pub packets_lost: u64,
    /// Times that a node was told that a new stream with another begins.
    pub streams: u32,
    /// Times that a node was told that another is lost.
    pub losses: u32,
    /// Times that a node was told that a lost one is back.
    pub returns: u32,
    /// Times that a transaction ended a node which executed it.
    pub ends: u32,
    /// Times that an operator aborted what had ended nodes.
    pub operations: u32,
    /// Times that a node began again, as another said what an operator has aborted.
    pub heeds: u32,
}

/// A cluster, its clients, and the time in which they live.
pub struct Simulator<'a, S: System> {
    pub(crate) system: S,
    pub(crate) registry: Arc<Registry>,
    pub(crate) config: &'a Config,
    pub(crate) intensity: Intensity,
    pub(crate) random: Random,
    pub(crate) trace: Trace<'a>,
    pub(crate) now: Micros,
    pub(crate) nodes: Vec<Node<S::Message>>,
    pub(crate) doors: Vec<Door>,
    pub(crate) clients: Vec<Client>,
    pub(crate) workload: &'a mut (dyn Workload + 'a),
    pub(crate) history: History,
    pub(crate) counts: Counts,
    /// Faults have ended; nothing new is asked for.
    pub(crate) healed: bool,
    pub(crate) failed: Option<Violation>,
    /// Somebody is on the way to look after nodes that have ended.
    is_called: bool,
    queue: BinaryHeap<Reverse<Scheduled<S::Message>>>,
    sequence: u64,
    /// When the last message of each pair of roles of a node arrives: the next one arrives no earlier.
    lanes: BTreeMap<(Address, Address), Micros>,
    /// The same for packets of each ordered pair of nodes, unless they are to overtake each other.
    pub(crate) wires: BTreeMap<(usize, usize), Micros>,
    pub(crate) cuts: Cuts,
    addresses: BTreeMap<Address, usize>,
}

impl<S: System> Debug for Simulator<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulator")
            .field("now", &self.now)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl<'a, S: System> Simulator<'a, S> {
    /// A cluster that is about to start.
    ///
    /// # Panics
    /// If the configuration has no node or no front door: whoever reads it from a user refuses it.
    pub fn new(
        system: S,
        workload: &'a mut (dyn Workload + 'a),
        config: &'a Config,
        sink: Option<Sink<'a>>,
    ) -> Simulator<'a, S> {
        assert!(config.nodes > 0 && config.doors > 0, "a cluster has at least one node and one door");
        let mut random = Random::new(config.seed);
        let mut intensity = Intensity::draw(config.faults, config.nodes, &mut random);
        if system.bears_loss() {
            intensity.draw_loss(config.faults, &mut random);
        }
        let registry = system.registry();
        let mut doors = Vec::new();
        for node in 0..config.nodes {
            for n in 0..config.doors {
                doors.push(Door::new(NodeId(node), system.door(NodeId(node), 0, n)));
            }
        }
        let addresses = doors.iter().enumerate().map(|(i, door)| (door.address, i)).collect();
        let mut simulator = Simulator {
            system,
            registry,
            config,
            intensity,
            random,
            trace: Trace::new(sink),
            now: Micros(0),
            nodes: (0..config.nodes).map(|_| Node::new()).collect(),
            doors,
            clients: Vec::new(),
            workload,
            history: History::default(),
            counts: Counts::default(),
            healed: false,
            failed: None,
            is_called: false,
            queue: BinaryHeap::new(),
            sequence: 0,
            lanes: BTreeMap::new(),
            wires: BTreeMap::new(),
            cuts: Cuts::default(),
            addresses,
        };
        simulator.trace.note(
            Micros(0),
            format_args!("seed {} faults {} {:?}", config.seed, config.faults, simulator.intensity),
        );
        simulator.add_clients();
        for node in 0..simulator.nodes.len() {
            simulator.after(0, Happening::Restart { node });
        }
        simulator.schedule_faults();
        simulator
    }

    /// What the clients have seen so far.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The virtual time.
    pub fn now(&self) -> Micros {
        self.now
    }

    /// What was found broken so far: nothing more happens then.
    pub fn violation(&self) -> Option<&Violation> {
        self.failed.as_ref()
    }

    pub(crate) fn after(&mut self, delay: u64, happening: Happening<S::Message>) {
        self.at(self.now.plus(Micros(delay)), happening);
    }

    pub(crate) fn at(&mut self, at: Micros, happening: Happening<S::Message>) {
        self.sequence += 1;
        self.queue.push(Reverse(Scheduled { at, sequence: self.sequence, happening }));
    }

    pub(crate) fn fail(&mut self, violation: Violation) {
        if self.failed.is_none() {
            self.trace.note(self.now, format_args!("VIOLATION {violation}"));
            self.failed = Some(violation);
        }
    }

    /// Lets things happen until `until`, while `go_on` says so and nothing has failed. False if there is nothing
    /// left to happen, or not by then.
    pub fn run(&mut self, until: Micros, go_on: impl Fn(&Self) -> bool) -> bool {
        while self.failed.is_none() && go_on(self) {
            if self.queue.peek().is_none_or(|Reverse(next)| next.at > until) {
                return false;
            }
            if self.trace.events() > self.config.events_max {
                let text = format!("{} events and no end", self.trace.events());
                self.fail(Violation::new(ViolationKind::Stuck, text));
                return false;
            }
            if let Some(Reverse(next)) = self.queue.pop() {
                self.now = next.at;
                self.happen(next.happening);
            }
        }
        true
    }

    fn happen(&mut self, happening: Happening<S::Message>) {
        if let Some(node) = happening.node().filter(|node| self.nodes[*node].is_frozen) {
            return self.nodes[node].held.push(happening);
        }
        match happening {
            Happening::Deliver { life, from, to, message } if self.lives(to.node.0 as usize, life) => {
                self.deliver((from, life), to, message);
            }
            Happening::Arrive { from, to, packet } => self.arrive(from, to, packet),
            Happening::Connect { here, there, life } if self.lives(here, life) => self.connect(here, there),
            Happening::Part { here, there, life } if self.lives(here, life) => self.part(here, there),
            Happening::Beat { here, there, life } if self.lives(here, life) => self.look(here, there),
            Happening::Retransmit { here, there, life } if self.lives(here, life) => {
                self.retransmit(here, there);
            }
            Happening::Turn { node, life, role } if self.lives(node, life) => self.turn(node, role),
            Happening::Timer { node, life, role, timer, setting } if self.lives(node, life) => {
                let Some(slot) = self.nodes[node].roles.get_mut(&role) else { return };
                if slot.timers.get(&timer) == Some(&setting) {
                    slot.timers.remove(&timer);
                    self.push_event(node, role, Event::Timer(timer));
                }
            }
            Happening::Work { node, life, role, done } if self.lives(node, life) => {
                self.push_event(node, role, Event::Work(done));
            }
            Happening::Disk { node, life, role, line } if self.lives(node, life) => {
                self.disk_step(node, role, line);
            }
            Happening::Ask { door, life, waiter } if self.lives(self.doors[door].node.0 as usize, life) => {
                self.enter(door, waiter);
            }
            Happening::Flush { door, life } if self.lives(self.doors[door].node.0 as usize, life) => {
                self.flush(door);
            }
            Happening::Think { client, lane } => self.think(client, lane),
            Happening::Resend { client, request, attempt } => self.resend_rejected(client, request, attempt),
            Happening::Impatient { client, request, attempt } => self.lose_patience(client, request, attempt),
            Happening::Reconnect { client } => self.reconnect(client),
            Happening::Restart { node } => self.restart(node),
            Happening::CrashDue { node, life } if self.lives(node, life) && !self.healed => {
                if self.random.chance(500_000) {
                    self.crash(node);
                } else {
                    let ops = self.nodes[node].disk.ops() + self.random.tail(64);
                    self.nodes[node].crash_at_op = Some(ops);
                }
            }
            Happening::Fill { node } if !self.healed => {
                self.trace.note(self.now, format_args!("node {node} disk full"));
                self.counts.shortages += 1;
                self.nodes[node].fill(true);
                let lasts = 1 + self.random.tail(self.intensity.full_us_max);
                self.after(lasts, Happening::Space { node });
            }
            Happening::Space { node } if !self.healed => {
                self.trace.note(self.now, format_args!("node {node} disk has space"));
                self.nodes[node].fill(false);
                self.after_about(self.intensity.full_every_us, Happening::Fill { node });
            }
            Happening::Cut if !self.healed => {
                self.cuts = Cuts::draw(self.nodes.len(), &mut self.random);
                self.counts.partitions += 1;
                self.trace.note(self.now, format_args!("partition{}", self.cuts));
                let lasts = 1 + self.random.tail(self.intensity.partition_us_max);
                self.after(lasts, Happening::Mend);
            }
            Happening::Mend if !self.healed => {
                self.trace.note(self.now, format_args!("partition ends"));
                self.cuts.mend();
                self.after_about(self.intensity.partition_every_us, Happening::Cut);
            }
            Happening::Break if !self.healed => {
                self.break_connection();
                self.after_about(self.intensity.break_every_us, Happening::Break);
            }
            Happening::Lose if !self.healed => {
                self.after_about(self.intensity.loss_every_us, Happening::Lose);
                let node = self.random.index(self.nodes.len());
                self.lose_disk(node);
            }
            Happening::Freeze { node } if !self.healed => {
                self.after_about(self.intensity.freeze_every_us, Happening::Freeze { node });
                self.freeze(node);
            }
            Happening::Operate => self.operate(),
            Happening::Thaw { node, life } if self.lives(node, life) => self.thaw(node),
            Happening::Jump { node } if !self.healed => {
                let far = self.random.tail(self.intensity.jump_us_max) as i64;
                let by = if self.random.chance(500_000) { far } else { -far };
                self.trace.note(self.now, format_args!("node {node} wall clock jumps by {by}"));
                self.counts.jumps += 1;
                self.nodes[node].clock.jump(by);
                self.after_about(self.intensity.jump_every_us, Happening::Jump { node });
            }
            _ => {}
        }
    }

    fn lives(&self, node: usize, life: u32) -> bool {
        self.nodes.get(node).is_some_and(|n| n.up && n.incarnation == life)
    }

    /// Schedules something that happens every so often, if it ever does.
    fn after_about(&mut self, mean: u64, happening: Happening<S::Message>) {
        if mean > 0 {
            let delay = self.random.between(1, 2 * mean);
            self.after(delay, happening);
        }
    }

    fn schedule_faults(&mut self) {
        for node in 0..self.nodes.len() {
            self.after_about(self.intensity.full_every_us, Happening::Fill { node });
            self.after_about(self.intensity.jump_every_us, Happening::Jump { node });
            self.after_about(self.intensity.freeze_every_us, Happening::Freeze { node });
        }
        if self.nodes.len() > 1 {
            self.after_about(self.intensity.partition_every_us, Happening::Cut);
            self.after_about(self.intensity.break_every_us, Happening::Break);
            self.after_about(self.intensity.loss_every_us, Happening::Lose);
        }
    }

    /// Ends all faults: the network is whole, disks have space, every node is started. Nothing new is asked
    /// for; from here on the system has no excuse.
    pub fn transition_to_liveness(&mut self) {
        self.trace.note(self.now, format_args!("faults end"));
        self.healed = true;
        self.cuts.mend();
        let calm = Intensity::calm(&mut self.random);
        self.intensity = calm;
        for node in 0..self.nodes.len() {
            self.nodes[node].fill(false);
            self.nodes[node].crash_at_op = None;
            self.thaw(node);
            if !self.nodes[node].up {
                self.after(0, Happening::Restart { node });
            }
        }
    }

    // Nodes.

    /// A node loses power, and starts again some time later.
    pub fn crash(&mut self, node: usize) {
        self.crash_for(node, self.intensity.down_us_max);
    }

    /// The same, for so long at most.
    fn crash_for(&mut self, node: usize, down_us_max: u64) {
        self.trace.note(self.now, format_args!("node {node} crashes"));
        self.counts.crashes += 1;
        let random = &mut self.random;
        let crashed = &mut self.nodes[node];
        crashed.lose_power(|| random.bits());
        let life = crashed.incarnation;
        self.lanes.retain(|(from, _), _| from.node.0 as usize != node);
        for (n, door) in (0..).zip(self.doors.iter_mut().filter(|door| door.node.0 as usize == node)) {
            *door = Door::new(door.node, self.system.door(door.node, life, n));
        }
        self.disconnect_clients(node);
        self.hang_up(node);
        let down = 1 + self.random.tail(down_us_max);
        self.after(down, Happening::Restart { node });
    }

    /// A node loses power and its disk, if the system can bear that.
    fn lose_disk(&mut self, number: usize) {
        let node = NodeId(number as u16);
        let nodes = &self.nodes;
        let gauge = |of: NodeId, name: &str| {
            let node = nodes.get(usize::from(of.0)).filter(|node| node.up)?;
            let mut found = None;
            for slot in node.roles.values() {
                slot.role.gauges(&mut |known, value| found = found.or((known == name).then_some(value)));
            }
            found
        };
        if !self.nodes[number].up || !self.system.may_lose(node, &gauge) {
            return;
        }
        self.trace.note(self.now, format_args!("node {number} loses its disk"));
        self.counts.disks_lost += 1;
        self.crash(number);
        self.nodes[number].replace_disk();
        self.system.lose(node);
    }

    /// A transaction has ended the process that executed it. Somebody will look after it.
    fn ends(&mut self, node: usize) {
        self.trace.note(self.now, format_args!("node {node} has executed what ends it"));
        self.counts.ends += 1;
        // Whatever starts it again does so after a pause.
        self.crash_for(node, self.intensity.down_us_max.max(20_000));
        if !std::mem::replace(&mut self.is_called, true) {
            let delay = 1 + self.random.tail(50_000);
            self.after(delay, Happening::Operate);
        }
    }

    /// An operator stops all nodes, looks at what was under way on those that have ended, and aborts that on all of them; now and
    /// then he forgets one that has not come to it.
    fn operate(&mut self) {
        self.is_called = false;
        self.counts.operations += 1;
        for node in 0..self.nodes.len() {
            if self.nodes[node].up {
                self.crash(node);
            }
        }
        let of = |node: usize| NodeId(node as u16);
        let places: Vec<Gsn> = self.system.under_way();
        self.trace.note(self.now, format_args!("the operator aborts {places:?}"));
        for node in 0..self.nodes.len() {
            let is_full = self.nodes[node].is_full;
            self.nodes[node].fill(false);
            let aborted = self.system.abort(of(node), &places, &mut self.nodes[node].disk);
            self.nodes[node].fill(is_full);
            if let Err(reason) = aborted {
                let text = format!("what ends node {node} cannot be aborted: {reason}");
                return self.fail(Violation::new(ViolationKind::Recovery, text));
            }
        }
    }

    /// A node hears what another says before all else.
    pub(crate) fn heed(&mut self, node: usize, words: &[u8]) {
        if self.system.heed(NodeId(node as u16), words, &mut self.nodes[node].disk) {
            self.trace.note(self.now, format_args!("node {node} begins again"));
            self.counts.heeds += 1;
            self.crash(node);
        }
    }

    /// A node stops in good order, as far as it can: its roles are told, and what they ask of the disk is done. Then
    /// the power goes. To be called when no request is under way.
    pub fn stop(&mut self, node: usize, bound: Micros) {
        self.trace.note(self.now, format_args!("node {node} stops"));
        let roles: Vec<u16> = self.nodes[node].roles.keys().copied().collect();
        roles.into_iter().for_each(|role| self.push_event(node, role, Event::Stop));
        self.run(bound, |s| !s.nodes[node].has_closed());
        if self.failed.is_none() && !self.nodes[node].has_closed() {
            let text = format!("node {node} was told to stop and has not finished");
            self.fail(Violation::new(ViolationKind::Stuck, text));
        }
        if self.failed.is_none() {
            self.crash(node);
        }
    }

    /// A node stands still: whatever comes due for it waits. Its clocks go on.
    pub fn freeze(&mut self, node: usize) {
        let frozen = &mut self.nodes[node];
        if !frozen.up || frozen.is_frozen {
            return;
        }
        frozen.is_frozen = true;
        let life = frozen.incarnation;
        self.trace.note(self.now, format_args!("node {node} stands still"));
        self.counts.freezes += 1;
        let lasts = 1 + self.random.tail(self.intensity.freeze_us_max);
        self.after(lasts, Happening::Thaw { node, life });
    }

    fn thaw(&mut self, node: usize) {
        if std::mem::take(&mut self.nodes[node].is_frozen) {
            self.trace.note(self.now, format_args!("node {node} goes on"));
            for held in std::mem::take(&mut self.nodes[node].held) {
                self.happen(held);
            }
        }
    }

    fn restart(&mut self, number: usize) {
        let Simulator { nodes, random, intensity, system, trace, counts, now, .. } = self;
        let node = &mut nodes[number];
        if node.up {
            return;
        }
        let drift = random.between(0, 2 * u64::from(intensity.clock_drift)) as i64;
        node.clock = Clock::new(*now, drift - i64::from(intensity.clock_drift), node.clock.jumped());
        let left = random.chance(intensity.crash_in_recovery_chance).then(|| random.tail(16));
        let mut disk = FailingDirectory { disk: &mut node.disk, left };
        trace.note(*now, format_args!("node {number} starts, life {}", node.incarnation));
        counts.restarts += u32::from(node.incarnation > 0);
        let id = NodeId(number as u16);
        let started = catch_unwind(AssertUnwindSafe(|| system.start(id, node.incarnation, &mut disk)));
        let (failed, has_ended) = (disk.has_failed(), system.has_ended());
        let (kind, reason) = match started {
            // Recovery that ended with its last operation is interrupted by the same crash a moment later.
            Ok(_) if failed => return self.crash(number),
            // What is in its log ends it.
            Ok(_) if has_ended => return self.ends(number),
            Ok(Ok(roles)) => {
                node.up = true;
                let steps = intensity.local_delay_us_max;
                for (role, state) in roles {
                    node.roles.insert(role, Slot::new(state, random.tail(steps)));
                }
                let numbers: Vec<u16> = node.roles.keys().copied().collect();
                numbers.into_iter().for_each(|role| self.wake(number, role));
                let life = self.nodes[number].incarnation;
                self.after_about(self.intensity.crash_every_us, Happening::CrashDue { node: number, life });
                self.open_links(number);
                return self.reconnect_clients();
            }
            Ok(Err(reason)) if node.is_full => {
                self.trace.note(self.now, format_args!("node {number} cannot start: {reason}"));
                return self.after(10_000, Happening::Restart { node: number });
            }
            Ok(Err(reason)) => (ViolationKind::Recovery, reason),
            Err(panic) => (ViolationKind::Panicked, panic_text(&*panic)),
        };
        self.fail(Violation::new(kind, format!("node {number} cannot start: {reason}")));
    }

    // Roles.

    pub(crate) fn push_event(&mut self, node: usize, role: u16, event: Event<S::Message>) {
        if let Some(slot) = self.nodes[node].roles.get_mut(&role) {
            slot.mailbox.push_back(event);
            self.wake(node, role);
        }
    }

    fn wake(&mut self, node: usize, role: u16) {
        let life = self.nodes[node].incarnation;
        let Some(slot) = self.nodes[node].roles.get_mut(&role) else { return };
        if !slot.awake && !slot.mailbox.is_empty() {
            slot.awake = true;
            let at = slot.ready_at.max(self.now);
            self.at(at, Happening::Turn { node, life, role });
        }
    }

    fn turn(&mut self, number: usize, role: u16) {
        let node = &mut self.nodes[number];
        let clock = node.clock.read(self.now);
        let Some(slot) = node.roles.get_mut(&role) else { return };
        slot.awake = false;
        let Some(event) = slot.mailbox.pop_front() else { return };
        let name = slot.role.name();
        let is_news = matches!(&event, Event::Message { from, .. } if from.role == DRIVER);
        self.trace.note(self.now, format_args!("{number}/{role} {name} {}", Shown(&event)));
        let mut out = Outbox::default();
        let stepped = catch_unwind(AssertUnwindSafe(|| {
            slot.role.handle(clock, event, &mut out);
            slot.role.check()
        }));
        let has_ended = self.system.has_ended();
        let mut busy = self.random.tail(slot.step_us_max);
        if self.random.chance(self.intensity.stall_chance) {
            busy += self.random.tail(self.intensity.stall_us_max);
        }
        slot.ready_at = self.now.plus(Micros(busy));
        let broken = |kind, reason| Violation::new(kind, format!("node {number}, {name}: {reason}"));
        match stepped {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => return self.fail(broken(ViolationKind::Invariant, reason)),
            Err(panic) => return self.fail(broken(ViolationKind::Panicked, panic_text(&*panic))),
        }
        if has_ended {
            return self.ends(number);
        }
        if let Some(reason) = out.halt {
            if self.nodes[number].sync_failed {
                // What is on the disk is not known any more: stopping is right, and recovery finds out.
                self.trace.note(self.now, format_args!("node {number} stops: {reason}"));
                return self.crash(number);
            }
            return self.fail(broken(ViolationKind::Halted, reason));
        }
        if let Some(how) = out.rebuild {
            self.trace.note(self.now, format_args!("node {number} is rebuilt: {how:?}"));
            self.counts.rebuilds += 1;
            self.crash(number);
            return self.system.rebuild(NodeId(number as u16), how);
        }
        if is_news {
            self.has_heard(number, role);
        }
        let from = Address { node: NodeId(number as u16), role };
        for (to, message) in out.sends {
            self.send(from, to, message);
        }
        for (timer, delay) in out.timers {
            self.set_timer(number, role, timer, delay);
        }
        for request in out.disk {
            self.ask_disk(number, role, request);
        }
        for work in out.work {
            let (takes, life) = (1 + self.random.tail(WORK_US_MAX), self.nodes[number].incarnation);
            self.after(takes, Happening::Work { node: number, life, role, done: work.run() });
            if self.system.has_ended() {
                return self.ends(number);
            }
        }
        self.wake(number, role);
    }

    fn set_timer(&mut self, number: usize, role: u16, timer: TimerId, delay: Option<Micros>) {
        let node = &mut self.nodes[number];
        let Some(slot) = node.roles.get_mut(&role) else { return };
        let Some(delay) = delay else {
            slot.timers.remove(&timer);
            return;
        };
        let setting = self.sequence;
        slot.timers.insert(timer, setting);
        let delay = node.clock.true_time(delay).0;
        let life = node.incarnation;
        self.after(delay, Happening::Timer { node: number, life, role, timer, setting });
    }

    // Messages.

    pub(crate) fn send(&mut self, from: Address, to: Address, message: S::Message) {
        let Some(there) = self.nodes.get(to.node.0 as usize) else {
            let text = format!("a message was sent to node {}, which there is not", to.node.0);
            return self.fail(Violation::new(ViolationKind::Invariant, text));
        };
        if from.node != to.node {
            return self.post(from, to, &message);
        }
        let life = there.incarnation;
        let mut delay = self.random.tail(self.intensity.local_delay_us_max);
        if self.random.chance(self.intensity.stall_chance) {
            delay += self.random.tail(self.intensity.stall_us_max);
        }
        let last = self.lanes.entry((from, to)).or_default();
        *last = self.now.plus(Micros(delay)).max(*last);
        let at = *last;
        self.at(at, Happening::Deliver { life, from, to, message });
    }

    /// A message has arrived that was said in a life of its sender.
    pub(crate) fn deliver(&mut self, (from, life): (Address, u32), to: Address, message: S::Message) {
        if let Some(&door) = self.addresses.get(&to) {
            return match message.incoming() {
                Incoming::Peer(change) => self.tell_door(door, change),
                Incoming::Front(Front::Outcomes(batch)) => {
                    self.take_outcomes(door, (from.node, life), &batch);
                }
                Incoming::Front(Front::Continue(PauseNo::GREETING)) => self.greeted(door, from.node),
                Incoming::Front(Front::Continue(pause)) => {
                    self.doors[door].gateway.go_on_sending(from.node.0, pause);
                    self.flush_soon(door);
                }
                _ => {
                    let text = format!("front door {to:?} was sent something that is not for it");
                    self.fail(Violation::new(ViolationKind::Invariant, text));
                }
            };
        }
        if !self.nodes[to.node.0 as usize].roles.contains_key(&to.role) {
            let text = format!("a message was sent to {to:?}, where there is no role");
            return self.fail(Violation::new(ViolationKind::Invariant, text));
        }
        self.push_event(to.node.0 as usize, to.role, Event::Message { from, message });
    }

    // Disks.

    fn ask_disk(&mut self, number: usize, role: u16, request: DiskRequest) {
        let Some(slot) = self.nodes[number].roles.get_mut(&role) else { return };
        let line = usize::from(request.in_background);
        if slot.disk[line].push(request) {
            self.schedule_disk(number, role, line);
        }
    }

    fn schedule_disk(&mut self, number: usize, role: u16, line: usize) {
        let Some(slot) = self.nodes[number].roles.get(&role) else { return };
        let most = match slot.disk[line].current() {
            Some(DiskOp::Sync { .. } | DiskOp::SyncDirectory) => self.intensity.sync_us_max,
            _ => self.intensity.write_us_max,
        };
        let mut takes = 1 + most / 4 + self.random.tail(most);
        if self.random.chance(self.intensity.slow_disk_chance) {
            takes *= 100;
        }
        let life = self.nodes[number].incarnation;
        self.after(takes, Happening::Disk { node: number, life, role, line });
    }

    fn disk_step(&mut self, number: usize, role: u16, line: usize) {
        let Simulator { nodes, random, trace, now, intensity, counts, .. } = self;
        let Node { disk, roles, crash_at_op, sync_failed, .. } = &mut nodes[number];
        let Some(slot) = roles.get_mut(&role) else { return };
        let op = slot.disk[line].current().cloned();
        if crash_at_op.is_some_and(|at| disk.ops() >= at) {
            // Power goes before the operation, or after it and before anybody hears of it.
            if let Some(op) = op.filter(|_| random.chance(500_000)) {
                // Whoever asked is not there any more to hear how it ended.
                let _ = disk.apply(&op);
            }
            return self.crash(number);
        }
        let is_sync = matches!(op, Some(DiskOp::Sync { .. } | DiskOp::SyncDirectory));
        let fails = is_sync && random.chance(intensity.sync_failure_chance);
        counts.sync_failures += u32::from(fails);
        *sync_failed |= fails;
        disk.fail_syncs(fails);
        let result = op.as_ref().map_or(Ok(()), |op| disk.apply(op));
        disk.fail_syncs(false);
        trace.note(*now, format_args!("{number}/{role} disk {op:?} {result:?}"));
        if let Some(done) = slot.disk[line].advance(result) {
            slot.mailbox.push_back(Event::Disk(done));
            if slot.disk[line].is_busy() {
                self.schedule_disk(number, role, line);
            }
            self.wake(number, role);
        } else {
            self.schedule_disk(number, role, line);
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text").to_owned()
}

/// An event for the trace. Messages of the front door are told by what they hold; other messages, which may
/// hold whole batches, by the beginning of their text and a hash of all of it.
struct Shown<'e, M>(&'e Event<M>);

impl<M: Message> fmt::Display for Shown<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST: usize = 160;
        let (from, message) = match self.0 {
            Event::Message { from, message } => (from, message),
            other => return write!(f, "{other:?}"),
        };
        write!(f, "from {}/{} ", from.node.0, from.role)?;
        match message.clone().incoming() {
            Incoming::Front(Front::Submit(chunk)) => write!(
                f,
                "submit gateway {} chunk {} txns {} {:016x}",
                chunk.gateway,
                chunk.number,
                chunk.txns().len(),
                xxh3_64(chunk.logged())
            ),
            Incoming::Front(Front::Read(chunk, snapshot)) => write!(
                f,
                "read gateway {} chunk {} txns {} {snapshot:?}",
                chunk.gateway,
                chunk.number,
                chunk.txns().len()
            ),
            Incoming::Front(Front::ReadDone(gateway, number)) => {
                write!(f, "read gateway {gateway} chunk {number} done")
            }
            Incoming::Front(Front::Outcomes(batch)) => write!(f, "outcomes {}", batch.outcomes.len()),
            Incoming::Front(Front::Pause(pause)) => write!(f, "pause {}", pause.0),
            Incoming::Front(Front::Continue(pause)) => write!(f, "continue after {}", pause.0),
            Incoming::Front(Front::Memory { is_over, room }) => write!(f, "memory {is_over} {room}"),
            Incoming::Peer(_) | Incoming::Role(_) => {
                let mut text = String::new();
                write!(text, "{message:?}")?;
                match text.char_indices().nth(LONGEST) {
                    Some((cut, _)) => {
                        write!(f, "{}... {:016x}", &text[..cut], xxh3_64(text.as_bytes()))
                    }
                    None => f.write_str(&text),
                }
            }
        }
    }
}
