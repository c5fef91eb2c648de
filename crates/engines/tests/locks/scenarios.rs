//! The scenarios of the sheet (baselines.md, section 8) that concern locks, by number. A transaction is as old as its number is
//! small, unless a test says otherwise.

use ordain_commit::Mode::{Exclusive, Shared};
use ordain_commit::Verdict::{Granted, Refused, Waits};
use ordain_commit::{AttemptId, Mode, TransactionId, Verdict};
use ordain_engines::{no_wait, wait_die};
use ordain_role::{Bug, Bugs};

use crate::shard::{Outcome, Shard, first};

const X: u8 = b'x';
const Y: u8 = b'y';

fn no_wait() -> Shard {
    Shard::new(&no_wait::ENGINE, Bugs::NONE)
}

fn wait_die() -> Shard {
    Shard::new(&wait_die::ENGINE, Bugs::NONE)
}

/// Asks for an access of a transaction's first attempt, and ends the attempt if it is refused.
fn ask(shard: &mut Shard, transaction: u64, key: impl Into<Option<u8>>, mode: Mode) -> Verdict {
    let verdict = shard.access(first(transaction), transaction, key.into(), mode);
    if verdict == Refused {
        assert_eq!(shard.finish(first(transaction)), Outcome::default());
    }
    shard.check();
    verdict
}

/// Asks for the same access of several transactions, all of which are decided alike.
fn ask_each<const N: usize>(shard: &mut Shard, each: [u64; N], key: u8, mode: Mode, verdict: Verdict) {
    for transaction in each {
        assert_eq!(ask(shard, transaction, key, mode), verdict, "{transaction}");
    }
}

/// Ends a transaction's attempt, and returns the transactions whose requests are granted by that.
fn end(shard: &mut Shard, transaction: u64) -> Vec<u64> {
    let Outcome { granted, refused } = shard.finish(first(transaction));
    shard.check();
    assert_eq!(refused, []);
    granted.into_iter().map(|who| who.transaction.number).collect()
}

/// Nobody holds or waits, and no record is left.
fn is_clean(shard: &Shard) -> bool {
    shard.gauge("ordain_locks_attempts") == 0.0 && ![X, Y].iter().any(|key| shard.is_stored(*key))
}

#[test]
fn scenario_1_two_read_modify_writes_of_one_key() {
    let mut shard = no_wait();
    assert_eq!(ask(&mut shard, 1, X, Exclusive), Granted);
    assert_eq!(ask(&mut shard, 2, X, Exclusive), Refused);
    end(&mut shard, 1);
    assert_eq!(ask(&mut shard, 2, X, Exclusive), Granted);
    end(&mut shard, 2);
    assert!(is_clean(&shard));

    let mut shard = wait_die();
    assert_eq!(ask(&mut shard, 2, X, Exclusive), Granted);
    assert_eq!(ask(&mut shard, 3, X, Exclusive), Refused, "D2: the younger dies");
    assert_eq!(ask(&mut shard, 1, X, Exclusive), Waits, "D2: the older waits");
    assert_eq!(end(&mut shard, 2), [1]);
    assert_eq!(end(&mut shard, 1), []);
    assert!(is_clean(&shard));
}

#[test]
fn scenario_3_two_holders_of_a_shared_lock_want_the_exclusive_one() {
    let mut shard = no_wait();
    ask_each(&mut shard, [1, 2], X, Shared, Granted);
    assert_eq!(ask(&mut shard, 1, X, Exclusive), Refused);
    assert_eq!(ask(&mut shard, 2, X, Exclusive), Granted);
    end(&mut shard, 2);
    assert!(is_clean(&shard));

    let mut shard = wait_die();
    ask_each(&mut shard, [1, 2], X, Shared, Granted);
    assert_eq!(ask(&mut shard, 0, X, Exclusive), Waits);
    assert_eq!(ask(&mut shard, 1, X, Exclusive), Waits, "D4");
    let Outcome { granted, .. } = {
        assert_eq!(shard.access(first(2), 2, Some(X), Exclusive), Refused, "D4");
        shard.finish(first(2))
    };
    assert_eq!(granted, [first(1)], "D4: the upgrade goes ahead of an older request that waited before");
    assert_eq!(end(&mut shard, 1), [0]);
    end(&mut shard, 0);
    assert!(is_clean(&shard));
}

/// Readers that come one after the other, each before the one before it ends, all younger than a writer. Returns after how
/// many of them the writer has its lock.
fn readers_before_the_writer(bugs: Bugs) -> Option<u64> {
    let mut shard = Shard::new(&wait_die::ENGINE, bugs);
    assert_eq!(ask(&mut shard, 100, X, Shared), Granted);
    assert_eq!(ask(&mut shard, 1, X, Exclusive), Waits);
    let mut inside = Some(100);
    for reader in 101..200 {
        let verdict = shard.access(first(reader), reader, Some(X), Shared);
        if verdict == Refused {
            shard.finish(first(reader));
        }
        let granted = inside.map(|n| shard.finish(first(n)).granted).unwrap_or_default();
        if granted == [first(1)] {
            return Some(reader - 100);
        }
        inside = (verdict == Granted).then_some(reader);
    }
    None
}

#[test]
fn scenario_4_a_writer_comes_through_a_stream_of_younger_readers() {
    assert_eq!(readers_before_the_writer(Bugs::NONE), Some(1), "D3");
    // A reader that passes the writer starves it.
    assert_eq!(readers_before_the_writer(Bugs::NONE.with(Bug::PassWriter)), None);
}

#[test]
fn scenario_5_no_cycle_of_waits_over_two_nodes_with_a_prepared_holder() {
    let (mut a, mut b) = (wait_die(), wait_die());
    assert_eq!(ask(&mut a, 1, X, Exclusive), Granted);
    assert_eq!(ask(&mut b, 2, Y, Exclusive), Granted);
    // 2 is prepared at B, whose leader changes.
    assert_eq!(b.held(first(2)), [(Some(Y), Exclusive)].into());
    b.clear();
    assert!(is_clean(&b));
    b.restore(first(2), 2, Some(Y), Exclusive);
    b.check();
    assert_eq!(ask(&mut b, 1, Y, Shared), Waits, "an older one waits for what is prepared");
    assert_eq!(ask(&mut b, 3, Y, Shared), Refused, "a younger one dies");
    assert_eq!(ask(&mut a, 2, X, Shared), Refused, "and so there is no wait back");
    assert_eq!(end(&mut b, 2), [1]);
    end(&mut a, 1);
    end(&mut b, 1);
    assert!(is_clean(&a) && is_clean(&b));
}

#[test]
fn scenario_22_a_no_of_one_participant_cancels_the_wait_at_another() {
    let (mut waits, mut refuses) = (wait_die(), wait_die());
    assert_eq!(ask(&mut waits, 9, X, Shared), Granted);
    assert_eq!(ask(&mut waits, 5, X, Exclusive), Waits);
    assert_eq!(ask(&mut waits, 4, X, Shared), Waits, "D3");
    assert_eq!(ask(&mut refuses, 1, X, Shared), Granted);
    assert_eq!(ask(&mut refuses, 5, X, Exclusive), Refused);
    // The request behind the cancelled one does not wait any more, and the holder is not concerned.
    assert_eq!(end(&mut waits, 5), [4]);
    assert_eq!(waits.held(first(9)), [(Some(X), Shared)].into());
    assert_eq!(end(&mut waits, 4), []);
    assert_eq!(end(&mut waits, 9), []);
    assert!(is_clean(&waits));
}

#[test]
fn scenario_26_a_thousand_wait_for_one_key_and_their_coordinator_dies() {
    let mut shard = no_wait();
    assert_eq!(ask(&mut shard, 5_000, X, Exclusive), Granted);
    (0..1_000).for_each(|n| assert_eq!(ask(&mut shard, n, X, Exclusive), Refused));
    end(&mut shard, 5_000);
    assert!(is_clean(&shard));

    for mode in [Shared, Exclusive] {
        let mut shard = wait_die();
        assert_eq!(ask(&mut shard, 5_000, X, Exclusive), Granted);
        (0..1_000).rev().for_each(|n| {
            assert_eq!(shard.access(first(n), n, Some(X), mode), Waits, "{n}");
        });
        shard.check();
        assert_eq!(shard.gauge("ordain_locks_waiting"), 1_000.0);
        // The half that waits in between is dropped.
        (0..1_000).filter(|n| n % 2 == 0).for_each(|n| assert_eq!(end(&mut shard, n), []));
        let granted = end(&mut shard, 5_000);
        match mode {
            Shared => {
                assert!(granted.into_iter().rev().eq((1..1_000).step_by(2)), "D5: all that may, in turn")
            }
            _ => assert_eq!(granted, [999]),
        }
        // The others follow, the holder first: nothing is left, whoever it would have been granted to.
        (0..1_000).rev().filter(|n| n % 2 == 1).for_each(|n| _ = end(&mut shard, n));
        assert!(is_clean(&shard));
    }
}

#[test]
fn attempts_at_one_transaction_do_not_wait_for_each_other() {
    let mut shard = wait_die();
    let second = AttemptId { transaction: TransactionId::of(1), attempt: 2 };
    assert_eq!(ask(&mut shard, 1, X, Exclusive), Granted);
    assert_eq!(shard.access(second, 1, Some(X), Exclusive), Refused);
    assert_eq!(shard.finish(second), Outcome::default());
    end(&mut shard, 1);
    assert!(is_clean(&shard));
}

#[test]
fn equal_ages_are_told_apart_by_the_transactions() {
    let mut shard = wait_die();
    assert_eq!(shard.access(first(5), 0, Some(X), Exclusive), Granted);
    assert_eq!(shard.access(first(6), 0, Some(X), Exclusive), Refused);
    shard.finish(first(6));
    assert_eq!(shard.access(first(4), 0, Some(X), Exclusive), Waits);
    assert_eq!(end(&mut shard, 5), [4]);
}

#[test]
fn a_whole_table_access_comes_through_a_stream_of_younger_writers() {
    let mut shard = wait_die();
    assert_eq!(ask(&mut shard, 100, X, Exclusive), Granted);
    assert_eq!(ask(&mut shard, 1, None, Shared), Waits);
    assert_eq!(ask(&mut shard, 101, Y, Exclusive), Refused, "D6: a newcomer does not pass");
    assert_eq!(ask(&mut shard, 102, Y, Shared), Granted, "an intention to read is compatible");
    assert_eq!(ask(&mut shard, 0, Y, Exclusive), Waits, "an older one waits behind");
    assert_eq!(end(&mut shard, 100), [1]);
    assert_eq!(end(&mut shard, 102), []);
    assert_eq!(end(&mut shard, 1), [0]);
    end(&mut shard, 0);
    assert!(is_clean(&shard));
}

/// A record that waits for the table stays in the store, though the table is emptied meanwhile.
#[test]
fn a_request_that_had_to_wait_for_the_table_is_decided_when_it_has_that() {
    let mut shard = wait_die();
    assert_eq!(ask(&mut shard, 9, None, Exclusive), Granted);
    ask_each(&mut shard, [5, 4, 3], X, Exclusive, Waits);
    assert!(shard.is_stored(X));
    let Outcome { granted, refused } = shard.finish(first(9));
    assert_eq!(
        (granted, refused),
        (vec![first(5)], vec![]),
        "4 and 3 are older, and wait for the record now"
    );
    assert_eq!(end(&mut shard, 5), [4]);
    assert_eq!(end(&mut shard, 4), [3]);
    end(&mut shard, 3);
    assert!(is_clean(&shard));
    // A younger one was behind nobody in the queue of the table, and dies on the record.
    assert_eq!(ask(&mut shard, 9, None, Exclusive), Granted);
    ask_each(&mut shard, [4, 5], X, Exclusive, Waits);
    let Outcome { granted, refused } = shard.finish(first(9));
    assert_eq!((granted, refused), (vec![first(4)], vec![first(5)]));
    end(&mut shard, 4);
    assert!(is_clean(&shard));
}

/// 2 waits for the table because 3 writes, and 1 only reads so far. If 1 became a writer ahead of 2, the younger would wait for
/// the older.
#[test]
fn an_upgrade_of_an_intention_does_not_make_a_younger_one_wait_for_an_older() {
    let mut shard = wait_die();
    assert_eq!(ask(&mut shard, 1, X, Shared), Granted);
    assert_eq!(ask(&mut shard, 3, Y, Exclusive), Granted);
    assert_eq!(ask(&mut shard, 2, None, Shared), Waits);
    assert_eq!(ask(&mut shard, 1, X, Exclusive), Waits, "D7: behind 2");
    assert_eq!(end(&mut shard, 3), [2]);
    assert_eq!(end(&mut shard, 2), [1]);
    assert_eq!(shard.held(first(1)), [(Some(X), Exclusive)].into());
    end(&mut shard, 1);
    assert!(is_clean(&shard));
}

#[test]
fn a_restored_lock_that_conflicts_is_refused_loudly() {
    for mut shard in [no_wait(), wait_die()] {
        shard.restore(first(1), 1, Some(X), Shared);
        shard.restore(first(2), 2, Some(X), Shared);
        shard.restore(first(2), 2, None, Shared);
        assert_eq!(shard.held(first(2)), [(None, Shared), (Some(X), Shared)].into());
        let restore = std::panic::AssertUnwindSafe(|| shard.restore(first(3), 3, Some(Y), Exclusive));
        let panic = std::panic::catch_unwind(restore).unwrap_err();
        assert!(panic.downcast_ref::<String>().unwrap().contains("prepared attempt 0/0/3.1 conflicts"));
    }
}
