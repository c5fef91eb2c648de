//! The scenarios of qstore.md, section 8, by number.
//!
//! | scenario | here | besides |
//! |---|---|---|
//! | 1 a value, and a verdict, from another range of one executor | below | |
//! | 2 a chain over two shards, a thousand times in a batch | below | |
//! | 3 checks on two shards, one fails | below | sim |
//! | 4 the first of a batch aborts, and all use its key | below | |
//! | 5 an abort that undone data caused, and the reverse | below | `random` |
//! | 6 a cascade over four shards and back | below | |
//! | 7 an affected transaction reads what a later one has changed | below | `random` |
//! | 8 an insert that is aborted, then a read and a deletion | below | `random` |
//! | 9 answers before their batch | below | sim |
//! | 10 nobody asks for anything | all that is here: no epoch is closed then; `deterministic/src/sequencing/tests.rs` | |
//! | 11 killed amid a batch | | sim; e2e `kill` |
//! | 12 another number of shards at replay | `random`; `replay` in `src/shard/replay.rs` | |
//! | 13 another map, and transactions planned under the old one | below: a range is a fixed part of a shard, and slots move between shards | `moving`; sim |
//! | 14 slots that change hands often, under load | below | `moving`; sim |
//! | 15 all keys in one range | below | |
//! | 16 orders of items that there are not | below; items are records, so a planner knows only what is no item's key | |
//! | 18 a scan among inserts and deletions | below | `random` |
//! | 19 nothing to abort, then something | below | |
//! | 20 a batch larger than what clients ask for | all that is here: a batch closes when there is nothing more | |
//! | 17 read committed | `read_committed` | `random`, `partitions`, `moving`; sim |

use ordain_deterministic::shard::{Findings, Item, Round, Scheduling, ShardMessage};
use ordain_engines::{calvin, qstore};
use ordain_gateway::Ticket;
use ordain_model::args::encode;
use ordain_model::{
    Abort, ArgsBuilder, Call, Cascade, Choice, Db, Execution, Gsn, Isolation, KeyHash, OutcomeStatus,
    PartitionId, SlotNo, system,
};
use ordain_sim::workload::procedures as p;

use crate::random::command;
use crate::support::cluster::{Cluster, REPLICA, Shape};
use crate::support::{Bench, LOG, Options, SHARD, gauge, key_on, procedures as t, render};

fn bench(shards: usize) -> Bench {
    Bench::new(Options { shards, scheduling: qstore::SCHEDULING, ..Options::default() })
}

/// One that executes before it is known what aborts, wherever that can matter.
fn speculative(shards: usize) -> Bench {
    let sequencer = ordain_deterministic::sequencing::Settings {
        execution: Execution::Speculative,
        ..ordain_deterministic::sequencing::Settings::default()
    };
    Bench::new(Options { shards, scheduling: qstore::SCHEDULING, sequencer, ..Options::default() })
}

/// The same, where what used something that is undone aborts too.
fn cascading(shards: usize) -> Bench {
    let sequencer = ordain_deterministic::sequencing::Settings {
        execution: Execution::Speculative,
        cascade: Cascade::Abort,
        ..ordain_deterministic::sequencing::Settings::default()
    };
    Bench::new(Options { shards, scheduling: qstore::SCHEDULING, sequencer, log: true, ..Options::default() })
}

/// Submits what changes `counted`, unless `checked` is there: then it aborts.
fn trust(bench: &mut Bench, checked: &[u8], counted: &[u8]) -> Ticket {
    bench.submit(0, Call::new(t::TRUSTING, Db(0)), &encode(&[checked, counted])).unwrap()
}

fn is_aborted(bench: &Bench, ticket: Ticket) -> bool {
    bench.answer(ticket).expect("it is answered").status == OutcomeStatus::Aborted(Abort::Logic)
}

/// The most that a shard has counted.
fn count(bench: &Bench, name: &str) -> u64 {
    let counted = bench.shards.iter().map(|shard| gauge(shard, &format!("ordain_shard_{name}_total")) as u64);
    counted.max().unwrap_or_default()
}

/// Submits commands, which will be of one batch.
fn submit(bench: &mut Bench, commands: &[&[&[u8]]]) -> Vec<Ticket> {
    let submit = |words: &&[&[u8]]| {
        let (procedure, db, args) = command(words, Db(0));
        bench.submit(0, Call::new(procedure, db), &args).unwrap()
    };
    commands.iter().map(submit).collect()
}

pub(super) fn run(bench: &mut Bench) {
    bench.flush(0);
    bench.settle();
    bench.verify();
}

pub(super) fn shown(bench: &Bench, ticket: Ticket) -> String {
    render(&bench.answer(ticket).expect("it is answered").reply)
}

#[test]
fn scenario_01_a_value_and_a_verdict_from_another_range_of_one_executor() {
    let mut bench = bench(1);
    let keys: Vec<Vec<u8>> = (0..40).map(|i| format!("o{i}").into_bytes()).collect();
    let call = |procedure| Call::new(procedure, p::OBJECTS);
    for key in &keys {
        bench.submit(0, call(p::PUT), &encode(&[&key[..], b"x"])).unwrap();
    }
    // Each takes values from one record to the other; wherever the two are, the executor must not wait for itself.
    for pair in keys.windows(2) {
        bench.submit(0, call(p::ROTATE), &encode(&[&pair[0], &pair[1]])).unwrap();
        bench.submit(0, call(p::ROTATE), &encode(&[&pair[1], &pair[0]])).unwrap();
        // A check on the one, and a change of the other that hangs on it.
        bench.submit(0, call(t::TRUSTING), &encode(&[&pair[0], &pair[1]])).unwrap();
    }
    run(&mut bench);
    assert_eq!(gauge(&bench.shards[0], "ordain_shard_in_flight"), 0.0);
}

#[test]
fn scenario_02_a_chain_over_two_shards_a_thousand_times_in_a_batch() {
    let mut bench = bench(2);
    let (hot, far) = (key_on("o", 0, 2), key_on("p", 1, 2));
    let call = |procedure| Call::new(procedure, p::OBJECTS);
    bench.ask(call(p::PUT), &encode(&[&hot[..], b"first"]));
    bench.ask(call(p::PUT), &encode(&[&far[..], b"far"]));
    for _ in 0..1000 {
        bench.submit(0, call(p::ROTATE), &encode(&[&hot, &far])).unwrap();
    }
    let last = bench.submit(0, call(p::GET), &encode(&[&hot])).unwrap();
    run(&mut bench);
    assert_eq!(shown(&bench, last), "[\"first\"]", "an even number of times");
}

#[test]
fn scenario_03_checks_on_two_shards_of_which_one_fails() {
    let mut bench = bench(2);
    let (here, there) = (key_on("a", 0, 2), key_on("b", 1, 2));
    submit(&mut bench, &[&[b"set", &there, b"taken"]]);
    let asked = submit(
        &mut bench,
        &[
            &[b"msetnx", &here, b"1", &there, b"2"],
            &[b"msetnx", &there, b"1", &here, b"2"],
            &[b"exists", &here],
            &[b"get", &there],
        ],
    );
    run(&mut bench);
    let shown: Vec<String> = asked.iter().map(|ticket| shown(&bench, *ticket)).collect();
    assert_eq!(shown, ["0", "0", "0", "\"taken\""]);
}

#[test]
fn scenario_04_the_first_of_a_batch_aborts_and_all_use_its_key() {
    let mut bench = speculative(2);
    let (hot, taken) = (key_on("h", 0, 2), key_on("t", 1, 2));
    submit(&mut bench, &[&[b"set", &taken, b"x"]]);
    run(&mut bench);
    let first = trust(&mut bench, &taken, &hot);
    for i in 0..200 {
        let far = key_on(&format!("f{i}:"), 1, 2);
        submit(&mut bench, &[&[b"incrby", &hot, b"1"], &[b"copy", &hot, &far]]);
    }
    let last = submit(&mut bench, &[&[b"get", &hot]]);
    run(&mut bench);
    assert!(is_aborted(&bench, first));
    assert_eq!(shown(&bench, last[0]), "\"200\"");
    assert_eq!(
        (count(&bench, "speculative_batches"), count(&bench, "undone"), count(&bench, "affected")),
        (1, 1, 401)
    );
}

#[test]
fn scenario_05_an_abort_that_undone_data_caused_and_the_reverse() {
    let mut bench = speculative(2);
    let (a, b, taken) = (key_on("a", 0, 2), key_on("b", 1, 2), key_on("t", 1, 2));
    submit(&mut bench, &[&[b"set", &taken, b"x"]]);
    run(&mut bench);
    let c = key_on("c", 0, 2);
    // It aborts, and until then `a` is there.
    let first = trust(&mut bench, &taken, &a);
    // So this one aborts at first, and must not; and this one must, which could go on as long as `b` was not there.
    let (second, third) = (trust(&mut bench, &a, &b), trust(&mut bench, &b, &c));
    let seen = submit(&mut bench, &[&[b"exists", &a], &[b"exists", &b], &[b"exists", &c]]);
    run(&mut bench);
    assert_eq!([first, second, third].map(|ticket| is_aborted(&bench, ticket)), [true, false, true]);
    let shown: Vec<String> = seen.iter().map(|ticket| shown(&bench, *ticket)).collect();
    assert_eq!(shown, ["0", "1", "0"]);
    assert_eq!((count(&bench, "undone"), count(&bench, "affected")), (2, 5));
}

#[test]
fn scenario_06_a_cascade_over_four_shards_and_back() {
    let mut bench = speculative(4);
    let key = |name: &str, shard| key_on(name, shard, 4);
    let taken = key("t", 3);
    submit(&mut bench, &[&[b"set", &taken, b"x"], &[b"set", &key("k", 0), b"0"]]);
    run(&mut bench);
    trust(&mut bench, &taken, &key("n", 0));
    submit(&mut bench, &[&[b"copy", &key("n", 0), &key("m0:", 1), b"replace"]]);
    for hop in 1..8 {
        let (from, to) = (key(&format!("m{}:", hop - 1), hop % 4), key(&format!("m{hop}:"), (hop + 1) % 4));
        submit(&mut bench, &[&[b"copy", &from, &to, b"replace"]]);
    }
    let clean = submit(&mut bench, &[&[b"incrby", &key("k", 0), b"1"]]);
    run(&mut bench);
    assert_eq!(shown(&bench, clean[0]), "1");
    assert_eq!((count(&bench, "undone"), count(&bench, "affected")), (1, 8));
    assert!(count(&bench, "cascade_rounds") > 4, "{}", count(&bench, "cascade_rounds"));
    assert_eq!(bench.digest().records, 2);
}

#[test]
fn scenario_07_an_affected_transaction_reads_what_a_later_one_has_changed() {
    let mut bench = speculative(2);
    let (a, y, taken) = (key_on("a", 0, 2), key_on("y", 1, 2), key_on("t", 1, 2));
    submit(&mut bench, &[&[b"set", &taken, b"x"], &[b"set", &y, b"old"]]);
    run(&mut bench);
    trust(&mut bench, &taken, &a);
    let asked = submit(
        &mut bench,
        &[
            &[b"copy", &y, &a, b"replace"],
            &[b"mget", &a, &y],
            // Nobody who is undone has written `y`: these stay.
            &[b"append", &y, b" and new"],
            &[b"del", &y],
            &[b"set", &y, b"newest"],
            &[b"mget", &y, &a],
        ],
    );
    run(&mut bench);
    let shown: Vec<String> = [0, 1, 5].iter().map(|n| shown(&bench, asked[*n])).collect();
    assert_eq!(shown, ["1", "[\"old\" \"old\"]", "[\"newest\" \"old\"]"]);
    assert_eq!((count(&bench, "undone"), count(&bench, "affected")), (1, 3));
}

/// qstore.md, section 4.12, with `cascade=abort`.
#[test]
fn whoever_used_what_is_undone_aborts_too() {
    let mut bench = cascading(2);
    let (a, y) = (key_on("a", 0, 2), key_on("y", 0, 2));
    let (x, z, w) = (key_on("x", 1, 2), key_on("z", 1, 2), key_on("w", 1, 2));
    submit(&mut bench, &[&[b"mset", &a, b"1", &x, b"1", &y, b"1"]]);
    run(&mut bench);
    let first = trust(&mut bench, &a, &x);
    let copies: [&[&[u8]]; 5] = [
        &[b"copy", &x, &y, b"replace"],
        &[b"set", &z, b"1"],
        &[b"copy", &y, &w],
        &[b"get", &w],
        &[b"mset", &a, b"2", &z, b"2"],
    ];
    let asked = submit(&mut bench, &copies);
    run(&mut bench);
    assert!(is_aborted(&bench, first));
    let ended = |bench: &Bench, ticket: &Ticket| bench.answer(*ticket).unwrap().status;
    let (committed, cascade) = (OutcomeStatus::Committed, OutcomeStatus::Aborted(Abort::Cascade));
    let all: Vec<OutcomeStatus> = asked.iter().map(|ticket| ended(&bench, ticket)).collect();
    assert_eq!(all, [cascade, committed, cascade, cascade, committed]);
    assert!(shown(&bench, asked[0]).contains("TXNABORT it used what another transaction had written"));
    assert_eq!((count(&bench, "undone"), count(&bench, "affected")), (1, 3));
    // Whoever asks again gets it.
    let again = submit(&mut bench, &copies[..3]);
    run(&mut bench);
    assert!(again.iter().all(|ticket| ended(&bench, ticket) == committed));
    bench.crash();
}

/// What aborts with what is a function of the log: of which reads of the whole table are not part, though units end there;
/// and not of how many shards there are, though a transaction on one alone is judged at once.
#[test]
fn what_a_cascade_takes_along_is_the_same_when_the_log_is_executed_again() {
    let mut bench = cascading(3);
    // Of two keys on one shard.
    let (taken, hot) = (key_on("t", 0, 3), key_on("h", 1, 3));
    let (alone, beside) = (key_on("a", 2, 3), key_on("b", 2, 3));
    submit(&mut bench, &[&[b"mset", &taken, b"x", &alone, b"y"]]);
    run(&mut bench);
    trust(&mut bench, &taken, &hot);
    trust(&mut bench, &alone, &beside);
    let count = |bench: &mut Bench, key: &[u8]| submit(bench, &[&[b"incrby", key, b"1"]])[0];
    let before = [count(&mut bench, &hot), count(&mut bench, &beside)];
    submit(&mut bench, &[&[b"dbsize"]]);
    let after = [count(&mut bench, &hot), count(&mut bench, &beside)];
    let (procedure, db, args) = command(&[b"flushdb"], Db(5));
    bench.submit(0, Call::new(procedure, db), &args).unwrap();
    let last = [count(&mut bench, &hot), count(&mut bench, &beside)];
    run(&mut bench);
    let ended = |ticket: &Ticket| bench.answer(*ticket).unwrap().status;
    let cascade = OutcomeStatus::Aborted(Abort::Cascade);
    assert!(before.iter().chain(&after).all(|ticket| ended(ticket) == cascade));
    assert!(last.iter().all(|ticket| ended(ticket) == OutcomeStatus::Committed));
    let digest = bench.digest();
    for shards in [3, 1, 2, 5] {
        bench.options.shards = shards;
        bench.crash();
        assert_eq!(bench.digest(), digest, "{shards} shards");
    }
}

#[test]
fn scenario_19_nothing_to_abort_then_something() {
    let mut bench = speculative(2);
    let (a, b) = (key_on("a", 0, 2), key_on("b", 1, 2));
    // Batches of which nothing can abort wait for nobody.
    bench.hold(SHARD + 1, SHARD);
    bench.hold(SHARD, SHARD + 1);
    for n in 0..3 {
        let asked = submit(&mut bench, &[&[b"incrby", &a, b"1"], &[b"incrby", &b, b"1"]]);
        bench.flush(0);
        bench.settle();
        assert!(asked.iter().all(|ticket| bench.answer(*ticket).is_some()), "batch {n}");
    }
    assert_eq!(count(&bench, "speculative_batches"), 0);
    let c = key_on("c", 1, 2);
    let first = [trust(&mut bench, &a, &c), submit(&mut bench, &[&[b"incrby", &a, b"1"]])[0]];
    bench.flush(0);
    let second = submit(&mut bench, &[&[b"incrby", &a, b"1"]]);
    bench.flush(0);
    bench.settle();
    assert!(
        first.iter().chain(&second).all(|ticket| bench.answer(*ticket).is_none()),
        "not before it is decided"
    );
    bench.release(SHARD + 1, SHARD);
    bench.release(SHARD, SHARD + 1);
    bench.settle();
    bench.verify();
    assert_eq!((count(&bench, "speculative_batches"), shown(&bench, second[0])), (1, "5".into()));
}

#[test]
fn scenario_08_an_insert_that_is_aborted_then_a_read_and_a_deletion() {
    for shards in [1, 2] {
        let mut bench = bench(shards);
        let (new, old) = (key_on("n", 0, shards), key_on("o", shards - 1, shards));
        submit(&mut bench, &[&[b"set", &old, b"1"]]);
        let asked = submit(
            &mut bench,
            &[&[b"msetnx", &new, b"1", &old, b"2"], &[b"get", &new], &[b"del", &new], &[b"set", &new, b"3"]],
        );
        run(&mut bench);
        let shown: Vec<String> = asked.iter().map(|ticket| shown(&bench, *ticket)).collect();
        assert_eq!(shown, ["0", "nil", "0", "OK"]);
        assert_eq!(bench.digest().records, 2);
    }
}

#[test]
fn scenario_09_answers_come_before_their_batch() {
    let mut bench = bench(2);
    let (here, there) = (key_on("a", 0, 2), key_on("b", 1, 2));
    submit(&mut bench, &[&[b"mset", &here, b"1", &there, b"2"]]);
    run(&mut bench);
    bench.hold(LOG, SHARD);
    let asked = submit(&mut bench, &[&[b"mget", &here, &there], &[b"mget", &here, &there, &here]]);
    bench.flush(0);
    bench.settle();
    assert!(gauge(&bench.shards[0], "ordain_shard_out_of_order_items") >= 2.0);
    assert!(bench.answer(asked[0]).is_none());
    bench.release(LOG, SHARD);
    bench.settle();
    bench.verify();
    assert_eq!(shown(&bench, asked[1]), "[\"1\" \"2\" \"1\"]");
    assert_eq!(gauge(&bench.shards[0], "ordain_shard_out_of_order_items"), 0.0);
}

/// The ways of executing a cluster's queues.
const WAYS: [(bool, Cascade, Isolation); 5] = [
    (false, Cascade::Repair, Isolation::Serializable),
    (true, Cascade::Repair, Isolation::Serializable),
    (true, Cascade::Abort, Isolation::Serializable),
    (false, Cascade::Repair, Isolation::ReadCommitted),
    (true, Cascade::Repair, Isolation::ReadCommitted),
];

fn in_queues((speculative, cascade, isolation): (bool, Cascade, Isolation), seed: u64) -> Shape {
    let (scheduling, threads) = (qstore::SCHEDULING, 2);
    Shape { scheduling, speculative, cascade, isolation, threads, seed, ..Shape::default() }
}

fn send_move(cluster: &mut Cluster, slots: &std::ops::Range<usize>, to: u16) {
    let mut args = Vec::new();
    system::move_args(slots, PartitionId(to), &mut ArgsBuilder::new(&mut args));
    cluster.submit(0, REPLICA, Call::new(system::MOVE, Db(0)), &args).unwrap();
}

fn send(cluster: &mut Cluster, node: usize, words: &[&[u8]]) -> crate::support::cluster::Ticket {
    let (procedure, db, args) = command(words, Db(0));
    cluster.submit(node, REPLICA, Call::new(procedure, db), &args).unwrap()
}

#[test]
fn scenario_13_another_map_when_the_next_batch_is_planned_under_the_old_one() {
    for (way, seed) in WAYS.into_iter().flat_map(|way| (0..8).map(move |seed| (way, seed))) {
        let mut cluster = Cluster::new(in_queues(way, seed));
        let (moves, stays, far) = (cluster.key_in("m", 0), cluster.key_in("s", 0), cluster.key_in("f", 1));
        let slot = KeyHash::of(&moves).slot();
        assert_ne!(slot, KeyHash::of(&stays).slot());
        send(&mut cluster, 0, &[b"mset", &moves, b"1", &stays, b"1", &far, b"1"]);
        cluster.seal();
        // What node 0 gives away does not arrive, so the batch of the move is under way when the next comes.
        cluster.hold(0, 1);
        send_move(&mut cluster, &(slot..slot + 1), 1);
        cluster.seal();
        let stale = [
            send(&mut cluster, 0, &[b"append", &moves, b"2"]),
            send(&mut cluster, 1, &[b"msetnx", &far, b"3", &moves, b"3"]),
        ];
        let other = send(&mut cluster, 0, &[b"append", &stays, b"2"]);
        cluster.seal();
        cluster.plans = cluster.layout.moved(&(slot..slot + 1), PartitionId(1)).unwrap().into();
        let fresh = send(&mut cluster, 1, &[b"append", &moves, b"45"]);
        cluster.seal();
        cluster.settle();
        assert!(cluster.answer(fresh).is_none(), "its records are not there");
        cluster.release(0, 1);
        cluster.settle();
        cluster.verify();
        let status = |ticket| cluster.answer(ticket).unwrap().status;
        assert_eq!(stale.map(status), [OutcomeStatus::Moved; 2]);
        let reply = |ticket| render(&cluster.answer(ticket).unwrap().reply);
        assert_eq!((reply(other), reply(fresh)), ("2".into(), "3".into()), "{way:?}");
    }
}

#[test]
fn scenario_14_slots_change_hands_every_ten_transactions_under_load() {
    for (way, seed) in WAYS.into_iter().flat_map(|way| (0..3).map(move |seed| (way, seed))) {
        let mut cluster = Cluster::new(in_queues(way, 100 + seed));
        let mut requests = crate::random::Requests::new(6);
        let mut random = ordain_sim::Random::new(seed);
        let mut to = 1;
        for n in 0..600 {
            let (procedure, db, args) = requests.next(&mut random);
            if cluster.registry.get(procedure).is_some_and(|procedure| !procedure.is_dependent()) {
                cluster.submit(random.index(2), REPLICA, Call::new(procedure, db), &args);
            }
            if n % 3 == 0 {
                cluster.seal();
                (0..random.index(6)).for_each(|_| _ = cluster.step());
            }
            if n % 10 == 9 {
                // All of one side, and back: nothing of before is done when it is asked for.
                let slots = if to == 1 { 0..512 } else { 0..1024 };
                send_move(&mut cluster, &slots, to);
                cluster.seal();
                cluster.plans = cluster.plans.moved(&slots, PartitionId(to)).unwrap().into();
                to = 1 - to;
            }
        }
        cluster.settle();
        cluster.verify();
    }
}

/// TPC-C's orders over warehouses on several shards, one in a hundred of an item that there is not: a fragment finds that out, at
/// home, when stock elsewhere may have been taken.
#[test]
fn scenario_16_orders_of_items_that_there_are_not() {
    use ordain_workload::tpcc::{Mix, Parameters, Remote, Scale, Tpcc};
    use ordain_workload::{Source, Workload};
    let scale = Scale { districts: 2, customers: 5, items: 60, orders: 5, undelivered: 2 };
    let mix = Mix { new_order: 100.0, payment: 0.0, order_status: 0.0, delivery: 0.0, stock_level: 0.0 };
    let remote = Remote::Share(1.0);
    let parameters = Parameters { warehouses: 4, scale, partitions: 3, mix, remote, ..Parameters::default() };
    let tpcc = Tpcc::new(parameters).unwrap();
    let write = |source: &dyn Source| {
        let mut args = Vec::new();
        source.write_args(&mut ArgsBuilder::new(&mut args));
        args
    };
    let mut found = Vec::new();
    for execution in [Execution::Conservative, Execution::Speculative] {
        let sequencer = ordain_deterministic::sequencing::Settings {
            execution,
            ..ordain_deterministic::sequencing::Settings::default()
        };
        let mut bench = Bench::new(Options {
            shards: 3,
            scheduling: qstore::SCHEDULING,
            sequencer,
            ..Options::default()
        });
        let mut source = tpcc.source(7, 0, 1);
        while let Some(procedure) = source.load() {
            bench.submit(0, Call::new(procedure, Db(0)), &write(&*source)).unwrap();
        }
        run(&mut bench);
        let mut orders = Vec::new();
        for _ in 0..4 {
            for _ in 0..300 {
                let made = source.next();
                orders.push(bench.submit(0, Call::new(made.procedure, Db(0)), &write(&*source)).unwrap());
            }
            run(&mut bench);
        }
        // What a planner sees to be wrong is refused before it is sequenced: nobody has to do with it.
        let before = (count(&bench, "speculative_batches"), count(&bench, "affected"));
        let damaged = encode(&[&b"no warehouse"[..]]);
        let refused = (0..10).map(|_| {
            bench.submit(0, Call::new(ordain_workload::tpcc::new_order::NEW_ORDER, Db(0)), &damaged)
        });
        assert!(refused.into_iter().all(|refused| refused.is_err()));
        run(&mut bench);
        assert_eq!((count(&bench, "speculative_batches"), count(&bench, "affected")), before);
        let statuses: Vec<OutcomeStatus> =
            orders.iter().map(|ticket| bench.answer(*ticket).unwrap().status).collect();
        let aborted =
            statuses.iter().filter(|status| **status == OutcomeStatus::Aborted(Abort::Logic)).count();
        let committed = statuses.iter().filter(|status| **status == OutcomeStatus::Committed).count();
        assert_eq!(aborted + committed, orders.len());
        assert!((4..40).contains(&aborted), "{aborted} of {}", orders.len());
        let is_speculative = execution == Execution::Speculative;
        assert_eq!(
            (count(&bench, "undone") as usize, count(&bench, "affected") > 0),
            match is_speculative {
                true => (aborted, true),
                false => (0, false),
            }
        );
        found.push((statuses, bench.digest()));
    }
    assert_eq!(found[0], found[1], "the same orders, and the same stocks");
}

#[test]
fn scenario_15_all_keys_in_one_range() {
    let mut bench = bench(2);
    let hot = key_on("h", 1, 2);
    for i in 0..3000 {
        let words: &[&[u8]] = if i % 3 == 2 { &[b"get", &hot] } else { &[b"incrby", &hot, b"1"] };
        submit(&mut bench, &[words]);
    }
    let last = submit(&mut bench, &[&[b"get", &hot]]);
    run(&mut bench);
    assert_eq!(shown(&bench, last[0]), "\"2000\"");
}

#[test]
fn scenario_18_a_scan_among_inserts_and_deletions_of_its_batch() {
    let mut bench = bench(3);
    let keys: Vec<Vec<u8>> = (0..30).map(|i| format!("s{i}").into_bytes()).collect();
    let mut counts = Vec::new();
    for (i, key) in keys.iter().enumerate() {
        submit(&mut bench, &[&[b"set", key, b"1"]]);
        if i % 3 == 2 {
            submit(&mut bench, &[&[b"del", &keys[i - 1]]]);
        }
        counts.push((submit(&mut bench, &[&[b"dbsize"]])[0], i + 1 - (i + 1) / 3));
    }
    run(&mut bench);
    for (ticket, count) in counts {
        assert_eq!(shown(&bench, ticket), count.to_string());
    }
}

/// Has a group wait for a value of the second shard, which is held back, in front of a record of the first shard that has
/// the value `x`, and a read of that record behind it: the record's key, the group and the read.
pub(crate) fn waiting_group(bench: &mut Bench) -> (Vec<u8>, Ticket, Ticket) {
    let (held, far) = (key_on("o", 0, 2), key_on("p", 1, 2));
    let call = |procedure| Call::new(procedure, p::OBJECTS);
    bench.ask(call(p::PUT), &encode(&[&held[..], b"x"]));
    bench.hold(SHARD + 1, SHARD);
    let group = bench.submit(0, call(p::ROTATE), &encode(&[&held, &far])).unwrap();
    let behind = bench.submit(0, call(p::GET), &encode(&[&held])).unwrap();
    bench.flush(0);
    bench.settle();
    (held, group, behind)
}

#[test]
fn a_group_that_waits_keeps_its_ranges_waiting_and_no_others() {
    let mut bench = bench(2);
    let (_, group, behind) = waiting_group(&mut bench);
    let call = |procedure| Call::new(procedure, p::OBJECTS);
    // A later chunk: its replies wait for nothing but its own fragments.
    let keys = (0..64).map(|i| key_on(&format!("q{i}:"), 0, 2));
    let others: Vec<Ticket> =
        keys.map(|key| bench.submit(0, call(p::GET), &encode(&[&key])).unwrap()).collect();
    bench.flush(0);
    bench.settle();
    assert!(bench.answer(group).is_none() && bench.answer(behind).is_none());
    let answered = others.iter().filter(|ticket| bench.answer(**ticket).is_some()).count();
    assert_eq!(answered, others.len(), "their ranges are others");
    bench.release(SHARD + 1, SHARD);
    bench.settle();
    bench.verify();
}

/// qstore.md, section 4.3: what is in front of a range has its turn, whatever else its transaction waits for. What has been
/// read is not needed any more, and who comes next may write it; what is to be written by a value that is not here is.
#[test]
fn a_group_that_waits_for_a_value_gives_up_what_it_has_read_and_nothing_else() {
    let mut bench = bench(2);
    let (read, written, far) = (key_on("o", 0, 2), key_on("w", 0, 2), key_on("p", 1, 2));
    let call = |procedure| Call::new(procedure, p::OBJECTS);
    bench.ask(call(p::PUT), &encode(&[&far[..], b"far"]));
    bench.hold(SHARD + 1, SHARD);
    let mut ask = |procedure, args: &[&[u8]]| {
        let ticket = bench.submit(0, call(procedure), &encode(args)).unwrap();
        bench.flush(0);
        bench.settle();
        (ticket, bench.answer(ticket).is_some())
    };
    let (group, is_over) = ask(t::AFTER, &[&read, &far, &written]);
    assert!(!is_over);
    assert!(ask(p::PUT, &[&read, b"new"]).1, "what it has read may change");
    // Another group, in front of the one range and not of the other.
    let (second, is_over) = ask(t::AFTER, &[&read, &read, &written]);
    assert!(!is_over);
    assert!(ask(p::PUT, &[&read, b"newer"]).1, "neither does the second keep it");
    let (third, is_over) = ask(p::GET, &[&written]);
    assert!(!is_over, "it is still to be written");
    bench.release(SHARD + 1, SHARD);
    bench.settle();
    assert!([group, second].iter().all(|ticket| bench.answer(*ticket).is_some()));
    assert_eq!(shown(&bench, third), "[\"new\"]", "as the second has read it");
    bench.verify();
}

/// Its write is there, and may be undone: nobody may see it before the verdict is known.
#[test]
fn a_group_that_waits_for_a_verdict_keeps_what_it_has_written() {
    let mut bench = bench(2);
    let (written, far) = (key_on("o", 0, 2), key_on("p", 1, 2));
    let call = |procedure| Call::new(procedure, p::OBJECTS);
    bench.ask(call(p::PUT), &encode(&[&far[..], b"taken"]));
    bench.hold(SHARD + 1, SHARD);
    let group = bench.submit(0, call(t::GUARDED), &encode(&[&written, &far])).unwrap();
    let behind = bench.submit(0, call(p::GET), &encode(&[&written])).unwrap();
    bench.flush(0);
    bench.settle();
    assert!(bench.answer(group).is_none() && bench.answer(behind).is_none());
    bench.release(SHARD + 1, SHARD);
    bench.settle();
    assert_eq!(shown(&bench, behind), "[nil]", "it has aborted");
    bench.verify();
}

#[test]
fn a_failed_check_changes_nothing_in_any_range() {
    let mut bench = bench(2);
    let (checked, counted) = (key_on("a", 0, 2), key_on("b", 1, 2));
    let call = |procedure| Call::new(procedure, p::OBJECTS);
    bench.ask(call(p::PUT), &encode(&[&checked[..], b"x"]));
    let refused = bench.ask(call(t::TRUSTING), &encode(&[&checked, &counted]));
    assert_eq!(refused.status, OutcomeStatus::Aborted(Abort::Logic));
    bench.verify();
}

/// Of an epoch the first batch that says something decides (qstore.md, section 4.8: all replicas, and all nodes, do the same).
#[test]
fn partitions_that_do_not_agree_all_do_as_the_first() {
    let shape =
        Shape { partitions: 3, scheduling: qstore::SCHEDULING, speculative: true, ..Shape::default() };
    let mut cluster = Cluster::new(shape);
    let keys: Vec<Vec<u8>> = (0..3).map(|n| cluster.key_in("k", n)).collect();
    let words = [b"mset", &*keys[0], b"1", &keys[1], b"1", &keys[2], b"1"];
    let (procedure, db, args) = command(&words, Db(0));
    let (mut units, mut disagreed) = (0.0, [0, 0]);
    for _ in 0..60 {
        let before = cluster.sealed.len();
        (0..3).for_each(|home| _ = cluster.submit(home, REPLICA, Call::new(procedure, db), &args).unwrap());
        cluster.seal();
        cluster.settle();
        let said: Vec<Choice> = cluster.sealed[before..].iter().filter_map(|batch| batch.choice).collect();
        if let Some(Choice::Speculate(_)) = said.first() {
            units += 1.0;
        }
        if said.iter().any(|choice| *choice != said[0]) {
            disagreed[usize::from(said[0] == Choice::Wait)] += 1;
        }
        for shard in 0..3 {
            assert_eq!(cluster.gauge(shard, "ordain_shard_speculative_batches_total"), units, "{said:?}");
        }
    }
    assert!(disagreed.iter().all(|epochs| *epochs > 5), "{disagreed:?}");
    cluster.verify();
}

/// What a shard says of a round again, because its node was restarted, must be what it has said before.
#[test]
fn a_round_that_is_told_again_is_compared_with_the_first() {
    for is_same in [true, false] {
        let shape =
            Shape { partitions: 3, scheduling: qstore::SCHEDULING, speculative: true, ..Shape::default() };
        let mut cluster = Cluster::new(shape);
        let keys: Vec<Vec<u8>> = (0..3).map(|n| cluster.key_in("k", n)).collect();
        let words = [b"mset", &*keys[0], b"1", &keys[1], b"1", &keys[2], b"1"];
        let (procedure, db, args) = command(&words, Db(0));
        let unit = loop {
            cluster.settle();
            cluster.hold(2, 0);
            cluster.submit(0, REPLICA, Call::new(procedure, db), &args).unwrap();
            cluster.seal();
            cluster.settle();
            let batch = cluster.sealed.last().unwrap().clone();
            if let Some(Choice::Speculate(_)) = batch.choice {
                break Gsn::new(batch.epoch, batch.partition, 0);
            }
            cluster.release(2, 0);
        };
        let repeated = |cluster: &Cluster| cluster.gauge(0, "ordain_shard_repeated_total");
        let before = repeated(&cluster);
        let aborts = if is_same { Vec::new() } else { vec![(unit, SlotNo(0), Abort::Logic)] };
        let round = Item::Round(Box::new(Round {
            logged: Findings { aborts, affected: Vec::new() },
            ..Round::default()
        }));
        cluster.forge(0, &ShardMessage { from: 1, items: vec![(unit, round)], bytes: Vec::new() });
        cluster.settle();
        if is_same {
            assert_eq!(repeated(&cluster), before + 1.0);
            cluster.release(2, 0);
            cluster.settle();
            cluster.verify();
        } else {
            let reason = cluster.halted.expect("it stops");
            assert!(
                reason.contains("a round of transaction")
                    && reason.contains("by shard 1")
                    && reason.contains("diverged"),
                "{reason}"
            );
        }
    }
}

/// What goes from node to node for one batch of each of three: slices and remote results, where so many transactions of a
/// hundred use several partitions, with so many keys in each.
fn messages(scheduling: Scheduling, percent: usize, keys: usize) -> (usize, usize) {
    const NODES: usize = 3;
    let mut cluster = Cluster::new(Shape { partitions: NODES, scheduling, ..Shape::default() });
    for i in 0..NODES * 100 {
        let (home, is_multi) = (i % NODES, i / NODES % 100 < percent);
        let partitions = if is_multi { NODES } else { 1 };
        // Which partition the first key is in, and so who replies, is not always the home.
        let at = |key: usize| if is_multi { (home + i / NODES + key) % partitions } else { home };
        let used: Vec<Vec<u8>> =
            (0..partitions * keys).map(|key| cluster.key_in(&format!("k{i}-{key}-"), at(key))).collect();
        let mut words: Vec<&[u8]> = vec![if i % 2 == 0 { b"MGET" } else { b"MSET" }];
        for key in &used {
            words.push(key);
            words.extend((i % 2 == 1).then_some(&b"value"[..]));
        }
        let (procedure, db, args) = command(&words, Db(0));
        cluster.submit(home, REPLICA, Call::new(procedure, db), &args).unwrap();
    }
    cluster.seal();
    cluster.settle();
    cluster.verify();
    cluster.crossed()
}

/// qstore.md, section 7, the check of each batch: as many messages whatever its transactions touch.
///
/// Of N nodes each seals one batch an epoch. A node that seals sends each other one a slice: N (N - 1) of them, empty or not
/// (the empty ones are the exchange's and are not handed to shards). For each of these batches a node sends each other one a
/// remote result at most, with all answers that are composed there, because all fragments of independent transactions are executed
/// in one turn: N (N - 1) for each of N batches. Who replies may be any node, so there are that many as soon as there are a few
/// transactions on several partitions, and none if there are none. The sheet has N (N - 1) (chunks + 1), with one chunk a batch and
/// an EXEC_DONE for the batches of all nodes together; here shards do not wait for all of an epoch before they answer.
#[test]
fn a_batch_takes_as_many_messages_whatever_its_transactions_touch() {
    let (nodes, batches) = (3, 3);
    let slices = batches * (nodes - 1);
    let remote_results = batches * nodes * (nodes - 1);
    assert_eq!(messages(qstore::SCHEDULING, 0, 1), (0, 0), "there is nothing for anybody else");
    for (percent, keys) in [(50, 1), (100, 1), (50, 5), (100, 5)] {
        let told = format!("{percent}%, {keys} keys a partition");
        assert_eq!(messages(qstore::SCHEDULING, percent, keys), (slices, remote_results), "{told}");
    }
    // Under locks a shard stops in the middle of a batch to let others hear, so the more there is to do the more is said.
    assert!(messages(calvin::SCHEDULING, 100, 5).1 > messages(calvin::SCHEDULING, 50, 1).1);
}
