//! The family to gateways and sessions.

use ordain_gateway::{Backend, Begin, Services, TokenForm, Tokens, Transaction, direct};
use ordain_model::{Stamp, Token, Writer};

use crate::concurrency::Snapshots;

/// The backend of engines whose transactions commit in an order of their own.
///
/// A token is the stamp of the last decision that a connection has seen. With snapshots a connection has seen what the clients of its node
/// have, and that node hands it out (`tokens.rs`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Committing {
    /// The services of the engine.
    pub(crate) services: Services,
    /// When its attempts take their snapshots.
    pub(crate) snapshots: Snapshots,
}

impl Backend for Committing {
    fn services(&self) -> Services {
        self.services
    }

    /// An interactive transaction stays open at the leader of its home, and takes its locks as its commands come.
    fn begin(&self, how: Begin) -> Box<dyn Transaction> {
        direct(how)
    }

    fn tokens(&self) -> Tokens<'_> {
        match self.snapshots {
            Snapshots::Never => Tokens::OfConnections(self),
            Snapshots::AtBegin | Snapshots::AtFirstRead => Tokens::OfNodes,
        }
    }

    fn run_of(&self, _: Stamp, _: u32) -> Option<Stamp> {
        None
    }

    /// An attempt that is refused is made again after others that came later.
    fn keeps_order(&self) -> bool {
        false
    }
}

impl TokenForm for Committing {
    fn write_token(&self, token: &Token, w: &mut Writer<'_>) {
        w.int(token.number() as i64);
    }

    fn read_token(&self, number: Option<u64>) -> Result<Token, &'static str> {
        // A reply can hold no larger number.
        let stamp = number.filter(|stamp| *stamp <= i64::MAX as u64);
        stamp.map(Token::of).ok_or("ERR a token is an integer, as CLIENT EPOCH has answered it")
    }
}
