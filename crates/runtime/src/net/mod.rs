//! The network edge: takes messages to roles of other nodes there, over TCP.
//!
//! One connection a pair of nodes; the lower number dials. A [handshake](handshake) proves that the two belong
//! together; then the frames of a [`Link`] cross, so what arrives is in order and once until the link says `Fresh`,
//! however often the connection breaks. Everything that a turn of the loop brings for one peer leaves with one write.
//!
//! What a peer can do to this node: nothing before its proof but to hold one of a few short-lived connections. After
//! it, fill a buffer of the size of the largest message. A peer that does not read costs what its link may keep.
//!
//! A role that does not know of a fresh stream yet may still be sending to the old one. What it sends until it has
//! handled the change is dropped with the old stream ([`Departing::changes_seen`]).

mod config;
mod connection;
mod handshake;
mod meeting;
mod output;
mod peer;
mod status;
mod wire;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::Arc;

use mio::net::TcpListener;
use mio::{Interest, Registry};
use ordain_link::Received;
use ordain_model::Micros;
use ordain_role::{Address, Bytes, Event, NodeId, Now, Outbox, PeerChange, PeerState, Role, TimerId, Wire};

use crate::edge::{Departing, Edge, Tokens, Turn};
use connection::{CHUNK, Connection, Intake, READ_AT_ONCE, Stage};
use handshake::{Identity, cluster_id};
use output::Output;
use peer::Peer;
use wire::{Packet, Parcel};

pub use config::{Greeted, Greeting, LinkTls, NetConfig, NetLimits, TakeGreeting};
pub use handshake::Refusal;
pub use status::{NetStatus, PeerStatus, Reach};

const LISTENER: usize = 0;
const TICK: TimerId = TimerId(0);
/// The first wait before dialling again, which doubles up to the longest.
const BACKOFF_MIN: Micros = Micros::from_millis(10);
const BACKOFF_MAX: Micros = Micros::from_millis(1000);
/// How long a refused peer is left alone.
const REFUSED: Micros = Micros::from_millis(2000);
/// A connection that lasts so long was not hopeless: the next is dialled soon.
const LASTING: Micros = Micros::from_millis(100);
/// The time that a handshake may take.
const HANDSHAKE: Micros = Micros::from_millis(2000);
/// The number of connections that may be unproven; more, and the oldest goes.
const UNPROVEN: usize = 64;
/// The number of bytes encoded ahead of what the system takes.
const AHEAD: usize = 1 << 20;
/// Room for most messages.
const ROOM: usize = 128;
/// How often the round trip to a peer is measured that needs no signs of life.
const MEASURED: Micros = Micros::from_millis(1000);
/// An acknowledgement that no message carries goes with the next sign of life, or after so many bytes.
const ACKNOWLEDGE: usize = 256 << 10;

/// The outcome of reading a connection.
enum Verdict {
    Keep,
    /// Close it, for a reason that `/status` shows.
    Close(Option<Refusal>),
}

/// The edge between this node and its peers.
pub struct Network<M> {
    me: Address,
    identity: Identity,
    listener: TcpListener,
    /// Try again to accept at this time: the system had no room.
    accept_at: Option<Micros>,
    peers: Vec<Peer>,
    connections: BTreeMap<usize, Connection>,
    next_connection: usize,
    /// Connections that have something to send, or may have: others are not visited.
    sending: Vec<usize>,
    /// Connections that have brought more than a turn's share.
    reading: Vec<usize>,
    /// What is due next has to be found anew. Not after each message of a peer, which only puts off its loss: the
    /// timer that was set finds that out.
    is_rescheduled: bool,
    watchers: Vec<u16>,
    /// By the place in `watchers`: how many changes of peers the role was sent.
    changes_sent: Vec<u64>,
    limits: NetLimits,
    /// The buffer of one read.
    scratch: Box<[u8]>,
    procedures: Arc<ordain_model::Registry>,
    tls: Option<LinkTls>,
    status: NetStatus,
    is_news: bool,
    timer_at: Option<Micros>,
    greeting: Option<Greeting>,
    sockets: Option<(Registry, Tokens)>,
    messages: PhantomData<fn() -> M>,
}

impl<M> fmt::Debug for Network<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("me", &self.me).field("peers", &self.peers).finish_non_exhaustive()
    }
}

impl<M: Wire + From<PeerChange>> Network<M> {
    /// An edge that listens already and dials when it is started.
    ///
    /// # Errors
    /// If the listener cannot be made non-blocking.
    pub fn new(config: NetConfig) -> io::Result<Network<M>> {
        let NetConfig { me, listener, peers, cluster, secret, fingerprint, life, watchers, delays, .. } =
            config;
        listener.set_nonblocking(true)?;
        let peers = peers.into_iter().filter(|(node, _)| *node != me.node);
        let peer = |at: (NodeId, SocketAddr)| {
            let delay = delays.get(&at.0).copied().unwrap_or_default();
            Peer::new(at, delay, life, config.limits.kept, watchers.len())
        };
        Ok(Network {
            me,
            identity: Identity { node: me.node, life, cluster: cluster_id(&cluster), fingerprint, secret },
            listener: TcpListener::from_std(listener),
            accept_at: None,
            peers: peers.map(peer).collect(),
            connections: BTreeMap::new(),
            next_connection: LISTENER + 1,
            sending: Vec::new(),
            reading: Vec::new(),
            is_rescheduled: true,
            changes_sent: vec![0; watchers.len()],
            watchers,
            limits: config.limits,
            scratch: vec![0; CHUNK].into(),
            procedures: config.procedures,
            tls: config.tls,
            status: NetStatus::default(),
            is_news: true,
            timer_at: None,
            greeting: None,
            sockets: None,
            messages: PhantomData,
        })
    }

    /// Gives the edge a greeting for every peer.
    #[must_use]
    pub fn greeting(mut self, greeting: Greeting) -> Network<M> {
        self.greeting = Some(greeting);
        self
    }

    /// The state of the peers, which goes on being refreshed.
    pub fn status(&self) -> NetStatus {
        self.status.clone()
    }

    /// After how much silence a peer is lost: what is held back on purpose does not count, here or there.
    fn patience(&self, peer: &Peer) -> Micros {
        self.limits.lost_after.plus(peer.delay).plus(peer.delay)
    }

    /// Sends a change of a peer to the roles that watch peers, and greets a peer whose stream begins.
    fn announce(&mut self, peer: usize, state: PeerState, out: &mut Outbox<M>) {
        let peer = &mut self.peers[peer];
        peer.is_lost = state == PeerState::Lost;
        self.is_news = true;
        self.is_rescheduled = true;
        tracing::info!(node = peer.node.0, ?state, "peer");
        let content = self.greeting.as_ref().map(|greeting| &greeting.content);
        if let Some(content) = content.filter(|content| state == PeerState::Fresh && !content.is_empty()) {
            // Roles send nothing into the stream before they know of it, so this is first.
            let role = self.me.role;
            let parcel = Parcel { from: role, to: role, payload: content.clone(), tail: Bytes::new() };
            let bytes = parcel.bytes();
            peer.link.send(parcel, bytes);
        }
        for (i, role) in self.watchers.iter().enumerate() {
            self.changes_sent[i] += 1;
            if state == PeerState::Fresh {
                peer.fences[i] = self.changes_sent[i];
            }
            // Among the messages of peers, so that it keeps its place between those of two streams.
            let to = Address { node: self.me.node, role: *role };
            out.relayed.push((self.me, to, PeerChange { node: peer.node, state }.into()));
        }
    }

    /// A connection may have something to send.
    fn will_send(&mut self, number: usize) {
        if let Some(connection) = self.connections.get_mut(&number)
            && !std::mem::replace(&mut connection.is_sending, true)
        {
            self.sending.push(number);
        }
    }

    /// Reads what has arrived on a connection, up to a turn's share.
    fn read(&mut self, number: usize, now: Now, out: &mut Outbox<M>) {
        let Some(mut connection) = self.connections.remove(&number) else { return };
        let mut left = READ_AT_ONCE;
        let verdict = loop {
            match connection.read(&mut self.scratch) {
                Ok(Intake::Some(bytes)) => {
                    left = left.saturating_sub(bytes);
                    if let Stage::Proven { peer, .. } = connection.stage {
                        let it = &mut self.peers[peer];
                        it.received_at = now.elapsed;
                        it.input_bytes += bytes as u64;
                        it.unacknowledged += bytes;
                    }
                    match self.take(number, &mut connection, now, out) {
                        Verdict::Keep if left > 0 && connection.is_readable => {}
                        verdict => break verdict,
                    }
                }
                Ok(Intake::Nothing) => break Verdict::Keep,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::warn!(%error, "TLS with a peer has failed");
                    let dialled = match connection.stage {
                        Stage::Unproven { dialled, .. } => dialled,
                        Stage::Proven { peer, .. } => Some(peer),
                    };
                    self.refused(dialled, Refusal::Tls);
                    break Verdict::Close(Some(Refusal::Tls));
                }
                Ok(Intake::End) | Err(_) => break Verdict::Close(None),
            }
        };
        match verdict {
            Verdict::Keep => {
                if connection.is_readable {
                    self.reading.push(number);
                }
                self.connections.insert(number, connection);
                // An answer, or an acknowledgement.
                self.will_send(number);
            }
            Verdict::Close(reason) => self.close(number, connection, reason, now),
        }
    }

    /// Takes what a connection has brought.
    fn take(&mut self, number: usize, connection: &mut Connection, now: Now, out: &mut Outbox<M>) -> Verdict {
        if let Stage::Unproven { handshake, dialled, .. } = &mut connection.stage {
            let dialled = *dialled;
            match handshake.take(&self.identity, &mut connection.input, connection.output.small()) {
                Ok(None) => return Verdict::Keep,
                Ok(Some(node)) => {
                    let Some(peer) = self.peers.iter().position(|peer| peer.node == node) else {
                        handshake::refuse(connection.output.small(), Refusal::Node);
                        return Verdict::Close(Some(Refusal::Node));
                    };
                    self.meet(peer, number, connection, now);
                }
                Err(failure) => {
                    // Of one that dialled us there is only its word for who it is.
                    let claimed = |peer: &Peer| Some(peer.node) == failure.claimed;
                    let peer = dialled.or_else(|| self.peers.iter().position(claimed));
                    self.refused(peer, failure.reason);
                    return Verdict::Close(Some(failure.reason));
                }
            }
        }
        let Stage::Proven { peer, .. } = connection.stage else { return Verdict::Keep };
        let verdict = loop {
            match wire::read(&mut connection.input, self.limits.message_bytes) {
                Ok(None) => break Verdict::Keep,
                Ok(Some(packet)) => {
                    let mut answer = Output::default();
                    if let Err(reason) = self.packet(peer, packet, &mut answer, now, out) {
                        break Verdict::Close(reason);
                    }
                    if answer.len() > 0 {
                        self.is_rescheduled = true;
                        connection.push_late(now.elapsed.plus(self.peers[peer].delay), answer);
                    }
                }
                Err(wire::Damaged) => {
                    tracing::warn!(
                        node = self.peers[peer].node.0,
                        "a damaged frame: the connection is closed"
                    );
                    break Verdict::Close(None);
                }
            }
        };
        connection.taken();
        verdict
    }

    /// Handles one packet of a peer.
    fn packet(
        &mut self,
        peer: usize,
        packet: Packet,
        answer: &mut Output,
        now: Now,
        out: &mut Outbox<M>,
    ) -> Result<(), Option<Refusal>> {
        let it = &mut self.peers[peer];
        let (frame, message) = match packet {
            Packet::Ping(number) => {
                wire::write_pong(answer, number);
                return Ok(());
            }
            Packet::Pong(sent) => {
                it.rtt = Some(now.elapsed.since(Micros(sent)));
                return Ok(());
            }
            Packet::Link(frame) => (frame, None),
            Packet::Data { frame, to, payload, .. } if to == self.me.role => {
                let received = it.link.receive(frame.map(|()| Parcel::default()));
                return match received {
                    Received::Message(_) => self.greeted(peer, &payload, out),
                    Received::Gap => Err(None),
                    Received::Nothing | Received::Change(_) => Ok(()),
                };
            }
            Packet::Data { frame, from, to, payload } => {
                // Before it is acknowledged: what cannot be read must not count as received.
                let Some(message) = M::decode_shared(&self.procedures, &payload) else {
                    self.refused(Some(peer), Refusal::Message);
                    return Err(Some(Refusal::Message));
                };
                let from = Address { node: it.node, role: from };
                (frame, Some((from, Address { node: self.me.node, role: to }, message)))
            }
        };
        let kept = it.link.bytes();
        let received = it.link.receive(frame.map(|()| Parcel::default()));
        if it.link.bytes() < kept || matches!(received, Received::Message(_)) {
            // Connections bring us on: if this one breaks, the next is worth dialling soon.
            it.backoff = BACKOFF_MIN;
        }
        match received {
            Received::Nothing => Ok(()),
            Received::Message(_) => {
                out.relayed.extend(message);
                Ok(())
            }
            Received::Gap => {
                tracing::error!(node = it.node.0, "messages are missing on a connection that keeps order");
                Err(None)
            }
            Received::Change(state) => {
                self.announce(peer, state, out);
                Ok(())
            }
        }
    }

    /// Takes the greeting of a peer.
    fn greeted(&mut self, peer: usize, content: &[u8], out: &mut Outbox<M>) -> Result<(), Option<Refusal>> {
        let node = self.peers[peer].node;
        let Some(greeting) = &mut self.greeting else { return Ok(()) };
        match (greeting.take)(node, content) {
            Greeted::Nothing => return Ok(()),
            Greeted::Restart(reason) => out.restart = Some(reason),
            Greeted::Halt(reason) => out.halt(reason),
        }
        Err(None)
    }

    /// Does what is due.
    fn tick(&mut self, now: Now, out: &mut Outbox<M>) {
        self.is_news = true;
        self.is_rescheduled = true;
        if self.accept_at.is_some_and(|at| at <= now.elapsed) {
            self.accept(now);
        }
        let overdue = self.connections.iter().filter(
            |(_, connection)| matches!(connection.stage, Stage::Unproven { by, .. } if by <= now.elapsed),
        );
        for number in overdue.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.close_number(number, now);
        }
        for peer in 0..self.peers.len() {
            if self.is_silent(peer, now) {
                // What has come while this loop was busy, or the process stopped, counts.
                if let Some(number) = self.peers[peer].connection {
                    self.read(number, now, out);
                }
            }
            if self.is_silent(peer, now) {
                if let Some(number) = self.peers[peer].connection {
                    self.close_number(number, now);
                }
                if let Some(state) = self.peers[peer].link.lost() {
                    self.announce(peer, state, out);
                }
            }
            let it = &mut self.peers[peer];
            if let Some(number) = it.connection
                && it.ping_at <= now.elapsed
                && let Some(connection) = self.connections.get_mut(&number)
            {
                it.ping_at = now.elapsed.plus(self.limits.heartbeat);
                // Anything else that was sent is a sign of life too.
                let has_sent = std::mem::take(&mut it.has_sent);
                if !has_sent || now.elapsed.since(it.pinged_at) >= MEASURED {
                    it.pinged_at = now.elapsed;
                    let mut sign = Output::default();
                    wire::write_ping(&mut sign, now.elapsed.0);
                    if let Some(ack) = it.link.poll_ack() {
                        wire::write_link(&mut sign, &ack);
                    }
                    it.unacknowledged = 0;
                    connection.push_late(now.elapsed.plus(it.delay), sign);
                }
            }
            if it.dial_at.is_some_and(|at| at <= now.elapsed) {
                self.dial(peer, now);
            }
        }
        let all: Vec<usize> = self.connections.keys().copied().collect();
        all.into_iter().for_each(|number| self.will_send(number));
    }

    fn is_silent(&self, peer: usize, now: Now) -> bool {
        let peer = &self.peers[peer];
        now.elapsed.since(peer.received_at) >= self.patience(peer)
    }

    /// The time at which something is due next.
    fn next_due(&self) -> Option<Micros> {
        let peers = self.peers.iter().flat_map(|peer| {
            let ping = peer.connection.map(|_| peer.ping_at);
            let silence = peer.connection.is_some() || !peer.is_lost;
            [peer.dial_at, ping, silence.then(|| peer.received_at.plus(self.patience(peer)))]
        });
        let connections = self.connections.values().map(|connection| match connection.stage {
            Stage::Unproven { by, .. } => Some(by),
            Stage::Proven { .. } => connection.late_due(),
        });
        peers.chain(connections).chain([self.accept_at]).flatten().min()
    }

    /// Encodes what a link has to send, and writes as much as the system takes.
    fn send(&mut self, number: usize, now: Now) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.is_sending = false;
        let mut peer = match connection.stage {
            Stage::Proven { peer, .. } => Some(&mut self.peers[peer]),
            Stage::Unproven { .. } => None,
        };
        // What is held back on purpose has to lie somewhere.
        let delay = peer.as_ref().map_or(Micros(0), |peer| peer.delay);
        let ahead = if delay > Micros(0) { self.limits.kept.parted } else { AHEAD };
        let most = ACKNOWLEDGE.min(self.limits.kept.parted / 8);
        loop {
            let mut late = Output::default();
            let mut is_more = false;
            if let Some(it) = &mut peer {
                while connection.pending() + late.len() < ahead
                    && let Some(frame) = it.next_frame(most)
                {
                    is_more = true;
                    let out = if delay > Micros(0) { &mut late } else { &mut connection.output };
                    wire::write_link(out, &frame);
                }
            }
            if late.len() > 0 {
                self.is_rescheduled = true;
                connection.push_late(now.elapsed.plus(delay), late);
            }
            match connection.write(now.elapsed) {
                Ok(count) => peer.iter_mut().for_each(|it| it.output_bytes += count as u64),
                Err(_) => return self.close_number(number, now),
            }
            if !is_more || connection.pending() > 0 {
                // What the system did not take leaves when it makes room, and what is late when its time has come.
                return;
            }
        }
    }
}

impl<M: Wire + From<PeerChange>> Role for Network<M> {
    type Message = M;

    fn handle(&mut self, now: Now, event: Event<M>, out: &mut Outbox<M>) {
        match event {
            Event::Start => {
                for peer in 0..self.peers.len() {
                    self.peers[peer].received_at = now.elapsed;
                    if self.dials(peer) {
                        self.peers[peer].dial_at = Some(now.elapsed);
                    }
                }
                self.tick(now, out);
            }
            Event::Timer(_) => {
                self.timer_at = None;
                self.tick(now, out);
            }
            // A peer's message for this number is a greeting, which was taken, or has no receiver.
            Event::Message { .. } | Event::Disk(_) | Event::Work(_) | Event::Stop => {}
        }
    }

    fn name(&self) -> &'static str {
        "network"
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let sum = |of: fn(&Peer) -> u64| self.peers.iter().map(of).sum::<u64>() as f64;
        report("ordain_network_peers", self.peers.len() as f64);
        report("ordain_network_connected", sum(|peer| u64::from(peer.connection.is_some())));
        report("ordain_network_kept_bytes", sum(|peer| peer.link.bytes() as u64));
        report("ordain_network_input_bytes_total", sum(|peer| peer.input_bytes));
        report("ordain_network_output_bytes_total", sum(|peer| peer.output_bytes));
        report("ordain_network_reconnects_total", sum(|peer| peer.meetings.saturating_sub(1)));
    }
}

impl<M: Wire + From<PeerChange>> Edge for Network<M> {
    fn register(&mut self, registry: Registry, tokens: Tokens) -> io::Result<()> {
        registry.register(&mut self.listener, tokens.token(LISTENER), Interest::READABLE)?;
        self.sockets = Some((registry, tokens));
        Ok(())
    }

    fn ready(&mut self, event: &mio::event::Event, now: Now, out: &mut Outbox<M>) {
        let Some(number) = self.sockets.as_ref().map(|(_, tokens)| tokens.number(event.token())) else {
            return;
        };
        if number == LISTENER {
            return self.accept(now);
        }
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if event.is_writable() {
            connection.is_writable = true;
            self.will_send(number);
        }
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let is_over = event.is_read_closed() || event.is_error();
        if event.is_readable() || is_over {
            connection.is_readable = true;
            connection.is_over |= is_over;
            self.read(number, now, out);
        }
    }

    fn turn(&mut self, now: Now, out: &mut Outbox<M>) -> Turn {
        let begun = std::mem::take(&mut self.reading);
        begun.into_iter().for_each(|number| self.read(number, now, out));
        if self.reading.is_empty() { Turn::Idle } else { Turn::Again }
    }

    fn depart(&mut self, departing: Departing<M>, _now: Now, out: &mut Outbox<M>) {
        let Departing { from, to, changes_seen, message } = departing;
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.node == to.node) else {
            return out.halt(format!("a message is for {:?}, which is not in the configuration", to.node));
        };
        let watchers = self.watchers.iter().position(|role| *role == from.role);
        if watchers.is_some_and(|i| changes_seen < peer.fences[i]) || !peer.link.is_joined() {
            // For a stream that is over.
            return;
        }
        let mut payload = Vec::with_capacity(ROOM);
        let tail = message.encode_shared(&mut payload);
        let parcel = Parcel { from: from.role, to: to.role, payload: payload.into(), tail };
        let bytes = parcel.bytes();
        if !peer.link.send(parcel, bytes) {
            tracing::warn!(
                node = to.node.0,
                "more is kept for a peer than there is room for: the stream is given up"
            );
        }
        if let Some(number) = peer.connection {
            self.will_send(number);
        }
    }

    fn flush(&mut self, now: Now, out: &mut Outbox<M>) {
        let sending = std::mem::take(&mut self.sending);
        sending.iter().for_each(|number| self.send(*number, now));
        // Its memory.
        if self.sending.is_empty() {
            self.sending = sending;
            self.sending.clear();
        }
        if std::mem::take(&mut self.is_news) {
            self.status.publish(self.peers.iter().map(Peer::status));
        }
        if !std::mem::take(&mut self.is_rescheduled) {
            return;
        }
        let due = self.next_due();
        if due != self.timer_at {
            self.timer_at = due;
            match due {
                Some(at) => out.set_timer(TICK, at.since(now.elapsed)),
                None => out.cancel_timer(TICK),
            }
        }
    }

    fn stop(&mut self, _now: Now, _out: &mut Outbox<M>) {}

    /// Always: messages of roles leave as long as the node runs, so there is nothing to wait for.
    fn drained(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
