//! A batch replayed without a driver, by every engine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_deterministic::shard::{Places, Replay, Settings, Shard};
use ordain_model::{
    Batch, Call, Cell, Chunk, ChunkNo, Db, Digest, Epoch, GatewayId, Gsn, Layout, Millis, Placed,
    ReferenceExecutor, Registry, Txn, Value, system,
};
use ordain_role::{Address, NodeId};
use ordain_store::MemoryStore;

use super::support::SCHEDULINGS;

fn registry() -> Arc<Registry> {
    let mut registry = Registry::default();
    system::register(&mut registry);
    Arc::new(registry)
}

/// Far more than a shard does in one turn, on shards that wait for each other.
fn long_chunk(registry: &Registry) -> Arc<Chunk> {
    let mut chunk = Chunk::new(GatewayId(0), ChunkNo(0));
    // First of several keys each, then of one, for which no remote result comes.
    for i in 0..4000u32 {
        let last = if i < 1000 { i + 5 } else { i + 1 };
        let keys: Vec<Vec<u8>> = (i..last).map(|key| (key % 40).to_be_bytes().to_vec()).collect();
        let reads = keys.iter().map(|key| (Db(0), &key[..]));
        chunk.push(registry, Call::new(system::READ, Db(0)), |args| system::read_args(reads, args)).unwrap();
        let cell =
            Cell { value: Some(Value::String(i.to_be_bytes().to_vec())), expires_at: Millis(0).into() };
        let writes = keys.iter().map(|key| (Db(0), &key[..], &cell));
        let call = Call::new(system::COMMIT, Db(0));
        chunk.push(registry, call, |args| system::commit_args([].into_iter(), writes, args)).unwrap();
    }
    Arc::new(chunk)
}

/// A batch of one chunk without the transactions of these indices.
fn batch_of(chunk: &Arc<Chunk>, skipped: Vec<u32>) -> Arc<Batch> {
    let (total, chunks) = (chunk.span(), vec![Placed { base: 0, chunk: chunk.clone(), skipped }]);
    let (epoch, now) = (Epoch(1), Millis(1));
    Arc::new(Batch { epoch, layout: 1, now, total, chunks, ..Batch::default() })
}

#[test]
fn a_batch_that_takes_many_turns_is_executed_to_its_end() {
    let registry = registry();
    demand(&registry, &batch_of(&long_chunk(&registry), Vec::new()), Vec::new());
}

#[test]
fn what_an_operator_has_aborted_has_no_effect() {
    let registry = registry();
    let chunk = long_chunk(&registry);
    // Reads and writes, of several shards and of one.
    let indices: Vec<u32> = chunk.txns().iter().map(|txn| txn.index).filter(|n| n % 7 == 3).collect();
    let complete = demand(&registry, &batch_of(&chunk, Vec::new()), indices.clone());
    let mut without_aborts = ReferenceExecutor::new(registry);
    without_aborts.run(&batch_of(&chunk, Vec::new()));
    assert_ne!(complete, without_aborts.digest(), "none of them has written anything that lasts");
}

/// Holds every way to execute a batch, some of whose transactions are aborted by an operator, to the same batch without
/// them.
fn demand(registry: &Arc<Registry>, batch: &Arc<Batch>, aborted: Vec<u32>) -> Digest {
    let [placed] = &batch.chunks[..] else { panic!("one chunk") };
    let chunk = &placed.chunk;
    let is_aborted = |txn: &&Txn| aborted.binary_search(&txn.index).is_ok();
    let places_aborted = chunk.txns().iter().filter(is_aborted).map(|txn| batch.gsn(placed.base, txn));
    let places_aborted: Arc<BTreeSet<Gsn>> = Arc::new(places_aborted.collect());
    let mut reference = ReferenceExecutor::new(registry.clone());
    reference.run(&batch_of(chunk, aborted.clone()));

    // Whoever gives the turns: the log does not say how it is executed.
    for (count, scheduling) in
        [1, 2, 5].into_iter().flat_map(|n| SCHEDULINGS.map(|scheduling| (n, scheduling)))
    {
        let at = |role| Address { node: NodeId(0), role };
        let addresses: Vec<Address> = (0..count as u16).map(|i| at(16 + i)).collect();
        let settings = Settings::new(scheduling);
        let places = Places {
            layout: Arc::new(Layout::single(count)),
            replica: 0,
            replicas: 1,
            shards: addresses,
            sequencer: at(0),
            lock_manager: scheduling.has_lock_manager().then(|| at(7)),
            exchange: None,
            gateways: BTreeMap::new(),
            first_gateway: 128,
        };
        let mut lock_manager = scheduling.lock_manager(&places, settings);
        lock_manager.iter_mut().for_each(|role| role.set_aborted(places_aborted.clone()));
        let mut shards: Vec<Shard<MemoryStore>> = (0..count)
            .map(|number| {
                let store = MemoryStore::new(places.layout.slots_of_shard(number));
                Shard::new(number, places.clone(), settings, registry.clone(), store)
                    .with_aborted(places_aborted.clone())
            })
            .collect();
        let lock_manager = places.lock_manager.zip(lock_manager.as_deref_mut());
        let mut replay = Replay::new(&mut shards, lock_manager, None);
        assert_eq!(replay.batch(batch.clone()), Ok(()), "{count} shards by {scheduling:?}");
        let digest =
            shards.iter().fold(Default::default(), |sum: ordain_model::Digest, s| sum.plus(s.digest()));
        assert_eq!(digest, reference.digest(), "{count} shards by {scheduling:?}");
    }
    reference.digest()
}
