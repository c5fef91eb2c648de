//! Replay: executes a node's log again without a driver, so that a restarted node reaches the state that it had
//! (`docs/protocols/calvin.md`, C43). A node that has peers replays together with its exchange, from its receive journal. What
//! is not in the journal it asks for once it runs; until then some transactions stay unfinished.

use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::sync::Arc;

use crate::sequencing::{Exchange, JournalRecord, Log};
use ordain_log::carry_out;
use ordain_model::{Batch, Micros};
use ordain_role::{Address, Directory, Event, Now, Outbox, Role};
use ordain_store::RecordStore;

use super::messages::{Message, ShardMessage};
use super::role::Shard;
use super::scheduler::LockManager;

/// After so many batches the files of values are put in order, as no time passes that would.
const TIDIED_EVERY: u64 = 256;

/// The executing roles of a node, while they execute again what they did before.
///
/// Replies go nowhere: their receivers are gone, and a retried request is answered from its session.
pub struct Replay<'a, S> {
    shards: &'a mut [Shard<S>],
    lock_manager: Option<(Address, &'a mut (dyn LockManager + 'static))>,
    exchange: Option<(Address, &'a mut Exchange<ShardMessage>)>,
    /// The disk that holds evicted values.
    disk: Option<&'a mut dyn Directory>,
    /// Batches that were executed.
    batches: u64,
    queue: VecDeque<(Address, Event<Message>)>,
    out: Outbox<Message>,
}

impl<S: Debug> Debug for Replay<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay")
            .field("shards", &self.shards)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

impl<'a, S: RecordStore + Send> Replay<'a, S> {
    /// Makes that of a node on its own, or of one with an exchange; with its lock manager, if the engine has one.
    pub fn new(
        shards: &'a mut [Shard<S>],
        lock_manager: Option<(Address, &'a mut (dyn LockManager + 'static))>,
        exchange: Option<(Address, &'a mut Exchange<ShardMessage>)>,
    ) -> Replay<'a, S> {
        Replay {
            shards,
            lock_manager,
            exchange,
            disk: None,
            batches: 0,
            queue: VecDeque::new(),
            out: Outbox::default(),
        }
    }

    /// Sets the directory in which the shards' values are that are not in memory.
    #[must_use]
    pub fn with_disk(self, disk: &'a mut dyn Directory) -> Replay<'a, S> {
        Replay { disk: Some(disk), ..self }
    }

    /// Executes a batch of this partition; on a node on its own, to its end.
    ///
    /// # Errors
    /// A broken invariant: the node must not start.
    pub fn batch(&mut self, batch: Arc<Batch>) -> Result<(), String> {
        let sealed = |to: Address| {
            let message = Message::Log(Log::Sealed(batch.clone()));
            (to, Event::Message { from: Address::default(), message })
        };
        match &self.exchange {
            Some((exchange, _)) => self.queue.push_back(sealed(*exchange)),
            None => self.queue.extend(self.shards.iter().map(|shard| sealed(shard.address()))),
        }
        self.run()?;
        self.batches += 1;
        if let Some(disk) = self.disk.as_mut().filter(|_| self.batches.is_multiple_of(TIDIED_EVERY)) {
            self.shards.iter_mut().for_each(|shard| shard.tidy(&mut **disk));
        }
        let place = (batch.epoch, batch.partition);
        match self.shards.iter().find(|shard| self.exchange.is_none() && shard.applied() < place) {
            Some(shard) => Err(format!(
                "replay of epoch {} stopped short: shard {} has applied {}",
                batch.epoch,
                shard.number(),
                shard.applied().0
            )),
            None => Ok(()),
        }
    }

    /// Takes a record of the receive journal: a message that had come from another node.
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
            match (&mut self.exchange, &mut self.lock_manager) {
                (Some((exchange, role)), _) if *exchange == to => {
                    role.handle(Now::default(), event, &mut self.out);
                }
                (_, Some((lock_manager, role))) if *lock_manager == to => {
                    role.handle(Now::default(), event, &mut self.out);
                }
                _ => {
                    // Other receivers do not exist yet.
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

    /// Takes the requests that a role has just made.
    fn gather(&mut self, from: Address) -> Result<(), String> {
        if let Some(reason) = self.out.halt.take() {
            return Err(reason);
        }
        if let Some(disk) = &mut self.disk {
            let done = self.out.disk.drain(..).map(|request| carry_out(&mut **disk, &request));
            self.queue.extend(done.map(|done| (from, Event::Disk(done))));
        }
        let sends = self.out.sends.drain(..);
        self.queue.extend(sends.map(|(to, message)| (to, Event::Message { from, message })));
        // A shard whose budget is spent wants to go on at once. Any other timer is for a time that does not pass.
        let grants = self.out.timers.drain(..).filter(|(_, delay)| *delay == Some(Micros(0)));
        self.queue.extend(grants.map(|(timer, _)| (from, Event::Timer(timer))));
        Ok(())
    }
}
