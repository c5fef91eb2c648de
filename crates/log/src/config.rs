//! How a log is opened, and why it may be refused.

use ordain_model::Epoch;
use ordain_role::{Bugs, DiskError};

use crate::format::{HEADER, LINK, MAX_IDENTITY, VERSION};

/// The meaning of "durable" for a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Synced: survives the loss of power.
    #[default]
    Fsync,
    /// Handed to the operating system: survives the death of the process. A loss of power may take any of the
    /// entries since the log was opened; what is left is a prefix.
    Os,
}

/// The settings of a log.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// The owner of the log: cluster, node, fingerprint of the procedures. Every segment carries it, and a log with
    /// another identity is refused. At most [`MAX_IDENTITY`] bytes.
    pub identity: Vec<u8>,
    /// Length of a segment file. An entry that does not fit gets a larger one of its own.
    pub segment_bytes: u64,
    /// The meaning of "durable".
    pub durability: Durability,
    /// The epoch after which a new log begins: a checkpoint has what came before.
    pub begins_after: Epoch,
    /// The caller remembers that this log was opened before: a directory without any segment has lost its log then.
    pub expect_existing: bool,
    /// Planted bugs; none outside tests of the checkers.
    pub bugs: Bugs,
}

impl LogConfig {
    /// Smallest segment that may be configured.
    pub const MIN_SEGMENT_BYTES: u64 = 1024;

    /// The defaults: 64 MiB segments, synced, a new log is created where there is none.
    pub fn new(identity: impl Into<Vec<u8>>) -> LogConfig {
        LogConfig {
            identity: identity.into(),
            segment_bytes: 64 << 20,
            durability: Durability::Fsync,
            begins_after: Epoch(0),
            expect_existing: false,
            bugs: Bugs::NONE,
        }
    }

    pub(crate) fn check(&self) -> Result<(), LogError> {
        if self.identity.len() > MAX_IDENTITY {
            return Err(LogError::Config("the identity is longer than a segment header can hold"));
        }
        if self.segment_bytes < LogConfig::MIN_SEGMENT_BYTES {
            return Err(LogError::Config("a segment must have at least 1024 bytes"));
        }
        Ok(())
    }

    /// Length of a segment that has to take an entry of `size` bytes first.
    pub(crate) fn segment_len(&self, size: u64) -> u64 {
        self.segment_bytes.max(HEADER + size + LINK).next_multiple_of(512)
    }
}

/// The reason why a log is refused. Nothing was changed, unless it is [`LogError::Disk`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Bytes that were synced are not what was written.
    #[error(
        "log damaged: {file} at byte {offset}: {reason}; a crash cannot have done this: restore the data \
         directory from a copy or a replica"
    )]
    Damaged {
        /// The segment.
        file: String,
        /// The place of the first damage.
        offset: u64,
        /// The kind of damage.
        reason: String,
    },
    /// A segment in the middle or at the end is not there.
    #[error(
        "log damaged: segment {file} is missing though {before} was continued in it: restore it from a copy \
         or a replica"
    )]
    Missing {
        /// The segment.
        file: String,
        /// The one before it.
        before: String,
    },
    /// There is no log where one was.
    #[error(
        "the log is gone: no segment in a data directory that had one: restore it from a copy or a replica"
    )]
    Absent,
    /// Written by another version.
    #[error(
        "{file} has log format version {found} and this program reads version {VERSION}: use the program that wrote it"
    )]
    Version {
        /// The segment.
        file: String,
        /// The version in the file.
        found: u32,
    },
    /// The log is of another cluster or node.
    #[error(
        "{file} belongs to another node or cluster, or was written with other procedures: check the data directory"
    )]
    Identity {
        /// The segment.
        file: String,
    },
    /// The visitor of the entries could not use one.
    #[error("log entry of epoch {epoch} in {file} at byte {offset} cannot be used: {reason}")]
    Refused {
        /// The segment.
        file: String,
        /// The place where the entry begins.
        offset: u64,
        /// The entry's epoch.
        epoch: Epoch,
        /// The visitor's reason.
        reason: String,
    },
    /// The configuration cannot be.
    #[error("log configuration: {0}")]
    Config(&'static str),
}
