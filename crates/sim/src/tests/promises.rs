//! What the driver promises roles, and what it does to links between nodes only when it was told to.

use std::sync::{Arc, Mutex};

use ordain_model::{Batch, Front, GatewayId, Micros, Registry};
use ordain_role::{
    Address, Bytes, Directory, DiskOp, DiskRequest, Event, NodeId, Now, Outbox, Role, TimerId,
};

use crate::system::{FrontDoor, Roles, System};
use crate::{Config, Faults, Mix, Simulator};

const SEND: u16 = 0;
const RECEIVE: u16 = 1;

#[derive(Clone, Debug)]
enum Message {
    Number(u64),
    Front,
}

impl From<Front> for Message {
    fn from(_: Front) -> Message {
        Message::Front
    }
}

impl TryFrom<Message> for Front {
    type Error = ();

    fn try_from(_: Message) -> Result<Front, ()> {
        Err(())
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

type Heard = Arc<Mutex<Vec<(NodeId, u64)>>>;

/// Writes down what it hears, and one file for each, and wants the disk's answers in order. Has some more to write
/// when its node stops, one file after the other.
struct Receiver {
    heard: Heard,
    asked: u64,
    answered: u64,
    /// How many files it still has to write, once it was told that its node stops.
    last: Option<u64>,
}

impl Receiver {
    fn write(&mut self, out: &mut Outbox<Message>) {
        let (file, data) = (format!("f{}", self.asked), vec![Bytes::Owned(vec![1; 9])]);
        let mut ops = vec![
            DiskOp::Create { file: file.clone(), len: 0 },
            DiskOp::Write { file: file.clone(), offset: 0, data },
            DiskOp::Sync { file },
        ];
        ops.extend(self.last.map(|_| DiskOp::SyncDirectory));
        out.disk(DiskRequest { token: self.asked, ops });
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
                self.heard.lock().unwrap().push((from.node, n));
                self.write(out);
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
    heard: [Heard; 2],
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
        let heard = self.heard[usize::from(node.0)].clone();
        heard.lock().unwrap().clear();
        let sender = Sender { node, sent: 0, last: Now::default() };
        let receiver = Receiver { heard, asked: 0, answered: 0, last: None };
        Ok(vec![(SEND, Box::new(sender)), (RECEIVE, Box::new(receiver))])
    }

    fn door(&self, node: NodeId, n: u16) -> FrontDoor {
        let address = Address { node, role: 100 + n };
        FrontDoor { id: GatewayId::of(node.0, n), address, engine: Address { node, role: RECEIVE } }
    }

    fn log(&mut self, _: NodeId, _: &mut dyn Directory) -> Result<Vec<Batch>, String> {
        Ok(Vec::new())
    }
}

/// What node 1 heard from itself and from node 0 in 20 ms.
fn heard(seed: u64, faults: &str) -> (Vec<u64>, Vec<u64>) {
    let faults: Faults = faults.parse().unwrap();
    let config = Config { nodes: 2, clients: 0, faults, ..Config::new(seed) };
    let pair = Pair::default();
    let heard = pair.heard[1].clone();
    let mut mix = Mix::bank(1);
    let mut simulator = Simulator::new(pair, &mut mix, &config, None);
    simulator.run(Micros(20_000), |_| true);
    assert_eq!(simulator.violation(), None, "seed {seed} faults {faults}");
    let heard = heard.lock().unwrap();
    let from = |node| heard.iter().filter(|(n, _)| *n == node).map(|(_, n)| *n).collect();
    (from(NodeId(1)), from(NodeId(0)))
}

fn is_count(numbers: &[u64]) -> bool {
    numbers.iter().copied().eq(0..numbers.len() as u64)
}

#[test]
fn messages_within_a_node_arrive_in_order_and_once_whatever_happens() {
    for faults in ["none", "delay", "reorder,duplicate,partition", "all"] {
        for seed in 0..30 {
            let (local, _) = heard(seed, faults);
            assert!(is_count(&local), "seed {seed} faults {faults}: {local:?}");
        }
    }
}

#[test]
fn links_misbehave_as_told_and_not_otherwise() {
    let ways = |faults| {
        let (mut lost, mut doubled, mut overtaken) = (0, 0, 0);
        for seed in 0..40 {
            let (_, mut far) = heard(seed, faults);
            overtaken += u32::from(!far.is_sorted());
            far.sort_unstable();
            doubled += u32::from(far.windows(2).any(|w| w[0] == w[1]));
            far.dedup();
            lost += u32::from(far.first() != Some(&0) || far.windows(2).any(|w| w[1] - w[0] > 8));
        }
        (lost > 0, doubled > 0, overtaken > 0)
    };
    assert_eq!(ways("none"), (false, false, false));
    assert_eq!(ways("partition"), (true, false, false));
    assert_eq!(ways("reorder"), (false, false, true));
    let (lost, doubled, _) = ways("duplicate");
    assert_eq!((lost, doubled), (false, true));
}

/// A node that stops loses nothing that its roles asked of the disk then, or upon its answers; then it is down.
#[test]
fn a_stop_in_good_order_is_told_once_and_waits_for_the_disk() {
    for seed in 0..20 {
        let config = Config { nodes: 2, clients: 0, faults: Faults::NONE, ..Config::new(seed) };
        let pair = Pair::default();
        let heard = pair.heard[1].clone();
        let mut mix = Mix::bank(1);
        let mut simulator = Simulator::new(pair, &mut mix, &config, None);
        simulator.run(Micros(2_000), |_| true);
        simulator.stop(1, Micros(10_000_000));
        assert_eq!(simulator.violation(), None, "seed {seed}");
        assert!(!simulator.nodes[1].up && simulator.nodes[0].up);
        let files = simulator.nodes[1].disk.list().unwrap();
        assert_eq!(files.len(), heard.lock().unwrap().len() + 5, "seed {seed}");
        assert!(files.iter().all(|(_, len)| *len == 9), "seed {seed}: {files:?}");
        // And it starts again.
        simulator.run(Micros(20_000_000), |s| !s.nodes[1].up);
        assert!(simulator.nodes[1].up, "seed {seed}");
    }
}
