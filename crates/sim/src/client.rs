//! The clients and the front doors that they stand at.
//!
//! A front door is a gateway of a node with its connections. A client has one connection and one or more
//! *loops*, each closed: think, ask, wait for the answer. Several loops are a pipelining client. A client
//! with a session numbers its requests and sends them again, under the same numbers and at any node that is there,
//! whenever it does not know what became of them; one without never does.

use std::collections::BTreeMap;

use ordain_gateway::{Dispatcher, Finished, Gateway, Owed, Ticket};
use ordain_model::{Effect, Front, Micros, OutcomeBatch, OutcomeStatus, RequestNo, SessionId, Token};
use ordain_role::{Address, NodeId, PeerChange};

use crate::system::FrontDoor;
use ordain_checker::RequestId;

/// A gateway and who waits at it. It is part of its node's process: a crash takes it.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) node: NodeId,
    pub(crate) address: Address,
    pub(crate) gateway: Gateway,
    pub(crate) dispatcher: Dispatcher,
    /// The step at which the chunk is sent is scheduled.
    pub(crate) flushing: bool,
    next_ticket: u64,
    waiting: BTreeMap<Ticket, Waiter>,
}

/// Whose answer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) request: RequestId,
    /// The number of the attempt, from 1.
    pub(crate) attempt: u32,
    /// The client's number; none for the driver's own probes.
    pub(crate) client: Option<usize>,
}

/// An answer, and whose it is.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) waiter: Waiter,
    pub(crate) status: OutcomeStatus,
    pub(crate) effect: Effect,
    pub(crate) reply: Vec<u8>,
}

/// The end of a request, by the gateway's name for it.
struct Ended {
    ticket: Ticket,
    status: OutcomeStatus,
    effect: Effect,
    reply: Vec<u8>,
}

impl Ended {
    fn of(finished: &Finished<'_>) -> Ended {
        let Finished { ticket, status, stamp, token, reply, .. } = *finished;
        let effect = Effect { stamp, token: token.clone() };
        Ended { ticket, status, effect, reply: reply.to_vec() }
    }
}

impl Door {
    pub(crate) fn new(node: NodeId, door: FrontDoor) -> Door {
        let FrontDoor { address, gateway, router } = door;
        let (dispatcher, waiting) = (Dispatcher::new(router), BTreeMap::new());
        Door { node, address, gateway, dispatcher, flushing: false, next_ticket: 0, waiting }
    }

    /// Takes outcomes: the answers to those who wait.
    pub(crate) fn take_outcomes(&mut self, batch: &OutcomeBatch) -> Vec<Answered> {
        let mut finished = Vec::new();
        self.gateway.take_outcomes(batch, |answer| finished.push(Ended::of(&answer)));
        self.redeem_all(finished)
    }

    /// Takes note of a change of the stream to another node, and returns the answers of unknown end.
    pub(crate) fn change(&mut self, change: PeerChange) -> Vec<Answered> {
        // No clock: the simulator's clients wait until everything is healed.
        let owed = self.dispatcher.change(&mut self.gateway, Micros(0), change);
        self.give_up(owed)
    }

    /// A node has answered the greeting: the same.
    pub(crate) fn greeted(&mut self, node: NodeId) -> Vec<Answered> {
        let owed = self.dispatcher.greeted(node);
        self.give_up(owed)
    }

    fn give_up(&mut self, owed: Option<Owed>) -> Vec<Answered> {
        let mut finished = Vec::new();
        if let Some(owed) = owed {
            self.gateway.give_up(owed, |_, answer| finished.push(Ended::of(&answer)));
        }
        self.redeem_all(finished)
    }

    fn redeem_all(&mut self, finished: Vec<Ended>) -> Vec<Answered> {
        let redeem = |Ended { ticket, status, effect, reply }| {
            self.redeem(ticket).map(|waiter| Answered { waiter, status, effect, reply })
        };
        finished.into_iter().filter_map(redeem).collect()
    }

    /// Takes what the gateway sends now, in order, with the addresses.
    pub(crate) fn flush(&mut self) -> Vec<(Address, Front)> {
        let mut sent = Vec::new();
        self.dispatcher.flush(&mut self.gateway, Micros(0), |to, front| sent.push((to, front)));
        sent
    }

    /// Takes what was held and can be sent now.
    pub(crate) fn retry(&mut self) -> Vec<(Address, Front)> {
        let mut sent = Vec::new();
        self.dispatcher.retry(&mut self.gateway, |to, front| sent.push((to, front)));
        sent
    }

    /// Checks the gateway, and that it owes an answer for each ticket that is out.
    ///
    /// # Errors
    /// The invariant that is broken.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.gateway.check()?;
        let (owed, out) = (self.gateway.outstanding(), self.waiting.len());
        if owed == out { Ok(()) } else { Err(format!("{owed} requests are outstanding, and {out} wait")) }
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
    /// The door that it is connected to, or was last.
    pub(crate) door: usize,
    pub(crate) connected: bool,
    /// The number of connections so far.
    pub(crate) connections: u32,
    /// The node of the last one, by its place, and the life of it.
    pub(crate) of_life: (usize, u32),
    pub(crate) session: Option<SessionId>,
    next_request: u64,
    /// The last request of its session.
    pub(crate) last: Option<RequestId>,
    /// The token of all answers that it was given.
    pub(crate) seen: Token,
    /// The request that each loop waits for.
    pub(crate) loops: Vec<Option<RequestId>>,
}

impl Client {
    pub(crate) fn new(door: usize, session: Option<SessionId>, loops: usize) -> Client {
        Client {
            door,
            connected: false,
            connections: 0,
            of_life: (0, 0),
            session,
            next_request: 0,
            last: None,
            seen: Token::NOTHING,
            loops: vec![None; loops],
        }
    }

    /// Goes on with a session of former times, whose last request is still to be answered.
    pub(crate) fn go_on(&mut self, (session, last): (SessionId, RequestNo), request: RequestId) {
        self.session = Some(session);
        self.next_request = last.0;
        self.loops[0] = Some(request);
    }

    /// The session and number of the next request.
    pub(crate) fn number(&mut self) -> Option<(SessionId, RequestNo)> {
        let session = self.session?;
        self.next_request += 1;
        Some((session, RequestNo(self.next_request)))
    }

    /// Drops the connection. Without a session, the ends of the requests over it stay unknown.
    pub(crate) fn disconnect(&mut self) {
        self.connected = false;
        if self.session.is_none() {
            self.loops.fill(None);
        }
    }

    /// The requests that the loops wait for, oldest first.
    pub(crate) fn waiting(&self) -> Vec<RequestId> {
        let mut waiting: Vec<RequestId> = self.loops.iter().flatten().copied().collect();
        waiting.sort_unstable();
        waiting
    }

    /// The loop that waits for a request.
    pub(crate) fn loop_of(&self, request: RequestId) -> Option<usize> {
        self.loops.iter().position(|loop_no| *loop_no == Some(request))
    }
}
