//! Drives a workload against the roles of a node on the real runtime, without sockets.
//!
//! Each loop of the node holds a shard and, in place of the front door, an edge with a gateway and a population of
//! clients. A client has one transaction under way. In a closed loop it asks for the next as soon as it is answered;
//! in an open one clients ask when a [`Schedule`] says so, and a request that finds no client free is late from then
//! on. What the clients of one loop ask for in one turn leaves as one chunk, as it does from behind sockets.
//!
//! All populations go through the same stages, led by the calling thread: load, warm up, measure, drain, audit.
//! What is measured is what was answered while a loop was in the measuring stage, against the time and the
//! processor time of that very loop between entering and leaving it.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::bail;
use ordain_gateway::{Gateway, Ticket};
use ordain_model::{
    Call, Db, Digest, Front, GatewayId, Micros, OutcomeBatch, OutcomeStatus, ProcedureId, Registry,
};
use ordain_node::assembly::{Assembly, Keep, NodeSettings, places};
use ordain_role::{Address, Directory, Event, Now, Outbox, Role, TimerId, Topology};
use ordain_runtime::{Disk, Edge, FsDirectory, LoopSpec, Options, Running, Runtime, Tokens, Turn};
use ordain_workload::{Made, Seen, Source, Workload};

use crate::host;
use crate::interrupt;
use crate::meter::{Meter, Metered, process_cpu, thread_cpu};
use crate::progress::Progress;
use crate::schedule::Schedule;
use crate::stage::{Stage, Stages, share};
use crate::tally::{Answer, Book};

/// How a run ends.
#[derive(Clone, Copy, Debug)]
pub enum Length {
    /// After a time.
    Time {
        /// Before measuring.
        warmup: Duration,
        /// While measuring.
        measure: Duration,
    },
    /// After so many transactions, all of which are measured.
    Txns(u64),
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The node, but for its shards and gateways.
    pub node: NodeSettings,
    /// Where the log is, for a node that keeps one.
    pub directory: Option<PathBuf>,
    /// How many loops the node has, each with a shard and a population.
    pub loops: usize,
    /// How many clients there are in all populations together.
    pub clients: usize,
    /// How many transactions a second are asked for, in an open loop; none: a closed one.
    pub rate: Option<f64>,
    /// Where everything that is drawn comes from.
    pub seed: u64,
    /// When it ends.
    pub length: Length,
    /// Procedures without arguments that are called after the workload's own audits.
    pub audits: Vec<ProcedureId>,
    /// How long the clients of a loop wait when none of them is answered, before they give up.
    pub patience: Duration,
}

/// A [`Setup::patience`] that no disk that works should try.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What a run came to.
#[derive(Debug)]
pub struct Measured {
    /// How long was measured.
    pub seconds: f64,
    /// How long loading took.
    pub load_seconds: f64,
    /// What was answered.
    pub book: Book,
    /// What the workload's checks are told.
    pub seen: Seen,
    /// What the audits of the [`Setup`] answered, in order; empty for one that was not answered.
    pub audits: Vec<Vec<u8>>,
    /// How many transactions were never answered.
    pub unanswered: u64,
    /// Where the time went, loop by loop.
    pub loops: Vec<LoopUse>,
    /// Processor time of the process while measuring: the loops' and that of the disk thread.
    pub process_cpu: Duration,
    /// The peak of resident memory, loading included.
    pub peak_rss_bytes: u64,
}

/// Processor time of one loop while measuring, and what it was used for.
#[derive(Clone, Debug)]
pub struct LoopUse {
    /// How long the loop was measured.
    pub wall: Duration,
    /// Processor time of its thread.
    pub cpu: Duration,
    /// By role or part of the driver. What is missing to the sum is the runtime's: messages, wake-ups, polling.
    pub parts: Vec<(&'static str, Duration)>,
}

/// The parts of the driver in [`LoopUse::parts`].
pub mod parts {
    /// Making transactions up: the client's work.
    pub const GENERATE: &str = "driver: generate";
    /// Planning them and writing them into chunks: the front door's work.
    pub const PLAN: &str = "gateway: plan";
    /// Taking answers: the front door's work, and the clients' stop-watches.
    pub const ANSWER: &str = "gateway: answer";
}

/// What a population tells.
#[derive(Debug)]
enum Word {
    Loaded,
    Drained(Box<Report>),
    Audited(Vec<Vec<u8>>),
    /// It cannot go on.
    Failed(String),
}

#[derive(Debug)]
struct Report {
    book: Book,
    testimony: Vec<u8>,
    unanswered: u64,
    used: LoopUse,
}

/// A stop-watch's reading of a loop.
#[derive(Clone, Debug)]
struct Reading {
    at: Instant,
    cpu: Duration,
    meters: Vec<Duration>,
}

/// The clients of one loop, and their gateway.
struct Population<M> {
    gateway: Gateway,
    source: Box<dyn Source>,
    /// When the clients of an open loop ask.
    schedule: Option<Schedule>,
    rate: Option<f64>,
    seed: (u64, u64),
    stages: Arc<Stages>,
    words: Sender<Word>,
    sequencer: Address,
    clients: usize,
    /// How many transactions it has left to ask for, if that is what ends it.
    budget: Option<u64>,
    audits: Vec<ProcedureId>,
    answers: Vec<Vec<u8>>,
    patience: Micros,
    /// When there last was an answer, or nothing to wait for.
    heard_at: Micros,
    /// The stage acted upon, and whether it is done with.
    stage: Stage,
    done: bool,
    stopping: bool,
    /// Clients without a transaction under way.
    free: Vec<u32>,
    /// When each client's transaction was submitted, or was due; and which kind it is.
    submitted: Vec<(Micros, u8)>,
    book: Book,
    /// The loop's roles, by name, and the parts of this edge.
    meters: Vec<(&'static str, Meter)>,
    planning: Meter,
    answering: Meter,
    generated: u64,
    begun: Option<(Reading, u64)>,
    ended: Option<Reading>,
    message: std::marker::PhantomData<fn() -> M>,
}

/// How many transactions of loading a population has under way: enough to hide a sync.
const LOAD_WINDOW: usize = 64;
/// A population looks for the next stage when something happens, and besides this often: when nothing is under
/// way, and when it waits for answers.
const LOOK: TimerId = TimerId(0);
const LOOK_IDLE: Micros = Micros::from_millis(1);
const LOOK_WAITING: Micros = Micros::from_millis(50);
/// The ticket of the first audit; the next have smaller ones. Clients number from 0.
const AUDIT_TICKET: u64 = u64::MAX;

impl<M> Population<M>
where
    M: From<Front>,
{
    /// Acts upon the stage, and submits for every client that is free.
    fn go_on(&mut self, now: Now, out: &mut Outbox<M>) {
        let stage = self.stages.stage();
        if stage != self.stage {
            self.enter(stage, now.elapsed);
            self.heard_at = now.elapsed;
        }
        if !self.stopping
            && let Err(refusal) = self.submit(now.elapsed)
        {
            self.say(Word::Failed(refusal));
        }
        while let Some((_, chunk)) = self.gateway.flush() {
            out.send(self.sequencer, Front::Submit(chunk));
        }
        if self.gateway.outstanding() == 0 {
            self.heard_at = now.elapsed;
            self.finish_stage(now.elapsed);
        } else if self.is_audited() || now.elapsed.since(self.heard_at) > self.patience {
            self.finish_stage(now.elapsed);
        }
        let look = if self.gateway.outstanding() == 0 { LOOK_IDLE } else { LOOK_WAITING };
        match &self.schedule {
            Some(schedule) if !self.free.is_empty() && self.stage < Stage::Drain => {
                out.set_timer(LOOK, schedule.next().since(now.elapsed).min(look));
            }
            _ if self.gateway.outstanding() == 0 => out.set_timer(LOOK, look),
            _ => {}
        }
    }

    /// It has asked for everything that it had to. Loading is no part of that.
    fn is_spent(&self) -> bool {
        self.stage != Stage::Load && self.budget == Some(0)
    }

    /// Every audit is answered, though other transactions may never be.
    fn is_audited(&self) -> bool {
        self.stage == Stage::Audit && self.answers.iter().all(|answer| !answer.is_empty())
    }

    fn enter(&mut self, stage: Stage, now: Micros) {
        if self.stage == Stage::Load {
            self.free = (0..self.clients as u32).collect();
            let (seed, stream) = self.seed;
            self.schedule = self.rate.map(|rate| Schedule::new(rate, now, seed, stream));
        }
        if stage >= Stage::Measure && self.begun.is_none() {
            self.begun = Some((self.read_watch(), self.generated));
            self.book.begin(now);
        }
        if self.stage == Stage::Measure {
            self.end_measuring(now);
        }
        self.stage = stage;
        // A budget that was spent has been reported while measuring: there is nothing left to drain.
        self.done = self.done && stage == Stage::Drain;
    }

    fn read_watch(&self) -> Reading {
        Reading {
            at: Instant::now(),
            cpu: thread_cpu(),
            meters: self.meters.iter().map(|(_, meter)| meter.total()).collect(),
        }
    }

    fn end_measuring(&mut self, now: Micros) {
        if self.ended.is_none() {
            self.ended = Some(self.read_watch());
            self.book.end(now, self.schedule.as_ref(), self.budget.unwrap_or(u64::MAX));
        }
    }

    fn submit(&mut self, now: Micros) -> Result<(), String> {
        match self.stage {
            Stage::Load | Stage::Audit if self.done => return Ok(()),
            Stage::Load | Stage::WarmUp | Stage::Measure if self.free.is_empty() => return Ok(()),
            Stage::Drain => return Ok(()),
            _ => {}
        }
        let meter = self.planning.clone();
        meter.time(|| {
            if self.stage == Stage::Audit {
                for (i, audit) in self.audits.drain(..).enumerate() {
                    let call = Call::new(audit, Db(0));
                    let refused = self.gateway.submit(Ticket(AUDIT_TICKET - i as u64), call, |_| {});
                    refused.map_err(|refusal| format!("an audit was refused: {refusal}"))?;
                    self.answers.push(Vec::new());
                }
                return Ok(());
            }
            while !self.free.is_empty() && !self.is_spent() {
                let mut asked = now;
                let Made { procedure, kind } = if self.stage == Stage::Load {
                    let Some(procedure) = self.source.load() else { break };
                    Made { procedure, kind: 0 }
                } else {
                    if let Some(schedule) = &mut self.schedule {
                        asked = schedule.next();
                        if asked > now {
                            break;
                        }
                        schedule.advance();
                    }
                    self.budget = self.budget.map(|left| left - 1);
                    self.generated += 1;
                    self.source.next()
                };
                let Some(client) = self.free.pop() else { break };
                self.submitted[client as usize] = (asked, kind);
                let call = Call::new(procedure, Db(0));
                let ticket = Ticket(u64::from(client));
                self.gateway
                    .submit(ticket, call, |args| self.source.write_args(args))
                    .map_err(|refusal| format!("a transaction of the workload was refused: {refusal}"))?;
            }
            Ok(())
        })
    }

    /// Nothing is under way, or nothing that will be answered: says so, once a stage.
    fn finish_stage(&mut self, now: Micros) {
        if self.done {
            return;
        }
        let given_up = self.gateway.outstanding() > 0;
        match self.stage {
            Stage::Load => self.say(Word::Loaded),
            Stage::Measure if self.budget.is_some_and(|left| left == 0 || given_up) => {
                self.end_measuring(now);
                self.report();
            }
            Stage::Drain => self.report(),
            Stage::Audit if !self.answers.is_empty() => {
                let answers = std::mem::take(&mut self.answers);
                self.say(Word::Audited(answers));
            }
            Stage::WarmUp | Stage::Measure | Stage::Audit => return,
        }
        self.done = true;
    }

    fn report(&mut self) {
        let (Some((begun, generated)), Some(ended)) = (self.begun.clone(), self.ended.clone()) else {
            return;
        };
        let spent = ended.meters.iter().zip(&begun.meters).map(|(end, begin)| end.saturating_sub(*begin));
        let mut parts: Vec<(&'static str, Duration)> =
            self.meters.iter().map(|(name, _)| *name).zip(spent).collect();
        let testimony = self.source.testimony();
        // Making up is part of planning until its own cost, measured apart, is taken off.
        let generating = cost_of_generating(&mut *self.source).mul_f64((self.generated - generated) as f64);
        if let Some((_, planning)) = parts.iter_mut().find(|(name, _)| *name == parts::PLAN) {
            let generating = generating.min(*planning);
            *planning -= generating;
            parts.push((parts::GENERATE, generating));
        }
        let used = LoopUse { wall: ended.at - begun.at, cpu: ended.cpu.saturating_sub(begun.cpu), parts };
        let report = Report {
            book: self.book.clone(),
            testimony,
            unanswered: self.gateway.outstanding() as u64,
            used,
        };
        self.say(Word::Drained(Box::new(report)));
    }

    fn say(&self, word: Word) {
        // If nobody listens any more, the run has been given up.
        let _ = self.words.send(word);
    }

    fn take(&mut self, outcomes: &OutcomeBatch, now: Micros) {
        self.heard_at = now;
        let Population { gateway, source, stage, free, submitted, book, .. } = self;
        let (mut committed, mut lost) = (0, 0);
        gateway.take_outcomes(outcomes, |finished| {
            if *stage == Stage::Audit {
                if let Some(answer) = self.answers.get_mut((AUDIT_TICKET - finished.ticket.0) as usize) {
                    *answer = finished.reply.to_vec();
                }
                return;
            }
            let client = finished.ticket.0 as u32;
            free.push(client);
            let (asked, kind) = submitted[client as usize];
            let is_committed = finished.status == OutcomeStatus::Committed;
            committed += u64::from(is_committed);
            if *stage == Stage::Load {
                lost += u64::from(!is_committed);
                return;
            }
            source.heard(kind, finished.status, finished.reply);
            let (status, restarts) = (finished.status, finished.restarts.into());
            book.note(Answer { kind, status, restarts, asked, now });
        });
        if lost > 0 {
            self.say(Word::Failed("the node turned away transactions that load the data".to_owned()));
        }
        self.stages.answered.fetch_add(committed, Ordering::Relaxed);
    }
}

/// What it costs to make one transaction up, measured on its own.
fn cost_of_generating(source: &mut dyn Source) -> Duration {
    const SAMPLE: u32 = 5_000;
    let before = thread_cpu();
    (0..SAMPLE).for_each(|_| _ = std::hint::black_box(source.next()));
    thread_cpu().saturating_sub(before) / SAMPLE
}

impl<M> Role for Population<M>
where
    M: From<Front> + Send,
    Front: TryFrom<M>,
{
    type Message = M;

    fn handle(&mut self, now: Now, event: Event<M>, out: &mut Outbox<M>) {
        match event {
            Event::Message { message, .. } => {
                let Ok(Front::Outcomes(outcomes)) = Front::try_from(message) else {
                    out.halt("a population of clients was sent a message that is not for it");
                    return;
                };
                let meter = self.answering.clone();
                meter.time(|| self.take(&outcomes, now.elapsed));
            }
            Event::Start | Event::Timer(_) => out.set_timer(LOOK, LOOK_WAITING),
            Event::Disk(_) | Event::Stop => {}
        }
    }

    fn name(&self) -> &'static str {
        "clients"
    }
}

impl<M> Edge for Population<M>
where
    M: From<Front> + Send,
    Front: TryFrom<M>,
{
    fn register(&mut self, _registry: mio::Registry, _tokens: Tokens) -> io::Result<()> {
        Ok(())
    }

    fn ready(&mut self, _event: &mio::event::Event, _now: Now, _out: &mut Outbox<M>) {}

    fn turn(&mut self, _now: Now, _out: &mut Outbox<M>) -> Turn {
        Turn::Idle
    }

    fn flush(&mut self, now: Now, out: &mut Outbox<M>) {
        self.go_on(now, out);
    }

    fn stop(&mut self, _now: Now, _out: &mut Outbox<M>) {
        self.stopping = true;
    }

    fn drained(&self) -> bool {
        // The stop comes when all stages are done with, or when the run has been given up.
        true
    }
}

/// Runs a workload, with a source for each loop of the node.
///
/// # Errors
/// The node does not start, or stops by itself.
pub fn run(
    setup: &Setup,
    registry: &Arc<Registry>,
    workload: &dyn Workload,
    progress: &Progress,
) -> anyhow::Result<Measured> {
    host::reset_peak_rss();
    let loops = setup.loops;
    let node = NodeSettings { topology: Topology::single(loops), gateways: loops, ..setup.node.clone() };
    let (assembly, disk) = open(&node, setup.directory.as_deref(), registry)?;
    let sequencer = Address { node: node.node, role: places::SEQUENCER };
    let stages = Arc::new(Stages::default());
    let (words, heard) = channel();
    let kinds = workload.kinds().len();
    let mut audits = workload.audits();
    let own_audits = audits.len();
    audits.extend(&setup.audits);

    let mut specs: Vec<_> = (0..loops).map(|i| LoopSpec::new(format!("bench-{i}"))).collect();
    let mut meters: Vec<Vec<(&'static str, Meter)>> = vec![Vec::new(); loops];
    for (number, role) in assembly.into_roles() {
        // A shard has its own loop, the others are on the first.
        let on_loop = usize::from(number.saturating_sub(places::SHARDS));
        let meter = Meter::default();
        meters[on_loop].push((role.name(), meter.clone()));
        specs[on_loop].roles.push((number, Box::new(Metered::new(role, meter))));
    }
    // Where there are fewer clients than loops, some loops have nobody to ask for anything.
    let asking = loops.min(setup.clients);
    for (i, (spec, mut meters)) in specs.iter_mut().zip(meters).enumerate() {
        let clients = share(setup.clients as u64, i, loops) as usize;
        let (planning, answering) = (Meter::default(), Meter::default());
        meters.extend([(parts::PLAN, planning.clone()), (parts::ANSWER, answering.clone())]);
        let population = Population {
            gateway: Gateway::new(GatewayId(i as u32), registry.clone()),
            source: workload.source(setup.seed, i, loops),
            schedule: None,
            rate: setup.rate.filter(|_| clients > 0).map(|rate| rate / asking as f64),
            seed: (setup.seed, i as u64),
            stages: stages.clone(),
            words: words.clone(),
            sequencer,
            clients,
            budget: match setup.length {
                Length::Txns(txns) => Some(share(txns, i, asking)),
                Length::Time { .. } => None,
            },
            audits: if i == 0 { audits.clone() } else { Vec::new() },
            answers: Vec::new(),
            patience: Micros(setup.patience.as_micros() as u64),
            heard_at: Micros(0),
            stage: Stage::Load,
            done: false,
            stopping: false,
            free: (0..LOAD_WINDOW as u32).collect(),
            submitted: vec![(Micros(0), 0); clients.max(LOAD_WINDOW)],
            book: Book::new(kinds)?,
            meters,
            planning,
            answering,
            generated: 0,
            begun: None,
            ended: None,
            message: std::marker::PhantomData,
        };
        spec.edges.push((places::GATEWAYS + i as u16, Box::new(population)));
    }
    drop(words);

    let options = Options { node: node.node, ..Options::default() };
    let running = Runtime::start(options, disk, specs)?;
    let mut lead = Lead { running: Some(running), heard, stages, progress };
    let mut measured = lead.through(setup, loops, kinds, !audits.is_empty())?;
    let answers = std::mem::take(&mut measured.audits);
    measured.seen.audits = answers.iter().take(own_audits).cloned().collect();
    measured.audits = answers.into_iter().skip(own_audits).collect();
    Ok(measured)
}

/// Opens the node's directory, if it keeps anything, and builds its roles.
fn open(
    node: &NodeSettings,
    directory: Option<&std::path::Path>,
    registry: &Arc<Registry>,
) -> anyhow::Result<(Assembly, Option<Disk>)> {
    match directory.filter(|_| node.keep != Keep::Nothing) {
        None => Ok((Assembly::open(None, node, registry)?, None)),
        Some(path) => {
            let mut directory = FsDirectory::open(path)?;
            let assembly = Assembly::open(Some(&mut directory as &mut dyn Directory), node, registry)?;
            Ok((assembly, Some(Disk::new(directory))))
        }
    }
}

/// What replaying a log came to.
#[derive(Clone, Copy, Debug)]
pub struct Replayed {
    /// The digest of the state.
    pub digest: Digest,
    /// How many transactions the log held.
    pub txns: u64,
    /// How long it took.
    pub took: Duration,
}

/// Starts the node of a run that has ended once more, from its log alone.
///
/// # Errors
/// The log is refused.
pub fn replay(setup: &Setup, registry: &Arc<Registry>) -> anyhow::Result<Replayed> {
    let node =
        NodeSettings { topology: Topology::single(setup.loops), gateways: setup.loops, ..setup.node.clone() };
    let begun = Instant::now();
    let (assembly, _) = open(&node, setup.directory.as_deref(), registry)?;
    Ok(Replayed { digest: assembly.digest(), txns: assembly.replayed, took: begun.elapsed() })
}

/// The calling thread: leads all populations from stage to stage.
struct Lead<'a> {
    running: Option<Running>,
    heard: Receiver<Word>,
    stages: Arc<Stages>,
    progress: &'a Progress,
}

impl Lead<'_> {
    fn through(
        &mut self,
        setup: &Setup,
        loops: usize,
        kinds: usize,
        audited: bool,
    ) -> anyhow::Result<Measured> {
        let begun = Instant::now();
        for _ in 0..loops {
            self.hear("loading")?;
        }
        let load_seconds = begun.elapsed().as_secs_f64();
        let cpu = match setup.length {
            Length::Time { warmup, measure } => {
                self.stages.enter(Stage::WarmUp);
                self.let_run("warming up", Duration::ZERO, warmup)?;
                self.stages.enter(Stage::Measure);
                let cpu = process_cpu();
                self.let_run("measuring", warmup, measure)?;
                let cpu = process_cpu() - cpu;
                self.stages.enter(Stage::Drain);
                cpu
            }
            Length::Txns(_) => {
                self.stages.enter(Stage::Measure);
                Duration::ZERO
            }
        };
        let mut measured = Measured {
            seconds: 0.0,
            load_seconds,
            book: Book::new(kinds)?,
            seen: Seen::default(),
            audits: Vec::new(),
            unanswered: 0,
            loops: Vec::new(),
            process_cpu: cpu,
            peak_rss_bytes: 0,
        };
        for _ in 0..loops {
            let Word::Drained(report) = self.hear("finishing")? else { continue };
            measured.book.add(&report.book)?;
            measured.seen.testimonies.push(report.testimony);
            measured.unanswered += report.unanswered;
            // All begin together, and a budget of transactions is spent when the last has spent its share.
            measured.seconds = measured.seconds.max(report.used.wall.as_secs_f64());
            measured.loops.push(report.used);
        }
        measured.seen.by_kind = measured.book.whole_run.clone();
        self.stages.enter(Stage::Audit);
        if audited && let Word::Audited(answers) = self.hear("checking")? {
            measured.audits = answers;
        }
        measured.peak_rss_bytes = host::peak_rss_bytes();
        if let Some(running) = self.running.take() {
            running.stop()?;
        }
        Ok(measured)
    }

    /// Waits for the next population to say something.
    fn hear(&mut self, doing: &str) -> anyhow::Result<Word> {
        loop {
            interrupt::check()?;
            match self.heard.recv_timeout(Duration::from_millis(200)) {
                Ok(Word::Failed(reason)) => bail!("{reason}"),
                Ok(word) => return Ok(word),
                Err(RecvTimeoutError::Timeout) => self.progress.show(Duration::ZERO, doing),
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
            }
        }
    }

    /// Lets the populations run for a while.
    fn let_run(&mut self, doing: &str, before: Duration, length: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        let answered = self.stages.answered.load(Ordering::Relaxed);
        loop {
            interrupt::check()?;
            let gone = begun.elapsed();
            if gone >= length {
                return Ok(());
            }
            match self.heard.recv_timeout((length - gone).min(Duration::from_millis(200))) {
                Ok(Word::Failed(reason)) => bail!("{reason}"),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    let answered = self.stages.answered.load(Ordering::Relaxed) - answered;
                    let rate = answered as f64 / begun.elapsed().as_secs_f64();
                    self.progress.show(before + begun.elapsed(), format!("{doing}: {rate:.0} txn/s"));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
            }
        }
    }

    /// The populations are gone, so the node has ended: why?
    fn ended(&mut self) -> anyhow::Error {
        match self.running.take().map(Running::wait) {
            Some(Err(stopped)) => stopped.into(),
            _ => anyhow::anyhow!("the node ended in the middle of the run"),
        }
    }
}

/// Processor time by role or part of the driver, of all loops together, and of the runtime itself.
pub fn parts_of(loops: &[LoopUse]) -> BTreeMap<&'static str, Duration> {
    let mut sums: BTreeMap<&'static str, Duration> = BTreeMap::new();
    for used in loops {
        let known: Duration = used.parts.iter().map(|(_, time)| *time).sum();
        let rest = used.cpu.saturating_sub(known);
        for (name, time) in used.parts.iter().chain([&("runtime", rest)]) {
            *sums.entry(name).or_default() += *time;
        }
    }
    sums
}
