//! The input log: what is durable, in which bytes, and what a crash may take away.
//!
//! Entries are opaque bytes with an epoch; this crate does not know what a transaction is. It has no file,
//! clock or thread either: [`LogWriter`] is a state machine that asks for [`ordain_role::DiskRequest`]s and is
//! told how they ended, and recovery reads a [`ordain_role::Directory`].
//!
//! The one promise: **an epoch that [`Progress::Durable`] has named is found again, unchanged and in order, by
//! every later [`LogWriter::open`]; what cannot be shown to be so is refused, with the file and the offset.** A
//! crash may cut only what was written and not yet synced. How the bytes make that decidable is in
//! `docs/log-format.md`.
//!
//! The way to read it: `format` is the bytes; `walk` reads and judges a whole log and changes nothing;
//! `recovery` acts on that judgement and makes a writer; `writer` is the group commit; `fetch` reads old entries of a
//! log that is being written; `tools` is what the
//! command line needs; `memo` is a few bytes beside a log that are replaced as a whole; [`memory`] is a directory that forgets what was not synced, for tests and the simulator.

mod config;
mod fetch;
mod format;
mod memo;
pub mod memory;
mod recovery;
mod shared;
mod space;
mod tools;
mod walk;
mod writer;

pub use config::{Durability, LogConfig, LogError};
pub use fetch::{Fetch, Place};
pub use format::{Kind, MAX_IDENTITY, VERSION};
pub use memo::{MEMO_MAX, Memo};
pub use memory::MemoryDirectory;
pub use recovery::{Entry, Recovered, Unopened};
pub use shared::SharedDirectory;
pub use space::{Space, in_space};
pub use tools::{Report, copy_file, copy_until, inspect, starts_after, trim, verify};
pub use walk::{EntryInfo, Item, SegmentInfo, Torn};
pub use writer::{AppendError, LogStats, LogWriter, Pending, Progress};

use ordain_role::{Directory, DiskDone, DiskRequest};

/// Carries out a request on a directory, operation by operation, as every driver does: it stops at the first
/// that fails.
pub fn carry_out(directory: &mut dyn Directory, request: &DiskRequest) -> DiskDone {
    let result = request.ops.iter().try_for_each(|op| directory.apply(op));
    DiskDone { token: request.token, result }
}
