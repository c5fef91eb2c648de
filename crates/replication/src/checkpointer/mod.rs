//! The checkpointer puts the state at the end of an epoch into a file, and knows which checkpoints count
//! (docs/protocols/calvin.md, section 4.14).
//!
//! A transaction says where a checkpoint is cut: at the end of its epoch C, on every node alike. The shards keep what that
//! state was while they go on, and give it away in [pieces](ordain_checkpoint::Piece) between their other work. There is
//! one checkpointer a node:
//!
//! ```text
//!  Shard ──Piece, Last──▶              ──write, sync──▶ disk
//!        ◀──Taken, Dropped──           ──Covered──▶ Exchange
//!                       Checkpointer
//!  Sequencer ◀──Begun──                ──Has──▶ Checkpointers of all other nodes
//!            ──Piece, Last──▶          ──Trim──▶ InputLog or GroupLog, Exchange
//! ```
//!
//! A checkpoint is *saved* when its file is whole on this disk, and all that came in from other partitions up to C is in
//! the journal or not needed any more. It is *complete*, and sealed, when all partitions of this replica have one that is
//! saved, of C or a later epoch: from then on no peer will ask this node for anything of C or before, so it may
//! start from there. What it does not know after such a start, nobody wants to know.
//!
//! Only what several complete checkpoints cover is trimmed from the log: should the newest turn out to be damaged, the node
//! starts from the one before and executes more of its log.
//!
//! Where primaries may change, a checkpoint is sealed only when all that was sealed up to C is
//! [stable](Configuration::Stable): what is sealed counts for good, whoever has to be rebuilt.
//!
//! A disk without space, or one that fails here, costs the checkpoint and nothing else: it is given up, the ones before
//! stay, the log keeps growing, and the gauges say so.

mod copy;
mod file;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use ordain_checkpoint::{Found, Header, Seal, file_name, seal_name};
use ordain_model::{Epoch, Micros, Millis};
use ordain_role::{
    Address, Bug, Bugs, Bytes, DiskDone, DiskOp, DiskRequest, Event, NodeId, Now, Outbox, PeerChange,
    PeerState, Role, TimerId, Topology,
};

use crate::message::{Carrier, Configuration, Covered, Has, Log, Message, Saving};

use copy::{Copying, Read};
use file::{Ended, File};

/// The timer after which a damaged checkpoint may be copied again.
const ASK_AGAIN: TimerId = TimerId(1);
/// Whole checkpoints travel: if they come damaged again and again, that is as often as it happens.
const ASK_AGAIN_AFTER: Micros = Micros::from_millis(10_000);

/// The timer of a node without a usable beginning, which looks for a checkpoint among the other members of its group.
const LOOK: TimerId = TimerId(2);
const LOOK_EVERY: Micros = Micros::from_millis(1_000);
/// The number of looks between two requests for a new checkpoint.
const WANT_EVERY: u32 = 10;

const NOT_FOR_IT: &str = "the checkpointer was sent a message that is not for it";

/// The log of a node that has no usable beginning: no checkpoint on its disk covers what comes before that log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeedsCheckpoint {
    /// The node needs a checkpoint of this epoch or a later one.
    pub needed: Epoch,
    /// Epoch of the last entry of its log.
    pub reach: Epoch,
}

/// The settings of a checkpointer.
#[derive(Clone, Debug)]
pub struct CheckpointSettings {
    /// The cluster.
    pub topology: Topology,
    /// The address of this role; it has the same number on the other nodes.
    pub me: Address,
    /// The sequencer of this node.
    pub sequencer: Address,
    /// The exchange of this node, where there are other partitions.
    pub exchange: Option<Address>,
    /// The log of this node.
    pub log: Address,
    /// The log and the receive journal are trimmed.
    pub trims: bool,
    /// The shards of this node.
    pub shards: Vec<Address>,
    /// The owner of the state, as in the log.
    pub identity: Vec<u8>,
    /// The number of complete checkpoints that are kept.
    pub keep: usize,
    /// About how many bytes of one a member is given at a time.
    pub piece: usize,
    /// The node executes nothing: it keeps copies of what a member of its group has made.
    pub only_copies: bool,
    /// A checkpoint counts without those of the other partitions: a node that begins from it asks them for nothing of before.
    pub seals_alone: bool,
    /// Primaries may change, and what was executed be lost with one: only what cannot be counts.
    pub primaries_change: bool,
    /// Bugs that a test has planted.
    pub bugs: Bugs,
}

/// The role.
pub struct Checkpointer<E, M> {
    settings: CheckpointSettings,
    /// The one that is being made.
    current: Option<File>,
    /// Pieces of the checkpoints after it.
    early: BTreeMap<Epoch, Vec<(Address, Saving)>>,
    /// The last epoch that a checkpoint was begun of, or that anything has come for.
    newest: Epoch,
    /// A checkpoint whose file is whole. The input until then may not be on disk yet.
    whole: Option<Epoch>,
    /// A checkpoint that is saved and not complete.
    saved: Option<Epoch>,
    /// A checkpoint that is being sealed.
    sealing: Option<Seal>,
    /// Complete ones, and when they became that.
    complete: BTreeMap<Epoch, Millis>,
    /// Complete ones that turned out to be damaged at the start: they are not got from a member before a while has passed.
    refused: BTreeSet<Epoch>,
    /// Files that are good for nothing: they go when the next checkpoint is begun.
    leftovers: BTreeSet<String>,
    /// The checkpoints that other nodes have.
    others: BTreeMap<NodeId, Has>,
    /// A checkpoint that is being copied from a member.
    copying: Option<Copying>,
    /// The node has no usable beginning: it does nothing but get one.
    needs: Option<NeedsCheckpoint>,
    /// The number of looks for one.
    looks: u32,
    /// The reads for members, by token.
    reads: BTreeMap<u64, Read>,
    /// The driver knows that one is being made.
    is_making: bool,
    /// The epoch up to which nothing can be lost with a primary.
    stable: Epoch,
    /// The latest word to log and journal on it.
    covered: Covered,
    /// The disk requests under way, by token.
    asked: BTreeMap<u64, Asked>,
    next_token: u64,
    /// The reason why the last one failed.
    failure: Option<String>,
    counts: Counts,
    marker: std::marker::PhantomData<fn() -> (E, M)>,
}

/// The purpose of a disk request.
#[derive(Clone, Copy, Debug)]
enum Asked {
    /// More of the file of an epoch.
    File(Epoch),
    /// The seal of the one that is being sealed.
    Seal,
    /// The removal of files that are not needed.
    Clean,
}

#[derive(Debug, Default)]
struct Counts {
    complete: u64,
    given_up: u64,
    bytes: u64,
}

impl<E, M: Carrier<E>> Checkpointer<E, M> {
    /// A checkpointer of a directory in which there are some already. Of those that are `refused` nothing is kept.
    pub fn new(settings: CheckpointSettings, found: &[Found], refused: &[Epoch]) -> Checkpointer<E, M> {
        let mut checkpointer = Checkpointer {
            settings,
            current: None,
            early: BTreeMap::new(),
            newest: found.last().map_or(Epoch(0), |found| found.epoch),
            whole: None,
            saved: None,
            sealing: None,
            complete: BTreeMap::new(),
            refused: refused.iter().copied().collect(),
            leftovers: BTreeSet::new(),
            others: BTreeMap::new(),
            copying: None,
            needs: None,
            looks: 0,
            reads: BTreeMap::new(),
            is_making: false,
            stable: Epoch(0),
            covered: Covered::default(),
            asked: BTreeMap::new(),
            next_token: 0,
            failure: None,
            counts: Counts::default(),
            marker: std::marker::PhantomData,
        };
        for found in found {
            let is_good = found.is_complete() && !refused.contains(&found.epoch);
            if found.is_complete() && !is_good {
                checkpointer.failure = Some(format!("the checkpoint of epoch {} is damaged", found.epoch));
            }
            match found.seal.filter(|_| is_good) {
                Some(seal) => {
                    checkpointer.complete.insert(seal.epoch, seal.at);
                }
                None => checkpointer.leftovers.extend(found.files.iter().cloned()),
            }
        }
        checkpointer
    }

    /// The checkpointer of a node that cannot begin from what it has, and waits for a checkpoint of another member.
    #[must_use]
    pub fn needing(self, needs: NeedsCheckpoint) -> Checkpointer<E, M> {
        Checkpointer { needs: Some(needs), ..self }
    }

    /// The epoch and the time of the newest complete checkpoint.
    pub fn newest(&self) -> Option<(Epoch, Millis)> {
        self.complete.last_key_value().map(|(epoch, at)| (*epoch, *at))
    }

    fn has(&self) -> Has {
        let complete = self.newest().map_or(Epoch(0), |(epoch, _)| epoch);
        let sealing = self.sealing.map_or(complete, |seal| seal.epoch);
        Has { saved: self.saved.unwrap_or(sealing), complete }
    }

    fn ask(&mut self, what: Asked, ops: Vec<DiskOp>, out: &mut Outbox<M>) {
        self.next_token += 1;
        self.asked.insert(self.next_token, what);
        out.disk(DiskRequest::in_background(self.next_token, ops));
    }

    fn report_to_others(&self, out: &mut Outbox<M>) {
        let me = self.settings.me;
        for node in (0..self.settings.topology.nodes()).map(NodeId).filter(|node| *node != me.node) {
            out.send(Address { node, ..me }, Saving::Has(self.has()));
        }
    }

    // ---- gathering ---------------------------------------------------------------------------------------

    /// Takes a message on the state at the end of an epoch. Every shard sends some on each, in order.
    fn take(&mut self, from: Address, epoch: Epoch, what: Saving, out: &mut Outbox<M>) {
        if self.current.as_ref().is_some_and(|file| file.epoch() == epoch) {
            return self.gather(from, what, out);
        }
        if epoch > self.newest || self.early.contains_key(&epoch) {
            self.newest = self.newest.max(epoch);
            self.early.entry(epoch).or_default().push((from, what));
            return self.begin_next(out);
        }
        if self.settings.shards.contains(&from) {
            out.send(from, Saving::Dropped(epoch));
        }
    }

    /// Passes over a checkpoint: a shard of this node, which has just been started, had executed all up to its epoch
    /// before. If another had not, that one would give pieces that no other completes.
    fn pass_by(&mut self, epoch: Epoch, out: &mut Outbox<M>) {
        const REASON: &str = "a shard had passed it by before the node was started";
        self.newest = self.newest.max(epoch);
        let later = self.early.split_off(&Epoch(epoch.0 + 1));
        for of in std::mem::replace(&mut self.early, later).into_keys() {
            self.drop(of, REASON, out);
        }
        if self.current.as_ref().is_some_and(|file| file.epoch() <= epoch) {
            self.give_up(REASON, out);
        }
    }

    /// Begins the next checkpoint, if there is one to begin and none under way.
    fn begin_next(&mut self, out: &mut Outbox<M>) {
        while self.current.is_none()
            && let Some((epoch, early)) = self.early.pop_first()
        {
            self.begin(epoch, out);
            early.into_iter().for_each(|(from, what)| self.take(from, epoch, what, out));
        }
    }

    fn begin(&mut self, epoch: Epoch, out: &mut Outbox<M>) {
        let settings = &self.settings;
        let partition = settings.topology.partition_of(settings.me.node);
        let header = Header::new(&settings.identity, &settings.topology.layout, partition, epoch);
        let sources = settings.shards.iter().copied().chain([settings.sequencer]);
        let (file, mut ops) = File::begin(&header, sources.collect());
        out.send(settings.sequencer, Saving::Begun(epoch));
        self.clean(out);
        ops.insert(0, DiskOp::Create { file: file_name(epoch), len: 0 });
        self.current = Some(file);
        self.ask(Asked::File(epoch), ops, out);
    }

    /// Takes something of the one that is being made.
    fn gather(&mut self, from: Address, what: Saving, out: &mut Outbox<M>) {
        let Some(file) = &mut self.current else { return };
        match what {
            Saving::Piece { piece, .. } => file.add(from, piece),
            Saving::Last(_) => file.last(from),
            _ => return self.give_up("a shard was still at the one before", out),
        }
        self.write(out);
    }

    /// Has the disk write what has gathered, if it does not write already.
    fn write(&mut self, out: &mut Outbox<M>) {
        let Some(file) = &mut self.current else { return };
        let (epoch, ops) = (file.epoch(), file.next());
        if !ops.is_empty() {
            self.ask(Asked::File(epoch), ops, out);
        }
    }

    /// The disk has done what was asked for last.
    fn written(&mut self, epoch: Epoch, result: Result<(), String>, out: &mut Outbox<M>) {
        let Some(file) = self.current.as_mut().filter(|file| file.epoch() == epoch) else { return };
        if let Err(reason) = result {
            return self.give_up(&reason, out);
        }
        for from in file.written() {
            if self.settings.shards.contains(&from) {
                out.send(from, Saving::Taken(epoch));
            }
        }
        match file.ended() {
            None => self.write(out),
            Some(Ended { bytes }) => {
                self.counts.bytes = bytes;
                self.current = None;
                // Before the exchange can confirm it, shards may have to execute more, and stand still for the next
                // one.
                self.leftovers.extend(self.whole.replace(epoch).map(file_name));
                self.clean(out);
                match self.settings.exchange {
                    Some(exchange) => out.send(exchange, Saving::Covered(epoch)),
                    None => self.is_saved(epoch, out),
                }
                self.begin_next(out);
            }
        }
    }

    /// There will be no checkpoint of the epoch that one was begun of.
    fn give_up(&mut self, reason: &str, out: &mut Outbox<M>) {
        let Some(file) = self.current.take() else { return };
        let epoch = file.epoch();
        self.drop(epoch, reason, out);
        self.leftovers.insert(file_name(epoch));
        self.clean(out);
        self.begin_next(out);
    }

    fn drop(&mut self, epoch: Epoch, reason: &str, out: &mut Outbox<M>) {
        self.counts.given_up += 1;
        self.failure = Some(format!("the checkpoint of epoch {epoch} was given up: {reason}"));
        self.settings.shards.iter().for_each(|shard| out.send(*shard, Saving::Dropped(epoch)));
    }

    /// Drops a checkpoint for which a shard has not kept the state, because it was still at the one before.
    fn skipped(&mut self, from: Address, epoch: Epoch, out: &mut Outbox<M>) {
        if self.current.as_ref().is_some_and(|file| file.epoch() == epoch) {
            return self.gather(from, Saving::Skipped(epoch), out);
        }
        if self.early.remove(&epoch).is_some() || epoch > self.newest {
            self.newest = self.newest.max(epoch);
            self.drop(epoch, "another one was being made", out);
        }
    }

    // ---- what counts -------------------------------------------------------------------------------------

    /// The file of an epoch is whole, and what came in until then will not be asked for again.
    fn is_saved(&mut self, epoch: Epoch, out: &mut Outbox<M>) {
        if self.whole.take_if(|whole| *whole == epoch).is_none() {
            return;
        }
        // An earlier one that was saved and has not become complete is not waited for any more.
        self.leftovers.extend(self.saved.replace(epoch).map(file_name));
        self.clean(out);
        self.report_to_others(out);
    }

    /// Seals what is saved, if all other partitions are as far.
    fn try_seal(&mut self, now: Now, out: &mut Outbox<M>) {
        // With several partitions nothing is saved that may be lost, as the exchange confirms no more than what is stable.
        // Planted, STABLE.
        let may_be_lost = self.settings.primaries_change && !self.settings.bugs.has(Bug::SealUnstable);
        let counts = |epoch: &Epoch| !may_be_lost || *epoch <= self.stable;
        let Some(epoch) = self.saved.filter(counts).filter(|_| self.sealing.is_none()) else { return };
        let (topology, me) = (&self.settings.topology, self.settings.me.node);
        let mut peers = topology.replica(topology.replica_of(me)).filter(|node| *node != me);
        if !self.settings.seals_alone
            && peers.any(|node| self.others.get(&node).is_none_or(|has| has.saved < epoch))
        {
            return;
        }
        let seal = Seal { epoch, at: now.wall.to_millis() };
        self.saved = None;
        self.sealing = Some(seal);
        self.ask(Asked::Seal, seal_ops(seal), out);
    }

    fn sealed(&mut self, result: Result<(), String>, out: &mut Outbox<M>) {
        let Some(Seal { epoch, at }) = self.sealing.take() else { return };
        if let Err(reason) = result {
            self.drop(epoch, &reason, out);
            self.leftovers.extend([file_name(epoch), seal_name(epoch)]);
            return self.clean(out);
        }
        self.completed(Seal { epoch, at }, out);
    }

    /// A checkpoint is complete: the oldest goes if there are more than are kept.
    fn completed(&mut self, Seal { epoch, at }: Seal, out: &mut Outbox<M>) {
        self.complete.insert(epoch, at);
        self.counts.complete += 1;
        self.failure = None;
        while self.complete.len() > self.settings.keep.max(1)
            && let Some((old, _)) = self.complete.pop_first()
        {
            self.leftovers.extend([file_name(old), seal_name(old)]);
        }
        self.clean(out);
        self.report_to_others(out);
    }

    /// Has log and journal trimmed up to the oldest checkpoint, if there are as many as are kept: should the newest be
    /// damaged, the rest is executed again. What a member has no checkpoint of, it may still want: that is kept for it until it is too much.
    fn trim(&mut self, out: &mut Outbox<M>) {
        let settings = &self.settings;
        let (topology, me) = (&settings.topology, settings.me.node);
        if !settings.trims || self.complete.len() < settings.keep.max(1) {
            return;
        }
        let members = topology.group(topology.partition_of(me)).filter(|node| *node != me);
        let theirs =
            members.map(|member| self.others.get(&member).map_or(Epoch(0), |has| has.complete)).min();
        let oldest = self.complete.first_key_value().map_or(Epoch(0), |(epoch, _)| *epoch);
        let by_all = theirs.map_or(oldest, |theirs| theirs.min(oldest)).max(self.covered.by_all);
        let covered = Covered { by_all, by_own: oldest };
        if covered != self.covered {
            self.covered = covered;
            out.send(settings.log, Log::<E>::Trim(covered));
            settings.exchange.iter().for_each(|exchange| out.send(*exchange, Log::<E>::Trim(covered)));
        }
    }

    /// Removes what is good for nothing. Each file by a request of its own, as one may be gone already; a seal before what it
    /// seals. If the disk does not, the next start finds them again.
    fn clean(&mut self, out: &mut Outbox<M>) {
        for file in std::mem::take(&mut self.leftovers) {
            self.ask(Asked::Clean, vec![DiskOp::Remove { file }, DiskOp::SyncDirectory], out);
        }
    }

    fn take_saving(&mut self, now: Now, from: Address, saving: Saving, out: &mut Outbox<M>) {
        match saving {
            Saving::Piece { epoch, .. } | Saving::Last(epoch) => self.take(from, epoch, saving, out),
            Saving::Past(epoch) => self.pass_by(epoch, out),
            Saving::Skipped(epoch) => self.skipped(from, epoch, out),
            Saving::Covered(epoch) => self.is_saved(epoch, out),
            Saving::Has(has) => {
                self.others.insert(from.node, has);
                self.fetch_needed(now, out);
                self.fetch_newer(now, out);
            }
            Saving::Want { epoch, offset } => self.serve(from, epoch, offset, out),
            Saving::Part { epoch, at, offset, bytes, is_last } => {
                self.take_part(from.node, (epoch, at), offset, (bytes, is_last), out);
            }
            Saving::Gone(epoch) => self.is_gone(from.node, epoch, out),
            Saving::Taken(_)
            | Saving::Dropped(_)
            | Saving::Begun(_)
            | Saving::StandsStill(_)
            | Saving::Wanted => out.halt(NOT_FOR_IT),
        }
    }

    fn peer_changed(&mut self, PeerChange { node, state }: PeerChange, out: &mut Outbox<M>) {
        if state == PeerState::Fresh && node != self.settings.me.node {
            // The node may have come back without what it had.
            self.others.remove(&node);
            out.send(Address { node, ..self.settings.me }, Saving::Has(self.has()));
        }
        self.copy_peer(PeerChange { node, state }, out);
    }

    fn disk(&mut self, done: DiskDone, out: &mut Outbox<M>) {
        self.copy_done(&done, out);
        let result = done.result.map_err(|error| error.to_string());
        match self.asked.remove(&done.token) {
            Some(Asked::File(epoch)) => self.written(epoch, result, out),
            Some(Asked::Seal) => self.sealed(result, out),
            Some(Asked::Clean) | None => {}
        }
    }
}

/// The seal of a checkpoint.
fn seal_ops(seal: Seal) -> Vec<DiskOp> {
    let file = seal_name(seal.epoch);
    vec![
        DiskOp::Create { file: file.clone(), len: 0 },
        DiskOp::Write { file: file.clone(), offset: 0, data: vec![Bytes::from(seal.encode())] },
        DiskOp::Sync { file },
        DiskOp::SyncDirectory,
    ]
}

impl<E, M: Carrier<E>> Role for Checkpointer<E, M> {
    type Message = M;

    fn handle(&mut self, now: Now, event: Event<M>, out: &mut Outbox<M>) {
        match event {
            Event::Message { from, message } => match message.try_into() {
                Ok(Message::Saving(saving)) => self.take_saving(now, from, saving, out),
                Ok(Message::Log(Log::Behind(epoch))) => self.fetch(now, epoch, out),
                Ok(Message::Configuration(Configuration::Stable(epoch))) => {
                    self.stable = self.stable.max(epoch);
                }
                Ok(Message::Peer(change)) => self.peer_changed(change, out),
                Ok(_) | Err(_) => out.halt(NOT_FOR_IT),
            },
            Event::Disk(done) => self.disk(done, out),
            Event::Start => {
                if !self.refused.is_empty() {
                    out.set_timer(ASK_AGAIN, ASK_AGAIN_AFTER);
                }
                if self.needs.is_some() {
                    out.set_timer(LOOK, LOOK_EVERY);
                }
            }
            Event::Timer(LOOK) => self.look(now, out),
            Event::Timer(_) => self.refused.clear(),
            Event::Work(_) | Event::Stop => {}
        }
        self.try_seal(now, out);
        self.trim(out);
        // Shards keep aside what they replace, which is all that there is once every record has been changed.
        let is_making = self.current.is_some();
        if std::mem::replace(&mut self.is_making, is_making) != is_making {
            out.memory_grows(is_making);
        }
    }

    fn name(&self) -> &'static str {
        "checkpointer"
    }

    fn check(&self) -> Result<(), String> {
        let oldest = self.complete.first_key_value().map_or(Epoch(0), |(epoch, _)| *epoch);
        let Covered { by_all, by_own } = self.covered;
        if by_all > by_own || by_own > oldest {
            return Err(format!(
                "the log is trimmed up to {by_all} and {by_own}, and the oldest checkpoint is of {oldest}"
            ));
        }
        match self.saved.filter(|epoch| self.complete.contains_key(epoch)) {
            Some(epoch) => Err(format!("the checkpoint of epoch {epoch} is complete and waits to become so")),
            None => Ok(()),
        }
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let (epoch, at) = self.newest().unwrap_or_default();
        report("ordain_checkpoint_epoch", epoch.0 as f64);
        report("ordain_checkpoint_seconds", (at.0 / 1000) as f64);
        report("ordain_checkpoint_saved_epoch", self.has().saved.0 as f64);
        report("ordain_checkpoint_bytes", self.counts.bytes as f64);
        report("ordain_checkpoint_kept", self.complete.len() as f64);
        let writing = self.current.is_some() || self.whole.is_some();
        report("ordain_checkpoint_writing", f64::from(u8::from(writing)));
        report("ordain_checkpoint_completed_total", self.counts.complete as f64);
        report("ordain_checkpoint_given_up_total", self.counts.given_up as f64);
        report("ordain_checkpoint_copying", self.copying.iter().len() as f64);
        report("ordain_checkpoint_needed_epoch", self.needs.map_or(0, |needs| needs.needed.0) as f64);
        report("ordain_checkpoint_failing", f64::from(u8::from(self.failure.is_some())));
    }
}
