//! An edge: a role that also does IO.

use std::io;

use mio::event::Event;
use mio::{Registry, Token};
use ordain_role::{Address, Now, Outbox, Role};

/// How many tokens an edge has, as a power of two: more than there can be sockets.
const BITS: u32 = 40;

/// The tokens by which an edge tells its sockets apart from those of other edges on the same loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    edge: usize,
}

impl Tokens {
    /// The tokens of the edge of a number.
    pub(crate) fn new(edge: usize) -> Tokens {
        Tokens { edge }
    }

    /// The edge that a token belongs to.
    pub(crate) fn edge_of(token: Token) -> usize {
        token.0 >> BITS
    }

    /// The token to register a socket with, for the edge's own number of it, which must be below 2^40.
    pub fn token(&self, number: usize) -> Token {
        assert!(number >> BITS == 0, "a socket's number must be below 2^{BITS}");
        Token(self.edge << BITS | number)
    }

    /// The edge's own number behind a token.
    pub fn number(&self, token: Token) -> usize {
        token.0 & ((1 << BITS) - 1)
    }
}

/// The answer of an edge: whether it has something left to do that no event will announce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It waits for events.
    Idle,
    /// It wants another call at once.
    Again,
}

/// A message that a role of this node has sent to another node.
#[derive(Debug)]
pub struct Departing<M> {
    /// The sender.
    pub from: Address,
    /// The receiver.
    pub to: Address,
    /// How many changes of peers, which the network edge has sent it, the sender had handled by then. So the edge knows
    /// whether the sender knew of the present stream.
    pub changes_seen: u64,
    /// The message.
    pub message: M,
}

/// A role that owns sockets, or makes load: where the outside world meets the roles.
///
/// It takes messages, timers and disk answers as every role does. Beyond that its loop calls it once a turn in
/// this order: [`Edge::ready`] for each socket that has something, [`Edge::turn`]; then roles run; then
/// [`Edge::flush`], so that the answers gathered during a turn leave with one write a connection.
///
/// Sockets are watched edge-triggered, as `mio` does: read and write until the system says that it would block,
/// or answer [`Turn::Again`] and go on in the next turn.
pub trait Edge: Role {
    /// Registers the listening sockets, before the loop starts. The registry is the edge's to keep, and to use
    /// for the connections that it accepts.
    ///
    /// # Errors
    /// The system's; the node does not start.
    fn register(&mut self, registry: Registry, tokens: Tokens) -> io::Result<()>;

    /// Handles the readiness of a socket.
    fn ready(&mut self, event: &Event, now: Now, out: &mut Outbox<Self::Message>);

    /// Runs once an iteration of the loop, before the roles: hands over what the sockets have brought.
    fn turn(&mut self, now: Now, out: &mut Outbox<Self::Message>) -> Turn {
        let _ = (now, out);
        Turn::Idle
    }

    /// Runs once an iteration of the loop, after the roles: writes what they have answered.
    fn flush(&mut self, now: Now, out: &mut Outbox<Self::Message>);

    /// Begins the end of the node: takes no more connections or requests, and finishes what has been begun.
    fn stop(&mut self, now: Now, out: &mut Outbox<Self::Message>);

    /// Takes a message of a role to another node. Only the network edge is called
    /// ([`Options::network`](crate::Options::network)).
    fn depart(&mut self, departing: Departing<Self::Message>, now: Now, out: &mut Outbox<Self::Message>) {
        let _ = now;
        out.halt(format!("was given a message for {:?}, and is no network edge", departing.to));
    }

    /// Tells whether everything begun is finished. Asked after [`Edge::stop`], and after each turn from then on.
    fn drained(&self) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_two_edges_never_meet() {
        let (a, b) = (Tokens::new(0), Tokens::new(1));
        let last = (1 << BITS) - 1;
        assert_ne!(a.token(last), b.token(0));
        assert_eq!((Tokens::edge_of(a.token(last)), a.number(a.token(last))), (0, last));
        assert_eq!((Tokens::edge_of(b.token(7)), b.number(b.token(7))), (1, 7));
    }
}
