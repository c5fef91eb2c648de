//! Instructions, and the compiled form of a function.

use std::ops::Range;
use std::sync::Arc;

/// An operand: a register, or a constant if [`CONSTANT`] is set.
pub(crate) type Operand = u16;
pub(crate) const CONSTANT: u16 = 0x8000;

/// Declares [`Op`] from one table: the fields of each instruction, and the registers that it writes.
macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty),* } => $written:expr;)*) => {
        /// An instruction. `a` is a register, `b` and `c` are operands where nothing else is written; jumps are from the
        /// instruction that follows.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub(crate) enum Op {
            $($(#[$doc])* $name { $($field: $kind),* },)*
        }

        impl Op {
            /// The registers that the instruction writes.
            #[allow(unused_variables)]
            pub(crate) fn written(self) -> Range<u16> {
                match self {
                    $(Op::$name { $($field),* } => $written,)*
                }
            }
        }
    };
}

const NONE: Range<u16> = 0..0;

fn one(a: u8) -> Range<u16> {
    run(a, 1)
}

fn run(a: u8, n: u8) -> Range<u16> {
    u16::from(a)..u16::from(a) + u16::from(n)
}

fn all_from(a: u8) -> Range<u16> {
    u16::from(a)..u16::MAX
}

ops! {
    Move { a: u8, b: u8 } => one(a);
    LoadK { a: u8, k: u32 } => one(a);
    LoadNil { a: u8, n: u8 } => run(a, n);
    LoadBool { a: u8, value: bool } => one(a);
    GetUpvalue { a: u8, u: u8 } => one(a);
    SetUpvalue { a: u8, u: u8 } => NONE;
    GetGlobal { a: u8, k: u32 } => one(a);
    SetGlobal { a: u8, k: u32 } => NONE;
    /// `a = b[c]`; `b` is a register.
    GetTable { a: u8, b: u8, c: Operand } => one(a);
    /// `a = b[k]`; `k` is a constant string.
    GetField { a: u8, b: u8, k: u16 } => one(a);
    /// `a[b] = c`.
    SetTable { a: u8, b: Operand, c: Operand } => NONE;
    NewTable { a: u8, items: u16, entries: u16 } => one(a);
    /// `a + 1 = b; a = b[c]`; `b` is a register.
    Method { a: u8, b: u8, c: Operand } => run(a, 2);
    Add { a: u8, b: Operand, c: Operand } => one(a);
    Sub { a: u8, b: Operand, c: Operand } => one(a);
    Mul { a: u8, b: Operand, c: Operand } => one(a);
    Div { a: u8, b: Operand, c: Operand } => one(a);
    Mod { a: u8, b: Operand, c: Operand } => one(a);
    Pow { a: u8, b: Operand, c: Operand } => one(a);
    Minus { a: u8, b: u8 } => one(a);
    Not { a: u8, b: u8 } => one(a);
    Len { a: u8, b: u8 } => one(a);
    /// `a = b .. … .. c`, all registers.
    Concat { a: u8, b: u8, c: u8 } => one(a);
    Jump { to: i32 } => NONE;
    /// Jumps if `a` is taken for true, or false.
    Test { a: u8, when: bool, to: i32 } => NONE;
    /// Goes past the next instruction unless the comparison's result is `when`.
    Eq { when: bool, b: Operand, c: Operand } => NONE;
    Lt { when: bool, b: Operand, c: Operand } => NONE;
    Le { when: bool, b: Operand, c: Operand } => NONE;
    /// Calls `a` with `args - 1` arguments, or up to the top for 0; keeps `results - 1`, or all for 0.
    Call { a: u8, args: u16, results: u16 } => all_from(a);
    TailCall { a: u8, args: u16 } => all_from(a);
    /// Returns `count - 1` values from `a` on, or up to the top for 0.
    Return { a: u8, count: u16 } => NONE;
    ForPrepare { a: u8, to: i32 } => all_from(a);
    ForLoop { a: u8, to: i32 } => all_from(a);
    /// Calls the iterator at `a` and keeps `n` results from `a + 3` on.
    ForCall { a: u8, n: u8 } => all_from(a);
    ForNext { a: u8, to: i32 } => all_from(a);
    /// Sets `n - 1` items of `a`, or up to the top for 0, from registers behind it.
    SetList { a: u8, n: u16, first: u32 } => NONE;
    /// Closes the variables from `a` on.
    Close { a: u8 } => NONE;
    Closure { a: u8, p: u32 } => one(a);
    /// Loads `n - 1` of the variable arguments, or all for 0.
    Vararg { a: u8, n: u16 } => all_from(a);
    /// Loads the table `arg` of Lua 5.0.
    ArgTable { a: u8 } => one(a);
}

/// A constant of a function.
#[derive(Clone, Debug)]
pub(crate) enum Constant {
    Nil,
    Bool(bool),
    Number(f64),
    Text(Arc<[u8]>),
}

/// A variable that a function takes from the one around it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capture {
    /// True for a variable of the function around this one; false for one that that one captures.
    pub is_local: bool,
    /// Its register, or its place among the captured.
    pub index: u8,
}

/// A variable, for error texts.
#[derive(Clone, Debug)]
pub(crate) struct LocalName {
    pub name: Arc<[u8]>,
    pub register: u8,
    pub from: u32,
    pub to: u32,
}

/// A compiled function.
#[derive(Debug, Default)]
pub(crate) struct Proto {
    pub code: Vec<Op>,
    /// The line of each instruction.
    pub lines: Vec<u32>,
    pub constants: Vec<Constant>,
    pub protos: Vec<Arc<Proto>>,
    pub captures: Vec<Capture>,
    pub capture_names: Vec<Arc<[u8]>>,
    pub locals: Vec<LocalName>,
    pub params: u8,
    pub is_vararg: bool,
    pub registers: u8,
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_instruction_takes_eight_bytes() {
        assert_eq!(size_of::<super::Op>(), 8);
    }
}
