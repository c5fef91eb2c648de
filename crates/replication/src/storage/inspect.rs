//! The journal of a storage node as people look at it: for `ordain log`.

use ordain_log::{LogError, Memo};
use ordain_model::Epoch;
use ordain_role::Directory;

use super::configuration::StorageConfiguration;
use super::message::{Ballot, Content, Line, Written};
use super::replica::line_of;
use crate::journal::base::{Beginning, MEMO, Records};
use crate::journal::record;

/// The content of a record. Later records win.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageRecord {
    /// The generation of the storage node.
    pub generation: u64,
    /// The largest ballot that it has promised.
    pub promised: Ballot,
    /// The line up to which it knows all to be durable.
    pub durable: u64,
    /// Lines with their numbers; they take the place of those from the first one's number on.
    pub lines: Vec<(u64, Written)>,
}

impl StorageRecord {
    /// Reads a record; `None` if the bytes are none that a storage node writes.
    pub fn decode(bytes: &[u8]) -> Option<StorageRecord> {
        let (hard, entries) = record::decode(bytes)?;
        let lines =
            entries.iter().map(|entry| Some((entry.index, line_of(entry)?))).collect::<Option<_>>()?;
        let (generation, promised, durable) = (hard.vote, Ballot(hard.term), hard.commit);
        Some(StorageRecord { generation, promised, durable, lines })
    }
}

/// Follows the records of a storage node's journal, which may begin later than its region.
#[derive(Debug)]
pub struct StorageJournal {
    /// The last line that is gone, and the epoch of the last entry up to it.
    begins_after: (Line, Epoch),
    void: Epoch,
    records: Records,
    /// The generation and the promise, by the last record.
    pub generation: u64,
    /// The largest ballot that it has promised.
    pub promised: Ballot,
    /// The newest configuration, durable or not, and its line.
    pub configuration: (StorageConfiguration, u64),
}

impl StorageJournal {
    /// The journal in a directory.
    ///
    /// # Errors
    /// The memo with its beginning cannot be read.
    pub fn of(directory: &dyn Directory) -> Result<StorageJournal, LogError> {
        let beginning = Memo::read(directory, MEMO, None)?.and_then(|bytes| Beginning::of_memo(&bytes));
        let base = beginning.unwrap_or_default().base;
        let last = Line { ballot: Ballot(base.term), lsn: base.index };
        Ok(StorageJournal {
            begins_after: (last, base.epoch),
            void: base.void,
            records: Records::after(&base),
            generation: 0,
            promised: last.ballot,
            configuration: (StorageConfiguration::of_members(&base.members), base.index),
        })
    }

    /// The last line that is not there any more, because a checkpoint covers it, and the epoch of the last entry up to it.
    pub fn begins_after(&self) -> (Line, Epoch) {
        self.begins_after
    }

    /// The last line, and the last that is known to be durable.
    pub fn extent(&self) -> (u64, u64) {
        self.records.extent()
    }

    /// Takes the record with this number. Says how many of its first lines do not count; `None` if it cannot follow those
    /// before it.
    pub fn take(&mut self, number: Epoch, record: &StorageRecord) -> Option<usize> {
        self.generation = record.generation;
        self.promised = self.promised.max(record.promised);
        if number <= self.void {
            return Some(record.lines.len());
        }
        let places = record.lines.iter().map(|(lsn, line)| (*lsn, line.ballot.0));
        let skip = self.records.take(record.durable, places)?;
        for (lsn, line) in record.lines.iter().skip(skip) {
            if let Content::Configuration(configuration) = &line.content {
                self.configuration = (configuration.clone(), *lsn);
            }
        }
        Some(skip)
    }

    /// Tells whether the journal may end here.
    pub fn may_end(&self) -> bool {
        self.records.may_end() && self.generation > 0
    }
}

#[cfg(test)]
mod tests {
    use ordain_role::{Bytes, NodeId};
    use raft::eraftpb::HardState;

    use super::super::StorageMember;
    use super::super::replica::entry_of;
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let configuration = StorageConfiguration {
            counted: vec![StorageMember { node: NodeId(4), generation: 7 }],
            required: vec![NodeId(4)],
            ..StorageConfiguration::default()
        };
        let contents = [
            Content::Configuration(configuration.clone()),
            Content::Begin,
            Content::Entry(Bytes::from_static(b"e")),
        ];
        let lines: Vec<(u64, Written)> =
            (1..).zip(contents.map(|content| Written { ballot: Ballot(64), content })).collect();
        let entries: Vec<_> = lines.iter().map(|(lsn, line)| entry_of(*lsn, line)).collect();
        let hard = HardState { term: 65, vote: 7, commit: 1, ..HardState::default() };
        let write = |entries: &[_]| -> Vec<u8> {
            record::encode(&hard, entries).iter().flat_map(|part| part.to_vec()).collect()
        };
        let read = StorageRecord::decode(&write(&entries)).unwrap();
        assert_eq!(read, StorageRecord { generation: 7, promised: Ballot(65), durable: 1, lines });
        let mut journal = StorageJournal::of(&ordain_log::MemoryDirectory::new()).unwrap();
        assert!(!journal.may_end(), "nothing says in which generation it is");
        assert_eq!(journal.take(Epoch(1), &read), Some(0));
        assert_eq!((journal.extent(), journal.may_end()), ((3, 1), true));
        assert_eq!((journal.generation, journal.promised), (7, Ballot(65)));
        assert_eq!(journal.configuration, (configuration, 1));
        assert_eq!(journal.take(Epoch(2), &read), None, "what is durable is not replaced");
        // A configuration that cannot be read.
        let mut odd = entries[0].clone();
        odd.data = Bytes::from_static(&[0xff; 9]);
        assert_eq!(StorageRecord::decode(&write(&[odd])), None);
    }
}
