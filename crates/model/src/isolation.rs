//! Isolation: the view that transactions have of each other.

use crate::named::named;

named! {
    /// The isolation level (the Q-Store paper, section 4.5; qstore.md, section 4.10).
    Isolation, "no isolation level" {
        /// The results are those of one transaction after the other.
        #[default]
        Serializable = "serializable";
        /// A record that a transaction only reads is seen as at the end of the epoch before its own; what it writes or checks is as
        /// its place in the order has it. The plan says which fragments these are
        /// ([`Fragment::snapshot_readable`](crate::Fragment::snapshot_readable)).
        ReadCommitted = "read-committed";
    }
}
