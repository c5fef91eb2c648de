//! How a transaction whose attempt was refused pauses before the next (baselines.md, section 5, B-2).

use crate::named::named;

named! {
    /// The pause between a refused attempt at a transaction and the next one.
    Backoff, "no way to back off" {
        /// A short pause at first, twice as long after each attempt up to a bound, with a spread.
        #[default]
        Exponential = "exp";
        /// No pause: the next attempt begins in the coordinator's next turn.
        None = "none";
        /// The pause of the public code of Deneva, which is half a second after any attempt.
        Deneva = "deneva";
    }
}
