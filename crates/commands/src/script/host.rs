//! `redis`: the functions through which a script reaches its records, and what they and their commands cost.

use ordain_lua::cost::{COMPUTE, COPY, Cost, SCAN, cost};
use ordain_lua::{Args, Body, Death, Fault, Host, Machine, Result, Row, Value};
use ordain_model::procedure::{Locals, Members};
use ordain_model::serial::{CallError, Scratch, Surroundings, call, seed_of};
use ordain_model::{Abort, ArgsBuilder, Datum, Db, Gsn, PlanError, Writer};

use super::vm::Registered;
use super::{convert, sha1_hex};
use crate::rights::Rights;
use crate::table::{
    Action, Command, Flags, absent_from_scripts, check_arity, check_subcommand, lookup, subcommand, takes,
};

/// Declares the functions of the host from one table: each with its name and its cost.
macro_rules! functions {
    ($($function:ident = $name:literal, $cost:expr;)*) => {
        /// A function of the host.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        enum Function {
            $($function),*
        }

        const FUNCTIONS: &[Function] = &[$(Function::$function),*];

        /// The costs of the functions; a command costs what [`CLASSES`] says besides.
        pub(super) const ROWS: &[Row] = &[$(
            Row { name: $name, cost: $cost, body: Body::Host(Function::$function as u16) },
        )*];
    };
}

// Units each time, bytes to a unit, units an item.
functions! {
    Call = "redis.call", cost(20, COPY, 2);
    Pcall = "redis.pcall", cost(20, COPY, 2);
    ErrorReply = "redis.error_reply", cost(20, SCAN, 0);
    StatusReply = "redis.status_reply", cost(20, SCAN, 0);
    Sha1Hex = "redis.sha1hex", cost(40, COMPUTE, 0);
    Log = "redis.log", cost(8, COPY, 0);
    SetResp = "redis.setresp", cost(8, COPY, 0);
    SetRepl = "redis.set_repl", cost(8, COPY, 0);
    ReplicateCommands = "redis.replicate_commands", cost(8, COPY, 0);
    AclCheckCommand = "redis.acl_check_cmd", cost(40, COPY, 2);
    Breakpoint = "redis.breakpoint", cost(8, COPY, 0);
    Debug = "redis.debug", cost(8, COPY, 0);
    Register = "redis.register_function", cost(200, SCAN, 20);
}

/// The part of its records that a command touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Nothing: it is refused, or needs no record.
    None,
    /// Fields, and the strings that it writes.
    Point,
    /// Everything in the records.
    Whole,
    /// Bytes that it writes into a string where that lies, and what is kept to undo that.
    Range,
}

/// The cost of a command by its class, besides the call. The bytes are its arguments, its reply and what it touches.
pub(super) const CLASSES: [(Class, Cost); 4] = [
    (Class::None, cost(60, COPY, 0)),
    (Class::Point, cost(100, COPY, 60)),
    (Class::Whole, cost(100, 16, 60)),
    // A string that grows is moved from time to time: its bytes are paid for as those are by which it grows.
    (Class::Range, cost(100, 16, 60)),
];

/// Commands that go through all of a record.
const WHOLE: [&str; 9] =
    ["copy", "hgetall", "hkeys", "hrandfield", "hscan", "hvals", "rename", "renamenx", "incrbyfloat"];

/// The class of a command.
pub(super) fn class_of(command: &Command) -> Class {
    match command.action {
        Action::Procedure { .. } if WHOLE.contains(&command.name) => Class::Whole,
        Action::Procedure { .. } if matches!(command.name, "append" | "setrange") => Class::Range,
        Action::Procedure { .. } => Class::Point,
        _ => Class::None,
    }
}

const NOT_ALLOWED: PlanError = PlanError::fixed("ERR This Redis command is not allowed from script");
const UNKNOWN: PlanError = PlanError::fixed("ERR Unknown Redis command called from script");
const WRONG_ARITY: PlanError = PlanError::fixed("ERR Wrong number of args calling Redis command from script");
const WHOLE_TABLE: PlanError = PlanError::fixed(
    "ERR This Redis command is not allowed from script: it goes over all keys, and a script has those that it declares",
);
const READ_ONLY: PlanError = PlanError::fixed("ERR Write commands are not allowed from read-only scripts.");
const OUTSIDE: PlanError = PlanError::fixed("ERR redis.call can only be called inside a script or function");

/// Vectors that are used again from call to call.
#[derive(Default)]
pub(super) struct Buffers {
    scratch: Scratch,
    words: Vec<u8>,
    ends: Vec<usize>,
    args: Vec<u8>,
    reply: Vec<u8>,
}

impl Buffers {
    /// Gives back what an unusually large call has taken.
    pub(super) fn trim(&mut self) {
        const KEPT: usize = 64 << 10;
        for buffer in [&mut self.words, &mut self.args, &mut self.reply] {
            if buffer.capacity() > KEPT {
                *buffer = Vec::new();
            }
        }
        if self.ends.capacity() > KEPT / 8 {
            self.ends = Vec::new();
        }
    }
}

/// The records of a running script.
pub(super) struct Reach<'a> {
    pub members: &'a mut dyn Members,
    pub locals: &'a mut Locals,
    pub surroundings: Surroundings<'a>,
    pub db: Db,
    /// The rights of the user whose script it is; none: all rights.
    pub rights: Option<&'a Rights>,
    /// True if commands that need memory are refused.
    pub frugal: bool,
}

/// The host of a run.
pub(super) struct Hands<'a> {
    /// Nothing while a library is loaded.
    pub reach: Option<Reach<'a>>,
    pub buffers: &'a mut Buffers,
    pub resp3: bool,
    /// The abort of the command that ended the run, if one did.
    pub abort: Option<Abort>,
    /// The functions that a library has registered so far, while it is loaded.
    pub registered: Option<Vec<(Registered, Value)>>,
    pub calls: u64,
}

/// An error that a script catches as `{err = "ERR …"}`.
fn raise(m: &mut Machine, text: &str) -> Fault {
    raise_reply(m, format!("ERR {text}").as_bytes())
}

fn raise_reply(m: &mut Machine, text: &[u8]) -> Fault {
    match error_table(m, text) {
        Ok(table) => Fault::Error(table),
        Err(fault) => fault,
    }
}

fn error_table(m: &mut Machine, text: &[u8]) -> Result<Value> {
    let text = m.heap.text(text)?;
    let table = m.heap.table(0, 1)?;
    m.heap.set_field(table, "err", text)?;
    Ok(Value::Table(table))
}

impl Host for Hands<'_> {
    fn call(&mut self, m: &mut Machine, function: u16, args: Args) -> Result<()> {
        let Some(function) = FUNCTIONS.get(usize::from(function)) else {
            return Err("no such function".into());
        };
        match function {
            Function::Call => {
                let reply = self.dispatch(m, args)?;
                if let Datum::Error(text) = Datum::first(&self.buffers.reply) {
                    let text = text.to_vec();
                    return Err(raise_reply(m, &text));
                }
                m.give(reply);
            }
            Function::Pcall => {
                let reply = self.dispatch(m, args)?;
                m.give(reply);
            }
            Function::ErrorReply => error_reply(m, args)?,
            Function::StatusReply => status_reply(m, args)?,
            Function::Sha1Hex => {
                if args.len() != 1 {
                    return Err(raise(m, "wrong number of arguments"));
                }
                let text = m.heap.as_str(m.arg(args, 0))?;
                m.touch(text.map_or(0, |text| m.heap.str_len(text)), 0)?;
                let sha = sha1_hex(text.map_or(&[], |text| m.heap.bytes(text)));
                m.give_text(&sha)?;
            }
            Function::Log => {
                if args.len() < 2 {
                    return Err(raise(m, "redis.log() requires two arguments or more."));
                }
                match m.arg(args, 0) {
                    Value::Number(level) if (0.0..=3.0).contains(&level.trunc()) => {}
                    Value::Number(_) => return Err(raise(m, "Invalid log level.")),
                    _ => return Err(raise(m, "First argument must be a number (log level).")),
                }
            }
            Function::SetResp => {
                if args.len() != 1 {
                    return Err(raise(m, "redis.setresp() requires one argument."));
                }
                match m.arg(args, 0) {
                    Value::Number(2.0) => self.resp3 = false,
                    Value::Number(3.0) => self.resp3 = true,
                    _ => return Err(raise(m, "RESP version must be 2 or 3.")),
                }
            }
            Function::SetRepl => {
                if args.len() != 1 {
                    return Err(raise(m, "redis.set_repl() requires one argument."));
                }
                match m.arg(args, 0) {
                    Value::Number(flags) if (0.0..=3.0).contains(&flags) => {}
                    _ => {
                        let text = "Invalid replication flags. Please use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.";
                        return Err(raise(m, text));
                    }
                }
            }
            Function::ReplicateCommands => m.give(Value::Bool(true)),
            Function::AclCheckCommand => self.acl_check(m, args)?,
            // There is no debugger: as in Redis without one.
            Function::Breakpoint => m.give(Value::Bool(false)),
            Function::Debug => {}
            Function::Register => self.register(m, args)?,
        }
        Ok(())
    }
}

fn error_reply(m: &mut Machine, args: Args) -> Result<()> {
    let (1, Value::String(text)) = (args.len(), m.arg(args, 0)) else {
        let table = error_table(m, b"ERR wrong number or type of arguments")?;
        m.give(table);
        return Ok(());
    };
    m.touch(m.heap.str_len(text), 0)?;
    m.heap.budget.fits(3 * m.heap.str_len(text))?;
    let text = m.heap.bytes(text);
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let text = text.split(|b| *b == 0).next().unwrap_or_default();
    let end = text.iter().rposition(|b| !matches!(b, b'\r' | b'\n')).map_or(0, |at| at + 1);
    // Without a code it is given the common one.
    let text = match text[..end].contains(&b' ') {
        true => text[..end].to_vec(),
        false => [b"ERR ", &text[..end]].concat(),
    };
    let table = error_table(m, &text)?;
    m.give(table);
    Ok(())
}

fn status_reply(m: &mut Machine, args: Args) -> Result<()> {
    let (1, text @ Value::String(s)) = (args.len(), m.arg(args, 0)) else {
        let table = error_table(m, b"ERR wrong number or type of arguments")?;
        m.give(table);
        return Ok(());
    };
    m.touch(m.heap.str_len(s), 0)?;
    let table = m.heap.table(0, 1)?;
    m.heap.set_field(table, "ok", text)?;
    m.give(Value::Table(table));
    Ok(())
}

impl Hands<'_> {
    /// Runs a command and answers its reply as Lua sees it. The reply itself stands in the buffers.
    fn dispatch(&mut self, m: &mut Machine, args: Args) -> Result<Value> {
        self.buffers.reply.clear();
        if let Err(refusal) = self.command(m, args)? {
            self.buffers.reply.clear();
            Writer(&mut self.buffers.reply).error(&refusal.0);
        }
        m.heap.budget.fits(self.buffers.reply.len())?;
        convert::from_datum(m, &self.buffers.reply, self.resp3)
    }

    /// Writes the words of a call one after another.
    fn collect(&mut self, m: &mut Machine, args: Args) -> Result<std::result::Result<(), &'static str>> {
        const BAD_ARGUMENT: &str = "ERR Lua redis lib command arguments must be strings or integers";
        let Buffers { words, ends, .. } = &mut *self.buffers;
        words.clear();
        ends.clear();
        if args.is_empty() {
            return Ok(Err("ERR Please specify at least one argument for this redis lib call"));
        }
        let length = |value: &Value| match value {
            Value::String(s) => Some(m.heap.str_len(*s)),
            Value::Number(_) => Some(32),
            _ => None,
        };
        let total =
            m.args(args).iter().map(length).try_fold(0usize, |sum, len| Some(sum.saturating_add(len?)));
        let Some(total) = total else { return Ok(Err(BAD_ARGUMENT)) };
        // The words are written, then encoded.
        m.touch(total, args.len())?;
        m.heap.budget.fits(total.saturating_mul(2).saturating_add(16 * args.len()))?;
        for value in m.args(args) {
            match value {
                Value::String(s) => words.extend_from_slice(m.heap.bytes(*s)),
                Value::Number(x) => words.extend_from_slice(convert::argument_text(*x).as_bytes()),
                _ => {}
            }
            ends.push(words.len());
        }
        Ok(Ok(()))
    }

    fn command(&mut self, m: &mut Machine, args: Args) -> Result<std::result::Result<(), PlanError>> {
        if let Err(text) = self.collect(m, args)? {
            return Ok(Err(PlanError::fixed(text)));
        }
        let Hands { reach, buffers, calls, abort, .. } = self;
        let Some(reach) = reach else { return Ok(Err(OUTSIDE)) };
        let Buffers { scratch, words, ends, args, reply } = &mut **buffers;
        let mut list: smallvec::SmallVec<[&[u8]; 8]> = smallvec::SmallVec::with_capacity(ends.len());
        let mut from = 0;
        for &end in &*ends {
            list.push(&words[from..end]);
            from = end;
        }
        let command = match permitted(reach, &list, words.len()) {
            Ok(command) => command,
            Err(Refused { refusal, bytes, items }) => {
                charge(m, Class::None, bytes, items)?;
                return Ok(Err(refusal));
            }
        };
        let class = class_of(command);
        let Action::Procedure { id, encode } = command.action else {
            charge(m, Class::None, words.len(), 0)?;
            return Ok(answer_here(command, &list, reach.surroundings.now.0, &mut Writer(reply)));
        };
        if reach.surroundings.read_only && command.flags.has(Flags::WRITE) {
            charge(m, class, 0, 0)?;
            return Ok(Err(READ_ONLY));
        }
        args.clear();
        encode(&list[1..], &mut ArgsBuilder::new(args));
        let Some(args) = ordain_model::Args::parse(args) else { return Ok(Err(NOT_ALLOWED)) };
        *calls += 1;
        let seed = seed_of(Gsn(reach.surroundings.seed.wrapping_add(*calls)));
        let Reach { members, locals, db, surroundings, .. } = reach;
        // Inverses of the script's writes count as its memory. So does the answer, twice: as the command gives it, and as the
        // Lua value that is made of it.
        let undone_by = members.undo_bytes();
        let room = m.heap.budget.room().saturating_sub(undone_by) / 2;
        let surroundings = Surroundings { seed, room, ..*surroundings };
        let result = call(surroundings, &mut **members, scratch, id, *db, args, locals, reply);
        let touched = scratch.touched();
        let records = match class {
            Class::Whole => touched.read + touched.written,
            Class::Range => touched.grown + members.undo_bytes().saturating_sub(undone_by),
            Class::Point | Class::None => touched.written,
        };
        charge(m, class, words.len() + reply.len() + records, touched.records)?;
        m.heap.budget.fits(members.undo_bytes())?;
        Ok(match result {
            Ok(()) => Ok(()),
            Err(CallError::Plan(refusal)) => Err(refusal),
            Err(CallError::Undeclared) => Err(PlanError::fixed(
                "ERR Script attempted to access a non declared key: every key a script touches must be one of its KEYS",
            )),
            Err(CallError::ReadOnly) => Err(READ_ONLY),
            Err(CallError::NotAllowed) => Err(WHOLE_TABLE),
            Err(CallError::NoRoom) => return Err(m.heap.budget.die(Death::Memory)),
            Err(CallError::Abort(reason)) => {
                *abort = Some(reason);
                return Err(m.heap.budget.die(Death::Host));
            }
        })
    }

    /// `redis.acl_check_cmd`: says that the script's caller may run a command.
    fn acl_check(&mut self, m: &mut Machine, args: Args) -> Result<()> {
        if args.is_empty() {
            return Err(raise(m, "Please specify at least one argument for this redis.acl_check_cmd() call"));
        }
        if let Err(text) = self.collect(m, args)? {
            return Err(raise_reply(m, text.as_bytes()));
        }
        let Buffers { words, ends, .. } = &*self.buffers;
        let mut from = 0;
        let list: Vec<&[u8]> =
            ends.iter().map(|end| &words[std::mem::replace(&mut from, *end)..*end]).collect();
        let Some(command) = lookup(list[0]) else {
            return Err(raise(m, "Invalid command passed to redis.acl_check_cmd()"));
        };
        let rights = self.reach.as_ref().and_then(|reach| reach.rights);
        let may = rights.is_none_or(|rights| rights.check(command, &list).is_ok());
        m.give(Value::Bool(may));
        Ok(())
    }

    /// `redis.register_function(name, function)`, or of a table of named arguments.
    fn register(&mut self, m: &mut Machine, args: Args) -> Result<()> {
        if self.registered.is_none() {
            return Err(raise(m, "redis.register_function can only be called on FUNCTION LOAD command"));
        }
        let (mut name, mut callback, mut flags, mut description) =
            (Value::Nil, Value::Nil, Value::Nil, Value::Nil);
        match (args.len(), m.arg(args, 0)) {
            (1, Value::Table(table)) => {
                m.touch(0, m.heap.extent(table))?;
                m.heap.budget.fits(32 * m.heap.extent(table))?;
                let fields: Vec<(Value, Value)> = m.heap.pairs(table).collect();
                for (key, value) in fields {
                    let key = match key {
                        Value::String(s) => m.heap.bytes(s),
                        _ => b"",
                    };
                    match key {
                        b"function_name" => name = value,
                        b"callback" => callback = value,
                        b"flags" => flags = value,
                        b"description" => description = value,
                        _ => return Err(raise(m, "unknown argument given to redis.register_function")),
                    }
                }
            }
            (1, _) => {
                let text = "calling redis.register_function with a single argument is only applicable to Lua table \
                            (representing named arguments).";
                return Err(raise(m, text));
            }
            (2, first) => {
                if !matches!(first, Value::String(_) | Value::Number(_)) {
                    return Err(raise(m, "first argument to redis.register_function must be a string"));
                }
                name = first;
                callback = m.arg(args, 1);
                if !is_function(callback) {
                    return Err(raise(m, "second argument to redis.register_function must be a function"));
                }
            }
            _ => return Err(raise(m, "wrong number of arguments to redis.register_function")),
        }
        // A number is as good as its text, as everywhere in Lua.
        let as_text = |m: &mut Machine, value: Value| match value {
            Value::Number(_) => m.heap.as_str(value).map(|text| text.map_or(value, Value::String)),
            other => Ok(other),
        };
        (name, description) = (as_text(m, name)?, as_text(m, description)?);
        let refused = match (name, callback) {
            (Value::Nil, _) => Some("redis.register_function must get a function name argument"),
            (_, Value::Nil) => Some("redis.register_function must get a callback argument"),
            (Value::String(_), callback) if is_function(callback) => None,
            (Value::String(_), _) => {
                Some("callback argument given to redis.register_function must be a function")
            }
            _ => Some("function_name argument given to redis.register_function must be a string"),
        };
        if let Some(text) = refused {
            return Err(raise(m, text));
        }
        let description = match description {
            Value::Nil => None,
            Value::String(s) => Some(m.heap.bytes(s).to_vec()),
            _ => {
                return Err(raise(
                    m,
                    "description argument given to redis.register_function must be a string",
                ));
            }
        };
        let flags = self.flags(m, flags)?;
        let Value::String(name) = name else { return Ok(()) };
        m.touch(m.heap.str_len(name), 0)?;
        let Some(name) = std::str::from_utf8(m.heap.bytes(name)).ok().filter(|name| is_name(name.as_bytes()))
        else {
            let text = "Library names can only contain letters, numbers, or underscores(_) and must be at least one \
                        character long";
            return Err(raise(m, text));
        };
        let name = name.to_string();
        let Some(registered) = &mut self.registered else { return Ok(()) };
        m.touch(0, registered.len() / 16)?;
        if registered.iter().any(|(other, _)| other.name == name) {
            return Err(raise(m, "Function already exists in the library"));
        }
        m.heap.budget.take(name.len() + description.as_ref().map_or(0, Vec::len) + 200)?;
        registered.push((Registered { name, description, flags }, callback));
        Ok(())
    }

    fn flags(&mut self, m: &mut Machine, flags: Value) -> Result<Vec<String>> {
        let table = match flags {
            Value::Nil => return Ok(Vec::new()),
            Value::Table(table) => table,
            _ => {
                let text =
                    "flags argument to redis.register_function must be a table representing function flags";
                return Err(raise(m, text));
            }
        };
        let mut list = Vec::new();
        for i in 1..=m.heap.len(table) {
            m.touch(0, 1)?;
            let flag = match m.heap.raw_at(table, i) {
                Value::String(s) if is_flag(m.heap.bytes(s)) => {
                    String::from_utf8_lossy(m.heap.bytes(s)).into_owned()
                }
                _ => return Err(raise(m, "unknown flag given")),
            };
            m.heap.budget.take(64)?;
            list.push(flag);
        }
        Ok(list)
    }
}

/// A refusal of a command, with the bytes and the items that it is charged for.
struct Refused {
    refusal: PlanError,
    bytes: usize,
    items: usize,
}

/// The command that a script calls by a list of words, if it may call it. `bytes` is the length of all words.
fn permitted(
    reach: &Reach<'_>,
    list: &[&[u8]],
    bytes: usize,
) -> std::result::Result<&'static Command, Refused> {
    let early = |refusal| Refused { refusal, bytes: 0, items: 0 };
    let late = |refusal| Refused { refusal: PlanError::fixed(refusal), bytes, items: list.len() };
    let absent = || match absent_from_scripts(list) {
        Some(arity) if takes(arity, list.len()) => early(NOT_ALLOWED),
        Some(_) => early(WRONG_ARITY),
        None => early(UNKNOWN),
    };
    let command = lookup(list[0]).ok_or_else(absent)?;
    check_arity(command, list.len()).map_err(|_| early(WRONG_ARITY))?;
    if command.flags.has(Flags::CONTAINER)
        && let Some(word) = list.get(1)
        && check_subcommand(command, list).is_err()
    {
        let is_there = subcommand(command.name, word).is_some();
        return Err(if is_there { early(WRONG_ARITY) } else { absent() });
    }
    if command.flags.has(Flags::NOSCRIPT) {
        return Err(early(NOT_ALLOWED));
    }
    if let Some(Err(denied)) = reach.rights.map(|rights| rights.check(command, list)) {
        return Err(late(denied.in_script()));
    }
    if reach.frugal && command.flags.has(Flags::DENYOOM) {
        return Err(late("OOM command not allowed when used memory > 'maxmemory'."));
    }
    Ok(command)
}

/// Answers a command of the session that scripts may call. `now` is the transaction's time, milliseconds.
fn answer_here(
    command: &Command,
    list: &[&[u8]],
    now: u64,
    answer: &mut Writer<'_>,
) -> std::result::Result<(), PlanError> {
    match (command.action, command.name) {
        (Action::Session(_), "time") => {
            answer.array(2);
            answer.bulk((now / 1000).to_string().as_bytes());
            answer.bulk((now % 1000 * 1000).to_string().as_bytes());
        }
        (Action::Session(_), "ping") if list.len() == 1 => answer.status("PONG"),
        (Action::Session(_), "ping" | "echo") if list.len() == 2 => answer.bulk(list[1]),
        // There are no subscribers.
        (Action::Session(_), "publish" | "spublish") => answer.int(0),
        _ => return Err(NOT_ALLOWED),
    }
    Ok(())
}

fn charge(m: &mut Machine, class: Class, bytes: usize, items: usize) -> Result<()> {
    let cost = CLASSES[class as usize].1;
    m.heap.budget.work(u64::from(cost.base) + cost.units(bytes, items))
}

fn is_function(value: Value) -> bool {
    value.type_name() == "function"
}

/// Says that a library or function may have this name.
pub(super) fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_')
}

/// Says that scripts and functions know this flag.
pub(super) fn is_flag(flag: &[u8]) -> bool {
    matches!(flag, b"no-writes" | b"allow-oom" | b"allow-stale" | b"no-cluster" | b"allow-cross-slot-keys")
}
