//! The cost of everything that a script can reach.
//!
//! A unit of work is about ten nanoseconds on a fast machine, and an instruction is one. [`Cost`] says what a function or
//! an operator adds: for each time, for the bytes that it touches, and for the items. A row of [`crate::library::ROWS`] has the
//! cost of a function, [`Operator`] that of what the machine does by itself, and the host has the costs of its functions.

use crate::budget::{Budget, Result};

/// The cost of a function or an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Units each time.
    pub base: u32,
    /// Bytes touched that cost one unit.
    pub bytes_per_unit: u32,
    /// Units for each item touched.
    pub item: u32,
}

impl Cost {
    /// Units that touching so many bytes and items costs, besides the base.
    pub const fn units(self, bytes: usize, items: usize) -> u64 {
        bytes as u64 / self.bytes_per_unit as u64 + items as u64 * self.item as u64
    }
}

/// Bytes are copied or compared as fast as memory allows.
pub const COPY: u32 = 64;
/// Bytes are read one by one.
pub const SCAN: u32 = 8;
/// Bytes are computed on one by one.
pub const COMPUTE: u32 = 4;

/// A cost: units each time, bytes to a unit, units an item.
pub const fn cost(base: u32, bytes_per_unit: u32, item: u32) -> Cost {
    Cost { base, bytes_per_unit, item }
}

/// An operator: work that the machine does by itself. The instruction is one unit besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `..`: the bytes are those of the result.
    Concat,
    /// `==`, `<`, `<=` on strings: the bytes are those of the shorter one.
    Compare,
    /// Arithmetic on strings: the bytes are theirs.
    Coerce,
    /// A metamethod is looked up: an item for each step of a chain.
    Metamethod,
    /// `{…}` with items, and `...`: the values moved.
    Values,
    /// A function is made: the variables that it captures.
    Closure,
    /// A call of a function that is written in Lua: the arguments moved.
    Call,
    /// A walk passes empty places of a table.
    Walk,
}

/// The costs of the operators, one row each.
pub const OPERATORS: &[(Operator, Cost)] = &[
    (Operator::Concat, cost(2, COPY, 1)),
    (Operator::Compare, cost(0, COPY, 0)),
    (Operator::Coerce, cost(4, COMPUTE, 0)),
    (Operator::Metamethod, cost(0, COPY, 2)),
    (Operator::Values, cost(0, COPY, 1)),
    (Operator::Closure, cost(4, COPY, 2)),
    (Operator::Call, cost(2, COPY, 1)),
    (Operator::Walk, cost(0, COPY, 1)),
];

impl Operator {
    /// The operator's row.
    pub const fn cost(self) -> Cost {
        OPERATORS[self as usize].1
    }

    /// Takes what the operator costs.
    ///
    /// # Errors
    /// The units are used up.
    #[inline]
    pub(crate) fn charge(self, budget: &mut Budget, bytes: usize, items: usize) -> Result<()> {
        let cost = self.cost();
        budget.work(u64::from(cost.base) + cost.units(bytes, items))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operator_stands_in_its_row() {
        for (i, (operator, cost)) in OPERATORS.iter().enumerate() {
            assert_eq!(*operator as usize, i);
            assert!(cost.base > 0 || cost.item > 0 || cost.bytes_per_unit < 1000);
        }
        assert_eq!(Operator::Walk as usize + 1, OPERATORS.len());
    }
}
