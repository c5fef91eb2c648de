//! What the tests of several engines' controls share.

use ordain_commit::{AttemptId, ConcurrencyControl, Ended, Ending, Mode, Target, TransactionId};
use ordain_model::{Db, KeyHash};
use ordain_store::{MemoryStore, RecordId, RecordStore};

use crate::waiting::Access;

/// An access of an attempt that nobody knows.
pub(crate) const UNKNOWN: Access = Access { by: 40, target: Target::Table, mode: Mode::Shared };

/// The first attempt at a transaction.
pub(crate) fn attempt(transaction: u64) -> AttemptId {
    AttemptId { transaction: TransactionId::of(transaction), attempt: 1 }
}

/// The record with a key, which has a place from now on.
pub(crate) fn record(store: &mut MemoryStore, key: &[u8]) -> RecordId {
    store.find_or_reserve(Db(0), key, KeyHash::of_record(Db(0), key))
}

/// True if a key has a place.
pub(crate) fn is_stored(store: &MemoryStore, key: &[u8]) -> bool {
    RecordStore::find(store, Db(0), key, KeyHash::of_record(Db(0), key)).is_some()
}

/// The violation that is found once attempt 7, which holds something, is over with the bug `leave-lock`.
pub(crate) fn left_behind(control: &mut dyn ConcurrencyControl, store: &mut MemoryStore) -> String {
    control.finish(store, attempt(7), Ending::Aborted, &mut Ended::default());
    control.check(store, &|_| true).unwrap_err()
}
