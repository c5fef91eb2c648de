//! The network between nodes: the same [`Link`]s that the runtime keeps, over a network that does what it likes.
//!
//! Every node has an [`End`] toward every other. What a role sends to another node goes into the link there, encoded;
//! the link's frames cross the network as packets, which are late, lost, doubled and reordered as far as the faults
//! allow and are held up nowhere by the order of connections; and what the other link makes of them is given to the
//! roles at once, in order. Connections break, on each side in its own time, and nodes say hello again. A node that
//! has not been reached for a while is reported as lost.
//!
//! As in the runtime, what a role sends before it has handled the news of a fresh stream is dropped with the old one.

use std::collections::{BTreeMap, BTreeSet};

use ordain_link::{Frame, Life, Link, Received, Room};
use ordain_model::Micros;
use ordain_role::{Address, Bytes, Event, NodeId, PeerChange, PeerState, Wire};

use crate::queue::Happening;
use crate::simulator::Simulator;
use crate::system::System;
use ordain_checker::{Violation, ViolationKind};
use ordain_model::Random;

/// The role number under which the driver itself speaks to roles.
pub(crate) const DRIVER: u16 = u16::MAX;

/// The cost of a message for a link besides its bytes.
const HEAD: usize = 16;

/// A message on its way to another node, between two of its roles.
#[derive(Clone, Debug)]
pub(crate) struct Parcel {
    from: u16,
    to: u16,
    /// The life of the sender when it was sent. It may arrive in another.
    life: u32,
    bytes: Bytes,
}

/// A packet on the network.
#[derive(Clone, Debug)]
pub(crate) enum Packet {
    Frame(Frame<Parcel>),
    /// The sender has nothing to say, and is there.
    Alive,
}

/// A node's side of its link with another.
#[derive(Debug)]
pub(crate) struct End {
    link: Link<Parcel>,
    is_connected: bool,
    /// The last time that packets were known to arrive both ways.
    reached: Micros,
    /// A look at what has to be sent again is scheduled.
    is_watched: bool,
    /// The time until the next look; grows while nothing moves.
    pause: u64,
    /// The latest number that was acknowledged, and the same when it was last looked at.
    acknowledged: u64,
    seen: u64,
    /// The news of fresh streams that each role has yet to handle.
    unhandled: BTreeMap<u16, u32>,
    /// The life of the other node that the last message of a role came from: a greeting with its aborts came first.
    last_life: Option<u32>,
}

impl End {
    fn new(life: Life, room: Room, now: Micros) -> End {
        End {
            link: Link::new(life, room),
            is_connected: false,
            reached: now,
            is_watched: false,
            pause: 0,
            acknowledged: 0,
            seen: 0,
            unhandled: BTreeMap::new(),
            last_life: None,
        }
    }
}

/// The ways between nodes that are cut.
#[derive(Debug, Default)]
pub(crate) struct Cuts(BTreeSet<(usize, usize)>);

impl Cuts {
    /// Draws a partition of nodes, of which each is in a zone: the nodes fall in two, or one is off, or a zone is; both ways or
    /// one. Or some pairs of nodes do not reach each other, though other nodes may reach both.
    pub(crate) fn draw(zones: &[u16], random: &mut Random) -> Cuts {
        let nodes = zones.len();
        let ways = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
        let (kind, off) = (random.below(6), random.index(nodes));
        let side: Vec<bool> = match kind {
            0 => {
                let pairs: BTreeSet<(usize, usize)> = ways.filter(|_| random.chance(400_000)).collect();
                let is_cut =
                    |from: usize, to: usize| from != to && pairs.contains(&(from.min(to), from.max(to)));
                let ways = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
                return Cuts(ways.filter(|(from, to)| is_cut(*from, *to)).collect());
            }
            1 | 2 => (0..nodes).map(|_| random.chance(500_000)).collect(),
            3 if zones.iter().any(|zone| *zone != zones[off]) => {
                zones.iter().map(|zone| *zone == zones[off]).collect()
            }
            4 => (0..nodes).map(|node| node == off).collect(),
            _ => (0..nodes).map(|node| node != off).collect(),
        };
        Cuts::between(&side, random)
    }

    /// Draws a partition that has one node off, both ways or one.
    pub(crate) fn draw_off(nodes: usize, off: usize, random: &mut Random) -> Cuts {
        let is_inverse = random.chance(500_000);
        let side: Vec<bool> = (0..nodes).map(|node| (node == off) != is_inverse).collect();
        Cuts::between(&side, random)
    }

    /// Cuts the ways between two sides, or from the first of them to the other alone.
    fn between(side: &[bool], random: &mut Random) -> Cuts {
        let one_way = random.chance(330_000);
        let is_cut = |from: usize, to: usize| side[from] != side[to] && (side[from] || !one_way);
        let ways = (0..side.len()).flat_map(|from| (0..side.len()).map(move |to| (from, to)));
        Cuts(ways.filter(|(from, to)| is_cut(*from, *to)).collect())
    }

    /// The ways between a member of a group and the others, both ways.
    pub(crate) fn of_member(member: usize, group: &[usize]) -> Cuts {
        let others = group.iter().copied().filter(|other| *other != member);
        Cuts(others.flat_map(|other| [(member, other), (other, member)]).collect())
    }

    #[cfg(test)]
    pub(crate) fn of(ways: &[(usize, usize)]) -> Cuts {
        Cuts(ways.iter().copied().collect())
    }

    /// True if no way is cut.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn mend(&mut self) {
        self.0.clear();
    }

    fn has(&self, from: usize, to: usize) -> bool {
        self.0.contains(&(from, to))
    }
}

impl std::fmt::Display for Cuts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|(from, to)| write!(f, " {from}>{to}"))
    }
}

impl<S: System> Simulator<'_, S> {
    /// A node has started: it has a link to every other, and connects.
    pub(crate) fn open_links(&mut self, here: usize) {
        let life = self.nodes[here].incarnation;
        let parted = usize::try_from(self.intensity.link_bytes_max).unwrap_or(usize::MAX);
        // No more while it is open: that what is under way is bounded is not to rest on it.
        let room = Room { parted, open: parted };
        let others = (0..self.nodes.len()).filter(|there| *there != here);
        let ends: BTreeMap<usize, End> =
            others.map(|there| (there, End::new(Life(u64::from(life) + 1), room, self.now))).collect();
        for there in ends.keys().copied().collect::<Vec<_>>() {
            self.connect_soon(here, there);
            let first = self.random.between(1, self.beat());
            self.after(first, Happening::Beat { here, there, life });
        }
        self.nodes[here].ends = ends;
    }

    /// A node is gone: some of the others notice at once, the rest when they do not hear of it any more.
    pub(crate) fn hang_up(&mut self, gone: usize) {
        for here in 0..self.nodes.len() {
            if self.nodes[here].ends.contains_key(&gone) && self.random.chance(500_000) {
                let delay = self.random.tail(self.intensity.link_delay_us_max);
                let life = self.nodes[here].incarnation;
                self.after(delay, Happening::Part { here, there: gone, life });
            }
        }
    }

    /// A connection breaks: any one, on each side in its time.
    pub(crate) fn break_connection(&mut self) {
        let here = self.random.index(self.nodes.len());
        let there = (here + 1 + self.random.index(self.nodes.len() - 1)) % self.nodes.len();
        self.counts.breaks += 1;
        self.trace.note(self.now, format_args!("connection {here}-{there} breaks"));
        for (here, there) in [(here, there), (there, here)] {
            let life = self.nodes[here].incarnation;
            let delay = self.random.tail(self.intensity.link_delay_us_max);
            self.after(delay, Happening::Part { here, there, life });
        }
    }

    /// One side has noticed that its connection is gone; it dials again soon.
    pub(crate) fn part(&mut self, here: usize, there: usize) {
        let Some(end) = self.nodes[here].ends.get_mut(&there) else { return };
        if std::mem::take(&mut end.is_connected) {
            end.link.parted();
            self.connect_soon(here, there);
        }
    }

    fn connect_soon(&mut self, here: usize, there: usize) {
        let life = self.nodes[here].incarnation;
        let delay = self.random.tail(self.intensity.redial_us_max);
        self.after(delay, Happening::Connect { here, there, life });
    }

    /// One side has a connection.
    pub(crate) fn connect(&mut self, here: usize, there: usize) {
        let Some(end) = self.nodes[here].ends.get_mut(&there) else { return };
        end.is_connected = true;
        end.pause = 0;
        end.link.connected();
        self.pump(here, there);
    }

    /// The time between two signs of life of a node.
    fn beat(&self) -> u64 {
        self.intensity.lost_after_us / 4 + 1
    }

    /// A node looks whether another is still there, and says that it is itself.
    pub(crate) fn look(&mut self, here: usize, there: usize) {
        let (beat, lost_after) = (self.beat(), self.intensity.lost_after_us);
        let life = self.nodes[here].incarnation;
        let Some(end) = self.nodes[here].ends.get_mut(&there) else { return };
        if self.now.since(end.reached).0 >= lost_after {
            if let Some(state) = end.link.lost() {
                self.tell(here, there, state);
            }
            self.part(here, there);
        } else if end.is_connected && !end.link.is_waiting() {
            self.transmit(here, there, Packet::Alive);
        }
        self.after(beat, Happening::Beat { here, there, life });
    }

    /// A role sends something to a role of another node.
    pub(crate) fn post(&mut self, from: Address, to: Address, message: &S::Message) {
        let (here, there) = (from.node.0 as usize, to.node.0 as usize);
        let mut bytes = Vec::new();
        let tail = message.encode_shared(&mut bytes);
        bytes.extend_from_slice(&tail);
        let size = bytes.len() + HEAD;
        let life = self.nodes[here].incarnation;
        let parcel = Parcel { from: from.role, to: to.role, life, bytes: bytes.into() };
        let Some(end) = self.nodes[here].ends.get_mut(&there) else { return };
        if end.unhandled.contains_key(&from.role) || !end.link.send(parcel, size) {
            self.trace.note(self.now, format_args!("no stream that {from:?} knows of to {to:?}: lost"));
        }
        self.pump(here, there);
    }

    /// Sends what a link has to send.
    fn pump(&mut self, here: usize, there: usize) {
        loop {
            let Some(end) = self.nodes[here].ends.get_mut(&there) else { return };
            let Some(frame) = end.link.poll().or_else(|| end.link.poll_ack()) else { break };
            self.transmit(here, there, Packet::Frame(frame));
        }
        let end = self.nodes[here].ends.get(&there).filter(|_| self.config.asks_roles);
        if let Some(reason) = end.and_then(|end| end.link.check().err()) {
            let text = format!("node {here}, its link to node {there}: {reason}");
            return self.fail(Violation::new(ViolationKind::Invariant, text));
        }
        self.watch(here, there);
    }

    /// Sees to it that what is not acknowledged is sent again.
    fn watch(&mut self, here: usize, there: usize) {
        let shortest = self.intensity.retransmit_us;
        let Some(end) = self.nodes[here].ends.get_mut(&there) else { return };
        if !end.is_watched && end.link.is_waiting() {
            end.is_watched = true;
            end.seen = end.acknowledged;
            end.pause = end.pause.clamp(shortest, 16 * shortest);
            let (delay, life) = (end.pause, self.nodes[here].incarnation);
            self.after(delay, Happening::Retransmit { here, there, life });
        }
    }

    /// Some time has passed since something was sent.
    pub(crate) fn retransmit(&mut self, here: usize, there: usize) {
        let Some(end) = self.nodes[here].ends.get_mut(&there) else { return };
        end.is_watched = false;
        if end.link.is_waiting() && end.seen == end.acknowledged {
            end.pause *= 2;
            end.link.resend();
        } else {
            end.pause = 0;
        }
        self.pump(here, there);
    }

    fn transmit(&mut self, from: usize, to: usize, packet: Packet) {
        let is_cut = self.cuts.has(from, to) || self.severed.has(from, to);
        if is_cut || self.random.chance(self.intensity.drop_chance) {
            self.counts.packets_lost += 1;
            return;
        }
        let most = self.intensity.link_delay_us_max;
        let mut delay = self.intensity.link_delay_us_min + self.random.tail(most);
        if self.random.chance(self.intensity.stall_chance) {
            delay += self.random.tail(self.intensity.stall_us_max);
        }
        let mut at = self.now.plus(Micros(delay));
        if !self.random.chance(self.intensity.reorder_chance) {
            let last = self.wires.entry((from, to)).or_default();
            at = at.max(*last);
            *last = at;
        }
        if self.random.chance(self.intensity.duplicate_chance) {
            let again = at.plus(Micros(self.random.tail(8 * most)));
            self.at(again, Happening::Arrive { from, to, packet: packet.clone() });
        }
        self.at(at, Happening::Arrive { from, to, packet });
    }

    /// A packet has come through.
    pub(crate) fn arrive(&mut self, from: usize, to: usize, packet: Packet) {
        let now = self.now;
        let Some(end) = self.nodes[to].ends.get_mut(&from).filter(|end| end.is_connected) else { return };
        let frame = match packet {
            Packet::Frame(frame) => frame,
            Packet::Alive => {
                end.reached = now;
                return;
            }
        };
        match &frame {
            Frame::Data { received, .. } | Frame::Ack { received, .. } => {
                end.acknowledged = *received;
                end.reached = now;
            }
            // One that is not settled may come from a node that does not hear this one.
            Frame::Hello(hello) if hello.is_settled => end.reached = now,
            Frame::Hello(_) => {}
        }
        match end.link.receive(frame) {
            Received::Nothing | Received::Gap => {}
            Received::Message(parcel) => self.unpack(from, to, &parcel),
            Received::Change(state) => {
                end.reached = now;
                self.tell(to, from, state);
            }
        }
        self.pump(to, from);
    }

    fn unpack(&mut self, from: usize, to: usize, parcel: &Parcel) {
        self.trace.cover(&parcel.bytes);
        if parcel.to == DRIVER {
            return self.take_aborts(to, &parcel.bytes);
        }
        let end = self.nodes[to].ends.get_mut(&from);
        let is_first = end.is_some_and(|end| end.last_life.replace(parcel.life) != Some(parcel.life));
        // A message under way from a former life is of a node that may have known less.
        if is_first && parcel.life == self.nodes[from].incarnation {
            let (theirs, own) = (&self.nodes[from].disk, &self.nodes[to].disk);
            let missing = self.system.missing_aborts(theirs, NodeId(to as u16), own);
            if !missing.is_empty() {
                let text = format!(
                    "node {to} took a message of node {from} before the news that an operator has aborted {missing:?}"
                );
                return self.fail(Violation::new(ViolationKind::Invariant, text));
            }
        }
        let address = |node: usize, role| Address { node: NodeId(node as u16), role };
        let (from, to) = (address(from, parcel.from), address(to, parcel.to));
        match S::Message::decode_shared(&self.registry, &parcel.bytes) {
            Some(message) => self.deliver((from, parcel.life), to, message),
            None => {
                let text = format!("a message from {from:?} to {to:?} is not what it was when it is decoded");
                self.fail(Violation::new(ViolationKind::Invariant, text));
            }
        }
    }

    /// Tells those who want to hear it what has become of the stream to another node.
    fn tell(&mut self, here: usize, there: usize, state: PeerState) {
        self.trace.note(self.now, format_args!("node {here} finds node {there} {state:?}"));
        match state {
            PeerState::Fresh => self.counts.streams += 1,
            PeerState::Lost => self.counts.losses += 1,
            PeerState::Back => self.counts.returns += 1,
        }
        if state == PeerState::Fresh {
            let words = self.system.greeting(NodeId(here as u16), &self.nodes[here].disk);
            let life = self.nodes[here].incarnation;
            if let Some(end) = self.nodes[here].ends.get_mut(&there).filter(|_| !words.is_empty()) {
                // Before any role knows of the stream.
                let size = words.len() + HEAD;
                end.link.send(Parcel { from: DRIVER, to: DRIVER, life, bytes: words.into() }, size);
            }
        }
        let change = PeerChange { node: NodeId(there as u16), state };
        let from = Address { node: NodeId(here as u16), role: DRIVER };
        let watchers = self.system.peer_watchers(from.node);
        for role in watchers.into_iter().chain(self.servers_of(from.node)) {
            let node = &mut self.nodes[here];
            let (Some(slot), Some(end)) = (node.roles.get_mut(&role), node.ends.get_mut(&there)) else {
                continue;
            };
            let is_fresh = state == PeerState::Fresh;
            slot.news.push_back(is_fresh.then_some(there));
            if is_fresh {
                *end.unhandled.entry(role).or_default() += 1;
            }
            self.push_event(here, role, Event::Message { from, message: change.into() });
        }
        self.tell_doors(here, change);
    }

    /// A role has handled the news of a stream.
    pub(crate) fn news_handled(&mut self, here: usize, role: u16) {
        let node = &mut self.nodes[here];
        let news = node.roles.get_mut(&role).and_then(|slot| slot.news.pop_front()).flatten();
        let Some(end) = news.and_then(|there| node.ends.get_mut(&there)) else { return };
        if let Some(times) = end.unhandled.get_mut(&role) {
            *times -= 1;
            if *times == 0 {
                end.unhandled.remove(&role);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_cut_off_alone_both_ways_or_one() {
        let mut random = Random::new(5);
        let drawn: BTreeSet<String> =
            (0..100).map(|_| Cuts::draw_off(3, 1, &mut random).to_string()).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [" 0>1 1>0 1>2 2>1", " 0>1 2>1", " 1>0 1>2"]);
    }

    #[test]
    fn every_kind_of_cut_is_drawn_and_no_node_is_cut_from_itself() {
        let mut random = Random::new(5);
        let (mut one_way, mut both_ways, mut one_off, mut halves) = (0, 0, 0, 0);
        let (mut zone_off, mut bridged) = (0, 0);
        for _ in 0..500 {
            let cuts = Cuts::draw(&[0, 0, 1, 1, 2], &mut random);
            assert!((0..5).all(|node| !cuts.has(node, node)));
            let is_mutual = cuts.0.iter().all(|(from, to)| cuts.has(*to, *from));
            *(if is_mutual { &mut both_ways } else { &mut one_way }) += 1;
            let touched = |node: usize| cuts.0.iter().filter(|(a, b)| *a == node || *b == node).count();
            *(if (0..5).any(|node| touched(node) == cuts.0.len()) { &mut one_off } else { &mut halves }) += 1;
            let are_apart = |a: usize, b: usize| cuts.has(a, b) && cuts.has(b, a);
            let zone = (0..5).flat_map(|a| (a + 1..5).map(move |b| (a, b)));
            zone_off += usize::from(zone.clone().all(|(a, b)| are_apart(a, b) == (a < 2 && b >= 2)));
            let reaches = |a: usize, b: usize| a != b && !cuts.has(a, b) && !cuts.has(b, a);
            let is_bridge = |node: usize| {
                zone.clone().any(|(a, b)| are_apart(a, b) && reaches(node, a) && reaches(node, b))
            };
            bridged += usize::from((0..5).any(is_bridge));
        }
        assert!(one_way > 50 && both_ways > 50 && one_off > 50 && halves > 50);
        assert!(zone_off > 5 && bridged > 30, "{zone_off} {bridged}");
    }
}
