//! The network edge: takes messages to roles of other nodes there, over TCP.
//!
//! One connection a pair of nodes; the lower number dials. A [handshake](handshake) proves that the two belong
//! together; then the frames of a [`Link`] cross, so what arrives is in order and once until the link says `Fresh`,
//! however often the connection breaks. Everything that a turn of the loop brings for one peer leaves with one write.
//!
//! What a peer can do to this node: nothing before its proof but to hold one of a few short-lived connections. After
//! it, fill a buffer of the size of the largest message. A peer that does not read costs what its link may keep.
//!
//! A role that has not yet been told of a fresh stream may still be sending to the old one. What it sends until it
//! has handled the news is dropped with the old stream ([`Departing::heard`]).

mod connection;
mod handshake;
mod output;
mod status;
mod wire;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::Arc;

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry};
use ordain_link::{Frame, Life, Link, Received, Room};
use ordain_model::Micros;
use ordain_role::{Address, Bytes, Event, NodeId, Now, Outbox, PeerChange, PeerState, Role, TimerId, Wire};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};

use crate::edge::{Departing, Edge, Tokens, Turn};
use crate::tls::{Current, Stream};
use connection::{CHUNK, Connection, Intake, READ_AT_ONCE, Stage};
use handshake::{Handshake, Identity, cluster_id};
use output::Output;
use wire::{Packet, Parcel};

pub use handshake::Refusal;
pub use status::{NetStatus, PeerStatus, Reach};

const LISTENER: usize = 0;
const TICK: TimerId = TimerId(0);
/// The first wait before dialling again; it doubles up to the second.
const SOON: Micros = Micros::from_millis(10);
const LATER: Micros = Micros::from_millis(1000);
/// How long a refused peer is left alone.
const REFUSED: Micros = Micros::from_millis(2000);
/// A connection that lasts so long was not hopeless: the next is dialled soon.
const LASTING: Micros = Micros::from_millis(100);
/// How long a handshake may take.
const HANDSHAKE: Micros = Micros::from_millis(2000);
/// How many connections may be unproven; more, and the oldest goes.
const UNPROVEN: usize = 64;
/// How much is encoded ahead of what the system takes.
const AHEAD: usize = 1 << 20;
/// Room for most messages.
const ROOM: usize = 128;
/// How often the way to a peer is measured while there is enough else that is said to it.
const MEASURED: Micros = Micros::from_millis(1000);
/// An acknowledgement that no message carries goes with the next sign of life, or after so many bytes.
const ACKNOWLEDGE: usize = 256 << 10;

/// The bounds of a link, and the times that pace it.
#[derive(Clone, Copy, Debug)]
pub struct NetLimits {
    /// How many bytes of messages are kept for one peer until it acknowledges them.
    pub kept: Room,
    /// The largest message that is taken from a peer.
    pub message_bytes: usize,
    /// How often a sign of life is sent to whom nothing else is.
    pub heartbeat: Micros,
    /// After how much silence a peer is lost.
    pub lost_after: Micros,
}

impl Default for NetLimits {
    fn default() -> NetLimits {
        NetLimits {
            // Answers are not sent in pieces: a peer that takes them slowly needs room for what its clients have asked for.
            kept: Room { parted: 64 << 20, open: 1 << 30 },
            message_bytes: 2 << 30,
            heartbeat: Micros::from_millis(100),
            lost_after: Micros::from_millis(500),
        }
    }
}

/// What a network edge is told.
pub struct NetConfig {
    /// Its own address: this node, and the number that [`Options::network`](crate::Options::network) names too.
    pub me: Address,
    /// Where peers of lower numbers knock.
    pub listener: std::net::TcpListener,
    /// All other nodes.
    pub peers: Vec<(NodeId, SocketAddr)>,
    /// The cluster's name; the same on all nodes.
    pub cluster: String,
    /// The cluster's secret; the same on all nodes.
    pub secret: Vec<u8>,
    /// Of whatever else must be the same on all nodes.
    pub fingerprint: u64,
    /// Of this process.
    pub life: Life,
    /// The roles of this node that are told of every [`PeerChange`].
    pub hears: Vec<u16>,
    /// How long everything that leaves is held back, for experiments.
    pub delay: Micros,
    /// The procedures that messages may name.
    pub procedures: Arc<ordain_model::Registry>,
    /// Has the connections be in TLS, with a certificate on both sides.
    pub tls: Option<LinkTls>,
    /// See there.
    pub limits: NetLimits,
}

/// What the connections between nodes need to be in TLS.
#[derive(Clone, Debug)]
pub struct LinkTls {
    /// For the peers that dial this node. It must ask for their certificates.
    pub server: Current<ServerConfig>,
    /// For the peers that this node dials. It must have a certificate to show.
    pub client: Current<ClientConfig>,
    /// What the certificates of those must be for.
    pub names: BTreeMap<NodeId, ServerName<'static>>,
}

/// What this node says first to every peer with which a stream begins, and what becomes of what a peer says first.
///
/// Nothing else of a peer is taken before. So a node that must know something before it executes what comes from a peer can
/// have it written down and begin again.
pub struct Greeting {
    /// What is said; nothing if it is empty.
    pub words: Bytes,
    /// Takes what a peer has said.
    pub heed: Heed,
}

/// Takes what a peer has said first.
pub type Heed = Box<dyn FnMut(NodeId, &[u8]) -> Heeded + Send>;

/// What becomes of a peer's greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heeded {
    /// It changes nothing.
    Nothing,
    /// The node is to be started again from what it has on disk, for a reason; nothing of that peer is taken until then.
    Restart(String),
    /// The node has to stop, for a reason.
    Halt(String),
}

impl fmt::Debug for NetConfig {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetConfig").field("me", &self.me).field("peers", &self.peers).finish_non_exhaustive()
    }
}

/// Another node, as the configuration has it.
#[derive(Debug)]
struct Peer {
    node: NodeId,
    address: SocketAddr,
    link: Link<Parcel>,
    /// The number of the proven connection.
    connection: Option<usize>,
    /// When to dial it; none while a connection is there or under way, and if it is the peer that dials.
    dial_at: Option<Micros>,
    backoff: Micros,
    /// When something was last heard of it.
    heard_at: Micros,
    ping_at: Micros,
    /// When it was last asked for a sign of life, which also tells how long the way is.
    pinged_at: Micros,
    /// Something has left since the last look whether it needs a sign of life.
    has_spoken: bool,
    is_lost: bool,
    refused: Option<Refusal>,
    /// By the place in `hears`: how many messages of the edge's the role must have handled to know of the stream.
    fences: Vec<u64>,
    rtt: Option<Micros>,
    /// How many bytes have come since something left that acknowledges.
    unacknowledged: usize,
    input_bytes: u64,
    output_bytes: u64,
    meetings: u64,
}

impl Peer {
    fn reach(&self) -> Reach {
        match (self.connection, self.refused) {
            (Some(_), _) => Reach::Connected,
            (None, Some(reason)) => Reach::Refused(reason),
            (None, None) if self.is_lost => Reach::Lost,
            (None, None) => Reach::Connecting,
        }
    }

    /// What is to leave: an acknowledgement alone only after so many bytes.
    fn next_frame(&mut self, most: usize) -> Option<Frame<Parcel>> {
        let frame = match self.link.poll() {
            None if self.unacknowledged >= most => self.link.poll_ack(),
            next => next,
        }?;
        if !matches!(frame, Frame::Hello(_)) {
            self.unacknowledged = 0;
            self.has_spoken = true;
        }
        Some(frame)
    }

    fn status(&self) -> PeerStatus {
        PeerStatus {
            node: self.node,
            address: self.address,
            reach: self.reach(),
            rtt: self.rtt,
            input_bytes: self.input_bytes,
            output_bytes: self.output_bytes,
            kept_bytes: self.link.bytes() as u64,
            reconnects: self.meetings.saturating_sub(1),
        }
    }
}

/// What becomes of a connection after its bytes were looked at.
enum Verdict {
    Keep,
    /// Close it, for a reason that people should know.
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
    /// Connections that have something to send, or may have: the others are not looked at.
    sending: Vec<usize>,
    /// Connections that have brought more than a turn's share.
    reading: Vec<usize>,
    /// What is due next has to be found anew. Not after whatever is heard of a peer, which only puts off its loss: the
    /// timer that was set finds that out.
    is_rescheduled: bool,
    hears: Vec<u16>,
    /// By the place in `hears`: how many messages the role has been sent.
    told: Vec<u64>,
    delay: Micros,
    limits: NetLimits,
    /// Where what arrives lies for a moment.
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
        let NetConfig { me, listener, peers, cluster, secret, fingerprint, life, hears, delay, .. } = config;
        listener.set_nonblocking(true)?;
        let peer = |(node, address): (NodeId, SocketAddr)| Peer {
            node,
            address,
            link: Link::new(life, config.limits.kept),
            connection: None,
            dial_at: None,
            backoff: SOON,
            heard_at: Micros(0),
            ping_at: Micros(0),
            pinged_at: Micros(0),
            has_spoken: false,
            is_lost: false,
            refused: None,
            fences: vec![0; hears.len()],
            rtt: None,
            unacknowledged: 0,
            input_bytes: 0,
            output_bytes: 0,
            meetings: 0,
        };
        Ok(Network {
            me,
            identity: Identity { node: me.node, life, cluster: cluster_id(&cluster), fingerprint, secret },
            listener: TcpListener::from_std(listener),
            accept_at: None,
            peers: peers.into_iter().filter(|(node, _)| *node != me.node).map(peer).collect(),
            connections: BTreeMap::new(),
            next_connection: LISTENER + 1,
            sending: Vec::new(),
            reading: Vec::new(),
            is_rescheduled: true,
            told: vec![0; hears.len()],
            hears,
            delay,
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

    /// This edge, which says something to every peer before all else.
    #[must_use]
    pub fn greeting(mut self, greeting: Greeting) -> Network<M> {
        self.greeting = Some(greeting);
        self
    }

    /// What is shown of the peers; it goes on being refreshed.
    pub fn status(&self) -> NetStatus {
        self.status.clone()
    }

    fn dials(&self, peer: usize) -> bool {
        self.me.node < self.peers[peer].node
    }

    /// After how much silence a peer is lost: what is held back on purpose does not count.
    fn patience(&self) -> Micros {
        self.limits.lost_after.plus(self.delay).plus(self.delay)
    }

    /// Tells the roles.
    fn tell(&mut self, peer: usize, state: PeerState, out: &mut Outbox<M>) {
        let peer = &mut self.peers[peer];
        peer.is_lost = state == PeerState::Lost;
        self.is_news = true;
        self.is_rescheduled = true;
        tracing::info!(node = peer.node.0, ?state, "peer");
        let words = self.greeting.as_ref().map(|greeting| &greeting.words).filter(|words| !words.is_empty());
        if let Some(words) = words.filter(|_| state == PeerState::Fresh) {
            // Roles send nothing into the stream before they have heard of it, so this is first.
            let role = self.me.role;
            let parcel = Parcel { from: role, to: role, payload: words.clone(), tail: Bytes::new() };
            let bytes = parcel.bytes();
            peer.link.send(parcel, bytes);
        }
        for (i, role) in self.hears.iter().enumerate() {
            self.told[i] += 1;
            if state == PeerState::Fresh {
                peer.fences[i] = self.told[i];
            }
            // Among the messages of peers, so that it keeps its place between those of two streams.
            let to = Address { node: self.me.node, role: *role };
            out.relayed.push((self.me, to, PeerChange { node: peer.node, state }.into()));
        }
    }

    fn accept(&mut self, now: Now) {
        self.accept_at = None;
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    let unproven = self.connections.iter().filter(|(_, connection)| {
                        matches!(connection.stage, Stage::Unproven { dialled: None, .. })
                    });
                    let unproven: Vec<usize> = unproven.map(|(number, _)| *number).collect();
                    if unproven.len() >= UNPROVEN {
                        self.connections.remove(&unproven[0]);
                    }
                    let Some(nonce) = nonce() else { continue };
                    let stream = match &self.tls {
                        None => Stream::Plain(stream),
                        Some(tls) => match Stream::accepted(stream, tls.server.get()) {
                            Ok(stream) => stream,
                            Err(error) => {
                                tracing::error!(%error, "TLS with a peer cannot begin");
                                continue;
                            }
                        },
                    };
                    self.add(stream, Handshake::accept(nonce), None, Vec::new(), now);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection of a peer");
                    self.accept_at = Some(now.elapsed.plus(LASTING));
                    self.is_rescheduled = true;
                    return;
                }
            }
        }
    }

    fn dial(&mut self, peer: usize, now: Now) {
        let (node, address) = (self.peers[peer].node, self.peers[peer].address);
        self.peers[peer].dial_at = None;
        let mut output = Vec::new();
        let added = self.connect(node, address).zip(nonce()).is_some_and(|(stream, nonce)| {
            let handshake = Handshake::dial(&self.identity, node, nonce, &mut output);
            self.add(stream, handshake, Some(peer), output, now)
        });
        if !added {
            self.dial_later(peer, None, now);
        }
    }

    fn connect(&self, node: NodeId, address: SocketAddr) -> Option<Stream> {
        let socket = TcpStream::connect(address).ok()?;
        let Some(tls) = &self.tls else { return Some(Stream::Plain(socket)) };
        let name = tls.names.get(&node).cloned().unwrap_or_else(|| address.ip().into());
        Stream::dialled(socket, tls.client.get(), name)
            .inspect_err(|error| tracing::error!(%error, node = node.0, "TLS with a peer cannot begin"))
            .ok()
    }

    fn dial_later(&mut self, peer: usize, refused: Option<Refusal>, now: Now) {
        if self.dials(peer) {
            let peer = &mut self.peers[peer];
            let delay = if refused.is_some() { REFUSED } else { peer.backoff };
            peer.dial_at = Some(now.elapsed.plus(delay));
            peer.backoff = Micros(peer.backoff.0 * 2).min(LATER);
        }
    }

    fn add(
        &mut self,
        mut stream: Stream,
        handshake: Handshake,
        dialled: Option<usize>,
        output: Vec<u8>,
        now: Now,
    ) -> bool {
        let number = self.next_connection;
        let Some((registry, tokens)) = &self.sockets else { return false };
        let both = Interest::READABLE | Interest::WRITABLE;
        if registry.register(stream.socket_mut(), tokens.token(number), both).is_err() {
            return false;
        }
        // Only slower without it.
        let _ = stream.socket().set_nodelay(true);
        self.next_connection += 1;
        let by = now.elapsed.plus(HANDSHAKE);
        let stage = Stage::Unproven { handshake: Box::new(handshake), dialled, by };
        let mut connection = Connection::new(stream, stage);
        *connection.output.small() = output;
        self.connections.insert(number, connection);
        self.will_send(number);
        self.is_rescheduled = true;
        true
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
                        it.heard_at = now.elapsed;
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

    /// Looks at what a connection has brought.
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
                        connection.push_late(now.elapsed.plus(self.delay), answer);
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
                    Received::Message(_) => self.heed(peer, &payload, out),
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
            it.backoff = SOON;
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
                self.tell(peer, state, out);
                Ok(())
            }
        }
    }

    /// Takes what a peer says before all else.
    fn heed(&mut self, peer: usize, words: &[u8], out: &mut Outbox<M>) -> Result<(), Option<Refusal>> {
        let node = self.peers[peer].node;
        let Some(greeting) = &mut self.greeting else { return Ok(()) };
        match (greeting.heed)(node, words) {
            Heeded::Nothing => return Ok(()),
            Heeded::Restart(reason) => out.restart = Some(reason),
            Heeded::Halt(reason) => out.halt(reason),
        }
        Err(None)
    }

    /// A connection is proven to be to a peer.
    fn meet(&mut self, peer: usize, number: usize, connection: &mut Connection, now: Now) {
        connection.stage = Stage::Proven { peer, since: now.elapsed };
        let it = &mut self.peers[peer];
        // It has given up the old one, or would not have made another.
        if let Some(old) = it.connection.replace(number) {
            self.connections.remove(&old);
            it.link.parted();
        }
        it.link.connected();
        it.meetings += 1;
        it.refused = None;
        it.dial_at = None;
        it.heard_at = now.elapsed;
        it.ping_at = now.elapsed;
        self.is_news = true;
        self.is_rescheduled = true;
    }

    fn refused(&mut self, peer: Option<usize>, reason: Refusal) {
        let Some(peer) = peer.map(|peer| &mut self.peers[peer]) else {
            tracing::debug!(%reason, "refused a stranger");
            return;
        };
        if peer.refused.replace(reason) != Some(reason) && peer.connection.is_none() {
            tracing::error!(node = peer.node.0, address = %peer.address, %reason, "refused");
        }
        self.is_news = true;
    }

    /// Ends a connection that is in the map no more.
    fn close(&mut self, number: usize, connection: Connection, reason: Option<Refusal>, now: Now) {
        self.is_rescheduled = true;
        match connection.stage {
            Stage::Unproven { dialled: Some(peer), .. } => {
                self.peers[peer].refused = reason;
                self.dial_later(peer, reason, now);
            }
            Stage::Unproven { dialled: None, .. } => {}
            Stage::Proven { peer, since } => {
                if self.peers[peer].connection == Some(number) {
                    self.peers[peer].connection = None;
                    self.peers[peer].link.parted();
                    if now.elapsed.since(since) >= LASTING {
                        self.peers[peer].backoff = SOON;
                    }
                    self.dial_later(peer, reason, now);
                    self.is_news = true;
                }
            }
        }
        connection.last_word();
    }

    /// Closes the connection of a number, if it is there.
    fn close_number(&mut self, number: usize, now: Now) {
        if let Some(connection) = self.connections.remove(&number) {
            self.close(number, connection, None, now);
        }
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
                    self.tell(peer, state, out);
                }
            }
            let it = &mut self.peers[peer];
            if let Some(number) = it.connection
                && it.ping_at <= now.elapsed
                && let Some(connection) = self.connections.get_mut(&number)
            {
                it.ping_at = now.elapsed.plus(self.limits.heartbeat);
                // Whatever else was said is a sign of life too.
                let has_spoken = std::mem::take(&mut it.has_spoken);
                if !has_spoken || now.elapsed.since(it.pinged_at) >= MEASURED {
                    it.pinged_at = now.elapsed;
                    let mut sign = Output::default();
                    wire::write_ping(&mut sign, now.elapsed.0);
                    if let Some(ack) = it.link.poll_ack() {
                        wire::write_link(&mut sign, &ack);
                    }
                    it.unacknowledged = 0;
                    connection.push_late(now.elapsed.plus(self.delay), sign);
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
        now.elapsed.since(self.peers[peer].heard_at) >= self.patience()
    }

    /// When something is due next.
    fn next_due(&self) -> Option<Micros> {
        let patience = self.patience();
        let peers = self.peers.iter().flat_map(|peer| {
            let ping = peer.connection.map(|_| peer.ping_at);
            let silence = peer.connection.is_some() || !peer.is_lost;
            [peer.dial_at, ping, silence.then(|| peer.heard_at.plus(patience))]
        });
        let connections = self.connections.values().map(|connection| match connection.stage {
            Stage::Unproven { by, .. } => Some(by),
            Stage::Proven { .. } => connection.late_due(),
        });
        peers.chain(connections).chain([self.accept_at]).flatten().min()
    }

    /// Puts what a link has to say on its connection's way, and writes, as much as the system takes.
    fn send(&mut self, number: usize, now: Now) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.is_sending = false;
        let mut peer = match connection.stage {
            Stage::Proven { peer, .. } => Some(&mut self.peers[peer]),
            Stage::Unproven { .. } => None,
        };
        // What is held back on purpose has to lie somewhere.
        let ahead = if self.delay > Micros(0) { self.limits.kept.parted } else { AHEAD };
        let most = ACKNOWLEDGE.min(self.limits.kept.parted / 8);
        loop {
            let mut late = Output::default();
            let mut is_more = false;
            if let Some(it) = &mut peer {
                while connection.pending() + late.len() < ahead
                    && let Some(frame) = it.next_frame(most)
                {
                    is_more = true;
                    let out = if self.delay > Micros(0) { &mut late } else { &mut connection.output };
                    wire::write_link(out, &frame);
                }
            }
            if late.len() > 0 {
                self.is_rescheduled = true;
                connection.push_late(now.elapsed.plus(self.delay), late);
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

fn nonce() -> Option<[u8; 32]> {
    let mut nonce = [0; 32];
    let filled = getrandom::fill(&mut nonce);
    if let Err(error) = &filled {
        tracing::error!(%error, "the system has no random numbers: no connection to a peer can be made");
    }
    filled.is_ok().then_some(nonce)
}

impl<M: Wire + From<PeerChange>> Role for Network<M> {
    type Message = M;

    fn handle(&mut self, now: Now, event: Event<M>, out: &mut Outbox<M>) {
        match event {
            Event::Start => {
                for peer in 0..self.peers.len() {
                    self.peers[peer].heard_at = now.elapsed;
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
            // Whatever a peer says to this number, it is nobody's business.
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
        let Departing { from, to, heard, message } = departing;
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.node == to.node) else {
            return out.halt(format!("a message is for {:?}, which is not in the configuration", to.node));
        };
        let hears = self.hears.iter().position(|role| *role == from.role);
        if hears.is_some_and(|i| heard < peer.fences[i]) || !peer.link.is_joined() {
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

    /// What roles still have to say to other nodes is taken there to the end, so there is nothing to wait for.
    fn drained(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Address = Address { node: NodeId(1), role: 3 };
    const THERE: Address = Address { node: NodeId(2), role: 9 };
    const HEARS: u16 = 5;

    /// A message without content, but for what the edge says.
    #[derive(Debug, PartialEq)]
    struct Msg(Option<PeerChange>);

    impl From<PeerChange> for Msg {
        fn from(change: PeerChange) -> Msg {
            Msg(Some(change))
        }
    }

    impl Wire for Msg {
        fn encode(&self, _: &mut Vec<u8>) {}

        fn decode(_: &ordain_model::Registry, bytes: &[u8]) -> Option<Msg> {
            bytes.is_empty().then_some(Msg(None))
        }
    }

    fn edge() -> Network<Msg> {
        let config = NetConfig {
            me: ME,
            listener: std::net::TcpListener::bind("127.0.0.1:0").unwrap(),
            peers: vec![
                (ME.node, "127.0.0.1:1".parse().unwrap()),
                (THERE.node, "127.0.0.1:2".parse().unwrap()),
            ],
            cluster: String::new(),
            secret: Vec::new(),
            fingerprint: 0,
            life: Life(1),
            hears: vec![HEARS],
            delay: Micros(0),
            procedures: Arc::default(),
            tls: None,
            limits: NetLimits::default(),
        };
        Network::new(config).unwrap()
    }

    /// Lets the edge's link to its only peer meet the other side's.
    fn meet(edge: &mut Network<Msg>, other: &mut Link<Parcel>, out: &mut Outbox<Msg>) {
        other.connected();
        edge.peers[0].link.connected();
        loop {
            let (mine, theirs) = (edge.peers[0].link.poll(), other.poll());
            if mine.is_none() && theirs.is_none() {
                return;
            }
            mine.map(|frame| other.receive(frame));
            if let Some(frame) = theirs {
                let packet = Packet::Link(frame.map(|_| ()));
                edge.packet(0, packet, &mut Output::default(), Now::default(), out).unwrap();
            }
        }
    }

    fn kept(edge: &mut Network<Msg>, role: u16, heard: u64) -> bool {
        let before = edge.peers[0].link.bytes();
        let from = Address { node: ME.node, role };
        let departing = Departing { from, to: THERE, heard, message: Msg(None) };
        edge.depart(departing, Now::default(), &mut Outbox::default());
        edge.peers[0].link.bytes() > before
    }

    #[test]
    fn a_role_sends_into_a_stream_once_it_has_handled_the_news_of_it() {
        let (mut edge, mut out) = (edge(), Outbox::default());
        assert!(!kept(&mut edge, HEARS, 0) && !kept(&mut edge, HEARS + 1, 0), "there is no stream yet");
        for life in 1..3 {
            // News of other things: a loss.
            let lost = edge.peers[0].link.lost().unwrap();
            edge.tell(0, lost, &mut out);
            meet(&mut edge, &mut Link::new(Life(life + 10), NetLimits::default().kept), &mut out);
            let of = |state| {
                let to = Address { node: ME.node, role: HEARS };
                (ME, to, Msg(Some(PeerChange { node: THERE.node, state })))
            };
            assert_eq!(std::mem::take(&mut out.relayed), [of(PeerState::Lost), of(PeerState::Fresh)]);
            assert!(!kept(&mut edge, HEARS, 2 * life - 1), "it knows of the loss only");
            assert!(kept(&mut edge, HEARS, 2 * life), "it knows of the stream");
            assert!(kept(&mut edge, HEARS + 1, 0), "nobody tells this one");
        }
    }

    #[test]
    fn a_greeting_is_the_first_message_of_a_stream_and_what_a_peer_says_so_is_heeded() {
        let heed = |node: NodeId, words: &[u8]| match words {
            b"again" => Heeded::Restart(format!("node {} said so", node.0)),
            b"no" => Heeded::Halt("it cannot be".to_owned()),
            _ => Heeded::Nothing,
        };
        let greeting = Greeting { words: Bytes::from_static(b"mine"), heed: Box::new(heed) };
        let mut edge = edge().greeting(greeting);
        let mut out = Outbox::default();
        let mut other = Link::new(Life(11), NetLimits::default().kept);
        let mut first = None;
        other.connected();
        edge.peers[0].link.connected();
        while first.is_none() {
            if let Some(frame) = edge.peers[0].link.poll()
                && let Received::Message(parcel) = other.receive(frame)
            {
                first = Some(parcel);
            }
            if let Some(frame) = other.poll() {
                let packet = Packet::Link(frame.map(|_| ()));
                edge.packet(0, packet, &mut Output::default(), Now::default(), &mut out).unwrap();
                assert!(edge.peers[0].link.is_joined() || !kept(&mut edge, HEARS + 1, 0));
            }
        }
        let first = first.unwrap();
        assert_eq!((first.to, &first.payload[..]), (ME.role, &b"mine"[..]));
        for (sequence, words) in [(1, "theirs"), (2, "again"), (3, "no")] {
            let (mut out, payload) = (Outbox::<Msg>::default(), Bytes::from(words));
            let frame = Frame::Data { to: edge.peers[0].link.end(), sequence, received: 0, payload: () };
            let packet = || Packet::Data {
                frame: frame.clone(),
                from: ME.role,
                to: ME.role,
                payload: payload.clone(),
            };
            let mut take =
                |out: &mut Outbox<Msg>| edge.packet(0, packet(), &mut Output::default(), Now::default(), out);
            let taken = take(&mut out);
            assert_eq!((taken.is_ok(), out.relayed.is_empty()), (sequence == 1, true), "{words}");
            let asked = (out.restart.take(), out.halt.take());
            let expected = [(None, None), (Some("node 2 said so"), None), (None, Some("it cannot be"))];
            let (again, halt) = expected[sequence as usize - 1];
            assert_eq!(asked, (again.map(str::to_owned), halt.map(str::to_owned)), "{words}");
            assert!(take(&mut out).is_ok() && out.is_empty(), "once");
        }
    }

    #[test]
    fn a_message_for_a_node_that_is_not_in_the_configuration_halts() {
        let mut out = Outbox::default();
        let to = Address { node: NodeId(7), role: 1 };
        let departing = Departing { from: ME, to, heard: 0, message: Msg(None) };
        edge().depart(departing, Now::default(), &mut out);
        assert!(out.halt.unwrap().contains("not in the configuration"));
    }
}
