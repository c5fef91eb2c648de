//! Many nodes on few cores: a cluster as a discrete-event model with virtual cores and virtual links (calvin.md,
//! section 7).
//!
//! The cost of each transaction is measured; how nodes wait for one another follows from the protocol, which the
//! model simulates in full: every sequencer closes its batch at the end of an epoch, a node takes the batches of all in one
//! order, a transaction's hot record is locked in that order, one of two partitions waits with its locks until the
//! other's reads have come, and a client asks again when it is answered. Cold records never meet, and are left out.
//! Each node has one core, and its speed; how long a transaction takes there varies from one to the next.
//!
//! With every epoch each node receives from all others, which costs its core a little for each of them: that grows with the
//! cluster.
//!
//! A model is no measurement, and figures show it as one. It knows no cache, no bandwidth, and nothing else that gets
//! dearer with the number of nodes beyond the demands that it is given.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use ordain_model::Random;

/// A cluster and what it is asked for.
#[derive(Clone, Debug)]
pub struct Model {
    /// The speed of each node: 1 is the machine on which demands were measured.
    pub speeds: Vec<f64>,
    /// Processor time of a transaction on one partition, microseconds.
    pub single_us: f64,
    /// Processor time of a transaction on two partitions, on each of them, microseconds.
    pub multi_us: f64,
    /// The share of those.
    pub multi: f64,
    /// One over the number of hot records of a node; each transaction uses one on every node it is on.
    pub contention_index: f64,
    /// From node to node, one way, microseconds.
    pub link_us: f64,
    /// Length of an epoch, microseconds.
    pub epoch_us: f64,
    /// Processor time that an epoch costs a node for each other node, microseconds: what they send each other of it.
    pub peer_us: f64,
    /// Clients of each node; each has one transaction under way.
    pub clients: u32,
    /// Time measured, microseconds, after as long a warm-up.
    pub watched_us: f64,
    /// Seed of everything that is drawn.
    pub seed: u64,
}

/// Nanoseconds.
type Time = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// All sequencers close their batches: the schedule is absolute.
    Close,
    /// All batches of an epoch have arrived everywhere.
    Arrive,
    /// A node's core is done with what other nodes have sent of an epoch.
    Handled { node: u32 },
    /// A node's core has done a transaction's work.
    Worked { node: u32, txn: u32 },
    /// The reads of the other partition have come.
    Reads { side: u8, txn: u32 },
    /// A client is answered.
    Answered { txn: u32 },
}

/// A transaction's part on one node.
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    node: u32,
    hot: u32,
    worked: bool,
    has_reads: bool,
}

#[derive(Clone, Copy, Debug)]
struct Txn {
    home: u32,
    sides: [Side; 2],
    /// On how many nodes it is, and on how many of them it is over.
    count: u8,
    over: u8,
}

struct Node {
    /// Transactions asked for since the last epoch.
    waiting: Vec<u32>,
    /// Holder of each hot record, and those that wait for it.
    locks: Vec<VecDeque<u32>>,
    /// Transactions that have their locks and wait for the core.
    ready: VecDeque<u32>,
    /// Epochs that have arrived and that the core has not heeded.
    unhandled: u32,
    is_busy: bool,
    random: Random,
}

struct Simulation<'a> {
    model: &'a Model,
    nodes: Vec<Node>,
    txns: Vec<Txn>,
    /// Places of transactions that are over.
    free: Vec<u32>,
    events: BinaryHeap<Reverse<(Time, u64, What)>>,
    scheduled: u64,
    now: Time,
    /// Batches under way to all nodes.
    sent: VecDeque<Vec<Vec<u32>>>,
    committed: u64,
}

fn time(us: f64) -> Time {
    (us * 1e3) as Time
}

impl Model {
    /// Committed transactions a second, of all nodes together.
    pub fn txn_per_s(&self) -> f64 {
        let nodes = self.speeds.len() as u32;
        let hot = (1.0 / self.contention_index).round().max(1.0) as usize;
        let node = |number: u32| Node {
            waiting: Vec::new(),
            locks: vec![VecDeque::new(); hot],
            ready: VecDeque::new(),
            unhandled: 0,
            is_busy: false,
            random: Random::stream(self.seed, number.into()),
        };
        let mut simulation = Simulation {
            model: self,
            nodes: (0..nodes).map(node).collect(),
            txns: Vec::new(),
            free: Vec::new(),
            events: BinaryHeap::new(),
            scheduled: 0,
            now: 0,
            sent: VecDeque::new(),
            committed: 0,
        };
        for node in 0..nodes {
            (0..self.clients).for_each(|_| simulation.ask(node));
        }
        simulation.schedule(0.0, What::Close);
        simulation.until(time(self.watched_us));
        let before = simulation.committed;
        simulation.until(time(2.0 * self.watched_us));
        (simulation.committed - before) as f64 / (self.watched_us / 1e6)
    }
}

impl Simulation<'_> {
    fn schedule(&mut self, after_us: f64, what: What) {
        self.scheduled += 1;
        self.events.push(Reverse((self.now + time(after_us), self.scheduled, what)));
    }

    fn until(&mut self, end: Time) {
        while let Some(Reverse((at, _, what))) = self.events.pop() {
            if at > end {
                self.events.push(Reverse((at, 0, what)));
                return;
            }
            self.now = at;
            match what {
                What::Close => self.close(),
                What::Arrive => self.arrive(),
                What::Handled { node } => {
                    self.nodes[node as usize].is_busy = false;
                    self.work(node);
                }
                What::Worked { node, txn } => self.worked(node, txn),
                What::Reads { side, txn } => {
                    self.txns[txn as usize].sides[usize::from(side)].has_reads = true;
                    self.go_on(txn, usize::from(side));
                }
                What::Answered { txn } => {
                    self.committed += 1;
                    self.free.push(txn);
                    self.ask(self.txns[txn as usize].home);
                }
            }
        }
    }

    /// A client of a node asks for its next transaction.
    fn ask(&mut self, home: u32) {
        let count = self.nodes.len() as u64;
        let node = &mut self.nodes[home as usize];
        let hot = node.locks.len() as u64;
        let side =
            |node: u32, random: &mut Random| Side { node, hot: random.below(hot) as u32, ..Side::default() };
        let own = side(home, &mut node.random);
        let is_multi = count > 1 && node.random.unit() < self.model.multi;
        let other = is_multi.then(|| {
            let step = 1 + node.random.below(count - 1);
            side(((u64::from(home) + step) % count) as u32, &mut node.random)
        });
        let txn =
            Txn { home, sides: [own, other.unwrap_or_default()], count: 1 + u8::from(is_multi), over: 0 };
        let number = match self.free.pop() {
            Some(number) => {
                self.txns[number as usize] = txn;
                number
            }
            None => {
                self.txns.push(txn);
                self.txns.len() as u32 - 1
            }
        };
        self.nodes[home as usize].waiting.push(number);
    }

    fn close(&mut self) {
        let batches = self.nodes.iter_mut().map(|node| std::mem::take(&mut node.waiting)).collect();
        self.sent.push_back(batches);
        // A node on its own receives nothing.
        let link = if self.nodes.len() > 1 { self.model.link_us } else { 0.0 };
        self.schedule(link, What::Arrive);
        self.schedule(self.model.epoch_us, What::Close);
    }

    /// Every node takes the batches in the order of their partitions.
    fn arrive(&mut self) {
        for txn in self.sent.pop_front().unwrap_or_default().into_iter().flatten() {
            let Txn { sides, count, .. } = self.txns[txn as usize];
            for side in &sides[..usize::from(count)] {
                let node = &mut self.nodes[side.node as usize];
                let queue = &mut node.locks[side.hot as usize];
                queue.push_back(txn);
                if queue.len() == 1 {
                    node.ready.push_back(txn);
                }
            }
        }
        for number in 0..self.nodes.len() as u32 {
            self.nodes[number as usize].unhandled += 1;
            self.work(number);
        }
    }

    /// The core of a node takes what has come of an epoch, or else the next transaction that has its locks.
    fn work(&mut self, number: u32) {
        let others = self.nodes.len() - 1;
        let node = &mut self.nodes[number as usize];
        if node.is_busy {
            return;
        }
        if node.unhandled > 0 {
            node.unhandled -= 1;
            node.is_busy = true;
            let us = others as f64 * self.model.peer_us / self.model.speeds[number as usize];
            return self.schedule(us, What::Handled { node: number });
        }
        let Some(txn) = node.ready.pop_front() else { return };
        node.is_busy = true;
        let us = if self.txns[txn as usize].count == 1 { self.model.single_us } else { self.model.multi_us };
        let varies = 0.5 + node.random.unit();
        self.schedule(us * varies / self.model.speeds[number as usize], What::Worked { node: number, txn });
    }

    fn worked(&mut self, number: u32, txn: u32) {
        self.nodes[number as usize].is_busy = false;
        let Txn { sides, count, .. } = self.txns[txn as usize];
        let side = usize::from(sides[0].node != number);
        self.txns[txn as usize].sides[side].worked = true;
        if count == 2 {
            self.schedule(self.model.link_us, What::Reads { side: 1 - side as u8, txn });
        }
        self.go_on(txn, side);
        self.work(number);
    }

    /// A part that has done its work and has the reads of the other is done: its lock goes to the next.
    fn go_on(&mut self, txn: u32, side: usize) {
        let Txn { sides, count, .. } = self.txns[txn as usize];
        let Side { node: number, hot, worked, has_reads } = sides[side];
        if !worked || (count == 2 && !has_reads) {
            return;
        }
        let node = &mut self.nodes[number as usize];
        let queue = &mut node.locks[hot as usize];
        queue.pop_front();
        if let Some(next) = queue.front() {
            node.ready.push_back(*next);
        }
        self.work(number);
        let it = &mut self.txns[txn as usize];
        it.over += 1;
        if it.over == it.count {
            self.schedule(0.0, What::Answered { txn });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(nodes: usize) -> Model {
        Model {
            speeds: vec![1.0; nodes],
            single_us: 100.0,
            multi_us: 150.0,
            multi: 0.1,
            contention_index: 0.0001,
            link_us: 500.0,
            epoch_us: 5_000.0,
            peer_us: 0.0,
            clients: 400,
            watched_us: 500_000.0,
            seed: 7,
        }
    }

    fn near(value: f64, expected: f64) {
        assert!((value / expected - 1.0).abs() < 0.06, "{value} is not about {expected}");
    }

    #[test]
    fn a_node_on_its_own_does_what_its_core_can() {
        near(model(1).txn_per_s(), 10_000.0);
        near(Model { speeds: vec![0.5], ..model(1) }.txn_per_s(), 5_000.0);
    }

    #[test]
    fn two_partitions_cost_each_node_its_part() {
        // 0.9 x 100 us, and two parts of 150 us for one in ten.
        near(model(4).txn_per_s(), 4.0 * 1e6 / 120.0);
        near(Model { multi: 0.0, ..model(4) }.txn_per_s(), 40_000.0);
    }

    #[test]
    fn every_other_node_costs_something_in_each_epoch() {
        // 3 x 500 of 5000 us.
        near(Model { peer_us: 500.0, ..model(4) }.txn_per_s(), 0.7 * 4.0 * 1e6 / 120.0);
        near(Model { peer_us: 500.0, ..model(1) }.txn_per_s(), 10_000.0);
    }

    #[test]
    fn one_slow_node_holds_up_those_who_wait_for_it() {
        let slow = Model { speeds: vec![1.0, 1.0, 1.0, 0.5], multi: 1.0, ..model(4) };
        let even = Model { multi: 1.0, ..model(4) };
        assert!(slow.txn_per_s() < 0.75 * even.txn_per_s());
    }

    #[test]
    fn one_hot_record_makes_transactions_wait_for_the_way_of_the_one_before() {
        let serial = Model { multi: 1.0, contention_index: 1.0, ..model(2) };
        // Each holds both locks for its work and the way of the reads.
        let most = 1e6 / (150.0 * 0.5 + 500.0);
        let rate = serial.txn_per_s();
        assert!(rate < most && rate > most / 2.0, "{rate}, at most {most}");
    }

    #[test]
    fn a_seed_gives_the_same_again() {
        assert_eq!(model(3).txn_per_s().to_bits(), model(3).txn_per_s().to_bits());
    }
}
