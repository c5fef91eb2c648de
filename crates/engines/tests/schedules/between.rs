//! Scenarios of the sheet (regions.md, section 8) that take transactions of several regions, by number: fixed runs of regions with a server and a
//! storage node each, whose servers see the others' records in views.

mod rounds;

use ordain_commands::ids;
use ordain_commit::{CommitEngine, Message, Protocol};
use ordain_engines::{regions_2pl, regions_mvocc, regions_silo};
use ordain_model::datum::DatumReader;
use ordain_model::{Datum, Micros, OutcomeStatus};
use ordain_role::{Bug, Bugs, NodeId};

use crate::regions::demand_soon;
use crate::world::{Do, Ticket, World};
use crate::{demand_of, demand_sound_of, millis, said};

const ENGINES: [CommitEngine; 3] = [regions_2pl::ENGINE, regions_silo::ENGINE, regions_mvocc::ENGINE];
/// Those that decide about attempts when they are to commit.
const VALIDATING: [CommitEngine; 2] = [regions_silo::ENGINE, regions_mvocc::ENGINE];

/// Holds the requests of one server to another for its part, or to check what was read.
fn hold_parts(w: &mut World, from: NodeId, to: NodeId) -> u32 {
    hold(w, from, to, |message| matches!(said(message), Some(Protocol::Part(_))))
}

/// Holds what one server says to another of votes.
fn hold_votes(w: &mut World, from: NodeId, to: NodeId) -> u32 {
    hold(w, from, to, |message| matches!(said(message), Some(Protocol::Ballot(_))))
}

fn hold(w: &mut World, from: NodeId, to: NodeId, is_its: fn(&Message) -> bool) -> u32 {
    w.hold(move |sender, receiver, message| (sender.node, receiver.node) == (from, to) && is_its(message))
}

/// The number of transactions of several regions that a server has promised and that are in doubt.
fn in_doubt(w: &World, node: NodeId) -> u64 {
    w.gauge(node, "ordain_voting_in_doubt") as u64
}

fn all_committed(w: &mut World, all: &[Ticket]) {
    all.iter().for_each(|txn| w.committed(*txn));
}

/// Scenario 1: M1 waits for L1 and L1 for M2 at one region, M2 for L2 and L2 for M1 at the other.
fn crossed_waits(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::regions(engine, 2, bugs);
    let (m1s, q) = (w.list_in(0, 0), w.list_in(0, 1));
    let (m2s, p) = (w.list_in(1, 0), w.list_in(1, 1));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let late = [hold_parts(&mut w, a, b), hold_parts(&mut w, b, a)];
    let m1 = w.ask(a, &[Do::Append(m1s), Do::Append(p)]);
    let m2 = w.ask(b, &[Do::Append(m2s), Do::Append(q)]);
    w.run(millis(5));
    let l1 = w.ask(a, &[Do::Append(q), Do::Append(m1s)]);
    let l2 = w.ask(b, &[Do::Append(p), Do::Append(m2s)]);
    w.run(millis(5));
    for node in [a, b] {
        assert_eq!((in_doubt(&w, node), w.gauge(node, "ordain_locks_waiting")), (1, 1.0));
    }
    late.into_iter().for_each(|late| w.release(late));
    demand_soon(&mut w, &[m1, m2, l1, l2])?;
    let refused = "ordain_waits_refused_total{reason=\"regions\"}";
    assert!(w.gauge(a, refused) + w.gauge(b, refused) >= 1.0);
    w.end()
}

#[test]
fn scenario_1_transactions_of_several_regions_do_not_wait_for_each_other_by_way_of_local_ones() {
    demand_of(&[regions_2pl::ENGINE], crossed_waits, Bug::DirectWaitsOnly);
}

/// Scenario 2, the counterexample of 4.1 (a): M reads z at A and writes y at B, and B has not promised it yet. L overwrites z; M2 reads z as L has
/// left it, and y as M has found it.
fn overwritten(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::regions(engine, 3, bugs);
    let (z, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let late = hold_parts(&mut w, c, b);
    let m = w.ask(c, &[Do::Read(z), Do::Append(y)]);
    w.run(millis(10));
    assert_eq!(in_doubt(&w, a), 1, "A has promised what M has read");
    let l = w.ask(a, &[Do::Append(z)]);
    w.run(millis(20));
    let m2 = w.ask(b, &[Do::Read(z), Do::Read(y)]);
    w.run(millis(150));
    assert!(w.answer(l).is_none() || bugs != Bugs::NONE, "what M has read is protected");
    w.release(late);
    all_committed(&mut w, &[m, l, m2]);
    w.end()
}

#[test]
fn scenario_2_what_is_read_in_one_region_stays_until_all_have_promised() {
    demand_of(&VALIDATING, overwritten, Bug::UnmarkReads);
    demand_of(&[regions_2pl::ENGINE], overwritten, Bug::GrantLockEarly);
}

/// Scenario 3, the counterexample of 4.1 (b): M has committed at B and C and is answered, and A waits for C's vote on a slow link. L reads at A.
fn slow_vote(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::regions(engine, 3, bugs);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let slow = [hold_votes(&mut w, c, a), hold_votes(&mut w, b, a)];
    let m = w.ask(c, &[Do::Append(x), Do::Append(y)]);
    w.committed(m);
    w.run(millis(10));
    assert_eq!((in_doubt(&w, a), in_doubt(&w, b), in_doubt(&w, c)), (1, 0, 0));
    let l = w.ask(a, &[Do::Read(x)]);
    w.run(millis(50));
    assert!(w.answer(l).is_none() || bugs != Bugs::NONE, "M may have committed");
    slow.into_iter().for_each(|slow| w.release(slow));
    w.committed(l);
    w.end()
}

#[test]
fn scenario_3_nobody_reads_what_a_promised_transaction_overwrites() {
    demand_of(&ENGINES, slow_vote, Bug::GrantLockEarly);
}

/// Scenario 4: M1 reads x at A and writes y at B, M2 reads y and writes x. Each home has promised before the other one is asked.
fn write_skew(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::regions(engine, 2, bugs);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let late = [hold_parts(&mut w, a, b), hold_parts(&mut w, b, a)];
    let m1 = w.ask(a, &[Do::Read(x), Do::Append(y)]);
    let m2 = w.ask(b, &[Do::Read(y), Do::Append(x)]);
    w.run(millis(10));
    assert_eq!((in_doubt(&w, a), in_doubt(&w, b)), (1, 1));
    late.into_iter().for_each(|late| w.release(late));
    all_committed(&mut w, &[m1, m2]);
    w.end()
}

#[test]
fn scenario_4_two_transactions_of_two_regions_do_not_skew() {
    demand_of(&VALIDATING, write_skew, Bug::UnmarkReads);
    demand_of(&[regions_2pl::ENGINE], write_skew, Bug::GrantLockEarly);
}

/// Scenario 19: M, which writes at B and A, waits for T at A. T turns out to be of several regions.
fn becomes_multi(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::regions(engine, 2, bugs);
    let (q, y, own) = (w.list_in(0, 0), w.list_in(1, 0), w.list_in(1, 1));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let first = w.step_of(a, (1, 1, false), &[Do::Append(q)]);
    w.committed(first);
    let m = w.ask(b, &[Do::Append(own), Do::Append(q)]);
    w.run(millis(10));
    assert_eq!((w.answer(m).is_none(), w.gauge(a, "ordain_locks_waiting")), (true, 1.0));
    let second = w.step_of(a, (1, 2, false), &[Do::Append(y)]);
    demand_soon(&mut w, &[m])?;
    let status = w.answered(second).status;
    assert!(matches!(status, OutcomeStatus::Aborted(_)), "{status:?}");
    w.end()
}

#[test]
fn scenario_19_who_becomes_of_several_regions_while_such_a_one_waits_for_it_ends() {
    demand_sound_of(&[regions_2pl::ENGINE], becomes_multi);
}

/// A step comes of a transaction whose commit is promised: only the votes end that.
fn step_behind_a_promise(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::regions(engine, 2, bugs);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let first = w.step_of(a, (1, 1, false), &[Do::Append(x)]);
    w.committed(first);
    let late = hold_votes(&mut w, b, a);
    let commit = w.step_of(a, (1, 2, true), &[Do::Append(y)]);
    w.until("the promise", |w| in_doubt(w, a) == 1);
    let stray = w.step_of(a, (1, 3, false), &[Do::Read(x)]);
    let status = w.answered(stray).status;
    assert!(matches!(status, OutcomeStatus::Aborted(_)), "{status:?}");
    w.release(late);
    w.committed(commit);
    w.end()
}

#[test]
fn a_step_behind_the_promise_of_its_transaction_does_not_end_it() {
    demand_sound_of(&ENGINES, step_behind_a_promise);
}

/// Scenario 20: a client reads what it has written in another region, before the view of its own has that.
fn own_writes(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::regions(engine, 2, bugs);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let a = w.led_by(0);
    let storage = w.members(1)[1];
    let lag = w.hold(move |from, to, _| (from.node, to.node) == (storage, a));
    let m = w.ask(a, &[Do::Append(x), Do::Append(y)]);
    w.committed(m);
    let reads = w.ask(a, &[Do::Read(y)]);
    let writes = w.ask(a, &[Do::Read(y), Do::Append(x)]);
    w.run(millis(50));
    let answers = [reads, writes].map(|txn| w.answer(txn).is_some());
    if answers != [false; 2] {
        return Err(format!("the past was read: {answers:?}"));
    }
    w.release(lag);
    all_committed(&mut w, &[reads, writes]);
    w.end()
}

#[test]
fn scenario_20_a_client_that_has_written_elsewhere_reads_it_there() {
    demand_sound_of(&ENGINES, own_writes);
}

/// Scenario 21: M copies y of B to x of A. After it has read y in C's view, y is removed and made anew.
fn remade(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::regions(engine, 3, bugs);
    let (x, y) = (w.key_in(0, 0), w.key_in(1, 0));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let first = w.command(b, ids::SET, &[&y, b"old"]);
    w.committed(first);
    w.run(millis(10));
    let late = hold_parts(&mut w, c, b);
    let m = w.command(c, ids::COPY, &[&y, &x]);
    w.until("M's request", World::holds_something);
    let remove = w.command(b, ids::DEL, &[&y]);
    w.committed(remove);
    let again = w.command(b, ids::SET, &[&y, b"new"]);
    w.committed(again);
    w.release(late);
    w.committed(m);
    let copy = w.command(a, ids::GET, &[&x]);
    w.committed(copy);
    let seen = w.answered(copy).reply;
    w.end()?;
    match DatumReader(&seen).eq([Datum::Bulk(b"new")]) {
        true => Ok(()),
        false => Err("what was read was removed and made anew, and counts".to_owned()),
    }
}

#[test]
fn scenario_21_what_was_removed_and_made_anew_elsewhere_was_not_read() {
    demand_sound_of(&ENGINES, remade);
}

/// Scenario 22: M finds no list y at B, and writes x at A. Before either is asked, L makes y; L2 reads x, and does not find M's.
fn inserted(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::regions(engine, 3, bugs);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let late = [hold_parts(&mut w, c, a), hold_parts(&mut w, c, b)];
    let m = w.ask(c, &[Do::Read(y), Do::Append(x)]);
    w.until("M's requests", World::holds_something);
    let l = w.ask(b, &[Do::Append(y)]);
    w.committed(l);
    let l2 = w.ask(a, &[Do::Read(x)]);
    w.committed(l2);
    late.into_iter().for_each(|late| w.release(late));
    w.committed(m);
    w.end()
}

#[test]
fn scenario_22_a_read_of_nothing_elsewhere_conflicts_with_an_insert() {
    demand_sound_of(&ENGINES, inserted);
}

/// Scenario 23: M writes at A, B and C. It has committed at A and B, and is in doubt at C. R reads all three from D.
fn reads_between(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::regions(engine, 4, bugs);
    let lists = [0, 1, 2].map(|region| w.list_in(region, 0));
    let [a, b, c, d] = [0, 1, 2, 3].map(|region| w.led_by(region));
    let slow = [hold_votes(&mut w, a, c), hold_votes(&mut w, b, c)];
    let m = w.ask(a, &lists.map(Do::Append));
    w.committed(m);
    w.run(millis(10));
    assert_eq!([a, b, c].map(|node| in_doubt(&w, node)), [0, 0, 1]);
    let r = w.ask(d, &lists.map(Do::Read));
    w.run(millis(200));
    assert!(w.answer(r).is_none() || bugs != Bugs::NONE, "M may have committed");
    slow.into_iter().for_each(|slow| w.release(slow));
    w.committed(r);
    w.end()
}

#[test]
fn scenario_23_what_only_reads_sees_all_or_nothing_of_what_writes_three_regions() {
    demand_of(&[regions_2pl::ENGINE, regions_silo::ENGINE], reads_between, Bug::GrantLockEarly);
    demand_sound_of(&[regions_mvocc::ENGINE], reads_between);
}

/// Scenario 24: regions with 200 ms between question and answer, 50 lists and four clients, all of whose transactions are of
/// both regions. Nobody is answered that the database is busy, as after 5 s.
fn far_and_hot(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    const CLIENTS: usize = 4;
    const EACH: u64 = 5;
    let mut w = World::regions(engine, 2, bugs);
    w.set_apart(millis(100));
    let lists = [0, 1].map(|region| (0..25).map(|nth| w.list_in(region, nth)).collect::<Vec<u64>>());
    let mut open: [Option<(u64, Ticket)>; CLIENTS] = [None; CLIENTS];
    let mut done = Vec::new();
    let mut seed = 7_u64;
    let mut draw = |lists: &[u64]| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        lists[(seed >> 33) as usize % lists.len()]
    };
    while done.len() < CLIENTS * EACH as usize {
        for (client, open) in open.iter_mut().enumerate() {
            let before = match *open {
                Some((_, txn)) if w.answer(txn).is_none() => continue,
                Some((n, txn)) => {
                    done.push(txn);
                    n
                }
                None => 0,
            };
            if before < EACH {
                let (home, other) = (&lists[client % 2], &lists[1 - client % 2]);
                let ops = [Do::Read(draw(home)), Do::Append(draw(home)), Do::Append(draw(other))];
                let server = w.led_by(client % 2);
                *open = Some((before + 1, w.ask(server, &ops)));
            } else {
                *open = None;
            }
        }
        w.run(millis(5));
    }
    let mut took: Vec<Micros> = Vec::new();
    for txn in done {
        let status = w.answered(txn).status;
        if status != OutcomeStatus::Committed {
            return Err(format!("a client was answered {status:?}"));
        }
        took.push(w.took(txn));
    }
    took.sort();
    let median = took[took.len() / 2];
    if median > millis(400) {
        return Err(format!("half of all took longer than {median:?}"));
    }
    w.end()
}

#[test]
fn scenario_24_everybody_gets_through_over_a_distance() {
    demand_of(&[regions_2pl::ENGINE, regions_silo::ENGINE], far_and_hot, Bug::LeaveLock);
    demand_sound_of(&[regions_mvocc::ENGINE], far_and_hot);
}

/// Scenario 25: M is promised at B, which hears of nobody for 30 s then. A has all votes; L reads at B.
fn away(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::regions(engine, 2, bugs);
    let (x, y, own) = (w.list_in(0, 0), w.list_in(1, 0), w.list_in(1, 1));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let vote = hold_votes(&mut w, a, b);
    let m = w.ask(a, &[Do::Append(x), Do::Append(y)]);
    w.committed(m);
    assert_eq!((in_doubt(&w, a), in_doubt(&w, b)), (0, 1));
    w.isolate(1);
    w.release(vote);
    let l = w.ask(b, &[Do::Read(y)]);
    let locals = w.ask(b, &[Do::Append(own)]);
    w.committed(locals);
    w.run(millis(30_000));
    assert_eq!(in_doubt(&w, b), 1, "nobody decides alone");
    let status = w.answer(l).map(|answer| answer.status);
    assert!(status == Some(OutcomeStatus::Busy) || bugs != Bugs::NONE, "{status:?}");
    w.heal(1);
    w.until("M's outcome", |w| in_doubt(w, b) == 0);
    let after = w.ask(b, &[Do::Read(y)]);
    w.committed(after);
    w.end()
}

/// A initiates M when B is cut off and nobody knows, and N once that is known. The clients of both hear of it in time, and nothing is promised for N.
fn cut_off(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::regions(engine, 2, bugs);
    let lists = [0, 1].map(|n| (w.list_in(0, n), w.list_in(1, n)));
    let a = w.led_by(0);
    w.isolate(1);
    let [m, n] = lists.map(|(x, y)| {
        let txn = w.ask(a, &[Do::Append(x), Do::Append(y)]);
        w.run(millis(8_000));
        w.miss(1);
        txn
    });
    let heard = [m, n].map(|txn| w.answer(txn).map(|answer| answer.status));
    if heard != [Some(OutcomeStatus::Unknown), Some(OutcomeStatus::Busy)] {
        return Err(format!("after eight seconds clients have heard {heard:?}"));
    }
    assert_eq!(in_doubt(&w, a), 1, "of M alone");
    w.heal(1);
    w.until("M's outcome", |w| in_doubt(w, a) == 0);
    w.end()
}

#[test]
fn clients_hear_in_time_of_a_region_that_is_cut_off() {
    demand_of(&ENGINES, cut_off, Bug::WaitForEver);
}

#[test]
fn scenario_25_a_region_that_is_cut_off_in_doubt_hears_of_the_outcome_when_it_is_back() {
    demand_of(&ENGINES, away, Bug::GrantLockEarly);
}

/// M of A and M2 of B write the same lists of both, and each home has promised before the other one is asked. A part that waited for what is
/// promised would wait until one is given up.
fn crossed_parts(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::regions(engine, 2, bugs);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let late = [hold_parts(&mut w, a, b), hold_parts(&mut w, b, a)];
    let both = [a, b].map(|node| w.ask(node, &[Do::Append(x), Do::Append(y)]));
    w.run(millis(10));
    assert_eq!((in_doubt(&w, a), in_doubt(&w, b)), (1, 1));
    late.into_iter().for_each(|late| w.release(late));
    demand_soon(&mut w, &both)?;
    w.end()
}

#[test]
fn a_part_does_not_wait_for_what_is_promised() {
    demand_of(&VALIDATING, crossed_parts, Bug::DirectWaitsOnly);
    // With locks the bug sees a wait as short as this one.
    demand_sound_of(&[regions_2pl::ENGINE], crossed_parts);
}

/// No disk of B has space: its part of M gets no stamp, or is not promised. A is told so once there is space again, however long that took.
///
/// Found by the simulator: a part that had waited too long for its stamp was given up, and A waited for the vote of B for ever.
fn no_space(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::regions(engine, 2, bugs);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let a = w.led_by(0);
    w.members(1).into_iter().for_each(|member| w.fill(member, true));
    // Stamps above the ceiling of B are needed by then.
    w.run(millis(500));
    let m = w.ask(a, &[Do::Append(x), Do::Append(y)]);
    w.run(millis(8_000));
    w.members(1).into_iter().for_each(|member| w.fill(member, false));
    w.run(millis(5_000));
    if w.answer(m).is_none() {
        return Err("B has space, and A has not heard of its part".to_owned());
    }
    w.end()
}

#[test]
fn a_part_that_waits_too_long_is_refused_and_not_forgotten() {
    demand_sound_of(&ENGINES, no_space);
}
