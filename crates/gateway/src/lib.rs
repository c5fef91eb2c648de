//! The gateway: where requests become chunks and outcomes become answers.
//!
//! One gateway serves one event loop. It plans what clients ask for, gathers it into the chunk that the engine
//! behind it will order, and remembers who asked. It knows no protocol and no engine.
//!
//! Transactions whose keys are not known in advance are found out here (OLLP, the Calvin paper, section
//! 3.2.1): the gateway reads and asks what the procedure wants to know in transactions of their own, submits the
//! real transaction with what it learnt as evidence, and starts over with fresh evidence when that is found stale.
//!
//! In a cluster a transaction is sequenced at its *home*: the partition that keeps its session if it has one and may
//! write, so that a retry meets the first attempt; or else the only partition that takes part in it, so that nobody
//! else hears of it; or else the gateway's own.
//!
//! # The order of a connection
//!
//! Requests that are submitted in a [`Stream`] take effect in the order in which they are submitted, whichever partitions they
//! touch. The module `streams` says how; all else is submitted as if each request came over a connection of its own.
//!
//! # Reads on a snapshot
//!
//! A transaction whose plan only reads need not be sequenced ([`Reads`]). It goes with others of its kind to the
//! sequencer of a node, which only says as of which epoch they are run (paxflow.md, sections 4.1 and 4.4). It has no
//! effect, so it is asked again whenever its answer may be lost, and when the state that it was to see is not kept any
//! more; after a few times it is sequenced like any other.
//!
//! # When slots move
//!
//! A gateway plans by the [map](Map) that it knows. That may be an old one: a transaction of which a slot has moved then ends
//! as [`OutcomeStatus::Moved`], which says where the slots are, and is planned again. Nobody else hears of that, and it does
//! not count as a stale reconnaissance.
//!
//! # When a node is lost
//!
//! Each request knows on which nodes its answer hangs: the one whose sequencer its chunk was sent to, and the one that
//! is to send the outcome ([`Gateway::give_up`]). What only reads and what has a session is asked again, as a new
//! request. Any other may take effect but once, so its *chunk* is sent again, under the number that it has: members put
//! a chunk in one of their batches at most, by whatever ways it comes to them. If it is only now put in one, the outcome
//! comes from a replica that is whole. If it had been before, its outcome was addressed to the node that is lost; as long
//! as that may still send it, it is waited for, and then the request's end is not known.
//!
//! # In pieces
//!
//! A link keeps what has not come to the other node, but only so much: beyond that the stream is given up, and what was
//! asked for over it has to be asked for again, which is as much. So a gateway sends a node a few pieces and waits until
//! that says that they have come ([`Gateway::leaves`]).

mod backend;
mod lost;
mod overlay;
mod router;
mod streams;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ordain_model::args::{Args, ArgsBuilder};
use ordain_model::outcome::Outcome;
use ordain_model::procedure::{Known, Reconnaissance};
use ordain_model::wire::Reader;
use ordain_model::{
    Abort, Call, Chunk, ChunkNo, Datum, Db, Flow, Front, GatewayId, Layout, Map, OutcomeBatch, OutcomeStatus,
    PartitionId, PauseNo, PlanError, ProcedureId, Reads, Registry, RequestNo, Snapshot, Stamp, Token, Txn,
    View, Writer, system,
};

pub use backend::{Backend, Begin, Desk, Ordered, Progress, STATE_GONE, Step, Transaction};
pub use lost::Owed;
use overlay::Buffers;
pub use router::{AloneRouter, Dispatcher, HOLD_FOR, ReplicaRouter, Route, Router};
pub use streams::Stream;
use streams::{Held, Line, Seat};
pub use watch::{Watched, Watching};

/// How often a transaction is started over because its reconnaissance was stale, before its client is told to
/// retry (calvin.md, section 6, `ollp_max`).
pub const MAX_RESTARTS: u8 = 10;

/// A chunk is closed at this many transactions or bytes, and another begun.
const MAX_CHUNK: usize = 1 << 13;
const MAX_CHUNK_BYTES: usize = 16 << 20;

/// The caller's own name for a request; comes back with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Which way a request took.
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

/// Something that a gateway has for a sequencer.
#[derive(Clone, Debug)]
pub enum Departure {
    /// To be sequenced by a partition.
    Order(PartitionId, Arc<Chunk>),
    /// To be run on a snapshot, by a node of the replica that answers.
    Read(Arc<Chunk>, Snapshot),
    /// For a node that chunks were sent to: nobody waits for one of reads any more, or whether they have come.
    Word(u16, Front),
}

impl Departure {
    /// The chunk that leaves, if one does.
    pub fn chunk(&self) -> Option<&Arc<Chunk>> {
        match self {
            Departure::Order(_, chunk) | Departure::Read(chunk, _) => Some(chunk),
            Departure::Word(..) => None,
        }
    }

    /// What the sequencer is sent.
    pub fn into_message(self) -> Front {
        match self {
            Departure::Order(_, chunk) => Front::Submit(chunk),
            Departure::Read(chunk, snapshot) => Front::Read(chunk, snapshot),
            Departure::Word(_, word) => word,
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub struct Finished<'a> {
    /// Whose request.
    pub ticket: Ticket,
    /// How it ended.
    pub status: OutcomeStatus,
    /// Where it has taken effect; [`Stamp::NONE`] if nowhere.
    pub stamp: Stamp,
    /// What whoever asked has seen by this answer.
    pub token: &'a Token,
    /// The way that it took at first.
    pub path: Path,
    /// The reply, encoded as a [`ordain_model::Datum`].
    pub reply: &'a [u8],
    /// How often it was started over because its reconnaissance was stale.
    pub restarts: u8,
    /// The state that it has read, if that was asked to be kept.
    pub lease: Option<Lease>,
    /// The outcome of its batch whose reply this is, if it is one as it came.
    pub outcome: Option<&'a Outcome>,
}

/// Builds chunks and hands out answers.
#[derive(Debug)]
pub struct Gateway {
    id: GatewayId,
    registry: Arc<Registry>,
    /// What depends on the engines behind it.
    backend: Arc<dyn Backend>,
    /// For interactive transactions that run here.
    buffers: Buffers,
    /// Where transactions that only read are run.
    reads: Reads,
    /// The procedures whose last transaction went to a snapshot: the next one is planned where it will lie if it does so too.
    readers: BTreeSet<ProcedureId>,
    /// The chunk being built of reads, and what it is to see.
    reading: Chunk,
    since: Token,
    /// All that outcomes have told of.
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
    /// What goes to each other node.
    flows: BTreeMap<u16, Flow<Departure>>,
    /// In pieces of so many bytes.
    piece: usize,
    /// Chunks begun and not finished, by consecutive number from `oldest` on.
    submitted: VecDeque<Submitted>,
    oldest: ChunkNo,
    outstanding: usize,
    /// Requests that take several transactions, by the one they wait for now.
    dependents: BTreeMap<(ChunkNo, u32), Dependent>,
    /// The connections whose requests are kept in order, by number.
    lines: Vec<Line>,
    /// Those that may go on with what they hold.
    ready: Vec<Stream>,
    /// A request is planned here to be judged, if it is not to be submitted yet.
    aside: Chunk,
    /// How often it has begun to plan by another map.
    plans: u32,
    /// There is no other node: what is submitted comes to the one sequencer in order, and cannot be lost on the way.
    is_alone: bool,
    /// A test has planted the mistake that a connection does not stay with the sequencer that has its requests.
    forgets_order: bool,
}

#[derive(Debug)]
struct Submitted {
    tickets: Vec<Waiter>,
    left: usize,
    home: PartitionId,
    /// None while it is being built.
    chunk: Option<Arc<Chunk>>,
    /// The node whose sequencer it was sent to last.
    asked: Option<u16>,
    /// Which replicas were to send the outcomes when it was sent before.
    formerly: Vec<u16>,
    /// It is not sequenced, but run on a snapshot.
    view: Option<View>,
    /// It is being built.
    is_open: bool,
    /// The log is to keep reads of it that it would not keep by themselves.
    logs_reads: bool,
    /// The place in the order before its first transaction, once an outcome has told.
    base: Option<Stamp>,
}

impl Submitted {
    /// Whether an outcome of a transaction that only reads is of another run of the chunk than the first that has told its
    /// place: reads that are not logged are run again where the chunk is passed on again.
    fn is_of_another_run(&mut self, outcome: &Outcome, backend: &dyn Backend) -> bool {
        let txn = self.chunk.as_ref().and_then(|chunk| chunk.txns().get(outcome.index as usize));
        // The place of a retried request is that of its first attempt.
        let is_here = |txn: &&Txn| txn.read_only || txn.call.session.is_none();
        let Some(txn) = txn.filter(is_here).filter(|_| self.view.is_none() && outcome.stamp != Stamp::NONE)
        else {
            return false;
        };
        let Some(base) = backend.run_of(outcome.stamp, outcome.index) else { return false };
        *self.base.get_or_insert(base) != base && !txn.logged
    }

    /// Whether any node has been sent it.
    fn was_sent(&self) -> bool {
        self.asked.is_some() || !self.formerly.is_empty()
    }
}

/// Who waits for a transaction.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    /// None once it is answered.
    ticket: Option<Ticket>,
    /// Whose node answers it.
    answers: PartitionId,
    /// It writes, and was asked for before, in another chunk. What became of that is not known.
    is_again: bool,
    /// Or else whoever leads where it is sequenced: it only reads, or was asked for before and is remembered there.
    may_be_led: bool,
    /// How often it was too late for the state that it was to see.
    late: u8,
    /// It must not be run again at another place although it may only read: its connection has writes in the chunk.
    is_fixed: bool,
    /// Its place among the requests of its connection.
    seat: Option<Seat>,
}

impl Waiter {
    const fn new(asker: Asker, answers: PartitionId, may_be_led: bool) -> Waiter {
        let Asker { ticket, late, seat } = asker;
        Waiter { ticket: Some(ticket), answers, may_be_led, is_again: false, late, is_fixed: false, seat }
    }
}

/// Who asks for a transaction.
#[derive(Clone, Copy, Debug)]
struct Asker {
    ticket: Ticket,
    /// How often it was too late for the state that it was to see.
    late: u8,
    /// Its place among the requests of its connection, if those are kept in order.
    seat: Option<Seat>,
}

impl Asker {
    /// A request for itself.
    const fn alone(ticket: Ticket) -> Asker {
        Asker { ticket, late: 0, seat: None }
    }
}

/// What became of a transaction that was planned.
enum Admitted {
    /// It has a place in a chunk, and goes this way.
    Placed((ChunkNo, u32), Path),
    /// Others of its connection have to be answered first. These are its arguments.
    NotYet(Vec<u8>),
}

/// A transaction that was planned under a map by which its slots were elsewhere.
#[derive(Debug)]
struct Refuted {
    number: ChunkNo,
    index: u32,
    asker: Asker,
    /// The map that was in force at its place.
    map: Map,
}

/// How often a request is run on a snapshot anew because the one before was not kept, before it is sequenced.
const MAX_LATE: u8 = 3;

/// A request whose keys have to be found first.
#[derive(Debug)]
struct Dependent {
    ticket: Ticket,
    seat: Option<Seat>,
    call: Call,
    args: Vec<u8>,
    known: Known,
    step: Stage,
    restarts: u8,
    view: View,
}

impl Dependent {
    /// One of which nothing is known.
    fn new((ticket, seat): (Ticket, Option<Seat>), call: Call, args: Vec<u8>, view: View) -> Dependent {
        let (known, step) = (Known::default(), Stage::Running);
        Dependent { ticket, seat, call, args, known, step, restarts: 0, view }
    }
}

/// What a dependent request waits for.
#[derive(Debug)]
enum Stage {
    /// These records.
    Reading(Vec<(Db, Vec<u8>)>),
    /// The answer of a procedure.
    Asking,
    /// The real transaction.
    Running,
}

impl Gateway {
    /// A gateway of a node that holds `partition` in `replica`, with nothing outstanding. Its chunks are numbered from `first`
    /// on: no outcome of an earlier life of the node may be taken for one of this.
    pub fn new(
        id: GatewayId,
        registry: Arc<Registry>,
        layout: Arc<Layout>,
        (replica, partition): (u16, PartitionId),
        first: ChunkNo,
    ) -> Gateway {
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
            submitted: VecDeque::new(),
            oldest: first,
            outstanding: 0,
            dependents: BTreeMap::new(),
            lines: Vec::new(),
            ready: Vec::new(),
            plans: 0,
            is_alone: false,
            forgets_order: false,
        }
    }

    /// A gateway of a node on its own, with one thread.
    pub fn alone(id: GatewayId, registry: Arc<Registry>) -> Gateway {
        Gateway::new(id, registry, Arc::new(Layout::single(1)), (0, PartitionId(0)), ChunkNo(0))
            .without_others()
    }

    /// The same on a node that has no others around it.
    #[must_use]
    pub fn without_others(self) -> Gateway {
        Gateway { is_alone: true, ..self }
    }

    /// The same with a planted mistake: each request goes to the sequencer that suits it, whatever of its connection is under
    /// way. For tests of the checkers.
    #[must_use]
    pub fn forgetting_order(self) -> Gateway {
        Gateway { forgets_order: true, ..self }
    }

    /// The same in front of engines of another family.
    #[must_use]
    pub fn with_backend(self, backend: Arc<dyn Backend>) -> Gateway {
        Gateway { backend, ..self }
    }

    /// The same, and transactions that only read are run as this says.
    #[must_use]
    pub fn with_reads(self, reads: Reads) -> Gateway {
        Gateway { reads, ..self }
    }

    /// The same, and what it sends to another node goes in pieces of about so many bytes.
    #[must_use]
    pub fn in_pieces(self, piece: usize) -> Gateway {
        Gateway { piece, ..self }
    }

    /// How many partitions there are.
    pub fn partitions(&self) -> u16 {
        self.layout.partitions()
    }

    /// Where records live, by the map that it plans by.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The map that it plans by.
    pub fn map(&self) -> &Map {
        self.layout.map()
    }

    /// Plans by another map from now on.
    fn plan_by(&mut self, map: &Map) {
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

    /// The procedures there are.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Adds a request to the chunk being built. A session's request numbers must not exceed [`RequestNo::LARGEST`].
    ///
    /// # Errors
    /// The arguments were refused; nothing was submitted and no answer will come.
    #[inline]
    pub fn submit(
        &mut self,
        ticket: Ticket,
        call: Call,
        write_args: impl FnOnce(&mut ArgsBuilder<'_>),
    ) -> Result<(), PlanError> {
        self.submit_to(ticket, call, View::Since(Token::NOTHING), write_args).map(drop)
    }

    /// The same, and if it only reads it is to see what the view says. Answers which way it takes.
    ///
    /// # Errors
    /// As [`Gateway::submit`].
    #[inline]
    pub fn submit_to(
        &mut self,
        ticket: Ticket,
        mut call: Call,
        view: View,
        write_args: impl FnOnce(&mut ArgsBuilder<'_>),
    ) -> Result<Path, PlanError> {
        check_number(&mut call)?;
        if self.is_dependent(&call) {
            let mut args = Vec::new();
            write_args(&mut ArgsBuilder::new(&mut args));
            self.go_on(Dependent::new((ticket, None), call, args, view)).map_err(|(_, refusal)| refusal)?;
            self.outstanding += 1;
            // What it does in the end is not known yet.
            return Ok(Path::Order);
        }
        let (_, path) = self.admit(Asker::alone(ticket), call, view, write_args)?;
        self.outstanding += 1;
        Ok(path)
    }

    /// Whether a call takes several transactions.
    #[inline]
    fn is_dependent(&self, call: &Call) -> bool {
        self.registry.get(call.procedure).is_some_and(|procedure| procedure.is_dependent())
    }

    /// Plans a transaction and puts it in the chunk for its home, or for a snapshot; answers its place.
    #[inline]
    fn admit(
        &mut self,
        asker: Asker,
        call: Call,
        view: View,
        write_args: impl FnOnce(&mut ArgsBuilder<'_>),
    ) -> Result<((ChunkNo, u32), Path), PlanError> {
        let near = self.last_home;
        match self.admit_near(near, Asker { seat: None, ..asker }, call, view, write_args)? {
            Admitted::Placed(place, path) => Ok((place, path)),
            Admitted::NotYet(_) => Err(PlanError::fixed("ERR a request waits for itself; this is a bug")),
        }
    }

    /// Plans a transaction near one before it, and puts it where it belongs, unless others of its connection have to be
    /// answered first.
    #[inline]
    fn admit_near(
        &mut self,
        home: PartitionId,
        asker: Asker,
        call: Call,
        view: View,
        write_args: impl FnOnce(&mut ArgsBuilder<'_>),
    ) -> Result<Admitted, PlanError> {
        let is_ordered = view == View::Ordered || self.reads == Reads::Ordered;
        let near = usize::from(home.0);
        // A plan is large: it is made where the last one of the procedure lay, and moved if this one does not belong there.
        if !is_ordered && self.readers.contains(&call.procedure) {
            self.begin_read(&view);
            let is_read = self.reading.push(&self.registry, call, write_args)?.detached;
            if is_read && self.may_read(asker) {
                return Ok(Admitted::Placed(self.await_read(asker, view), Path::Snapshot));
            }
            if is_read || !self.may_order(asker) {
                return Ok(Admitted::NotYet(put_aside(&mut self.aside, &mut self.reading)));
            }
            self.readers.remove(&call.procedure);
            self.building[near].take(&mut self.reading);
            return Ok(Admitted::Placed(self.order(home, asker), Path::Order));
        }
        let is_read = self.building[near].push(&self.registry, call, write_args)?.detached && !is_ordered;
        if is_read {
            self.readers.insert(call.procedure);
            self.begin_read(&view);
        }
        if if is_read { !self.may_read(asker) } else { !self.may_order(asker) } {
            return Ok(Admitted::NotYet(put_aside(&mut self.aside, &mut self.building[near])));
        }
        if is_read {
            self.reading.take(&mut self.building[near]);
            return Ok(Admitted::Placed(self.await_read(asker, view), Path::Snapshot));
        }
        Ok(Admitted::Placed(self.order(home, asker), Path::Order))
    }

    /// Puts the transaction that was planned last, near another, in the chunk for its home.
    #[inline]
    fn order(&mut self, near: PartitionId, asker: Asker) -> (ChunkNo, u32) {
        let Gateway { layout, partition, .. } = self;
        let chunk = &self.building[usize::from(near.0)];
        let txn = chunk.txns().last().expect("it was planned just above");
        let session = txn.call.session.filter(|_| !txn.read_only);
        let may_be_led = session.is_some() || !txn.logged;
        let answers = || layout.partition_of_shard(chunk.collector(txn, layout));
        let (best, answers) = match session {
            _ if layout.partitions() == 1 => (*partition, *partition),
            Some((session, _)) => (layout.home_partition_of(session), answers()),
            None => (chunk.only_partition(txn, layout).unwrap_or(*partition), answers()),
        };
        let home = self.home_in_order(asker, best);
        let places = [home, near].map(|partition| usize::from(partition.0));
        // One and the same, mostly.
        if let Ok([there, here]) = self.building.get_disjoint_mut(places) {
            there.take(here);
        }
        self.last_home = home;
        self.await_answer((home, best), Waiter::new(asker, answers, may_be_led))
    }

    /// Notes who waits for the transaction that was put last in the chunk for a home, which may not be the best one.
    #[inline]
    fn await_answer(&mut self, (home, best): (PartitionId, PartitionId), waiter: Waiter) -> (ChunkNo, u32) {
        let chunk = &mut self.building[usize::from(home.0)];
        let place = note_waiter((&mut self.submitted, self.oldest), chunk, (home, None), waiter);
        if let Some(seat) = waiter.seat {
            self.sit_down(seat, place, (home, best));
        }
        let chunk = &self.building[usize::from(home.0)];
        if chunk.txns().len() >= MAX_CHUNK || chunk.bytes() >= MAX_CHUNK_BYTES {
            self.close(home);
        }
        place
    }

    /// Whether nothing else is read with what is to see this. One that has seen what nobody here has heard of may
    /// have to wait for it: no other waits with it.
    fn is_read_alone(&self, view: &View) -> bool {
        match view {
            View::At(_) | View::Open(_) => true,
            View::Since(token) => !self.newest.covers(token),
            View::Ordered => false,
        }
    }

    /// The next transaction will be put in the chunk of reads.
    fn begin_read(&mut self, view: &View) {
        if self.is_read_alone(view) && !self.reading.txns().is_empty() {
            self.close_reads();
        }
    }

    /// Notes who waits for the transaction that was put last in the chunk of reads.
    fn await_read(&mut self, asker: Asker, view: View) -> (ChunkNo, u32) {
        let is_alone = self.is_read_alone(&view);
        if let View::Since(token) | View::Open(token) = &view {
            self.since.merge(token);
        }
        let home = self.partition;
        let waiter = Waiter::new(asker, home, false);
        let place =
            note_waiter((&mut self.submitted, self.oldest), &mut self.reading, (home, Some(view)), waiter);
        if let Some(seat) = asker.seat {
            self.sit_down_to_read(seat, place);
        }
        if is_alone || self.reading.txns().len() >= MAX_CHUNK || self.reading.bytes() >= MAX_CHUNK_BYTES {
            self.close_reads();
        }
        place
    }

    /// How many requests are submitted and not finished.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// The next thing to send to a sequencer, if anything was asked for since the last; call it until there is none.
    pub fn flush(&mut self) -> Option<Departure> {
        if self.closed.is_empty() {
            self.close_all();
        }
        self.closed.pop_front()
    }

    fn close_all(&mut self) {
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
        let number = departure.chunk().map(|chunk| chunk.number.0);
        let at = number.and_then(|number| number.checked_sub(self.oldest.0));
        let waiters = at.and_then(|at| self.submitted.get(at as usize)).map(|submitted| &submitted.tickets);
        let waiters = waiters.into_iter().flatten();
        waiters.filter(|waiter| waiter.ticket.is_some()).map(|waiter| waiter.answers)
    }

    /// Something is to go to the sequencer of a node, and a replica is to answer. It may have been closed, or sent before,
    /// when another was to; what is to be sent is this. Nothing, as long as what was sent to that node before may not have
    /// come: then it [leaves later](Gateway::go_on_sending).
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
        let (Departure::Order(_, chunk) | Departure::Read(chunk, _)) = &mut departure else {
            return Some(departure);
        };
        let at = chunk.number.0.checked_sub(self.oldest.0);
        if let Some(submitted) = at.and_then(|at| self.submitted.get_mut(at as usize)) {
            submitted.asked = Some(node);
            if chunk.replica != replica && submitted.chunk.take().is_some() {
                Arc::make_mut(chunk).replica = replica;
                submitted.chunk = Some(chunk.clone());
            }
        }
        Some(departure)
    }

    /// A node has all that was sent to it before a pause. What waits for that may leave, ahead of all else.
    pub fn go_on_sending(&mut self, node: u16, pause: PauseNo) {
        let waiting = self.flows.get_mut(&node).map(|flow| flow.note_come(pause)).unwrap_or_default();
        self.leave_first(waiting);
    }

    /// A stream to a node has begun: its sequencer is asked for a word, which says that it has met this node too.
    pub fn greet(&mut self, node: u16) {
        self.closed.push_back(Departure::Word(node, Front::Pause(PauseNo::GREETING)));
    }

    fn leave_first(&mut self, waiting: VecDeque<Departure>) {
        let then = std::mem::replace(&mut self.closed, waiting);
        self.closed.extend(then);
    }

    fn close(&mut self, home: PartitionId) {
        let building = &mut self.building[usize::from(home.0)];
        let next = Chunk::after(building);
        let chunk = std::mem::replace(building, next);
        let chunk = self.closed(chunk);
        self.closed.push_back(Departure::Order(home, chunk));
    }

    fn close_reads(&mut self) {
        let next = Chunk::after(&self.reading);
        let chunk = std::mem::replace(&mut self.reading, next);
        let chunk = self.closed(chunk);
        let since = std::mem::take(&mut self.since);
        let view = &mut self.submitted[(chunk.number.0 - self.oldest.0) as usize].view;
        if let Some(View::Since(all)) = view {
            all.clone_from(&since);
        }
        let snapshot = match (view, self.reads) {
            (Some(View::At(token)), _) => Snapshot::At(token.clone()),
            (_, Reads::Previous) => Snapshot::Closed,
            (_, Reads::Strict) => Snapshot::Latest(since),
            (_, Reads::Session | Reads::Ordered) => Snapshot::Published(since),
        };
        self.closed.push_back(Departure::Read(chunk, snapshot));
    }

    /// A chunk is not being built any more.
    fn closed(&mut self, mut chunk: Chunk) -> Arc<Chunk> {
        let submitted = &mut self.submitted[(chunk.number.0 - self.oldest.0) as usize];
        submitted.is_open = false;
        if submitted.logs_reads {
            let waiters = &submitted.tickets;
            chunk.log_also(|index| waiters.get(index as usize).is_some_and(|waiter| !waiter.may_be_led));
        }
        let chunk = Arc::new(chunk);
        submitted.chunk = Some(chunk.clone());
        chunk
    }

    /// Puts a transaction of a chunk that was submitted into another chunk.
    fn ask_again(&mut self, asker: Asker, view: View, chunk: &Chunk, index: u32) -> Option<(ChunkNo, u32)> {
        let call = chunk.txns()[index as usize].call;
        self.ask_again_as(call, asker, view, chunk, index)
    }

    /// The same, as another call with its arguments.
    fn ask_again_as(
        &mut self,
        call: Call,
        asker: Asker,
        view: View,
        chunk: &Chunk,
        index: u32,
    ) -> Option<(ChunkNo, u32)> {
        let args = chunk.args(&chunk.txns()[index as usize]);
        let write = |out: &mut ArgsBuilder<'_>| args.iter().for_each(|arg| _ = out.push(arg.bytes));
        // It was planned before, so it is not refused now.
        self.admit(asker, call, view, write).ok().map(|(place, _)| place)
    }

    /// A transaction was planned under a map by which its slots are elsewhere, and took no effect: it is planned again under
    /// the one that was in force at its place.
    fn plan_again(&mut self, Refuted { number, index, asker, map }: Refuted) {
        let submitted = &self.submitted[(number.0 - self.oldest.0) as usize];
        let (Some(chunk), view) = (submitted.chunk.clone(), submitted.view.clone()) else { return };
        let known = self.map().clone();
        let is_newer = map.version() > known.version();
        let mut dependent = self.dependents.remove(&(number, index));
        let txn = &chunk.txns()[index as usize];
        let at = if let Some(view) = view {
            // The state that was to be read may be of before a move that is known here.
            let is_of_one_state = matches!(view, View::At(_));
            let late = asker.late;
            let again = if late < MAX_LATE || is_of_one_state { view } else { View::Ordered };
            let asker = Asker { late: late + 1, ..asker };
            if let Some(seat) = asker.seat {
                if is_newer {
                    self.plan_by(&map);
                }
                return self.come_back(seat, true, Held::of(asker, Some(again), &chunk, index, false));
            }
            self.plan_by(if again == View::Ordered && !is_newer { &known } else { &map });
            let at = self.ask_again(asker, again, &chunk, index);
            self.plan_by(if is_newer { &map } else { &known });
            at
        } else {
            // What is known here may be newer, or may be of a part of the order that was lost.
            if is_newer || chunk.map == known {
                self.plan_by(&map);
            }
            let mut call = txn.call;
            if let Some((_, request)) = call.session.as_mut().filter(|_| !txn.read_only) {
                // It was sequenced under that number.
                *request = next_attempt(*request);
            }
            if let Some(Dependent { call: asked, step: Stage::Running, .. }) = &mut dependent {
                asked.session = call.session;
            }
            if let Some(seat) = asker.seat {
                let mut held = Held::of(asker, None, &chunk, index, false);
                held.call = call;
                return self.come_back(seat, false, held);
            }
            self.ask_again_as(call, asker, View::Ordered, &chunk, index)
        };
        if let (Some(at), Some(dependent)) = (at, dependent) {
            self.dependents.insert(at, dependent);
        }
    }

    /// The state that some reads were to see is not kept any more: they are asked again for a later one, and in the end
    /// in the order.
    fn read_again(&mut self, late: Vec<(ChunkNo, u32, Asker)>) {
        for (number, index, asker) in late {
            let submitted = &self.submitted[(number.0 - self.oldest.0) as usize];
            let Some(chunk) = submitted.chunk.clone() else { continue };
            let view = submitted.view.clone().filter(|_| asker.late < MAX_LATE).unwrap_or(View::Ordered);
            if let Some(seat) = asker.seat {
                self.come_back(seat, true, Held::of(asker, Some(view), &chunk, index, false));
                continue;
            }
            let dependent = self.dependents.remove(&(number, index));
            if let Some(at) = self.ask_again(asker, view, &chunk, index) {
                dependent.map(|dependent| self.dependents.insert(at, dependent));
            }
        }
    }

    fn forget_finished(&mut self) {
        while self.submitted.front().is_some_and(|s| s.left == 0 && !s.is_open) {
            self.submitted.pop_front();
            self.oldest.0 += 1;
        }
    }

    /// Nobody wants more of a state that was kept.
    pub fn release(&mut self, lease: Lease) {
        self.closed.push_back(Departure::Word(lease.node, Front::ReadDone(self.id, lease.number)));
    }

    /// Takes outcomes and reports each request that they finish. An outcome that nobody waits for (the node was
    /// restarted, or it came twice) is ignored.
    pub fn take_outcomes(&mut self, batch: &OutcomeBatch, mut done: impl FnMut(Finished<'_>)) {
        self.take_outcomes_with(batch, |_, finished| done(finished));
    }

    /// The same for callers that may have something to submit at once.
    pub fn take_outcomes_with(
        &mut self,
        batch: &OutcomeBatch,
        mut done: impl FnMut(&mut Gateway, Finished<'_>),
    ) {
        let (mut late, mut refuted) = (Vec::new(), Vec::new());
        for outcome in &batch.outcomes {
            let Some(at) = outcome.chunk.0.checked_sub(self.oldest.0) else { continue };
            let Some(submitted) = self.submitted.get_mut(at as usize) else { continue };
            let waiter = submitted.tickets.get_mut(outcome.index as usize);
            let Some((ticket, was_late, is_again, seat)) = waiter
                .and_then(|waiter| Some((waiter.ticket.take()?, waiter.late, waiter.is_again, waiter.seat)))
            else {
                continue;
            };
            submitted.left -= 1;
            let asker = Asker { ticket, late: was_late, seat };
            // As it was told when it was submitted.
            let path = if submitted.view.is_some() || was_late > 0 { Path::Snapshot } else { Path::Order };
            let mut lease = None;
            if submitted.view.is_some() && submitted.left == 0 {
                let node = submitted.asked.unwrap_or(self.id.node());
                let is_kept = matches!(submitted.view, Some(View::Open(_)));
                if is_kept && outcome.status == OutcomeStatus::Committed {
                    lease = Some(Lease { node, number: outcome.chunk });
                } else {
                    self.closed.push_back(Departure::Word(node, Front::ReadDone(self.id, outcome.chunk)));
                }
            }
            if outcome.status == OutcomeStatus::TooOld
                && matches!(submitted.view, Some(View::Since(_) | View::Open(_)))
            {
                late.push((outcome.chunk, outcome.index, Asker { late: was_late + 1, ..asker }));
                continue;
            }
            if outcome.status == OutcomeStatus::Moved
                && let Some(map) = Map::decode(&mut Reader(batch.reply(outcome)))
            {
                let Outcome { chunk: number, index, .. } = *outcome;
                refuted.push(Refuted { number, index, asker, map });
                continue;
            }
            if let Some(seat) = seat
                && submitted.is_of_another_run(outcome, &*self.backend)
                && let Some(chunk) = submitted.chunk.clone()
            {
                // It only reads, and was run once more, behind what follows it: that place is not its own.
                self.come_back(seat, false, Held::of(asker, None, &chunk, outcome.index, false));
                continue;
            }
            let is_read = submitted.view.is_some();
            // One sequencer has turned it away, and another may have it still.
            let is_turned_away = matches!(outcome.status, OutcomeStatus::Busy | OutcomeStatus::Refused);
            let is_elsewhere = is_turned_away && (is_again || !submitted.formerly.is_empty());
            let status = if is_elsewhere { OutcomeStatus::Unknown } else { outcome.status };
            let (token, reply) = (batch.token(outcome), batch.reply(outcome));
            self.newest.merge(token);
            let dependent = match self.dependents.is_empty() {
                true => None,
                false => self.dependents.remove(&(outcome.chunk, outcome.index)),
            };
            let (stamp, outcome) = (outcome.stamp, Some(outcome));
            let finished =
                Finished { ticket, status, stamp, token, path, reply, restarts: 0, lease, outcome };
            match dependent {
                None => {
                    self.outstanding -= 1;
                    self.leave_seat(seat, is_read, &finished);
                    done(self, finished);
                }
                Some(dependent) => {
                    self.take_step(dependent, Finished { path: Path::Order, ..finished }, &mut done);
                }
            }
        }
        if !late.is_empty() {
            self.read_again(late);
        }
        refuted.into_iter().for_each(|refuted| self.plan_again(refuted));
        self.go_on_with_held(&mut done);
        self.forget_finished();
    }

    /// A transaction of a dependent request has ended: the request goes on or is finished.
    fn take_step(
        &mut self,
        mut dependent: Dependent,
        step: Finished<'_>,
        done: &mut impl FnMut(&mut Gateway, Finished<'_>),
    ) {
        let learnt = match (step.status, &dependent.step) {
            (OutcomeStatus::Committed, Stage::Reading(wanted)) => {
                system::read_reply(wanted.iter().map(|(db, key)| (*db, &**key)), step.reply)
                    .map(|read| read.into_iter().for_each(|evidence| dependent.known.learn(evidence)))
            }
            (OutcomeStatus::Committed, Stage::Asking) => {
                dependent.known.answers.push(step.reply.to_vec());
                Some(())
            }
            (OutcomeStatus::Aborted(Abort::Restart), Stage::Running) if dependent.restarts < MAX_RESTARTS => {
                dependent.restarts += 1;
                if let Some((_, request)) = &mut dependent.call.session {
                    *request = next_attempt(*request);
                }
                learn_from_restart(&mut dependent.known, step.reply)
            }
            // It has used what is undone, and has learnt nothing: it asks again.
            (OutcomeStatus::Aborted(Abort::Cascade), Stage::Reading(_) | Stage::Asking)
                if dependent.restarts < MAX_RESTARTS =>
            {
                dependent.restarts += 1;
                Some(())
            }
            _ => None,
        };
        let restarts = dependent.restarts;
        if learnt.is_none() {
            self.outstanding -= 1;
            let mut reply = Vec::new();
            if step.status == OutcomeStatus::Aborted(Abort::Restart) {
                Writer(&mut reply).abort(Abort::Restart);
            } else {
                reply.extend_from_slice(step.reply);
            }
            self.leave_seat(dependent.seat, false, &step);
            return done(self, Finished { reply: &reply, restarts, outcome: None, ..step });
        }
        let seat = dependent.seat;
        if let Err((ticket, refusal)) = self.go_on(dependent) {
            self.outstanding -= 1;
            self.leave_seat(seat, false, &step);
            let mut reply = Vec::new();
            Writer(&mut reply).error(&refusal.0);
            let status = OutcomeStatus::Aborted(Abort::Logic);
            done(
                self,
                Finished { ticket, status, reply: &reply, restarts, lease: None, outcome: None, ..step },
            );
        }
    }

    /// Submits whatever the dependent request needs next.
    fn go_on(&mut self, mut dependent: Dependent) -> Result<(), (Ticket, PlanError)> {
        let (ticket, view) = (dependent.ticket, dependent.view.clone());
        let waits = Asker::alone(ticket);
        let refuse = |refusal| (ticket, refusal);
        let registry = self.registry.clone();
        let damaged = || (ticket, PlanError::fixed("ERR damaged arguments"));
        let procedure = registry.get(dependent.call.procedure).ok_or_else(damaged)?;
        let args = Args::parse(&dependent.args).ok_or_else(damaged)?;
        let at = match procedure.reconnoitre(args, &dependent.known).map_err(refuse)? {
            Reconnaissance::Read(keys) => {
                let call = Call::new(system::READ, dependent.call.db);
                let reads = keys.iter().map(|(db, key)| (*db, &**key));
                let write = |args: &mut ArgsBuilder<'_>| system::read_args(reads, args);
                let (at, _) = self.admit(waits, call, view, write).map_err(refuse)?;
                dependent.step = Stage::Reading(keys);
                at
            }
            Reconnaissance::Ask(procedure, args) => {
                let args = Args::parse(&args).ok_or_else(damaged)?;
                let call = Call::new(procedure, dependent.call.db);
                let write = |out: &mut ArgsBuilder<'_>| args.iter().for_each(|arg| _ = out.push(arg.bytes));
                dependent.step = Stage::Asking;
                self.admit(waits, call, view, write).map_err(refuse)?.0
            }
            Reconnaissance::Ready(args) => {
                let args = Args::parse(&args).ok_or_else(damaged)?;
                let write = |out: &mut ArgsBuilder<'_>| args.iter().for_each(|arg| _ = out.push(arg.bytes));
                dependent.step = Stage::Running;
                self.admit(waits, dependent.call, view, write).map_err(refuse)?.0
            }
        };
        self.dependents.insert(at, dependent);
        Ok(())
    }
}

impl Finished<'_> {
    /// A request that has taken effect nowhere, as far as is known, without a reply.
    pub const fn nowhere(ticket: Ticket, status: OutcomeStatus, path: Path) -> Finished<'static> {
        let (stamp, token) = (Stamp::NONE, &Token::NOTHING);
        Finished { ticket, status, stamp, token, path, reply: &[], restarts: 0, lease: None, outcome: None }
    }

    /// Nobody can tell how it ended.
    const fn unknown(ticket: Ticket, path: Path) -> Finished<'static> {
        Finished::nowhere(ticket, OutcomeStatus::Unknown, path)
    }
}

/// The number of the next attempt at a request. So many that they do not fit are none that anybody makes; they must not
/// become another request.
fn next_attempt(RequestNo(number): RequestNo) -> RequestNo {
    RequestNo(if number & 0xff == 0xff { number } else { number + 1 })
}

/// Numbers the first attempt at a request of a session.
#[inline]
fn check_number(call: &mut Call) -> Result<(), PlanError> {
    if let Some((_, request)) = &mut call.session {
        if request.0 > RequestNo::LARGEST {
            return Err(PlanError::fixed("ERR request number exceeds 2^56 - 1"));
        }
        request.0 <<= 8;
    }
    Ok(())
}

/// Takes the last transaction out of a chunk again; answers its arguments.
fn put_aside(aside: &mut Chunk, chunk: &mut Chunk) -> Vec<u8> {
    aside.take(chunk);
    let args = aside.txns().last().map(|txn| aside.args(txn).encoded().to_vec());
    // Only its arguments are wanted.
    aside.clear();
    args.unwrap_or_default()
}

/// Notes who waits for the last transaction of a chunk that is being built; answers its place.
#[inline]
fn note_waiter(
    (all, oldest): (&mut VecDeque<Submitted>, ChunkNo),
    chunk: &mut Chunk,
    (home, view): (PartitionId, Option<View>),
    waiter: Waiter,
) -> (ChunkNo, u32) {
    let index = chunk.span() - 1;
    if index == 0 {
        chunk.number = ChunkNo(oldest.0 + all.len() as u64);
        let tickets = Vec::with_capacity(all.back().map_or(0, |last| last.tickets.len()));
        let (asked, formerly) = (None, Vec::new());
        let (left, chunk, is_open, logs_reads, base) = (0, None, true, false, None);
        let submitted =
            Submitted { tickets, left, home, chunk, asked, formerly, view, is_open, logs_reads, base };
        all.push_back(submitted);
    }
    let submitted = &mut all[(chunk.number.0 - oldest.0) as usize];
    submitted.tickets.push(waiter);
    submitted.left += 1;
    (chunk.number, index)
}

/// What the reply of a restart says is known now, in place of what was thought; `None` for damaged bytes.
fn learn_from_restart(known: &mut Known, reply: &[u8]) -> Option<()> {
    match Datum::first(reply) {
        Datum::Array(_) => {
            system::restart_evidence(reply)?.into_iter().for_each(|evidence| known.learn(evidence));
        }
        Datum::Bulk(_) => known.answers = vec![reply.to_vec()],
        _ => return None,
    }
    Some(())
}
