//! Leading: lines go to every replica, and count as durable by what the replicas have synced.
//!
//! In full mode a replica that is silent for the grace is left out of what is required, by a line that a majority of all
//! replicas and all that are still required must have. When it is back and has caught up it is taken in again.
//!
//! A replica that has lost its disk is brought up to all that is durable. Then a line admits its new generation.

use std::collections::BTreeMap;

use ordain_model::Micros;
use ordain_role::{Bug, Bugs, NodeId, Now, Outbox};

use super::super::configuration::{StorageConfiguration, StorageMember};
use super::super::lines::Lines;
use super::super::message::{Ballot, Content, Line, LogBase, ReplicaState, Storage, Written};
use super::super::quorum::{Barrier, Counting, Synced, majority};
use super::super::{StorageLogSettings, StorageMode};
use super::peer::{Peer, Relay};
use super::standing::Chosen;
use super::telling::StorageObstacle;
use super::{BEHIND_EVERY, PATIENCE, Stage, StorageLog};
use crate::entry::EntryType;
use crate::message::{Carrier, Log};

/// A replica that has spoken within this time lives.
const ALIVE: Micros = Micros::from_millis(500);

/// The names of the gauges of how many lines a replica lacks, by its place among the replicas.
const LAGS: [&str; 7] = [
    "ordain_storage_lag_lines{replica=\"0\"}",
    "ordain_storage_lag_lines{replica=\"1\"}",
    "ordain_storage_lag_lines{replica=\"2\"}",
    "ordain_storage_lag_lines{replica=\"3\"}",
    "ordain_storage_lag_lines{replica=\"4\"}",
    "ordain_storage_lag_lines{replica=\"5\"}",
    "ordain_storage_lag_lines{replica=\"6\"}",
];

/// The state of a server that leads, or will when the first line of its ballot is durable.
#[derive(Debug)]
pub(super) struct Leading {
    pub ballot: Ballot,
    counting: Counting,
    peers: Vec<Peer>,
    /// The last line of the log that it has taken.
    taken: Line,
    /// The time of the last change of the configuration.
    changed: Micros,
    /// How many replicas have not spoken lately.
    silent: usize,
    /// The newest configuration line says who counted before: once it is durable another one says that, for all disks to know.
    is_change: bool,
}

impl Leading {
    /// Returns the replicas to ask for the lines that a peer needs next, and the ballot to ask under. Replicas whose logs match this leader's that far
    /// are asked under its ballot, also for lines that they do not know to be durable; without any, all replicas that are heard of are asked.
    fn sources(&self, place: usize, now: Micros) -> (Vec<NodeId>, Ballot) {
        let of = &self.peers[place];
        let others = self.peers.iter().filter(|peer| peer.node != of.node && peer.is_heard(now, PATIENCE));
        let (matched, others): (Vec<&Peer>, Vec<&Peer>) = others.partition(|peer| peer.matched >= of.next);
        let (sources, ballot) = if matched.is_empty() { (others, Ballot(0)) } else { (matched, self.ballot) };
        (sources.into_iter().map(|peer| peer.node).collect(), ballot)
    }

    /// Writes the first line of a ballot behind those of the log that was chosen: of an empty one, who counts from now on. `None` if
    /// that log is of a larger ballot.
    pub fn begin(
        settings: &StorageLogSettings,
        ballot: Ballot,
        (lines, chosen): (&mut Lines, &Chosen),
        sealed: &BTreeMap<NodeId, ReplicaState>,
        now: Micros,
    ) -> Option<Leading> {
        let taken = lines.last();
        let replicas = &settings.replicas;
        let first = !chosen.configuration.has_begun();
        let configuration = match first {
            true => StorageConfiguration {
                counted: sealed
                    .iter()
                    .map(|(node, state)| StorageMember { node: *node, generation: state.generation })
                    .collect(),
                required: replicas.clone(),
                before: Vec::new(),
                is_first: true,
            },
            false => chosen.configuration.clone(),
        };
        let content = if first { Content::Configuration(configuration.clone()) } else { Content::Begin };
        let lsn = lines.push(Written { ballot, content })?;
        let peer = |node: &NodeId| {
            let state = sealed.get(node);
            let known = state.map(|state| state.generation).or(configuration.generation(*node));
            let member = StorageMember { node: *node, generation: known.unwrap_or_default() };
            let has_all = state.is_some_and(|state| state.last == taken);
            Peer::new(member, if has_all { taken.lsn } else { 0 }, lsn, now)
        };
        let peers = replicas.iter().map(peer).collect();
        let by_one = settings.bugs.has(Bug::DurableByOne);
        let counting = Counting {
            // Planted, ONE-LOG.
            mode: if by_one { StorageMode::Quorum } else { settings.mode },
            majority: if by_one { 1 } else { majority(replicas.len()) },
            configuration: if chosen.is_open { configuration.previous() } else { configuration.clone() },
            barriers: vec![Barrier { lsn, configuration }],
            is_beginning: true,
            is_founding: first || chosen.is_founding(),
        };
        let is_change = !chosen.configuration.before.is_empty();
        let mut leading = Leading { ballot, counting, peers, taken, changed: now, silent: 0, is_change };
        if settings.mode == StorageMode::Quorum && leading.counting.newest().required != *replicas {
            // Of a time when the region was in full mode.
            let counted = leading.counting.newest().counted.clone();
            let required = replicas.clone();
            let next = StorageConfiguration { counted, required, ..StorageConfiguration::default() };
            leading.configure(next, lines, now)?;
        }
        Some(leading)
    }

    /// Tells whether the first line of the ballot is durable.
    pub fn leads(&self) -> bool {
        !self.counting.is_beginning
    }

    /// Tells whether so many disks are full that nothing becomes durable.
    pub fn is_blocked(&self) -> bool {
        let able = self.peers.iter().filter(|peer| !peer.is_full).count();
        let needed = match self.counting.mode {
            StorageMode::Quorum => &[][..],
            StorageMode::Full => &self.counting.newest().required,
        };
        let lacks = |node: &NodeId| self.peers.iter().any(|peer| peer.node == *node && peer.is_full);
        able < majority(self.peers.len()) || needed.iter().any(lacks)
    }

    /// A replica has promised the ballot after the newest log was taken.
    pub fn sealed(&mut self, from: NodeId, ballot: Ballot, state: &ReplicaState) {
        let taken = self.taken;
        if let Some(peer) = self.peer(from)
            && state.promised == ballot
            && peer.generation == state.generation
            && state.last == taken
        {
            peer.matched = peer.matched.max(taken.lsn);
            peer.next = peer.next.max(peer.matched + 1);
        }
    }

    fn peer(&mut self, node: NodeId) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|peer| peer.node == node)
    }

    pub fn reset_peer(&mut self, node: NodeId, now: Now) {
        if let Some(peer) = self.peer(node) {
            peer.reset(peer.matched, now.elapsed);
        }
    }

    /// Writes a line with a configuration. `None` if the log is of a larger ballot.
    fn configure(&mut self, next: StorageConfiguration, lines: &mut Lines, now: Micros) -> Option<u64> {
        let configuration = next.after(&self.counting.configuration);
        self.is_change = !configuration.before.is_empty();
        let content = Content::Configuration(configuration.clone());
        let lsn = lines.push(Written { ballot: self.ballot, content })?;
        self.counting.barriers.push(Barrier { lsn, configuration });
        self.changed = now;
        Some(lsn)
    }

    /// A replica in the generation in which it speaks.
    fn member(&self, peer: &Peer, bugs: Bugs) -> StorageMember {
        // Planted, ONE-LOG.
        let is_planted = bugs.has(Bug::CountForgetful);
        let counted = self.counting.newest().generation(peer.node).filter(|_| is_planted);
        StorageMember { node: peer.node, generation: counted.unwrap_or(peer.generation) }
    }

    /// Tells whether a replica counts in the generation in which it speaks, or will once that is durable.
    fn counts(&self, peer: &Peer) -> bool {
        self.counting.newest().counts(peer.node, peer.generation)
    }

    /// Tells whether a replica has all that is durable, and may soon have what comes.
    fn is_fit(&self, peer: &Peer, durable: u64, now: Micros) -> bool {
        peer.is_heard(now, ALIVE) && !peer.is_full && peer.matched >= durable
    }

    /// The configuration that is to follow the newest, if any is.
    fn next_configuration(&self, grace: Micros, durable: u64, now: Micros) -> Option<StorageConfiguration> {
        // The first line of the log is for all replicas.
        if self.counting.is_founding {
            return None;
        }
        if self.is_change && self.counting.barriers.is_empty() {
            return Some(self.counting.newest().clone());
        }
        self.admission(durable, now).or_else(|| self.next_required(grace, durable, now))
    }

    /// The configuration in which a replica counts that has lost its disk, once it has all that is durable. One at a time:
    /// see module `configuration`.
    fn admission(&self, durable: u64, now: Micros) -> Option<StorageConfiguration> {
        let is_due = |peer: &&Peer| !self.counts(peer) && self.is_fit(peer, durable, now);
        let newcomer = self.peers.iter().find(is_due).filter(|_| self.counting.barriers.is_empty())?;
        Some(self.counting.newest().with(&[newcomer.member()]))
    }

    /// The configuration for full mode: without those that are silent, and with those that have caught up. One that nobody is
    /// silent in waits until the one before it is durable.
    fn next_required(&self, grace: Micros, durable: u64, now: Micros) -> Option<StorageConfiguration> {
        if self.counting.mode != StorageMode::Full {
            return None;
        }
        let newest = self.counting.newest();
        let is_silent = |peer: &Peer| now.since(peer.able) >= grace;
        let stays = |peer: &&Peer| match newest.required.contains(&peer.node) {
            true => !is_silent(peer),
            false => self.counts(peer) && self.is_fit(peer, durable, now),
        };
        let next: Vec<NodeId> = self.peers.iter().filter(stays).map(|peer| peer.node).collect();
        let has_silent = newest.required.iter().any(|node| !next.contains(node));
        let is_settled = self.counting.barriers.is_empty();
        let is_due = is_settled || (has_silent && now.since(self.changed) >= grace);
        let able = self.peers.iter().filter(|peer| !is_silent(peer)).count();
        let is_enough = next.len() >= self.peers.len().min(2) && able >= majority(self.peers.len());
        let is_other = next != newest.required;
        let counted = newest.counted.clone();
        let next = StorageConfiguration { counted, required: next, ..StorageConfiguration::default() };
        (is_other && is_due && is_enough).then_some(next)
    }

    /// The replicas that do not have the first line of the log yet, while it may be that not all have.
    pub fn unmet(&self) -> Vec<NodeId> {
        let first = self.counting.barriers.first().map_or(0, |barrier| barrier.lsn);
        let is_unmet = |peer: &&Peer| self.counting.is_founding && peer.matched < first;
        self.peers.iter().filter(is_unmet).map(|peer| peer.node).collect()
    }

    /// The replicas that have lost their disks and do not count yet.
    pub fn forgetful(&self) -> Vec<NodeId> {
        let is_forgetful = |peer: &&Peer| {
            !self.counts(peer) || !self.counting.configuration.counts(peer.node, peer.generation)
        };
        self.peers.iter().filter(is_forgetful).map(|peer| peer.node).collect()
    }

    /// Tells whether these replicas, in these generations, are a majority.
    pub fn is_majority(&self, members: &[StorageMember]) -> bool {
        self.counting.is_majority(members)
    }

    /// Checks the invariants of the fields.
    pub fn check(&self, lines: &Lines) -> Result<(), String> {
        let last = lines.last().lsn;
        self.peers.iter().try_for_each(|peer| peer.check(last))?;
        let least = self.peers.len().min(2);
        let mut configurations =
            self.counting.barriers.iter().map(|b| &b.configuration).chain([&self.counting.configuration]);
        if configurations.any(|configuration| configuration.required.len() < least) {
            return Err("a configuration requires fewer than two replicas".to_owned());
        }
        self.counting.check()
    }

    pub fn gauges(&self, last: u64, report: &mut dyn FnMut(&'static str, f64)) {
        for (peer, name) in self.peers.iter().zip(LAGS) {
            report(name, (last - peer.matched) as f64);
        }
        report("ordain_storage_silent_replicas", self.silent as f64);
        report("ordain_storage_configuration", self.counting.configuration.required.len() as f64);
        let full = self.peers.iter().filter(|peer| peer.is_full).count();
        report("ordain_storage_full_replicas", full as f64);
    }
}

impl<T: EntryType, M: Carrier<T::Entry>> StorageLog<T, M> {
    /// The leader's peer with this node, if the message is of its ballot.
    fn peer_of(&mut self, node: NodeId, ballot: Ballot) -> Option<&mut Peer> {
        match &mut self.stage {
            Stage::Leads(leading) if leading.ballot == ballot => leading.peer(node),
            _ => None,
        }
    }

    /// Notes the generation in which a replica speaks, and answers whether it counts.
    fn meet(&mut self, now: Now, from: StorageMember, ballot: Ballot) -> bool {
        if let Some(peer) = self.peer_of(from.node, ballot)
            && peer.generation != from.generation
        {
            peer.renew(from.generation, now.elapsed);
        }
        matches!(&self.stage, Stage::Leads(leading) if leading.counting.newest().counted.contains(&from))
    }

    pub(super) fn appended(
        &mut self,
        now: Now,
        from: StorageMember,
        ballot: Ballot,
        answer: (u64, u64, bool),
    ) {
        let (last, counts) = (self.last().lsn, self.meet(now, from, ballot));
        let (number, through, is_full) = answer;
        if let Some(peer) = self.peer_of(from.node, ballot) {
            peer.appended((number, through.min(last), is_full), counts, now.elapsed);
        }
    }

    pub(super) fn unfit(&mut self, now: Now, from: StorageMember, ballot: Ballot, answer: (u64, u64)) {
        let (last, counts) = (self.last().lsn, self.meet(now, from, ballot));
        let before_memory = self.lines.as_ref().map_or(0, |lines| lines.base().lsn);
        let (number, durable) = answer;
        if let Some(peer) = self.peer_of(from.node, ballot) {
            peer.unfit((number, durable.min(last)), before_memory, counts, now.elapsed);
        }
    }

    pub(super) fn tick_leading(&mut self, now: Now, out: &mut Outbox<M>) {
        let Stage::Leads(leading) = &mut self.stage else { return };
        leading.peers.iter_mut().for_each(|peer| peer.tick(now.elapsed));
        leading.silent = leading.peers.iter().filter(|peer| !peer.is_heard(now.elapsed, PATIENCE)).count();
        self.obstacle = StorageObstacle { unmet: leading.unmet(), forgetful: leading.forgetful() };
        if let Some(lines) = &mut self.lines
            && let Some(next) =
                leading.next_configuration(self.settings.full_grace, self.durable, now.elapsed)
        {
            self.counts.reconfigured += 1;
            if leading.configure(next, lines, now.elapsed).is_none() {
                return out.halt("a leader's line is of a smaller ballot than the one before");
            }
        }
        self.tick_confirmations(now, out);
    }

    /// Counts what is durable now, and sends what is to be sent.
    pub(super) fn lead_on(&mut self, now: Now, out: &mut Outbox<M>) {
        let Stage::Leads(leading) = &mut self.stage else { return };
        let of =
            |peer: &Peer| Synced { member: leading.member(peer, self.settings.bugs), line: peer.matched };
        let synced: Vec<Synced> = leading.peers.iter().map(of).collect();
        let durable = leading.counting.count(&synced);
        let is_blocked = leading.is_blocked();
        if let Some(durable) = durable.filter(|durable| *durable > self.durable) {
            self.hand_on(durable, out);
        }
        if durable.is_some() && self.is_full && !is_blocked {
            self.is_full = false;
            out.send(self.appender, Log::Writable);
        }
        self.begin_round(now, out);
        self.send_lines(now, out);
    }

    fn send_lines(&mut self, now: Now, out: &mut Outbox<M>) {
        let (Stage::Leads(leading), Some(lines)) = (&mut self.stage, &self.lines) else { return };
        let (me, message_bytes) = (self.settings.me, self.settings.message_bytes);
        let said = (leading.ballot, self.durable);
        let mut late = Vec::new();
        for (place, peer) in leading.peers.iter_mut().enumerate() {
            peer.relay.take_if(|_| peer.next > lines.base().lsn);
            while let Some(message) = peer.next_append(lines, said, message_bytes, now.elapsed) {
                out.send(ordain_role::Address { node: peer.node, ..me }, message);
            }
            if peer.needs_relay(lines) {
                late.push(place);
            }
        }
        late.into_iter().for_each(|place| self.ask_for(place, now, out));
    }

    // ---- lines that are not in memory --------------------------------------------------------------------

    /// Asks another replica for the lines that one needs next.
    fn ask_for(&mut self, place: usize, now: Now, out: &mut Outbox<M>) {
        let Stage::Leads(leading) = &mut self.stage else { return };
        let next = leading.peers[place].next;
        let (others, ballot) = leading.sources(place, now.elapsed);
        let relay = leading.peers[place].relay.get_or_insert_default();
        let waits = relay.question.is_some_and(|(_, at)| now.elapsed.since(at) < PATIENCE);
        if others.is_empty() || waits || now.elapsed < relay.not_before {
            return;
        }
        self.questions += 1;
        let source = others[relay.turn % others.len()];
        relay.turn += 1;
        relay.question = Some((self.questions, now.elapsed));
        let after = super::super::message::After::Lsn(next - 1);
        let fetch = Storage::Fetch { number: self.questions, ballot, after };
        out.send(self.at(source), fetch);
    }

    /// Sends on what a replica has given for another one.
    pub(super) fn relay(
        &mut self,
        now: Now,
        (from, number): (NodeId, u64),
        (previous, mut lines, source_durable): (Line, Vec<Written>, u64),
        out: &mut Outbox<M>,
    ) {
        let (me, durable) = (self.settings.me, self.durable);
        let Stage::Leads(leading) = &mut self.stage else { return };
        // Behind that the replica may have what is not in this leader's log.
        let matched = leading.peer(from).map_or(0, |peer| peer.matched);
        lines.truncate(matched.max(source_durable).saturating_sub(previous.lsn) as usize);
        let said = (leading.ballot, durable);
        let Some((peer, relay)) = leading.peers.iter_mut().find_map(|peer| {
            let mut relay = peer.relay.take_if(|relay| relay.question.is_some_and(|(of, _)| of == number))?;
            relay.question = None;
            Some((peer, relay))
        }) else {
            return;
        };
        if lines.is_empty() {
            // That one knows of no more that is durable.
            let not_before = now.elapsed.plus(ALIVE);
            peer.relay = Some(Relay { not_before, ..relay });
            return;
        }
        self.counts.relayed += 1;
        let message = peer.relayed((previous, lines), said, now.elapsed);
        peer.relay = Some(relay);
        if let Some(message) = message {
            out.send(ordain_role::Address { node: peer.node, ..me }, message);
        }
    }

    /// A replica does not keep what another one needs next. If none does, that one is told.
    pub(super) fn relay_trimmed(
        &mut self,
        now: Now,
        from: NodeId,
        number: u64,
        base: LogBase,
        out: &mut Outbox<M>,
    ) {
        let me = self.settings.me;
        let Stage::Leads(leading) = &mut self.stage else { return };
        let ballot = leading.ballot;
        let asks = |peer: &Peer| {
            let question = peer.relay.as_ref().and_then(|relay| relay.question);
            question.is_some_and(|(of, _)| of == number)
        };
        let Some(place) = leading.peers.iter().position(asks) else { return };
        let (others, _) = leading.sources(place, now.elapsed);
        let peer = &mut leading.peers[place];
        let Some(relay) = &mut peer.relay else { return };
        relay.question = None;
        relay.trimmed.insert(from, base);
        // Only the sources are asked: a replica that is behind itself never answers that it has trimmed the lines.
        if others.iter().all(|node| relay.trimmed.contains_key(node))
            && let Some(base) = relay.trimmed.values().min_by_key(|base| base.last.lsn)
        {
            let behind = Storage::Behind { ballot, base: base.clone() };
            out.send(ordain_role::Address { node: peer.node, ..me }, behind);
            relay.not_before = now.elapsed.plus(BEHIND_EVERY);
            relay.trimmed.clear();
        }
    }
}
