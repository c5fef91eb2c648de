//! When a partition installs what another home has decided, with vectors of decisions (fwkv.md, 4.9 and section 6).

use crate::named::named;

named! {
    /// The moment from which on others see a transaction whose home is another partition.
    Install, "no way to install" {
        /// With its own outcome.
        #[default]
        Decoupled = "decoupled";
        /// After all earlier decisions of its home are known, as in the paper: its records stay locked until then.
        Paper = "paper";
    }
}
