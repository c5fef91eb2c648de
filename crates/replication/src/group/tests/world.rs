//! A group in a virtual world: members on disks that forget, joined by a network that delays, reorders and loses.
//!
//! The world plays each member's sequencer, and holds the group to what it promises: one order for all, every batch
//! one fate, nothing executed that was called lost. What it finds broken is an error, so that tests can plant bugs and
//! see that it is found.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;

use ordain_fuzz::Random;
use ordain_log::{LogConfig, LogError, MemoryDirectory};
use ordain_model::{Epoch, Micros};
use ordain_role::{
    Address, Bugs, Directory, DiskDone, DiskRequest, Event, NodeId, Now, Outbox, PeerChange, PeerState, Role,
    TimerId,
};

use super::super::membership::Member;
use super::super::wire::Wire;
use super::super::{GroupError, GroupLog, GroupSettings};
use crate::entry::EntryType as _;
use crate::message::{Covered, GroupMessage};
use crate::tests::{Log, Message, Note, Notes};

pub type Fault = Result<(), String>;

const LOG: u16 = 1;
const SEQUENCER: u16 = 0;
const SINK: u16 = 2;
const CHECKPOINTER: u16 = 6;

enum Happening {
    Deliver { from: usize, to: usize, message: Message },
    Timer { node: usize, life: u32, timer: TimerId, setting: u64 },
    Disk { node: usize, life: u32 },
    Start { node: usize },
}

#[derive(Default)]
pub struct Node {
    pub disk: MemoryDirectory,
    pub log: Option<GroupLog<Notes, Message>>,
    pub life: u32,
    pub generation: u32,
    timers: BTreeMap<TimerId, u64>,
    pub requests: VecDeque<DiskRequest>,
    /// Its sequencer: whether it may propose, after which epoch, and what is open.
    pub leads: bool,
    pub leader: Option<NodeId>,
    /// In which term, as its log has told it last.
    term: u64,
    epoch: u64,
    /// The pace of its timers, percent, and how far its wall clock is ahead.
    pub pace: u64,
    pub ahead: u64,
    pub open: BTreeMap<u64, Note>,
    /// What it was told is logged, and must be sealed next.
    logged: Option<Note>,
    /// How many batches it has seen, replayed ones and those of its checkpoint included.
    pub seen: usize,
    /// Its checkpoint has everything up to this epoch.
    pub checkpoint: u64,
    /// What its log has said is behind.
    pub behind: Option<u64>,
}

/// A question whether a node leads, and how much was handed on anywhere before it was asked.
#[derive(Clone, Copy, Debug)]
struct Question {
    node: usize,
    agreed: usize,
}

/// The answers to such questions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    pub confirmed: usize,
    pub refused: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Logged,
    Lost,
}

pub struct World {
    pub time: u64,
    count: u64,
    agenda: BTreeMap<(u64, u64), Happening>,
    pub nodes: Vec<Node>,
    pub random: Random,
    bugs: Bugs,
    pub tail_bytes: usize,
    pub kept_max: u64,
    pub keep_bytes: u64,
    /// Microseconds.
    pub delay: (u64, u64),
    pub disk_delay: (u64, u64),
    /// Of a thousand messages.
    pub loss: u64,
    pub cut: BTreeSet<(usize, usize)>,
    /// What was agreed on, as anybody saw it first.
    pub agreed: Vec<Vec<u8>>,
    /// In which term each of it was.
    terms: Vec<u64>,
    pub fates: BTreeMap<u64, Fate>,
    /// Open questions whether a node leads, and how many were answered.
    questions: BTreeMap<u64, Question>,
    pub answers: Answers,
    /// Heartbeats that members sent and answered.
    pub heartbeats: usize,
    /// Batches that were taken and lost later.
    pub lost_late: usize,
    taken: BTreeSet<u64>,
    leaders: BTreeMap<u64, usize>,
    next_id: u64,
    pub transcript: Option<String>,
    /// Members have no disk.
    pub in_memory: bool,
    /// A bug: a member that comes back has forgotten for whom it voted.
    pub forgets_vote: bool,
}

/// The epoch of a note.
pub fn epoch_of(note: &[u8]) -> u64 {
    crate::epoch_of(note).unwrap_or_default().0
}

impl Node {
    /// It has lost its disk.
    pub fn forget_checkpoint(&mut self) {
        (self.checkpoint, self.behind) = (0, None);
    }

    /// Whether it knows itself to be a voter.
    pub fn votes(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.raft.store().members.voters.contains(&log.member.id()))
    }
}

impl World {
    pub fn new(members: usize, seed: u64, bugs: Bugs) -> World {
        let mut world = World {
            time: 0,
            count: 0,
            agenda: BTreeMap::new(),
            nodes: (0..members).map(|_| Node { pace: 100, ..Node::default() }).collect(),
            random: Random(seed),
            bugs,
            tail_bytes: 1500,
            kept_max: 20_000,
            keep_bytes: u64::MAX,
            delay: (200, 2000),
            disk_delay: (100, 3000),
            loss: 0,
            cut: BTreeSet::new(),
            agreed: Vec::new(),
            terms: Vec::new(),
            fates: BTreeMap::new(),
            questions: BTreeMap::new(),
            answers: Answers::default(),
            heartbeats: 0,
            lost_late: 0,
            taken: BTreeSet::new(),
            leaders: BTreeMap::new(),
            next_id: 1,
            transcript: None,
            in_memory: false,
            forgets_vote: false,
        };
        for node in 0..members {
            world.plan(0, Happening::Start { node });
        }
        world
    }

    fn plan(&mut self, after: u64, happening: Happening) {
        self.count += 1;
        self.agenda.insert((self.time + after, self.count), happening);
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(transcript) = &mut self.transcript {
            let _ = writeln!(transcript, "{}", line());
        }
    }

    /// Starts a member that does not run, from what is on its disk.
    pub fn start(&mut self, node: usize) -> Fault {
        let members = (0..self.nodes.len() as u16).map(NodeId).collect();
        let here = |role| Address { node: NodeId(node as u16), role };
        let state = &mut self.nodes[node];
        let settings = GroupSettings {
            generation: state.generation,
            executed: Epoch(state.checkpoint),
            checkpointer: Some(here(CHECKPOINTER)),
            tail_bytes: self.tail_bytes,
            kept_max: self.kept_max,
            keep_bytes: self.keep_bytes,
            bugs: self.bugs,
            ..GroupSettings::new(here(LOG), members)
        };
        let config = LogConfig { segment_bytes: 4096, bugs: self.bugs, ..LogConfig::new(*b"group") };
        let mut replayed = Vec::new();
        let visit = |term, bytes: &[u8]| {
            replayed.push((term, bytes.to_vec()));
            Ok(())
        };
        let roles = (here(SEQUENCER), vec![here(SINK)]);
        if self.in_memory {
            let log = GroupLog::in_memory(settings, Arc::new(()), roles);
            state.log = Some(log.map_err(|e| e.to_string())?);
            return self.event(node, Event::Start);
        }
        let opened = GroupLog::open(&mut state.disk, config, settings, Arc::new(()), roles, visit);
        let mut log = match opened {
            Ok((_, recovered)) if recovered.starts_after.0 > state.checkpoint => {
                return Err(format!(
                    "node {node} begins after {} with no checkpoint",
                    recovered.starts_after
                ));
            }
            Ok((log, _)) => log,
            // A full disk; somebody will see to it.
            Err(GroupError::Log(LogError::Disk(_))) => {
                self.start_later(node, 100_000);
                return Ok(());
            }
            Err(error) => return Err(format!("node {node} does not open: {error}")),
        };
        if self.forgets_vote {
            log.raft.raft.vote = 0;
        }
        state.log = Some(log);
        (state.behind, state.life) = (None, state.life + 1);
        let has = state.checkpoint;
        state.seen = self.agreed.iter().filter(|bytes| epoch_of(bytes) <= has).count();
        for (term, bytes) in replayed.into_iter().filter(|(_, bytes)| epoch_of(bytes) > has) {
            self.seen(node, term, bytes)?;
        }
        self.event(node, Event::Start)?;
        self.tell_peers(node, PeerState::Fresh);
        Ok(())
    }

    fn tell_peers(&mut self, about: usize, state: PeerState) {
        for node in (0..self.nodes.len()).filter(|node| *node != about) {
            let change = PeerChange { node: NodeId(about as u16), state };
            self.plan(1000, Happening::Deliver { from: node, to: node, message: change.into() });
        }
    }

    /// The process dies; with `power` its machine too.
    pub fn stop(&mut self, node: usize, power: bool) {
        let Node { disk, requests, .. } = &mut self.nodes[node];
        if let Some(request) = requests.pop_front() {
            let done = self.random.below(request.ops.len() as u64 + 1) as usize;
            let _ = request.ops[..done].iter().try_for_each(|op| disk.apply(op));
        }
        if power {
            let random = &mut self.random;
            disk.crash(|| random.next());
        }
        let state = &mut self.nodes[node];
        state.requests.clear();
        state.timers.clear();
        state.open.clear();
        (state.log, state.leads, state.leader, state.logged) = (None, false, None, None);
        state.life += 1;
        self.questions.retain(|_, question| question.node != node);
        self.tell_peers(node, PeerState::Lost);
    }

    pub fn start_later(&mut self, node: usize, after: u64) {
        self.plan(after, Happening::Start { node });
    }

    /// Goes on for so many microseconds.
    pub fn run(&mut self, micros: u64) -> Fault {
        let end = self.time + micros;
        while let Some(((time, _), _)) = self.agenda.first_key_value()
            && *time <= end
        {
            let Some(((time, _), happening)) = self.agenda.pop_first() else { break };
            self.time = time;
            self.happen(happening)?;
        }
        self.time = end;
        Ok(())
    }

    /// Goes on until something holds, for a while at most. Says how long it took.
    pub fn run_until(&mut self, most: u64, holds: impl Fn(&World) -> bool) -> Result<u64, String> {
        let begun = self.time;
        while !holds(self) {
            if self.time - begun > most {
                return Err(format!("it has not come to pass within {most} us"));
            }
            self.run(1000)?;
        }
        Ok(self.time - begun)
    }

    fn happen(&mut self, happening: Happening) -> Fault {
        match happening {
            Happening::Deliver { from, to, message } => {
                let sender = Address { node: NodeId(from as u16), role: LOG };
                if self.nodes[to].log.is_some() && !self.cut.contains(&(from, to)) {
                    self.event(to, Event::Message { from: sender, message })?;
                }
            }
            Happening::Timer { node, life, timer, setting } => {
                let state = &self.nodes[node];
                if state.life == life && state.timers.get(&timer) == Some(&setting) {
                    self.event(node, Event::Timer(timer))?;
                }
            }
            Happening::Disk { node, life } if self.nodes[node].life == life => {
                let state = &mut self.nodes[node];
                let Some(request) = state.requests.pop_front() else { return Ok(()) };
                let result = request.ops.iter().try_for_each(|op| state.disk.apply(op));
                if !state.requests.is_empty() {
                    let delay = self.random.between(self.disk_delay);
                    self.plan(delay, Happening::Disk { node, life });
                }
                self.event(node, Event::Disk(DiskDone { token: request.token, result }))?;
            }
            Happening::Disk { .. } => {}
            Happening::Start { node } => {
                if self.nodes[node].log.is_none() {
                    self.start(node)?;
                }
            }
        }
        Ok(())
    }

    /// Gives a member an event and takes what it asks for.
    pub fn event(&mut self, node: usize, event: Event<Message>) -> Fault {
        let mut out = Outbox::default();
        let wall = Micros(self.time + self.nodes[node].ahead);
        let now = Now { elapsed: Micros(self.time), wall };
        let Some(log) = &mut self.nodes[node].log else { return Ok(()) };
        log.handle(now, event, &mut out);
        log.check().map_err(|broken| format!("node {node}: {broken}"))?;
        if let Some(reason) = out.halt {
            return Err(format!("node {node} halts: {reason}"));
        }
        let life = self.nodes[node].life;
        for (timer, delay) in out.timers {
            self.count += 1;
            let setting = self.count;
            self.nodes[node].timers.insert(timer, setting);
            if let Some(delay) = delay {
                let delay = delay.0 * 100 / self.nodes[node].pace;
                self.plan(delay, Happening::Timer { node, life, timer, setting });
            }
        }
        for request in out.disk {
            self.note(|| format!("n{node} disk {}", words_of_disk(&request)));
            self.nodes[node].requests.push_back(request);
            if self.nodes[node].requests.len() == 1 {
                let delay = self.random.between(self.disk_delay);
                self.plan(delay, Happening::Disk { node, life });
            }
        }
        for (to, message) in out.sends {
            match (to.role, message) {
                (LOG, message) => self.post(node, to.node.0 as usize, message),
                (SEQUENCER, Message::Log(message)) => self.sequencer(node, message)?,
                (SINK, Message::Log(Log::Sealed(note))) => {
                    self.note(|| format!("n{node} sealed {}", note.id));
                    // The proposer is handed what it proposed, with what the bytes do not say.
                    if self.nodes[node]
                        .logged
                        .take()
                        .is_some_and(|logged| !Arc::ptr_eq(&logged.text, &note.text))
                    {
                        return Err(format!("node {node} logs one note and seals another"));
                    }
                    self.seen(node, note.term, Notes::encode(&note))?;
                }
                (CHECKPOINTER, Message::Log(Log::Behind(epoch))) => {
                    self.nodes[node].behind = Some(epoch.0);
                }
                (role, message) => return Err(format!("role {role} is sent {message:?}")),
            }
        }
        Ok(())
    }

    /// A member takes a checkpoint of everything that it has seen.
    pub fn checkpoint(&mut self, node: usize) {
        let last = self.nodes[node].seen.checked_sub(1).map_or(0, |last| epoch_of(&self.agreed[last]));
        self.nodes[node].checkpoint = self.nodes[node].checkpoint.max(last);
    }

    /// A member's log is told that nobody will ask for what is up to an epoch.
    pub fn trim(&mut self, node: usize, epoch: u64) -> Fault {
        self.cover(node, Covered::by_all(Epoch(epoch)))
    }

    /// A member's log is told what checkpoints cover.
    pub fn cover(&mut self, node: usize, covered: Covered) -> Fault {
        let from = Address { node: NodeId(node as u16), role: CHECKPOINTER };
        self.event(node, Event::Message { from, message: Log::Trim(covered).into() })
    }

    /// A member that is behind gets the checkpoint of another one, if one has it, and rebuild. Whether it did.
    pub fn copy_checkpoint(&mut self, node: usize) -> Result<bool, String> {
        let Some(epoch) = self.nodes[node].behind else { return Ok(false) };
        let newest = self.nodes.iter().map(|other| other.checkpoint).max().unwrap_or(0);
        if newest < epoch || self.nodes[node].log.is_none() {
            return Ok(false);
        }
        self.stop(node, false);
        self.nodes[node].checkpoint = newest;
        self.start(node)?;
        Ok(true)
    }

    fn post(&mut self, from: usize, to: usize, message: Message) {
        if let Message::Group(GroupMessage { head, tail, .. }) = &message
            && let Some(Wire::Raft(said)) = Wire::decode_shared(head, tail)
        {
            if format!("{:?}", said.msg_type).contains("Heartbeat") {
                self.heartbeats += 1;
            } else {
                self.note(|| words(from, to, &said));
            }
        }
        if self.random.below(1000) >= self.loss {
            let delay = self.random.between(self.delay);
            self.plan(delay, Happening::Deliver { from, to, message });
        }
    }

    /// A member sees the next note, of which it is told in which term it was agreed on.
    fn seen(&mut self, node: usize, term: u64, bytes: Vec<u8>) -> Fault {
        let place = self.nodes[node].seen;
        self.nodes[node].seen += 1;
        match self.agreed.get(place).zip(self.terms.get(place)) {
            Some((agreed, of)) if *agreed == bytes && *of == term => return Ok(()),
            Some((agreed, of)) if *agreed == bytes => {
                return Err(format!("node {node} sees note {place} in term {term}, and others in {of}"));
            }
            Some(_) => return Err(format!("node {node} sees another note at place {place}")),
            None => {}
        }
        let id = Note::id_of(&bytes);
        if self.fates.get(&id) == Some(&Fate::Lost) {
            return Err(format!("node {node} sees note {id}, which was called lost"));
        }
        if self.terms.last().is_some_and(|last| *last > term) || !self.leaders.contains_key(&term) {
            return Err(format!("note {id} is of term {term}, after {:?}", self.terms.last()));
        }
        self.agreed.push(bytes);
        self.terms.push(term);
        Ok(())
    }

    fn sequencer(&mut self, node: usize, message: Log) -> Fault {
        let state = &mut self.nodes[node];
        let (id, fate) = match message {
            Log::Leader { node: leader, term, is_me, last } => {
                self.note(|| match leader {
                    Some(leader) => format!("n{node} leader n{} term {term} last {last}", leader.0),
                    None => format!("n{node} leader none term {term} last {last}"),
                });
                let state = &mut self.nodes[node];
                (state.leads, state.leader, state.term) = (is_me, leader, term);
                state.epoch = state.epoch.max(last.0);
                if is_me && *self.leaders.entry(term).or_insert(node) != node {
                    return Err(format!("two lead in term {term}"));
                }
                return Ok(());
            }
            Log::Logged(epoch) => {
                let found = state.open.values().find(|note| note.epoch == epoch);
                let id = found.map(|note| note.id).ok_or("what was logged was not open")?;
                (id, Fate::Logged)
            }
            Log::Lost(note) => {
                let id = note.id;
                if self.agreed.iter().any(|bytes| Note::id_of(bytes) == id) {
                    return Err(format!("batch {id} is called lost and was seen"));
                }
                self.lost_late += usize::from(self.taken.contains(&id));
                (id, Fate::Lost)
            }
            Log::Confirmed { n, term } => return self.confirmed(node, n, term),
            Log::NotConfirmed { n } => {
                self.answered(node, n)?;
                self.note(|| format!("n{node} not confirmed {n}"));
                self.answers.refused += 1;
                return Ok(());
            }
            other => return Err(format!("the sequencer is told {other:?}")),
        };
        let batch = self.nodes[node].open.remove(&id);
        if fate == Fate::Logged && std::mem::replace(&mut self.nodes[node].logged, batch).is_some() {
            return Err(format!("node {node} logs a batch and does not seal it"));
        }
        self.note(|| format!("n{node} {fate:?} {id}"));
        match self.fates.insert(id, fate) {
            None => Ok(()),
            Some(before) => Err(format!("batch {id} is {fate:?} after it was {before:?}")),
        }
    }

    /// A member's sequencer asks whether the member leads.
    pub fn ask(&mut self, node: usize) -> Fault {
        let n = self.next_id;
        self.next_id += 1;
        self.questions.insert(n, Question { node, agreed: self.agreed.len() });
        self.note(|| format!("n{node} confirm {n}"));
        let from = Address { node: NodeId(node as u16), role: SEQUENCER };
        self.event(node, Event::Message { from, message: Log::Confirm(n).into() })
    }

    /// The number of questions that are not answered, of nodes that live.
    pub fn open_questions(&self) -> usize {
        self.questions.len()
    }

    /// Each question has one answer, at the node that has asked.
    fn answered(&mut self, node: usize, n: u64) -> Result<Question, String> {
        let question = self.questions.remove(&n).filter(|question| question.node == node);
        question.ok_or_else(|| format!("node {node} answers question {n}, which is not open there"))
    }

    /// A member says that it leads. When it was asked, nothing of a later term was handed on anywhere, and what was is handed
    /// on here.
    fn confirmed(&mut self, node: usize, n: u64, term: u64) -> Fault {
        let Question { agreed, .. } = self.answered(node, n)?;
        self.note(|| format!("n{node} confirmed {n} term {term}"));
        self.answers.confirmed += 1;
        let state = &self.nodes[node];
        if !state.leads || state.term != term {
            return Err(format!("node {node} confirms term {term} and has not said that it leads in it"));
        }
        let newest = self.terms[..agreed].last().copied().unwrap_or_default();
        if newest > term {
            return Err(format!(
                "node {node} confirms term {term}, and a note of {newest} had been handed on before"
            ));
        }
        if state.seen < agreed {
            return Err(format!("node {node} confirms and has not handed on all that others had"));
        }
        Ok(())
    }

    /// A member's sequencer closes a batch and gives it to the log, whether that leads or not. Says its number.
    pub fn propose(&mut self, node: usize, skip: u64, size: u64) -> Result<u64, String> {
        self.nodes[node].epoch += skip;
        let id = self.next_id;
        self.next_id += 1;
        let note = Note::of_size(self.nodes[node].epoch, id, size);
        let from = Address { node: NodeId(node as u16), role: SEQUENCER };
        self.nodes[node].open.insert(id, note.clone());
        self.note(|| format!("n{node} append {id}"));
        let message = Log::Append(note).into();
        let term = self.nodes[node].leads.then_some(self.nodes[node].term);
        self.event(node, Event::Message { from, message })?;
        let led = self.nodes[node].leads.then_some(self.nodes[node].term);
        if skip > 0 && term.is_some() && term == led && self.fates.get(&id) == Some(&Fate::Lost) {
            return Err(format!("node {node} is told that it leads, and loses batch {id} at once"));
        }
        self.taken.extend(self.nodes[node].open.contains_key(&id).then_some(id));
        Ok(id)
    }

    pub fn leader(&self) -> Option<usize> {
        self.nodes.iter().position(|node| node.leads)
    }

    /// Cuts a member off from all others, or joins it again.
    pub fn set_cut(&mut self, node: usize, is_cut: bool) {
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            for link in [(node, other), (other, node)] {
                if is_cut {
                    self.cut.insert(link)
                } else {
                    self.cut.remove(&link)
                };
            }
        }
    }

    /// Whether all members live, follow one leader and have seen everything.
    pub fn is_settled(&self) -> bool {
        let leader = self.leader().map(|leader| NodeId(leader as u16));
        leader.is_some()
            && self.nodes.iter().all(|node| node.leader == leader && node.seen == self.agreed.len())
            && self.nodes.iter().all(|node| node.open.is_empty())
    }

    pub fn gauge(&self, node: usize, name: &str) -> f64 {
        let mut found = f64::NAN;
        if let Some(log) = &self.nodes[node].log {
            log.gauges(&mut |gauge, value| {
                if gauge == name {
                    found = value;
                }
            });
        }
        found
    }
}

fn words(from: usize, to: usize, said: &raft::eraftpb::Message) -> String {
    let kind = format!("{:?}", said.msg_type);
    let kind = kind.trim_start_matches("Msg");
    let to = Member::of(said.to).map_or(to, |member| member.node.0 as usize);
    let entries: Vec<String> = said.entries.iter().map(|e| format!("{}@{}", e.index, e.term)).collect();
    let mut line = format!("n{from} -> n{to} {kind} term {} index {}", said.term, said.index);
    if !entries.is_empty() {
        let _ = write!(line, " entries {}", entries.join(" "));
    }
    if said.reject {
        line.push_str(" rejected");
    }
    if kind.starts_with("Append") {
        let _ = write!(line, " commit {}", said.commit);
    }
    line
}

fn words_of_disk(request: &DiskRequest) -> String {
    let ops: Vec<String> = request
        .ops
        .iter()
        .map(|op| format!("{op:?}").split([' ', '{']).next().unwrap_or_default().to_lowercase())
        .collect();
    ops.join(", ")
}
