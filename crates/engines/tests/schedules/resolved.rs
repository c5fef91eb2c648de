//! Readers of one region meet a transaction of several in doubt (regions.md, 4.7): with `ro-local=strict` they wait, with
//! `resolved` they see the region as it was when nothing was in doubt.

use ordain_commit::options::RO_LOCAL;
use ordain_commit::{CommitEngine, Message, Protocol};
use ordain_engines::regions_mvocc;
use ordain_model::{Micros, Offer, OptionValue, Options};
use ordain_role::{Bug, Bugs, NodeId};

use crate::world::{Do, Ticket, World, read};
use crate::{demand_of, demand_sound_of, millis, said};

const ENGINES: [CommitEngine; 1] = [regions_mvocc::ENGINE];

static OFFERS: [Offer; 1] = [Offer::of(&RO_LOCAL)];

fn regions(engine: CommitEngine, size: (usize, usize), mode: &'static str, bugs: Bugs) -> World {
    let options = Options::new(engine.name, &OFFERS).with(&RO_LOCAL, OptionValue::Name(mode));
    World::regions_sharded(engine, options, size, bugs)
}

fn hold(w: &mut World, from: NodeId, to: NodeId, is_its: fn(&Message) -> bool) -> u32 {
    w.hold(move |sender, receiver, message| (sender.node, receiver.node) == (from, to) && is_its(message))
}

fn is_ballot(message: &Message) -> bool {
    matches!(said(message), Some(Protocol::Ballot(_)))
}

fn is_part(message: &Message) -> bool {
    matches!(said(message), Some(Protocol::Part(_)))
}

fn in_doubt(w: &World, node: NodeId) -> u64 {
    w.gauge(node, "ordain_voting_in_doubt") as u64
}

/// The number of values that a transaction has read of each of its lists.
fn lengths(w: &World, txn: Ticket) -> Vec<usize> {
    let answer = w.answer(txn).and_then(read).expect("it has committed");
    let length = |op: &_| match op {
        ordain_checker::dependencies::history::Op::Read { values, .. } => Some(values.len()),
        _ => None,
    };
    answer.ops.iter().filter_map(length).collect()
}

/// A writes x and y, of two shards; M, of A and B, is in doubt at A, where it writes x. Then another local transaction writes y.
fn reader(engine: CommitEngine, mode: &'static str, bugs: Bugs) -> Result<bool, String> {
    let mut w = regions(engine, (2, 2), mode, bugs);
    let (x, y, z) = (w.list_at(0, 0), w.list_at(1, 0), w.list_in(1, 0));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let both = w.ask(a, &[Do::Append(x), Do::Append(y)]);
    w.committed(both);
    let late = hold(&mut w, b, a, is_ballot);
    let m = w.ask(a, &[Do::Append(x), Do::Append(z)]);
    w.until("the doubt", |w| in_doubt(w, a) == 1);
    let local = w.ask(a, &[Do::Append(y)]);
    w.committed(local);
    let other = w.ask(a, &[Do::Read(y)]);
    w.committed(other);
    assert_eq!(lengths(&w, other), [2], "what meets nothing in doubt sees all");
    let reads = w.ask(a, &[Do::Read(y), Do::Read(x)]);
    w.run(millis(20));
    let is_answered = w.answer(reads).is_some();
    if is_answered {
        assert_eq!(lengths(&w, reads), [1, 1], "both are as they were before M");
        assert!(w.took(reads) < millis(5), "it has waited for nobody: {:?}", w.took(reads));
    }
    w.release(late);
    w.committed(m);
    w.committed(reads);
    let after = w.ask(a, &[Do::Read(y), Do::Read(x)]);
    w.committed(after);
    assert_eq!(lengths(&w, after), [2, 2]);
    w.end()?;
    Ok(is_answered)
}

#[test]
fn what_only_reads_waits_for_what_is_in_doubt_or_sees_what_was_before() {
    let engine = regions_mvocc::ENGINE;
    assert_eq!(reader(engine, "strict", Bugs::NONE), Ok(false));
    assert_eq!(reader(engine, "resolved", Bugs::NONE), Ok(true));
}

/// M2, of C, writes s at A and q at B; A has promised it, and B has not been asked. M1, of D, reads q at B and writes p at A: B knows its
/// outcome, and A lacks D's vote. Then B promises M2, which overwrites q, and A hears of its outcome. So M1 comes before M2, has a larger stamp at
/// A, and is in doubt there alone. R reads p and s at A.
fn overlapping(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = regions(engine, (4, 1), "resolved", bugs);
    let (p, s, q) = (w.list_in(0, 0), w.list_in(0, 1), w.list_in(1, 0));
    let [a, b, c, d] = [0, 1, 2, 3].map(|region| w.led_by(region));
    let late = hold(&mut w, c, b, is_part);
    let m2 = w.ask(c, &[Do::Append(s), Do::Append(q)]);
    w.until("M2's promise", |w| in_doubt(w, a) == 1);
    // B votes before it has heard of D's vote, of which it would tell.
    let (slow, slower) = (hold(&mut w, d, b, is_ballot), hold(&mut w, d, a, is_ballot));
    let m1 = w.ask(d, &[Do::Read(q), Do::Append(p)]);
    w.committed(m1);
    w.run(millis(5));
    w.release(slow);
    w.until("M1's outcome at B", |w| in_doubt(w, b) == 0);
    w.run(millis(5));
    assert_eq!(in_doubt(&w, a), 2);
    w.release(late);
    w.committed(m2);
    assert_eq!(w.gauge(c, "ordain_coordinator_attempts_total"), 1.0, "its stamp at A is the smaller one");
    w.until("M2's outcome", |w| in_doubt(w, a) == 1);
    w.run(millis(5));
    let r = w.ask(a, &[Do::Read(p), Do::Read(s)]);
    w.run(millis(20));
    if bugs == Bugs::NONE {
        assert!(w.took(r) < millis(5), "it waits for nobody");
        assert_eq!(lengths(&w, r), [0, 0]);
    }
    w.release(slower);
    w.committed(r);
    w.end()
}

/// The sheet's snapshot, just below the smallest stamp in doubt, shows M2 and not M1.
#[test]
fn a_snapshot_shows_nothing_that_follows_what_is_in_doubt() {
    demand_of(&ENGINES, overlapping, Bug::ResolveBelow);
}

/// Promises of an earlier term have no quiet stamp in this one: who only reads waits.
fn another_term(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = regions(engine, (2, 1), "resolved", bugs);
    let (x, y, z) = (w.list_in(0, 0), w.list_in(0, 1), w.list_in(1, 0));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let late = hold(&mut w, b, a, is_ballot);
    let m = w.ask_in(b, Some((w.session_in(1), 1)), &[Do::Append(x), Do::Append(z)]);
    w.until("the doubt", |w| in_doubt(w, a) == 1);
    w.start_again(a);
    w.until("a leader", |w| w.leader(0) == Some(a) && in_doubt(w, a) == 1);
    w.run(millis(20));
    let reads = w.ask(a, &[Do::Read(x)]);
    let others = w.ask(a, &[Do::Read(y)]);
    w.committed(others);
    w.run(millis(50));
    assert!(w.answer(reads).is_none());
    w.release(late);
    w.committed(reads);
    w.committed(m);
    w.end()
}

#[test]
fn what_an_earlier_term_has_promised_is_waited_for() {
    demand_sound_of(&ENGINES, another_term);
}

/// An interactive transaction is answered step by step and cannot begin anew: it waits.
fn interactive(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = regions(engine, (2, 1), "resolved", bugs);
    let (x, y, z) = (w.list_in(0, 0), w.list_in(0, 1), w.list_in(1, 0));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let late = hold(&mut w, b, a, is_ballot);
    let m = w.ask(a, &[Do::Append(x), Do::Append(z)]);
    w.until("the doubt", |w| in_doubt(w, a) == 1);
    let first = w.step_of(a, (1, 1, false), &[Do::Read(y)]);
    w.committed(first);
    let second = w.step_of(a, (1, 2, true), &[Do::Read(x)]);
    w.run(Micros::from_millis(20));
    w.release(late);
    w.committed(m);
    w.committed(second);
    w.end()
}

#[test]
fn an_interactive_transaction_waits_or_sees_its_snapshot() {
    demand_sound_of(&ENGINES, interactive);
}
