//! Interactive transactions of engines that keep them open between commands: transcripts of two clients and more.

use ordain_conformance::cluster::Shape;
use ordain_conformance::{on, suite};

/// Clusters of an engine: one node, several partitions with several shards, and members.
fn shapes(engine: &'static str) -> [Shape; 3] {
    [on(engine), on(engine).partitions(2).shards(2), on(engine).partitions(2).replicas(3)]
}

fn hold(engine: &'static str, folder: &str) {
    for shape in shapes(engine) {
        suite::transcripts(folder, &shape).unwrap_or_else(|failures| panic!("{shape:?}{failures}"));
    }
}

#[test]
fn commands_take_their_locks_as_they_come() {
    hold("no-wait", "direct");
    hold("wait-die", "direct");
}

#[test]
fn under_no_wait_the_second_loses_at_once() {
    hold("no-wait", "no-wait");
}

#[test]
fn under_wait_die_the_older_waits_and_the_younger_dies() {
    hold("wait-die", "wait-die");
}
