//! From the words of a command to a transaction, or to the session's own commands.

use ordain_commands::script::functions::{function_call, function_subcommand};
use ordain_commands::script::{frugal, script_subcommand};
use ordain_commands::table::{self, CommandNo, quoted};
use ordain_commands::{Action, Command, Flags, SessionCommand, check_arity, check_subcommand};
use ordain_model::{ArgsBuilder, Call, PlanError, ProcedureId, Registry, Writer, system};

use super::access::carrying;
use super::{Mode, ReplyMode, Session, Words};
use crate::diagnostics::place_of;
use crate::shared::{Context, Foreign};

/// Writes a procedure's arguments.
pub(super) type Encode = fn(&[&[u8]], &mut ArgsBuilder<'_>);

/// A command that has become a call.
pub(super) struct Planned<'w, 'a> {
    pub(super) procedure: ProcedureId,
    pub(super) encode: Encode,
    pub(super) args: &'w [&'a [u8]],
}

/// Whether a command has been answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answered {
    /// It was written.
    Now,
    /// A request was submitted or asked of the node, and the session waits for its answer.
    Later,
}

/// Where a session's own command runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// As it comes.
    Alone,
    /// As a part of EXEC, which waits for nothing.
    InExec,
}

/// The call that a command makes; `None` if the session answers it itself.
///
/// # Errors
/// There is no such subcommand, it takes other words, or it is no call that the native procedure it names takes.
#[inline]
pub(super) fn planned<'w, 'a>(
    registry: &Registry,
    command: &Command,
    words: &'w Words<'a>,
) -> Result<Option<Planned<'w, 'a>>, PlanError> {
    let which = match command.action {
        Action::Procedure { id, encode } => {
            return Ok(Some(Planned { procedure: id, encode, args: &words[1..] }));
        }
        Action::Function { read_only } => {
            let (procedure, encode, args) = function_call(registry, read_only, &words[1..])?;
            return Ok(Some(Planned { procedure, encode, args }));
        }
        Action::Session(which) => which,
    };
    let [_, sub, args @ ..] = words else { return Ok(None) };
    let is = |name: &str| sub.eq_ignore_ascii_case(name.as_bytes());
    let (procedure, encode): (ProcedureId, Encode) = match which {
        SessionCommand::Debug if is("digest") && args.is_empty() => (system::DIGEST, |_, _| ()),
        SessionCommand::Script if !is("help") && !is("kill") && !is("debug") => {
            script_subcommand(&words[1..])?
        }
        SessionCommand::Function if !is("help") && !is("kill") => function_subcommand(&words[1..])?,
        _ => return Ok(None),
    };
    Ok(Some(Planned { procedure, encode, args }))
}

/// The procedure under whose number a call is logged: while memory is short, scripts have numbers of their own.
#[inline]
pub(super) fn numbered(procedure: ProcedureId, cx: &Context<'_>) -> ProcedureId {
    // Planted, OOM-BEFORE.
    let is_short = cx.shared.memory.is_short() && !cx.gateway.forgets_shortage();
    if is_short { frugal(procedure) } else { procedure }
}

/// Tells whether a command's name is a line of an HTTP request. Each request has one of the two: a form that a page sends
/// is a POST, and every other request of HTTP/1.1 names its host. So what its body or path holds is never executed.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// The error Redis gives for a command it does not know, with the beginning of what came with it.
fn unknown(words: &Words<'_>) -> Vec<u8> {
    let mut text = b"ERR unknown command '".to_vec();
    text.extend_from_slice(quoted(words[0], 128));
    text.extend_from_slice(b"', with args beginning with: ");
    let start = text.len();
    for word in &words[1..] {
        let room = 128usize.saturating_sub(text.len() - start);
        if room == 0 {
            break;
        }
        text.push(b'\'');
        text.extend_from_slice(quoted(word, room));
        text.extend_from_slice(b"' ");
    }
    text
}

/// The error Redis gives for a subcommand with too many or too few words where it looks at them itself.
pub(super) fn wrong_words(container: &str, sub: &str) -> String {
    let container = container.to_ascii_uppercase();
    format!("ERR unknown subcommand or wrong number of arguments for '{sub}'. Try {container} HELP.")
}

/// The error Redis gives for a subcommand with too many or too few words.
pub(super) fn wrong_arity(container: &str, sub: &str) -> String {
    format!("ERR wrong number of arguments for '{container}|{sub}' command")
}

/// Answers a subcommand that nothing else has answered: HELP, with these lines, or one with too many words. A subcommand that
/// there is not, or with too few words, was refused by [`check_subcommand`].
pub(super) fn help_or_wrong_arity(container: &str, words: &Words<'_>, lines: &[&str], w: &mut Writer<'_>) {
    let sub = words[1].to_ascii_lowercase();
    if sub != b"help" || words.len() > 2 {
        return w.error(wrong_arity(container, &String::from_utf8_lossy(&sub)));
    }
    // Framed as Redis frames its own.
    let container = container.to_ascii_uppercase();
    w.array(lines.len() + 1);
    w.status(&format!("{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    lines.iter().for_each(|line| w.status(line));
}

/// Writes an error as the answer to a command.
pub(super) fn refuse(text: impl AsRef<[u8]>, out: &mut Vec<u8>) -> Answered {
    Writer(out).error(text);
    Answered::Now
}

impl Session {
    /// Begins a command: CLIENT REPLY SKIP counts commands.
    #[inline]
    pub(super) fn begin_command(&mut self) {
        match self.reply_mode {
            ReplyMode::On | ReplyMode::Off => {}
            ReplyMode::SkipNext => self.reply_mode = ReplyMode::Skip,
            ReplyMode::Skip => self.reply_mode = ReplyMode::On,
        }
    }

    /// Handles one command.
    #[inline]
    pub(super) fn handle(&mut self, words: &Words<'_>, cx: &mut Context<'_>) {
        self.begin_command();
        self.command = CommandNo::find(words[0]);
        let argument_bytes = words.iter().map(|word| word.len()).sum::<usize>();
        self.argument_bytes = u32::try_from(argument_bytes).unwrap_or(u32::MAX);
        let Some(number) = self.command else {
            // Before any other check, in MULTI and before AUTH too, as in Redis.
            if is_http(words[0]) {
                return self.cut_off(Foreign::Http, cx);
            }
            return self.reject(&unknown(words), cx);
        };
        let command = number.command();
        if let Err(error) = check_arity(command, words.len()) {
            return self.reject(&error.0, cx);
        }
        if command.flags.has(Flags::CONTAINER) {
            if let Some(word) = words.get(1) {
                self.command = Some(number.narrowed(word));
            }
            if let Err(error) = check_subcommand(command, words) {
                return self.reject(&error.0, cx);
            }
        }
        if cx.shared.access.version() != self.users_version {
            self.note_users(cx.shared);
            if self.closing != super::Closing::No {
                return;
            }
        }
        if !self.is_authenticated && !command.flags.has(Flags::NO_AUTH) {
            return self.reject(b"NOAUTH Authentication required.", cx);
        }
        if !self.user.is_unrestricted()
            && let Err(denied) = self.check_rights(command, words, cx.gateway.registry())
        {
            return self.deny(command, words, denied, cx);
        }
        self.is_known = true;
        if cx.shared.memory.is_short() && self.refuse_without_memory(command, words, cx) {
            return;
        }
        self.weigh(command, words, cx);
        let cost = cx.shared.scratch.cost;
        if !self.can_afford(&cost, cx.shared) {
            self.waiting = Some(Box::new((words.iter().map(|word| word.to_vec()).collect(), cost)));
            return;
        }
        self.run(command, words, cx);
    }

    /// Runs a command for which there is room.
    #[inline]
    pub(super) fn run(&mut self, command: &'static Command, words: &Words<'_>, cx: &mut Context<'_>) {
        let command =
            if command.flags.has(Flags::CONTAINER) { table::answered_by(command, words) } else { command };
        match (&self.mode, command.action) {
            (Mode::Plain, Action::Procedure { id, encode }) if self.user.is_unrestricted() => {
                let call = Call { procedure: numbered(id, cx), db: self.db, session: self.take_request() };
                if let Err(refusal) = self.submit(call, cx, |args| encode(&words[1..], args)) {
                    self.answer(cx, |w| w.error(&refusal.0));
                }
            }
            (Mode::Plain, Action::Procedure { .. } | Action::Function { .. }) => {
                _ = self.submit_planned(command, words, cx);
            }
            (Mode::Plain, Action::Session(which)) => self.handle_own(command, which, words, cx),
            (Mode::Multi(_), _) => self.handle_in_multi(command, words, cx),
            (Mode::Interactive(_), _) => self.handle_in_interactive(command, words, cx),
        }
    }

    /// Refuses a command that never began: in a MULTI block, the block will not run.
    pub(super) fn reject(&mut self, text: &[u8], cx: &mut Context<'_>) {
        if let Mode::Multi(multi) = &mut self.mode {
            multi.spoil();
        }
        if let Some(number) = self.command {
            cx.shared.observed.times.reject(place_of(number.command()));
        }
        self.is_known = false;
        self.answer(cx, |w| w.error(text));
    }

    /// A command of the session's own, outside MULTI.
    pub(super) fn handle_own(
        &mut self,
        command: &'static Command,
        which: SessionCommand,
        words: &Words<'_>,
        cx: &mut Context<'_>,
    ) {
        if self.submit_planned(command, words, cx) {
            return;
        }
        let mut reply = std::mem::take(&mut cx.shared.scratch.datum);
        reply.clear();
        let answered = self.run_own(which, words, Place::Alone, cx, &mut reply);
        if answered == Answered::Now {
            self.answer_with(cx, &reply);
        }
        cx.shared.scratch.datum = reply;
    }

    /// Submits the call that a command makes, or answers why not; says whether it makes one.
    fn submit_planned(&mut self, command: &Command, words: &Words<'_>, cx: &mut Context<'_>) -> bool {
        let submitted = match planned(cx.gateway.registry(), command, words) {
            Ok(None) => return false,
            Ok(Some(Planned { procedure, encode, args })) => {
                let user = self.user.clone();
                let (procedure, carried) = carrying(procedure, user.carried(), cx.gateway);
                let procedure = numbered(procedure, cx);
                let call = Call { procedure, db: self.db, session: self.take_request() };
                let args = |out: &mut ArgsBuilder<'_>| {
                    carried.into_iter().for_each(|rights| _ = out.push(rights));
                    encode(args, out);
                };
                self.submit(call, cx, args).map(drop)
            }
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = submitted {
            self.answer(cx, |w| w.error(&refusal.0));
        }
        true
    }

    /// Runs a command of the session's own and writes its reply.
    pub(super) fn run_own(
        &mut self,
        which: SessionCommand,
        words: &Words<'_>,
        place: Place,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Answered {
        let mut w = Writer(out);
        match which {
            SessionCommand::Ping => match words {
                [_] => w.status("PONG"),
                [_, text] => w.bulk(text),
                _ => w.error("ERR wrong number of arguments for 'ping' command"),
            },
            SessionCommand::Echo => w.bulk(words[1]),
            SessionCommand::Hello => return self.hello(words, place, cx, out),
            SessionCommand::Auth => return self.auth(words, place, cx, out),
            SessionCommand::Acl => return self.acl(words, place, cx, out),
            SessionCommand::Quit => {
                w.ok();
                self.drain();
            }
            SessionCommand::Reset => {
                self.reset(cx);
                w.status("RESET");
            }
            SessionCommand::Select => match crate::shared::parse_db(words[1]) {
                Ok(db) => {
                    self.db = db;
                    w.ok();
                }
                Err(text) => w.error(text),
            },
            SessionCommand::Client => return self.client_command(words, place, cx, out),
            SessionCommand::Command => super::introspection::command(words, out),
            SessionCommand::Info => return self.info_command(words, place, cx, out),
            SessionCommand::Config => super::server::config(words, cx, out),
            SessionCommand::Time => {
                w.array(2);
                w.bulk((cx.now.0 / 1_000_000).to_string().as_bytes());
                w.bulk((cx.now.0 % 1_000_000).to_string().as_bytes());
            }
            SessionCommand::Multi => {
                self.mode = Mode::Multi(Box::new(super::multi::Multi::new(self.db, self.user.clone())));
                w.ok();
            }
            SessionCommand::Exec => w.error("ERR EXEC without MULTI"),
            SessionCommand::Discard => w.error("ERR DISCARD without MULTI"),
            SessionCommand::Watch => return self.watch(words, cx, out),
            SessionCommand::Unwatch => {
                self.watched.clear();
                w.ok();
            }
            SessionCommand::TxnBegin => self.txn_begin(words, cx, out),
            SessionCommand::TxnCommit => w.error("ERR TXN.COMMIT without TXN.BEGIN"),
            SessionCommand::TxnAbort => w.error("ERR TXN.ABORT without TXN.BEGIN"),
            SessionCommand::Debug if words.get(1).is_some_and(|sub| sub.eq_ignore_ascii_case(b"move-slots")) => {
                return self.move_slots(words, place, cx, out);
            }
            SessionCommand::Debug if words.get(1).is_some_and(|sub| sub.eq_ignore_ascii_case(b"copy-slot")) => {
                return self.copy_slot(words, place, cx, out);
            }
            SessionCommand::Debug => super::server::debug(words, out),
            SessionCommand::Script => super::server::script(words, &cx.shared.computations, out),
            SessionCommand::Function => super::server::function(words, &cx.shared.computations, out),
            SessionCommand::Save => w.error(
                "ERR SAVE is not supported: it would stop every client; BGSAVE takes a checkpoint while they go on",
            ),
            SessionCommand::BgSave => return self.bgsave(words, place, cx, out),
            SessionCommand::LastSave => w.int(cx.shared.node.last_save_s() as i64),
            SessionCommand::Module => super::absent::module(words, out),
            SessionCommand::PubSub => super::absent::pubsub(words, out),
            SessionCommand::Publish => w.int(0),
            SessionCommand::Subscribe => super::absent::subscribe(words, out),
            SessionCommand::Wait => super::absent::wait(words, cx, out),
            SessionCommand::Role => super::absent::role(cx, out),
            SessionCommand::Memory => return self.memory_command(words, place, cx, out),
            SessionCommand::SlowLog => super::diagnostics::slowlog(words, cx, out),
            SessionCommand::Latency => super::diagnostics::latency(words, cx, out),
        }
        Answered::Now
    }
}
