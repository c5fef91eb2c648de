//! The clients and the front doors that they stand at.
//!
//! A front door is a gateway of a node with its connections. A client has one connection and one or more
//! *lanes*, each a closed loop: think, ask, wait for the answer. Several lanes are a pipelining client. A client
//! with a session numbers its requests and sends them again, under the same numbers, whenever it does not know
//! what became of them; one without never does.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_gateway::{Gateway, Ticket};
use ordain_model::{Registry, RequestNo, SessionId};
use ordain_role::NodeId;

use crate::history::RequestId;
use crate::system::FrontDoor;

/// A gateway and who waits at it. It is part of its node's process: a crash takes it.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) node: NodeId,
    pub(crate) place: FrontDoor,
    pub(crate) gateway: Gateway,
    /// Whether the event loop's turn at which the chunk is sent is scheduled.
    pub(crate) flushing: bool,
    next_ticket: u64,
    waiting: BTreeMap<Ticket, Waiter>,
}

/// Whose answer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) request: RequestId,
    /// Which attempt at it, from 1.
    pub(crate) attempt: u32,
    /// The client's number; none for the driver's own probes.
    pub(crate) client: Option<usize>,
}

impl Door {
    pub(crate) fn new(node: NodeId, place: FrontDoor, registry: Arc<Registry>) -> Door {
        let gateway = Gateway::new(place.id, registry);
        Door { node, place, gateway, flushing: false, next_ticket: 0, waiting: BTreeMap::new() }
    }

    /// The process behind the door has gone, and everything it knew.
    pub(crate) fn reset(&mut self) {
        let registry = self.gateway.registry().clone();
        *self = Door::new(self.node, self.place, registry);
    }

    pub(crate) fn ticket(&mut self, waiter: Waiter) -> Ticket {
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        self.waiting.insert(ticket, waiter);
        ticket
    }

    pub(crate) fn redeem(&mut self, ticket: Ticket) -> Option<Waiter> {
        self.waiting.remove(&ticket)
    }
}

/// A client.
#[derive(Debug)]
pub(crate) struct Client {
    /// Where it is connected, or was last.
    pub(crate) door: usize,
    pub(crate) connected: bool,
    pub(crate) session: Option<SessionId>,
    next_request: u64,
    /// What each lane waits for.
    pub(crate) lanes: Vec<Option<RequestId>>,
}

impl Client {
    pub(crate) fn new(door: usize, session: Option<SessionId>, lanes: usize) -> Client {
        Client { door, connected: false, session, next_request: 0, lanes: vec![None; lanes] }
    }

    /// The session and number of the next request.
    pub(crate) fn number(&mut self) -> Option<(SessionId, RequestNo)> {
        let session = self.session?;
        self.next_request += 1;
        Some((session, RequestNo(self.next_request)))
    }

    /// What the lanes wait for, oldest request first.
    pub(crate) fn waiting(&self) -> Vec<RequestId> {
        let mut waiting: Vec<RequestId> = self.lanes.iter().flatten().copied().collect();
        waiting.sort_unstable();
        waiting
    }

    /// The lane that waits for a request.
    pub(crate) fn lane_of(&self, request: RequestId) -> Option<usize> {
        self.lanes.iter().position(|lane| *lane == Some(request))
    }
}
