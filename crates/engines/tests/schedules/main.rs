//! Schedules of the shared sheet on the commit family (commit.md), by number: each a fixed run of the engines with locks and of the optimistic
//! one, on partitions of three members. Each is sound, and is not with the bug planted that breaks the rule which it is for.

mod beginnings;
mod between;
mod bounds;
mod budget;
mod children;
mod connections;
mod cuts;
mod expiry;
mod mvocc;
mod overlay;
mod regional;
mod regions;
mod resolved;
mod rows;
mod scenarios;
mod snapshot_scenarios;
mod snapshots;
mod sources;
mod stamps;
mod starving;
mod tables;
mod terms;
mod versions;
mod world;

use ordain_commands::ids;
use ordain_commit::{CommitEngine, Message, Protocol, Relay, Termed};
use ordain_engines::{no_wait, occ_2pc, regions_2pl, regions_silo, wait_die};
use ordain_model::{Micros, OutcomeStatus, system};
use ordain_role::{Bug, Bugs, NodeId};
use world::{Do, World};

/// Engines with locks that refuse a request by what it would wait for.
const LOCKING: [CommitEngine; 2] = [no_wait::ENGINE, wait_die::ENGINE];
const OPTIMISTIC: [CommitEngine; 2] = [occ_2pc::ENGINE, regions_silo::ENGINE];
const ENGINES: [CommitEngine; 5] =
    [no_wait::ENGINE, wait_die::ENGINE, regions_2pl::ENGINE, occ_2pc::ENGINE, regions_silo::ENGINE];

type Schedule = fn(CommitEngine, Bugs) -> Result<(), String>;

/// Demands that a schedule is sound with each engine.
fn demand_sound(schedule: Schedule) {
    demand_sound_of(&ENGINES, schedule);
}

/// Demands that a schedule is sound with each engine, and is not with a bug.
fn demand(schedule: Schedule, bug: Bug) {
    demand_of(&ENGINES, schedule, bug);
}

fn demand_sound_of(engines: &[CommitEngine], schedule: Schedule) {
    for engine in engines {
        assert_eq!(schedule(*engine, Bugs::NONE), Ok(()), "{}", engine.name);
    }
    // The simulator has them all on disk.
    for engine in engines.first().into_iter().chain(engines[1..].last()) {
        let with_values_on_disk = world::on_disk(|| schedule(*engine, Bugs::NONE));
        assert_eq!(with_values_on_disk, Ok(()), "{} with values on disk", engine.name);
    }
}

fn demand_of(engines: &[CommitEngine], schedule: Schedule, bug: Bug) {
    demand_sound_of(engines, schedule);
    for engine in engines {
        let found = schedule(*engine, Bugs::NONE.with(bug));
        assert!(found.is_err(), "{}: {} is not found", engine.name, bug.name());
    }
}

/// What a message says between partitions, if it is one of those.
fn said(message: &Message) -> Option<&Protocol> {
    match message {
        Message::Termed(Termed { content, .. }) => Some(content),
        _ => None,
    }
}

const fn millis(count: u64) -> Micros {
    Micros::from_millis(count)
}

/// Holds the accesses that one node asks of another.
fn hold_accesses(w: &mut World, from: NodeId, to: NodeId) -> u32 {
    w.hold(move |sender, receiver, message| {
        (sender.node, receiver.node) == (from, to) && matches!(said(message), Some(Protocol::Access(_)))
    })
}

/// A leader that is deposed and does not know it. T1 has read x at B1; T2 writes x under B2 and z at C, and is answered; T1 then reads z
/// as T2 has left it. `updates`: T1 writes at home, too.
fn overtaken(engine: CommitEngine, bugs: Bugs, updates: bool) -> Result<(), String> {
    let mut w = World::new(engine, 3, bugs);
    let (y, x, z) = (w.list_in(0, 0), w.list_in(1, 0), w.list_in(2, 0));
    let (a, b1, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let late = hold_accesses(&mut w, a, c);
    let t1 = match updates {
        true => w.ask_in(a, Some((w.session_in(0), 1)), &[Do::Read(x), Do::Append(y), Do::Read(z)]),
        false => w.ask(a, &[Do::Read(x), Do::Read(z)]),
    };
    w.until("T1's access", World::holds_something);
    w.run(millis(5));
    let members = w.members(1);
    w.hold(move |from, to, _| members.contains(&from.node) && from.node != b1 && to.node == a);
    w.depose(b1);
    let b2 = w.another_leads(1, b1);
    let t2 = w.ask_in(b2, Some((w.session_in(1), 1)), &[Do::Append(x), Do::Append(z)]);
    w.committed(t2);
    w.release(late);
    w.run(millis(20));
    assert!(w.answer(t1).is_none() || bugs != Bugs::NONE);
    w.end()
}

/// A vote that no log has: B1 must not promise T1, whose shared lock went with its term.
fn schedule_1(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    overtaken(engine, bugs, true)
}

#[test]
fn schedule_1_a_vote_stands_in_a_log_before_it_is_given() {
    demand(schedule_1, Bug::VoteBeforeLog);
}

/// Marks of a validation that no log has (schedule 11): T1 reads x at B and writes y at C, T2 reads y and writes x. B1 has promised T1 and loses
/// its power; T2 commits under B2, and then T1's request comes to C.
fn schedule_11(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 3, bugs);
    let (own, x, y) = (w.list_in(0, 0), w.list_in(1, 0), w.list_in(2, 0));
    let (a, b1, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let late = w.hold(move |from, to, message| {
        (from.node, to.node) == (a, c) && matches!(said(message), Some(Protocol::Prepare(_)))
    });
    // B1's promise reaches no other member, and A does not hear of B's next leader.
    let members = w.members(1);
    let voters = members.clone();
    w.hold(move |from, to, message| {
        from.node == b1 && voters.contains(&to.node) && to.node != b1 && matches!(message, Message::Group(_))
    });
    w.hold(move |from, to, _| members.contains(&from.node) && from.node != b1 && to.node == a);
    let ops = [Do::Append(own), Do::Read(x), Do::Append(y)];
    let t1 = w.ask_in(a, Some((w.session_in(0), 1)), &ops);
    w.until("T1's request at C", World::holds_something);
    w.run(millis(5));
    w.depose(b1);
    let b2 = w.another_leads(1, b1);
    let t2 = w.ask_in(b2, Some((w.session_in(1), 1)), &[Do::Append(x), Do::Read(y)]);
    w.committed(t2);
    w.release(late);
    w.run(millis(20));
    assert!(w.answer(t1).is_none() || bugs != Bugs::NONE);
    w.end()
}

#[test]
fn schedule_11_marks_of_a_validation_stand_in_the_log() {
    demand_of(&OPTIMISTIC, schedule_11, Bug::VoteBeforeLog);
}

/// A leader that regains: A1 has all votes of T1 but one that is late; A2, asked, denies T1; A1 leads again, and then has the vote.
fn schedule_2(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 2, bugs);
    let (y, x) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a1, b) = (w.led_by(0), w.led_by(1));
    let late = w.hold(move |from, to, message| {
        (from.node, to.node) == (b, a1) && matches!(said(message), Some(Protocol::Vote(..)))
    });
    w.ask_in(a1, Some((w.session_in(0), 1)), &[Do::Append(x), Do::Append(y)]);
    w.until("T1's vote", World::holds_something);
    w.depose(a1);
    let a2 = w.another_leads(0, a1);
    // B has asked A2, and holds nothing of T1 any more.
    w.run(millis(400));
    let t2 = w.ask(b, &[Do::Append(x)]);
    w.committed(t2);
    w.restore(a1);
    w.run(millis(200));
    w.sever(a2);
    let regained = w.another_leads(0, a2);
    assert_eq!(regained, a1, "the former leader is the first to stand for election");
    w.release(late);
    w.run(millis(20));
    w.end()
}

#[test]
fn schedule_2_a_leader_that_regains_has_dropped_what_it_was_at() {
    demand(schedule_2, Bug::KeepClaim);
}

/// An early acknowledgement: B1 hears that T1 has committed and cannot agree on its own record of that. A must not forget T1, as
/// B2 has the promise alone.
fn schedule_3(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 2, bugs);
    let (y, x) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b1) = (w.led_by(0), w.led_by(1));
    let decision = w.hold(move |from, to, message| {
        (from.node, to.node) == (a, b1) && matches!(said(message), Some(Protocol::Decide(..)))
    });
    let t1 = w.ask_in(a, Some((w.session_in(0), 1)), &[Do::Append(x), Do::Append(y)]);
    w.committed(t1);
    w.until("the decision", World::holds_something);
    w.depose(b1);
    w.release(decision);
    let b2 = w.another_leads(1, b1);
    w.run(millis(600));
    let t2 = w.ask(b2, &[Do::Read(x)]);
    w.committed(t2);
    w.end()
}

#[test]
fn schedule_3_an_outcome_is_acknowledged_once_it_is_agreed_on() {
    demand(schedule_3, Bug::AckEarly);
}

/// Serving too early: T1 is promised at B and has committed at A, and B2 has not heard of that. T2 must find x locked there.
fn schedule_4(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 2, bugs);
    let (y, x) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b1) = (w.led_by(0), w.led_by(1));
    let outcome = w.hold(move |from, to, _| from.node == a && to.node.0 % 2 == 1 && to.node != b1);
    w.hold(move |from, to, message| {
        (from.node, to.node) == (a, b1) && matches!(said(message), Some(Protocol::Decide(..)))
    });
    let t1 = w.ask_in(a, Some((w.session_in(0), 1)), &[Do::Append(x), Do::Append(y)]);
    w.committed(t1);
    w.depose(b1);
    let b2 = w.another_leads(1, b1);
    let t2 = w.ask(b2, &[Do::Read(x), Do::Append(x)]);
    w.run(millis(200));
    assert!(w.answer(t2).is_none() || bugs != Bugs::NONE, "x is locked");
    w.release(outcome);
    w.committed(t2);
    w.end()
}

#[test]
fn schedule_4_a_new_leader_holds_what_is_promised_before_it_serves() {
    demand(schedule_4, Bug::ForgetLocks);
}

/// A read at a deposed leader: T1 writes x under A2 and is answered; T2 reads x at A1, which takes itself for the leader still.
/// (The sheet has it under snapshot isolation, over two partitions; with one it breaks real time.)
fn schedule_5(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 1, bugs);
    let x = w.list_in(0, 0);
    let a1 = w.led_by(0);
    // The partition may use times up to a ceiling that its log knows.
    let t0 = w.ask(a1, &[Do::Read(x)]);
    w.committed(t0);
    w.depose(a1);
    let a2 = w.another_leads(0, a1);
    let t1 = w.ask(a2, &[Do::Append(x)]);
    w.committed(t1);
    let t2 = w.ask(a1, &[Do::Read(x)]);
    w.run(millis(20));
    assert!(w.answer(t2).is_none() || bugs != Bugs::NONE);
    w.end()
}

#[test]
fn schedule_5_a_read_is_answered_by_a_leader_that_has_led_after_it() {
    demand(schedule_5, Bug::ConfirmFromBelief);
}

/// Exactly once: a request of a session is committed and its answer lost with the leader; its client asks another node.
fn schedule_7(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    for partitions in [1, 2] {
        let mut w = World::new(engine, partitions, bugs);
        let (y, x) = (w.list_in(0, 0), w.list_in(partitions - 1, 1));
        let a1 = w.led_by(0);
        let door = w.members(0).into_iter().find(|node| *node != a1).expect("three members");
        w.hold(move |from, to, message| {
            (from.node, to.node) == (a1, door) && matches!(message, Message::Relay(Relay::Outcomes(..)))
        });
        let first = w.ask_in(door, Some((w.session_in(0), 4)), &[Do::Append(y), Do::Append(x)]);
        w.until("the answer", World::holds_something);
        w.depose(a1);
        let a2 = w.another_leads(0, a1);
        let other = w.members(0).into_iter().find(|node| *node != a1 && *node != door).unwrap_or(a2);
        let again = w.ask_again(other, first);
        w.committed(again);
        w.end()?;
    }
    Ok(())
}

/// The same before the decision is agreed on: A1 has proposed to commit the request, which B has promised, and is cut off.
fn schedule_7_undecided(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 2, bugs);
    let (y, x) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a1, b) = (w.led_by(0), w.led_by(1));
    let door = w.members(0).into_iter().find(|node| *node != a1).expect("three members");
    let vote = w.hold(move |from, to, message| {
        (from.node, to.node) == (b, a1) && matches!(said(message), Some(Protocol::Vote(..)))
    });
    let first = w.ask_in(door, Some((w.session_in(0), 4)), &[Do::Append(y), Do::Append(x)]);
    w.until("B's vote", World::holds_something);
    w.depose(a1);
    w.release(vote);
    w.run(millis(5));
    assert_eq!(w.gauge(b, "ordain_cohort_prepared"), 1.0, "nobody has told B");
    let a2 = w.another_leads(0, a1);
    let other = w.members(0).into_iter().find(|node| *node != a1 && *node != door).unwrap_or(a2);
    let again = w.ask_again(other, first);
    w.run(millis(100));
    let answers = [first, again].map(|txn| w.answer(txn).map(|answer| answer.status));
    if answers != [Some(OutcomeStatus::Committed); 2] {
        return Err(format!("the request waits for a former leader: {answers:?}"));
    }
    w.end()
}

/// A session's request that could not be planned has no records: it is answered, and the same whatever another attempt at it is.
fn a_refused_request(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    for partitions in [1, 2] {
        let mut w = World::new(engine, partitions, bugs);
        let home = w.session_in(partitions - 1);
        for (number, is_refused_first) in [(256, true), (512, false)] {
            let attempts = [is_refused_first, !is_refused_first, is_refused_first].map(|is_refused| {
                let node = w.led_by(0);
                let attempt = match is_refused {
                    true => w.command_in(node, Some((home, number)), system::REFUSE, &[b"ERR not this one"]),
                    false => w.command_in(node, Some((home, number)), ids::INCR, &[b"n"]),
                };
                w.committed(attempt);
                w.answer(attempt).map(|answer| answer.reply.clone())
            });
            let says_so = attempts[0].as_ref().is_some_and(|reply| reply.ends_with(b"not this one"));
            if says_so != is_refused_first || attempts.iter().any(|other| *other != attempts[0]) {
                return Err(format!("{attempts:?}"));
            }
        }
        w.end()?;
    }
    Ok(())
}

#[test]
fn a_refused_request_of_a_session_stays_refused_and_a_committed_one_committed() {
    demand(a_refused_request, Bug::ForgetSession);
}

#[test]
fn schedule_7_a_request_takes_effect_once_whoever_is_asked_again() {
    demand(schedule_7, Bug::ForgetSession);
    demand(schedule_7_undecided, Bug::ForgetSession);
}

/// Blocking: T1 is promised at B, and its home A has no majority. An older T2 waits for it at B and holds z at C. Whoever wants z
/// alone must get it within the bound of attempts.
fn schedule_20(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 3, bugs);
    let (y, x, z) = (w.list_in(0, 0), w.list_in(1, 0), w.list_in(2, 0));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let older = w.hold(move |from, to, message| {
        (from.node, to.node) == (c, b) && matches!(said(message), Some(Protocol::Access(_)))
    });
    let t2 = w.ask_in(c, Some((w.session_in(2), 1)), &[Do::Append(z), Do::Append(x)]);
    w.until("T2's access", World::holds_something);
    let vote = w.hold(move |from, to, message| {
        (from.node, to.node) == (b, a) && matches!(said(message), Some(Protocol::Vote(..)))
    });
    let t1 = w.ask_in(a, Some((w.session_in(0), 1)), &[Do::Append(x), Do::Append(y)]);
    w.run(millis(20));
    // A proposes to commit, and nobody agrees or denies.
    w.members(0).into_iter().for_each(|member| w.sever(member));
    w.release(vote);
    w.release(older);
    w.run(millis(7_000));
    let t2s = w.answer(t2).map(|answer| answer.status);
    if t2s != Some(OutcomeStatus::Busy) {
        return Err(format!("T2 waits for as long as it takes: {t2s:?}"));
    }
    let t1s = w.answer(t1).map(|answer| answer.status);
    assert_eq!(t1s, Some(OutcomeStatus::Unknown), "nobody can decide it");
    let t3 = w.ask(c, &[Do::Append(z)]);
    w.committed(t3);
    w.end()
}

#[test]
fn schedule_20_a_home_without_a_majority_stops_only_what_it_has_touched() {
    demand_sound(schedule_20);
    // With others nobody waits.
    for engine in [wait_die::ENGINE, regions_2pl::ENGINE] {
        assert!(schedule_20(engine, Bugs::NONE.with(Bug::WaitForEver)).is_err(), "{}", engine.name);
    }
}

/// A waiter dies with the leader that it waits at: T1 is promised at B1, an older T2 waits for it there and holds z at C. B changes
/// its leader: T2 is asked for anew under B2 before its attempt would have been given up.
fn schedule_20_waiter(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 3, bugs);
    let (y, x, z) = (w.list_in(0, 0), w.list_in(1, 0), w.list_in(2, 0));
    let (a, b1, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let older = w.hold(move |from, to, message| {
        (from.node, to.node) == (c, b1) && matches!(said(message), Some(Protocol::Access(_)))
    });
    let t2 = w.ask_in(c, Some((w.session_in(2), 1)), &[Do::Append(z), Do::Append(x)]);
    w.until("T2's access", World::holds_something);
    w.hold(move |from, to, message| {
        (from.node, to.node) == (b1, a) && matches!(said(message), Some(Protocol::Vote(..)))
    });
    let t1 = w.ask_in(a, Some((w.session_in(0), 1)), &[Do::Append(x), Do::Append(y)]);
    w.run(millis(20));
    w.release(older);
    w.run(millis(5));
    w.depose(b1);
    w.another_leads(1, b1);
    w.run(millis(500));
    let answers = [t1, t2].map(|txn| w.answer(txn).map(|answer| answer.status));
    if answers != [Some(OutcomeStatus::Committed); 2] {
        return Err(format!("the crash of a leader blocks for longer than its change: {answers:?}"));
    }
    w.end()
}

#[test]
fn schedule_20_a_waiter_dies_with_the_leader_that_it_waits_at() {
    demand_sound(schedule_20_waiter);
}

/// The node of a partition that leads it is another one in each schedule that takes its power: who stands first is fixed.
#[test]
fn who_leads_is_fixed() {
    let leaders =
        |engine| (0..3).map(|partition| World::new(engine, 3, Bugs::NONE).led_by(partition)).collect();
    let all: [Vec<NodeId>; 5] = ENGINES.map(leaders);
    assert!(all.iter().all(|leaders| *leaders == all[0]));
}
