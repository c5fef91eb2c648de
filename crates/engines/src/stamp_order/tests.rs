//! Tests of the order of stamps alone: what its check finds, what is forgotten, and places that are used again. Its rules are tested
//! in `tests/stamps`.

use ordain_commit::Commitment;

use super::*;
use crate::testing::{attempt, is_stored, record};

type Order = StampOrder<Latest>;

/// A participant with one record that the attempt of stamp 5 may write, and that of stamp 7 waits to read.
fn shard() -> (MemoryStore, Order, RecordId) {
    let mut store = MemoryStore::new(0..ordain_model::key::SLOTS);
    let record = record(&mut store, b"k");
    let mut marks = Order::default();
    for (n, mode, verdict) in [(5, Mode::Exclusive, Verdict::Granted), (7, Mode::Shared, Verdict::Waits)] {
        let target = Target::Record(record);
        assert_eq!(marks.access(&mut store, attempt(n), Age(n), target, mode), verdict);
    }
    marks.check(&store, &|_| true).unwrap();
    (store, marks, record)
}

/// The violation that a change of the state makes.
fn broken(change: impl FnOnce(&mut Order, &mut MemoryStore, RecordId)) -> String {
    let (mut store, mut marks, record) = shard();
    change(&mut marks, &mut store, record);
    marks.check(&store, &|_| true).unwrap_err()
}

#[test]
fn a_broken_state_is_found() {
    let (store, marks, _) = shard();
    assert!(marks.check(&store, &|who| who != attempt(7)).unwrap_err().contains("7.1 is over"));
    let reports = [
        (broken(|_, store, record| store.set_lock(record, 9)), "waits for nobody"),
        (
            broken(|marks, store, record| marks.records.get_mut(store, record).unwrap().prewrites.clear()),
            "7.1 waits for nobody",
        ),
        (
            broken(|marks, store, record| marks.records.get_mut(store, record).unwrap().waiting.clear()),
            "has Stamped",
        ),
        (broken(|marks, _, _| marks.prewriting.clear()), "the table has"),
        (broken(|marks, _, _| put(&mut marks.table.prewrites, (Age(9), attempt(9)))), "the table has"),
        (
            broken(|marks, store, record| {
                marks.records.get_mut(store, record).unwrap().history.read = Age(8)
            }),
            "later than",
        ),
    ];
    for (report, part) in reports {
        assert!(report.contains(part), "{report}");
    }
}

#[test]
fn what_is_forgotten_refuses_older_stamps_and_gives_its_record_back() {
    let (mut store, mut marks, _) = shard();
    let other = record(&mut store, b"other");
    assert_eq!(
        marks.access(&mut store, attempt(6), Age(6), Target::Record(other), Mode::Shared),
        Verdict::Granted
    );
    marks.advance(&mut store, Age(6));
    assert!(is_stored(&store, b"other"), "it was read at 6");
    marks.advance(&mut store, Age(7));
    assert!(!is_stored(&store, b"other") && is_stored(&store, b"k"), "a prewrite keeps its record");
    marks.check(&store, &|_| true).unwrap();
    let (again, mut ended) = (record(&mut store, b"other"), Ended::default());
    for (stamp, verdict) in [(5, Verdict::Refused), (6, Verdict::Granted)] {
        let target = Target::Record(again);
        assert_eq!(
            marks.access(&mut store, attempt(60 + stamp), Age(stamp), target, Mode::Exclusive),
            verdict
        );
    }
    [5, 6, 7, 65, 66].iter().for_each(|n| marks.finish(&mut store, attempt(*n), Ending::Aborted, &mut ended));
    assert_eq!((ended.granted, ended.refused), (vec![attempt(7)], vec![]));
    marks.advance(&mut store, Age(100));
    assert_eq!((marks.records.len(), marks.floor), (0, Age(7)), "the latest that was granted");
    assert!(!is_stored(&store, b"other") && !is_stored(&store, b"k"));
}

#[test]
fn places_of_marks_are_used_again() {
    let mut store = MemoryStore::new(0..ordain_model::key::SLOTS);
    let mut marks = Order::default();
    for round in 1..50_u64 {
        for key in 0..10_u8 {
            let target = Target::Record(record(&mut store, &[key]));
            let (who, age) = (attempt(round), Age(round));
            assert_eq!(marks.access(&mut store, who, age, target, Mode::Exclusive), Verdict::Granted);
        }
        for key in 0..10_u8 {
            let (record, cell) = (record(&mut store, &[key]), Cell::ABSENT);
            marks.install(&mut store, record, cell, &Commitment::at(Age(round)), Gsn(round));
        }
        marks.finish(&mut store, attempt(round), Ending::Aborted, &mut Ended::default());
        marks.check(&store, &|_| true).unwrap();
        if round % 2 == 0 {
            marks.advance(&mut store, Age(round + 1));
            assert_eq!((marks.records.len(), marks.floor), (0, Age(round)));
        }
    }
    let mut all = 0;
    marks.gauges(&mut |name, value| all += usize::from(name.ends_with("remembered") && value == 10.0));
    assert_eq!(all, 1, "those of the last round");
}
