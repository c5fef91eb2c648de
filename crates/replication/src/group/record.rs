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

use ordain_model::wire::{self, Reader};
use ordain_role::Bytes;
use raft::eraftpb::{Entry, EntryType, HardState};

const VERSION: u8 = 1;

/// Bytes that each entry takes at least.
const ENTRY: usize = 21;

/// The parts of a record; the entries' bytes are shared, not copied.
pub(super) fn encode(hard: &HardState, entries: &[Entry]) -> Vec<Bytes> {
    let mut head = Vec::with_capacity(29 + ENTRY * entries.len());
    wire::u8(&mut head, VERSION);
    wire::u64(&mut head, hard.term);
    wire::u64(&mut head, hard.vote);
    wire::u64(&mut head, hard.commit);
    wire::u32(&mut head, entries.len() as u32);
    for entry in entries {
        wire::u64(&mut head, entry.index);
        wire::u64(&mut head, entry.term);
        wire::u8(&mut head, u8::from(entry.entry_type != EntryType::EntryNormal));
        wire::u32(&mut head, entry.data.len() as u32);
    }
    let data = entries.iter().filter(|entry| !entry.data.is_empty());
    let mut parts = vec![Bytes::from(head)];
    parts.extend(data.map(|entry| entry.data.clone()));
    parts
}

/// The record in some bytes; `None` if they are none.
pub(super) fn decode(bytes: &[u8]) -> Option<(HardState, Vec<Entry>)> {
    let mut rest = Reader(bytes);
    if rest.u8()? != VERSION {
        return None;
    }
    let hard =
        HardState { term: rest.u64()?, vote: rest.u64()?, commit: rest.u64()?, ..HardState::default() };
    let count = rest.count(ENTRY)?;
    let mut entries = Vec::with_capacity(count);
    let mut lens = Vec::with_capacity(count);
    for _ in 0..count {
        let mut entry = Entry { index: rest.u64()?, term: rest.u64()?, ..Entry::default() };
        entry.entry_type = match rest.u8()? {
            0 => EntryType::EntryNormal,
            1 => EntryType::EntryConfChange,
            _ => return None,
        };
        lens.push(rest.u32()? as usize);
        entries.push(entry);
    }
    for (entry, len) in entries.iter_mut().zip(lens) {
        let (data, tail) = rest.0.split_at_checked(len)?;
        entry.data = data.to_vec().into();
        rest = Reader(tail);
    }
    rest.end((hard, entries))
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
