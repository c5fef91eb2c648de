//! Pending chunks: what was submitted and is not answered, and who waits for each transaction of it.

use std::collections::VecDeque;
use std::sync::Arc;

use ordain_model::outcome::Outcome;
use ordain_model::{Chunk, ChunkNo, PartitionId, Stamp, Txn, View};

use crate::Ticket;
use crate::backend::Backend;
use crate::streams::StreamPlace;

/// The chunks that are begun and not finished, in the order of their numbers.
#[derive(Debug)]
pub(crate) struct Pending {
    /// By consecutive number from `oldest` on.
    chunks: VecDeque<Submitted>,
    oldest: ChunkNo,
    /// The number of waiters, of all chunks, that are not answered.
    waiting: usize,
}

/// A chunk that is begun and not finished.
#[derive(Debug)]
pub(crate) struct Submitted {
    /// The waiters of the transactions, by index.
    pub(crate) waiters: Vec<Waiter>,
    /// The number of waiters that are not answered.
    left: usize,
    /// The partition that sequences the chunk.
    pub(crate) home: PartitionId,
    /// None while the chunk is being built.
    pub(crate) chunk: Option<Arc<Chunk>>,
    /// The node whose sequencer the chunk was sent to last.
    pub(crate) asked: Option<u16>,
    /// Which replicas were to send the outcomes when the chunk was sent before.
    pub(crate) formerly: Vec<u16>,
    /// The view of a chunk that is not sequenced but run on a snapshot.
    pub(crate) view: Option<View>,
    /// The chunk is being built.
    pub(crate) is_open: bool,
    /// The log is to keep reads of the chunk that it would not keep by themselves.
    pub(crate) logs_reads: bool,
    /// The stamp of its run, once an outcome has told.
    run: Option<Stamp>,
}

/// A request that waits for a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    /// None once the waiter is answered.
    ticket: Option<Ticket>,
    /// The partition whose node answers it.
    pub(crate) answers: PartitionId,
    /// The transaction writes, and was asked for before, in another chunk. What became of that is not known.
    pub(crate) is_again: bool,
    /// Whoever leads where it is sequenced may answer too: it only reads, or was asked for before and is remembered there.
    pub(crate) may_be_led: bool,
    /// The number of times that it was too late for the state that it was to see.
    late: u8,
    /// The transaction must not be run again at another place although it may only read: its connection has writes in the
    /// chunk.
    pub(crate) is_fixed: bool,
    /// Its place among the requests of its connection.
    pub(crate) stream_place: Option<StreamPlace>,
}

/// A request that asks for a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(crate) ticket: Ticket,
    /// The number of times that it was too late for the state that it was to see.
    pub(crate) late: u8,
    /// Its place among the requests of its connection, if those are kept in order.
    pub(crate) stream_place: Option<StreamPlace>,
}

/// The place of a transaction: its chunk, and its index there.
pub(crate) type Place = (ChunkNo, u32);

impl Asker {
    /// A request for itself.
    pub(crate) const fn alone(ticket: Ticket) -> Asker {
        Asker { ticket, late: 0, stream_place: None }
    }
}

impl Waiter {
    pub(crate) const fn new(asker: Asker, answers: PartitionId, may_be_led: bool) -> Waiter {
        let Asker { ticket, late, stream_place } = asker;
        Waiter {
            ticket: Some(ticket),
            answers,
            may_be_led,
            is_again: false,
            late,
            is_fixed: false,
            stream_place,
        }
    }

    /// Whether the waiter is not answered.
    pub(crate) const fn is_waiting(&self) -> bool {
        self.ticket.is_some()
    }
}

impl Submitted {
    fn new(home: PartitionId, view: Option<View>, room: usize) -> Submitted {
        Submitted {
            waiters: Vec::with_capacity(room),
            left: 0,
            home,
            chunk: None,
            asked: None,
            formerly: Vec::new(),
            view,
            is_open: true,
            logs_reads: false,
            run: None,
        }
    }

    /// Whether everybody is answered.
    pub(crate) const fn is_answered(&self) -> bool {
        self.left == 0
    }

    /// Whether an outcome of a transaction that only reads is of another run of the chunk than the first that was heard
    /// of: reads that are not logged are run again where the chunk is passed on again.
    pub(crate) fn is_of_another_run(&mut self, outcome: &Outcome, backend: &dyn Backend) -> bool {
        let txn = self.chunk.as_ref().and_then(|chunk| chunk.txns().get(outcome.index as usize));
        // The place of a retried request is that of its first attempt.
        let is_here = |txn: &&Txn| txn.read_only || txn.call.session.is_none();
        let Some(txn) = txn.filter(is_here).filter(|_| self.view.is_none() && outcome.stamp != Stamp::NONE)
        else {
            return false;
        };
        let Some(run) = backend.run_of(outcome.stamp, outcome.index) else { return false };
        *self.run.get_or_insert(run) != run && !txn.logged
    }

    /// Whether any node has been sent the chunk.
    pub(crate) fn was_sent(&self) -> bool {
        self.asked.is_some() || !self.formerly.is_empty()
    }
}

impl Pending {
    /// Nothing, of chunks that are numbered from `first` on.
    pub(crate) const fn new(first: ChunkNo) -> Pending {
        Pending { chunks: VecDeque::new(), oldest: first, waiting: 0 }
    }

    /// The number of transactions that somebody waits for.
    pub(crate) const fn waiting(&self) -> usize {
        self.waiting
    }

    /// A chunk that is begun and not forgotten.
    #[inline]
    pub(crate) fn get(&self, number: ChunkNo) -> Option<&Submitted> {
        self.chunks.get(number.0.checked_sub(self.oldest.0)? as usize)
    }

    /// A chunk that is begun and not forgotten, to be changed.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: ChunkNo) -> Option<&mut Submitted> {
        self.chunks.get_mut(number.0.checked_sub(self.oldest.0)? as usize)
    }

    /// The numbers of the chunks, in order.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = ChunkNo> + use<> {
        let oldest = self.oldest.0;
        (oldest..oldest + self.chunks.len() as u64).map(ChunkNo)
    }

    /// Notes who waits for the last transaction of a chunk that is being built, and numbers the chunk if that is its first.
    #[inline]
    pub(crate) fn add(
        &mut self,
        chunk: &mut Chunk,
        (home, view): (PartitionId, Option<View>),
        waiter: Waiter,
    ) -> Place {
        let index = chunk.span() - 1;
        if index == 0 {
            chunk.number = ChunkNo(self.oldest.0 + self.chunks.len() as u64);
            let room = self.chunks.back().map_or(0, |last| last.waiters.len());
            self.chunks.push_back(Submitted::new(home, view, room));
        }
        let submitted = &mut self.chunks[(chunk.number.0 - self.oldest.0) as usize];
        submitted.waiters.push(waiter);
        submitted.left += 1;
        self.waiting += 1;
        (chunk.number, index)
    }

    /// Takes out who waits for a transaction, and whether that may have been submitted before; `None` if nobody waits.
    #[inline]
    pub(crate) fn take(&mut self, (number, index): Place) -> Option<(Asker, bool)> {
        let submitted = self.get_mut(number)?;
        let waiter = submitted.waiters.get_mut(index as usize)?;
        let asker =
            Asker { ticket: waiter.ticket.take()?, late: waiter.late, stream_place: waiter.stream_place };
        let is_again = waiter.is_again;
        submitted.left -= 1;
        self.waiting -= 1;
        Some((asker, is_again))
    }

    /// Notes that a transaction may have been submitted before, in another chunk.
    pub(crate) fn mark_again(&mut self, (number, index): Place, is_again: bool) {
        let submitted = self.get_mut(number);
        if let Some(waiter) = submitted.and_then(|submitted| submitted.waiters.get_mut(index as usize)) {
            waiter.is_again = is_again;
        }
    }

    /// Forgets the oldest chunks, as far as everybody is answered.
    #[inline]
    pub(crate) fn forget_finished(&mut self) {
        while self.chunks.front().is_some_and(|first| first.is_answered() && !first.is_open) {
            self.chunks.pop_front();
            self.oldest.0 += 1;
        }
    }

    /// Every chunk, with its number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ChunkNo, &Submitted)> {
        self.numbers().zip(&self.chunks)
    }

    /// Checks that what is counted by hand is what there is.
    ///
    /// # Errors
    /// What is broken.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut waiting = 0;
        for (number, submitted) in self.iter() {
            let left = submitted.waiters.iter().filter(|waiter| waiter.is_waiting()).count();
            if left != submitted.left {
                return Err(format!("chunk {number} counts {} waiters and has {left}", submitted.left));
            }
            if submitted.is_open != submitted.chunk.is_none() {
                return Err(format!("chunk {number} is both being built and closed, or neither"));
            }
            waiting += left;
        }
        if waiting != self.waiting {
            return Err(format!("{} waiters are counted and there are {waiting}", self.waiting));
        }
        Ok(())
    }
}
