//! The machine: what it is made of, and how functions are called.
//!
//! A machine is made once, with its libraries, and runs programs one after another, each as if it were the first
//! ([`crate::heap`]). There is no collector: what a run makes is counted and goes at its end.

use std::sync::Arc;

use crate::budget::{Budget, Fault, Result};
use crate::compiler::Program;
use crate::cost::{Cost, Operator};
use crate::heap::{ClosureEntry, Heap, Upvalue};
use crate::library::{Body, Row};
use crate::op::{Constant, Op, Proto};
use crate::value::{Closure, Native, Str, TableRef, Value};

/// The most calls of Lua functions within each other.
pub(crate) const MAX_CALLS: usize = 20_000;
/// The most calls through functions that are written in Rust, and metamethods, within each other.
const MAX_DEPTH: usize = 150;
/// The most values on the stack.
const MAX_STACK: usize = 1 << 20;
/// The most values that are returned or passed at once by a library function.
pub(crate) const MAX_VALUES: usize = 7_999;
/// The most steps of a chain of metamethods.
pub(crate) const MAX_CHAIN: usize = 100;

/// Marks a function written in Rust with a table of its own among those written in Lua.
const BOUND: u32 = 1 << 31;

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

/// Events that metamethods stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Index,
    NewIndex,
    Call,
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Pow,
    Unm,
    Concat,
    Eq,
    Lt,
    Le,
    ToString,
    Metatable,
}

const EVENTS: [&str; 16] = [
    "__index",
    "__newindex",
    "__call",
    "__add",
    "__sub",
    "__mul",
    "__div",
    "__mod",
    "__pow",
    "__unm",
    "__concat",
    "__eq",
    "__lt",
    "__le",
    "__tostring",
    "__metatable",
];

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
    high: usize,
    depth: usize,
    results: Vec<Value>,
    rows: Vec<&'static Row>,
    /// What the function that runs costs.
    row: Cost,
    events: [Str; 16],
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
        let mut events = [Str(0); 16];
        for (event, name) in events.iter_mut().zip(EVENTS) {
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
        if self.stack.capacity() > KEPT {
            self.stack.shrink_to(KEPT / 4);
        }
        if self.code.capacity() > KEPT {
            self.code.shrink_to(KEPT / 4);
            self.constants.shrink_to(KEPT / 4);
            self.loaded.shrink_to(KEPT / 64);
        }
        if self.frames.capacity() > KEPT / 16 {
            self.frames.shrink_to(KEPT / 64);
            self.open.shrink_to(KEPT / 64);
        }
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

    pub(crate) fn closure(&mut self, proto: u32, captured: u32) -> Result<Value> {
        self.heap.budget.take(32)?;
        self.heap.closures.push(ClosureEntry { proto, captured });
        Ok(Value::Closure(Closure(self.heap.closures.len() as u32 - 1)))
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

    /// Forgets what calls within this one have given.
    pub fn clear_results(&mut self) {
        self.results.clear();
    }

    /// A function of the interpreter's own that is given a table before its arguments.
    pub(crate) fn bind(&mut self, name: &str, state: TableRef) -> Result<Value> {
        let Some(native) = self.native(name) else { return Err("no such function".into()) };
        self.closure(BOUND | u32::from(native.0), state.0)
    }

    /// Takes back what was given so far.
    pub(crate) fn take_results(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.results)
    }

    /// Says that the function that runs was called as a method of an object.
    pub(crate) fn is_method_call(&self) -> bool {
        self.frames.last().is_some_and(|frame| {
            let code = self.loaded[frame.proto as usize].code;
            match frame.pc.checked_sub(1).and_then(|pc| self.code.get(pc)) {
                Some(Op::Call { a, .. } | Op::TailCall { a, .. }) if frame.pc > code => {
                    matches!(self.name_of(frame, u16::from(*a)), Some(("method", _)))
                }
                _ => false,
            }
        })
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

    // Calls.

    /// Calls a function with arguments and answers its first result.
    ///
    /// # Errors
    /// The function's.
    pub fn call_one(&mut self, host: &mut dyn Host, function: Value, args: &[Value]) -> Result<Value> {
        let at = self.free;
        self.call_values(host, function, args, 1)?;
        Ok(self.stack[at])
    }

    /// Calls a function; the results stand from [`Machine::free`] on, up to [`Machine::top`] if all are wanted.
    pub(crate) fn call_values(
        &mut self,
        host: &mut dyn Host,
        function: Value,
        args: &[Value],
        results: i32,
    ) -> Result<()> {
        let at = self.free;
        self.ensure(at + args.len() + 2)?;
        self.stack[at] = function;
        self.stack[at + 1..at + 1 + args.len()].copy_from_slice(args);
        self.call_at(host, at, args.len(), results)
    }

    /// Calls the function that stands at a place, with the arguments behind it, to its end.
    pub(crate) fn call_at(
        &mut self,
        host: &mut dyn Host,
        at: usize,
        count: usize,
        results: i32,
    ) -> Result<()> {
        let free = self.free;
        self.depth += 1;
        let done = if self.depth > MAX_DEPTH {
            Err("C stack overflow".into())
        } else {
            let frames = self.frames.len();
            self.precall(host, at, count, results, true).and_then(|is_lua| match is_lua {
                true => self.execute(host, frames),
                false => Ok(()),
            })
        };
        self.depth -= 1;
        self.free = free;
        done
    }

    /// Calls in protected mode. An error is answered as a value; the end of a run passes.
    pub(crate) fn protected(
        &mut self,
        host: &mut dyn Host,
        at: usize,
        count: usize,
    ) -> Result<Option<Value>> {
        let (frames, depth, free, row) = (self.frames.len(), self.depth, self.free, self.row);
        let fault = match self.call_at(host, at, count, -1) {
            Ok(()) => return Ok(None),
            Err(fault) => fault,
        };
        let value = match fault {
            Fault::Dead => return Err(Fault::Dead),
            Fault::Error(value) => value,
            Fault::Text(text) => self.heap.text(&text)?,
        };
        self.frames.truncate(frames);
        self.close(at);
        (self.depth, self.free, self.row, self.error_line) = (depth, free, row, 0);
        self.results.clear();
        Ok(Some(value))
    }

    /// Prepares a call: a frame for a function that is written in Lua (true), or all of one that is not.
    pub(crate) fn precall(
        &mut self,
        host: &mut dyn Host,
        at: usize,
        count: usize,
        results: i32,
        is_fresh: bool,
    ) -> Result<bool> {
        let mut count = count;
        for _ in 0..MAX_CHAIN {
            match self.stack[at] {
                Value::Closure(closure) => {
                    let ClosureEntry { proto, captured } = self.heap.closures[closure.0 as usize];
                    if proto & BOUND != 0 {
                        Operator::Call.charge(&mut self.heap.budget, 0, count)?;
                        self.ensure(at + count + 2)?;
                        self.stack.copy_within(at + 1..at + 1 + count, at + 2);
                        self.stack[at + 1] = Value::Table(TableRef(captured));
                        let native = Native((proto & !BOUND) as u16);
                        self.run_native(host, native, at, count + 1, results)?;
                        return Ok(false);
                    }
                    self.push_frame(closure, at, count, results, is_fresh)?;
                    return Ok(true);
                }
                Value::Native(native) => {
                    self.run_native(host, native, at, count, results)?;
                    return Ok(false);
                }
                other => {
                    let method = self.metamethod(other, Event::Call);
                    if method.is_nil() {
                        return Err(Fault::Text(
                            format!("attempt to call a {} value", other.type_name()).into(),
                        ));
                    }
                    Operator::Metamethod.charge(&mut self.heap.budget, 0, 1 + count)?;
                    self.ensure(at + count + 2)?;
                    self.stack.copy_within(at..at + 1 + count, at + 1);
                    self.stack[at] = method;
                    count += 1;
                }
            }
        }
        Err("C stack overflow".into())
    }

    fn push_frame(
        &mut self,
        closure: Closure,
        at: usize,
        count: usize,
        results: i32,
        is_fresh: bool,
    ) -> Result<()> {
        if self.frames.len() >= MAX_CALLS {
            return Err("stack overflow".into());
        }
        Operator::Call.charge(&mut self.heap.budget, 0, count)?;
        let ClosureEntry { proto, captured } = self.heap.closures[closure.0 as usize];
        let loaded = &self.loaded[proto as usize];
        let (params, registers) = (usize::from(loaded.proto.params), usize::from(loaded.proto.registers));
        let (code, constants, is_vararg) = (loaded.code, loaded.constants, loaded.proto.is_vararg);
        let base = if is_vararg { at + 1 + count } else { at + 1 };
        self.ensure(base + registers.max(params) + 1)?;
        let mut varargs = 0;
        if is_vararg {
            let fixed = count.min(params);
            self.stack.copy_within(at + 1..at + 1 + fixed, base);
            self.stack[base + fixed..base + params].fill(Value::Nil);
            varargs = count.saturating_sub(params) as u32;
        } else if count < params {
            self.stack[base + count..base + params].fill(Value::Nil);
        }
        let end = base + registers;
        self.free = end;
        let pc = code;
        self.frames.push(Frame {
            func: at,
            base,
            pc,
            constants,
            proto,
            captured,
            varargs,
            results,
            end,
            is_fresh,
        });
        Ok(())
    }

    fn run_native(
        &mut self,
        host: &mut dyn Host,
        native: Native,
        at: usize,
        count: usize,
        results: i32,
    ) -> Result<()> {
        let Some(row) = self.rows.get(usize::from(native.0)).copied() else {
            return Err("no such function".into());
        };
        self.heap.budget.work(u64::from(row.cost.base))?;
        let (free, former) = (self.free, self.row);
        self.free = at + 1 + count;
        self.row = row.cost;
        self.results.clear();
        let args = Args { at: at + 1, count };
        let done = match row.body {
            Body::Rust(run) | Body::Hidden(run) => run(self, host, args),
            Body::Host(function) => host.call(self, function, args),
        };
        self.row = former;
        self.free = free;
        done?;
        let given = self.results.len();
        match usize::try_from(results) {
            Ok(1) => self.stack[at] = self.results.first().copied().unwrap_or_default(),
            Ok(wanted) => {
                self.ensure(at + wanted)?;
                for i in 0..wanted {
                    self.stack[at + i] = self.results.get(i).copied().unwrap_or_default();
                }
            }
            Err(_) => {
                self.ensure(at + given)?;
                self.stack[at..at + given].copy_from_slice(&self.results);
                self.top = at + given;
            }
        }
        Ok(())
    }

    /// Closes the variables that live at a place of the stack or above it.
    pub(crate) fn close(&mut self, from: usize) {
        while let Some(&(at, upvalue)) = self.open.last()
            && at >= from
        {
            self.open.pop();
            self.heap.upvalues[upvalue as usize] = Upvalue::Closed(self.stack[at]);
        }
    }

    pub(crate) fn capture(&mut self, at: usize) -> Result<u32> {
        let place = self.open.partition_point(|(other, _)| *other < at);
        if let Some(&(other, upvalue)) = self.open.get(place)
            && other == at
        {
            return Ok(upvalue);
        }
        self.heap.budget.work((self.open.len() - place) as u64 / 4)?;
        self.heap.budget.take(40)?;
        let upvalue = self.heap.upvalues.len() as u32;
        self.heap.upvalues.push(Upvalue::Open(at));
        self.open.insert(place, (at, upvalue));
        Ok(upvalue)
    }

    // Metamethods.

    pub(crate) fn metatable(&self, value: Value) -> Option<TableRef> {
        match value {
            Value::Table(t) => self.heap.tables[t.0 as usize].meta,
            Value::String(_) => Some(self.string_meta),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn metamethod(&self, value: Value, event: Event) -> Value {
        match self.metatable(value) {
            Some(meta) => self.event(meta, event),
            None => Value::Nil,
        }
    }

    pub(crate) fn event(&self, meta: TableRef, event: Event) -> Value {
        let name = Value::String(self.events[event as usize]);
        self.heap.tables[meta.0 as usize].get(name, &self.heap.budget)
    }

    /// `object[key]`.
    ///
    /// # Errors
    /// The object cannot be indexed, or a metamethod's.
    pub fn index(&mut self, host: &mut dyn Host, object: Value, key: Value) -> Result<Value> {
        let mut object = object;
        for _ in 0..MAX_CHAIN {
            let handler = if let Value::Table(t) = object {
                let value = self.heap.raw_get(t, key)?;
                if !value.is_nil() {
                    return Ok(value);
                }
                let Some(meta) = self.heap.tables[t.0 as usize].meta else { return Ok(Value::Nil) };
                let handler = self.event(meta, Event::Index);
                if handler.is_nil() {
                    return Ok(Value::Nil);
                }
                handler
            } else {
                let handler = self.metamethod(object, Event::Index);
                if handler.is_nil() {
                    return Err(Fault::Text(
                        format!("attempt to index a {} value", object.type_name()).into(),
                    ));
                }
                handler
            };
            Operator::Metamethod.charge(&mut self.heap.budget, 0, 1)?;
            if matches!(handler, Value::Closure(_) | Value::Native(_)) {
                return self.call_one(host, handler, &[object, key]);
            }
            object = handler;
        }
        Err("loop in gettable".into())
    }

    /// `object[key] = value`.
    ///
    /// # Errors
    /// The object cannot be indexed or changed, or a metamethod's.
    pub fn set_index(&mut self, host: &mut dyn Host, object: Value, key: Value, value: Value) -> Result<()> {
        let mut object = object;
        for _ in 0..MAX_CHAIN {
            let handler = if let Value::Table(t) = object {
                let table = &self.heap.tables[t.0 as usize];
                if table.read_only {
                    return Err("Attempt to modify a readonly table".into());
                }
                let Some(meta) = table.meta else { return self.set_raw(t, key, value) };
                let handler = self.event(meta, Event::NewIndex);
                if handler.is_nil() || !self.heap.raw_get(t, key)?.is_nil() {
                    return self.set_raw(t, key, value);
                }
                handler
            } else {
                let handler = self.metamethod(object, Event::NewIndex);
                if handler.is_nil() {
                    return Err(Fault::Text(
                        format!("attempt to index a {} value", object.type_name()).into(),
                    ));
                }
                handler
            };
            Operator::Metamethod.charge(&mut self.heap.budget, 0, 1)?;
            if matches!(handler, Value::Closure(_) | Value::Native(_)) {
                return self.call_values(host, handler, &[object, key, value], 0);
            }
            object = handler;
        }
        Err("loop in settable".into())
    }

    /// Sets without metamethods what a script sets.
    pub(crate) fn set_raw(&mut self, t: TableRef, key: Value, value: Value) -> Result<()> {
        match key {
            Value::Nil => Err("table index is nil".into()),
            Value::Number(x) if x.is_nan() => Err("table index is NaN".into()),
            key => self.heap.raw_set(t, key, value),
        }
    }

    /// A value as `tostring` shows it: without addresses.
    ///
    /// # Errors
    /// A metamethod's, or there is not enough memory left.
    pub fn shown(&mut self, host: &mut dyn Host, value: Value) -> Result<Value> {
        let method = match value {
            Value::Table(_) => self.metamethod(value, Event::ToString),
            _ => Value::Nil,
        };
        if !method.is_nil() {
            return self.call_one(host, method, &[value]);
        }
        match value {
            Value::String(_) => Ok(value),
            Value::Number(_) => Ok(self.heap.as_str(value)?.map_or(Value::Nil, Value::String)),
            Value::Nil => self.heap.text(b"nil"),
            Value::Bool(true) => self.heap.text(b"true"),
            Value::Bool(false) => self.heap.text(b"false"),
            other => self.heap.text(other.type_name().as_bytes()),
        }
    }

    /// The number that a value is: strings are converted.
    pub(crate) fn as_number(&mut self, value: Value) -> Result<Option<f64>> {
        match value {
            Value::Number(x) => Ok(Some(x)),
            Value::String(s) => {
                let len = self.heap.str_len(s);
                Operator::Coerce.charge(&mut self.heap.budget, len, 0)?;
                Ok(crate::number::parse_number(self.heap.bytes(s)))
            }
            _ => Ok(None),
        }
    }

    // Errors.

    /// `source:line: ` of a frame.
    pub(crate) fn place_of(&self, frame: &Frame) -> (Vec<u8>, u32) {
        let loaded = &self.loaded[frame.proto as usize];
        let pc = frame.pc.saturating_sub(loaded.code + 1);
        let line = loaded.proto.lines.get(pc).copied().unwrap_or(0);
        ([&loaded.source[..], format!(":{line}: ").as_bytes()].concat(), line)
    }

    /// Makes an error text a value, with the place of the instruction that runs before it.
    pub(crate) fn located(&mut self, fault: Fault) -> Fault {
        let Some(frame) = self.frames.last().copied() else { return fault };
        let (place, line) = self.place_of(&frame);
        if self.error_line == 0 {
            self.error_line = line;
        }
        match fault {
            Fault::Text(text) => {
                let text = [place, text].concat();
                match self.heap.text(&text) {
                    Ok(value) => Fault::Error(value),
                    Err(fault) => fault,
                }
            }
            other => other,
        }
    }

    /// Runs a function of the host's choosing. On success the results are answered.
    ///
    /// # Errors
    /// The error that the function raised, or the end of the run.
    pub fn run(&mut self, host: &mut dyn Host, function: Value, args: &[Value]) -> Result<Vec<Value>> {
        let at = self.free;
        self.call_values(host, function, args, -1)?;
        Ok(self.stack[at..self.top].to_vec())
    }
}
