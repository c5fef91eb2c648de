//! The modes in which transactions that only read see records of other regions (regions.md, 4.9 and section 6).

use crate::named::named;

named! {
    /// The promise to a transaction that only reads, and reads records of another region.
    RoMode, "no mode of reading" {
        /// All that it has read was the newest at one moment: the other regions confirm it.
        #[default]
        Validated = "validated";
        /// What it has read of each region was the newest there at one moment, which may be past.
        Stale = "stale";
    }
}
