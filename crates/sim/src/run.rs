//! One run from its seed to its verdict.

use std::fmt;

use ordain_checker::{Level, Promise, RequestId, Violation, ViolationKind};
use ordain_model::{
    Abort, Call, Db, Digest, Isolation, Micros, Millis, OutcomeStatus, ProcedureId, Stamp, system,
};
use ordain_role::{Directory, NodeId};

use crate::faults::{Fault, Faults};
use crate::figures::{Figures, lasted, percent};
use crate::load::Load;
use crate::operations::Operations;
use crate::simulator::{Counts, Simulator};
use crate::system::System;
use crate::trace::Sink;
use crate::verdict::{Ending, Verdict};
use crate::workload::Workload;

/// Nothing is kept of what is over when nothing was under way for so long.
const REST_MAX: Micros = Micros::from_millis(20_000);

/// The input of a run, besides the system and the workload.
#[derive(Clone, Debug)]
pub struct Config {
    /// The seed. Any number is one.
    pub seed: u64,
    /// The number of nodes; what each of them holds is up to the system.
    pub nodes: u16,
    /// The number of front doors of each.
    pub doors: u16,
    /// The number of connection servers of each, if the system has any.
    pub servers: u16,
    /// The number of clients that speak bytes to the connection servers.
    pub speakers: u32,
    /// The number of requests that clients make together, unless the run lasts for a time.
    pub txns: u64,
    /// The time for which clients ask and faults happen, in place of a number of requests.
    pub virtual_time: Option<Micros>,
    /// The faults that may happen.
    pub faults: Faults,
    /// What an operator does beside them.
    pub operations: Operations,
    /// The number of sessions that there were before: those of the clients are numbered from there on.
    pub sessions_before: u64,
    /// The last requests of sessions of a cluster from which this one was restored, at most one a session. As many of the
    /// clients are those sessions, and ask again first.
    pub asked_before: Vec<(Call, Vec<u8>)>,
    /// The latest time that a wall clock of that cluster has shown: a checkpoint may hold what was read as of then.
    pub wall_before: Option<Millis>,
    /// The database of clients that speak bytes: one that nobody else counts the records of.
    pub spoken_db: Db,
    /// True if clients of bytes send FLUSHALL now and then: then only the serial execution judges what they hear.
    pub flushes: bool,
    /// True if clients of bytes send interactive transactions mostly, and nothing but single commands and blocks beside them.
    pub steps: bool,
    /// The clients, how much they ask for at once, and how often something goes wrong.
    pub load: Load,
    /// The longest time of the faults, in virtual time.
    pub faults_last: Micros,
    /// The time within which everything must be answered once the faults have ended.
    pub liveness_bound: Micros,
    /// The most events of a run: the bound on a system that is busy with nothing.
    pub events_max: u64,
    /// True if every node loses power at the end and must come back with the same state: all at once, or one after the
    /// other, of which some have stopped in good order.
    pub power_cycle: bool,
    /// The system's promise about the place in time of reads on snapshots.
    pub promise: Promise,
    /// The isolation level.
    pub isolation: Isolation,
    /// The level of transactions of clients that speak bytes, of an engine that need not keep the order of real time.
    pub relaxed: Option<Level>,
    /// True if roles, front doors and the links between nodes are asked for broken invariants. Without, a run is judged as
    /// users would: by what clients see, what nodes say and what is on their disks.
    pub asks_roles: bool,
}

impl Config {
    /// A run of a seed on one node, with all faults and the default load.
    pub fn new(seed: u64) -> Config {
        Config {
            seed,
            nodes: 1,
            doors: 2,
            servers: 0,
            speakers: 0,
            txns: 400,
            virtual_time: None,
            faults: Faults::ALL,
            operations: Operations::NONE,
            sessions_before: 0,
            asked_before: Vec::new(),
            wall_before: None,
            spoken_db: Db(0),
            flushes: false,
            steps: false,
            load: Load::default(),
            faults_last: Micros::from_millis(180_000),
            liveness_bound: Micros::from_millis(60_000),
            events_max: 50_000_000,
            power_cycle: true,
            promise: Promise::Strict,
            isolation: Isolation::default(),
            relaxed: None,
            asks_roles: true,
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The duration, in virtual time.
    pub virtual_time: Micros,
    /// Requests made.
    pub transactions: u64,
    /// Transactions that clients sent as bytes, each judged by its replies.
    pub spoken: u64,
    /// Requests that committed.
    pub committed: u64,
    /// Requests that aborted.
    pub aborted: u64,
    /// Requests that were never sequenced.
    pub rejected: u64,
    /// Requests whose fate no client knows.
    pub unknown: u64,
    /// Answers that need not hold: they were given by a node that had to be rebuilt.
    pub voided: u64,
    /// Entries in the durable logs of all nodes.
    pub entries: u64,
    /// The figures that say what the run was like.
    pub figures: Figures,
    /// The faults that happened.
    pub counts: Counts,
    /// Lines of the event trace.
    pub events: u64,
    /// Hash of the event trace.
    pub trace_hash: u128,
    /// The random source's next draw: two runs of a seed that drew differently differ here.
    pub closing_draw: u64,
    /// Digest of the serial execution of the log.
    pub digest: Digest,
    /// Nothing, or what was broken.
    pub verdict: Result<(), Violation>,
}

impl Report {
    /// The report of this run and of one that went on from what it has left.
    #[must_use]
    pub fn then(self, next: Report) -> Report {
        Report {
            seed: self.seed,
            virtual_time: self.virtual_time.plus(next.virtual_time),
            transactions: self.transactions + next.transactions,
            spoken: self.spoken + next.spoken,
            committed: self.committed + next.committed,
            aborted: self.aborted + next.aborted,
            rejected: self.rejected + next.rejected,
            unknown: self.unknown + next.unknown,
            voided: self.voided + next.voided,
            entries: self.entries + next.entries,
            figures: self.figures,
            counts: self.counts,
            events: self.events + next.events,
            trace_hash: self.trace_hash.rotate_left(1) ^ next.trace_hash,
            closing_draw: next.closing_draw,
            digest: next.digest,
            verdict: self.verdict.and(next.verdict),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.verdict {
            Ok(()) => write!(f, "seed {} ok digest {} {}", self.seed, self.digest, self.figures),
            Err(violation) => write!(f, "seed {} violation {violation}", self.seed),
        }
    }
}

/// Runs a seed and checks what it leaves behind. `sink` is given the lines of the event trace.
pub fn run_seed<'a, S: System>(
    config: &'a Config,
    system: S,
    workload: &'a mut (dyn Workload + 'a),
    sink: Option<Sink<'a>>,
) -> Report {
    let conserved = workload.conserved();
    let mut simulator = Simulator::new(system, workload, config, sink);
    simulator.run(config.virtual_time.unwrap_or(config.faults_last), |s| {
        !s.has_asked_enough() || s.awaits_fault() || s.is_deposing()
    });
    simulator.transition_to_liveness();
    simulator.await_speakers();
    if config.relaxed.is_some() {
        // A read that is asked at once may stand before what others were answered just now.
        simulator.advance(Micros::from_millis(1_000));
    }
    let lists = simulator.read_lists();
    simulator.drain();
    simulator.rest();
    let mut digests = simulator.digests();
    if config.power_cycle && simulator.failed.is_none() {
        simulator.power_cycle();
        // What nodes answer first is asked before anything else goes to the log.
        simulator.drain();
        simulator.ask_again();
        simulator.settle();
        simulator.rest();
        digests.extend(simulator.digests());
    }
    simulator.audit();
    let mut checked = simulator.check(digests, conserved);
    // What need not hold any more may be missing from what clients have seen.
    if checked.verdict.is_ok() && checked.voided == 0 {
        checked.verdict = simulator.judge_speech(&lists);
    }
    let mut report = Report {
        seed: config.seed,
        virtual_time: simulator.now,
        transactions: simulator.history.len() as u64,
        spoken: simulator.speakers.speech.len(),
        committed: 0,
        aborted: 0,
        rejected: 0,
        unknown: 0,
        voided: checked.voided,
        entries: checked.entries,
        figures: Figures::default(),
        counts: simulator.counts,
        events: simulator.trace.events(),
        trace_hash: simulator.trace.hash(),
        closing_draw: simulator.random.bits(),
        digest: checked.digest,
        verdict: checked.verdict,
    };
    for (_, request) in simulator.history.requests() {
        let count = match request.answers.first().map(|a| a.status) {
            Some(OutcomeStatus::Committed) => &mut report.committed,
            Some(_) => &mut report.aborted,
            None if request.is_rejected() => &mut report.rejected,
            None => &mut report.unknown,
        };
        *count += 1;
    }
    let (healed, by_heal) = simulator.at_heal;
    report.figures = Figures {
        unknown_percent: percent(report.unknown, report.transactions),
        crashes: u64::from(by_heal.crashes),
        faults: by_heal.faults,
        deposed: u64::from(by_heal.deposed),
        regained: u64::from(by_heal.regained),
        held: u64::from(by_heal.held),
        asked_for: lasted(config.load.faults, simulator.works_since, healed),
        ..Figures::of_batches(&checked.batches)
    };
    report
}

impl<S: System> Simulator<'_, S> {
    /// Lets the clients that speak bytes hear what they wait for, all of it within the bound.
    fn await_speakers(&mut self) {
        let bound = self.now.plus(self.config.liveness_bound);
        self.run(bound, |s| s.speakers.wait());
        if self.failed.is_none() && self.speakers.wait() {
            let text =
                format!("a client of bytes waits {} us after the faults ended", self.config.liveness_bound);
            self.fail(Violation::new(ViolationKind::Stuck, text));
        }
    }

    /// Lets everything that is under way end, then asks every node for the digest of its state: with nothing
    /// wrong any more, all of it within the bound.
    fn drain(&mut self) {
        let bound = self.now.plus(self.config.liveness_bound);
        self.settle();
        let call = Call::new(system::DIGEST, Db(0));
        if self.failed.is_some() || self.registry.get(call.procedure).is_none() {
            return;
        }
        for node in self.servers() {
            if self.ask_until_answered(node, call, bound).is_none() {
                return;
            }
        }
    }

    /// Lets everything that is under way end, within the bound.
    fn settle(&mut self) {
        let bound = self.now.plus(self.config.liveness_bound);
        // Clients of sessions have to come back first.
        let everybody = |s: &Self| s.clients.iter().all(|client| client.connected);
        self.run(bound, |s| s.is_waited_for() || !everybody(s));
        if self.is_waited_for() || !everybody(self) {
            let waiting: Vec<_> = self.clients.iter().flat_map(|client| client.waiting()).collect();
            let text = format!(
                "{} requests unanswered {} us after the faults ended",
                waiting.len(),
                self.config.liveness_bound
            );
            let violation = Violation::new(ViolationKind::Stuck, text);
            self.fail(waiting.into_iter().take(8).fold(violation, Violation::of));
        }
    }

    /// Lets time pass until no role keeps anything of what is over. Where clocks jump that may be far off: what was noted by a clock that was ahead is
    /// kept until the others have come so far.
    fn rest(&mut self) {
        if self.config.faults.has(Fault::Clock) {
            return;
        }
        let bound = self.now.plus(REST_MAX);
        while let Some(reason) = self.kept().filter(|_| self.failed.is_none()) {
            if self.now >= bound {
                let text = format!("{REST_MAX} us after the last request {reason}");
                return self.fail(Violation::new(ViolationKind::Invariant, text));
            }
            self.advance(Micros::from_millis(500));
        }
    }

    /// The first role that keeps something of what is over.
    fn kept(&self) -> Option<String> {
        let up = self.nodes.iter().enumerate().filter(|(_, node)| node.up && self.config.asks_roles);
        let mut roles = up.flat_map(|(number, node)| node.roles.values().map(move |slot| (number, slot)));
        roles.find_map(|(number, slot)| {
            let reason = slot.role.check_at_rest().err()?;
            Some(format!("node {number}, {}: {reason}", slot.role.name()))
        })
    }

    /// The nodes that clients may ask.
    fn servers(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| self.system.is_server(NodeId(*node as u16))).collect()
    }

    /// Asks for the workload's audits, one after the other, at any node.
    fn audit(&mut self) {
        let bound = self.now.plus(self.config.liveness_bound);
        let servers = self.servers();
        for procedure in self.workload.audits() {
            let node = servers[self.random.index(servers.len())];
            let Some(answered) = self.ask_until_answered(node, Call::new(procedure, Db(0)), bound) else {
                return;
            };
            let answer = self.history.get(answered).answers.first();
            self.audits.extend(answer.map(|answer| answer.reply.clone()));
        }
    }

    /// Asks a node until it has committed the request, or refused it for good; `None` if the run has failed.
    fn ask_until_answered(&mut self, node: usize, call: Call, bound: Micros) -> Option<RequestId> {
        self.run(bound, |s| !s.nodes[node].up);
        let mut probe = self.probe(node, call);
        loop {
            if self.failed.is_some() {
                return None;
            }
            let life = self.nodes[node].incarnation;
            self.run(bound, |s| s.history.get(probe).is_open() && s.nodes[node].incarnation == life);
            if self.nodes[node].incarnation != life && self.failed.is_none() {
                // It has been rebuilt, and has forgotten the request, the end of which stays unknown.
                self.history.answered(probe, OutcomeStatus::Unknown, Stamp::NONE, &[]);
                self.run(bound, |s| !s.nodes[node].up);
                self.probe_again(node, probe);
                continue;
            }
            if self.history.get(probe).is_open() {
                let text = format!("node {node} does not answer although nothing is wrong any more");
                self.fail(Violation::new(ViolationKind::Stuck, text).of(probe));
                return None;
            }
            match self.history.get(probe).answers.first().map(|a| a.status) {
                Some(OutcomeStatus::Committed) => return Some(probe),
                Some(OutcomeStatus::Aborted(Abort::Restart)) => probe = self.probe(node, call),
                // It is refused for good.
                Some(OutcomeStatus::Aborted(abort)) if !abort.is_retryable() => return Some(probe),
                Some(_) | None => {
                    // Turned away: give it a moment.
                    let later = self.now.plus(Micros(10_000));
                    self.run(later, |_| true);
                    if self.now < later {
                        self.now = later;
                    }
                    self.probe_again(node, probe);
                }
            }
        }
    }

    /// Every node loses power.
    fn power_cycle(&mut self) {
        let nodes = 0..self.nodes.len();
        if nodes.len() > 1 && self.random.chance(500_000) {
            return nodes.for_each(|node| self.crash(node));
        }
        for node in nodes {
            let bound = self.now.plus(self.config.liveness_bound);
            if self.random.chance(500_000) {
                self.stop(node, bound);
            } else {
                self.crash(node);
            }
            self.run(bound, |s| !s.nodes[node].up);
        }
    }

    /// The digests that the nodes tell without a transaction.
    fn digests(&mut self) -> Vec<(NodeId, Digest)> {
        let nodes = (0..self.nodes.len() as u16).map(NodeId);
        nodes.filter_map(|node| self.system.digest(node).map(|digest| (node, digest))).collect()
    }

    /// Has the system judge what there would be if every node lost power now, unless something is broken already.
    fn check(&mut self, digests: Vec<(NodeId, Digest)>, conserved: Vec<(ProcedureId, Vec<u8>)>) -> Verdict {
        let mut disks: Vec<(NodeId, Box<dyn Directory>)> = Vec::new();
        for number in 0..self.nodes.len() {
            let mut disk = self.nodes[number].disk.clone();
            disk.crash(|| self.random.bits());
            disks.push((NodeId(number as u16), Box::new(disk)));
        }
        if let Some(violation) = self.failed.take() {
            return Verdict::failed(violation);
        }
        let Simulator { system, history, registry, config, audits, last_under_load, last_at, .. } = self;
        let (registry, before, audits) = (registry.clone(), Vec::new(), std::mem::take(audits));
        let last_under_load = *last_under_load;
        system.check(Ending {
            disks,
            history,
            last_under_load,
            last_at: std::mem::take(last_at),
            digests,
            conserved,
            audits,
            registry,
            before,
            config,
        })
    }
}
