//! Managers of several partitions, each a node on its own, whose logs and participants do at once what they are asked.

use std::collections::VecDeque;
use std::sync::Arc;

use ordain_model::{
    Abort, Backoff, Call, Chunk, ChunkNo, Db, Front, GatewayId, Layout, Millis, Registry, SessionId, system,
};
use ordain_replication::Log;
use ordain_role::{Bugs, Event, Now, Outbox, PeerChange, PeerState, Role as _, Topology};

use super::*;
use crate::desk::Site;
use crate::entry::Commit;
use crate::ids::{AttemptId, Lead, Term, TransactionId};
use crate::manager::Manager;
use crate::message::{Message, Own};

const MANAGER: u16 = 0;
const LOG: u16 = 1;
const GATEWAY: u16 = 256;

const fn at(node: u16, role: u16) -> Address {
    Address { node: NodeId(node), role }
}

struct World {
    registry: Arc<Registry>,
    managers: Vec<Manager>,
    /// The entries of each log, in order.
    logs: Vec<Vec<Arc<Entry>>>,
    mail: VecDeque<(Address, Address, Message)>,
    /// Messages to these nodes wait.
    cut_off: BTreeSet<u16>,
    statuses: Vec<(u16, OutcomeStatus)>,
    now: Now,
}

impl World {
    fn new(partitions: u16, checkpoint_bytes: u64) -> World {
        let mut registry = Registry::default();
        system::register(&mut registry);
        let registry = Arc::new(registry);
        let layout = Arc::new(Layout::even(usize::from(partitions), 1).expect("a layout"));
        let manager = |node: u16| {
            let site = Site {
                node: NodeId(node),
                nodes: partitions,
                partition: PartitionId(node),
                layout: layout.clone(),
                registry: registry.clone(),
                manager: MANAGER,
                log: at(node, LOG),
                database: 7,
                life: 1,
                backoff: Backoff::Exponential,
                refusal: Abort::Died,
                stamps: crate::Stamps::OfTransaction,
                validates: false,
                locks_first: false,
                snapshots: crate::Snapshots::Never,
                propagation: crate::desk::Propagation::default(),
                regions: None,
                resolves: false,
                overlays: false,
                is_early: false,
                source: ordain_model::StampSource::Hybrid,
                skew: Micros(0),
                checkpoint_bytes,
                bugs: Bugs::NONE,
            };
            Manager::new(site, Topology::replicated(layout.clone(), 1))
        };
        let mut world = World {
            managers: (0..partitions).map(manager).collect(),
            registry: registry.clone(),
            logs: vec![Vec::new(); usize::from(partitions)],
            mail: VecDeque::new(),
            cut_off: BTreeSet::new(),
            statuses: Vec::new(),
            now: Now { elapsed: Micros(0), wall: Micros::from_millis(1_000) },
        };
        for node in 0..partitions {
            world.handle(node, Event::Start);
        }
        // Each hears of the streams to the others, and they meet.
        for (node, peer) in (0..partitions).flat_map(|node| (0..partitions).map(move |peer| (node, peer))) {
            if node != peer {
                let change = PeerChange { node: NodeId(peer), state: PeerState::Fresh };
                world.handle(node, Event::Message { from: at(node, 3), message: change.into() });
            }
        }
        world.settle();
        world
    }

    fn handle(&mut self, node: u16, event: Event<Message>) {
        let mut out = Outbox::default();
        let manager = &mut self.managers[usize::from(node)];
        manager.handle(self.now, event, &mut out);
        assert_eq!((out.halt, manager.check()), (None, Ok(())));
        for (to, message) in out.sends {
            match message {
                Message::Log(Log::Append(entry)) => {
                    self.logs[usize::from(node)].push(entry.clone());
                    self.mail.push_back((to, at(node, MANAGER), Log::Sealed(entry).into()));
                }
                Message::Own(Own::Serve(term, _)) => {
                    self.mail.push_back((to, at(node, MANAGER), Own::Ready(term).into()));
                }
                Message::Front(Front::Outcomes(batch)) => {
                    self.statuses.extend(batch.outcomes.iter().map(|outcome| (node, outcome.status)));
                }
                message if to.role == MANAGER => self.mail.push_back((at(node, MANAGER), to, message)),
                _ => {}
            }
        }
    }

    /// Delivers everything but what is for nodes that are cut off.
    fn settle(&mut self) {
        let mut kept = VecDeque::new();
        while let Some((from, to, message)) = self.mail.pop_front() {
            if self.cut_off.contains(&to.node.0) && from.node != to.node {
                kept.push_back((from, to, message));
            } else {
                self.handle(to.node.0, Event::Message { from, message });
            }
        }
        self.mail = kept;
    }

    fn bgsave(&mut self, node: u16) {
        let mut chunk = Chunk::new(GatewayId::of(node, 0), ChunkNo(1 + self.statuses.len() as u64));
        chunk.push(&self.registry, Call::new(system::CHECKPOINT, Db(0)), |_| {}).unwrap();
        let message = Front::Submit(Arc::new(chunk)).into();
        self.handle(node, Event::Message { from: at(node, GATEWAY), message });
    }

    /// The partition's log has an entry of its own at a place.
    fn append(&mut self, node: u16, place: u64) {
        let term = self.managers[usize::from(node)].agreed().term();
        let home = Lead { partition: PartitionId(node), term };
        let attempt = AttemptId { transaction: TransactionId { home, number: place }, attempt: 1 };
        let session = Some((SessionId(1), ordain_model::RequestNo(place)));
        let commit = Commit { attempt, session, reply: vec![0; 100], ..Commit::default() };
        let (place, now, content) = (Epoch(place), Millis(0), Content::Commit(commit));
        let entry = Arc::new(Entry { place, term, now, content, agreed: None });
        let message = Log::Sealed(entry).into();
        self.handle(node, Event::Message { from: at(node, LOG), message });
    }

    fn cuts(&self) -> Vec<u64> {
        self.managers.iter().map(|manager| manager.agreed().cut().0).collect()
    }
}

#[test]
fn eras_end_at_cuts() {
    let cut = cut_behind(Epoch(7));
    assert_eq!(cut, Epoch(SPACING));
    assert_eq!((era_of(Epoch(SPACING - 1)), era_of(cut), era_before(cut)), (Epoch(0), Epoch(1), Epoch(0)));
    // One that is about to come is left out.
    assert_eq!(cut_behind(Epoch(SPACING - 5)), Epoch(2 * SPACING));
    assert_eq!(cut_behind(Epoch(SPACING)), Epoch(2 * SPACING));
}

#[test]
fn a_checkpoint_is_cut_behind_everything_and_marked_by_all() {
    let mut world = World::new(3, 0);
    world.append(2, 5 * SPACING + 1);
    world.bgsave(0);
    world.settle();
    assert_eq!(world.cuts(), [6 * SPACING; 3]);
    assert_eq!(world.statuses, [(0, OutcomeStatus::Committed)]);
    // The places behind it are used next.
    world.bgsave(1);
    world.settle();
    assert_eq!(world.cuts(), [7 * SPACING; 3]);
    assert_eq!(world.statuses[1], (1, OutcomeStatus::Committed));
}

#[test]
fn a_partition_marks_a_cut_that_it_hears_of_before_anything_else() {
    let mut world = World::new(2, 0);
    let entries = world.logs[1].len();
    let heard = CutMessage::Heard(Epoch(SPACING)).into();
    world.handle(1, Event::Message { from: at(0, MANAGER), message: heard });
    world.bgsave(1);
    world.settle();
    let marks: Vec<(u64, bool)> = world.logs[1][entries..]
        .iter()
        .map(|entry| (entry.place.0, matches!(entry.content, Content::Mark)))
        .collect();
    assert_eq!(marks, [(SPACING, true), (2 * SPACING, true)]);
    assert_eq!(world.cuts(), [2 * SPACING; 2]);
}

#[test]
fn a_partition_that_is_past_a_cut_does_not_mark_it() {
    let mut world = World::new(2, 0);
    world.append(1, SPACING);
    let heard = CutMessage::Heard(Epoch(SPACING)).into();
    world.handle(1, Event::Message { from: at(0, MANAGER), message: heard });
    world.settle();
    assert_eq!(world.cuts(), [SPACING, 0], "the other has heard of it through this one");
}

/// A peer must not be able to use up the places of a log.
#[test]
fn a_cut_that_cannot_be_is_not_heard_of() {
    let mut world = World::new(2, 0);
    let before = world.logs.clone();
    let last = Epoch(u64::MAX / SPACING * SPACING);
    for message in [
        CutMessage::Heard(Epoch(u64::MAX)),
        CutMessage::Heard(last),
        CutMessage::Heard(Epoch(SPACING + 1)),
        CutMessage::Marked(PartitionId(1), last),
        CutMessage::At(PartitionId(1), Epoch(u64::MAX)),
    ] {
        assert!(!message.is_sound(), "{message:?}");
        world.handle(0, Event::Message { from: at(1, MANAGER), message: message.into() });
        world.settle();
    }
    assert_eq!((world.cuts(), &world.logs), (vec![0, 0], &before));
    world.bgsave(0);
    world.settle();
    assert_eq!(world.cuts(), [SPACING; 2]);
}

#[test]
fn a_node_that_comes_back_hears_of_the_last_cut_first() {
    let mut world = World::new(2, 0);
    world.bgsave(0);
    world.settle();
    let change = PeerChange { node: NodeId(1), state: PeerState::Fresh };
    world.handle(0, Event::Message { from: at(0, 3), message: change.into() });
    let mut told = world.mail.iter().filter(|(_, to, _)| to.node == NodeId(1)).map(|(.., message)| message);
    let first = told.find(|message| !matches!(message, Message::Meet(_)));
    assert!(
        matches!(first, Some(Message::Cut(CutMessage::Heard(Epoch(cut)))) if *cut == SPACING),
        "{first:?}"
    );
}

#[test]
fn clients_hear_that_a_checkpoint_is_not_cut_if_a_partition_does_not_answer() {
    let mut world = World::new(2, 0);
    world.cut_off.insert(1);
    world.bgsave(0);
    world.settle();
    assert!(world.statuses.is_empty());
    world.now.elapsed = ROUND_MAX.plus(Micros(2));
    world.handle(0, Event::Timer(ordain_role::TimerId(1)));
    assert_eq!(world.statuses, [(0, OutcomeStatus::Busy)]);
    // The next one is cut, and late answers to the former count for nothing.
    world.cut_off.clear();
    world.bgsave(0);
    world.settle();
    assert_eq!((world.cuts(), world.statuses.len()), (vec![SPACING; 2], 2));
}

#[test]
fn a_leader_wants_a_checkpoint_after_so_many_bytes() {
    let mut world = World::new(2, 1_000);
    for place in 100..103 {
        world.append(0, place);
        world.settle();
        assert_eq!(world.cuts(), [0, 0]);
    }
    (103..110).for_each(|place| world.append(0, place));
    world.settle();
    assert_eq!(world.cuts(), [SPACING; 2]);
    assert_eq!(era_of(Epoch(world.cuts()[0])), Epoch(1));
    assert_eq!(world.managers[0].agreed().term(), Term(1));
}
