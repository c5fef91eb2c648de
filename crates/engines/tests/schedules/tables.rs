//! Schedule 18: accesses to the whole table, and writes of records that are not there yet (R-TABLE).

use ordain_commands::ids;
use ordain_commit::{CommitEngine, Protocol};
use ordain_model::{Datum, Micros, ProcedureId};
use ordain_role::{Bug, Bugs};

use crate::world::{Ticket, World};
use crate::{LOCKING, OPTIMISTIC, demand, demand_of, millis, said};

/// Starved KEYS: writers of other keys each time come and go, several at any moment. KEYS must be answered while they come.
pub(crate) fn starved_keys(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    starved_keys_of(engine, bugs, [0, 1])?;
    // Ids of transactions begin with their homes: those of the writers come before that of KEYS now.
    starved_keys_of(engine, bugs, [1, 0])
}

fn starved_keys_of(engine: CommitEngine, bugs: Bugs, homes: [usize; 2]) -> Result<(), String> {
    let mut w = World::new(engine, 2, bugs);
    let [a, b] = homes.map(|home| w.led_by(home));
    let (mut writers, mut survey): (Vec<Ticket>, _) = (Vec::new(), None);
    for nth in 0..400 {
        let keys = [w.key_in(0, nth), w.key_in(1, nth)];
        writers.push(w.command(b, ids::MSET, &[&keys[0], b"v", &keys[1], b"v"]));
        w.run(Micros(300));
        if nth == 10 {
            survey = Some(w.command(a, ids::KEYS, &[b"*"]));
        }
    }
    let Some(survey) = survey.filter(|survey| w.answer(*survey).is_some()) else {
        return Err("KEYS is starved".to_owned());
    };
    writers.into_iter().chain([survey]).for_each(|txn| w.committed(txn));
    w.end()
}

#[test]
fn schedule_18_a_survey_comes_through_a_stream_of_writers() {
    // Another engine has the survey and a writer wait for each other over two nodes, until they are given up.
    demand_of(&LOCKING, starved_keys, Bug::PassTable);
    demand_of(&OPTIMISTIC, starved_keys, Bug::PassTable);
}

/// Two inserts: T1 has made k at B and is promised there; T2 makes another key there.
pub(crate) fn two_inserts(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 2, bugs);
    let (own, k, other) = (w.key_in(0, 0), w.key_in(1, 0), w.key_in(1, 1));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let vote = w.hold(move |from, to, message| {
        (from.node, to.node) == (b, a) && matches!(said(message), Some(Protocol::Vote(..)))
    });
    let t1 = w.command(a, ids::MSET, &[&own, b"1", &k, b"1"]);
    w.until("T1's vote", World::holds_something);
    let t2 = w.command(b, ids::SET, &[&other, b"2"]);
    w.run(millis(50));
    if w.answer(t2).is_none() {
        return Err("an insert waits for another".to_owned());
    }
    w.release(vote);
    w.committed(t1);
    w.end()
}

#[test]
fn schedule_18_inserts_of_two_keys_do_not_exclude_each_other() {
    demand(two_inserts, Bug::LockTable);
}

/// A promised insert: T1 has made keys at A and at B and is answered, and B has not heard of that. The answer to a survey by C, or to
/// what C has asked of all databases, must come after T1. B may change its leader meanwhile.
fn promised_insert(
    engine: CommitEngine,
    bugs: Bugs,
    (table, args, left): (ProcedureId, &[&[u8]], i64),
    changes: bool,
) -> Result<(), String> {
    let mut w = World::new(engine, 3, bugs);
    let (own, k) = (w.key_in(0, 0), w.key_in(1, 0));
    let (a, b1, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let of_b = w.members(1);
    let decision = w.hold(move |from, to, message| {
        let is_decision = matches!(said(message), Some(Protocol::Decide(..)));
        from.node == a && of_b.contains(&to.node) && (is_decision || changes && to.node != b1)
    });
    let t1 = w.command(a, ids::MSET, &[&own, b"1", &k, b"1"]);
    w.committed(t1);
    w.until("the decision", World::holds_something);
    w.run(millis(20));
    if changes {
        w.depose(b1);
        w.another_leads(1, b1);
    }
    let t2 = w.command(c, table, args);
    w.run(millis(100));
    assert!(w.answer(t2).is_none() || bugs != Bugs::NONE, "T1's key is locked");
    w.release(decision);
    w.committed(t2);
    w.run(millis(600));
    let size = w.command(c, ids::DBSIZE, &[]);
    w.committed(size);
    let replies = [t2, size].map(|txn| w.answered(txn).reply);
    let shown = replies.each_ref().map(|reply| Datum::first(reply));
    let is_whole = !matches!(shown[0], Datum::Array(n) if n != 2);
    if !is_whole || shown[1] != Datum::Int(left) {
        return Err(format!("half of T1 is seen, or is left: {shown:?}"));
    }
    w.end()
}

const SURVEY: (ProcedureId, &[&[u8]], i64) = (ids::KEYS, &[b"*"], 2);
const CLEAR: (ProcedureId, &[&[u8]], i64) = (ids::FLUSHALL, &[], 0);
const SWAP: (ProcedureId, &[&[u8]], i64) = (ids::SWAPDB, &[b"0", b"1"], 0);

pub(crate) fn a_survey(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    promised_insert(engine, bugs, SURVEY, false)
}

pub(crate) fn a_clearing(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    promised_insert(engine, bugs, CLEAR, false)
}

pub(crate) fn a_swap(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    promised_insert(engine, bugs, SWAP, false)
}

pub(crate) fn a_clearing_under_the_next_leader(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    promised_insert(engine, bugs, CLEAR, true)
}

#[test]
fn schedule_18_a_survey_shows_all_of_an_insert_or_nothing() {
    demand(a_survey, Bug::ForgetIntention);
}

#[test]
fn schedule_18_what_a_clearing_has_cleared_does_not_come_back() {
    demand(a_clearing, Bug::ForgetIntention);
    demand(a_clearing_under_the_next_leader, Bug::ForgetLocks);
}

#[test]
fn schedule_18_what_is_promised_goes_with_its_database() {
    demand(a_swap, Bug::ForgetIntention);
}
