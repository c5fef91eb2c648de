//! Beginnings of nodes: a log that begins after the state that is there.

use std::sync::Arc;

use ordain_commit::CommitEngine;
use ordain_engines::family::{EngineVisitor, with_family};
use ordain_engines::registry::{Engine, engines};
use ordain_family::{Family, NodeSettings, Opened as _};
use ordain_log::MemoryDirectory;
use ordain_model::{Epoch, Layout, Registry};
use ordain_replication::found_after;
use ordain_role::{Bug, Bugs, NodeId, Topology};

use super::world::{Do, World};
use super::{demand, millis};

/// C was away for so long that nobody keeps what it has missed, and begins again with a checkpoint of another member. That is damaged then,
/// and C starts once more: its log begins after the state that it has. It must wait for another checkpoint, and execute nothing before.
pub(crate) fn a_beginning_that_is_lost(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::forgetful(engine, bugs);
    let (x, y) = (w.list_in(0, 0), w.list_in(0, 1));
    let a = w.led_by(0);
    let c = w.members(0).into_iter().find(|node| *node != a).expect("three members");
    w.sever(c);
    let first = w.ask(a, &[Do::Append(y)]);
    w.committed(first);
    let missed = w.gauge(c, "ordain_group_last");
    // Two checkpoints are kept, and the log from the older one on.
    for _ in 0..2 {
        append(&mut w, a, x, 40);
        let kept = w.gauge(a, "ordain_checkpoint_completed_total");
        w.save(a);
        w.until("a checkpoint", |w| w.gauge(a, "ordain_checkpoint_completed_total") > kept);
    }
    // Members that were heard of a moment ago are waited for.
    w.run(millis(10_000));
    append(&mut w, a, x, 1);
    w.until("a log without what C needs", |w| w.gauge(a, "ordain_group_first") > missed + 1.0);
    w.restore(c);
    w.until("C's new beginning", |w| w.lives(c) == 2);
    append(&mut w, a, x, 5);
    w.until("what C has missed", |w| {
        w.gauge(c, "ordain_group_dispatched") == w.gauge(a, "ordain_group_dispatched")
    });
    w.spoil(c);
    w.start_again(c);
    append(&mut w, a, x, 40);
    if bugs == Bugs::NONE {
        w.until("C's next beginning", |w| w.lives(c) == 4);
    }
    w.end()
}

/// Appends to a list so many times, one after the other.
fn append(w: &mut World, node: NodeId, list: u64, times: usize) {
    for _ in 0..times {
        let ticket = w.ask(node, &[Do::Append(list)]);
        w.committed(ticket);
    }
}

#[test]
fn a_node_whose_log_begins_after_its_state_waits_for_a_checkpoint() {
    demand(a_beginning_that_is_lost, Bug::GuessBeginning);
}

/// Opens a node of three members whose log begins after what it has, which is nothing; answers whether it waits.
struct Lacking(Engine, Bugs);

impl EngineVisitor for Lacking {
    type Output = bool;

    fn visit<F: Family>(self, family: F) -> bool {
        let Lacking(engine, bugs) = self;
        let topology = Topology::replicated(Arc::new(Layout::even(1, 1).expect("a layout")), 3);
        let identity = b"lacking".to_vec();
        let members: Vec<NodeId> = topology.group(topology.partition_of(NodeId(0))).collect();
        let settings = NodeSettings {
            topology,
            identity,
            expect_log: false,
            bugs,
            ..NodeSettings::new(engine.defaults())
        };
        let mut disk = MemoryDirectory::new();
        found_after(&mut disk, &settings.identity, &members, Epoch(5)).expect("a disk");
        let opened = family.open(Some(&mut disk), &settings, &Arc::new(Registry::default()));
        opened.expect("a sound directory").is_waiting()
    }
}

#[test]
fn a_node_of_any_engine_waits_whose_log_begins_after_its_state() {
    for engine in engines() {
        assert!(with_family(engine, Lacking(engine, Bugs::NONE)), "{engine:?}");
        let guesses = Bugs::NONE.with(Bug::GuessBeginning);
        assert!(!with_family(engine, Lacking(engine, guesses)), "{engine:?}: guess-beginning is not found");
    }
}
