//! Scenarios of the shared sheet (baselines.md, section 8), by number, as far as they concern one participant. An attempt has the
//! number of its stamp.

use ordain_commit::Mode::{Exclusive, Shared};
use ordain_commit::Verdict::{Granted, Refused, Waits};
use ordain_commit::{Age, AttemptId, Mode, Verdict};
use ordain_engines::timestamp::ENGINE;
use ordain_role::{Bug, Bugs};

use crate::shard::{Outcome, Shard, first};

const X: u8 = 1;
const Y: u8 = 2;

fn shard() -> Shard {
    Shard::new(&ENGINE, Bugs::NONE)
}

fn ask(shard: &mut Shard, stamp: u64, of: impl Into<Option<u8>>, mode: Mode) -> Verdict {
    let verdict = shard.access(first(stamp), stamp, of.into(), mode);
    if verdict == Refused {
        assert_eq!(shard.finish(first(stamp)), Outcome::default());
    }
    shard.check();
    verdict
}

/// The attempts that are granted and refused for the end of one, by their stamps.
fn numbers(shard: &Shard, Outcome { granted, refused }: Outcome) -> (Vec<u64>, Vec<u64>) {
    shard.check();
    let numbers = |all: Vec<AttemptId>| all.into_iter().map(|who| who.transaction.number).collect();
    (numbers(granted), numbers(refused))
}

fn commit(shard: &mut Shard, stamp: u64) -> (Vec<u64>, Vec<u64>) {
    let outcome = crate::commit(shard, first(stamp), stamp);
    numbers(shard, outcome)
}

fn abort(shard: &mut Shard, stamp: u64) -> (Vec<u64>, Vec<u64>) {
    let outcome = shard.finish(first(stamp));
    numbers(shard, outcome)
}

#[test]
fn scenario_1_two_read_modify_writes_of_one_key() {
    let mut shard = shard();
    assert_eq!(ask(&mut shard, 5, X, Exclusive), Granted);
    assert_eq!(ask(&mut shard, 7, X, Exclusive), Waits, "it has to read what 5 writes");
    assert_eq!(ask(&mut shard, 6, X, Exclusive), Waits, "a smaller one comes in between");
    assert_eq!(ask(&mut shard, 4, X, Exclusive), Refused, "5 has read");
    assert_eq!(commit(&mut shard, 5), (vec![6], vec![]));
    assert_eq!(abort(&mut shard, 6), (vec![7], vec![]));
    assert_eq!(commit(&mut shard, 7), (vec![], vec![]));
    assert_eq!((ask(&mut shard, 6, X, Shared), ask(&mut shard, 8, X, Shared)), (Refused, Granted));
}

#[test]
fn scenario_2_write_skew_over_two_keys() {
    let mut shard = shard();
    for (stamp, of) in [(5, X), (6, Y)] {
        assert_eq!(ask(&mut shard, stamp, of, Shared), Granted);
    }
    assert_eq!(ask(&mut shard, 6, X, Exclusive), Granted, "5 comes before it");
    assert_eq!(ask(&mut shard, 5, Y, Exclusive), Refused, "6 has read what 5 would write");
}

/// The coordinator of what is prepared is gone, and the participant has another leader: who comes waits, or is refused by the floor.
#[test]
fn scenario_6_and_20_readers_wait_for_what_is_prepared_over_terms_and_lost_reads_are_kept() {
    let mut shard = shard();
    assert_eq!(ask(&mut shard, 5, X, Exclusive), Granted);
    assert_eq!(ask(&mut shard, 9, Y, Shared), Granted);
    let held = shard.held(first(5));
    assert_eq!(held, [(Some(X), Exclusive)].into());
    shard.clear();
    assert!(!shard.is_stored(X) && !shard.is_stored(Y));
    // The ceiling that was agreed on.
    shard.control.begin(Age(20));
    held.into_iter().for_each(|(of, mode)| shard.restore(first(5), 5, of, mode));
    shard.check();
    assert_eq!(ask(&mut shard, 8, Y, Exclusive), Refused, "9 has read it, and nobody remembers that");
    assert_eq!(ask(&mut shard, 12, X, Shared), Refused, "a write up to 20 may be there");
    assert_eq!(shard.control.latest(), Age(20), "the next attempt comes after that");
    assert_eq!(ask(&mut shard, 21, X, Shared), Waits);
    assert_eq!(ask(&mut shard, 22, X, Exclusive), Waits);
    assert_eq!(commit(&mut shard, 5), (vec![21, 22], vec![]));
}

#[test]
fn scenario_8_a_reader_that_has_waited_is_judged_anew() {
    let mut shard = shard();
    assert_eq!(ask(&mut shard, 5, X, Exclusive), Granted);
    assert_eq!(ask(&mut shard, 6, None, Shared), Waits, "it reads the whole table");
    assert_eq!(ask(&mut shard, 9, Y, Exclusive), Granted);
    assert_eq!(commit(&mut shard, 9), (vec![], vec![6]), "9 has written what 6 was to read before");
    assert_eq!(commit(&mut shard, 5), (vec![], vec![]));
    assert_eq!(ask(&mut shard, 10, None, Shared), Granted);
    assert_eq!(ask(&mut shard, 7, X, Exclusive), Refused, "10 has read all");
    assert_eq!(ask(&mut shard, 11, X, Exclusive), Granted);
}

#[test]
fn scenario_12_a_clock_that_is_behind_is_refused_once() {
    let mut shard = shard();
    for n in 1_000..1_010 {
        assert_eq!(ask(&mut shard, n, X, Exclusive), Granted);
        commit(&mut shard, n);
    }
    assert_eq!(ask(&mut shard, 3, X, Exclusive), Refused);
    let next = shard.control.latest().0 + 1;
    assert_eq!(ask(&mut shard, next, X, Exclusive), Granted);
}

#[test]
fn scenario_25_one_attempt_and_one_key() {
    let mut shard = shard();
    for mode in [Shared, Exclusive, Shared, Exclusive, Exclusive] {
        assert_eq!(ask(&mut shard, 5, X, mode), Granted);
    }
    assert_eq!(ask(&mut shard, 5, None, Exclusive), Granted);
    assert_eq!(ask(&mut shard, 5, Y, Exclusive), Granted);
    assert_eq!(shard.held(first(5)).len(), 3);
    assert_eq!(ask(&mut shard, 6, Y, Shared), Waits);
    assert_eq!(commit(&mut shard, 5), (vec![6], vec![]));
    // What was read, and is written by a later one then, is not read again.
    assert_eq!(ask(&mut shard, 7, X, Shared), Granted);
    assert_eq!(ask(&mut shard, 8, X, Exclusive), Granted);
    commit(&mut shard, 8);
    assert_eq!(ask(&mut shard, 7, X, Shared), Refused);
}

#[test]
fn scenario_26_a_thousand_wait_for_one_key_and_its_coordinator_dies() {
    for mode in [Shared, Exclusive] {
        let mut shard = shard();
        assert_eq!(ask(&mut shard, 5, X, Exclusive), Granted);
        (1_000..2_000).rev().for_each(|n| assert_eq!(shard.access(first(n), n, Some(X), mode), Waits));
        shard.check();
        assert_eq!(shard.gauge("ordain_stamps_waiting"), 1_000.0);
        let (granted, refused) = abort(&mut shard, 5);
        assert_eq!(refused, []);
        match mode {
            Shared => assert!(granted.into_iter().eq(1_000..2_000), "in the order of stamps"),
            _ => assert_eq!(granted, [1_000]),
        }
        (1_000..2_000).for_each(|n| _ = commit(&mut shard, n));
        assert_eq!(shard.gauge("ordain_stamps_attempts"), 0.0);
    }
}

/// Accesses to the whole table, each refused for a write that came after it, until one is granted. Returns how many are needed.
fn tables_before_one_is_granted(bugs: Bugs) -> Option<u32> {
    let mut shard = Shard::new(&ENGINE, bugs);
    for attempt in 1..100 {
        let (who, stamp) = (AttemptId { attempt, ..first(1) }, u64::from(attempt) * 10);
        let (writer, other) = (first(stamp + 1), first(stamp + 2));
        assert_eq!(shard.access(other, stamp - 1, Some(Y), Shared), Granted, "who only reads is let in");
        let verdict = shard.access(writer, stamp + 1, Some(X), Exclusive);
        if verdict == Granted {
            crate::commit(&mut shard, writer, stamp + 1);
        }
        let of_table = shard.access(who, stamp, None, Shared);
        [who, writer, other].iter().for_each(|who| _ = shard.finish(*who));
        shard.check();
        if of_table == Granted {
            return Some(attempt);
        }
    }
    None
}

#[test]
fn a_whole_table_access_comes_through_a_stream_of_writers() {
    assert_eq!(tables_before_one_is_granted(Bugs::NONE), Some(5), "the gate closes after four");
    assert_eq!(tables_before_one_is_granted(Bugs::NONE.with(Bug::PassTable)), None);
}

#[test]
fn a_write_of_the_whole_table_is_a_write_of_each_record() {
    let mut shard = shard();
    assert_eq!(ask(&mut shard, 7, X, Shared), Granted);
    assert_eq!(ask(&mut shard, 6, None, Exclusive), Refused, "7 has read");
    assert_eq!(ask(&mut shard, 8, Y, Exclusive), Granted);
    assert_eq!(ask(&mut shard, 9, None, Exclusive), Waits);
    for (stamp, of) in [(10, X), (11, Y)] {
        assert_eq!(ask(&mut shard, stamp, of, Shared), Waits);
    }
    assert_eq!(ask(&mut shard, 3, X, Shared), Granted, "it comes before");
    assert_eq!(commit(&mut shard, 8), (vec![9], vec![]));
    assert_eq!(ask(&mut shard, 8, X, Exclusive), Refused, "9 reads and writes it");
    assert_eq!(commit(&mut shard, 9), (vec![10, 11], vec![]));
    assert_eq!(ask(&mut shard, 4, X, Shared), Refused, "9 has written it");
}

#[test]
fn a_restored_prewrite_that_conflicts_is_refused_loudly() {
    let mut shard = shard();
    shard.control.begin(Age(10));
    shard.restore(first(5), 5, Some(X), Exclusive);
    shard.restore(first(6), 6, Some(Y), Exclusive);
    for of in [Some(X), None] {
        let restore = std::panic::AssertUnwindSafe(|| shard.restore(first(7), 7, of, Exclusive));
        let panic = std::panic::catch_unwind(restore).unwrap_err();
        assert!(panic.downcast_ref::<String>().unwrap().contains("prepared attempt 0/0/7.1 conflicts"));
    }
}
