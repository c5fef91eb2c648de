//! Calls: of functions written in Lua, which get a frame, and of those written in Rust, which run at once.

use crate::budget::{Fault, Result};
use crate::cost::Operator;
use crate::heap::{ClosureEntry, Upvalue};
use crate::library::Body;
use crate::machine::{Args, Frame, Host, MAX_CHAIN, Machine};
use crate::metamethods::Event;
use crate::value::{Closure, Native, TableRef, Value};

/// The most calls of Lua functions within each other.
pub(crate) const MAX_CALLS: usize = 20_000;
/// The most calls through functions that are written in Rust, and metamethods, within each other.
const MAX_DEPTH: usize = 150;
/// Marks a function written in Rust with a table of its own among those written in Lua.
const BOUND: u32 = 1 << 31;

impl Machine {
    pub(crate) fn closure(&mut self, proto: u32, captured: u32) -> Result<Value> {
        self.heap.budget.take(32)?;
        self.heap.closures.push(ClosureEntry { proto, captured });
        Ok(Value::Closure(Closure(self.heap.closures.len() as u32 - 1)))
    }

    /// A function of the interpreter's own that is given a table before its arguments.
    pub(crate) fn bind(&mut self, name: &str, state: TableRef) -> Result<Value> {
        let Some(native) = self.native(name) else { return Err("no such function".into()) };
        self.closure(BOUND | u32::from(native.0), state.0)
    }

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
                        return Err(format!("attempt to call a {} value", other.type_name()).into());
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
