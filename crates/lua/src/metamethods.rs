//! Metamethods: the functions that a table's metatable has for the operations that the table lacks.

use crate::budget::Result;
use crate::cost::Operator;
use crate::machine::{Host, MAX_CHAIN, Machine};
use crate::value::{TableRef, Value};

/// Declares [`Event`] from one table: each event with the name of its metamethod.
macro_rules! events {
    ($($event:ident = $name:literal;)*) => {
        /// An event that a metamethod stands for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Event {
            $($event),*
        }

        impl Event {
            /// The names of the metamethods, by event.
            pub(crate) const NAMES: [&str; [$($name),*].len()] = [$($name),*];
        }
    };
}

events! {
    Index = "__index";
    NewIndex = "__newindex";
    Call = "__call";
    Add = "__add";
    Sub = "__sub";
    Mul = "__mul";
    Div = "__div";
    Mod = "__mod";
    Pow = "__pow";
    Unm = "__unm";
    Concat = "__concat";
    Eq = "__eq";
    Lt = "__lt";
    Le = "__le";
    ToString = "__tostring";
    Metatable = "__metatable";
}

impl Machine {
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

    /// The metamethod by which a value that is no table is indexed.
    fn handler(&self, object: Value, event: Event) -> Result<Value> {
        match self.metamethod(object, event) {
            Value::Nil => Err(format!("attempt to index a {} value", object.type_name()).into()),
            handler => Ok(handler),
        }
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
                self.handler(object, Event::Index)?
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
                self.handler(object, Event::NewIndex)?
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

    /// Calls the metamethod of one of two values, the first's first.
    pub(crate) fn binary_event(
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

    /// Asks the metamethod that both values share.
    pub(crate) fn order_event(
        &mut self,
        host: &mut dyn Host,
        event: Event,
        x: Value,
        y: Value,
    ) -> Result<Option<bool>> {
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
}
