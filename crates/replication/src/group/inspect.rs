//! A record of a group's journal as people look at it: for `ordain log`.

use ordain_log::{LogError, Memo};
use ordain_model::Epoch;
use ordain_role::{Directory, NodeId};
use raft::eraftpb::{ConfChangeType, Entry};

use super::membership::{Member, parse_change};
use crate::journal::base::{Base, Beginning, MEMO, Records};
use crate::journal::record;
use crate::journal::store::is_change;

/// The content of a record. Later records win.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRecord {
    /// The latest term that the member knows of.
    pub term: u64,
    /// The member, node and generation, for which it has voted in the term.
    pub vote: Option<(NodeId, u32)>,
    /// The entry up to which it knows the log to be agreed on.
    pub commit: u64,
    /// Entries; they take the place of those from the first one's index on.
    pub entries: Vec<GroupEntry>,
}

/// An entry of a group's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupEntry {
    /// The entry's place in the log.
    pub index: u64,
    /// The term of the leader that has proposed it.
    pub term: u64,
    /// The content.
    pub content: GroupContent,
}

/// The content of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupContent {
    /// Nothing: with it a leader begins its term.
    Beginning,
    /// An entry of the log, as its entry type writes it.
    Entry(Vec<u8>),
    /// A change of the membership.
    Change {
        /// The member's new standing.
        becomes: Standing,
        /// The member's node.
        node: NodeId,
        /// The member's generation.
        generation: u32,
    },
}

/// The standing of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The member votes.
    Voter,
    /// The member receives entries, and does not count.
    Learner,
    /// The node is no member any more.
    Removed,
}

impl Standing {
    /// The name of the kind.
    pub const fn name(self) -> &'static str {
        match self {
            Standing::Voter => "voter",
            Standing::Learner => "learner",
            Standing::Removed => "removed",
        }
    }
}

impl GroupRecord {
    /// Reads a record; `None` if the bytes are none that a member writes.
    pub fn decode(bytes: &[u8]) -> Option<GroupRecord> {
        let (hard, entries) = record::decode(bytes)?;
        let vote = match hard.vote {
            0 => None,
            id => Some(Member::of(id).map(|member| (member.node, member.generation))?),
        };
        let entries = entries.into_iter().map(entry).collect::<Option<_>>()?;
        Some(GroupRecord { term: hard.term, vote, commit: hard.commit, entries })
    }
}

/// Follows the records of a member's journal, which may begin later than the group.
#[derive(Debug)]
pub struct GroupJournal {
    base: Base,
    records: Records,
}

impl GroupJournal {
    /// Tells whether a directory's log is a member's journal, without reading it.
    ///
    /// # Errors
    /// The disk's.
    pub fn is_in(directory: &dyn Directory) -> Result<bool, LogError> {
        Ok(directory.list()?.iter().any(|(file, _)| file == MEMO))
    }

    /// The journal in a directory.
    ///
    /// # Errors
    /// The memo with its beginning cannot be read.
    pub fn of(directory: &dyn Directory) -> Result<GroupJournal, LogError> {
        let beginning = Memo::read(directory, MEMO, None)?.and_then(|bytes| Beginning::of_memo(&bytes));
        let base = beginning.unwrap_or_default().base;
        Ok(GroupJournal { records: Records::after(&base), base })
    }

    /// Index and epoch of the last entry that is not there any more, because a checkpoint covers it; 0 if all are.
    pub fn begins_after(&self) -> (u64, Epoch) {
        (self.base.index, self.base.epoch)
    }

    /// The number of entries, and of those that are known to be agreed on.
    pub fn extent(&self) -> (u64, u64) {
        self.records.extent()
    }

    /// Takes the record with this number. Says how many of its first entries do not count; `None` if it cannot follow those
    /// before it.
    pub fn take(&mut self, number: Epoch, record: &GroupRecord) -> Option<usize> {
        if number <= self.base.void {
            return Some(record.entries.len());
        }
        self.records.take(record.commit, record.entries.iter().map(|entry| (entry.index, entry.term)))
    }

    /// Tells whether the journal may end here.
    pub fn may_end(&self) -> bool {
        self.records.may_end()
    }
}

fn entry(entry: Entry) -> Option<GroupEntry> {
    let content = if is_change(&entry) {
        let change = parse_change(&entry.data).ok()?;
        let Member { node, generation } = Member::of(change.node_id)?;
        let becomes = match change.change_type {
            ConfChangeType::AddNode => Standing::Voter,
            ConfChangeType::AddLearnerNode => Standing::Learner,
            ConfChangeType::RemoveNode => Standing::Removed,
        };
        GroupContent::Change { becomes, node, generation }
    } else if entry.data.is_empty() {
        GroupContent::Beginning
    } else {
        GroupContent::Entry(entry.data.to_vec())
    };
    Some(GroupEntry { index: entry.index, term: entry.term, content })
}

#[cfg(test)]
mod tests {
    use protobuf::Message as _;
    use raft::eraftpb::{ConfChange, EntryType, HardState};

    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let newcomer = Member { node: NodeId(4), generation: 7 };
        let change = ConfChange {
            change_type: ConfChangeType::AddLearnerNode,
            node_id: newcomer.id(),
            ..ConfChange::default()
        };
        let entry = |index, data: Vec<u8>| Entry { index, term: 2, data: data.into(), ..Entry::default() };
        let mut third = entry(7, change.write_to_bytes().unwrap());
        third.entry_type = EntryType::EntryConfChange;
        let vote = Member { node: NodeId(1), generation: 0 }.id();
        let hard = HardState { term: 3, vote, commit: 4, ..HardState::default() };
        let write = |hard: &HardState, entries: &[Entry]| -> Vec<u8> {
            record::encode(hard, entries).iter().flat_map(|part| part.to_vec()).collect()
        };
        let entries = [entry(5, vec![]), entry(6, vec![1, 2]), third];
        let read = GroupRecord::decode(&write(&hard, &entries)).unwrap();
        assert_eq!((read.term, read.vote, read.commit), (3, Some((NodeId(1), 0)), 4));
        let contents: Vec<GroupContent> = read.entries.into_iter().map(|entry| entry.content).collect();
        let joins = GroupContent::Change { becomes: Standing::Learner, node: NodeId(4), generation: 7 };
        assert_eq!(contents, [GroupContent::Beginning, GroupContent::Entry(vec![1, 2]), joins]);
        // A change that cannot be read, and a vote for nobody who could be.
        let mut odd = entry(5, vec![0xff; 9]);
        odd.entry_type = EntryType::EntryConfChange;
        assert_eq!(GroupRecord::decode(&write(&hard, &[odd])), None);
        let hard = HardState { vote: 1 << 20, ..hard };
        assert_eq!(GroupRecord::decode(&write(&hard, &[])), None);
    }
}
