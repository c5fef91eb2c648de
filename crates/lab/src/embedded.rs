//! Drives a workload against the roles of a node on the real runtime, without sockets.
//!
//! Each loop of the node holds a shard and, in place of the front door, an edge with a gateway and a population of
//! clients. A client has one transaction under way and asks for the next as soon as it is answered (closed loop).
//! What the clients of one loop ask for in one turn leaves as one chunk, as it does from behind sockets.
//!
//! All populations go through the same stages, led by the calling thread: load, warm up, measure, drain, audit.
//! What is measured is what was answered while a loop was in the measuring stage, against the time and the
//! processor time of that very loop between entering and leaving it.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hdrhistogram::Histogram;
use ordain_gateway::{Gateway, Ticket};
use ordain_model::{
    Call, Db, Digest, Front, GatewayId, Micros, OutcomeBatch, OutcomeStatus, ProcedureId, Registry,
};
use ordain_node::assembly::{Assembly, Keep, NodeSettings, places};
use ordain_role::{Address, Directory, Event, Now, Outbox, Role, TimerId};
use ordain_runtime::{Disk, Edge, FsDirectory, LoopSpec, Options, Running, Runtime, Tokens, Turn};
use ordain_workload::Source;

use crate::host;
use crate::meter::{Meter, Metered, process_cpu, thread_cpu};
use crate::progress::Progress;

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
    /// The node. It has a loop for each shard, and a population for each loop.
    pub node: NodeSettings,
    /// Where the log is, for a node that keeps one.
    pub directory: Option<PathBuf>,
    /// How many clients there are in all populations together.
    pub clients: usize,
    /// When it ends.
    pub length: Length,
    /// Procedures without arguments that are called one after the other when all is done.
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
    /// Answered while measuring.
    pub counts: Counts,
    /// Answered from the end of loading to the end of the run.
    pub whole_run: Counts,
    /// From submission to answer, microseconds, of what was committed.
    pub latency_us: Histogram<u64>,
    /// How many transactions were never answered.
    pub unanswered: u64,
    /// What the audits answered, in order; empty for one that was not answered.
    pub audits: Vec<Vec<u8>>,
    /// Where the time went, loop by loop.
    pub loops: Vec<LoopUse>,
    /// Processor time of the process while measuring: the loops' and that of the disk thread.
    pub process_cpu: Duration,
    /// The peak of resident memory, loading included.
    pub peak_rss_bytes: u64,
}

/// How transactions ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// They took effect.
    pub committed: u64,
    /// They took no effect, by their own logic.
    pub aborted: u64,
    /// They were turned away, because the pipeline or the disk was full.
    pub turned_away: u64,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.committed += other.committed;
        self.aborted += other.aborted;
        self.turned_away += other.turned_away;
    }
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

/// Where a run is. It only advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum Stage {
    Load,
    WarmUp,
    Measure,
    Drain,
    Audit,
}

/// What the populations share with the thread that leads them.
#[derive(Debug)]
struct Shared {
    stage: AtomicU8,
    /// Answers so far, for the progress line.
    answered: AtomicU64,
}

impl Shared {
    fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::Load,
            1 => Stage::WarmUp,
            2 => Stage::Measure,
            3 => Stage::Drain,
            _ => Stage::Audit,
        }
    }
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
    counts: Counts,
    whole_run: Counts,
    latency_us: Histogram<u64>,
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
struct Population<M, S> {
    gateway: Gateway,
    source: S,
    shared: Arc<Shared>,
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
    /// When each client's transaction was submitted.
    submitted: Vec<Micros>,
    counts: Counts,
    whole_run: Counts,
    latency_us: Histogram<u64>,
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
/// The longest latency that is told apart.
const LATENCY_MAX_US: u64 = 3_600_000_000;

impl<M, S: Source> Population<M, S>
where
    M: From<Front>,
{
    /// Acts upon the stage, and submits for every client that is free.
    fn go_on(&mut self, now: Now, out: &mut Outbox<M>) {
        let stage = self.shared.stage();
        if stage != self.stage {
            self.enter(stage);
            self.heard_at = now.elapsed;
        }
        if !self.stopping
            && let Err(refusal) = self.submit(now.elapsed)
        {
            self.say(Word::Failed(refusal));
        }
        while let Some(chunk) = self.gateway.flush() {
            out.send(self.sequencer, Front::Submit(chunk));
        }
        if self.gateway.outstanding() == 0 {
            self.heard_at = now.elapsed;
            self.finish_stage();
            out.set_timer(LOOK, LOOK_IDLE);
        } else if self.is_audited() || now.elapsed.since(self.heard_at) > self.patience {
            self.finish_stage();
        }
    }

    /// Every audit is answered, though other transactions may never be.
    fn is_audited(&self) -> bool {
        self.stage == Stage::Audit && self.answers.iter().all(|answer| !answer.is_empty())
    }

    fn enter(&mut self, stage: Stage) {
        if self.stage == Stage::Load {
            self.free = (0..self.clients as u32).collect();
            self.whole_run = Counts::default();
        }
        if stage >= Stage::Measure && self.begun.is_none() {
            self.begun = Some((self.read_watch(), self.generated));
        }
        if self.stage == Stage::Measure {
            self.end_measuring();
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

    fn end_measuring(&mut self) {
        if self.ended.is_none() {
            self.ended = Some(self.read_watch());
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
            while !self.free.is_empty() && self.budget != Some(0) {
                let procedure = if self.stage == Stage::Load {
                    let Some(procedure) = self.source.load() else { break };
                    procedure
                } else {
                    self.budget = self.budget.map(|left| left - 1);
                    self.generated += 1;
                    self.source.next().procedure
                };
                let Some(client) = self.free.pop() else { break };
                self.submitted[client as usize] = now;
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
    fn finish_stage(&mut self) {
        if self.done {
            return;
        }
        let given_up = self.gateway.outstanding() > 0;
        match self.stage {
            Stage::Load => self.say(Word::Loaded),
            Stage::Measure if self.budget.is_some_and(|left| left == 0 || given_up) => {
                self.end_measuring();
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
        // Making up is part of planning until its own cost, measured apart, is taken off.
        let generating = cost_of_generating(&mut self.source).mul_f64((self.generated - generated) as f64);
        if let Some((_, planning)) = parts.iter_mut().find(|(name, _)| *name == parts::PLAN) {
            let generating = generating.min(*planning);
            *planning -= generating;
            parts.push((parts::GENERATE, generating));
        }
        let used = LoopUse { wall: ended.at - begun.at, cpu: ended.cpu.saturating_sub(begun.cpu), parts };
        let latency_us = self.latency_us.clone();
        let (counts, whole_run) = (self.counts, self.whole_run);
        let unanswered = self.gateway.outstanding() as u64;
        self.say(Word::Drained(Box::new(Report { counts, whole_run, latency_us, unanswered, used })));
    }

    fn say(&self, word: Word) {
        // If nobody listens any more, the run has been given up.
        let _ = self.words.send(word);
    }

    fn take(&mut self, outcomes: &OutcomeBatch, now: Micros) {
        self.heard_at = now;
        let Population { gateway, stage, ended, free, submitted, latency_us, answers, .. } = self;
        let mut seen = Counts::default();
        gateway.take_outcomes(outcomes, |finished| {
            if *stage == Stage::Audit {
                if let Some(answer) = answers.get_mut((AUDIT_TICKET - finished.ticket.0) as usize) {
                    *answer = finished.reply.to_vec();
                }
                return;
            }
            free.push(finished.ticket.0 as u32);
            match finished.status {
                OutcomeStatus::Committed => {
                    seen.committed += 1;
                    if *stage == Stage::Measure && ended.is_none() {
                        let latency = now.since(submitted[finished.ticket.0 as usize]);
                        latency_us.saturating_record(latency.0);
                    }
                }
                OutcomeStatus::Aborted(_) => seen.aborted += 1,
                OutcomeStatus::Busy | OutcomeStatus::Refused | OutcomeStatus::Superseded => {
                    seen.turned_away += 1
                }
            }
        });
        if self.stage == Stage::Load && seen.aborted + seen.turned_away > 0 {
            self.say(Word::Failed("the node turned away transactions that load the data".to_owned()));
        }
        self.shared.answered.fetch_add(seen.committed, Ordering::Relaxed);
        self.whole_run.add(seen);
        if self.stage == Stage::Measure && self.ended.is_none() {
            self.counts.add(seen);
        }
    }
}

/// What it costs to make one transaction up, measured on its own.
fn cost_of_generating(source: &mut impl Source) -> Duration {
    const SAMPLE: u32 = 5_000;
    let before = thread_cpu();
    (0..SAMPLE).for_each(|_| _ = std::hint::black_box(source.next()));
    thread_cpu().saturating_sub(before) / SAMPLE
}

impl<M, S: Source> Role for Population<M, S>
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
            Event::Disk(_) => {}
        }
    }

    fn name(&self) -> &'static str {
        "clients"
    }
}

impl<M, S: Source> Edge for Population<M, S>
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

/// Runs a workload: one source for each loop of the node.
///
/// # Errors
/// The node does not start, or stops by itself.
pub fn run<S: Source + 'static>(
    setup: &Setup,
    registry: &Arc<Registry>,
    sources: Vec<S>,
    progress: &Progress,
) -> anyhow::Result<Measured> {
    host::reset_peak_rss();
    let loops = sources.len();
    let node = NodeSettings { shards: loops, gateways: loops, ..setup.node.clone() };
    let (assembly, disk) = open(&node, setup.directory.as_deref(), registry)?;
    let sequencer = Address { node: node.node, role: places::SEQUENCER };
    let stage = AtomicU8::new(Stage::Load as u8);
    let shared = Arc::new(Shared { stage, answered: AtomicU64::new(0) });
    let (words, heard) = channel();

    let mut specs: Vec<_> = (0..loops).map(|i| LoopSpec::new(format!("bench-{i}"))).collect();
    let mut meters: Vec<Vec<(&'static str, Meter)>> = vec![Vec::new(); loops];
    for (number, role) in assembly.into_roles() {
        // A shard has its own loop, the others are on the first.
        let on_loop = usize::from(number.saturating_sub(places::SHARDS));
        let meter = Meter::default();
        meters[on_loop].push((role.name(), meter.clone()));
        specs[on_loop].roles.push((number, Box::new(Metered::new(role, meter))));
    }
    let share = |total: u64, i: usize| total / loops as u64 + u64::from((i as u64) < total % loops as u64);
    for (i, ((source, spec), mut meters)) in sources.into_iter().zip(&mut specs).zip(meters).enumerate() {
        let clients = share(setup.clients as u64, i) as usize;
        let (planning, answering) = (Meter::default(), Meter::default());
        meters.extend([(parts::PLAN, planning.clone()), (parts::ANSWER, answering.clone())]);
        let population = Population {
            gateway: Gateway::new(GatewayId(i as u16), registry.clone()),
            source,
            shared: shared.clone(),
            words: words.clone(),
            sequencer,
            clients,
            budget: match setup.length {
                Length::Txns(txns) => Some(share(txns, i)),
                Length::Time { .. } => None,
            },
            audits: if i == 0 { setup.audits.clone() } else { Vec::new() },
            answers: Vec::new(),
            patience: Micros(setup.patience.as_micros() as u64),
            heard_at: Micros(0),
            stage: Stage::Load,
            done: false,
            stopping: false,
            free: (0..LOAD_WINDOW as u32).collect(),
            submitted: vec![Micros(0); clients.max(LOAD_WINDOW)],
            counts: Counts::default(),
            whole_run: Counts::default(),
            latency_us: Histogram::new_with_bounds(1, LATENCY_MAX_US, 3)
                .context("a histogram of latencies")?,
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
    let mut lead = Lead { running: Some(running), heard, shared, progress };
    lead.through(setup, loops)
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
pub fn replay(setup: &Setup, loops: usize, registry: &Arc<Registry>) -> anyhow::Result<Replayed> {
    let node = NodeSettings { shards: loops, gateways: loops, ..setup.node.clone() };
    let begun = Instant::now();
    let (assembly, _) = open(&node, setup.directory.as_deref(), registry)?;
    Ok(Replayed { digest: assembly.digest(), txns: assembly.replayed, took: begun.elapsed() })
}

/// The calling thread: leads all populations from stage to stage.
struct Lead<'a> {
    running: Option<Running>,
    heard: Receiver<Word>,
    shared: Arc<Shared>,
    progress: &'a Progress,
}

impl Lead<'_> {
    fn through(&mut self, setup: &Setup, loops: usize) -> anyhow::Result<Measured> {
        let begun = Instant::now();
        for _ in 0..loops {
            self.hear("loading")?;
        }
        let load_seconds = begun.elapsed().as_secs_f64();
        let cpu = match setup.length {
            Length::Time { warmup, measure } => {
                self.enter(Stage::WarmUp);
                self.let_run("warming up", Duration::ZERO, warmup)?;
                self.enter(Stage::Measure);
                let cpu = process_cpu();
                self.let_run("measuring", warmup, measure)?;
                let cpu = process_cpu() - cpu;
                self.enter(Stage::Drain);
                cpu
            }
            Length::Txns(_) => {
                self.enter(Stage::Measure);
                Duration::ZERO
            }
        };
        let mut measured = Measured {
            seconds: 0.0,
            load_seconds,
            counts: Counts::default(),
            whole_run: Counts::default(),
            latency_us: Histogram::new_with_bounds(1, LATENCY_MAX_US, 3)
                .context("a histogram of latencies")?,
            unanswered: 0,
            audits: Vec::new(),
            loops: Vec::new(),
            process_cpu: cpu,
            peak_rss_bytes: 0,
        };
        for _ in 0..loops {
            let Word::Drained(report) = self.hear("finishing")? else { continue };
            measured.counts.add(report.counts);
            measured.whole_run.add(report.whole_run);
            measured.unanswered += report.unanswered;
            measured.latency_us.add(&report.latency_us).context("adding up latencies")?;
            measured.seconds += report.used.wall.as_secs_f64() / loops as f64;
            measured.loops.push(report.used);
        }
        self.enter(Stage::Audit);
        if !setup.audits.is_empty()
            && let Word::Audited(answers) = self.hear("checking")?
        {
            measured.audits = answers;
        }
        measured.peak_rss_bytes = host::peak_rss_bytes();
        if let Some(running) = self.running.take() {
            running.stop()?;
        }
        Ok(measured)
    }

    fn enter(&self, stage: Stage) {
        self.shared.stage.store(stage as u8, Ordering::Release);
    }

    /// Waits for the next population to say something.
    fn hear(&mut self, doing: &str) -> anyhow::Result<Word> {
        loop {
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
        let answered = self.shared.answered.load(Ordering::Relaxed);
        loop {
            let gone = begun.elapsed();
            if gone >= length {
                return Ok(());
            }
            match self.heard.recv_timeout((length - gone).min(Duration::from_millis(200))) {
                Ok(Word::Failed(reason)) => bail!("{reason}"),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    let answered = self.shared.answered.load(Ordering::Relaxed) - answered;
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
