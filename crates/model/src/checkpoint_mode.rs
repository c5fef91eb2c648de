//! How the state of a checkpoint is kept while transactions go on.

use crate::named::named;

/// The three ways of the Calvin paper, section 5. What a checkpoint holds does not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckpointMode {
    /// What later transactions replace is kept for the checkpoint, as for a reader of a past state.
    #[default]
    Multiversion,
    /// One replica executes nothing more until its state is written. The others go on, and clients with them.
    Naive,
    /// A record that a later transaction changes has two copies until it is captured.
    ZigZag,
}

impl CheckpointMode {
    /// All of them, by name.
    pub const ALL: [(&'static str, CheckpointMode); 3] = [
        ("multiversion", CheckpointMode::Multiversion),
        ("naive", CheckpointMode::Naive),
        ("zigzag", CheckpointMode::ZigZag),
    ];
}

named!(CheckpointMode, UnknownCheckpointMode, "no way to take a checkpoint: multiversion, naive or zigzag");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (name, mode) in CheckpointMode::ALL {
            assert_eq!((name.parse(), mode.to_string()), (Ok(mode), name.to_owned()));
        }
        assert!("zig-zag".parse::<CheckpointMode>().is_err());
    }
}
