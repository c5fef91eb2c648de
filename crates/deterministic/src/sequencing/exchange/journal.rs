//! The receive journal: what comes into a node from outside its partition, on disk.
//!
//! From it the node executes again by itself, and a member that has lost its own catches up.
//!
//! Where primaries may change, some of it may not count in the end. The journal says up to which epoch it is stable
//! ([`JournalRecord::Stable`]), always before others are told that this node needs nothing more up to there. A node that has
//! to be rebuilt keeps what is stable and says so behind it ([`JournalRecord::Incarnation`]): what stands before and is not
//! stable does not count any more, and its sender still keeps it.

use std::collections::VecDeque;
use std::sync::Arc;

use ordain_log::{AppendError, LogWriter, in_space};
use ordain_model::wire::{Codec, Form, Framed, Reader};
use ordain_model::{Epoch, Registry, codec};
use ordain_replication::{self as replication, CatchUps, Index, Piece};
use ordain_role::{Bytes, DiskDone, NodeId, Outbox};

use crate::sequencing::message::{ExchangeMessage, Message, RemoteResult};

/// A record of the receive journal.
#[derive(Clone, Debug)]
pub enum JournalRecord<X> {
    /// A message from another node.
    Message(NodeId, ExchangeMessage<X>),
    /// The progress of another node.
    Progress(NodeId, Epoch),
    /// The epoch up to which everything is stable.
    Stable(Epoch),
    /// A new incarnation of this node: of what stands before, only what is of this epoch or before counts.
    Incarnation(u64, Epoch),
    /// The node has met its peers for the first time, and none had begun.
    Ready,
    /// The node has begun with its peers.
    Begun,
}

impl<X: RemoteResult> JournalRecord<X> {
    /// The epoch that it opens, if it is a batch.
    pub fn opens(&self) -> Epoch {
        match self {
            JournalRecord::Message(_, ExchangeMessage::Slot { through, .. }) => *through,
            _ => Epoch(0),
        }
    }

    /// The largest epoch of what an entry holds: once everything up to there is executed, the entry is done with.
    pub fn last_epoch(journal_records: &[JournalRecord<X>]) -> Epoch {
        journal_records.iter().map(JournalRecord::epoch).max().unwrap_or_default()
    }

    /// The epoch with whose execution the record is done with.
    fn epoch(&self) -> Epoch {
        match self {
            JournalRecord::Message(_, ExchangeMessage::RemoteResult { remote_result, .. }) => {
                remote_result.epoch()
            }
            // A start from there on needs the mark.
            JournalRecord::Stable(epoch) => *epoch,
            other => other.opens(),
        }
    }

    /// Tells whether the record still counts when only what is of this epoch or before does. Records of other nodes'
    /// progress always do: the nodes report it themselves, and never more than that.
    fn outlasts(&self, stable: Epoch) -> bool {
        self.epoch() <= stable
    }

    /// Reads an entry of a journal: what came in, in order.
    pub(super) fn read(registry: &Registry, entry: &[u8]) -> Option<Vec<JournalRecord<X>>> {
        let mut bytes = Reader::of(registry, entry);
        let mut journal_records = Vec::new();
        while !bytes.is_empty() {
            journal_records.push(JournalRecord::decode(&mut bytes)?);
        }
        Some(journal_records)
    }
}

codec!(enum JournalRecord<X> {
    0 => Message(node, message as Framed),
    1 => Progress(node, epoch),
    2 => Stable(epoch as OfNoNode),
    3 => Incarnation(number as OfNoNode, stable),
    4 => Ready,
    5 => Begun,
});

/// The form of what stands behind the number of a node in other records: 0 is in its place.
enum OfNoNode {}

impl<T: Codec> Form<T> for OfNoNode {
    const LEAST: usize = 2 + T::LEAST;

    fn encode(value: &T, out: &mut Vec<u8>) {
        NodeId(0).encode(out);
        value.encode(out);
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<T> {
        NodeId::decode(bytes)?;
        T::decode(bytes)
    }
}

/// Which entries of a journal count, as far as it has been read.
#[derive(Clone, Debug, Default)]
pub struct Counting {
    stable: Epoch,
    incarnation: u64,
    /// Number and epoch: of the entries before the number only what is of the epoch or before counts. Ascending.
    limits: Vec<(Epoch, Epoch)>,
}

impl Counting {
    /// Takes note of the next entry: with it come these, of which some may not count, nor of those that came before.
    pub fn note<X: RemoteResult>(
        &mut self,
        number: Epoch,
        entry: Vec<JournalRecord<X>>,
        all: &mut Vec<JournalRecord<X>>,
    ) {
        for journal_record in entry {
            match journal_record {
                JournalRecord::Stable(epoch) => self.stable = self.stable.max(epoch),
                JournalRecord::Incarnation(incarnation, stable) => {
                    self.incarnation = incarnation;
                    self.limit(number, stable, all);
                }
                JournalRecord::Message(..)
                | JournalRecord::Progress(..)
                | JournalRecord::Ready
                | JournalRecord::Begun => {}
            }
            all.push(journal_record);
        }
    }

    fn limit<X: RemoteResult>(&mut self, number: Epoch, stable: Epoch, all: &mut Vec<JournalRecord<X>>) {
        self.limits.push((number, stable));
        all.retain(|journal_record| journal_record.outlasts(stable));
    }

    /// Ends the reading; the next entry will have this number. A node in a later incarnation than before keeps what is
    /// stable.
    pub fn begin<X: RemoteResult>(
        &mut self,
        number: Epoch,
        incarnation: u64,
        all: &mut Vec<JournalRecord<X>>,
    ) {
        if incarnation > self.incarnation {
            self.incarnation = incarnation;
            self.limit(number, self.stable, all);
        }
    }

    /// The epoch up to which the content of an entry counts, if there is a limit.
    fn limit_of(&self, number: Epoch) -> Option<Epoch> {
        let later = self.limits.iter().filter(|(before, _)| *before > number);
        later.map(|(_, stable)| *stable).min()
    }
}

/// A journal as it is handed to the exchange of a node that begins to run.
#[derive(Debug)]
pub struct Opened {
    /// The writer.
    pub writer: LogWriter,
    /// The beginning of the names of its files.
    pub prefix: &'static str,
    /// The owner of the journal.
    pub identity: Vec<u8>,
    /// The index of its entries.
    pub index: Index,
    /// The records that count, where primaries may change.
    pub counting: Option<Counting>,
}

/// The received messages.
#[derive(Debug)]
pub(super) struct Journal {
    pub writer: LogWriter,
    prefix: &'static str,
    /// The bytes that wait to be written, and the number of the entry that they will be.
    pub pending: Vec<u8>,
    next: Epoch,
    /// The largest epoch of anything that was written down.
    largest: Epoch,
    /// The entries that were appended and are not durable.
    marks: VecDeque<Mark>,
    /// Progress that everything durable allows for.
    pub durable: Epoch,
    index: Index,
    /// Members that read it.
    readers: CatchUps<NodeId>,
    counting: Option<Counting>,
}

/// An entry that was appended.
#[derive(Debug)]
struct Mark {
    number: Epoch,
    /// The progress at that time, which may be reported once the entry is durable.
    progress: Epoch,
    largest: Epoch,
    bytes: usize,
}

impl Journal {
    /// A journal in which everything is that progress so far has come from.
    pub fn new(opened: Opened, progress: Epoch) -> Journal {
        let Opened { writer, prefix, identity, mut index, counting } = opened;
        let next = writer.appended().next();
        index.reach(next, writer.place());
        let mut pending = Vec::new();
        if let Some(Counting { incarnation, limits, .. }) = &counting
            && let Some((_, stable)) = limits.last().filter(|(number, _)| *number == next)
        {
            // Ahead of all that comes in now.
            JournalRecord::<()>::Incarnation(*incarnation, *stable).encode(&mut pending);
        }
        Journal {
            next,
            writer,
            prefix,
            pending,
            counting,
            largest: index.largest(),
            marks: VecDeque::new(),
            durable: progress,
            index,
            readers: CatchUps::new(prefix, identity),
        }
    }

    /// Takes down what a node has sent.
    pub fn note_message<X: RemoteResult>(&mut self, from: NodeId, message: &ExchangeMessage<X>) {
        JournalRecord::Message(from, message.clone()).encode(&mut self.pending);
        let epoch = match message {
            ExchangeMessage::Slot { through, .. } => *through,
            ExchangeMessage::RemoteResult { remote_result, .. } => remote_result.epoch(),
            _ => Epoch(0),
        };
        self.largest = self.largest.max(epoch);
    }

    /// Takes down how far the node is in its beginning.
    pub fn note_beginning<X: RemoteResult>(&mut self, journal_record: &JournalRecord<X>) {
        journal_record.encode(&mut self.pending);
    }

    /// The number of the last entry that was appended.
    pub fn appended(&self) -> Epoch {
        self.writer.appended()
    }

    /// Takes down how far a node is.
    pub fn note_progress(&mut self, node: NodeId, epoch: Epoch) {
        JournalRecord::<()>::Progress(node, epoch).encode(&mut self.pending);
    }

    /// Makes an entry of the waiting records. The progress at this time may be reported once it is durable; where
    /// primaries may change, the stable part of it.
    pub fn append(&mut self, progress: Epoch) -> Result<(), AppendError> {
        if let Some(counting) = self.counting.as_mut().filter(|counting| progress > counting.stable) {
            counting.stable = progress;
            self.largest = self.largest.max(progress);
            JournalRecord::<()>::Stable(progress).encode(&mut self.pending);
        }
        if !self.pending.is_empty() {
            let entry = std::mem::take(&mut self.pending);
            let (number, bytes, largest) = (self.next, entry.len(), self.largest);
            self.writer.append(number, 0, vec![Bytes::from(entry)])?;
            self.marks.push_back(Mark { number, progress, largest, bytes });
            self.next = number.next();
        } else if self.marks.is_empty() {
            self.durable = self.durable.max(progress);
        }
        Ok(())
    }

    /// Asks the disk for whatever is next to be written.
    pub fn ask<X>(&mut self, out: &mut Outbox<Message<X>>) {
        while let Some(request) = self.writer.next_request() {
            out.disk(in_space(request, self.prefix));
        }
    }

    /// More may be durable.
    pub fn done(&mut self) {
        while let Some(mark) = self.marks.pop_front_if(|mark| mark.number <= self.writer.durable()) {
            self.durable = self.durable.max(mark.progress);
            self.index.grow(mark.bytes, mark.largest);
        }
        // Behind all of them.
        self.index.reach(self.writer.durable().next(), self.writer.place());
    }

    // ---- read again, for a member --------------------------------------------------------------------------

    /// A member wants the entries from a number on, and has no use for anything up to an epoch. What it is given, if that
    /// is not to be read first.
    pub fn read<X: RemoteResult>(
        &mut self,
        member: NodeId,
        (from, after): (Epoch, Epoch),
        (registry, most): (&Registry, usize),
        out: &mut Outbox<Message<X>>,
    ) -> Result<Option<ExchangeMessage<X>>, String> {
        match self.readers.ask(member, &self.index, (from, after)) {
            Some(()) => self.go_on(member, (registry, most), out),
            None => Ok(Some(ExchangeMessage::Trimmed(self.index.begins_after()))),
        }
    }

    /// Gives a member what was read, or reads more.
    fn go_on<X: RemoteResult>(
        &mut self,
        member: NodeId,
        (registry, most): (&Registry, usize),
        out: &mut Outbox<Message<X>>,
    ) -> Result<Option<ExchangeMessage<X>>, String> {
        let durable = self.writer.durable();
        let piece = self.readers.next_piece(member, most, durable, out);
        let Some(Piece { asked, next, entries }) = piece else { return Ok(None) };
        let covers = (next > durable).then_some(self.durable);
        covers.iter().for_each(|_| self.readers.leave(member));
        let mut journal_records = Vec::new();
        for (number, entry) in entries {
            match self.counting.as_ref().and_then(|counting| counting.limit_of(number)) {
                None => journal_records.extend(entry),
                Some(stable) => {
                    let entry =
                        JournalRecord::<X>::read(registry, &entry).ok_or("an entry does not parse")?;
                    let counts = entry.iter().filter(|journal_record| journal_record.outlasts(stable));
                    counts.for_each(|journal_record| journal_record.encode(&mut journal_records));
                }
            }
        }
        Ok(Some(ExchangeMessage::Fetched {
            from: asked,
            next,
            covers,
            journal_records: Arc::new(journal_records),
        }))
    }

    /// Takes what the disk has read, if the answer is to that; and gives the member for which it was what it gets.
    pub fn was_read<X: RemoteResult>(
        &mut self,
        done: &DiskDone,
        terms: (&Registry, usize),
        out: &mut Outbox<Message<X>>,
    ) -> Result<Option<(NodeId, ExchangeMessage<X>)>, String> {
        let Some(member) = self.readers.was_read(done, Epoch(u64::MAX))? else { return Ok(None) };
        Ok(self.go_on(member, terms, out)?.map(|message| (member, message)))
    }

    /// Trims the entries that have nothing to do with epochs beyond this one, but none that a member is being given
    /// and is at most so many bytes behind. Answers the members that are too late, and the messages for them.
    pub fn trim<X>(&mut self, through: Epoch, most: usize) -> Vec<(NodeId, ExchangeMessage<X>)> {
        let is_near = |next: &Epoch| self.index.bytes_from(*next) <= most;
        let spared = self.readers.least().filter(is_near).unwrap_or(self.next);
        let Some(kept) = self.index.covered_by(through.min(self.durable), spared) else { return Vec::new() };
        self.writer.truncate_before(kept.0);
        self.counting.iter_mut().for_each(|counting| counting.limits.retain(|(number, _)| *number > kept.0));
        let begins = self.writer.begins();
        self.index.trim(begins, kept);
        self.readers.trim(begins);
        let through = self.index.begins_after();
        self.readers.late().into_iter().map(|member| (member, ExchangeMessage::Trimmed(through))).collect()
    }

    /// Tells whether an answer of the disk is to a request that reads.
    pub fn is_read(done: &DiskDone) -> bool {
        replication::is_read(done)
    }

    /// A member does not read any more.
    pub fn leave(&mut self, member: NodeId) {
        self.readers.leave(member);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_the_bytes_that_they_always_had() {
        let records = [
            JournalRecord::<()>::Message(NodeId(3), ExchangeMessage::Progress(Epoch(9))),
            JournalRecord::Progress(NodeId(4), Epoch(5)),
            JournalRecord::Stable(Epoch(6)),
            JournalRecord::Incarnation(7, Epoch(8)),
            JournalRecord::Ready,
            JournalRecord::Begun,
        ];
        let mut bytes = Vec::new();
        records.iter().for_each(|record| record.encode(&mut bytes));
        let expected = [
            &[0, 3, 0, 9, 0, 0, 0, 1, 9, 0, 0, 0, 0, 0, 0, 0][..],
            &[1, 4, 0, 5, 0, 0, 0, 0, 0, 0, 0],
            &[2, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0],
            &[3, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0],
            &[4],
            &[5],
        ];
        assert_eq!(bytes, expected.concat());
        let mut reader = Reader::new(&bytes);
        for record in records {
            let read = JournalRecord::<()>::decode(&mut reader).map(|read| format!("{read:?}"));
            assert_eq!(read, Some(format!("{record:?}")));
        }
        assert!(reader.is_empty());
    }
}
