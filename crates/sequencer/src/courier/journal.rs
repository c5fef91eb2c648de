//! What comes into a node from outside its partition, written down: so that the node can execute again by itself, and so
//! that a twin which has lost its own can.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ordain_log::{AppendError, Fetch, LogWriter, Place, in_space};
use ordain_model::wire::{self, Reader};
use ordain_model::{Epoch, Registry};
use ordain_role::{Bytes, DiskDone, DiskRequest, Fetched, NodeId, Outbox, Wire as _};

use crate::message::{Letter, Message, Post};

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

/// Where in a journal things are, roughly: made while it is read at the start, and kept up as it grows.
#[derive(Clone, Debug, Default)]
pub struct Index {
    /// Entries from this number on stand at this place or behind it, and those before have nothing to do with epochs
    /// beyond this one. Ascending in all.
    places: Vec<(Epoch, Place, Epoch)>,
    /// The largest epoch of anything so far.
    largest: Epoch,
    /// Bytes since the last place.
    since: usize,
}

/// How much of a journal there is between two places that are remembered, at least.
const STRIDE: usize = 1 << 20;

impl Index {
    /// The entry with this number begins here or behind; it has so many bytes and holds these.
    pub fn note<X: Letter>(&mut self, number: Epoch, place: Place, bytes: usize, entrances: &[Entrance<X>]) {
        self.reach(number, place);
        self.since += bytes;
        let largest = entrances.iter().map(Entrance::epoch).max().unwrap_or_default();
        self.largest = self.largest.max(largest);
    }

    /// The next entry will have this number and stand here or behind.
    fn reach(&mut self, number: Epoch, place: Place) {
        if self.places.is_empty() || self.since >= STRIDE {
            self.since = 0;
            self.places.push((number, place, self.largest));
        }
    }

    /// Where to begin to read for somebody who wants the entries from a number on, and has no use for anything up to an
    /// epoch. Also the number of the first entry to be found there.
    fn find(&self, number: Epoch, after: Epoch) -> Option<(Epoch, Place)> {
        let by_number = self.places.partition_point(|(first, ..)| *first <= number);
        let by_epoch = self.places.partition_point(|(.., before)| *before <= after);
        let (first, place, _) = self.places.get(by_number.max(by_epoch).checked_sub(1)?)?;
        Some((*first, *place))
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
    identity: Vec<u8>,
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
    readers: BTreeMap<NodeId, Reading>,
    reads: u64,
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

/// What a twin is being read.
#[derive(Debug)]
struct Reading {
    fetch: Fetch,
    into: Fetched,
    /// Of the request that is under way.
    token: Option<u64>,
    /// The entry that it asked for, and the first that it has not been given.
    asked: Epoch,
    next: Epoch,
    /// Entries that were read, in order.
    found: VecDeque<(Epoch, Vec<u8>)>,
}

/// Marks the requests that read; the others are the writer's.
const READ: u64 = 1 << 63;

impl Journal {
    /// A journal in which everything is that progress so far has come from.
    pub fn new(opened: Opened, progress: Epoch) -> Journal {
        let Opened { writer, prefix, identity, mut index } = opened;
        index.reach(writer.appended().next(), writer.place());
        Journal {
            next: writer.appended().next(),
            writer,
            prefix,
            identity,
            pending: Vec::new(),
            largest: index.largest,
            marks: VecDeque::new(),
            durable: progress,
            index,
            readers: BTreeMap::new(),
            reads: 0,
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
            self.index.since += mark.bytes;
            self.index.largest = self.index.largest.max(mark.largest);
            self.index.reach(self.writer.durable().next(), self.writer.place());
        }
    }

    // ---- read again, for a twin --------------------------------------------------------------------------

    /// A twin wants the entries from a number on, and has no use for anything up to an epoch.
    pub fn read<X: Letter>(
        &mut self,
        twin: NodeId,
        (from, after): (Epoch, Epoch),
        most: usize,
        out: &mut Outbox<Message<X>>,
    ) -> Option<Post<X>> {
        // Whoever goes on where it has stopped needs no new place.
        let goes_on = |reading: &Reading| reading.next == from && reading.token.is_none();
        if !self.readers.get(&twin).is_some_and(goes_on) {
            let (first, place) = self.index.find(from, after)?;
            let reading = Reading {
                fetch: Fetch::new(&self.identity, place),
                into: Fetched::default(),
                token: None,
                asked: from,
                next: from.max(first),
                found: VecDeque::new(),
            };
            self.readers.insert(twin, reading);
        }
        let reading = self.readers.get_mut(&twin)?;
        reading.asked = from;
        self.go_on(twin, most, out)
    }

    /// Gives a twin what was read, or reads more. Nothing is read that is not known to be durable.
    fn go_on<X: Letter>(
        &mut self,
        twin: NodeId,
        most: usize,
        out: &mut Outbox<Message<X>>,
    ) -> Option<Post<X>> {
        let durable = self.writer.durable();
        let reading = self.readers.get_mut(&twin)?;
        if reading.found.is_empty() && reading.next <= durable {
            self.reads += 1;
            let token = READ | self.reads;
            (reading.token, reading.into) = (Some(token), Fetched::default());
            let request = DiskRequest { token, ops: vec![reading.fetch.op(&reading.into)] };
            out.disk(in_space(request, self.prefix));
            return None;
        }
        let mut bytes = Vec::new();
        while let Some((number, entry)) = reading.found.pop_front_if(|_| bytes.len() < most) {
            reading.next = number.next();
            bytes.extend_from_slice(&entry);
        }
        let covers = (reading.next > durable).then_some(self.durable);
        Some(Post::Fetched { from: reading.asked, next: reading.next, covers, entrances: Arc::new(bytes) })
    }

    /// Takes what the disk has read, if the answer is to that; and gives the twin for which it was what it gets.
    pub fn was_read<X: Letter>(
        &mut self,
        done: &DiskDone,
        most: usize,
        out: &mut Outbox<Message<X>>,
    ) -> Result<Option<(NodeId, Post<X>)>, String> {
        let found = self.readers.iter_mut().find(|(_, reading)| reading.token == Some(done.token));
        let Some((twin, reading)) = found else { return Ok(None) };
        done.result.clone().map_err(|error| error.to_string())?;
        reading.token = None;
        for entry in reading.fetch.take(reading.into.bytes()).map_err(|error| error.to_string())? {
            if entry.epoch >= reading.next {
                reading.found.push_back((entry.epoch, entry.payload));
            }
        }
        let twin = *twin;
        Ok(self.go_on(twin, most, out).map(|post| (twin, post)))
    }

    /// Whether an answer of the disk is to a request that reads.
    pub fn is_read(done: &DiskDone) -> bool {
        done.token & READ != 0
    }

    /// A twin does not read any more.
    pub fn leave(&mut self, twin: NodeId) {
        self.readers.remove(&twin);
    }
}
