//! The clients of one loop, and the gateway through which they ask.

use std::collections::BTreeSet;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use ordain_family::{Incoming, Message};
use ordain_gateway::{Dispatcher, Gateway, Path, Ticket};
use ordain_model::{
    Args, ArgsBuilder, Call, Db, Epoch, Front, Micros, OutcomeBatch, OutcomeStatus, PauseNo, ProcedureId,
    Token, View, system,
};
use ordain_role::{Event, NodeId, Now, Outbox, PeerChange, PeerState, Role, TimerId};
use ordain_runtime::{Edge, Tokens, Turn};
use ordain_workload::{Class, Made, Source, Times};

use super::LoopUse;
use super::classes::Free;
use super::waiting::{Turns, Waiting};
use crate::loading::{Asked, TurnedAway};
use crate::meter::{Meter, thread_cpu};
use crate::schedule::{Schedule, next_request};
use crate::stage::{Stage, Stages};
use crate::staleness::{Answered, Staleness};
use crate::tally::{Answer, Book};

/// A message of a population to the leading thread.
#[derive(Debug)]
pub(super) enum Update {
    Loaded,
    Drained(Box<Report>),
    /// Answers to its audits, in order.
    Audited(Place, Vec<Vec<u8>>),
    Failed(String),
    /// The population has ended, and its node with it.
    Gone(Place),
}

/// Transactions of loading under way at most: enough to hide a sync.
const LOAD_WINDOW: usize = 64;

/// The transactions of loading that have not taken effect yet: those under way, by client, and those that were turned away.
#[derive(Debug)]
struct Loading {
    asked: Vec<Option<Asked>>,
    turned: TurnedAway,
}

/// The place of a population.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Number of the set of data, where nodes are apart.
    pub data: usize,
    pub replica: u16,
    /// Number of the node, of all that run.
    pub node: u16,
}

/// The outcome of a population.
#[derive(Debug)]
pub(super) struct Report {
    pub place: Place,
    pub book: Book,
    pub summary: Vec<u8>,
    pub staleness: Option<Staleness>,
    /// Times of its transactions by their names.
    pub times: Vec<(u64, Times)>,
    pub used: LoopUse,
    /// True if the loop has clients.
    pub has_clients: bool,
    /// True if the loop never saw that measuring had begun.
    pub missed: bool,
}

/// A source for a loop whose clients ask for nothing.
pub(super) struct NoClients;

impl Source for NoClients {
    fn load(&mut self) -> Option<ProcedureId> {
        None
    }

    fn next(&mut self) -> Made {
        Made { procedure: ProcedureId(0), kind: 0 }
    }

    fn write_args(&self, _args: &mut ArgsBuilder<'_>) {}
}

/// A stop-watch's reading of a loop.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    cpu: Duration,
    meters: Vec<Duration>,
}

/// The clients of a loop.
pub(super) struct Clients {
    pub clients: usize,
    /// The workload's classes. In an open loop, where any client asks for what is due, there are none.
    pub classes: Vec<Class>,
    /// Transactions a second, in an open loop.
    pub rate: Option<f64>,
    /// Transactions to ask for, if that ends the run.
    pub budget: Option<u64>,
    /// Seed and stream of everything that is drawn.
    pub seed: (u64, u64),
    /// Longest wait without an answer, while all loops turn.
    pub patience: Micros,
    /// True: staleness is measured.
    pub watch: bool,
    /// A checkpoint is wanted while measuring; and if so, whether it is they who ask for it.
    pub checkpoint: Option<bool>,
}

/// The nodes that a population asks.
pub(super) struct Reach {
    pub dispatcher: Dispatcher,
    /// Nodes whose stream with this one has not begun yet.
    pub unmet: BTreeSet<NodeId>,
    /// Nodes that have not answered this one's greeting yet: it asks for nothing before all of them have.
    pub ungreeted: BTreeSet<NodeId>,
}

/// The connection of a population with the leading thread and the other populations.
pub(super) struct Shared {
    /// Turns of all loops, and the number of this one.
    pub turns: (Turns, usize),
    pub stages: Arc<Stages>,
    pub answered: Arc<Answered>,
    pub updates: Sender<Update>,
}

/// Meters of the processor time of a loop.
pub(super) struct Meters {
    /// The loop's roles, by name, and the parts of the population.
    pub parts: Vec<(&'static str, Meter)>,
    pub generating: Meter,
    pub planning: Meter,
    pub answering: Meter,
}

/// Requests that were made up and not yet submitted: who asks for what, and where its arguments are.
///
/// They are made up together, so that the client's work is measured where it is done: what it draws from may be out of
/// the cache by then, and that is no cost of the system's.
#[derive(Default)]
struct Requests {
    list: Vec<(u32, ProcedureId, Range<usize>)>,
    args: Vec<u8>,
}

/// The clients of one loop, and their gateway.
pub(super) struct Population<M> {
    place: Place,
    gateway: Gateway,
    source: Box<dyn Source>,
    clients: Clients,
    reach: Reach,
    shared: Shared,
    meters: Meters,
    schedule: Option<Schedule>,
    /// Transactions left to ask for, if that ends the run.
    budget: Option<u64>,
    audits: Vec<ProcedureId>,
    /// True: it audits the records that it has loaded.
    audits_own: bool,
    /// True: its answers to audits are waited for, even if there are none.
    is_auditor: bool,
    answers: Vec<Vec<u8>>,
    /// Since there last was an answer, or nothing to wait for.
    waiting: Waiting,
    /// The stage acted upon, and whether it is done with.
    stage: Stage,
    done: bool,
    stopping: bool,
    /// Clients without a transaction under way.
    free: Free,
    /// Time at which each client's transaction was submitted, or was due; and its kind.
    submitted: Vec<(Micros, u8)>,
    /// Token of each client: its next read holds that.
    seen: Vec<Token>,
    /// Time at which each client's transaction was handed to the gateway, if staleness is measured.
    handed: Vec<Instant>,
    staleness: Option<Staleness>,
    /// Times of transactions by their names, if staleness is measured and they have some.
    times: Vec<(u64, Times)>,
    book: Book,
    requests: Requests,
    loading: Loading,
    begun: Option<Reading>,
    ended: Option<Reading>,
    /// Measuring was over when this loop looked.
    missed: bool,
    messages: PhantomData<fn(M)>,
}

/// A population looks for the next stage when something happens, and besides this often: when nothing is under
/// way, and when it waits for answers.
const LOOK: TimerId = TimerId(0);
const LOOK_IDLE: Micros = Micros::from_millis(1);
const LOOK_WAITING: Micros = Micros::from_millis(50);
/// Without clients there is no hurry, and no processor time to waste.
const LOOK_AT_OTHERS: Micros = Micros::from_millis(20);
/// The ticket of the first audit; the next have smaller ones. Clients number from 0.
const AUDIT_TICKET: u64 = u64::MAX;
/// The ticket of a checkpoint, whose answer no client waits for.
const CHECKPOINT_TICKET: u64 = 1 << 63;

impl<M: Message> Population<M> {
    #[expect(clippy::too_many_arguments, reason = "each is a group of its own already")]
    pub fn new(
        place: Place,
        gateway: Gateway,
        (source, clients): (Box<dyn Source>, Clients),
        reach: Reach,
        (audits, audits_own): (Vec<ProcedureId>, bool),
        shared: Shared,
        book: Book,
        meters: Meters,
    ) -> Self {
        Self {
            place,
            gateway,
            source,
            reach,
            waiting: Waiting::new(shared.turns.0.clone()),
            shared,
            meters,
            schedule: None,
            budget: clients.budget,
            is_auditor: audits_own || !audits.is_empty(),
            audits,
            audits_own,
            answers: Vec::new(),
            stage: Stage::Load,
            done: false,
            stopping: false,
            free: Free::alike(LOAD_WINDOW),
            submitted: vec![(Micros(0), 0); clients.clients.max(LOAD_WINDOW)],
            seen: vec![Token::NOTHING; clients.clients.max(LOAD_WINDOW)],
            handed: vec![Instant::now(); if clients.watch { clients.clients.max(LOAD_WINDOW) } else { 0 }],
            staleness: None,
            times: Vec::new(),
            clients,
            book,
            requests: Requests::default(),
            loading: Loading { asked: vec![None; LOAD_WINDOW], turned: TurnedAway::default() },
            begun: None,
            ended: None,
            missed: false,
            messages: PhantomData,
        }
    }

    /// Acts upon the stage, and submits for every client that is free.
    fn go_on(&mut self, now: Now, out: &mut Outbox<M>) {
        let stage = self.shared.stages.stage();
        if stage != self.stage {
            self.enter(stage, now.elapsed);
            self.waiting.reset(now.elapsed);
        }
        if !self.stopping
            && let Err(refusal) = self.submit(now.elapsed)
        {
            self.send(Update::Failed(refusal));
        }
        self.reach.dispatcher.flush(&mut self.gateway, now.elapsed, |to, message| out.send(to, message));
        if self.gateway.outstanding() == 0 {
            self.waiting.reset(now.elapsed);
            self.finish_stage(now.elapsed);
        } else if self.is_audited() || self.waiting.waited(now.elapsed) > self.clients.patience {
            self.finish_stage(now.elapsed);
        }
        let look = match (self.clients.clients, self.gateway.outstanding()) {
            (0, 0) => LOOK_AT_OTHERS,
            (_, 0) => LOOK_IDLE,
            _ => LOOK_WAITING,
        };
        match &self.schedule {
            Some(schedule) if self.free.ready().is_some() && self.stage < Stage::Drain => {
                out.set_timer(LOOK, schedule.next().since(now.elapsed).min(look));
            }
            _ if self.gateway.outstanding() == 0 => out.set_timer(LOOK, look),
            _ => {}
        }
    }

    /// The stream to another node has changed. All of them must be there at first; what is under way when one begins
    /// anew is lost, and with it the run.
    fn peer_changed(&mut self, change: PeerChange, now: Micros) {
        // Nothing is given up: a run whose answers are lost has failed.
        let _ = self.reach.dispatcher.change(&mut self.gateway, now, change);
        if change.state == PeerState::Fresh && !self.reach.unmet.remove(&change.node) {
            let (here, there) = (self.place.node, change.node.0);
            self.send(Update::Failed(format!(
                "the stream between nodes {here} and {there} began anew, and what was under way is lost: more had to be \
                 kept than a link may keep"
            )));
        }
    }

    /// True if the budget is spent. Loading is no part of it.
    fn is_spent(&self) -> bool {
        self.stage != Stage::Load && self.budget == Some(0)
    }

    /// Every audit is answered, though other transactions may never be.
    fn is_audited(&self) -> bool {
        self.stage == Stage::Audit && !self.audits_own && self.answers.iter().all(|answer| !answer.is_empty())
    }

    fn enter(&mut self, stage: Stage, now: Micros) {
        if self.stage == Stage::Load {
            let classes = if self.clients.rate.is_none() { &self.clients.classes[..] } else { &[] };
            self.free = Free::of(self.clients.clients, classes);
            let (seed, stream) = self.clients.seed;
            self.schedule = self.clients.rate.map(|rate| Schedule::new(rate, now, seed, stream));
        }
        if stage >= Stage::Measure && self.begun.is_none() {
            self.missed = stage > Stage::Measure;
            self.begun = Some(self.read_watch());
            self.book.begin(now);
            if self.clients.checkpoint.is_some() {
                self.book.expect_checkpoint(now);
            }
            self.staleness = self.clients.watch.then(Staleness::new);
        }
        // A loop that was held up for all of the time measured has measured nothing, and reports that.
        if stage > Stage::Measure {
            self.end_measuring(now);
        }
        // A budget that was spent has been reported while measuring: there is nothing left to drain. A loop that comes here from
        // loading, as it was held up for all of the time measured, has its report to give.
        self.done &= self.stage == Stage::Measure && stage == Stage::Drain;
        self.stage = stage;
    }

    fn read_watch(&self) -> Reading {
        Reading {
            cpu: thread_cpu(),
            meters: self.meters.parts.iter().map(|(_, meter)| meter.total()).collect(),
        }
    }

    fn end_measuring(&mut self, now: Micros) {
        if self.ended.is_none() {
            self.ended = Some(self.read_watch());
            self.book.answered(now, self.shared.stages.is_capturing());
            self.book.end(now, self.schedule.as_ref(), self.budget.unwrap_or(u64::MAX));
        }
    }

    fn submit(&mut self, now: Micros) -> Result<(), String> {
        if self.clients.checkpoint == Some(true)
            && self.stage == Stage::Measure
            && self.shared.stages.takes_checkpoint()
        {
            let call = Call::new(system::CHECKPOINT, Db(0));
            let refused = self.gateway.submit_to(Ticket(CHECKPOINT_TICKET), call, View::Ordered, |_| {});
            refused.map_err(|refusal| format!("a checkpoint was refused: {refusal}"))?;
        }
        match self.stage {
            Stage::Load | Stage::Audit if self.done => return Ok(()),
            Stage::Load | Stage::WarmUp | Stage::Measure if self.free.ready().is_none() => return Ok(()),
            Stage::Drain => return Ok(()),
            _ => {}
        }
        if self.stage == Stage::Audit {
            let meter = self.meters.planning.clone();
            return meter.time(|| self.ask_audits());
        }
        let meter = self.meters.generating.clone();
        meter.time(|| self.make_up(now));
        let meter = self.meters.planning.clone();
        meter.time(|| self.ask())
    }

    fn ask_audits(&mut self) -> Result<(), String> {
        for (i, audit) in self.audits.drain(..).enumerate() {
            let call = Call::new(audit, Db(0));
            // Audits see everything, whatever the node does with reads.
            let ticket = Ticket(AUDIT_TICKET - i as u64);
            let refused = self.gateway.submit_to(ticket, call, View::Ordered, |_| {});
            refused.map_err(|refusal| format!("an audit was refused: {refusal}"))?;
            self.answers.push(Vec::new());
        }
        // All at once would be too many.
        while self.audits_own && self.gateway.outstanding() < LOAD_WINDOW {
            let Some(procedure) = self.source.audit() else {
                self.audits_own = false;
                break;
            };
            let mut args = Vec::new();
            self.source.write_args(&mut ArgsBuilder::new(&mut args));
            let args = Args::parse(&args).ok_or("a workload wrote damaged arguments")?;
            let ticket = Ticket(AUDIT_TICKET - self.answers.len() as u64);
            let call = Call::new(procedure, Db(0));
            let refused = self.gateway.submit_to(ticket, call, View::Ordered, |out| _ = out.append(args));
            refused.map_err(|refusal| format!("an audit was refused: {refusal}"))?;
            self.answers.push(Vec::new());
        }
        Ok(())
    }

    /// The clients' own work: what those that are free ask for next.
    fn make_up(&mut self, now: Micros) {
        if self.stage == Stage::Load {
            self.ask_again();
        }
        while let Some(place) = self.free.ready().filter(|_| !self.is_spent()) {
            let Self { stage, source, schedule, budget, free, .. } = self;
            let Some((Made { procedure, kind }, asked)) =
                next_request(*stage, &mut **source, free.class(place), schedule.as_mut(), budget, now)
            else {
                break;
            };
            let Some(client) = self.free.take(place) else { break };
            self.submitted[client as usize] = (asked, kind);
            let Requests { list, args } = &mut self.requests;
            let start = args.len();
            self.source.write_args(&mut ArgsBuilder::new(args));
            if self.stage == Stage::Load {
                self.loading.asked[client as usize] = Some(Asked::first(procedure, &args[start..]));
            }
            list.push((client, procedure, start..args.len()));
        }
    }

    /// The clients' work for what was turned away while loading.
    fn ask_again(&mut self) {
        let Self { free, loading, requests: Requests { list, args }, .. } = self;
        while let Some(place) = free.ready()
            && let Some(asked) = loading.turned.next()
            && let Some(client) = free.take(place)
        {
            let start = args.len();
            args.extend_from_slice(&asked.args);
            list.push((client, asked.procedure, start..args.len()));
            loading.asked[client as usize] = Some(asked);
        }
    }

    /// The connection server's work: plans what was made up.
    fn ask(&mut self) -> Result<(), String> {
        let Requests { list, args } = &mut self.requests;
        let now = self.clients.watch.then(Instant::now);
        for (client, procedure, at) in list.drain(..) {
            if let Some((handed, now)) = self.handed.get_mut(client as usize).zip(now) {
                *handed = now;
            }
            let call = Call::new(procedure, Db(0));
            let args = Args::parse(&args[at]).ok_or("a workload wrote damaged arguments")?;
            let view = View::Since(self.seen[client as usize].clone());
            self.gateway
                .submit_to(Ticket(u64::from(client)), call, view, |out| _ = out.append(args))
                .map_err(|refusal| format!("a transaction of the workload was refused: {refusal}"))?;
        }
        args.clear();
        Ok(())
    }

    /// Reports the end of a stage, once: nothing is under way, or nothing that will be answered.
    fn finish_stage(&mut self, now: Micros) {
        if self.done {
            return;
        }
        let given_up = self.gateway.outstanding() > 0;
        match self.stage {
            Stage::Load => self.send(Update::Loaded),
            Stage::Measure if self.budget.is_some_and(|left| left == 0 || given_up) => {
                self.end_measuring(now);
                self.report();
            }
            Stage::Drain => self.report(),
            Stage::Audit if self.is_auditor => {
                let answers = std::mem::take(&mut self.answers);
                self.send(Update::Audited(self.place, answers));
            }
            Stage::WarmUp | Stage::Measure | Stage::Audit => return,
        }
        self.done = true;
    }

    fn report(&mut self) {
        let (Some(begun), Some(ended)) = (self.begun.clone(), self.ended.clone()) else { return };
        let spent = ended.meters.iter().zip(&begun.meters).map(|(end, begin)| end.saturating_sub(*begin));
        let parts: Vec<(&'static str, Duration)> =
            self.meters.parts.iter().map(|(name, _)| *name).zip(spent).collect();
        let summary = self.source.summary();
        let used = LoopUse { node: self.place.node, cpu: ended.cpu.saturating_sub(begun.cpu), parts };
        let mut book = self.book.clone();
        book.unanswered = self.gateway.outstanding() as u64;
        let report = Report {
            place: self.place,
            book,
            summary,
            staleness: self.staleness.clone(),
            times: std::mem::take(&mut self.times),
            used,
            has_clients: self.clients.clients > 0,
            missed: self.missed,
        };
        self.send(Update::Drained(Box::new(report)));
    }

    fn send(&self, update: Update) {
        // If the channel is closed, the run has been given up.
        let _ = self.shared.updates.send(update);
    }

    fn take(&mut self, outcomes: &OutcomeBatch, now: Micros) {
        self.waiting.reset(now);
        let Self { gateway, source, stage, free, submitted, seen, book, .. } = self;
        book.answered(now, self.shared.stages.is_capturing());
        let watched = self.clients.watch.then(Instant::now);
        let (mut committed, mut lost) = (0, 0);
        gateway.take_outcomes(outcomes, |finished| {
            if *stage == Stage::Audit {
                if let Some(answer) = self.answers.get_mut((AUDIT_TICKET - finished.ticket.0) as usize) {
                    *answer = finished.reply.to_vec();
                }
                return;
            }
            if finished.ticket.0 == CHECKPOINT_TICKET {
                return;
            }
            let client = finished.ticket.0 as u32;
            free.give_back(client);
            seen[client as usize].merge(finished.token);
            let (asked, kind) = submitted[client as usize];
            let is_committed = finished.status == OutcomeStatus::Committed;
            committed += u64::from(is_committed);
            if *stage == Stage::Load {
                let Loading { asked, turned } = &mut self.loading;
                let asked = asked[client as usize].take();
                lost += u64::from(!asked.is_some_and(|asked| turned.ended(asked, finished.status)));
                return;
            }
            if let Some(answered_at) = watched {
                let epoch = Epoch::from(finished.token);
                match finished.path {
                    Path::Order => self.shared.answered.note(epoch, answered_at),
                    Path::Snapshot if *stage == Stage::Measure => {
                        let handed = self.handed[client as usize];
                        let staleness = self.shared.answered.staleness(epoch, handed);
                        self.staleness.iter_mut().for_each(|all| all.note(staleness));
                    }
                    Path::Snapshot => {}
                }
                if let Some(name) = source.name_of(finished.reply).filter(|_| is_committed) {
                    let [asked, answered] =
                        [self.handed[client as usize], answered_at].map(|at| self.shared.answered.moment(at));
                    self.times.push((name, Times { asked, answered, counts: *stage == Stage::Measure }));
                }
            }
            source.answered(kind, finished.status, finished.reply);
            let (status, restarts) = (finished.status, finished.restarts.into());
            book.note(Answer { kind, status, restarts, asked, now });
        });
        if lost > 0 {
            self.send(Update::Failed("the node turned away transactions that load the data".to_owned()));
        }
        self.shared.stages.answered.fetch_add(committed, Ordering::Relaxed);
    }
}

impl<M: Message> Role for Population<M> {
    type Message = M;

    fn handle(&mut self, now: Now, event: Event<M>, out: &mut Outbox<M>) {
        match event {
            Event::Message { from, message } => match message.incoming() {
                Incoming::Front(Front::Outcomes(outcomes)) => {
                    let meter = self.meters.answering.clone();
                    meter.time(|| self.take(&outcomes, now.elapsed));
                }
                Incoming::Front(Front::Continue(PauseNo::GREETING)) => {
                    self.reach.ungreeted.remove(&from.node);
                    // Nothing has been asked for yet.
                    let _ = self.reach.dispatcher.greeted(from.node);
                }
                Incoming::Front(Front::Continue(pause)) => self.gateway.go_on_sending(from.node.0, pause),
                Incoming::Peer(change) => self.peer_changed(change, now.elapsed),
                Incoming::Front(_) | Incoming::Role(_) => {
                    out.halt("a population of clients was sent a message that is not for it");
                }
            },
            Event::Start | Event::Timer(_) => out.set_timer(LOOK, LOOK_WAITING),
            Event::Disk(_) | Event::Work(_) | Event::Stop => {}
        }
    }

    fn name(&self) -> &'static str {
        "clients"
    }
}

impl<M: Message> Edge for Population<M> {
    fn register(&mut self, _registry: mio::Registry, _tokens: Tokens) -> io::Result<()> {
        Ok(())
    }

    fn ready(&mut self, _event: &mio::event::Event, _now: Now, _out: &mut Outbox<M>) {}

    fn turn(&mut self, _now: Now, _out: &mut Outbox<M>) -> Turn {
        Turn::Idle
    }

    fn flush(&mut self, now: Now, out: &mut Outbox<M>) {
        self.shared.turns.0.turn(self.shared.turns.1);
        if self.reach.unmet.is_empty() && self.reach.ungreeted.is_empty() {
            self.go_on(now, out);
        } else {
            self.reach.dispatcher.flush(&mut self.gateway, now.elapsed, |to, message| out.send(to, message));
        }
    }

    fn stop(&mut self, _now: Now, _out: &mut Outbox<M>) {
        self.stopping = true;
    }

    fn drained(&self) -> bool {
        // The stop comes when all stages are done with, or when the run has been given up.
        true
    }
}

impl<M> Drop for Population<M> {
    fn drop(&mut self) {
        // If the channel is closed, the run has been given up.
        let _ = self.shared.updates.send(Update::Gone(self.place));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use ordain_engines::family::{EngineVisitor, with_family};
    use ordain_engines::registry::Engine;
    use ordain_family::{Family, NodeSettings, places};
    use ordain_model::{Chunk, Effect, GatewayId, Registry, Stamp};
    use ordain_role::Address;
    use ordain_workload::Workload as _;
    use ordain_workload::ycsb::{Parameters, Ycsb};

    use super::*;

    /// A population that loads, and the node that answers it with what the test says.
    struct Bed<M> {
        population: Population<M>,
        updates: Receiver<Update>,
    }

    impl<M: Message> Bed<M> {
        fn new<F: Family<Message = M>>(family: &F, engine: Engine) -> Bed<M> {
            let mut registry = Registry::default();
            ordain_workload::register(&mut registry);
            let registry = Arc::new(registry);
            let settings = NodeSettings::new(engine.defaults());
            let workload = Ycsb::new(Parameters { records: 10_000, ..Parameters::default() }).unwrap();
            let clients = Clients {
                clients: 1,
                classes: Vec::new(),
                rate: None,
                budget: None,
                seed: (1, 0),
                patience: Micros::from_millis(1_000),
                watch: false,
                checkpoint: None,
            };
            let dispatcher = Dispatcher::new(family.router(&settings));
            let (sender, updates) = channel();
            let population = Population::new(
                Place { data: 0, replica: 0, node: 0 },
                family.gateway(&settings, 0, 1, &registry),
                (workload.source(1, 0, 1), clients),
                Reach { dispatcher, unmet: BTreeSet::new(), ungreeted: BTreeSet::new() },
                (Vec::new(), false),
                Shared {
                    turns: (Turns::of(1), 0),
                    stages: Arc::default(),
                    answered: Arc::default(),
                    updates: sender,
                },
                Book::new(workload.kinds().len()),
                Meters {
                    parts: Vec::new(),
                    generating: Meter::default(),
                    planning: Meter::default(),
                    answering: Meter::default(),
                },
            );
            Bed { population, updates }
        }

        /// The chunks that it submits in a turn.
        fn turn(&mut self) -> Vec<Arc<Chunk>> {
            let mut out = Outbox::default();
            self.population.flush(Now::default(), &mut out);
            let sent = out.sends.into_iter().filter_map(|(_, message)| match message.incoming() {
                Incoming::Front(Front::Submit(chunk)) => Some(chunk),
                _ => None,
            });
            sent.collect()
        }

        fn answer(&mut self, chunks: &[Arc<Chunk>], status: OutcomeStatus) {
            let mut outcomes = OutcomeBatch::new(GatewayId::of(0, 0));
            let effect = Effect { stamp: Stamp::NONE, token: Token::NOTHING };
            for chunk in chunks {
                for index in 0..chunk.txns().len() as u32 {
                    outcomes.push(chunk.number, index, effect.clone(), status, |_| {});
                }
            }
            let from = Address { node: NodeId(0), role: places::GATEWAYS };
            let event = Event::Message { from, message: Front::Outcomes(outcomes).into() };
            self.population.handle(Now::default(), event, &mut Outbox::default());
        }
    }

    /// The procedures and arguments of what was submitted, in some order.
    fn asked(chunks: &[Arc<Chunk>]) -> Vec<(ProcedureId, Vec<Vec<u8>>)> {
        let of = |chunk: &Arc<Chunk>| -> Vec<_> {
            let args = |txn| chunk.args(txn).iter().map(|arg| arg.bytes.to_vec()).collect();
            chunk.txns().iter().map(|txn| (txn.call.procedure, args(txn))).collect()
        };
        let mut all: Vec<_> = chunks.iter().flat_map(of).collect();
        all.sort();
        all
    }

    /// Runs a test with a population of an engine that turns transactions away.
    struct Test<T>(Engine, T);

    trait Check {
        fn check<M: Message>(self, bed: Bed<M>);
    }

    impl<T: Check> EngineVisitor for Test<T> {
        type Output = ();

        fn visit<F: Family>(self, family: F) {
            self.1.check(Bed::new(&family, self.0));
        }
    }

    fn test(check: impl Check) {
        let engine = "no-wait".parse().unwrap();
        with_family(engine, Test(engine, check));
    }

    #[test]
    fn what_is_turned_away_while_loading_is_asked_for_again() {
        struct AskedAgain;
        impl Check for AskedAgain {
            fn check<M: Message>(self, mut bed: Bed<M>) {
                let mut chunks = bed.turn();
                let first = asked(&chunks);
                assert!(
                    first.len() > 1 && first.windows(2).all(|pair| pair[0] != pair[1]),
                    "{}",
                    first.len()
                );
                for _ in 0..3 {
                    bed.answer(&chunks, OutcomeStatus::Busy);
                    chunks = bed.turn();
                    assert!(asked(&chunks) == first);
                }
                let mut turns = 0;
                while !chunks.is_empty() {
                    bed.answer(&chunks, OutcomeStatus::Committed);
                    chunks = bed.turn();
                    assert!(asked(&chunks).iter().all(|later| !first.contains(later)));
                    turns += 1;
                }
                assert!(turns > 1);
                assert!(matches!(bed.updates.try_recv(), Ok(Update::Loaded)));
            }
        }
        test(AskedAgain);
    }

    #[test]
    fn loading_fails_if_something_is_always_turned_away_or_may_have_had_an_effect() {
        struct Fails;
        impl Check for Fails {
            fn check<M: Message>(self, mut bed: Bed<M>) {
                for _ in 1..crate::loading::ASKED_MAX {
                    let chunks = bed.turn();
                    bed.answer(&chunks, OutcomeStatus::Busy);
                    assert!(bed.updates.try_recv().is_err());
                }
                let chunks = bed.turn();
                bed.answer(&chunks, OutcomeStatus::Busy);
                assert!(matches!(bed.updates.try_recv(), Ok(Update::Failed(_))));
            }
        }
        struct FailsAtOnce(OutcomeStatus);
        impl Check for FailsAtOnce {
            fn check<M: Message>(self, mut bed: Bed<M>) {
                let chunks = bed.turn();
                bed.answer(&chunks, self.0);
                assert!(matches!(bed.updates.try_recv(), Ok(Update::Failed(_))));
            }
        }
        test(Fails);
        test(FailsAtOnce(OutcomeStatus::Unknown));
        test(FailsAtOnce(OutcomeStatus::Refused));
    }
}
