//! The scenarios of qstore.md, section 8, by number, as far as they are about conservative execution.
//!
//! | scenario | here | besides |
//! |---|---|---|
//! | 1 a value, and a verdict, from another range of one executor | below | |
//! | 2 a chain over two shards, a thousand times in a batch | below | |
//! | 3 checks on two shards, one fails | below | sim |
//! | 8 an insert that is aborted, then a read and a deletion | below | `random` |
//! | 9 answers before their batch | below | sim |
//! | 11 killed amid a batch | | sim; e2e `kill` |
//! | 12 another number of shards at replay | `random`; `replay` in `src/calvin/replay.rs` | |
//! | 15 all keys in one range | below | |
//! | 18 a scan among inserts and deletions | below | `random` |
//! | 20 a batch larger than what clients ask for | all that is here: a batch closes when there is nothing more | |
//! | 4-7, 10, 13, 14, 16, 17, 19 | absent: speculation, ranges that move, read committed | |

use ordain_engines::shard::Order;
use ordain_gateway::Ticket;
use ordain_model::args::encode;
use ordain_model::{Abort, Call, Db, OutcomeStatus};
use ordain_sim::workload::procedures as p;

use crate::random::command;
use crate::support::cluster::{Cluster, REPLICA, Shape};
use crate::support::{Bench, LOG, Options, SHARD, gauge, key_on, procedures as t, render};

fn bench(shards: usize) -> Bench {
    Bench::new(Options { shards, order: Order::Queues, ..Options::default() })
}

/// Submits commands, which will be of one batch.
fn submit(bench: &mut Bench, commands: &[&[&[u8]]]) -> Vec<Ticket> {
    let submit = |words: &&[&[u8]]| {
        let (procedure, db, args) = command(words, Db(0));
        bench.submit(0, Call::new(procedure, db), &args).unwrap()
    };
    commands.iter().map(submit).collect()
}

fn run(bench: &mut Bench) {
    bench.flush(0);
    bench.settle();
    bench.verify();
}

fn shown(bench: &Bench, ticket: Ticket) -> String {
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
    assert!(gauge(&bench.shards[0], "ordain_shard_early_messages") >= 2.0);
    assert!(bench.answer(asked[0]).is_none());
    bench.release(LOG, SHARD);
    bench.settle();
    bench.verify();
    assert_eq!(shown(&bench, asked[1]), "[\"1\" \"2\" \"1\"]");
    assert_eq!(gauge(&bench.shards[0], "ordain_shard_early_messages"), 0.0);
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

#[test]
fn a_group_that_waits_keeps_its_ranges_waiting_and_no_others() {
    let mut bench = bench(2);
    let (held, far) = (key_on("o", 0, 2), key_on("p", 1, 2));
    let call = |procedure| Call::new(procedure, p::OBJECTS);
    bench.ask(call(p::PUT), &encode(&[&held[..], b"x"]));
    bench.hold(SHARD + 1, SHARD);
    let group = bench.submit(0, call(p::ROTATE), &encode(&[&held, &far])).unwrap();
    let behind = bench.submit(0, call(p::GET), &encode(&[&held])).unwrap();
    bench.flush(0);
    bench.settle();
    // Later chunks: their replies wait for nothing but their own fragments.
    let keys: Vec<Vec<u8>> = (0..64).map(|i| key_on(&format!("q{i}:"), 0, 2)).collect();
    let others: Vec<Ticket> = keys
        .iter()
        .map(|key| {
            let ticket = bench.submit(0, call(p::GET), &encode(&[key])).unwrap();
            bench.flush(0);
            bench.settle();
            ticket
        })
        .collect();
    assert!(bench.answer(group).is_none() && bench.answer(behind).is_none());
    let answered = others.iter().filter(|ticket| bench.answer(**ticket).is_some()).count();
    assert!((1..others.len()).contains(&answered), "{answered} of {}: of the other ranges", others.len());
    bench.release(SHARD + 1, SHARD);
    bench.settle();
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

/// What goes from node to node for one batch of each of three: slices and letters, where so many transactions of a
/// hundred use several partitions, with so many keys in each.
fn messages(order: Order, percent: usize, keys: usize) -> (usize, usize) {
    const NODES: usize = 3;
    let mut cluster = Cluster::new(Shape { partitions: NODES, order, ..Shape::default() });
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
/// (the empty ones are the courier's and are not handed to shards). For each of these batches a node sends each other one a
/// letter at most, with all answers that are composed there, because all fragments of independent transactions are executed
/// in one turn: N (N - 1) for each of N batches. Who replies may be any node, so there are that many as soon as there are a few
/// transactions on several partitions, and none if there are none. The sheet has N (N - 1) (chunks + 1), with one chunk a batch and
/// an EXEC_DONE for the batches of all nodes together; here shards do not wait for all of an epoch before they answer.
#[test]
fn a_batch_takes_as_many_messages_whatever_its_transactions_touch() {
    let (nodes, batches) = (3, 3);
    let slices = batches * (nodes - 1);
    let letters = batches * nodes * (nodes - 1);
    assert_eq!(messages(Order::Queues, 0, 1), (0, 0), "there is nothing for anybody else");
    for (percent, keys) in [(50, 1), (100, 1), (50, 5), (100, 5)] {
        let told = format!("{percent}%, {keys} keys a partition");
        assert_eq!(messages(Order::Queues, percent, keys), (slices, letters), "{told}");
    }
    // Under locks a shard stops in the middle of a batch to let others hear, so the more there is to do the more is said.
    assert!(messages(Order::Locks, 100, 5).1 > messages(Order::Locks, 50, 1).1);
}
