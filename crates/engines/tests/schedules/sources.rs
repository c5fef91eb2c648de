//! Sources of stamps and skewed clocks (baselines.md, section 8): scenarios 11 and 12 with each source, inversions of real time under skew,
//! and a former leader that gives stamps of the one counter.

use std::collections::BTreeSet;

use ordain_commit::Age;
use ordain_engines::registry::Engine;
use ordain_engines::timestamp;
use ordain_model::{Micros, Options, OutcomeStatus};
use ordain_role::{Bug, Bugs};

use crate::world::{Do, Ticket, World};
use crate::{hold_accesses, millis};

fn options(given: &[(&str, &str)]) -> Options {
    let engine: Engine = "timestamp".parse().expect("it is built");
    engine.options(given.iter().copied()).expect("options of it")
}

fn world(source: &str, skew_us: &str, partitions: usize, bugs: Bugs) -> World {
    let options = options(&[("ts-source", source), ("skew-us", skew_us)]);
    World::with(timestamp::ENGINE, options, partitions, bugs)
}

/// A cluster whose first home has a clock that is a second behind, after the other one has written x there, and a write of x by that
/// first home.
fn behind(source: &str) -> (World, Ticket) {
    let mut w = world(source, "0", 2, Bugs::NONE);
    let (x, a, b) = (w.list_in(0, 0), w.led_by(0), w.led_by(1));
    w.set_ahead(b, millis(1_000));
    let t1 = w.ask_in(b, Some((w.session_in(1), 1)), &[Do::Append(x)]);
    w.committed(t1);
    let t2 = w.ask_in(a, Some((w.session_in(0), 1)), &[Do::Append(x)]);
    (w, t2)
}

#[test]
fn scenario_12_a_home_that_is_behind_is_moved_on_by_what_it_hears_of() {
    let (mut w, t2) = behind("hlc");
    w.run(millis(20));
    assert!(w.answer(t2).is_some());
    w.committed(t2);
    assert_eq!(w.end(), Ok(()));
}

#[test]
fn scenario_12_a_clock_alone_that_is_behind_is_refused_until_it_has_passed() {
    let (mut w, t2) = behind("clock");
    w.run(millis(950));
    assert!(w.answer(t2).is_none(), "T1's stamp is later still");
    w.run(millis(100));
    assert!(w.answer(t2).is_some(), "it has passed");
    w.committed(t2);
    assert_eq!(w.end(), Ok(()));
}

#[test]
fn scenario_12_the_counter_needs_no_clock_but_its_own() {
    let (mut w, t2) = behind("counter");
    w.run(millis(20));
    assert!(w.answer(t2).is_some());
    let b = w.led_by(1);
    let session = (w.session_in(1), 2);
    let x = w.list_in(0, 0);
    let t3 = w.ask_in(b, Some(session), &[Do::Read(x), Do::Append(x)]);
    w.run(millis(20));
    assert!(w.answer(t3).is_some());
    [t2, t3].into_iter().for_each(|ticket| w.committed(ticket));
    let seconds = |ticket| Age(w.stamp(ticket)).time().0 / 1_000;
    assert_eq!(seconds(t2), seconds(t3), "b's clock, a second ahead, is not asked");
    assert_eq!(w.end(), Ok(()));
}

/// Attempts at three homes that begin in one microsecond: their stamps.
fn at_once(source: &str) -> Vec<Age> {
    let mut w = world(source, "0", 3, Bugs::NONE);
    // What is asked for later, by a microsecond each, is asked by a clock that is as much behind.
    let homes: Vec<_> = (0..3).map(|home| (home, w.led_by(home))).collect();
    homes.iter().for_each(|(home, node)| w.set_ahead(*node, Micros(2 - *home as u64)));
    let asked: Vec<Ticket> = homes
        .iter()
        .map(|(home, node)| {
            let list = w.list_in(*home, 0);
            w.ask_in(*node, Some((w.session_in(*home), 1)), &[Do::Append(list)])
        })
        .collect();
    asked.iter().for_each(|ticket| w.committed(*ticket));
    let stamps = asked.iter().map(|ticket| Age(w.stamp(*ticket))).collect();
    assert_eq!(w.end(), Ok(()));
    stamps
}

#[test]
fn scenario_11_stamps_of_one_microsecond_differ() {
    for source in ["hlc", "clock", "counter"] {
        let stamps = at_once(source);
        assert_eq!(stamps.iter().collect::<BTreeSet<_>>().len(), 3, "{source}: {stamps:?}");
        let moments: BTreeSet<Micros> = stamps.iter().map(|stamp| stamp.micros()).collect();
        assert_eq!(moments.len(), if source == "counter" { 3 } else { 1 }, "{source}: {stamps:?}");
    }
}

/// T3 of the home that is ahead reads x. T1 of that home writes x, and is answered. 60 ms later T2, of the home that is not ahead, reads
/// y; then T3 writes y. With T2's stamp below T3's, T2 stands before T1.
fn inverted(source: &str, skew_us: &str) -> World {
    let mut w = world(source, skew_us, 2, Bugs::NONE);
    let (y, x) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let late = hold_accesses(&mut w, b, a);
    w.ask_in(b, Some((w.session_in(1), 1)), &[Do::Read(x), Do::Append(y)]);
    w.until("T3's access", World::holds_something);
    let t1 = w.ask(b, &[Do::Append(x)]);
    w.committed(t1);
    w.run(millis(60));
    let t2 = w.ask(a, &[Do::Read(y)]);
    w.committed(t2);
    w.release(late);
    w
}

/// The sheet: the checker must find inversions under skew when asked for strict, and none beyond the skew plus the reservation.
#[test]
fn real_time_is_inverted_under_skew_within_the_skew() {
    let bounds = [0, 50, 100].map(millis);
    assert_eq!(inverted("hlc", "100000").end_within(bounds), Ok([false, false, true]));
    assert_eq!(inverted("clock", "100000").end_within(bounds), Ok([false, false, true]));
    assert_eq!(inverted("hlc", "0").end_within(bounds), Ok([true; 3]));
    assert_eq!(inverted("hlc", "100000").end(), Ok(()), "the order of stamps and of sessions is kept");
}

/// A former leader of the counter gives a stamp below those that its successor has given. T3 and T1, whose home knows the successor, are as
/// in [`inverted`]; T2's home knows the former leader alone.
fn counted_by_a_former_leader(bugs: Bugs) -> Result<(), String> {
    let mut w = world("counter", "0", 3, bugs);
    let (y, x) = (w.list_in(1, 0), w.list_in(2, 0));
    let (l1, c, d) = (w.led_by(0), w.led_by(1), w.led_by(2));
    // The former leader's ceiling has room for stamps when its time stops.
    let t0 = w.ask(c, &[Do::Append(y)]);
    w.committed(t0);
    let members = w.members(0);
    let news = w.hold(move |from, to, _| members.contains(&from.node) && from.node != l1 && to.node == c);
    w.depose(l1);
    w.another_leads(0, l1);
    let late = hold_accesses(&mut w, d, c);
    w.ask_in(d, Some((w.session_in(2), 1)), &[Do::Read(x), Do::Append(y)]);
    w.until("T3's access", |w| w.holds_access(d, c));
    let t1 = w.ask(d, &[Do::Append(x)]);
    w.committed(t1);
    let t2 = w.ask(c, &[Do::Read(y)]);
    w.run(millis(50));
    assert!(w.answer(t2).is_none() || bugs != Bugs::NONE, "nobody gives it a stamp");
    w.release(late);
    w.run(millis(50));
    w.release(news);
    w.committed(t2);
    w.end()
}

#[test]
fn a_former_leader_gives_no_stamps_of_the_counter() {
    assert_eq!(counted_by_a_former_leader(Bugs::NONE), Ok(()));
    let found = counted_by_a_former_leader(Bugs::NONE.with(Bug::ConfirmFromBelief)).unwrap_err();
    assert!(found.contains("real time broken"), "{found}");
}

/// Nobody gives stamps: attempts wait, and end as they do when the ceiling does not rise. The counter's next leader is asked again.
#[test]
fn attempts_wait_for_a_counter_without_a_leader() {
    let mut w = world("counter", "0", 2, Bugs::NONE);
    let (x, b) = (w.list_in(1, 0), w.led_by(1));
    let all = w.members(0);
    all.iter().for_each(|node| w.sever(*node));
    w.run(millis(20));
    let t1 = w.ask(b, &[Do::Append(x)]);
    w.run(millis(500));
    assert!(w.answer(t1).is_none());
    all.iter().for_each(|node| w.restore(*node));
    w.run(millis(1_200));
    assert!(w.answer(t1).is_some(), "it asks as soon as there is a leader, and not after two seconds");
    w.committed(t1);
    all.iter().for_each(|node| w.sever(*node));
    let t2 = w.ask(b, &[Do::Append(x)]);
    w.run(millis(7_000));
    let ended = w.answer(t2).map(|answer| answer.status);
    assert_eq!(ended, Some(OutcomeStatus::Busy));
    assert_eq!(w.end(), Ok(()));
}
