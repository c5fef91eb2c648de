//! Scenario 20 of the sheet of regions (regions.md, section 8) with the option `overlay`: what a region has committed in another one is read there
//! before that one's log has come. The view of A lags, since its storage node is not heard.

use ordain_commands::ids;
use ordain_commit::options::OVERLAY;
use ordain_commit::{CommitEngine, Protocol};
use ordain_engines::{regions_2pl, regions_mvocc, regions_silo};
use ordain_model::datum::DatumReader;
use ordain_model::{Datum, Offer, OptionValue, Options, OutcomeStatus};
use ordain_role::{Bug, Bugs, NodeId};

use crate::world::{Do, Ticket, World};
use crate::{demand_of, demand_sound_of, millis, said};

const ENGINES: [CommitEngine; 3] = [regions_2pl::ENGINE, regions_silo::ENGINE, regions_mvocc::ENGINE];

static OFFERS: [Offer; 1] = [Offer::of(&OVERLAY)];

/// Regions whose views have an overlay, or have none.
fn regions(engine: CommitEngine, count: usize, is_on: bool, bugs: Bugs) -> World {
    let options = Options::new(engine.name, &OFFERS).with(&OVERLAY, OptionValue::Bool(is_on));
    World::regions_with(engine, options, count, bugs)
}

/// Has a server not hear of another region's log.
fn hold_log(w: &mut World, of: usize, at: NodeId) -> u32 {
    let storage = w.members(of)[1];
    w.hold(move |from, to, _| (from.node, to.node) == (storage, at))
}

fn attempts(w: &World, node: NodeId) -> u64 {
    w.gauge(node, "ordain_coordinator_attempts_total") as u64
}

fn in_doubt_at(w: &World, node: NodeId) -> u64 {
    w.gauge(node, "ordain_voting_in_doubt") as u64
}

/// The number of records in the overlay that A has of B.
fn overlaid(w: &World, a: NodeId) -> u64 {
    w.gauge(a, "ordain_view_overlay_records{region=\"1\"}") as u64
}

/// Demands that transactions commit, each at its first attempt, one after the other.
fn at_once(w: &mut World, node: NodeId, all: &[&[Do]]) -> Result<(), String> {
    for ops in all {
        let before = attempts(w, node);
        let txn = w.ask(node, ops);
        let status = w.answered(txn).status;
        if status != OutcomeStatus::Committed {
            return Err(format!("{ops:?} was answered {status:?}"));
        }
        let made = attempts(w, node) - before;
        if made != 1 {
            return Err(format!("{ops:?} took {made} attempts"));
        }
    }
    Ok(())
}

/// A client reads what it has written in another region, at once and later, and writes that again.
fn own_writes(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = regions(engine, 2, true, bugs);
    let (x, y, z) = (w.list_in(0, 0), w.list_in(1, 0), w.list_in(1, 1));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let lag = hold_log(&mut w, 1, a);
    // The first reads name M, whose place is not known here.
    at_once(&mut w, a, &[&[Do::Append(x), Do::Append(y)], &[Do::Read(y)], &[Do::Read(y), Do::Append(x)]])?;
    w.run(millis(50));
    at_once(&mut w, a, &[&[Do::Read(y), Do::Read(z)], &[Do::Append(y), Do::Append(z)], &[Do::Read(y)]])?;
    w.run(millis(50));
    at_once(&mut w, a, &[&[Do::Read(z), Do::Append(y)], &[Do::Read(y), Do::Read(z)]])?;
    assert!(overlaid(&w, a) >= 4, "the view has not heard of anything");
    w.release(lag);
    w.run(millis(300));
    if overlaid(&w, a) != 0 {
        return Err("the view has heard of all of it".to_owned());
    }
    // Another's write comes by the log.
    at_once(&mut w, b, &[&[Do::Append(y)]])?;
    w.run(millis(300));
    at_once(&mut w, a, &[&[Do::Read(y)]])?;
    w.end()
}

#[test]
fn scenario_20_a_client_reads_what_it_has_written_elsewhere_at_its_first_attempt() {
    demand_of(&ENGINES, own_writes, Bug::KeepOverlay);
}

/// The number of attempts at two transactions that read what was just written elsewhere, until the log has come.
fn attempts_with(engine: CommitEngine, is_on: bool) -> u64 {
    let mut w = regions(engine, 2, is_on, Bugs::NONE);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let a = w.led_by(0);
    let lag = hold_log(&mut w, 1, a);
    let m = w.ask(a, &[Do::Append(x), Do::Append(y)]);
    w.committed(m);
    let before = attempts(&w, a);
    let all = [w.ask(a, &[Do::Read(y)]), w.ask(a, &[Do::Read(y), Do::Append(x)])];
    w.run(millis(100));
    w.release(lag);
    all.into_iter().for_each(|txn| w.committed(txn));
    let made = attempts(&w, a) - before;
    assert_eq!(w.end(), Ok(()), "{}", engine.name);
    made
}

#[test]
fn scenario_20_without_an_overlay_attempts_are_made_until_the_log_has_come() {
    for engine in ENGINES {
        assert_eq!(attempts_with(engine, true), 2, "{}", engine.name);
        assert!(attempts_with(engine, false) > 4, "{}", engine.name);
    }
}

/// M writes at A, B and C. A has all votes, and B waits for that of C. A client of A reads what M has written at B: its request waits there.
fn in_doubt(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = regions(engine, 3, true, bugs);
    let lists = [0, 1, 2].map(|region| w.list_in(region, 0));
    let [a, b, c] = [0, 1, 2].map(|region| w.led_by(region));
    let lag = hold_log(&mut w, 1, a);
    let slow = w.hold(move |from, to, message| {
        (from.node, to.node) == (c, b) && matches!(said(message), Some(Protocol::Ballot(_)))
    });
    at_once(&mut w, a, &[&lists.map(Do::Append)])?;
    let before = attempts(&w, a);
    let [x, y, _] = lists;
    let all: [Ticket; 2] = [w.ask(a, &[Do::Read(y)]), w.ask(a, &[Do::Read(y), Do::Append(x)])];
    w.run(millis(150));
    assert_eq!(w.gauge(b, "ordain_voting_in_doubt"), 1.0);
    assert!(all.iter().all(|txn| w.answer(*txn).is_none()), "M may yet come to nothing for all that B knows");
    w.release(slow);
    all.into_iter().for_each(|txn| w.committed(txn));
    let made = attempts(&w, a) - before;
    w.release(lag);
    w.end()?;
    if made == 2 { Ok(()) } else { Err(format!("{made} attempts were made")) }
}

#[test]
fn who_names_a_transaction_in_doubt_waits_for_its_outcome() {
    demand_sound_of(&ENGINES, in_doubt);
}

/// A key of B is made, removed and made anew from A, before A's view has the first of that.
fn remade(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = regions(engine, 2, true, bugs);
    let y = w.key_in(1, 0);
    let a = w.led_by(0);
    let lag = hold_log(&mut w, 1, a);
    let (first, second) = (Datum::Bulk(b"1"), Datum::Bulk(b"2"));
    let steps: [(_, &[&[u8]], _); 7] = [
        (ids::SET, &[&y, b"1"], None),
        (ids::GET, &[&y], Some(first)),
        (ids::DEL, &[&y], Some(Datum::Int(1))),
        (ids::GET, &[&y], Some(Datum::Nil)),
        (ids::DEL, &[&y], Some(Datum::Int(0))),
        (ids::SET, &[&y, b"2"], None),
        (ids::GET, &[&y], Some(second)),
    ];
    for pause in [0, 20] {
        let before = attempts(&w, a);
        for (command, args, expected) in &steps {
            let txn = w.command(a, *command, args);
            w.committed(txn);
            let reply = w.answered(txn).reply;
            let is_it = expected.as_ref().is_none_or(|expected| DatumReader(&reply).eq([*expected]));
            if !is_it {
                return Err(format!("{command:?} was answered {reply:?}"));
            }
            w.run(millis(pause));
        }
        let made = attempts(&w, a) - before;
        if made != steps.len() as u64 {
            return Err(format!("{made} attempts were made"));
        }
    }
    w.release(lag);
    w.run(millis(100));
    let after = w.command(a, ids::GET, &[&y]);
    w.committed(after);
    assert!(DatumReader(&w.answered(after).reply).eq([Datum::Bulk(b"2")]));
    w.end()
}

#[test]
fn what_was_removed_elsewhere_is_gone_and_what_was_made_anew_is_there() {
    demand_sound_of(&ENGINES, remade);
}

/// The initiator dies. Its next server knows nothing of what it has committed elsewhere, and reads it once the log has come.
fn initiator_dies(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = regions(engine, 2, true, bugs);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let a = w.led_by(0);
    let lag = hold_log(&mut w, 1, a);
    at_once(&mut w, a, &[&[Do::Append(x), Do::Append(y)], &[Do::Read(y)]])?;
    w.start_again(a);
    w.until("a leader", |w| w.leader(0) == Some(a));
    let reads = w.ask(a, &[Do::Read(y), Do::Append(x)]);
    w.run(millis(300));
    assert!(w.answer(reads).is_none(), "nobody knows what y is");
    w.release(lag);
    w.committed(reads);
    w.run(millis(300));
    at_once(&mut w, a, &[&[Do::Read(y)]])?;
    w.end()
}

#[test]
fn a_server_that_begins_anew_has_no_overlay() {
    demand_sound_of(&ENGINES, initiator_dies);
}

/// B dies after its yes, before it has heard of A's. A client of A reads meanwhile what M has written there.
fn validator_dies(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = regions(engine, 2, true, bugs);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let lag = hold_log(&mut w, 1, a);
    let vote = w.hold(move |from, to, message| {
        (from.node, to.node) == (a, b) && matches!(said(message), Some(Protocol::Ballot(_)))
    });
    at_once(&mut w, a, &[&[Do::Append(x), Do::Append(y)]])?;
    let all = [w.ask(a, &[Do::Read(y)]), w.ask(a, &[Do::Read(y), Do::Append(x)])];
    w.run(millis(20));
    w.start_again(b);
    w.release(vote);
    w.until("another term", |w| w.lives(b) == 2 && w.leader(1) == Some(b) && in_doubt_at(w, b) == 0);
    assert_eq!(overlaid(&w, a), 1, "the view has heard of nothing");
    // A view answers in the term to which its log has come.
    w.release(lag);
    all.into_iter().for_each(|txn| w.committed(txn));
    w.run(millis(300));
    assert_eq!(overlaid(&w, a), 0);
    w.end()
}

#[test]
fn a_region_that_dies_in_doubt_answers_who_names_what_it_has_promised() {
    demand_sound_of(&ENGINES, validator_dies);
}
