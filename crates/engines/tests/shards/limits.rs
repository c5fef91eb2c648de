//! What one transaction holds of what it reads: whoever executes it, on however many shards, refuses the same, and nothing
//! of what it refuses is done in part. The reference executor is told of the limits as everybody is, and decides on its own.

use ordain_deterministic::shard::Scheduling;
use ordain_engines::{calvin, qstore};
use ordain_model::{ArgsBuilder, Call, Db, Limits, OutcomeStatus, Reads, Version, system};

use crate::random::{Request, command};
use crate::support::cluster::{Cluster, REPLICA, Shape};
use crate::support::{Bench, Options, SCHEDULINGS, key_on, limited, render};

const LIMITS: Limits = Limits { reply: 400, carried: 280 };
/// Three of them make more of a reply than there may be, two more than may be carried.
const VALUE: &[u8] = &[b'v'; 150];
const TOO_LONG: &str = "(ERR the reply exceeds";
const TOO_MUCH: &str = "(ERR the records that go from key to key exceed";

fn multi(watched: &[(&[u8], Version)], calls: &[Request]) -> Request {
    let mut args = Vec::new();
    let watched: Vec<_> = watched.iter().map(|(key, version)| (Db(0), *key, *version)).collect();
    system::multi_args(
        watched.into_iter(),
        calls.iter().map(|(procedure, db, args)| (*procedure, *db, &**args)),
        &mut ArgsBuilder::new(&mut args),
    );
    (system::MULTI, Db(0), args)
}

/// One node, with keys that lie on its shards in turn.
struct Node {
    bench: Bench,
    keys: Vec<Vec<u8>>,
}

impl Node {
    fn new((scheduling, reads, shards): (Scheduling, Reads, usize)) -> Node {
        let options = Options { scheduling, reads, shards, limits: LIMITS, ..Options::default() };
        let keys = (0..8).map(|n| key_on(&format!("key{n}:"), n % shards, shards)).collect();
        let mut node = Node { bench: Bench::new(options), keys };
        for n in 0..4 {
            assert_eq!(node.ask(&[b"set", &node.keys[n].clone(), VALUE]), "OK");
        }
        node
    }

    fn request(&mut self, (procedure, db, args): Request) -> (OutcomeStatus, String) {
        let answer = self.bench.ask(Call::new(procedure, db), &args);
        (answer.status, render(&answer.reply))
    }

    fn ask(&mut self, words: &[&[u8]]) -> String {
        self.request(command(words, Db(0))).1
    }
}

fn everywhere(test: impl Fn(&mut Node)) {
    for scheduling in SCHEDULINGS {
        for reads in [Reads::Ordered, Reads::Session] {
            for shards in [1, 2, 5] {
                let mut node = Node::new((scheduling, reads, shards));
                test(&mut node);
                node.bench.verify();
            }
        }
    }
}

#[test]
fn a_reply_that_would_be_too_long_is_an_error_and_what_fits_is_told() {
    everywhere(|node| {
        let keys = node.keys.clone();
        let [a, b, c, d, ..] = std::array::from_fn::<_, 8, _>(|n| &keys[n][..]);
        assert!(!node.ask(&[b"mget", a, b]).contains("ERR"));
        for words in [&[&b"mget"[..], a, b, c][..], &[b"mget", a, a, a], &[b"mget", d, c, b, a, a, b, c, d]] {
            let answer = node.ask(words);
            assert!(answer.starts_with(TOO_LONG), "{answer}");
        }
        // Many small ones and a large one are no more than they are together.
        let mut words = vec![&b"mget"[..], a];
        words.extend(std::iter::repeat_n(&b"nobody"[..], 50));
        assert!(!node.ask(&words).contains("ERR"));
    });
}

#[test]
fn a_command_that_asks_for_one_value_too_often_is_refused_alone() {
    everywhere(|node| {
        let keys = node.keys.clone();
        let [a, .., e, f] = std::array::from_fn::<_, 8, _>(|n| &keys[n][..]);
        assert_eq!(node.ask(&[b"hset", e, b"f", VALUE]), "1");
        assert_eq!(node.ask(&[b"hset", f, b"a", VALUE, b"b", VALUE, b"c", VALUE]), "3");
        let mut often = vec![&b"hmget"[..], e];
        often.extend(std::iter::repeat_n(&b"f"[..], 100_000));
        for words in [
            &often[..],
            &[b"hrandfield", e, b"-1000000", b"withvalues"],
            &[b"hgetall", f],
            &[b"hvals", f],
            &[b"hscan", f, b"0"],
        ] {
            let answer = node.ask(words);
            assert!(answer.starts_with(TOO_LONG), "{answer}");
            // What else is in a block is answered: nothing of the long reply was kept.
            let (status, answer) =
                node.request(multi(&[], &[command(words, Db(0)), command(&[b"get", a], Db(0))]));
            assert_eq!(status, OutcomeStatus::Committed);
            assert!(answer.starts_with(&format!("[{TOO_LONG}")) && answer.contains("vvvv"), "{answer}");
        }
        assert!(!node.ask(&[b"hkeys", f]).contains("ERR"));
        assert!(!node.ask(&[b"hmget", e, b"f", b"f"]).contains("ERR"));
    });
}

#[test]
fn what_a_block_was_to_write_is_written_though_its_reply_is_too_long() {
    everywhere(|node| {
        let keys = node.keys.clone();
        let [a, b, c, _, e, ..] = std::array::from_fn::<_, 8, _>(|n| &keys[n][..]);
        let get = |key| command(&[b"get", key], Db(0));
        let (status, answer) =
            node.request(multi(&[], &[get(a), get(b), get(c), command(&[b"incr", e], Db(0))]));
        assert_eq!(status, OutcomeStatus::Committed);
        assert!(answer.starts_with(TOO_LONG), "{answer}");
        assert_eq!(node.ask(&[b"get", e]), "\"1\"");
        // A transaction whose validated reads do not hold any more is told that, however much else it has read.
        let set = command(&[b"set", e, b"x"], Db(0));
        let (status, answer) = node.request(multi(&[(e, Version::NONE)], &[get(a), get(b), get(c), set]));
        assert_ne!(status, OutcomeStatus::Committed);
        assert_eq!(answer, "nil-array");
        assert_eq!(node.ask(&[b"get", e]), "\"1\"");
    });
}

#[test]
fn a_record_that_is_more_than_may_be_carried_stays_where_it_is() {
    everywhere(|node| {
        let keys = node.keys.clone();
        let [a, b, _, _, e, f, ..] = std::array::from_fn::<_, 8, _>(|n| &keys[n][..]);
        assert_eq!(node.ask(&[b"copy", a, e]), "1", "it is less");
        assert_eq!(node.ask(&[b"append", a, VALUE]), "300");
        for words in [[&b"copy"[..], a, f], [b"rename", a, b], [b"renamenx", a, f]] {
            let answer = node.ask(&words);
            assert!(answer.starts_with(TOO_MUCH), "{answer}");
        }
        assert_eq!(node.ask(&[b"exists", f]), "0");
        let values = [node.ask(&[b"strlen", a]), node.ask(&[b"strlen", b])];
        assert_eq!(values, ["300", "150"]);
        // Of several that carry, each has its share.
        let copy = |from, to| command(&[b"copy", from, to, b"replace"], Db(0));
        let (status, answer) = node.request(multi(&[], &[copy(b, e), copy(b, f)]));
        assert_eq!(status, OutcomeStatus::Committed);
        assert_eq!(answer.matches(TOO_MUCH).count(), 2, "{answer}");
        assert_eq!(node.ask(&[b"rename", b, f]), "OK");
    });
}

#[test]
fn a_script_is_not_run_on_more_than_may_be_carried_to_it() {
    everywhere(|node| {
        let keys = node.keys.clone();
        let [a, b, c, _, e, ..] = std::array::from_fn::<_, 8, _>(|n| &keys[n][..]);
        let script = b"for i = 1, #KEYS do redis.call('append', KEYS[i], 'w') end return #KEYS";
        let only_reads =
            b"local n = 0 for i = 1, #KEYS do n = n + redis.call('strlen', KEYS[i]) end return n";
        // The first key is where the script is run: it does not go anywhere.
        assert_eq!(node.ask(&[b"eval", script, b"3", a, b, e]), "3");
        assert_eq!(node.ask(&[b"eval_ro", only_reads, b"2", a, b]), "302");
        assert_eq!(node.ask(&[b"append", a, VALUE]), "301");
        assert_eq!(node.ask(&[b"eval_ro", only_reads, b"2", a, b]), "452");
        for words in [
            [&b"eval"[..], script, b"3", e, a, b],
            [b"eval", script, b"3", a, b, c],
            [b"eval_ro", only_reads, b"3", c, b, a],
        ] {
            let answer = node.ask(&words);
            assert!(answer.starts_with(TOO_MUCH), "{answer}");
        }
        let lengths = [a, b, c, e].map(|key| node.ask(&[b"strlen", key]));
        assert_eq!(lengths, ["301", "151", "150", "1"]);
    });
}

#[test]
fn what_a_script_is_refused_while_memory_is_short_stands_in_the_log() {
    use ordain_commands::script::{encode_eval, frugal};
    everywhere(|node| {
        let keys = node.keys.clone();
        let [a, b, .., e] = std::array::from_fn::<_, 8, _>(|n| &keys[n][..]);
        let eval = |script: &[u8]| {
            let mut args = Vec::new();
            encode_eval(&[script, b"3", a, b, e], &mut ArgsBuilder::new(&mut args));
            (frugal(ordain_commands::ids::EVAL), Db(0), args)
        };
        let (status, answer) = node.request(eval(
            b"local no = redis.pcall('SET', KEYS[3], 'x') return {redis.call('DEL', KEYS[2]), no.err}",
        ));
        assert_eq!(status, OutcomeStatus::Committed);
        assert!(answer.starts_with("[1 \"OOM command not allowed when used memory"), "{answer}");
        let (_, answer) = node.request(eval(b"redis.call('DEL', KEYS[1]) redis.call('INCR', KEYS[3])"));
        assert!(answer.starts_with("(OOM command not allowed when used memory"), "{answer}");
        assert_eq!([a, b, e].map(|key| node.ask(&[b"exists", key])), ["1", "0", "0"]);
    });
}

/// Two partitions, the second with so many values: a key of the first, and theirs.
fn with_values_there(scheduling: Scheduling, count: usize) -> (Cluster, Vec<u8>, Vec<Vec<u8>>) {
    let shape = Shape { partitions: 2, scheduling, ..Shape::default() };
    let mut cluster = Cluster::with(shape, limited(LIMITS));
    let here = cluster.key_in("here", 0);
    let there: Vec<_> = (0..count).map(|n| cluster.key_in(&format!("there{n}:"), 1)).collect();
    for key in &there {
        let (procedure, db, args) = command(&[b"set", key, VALUE], Db(0));
        cluster.submit(1, REPLICA, Call::new(procedure, db), &args);
    }
    cluster.seal();
    cluster.settle();
    (cluster, here, there)
}

/// What the first partition answers.
fn ask_here(cluster: &mut Cluster, words: &[&[u8]]) -> String {
    let (procedure, db, args) = command(words, Db(0));
    let ticket = cluster.submit(0, REPLICA, Call::new(procedure, db), &args).unwrap();
    cluster.seal();
    cluster.settle();
    render(&cluster.answer(ticket).unwrap().reply)
}

#[test]
fn no_more_is_told_than_may_be_and_all_is_told_again() {
    for scheduling in [calvin::SCHEDULING, qstore::SCHEDULING] {
        let (mut cluster, here, there) = with_values_there(scheduling, 20);
        let mut words = vec![&b"mget"[..], &here];
        words.extend(there.iter().map(|key| &key[..]));
        let shown = ask_here(&mut cluster, &words);
        assert!(shown.starts_with(TOO_LONG), "{shown}");
        let told = cluster.last_received(1, 0);
        // What is taken apart is told together.
        assert_eq!(told.items.len(), if scheduling == qstore::SCHEDULING { 1 } else { there.len() });
        assert!(told.bytes.len() < LIMITS.reply + VALUE.len() + 4 * there.len(), "{}", told.bytes.len());
        // Whoever did not hear of it does it again, and is told again.
        for node in [0, 1] {
            cluster.kill(node);
            cluster.settle();
        }
        cluster.repeat(1, 0);
        cluster.settle();
        cluster.verify();
    }
}

#[test]
fn a_lender_sends_no_more_than_may_be_carried() {
    let (mut cluster, here, there) = with_values_there(calvin::SCHEDULING, 8);
    let script = b"for i = 1, #KEYS do redis.call('append', KEYS[i], 'w') end return #KEYS";
    let mut words = vec![&b"eval"[..], script, b"9", &here];
    words.extend(there.iter().map(|key| &key[..]));
    let shown = ask_here(&mut cluster, &words);
    assert!(shown.starts_with(TOO_MUCH), "{shown}");
    let shipped = |item: &ordain_deterministic::shard::Item| match item {
        ordain_deterministic::shard::Item::Ship { cell, .. } => cell.weight(),
        _ => 0,
    };
    let told = cluster.last_received(1, 0);
    assert_eq!(told.items.iter().map(|(_, item)| shipped(item)).sum::<usize>(), VALUE.len());
    for node in [0, 1] {
        cluster.kill(node);
        cluster.settle();
    }
    cluster.verify();
}
