//! The loop that runs instructions.

use crate::budget::{Death, Fault, Result};
use crate::cost::Operator;
use crate::heap::Upvalue;
use crate::machine::{Event, Frame, Host, Machine};
use crate::op::{CONSTANT, Op, Operand};
use crate::value::Value;

/// An operation on two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arith {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Pow,
}

impl Arith {
    #[inline(always)]
    pub(crate) fn apply(self, x: f64, y: f64) -> f64 {
        match self {
            Arith::Add => x + y,
            Arith::Sub => x - y,
            Arith::Mul => x * y,
            Arith::Div => x / y,
            Arith::Mod => x - (x / y).floor() * y,
            Arith::Pow => x.powf(y),
        }
    }

    const fn event(self) -> Event {
        match self {
            Arith::Add => Event::Add,
            Arith::Sub => Event::Sub,
            Arith::Mul => Event::Mul,
            Arith::Div => Event::Div,
            Arith::Mod => Event::Mod,
            Arith::Pow => Event::Pow,
        }
    }
}

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
                    let object = r!(b);
                    let key = self.constants[frame.constants + usize::from(k)];
                    if let Value::Table(t) = object {
                        let table = &self.heap.tables[t.0 as usize];
                        let value = table.get(key, &self.heap.budget);
                        if !value.is_nil() || table.meta.is_none() {
                            r!(a) = value;
                            continue;
                        }
                    }
                    save!();
                    r!(a) = self.index_named(host, object, key, u16::from(b))?;
                }
                Op::GetTable { a, b, c } => {
                    let (object, key) = (r!(b), rk!(c));
                    if let (Value::Table(t), Value::Number(_)) = (object, key) {
                        let table = &self.heap.tables[t.0 as usize];
                        let value = table.get(key, &self.heap.budget);
                        if !value.is_nil() || table.meta.is_none() {
                            r!(a) = value;
                            continue;
                        }
                    }
                    save!();
                    r!(a) = self.index_named(host, object, key, u16::from(b))?;
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
                Op::Eq { when, b, c } => {
                    let (x, y) = (rk!(b), rk!(c));
                    let equal = match (x, y) {
                        (Value::Number(x), Value::Number(y)) => x == y,
                        _ => {
                            save!();
                            self.equal(host, x, y)?
                        }
                    };
                    if equal != when {
                        pc += 1;
                    }
                }
                Op::Lt { when, b, c } => {
                    let (x, y) = (rk!(b), rk!(c));
                    let less = match (x, y) {
                        (Value::Number(x), Value::Number(y)) => x < y,
                        _ => {
                            save!();
                            self.less(host, x, y)?
                        }
                    };
                    if less != when {
                        pc += 1;
                    }
                }
                Op::Le { when, b, c } => {
                    let (x, y) = (rk!(b), rk!(c));
                    let less = match (x, y) {
                        (Value::Number(x), Value::Number(y)) => x <= y,
                        _ => {
                            save!();
                            self.less_equal(host, x, y)?
                        }
                    };
                    if less != when {
                        pc += 1;
                    }
                }
                Op::Call { a, args, results } => {
                    save!();
                    let at = base + usize::from(a);
                    let count = match args {
                        0 => self.top - at - 1,
                        n => usize::from(n) - 1,
                    };
                    self.check_callable(at, a)?;
                    if self.precall(host, at, count, i32::from(results) - 1, false)? {
                        reload!();
                    }
                }
                Op::TailCall { a, args } => {
                    save!();
                    let at = base + usize::from(a);
                    let count = match args {
                        0 => self.top - at - 1,
                        n => usize::from(n) - 1,
                    };
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
                    let given = match count {
                        0 => self.top - from,
                        n => usize::from(n) - 1,
                    };
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
                    for (i, what) in ["initial value", "limit", "step"].into_iter().enumerate() {
                        let at = base + usize::from(a) + i;
                        let Some(x) = self.as_number(self.stack[at])? else {
                            return Err(Fault::Text(format!("'for' {what} must be a number").into()));
                        };
                        self.stack[at] = Value::Number(x);
                    }
                    if let (Value::Number(from), Value::Number(step)) = (r!(a), r!(a + 2)) {
                        r!(a) = Value::Number(from - step);
                    }
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
                    let count = match n {
                        0 => self.top - from,
                        n => usize::from(n) - 1,
                    };
                    Operator::Values.charge(&mut self.heap.budget, 0, count)?;
                    if let Value::Table(t) = r!(a) {
                        let Machine { heap, stack, .. } = self;
                        heap.set_list(t, first as usize, &stack[from..from + count])?;
                    }
                }
                Op::Close { a } => self.close(base + usize::from(a)),
                Op::Closure { a, p } => {
                    save!();
                    let proto = self.loaded[frame.proto as usize].children + p;
                    let captures = self.loaded[proto as usize].proto.clone();
                    let captures = &captures.captures;
                    Operator::Closure.charge(&mut self.heap.budget, 0, captures.len())?;
                    self.heap.budget.take(4 * captures.len())?;
                    let captured = self.heap.captured.len() as u32;
                    for capture in captures {
                        let upvalue = match capture.is_local {
                            true => self.capture(base + usize::from(capture.index))?,
                            false => self.heap.captured[(frame.captured + u32::from(capture.index)) as usize],
                        };
                        self.heap.captured.push(upvalue);
                    }
                    r!(a) = self.closure(proto, captured)?;
                }
                Op::Vararg { a, n } => {
                    save!();
                    let have = frame.varargs as usize;
                    let wanted = if n == 0 { have } else { usize::from(n) - 1 };
                    Operator::Values.charge(&mut self.heap.budget, 0, wanted)?;
                    let at = base + usize::from(a);
                    self.ensure(at + wanted + 1)?;
                    let moved = have.min(wanted);
                    self.stack.copy_within(base - have..base - have + moved, at);
                    self.stack[at + moved..at + wanted].fill(Value::Nil);
                    if n == 0 {
                        self.top = at + have;
                    }
                }
                Op::ArgTable { a } => {
                    save!();
                    let have = frame.varargs as usize;
                    Operator::Values.charge(&mut self.heap.budget, 0, have)?;
                    let table = self.heap.table(have, 1)?;
                    let Machine { heap, stack, .. } = self;
                    heap.set_list(table, 1, &stack[base - have..base])?;
                    heap.set_field(table, "n", Value::Number(have as f64))?;
                    r!(a) = Value::Table(table);
                }
            }
        }
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

    /// Calls the metamethod of one of two values, the first's first.
    fn binary_event(
        &mut self,
        host: &mut dyn Host,
        event: Event,
        x: Value,
        y: Value,
    ) -> Result<Option<Value>> {
        let mut method = self.metamethod(x, event);
        if method.is_nil() {
            method = self.metamethod(y, event);
        }
        if method.is_nil() {
            return Ok(None);
        }
        Operator::Metamethod.charge(&mut self.heap.budget, 0, 1)?;
        self.call_one(host, method, &[x, y]).map(Some)
    }

    fn arithmetic(
        &mut self,
        host: &mut dyn Host,
        arith: Arith,
        x: Value,
        y: Value,
        b: Operand,
        c: Operand,
    ) -> Result<Value> {
        let (left, right) = (self.as_number(x)?, self.as_number(y)?);
        if let (Some(x), Some(y)) = (left, right) {
            return Ok(Value::Number(arith.apply(x, y)));
        }
        match self.binary_event(host, arith.event(), x, y)? {
            Some(value) => Ok(value),
            None if left.is_none() => Err(self.type_error("perform arithmetic on", x, b)),
            None => Err(self.type_error("perform arithmetic on", y, c)),
        }
    }

    fn negate(&mut self, host: &mut dyn Host, value: Value, b: Operand) -> Result<Value> {
        if let Some(x) = self.as_number(value)? {
            return Ok(Value::Number(-x));
        }
        match self.binary_event(host, Event::Unm, value, value)? {
            Some(value) => Ok(value),
            None => Err(self.type_error("perform arithmetic on", value, b)),
        }
    }

    /// Joins the registers from `b` to `c`, into `b`.
    fn concat(&mut self, host: &mut dyn Host, base: usize, b: u8, c: u8) -> Result<()> {
        let first = base + usize::from(b);
        let mut last = base + usize::from(c);
        let joins = |value: Value| matches!(value, Value::String(_) | Value::Number(_));
        while last > first {
            let (x, y) = (self.stack[last - 1], self.stack[last]);
            if !joins(x) || !joins(y) {
                self.stack[last - 1] = match self.binary_event(host, Event::Concat, x, y)? {
                    Some(value) => value,
                    None => {
                        let (value, at) = if joins(x) { (y, last) } else { (x, last - 1) };
                        return Err(self.type_error("concatenate", value, (at - base) as u16));
                    }
                };
                last -= 1;
                continue;
            }
            let mut from = last - 1;
            while from > first && joins(self.stack[from - 1]) {
                from -= 1;
            }
            // A number takes 24 bytes at most.
            let len = self.stack[from..=last].iter().map(|value| match value {
                Value::String(s) => self.heap.str_len(*s),
                _ => 24,
            });
            let len = len.fold(0usize, usize::saturating_add);
            Operator::Concat.charge(&mut self.heap.budget, len, 1 + last - from)?;
            let at = self.heap.begin(len)?;
            for i in from..=last {
                match self.stack[i] {
                    Value::String(s) => self.heap.extend_str(s),
                    Value::Number(x) => self.heap.extend_number(x),
                    _ => {}
                }
            }
            self.stack[from] = Value::String(self.heap.finish(at));
            last = from;
        }
        Ok(())
    }

    pub(crate) fn equal(&mut self, host: &mut dyn Host, x: Value, y: Value) -> Result<bool> {
        if self.heap.raw_equal(x, y)? {
            return Ok(true);
        }
        let (Value::Table(_), Value::Table(_)) = (x, y) else { return Ok(false) };
        let method = self.metamethod(x, Event::Eq);
        if method.is_nil() || !method.same(self.metamethod(y, Event::Eq)) {
            return Ok(false);
        }
        Operator::Metamethod.charge(&mut self.heap.budget, 0, 1)?;
        Ok(self.call_one(host, method, &[x, y])?.is_true())
    }

    pub(crate) fn less(&mut self, host: &mut dyn Host, x: Value, y: Value) -> Result<bool> {
        match (x, y) {
            (Value::Number(x), Value::Number(y)) => Ok(x < y),
            (Value::String(x), Value::String(y)) => {
                let len = self.heap.str_len(x).min(self.heap.str_len(y));
                Operator::Compare.charge(&mut self.heap.budget, len, 0)?;
                Ok(self.heap.bytes(x) < self.heap.bytes(y))
            }
            _ => match self.order_event(host, Event::Lt, x, y)? {
                Some(less) => Ok(less),
                None => Err(compare_error(x, y)),
            },
        }
    }

    fn less_equal(&mut self, host: &mut dyn Host, x: Value, y: Value) -> Result<bool> {
        match (x, y) {
            (Value::String(x), Value::String(y)) => {
                let len = self.heap.str_len(x).min(self.heap.str_len(y));
                Operator::Compare.charge(&mut self.heap.budget, len, 0)?;
                Ok(self.heap.bytes(x) <= self.heap.bytes(y))
            }
            _ => {
                if let Some(less) = self.order_event(host, Event::Le, x, y)? {
                    return Ok(less);
                }
                match self.order_event(host, Event::Lt, y, x)? {
                    Some(less) => Ok(!less),
                    None => Err(compare_error(x, y)),
                }
            }
        }
    }

    /// Asks the metamethod that both values share.
    fn order_event(&mut self, host: &mut dyn Host, event: Event, x: Value, y: Value) -> Result<Option<bool>> {
        let method = self.metamethod(x, event);
        if method.is_nil() {
            return Ok(None);
        }
        let other = self.metamethod(y, event);
        if !self.heap.raw_equal(method, other)? {
            return Ok(None);
        }
        Operator::Metamethod.charge(&mut self.heap.budget, 0, 1)?;
        Ok(Some(self.call_one(host, method, &[x, y])?.is_true()))
    }

    // What a value is called in the source.

    fn type_error(&self, what: &str, value: Value, operand: Operand) -> Fault {
        let kind = value.type_name();
        match self.frames.last().and_then(|frame| self.name_of(frame, operand)) {
            Some((place, name)) => {
                let mut text = format!("attempt to {what} {place} '").into_bytes();
                text.extend_from_slice(&name[..name.len().min(60)]);
                text.extend_from_slice(format!("' (a {kind} value)").as_bytes());
                Fault::Text(text)
            }
            None => Fault::Text(format!("attempt to {what} a {kind} value").into()),
        }
    }

    /// Where the value of a register comes from, and its name there.
    pub(crate) fn name_of(&self, frame: &Frame, operand: Operand) -> Option<(&'static str, Vec<u8>)> {
        if operand & CONSTANT != 0 {
            return None;
        }
        let loaded = &self.loaded[frame.proto as usize];
        let proto = &loaded.proto;
        let mut register = operand as u8;
        let mut pc = frame.pc.checked_sub(loaded.code + 1)?;
        let constant = |k: usize| match self.constants.get(loaded.constants + k) {
            Some(Value::String(s)) => self.heap.bytes(*s).to_vec(),
            _ => b"?".to_vec(),
        };
        // A value that was moved is looked for where it came from, a few times.
        for _ in 0..4 {
            let is_it = |local: &&crate::op::LocalName| {
                local.register == register && (local.from as usize..local.to as usize).contains(&pc)
            };
            if let Some(local) = proto.locals.iter().rev().find(is_it) {
                return Some(("local", local.name.to_vec()));
            }
            let at = (pc.saturating_sub(10_000)..pc).rev().find(|at| writes(&proto.code[*at], register))?;
            match proto.code[at] {
                Op::Move { b, .. } => (register, pc) = (b, at),
                Op::GetGlobal { k, .. } => return Some(("global", constant(k as usize))),
                Op::GetField { k, .. } => return Some(("field", constant(usize::from(k)))),
                Op::GetTable { c, .. } => {
                    let name =
                        if c & CONSTANT != 0 { constant(usize::from(c & !CONSTANT)) } else { b"?".to_vec() };
                    return Some(("field", name));
                }
                Op::Method { a, c, .. } if a == register => {
                    return Some(("method", constant(usize::from(c & !CONSTANT))));
                }
                Op::GetUpvalue { u, .. } => {
                    return Some(("upvalue", proto.capture_names.get(usize::from(u))?.to_vec()));
                }
                _ => return None,
            }
        }
        None
    }
}

fn compare_error(x: Value, y: Value) -> Fault {
    let (x, y) = (x.type_name(), y.type_name());
    Fault::Text(match x == y {
        true => format!("attempt to compare two {x} values").into(),
        false => format!("attempt to compare {x} with {y}").into(),
    })
}

/// Says that an instruction writes a register.
fn writes(op: &Op, register: u8) -> bool {
    match *op {
        Op::Move { a, .. }
        | Op::LoadK { a, .. }
        | Op::LoadBool { a, .. }
        | Op::GetUpvalue { a, .. }
        | Op::GetGlobal { a, .. }
        | Op::GetField { a, .. }
        | Op::GetTable { a, .. }
        | Op::NewTable { a, .. }
        | Op::Add { a, .. }
        | Op::Sub { a, .. }
        | Op::Mul { a, .. }
        | Op::Div { a, .. }
        | Op::Mod { a, .. }
        | Op::Pow { a, .. }
        | Op::Minus { a, .. }
        | Op::Not { a, .. }
        | Op::Len { a, .. }
        | Op::Concat { a, .. }
        | Op::Closure { a, .. }
        | Op::ArgTable { a } => a == register,
        Op::LoadNil { a, n } => (a..a.saturating_add(n)).contains(&register),
        Op::Method { a, .. } => register == a || register == a + 1,
        Op::Call { a, .. } | Op::TailCall { a, .. } | Op::Vararg { a, .. } => register >= a,
        Op::ForPrepare { a, .. } | Op::ForLoop { a, .. } | Op::ForCall { a, .. } | Op::ForNext { a, .. } => {
            register >= a
        }
        _ => false,
    }
}
