//! A region in a virtual world: servers that keep nothing, storage nodes on disks that forget, streams that end.
//!
//! The world plays each server's appender and the checkpointers, and holds the log to what it promises: one durable order,
//! each entry one fate, confirmed leaders that have all. What it finds broken is an error, so that tests can plant bugs and
//! see that it is found.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;

use ordain_fuzz::Random;
use ordain_log::{LogConfig, LogError, MemoryDirectory};
use ordain_model::{Epoch, Micros};
use ordain_role::{
    Address, Bugs, Directory as _, DiskDone, DiskRequest, Event, NodeId, Now, Outbox, PeerChange, PeerState,
    Role, TimerId,
};

use crate::entry::EntryType as _;
use crate::message::Covered;
use crate::storage::{
    StorageError, StorageLog, StorageLogSettings, StorageMode, StorageReplica, StorageReplicaSettings,
};
use crate::tests::{Log, Message, Note, Notes};

use super::tally::Tally;
use super::words::words_of;

pub type Fault = Result<(), String>;

const APPENDER: u16 = 0;
const LOG: u16 = 1;
const SINK: u16 = 2;
const WAITS: u16 = 3;
const CHECKPOINTER: u16 = 6;

enum Happening {
    Deliver { link: (usize, usize), stream: u64, message: Message },
    Peer { node: usize, life: u32, change: PeerChange },
    Timer { node: usize, life: u32, timer: TimerId, setting: u64 },
    Disk { node: usize, life: u32 },
    Start { node: usize },
    Thaw { node: usize, life: u32 },
}

/// The messages from one node to another.
#[derive(Default)]
struct Link {
    stream: u64,
    /// The arrival of the last message that is under way.
    last: u64,
    /// Messages that wait for the link, which is cut.
    held: VecDeque<Message>,
}

pub enum Part {
    Server(Box<StorageLog<Notes, Message>>),
    Replica(Box<StorageReplica<Note, Message>>),
}

impl Part {
    pub fn role(&mut self) -> &mut dyn Role<Message = Message> {
        match self {
            Part::Server(log) => &mut **log,
            Part::Replica(replica) => &mut **replica,
        }
    }
}

/// What waits while a node stands still: what happens to it, and what its last step has asked for.
#[derive(Default)]
struct Frozen {
    events: VecDeque<Event<Message>>,
    held: Option<Outbox<Message>>,
}

#[derive(Default)]
pub struct Node {
    pub disk: MemoryDirectory,
    pub part: Option<Part>,
    pub life: u32,
    timers: BTreeMap<TimerId, u64>,
    requests: VecDeque<DiskRequest>,
    /// The pace of its timers, percent.
    pub pace: u64,
    /// It stands still.
    frozen: Option<Frozen>,
    /// It will, for so many microseconds, after its next step and before that does anything.
    freezes_in_step: Option<u64>,
    /// Its appender: whether it may append, in which term, after which epoch, and what is open.
    pub leads: bool,
    term: u64,
    /// The last term in which it has led, in any life.
    led: u64,
    epoch: u64,
    pub open: BTreeMap<u64, Note>,
    is_full: bool,
    pub rejected: usize,
    /// What was handed on to it, what of that it knows to be durable, and whose fate was told right before.
    pub applied: Vec<Vec<u8>>,
    pub durable: usize,
    logged: Option<Note>,
    /// The terms of what it has applied, by place, as far as they are not known to all.
    applied_terms: BTreeMap<usize, u64>,
    /// Its checkpoint has everything up to this epoch.
    pub checkpoint: u64,
    pub behind: Option<u64>,
    /// The reason why nobody can lead.
    pub obstacle: Option<Arc<str>>,
}

/// A question whether a node leads.
#[derive(Clone, Copy, Debug)]
struct Question {
    node: usize,
    /// How much was durable anywhere before it was asked, and had been applied here.
    agreed: usize,
    applied: usize,
    /// The largest term that was confirmed by then.
    confirmed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Logged,
    Lost,
}

/// What a region is like.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub servers: usize,
    pub replicas: usize,
    pub mode: StorageMode,
    pub early: bool,
}

impl Region {
    pub const fn new(servers: usize, replicas: usize) -> Region {
        Region { servers, replicas, mode: StorageMode::Quorum, early: false }
    }
}

pub struct World {
    pub time: u64,
    count: u64,
    agenda: BTreeMap<(u64, u64), Happening>,
    links: BTreeMap<(usize, usize), Link>,
    pub nodes: Vec<Node>,
    pub region: Region,
    pub random: Random,
    bugs: Bugs,
    pub kept_bytes: usize,
    pub message_bytes: usize,
    /// Microseconds.
    pub delay: (u64, u64),
    pub disk_delay: (u64, u64),
    pub cut: BTreeSet<(usize, usize)>,
    /// What is durable, as anybody saw it first, and in which term.
    pub agreed: Vec<Vec<u8>>,
    terms: Vec<u64>,
    pub fates: BTreeMap<u64, Fate>,
    leaders: BTreeMap<u64, usize>,
    questions: BTreeMap<u64, Question>,
    confirmed_term: u64,
    next_id: u64,
    /// The last words on each link, which are noted once.
    words: BTreeMap<(String, String), String>,
    pub tally: Tally,
    pub transcript: Option<String>,
}

pub fn epoch_of(note: &[u8]) -> u64 {
    crate::epoch_of(note).unwrap_or_default().0
}

impl World {
    pub fn new(region: Region, seed: u64, bugs: Bugs) -> World {
        let count = region.servers + region.replicas;
        let mut world = World {
            time: 0,
            count: 0,
            agenda: BTreeMap::new(),
            links: BTreeMap::new(),
            nodes: (0..count).map(|_| Node { pace: 100, ..Node::default() }).collect(),
            region,
            random: Random(seed),
            bugs,
            kept_bytes: 1500,
            message_bytes: 600,
            delay: (200, 2000),
            disk_delay: (100, 3000),
            cut: BTreeSet::new(),
            agreed: Vec::new(),
            terms: Vec::new(),
            fates: BTreeMap::new(),
            leaders: BTreeMap::new(),
            questions: BTreeMap::new(),
            confirmed_term: 0,
            next_id: 1,
            words: BTreeMap::new(),
            tally: Tally::default(),
            transcript: None,
        };
        (0..count).for_each(|node| world.start_later(node, 0));
        world
    }

    pub fn is_server(&self, node: usize) -> bool {
        node < self.region.servers
    }

    pub fn servers(&self) -> std::ops::Range<usize> {
        0..self.region.servers
    }

    pub fn replicas(&self) -> std::ops::Range<usize> {
        self.region.servers..self.nodes.len()
    }

    fn plan(&mut self, after: u64, happening: Happening) {
        self.plan_at(self.time + after, happening);
    }

    fn plan_at(&mut self, at: u64, happening: Happening) {
        self.count += 1;
        self.agenda.insert((at, self.count), happening);
    }

    pub fn start_later(&mut self, node: usize, after: u64) {
        self.plan(after, Happening::Start { node });
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(transcript) = &mut self.transcript {
            let _ = writeln!(transcript, "{}", line());
        }
    }

    fn name(&self, node: usize) -> String {
        match node.checked_sub(self.region.servers) {
            Some(replica) => format!("r{replica}"),
            None => format!("s{node}"),
        }
    }

    pub fn is_up(&self, node: usize) -> bool {
        self.nodes[node].part.is_some()
    }

    // ---- nodes -------------------------------------------------------------------------------------------

    /// Starts a node that does not run, from what is on its disk.
    pub fn start(&mut self, node: usize) -> Fault {
        if self.is_up(node) {
            return Ok(());
        }
        let here = |role| Address { node: NodeId(node as u16), role };
        let of = |range: std::ops::Range<usize>| range.map(|node| NodeId(node as u16)).collect::<Vec<_>>();
        let (servers, replicas) = (of(self.servers()), of(self.replicas()));
        let executed = Epoch(self.nodes[node].checkpoint);
        let part = if self.is_server(node) {
            let settings = StorageLogSettings {
                mode: self.region.mode,
                full_grace: Micros::from_millis(600),
                begun: executed,
                message_bytes: self.message_bytes,
                kept_bytes: self.kept_bytes,
                checkpointer: Some(here(CHECKPOINTER)),
                early: self.region.early,
                durable: vec![here(WAITS)],
                bugs: self.bugs,
                ..StorageLogSettings::new(here(LOG), servers, replicas)
            };
            let roles = (here(APPENDER), vec![here(SINK)]);
            let log = StorageLog::new(settings, Arc::new(()), roles).map_err(|error| error.to_string())?;
            Part::Server(Box::new(log))
        } else {
            let settings = StorageReplicaSettings {
                generation: u64::from(self.nodes[node].life + 1),
                executed,
                checkpointer: Some(here(CHECKPOINTER)),
                tail_bytes: self.kept_bytes,
                message_bytes: self.message_bytes,
                bugs: self.bugs,
                ..StorageReplicaSettings::new(here(LOG), servers, replicas)
            };
            let config = LogConfig { segment_bytes: 2048, bugs: self.bugs, ..LogConfig::new(*b"region") };
            match StorageReplica::open(&mut self.nodes[node].disk, config, settings) {
                Ok((_, recovered)) if recovered.starts_after > executed => {
                    let after = recovered.starts_after;
                    return Err(format!("node {node} begins after {after} with no checkpoint"));
                }
                Ok((replica, _)) => Part::Replica(Box::new(replica)),
                // A full disk; somebody will see to it.
                Err(StorageError::Log(LogError::Disk(_))) => {
                    self.start_later(node, 100_000);
                    return Ok(());
                }
                Err(error) => return Err(format!("node {node} does not open: {error}")),
            }
        };
        let state = &mut self.nodes[node];
        state.part = Some(part);
        state.life += 1;
        state.behind = None;
        let has = state.checkpoint;
        state.applied = self.agreed.iter().take_while(|bytes| epoch_of(bytes) <= has).cloned().collect();
        state.durable = state.applied.len();
        self.event(node, Event::Start)?;
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            self.break_stream(node, other);
        }
        Ok(())
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
        (state.part, state.leads, state.logged, state.is_full) = (None, false, None, false);
        (state.frozen, state.freezes_in_step) = (None, None);
        state.life += 1;
        self.questions.retain(|_, question| question.node != node);
    }

    /// Tells whether a replica may lose its disk so that the region can go on: all others count, each as it is now.
    pub fn may_lose(&self, replica: usize) -> bool {
        self.region.replicas > 2
            && self.replicas().all(|of| of == replica || self.gauge(of, "ordain_storage_is_counted") == 1.0)
    }

    /// A node loses its disk, and is down.
    pub fn lose_disk(&mut self, node: usize) {
        let name = self.name(node);
        self.note(|| format!("{name} loses its disk"));
        self.stop(node, true);
        (self.nodes[node].disk, self.nodes[node].checkpoint) = (MemoryDirectory::new(), 0);
        self.tally.emptied += usize::from(!self.is_server(node));
    }

    /// A node stands still for a while: at once, or in the middle of its next step.
    pub fn freeze(&mut self, node: usize, micros: u64, in_step: bool) {
        let state = &mut self.nodes[node];
        if state.part.is_none() || state.frozen.is_some() {
            return;
        }
        if in_step {
            state.freezes_in_step = Some(micros);
        } else {
            state.frozen = Some(Frozen::default());
            let life = state.life;
            self.plan(micros, Happening::Thaw { node, life });
        }
    }

    // ---- streams -----------------------------------------------------------------------------------------

    fn link(&mut self, link: (usize, usize)) -> &mut Link {
        self.links.entry(link).or_default()
    }

    fn post(&mut self, from: usize, to: usize, message: Message) {
        let delay = self.random.between(self.delay);
        let (time, is_cut) = (self.time, self.cut.contains(&(from, to)));
        let link = self.link((from, to));
        if is_cut {
            link.held.push_back(message);
            return;
        }
        link.last = link.last.max(time + delay);
        let (at, stream) = (link.last, link.stream);
        self.plan_at(at, Happening::Deliver { link: (from, to), stream, message });
    }

    /// The stream between two nodes ends, and another begins: what is under way is lost.
    pub fn break_stream(&mut self, one: usize, other: usize) {
        for (from, to) in [(one, other), (other, one)] {
            let at = self.time + self.random.between((100, 3000));
            let link = self.link((from, to));
            link.stream += 1;
            link.held.clear();
            // What is sent from now on comes after the word of that.
            link.last = at;
            let life = self.nodes[to].life;
            let change = PeerChange { node: NodeId(from as u16), state: PeerState::Fresh };
            self.plan_at(at, Happening::Peer { node: to, life, change });
        }
    }

    pub fn set_cut(&mut self, node: usize) {
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            self.cut_link(node, other);
            self.cut_link(other, node);
        }
    }

    pub fn cut_link(&mut self, from: usize, to: usize) {
        if from != to {
            self.cut.insert((from, to));
        }
    }

    /// All links go on: what was held comes, or the streams begin anew.
    pub fn heal_links(&mut self) {
        for (from, to) in std::mem::take(&mut self.cut) {
            if self.random.below(2) == 0 {
                self.break_stream(from, to);
            }
            for message in std::mem::take(&mut self.link((from, to)).held) {
                self.post(from, to, message);
            }
        }
    }

    // ---- time --------------------------------------------------------------------------------------------

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
                return Err(format!("it has not come to pass within {most} us: {}", self.describe()));
            }
            self.run(1000)?;
            self.copy_checkpoints()?;
        }
        Ok(self.time - begun)
    }

    fn happen(&mut self, happening: Happening) -> Fault {
        match happening {
            Happening::Deliver { link, stream, message } => {
                if self.link(link).stream != stream {
                    return Ok(());
                }
                if self.cut.contains(&link) {
                    self.link(link).held.push_back(message);
                    return Ok(());
                }
                let from = Address { node: NodeId(link.0 as u16), role: LOG };
                self.event(link.1, Event::Message { from, message })
            }
            Happening::Peer { node, life, change } if self.nodes[node].life == life => {
                let from = Address { node: NodeId(node as u16), role: LOG };
                self.event(node, Event::Message { from, message: change.into() })
            }
            Happening::Timer { node, life, timer, setting } => {
                let state = &self.nodes[node];
                if state.life == life && state.timers.get(&timer) == Some(&setting) {
                    self.event(node, Event::Timer(timer))?;
                }
                Ok(())
            }
            Happening::Disk { node, life } if self.nodes[node].life == life => {
                let state = &mut self.nodes[node];
                let Some(request) = state.requests.pop_front() else { return Ok(()) };
                let result = request.ops.iter().try_for_each(|op| state.disk.apply(op));
                if !state.requests.is_empty() {
                    let delay = self.random.between(self.disk_delay);
                    self.plan(delay, Happening::Disk { node, life });
                }
                self.event(node, Event::Disk(DiskDone { token: request.token, result }))
            }
            Happening::Thaw { node, life } if self.nodes[node].life == life => {
                let Some(Frozen { events, held }) = self.nodes[node].frozen.take() else { return Ok(()) };
                if let Some(out) = held {
                    self.carry_out(node, out)?;
                }
                for event in events {
                    if self.nodes[node].life == life {
                        self.event(node, event)?;
                    }
                }
                Ok(())
            }
            Happening::Start { node } => self.start(node),
            Happening::Peer { .. } | Happening::Disk { .. } | Happening::Thaw { .. } => Ok(()),
        }
    }

    /// Gives a node an event and takes what it asks for.
    pub fn event(&mut self, node: usize, event: Event<Message>) -> Fault {
        let now = Now { elapsed: Micros(self.time), wall: Micros(self.time) };
        let state = &mut self.nodes[node];
        if let Some(frozen) = &mut state.frozen {
            frozen.events.push_back(event);
            return Ok(());
        }
        let Some(part) = &mut state.part else { return Ok(()) };
        let mut out = Outbox::default();
        part.role().handle(now, event, &mut out);
        let checked = part.role().check();
        checked.map_err(|broken| format!("{}: {broken}", self.name(node)))?;
        if let Some(micros) = self.nodes[node].freezes_in_step.take() {
            let life = self.nodes[node].life;
            self.nodes[node].frozen = Some(Frozen { events: VecDeque::new(), held: Some(out) });
            self.plan(micros, Happening::Thaw { node, life });
            return Ok(());
        }
        self.carry_out(node, out)
    }

    fn carry_out(&mut self, node: usize, out: Outbox<Message>) -> Fault {
        if let Some(reason) = out.halt {
            return Err(format!("{} halts: {reason}", self.name(node)));
        }
        if out.restart.is_some() {
            let name = self.name(node);
            self.note(|| format!("{name} begins again"));
            self.tally.restarted += 1;
            self.stop(node, false);
            let after = self.random.between((1000, 50_000));
            self.start_later(node, after);
            return Ok(());
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
            self.nodes[node].requests.push_back(request);
            if self.nodes[node].requests.len() == 1 {
                let delay = self.random.between(self.disk_delay);
                self.plan(delay, Happening::Disk { node, life });
            }
        }
        for (to, message) in out.sends {
            match (to.role, message) {
                (LOG, message) => {
                    let to = to.node.0 as usize;
                    let (from, receiver) = (self.name(node), self.name(to));
                    self.note_message(&from, &receiver, &message);
                    self.post(node, to, message);
                }
                (APPENDER, Message::Log(message)) => self.appender(node, message)?,
                (SINK, Message::Log(Log::Sealed(note))) => self.sealed(node, &note)?,
                (WAITS, Message::Log(Log::Durable(_))) => {}
                (CHECKPOINTER, Message::Log(Log::Behind(epoch))) => {
                    self.nodes[node].behind = Some(epoch.0);
                }
                (role, message) => return Err(format!("role {role} is sent {message:?}")),
            }
        }
        Ok(())
    }

    // ---- checkpoints -------------------------------------------------------------------------------------

    /// A server takes a checkpoint of what it has applied and is durable.
    pub fn checkpoint(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        let last = state.durable.checked_sub(1).map_or(0, |last| epoch_of(&state.applied[last]));
        state.checkpoint = state.checkpoint.max(last);
    }

    /// A storage node is told what checkpoints cover: that of all nodes, or its own, a copy of the newest.
    pub fn trim(&mut self, node: usize, alone: bool) -> Fault {
        let newest = self.nodes.iter().map(|node| node.checkpoint).max().unwrap_or(0);
        let least = self.nodes.iter().map(|node| node.checkpoint).min().unwrap_or(0);
        let covered = if alone { newest } else { least };
        if alone {
            self.nodes[node].checkpoint = newest;
        }
        let from = Address { node: NodeId(node as u16), role: CHECKPOINTER };
        let message = Log::Trim(Covered::by_all(Epoch(covered))).into();
        self.event(node, Event::Message { from, message })
    }

    /// Nodes that are behind get the newest checkpoint, if it is new enough, and begin with it.
    pub fn copy_checkpoints(&mut self) -> Fault {
        for node in 0..self.nodes.len() {
            let newest = self.nodes.iter().map(|other| other.checkpoint).max().unwrap_or(0);
            let is_wanted = self.nodes[node].behind.is_some_and(|epoch| epoch <= newest);
            if is_wanted && self.is_up(node) && self.nodes[node].frozen.is_none() {
                self.stop(node, false);
                self.nodes[node].checkpoint = newest;
                self.tally.copied += 1;
                self.start(node)?;
            }
        }
        Ok(())
    }

    // ---- what the log promises ---------------------------------------------------------------------------

    fn sealed(&mut self, node: usize, note: &Note) -> Fault {
        let name = self.name(node);
        self.note(|| format!("{name} sealed {} of term {}", note.id, note.term));
        let state = &mut self.nodes[node];
        if state.logged.take().is_some_and(|logged| !Arc::ptr_eq(&logged.text, &note.text)) {
            return Err(format!("{name} logs one note and seals another"));
        }
        state.applied.push(Notes::encode(note));
        if self.fates.get(&note.id) == Some(&Fate::Lost) {
            return Err(format!("{name} is handed note {}, which was called lost", note.id));
        }
        let place = self.nodes[node].applied.len() - 1;
        if self.region.early {
            // Until it is durable it may be of any term that leads; then it is compared.
            if let Some(term) = self.terms.get(place)
                && *term == note.term
                && self.agreed[place] != self.nodes[node].applied[place]
            {
                return Err(format!("{name} applies another note of term {term} at place {place}"));
            }
            self.nodes[node].applied_terms.insert(place, note.term);
            return Ok(());
        }
        self.is_durable(node, place, note.term)
    }

    /// What a node has applied at a place is durable.
    fn is_durable(&mut self, node: usize, place: usize, term: u64) -> Fault {
        let name = self.name(node);
        let bytes = self.nodes[node].applied[place].clone();
        self.nodes[node].durable = place + 1;
        match self.agreed.get(place).zip(self.terms.get(place)) {
            Some((agreed, of)) if *agreed == bytes && *of == term => return Ok(()),
            Some((agreed, of)) if *agreed == bytes => {
                return Err(format!("{name} sees note {place} in term {term}, and others in {of}"));
            }
            Some(_) => return Err(format!("{name} sees another durable note at place {place}")),
            None => {}
        }
        let id = Note::id_of(&bytes);
        if self.fates.get(&id) == Some(&Fate::Lost) {
            return Err(format!("note {id} is durable at {name} and was called lost"));
        }
        if self.terms.last().is_some_and(|last| *last > term) || !self.leaders.contains_key(&term) {
            return Err(format!("note {id} is of term {term}, after {:?}", self.terms.last()));
        }
        self.agreed.push(bytes);
        self.terms.push(term);
        Ok(())
    }

    fn appender(&mut self, node: usize, message: Log) -> Fault {
        let name = self.name(node);
        match message {
            Log::Leader { node: leader, term, is_me, last } => {
                let leader = leader.map_or("none".to_owned(), |leader| self.name(leader.0 as usize));
                self.note(|| format!("{name} leader {leader} term {term} last {last}"));
                if is_me && *self.leaders.entry(term).or_insert(node) != node {
                    return Err(format!("two lead in term {term}"));
                }
                if is_me && term >= 1 << 47 {
                    return Err(format!("term {term} is too large"));
                }
                let state = &mut self.nodes[node];
                if is_me && state.led >= term {
                    return Err(format!("{name} leads in term {term} after {}", state.led));
                }
                state.led = if is_me { term } else { state.led };
                self.tally.leaders += usize::from(is_me && !state.leads);
                (state.leads, state.term) = (is_me, term);
                state.epoch = state.epoch.max(last.0);
                if is_me && state.durable < state.applied.len() && !self.region.early {
                    return Err(format!("{name} leads and has handed on what is not durable"));
                }
                Ok(())
            }
            Log::Logged(epoch) => {
                let found = self.nodes[node].open.values().find(|note| note.epoch == epoch);
                let id = found.map(|note| note.id).ok_or("what was logged was not open")?;
                self.note(|| format!("{name} logged {id}"));
                self.nodes[node].logged = self.nodes[node].open.remove(&id);
                // Where entries are handed on early this says no more than that it was taken.
                if self.region.early { Ok(()) } else { self.end(id, Fate::Logged) }
            }
            Log::Lost(note) => {
                self.note(|| format!("{name} lost {}", note.id));
                if self.agreed.iter().any(|bytes| Note::id_of(bytes) == note.id) {
                    return Err(format!("note {} is called lost and is durable", note.id));
                }
                self.nodes[node].open.remove(&note.id);
                self.tally.lost += 1;
                self.end(note.id, Fate::Lost)
            }
            Log::Rejected(note) => {
                self.note(|| format!("{name} rejected {}", note.id));
                let state = &mut self.nodes[node];
                state.open.remove(&note.id);
                state.is_full = true;
                state.rejected += 1;
                self.tally.rejected += 1;
                self.end(note.id, Fate::Lost)
            }
            Log::Writable => {
                self.note(|| format!("{name} writable"));
                if !std::mem::take(&mut self.nodes[node].is_full) {
                    return Err(format!("{name} has space again and was not full"));
                }
                Ok(())
            }
            Log::Durable(epoch) => {
                self.note(|| format!("{name} durable {epoch}"));
                if !self.region.early {
                    return Err(format!("{name} says apart what is durable"));
                }
                let state = &self.nodes[node];
                let places = state.durable..state.applied.len();
                let places: Vec<usize> =
                    places.filter(|place| epoch_of(&state.applied[*place]) <= epoch.0).collect();
                if places.last().is_none_or(|last| epoch_of(&state.applied[*last]) != epoch.0) {
                    return Err(format!("{name} says that {epoch} is durable and has not handed it on"));
                }
                for place in places {
                    let term = self.nodes[node].applied_terms[&place];
                    self.is_durable(node, place, term)?;
                }
                Ok(())
            }
            Log::Confirmed { n, term } => self.confirmed(node, n, term),
            Log::NotConfirmed { n } => {
                self.answered(node, n)?;
                self.note(|| format!("{name} not confirmed {n}"));
                self.tally.refused += 1;
                Ok(())
            }
            Log::Obstacle(reason) => {
                self.note(|| format!("{name} obstacle {reason:?}"));
                self.nodes[node].obstacle = reason;
                Ok(())
            }
            other => Err(format!("the appender is told {other:?}")),
        }
    }

    fn end(&mut self, id: u64, fate: Fate) -> Fault {
        match self.fates.insert(id, fate) {
            None => Ok(()),
            Some(before) => Err(format!("note {id} is {fate:?} after it was {before:?}")),
        }
    }

    /// A server's appender closes an entry and gives it to the log, whether that leads or not. Says its number.
    pub fn append(&mut self, node: usize, skip: u64, size: u64) -> Result<u64, String> {
        let state = &mut self.nodes[node];
        state.epoch += skip;
        let id = self.next_id;
        self.next_id += 1;
        let note = Note::of_size(state.epoch, id, size);
        state.open.insert(id, note.clone());
        let name = self.name(node);
        self.note(|| format!("{name} append {id}"));
        self.tally.appended += 1;
        let from = Address { node: NodeId(node as u16), role: APPENDER };
        self.event(node, Event::Message { from, message: Log::Append(note).into() })?;
        Ok(id)
    }

    /// A server's appender asks whether the server leads.
    pub fn ask(&mut self, node: usize) -> Result<u64, String> {
        let n = self.next_id;
        self.next_id += 1;
        let question = Question {
            node,
            agreed: self.agreed.len(),
            applied: self.nodes[node].applied.len(),
            confirmed: self.confirmed_term,
        };
        self.questions.insert(n, question);
        let name = self.name(node);
        self.note(|| format!("{name} confirm {n}"));
        let from = Address { node: NodeId(node as u16), role: APPENDER };
        self.event(node, Event::Message { from, message: Log::Confirm(n).into() })?;
        Ok(n)
    }

    pub fn open_questions(&self) -> usize {
        self.questions.len()
    }

    fn answered(&mut self, node: usize, n: u64) -> Result<Question, String> {
        let question = self.questions.remove(&n).filter(|question| question.node == node);
        question.ok_or_else(|| format!("node {node} answers question {n}, which is not open there"))
    }

    /// A server says that it leads. When it was asked, nothing of a later term was durable anywhere, and what was is handed on
    /// here.
    fn confirmed(&mut self, node: usize, n: u64, term: u64) -> Fault {
        let question = self.answered(node, n)?;
        let name = self.name(node);
        self.note(|| format!("{name} confirmed {n} term {term}"));
        self.tally.confirmed += 1;
        let state = &self.nodes[node];
        if !state.leads || state.term != term {
            return Err(format!("{name} confirms term {term} and has not said that it leads in it"));
        }
        if question.confirmed > term {
            return Err(format!("{name} confirms term {term} after {} was confirmed", question.confirmed));
        }
        let newest = self.terms[..question.agreed].last().copied().unwrap_or_default();
        if newest > term {
            return Err(format!("{name} confirms term {term}, and a note of {newest} was durable before"));
        }
        if state.applied.len() < question.agreed
            || state.applied[..question.agreed] != self.agreed[..question.agreed]
        {
            return Err(format!("{name} confirms and has not handed on all that was durable"));
        }
        if state.durable < question.applied {
            return Err(format!("{name} confirms and what it had handed on is not durable"));
        }
        self.confirmed_term = self.confirmed_term.max(term);
        Ok(())
    }

    pub fn leader(&self) -> Option<usize> {
        self.servers().find(|node| self.nodes[*node].leads)
    }

    /// Whether all nodes live, one leads, and all servers have all that is durable.
    pub fn is_settled(&self) -> bool {
        self.servers().filter(|node| self.nodes[*node].leads).count() == 1
            && (0..self.nodes.len()).all(|node| self.is_up(node) && self.nodes[node].frozen.is_none())
            && self.servers().all(|node| {
                let state = &self.nodes[node];
                state.durable == self.agreed.len() && state.applied.len() == state.durable
            })
            && self.leader().is_some_and(|leader| self.nodes[leader].open.is_empty())
    }

    /// The state of all nodes, for who looks for the reason of a failure.
    pub fn describe(&self) -> String {
        let mut words = format!("{} durable", self.agreed.len());
        for (node, state) in self.nodes.iter().enumerate() {
            let name = self.name(node);
            let part = match &state.part {
                Some(Part::Server(log)) => format!("{log:?}"),
                Some(Part::Replica(replica)) => format!("{replica:?}"),
                None => "down".to_owned(),
            };
            let (durable, applied, open) = (state.durable, state.applied.len(), state.open.len());
            let _ = write!(words, "\n{name}: durable {durable}, applied {applied}, open {open}: {part}");
        }
        words
    }

    pub fn gauge(&self, node: usize, name: &str) -> f64 {
        let mut found = f64::NAN;
        let mut report = |gauge: &'static str, value: f64| {
            if gauge == name {
                found = value;
            }
        };
        match &self.nodes[node].part {
            Some(Part::Server(log)) => log.gauges(&mut report),
            Some(Part::Replica(replica)) => replica.gauges(&mut report),
            None => {}
        }
        found
    }

    fn note_message(&mut self, from: &str, to: &str, message: &Message) {
        let Message::Storage(message) = message else { return };
        let Some(words) = words_of(message, self.region.servers) else { return };
        let link = (from.to_owned(), to.to_owned());
        if self.transcript.is_some() && self.words.get(&link) != Some(&words) {
            self.note(|| format!("{from} -> {to} {words}"));
            self.words.insert(link, words);
        }
    }
}
