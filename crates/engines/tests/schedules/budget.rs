//! Values on disk: who reads one waits for it without a lock, whatever comes meanwhile (decision 58).

use ordain_commands::{Action, ids, lookup};
use ordain_commit::CommitEngine;
use ordain_engines::{fwkv, maat, mvcc, timestamp, walter};
use ordain_model::args::{Args, encode};
use ordain_model::{ArgsBuilder, Datum, Db, Micros, Version, system};
use ordain_role::{Bugs, NodeId};
use ordain_workload::append;

use crate::world::{Ticket, World, on_disk};
use crate::{ENGINES, Schedule, millis};

const OTHERS: [CommitEngine; 5] =
    [timestamp::ENGINE, mvcc::ENGINE, maat::ENGINE, walter::ENGINE, fwkv::ENGINE];
/// Disks that are slow take so long: engines remember of a record for longer than that who has used it last.
const SLOW: Micros = millis(30);

fn demand(schedule: Schedule) {
    for engine in ENGINES.iter().chain(&OTHERS) {
        assert_eq!(on_disk(|| schedule(*engine, Bugs::NONE)), Ok(()), "{}", engine.name);
    }
}

/// A cluster of two partitions, and a key of each whose value is on the disk of its leader.
fn evicted(engine: CommitEngine, bugs: Bugs) -> (World, [Vec<u8>; 2], [NodeId; 2]) {
    let mut w = World::new(engine, 2, bugs);
    let keys = [0, 1].map(|partition| w.key_in(partition, 0));
    let leaders = [0, 1].map(|partition| w.led_by(partition));
    let written = w.command(leaders[0], ids::MSET, &[&keys[0], b"first", &keys[1], b"first"]);
    w.committed(written);
    w.until("it is on disk", |w| {
        leaders.iter().all(|node| w.gauge(*node, "ordain_values_evicted_total") > 0.0)
    });
    w.set_values_after(SLOW);
    (w, keys, leaders)
}

/// The arguments in an encoding.
fn words(args: &[u8]) -> Vec<&[u8]> {
    Args::parse(args).expect("an encoding").iter().map(|arg| arg.bytes).collect()
}

/// Waits until a transaction is committed, whose reply ends with a value.
fn demand_reply(w: &mut World, txn: Ticket, value: &[u8]) -> Result<(), String> {
    w.committed(txn);
    let reply = w.answered(txn).reply;
    if reply.ends_with(value) { Ok(()) } else { Err(format!("it has read {:?}", Datum::first(&reply))) }
}

/// Nobody waits for a value any more, and none is kept.
fn at_rest(w: &mut World) -> Result<(), String> {
    w.run(millis(3_000));
    for partition in 0..2 {
        for node in w.members(partition) {
            let pinned = w.gauge(node, "ordain_values_pinned");
            if pinned > 0.0 {
                return Err(format!("{pinned} names are kept in memory on {node:?}"));
            }
        }
    }
    Ok(())
}

/// T1 reads k of B, whose value is on disk; T2 overwrites it without a look, and is over before that comes.
fn overwritten(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let (mut w, [own, k], [a, b]) = evicted(engine, bugs);
    let t1 = w.command(a, ids::MGET, &[&own, &k]);
    w.run(millis(10));
    let t2 = w.command(b, ids::SET, &[&k, b"second"]);
    w.run(millis(10));
    if w.answer(t2).is_none() || w.answer(t1).is_some() {
        return Err("a blind write waits for one who waits for the disk".to_owned());
    }
    w.committed(t1);
    w.committed(t2);
    at_rest(&mut w)?;
    w.end()
}

#[test]
fn who_waits_for_the_disk_holds_up_nobody() {
    demand(overwritten);
}

/// Nobody waits for a value at which he does not look.
fn spared(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let (mut w, [own, k], [a, _]) = evicted(engine, bugs);
    let (one, two) = (Datum::Int(1), Datum::Int(2));
    for (procedure, args, expected) in [
        (ids::EXISTS, &[&own[..], &k][..], two),
        (ids::TTL, &[&k], Datum::Int(-1)),
        (ids::TYPE, &[&k], Datum::Status(b"string")),
        (ids::DEL, &[&own, &k], two),
        (ids::EXISTS, &[&k], Datum::Int(0)),
        (ids::SET, &[&k, b"second"], Datum::Status(b"OK")),
        (ids::DEL, &[&k], one),
    ] {
        let txn = w.command(a, procedure, args);
        w.run(millis(15));
        let Some(reply) = w.answer(txn).map(|answer| answer.reply.clone()) else {
            return Err(format!("{procedure:?} waits for the disk"));
        };
        if Datum::first(&reply) != expected {
            return Err(format!("{procedure:?} is answered {:?}", Datum::first(&reply)));
        }
    }
    at_rest(&mut w)?;
    w.end()
}

#[test]
fn who_looks_at_no_value_waits_for_no_disk() {
    demand(spared);
}

/// The leader of B goes while T1 waits for its disk: the next one has the value on a disk of its own.
fn deposed(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let (mut w, [own, k], [a, b]) = evicted(engine, bugs);
    let t1 = w.command(a, ids::MGET, &[&own, &k]);
    w.run(millis(10));
    w.depose(b);
    w.another_leads(1, b);
    demand_reply(&mut w, t1, b"first")?;
    w.restore(b);
    at_rest(&mut w)?;
    w.end()
}

#[test]
fn a_leader_that_goes_while_its_disk_is_awaited_leaves_nothing_behind() {
    demand(deposed);
}

/// A MULTI block exchanges two databases and then reads a key of the one that has come, whose value is on disk.
fn swapped(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let (mut w, [_, k], [a, _]) = evicted(engine, bugs);
    let other = Db(append::DB.0 + 1);
    let databases = [append::DB, other].map(|db| db.0.to_string().into_bytes());
    let swap = encode(&[&databases[0], &databases[1]]);
    let calls = [(ids::SWAPDB, append::DB, swap), (ids::GET, other, encode(&[&k]))];
    let mut args = Vec::new();
    let read: [(Db, &[u8], Version); 0] = [];
    system::multi_args(
        read.into_iter(),
        calls.iter().map(|(procedure, db, args)| (*procedure, *db, &**args)),
        &mut ArgsBuilder::new(&mut args),
    );
    let t1 = w.command(a, system::MULTI, &words(&args));
    demand_reply(&mut w, t1, b"first")?;
    at_rest(&mut w)?;
    w.end()
}

#[test]
fn a_swap_and_a_read_of_what_has_come_wait_for_the_right_value() {
    demand(swapped);
}

/// A script reads two keys of two partitions, one of which computes, while both values are on disk; and another, which writes.
fn scripted(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let (mut w, [own, k], [a, b]) = evicted(engine, bugs);
    let script: &[u8] =
        b"redis.call('APPEND', KEYS[2], redis.call('GET', KEYS[1])) return redis.call('GET', KEYS[2])";
    let Some(Action::Procedure { id, encode }) = lookup(b"eval").map(|command| command.action) else {
        return Err("EVAL is no procedure".to_owned());
    };
    for (node, expected) in [(a, &b"firstfirst"[..]), (b, b"firstfirstfirst")] {
        let mut args = Vec::new();
        encode(&[script, b"2", &own, &k], &mut ArgsBuilder::new(&mut args));
        let txn = w.command(node, id, &words(&args));
        demand_reply(&mut w, txn, expected)?;
    }
    at_rest(&mut w)?;
    w.end()
}

#[test]
fn a_script_computes_on_values_from_several_disks() {
    demand(scripted);
}
