//! Plans, layouts and stores agree on where a record lies, whatever prefixes the regions have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_model::children::child_key;
use ordain_model::{
    Abort, Access, Args, Call, Cell, Chunk, ChunkNo, Db, Epoch, FragmentContext, GatewayId, Gsn, Layout,
    Millis, PartitionId, PlanError, Planner, Position, Procedure, ProcedureId, Registry, ReplyContext, Table,
    Value,
};
use ordain_store::{Keep, MemoryStore, RecordStore, Snapshot};
use proptest::prelude::*;

const TOUCH: ProcedureId = ProcedureId(1);

/// Writes to all of its keys, and computes near the last.
struct Touch;

impl Procedure for Touch {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut near = planner.hash_of(b"");
        for key in args.iter() {
            near = planner.hash_of(key.bytes);
            planner.key(0, Access::Write, key)?;
        }
        planner.compute_alone(1, near).map(drop)
    }

    fn run(&self, _code: u16, _cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        Ok(())
    }

    fn reply(&self, _cx: &ReplyContext<'_>, _out: &mut Vec<u8>) {}
}

/// Layouts of a few partitions and threads, with prefixes of two letters or none.
fn layouts() -> impl Strategy<Value = Layout> {
    let prefixes = prop::collection::btree_map("[ab{]{1,3}", 0..4usize, 0..8);
    (1..4usize, 1..4usize, prop::collection::vec(20..200usize, 3), prefixes).prop_map(
        |(partitions, threads, sizes, prefixes)| {
            let starts = (0..partitions).map(|partition| sizes[..partition].iter().sum()).collect();
            let mut regions = vec![Vec::new(); partitions];
            for (prefix, region) in prefixes {
                regions[region % partitions].push(prefix.into_bytes());
            }
            let layout = Layout::ranges(1, starts, threads).expect("a layout");
            layout.in_regions(regions).expect("prefixes that differ")
        },
    )
}

fn names() -> impl Strategy<Value = BTreeSet<(u8, String)>> {
    prop::collection::btree_set((0..2u8, "[abc{}]{0,6}"), 1..60)
}

/// A shard's part of a walk over a database: where each key stands, and the key.
fn seen(store: &MemoryStore, db: Db) -> Vec<(Position, Vec<u8>)> {
    let mut seen = Vec::new();
    store.visit(Position::default(), |entry| {
        assert!(store.slots().contains(&entry.position.slot()));
        seen.extend((entry.db == db).then(|| (entry.position, entry.key.to_vec())));
        true
    });
    seen
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// A transaction is planned where its records lie, and the bytes that travel are planned alike.
    #[test]
    fn a_plan_is_of_the_places_of_its_records(layout in layouts(), names in names()) {
        let mut registry = Registry::default();
        registry.register(TOUCH, "test.touch", Arc::new(Touch));
        let registry = registry.placing(layout.placement().clone());
        let layout = Arc::new(layout);
        let mut chunk = Chunk::new(GatewayId(0), ChunkNo(0)).in_cluster(0, layout.clone());
        let keys: Vec<&[u8]> = names.iter().map(|(_, key)| key.as_bytes()).collect();
        let pushed = chunk.push(&registry, Call::new(TOUCH, Db(0)), |args| {
            keys.iter().for_each(|key| _ = args.push(key));
        });
        pushed.unwrap();
        let again = Chunk::rebuild(&registry, GatewayId(0), chunk.logged().to_vec(), Vec::new()).unwrap();
        for chunk in [chunk, again] {
            let txn = &chunk.txns()[0];
            let fragments = chunk.fragments(txn);
            for (key, fragment) in keys.iter().zip(fragments) {
                prop_assert_eq!(fragment.hash, layout.placement().hash_of_record(Db(0), key));
                prop_assert_eq!(layout.shard_of(fragment.hash.slot()), layout.shard_of_key(Db(0), key));
            }
            prop_assert_eq!(fragments[keys.len()].hash, fragments[keys.len() - 1].hash);
            let partitions: BTreeSet<PartitionId> = keys.iter().map(|key| layout.region_of(key)).collect();
            for partition in (0..layout.partitions()).map(PartitionId) {
                let takes_part = chunk.participants(txn, &layout).contains(partition);
                prop_assert_eq!(takes_part, partitions.contains(&partition));
            }
        }
    }

    /// Every record is found on its shard, a walk over all shards shows each once and in order, and each goes by its slot.
    #[test]
    fn stores_have_records_where_the_layout_says(layout in layouts(), names in names()) {
        let place = |shard| MemoryStore::placed(layout.slots_of_shard(shard), layout.placement().clone());
        let mut stores: Vec<MemoryStore> = (0..layout.shards()).map(place).collect();
        let version = |epoch| Gsn::new(Epoch(epoch), PartitionId(0), 0);
        let mut all = BTreeMap::new();
        for (n, (db, key)) in names.iter().enumerate() {
            for (db, key) in [
                (Db(*db), key.clone().into_bytes()),
                (Db(*db).children(), child_key(key.as_bytes(), b"7").to_vec()),
            ] {
                let hash = layout.placement().hash_of_record(db, &key);
                let store = &mut stores[layout.shard_of(hash.slot())];
                let id = store.find_or_reserve(db, &key, hash);
                // Some expire, which only records do that are no children.
                let expires_at = Millis(u64::from(n % 3 == 0 && !db.holds_children()));
                let value = Some(Value::String(key.clone()));
                store.put_back(id, Cell { value, expires_at: expires_at.into() }, version(1));
                all.insert((db, key), expires_at);
            }
        }
        let walk = |stores: &[MemoryStore], all: &BTreeMap<(Db, Vec<u8>), Millis>| {
            for db in [0, 1, 128, 129].map(Db) {
                let walked: Vec<_> = stores.iter().flat_map(|store| seen(store, db)).collect();
                assert!(walked.is_sorted());
                let keys: BTreeSet<Vec<u8>> = walked.iter().map(|(_, key)| key.clone()).collect();
                assert_eq!(keys.len(), walked.len(), "a key is shown twice");
                let expected = all.keys().filter(|(of, _)| *of == db).map(|(_, key)| key.clone());
                assert_eq!(keys, expected.collect());
                for (position, key) in walked {
                    assert_eq!(position, layout.placement().hash_of_record(db, &key).position());
                }
            }
        };
        walk(&stores, &all);
        // What is found by its key alone: expiry by slot, what a checkpoint keeps of before a change, and what goes.
        for store in &mut stores {
            store.keep(Keep { cut: Some(Epoch(1)), ..Keep::default() });
            store.point(Some(Epoch(1)));
        }
        let mut expired = 0;
        for store in &mut stores {
            expired += store.table(version(2)).expire(Millis(2), Position::default()..Position::END);
        }
        prop_assert_eq!(expired as usize, all.values().filter(|at| at.0 > 0).count());
        let of_before = all.clone();
        all.retain(|_, at| at.0 == 0);
        walk(&stores, &all);
        for (db, key) in of_before.keys() {
            let hash = layout.placement().hash_of_record(*db, key);
            let store = &stores[layout.shard_of(hash.slot())];
            let snapshot = store.as_of(Epoch(1));
            let (cell, _) = snapshot.find(*db, key, hash).expect("it was there");
            prop_assert_eq!(cell.string(), Some(&**key));
        }
        let mut captured = BTreeSet::new();
        for store in &mut stores {
            while !store.capture(|entry| captured.insert((entry.db, entry.key.to_vec()))) {}
            store.point(None);
            store.keep(Keep::default());
            while store.free_some(64) {}
        }
        prop_assert_eq!(captured, of_before.into_keys().collect());
        for (db, key) in all.keys() {
            let hash = layout.placement().hash_of_record(*db, key);
            let store = &mut stores[layout.shard_of(hash.slot())];
            let id = store.find(*db, key, hash).expect("it is there");
            store.take(id, version(3));
            store.release_if_absent(id);
            prop_assert_eq!(store.find(*db, key, hash), None);
        }
        prop_assert!(stores.iter().all(|store| store.records() == 0 && seen(store, Db(0)).is_empty()));
    }
}
