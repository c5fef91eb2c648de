//! The operator of a simulated cluster: restarts its nodes one after the other, and replaces some by empty ones.
//!
//! A node stops as a process does that is told to: its clients' requests are answered, or time is up; then its roles handle
//! the stop, and what they have asked of the disk is done. The next node is not touched before the cluster is well again, as
//! the handbook says. Faults go on meanwhile.

use ordain_log::MemoryDirectory;
use ordain_model::{Micros, Random};
use ordain_role::{Event, NodeId};

use crate::operations::{Operation, Operations};
use crate::queue::Happening;
use crate::simulator::Simulator;
use crate::system::System;

/// The pace at which the operator looks.
const LOOKS: Micros = Micros::from_millis(1);

/// What the operator does, and with which node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// Nothing until then.
    Nothing { until: Micros },
    /// The clients of a node are let go, until then at most.
    LetsGo { node: usize, life: u32, until: Micros },
    /// A node handles the stop.
    Stops { node: usize, life: u32 },
    /// A node is to come back.
    Waits { node: usize },
    /// A node has an empty directory under its old identity, until then.
    Mistaken { node: usize, until: Micros },
}

/// The operator.
#[derive(Debug)]
pub(crate) struct Operator {
    random: Random,
    operations: Operations,
    doing: Doing,
    /// The nodes that are to be restarted yet.
    tour: Vec<usize>,
    /// Tours that have not begun.
    tours: u32,
}

impl Operator {
    pub(crate) fn new(seed: u64, operations: Operations) -> Operator {
        let mut random = Random::stream(seed, 0x09e2a702);
        let until = Micros(random.between(5_000, 100_000));
        let tours = 1 + random.below(3) as u32;
        Operator { random, operations, doing: Doing::Nothing { until }, tour: Vec::new(), tours }
    }

    /// The operator has something to do with nodes.
    pub(crate) fn is_needed(&self) -> bool {
        self.operations.has(Operation::Rolling) || self.operations.has(Operation::Replace)
    }
}

impl<S: System> Simulator<'_, S> {
    /// The operator looks, and takes the next step.
    pub(crate) fn tend(&mut self) {
        if self.healed {
            return;
        }
        let now = self.now;
        match self.operator.doing {
            Doing::Nothing { until } if now >= until => self.begin_operation(),
            Doing::Nothing { .. } => {}
            Doing::LetsGo { node, life, .. } | Doing::Stops { node, life } if !self.lives(node, life) => {
                // It has lost power before it had stopped.
                self.operator.doing = Doing::Waits { node };
            }
            Doing::LetsGo { node, life, until } => {
                self.let_go(node);
                let has_clients = self
                    .clients
                    .iter()
                    .any(|client| client.connected && self.doors[client.door].node == NodeId(node as u16));
                if !has_clients || now >= until {
                    let roles: Vec<u16> = self.nodes[node].roles.keys().copied().collect();
                    roles.into_iter().for_each(|role| self.push_event(node, role, Event::Stop));
                    self.operator.doing = Doing::Stops { node, life };
                }
            }
            Doing::Stops { node, .. } if self.nodes[node].has_closed() => {
                self.trace.note(now, format_args!("node {node} has stopped in good order"));
                self.counts.stops += 1;
                self.crash(node);
                self.operator.doing = Doing::Waits { node };
            }
            Doing::Stops { .. } => {}
            Doing::Mistaken { node, until } if now >= until => {
                self.put_back(node);
                self.operator.doing = Doing::Waits { node };
            }
            Doing::Mistaken { .. } => {}
            Doing::Waits { .. } if self.is_well() => self.go_on_with_tour(),
            Doing::Waits { .. } => {}
        }
        self.after(LOOKS.0, Happening::Tend);
    }

    /// All nodes are up, and none lacks anything.
    fn is_well(&self) -> bool {
        let gauge = |of: NodeId, name: &str| self.gauge(of, name);
        let is_up = |number: usize| self.nodes[number].up && !self.nodes[number].is_frozen;
        (0..self.nodes.len()).all(|node| is_up(node) && self.system.is_ready(NodeId(node as u16), &gauge))
    }

    fn begin_operation(&mut self) {
        let is_well = self.is_well();
        let Operator { random, operations, tours, .. } = &mut self.operator;
        let replaces = operations.has(Operation::Replace)
            && (!operations.has(Operation::Rolling) || random.chance(400_000));
        if *tours == 0 && !replaces {
            return;
        }
        if replaces {
            let node = random.index(self.nodes.len());
            let pause = random.between(10_000, 200_000);
            let lost = self.counts.disks_lost;
            if is_well {
                self.lose_disk(node);
            }
            let is_refused = self.counts.disks_lost == lost;
            self.counts.replacements += u32::from(!is_refused);
            self.operator.doing = if !is_refused {
                Doing::Waits { node }
            } else if is_well && self.system.refuses_empty() {
                self.mistake(node);
                Doing::Mistaken { node, until: self.now.plus(Micros(pause)) }
            } else {
                Doing::Nothing { until: self.now.plus(Micros(pause)) }
            };
            return;
        }
        *tours -= 1;
        let mut nodes: Vec<usize> = (0..self.nodes.len()).collect();
        for last in (1..nodes.len()).rev() {
            nodes.swap(last, random.index(last + 1));
        }
        self.operator.tour = nodes;
        self.trace.note(self.now, format_args!("a rolling restart of {:?} begins", self.operator.tour));
        self.counts.rolls += 1;
        self.go_on_with_tour();
    }

    /// A node gets an empty directory without being told that it joins: it must refuse, or do nothing.
    fn mistake(&mut self, node: usize) {
        self.trace.note(self.now, format_args!("node {node} is started with an empty directory"));
        self.counts.mistakes += 1;
        self.crash(node);
        let empty = MemoryDirectory::new();
        let is_full = self.nodes[node].is_full;
        self.nodes[node].aside = Some(std::mem::replace(&mut self.nodes[node].disk, empty));
        self.nodes[node].fill(is_full);
    }

    /// The directory that a node had is put back.
    fn put_back(&mut self, node: usize) {
        let Some(disk) = self.nodes[node].aside.take() else { return };
        self.trace.note(self.now, format_args!("node {node} has its directory again"));
        if self.nodes[node].up {
            self.crash(node);
        }
        let is_full = self.nodes[node].is_full;
        self.nodes[node].disk = disk;
        self.nodes[node].fill(is_full);
    }

    /// The next node of a rolling restart is to stop; after the last one there is a pause.
    fn go_on_with_tour(&mut self) {
        let Some(node) = self.operator.tour.pop() else {
            let pause = self.operator.random.between(10_000, 200_000);
            self.operator.doing = Doing::Nothing { until: self.now.plus(Micros(pause)) };
            return;
        };
        if !self.nodes[node].up {
            self.operator.doing = Doing::Waits { node };
            return;
        }
        self.trace.note(self.now, format_args!("node {node} is told to stop"));
        let until = self.now.plus(Micros(self.operator.random.below(20_000)));
        let life = self.nodes[node].incarnation;
        self.nodes[node].is_closing = true;
        self.operator.doing = Doing::LetsGo { node, life, until };
    }

    /// Clients of a node that wait for nothing go to others.
    fn let_go(&mut self, node: usize) {
        for number in 0..self.clients.len() {
            let client = &self.clients[number];
            let is_here = client.connected && self.doors[client.door].node == NodeId(node as u16);
            if is_here && client.waiting().is_empty() {
                self.clients[number].disconnect();
                let delay = self.operator.random.tail(2_000);
                self.after(delay, Happening::Reconnect { client: number });
            }
        }
    }

    /// With the faults, the operations end: a node that is about to stop is left alone, one that stops is switched off.
    pub(crate) fn end_operations(&mut self) {
        match self.operator.doing {
            Doing::LetsGo { node, .. } => {
                self.nodes[node].is_closing = false;
                // Where there is no other node, those that were let go have found none.
                self.reconnect_clients();
            }
            Doing::Stops { node, life } if self.lives(node, life) => self.crash(node),
            Doing::Mistaken { node, .. } => self.put_back(node),
            _ => {}
        }
    }
}
