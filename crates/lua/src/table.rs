//! A table: places 1 to n in an array, all else as entries in the order in which they came.
//!
//! A walk goes through the array, then through the entries. So its order is a function of what was done to the table, never
//! of an address or a hash. An entry that is set to nil keeps its place until the entries are full; then what is empty goes.

use crate::budget::{Budget, Result};
use crate::value::{TableRef, Value};

/// Bytes that a table is counted as when it is made.
pub(crate) const TABLE_BYTES: usize = 96;
/// Bytes of a place in the array.
const ITEM_BYTES: usize = 16;
/// Bytes of an entry with its place in the index.
const ENTRY_BYTES: usize = 40;
/// Up to so many entries are searched one by one.
const FEW: usize = 8;

#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    array: Vec<Value>,
    entries: Vec<(Value, Value)>,
    /// Places of entries plus one, by hash, by linear probing; empty while there are [`FEW`] entries at most.
    index: Vec<u32>,
    /// The most entries before the next growth.
    capacity: usize,
    pub meta: Option<TableRef>,
    pub read_only: bool,
}

/// A mix of a key. Keys that are chosen so that they meet are searched one by one, and charged so.
#[inline]
fn hash(key: Value) -> usize {
    let payload = match key {
        Value::Nil => 0,
        Value::Bool(b) => 1 + u64::from(b),
        Value::Number(x) => x.to_bits(),
        Value::String(s) => (1 << 40) | u64::from(s.0),
        Value::Table(t) => (2 << 40) | u64::from(t.0),
        Value::Closure(c) => (3 << 40) | u64::from(c.0),
        Value::Native(n) => (4 << 40) | u64::from(n.0),
        Value::Null => 3,
    };
    let product = u128::from(payload) * 0x9e37_79b9_7f4a_7c15;
    ((product >> 64) as u64 ^ (product as u64) >> 20) as usize
}

/// The place in an array that a number is: from 0.
#[inline]
fn place(key: f64) -> Option<usize> {
    let i = key as usize;
    if i as f64 == key && i >= 1 { Some(i - 1) } else { None }
}

impl Table {
    pub fn with_capacity(array: usize, entries: usize, budget: &mut Budget) -> Result<Table> {
        budget.take(TABLE_BYTES + array * ITEM_BYTES)?;
        let mut table = Table { array: Vec::with_capacity(array), ..Table::default() };
        if entries > 0 {
            table.resize(entries.next_power_of_two().max(4), budget)?;
        }
        Ok(table)
    }

    /// The value under a key, which is canonical if it is a string.
    #[inline]
    pub fn get(&self, key: Value, budget: &Budget) -> Value {
        if let Value::Number(x) = key
            && let Some(i) = place(x)
            && i < self.array.len()
        {
            return self.array[i];
        }
        self.find(key, budget).map_or(Value::Nil, |at| self.entries[at].1)
    }

    /// The value at a place from 1 on.
    #[inline]
    pub fn get_at(&self, at: usize, budget: &Budget) -> Value {
        match self.array.get(at.wrapping_sub(1)) {
            Some(value) => *value,
            None if self.entries.is_empty() => Value::Nil,
            None => self.get(Value::Number(at as f64), budget),
        }
    }

    #[inline]
    fn find(&self, key: Value, budget: &Budget) -> Option<usize> {
        if self.index.is_empty() {
            return self.entries.iter().position(|(k, _)| k.same(key));
        }
        let mask = self.index.len() - 1;
        let mut at = hash(key) & mask;
        let mut steps = 0;
        loop {
            let entry = self.index[at] as usize;
            if entry == 0 {
                budget.probe(steps);
                return None;
            }
            if self.entries[entry - 1].0.same(key) {
                budget.probe(steps);
                return Some(entry - 1);
            }
            at = (at + 1) & mask;
            steps += 1;
        }
    }

    /// Sets the value under a key, which is neither nil nor NaN, and canonical if it is a string.
    ///
    /// # Errors
    /// There is not enough memory left.
    #[inline]
    pub fn set(&mut self, key: Value, value: Value, budget: &mut Budget) -> Result<()> {
        let mut key = key;
        if let Value::Number(x) = key {
            if let Some(i) = place(x) {
                if let Some(item) = self.array.get_mut(i) {
                    *item = value;
                    return Ok(());
                }
                if i == self.array.len() && !value.is_nil() {
                    return self.push(value, budget);
                }
            }
            // Both zeros are one key.
            key = Value::Number(x + 0.0);
        }
        self.set_entry(key, value, budget)
    }

    fn set_entry(&mut self, key: Value, value: Value, budget: &mut Budget) -> Result<()> {
        if let Some(at) = self.find(key, budget) {
            self.entries[at].1 = value;
            return Ok(());
        }
        if value.is_nil() {
            return Ok(());
        }
        if self.entries.len() >= self.capacity {
            budget.work(1 + self.entries.len() as u64 / 4)?;
            let live = self.entries.iter().filter(|(_, v)| !v.is_nil()).count();
            self.resize((live + live / 2 + 1).next_power_of_two().max(4), budget)?;
        }
        self.entries.push((key, value));
        if !self.index.is_empty() {
            Table::note(&mut self.index, key, self.entries.len(), budget);
        }
        Ok(())
    }

    fn note(index: &mut [u32], key: Value, number: usize, budget: &Budget) {
        let mask = index.len() - 1;
        let mut at = hash(key) & mask;
        let mut steps = 0;
        while index[at] != 0 {
            at = (at + 1) & mask;
            steps += 1;
        }
        budget.probe(steps);
        index[at] = number as u32;
    }

    fn resize(&mut self, capacity: usize, budget: &mut Budget) -> Result<()> {
        budget.take(capacity.saturating_sub(self.capacity) * ENTRY_BYTES)?;
        self.entries.retain(|(_, v)| !v.is_nil());
        self.entries.reserve_exact(capacity.saturating_sub(self.entries.len()));
        self.capacity = capacity;
        self.index.clear();
        if capacity > FEW {
            self.index.resize(2 * capacity, 0);
            for (i, (key, _)) in self.entries.iter().enumerate() {
                Table::note(&mut self.index, *key, i + 1, budget);
            }
        }
        Ok(())
    }

    /// Appends to the array, and takes along what follows among the entries.
    pub fn push(&mut self, value: Value, budget: &mut Budget) -> Result<()> {
        self.push_one(value, budget)?;
        while !self.entries.is_empty() {
            let next = self.array.len() + 1;
            let Some(at) = self.find(Value::Number(next as f64), budget) else { break };
            let value = std::mem::take(&mut self.entries[at].1);
            if value.is_nil() {
                break;
            }
            budget.work(1)?;
            self.push_one(value, budget)?;
        }
        Ok(())
    }

    fn push_one(&mut self, value: Value, budget: &mut Budget) -> Result<()> {
        if self.array.len() == self.array.capacity() {
            let more = self.array.len().max(4);
            budget.take(more * ITEM_BYTES)?;
            budget.work(self.array.len() as u64 / 8)?;
            self.array.reserve_exact(more);
        }
        self.array.push(value);
        Ok(())
    }

    /// Sets places from `first` on, as a constructor does: nils keep their places.
    pub fn set_list(&mut self, first: usize, values: &[Value], budget: &mut Budget) -> Result<()> {
        for (i, value) in values.iter().enumerate() {
            let at = first + i;
            if at == self.array.len() + 1 {
                if value.is_nil() {
                    self.push_one(Value::Nil, budget)?;
                } else {
                    self.push(*value, budget)?;
                }
            } else {
                self.set(Value::Number(at as f64), *value, budget)?;
            }
        }
        Ok(())
    }

    /// A border: a place that holds something while the next does not.
    #[inline]
    pub fn len(&self) -> usize {
        match self.array.last() {
            None => 0,
            Some(last) if !last.is_nil() => self.array.len(),
            _ => {
                let (mut low, mut high) = (0, self.array.len());
                while high - low > 1 {
                    let middle = (low + high) / 2;
                    if self.array[middle - 1].is_nil() { high = middle } else { low = middle }
                }
                low
            }
        }
    }

    /// The pair that follows a key in a walk, and the number of empty places passed. `None`: the key is not there.
    pub fn next(&self, key: Value, budget: &Budget) -> Option<(Option<(Value, Value)>, usize)> {
        let from = match key {
            Value::Nil => 0,
            Value::Number(x) if place(x).is_some_and(|i| i < self.array.len()) => place(x)? + 1,
            key => self.array.len() + self.find(key, budget)? + 1,
        };
        Some(self.next_from(from))
    }

    /// The first pair at a position of the walk or after it.
    fn next_from(&self, from: usize) -> (Option<(Value, Value)>, usize) {
        let array = self.array.get(from..).unwrap_or_default();
        let mut passed = 0;
        for (i, value) in array.iter().enumerate() {
            if !value.is_nil() {
                return (Some((Value::Number((from + i + 1) as f64), *value)), passed);
            }
            passed += 1;
        }
        let rest = self.entries.get(from.saturating_sub(self.array.len())..).unwrap_or_default();
        for (key, value) in rest {
            if !value.is_nil() {
                return (Some((*key, *value)), passed);
            }
            passed += 1;
        }
        (None, passed)
    }

    /// All pairs, in the order of a walk.
    pub fn pairs(&self) -> impl Iterator<Item = (Value, Value)> + '_ {
        let array = self.array.iter().enumerate().map(|(i, v)| (Value::Number((i + 1) as f64), *v));
        array.chain(self.entries.iter().copied()).filter(|(_, v)| !v.is_nil())
    }

    /// Places that a walk goes through, empty ones included.
    pub fn extent(&self) -> usize {
        self.array.len() + self.entries.len()
    }
}
