//! One node of an engine of the commit family under simulation: what clients append and read, and how a run is checked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ordain_checker::dependencies::history::values_of;
use ordain_checker::{Violation, ViolationKind};
use ordain_commit::{CommitEngine, CommitFamily, Decision, Message, Participant};
use ordain_family::{Family as _, NodeSettings, Opened as _, Services, places};
use ordain_model::{Digest, DigestSpan, Epoch, Layout, Options, Registry, Stamp, Value};
use ordain_role::{Address, Bugs, Directory, Event, NodeId, Now, Outbox, Role, Topology};
use ordain_sim::{BatchSize, Ending, FrontDoor, Roles, System, Verdict};

use super::SimArgs;
use super::appends::{self, list_of};

/// One node of an engine of the commit family.
pub(super) struct CommitSystem {
    family: CommitFamily,
    settings: NodeSettings,
    registry: Arc<Registry>,
    /// The digest of each shard, as it is now.
    digests: Digests,
    /// The digests of all shards together, with the decision that all of them had installed last.
    reported: Vec<(Epoch, Digest)>,
}

type Digests = Arc<Mutex<BTreeMap<u16, DigestSpan>>>;

fn lock(digests: &Digests) -> MutexGuard<'_, BTreeMap<u16, DigestSpan>> {
    digests.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CommitSystem {
    /// The system that the flags describe, where they leave a choice as the seed has it.
    pub(super) fn new(
        engine: CommitEngine,
        options: Options,
        args: &SimArgs,
        seed: u64,
    ) -> anyhow::Result<CommitSystem> {
        let mut registry = Registry::default();
        ordain_workload::register(&mut registry);
        let shards = args.shards.map_or([1, 2, 3, 5][seed as usize % 4], usize::from);
        let topology = Topology { layout: Arc::new(Layout::even(1, shards)?), replicas: 1 };
        let bugs = args.plant.map_or(Bugs::NONE, |bug| Bugs::NONE.with(bug));
        let identity = b"simulated".to_vec();
        let settings =
            NodeSettings { topology, identity, segment_bytes: 4 << 10, bugs, ..NodeSettings::new(options) };
        Ok(CommitSystem {
            family: CommitFamily { engine, services: Services::ALL },
            settings,
            registry: Arc::new(registry),
            digests: Digests::default(),
            reported: Vec::new(),
        })
    }

    /// The lists that the decisions come to.
    fn lists(decisions: &[Arc<Decision>]) -> Result<BTreeMap<u64, Vec<u64>>, String> {
        let mut lists = BTreeMap::new();
        for write in decisions.iter().flat_map(|decision| &decision.writes) {
            let list = list_of(&write.key).ok_or("a key of no list")?;
            let Some(Value::String(bytes)) = &write.cell.value else { return Err("no list".to_owned()) };
            lists.insert(list, values_of(bytes).ok_or("a list of something else")?);
        }
        Ok(lists)
    }

    /// Checks that each reported digest is what the decisions up to then come to.
    fn check_digests(&self, decisions: &[Arc<Decision>]) -> Result<(), Violation> {
        for (stamp, reported) in &self.reported {
            let control = (self.family.engine.control)(Bugs::NONE);
            let whole = Arc::new(Layout::single(1));
            let mut all = Participant::new(0, whole, Address::default(), self.registry.clone(), control);
            let until = decisions.iter().filter(|decision| decision.stamp <= *stamp);
            until.for_each(|decision| all.install(decision));
            if all.digest() != *reported {
                let shards = self.settings.topology.layout.shards();
                let text = format!(
                    "{shards} shards reported {reported} after decision {stamp}, and it comes to {}",
                    all.digest()
                );
                return Err(Violation::new(ViolationKind::WrongState, text));
            }
        }
        Ok(())
    }
}

/// A participant that reports its digest after each step.
struct Reporting {
    role: Box<dyn Role<Message = Message>>,
    number: u16,
    digests: Digests,
}

impl Role for Reporting {
    type Message = Message;

    fn handle(&mut self, now: Now, event: Event<Message>, out: &mut Outbox<Message>) {
        self.role.handle(now, event, out);
        let mut digests = lock(&self.digests);
        self.role.digests(&mut |span| _ = digests.insert(self.number, span));
    }

    fn name(&self) -> &'static str {
        self.role.name()
    }

    fn check(&self) -> Result<(), String> {
        self.role.check()
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        self.role.gauges(report);
    }
}

impl System for CommitSystem {
    type Message = Message;

    fn registry(&self) -> Arc<Registry> {
        self.registry.clone()
    }

    fn start(&mut self, _: NodeId, _: u32, disk: &mut dyn Directory) -> Result<Roles<Message>, String> {
        let opened = self.family.open(Some(disk), &self.settings, &self.registry);
        let opened = opened.map_err(|e| e.to_string())?;
        lock(&self.digests).clear();
        let watch = |(number, role): (u16, _)| {
            let reporting = Reporting { role, number, digests: self.digests.clone() };
            (number, Box::new(reporting) as Box<dyn Role<Message = Message>>)
        };
        Ok(opened.into_roles().into_iter().map(watch).collect())
    }

    fn door(&self, node: NodeId, incarnation: u32, n: u16) -> FrontDoor {
        let life = u64::from(incarnation) << 32;
        FrontDoor {
            address: Address { node, role: places::GATEWAYS + n },
            gateway: self.family.gateway(&self.settings, n, life, &self.registry),
            router: self.family.router(&self.settings),
        }
    }

    fn digest(&mut self, _: NodeId) -> Option<Digest> {
        let digests = lock(&self.digests);
        let last = digests.values().map(|span| span.last).max()?;
        // A shard that has yet to install the last decision has another state, and rightly.
        if digests.values().all(|span| span.last == last) {
            let sum = digests.values().fold(Digest::default(), |sum, span| sum.plus(span.digest));
            self.reported.push((last, sum));
        }
        None
    }

    fn check(&mut self, mut ending: Ending<'_>) -> Verdict {
        let (node, disk) = &mut ending.disks[0];
        let opened = self.family.open(Some(&mut **disk), &self.settings, &self.registry);
        let decisions = CommitFamily::decisions(&mut **disk, &self.settings);
        let read = decisions.map_err(|e| e.to_string());
        let read = read.and_then(|decisions| CommitSystem::lists(&decisions).map(|lists| (decisions, lists)));
        let (digest, decisions, lists) = match (opened, read) {
            (Ok(opened), Ok((decisions, lists))) => (opened.digest(), decisions, lists),
            (Err(reason), _) => return Verdict::unreadable(*node, &reason.to_string()),
            (_, Err(reason)) => return Verdict::unreadable(*node, &reason),
        };
        let verdict = appends::check(ending.history, &lists);
        let verdict = verdict.and_then(|()| self.check_digests(&decisions));
        let size = |decision: &Arc<Decision>| BatchSize { txns: 1, fragments: decision.writes.len() as u64 };
        let under_load =
            decisions.iter().filter(|decision| Stamp::new(decision.stamp.0) <= ending.last_under_load);
        let batches = under_load.map(size).collect();
        Verdict { digest, entries: decisions.len() as u64, batches, voided: 0, verdict }
    }
}
