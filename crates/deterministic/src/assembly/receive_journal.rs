//! The receive journal of a node that starts: what had come in from other nodes is read and executed again.

use std::vec;

use crate::sequencing::Opened as OpenedJournal;
use crate::sequencing::{Beginning, Counting, Exchange, JournalRecord};
use crate::shard::{self, ShardMessage};
use ordain_family::Replication;
use ordain_log::{LogConfig, Space, Unopened};
use ordain_model::{Epoch, Registry};
use ordain_replication::Index;
use ordain_role::{Bug, Directory};
use ordain_store::MemoryStore;

use super::{AssemblyError, Plan, RECEIVE_JOURNAL};

/// The messages that had come in from other nodes, to be taken again in the order in which they came.
#[derive(Default)]
pub(super) struct ReceiveJournal {
    journal: Option<Unopened>,
    identity: Vec<u8>,
    index: Option<Index>,
    counting: Option<Counting>,
    beginning: Beginning,
    journal_records: vec::IntoIter<JournalRecord<ShardMessage>>,
}

impl ReceiveJournal {
    /// Reads what came in, and changes nothing.
    pub(super) fn read(
        directory: &mut dyn Directory,
        settings: Plan<'_>,
        registry: &Registry,
        begun: Epoch,
    ) -> Result<ReceiveJournal, AssemblyError> {
        if !settings.has_peers() {
            return Ok(ReceiveJournal::default());
        }
        let (mut journal_records, mut index) = (Vec::new(), Index::new(settings.segment_bytes));
        let joins = settings.incarnation() > 0;
        let (mut counting, mut beginning) = (Counting::default(), Beginning::default());
        let space = Space::new(directory, RECEIVE_JOURNAL);
        // A node that is rebuilt discards its journal, and keeps its log or not.
        let expect_existing = settings.expect_log && settings.rebuilds == 0;
        // A journal that was begun with a checkpoint, or trimmed, lacks what came before.
        let begins_after = Epoch(u64::from(begun > Epoch(0)));
        let config = LogConfig { expect_existing, begins_after, ..settings.log_config() };
        let journal = Unopened::read(&space, config, |place, entry| {
            let read = Exchange::journal_records(registry, &entry.payload);
            let read = read.ok_or("it does not parse: another version wrote it, or it is damaged")?;
            index.note_entry(entry.epoch, place, entry.payload.len(), JournalRecord::last_epoch(&read));
            let and = if joins { Beginning::and_joined } else { Beginning::and };
            beginning = read.iter().fold(beginning, and);
            counting.note(entry.epoch, read, &mut journal_records);
            Ok(())
        });
        let journal = journal.map_err(AssemblyError::ReceiveJournal)?;
        let primaries_change = settings.replication() == Replication::Async;
        let counting = primaries_change.then(|| {
            if !settings.bugs.has(Bug::KeepUncertain) {
                counting.begin(journal.last_epoch().next(), settings.incarnation(), &mut journal_records);
            }
            counting
        });
        if journal.starts_after() > Epoch(0) {
            index.note_beginning(begun);
        }
        // A checkpoint covers what is trimmed, and nodes that have not begun make none, unless they have joined.
        if !joins && (begun > Epoch(0) || journal.starts_after() > Epoch(0)) {
            beginning = Beginning::Begun;
        }
        Ok(ReceiveJournal {
            journal: Some(journal),
            identity: settings.identity.clone(),
            index: Some(index),
            counting,
            beginning,
            journal_records: journal_records.into_iter(),
        })
    }

    /// The knowledge that the node has begun before.
    pub(super) fn beginning(&self) -> Beginning {
        self.beginning
    }

    /// Makes what was read the journal of the exchange, if there is one.
    pub(super) fn open(self, directory: &mut dyn Directory) -> Result<Option<OpenedJournal>, AssemblyError> {
        let ReceiveJournal { journal: Some(journal), identity, index: Some(index), counting, .. } = self
        else {
            return Ok(None);
        };
        let opened = journal.open(&mut Space::new(directory, RECEIVE_JOURNAL));
        let (writer, _) = opened.map_err(AssemblyError::ReceiveJournal)?;
        Ok(Some(OpenedJournal { writer, prefix: RECEIVE_JOURNAL, identity, index, counting }))
    }

    /// Replays the messages of epochs before one, so that little has to be kept for long before its place in the
    /// order.
    pub(super) fn replay_before(
        &mut self,
        epoch: Epoch,
        replay: &mut shard::Replay<'_, MemoryStore>,
    ) -> Result<(), String> {
        while let Some(next) = self.journal_records.as_slice().first() {
            if next.opens() >= epoch {
                return Ok(());
            }
            self.journal_records
                .next()
                .map_or(Ok(()), |journal_record| replay.journal_record(journal_record))?;
        }
        Ok(())
    }
}
