//! Where a group's log begins that was trimmed, and which records of a trimmed journal count.
//!
//! Consensus has to know index and term of the last entry that is gone, and who was a member by then. That is the *base*. It
//! stands in a memo beside the journal and is durable there before any segment is removed, so whatever a crash leaves, the
//! records that are still there reach back to the base at least.
//!
//! A member that is too far behind is *offered* the base of the leader. It writes that down, and begins there when it is
//! opened with a checkpoint that covers it.
//!
//! The records of a journal may reach back farther than the base, and the first of them may be of entries that others have taken the place of later, with
//! those in between gone. Both is told from damage by [`Records`].

use ordain_model::wire::{Codec, Form, Reader};
use ordain_model::{Epoch, codec};
use raft::eraftpb::ConfState;

/// The name of the memo: where a group's log begins.
pub(crate) const MEMO: &str = "log-base";

const VERSION: u8 = 1;

/// The last entry that is not there any more.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Base {
    /// The entry's index; 0 if all entries are there.
    pub index: u64,
    /// The entry's term.
    pub term: u64,
    /// Epoch of the last entry up to it.
    pub epoch: Epoch,
    /// The members by then.
    pub members: ConfState,
    /// The last record of which only the term and the vote count.
    pub void: Epoch,
}

/// The content of the memo.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Beginning {
    /// The base of the log.
    pub base: Base,
    /// The base at which it may begin if a checkpoint covers that, and the log does not reach there.
    pub offered: Option<Base>,
}

codec!(struct Base { index, term, epoch, void, members as Members });

/// The form of the members of a group: voters, then learners.
enum Members {}

impl Form<ConfState> for Members {
    const LEAST: usize = 8;

    fn encode(members: &ConfState, out: &mut Vec<u8>) {
        members.voters.encode(out);
        members.learners.encode(out);
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<ConfState> {
        let (voters, learners) = Codec::decode(bytes)?;
        Some(ConfState { voters, learners, ..ConfState::default() })
    }
}

codec!(struct Beginning { base, offered });

impl Beginning {
    /// The content of the memo, behind the version of its format.
    pub fn memo(self) -> Vec<u8> {
        (VERSION, self).to_bytes()
    }

    /// Reads the content of the memo; `None` if it is none.
    pub fn of_memo(memo: &[u8]) -> Option<Beginning> {
        let (version, beginning) = <(u8, Beginning)>::from_bytes(memo)?;
        (version == VERSION).then_some(beginning)
    }
}

/// Follows the records of a journal and finds which of their entries count.
#[derive(Debug)]
pub(crate) struct Records {
    /// Index and term of the last entry that is gone.
    base: (u64, u64),
    /// The last entry so far.
    last: u64,
    /// The index up to which entries are agreed on, by the last record.
    commit: u64,
    /// The last entries that were met do not follow the base: others must take their place.
    is_stale: bool,
}

impl Records {
    /// The records of a log with this base.
    pub fn after(base: &Base) -> Records {
        Records { base: (base.index, base.term), last: base.index, commit: 0, is_stale: false }
    }

    /// The number of entries, and of those that are known to be agreed on.
    pub fn extent(&self) -> (u64, u64) {
        (self.last, self.commit.max(self.base.0))
    }

    /// Takes a record: the index up to which entries are agreed on, and its entries by index and term. Answers how
    /// many of the first of them do not count; `None` if the record cannot follow.
    pub fn take(&mut self, commit: u64, entries: impl ExactSizeIterator<Item = (u64, u64)>) -> Option<usize> {
        let mut skip = 0;
        let count = entries.len();
        let mut entries = entries.peekable();
        if let Some((first, _)) = entries.peek().copied() {
            let (base, term) = self.base;
            // An entry that is agreed on is not replaced.
            if first == 0 || first <= self.commit {
                return None;
            }
            skip = usize::try_from((base + 1).saturating_sub(first)).map_or(count, |skip| skip.min(count));
            let end = first.checked_add(count as u64 - 1)?;
            // The last of those that are gone, as it was then, or the first of those that are not.
            let (index, at) = entries.nth(skip.saturating_sub(1))?;
            let is_of_another = (index == base && at != term) || (index > base && at < term);
            let has_gap = first > self.last + 1;
            if has_gap && (base == 0 || self.last > base) {
                return None;
            }
            self.is_stale = has_gap || is_of_another;
            (self.last, skip) = if self.is_stale { (base, count) } else { (end.max(base), skip) };
        }
        if commit < self.commit || (!self.is_stale && commit > self.last) {
            return None;
        }
        self.commit = commit;
        Some(skip)
    }

    /// Tells whether the journal may end here.
    pub fn may_end(&self) -> bool {
        !self.is_stale && self.commit <= self.last
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_and_no_less_of_it(
            (index, term, epoch, void) in any::<(u64, u64, u64, u64)>(),
            voters in proptest::collection::vec(any::<u64>(), 0..6),
            learners in proptest::collection::vec(any::<u64>(), 0..3),
        ) {
            let members = ConfState { voters, learners, ..ConfState::default() };
            let base = Base { index, term, epoch: Epoch(epoch), members, void: Epoch(void) };
            for offered in [None, Some(Base { index: void, ..base.clone() })] {
                let beginning = Beginning { base: base.clone(), offered };
                let bytes = beginning.clone().memo();
                for cut in 0..bytes.len() {
                    prop_assert!(Beginning::of_memo(&bytes[..cut]).is_none());
                }
                prop_assert_eq!(Beginning::of_memo(&bytes), Some(beginning));
            }
        }
    }

    #[test]
    fn the_memo_has_the_bytes_that_it_always_had() {
        let members = ConfState { voters: vec![0x31, 0x32], learners: vec![0x33], ..ConfState::default() };
        let base = Base { index: 0x11, term: 0x12, epoch: Epoch(0x13), members, void: Epoch(0x14) };
        let offered = Some(Base { index: 0x21, term: 0x22, ..Base::default() });
        let found = Beginning { base, offered }.memo();
        let found: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = "01110000000000000012000000000000001300000000000000140000000000000002000000310000000000000032000000\
                        000000000100000033000000000000000121000000000000002200000000000000000000000000000000000000000000\
                        000000000000000000";
        assert_eq!(found, expected);
    }

    fn after(index: u64, term: u64) -> Records {
        Records::after(&Base { index, term, ..Base::default() })
    }

    fn take(records: &mut Records, commit: u64, entries: &[(u64, u64)]) -> Option<usize> {
        records.take(commit, entries.iter().copied())
    }

    #[test]
    fn without_a_base_records_follow_each_other_from_the_first_entry_on() {
        let mut records = after(0, 0);
        assert_eq!(take(&mut records, 0, &[(2, 1)]), None, "a gap");
        assert_eq!(take(&mut records, 0, &[(1, 1), (2, 1), (3, 1)]), Some(0));
        assert_eq!(take(&mut records, 4, &[]), None, "agreed on and not there");
        assert_eq!(take(&mut records, 2, &[(3, 2), (4, 2)]), Some(0));
        assert_eq!(take(&mut records, 2, &[(2, 3)]), None, "agreed on is not replaced");
        assert_eq!(take(&mut records, 1, &[]), None, "nor forgotten");
        assert_eq!(take(&mut records, 4, &[(5, 2)]), Some(0));
        assert_eq!((records.extent(), records.may_end()), ((5, 4), true));
    }

    #[test]
    fn what_stands_before_the_base_does_not_count() {
        let mut records = after(7, 2);
        assert_eq!(take(&mut records, 3, &[(4, 1), (5, 1)]), Some(2));
        assert_eq!(take(&mut records, 3, &[(6, 1), (7, 1), (8, 1)]), Some(3), "of another seventh");
        assert_eq!(take(&mut records, 3, &[(9, 1)]), Some(1));
        assert_eq!(take(&mut records, 3, &[(6, 2), (7, 2), (8, 2), (9, 2)]), Some(2), "8 and 9 count");
        assert_eq!(take(&mut records, 3, &[(9, 3)]), Some(0), "9 is replaced");
        assert_eq!(records.extent(), (9, 7));
        assert_eq!(take(&mut records, 8, &[(11, 3)]), None, "a gap");
        assert_eq!(take(&mut records, 8, &[(10, 3)]), Some(0));
        assert!(records.may_end());
    }

    #[test]
    fn what_was_replaced_may_have_a_gap_before_it_and_nothing_else() {
        let mut records = after(7, 2);
        assert_eq!(take(&mut records, 5, &[(10, 1), (11, 1)]), Some(2));
        assert!(!records.may_end(), "acknowledged, and the entries before are gone");
        assert_eq!(take(&mut records, 7, &[(12, 1)]), Some(1));
        assert_eq!(take(&mut records, 7, &[(8, 1)]), Some(1), "its predecessor was another one");
        assert!(!records.may_end());
        assert_eq!(take(&mut records, 7, &[(8, 2)]), Some(0));
        assert_eq!((records.extent(), records.may_end()), ((8, 7), true));
        // A base that is not the newest: what it needs is gone.
        let mut records = after(3, 1);
        assert_eq!(take(&mut records, 6, &[(7, 1)]), Some(1));
        assert_eq!(take(&mut records, 7, &[(8, 1)]), Some(1));
        assert!(!records.may_end());
        assert_eq!(take(&mut after(3, 1), 7, &[]), None, "agreed on, and not there");
    }
}
