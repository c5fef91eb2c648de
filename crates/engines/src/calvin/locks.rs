//! The lock queues of a shard: first come, first served, per record (the Calvin paper, section 3.2).
//!
//! A record's lock word is 0, or the number of its queue plus one. Queues exist only for records that a parked
//! transaction holds or waits for; an absent record that is locked is a placeholder in the store.

use std::collections::VecDeque;

use ordain_store::{RecordId, RecordStore};

/// The lock queues in use.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    queues: Vec<VecDeque<Request>>,
    free: Vec<u32>,
    in_use: usize,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    /// The transaction's number among the shard's parked ones.
    txn: u32,
    exclusive: bool,
    granted: bool,
}

impl Locks {
    /// How many records are locked.
    pub(crate) fn len(&self) -> usize {
        self.in_use
    }

    /// Whether a request would be granted at once.
    pub(crate) fn is_free(&self, store: &impl RecordStore, record: RecordId, exclusive: bool) -> bool {
        match self.queue_of(store, record) {
            None => true,
            Some(queue) => !exclusive && queue.iter().all(|r| !r.exclusive),
        }
    }

    /// Queues a request and says whether it is granted. `skip_queue` is the planted bug that grants early.
    pub(crate) fn request(
        &mut self,
        store: &mut impl RecordStore,
        record: RecordId,
        txn: u32,
        exclusive: bool,
        skip_queue: bool,
    ) -> bool {
        let granted = skip_queue || self.is_free(store, record, exclusive);
        let at = match store.lock(record) {
            0 => {
                let at = self.free.pop().unwrap_or_else(|| {
                    self.queues.push(VecDeque::new());
                    self.queues.len() as u32 - 1
                });
                store.set_lock(record, at + 1);
                self.in_use += 1;
                at
            }
            word => word - 1,
        };
        self.queues[at as usize].push_back(Request { txn, exclusive, granted });
        granted
    }

    /// Takes a transaction's request out of the queue and reports every transaction that is granted by that.
    pub(crate) fn release(
        &mut self,
        store: &mut impl RecordStore,
        record: RecordId,
        txn: u32,
        mut granted: impl FnMut(u32),
    ) {
        let Some(at) = store.lock(record).checked_sub(1) else { return };
        let queue = &mut self.queues[at as usize];
        if let Some(i) = queue.iter().position(|r| r.txn == txn) {
            queue.remove(i);
        }
        // The head, or the head run of shared requests, holds the lock (calvin.md, section 4.2, rule 3).
        for i in 0..queue.len() {
            let Request { exclusive, granted: had, .. } = queue[i];
            if exclusive && i > 0 {
                break;
            }
            if !had {
                queue[i].granted = true;
                granted(queue[i].txn);
            }
            if exclusive {
                break;
            }
        }
        if queue.is_empty() {
            self.free.push(at);
            self.in_use -= 1;
            store.set_lock(record, 0);
            store.release_if_absent(record);
        }
    }

    fn queue_of(&self, store: &impl RecordStore, record: RecordId) -> Option<&VecDeque<Request>> {
        store.lock(record).checked_sub(1).map(|at| &self.queues[at as usize])
    }
}
