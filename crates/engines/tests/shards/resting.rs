//! Transactions that read or write much stop in their midst, so that an event loop does not stand still for all of them.

use ordain_deterministic::shard::{Scheduling, Settings};
use ordain_engines::calvin;
use ordain_gateway::Ticket;
use ordain_model::{Call, Db, OutcomeStatus};

use crate::random::command;
use crate::support::{Bench, Options, SCHEDULINGS, gauge, key_on, render};

const SHARDS: usize = 2;
const MIB: usize = 1 << 20;

fn node(scheduling: Scheduling, fragment_bytes: usize) -> Bench {
    Bench::new(Options { scheduling, shards: SHARDS, log: true, fragment_bytes, ..Options::default() })
}

/// Keys of the first shard.
fn keys(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|n| key_on(&format!("key{n}:"), 0, SHARDS)).collect()
}

fn submit(bench: &mut Bench, words: &[&[u8]]) -> Ticket {
    let (procedure, db, args) = command(words, Db(0));
    let ticket = bench.submit(0, Call::new(procedure, db), &args).unwrap();
    bench.flush(0);
    ticket
}

fn ask(bench: &mut Bench, words: &[&[u8]]) -> String {
    let ticket = submit(bench, words);
    bench.settle();
    let answer = bench.answer(ticket).unwrap();
    assert_eq!(answer.status, OutcomeStatus::Committed);
    render(&answer.reply)
}

fn all_of<'a>(name: &'a [u8], keys: &'a [Vec<u8>]) -> Vec<&'a [u8]> {
    std::iter::once(name).chain(keys.iter().map(|key| &**key)).collect()
}

fn rested(bench: &Bench) -> f64 {
    gauge(&bench.shards[0], "ordain_shard_rested_total")
}

#[test]
fn a_transaction_rests_between_large_answers_and_says_the_same() {
    let keys = keys(20);
    let mut bench = node(calvin::SCHEDULING, Settings::new(calvin::SCHEDULING).fragment_bytes);
    let value = vec![b'v'; MIB];
    keys.iter().for_each(|key| drop(ask(&mut bench, &[b"set", key, &value])));
    assert_eq!(rested(&bench), 0.0);
    let reply = ask(&mut bench, &all_of(b"mget", &keys));
    assert!(reply.len() > 20 * MIB);
    // 256 fragments of 16 KiB are a turn: the twenty answers of a MiB take five.
    assert_eq!(rested(&bench), 4.0);
    bench.verify();
}

#[test]
fn what_grows_and_shrinks_counts_as_what_is_answered_does() {
    let keys = keys(20);
    let mut bench = node(calvin::SCHEDULING, Settings::new(calvin::SCHEDULING).fragment_bytes);
    let value = vec![b'v'; MIB];
    let mut words = vec![&b"mset"[..]];
    keys.iter().for_each(|key| words.extend([&**key, &*value]));
    assert_eq!(ask(&mut bench, &words), "OK");
    assert_eq!(rested(&bench), 4.0);
    assert_eq!(ask(&mut bench, &all_of(b"del", &keys)), "20");
    assert_eq!(rested(&bench), 8.0);
    bench.verify();
}

/// One step after the other, others' transactions between its fragments: they see all of it or nothing.
#[test]
fn who_wants_the_records_of_one_that_rests_waits_and_others_do_not() {
    for scheduling in SCHEDULINGS {
        let (keys, other) = (keys(100), key_on("other", 0, SHARDS));
        let mut bench = node(scheduling, 0);
        let mut words = vec![&b"mset"[..]];
        keys.iter().for_each(|key| words.extend([&**key, &b"new"[..]]));
        let write = submit(&mut bench, &words);
        let (mut reads, mut others, mut is_overtaken) = (Vec::new(), Vec::new(), false);
        while bench.step() {
            if reads.len() < 16 {
                reads.push(submit(&mut bench, &all_of(b"mget", &keys)));
                others.push(submit(&mut bench, &[b"set", &other, b"1"]));
            }
            is_overtaken |=
                bench.answer(write).is_none() && others.iter().any(|other| bench.answer(*other).is_some());
        }
        assert_eq!(render(&bench.answer(write).unwrap().reply), "OK");
        for read in reads {
            let reply = render(&bench.answer(read).unwrap().reply);
            assert!(reply.matches("new").count().is_multiple_of(keys.len()), "{scheduling:?}: {reply}");
        }
        if scheduling == calvin::SCHEDULING {
            assert!(rested(&bench) > 99.0 && is_overtaken, "{} rests", rested(&bench));
        }
        bench.verify();
    }
}
