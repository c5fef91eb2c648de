//! Schedules on the engine whose stamps are chosen when attempts commit: 13, and those of expiry, whole tables and cuts.

use ordain_commit::{Age, Content};
use ordain_engines::maat::ENGINE;
use ordain_model::Millis;
use ordain_role::{Bug, Bugs};

use crate::world::{Do, World};
use crate::{Schedule, cuts, expiry, millis, tables};

/// The ceiling that the log of a partition's leader has agreed on, and whether a promise or decision has raised it.
fn ceiling(w: &mut World, partition: usize) -> (Millis, bool) {
    let log = w.log(partition);
    log.iter().fold((Millis(0), false), |(ceiling, raised), entry| match &entry.content {
        Content::Reserve(to) => (ceiling.max(*to), raised),
        Content::Prepare(prepare) => (ceiling.max(prepare.ceiling), raised || prepare.ceiling > ceiling),
        Content::Commit(commit) => (ceiling.max(commit.ceiling), raised || commit.ceiling > ceiling),
        _ => (ceiling, raised),
    })
}

/// A floor far above another partition's ceiling: B1's clock is an hour ahead, so the floor of B2 is. T writes at A and at B: its stamp is above
/// A's ceiling, which A raises in the force of its promise or decision, and nobody is refused for ever.
fn schedule_13(home: usize) -> Result<(), String> {
    let mut w = World::new(ENGINE, 2, Bugs::NONE);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let b1 = w.led_by(1);
    w.set_ahead(b1, millis(3_600_000));
    // An hour is reserved at B: somebody looks at what expires there.
    let k = w.key_in(1, 0);
    let t1 = w.command(b1, ordain_commands::ids::SET, &[&k, b"v", b"PX", b"9000"]);
    w.committed(t1);
    let t2 = w.command(b1, ordain_commands::ids::GET, &[&k]);
    w.committed(t2);
    w.depose(b1);
    w.another_leads(1, b1);
    w.set_ahead(b1, millis(0));
    let (of_a, of_b) = (ceiling(&mut w, 0).0, ceiling(&mut w, 1).0);
    assert!(of_b.0 > of_a.0 + 3_000_000, "{of_a:?} {of_b:?}");
    let node = w.led_by(home);
    let session = w.session_in(home);
    let t3 = w.ask_in(node, Some((session, 1)), &[Do::Append(x), Do::Append(y)]);
    w.run(millis(100));
    assert!(w.answer(t3).is_some(), "it is not refused for ever");
    w.committed(t3);
    w.run(millis(20));
    let stamp = Age(w.stamp(t3));
    assert!(stamp >= Age::first_at(of_b), "it is behind whatever B1 has let be read");
    // Disks know what is agreed on by what comes after it.
    let t4 = w.ask_in(node, Some((session, 2)), &[Do::Append(x), Do::Read(y)]);
    w.committed(t4);
    w.run(millis(20));
    let (of_a, is_raised) = ceiling(&mut w, 0);
    assert!(is_raised && stamp < Age::first_at(of_a), "{of_a:?}");
    w.end()
}

#[test]
fn schedule_13_a_ceiling_rises_in_the_force_of_a_promise_or_decision() {
    assert_eq!(schedule_13(1), Ok(()), "A promises");
    assert_eq!(schedule_13(0), Ok(()), "A decides");
}

/// Demands that a schedule is sound, and is not with a bug.
fn demand(schedule: Schedule, bug: Bug) {
    assert_eq!(schedule(ENGINE, Bugs::NONE), Ok(()));
    assert!(schedule(ENGINE, Bugs::NONE.with(bug)).is_err(), "{} is not found", bug.name());
}

#[test]
fn schedule_17_what_has_expired_for_one_is_gone_for_all_who_come_after() {
    demand(expiry::with_one_leader, Bug::LookBack);
    demand(expiry::over_a_change_of_leaders, Bug::ForgetCeiling);
}

#[test]
fn schedule_18_whole_tables_and_inserts() {
    demand(tables::starved_keys, Bug::PassTable);
    demand(tables::two_inserts, Bug::LockTable);
    demand(tables::a_survey, Bug::GrantLockEarly);
    // Changes of whole databases and writes of records are never validated together.
    assert_eq!(tables::a_clearing(ENGINE, Bugs::NONE), Ok(()));
    assert_eq!(tables::a_swap(ENGINE, Bugs::NONE), Ok(()));
    demand(tables::a_clearing_under_the_next_leader, Bug::ForgetLocks);
}

#[test]
fn schedule_19_a_cut_is_heard_of_and_marked_before_what_comes_after_it() {
    demand(cuts::schedule_19_heard, Bug::KeepCut);
    demand(cuts::schedule_19_marked, Bug::MarkLate);
}
