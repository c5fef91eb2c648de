//! Schedules on the engine whose stamps are chosen when attempts commit: 13, what it finds alone, and that it does not keep real time.
//! Schedules that it shares with other engines with stamps are in `stamps.rs`.

use ordain_commit::{Age, Content, Protocol};
use ordain_engines::maat::ENGINE;
use ordain_model::{Micros, Millis};
use ordain_role::{Bug, Bugs};

use crate::world::{Do, World};
use crate::{Schedule, expiry, millis, said, scenarios, tables};

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
fn schedule_18_a_survey_comes_through_a_stream_of_writers() {
    demand(tables::starved_keys, Bug::PassTable);
}

/// Scenario 18 of baselines.md: attempt 2 while answers to attempt 1 are on their way.
#[test]
fn scenario_18_answers_to_an_earlier_attempt_are_not_taken_for_those_of_the_next() {
    demand(scenarios::late_answers, Bug::TakeStale);
}

/// No clock is ahead, and yet real time is not kept: T1 is answered before what it has written at B is installed, and T2 of a client at another
/// node, which comes afterwards, reads x there and takes effect before T1. The order of stamps and that of each connection are kept.
#[test]
fn a_transaction_may_take_effect_before_one_that_was_answered() {
    let mut w = World::new(ENGINE, 3, Bugs::NONE);
    let (y, x) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    // Ceilings are as they are while something happens; the next ones are agreed on a while later.
    for (number, list) in [(1, x), (2, y)] {
        let first = w.ask_in(a, Some((w.session_in(0), number)), &[Do::Append(list)]);
        w.committed(first);
    }
    w.run(millis(250));
    // A has heard of stamps, so that there are some before T1's.
    let before = w.ask_in(a, Some((w.session_in(0), 3)), &[Do::Append(y)]);
    w.committed(before);
    w.hold(move |from, to, message| {
        (from.node, to.node) == (a, b) && matches!(said(message), Some(Protocol::Decide(..)))
    });
    let t1 = w.ask_in(a, Some((w.session_in(0), 4)), &[Do::Append(y), Do::Append(x)]);
    w.committed(t1);
    w.until("the decision", World::holds_something);
    let t2 = w.ask(c, &[Do::Read(x)]);
    w.committed(t2);
    assert!(w.stamp(t2) < w.stamp(t1));
    assert_eq!(w.end_within([Micros(0), millis(60_000)]), Ok([false, true]));
}
