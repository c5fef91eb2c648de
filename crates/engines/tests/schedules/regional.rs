//! Scenarios 11 and 21 of the sheet (regions.md, section 8) within one region of two shards.

use ordain_checker::dependencies::history::Op;
use ordain_commands::ids;
use ordain_commit::{CommitEngine, Protocol};
use ordain_engines::{regions_2pl, regions_silo};
use ordain_model::datum::DatumReader;
use ordain_model::{Datum, Micros, Options};
use ordain_role::{Bug, Bugs};

use crate::world::{Do, World, read};
use crate::{demand_of, demand_sound_of, millis, said};

fn region(engine: CommitEngine, bugs: Bugs) -> World {
    World::sharded(engine, Options::new(engine.name, &[]), (1, 2), bugs)
}

/// Scenario 11: T1 has read x and writes y, T2 writes x once T1 is validated. Whoever reads a prefix of the log with T2 in it finds T1 there (G3): the
/// places are in the order of the conflict.
fn places(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = region(engine, bugs);
    let (x, y, a) = (w.list_at(0, 0), w.list_at(0, 1), w.led_by(0));
    let t1 = w.ask(a, &[Do::Read(x), Do::Append(y)]);
    // It is validated, and its decision is on its way to the members.
    w.run(Micros(200));
    let t2 = w.ask(a, &[Do::Append(x)]);
    [t1, t2].into_iter().for_each(|txn| w.committed(txn));
    let seen = read(&w.answered(t1)).expect("it says what it has read");
    let has_seen =
        seen.ops.iter().any(|op| matches!(op, Op::Read { key, values } if *key == x && !values.is_empty()));
    if has_seen != (w.stamp(t2) < w.stamp(t1)) {
        return Err("a prefix of the log has who has overwritten, and not who has read before".to_owned());
    }
    w.end()
}

#[test]
fn scenario_11_places_are_in_the_order_of_conflicts() {
    demand_sound_of(&[regions_2pl::ENGINE], places);
    demand_of(&[regions_silo::ENGINE], places, Bug::PlaceLate);
}

/// Scenario 21, at home: T1 reads x, and z late. Meanwhile x is removed and made anew: T1 begins anew, or has kept x from being removed.
fn remade(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = region(engine, bugs);
    let (x, z, a) = (w.key_on(0, 0), w.key_on(1, 0), w.led_by(0));
    let first = w.command(a, ids::SET, &[&x, b"old"]);
    w.committed(first);
    let shard = w.shard_at(a, 1);
    let late = w.hold(move |from, to, message| {
        from.node == a && to == shard && matches!(said(message), Some(Protocol::Access(_)))
    });
    let t1 = w.command(a, ids::MGET, &[&x, &z]);
    w.until("T1's access", World::holds_something);
    w.run(millis(1));
    let remove = w.command(a, ids::DEL, &[&x]);
    w.run(millis(5));
    let again = w.command(a, ids::SET, &[&x, b"new"]);
    w.run(millis(5));
    let is_waiting = w.answer(remove).is_none();
    w.release(late);
    [remove, again, t1].into_iter().for_each(|txn| w.committed(txn));
    let seen = w.answered(t1).reply;
    w.end()?;
    let is_old = DatumReader(&seen).eq([Datum::Array(2), Datum::Bulk(b"old"), Datum::Nil]);
    let is_new = DatumReader(&seen).eq([Datum::Array(2), Datum::Bulk(b"new"), Datum::Nil]);
    // With locks, who removes it waits for T1.
    match is_waiting && is_old || !is_waiting && is_new {
        true => Ok(()),
        false => Err("what was read was removed and made anew, and counts".to_owned()),
    }
}

#[test]
fn scenario_21_what_was_removed_and_made_anew_was_not_read() {
    demand_sound_of(&[regions_2pl::ENGINE], remade);
    demand_of(&[regions_silo::ENGINE], remade, Bug::SkipValidation);
}
