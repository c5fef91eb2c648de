//! The source of the stamps by which attempts at transactions are ordered (baselines.md, 4.3 and section 6).

use crate::named::named;

named! {
    /// The source of stamps, where each attempt at a transaction has one of its own.
    StampSource, "no source of stamps" {
        /// The clock of the home, which is never behind a stamp that the home has heard of.
        #[default]
        Hybrid = "hlc";
        /// The clock of the home alone, as in the public code of Deneva.
        Clock = "clock";
        /// One counter for all homes: the leader of the first partition.
        Counter = "counter";
    }
}
