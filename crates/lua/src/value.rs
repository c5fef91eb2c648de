//! The values of Lua. All of them are copied; what is larger than a number is a place in the [`crate::heap::Heap`].

/// A string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Str(pub(crate) u32);

/// A table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableRef(pub(crate) u32);

/// A function that is written in Lua.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closure(pub(crate) u32);

/// A function that is written in Rust: its row in the machine's table of functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Native(pub u16);

/// A value of Lua.
#[derive(Clone, Copy, Debug, Default)]
pub enum Value {
    /// `nil`.
    #[default]
    Nil,
    /// A boolean.
    Bool(bool),
    /// A number.
    Number(f64),
    /// A string of bytes.
    String(Str),
    /// A table.
    Table(TableRef),
    /// A function that is written in Lua.
    Closure(Closure),
    /// A function that is written in Rust.
    Native(Native),
    /// The null pointer as light userdata, which `cjson.null` is.
    Null,
}

impl Value {
    /// The name of the value's type, as `type` answers it.
    pub fn type_name(self) -> &'static str {
        match self {
            Value::Nil => "nil",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Table(_) => "table",
            Value::Closure(_) | Value::Native(_) => "function",
            Value::Null => "userdata",
        }
    }

    /// Says that the value is `nil`.
    #[inline]
    pub fn is_nil(self) -> bool {
        matches!(self, Value::Nil)
    }

    /// Says that a condition takes the value for true.
    #[inline]
    pub fn is_true(self) -> bool {
        !matches!(self, Value::Nil | Value::Bool(false))
    }

    /// The number that the value is; strings are not converted.
    pub fn number(self) -> Option<f64> {
        match self {
            Value::Number(x) => Some(x),
            _ => None,
        }
    }

    /// Compares by identity: strings of equal content are equal only if both are canonical.
    #[inline]
    pub(crate) fn same(self, other: Value) -> bool {
        match (self, other) {
            (Value::Nil, Value::Nil) | (Value::Null, Value::Null) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Number(a), Value::Number(b)) => a == b,
            (Value::String(a), Value::String(b)) => a == b,
            (Value::Table(a), Value::Table(b)) => a == b,
            (Value::Closure(a), Value::Closure(b)) => a == b,
            (Value::Native(a), Value::Native(b)) => a == b,
            _ => false,
        }
    }
}
