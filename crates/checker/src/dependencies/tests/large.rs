//! Histories of a hundred thousand transactions are judged within seconds, also where most transactions depend on each
//! other both ways.

use std::collections::BTreeMap;

use ordain_model::Random;

use super::{base, history, put};
use crate::dependencies::history::{History, Observed, Op, Txn};
use crate::dependencies::{Anomaly, Level, judge};

const TXNS: u64 = 100_000;
const KEYS: usize = 1_000;
/// A transaction reads the state before at most so many others.
const LAG: u64 = 40;

/// Transactions that read two registers and write one, each on one state not long before its end. With a lag they are
/// snapshot isolated, and writes are skewed everywhere; without one they are serial.
fn drawn(lag: u64) -> History {
    let mut random = Random::new(8);
    // By key the values and the transactions that wrote them.
    let mut orders: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut txns = Vec::new();
    for n in 1..=TXNS {
        let begins = n - 1 - random.below(lag.min(n - 1) + 1);
        let seen = |key: u64| {
            let order = orders.get(&key).map_or(&[][..], |order| order);
            order[..order.partition_point(|value| value >> 8 <= begins)].last().copied()
        };
        let [one, two] = [(); 2].map(|()| random.index(KEYS) as u64);
        let mut ops: Vec<Op> = [one, two].map(|key| Op::Get { key, value: seen(key) }).to_vec();
        // The first to commit wins: it reads only where another has written since.
        if orders.get(&one).is_none_or(|order| order.last().copied() == seen(one)) {
            ops.push(put(one, base(n) + 2));
            orders.entry(one).or_default().push(base(n) + 2);
        }
        let txn = Observed::committed(Txn { base: base(n), ops });
        txns.push(txn.of_session(n % 8, n).between(2 * begins, Some(2 * n + 1)));
    }
    History { orders, ..history(&txns, &[]) }
}

#[test]
fn a_serial_history_passes_every_level() {
    let history = drawn(0);
    for level in [Level::FreshParallelSnapshot, Level::Snapshot, Level::StrictSerializable] {
        assert_eq!(judge(level, &history), Ok(()), "{level:?}");
    }
}

#[test]
fn a_history_of_snapshots_passes_its_level_and_one_wrong_read_is_found() {
    let mut history = drawn(LAG);
    assert_eq!(judge(Level::ParallelSnapshot, &history), Ok(()));
    assert_eq!(judge(Level::Snapshot, &history), Ok(()));
    let finding = judge(Level::Serializable, &history).unwrap_err();
    assert_eq!((finding.anomaly, finding.cycle.len()), (Anomaly::WriteSkew, 2), "{finding}");
    // One transaction in the middle does not see the value that it follows, but the one before.
    let is_update = |txn: &&mut Observed| txn.txn.is_update() && txn.txn.ops[0].key() != txn.txn.ops[1].key();
    let wrong = history.txns.iter_mut().skip(50_000).find(is_update).unwrap();
    let Op::Get { key, value } = &mut wrong.txn.ops[0] else { panic!("it reads first") };
    let order = &history.orders[key];
    let place = order.iter().position(|other| Some(*other) == *value).unwrap();
    *value = Some(order[place - 1]);
    for level in [Level::ParallelSnapshot, Level::Snapshot, Level::Serializable] {
        let finding = judge(level, &history).unwrap_err();
        assert_eq!((finding.anomaly, finding.cycle.len()), (Anomaly::LostUpdate, 2), "{level:?} {finding}");
    }
}
