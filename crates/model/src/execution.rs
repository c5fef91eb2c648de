//! Speculation: the execution of transactions before it is known which of them abort.

use crate::named::named;

named! {
    /// The execution of what depends on verdicts of other shards (the Q-Store paper, section 4.2; qstore.md, sections 4.7 and
    /// 4.8). The results are the same.
    Execution, "no way to execute transactions" {
        /// Writes are visible at once. After an abort they are undone, and the transactions that used them are executed again.
        Speculative = "speculative";
        /// Writes are visible once all verdicts are known.
        #[default]
        Conservative = "conservative";
        /// Batch by batch, the one of the two that was measured to be faster.
        Auto = "auto";
    }
}

/// The choice of a batch for the execution of its epoch (qstore.md, section 4.8: the choice stands in the log, so that every
/// replica makes the same). A batch in which no shard would have to wait for a verdict has no choice. The first batch of an epoch
/// that has one decides for all that follows in it: what came before is executed alike in either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Writes are visible once all verdicts are known.
    Wait,
    /// The epoch may be executed before it is known what aborts (the Q-Store paper, section 4.2; qstore.md, section 4.7). Then
    /// this becomes of what has used something of it.
    Speculate(Cascade),
}

named! {
    /// The fate of a transaction that was executed on writes of another one that then aborted (the Q-Store paper,
    /// section 4.2; qstore.md, section 4.7, step 7).
    Cascade, "no way to handle a cascade" {
        /// The transaction is executed again: the results are those of one after the other.
        #[default]
        Repair = "repair";
        /// The transaction aborts too, as in the paper, and its client may ask again.
        Abort = "abort";
    }
}
