//! Small drawn histories: the judge accepts what the definition of the level allows, and nothing else.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::base;
use super::brute::{allows, allows_within};
use crate::dependencies::history::{History, Observed, Op, Outcome, Txn};
use crate::dependencies::{Finding, Level, judge, judge_within};

/// Numbers that a history is made of; beyond their end they are 0, so fewer of them are a simpler history.
struct Draws<'a>(std::slice::Iter<'a, u16>);

impl Draws<'_> {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.next().map_or(0, |number| u64::from(*number) % bound)
    }

    /// True once in so many times.
    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == times - 1
    }
}

/// A history of two to `most` transactions on two keys. They are installed in some order, and each reads some state before
/// or after it, mostly a single one; now and then an order, a read or an end is not even that.
fn drawn(numbers: &[u16], most: u64) -> History {
    let mut draws = Draws(numbers.iter());
    let count = 2 + draws.below(most - 1);
    let is_register = draws.once_in(3);
    let mut txns: Vec<Observed> = Vec::new();
    for n in 1..=count {
        let mut ops = Vec::new();
        for i in 0..1 + draws.below(3) {
            let (key, value) = (1 + draws.below(2), base(n) + i);
            ops.push(match (draws.below(2), is_register) {
                (0, false) => Op::Read { key, values: Vec::new() },
                (0, true) => Op::Get { key, value: None },
                (_, false) => Op::Append { key, value },
                (_, true) => Op::Put { key, value },
            });
        }
        let (session, asked) = (draws.below(3), draws.below(8));
        let answered = asked + 1 + draws.below(6);
        txns.push(
            Observed::committed(Txn { base: base(n), ops })
                .of_session(session, n)
                .between(asked, Some(answered)),
        );
    }
    // The state after each transaction, in their order.
    let mut states = vec![BTreeMap::<u64, Vec<u64>>::new()];
    for at in 0..txns.len() {
        let mut state = states[at].clone();
        for (i, op) in txns[at].txn.ops.iter().enumerate() {
            let is_over = |later: &Op| is_register && later.key() == op.key() && later.written().is_some();
            if let Some(value) = op.written().filter(|_| !txns[at].txn.ops[i + 1..].iter().any(is_over)) {
                state.entry(op.key()).or_default().push(value);
            }
        }
        states.push(state);
    }
    for (at, txn) in txns.iter_mut().enumerate() {
        let usual = if draws.below(2) == 0 { at } else { draws.below(1 + count) as usize };
        let mut written: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for op in &mut txn.txn.ops {
            let of = if draws.once_in(4) { draws.below(1 + count) as usize } else { usual };
            let mut held = states[of].get(&op.key()).cloned().unwrap_or_default();
            held.retain(|value| *value >> 8 != txn.txn.base >> 8);
            if draws.once_in(16) {
                held.truncate(draws.below(3) as usize);
            }
            let own = written.entry(op.key()).or_default();
            held.extend_from_slice(own);
            match op {
                Op::Read { values, .. } => *values = held,
                Op::Get { value, .. } => *value = held.last().copied(),
                Op::Append { value, .. } | Op::Put { value, .. } => own.push(*value),
            }
        }
        txn.stamp = (!draws.once_in(8)).then(|| 10 * (at as u64 + 10 * u64::from(draws.once_in(8))));
    }
    let mut orders = states.pop().unwrap();
    if draws.once_in(6) {
        orders.values_mut().next().into_iter().for_each(|order| order.reverse());
    }
    for txn in &mut txns {
        txn.may_be_overtaken = draws.once_in(4);
        match draws.below(12) {
            10 => (txn.outcome, txn.answered, txn.stamp) = (Outcome::Unknown, None, None),
            11 => txn.outcome = Outcome::Aborted,
            _ => continue,
        }
        // It has not happened, more often than not.
        if draws.below(3) > 0 {
            orders.values_mut().for_each(|order| order.retain(|value| value >> 8 != txn.txn.base >> 8));
        }
    }
    History { txns, orders, sites: [(1, draws.below(2))].into(), ..History::default() }
}

/// Compares the judge with the definition of a level on so many histories of up to so many transactions.
fn compare(level: Level, cases: u32, most: u64) {
    compare_with(
        (cases, most),
        level.name(),
        |history| judge(level, history),
        |history| allows(level, history),
    );
}

fn compare_with(
    (cases, most): (u32, u64),
    name: &str,
    judged: impl Fn(&History) -> Result<(), Box<Finding>>,
    is_allowed: impl Fn(&History) -> bool,
) {
    let mut verdicts = [0u32; 2];
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(
        config,
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let counted = std::cell::RefCell::new(&mut verdicts);
    let result = runner.run(&prop::collection::vec(any::<u16>(), 0..72), |numbers| {
        let history = drawn(&numbers, most);
        let (verdict, expected) = (judged(&history), is_allowed(&history));
        counted.borrow_mut()[usize::from(expected)] += 1;
        prop_assert_eq!(verdict.is_ok(), expected, "{}: {:?} {:?}", name, verdict, history);
        Ok(())
    });
    if let Err(failed) = result {
        panic!("{failed}");
    }
    let [refused, allowed] = verdicts;
    assert!(refused > cases / 20 && allowed > cases / 20, "{name}: {refused} refused, {allowed} allowed");
}

#[test]
fn read_committed_is_what_its_definition_says() {
    compare(Level::ReadCommitted, 2_000, 5);
}

#[test]
fn parallel_snapshots_are_what_their_definition_says() {
    compare(Level::ParallelSnapshot, 1_000, 4);
    compare(Level::SessionParallelSnapshot, 1_000, 4);
    compare(Level::FreshParallelSnapshot, 1_000, 4);
}

#[test]
fn snapshot_isolation_is_what_its_definition_says() {
    compare(Level::Snapshot, 2_000, 5);
}

#[test]
fn serializability_is_what_its_definition_says() {
    compare(Level::Serializable, 2_000, 5);
    compare(Level::SessionSerializable, 2_000, 5);
    compare(Level::StrictSerializable, 2_000, 5);
}

/// The moments of a drawn history are 0 to 13.
#[test]
fn the_order_of_real_time_within_a_bound_is_what_its_definition_says() {
    for bound in [0, 1, 3, 6] {
        compare_with(
            (1_500, 5),
            &format!("within {bound}"),
            |history| judge_within(bound, history),
            |history| allows_within(bound, history),
        );
    }
    compare_with(
        (500, 5),
        "within 14",
        |history| judge_within(14, history),
        |history| allows(Level::Serializable, history),
    );
}

#[test]
fn the_order_of_stamps_is_what_its_definition_says() {
    compare(Level::StampOrder, 2_000, 5);
    compare(Level::StampsAlone, 2_000, 5);
}

#[test]
fn reads_on_snapshots_are_what_their_definition_says() {
    compare(Level::SnapshotReads, 2_000, 5);
    compare(Level::SessionReads, 2_000, 5);
}
