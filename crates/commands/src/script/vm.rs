//! The interpreter of one shard: a machine in which scripts of any number run one after the other, each as if it were the
//! first.
//!
//! # What makes a script's outcome the same everywhere
//!
//! A shard that has run for a year, one that was restarted a minute ago and one on another node must answer alike. The
//! machine (`ordain-lua`) begins every run with the same heap: its base, which no script can change. A run's work and memory
//! are counted by what the script asks for, not by what the machine happens to have at hand: that a program is compiled
//! already, or a buffer grown, saves time and changes no count. Randomness starts from the transaction's seed, a FUNCTION
//! library runs anew for every call, and no address, hash or clock shows. Once a budget is used up nothing of the script
//! runs again, and what it did is undone.
//!
//! The machine has no unsafe code, so a mistake in it is a panic at worst, at the same place everywhere. The panic is caught
//! and ends the script as the end of a budget does; the machine is made anew.
//!
//! What is left: mathematics (`math.sin`, `^`) is the C library's, so replicas should run the same build.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ordain_lua::{Budget, CompileError, Death, Fault, Machine, Program, TableRef, Value, compile};
use ordain_model::procedure::{Locals, Members, Registry};
use ordain_model::serial::Surroundings;
use ordain_model::{Abort, ArgIter, Db, Millis, Writer};

use super::convert;
use super::host::{self, Buffers, Hands, Reach};
use crate::rights::Rights;

/// Units of work that a script may do: an instruction is one, and [`ordain_lua::cost`] says what else is charged.
pub const WORK_BUDGET: i64 = if cfg!(test) { 4_000_000 } else { 100_000_000 };
/// The units of work that a library may do as FUNCTION LOAD runs it: some ten milliseconds. It registers functions, and need
/// not do more.
pub const LOAD_BUDGET: i64 = 2_000_000;
/// The units of work that FUNCTION RESTORE may cost: what compiling its libraries costs and what they do.
pub const RESTORE_BUDGET: i64 = 10 * LOAD_BUDGET;
/// Bytes that a script may ask for in all.
pub const MEMORY_LIMIT: usize = 128 << 20;
/// The most source that an event loop compiles, bytes: about a millisecond. Compiling more is a [long
/// computation](Locals::give_up) of the thread beside the loops.
pub(super) const SMALL_SOURCE_MAX: usize = 16 << 10;
/// The most compiled scripts kept, and as many libraries.
const CACHE_MAX: usize = 256;
/// The most source whose compiled form is kept, bytes in all.
const CACHE_BYTES: usize = 4 << 20;

/// The interpreter of a shard.
#[derive(Default)]
pub(super) struct Engine {
    vm: Option<Box<Vm>>,
}

/// The entry of a run.
#[derive(Clone, Copy)]
pub(super) enum Entry<'a> {
    /// A script.
    Script,
    /// A function of a library.
    Function(&'a str),
}

/// A run of a script or function.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    /// The SHA-1 of the code, in hexadecimal digits.
    pub sha: &'a [u8],
    /// The code.
    pub code: &'a [u8],
    /// The part of the code that is run.
    pub entry: Entry<'a>,
    /// KEYS, then ARGV.
    pub words: ArgIter<'a>,
    /// The number of KEYS among them.
    pub keys: usize,
    /// The selected database.
    pub db: Db,
    /// The transaction's time.
    pub now: Millis,
    /// The transaction's seed.
    pub seed: u64,
    /// Writing is refused.
    pub read_only: bool,
    /// The rights of the user whose script it is; none: all rights.
    pub rights: Option<&'a Rights>,
    /// True if commands that need memory are refused.
    pub frugal: bool,
    /// The procedures there are.
    pub registry: &'a Registry,
    /// The compiled forms of large sources.
    pub programs: &'a Programs,
}

/// The reason for which a source was not accepted.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The error to show.
    Error(Vec<u8>),
    /// The bound on the work that may be done here.
    Patience,
}

/// The compiled forms of large sources: one collection a node, for its shards and for the thread that computes beside them.
///
/// A run is charged for compiling whether it finds a form here or not, so what is kept shows in no result.
#[derive(Debug, Default)]
pub(super) struct Programs {
    scripts: Mutex<Cache>,
    libraries: Mutex<Cache>,
}

fn lock(cache: &Mutex<Cache>) -> MutexGuard<'_, Cache> {
    // Nothing panics while it is held.
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A function that a library registered.
#[derive(Debug)]
pub(super) struct Registered {
    pub name: String,
    pub description: Option<Vec<u8>>,
    pub flags: Vec<String>,
}

impl Engine {
    /// Runs a script and appends its reply. On an error the members are as they were, and if it [gives
    /// up](Locals::give_up), so is everything.
    pub(super) fn run(
        &mut self,
        run: Run<'_>,
        members: &mut dyn Members,
        locals: &mut Locals,
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        let patience = locals.patience().and_then(|units| i64::try_from(units).ok());
        let work = patience.filter(|units| *units < WORK_BUDGET);
        let budget = Budget::new(work.unwrap_or(WORK_BUDGET), MEMORY_LIMIT);
        let budget = match locals.stop.clone() {
            Some(stop) => budget.stopped_by(stop),
            None => budget,
        };
        let is_bounded = work.is_some();
        let ran = self.guarded(|vm| vm.run(&run, (budget, is_bounded), &mut *members, locals, out));
        if let Err(failure) = ran {
            members.roll_back();
            out.truncate(start);
            match failure {
                Failure::Patience => locals.give_up(),
                Failure::Death(Death::Work) if is_bounded => locals.give_up(),
                Failure::Abort(abort) => Writer(out).abort(abort),
                failure => Writer(out).error(failure.text()),
            }
        }
    }

    /// Checks that a script compiles; `is_bounded` says that a large one is to be compiled elsewhere.
    ///
    /// # Errors
    /// [`Refusal`].
    pub(super) fn check(
        &mut self,
        programs: &Programs,
        sha: &[u8],
        code: &[u8],
        is_bounded: bool,
    ) -> Result<(), Refusal> {
        Ok(self.guarded(|vm| vm.script(programs, sha, code, is_bounded).map(drop))?)
    }

    /// Runs a library and lists what it registers, within its budget and within what may be done here; both are counted
    /// down.
    ///
    /// # Errors
    /// [`Refusal`].
    pub(super) fn load(
        &mut self,
        programs: &Programs,
        sha: &[u8],
        code: &[u8],
        seed: u64,
        left: &mut Left,
    ) -> Result<Vec<Registered>, Refusal> {
        Ok(self.guarded(|vm| vm.list(programs, sha, code, seed, left))?)
    }

    /// Uses the machine. One that panics is not used again.
    fn guarded<T>(&mut self, f: impl FnOnce(&mut Vm) -> Result<T, Failure>) -> Result<T, Failure> {
        let mut vm = self.vm.take().unwrap_or_else(|| Box::new(Vm::new()));
        let result = catch_unwind(AssertUnwindSafe(|| f(&mut vm)));
        if result.is_ok() {
            self.vm = Some(vm);
        }
        result.unwrap_or(Err(Failure::Death(Death::Internal)))
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        match failure {
            Failure::Patience => Refusal::Patience,
            failure => Refusal::Error(failure.text()),
        }
    }
}

/// The units of work that are left for loading libraries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    /// Units left of the budget; the loading ends when they are used up.
    pub budget: i64,
    /// Units left of what may be done here, if there is a bound: beyond it the loading is to be done elsewhere, from its beginning.
    pub patience: Option<i64>,
}

impl Left {
    /// A budget, with the bound that the run of a fragment has.
    pub(super) fn new(budget: i64, locals: &Locals) -> Left {
        Left { budget, patience: locals.patience().and_then(|units| i64::try_from(units).ok()) }
    }
}

fn past(budget: i64) -> Vec<u8> {
    format!("ERR script stopped: it ran past its budget of {budget} units of work").into()
}

/// The reason for which a run has no result.
enum Failure {
    /// An error to show.
    Text(Vec<u8>),
    /// A command of it aborted.
    Abort(Abort),
    /// An end against its will.
    Death(Death),
    /// The bound on what may be done here: it is to be run elsewhere.
    Patience,
}

impl Failure {
    fn text(self) -> Vec<u8> {
        match self {
            Failure::Text(text) => text,
            Failure::Death(Death::Work) => past(WORK_BUDGET),
            Failure::Death(Death::Memory) => {
                format!("ERR script stopped: it allocated more than {} MiB", MEMORY_LIMIT >> 20).into()
            }
            Failure::Abort(_) | Failure::Death(_) | Failure::Patience => {
                b"ERR script stopped: the interpreter failed".to_vec()
            }
        }
    }
}

/// A machine with its worlds: what programs see as globals.
struct Vm {
    machine: Machine,
    /// A script's.
    script: TableRef,
    /// A library's while it is loaded.
    load: TableRef,
    /// A library's while a function of it runs.
    function: TableRef,
    scripts: Cache,
    libraries: Cache,
    buffers: Buffers,
}

#[derive(Debug, Default)]
struct Cache {
    /// By SHA-1.
    programs: BTreeMap<Box<[u8]>, Program>,
    bytes: usize,
}

impl Vm {
    fn new() -> Vm {
        match Vm::build() {
            Ok(vm) => vm,
            Err(_) => unreachable!("the base has no limit"),
        }
    }

    fn build() -> ordain_lua::Result<Vm> {
        let mut m = Machine::new(host::ROWS);
        let script = m.globals();
        let redis = m.library("redis")?;
        let version = m.heap.text(b"7.0.15")?;
        m.heap.set_field(redis, "REDIS_VERSION", version)?;
        m.heap.set_field(redis, "REDIS_VERSION_NUM", Value::Number(f64::from(0x0007_000f)))?;
        const LEVELS: [(&str, u8); 9] = [
            ("LOG_DEBUG", 0),
            ("LOG_VERBOSE", 1),
            ("LOG_NOTICE", 2),
            ("LOG_WARNING", 3),
            ("REPL_NONE", 0),
            ("REPL_AOF", 1),
            ("REPL_SLAVE", 2),
            ("REPL_REPLICA", 2),
            ("REPL_ALL", 3),
        ];
        for (name, value) in LEVELS {
            m.heap.set_field(redis, name, Value::Number(f64::from(value)))?;
        }
        let register = m.heap.field(redis, "register_function")?;
        m.heap.set_field(redis, "register_function", Value::Nil)?;
        // Sealed, a table that was set here can be given another value, but no further key.
        let keys = m.heap.table(0, 0)?;
        m.heap.set_field(script, "KEYS", Value::Table(keys))?;
        m.heap.set_field(script, "ARGV", Value::Table(keys))?;
        // While it is loaded, a library can register and log, and not be random.
        let loading = m.heap.table(0, 16)?;
        for (key, value) in m.heap.pairs(redis).collect::<Vec<_>>() {
            let known = match key {
                Value::String(s) => {
                    m.heap.bytes(s).starts_with(b"LOG_") || m.heap.bytes(s).starts_with(b"REDIS_")
                }
                _ => false,
            };
            if known {
                m.heap.raw_set(loading, key, value)?;
            }
        }
        let log = m.heap.field(redis, "log")?;
        m.heap.set_field(loading, "log", log)?;
        m.heap.set_field(loading, "register_function", register)?;
        m.guard_globals(loading)?;
        let load = Vm::world(&mut m, script, &["KEYS", "ARGV", "math"], loading)?;
        let function = Vm::world(&mut m, script, &["KEYS", "ARGV"], redis)?;
        m.seal();
        Ok(Vm {
            machine: m,
            script,
            load,
            function,
            scripts: Cache::default(),
            libraries: Cache::default(),
            buffers: Buffers::default(),
        })
    }

    /// A table of globals like another, without some of them, and with another `redis`.
    fn world(
        m: &mut Machine,
        of: TableRef,
        without: &[&str],
        redis: TableRef,
    ) -> ordain_lua::Result<TableRef> {
        let table = m.heap.table(0, 64)?;
        for (key, value) in m.heap.pairs(of).collect::<Vec<_>>() {
            m.heap.raw_set(table, key, value)?;
        }
        for name in without {
            m.heap.set_field(table, name, Value::Nil)?;
        }
        m.heap.set_field(table, "_G", Value::Table(table))?;
        m.heap.set_field(table, "redis", Value::Table(redis))?;
        m.guard_globals(table)?;
        Ok(table)
    }

    fn run(
        &mut self,
        run: &Run<'_>,
        (budget, is_bounded): (Budget, bool),
        members: &mut dyn Members,
        locals: &mut Locals,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let program = match run.entry {
            Entry::Script => self.script(run.programs, run.sha, run.code, is_bounded)?,
            Entry::Function(_) => self.library(run.programs, run.sha, run.code, (WORK_BUDGET, is_bounded))?,
        };
        self.machine.begin(budget, run.seed);
        let surroundings = Surroundings {
            registry: run.registry,
            now: run.now,
            seed: run.seed,
            read_only: run.read_only,
            room: MEMORY_LIMIT,
        };
        let mut buffers = std::mem::take(&mut self.buffers);
        let mut hands = Hands {
            reach: None,
            buffers: &mut buffers,
            resp3: false,
            abort: None,
            registered: None,
            calls: 0,
        };
        let reach =
            Reach { members, locals, surroundings, db: run.db, rights: run.rights, frugal: run.frugal };
        let ran = self.execute(run, &program, &mut hands, reach);
        let (resp3, abort) = (hands.resp3, hands.abort);
        buffers.trim();
        self.buffers = buffers;
        match (ran, abort) {
            (_, Some(abort)) => Err(Failure::Abort(abort)),
            (Err(fault), None) => Err(self.raised(fault, run)),
            (Ok(value), None) => convert::to_datum(&mut self.machine, value, resp3, out)
                .map_err(|fault| self.raised(fault, run)),
        }
    }

    fn execute<'a>(
        &mut self,
        run: &Run<'a>,
        program: &Program,
        hands: &mut Hands<'a>,
        reach: Reach<'a>,
    ) -> ordain_lua::Result<Value> {
        let Vm { machine, script, load, function, .. } = self;
        let main = machine.load(program)?;
        let mut words = run.words;
        let count = words.count();
        let values = match run.entry {
            Entry::Script => {
                machine.set_globals(*script);
                let keys = list(machine, &mut words, run.keys)?;
                let argv = list(machine, &mut words, count - run.keys)?;
                machine.heap.set_field(*script, "KEYS", keys)?;
                machine.heap.set_field(*script, "ARGV", argv)?;
                hands.reach = Some(reach);
                machine.run(hands, main, &[])?
            }
            Entry::Function(name) => {
                machine.set_globals(*load);
                hands.registered = Some(Vec::new());
                machine.run(hands, main, &[])?;
                let registered = hands.registered.take().unwrap_or_default();
                let callback = registered.into_iter().find(|(function, _)| function.name == name);
                let Some((_, callback)) = callback else { return Err("ERR Function not found".into()) };
                machine.set_globals(*function);
                let keys = list(machine, &mut words, run.keys)?;
                let argv = list(machine, &mut words, count - run.keys)?;
                hands.reach = Some(reach);
                machine.run(hands, callback, &[keys, argv])?
            }
        };
        Ok(values.first().copied().unwrap_or_default())
    }

    /// An error that the script raised and did not catch, as Redis shows it, or the run's end.
    fn raised(&mut self, fault: Fault, run: &Run<'_>) -> Failure {
        let mut text = match (self.error_text(fault), self.machine.heap.budget.death()) {
            (Some(text), _) => text,
            (None, Some(Death::Stopped)) => b"ERR Script killed by user with SCRIPT KILL...".to_vec(),
            (None, _) => return self.death(),
        };
        let (name, source) = match run.entry {
            Entry::Script => (run.sha, "user_script"),
            Entry::Function(name) => (name.as_bytes(), "user_function"),
        };
        text.extend_from_slice(b" script: ");
        text.extend_from_slice(name);
        match self.machine.error_line() {
            0 => {}
            line => text.extend_from_slice(format!(", on @{source}:{line}.").as_bytes()),
        }
        Failure::Text(convert::line(&text))
    }

    /// The text of an error: its own, if it is an error reply, else marked as `ERR`. `None` at the run's end.
    fn error_text(&mut self, fault: Fault) -> Option<Vec<u8>> {
        let m = &mut self.machine;
        let value = match fault {
            Fault::Dead => return None,
            Fault::Text(text) => return Some([b"ERR ", &*text].concat()),
            Fault::Error(value) => value,
        };
        Some(match value {
            Value::Table(table) => match m.heap.field(table, "err") {
                Ok(Value::String(text)) => m.heap.bytes(text).to_vec(),
                _ => b"ERR the script raised a table that is no error reply".to_vec(),
            },
            value => match m.heap.as_str(value) {
                Ok(Some(text)) => [b"ERR ", m.heap.bytes(text)].concat(),
                Ok(None) => format!("ERR {}", value.type_name()).into_bytes(),
                Err(_) => return None,
            },
        })
    }

    fn death(&self) -> Failure {
        Failure::Death(self.machine.heap.budget.death().unwrap_or(Death::Internal))
    }

    fn list(
        &mut self,
        programs: &Programs,
        sha: &[u8],
        code: &[u8],
        seed: u64,
        left: &mut Left,
    ) -> Result<Vec<Registered>, Failure> {
        const FAILED: &[u8] = b"ERR Error registering functions: ";
        let whole = LOAD_BUDGET.min(left.budget);
        let budget = left.patience.map_or(whole, |patience| patience.min(whole));
        let is_bounded = budget < whole;
        let named = if whole < LOAD_BUDGET { RESTORE_BUDGET } else { LOAD_BUDGET };
        let beyond = || if is_bounded { Failure::Patience } else { Failure::Text(past(named)) };
        // The compiler's work is the first of the run's: a source that would use all of it is not compiled to its end.
        let work = (budget, left.patience.is_some());
        let program = self.library(programs, sha, code, work).map_err(|failure| match failure {
            Failure::Death(Death::Work) => beyond(),
            other => other,
        })?;
        self.machine.begin(Budget::new(budget, MEMORY_LIMIT), seed);
        let Vm { machine, load, buffers, .. } = self;
        machine.set_globals(*load);
        let registered = Some(Vec::new());
        let mut hands = Hands { reach: None, buffers, resp3: false, abort: None, registered, calls: 0 };
        let ran = machine.load(&program).and_then(|main| machine.run(&mut hands, main, &[]));
        let registered = hands.registered.take().unwrap_or_default();
        let used = budget.saturating_sub_unsigned(machine.heap.budget.left());
        left.budget -= used;
        left.patience = left.patience.map(|patience| patience - used);
        match ran {
            Ok(_) => Ok(registered.into_iter().map(|(function, _)| function).collect()),
            Err(fault) => Err(match self.error_text(fault) {
                Some(text) => Failure::Text([FAILED, &*text].concat()),
                None => match self.death() {
                    Failure::Death(Death::Work) => beyond(),
                    other => other,
                },
            }),
        }
    }

    fn script(
        &mut self,
        programs: &Programs,
        sha: &[u8],
        code: &[u8],
        is_bounded: bool,
    ) -> Result<Program, Failure> {
        let names = ("ERR Error compiling script (new function): ", "user_script");
        self.scripts.program(&programs.scripts, names, sha, code, (WORK_BUDGET, is_bounded))
    }

    fn library(
        &mut self,
        programs: &Programs,
        sha: &[u8],
        code: &[u8],
        work: (i64, bool),
    ) -> Result<Program, Failure> {
        let names = ("ERR Error compiling function: ", "user_function");
        self.libraries.program(&programs.libraries, names, sha, code, work)
    }
}

impl Cache {
    /// The compiled form of a source, which is here if it is small and among the others if it is large. A run is charged for
    /// it whether it was there or not. A large one that is not there is not compiled where work is bounded.
    fn program(
        &mut self,
        large: &Mutex<Cache>,
        (failed, name): (&str, &str),
        sha: &[u8],
        code: &[u8],
        (work, is_bounded): (i64, bool),
    ) -> Result<Program, Failure> {
        let is_large = code.len() > SMALL_SOURCE_MAX;
        let known = match is_large {
            true => lock(large).programs.get(sha).cloned(),
            false => self.programs.get(sha).cloned(),
        };
        match known {
            Some(program) => return Ok(program),
            None if is_large && is_bounded => return Err(Failure::Patience),
            None => {}
        }
        // The first line may say how to run the script; it keeps its place so that the lines are numbered right.
        let body = match code {
            [b'#', b'!', ..] => &code[code.iter().position(|b| *b == b'\n').unwrap_or(code.len())..],
            code => code,
        };
        let program = match compile(body, name, MEMORY_LIMIT, work.unsigned_abs()) {
            Ok(program) => program,
            Err(CompileError::Syntax(text)) => {
                return Err(Failure::Text([failed.as_bytes(), &*text].concat()));
            }
            Err(CompileError::Dead(death)) => return Err(Failure::Death(death)),
        };
        // Evicted forms are dropped after the lock is released.
        let old = match is_large {
            true => lock(large).keep(sha, code.len(), &program),
            false => self.keep(sha, code.len(), &program),
        };
        drop(old);
        Ok(program)
    }

    /// Keeps a compiled form unless it is too large. Returns what gives way to it.
    fn keep(&mut self, sha: &[u8], bytes: usize, program: &Program) -> Option<Cache> {
        if bytes > CACHE_BYTES {
            return None;
        }
        let is_full = self.programs.len() >= CACHE_MAX || self.bytes + bytes > CACHE_BYTES;
        let old = is_full.then(|| std::mem::take(self));
        if self.programs.insert(sha.into(), program.clone()).is_none() {
            self.bytes += bytes;
        }
        old
    }
}

/// The next `count` words as a table.
fn list(m: &mut Machine, words: &mut ArgIter<'_>, count: usize) -> ordain_lua::Result<Value> {
    let table = m.heap.table(count, 0)?;
    for i in 1..=count {
        let word = m.heap.text(words.bytes())?;
        m.heap.set_list(table, i, &[word])?;
    }
    Ok(Value::Table(table))
}
