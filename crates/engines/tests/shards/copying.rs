//! Slots that are copied, a part at a time, before they move: what has changed since is sent alone. Copies are seen by nobody, so
//! results, digests and checkpoints are those of the reference executor, which makes none.

use std::collections::BTreeSet;
use std::sync::Arc;

use ordain_deterministic::shard::Item;
use ordain_model::args::encode;
use ordain_model::system::{CopyPart, copy_reply};
use ordain_model::{ArgsBuilder, Call, Db, KeyHash, OutcomeStatus, PartitionId, Position, system};
use ordain_sim::Random;
use ordain_sim::workload::procedures as p;
use proptest::prelude::*;

use crate::random::Requests;
use crate::support::cluster::{Cluster, Next, REPLICA, Shape, Ticket};
use crate::support::render;

const SLOT_KEY: &[u8] = b"{tag}";

fn slot() -> usize {
    KeyHash::of(SLOT_KEY).slot()
}

fn key(n: usize) -> Vec<u8> {
    format!("{{tag}}{n}").into_bytes()
}

fn submit(cluster: &mut Cluster, call: Call, args: &[&[u8]]) -> Ticket {
    cluster.submit(0, REPLICA, call, &encode(args)).expect("a request that is not refused")
}

fn put(cluster: &mut Cluster, n: usize, value: &[u8]) {
    submit(cluster, Call::new(p::PUT, p::OBJECTS), &[&key(n), value]);
    cluster.seal();
}

fn delete(cluster: &mut Cluster, n: usize) {
    submit(cluster, Call::new(p::DELETE, p::OBJECTS), &[&key(n)]);
    cluster.seal();
}

fn submit_part(cluster: &mut Cluster, from: Position, to: usize, records: usize) -> Ticket {
    let mut args = Vec::new();
    let part = CopyPart { to: PartitionId(to as u16), from, records, bytes: 1 << 20 };
    part.write(&mut ArgsBuilder::new(&mut args));
    cluster.submit(0, REPLICA, Call::new(system::COPY, Db(0)), &args).expect("a part that may be copied")
}

/// Copies a part, and answers from where the next goes on.
fn copy(cluster: &mut Cluster, from: Position, to: usize, records: usize) -> Option<Position> {
    let ticket = submit_part(cluster, from, to, records);
    cluster.seal();
    cluster.settle();
    copy_reply(&cluster.answer(ticket).expect("an answer").reply)
}

fn move_slot(cluster: &mut Cluster, to: usize) {
    let mut args = Vec::new();
    system::move_args(&(slot()..slot() + 1), PartitionId(to as u16), &mut ArgsBuilder::new(&mut args));
    cluster.submit(0, REPLICA, Call::new(system::MOVE, Db(0)), &args).unwrap();
    cluster.seal();
    let moved = cluster.plans.moved(&(slot()..slot() + 1), PartitionId(to as u16));
    cluster.plans = Arc::new(moved.expect("it is elsewhere"));
}

/// How many records the last remote result from one node to another has that moves slots.
fn sent(cluster: &Cluster, from: usize, to: usize) -> usize {
    let records = |item: &Item| match item {
        Item::Records { records, .. } => records.len(),
        _ => 0,
    };
    cluster.last_received(from, to).items.iter().map(|(_, item)| records(item)).sum()
}

/// The node that has the slot, and another one.
fn sides(cluster: &Cluster) -> [usize; 2] {
    let giver = usize::from(cluster.plans.partition_of(slot()).0);
    [giver, (giver + 1) % 2]
}

#[test]
fn a_slot_is_copied_while_it_is_served_and_only_what_has_changed_is_sent_when_it_moves() {
    for threads in [1, 2, 3] {
        let mut cluster = Cluster::new(Shape { partitions: 2, threads, ..Shape::default() });
        let [giver, receiver] = sides(&cluster);
        (0..100).for_each(|n| put(&mut cluster, n, b"1"));
        cluster.settle();
        let records =
            |cluster: &Cluster| [giver, receiver].map(|node| cluster.gauge(node, "ordain_store_records"));
        let (mut from, mut parts) = (Some(Position::of_slot(slot())), 0);
        while let Some(position) = from {
            from = copy(&mut cluster, position, receiver, 10);
            parts += 1;
            // Records are written over, go and come, on both sides of what has been copied.
            put(&mut cluster, 3 * parts, b"2");
            delete(&mut cluster, 7 * parts);
            put(&mut cluster, 200 + parts, b"new");
        }
        assert!((9..14).contains(&parts), "{parts}");
        cluster.settle();
        assert_eq!(records(&cluster)[1], 0.0, "copies are seen by nobody");
        let held = |cluster: &Cluster| cluster.gauge(receiver, "ordain_store_memory_bytes");
        assert!(held(&cluster) > 100.0 * 64.0, "they are there");
        // The last part again: what has changed is copied anew. Then there is little left.
        copy(&mut cluster, CopyPart::last(slot()), receiver, 100);
        put(&mut cluster, 11, b"3");
        delete(&mut cluster, 12);
        cluster.settle();
        let all = records(&cluster)[0];
        move_slot(&mut cluster, receiver);
        put(&mut cluster, 13, b"4");
        cluster.settle();
        assert_eq!(records(&cluster), [0.0, all]);
        cluster.verify();
        // And back, by copies made on the other side.
        let mut from = Some(Position::of_slot(slot()));
        while let Some(position) = from {
            from = copy(&mut cluster, position, giver, 30);
        }
        put(&mut cluster, 13, b"5");
        move_slot(&mut cluster, giver);
        cluster.settle();
        assert_eq!(records(&cluster), [all, 0.0]);
        cluster.verify();
    }
}

#[test]
fn what_is_sent_when_a_copied_slot_moves_is_what_has_changed() {
    let mut cluster = Cluster::new(Shape { partitions: 2, ..Shape::default() });
    let [giver, receiver] = sides(&cluster);
    (0..100).for_each(|n| put(&mut cluster, n, b"1"));
    assert_eq!(copy(&mut cluster, Position::of_slot(slot()), receiver, 1000), None);
    assert_eq!(sent(&cluster, giver, receiver), 100);
    (10..40).for_each(|n| put(&mut cluster, n, b"2"));
    assert_eq!(copy(&mut cluster, CopyPart::last(slot()), receiver, 20), None);
    assert_eq!(
        sent(&cluster, giver, receiver),
        20,
        "of those that have changed as many as a part has records"
    );
    assert_eq!(copy(&mut cluster, CopyPart::last(slot()), receiver, 20), None);
    assert_eq!(sent(&cluster, giver, receiver), 10);
    put(&mut cluster, 3, b"2");
    delete(&mut cluster, 4);
    cluster.settle();
    move_slot(&mut cluster, receiver);
    cluster.settle();
    assert_eq!(sent(&cluster, giver, receiver), 2);
    assert_eq!(cluster.gauge(receiver, "ordain_store_records"), 99.0);
    // Without copies it is all of them.
    move_slot(&mut cluster, giver);
    cluster.settle();
    assert_eq!(sent(&cluster, receiver, giver), 99);
    cluster.verify();
}

/// Whatever makes copies useless, all records of the slot are sent when it moves.
#[test]
fn copies_that_are_given_up_cost_nothing_but_time() {
    type Spoil = fn(&mut Cluster);
    let spoils: [(&str, Spoil); 6] = [
        ("another slot is copied to where this one is to go", |cluster| {
            let receiver = sides(cluster)[1];
            let other = (0..).map(Position::of_slot).find(|other| {
                let owner = cluster.plans.partition_of(other.slot());
                other.slot() != slot() && usize::from(owner.0) != receiver
            });
            copy(cluster, other.expect("a slot"), receiver, 5);
        }),
        ("all is cleared, and written anew", |cluster| {
            submit(cluster, Call::new(p::CLEAR, p::OBJECTS), &[]);
            cluster.seal();
            (0..50).for_each(|n| put(cluster, n, b"2"));
        }),
        ("a part is missing", |cluster| {
            let receiver = sides(cluster)[1];
            copy(cluster, Position(Position::of_slot(slot()).0 + 77), receiver, 5);
        }),
        ("the copy is begun anew, and the slot moves amid it", |cluster| {
            let receiver = sides(cluster)[1];
            copy(cluster, Position::of_slot(slot()), receiver, 5);
        }),
        ("a checkpoint is cut in the epoch of a part", |cluster| {
            let receiver = sides(cluster)[1];
            submit(cluster, Call::new(system::CHECKPOINT, Db(0)), &[]);
            submit_part(cluster, Position::of_slot(slot()), receiver, 1000);
            cluster.seal();
            cluster.settle();
        }),
        ("the slot moves in the epoch of the last part", |cluster| {
            let receiver = sides(cluster)[1];
            submit_part(cluster, Position::of_slot(slot()), receiver, 1000);
        }),
    ];
    for (what, spoil) in spoils {
        for killed in [None, Some(0), Some(1)] {
            let mut cluster = Cluster::new(Shape { partitions: 2, threads: 2, ..Shape::default() });
            let [_, receiver] = sides(&cluster);
            (0..50).for_each(|n| put(&mut cluster, n, b"1"));
            let mut from = Some(Position::of_slot(slot()));
            while let Some(position) = from {
                from = copy(&mut cluster, position, receiver, 20);
            }
            spoil(&mut cluster);
            killed.into_iter().for_each(|node| cluster.kill(node));
            move_slot(&mut cluster, receiver);
            put(&mut cluster, 1, b"3");
            cluster.settle();
            assert_eq!(cluster.gauge(receiver, "ordain_store_records"), 50.0, "{what}");
            cluster.verify();
        }
    }
}

/// Of an epoch in which a slot is being copied no state is kept; of later ones it is, with the slot where it is then.
#[test]
fn no_checkpoint_is_taken_amid_copies() {
    let mut cluster = Cluster::new(Shape { partitions: 2, checkpoint_piece: 60, ..Shape::default() });
    let [_, receiver] = sides(&cluster);
    (0..50).for_each(|n| put(&mut cluster, n, b"1"));
    let next = copy(&mut cluster, Position::of_slot(slot()), receiver, 20).expect("there is more");
    submit(&mut cluster, Call::new(system::CHECKPOINT, Db(0)), &[]);
    cluster.seal();
    let amid = cluster.epoch();
    let pass = |cluster: &mut Cluster| {
        let epoch = cluster.epoch();
        (0..2).for_each(|node| cluster.pass(node, epoch));
        cluster.settle();
    };
    pass(&mut cluster);
    assert_eq!(copy(&mut cluster, next, receiver, 100), None);
    move_slot(&mut cluster, receiver);
    put(&mut cluster, 1, b"2");
    submit(&mut cluster, Call::new(system::CHECKPOINT, Db(0)), &[]);
    cluster.seal();
    let after = cluster.epoch();
    pass(&mut cluster);
    assert_eq!(cluster.saved.complete(2), vec![after], "and none of {amid}");
    for node in 0..2 {
        cluster.kill(node);
    }
    for partition in 0..2 {
        let name = cluster.key_in("c", partition);
        submit(&mut cluster, Call::new(p::PUT, p::CELLS), &[&name, b"3"]);
        cluster.seal();
    }
    cluster.settle();
    assert_eq!(cluster.gauge(receiver, "ordain_store_records"), 51.0);
    cluster.verify();
}

/// A giver that has copies of its own keeps no state, and begins no others behind the checkpoint: who is to get them may keep
/// its state, without them. Found by seeds 61 (paxflow) and 270 (qstore) of two partitions and three replicas.
#[test]
fn a_node_begins_from_a_checkpoint_whose_giver_was_copying_to_another() {
    let mut cluster = Cluster::new(Shape { partitions: 3, checkpoint_piece: 60, ..Shape::default() });
    let giver = usize::from(cluster.plans.partition_of(slot()).0);
    let [first, second] = [1, 2].map(|further| (giver + further) % 3);
    (0..50).for_each(|n| put(&mut cluster, n, b"1"));
    copy(&mut cluster, Position::of_slot(slot()), first, 5).expect("there is more");
    submit(&mut cluster, Call::new(system::CHECKPOINT, Db(0)), &[]);
    let part = submit_part(&mut cluster, Position::of_slot(slot()), second, 20);
    cluster.seal();
    let epoch = cluster.epoch();
    (0..3).for_each(|node| cluster.pass(node, epoch));
    cluster.settle();
    let mut from = copy_reply(&cluster.answer(part).expect("an answer").reply);
    while let Some(position) = from {
        from = copy(&mut cluster, position, second, 20);
    }
    cluster.kill_to(second, Some(epoch));
    cluster.settle();
    put(&mut cluster, 1, b"2");
    move_slot(&mut cluster, second);
    cluster.settle();
    assert_eq!(cluster.gauge(second, "ordain_store_records"), 50.0);
    cluster.verify();
    cluster.kill_to(second, Some(epoch));
    cluster.settle();
    cluster.verify();
}

#[test]
fn who_makes_copies_and_who_gets_them_is_killed() {
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let shape = Shape {
            partitions: 2,
            threads: 2,
            seed,
            doubled: 200_000,
            checkpoint_piece: 60,
            ..Shape::default()
        };
        let mut cluster = Cluster::new(shape);
        let [giver, receiver] = sides(&cluster);
        (0..60).for_each(|n| put(&mut cluster, n, b"1"));
        let mut from = Some(Position::of_slot(slot()));
        while let Some(position) = from {
            let ticket = submit_part(&mut cluster, position, receiver, 7);
            cluster.seal();
            put(&mut cluster, random.index(90), b"2");
            (0..random.index(60)).for_each(|_| _ = cluster.step());
            if random.chance(300_000) {
                cluster.kill(random.index(2));
            }
            cluster.settle();
            from = copy_reply(&cluster.answer(ticket).expect("an answer").reply);
        }
        move_slot(&mut cluster, receiver);
        delete(&mut cluster, 5);
        (0..random.index(80)).for_each(|_| _ = cluster.step());
        cluster.kill([giver, receiver][random.index(2)]);
        cluster.settle();
        cluster.verify();
        cluster.kill(random.index(2));
        cluster.settle();
        cluster.verify();
    }
}

/// Reads on snapshots see the slot's records once, as of every epoch.
#[test]
fn reads_on_snapshots_are_right_on_both_sides_of_a_move_by_copies() {
    let mut cluster = Cluster::new(Shape { partitions: 2, threads: 2, snapshots: true, ..Shape::default() });
    let mut layouts = vec![cluster.layout.clone()];
    let mut epochs = Vec::new();
    for round in 0..4 {
        (0..20).for_each(|n| put(&mut cluster, n, &[b'a' + round]));
        delete(&mut cluster, usize::from(round));
        epochs.push(cluster.epoch());
        let to = sides(&cluster)[1];
        let mut from = Some(Position::of_slot(slot()));
        while let Some(position) = from {
            from = copy(&mut cluster, position, to, 9);
            put(&mut cluster, usize::from(round) + 5, b"amid");
            epochs.push(cluster.epoch());
        }
        move_slot(&mut cluster, to);
        layouts.push(cluster.plans.clone());
        epochs.push(cluster.epoch());
        put(&mut cluster, 19, b"after");
    }
    let last = cluster.epoch();
    (0..2).for_each(|node| cluster.pass(node, last));
    cluster.settle();
    let keys: Vec<Vec<u8>> = (0..20).map(key).collect();
    let all: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let mut seen = BTreeSet::new();
    for layout in layouts {
        cluster.plans = layout;
        for at in &epochs {
            let tickets = [
                cluster.read_at(Call::new(p::GET, p::OBJECTS), &encode(&all), *at),
                cluster.read_at(Call::new(p::COUNT, p::OBJECTS), &encode(&[] as &[&[u8]]), *at),
            ];
            cluster.settle();
            for ticket in tickets {
                let answer = cluster.answer(ticket).expect("an answer");
                if answer.status != OutcomeStatus::Moved {
                    seen.insert(render(&answer.reply));
                }
            }
        }
    }
    assert!(seen.len() > 8, "{seen:?}");
    cluster.verify();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Anything, with slots that are copied and move at any time, on nodes that are killed at any time.
    #[test]
    fn random_transactions_among_copies(seed in any::<u64>(), partitions in 2usize..4, threads in 1usize..4) {
        let mut random = Random::new(seed);
        let shape = Shape::drawn(&mut random, seed, partitions, threads);
        let mut cluster = Cluster::new(shape);
        let mut requests = Requests::new(6);
        let (mut known, mut number) = (vec![cluster.layout.clone()], 0);
        let (mut from, mut asked, mut to) = (Position::of_slot(slot()), None, random.index(partitions));
        for _ in 0..80 {
            cluster.plans = known[known.len() - 1 - random.index(known.len().min(3))].clone();
            for _ in 0..random.index(5) {
                requests.submit(&mut cluster, &mut random, 300_000, &mut number);
            }
            for _ in 0..random.index(6) {
                let name = key(random.index(20));
                let (procedure, args) = match random.index(3) {
                    0 => (p::PUT, encode(&[&name[..], &random.below(9).to_string().into_bytes()])),
                    1 => (p::DELETE, encode(&[&name[..]])),
                    _ => (p::GET, encode(&[&name[..], &key(random.index(20))])),
                };
                cluster.submit(random.index(partitions), REPLICA, Call::new(procedure, p::OBJECTS), &args);
            }
            let answer = asked.and_then(|ticket| cluster.answer(ticket)).map(|answer| copy_reply(&answer.reply));
            if let Some(next) = answer {
                asked = None;
                let is_over = next.is_none() && (from == CopyPart::last(slot()) || random.chance(500_000));
                from = if is_over { Position::END } else { next.unwrap_or(CopyPart::last(slot())) };
            }
            if from == Position::END || random.chance(60_000) {
                cluster.seal();
                let now = known.last().expect("the first");
                let slots = match random.index(4) {
                    0 => slot().saturating_sub(random.index(300))..slot() + 1,
                    _ => slot()..slot() + 1,
                };
                if let Some(next) = now.moved(&slots, PartitionId(to as u16)) {
                    let mut args = Vec::new();
                    system::move_args(&slots, PartitionId(to as u16), &mut ArgsBuilder::new(&mut args));
                    cluster.submit(0, REPLICA, Call::new(system::MOVE, Db(0)), &args).unwrap();
                    known.push(Arc::new(next));
                }
                (from, asked, to) = (Position::of_slot(slot()), None, random.index(partitions));
            } else if asked.is_none() && random.chance(600_000) {
                // Now and then one that is wrong.
                let wrong = random.chance(30_000).then(|| Position(from.0 + 1));
                asked = Some(submit_part(&mut cluster, wrong.unwrap_or(from), to, 1 + random.index(4)));
            }
            cluster.seal();
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
