//! The gateway of a node of a cluster: homes, and what lost nodes owe.

use super::Orders;
use crate::Departure;
use std::sync::Arc;

use ordain_model::wire::{Codec as _, Reader};
use ordain_model::{
    ArgsBuilder, Call, Cell, Chunk, ChunkNo, Db, Front, GatewayId, Gsn, KeyHash, Layout, Millis,
    OutcomeBatch, OutcomeStatus, PartitionId, PauseNo, Registry, RequestNo, SessionId, Value, system,
};

use crate::{Gateway, Owed, Ticket};

/// A gateway of partition 1 of 3, and a key of each partition.
pub(super) fn in_cluster() -> (Gateway, Arc<Layout>, [Vec<u8>; 3]) {
    let mut registry = Registry::default();
    system::register(&mut registry);
    let layout = Arc::new(Layout::even(3, 2).unwrap());
    let place = (0, PartitionId(1));
    let id = GatewayId::of(4, 0);
    let gateway = Gateway::new(id, Arc::new(registry), layout.clone(), place, ChunkNo(1 << 40));
    let keys = [0, 1, 2].map(|partition| {
        let is_there = |key: &Vec<u8>| layout.region_of(key) == PartitionId(partition);
        (0u32..).map(|n| n.to_le_bytes().to_vec()).find(is_there).unwrap()
    });
    (gateway, layout, keys)
}

fn read(gateway: &mut Gateway, ticket: u64, keys: &[&Vec<u8>]) {
    let call = Call::new(system::READ, Db(0));
    let reads = keys.iter().map(|key| (Db(0), &key[..]));
    gateway.submit(Ticket(ticket), call, |args| system::read_args(reads, args)).unwrap();
}

fn write(gateway: &mut Gateway, ticket: u64, session: Option<u64>, key: &[u8]) {
    let session = session.map(|session| (SessionId(session), RequestNo(1)));
    let call = Call { procedure: system::COMMIT, db: Db(0), session };
    let cell = Cell { value: Some(Value::String(b"v".to_vec())), expires_at: Millis(0).into() };
    let writes = [(Db(0), key, &cell)];
    let args = |args: &mut ArgsBuilder<'_>| system::commit_args([].into_iter(), writes, args);
    gateway.submit(Ticket(ticket), call, args).unwrap();
}

#[test]
fn a_transaction_is_sequenced_at_its_home() {
    let (mut gateway, layout, [a, b, c]) = in_cluster();
    let session = (1..).find(|s| layout.home_partition_of(SessionId(*s)) == PartitionId(0)).unwrap();
    read(&mut gateway, 1, &[&c]);
    read(&mut gateway, 2, &[&a, &c]);
    write(&mut gateway, 3, None, &b);
    write(&mut gateway, 4, Some(session), &c);
    read(&mut gateway, 5, &[&c]);
    let mut homes = Vec::new();
    while let Some((home, chunk)) = gateway.next_order() {
        let logged: Vec<bool> = chunk.txns().iter().map(|txn| txn.logged).collect();
        homes.push((home.0, chunk.number.0 - (1 << 40), logged));
        // It is the same after the way to another node.
        let bytes = Front::Submit(chunk.clone()).to_bytes();
        let read = |bytes| Reader::of(gateway.registry(), bytes).whole::<Front>();
        let Some(Front::Submit(back)) = read(&bytes) else { panic!("a chunk") };
        assert_eq!((back.number, back.gateway, back.txns()), (chunk.number, chunk.gateway, chunk.txns()));
        for (here, there) in chunk.txns().iter().zip(back.txns()) {
            assert_eq!(chunk.record(here), back.record(there));
            assert_eq!(chunk.fragments(here), back.fragments(there));
            assert_eq!(chunk.participants(here, &layout), back.participants(there, &layout));
        }
        for cut in 0..bytes.len() {
            assert!(read(&bytes[..cut]).is_none());
        }
    }
    // One that only one partition knows of is not logged if it only reads; one of several is.
    assert_eq!(homes, [(0, 2, vec![true]), (1, 1, vec![true, true]), (2, 0, vec![false, false])]);
}

/// What a gateway submits, sent to the node that holds its home in a replica, which is to answer: the tickets cannot be
/// seen, so homes, numbers, answering replicas and how many transactions.
fn submitted(gateway: &mut Gateway, replica: u16) -> Vec<(u16, u64, u16, usize)> {
    let chunks: Vec<_> = std::iter::from_fn(|| gateway.next_order()).collect();
    chunks
        .into_iter()
        .map(|(home, chunk)| {
            let leaves =
                gateway.leaves(Departure::Order(home, chunk), replica * 3 + home.0, replica).unwrap();
            let chunk = leaves.chunk().unwrap();
            (home.0, chunk.number.0 - (1 << 40), chunk.replica, chunk.txns().len())
        })
        .collect()
}

/// Node `partition` of a replica cannot be reached.
fn lost(replica: u16, partition: u16) -> Owed {
    let node = replica * 3 + partition;
    Owed { node, replica, partition: PartitionId(partition), is_gone: false, has_members: true }
}

pub(super) fn gone(replica: u16, partition: u16) -> Owed {
    Owed { is_gone: true, ..lost(replica, partition) }
}

/// The tickets of what is given up.
fn given_up(gateway: &mut Gateway, owed: Owed) -> Vec<u64> {
    let mut tickets = Vec::new();
    gateway.give_up(owed, |_, finished| {
        assert_eq!(finished.status, OutcomeStatus::Unknown);
        tickets.push(finished.ticket.0);
    });
    tickets
}

/// The tickets that the first transactions of these chunks belong to, if they commit.
fn answered(gateway: &mut Gateway, chunks: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut answers = OutcomeBatch::new(GatewayId::of(4, 0));
    for number in chunks {
        answers.push(ChunkNo((1 << 40) + number), 0, Gsn(9), OutcomeStatus::Committed, |_| {});
    }
    let mut answered = Vec::new();
    gateway.take_outcomes(&answers, |finished| answered.push(finished.ticket.0));
    answered
}

#[test]
fn what_only_reads_is_asked_again_and_a_write_waits_or_is_sent_again() {
    let (mut gateway, _, [a, b, c]) = in_cluster();
    read(&mut gateway, 1, &[&c]);
    read(&mut gateway, 2, &[&c, &a]);
    write(&mut gateway, 3, None, &b);
    write(&mut gateway, 4, None, &c);
    assert_eq!(submitted(&mut gateway, 0), [(1, 1, 0, 2), (2, 0, 0, 2)]);
    // Not asked for yet: it is still here.
    read(&mut gateway, 5, &[&c]);
    assert_eq!(given_up(&mut gateway, lost(0, 2)), []);
    // The chunk with the write goes again as it was, and is answered by another replica if it is new there. What only
    // reads is asked anew.
    assert_eq!(submitted(&mut gateway, 1), [(2, 0, 1, 2), (1, 3, 1, 1), (2, 2, 1, 2)]);
    assert_eq!(gateway.outstanding(), 5);
    // It may have been agreed on before, and then its outcome is gone with the node. That may have led, too.
    assert_eq!(given_up(&mut gateway, gone(0, 2)), [4]);
    assert_eq!((submitted(&mut gateway, 1), gateway.outstanding()), (vec![(2, 4, 1, 2)], 4));
}

/// Seed 909 of two partitions, three replicas, async: a read of several partitions, so one that is logged, was passed on to
/// a primary that turned it away, and could not tell.
#[test]
fn what_only_reads_is_asked_again_when_whoever_may_have_led_is_met_anew() {
    let (mut gateway, _, [a, _, c]) = in_cluster();
    read(&mut gateway, 1, &[&c, &a]);
    write(&mut gateway, 2, None, &a);
    let sent = submitted(&mut gateway, 0);
    let home = sent.iter().map(|(home, ..)| *home).find(|home| *home != 0).unwrap();
    assert_eq!(given_up(&mut gateway, gone(2, home)), []);
    assert_eq!(submitted(&mut gateway, 0), [(home, 2, 0, 1)]);
    assert_eq!(answered(&mut gateway, [2]), [1]);
}

#[test]
fn a_write_is_sent_again_when_what_whoever_may_have_turned_it_away_has_said_is_lost() {
    let (mut gateway, _, [a, b, _]) = in_cluster();
    write(&mut gateway, 1, None, &a);
    write(&mut gateway, 2, None, &b);
    assert_eq!(submitted(&mut gateway, 0), [(0, 0, 0, 1), (1, 1, 0, 1)]);
    // It cannot be reached: what it has said is not lost yet.
    assert_eq!(given_up(&mut gateway, lost(1, 0)), []);
    assert_eq!(submitted(&mut gateway, 0), []);
    assert_eq!(given_up(&mut gateway, gone(1, 0)), []);
    assert_eq!(submitted(&mut gateway, 0), [(0, 0, 0, 1)], "under its number");
    assert_eq!(answered(&mut gateway, [0, 0, 1]), [1, 2]);
}

#[test]
fn a_write_that_is_sent_again_is_answered_once() {
    let (mut gateway, _, [_, _, c]) = in_cluster();
    write(&mut gateway, 1, None, &c);
    assert_eq!(submitted(&mut gateway, 0), [(2, 0, 0, 1)]);
    assert_eq!(given_up(&mut gateway, lost(0, 2)), []);
    assert_eq!(submitted(&mut gateway, 2), [(2, 0, 2, 1)]);
    // The next is lost as well.
    assert_eq!(given_up(&mut gateway, lost(2, 2)), []);
    assert_eq!(submitted(&mut gateway, 1), [(2, 0, 1, 1)]);
    // Whoever answers, it is the only answer there is.
    assert_eq!((answered(&mut gateway, [0, 0]), gateway.outstanding()), (vec![1], 0));
    assert_eq!(given_up(&mut gateway, gone(0, 2)), []);
}

#[test]
fn what_hangs_on_other_nodes_is_let_be() {
    let (mut gateway, _, [a, b, c]) = in_cluster();
    write(&mut gateway, 1, None, &a);
    write(&mut gateway, 2, None, &b);
    assert_eq!(submitted(&mut gateway, 0).len(), 2);
    write(&mut gateway, 3, None, &c);
    // Members of the node that was not asked for anything yet have lost everything, and so has it.
    for owed in [gone(2, 2), gone(0, 2)] {
        assert_eq!(given_up(&mut gateway, owed), []);
    }
    assert_eq!(submitted(&mut gateway, 0), [(2, 2, 0, 1)]);
    // Whoever has no members takes along what it was asked for.
    let alone = Owed { has_members: false, ..gone(0, 0) };
    assert_eq!(given_up(&mut gateway, Owed { is_gone: false, ..alone }), []);
    assert_eq!(given_up(&mut gateway, alone), [1]);
    assert_eq!((submitted(&mut gateway, 0), gateway.outstanding()), (vec![], 2));
}

#[test]
fn what_is_abandoned_is_not_known() {
    let (mut gateway, _, [a, b, c]) = in_cluster();
    write(&mut gateway, 1, None, &a);
    read(&mut gateway, 2, &[&b]);
    assert_eq!(submitted(&mut gateway, 0).len(), 2);
    write(&mut gateway, 3, None, &c);
    let mut ended = Vec::new();
    gateway.abandon(|gateway, finished| {
        assert_eq!(finished.status, OutcomeStatus::Unknown);
        ended.push(finished.ticket.0);
        // Whoever is told may ask for something else.
        if ended.len() == 1 {
            write(gateway, 4, None, &b);
        }
    });
    ended.sort_unstable();
    assert_eq!((ended, gateway.outstanding()), (vec![1, 2, 3], 1));
    // What was on its way may still be answered, and that is for nobody.
    assert_eq!(answered(&mut gateway, 0..3), []);
    let (home, number, _, _) = submitted(&mut gateway, 0)[0];
    assert_eq!(home, 1);
    assert_eq!(answered(&mut gateway, [number]), [4]);
}

#[test]
fn a_request_of_a_session_is_asked_again_under_its_number() {
    let (mut gateway, layout, [_, b, _]) = in_cluster();
    let session = (1..).find(|s| layout.home_partition_of(SessionId(*s)) == PartitionId(0)).unwrap();
    write(&mut gateway, 1, Some(session), &b);
    write(&mut gateway, 2, None, &b);
    let (_, first) = gateway.next_order().unwrap();
    _ = gateway.leaves(Departure::Order(PartitionId(0), first.clone()), 0, 0);
    assert_eq!(submitted(&mut gateway, 0).len(), 1);
    // Whoever led may have remembered it and is gone; the other is answered by the collector alone.
    assert_eq!(given_up(&mut gateway, gone(2, 0)), []);
    let (home, again) = gateway.next_order().unwrap();
    assert_eq!((home, again.txns()[0].call), (PartitionId(0), first.txns()[0].call));
    assert!(gateway.next_order().is_none());
    // If it is turned away now, that does not say that it never took effect.
    let mut ends = Vec::new();
    let busy = outcome(&again, OutcomeStatus::Busy, b"");
    gateway.take_outcomes(&busy, |finished| ends.push((finished.ticket.0, finished.status)));
    assert_eq!(ends, [(1, OutcomeStatus::Unknown)]);
}

#[test]
fn what_was_held_is_answered_by_the_replica_that_is_there_when_it_leaves() {
    let (mut gateway, _, [a, b, c]) = in_cluster();
    write(&mut gateway, 1, None, &c);
    let (home, held) = gateway.next_order().unwrap();
    let held = Departure::Order(home, held);
    assert_eq!(
        (held.chunk().unwrap().replica, gateway.answerers(&held).collect()),
        (0, vec![PartitionId(2)])
    );
    // Meanwhile another replica is whole. That the own one is met now takes nothing with it, but it may have led.
    let left = gateway.leaves(held, 5, 1).unwrap();
    assert_eq!(left.chunk().unwrap().replica, 1);
    assert_eq!(given_up(&mut gateway, gone(0, 2)), []);
    assert_eq!(submitted(&mut gateway, 1), [(2, 0, 1, 1)]);
    assert_eq!(given_up(&mut gateway, gone(1, 2)), [1]);
    // Who answers: where the transaction is collected, which need not be its home.
    read(&mut gateway, 2, &[&a, &b]);
    let (home, read) = gateway.next_order().unwrap();
    let collector = read.collector(&read.txns()[0], &in_cluster().1);
    let read = Departure::Order(home, read);
    let expected = in_cluster().1.partition_of_shard(collector);
    assert_eq!(gateway.answerers(&read).collect::<Vec<_>>(), [expected]);
}

/// The outcome of the only transaction of a chunk.
fn outcome(chunk: &Chunk, status: OutcomeStatus, reply: &[u8]) -> OutcomeBatch {
    let mut batch = OutcomeBatch::new(chunk.gateway);
    batch.push(chunk.number, 0, Gsn(1), status, |out| out.extend_from_slice(reply));
    batch
}

#[test]
fn what_has_moved_is_planned_again_and_nobody_hears_of_it() {
    let (mut gateway, layout, [a, b, _]) = in_cluster();
    let slot = KeyHash::of(&b).slot();
    let moved = layout.moved(&(slot..slot + 1), PartitionId(2)).unwrap();
    let mut map = Vec::new();
    moved.map().encode(&mut map);
    let session = (1..).find(|s| layout.home_partition_of(SessionId(*s)) == PartitionId(0)).unwrap();
    // Both are planned by the first map; one more is being gathered when that is found to be old.
    write(&mut gateway, 1, Some(session), &b);
    let (home, first) = gateway.next_order().unwrap();
    assert_eq!((home, first.map.version()), (PartitionId(0), 0));
    write(&mut gateway, 2, None, &b);
    let (home, second) = gateway.next_order().unwrap();
    assert_eq!(home, PartitionId(1));
    write(&mut gateway, 3, None, &a);
    let mut told = Vec::new();
    for chunk in [&first, &second] {
        gateway.take_outcomes(&outcome(chunk, OutcomeStatus::Moved, &map), |f| told.push(f.ticket.0));
    }
    assert_eq!((gateway.outstanding(), gateway.map()), (3, moved.map()));
    let (home, gathered) = gateway.next_order().unwrap();
    assert_eq!(
        (home, gathered.map.version()),
        (PartitionId(0), 0),
        "it goes by the map that it was planned by"
    );
    // A session's home stays where it is, and its next attempt is another one; the other has its home where the slot is.
    let (home, again) = gateway.next_order().unwrap();
    assert_eq!((home, again.map.version()), (PartitionId(0), 1));
    let numbers = [&first, &again].map(|chunk| chunk.txns()[0].call.session.unwrap().1.0);
    assert_eq!(numbers, [1 << 8, (1 << 8) + 1]);
    let (home, other) = gateway.next_order().unwrap();
    assert_eq!((home, other.map.version()), (PartitionId(2), 1));
    // One that was told of an older map than is known does not lead back to it.
    let mut none = Vec::new();
    layout.map().encode(&mut none);
    gateway.take_outcomes(&outcome(&gathered, OutcomeStatus::Moved, &none), |f| told.push(f.ticket.0));
    assert_eq!(gateway.map().version(), 1);
    // What is refuted while it is the newest that is known has been lost with a part of the order.
    gateway.take_outcomes(&outcome(&other, OutcomeStatus::Moved, &none), |f| told.push(f.ticket.0));
    assert_eq!(gateway.map().version(), 0);
    gateway.take_outcomes(&outcome(&again, OutcomeStatus::Committed, b""), |f| told.push(f.ticket.0));
    assert_eq!((told, gateway.outstanding()), (vec![1], 2));
}

/// Seed 50023 of two partitions, two replicas, async: what was asked for of a node that was met anew was sent again all at
/// once, which was more than the link had room for, so that the node was met anew.
#[test]
fn a_node_is_sent_a_few_pieces_at_a_time_in_order() {
    let (gateway, _, [a, b, c]) = in_cluster();
    let mut gateway = gateway.in_pieces(1);
    // Its own node has no link.
    (1..=3).for_each(|ticket| _ = (write(&mut gateway, ticket, None, &b), sent(&mut gateway)));
    for ticket in 4..=8 {
        write(&mut gateway, ticket, None, &c);
        let pause = ticket - 3;
        let expected = if pause <= 2 { vec![ticket - 1, PAUSE + pause] } else { vec![] };
        assert_eq!(sent(&mut gateway), expected);
    }
    write(&mut gateway, 9, None, &a);
    assert_eq!(sent(&mut gateway), [8, PAUSE + 1], "another node");
    gateway.go_on_sending(2, PauseNo(1));
    assert_eq!(sent(&mut gateway), [5, PAUSE + 3]);
    // What was never made cannot have come.
    gateway.go_on_sending(2, PauseNo(9));
    assert_eq!(sent(&mut gateway), [6, PAUSE + 4, 7, PAUSE + 5]);
    // All of it may be lost: it goes again, in pieces too, and no chunk twice however often the node is met anew. What has
    // waited longest goes first.
    for (chunks, pauses) in [([3, 4], [6, 7]), ([5, 6], [8, 9]), ([7, 3], [10, 11])] {
        assert_eq!(given_up(&mut gateway, gone(2, 2)), []);
        assert_eq!(given_up(&mut gateway, gone(0, 2)), []);
        let [one, two] = pauses.map(|pause| PAUSE + pause);
        assert_eq!(sent(&mut gateway), [chunks[0], one, chunks[1], two]);
    }
}

/// Added to the number of a pause, so that it is not taken for a chunk's.
const PAUSE: u64 = 1000;

/// The numbers of the chunks that leave for the node of replica 0 that holds their home, to be answered by replica 1, and
/// of the pauses among them.
fn sent(gateway: &mut Gateway) -> Vec<u64> {
    let mut sent = Vec::new();
    while let Some(departure) = gateway.flush() {
        let node = match &departure {
            Departure::Order(home, _) => home.0,
            Departure::Word(node, Front::Pause(_)) => *node,
            other => panic!("{other:?}"),
        };
        // The gateway's id says node 4, which is partition 1 of replica 1.
        let node = if node == 1 { 4 } else { node };
        sent.extend(gateway.leaves(departure, node, 1).map(|departure| match departure.into_message() {
            Front::Submit(chunk) => chunk.number.0 - (1 << 40),
            Front::Pause(pause) => PAUSE + pause.0,
            other => panic!("{other:?}"),
        }));
    }
    sent
}
