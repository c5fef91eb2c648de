//! What clients of the append workload did and saw, and its encoding: in the replies of the transactions, and
//! in what a population has recorded.

/// One operation of a transaction, as it was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The value was appended to the list of the key.
    Append {
        /// Whose list.
        key: u64,
        /// A value that no other operation appends.
        value: u64,
    },
    /// The list of the key was read.
    Read {
        /// Whose list.
        key: u64,
        /// What it held.
        values: Vec<u64>,
    },
}

impl Op {
    /// The key of the list.
    pub fn key(&self) -> u64 {
        match self {
            Op::Append { key, .. } | Op::Read { key, .. } => *key,
        }
    }
}

/// A committed transaction. Its operation i, if it appends, appends `base` + i: so `base` names the
/// transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// Its name.
    pub base: u64,
    /// What it did, in order.
    pub ops: Vec<Op>,
}

/// The most operations a transaction may have: their numbers fill the lowest byte of a value.
pub const MAX_OPS: usize = 255;

/// The transaction that a value names.
pub fn base_of(value: u64) -> u64 {
    value & !(MAX_OPS as u64)
}

const READ: u8 = 0;
const APPEND: u8 = 1;

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

    /// Decodes a transaction; `None` for damaged bytes, or a list that is not made of values.
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

/// What all populations together did and saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// What was committed, in no particular order.
    pub committed: Vec<Txn>,
    /// What aborted, by name.
    pub aborted: std::collections::BTreeSet<u64>,
    /// How many transactions were committed beyond what is kept.
    pub loose_txns: u64,
    /// How many values they appended.
    pub loose_appends: u64,
}

impl History {
    /// Adds the encoded history of a population; `None` for damaged bytes.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_and_every_truncation_is_refused() {
        let mut bytes = Vec::new();
        Txn::encode_head(0x300, 3, &mut bytes);
        Txn::encode_append(7, &mut bytes);
        Txn::encode_read(7, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0], &mut bytes);
        Txn::encode_append(8, &mut bytes);
        let txn = Txn {
            base: 0x300,
            ops: vec![
                Op::Append { key: 7, value: 0x300 },
                Op::Read { key: 7, values: vec![1, 0x300] },
                Op::Append { key: 8, value: 0x302 },
            ],
        };
        assert_eq!(Txn::decode(&bytes), Some(txn.clone()));
        (0..bytes.len()).for_each(|n| assert_eq!(Txn::decode(&bytes[..n]), None, "cut at {n}"));
        let mut writer = HistoryWriter::default();
        writer.committed(&bytes);
        writer.aborted(0x400);
        writer.loose(5);
        let encoded = writer.encode();
        let mut history = History::default();
        history.add(&encoded).unwrap();
        history.add(&HistoryWriter::default().encode()).unwrap();
        let aborted = [0x400].into();
        assert_eq!(history, History { committed: vec![txn], aborted, loose_txns: 1, loose_appends: 5 });
        // The encoding is whole after the aborted, and after each transaction.
        let whole = [24 + 8, encoded.len()];
        for n in 0..encoded.len() {
            assert_eq!(History::default().add(&encoded[..n]).is_some(), whole.contains(&n), "cut at {n}");
        }
        assert_eq!(base_of(0x302), 0x300);
    }
}
