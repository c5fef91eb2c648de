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
use ordain_model::wire::{self, Reader};
use ordain_model::{Epoch, Registry};
use ordain_replication::{self as replication, CatchUps, Index, Piece};
use ordain_role::{Bytes, DiskDone, NodeId, Outbox, Wire as _};

use crate::sequencing::message::{ExchangeMessage, Message, RemoteResult};

/// A record of the receive journal.
#[derive(Clone, Debug)]
pub enum JournalRecord<X> {
    /// From another node.
    Message(NodeId, ExchangeMessage<X>),
    /// How far another node was.
    Progress(NodeId, Epoch),
    /// Everything of this epoch or before is stable.
    Stable(Epoch),
    /// This node has come in this incarnation: of what stands before, only that counts which is of this epoch or before.
    Incarnation(u64, Epoch),
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

    /// Once everything up to this epoch is executed, it is done with.
    fn epoch(&self) -> Epoch {
        match self {
            JournalRecord::Message(_, ExchangeMessage::RemoteResult { remote_result, .. }) => {
                remote_result.epoch()
            }
            // Whoever goes on from there needs to know.
            JournalRecord::Stable(epoch) => *epoch,
            other => other.opens(),
        }
    }

    /// Whether it still counts when only what is of this epoch or before does. How far other nodes are they say themselves, and
    /// never more than that.
    fn outlasts(&self, stable: Epoch) -> bool {
        self.epoch() <= stable
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let me = NodeId(0);
        match self {
            JournalRecord::Message(from, post) => encode_post(*from, post, out),
            JournalRecord::Progress(node, epoch) => encode_mark(PROGRESS, *node, &[epoch.0], out),
            JournalRecord::Stable(epoch) => encode_mark(STABLE, me, &[epoch.0], out),
            JournalRecord::Incarnation(number, stable) => {
                encode_mark(INCARNATION, me, &[*number, stable.0], out)
            }
        }
    }

    /// Reads an entry of a journal: what came in, in order.
    pub(super) fn read(registry: &Registry, entry: &[u8]) -> Option<Vec<JournalRecord<X>>> {
        let mut bytes = Reader(entry);
        let mut journal_records = Vec::new();
        while !bytes.is_empty() {
            let (kind, node) = (bytes.u8()?, NodeId(bytes.u16()?));
            journal_records.push(match kind {
                POST => JournalRecord::Message(node, ExchangeMessage::decode(registry, bytes.bytes()?)?),
                PROGRESS => JournalRecord::Progress(node, Epoch(bytes.u64()?)),
                STABLE => JournalRecord::Stable(Epoch(bytes.u64()?)),
                INCARNATION => JournalRecord::Incarnation(bytes.u64()?, Epoch(bytes.u64()?)),
                _ => return None,
            });
        }
        Some(journal_records)
    }
}

const POST: u8 = 0;
const PROGRESS: u8 = 1;
const STABLE: u8 = 2;
const INCARNATION: u8 = 3;

fn encode_mark(kind: u8, node: NodeId, numbers: &[u64], out: &mut Vec<u8>) {
    wire::u8(out, kind);
    wire::u16(out, node.0);
    numbers.iter().for_each(|number| wire::u64(out, *number));
}

fn encode_post<X: RemoteResult>(from: NodeId, post: &ExchangeMessage<X>, out: &mut Vec<u8>) {
    encode_mark(POST, from, &[], out);
    let at = out.len();
    wire::u32(out, 0);
    post.encode(out);
    let len = (out.len() - at - 4) as u32;
    out[at..at + 4].copy_from_slice(&len.to_le_bytes());
}

/// Which entries of a journal count, as far as it has been read.
#[derive(Clone, Debug, Default)]
pub struct Counting {
    stable: Epoch,
    incarnation: u64,
    /// Of the entries before the one with this number only that counts which is of this epoch or before. Ascending.
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
                JournalRecord::Message(..) | JournalRecord::Progress(..) => {}
            }
            all.push(journal_record);
        }
    }

    fn limit<X: RemoteResult>(&mut self, number: Epoch, stable: Epoch, all: &mut Vec<JournalRecord<X>>) {
        self.limits.push((number, stable));
        all.retain(|journal_record| journal_record.outlasts(stable));
    }

    /// All is read, and the next entry will have this number. A node in a later incarnation than before keeps what is stable.
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

    /// Up to which epoch what an entry holds counts.
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
    /// Whose it is.
    pub identity: Vec<u8>,
    /// Where things are in it.
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
    /// Progress at that time, which may be told once it is durable.
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
            encode_mark(INCARNATION, NodeId(0), &[*incarnation, stable.0], &mut pending);
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
    pub fn note_message<X: RemoteResult>(&mut self, from: NodeId, post: &ExchangeMessage<X>) {
        encode_post(from, post, &mut self.pending);
        let epoch = match post {
            ExchangeMessage::Slot { through, .. } => *through,
            ExchangeMessage::RemoteResult { remote_result, .. } => remote_result.epoch(),
            _ => Epoch(0),
        };
        self.largest = self.largest.max(epoch);
    }

    /// Takes down how far a node is.
    pub fn note_progress(&mut self, node: NodeId, epoch: Epoch) {
        encode_mark(PROGRESS, node, &[epoch.0], &mut self.pending);
    }

    /// Makes an entry of what waits. Progress at this time may be told once it is durable; where primaries may change, so much of
    /// it as is stable.
    pub fn append(&mut self, progress: Epoch) -> Result<(), AppendError> {
        if let Some(counting) = self.counting.as_mut().filter(|counting| progress > counting.stable) {
            counting.stable = progress;
            self.largest = self.largest.max(progress);
            encode_mark(STABLE, NodeId(0), &[progress.0], &mut self.pending);
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
        Ok(self.go_on(member, terms, out)?.map(|post| (member, post)))
    }

    /// Lets go what has nothing to do with epochs beyond this one, but not what a member is being given that is not more than
    /// so many bytes behind. Says who is told that it is too late, and what.
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

    /// Whether an answer of the disk is to a request that reads.
    pub fn is_read(done: &DiskDone) -> bool {
        replication::is_read(done)
    }

    /// A member does not read any more.
    pub fn leave(&mut self, member: NodeId) {
        self.readers.leave(member);
    }
}
