//! Batches as the entries of a partition's log.

use std::sync::Arc;

use ordain_model::{Batch, Epoch, PartitionId, Registry};
use ordain_replication::EntryType;
use ordain_role::{Bytes, shared};

/// The entry type of a partition's log: batches, read with the registry of procedures.
///
/// Reads are not part of the bytes. A proposer's own log hands on the batch with its reads; the others have no client
/// to answer.
#[derive(Clone, Copy, Debug)]
pub enum Batches {}

impl EntryType for Batches {
    type Entry = Arc<Batch>;
    type Context = Registry;

    fn epoch(batch: &Arc<Batch>) -> Epoch {
        batch.epoch
    }

    fn must_be_durable(batch: &Arc<Batch>) -> bool {
        batch.is_logged()
    }

    fn encode(batch: &Arc<Batch>) -> Vec<u8> {
        Batch::encode(batch)
    }

    fn encode_parts(batch: &Arc<Batch>) -> Vec<Bytes> {
        let mut parts = vec![Bytes::from(batch.encode_head())];
        parts.extend(batch.logged().map(|placed| shared(placed.chunk.clone())));
        parts
    }

    fn decode(registry: &Registry, bytes: &[u8]) -> Result<Arc<Batch>, String> {
        Batch::decode(registry, bytes).map(Arc::new).map_err(|error| error.to_string())
    }

    fn empty(epoch: Epoch, partition: PartitionId) -> Arc<Batch> {
        Arc::new(Batch { epoch, partition, ..Batch::default() })
    }

    fn partition(batch: &Arc<Batch>) -> PartitionId {
        batch.partition
    }

    fn count_parts(batch: &Arc<Batch>) -> u32 {
        batch.count_logged()
    }

    fn merge(registry: &Registry, slices: &[Arc<Vec<u8>>], parts: u32) -> Option<Vec<u8>> {
        let merged = Batch::merge(registry, slices).ok()?;
        (merged.count_logged() == parts).then(|| merged.encode())
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::{
        Call, Cell, Chunk, ChunkNo, Db, GatewayId, Gsn, Layout, Layouts, Millis, Placed, Value, system,
    };
    use proptest::prelude::*;

    use super::*;

    fn layout() -> Arc<Layout> {
        Arc::new(Layout::even(3, 1).unwrap())
    }

    fn procedures() -> Arc<Registry> {
        let mut registry = Registry::default();
        system::register(&mut registry);
        Arc::new(registry)
    }

    fn key_of(partition: u16) -> Vec<u8> {
        let layout = Layout::even(3, 1).unwrap();
        let is_there = |key: &Vec<u8>| layout.region_of(key) == PartitionId(partition);
        (0u32..).map(|n| n.to_le_bytes().to_vec()).find(is_there).unwrap()
    }

    /// A batch of partition 0 in two chunks, each transaction of which writes in some partitions.
    fn batch(epoch: u64, txns: &[&[u16]]) -> Batch {
        let cell = Cell { value: Some(Value::String(b"v".to_vec())), expires_at: Millis(0).into() };
        let mut batch = Batch { epoch: Epoch(epoch), layout: 1, now: Millis(7), ..Batch::default() };
        for (number, txns) in txns.chunks(2).enumerate() {
            let mut chunk = Chunk::new(GatewayId(number as u32), ChunkNo(epoch));
            for partitions in txns {
                let keys: Vec<Vec<u8>> = partitions.iter().map(|p| key_of(*p)).collect();
                let writes = keys.iter().map(|key| (Db(0), &key[..], &cell));
                let call = Call::new(system::COMMIT, Db(0));
                chunk
                    .push(&procedures(), call, |args| system::commit_args([].into_iter(), writes, args))
                    .unwrap();
            }
            let base = batch.total;
            batch.total += chunk.span();
            batch.chunks.push(Placed::whole(base, Arc::new(chunk)));
        }
        batch
    }

    fn gsns(batch: &Batch) -> Vec<(Gsn, Vec<u8>)> {
        batch.txns().map(|(gsn, chunk, txn)| (gsn, chunk.record(txn).to_vec())).collect()
    }

    proptest! {
        #[test]
        fn slices_make_the_whole_if_every_transaction_is_in_one(
            txns in proptest::collection::vec(proptest::sample::subsequence(vec![0u16, 1, 2], 1..=3), 1..8),
            asked in proptest::sample::subsequence(vec![0u16, 1, 2], 1..=3),
        ) {
            let txns: Vec<&[u16]> = txns.iter().map(|txn| &txn[..]).collect();
            let batch = batch(3, &txns);
            let mut layouts = Layouts::new(layout());
            let slice = |p: &u16| batch.encode_slice(PartitionId(*p), &mut layouts).map(Arc::new);
            let slices: Vec<Arc<Vec<u8>>> = asked.iter().filter_map(slice).collect();
            // The collector's partition takes part too, so what is in a slice is asked of the slices.
            let layout = layout();
            let is_there = |(_, chunk, txn): &(Gsn, &Arc<Chunk>, &ordain_model::Txn)| {
                asked.iter().any(|p| chunk.participants(txn, &layout).contains(PartitionId(*p)))
            };
            let there: Vec<(Gsn, Vec<u8>)> =
                batch.txns().filter(is_there).map(|(gsn, chunk, txn)| (gsn, chunk.record(txn).to_vec())).collect();
            if slices.is_empty() {
                prop_assert!(Batch::merge(&procedures(), &slices).is_err());
            } else {
                let merged = Batch::merge(&procedures(), &slices).unwrap();
                prop_assert_eq!(gsns(&merged), there);
                prop_assert_eq!((merged.total, merged.now), (batch.total, batch.now));
                let again = Batch::decode(&procedures(), &merged.encode()).unwrap();
                prop_assert_eq!(gsns(&again), gsns(&merged));
            }
        }
    }
}
