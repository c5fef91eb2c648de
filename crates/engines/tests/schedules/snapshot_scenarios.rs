//! Scenarios and errata of the sheet on the engines with snapshots (fwkv.md, sections 5 and 8), by number. The table of all of them stands in
//! `snapshots.rs`.
//!
//! In these schedules R only reads. Its home is a partition that nothing else concerns, so that what is held of it stops nobody else.

use std::collections::BTreeSet;

use ordain_checker::dependencies::Anomaly;
use ordain_checker::dependencies::history::Op;
use ordain_commands::ids;
use ordain_commit::{CommitEngine, Protocol};
use ordain_engines::{fwkv, walter};
use ordain_model::{Micros, OutcomeStatus};
use ordain_role::{Bug, Bugs};

use crate::snapshots::{ENGINES, FRESH, half_read, late};
use crate::world::{self, Do, Ticket, World};
use crate::{demand_of, demand_sound_of, hold_accesses, millis, said};

const ATTEMPTS: &str = "ordain_coordinator_attempts_total";

/// The number of values that a transaction has read in a list.
fn shown(w: &World, ticket: Ticket, list: u64) -> usize {
    let txn = w.answer(ticket).and_then(world::read).expect("a committed answer");
    let read = txn.ops.iter().find_map(|op| match op {
        Op::Read { key, values } if *key == list => Some(values.len()),
        _ => None,
    });
    read.expect("a read of that list")
}

/// Scenario 1, and 14 where the records are absent first: R reads x at A; T1 writes x and y; R reads y at B.
fn overwritten_between(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    for are_there in [false, true] {
        let mut w = World::new(engine, 3, bugs);
        let (x, y, b) = (w.list_in(0, 0), w.list_in(1, 0), w.led_by(1));
        if are_there {
            let t0 = w.ask(b, &[Do::Append(x), Do::Append(y)]);
            w.committed(t0);
            w.run(millis(20));
        }
        let (r, late) = half_read(&mut w, [2, 1], &[x, y]);
        let t1 = w.ask_in(b, Some((w.session_in(1), 1)), &[Do::Append(x), Do::Append(y)]);
        w.committed(t1);
        w.run(millis(20));
        w.release(late);
        w.committed(r);
        if [x, y].map(|list| shown(&w, r, list)) != [usize::from(are_there); 2] {
            return Err("R has seen what it had missed".to_owned());
        }
        w.end()?;
    }
    Ok(())
}

#[test]
fn scenario_1_a_reader_that_has_missed_a_write_sees_nothing_of_it() {
    demand_sound_of(&ENGINES, overwritten_between);
}

/// Scenario 2: R reads x; T1 overwrites x at A; T2, of home B, reads that x and writes y; T3, of home C, reads that y and writes z; R reads z.
fn a_chain(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 4, bugs);
    let [x, y, z] = [0, 1, 2].map(|partition| w.list_in(partition, 0));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let (r, late) = half_read(&mut w, [3, 2], &[x, z]);
    for (node, home, ops) in [
        (a, 0, &[Do::Append(x)][..]),
        (b, 1, &[Do::Read(x), Do::Append(y)]),
        (c, 2, &[Do::Read(y), Do::Append(z)]),
    ] {
        let txn = w.ask_in(node, Some((w.session_in(home), 1)), ops);
        w.committed(txn);
        w.run(millis(20));
    }
    w.release(late);
    w.committed(r);
    w.end()
}

#[test]
fn scenario_2_what_is_missed_is_missed_over_three_partitions() {
    demand_sound_of(&ENGINES, a_chain);
    demand_of(&FRESH, a_chain, Bug::ForgetReaders);
}

/// Scenario 4 with announcements held back: T1 writes x at A and T2 y at B, and both are answered; then R1 of home A and R2 of home B read both.
fn both_before(engine: CommitEngine) -> BTreeSet<Anomaly> {
    let mut w = late(engine, 2, Bugs::NONE);
    let (x, y, a, b) = (w.list_in(0, 0), w.list_in(1, 0), w.led_by(0), w.led_by(1));
    for (node, list) in [(a, x), (b, y)] {
        let txn = w.ask(node, &[Do::Append(list)]);
        w.committed(txn);
    }
    for node in [a, b] {
        let txn = w.ask(node, &[Do::Read(x), Do::Read(y)]);
        w.committed(txn);
    }
    w.end_showing().expect("answers of its level")
}

/// Scenario 4 with readers that overlap: R1 has read y and R2 has read x when T1 writes x and T2 writes y. Then R1 reads x, and R2 reads y.
fn overlapping(engine: CommitEngine) -> BTreeSet<Anomaly> {
    let mut w = late(engine, 4, Bugs::NONE);
    let (x, y, a, b) = (w.list_in(0, 0), w.list_in(1, 0), w.led_by(0), w.led_by(1));
    let (r1, late_x) = half_read(&mut w, [2, 0], &[y, x]);
    let (r2, late_y) = half_read(&mut w, [3, 1], &[x, y]);
    for (node, list) in [(a, x), (b, y)] {
        let txn = w.ask(node, &[Do::Append(list)]);
        w.committed(txn);
    }
    [late_x, late_y].into_iter().for_each(|number| w.release(number));
    [r1, r2].into_iter().for_each(|txn| w.committed(txn));
    w.end_showing().expect("answers of its level")
}

/// The checker finds a long fork in what the level allows. With `fwkv` there is none where both updates have ended before the readers begin, and
/// with `walter` none where their snapshots were taken before.
#[test]
fn scenario_4_long_forks_are_seen_where_they_may_be() {
    let fork = BTreeSet::from([Anomaly::LongFork]);
    assert_eq!((both_before(walter::ENGINE), overlapping(fwkv::ENGINE)), (fork.clone(), fork));
    assert_eq!((both_before(fwkv::ENGINE), overlapping(walter::ENGINE)), Default::default());
}

/// Scenario 5: each of two transactions reads what the other writes, at two partitions. Both commit by their first attempts.
#[test]
fn scenario_5_write_skew_commits() {
    for engine in ENGINES {
        let mut w = World::new(engine, 2, Bugs::NONE);
        let (x, y, a, b) = (w.list_in(0, 0), w.list_in(1, 0), w.led_by(0), w.led_by(1));
        let t1 = w.ask(a, &[Do::Read(x), Do::Append(y)]);
        let t2 = w.ask(b, &[Do::Read(y), Do::Append(x)]);
        [t1, t2].into_iter().for_each(|txn| w.committed(txn));
        assert_eq!(w.gauge(a, ATTEMPTS) + w.gauge(b, ATTEMPTS), 2.0, "{}", engine.name);
        assert_eq!(w.end_showing(), Ok(BTreeSet::from([Anomaly::WriteSkew])), "{}", engine.name);
    }
}

/// Scenario 6: T2, of home B, has read and written x at C and asks C to promise it late. T1, of home A, does the same meanwhile and commits. T2
/// commits by another attempt.
fn two_updates(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 3, bugs);
    let [of_a, of_b, x] = [0, 1, 2].map(|partition| w.list_in(partition, 0));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let request = w.hold(move |from, to, message| {
        (from.node, to.node) == (b, c) && matches!(said(message), Some(Protocol::Prepare(_)))
    });
    let update = |own| [Do::Read(x), Do::Append(x), Do::Append(own)];
    let t2 = w.ask_in(b, Some((w.session_in(1), 1)), &update(of_b));
    w.until("T2's request", World::holds_something);
    let t1 = w.ask_in(a, Some((w.session_in(0), 1)), &update(of_a));
    w.committed(t1);
    w.run(millis(5));
    w.release(request);
    w.committed(t2);
    assert!(bugs != Bugs::NONE || w.gauge(b, ATTEMPTS) > 1.0, "its first attempt was refused");
    w.end()
}

#[test]
fn scenario_6_of_two_updates_of_one_version_one_begins_anew() {
    demand_of(&ENGINES, two_updates, Bug::SkipValidation);
}

/// Scenario 7: clients of B write x again and again, and A hears of each write a second late. T1, of home A, updates x. Answers how it has ended.
fn updates_from_afar(engine: CommitEngine) -> (OutcomeStatus, Micros) {
    let mut w = late(engine, 2, Bugs::NONE);
    let (own, x, a, b) = (w.list_in(0, 0), w.list_in(1, 0), w.led_by(0), w.led_by(1));
    let write = |w: &mut World| {
        let txn = w.ask(b, &[Do::Append(x)]);
        w.committed(txn);
    };
    write(&mut w);
    let t1 = w.ask_in(a, Some((w.session_in(0), 1)), &[Do::Read(x), Do::Append(x), Do::Append(own)]);
    let mut took = Micros(0);
    while w.answer(t1).is_none() {
        w.run(millis(100));
        took = took.plus(millis(100));
        write(&mut w);
    }
    let status = w.answered(t1).status;
    // Without the others it comes through as soon as the last write was announced.
    let t2 = w.ask_in(a, Some((w.session_in(0), 2)), &[Do::Read(x), Do::Append(x), Do::Append(own)]);
    w.run(millis(1_200));
    assert_eq!(w.answer(t2).map(|answer| answer.status), Some(OutcomeStatus::Committed));
    assert_eq!(w.end(), Ok(()));
    (status, took)
}

#[test]
fn scenario_7_updates_of_what_is_heard_of_late() {
    assert_eq!(updates_from_afar(fwkv::ENGINE), (OutcomeStatus::Committed, millis(100)));
    let (status, took) = updates_from_afar(walter::ENGINE);
    assert!(status == OutcomeStatus::Busy && took >= millis(5_000), "{status:?} after {took:?}");
}

/// Scenario 8: T2, of home A, is promised at B and refused at A for T1, which commits meanwhile; it has no number. Another aborts by its own
/// logic. Then B hears of what A decides as before, without which its update of y would not commit with the other engine.
fn an_abort_between(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 2, bugs);
    let (y, x, a, b) = (w.list_in(0, 0), w.list_in(1, 0), w.led_by(0), w.led_by(1));
    let vote = w.hold(move |from, to, message| {
        (from.node, to.node) == (b, a) && matches!(said(message), Some(Protocol::Vote(..)))
    });
    let t2 = w.ask_in(a, Some((w.session_in(0), 1)), &[Do::Append(y), Do::Append(x)]);
    w.until("T2's vote", World::holds_something);
    let t1 = w.ask(a, &[Do::Append(y)]);
    w.committed(t1);
    w.release(vote);
    w.committed(t2);
    assert!(w.gauge(a, ATTEMPTS) > 2.0, "T2's first attempt was refused");
    let fails = w.ask_to_fail(a, &[Do::Append(y), Do::Append(x)]);
    w.answered(fails);
    let t3 = w.ask(a, &[Do::Append(y)]);
    w.committed(t3);
    let t4 = w.ask_in(b, Some((w.session_in(1), 1)), &[Do::Read(y), Do::Append(y), Do::Append(x)]);
    w.run(millis(100));
    if w.answer(t4).is_none() {
        return Err("B does not hear of what A has decided after an abort".to_owned());
    }
    w.committed(t4);
    w.end()
}

#[test]
fn scenario_8_an_abort_between_two_commits_stops_nothing() {
    demand_sound_of(&ENGINES, an_abort_between);
}

/// Scenario 9, of it what is left where each entry of a log counts once: the announcement of T1 is lost with a stream, and told again.
fn a_lost_announcement(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 2, bugs);
    let (y, x, a, b) = (w.list_in(0, 0), w.list_in(1, 0), w.led_by(0), w.led_by(1));
    let told = w.hold(move |from, to, message| {
        (from.node, to.node) == (a, b) && matches!(said(message), Some(Protocol::Announce(1.., ..)))
    });
    let t1 = w.ask(a, &[Do::Append(y)]);
    w.committed(t1);
    w.until("the announcement", World::holds_something);
    w.renew(a, b);
    w.release(told);
    let t2 = w.ask_in(b, Some((w.session_in(1), 1)), &[Do::Read(y), Do::Append(y), Do::Append(x)]);
    w.run(millis(100));
    if w.answer(t2).is_none() {
        return Err("B has not heard of T1".to_owned());
    }
    w.committed(t2);
    w.end()
}

#[test]
fn scenario_9_an_announcement_that_is_lost_is_told_again() {
    demand_sound_of(&ENGINES, a_lost_announcement);
}

/// Scenario 11: T1 writes at A, B and C. A's leader is gone when T1 is decided; it has told nobody, or B alone. The next one tells the others, and
/// what they have heard of A goes on from there.
fn a_lost_coordinator(engine: CommitEngine, bugs: Bugs, tells_one: bool) -> Result<(), String> {
    let mut w = World::new(engine, 3, bugs);
    let [y, x, z] = [0, 1, 2].map(|partition| w.list_in(partition, 0));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let door = w.members(0).into_iter().find(|node| *node != a).expect("three members");
    let untold = w.hold(move |from, to, message| {
        let is_untold = to.node == c || to.node == b && !tells_one;
        from.node == a && is_untold && matches!(said(message), Some(Protocol::Decide(..)))
    });
    let session = w.session_in(0);
    let t1 = w.ask_in(door, Some((session, 1)), &[y, x, z].map(Do::Append));
    w.until("the decision", World::holds_something);
    if tells_one {
        w.run(millis(1));
    }
    w.start_again(a);
    w.release(untold);
    w.committed(t1);
    let r = w.ask_in(door, Some((session, 2)), &[y, x, z].map(Do::Read));
    w.committed(r);
    if [y, x, z].iter().any(|list| shown(&w, r, *list) != 1) {
        return Err("a client does not see all that it has written".to_owned());
    }
    let updates = [(b, 1, x), (c, 2, z)].map(|(node, home, own)| {
        let session = w.session_in(home);
        w.ask_in(node, Some((session, 1)), &[Do::Read(y), Do::Append(y), Do::Append(own)])
    });
    w.run(millis(300));
    if updates.iter().any(|txn| w.answer(*txn).is_none()) {
        return Err("T1's number is not heard of".to_owned());
    }
    updates.into_iter().for_each(|txn| w.committed(txn));
    w.end()
}

#[test]
fn scenario_11_a_coordinator_is_gone_after_its_decision() {
    for tells_one in [false, true] {
        for engine in ENGINES {
            assert_eq!(a_lost_coordinator(engine, Bugs::NONE, tells_one), Ok(()), "{}", engine.name);
        }
    }
}

/// Scenario 12: B has promised T1, which is answered, and does not hear of that. R waits at B for x, which its client's node has seen written;
/// B's leader is gone meanwhile.
fn a_lost_participant(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 2, bugs);
    let (y, x, a, b) = (w.list_in(0, 0), w.list_in(1, 0), w.led_by(0), w.led_by(1));
    let untold =
        w.hold(move |from, _, message| from.node == a && matches!(said(message), Some(Protocol::Decide(..))));
    let session = w.session_in(0);
    let t1 = w.ask_in(a, Some((session, 1)), &[Do::Append(x), Do::Append(y)]);
    w.committed(t1);
    let r = w.ask_in(a, Some((session, 2)), &[Do::Read(y), Do::Read(x)]);
    w.run(millis(20));
    assert!(w.answer(r).is_none() || bugs != Bugs::NONE, "x is locked");
    w.start_again(b);
    w.until("a leader", |w| w.leader(1).is_some());
    w.run(millis(300));
    w.release(untold);
    w.committed(r);
    w.end()
}

#[test]
fn scenario_12_a_participant_is_gone_while_a_reader_waits_there() {
    demand_of(&ENGINES, a_lost_participant, Bug::ForgetLocks);
}

/// Scenario 13: R has read x at B, which is started again and has no note of that. T2 overwrites x, and z at C, which R reads then.
fn a_lost_note(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 3, bugs);
    let (x, z) = (w.list_in(1, 0), w.list_in(2, 0));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let (r, late) = half_read(&mut w, [0, 2], &[x, z]);
    let members = w.members(1);
    let news = w.hold(move |from, to, _| members.contains(&from.node) && to.node == a);
    w.start_again(b);
    w.until("a leader", |w| w.leader(1).is_some());
    w.run(millis(100));
    let t2 = w.ask_in(c, Some((w.session_in(2), 1)), &[Do::Append(x), Do::Append(z)]);
    w.committed(t2);
    w.release(late);
    w.run(millis(20));
    assert!(w.answer(r).is_none(), "B does not confirm it");
    w.release(news);
    w.committed(r);
    w.end()
}

#[test]
fn scenario_13_a_participant_is_started_again_that_a_reader_has_read() {
    demand_sound_of(&ENGINES, a_lost_note);
}

/// Scenario 15: R1 has read x when x and y are removed, and R2 has read that x is gone when both are made again. Then they read y.
fn gone_and_back(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 4, bugs);
    let (x, y, a, b) = (w.key_in(0, 0), w.key_in(1, 0), w.led_by(0), w.led_by(1));
    let homes = [2, 3].map(|partition| w.led_by(partition));
    let run = |w: &mut World, procedure, args: &[&[u8]]| {
        let txn = w.command(a, procedure, args);
        w.committed(txn);
        w.run(millis(20));
        w.answered(txn).reply
    };
    let both: [&[u8]; 2] = [&x, &y];
    let mut expected = Vec::new();
    let mut readers = Vec::new();
    for (home, next) in homes.into_iter().zip([ids::DEL, ids::MSET]) {
        if expected.is_empty() {
            run(&mut w, ids::MSET, &[&x, b"1", &y, b"1"]);
        }
        expected.push(run(&mut w, ids::MGET, &both));
        let late = hold_accesses(&mut w, home, b);
        readers.push((w.command(home, ids::MGET, &both), late));
        w.until("the access that is held", |w| w.holds_access(home, b));
        w.run(millis(5));
        match next {
            ids::DEL => run(&mut w, next, &both),
            _ => run(&mut w, next, &[&x, b"3", &y, b"3"]),
        };
    }
    for ((reader, late), expected) in readers.into_iter().zip(expected) {
        w.release(late);
        w.committed(reader);
        let reply = w.answered(reader).reply;
        if reply != expected {
            return Err(format!("R has seen {reply:?} and not {expected:?}"));
        }
    }
    w.end()
}

#[test]
fn scenario_15_records_that_go_and_come_back_under_readers() {
    demand_sound_of(&ENGINES, gone_and_back);
}

/// Scenario 16: a client of A's node writes x at B with the home C, and reads x and w with the home A, which has not heard of C.
fn own_writes(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = late(engine, 3, bugs);
    let (own, x, a, session) = (w.list_in(0, 0), w.list_in(1, 0), w.led_by(0), w.session_in(2));
    let t1 = w.ask_in(a, Some((session, 1)), &[Do::Append(x)]);
    w.committed(t1);
    let t2 = w.ask_in(a, Some((session, 2)), &[Do::Read(own), Do::Read(x)]);
    w.run(millis(20));
    assert!(w.answer(t2).is_some(), "it waits for nothing");
    w.committed(t2);
    w.end()
}

#[test]
fn scenario_16_a_client_sees_what_it_has_written_at_once() {
    demand_sound_of(&ENGINES, own_writes);
    // The other engine shows the newest, whatever was seen.
    demand_of(&[walter::ENGINE], own_writes, Bug::ForgetSeen);
}

/// Scenario 17, without reads: SET of a key of B, by the home A, which has heard of none of the writes there.
#[test]
fn scenario_17_a_blind_write_of_what_nobody_has_heard_of() {
    for engine in ENGINES {
        let mut w = late(engine, 2, Bugs::NONE);
        let (k, a, b) = (w.key_in(1, 0), w.led_by(0), w.led_by(1));
        for nth in 0..20u8 {
            let txn = w.command(b, ids::SET, &[&k, &[b'a' + nth]]);
            w.committed(txn);
        }
        let before = w.gauge(a, ATTEMPTS);
        let t1 = w.command_in(a, Some((w.session_in(0), 1)), ids::SET, &[&k, b"blind"]);
        w.run(millis(20));
        assert_eq!(
            w.answer(t1).map(|answer| answer.status),
            Some(OutcomeStatus::Committed),
            "{}",
            engine.name
        );
        assert_eq!(w.gauge(a, ATTEMPTS) - before, 1.0, "{}", engine.name);
        let get = w.command(b, ids::GET, &[&k]);
        assert!(w.answered(get).reply.windows(5).any(|part| part == b"blind"));
        assert_eq!(w.end(), Ok(()));
    }
}

/// Scenario 18: R has read x and sleeps while x and y are written every 50 ms. Within the time that an attempt has, y is what it was; after ten
/// seconds R is answered BUSY, and nothing is kept for it (as [`World::end`] checks).
fn asleep(engine: CommitEngine, sleeps: u64) -> OutcomeStatus {
    let mut w = World::new(engine, 3, Bugs::NONE);
    let (x, y, b) = (w.list_in(0, 0), w.list_in(1, 0), w.led_by(1));
    let (r, late) = half_read(&mut w, [2, 1], &[x, y]);
    for nth in 0..sleeps / 50 {
        let txn = w.ask_in(b, Some((w.session_in(1), nth + 1)), &[Do::Append(x), Do::Append(y)]);
        w.committed(txn);
        w.run(millis(48));
    }
    w.release(late);
    let status = w.answered(r).status;
    if status == OutcomeStatus::Committed {
        assert_eq!([x, y].map(|list| shown(&w, r, list)), [0, 0], "{}", engine.name);
    }
    assert_eq!(w.end(), Ok(()), "{}", engine.name);
    status
}

#[test]
fn scenario_18_a_reader_that_sleeps() {
    for engine in ENGINES {
        assert_eq!(asleep(engine, 1_500), OutcomeStatus::Committed, "{}", engine.name);
        assert_eq!(asleep(engine, 10_000), OutcomeStatus::Busy, "{}", engine.name);
    }
}

/// Scenario 19: at every node of three partitions readers of all lists, among updates of two lists each. No leader changes, and no reader is
/// refused: each commits by its first attempt.
#[test]
fn scenario_19_readers_of_all_partitions_in_a_storm_of_updates() {
    for engine in ENGINES {
        let mut w = World::new(engine, 3, Bugs::NONE);
        let lists: Vec<u64> =
            (0..3).flat_map(|partition| [0, 1].map(|nth| w.list_in(partition, nth))).collect();
        let nodes: Vec<_> = (0..3).flat_map(|partition| w.members(partition)).collect();
        let (mut readers, mut updates) = (Vec::new(), Vec::new());
        for nth in 0..150usize {
            let node = nodes[nth * 5 % nodes.len()];
            let [one, other, third] = [nth * 7, nth * 11 + 3, nth * 13 + 1].map(|n| lists[n % lists.len()]);
            if nth % 3 == 0 {
                readers.push(w.ask(node, &lists.iter().copied().map(Do::Read).collect::<Vec<_>>()));
            } else {
                updates.push(w.ask(node, &[Do::Read(third), Do::Append(one), Do::Append(other)]));
            }
            w.run(Micros(150));
        }
        readers.into_iter().for_each(|txn| w.committed(txn));
        let ended = updates.into_iter().map(|txn| w.answered(txn).status);
        assert!(ended.filter(|status| *status == OutcomeStatus::Committed).count() > 50);
        let sum = |name| nodes.iter().map(|node| w.gauge(*node, name)).sum::<f64>();
        assert!(sum("ordain_coordinator_failed_total{reason=\"validation\"}") > 20.0, "{}", engine.name);
        assert_eq!(sum("ordain_coordinator_readers_refused_total"), 0.0, "{}", engine.name);
        assert_eq!(w.end(), Ok(()), "{}", engine.name);
    }
}

/// Scenario 20, E1: T, of home A, whose node has seen the decision 7 of B, reads x at B. T3, of home C, which has heard of less, writes x and y.
/// T reads y at C: that T3 follows another decision of B than T does must not make it visible.
fn e1(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = late(engine, 3, bugs);
    let (own, x, other, y) = (w.list_in(0, 0), w.list_in(1, 0), w.list_in(1, 1), w.list_in(2, 0));
    let (a, c) = (w.led_by(0), w.led_by(2));
    for (node, list) in [(c, x), (a, other), (a, other)] {
        let txn = w.ask(node, &[Do::Append(list)]);
        w.committed(txn);
    }
    let held = hold_accesses(&mut w, a, c);
    let t = w.ask_in(a, Some((w.session_in(0), 1)), &[Do::Read(x), Do::Read(y), Do::Append(own)]);
    w.run(millis(10));
    let t3 = w.ask_in(c, Some((w.session_in(2), 1)), &[Do::Append(x), Do::Append(y)]);
    w.committed(t3);
    w.release(held);
    w.committed(t);
    assert!(bugs != Bugs::NONE || w.gauge(a, ATTEMPTS) == 1.0, "it is not refused");
    w.end()
}

#[test]
fn scenario_20_e1_a_snapshot_covers_whole_vectors() {
    demand_sound_of(&ENGINES, e1);
}

/// Scenario 20, E2: A takes part in T9, of home C, and so has heard of it; but not of B's decision that T9 follows. T, of home A, reads x of
/// before T9, and writes it.
fn e2(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = late(engine, 3, bugs);
    let [own, u, x] = [0, 1, 2].map(|partition| w.list_in(partition, 0));
    let (a, c, of_a) = (w.led_by(0), w.led_by(2), w.list_in(0, 1));
    let t0 = w.ask(c, &[Do::Append(u)]);
    w.committed(t0);
    let t9 = w.ask_in(c, Some((w.session_in(2), 1)), &[Do::Read(u), Do::Append(x), Do::Append(of_a)]);
    w.committed(t9);
    w.run(millis(20));
    let t = w.ask_in(a, Some((w.session_in(0), 1)), &[Do::Read(own), Do::Read(x), Do::Append(x)]);
    w.committed(t);
    assert!(bugs != Bugs::NONE || w.gauge(a, ATTEMPTS) > 1.0, "it has not seen all that T9 follows");
    w.end()
}

#[test]
fn scenario_20_e2_a_version_is_validated_by_its_whole_vector() {
    demand_of(&ENGINES, e2, Bug::SkipValidation);
}

/// Scenario 20, E4: T2, of home C, follows a decision of B, and writes y. R reads x at B, which is older than that, and then y: it was answered
/// before R was asked, so R sees it.
#[test]
fn scenario_20_e4_a_reader_sees_what_was_answered_before_it_everywhere() {
    let mut w = late(fwkv::ENGINE, 4, Bugs::NONE);
    let [x, other, y] = [(1, 0), (1, 1), (2, 0)].map(|(partition, nth)| w.list_in(partition, nth));
    let (b, c, d) = (w.led_by(1), w.led_by(2), w.led_by(3));
    let t1 = w.ask(b, &[Do::Append(other)]);
    w.committed(t1);
    let t2 = w.ask_in(c, Some((w.session_in(2), 1)), &[Do::Read(other), Do::Append(y)]);
    w.committed(t2);
    let late = hold_accesses(&mut w, d, c);
    let r = w.ask(d, &[Do::Read(x), Do::Read(y)]);
    w.run(millis(10));
    w.release(late);
    w.committed(r);
    assert_eq!((shown(&w, r, x), shown(&w, r, y)), (0, 1));
    assert_eq!(w.end(), Ok(()));
}

/// E7: T1 is validated at A, which has R not in its note, and writes x there and y at B. R comes to x then.
fn e7(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 3, bugs);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let vote = w.hold(move |from, to, message| {
        (from.node, to.node) == (a, b) && matches!(said(message), Some(Protocol::Vote(..)))
    });
    let t1 = w.ask_in(b, Some((w.session_in(1), 1)), &[Do::Append(x), Do::Append(y)]);
    w.until("T1's vote", World::holds_something);
    let late = hold_accesses(&mut w, c, b);
    let r = w.ask(c, &[Do::Read(x), Do::Read(y)]);
    w.run(millis(5));
    w.release(vote);
    w.committed(t1);
    w.run(millis(5));
    w.release(late);
    w.committed(r);
    w.end()
}

#[test]
fn e7_a_reader_waits_for_a_validated_writer() {
    demand_sound_of(&ENGINES, e7);
    demand_of(&FRESH, e7, Bug::GrantLockEarly);
}

/// E9: T1, of home A, reads what T0 has written at B, and writes y at A and something at D. So D has heard of T1, and not of T0. T2, of home D,
/// reads y at A and u at C, which T0 has written too: it sees both or neither.
fn e9(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = late(engine, 4, bugs);
    let [y, x, u, own] = [0, 1, 2, 3].map(|partition| w.list_in(partition, 0));
    let (a, d, of_d) = (w.led_by(0), w.led_by(3), w.list_in(3, 1));
    let t0 = w.ask_in(a, Some((w.session_in(2), 1)), &[Do::Append(x), Do::Append(u)]);
    w.committed(t0);
    let t1 = w.ask_in(a, Some((w.session_in(0), 1)), &[Do::Read(x), Do::Append(y), Do::Append(of_d)]);
    w.committed(t1);
    w.run(millis(20));
    let ops = [Do::Read(own), Do::Read(y), Do::Read(u), Do::Append(own)];
    let t2 = w.ask_in(d, Some((w.session_in(3), 1)), &ops);
    w.committed(t2);
    w.end()
}

#[test]
fn e9_a_decision_follows_all_that_it_has_read() {
    demand_sound_of(&ENGINES, e9);
}

/// E10: R has read x. A client writes x, and then y, with one home. R reads y.
fn e10(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 4, bugs);
    let (x, y, c, session) = (w.list_in(0, 0), w.list_in(1, 0), w.led_by(2), w.session_in(2));
    let (r, late) = half_read(&mut w, [3, 1], &[x, y]);
    for (number, list) in [(1, x), (2, y)] {
        let txn = w.ask_in(c, Some((session, number)), &[Do::Append(list)]);
        w.committed(txn);
        w.run(millis(20));
    }
    w.release(late);
    w.committed(r);
    w.end()
}

/// E10 with two homes: a connection at C writes x at A, and then y at B, where neither has heard of the other. R of home B reads y and x.
fn e10_two_homes(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = late(engine, 3, bugs);
    let (x, y, b, c) = (w.list_in(0, 0), w.list_in(1, 0), w.led_by(1), w.led_by(2));
    let connection = w.connect(c);
    for list in [x, y] {
        let txn = w.ask_over(connection, &[Do::Append(list)]);
        w.committed(txn);
    }
    let r = w.ask(b, &[Do::Read(y), Do::Read(x)]);
    w.committed(r);
    if (shown(&w, r, y), shown(&w, r, x)) == (1, 0) {
        return Err("R has seen the later write of a connection and not the earlier one".to_owned());
    }
    w.end()
}

#[test]
fn e10_what_a_connection_writes_follows_what_it_wrote_before() {
    demand_sound_of(&ENGINES, e10);
    demand_of(&FRESH, e10, Bug::ForgetSeen);
    demand_sound_of(&ENGINES, e10_two_homes);
    demand_of(&[walter::ENGINE], e10_two_homes, Bug::ForgetSeen);
}
