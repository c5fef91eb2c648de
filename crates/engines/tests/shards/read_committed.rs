//! Read committed (qstore.md, section 4.10): what a transaction only reads it sees as of the end of the epoch before, and it
//! waits for nobody.

use ordain_engines::qstore;
use ordain_gateway::Ticket;
use ordain_model::args::encode;
use ordain_model::{
    Abort, ArgsBuilder, Call, Db, Execution, Isolation, OutcomeStatus, PartitionId, Version, system,
};
use ordain_sim::workload::procedures as p;

use crate::qstore::{run, shown, waiting_group};
use crate::random::{Request, command};
use crate::support::cluster::{Cluster, REPLICA, Shape};
use crate::support::{Bench, Options, SHARD, key_on, procedures as t, render};

fn bench(shards: usize, execution: Execution) -> Bench {
    let sequencer = ordain_deterministic::sequencing::Settings {
        execution,
        ..ordain_deterministic::sequencing::Settings::default()
    };
    let (scheduling, isolation) = (qstore::SCHEDULING, Isolation::ReadCommitted);
    Bench::new(Options { shards, scheduling, isolation, sequencer, ..Options::default() })
}

fn submit(bench: &mut Bench, words: &[&[u8]]) -> Ticket {
    let (procedure, db, args) = command(words, Db(0));
    bench.submit(0, Call::new(procedure, db), &args).unwrap()
}

/// A MULTI block, if what was watched has the version that was seen.
fn multi(bench: &mut Bench, watched: &[(&[u8], Version)], calls: &[Request]) -> Ticket {
    let mut args = Vec::new();
    system::multi_args(
        watched.iter().map(|(key, version)| (Db(0), *key, *version)),
        calls.iter().map(|(procedure, db, args)| (*procedure, *db, &**args)),
        &mut ArgsBuilder::new(&mut args),
    );
    bench.submit(0, Call::new(system::MULTI, Db(0)), &args).unwrap()
}

/// Of two records on two shards both are changed a thousand times, together, by transactions of all shapes, some of which
/// abort; readers of all shapes among them see both as they were, and those of the next batch as they are then.
#[test]
fn scenario_17_readers_among_a_thousand_updates_of_their_record() {
    for (shards, execution) in
        [(1, Execution::Conservative), (2, Execution::Conservative), (2, Execution::Speculative)]
    {
        let mut bench = bench(shards, execution);
        let (x, y, taken) = (key_on("x", 0, shards), key_on("y", shards - 1, shards), key_on("t", 0, shards));
        // Longer than what is kept in a record's line, so that it would be torn if it could be.
        let value = |n: usize| format!("{n:0100}").into_bytes();
        submit(&mut bench, &[b"mset", &x, &value(0), &y, &value(0), &taken, b"1"]);
        run(&mut bench);
        let script = b"return {redis.call('get', KEYS[1]), redis.call('get', KEYS[2])}";
        let mut readers = Vec::new();
        for n in 1..=1000 {
            match n % 4 {
                0 => _ = submit(&mut bench, &[b"msetnx", &x, b"no", &y, b"no"]),
                1 => _ = submit(&mut bench, &[b"del", &x, &y]),
                _ => {}
            }
            if n % 50 == 0 {
                bench.submit(0, Call::new(t::TRUSTING, Db(0)), &encode(&[&taken, &y])).unwrap();
            }
            submit(&mut bench, &[b"mset", &x, &value(n), &y, &value(n)]);
            readers.push(match n % 3 {
                0 => submit(&mut bench, &[b"mget", &x, &y]),
                1 => submit(&mut bench, &[b"eval_ro", script, b"2", &x, &y]),
                _ => {
                    let gets = [command(&[b"get", &x], Db(0)), command(&[b"get", &y], Db(0))];
                    multi(&mut bench, &[], &gets)
                }
            });
        }
        run(&mut bench);
        let both = |n| format!("[\"{0}\" \"{0}\"]", String::from_utf8(value(n)).unwrap());
        for reader in readers {
            assert_eq!(shown(&bench, reader), both(0));
        }
        let after = submit(&mut bench, &[b"mget", &x, &y]);
        run(&mut bench);
        assert_eq!(shown(&bench, after), both(1000));
    }
}

/// What a block writes it reads as it has written it; what it only reads is as before the epoch, whatever was asked first.
#[test]
fn a_record_that_is_read_and_written_is_as_its_place_in_the_order_has_it() {
    for shards in [1, 3] {
        let mut bench = bench(shards, Execution::Conservative);
        let (a, b) = (key_on("a", 0, shards), key_on("b", shards - 1, shards));
        submit(&mut bench, &[b"mset", &a, b"1", &b, b"1"]);
        run(&mut bench);
        submit(&mut bench, &[b"mset", &a, b"2", &b, b"2"]);
        let calls: [&[&[u8]]; 4] = [&[b"get", &a], &[b"incrby", &a, b"10"], &[b"get", &a], &[b"get", &b]];
        let block = multi(&mut bench, &[], &calls.map(|words| command(words, Db(0))));
        // From one record to the other: what is read may be lost on the way.
        let copied = submit(&mut bench, &[b"copy", &b, &a, b"replace"]);
        run(&mut bench);
        assert_eq!(shown(&bench, block), "[\"2\" 12 \"12\" \"1\"]");
        assert_eq!(shown(&bench, copied), "1");
        let after = submit(&mut bench, &[b"mget", &a, &b]);
        run(&mut bench);
        assert_eq!(shown(&bench, after), "[\"1\" \"2\"]", "two updates of what was read were not seen");
    }
}

/// A validated read is checked against the record as the order has it: or else two would both find that nobody has changed it.
#[test]
fn what_is_watched_is_checked_in_the_order() {
    let mut bench = bench(2, Execution::Conservative);
    let (x, far) = (key_on("x", 0, 2), key_on("y", 1, 2));
    submit(&mut bench, &[b"set", &x, b"5"]);
    run(&mut bench);
    let read = bench.ask(Call::new(system::READ, Db(0)), &encode(&[&[0][..], &x]));
    let version = system::read_reply([(Db(0), &*x)], &read.reply).unwrap().records[0].version;
    let counted = [command(&[b"get", &x], Db(0)), command(&[b"incrby", &far, b"1"], Db(0))];
    let held = multi(&mut bench, &[(&x, version)], &counted);
    submit(&mut bench, &[b"set", &x, b"6"]);
    let refuted = multi(&mut bench, &[(&x, version)], &counted);
    run(&mut bench);
    assert_eq!(shown(&bench, held), "[\"5\" 1]");
    assert_eq!(bench.answer(refuted).unwrap().status, OutcomeStatus::Aborted(Abort::Conflict));
}

/// A reader has no place in a queue, so whatever waits in front of its record's does not keep it waiting.
#[test]
fn a_reader_waits_for_nobody() {
    let mut bench = bench(2, Execution::Conservative);
    let (held, group, behind) = waiting_group(&mut bench);
    let call = |procedure| Call::new(procedure, p::OBJECTS);
    assert!(bench.answer(group).is_none());
    assert_eq!(shown(&bench, behind), "[\"x\"]");
    // One of the next epoch is to see what the group does.
    let next = bench.submit(0, call(p::GET), &encode(&[&held])).unwrap();
    bench.flush(0);
    bench.settle();
    assert!(bench.answer(next).is_none());
    bench.release(SHARD + 1, SHARD);
    bench.settle();
    bench.verify();
    assert_ne!(shown(&bench, next), "[\"x\"]");
}

/// What is kept for readers goes when nobody of their epoch is left.
#[test]
fn what_is_kept_for_readers_goes() {
    let mut bench = bench(2, Execution::Conservative);
    for n in 0..50u32 {
        for key in 0..40 {
            submit(&mut bench, &[b"set", format!("k{key}").as_bytes(), &n.to_le_bytes()]);
        }
        run(&mut bench);
    }
    let older = |bench: &Bench| {
        let kept = |shard| crate::support::gauge(shard, "ordain_store_older_records");
        bench.shards.iter().map(|shard| kept(shard)).sum::<f64>()
    };
    assert!(older(&bench) <= 80.0, "{} contents are kept of 40 records", older(&bench));
    bench.advance(ordain_model::Micros::from_millis(200));
    bench.settle();
    assert_eq!(older(&bench), 0.0);
}

/// Over partitions somebody may be told of a write of an epoch before another partition has closed it: a read that it
/// sequences then is of that epoch, and does not see the write. The next one does.
#[test]
fn over_partitions_a_client_may_not_see_what_it_was_told_of_in_the_same_epoch() {
    let (scheduling, isolation) = (qstore::SCHEDULING, Isolation::ReadCommitted);
    let mut cluster = Cluster::new(Shape { scheduling, isolation, ..Shape::default() });
    let (here, there) = (cluster.key_in("a", 0), cluster.key_in("b", 1));
    let ask = |cluster: &mut Cluster, words: &[&[u8]]| {
        let (procedure, db, args) = command(words, Db(0));
        cluster.submit(0, REPLICA, Call::new(procedure, db), &args).unwrap()
    };
    let wrote = ask(&mut cluster, &[b"mset", &here, b"1", &there, b"1"]);
    let missed = ask(&mut cluster, &[b"get", &there]);
    cluster.seal();
    cluster.settle();
    let seen = ask(&mut cluster, &[b"get", &there]);
    cluster.seal();
    cluster.settle();
    let place = |ticket| cluster.answer(ticket).unwrap().gsn;
    assert!(place(wrote) < place(missed), "its place is after the write");
    assert_eq!((place(wrote).partition(), place(missed).partition()), (PartitionId(0), PartitionId(1)));
    let reply = |ticket| render(&cluster.answer(ticket).unwrap().reply);
    assert_eq!((reply(missed), reply(seen)), ("nil".into(), "\"1\"".into()));
    cluster.verify();
}

/// In the epoch of a move nobody has the state before it where the slot is now: who would read it comes again.
#[test]
fn a_read_of_a_slot_that_has_moved_in_its_epoch_is_turned_back() {
    let (scheduling, isolation) = (qstore::SCHEDULING, Isolation::ReadCommitted);
    for partition in [0, 1] {
        let mut cluster = Cluster::new(Shape { scheduling, isolation, ..Shape::default() });
        let (moved, stays) = (cluster.key_in("m", 0), cluster.key_in("s", 1));
        let ask = |cluster: &mut Cluster, words: &[&[u8]]| {
            let (procedure, db, args) = command(words, Db(0));
            cluster.submit(partition, REPLICA, Call::new(procedure, db), &args).unwrap()
        };
        ask(&mut cluster, &[b"mset", &moved, b"1", &stays, b"1"]);
        cluster.seal();
        let mut args = Vec::new();
        system::move_args(&(0..512), PartitionId(1), &mut ArgsBuilder::new(&mut args));
        cluster.submit(0, REPLICA, Call::new(system::MOVE, Db(0)), &args).unwrap();
        cluster.plans = cluster.layout.moved(&(0..512), PartitionId(1)).unwrap().into();
        let turned_back = ask(&mut cluster, &[b"mget", &moved, &stays]);
        let written = ask(&mut cluster, &[b"append", &moved, b"2"]);
        let read = ask(&mut cluster, &[b"get", &stays]);
        cluster.seal();
        let again = ask(&mut cluster, &[b"mget", &moved, &stays]);
        cluster.seal();
        cluster.settle();
        cluster.verify();
        assert_eq!(cluster.answer(turned_back).unwrap().status, OutcomeStatus::Moved);
        let reply = |ticket| render(&cluster.answer(ticket).unwrap().reply);
        assert_eq!([written, read, again].map(reply), ["2", "\"1\"", "[\"12\" \"1\"]"]);
    }
}
