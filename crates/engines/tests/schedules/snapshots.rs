//! The engines with snapshots, `walter` and `fwkv`: the schedules of the shared sheet on the commit family (commit.md), and where each scenario of
//! the sheet on these engines (fwkv.md, section 8) has its test. S is `snapshot_scenarios.rs` beside this file, C the tests of the control alone
//! (`engines/src/parallel_snapshots/tests.rs`), H and K and A `commit/src/heard.rs`, `known.rs` and `announcing.rs`.
//!
//! | scenario | tests |
//! |---|---|
//! | 1 | S `scenario_1_a_reader_that_has_missed_a_write_sees_nothing_of_it`; C `a_reader_that_has_missed_a_write_sees_nothing_that_follows_it` |
//! | 2 | S `scenario_2_what_is_missed_is_missed_over_three_partitions`; C `what_follows_a_missed_write_by_reading_it_is_missed_too` |
//! | 3 | C `a_reader_that_has_missed_a_write_sees_nothing_that_follows_it`: x is read twice |
//! | 4 | S `scenario_4_long_forks_are_seen_where_they_may_be` |
//! | 5 | S `scenario_5_write_skew_commits` |
//! | 6 | S `scenario_6_of_two_updates_of_one_version_one_begins_anew`; C `a_write_over_a_version_that_was_not_seen_is_refused` |
//! | 7 | S `scenario_7_updates_of_what_is_heard_of_late` |
//! | 8 | S `scenario_8_an_abort_between_two_commits_stops_nothing` |
//! | 9 | S `scenario_9_an_announcement_that_is_lost_is_told_again`; H `a_step_waits_for_the_decision_before_it`; A `what_was_heard_goes_into_the_log_once` |
//! | 10 | K `a_reader_that_is_over_is_not_taken_in_again`; A `others_are_told_of_readers_that_are_over` |
//! | 11 | S `scenario_11_a_coordinator_is_gone_after_its_decision` |
//! | 12 | S `scenario_12_a_participant_is_gone_while_a_reader_waits_there` |
//! | 13 | S `scenario_13_a_participant_is_started_again_that_a_reader_has_read`; here `schedule_6_what_a_reader_has_read_under_a_former_leader` |
//! | 14 | S as scenario 1, with records that are absent; C `readers_of_what_is_absent_and_of_all_records_are_taken_along` |
//! | 15 | S `scenario_15_records_that_go_and_come_back_under_readers` |
//! | 16 | S `scenario_16_a_client_sees_what_it_has_written_at_once`. No token moves to another node (fwkv.md of the docs, section 6) |
//! | 17 | S `scenario_17_a_blind_write_of_what_nobody_has_heard_of`; C `a_write_over_a_version_that_was_not_seen_is_refused` |
//! | 18 | S `scenario_18_a_reader_that_sleeps`; C `what_a_sleeping_reader_may_see_is_kept` |
//! | 19 | S `scenario_19_readers_of_all_partitions_in_a_storm_of_updates` |
//! | 20 | S `scenario_20_e1_…`, `…e2_…`, `…e4_…`; C `what_was_fixed_once_stays` |
//! | 21 | C `readers_of_a_hot_record_leave_nothing` |
//!
//! Errata have their tests in the table of `docs/protocols/fwkv.md`, section 4.

use ordain_commit::{CommitEngine, Message, Protocol};
use ordain_engines::registry::Engine;
use ordain_engines::{fwkv, walter};
use ordain_role::{Bug, Bugs};

use crate::world::{Do, Ticket, World};
use crate::{
    Schedule, connections, cuts, demand_of, demand_sound_of, expiry, hold_accesses, millis, overtaken, rows,
    said, scenarios, tables, versions,
};

pub const ENGINES: [CommitEngine; 2] = [walter::ENGINE, fwkv::ENGINE];
pub const FRESH: [CommitEngine; 1] = [fwkv::ENGINE];

/// A cluster whose homes tell others of their decisions a second late.
pub fn late(engine: CommitEngine, partitions: usize, bugs: Bugs) -> World {
    let built: Engine = engine.name.parse().expect("it is built");
    let options = built.options([("propagate-delay-us", "1000000")]).expect("options of it");
    World::with(engine, options, partitions, bugs)
}

/// Has a transaction that only reads begin at a node, and keeps its access to another one: what it reads elsewhere it has read. Answers it with
/// the number of what is held.
pub fn half_read(w: &mut World, [home, other]: [usize; 2], lists: &[u64]) -> (Ticket, u32) {
    let (home, other) = (w.led_by(home), w.led_by(other));
    let late = hold_accesses(w, home, other);
    let ops: Vec<Do> = lists.iter().copied().map(Do::Read).collect();
    let reader = w.ask(home, &ops);
    w.until("the access that is held", |w| w.holds_access(home, other));
    w.run(millis(5));
    (reader, late)
}

// ---- schedule 5 --------------------------------------------------------------------------------------------

/// A snapshot at a stale leader: B1 is deposed and does not know it. T9 writes y at B2 and z at C, and its client's node is A, which does not
/// know B2. T, of home A, reads z at C, where T9 is, and y at B1. `updates`: T writes at home, too.
fn at_a_stale_leader(engine: CommitEngine, bugs: Bugs, updates: bool) -> Result<(), String> {
    let mut w = World::new(engine, 3, bugs);
    let (own, y, z) = (w.list_in(0, 0), w.list_in(1, 0), w.list_in(2, 0));
    let (a, b1, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let members = w.members(1);
    w.hold(move |from, to, _| members.contains(&from.node) && from.node != b1 && to.node == a);
    w.depose(b1);
    w.another_leads(1, b1);
    let t9 = w.ask_in(a, Some((w.session_in(2), 1)), &[Do::Append(y), Do::Append(z)]);
    w.committed(t9);
    let t = match updates {
        true => w.ask_in(a, Some((w.session_in(0), 1)), &[Do::Read(z), Do::Read(y), Do::Append(own)]),
        false => w.ask(a, &[Do::Read(z), Do::Read(y)]),
    };
    w.run(millis(50));
    assert!(w.answer(t).is_none() || bugs != Bugs::NONE, "B1 proves nothing");
    assert_eq!(w.led_by(2), c);
    w.end()
}

#[test]
fn schedule_5_a_snapshot_is_not_read_at_a_stale_leader() {
    demand_of(&ENGINES, |engine, bugs| at_a_stale_leader(engine, bugs, false), Bug::ConfirmFromBelief);
    demand_of(&ENGINES, |engine, bugs| at_a_stale_leader(engine, bugs, true), Bug::VoteBeforeLog);
    // One partition: what only reads need not be fresh with the other engine.
    demand_sound_of(&ENGINES, crate::schedule_5);
    demand_of(&FRESH, crate::schedule_5, Bug::ConfirmFromBelief);
}

// ---- schedule 6 --------------------------------------------------------------------------------------------

/// Readers noted by a former leader: R has read x at B1, and T2 overwrites it under B2, which has no note of R, and z at C. R reads z as T2 has
/// left it: nobody confirms what it has read at B1.
#[test]
fn schedule_6_what_a_reader_has_read_under_a_former_leader() {
    demand_sound_of(&ENGINES, |engine, bugs| overtaken(engine, bugs, false));
    demand_of(&FRESH, |engine, bugs| overtaken(engine, bugs, false), Bug::ConfirmFromBelief);
}

/// A home that was deposed and does not know it: R, of A1, has read x at B. A2 leads; D hears of that, and B and C do not. T1 overwrites x and
/// names R. T2, of home D, reads x and writes z at C: for D no reader of A1 is alive, so its decision does not name R. R reads z as T2 has left
/// it. B and C lead still, so A1's own proof is all that is missing.
fn a_deposed_home(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 4, bugs);
    let (x, z) = (w.list_in(1, 0), w.list_in(2, 0));
    let (a1, b, c, d) = (w.led_by(0), w.led_by(1), w.led_by(2), w.led_by(3));
    let (r, late) = half_read(&mut w, [0, 2], &[x, z]);
    let members = w.members(0);
    w.hold(move |from, to, _| members.contains(&from.node) && from.node != a1 && [b, c].contains(&to.node));
    w.depose(a1);
    w.another_leads(0, a1);
    // A word of readers that are over comes 100 ms late.
    w.run(millis(200));
    let t1 = w.ask(b, &[Do::Append(x)]);
    w.committed(t1);
    w.run(millis(20));
    let t2 = w.ask_in(d, Some((w.session_in(3), 1)), &[Do::Read(x), Do::Append(z)]);
    w.committed(t2);
    w.run(millis(20));
    w.release(late);
    w.run(millis(50));
    // A snapshot names nobody, and needs nobody's word but that of B and C.
    let waits = engine.name == fwkv::ENGINE.name && bugs == Bugs::NONE;
    assert_eq!(w.answer(r).is_none(), waits, "A1 has no majority");
    w.end()
}

#[test]
fn schedule_6_a_reader_is_confirmed_by_its_home_too() {
    demand_sound_of(&ENGINES, a_deposed_home);
    demand_of(&FRESH, a_deposed_home, Bug::ConfirmFromBelief);
}

/// No barrier: B has no majority, and then has another leader. What does not touch B goes on all the time; nobody is asked whether it may.
fn no_barrier(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 3, bugs);
    let (x, y, z) = (w.list_in(0, 0), w.list_in(1, 0), w.list_in(2, 0));
    let (a, c) = (w.led_by(0), w.led_by(2));
    w.members(1).into_iter().for_each(|member| w.sever(member));
    w.run(millis(500));
    for nth in 0..5 {
        let asked = [
            w.ask(a, &[Do::Read(x), Do::Read(z)]),
            w.ask_in(c, Some((w.session_in(2), nth + 1)), &[Do::Append(z), Do::Append(x)]),
        ];
        w.run(millis(20));
        if asked.iter().any(|txn| w.answer(*txn).is_none()) {
            return Err("a partition without a majority stops others".to_owned());
        }
        asked.into_iter().for_each(|txn| w.committed(txn));
    }
    let waits = w.ask(a, &[Do::Read(x), Do::Read(y)]);
    w.run(millis(500));
    assert!(w.answer(waits).is_none(), "nobody confirms that");
    w.members(1).into_iter().for_each(|member| w.restore(member));
    w.committed(waits);
    w.end()
}

#[test]
fn schedule_6_a_partition_without_a_majority_stops_nobody_else() {
    demand_sound_of(&ENGINES, no_barrier);
}

// ---- schedule 14 -------------------------------------------------------------------------------------------

/// Numbers that are not agreed on: A1 proposes a dozen decisions and is cut off; A2 gives their numbers to others. T4, of home C, reads v at B
/// before T2, and x at A2 after it; T2 writes both, with a number that A1 has proposed. Were a proposed number told, T4's snapshot would have
/// T2's, and T4 half of T2.
fn numbers_not_agreed_on(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 3, bugs);
    let [x, v, own] = [0, 1, 2].map(|partition| w.list_in(partition, 0));
    let (a1, c) = (w.led_by(0), w.led_by(2));
    let members = w.members(0);
    let unheard = w.hold(move |from, to, message| {
        from.node == a1 && members.contains(&to.node) && to.node != a1 && matches!(message, Message::Group(_))
    });
    for nth in 1..=12 {
        w.ask(a1, &[Do::Append(w.list_in(0, nth))]);
    }
    w.run(millis(20));
    w.depose(a1);
    let a2 = w.another_leads(0, a1);
    let late = hold_accesses(&mut w, c, a2);
    let t4 = w.ask_in(c, Some((w.session_in(2), 1)), &[Do::Read(v), Do::Read(x), Do::Append(own)]);
    w.run(millis(5));
    let t2 = w.ask_in(a2, Some((w.session_in(0), 1)), &[Do::Append(x), Do::Append(v)]);
    w.committed(t2);
    w.run(millis(20));
    w.release(late);
    w.committed(t4);
    w.release(unheard);
    w.end()
}

#[test]
fn schedule_14_a_number_that_is_not_agreed_on_is_told_to_nobody() {
    demand_sound_of(&ENGINES, numbers_not_agreed_on);
}

// ---- the others --------------------------------------------------------------------------------------------

/// A schedule or scenario, and the bug that it finds with each of the engines here, if there is one.
type Common = (&'static str, Schedule, Option<Bug>);

/// Those that concern terms, promises and decisions, connections, time, whole tables and cuts (1 to 4, 7, 11, 15 to 20). Schedule 1 and
/// schedule 11 rest on shared locks and marks of reads, of which these engines have none: they show that nothing else breaks. Those of
/// `scenarios.rs` that are about waiting readers, or refusals without a wait, are none of these engines'.
const COMMON: [Common; 30] = [
    ("1", crate::schedule_1, None),
    ("2", crate::schedule_2, Some(Bug::KeepClaim)),
    ("3", crate::schedule_3, Some(Bug::AckEarly)),
    ("4", crate::schedule_4, Some(Bug::ForgetLocks)),
    ("7", crate::schedule_7, Some(Bug::ForgetSession)),
    ("7, undecided", crate::schedule_7_undecided, Some(Bug::ForgetSession)),
    ("11", crate::schedule_11, None),
    ("15", versions::schedule_15, Some(Bug::CountVersions)),
    ("16", connections::updates_in_a_pipeline, Some(Bug::ForgetStay)),
    ("17", expiry::with_one_leader, Some(Bug::LookBack)),
    ("17, over a change", expiry::over_a_change_of_leaders, Some(Bug::ForgetCeiling)),
    ("18, KEYS", tables::starved_keys, Some(Bug::PassTable)),
    ("18, inserts", tables::two_inserts, Some(Bug::LockTable)),
    ("18, a survey", tables::a_survey, Some(Bug::GrantLockEarly)),
    ("18, a clearing", tables::a_clearing, None),
    ("18, a swap", tables::a_swap, None),
    ("18, the next leader", tables::a_clearing_under_the_next_leader, Some(Bug::ForgetLocks)),
    ("19, heard", cuts::schedule_19_heard, Some(Bug::KeepCut)),
    ("19, marked", cuts::schedule_19_marked, Some(Bug::MarkLate)),
    ("20", crate::schedule_20, Some(Bug::WaitForEver)),
    ("20, a waiter", crate::schedule_20_waiter, None),
    ("late access", scenarios::late_access, Some(Bug::KeepOldLocks)),
    ("a former leader", scenarios::update_at_a_former_leader, None),
    ("untold", scenarios::untold, None),
    ("fails at the end", scenarios::fails_at_the_end, Some(Bug::IgnoreRemoteVote)),
    ("only elsewhere", scenarios::only_elsewhere, None),
    ("a lost answer", rows::lost_answer, None),
    ("lost votes", rows::lost_votes, None),
    ("a full disk", rows::full_disk_of_a_leader, None),
    ("full disks", rows::full_disks, None),
];

fn demand_common(range: std::ops::Range<usize>) {
    for (name, schedule, bug) in &COMMON[range] {
        for engine in ENGINES {
            assert_eq!(schedule(engine, Bugs::NONE), Ok(()), "{}: {name}", engine.name);
            let found = bug.map(|bug| schedule(engine, Bugs::NONE.with(bug)));
            assert!(found != Some(Ok(())), "{}: the bug of {name} is not found", engine.name);
        }
    }
}

#[test]
fn schedules_1_to_16_hold_with_snapshots() {
    demand_common(0..9);
}

/// What only reads waits for T0 too where it sees the newest.
#[test]
fn schedule_16_holds_for_readers_of_the_newest() {
    demand_of(&FRESH, connections::schedule_16, Bug::ForgetStay);
}

#[test]
fn schedules_17_to_20_hold_with_snapshots() {
    demand_common(9..21);
}

#[test]
fn scenarios_of_two_phase_commit_hold_with_snapshots() {
    demand_common(21..COMMON.len());
}

/// An announcement is told a second late here, and nothing else is.
#[test]
fn announcements_are_late_where_they_are_to_be() {
    for engine in ENGINES {
        let mut w = late(engine, 2, Bugs::NONE);
        let (a, x) = (w.led_by(0), w.list_in(0, 0));
        let told = w.hold(|_, _, message| matches!(said(message), Some(Protocol::Announce(1.., ..))));
        let t1 = w.ask(a, &[Do::Append(x)]);
        w.committed(t1);
        w.run(millis(990));
        assert!(!w.holds_something());
        w.run(millis(20));
        assert!(w.holds_something());
        w.release(told);
        assert_eq!(w.end(), Ok(()));
    }
}
