//! The commit family in the simulator: one node with crashes, full disks and jumping clocks, held to strict
//! serializability by what its clients have appended and read.

#![allow(clippy::unwrap_used, reason = "a test fails where it unwraps")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use ordain_checker::dependencies::history::{History as Appends, Op, Txn};
use ordain_checker::dependencies::{self, Class};
use ordain_checker::history::{Answer, History, Request};
use ordain_checker::{RequestId, Violation, ViolationKind};
use ordain_commit::{CommitFamily, Decision, Message, Participant};
use ordain_engines::no_wait;
use ordain_family::{Family, NodeSettings, Opened, places};
use ordain_model::args::encode;
use ordain_model::{
    Abort, Args, Call, Datum, Digest, DigestSpan, Epoch, Layout, Options, OutcomeStatus, Registry, Value,
};
use ordain_role::{Address, Bug, Bugs, Directory, Event, NodeId, Now, Outbox, Role, Topology};
use ordain_sim::{
    Config, Ending, Faults, FrontDoor, Random, Report, Roles, System, Verdict, Workload, run_seed,
};
use ordain_workload::append;

const LISTS: u64 = 6;
const MOST_OPS: u64 = 4;

/// Appends to a few lists, and reads of them.
struct AppendMix {
    base: u64,
}

impl Workload for AppendMix {
    fn next(&mut self, random: &mut Random) -> (Call, Vec<u8>) {
        self.base += 1 << 8;
        let ops = 1 + random.tail(MOST_OPS - 1);
        let (mut keys, mut mask) = (Vec::new(), 0u8);
        for op in 0..ops {
            keys.push(append::key(random.index(LISTS as usize) as u64));
            mask |= u8::from(random.chance(500_000)) << op;
        }
        let mut packed = vec![mask, u8::from(random.chance(50_000))];
        packed.extend(self.base.to_le_bytes());
        let mut args: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        args.push(&packed);
        (Call::new(append::RUN, append::DB), encode(&args))
    }
}

/// The operations of a request that appends, as far as its arguments tell, and its base.
fn appends_of(request: &Request) -> Txn {
    let args: Vec<&[u8]> = Args::parse(&request.args).into_iter().flatten().map(|arg| arg.bytes).collect();
    let Some((packed, keys)) = args.split_last() else { return Txn::default() };
    let base = u64::from_le_bytes(packed[2..].try_into().unwrap());
    let list_of = |key: &[u8]| (0..LISTS).find(|list| append::key(*list)[..] == *key).unwrap();
    let appended = (0..).zip(keys).filter(|(op, _)| packed[0] >> op & 1 == 1);
    let ops = appended.map(|(op, key)| Op::Append { key: list_of(key), value: base + op }).collect();
    Txn { base, ops }
}

fn committed(answer: &Answer) -> Option<Txn> {
    let Datum::Bulk(bytes) = Datum::first(&answer.reply) else { return None };
    (answer.status == OutcomeStatus::Committed).then(|| Txn::decode(bytes))?
}

/// One node of an engine of the family.
struct OneNode {
    family: CommitFamily,
    settings: NodeSettings,
    registry: Arc<Registry>,
    /// The digest of each shard, as it is now.
    digests: Digests,
    /// What all shards together have told, with the decision that all of them had installed last.
    told: Vec<(Epoch, Digest)>,
}

type Digests = Arc<Mutex<BTreeMap<u16, DigestSpan>>>;

impl OneNode {
    fn new(family: CommitFamily, shards: usize, bugs: Bugs) -> OneNode {
        let mut registry = Registry::default();
        ordain_workload::register(&mut registry);
        let topology = Topology { layout: Arc::new(Layout::even(1, shards).unwrap()), replicas: 1 };
        let options = Options::new(family.0.name, &[]);
        let identity = b"simulated".to_vec();
        let settings =
            NodeSettings { topology, identity, segment_bytes: 4 << 10, bugs, ..NodeSettings::new(options) };
        OneNode {
            family,
            settings,
            registry: Arc::new(registry),
            digests: Digests::default(),
            told: Vec::new(),
        }
    }

    /// The lists that the decisions come to.
    fn lists(decisions: &[Arc<Decision>]) -> Result<BTreeMap<u64, Vec<u64>>, String> {
        let mut lists = BTreeMap::new();
        for write in decisions.iter().flat_map(|decision| &decision.writes) {
            let list =
                (0..LISTS).find(|list| append::key(*list)[..] == write.key).ok_or("a key of nobody's")?;
            let Some(Value::String(bytes)) = &write.cell.value else { return Err("no list".to_owned()) };
            let values = dependencies::history::values_of(bytes).ok_or("a list of something else")?;
            lists.insert(list, values);
        }
        Ok(lists)
    }

    /// What was told is what the decisions up to then come to.
    fn check_told(&self, decisions: &[Arc<Decision>]) -> Result<(), Violation> {
        let (layout, at) = (&self.settings.topology.layout, Address::default());
        for (stamp, told) in &self.told {
            let control = (self.family.0.control)(Bugs::NONE);
            let whole = Arc::new(Layout::single(1));
            let mut all = Participant::new(0, whole, at, self.registry.clone(), control);
            decisions
                .iter()
                .filter(|decision| decision.stamp <= *stamp)
                .for_each(|decision| all.install(decision));
            if all.digest() != *told {
                let text = format!(
                    "{} shards told {told} after decision {stamp}, and it comes to {}",
                    layout.shards(),
                    all.digest()
                );
                return Err(Violation::new(ViolationKind::WrongState, text));
            }
        }
        Ok(())
    }
}

/// A participant that tells its digest after each step.
struct Told<R> {
    role: R,
    number: u16,
    digests: Digests,
}

impl Role for Told<Box<dyn Role<Message = Message>>> {
    type Message = Message;

    fn handle(&mut self, now: Now, event: Event<Message>, out: &mut Outbox<Message>) {
        self.role.handle(now, event, out);
        let mut digests = self.digests.lock().unwrap();
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

impl System for OneNode {
    type Message = Message;

    fn registry(&self) -> Arc<Registry> {
        self.registry.clone()
    }

    fn start(&mut self, _: NodeId, _: u32, disk: &mut dyn Directory) -> Result<Roles<Message>, String> {
        let opened = self.family.open(Some(disk), &self.settings, &self.registry);
        let opened = opened.map_err(|e| e.to_string())?;
        self.digests.lock().unwrap().clear();
        let tell = |(number, role): (u16, _)| {
            let told = Told { role, number, digests: self.digests.clone() };
            (number, Box::new(told) as Box<dyn Role<Message = Message>>)
        };
        Ok(opened.into_roles().into_iter().map(tell).collect())
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
        let digests = self.digests.lock().unwrap();
        let last = digests.values().map(|span| span.last).max()?;
        // One that has yet to install the last decision has another state, and rightly.
        if digests.values().all(|span| span.last == last) {
            let sum = digests.values().fold(Digest::default(), |sum, span| sum.plus(span.digest));
            self.told.push((last, sum));
        }
        None
    }

    fn check(&mut self, mut ending: Ending<'_>) -> Verdict {
        let (node, disk) = &mut ending.disks[0];
        let opened = self.family.open(Some(&mut **disk), &self.settings, &self.registry);
        let decisions = CommitFamily::decisions(&mut **disk, &self.settings);
        let read = decisions.map_err(|e| e.to_string());
        let read = read.and_then(|decisions| OneNode::lists(&decisions).map(|lists| (decisions, lists)));
        let (digest, decisions, lists) = match (opened, read) {
            (Ok(opened), Ok((decisions, lists))) => (opened.digest(), decisions, lists),
            (Err(reason), _) => return Verdict::unreadable(*node, &reason.to_string()),
            (_, Err(reason)) => return Verdict::unreadable(*node, &reason),
        };
        let verdict = judge(ending.history, &lists).and_then(|()| self.check_told(&decisions));
        Verdict { digest, entries: decisions.len() as u64, voided: 0, verdict }
    }
}

/// Strict serializability: no anomaly, and what was answered before a reader asked is in what it read.
fn judge(history: &History, lists: &BTreeMap<u64, Vec<u64>>) -> Result<(), Violation> {
    let there: BTreeSet<u64> =
        lists.values().flatten().map(|value| dependencies::history::base_of(*value)).collect();
    let mut all = Appends::default();
    let mut answered = Vec::new();
    for (id, request) in history.requests() {
        let appends = appends_of(request);
        // What only reads may be run again for each time that it is asked.
        let mut answers = &request.answers[..];
        if !appends.ops.is_empty()
            && let Some((first, others)) = answers.split_first()
        {
            if let Some(other) = others.iter().find(|other| other.reply != first.reply) {
                let text = format!("one request was answered {:?} and {:?}", first.reply, other.reply);
                return Err(Violation::new(ViolationKind::AnswersDiffer, text).of(id));
            }
            answers = &answers[..1];
        }
        for answer in answers {
            match committed(answer) {
                Some(txn) => {
                    answered.push((request.moment, answer.moment, txn.clone(), id));
                    all.committed.push(txn);
                }
                None if matches!(answer.status, OutcomeStatus::Aborted(Abort::Logic)) => {
                    all.aborted.insert(appends.base);
                }
                None => {
                    let text = format!("an answer is no history: {answer:?}");
                    return Err(Violation::new(ViolationKind::WrongAnswer, text).of(id));
                }
            }
        }
        // Nobody was told, but it has happened: it has appended, and nobody knows what it has read.
        if answers.is_empty() && there.contains(&appends.base) {
            all.committed.push(appends);
        }
    }
    let anomalies = dependencies::check(&all, lists);
    if let Some((count, example)) = Class::ALL.into_iter().find_map(|class| anomalies.of(class)) {
        return Err(Violation::new(ViolationKind::WrongAnswer, format!("{count} times such as: {example}")));
    }
    check_connections(history, lists)?;
    for (asked, _, reader, id) in &answered {
        for op in &reader.ops {
            let Op::Read { key, values } = op else { continue };
            let before = answered.iter().filter(|(_, answered, ..)| answered < asked);
            let appended = before.flat_map(|(_, _, txn, _)| &txn.ops).filter_map(|op| match op {
                Op::Append { key: other, value } if other == key => Some(*value),
                _ => None,
            });
            if let Some(value) = appended.into_iter().find(|value| !values.contains(value)) {
                let text = format!("list {key} was read without {value}, which was answered before");
                return Err(Violation::new(ViolationKind::RealTime, text).of(*id));
            }
        }
    }
    Ok(())
}

/// What one connection has sent takes effect in the order in which it was sent: a later request sees and follows the appends
/// of an earlier one.
fn check_connections(history: &History, lists: &BTreeMap<u64, Vec<u64>>) -> Result<(), Violation> {
    let mut sent: BTreeMap<(usize, u32), Vec<(RequestId, Txn)>> = BTreeMap::new();
    for (id, request) in history.requests() {
        let (Some(client), Some(txn)) = (request.client, request.answers.first().and_then(committed)) else {
            continue;
        };
        // A request that was sent again has left its place.
        if request.attempts > 1 {
            continue;
        }
        let earlier = sent.entry((client, request.connection)).or_default();
        for (before, first) in &*earlier {
            for (op, done) in txn.ops.iter().flat_map(|op| first.ops.iter().map(move |done| (op, done))) {
                let Op::Append { key, value } = done else { continue };
                let place =
                    |value: &u64| lists.get(key).and_then(|list| list.iter().position(|v| v == value));
                let is_right = match op {
                    Op::Read { key: other, values } => other != key || values.contains(value),
                    Op::Append { key: other, value: next } => other != key || place(value) < place(next),
                };
                if !is_right {
                    let text = format!(
                        "list {key}: {op:?} came before {value}, which its connection had sent before"
                    );
                    return Err(Violation::new(ViolationKind::Overtaken, text).of(*before).of(id));
                }
            }
        }
        earlier.push((id, txn));
    }
    Ok(())
}

fn run(seed: u64, bugs: Bugs) -> Report {
    let shards = [1, 2, 3, 5][seed as usize % 4];
    let system = OneNode::new(CommitFamily(no_wait::ENGINE), shards, bugs);
    let faults: Faults = "all".parse().unwrap();
    let config = Config { faults, txns: 300, ..Config::new(seed) };
    run_seed(&config, system, &mut AppendMix { base: 0 }, None)
}

#[test]
fn no_wait_is_strictly_serializable_on_one_node_with_all_faults() {
    let (mut committed, mut crashes) = (0, 0);
    for seed in 0..40 {
        let report = run(seed, Bugs::NONE);
        assert!(report.verdict.is_ok(), "{report}");
        committed += report.committed;
        crashes += report.counts.crashes;
    }
    assert!(committed > 40 * 150 && crashes > 40, "{committed} committed, {crashes} crashes");
}

#[test]
fn a_seed_repeats() {
    assert_eq!(run(7, Bugs::NONE), run(7, Bugs::NONE));
}

/// An answer that is given before its decision is durable is lost by the next crash.
#[test]
fn answers_before_the_disk_are_found_out() {
    let found =
        (0..40).filter(|seed| run(*seed, Bugs::NONE.with(Bug::DispatchBeforeDurable)).verdict.is_err());
    assert!(found.count() > 5);
    let found = (0..40).filter(|seed| run(*seed, Bugs::NONE.with(Bug::GrantLockEarly)).verdict.is_err());
    assert!(found.count() > 5, "a lock that is granted although another attempt holds it");
}
