//! The requests of a stream take effect in the order in which they are submitted.

use std::sync::Arc;

use ordain_model::wire::{Codec as _, Reader};
use ordain_model::{
    ArgsBuilder, Call, Cell, Chunk, Datum, Db, Epoch, Gsn, KeyHash, Map, Millis, OutcomeBatch, OutcomeStatus,
    PartitionId, Reads, RequestNo, SessionId, Token, Value, View, system,
};

use super::cluster::{gone, in_cluster};
use super::{CONSULT, gateway};
use crate::{Departure, Gateway, Stream, Ticket};

const COMMITTED: OutcomeStatus = OutcomeStatus::Committed;
const VIEW: View = View::Since(Token::NOTHING);

/// Submits a read in a stream.
fn read(gateway: &mut Gateway, stream: u32, ticket: u64, key: &[u8]) {
    let write = |args: &mut ArgsBuilder<'_>| system::read_args([(Db(0), key)], args);
    gateway
        .submit_in_order(Stream(stream), Ticket(ticket), Call::new(system::READ, Db(0)), VIEW, write)
        .unwrap();
}

/// Submits a write in a stream, as a request of a session if there is one.
fn write(gateway: &mut Gateway, stream: u32, ticket: u64, key: &[u8], session: Option<(u64, u64)>) {
    let session = session.map(|(session, request)| (SessionId(session), RequestNo(request)));
    let call = Call { session, ..Call::new(system::COMMIT, Db(0)) };
    let cell = Cell { value: Some(Value::String(b"v".to_vec())), expires_at: Millis(0).into() };
    let args = |args: &mut ArgsBuilder<'_>| system::commit_args([].into_iter(), [(Db(0), key, &cell)], args);
    gateway.submit_in_order(Stream(stream), Ticket(ticket), call, VIEW, args).unwrap();
}

/// What leaves: home and chunk, or no home for reads on a snapshot. Each is sent to the node of replica 0.
fn leaving(gateway: &mut Gateway) -> Vec<(Option<u16>, Arc<Chunk>)> {
    let mut left = Vec::new();
    while let Some(departure) = gateway.flush() {
        let home = match &departure {
            Departure::Order(home, _) | Departure::Step(_, home, _) => Some(home.0),
            Departure::Read(..) => None,
            Departure::Word(..) => continue,
        };
        let node = home.unwrap_or(1);
        let departure = gateway.leaves(departure, node, 0).unwrap();
        left.push((home, departure.chunk().unwrap().clone()));
    }
    left
}

/// The only chunk that leaves.
#[track_caller]
fn leaves(gateway: &mut Gateway) -> (Option<u16>, Arc<Chunk>) {
    let mut left = leaving(gateway);
    let chunk = left.pop().expect("a chunk leaves");
    assert!(left.is_empty(), "{left:?}");
    chunk
}

/// Which keys a chunk is about, in order, and of each whether it is logged and whether it follows.
fn shown(chunk: &Chunk, keys: &[Vec<u8>; 3]) -> String {
    let mut shown = Vec::new();
    for txn in chunk.txns() {
        let hash = chunk.fragments(txn)[0].hash;
        let name =
            ["a", "b", "c"][keys.iter().position(|key| KeyHash::of_record(Db(0), key) == hash).unwrap()];
        let kind = if txn.read_only { "r" } else { "w" };
        let marks = [(txn.logged, "l"), (txn.follows, "f")];
        let marks: String = marks.iter().filter(|(is, _)| *is).map(|(_, mark)| *mark).collect();
        shown.push(format!("{kind}{name}{marks}"));
    }
    shown.join(" ")
}

/// Outcomes of a chunk that stands at a place; answers who is told what.
fn answered(
    gateway: &mut Gateway,
    chunk: &Chunk,
    at: u64,
    outcomes: &[(u32, OutcomeStatus)],
    map: &Map,
) -> Vec<(u64, OutcomeStatus)> {
    let mut batch = OutcomeBatch::new(chunk.gateway);
    for (index, status) in outcomes {
        let gsn = Gsn::new(Epoch(at), PartitionId(0), 100 + index);
        batch.push(chunk.number, *index, gsn, *status, |reply| match status {
            OutcomeStatus::Moved => map.encode(reply),
            _ => ordain_model::Writer(reply).ok(),
        });
    }
    let mut told = Vec::new();
    gateway.take_outcomes(&batch, |finished| told.push((finished.ticket.0, finished.status)));
    told
}

fn commit(gateway: &mut Gateway, chunk: &Chunk, at: u64) -> Vec<u64> {
    let all: Vec<(u32, OutcomeStatus)> = chunk.txns().iter().map(|txn| (txn.index, COMMITTED)).collect();
    let told = answered(gateway, chunk, at, &all, &Map::FIRST);
    assert!(told.iter().all(|(_, status)| *status == COMMITTED));
    told.into_iter().map(|(ticket, _)| ticket).collect()
}

#[test]
fn what_is_submitted_together_is_sequenced_together_and_what_comes_later_gathers() {
    let (mut gateway, _, keys) = in_cluster();
    let [a, b, c] = &keys;
    write(&mut gateway, 7, 1, c, None);
    write(&mut gateway, 7, 2, a, None);
    read(&mut gateway, 7, 3, b);
    write(&mut gateway, 7, 4, b, None);
    // Another connection has a home of its own.
    write(&mut gateway, 8, 5, a, None);
    let left = leaving(&mut gateway);
    let of = |home| left.iter().find(|(at, _)| *at == Some(home)).map(|(_, chunk)| shown(chunk, &keys));
    assert_eq!(of(2).as_deref(), Some("wcl walf rblf wblf"));
    assert_eq!((of(0).as_deref(), left.len()), (Some("wal"), 2));
    // The chunk is on its way: what comes now may not overtake it, and leaves together once it is answered.
    write(&mut gateway, 7, 6, a, None);
    read(&mut gateway, 7, 7, c);
    assert!(leaving(&mut gateway).is_empty());
    assert_eq!(gateway.outstanding(), 7);
    let first = &left.iter().find(|(home, _)| *home == Some(2)).unwrap().1;
    let part = [(1, COMMITTED), (3, COMMITTED), (0, COMMITTED)];
    assert_eq!(answered(&mut gateway, first, 5, &part, &Map::FIRST).len(), 3);
    assert!(leaving(&mut gateway).is_empty(), "one of them is under way yet");
    assert_eq!(answered(&mut gateway, first, 5, &[(2, COMMITTED)], &Map::FIRST), [(3, COMMITTED)]);
    let (home, chunk) = leaves(&mut gateway);
    assert_eq!((home, shown(&chunk, &keys)), (Some(0), "wal rclf".to_owned()));
    assert_eq!(commit(&mut gateway, &chunk, 6), [6, 7]);
}

#[test]
fn reads_are_logged_where_they_have_the_fate_of_writes_or_are_sequenced_elsewhere() {
    for (asks, home, expected) in [
        ("rb rb", 1, "rb rbf"),
        ("rb rc rb ra", 1, "rb rclf rbf ralf"),
        ("rb rb wb rb", 1, "rbl rblf wblf rblf"),
        ("rc rc wa rb", 2, "rcl rclf walf rblf"),
        ("wb", 1, "wbl"),
    ] {
        let (mut gateway, _, keys) = in_cluster();
        // A connection beside it that only reads, in the same chunk, is let be.
        read(&mut gateway, 3, 100, &keys[home as usize]);
        for (ticket, ask) in (1..).zip(asks.split(' ')) {
            let key = &keys[usize::from(ask.as_bytes()[1] - b'a')];
            match &ask[..1] {
                "r" => read(&mut gateway, 7, ticket, key),
                _ => write(&mut gateway, 7, ticket, key, None),
            }
        }
        let (at, chunk) = leaves(&mut gateway);
        let name = ["ra", "rb", "rc"][home as usize];
        assert_eq!((at, shown(&chunk, &keys)), (Some(home), format!("{name} {expected}")));
        // It is the same after the way to another node, and the log has what it is to have.
        let back: Chunk = Reader::of(gateway.registry(), &chunk.to_bytes()).whole().unwrap();
        assert_eq!((back.txns(), back.logged()), (chunk.txns(), chunk.logged()));
        for (here, there) in chunk.txns().iter().zip(back.txns()) {
            assert_eq!(chunk.record(here), back.record(there));
            assert_eq!(chunk.args(here).encoded(), back.args(there).encoded());
        }
    }
}

#[test]
fn what_is_turned_back_is_planned_again_in_order_before_what_came_later() {
    let (mut gateway, layout, keys) = in_cluster();
    let [a, b, c] = &keys;
    let slot = KeyHash::of(b).slot();
    let moved = layout.moved(&(slot..slot + 1), PartitionId(2)).unwrap();
    let map = moved.map();
    write(&mut gateway, 7, 1, a, None);
    write(&mut gateway, 7, 2, b, None);
    write(&mut gateway, 7, 3, c, None);
    let (_, chunk) = leaves(&mut gateway);
    // Whoever executes it turns back all that follow, and the first only if its own slot has moved.
    let is_back =
        |chunk: &Chunk| -> Vec<bool> { chunk.txns().iter().map(|t| chunk.is_moved(t, &moved)).collect() };
    assert_eq!(is_back(&chunk), [false, true, true]);
    assert!(chunk.txns().iter().all(|txn| !chunk.is_moved(txn, &layout)), "by its own map it is executed");
    write(&mut gateway, 7, 4, a, None);
    let outcomes = [(2, OutcomeStatus::Moved), (0, COMMITTED), (1, OutcomeStatus::Moved)];
    assert_eq!(answered(&mut gateway, &chunk, 5, &outcomes, map), [(1, COMMITTED)]);
    assert_eq!(gateway.map(), map);
    let (home, chunk) = leaves(&mut gateway);
    assert_eq!((home, shown(&chunk, &keys)), (Some(2), "wbl wclf walf".to_owned()));
    assert_eq!(is_back(&chunk), [false; 3]);
    assert_eq!(commit(&mut gateway, &chunk, 6), [2, 3, 4]);
}

#[test]
fn what_is_planned_by_a_newer_map_waits_for_what_was_planned_by_an_older() {
    let mut gateway = gateway();
    let layout = ordain_model::Layout::single(1);
    let virtual_shards = [(3, Some(ordain_model::VirtualShard(7)))];
    let balanced = layout.balanced(PartitionId(0), &virtual_shards).unwrap();
    write(&mut gateway, 7, 1, b"k", None);
    write(&mut gateway, 8, 2, b"k", None);
    let (_, chunk) = leaves(&mut gateway);
    // The other connection hears of the new map first.
    assert_eq!(answered(&mut gateway, &chunk, 5, &[(1, OutcomeStatus::Moved)], balanced.map()), []);
    write(&mut gateway, 7, 3, b"k", None);
    let (_, again) = leaves(&mut gateway);
    assert_eq!(again.txns().len(), 1, "it may be that the first is turned back as well");
    assert_eq!(answered(&mut gateway, &chunk, 5, &[(0, OutcomeStatus::Moved)], balanced.map()), []);
    let (_, both) = leaves(&mut gateway);
    assert_eq!(commit(&mut gateway, &both, 6), [1, 3]);
    assert_eq!(commit(&mut gateway, &again, 7), [2]);
    assert_eq!(gateway.outstanding(), 0);
}

#[test]
fn a_read_that_was_run_again_elsewhere_is_not_taken() {
    // The later one has its place: the earlier cannot have one before it any more.
    let (mut gateway, _, keys) = in_cluster();
    let run = |gateway: &mut Gateway| {
        read(gateway, 7, 1, &keys[1]);
        read(gateway, 7, 2, &keys[1]);
        leaves(gateway).1
    };
    let chunk = run(&mut gateway);
    assert_eq!(answered(&mut gateway, &chunk, 5, &[(1, COMMITTED)], &Map::FIRST), [(2, COMMITTED)]);
    assert_eq!(answered(&mut gateway, &chunk, 9, &[(0, COMMITTED)], &Map::FIRST), [(1, OutcomeStatus::Busy)]);
    assert_eq!(gateway.outstanding(), 0);
    // The earlier one has: the later is read once more.
    let chunk = run(&mut gateway);
    assert_eq!(answered(&mut gateway, &chunk, 9, &[(0, COMMITTED)], &Map::FIRST), [(1, COMMITTED)]);
    assert_eq!(answered(&mut gateway, &chunk, 5, &[(1, COMMITTED)], &Map::FIRST), []);
    let (_, again) = leaves(&mut gateway);
    assert_eq!(commit(&mut gateway, &again, 10), [2]);
}

#[test]
fn with_a_lost_node_a_run_of_reads_is_asked_again_and_one_with_writes_is_sent_again_whole() {
    for has_write in [false, true] {
        let (mut gateway, _, keys) = in_cluster();
        read(&mut gateway, 7, 1, &keys[2]);
        match has_write {
            true => write(&mut gateway, 7, 2, &keys[2], None),
            false => read(&mut gateway, 7, 2, &keys[1]),
        }
        read(&mut gateway, 7, 3, &keys[1]);
        let (home, chunk) = leaves(&mut gateway);
        assert_eq!(home, Some(2));
        let lost = crate::Owed { is_gone: false, ..gone(0, 2) };
        gateway.give_up(lost, |_, finished| panic!("{finished:?}"));
        let (home, again) = leaves(&mut gateway);
        assert_eq!((home, again.number == chunk.number), (Some(2), has_write));
        assert_eq!(shown(&again, &keys), shown(&chunk, &keys));
        assert_eq!(commit(&mut gateway, &again, 5), [1, 2, 3]);
        // What the first attempt may have come to is nobody's any more.
        assert_eq!(commit(&mut gateway, &chunk, 6), []);
    }
}

#[test]
fn of_a_run_with_writes_what_a_lost_node_was_to_answer_is_unknown_and_what_follows_goes_on() {
    let (mut gateway, _, keys) = in_cluster();
    write(&mut gateway, 7, 1, &keys[1], None);
    read(&mut gateway, 7, 2, &keys[2]);
    let (_, chunk) = leaves(&mut gateway);
    read(&mut gateway, 7, 3, &keys[1]);
    let mut told = Vec::new();
    gateway.give_up(gone(0, 2), |_, finished| told.push((finished.ticket.0, finished.status)));
    assert_eq!(told, [(2, OutcomeStatus::Unknown)]);
    assert!(leaving(&mut gateway).is_empty());
    assert_eq!(commit(&mut gateway, &chunk, 5), [1]);
    let (_, next) = leaves(&mut gateway);
    assert_eq!(commit(&mut gateway, &next, 6), [3]);
}

#[test]
fn what_may_have_to_start_over_has_nothing_before_it_or_behind_it() {
    for alone in [true, false] {
        let (cluster, _, keys) = in_cluster();
        let mut gateway = if alone { gateway() } else { cluster };
        let key = &keys[1];
        write(&mut gateway, 7, 1, key, None);
        write(&mut gateway, 7, 2, key, Some((5, 1)));
        write(&mut gateway, 7, 3, key, Some((5, 2)));
        write(&mut gateway, 7, 4, key, None);
        write(&mut gateway, 7, 5, key, None);
        let mut sizes = Vec::new();
        for at in 5.. {
            let Some((_, chunk)) = leaving(&mut gateway).pop() else { break };
            sizes.push(chunk.txns().len());
            commit(&mut gateway, &chunk, at);
        }
        assert_eq!(sizes, [1, 1, 1, 2]);
    }
    let mut gateway = gateway();
    write(&mut gateway, 7, 1, b"k", None);
    let view = View::Since(Token::NOTHING);
    let write_args = |args: &mut ArgsBuilder<'_>| _ = args.push(b"first");
    gateway.submit_in_order(Stream(7), Ticket(2), Call::new(CONSULT, Db(0)), view, write_args).unwrap();
    write(&mut gateway, 7, 3, b"k", None);
    let (_, chunk) = leaves(&mut gateway);
    assert_eq!((chunk.txns().len(), commit(&mut gateway, &chunk, 5)), (1, vec![1]));
    let (_, asks) = leaves(&mut gateway);
    let mut told = OutcomeBatch::new(asks.gateway);
    let tells = |reply: &mut Vec<u8>| ordain_model::Writer(reply).bulk(b"done");
    told.push(asks.number, 0, Gsn(9), COMMITTED, tells);
    assert!(matches!(Datum::first(told.reply(&told.outcomes[0])), Datum::Bulk(b"done")));
    gateway.take_outcomes(&told, |finished| panic!("{finished:?}"));
    let (_, does) = leaves(&mut gateway);
    assert_eq!((does.txns().len(), commit(&mut gateway, &does, 6)), (1, vec![2]));
    let (_, last) = leaves(&mut gateway);
    assert_eq!(commit(&mut gateway, &last, 7), [3]);
}

#[test]
fn on_a_node_without_others_nothing_waits_for_what_has_left() {
    let mut gateway = gateway();
    let mut left = Vec::new();
    for ticket in 1..=5 {
        if ticket % 2 == 0 {
            read(&mut gateway, 7, ticket, b"k")
        } else {
            write(&mut gateway, 7, ticket, b"k", None)
        }
        left.push(leaves(&mut gateway).1);
    }
    let follow: Vec<bool> = left.iter().map(|chunk| chunk.txns()[0].follows).collect();
    assert_eq!(follow, [false, true, true, true, true]);
    let logged: Vec<bool> = left.iter().map(|chunk| chunk.txns()[0].logged).collect();
    assert_eq!(logged, [true, false, true, false, true], "reads cost what they did");
    let told: Vec<u64> =
        left.iter().zip(5..).flat_map(|(chunk, at)| commit(&mut gateway, chunk, at)).collect();
    assert_eq!(told, [1, 2, 3, 4, 5]);
}

#[test]
fn what_is_sequenced_waits_for_reads_on_snapshots_and_reads_behind_it_are_sequenced_too() {
    for alone in [true, false] {
        let (cluster, _, keys) = in_cluster();
        let mut gateway = if alone { gateway() } else { cluster }.with_reads(Reads::Session);
        let key = &keys[1];
        read(&mut gateway, 7, 1, key);
        read(&mut gateway, 7, 2, key);
        write(&mut gateway, 7, 3, key, None);
        read(&mut gateway, 7, 4, key);
        let (home, reads) = leaves(&mut gateway);
        assert_eq!((home, reads.txns().len()), (None, 2));
        assert_eq!(commit(&mut gateway, &reads, 5), [1, 2]);
        let (home, ordered) = leaves(&mut gateway);
        assert_eq!((home, ordered.txns().len()), (Some(u16::from(!alone)), 2));
        read(&mut gateway, 7, 5, key);
        assert_eq!(
            leaving(&mut gateway).len(),
            usize::from(alone),
            "in the order, while a write is under way"
        );
        assert_eq!(commit(&mut gateway, &ordered, 6), [3, 4]);
    }
}

#[test]
fn a_read_that_is_held_behind_a_write_is_sequenced_once_that_is_answered() {
    let (cluster, _, keys) = in_cluster();
    let mut gateway = cluster.with_reads(Reads::Previous);
    write(&mut gateway, 7, 1, &keys[1], None);
    let (_, first) = leaves(&mut gateway);
    read(&mut gateway, 7, 2, &keys[1]);
    assert!(leaving(&mut gateway).is_empty());
    // The epoch before may be one that the write is not of.
    assert_eq!(commit(&mut gateway, &first, 5), [1]);
    let (home, held) = leaves(&mut gateway);
    assert_eq!((home, commit(&mut gateway, &held, 6)), (Some(1), vec![2]));
    // The write waits for a read, and another read comes behind both.
    read(&mut gateway, 7, 3, &keys[1]);
    let (home, before) = leaves(&mut gateway);
    write(&mut gateway, 7, 4, &keys[1], Some((5, 1)));
    read(&mut gateway, 7, 5, &keys[1]);
    assert_eq!((home, commit(&mut gateway, &before, 6)), (None, vec![3]));
    let (_, alone) = leaves(&mut gateway);
    assert_eq!(commit(&mut gateway, &alone, 7), [4]);
    let (home, behind) = leaves(&mut gateway);
    assert_eq!((home, commit(&mut gateway, &behind, 8)), (Some(1), vec![5]));
}

#[test]
fn a_read_that_came_too_late_does_not_fall_behind_one_that_did_not() {
    let mut gateway = gateway().with_reads(Reads::Session);
    let run = |gateway: &mut Gateway| {
        read(gateway, 7, 1, b"k");
        read(gateway, 7, 2, b"k");
        leaves(gateway).1
    };
    // The later one is not answered yet: both are read again, in order.
    let reads = run(&mut gateway);
    let late = [(0, OutcomeStatus::TooOld), (1, OutcomeStatus::TooOld)];
    assert_eq!(answered(&mut gateway, &reads, 5, &late, &Map::FIRST), []);
    let (home, again) = leaves(&mut gateway);
    assert_eq!((home, commit(&mut gateway, &again, 6)), (None, vec![1, 2]));
    // The later one has been: the first did nothing, and says so.
    let reads = run(&mut gateway);
    assert_eq!(answered(&mut gateway, &reads, 5, &[(1, COMMITTED)], &Map::FIRST), [(2, COMMITTED)]);
    let too_old = [(0, OutcomeStatus::TooOld)];
    assert_eq!(answered(&mut gateway, &reads, 5, &too_old, &Map::FIRST), [(1, OutcomeStatus::Busy)]);
    assert_eq!(gateway.outstanding(), 0);
}

#[test]
fn what_is_held_is_refused_as_it_comes_and_abandoned_with_all_else() {
    let (mut gateway, _, keys) = in_cluster();
    write(&mut gateway, 7, 1, &keys[1], None);
    let (_, _chunk) = leaves(&mut gateway);
    write(&mut gateway, 7, 2, &keys[0], None);
    let damaged = |args: &mut ArgsBuilder<'_>| _ = args.push(b"damaged");
    let call = Call::new(system::COMMIT, Db(0));
    assert!(gateway.submit_in_order(Stream(7), Ticket(3), call, VIEW, damaged).is_err());
    assert_eq!(gateway.outstanding(), 2);
    let mut told = Vec::new();
    gateway.abandon(|_, finished| told.push(finished.ticket.0));
    assert_eq!((told, gateway.outstanding()), (vec![1, 2], 0));
}
