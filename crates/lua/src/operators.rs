//! Operators on values that are not two numbers: conversions, strings and metamethods.

use crate::budget::{Fault, Result};
use crate::cost::Operator;
use crate::machine::{Host, Machine};
use crate::metamethods::Event;
use crate::op::Operand;
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

    pub(crate) fn arithmetic(
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

    pub(crate) fn negate(&mut self, host: &mut dyn Host, value: Value, b: Operand) -> Result<Value> {
        if let Some(x) = self.as_number(value)? {
            return Ok(Value::Number(-x));
        }
        match self.binary_event(host, Event::Unm, value, value)? {
            Some(value) => Ok(value),
            None => Err(self.type_error("perform arithmetic on", value, b)),
        }
    }

    /// Joins the registers from `b` to `c`, into `b`.
    pub(crate) fn concat(&mut self, host: &mut dyn Host, base: usize, b: u8, c: u8) -> Result<()> {
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

    pub(crate) fn less_equal(&mut self, host: &mut dyn Host, x: Value, y: Value) -> Result<bool> {
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
}

fn compare_error(x: Value, y: Value) -> Fault {
    let (x, y) = (x.type_name(), y.type_name());
    Fault::Text(match x == y {
        true => format!("attempt to compare two {x} values").into(),
        false => format!("attempt to compare {x} with {y}").into(),
    })
}
