//! The discrete-event driver: one queue of happenings in virtual time, one random source, one thread.
//!
//! Everything that a driver promises a role (see `ordain_role`) it keeps, and beyond that it is as unhelpful as
//! the faults allow: roles of one node run at any relative speed, packets between nodes are late, lost, doubled and
//! reordered (the module `network`), disks are slow and full, nodes stand still and lose power between any
//! two disk operations.
//!
//! Happenings at one time are handled in the order in which they were scheduled, so the run is a function of
//! the seed alone.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::sync::Arc;

use ordain_checker::{History, Violation, ViolationKind};
use ordain_model::{Micros, Random, Registry, Stamp};
use ordain_role::{Address, Event, NodeId};

use crate::client::{Client, Door};
use crate::connections::Connections;
use crate::connections::speakers::Speakers;
use crate::deposals::Deposed;
use crate::faults::Intensity;
use crate::incidents::{Bears, Incidents};
use crate::load::FaultPace;
use crate::loading::Loading;
use crate::network::Cuts;
use crate::node::Node;
use crate::queue::{Happening, Queue};
use crate::run::Config;
use crate::system::System;
use crate::tending::Operator;
use crate::trace::{Sink, Trace};
use crate::workload::Workload;

/// The numbers of what happened in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Faults of nodes, disks, clocks and the network that the simulator has begun: what follows from one is no other one.
    pub faults: u64,
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
    /// Times that a role had its node started again from what was on disk.
    pub begun_again: u32,
    /// Syncs that failed.
    pub sync_failures: u32,
    /// Times that the network fell apart.
    pub partitions: u32,
    /// Times that a wall clock jumped.
    pub jumps: u32,
    /// Times that a node stood still.
    pub freezes: u32,
    /// Leaders that lost their power while they lived: cut off from their members, or held in a step.
    pub deposed: u32,
    /// Leaders that got their power back without having started anew.
    pub regained: u32,
    /// Leaders that stood still between what they had handled and what they sent for it.
    pub held: u32,
    /// Times that a connection between nodes broke.
    pub breaks: u32,
    /// Packets between nodes that were lost.
    pub packets_lost: u64,
    /// Fresh streams between nodes.
    pub streams: u32,
    /// Reports to a node that another is lost.
    pub losses: u32,
    /// Reports to a node that a lost one is back.
    pub returns: u32,
    /// Times that a transaction ended a node which executed it.
    pub ends: u32,
    /// Times that an operator aborted what had ended nodes.
    pub operations: u32,
    /// Rolling restarts.
    pub rolls: u32,
    /// Nodes that stopped in good order in one.
    pub stops: u32,
    /// Nodes that were replaced by empty ones by an operator.
    pub replacements: u32,
    /// Nodes that were started with an empty directory under their old identity.
    pub mistakes: u32,
    /// Times that one of these refused.
    pub refusals: u32,
    /// Checkpoints that were taken to a store.
    pub archived: u32,
    /// Requests to a store that failed.
    pub store_failures: u32,
    /// Clusters that were put together from what this one had left.
    pub restores: u32,
    /// Restores that were refused, because the state that was asked for is out of reach.
    pub restores_refused: u32,
    /// Requests of sessions that were asked again at a restored cluster.
    pub asked_again: u32,
    /// Times that a node began again, as another's greeting had aborts of an operator.
    pub heeds: u32,
}

/// A cluster, its clients, and the time in which they live.
pub struct Simulator<'a, S: System> {
    pub(crate) system: S,
    pub(crate) registry: Arc<Registry>,
    pub(crate) config: Config,
    pub(crate) intensity: Intensity,
    pub(crate) incidents: Incidents,
    pub(crate) random: Random,
    pub(crate) trace: Trace<'a>,
    pub(crate) now: Micros,
    pub(crate) nodes: Vec<Node<S::Message>>,
    pub(crate) doors: Vec<Door>,
    pub(crate) clients: Vec<Client>,
    pub(crate) workload: Box<dyn Workload + 'a>,
    pub(crate) loading: Loading,
    pub(crate) operator: Operator,
    /// The answers to the workload's audits.
    pub(crate) audits: Vec<Vec<u8>>,
    pub(crate) history: History,
    pub(crate) counts: Counts,
    /// The waves of requests that are asked.
    pub(crate) waves: u64,
    /// No client asks before then.
    pub(crate) rests_until: Micros,
    /// The time of the first answer.
    pub(crate) works_since: Option<Micros>,
    /// Faults have ended; nothing new is asked for.
    pub(crate) healed: bool,
    /// The time when that was, and what had happened by then.
    pub(crate) at_heal: (Micros, Counts),
    /// The latest place of an answer that was given before that.
    pub(crate) last_under_load: Stamp,
    /// The same of the answers of each node.
    pub(crate) last_at: BTreeMap<NodeId, Stamp>,
    pub(crate) failed: Option<Violation>,
    /// An operator is on the way to look after nodes that have ended.
    pub(crate) is_called: bool,
    pub(crate) queue: Queue<S::Message>,
    /// When the last message of each pair of roles of a node arrives: the next one arrives no earlier.
    pub(crate) arrivals: BTreeMap<(Address, Address), Micros>,
    /// When the last packet of each ordered pair of nodes arrives, unless packets are to overtake each other.
    pub(crate) wires: BTreeMap<(usize, usize), Micros>,
    pub(crate) cuts: Cuts,
    /// The ways between members of a group that are cut, so that its leader loses its power.
    pub(crate) severed: Cuts,
    /// The leader that is losing its power while it lives, if any is.
    pub(crate) deposed: Option<Deposed>,
    pub(crate) addresses: BTreeMap<Address, usize>,
    pub(crate) connections: Connections,
    pub(crate) speakers: Speakers,
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
    /// If the configuration has no node or no front door, which the command line refuses.
    pub fn new(
        system: S,
        workload: &'a mut (dyn Workload + 'a),
        config: &Config,
        sink: Option<Sink<'a>>,
    ) -> Simulator<'a, S> {
        Simulator::with(system, Box::new(workload), config.clone(), sink)
    }

    /// A cluster that is about to start, which owns what it is made of.
    ///
    /// # Panics
    /// If the configuration has no node or no front door.
    pub fn with(
        system: S,
        workload: Box<dyn Workload + 'a>,
        config: Config,
        sink: Option<Sink<'a>>,
    ) -> Simulator<'a, S> {
        assert!(config.nodes > 0 && config.doors > 0, "a cluster has at least one node and one door");
        let mut random = Random::new(config.seed);
        let (intensity, incidents) = Self::draw_faults(&config, &system, &mut random);
        let registry = system.registry();
        let mut doors = Vec::new();
        for node in (0..config.nodes).filter(|node| system.is_server(NodeId(*node))) {
            for n in 0..config.doors {
                doors.push(Door::new(NodeId(node), system.door(NodeId(node), 0, config.servers + n)));
            }
        }
        let addresses = doors.iter().enumerate().map(|(i, door)| (door.address, i)).collect();
        let nodes = (0..config.nodes).map(|node| Node::new(system.disk(NodeId(node)))).collect();
        let operator = Operator::new(config.seed, config.operations);
        let mut simulator = Simulator {
            system,
            registry,
            connections: Connections::new(config.seed),
            speakers: Speakers::default(),
            config,
            intensity,
            incidents,
            random,
            trace: Trace::new(sink),
            now: Micros(0),
            nodes,
            doors,
            clients: Vec::new(),
            loading: Loading::new(workload.loads()),
            operator,
            audits: Vec::new(),
            workload,
            history: History::default(),
            counts: Counts::default(),
            waves: 0,
            rests_until: Micros(0),
            works_since: None,
            healed: false,
            at_heal: (Micros(0), Counts::default()),
            last_under_load: Stamp::NONE,
            last_at: BTreeMap::new(),
            failed: None,
            is_called: false,
            queue: Queue::new(),
            arrivals: BTreeMap::new(),
            wires: BTreeMap::new(),
            cuts: Cuts::default(),
            severed: Cuts::default(),
            deposed: None,
            addresses,
        };
        simulator.config.wall_before.into_iter().for_each(|wall| simulator.history.note_wall(wall));
        simulator.trace.note(
            Micros(0),
            format_args!(
                "seed {} faults {} {:?}",
                simulator.config.seed, simulator.config.faults, simulator.intensity
            ),
        );
        if let Some(given) = simulator.system.intensity() {
            simulator.intensity = given;
        }
        simulator.add_clients();
        simulator.add_speakers();
        for node in 0..simulator.nodes.len() {
            simulator.after(0, Happening::Restart { node });
        }
        simulator.schedule_faults();
        if simulator.operator.is_needed() {
            simulator.after(0, Happening::Tend);
        }
        simulator
    }

    /// The faults of a seed, at the pace of its load.
    fn draw_faults(config: &Config, system: &S, random: &mut Random) -> (Intensity, Incidents) {
        let Config { faults, nodes, load, .. } = config;
        let bears = Bears { loss: system.bears_loss(), deposals: !system.groups().is_empty() };
        if load.faults == FaultPace::Own {
            let mut intensity = Intensity::draw(*faults, *nodes, random);
            if bears.loss {
                intensity.draw_loss(*faults, random);
            }
            if bears.deposals {
                intensity.draw_deposals(*faults, random);
            }
            return (intensity, Incidents::default());
        }
        let mut spells = Intensity::draw_incidents(*faults, *nodes, random);
        if load.faults == FaultPace::Once {
            spells.crash_in_recovery_chance = 0;
        }
        if bears.deposals {
            spells.draw_deposals(*faults, random);
            // They come as incidents.
            spells.depose_every_us = [0; 3];
        }
        let incidents = Incidents::draw((*faults, load.faults), *nodes, bears, &spells, random);
        (spells.without_spells(), incidents)
    }

    /// The requests and answers so far.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The virtual time.
    pub fn now(&self) -> Micros {
        self.now
    }

    /// The first violation so far: nothing more happens then.
    pub fn violation(&self) -> Option<&Violation> {
        self.failed.as_ref()
    }

    /// Lets so much time pass.
    pub fn advance(&mut self, time: Micros) {
        let until = self.now.plus(time);
        self.run(until, |_| true);
        self.now = self.now.max(until);
    }

    /// True while every node is up and has handled its start.
    pub fn is_up(&self) -> bool {
        self.nodes.iter().all(|node| node.up && node.roles.values().all(|slot| !slot.awake))
    }

    pub(crate) fn after(&mut self, delay: u64, happening: Happening<S::Message>) {
        self.at(self.now.plus(Micros(delay)), happening);
    }

    pub(crate) fn at(&mut self, at: Micros, happening: Happening<S::Message>) {
        self.queue.push(at, happening);
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
            if self.queue.next_at().is_none_or(|at| at > until) {
                return false;
            }
            if self.trace.events() > self.config.events_max {
                let text = format!("{} events and no end", self.trace.events());
                self.fail(Violation::new(ViolationKind::Stuck, text));
                return false;
            }
            if let Some((at, happening)) = self.queue.pop() {
                self.now = at;
                self.happen(happening);
            }
        }
        true
    }

    pub(crate) fn happen(&mut self, happening: Happening<S::Message>) {
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
            Happening::Step { node, life, role } if self.lives(node, life) => self.step(node, role),
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
            Happening::Accompany { node, life } if self.lives(node, life) => self.go_on(node),
            Happening::Think { client, loop_no } => self.think(client, loop_no),
            Happening::Resend { client, request, attempt } => self.resend_rejected(client, request, attempt),
            Happening::Impatient { client, request, attempt } => self.lose_patience(client, request, attempt),
            Happening::Reconnect { client } => self.reconnect(client),
            Happening::Restart { node } => self.restart(node),
            Happening::Tend => self.tend(),
            Happening::Operate => self.operate(),
            Happening::Thaw { node, life } if self.lives(node, life) => self.thaw(node),
            Happening::LookAtLeaders => self.look_at_leaders(),
            other if self.healed => self.happen_to_bytes(&other),
            other => self.befall(other),
        }
    }

    pub(crate) fn lives(&self, node: usize, life: u32) -> bool {
        self.nodes.get(node).is_some_and(|n| n.up && n.incarnation == life)
    }
}
