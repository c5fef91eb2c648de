//! Mailboxes between the connection servers of a node, and what they all share.
//!
//! Whatever is put into a mailbox comes with a wake-up for the owner: an empty batch of outcomes.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ordain_gateway::Ticket;
use ordain_model::{Front, OutcomeBatch, Writer};
use ordain_resp::{ClientId, ControlRequest, NodeInfo};
use ordain_role::{Address, Outbox};

/// The mailboxes of a node's connection servers, their counts of connections, and the contents of INFO.
#[derive(Debug)]
pub struct Mailboxes<A> {
    boxes: Vec<Mutex<Mailbox<A>>>,
    places: Vec<Address>,
    /// Connections ever made; also the last client's id.
    pub(crate) clients: AtomicU64,
    /// Open connections.
    pub(crate) open: AtomicUsize,
    /// Connections turned away.
    pub(crate) refused: AtomicU64,
    /// The parameter latency-monitor-threshold.
    pub(crate) spike_ms: AtomicU64,
    info: Mutex<NodeInfo>,
    /// `info` at the last CONFIG RESETSTAT: INFO counts from there on.
    base: Mutex<NodeInfo>,
    info_version: AtomicU64,
}

/// Contents of the mailbox of one connection server.
#[derive(Debug)]
pub(crate) struct Mailbox<A> {
    /// Accepted connections to serve.
    pub(crate) connections: Vec<A>,
    /// Queries that this server has to add its part to.
    pub(crate) queries: Vec<Arc<ClientQuery>>,
    /// Queries of this server's own that are complete.
    pub(crate) answers: Vec<Arc<ClientQuery>>,
    /// Changed parameters.
    pub(crate) settings: Vec<(&'static str, String)>,
}

impl<A> Default for Mailbox<A> {
    fn default() -> Mailbox<A> {
        Mailbox { connections: Vec::new(), queries: Vec::new(), answers: Vec::new(), settings: Vec::new() }
    }
}

/// A command about the clients of all connection servers: CLIENT LIST or CLIENT KILL.
#[derive(Debug)]
pub(crate) struct ClientQuery {
    pub(crate) request: ControlRequest,
    pub(crate) ticket: Ticket,
    /// The number of the server whose client asks.
    pub(crate) asker: usize,
    /// The number of servers that have not added their part yet.
    pub(crate) left: AtomicUsize,
    pub(crate) killed: AtomicU64,
    pub(crate) lines: Mutex<Vec<(ClientId, String)>>,
}

impl ClientQuery {
    /// The complete reply, encoded.
    pub(crate) fn reply(&self) -> Vec<u8> {
        let mut reply = Vec::new();
        if matches!(self.request, ControlRequest::KillClients(_)) {
            Writer(&mut reply).int(self.killed.load(Ordering::Relaxed) as i64);
        } else {
            let mut lines = std::mem::take(&mut *lock(&self.lines));
            lines.sort_by_key(|(client, _)| *client);
            let text: String = lines.into_iter().map(|(_, line)| line).collect();
            Writer(&mut reply).bulk(text.as_bytes());
        }
        reply
    }
}

/// Locks a mutex, also after a panic of a holder: that has stopped the node already.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<A> Mailboxes<A> {
    /// Mailboxes of the connection servers at these addresses.
    pub fn new(places: Vec<Address>, info: NodeInfo) -> Mailboxes<A> {
        Mailboxes {
            boxes: places.iter().map(|_| Mutex::default()).collect(),
            places,
            clients: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            spike_ms: AtomicU64::new(0),
            info: Mutex::new(info),
            base: Mutex::default(),
            info_version: AtomicU64::new(1),
        }
    }

    /// Updates the contents of INFO.
    pub fn inform(&self, update: impl FnOnce(&mut NodeInfo)) {
        update(&mut lock(&self.info));
        self.info_version.fetch_add(1, Ordering::Release);
    }

    /// The least duration of a latency spike, milliseconds; none if spikes are not recorded.
    pub fn spike_ms(&self) -> Option<u64> {
        Some(self.spike_ms.load(Ordering::Relaxed)).filter(|ms| *ms > 0)
    }

    /// Has INFO count from here on.
    pub(crate) fn reset_statistics(&self) {
        let info = lock(&self.info);
        lock(&self.base).clone_from(&info);
        self.info_version.fetch_add(1, Ordering::Release);
    }

    /// The contents of INFO, counted since the last reset.
    pub(crate) fn info(&self) -> NodeInfo {
        let info = lock(&self.info);
        info.since(&lock(&self.base))
    }

    /// A number that rises whenever the contents of INFO change.
    pub(crate) fn info_version(&self) -> u64 {
        self.info_version.load(Ordering::Acquire)
    }

    /// Open connections, connections ever made, connections turned away.
    pub fn connections(&self) -> (usize, u64, u64) {
        let at = Ordering::Relaxed;
        (self.open.load(at), self.clients.load(at), self.refused.load(at))
    }

    /// The number of connection servers.
    pub(crate) fn count(&self) -> usize {
        self.boxes.len()
    }

    /// The role number of connection server 0, which is the same on all nodes.
    pub(crate) fn first_role(&self) -> u16 {
        self.places[0].role
    }

    /// Empties a server's mailbox.
    pub(crate) fn take(&self, server: usize) -> Mailbox<A> {
        std::mem::take(&mut *lock(&self.boxes[server]))
    }

    /// Puts something into a server's mailbox and wakes it up.
    pub(crate) fn send(
        &self,
        server: usize,
        out: &mut Outbox<impl From<Front>>,
        put: impl FnOnce(&mut Mailbox<A>),
    ) {
        put(&mut lock(&self.boxes[server]));
        self.wake(server, out);
    }

    /// Puts something into the mailbox of each server but one, and wakes these up.
    pub(crate) fn send_to_others(
        &self,
        server: usize,
        out: &mut Outbox<impl From<Front>>,
        put: impl Fn(&mut Mailbox<A>),
    ) {
        for other in (0..self.count()).filter(|other| *other != server) {
            self.send(other, out, &put);
        }
    }

    /// Has a server look into its mailbox, and go on with what it has left undone.
    pub(crate) fn wake(&self, server: usize, out: &mut Outbox<impl From<Front>>) {
        out.send(self.places[server], Front::Outcomes(OutcomeBatch::default()));
    }
}
