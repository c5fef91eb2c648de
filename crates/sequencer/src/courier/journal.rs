//! What comes into a node from outside its partition, written down: so that the node can execute again by itself, and so
//! that a twin which has lost its own can.
//!
//! Where masters may change, some of it may not count in the end. The journal says up to which epoch it does for certain
//! ([`Entrance::Certain`]), always before others are told that this node needs nothing more up to there. A node that has to start
//! over keeps what is certain and says so behind it ([`Entrance::Incarnation`]): what stands before and is not certain does not
//! count any more, and whoever has sent it still keeps it.

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
    /// What is of this epoch or before counts for certain.
    Certain(Epoch),
    /// This node has come in this incarnation: of what stands before, only that counts which is of this epoch or before.
    Incarnation(u64, Epoch),
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
            // Whoever goes on from there needs to know.
            Entrance::Certain(epoch) => *epoch,
            other => other.opens(),
        }
    }

    /// Whether it still counts when only what is of this epoch or before does. How far other nodes are they say themselves, and
    /// never more than that.
    fn outlasts(&self, certain: Epoch) -> bool {
        self.epoch() <= certain
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let me = NodeId(0);
        match self {
            Entrance::Post(from, post) => encode_post(*from, post, out),
            Entrance::Progress(node, epoch) => encode_mark(PROGRESS, *node, &[epoch.0], out),
            Entrance::Certain(epoch) => encode_mark(CERTAIN, me, &[epoch.0], out),
            Entrance::Incarnation(number, certain) => {
                encode_mark(INCARNATION, me, &[*number, certain.0], out)
            }
        }
    }

    /// Reads an entry of a journal: what came in, in order.
    pub(super) fn read(registry: &Registry, entry: &[u8]) -> Option<Vec<Entrance<X>>> {
        let mut bytes = Reader(entry);
        let mut entrances = Vec::new();
        while !bytes.is_empty() {
            let (kind, node) = (bytes.u8()?, NodeId(bytes.u16()?));
            entrances.push(match kind {
                POST => Entrance::Post(node, Post::decode(registry, bytes.bytes()?)?),
                PROGRESS => Entrance::Progress(node, Epoch(bytes.u64()?)),
                CERTAIN => Entrance::Certain(Epoch(bytes.u64()?)),
                INCARNATION => Entrance::Incarnation(bytes.u64()?, Epoch(bytes.u64()?)),
                _ => return None,
            });
        }
        Some(entrances)
    }
}

const POST: u8 = 0;
const PROGRESS: u8 = 1;
const CERTAIN: u8 = 2;
const INCARNATION: u8 = 3;

fn encode_mark(kind: u8, node: NodeId, numbers: &[u64], out: &mut Vec<u8>) {
    wire::u8(out, kind);
    wire::u16(out, node.0);
    numbers.iter().for_each(|number| wire::u64(out, *number));
}

fn encode_post<X: Letter>(from: NodeId, post: &Post<X>, out: &mut Vec<u8>) {
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
    certain: Epoch,
    incarnation: u64,
    /// Of the entries before the one with this number only that counts which is of this epoch or before. Ascending.
    limits: Vec<(Epoch, Epoch)>,
}

impl Counting {
    /// Takes note of the next entry: with it come these, of which some may not count, nor of those that came before.
    pub fn note<X: Letter>(&mut self, number: Epoch, entry: Vec<Entrance<X>>, all: &mut Vec<Entrance<X>>) {
        for entrance in entry {
            match entrance {
                Entrance::Certain(epoch) => self.certain = self.certain.max(epoch),
                Entrance::Incarnation(incarnation, certain) => {
                    self.incarnation = incarnation;
                    self.limit(number, certain, all);
                }
                Entrance::Post(..) | Entrance::Progress(..) => {}
            }
            all.push(entrance);
        }
    }

    fn limit<X: Letter>(&mut self, number: Epoch, certain: Epoch, all: &mut Vec<Entrance<X>>) {
        self.limits.push((number, certain));
        all.retain(|entrance| entrance.outlasts(certain));
    }

    /// All is read, and the next entry will have this number. A node in a later incarnation than before keeps what is certain.
    pub fn begin<X: Letter>(&mut self, number: Epoch, incarnation: u64, all: &mut Vec<Entrance<X>>) {
        if incarnation > self.incarnation {
            self.incarnation = incarnation;
            self.limit(number, self.certain, all);
        }
    }

    /// Up to which epoch what an entry holds counts.
    fn limit_of(&self, number: Epoch) -> Option<Epoch> {
        let later = self.limits.iter().filter(|(before, _)| *before > number);
        later.map(|(_, certain)| *certain).min()
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
    /// What counts of it, where masters may change.
    pub counting: Option<Counting>,
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
            && let Some((_, certain)) = limits.last().filter(|(number, _)| *number == next)
        {
            // Ahead of all that comes in now.
            encode_mark(INCARNATION, NodeId(0), &[*incarnation, certain.0], &mut pending);
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
            readers: Readers::new(prefix, identity),
        }
    }

    /// Takes down what a node has sent.
    pub fn note_post<X: Letter>(&mut self, from: NodeId, post: &Post<X>) {
        encode_post(from, post, &mut self.pending);
        let epoch = match post {
            Post::Slot { through, .. } => *through,
            Post::Letter { letter, .. } => letter.epoch(),
            _ => Epoch(0),
        };
        self.largest = self.largest.max(epoch);
    }

    /// Takes down how far a node is.
    pub fn note_progress(&mut self, node: NodeId, epoch: Epoch) {
        encode_mark(PROGRESS, node, &[epoch.0], &mut self.pending);
    }

    /// Makes an entry of what waits. Progress at this time may be told once it is durable; where masters may change, so much of
    /// it as is certain.
    pub fn append(&mut self, progress: Epoch) -> Result<(), AppendError> {
        if let Some(counting) = self.counting.as_mut().filter(|counting| progress > counting.certain) {
            counting.certain = progress;
            self.largest = self.largest.max(progress);
            encode_mark(CERTAIN, NodeId(0), &[progress.0], &mut self.pending);
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

    // ---- read again, for a twin --------------------------------------------------------------------------

    /// A twin wants the entries from a number on, and has no use for anything up to an epoch. What it is given, if that
    /// is not to be read first.
    pub fn read<X: Letter>(
        &mut self,
        twin: NodeId,
        (from, after): (Epoch, Epoch),
        (registry, most): (&Registry, usize),
        out: &mut Outbox<Message<X>>,
    ) -> Result<Option<Post<X>>, String> {
        match self.readers.ask(twin, &self.index, (from, after)) {
            Some(()) => self.go_on(twin, (registry, most), out),
            None => Ok(Some(Post::Trimmed(self.index.begins_after()))),
        }
    }

    /// Gives a twin what was read, or reads more.
    fn go_on<X: Letter>(
        &mut self,
        twin: NodeId,
        (registry, most): (&Registry, usize),
        out: &mut Outbox<Message<X>>,
    ) -> Result<Option<Post<X>>, String> {
        let durable = self.writer.durable();
        let piece = self.readers.next_piece(twin, most, durable, out);
        let Some(Piece { asked, next, entries }) = piece else { return Ok(None) };
        let covers = (next > durable).then_some(self.durable);
        covers.iter().for_each(|_| self.readers.leave(twin));
        let mut entrances = Vec::new();
        for (number, entry) in entries {
            match self.counting.as_ref().and_then(|counting| counting.limit_of(number)) {
                None => entrances.extend(entry),
                Some(certain) => {
                    let entry = Entrance::<X>::read(registry, &entry).ok_or("an entry does not parse")?;
                    let counts = entry.iter().filter(|entrance| entrance.outlasts(certain));
                    counts.for_each(|entrance| entrance.encode(&mut entrances));
                }
            }
        }
        Ok(Some(Post::Fetched { from: asked, next, covers, entrances: Arc::new(entrances) }))
    }

    /// Takes what the disk has read, if the answer is to that; and gives the twin for which it was what it gets.
    pub fn was_read<X: Letter>(
        &mut self,
        done: &DiskDone,
        terms: (&Registry, usize),
        out: &mut Outbox<Message<X>>,
    ) -> Result<Option<(NodeId, Post<X>)>, String> {
        let Some(twin) = self.readers.was_read(done, Epoch(u64::MAX))? else { return Ok(None) };
        Ok(self.go_on(twin, terms, out)?.map(|post| (twin, post)))
    }

    /// Lets go what has nothing to do with epochs beyond this one, but not what a twin is being given that is not more than
    /// so many bytes behind. Says who is told that it is too late, and what.
    pub fn trim<X>(&mut self, through: Epoch, most: usize) -> Vec<(NodeId, Post<X>)> {
        let is_near = |next: &Epoch| self.index.bytes_from(*next) <= most;
        let spared = self.readers.least().filter(is_near).unwrap_or(self.next);
        let Some(kept) = self.index.covered_by(through.min(self.durable), spared) else { return Vec::new() };
        self.writer.truncate_before(kept.0);
        self.counting.iter_mut().for_each(|counting| counting.limits.retain(|(number, _)| *number > kept.0));
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
