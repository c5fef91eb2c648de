//! Beginnings of nodes: a log that begins after the state that is there.

use ordain_commit::CommitEngine;
use ordain_role::{Bug, Bugs, NodeId};

use super::world::{Do, World};
use super::{demand, millis};

/// C was away for so long that nobody keeps what it has missed, and begins again with a checkpoint of another member. That is damaged then,
/// and C starts once more: its log begins after the state that it has. It must wait for another checkpoint, and execute nothing before.
fn a_beginning_that_is_lost(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
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
