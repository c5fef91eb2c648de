//! Checkpointers with shards that are made up: what they write, what they seal, and what is left of it when the disk is
//! full or the power goes.

use std::collections::VecDeque;
use std::sync::Arc;

use ordain_checkpoint::{CheckpointError, Item, Kind, Piece, list, read, verify};
use ordain_log::{MemoryDirectory, carry_out};
use ordain_model::{Cell, Db, Gsn, KeyHash, Layout, Micros, Registry, Value};
use ordain_role::{Directory, Rebuild, Wire};

use super::*;
use ordain_fuzz::Random;

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
    /// What was sent to others than checkpointers: shards, sequencer, exchange.
    sent: Vec<(Address, Saving)>,
    /// What logs and exchanges were told to trim.
    /// Whose log is to begin again, with a checkpoint of which epoch.
    log_begins: Vec<(u16, u64)>,
    /// What was covered, by all and by its own checkpoints.
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
    role: Checkpointer<()>,
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
        primaries_change: false,
    }
}

impl World {
    fn new(partitions: usize, replicas: u16) -> World {
        let layout = Layout::even(partitions, SHARDS.len()).expect("a layout");
        let topology = Topology { layout: Arc::new(layout), replicas };
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
        let is_there =
            |key: &[u8; 8]| self.topology.layout.partition_of(KeyHash::of(key).slot()) == partition;
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
}

#[test]
fn what_all_shards_gave_is_in_one_file() {
    let mut world = World::new(1, 1);
    world.save(0, Epoch(9));
    world.settle();
    let layout = world.topology.layout.clone();
    let header = Header::new(b"cluster", &layout, ordain_model::PartitionId(0), Epoch(9));
    let (mut records, mut inputs) = (0, 0);
    let totals = read(world.disk(0), &header, |item| {
        match item {
            Item::Record { key, cell, version, .. } => {
                assert_eq!((cell.string(), version), (Some(key), Gsn(9)));
                records += 1;
            }
            Item::Input(bytes) => {
                assert_eq!(bytes, b"input");
                inputs += 1;
            }
            Item::Outcome(_) | Item::Map(_) => {}
        }
        Ok(())
    });
    // Both shards have given the same: two of three pieces of 40 records.
    assert_eq!((totals.map(|totals| totals.records), records, inputs), (Ok(240), 240, 1));
    assert_eq!(world.nodes[0].role.newest(), Some((Epoch(9), Millis(7_000))));
    assert_eq!(world.gauge(0, "ordain_checkpoint_epoch"), 9.0);
}

#[test]
fn a_shard_is_told_of_each_piece_when_it_is_written_and_not_before() {
    let mut world = World::new(1, 1);
    let taken = |world: &World| {
        world
            .sent
            .iter()
            .filter(|(to, saving)| *to == at(0, SHARDS[0]) && matches!(saving, Saving::Taken(Epoch(9))))
            .count()
    };
    for part in 0..2 {
        let piece = world.piece(0, Epoch(9), part);
        world.tell(at(0, SHARDS[0]), Saving::Piece { epoch: Epoch(9), piece });
    }
    assert_eq!(taken(&world), 0);
    // The header first, then what had gathered by then.
    assert!(world.work(0));
    assert_eq!(taken(&world), 0);
    assert!(world.work(0));
    assert_eq!((taken(&world), world.work(0)), (2, false));
}

#[test]
fn it_is_complete_once_every_partition_has_one() {
    let mut world = World::new(3, 1);
    world.save(0, Epoch(9));
    world.save(1, Epoch(9));
    world.settle();
    assert_eq!((world.complete(0), world.complete(1), world.complete(2)), (vec![], vec![], vec![]));
    assert_eq!(world.gauge(0, "ordain_checkpoint_saved_epoch"), 9.0);
    // Said again, it is no more than it was.
    world.meet(0, 1);
    world.meet(1, 0);
    world.settle();
    assert_eq!(world.complete(0), [] as [u64; 0]);
    world.save(2, Epoch(9));
    world.settle();
    assert_eq!((world.complete(0), world.complete(1), world.complete(2)), (vec![9], vec![9], vec![9]));
}

#[test]
fn it_is_saved_once_what_came_in_is_on_disk() {
    let mut world = World::new(2, 1);
    world.save(0, Epoch(9));
    // The sequencer has nothing to add, and the disk does what it is asked for.
    while world.work(0) {}
    let piece = Piece::input(Vec::new());
    world.tell(at(0, SEQUENCER), Saving::Piece { epoch: Epoch(9), piece });
    world.tell(at(0, SEQUENCER), Saving::Last(Epoch(9)));
    while world.work(0) {}
    assert!(
        world.sent.iter().any(|(to, s)| *to == at(0, EXCHANGE) && matches!(s, Saving::Covered(Epoch(9))))
    );
    assert_eq!((world.mail.len(), world.gauge(0, "ordain_checkpoint_saved_epoch")), (0, 0.0));
    world.tell(at(0, EXCHANGE), Saving::Covered(Epoch(9)));
    assert_eq!((world.mail.len(), world.gauge(0, "ordain_checkpoint_saved_epoch")), (1, 9.0));
}

#[test]
fn a_report_that_was_lost_is_made_again() {
    let mut world = World::new(2, 1);
    world.save(0, Epoch(9));
    world.settle();
    world.mail.clear();
    world.save(1, Epoch(9));
    while world.work(1) {}
    world.restart(0);
    world.settle();
    // Node 0 does not go on with one from before it was stopped.
    assert_eq!((world.complete(0), world.complete(1)), (vec![], vec![]));
    world.save(0, Epoch(12));
    world.settle();
    // One that has a later one will not ask for anything before that.
    assert_eq!((world.complete(0), world.complete(1)), (vec![], vec![9]));
    world.save(1, Epoch(12));
    world.settle();
    assert_eq!((world.complete(0), world.complete(1)), (vec![12], vec![9, 12]));
}

#[test]
fn only_the_newest_are_kept() {
    let mut world = World::new(1, 1);
    for epoch in [3, 5, 8, 13].map(Epoch) {
        world.save(0, epoch);
        world.settle();
    }
    assert_eq!((world.complete(0), world.sound(0)), (vec![8, 13], vec![8, 13]));
    assert_eq!(world.files(0).len(), 4);
    world.restart(0);
    assert_eq!(world.complete(0), [8, 13]);
    // What has come to be no more than half is gone when the next begins.
    let piece = world.piece(0, Epoch(20), 0);
    world.tell(at(0, SHARDS[0]), Saving::Piece { epoch: Epoch(20), piece });
    while world.work(0) {}
    assert_eq!(world.files(0).len(), 5);
    world.restart(0);
    world.save(0, Epoch(21));
    world.settle();
    assert_eq!((world.complete(0), world.files(0).len()), (vec![13, 21], 4));
}

#[test]
fn the_log_is_trimmed_up_to_the_oldest_that_is_kept_here_and_that_all_members_have() {
    let mut world = World::new(1, 1);
    for (epoch, trimmed) in [(3, 0), (5, 1), (8, 2)] {
        world.save(0, Epoch(epoch));
        world.settle();
        assert_eq!(world.trimmed.len(), trimmed);
    }
    assert_eq!(world.trimmed, [(at(0, LOG), 3, 3), (at(0, LOG), 5, 5)]);
    // Of members, one is behind: it may be trimmed for its sake no more, if that is too much.
    let mut world = World::new(2, 2);
    let both = |world: &mut World, first: u16, epoch: u64| {
        (first..first + 2).for_each(|node| world.save(node, Epoch(epoch)));
        world.settle();
    };
    [3, 5, 8].into_iter().for_each(|epoch| both(&mut world, 0, epoch));
    let told = |node, by_all, by_own| [(at(node, LOG), by_all, by_own), (at(node, EXCHANGE), by_all, by_own)];
    let mut trimmed = std::mem::take(&mut world.trimmed);
    trimmed.sort();
    let wanted = |by_all, firsts: &[u64]| {
        let both = |by_own| [told(0, by_all, by_own), told(1, by_all, by_own)].concat();
        let mut wanted: Vec<_> = firsts.iter().flat_map(|by_own| both(*by_own)).collect();
        wanted.sort();
        wanted
    };
    assert_eq!(trimmed, wanted(0, &[3, 5]));
    both(&mut world, 2, 4);
    assert_eq!(world.complete(2), [4]);
    let mut trimmed = std::mem::take(&mut world.trimmed);
    trimmed.sort();
    assert_eq!(trimmed, wanted(4, &[5]));
}

#[test]
fn what_is_refused_at_a_start_is_not_kept() {
    let mut world = World::new(1, 1);
    for epoch in [3, 5].map(Epoch) {
        world.save(0, epoch);
        world.settle();
    }
    let found = list(world.disk(0)).unwrap();
    world.nodes[0].role = Checkpointer::new(settings(&world.topology, 0), &found, &[Epoch(5)]);
    assert_eq!(world.complete(0), [3]);
    world.save(0, Epoch(7));
    world.settle();
    assert_eq!((world.complete(0), world.files(0).len()), (vec![3, 7], 4));
}

#[test]
fn one_that_a_shard_has_passed_by_is_not_waited_for() {
    let mut world = World::new(1, 1);
    let piece = world.piece(0, Epoch(3), 0);
    world.tell(at(0, SHARDS[0]), Saving::Piece { epoch: Epoch(3), piece });
    world.tell(at(0, SHARDS[0]), Saving::Last(Epoch(3)));
    world.settle();
    world.tell(at(0, SHARDS[0]), Saving::Last(Epoch(4)));
    // The other had executed both before the node was started.
    world.tell(at(0, SHARDS[1]), Saving::Past(Epoch(4)));
    world.settle();
    assert!(world.files(0).is_empty());
    assert_eq!(world.gauge(0, "ordain_checkpoint_given_up_total"), 2.0);
    world.tell(at(0, SHARDS[0]), Saving::Last(Epoch(4)));
    world.save(0, Epoch(5));
    world.settle();
    assert_eq!(world.complete(0), [5]);
}

#[test]
fn a_second_one_while_one_is_made_comes_to_nothing() {
    let mut world = World::new(1, 1);
    let piece = world.piece(0, Epoch(3), 0);
    world.tell(at(0, SHARDS[0]), Saving::Piece { epoch: Epoch(3), piece });
    world.tell(at(0, SHARDS[0]), Saving::Last(Epoch(3)));
    // This shard is done and takes part in the next, the other is not and does not.
    world.tell(at(0, SHARDS[0]), Saving::Last(Epoch(5)));
    world.tell(at(0, SHARDS[1]), Saving::Skipped(Epoch(5)));
    let dropped = |world: &World, epoch| {
        world.sent.iter().filter(|(_, s)| matches!(s, Saving::Dropped(e) if *e == Epoch(epoch))).count()
    };
    assert_eq!(dropped(&world, 5), 2);
    world.tell(at(0, SHARDS[1]), Saving::Last(Epoch(3)));
    world.settle();
    assert_eq!(world.complete(0), [3]);
    // The next may begin before the one before is written.
    world.save(0, Epoch(7));
    world.save(0, Epoch(8));
    world.settle();
    assert_eq!((world.complete(0), dropped(&world, 7), dropped(&world, 8)), (vec![7, 8], 0, 0));
    // What comes late for one that was passed over is turned away.
    world.tell(at(0, SHARDS[1]), Saving::Last(Epoch(6)));
    assert_eq!(dropped(&world, 6), 1);
    // One that a shard turns out not to take part in is given up.
    world.tell(at(0, SHARDS[0]), Saving::Last(Epoch(9)));
    world.tell(at(0, SHARDS[1]), Saving::Skipped(Epoch(9)));
    world.settle();
    assert_eq!((world.complete(0), dropped(&world, 9), world.files(0).len()), (vec![7, 8], 2, 4));
}

#[test]
fn a_disk_that_is_full_costs_the_checkpoint_and_no_more() {
    let mut world = World::new(1, 1);
    world.save(0, Epoch(3));
    world.settle();
    let ops = world.disk(0).ops();
    world.save(0, Epoch(5));
    world.settle();
    let last = world.disk(0).ops();
    let mut epoch = 6;
    for step in 0..last - ops {
        let from = world.disk(0).ops() + step;
        world.disk(0).set_full_from(Some(from));
        world.save(0, Epoch(epoch));
        world.settle();
        let was_full = world.disk(0).ops() > from;
        world.disk(0).set_full_from(None);
        let sound = world.sound(0);
        assert_eq!(sound, world.complete(0), "step {step}");
        assert!(sound.len() == 2 || !was_full, "step {step}: {sound:?}");
        if !sound.contains(&epoch) {
            assert_eq!(world.gauge(0, "ordain_checkpoint_failing"), 1.0);
            assert!(world.sent.iter().any(|(_, s)| matches!(s, Saving::Dropped(e) if e.0 == epoch)));
        }
        epoch += 1;
        // With space there is one again.
        world.save(0, Epoch(epoch));
        world.settle();
        assert_eq!(world.complete(0).last(), Some(&epoch));
        assert_eq!((world.files(0).len(), world.gauge(0, "ordain_checkpoint_failing")), (4, 0.0));
        epoch += 1;
    }
}

#[test]
fn a_crash_at_any_point_leaves_the_one_before_or_the_next() {
    let mut start = World::new(1, 1);
    for epoch in [3, 5].map(Epoch) {
        start.save(0, epoch);
        start.settle();
    }
    let (before, mut random) = (start.disk(0).clone(), Random(1));
    let (mut old, mut new) = (0, 0);
    for step in 0.. {
        for _ in 0..20 {
            let mut world = World::new(1, 1);
            *world.disk(0) = before.clone();
            world.restart(0);
            world.save(0, Epoch(8));
            // The node does what it does until the power goes, in the middle of a request or between two.
            let stop = before.ops() + step;
            let mut is_over = true;
            loop {
                let asked = std::mem::take(&mut world.sent);
                if asked.iter().any(|(_, saving)| matches!(saving, Saving::Begun(_))) {
                    world.tell(at(0, SEQUENCER), Saving::Last(Epoch(8)));
                }
                let Node { disk, requests, .. } = &mut world.nodes[0];
                let Some(request) = requests.pop_front() else { break };
                let left = stop.saturating_sub(disk.ops()) as usize;
                let (cut, whole) = (request.ops.len() > left, request.ops.len());
                let ops = request.ops.into_iter().take(left.min(whole)).collect();
                let done = carry_out(disk, &DiskRequest::new(request.token, ops));
                if cut {
                    is_over = false;
                    break;
                }
                world.handle(0, Event::Disk(done));
            }
            world.disk(0).crash(|| random.next());
            let sound = world.sound(0);
            assert!(sound.contains(&5) || sound.contains(&8), "step {step}: {sound:?}");
            let found = list(world.disk(0)).unwrap();
            for complete in found.iter().filter(|found| found.is_complete()) {
                assert!(
                    sound.contains(&complete.epoch.0),
                    "step {step}: {} is sealed and damaged",
                    complete.epoch
                );
            }
            match sound.last() {
                Some(8) => new += 1,
                _ => old += 1,
            }
            world.restart(0);
            world.save(0, Epoch(9));
            world.settle();
            assert_eq!(world.complete(0).last(), Some(&9), "step {step}");
            assert_eq!(world.files(0).len(), 4, "step {step}");
            if is_over {
                assert!(old > 100 && new > 20, "{old} old, {new} new");
                return;
            }
        }
    }
}

#[test]
fn one_that_is_cut_short_on_disk_is_no_checkpoint() {
    let mut world = World::new(1, 1);
    world.save(0, Epoch(3));
    world.settle();
    let file = file_name(Epoch(3));
    world.disk(0).apply(&DiskOp::SetLen { file: file.clone(), len: 600 }).unwrap();
    assert_eq!(
        verify(world.disk(0), Epoch(3)).map(|_| ()),
        Err(CheckpointError::Unfinished { file, len: 600 })
    );
}

#[test]
fn what_nodes_have_crosses_the_wire_and_the_rest_does_not() {
    let registry = Registry::default();
    let encode = |message: &Message<Nothing>| {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        bytes
    };
    let has = Has { saved: Epoch(7), complete: Epoch(u64::MAX) };
    let bytes = encode(&Saving::Has(has).into());
    match Message::<Nothing>::decode(&registry, &bytes) {
        Some(Message::Saving(Saving::Has(read))) => assert_eq!(read, has),
        other => panic!("{other:?}"),
    }
    for len in 0..bytes.len() {
        assert!(Message::<Nothing>::decode(&registry, &bytes[..len]).is_none());
    }
    assert!(Message::<Nothing>::decode(&registry, &[&bytes[..], &[0]].concat()).is_none());
    for here in [Saving::Last(Epoch(1)), Saving::Taken(Epoch(1)), Saving::Begun(Epoch(1))] {
        assert!(Message::<Nothing>::decode(&registry, &encode(&here.into())).is_none());
    }
}

/// An engine that says nothing.
#[derive(Debug)]
enum Nothing {}

impl Wire for Nothing {
    fn encode(&self, _: &mut Vec<u8>) {}

    fn decode(_: &Registry, _: &[u8]) -> Option<Nothing> {
        None
    }
}

#[test]
fn where_primaries_may_change_only_what_is_certain_is_sealed() {
    let mut world = World::new(1, 2);
    world.nodes.iter_mut().for_each(|node| node.role.settings.primaries_change = true);
    world.save(0, Epoch(5));
    world.settle();
    let say = |world: &mut World, epoch| {
        let message = Configuration::Stable(Epoch(epoch)).into();
        world.handle(0, Event::Message { from: at(0, 4), message });
        world.settle();
        world.complete(0)
    };
    assert_eq!(say(&mut world, 4), []);
    assert_eq!(say(&mut world, 5), [5]);
    // Who begins again with one leaves it to the log whether that goes on from there.
    world.behind(0, 5);
    assert_eq!((&world.begun_again[..], &world.log_begins[..]), (&[][..], &[(0, 5)][..]));
}

// ---- from a member ------------------------------------------------------------------------------------------------------

impl World {
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
}

#[test]
fn who_is_behind_gets_the_newest_checkpoint_of_a_member_and_begins_again() {
    let mut world = World::members(&[9, 12]);
    world.behind(1, 10);
    world.settle();
    assert!(world.has_begun_again(1) && !world.has_begun_again(0));
    assert_eq!((world.sound(1), world.complete(1)), (vec![12], vec![12]));
    let file = file_name(Epoch(12));
    let bytes = |world: &mut World, node| world.disk(node).read(&file, 0, 1 << 20).unwrap();
    let copied = bytes(&mut world, 1);
    assert!(copied.len() > 3 * PIECE && copied == bytes(&mut world, 0));
    world.restart(1);
    assert_eq!(world.nodes[1].role.newest(), Some((Epoch(12), Millis(7_000))), "it has its time too");
    // What it has is enough, once it has begun with it.
    world.begun_again.clear();
    world.behind(1, 12);
    assert!(
        world.has_begun_again(1)
            && world.mail.iter().all(|(.., m)| !matches!(m, Message::Saving(Saving::Want { .. })))
    );
}

impl World {
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

#[test]
fn a_node_that_cannot_begin_with_what_it_has_gets_a_checkpoint_of_another_member() {
    for (primaries_change, reach, without_log) in
        [(false, 10, false), (true, 10, true), (true, 12, false), (true, 15, false)]
    {
        let mut world = World::members(&[9, 12]);
        let lacking = NeedsCheckpoint { needed: Epoch(10), reach: Epoch(reach) };
        world.restart_needing(1, lacking, primaries_change);
        world.settle();
        assert_eq!(world.complete(1), [12]);
        let how = Rebuild { without_log, without_receive_journal: true };
        assert_eq!((&world.begun_again[..], &world.log_begins[..]), (&[(1, how)][..], &[][..]));
    }
}

#[test]
fn a_node_that_cannot_begin_asks_for_a_checkpoint_where_there_is_none_that_helps() {
    let mut world = World::members(&[9]);
    world.restart_needing(1, NeedsCheckpoint { needed: Epoch(10), reach: Epoch(10) }, false);
    world.settle();
    let wanted = |world: &World| {
        let is_wanted =
            |(to, saving): &&(Address, Saving)| *to == at(0, SEQUENCER) && matches!(saving, Saving::Wanted);
        world.sent.iter().filter(is_wanted).count()
    };
    assert_eq!((wanted(&world), &world.begun_again[..]), (0, &[][..]), "it has just been met");
    for looks in 1..=2 * WANT_EVERY as usize {
        world.handle(1, Event::Timer(LOOK));
        world.settle();
        assert_eq!(wanted(&world), looks.div_ceil(WANT_EVERY as usize), "it does not ask at each look");
    }
    world.save(0, Epoch(13));
    world.settle();
    assert!(world.has_begun_again(1), "it hears of the new one without being told to look");
    assert_eq!(world.complete(1), [13]);
}

#[test]
fn nobody_is_asked_for_what_nobody_has() {
    let mut world = World::members(&[]);
    world.meet(1, 0);
    world.meet(0, 1);
    world.settle();
    world.behind(1, 0);
    assert_eq!(world.gauge(1, "ordain_checkpoint_copying"), 0.0);
    let mut world = World::members(&[9]);
    world.behind(1, 10);
    world.settle();
    assert!(!world.has_begun_again(1) && world.sound(1).is_empty());
    assert_eq!(world.gauge(1, "ordain_checkpoint_copying"), 0.0);
    // Nor is a node of another partition.
    let mut world = World::new(2, 1);
    [0, 1].into_iter().for_each(|node| world.save(node, Epoch(9)));
    world.settle();
    world.restart(1);
    world.behind(1, 10);
    world.settle();
    assert!(!world.has_begun_again(1));
}

#[test]
fn wherever_the_machine_stops_there_is_all_of_it_or_none() {
    let mut whole = 0;
    for stops in 0..40 {
        let mut world = World::members(&[9]);
        world.behind(1, 9);
        let mut left = stops;
        'stopped: for _ in 0..1000 {
            world.work(0);
            world.deliver();
            let Some(request) = world.nodes[1].requests.pop_front() else { continue };
            let mut result = Ok(());
            for op in &request.ops {
                if left == 0 {
                    break 'stopped;
                }
                left -= 1;
                result = result.and_then(|()| world.disk(1).apply(op));
            }
            world.handle(1, Event::Disk(DiskDone { token: request.token, result }));
        }
        let mut random = Random(stops);
        world.disk(1).crash(|| random.next());
        let found = list(world.disk(1)).unwrap();
        let complete = found.iter().filter(|found| found.is_complete()).count();
        assert_eq!(world.sound(1).len(), complete, "what counts is sound");
        whole += complete;
        world.begun_again.clear();
        world.restart(1);
        world.settle();
        world.behind(1, 9);
        world.settle();
        assert!(world.has_begun_again(1));
        assert_eq!(world.sound(1), [9]);
    }
    assert!((1..40).contains(&whole), "{whole}");
}

#[test]
fn a_copy_that_is_damaged_is_thrown_away_and_asked_for_again_after_a_while() {
    let mut world = World::members(&[9]);
    world.behind(1, 9);
    world.settle();
    assert!(world.has_begun_again(1));
    let wants = |world: &World| {
        world.mail.iter().filter(|(.., m)| matches!(m, Message::Saving(Saving::Want { .. }))).count()
    };
    world.begun_again.clear();
    world.restart_refusing(1, &[Epoch(9)]);
    world.handle(1, Event::Start);
    world.settle();
    assert_eq!((world.complete(1), world.gauge(1, "ordain_checkpoint_failing")), (vec![], 1.0));
    for _ in 0..10 {
        world.behind(1, 9);
        assert_eq!(wants(&world), 0, "it has just been found damaged");
    }
    world.handle(1, Event::Timer(ASK_AGAIN));
    world.behind(1, 9);
    assert_eq!(wants(&world), 1);
    world.settle();
    assert!(world.has_begun_again(1));
    assert_eq!(world.sound(1), [9]);
    // Another one is not waited for.
    world.begun_again.clear();
    world.restart_refusing(1, &[Epoch(9)]);
    world.save(0, Epoch(12));
    world.settle();
    world.behind(1, 9);
    world.settle();
    assert!(world.has_begun_again(1));
    assert_eq!(world.sound(1), [12]);
}

#[test]
fn one_that_waits_for_the_exchange_holds_up_none_after_it() {
    let mut world = World::new(2, 1);
    world.holds_covered = true;
    world.save(0, Epoch(3));
    world.settle();
    assert_eq!(world.gauge(0, "ordain_checkpoint_saved_epoch"), 0.0);
    world.save(0, Epoch(5));
    world.settle();
    // Nobody stands still for it: all of the second is written too, and the first is not waited for any more.
    assert_eq!(world.files(0), [file_name(Epoch(5))]);
    world.tell(at(0, EXCHANGE), Saving::Covered(Epoch(3)));
    assert_eq!(world.gauge(0, "ordain_checkpoint_saved_epoch"), 0.0);
    world.tell(at(0, EXCHANGE), Saving::Covered(Epoch(5)));
    assert_eq!(world.gauge(0, "ordain_checkpoint_saved_epoch"), 5.0);
}

#[test]
fn a_member_that_is_lost_or_has_removed_it_is_asked_for_another_later() {
    let mut world = World::members(&[9]);
    world.behind(1, 9);
    for _ in 0..6 {
        world.deliver();
        world.work(0);
        world.work(1);
    }
    assert_eq!(world.gauge(1, "ordain_checkpoint_copying"), 1.0);
    let change = PeerChange { node: NodeId(0), state: PeerState::Lost };
    world.handle(1, Event::Message { from: at(1, 3), message: change.into() });
    assert_eq!(world.gauge(1, "ordain_checkpoint_copying"), 0.0);
    world.settle();
    assert!(!world.has_begun_again(1) && world.sound(1).is_empty());
    // Two more, and the member keeps no more than that.
    world.behind(1, 9);
    world.deliver();
    for epoch in [12, 15] {
        world.save(0, Epoch(epoch));
    }
    world.settle();
    assert_eq!(world.complete(0), [12, 15]);
    world.behind(1, 9);
    world.settle();
    assert!(world.has_begun_again(1));
    assert_eq!(world.sound(1).last(), Some(&15));
}

#[test]
fn a_full_disk_costs_the_copy_and_no_more() {
    let mut world = World::members(&[9]);
    world.disk(1).set_full_from(Some(2));
    world.behind(1, 9);
    world.settle();
    assert!(!world.has_begun_again(1));
    assert_eq!(world.gauge(1, "ordain_checkpoint_failing"), 1.0);
    world.disk(1).set_full_from(None);
    world.behind(1, 9);
    world.settle();
    assert!(world.has_begun_again(1));
    assert_eq!(world.sound(1), [9]);
}

#[test]
fn what_crosses_between_checkpointers_is_read_as_it_was_written() {
    let registry = Registry::default();
    let part =
        |is_last| Saving::Part { epoch: Epoch(3), at: Millis(4), offset: 5, bytes: vec![6; 7], is_last };
    for saving in
        [Saving::Want { epoch: Epoch(1), offset: 2 }, part(false), part(true), Saving::Gone(Epoch(8))]
    {
        let mut bytes = Vec::new();
        let message: Message<Nothing> = saving.into();
        message.encode(&mut bytes);
        let read = Message::<Nothing>::decode(&registry, &bytes).unwrap();
        assert_eq!(format!("{read:?}"), format!("{message:?}"));
        for cut in 0..bytes.len() {
            assert!(
                Message::<Nothing>::decode(&registry, &bytes[..cut]).is_none(),
                "{message:?} cut at {cut}"
            );
        }
    }
}
