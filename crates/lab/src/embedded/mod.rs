//! Drives a workload against the roles of nodes on the real runtime, without sockets between clients and nodes.
//!
//! A run has one node, or a whole cluster in this process, whose nodes talk over TCP as they do anywhere ([`Grid`]).
//! Each loop of a node holds a shard and, in place of the connection server, an edge with a gateway and a population of
//! clients. A client has one transaction under way. In a closed loop it asks for the next as soon as it is answered, of its
//! class if the workload has classes; in an open one clients ask at the times of a `Schedule`, and a request that finds no
//! client free is late from then on. What the clients of one loop ask for in one turn leaves as one chunk, as it does from behind sockets.
//!
//! All populations go through the same stages, led by the calling thread: load, warm up, measure, drain, audit.
//! The result is the answers while a loop was in the measuring stage, against the time and the
//! processor time of that very loop between entering and leaving it.

mod classes;
mod gauges;
mod population;
mod remote;
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
use ordain_family::{Family, NodeSettings, Opened as _, Replication, Storage, places};
use ordain_gateway::Dispatcher;
use ordain_model::{Digest, Micros, ProcedureId, Registry};
use ordain_role::Topology;
use ordain_runtime::{Options, Running, Runtime};
use ordain_workload::{Counts, Results, Source, Workload};

use crate::agreement::{Agreement, Counted};
use crate::disturbance::{Disturbance, Watch};
use crate::enough::{Asking, Load};
use crate::host;
use crate::interrupt;
use crate::meter::{Meter, process_cpu};
use crate::progress::Progress;
use crate::stage::{Stage, Stages, share};
use crate::staleness::{Answered, Staleness};
use crate::tally::Book;

pub use gauges::Kept;
use population::{Clients, Meters, NoClients, Place, Population, Reach, Shared, Update};
use sites::Site;
pub use sites::{Delay, Fault, Grid, Regions};
use waiting::Turns;

/// The end of a run.
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

/// A run: nodes, clients, and when it ends.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The engine.
    pub engine: Engine,
    /// Settings of all nodes, but for places, shards and gateways.
    pub node: NodeSettings,
    pub grid: Grid,
    /// Directory of the logs, for nodes that keep them.
    pub directory: Option<PathBuf>,
    /// Loops of a node, each with a shard and, in the first replica, a population.
    pub loops: usize,
    /// Clients of all populations together.
    pub clients: usize,
    /// Transactions a second, in an open loop; none: a closed one.
    pub rate: Option<f64>,
    pub seed: u64,
    pub length: Length,
    /// Procedures without arguments that are called after the workload's own audits.
    pub audits: Vec<ProcedureId>,
    /// Longest wait of the clients of a loop without an answer, before they give up. Time in which a loop is
    /// busy with one thing does not count.
    pub patience: Duration,
    /// True: staleness of reads on snapshots, and contents kept for them, are measured. That costs a little.
    pub watch: bool,
    /// A checkpoint is taken when a quarter of the time has been measured.
    pub checkpoint: bool,
    /// Longest time of measuring: until then a run goes on whose commits say nothing yet.
    pub longest: Duration,
}

/// A [`Setup::patience`] that no disk that works should try.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The outcome of a run.
#[derive(Debug)]
pub struct Measured {
    pub load_seconds: f64,
    /// The checkpoint, if one was wanted.
    pub checkpoint: Option<Taken>,
    /// Staleness of reads on snapshots, if it was measured.
    pub staleness: Option<Staleness>,
    /// Contents kept for them, by each inspection.
    pub kept: Vec<Kept>,
    /// The cost of agreement, with engines that execute first; none if a number of transactions ended the run.
    pub agreement: Option<Agreement>,
    pub book: Book,
    /// Input of the workload's checks: of each node if they are apart, otherwise of all together.
    pub seen: Vec<Results>,
    /// Answers of each replica to the audits of the [`Setup`], in order; empty for one that was not answered.
    pub audits: Vec<Vec<Vec<u8>>>,
    /// A fault of the primaries after the last transaction, where input is replicated asynchronously: they are to be
    /// who they were, with all their members behind them.
    pub deposed: Option<String>,
    pub loops: Vec<LoopUse>,
    /// Processor time of the process while measuring: the loops' and that of the disk threads.
    pub process_cpu: Duration,
    /// The peak of resident memory, loading included.
    pub peak_rss_bytes: u64,
    /// The use of the machine by others while measuring.
    pub disturbance: Disturbance,
    /// The loops with clients, and how they measured.
    pub asking: Asking,
    /// Audits that were asked for, and those of them that were answered.
    pub audited: (usize, usize),
}

/// A checkpoint that was taken while measuring, in seconds since it began; to a tenth of a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Taken {
    /// Start.
    pub asked: f64,
    /// End, if it was complete in the end.
    pub complete: Option<f64>,
    /// Processor time of the process from the one to the other, and in the rest of the time measured.
    pub cpu: [Duration; 2],
}

/// Processor time of one loop while measuring, and what it was used for.
#[derive(Clone, Debug)]
pub struct LoopUse {
    pub node: u16,
    /// Processor time of its thread.
    pub cpu: Duration,
    /// By role or part of the driver. What is missing to the sum is the runtime's: messages, wake-ups, polling.
    pub parts: Vec<(&'static str, Duration)>,
}

/// The parts of the driver in [`LoopUse::parts`].
pub mod parts {
    /// Making transactions up: the client's work.
    pub const GENERATE: &str = "driver: generate";
    /// Planning them and writing them into chunks: the connection server's work.
    pub const PLAN: &str = "gateway: plan";
    /// Taking answers: the connection server's work, and the clients' stop-watches.
    pub const ANSWER: &str = "gateway: answer";
}

/// Runs a workload, with a source for each loop that has clients.
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
        let (updates, received) = channel();
        let own_audits = workload.audits();
        let directory = setup.directory.as_ref();
        let sites = sites::build(&family, &setup.grid, setup.loops, &setup.node, directory, registry)?;
        let loops = sites.iter().filter(|site| site.has_clients()).map(|site| site.loops.len());
        let turns = Turns::of(loops.sum());
        let mut placing = Placing {
            family: &family,
            setup,
            workload,
            registry,
            stages: stages.clone(),
            answered,
            updates,
            turns,
            placed: 0,
            auditors: 0,
        };
        let mut lead = Lead { running: Vec::new(), received, stages, kept: Vec::new(), progress };
        for site in sites {
            lead.running.push(placing.start(site, &own_audits)?);
        }
        let populations = (placing.placed, placing.auditors);
        drop(placing);
        lead.through(setup, workload, populations)
    }
}

/// Places populations on loops.
struct Placing<'a, F> {
    family: &'a F,
    setup: &'a Setup,
    workload: &'a dyn Workload,
    registry: &'a Arc<Registry>,
    stages: Arc<Stages>,
    answered: Arc<Answered>,
    updates: Sender<Update>,
    turns: Turns,
    /// Loops that have their population.
    placed: usize,
    /// Populations that will be asked to audit.
    auditors: usize,
}

impl<F: Family> Placing<'_, F> {
    /// Gives every loop of a node its population, and starts the node.
    fn start(&mut self, site: Site<F::Message>, own_audits: &[ProcedureId]) -> anyhow::Result<Running> {
        let Site { place, settings, disk, loops, peers } = site;
        let is_member = !peers.is_empty();
        let is_server = settings.topology.is_server(settings.node);
        let mut specs = Vec::new();
        for (i, (mut spec, mut meters)) in loops.into_iter().enumerate() {
            if !is_server {
                specs.push(spec);
                continue;
            }
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
            let audits_own = place.replica == 0 && self.workload.is_audited_at_home();
            self.auditors += usize::from(audits_own || !audits.is_empty());
            let (source, clients) = self.clients(place, i);
            let population: Population<F::Message> = Population::new(
                place,
                self.family.gateway(&settings, i as u16, 1, self.registry),
                (source, clients),
                Reach {
                    dispatcher: Dispatcher::new(self.family.router(&settings)),
                    unmet: peers.iter().copied().collect(),
                    ungreeted: peers.iter().copied().filter(|it| settings.topology.is_server(*it)).collect(),
                },
                (audits, audits_own),
                Shared {
                    turns: (self.turns.clone(), self.placed),
                    stages: self.stages.clone(),
                    answered: self.answered.clone(),
                    updates: self.updates.clone(),
                },
                Book::new(self.workload.kinds().len()),
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

    /// The source and the pace of the clients of a loop; only the first replica has clients.
    fn clients(&self, place: Place, i: usize) -> (Box<dyn Source>, Clients) {
        let Setup { grid, loops, clients, rate, seed, length, patience, watch, checkpoint, .. } = self.setup;
        let patience = Micros(patience.as_micros() as u64);
        if place.replica > 0 {
            return (
                Box::new(NoClients),
                Clients {
                    clients: 0,
                    classes: Vec::new(),
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
        // Where there are fewer clients than loops, some loops have none.
        let clients = all.min(*clients);
        let clients = Clients {
            clients: own,
            classes: self.workload.classes(),
            rate: rate.filter(|_| own > 0).map(|rate| rate / clients as f64),
            budget: match length {
                Length::Txns(txns) => Some(share(*txns, number, clients)),
                Length::Time { .. } => None,
            },
            seed: (*seed, number as u64),
            patience,
            watch: *watch,
            checkpoint: checkpoint.then_some(number == 0),
        };
        (source, clients)
    }
}

/// The outcome of replaying a log.
#[derive(Clone, Copy, Debug)]
pub struct Replayed {
    /// The digest of the state.
    pub digest: Digest,
    /// Transactions of the log.
    pub txns: u64,
    pub took: Duration,
}

/// Starts the node of a run that has ended once more, from its log alone.
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
    received: Receiver<Update>,
    stages: Arc<Stages>,
    /// Contents that shards kept for reads on snapshots, by each inspection.
    kept: Vec<Kept>,
    progress: &'a Progress,
}

/// What the leading thread saw while measuring.
#[derive(Default)]
struct Spent {
    checkpoint: Option<Taken>,
    /// Processor time of the process, if a time ends the run.
    cpu: Duration,
    /// The machine is watched on, until the last transaction is answered.
    watch: Option<Watch>,
    disturbance: Disturbance,
    agreement: Option<Agreement>,
}

impl Lead<'_> {
    fn through(
        &mut self,
        setup: &Setup,
        workload: &dyn Workload,
        (loops, auditors): (usize, usize),
    ) -> anyhow::Result<Measured> {
        let begun = Instant::now();
        for _ in 0..loops {
            self.receive("loading")?;
        }
        let load_seconds = begun.elapsed().as_secs_f64();
        self.await_loaded(&setup.grid, setup.patience)?;
        self.end_dead(&setup.grid, setup.patience)?;
        let Spent { checkpoint, cpu, watch, disturbance, agreement } = self.measure(setup)?;
        let kinds = workload.kinds().len();
        let (data, copies) = if setup.grid.apart {
            (usize::from(setup.grid.nodes), 1)
        } else {
            (1, usize::from(setup.grid.replicas))
        };
        let nothing = Results { by_kind: vec![Counts::default(); kinds], ..Results::default() };
        let mut measured = Measured {
            load_seconds,
            checkpoint,
            staleness: None,
            kept: std::mem::take(&mut self.kept),
            agreement,
            book: Book::new(kinds),
            seen: vec![nothing; data],
            audits: vec![Vec::new(); data * copies],
            deposed: None,
            loops: Vec::new(),
            process_cpu: cpu,
            peak_rss_bytes: 0,
            disturbance,
            asking: Asking::default(),
            audited: (0, 0),
        };
        let mut times = vec![BTreeMap::new(); data];
        for _ in 0..loops {
            let Update::Drained(report) = self.receive("finishing")? else { continue };
            measured.book.add(&report.book);
            times[report.place.data].extend(report.times);
            if report.has_clients {
                let seconds = matches!(setup.length, Length::Time { .. }).then_some(report.book.seconds);
                measured.asking.note(seconds, report.missed);
            }
            match (&mut measured.staleness, report.staleness) {
                (Some(all), Some(staleness)) => all.add(&staleness),
                (all @ None, staleness) => *all = staleness,
                (Some(_), None) => {}
            }
            if report.place.replica == 0 {
                let seen = &mut measured.seen[report.place.data];
                seen.summaries.push(report.summary);
                seen.by_kind.iter_mut().zip(&report.book.whole_run).for_each(|(sum, counts)| *sum += *counts);
            }
            measured.loops.push(report.used);
        }
        if let Some(watch) = watch {
            measured.disturbance = watch.end();
        }
        // Whether the configuration service knows at this moment that all members are in sync does not matter: they are compared.
        measured.deposed = self.missing(&setup.grid, 0);
        self.await_heard(setup.patience)?;
        self.stages.enter(Stage::Audit);
        let own_audits = workload.audits().len();
        for _ in 0..auditors {
            let Update::Audited(place, mut answers) = self.receive("checking")? else { continue };
            measured.audited.0 += answers.len();
            measured.audited.1 += answers.iter().filter(|answer| !answer.is_empty()).count();
            if place.replica == 0 && workload.is_audited_at_home() {
                measured.seen[place.data].audits.append(&mut answers);
            } else if place.replica == 0 {
                let others = answers.split_off(own_audits);
                measured.seen[place.data].audits = std::mem::replace(&mut answers, others);
            }
            measured.audits[place.data * copies + usize::from(place.replica)] = answers;
        }
        if let Some(staleness) = measured.staleness.as_mut().filter(|_| workload.names_writes()) {
            *staleness = Staleness::new();
            for (seen, times) in measured.seen.iter().zip(&times) {
                let all = workload.staleness(seen, times);
                all.into_iter().for_each(|nanos| staleness.note(Duration::from_nanos(nanos)));
            }
        }
        measured.peak_rss_bytes = host::peak_rss_bytes();
        // All are asked before any is waited for: what one still owes another is not waited for in vain.
        self.running.iter().for_each(|node| node.handle().stop());
        self.running.drain(..).try_for_each(Running::wait)?;
        Ok(measured)
    }

    /// Warms up and measures for a time, or begins to measure what a number of transactions ends.
    fn measure(&mut self, setup: &Setup) -> anyhow::Result<Spent> {
        let Length::Time { warmup, measure } = setup.length else {
            let watch = Some(Watch::begin(None));
            self.stages.enter(Stage::Measure);
            return Ok(Spent { watch, ..Spent::default() });
        };
        self.stages.enter(Stage::WarmUp);
        self.let_run("warming up", Duration::ZERO, warmup)?;
        let watch = Watch::begin(None);
        self.stages.enter(Stage::Measure);
        let (cpu, counted, mut checkpoint) = (process_cpu(), Counted::of(&self.running), None);
        if setup.checkpoint {
            checkpoint = Some(self.take_checkpoint(warmup, measure)?);
        } else if setup.watch {
            self.watch(warmup, measure)?;
        } else {
            self.measure_enough(setup, warmup, measure)?;
        }
        let (cpu, agreement) = (process_cpu() - cpu, Counted::of(&self.running).since(&counted));
        self.stages.enter(Stage::Drain);
        Ok(Spent { checkpoint, cpu, watch: None, disturbance: watch.end(), agreement })
    }

    /// Measures; for longer than was asked if too little was committed by then, and that is allowed.
    fn measure_enough(&mut self, setup: &Setup, before: Duration, length: Duration) -> anyhow::Result<()> {
        const LONGER: Duration = Duration::from_millis(100);
        let loops = usize::from(setup.grid.nodes) * setup.loops;
        let least = Load { loops, clients: setup.clients, is_open: setup.rate.is_some() }.least();
        let (begun, committed) = (Instant::now(), self.stages.answered.load(Ordering::Relaxed));
        self.let_run("measuring", before, length)?;
        while begun.elapsed() < setup.longest
            && self.stages.answered.load(Ordering::Relaxed) - committed < least
        {
            self.let_run("measuring for longer", before + length, LONGER)?;
        }
        Ok(())
    }

    /// Measures, and looks again and again at what shards keep for reads on snapshots.
    fn watch(&mut self, before: Duration, measure: Duration) -> anyhow::Result<()> {
        /// A loop does not show more of itself.
        const LOOK_AGAIN: Duration = Duration::from_millis(100);
        let begun = Instant::now();
        while let Some(left) = measure.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
            self.let_run("measuring", before + begun.elapsed(), left.min(LOOK_AGAIN))?;
            self.running.iter().for_each(|node| self.kept.extend(gauges::kept(&node.handle())));
        }
        Ok(())
    }

    /// Measures, and takes a checkpoint meanwhile.
    fn take_checkpoint(&mut self, before: Duration, measure: Duration) -> anyhow::Result<Taken> {
        /// A loop publishes its gauges no more often.
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
            let taken = |node: &Running| gauges::of_node(&node.handle()).get(COMPLETED).copied();
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

    /// Waits until what is loaded is everywhere. All members have it and are shipped everything at once: before that, what a transaction
    /// costs is not what it will. All partitions have heard of its outcome: before that, an engine that does not promise the order of
    /// real time may show a client of another node what was there before.
    fn await_loaded(&mut self, grid: &Grid, patience: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        // Gauges that were published before may be of the time of loading.
        self.let_run("waiting for the nodes", Duration::ZERO, LOOK_AGAIN * 3)?;
        while let Some(missing) = self.unheard().or_else(|| self.missing(grid, grid.replicas - 1)) {
            if begun.elapsed() > patience {
                bail!("after {} s {missing}", patience.as_secs());
            }
            self.let_run("waiting for the members", Duration::ZERO, LOOK_AGAIN)?;
        }
        Ok(())
    }

    /// Waits until all partitions have heard of what was answered: before that, an audit of an engine that does not promise the order of real
    /// time may miss it. If some never hear of it, the audit will tell.
    fn await_heard(&mut self, patience: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        self.let_run("waiting for the partitions", Duration::ZERO, LOOK_AGAIN * 3)?;
        while self.unheard().is_some() && begun.elapsed() < patience {
            self.let_run("waiting for the partitions", Duration::ZERO, LOOK_AGAIN * 3)?;
        }
        Ok(())
    }

    /// Ends the storage nodes that are to be dead, and waits until the others are all that their regions need.
    fn end_dead(&mut self, grid: &Grid, patience: Duration) -> anyhow::Result<()> {
        let Some((count, left)) = grid.dead() else { return Ok(()) };
        let dead = self.running.split_off(self.running.len() - count);
        dead.iter().for_each(|node| node.handle().stop());
        dead.into_iter().try_for_each(Running::wait)?;
        let needs_them = |node: &Running| {
            let gauges = gauges::of_node(&node.handle());
            let of = |name| gauges.get(name).copied().unwrap_or_default();
            let is_full = grid.regions.is_some_and(|regions| regions.storage == Storage::Full);
            of("ordain_storage_silent_replicas") == 0.0
                || (is_full && of("ordain_storage_configuration") > f64::from(left))
        };
        let begun = Instant::now();
        while self.running.iter().take(grid.nodes.into()).any(needs_them) {
            if begun.elapsed() > patience {
                bail!(
                    "a region waits for a storage node that is dead, and has not left it out in {patience:?}"
                );
            }
            self.let_run("leaving out the dead", Duration::ZERO, LOOK_AGAIN)?;
        }
        Ok(())
    }

    /// The node that has answered transactions of which not all partitions have heard that are to hear of them.
    fn unheard(&self) -> Option<String> {
        let unheard = self.running.iter().map(|node| gauges::unheard(&node.handle()));
        let (number, count) = (0..).zip(unheard).find(|(_, count): &(u16, f64)| *count > 0.0)?;
        Some(format!(
            "node {number} has answered {count} transactions of which not all partitions have heard"
        ))
    }

    /// The condition that a partition does not meet where input is replicated asynchronously: it needs its primary in
    /// the first replica, and so many members in sync.
    fn missing(&self, grid: &Grid, members: u16) -> Option<String> {
        if grid.replication != Replication::Async {
            return None;
        }
        let firsts = self.running.iter().take(grid.nodes.into());
        firsts.zip(0..).find_map(|(node, number): (_, u16)| {
            let missing = gauges::missing(&gauges::of_node(&node.handle()), members)?;
            Some(format!("node {number} {missing}"))
        })
    }

    /// Waits for the next update of a population, for a fifth of a second or less.
    fn next(&mut self, wait: Duration) -> anyhow::Result<Option<Update>> {
        interrupt::check()?;
        match self.received.recv_timeout(wait.min(Duration::from_millis(200))) {
            Ok(Update::Failed(reason)) => bail!("{reason}"),
            Ok(Update::Gone(place)) => Err(self.ended(place)),
            Ok(update) => Ok(Some(update)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("all nodes ended in the middle of the run"),
        }
    }

    /// Waits for the next update of a population, however long.
    fn receive(&mut self, doing: &str) -> anyhow::Result<Update> {
        loop {
            match self.next(Duration::MAX)? {
                Some(update) => return Ok(update),
                None => self.progress.show(Duration::ZERO, doing),
            }
        }
    }

    /// Lets the populations run for a while.
    fn let_run(&mut self, doing: &str, before: Duration, length: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        let answered = self.stages.answered.load(Ordering::Relaxed);
        while let Some(left) = length.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
            if self.next(left)?.is_none() {
                let answered = self.stages.answered.load(Ordering::Relaxed) - answered;
                let rate = answered as f64 / begun.elapsed().as_secs_f64();
                self.progress.show(before + begun.elapsed(), format!("{doing}: {rate:.0} txn/s"));
            }
        }
        Ok(())
    }

    /// The reason why a population is gone, and its node with it.
    fn ended(&mut self, place: Place) -> anyhow::Error {
        let node = self.running.swap_remove(usize::from(place.node));
        match node.wait() {
            Err(stopped) if self.running.is_empty() => stopped.into(),
            Err(stopped) => anyhow::Error::new(stopped).context(format!("node {}", place.node)),
            Ok(()) => anyhow::anyhow!("node {} ended in the middle of the run", place.node),
        }
    }
}

/// A loop publishes its gauges no more often.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Gauge of the checkpoints that have become complete on a node.
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
