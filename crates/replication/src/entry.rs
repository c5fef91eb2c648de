//! The contract between a log and what it holds.

use std::fmt::Debug;
use std::sync::Arc;

use ordain_model::{Epoch, PartitionId};
use ordain_role::Bytes;

/// Describes the entries of one log to the roles of this crate.
///
/// An implementation is a type without values, named for what its log holds (`Batches`, `Decisions`), so that a family
/// can describe a type that it shares with other crates.
pub trait EntryType: Debug + Send + Sync + 'static {
    /// An entry. Cloned for every receiver, so what is large in it is shared.
    type Entry: Clone + Debug + Send + 'static;

    /// The context of decoding beside the bytes, such as a registry of procedures.
    type Context: Debug + Send + Sync;

    /// The number of an entry in its log. Numbers rise along the log, and may have gaps.
    fn epoch(entry: &Self::Entry) -> Epoch;

    /// Tells whether an entry must be durable before any role is handed it. An entry that need not be leaves no trace
    /// in a log that a single node writes; members that agree log every entry.
    fn must_be_durable(entry: &Self::Entry) -> bool;

    /// The bytes that the log keeps. They begin with the number, 8 bytes little-endian ([`epoch_of`]).
    fn encode(entry: &Self::Entry) -> Vec<u8>;

    /// The bytes of [`EntryType::encode`] in parts, of which large ones are shared with the entry rather than copied.
    fn encode_parts(entry: &Self::Entry) -> Vec<Bytes> {
        vec![Self::encode(entry).into()]
    }

    /// The entry that the bytes are. What need not be durable of it may be missing.
    ///
    /// # Errors
    /// Why the bytes are none, for the operator.
    fn decode(context: &Self::Context, bytes: &[u8]) -> Result<Self::Entry, String>;

    /// An entry of this number and partition without content: with it a log announces that no other entry up to there
    /// follows.
    ///
    /// Only a log that ships needs it.
    fn empty(epoch: Epoch, partition: PartitionId) -> Self::Entry {
        unreachable!("a log that does not ship asked for an empty entry {epoch} of partition {}", partition.0)
    }

    /// The partition whose log the entry is of.
    fn partition(_entry: &Self::Entry) -> PartitionId {
        PartitionId(0)
    }

    /// Notes in an entry the term in which it was agreed on, before any role is handed it. Entries that have no use
    /// for their term do nothing.
    fn note_term(_entry: &mut Self::Entry, _term: u64) {}

    /// The number of separable parts of an entry that have to be kept. A reader that gathers shares of the entry from
    /// several nodes has all of it when it has so many parts.
    fn count_parts(_entry: &Self::Entry) -> u32 {
        1
    }

    /// Puts an entry of so many parts together from the shares of several nodes. `None` if parts are missing, or if such
    /// entries are never divided.
    fn merge(_context: &Self::Context, _shares: &[Arc<Vec<u8>>], _parts: u32) -> Option<Vec<u8>> {
        None
    }
}

/// The number of the entry that begins with these bytes.
pub fn epoch_of(bytes: &[u8]) -> Option<Epoch> {
    bytes.first_chunk().map(|epoch| Epoch(u64::from_le_bytes(*epoch)))
}
