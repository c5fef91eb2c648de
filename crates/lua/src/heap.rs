//! Everything that a run makes: strings, tables, functions. Nothing of it is freed before the run ends.
//!
//! The heap of a machine has a *base*: libraries and their names, made once. A run finds the base and adds to it; at its
//! end what it has added is cut off. The base cannot be changed by a script. So each run begins with the same heap, and
//! what a run does is a function of the run alone.

use crate::budget::{Budget, Result};
use crate::table::Table;
use crate::value::{Str, TableRef, Value};

/// The longest string that is always kept once.
const SHORT: usize = 40;
/// Bytes that a string is counted as, besides its own.
const STRING_BYTES: usize = 24;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u32,
    len: u32,
    hash: u32,
    /// The string of the same bytes that tables know; [`NONE`] if a long string was not asked for it yet.
    canonical: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Upvalue {
    /// A place of the stack, while the variable lives there.
    Open(usize),
    Closed(Value),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ClosureEntry {
    /// Among the loaded prototypes.
    pub proto: u32,
    /// The first of its upvalues in [`Heap::captured`].
    pub captured: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Base {
    bytes: usize,
    strings: usize,
    tables: usize,
    slots: usize,
}

/// The values that a run makes, and its budget.
#[derive(Debug)]
pub struct Heap {
    bytes: Vec<u8>,
    strings: Vec<Entry>,
    /// Canonical strings by hash, plus one.
    slots: Vec<u32>,
    canonical: usize,
    pub(crate) tables: Vec<Table>,
    pub(crate) closures: Vec<ClosureEntry>,
    pub(crate) captured: Vec<u32>,
    pub(crate) upvalues: Vec<Upvalue>,
    /// The budget of the run.
    pub budget: Budget,
    /// Canonical strings in the order in which they came into the slots, since the base.
    added: Vec<u32>,
    base: Base,
    /// The slots of the base.
    base_slots: Vec<u32>,
    base_canonical: usize,
    /// Numbers are written here.
    digits: String,
}

/// A hash of all bytes.
fn hash_bytes(bytes: &[u8], seed: u64) -> u32 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        (product >> 64) as u64 ^ product as u64
    };
    let mut h = seed ^ (bytes.len() as u64).wrapping_mul(K);
    let (chunks, rest) = bytes.as_chunks::<8>();
    for chunk in chunks {
        h = fold(h ^ u64::from_le_bytes(*chunk), K);
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    h = fold(h ^ u64::from_le_bytes(last), K.rotate_left(32));
    (h >> 32) as u32 ^ h as u32
}

/// The seed by which strings are hashed. Their places never show; long searches are charged.
const STRING_SEED: u64 = 0x51_7c_c1_b7_27_22_0a_95;

/// Gives back memory of an emptied vector that has room for more than `most`, down to `kept`.
pub(crate) fn trim<T>(vector: &mut Vec<T>, most: usize, kept: usize) {
    if vector.capacity() > most {
        vector.shrink_to(kept);
    }
}

impl Heap {
    pub(crate) fn new() -> Heap {
        Heap {
            bytes: Vec::new(),
            strings: Vec::new(),
            slots: vec![0; 1024],
            canonical: 0,
            tables: Vec::new(),
            closures: Vec::new(),
            captured: Vec::new(),
            upvalues: Vec::new(),
            budget: Budget::new(i64::MAX, usize::MAX),
            added: Vec::new(),
            base: Base::default(),
            base_slots: Vec::new(),
            base_canonical: 0,
            digits: String::new(),
        }
    }

    /// Makes what there is the base of all runs.
    pub(crate) fn make_base(&mut self) {
        self.tables.iter_mut().for_each(|table| table.read_only = true);
        self.added.clear();
        self.base = Base {
            bytes: self.bytes.len(),
            strings: self.strings.len(),
            tables: self.tables.len(),
            slots: self.slots.len(),
        };
        self.base_slots.clone_from(&self.slots);
        self.base_canonical = self.canonical;
    }

    /// Cuts off what a run has made.
    pub(crate) fn reset(&mut self, budget: Budget) {
        let Base { bytes, strings, tables, slots } = self.base;
        if self.slots.len() == slots && self.canonical - self.base_canonical < slots / 4 {
            // The newest first: then the slots are as they were before each of them came.
            while let Some(id) = self.added.pop() {
                let mask = slots - 1;
                let mut at = self.strings[id as usize].hash as usize & mask;
                while self.slots[at] != 0 && self.slots[at] != id + 1 {
                    at = (at + 1) & mask;
                }
                self.slots[at] = 0;
            }
        } else {
            self.slots.clone_from(&self.base_slots);
            self.slots.shrink_to(slots);
            self.added.clear();
            self.added.shrink_to(slots);
        }
        self.canonical = self.base_canonical;
        self.bytes.truncate(bytes);
        self.strings.truncate(strings);
        self.tables.truncate(tables);
        self.closures.clear();
        self.captured.clear();
        self.upvalues.clear();
        const KEPT: usize = 1 << 20;
        trim(&mut self.bytes, KEPT, KEPT / 4);
        trim(&mut self.strings, KEPT / 16, KEPT / 64);
        trim(&mut self.tables, KEPT / 64, KEPT / 256);
        trim(&mut self.closures, KEPT / 16, 0);
        trim(&mut self.upvalues, KEPT / 16, 0);
        trim(&mut self.captured, KEPT / 4, 0);
        self.budget = budget;
    }

    // Strings.

    /// The bytes of a string.
    #[inline]
    pub fn bytes(&self, s: Str) -> &[u8] {
        let Entry { at, len, .. } = self.strings[s.0 as usize];
        &self.bytes[at as usize..at as usize + len as usize]
    }

    /// Bytes that a string has.
    #[inline]
    pub fn str_len(&self, s: Str) -> usize {
        self.strings[s.0 as usize].len as usize
    }

    /// A string of these bytes.
    ///
    /// # Errors
    /// There is not enough memory left.
    #[inline]
    pub fn string(&mut self, bytes: &[u8]) -> Result<Str> {
        if bytes.len() <= SHORT {
            let hash = hash_bytes(bytes, STRING_SEED);
            if let Some(found) = self.lookup(hash, bytes) {
                return Ok(found);
            }
            self.budget.take(bytes.len() + STRING_BYTES)?;
            let at = self.bytes.len();
            self.bytes.extend_from_slice(bytes);
            return Ok(self.add_canonical(at, bytes.len(), hash));
        }
        self.budget.take(bytes.len() + STRING_BYTES)?;
        let at = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        Ok(self.add(at, bytes.len(), 0, NONE))
    }

    /// A string value of these bytes.
    ///
    /// # Errors
    /// There is not enough memory left.
    #[inline]
    pub fn text(&mut self, bytes: &[u8]) -> Result<Value> {
        self.string(bytes).map(Value::String)
    }

    fn add(&mut self, at: usize, len: usize, hash: u32, canonical: u32) -> Str {
        let id = self.strings.len() as u32;
        self.strings.push(Entry { at: at as u32, len: len as u32, hash, canonical });
        Str(id)
    }

    fn add_canonical(&mut self, at: usize, len: usize, hash: u32) -> Str {
        let id = self.strings.len() as u32;
        self.strings.push(Entry { at: at as u32, len: len as u32, hash, canonical: id });
        self.note(id, hash);
        Str(id)
    }

    fn note(&mut self, id: u32, hash: u32) {
        self.canonical += 1;
        self.added.push(id);
        if self.canonical * 2 > self.slots.len() {
            let size = self.slots.len() * 2;
            self.slots.clear();
            self.slots.resize(size, 0);
            for (other, entry) in self.strings.iter().enumerate() {
                if entry.canonical as usize == other && other as u32 != id {
                    let steps = Heap::put(&mut self.slots, other as u32, entry.hash);
                    self.budget.probe(steps);
                }
            }
        }
        let steps = Heap::put(&mut self.slots, id, hash);
        self.budget.probe(steps);
    }

    fn put(slots: &mut [u32], id: u32, hash: u32) -> usize {
        let mask = slots.len() - 1;
        let mut at = hash as usize & mask;
        let mut steps = 0;
        while slots[at] != 0 {
            at = (at + 1) & mask;
            steps += 1;
        }
        slots[at] = id + 1;
        steps
    }

    #[inline]
    fn lookup(&self, hash: u32, bytes: &[u8]) -> Option<Str> {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        let mut steps = 0;
        loop {
            let id = self.slots[at];
            if id == 0 {
                self.budget.probe(steps);
                return None;
            }
            let entry = self.strings[id as usize - 1];
            if entry.hash == hash && self.bytes(Str(id - 1)) == bytes {
                self.budget.probe(steps);
                return Some(Str(id - 1));
            }
            at = (at + 1) & mask;
            steps += 1;
        }
    }

    /// Begins a string at the end of the heap's bytes; [`Heap::finish`] makes it one.
    pub(crate) fn begin(&mut self, len: usize) -> Result<usize> {
        self.budget.take(len + STRING_BYTES)?;
        Ok(self.bytes.len())
    }

    pub(crate) fn extend_str(&mut self, s: Str) {
        let Entry { at, len, .. } = self.strings[s.0 as usize];
        self.bytes.extend_from_within(at as usize..at as usize + len as usize);
    }

    pub(crate) fn extend_number(&mut self, x: f64) {
        crate::number::write_number(x, &mut self.digits);
        self.bytes.extend_from_slice(self.digits.as_bytes());
    }

    pub(crate) fn finish(&mut self, at: usize) -> Str {
        let len = self.bytes.len() - at;
        if len <= SHORT {
            let hash = hash_bytes(&self.bytes[at..], STRING_SEED);
            if let Some(found) = self.lookup(hash, &self.bytes[at..]) {
                self.bytes.truncate(at);
                return found;
            }
            return self.add_canonical(at, len, hash);
        }
        self.add(at, len, 0, NONE)
    }

    /// The string of the same bytes that tables know.
    #[inline]
    pub(crate) fn canonical(&mut self, s: Str) -> Result<Str> {
        let entry = self.strings[s.0 as usize];
        if entry.canonical != NONE {
            return Ok(Str(entry.canonical));
        }
        self.budget.work(u64::from(entry.len) / 16)?;
        let hash = hash_bytes(self.bytes(s), STRING_SEED);
        let canonical = self.lookup(hash, self.bytes(s)).unwrap_or(s);
        self.strings[s.0 as usize].canonical = canonical.0;
        if canonical == s {
            self.strings[s.0 as usize].hash = hash;
            self.note(s.0, hash);
        }
        Ok(canonical)
    }

    /// A part of a string.
    ///
    /// # Errors
    /// There is not enough memory left.
    pub(crate) fn part(&mut self, s: Str, from: usize, to: usize) -> Result<Str> {
        let at = self.strings[s.0 as usize].at as usize;
        let begin = self.begin(to - from)?;
        self.bytes.extend_from_within(at + from..at + to);
        Ok(self.finish(begin))
    }

    /// A string so many times over.
    pub(crate) fn repeat(&mut self, s: Str, times: usize) -> Result<Str> {
        let total = self.str_len(s) * times;
        let at = self.begin(total)?;
        if times > 0 {
            self.extend_str(s);
        }
        // What there is already is doubled.
        while self.bytes.len() - at < total {
            let have = self.bytes.len() - at;
            self.bytes.extend_from_within(at..at + have.min(total - have));
        }
        Ok(self.finish(at))
    }

    /// Says that two values are equal, without metamethods.
    pub fn raw_equal(&mut self, a: Value, b: Value) -> Result<bool> {
        if let (Value::String(a), Value::String(b)) = (a, b) {
            if a == b {
                return Ok(true);
            }
            let len = self.str_len(a);
            if len != self.str_len(b) || len <= SHORT {
                return Ok(false);
            }
            self.budget.work(len as u64 / 64)?;
            return Ok(self.bytes(a) == self.bytes(b));
        }
        Ok(a.same(b))
    }

    // Tables.

    /// A new table with room for so many items and entries.
    ///
    /// # Errors
    /// There is not enough memory left.
    pub fn table(&mut self, items: usize, entries: usize) -> Result<TableRef> {
        let table = Table::with_capacity(items, entries, &mut self.budget)?;
        self.tables.push(table);
        Ok(TableRef(self.tables.len() as u32 - 1))
    }

    /// The key as tables know it.
    #[inline]
    pub(crate) fn key(&mut self, key: Value) -> Result<Value> {
        match key {
            Value::String(s) => self.canonical(s).map(Value::String),
            key => Ok(key),
        }
    }

    /// The value under a key, without metamethods.
    #[inline]
    pub fn raw_get(&mut self, t: TableRef, key: Value) -> Result<Value> {
        let key = self.key(key)?;
        Ok(self.tables[t.0 as usize].get(key, &self.budget))
    }

    /// The value at a place, without metamethods.
    #[inline]
    pub fn raw_at(&self, t: TableRef, at: usize) -> Value {
        self.tables[t.0 as usize].get_at(at, &self.budget)
    }

    /// The value under a name, without metamethods.
    pub fn field(&mut self, t: TableRef, name: &str) -> Result<Value> {
        let hash = hash_bytes(name.as_bytes(), STRING_SEED);
        // A name that is not there as a string is no table's key.
        Ok(match self.lookup(hash, name.as_bytes()) {
            Some(key) => self.tables[t.0 as usize].get(Value::String(key), &self.budget),
            None => Value::Nil,
        })
    }

    /// Sets the value under a key, without metamethods. The key is neither nil nor NaN.
    #[inline]
    pub fn raw_set(&mut self, t: TableRef, key: Value, value: Value) -> Result<()> {
        let key = self.key(key)?;
        self.tables[t.0 as usize].set(key, value, &mut self.budget)
    }

    /// Sets the value under a name, without metamethods.
    pub fn set_field(&mut self, t: TableRef, name: &str, value: Value) -> Result<()> {
        let key = self.text(name.as_bytes())?;
        self.raw_set(t, key, value)
    }

    /// Sets places from `first` on; nils keep their places.
    pub fn set_list(&mut self, t: TableRef, first: usize, values: &[Value]) -> Result<()> {
        self.tables[t.0 as usize].set_list(first, values, &mut self.budget)
    }

    /// Appends to a list.
    pub fn push(&mut self, t: TableRef, value: Value) -> Result<()> {
        let at = self.tables[t.0 as usize].len() + 1;
        self.raw_set(t, Value::Number(at as f64), value)
    }

    /// The length of a table: a border.
    #[inline]
    pub fn len(&self, t: TableRef) -> usize {
        self.tables[t.0 as usize].len()
    }

    /// The number of places that a walk of the table goes through.
    pub fn extent(&self, t: TableRef) -> usize {
        self.tables[t.0 as usize].extent()
    }

    /// All pairs of a table, in the order of a walk.
    pub fn pairs(&self, t: TableRef) -> impl Iterator<Item = (Value, Value)> + '_ {
        self.tables[t.0 as usize].pairs()
    }

    /// Says that no script can change the table.
    #[inline]
    pub fn is_read_only(&self, t: TableRef) -> bool {
        self.tables[t.0 as usize].read_only
    }

    /// Lets scripts change the table, or not.
    pub fn set_read_only(&mut self, t: TableRef, read_only: bool) {
        self.tables[t.0 as usize].read_only = read_only;
    }

    /// A value that is a string or a number, as a string.
    pub fn as_str(&mut self, value: Value) -> Result<Option<Str>> {
        match value {
            Value::String(s) => Ok(Some(s)),
            Value::Number(x) => {
                let mut digits = std::mem::take(&mut self.digits);
                crate::number::write_number(x, &mut digits);
                let made = self.string(digits.as_bytes());
                self.digits = digits;
                made.map(Some)
            }
            _ => Ok(None),
        }
    }
}
