//! The entry type on which the logs are tested: a note.

mod golden;

use std::sync::Arc;

use ordain_model::wire::Codec;
use ordain_model::{Epoch, PartitionId};

use crate::EntryType;

/// One entry. Its number among all notes is its identity.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub epoch: Epoch,
    pub id: u64,
    pub partition: PartitionId,
    /// In which term it was agreed on, once it was.
    pub term: u64,
    /// What the log keeps; nothing if nothing has to be durable. It is shared, so that a test can tell that a log hands on
    /// the very note that was appended.
    pub text: Arc<Vec<u8>>,
}

impl Note {
    /// A note that keeps so many bytes and some more; nothing if they are none.
    pub(crate) fn of_size(epoch: u64, id: u64, size: u64) -> Note {
        let text = if size > 0 { vec![7; size as usize + 80] } else { Vec::new() };
        Note { epoch: Epoch(epoch), id, partition: PartitionId(0), term: 0, text: Arc::new(text) }
    }

    /// The identity of the note with these bytes.
    pub(crate) fn id_of(bytes: &[u8]) -> u64 {
        bytes[8..].first_chunk().map_or(0, |id| u64::from_le_bytes(*id))
    }
}

/// The entry type of a log of notes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Notes {}

impl EntryType for Notes {
    type Entry = Note;
    type Context = ();

    fn epoch(note: &Note) -> Epoch {
        note.epoch
    }

    fn must_be_durable(note: &Note) -> bool {
        !note.text.is_empty()
    }

    fn encode(note: &Note) -> Vec<u8> {
        ((note.epoch, note.id, note.partition), note.text.clone()).to_bytes()
    }

    fn decode(_context: &(), bytes: &[u8]) -> Result<Note, String> {
        let ((epoch, id, partition), text) =
            Codec::from_bytes(bytes).ok_or_else(|| "it is no note".to_owned())?;
        Ok(Note { epoch, id, partition, term: 0, text })
    }

    fn empty(epoch: Epoch, partition: PartitionId) -> Note {
        Note { epoch, id: 0, partition, term: 0, text: Arc::default() }
    }

    fn partition(note: &Note) -> PartitionId {
        note.partition
    }

    fn count_parts(note: &Note) -> u32 {
        u32::from(Notes::must_be_durable(note))
    }

    fn note_term(note: &mut Note, term: u64) {
        note.term = term;
    }
}

/// A message to a log of notes.
pub(crate) type Message = crate::Message<Note>;

/// A message between a log of notes and the roles of its node.
pub(crate) type Log = crate::Log<Note>;
