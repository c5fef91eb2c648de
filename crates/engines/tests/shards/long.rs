//! Compute fragments that take too long for an event loop: the shard goes on meanwhile, those that want their records wait,
//! and a crash in between loses nothing.

use ordain_engines::shard::Order;
use ordain_gateway::Ticket;
use ordain_model::{ArgsBuilder, Call, Db, OutcomeStatus, Reads};

use crate::random::command;
use crate::support::procedures::LONG;
use crate::support::{Bench, Options, gauge, key_on, render};

struct Node {
    bench: Bench,
    /// Two keys a shard.
    keys: Vec<Vec<u8>>,
}

impl Node {
    fn new(order: Order, reads: Reads, shards: usize) -> Node {
        let keys = (0..2 * shards).map(|n| key_on(&format!("key{n}:"), n % shards, shards)).collect();
        let mut bench = Bench::new(Options { order, reads, shards, log: true, ..Options::default() });
        bench.work_held = true;
        Node { bench, keys }
    }

    fn long(&mut self, writes: bool, keys: &[usize]) -> Ticket {
        let mut args = Vec::new();
        let mut builder = ArgsBuilder::new(&mut args);
        builder.push(if writes { b"1" } else { b"0" });
        for key in keys {
            builder.push(&self.keys[*key]);
        }
        self.submit(Call::new(LONG, Db(0)), &args)
    }

    fn redis(&mut self, words: &[&[u8]]) -> Ticket {
        let (procedure, db, args) = command(words, Db(0));
        self.submit(Call::new(procedure, db), &args)
    }

    fn submit(&mut self, call: Call, args: &[u8]) -> Ticket {
        let ticket = self.bench.submit(0, call, args).unwrap();
        self.bench.flush(0);
        self.bench.settle();
        ticket
    }

    fn answer(&self, ticket: Ticket) -> Option<String> {
        self.bench.answer(ticket).map(|answer| {
            assert_eq!(answer.status, OutcomeStatus::Committed);
            render(&answer.reply)
        })
    }

    fn set(&mut self, key: usize, value: &[u8]) -> Ticket {
        let name = self.keys[key].clone();
        self.redis(&[b"set", &name, value])
    }

    fn get(&mut self, key: usize) -> Ticket {
        let name = self.keys[key].clone();
        self.redis(&[b"get", &name])
    }
}

fn by_every_engine(test: impl Fn(&mut Node)) {
    for order in Order::ALL {
        for shards in [1, 2, 3] {
            let mut node = Node::new(order, Reads::Ordered, shards);
            test(&mut node);
            node.bench.work_held = false;
            node.bench.settle();
            node.bench.verify();
        }
    }
}

#[test]
fn others_go_on_while_a_transaction_computes_and_who_wants_its_records_waits() {
    by_every_engine(|node| {
        let last = node.keys.len() - 1;
        node.set(0, b"41");
        let long = node.long(true, &[0]);
        assert_eq!((node.bench.work.len(), node.answer(long)), (1, None));
        // Another record, be it of the same shard.
        let other = node.set(last, b"1");
        assert_eq!(node.answer(other), Some("OK".into()));
        let same = node.get(0);
        assert_eq!(node.answer(same), None);
        assert!(node.bench.work_step());
        node.bench.settle();
        assert_eq!(node.answer(long), Some("[\"41\"]".into()));
        assert_eq!(node.answer(same), Some("\"42\"".into()));
    });
}

#[test]
fn records_of_all_shards_come_back_from_a_computation() {
    by_every_engine(|node| {
        let all: Vec<usize> = (0..node.keys.len()).collect();
        node.set(0, b"5");
        let long = node.long(true, &all);
        assert_eq!(node.answer(long), None);
        assert!(node.bench.work_step());
        node.bench.settle();
        assert!(node.answer(long).is_some());
        let (first, last) = (node.get(0), node.get(all.len() - 1));
        assert_eq!((node.answer(first), node.answer(last)), (Some("\"6\"".into()), Some("\"1\"".into())));
    });
}

#[test]
fn a_crash_while_a_transaction_computes_does_it_again() {
    by_every_engine(|node| {
        node.set(0, b"7");
        node.long(true, &[0]);
        assert_eq!(node.bench.work.len(), 1);
        node.bench.crash();
        assert_eq!(node.bench.work.len(), 0, "replay gives nothing away");
        let seen = node.get(0);
        assert_eq!(node.answer(seen), Some("\"8\"".into()));
    });
}

#[test]
fn reads_on_a_snapshot_that_take_long_are_given_away_too() {
    for shards in [1, 2, 3] {
        let mut node = Node::new(Order::Locks, Reads::Session, shards);
        let all: Vec<usize> = (0..node.keys.len()).collect();
        for key in &all {
            node.set(*key, b"3");
        }
        let long = node.long(false, &all);
        assert_eq!((node.bench.work.len(), node.answer(long)), (1, None));
        let later = node.set(0, b"4");
        assert_eq!(node.answer(later), Some("OK".into()), "whoever writes does not wait for a read");
        assert!(node.bench.work_step());
        node.bench.settle();
        assert_eq!(node.answer(long), Some(format!("[{}]", vec!["\"3\""; all.len()].join(" "))));
        let read: f64 =
            node.bench.shards.iter().map(|shard| gauge(shard, "ordain_shard_snapshot_reads_total")).sum();
        assert!(read >= 1.0);
        node.bench.verify();
    }
}

#[test]
fn a_script_that_takes_long_is_given_away_and_one_that_does_not_is_not() {
    by_every_engine(|node| {
        let last = node.keys.len() - 1;
        let script: &[u8] = b"for i = 1, ARGV[1] do end return redis.call('INCRBY', KEYS[1], ARGV[1])";
        let key = node.keys[0].clone();
        let short = node.redis(&[b"eval", script, b"1", &key, b"1000"]);
        assert_eq!((node.answer(short), node.bench.work.len()), (Some("1000".into()), 0));
        let long = node.redis(&[b"eval", script, b"1", &key, b"300000"]);
        assert_eq!((node.answer(long), node.bench.work.len()), (None, 1));
        let other = node.set(last, b"1");
        assert_eq!(node.answer(other), Some("OK".into()));
        assert!(node.bench.work_step());
        node.bench.settle();
        assert_eq!(node.answer(long), Some("301000".into()));
    });
}
