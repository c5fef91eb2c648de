//! Slots change hands while transactions are under way: calvin.md, section 8, scenario 17.
//!
//! A move is sealed in an epoch of which, and of those before, transactions over several partitions are still under way;
//! gateways plan by the map before it and by the one after it, as they please. Whatever happens when, results and state are
//! those of the reference executor, which has all records in one place and knows the maps only to tell who is turned back.

use std::sync::Arc;

use ordain_model::args::encode;
use ordain_model::map::VIRTUAL_SHARDS;
use ordain_model::wire::Codec as _;
use ordain_model::{
    Args, ArgsBuilder, Call, Db, KeyHash, Layout, Map, OutcomeStatus, PartitionId, ProcedureId,
    ReferenceExecutor, VirtualShard, system,
};
use ordain_sim::Random;
use ordain_sim::workload::procedures as p;
use proptest::prelude::*;

use crate::random::Requests;
use crate::support::cluster::{Cluster, Next, REPLICA, Shape, Ticket};
use crate::support::render;

fn send(cluster: &mut Cluster, call: Call, args: &[&[u8]]) -> Ticket {
    let ticket = cluster.submit(0, REPLICA, call, &encode(args)).unwrap();
    cluster.seal();
    ticket
}

/// A transaction that moves slots.
type Change = (ProcedureId, Vec<u8>);

fn change(procedure: ProcedureId, write: impl FnOnce(&mut ArgsBuilder<'_>)) -> Change {
    let mut args = Vec::new();
    write(&mut ArgsBuilder::new(&mut args));
    (procedure, args)
}

fn move_to(slots: &std::ops::Range<usize>, to: usize) -> Change {
    change(system::MOVE, |args| system::move_args(slots, PartitionId(to as u16), args))
}

fn balance(partition: usize, virtual_shards: &[(usize, Option<VirtualShard>)]) -> Change {
    change(system::BALANCE, |args| system::balance_args(PartitionId(partition as u16), virtual_shards, args))
}

/// Asks for a move, in an epoch of its own, and answers the layout after it.
fn send_move(cluster: &mut Cluster, slots: std::ops::Range<usize>, to: usize) -> Arc<Layout> {
    send_change(cluster, &move_to(&slots, to))
}

fn send_change(cluster: &mut Cluster, (procedure, args): &Change) -> Arc<Layout> {
    cluster.submit(0, REPLICA, Call::new(*procedure, Db(0)), args).unwrap();
    cluster.seal();
    let mut reference =
        ReferenceExecutor::new(cluster.registry.clone()).in_cluster((*cluster.layout).clone());
    cluster.sealed.iter().for_each(|batch| _ = reference.run(batch));
    Arc::new(reference.layout().unwrap().clone())
}

fn shown(cluster: &Cluster, ticket: Ticket) -> String {
    cluster.answer(ticket).map_or("-".into(), |answer| match answer.status {
        OutcomeStatus::Moved => {
            let map = Map::from_bytes(&answer.reply).unwrap();
            format!("moved: version {}", map.version())
        }
        _ => render(&answer.reply),
    })
}

fn records(cluster: &Cluster, node: usize) -> f64 {
    cluster.gauge(node, "ordain_store_records")
}

fn append(cluster: &mut Cluster, key: &[u8], value: &[u8]) -> Ticket {
    send(cluster, Call::new(p::APPEND, p::LISTS), &[key, value])
}

#[test]
fn scenario_17_a_slot_moves_while_transactions_of_the_epoch_before_are_under_way() {
    let mut cluster = Cluster::new(Shape { partitions: 3, ..Shape::default() });
    let keys = [0, 1, 2].map(|partition| cluster.key_in("c", partition));
    let slot = KeyHash::of(&keys[0]).slot();
    for (key, value) in keys.iter().zip([b"5", b"6", b"7"]) {
        send(&mut cluster, Call::new(p::PUT, p::CELLS), &[key, value]);
    }
    cluster.settle();
    // Node 1 does not hear of node 0, whose values it needs.
    cluster.hold(0, 1);
    let before = send(&mut cluster, Call::new(p::ROTATE, p::CELLS), &[&keys[0], &keys[1], &keys[2]]);
    let second = send_move(&mut cluster, slot..slot + 1, 1);
    let stale = [
        send(&mut cluster, Call::new(p::PUT, p::CELLS), &[&keys[0], b"8"]),
        send(&mut cluster, Call::new(p::GET, p::CELLS), &[&keys[0]]),
        send(&mut cluster, Call::new(p::ROTATE, p::CELLS), &[&keys[0], &keys[2]]),
    ];
    let elsewhere = send(&mut cluster, Call::new(p::GET, p::CELLS), &[&keys[1], &keys[2]]);
    cluster.plans = second;
    let after = send(&mut cluster, Call::new(p::GET, p::CELLS), &[&keys[0], &keys[1], &keys[2]]);
    cluster.settle();
    assert_eq!(
        cluster.gauge(1, "ordain_shard_locked_records"),
        1.0,
        "it waits with the transaction of before"
    );
    // Node 0 has sent what it had and gone on; node 1 has not begun to take it, and holds up nobody who does not need it.
    assert_eq!((records(&cluster, 0), records(&cluster, 1)), (0.0, 1.0));
    assert!(stale.iter().all(|ticket| shown(&cluster, *ticket) == "moved: version 1"));
    assert_eq!((shown(&cluster, elsewhere), shown(&cluster, after)), ("-".into(), "-".into()));
    cluster.release(0, 1);
    cluster.settle();
    assert_eq!((records(&cluster, 0), records(&cluster, 1), records(&cluster, 2)), (0.0, 2.0, 1.0));
    assert_eq!(shown(&cluster, before), "[\"5\" \"6\" \"7\"]");
    assert_ne!(shown(&cluster, after), "-");
    cluster.verify();
}

#[test]
fn scenario_17_who_gains_and_who_loses_is_killed_amid_a_move() {
    for (seed, piece) in (0..6).flat_map(|seed| [1, 60, 1 << 16].map(|piece| (seed, piece))) {
        for killed in [0, 1] {
            let shape = Shape {
                partitions: 2,
                threads: 2,
                checkpoint_piece: piece,
                seed,
                doubled: 200_000,
                ..Shape::default()
            };
            let mut cluster = Cluster::new(shape);
            for n in 0..60 {
                let key = cluster.key_in(&format!("l{n}-"), n % 2);
                append(&mut cluster, &key, b"x");
            }
            cluster.settle();
            let before = records(&cluster, 0);
            cluster.hold(0, 1);
            let second = send_move(&mut cluster, 0..400, 1);
            for n in 0..60 {
                let key = cluster.key_in(&format!("l{n}-"), n % 2);
                append(&mut cluster, &key, b"old");
            }
            cluster.plans = second;
            for n in 0..60 {
                let key = cluster.key_in(&format!("l{n}-"), n % 2);
                append(&mut cluster, &key, b"new");
            }
            for _ in 0..40 {
                cluster.step();
            }
            cluster.release(0, 1);
            for _ in 0..30 {
                cluster.step();
            }
            cluster.kill(killed);
            cluster.settle();
            assert!(records(&cluster, 0) < before);
            cluster.verify();
            // And once all is done.
            cluster.kill(killed);
            cluster.settle();
            cluster.verify();
        }
    }
}

/// A shard that was given a slot has it in its checkpoints, and begins from them with it.
#[test]
fn a_node_begins_from_a_checkpoint_with_the_slots_that_it_had_then() {
    for piece in [1, 100, 1 << 16] {
        let shape = Shape { partitions: 3, threads: 2, checkpoint_piece: piece, ..Shape::default() };
        let mut cluster = Cluster::new(shape);
        let keys: Vec<Vec<u8>> = (0..60).map(|n| cluster.key_in(&format!("l{n}-"), n % 3)).collect();
        keys.iter().for_each(|key| _ = append(&mut cluster, key, b"1"));
        cluster.plans = send_move(&mut cluster, 100..500, 2);
        keys.iter().for_each(|key| _ = append(&mut cluster, key, b"2"));
        cluster.writes_nothing = true;
        send(&mut cluster, Call::new(system::CHECKPOINT, Db(0)), &[]);
        let cut = cluster.epoch();
        let digest = |cluster: &mut Cluster| {
            (0..3).for_each(|node| cluster.pass(node, cut));
            cluster.settle();
            cluster.digest()
        };
        let at_cut = digest(&mut cluster);
        // While it is taken slots move on, and come back.
        cluster.plans = send_move(&mut cluster, 400..1024, 0);
        keys.iter().for_each(|key| _ = append(&mut cluster, key, b"3"));
        cluster.plans = send_move(&mut cluster, 0..700, 1);
        cluster.settle();
        cluster.writes_nothing = false;
        cluster.settle();
        assert_eq!((cluster.saved.complete(6), cluster.saved.digest(cut)), (vec![cut], at_cut));
        for node in 0..3 {
            cluster.kill(node);
            assert_eq!(cluster.shards[2 * node].map().version(), 1);
        }
        cluster.settle();
        cluster.verify();
        assert!(cluster.shards.iter().all(|shard| shard.map() == cluster.plans.map()));
    }
}

/// Reads on snapshots see every record once, as of every epoch before, in and after that of a move, or are told that the
/// slots were elsewhere then.
#[test]
fn reads_on_snapshots_are_right_on_both_sides_of_a_move() {
    let mut cluster = Cluster::new(Shape { partitions: 3, threads: 2, snapshots: true, ..Shape::default() });
    let keys: Vec<Vec<u8>> = (0..30).map(|n| cluster.key_in(&format!("o{n}-"), n % 3)).collect();
    let mut layouts = vec![cluster.layout.clone()];
    let mut epochs = Vec::new();
    for round in 0..4 {
        for key in &keys {
            send(&mut cluster, Call::new(p::PUT, p::OBJECTS), &[key, &[b'a' + round]]);
        }
        epochs.push(cluster.epoch());
        let slots = usize::from(round) * 100..usize::from(round) * 100 + 400;
        cluster.plans = send_move(&mut cluster, slots, (usize::from(round) + 1) % 3);
        layouts.push(cluster.plans.clone());
        epochs.push(cluster.epoch());
    }
    let last = cluster.epoch();
    (0..3).for_each(|node| cluster.pass(node, last));
    cluster.settle();
    let (mut moved, mut answered) = (0, 0);
    for layout in layouts {
        cluster.plans = layout;
        for at in &epochs {
            let all: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
            let mut tickets = vec![
                cluster.read_at(Call::new(p::GET, p::OBJECTS), &encode(&all), *at),
                cluster.read_at(Call::new(p::COUNT, p::OBJECTS), &encode(&[] as &[&[u8]]), *at),
            ];
            for key in &keys {
                tickets.push(cluster.read_at(Call::new(p::GET, p::OBJECTS), &encode(&[&key[..]]), *at));
            }
            cluster.settle();
            for ticket in tickets {
                match cluster.answer(ticket).expect("an answer").status {
                    OutcomeStatus::Moved => moved += 1,
                    _ => answered += 1,
                }
            }
        }
    }
    assert!(moved > 200 && answered > 200, "{moved} moved, {answered} answered");
    cluster.verify();
}

/// Slots that go to another shard of their partition: who was planned before and uses them is turned back, whatever the number of
/// shards; nobody else is.
#[test]
fn a_slot_moves_between_the_shards_of_a_node() {
    for threads in [1, 2, 3] {
        let mut cluster = Cluster::new(Shape { partitions: 1, threads, ..Shape::default() });
        let (hot, cold) = (cluster.key_in("h", 0), b"elsewhere".to_vec());
        let slot = KeyHash::of(&hot).slot();
        assert_ne!(slot, KeyHash::of(&cold).slot());
        append(&mut cluster, &hot, b"1");
        append(&mut cluster, &cold, b"1");
        cluster.settle();
        let last = threads - 1;
        let virtual_shard = VirtualShard(if cluster.layout.shard_of(slot) == last { 0 } else { 127 });
        let to = virtual_shard.shard(threads);
        let after = send_change(&mut cluster, &balance(0, &[(slot, Some(virtual_shard))]));
        assert_eq!(after.shard_of(slot), to);
        let stale = append(&mut cluster, &hot, b"2");
        let untouched = append(&mut cluster, &cold, b"2");
        cluster.plans = after.clone();
        let again = append(&mut cluster, &hot, b"2");
        // It is there, and the partition has it still.
        assert_eq!(send_change(&mut cluster, &balance(0, &[(slot, Some(virtual_shard))])).map(), after.map());
        cluster.settle();
        assert_eq!(shown(&cluster, stale), "moved: version 1");
        assert_eq!(
            (shown(&cluster, untouched), shown(&cluster, again)),
            ("\"1,2,\"".into(), "\"1,2,\"".into())
        );
        cluster.verify();
    }
}

/// A cursor passes over what has moved as over all else.
#[test]
fn whole_tables_are_in_one_order_wherever_slots_are() {
    let mut cluster = Cluster::new(Shape { partitions: 3, threads: 2, ..Shape::default() });
    for n in 0..200 {
        let (set, db, args) = crate::random::command(&[b"set", format!("key:{n}").as_bytes(), b"x"], Db(0));
        cluster.submit(0, REPLICA, Call::new(set, db), &args).unwrap();
    }
    cluster.seal();
    cluster.plans = send_move(&mut cluster, 200..500, 2);
    cluster.plans = send_move(&mut cluster, 900..1000, 0);
    let virtual_shards: Vec<_> = (0..100).map(|slot| (2 * slot, Some(VirtualShard(127)))).collect();
    cluster.plans = send_change(&mut cluster, &balance(0, &virtual_shards));
    let mut ask = |words: &[&[u8]]| {
        let (procedure, db, args) = crate::random::command(words, Db(0));
        let answer = cluster.ask(Call::new(procedure, db), &args);
        render(&answer.reply)
    };
    ask(&[b"keys", b"*"]);
    let mut cursor = "0".to_owned();
    let mut steps = 0;
    loop {
        let page = ask(&[b"scan", cursor.as_bytes(), b"count", b"7"]);
        cursor = page.split('"').nth(1).unwrap().to_owned();
        steps += 1;
        if cursor == "0" {
            break;
        }
    }
    for _ in 0..20 {
        ask(&[b"randomkey"]);
    }
    assert!(steps > 20);
    cluster.verify();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Anything, with slots that move at any time, by any map, on nodes that are killed at any time.
    #[test]
    fn random_transactions_among_moves(seed in any::<u64>(), partitions in 1usize..4, threads in 1usize..4) {
        let mut random = Random::new(seed);
        let shape = Shape::drawn(&mut random, seed, partitions, threads);
        let mut cluster = Cluster::new(shape);
        let mut requests = Requests::new(6);
        let (mut known, mut number) = (vec![cluster.layout.clone()], 0);
        for _ in 0..60 {
            cluster.plans = known[known.len() - 1 - random.index(known.len().min(3))].clone();
            for _ in 0..random.index(6) {
                requests.submit(&mut cluster, &mut random, 500_000, &mut number);
            }
            cluster.seal();
            if random.chance(300_000) {
                let first = random.index(1000);
                let (slots, to) = (first..first + 1 + random.index(1024 - first), random.index(partitions));
                let change = match random.chance(500_000) {
                    true => move_to(&slots, to),
                    false => {
                        let mut somewhere = || Some(VirtualShard(random.index(VIRTUAL_SHARDS) as u8)).filter(|_| random.chance(700_000));
                        let virtual_shards: Vec<_> = slots.map(|slot| (slot, somewhere())).collect();
                        balance(to, &virtual_shards)
                    }
                };
                let (now, (procedure, args)) = (known.last().expect("the first"), &change);
                let next = system::rearranged(*procedure, Args::parse(args).unwrap(), now);
                if let Some(next) = next.filter(|_| random.chance(500_000)) {
                    // In the epoch of the move, after it, what knows of it already.
                    cluster.submit(0, REPLICA, Call::new(*procedure, Db(0)), args).unwrap();
                    known.push(Arc::new(next));
                    cluster.plans = known[known.len() - 1].clone();
                    for _ in 0..random.index(6) {
                        let (procedure, db, args) = requests.next(&mut random);
                        if cluster.registry.get(procedure).is_some_and(|procedure| !procedure.is_dependent()) {
                            cluster.submit(random.index(partitions), REPLICA, Call::new(procedure, db), &args);
                        }
                    }
                    cluster.seal();
                } else {
                    known.push(send_change(&mut cluster, &change));
                }
            }
            for _ in 0..random.index(40) {
                cluster.step();
            }
            if random.chance(50_000) {
                cluster.happen(Next::Kill(random.index(partitions)));
            }
        }
        cluster.settle();
        cluster.verify();
    }
}
