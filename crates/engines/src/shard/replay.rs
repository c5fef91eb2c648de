//! Runs the shards of a node without a driver: how a restarted node gets back to where it was (calvin.md, section
//! 4.13). One that has peers does it together with its exchange, from what it had received of them. What it had not
//! received, or has not on its disk, it asks for once it runs: until then some transactions may stay unfinished.

use std::collections::VecDeque;
use std::sync::Arc;

use ordain_model::{Batch, Micros};
use ordain_role::{Address, Event, Now, Outbox, Role};
use ordain_sequencer::{Exchange, JournalRecord, Sequencing};
use ordain_store::RecordStore;

use super::messages::{Message, ShardMessage};
use super::role::Shard;
use crate::calvin_paper::Scheduler;

/// The roles of a node that execute, while they do again what they did before.
///
/// Replies go nowhere: who waited for them is gone, and a retried request is answered from its session.
#[derive(Debug)]
pub struct Replay<'a, S> {
    shards: &'a mut [Shard<S>],
    scheduler: Option<(Address, &'a mut Scheduler)>,
    exchange: Option<(Address, &'a mut Exchange<ShardMessage>)>,
    queue: VecDeque<(Address, Event<Message>)>,
    out: Outbox<Message>,
}

impl<'a, S: RecordStore + Send> Replay<'a, S> {
    /// Of a node on its own, or of one with an exchange; with what gives its shards their turns, if there is such a thing.
    pub fn new(
        shards: &'a mut [Shard<S>],
        scheduler: Option<(Address, &'a mut Scheduler)>,
        exchange: Option<(Address, &'a mut Exchange<ShardMessage>)>,
    ) -> Replay<'a, S> {
        Replay { shards, scheduler, exchange, queue: VecDeque::new(), out: Outbox::default() }
    }

    /// Executes a batch of this partition; on a node on its own, to its end.
    ///
    /// # Errors
    /// A broken invariant: the node must not start.
    pub fn batch(&mut self, batch: Arc<Batch>) -> Result<(), String> {
        let sealed = |to: Address| {
            let message = Message::Sequencing(Sequencing::Sealed(batch.clone()));
            (to, Event::Message { from: Address::default(), message })
        };
        match &self.exchange {
            Some((exchange, _)) => self.queue.push_back(sealed(*exchange)),
            None => self.queue.extend(self.shards.iter().map(|shard| sealed(shard.address()))),
        }
        self.run()?;
        let turn = (batch.epoch, batch.partition);
        match self.shards.iter().find(|shard| self.exchange.is_none() && shard.applied() < turn) {
            Some(shard) => Err(format!(
                "replay of epoch {} stopped short: shard {} has applied {}",
                batch.epoch,
                shard.number(),
                shard.applied().0
            )),
            None => Ok(()),
        }
    }

    /// Takes what had come in from another node.
    ///
    /// # Errors
    /// As for [`Replay::batch`].
    pub fn journal_record(&mut self, journal_record: JournalRecord<ShardMessage>) -> Result<(), String> {
        if let Some((exchange, role)) = &mut self.exchange {
            role.replay(journal_record, &mut self.out);
            let from = *exchange;
            self.gather(from)?;
        }
        self.run()
    }

    fn run(&mut self) -> Result<(), String> {
        while let Some((to, event)) = self.queue.pop_front() {
            match (&mut self.exchange, &mut self.scheduler) {
                (Some((exchange, role)), _) if *exchange == to => {
                    role.handle(Now::default(), event, &mut self.out);
                }
                (_, Some((scheduler, role))) if *scheduler == to => {
                    role.handle(Now::default(), event, &mut self.out);
                }
                _ => {
                    // Whoever else is written to does not exist yet.
                    let Some(shard) = self.shards.iter_mut().find(|shard| shard.address() == to) else {
                        continue;
                    };
                    shard.handle(Now::default(), event, &mut self.out);
                }
            }
            self.gather(to)?;
        }
        Ok(())
    }

    /// Takes what a role has just asked for.
    fn gather(&mut self, from: Address) -> Result<(), String> {
        if let Some(reason) = self.out.halt.take() {
            return Err(reason);
        }
        let sends = self.out.sends.drain(..);
        self.queue.extend(sends.map(|(to, message)| (to, Event::Message { from, message })));
        // A shard that works in turns wants the next one at once. Any other timer is for a time that does not pass.
        let turns = self.out.timers.drain(..).filter(|(_, delay)| *delay == Some(Micros(0)));
        self.queue.extend(turns.map(|(timer, _)| (from, Event::Timer(timer))));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use ordain_model::{
        Call, Cell, Chunk, ChunkNo, Db, Digest, Epoch, GatewayId, Gsn, Layout, Millis, Placed,
        ReferenceExecutor, Registry, Txn, Value, system,
    };
    use ordain_role::NodeId;
    use ordain_store::MemoryStore;

    use super::super::core::Settings;
    use super::super::mail::Places;
    use super::super::turns::Order;
    use super::*;

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
            chunk
                .push(registry, Call::new(system::READ, Db(0)), |args| system::read_args(reads, args))
                .unwrap();
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
        for (count, order) in [1, 2, 5].into_iter().flat_map(|n| Order::ALL.map(|order| (n, order))) {
            let at = |role| Address { node: NodeId(0), role };
            let addresses: Vec<Address> = (0..count as u16).map(|i| at(16 + i)).collect();
            let settings = Settings { order, ..Settings::default() };
            let places = Places {
                layout: Arc::new(Layout::single(count)),
                replica: 0,
                replicas: 1,
                shards: addresses,
                sequencer: at(0),
                scheduler: order.is_handed().then(|| at(7)),
                post: None,
                gateways: BTreeMap::new(),
                doors: 128,
            };
            let mut scheduler = places
                .scheduler
                .map(|at| (at, Scheduler::new(&places, settings).with_aborted(places_aborted.clone())));
            let mut shards: Vec<Shard<MemoryStore>> = (0..count)
                .map(|number| {
                    let store = MemoryStore::new(places.layout.slots_of_shard(number));
                    Shard::new(number, places.clone(), settings, registry.clone(), store)
                        .with_aborted(places_aborted.clone())
                })
                .collect();
            let scheduler = scheduler.as_mut().map(|(at, scheduler)| (*at, scheduler));
            let mut replay = Replay::new(&mut shards, scheduler, None);
            assert_eq!(replay.batch(batch.clone()), Ok(()), "{count} shards by {order:?}");
            let digest =
                shards.iter().fold(Default::default(), |sum: ordain_model::Digest, s| sum.plus(s.digest()));
            assert_eq!(digest, reference.digest(), "{count} shards by {order:?}");
        }
        reference.digest()
    }
}
