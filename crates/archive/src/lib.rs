//! Copies of complete checkpoints in an object store, and the way back from there.
//!
//! A node's checkpoints are on its own disk, and go with it. An *archive* is a second place for them: a directory that is
//! mounted from elsewhere, or a bucket of a service that speaks the protocol of S3. What is there is what a cluster is built
//! from again when its disks are gone.
//!
//! | module | what |
//! |---|---|
//! | [`location`] | what a URL names |
//! | [`names`] | what objects are called: `<cluster>/<partition>/checkpoint-<epoch>.<node>.state` and `.seal` |
//! | [`seal`] | the object that says that a checkpoint is there, and of what it is |
//! | [`archive`] | what is asked of a store: list, put, read, remove |
//! | [`stored`] | the checkpoints of a partition, read as if they were files of a directory |
//! | [`work`] | what goes there when, in which order, and what is removed: it knows no thread, file or socket |
//! | [`archiver`] | the thread that does so for a node |
//!
//! The rule: **an object without its seal is nothing.** The seal is put last, when all of the state is there, so half an
//! upload never counts. Nobody waits for the archive: a store that cannot be reached is tried again, less and less often, and
//! whoever looks at the node's status sees it. Checkpoints, trimming and transactions go on meanwhile.
//!
//! All of it runs on a small tokio runtime of its own, on the thread of whoever uses it; nothing else in the node has one but
//! the admin server.

pub mod archive;
pub mod archiver;
pub mod location;
pub mod names;
pub mod seal;
pub mod stored;
pub mod work;

pub use archive::{Archive, ArchiveError, Blocking};
pub use archiver::{Archiver, ArchiverSettings, KEEP};
pub use location::{Environment, Location};
pub use names::{Kind, Name};
pub use seal::{Owner, Sealed};
pub use stored::{Reader, StoredCheckpoints};
pub use work::{Report, Rules, Standing};
