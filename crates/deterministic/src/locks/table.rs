//! The lock table of a shard: a queue of requests for each locked record, first come, first served (the Calvin paper, section
//! 3.2; `docs/protocols/calvin.md`, C13 and C14).
//!
//! A record's lock word is 0, or the number of its queue plus one. Queues exist only for records that a blocked transaction
//! holds or waits for; an absent record that is locked is a placeholder in the store.

use std::collections::VecDeque;

use ordain_model::KeyHash;
use ordain_store::{RecordId, RecordStore};

/// The lock queues in use, and those that are free for other records.
#[derive(Debug, Default)]
pub struct LockTable {
    queues: Vec<Queue>,
    free: Vec<u32>,
    in_use: usize,
    traces: Traces,
}

/// How many locked records there are, by a few bits of their hashes: of most records this tells, without a look at
/// them, that they are not locked.
#[derive(Debug)]
struct Traces(Vec<u32>);

impl Traces {
    /// Enough that few places are in use where hundreds of records are locked; all of them together stay in the cache.
    const PLACES: usize = 1 << 13;

    const fn place(hash: KeyHash) -> usize {
        hash.0 as usize % Traces::PLACES
    }
}

impl Default for Traces {
    fn default() -> Traces {
        Traces(vec![0; Traces::PLACES])
    }
}

/// The requests for one record, in the order in which they came.
#[derive(Debug, Default)]
struct Queue {
    requests: VecDeque<Request>,
    /// How many of them are exclusive.
    exclusive: usize,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    /// The transaction's number among the shard's blocked ones.
    txn: u32,
    exclusive: bool,
    granted: bool,
}

impl LockTable {
    /// Returns how many records are locked.
    pub fn locked_records(&self) -> usize {
        self.in_use
    }

    /// Returns whether a record with this hash may be locked. If not, none is.
    #[inline]
    pub(crate) fn may_hold(&self, hash: KeyHash) -> bool {
        self.traces.0[Traces::place(hash)] > 0
    }

    /// Returns whether a request would be granted at once.
    pub(crate) fn is_free(&self, store: &impl RecordStore, record: RecordId, exclusive: bool) -> bool {
        match self.queue_of(store, record) {
            None => true,
            Some(queue) => !exclusive && queue.exclusive == 0,
        }
    }

    /// Queues a request and returns whether it is granted. `skip_queue` is the planted bug that grants out of order.
    pub fn request(
        &mut self,
        store: &mut impl RecordStore,
        (record, hash): (RecordId, KeyHash),
        txn: u32,
        exclusive: bool,
        skip_queue: bool,
    ) -> bool {
        let granted = skip_queue || self.is_free(store, record, exclusive);
        let at = match store.lock(record) {
            0 => {
                let at = self.free.pop().unwrap_or_else(|| {
                    self.queues.push(Queue::default());
                    self.queues.len() as u32 - 1
                });
                store.set_lock(record, at + 1);
                self.in_use += 1;
                self.traces.0[Traces::place(hash)] += 1;
                at
            }
            word => word - 1,
        };
        let queue = &mut self.queues[at as usize];
        queue.requests.push_back(Request { txn, exclusive, granted });
        queue.exclusive += usize::from(exclusive);
        granted
    }

    /// Takes a transaction's request out of the queue and reports every transaction that is granted by that.
    pub fn release(
        &mut self,
        store: &mut impl RecordStore,
        (record, hash): (RecordId, KeyHash),
        txn: u32,
        mut granted: impl FnMut(u32),
    ) {
        let Some(at) = store.lock(record).checked_sub(1) else { return };
        let Queue { requests, exclusive } = &mut self.queues[at as usize];
        if let Some(i) = requests.iter().position(|r| r.txn == txn)
            && let Some(released) = requests.remove(i)
        {
            *exclusive -= usize::from(released.exclusive);
        }
        // The head, or the head run of shared requests, holds the lock (`docs/protocols/calvin.md`, C14): if the head
        // had it before, so had all of that run.
        let is_new = requests.front().is_some_and(|head| !head.granted);
        for (i, request) in requests.iter_mut().enumerate().take_while(|_| is_new) {
            if request.exclusive && i > 0 {
                break;
            }
            if !std::mem::replace(&mut request.granted, true) {
                granted(request.txn);
            }
            if request.exclusive {
                break;
            }
        }
        if requests.is_empty() {
            self.free.push(at);
            self.in_use -= 1;
            self.traces.0[Traces::place(hash)] -= 1;
            store.set_lock(record, 0);
            store.release_if_absent(record);
        }
    }

    /// Checks that every queue in use is granted from its head on, an exclusive request alone, and that counts agree.
    ///
    /// # Errors
    /// What is broken.
    pub fn check(&self) -> Result<(), String> {
        let queues = self.queues.iter().filter(|queue| !queue.requests.is_empty());
        if queues.clone().count() != self.in_use {
            return Err(format!("{} records are locked, and {} counted", queues.count(), self.in_use));
        }
        for Queue { requests, exclusive } in queues {
            let granted = requests.iter().take_while(|request| request.granted).count();
            let is_shared = granted == 1 || requests.iter().take(granted).all(|request| !request.exclusive);
            let is_ahead = requests.iter().skip(granted).any(|request| request.granted);
            if granted == 0 || !is_shared || is_ahead {
                return Err(format!("a lock is granted out of the order of its queue: {requests:?}"));
            }
            if requests.iter().filter(|request| request.exclusive).count() != *exclusive {
                return Err(format!("{exclusive} exclusive requests are counted of {requests:?}"));
            }
        }
        Ok(())
    }

    fn queue_of(&self, store: &impl RecordStore, record: RecordId) -> Option<&Queue> {
        store.lock(record).checked_sub(1).map(|at| &self.queues[at as usize])
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::{Db, KeyHash};
    use ordain_store::MemoryStore;

    use super::*;

    /// A placeholder's locks, and what was granted by each step.
    struct Bench {
        locks: LockTable,
        store: MemoryStore,
        record: RecordId,
        hash: KeyHash,
    }

    impl Bench {
        fn new() -> Bench {
            let (mut store, hash) = (MemoryStore::new(0..1024), KeyHash::of(b"k"));
            let record = store.find_or_reserve(Db(0), b"k", hash);
            Bench { locks: LockTable::default(), store, record, hash }
        }

        fn request(&mut self, txn: u32, exclusive: bool) -> bool {
            let free = self.locks.is_free(&self.store, self.record, exclusive);
            let record = (self.record, self.hash);
            let granted = self.locks.request(&mut self.store, record, txn, exclusive, false);
            assert_eq!(granted, free);
            assert!(self.locks.may_hold(self.hash));
            granted
        }

        fn release(&mut self, txn: u32) -> Vec<u32> {
            let mut granted = Vec::new();
            let record = (self.record, self.hash);
            self.locks.release(&mut self.store, record, txn, |txn| granted.push(txn));
            granted
        }
    }

    const S: bool = false;
    const X: bool = true;

    #[test]
    fn shared_requests_hold_together_and_an_exclusive_one_alone() {
        let mut bench = Bench::new();
        assert!(bench.request(1, S) && bench.request(2, S));
        assert!(!bench.request(3, X));
        // No request overtakes a waiting one, compatible or not with the holders.
        assert!(!bench.request(4, S) && !bench.request(5, S) && !bench.request(6, X) && !bench.request(7, S));
        assert_eq!(bench.release(1), []);
        assert_eq!(bench.release(2), [3]);
        assert_eq!(bench.release(3), [4, 5]);
        assert_eq!(bench.release(5), []);
        assert_eq!(bench.release(4), [6]);
        assert_eq!(bench.release(6), [7]);
        assert_eq!(bench.locks.locked_records(), 1);
        assert_eq!(bench.release(7), []);
        assert_eq!(bench.locks.locked_records(), 0);
    }

    #[test]
    fn a_lock_that_is_granted_out_of_its_order_is_found() {
        let mut bench = Bench::new();
        assert!(bench.request(1, S) && bench.request(2, S) && !bench.request(3, X) && !bench.request(4, S));
        assert_eq!(bench.locks.check(), Ok(()));
        let record = (bench.record, bench.hash);
        let early = |locks: &mut LockTable, store: &mut MemoryStore, exclusive| {
            locks.request(store, record, 5, exclusive, true);
            let found = locks.check().unwrap_err();
            locks.release(store, record, 5, |_| {});
            found
        };
        let Bench { locks, store, .. } = &mut bench;
        assert!(early(locks, store, S).contains("out of the order"));
        for txn in [3, 4] {
            locks.release(store, record, txn, |_| {});
        }
        assert!(early(locks, store, X).contains("out of the order"), "beside shared ones");
        locks.queues[0].exclusive = 1;
        assert!(locks.check().unwrap_err().contains("are counted of"));
        locks.in_use = 2;
        assert!(locks.check().unwrap_err().contains("and 2 counted"));
    }

    #[test]
    fn a_record_that_shares_its_trace_with_another_stays_known_as_locked() {
        let mut bench = Bench::new();
        let shares = |key: &String| Traces::place(KeyHash::of(key.as_bytes())) == Traces::place(bench.hash);
        let key = (0..).map(|n: u32| n.to_string()).find(shares).unwrap();
        let other = KeyHash::of(key.as_bytes());
        assert!(!bench.locks.may_hold(other));
        let there = bench.store.find_or_reserve(Db(0), key.as_bytes(), other);
        assert!(bench.request(1, X) && bench.locks.request(&mut bench.store, (there, other), 1, X, false));
        bench.release(1);
        assert!(bench.locks.may_hold(other));
        bench.locks.release(&mut bench.store, (there, other), 1, |_| {});
        assert!(!bench.locks.may_hold(other) && !bench.locks.may_hold(bench.hash));
    }

    #[test]
    fn the_last_release_gives_back_queue_and_placeholder() {
        let mut bench = Bench::new();
        assert!(bench.request(1, X));
        bench.release(1);
        assert_eq!(bench.store.find(Db(0), b"k", KeyHash::of(b"k")), None);
        assert!(!bench.locks.may_hold(bench.hash));
        // The queue is used again, empty.
        bench.hash = KeyHash::of(b"l");
        bench.record = bench.store.find_or_reserve(Db(0), b"l", bench.hash);
        assert!(bench.request(2, S) && !bench.request(3, X));
        assert_eq!((bench.locks.queues.len(), bench.locks.locked_records()), (1, 1));
        assert_eq!(bench.release(2), [3]);
        // A transaction without a request changes nothing.
        assert_eq!(bench.release(9), []);
        assert_eq!(bench.release(3), []);
        assert_eq!(bench.locks.locked_records(), 0);
    }
}
