//! The gateway: where requests become chunks and outcomes become answers.
//!
//! One gateway serves one event loop. It plans what clients ask for, gathers it into the chunk that the engine
//! behind it will order, and remembers who asked. It knows no protocol and no engine.
//!
//! - `submit`: a request is planned and put into a chunk; `departures`: chunks are closed and sent;
//! - `pending`: who waits for what; `outcomes`: requests end, or are submitted again;
//! - `reconnaissance`: transactions whose keys are found out first;
//! - `streams`: the requests of a connection take effect in the order in which they are submitted. What is not submitted in a
//!   [`Stream`] is submitted as if each request came over a connection of its own;
//! - `lost`: what becomes of requests when a node is lost; `router`: which node takes what;
//! - `watch`: watched keys; `backend`: what depends on the family of engines; `overlay`: interactive transactions in front
//!   of engines that order; `direct`: those that the engine keeps open.
//!
//! # Reads on a snapshot
//!
//! A transaction whose plan only reads need not be sequenced ([`Reads`]). It goes with others of its kind to the
//! sequencer of a node, which only says as of which epoch they are run (paxflow.md, sections 4.1 and 4.4). It has no
//! effect, so it is asked again whenever its answer may be lost, and when the state that it was to see is not kept any
//! more; after a few times it is sequenced like any other.

mod backend;
mod departures;
mod direct;
mod lost;
mod outcomes;
mod overlay;
mod pending;
mod reconnaissance;
mod router;
mod services;
mod streams;
mod submit;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ordain_model::outcome::Outcome;
use ordain_model::{
    Chunk, ChunkNo, Flow, GatewayId, Layout, Map, OutcomeStatus, PartitionId, ProcedureId, Reads, Registry,
    Stamp, Token,
};
use ordain_role::{Bug, Bugs};

pub use backend::{
    Backend, Begin, Desk, Ordered, Progress, STATE_GONE, Step, TOKEN_MAX, TokenForm, Tokens, Transaction,
};
pub use departures::Departure;
pub use direct::direct;
pub use lost::Owed;
use overlay::Buffers;
pub use overlay::overlay;
use pending::{Pending, Place};
use reconnaissance::Dependent;
pub use reconnaissance::MAX_RESTARTS;
pub use router::{AloneRouter, Dispatcher, HOLD_FOR, RelayRouter, ReplicaRouter, Route, Router};
pub use services::{NotServed, Service, Services};
pub use streams::Stream;
use streams::Streams;
pub use watch::{Watched, Watching};

/// The caller's own name for a request; comes back with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Which path a request took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Through the order.
    Order,
    /// On a snapshot. What is asked for at the same time may come before it or after it.
    Snapshot,
}

/// A state that is kept for somebody until it is [released](Gateway::release), but not for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The node whose sequencer keeps it.
    node: u16,
    /// The read that began it.
    number: ChunkNo,
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub struct Finished<'a> {
    /// Whose request.
    pub ticket: Ticket,
    /// How it ended.
    pub status: OutcomeStatus,
    /// The stamp of its effect; [`Stamp::NONE`] if it has none.
    pub stamp: Stamp,
    /// The token of what whoever asked has seen by this answer.
    pub token: &'a Token,
    /// The path that it took at first.
    pub path: Path,
    /// The reply, encoded as a [`ordain_model::Datum`].
    pub reply: &'a [u8],
    /// How often it was submitted again because its reconnaissance was stale.
    pub restarts: u8,
    /// The state that it has read, if that was asked to be kept.
    pub lease: Option<Lease>,
    /// The outcome of its batch whose reply this is, if it is one as it came.
    pub outcome: Option<&'a Outcome>,
}

impl Finished<'_> {
    /// A request that has taken effect nowhere, as far as is known, without a reply.
    pub const fn nowhere(ticket: Ticket, status: OutcomeStatus, path: Path) -> Finished<'static> {
        let (stamp, token) = (Stamp::NONE, &Token::NOTHING);
        Finished { ticket, status, stamp, token, path, reply: &[], restarts: 0, lease: None, outcome: None }
    }

    /// A request of which nobody can tell how it ended.
    const fn unknown(ticket: Ticket, path: Path) -> Finished<'static> {
        Finished::nowhere(ticket, OutcomeStatus::Unknown, path)
    }
}

/// Builds chunks and hands out answers.
#[derive(Debug)]
pub struct Gateway {
    id: GatewayId,
    registry: Arc<Registry>,
    /// The part that depends on the engines behind it.
    backend: Arc<dyn Backend>,
    /// Buffers of interactive transactions that run here.
    buffers: Buffers,
    /// The choice of where transactions that only read are run.
    reads: Reads,
    /// The procedures whose last transaction went to a snapshot: the next one is planned where it will lie if it does so too.
    readers: BTreeSet<ProcedureId>,
    /// The chunk being built of reads.
    reading: Chunk,
    /// The token that the chunk of reads is to see.
    since: Token,
    /// The token of all that outcomes have told of.
    newest: Token,
    /// The chunk being built for each partition.
    building: Vec<Chunk>,
    /// The home of the last transaction: the next one is planned where it will lie if it has the same.
    last_home: PartitionId,
    layout: Arc<Layout>,
    /// Its own partition.
    partition: PartitionId,
    /// Which replica is to send the outcomes, unless it is another [when a chunk leaves](Gateway::leaves).
    replica: u16,
    /// Chunks that were full before they were asked for, and what else is to be sent.
    closed: VecDeque<Departure>,
    /// The departures to each other node that wait for its pauses.
    flows: BTreeMap<u16, Flow<Departure>>,
    /// The size of the pieces that go to another node, bytes.
    piece: usize,
    /// The chunks that are begun and not finished, and who waits.
    pending: Pending,
    /// Requests that take several transactions, by the one they wait for now.
    dependents: BTreeMap<Place, Dependent>,
    /// The connections whose requests are kept in order.
    streams: Streams,
    /// A chunk in which a request is planned that is not to be submitted yet.
    aside: Chunk,
    /// The number of times that it has begun to plan by another map.
    plans: u32,
    /// There is no other node: what is submitted comes to the one sequencer in order, and cannot be lost on the way.
    is_alone: bool,
    /// As [`Backend::keeps_order`] says.
    keeps_order: bool,
    /// Interactive transactions that the engine keeps open, by number, and the last number that was given.
    open: BTreeSet<u64>,
    last_open: u64,
    /// Bugs that a test has planted.
    bugs: Bugs,
}

impl Gateway {
    /// A gateway of a node that holds `partition` in `replica`, with nothing outstanding. Its chunks are numbered from `first`
    /// on: no outcome of an earlier life of the node may be taken for one of this.
    ///
    /// # Panics
    /// If the registry plans by another placement than that of the layout: a mistake in the program.
    pub fn new(
        id: GatewayId,
        registry: Arc<Registry>,
        layout: Arc<Layout>,
        (replica, partition): (u16, PartitionId),
        first: ChunkNo,
    ) -> Gateway {
        assert_eq!(registry.placement(), layout.placement(), "transactions are planned by another placement");
        let chunk = Chunk::new(id, first).in_cluster(replica, layout.clone());
        Gateway {
            id,
            registry,
            backend: Arc::new(Ordered),
            buffers: Buffers::default(),
            reads: Reads::Ordered,
            readers: BTreeSet::new(),
            building: (0..layout.partitions()).map(|_| chunk.clone()).collect(),
            aside: chunk.clone(),
            reading: chunk,
            since: Token::NOTHING,
            newest: Token::NOTHING,
            last_home: partition,
            layout,
            partition,
            replica,
            closed: VecDeque::new(),
            flows: BTreeMap::new(),
            piece: usize::MAX,
            pending: Pending::new(first),
            dependents: BTreeMap::new(),
            streams: Streams::default(),
            plans: 0,
            open: BTreeSet::new(),
            last_open: first.0,
            is_alone: false,
            keeps_order: true,
            bugs: Bugs::NONE,
        }
    }

    /// A gateway of a node on its own, with one thread.
    pub fn alone(id: GatewayId, registry: Arc<Registry>) -> Gateway {
        Gateway::new(id, registry, Arc::new(Layout::single(1)), (0, PartitionId(0)), ChunkNo(0))
            .without_others()
    }

    /// The gateway on a node that has no others around it.
    #[must_use]
    pub fn without_others(self) -> Gateway {
        Gateway { is_alone: true, ..self }
    }

    /// The gateway with planted bugs, for tests of the checkers.
    #[must_use]
    pub fn planting(self, bugs: Bugs) -> Gateway {
        Gateway { bugs, ..self }
    }

    /// Tells whether sessions in front of the gateway log scripts without their users' rights: a bug that a test has planted.
    #[inline]
    pub const fn loses_rights(&self) -> bool {
        self.bugs.has(Bug::LoseRights)
    }

    /// Tells whether sessions in front of the gateway forget, as they log scripts, that memory is short: a bug that a test has
    /// planted.
    #[inline]
    pub const fn forgets_shortage(&self) -> bool {
        self.bugs.has(Bug::ForgetShortage)
    }

    /// The gateway in front of engines of another family than those that order.
    #[must_use]
    pub fn with_backend(self, backend: Arc<dyn Backend>) -> Gateway {
        Gateway { keeps_order: backend.keeps_order(), backend, ..self }
    }

    /// The gateway with a choice of where transactions that only read are run.
    #[must_use]
    pub fn with_reads(self, reads: Reads) -> Gateway {
        Gateway { reads, ..self }
    }

    /// The gateway with a size, in bytes, of the pieces in which it sends to another node.
    #[must_use]
    pub fn in_pieces(self, piece: usize) -> Gateway {
        Gateway { piece, ..self }
    }

    /// The number of partitions.
    pub fn partitions(&self) -> u16 {
        self.layout.partitions()
    }

    /// The layout of records, by the map that it plans by.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The map that it plans by.
    pub fn map(&self) -> &Map {
        self.layout.map()
    }

    /// Plans by another map from now on.
    pub(crate) fn plan_by(&mut self, map: &Map) {
        if self.map() == map {
            return;
        }
        // What was planned by the old one goes on its way by that.
        self.close_all();
        self.plans = self.plans.wrapping_add(1);
        self.layout = Arc::new(self.layout.under(map));
        for chunk in self.building.iter_mut().chain([&mut self.reading, &mut self.aside]) {
            *chunk = std::mem::take(chunk).in_cluster(self.replica, self.layout.clone());
        }
    }

    /// The registry of procedures.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// The number of requests that are submitted and not finished.
    pub const fn outstanding(&self) -> usize {
        self.pending.waiting() + self.streams.held()
    }

    /// Checks the gateway's invariants: what is counted is what there is, every dependent request waits for a transaction, and
    /// every stream has its requests. Holds between calls; the simulator asks after each step.
    ///
    /// # Errors
    /// What is broken.
    pub fn check(&self) -> Result<(), String> {
        self.pending.check()?;
        for (number, index) in self.dependents.keys() {
            let submitted = self.pending.get(*number);
            let waiter = submitted.and_then(|submitted| submitted.waiters.get(*index as usize));
            if !waiter.is_some_and(pending::Waiter::is_waiting) {
                return Err(format!(
                    "a request waits for transaction {index} of chunk {number}, which has ended"
                ));
            }
        }
        let stream_places = self.pending.iter().flat_map(|(_, submitted)| {
            let waiting = submitted.waiters.iter().filter(|waiter| waiter.is_waiting());
            waiting.filter_map(|waiter| Some((waiter.stream_place?, submitted.view.is_some())))
        });
        let dependents =
            self.dependents.values().filter_map(|dependent| Some((dependent.stream_place?, false)));
        self.streams.check(stream_places.chain(dependents))
    }
}
