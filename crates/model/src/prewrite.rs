//! When a write takes its soft lock, with dynamic timestamp ranges (baselines.md, 4.8 and section 6).

use crate::named::named;

named! {
    /// The moment from which on others see that an attempt writes a record.
    Prewrite, "no moment of a prewrite" {
        /// When the attempt is validated.
        #[default]
        Deferred = "deferred";
        /// With the access, as in the public code of Deneva.
        Access = "access";
    }
}
