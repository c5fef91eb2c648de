//! What the driver promises roles, on one node and between two.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use ordain_family::Incoming;
use ordain_gateway::{AloneRouter, Gateway};
use ordain_model::{Front, GatewayId, Micros, Registry, codec};
use ordain_role::{
    Address, Bytes, Directory, DiskOp, DiskRequest, Event, NodeId, Now, Outbox, PeerChange, PeerState, Role,
    TimerId, Wire,
};

use crate::network::Cuts;
use crate::system::{FrontDoor, Roles, System};
use crate::{Config, Counts, Ending, Fault, Faults, Load, Mix, Profile, Simulator, Verdict};

const SEND: u16 = 0;
const RECEIVE: u16 = 1;

#[derive(Clone, Debug)]
enum Message {
    Number(u64),
    Front,
    Peer(PeerChange),
}

impl From<PeerChange> for Message {
    fn from(change: PeerChange) -> Message {
        Message::Peer(change)
    }
}

codec!(enum Message {
    0 => Number(number),
}, local Front | Peer);

impl Wire for Message {}

impl From<Front> for Message {
    fn from(_: Front) -> Message {
        Message::Front
    }
}

impl ordain_family::Message for Message {
    fn incoming(self) -> Incoming<Message> {
        Incoming::Role(self)
    }
}

/// Counts aloud, to the receiver of its own node and to that of the other, every 50 us of its own clock.
struct Sender {
    node: NodeId,
    sent: u64,
    last: Now,
}

impl Role for Sender {
    type Message = Message;

    fn name(&self) -> &'static str {
        "sender"
    }

    fn handle(&mut self, now: Now, event: Event<Message>, out: &mut Outbox<Message>) {
        let waited = now.elapsed.since(self.last.elapsed);
        if now.elapsed < self.last.elapsed {
            out.halt("time went back");
        }
        match event {
            Event::Start if self.sent > 0 => out.halt("started twice"),
            Event::Timer(_) if waited < Micros(50) => out.halt("a timer fired too early"),
            Event::Timer(TimerId(2)) => out.halt("a cancelled timer fired"),
            _ => {}
        }
        for node in [NodeId(0), NodeId(1)] {
            out.send(Address { node, role: RECEIVE }, Message::Number(self.sent));
        }
        self.sent += 1;
        self.last = now;
        out.set_timer(TimerId(1), Micros(10));
        out.set_timer(TimerId(2), Micros(60));
        out.cancel_timer(TimerId(2));
        out.set_timer(TimerId(1), Micros(50));
        let _ = self.node;
    }
}

/// A number with its sender, or what has become of the stream to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Received {
    Number(NodeId, u64),
    Peer(PeerChange),
}

type Notes = Arc<Mutex<Vec<Received>>>;

/// Writes down what it receives, and one file for each, and wants the disk's answers in order. Has some more to write
/// when its node stops, one file after the other.
struct Receiver {
    received: Notes,
    asked: u64,
    answered: u64,
    /// How many files it still has to write, once its node stops.
    last: Option<u64>,
}

impl Receiver {
    fn write(&mut self, out: &mut Outbox<Message>) {
        let (file, data) = (format!("f{}", self.asked), vec![Bytes::from(vec![1; 9])]);
        let mut ops = vec![
            DiskOp::Create { file: file.clone(), len: 0 },
            DiskOp::Write { file: file.clone(), offset: 0, data },
            DiskOp::Sync { file },
        ];
        ops.extend(self.last.map(|_| DiskOp::SyncDirectory));
        out.disk(DiskRequest::new(self.asked, ops));
        self.asked += 1;
    }
}

impl Role for Receiver {
    type Message = Message;

    fn name(&self) -> &'static str {
        "receiver"
    }

    fn handle(&mut self, _now: Now, event: Event<Message>, out: &mut Outbox<Message>) {
        match event {
            Event::Message { from, message: Message::Number(n) } if self.last.is_none() => {
                self.received.lock().unwrap().push(Received::Number(from.node, n));
                self.write(out);
            }
            Event::Message { message: Message::Peer(change), .. } => {
                self.received.lock().unwrap().push(Received::Peer(change));
            }
            Event::Disk(done) if done.token == self.answered => {
                self.answered += 1;
                if self.answered == self.asked
                    && let Some(left @ 1..) = self.last
                {
                    self.last = Some(left - 1);
                    self.write(out);
                }
            }
            Event::Disk(_) => out.halt("the disk answered out of turn"),
            Event::Stop if self.last.is_some() => out.halt("stopped twice"),
            Event::Stop => {
                self.last = Some(4);
                self.write(out);
            }
            _ => {}
        }
    }
}

#[derive(Default)]
struct Pair {
    received: [Notes; 2],
    lives: u32,
}

impl System for Pair {
    type Message = Message;

    fn registry(&self) -> Arc<Registry> {
        Arc::default()
    }

    fn start(
        &mut self,
        node: NodeId,
        incarnation: u32,
        disk: &mut dyn Directory,
    ) -> Result<Roles<Message>, String> {
        self.lives = self.lives.max(incarnation);
        for (file, _) in disk.list().map_err(|e| e.to_string())? {
            disk.apply(&DiskOp::Remove { file }).map_err(|e| e.to_string())?;
        }
        let received = self.received[usize::from(node.0)].clone();
        received.lock().unwrap().clear();
        let sender = Sender { node, sent: 0, last: Now::default() };
        let receiver = Receiver { received, asked: 0, answered: 0, last: None };
        Ok(vec![(SEND, Box::new(sender)), (RECEIVE, Box::new(receiver))])
    }

    fn door(&self, node: NodeId, _: u32, n: u16) -> FrontDoor {
        let address = Address { node, role: 100 + n };
        let gateway = Gateway::alone(GatewayId::of(node.0, n), self.registry());
        FrontDoor { address, gateway, router: Box::new(AloneRouter(Address { node, role: RECEIVE })) }
    }

    fn peer_watchers(&self, _: NodeId) -> Vec<u16> {
        vec![RECEIVE]
    }

    fn check(&mut self, ending: Ending<'_>) -> Verdict {
        ending.by_replay(&[], None, &BTreeSet::new())
    }
}

/// Two nodes without clients, in a storm.
fn idle(seed: u64, faults: Faults) -> Config {
    let load = Load { clients: 0, ..Load::of(Profile::Storm, 1) };
    Config { nodes: 2, load, faults, ..Config::new(seed) }
}

/// Lets node 0 and node 1 talk for a while; what node 1 received, and what happened.
fn run(seed: u64, faults: &str, for_us: u64) -> (Vec<Received>, Counts) {
    let faults: Faults = faults.parse().unwrap();
    let config = idle(seed, faults);
    let pair = Pair::default();
    let received = pair.received[1].clone();
    let mut mix = Mix::transfers(1);
    let mut simulator = Simulator::new(pair, &mut mix, &config, None);
    simulator.run(Micros(for_us), |_| true);
    assert_eq!(simulator.violation(), None, "seed {seed} faults {faults}");
    let received = received.lock().unwrap().clone();
    (received, simulator.counts)
}

/// The numbers that a node has sent, in the streams in which they came.
fn streams(received: &[Received], node: NodeId) -> Vec<Vec<u64>> {
    let mut streams = vec![Vec::new()];
    for received in received {
        match received {
            Received::Number(from, n) if *from == node => streams.last_mut().unwrap().push(*n),
            Received::Peer(change) if change.node == node && change.state == PeerState::Fresh => {
                streams.push(Vec::new());
            }
            _ => {}
        }
    }
    streams
}

fn is_consecutive(numbers: &[u64]) -> bool {
    numbers.windows(2).all(|pair| pair[1] == pair[0] + 1)
}

#[test]
fn messages_within_a_node_arrive_in_order_and_once_whatever_happens() {
    for faults in ["none", "delay", "reorder,duplicate,partition", "all"] {
        for seed in 0..30 {
            let local = streams(&run(seed, faults, 20_000).0, NodeId(1)).concat();
            assert!(is_consecutive(&local) && local.first().is_none_or(|n| *n == 0), "seed {seed} {faults}");
        }
    }
}

#[test]
fn messages_between_nodes_arrive_in_order_and_once_in_each_stream() {
    let (mut streams_of, mut lost, mut packets_lost) = (0, 0, 0);
    let single = Fault::ALL.iter().map(|(fault, _)| *fault).map(|fault| Faults::NONE.with(fault).to_string());
    for faults in single.chain(["reorder,duplicate".to_owned(), "all".to_owned()]) {
        for seed in 0..20 {
            let (received, counts) = run(seed, &faults, 60_000);
            let streams = streams(&received, NodeId(0));
            assert_eq!(streams[0], [], "nothing arrives before the first stream");
            assert!(streams.iter().all(|stream| is_consecutive(stream)), "seed {seed} faults {faults}");
            let all = streams.concat();
            assert!(all.is_sorted_by(|a, b| a < b) || counts.crashes > 0, "seed {seed} faults {faults}");
            streams_of += streams.len() - 1;
            lost += u64::from(!is_consecutive(&all));
            packets_lost += counts.packets_lost;
        }
    }
    assert!(streams_of > 150 && lost > 5 && packets_lost > 100, "{streams_of} {lost} {packets_lost}");
}

#[test]
fn without_faults_there_is_one_stream_and_nothing_of_it_is_lost() {
    for seed in 0..20 {
        let (received, counts) = run(seed, "none", 40_000);
        let streams = streams(&received, NodeId(0));
        assert_eq!((streams.len(), counts.packets_lost, counts.losses), (2, 0, 0), "seed {seed}");
        assert!(streams[1].len() > 200, "seed {seed}: {}", streams[1].len());
    }
}

/// What the wire loses, doubles and turns around does not show; a cut shows as silence, and then it goes on.
#[test]
fn a_partition_is_reported_and_heals_without_loss() {
    let (mut losses, mut returns) = (0, 0);
    for seed in 0..10 {
        let config = idle(seed, Faults::NONE);
        let pair = Pair::default();
        let received = pair.received[1].clone();
        let mut mix = Mix::transfers(1);
        let mut simulator = Simulator::new(pair, &mut mix, &config, None);
        simulator.intensity.lost_after_us = 1 << 15;
        simulator.run(Micros(20_000), |_| true);
        let cut = [(0, 1), (1, 0)];
        let one_way = seed % 2 == 0;
        simulator.cuts = if one_way { Cuts::of(&cut[..1]) } else { Cuts::of(&cut) };
        simulator.run(Micros(150_000), |_| true);
        simulator.cuts.mend();
        simulator.run(Micros(300_000), |_| true);
        assert_eq!(simulator.violation(), None, "seed {seed}");
        let received = received.lock().unwrap();
        let is_reported = |state| received.contains(&Received::Peer(PeerChange { node: NodeId(0), state }));
        assert!(is_reported(PeerState::Lost) && is_reported(PeerState::Back), "seed {seed}");
        let streams = streams(&received, NodeId(0));
        assert_eq!(streams.len(), 2, "seed {seed}");
        assert!(is_consecutive(&streams[1]) && streams[1].len() > 1_000, "seed {seed}: {}", streams[1].len());
        losses += simulator.counts.losses;
        returns += simulator.counts.returns;
    }
    assert!(losses >= 20 && returns == losses, "{losses} {returns}");
}

/// A node that stands still receives nothing, sends nothing and misses nothing.
#[test]
fn a_node_that_stood_still_goes_on_where_it_was() {
    for seed in 0..20 {
        let faults = Faults::NONE;
        let config = idle(seed, faults);
        let pair = Pair::default();
        let received = pair.received[1].clone();
        let mut mix = Mix::transfers(1);
        let mut simulator = Simulator::new(pair, &mut mix, &config, None);
        simulator.run(Micros(10_000), |_| true);
        // So that it happens to many messages on their way within the node.
        simulator.intensity.local_delay_us_max = 1 << 12;
        simulator.intensity.freeze_us_max = 1 << 14;
        simulator.run(Micros(20_000), |_| true);
        let before = received.lock().unwrap().len();
        simulator.freeze(1);
        let is_still = |s: &Simulator<'_, Pair>| s.nodes[1].is_frozen;
        simulator.run(Micros(100_000), |s| is_still(s) && s.nodes[1].held.len() < 20);
        if is_still(&simulator) {
            assert_eq!(received.lock().unwrap().len(), before, "seed {seed}");
        }
        simulator.run(Micros(200_000), |_| true);
        assert_eq!((simulator.violation(), simulator.counts.freezes), (None, 1), "seed {seed}");
        let received = received.lock().unwrap();
        assert!(received.len() > before + 1_000, "seed {seed}");
        assert!([0, 1].map(NodeId).iter().all(|node| is_consecutive(&streams(&received, *node).concat())));
    }
}

/// A node that stops loses nothing that its roles asked of the disk then, or upon its answers; then it is down.
#[test]
fn a_stop_in_good_order_is_handled_once_and_waits_for_the_disk() {
    for seed in 0..20 {
        let config = idle(seed, Faults::NONE);
        let pair = Pair::default();
        let received = pair.received[1].clone();
        let mut mix = Mix::transfers(1);
        let mut simulator = Simulator::new(pair, &mut mix, &config, None);
        simulator.run(Micros(2_000), |_| true);
        simulator.stop(1, Micros(10_000_000));
        assert_eq!(simulator.violation(), None, "seed {seed}");
        assert!(!simulator.nodes[1].up && simulator.nodes[0].up);
        let files = simulator.nodes[1].disk.list().unwrap();
        let numbers = received.lock().unwrap().iter().filter(|h| matches!(h, Received::Number(..))).count();
        assert_eq!(files.len(), numbers + 5, "seed {seed}");
        assert!(files.iter().all(|(_, len)| *len == 9), "seed {seed}: {files:?}");
        // And it starts again.
        simulator.run(Micros(20_000_000), |s| !s.nodes[1].up);
        assert!(simulator.nodes[1].up, "seed {seed}");
    }
}
