//! What becomes of messages that are lost, and of a full disk: events of the table in `docs/protocols/two-phase-commit.md`, section 5, that
//! neither a schedule nor a scenario has.

use ordain_commit::{CommitEngine, Protocol, Stamps};
use ordain_engines::{occ_2pc, regions_2pl};
use ordain_model::OutcomeStatus;
use ordain_role::Bugs;

use crate::world::{Do, World};
use crate::{LOCKING, demand_sound, demand_sound_of, millis, said};

/// B's answer to T1 is lost with a stream: T1 is made anew at once, and not when it would have been given up.
pub(crate) fn lost_answer(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 2, bugs);
    let (y, x) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let lost = w.hold(move |from, to, message| {
        (from.node, to.node) == (b, a) && matches!(said(message), Some(Protocol::Accessed(_)))
    });
    let t1 = w.ask(a, &[Do::Append(y), Do::Append(x)]);
    w.until("B's answer", World::holds_something);
    w.renew(a, b);
    w.release(lost);
    w.run(millis(100));
    if w.answer(t1).map(|answer| answer.status) != Some(OutcomeStatus::Committed) {
        return Err(format!("T1 waits for what is lost: {:?}", w.answer(t1)));
    }
    w.end()
}

#[test]
fn an_attempt_whose_answers_may_be_lost_is_made_anew() {
    demand_sound(lost_answer);
}

/// The end of T1, which has only read x at B, is lost with a stream: A names the attempts that are under way, and B ends the others.
pub(crate) fn lost_end(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 2, bugs);
    let (y, x) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let lost = w.hold(move |from, to, message| {
        (from.node, to.node) == (a, b) && matches!(said(message), Some(Protocol::Finish(..)))
    });
    let t1 = w.ask(a, &[Do::Read(y), Do::Read(x)]);
    w.committed(t1);
    w.until("the end", World::holds_something);
    let t2 = w.ask(b, &[Do::Append(x)]);
    w.run(millis(50));
    assert!(w.answer(t2).is_none(), "T1 holds x at B");
    w.renew(a, b);
    w.release(lost);
    w.run(millis(50));
    if w.answer(t2).map(|answer| answer.status) != Some(OutcomeStatus::Committed) {
        return Err("B holds what nobody uses".to_owned());
    }
    w.end()
}

#[test]
fn an_attempt_whose_end_is_lost_is_over_where_it_is_not_named() {
    // Another engine holds nothing of what has only read.
    demand_sound_of(&LOCKING, lost_end);
    demand_sound_of(&[regions_2pl::ENGINE, occ_2pc::ENGINE], lost_end);
}

/// A vote and a decision are lost with streams: B asks for what it has promised, and A tells again what is not acknowledged.
pub(crate) fn lost_votes(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    for is_vote in [true, false] {
        let mut w = World::new(engine, 2, bugs);
        let (y, x) = (w.list_in(0, 0), w.list_in(1, 0));
        let (a, b) = (w.led_by(0), w.led_by(1));
        let lost = w.hold(move |from, to, message| match said(message) {
            Some(Protocol::Vote(..)) => is_vote && (from.node, to.node) == (b, a),
            Some(Protocol::Decide(..)) => !is_vote && (from.node, to.node) == (a, b),
            _ => false,
        });
        let t1 = w.ask(a, &[Do::Append(y), Do::Append(x)]);
        w.until("a vote or a decision", World::holds_something);
        w.renew(a, b);
        w.release(lost);
        let t2 = w.ask(b, &[Do::Read(x)]);
        w.run(millis(100));
        let answers = [t1, t2].map(|txn| w.answer(txn).map(|answer| answer.status));
        if answers != [Some(OutcomeStatus::Committed); 2] {
            return Err(format!("x is held for what was lost: {answers:?}"));
        }
        w.end()?;
    }
    Ok(())
}

#[test]
fn a_vote_or_a_decision_that_is_lost_is_asked_for() {
    demand_sound(lost_votes);
}

/// True if attempts of an engine have stamps, which their home may have to reserve.
fn has_stamps(engine: CommitEngine) -> bool {
    engine.stamps() != Stamps::OfTransaction
}

/// The disk of a leader is full: another member takes its place, and what it was asked for is answered in time. What it had proposed to
/// commit it may not hear of again before it has space: the end of that is not known. With stamps it may have found its disk full before, when
/// it was to reserve some.
pub(crate) fn full_disk_of_a_leader(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let (committed, unknown) = (OutcomeStatus::Committed, OutcomeStatus::Unknown);
    let at_home = if has_stamps(engine) { [unknown, committed] } else { [unknown; 2] };
    for (partition, expected) in [(1, [committed; 2]), (0, at_home)] {
        let mut w = World::new(engine, 2, bugs);
        let (y, x) = (w.list_in(0, 0), w.list_in(1, 0));
        let (a, full) = (w.led_by(0), w.led_by(partition));
        w.fill(full, true);
        let t1 = w.ask(a, &[Do::Append(y), Do::Append(x)]);
        w.run(millis(5_500));
        if w.answer(t1).is_none_or(|answer| !expected.contains(&answer.status)) {
            return Err(format!("the leader of {partition} has a full disk: {:?}", w.answer(t1)));
        }
        let a = w.led_by(0);
        assert!(w.led_by(partition) != full, "another member leads");
        let t2 = w.ask(a, &[Do::Read(y), Do::Append(x)]);
        w.committed(t2);
        w.fill(full, false);
        w.run(millis(3_000));
        w.end()?;
    }
    Ok(())
}

#[test]
fn what_a_leader_with_a_full_disk_was_asked_for_is_answered() {
    demand_sound(full_disk_of_a_leader);
}

/// All disks of a partition are full: it promises nothing, and commits nothing. What it was asked for takes effect at both partitions once there
/// is space, or at none.
pub(crate) fn full_disks(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let (busy, unknown) = (OutcomeStatus::Busy, OutcomeStatus::Unknown);
    let at_home = if has_stamps(engine) { [unknown, busy] } else { [unknown; 2] };
    for (partition, expected) in [(1, [busy; 2]), (0, at_home)] {
        let mut w = World::new(engine, 2, bugs);
        let (y, x) = (w.list_in(0, 0), w.list_in(1, 0));
        let a = w.led_by(0);
        w.members(partition).into_iter().for_each(|member| w.fill(member, true));
        let t1 = w.ask(a, &[Do::Append(y), Do::Append(x)]);
        w.run(millis(7_000));
        if w.answer(t1).is_none_or(|answer| !expected.contains(&answer.status)) {
            return Err(format!("all disks of {partition} are full: {:?}", w.answer(t1)));
        }
        w.members(partition).into_iter().for_each(|member| w.fill(member, false));
        w.until("a leader", |w| w.leader(partition).is_some());
        w.run(millis(1_000));
        let a = w.led_by(0);
        let t2 = w.ask(a, &[Do::Read(y), Do::Append(x)]);
        w.committed(t2);
        w.end()?;
    }
    Ok(())
}

#[test]
fn full_disks_stop_what_touches_their_partition_and_leave_nothing_half_done() {
    demand_sound(full_disks);
}
