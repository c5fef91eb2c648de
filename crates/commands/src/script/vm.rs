//! The interpreter of one shard: a Lua 5.1 state in which scripts of any number run one after the other, each
//! as if it were the first.
//!
//! # What makes a script's outcome the same everywhere
//!
//! A shard that has run for a year, one that was restarted a minute ago and one on another node must answer
//! alike. A script therefore finds nothing that an earlier one left: globals and library tables cannot be
//! changed, a FUNCTION library runs anew for every call, randomness starts from the transaction's seed.
//! Walking a table is by order of keys (`sandbox.lua`), because Lua's own order depends on when garbage was
//! collected and on addresses. No address is ever printed.
//!
//! *Instructions* are counted by a hook that is set anew for each run, so a run is interrupted at the same
//! instruction everywhere. Work inside library functions that no hook sees is charged by size, and patterns
//! by their steps. Once the budget is used up nothing of the script runs again: `pcall` raises anew.
//!
//! *Memory* is harder, for what a run allocates does depend on what the interpreter did before: a string that
//! is already interned costs nothing, a stack that has already grown does not grow. So the outcome is defined
//! as that of a run in a **fresh** interpreter that may allocate [`FULL_LIMIT`] in all, garbage included (the
//! collector never runs inside a script, which bounds copying too). A fresh interpreter is a function of the
//! script alone. The interpreter that is kept is an approximation: it allows [`WARM_LIMIT`] only. A run that
//! stays within it used at most `WARM_LIMIT + (what was there at its beginning)` in fresh terms, since
//! anything it got for nothing was there at its beginning; that is bounded by [`START_LIMIT`], and the sum is
//! far below `FULL_LIMIT`: the fresh run would have come to the same end. A run that does not stay within it
//! is rolled back and done again in a fresh interpreter, whose word counts.
//!
//! The limit is the allocator's while Lua code runs. While Rust makes values for it, the allocator's refusal is a
//! Lua error that has to be caught value by value, which costs more than the value. So what is known to be
//! small ([`SMALL`]: a script's words, a command's reply) is made without the limit, and a reply's maker looks
//! at the sum itself before Lua code goes on. What is small is a matter of the words and replies alone, and the sum is
//! again a function of the script in a fresh interpreter, so the definition stands; a run may go past either limit
//! by what is small, which the distance between the two absorbs.
//!
//! Between scripts garbage may be collected at any time, since nothing of it shows: it is when there is as much of
//! it as there is of use. Letting it grow costs more than collecting it, for what is swept is then out of the
//! processor's caches.
//!
//! What is left: mathematics (`math.sin`, `^`) is the C library's, so replicas should run the same build;
//! `#t` of a table that has holes *and* has had tables or functions as keys may depend on addresses; and
//! comparing two huge strings by `<` costs more time than the one instruction it is counted as.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use mlua::chunk::ChunkMode;
use mlua::{Function, HookTriggers, Lua, LuaOptions, MultiValue, StdLib, Table, Value, VmState};
use ordain_model::procedure::{Locals, Members, Registry};
use ordain_model::serial::{CallError, Scratch, Surroundings, call, seed_of};
use ordain_model::{Abort, ArgIter, Args, ArgsBuilder, Datum, Db, Gsn, Millis, Writer};

use super::convert;
use super::library::{self, Raised};
use crate::rights::Rights;
use crate::table::{Action, Flags, check_arity, lookup};

/// How many instructions a script may run, and what else is charged as such.
pub const INSTRUCTION_BUDGET: i64 = if cfg!(test) { 4_000_000 } else { 100_000_000 };
/// How many instructions pass between two looks at the budget.
const TICK: u32 = 10_000;
/// How much a script may allocate in all, bytes.
pub const FULL_LIMIT: usize = 128 << 20;
/// How much it may allocate in the interpreter that is kept.
const WARM_LIMIT: usize = 16 << 20;
/// How much may be there when a script begins, garbage of earlier ones included.
const START_LIMIT: usize = 4 << 20;
/// How much garbage is not worth collecting.
const LEAST_GARBAGE: usize = 64 << 10;
/// What takes so few bytes, encoded, is made without a limit: in Lua it is some dozen times larger at most.
const SMALL: usize = 4 << 10;
/// How much the interpreter that is kept may hold without garbage.
const LIVE_LIMIT: usize = 2 << 20;
/// The most compiled scripts kept, and as many libraries.
const CACHE_MAX: usize = 256;
/// What an empty word is taken to be.
const WORD_SIZE: usize = 4;

/// The interpreters of a shard.
#[derive(Default)]
pub(super) struct Engine {
    warm: Option<Vm>,
}

/// What is run.
#[derive(Clone, Copy)]
pub(super) enum Entry<'a> {
    /// A script.
    Script,
    /// A function of a library.
    Function(&'a str),
}

/// One run of a script or function.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    /// The SHA-1 of the code, in hexadecimal digits.
    pub sha: &'a [u8],
    /// The code.
    pub code: &'a [u8],
    /// What of it is run.
    pub entry: Entry<'a>,
    /// KEYS, then ARGV.
    pub words: ArgIter<'a>,
    /// How many of them are KEYS.
    pub keys: usize,
    /// The selected database.
    pub db: Db,
    /// The transaction's time.
    pub now: Millis,
    /// The transaction's seed.
    pub seed: u64,
    /// Whether writing is refused.
    pub read_only: bool,
    /// What the user may do whose script it is; none: everything.
    pub rights: Option<&'a Rights>,
    /// The procedures there are.
    pub registry: &'a Registry,
}

/// A function that a library registered.
pub(super) struct Registered {
    pub name: String,
    pub description: Option<Vec<u8>>,
    pub flags: Vec<String>,
}

/// Why a run ended against its will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Death {
    /// It did not.
    None = 0,
    /// It ran past its budget of instructions.
    Budget = 1,
    /// It allocated too much.
    Memory = 2,
    /// A command of it aborted.
    Abort = 3,
    /// The interpreter failed.
    Internal = 4,
}

/// What the interpreter's own functions share with the one who runs a script.
pub(super) struct Shared {
    left: AtomicI64,
    death: AtomicU8,
    abort: AtomicU8,
    line: AtomicU32,
    random: AtomicU64,
    resp3: AtomicU8,
}

impl Shared {
    fn reset(&self, seed: u64) {
        self.left.store(INSTRUCTION_BUDGET, Relaxed);
        self.death.store(Death::None as u8, Relaxed);
        self.line.store(0, Relaxed);
        self.random.store(seed, Relaxed);
        self.resp3.store(0, Relaxed);
    }

    pub(super) fn death(&self) -> Death {
        match self.death.load(Relaxed) {
            0 => Death::None,
            1 => Death::Budget,
            2 => Death::Memory,
            3 => Death::Abort,
            _ => Death::Internal,
        }
    }

    fn die(&self, death: Death) -> mlua::Error {
        if self.death() == Death::None {
            self.death.store(death as u8, Relaxed);
        }
        self.stopped()
    }

    /// What ends a script; nothing it does can catch it.
    pub(super) fn stopped(&self) -> mlua::Error {
        mlua::Error::runtime("the script has been stopped")
    }

    /// Takes `cost` instructions off the budget.
    pub(super) fn charge(&self, cost: i64) -> mlua::Result<()> {
        let left = self.left.load(Relaxed).saturating_sub(cost.max(0));
        self.left.store(left, Relaxed);
        if left < 0 { Err(self.die(Death::Budget)) } else { Ok(()) }
    }

    /// How many instructions are left.
    pub(super) fn left(&self) -> i64 {
        self.left.load(Relaxed).max(0)
    }

    /// Whether an error that was caught is none that a script may catch.
    pub(super) fn is_fatal(&self, error: &Value) -> bool {
        if self.death() != Death::None {
            return true;
        }
        match error {
            Value::Error(error) if error.downcast_ref::<Raised>().is_some() => false,
            Value::Error(error) => {
                self.die(if is_memory(error) { Death::Memory } else { Death::Internal });
                true
            }
            Value::String(text) if *text.as_bytes() == *b"not enough memory" => {
                self.die(Death::Memory);
                true
            }
            _ => false,
        }
    }

    pub(super) fn note_line(&self, line: usize) {
        self.line.store(line as u32, Relaxed);
    }

    pub(super) fn is_resp3(&self) -> bool {
        self.resp3.load(Relaxed) != 0
    }

    pub(super) fn set_resp3(&self, resp3: bool) {
        self.resp3.store(resp3 as u8, Relaxed);
    }

    /// The next random number in 0..1.
    pub(super) fn random(&self) -> f64 {
        let state = self.random.load(Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.store(state, Relaxed);
        (seed_of(Gsn(state)) >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(super) fn seed_random(&self, seed: f64) {
        self.random.store(seed.to_bits(), Relaxed);
    }
}

fn is_memory(error: &mlua::Error) -> bool {
    match error {
        mlua::Error::MemoryError(_) => true,
        mlua::Error::CallbackError { cause, .. } => is_memory(cause),
        _ => false,
    }
}

impl Engine {
    /// Runs a script and appends its reply. On an error the members are as they were.
    pub(super) fn run(
        &mut self,
        run: Run<'_>,
        members: &mut dyn Members,
        locals: &mut Locals,
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        let mut vm = self.warm.take().unwrap_or_else(Vm::new);
        match vm.run(&run, WARM_LIMIT, members, locals, out) {
            Death::None => self.warm = vm.tidy().then_some(vm),
            // What was unwound by force is not trusted with another script.
            Death::Memory => {
                drop(vm);
                out.truncate(start);
                Vm::new().run(&run, FULL_LIMIT, members, locals, out);
            }
            _ => {}
        }
    }

    /// Checks that a script compiles.
    ///
    /// # Errors
    /// The error to show.
    pub(super) fn check(&mut self, sha: &[u8], code: &[u8]) -> Result<(), Vec<u8>> {
        let attempt = self.warm().check(sha, code, WARM_LIMIT);
        match attempt {
            Err(Failure::Death(_)) => {
                self.warm = None;
                Vm::new().check(sha, code, FULL_LIMIT).map_err(Failure::text)
            }
            other => other.map_err(Failure::text),
        }
    }

    /// Runs a library and lists what it registers.
    ///
    /// # Errors
    /// The error to show.
    pub(super) fn load(&mut self, sha: &[u8], code: &[u8], seed: u64) -> Result<Vec<Registered>, Vec<u8>> {
        let attempt = self.warm().load(sha, code, seed, WARM_LIMIT);
        match attempt {
            Err(Failure::Death(death)) => {
                self.warm = None;
                match death {
                    Death::Memory => Vm::new().load(sha, code, seed, FULL_LIMIT).map_err(Failure::text),
                    other => Err(Failure::Death(other).text()),
                }
            }
            other => other.map_err(Failure::text),
        }
    }

    fn warm(&mut self) -> &mut Vm {
        self.warm.get_or_insert_with(Vm::new)
    }
}

/// Why a run has no result.
enum Failure {
    /// An error to show.
    Text(Vec<u8>),
    /// An end against its will.
    Death(Death),
}

impl Failure {
    fn text(self) -> Vec<u8> {
        match self {
            Failure::Text(text) => text,
            Failure::Death(Death::Budget) => {
                format!("ERR script stopped: it ran past its budget of {INSTRUCTION_BUDGET} instructions")
                    .into()
            }
            Failure::Death(Death::Memory) => {
                format!("ERR script stopped: it allocated more than {} MiB", FULL_LIMIT >> 20).into()
            }
            Failure::Death(_) => b"ERR script stopped: the interpreter failed".to_vec(),
        }
    }
}

/// One interpreter.
struct Vm {
    lua: Lua,
    shared: Arc<Shared>,
    /// How much memory there may be before garbage is collected.
    collect_at: usize,
    script_env: Table,
    library_env: Table,
    run_script: Function,
    run_function: Function,
    load_library: Function,
    /// By SHA-1.
    scripts: BTreeMap<Box<[u8]>, Function>,
    libraries: BTreeMap<Box<[u8]>, Function>,
    buffers: Buffers,
}

#[derive(Default)]
struct Buffers {
    scratch: Scratch,
    words: Vec<u8>,
    ends: Vec<usize>,
    args: Vec<u8>,
    reply: Vec<u8>,
}

impl Vm {
    fn new() -> Vm {
        Vm::build().expect("building an interpreter takes a few hundred kilobytes and no input")
    }

    fn build() -> mlua::Result<Vm> {
        let lua = Lua::new_with(StdLib::TABLE | StdLib::STRING | StdLib::MATH, LuaOptions::new())?;
        let shared = Arc::new(Shared {
            left: AtomicI64::new(INSTRUCTION_BUDGET),
            death: AtomicU8::new(0),
            abort: AtomicU8::new(0),
            line: AtomicU32::new(0),
            random: AtomicU64::new(0),
            resp3: AtomicU8::new(0),
        });
        let rust = library::functions(&lua, &shared)?;
        let sandbox: Table =
            lua.load(include_str!("sandbox.lua")).set_name("=redis").set_mode(ChunkMode::Text).call(rust)?;
        lua.gc_collect()?;
        lua.gc_stop();
        Ok(Vm {
            collect_at: lua.used_memory() + LEAST_GARBAGE,
            script_env: sandbox.raw_get("script_env")?,
            library_env: sandbox.raw_get("library_env")?,
            run_script: sandbox.raw_get("run_script")?,
            run_function: sandbox.raw_get("run_function")?,
            load_library: sandbox.raw_get("load_library")?,
            scripts: BTreeMap::new(),
            libraries: BTreeMap::new(),
            buffers: Buffers::default(),
            shared,
            lua,
        })
    }

    /// Makes ready for the next run: a budget of instructions and of memory. Answers how much memory there may be.
    fn begin(&mut self, seed: u64, limit: usize) -> mlua::Result<usize> {
        self.shared.reset(seed);
        let ceiling = self.lua.used_memory() + limit;
        self.lua.set_memory_limit(ceiling)?;
        let shared = self.shared.clone();
        // Not the hook of one thread: that would be an object to collect. There are no other threads.
        self.lua.set_global_hook(HookTriggers::new().every_nth_instruction(TICK), move |_, _| {
            shared.charge(i64::from(TICK)).map(|()| VmState::Continue)
        })?;
        Ok(ceiling)
    }

    /// Collects what scripts have left behind, now and then. Says whether the interpreter may be kept.
    fn tidy(&mut self) -> bool {
        if self.lua.used_memory() < self.collect_at {
            return true;
        }
        let collected = self.lua.set_memory_limit(0).and_then(|_| self.lua.gc_collect());
        // A full collection starts the collector again.
        self.lua.gc_stop();
        let live = self.lua.used_memory();
        self.collect_at = (2 * live).clamp(live + LEAST_GARBAGE, START_LIMIT);
        collected.is_ok() && live < LIVE_LIMIT
    }

    fn run(
        &mut self,
        run: &Run<'_>,
        limit: usize,
        members: &mut dyn Members,
        locals: &mut Locals,
        out: &mut Vec<u8>,
    ) -> Death {
        let start = out.len();
        match self.attempt(run, limit, members, locals, out) {
            Ok(()) => Death::None,
            Err(failure) => {
                members.roll_back();
                out.truncate(start);
                let death = match &failure {
                    Failure::Text(_) => Death::None,
                    Failure::Death(death) => *death,
                };
                match (death, Abort::from_code(self.shared.abort.load(Relaxed))) {
                    (Death::Abort, Some(abort)) => Writer(out).abort(abort),
                    _ => Writer(out).error(failure.text()),
                }
                death
            }
        }
    }

    fn attempt(
        &mut self,
        run: &Run<'_>,
        limit: usize,
        members: &mut dyn Members,
        locals: &mut Locals,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let lost = |vm: &Vm, error: mlua::Error| vm.failure(error);
        let ceiling = self.begin(run.seed, limit).map_err(|e| lost(self, e))?;
        let chunk = match run.entry {
            Entry::Script => self.script(run.sha, run.code)?,
            Entry::Function(_) => self.library(run.sha, run.code)?,
        };
        let Vm { lua, shared, run_script, run_function, buffers, .. } = self;
        let hands = RefCell::new(Hands {
            members,
            locals,
            shared,
            buffers,
            calls: 0,
            ceiling,
            surroundings: Surroundings {
                registry: run.registry,
                now: run.now,
                seed: run.seed,
                read_only: run.read_only,
            },
            db: run.db,
            rights: run.rights,
        });
        let ran = lua.scope(|scope| {
            let mut words = run.words;
            let count = words.count();
            if words.map(|word| word.bytes.len() + WORD_SIZE).sum::<usize>() <= SMALL {
                lua.set_memory_limit(0)?;
            }
            let call =
                scope.create_function(|lua, words: MultiValue| hands.borrow_mut().dispatch(lua, &words))?;
            let keys = list(lua, &mut words, run.keys)?;
            let argv = list(lua, &mut words, count - run.keys)?;
            lua.set_memory_limit(ceiling)?;
            match run.entry {
                Entry::Script => run_script.call::<(bool, Value)>((chunk, call, keys, argv)),
                Entry::Function(name) => run_function.call::<(bool, Value)>((chunk, name, call, keys, argv)),
            }
        });
        match ran {
            Ok((true, value)) => convert::to_datum(&value, shared, out).map_err(|e| lost(self, e)),
            Ok((false, error)) => Err(self.raised(&error, run)),
            Err(error) => Err(lost(self, error)),
        }
    }

    /// An error that the script raised and did not catch, as Redis shows it.
    fn raised(&self, error: &Value, run: &Run<'_>) -> Failure {
        if self.shared.is_fatal(error) {
            return Failure::Death(self.shared.death());
        }
        let mut text = error_text(error);
        let (name, source) = match run.entry {
            Entry::Script => (run.sha, "user_script"),
            Entry::Function(name) => (name.as_bytes(), "user_function"),
        };
        text.extend_from_slice(b" script: ");
        text.extend_from_slice(name);
        match self.shared.line.load(Relaxed) {
            0 => {}
            line => text.extend_from_slice(format!(", on @{source}:{line}.").as_bytes()),
        }
        Failure::Text(text)
    }

    fn failure(&self, error: mlua::Error) -> Failure {
        match error {
            mlua::Error::SyntaxError { message, .. } => Failure::Text(message.into_bytes()),
            error => {
                self.shared.die(if is_memory(&error) { Death::Memory } else { Death::Internal });
                Failure::Death(self.shared.death())
            }
        }
    }

    fn check(&mut self, sha: &[u8], code: &[u8], limit: usize) -> Result<(), Failure> {
        self.begin(0, limit).map_err(|e| self.failure(e))?;
        self.script(sha, code).map(drop)
    }

    fn load(&mut self, sha: &[u8], code: &[u8], seed: u64, limit: usize) -> Result<Vec<Registered>, Failure> {
        const FAILED: &[u8] = b"ERR Error registering functions: ";
        self.begin(seed, limit).map_err(|e| self.failure(e))?;
        let chunk = self.library(sha, code)?;
        match self.load_library.call::<(bool, Value)>(chunk) {
            Ok((true, Value::Table(list))) => registered(&list).map_err(|e| self.failure(e)),
            Ok((_, error)) if self.shared.is_fatal(&error) => Err(Failure::Death(self.shared.death())),
            Ok((_, error)) => Err(Failure::Text([FAILED, &error_text(&error)].concat())),
            Err(error) => Err(self.failure(error)),
        }
    }

    fn script(&mut self, sha: &[u8], code: &[u8]) -> Result<Function, Failure> {
        let Vm { scripts, lua, script_env, .. } = self;
        let compiled = compiled(lua, scripts, script_env, "@user_script", sha, code);
        compiled.map_err(|e| self.compile_failure("ERR Error compiling script (new function): ", e))
    }

    fn library(&mut self, sha: &[u8], code: &[u8]) -> Result<Function, Failure> {
        let Vm { libraries, lua, library_env, .. } = self;
        let compiled = compiled(lua, libraries, library_env, "@user_function", sha, code);
        compiled.map_err(|e| self.compile_failure("ERR Error compiling function: ", e))
    }

    fn compile_failure(&self, prefix: &str, error: mlua::Error) -> Failure {
        match self.failure(error) {
            Failure::Text(message) => Failure::Text([prefix.as_bytes(), &message].concat()),
            death @ Failure::Death(_) => death,
        }
    }
}

/// The compiled form of a script, from the cache if it is there.
fn compiled(
    lua: &Lua,
    cache: &mut BTreeMap<Box<[u8]>, Function>,
    env: &Table,
    name: &str,
    sha: &[u8],
    code: &[u8],
) -> mlua::Result<Function> {
    if let Some(function) = cache.get(sha) {
        return Ok(function.clone());
    }
    // The first line may say how to run the script; it keeps its place so that the lines are numbered right.
    let body = match code {
        [b'#', b'!', ..] => &code[code.iter().position(|b| *b == b'\n').unwrap_or(code.len())..],
        code => code,
    };
    let function = lua
        .load(body)
        .set_name(name)
        .set_mode(ChunkMode::Text)
        .set_environment(env.clone())
        .into_function()?;
    if cache.len() >= CACHE_MAX {
        cache.clear();
    }
    cache.insert(sha.into(), function.clone());
    Ok(function)
}

/// The next `count` words as a table.
fn list(lua: &Lua, words: &mut ArgIter<'_>, count: usize) -> mlua::Result<Table> {
    let ahead = *words;
    if ahead.take(count).all(|word| std::str::from_utf8(word.bytes).is_ok()) {
        // What is text reaches Lua's stack without a handle of its own.
        let mut text = || std::str::from_utf8(words.bytes()).unwrap_or_default();
        lua.create_sequence_from((0..count).map(|_| text()))
    } else {
        lua.create_sequence_from((0..count).map(|_| Word(words.bytes())))
    }
}

/// A word that is no text.
struct Word<'a>(&'a [u8]);

impl mlua::IntoLua for Word<'_> {
    fn into_lua(self, lua: &Lua) -> mlua::Result<Value> {
        lua.create_string(self.0).map(Value::String)
    }
}

fn registered(list: &Table) -> mlua::Result<Vec<Registered>> {
    let mut functions = Vec::new();
    for i in 1..=list.raw_len() {
        let entry: Table = list.raw_get(i)?;
        let flags: Table = entry.raw_get("flags")?;
        functions.push(Registered {
            name: entry.raw_get("name")?,
            description: entry
                .raw_get::<Option<mlua::LuaString>>("description")?
                .map(|text| text.as_bytes().to_vec()),
            flags: (1..=flags.raw_len()).map(|i| flags.raw_get(i)).collect::<mlua::Result<_>>()?,
        });
    }
    Ok(functions)
}

/// The text of an error that a script raised: its own, if it is an error reply, else marked as `ERR`.
fn error_text(error: &Value) -> Vec<u8> {
    match error {
        Value::Table(table) => match table.raw_get::<Value>("err") {
            Ok(Value::String(text)) => text.as_bytes().to_vec(),
            _ => b"ERR the script raised a table that is no error reply".to_vec(),
        },
        Value::String(text) => [b"ERR ", &*text.as_bytes()].concat(),
        Value::Error(error) => match error.downcast_ref::<Raised>() {
            Some(Raised { text, is_reply: true }) => text.clone(),
            Some(Raised { text, .. }) => [b"ERR ", &**text].concat(),
            None => b"ERR the interpreter failed".to_vec(),
        },
        other => match convert::number_text(other) {
            Some(text) => format!("ERR {text}").into_bytes(),
            None => format!("ERR {}", other.type_name()).into_bytes(),
        },
    }
}

/// A running script's reach to its records.
struct Hands<'a> {
    members: &'a mut dyn Members,
    locals: &'a mut Locals,
    shared: &'a Shared,
    buffers: &'a mut Buffers,
    surroundings: Surroundings<'a>,
    db: Db,
    rights: Option<&'a Rights>,
    calls: u64,
    ceiling: usize,
}

impl Hands<'_> {
    /// Runs a command and answers its reply, or raises it if it is an error.
    fn dispatch(&mut self, lua: &Lua, words: &MultiValue) -> mlua::Result<Value> {
        self.shared.charge(50)?;
        self.buffers.reply.clear();
        if let Err(text) = self.command(words)? {
            self.buffers.reply.clear();
            Writer(&mut self.buffers.reply).error(text.as_bytes());
        }
        let reply = &*self.buffers.reply;
        self.shared.charge((reply.len() / 16) as i64)?;
        let resp3 = self.shared.is_resp3();
        match Datum::first(reply) {
            Datum::Error(text) => Err(mlua::Error::external(Raised { text: text.to_vec(), is_reply: true })),
            // What Lua need allocate nothing for.
            Datum::Int(_) | Datum::Nil | Datum::NilArray => convert::from_datum(lua, reply, resp3),
            _ if reply.len() > SMALL => convert::from_datum(lua, reply, resp3),
            _ => {
                lua.set_memory_limit(0)?;
                let value = convert::from_datum(lua, reply, resp3);
                lua.set_memory_limit(self.ceiling)?;
                if lua.used_memory() > self.ceiling {
                    return Err(self.shared.die(Death::Memory));
                }
                value
            }
        }
    }

    fn command(&mut self, values: &MultiValue) -> mlua::Result<Result<(), std::borrow::Cow<'static, str>>> {
        const NOT_ALLOWED: &str = "ERR This Redis command is not allowed from script";
        const READ_ONLY: &str = "ERR Write commands are not allowed from read-only scripts.";
        let Buffers { scratch, words, ends, args, reply } = &mut *self.buffers;
        if values.is_empty() {
            return Ok(Err("ERR Please specify at least one argument for this redis lib call".into()));
        }
        words.clear();
        ends.clear();
        for value in values {
            match value {
                Value::String(text) => words.extend_from_slice(&text.as_bytes()),
                other => match convert::argument_text(other) {
                    Some(text) => words.extend_from_slice(text.as_bytes()),
                    None => {
                        let text = "ERR Lua redis lib command arguments must be strings or integers";
                        return Ok(Err(text.into()));
                    }
                },
            }
            ends.push(words.len());
        }
        let mut list: smallvec::SmallVec<[&[u8]; 8]> = smallvec::SmallVec::with_capacity(ends.len());
        let mut from = 0;
        for &end in &*ends {
            list.push(&words[from..end]);
            from = end;
        }
        let Some(command) = lookup(list[0]) else {
            return Ok(Err("ERR Unknown Redis command called from script".into()));
        };
        if check_arity(command, list.len()).is_err() {
            return Ok(Err("ERR Wrong number of args calling Redis command from script".into()));
        }
        if command.flags.has(Flags::NOSCRIPT) {
            return Ok(Err(NOT_ALLOWED.into()));
        }
        if let Some(Err(denied)) = self.rights.map(|rights| rights.check(command, &list)) {
            return Ok(Err(denied.in_script().into()));
        }
        let mut answer = Writer(reply);
        let (id, encode) = match command.action {
            Action::Procedure { id, encode } => (id, encode),
            Action::Function { .. } => return Ok(Err(NOT_ALLOWED.into())),
            Action::Session(_) => match command.name {
                "time" => {
                    let now = self.surroundings.now.0;
                    answer.array(2);
                    answer.bulk((now / 1000).to_string().as_bytes());
                    answer.bulk((now % 1000 * 1000).to_string().as_bytes());
                    return Ok(Ok(()));
                }
                "ping" if list.len() == 1 => {
                    answer.status("PONG");
                    return Ok(Ok(()));
                }
                "ping" | "echo" if list.len() == 2 => {
                    answer.bulk(list[1]);
                    return Ok(Ok(()));
                }
                _ => return Ok(Err(NOT_ALLOWED.into())),
            },
        };
        if self.surroundings.read_only && command.flags.has(Flags::WRITE) {
            return Ok(Err(READ_ONLY.into()));
        }
        args.clear();
        encode(&list[1..], &mut ArgsBuilder::new(args));
        let Some(args) = Args::parse(args) else { return Ok(Err(NOT_ALLOWED.into())) };
        self.calls += 1;
        let seed = seed_of(Gsn(self.surroundings.seed.wrapping_add(self.calls)));
        let surroundings = Surroundings { seed, ..self.surroundings };
        let result = call(surroundings, self.members, scratch, id, self.db, args, self.locals, reply);
        Ok(match result {
            Ok(()) => Ok(()),
            Err(CallError::Plan(refusal)) => Err(refusal.0),
            Err(CallError::Undeclared) => Err("ERR Script attempted to access a non declared key: \
                 every key a script touches must be one of its KEYS"
                .into()),
            Err(CallError::ReadOnly) => Err(READ_ONLY.into()),
            Err(CallError::NotAllowed) => Err(NOT_ALLOWED.into()),
            Err(CallError::Abort(abort)) => {
                self.shared.abort.store(abort.code(), Relaxed);
                return Err(self.shared.die(Death::Abort));
            }
        })
    }
}
