//! The members of a partition in a virtual world: logs on disks that forget, joined by links that may break.
//!
//! The world plays each node's sequencer and the configuration service, and holds the logs to what they promise: each seals a beginning
//! of what the primary seals, in order, each batch once. What it finds broken is an error.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ordain_fuzz::Random;
use ordain_log::{LogConfig, LogError, LogWriter, MemoryDirectory};
use ordain_model::{Epoch, Layout, Micros, PartitionId};
use ordain_role::{
    Address, Directory, DiskDone, DiskRequest, Event, NodeId, Now, Outbox, PeerChange, PeerState, Role,
    TimerId, Topology,
};

use crate::catch_up::Index;
use crate::configuration_service::{Fence, LeadershipRecords};
use crate::entry::EntryType as _;
use crate::input_log::ShippingSettings;
use crate::message::{Configuration, Covered, Held, Ship};
use crate::tests::{Log, Message, Note, Notes};
use crate::{InputLog, LogSettings};

pub type Fault = Result<(), String>;

const SEQUENCER: u16 = 0;
const LOG: u16 = 1;
const SINK: u16 = 2;
const CONFIGURATION_SERVICE: u16 = 4;
const CHECKPOINTER: u16 = 6;

const PROBE: TimerId = TimerId(1);
const ASK: TimerId = TimerId(3);

#[derive(Default)]
pub struct Node {
    pub disk: MemoryDirectory,
    pub log: Option<InputLog<Notes, Message>>,
    pub requests: VecDeque<DiskRequest>,
    pub timers: BTreeSet<TimerId>,
    /// Its sequencer: whether it may append, after which epoch, and what is in the log.
    pub leader: Option<NodeId>,
    pub leads: bool,
    pub epoch: u64,
    pub open: VecDeque<Note>,
    pub lost: usize,
    pub rejected: usize,
    /// The questions whether the node leads that were answered with a no.
    pub not_confirmed: Vec<u64>,
    /// What it has sealed in all its lives: the epochs of this one, and how many batches that were to be kept.
    pub sealed: Vec<u64>,
    pub entries: usize,
    /// Its checkpoint has everything up to this epoch.
    pub checkpoint: u64,
    /// What its log has said is behind.
    pub behind: Option<u64>,
    /// What its configuration service was told last.
    pub kept: (Epoch, Vec<NodeId>),
    pub collected: Vec<Ship>,
}

pub struct World {
    pub nodes: Vec<Node>,
    pub links: BTreeMap<(usize, usize), VecDeque<Message>>,
    /// The most that was ever on a link.
    pub most_on_link: usize,
    pub random: Random,
    pub leadership_records: LeadershipRecords,
    /// Which primary may add to what is sealed, and what that is: each entry once.
    author: usize,
    pub truth: Vec<Vec<u8>>,
    /// Of the term that is being prepared.
    first: Epoch,
    pub kept_bytes: usize,
    pub keep_bytes: u64,
    pub piece: usize,
    pub in_memory: bool,
    /// Up to where logs were told to let go, or begin after a checkpoint.
    pub trimmed: u64,
    next_id: u64,
}

fn config() -> LogConfig {
    LogConfig { segment_bytes: 4096, ..LogConfig::new(*b"ship") }
}

/// The epoch of a note.
fn epoch_of(note: &[u8]) -> u64 {
    crate::epoch_of(note).unwrap_or_default().0
}

impl World {
    /// So many members that have all heard that the first is primary.
    pub fn new(nodes: usize, seed: u64) -> Result<World, String> {
        let layout = Arc::new(Layout::even(1, 1).map_err(|error| format!("{error:?}"))?);
        let mut world = World {
            nodes: (0..nodes).map(|_| Node::default()).collect(),
            links: BTreeMap::new(),
            most_on_link: 0,
            random: Random(seed),
            leadership_records: LeadershipRecords::new(&Topology::replicated(layout, nodes as u16)),
            author: 0,
            truth: Vec::new(),
            first: Epoch(1),
            kept_bytes: 2000,
            keep_bytes: u64::MAX,
            piece: 500,
            in_memory: false,
            trimmed: 0,
            next_id: 1,
        };
        for node in 0..nodes {
            world.start(node)?;
        }
        Ok(world)
    }

    fn others(&self, node: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.nodes.len()).filter(move |other| *other != node)
    }

    pub fn live(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].log.is_some()).collect()
    }

    pub fn primary(&self) -> usize {
        usize::from(self.leadership_records.leadership_records[0].primary.0)
    }

    /// Starts a node from what is on its disk.
    pub fn start(&mut self, node: usize) -> Fault {
        let here = |role| Address { node: NodeId(node as u16), role };
        let settings = ShippingSettings {
            me: here(LOG),
            partition: PartitionId(0),
            checkpointer: Some(here(CHECKPOINTER)),
            members: self.others(node).map(|other| NodeId(other as u16)).collect(),
            identity: b"ship".to_vec(),
            kept_bytes: self.kept_bytes,
            piece: self.piece,
        };
        let (mut index, mut replayed) = (Index::new(4096), Vec::new());
        let checkpoint = self.nodes[node].checkpoint;
        let config = LogConfig { begins_after: Epoch(checkpoint), ..config() };
        let opened = LogWriter::open_placed(&mut self.nodes[node].disk, config, |place, entry| {
            index.note_batch(entry.epoch, place, entry.payload.len());
            if entry.epoch.0 > checkpoint {
                replayed.push(entry.payload);
            }
            Ok(())
        });
        let writer = match opened {
            Ok((_, recovered)) if recovered.starts_after.0 > checkpoint => {
                return Err(format!(
                    "node {node} begins after {} with no checkpoint",
                    recovered.starts_after
                ));
            }
            Ok((writer, recovered)) => {
                index.note_beginning(recovered.starts_after);
                Some(writer).filter(|_| !self.in_memory)
            }
            // A full disk.
            Err(LogError::Disk(_)) => return Ok(()),
            Err(error) => return Err(format!("node {node} does not open: {error}")),
        };
        let (executed, keep_bytes) = (Epoch(checkpoint), self.keep_bytes);
        let log_settings = LogSettings { executed, keep_bytes, ..LogSettings::default() };
        let log = InputLog::new(log_settings, writer, here(SEQUENCER), vec![here(SINK)]);
        let state = &mut self.nodes[node];
        state.log = Some(log.with_members(settings, Arc::new(()), index));
        let covered = self.truth.iter().filter(|bytes| epoch_of(bytes) <= checkpoint).count();
        (state.entries, state.epoch, state.behind) = (covered, checkpoint, None);
        state.sealed.clear();
        for entry in replayed {
            self.sealed(node, &Notes::decode(&(), &entry)?)?;
        }
        self.event(node, Event::Start)?;
        for other in self.live().into_iter().filter(|other| *other != node) {
            self.break_link(node, other)?;
        }
        self.tell_leadership_records(node, true)
    }

    /// Loses its power.
    pub fn crash(&mut self, node: usize) {
        let Node { disk, requests, .. } = &mut self.nodes[node];
        if let Some(request) = requests.pop_front() {
            let done = self.random.below(request.ops.len() as u64 + 1) as usize;
            let _ = request.ops[..done].iter().try_for_each(|op| disk.apply(op));
        }
        let random = &mut self.random;
        disk.crash(|| random.next());
        let state = &mut self.nodes[node];
        state.requests.clear();
        state.timers.clear();
        state.open.clear();
        (state.log, state.leads, state.leader) = (None, false, None);
        self.links.retain(|(from, to), _| *from != node && *to != node);
    }

    /// A node comes back without anything.
    pub fn wipe(&mut self, node: usize) {
        self.nodes[node].disk = MemoryDirectory::new();
        self.nodes[node].checkpoint = 0;
        self.nodes[node].sealed.clear();
    }

    /// A node takes a checkpoint of all that it has sealed.
    pub fn checkpoint(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        state.checkpoint = state.checkpoint.max(state.sealed.last().copied().unwrap_or(0));
    }

    /// All logs that live let go what all nodes have checkpoints of.
    pub fn trim(&mut self) -> Fault {
        let least = self.nodes.iter().map(|node| node.checkpoint).min().unwrap_or(0);
        self.trimmed = self.trimmed.max(least);
        let trim = Log::Trim(Covered::by_all(Epoch(least)));
        self.live().into_iter().try_for_each(|node| self.tell(node, (node, CHECKPOINTER), trim.clone()))
    }

    /// A node that is behind is rebuilt with the checkpoint of its primary and nothing else. Whether it did.
    pub fn copy_checkpoint(&mut self, node: usize) -> Result<bool, String> {
        let (source, Some(behind)) = (self.primary(), self.nodes[node].behind) else { return Ok(false) };
        if self.nodes[source].checkpoint < behind || source == node || self.nodes[node].log.is_none() {
            return Ok(false);
        }
        self.crash(node);
        self.wipe(node);
        self.nodes[node].checkpoint = self.nodes[source].checkpoint;
        self.trimmed = self.trimmed.max(self.nodes[source].checkpoint);
        self.start(node)?;
        Ok(true)
    }

    /// A new stream begins between two nodes: what was on its way is lost.
    pub fn break_link(&mut self, one: usize, other: usize) -> Fault {
        for (at, about) in [(one, other), (other, one)] {
            self.links.remove(&(at, about));
        }
        self.peer(one, other, PeerState::Fresh)
    }

    /// Two nodes hear of what becomes of the stream between them.
    pub fn peer(&mut self, one: usize, other: usize, state: PeerState) -> Fault {
        for (at, about) in [(one, other), (other, one)] {
            let change = PeerChange { node: NodeId(about as u16), state };
            self.tell(at, (at, LOG), change)?;
        }
        Ok(())
    }

    pub fn tell(&mut self, to: usize, from: (usize, u16), message: impl Into<Message>) -> Fault {
        let from = Address { node: NodeId(from.0 as u16), role: from.1 };
        self.event(to, Event::Message { from, message: message.into() })
    }

    pub fn tell_leadership_records(&mut self, node: usize, in_touch: bool) -> Fault {
        let leadership_records = Arc::new(self.leadership_records.clone());
        self.tell(
            node,
            (node, CONFIGURATION_SERVICE),
            Configuration::Records { leadership_records, in_touch },
        )
    }

    /// The configuration service decides something, and all live nodes hear of it.
    pub fn configuration_entry(&mut self, change: impl FnOnce(&mut LeadershipRecords)) -> Fault {
        self.leadership_records.version += 1;
        change(&mut self.leadership_records);
        self.live().into_iter().try_for_each(|node| self.tell_leadership_records(node, true))
    }

    // ---- the sequencer -----------------------------------------------------------------------------------

    pub fn note(&mut self, epoch: u64, size: u64) -> Note {
        self.next_id += 1;
        Note::of_size(epoch, self.next_id - 1, size)
    }

    /// The sequencer of a node appends a note; of size 0, one with nothing to keep.
    pub fn append(&mut self, node: usize, size: u64) -> Fault {
        let note = self.note(self.nodes[node].epoch + 1, size);
        self.nodes[node].epoch += 1;
        self.nodes[node].open.push_back(note.clone());
        self.tell(node, (node, SEQUENCER), Log::Append(note))
    }

    /// The sequencer of a node asks whether that leads.
    pub fn ask(&mut self, node: usize, n: u64) -> Fault {
        self.tell(node, (node, SEQUENCER), Log::Confirm(n))
    }

    fn sequencer(&mut self, node: usize, message: Log) -> Fault {
        let state = &mut self.nodes[node];
        match message {
            Log::Leader { node: leader, is_me, last, .. } => {
                (state.leads, state.leader) = (is_me, leader);
                state.epoch = state.epoch.max(last.0);
                if is_me && leader != Some(NodeId(node as u16)) {
                    return Err(format!("node {node} leads and {leader:?} is the leader"));
                }
            }
            Log::Logged(epoch) => {
                state.open.pop_front_if(|note| note.epoch == epoch).ok_or("what was logged was not open")?;
            }
            Log::Lost(note) => {
                state
                    .open
                    .pop_back_if(|open| open.epoch == note.epoch)
                    .ok_or("what was lost was not open")?;
                state.lost += 1;
            }
            Log::Rejected(note) => {
                state
                    .open
                    .pop_front_if(|open| open.epoch == note.epoch)
                    .ok_or("what was refused was not open")?;
                // The epoch can be had again, unless the node has learnt of later ones.
                state.epoch -= u64::from(state.epoch == note.epoch.0);
                state.rejected += 1;
            }
            Log::Writable => {}
            Log::NotConfirmed { n } => state.not_confirmed.push(n),
            other => return Err(format!("the sequencer is told {other:?}")),
        }
        Ok(())
    }

    // ---- what happens ------------------------------------------------------------------------------------

    fn sealed(&mut self, node: usize, note: &Note) -> Fault {
        let state = &mut self.nodes[node];
        let epoch = note.epoch.0;
        if state.sealed.last().is_some_and(|last| *last >= epoch) {
            return Err(format!("node {node} seals epoch {epoch} after {:?}", state.sealed.last()));
        }
        state.sealed.push(epoch);
        if !Notes::must_be_durable(note) {
            return Ok(());
        }
        let (place, bytes) = (state.entries, Notes::encode(note));
        state.entries += 1;
        match self.truth.get(place) {
            Some(known) if *known == bytes => Ok(()),
            Some(_) => Err(format!("node {node} seals something else at place {place}, epoch {epoch}")),
            None if self.author == node => {
                self.truth.push(bytes);
                Ok(())
            }
            None => Err(format!("node {node} seals epoch {epoch}, which no primary has sealed")),
        }
    }

    /// Gives a log an event and takes what it asks for.
    pub fn event(&mut self, node: usize, event: Event<Message>) -> Fault {
        let mut out = Outbox::default();
        let Some(log) = &mut self.nodes[node].log else { return Ok(()) };
        let now = Now { elapsed: Micros(0), wall: Micros(0) };
        log.handle(now, event, &mut out);
        log.check().map_err(|broken| format!("node {node}: {broken}"))?;
        if let Some(reason) = out.halt {
            return Err(format!("node {node} halts: {reason}"));
        }
        let state = &mut self.nodes[node];
        state.timers.extend(out.timers.iter().map(|(timer, _)| *timer));
        state.requests.extend(out.disk);
        for (to, message) in out.sends {
            let there = usize::from(to.node.0);
            match (to.role, message) {
                (SEQUENCER, Message::Log(message)) => self.sequencer(node, message)?,
                (SINK, Message::Log(Log::Sealed(note))) => self.sealed(node, &note)?,
                (CONFIGURATION_SERVICE, Message::Configuration(Configuration::Kept { through, in_sync })) => {
                    self.nodes[node].kept = (through, in_sync);
                }
                (CHECKPOINTER, Message::Log(Log::Behind(epoch))) => {
                    self.nodes[node].behind = Some(epoch.0);
                }
                (CONFIGURATION_SERVICE, Message::Ship(collected)) => {
                    self.nodes[there].collected.push(collected)
                }
                (LOG, message @ Message::Ship(_)) if there != node => {
                    if self.nodes[there].log.is_some() {
                        let link = self.links.entry((node, there)).or_default();
                        link.push_back(message);
                        self.most_on_link = self.most_on_link.max(link.len());
                    }
                }
                (role, message) => return Err(format!("role {role} is sent {message:?}")),
            }
        }
        Ok(())
    }

    /// Carries out a node's next disk request.
    pub fn disk(&mut self, node: usize) -> Fault {
        let state = &mut self.nodes[node];
        let Some(request) = state.requests.pop_front() else { return Ok(()) };
        let result = request.ops.iter().try_for_each(|op| state.disk.apply(op));
        self.event(node, Event::Disk(DiskDone { token: request.token, result }))
    }

    /// What is first on a link arrives.
    pub fn deliver(&mut self, from: usize, to: usize) -> Fault {
        match self.links.get_mut(&(from, to)).and_then(VecDeque::pop_front) {
            Some(message) => self.tell(to, (from, LOG), message),
            None => Ok(()),
        }
    }

    pub fn fire(&mut self, node: usize, timer: TimerId) -> Fault {
        match self.nodes[node].timers.remove(&timer) {
            true => self.event(node, Event::Timer(timer)),
            false => Ok(()),
        }
    }

    /// Some one thing happens that can, if any: a message arrives or a disk request is carried out.
    pub fn step(&mut self) -> Result<bool, String> {
        let links: Vec<_> =
            self.links.iter().filter(|(_, link)| !link.is_empty()).map(|(at, _)| *at).collect();
        let disks: Vec<_> = self.live().into_iter().filter(|n| !self.nodes[*n].requests.is_empty()).collect();
        let n = (links.len() + disks.len()) as u64;
        if n == 0 {
            return Ok(false);
        }
        let which = self.random.below(n) as usize;
        match links.get(which) {
            Some((from, to)) => self.deliver(*from, *to)?,
            None => self.disk(disks[which - links.len()])?,
        }
        Ok(true)
    }

    /// Goes on until nothing happens any more, but for timers.
    pub fn settle(&mut self) -> Fault {
        for _ in 0..100_000 {
            if !self.step()? {
                return Ok(());
            }
        }
        Err("it does not come to rest".to_owned())
    }

    /// All timers fire; then it comes to rest again.
    pub fn wait(&mut self) -> Fault {
        for node in self.live() {
            for timer in [PROBE, ASK] {
                self.fire(node, timer)?;
            }
        }
        self.settle()
    }

    /// Whether all nodes live and have everything.
    pub fn converged(&self) -> Fault {
        for (node, state) in self.nodes.iter().enumerate() {
            if state.entries != self.truth.len() || state.log.is_none() {
                return Err(format!("node {node} has {} entries of {}", state.entries, self.truth.len()));
            }
        }
        Ok(())
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

    // ---- the configuration service -------------------------------------------------------------------------------------

    /// A term is to be prepared.
    pub fn fence(&mut self, candidate: usize) -> Fault {
        self.configuration_entry(|leadership_records| {
            let leadership_record = &mut leadership_records.leadership_records[0];
            let term = leadership_record.latest() + 1;
            leadership_record.fence = Some(Fence { term, candidate: NodeId(candidate as u16) });
        })
    }

    /// Asks a log for what it has after an epoch, until it has told all: the epochs and what there is of them, and the
    /// largest that it knows of.
    pub fn collect(
        &mut self,
        node: usize,
        candidate: usize,
        mut after: Epoch,
    ) -> Result<(Vec<Held>, Epoch), String> {
        let term = self.leadership_records.leadership_records[0].latest();
        let mut all: Vec<Held> = Vec::new();
        for _ in 0..1000 {
            self.nodes[candidate].collected.clear();
            let message = Ship::Collect { partition: PartitionId(0), term, after };
            self.tell(node, (candidate, CONFIGURATION_SERVICE), message)?;
            while self.nodes[candidate].collected.is_empty() && !self.nodes[node].requests.is_empty() {
                self.disk(node)?;
                self.fire(node, PROBE)?;
            }
            match self.nodes[candidate].collected.pop() {
                Some(Ship::Collected { through, held, is_all, .. }) => {
                    after = held.last().map_or(after, |held| held.epoch);
                    all.extend(held);
                    if is_all {
                        return Ok((all, through));
                    }
                }
                other => return Err(format!("node {node} answers {other:?}")),
            }
        }
        Err(format!("node {node} does not come to an end"))
    }

    /// The candidate gathers what is left. Who is dead has to come back with nothing.
    pub fn gather(&mut self, candidate: usize) -> Fault {
        self.kept(candidate)?;
        let own = self.nodes[candidate].kept.0;
        let (mut decided, mut last) = (BTreeMap::new(), own);
        for node in self.others(candidate) {
            if self.nodes[node].log.is_none() {
                self.wipe(node);
                continue;
            }
            let (held, through) = self.collect(node, candidate, own)?;
            last = last.max(through);
            let held = held.into_iter().filter(|held| held.parts > 0);
            decided.extend(held.filter_map(|held| Some((held.epoch, held.content?))));
        }
        let term = self.leadership_records.leadership_records[0].latest();
        // What only the dead have sealed is lost; what is in the logs of the living is not, sealed or not.
        let before = self.nodes[candidate].checkpoint;
        let (own, _) = self.collect(candidate, candidate, Epoch(before))?;
        let own = own.into_iter().filter(|held| held.parts > 0).filter_map(|held| held.content);
        let covered = self.truth.iter().filter(|bytes| epoch_of(bytes) <= before).cloned();
        let rest = own.chain(decided.values().cloned()).map(|content| content.to_vec());
        let whole: Vec<Vec<u8>> = covered.chain(rest).collect();
        let sealed = self.live().into_iter().map(|node| self.nodes[node].entries).max().unwrap_or(0);
        if whole.get(..sealed) != self.truth.get(..sealed) {
            return Err(format!("of {sealed} entries that the living have sealed, not all are decided"));
        }
        (self.truth, self.author) = (whole, candidate);
        let entries = decided.into_values().collect();
        self.first = last.next();
        self.tell(candidate, (candidate, CONFIGURATION_SERVICE), Ship::Decided { term, entries })
    }

    /// A log says how far it is, if need be once that is on disk.
    pub fn kept(&mut self, node: usize) -> Fault {
        self.nodes[node].kept.0 = Epoch(u64::MAX);
        self.tell_leadership_records(node, true)?;
        while self.nodes[node].kept.0 == Epoch(u64::MAX) {
            if self.nodes[node].requests.is_empty() {
                return Err(format!("node {node} does not say how far it is"));
            }
            self.disk(node)?;
        }
        Ok(())
    }

    /// The candidate becomes primary, when it has on disk what it was given.
    pub fn leadership_record(&mut self, candidate: usize) -> Fault {
        self.kept(candidate)?;
        self.leadership_record_at_once(candidate)
    }

    /// The candidate becomes primary.
    pub fn leadership_record_at_once(&mut self, candidate: usize) -> Fault {
        let first = self.first;
        self.configuration_entry(|leadership_records| {
            let leadership_record = &mut leadership_records.leadership_records[0];
            (leadership_record.term, leadership_record.primary, leadership_record.first) =
                (leadership_record.latest(), NodeId(candidate as u16), first);
            leadership_record.fence = None;
        })
    }
}
