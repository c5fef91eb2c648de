//! Checkpoints: the state of one partition at the end of an epoch, in a file (calvin.md, section 4.14).
//!
//! A checkpoint is what a node starts from in place of the log up to there. This crate is its bytes: it has no file,
//! clock or thread, and does not know when one is made or what becomes of the log. Whoever makes one gathers
//! [`Piece`]s and has an [`Encoder`] put them into one file; whoever needs one [`read`]s it through a
//! [`ordain_role::Directory`], or piece by piece [as it arrives](Arriving).
//!
//! The one promise: **what [`read`] has shown to its end is what was written, all of it, of this cluster, layout and
//! partition**; anything else is refused, with the file and the offset. Every byte is covered by a checksum, each
//! frame's continues that of the one before, and the digest is computed again from the records.
//!
//! A file has its name from the start, because a directory has no atomic rename. So that it is whole, and that every
//! partition has one of the same epoch, is said by a second, small file, the *seal*: only with it is a checkpoint
//! [complete](Found::is_complete). `docs/checkpoint-format.md` has the tables and the reasons.

mod arriving;
mod directory;
mod format;
mod giving;
mod outcomes;
mod piece;
mod read;
mod write;

pub use arriving::Arriving;
pub use directory::{Found, list};
pub use format::{Header, OLDEST_VERSION, Seal, VERSION, file_name, seal_name};
pub use giving::{Filling, ON_THEIR_WAY, Pace};
pub use outcomes::Outcomes;
pub use piece::{Item, Kind, Outcome, Piece};
pub use read::{CheckpointError, read, read_header, verify};
pub use write::{Encoder, Totals};
