//! The contract between a participant and an engine's concurrency control.

use std::fmt::{self, Debug};

use ordain_model::codec;
use ordain_store::{MemoryStore, RecordId};

/// A transaction, by a number that its coordinator gives once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId(pub u64);

codec!(struct TransactionId(_));

/// An attempt at a transaction. A later attempt has a larger number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId {
    /// The transaction.
    pub transaction: TransactionId,
    /// Which attempt at it, from 1.
    pub attempt: u32,
}

codec!(struct AttemptId { transaction, attempt });

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.transaction.0, self.attempt)
    }
}

/// The mode of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// The fragment reads the record.
    Shared,
    /// The fragment may change the record.
    Exclusive,
}

/// The answer to a request for an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The access may go on.
    Granted,
    /// The attempt must abort. Another attempt may be made.
    Refused,
}

/// An engine's concurrency control on the records of one participant.
///
/// The participant asks for each access in the order in which it executes, tells the control when an attempt is over, and
/// keeps a record in the store for as long as its lock word is not 0.
pub trait ConcurrencyControl: Debug + Send {
    /// Decides about one access of an attempt. A verdict for a mode covers weaker ones, and is asked for again only when a
    /// stronger one is needed.
    fn access(
        &mut self,
        store: &mut MemoryStore,
        attempt: AttemptId,
        record: RecordId,
        mode: Mode,
    ) -> Verdict;

    /// An attempt is over, whatever its outcome: nothing of it counts any more. What it has written is in the store, or
    /// will never be. Answers the records that it held.
    fn finish(&mut self, store: &mut MemoryStore, attempt: AttemptId) -> Vec<RecordId>;

    /// Checks what must hold between any two events, given the attempts that are under way.
    ///
    /// # Errors
    /// The first invariant that is broken, with the attempt or record.
    fn check(&self, store: &MemoryStore, is_live: &dyn Fn(AttemptId) -> bool) -> Result<(), String>;
}
