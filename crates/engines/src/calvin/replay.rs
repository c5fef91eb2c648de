//! Runs batches on the shards of a node without a driver: how a restarted node gets back to where it was
//! (calvin.md, section 4.13).

use std::collections::VecDeque;
use std::sync::Arc;

use ordain_model::Batch;
use ordain_role::{Address, Event, Now, Outbox, Role};
use ordain_sequencer::Sequencing;
use ordain_store::RecordStore;

use super::{Message, Shard};

/// Executes a batch to its end on all shards, in any order that their messages allow. Replies go nowhere: who
/// waited for them is gone, and a retried request is answered from its session.
///
/// # Errors
/// A broken invariant: the node must not start.
pub fn replay<S: RecordStore + Send>(shards: &mut [Shard<S>], batch: Arc<Batch>) -> Result<(), String> {
    let mut queue: VecDeque<(usize, Message)> = VecDeque::new();
    for shard in 0..shards.len() {
        queue.push_back((shard, Message::Sequencing(Sequencing::Sealed(batch.clone()))));
    }
    let places: Vec<Address> = shards.first().map_or(Vec::new(), |shard| shard.places().shards.clone());
    let mut out = Outbox::default();
    while let Some((to, message)) = queue.pop_front() {
        let from = Address::default();
        shards[to].handle(Now::default(), Event::Message { from, message }, &mut out);
        if let Some(reason) = out.halt.take() {
            return Err(reason);
        }
        for (to, message) in out.sends.drain(..) {
            if let (Some(shard), Message::Engine(_)) = (places.iter().position(|p| *p == to), &message) {
                queue.push_back((shard, message));
            }
        }
    }
    match shards.iter().find(|shard| shard.applied() < batch.epoch) {
        Some(shard) => Err(format!(
            "replay of epoch {} stopped short: shard {} has applied {}",
            batch.epoch,
            shard.number(),
            shard.applied()
        )),
        None => Ok(()),
    }
}
