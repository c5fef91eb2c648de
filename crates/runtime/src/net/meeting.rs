//! Connections made and ended: accepted or dialled, proven by a handshake, refused, closed.

use std::io;
use std::net::SocketAddr;

use mio::Interest;
use mio::net::TcpStream;
use ordain_model::Micros;
use ordain_role::{NodeId, Now, PeerChange, Wire};

use super::connection::{Connection, Stage};
use super::handshake::{Handshake, Refusal};
use super::{BACKOFF_MAX, BACKOFF_MIN, HANDSHAKE, LASTING, Network, REFUSED, UNPROVEN};
use crate::tls::Stream;

impl<M: Wire + From<PeerChange>> Network<M> {
    pub(super) fn dials(&self, peer: usize) -> bool {
        self.me.node < self.peers[peer].node
    }

    pub(super) fn accept(&mut self, now: Now) {
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

    pub(super) fn dial(&mut self, peer: usize, now: Now) {
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

    pub(super) fn dial_later(&mut self, peer: usize, refused: Option<Refusal>, now: Now) {
        if self.dials(peer) {
            let peer = &mut self.peers[peer];
            let delay = if refused.is_some() { REFUSED } else { peer.backoff };
            peer.dial_at = Some(now.elapsed.plus(delay));
            peer.backoff = Micros(peer.backoff.0 * 2).min(BACKOFF_MAX);
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

    /// Takes a connection into use that is proven to be to a peer.
    pub(super) fn meet(&mut self, peer: usize, number: usize, connection: &mut Connection, now: Now) {
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
        it.received_at = now.elapsed;
        it.ping_at = now.elapsed;
        self.is_news = true;
        self.is_rescheduled = true;
    }

    pub(super) fn refused(&mut self, peer: Option<usize>, reason: Refusal) {
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
    pub(super) fn close(&mut self, number: usize, connection: Connection, reason: Option<Refusal>, now: Now) {
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
                        self.peers[peer].backoff = BACKOFF_MIN;
                    }
                    self.dial_later(peer, reason, now);
                    self.is_news = true;
                }
            }
        }
        connection.close();
    }

    /// Closes the connection of a number, if it is there.
    pub(super) fn close_number(&mut self, number: usize, now: Now) {
        if let Some(connection) = self.connections.remove(&number) {
            self.close(number, connection, None, now);
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
