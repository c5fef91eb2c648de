//! Clients that speak bytes: the product's connection servers in the simulated nodes, and virtual connections to them.
//!
//! A node has [`Config::servers`](crate::Config) connection servers, each a role like the others. Clients connect to the first,
//! which shares connections out to all, as a node's listener does. Bytes travel in pieces of any size and take any time; a
//! connection may break between any two of them, or be closed on one side alone. `speakers` draws what is sent.
//!
//! What a server submits to its gateway's sequencers, and what it is answered, is noted in the [`History`] of the run: so
//! every transaction of every session is compared with the serial execution of the log.
//!
//! [`History`]: ordain_checker::History

pub mod cluster;
pub mod server;
pub(crate) mod speakers;
pub(crate) mod wire;

use std::collections::{BTreeMap, BTreeSet};

use ordain_checker::dependencies::history::values_of;
use ordain_checker::sessions::clients_number;
use ordain_checker::{RequestId, Violation, ViolationKind};
use ordain_family::{Incoming, Message as _, places};
use ordain_front::Ends;
use ordain_model::{
    Chunk, ChunkNo, Db, Front, Micros, Millis, OutcomeBatch, ProcedureId, Random, RequestNo, SessionId,
    Snapshot,
};
use ordain_resp::client::{Reply, write_command};
use ordain_role::{Address, Event, NodeId};

use self::speakers::{Terms, list_key};
use crate::node::Slot;
use crate::queue::Happening;
use crate::run::Config;
use crate::simulator::Simulator;
use crate::system::System;
use server::{ServerRole, SharedPort, VirtualHost};
use wire::{VirtualSocket, Way, Wire};

/// The number of a virtual connection in its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionNo(pub(crate) usize);

/// The pieces in which the bytes of a connection travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pieces {
    /// Whatever was sent at once arrives at once.
    Whole,
    /// A few dozen bytes.
    Some,
    /// One byte.
    Bytes,
}

/// A connection.
#[derive(Debug)]
struct Connection {
    node: usize,
    /// The life of the node in which it was made.
    life: u32,
    socket: VirtualSocket,
    pieces: Pieces,
    /// The client that hears of what arrives.
    owner: Option<usize>,
}

/// All connections of a run, and the connection servers that are up.
#[derive(Debug)]
pub(crate) struct Connections {
    all: Vec<Connection>,
    /// Those that are not over.
    live: BTreeSet<usize>,
    ports: BTreeMap<Address, SharedPort>,
    /// A source of its own, so that the rest of a run does not change with what clients send.
    pub(crate) random: Random,
    /// The requests of the transactions that servers have sent: by server, chunk and place in it.
    sent: BTreeMap<(Address, ChunkNo, u32), RequestId>,
    /// Those of sessions: one that is sent again, by whatever server, is the same request.
    of_sessions: BTreeMap<OfSession, RequestId>,
}

/// A request of a session: its number, and what it asks for. The keys of a dependent transaction are found anew each time,
/// so its arguments are left out.
type OfSession = (SessionId, RequestNo, ProcedureId, Db, Vec<u8>);

impl Connections {
    pub(crate) fn new(seed: u64) -> Connections {
        let random = Random::stream(seed, 0x636f_6e6e);
        let (all, live) = (Vec::new(), BTreeSet::new());
        Connections {
            all,
            live,
            ports: BTreeMap::new(),
            random,
            sent: BTreeMap::new(),
            of_sessions: BTreeMap::new(),
        }
    }

    fn has_server(&self, at: Address) -> bool {
        self.ports.contains_key(&at)
    }
}

impl<S: System> Simulator<'_, S> {
    /// Something happens to a virtual connection or to a client that speaks bytes.
    pub(crate) fn happen_to_bytes(&mut self, happening: &Happening<S::Message>) {
        match *happening {
            Happening::Bytes { connection, way, count } => self.bytes_arrive(connection, way, count),
            Happening::EndOfBytes { connection, way } => self.end_arrives(connection, way),
            Happening::Reset { connection } => self.reset(connection),
            Happening::Speak { speaker } => self.speak(speaker),
            Happening::Weary { speaker, connection } => self.weary(speaker, connection),
            _ => {}
        }
    }

    /// A node has started: its connection servers are roles of it.
    pub(crate) fn open_servers(&mut self, number: usize) {
        let node = NodeId(number as u16);
        let life = self.nodes[number].incarnation;
        let hosts: Vec<VirtualHost> = (0..self.config.servers)
            .map(|n| VirtualHost::new(places::GATEWAYS + n, self.connections.random.fork()))
            .collect();
        let servers = self.system.servers(node, life, hosts);
        for (role, server) in (places::GATEWAYS..).zip(servers) {
            let port = SharedPort::default();
            self.connections.ports.insert(Address { node, role }, port.clone());
            let step_us_max = self.connections.random.tail(self.intensity.local_delay_us_max);
            let slot = Slot::new(Box::new(ServerRole::new(server, port)), step_us_max);
            self.nodes[number].roles.insert(role, slot);
            self.wake(number, role);
        }
    }

    /// A node is gone, and its connections with it: their clients hear of it some time after, or when they send.
    pub(crate) fn drop_servers(&mut self, number: usize) {
        self.connections.ports.retain(|at, _| usize::from(at.node.0) != number);
        let life = self.nodes[number].incarnation;
        for connection in self.connections.live.clone() {
            let Connection { node, life: of, socket, .. } = &self.connections.all[connection];
            if *node == number && *of < life && !socket.wire().is_over() {
                // A machine without power says nothing; what comes up in its place does.
                let delay = self.connections.random.tail(self.intensity.down_us_max.max(1_000));
                self.after(delay, Happening::Reset { connection });
            }
        }
    }

    /// Makes a connection to a node, to whichever of its connection servers has the next; `None` if it has none, is down, or
    /// waits for what its disk lacks.
    pub fn dial(&mut self, node: NodeId) -> Option<ConnectionNo> {
        self.dial_for(node, None)
    }

    pub(crate) fn dial_for(&mut self, node: NodeId, owner: Option<usize>) -> Option<ConnectionNo> {
        let at = Address { node, role: places::GATEWAYS };
        if !self.system.is_server(node) || !self.system.takes_clients(node) {
            return None;
        }
        let port = self.connections.ports.get(&at)?;
        let number = self.connections.all.len();
        let random = &mut self.connections.random;
        let (window, pieces) = if self.intensity.is_calm() {
            (usize::MAX, Pieces::Whole)
        } else {
            let window = 1 << random.between(4, 20);
            (window, [Pieces::Whole, Pieces::Whole, Pieces::Some, Pieces::Bytes][random.index(4)])
        };
        let socket = VirtualSocket::new(Wire::new(window));
        let ends =
            Ends { peer: format!("10.0.0.1:{}", 10_000 + number), local: format!("10.0.1.{}:6379", node.0) };
        port.lock().accepted.push((socket.clone(), ends));
        let (life, node) = (self.nodes[usize::from(node.0)].incarnation, usize::from(node.0));
        self.connections.live.insert(number);
        self.connections.all.push(Connection { node, life, socket, pieces, owner });
        self.trace.note(self.now, format_args!("connection {number} to node {node}"));
        self.ring(number);
        Some(ConnectionNo(number))
    }

    /// Sends bytes over a connection. They go nowhere once it is broken or closed.
    pub fn send_bytes(&mut self, connection: ConnectionNo, bytes: &[u8]) {
        self.trace.note(self.now, format_args!("connection {} sends {}", connection.0, bytes.escape_ascii()));
        self.connections.all[connection.0].socket.wire().send(bytes);
        self.carry(connection.0, Way::Up);
    }

    /// Takes the bytes that have arrived for a client.
    pub fn received(&mut self, connection: ConnectionNo) -> Vec<u8> {
        let mut bytes = Vec::new();
        let goes_on = self.connections.all[connection.0].socket.wire().take(&mut bytes);
        if goes_on {
            self.ring(connection.0);
        }
        bytes
    }

    /// True once a client gets nothing more over a connection: the server has closed it, or it is broken.
    pub fn is_over(&self, connection: ConnectionNo) -> bool {
        self.connections.all[connection.0].socket.wire().is_over()
    }

    /// A client sends no more over a connection, and still reads.
    pub fn close_half(&mut self, connection: ConnectionNo) {
        self.connections.all[connection.0].socket.wire().close_half();
        self.carry(connection.0, Way::Up);
    }

    /// A client closes its end of a connection.
    pub fn close(&mut self, connection: ConnectionNo) {
        self.connections.all[connection.0].socket.wire().abandon();
        self.carry(connection.0, Way::Up);
    }

    /// A connection breaks: what is under way in either direction is gone.
    pub fn break_off(&mut self, connection: ConnectionNo) {
        self.reset(connection.0);
    }

    pub(crate) fn reset(&mut self, number: usize) {
        if self.connections.all[number].socket.wire().is_over() {
            return;
        }
        self.trace.note(self.now, format_args!("connection {number} is reset"));
        if self.connections.all[number].socket.wire().break_off() {
            self.ring(number);
        }
        self.client_hears(number);
    }

    /// Schedules the arrival of what was sent.
    fn carry(&mut self, number: usize, way: Way) {
        let Connection { socket, pieces, .. } = &self.connections.all[number];
        let (mut left, ends) = socket.wire().take_unscheduled(way);
        let pieces = *pieces;
        while left > 0 {
            let most = match pieces {
                Pieces::Whole => left,
                Pieces::Some => 1 + self.connections.random.tail(64) as usize,
                Pieces::Bytes => 1,
            };
            let count = most.min(left);
            left -= count;
            let delay = self.connections.random.tail(self.intensity.link_delay_us_max);
            self.after(delay, Happening::Bytes { connection: number, way, count });
        }
        if ends {
            let delay = self.connections.random.tail(self.intensity.link_delay_us_max);
            self.after(delay, Happening::EndOfBytes { connection: number, way });
        }
    }

    /// Bytes arrive.
    pub(crate) fn bytes_arrive(&mut self, number: usize, way: Way, count: usize) {
        let Connection { node, life, socket, .. } = &self.connections.all[number];
        if way == Way::Up && !self.lives(*node, *life) {
            // There is another process, or none.
            return self.reset(number);
        }
        let rings = socket.wire().arrive(way, count);
        self.arrived(number, way, rings);
    }

    /// The end of a direction arrives, if all bytes before it have.
    pub(crate) fn end_arrives(&mut self, number: usize, way: Way) {
        let ended = self.connections.all[number].socket.wire().end(way);
        match ended {
            Some(rings) => self.arrived(number, way, rings),
            None => self.after(
                1 + self.intensity.link_delay_us_max,
                Happening::EndOfBytes { connection: number, way },
            ),
        }
    }

    fn arrived(&mut self, number: usize, way: Way, rings: bool) {
        if rings {
            self.ring(number);
        }
        if way == Way::Down {
            self.client_hears(number);
        }
    }

    /// Has the server of a connection look at its sockets.
    fn ring(&mut self, number: usize) {
        let Connection { node, life, socket, .. } = &self.connections.all[number];
        let (node, role) = (*node, socket.server().unwrap_or(places::GATEWAYS));
        if !self.lives(node, *life) {
            return;
        }
        let at = Address { node: NodeId(node as u16), role };
        let Some(port) = self.connections.ports.get(&at) else { return };
        if !std::mem::replace(&mut port.lock().is_woken, true) {
            let message = Front::Outcomes(OutcomeBatch::default()).into();
            self.push_event(node, role, Event::Message { from: at, message });
        }
    }

    /// True if a role is a connection server.
    pub(crate) fn is_server(&self, at: Address) -> bool {
        self.connections.has_server(at)
    }

    /// The connection servers of a node that is up.
    pub(crate) fn servers_of(&self, node: NodeId) -> Vec<u16> {
        let ports = self.connections.ports.keys().filter(|at| at.node == node);
        ports.map(|at| at.role).collect()
    }

    /// A connection server has made a step: what its sessions have written goes on its way.
    pub(crate) fn server_stepped(&mut self, node: usize) {
        let of_node = |number: &usize| self.connections.all[*number].node == node;
        let live: Vec<usize> = self.connections.live.iter().copied().filter(of_node).collect();
        for number in live {
            self.carry(number, Way::Down);
            if self.connections.all[number].socket.wire().is_over() {
                self.connections.live.remove(&number);
            }
        }
    }

    /// Notes the transactions that a connection server sends.
    pub(crate) fn note_submitted(&mut self, from: Address, sends: &[(Address, S::Message)]) {
        for (_, message) in sends {
            match message.clone().incoming() {
                Incoming::Front(Front::Submit(chunk)) => self.note_chunk(from, &chunk, None),
                Incoming::Front(Front::Read(chunk, snapshot)) => {
                    let snapshot_time = if let Snapshot::At(_, then) = snapshot { Some(then) } else { None };
                    self.note_chunk(from, &chunk, snapshot_time);
                }
                _ => {}
            }
        }
    }

    /// Notes the transactions of a chunk, which may be of an earlier state as of a time that is known.
    fn note_chunk(&mut self, from: Address, chunk: &Chunk, snapshot_time: Option<Millis>) {
        for txn in chunk.txns() {
            let key = (from, chunk.number, txn.index);
            if let Some(known) = self.connections.sent.get(&key) {
                self.history.sent_again(*known);
                continue;
            }
            let mut call = txn.call;
            call.session = call.session.map(|(session, number)| (session, clients_number(number)));
            let args = chunk.args(txn).encoded().to_vec();
            let is_dependent = self.registry.get(call.procedure).is_some_and(|p| p.is_dependent());
            let of_session = call.session.map(|(session, number)| {
                let args = if is_dependent { Vec::new() } else { args.clone() };
                (session, number, call.procedure, call.db, args)
            });
            let again = of_session.as_ref().and_then(|key| self.connections.of_sessions.get(key).copied());
            let request = match again {
                Some(request) => {
                    self.history.sent_again(request);
                    request
                }
                None => self.history.sent(self.now, call, args),
            };
            snapshot_time.into_iter().for_each(|then| self.history.note_snapshot_time(request, then));
            self.connections.of_sessions.extend(of_session.map(|key| (key, request)));
            self.trace.note(
                self.now,
                format_args!(
                    "request {} of {from:?} chunk {} index {} {call:?}",
                    request.0, chunk.number.0, txn.index
                ),
            );
            self.connections.sent.insert(key, request);
        }
    }

    /// Notes the answers to transactions of a connection server.
    pub(crate) fn note_answered(&mut self, at: Address, answerer: (NodeId, u32), batch: &OutcomeBatch) {
        for outcome in &batch.outcomes {
            let key = (at, outcome.chunk, outcome.index);
            let Some(request) = self.connections.sent.get(&key).copied() else { continue };
            let (reply, status) = (batch.reply(outcome), outcome.status);
            let place = self.system.place(outcome.stamp);
            self.trace.note(
                self.now,
                format_args!("answer {} {status:?} {place} {}", request.0, reply.escape_ascii()),
            );
            self.history.note_now(self.now);
            self.history.answered_by(answerer, request, status, outcome.stamp, reply);
        }
    }

    /// True while bytes are under way, or a connection server has something to come to an end with.
    pub(crate) fn is_speaking(&self) -> bool {
        let is_busy = |number: &usize| {
            let connection = &self.connections.all[*number];
            self.lives(connection.node, connection.life) && connection.socket.wire().is_busy()
        };
        let is_owed = |(at, port): (&Address, &SharedPort)| {
            let slot = self.nodes[usize::from(at.node.0)].roles.get(&at.role);
            let port = port.lock();
            port.owed > 0 || !port.accepted.is_empty() || slot.is_some_and(|slot| !slot.mailbox.is_empty())
        };
        self.connections.live.iter().any(is_busy) || self.connections.ports.iter().any(is_owed)
    }

    /// Something has arrived for a client, or its connection is over.
    fn client_hears(&mut self, number: usize) {
        if let Some(client) = self.connections.all[number].owner {
            self.speaker_hears(client, ConnectionNo(number));
        }
    }

    /// True if bytes wait for a client of a connection, or nothing more will come.
    fn has_news(&self, connection: ConnectionNo) -> bool {
        let wire = self.connections.all[connection.0].socket.wire();
        wire.is_over() || wire.has_arrived()
    }

    /// Says something over a connection of its own, at any node that answers without an error, and returns so many replies.
    /// `None`, and a violation, if none does within the bound.
    fn converse(&mut self, bytes: &[u8], count: usize) -> Option<Vec<Reply>> {
        let bound = self.now.plus(self.config.liveness_bound);
        let mut node = 0;
        while self.failed.is_none() && self.now < bound {
            node = (node + 1) % self.nodes.len();
            let Some(connection) = self.dial(NodeId(node as u16)) else {
                self.advance(Micros(10_000));
                continue;
            };
            self.send_bytes(connection, bytes);
            let (mut input, mut replies) = (Vec::new(), Vec::new());
            let patience = self.now.plus(Micros::from_millis(5_000));
            while replies.len() < count && !self.is_over(connection) && self.now < patience {
                if !self.run(patience, |s| !s.has_news(connection)) {
                    break;
                }
                input.extend(self.received(connection));
                while let Ok(Some((reply, len))) = Reply::read(&input) {
                    input.drain(..len);
                    replies.push(reply);
                }
            }
            self.close(connection);
            if replies.len() == count && !replies.iter().any(|reply| matches!(reply, Reply::Error(_))) {
                return Some(replies);
            }
            self.advance(Micros(10_000));
        }
        self.fail(Violation::new(ViolationKind::Stuck, "no node says what the lists are in the end"));
        None
    }

    /// Reads the lists of the clients that speak bytes as they are in the end: in one transaction, since what no client
    /// waits for any more may still take effect, and must then be in all of its lists or in none.
    pub(crate) fn read_lists(&mut self) -> BTreeMap<u64, Vec<u64>> {
        let lists = self.speakers.speech.lists();
        if lists.is_empty() {
            return BTreeMap::new();
        }
        let mut bytes = Vec::new();
        write_command(&[b"SELECT", self.config.spoken_db.0.to_string().as_bytes()], &mut bytes);
        write_command(&[b"MULTI"], &mut bytes);
        // A block that writes is no read of an earlier state.
        write_command(&[b"SET", b"read", b"in the end"], &mut bytes);
        lists.iter().for_each(|list| write_command(&[b"GET", &list_key(*list)], &mut bytes));
        write_command(&[b"EXEC"], &mut bytes);
        let replies = self.converse(&bytes, lists.len() + 4);
        let Some(Reply::Array(values)) = replies.as_ref().and_then(|replies| replies.last()) else {
            return BTreeMap::new();
        };
        let mut found = BTreeMap::new();
        for (list, value) in lists.iter().zip(&values[1..]) {
            if let Reply::Bulk(bytes) = value {
                found.insert(*list, values_of(bytes).unwrap_or_default());
            }
        }
        found
    }

    /// Judges what the clients that speak bytes have said and heard.
    pub(crate) fn judge_speech(&self, lists: &BTreeMap<u64, Vec<u64>>) -> Result<(), Violation> {
        let Config { promise, isolation, relaxed, faults, .. } = self.config;
        self.speakers.speech.judge(lists, Terms { promise, isolation, relaxed, faults })
    }
}
