//! What comes into a node from outside its partition, written down: so that the node can execute again by itself, and so
//! that a twin which has lost its own can.

use std::collections::VecDeque;
use std::sync::Arc;

use ordain_log::{AppendError, LogWriter, Place, in_space};
use ordain_model::wire::{self, Reader};
use ordain_model::{Epoch, Registry};
use ordain_role::{Bytes, DiskDone, NodeId, Outbox, Wire as _};

use crate::message::{Letter, Message, Post};
use crate::reading::{self, Piece, Readers};

pub use crate::reading::Index;

/// What comes into a node from outside its partition, as the journal has kept it.
#[derive(Clone, Debug)]
pub enum Entrance<X> {
    /// From another node.
    Post(NodeId, Post<X>),
    /// How far another node was.
    Progress(NodeId, Epoch),
}

impl<X: Letter> Entrance<X> {
    /// The epoch that it opens, if it is a batch.
    pub fn opens(&self) -> Epoch {
        match self {
            Entrance::Post(_, Post::Slot { through, .. }) => *through,
            _ => Epoch(0),
        }
    }

    /// Once everything up to this epoch is executed, it is done with.
    fn epoch(&self) -> Epoch {
        match self {
            Entrance::Post(_, Post::Letter { letter, .. }) => letter.epoch(),
            other => other.opens(),
        }
    }

    /// Reads an entry of a journal: what came in, in order.
    pub(super) fn read(registry: &Registry, entry: &[u8]) -> Option<Vec<Entrance<X>>> {
        let mut bytes = Reader(entry);
        let mut entrances = Vec::new();
        while !bytes.is_empty() {
            let (kind, node) = (bytes.u8()?, NodeId(bytes.u16()?));
            entrances.push(match kind {
                0 => Entrance::Post(node, Post::decode(registry, bytes.bytes()?)?),
                1 => Entrance::Progress(node, Epoch(bytes.u64()?)),
                _ => return None,
            });
        }
        Some(entrances)
    }
}

impl Index {
    /// The entry with this number begins here or behind; it has so many bytes and holds these.
    pub fn note<X: Letter>(&mut self, number: Epoch, place: Place, bytes: usize, entrances: &[Entrance<X>]) {
        let largest = entrances.iter().map(Entrance::epoch).max().unwrap_or_default();
        self.note_entry(number, place, bytes, largest);
    }
}

/// A journal as it is handed to the courier of a node that begins to run.
#[derive(Debug)]
pub struct Opened {
    /// What writes it.
    pub writer: LogWriter,
    /// What the names of its files begin with.
    pub prefix: &'static str,
    /// Whose it is.
    pub identity: Vec<u8>,
    /// Where things are in it.
    pub index: Index,
}

/// What has come in.
#[derive(Debug)]
pub(super) struct Journal {
    pub writer: LogWriter,
    prefix: &'static str,
    /// What waits to be written, and the number of the entry that it will be.
    pub pending: Vec<u8>,
    next: Epoch,
    /// The largest epoch of anything that was written down.
    largest: Epoch,
    /// What was appended and is not durable.
    marks: VecDeque<Mark>,
    /// Progress that everything durable allows for.
    pub durable: Epoch,
    index: Index,
    /// Twins that read it.
    readers: Readers<NodeId>,
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
        let Opened { writer, prefix, identity, mut index } = opened;
        index.reach(writer.appended().next(), writer.place());
        Journal {
            next: writer.appended().next(),
            writer,
            prefix,
            pending: Vec::new(),
            largest: index.largest(),
            marks: VecDeque::new(),
            durable: progress,
            index,
            readers: Readers::new(prefix, identity),
        }
    }

    /// Takes down what a node has sent.
    pub fn note_post<X: Letter>(&mut self, from: NodeId, post: &Post<X>) {
        let out = &mut self.pending;
        wire::u8(out, 0);
        wire::u16(out, from.0);
        let at = out.len();
        wire::u32(out, 0);
        post.encode(out);
        let len = (out.len() - at - 4) as u32;
        out[at..at + 4].copy_from_slice(&len.to_le_bytes());
        let epoch = match post {
            Post::Slot { through, .. } => *through,
            Post::Letter { letter, .. } => letter.epoch(),
            _ => Epoch(0),
        };
        self.largest = self.largest.max(epoch);
    }

    /// Takes down how far a node is.
    pub fn note_progress(&mut self, node: NodeId, epoch: Epoch) {
        wire::u8(&mut self.pending, 1);
        wire::u16(&mut self.pending, node.0);
        wire::u64(&mut self.pending, epoch.0);
    }

    /// Makes an entry of what waits. Progress at this time may be told once it is durable.
    pub fn append(&mut self, progress: Epoch) -> Result<(), AppendError> {
        if !self.pending.is_empty() {
            let entry = std::mem::take(&mut self.pending);
            let (number, bytes, largest) = (self.next, entry.len(), self.largest);
            self.writer.append(number, 0, vec![Bytes::Owned(entry)])?;
            self.marks.push_back(Mark { number, progress, largest, bytes });
            self.next = number.next();
        } else if self.marks.is_empty() {
            self.durable = self.durable.max(progress);
        }
        Ok(())
    }

    /// Asks the disk for whatever is next to be written.
    pub fn ask<X>(&mut self, out: &mut Outbox<Message<X>>) {
        if let Some(request) = self.writer.next_request() {
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

    // ---- read again, for a twin --------------------------------------------------------------------------

    /// A twin wants the entries from a number on, and has no use for anything up to an epoch. What it is given, if that
    /// is not to be read first.
    pub fn read<X: Letter>(
        &mut self,
        twin: NodeId,
        (from, after): (Epoch, Epoch),
        most: usize,
        out: &mut Outbox<Message<X>>,
    ) -> Option<Post<X>> {
        match self.readers.ask(twin, &self.index, (from, after)) {
            Some(()) => self.go_on(twin, most, out),
            None => Some(Post::Trimmed(self.index.begins_after())),
        }
    }

    /// Gives a twin what was read, or reads more.
    fn go_on<X: Letter>(
        &mut self,
        twin: NodeId,
        most: usize,
        out: &mut Outbox<Message<X>>,
    ) -> Option<Post<X>> {
        let durable = self.writer.durable();
        let Piece { asked, next, entries } = self.readers.next_piece(twin, most, durable, out)?;
        let covers = (next > durable).then_some(self.durable);
        covers.iter().for_each(|_| self.readers.leave(twin));
        let entries: Vec<Vec<u8>> = entries.into_iter().map(|(_, entry)| entry).collect();
        Some(Post::Fetched { from: asked, next, covers, entrances: Arc::new(entries.concat()) })
    }

    /// Takes what the disk has read, if the answer is to that; and gives the twin for which it was what it gets.
    pub fn was_read<X: Letter>(
        &mut self,
        done: &DiskDone,
        most: usize,
        out: &mut Outbox<Message<X>>,
    ) -> Result<Option<(NodeId, Post<X>)>, String> {
        let Some(twin) = self.readers.was_read(done, Epoch(u64::MAX))? else { return Ok(None) };
        Ok(self.go_on(twin, most, out).map(|post| (twin, post)))
    }

    /// Lets go what has nothing to do with epochs beyond this one, but not what a twin is being given that is not more than
    /// so many bytes behind. Says who is told that it is too late, and what.
    pub fn trim<X>(&mut self, through: Epoch, most: usize) -> Vec<(NodeId, Post<X>)> {
        let is_near = |next: &Epoch| self.index.bytes_from(*next) <= most;
        let spared = self.readers.least().filter(is_near).unwrap_or(self.next);
        let Some(kept) = self.index.covered_by(through.min(self.durable), spared) else { return Vec::new() };
        self.writer.truncate_before(kept.0);
        let begins = self.writer.begins();
        self.index.trim(begins, kept);
        self.readers.trim(begins);
        let through = self.index.begins_after();
        self.readers.late().into_iter().map(|twin| (twin, Post::Trimmed(through))).collect()
    }

    /// Whether an answer of the disk is to a request that reads.
    pub fn is_read(done: &DiskDone) -> bool {
        reading::is_read(done)
    }

    /// A twin does not read any more.
    pub fn leave(&mut self, twin: NodeId) {
        self.readers.leave(twin);
    }
}
