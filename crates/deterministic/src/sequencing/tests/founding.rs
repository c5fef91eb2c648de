//! Tests of founding: nodes of a replica meet for the first time, and one that has lost its disk is refused.

use std::collections::VecDeque;

use ordain_log::Space;
use ordain_replication::Index;
use ordain_role::{DiskRequest, PeerChange, PeerState, Topology};

use super::exchange::{Note, batch_over};
use super::*;
use crate::sequencing::{Beginning, Exchange, ExchangeMessage, ExchangeSettings, JournalRecord, Opened};

type Out = Outbox<Message<Note>>;

const NODES: u16 = 3;
const PREFIX: &str = "inbox-";

fn exchange_of(node: u16) -> Address {
    Address { node: NodeId(node), role: 2 }
}

/// A node that runs.
struct Running {
    exchange: Exchange<Note>,
    disk: VecDeque<DiskRequest>,
}

/// Three partitions of one replica, whose exchanges are all there is of their nodes.
struct World {
    nodes: Vec<Option<Running>>,
    directories: Vec<MemoryDirectory>,
    /// Messages under way, in order.
    sent: VecDeque<(u16, u16, ExchangeMessage<Note>)>,
    /// The reasons why nodes have stopped.
    refused: Vec<(u16, String)>,
}

impl World {
    fn new() -> World {
        World {
            nodes: (0..NODES).map(|_| None).collect(),
            directories: (0..NODES).map(|_| MemoryDirectory::new()).collect(),
            sent: VecDeque::new(),
            refused: Vec::new(),
        }
    }

    /// The knowledge that a node's directory gives, and its journal.
    fn open(&mut self, node: u16) -> (Beginning, Opened) {
        self.open_by(node, Beginning::and)
    }

    fn open_by(
        &mut self,
        node: u16,
        and: fn(Beginning, &JournalRecord<Note>) -> Beginning,
    ) -> (Beginning, Opened) {
        let mut space = Space::new(&mut self.directories[usize::from(node)], PREFIX);
        let (mut index, mut beginning) = (Index::new(1024), Beginning::default());
        let config = LogConfig { segment_bytes: 1024, ..LogConfig::new(*b"world") };
        let opened = LogWriter::open_placed(&mut space, config, |place, entry| {
            let read = Exchange::<Note>::journal_records(&registry(), &entry.payload).expect("an entry");
            beginning = read.iter().fold(beginning, and);
            index.note_entry(entry.epoch, place, entry.payload.len(), Epoch(0));
            Ok(())
        });
        let (writer, _) = opened.unwrap();
        (beginning, Opened { writer, prefix: PREFIX, identity: b"world".to_vec(), index, counting: None })
    }

    /// Starts a node with what its directory knows; it meets those that run.
    fn start(&mut self, node: u16) {
        let (beginning, journal) = self.open(node);
        self.start_as(node, beginning, Some(journal));
    }

    fn start_as(&mut self, node: u16, beginning: Beginning, journal: Option<Opened>) {
        let layout = Arc::new(Layout::even(usize::from(NODES), 1).unwrap());
        let settings = ExchangeSettings {
            topology: Topology::replicated(layout, 1),
            me: exchange_of(node),
            sequencer: Address { node: NodeId(node), role: 0 },
            checkpointer: None,
            shards: vec![Address { node: NodeId(node), role: 16 }],
            kept_max: 1 << 20,
            keep_bytes: 1 << 20,
            piece: 1000,
            arrival: None,
            bugs: Default::default(),
        };
        let mut exchange = Exchange::new(settings, registry());
        exchange.begin(journal, Epoch(0), beginning);
        self.nodes[usize::from(node)] = Some(Running { exchange, disk: VecDeque::new() });
        for other in self.running().into_iter().filter(|other| *other != node) {
            self.change(node, other, PeerState::Fresh);
            self.change(other, node, PeerState::Fresh);
        }
    }

    fn running(&self) -> Vec<u16> {
        (0..NODES).filter(|node| self.nodes[usize::from(*node)].is_some()).collect()
    }

    /// A node loses power; so is what is on its way from it and to it.
    fn crash(&mut self, node: u16, random: &mut dyn FnMut() -> u64) {
        if self.nodes[usize::from(node)].take().is_none() {
            return;
        }
        self.directories[usize::from(node)].crash(random);
        self.sent.retain(|(from, to, _)| *from != node && *to != node);
        self.running().into_iter().for_each(|other| self.change(other, node, PeerState::Lost));
    }

    /// A node's directory is emptied, and the node is started again.
    fn empty(&mut self, node: u16) {
        self.crash(node, &mut || 0);
        self.directories[usize::from(node)] = MemoryDirectory::new();
        self.start(node);
    }

    fn change(&mut self, at: u16, node: u16, state: PeerState) {
        let message = PeerChange { node: NodeId(node), state }.into();
        let from = Address { node: NodeId(at), role: 3 };
        self.event(at, Event::Message { from, message });
    }

    fn event(&mut self, node: u16, event: Event<Message<Note>>) {
        let Some(running) = &mut self.nodes[usize::from(node)] else { return };
        let mut out = Out::default();
        running.exchange.handle(Now::default(), event, &mut out);
        running.exchange.check().unwrap();
        running.disk.extend(out.disk);
        for (to, message) in out.sends {
            if let Message::Exchange(message) = message {
                self.sent.push_back((node, to.node.0, message));
            }
        }
        if let Some(reason) = out.halt {
            self.refused.push((node, reason));
            self.crash(node, &mut || 0);
        }
    }

    /// The next thing happens: a message arrives, or a disk does what it was asked for. False if there is nothing.
    fn step(&mut self) -> bool {
        if let Some((from, to, message)) = self.sent.pop_front() {
            self.event(to, Event::Message { from: exchange_of(from), message: message.into() });
            return true;
        }
        for node in self.running() {
            let running = self.nodes[usize::from(node)].as_mut();
            if let Some(request) = running.and_then(|running| running.disk.pop_front()) {
                let done = carry_out(&mut self.directories[usize::from(node)], &request);
                self.event(node, Event::Disk(done));
                return true;
            }
        }
        false
    }

    fn settle(&mut self) {
        while self.step() {}
    }

    fn unfounded(&self, node: u16) -> f64 {
        let mut found = f64::NAN;
        let running = self.nodes[usize::from(node)].as_ref().unwrap();
        running.exchange.gauges(&mut |name, value| {
            if name == "ordain_exchange_unfounded" {
                found = value;
            }
        });
        found
    }

    #[track_caller]
    fn have_all_begun(&self) {
        assert_eq!(self.refused, [], "nobody has lost anything");
        assert_eq!(self.running(), [0, 1, 2]);
        for node in 0..NODES {
            assert_eq!(self.unfounded(node), 0.0, "node {node}");
        }
    }
}

/// A world in which all have begun.
fn begun() -> World {
    let mut world = World::new();
    (0..NODES).for_each(|node| world.start(node));
    world.settle();
    world.have_all_begun();
    world
}

#[test]
fn new_nodes_begin_in_whatever_order_they_are_started() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut world = World::new();
        for node in order {
            for started in world.running() {
                assert!(world.unfounded(started) > 0.0, "not all of {order:?} are there");
            }
            world.start(node);
            world.settle();
        }
        world.have_all_begun();
    }
}

#[test]
fn a_node_says_nothing_else_before_it_has_begun_and_all_of_it_then() {
    let mut world = World::new();
    world.start(0);
    world.start(1);
    let sealed = Log::Sealed(batch_over(0, 3, &[0, 1]));
    world.event(0, Event::Message { from: Address { node: NodeId(0), role: 1 }, message: sealed.into() });
    let opened = ExchangeMessage::Opened(Epoch(3));
    world.event(0, Event::Message { from: Address { node: NodeId(0), role: 0 }, message: opened.into() });
    let is_beginning = |message: &ExchangeMessage<Note>| matches!(message, ExchangeMessage::Beginning { .. });
    assert!(world.sent.iter().all(|(_, _, message)| is_beginning(message)), "{:?}", world.sent);
    world.settle();
    world.start(2);
    let mut slots = Vec::new();
    while world.step() {
        let is_slot = |message: &ExchangeMessage<Note>| {
            matches!(message, ExchangeMessage::Slot { through: Epoch(3), content: Some(_), .. })
        };
        let new = world.sent.iter().filter(|(_, _, message)| is_slot(message));
        slots.extend(new.map(|(from, to, _)| (*from, *to)));
    }
    world.have_all_begun();
    assert!(slots.contains(&(0, 1)), "{slots:?}");
}

/// Wherever a node loses power, and whatever of what was not synced is on its disk: nothing is lost, so nobody is refused.
#[test]
fn a_node_that_loses_power_while_they_meet_is_not_refused() {
    let mut random = ordain_fuzz::Random(7);
    for node in 0..NODES {
        for at in 0.. {
            let mut world = World::new();
            (0..NODES).for_each(|node| world.start(node));
            let steps = (0..at).take_while(|_| world.step()).count();
            world.crash(node, &mut || random.next());
            world.start(node);
            world.settle();
            world.have_all_begun();
            if steps < at {
                break;
            }
        }
    }
}

#[test]
fn all_nodes_may_lose_power_at_once() {
    let mut random = ordain_fuzz::Random(8);
    for at in 0..60 {
        let mut world = World::new();
        (0..NODES).for_each(|node| world.start(node));
        (0..at).for_each(|_| _ = world.step());
        (0..NODES).for_each(|node| world.crash(node, &mut || random.next()));
        (0..NODES).for_each(|node| world.start(node));
        world.settle();
        world.have_all_begun();
    }
}

#[test]
fn an_emptied_node_is_refused_whoever_else_is_emptied_as_long_as_one_knows() {
    for emptied in [&[0][..], &[1], &[2], &[0, 1], &[1, 2], &[0, 2]] {
        let mut world = begun();
        emptied.iter().for_each(|node| world.crash(*node, &mut || 0));
        emptied.iter().for_each(|node| world.empty(*node));
        world.settle();
        let mut refused: Vec<u16> = world.refused.iter().map(|(node, _)| *node).collect();
        refused.sort_unstable();
        assert_eq!(refused, emptied);
        assert!(world.refused.iter().all(|(_, reason)| reason.contains("it has lost what it had")));
        assert!(world.running().iter().all(|node| world.unfounded(*node) == 0.0));
    }
}

/// The peers of an emptied node restart too: they know from their disks alone.
#[test]
fn peers_that_restart_know_that_they_have_begun() {
    let mut world = begun();
    (0..NODES).for_each(|node| world.crash(node, &mut || 0));
    world.empty(1);
    (0..NODES).filter(|node| *node != 1).for_each(|node| world.start(node));
    world.settle();
    let expected = "this node of partition 1 has nothing on its disk, and node 0 knows that the two have begun together: it has \
                    lost what it had, and what clients were told is durable is gone with that: put a copy of its directory in \
                    place, restore the whole cluster from its archive (ordain checkpoint restore), or begin a new cluster with an \
                    empty directory on every node";
    assert_eq!(world.refused, [(1, expected.to_owned())]);
}

#[test]
fn nodes_that_are_all_emptied_are_a_new_cluster() {
    let mut world = begun();
    (0..NODES).for_each(|node| world.crash(node, &mut || 0));
    (0..NODES).for_each(|node| world.empty(node));
    world.settle();
    world.have_all_begun();
}

#[test]
fn a_node_that_keeps_nothing_is_refused_by_those_that_have_met_it() {
    let mut world = World::new();
    (0..NODES).for_each(|node| world.start_as(node, Beginning::Asks, None));
    world.settle();
    world.have_all_begun();
    world.crash(2, &mut || 0);
    world.start_as(2, Beginning::Asks, None);
    world.settle();
    assert_eq!(world.refused.len(), 1, "{:?}", world.refused);
}

#[test]
fn a_node_that_joins_takes_part_at_once_and_refuses_nobody_that_is_new() {
    let mut world = World::new();
    let (_, journal) = world.open(1);
    world.start_as(1, Beginning::Joins, Some(journal));
    assert_eq!(world.unfounded(1), 0.0);
    world.start(0);
    world.start(2);
    world.settle();
    world.have_all_begun();
    // It has heard of it.
    world.empty(0);
    world.crash(2, &mut || 0);
    world.settle();
    assert_eq!(world.refused.len(), 1, "{:?}", world.refused);
}

/// Found by the simulator (`--engine paxflow --reads previous --partitions 2 --replicas 3 --profile storm --seed 1524`): a node that had joined
/// took down how far another one was, was started again, and told a peer that had never met it that the two had begun together.
#[test]
fn a_node_that_has_joined_knows_after_a_restart_what_it_was_told_and_no_more() {
    let mut world = World::new();
    let (_, journal) = world.open(1);
    world.start_as(1, Beginning::Joins, Some(journal));
    // The second message has it write what has come.
    for message in [ExchangeMessage::Progress(Epoch(0)), ExchangeMessage::Pause] {
        world.sent.push_back((2, 1, message));
    }
    world.settle();
    world.crash(1, &mut || 0);
    assert_eq!(world.open(1).0, Beginning::Begun, "something stands in its journal");
    let (beginning, journal) = world.open_by(1, Beginning::and_joined);
    assert_eq!(beginning, Beginning::Asks, "it is a node that joins");
    world.start_as(1, Beginning::Joins, Some(journal));
    world.start(0);
    world.start(2);
    world.settle();
    world.have_all_begun();
    world.crash(1, &mut || 0);
    let (beginning, journal) = world.open_by(1, Beginning::and_joined);
    assert_eq!(beginning, Beginning::Begun, "its peers have told it");
    world.start_as(1, beginning, Some(journal));
    [0, 2].into_iter().for_each(|node| world.crash(node, &mut || 0));
    world.empty(0);
    world.settle();
    assert_eq!(world.refused.len(), 1, "{:?}", world.refused);
}
