//! Departures: chunks are closed and sent, as many at a time as a node has said that it takes.
//!
//! A link keeps what has not come to the other node, but only so much: beyond that the stream is given up, and what was
//! asked for over it has to be asked for again, which is as much. So a gateway sends a node a few pieces and waits until
//! that says that they have come ([`Gateway::leaves`]).

use std::collections::VecDeque;
use std::sync::Arc;

use ordain_model::{Chunk, Front, PartitionId, PauseNo, Reads, Snapshot, Step, View};

use crate::{Gateway, Lease};

/// Something that a gateway has for a sequencer.
#[derive(Clone, Debug)]
pub enum Departure {
    /// To be sequenced by a partition.
    Order(PartitionId, Arc<Chunk>),
    /// To be run on a snapshot, by a node of the replica that answers.
    Read(Arc<Chunk>, Snapshot),
    /// A step of an open transaction, for a node of a partition that finds out where it goes.
    Step(Step, PartitionId, Arc<Chunk>),
    /// For a node that chunks were sent to: nobody waits for one of reads any more, or whether they have come.
    Word(u16, Front),
}

impl Departure {
    /// The chunk that leaves, if one does.
    pub fn chunk(&self) -> Option<&Arc<Chunk>> {
        match self {
            Departure::Order(_, chunk) | Departure::Read(chunk, _) | Departure::Step(_, _, chunk) => {
                Some(chunk)
            }
            Departure::Word(..) => None,
        }
    }

    /// The message to the sequencer.
    pub fn into_message(self) -> Front {
        match self {
            Departure::Order(_, chunk) => Front::Submit(chunk),
            Departure::Read(chunk, snapshot) => Front::Read(chunk, snapshot),
            Departure::Step(step, _, chunk) => Front::Step(step, chunk),
            Departure::Word(_, word) => word,
        }
    }
}

impl Gateway {
    /// Takes the next thing to send to a sequencer, if anything was asked for since the last; call it until there is none.
    pub fn flush(&mut self) -> Option<Departure> {
        if self.closed.is_empty() {
            self.close_all();
        }
        self.closed.pop_front()
    }

    /// Closes every chunk that is being built.
    pub(crate) fn close_all(&mut self) {
        if !self.reading.txns().is_empty() {
            self.close_reads();
        }
        for home in 0..self.building.len() {
            if !self.building[home].txns().is_empty() {
                self.close(PartitionId(home as u16));
            }
        }
    }

    /// The partitions whose nodes answer what somebody waits for in a chunk that is to be sequenced.
    pub fn answerers(&self, departure: &Departure) -> impl Iterator<Item = PartitionId> {
        let submitted = departure.chunk().and_then(|chunk| self.pending.get(chunk.number));
        let waiters = submitted.into_iter().flat_map(|submitted| &submitted.waiters);
        waiters.filter(|waiter| waiter.is_waiting()).map(|waiter| waiter.answers)
    }

    /// Notes that a departure goes to the sequencer of a node, and that a replica is to answer; returns what is to be sent.
    /// It may have been closed, or sent before, when another replica was to answer. `None` while what was sent to that node
    /// before may not have come: then it [leaves later](Gateway::go_on_sending).
    #[must_use]
    pub fn leaves(&mut self, departure: Departure, node: u16, replica: u16) -> Option<Departure> {
        let mut departure = match departure.chunk() {
            Some(chunk) if node != self.id.node() => {
                let bytes = chunk.bytes();
                let flow = self.flows.entry(node).or_default();
                let departure = flow.admit(departure)?;
                let pause = flow.note_sent(bytes, self.piece);
                let pause = pause.map(|pause| Departure::Word(node, Front::Pause(pause)));
                pause.into_iter().for_each(|pause| self.closed.push_front(pause));
                departure
            }
            _ => departure,
        };
        let (Departure::Order(_, chunk) | Departure::Read(chunk, _) | Departure::Step(_, _, chunk)) =
            &mut departure
        else {
            return Some(departure);
        };
        if let Some(submitted) = self.pending.get_mut(chunk.number) {
            submitted.asked = Some(node);
            if chunk.replica != replica && submitted.chunk.take().is_some() {
                Arc::make_mut(chunk).replica = replica;
                submitted.chunk = Some(chunk.clone());
            }
        }
        Some(departure)
    }

    /// Lets leave what waits for a node that has all that was sent to it before a pause, ahead of all else.
    pub fn go_on_sending(&mut self, node: u16, pause: PauseNo) {
        let waiting = self.flows.get_mut(&node).map(|flow| flow.note_come(pause)).unwrap_or_default();
        self.leave_first(waiting);
    }

    /// Asks the sequencer of a node to which a stream has begun for a word, which says that it has met this node too.
    pub fn greet(&mut self, node: u16) {
        self.closed.push_back(Departure::Word(node, Front::Pause(PauseNo::GREETING)));
    }

    /// Puts departures before all others.
    pub(crate) fn leave_first(&mut self, waiting: VecDeque<Departure>) {
        let then = std::mem::replace(&mut self.closed, waiting);
        self.closed.extend(then);
    }

    /// Closes the chunk that is being built for a partition.
    pub(crate) fn close(&mut self, home: PartitionId) {
        let chunk = self.take_built(home);
        self.closed.push_back(Departure::Order(home, chunk));
    }

    /// Ends the chunk that is being built for a partition, and begins another.
    pub(crate) fn take_built(&mut self, home: PartitionId) -> Arc<Chunk> {
        let building = &mut self.building[usize::from(home.0)];
        let next = Chunk::after(building);
        let chunk = std::mem::replace(building, next);
        self.end_building(chunk)
    }

    /// Closes the chunk of reads, and says what it is to see.
    pub(crate) fn close_reads(&mut self) {
        let next = Chunk::after(&self.reading);
        let chunk = std::mem::replace(&mut self.reading, next);
        let chunk = self.end_building(chunk);
        let since = std::mem::take(&mut self.since);
        let view = self.pending.get_mut(chunk.number).and_then(|submitted| submitted.view.as_mut());
        let snapshot = match (view, self.reads) {
            (Some(View::At(token, now)), _) => Snapshot::At(token.clone(), *now),
            (view, reads) => {
                if let Some(View::Since(all)) = view {
                    all.clone_from(&since);
                }
                match reads {
                    Reads::Previous => Snapshot::Closed,
                    Reads::Strict => Snapshot::Latest(since),
                    Reads::Session | Reads::Ordered => Snapshot::Published(since),
                }
            }
        };
        self.closed.push_back(Departure::Read(chunk, snapshot));
    }

    /// Ends the building of a chunk.
    fn end_building(&mut self, mut chunk: Chunk) -> Arc<Chunk> {
        let Some(submitted) = self.pending.get_mut(chunk.number) else { return Arc::new(chunk) };
        submitted.is_open = false;
        if submitted.logs_reads {
            let waiters = &submitted.waiters;
            chunk.log_also(|index| waiters.get(index as usize).is_some_and(|waiter| !waiter.may_be_led));
        }
        let chunk = Arc::new(chunk);
        submitted.chunk = Some(chunk.clone());
        chunk
    }

    /// Releases a state that was kept.
    pub fn release(&mut self, lease: Lease) {
        self.closed.push_back(Departure::Word(lease.node, Front::ReadDone(self.id, lease.number)));
    }
}
