//! The judge's tests: every anomaly by name, every level against its definition, and large histories.

mod anomalies;
mod brute;
mod drawn;
mod large;

use super::history::{History, Observed, Op, Txn};

/// The base of transaction n, and of its operation i.
pub(super) const fn base(n: u64) -> u64 {
    n << 8
}

pub(super) const A: u64 = base(1);
pub(super) const B: u64 = base(2);
pub(super) const C: u64 = base(3);

pub(super) fn read(key: u64, values: &[u64]) -> Op {
    Op::Read { key, values: values.to_vec() }
}

pub(super) fn append(key: u64, value: u64) -> Op {
    Op::Append { key, value }
}

pub(super) fn get(key: u64, value: u64) -> Op {
    Op::Get { key, value: (value != 0).then_some(value) }
}

pub(super) fn put(key: u64, value: u64) -> Op {
    Op::Put { key, value }
}

pub(super) fn txn(n: u64, ops: &[Op]) -> Observed {
    Observed::committed(Txn { base: base(n), ops: ops.to_vec() })
}

/// A history of transactions with the orders of their values; transaction 9 aborted.
pub(super) fn history(txns: &[Observed], orders: &[(u64, &[u64])]) -> History {
    History {
        txns: txns.to_vec(),
        orders: orders.iter().map(|(key, order)| (*key, order.to_vec())).collect(),
        aborted: [base(9)].into(),
        ..History::default()
    }
}
