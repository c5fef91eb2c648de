//! `ordain cluster up`: every node a process of this very program, and one process that supervises them.
//!
//! One thread does all of it: it starts the nodes, gets their ends and signals through one channel,
//! and stops them. A node dies with the process that started it, so nothing is left behind even by
//! `kill -9`; and it is in a process group of its own, so that the Ctrl-C of a terminal reaches it once, from here.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use ordain_lab::report;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::home::{Home, Wanted};
use super::{NodeKind, NodeRecord, Record};

/// How long nodes have to stop by themselves: they take ten seconds for their clients and ten for their disks at most.
const STOP_WITHIN: Duration = Duration::from_secs(25);
/// How long a node that has died waits for its restart, at first and at most.
const RESTART_AFTER: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// A node that has run for so long is not in a hurry to die.
const STEADY_AFTER: Duration = Duration::from_secs(30);
/// How much of the end of a node's log is read.
const TAIL: u64 = 4096;

/// The flags of `ordain cluster up`.
#[derive(Debug, Args)]
pub struct UpArgs {
    #[command(flatten)]
    wanted: Wanted,
    /// Where the cluster keeps its data and its nodes' logs, and cluster.json
    #[arg(long, env = "ORDAIN_DATA_DIR", default_value = "ordain-data", value_name = "DIR")]
    data_dir: PathBuf,
    /// Start a node again that has died
    #[arg(long)]
    restart: bool,
    /// How long all nodes have to get ready, seconds: a node executes its log again when it starts
    #[arg(long, value_name = "S", default_value_t = 120)]
    ready_within_s: u64,
    /// Write the table to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs a cluster until a signal asks it to stop. True: all nodes stopped in good order.
///
/// # Errors
/// Why it could not be started, or that nothing of it is left.
pub fn run(args: &UpArgs) -> anyhow::Result<bool> {
    report::check_writable("--json", args.json.as_deref())?;
    let (events, events_in) = mpsc::channel();
    watch_signals(events.clone())?;
    let home = Home::open(&args.data_dir, &args.wanted)?;
    let mut fleet = Fleet::new(home, args.restart, events)?;
    let ready = fleet.start(&events_in, Duration::from_secs(args.ready_within_s));
    let lasted = match ready {
        Ok(true) => fleet.announce(args.json.as_deref()).and_then(|()| fleet.supervise(&events_in)),
        Ok(false) => Ok(()),
        Err(error) => Err(error),
    };
    let stopped = fleet.stop(&events_in);
    lasted?;
    stopped
}

/// An event for the thread in charge.
#[derive(Debug)]
enum Event {
    /// A node takes connections.
    Ready(u16),
    /// A node has closed its output: it ends.
    Ended(u16),
    /// A signal asks for the end.
    Signal,
}

fn watch_signals(events: Sender<Event>) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot watch for signals")?;
    thread::Builder::new().name("ordain-signals".into()).spawn(move || {
        for _ in signals.forever() {
            if events.send(Event::Signal).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

/// A process that is a node.
#[derive(Debug)]
struct Up {
    child: Child,
    since: Instant,
    ready: bool,
    /// Where in its log its own lines begin.
    log_from: u64,
}

/// All nodes of the cluster, by number.
#[derive(Debug)]
struct Fleet {
    program: PathBuf,
    home: Home,
    record: Record,
    up: BTreeMap<u16, Up>,
    /// The time at which those that are down are started again.
    due: BTreeMap<u16, Instant>,
    /// How long the next restart of a node waits.
    delays: BTreeMap<u16, Duration>,
    restart: bool,
    events: Sender<Event>,
}

impl Fleet {
    fn new(home: Home, restart: bool, events: Sender<Event>) -> anyhow::Result<Fleet> {
        let program = std::env::current_exe().context("cannot find the program that this is")?;
        let record = home.record();
        let (up, due, delays) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Fleet { program, home, record, up, due, delays, restart, events })
    }

    fn node(&mut self, id: u16) -> &mut NodeRecord {
        &mut self.record.nodes[usize::from(id)]
    }

    /// Starts the process of a node.
    fn launch(&mut self, id: u16) -> anyhow::Result<()> {
        let path = self.node(id).log.clone();
        let open = || OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        let log = open().with_context(|| format!("cannot write {}", path.display()))?;
        let errors = log.try_clone().with_context(|| format!("cannot write {}", path.display()))?;
        let log_from = log.metadata().map_or(0, |metadata| metadata.len());
        let mut command = Command::new(&self.program);
        command.arg("serve").arg("--config").arg(self.home.config_path());
        command.args(["--node", &id.to_string(), "--parent", &std::process::id().to_string()]);
        if self.home.has_lost(id) {
            say(format_args!("node {id} has lost its data: it joins with an empty directory"));
            command.arg("--join");
        }
        // What is set for one node must not reach all of them.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ORDAIN_") && name != "ORDAIN_LOG" {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors).process_group(0);
        let mut child = command.spawn().with_context(|| format!("cannot start node {id}"))?;
        let output = child.stdout.take();
        self.node(id).pid = Some(child.id());
        self.up.insert(id, Up { child, since: Instant::now(), ready: false, log_from });
        let events = self.events.clone();
        thread::Builder::new().name(format!("node-{id}")).spawn(move || {
            if let Some(output) = output {
                listen(id, BufReader::new(output), log, &events);
            }
            // There is no receiver any more if all this is over.
            let _ = events.send(Event::Ended(id));
        })?;
        Ok(())
    }

    /// Starts all nodes and waits until they are ready. False: a signal came meanwhile.
    fn start(&mut self, events_in: &Receiver<Event>, within: Duration) -> anyhow::Result<bool> {
        for id in 0..self.record.nodes.len() as u16 {
            self.launch(id)?;
        }
        let deadline = Instant::now() + within;
        while self.up.values().any(|node| !node.ready) {
            match events_in.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Event::Ready(id)) => self.note_ready(id),
                Ok(Event::Signal) => return Ok(false),
                Ok(Event::Ended(id)) => {
                    let (_, how) = self.reap(id)?;
                    anyhow::bail!("node {id} did not start: {how}");
                }
                Err(_) => {
                    let late = self.up.iter().find(|(_, node)| !node.ready);
                    let (late, from) = late.map_or((0, 0), |(id, node)| (*id, node.log_from));
                    anyhow::bail!(
                        "node {late} was not ready within {} s, give it longer with --ready-within-s{}",
                        within.as_secs(),
                        self.last_words(late, from)
                    );
                }
            }
        }
        Ok(true)
    }

    fn note_ready(&mut self, id: u16) {
        if let Some(node) = self.up.get_mut(&id) {
            node.ready = true;
        }
    }

    /// Takes note of the end of a process; whether it was in good order, and how it was.
    fn reap(&mut self, id: u16) -> anyhow::Result<(bool, String)> {
        self.node(id).pid = None;
        let Some(mut node) = self.up.remove(&id) else { return Ok((true, "it was not there".to_owned())) };
        let status = node.child.wait().with_context(|| format!("cannot tell how node {id} ended"))?;
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => status.to_string(),
        };
        Ok((status.success(), format!("{how}{}", self.last_words(id, node.log_from))))
    }

    /// Tells where everything is.
    fn announce(&self, json: Option<&Path>) -> anyhow::Result<()> {
        self.home.note(&self.record)?;
        report::write_json(json, &self.record)?;
        let mut table = report::table(&["node", "partition", "replica", "clients", "admin", "log"], 6);
        for node in &self.record.nodes {
            let NodeRecord { id, partition, replica, kind, resp, admin, log, .. } = node;
            let log = log.display().to_string();
            let resp = if *kind == NodeKind::Storage { "none (storage)" } else { resp };
            table.add_row([&id.to_string(), &partition.to_string(), &replica.to_string(), resp, admin, &log]);
        }
        let (cluster, nodes) = (&self.record.cluster, self.record.nodes.len());
        let json = self.home.record_path();
        // Without a reader the cluster runs all the same.
        let _ = writeln!(
            std::io::stdout(),
            "{table}\nready cluster={cluster} nodes={nodes} json={}",
            json.display()
        );
        Ok(())
    }

    /// Keeps the nodes running until a signal asks for the end.
    fn supervise(&mut self, events_in: &Receiver<Event>) -> anyhow::Result<()> {
        loop {
            let event = match self.due.values().min() {
                Some(next) => events_in.recv_timeout(next.saturating_duration_since(Instant::now())),
                None => events_in.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(Event::Signal) => return Ok(()),
                Ok(Event::Ready(id)) => {
                    self.note_ready(id);
                    say(format_args!("node {id} is ready again"));
                }
                Ok(Event::Ended(id)) => self.note_end(id)?,
                Err(_) => self.restart_due()?,
            }
        }
    }

    /// A node has died: says so, and starts it again in a while if that is wanted.
    fn note_end(&mut self, id: u16) -> anyhow::Result<()> {
        let lived = self.up.get(&id).map(|node| node.since.elapsed()).unwrap_or_default();
        let (_, how) = self.reap(id)?;
        self.home.note(&self.record)?;
        if self.restart {
            let (first, most) = RESTART_AFTER;
            let last = self.delays.get(&id).filter(|_| lived < STEADY_AFTER);
            let delay = last.map_or(first, |delay| (*delay * 2).min(most));
            self.delays.insert(id, delay);
            self.due.insert(id, Instant::now() + delay);
            say(format_args!("node {id} has ended and is started again: {how}"));
            return Ok(());
        }
        let config = self.home.config_path();
        say(format_args!(
            "node {id} has ended; to start it again (with --join if its data are lost): ordain serve --config {} --node \
             {id}: {how}",
            config.display()
        ));
        anyhow::ensure!(
            !self.up.is_empty(),
            "no node of the cluster is left: start it again with the same command"
        );
        Ok(())
    }

    fn restart_due(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        let due: Vec<u16> = self.due.iter().filter(|(_, at)| **at <= now).map(|(id, _)| *id).collect();
        for id in due {
            self.due.remove(&id);
            self.launch(id)?;
        }
        self.home.note(&self.record)
    }

    /// Stops all nodes and waits until they are gone. True: all of them in good order.
    fn stop(&mut self, events_in: &Receiver<Event>) -> anyhow::Result<bool> {
        self.signal(Signal::TERM);
        let mut deadline = Instant::now() + STOP_WITHIN;
        let mut in_order = true;
        while !self.up.is_empty() {
            match events_in.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Event::Ended(id)) => {
                    let (success, how) = self.reap(id)?;
                    if !success {
                        in_order = false;
                        say(format_args!("node {id} did not stop in good order: {how}"));
                    }
                }
                Ok(Event::Ready(_)) => {}
                Ok(Event::Signal) | Err(_) => {
                    // Asked twice, or waited for long enough.
                    let left: Vec<String> = self.up.keys().map(u16::to_string).collect();
                    say(format_args!("killing what has not stopped yet: node {}", left.join(", ")));
                    self.signal(Signal::KILL);
                    deadline = Instant::now() + STOP_WITHIN;
                }
            }
        }
        if self.home.record_path().exists() {
            self.home.note(&self.record)?;
        }
        Ok(in_order)
    }

    fn signal(&self, signal: Signal) {
        for node in self.up.values() {
            // One that is gone already has closed its output.
            let _ = kill_process(Pid::from_child(&node.child), signal);
        }
    }

    /// The error that a node's log ends with, if it does, and where that is.
    fn last_words(&self, id: u16, from: u64) -> String {
        let path = &self.record.nodes[usize::from(id)].log;
        let tail = || -> std::io::Result<Vec<u8>> {
            let mut file = File::open(path)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(TAIL).max(from)))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let tail = String::from_utf8_lossy(&tail().unwrap_or_default()).into_owned();
        let error = tail.lines().filter_map(|line| line.strip_prefix("ordain: ")).next_back();
        format!("{}; see {}", error.map(|error| format!(": {error}")).unwrap_or_default(), path.display())
    }
}

/// Prints a line on standard error with one write, so that a reader gets all of it or nothing: `eprintln!` writes it piece
/// by piece.
fn say(line: fmt::Arguments<'_>) {
    // Without a reader the cluster runs all the same.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Notes all that a node says on its standard output, and tells when it is ready.
fn listen(id: u16, output: impl BufRead, mut log: File, events: &Sender<Event>) {
    for line in output.lines().map_while(Result::ok) {
        // A full disk does not keep the node from being ready.
        let _ = writeln!(log, "{line}");
        if line.starts_with("ready ") && events.send(Event::Ready(id)).is_err() {
            return;
        }
    }
}
