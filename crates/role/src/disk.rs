//! What a role can ask of a disk, and what a driver promises to do.
//!
//! Files live in one flat directory a node. A role writes whole requests: a short list of operations that are
//! carried out in order and answered once, so that "write, then sync" is one request and group commit one
//! fsync.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

/// An operation on a file of the node's directory.
#[derive(Clone, Debug)]
pub enum DiskOp {
    /// Creates a file, which must not exist, and reserves `len` bytes that read as zero.
    Create {
        /// The file's name.
        file: String,
        /// The number of bytes to reserve.
        len: u64,
    },
    /// Writes parts one after the other, from `offset` on.
    Write {
        /// The file.
        file: String,
        /// The first byte to write.
        offset: u64,
        /// The bytes to write, in parts.
        data: Vec<Bytes>,
    },
    /// Makes everything written to the file durable.
    Sync {
        /// The file.
        file: String,
    },
    /// Makes creations and removals of files durable, and their names.
    SyncDirectory,
    /// Cuts the file to `len` bytes, or extends it with zeros.
    SetLen {
        /// The file.
        file: String,
        /// The new length, bytes.
        len: u64,
    },
    /// Gives a file another name, which must be free. After a crash it has the one or the other.
    Rename {
        /// The file's name.
        file: String,
        /// The file's new name.
        to: String,
    },
    /// Removes a file.
    Remove {
        /// The file.
        file: String,
    },
    /// Reads up to `len` bytes from `offset` on; fewer only at the end of the file.
    Read {
        /// The file.
        file: String,
        /// The first byte to read.
        offset: u64,
        /// The most bytes to read.
        len: usize,
        /// The place for the bytes. The role that asks keeps a copy and takes the bytes when the request is done.
        into: Fetched,
    },
}

/// The place where a disk puts the bytes of a read.
#[derive(Clone, Default)]
pub struct Fetched(Arc<OnceLock<Vec<u8>>>);

impl Fetched {
    /// Puts it there. What is there already stays.
    pub fn put(&self, bytes: Vec<u8>) {
        self.0.get_or_init(|| bytes);
    }

    /// Takes the bytes; none if nothing was read.
    pub fn bytes(&self) -> &[u8] {
        self.0.get().map_or(&[], Vec::as_slice)
    }
}

impl fmt::Debug for Fetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes().len())
    }
}

impl DiskOp {
    /// The names of files in it.
    pub fn names_mut(&mut self) -> impl Iterator<Item = &mut String> {
        let (file, to) = match self {
            DiskOp::Rename { file, to } => (Some(file), Some(to)),
            DiskOp::Create { file, .. }
            | DiskOp::Write { file, .. }
            | DiskOp::Sync { file }
            | DiskOp::SetLen { file, .. }
            | DiskOp::Remove { file }
            | DiskOp::Read { file, .. } => (Some(file), None),
            DiskOp::SyncDirectory => (None, None),
        };
        file.into_iter().chain(to)
    }
}

/// The bytes of something that is not changed any more, without a copy.
pub fn shared<T: AsRef<[u8]> + Send + Sync + 'static>(owner: Arc<T>) -> Bytes {
    struct Shared<T>(Arc<T>);

    impl<T: AsRef<[u8]>> AsRef<[u8]> for Shared<T> {
        fn as_ref(&self) -> &[u8] {
            (*self.0).as_ref()
        }
    }

    Bytes::from_owner(Shared(owner))
}

/// Operations to carry out in order. They stop at the first that fails.
///
/// Requests of a role are carried out in the order in which it made them; those in the background among themselves, and
/// beside the others.
#[derive(Clone, Debug)]
pub struct DiskRequest {
    /// Comes back in [`DiskDone`].
    pub token: u64,
    /// The operations, in order.
    pub ops: Vec<DiskOp>,
    /// No client waits for it, and it may take long: it holds up nothing that is not in the background too, and is never
    /// carried out by a thread that runs roles.
    pub in_background: bool,
}

impl DiskRequest {
    /// Makes a request that a role waits for.
    pub fn new(token: u64, ops: Vec<DiskOp>) -> DiskRequest {
        DiskRequest { token, ops, in_background: false }
    }

    /// A request in the background.
    pub fn in_background(token: u64, ops: Vec<DiskOp>) -> DiskRequest {
        DiskRequest { token, ops, in_background: true }
    }
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskDone {
    /// The request's.
    pub token: u64,
    /// `Ok` if all operations were done.
    pub result: Result<(), DiskError>,
}

/// The reason why a disk operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// No space: what was asked may be asked again once there is some.
    #[error("no space left on the disk that holds {file}: free some, or trim the log")]
    Full {
        /// The file.
        file: String,
    },
    /// Writing is not permitted.
    #[error("cannot write {file}: the directory or file is read-only")]
    ReadOnly {
        /// The file.
        file: String,
    },
    /// Anything else.
    #[error("disk error on {file}: {reason}")]
    Io {
        /// The file.
        file: String,
        /// The system's message.
        reason: String,
    },
}

/// Synchronous access to the same directory, for recovery before any role runs and for tools.
pub trait Directory {
    /// The files there are and their lengths, in order of name.
    ///
    /// # Errors
    /// [`DiskError`].
    fn list(&self) -> Result<Vec<(String, u64)>, DiskError>;

    /// Reads up to `len` bytes from `offset` on; fewer only at the end of the file.
    ///
    /// # Errors
    /// [`DiskError`], also when there is no such file.
    fn read(&self, file: &str, offset: u64, len: usize) -> Result<Vec<u8>, DiskError>;

    /// Carries out one operation.
    ///
    /// # Errors
    /// [`DiskError`].
    fn apply(&mut self, op: &DiskOp) -> Result<(), DiskError>;
}

impl<D: Directory + ?Sized> Directory for &mut D {
    fn list(&self) -> Result<Vec<(String, u64)>, DiskError> {
        (**self).list()
    }

    fn read(&self, file: &str, offset: u64, len: usize) -> Result<Vec<u8>, DiskError> {
        (**self).read(file, offset, len)
    }

    fn apply(&mut self, op: &DiskOp) -> Result<(), DiskError> {
        (**self).apply(op)
    }
}
