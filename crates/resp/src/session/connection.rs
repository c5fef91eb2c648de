//! HELLO, AUTH, RESET and CLIENT: commands about the connection.

use std::fmt::Write as _;

use ordain_commands::table::CommandNo;
use ordain_gateway::{Service, TOKEN_MAX, Tokens};
use ordain_model::{ArgsBuilder, Call, Micros, RequestNo, SessionId, Writer, system};

use super::dispatch::{Answered, Place, help_or_wrong_arity, refuse, wrong_words};
use super::{Awaiting, ClientId, Mode, ReplyMode, Session, Words};
use crate::acl::{Attempt, DEFAULT, Reason, Users};
use crate::codec::Protocol;
use crate::shared::{ClientFilter, Context, ControlRequest, NOT_INTEGER, Notice, parse_int};

/// The version of Redis whose commands and texts these are.
pub(super) const REDIS_VERSION: &str = "7.0.15";

/// After so many wrong passwords a connection is closed.
const FAILED_LOGINS_MAX: u32 = 10;
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// Tells whether a name may be shown in CLIENT LIST: printable, without spaces.
fn is_plain(name: &[u8]) -> bool {
    name.iter().all(|b| (b'!'..=b'~').contains(b))
}

impl Session {
    /// HELLO [2|3 [AUTH user password] [SETNAME name]].
    pub(super) fn hello(
        &mut self,
        words: &Words<'_>,
        place: Place,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Answered {
        let has_login = words.iter().skip(2).any(|word| word.eq_ignore_ascii_case(b"auth"));
        if has_login && let Some(answered) = self.delay_login(words, place, cx, out) {
            return answered;
        }
        self.hello_now(words, cx, out);
        Answered::Now
    }

    fn hello_now(&mut self, words: &Words<'_>, cx: &mut Context<'_>, out: &mut Vec<u8>) {
        let mut w = Writer(out);
        let protocol = match words.get(1).map(|version| parse_int(version)) {
            None => self.protocol,
            Some(Some(2)) => Protocol::Resp2,
            Some(Some(3)) => Protocol::Resp3,
            Some(Some(_)) => return w.error("NOPROTO unsupported protocol version"),
            Some(None) => return w.error("ERR Protocol version is not an integer or out of range"),
        };
        let (mut login, mut name) = (None, None);
        let mut options = words.get(2..).unwrap_or_default();
        while let [option, rest @ ..] = options {
            match rest {
                [user, password, rest @ ..] if option.eq_ignore_ascii_case(b"auth") => {
                    login = Some((*user, *password));
                    options = rest;
                }
                [wanted, rest @ ..] if option.eq_ignore_ascii_case(b"setname") => {
                    if !is_plain(wanted) {
                        return w.error(
                            "ERR Client names cannot contain spaces, newlines or special characters.",
                        );
                    }
                    name = Some(*wanted);
                    options = rest;
                }
                _ => {
                    return w.error([b"ERR Syntax error in HELLO option '", *option, b"'"].concat());
                }
            }
        }
        if let Some((user, password)) = login
            && !self.log_in(words[0], user, password, cx)
        {
            return w.error(WRONG_PASSWORD);
        }
        if !self.is_authenticated {
            return w.error(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
                 <user> <pass> option can be used to authenticate the client and select the RESP protocol version \
                 at the same time",
            );
        }
        if let Some(name) = name {
            self.name = name.into();
        }
        self.protocol = protocol;
        w.map(7);
        w.bulk(b"server");
        w.bulk(b"ordain");
        w.bulk(b"version");
        w.bulk(REDIS_VERSION.as_bytes());
        w.bulk(b"proto");
        w.int(protocol.number());
        w.bulk(b"id");
        w.int(self.client.0 as i64);
        w.bulk(b"mode");
        w.bulk(b"standalone");
        w.bulk(b"role");
        w.bulk(b"master");
        w.bulk(b"modules");
        w.array(0);
    }

    /// AUTH [user] password.
    pub(super) fn auth(
        &mut self,
        words: &Words<'_>,
        place: Place,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Answered {
        if let Some(answered) = self.delay_login(words, place, cx, out) {
            return answered;
        }
        self.auth_now(words, cx, out);
        Answered::Now
    }

    fn auth_now(&mut self, words: &Words<'_>, cx: &mut Context<'_>, out: &mut Vec<u8>) {
        let mut w = Writer(out);
        let (user, password) = match words {
            [_, _] if cx.shared.access.users(|users| users.default_user().has_no_pass()) => {
                return w.error(
                    "ERR AUTH <password> called without any password configured for the default user. Are you sure \
                     your configuration is correct?",
                );
            }
            [_, password] => (DEFAULT, *password),
            [_, user, password] => (*user, *password),
            _ => return w.error("ERR syntax error"),
        };
        match self.log_in(words[0], user, password, cx) {
            true => w.ok(),
            false => w.error(WRONG_PASSWORD),
        }
    }

    /// AUTH or HELLO, after its wait.
    pub(super) fn log_in_now(&mut self, words: &Words<'_>, cx: &mut Context<'_>, out: &mut Vec<u8>) {
        match words.first() {
            Some(name) if name.eq_ignore_ascii_case(b"hello") => self.hello_now(words, cx, out),
            _ => self.auth_now(words, cx, out),
        }
    }

    /// Has a login wait, or refuses it, where many have failed.
    fn delay_login(
        &mut self,
        words: &Words<'_>,
        place: Place,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Option<Answered> {
        match cx.shared.access.attempt(&self.peer, cx.now) {
            Attempt::Now => None,
            Attempt::After(wait) => {
                let words = words.iter().map(|word| word.to_vec()).collect();
                Some(self.ask(ControlRequest::Wait(wait), Awaiting::LogIn(words), place, cx, out))
            }
            Attempt::Refused => {
                self.drain();
                Some(refuse(b"ERR too many failed logins from this address: wait a minute", out))
            }
        }
    }

    /// A failed attempt leaves the connection as it was, as in Redis; after some of them it is closed.
    fn log_in(&mut self, command: &[u8], user: &[u8], password: &[u8], cx: &mut Context<'_>) -> bool {
        match cx.shared.access.log_in(user, password, &self.peer, cx.now) {
            Some(user) => {
                self.user = user;
                self.is_authenticated = true;
                true
            }
            None => {
                cx.control.notice(Notice::LogInFailed { peer: &self.peer, user });
                self.note_refusal(Reason::Auth, command, user, cx);
                self.failed_logins += 1;
                if self.failed_logins >= FAILED_LOGINS_MAX {
                    self.drain();
                }
                false
            }
        }
    }

    /// RESET: the connection is as it was when it was made.
    pub(super) fn reset(&mut self, cx: &mut Context<'_>) {
        self.release(cx.gateway);
        self.mode = Mode::Plain;
        self.watched.clear();
        self.db = ordain_model::Db(0);
        self.protocol = Protocol::Resp2;
        self.reply_mode = ReplyMode::On;
        self.name = Box::default();
        self.no_evict = false;
        self.no_touch = false;
        self.retry = None;
        self.user = cx.shared.access.users(Users::default_user);
        self.is_authenticated = self.user.is_open();
    }

    /// CLIENT and its subcommands.
    pub(super) fn client_command(
        &mut self,
        words: &Words<'_>,
        place: Place,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Answered {
        let mut w = Writer(out);
        let sub = words[1].to_ascii_lowercase();
        match (&*sub, &words[2..]) {
            (b"id", []) => w.int(self.client.0 as i64),
            (b"getname", []) if self.name.is_empty() => w.nil(),
            (b"getname", []) => w.bulk(&self.name),
            (b"setname", [name]) if is_plain(name) => {
                self.name = (*name).into();
                w.ok();
            }
            (b"setname", [_]) => {
                w.error("ERR Client names cannot contain spaces, newlines or special characters.");
            }
            (b"setinfo", [option, value]) => self.set_info(option, value, &mut w),
            (b"info", []) => {
                let mut line = String::new();
                self.describe_as(cx.now, true, &mut line);
                w.verbatim(*b"txt", line.as_bytes());
            }
            (b"list", options) => return self.client_list(options, place, cx, out),
            (b"kill", [_, ..]) => return self.client_kill(&words[2..], place, cx, out),
            (b"tracking", [choice, ..]) => match &*choice.to_ascii_lowercase() {
                b"on" => w.error(NO_TRACKING),
                b"off" => w.ok(),
                _ => w.error("ERR syntax error"),
            },
            (b"trackinginfo", []) => {
                w.map(3);
                w.bulk(b"flags");
                w.set(1);
                w.bulk(b"off");
                w.bulk(b"redirect");
                w.int(-1);
                w.bulk(b"prefixes");
                w.array(0);
            }
            (b"getredir", []) => w.int(-1),
            (b"caching", [_]) => w.error(
                "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode \
                 enabled",
            ),
            (b"pause", [timeout, mode @ ..]) => pause(timeout, mode, &mut w),
            (b"unpause", []) => w.ok(),
            (b"unblock", [id, reason @ ..]) => unblock(id, reason, &mut w),
            (b"no-evict", [choice]) => on_or_off(choice, &mut self.no_evict, &mut w),
            (b"no-touch", [choice]) => on_or_off(choice, &mut self.no_touch, &mut w),
            (b"reply", [choice]) => {
                let mode = match &*choice.to_ascii_lowercase() {
                    b"on" => ReplyMode::On,
                    b"off" => ReplyMode::Off,
                    b"skip" if self.reply_mode == ReplyMode::Off => ReplyMode::Off,
                    b"skip" => ReplyMode::SkipNext,
                    _ => {
                        w.error("ERR syntax error");
                        return Answered::Now;
                    }
                };
                self.reply_mode = mode;
                w.ok();
            }
            (b"session", [id]) => match (number(id), cx.gateway.require(Service::Sessions)) {
                (Some(1..), Err(refusal)) => w.error(refusal.to_string()),
                (Some(id), _) => {
                    self.retry = (id != 0).then_some((SessionId(id), None));
                    w.ok();
                }
                (None, _) => w.error(NOT_INTEGER),
            },
            (b"request", [request]) => match (number(request), &mut self.retry) {
                (_, None) => w.error("ERR CLIENT REQUEST without CLIENT SESSION"),
                (Some(request @ 1..=RequestNo::LARGEST), Some((_, next))) => {
                    *next = Some(RequestNo(request));
                    w.ok();
                }
                _ => w.error("ERR request number must be between 1 and 2^56 - 1"),
            },
            (b"epoch", [] | [_]) => return self.client_epoch(words.get(2).copied(), place, cx, out),
            _ => help_or_wrong_arity("client", words, HELP, &mut w),
        }
        Answered::Now
    }

    /// CLIENT EPOCH: hands out what the connection has seen, or takes in what another one has.
    fn client_epoch(
        &mut self,
        token: Option<&[u8]>,
        place: Place,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Answered {
        let form = match cx.gateway.backend().tokens() {
            Tokens::OfConnections(form) => form,
            Tokens::OfNodes => return self.ask_for_token(token, place, cx, out),
        };
        let mut w = Writer(out);
        match token.map(|token| form.read_token(number(token))) {
            None => form.write_token(&self.seen, &mut w),
            Some(Ok(token)) => {
                self.seen.merge(&token);
                w.ok();
            }
            Some(Err(refusal)) => w.error(refusal),
        }
        Answered::Now
    }

    /// Has the node hand out a token or take one in. What is sent behind it on this connection waits for that.
    fn ask_for_token(
        &mut self,
        token: Option<&[u8]>,
        place: Place,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Answered {
        if place == Place::InExec || matches!(self.mode, Mode::Interactive(_)) {
            return refuse(EPOCH_INSIDE, out);
        }
        if token.is_some_and(|token| token.len() > TOKEN_MAX) {
            return refuse(TOKEN_TOO_LONG, out);
        }
        let write = |args: &mut ArgsBuilder<'_>| token.into_iter().for_each(|token| _ = args.push(token));
        match self.submit(Call::new(system::SEEN, self.db), cx, write) {
            Ok(_) => Answered::Later,
            Err(refusal) => refuse(&refusal.0, out),
        }
    }

    fn set_info(&mut self, option: &[u8], value: &[u8], w: &mut Writer<'_>) {
        let (field, name) = match &*option.to_ascii_lowercase() {
            b"lib-name" => (&mut self.library, "lib-name"),
            b"lib-ver" => (&mut self.library_version, "lib-ver"),
            _ => {
                return w.error([b"ERR Unrecognized option '", option, b"'"].concat());
            }
        };
        if !is_plain(value) {
            return w.error(format!("ERR {name} cannot contain spaces, newlines or special characters."));
        }
        *field = value.into();
        w.ok();
    }

    /// CLIENT LIST [TYPE type] [ID id …].
    fn client_list(
        &mut self,
        options: &Words<'_>,
        place: Place,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Answered {
        let mut filter = ClientFilter::default();
        match options {
            [] => {}
            [option, kind] if option.eq_ignore_ascii_case(b"type") => match has_clients_of(kind) {
                Ok(any) => filter.nothing = !any,
                Err(text) => return refuse(&text, out),
            },
            [option, ids @ ..] if option.eq_ignore_ascii_case(b"id") && !ids.is_empty() => {
                let ids: Option<Vec<ClientId>> = ids.iter().map(|id| client_id(id)).collect();
                match ids {
                    Some(ids) => filter.ids = ids,
                    None => return refuse(b"ERR Invalid client ID", out),
                }
            }
            _ => return refuse(b"ERR syntax error", out),
        }
        self.ask(ControlRequest::ListClients(filter), Awaiting::ClientList, place, cx, out)
    }

    /// CLIENT KILL ip:port, or CLIENT KILL option value ….
    fn client_kill(
        &mut self,
        words: &Words<'_>,
        place: Place,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Answered {
        let mut filter = ClientFilter::default();
        if let [address] = words {
            if !address.contains(&b':') {
                return refuse(b"ERR No such client", out);
            }
            filter.peer = Some(address.to_vec());
            return self.ask(
                ControlRequest::KillClients(filter),
                Awaiting::ClientKill { one: true },
                place,
                cx,
                out,
            );
        }
        let mut skip_me = true;
        let (pairs, rest) = words.as_chunks::<2>();
        for [option, value] in pairs {
            match &*option.to_ascii_lowercase() {
                b"id" => match client_id(value) {
                    Some(id) => filter.ids = vec![id],
                    None => return refuse(b"ERR client-id should be greater than 0", out),
                },
                b"addr" => filter.peer = Some(value.to_vec()),
                b"laddr" => filter.local = Some(value.to_vec()),
                b"user" if cx.shared.access.users(|users| users.get(value).is_some()) => {
                    filter.user = Some(value.to_vec());
                }
                b"user" => {
                    return refuse([b"ERR No such user '", *value, b"'"].concat(), out);
                }
                b"type" => match has_clients_of(value) {
                    Ok(any) => filter.nothing |= !any,
                    Err(text) => return refuse(&text, out),
                },
                b"skipme" if value.eq_ignore_ascii_case(b"yes") => skip_me = true,
                b"skipme" if value.eq_ignore_ascii_case(b"no") => skip_me = false,
                _ => return refuse(b"ERR syntax error", out),
            }
        }
        if !rest.is_empty() {
            return refuse(b"ERR syntax error", out);
        }
        filter.except = skip_me.then_some(self.client);
        self.ask(ControlRequest::KillClients(filter), Awaiting::ClientKill { one: false }, place, cx, out)
    }

    /// Asks the node, and waits for its answer.
    pub(super) fn ask(
        &mut self,
        request: ControlRequest,
        what: Awaiting,
        place: Place,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Answered {
        if place == Place::InExec {
            return refuse(b"ERR Command not allowed inside a transaction", out);
        }
        let sequence = self.replies.next();
        self.replies.expect(self.style(), cx.shared.scratch.cost);
        self.wait_for(sequence, what);
        cx.control.request(self.id.ticket(sequence), request);
        Answered::Later
    }

    /// The connection's line of CLIENT LIST, as Redis writes it, with a line end.
    pub fn describe(&self, now: Micros, out: &mut String) {
        // Of a command that is answered nothing is kept.
        self.describe_as(now, self.replies.pending() > 0 || self.awaited.is_some(), out);
    }

    fn describe_as(&self, now: Micros, is_busy: bool, out: &mut String) {
        let seconds = |since: Micros| now.since(since).0 / 1_000_000;
        let mut flags = String::new();
        match &self.mode {
            Mode::Multi(_) | Mode::Interactive(_) => flags.push('x'),
            Mode::Plain => {}
        }
        if self.no_evict {
            flags.push('e');
        }
        if self.no_touch {
            flags.push('T');
        }
        if flags.is_empty() {
            flags.push('N');
        }
        let (multi, multi_memory) = match &self.mode {
            Mode::Multi(multi) => (multi.len() as i64, multi.memory()),
            Mode::Plain | Mode::Interactive(_) => (-1, 0),
        };
        let (query, arguments) = if is_busy { (self.command_bytes, self.argument_bytes) } else { (0, 0) };
        let memory = query as usize
            + size_of::<Session>()
            + self.parser.memory()
            + self.replies.memory()
            + multi_memory;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        // Writing into a string cannot fail.
        let _ = writeln!(
            out,
            "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={} db={} sub=0 psub=0 ssub=0 multi={} qbuf={} \
             qbuf-free=0 argv-mem={} multi-mem={} rbs={} rbp={} obl={} oll=0 omem={} tot-mem={} events=r cmd={} \
             user={} redir=-1 resp={} lib-name={} lib-ver={}",
            self.client,
            self.peer,
            self.local,
            self.id.slot(),
            text(&self.name),
            seconds(self.since),
            seconds(self.active),
            flags,
            self.db,
            multi,
            query,
            arguments,
            multi_memory,
            self.replies.memory(),
            self.replies.memory(),
            self.replies.unsent(),
            self.replies.unsent().saturating_sub(16 << 10),
            memory,
            self.command.map_or_else(|| "NULL".to_string(), CommandNo::name),
            text(self.user.name()),
            self.protocol.number(),
            text(&self.library),
            text(&self.library_version),
        );
    }
}

/// The lines of CLIENT HELP.
const HELP: &[&str] = &[
    "CACHING, GETREDIR, TRACKING OFF, TRACKINGINFO: accepted; there is no tracking of keys.",
    "EPOCH [<epoch>]: the last epoch that this connection has seen; or have it see at least that of \
     another connection: its reads on snapshots hold it. With some engines it is no number but a word, to be \
     passed on as it is.",
    "GETNAME: the name of this connection.",
    "ID: the number of this connection.",
    "INFO: what LIST says of this connection.",
    "KILL <ip:port> | <option> <value> ...: close connections, by ID, ADDR, LADDR, USER, TYPE, SKIPME.",
    "LIST [TYPE <type>] [ID <id> ...]: the connections of this node.",
    "NO-EVICT (ON|OFF): accepted; this server evicts no connection.",
    "NO-TOUCH (ON|OFF): accepted; reading a key changes nothing about it.",
    "REPLY (ON|OFF|SKIP): whether this connection is answered.",
    "REQUEST <number>: the number of the next transaction in its session; a retry under the same \
     number takes effect once and is answered alike.",
    "SESSION <id>: the durable session that REQUEST numbers belong to; 0 for none.",
    "SETINFO (LIB-NAME|LIB-VER) <value>: the library behind this connection.",
    "SETNAME <name>: names this connection.",
];

const EPOCH_INSIDE: &str = "ERR CLIENT EPOCH asks the node with this engine, and a transaction's view is fixed: call it \
                            outside of MULTI and TXN.BEGIN";
const TOKEN_TOO_LONG: &str = "ERR a token of CLIENT EPOCH has 16384 bytes at most: pass on what CLIENT EPOCH has \
                              answered, as it is";

const NO_TRACKING: &str = "ERR CLIENT TRACKING is not supported: this server sends no invalidation messages; switch \
                           client-side caching off in the client";

/// CLIENT PAUSE: of no time it is none, any other is refused.
fn pause(timeout: &[u8], mode: &Words<'_>, w: &mut Writer<'_>) {
    match (parse_int(timeout), mode) {
        (_, [_, _, ..]) => w.error(wrong_words("client", "PAUSE")),
        (_, [mode]) if !mode.eq_ignore_ascii_case(b"write") && !mode.eq_ignore_ascii_case(b"all") => {
            w.error("ERR CLIENT PAUSE mode must be WRITE or ALL");
        }
        (None, _) => w.error("ERR timeout is not an integer or out of range"),
        (Some(..0), _) => w.error("ERR timeout is negative"),
        (Some(0), _) => w.ok(),
        _ => w.error(
            "ERR CLIENT PAUSE is not supported: no node holds the clients of the others; stop them, or take a \
             checkpoint (BGSAVE), which needs no pause",
        ),
    }
}

/// CLIENT UNBLOCK: no command blocks.
fn unblock(id: &[u8], reason: &Words<'_>, w: &mut Writer<'_>) {
    match (reason, parse_int(id)) {
        ([], None) => w.error(NOT_INTEGER),
        ([], Some(_)) => w.int(0),
        ([reason], _)
            if !reason.eq_ignore_ascii_case(b"timeout") && !reason.eq_ignore_ascii_case(b"error") =>
        {
            w.error("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR");
        }
        ([_], None) => w.error(NOT_INTEGER),
        ([_], Some(_)) => w.int(0),
        _ => w.error(wrong_words("client", "UNBLOCK")),
    }
}

fn on_or_off(choice: &[u8], flag: &mut bool, w: &mut Writer<'_>) {
    let on = choice.eq_ignore_ascii_case(b"on");
    if !on && !choice.eq_ignore_ascii_case(b"off") {
        return w.error("ERR syntax error");
    }
    *flag = on;
    w.ok();
}

/// Tells whether this server has connections of a kind: all its clients are normal ones.
fn has_clients_of(kind: &[u8]) -> Result<bool, Vec<u8>> {
    match &*kind.to_ascii_lowercase() {
        b"normal" => Ok(true),
        b"master" | b"replica" | b"slave" | b"pubsub" => Ok(false),
        _ => Err([b"ERR Unknown client type '", kind, b"'"].concat()),
    }
}

fn client_id(text: &[u8]) -> Option<ClientId> {
    number(text).filter(|id| *id > 0).map(ClientId)
}

/// Reads a number from 0 on.
pub(super) fn number(text: &[u8]) -> Option<u64> {
    parse_int(text).and_then(|n| u64::try_from(n).ok())
}
