//! Calvin over several partitions: the scenarios of calvin.md section 8 that are about them, what is told twice, early
//! or wrongly, and random transactions with nodes that are killed and do everything again.
//!
//! Each partition has one shard unless a test says otherwise, so that shard, node and partition have one number.

use std::sync::Arc;

use ordain_deterministic::shard::{Item, ShardMessage};
use ordain_engines::{calvin, qstore};
use ordain_model::args::encode;
use ordain_model::{
    Abort, ArgsBuilder, Call, Cascade, CheckpointMode, Db, Epoch, Gsn, Isolation, Millis, OutcomeStatus,
    ProcedureId, RequestNo, SessionId, SlotNo, Version, system,
};
use ordain_sim::Random;
use ordain_sim::workload::procedures as p;
use proptest::prelude::*;

use crate::random::{Request, Requests, command, limits};
use crate::support::cluster::{Cluster, Next, REPLICA, Shape, Ticket};
use crate::support::{limited, procedures as t, registry, render};

fn cluster(partitions: usize) -> Cluster {
    Cluster::new(Shape { partitions, ..Shape::default() })
}

fn objects(procedure: ProcedureId) -> Call {
    Call::new(procedure, p::OBJECTS)
}

fn send(cluster: &mut Cluster, call: Call, args: &[&[u8]]) -> Ticket {
    let ticket = cluster.submit(0, REPLICA, call, &encode(args)).unwrap();
    cluster.seal();
    ticket
}

fn shown(cluster: &Cluster, ticket: Ticket) -> String {
    cluster.answer(ticket).map_or("-".into(), |answer| render(&answer.reply))
}

fn locked(cluster: &Cluster, node: usize) -> f64 {
    cluster.gauge(node, "ordain_shard_locked_records")
}

#[test]
fn scenario_01_a_remote_result_comes_before_its_batch() {
    let mut cluster = cluster(2);
    let (a, b) = (cluster.key_in("a", 0), cluster.key_in("b", 1));
    let ticket = send(&mut cluster, objects(p::GET), &[&a, &b]);
    // Node 1 serves its read; node 0 has not been handed the batch.
    cluster.happen(Next::Batch(1));
    cluster.happen(Next::Twice(1, 0));
    cluster.happen(Next::Across(1, 0));
    assert_eq!(cluster.gauge(0, "ordain_shard_out_of_order_items"), 1.0, "once, although it came twice");
    cluster.settle();
    assert_eq!(shown(&cluster, ticket), "[nil nil]");
    cluster.verify();
}

#[test]
fn scenario_03_a_passive_partition_is_done_when_it_has_served_its_reads() {
    let mut cluster = cluster(2);
    let (l, n, m) = (cluster.key_in("l", 1), cluster.key_in("n", 0), cluster.key_in("m", 1));
    cluster.hold(0, 1);
    let first = send(&mut cluster, Call::new(p::EVEN, p::COUNTERS), &[&l, &n, &m]);
    cluster.settle();
    // Node 1 has read `l` and `m`, and waits: it needs its locks no more either.
    assert_eq!((locked(&cluster, 0), locked(&cluster, 1)), (0.0, 0.0));
    // So a writer of what it has read goes ahead.
    let second = send(&mut cluster, Call::new(p::INCREMENT, p::COUNTERS), &[&n]);
    cluster.settle();
    assert_eq!((shown(&cluster, first), shown(&cluster, second)), ("-".into(), "[1]".into()));
    cluster.release(0, 1);
    cluster.settle();
    assert_eq!(shown(&cluster, first), "0");
    cluster.verify();
}

#[test]
fn scenario_04_a_read_over_several_partitions_is_answered_once() {
    let mut cluster = cluster(3);
    let keys = [0, 1, 2].map(|partition| cluster.key_in("o", partition));
    send(&mut cluster, objects(p::PUT), &[&keys[0], b"x"]);
    send(&mut cluster, objects(p::PUT), &[&keys[1], b"y"]);
    cluster.hold(1, 0);
    let ticket = send(&mut cluster, objects(p::GET), &[&keys[0], &keys[1], &keys[2]]);
    cluster.settle();
    assert_eq!(shown(&cluster, ticket), "-");
    cluster.release(1, 0);
    cluster.settle();
    assert_eq!(shown(&cluster, ticket), "[\"x\" \"y\" nil]");
    cluster.verify();
}

#[test]
fn scenario_05_an_abort_by_a_read_in_another_partition() {
    let mut cluster = cluster(2);
    let (a, guard) = (cluster.key_in("a", 0), cluster.key_in("guard", 1));
    let call = |procedure| Call::new(procedure, Db(0));
    let (set, db, args) = command(&[b"set", &guard, b"here"], Db(0));
    cluster.ask(Call::new(set, db), &args);
    cluster.hold(1, 0);
    let ticket = send(&mut cluster, call(t::GUARDED), &[&a, &guard]);
    cluster.settle();
    assert_eq!((locked(&cluster, 0), locked(&cluster, 1)), (1.0, 0.0));
    cluster.release(1, 0);
    cluster.settle();
    let answer = cluster.answer(ticket).unwrap();
    assert_eq!(answer.status, OutcomeStatus::Aborted(Abort::Logic));
    assert_eq!(shown(&cluster, ticket), "(ERR the guard is there)");
    assert_eq!(cluster.digest().records, 1);
    cluster.verify();
}

#[test]
fn a_silent_check_that_passes_says_its_verdict_and_nothing_else() {
    let mut cluster = cluster(2);
    let (a, guard) = (cluster.key_in("a", 0), cluster.key_in("guard", 1));
    let kinds = |cluster: &Cluster| {
        let remote_result = cluster.last_received(1, 0);
        remote_result.items.into_iter().map(|(_, item)| item).collect::<Vec<_>>()
    };
    cluster.ask(Call::new(t::GUARDED, Db(0)), &encode(&[&a, &guard]));
    assert_eq!(kinds(&cluster), [Item::Vote(None)]);
    let (set, db, args) = command(&[b"set", &guard, b"here"], Db(0));
    cluster.ask(Call::new(set, db), &args);
    cluster.ask(Call::new(t::GUARDED, Db(0)), &encode(&[&a, &guard]));
    let told = kinds(&cluster);
    assert!(
        matches!(told[..], [Item::Slot { slot: SlotNo(1), failed: true, .. }, Item::Vote(Some(_))]),
        "{told:?}"
    );
    cluster.verify();
}

/// A hundred transfers around three nodes, of which none hears of the node before it.
fn send_hundred(cluster: &mut Cluster) {
    let pairs = [(0, 1), (1, 2), (2, 0)];
    for (from, to) in pairs {
        cluster.hold(from, to);
    }
    for n in 0..100 {
        let (from, to) = pairs[n % 3];
        let accounts = [from, to].map(|partition| cluster.key_in(&format!("a{}", n % 7), partition));
        let args = encode(&[&accounts[0][..], &accounts[1], b"3"]);
        cluster.submit(n % 3, REPLICA, Call::new(p::TRANSFER, p::ACCOUNTS), &args).unwrap();
        if n % 10 == 9 {
            cluster.seal();
        }
    }
    cluster.settle();
    let under_way: f64 = (0..3).map(|node| cluster.gauge(node, "ordain_shard_in_flight")).sum();
    assert!(under_way >= 100.0, "{under_way}");
}

fn hundred_under_way() -> Cluster {
    let mut cluster = Cluster::new(Shape { partitions: 3, threads: 2, ..Shape::default() });
    send_hundred(&mut cluster);
    cluster
}

/// The same on nodes that have begun a checkpoint behind each of two hundreds before, and have ended them when they had
/// done those. Each seed has its mode of checkpoints.
fn hundred_after_checkpoints(seed: u64) -> (Cluster, [Epoch; 2]) {
    let (_, checkpoints) = CheckpointMode::ALL[seed as usize % 3];
    let shape =
        Shape { partitions: 3, threads: 2, checkpoint_piece: 40, checkpoints, seed, ..Shape::default() };
    let mut cluster = Cluster::new(shape);
    let cuts = [0; 2].map(|_| {
        send_hundred(&mut cluster);
        send(&mut cluster, Call::new(system::CHECKPOINT, Db(0)), &[]);
        let cut = cluster.epoch();
        (0..3).for_each(|node| cluster.pass(node, cut));
        cluster.settle();
        assert!(!cluster.saved.complete(6).contains(&cut), "it is the state with all of the hundred");
        release_all(&mut cluster);
        assert_eq!(cluster.saved.complete(6).last(), Some(&cut));
        assert_eq!(cluster.saved.digest(cut), cluster.digest());
        cut
    });
    send_hundred(&mut cluster);
    (cluster, cuts)
}

/// Whether all shards of a node have begun after a checkpoint.
fn has_begun_after(cluster: &Cluster, node: usize, cut: Epoch) -> bool {
    cluster.shards[2 * node..2 * node + 2].iter().all(|shard| shard.applied().0 == cut)
}

fn release_all(cluster: &mut Cluster) {
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        cluster.release(from, to);
    }
    cluster.settle();
}

fn let_go(cluster: &mut Cluster) {
    release_all(cluster);
    cluster.verify();
}

#[test]
fn scenario_12_a_node_is_killed_amid_a_hundred_transactions() {
    for node in 0..3 {
        let mut cluster = hundred_under_way();
        cluster.kill(node);
        cluster.settle();
        cluster.kill(node);
        let_go(&mut cluster);
        // And once its peers have finished all of them.
        cluster.kill(node);
        cluster.settle();
        cluster.verify();
    }
}

#[test]
fn scenario_13_two_nodes_die_together() {
    for survivor in 0..3 {
        let mut cluster = hundred_under_way();
        for node in (0..3).filter(|node| *node != survivor) {
            cluster.kill(node);
        }
        let_go(&mut cluster);
    }
}

#[test]
fn scenario_12_a_killed_node_begins_from_a_checkpoint_that_its_peers_have_gone_on_from() {
    for (seed, node) in (0..6).flat_map(|seed| (0..3).map(move |node| (seed, node))) {
        let (mut cluster, [_, cut]) = hundred_after_checkpoints(seed);
        cluster.kill(node);
        assert!(has_begun_after(&cluster, node, cut));
        cluster.settle();
        // Some of its peers finish some of them.
        cluster.release(node, (node + 1) % 3);
        cluster.settle();
        cluster.kill(node);
        let_go(&mut cluster);
        // And once they have finished all of them.
        cluster.kill(node);
        assert!(has_begun_after(&cluster, node, cut));
        cluster.settle();
        cluster.verify();
    }
}

/// Each begins from the newest checkpoint that it knows to be complete, and there may be one that only the other knows of.
#[test]
fn scenario_13_two_nodes_die_together_and_begin_from_checkpoints() {
    for (seed, survivor) in (0..6).flat_map(|seed| (0..3).map(move |survivor| (seed, survivor))) {
        let (mut cluster, [first, second]) = hundred_after_checkpoints(seed);
        let dead = [(survivor + 1) % 3, (survivor + 2) % 3];
        for (node, cut) in dead.into_iter().zip([first, second]) {
            cluster.kill_to(node, Some(cut));
            assert!(has_begun_after(&cluster, node, cut));
        }
        let_go(&mut cluster);
        // One has lost all of its checkpoints, and nothing of its log.
        cluster.kill_to(dead[0], Some(second));
        cluster.kill_to(dead[1], None);
        cluster.settle();
        cluster.verify();
    }
}

#[test]
fn a_batch_is_applied_when_its_replies_are_composed() {
    let mut cluster = cluster(2);
    let (a, b) = (cluster.key_in("a", 0), cluster.key_in("b", 1));
    cluster.hold(1, 0);
    send(&mut cluster, objects(p::GET), &[&a, &b]);
    cluster.settle();
    // Node 0 has done its part, and would need to be told again if it were killed now.
    assert_eq!(cluster.shards[0].applied().0.0, 0);
    assert_eq!(cluster.shards[1].applied().0, cluster.sealed[0].epoch);
    cluster.release(1, 0);
    cluster.settle();
    cluster.verify();
}

#[test]
fn a_session_is_answered_at_its_home_if_it_writes_and_where_it_reads_if_not() {
    let mut cluster = cluster(3);
    let session = cluster.session_in(2);
    let key = cluster.key_in("k", 0);
    let call = |procedure, request: u64| Call {
        session: Some((session, RequestNo(request << 8))),
        ..objects(procedure)
    };
    cluster.hold(0, 2);
    let write = send(&mut cluster, call(p::PUT, 1), &[&key, b"x"]);
    cluster.settle();
    assert_eq!(shown(&cluster, write), "-", "its home composes the reply");
    // Node 2 takes no part in the read.
    let read = send(&mut cluster, call(p::GET, 2), &[&key]);
    cluster.settle();
    assert_eq!(shown(&cluster, read), "[\"x\"]");
    cluster.release(0, 2);
    cluster.settle();
    assert_eq!(shown(&cluster, write), "OK");
    cluster.verify();
}

#[test]
fn another_replica_s_chunks_are_executed_in_silence() {
    let mut cluster = cluster(2);
    let keys = [0, 1].map(|partition| cluster.key_in("k", partition));
    let session = Some((cluster.session_in(1), RequestNo(256)));
    for call in [objects(p::PUT), Call { session, ..objects(p::PUT) }] {
        for key in &keys {
            let ticket = cluster.submit(0, REPLICA + 1, call, &encode(&[&key[..], b"x"])).unwrap();
            cluster.seal();
            cluster.settle();
            assert_eq!(shown(&cluster, ticket), "-");
        }
    }
    assert_eq!(cluster.digest().records, 2);
    cluster.verify();
}

#[test]
fn what_is_told_again_of_what_is_done_is_dropped() {
    let mut cluster = cluster(3);
    let (a, b, c) = (cluster.key_in("c", 0), cluster.key_in("c", 1), cluster.key_in("c", 2));
    let script = b"redis.call('set', KEYS[1], 'x') return redis.call('get', KEYS[2])";
    let (eval, db, args) = command(&[b"eval", script, b"3", &a, &b, &c], Db(0));
    cluster.ask(Call::new(eval, db), &args);
    let pairs = [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)];
    for (from, to) in pairs {
        cluster.repeat(from, to);
    }
    cluster.settle();
    assert!((0..3).map(|node| cluster.gauge(node, "ordain_shard_repeated_total")).sum::<f64>() >= 4.0);
    cluster.verify();
}

/// Three nodes, of which the first waits for what the others have read, having heard of node 1.
fn waiting() -> (Cluster, Gsn) {
    let mut cluster = cluster(3);
    let keys = [0, 1, 2].map(|partition| cluster.key_in("k", partition));
    cluster.hold(2, 0);
    send(&mut cluster, objects(p::GET), &[&keys[0], &keys[1], &keys[2]]);
    cluster.settle();
    let gsn = cluster.sealed[0].txns().next().unwrap().0;
    (cluster, gsn)
}

#[test]
fn who_tells_something_else_the_second_time_has_diverged() {
    let slot = |slot, bytes: &[u8], failed| {
        let item = Item::Slot { slot: SlotNo(slot), at: 0, len: bytes.len() as u32, failed };
        (item, bytes.to_vec())
    };
    for (item, bytes) in [
        slot(1, b"something else", false),
        slot(9, b"", false),
        (Item::Vote(Some((SlotNo(1), Abort::Logic))), Vec::new()),
    ] {
        let (mut cluster, gsn) = waiting();
        cluster.forge(0, &ShardMessage { from: 1, items: vec![(gsn, item.clone())], bytes });
        cluster.settle();
        assert!(cluster.halted.as_ref().is_some_and(|reason| reason.contains("diverged")), "{item:?}");
    }
    let (mut cluster, _) = waiting();
    cluster.repeat(1, 0);
    cluster.release(2, 0);
    cluster.settle();
    cluster.verify();
}

#[test]
fn a_part_of_a_table_counts_once() {
    let start = || {
        let mut cluster = cluster(3);
        let key = cluster.key_in("k", 2);
        let calls = [command(&[b"dbsize"], Db(0)), command(&[b"get", &key], Db(0))];
        let mut args = Vec::new();
        let calls = calls.iter().map(|(procedure, db, args)| (*procedure, *db, &args[..]));
        system::multi_args([].into_iter(), calls, &mut ArgsBuilder::new(&mut args));
        cluster.hold(2, 0);
        let ticket = cluster.submit(0, REPLICA, Call::new(system::MULTI, Db(0)), &args).unwrap();
        cluster.seal();
        cluster.settle();
        let part = cluster.last_received(1, 0);
        assert_eq!(part.items.len(), 1);
        (cluster, ticket, part)
    };
    // Another one.
    let (mut cluster, _, mut part) = start();
    part.bytes.reverse();
    cluster.forge(0, &part);
    cluster.settle();
    assert!(cluster.halted.is_some_and(|reason| reason.contains("diverged")));
    // The same, before all parts are there and after.
    let (mut cluster, ticket, part) = start();
    let repeated = |cluster: &Cluster| cluster.gauge(0, "ordain_shard_repeated_total");
    cluster.repeat(1, 0);
    cluster.settle();
    assert_eq!(repeated(&cluster), 1.0);
    // Node 2's part comes ahead of the rest of what it says.
    cluster.forge(0, &ShardMessage { from: 2, ..part });
    cluster.happen(Next::Last(2, 0));
    cluster.repeat(1, 0);
    cluster.settle();
    assert_eq!(repeated(&cluster), 3.0);
    assert_eq!(shown(&cluster, ticket), "-");
    cluster.release(2, 0);
    cluster.settle();
    assert_eq!(shown(&cluster, ticket), "[0 nil]");
    cluster.verify();
}

#[test]
fn a_batch_that_comes_again_stops_the_shard() {
    let mut cluster = cluster(2);
    let key = cluster.key_in("k", 0);
    send(&mut cluster, objects(p::PUT), &[&key, b"x"]);
    cluster.settle();
    cluster.hand_again();
    cluster.settle();
    assert!(cluster.halted.is_some_and(|reason| reason.contains("was handed the batch")));
}

// ---- loans, in every order --------------------------------------------------------------------------------

/// Lets everything happen in every order, with so many kills and so many remote results that come twice, and answers how many
/// ways there were.
fn every_way(start: impl Fn() -> Cluster, kills: usize, twice: usize) -> usize {
    let mut path: Vec<(usize, usize)> = Vec::new();
    for way in 1.. {
        let mut cluster = start();
        let (mut kills, mut twice, mut depth) = (kills, twice, 0);
        loop {
            let mut options: Vec<Option<Next>> = cluster.choices().into_iter().map(Some).collect();
            if twice > 0 {
                options.extend(cluster.choices().iter().filter_map(|next| match next {
                    Next::Across(from, to) => Some(Some(Next::Twice(*from, *to))),
                    _ => None,
                }));
            }
            if options.is_empty() {
                options.push(None);
            }
            if kills > 0 {
                options.extend((0..cluster.shape.partitions).map(|node| Some(Next::Kill(node))));
            }
            if depth == path.len() {
                path.push((0, options.len()));
            }
            assert_eq!(path[depth].1, options.len(), "the same again");
            let Some(next) = options[path[depth].0] else { break };
            match next {
                Next::Kill(_) => kills -= 1,
                Next::Twice(..) => twice -= 1,
                _ => {}
            }
            cluster.happen(next);
            depth += 1;
        }
        cluster.verify();
        while let Some((choice, of)) = path.pop() {
            if choice + 1 < of {
                path.push((choice + 1, of));
                break;
            }
        }
        if path.is_empty() {
            return way;
        }
    }
    0
}

#[test]
fn loans_come_back_whatever_comes_first() {
    let procedures = registry();
    let plain = Cluster::with(Shape::default(), procedures.clone());
    let (a, b) = (plain.key_in("a", 0), plain.key_in("b", 1));
    // The record to be written is shipped by node 0, to node 1, which has or ships the other; and the other way round.
    for (written, read) in [(&a, &b), (&b, &a)] {
        for near in [&a, &b] {
            let start = || {
                let mut cluster = Cluster::with(Shape::default(), procedures.clone());
                let call = Call::new(t::PEEK, Db(0));
                cluster.submit(0, REPLICA, call, &encode(&[written, read, near])).unwrap();
                cluster.seal();
                cluster
            };
            let ways = [every_way(start, 0, 2), every_way(start, 1, 1)];
            assert!(ways.iter().sum::<usize>() > 100, "{ways:?}");
        }
    }
}

/// A transaction that may abort: what was shipped has to be as it was, if it does.
#[test]
fn loans_are_undone_whatever_comes_first() {
    let procedures = registry();
    let plain = Cluster::with(Shape::default(), procedures.clone());
    let (a, b) = (plain.key_in("a", 0), plain.key_in("b", 1));
    let script = b"redis.call('append', KEYS[1], 'x') redis.call('append', KEYS[2], 'y') return 1";
    let (eval, db, eval_args) = command(&[b"eval", script, b"2", &a, &b], Db(0));
    let (append, _, append_args) = command(&[b"append", &a, b"before"], db);
    for version in [Version::NONE, Version::of(7)] {
        let start = || {
            let mut cluster = Cluster::with(Shape::default(), procedures.clone());
            cluster.submit(0, REPLICA, Call::new(append, db), &append_args).unwrap();
            let mut args = Vec::new();
            system::multi_args(
                [(db, &b[..], version)].into_iter(),
                [(eval, db, &eval_args[..])],
                &mut ArgsBuilder::new(&mut args),
            );
            cluster.submit(0, REPLICA, Call::new(system::MULTI, db), &args).unwrap();
            cluster.seal();
            cluster
        };
        let ways = [every_way(start, 0, 2), every_way(start, 1, 1)];
        assert!(ways.iter().sum::<usize>() > 500, "{ways:?}");
        if version != Version::NONE {
            assert!(every_way(start, 2, 0) > 1000);
        }
    }
}

// ---- random transactions -----------------------------------------------------------------------------------

#[derive(Clone, Debug)]
struct Plan {
    shape: Shape,
    keys: u64,
    steps: u64,
    kills: u32,
}

fn plans() -> impl Strategy<Value = Plan> {
    let shape = (
        2usize..4,
        prop::sample::select(vec![1usize, 1, 2, 5]),
        prop::sample::select(vec![1usize, 2, 40, 2000]),
        any::<u64>(),
        prop::sample::select(vec![0u32, 200_000, 500_000]),
        prop::sample::select(vec![
            (calvin::SCHEDULING, None),
            (qstore::SCHEDULING, None),
            (qstore::SCHEDULING, Some(Cascade::Repair)),
            (qstore::SCHEDULING, Some(Cascade::Abort)),
        ]),
        prop::sample::select(vec![Isolation::Serializable, Isolation::ReadCommitted]),
        prop::sample::select(vec![None, Some(0), Some(9_000)]),
    );
    let shape = shape.prop_map(
        |(partitions, threads, window, seed, doubled, (scheduling, speculative), level, memory_budget)| {
            Shape {
                partitions,
                threads,
                window,
                scheduling,
                speculative: speculative.is_some(),
                cascade: speculative.unwrap_or_default(),
                isolation: if scheduling == qstore::SCHEDULING { level } else { Isolation::Serializable },
                seed,
                doubled,
                snapshots: false,
                checkpoint_piece: 0,
                checkpoints: CheckpointMode::default(),
                memory_budget,
            }
        },
    );
    (shape, 2u64..9, 50u64..600, prop::sample::select(vec![0u32, 5_000, 20_000]))
        .prop_map(|(shape, keys, steps, kills)| Plan { shape, keys, steps, kills })
}

fn run(plan: &Plan, procedures: &Arc<ordain_model::Registry>) -> Cluster {
    let mut cluster = Cluster::with(plan.shape.clone(), procedures.clone());
    let mut random = Random::new(plan.shape.seed ^ 0x5eed);
    let mut requests = Requests::new(plan.keys);
    let mut reads: Vec<(Ticket, Db, Vec<u8>)> = Vec::new();
    let mut request = 0;
    let nodes = plan.shape.partitions;
    for _ in 0..plan.steps {
        match random.below(100) {
            0..=44 => {
                let (procedure, db, args): Request = requests.next(&mut random);
                if procedures.get(procedure).is_none_or(|procedure| procedure.is_dependent()) {
                    continue;
                }
                let mut call = Call::new(procedure, db);
                if random.below(2) == 0 {
                    request += 1;
                    call.session = Some((SessionId(1 + random.below(6)), RequestNo(request << 8)));
                }
                let replica = REPLICA + u16::from(random.below(5) == 0);
                cluster.submit(random.index(nodes), replica, call, &args);
            }
            45..=49 => {
                let (db, key) = requests.place(&mut random);
                let call = Call::new(system::READ, Db(0));
                let ticket = cluster
                    .submit(random.index(nodes), REPLICA, call, &encode(&[&[db.0][..], &key]))
                    .unwrap();
                reads.push((ticket, db, key));
            }
            50..=64 => {
                cluster.now = Millis(cluster.now.0 + random.tail(50));
                cluster.seal();
            }
            _ => {
                for _ in 0..random.tail(60) {
                    cluster.step();
                }
            }
        }
        if random.chance(plan.kills) {
            cluster.kill(random.index(nodes));
        }
        reads.retain(|(ticket, db, key)| {
            let Some(answer) = cluster.answer(*ticket) else { return true };
            let read = system::read_reply([(*db, &**key)], &answer.reply)
                .map(|read| read.records)
                .unwrap_or_default();
            requests.seen.extend(read.into_iter().map(|e| ((e.db, e.key), e.version)));
            false
        });
    }
    cluster.seal();
    cluster.settle();
    cluster.verify();
    cluster
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_execution_over_partitions_is_the_serial_one(plan in plans(), limits in limits()) {
        run(&plan, &limited(limits));
    }
}

#[test]
fn all_nodes_are_killed_in_the_middle_of_everything() {
    let procedures = registry();
    for seed in 0..20 {
        let shape = Shape { partitions: 3, threads: 2, seed, doubled: 100_000, ..Shape::default() };
        let mut cluster = run(&Plan { shape, keys: 6, steps: 200, kills: 0 }, &procedures);
        // Together: nobody remembers more than what it had been told, and what it had not is told again.
        let digest = cluster.digest();
        (0..3).for_each(|node| cluster.kill(node));
        cluster.settle();
        cluster.verify();
        assert_eq!(cluster.digest(), digest);
    }
}

/// A replay ran reads of the epoch before too late: their batch counted as applied while they had still to run, and the state
/// that they were to see was not kept.
#[test]
fn a_read_of_the_epoch_before_that_waits_in_a_replay_sees_what_it_saw_the_first_time() {
    let shape = Shape {
        partitions: 2,
        threads: 1,
        window: 40,
        scheduling: qstore::SCHEDULING,
        isolation: Isolation::ReadCommitted,
        speculative: true,
        cascade: Cascade::Repair,
        seed: 8_651_944_293_991_021_583,
        doubled: 0,
        snapshots: false,
        checkpoint_piece: 0,
        checkpoints: CheckpointMode::default(),
        memory_budget: None,
    };
    run(&Plan { shape, keys: 7, steps: 257, kills: 5000 }, &registry());
}

/// SWAPDB gave the names of what its MULTI block read next to records whose values were on disk, and nobody had looked for those.
#[test]
fn values_are_waited_for_under_the_names_that_a_swap_gives() {
    let shape = Shape {
        partitions: 2,
        threads: 1,
        window: 1,
        scheduling: calvin::SCHEDULING,
        isolation: Isolation::Serializable,
        speculative: false,
        cascade: Cascade::Repair,
        seed: 2_301_723_486_484_135_597,
        doubled: 0,
        snapshots: false,
        checkpoint_piece: 0,
        checkpoints: CheckpointMode::Multiversion,
        memory_budget: Some(0),
    };
    run(&Plan { shape, keys: 4, steps: 97, kills: 0 }, &registry());
}

/// A check failed after nobody had looked for what the next fragment replaced without a look; that was undone, and what had been planned
/// meanwhile found a value on disk.
#[test]
fn a_value_that_an_undone_write_restores_is_in_memory() {
    let shape = Shape {
        partitions: 3,
        threads: 5,
        window: 2,
        scheduling: qstore::SCHEDULING,
        isolation: Isolation::Serializable,
        speculative: true,
        cascade: Cascade::Abort,
        seed: 4_338_222_396_861_295_664,
        doubled: 0,
        snapshots: false,
        checkpoint_piece: 0,
        checkpoints: CheckpointMode::Multiversion,
        memory_budget: Some(0),
    };
    run(&Plan { shape, keys: 7, steps: 124, kills: 20_000 }, &registry());
}
