//! Checkpointers with shards that are made up: what they write, what they seal, and what is left of it when the disk is
//! full or the power goes.

use std::collections::VecDeque;
use std::sync::Arc;

use ordain_checkpoint::{CheckpointError, Item, Kind, Piece, list, read, verify};
use ordain_log::{MemoryDirectory, carry_out};
use ordain_model::wire::Codec as _;
use ordain_model::{Cell, Db, Gsn, Layout, Micros, Value};
use ordain_role::{Bugs, Directory, Rebuild};

use super::*;
use ordain_fuzz::Random;

mod copying;
mod sealing;
mod wire;

const SEQUENCER: u16 = 0;
const LOG: u16 = 1;
const EXCHANGE: u16 = 2;
const ME: u16 = 6;
const SHARDS: [u16; 2] = [16, 17];
const PIECE: usize = 1000;

const fn at(node: u16, role: u16) -> Address {
    Address { node: NodeId(node), role }
}

/// Some nodes, each with its disk.
struct World {
    topology: Topology,
    nodes: Vec<Node>,
    /// Messages sent to others than checkpointers: shards, sequencer, exchange.
    sent: Vec<(Address, Saving)>,
    /// Nodes whose log is to begin again, with the epoch of their checkpoint.
    log_begins: Vec<(u16, u64)>,
    /// Requests to trim: to whom, and the epochs covered by all members' and by the node's own checkpoints.
    trimmed: Vec<(Address, u64, u64)>,
    /// On its way between checkpointers.
    mail: VecDeque<(Address, Address, Message<()>)>,
    /// Nodes that have asked to begin again.
    begun_again: Vec<(u16, Rebuild)>,
    /// Exchanges do not have everything on disk yet.
    holds_covered: bool,
    now: Now,
}

struct Node {
    role: Checkpointer<(), Message<()>>,
    disk: MemoryDirectory,
    requests: VecDeque<DiskRequest>,
    memory_grows: bool,
}

fn settings(topology: &Topology, node: u16) -> CheckpointSettings {
    CheckpointSettings {
        topology: topology.clone(),
        me: at(node, ME),
        sequencer: at(node, SEQUENCER),
        exchange: (topology.layout.partitions() > 1).then_some(at(node, EXCHANGE)),
        log: at(node, LOG),
        trims: true,
        shards: SHARDS.iter().map(|shard| at(node, *shard)).collect(),
        identity: b"cluster".to_vec(),
        keep: 2,
        piece: PIECE,
        only_copies: false,
        seals_alone: false,
        primaries_change: false,
        bugs: Bugs::NONE,
    }
}

impl World {
    fn new(partitions: usize, replicas: u16) -> World {
        let layout = Layout::even(partitions, SHARDS.len()).expect("a layout");
        let topology = Topology::replicated(Arc::new(layout), replicas);
        let nodes = (0..topology.nodes()).map(|node| Node {
            role: Checkpointer::new(settings(&topology, node), &[], &[]),
            disk: MemoryDirectory::new(),
            requests: VecDeque::new(),
            memory_grows: false,
        });
        let now = Now { elapsed: Micros(0), wall: Micros::from_millis(7_000) };
        World {
            nodes: nodes.collect(),
            topology,
            sent: Vec::new(),
            log_begins: Vec::new(),
            trimmed: Vec::new(),
            mail: VecDeque::new(),
            begun_again: Vec::new(),
            holds_covered: false,
            now,
        }
    }

    fn handle(&mut self, node: u16, event: Event<Message<()>>) {
        let mut out = Outbox::default();
        let Node { role, requests, memory_grows, .. } = &mut self.nodes[usize::from(node)];
        role.handle(self.now, event, &mut out);
        assert_eq!((out.halt, role.check()), (None, Ok(())));
        *memory_grows = out.memory_grows.unwrap_or(*memory_grows);
        assert_eq!(*memory_grows, role.current.is_some(), "shards keep what they replace while one is made");
        self.begun_again.extend(out.rebuild.map(|how| (node, how)));
        requests.extend(out.disk);
        for (to, message) in out.sends {
            match message {
                Message::Saving(saving) if to.role != ME => self.sent.push((to, saving)),
                Message::Log(Log::BeginAgain(epoch)) => {
                    self.log_begins.push((to.node.0, epoch.0));
                }
                Message::Log(Log::Trim(covered)) => {
                    self.trimmed.push((to, covered.by_all.0, covered.by_own.0));
                }
                message => self.mail.push_back((at(node, ME), to, message)),
            }
        }
    }

    fn tell(&mut self, from: Address, saving: Saving) {
        self.handle(from.node.0, Event::Message { from, message: saving.into() });
    }

    fn disk(&mut self, node: u16) -> &mut MemoryDirectory {
        &mut self.nodes[usize::from(node)].disk
    }

    /// Carries out what a node has asked of its disk; says whether it has asked for anything.
    fn work(&mut self, node: u16) -> bool {
        let Node { disk, requests, .. } = &mut self.nodes[usize::from(node)];
        let Some(request) = requests.pop_front() else { return false };
        let done = carry_out(disk, &request);
        self.handle(node, Event::Disk(done));
        true
    }

    fn deliver(&mut self) -> bool {
        let Some((from, to, message)) = self.mail.pop_front() else { return false };
        self.handle(to.node.0, Event::Message { from, message });
        true
    }

    /// Until nothing is left to do: exchanges have everything on disk, sequencers have nothing to add.
    fn settle(&mut self) {
        loop {
            let worked = (0..self.topology.nodes()).filter(|node| self.work(*node)).count() > 0;
            let delivered = self.deliver();
            let asked: Vec<(Address, Saving)> = self
                .sent
                .extract_if(.., |(_, saving)| match saving {
                    Saving::Covered(_) => !self.holds_covered,
                    saving => matches!(saving, Saving::Begun(_)),
                })
                .collect();
            if !worked && !delivered && asked.is_empty() {
                return;
            }
            for (at, saving) in asked {
                match saving {
                    Saving::Begun(epoch) => {
                        let piece = Piece::input(b"input".to_vec());
                        self.tell(at, Saving::Piece { epoch, piece });
                        self.tell(at, Saving::Last(epoch));
                    }
                    covered => self.tell(at, covered),
                }
            }
        }
    }

    /// All shards of a node give what they have of an epoch.
    fn save(&mut self, node: u16, epoch: Epoch) {
        for role in SHARDS {
            for part in 0..3 {
                let piece = self.piece(node, epoch, part);
                self.tell(at(node, role), Saving::Piece { epoch, piece });
            }
            self.tell(at(node, role), Saving::Last(epoch));
        }
    }

    /// Some records of a partition.
    fn piece(&self, node: u16, epoch: Epoch, part: u64) -> Piece {
        let partition = self.topology.partition_of(NodeId(node));
        let mut piece = Piece::new(Kind::Records);
        let is_there = |key: &[u8; 8]| self.topology.layout.region_of(key) == partition;
        for key in (0..40u64).map(|n| (epoch.0 << 32 | part << 16 | n).to_le_bytes()).filter(is_there) {
            let cell = Cell { value: Some(Value::String(key.to_vec())), expires_at: Millis(0).into() };
            piece.push_record(Db(0), &key, &cell, Gsn(epoch.0));
        }
        piece
    }

    fn complete(&self, node: u16) -> Vec<u64> {
        self.nodes[usize::from(node)].role.complete.keys().map(|epoch| epoch.0).collect()
    }

    /// The complete checkpoints on a disk that are what was written.
    fn sound(&self, node: u16) -> Vec<u64> {
        let disk = &self.nodes[usize::from(node)].disk;
        let found = list(disk).expect("a list").into_iter().filter(Found::is_complete);
        found.map(|found| found.epoch).filter(|epoch| verify(disk, *epoch).is_ok()).map(|e| e.0).collect()
    }

    fn files(&self, node: u16) -> Vec<String> {
        let files = self.nodes[usize::from(node)].disk.list().expect("a list");
        files.into_iter().map(|(file, _)| file).collect()
    }

    fn gauge(&self, node: u16, name: &str) -> f64 {
        let mut found = None;
        self.nodes[usize::from(node)].role.gauges(&mut |is, value| {
            if is == name {
                found = Some(value);
            }
        });
        found.expect("a gauge")
    }

    /// A node is started from what is on its disk.
    fn restart(&mut self, node: u16) {
        self.restart_refusing(node, &[]);
    }

    /// The same, and some of that is damaged.
    fn restart_refusing(&mut self, node: u16, refused: &[Epoch]) {
        let found = list(self.disk(node)).expect("a list");
        let role = Checkpointer::new(settings(&self.topology, node), &found, refused);
        let place = &mut self.nodes[usize::from(node)];
        place.role = role;
        place.requests.clear();
        self.mail.retain(|(from, to, _)| from.node.0 != node && to.node.0 != node);
        for other in (0..self.topology.nodes()).filter(|other| *other != node) {
            self.meet(node, other);
            self.meet(other, node);
        }
    }

    fn meet(&mut self, node: u16, other: u16) {
        let change = PeerChange { node: NodeId(other), state: PeerState::Fresh };
        self.handle(node, Event::Message { from: at(node, 3), message: change.into() });
    }

    /// A node's log says that it is behind.
    fn behind(&mut self, node: u16, epoch: u64) {
        let message = Log::Behind(Epoch(epoch)).into();
        self.handle(node, Event::Message { from: at(node, 1), message });
    }

    /// Two members, of which the first has complete checkpoints of these epochs.
    fn members(epochs: &[u64]) -> World {
        let mut world = World::new(1, 2);
        for epoch in epochs {
            world.save(0, Epoch(*epoch));
            world.settle();
        }
        assert_eq!(world.complete(0), epochs);
        world
    }

    fn has_begun_again(&self, node: u16) -> bool {
        let how = Rebuild { without_log: false, without_receive_journal: true };
        self.begun_again.contains(&(node, how))
    }

    /// Starts a node whose log begins after an epoch that no checkpoint on its disk covers.
    fn restart_needing(&mut self, node: u16, lacking: NeedsCheckpoint, primaries_change: bool) {
        let found = list(self.disk(node)).expect("a list");
        let refused: Vec<Epoch> = found.iter().map(|found| found.epoch).collect();
        let settings = CheckpointSettings { primaries_change, ..settings(&self.topology, node) };
        self.nodes[usize::from(node)].role = Checkpointer::new(settings, &found, &refused).needing(lacking);
        self.handle(node, Event::Start);
        for other in (0..self.topology.nodes()).filter(|other| *other != node) {
            self.meet(node, other);
            self.meet(other, node);
        }
    }
}
