//! A connection's session: its requests, the replies that it is owed, and the meaning of its commands.
//!
//! A [`Session`] is a state machine. The edge that owns the socket gives it input with [`Session::receive`] and
//! answers with [`Session::finished`], and takes [`Session::output`] away; the session owns no socket, and all
//! it holds is bounded by [`Limits`](crate::Limits).
//!
//! Commands are taken in order and their replies leave in order; in between, many transactions are under way.
//! What may overtake nothing, because the next command's meaning depends on its answer, *awaits*: WATCH, an
//! EXEC with parts that the session answers itself, a read of an interactive transaction, its commit, and
//! questions to the node. While one is awaited, no input is taken.
//!
//! - `dispatch`: from words to a transaction or to the session's own commands;
//! - `multi`: MULTI, EXEC, DISCARD, WATCH, UNWATCH;
//! - `interactive`: TXN.BEGIN, TXN.COMMIT, TXN.ABORT and everything between;
//! - `connection`: HELLO, AUTH, CLIENT and their like; `server`: CONFIG, BGSAVE, DEBUG and theirs; `info`: INFO; `introspection`: COMMAND;
//! - `access`: the rights of its user; `acl`: ACL;
//! - `absent`: commands about what this server has nothing of;
//! - `replies`: the order of replies;
//! - `budget`: what has to wait until there is room, and what is refused because memory is short.

mod absent;
mod access;
mod acl;
mod budget;
mod connection;
mod diagnostics;
mod dispatch;
mod info;
mod interactive;
mod introspection;
mod multi;
mod replies;
mod server;

use std::fmt;
use std::sync::Arc;

use ordain_commands::table::CommandNo;
use ordain_gateway::{Finished, Gateway, STATE_GONE, Stream, Ticket, Watched, Watching};
use ordain_model::{
    Call, Datum, Db, KeptReply, Micros, OutcomeStatus, PlanError, RequestNo, SessionId, Token, View, Writer,
};
use smallvec::SmallVec;

use crate::acl::{User, Users};
use crate::codec::{Protocol, ProtocolError, RequestLimits, RequestParser, Step};
use crate::diagnostics::note_error;
use crate::memory::Account;
use crate::shared::{Context, Foreign, Notice, Shared};
use interactive::Interactive;
use multi::Multi;
use replies::{Replies, Sequence, Style};

pub(crate) use replies::Cost;
pub use replies::{ConnectionId, LARGE_REPLY};

/// A connection's number, as CLIENT ID shows it: unique on its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The result of [`Session::receive`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Bytes from the start of the input that need not be given again.
    pub consumed: usize,
    /// At least so many bytes will follow what is left before a command is whole; 0 if input is left that can be
    /// handled once [`Session::wants_input`] says so.
    pub wanted: usize,
}

/// The future of a connection, for the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Go on.
    Open,
    /// Read no more, and close it once it says [`Fate::Close`].
    Draining,
    /// Close it now.
    Close,
}

/// The words of a command, its name first.
pub(crate) type Words<'a> = [&'a [u8]];

/// The mode of CLIENT REPLY.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ReplyMode {
    #[default]
    On,
    Off,
    /// SKIP came just now: it is not answered, and the next command is not either.
    SkipNext,
    /// This command is not answered.
    Skip,
}

/// The transaction that a connection is composing, if any.
#[derive(Debug, Default)]
enum Mode {
    #[default]
    Plain,
    Multi(Box<Multi>),
    Interactive(Box<Interactive>),
}

/// The request whose answer decides how the connection goes on.
#[derive(Debug)]
struct Awaited {
    sequence: Sequence,
    what: Awaiting,
}

#[derive(Debug)]
enum Awaiting {
    Watch(Watching),
    Exec(Box<Multi>),
    Transaction,
    Commit,
    Info(info::Sections),
    MemoryStats,
    /// The words of AUTH or HELLO, which is checked after a wait.
    LogIn(Vec<Vec<u8>>),
    ClientList,
    /// The file of users was read or written.
    UsersFile,
    /// Whether it was asked in the old form, which answers OK or an error.
    ClientKill {
        one: bool,
    },
}

#[derive(Debug, PartialEq, Eq)]
enum Closing {
    No,
    AfterReplies,
    Now,
}

/// One connection.
#[derive(Debug)]
pub struct Session {
    id: ConnectionId,
    client: ClientId,
    peer: Box<str>,
    local: Box<str>,
    since: Micros,
    active: Micros,
    name: Box<[u8]>,
    library: Box<[u8]>,
    library_version: Box<[u8]>,
    /// The command at hand, or the last one; none before the first, and for words that are no command.
    command: Option<CommandNo>,
    /// The command at hand has been let pass.
    is_known: bool,
    /// The number of bytes that it came in.
    command_bytes: u32,
    /// The number of bytes that its words have together.
    argument_bytes: u32,
    protocol: Protocol,
    db: Db,
    /// The user that it has logged in as, or begun as.
    user: Arc<User>,
    is_authenticated: bool,
    /// The version of the users of which `user` is.
    users_version: u64,
    /// How often it has tried to log in in vain.
    failed_logins: u32,
    no_evict: bool,
    no_touch: bool,
    reply_mode: ReplyMode,
    /// All that it has seen: its reads on snapshots hold that.
    seen: Token,
    /// Names requests, so that they can be retried: the session, and the next request's number once given.
    retry: Option<(SessionId, Option<RequestNo>)>,
    mode: Mode,
    watched: Watched,
    awaited: Option<Awaited>,
    closing: Closing,
    parser: RequestParser,
    replies: Replies,
    /// A command for which there is no room yet, and what it takes.
    waiting: Option<Box<(Vec<Vec<u8>>, Cost)>>,
    account: Account,
    /// Bytes of input that the edge keeps for it.
    input: usize,
}

impl Session {
    /// A connection that was just made, from `peer` to `local`, both as address and port.
    pub fn new(
        id: ConnectionId,
        client: ClientId,
        (peer, local): (&str, &str),
        now: Micros,
        shared: &Shared,
    ) -> Session {
        let users_version = shared.access.version();
        let user = shared.access.users(Users::default_user);
        Session {
            id,
            client,
            peer: peer.into(),
            local: local.into(),
            since: now,
            active: now,
            name: Box::default(),
            library: Box::default(),
            library_version: Box::default(),
            command: None,
            is_known: false,
            command_bytes: 0,
            argument_bytes: 0,
            protocol: Protocol::Resp2,
            db: Db(0),
            is_authenticated: user.is_open(),
            user,
            users_version,
            failed_logins: 0,
            no_evict: false,
            no_touch: false,
            reply_mode: ReplyMode::On,
            seen: Token::NOTHING,
            retry: None,
            mode: Mode::Plain,
            watched: Watched::default(),
            awaited: None,
            closing: Closing::No,
            parser: RequestParser::default(),
            replies: Replies::new(),
            waiting: None,
            account: Account::default(),
            input: 0,
        }
    }

    /// Handles as many commands as are whole in `input` and as there is room for. Input that was not consumed
    /// is given again, with what has come since, when more has come or when [`Session::wants_input`] turns
    /// true.
    pub fn receive(&mut self, input: &[u8], cx: &mut Context<'_>) -> Received {
        let mut received = Received::default();
        // Taken out, so that the words can be lent from it while the session changes.
        let mut parser = std::mem::take(&mut self.parser);
        self.active = cx.now;
        self.go_on(cx);
        while self.has_room(cx.shared) {
            let rest = &input[received.consumed..];
            let limits =
                if self.is_authenticated { RequestLimits::FULL } else { RequestLimits::UNAUTHENTICATED };
            received.consumed += match parser.next(rest, limits) {
                Step::Command { consumed } => {
                    let words: SmallVec<[&[u8]; 16]> = parser.args(rest).collect();
                    cx.shared.counters.commands_total += 1;
                    cx.shared.scratch.cost = Cost { request: consumed, ..Cost::default() };
                    self.command_bytes = u32::try_from(consumed).unwrap_or(u32::MAX);
                    self.handle(&words, cx);
                    if self.waiting.is_none() {
                        self.note_taken(&words, cx);
                    }
                    consumed
                }
                Step::Empty { consumed } => consumed,
                Step::Refused { consumed, refusal } => {
                    self.begin_command();
                    self.command = None;
                    self.reject(refusal.text().as_bytes(), cx);
                    consumed
                }
                Step::Incomplete { consumed, wanted } => {
                    received = Received { consumed: received.consumed + consumed, wanted };
                    break;
                }
                Step::Broken(ProtocolError::Tls) => {
                    self.cut_off(Foreign::Tls, cx);
                    rest.len()
                }
                Step::Broken(error) => {
                    self.command = None;
                    self.answer(cx, |w| w.error(error.to_string()));
                    self.closing = Closing::AfterReplies;
                    rest.len()
                }
            };
        }
        if self.closing != Closing::No {
            received = Received { consumed: input.len(), wanted: 0 };
        }
        cx.shared.counters.input_bytes_total += received.consumed as u64;
        self.parser = parser;
        self.settle(cx.shared);
        received
    }

    /// Takes the answer to a request of this connection: a transaction's, or the node's
    /// ([`Control`](crate::Control)). An answer to another connection's is ignored.
    #[inline]
    pub fn finished(&mut self, finished: &Finished<'_>, cx: &mut Context<'_>) {
        self.finished_kept(finished, None, cx);
    }

    /// Takes the answer to a request of this connection, as [`Session::finished`] does. Its reply is given once more if it
    /// is large: then it is encoded as room comes.
    #[inline]
    pub fn finished_kept(&mut self, finished: &Finished<'_>, kept: Option<KeptReply>, cx: &mut Context<'_>) {
        if ConnectionId::of(finished.ticket) != self.id {
            return;
        }
        self.check_output(cx);
        let sequence = Sequence::of(finished.ticket);
        self.seen.merge(finished.token);
        match &self.awaited {
            Some(awaited) if awaited.sequence == sequence => self.take_awaited(finished, cx),
            _ => match kept.filter(|_| finished.status == OutcomeStatus::Committed) {
                Some(kept) => self.finish_kept(sequence, kept, cx),
                None => self.finish(sequence, finished.answer(&mut Vec::new()), cx),
            },
        }
        self.settle(cx.shared);
    }

    fn take_awaited(&mut self, finished: &Finished<'_>, cx: &mut Context<'_>) {
        let Some(Awaited { sequence, what }) = self.awaited.take() else { return };
        let mut reply = std::mem::take(&mut cx.shared.scratch.datum);
        reply.clear();
        let mut refusal = Vec::new();
        let answer = finished.answer(&mut refusal);
        let is_committed = finished.status == OutcomeStatus::Committed;
        // The engine counts no keys of all partitions: the rest can be told all the same.
        let cannot_count =
            matches!(finished.status, OutcomeStatus::Aborted(reason) if !reason.is_retryable());
        match what {
            Awaiting::Watch(keys) if is_committed => self.watch_read(&keys, answer, &mut reply),
            Awaiting::Exec(multi) if is_committed => self.exec_done(&multi, answer, cx, &mut reply),
            Awaiting::Transaction => {
                if !self.take_transaction(finished, cx, &mut reply) {
                    reply.extend_from_slice(answer);
                }
            }
            Awaiting::Info(sections) if is_committed || cannot_count => {
                info::info(&sections, is_committed.then_some(answer), cx, &mut reply);
            }
            Awaiting::MemoryStats if is_committed || cannot_count => {
                info::memory_stats(is_committed.then_some(answer), cx, &mut reply);
            }
            Awaiting::ClientList => match Datum::first(answer) {
                Datum::Bulk(lines) => Writer(&mut reply).verbatim(*b"txt", lines),
                _ => reply.extend_from_slice(answer),
            },
            Awaiting::ClientKill { one: true } if answer == server::zero() => {
                Writer(&mut reply).error("ERR No such client");
            }
            Awaiting::ClientKill { one: true } => Writer(&mut reply).ok(),
            Awaiting::LogIn(words) => {
                let words: SmallVec<[&[u8]; 8]> = words.iter().map(Vec::as_slice).collect();
                self.log_in_now(&words, cx, &mut reply);
                self.replies.write_in(sequence, self.protocol);
            }
            Awaiting::UsersFile => {
                reply.extend_from_slice(answer);
                self.leave_if_gone(cx.shared);
            }
            Awaiting::Commit
            | Awaiting::ClientKill { one: false }
            | Awaiting::Watch(_)
            | Awaiting::Exec(_)
            | Awaiting::Info(_)
            | Awaiting::MemoryStats => reply.extend_from_slice(answer),
        }
        self.finish(sequence, &reply, cx);
        cx.shared.scratch.datum = reply;
    }

    /// Takes the reply to a request.
    #[inline]
    fn finish(&mut self, sequence: Sequence, reply: &[u8], cx: &Context<'_>) {
        self.note_finish(sequence, reply, cx);
        self.replies.finish(sequence, reply);
    }

    /// Takes the reply to a request, which is encoded as room comes.
    fn finish_kept(&mut self, sequence: Sequence, reply: KeptReply, cx: &Context<'_>) {
        self.note_finish(sequence, &reply, cx);
        self.replies.finish_kept(sequence, reply);
    }

    #[inline]
    fn note_finish(&mut self, sequence: Sequence, reply: &[u8], cx: &Context<'_>) {
        if let Some(done) = self.replies.done(sequence, reply) {
            note_error(reply, &cx.shared.observed.times);
            self.note_done(sequence, &done, cx);
        }
    }

    /// Tells whether there is room for more commands. While there is not, the edge should not read from the socket.
    #[inline]
    pub fn wants_input(&self, shared: &Shared) -> bool {
        match self.waiting.as_deref() {
            Some((_, cost)) => self.closing != Closing::Now && self.can_afford(cost, shared),
            None => self.has_room(shared),
        }
    }

    #[inline]
    fn has_room(&self, shared: &Shared) -> bool {
        let limits = &shared.limits;
        self.awaited.is_none()
            && self.closing == Closing::No
            && self.waiting.is_none()
            && self.replies.pending() < limits.pending_max.min(Sequence::WINDOW)
            && self.replies.unsent() < limits.output_pause
            && !self.replies.is_full()
    }

    /// Closes the connection if another reply comes although it has not taken what it may hold.
    fn check_output(&mut self, cx: &mut Context<'_>) {
        if self.replies.unsent() > cx.shared.limits.output_max && self.closing != Closing::Now {
            cx.shared.counters.output_limit_total += 1;
            self.closing = Closing::Now;
            self.replies.abandon();
        }
    }

    /// The bytes to be sent.
    pub fn output(&self) -> &[u8] {
        self.replies.output()
    }

    /// The first `bytes` of [`Session::output`] have been sent.
    pub fn sent(&mut self, bytes: usize) {
        self.replies.sent(bytes);
    }

    /// The fate of the connection, for the edge. When it closes it, it drops the session, and with it an open
    /// transaction.
    pub fn fate(&self) -> Fate {
        match self.closing {
            Closing::No => Fate::Open,
            Closing::AfterReplies if self.pending() > 0 || self.replies.unsent() > 0 => Fate::Draining,
            Closing::AfterReplies | Closing::Now => Fate::Close,
        }
    }

    /// Closes the connection at once, as CLIENT KILL asks.
    pub fn kill(&mut self) {
        self.closing = Closing::Now;
        self.waiting = None;
        self.replies.abandon();
    }

    /// Closes the connection at once because its other end speaks another protocol. Nothing that follows is executed.
    pub(crate) fn cut_off(&mut self, foreign: Foreign, cx: &mut Context<'_>) {
        cx.shared.counters.cut_off_total += 1;
        cx.control.notice(Notice::Foreign { peer: &self.peer, foreign });
        self.kill();
    }

    /// Tells whether the connection is to be closed without what it is owed.
    pub fn is_killed(&self) -> bool {
        self.closing == Closing::Now
    }

    /// Takes no more commands and closes the connection once those taken are answered: for a node that shuts
    /// down, and for CLIENT KILL of the connection that asks.
    pub fn drain(&mut self) {
        if self.closing == Closing::No {
            self.closing = Closing::AfterReplies;
        }
    }

    /// The id of the connection.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// The client's number on the node.
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// The address and port of the other end.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The address and port of this end.
    pub fn local(&self) -> &str {
        &self.local
    }

    /// The time at which the client last sent something.
    pub fn active(&self) -> Micros {
        self.active
    }

    /// The user that it has logged in as, or begun as.
    pub fn user(&self) -> &User {
        &self.user
    }

    /// The number of its requests that are under way, or wait until there is room.
    pub fn pending(&self) -> usize {
        self.replies.pending() + usize::from(self.waiting.is_some())
    }

    #[inline]
    fn style(&self) -> Style {
        Style { protocol: self.protocol, silent: self.reply_mode != ReplyMode::On }
    }

    /// Answers the command at hand.
    fn answer(&mut self, cx: &mut Context<'_>, write: impl FnOnce(&mut Writer<'_>)) {
        let datum = &mut cx.shared.scratch.datum;
        datum.clear();
        write(&mut Writer(datum));
        note_error(datum, &cx.shared.observed.times);
        self.replies.answer(self.style(), datum);
    }

    /// Answers the command at hand with a reply that is there already.
    fn answer_with(&mut self, cx: &Context<'_>, reply: &[u8]) {
        note_error(reply, &cx.shared.observed.times);
        self.replies.answer(self.style(), reply);
    }

    /// The request number for a transaction that may be retried, if one was given.
    #[inline]
    fn take_request(&mut self) -> Option<(SessionId, RequestNo)> {
        let (session, request) = self.retry.as_mut()?;
        Some((*session, request.take()?))
    }

    /// Submits a transaction as the answer to the command at hand.
    #[inline]
    fn submit(
        &mut self,
        call: Call,
        cx: &mut Context<'_>,
        write_args: impl FnOnce(&mut ordain_model::ArgsBuilder<'_>),
    ) -> Result<Sequence, PlanError> {
        self.submit_to(View::Since(self.seen.clone()), call, cx, write_args)
    }

    /// Submits a transaction that sees what the view says if it only reads, and takes effect after what was submitted before.
    #[inline]
    fn submit_to(
        &mut self,
        view: View,
        call: Call,
        cx: &mut Context<'_>,
        write_args: impl FnOnce(&mut ordain_model::ArgsBuilder<'_>),
    ) -> Result<Sequence, PlanError> {
        let submit = |gateway: &mut Gateway, (stream, ticket)| {
            gateway.submit_in_order(stream, ticket, call, view, write_args)
        };
        self.submit_with(cx, submit).map(|(sequence, _)| sequence)
    }

    /// Has the gateway submit something under the next sequence, as the answer to the command at hand.
    #[inline]
    fn submit_with<T>(
        &mut self,
        cx: &mut Context<'_>,
        submit: impl FnOnce(&mut Gateway, (Stream, Ticket)) -> Result<T, PlanError>,
    ) -> Result<(Sequence, T), PlanError> {
        let sequence = self.replies.next();
        let stream = Stream(self.id.slot() as u32);
        let submitted = submit(cx.gateway, (stream, self.id.ticket(sequence)))?;
        self.expect_reply(cx);
        Ok((sequence, submitted))
    }

    /// Has the gateway submit something under the next sequence, if there is anything to submit.
    fn submit_some<T>(
        &mut self,
        cx: &mut Context<'_>,
        submit: impl FnOnce(&mut Gateway, (Stream, Ticket)) -> Result<Option<T>, PlanError>,
    ) -> Result<Option<(Sequence, T)>, PlanError> {
        let sequence = self.replies.next();
        let stream = Stream(self.id.slot() as u32);
        let Some(submitted) = submit(cx.gateway, (stream, self.id.ticket(sequence)))? else {
            return Ok(None);
        };
        self.expect_reply(cx);
        Ok(Some((sequence, submitted)))
    }

    /// Counts the request that was just submitted.
    #[inline]
    fn expect_reply(&mut self, cx: &mut Context<'_>) {
        let cost = cx.shared.scratch.cost;
        self.replies.expect(self.style(), cost);
        if cost.values > 0 || cost.need > 0 {
            // The next command of the same turn is to find it counted.
            self.settle(cx.shared);
        }
    }

    /// Takes no more commands until the request that was just submitted is answered.
    fn wait_for(&mut self, sequence: Sequence, what: Awaiting) {
        self.awaited = Some(Awaited { sequence, what });
    }
}

/// The answer to show for how a request ended.
trait Answer {
    /// The reply, or one made in `buffer` where there is none.
    fn answer<'a>(&'a self, buffer: &'a mut Vec<u8>) -> &'a [u8];
}

impl Answer for Finished<'_> {
    #[inline]
    fn answer<'a>(&'a self, buffer: &'a mut Vec<u8>) -> &'a [u8] {
        match self.status {
            OutcomeStatus::Committed | OutcomeStatus::Aborted(_) | OutcomeStatus::Superseded => return self.reply,
            // With the reason, if there is a special one.
            OutcomeStatus::Busy if !self.reply.is_empty() => return self.reply,
            // No gateway hands on that something has moved; it would mean that nothing was done.
            OutcomeStatus::Busy | OutcomeStatus::Moved => {
                Writer(buffer).error("BUSY the pipeline is full: retry later");
            }
            OutcomeStatus::Refused => Writer(buffer).error(
                "MISCONF this node cannot make writes durable now (is its disk full?); reads are served: free \
                 some space and retry",
            ),
            OutcomeStatus::Unknown => Writer(buffer).error(
                "UNKNOWN the node that would have said how this request ended is gone: it took effect or it did not; \
                 look before you repeat it",
            ),
            OutcomeStatus::TooOld => Writer(buffer).error(STATE_GONE),
        }
        buffer
    }
}
