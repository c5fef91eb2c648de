//! Schedule 12 and what else concerns stamps (R-CEILING): reads leave no trace in a log, and clocks differ.

use ordain_commit::{CommitEngine, Message, Relay};
use ordain_engines::{maat, mvcc, timestamp};
use ordain_role::{Bug, Bugs};

use crate::world::{Do, World};
use crate::{Schedule, connections, cuts, expiry, millis, rows, scenarios, tables, versions};

/// The engines whose attempts have stamps, before they run or when they commit.
const ENGINES: [CommitEngine; 3] = [timestamp::ENGINE, mvcc::ENGINE, maat::ENGINE];

/// Read marks that are lost: T1 reads x at B1, whose clock is ahead. B changes its leader. T2, whose home's clock is not ahead, writes x
/// at B2, which has never heard of T1's stamp: it must not be placed before T1.
fn schedule_12_lost_reads(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 2, bugs);
    let x = w.list_in(0, 0);
    let (b1, c) = (w.led_by(0), w.led_by(1));
    w.set_ahead(b1, millis(5_000));
    let t1 = w.ask(b1, &[Do::Read(x)]);
    w.committed(t1);
    w.depose(b1);
    w.another_leads(0, b1);
    let t2 = w.ask_in(c, Some((w.session_in(1), 1)), &[Do::Append(x)]);
    w.committed(t2);
    w.end()
}

/// A clock that goes back: A1, whose clock is ahead, gives a stamp to T1. A2, whose clock is not, gives a later one to T2.
fn schedule_12_clock_goes_back(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 2, bugs);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let a1 = w.led_by(0);
    w.set_ahead(a1, millis(5_000));
    let t1 = w.ask_in(a1, Some((w.session_in(0), 1)), &[Do::Append(x), Do::Append(y)]);
    w.committed(t1);
    w.depose(a1);
    let a2 = w.another_leads(0, a1);
    let t2 = w.ask_in(a2, Some((w.session_in(0), 2)), &[Do::Read(y), Do::Append(x)]);
    w.committed(t2);
    w.end()
}

#[test]
fn schedule_12_what_a_former_leader_let_be_read_is_not_written_before() {
    let schedule: Schedule = schedule_12_lost_reads;
    for engine in ENGINES {
        assert_eq!(schedule(engine, Bugs::NONE), Ok(()), "{}", engine.name);
        if engine.name == "maat" {
            // Clocks tell nothing of stamps that are chosen late: they rise with the ceilings alone.
            continue;
        }
        let found = schedule(engine, Bugs::NONE.with(Bug::ForgetCeiling)).unwrap_err();
        assert!(found.contains("order of stamps broken"), "{}: {found}", engine.name);
    }
}

#[test]
fn schedule_12_a_leader_gives_later_stamps_than_its_predecessor() {
    for engine in ENGINES {
        assert_eq!(schedule_12_clock_goes_back(engine, Bugs::NONE), Ok(()), "{}", engine.name);
    }
}

/// Found by the simulator (`--seed 2 --profile storm --txns 400`): T2 is answered, and the answer is lost with its leader. The next leader has T2
/// in its own relay, and takes it as soon as it leads: by then its clock must have heard of its predecessor's stamps.
fn found_again(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut is_own = 0;
    for nth in 0..2 {
        let mut w = World::new(engine, 1, bugs);
        let (x, a1) = (w.list_in(0, 0), w.led_by(0));
        let door = w.members(0).into_iter().filter(|node| *node != a1).nth(nth).expect("three members");
        let t1 = w.ask(door, &[Do::Append(x)]);
        w.committed(t1);
        w.hold(move |from, to, message| {
            (from.node, to.node) == (a1, door) && matches!(message, Message::Relay(Relay::Outcomes(..)))
        });
        let t2 = w.ask_in(door, Some((w.session_in(0), 1)), &[Do::Read(x), Do::Append(x)]);
        w.until("the answer", World::holds_something);
        w.depose(a1);
        is_own += u32::from(w.another_leads(0, a1) == door);
        w.committed(t2);
        w.end()?;
    }
    assert_eq!(is_own, 1, "one of the members leads then");
    Ok(())
}

#[test]
fn schedule_12_a_new_leader_knows_of_stamps_before_it_takes_anything() {
    for engine in ENGINES {
        assert_eq!(found_again(engine, Bugs::NONE), Ok(()), "{}", engine.name);
    }
}

/// The schedules about terms, promises and decisions. The bug of the first is none here: a write under the next leader has a
/// larger stamp than what was read under the former one, which is refused elsewhere for it.
#[test]
fn schedules_1_to_7_hold_with_stamps() {
    for engine in ENGINES {
        schedules_hold(engine);
    }
}

fn schedules_hold(engine: CommitEngine) {
    let name = engine.name;
    assert_eq!(crate::schedule_1(engine, Bugs::NONE), Ok(()), "{name}");
    let all: [(Schedule, Bug); 5] = [
        (crate::schedule_2, Bug::KeepClaim),
        (crate::schedule_3, Bug::AckEarly),
        (crate::schedule_4, Bug::ForgetLocks),
        (crate::schedule_7, Bug::ForgetSession),
        (crate::schedule_7_undecided, Bug::ForgetSession),
    ];
    for (schedule, bug) in all {
        assert_eq!(schedule(engine, Bugs::NONE), Ok(()), "{name} {}", bug.name());
        assert!(schedule(engine, Bugs::NONE.with(bug)).is_err(), "{name}: {} is not found", bug.name());
    }
}

/// A schedule or scenario that concerns more than locks, with the bug that it finds with each of the engines here, if there is one.
type Common = (Schedule, Option<Bug>);

/// Demands that schedules are sound with each engine, and are not with the bugs.
fn demand_common(all: &[Common]) {
    for (nth, (schedule, bug)) in all.iter().enumerate() {
        for engine in ENGINES {
            let name = engine.name;
            assert_eq!(schedule(engine, Bugs::NONE), Ok(()), "{name}: the schedule at {nth}");
            let found = bug.map(|bug| (bug.name(), schedule(engine, Bugs::NONE.with(bug)).is_err()));
            assert!(found.is_none_or(|(_, found)| found), "{name}: {found:?}");
        }
    }
}

#[test]
fn scenarios_of_two_phase_commit_hold_with_stamps() {
    demand_common(&[
        (scenarios::write_skew, Some(Bug::GrantLockEarly)),
        (scenarios::late_access, Some(Bug::KeepOldLocks)),
        (scenarios::update_at_a_former_leader, None),
        (scenarios::untold, None),
        (scenarios::fails_at_the_end, Some(Bug::IgnoreRemoteVote)),
        (scenarios::only_elsewhere, None),
        (rows::lost_answer, None),
        (rows::lost_votes, None),
        (rows::full_disk_of_a_leader, None),
        (rows::full_disks, None),
    ]);
}

#[test]
fn schedules_15_to_19_hold_with_stamps() {
    demand_common(&[
        (versions::schedule_15, Some(Bug::CountVersions)),
        (connections::schedule_16, Some(Bug::ForgetStay)),
        (expiry::with_one_leader, None),
        (expiry::over_a_change_of_leaders, None),
        (tables::starved_keys, None),
        (tables::two_inserts, Some(Bug::LockTable)),
        (tables::a_survey, Some(Bug::GrantLockEarly)),
        (tables::a_clearing, None),
        (tables::a_swap, None),
        (tables::a_clearing_under_the_next_leader, Some(Bug::ForgetLocks)),
        (cuts::schedule_19_heard, Some(Bug::KeepCut)),
        (cuts::schedule_19_marked, Some(Bug::MarkLate)),
    ]);
}

/// Changes of whole databases wait for smaller prewrites, where attempts have stamps before they run.
#[test]
fn schedule_18_a_change_of_all_databases_does_not_overtake_what_is_promised() {
    for engine in [timestamp::ENGINE, mvcc::ENGINE] {
        for schedule in [tables::a_clearing, tables::a_swap] {
            let found = schedule(engine, Bugs::NONE.with(Bug::GrantLockEarly));
            assert!(found.is_err(), "{}", engine.name);
        }
    }
}
