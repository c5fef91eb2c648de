//! Scenarios of the sheet of regions (regions.md, section 8) that concern its locks, and rules of docs/protocols/regions.md, section "Locks".

use ordain_commit::Mode::{Exclusive, Shared};
use ordain_commit::Verdict::{Granted, Waits};
use ordain_commit::{Mode, Verdict};
use ordain_engines::regions_2pl;
use ordain_role::{Bug, Bugs};

use crate::shard::{Shard, first};

const X: u8 = b'x';
const Y: u8 = b'y';

fn locks() -> Shard {
    Shard::new(&regions_2pl::ENGINE, Bugs::NONE)
}

fn ask(shard: &mut Shard, transaction: u64, key: impl Into<Option<u8>>, mode: Mode) -> Verdict {
    let verdict = shard.access(first(transaction), transaction, key.into(), mode);
    shard.check();
    verdict
}

/// Ends a transaction's attempt, and returns the transactions whose requests are granted by that.
fn end(shard: &mut Shard, transaction: u64) -> Vec<u64> {
    let outcome = shard.finish(first(transaction));
    shard.check();
    assert_eq!(outcome.refused, []);
    outcome.granted.into_iter().map(|who| who.transaction.number).collect()
}

/// The waits that are told since they were asked for last, by transactions.
fn told(shard: &mut Shard) -> Vec<(u64, Vec<u64>)> {
    let waiters = shard.control.take_waiters();
    let behind = |who| {
        let behind = shard.control.waits_for(&shard.store, who);
        behind.into_iter().map(|other| other.transaction.number).collect()
    };
    waiters.into_iter().map(|who| (who.transaction.number, behind(who))).collect()
}

#[test]
fn scenario_18_two_readers_that_upgrade_wait_for_each_other() {
    let mut shard = locks();
    assert_eq!([1, 2].map(|who| ask(&mut shard, who, X, Shared)), [Granted; 2]);
    assert_eq!([1, 2].map(|who| ask(&mut shard, who, X, Exclusive)), [Waits; 2]);
    // The second is ahead of the first, which waits for it as for a holder anyway.
    assert_eq!(told(&mut shard), [(1, vec![2]), (2, vec![1])]);
    assert_eq!(end(&mut shard, 2), [1]);
    assert_eq!(end(&mut shard, 1), []);
    assert!(!shard.is_stored(X));
}

#[test]
fn scenario_18_a_reader_that_comes_while_a_writer_waits_is_behind_it() {
    let mut shard = locks();
    assert_eq!(ask(&mut shard, 1, X, Shared), Granted);
    assert_eq!(ask(&mut shard, 2, X, Exclusive), Waits);
    assert_eq!([3, 4].map(|who| ask(&mut shard, who, X, Shared)), [Waits; 2]);
    assert_eq!(told(&mut shard), [(2, vec![1]), (3, vec![2]), (4, vec![2])]);
    assert_eq!(ask(&mut shard, 5, X, Exclusive), Waits);
    assert_eq!(told(&mut shard), [(5, vec![4, 3, 2])]);
    assert_eq!((end(&mut shard, 1), end(&mut shard, 2)), (vec![2], vec![3, 4]));
    assert_eq!((end(&mut shard, 4), end(&mut shard, 3)), (vec![], vec![5]));
    let mut planted = Shard::new(&regions_2pl::ENGINE, Bugs::NONE.with(Bug::PassWriter));
    assert_eq!(
        [(1, Shared), (2, Exclusive), (3, Shared)].map(|(who, mode)| ask(&mut planted, who, X, mode)),
        [Granted, Waits, Granted]
    );
}

/// An upgrade is in the way of those who waited for another writer alone, from the moment in which that writer is gone.
#[test]
fn waits_that_an_upgrade_makes_are_told() {
    for is_alone in [false, true] {
        let mut shard = locks();
        assert_eq!(ask(&mut shard, 1, X, Shared), Granted);
        if !is_alone {
            assert_eq!(ask(&mut shard, 5, X, Shared), Granted);
        }
        assert_eq!(ask(&mut shard, 2, X, Exclusive), Waits);
        assert_eq!(ask(&mut shard, 3, X, Shared), Waits);
        told(&mut shard);
        let verdict = ask(&mut shard, 1, X, Exclusive);
        assert_eq!(verdict, if is_alone { Granted } else { Waits });
        let upgrade = if is_alone { vec![] } else { vec![(1, vec![5])] };
        assert_eq!(told(&mut shard), [upgrade, vec![(2, vec![1])]].concat());
        assert_eq!(end(&mut shard, 2), []);
        assert_eq!(told(&mut shard), [(3, vec![1])]);
    }
}

#[test]
fn an_access_to_the_whole_table_waits_its_turn_and_nobody_passes_it() {
    let mut shard = locks();
    assert_eq!([(1, X), (2, Y)].map(|(who, key)| ask(&mut shard, who, key, Exclusive)), [Granted; 2]);
    assert_eq!(ask(&mut shard, 3, None, Shared), Waits);
    assert_eq!(told(&mut shard), [(3, vec![1, 2])]);
    assert_eq!(
        [(4, Exclusive), (5, Shared)].map(|(who, mode)| ask(&mut shard, who, b'z', mode)),
        [Waits, Granted]
    );
    // Who has read nothing but records cannot go on to write before it.
    assert_eq!(ask(&mut shard, 5, b'z', Exclusive), Waits);
    assert_eq!(told(&mut shard), [(4, vec![3]), (5, vec![3])]);
    assert_eq!((end(&mut shard, 1), end(&mut shard, 2)), (vec![], vec![3]));
    // The table is granted to both. One has read the record, and goes ahead of the other.
    assert_eq!(end(&mut shard, 3), [5]);
    assert_eq!(told(&mut shard), [(4, vec![5])]);
    assert_eq!((end(&mut shard, 5), end(&mut shard, 4)), (vec![4], vec![]));
    let mut planted = Shard::new(&regions_2pl::ENGINE, Bugs::NONE.with(Bug::PassTable));
    assert_eq!((ask(&mut planted, 1, X, Exclusive), ask(&mut planted, 2, None, Shared)), (Granted, Waits));
    assert_eq!(ask(&mut planted, 3, Y, Exclusive), Granted);
}

#[test]
fn a_wait_for_the_table_may_be_followed_by_one_for_the_record() {
    let mut shard = locks();
    assert_eq!(ask(&mut shard, 1, X, Shared), Granted);
    assert_eq!(ask(&mut shard, 2, None, Shared), Granted);
    assert_eq!(ask(&mut shard, 3, X, Exclusive), Waits);
    assert_eq!(told(&mut shard), [(3, vec![2])]);
    assert_eq!(end(&mut shard, 2), []);
    assert_eq!(told(&mut shard), [(3, vec![1])]);
    assert_eq!(end(&mut shard, 1), [3]);
}
