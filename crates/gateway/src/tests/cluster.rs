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
    let args = |args: &mut ArgsBuilder<'_>| system::commit_args([].into_iter(), writes.into_iter(), args);
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

#[test]
fn what_a_lost_node_owes_is_given_up_once() {
    let (mut gateway, layout, [a, b, c]) = in_cluster();
    read(&mut gateway, 1, &[&c]);
    read(&mut gateway, 2, &[&c, &a]);
    write(&mut gateway, 3, None, &b);
    while gateway.flush().is_some() {}
    // Not asked for yet: it is still here.
    read(&mut gateway, 4, &[&c]);
    let mut lost = PartitionSet::EMPTY;
    lost.insert(layout.partition_of(KeyHash::of(&c).slot()));
    let lost = Owed { all: lost, ..Owed::default() };
    let mut given_up = Vec::new();
    gateway.give_up(lost, |_, finished| given_up.push((finished.ticket.0, finished.status)));
    given_up.sort_unstable_by_key(|(ticket, _)| *ticket);
    assert_eq!(given_up, [(1, OutcomeStatus::Unknown), (2, OutcomeStatus::Unknown)]);
    assert_eq!(gateway.outstanding(), 2);
    gateway.give_up(lost, |_, finished| panic!("{finished:?} was given up again"));
    // An answer that comes after all is nobody's.
    let mut late = OutcomeBatch::new(GatewayId::of(4, 0));
    late.push(ChunkNo(1 << 40), 0, Gsn(9), OutcomeStatus::Committed, |_| {});
    gateway.take_outcomes(&late, |finished| panic!("{finished:?} was answered twice"));
}

#[test]
fn a_request_that_whoever_led_may_have_answered_is_given_up_sooner() {
    let (mut gateway, layout, [_, b, _]) = in_cluster();
    let session = (1..).find(|s| layout.partition_of(session_slot(SessionId(*s))) == PartitionId(0)).unwrap();
    write(&mut gateway, 1, Some(session), &b);
    write(&mut gateway, 2, None, &b);
    while gateway.flush().is_some() {}
    let mut given_up = Vec::new();
    let owed = Owed { all: PartitionSet::EMPTY, led: PartitionSet::all(2) };
    gateway.give_up(owed, |_, finished| given_up.push(finished.ticket.0));
    assert_eq!(given_up, [1]);
}
