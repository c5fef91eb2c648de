//! Drives a workload against a server over the Redis protocol, Ordain's or any other.
//!
//! [`Source`](ordain_workload::Source)s make up the very transactions that they make up for the [embedded](crate::embedded)
//! driver. Each population has a thread with an event loop and its share of the connections, and each connection has a
//! number of transactions in flight. The commands of a transaction are its [form](forms).
//!
//! All populations go through the same stages, led by the calling thread: load, warm up, measure, drain; then the
//! calling thread audits. The processor time of the clients' threads is apart from that of the server's. A server
//! that dies in the middle ends the run with what was measured so far and the reason.

pub mod forms;
mod link;
mod population;
mod probe;
mod target;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ordain_model::{Datum, Digest, ProcedureId};
use ordain_workload::{Finding, Results, Workload};

use crate::disturbance::{Disturbance, Watch};
use crate::embedded::Length;
use crate::enough::Asking;
use crate::interrupt;
use crate::progress::Progress;
use crate::server::{Process, cpu_since};
use crate::stage::{Stage, share};
use crate::tally::Book;

pub use forms::FormName;
pub use link::{Link, Protocol};
pub use probe::ServerInfo;
pub use target::Target;

use population::{Population, Report, Shared, Task, Update};

/// A run against a server.
#[derive(Clone, Debug)]
pub struct RespSetup {
    /// The server.
    pub target: Target,
    /// How transactions travel.
    pub form: FormName,
    /// How many threads of clients there are, each with a population of its own.
    pub populations: usize,
    /// How many connections they have together.
    pub connections: usize,
    /// How many transactions a connection has in flight.
    pub pipeline: usize,
    /// How many transactions a second are asked for, in an open loop; none: a closed one.
    pub rate: Option<f64>,
    /// Where everything that is drawn comes from.
    pub seed: u64,
    /// The end of the run.
    pub length: Length,
    /// Procedures without arguments that are called after the workload's own audits; natively only.
    pub audits: Vec<ProcedureId>,
    /// Longest wait of a population without an answer, before it gives up.
    pub patience: Duration,
    /// True: whatever is in the database may be deleted.
    pub flush: bool,
}

/// The outcome of a run.
#[derive(Debug)]
pub struct RespMeasured {
    /// The server.
    pub server: ServerInfo,
    /// Time of loading, seconds.
    pub load_seconds: f64,
    /// The answers.
    pub book: Book,
    /// Input of the workload's checks.
    pub seen: Results,
    /// Answers to the audits of the [`RespSetup`], in order.
    pub audits: Vec<Vec<u8>>,
    /// Outcomes of the checks; nothing after a failure. Digests are compared only where the server keeps one and held nothing
    /// before.
    pub findings: Vec<Finding>,
    /// Processor time of the clients' threads while measuring.
    pub client_cpu: Duration,
    /// Processor time of the server while measuring, by the names of its threads; nothing if it is elsewhere.
    pub server_cpu: BTreeMap<String, Duration>,
    /// The peak of the server's resident memory since it started; 0 if it is elsewhere.
    pub server_peak_rss_bytes: u64,
    /// The use of the machine by others while measuring.
    pub disturbance: Disturbance,
    /// The threads of clients, and how they measured.
    pub asking: Asking,
    /// Why the run ended early: what was measured until then stands, and nothing was checked.
    pub failure: Option<String>,
}

/// Runs a workload.
///
/// # Errors
/// What keeps the run from beginning: the server is not there, has data that may not be deleted, or does not take the
/// form. What goes wrong later is in [`RespMeasured::failure`].
pub fn run(setup: &RespSetup, workload: &dyn Workload, progress: &Progress) -> anyhow::Result<RespMeasured> {
    let RespSetup { target, form, populations, connections, .. } = setup;
    if *populations == 0 || connections < populations || setup.pipeline == 0 {
        bail!(
            "{populations} threads of clients with {connections} connections and {} transactions in flight on each \
             make no sense: there must be a connection for each thread",
            setup.pipeline
        );
    }
    if *form == FormName::Native && target.db != 0 {
        bail!("native procedures use database 0: leave the database out of the target");
    }
    let mut link = Link::open(target, form.protocol())?;
    let server = ServerInfo::ask(&mut link).with_context(|| target.to_string())?;
    let form: Arc<dyn forms::Form> = forms::prepare(*form, workload, &server, &mut link)?.into();
    make_room(&mut link, target, setup.flush)?;
    let is_alone = setup.form == FormName::Native && is_empty(&mut link)?;

    let shared = Arc::new(Shared::new());
    let (updates, received) = channel();
    let mut all = Vec::new();
    for i in 0..*populations {
        let streams = (0..share(*connections as u64, i, *populations))
            .map(|_| Link::open(target, setup.form.protocol())?.into_stream())
            .collect::<anyhow::Result<_>>()?;
        let task = Task {
            source: workload.source(setup.seed, i, *populations),
            kinds: workload.kinds().len(),
            form: form.clone(),
            streams,
            pipeline: setup.pipeline,
            rate: setup.rate.map(|rate| rate / *populations as f64),
            seed: (setup.seed, i as u64),
            budget: match setup.length {
                Length::Txns(txns) => Some(share(txns, i, *populations)),
                Length::Time { .. } => None,
            },
            patience: setup.patience,
        };
        all.push(Population::new(task, shared.clone(), updates.clone())?);
    }
    drop(updates);
    let mut threads = Vec::new();
    for (i, population) in all.into_iter().enumerate() {
        let thread = std::thread::Builder::new().name(format!("clients-{i}"));
        threads.push(thread.spawn(move || population.run()).context("cannot start a thread of clients")?);
    }
    let process = server.process();
    let mut lead = Lead { received, shared, progress, process, running: threads.len(), reports: Vec::new() };
    let led = lead.through(setup)?;
    for thread in threads {
        // A panic has been printed; its missing report is an error below.
        let _ = thread.join();
    }
    let mut measured = led.sum(lead.reports, workload.kinds().len(), server)?;
    if process.is_none() {
        measured.disturbance = Disturbance::unknown("the server's machine is not watched");
    }
    measured.server_peak_rss_bytes = process.map_or(0, Process::peak_rss_bytes);
    if interrupt::is_requested() {
        // A server of ours got the same Ctrl-C, and has closed its connections.
        measured.failure = Some(interrupt::INTERRUPTED.to_owned());
    }
    if measured.failure.is_none() {
        progress.show(Duration::ZERO, "checking");
        match audit(&*form, workload, setup, &mut link) {
            Ok((audits, others)) => {
                measured.seen.audits = audits;
                measured.audits = others;
                measured.findings = workload.check(&measured.seen);
                if !is_alone {
                    measured.findings.retain(|finding| finding.name != "digest");
                }
            }
            Err(error) => measured.failure = Some(format!("the data could not be checked: {error:#}")),
        }
    }
    Ok(measured)
}

/// Sees to it that the database is empty.
fn make_room(link: &mut Link, target: &Target, flush: bool) -> anyhow::Result<()> {
    match link.ask_count("DBSIZE")? {
        0 => Ok(()),
        _ if flush => link.expect_ok(&["FLUSHDB"]).context("FLUSHDB was refused"),
        keys => bail!(
            "database {} of {target} holds {keys} keys, and a benchmark would mix with them: choose another, or say \
             --flush to delete them",
            target.db
        ),
    }
}

/// Deletes what is in the database of a server.
pub fn empty(target: &Target) -> anyhow::Result<()> {
    Link::open(target, Protocol::Resp2)?.expect_ok(&["FLUSHDB"]).context("FLUSHDB was refused")
}

/// Whether the server holds nothing at all, in whatever database, nor any script: only then is its digest that of a
/// workload's records.
fn is_empty(link: &mut Link) -> anyhow::Result<bool> {
    let reply = link.ask(&["DEBUG", "DIGEST"])?;
    Ok(Datum::first(&reply).as_bytes() == Some(Digest::default().to_string().as_bytes()))
}

/// Answers of audits, in order.
type Answers = Vec<Vec<u8>>;

/// The answers to the workload's audits, and to those of the setup.
fn audit(
    form: &dyn forms::Form,
    workload: &dyn Workload,
    setup: &RespSetup,
    link: &mut Link,
) -> anyhow::Result<(Answers, Answers)> {
    let audits = form.audit(&workload.audits(), link)?;
    let others = match setup.form {
        FormName::Native => form.audit(&setup.audits, link)?,
        FormName::Multi | FormName::Script => Answers::new(),
    };
    Ok((audits, others))
}

/// The calling thread: leads all populations from stage to stage.
struct Lead<'a> {
    received: Receiver<Update>,
    shared: Arc<Shared>,
    progress: &'a Progress,
    process: Option<Process>,
    /// Populations that have not ended.
    running: usize,
    reports: Vec<Report>,
}

/// What the leading thread saw itself.
#[derive(Debug, Default)]
struct Led {
    load_seconds: f64,
    server_cpu: BTreeMap<String, Duration>,
    disturbance: Disturbance,
    /// True if a time ends the run.
    is_by_time: bool,
}

/// What a population's end means for the others.
enum Received {
    Loaded,
    Ended,
    Nothing,
}

impl Lead<'_> {
    fn through(&mut self, setup: &RespSetup) -> anyhow::Result<Led> {
        let mut led = Led::default();
        let begun = Instant::now();
        let mut loading = self.running;
        while loading > 0 && self.is_well() {
            if let Received::Loaded = self.receive(Duration::from_millis(200))? {
                loading -= 1;
            }
            self.show(begun, Duration::ZERO, "loading");
        }
        led.load_seconds = begun.elapsed().as_secs_f64();
        led.is_by_time = matches!(setup.length, Length::Time { .. });
        let watch = |lead: &Self| Watch::begin(lead.process.map(Process::id));
        let mut watched = None;
        let before = match setup.length {
            _ if !self.is_well() => BTreeMap::new(),
            Length::Time { warmup, measure } => {
                self.shared.stages.enter(Stage::WarmUp);
                self.let_run("warming up", Duration::ZERO, Some(warmup))?;
                let before = self.server_cpu();
                if self.is_well() {
                    watched = Some(watch(self));
                    self.shared.stages.enter(Stage::Measure);
                    self.let_run("measuring", warmup, Some(measure))?;
                }
                before
            }
            Length::Txns(_) => {
                let before = self.server_cpu();
                watched = Some(watch(self));
                self.shared.stages.enter(Stage::Measure);
                self.let_run("measuring", Duration::ZERO, None)?;
                before
            }
        };
        led.server_cpu = cpu_since(&before, self.server_cpu());
        led.disturbance = watched.map(|watch| watch.end()).unwrap_or_default();
        self.shared.stages.enter(Stage::Drain);
        while self.running > 0 {
            self.receive(Duration::from_millis(200))?;
        }
        Ok(led)
    }

    /// What the server's threads have used so far.
    fn server_cpu(&self) -> BTreeMap<String, Duration> {
        self.process.map(Process::cpu).unwrap_or_default()
    }

    /// True if no population has failed, and no signal to stop has come.
    fn is_well(&self) -> bool {
        !interrupt::is_requested() && self.reports.iter().all(|report| report.failure.is_none())
    }

    /// Lets the populations run for a while, or until all have ended.
    fn let_run(&mut self, doing: &str, before: Duration, length: Option<Duration>) -> anyhow::Result<()> {
        let begun = Instant::now();
        self.shared.stages.answered.store(0, Ordering::Relaxed);
        while self.running > 0 && self.is_well() {
            let gone = begun.elapsed();
            let wait = match length {
                Some(length) if gone >= length => return Ok(()),
                Some(length) => (length - gone).min(Duration::from_millis(200)),
                None => Duration::from_millis(200),
            };
            self.receive(wait)?;
            self.show(begun, before, doing);
        }
        Ok(())
    }

    fn show(&self, begun: Instant, before: Duration, doing: &str) {
        let gone = begun.elapsed();
        let rate = self.shared.stages.answered.load(Ordering::Relaxed) as f64 / gone.as_secs_f64().max(1e-9);
        let into = if doing == "loading" { Duration::ZERO } else { before + gone };
        self.progress.show(into, format!("{doing}: {rate:.0} txn/s"));
    }

    fn receive(&mut self, wait: Duration) -> anyhow::Result<Received> {
        match self.received.recv_timeout(wait) {
            Ok(Update::Loaded) => Ok(Received::Loaded),
            Ok(Update::Ended(report)) => {
                self.running -= 1;
                self.reports.push(*report);
                Ok(Received::Ended)
            }
            Err(RecvTimeoutError::Timeout) => Ok(Received::Nothing),
            Err(RecvTimeoutError::Disconnected) => bail!("a thread of clients has ended without a word"),
        }
    }
}

impl Led {
    fn sum(self, reports: Vec<Report>, kinds: usize, server: ServerInfo) -> anyhow::Result<RespMeasured> {
        let mut measured = RespMeasured {
            server,
            load_seconds: self.load_seconds,
            book: Book::new(kinds),
            seen: Results::default(),
            audits: Vec::new(),
            findings: Vec::new(),
            client_cpu: Duration::ZERO,
            server_cpu: self.server_cpu,
            server_peak_rss_bytes: 0,
            disturbance: self.disturbance,
            asking: Asking::default(),
            failure: None,
        };
        for report in reports {
            measured.book.add(&report.book);
            measured.seen.summaries.push(report.summary);
            measured.client_cpu += report.cpu;
            measured.asking.note(self.is_by_time.then_some(report.book.seconds), report.missed);
            measured.failure = measured.failure.or(report.failure);
        }
        measured.seen.by_kind = measured.book.whole_run.clone();
        Ok(measured)
    }
}
