//! What stands in the journal of a group: records of what consensus wants to be durable.
//!
//! A record is one [`Ready`](raft::Ready)'s worth: the term, the vote, how far entries are known to be committed, and
//! entries. Later records win: an entry takes the place of an earlier one at its index and of all that followed that
//! one. All numbers are little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 1 | version of this format, 1 |
//! | 8, 8, 8 | term, vote, commit |
//! | 4 | number of entries |
//! | 8, 8, 1, 4 each | index, term, kind (0 entry, 1 change of the membership), length |
//! | … | their bytes, in order |

use ordain_model::codec;
use ordain_model::wire::{Codec as _, Reader};
use ordain_role::Bytes;
use raft::eraftpb::{Entry, EntryType, HardState};

use super::store::is_change;

const VERSION: u8 = 1;

/// A record, but for the bytes of its entries.
struct Head {
    version: u8,
    term: u64,
    vote: u64,
    commit: u64,
    entries: Vec<EntryHead>,
}

codec!(struct Head { version, term, vote, commit, entries });

/// An entry, but for its bytes.
pub(crate) struct EntryHead {
    pub index: u64,
    pub term: u64,
    pub is_change: bool,
    pub len: u32,
}

codec!(struct EntryHead { index, term, is_change, len });

impl EntryHead {
    pub fn of(entry: &Entry) -> EntryHead {
        EntryHead {
            index: entry.index,
            term: entry.term,
            is_change: is_change(entry),
            len: entry.data.len() as u32,
        }
    }

    pub fn with(self, data: Bytes) -> Entry {
        let mut entry = Entry { index: self.index, term: self.term, data, ..Entry::default() };
        if self.is_change {
            entry.entry_type = EntryType::EntryConfChange;
        }
        entry
    }
}

/// The parts of a record; the entries' bytes are shared, not copied.
pub(crate) fn encode(hard: &HardState, entries: &[Entry]) -> Vec<Bytes> {
    let heads = entries.iter().map(EntryHead::of).collect();
    let HardState { term, vote, commit, .. } = *hard;
    let head = Head { version: VERSION, term, vote, commit, entries: heads };
    let data = entries.iter().filter(|entry| !entry.data.is_empty());
    let mut parts = vec![Bytes::from(head.to_bytes())];
    parts.extend(data.map(|entry| entry.data.clone()));
    parts
}

/// The record in some bytes; `None` if they are none.
pub(crate) fn decode(bytes: &[u8]) -> Option<(HardState, Vec<Entry>)> {
    let mut rest = Reader::new(bytes);
    let Head { version: VERSION, term, vote, commit, entries } = Head::decode(&mut rest)? else {
        return None;
    };
    let with_data = |head: EntryHead| {
        let data = rest.take(head.len as usize)?.to_vec();
        Some(head.with(data.into()))
    };
    let entries = entries.into_iter().map(with_data).collect::<Option<Vec<Entry>>>()?;
    rest.end((HardState { term, vote, commit, ..HardState::default() }, entries))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(parts: &[Bytes]) -> Vec<u8> {
        parts.iter().flat_map(|part| part.to_vec()).collect()
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_no_less_of_it(
            (term, vote, commit) in any::<(u64, u64, u64)>(),
            entries in proptest::collection::vec(
                (any::<u64>(), any::<u64>(), any::<bool>(), proptest::collection::vec(any::<u8>(), 0..20)), 0..5),
        ) {
            let hard = HardState { term, vote, commit, ..HardState::default() };
            let entries: Vec<Entry> = entries
                .into_iter()
                .map(|(index, term, change, data)| {
                    let mut entry = Entry { index, term, ..Entry::default() };
                    if change {
                        entry.entry_type = EntryType::EntryConfChange;
                    }
                    entry.data = data.into();
                    entry
                })
                .collect();
            let bytes = whole(&encode(&hard, &entries));
            for cut in 0..bytes.len() {
                prop_assert!(decode(&bytes[..cut]).is_none());
            }
            prop_assert_eq!(decode(&bytes), Some((hard, entries)));
        }

        #[test]
        fn any_bytes_are_a_record_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = decode(&bytes);
        }
    }
}
