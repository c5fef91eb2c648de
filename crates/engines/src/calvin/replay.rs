//! Runs batches on the shards of a node without a driver: how a restarted node that is alone gets back to where it
//! was (calvin.md, section 4.13). One that has peers needs what they say, and its courier, to do it again.

use std::collections::VecDeque;
use std::sync::Arc;

use ordain_model::{Batch, Micros};
use ordain_role::{Address, Event, Now, Outbox, Role};
use ordain_sequencer::Sequencing;
use ordain_store::RecordStore;

use super::{Message, Shard};

/// Executes a batch to its end on all shards of a layout of one partition, in any order that their messages allow. Replies go nowhere: who
/// waited for them is gone, and a retried request is answered from its session.
///
/// # Errors
/// A broken invariant: the node must not start.
pub fn replay<S: RecordStore + Send>(shards: &mut [Shard<S>], batch: Arc<Batch>) -> Result<(), String> {
    let tell = |message| Event::Message { from: Address::default(), message };
    let mut queue: VecDeque<(usize, Event<Message>)> = VecDeque::new();
    for shard in 0..shards.len() {
        queue.push_back((shard, tell(Message::Sequencing(Sequencing::Sealed(batch.clone())))));
    }
    let places: Vec<Address> = shards.first().map_or(Vec::new(), |shard| shard.places().shards.clone());
    let mut out = Outbox::default();
    while let Some((at, event)) = queue.pop_front() {
        shards[at].handle(Now::default(), event, &mut out);
        if let Some(reason) = out.halt.take() {
            return Err(reason);
        }
        for (to, message) in out.sends.drain(..) {
            if let (Some(shard), Message::Engine(_)) = (places.iter().position(|p| *p == to), &message) {
                queue.push_back((shard, tell(message)));
            }
        }
        // A shard that works in turns wants the next one at once. Any other timer is for a time that does not pass.
        let turns = out.timers.drain(..).filter(|(_, delay)| *delay == Some(Micros(0)));
        queue.extend(turns.map(|(timer, _)| (at, Event::Timer(timer))));
    }
    match shards.iter().find(|shard| shard.applied() < (batch.epoch, batch.partition)) {
        Some(shard) => Err(format!(
            "replay of epoch {} stopped short: shard {} has applied {}",
            batch.epoch,
            shard.number(),
            shard.applied().0
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ordain_model::{
        Call, Cell, Chunk, ChunkNo, Db, Epoch, GatewayId, Layout, Millis, PartitionId, Placed,
        ReferenceExecutor, Registry, Value, system,
    };
    use ordain_role::NodeId;
    use ordain_store::MemoryStore;

    use super::super::{Places, Settings};
    use super::*;

    /// Far more than a shard does in one turn, on shards that wait for each other.
    #[test]
    fn a_batch_that_takes_many_turns_is_executed_to_its_end() {
        let mut registry = Registry::default();
        system::register(&mut registry);
        let registry = Arc::new(registry);
        let mut chunk = Chunk::new(GatewayId(0), ChunkNo(0));
        // First of several keys each, then of one, for which no letter comes.
        for i in 0..4000u32 {
            let last = if i < 1000 { i + 5 } else { i + 1 };
            let keys: Vec<Vec<u8>> = (i..last).map(|key| (key % 40).to_be_bytes().to_vec()).collect();
            let reads = keys.iter().map(|key| (Db(0), &key[..]));
            chunk
                .push(&registry, Call::new(system::READ, Db(0)), |args| system::read_args(reads, args))
                .unwrap();
            let cell = Cell { value: Some(Value::String(i.to_be_bytes().to_vec())), expires_at: Millis(0) };
            let writes = keys.iter().map(|key| (Db(0), &key[..], &cell));
            let call = Call::new(system::COMMIT, Db(0));
            chunk.push(&registry, call, |args| system::commit_args([].into_iter(), writes, args)).unwrap();
        }
        let (total, chunks) = (chunk.span(), vec![Placed::whole(0, Arc::new(chunk))]);
        let (epoch, partition, now) = (Epoch(1), PartitionId(0), Millis(1));
        let batch = Arc::new(Batch { epoch, partition, layout: 1, now, total, chunks, lookups: Vec::new() });
        let mut reference = ReferenceExecutor::new(registry.clone());
        reference.run(&batch);

        for count in [1, 2, 5] {
            let at = |role| Address { node: NodeId(0), role };
            let addresses: Vec<Address> = (0..count as u16).map(|i| at(16 + i)).collect();
            let settings = Settings::default();
            let mut shards: Vec<Shard<MemoryStore>> = (0..count)
                .map(|number| {
                    let layout = Arc::new(Layout::single(count));
                    let store = MemoryStore::new(layout.slots_of_shard(number));
                    let places = Places {
                        layout,
                        replica: 0,
                        shards: addresses.clone(),
                        sequencer: at(0),
                        post: None,
                        gateways: BTreeMap::new(),
                    };
                    Shard::new(number, places, settings, registry.clone(), store)
                })
                .collect();
            assert_eq!(replay(&mut shards, batch.clone()), Ok(()), "{count} shards");
            let digest =
                shards.iter().fold(Default::default(), |sum: ordain_model::Digest, s| sum.plus(s.digest()));
            assert_eq!(digest, reference.digest(), "{count} shards");
        }
    }
}
