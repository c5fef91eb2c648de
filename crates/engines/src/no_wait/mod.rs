//! No-wait: two-phase locking in which nobody waits for a lock (the Q-Store paper, section 5; Bernstein and Goodman, 1981).
//!
//! Each record has a shared-exclusive lock. An access whose lock is held in a mode that conflicts is refused: its attempt
//! aborts, and the coordinator begins another. An attempt holds its locks to its end, so what commits is strictly
//! serializable, and there is no deadlock.
//!
//! # Rules
//!
//! - N1. A shared lock conflicts with an exclusive one of another attempt, and an exclusive lock with any of another.
//! - N2. An attempt that holds a shared lock gets the exclusive one if nobody else holds the record.
//! - N3. Locks are released when the attempt's decision is installed, or when the attempt is over without one.
//!
//! # State per record
//!
//! The store's lock word: 0 while nobody holds the record, the number of holders of a shared lock, or [`EXCLUSIVE`].

use std::collections::BTreeMap;

use ordain_commit::{AttemptId, CommitEngine, ConcurrencyControl, Mode, Verdict};
use ordain_role::{Bug, Bugs};
use ordain_store::{MemoryStore, RecordId, RecordStore};

/// The engine.
pub const ENGINE: CommitEngine =
    CommitEngine { name: "no-wait", control: |bugs| Box::new(NoWait::new(bugs)) };

/// The lock word of a record with an exclusive lock.
pub const EXCLUSIVE: u32 = u32::MAX;

/// The locks of one participant.
#[derive(Debug, Default)]
pub struct NoWait {
    held: BTreeMap<AttemptId, BTreeMap<RecordId, Mode>>,
    bugs: Bugs,
}

impl NoWait {
    /// No locks. `bugs` are those that a test has planted.
    pub fn new(bugs: Bugs) -> NoWait {
        NoWait { held: BTreeMap::new(), bugs }
    }
}

impl ConcurrencyControl for NoWait {
    fn access(
        &mut self,
        store: &mut MemoryStore,
        attempt: AttemptId,
        record: RecordId,
        mode: Mode,
    ) -> Verdict {
        let held = self.held.entry(attempt).or_default();
        let own = held.get(&record).copied();
        if own.is_some_and(|own| own >= mode) {
            return Verdict::Granted;
        }
        let word = store.lock(record);
        let others = word - u32::from(own == Some(Mode::Shared));
        let next = match mode {
            Mode::Shared if word != EXCLUSIVE => word + 1,
            Mode::Exclusive if others == 0 => EXCLUSIVE,
            // Planted: the access goes on without a lock.
            _ if self.bugs.has(Bug::GrantLockEarly) => return Verdict::Granted,
            Mode::Shared | Mode::Exclusive => return Verdict::Refused,
        };
        store.set_lock(record, next);
        held.insert(record, mode);
        Verdict::Granted
    }

    fn finish(&mut self, store: &mut MemoryStore, attempt: AttemptId) -> Vec<RecordId> {
        let mut held = self.held.remove(&attempt).unwrap_or_default();
        // Planted, IDLE-CLEAN.
        if self.bugs.has(Bug::LeaveLock) && attempt.transaction.0 % 31 == 7 {
            held.pop_last();
        }
        for (record, mode) in &held {
            let word = if *mode == Mode::Exclusive { 0 } else { store.lock(*record) - 1 };
            store.set_lock(*record, word);
        }
        held.into_keys().collect()
    }

    fn check(&self, store: &MemoryStore, is_live: &dyn Fn(AttemptId) -> bool) -> Result<(), String> {
        let mut words: BTreeMap<RecordId, u32> = BTreeMap::new();
        for (attempt, held) in &self.held {
            if !is_live(*attempt) {
                return Err(format!("attempt {attempt} is over and holds {} locks", held.len()));
            }
            for (record, mode) in held {
                let word = words.entry(*record).or_default();
                *word = match mode {
                    Mode::Shared => word.saturating_add(1),
                    Mode::Exclusive if *word == 0 => EXCLUSIVE,
                    Mode::Exclusive => return Err(format!("attempt {attempt} shares an exclusive lock")),
                };
            }
        }
        match words.iter().find(|(record, word)| store.lock(**record) != **word) {
            Some((record, word)) => {
                Err(format!("{record:?} has the lock word {} and holders for {word}", store.lock(*record)))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use ordain_commit::TransactionId;
    use ordain_model::{Db, KeyHash};

    use super::*;

    fn attempt(transaction: u64) -> AttemptId {
        AttemptId { transaction: TransactionId(transaction), attempt: 1 }
    }

    #[test]
    fn conflicting_locks_are_refused_and_released_at_the_end() {
        let mut store = MemoryStore::new(0..ordain_model::key::SLOTS);
        let record = store.find_or_reserve(Db(0), b"k", KeyHash::of_record(Db(0), b"k"));
        let mut locks = NoWait::default();
        let (a, b) = (attempt(1), attempt(2));
        let steps = [
            (a, Mode::Shared, Verdict::Granted),
            (b, Mode::Shared, Verdict::Granted),
            (a, Mode::Exclusive, Verdict::Refused),
            (a, Mode::Shared, Verdict::Granted),
        ];
        for (who, mode, verdict) in steps {
            assert_eq!(locks.access(&mut store, who, record, mode), verdict, "{who} {mode:?}");
            locks.check(&store, &|_| true).unwrap();
        }
        assert_eq!(locks.finish(&mut store, b), [record]);
        assert_eq!(locks.access(&mut store, a, record, Mode::Exclusive), Verdict::Granted, "N2");
        assert_eq!(locks.access(&mut store, b, record, Mode::Shared), Verdict::Refused, "N1");
        assert!(locks.check(&store, &|who| who != a).unwrap_err().contains("is over"));
        locks.finish(&mut store, a);
        assert_eq!((store.lock(record), locks.finish(&mut store, a).len()), (0, 0), "N3");
        store.set_lock(record, 5);
        locks.access(&mut store, a, record, Mode::Shared);
        assert!(locks.check(&store, &|_| true).unwrap_err().contains("lock word 6"));
    }
}
