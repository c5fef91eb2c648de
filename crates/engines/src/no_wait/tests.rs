//! Tests of no-wait alone: its locks, what its check finds, and the gate of the table (rules N1 to N7).

use ordain_commit::TransactionId;
use ordain_model::{Db, KeyHash};

use super::gate::{AFTER, ASKED_MAX, PATIENCE};
use super::*;
use crate::testing::attempt;

/// A participant with one record and no locks. A transaction is as old as its number is small.
struct Shard {
    store: MemoryStore,
    locks: NoWait,
    record: RecordId,
}

impl Shard {
    fn new() -> Shard {
        let mut store = MemoryStore::new(0..ordain_model::key::SLOTS);
        let record = store.find_or_reserve(Db(0), b"k", KeyHash::of_record(Db(0), b"k"));
        Shard { store, locks: NoWait::default(), record }
    }

    /// Asks for an access of a transaction.
    fn access(&mut self, transaction: u64, target: Target, mode: Mode) -> Verdict {
        let age = Age(transaction);
        let verdict = self.locks.access(&mut self.store, attempt(transaction), age, target, mode);
        self.locks.check(&self.store, &|_| true).unwrap();
        verdict
    }

    /// Asks for an access of a transaction, and ends the attempt if it is refused.
    fn attempt(&mut self, transaction: u64, target: Target, mode: Mode) -> Verdict {
        let verdict = self.access(transaction, target, mode);
        if verdict == Verdict::Refused {
            self.finish(transaction);
        }
        verdict
    }

    fn write(&mut self, transaction: u64) -> Verdict {
        self.attempt(transaction, Target::Record(self.record), Mode::Exclusive)
    }

    fn finish(&mut self, transaction: u64) -> Vec<RecordId> {
        let mut ended = Ended::default();
        self.locks.finish(&mut self.store, attempt(transaction), Ending::Aborted, &mut ended);
        assert!(ended.granted.is_empty() && ended.refused.is_empty());
        ended.released
    }
}

#[test]
fn conflicting_locks_are_refused_and_released_at_the_end() {
    let mut shard = Shard::new();
    let k = Target::Record(shard.record);
    let steps = [
        (1, Mode::Shared, Verdict::Granted),
        (2, Mode::Shared, Verdict::Granted),
        (1, Mode::Exclusive, Verdict::Refused),
        (1, Mode::Shared, Verdict::Granted),
    ];
    for (who, mode, verdict) in steps {
        assert_eq!(shard.access(who, k, mode), verdict, "{who} {mode:?}");
    }
    assert_eq!(shard.finish(2), []);
    assert_eq!(shard.access(1, k, Mode::Exclusive), Verdict::Granted, "N2");
    assert_eq!(shard.access(2, k, Mode::Shared), Verdict::Refused, "N1");
    assert!(shard.locks.check(&shard.store, &|who| who != attempt(1)).unwrap_err().contains("is over"));
    assert_eq!(shard.finish(1), [shard.record], "N3");
    assert_eq!((shard.store.lock(shard.record), shard.finish(1).len()), (0, 0), "N3");
}

#[test]
fn a_wrong_lock_word_and_a_wrong_count_are_found() {
    let mut shard = Shard::new();
    assert_eq!(shard.write(1), Verdict::Granted);
    shard.store.set_lock(shard.record, 5);
    assert!(shard.locks.check(&shard.store, &|_| true).unwrap_err().contains("lock word 5"));
    shard.store.set_lock(shard.record, EXCLUSIVE);
    shard.locks.table = Counts::default();
    assert!(shard.locks.check(&shard.store, &|_| true).unwrap_err().contains("the table counts"));
}

/// Makes the gate of transaction `owner` close while `holder` has a record.
fn closed(shard: &mut Shard, owner: u64, holder: u64) {
    assert_eq!(shard.write(holder), Verdict::Granted);
    for _ in 0..AFTER {
        assert_eq!(shard.attempt(owner, Target::Table, Mode::Shared), Verdict::Refused);
    }
    assert_eq!(shard.locks.gate.closings(), 1);
}

#[test]
fn the_gate_keeps_newcomers_out_until_the_table_is_had() {
    let mut shard = Shard::new();
    let other = Target::Record(shard.store.find_or_reserve(Db(0), b"l", KeyHash::of_record(Db(0), b"l")));
    closed(&mut shard, 10, 11);
    assert_eq!(shard.attempt(12, other, Mode::Exclusive), Verdict::Refused, "N7");
    assert_eq!(shard.attempt(13, other, Mode::Shared), Verdict::Granted, "a reader does not delay a reader");
    assert_eq!(shard.attempt(13, other, Mode::Exclusive), Verdict::Refused, "nor may it become a writer");
    assert_eq!(shard.attempt(11, other, Mode::Exclusive), Verdict::Granted, "whoever is inside goes on");
    shard.finish(11);
    assert_eq!(shard.attempt(9, other, Mode::Exclusive), Verdict::Granted, "an older one passes");
    assert_eq!(shard.attempt(10, Target::Table, Mode::Shared), Verdict::Refused);
    shard.finish(9);
    assert_eq!(shard.attempt(10, Target::Table, Mode::Shared), Verdict::Granted);
    shard.finish(10);
    assert_eq!(shard.attempt(12, other, Mode::Exclusive), Verdict::Granted, "the gate is open");
    // Another participant has refused the transaction: one refusal closes the gate again.
    assert_eq!(shard.attempt(10, Target::Table, Mode::Shared), Verdict::Refused);
    assert_eq!(shard.locks.gate.closings(), 2);
}

#[test]
fn the_gate_opens_when_its_transaction_is_gone_or_comes_in_vain() {
    let mut shard = Shard::new();
    let other = Target::Record(shard.store.find_or_reserve(Db(0), b"l", KeyHash::of_record(Db(0), b"l")));
    closed(&mut shard, 10, 11);
    for n in 1..PATIENCE {
        // Others are refused too, and do not shorten what one of them bears.
        assert_eq!(shard.attempt(100 + u64::from(n), other, Mode::Exclusive), Verdict::Refused);
        assert_eq!(shard.attempt(12, other, Mode::Exclusive), Verdict::Refused, "{n}");
    }
    assert_eq!(shard.attempt(12, other, Mode::Exclusive), Verdict::Granted);
    shard.finish(12);
    let mut shard = Shard::new();
    closed(&mut shard, 10, 11);
    for n in 1..ASKED_MAX {
        assert_eq!(shard.attempt(12, Target::Table, Mode::Exclusive), Verdict::Refused, "{n}");
        assert_eq!(shard.attempt(10, Target::Table, Mode::Shared), Verdict::Refused, "{n}");
    }
    assert!(shard.locks.gate.stops((Age(12), TransactionId::of(12)), Modes::INTENTION_EXCLUSIVE));
    shard.attempt(10, Target::Table, Mode::Shared);
    assert!(!shard.locks.gate.stops((Age(12), TransactionId::of(12)), Modes::INTENTION_EXCLUSIVE));
}

/// Two whole-table transactions each have the gate of one participant, and both need both, in the same order.
#[test]
fn the_older_of_two_whole_table_transactions_takes_the_gate_of_the_younger_over() {
    let mut shards = [Shard::new(), Shard::new()];
    closed(&mut shards[0], 20, 99);
    closed(&mut shards[1], 30, 98);
    shards[0].finish(99);
    assert_eq!(shards[0].attempt(20, Target::Table, Mode::Exclusive), Verdict::Granted);
    assert_eq!(shards[1].attempt(20, Target::Table, Mode::Exclusive), Verdict::Refused, "98 is inside");
    shards[0].finish(20);
    shards[1].finish(98);
    assert_eq!(shards[1].attempt(30, Target::Table, Mode::Exclusive), Verdict::Refused, "20 has the gate");
    for shard in &mut shards {
        assert_eq!(shard.attempt(20, Target::Table, Mode::Exclusive), Verdict::Granted);
    }
}

#[test]
fn the_transactions_whose_refusals_are_counted_are_bounded() {
    let mut gate = Gate::default();
    for n in 0..1_000 {
        gate.note_refused((Age(n), TransactionId::of(n)), Modes::EXCLUSIVE);
        assert!(!gate.stops((Age(2_000), TransactionId::of(2_000)), Modes::SHARED));
    }
    // The last one is still known.
    (1..AFTER).for_each(|_| gate.note_refused((Age(999), TransactionId::of(999)), Modes::EXCLUSIVE));
    assert!(gate.stops((Age(2_000), TransactionId::of(2_000)), Modes::SHARED));
}
