//! Transactions of several partitions that are in doubt on a node, so that an operator sees which keys they hold and for whom they wait.
//!
//! What stands here is for operators: no result depends on it.

use std::sync::{Arc, Mutex, PoisonError};

use crate::ids::{Db, PartitionId};

/// A transaction in doubt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// Its name in logs and traces.
    pub name: String,
    /// The partitions whose votes are missing.
    pub waits_for: Vec<PartitionId>,
    /// Some of the keys that it holds.
    pub keys: Vec<(Db, Vec<u8>)>,
    /// The number of keys that it holds.
    pub held: usize,
}

/// The transactions in doubt on a node, as of late. Clones share one list.
#[derive(Clone, Debug, Default)]
pub struct Doubts(Arc<Mutex<Vec<Doubt>>>);

impl Doubts {
    /// Keys of one transaction that are named at most.
    pub const KEYS: usize = 8;
    /// Transactions that are named at most.
    pub const NAMED: usize = 32;

    /// Replaces the list.
    pub fn set(&self, doubts: Vec<Doubt>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = doubts;
    }

    /// The list.
    pub fn all(&self) -> Vec<Doubt> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
