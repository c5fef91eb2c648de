//! Scenarios of the sheet of regions (regions.md, section 8) within one region, and its locks in cycles over two shards of one node.

use ordain_commit::{CommitEngine, Message, Protocol};
use ordain_engines::{regions_2pl, regions_silo};
use ordain_model::{Options, OutcomeStatus};
use ordain_role::{Bug, Bugs};

use crate::world::{Do, Ticket, World};
use crate::{demand_of, millis, said};

/// Demands that transactions have ended before an attempt is given up for its time.
pub fn demand_soon(w: &mut World, all: &[Ticket]) -> Result<(), String> {
    w.run(millis(300));
    let answers: Vec<_> = all.iter().map(|txn| w.answer(*txn).map(|answer| answer.status)).collect();
    match answers.iter().all(|status| *status == Some(OutcomeStatus::Committed)) {
        true => Ok(()),
        false => Err(format!("a deadlock is left: {answers:?}")),
    }
}

/// T1 has x at one shard of A's node and waits for y at the other, T2 has y and waits for x. Each shard sees one of the waits.
fn two_shards(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::sharded(engine, Options::new(engine.name, &[]), (2, 2), bugs);
    let (x, y) = (w.list_at(0, 0), w.list_at(1, 0));
    let (a, b) = (w.led_by(0), w.led_by(1));
    // T1's access to the second shard is late; T2's comes from another node.
    let second = w.shard_at(a, 1);
    let late = w.hold(move |from, to, message| {
        from.node == a && to == second && matches!(said(message), Some(Protocol::Access(_)))
    });
    let t1 = w.ask(a, &[Do::Append(x), Do::Append(y)]);
    w.until("T1's access", World::holds_something);
    w.run(millis(1));
    let t2 = w.ask_in(b, Some((w.session_in(1), 1)), &[Do::Append(y), Do::Append(x)]);
    w.run(millis(5));
    assert_eq!(w.gauge(a, "ordain_locks_waiting"), 1.0, "T2 waits for T1");
    w.release(late);
    demand_soon(&mut w, &[t1, t2])?;
    let refused = w.gauge(a, "ordain_waits_refused_total{reason=\"cycle\"}");
    assert_eq!((refused, w.gauge(a, "ordain_waits_attempts")), (1.0, 0.0));
    w.end()
}

#[test]
fn a_deadlock_over_two_shards_of_a_node_is_found() {
    demand_of(&[regions_2pl::ENGINE], two_shards, Bug::MissCycle);
}

/// Two readers of x that write it, too. T1 waits for z between the two, which T0 has: its home has not decided.
fn upgrades(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 2, bugs);
    let (own, x, z) = (w.list_in(1, 0), w.list_in(0, 0), w.list_in(0, 1));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let vote = w.hold(move |from, to, message| {
        (from.node, to.node) == (a, b) && matches!(said(message), Some(Protocol::Vote(..)))
    });
    let t0 = w.ask_in(b, Some((w.session_in(1), 1)), &[Do::Append(own), Do::Append(z)]);
    w.until("T0's vote", World::holds_something);
    let t1 = w.ask(a, &[Do::Read(x), Do::Append(z), Do::Append(x)]);
    w.run(millis(1));
    let t2 = w.ask(a, &[Do::Read(x), Do::Append(x)]);
    w.run(millis(5));
    assert_eq!(w.gauge(a, "ordain_locks_waiting"), 2.0);
    w.release(vote);
    demand_soon(&mut w, &[t0, t1, t2])?;
    assert_eq!(w.gauge(a, "ordain_waits_refused_total{reason=\"cycle\"}"), 1.0);
    w.end()
}

#[test]
fn scenario_18_two_that_upgrade_are_a_cycle() {
    demand_of(&[regions_2pl::ENGINE], upgrades, Bug::MissCycle);
}

/// Marks of a one-round validation (sheet, 4.1 (a)): T1 reads x at A and writes y at B, T2 reads y and writes x. A has promised T1 and B has
/// promised T2 before either is asked for the other.
fn skewed_validation(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 4, bugs);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b, c, d) = (w.led_by(0), w.led_by(1), w.led_by(2), w.led_by(3));
    let is_request = |message: &Message| matches!(said(message), Some(Protocol::Prepare(_)));
    let late = [(c, b), (d, a)]
        .map(|way| w.hold(move |from, to, message| (from.node, to.node) == way && is_request(message)));
    let t1 = w.ask_in(c, Some((w.session_in(2), 1)), &[Do::Read(x), Do::Append(y)]);
    let t2 = w.ask_in(d, Some((w.session_in(3), 1)), &[Do::Read(y), Do::Append(x)]);
    w.run(millis(20));
    late.into_iter().for_each(|late| w.release(late));
    [t1, t2].into_iter().for_each(|txn| w.committed(txn));
    w.end()
}

#[test]
fn what_is_validated_here_and_not_elsewhere_marks_its_reads() {
    demand_of(&[regions_silo::ENGINE], skewed_validation, Bug::UnmarkReads);
}

/// Scenario 22 at home: T1 finds no list x, and waits for y before it goes on to z. T2 makes x, and T3 writes z once T2 is answered.
fn absent(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 2, bugs);
    let own = w.list_in(1, 0);
    let [x, y, z] = [0, 1, 2].map(|nth| w.list_in(0, nth));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let vote = w.hold(move |from, to, message| {
        (from.node, to.node) == (a, b) && matches!(said(message), Some(Protocol::Vote(..)))
    });
    let t0 = w.ask_in(b, Some((w.session_in(1), 1)), &[Do::Append(own), Do::Append(y)]);
    w.until("T0's vote", World::holds_something);
    let t1 = w.ask(a, &[Do::Read(x), Do::Append(y), Do::Append(z)]);
    w.run(millis(1));
    for list in [x, z] {
        let other = w.ask(a, &[Do::Append(list)]);
        w.committed(other);
    }
    w.release(vote);
    [t0, t1].into_iter().for_each(|txn| w.committed(txn));
    let last = w.ask(a, &[Do::Read(x), Do::Read(y), Do::Read(z)]);
    w.committed(last);
    w.end()
}

#[test]
fn scenario_22_a_read_of_nothing_conflicts_with_an_insert() {
    demand_of(&[regions_silo::ENGINE], absent, Bug::SkipValidation);
}
