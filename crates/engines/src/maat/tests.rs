//! Tests of the control alone: the violations that its check finds, and what is forgotten. Its rules are tested in `tests/maat`.

use super::*;
use crate::testing::{attempt, is_stored, record};

fn empty() -> (MemoryStore, Maat) {
    (MemoryStore::new(0..ordain_model::key::SLOTS), Maat { cap: 10, ..Maat::default() })
}

fn granted(store: &mut MemoryStore, maat: &mut Maat, n: u64, target: Target, mode: Mode) {
    assert_eq!(maat.access(store, attempt(n), Age(n), target, mode), Verdict::Granted, "{n}");
}

fn validated(store: &mut MemoryStore, maat: &mut Maat, n: u64) -> Bounds {
    let all = Bounds::from(Age(0));
    let left = maat.validate(store, attempt(n), all, all);
    assert!(!left.is_empty(), "{n} has a stamp");
    left
}

/// A participant with one record, which 5 has read and 7 writes, and 3 has read the whole table: 7 is validated behind both.
fn shard() -> (MemoryStore, Maat, RecordId) {
    let (mut store, mut maat) = empty();
    let record = record(&mut store, b"k");
    granted(&mut store, &mut maat, 5, Target::Record(record), Mode::Shared);
    granted(&mut store, &mut maat, 3, Target::Table, Mode::Shared);
    granted(&mut store, &mut maat, 7, Target::Record(record), Mode::Blind);
    assert_eq!(validated(&mut store, &mut maat, 7), Bounds { from: Age(7), until: Age(17) });
    maat.check(&store, &|_| true).unwrap();
    (store, maat, record)
}

/// The violation that a change of the state makes.
fn broken(change: impl FnOnce(&mut Maat, &mut MemoryStore, RecordId)) -> String {
    let (mut store, mut maat, record) = shard();
    change(&mut maat, &mut store, record);
    maat.check(&store, &|_| true).unwrap_err()
}

/// Changes the marks of the record.
fn marked(change: impl FnOnce(&mut Soft)) -> String {
    broken(|maat, store, record| change(maat.records.get_mut(store, record).unwrap()))
}

/// Changes the bounds of an attempt.
fn bounded(n: u64, bounds: Bounds) -> String {
    broken(|maat, _, _| {
        let at = maat.attempts.find(attempt(n)).unwrap();
        maat.attempts[at].kept.bounds = bounds;
    })
}

#[test]
fn a_broken_state_is_found() {
    let (store, maat, _) = shard();
    let over = maat.check(&store, &|who| who != attempt(7)).unwrap_err();
    assert_eq!(over, format!("attempt {} is over and has 1 soft locks", attempt(7)));
    let lists = "and attempts know of";
    let reports = [
        (broken(|_, store, record| store.set_lock(record, 0)), "has marks and the lock word 0"),
        (broken(|_, store, record| store.set_lock(record, 9)), "has marks and the lock word 9"),
        (marked(|marks| marks.readers.clear()), lists),
        (marked(|marks| marks.writers.clear()), lists),
        (marked(|marks| marks.readers.push(2)), lists),
        (marked(|marks| marks.writers.push(0)), lists),
        (marked(|marks| marks.holders += 1), lists),
        (marked(|marks| marks.read = Age(8)), "later than"),
        (marked(|marks| marks.written = Age(8)), "later than"),
        (broken(|maat, _, _| maat.table.readers.clear()), "the table has"),
        (broken(|maat, _, _| maat.table.holders = 0), "the table has"),
        (broken(|maat, _, _| maat.table.writers.push(1)), "the table has"),
        (broken(|maat, _, _| maat.frozen.clear()), "are validated"),
        (broken(|maat, _, _| _ = maat.frozen.insert(0)), "are validated"),
        (
            broken(|maat, store, _| {
                let other = record(store, b"other");
                maat.attempts[0].held.insert(other, Mode::Shared);
            }),
            "has no marks",
        ),
        // The one that is validated has no stamp, or the one that has read what it writes may come after it.
        (bounded(7, Bounds::default()), "is validated within Bounds"),
        (bounded(5, Bounds { from: Age(5), until: Age(8) }), "is validated within the bounds of another"),
        (bounded(3, Bounds { from: Age(3), until: Age(8) }), "is validated within the bounds of another"),
    ];
    for (report, part) in reports {
        assert!(report.contains(part), "{report}, and not {part}");
    }
}

#[test]
fn a_write_of_the_whole_table_beside_a_read_with_its_stamp_is_found() {
    let (mut store, mut maat, _) = shard();
    maat.finish(&mut store, attempt(7), Ending::Aborted, &mut Ended::default());
    granted(&mut store, &mut maat, 9, Target::Table, Mode::Exclusive);
    assert_eq!(validated(&mut store, &mut maat, 9).from, Age(9));
    maat.check(&store, &|_| true).unwrap();
    let reader = maat.attempts.find(attempt(5)).unwrap();
    maat.attempts[reader].kept.bounds.until = Age(10);
    let report = maat.check(&store, &|_| true).unwrap_err();
    assert!(report.contains("is validated within the bounds of another at Table"), "{report}");
}

#[test]
fn two_that_conflict_and_are_validated_with_one_stamp_are_found() {
    for (mode, until) in [(Mode::Shared, 17), (Mode::Blind, 27)] {
        let (mut store, mut maat, record) = shard();
        maat.finish(&mut store, attempt(5), Ending::Aborted, &mut Ended::default());
        granted(&mut store, &mut maat, 6, Target::Record(record), mode);
        let left = validated(&mut store, &mut maat, 6);
        maat.check(&store, &|_| true).unwrap();
        let at = maat.attempts.find(attempt(6)).unwrap();
        // Both have the last stamp of 7.
        maat.attempts[at].kept.bounds = Bounds { from: left.from.min(Age(16)), until: Age(until) };
        let report = maat.check(&store, &|_| true).unwrap_err();
        assert!(report.contains("is validated within the bounds of another"), "{report}");
    }
}

#[test]
fn what_is_forgotten_raises_the_floor_and_gives_its_record_back() {
    let (mut store, mut maat, _) = shard();
    let other = record(&mut store, b"other");
    granted(&mut store, &mut maat, 9, Target::Record(other), Mode::Shared);
    maat.advance(&mut store, Age(100));
    assert!(is_stored(&store, b"other") && is_stored(&store, b"k"), "what is in use stays");
    assert_eq!((maat.records.len(), maat.floor), (2, Age(0)));
    maat.finish(&mut store, attempt(9), Ending::Committed(Age(120)), &mut Ended::default());
    maat.advance(&mut store, Age(120));
    assert!(is_stored(&store, b"other"), "it was read at 120");
    maat.advance(&mut store, Age(121));
    assert!(!is_stored(&store, b"other") && is_stored(&store, b"k"));
    assert_eq!((maat.records.len(), maat.floor), (1, Age(121)));
    for n in [3, 5, 7] {
        maat.finish(&mut store, attempt(n), Ending::Aborted, &mut Ended::default());
    }
    assert!(maat.remembers());
    maat.advance(&mut store, Age(200));
    assert!(!maat.remembers() && !is_stored(&store, b"k"));
    assert_eq!(maat.floor, Age(121), "nothing was read or written later");
}

/// True if nothing is left of attempts.
fn is_idle(maat: &Maat) -> bool {
    let Soft { readers, writers, holders, .. } = &maat.table;
    let is_table_free = readers.is_empty() && writers.is_empty() && *holders == 0;
    maat.attempts.len() == 0 && maat.frozen.is_empty() && is_table_free
}

#[test]
fn nothing_is_remembered_for_ever() {
    for prewrites in [false, true] {
        let (mut store, mut maat) = empty();
        maat.prewrites = prewrites;
        for round in 1..50_u64 {
            let first = round * 100;
            for key in 0..10_u8 {
                let target = Target::Record(record(&mut store, &[key]));
                let mode = [Mode::Shared, Mode::Exclusive, Mode::Blind][usize::from(key % 3)];
                granted(&mut store, &mut maat, first, target, mode);
                granted(&mut store, &mut maat, first + 1, target, Mode::Shared);
            }
            granted(&mut store, &mut maat, first + 2, Target::Table, Mode::Shared);
            // Each ends in another way, and one that is refused ends too.
            let left = validated(&mut store, &mut maat, first);
            let late = Age(first + 50);
            let verdict = maat.access(&mut store, attempt(first + 3), late, Target::Table, Mode::Exclusive);
            assert_eq!(verdict, Verdict::Refused, "it would have to read what is on its way");
            for key in (0..10_u8).filter(|key| key % 3 != 0) {
                let record = record(&mut store, &[key]);
                maat.install(&mut store, record, Cell::ABSENT, &Commitment::at(left.from), Gsn(round));
            }
            maat.check(&store, &|_| true).unwrap();
            let ends = [Ending::Committed(left.from), Ending::Unknown, Ending::Aborted, Ending::Aborted];
            for (n, ending) in (first..).zip(ends) {
                maat.finish(&mut store, attempt(n), ending, &mut Ended::default());
            }
            maat.check(&store, &|_| false).unwrap();
            assert!(is_idle(&maat), "{maat:?}");
            assert_eq!(maat.records.len(), 10, "places are used again");
            if round % 2 == 0 {
                maat.advance(&mut store, Age(first + 100));
                assert_eq!((maat.records.len(), maat.floor), (0, left.from.next()));
                assert!((0..10_u8).all(|key| !is_stored(&store, &[key])));
            }
        }
        let mut known = Vec::new();
        maat.remembered(&mut |record, stamp| known.push((record, stamp)));
        assert_eq!(known.len(), 6, "the writes of the last round");
        maat.clear(&mut store);
        assert_eq!(maat.records.len(), 6, "they follow from the log, and reads do not");
        maat.advance(&mut store, Age(10_000));
        assert!(maat.records.len() == 0 && is_idle(&maat));
    }
}
