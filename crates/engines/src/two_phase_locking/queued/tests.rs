//! Tests of the queues alone: what the check finds, and memory that is used again. The rules of the engines are tested in `tests/locks`.

use ordain_model::{Db, KeyHash};

use super::*;
use crate::testing::attempt;
use crate::wait_die::WAIT_DIE;

/// A participant with one record that transaction 2 holds, and for which 1 waits.
fn shard() -> (MemoryStore, QueuedLocks, RecordId) {
    let mut store = MemoryStore::new(0..ordain_model::key::SLOTS);
    let record = store.find_or_reserve(Db(0), b"k", KeyHash::of_record(Db(0), b"k"));
    let mut locks = QueuedLocks::new(&WAIT_DIE, Bugs::NONE);
    for (n, verdict) in [(2, Verdict::Granted), (1, Verdict::Waits)] {
        let target = Target::Record(record);
        assert_eq!(locks.access(&mut store, attempt(n), Age(n), target, Mode::Exclusive), verdict);
    }
    locks.check(&store, &|_| true).unwrap();
    (store, locks, record)
}

/// The violation that a change of the state makes.
fn broken(change: impl FnOnce(&mut QueuedLocks)) -> String {
    let (store, mut locks, _) = shard();
    change(&mut locks);
    locks.check(&store, &|_| true).unwrap_err()
}

#[test]
fn a_broken_state_is_found() {
    let (mut store, locks, record) = shard();
    assert!(locks.check(&store, &|who| who != attempt(1)).unwrap_err().contains("1.1 is over"));
    store.set_lock(record, 7);
    assert!(locks.check(&store, &|_| true).unwrap_err().contains("lock word 7"));
    let place = |locks: &QueuedLocks, n| locks.attempts.find(attempt(n)).unwrap();
    let reports = [
        (
            broken(|locks| locks.records.all[0].queue.cancel(attempt(1), &WAIT_DIE, &mut Vec::new())),
            "1.1 knows that it waits",
        ),
        (broken(|locks| locks.records.all[0].queue.release(attempt(2))), "waits for nobody"),
        (broken(|locks| locks.records.all[0].expected += 1), "no attempt knows of"),
        (broken(|locks| locks.table.release(attempt(1))), "1.1 knows of IX of the table"),
        (
            broken(|locks| {
                let at = place(locks, 1);
                locks.attempts[at].kept = None;
            }),
            "no attempt knows of",
        ),
        (
            broken(|locks| {
                let at = place(locks, 2);
                locks.attempts[at].held.insert(RecordId(99), Mode::Shared);
            }),
            "2.1 knows of RecordId(99)",
        ),
        (
            broken(|locks| {
                let at = place(locks, 2);
                locks.attempts[at].table = Modes::INTENTION_SHARED;
            }),
            "only IS of the table",
        ),
    ];
    for (report, expected) in reports {
        assert!(report.contains(expected), "{report}, and not {expected}");
    }
}

#[test]
fn queues_are_used_again() {
    let (mut store, mut locks, record) = shard();
    for round in 1..100 {
        let mut ended = Ended::default();
        locks.finish(&mut store, attempt(2 * round), Ending::Aborted, &mut ended);
        assert_eq!(ended.granted, [attempt(2 * round - 1)]);
        locks.finish(&mut store, attempt(2 * round - 1), Ending::Aborted, &mut ended);
        assert_eq!((ended.released.as_slice(), store.lock(record)), (&[record][..], 0));
        for n in [2 * round + 2, 2 * round + 1] {
            locks.access(&mut store, attempt(n), Age(n), Target::Record(record), Mode::Exclusive);
        }
    }
    assert_eq!((locks.records.all.len(), locks.attempts.len()), (1, 2));
}
