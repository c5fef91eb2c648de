//! A history: transactions that append to lists and write registers, what they read, how they ended and when; and its
//! encoding in the replies of the append workload and in what a population of its clients has recorded.

use std::collections::{BTreeMap, BTreeSet};

/// One operation of a transaction, as it was answered. A value is written by no other operation of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The value was appended to the list of the key.
    Append {
        /// The key of the list.
        key: u64,
        /// The value.
        value: u64,
    },
    /// The list of the key was read.
    Read {
        /// The key of the list.
        key: u64,
        /// The values that it held.
        values: Vec<u64>,
    },
    /// The value replaced that of a register.
    Put {
        /// The key of the register.
        key: u64,
        /// The value.
        value: u64,
    },
    /// The register was read.
    Get {
        /// The key of the register.
        key: u64,
        /// The value that it held, if it held any.
        value: Option<u64>,
    },
}

impl Op {
    /// The key of the list or register.
    pub fn key(&self) -> u64 {
        match self {
            Op::Append { key, .. } | Op::Read { key, .. } | Op::Put { key, .. } | Op::Get { key, .. } => *key,
        }
    }

    /// The value that the operation writes.
    pub fn written(&self) -> Option<u64> {
        match self {
            Op::Append { value, .. } | Op::Put { value, .. } => Some(*value),
            Op::Read { .. } | Op::Get { .. } => None,
        }
    }
}

/// The operations of a transaction. Its operation i, if it appends, appends `base` + i: so `base` names the
/// transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// The name.
    pub base: u64,
    /// The operations, in order.
    pub ops: Vec<Op>,
}

impl Txn {
    /// True if the transaction writes.
    pub fn is_update(&self) -> bool {
        self.ops.iter().any(|op| op.written().is_some())
    }
}

/// The end of a transaction, as its client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was answered, and its reads are what the answer says.
    Committed,
    /// It was answered that it has no effect.
    Aborted,
    /// It may have taken effect or not: if any of its writes is there, all must be. Its reads say nothing.
    Unknown,
}

/// A transaction as a client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The operations.
    pub txn: Txn,
    /// The end.
    pub outcome: Outcome,
    /// The session that asked for it and its place there, where there is an order of sessions.
    pub session: Option<(u64, u64)>,
    /// Later requests of its session may take effect before it: it stands behind what was before it alone.
    pub may_be_overtaken: bool,
    /// When it was asked, where that is known, on any clock that all transactions share.
    pub asked: Option<u64>,
    /// When it was answered, on the same clock.
    pub answered: Option<u64>,
    /// Its place in the engine's own order, where the engine tells one.
    pub stamp: Option<u64>,
}

impl Observed {
    /// A transaction with this end, of no session, at no known time.
    pub fn new(txn: Txn, outcome: Outcome) -> Observed {
        let (session, may_be_overtaken) = (None, false);
        Observed { txn, outcome, session, may_be_overtaken, asked: None, answered: None, stamp: None }
    }

    /// A committed transaction.
    pub fn committed(txn: Txn) -> Observed {
        Observed::new(txn, Outcome::Committed)
    }

    /// Sets the session of the transaction, and its number there.
    #[must_use]
    pub fn of_session(self, session: u64, place: u64) -> Observed {
        Observed { session: Some((session, place)), ..self }
    }

    /// The same, asked and answered at these moments.
    #[must_use]
    pub fn between(self, asked: u64, answered: Option<u64>) -> Observed {
        Observed { asked: Some(asked), answered, ..self }
    }

    /// Sets the place of the transaction in the engine's order.
    #[must_use]
    pub fn stamped(self, stamp: u64) -> Observed {
        Observed { stamp: Some(stamp), ..self }
    }
}

/// A history: the transactions of clients, and the state at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The transactions, in no particular order.
    pub txns: Vec<Observed>,
    /// By key the values in the order in which they were written: of a list those that it holds in the end, of a register
    /// one for each transaction that wrote it.
    pub orders: BTreeMap<u64, Vec<u64>>,
    /// Further transactions that aborted, by name.
    pub aborted: BTreeSet<u64>,
    /// The site of a key, for levels that promise something of the first read at each; a key that is not here is of site 0.
    pub sites: BTreeMap<u64, u64>,
}

impl History {
    /// Takes the order of stamps for that of the values of all registers: of each transaction that has a stamp and has not
    /// aborted the last value that it put.
    pub fn order_by_stamps(&mut self) {
        let mut orders: BTreeMap<u64, BTreeMap<u64, u64>> = BTreeMap::new();
        for txn in self.txns.iter().filter(|txn| txn.outcome != Outcome::Aborted) {
            let Some(stamp) = txn.stamp else { continue };
            for op in &txn.txn.ops {
                if let Op::Put { key, value } = op {
                    orders.entry(*key).or_default().insert(stamp, *value);
                }
            }
        }
        let orders = orders.into_iter().map(|(key, values)| (key, values.into_values().collect()));
        self.orders = orders.collect();
    }
}

/// The most operations a transaction may have: their numbers fill the lowest byte of a value.
pub const MAX_OPS: usize = 255;

/// The transaction that a value names.
pub fn base_of(value: u64) -> u64 {
    value & !(MAX_OPS as u64)
}

const READ: u8 = 0;
const APPEND: u8 = 1;
const PUT: u8 = 2;
const GET: u8 = 3;

impl Txn {
    /// Appends the head of an encoding; as many operations must follow.
    pub fn encode_head(base: u64, ops: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&base.to_le_bytes());
        out.push(ops as u8);
    }

    /// Appends an operation that appended.
    pub fn encode_append(key: u64, out: &mut Vec<u8>) {
        out.push(APPEND);
        out.extend_from_slice(&key.to_le_bytes());
    }

    /// Appends an operation that read; `values` are 8 bytes each, as they lie in the record.
    pub fn encode_read(key: u64, values: &[u8], out: &mut Vec<u8>) {
        out.push(READ);
        out.extend_from_slice(&key.to_le_bytes());
        out.extend_from_slice(&(values.len() as u32).to_le_bytes());
        out.extend_from_slice(values);
    }

    /// Appends an operation that put a value into a register.
    pub fn encode_put(key: u64, value: u64, out: &mut Vec<u8>) {
        out.push(PUT);
        out.extend_from_slice(&key.to_le_bytes());
        out.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends an operation that read a register; `value` is 8 bytes as they lie in the record, or none if there was no record.
    pub fn encode_get(key: u64, value: &[u8], out: &mut Vec<u8>) {
        out.push(GET);
        out.extend_from_slice(&key.to_le_bytes());
        out.extend_from_slice(&(value.len() as u32).to_le_bytes());
        out.extend_from_slice(value);
    }

    /// Decodes a transaction; `None` for damaged bytes, a list that is not made of values, or a register of several values.
    pub fn decode(bytes: &[u8]) -> Option<Txn> {
        let (base, rest) = word(bytes)?;
        let (count, mut rest) = rest.split_first()?;
        let mut ops = Vec::with_capacity(usize::from(*count));
        for i in 0..u64::from(*count) {
            let (kind, tail) = rest.split_first()?;
            let (key, tail) = word(tail)?;
            let (op, tail) = match *kind {
                APPEND => (Op::Append { key, value: base + i }, tail),
                READ => {
                    let (values, tail) = chunk(tail)?;
                    (Op::Read { key, values: values_of(values)? }, tail)
                }
                PUT => {
                    let (value, tail) = word(tail)?;
                    (Op::Put { key, value }, tail)
                }
                GET => {
                    let (value, tail) = chunk(tail)?;
                    let values = values_of(value).filter(|values| values.len() <= 1)?;
                    (Op::Get { key, value: values.first().copied() }, tail)
                }
                _ => return None,
            };
            ops.push(op);
            rest = tail;
        }
        rest.is_empty().then_some(Txn { base, ops })
    }
}

/// The values of a list; `None` if it is not made of values.
pub fn values_of(list: &[u8]) -> Option<Vec<u64>> {
    let (values, []) = list.as_chunks::<8>() else { return None };
    Some(values.iter().map(|value| u64::from_le_bytes(*value)).collect())
}

/// Splits 8 bytes off.
pub fn word(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (word, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*word), rest))
}

/// Splits bytes off that have their length, 4 bytes, in front.
pub fn chunk(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

/// The history of a population, as it grows.
#[derive(Clone, Debug, Default)]
pub struct HistoryWriter {
    committed: Vec<u8>,
    aborted: Vec<u8>,
    loose_txns: u64,
    loose_appends: u64,
}

impl HistoryWriter {
    /// Adds a committed transaction, encoded.
    pub fn committed(&mut self, txn: &[u8]) {
        self.committed.extend_from_slice(&(txn.len() as u32).to_le_bytes());
        self.committed.extend_from_slice(txn);
    }

    /// Adds a transaction that aborted.
    pub fn aborted(&mut self, base: u64) {
        self.aborted.extend_from_slice(&base.to_le_bytes());
    }

    /// Counts a committed transaction beyond the history.
    pub fn loose(&mut self, appends: u64) {
        self.loose_txns += 1;
        self.loose_appends += appends;
    }

    /// The encoding.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24 + self.aborted.len() + self.committed.len());
        for word in [self.loose_txns, self.loose_appends, self.aborted.len() as u64] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.aborted);
        out.extend_from_slice(&self.committed);
        out
    }
}

/// The records of all populations together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// The committed transactions, in no particular order.
    pub committed: Vec<Txn>,
    /// The names of those that aborted.
    pub aborted: BTreeSet<u64>,
    /// The number of transactions that were committed beyond what is kept.
    pub loose_txns: u64,
    /// The number of their appends.
    pub loose_appends: u64,
}

impl Recorded {
    /// Adds what a population has recorded; `None` for damaged bytes.
    pub fn add(&mut self, encoded: &[u8]) -> Option<()> {
        let (loose_txns, rest) = word(encoded)?;
        let (loose_appends, rest) = word(rest)?;
        let (aborted_bytes, rest) = word(rest)?;
        let (aborted, mut rest) = rest.split_at_checked(usize::try_from(aborted_bytes).ok()?)?;
        self.aborted.extend(values_of(aborted)?);
        while !rest.is_empty() {
            let (txn, tail) = chunk(rest)?;
            self.committed.push(Txn::decode(txn)?);
            rest = tail;
        }
        self.loose_txns += loose_txns;
        self.loose_appends += loose_appends;
        Some(())
    }

    /// The history that this is with the lists at its end.
    pub fn into_history(self, lists: BTreeMap<u64, Vec<u64>>) -> History {
        let txns = self.committed.into_iter().map(Observed::committed).collect();
        History { txns, orders: lists, aborted: self.aborted, ..History::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_and_every_truncation_is_refused() {
        let mut bytes = Vec::new();
        Txn::encode_head(0x300, 6, &mut bytes);
        Txn::encode_append(7, &mut bytes);
        Txn::encode_read(7, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0], &mut bytes);
        Txn::encode_append(8, &mut bytes);
        Txn::encode_get(9, &[], &mut bytes);
        Txn::encode_put(9, 0x301, &mut bytes);
        Txn::encode_get(9, &[1, 3, 0, 0, 0, 0, 0, 0], &mut bytes);
        let txn = Txn {
            base: 0x300,
            ops: vec![
                Op::Append { key: 7, value: 0x300 },
                Op::Read { key: 7, values: vec![1, 0x300] },
                Op::Append { key: 8, value: 0x302 },
                Op::Get { key: 9, value: None },
                Op::Put { key: 9, value: 0x301 },
                Op::Get { key: 9, value: Some(0x301) },
            ],
        };
        assert_eq!(Txn::decode(&bytes), Some(txn.clone()));
        (0..bytes.len()).for_each(|n| assert_eq!(Txn::decode(&bytes[..n]), None, "cut at {n}"));
        let mut two_values = Vec::new();
        Txn::encode_head(0x300, 1, &mut two_values);
        Txn::encode_get(9, &[0; 16], &mut two_values);
        assert_eq!(Txn::decode(&two_values), None);
        let mut writer = HistoryWriter::default();
        writer.committed(&bytes);
        writer.aborted(0x400);
        writer.loose(5);
        let encoded = writer.encode();
        let mut recorded = Recorded::default();
        recorded.add(&encoded).unwrap();
        recorded.add(&HistoryWriter::default().encode()).unwrap();
        let aborted = [0x400].into();
        assert_eq!(recorded, Recorded { committed: vec![txn], aborted, loose_txns: 1, loose_appends: 5 });
        // The encoding is whole after the aborted, and after each transaction.
        let whole = [24 + 8, encoded.len()];
        for n in 0..encoded.len() {
            assert_eq!(Recorded::default().add(&encoded[..n]).is_some(), whole.contains(&n), "cut at {n}");
        }
        assert_eq!(base_of(0x302), 0x300);
    }
}
