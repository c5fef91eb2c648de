//! Validation in two rounds (regions.md, 4.6): what all regions have locked before any of them validates, and nobody marks.

use ordain_commit::Ballot;
use ordain_engines::registry::Engine;
use ordain_model::Options;

use super::*;

fn options(rounds: &str) -> Options {
    let engine: Engine = "regions-silo".parse().expect("it is built");
    engine.options([("occ-rounds", rounds)]).expect("options of it")
}

fn regions(count: usize, bugs: Bugs) -> World {
    World::regions_with(regions_silo::ENGINE, options("2"), count, bugs)
}

/// Demands that a schedule is sound, and is not where regions validate before all have locked.
fn demand_locked_first(schedule: fn(Bugs) -> Result<(), String>) {
    assert_eq!(schedule(Bugs::NONE), Ok(()));
    let found = schedule(Bugs::NONE.with(Bug::ValidateBeforeLocked));
    assert!(found.is_err(), "it is not found");
}

fn is_locked(message: &Message) -> bool {
    matches!(said(message), Some(Protocol::Ballot(Ballot::Locked(_))))
}

fn is_vote(message: &Message) -> bool {
    matches!(said(message), Some(Protocol::Ballot(Ballot::Say(..))))
}

fn is_call(message: &Message) -> bool {
    matches!(said(message), Some(Protocol::Ballot(Ballot::Validate(_))))
}

/// The number of transactions of several regions at a server that it has neither refused nor concluded.
fn under_way(w: &World, node: NodeId) -> u64 {
    w.gauge(node, "ordain_voting_open") as u64
}

fn attempts(w: &World, node: NodeId) -> f64 {
    w.gauge(node, "ordain_coordinator_attempts_total")
}

/// Scenario 2, the counterexample of 4.1 (a), without marks: M reads z at A and writes y at B, which has not locked it yet. L overwrites z; M2 reads z
/// as L has left it, and y as M has found it.
fn overwritten(bugs: Bugs) -> Result<(), String> {
    let mut w = regions(3, bugs);
    let (z, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let late = hold_parts(&mut w, c, b);
    let m = w.ask(c, &[Do::Read(z), Do::Append(y)]);
    w.run(millis(10));
    assert!(in_doubt(&w, a) == 0 || bugs != Bugs::NONE, "A waits until B has locked");
    let l = w.ask(a, &[Do::Append(z)]);
    w.committed(l);
    w.run(millis(20));
    let m2 = w.ask(b, &[Do::Read(z), Do::Read(y)]);
    w.committed(m2);
    w.release(late);
    w.committed(m);
    w.end()
}

#[test]
fn scenario_2_without_marks_all_lock_before_any_read_is_validated() {
    demand_locked_first(overwritten);
}

/// M has read z at A and writes y at B. Its initiator C has all votes, and A and B wait for that of C. Nothing of z is marked: L overwrites it and is
/// answered. M2 reads both at B: not z as L has left it with y as M has found it.
#[test]
fn what_was_read_may_change_once_it_is_validated() {
    let mut w = regions(3, Bugs::NONE);
    let (z, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let slow = [a, b].map(|to| hold(&mut w, c, to, is_vote));
    let m = w.ask(c, &[Do::Read(z), Do::Append(y)]);
    w.committed(m);
    w.run(millis(10));
    assert_eq!([a, b, c].map(|node| in_doubt(&w, node)), [1, 1, 0]);
    let l = w.ask(a, &[Do::Append(z)]);
    w.committed(l);
    assert_eq!(in_doubt(&w, a), 1);
    w.run(millis(20));
    let m2 = w.ask(b, &[Do::Read(z), Do::Read(y)]);
    w.run(millis(100));
    assert!(w.answer(m2).is_none(), "M has committed");
    slow.into_iter().for_each(|slow| w.release(slow));
    w.committed(m2);
    assert_eq!(w.end(), Ok(()));
}

/// Scenario 4: M1 reads x at A and writes y at B, M2 reads y and writes x. Each home has locked before the other one is asked.
fn write_skew(bugs: Bugs) -> Result<(), String> {
    let mut w = regions(2, bugs);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let late = [hold_parts(&mut w, a, b), hold_parts(&mut w, b, a)];
    let m1 = w.ask(a, &[Do::Read(x), Do::Append(y)]);
    let m2 = w.ask(b, &[Do::Read(y), Do::Append(x)]);
    w.run(millis(10));
    assert_eq!((under_way(&w, a), under_way(&w, b)), (1, 1));
    late.into_iter().for_each(|late| w.release(late));
    all_committed(&mut w, &[m1, m2]);
    w.end()
}

#[test]
fn scenario_4_two_transactions_that_lock_first_do_not_skew() {
    demand_locked_first(write_skew);
}

/// M writes at A and B. A has locked and B has not been asked; L reads at A what M writes there. Answers with M's server and A's.
fn locked_at_one() -> (World, [NodeId; 2], [Ticket; 2]) {
    let mut w = regions(3, Bugs::NONE);
    let (x, y) = (w.key_in(0, 0), w.key_in(1, 0));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    hold_parts(&mut w, c, b);
    let m = w.command(c, ids::MSET, &[&x, b"1", &y, b"2"]);
    w.run(millis(5));
    assert_eq!((under_way(&w, a), in_doubt(&w, a), under_way(&w, b)), (1, 0, 0));
    let l = w.command(a, ids::GET, &[&x]);
    w.run(millis(20));
    assert!(w.answer(l).is_none(), "it waits for M's lock");
    (w, [c, a], [m, l])
}

#[test]
fn a_region_gives_its_locks_up_when_the_initiator_dies_between_the_rounds() {
    let (mut w, [c, a], [_, l]) = locked_at_one();
    w.start_again(c);
    w.until("L's answer", |w| w.answer(l).is_some());
    w.committed(l);
    assert!(w.took(l) < millis(500), "{:?}", w.took(l));
    assert_eq!(in_doubt(&w, a), 0);
    assert_eq!(w.end(), Ok(()));
}

#[test]
fn a_region_gives_its_locks_up_after_a_bound_when_the_initiator_is_not_heard_of() {
    let (mut w, [c, _], [m, l]) = locked_at_one();
    w.isolate(2);
    w.committed(l);
    let took = w.took(l);
    assert!(took > millis(1_500) && took < millis(2_500), "{took:?}");
    w.heal(2);
    // The first region to answer may be any.
    w.answered(m);
    assert_eq!(under_way(&w, c), 0);
    assert_eq!(w.end(), Ok(()));
}

/// M writes at A and B. All have locked, B is promised, and A does not hear that it is to validate: B asks it.
#[test]
fn a_question_at_a_region_that_has_locked_neither_refuses_nor_promises() {
    let mut w = regions(3, Bugs::NONE);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let before = attempts(&w, c);
    let late = hold(&mut w, c, a, is_call);
    let m = w.ask(c, &[Do::Append(x), Do::Append(y)]);
    w.until("B's promise", |w| in_doubt(w, b) == 1);
    // Those who have not voted are asked after 250 ms, and after 500 ms more.
    w.run(millis(1_000));
    assert_eq!((under_way(&w, a), in_doubt(&w, a), in_doubt(&w, b)), (1, 0, 1), "A is where it was");
    w.release(late);
    w.committed(m);
    assert_eq!(attempts(&w, c) - before, 1.0, "the first attempt has committed");
    assert_eq!(w.end(), Ok(()));
}

/// M writes at A and B. Its first attempt is locked at A, which says so late, and refused at B. The next one is locked at B, and its request to A is
/// on its way when the word of A about the first comes.
#[test]
fn who_has_locked_an_earlier_attempt_has_not_locked_the_next() {
    let mut w = regions(3, Bugs::NONE);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let word = hold(&mut w, a, c, is_locked);
    let request = hold_parts(&mut w, c, b);
    let m = w.ask(c, &[Do::Append(x), Do::Append(y)]);
    w.until("A's lock", |w| w.holds_something() && under_way(w, a) == 1);
    w.run(millis(5));
    let l = w.ask(b, &[Do::Append(y)]);
    w.committed(l);
    // C's view comes to show it.
    w.run(millis(300));
    let next = hold_parts(&mut w, c, a);
    w.release(request);
    w.until("B's lock on the next attempt", |w| under_way(w, b) == 1 && under_way(w, a) == 0);
    w.run(millis(10));
    w.release(word);
    w.run(millis(20));
    assert_eq!([a, b, c].map(|node| in_doubt(&w, node)), [0; 3], "A has not locked this one");
    assert_eq!((under_way(&w, a), under_way(&w, b), under_way(&w, c)), (0, 1, 1));
    w.release(next);
    w.committed(m);
    assert_eq!(w.end(), Ok(()));
}

/// A commit takes one round trip more than with one round, and a transaction of one region, or one that only reads, none.
#[test]
fn two_rounds_are_two_round_trips() {
    for (rounds, trips) in [("1", 1), ("2", 2)] {
        let mut w = World::regions_with(regions_silo::ENGINE, options(rounds), 3, Bugs::NONE);
        w.set_apart(millis(50));
        let (x, y, z) = (w.list_in(0, 0), w.list_in(1, 0), w.list_in(2, 0));
        let a = w.led_by(0);
        let all: [(&[Do], u64); 3] = [
            (&[Do::Append(x)], 0),
            (&[Do::Read(y), Do::Read(z)], 1),
            (&[Do::Append(y), Do::Append(z)], trips),
        ];
        for (ops, trips) in all {
            let txn = w.ask(a, ops);
            w.committed(txn);
            let took = w.took(txn);
            assert!(took >= millis(100 * trips) && took < millis(100 * trips + 10), "{rounds}: {took:?}");
        }
        assert_eq!(w.end(), Ok(()));
    }
}

/// M1 has locked x at A and M2 y at B, and each waits for the other's lock in the other region: both are refused soon, and tried again.
#[test]
fn two_that_wait_for_each_others_locks_do_not_wait_for_long() {
    let mut w = regions(2, Bugs::NONE);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let late = [hold_parts(&mut w, a, b), hold_parts(&mut w, b, a)];
    let ops = [Do::Append(x), Do::Append(y)];
    let all = [w.ask(a, &ops), w.ask(b, &ops)];
    w.run(millis(10));
    late.into_iter().for_each(|late| w.release(late));
    assert_eq!(demand_soon(&mut w, &all), Ok(()));
    assert_eq!(w.end(), Ok(()));
}
