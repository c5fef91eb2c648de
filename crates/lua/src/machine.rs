//! The machine: what it is made of, and how a run begins.
//!
//! A machine is made once, with its libraries, and runs programs one after another, each as if it were the first
//! ([`crate::heap`]). There is no collector: what a run makes is counted and goes at its end.

use std::sync::Arc;

use crate::budget::{Budget, Result};
use crate::compiler::Program;
use crate::cost::Cost;
use crate::heap::{Heap, trim};
use crate::library::{Body, Row};
use crate::metamethods::Event;
use crate::op::{Constant, Op, Proto};
use crate::value::{Native, Str, TableRef, Value};

/// The most values on the stack.
const MAX_STACK: usize = 1 << 20;
/// The most values that are returned or passed at once by a library function.
pub(crate) const MAX_VALUES: usize = 7_999;
/// The most steps of a chain of metamethods.
pub(crate) const MAX_CHAIN: usize = 100;

/// A function's arguments: where they stand.
#[derive(Clone, Copy, Debug)]
pub struct Args {
    pub(crate) at: usize,
    pub(crate) count: usize,
}

impl Args {
    /// The number of arguments.
    pub fn len(self) -> usize {
        self.count
    }

    /// Says that there are none.
    pub fn is_empty(self) -> bool {
        self.count == 0
    }
}

/// The one who runs scripts: it has functions of its own.
pub trait Host {
    /// Runs the host's function of this number. Results are given by [`Machine::give`].
    ///
    /// # Errors
    /// What the script is to see, or the end of the run.
    fn call(&mut self, machine: &mut Machine, function: u16, args: Args) -> Result<()>;
}

/// A host without functions.
#[derive(Debug)]
pub struct NoHost;

impl Host for NoHost {
    fn call(&mut self, _: &mut Machine, _: u16, _: Args) -> Result<()> {
        Err("no such function".into())
    }
}

/// A call of a function that is written in Lua.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub func: usize,
    pub base: usize,
    pub pc: usize,
    pub constants: usize,
    pub proto: u32,
    pub captured: u32,
    pub varargs: u32,
    pub results: i32,
    /// The end of its registers.
    pub end: usize,
    /// A function that is written in Rust called it.
    pub is_fresh: bool,
}

/// A prototype whose instructions and constants are at hand.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub proto: Arc<Proto>,
    pub source: Arc<[u8]>,
    pub code: usize,
    pub constants: usize,
    pub children: u32,
}

/// An interpreter.
pub struct Machine {
    /// Strings, tables and functions, and the budget.
    pub heap: Heap,
    pub(crate) stack: Vec<Value>,
    pub(crate) frames: Vec<Frame>,
    pub(crate) code: Vec<Op>,
    pub(crate) constants: Vec<Value>,
    pub(crate) loaded: Vec<Loaded>,
    /// Places of open variables with their upvalues, by place.
    pub(crate) open: Vec<(usize, u32)>,
    /// The end of the last result of a call that gives all.
    pub(crate) top: usize,
    /// The first place of the stack that nothing uses.
    pub(crate) free: usize,
    /// The most that was used of the stack.
    pub(crate) high: usize,
    pub(crate) depth: usize,
    pub(crate) results: Vec<Value>,
    pub(crate) rows: Vec<&'static Row>,
    /// The cost of the function that runs.
    pub(crate) row: Cost,
    pub(crate) events: [Str; Event::NAMES.len()],
    pub(crate) string_meta: TableRef,
    pub(crate) globals: TableRef,
    /// The line where the last error happened that was not caught.
    pub(crate) error_line: u32,
    /// The transaction's own source of random numbers.
    pub(crate) random: u64,
    pub(crate) json: crate::library::cjson::Options,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").field("used", &self.heap.budget.used()).finish_non_exhaustive()
    }
}

/// A function by its name: `library.function`, or `function` for a global one.
fn split_name(name: &str) -> (&str, &str) {
    name.split_once('.').unwrap_or(("", name))
}

impl Machine {
    /// A machine with the libraries and the functions of a host.
    ///
    /// # Panics
    /// If the tables of functions are wrong.
    pub fn new(host: &'static [Row]) -> Machine {
        match Machine::build(host) {
            Ok(machine) => machine,
            Err(_) => unreachable!("the base has no limit"),
        }
    }

    fn build(host: &'static [Row]) -> Result<Machine> {
        let mut heap = Heap::new();
        let mut events = [Str(0); Event::NAMES.len()];
        for (event, name) in events.iter_mut().zip(Event::NAMES) {
            *event = heap.string(name.as_bytes())?;
        }
        let globals = heap.table(0, 64)?;
        let string_meta = heap.table(0, 4)?;
        let rows: Vec<&'static Row> = crate::library::ROWS.iter().chain(host).collect();
        let mut machine = Machine {
            heap,
            stack: Vec::new(),
            frames: Vec::new(),
            code: Vec::new(),
            constants: Vec::new(),
            loaded: Vec::new(),
            open: Vec::new(),
            top: 0,
            free: 0,
            high: 0,
            depth: 0,
            results: Vec::new(),
            rows,
            row: crate::cost::cost(0, 1, 0),
            events,
            string_meta,
            globals,
            error_line: 0,
            random: 0,
            json: crate::library::cjson::Options::default(),
        };
        for i in 0..machine.rows.len() {
            let (library, name) = split_name(machine.rows[i].name);
            if matches!(machine.rows[i].body, Body::Hidden(_)) {
                continue;
            }
            let table = machine.library(library)?;
            machine.heap.set_field(table, name, Value::Native(Native(i as u16)))?;
        }
        crate::library::constants(&mut machine)?;
        Ok(machine)
    }

    /// The table of a library in the base, made if it is not there.
    ///
    /// # Errors
    /// There is not enough memory left.
    pub fn library(&mut self, name: &str) -> Result<TableRef> {
        if name.is_empty() {
            return Ok(self.globals);
        }
        if let Value::Table(table) = self.heap.field(self.globals, name)? {
            return Ok(table);
        }
        let table = self.heap.table(0, 24)?;
        self.heap.set_field(self.globals, name, Value::Table(table))?;
        Ok(table)
    }

    /// The function of a row by its name.
    pub fn native(&self, name: &str) -> Option<Native> {
        self.rows.iter().position(|row| row.name == name).map(|i| Native(i as u16))
    }

    /// The row of a function.
    pub fn row(&self, native: Native) -> Option<&'static Row> {
        self.rows.get(usize::from(native.0)).copied()
    }

    /// The table of globals that programs see.
    pub fn globals(&self) -> TableRef {
        self.globals
    }

    /// Has programs see another table of globals.
    pub fn set_globals(&mut self, globals: TableRef) {
        self.globals = globals;
    }

    /// Ends the making of the base: what there is now is found by every run, which cannot change it.
    pub fn seal(&mut self) {
        self.heap.make_base();
    }

    /// Begins a run: everything is as it was when the base was sealed.
    pub fn begin(&mut self, budget: Budget, random: u64) {
        self.heap.reset(budget);
        self.stack.clear();
        self.frames.clear();
        self.code.clear();
        self.constants.clear();
        self.loaded.clear();
        self.open.clear();
        const KEPT: usize = 1 << 16;
        trim(&mut self.stack, KEPT, KEPT / 4);
        trim(&mut self.code, KEPT, KEPT / 4);
        trim(&mut self.constants, KEPT, KEPT / 4);
        trim(&mut self.loaded, KEPT / 16, KEPT / 64);
        trim(&mut self.frames, KEPT / 16, KEPT / 64);
        trim(&mut self.open, KEPT / 16, KEPT / 64);
        (self.top, self.free, self.high, self.depth) = (0, 0, 0, 0);
        self.results.clear();
        self.error_line = 0;
        self.random = random;
        self.json = crate::library::cjson::Options::default();
    }

    /// The line of the script where the error happened that ended the run; 0 if none is known.
    pub fn error_line(&self) -> u32 {
        self.error_line
    }

    /// Makes a program's main function. The run pays for having it compiled.
    ///
    /// # Errors
    /// The budget is used up.
    pub fn load(&mut self, program: &Program) -> Result<Value> {
        self.heap.budget.work(program.work)?;
        self.heap.budget.take(program.memory)?;
        let main = self.loaded.len() as u32;
        let loaded = |proto: &Arc<Proto>| Loaded {
            proto: proto.clone(),
            source: program.source.clone(),
            code: 0,
            constants: 0,
            children: 0,
        };
        self.loaded.push(loaded(&program.proto));
        let mut next = main as usize;
        while next < self.loaded.len() {
            let proto = self.loaded[next].proto.clone();
            let (code, constants, children) = (self.code.len(), self.constants.len(), self.loaded.len());
            self.code.extend_from_slice(&proto.code);
            for constant in &proto.constants {
                let value = match constant {
                    Constant::Nil => Value::Nil,
                    Constant::Bool(b) => Value::Bool(*b),
                    Constant::Number(x) => Value::Number(*x),
                    Constant::Text(text) => {
                        let text = self.heap.string(text)?;
                        Value::String(self.heap.canonical(text)?)
                    }
                };
                self.constants.push(value);
            }
            self.loaded.extend(proto.protos.iter().map(loaded));
            let entry = &mut self.loaded[next];
            (entry.code, entry.constants, entry.children) = (code, constants, children as u32);
            next += 1;
        }
        self.closure(main, 0)
    }

    // Arguments and results.

    /// An argument, from 0 on; nil if there are not so many.
    #[inline]
    pub fn arg(&self, args: Args, i: usize) -> Value {
        if i < args.count { self.stack[args.at + i] } else { Value::Nil }
    }

    /// The arguments.
    pub fn args(&self, args: Args) -> &[Value] {
        &self.stack[args.at..args.at + args.count]
    }

    /// Gives one more result of the function that runs.
    #[inline]
    pub fn give(&mut self, value: Value) {
        self.results.push(value);
    }

    /// Gives the last result of the function that runs.
    ///
    /// # Errors
    /// None: this is the end of a function that may have some.
    #[inline]
    pub fn answer(&mut self, value: Value) -> Result<()> {
        self.give(value);
        Ok(())
    }

    /// Forgets what calls within this one have given.
    pub fn clear_results(&mut self) {
        self.results.clear();
    }

    /// Takes back what was given so far.
    pub(crate) fn take_results(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.results)
    }

    pub(crate) fn put_results(&mut self, mut results: Vec<Value>) {
        std::mem::swap(&mut self.results, &mut results);
    }

    /// Gives a string.
    ///
    /// # Errors
    /// There is not enough memory left.
    pub fn give_text(&mut self, bytes: &[u8]) -> Result<()> {
        let text = self.heap.text(bytes)?;
        self.give(text);
        Ok(())
    }

    /// Charges the function that runs for what it touches.
    ///
    /// # Errors
    /// The units are used up.
    #[inline]
    pub fn touch(&mut self, bytes: usize, items: usize) -> Result<()> {
        self.heap.budget.work(self.row.units(bytes, items))
    }

    // The stack.

    pub(crate) fn ensure(&mut self, end: usize) -> Result<()> {
        if end > self.high {
            if end > MAX_STACK {
                return Err("stack overflow".into());
            }
            self.heap.budget.take((end - self.high) * size_of::<Value>())?;
            self.high = end;
        }
        if end > self.stack.len() {
            self.stack.resize(end.next_multiple_of(64), Value::Nil);
        }
        Ok(())
    }
}
