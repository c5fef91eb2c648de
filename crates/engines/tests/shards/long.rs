//! Compute fragments that take too long for an event loop: the shard goes on meanwhile, those that want their records wait,
//! and a crash in between loses nothing.

use ordain_commands::script::functions::{function_call, function_subcommand};
use ordain_commands::script::script_subcommand;
use ordain_deterministic::shard::Scheduling;
use ordain_engines::{calvin, qstore};
use ordain_gateway::Ticket;
use ordain_model::args::encode;
use ordain_model::{Abort, ArgsBuilder, Call, Cascade, Db, Execution, OutcomeStatus, Reads};

use crate::random::command;
use crate::support::procedures::{LONG, TRUSTING};
use crate::support::{Bench, Options, SCHEDULINGS, SHARD, gauge, key_on, render};

struct Node {
    bench: Bench,
    /// Two keys a shard.
    keys: Vec<Vec<u8>>,
}

impl Node {
    fn new(scheduling: Scheduling, reads: Reads, shards: usize) -> Node {
        let keys = (0..2 * shards).map(|n| key_on(&format!("key{n}:"), n % shards, shards)).collect();
        let mut bench = Bench::new(Options { scheduling, reads, shards, log: true, ..Options::default() });
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

    /// Submits SCRIPT, FUNCTION, FCALL_RO or another command, as a session does.
    fn script(&mut self, words: &[&[u8]]) -> Ticket {
        let (procedure, encode, given) = match words[0] {
            b"script" => {
                let (procedure, encode) = script_subcommand(&words[1..]).unwrap();
                (procedure, encode, &words[2..])
            }
            b"function" => {
                let (procedure, encode) = function_subcommand(&words[1..]).unwrap();
                (procedure, encode, &words[2..])
            }
            b"fcall_ro" => function_call(&self.bench.registry, true, &words[1..]).unwrap(),
            _ => return self.redis(words),
        };
        let mut args = Vec::new();
        encode(given, &mut ArgsBuilder::new(&mut args));
        self.submit(Call::new(procedure, Db(0)), &args)
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
    for scheduling in SCHEDULINGS {
        for shards in [1, 2, 3] {
            let mut node = Node::new(scheduling, Reads::Ordered, shards);
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

/// A script that is given away has changed its records already. What it finds when it is run again is what was there, to the
/// order of a hash's fields and the representation of a hash that had grown.
#[test]
fn what_has_given_up_leaves_hashes_in_their_order() {
    const FIELDS: usize = ordain_model::HashValue::SMALL_MAX;
    let script = b"local before = redis.call('HKEYS', KEYS[1]) redis.call('HDEL', KEYS[1], 'f0', 'f5') \
                   redis.call('HSET', KEYS[1], 'f5', '1', 'g', '1', 'h', '1', 'i', '1') \
                   for i = 1, 1e6 do end return {before, redis.call('HKEYS', KEYS[1])}";
    by_every_engine(|node| {
        let key = node.keys[0].clone();
        for fields in [3, FIELDS] {
            node.redis(&[b"del", &key]);
            for n in 0..fields {
                node.redis(&[b"hset", &key, format!("f{n}").as_bytes(), b"1"]);
            }
            let long = node.redis(&[b"eval", script, b"1", &key]);
            assert_eq!((node.bench.work.len(), node.answer(long)), (1, None));
            assert!(node.bench.work_step());
            node.bench.settle();
            let names: Vec<String> = (0..fields).map(|n| format!("\"f{n}\"")).collect();
            let answer = node.answer(long).unwrap();
            assert!(answer.contains(&names.join(" ")), "{answer}");
        }
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
        let mut node = Node::new(calvin::SCHEDULING, Reads::Session, shards);
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

/// A transaction of one shard is judged as soon as it is executed, also amid others of which nothing is decided yet. What
/// it takes back is its own, whoever has changed what while it was away.
#[test]
fn amid_a_speculative_batch_a_computation_that_fails_takes_back_its_own_changes_only() {
    for cascade in [Cascade::Repair, Cascade::Abort] {
        let sequencer = ordain_deterministic::sequencing::Settings {
            execution: Execution::Speculative,
            cascade,
            ..ordain_deterministic::sequencing::Settings::default()
        };
        let options =
            Options { shards: 2, scheduling: qstore::SCHEDULING, sequencer, log: true, ..Options::default() };
        let mut bench = Bench::new(options);
        bench.work_held = true;
        let redis = |bench: &mut Bench, words: &[&[u8]]| {
            let (procedure, db, args) = command(words, Db(0));
            bench.submit(0, Call::new(procedure, db), &args).unwrap()
        };
        let run = |bench: &mut Bench| {
            bench.flush(0);
            bench.settle();
        };
        let [first, second, other, passed] =
            ["first", "second", "other", "passed"].map(|name| key_on(name, 0, 2));
        redis(&mut bench, &[b"set", &first, b"5"]);
        redis(&mut bench, &[b"set", &second, b"7"]);
        run(&mut bench);
        // All of these are of one unit: there is one, since two shards take part in the last, which might abort. The first
        // changes a record before it computes, another then, and aborts.
        let aborted = bench.submit(0, Call::new(LONG, Db(0)), &encode(&[b"2", &*first, &*second])).unwrap();
        let counts: Vec<Ticket> = (0..20).map(|_| redis(&mut bench, &[b"incr", &other])).collect();
        let checked = key_on("checked", 1, 2);
        bench.submit(0, Call::new(TRUSTING, Db(0)), &encode(&[&*checked, &*passed])).unwrap();
        run(&mut bench);
        assert_eq!((bench.work.len(), bench.answer(counts[19])), (1, None), "it is away, and its unit waits");
        assert!(bench.work_step());
        bench.work_held = false;
        let seen = [&first, &second, &other].map(|key| redis(&mut bench, &[b"get", key]));
        run(&mut bench);
        assert_eq!(bench.answer(aborted).unwrap().status, OutcomeStatus::Aborted(Abort::Logic));
        let answer = |ticket: Ticket| render(&bench.answer(ticket).unwrap().reply);
        assert_eq!(answer(counts[19]), "20");
        assert_eq!(seen.map(answer), ["\"5\"", "\"7\"", "\"20\""]);
        bench.verify();
    }
}

/// All of them write the script's record, and only the first changes it: none waits for the records of another.
#[test]
fn scripts_of_one_text_do_not_wait_for_each_other() {
    for scheduling in [calvin::SCHEDULING, qstore::SCHEDULING] {
        let mut bench = Bench::new(Options { scheduling, shards: 2, log: true, ..Options::default() });
        let script: &[u8] = b"return redis.call('INCR', KEYS[1]) + redis.call('INCR', KEYS[2])";
        let run = |bench: &mut Bench, names: std::ops::Range<usize>| {
            let asked: Vec<Ticket> = names
                .map(|n| {
                    let keys = [0, 1].map(|shard| key_on(&format!("s{n}:"), shard, 2));
                    let (procedure, db, args) = command(&[b"eval", script, b"2", &keys[0], &keys[1]], Db(0));
                    bench.submit(0, Call::new(procedure, db), &args).unwrap()
                })
                .collect();
            bench.flush(0);
            asked
        };
        run(&mut bench, 0..1);
        bench.settle();
        // What one shard says to the other is on its way, so nobody has all that it needs.
        let shards = [SHARD, SHARD + 1];
        bench.hold(shards[0], shards[1]);
        bench.hold(shards[1], shards[0]);
        let asked = run(&mut bench, 1..21);
        bench.settle();
        let waiting = |bench: &Bench| {
            bench.shards.iter().map(|shard| gauge(shard, "ordain_shard_in_flight")).sum::<f64>()
        };
        assert_eq!(waiting(&bench), 40.0, "{scheduling:?}: all of them are under way");
        let mut rounds = 0;
        while waiting(&bench) > 0.0 {
            for i in 0..2 {
                while bench.deliver(shards[i], shards[1 - i]) {}
                bench.settle();
            }
            rounds += 1;
            assert!(
                rounds <= 4,
                "{scheduling:?}: {} parts of twenty that need nothing of each other wait",
                waiting(&bench)
            );
        }
        for ticket in asked {
            assert_eq!(render(&bench.answer(ticket).unwrap().reply), "2");
        }
        bench.verify();
    }
}

/// A comment of so many bytes, which takes the compiler's time, and text of its own.
fn padding(bytes: usize, scheduling: Scheduling, shards: usize) -> String {
    format!("-- {scheduling:?} {shards} {}\n", "x".repeat(bytes))
}

/// What is large is compiled where long computations run, whichever command brings it; others of the loop go on, and what the
/// connection has sent after it takes effect after it.
#[test]
fn large_sources_are_compiled_beside_the_loop() {
    for scheduling in SCHEDULINGS {
        for shards in [1, 2, 3] {
            let mut node = Node::new(scheduling, Reads::Ordered, shards);
            let last = node.keys.len() - 1;
            let (key, pad) = (node.keys[0].clone(), padding(20_000, scheduling, shards));
            let script = |does: &str| [pad.as_bytes(), does.as_bytes()].concat();
            let library = |name: &str, with: &str| {
                format!(
                    "#!lua name={name}\n{pad}{with} redis.register_function('{name}', function() return 5 end)"
                )
            };
            let away = |node: &mut Node, words: &[&[u8]]| {
                let asked = node.script(words);
                assert!(!node.bench.work.is_empty(), "{scheduling:?} {shards}");
                assert_eq!(node.answer(asked), None, "{scheduling:?} {shards}");
                let other = node.set(last, b"1");
                assert_eq!(node.answer(other), Some("OK".into()), "another does not wait for it");
                asked
            };
            // A script's record may be of another shard than its keys: both have it compiled, and the second finds it so.
            let back = |node: &mut Node, asked: Ticket| {
                while node.bench.work_step() {
                    node.bench.settle();
                }
                node.answer(asked).unwrap()
            };
            let loading = script("return 1");
            let loaded = away(&mut node, &[b"script", b"load", &loading]);
            let sha = back(&mut node, loaded);
            let sha = sha.trim_matches('"').as_bytes();
            let again = node.script(&[b"script", b"load", &loading]);
            assert!(node.answer(again).is_some(), "what is compiled already is not given away");
            let called = node.redis(&[b"evalsha", sha, b"0"]);
            assert_eq!(node.answer(called), Some("1".into()));

            let setting = script("return redis.call('SET', KEYS[1], 'new')");
            let set = away(&mut node, &[b"eval", &setting, b"1", &key]);
            let seen = node.get(0);
            assert_eq!(node.answer(seen), None, "it comes after the script");
            assert_eq!(back(&mut node, set), "OK");
            assert_eq!(node.answer(seen), Some("\"new\"".into()));

            // The script is found wrong once for its record and once for its answer.
            let wrong = script("return (");
            let refused = away(&mut node, &[b"eval", &wrong, b"1", &key]);
            let text = back(&mut node, refused);
            assert!(text.contains("Error compiling script") && text.contains("user_script:2"), "{text}");
            let kept = away(&mut node, &[b"script", b"load", &wrong]);
            assert!(back(&mut node, kept).contains("Error compiling script"));

            let code = library("one", "");
            let loaded = away(&mut node, &[b"function", b"load", code.as_bytes()]);
            let early = node.script(&[b"fcall_ro", b"one", b"0"]);
            assert_eq!(node.answer(early), None, "the function is there after it was loaded");
            assert_eq!(back(&mut node, loaded), "\"one\"");
            assert!(node.answer(early).is_some());
            let code = library("two", "for i = 1, 1e9 do end");
            let loaded = away(&mut node, &[b"function", b"load", code.as_bytes()]);
            assert!(back(&mut node, loaded).contains("ran past its budget"));
            // A small source may do much.
            let small =
                b"#!lua name=three\nfor i = 1, 3e5 do end redis.register_function('three', function() end)";
            let loaded = away(&mut node, &[b"function", b"load", small]);
            assert_eq!(back(&mut node, loaded), "\"three\"");
            node.bench.verify();
        }
    }
}

/// What a crash interrupts is compiled again, and a source too large for a loop's patience runs where it was compiled.
#[test]
fn a_crash_while_a_source_is_compiled_does_it_again() {
    by_every_engine(|node| {
        let key = node.keys[0].clone();
        let script = [&b"--"[..], &vec![b'y'; 200_000], b"\nreturn redis.call('INCR', KEYS[1])"].concat();
        let asked = node.redis(&[b"eval", &script, b"1", &key]);
        assert!(!node.bench.work.is_empty());
        assert_eq!(node.answer(asked), None);
        node.bench.crash();
        assert_eq!(node.bench.work.len(), 0, "replay gives nothing away");
        let again = node.redis(&[b"eval", &script, b"1", &key]);
        assert_eq!((node.bench.work.len(), node.answer(again)), (1, None), "it runs beside the loop");
        assert!(node.bench.work_step());
        node.bench.settle();
        assert_eq!(node.answer(again), Some("2".into()));
    });
}
