//! The ways in which what only reads records of its own region meets a transaction of several regions in doubt (regions.md, 4.7 and section 6).

use crate::named::named;

named! {
    /// The promise to a transaction that only reads, and reads records of its own region alone.
    RoLocal, "no way of reading" {
        /// All that was answered before it began is seen, after a wait for a transaction in doubt that may be among that.
        #[default]
        Strict = "strict";
        /// The region is seen as it was when nothing was in doubt, without a wait.
        Resolved = "resolved";
    }
}
