//! What stands in the journal of a group: records of what consensus wants to be durable.
//!
//! A record is one [`Ready`](raft::Ready)'s worth: the term, the vote, how far entries are known to be committed, and
//! entries. Later records win: an entry takes the place of an earlier one at its index and of all that followed that
//! one. Numbers take as many bytes as they need, and differences are signed ([`compact`]):
//!
//! | what | |
//! |---|---|
//! | version of this format | 1 byte, 2; in 1 all numbers had a fixed size |
//! | term, vote, commit | numbers |
//! | number of entries | a number |
//! | of each its index | the difference to the index after that of the entry before; of the first to that after the commit |
//! | of each its term | the difference to the term of the entry before; of the first to that of the record |
//! | of each its length and kind | a number: twice the length, and one more for a change of the membership |
//! | their bytes | in order |

use ordain_model::wire::Reader;
use ordain_model::{codec, compact};
use ordain_role::Bytes;
use raft::eraftpb::{Entry, EntryType, HardState};

use super::store::is_change;

const VERSION: u8 = 2;

/// An entry, but for its bytes; these are its bytes in a message.
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
    let HardState { term, vote, commit, .. } = *hard;
    let mut head = vec![VERSION];
    for number in [term, vote, commit, entries.len() as u64] {
        compact::number(&mut head, number);
    }
    let mut before = (commit, term);
    for entry in entries {
        compact::difference(&mut head, entry.index, before.0.wrapping_add(1));
        compact::difference(&mut head, entry.term, before.1);
        compact::number(&mut head, (entry.data.len() as u64) << 1 | u64::from(is_change(entry)));
        before = (entry.index, entry.term);
    }
    let data = entries.iter().filter(|entry| !entry.data.is_empty());
    let mut parts = vec![Bytes::from(head)];
    parts.extend(data.map(|entry| entry.data.clone()));
    parts
}

/// The record in some bytes; `None` if they are none.
pub(crate) fn decode(bytes: &[u8]) -> Option<(HardState, Vec<Entry>)> {
    let mut rest = Reader::new(bytes);
    if rest.u8()? != VERSION {
        return None;
    }
    let mut number = || compact::read_number(&mut rest);
    let (term, vote, commit) = (number()?, number()?, number()?);
    let count = compact::read_count(&mut rest)?;
    let mut before = (commit, term);
    let heads = compact::read_items(&mut rest, count, |rest| {
        let index = compact::read_difference(rest, before.0.wrapping_add(1))?;
        let term = compact::read_difference(rest, before.1)?;
        let len_and_kind = compact::read_number(rest)?;
        before = (index, term);
        let len = u32::try_from(len_and_kind >> 1).ok()?;
        Some(EntryHead { index, term, is_change: len_and_kind & 1 == 1, len })
    })?;
    let with_data = |head: EntryHead| {
        let data = rest.take(head.len as usize)?.to_vec();
        Some(head.with(data.into()))
    };
    let entries = heads.into_iter().map(with_data).collect::<Option<Vec<Entry>>>()?;
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
            let _ = decode(&[&[VERSION], &bytes[..]].concat());
        }
    }

    /// Entries that follow each other in one term take four bytes each beside their own.
    #[test]
    fn the_bytes_are_those_of_the_table() {
        let hard = HardState { term: 65, vote: 0, commit: 1_000, ..HardState::default() };
        let entry = |index, len| Entry { index, term: 65, data: vec![7; len].into(), ..Entry::default() };
        let bytes = whole(&encode(&hard, &[entry(1_003, 1), entry(1_004, 100)]));
        let head = [2, 65, 0, 0xe8, 7, 2, 4, 0, 2, 0, 0, 0xc8, 1];
        assert_eq!(bytes[..head.len()], head);
        assert_eq!(bytes.len(), head.len() + 101);
        // As version 1 began: with a term of eight bytes.
        assert_eq!(decode(&[&[1][..], &[0; 28]].concat()), None);
    }
}
