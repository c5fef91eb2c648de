//! Checkpoint modes: ways to keep the state of a checkpoint while transactions go on.

use crate::named::named;

named! {
    /// The three ways of the Calvin paper, section 5. What a checkpoint holds does not depend on it.
    CheckpointMode, "no way to take a checkpoint" {
        /// Contents that later transactions replace are kept for the checkpoint, as for a reader of a past state.
        #[default]
        Multiversion = "multiversion";
        /// A replica executes nothing more until its state is written. The others go on, and clients with them.
        Naive = "naive";
        /// A record that a later transaction changes has two copies until it is captured.
        ZigZag = "zigzag";
    }
}
