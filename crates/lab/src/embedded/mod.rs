//! Drives a workload against the roles of nodes on the real runtime, without sockets between clients and nodes.
//!
//! A run has one node, or a whole cluster in this process, whose nodes talk over TCP as they do anywhere ([`Grid`]).
//! Each loop of a node holds a shard and, in place of the front door, an edge with a gateway and a population of
//! clients. A client has one transaction under way. In a closed loop it asks for the next as soon as it is answered;
//! in an open one clients ask when a `Schedule` says so, and a request that finds no client free is late from then
//! on. What the clients of one loop ask for in one turn leaves as one chunk, as it does from behind sockets.
//!
//! All populations go through the same stages, led by the calling thread: load, warm up, measure, drain, audit.
//! What is measured is what was answered while a loop was in the measuring stage, against the time and the
//! processor time of that very loop between entering and leaving it.

mod population;
mod primaries;
mod remote;
mod shards;
mod sites;
mod waiting;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::bail;
use ordain_engines::family::{EngineVisitor, with_family};
use ordain_engines::registry::Engine;
use ordain_family::{Family, NodeSettings, Opened as _, Replication, places};
use ordain_gateway::Dispatcher;
use ordain_model::{Digest, Micros, ProcedureId, Registry};
use ordain_role::Topology;
use ordain_runtime::{Options, Running, Runtime};
use ordain_workload::{Counts, Results, Source, Workload};

use crate::host;
use crate::interrupt;
use crate::meter::{Meter, process_cpu};
use crate::progress::Progress;
use crate::stage::{Stage, Stages, share};
use crate::staleness::{Answered, Staleness};
use crate::tally::Book;

use population::{Asking, Meters, Nobody, Place, Population, Reach, Told, Word};
pub use shards::Kept;
use sites::Site;
pub use sites::{Delay, Grid};
use waiting::Turns;

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
    /// The engine.
    pub engine: Engine,
    /// What all nodes have in common: all but their places, shards and gateways.
    pub node: NodeSettings,
    /// Which nodes there are.
    pub grid: Grid,
    /// Where the logs are, for nodes that keep them.
    pub directory: Option<PathBuf>,
    /// How many loops a node has, each with a shard and, in the first replica, a population.
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
    /// How long the clients of a loop wait when none of them is answered, before they give up. Time in which a loop is
    /// busy with one thing does not count.
    pub patience: Duration,
    /// How stale what is read on snapshots is, and how many older contents are kept for it, is told. It costs a little.
    pub watch: bool,
    /// A checkpoint is taken when a quarter of the time has been measured.
    pub checkpoint: bool,
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
    /// The checkpoint, if one was wanted.
    pub checkpoint: Option<Taken>,
    /// How stale what was read on snapshots was, if that was to be told.
    pub staleness: Option<Staleness>,
    /// What was kept for it, each time that somebody looked.
    pub kept: Vec<Kept>,
    /// What was answered.
    pub book: Book,
    /// What the workload's checks are told: of each node if they are apart, otherwise of all together.
    pub seen: Vec<Results>,
    /// What the audits of the [`Setup`] answered in each replica, in order; empty for one that was not answered.
    pub audits: Vec<Vec<Vec<u8>>>,
    /// How many transactions were never answered.
    pub unanswered: u64,
    /// What is wrong with the primaries after the last transaction, where input is replicated asynchronously: they are to be
    /// who they were, with all their members behind them.
    pub deposed: Option<String>,
    /// Where the time went, loop by loop.
    pub loops: Vec<LoopUse>,
    /// Processor time of the process while measuring: the loops' and that of the disk threads.
    pub process_cpu: Duration,
    /// The peak of resident memory, loading included.
    pub peak_rss_bytes: u64,
}

/// A checkpoint that was taken while measuring, in seconds since it began; to a tenth of a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Taken {
    /// When it was asked for.
    pub asked: f64,
    /// When it was complete, if it was in the end.
    pub complete: Option<f64>,
    /// Processor time of the process from the one to the other, and in the rest of the time measured.
    pub cpu: [Duration; 2],
}

/// Processor time of one loop while measuring, and what it was used for.
#[derive(Clone, Debug)]
pub struct LoopUse {
    /// Whose it is.
    pub node: u16,
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

/// Runs a workload, with a source for each loop that has clients.
///
/// # Errors
/// A node does not start, or stops by itself.
pub fn run(
    setup: &Setup,
    registry: &Arc<Registry>,
    workload: &dyn Workload,
    progress: &Progress,
) -> anyhow::Result<Measured> {
    with_family(setup.engine, Run { setup, registry, workload, progress })
}

/// A run on nodes of some family.
struct Run<'a> {
    setup: &'a Setup,
    registry: &'a Arc<Registry>,
    workload: &'a dyn Workload,
    progress: &'a Progress,
}

impl EngineVisitor for Run<'_> {
    type Output = anyhow::Result<Measured>;

    fn visit<F: Family>(self, family: F) -> anyhow::Result<Measured> {
        let Run { setup, registry, workload, progress } = self;
        host::reset_peak_rss();
        let (stages, answered) = (Arc::new(Stages::default()), Arc::new(Answered::default()));
        let (words, heard) = channel();
        let own_audits = workload.audits();
        let directory = setup.directory.as_ref();
        let sites = sites::build(&family, &setup.grid, setup.loops, &setup.node, directory, registry)?;
        let turns = Turns::of(usize::from(setup.grid.all()) * setup.loops);
        let mut crowd = Crowd {
            family: &family,
            setup,
            workload,
            registry,
            stages: stages.clone(),
            answered,
            words,
            turns,
            placed: 0,
            auditors: 0,
        };
        let mut lead = Lead { running: Vec::new(), heard, stages, kept: Vec::new(), progress };
        for site in sites {
            lead.running.push(crowd.start(site, &own_audits)?);
        }
        let auditors = crowd.auditors;
        drop(crowd);
        lead.through(setup, workload, auditors)
    }
}

/// Places populations on loops.
struct Crowd<'a, F> {
    family: &'a F,
    setup: &'a Setup,
    workload: &'a dyn Workload,
    registry: &'a Arc<Registry>,
    stages: Arc<Stages>,
    answered: Arc<Answered>,
    words: Sender<Word>,
    turns: Turns,
    /// How many loops have their population.
    placed: usize,
    /// How many populations will be asked to audit.
    auditors: usize,
}

impl<F: Family> Crowd<'_, F> {
    /// Gives every loop of a node its population, and starts the node.
    fn start(&mut self, site: Site<F::Message>, own_audits: &[ProcedureId]) -> anyhow::Result<Running> {
        let Site { place, settings, disk, loops, peers } = site;
        let is_member = !peers.is_empty();
        let mut specs = Vec::new();
        for (i, (mut spec, mut meters)) in loops.into_iter().enumerate() {
            let [generating, planning, answering] =
                [parts::GENERATE, parts::PLAN, parts::ANSWER].map(|part| {
                    let meter = Meter::default();
                    meters.push((part, meter.clone()));
                    meter
                });
            // One population looks at each copy of each set of data; the workload's own audits are asked for once.
            let is_first = i == 0 && settings.partition().0 == 0;
            let mut audits = Vec::new();
            if is_first && place.replica == 0 {
                audits.extend(own_audits);
            }
            if is_first {
                audits.extend(&self.setup.audits);
            }
            self.auditors += usize::from(!audits.is_empty());
            let (source, asking) = self.clients(place, i);
            let population: Population<F::Message> = Population::new(
                place,
                self.family.gateway(&settings, i as u16, 1, self.registry),
                (source, asking),
                Reach {
                    dispatcher: Dispatcher::new(self.family.router(&settings)),
                    unmet: peers.iter().copied().collect(),
                    ungreeted: peers.iter().copied().collect(),
                },
                audits,
                Told {
                    turns: (self.turns.clone(), self.placed),
                    stages: self.stages.clone(),
                    answered: self.answered.clone(),
                    words: self.words.clone(),
                },
                Book::new(self.workload.kinds().len())?,
                Meters { parts: meters, generating, planning, answering },
            );
            self.placed += 1;
            spec.edges.push((places::GATEWAYS + i as u16, Box::new(population)));
            specs.push(spec);
        }
        let mut options = Options {
            node: settings.node,
            network: is_member.then_some(places::NETWORK),
            ..Options::default()
        };
        if usize::from(self.setup.grid.all()) * self.setup.loops > host::Host::look().cores {
            // A loop that looks for work would take the core from one that has some.
            options.spin = Duration::ZERO;
        }
        Ok(Runtime::start(options, disk, specs)?)
    }

    /// What the clients of a loop ask for, and how: nothing, but in the first replica.
    fn clients(&self, place: Place, i: usize) -> (Box<dyn Source>, Asking) {
        let Setup { grid, loops, clients, rate, seed, length, patience, watch, checkpoint, .. } = self.setup;
        let patience = Micros(patience.as_micros() as u64);
        if place.replica > 0 {
            return (
                Box::new(Nobody),
                Asking {
                    clients: 0,
                    rate: None,
                    budget: matches!(length, Length::Txns(_)).then_some(0),
                    seed: (0, 0),
                    patience,
                    watch: false,
                    checkpoint: None,
                },
            );
        }
        let all = usize::from(grid.nodes) * loops;
        let number = usize::from(place.node) * loops + i;
        let source = if grid.apart {
            // Data and clients of its own, as if the others were not there.
            self.workload.source(seed.wrapping_add(place.node.into()), i, *loops)
        } else {
            self.workload.source(*seed, number, all)
        };
        let own = share(*clients as u64, number, all) as usize;
        // Where there are fewer clients than loops, some loops have nobody to ask for anything.
        let asking = all.min(*clients);
        let asking = Asking {
            clients: own,
            rate: rate.filter(|_| own > 0).map(|rate| rate / asking as f64),
            budget: match length {
                Length::Txns(txns) => Some(share(*txns, number, asking)),
                Length::Time { .. } => None,
            },
            seed: (*seed, number as u64),
            patience,
            watch: *watch,
            checkpoint: checkpoint.then_some(number == 0),
        };
        (source, asking)
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
    with_family(setup.engine, Again { setup, registry })
}

/// A node that is opened once more.
struct Again<'a> {
    setup: &'a Setup,
    registry: &'a Arc<Registry>,
}

impl EngineVisitor for Again<'_> {
    type Output = anyhow::Result<Replayed>;

    fn visit<F: Family>(self, family: F) -> anyhow::Result<Replayed> {
        let Again { setup, registry } = self;
        let topology = Topology::single(setup.loops);
        let node = NodeSettings { topology, gateways: setup.loops, ..setup.node.clone() };
        let begun = Instant::now();
        let (opened, _) = sites::open(&family, &node, setup.directory.as_deref(), registry)?;
        Ok(Replayed { digest: opened.digest(), txns: opened.replayed(), took: begun.elapsed() })
    }
}

/// The calling thread: leads all populations from stage to stage.
struct Lead<'a> {
    /// By [`Place::node`].
    running: Vec<Running>,
    heard: Receiver<Word>,
    stages: Arc<Stages>,
    /// What shards kept for reads on snapshots when they were looked at.
    kept: Vec<Kept>,
    progress: &'a Progress,
}

impl Lead<'_> {
    fn through(
        &mut self,
        setup: &Setup,
        workload: &dyn Workload,
        auditors: usize,
    ) -> anyhow::Result<Measured> {
        let loops = self.running.len() * setup.loops;
        let begun = Instant::now();
        for _ in 0..loops {
            self.hear("loading")?;
        }
        let load_seconds = begun.elapsed().as_secs_f64();
        self.await_members(&setup.grid, setup.patience)?;
        let mut checkpoint = None;
        let cpu = match setup.length {
            Length::Time { warmup, measure } => {
                self.stages.enter(Stage::WarmUp);
                self.let_run("warming up", Duration::ZERO, warmup)?;
                self.stages.enter(Stage::Measure);
                let cpu = process_cpu();
                if setup.checkpoint {
                    checkpoint = Some(self.take_checkpoint(warmup, measure)?);
                } else if setup.watch {
                    self.watch(warmup, measure)?;
                } else {
                    self.let_run("measuring", warmup, measure)?;
                }
                let cpu = process_cpu() - cpu;
                self.stages.enter(Stage::Drain);
                cpu
            }
            Length::Txns(_) => {
                self.stages.enter(Stage::Measure);
                Duration::ZERO
            }
        };
        let kinds = workload.kinds().len();
        let (data, copies) = if setup.grid.apart {
            (usize::from(setup.grid.nodes), 1)
        } else {
            (1, usize::from(setup.grid.replicas))
        };
        let nothing = Results { by_kind: vec![Counts::default(); kinds], ..Results::default() };
        let mut measured = Measured {
            seconds: 0.0,
            load_seconds,
            checkpoint,
            staleness: None,
            kept: std::mem::take(&mut self.kept),
            book: Book::new(kinds)?,
            seen: vec![nothing; data],
            audits: vec![Vec::new(); data * copies],
            unanswered: 0,
            deposed: None,
            loops: Vec::new(),
            process_cpu: cpu,
            peak_rss_bytes: 0,
        };
        for _ in 0..loops {
            let Word::Drained(report) = self.hear("finishing")? else { continue };
            measured.book.add(&report.book)?;
            measured.unanswered += report.unanswered;
            match (&mut measured.staleness, report.staleness) {
                (Some(all), Some(staleness)) => all.add(&staleness)?,
                (all @ None, staleness) => *all = staleness,
                (Some(_), None) => {}
            }
            if report.place.replica == 0 {
                let seen = &mut measured.seen[report.place.data];
                seen.summaries.push(report.summary);
                seen.by_kind.iter_mut().zip(&report.book.whole_run).for_each(|(sum, counts)| *sum += *counts);
            }
            // All begin together, and a budget of transactions is spent when the last has spent its share.
            measured.seconds = measured.seconds.max(report.used.wall.as_secs_f64());
            measured.loops.push(report.used);
        }
        // Whether the configuration service knows at this moment that all members are in sync does not matter: they are compared.
        measured.deposed = self.lacking(&setup.grid, 0);
        self.stages.enter(Stage::Audit);
        let own_audits = workload.audits().len();
        for _ in 0..auditors {
            let Word::Audited(place, mut answers) = self.hear("checking")? else { continue };
            if place.replica == 0 {
                let others = answers.split_off(own_audits);
                measured.seen[place.data].audits = std::mem::replace(&mut answers, others);
            }
            measured.audits[place.data * copies + usize::from(place.replica)] = answers;
        }
        measured.peak_rss_bytes = host::peak_rss_bytes();
        // All are asked before any is waited for: what one still owes another is not waited for in vain.
        self.running.iter().for_each(|node| node.handle().stop());
        self.running.drain(..).try_for_each(Running::wait)?;
        Ok(measured)
    }

    /// Measures, and looks again and again at what shards keep for reads on snapshots.
    fn watch(&mut self, before: Duration, measure: Duration) -> anyhow::Result<()> {
        /// A loop does not show more of itself.
        const LOOK_AGAIN: Duration = Duration::from_millis(100);
        let begun = Instant::now();
        while let Some(left) = measure.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
            self.let_run("measuring", before + begun.elapsed(), left.min(LOOK_AGAIN))?;
            self.running.iter().for_each(|node| self.kept.extend(shards::kept(&node.handle())));
        }
        Ok(())
    }

    /// Has a checkpoint taken while measuring.
    fn take_checkpoint(&mut self, before: Duration, measure: Duration) -> anyhow::Result<Taken> {
        /// What a loop shows of itself is not newer than this.
        const LOOK_AGAIN: Duration = Duration::from_millis(50);
        let (begun, cpu) = (Instant::now(), process_cpu());
        self.let_run("measuring", before, measure / 4)?;
        self.stages.ask_for_checkpoint();
        let (asked, cpu_asked) = (begun.elapsed().as_secs_f64(), process_cpu());
        let mut checkpoint = Taken { asked, complete: None, cpu: [Duration::ZERO; 2] };
        while let Some(left) = measure.checked_sub(begun.elapsed()) {
            let gone = before + begun.elapsed();
            if checkpoint.complete.is_some() {
                self.let_run("measuring", gone, left)?;
                continue;
            }
            self.let_run("measuring while a checkpoint is taken", gone, left.min(LOOK_AGAIN))?;
            let taken = |node: &Running| primaries::gauges(&node.handle()).get(COMPLETED).copied();
            let is_complete = self.running.iter().filter_map(taken).any(|count| count > 0.0);
            if is_complete {
                self.stages.end_checkpoint();
                checkpoint.complete = Some(begun.elapsed().as_secs_f64());
                checkpoint.cpu[0] = process_cpu() - cpu_asked;
            }
        }
        let all = process_cpu();
        if checkpoint.complete.is_none() {
            checkpoint.cpu[0] = all - cpu_asked;
        }
        checkpoint.cpu[1] = all - cpu - checkpoint.cpu[0];
        Ok(checkpoint)
    }

    /// Waits until all members have what is loaded and are shipped everything at once: before that, what a transaction costs
    /// is not what it will.
    fn await_members(&mut self, grid: &Grid, patience: Duration) -> anyhow::Result<()> {
        /// What a loop shows of itself is not newer than this.
        const LOOK_AGAIN: Duration = Duration::from_millis(20);
        let begun = Instant::now();
        while let Some(lacking) = self.lacking(grid, grid.replicas - 1) {
            if begun.elapsed() > patience {
                bail!("after {} s {lacking}", patience.as_secs());
            }
            self.let_run("waiting for the members", Duration::ZERO, LOOK_AGAIN)?;
        }
        Ok(())
    }

    /// What a partition lacks of what it has to have where input is replicated asynchronously, if any does: its primary in
    /// the first replica, and so many members in sync.
    fn lacking(&self, grid: &Grid, members: u16) -> Option<String> {
        if grid.replication != Replication::Async {
            return None;
        }
        let firsts = self.running.iter().take(grid.nodes.into());
        firsts.zip(0..).find_map(|(node, number): (_, u16)| {
            let lacking = primaries::lacking(&primaries::gauges(&node.handle()), members)?;
            Some(format!("node {number} {lacking}"))
        })
    }

    /// Waits for the next population to say something.
    fn hear(&mut self, doing: &str) -> anyhow::Result<Word> {
        loop {
            interrupt::check()?;
            match self.heard.recv_timeout(Duration::from_millis(200)) {
                Ok(Word::Failed(reason)) => bail!("{reason}"),
                Ok(Word::Gone(place)) => return Err(self.ended(place)),
                Ok(word) => return Ok(word),
                Err(RecvTimeoutError::Timeout) => self.progress.show(Duration::ZERO, doing),
                Err(RecvTimeoutError::Disconnected) => bail!("all nodes ended in the middle of the run"),
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
                Ok(Word::Gone(place)) => return Err(self.ended(place)),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    let answered = self.stages.answered.load(Ordering::Relaxed) - answered;
                    let rate = answered as f64 / begun.elapsed().as_secs_f64();
                    self.progress.show(before + begun.elapsed(), format!("{doing}: {rate:.0} txn/s"));
                }
                Err(RecvTimeoutError::Disconnected) => bail!("all nodes ended in the middle of the run"),
            }
        }
    }

    /// A population is gone, so its node has ended: why?
    fn ended(&mut self, place: Place) -> anyhow::Error {
        let node = self.running.swap_remove(usize::from(place.node));
        match node.wait() {
            Err(stopped) if self.running.is_empty() => stopped.into(),
            Err(stopped) => anyhow::Error::new(stopped).context(format!("node {}", place.node)),
            Ok(()) => anyhow::anyhow!("node {} ended in the middle of the run", place.node),
        }
    }
}

/// How many checkpoints have become complete on a node.
const COMPLETED: &str = "ordain_checkpoint_completed_total";

/// Processor time by role or part of the driver, of some loops together, and of the runtime itself. Parts are estimates, a
/// loop's time is not: where its parts are more than all of it, each is as much less.
pub fn parts_of<'a>(loops: impl IntoIterator<Item = &'a LoopUse>) -> BTreeMap<&'static str, Duration> {
    let mut sums: BTreeMap<&'static str, Duration> = BTreeMap::new();
    for used in loops {
        let known: Duration = used.parts.iter().map(|(_, time)| *time).sum();
        let scale = used.cpu.div_duration_f64(known.max(Duration::from_nanos(1))).min(1.0);
        for (name, time) in &used.parts {
            *sums.entry(name).or_default() += time.mul_f64(scale);
        }
        *sums.entry("runtime").or_default() += used.cpu.saturating_sub(known);
    }
    sums
}
