//! The scenarios of the sheet (baselines.md, section 8) that concern locks and two-phase commit, by number, and rows of its section 4.10.
//! Scenarios 1, 3, 4, 5, 22 and 26 of the locks alone are in `engines/tests/locks/scenarios.rs`, scenario 25 is the transcript
//! `conformance/transcripts/direct/scenario_25_one_key.resp`. The others are of stamps, versions and intervals.

use ordain_commit::{CommitEngine, Protocol};
use ordain_engines::wait_die;
use ordain_model::{Abort, OutcomeStatus};
use ordain_role::{Bug, Bugs, NodeId};

use crate::world::{Do, Ticket, World};
use crate::{
    LOCKING, OPTIMISTIC, demand, demand_of, demand_sound, demand_sound_of, hold_accesses, millis, overtaken,
    said,
};

/// Holds the votes that one node gives another.
fn hold_votes(w: &mut World, from: NodeId, to: NodeId) -> u32 {
    w.hold(move |sender, receiver, message| {
        (sender.node, receiver.node) == (from, to) && matches!(said(message), Some(Protocol::Vote(..)))
    })
}

/// A transaction with the home D that is promised at C, where it has z: C's votes for D are held. Answers the number of that.
fn hold_z(w: &mut World, z: u64) -> (Ticket, u32) {
    let (c, d) = (w.led_by(2), w.led_by(3));
    let vote = hold_votes(w, c, d);
    let t0 = w.ask_in(d, Some((w.session_in(3), 1)), &[Do::Append(w.list_in(3, 0)), Do::Append(z)]);
    w.until("T0's vote", World::holds_something);
    (t0, vote)
}

/// Write skew: each of two transactions reads what the other one writes, at two partitions.
pub(crate) fn write_skew(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 2, bugs);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let t1 = w.ask(a, &[Do::Read(x), Do::Append(y)]);
    let t2 = w.ask(b, &[Do::Read(y), Do::Append(x)]);
    [t1, t2].into_iter().for_each(|txn| w.committed(txn));
    w.end()
}

#[test]
fn scenario_2_write_skew_over_two_partitions() {
    // Another engine has attempts wait in a circle over two nodes, until they are given up.
    demand_of(&LOCKING, write_skew, Bug::GrantLockEarly);
    demand_of(&OPTIMISTIC, write_skew, Bug::GrantLockEarly);
}

/// Of scenario 6 what concerns locks: T1 is promised at B, and the leader of its home is gone before it has decided. T2, which is older,
/// wants x at B.
pub(crate) fn undecided(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 3, bugs);
    let (y, x, z) = (w.list_in(0, 0), w.list_in(1, 0), w.list_in(2, 0));
    let (a1, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let older = hold_accesses(&mut w, c, b);
    let t2 = w.ask_in(c, Some((w.session_in(2), 1)), &[Do::Append(z), Do::Read(x)]);
    w.until("T2's access", World::holds_something);
    hold_votes(&mut w, b, a1);
    let t1 = w.ask_in(a1, Some((w.session_in(0), 1)), &[Do::Append(x), Do::Append(y)]);
    w.run(millis(20));
    assert_eq!(w.gauge(b, "ordain_cohort_prepared"), 1.0, "T1 is promised");
    w.release(older);
    w.run(millis(20));
    assert!(w.answer(t2).is_none(), "x is held");
    w.depose(a1);
    w.another_leads(0, a1);
    w.run(millis(200));
    if w.answer(t2).map(|answer| answer.status) != Some(OutcomeStatus::Committed) {
        return Err("what is promised is held for longer than a change of the home's leader".to_owned());
    }
    assert!(w.answer(t1).is_none(), "its front door is cut off");
    w.end()
}

#[test]
fn scenario_6_the_home_of_a_promise_is_gone_before_it_has_decided() {
    demand_sound(undecided);
}

/// An abort on its way behind the access that it undoes: T1 is refused by C until it is given up, and all that A sends to B is late.
pub(crate) fn late_access(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 4, bugs);
    let (y, x, z) = (w.list_in(0, 0), w.list_in(1, 0), w.list_in(2, 0));
    let (a, b) = (w.led_by(0), w.led_by(1));
    // T0's home has no majority: z stays held.
    let (_, vote) = hold_z(&mut w, z);
    w.members(3).into_iter().for_each(|member| w.sever(member));
    w.release(vote);
    let late = hold_accesses(&mut w, a, b);
    let t1 = w.ask(a, &[Do::Append(y), Do::Append(x), Do::Append(z)]);
    if w.answered(t1).status != OutcomeStatus::Busy {
        return Err(format!("T1 was to be given up: {:?}", w.answered(t1)));
    }
    w.release(late);
    w.run(millis(5));
    let t2 = w.ask(b, &[Do::Append(x)]);
    w.run(millis(100));
    if w.answer(t2).is_none() {
        return Err("an attempt that is over holds x".to_owned());
    }
    w.end()
}

#[test]
fn scenario_17_an_access_comes_after_its_attempt_was_aborted_elsewhere() {
    demand(late_access, Bug::KeepOldLocks);
}

/// Answers to earlier attempts: those of B are late while C refuses T1 again and again. T2 writes what T1 has read at B, and then T1
/// is let in everywhere.
pub(crate) fn late_answers(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 4, bugs);
    let (y, x, z) = (w.list_in(0, 0), w.list_in(1, 0), w.list_in(2, 0));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let (t0, vote) = hold_z(&mut w, z);
    let answers = w.hold(move |from, to, message| {
        (from.node, to.node) == (b, a) && matches!(said(message), Some(Protocol::Accessed(_)))
    });
    let t1 = w.ask_in(a, Some((w.session_in(0), 1)), &[Do::Append(y), Do::Read(x), Do::Append(z)]);
    w.run(millis(20));
    assert!(w.gauge(a, "ordain_coordinator_attempts_total") > 2.0, "T1 is tried again");
    let t2 = w.ask_in(c, Some((w.session_in(2), 1)), &[Do::Append(x), Do::Append(y)]);
    w.committed(t2);
    w.release(vote);
    w.committed(t0);
    w.run(millis(50));
    assert!(w.answer(t1).is_none(), "B's answers are late");
    w.release(answers);
    w.committed(t1);
    w.end()
}

#[test]
fn scenario_18_answers_to_an_earlier_attempt_are_not_taken_for_those_of_the_next() {
    demand_of(&LOCKING, late_answers, Bug::TakeStale);
}

/// A change of a participant's leader between a read and its commit: B1 must not confirm that it leads.
fn read_of_a_former_leader(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    overtaken(engine, bugs, false)
}

#[test]
fn scenario_19_a_participant_changes_its_leader_between_a_read_and_its_commit() {
    demand(read_of_a_former_leader, Bug::ConfirmFromBelief);
}

/// The same of an update: what B1 had run and not promised is gone, and A makes another attempt as soon as it hears of B2.
pub(crate) fn update_at_a_former_leader(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 3, bugs);
    let (y, x, z) = (w.list_in(0, 0), w.list_in(1, 0), w.list_in(2, 0));
    let (a, b1, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let late = hold_accesses(&mut w, a, c);
    let t1 = w.ask(a, &[Do::Append(y), Do::Append(x), Do::Append(z)]);
    w.until("T1's access", World::holds_something);
    w.run(millis(5));
    w.depose(b1);
    w.another_leads(1, b1);
    w.release(late);
    w.run(millis(100));
    if w.answer(t1).map(|answer| answer.status) != Some(OutcomeStatus::Committed) {
        return Err(format!("T1 has waited for a former leader: {:?}", w.answer(t1)));
    }
    w.end()
}

#[test]
fn scenario_19_an_update_that_a_former_leader_had_not_promised_is_made_anew() {
    demand_sound(update_at_a_former_leader);
}

/// A coordinator that is gone after its COMMIT is agreed on and before it has told anybody.
pub(crate) fn untold(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 2, bugs);
    let (y, x) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a1, b) = (w.led_by(0), w.led_by(1));
    w.hold(move |from, to, message| {
        (from.node, to.node) == (a1, b) && matches!(said(message), Some(Protocol::Decide(..)))
    });
    let t1 = w.ask_in(a1, Some((w.session_in(0), 1)), &[Do::Append(x), Do::Append(y)]);
    w.committed(t1);
    w.depose(a1);
    let t2 = w.ask(b, &[Do::Read(x), Do::Append(x)]);
    w.run(millis(20));
    assert!(w.answer(t2).is_none(), "x is held");
    w.another_leads(0, a1);
    w.run(millis(50));
    if w.answer(t2).map(|answer| answer.status) != Some(OutcomeStatus::Committed) {
        return Err("B has not been told by the successor".to_owned());
    }
    assert_eq!(w.gauge(b, "ordain_cohort_prepared"), 0.0);
    w.end()
}

#[test]
fn scenario_21_a_coordinator_is_gone_before_it_has_told_of_its_decision() {
    demand_sound(untold);
}

/// A no while another participant keeps its answer back: C refuses T1, which waits at B for the younger T3.
fn refused_while_waiting(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 4, bugs);
    let (y, x, z) = (w.list_in(0, 0), w.list_in(1, 0), w.list_in(2, 0));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let (t0, vote_of_c) = hold_z(&mut w, z);
    let late = hold_accesses(&mut w, a, b);
    let t1 = w.ask(a, &[Do::Append(y), Do::Append(x), Do::Append(z)]);
    let vote_of_b = hold_votes(&mut w, b, c);
    let t3 = w.ask_in(c, Some((w.session_in(2), 1)), &[Do::Append(w.list_in(2, 1)), Do::Append(x)]);
    w.run(millis(20));
    assert_eq!(w.gauge(b, "ordain_cohort_prepared"), 1.0, "T3 has x");
    w.release(late);
    let counted = |w: &World| {
        (w.gauge(a, "ordain_coordinator_attempts_total"), w.gauge(b, "ordain_participant_waited_total"))
    };
    let before = counted(&w);
    w.run(millis(50));
    let after = counted(&w);
    if after.0 < before.0 + 3.0 {
        return Err("T1 waits for B, though C has refused it".to_owned());
    }
    assert!(engine.name != wait_die::ENGINE.name || after.1 > before.1 + 2.0, "T1 waits at B");
    [vote_of_b, vote_of_c].into_iter().for_each(|vote| w.release(vote));
    [t0, t1, t3].into_iter().for_each(|txn| w.committed(txn));
    w.end()
}

#[test]
fn scenario_22_a_no_ends_the_wait_for_the_other_participants() {
    demand_sound_of(&LOCKING, refused_while_waiting);
}

/// An abort by the transaction's own logic after it has written at three partitions: it is the answer, and nothing of it is left.
pub(crate) fn fails_at_the_end(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 3, bugs);
    let lists = [0, 2, 1].map(|partition| w.list_in(partition, 0));
    let a = w.led_by(0);
    let before = w.gauge(a, "ordain_coordinator_attempts_total");
    let t1 = w.ask_to_fail(a, &lists.map(Do::Append));
    let status = w.answered(t1).status;
    if status != OutcomeStatus::Aborted(Abort::Logic) {
        return Err(format!("a transaction that fails was answered {status:?}"));
    }
    w.run(millis(5));
    assert_eq!(w.gauge(a, "ordain_coordinator_attempts_total") - before, 1.0, "it is not tried again");
    let t2 = w.ask(a, &lists.map(Do::Append));
    w.committed(t2);
    w.end()
}

#[test]
fn scenario_23_an_abort_by_logic_after_accesses_elsewhere() {
    demand(fails_at_the_end, Bug::IgnoreRemoteVote);
}

/// Transactions that A is asked for and that touch B alone: without a session B decides on its own, by one record; with one of A's the
/// decision stands with A; and what only reads is in no log.
pub(crate) fn only_elsewhere(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 2, bugs);
    let x = w.list_in(1, 0);
    let (a, b) = (w.led_by(0), w.led_by(1));
    let of_a = Some((w.session_in(0), 1));
    for (session, op, expected) in
        [(None, Do::Append(x), [0, 1]), (of_a, Do::Append(x), [2, 2]), (None, Do::Read(x), [0, 0])]
    {
        let records = |w: &World| [a, b].map(|node| w.written(node));
        let before = records(&w);
        let txn = w.ask_in(a, session, &[op]);
        w.committed(txn);
        w.run(millis(300));
        let after = records(&w);
        let written = [after[0] - before[0], after[1] - before[1]];
        if written != expected {
            return Err(format!("{op:?} of session {session:?} wrote {written:?} records"));
        }
    }
    w.end()
}

#[test]
fn scenario_24_the_only_participant_is_remote() {
    demand_sound(only_elsewhere);
}
