//! Backends: what of a gateway's and a session's work depends on the family of engines behind them.
//!
//! A gateway asks its [`Backend`] how interactive transactions run and who hands out tokens. A session runs an
//! open [`Transaction`] step by step and knows neither how it reads nor what its commit proves.

use std::fmt::Debug;

use ordain_model::{Db, Epoch, Micros, ProcedureId, RequestNo, SessionId, Stamp, Token, Writer};

use crate::overlay::overlay;
use crate::{Finished, Gateway, NotServed, Service, Services, Stream, Ticket};

/// The error of a read whose state is not kept any more.
pub const STATE_GONE: &str = "TXNABORT the state that this transaction reads is not kept any more: it has been open \
                              for too long; begin it again";

pub(crate) const READ_ONLY: &str = "ERR write command in a transaction that was begun READONLY";
pub(crate) const TOO_LARGE: &str = "ERR the interactive transaction is too large: commit or abort it";

/// A family of engines, as gateways and sessions need it.
pub trait Backend: Debug + Send + Sync {
    /// The services that its engines have.
    fn services(&self) -> Services;

    /// Begins an interactive transaction, if that is one of its [services](Backend::services). Nothing is submitted yet.
    fn begin(&self, how: Begin) -> Box<dyn Transaction>;

    /// The keepers of tokens, as `CLIENT EPOCH` writes and reads them.
    fn tokens(&self) -> Tokens<'_>;

    /// A stamp that differs between the runs of one chunk, given where its transaction `index` has taken effect; `None` if an engine
    /// runs no chunk twice.
    fn run_of(&self, stamp: Stamp, index: u32) -> Option<Stamp>;

    /// Whether requests that one node takes in some order take effect in that order. If not, a connection has one request
    /// under way at a time.
    fn keeps_order(&self) -> bool;
}

/// Who knows what a connection has seen, and hands it out as a token.
#[derive(Clone, Copy, Debug)]
pub enum Tokens<'a> {
    /// Each connection knows it. Its token takes this form.
    OfConnections(&'a dyn TokenForm),
    /// The node of a connection knows it for all of them, and is asked by [`ordain_model::system::SEEN`]. Its tokens are
    /// printable words of [`TOKEN_MAX`] bytes at most, which no other part of a node reads.
    OfNodes,
}

/// The longest token that a node hands out or takes, bytes.
pub const TOKEN_MAX: usize = 16 << 10;

/// The form of a connection's token for its client.
pub trait TokenForm: Debug {
    /// Writes a token for a client to hand to another connection.
    fn write_token(&self, token: &Token, w: &mut Writer<'_>);

    /// The token that a client has handed over as a number.
    ///
    /// # Errors
    /// The error to show: the number is no token.
    fn read_token(&self, number: Option<u64>) -> Result<Token, &'static str>;
}

/// How an interactive transaction begins.
#[derive(Clone, Copy, Debug)]
pub struct Begin {
    /// The transaction refuses to write.
    pub is_read_only: bool,
    /// The time at which it begins, microseconds since the Unix epoch: that of its commands until it has read something.
    pub now: Micros,
    /// Its source of randomness.
    pub seed: u64,
    /// The session that its commit is to be a request of, if the connection has one.
    pub session: Option<SessionId>,
}

/// A call inside an interactive transaction.
#[derive(Debug)]
pub struct Step<'a> {
    /// The procedure that is called.
    pub procedure: ProcedureId,
    /// The database that the connection has selected.
    pub db: Db,
    /// The encoded arguments; a call that has to wait takes them.
    pub args: &'a mut Vec<u8>,
    /// How many bytes of records the transaction may hold.
    pub bytes_max: usize,
}

/// The place of a step among the requests of its connection.
#[derive(Clone, Copy, Debug)]
pub struct Desk<'a> {
    /// The connection.
    pub stream: Stream,
    /// The name under which the step is submitted, if it is.
    pub ticket: Ticket,
    /// The token of the connection.
    pub seen: &'a Token,
}

/// The progress of an interactive transaction in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Its reply was appended.
    Answered,
    /// Something was submitted under the step's ticket: its end is for [`Transaction::finished`].
    Waits,
}

/// An interactive transaction that is open. Dropping it without [`Transaction::end`] may leave a state kept for it.
pub trait Transaction: Debug + Send {
    /// Runs a call. Its reply, appended to `out`, is final for this attempt.
    fn call(&mut self, gateway: &mut Gateway, desk: Desk<'_>, step: Step<'_>, out: &mut Vec<u8>) -> Progress;

    /// Takes the end of what a call waited for: appends the call's reply, or says that it has none of its own.
    fn finished(&mut self, gateway: &mut Gateway, finished: &Finished<'_>, out: &mut Vec<u8>) -> bool;

    /// Commits it. What the transaction has seen may be acted on once the reply is `OK`, and not before. A commit that is
    /// submitted answers with its [`Finished`] and takes effect at most once under the request's number.
    fn commit(
        &mut self,
        gateway: &mut Gateway,
        desk: Desk<'_>,
        request: (Db, Option<(SessionId, RequestNo)>),
        out: &mut Vec<u8>,
    ) -> Progress;

    /// Ends it, if it is not committed, without effect: whatever was kept for it is released.
    fn end(&mut self, gateway: &mut Gateway);

    /// Whether its state is lost, so that it can only be begun again.
    fn is_lost(&self) -> bool;

    /// Shows the keys that its commit writes.
    fn written(&self, show: &mut dyn FnMut(Db, &[u8]));

    /// Bytes of the records that it holds.
    fn bytes(&self) -> usize;
}

/// The backend of engines that order whole transactions before they execute them.
///
/// A token is an epoch. Reads that are not logged are run again where a chunk is passed on again, and a chunk's
/// transactions have consecutive places.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ordered;

impl Backend for Ordered {
    fn services(&self) -> Services {
        Services::ALL
    }

    fn begin(&self, how: Begin) -> Box<dyn Transaction> {
        overlay(how)
    }

    fn tokens(&self) -> Tokens<'_> {
        Tokens::OfConnections(self)
    }

    fn run_of(&self, stamp: Stamp, index: u32) -> Option<Stamp> {
        Some(stamp.before_chunk(index))
    }

    fn keeps_order(&self) -> bool {
        true
    }
}

impl TokenForm for Ordered {
    fn write_token(&self, token: &Token, w: &mut Writer<'_>) {
        w.int(token.number() as i64);
    }

    fn read_token(&self, number: Option<u64>) -> Result<Token, &'static str> {
        let epoch = number.filter(|epoch| *epoch <= Epoch::MAX.0);
        epoch.map(Token::of).ok_or("ERR an epoch is an integer, as CLIENT EPOCH has answered it")
    }
}

impl Gateway {
    /// Begins an interactive transaction, as the engines behind the gateway run them.
    ///
    /// # Errors
    /// They run none.
    pub fn begin(&self, how: Begin) -> Result<Box<dyn Transaction>, NotServed> {
        self.require(Service::Interactive)?;
        Ok(self.backend.begin(how))
    }

    /// Checks that the engines behind the gateway have a service.
    ///
    /// # Errors
    /// They do not.
    pub fn require(&self, service: Service) -> Result<(), NotServed> {
        self.backend.services().require(service)
    }

    /// The backend: what depends on the engines behind the gateway.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }
}
