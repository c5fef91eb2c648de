//! The family to gateways and sessions.

use ordain_gateway::{Backend, Begin, Services, Transaction, direct};
use ordain_model::{Stamp, Token, Writer};

/// The backend of engines whose transactions commit in an order of their own.
///
/// A token is the stamp of the last decision that a connection has seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Committing(
    /// The services of the engine.
    pub(crate) Services,
);

impl Backend for Committing {
    fn services(&self) -> Services {
        self.0
    }

    /// An interactive transaction stays open at the leader of its home, and takes its locks as its commands come.
    fn begin(&self, how: Begin) -> Box<dyn Transaction> {
        direct(how)
    }

    fn write_token(&self, token: &Token, w: &mut Writer<'_>) {
        w.int(token.number() as i64);
    }

    fn read_token(&self, number: Option<u64>) -> Result<Token, &'static str> {
        // A reply can hold no larger number.
        let stamp = number.filter(|stamp| *stamp <= i64::MAX as u64);
        stamp.map(Token::of).ok_or("ERR a token is an integer, as CLIENT EPOCH has answered it")
    }

    fn run_of(&self, _: Stamp, _: u32) -> Option<Stamp> {
        None
    }

    /// An attempt that is refused is made again after others that came later.
    fn keeps_order(&self) -> bool {
        false
    }
}
