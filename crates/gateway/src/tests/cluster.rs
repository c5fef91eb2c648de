//! The gateway of a node of a cluster: homes, and what lost nodes owe.

use std::sync::Arc;

use ordain_model::key::session_slot;
use ordain_model::{
    ArgsBuilder, Call, Cell, ChunkNo, Db, Front, GatewayId, Gsn, KeyHash, Layout, Millis, OutcomeBatch,
    OutcomeStatus, PartitionId, PartitionSet, Registry, RequestNo, SessionId, Value, system,
};

use crate::{Gateway, Owed, Ticket};

/// A gateway of partition 1 of 3, and a key of each partition.
fn in_cluster() -> (Gateway, Arc<Layout>, [Vec<u8>; 3]) {
    let mut registry = Registry::default();
    system::register(&mut registry);
    let layout = Arc::new(Layout::even(3, 2).unwrap());
    let place = (0, PartitionId(1));
    let id = GatewayId::of(4, 0);
    let gateway = Gateway::in_cluster(id, Arc::new(registry), layout.clone(), place, ChunkNo(1 << 40));
    let keys = [0, 1, 2].map(|partition| {
        let is_there = |key: &Vec<u8>| layout.partition_of(KeyHash::of(key).slot()) == PartitionId(partition);
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
    let cell = Cell { value: Some(Value::String(b"v".to_vec())), expires_at: Millis(0) };
    let writes = [(Db(0), key, &cell)];
    let args = |args: &mut ArgsBuilder<'_>| system::commit_args([].into_iter(), writes, args);
    gateway.submit(Ticket(ticket), call, args).unwrap();
}

#[test]
fn a_transaction_is_sequenced_at_its_home() {
    let (mut gateway, layout, [a, b, c]) = in_cluster();
    let session = (1..).find(|s| layout.partition_of(session_slot(SessionId(*s))) == PartitionId(0)).unwrap();
    read(&mut gateway, 1, &[&c]);
    read(&mut gateway, 2, &[&a, &c]);
    write(&mut gateway, 3, None, &b);
    write(&mut gateway, 4, Some(session), &c);
    read(&mut gateway, 5, &[&c]);
    let mut homes = Vec::new();
    while let Some((home, chunk)) = gateway.flush() {
        let logged: Vec<bool> = chunk.txns().iter().map(|txn| txn.logged).collect();
        homes.push((home.0, chunk.number.0 - (1 << 40), logged));
        // It is the same after the way to another node.
        let mut bytes = Vec::new();
        Front::Submit(chunk.clone()).encode(&mut bytes);
        let reader = &mut ordain_model::wire::Reader(&bytes);
        let Some(Front::Submit(back)) = Front::decode(gateway.registry(), reader) else { panic!("a chunk") };
        assert_eq!((back.number, back.gateway, back.txns()), (chunk.number, chunk.gateway, chunk.txns()));
        for (here, there) in chunk.txns().iter().zip(back.txns()) {
            assert_eq!(chunk.record(here), back.record(there));
            assert_eq!(chunk.fragments(here), back.fragments(there));
            assert_eq!(chunk.participants(here, &layout), back.participants(there, &layout));
        }
        for cut in 0..bytes.len() {
            assert!(
                Front::decode(gateway.registry(), &mut ordain_model::wire::Reader(&bytes[..cut])).is_none()
            );
        }
    }
    // One that only one partition knows of is not logged if it only reads; one of several is.
    assert_eq!(homes, [(0, 2, vec![true]), (1, 1, vec![true, true]), (2, 0, vec![false, false])]);
}

/// What a gateway submits: the tickets cannot be seen, so homes and numbers of transactions.
fn submitted(gateway: &mut Gateway) -> Vec<(u16, usize)> {
    std::iter::from_fn(|| gateway.flush()).map(|(home, chunk)| (home.0, chunk.txns().len())).collect()
}

#[test]
fn what_a_lost_node_owes_is_asked_again_or_given_up_once() {
    let (mut gateway, layout, [a, b, c]) = in_cluster();
    read(&mut gateway, 1, &[&c]);
    read(&mut gateway, 2, &[&c, &a]);
    write(&mut gateway, 3, None, &b);
    write(&mut gateway, 4, None, &c);
    assert_eq!(submitted(&mut gateway), [(1, 2), (2, 2)]);
    // Not asked for yet: it is still here.
    read(&mut gateway, 5, &[&c]);
    let mut lost = PartitionSet::EMPTY;
    lost.insert(layout.partition_of(KeyHash::of(&c).slot()));
    // Late: what may be asked again is; what may not is waited for.
    let late = Owed { late: lost, ..Owed::default() };
    gateway.give_up(late, |_, finished| panic!("{finished:?} was given up"));
    assert_eq!((submitted(&mut gateway), gateway.outstanding()), (vec![(1, 1), (2, 2)], 5));
    // Lost.
    let lost = Owed { all: lost, ..Owed::default() };
    let mut given_up = Vec::new();
    gateway.give_up(lost, |_, finished| given_up.push((finished.ticket.0, finished.status)));
    assert_eq!(given_up, [(4, OutcomeStatus::Unknown)]);
    assert_eq!((submitted(&mut gateway), gateway.outstanding()), (vec![(1, 1), (2, 2)], 4));
    // An answer to what was asked first is nobody's; one to what was asked last is.
    let mut answers = OutcomeBatch::new(GatewayId::of(4, 0));
    let mut answered = Vec::new();
    for number in 0..7 {
        answers.push(ChunkNo((1 << 40) + number), 0, Gsn(9), OutcomeStatus::Committed, |_| {});
    }
    gateway.take_outcomes(&answers, |finished| answered.push(finished.ticket.0));
    answered.sort_unstable();
    assert_eq!((answered, gateway.outstanding()), (vec![2, 5], 2));
}

#[test]
fn a_request_of_a_session_is_asked_again_under_its_number() {
    let (mut gateway, layout, [_, b, _]) = in_cluster();
    let session = (1..).find(|s| layout.partition_of(session_slot(SessionId(*s))) == PartitionId(0)).unwrap();
    write(&mut gateway, 1, Some(session), &b);
    write(&mut gateway, 2, None, &b);
    let (_, first) = gateway.flush().unwrap();
    while gateway.flush().is_some() {}
    // Whoever led may have remembered it and is gone; the other was answered by the collector alone.
    let owed = Owed { led: PartitionSet::all(2), ..Owed::default() };
    gateway.give_up(owed, |_, finished| panic!("{finished:?} was given up"));
    let (home, again) = gateway.flush().unwrap();
    assert_eq!((home, again.txns()[0].call), (PartitionId(0), first.txns()[0].call));
    assert!(gateway.flush().is_none());
}
