//! The loop that runs instructions.

use crate::budget::{Death, Result};
use crate::cost::Operator;
use crate::heap::Upvalue;
use crate::machine::{Frame, Host, Machine};
use crate::metamethods::Event;
use crate::op::{CONSTANT, Op, Operand};
use crate::operators::Arith;
use crate::value::Value;

impl Machine {
    /// Runs until the frames are as few as they were.
    ///
    /// # Errors
    /// What was raised and not caught, with its place, or the end of the run.
    pub(crate) fn execute(&mut self, host: &mut dyn Host, frames: usize) -> Result<()> {
        self.steps(host, frames).map_err(|fault| self.located(fault))
    }

    #[inline(always)]
    fn operand(&self, base: usize, constants: usize, operand: Operand) -> Value {
        if operand & CONSTANT == 0 {
            self.stack[base + usize::from(operand)]
        } else {
            self.constants[constants + usize::from(operand & !CONSTANT)]
        }
    }

    fn steps(&mut self, host: &mut dyn Host, frames: usize) -> Result<()> {
        let Some(mut frame) = self.frames.last().copied() else { return Ok(()) };
        let mut pc = frame.pc;
        let mut base = frame.base;
        macro_rules! r {
            ($a:expr) => {
                self.stack[base + usize::from($a)]
            };
        }
        macro_rules! rk {
            ($b:expr) => {
                self.operand(base, frame.constants, $b)
            };
        }
        // Has the frame know where it is, before anything that may raise or look.
        macro_rules! save {
            () => {
                if let Some(last) = self.frames.last_mut() {
                    last.pc = pc;
                }
            };
        }
        macro_rules! reload {
            () => {
                match self.frames.last() {
                    Some(last) => {
                        frame = *last;
                        pc = frame.pc;
                        base = frame.base;
                        self.free = frame.end;
                    }
                    None => return Ok(()),
                }
            };
        }
        macro_rules! arith {
            ($op:expr, $a:expr, $b:expr, $c:expr) => {{
                let (x, y) = (rk!($b), rk!($c));
                r!($a) = match (x, y) {
                    (Value::Number(x), Value::Number(y)) => Value::Number($op.apply(x, y)),
                    _ => {
                        save!();
                        self.arithmetic(host, $op, x, y, $b, $c)?
                    }
                };
            }};
        }
        macro_rules! compare {
            ($when:expr, $b:expr, $c:expr, $operator:tt, $otherwise:ident) => {{
                let (x, y) = (rk!($b), rk!($c));
                let holds = match (x, y) {
                    (Value::Number(x), Value::Number(y)) => x $operator y,
                    _ => {
                        save!();
                        self.$otherwise(host, x, y)?
                    }
                };
                if holds != $when {
                    pc += 1;
                }
            }};
        }
        // Looks at once into a table whose key is known as it is.
        macro_rules! get {
            ($a:expr, $b:expr, $object:expr, $key:expr, $is_known:expr) => {
                if $is_known && let Value::Table(t) = $object {
                    let table = &self.heap.tables[t.0 as usize];
                    let value = table.get($key, &self.heap.budget);
                    if !value.is_nil() || table.meta.is_none() {
                        r!($a) = value;
                        continue;
                    }
                }
                save!();
                r!($a) = self.index_named(host, $object, $key, u16::from($b))?;
            };
        }
        // So many values from a place of the stack on, or up to the top.
        macro_rules! count {
            ($n:expr, $from:expr) => {
                match $n {
                    0 => self.top - ($from),
                    n => usize::from(n) - 1,
                }
            };
        }
        macro_rules! jump {
            ($to:expr) => {
                pc = pc.wrapping_add_signed($to as isize)
            };
        }
        loop {
            let op = self.code[pc];
            pc += 1;
            if !self.heap.budget.tick() {
                save!();
                return Err(self.heap.budget.die(Death::Work));
            }
            match op {
                Op::Move { a, b } => r!(a) = r!(b),
                Op::LoadK { a, k } => r!(a) = self.constants[frame.constants + k as usize],
                Op::LoadNil { a, n } => {
                    let from = base + usize::from(a);
                    self.stack[from..from + usize::from(n)].fill(Value::Nil);
                }
                Op::LoadBool { a, value } => r!(a) = Value::Bool(value),
                Op::GetUpvalue { a, u } => {
                    let upvalue = self.heap.captured[(frame.captured + u32::from(u)) as usize];
                    r!(a) = match self.heap.upvalues[upvalue as usize] {
                        Upvalue::Open(at) => self.stack[at],
                        Upvalue::Closed(value) => value,
                    };
                }
                Op::SetUpvalue { a, u } => {
                    let upvalue = self.heap.captured[(frame.captured + u32::from(u)) as usize];
                    let value = r!(a);
                    match &mut self.heap.upvalues[upvalue as usize] {
                        Upvalue::Open(at) => {
                            let at = *at;
                            self.stack[at] = value;
                        }
                        Upvalue::Closed(place) => *place = value,
                    }
                }
                Op::GetGlobal { a, k } => {
                    let key = self.constants[frame.constants + k as usize];
                    let table = &self.heap.tables[self.globals.0 as usize];
                    let value = table.get(key, &self.heap.budget);
                    r!(a) = if value.is_nil() {
                        save!();
                        self.index(host, Value::Table(self.globals), key)?
                    } else {
                        value
                    };
                }
                Op::SetGlobal { a, k } => {
                    save!();
                    let key = self.constants[frame.constants + k as usize];
                    let value = r!(a);
                    self.set_index(host, Value::Table(self.globals), key, value)?;
                }
                Op::GetField { a, b, k } => {
                    let (object, key) = (r!(b), self.constants[frame.constants + usize::from(k)]);
                    get!(a, b, object, key, matches!(object, Value::Table(_)));
                }
                Op::GetTable { a, b, c } => {
                    let (object, key) = (r!(b), rk!(c));
                    get!(a, b, object, key, matches!((object, key), (Value::Table(_), Value::Number(_))));
                }
                Op::SetTable { a, b, c } => {
                    let (object, key, value) = (r!(a), rk!(b), rk!(c));
                    save!();
                    if !matches!(object, Value::Table(_)) && self.metamethod(object, Event::NewIndex).is_nil()
                    {
                        return Err(self.type_error("index", object, u16::from(a)));
                    }
                    self.set_index(host, object, key, value)?;
                }
                Op::NewTable { a, items, entries } => {
                    save!();
                    let table = self.heap.table(usize::from(items), usize::from(entries))?;
                    r!(a) = Value::Table(table);
                }
                Op::Method { a, b, c } => {
                    let (object, key) = (r!(b), rk!(c));
                    save!();
                    let method = self.index_named(host, object, key, u16::from(b))?;
                    r!(a) = method;
                    r!(a + 1) = object;
                }
                Op::Add { a, b, c } => arith!(Arith::Add, a, b, c),
                Op::Sub { a, b, c } => arith!(Arith::Sub, a, b, c),
                Op::Mul { a, b, c } => arith!(Arith::Mul, a, b, c),
                Op::Div { a, b, c } => arith!(Arith::Div, a, b, c),
                Op::Mod { a, b, c } => arith!(Arith::Mod, a, b, c),
                Op::Pow { a, b, c } => arith!(Arith::Pow, a, b, c),
                Op::Minus { a, b } => {
                    let value = r!(b);
                    r!(a) = match value {
                        Value::Number(x) => Value::Number(-x),
                        value => {
                            save!();
                            self.negate(host, value, u16::from(b))?
                        }
                    };
                }
                Op::Not { a, b } => r!(a) = Value::Bool(!r!(b).is_true()),
                Op::Len { a, b } => {
                    let value = r!(b);
                    r!(a) = match value {
                        Value::Table(t) => Value::Number(self.heap.len(t) as f64),
                        Value::String(s) => Value::Number(self.heap.str_len(s) as f64),
                        other => {
                            save!();
                            return Err(self.type_error("get length of", other, u16::from(b)));
                        }
                    };
                }
                Op::Concat { a, b, c } => {
                    save!();
                    self.concat(host, base, b, c)?;
                    r!(a) = r!(b);
                }
                Op::Jump { to } => jump!(to),
                Op::Test { a, when, to } => {
                    if r!(a).is_true() == when {
                        jump!(to);
                    }
                }
                Op::Eq { when, b, c } => compare!(when, b, c, ==, equal),
                Op::Lt { when, b, c } => compare!(when, b, c, <, less),
                Op::Le { when, b, c } => compare!(when, b, c, <=, less_equal),
                Op::Call { a, args, results } => {
                    save!();
                    let at = base + usize::from(a);
                    let count = count!(args, at + 1);
                    self.check_callable(at, a)?;
                    if self.precall(host, at, count, i32::from(results) - 1, false)? {
                        reload!();
                    }
                }
                Op::TailCall { a, args } => {
                    save!();
                    let at = base + usize::from(a);
                    let count = count!(args, at + 1);
                    self.check_callable(at, a)?;
                    if !matches!(self.stack[at], Value::Closure(_)) {
                        // The instruction that follows returns what this gives.
                        if self.precall(host, at, count, -1, false)? {
                            reload!();
                        }
                        continue;
                    }
                    self.close(base);
                    self.stack.copy_within(at..at + 1 + count, frame.func);
                    self.frames.pop();
                    if self.precall(host, frame.func, count, frame.results, frame.is_fresh)? {
                        reload!();
                    }
                }
                Op::Return { a, count } => {
                    let from = base + usize::from(a);
                    let given = count!(count, from);
                    if !self.open.is_empty() {
                        self.close(base);
                    }
                    let at = frame.func;
                    match usize::try_from(frame.results) {
                        Ok(1) => {
                            self.stack[at] = if given > 0 { self.stack[from] } else { Value::Nil };
                        }
                        Ok(wanted) => {
                            save!();
                            self.ensure(at + wanted)?;
                            let moved = given.min(wanted);
                            self.stack.copy_within(from..from + moved, at);
                            self.stack[at + moved..at + wanted].fill(Value::Nil);
                        }
                        Err(_) => {
                            Operator::Values.charge(&mut self.heap.budget, 0, given)?;
                            self.stack.copy_within(from..from + given, at);
                            self.top = at + given;
                        }
                    }
                    self.frames.pop();
                    if self.frames.len() <= frames {
                        return Ok(());
                    }
                    reload!();
                }
                Op::ForPrepare { a, to } => {
                    save!();
                    self.prepare_for(base + usize::from(a))?;
                    jump!(to);
                }
                Op::ForLoop { a, to } => {
                    if let (Value::Number(at), Value::Number(limit), Value::Number(step)) =
                        (r!(a), r!(a + 1), r!(a + 2))
                    {
                        let at = at + step;
                        if if step > 0.0 { at <= limit } else { limit <= at } {
                            r!(a) = Value::Number(at);
                            r!(a + 3) = Value::Number(at);
                            jump!(to);
                        }
                    }
                }
                Op::ForCall { a, n } => {
                    save!();
                    let at = base + usize::from(a) + 3;
                    self.stack.copy_within(at - 3..at, at);
                    if !matches!(self.stack[at], Value::Closure(_) | Value::Native(_)) {
                        self.check_callable(at, a)?;
                    }
                    if self.precall(host, at, 2, i32::from(n), false)? {
                        reload!();
                    }
                }
                Op::ForNext { a, to } => {
                    let first = r!(a + 3);
                    if !first.is_nil() {
                        r!(a + 2) = first;
                        jump!(to);
                    }
                }
                Op::SetList { a, n, first } => {
                    save!();
                    let from = base + usize::from(a) + 1;
                    let count = count!(n, from);
                    Operator::Values.charge(&mut self.heap.budget, 0, count)?;
                    if let Value::Table(t) = r!(a) {
                        let Machine { heap, stack, .. } = self;
                        heap.set_list(t, first as usize, &stack[from..from + count])?;
                    }
                }
                Op::Close { a } => self.close(base + usize::from(a)),
                Op::Closure { a, p } => {
                    save!();
                    r!(a) = self.capturing(&frame, p)?;
                }
                Op::Vararg { a, n } => {
                    save!();
                    self.load_varargs(&frame, base + usize::from(a), n)?;
                }
                Op::ArgTable { a } => {
                    save!();
                    r!(a) = self.arg_table(&frame)?;
                }
            }
        }
    }

    /// Checks the three values of a numeric loop, and takes one step back.
    fn prepare_for(&mut self, at: usize) -> Result<()> {
        let mut values = [0.0; 3];
        for (i, what) in ["initial value", "limit", "step"].into_iter().enumerate() {
            let Some(x) = self.as_number(self.stack[at + i])? else {
                return Err(format!("'for' {what} must be a number").into());
            };
            values[i] = x;
            self.stack[at + i] = Value::Number(x);
        }
        self.stack[at] = Value::Number(values[0] - values[2]);
        Ok(())
    }

    /// Makes a function of one of the frame's prototypes, with the variables that it captures.
    fn capturing(&mut self, frame: &Frame, child: u32) -> Result<Value> {
        let proto = self.loaded[frame.proto as usize].children + child;
        let captures = self.loaded[proto as usize].proto.clone();
        let captures = &captures.captures;
        Operator::Closure.charge(&mut self.heap.budget, 0, captures.len())?;
        self.heap.budget.take(4 * captures.len())?;
        let captured = self.heap.captured.len() as u32;
        for capture in captures {
            let upvalue = match capture.is_local {
                true => self.capture(frame.base + usize::from(capture.index))?,
                false => self.heap.captured[(frame.captured + u32::from(capture.index)) as usize],
            };
            self.heap.captured.push(upvalue);
        }
        self.closure(proto, captured)
    }

    /// Loads `n - 1` of the frame's variable arguments to a place of the stack, or all for 0.
    fn load_varargs(&mut self, frame: &Frame, at: usize, n: u16) -> Result<()> {
        let have = frame.varargs as usize;
        let wanted = if n == 0 { have } else { usize::from(n) - 1 };
        Operator::Values.charge(&mut self.heap.budget, 0, wanted)?;
        self.ensure(at + wanted + 1)?;
        let (moved, first) = (have.min(wanted), frame.base - have);
        self.stack.copy_within(first..first + moved, at);
        self.stack[at + moved..at + wanted].fill(Value::Nil);
        if n == 0 {
            self.top = at + have;
        }
        Ok(())
    }

    /// Makes the table `arg` of Lua 5.0.
    fn arg_table(&mut self, frame: &Frame) -> Result<Value> {
        let have = frame.varargs as usize;
        Operator::Values.charge(&mut self.heap.budget, 0, have)?;
        let table = self.heap.table(have, 1)?;
        let Machine { heap, stack, .. } = self;
        heap.set_list(table, 1, &stack[frame.base - have..frame.base])?;
        heap.set_field(table, "n", Value::Number(have as f64))?;
        Ok(Value::Table(table))
    }

    fn check_callable(&mut self, at: usize, register: u8) -> Result<()> {
        let value = self.stack[at];
        if matches!(value, Value::Closure(_) | Value::Native(_))
            || !self.metamethod(value, Event::Call).is_nil()
        {
            return Ok(());
        }
        Err(self.type_error("call", value, u16::from(register)))
    }

    fn index_named(
        &mut self,
        host: &mut dyn Host,
        object: Value,
        key: Value,
        operand: Operand,
    ) -> Result<Value> {
        if !matches!(object, Value::Table(_)) && self.metamethod(object, Event::Index).is_nil() {
            return Err(self.type_error("index", object, operand));
        }
        self.index(host, object, key)
    }
}
