//! Tests of the control alone: its rules, and the violations that its check finds.

use ordain_model::{Db, KeyHash, Value};

use super::*;
use crate::testing::{UNKNOWN, attempt, left_behind};

/// A participant, and the place of the last entry that was applied.
struct Shard {
    store: MemoryStore,
    control: Optimistic,
    place: u64,
}

impl Shard {
    fn new() -> Shard {
        Shard::planting(Bugs::NONE)
    }

    fn planting(bugs: Bugs) -> Shard {
        Shard::of(Marked::ToTheEnd, bugs)
    }

    fn of(marked: Marked, bugs: Bugs) -> Shard {
        let control = Optimistic::new(marked, bugs);
        Shard { store: MemoryStore::new(0..ordain_model::key::SLOTS), control, place: 0 }
    }

    fn record(&mut self, key: &[u8]) -> RecordId {
        self.store.find_or_reserve(Db(0), key, KeyHash::of_record(Db(0), key))
    }

    fn access(&mut self, n: u64, key: &[u8], mode: Mode) -> Verdict {
        let record = self.record(key);
        self.ask(n, Target::Record(record), mode)
    }

    fn ask(&mut self, n: u64, target: Target, mode: Mode) -> Verdict {
        let verdict = self.control.access(&mut self.store, attempt(n), Age(n), target, mode);
        self.check();
        verdict
    }

    fn granted(&mut self, n: u64, key: &[u8], mode: Mode) {
        assert_eq!(self.access(n, key, mode), Verdict::Granted, "{n}");
    }

    /// Validates an attempt that is decided with the answer.
    fn decides(&mut self, n: u64) -> bool {
        self.control.let_reads_go(attempt(n));
        self.validates(n)
    }

    /// Locks what an attempt writes.
    fn locks(&mut self, n: u64) -> bool {
        let is_locked = self.control.lock_writes(&mut self.store, attempt(n));
        self.check();
        is_locked
    }

    fn validates(&mut self, n: u64) -> bool {
        let bounds = Bounds::at(Age(n));
        let left = self.control.validate(&mut self.store, attempt(n), bounds, bounds);
        self.check();
        assert!(left == bounds || left.is_empty(), "{left:?}");
        !left.is_empty()
    }

    /// The log has come to the writes of an attempt, which is over; answers who is granted an access and who is refused it.
    fn installs(&mut self, n: u64, keys: &[&[u8]]) -> (Vec<u64>, Vec<u64>) {
        self.place += 1;
        for key in keys {
            let record = self.record(key);
            let cell = Cell { value: Some(Value::String(b"v".to_vec())), ..Cell::ABSENT };
            self.control.install(&mut self.store, record, cell, &Commitment::at(Age(n)), Gsn(self.place));
        }
        self.finishes(n, Ending::Committed(Age(n)))
    }

    fn finishes(&mut self, n: u64, ending: Ending) -> (Vec<u64>, Vec<u64>) {
        let mut ended = Ended::default();
        self.control.finish(&mut self.store, attempt(n), ending, &mut ended);
        self.check();
        let numbers = |list: Vec<AttemptId>| list.iter().map(|who| who.transaction.number).collect();
        (numbers(ended.granted), numbers(ended.refused))
    }

    fn check(&self) {
        self.control.check(&self.store, &|_| true).unwrap();
    }
}

const NOBODY: (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());

#[test]
fn of_two_that_read_and_write_one_record_the_first_to_be_validated_commits() {
    let mut shard = Shard::new();
    shard.granted(1, b"x", Mode::Exclusive);
    shard.granted(2, b"x", Mode::Exclusive);
    assert!(shard.validates(2));
    assert!(!shard.validates(1), "2 has it");
    assert_eq!(shard.finishes(1, Ending::Aborted), NOBODY);
    shard.granted(3, b"y", Mode::Exclusive);
    assert_eq!(shard.installs(2, &[b"x"]), NOBODY);
    shard.granted(4, b"x", Mode::Exclusive);
    assert!(shard.validates(4) && shard.validates(3));
}

#[test]
fn what_was_read_is_so_when_it_is_validated_and_until_the_end() {
    let mut shard = Shard::new();
    shard.granted(1, b"x", Mode::Shared);
    shard.granted(2, b"x", Mode::Blind);
    assert!(shard.validates(2));
    shard.installs(2, &[b"x"]);
    assert_eq!(shard.access(1, b"x", Mode::Shared), Verdict::Refused, "it is not as 1 has seen it");
    assert!(!shard.validates(1));
    shard.finishes(1, Ending::Aborted);
    // A validated attempt keeps others from changing what it has read, and lets them read it.
    shard.granted(3, b"x", Mode::Shared);
    shard.granted(4, b"x", Mode::Shared);
    shard.granted(5, b"x", Mode::Blind);
    assert!(shard.validates(3) && shard.validates(4));
    assert!(!shard.validates(5));
    shard.finishes(3, Ending::Committed(Age(3)));
    shard.finishes(4, Ending::Unknown);
    assert!(shard.validates(5), "it may be asked again");
    assert!(shard.validates(5), "and a question may come twice");
}

#[test]
fn a_read_waits_for_who_is_validated_and_sees_what_it_has_left() {
    let mut shard = Shard::new();
    shard.granted(1, b"x", Mode::Exclusive);
    assert!(shard.validates(1));
    assert_eq!(shard.access(2, b"x", Mode::Shared), Verdict::Waits);
    assert_eq!(shard.access(3, b"x", Mode::Exclusive), Verdict::Waits);
    assert_eq!(shard.access(4, b"x", Mode::Shared), Verdict::Waits);
    shard.granted(5, b"x", Mode::Blind);
    assert_eq!(shard.finishes(4, Ending::Aborted), NOBODY, "it waits no more");
    assert_eq!(shard.installs(1, &[b"x"]), (vec![2, 3], vec![]));
    assert!(shard.validates(2));
    assert!(!shard.validates(3), "2 has read it");
    shard.finishes(2, Ending::Committed(Age(2)));
    assert!(shard.validates(3));
}

#[test]
fn who_finds_a_record_expired_has_changed_it_for_others() {
    let mut shard = Shard::new();
    shard.granted(1, b"x", Mode::Shared);
    assert_eq!(shard.ask(2, Target::Table, Mode::Shared), Verdict::Granted);
    // The participant asks for it exclusively, and nothing is installed.
    shard.granted(3, b"x", Mode::Exclusive);
    shard.granted(4, b"x", Mode::Exclusive);
    assert!(shard.validates(3));
    shard.finishes(3, Ending::Committed(Age(3)));
    assert!(!shard.validates(1) && !shard.validates(2) && !shard.validates(4));
    for n in [1, 2, 4] {
        shard.finishes(n, Ending::Aborted);
    }
    shard.granted(5, b"x", Mode::Shared);
    shard.granted(6, b"x", Mode::Exclusive);
    assert!(shard.validates(6));
    shard.finishes(6, Ending::Aborted);
    assert!(shard.validates(5), "6 has found nothing that counts");
}

#[test]
fn absent_records_are_read_too_and_inserts_of_two_meet() {
    let mut shard = Shard::new();
    for n in [1, 2, 3] {
        shard.granted(n, b"absent", Mode::Exclusive);
    }
    assert!(shard.validates(1));
    shard.installs(1, &[b"absent"]);
    assert!(!shard.validates(2), "another has inserted it");
    shard.finishes(2, Ending::Aborted);
    shard.finishes(3, Ending::Aborted);
    shard.granted(4, b"never", Mode::Shared);
    shard.finishes(4, Ending::Committed(Age(4)));
    let never = KeyHash::of_record(Db(0), b"never");
    assert!(RecordStore::find(&shard.store, Db(0), b"never", never).is_none(), "nothing is left of it");
}

#[test]
fn who_reads_the_whole_table_misses_no_write() {
    let mut shard = Shard::new();
    assert_eq!(shard.ask(1, Target::Table, Mode::Shared), Verdict::Granted);
    shard.granted(2, b"new", Mode::Exclusive);
    shard.granted(3, b"x", Mode::Shared);
    assert!(shard.validates(2));
    assert_eq!(shard.ask(4, Target::Table, Mode::Shared), Verdict::Refused, "2 writes");
    shard.finishes(4, Ending::Aborted);
    assert!(!shard.validates(1), "2 writes, whatever it is");
    assert_eq!(shard.installs(2, &[b"new"]), NOBODY);
    assert_eq!(shard.ask(4, Target::Table, Mode::Shared), Verdict::Granted);
    assert!(!shard.validates(1), "what 2 has written was missed");
    shard.finishes(1, Ending::Aborted);
    assert!(shard.validates(4) && shard.validates(3), "reads do not meet");
    shard.granted(5, b"y", Mode::Exclusive);
    assert!(!shard.validates(5), "4 has read the table");
    shard.finishes(4, Ending::Committed(Age(4)));
    assert!(shard.validates(5));
}

#[test]
fn a_change_of_whole_databases_meets_everything() {
    let mut shard = Shard::new();
    shard.granted(1, b"x", Mode::Shared);
    shard.granted(2, b"y", Mode::Blind);
    assert_eq!(shard.ask(3, Target::Table, Mode::Exclusive), Verdict::Granted);
    assert!(shard.validates(1));
    assert!(!shard.validates(3), "1 has read a record");
    shard.finishes(1, Ending::Committed(Age(1)));
    assert!(shard.validates(3));
    assert_eq!(shard.access(4, b"z", Mode::Shared), Verdict::Waits);
    assert!(!shard.validates(2), "its record may stand in another database then");
    shard.control.change(&mut shard.store, TableChange::Swap(Db(0), Db(1)), &Commitment::at(Age(3)), Gsn(9));
    assert_eq!(shard.finishes(3, Ending::Committed(Age(3))), (vec![], vec![4]), "4 came before");
    shard.finishes(4, Ending::Aborted);
    assert!(!shard.validates(2), "and it does");
}

#[test]
fn the_gate_lets_a_reader_of_the_table_through() {
    let mut shard = Shard::new();
    let mut writer = 100;
    // Each time that it has read the table a record is written, until writes are refused.
    let tries = (0..50).find(|_| {
        assert_eq!(shard.ask(1, Target::Table, Mode::Shared), Verdict::Granted);
        writer += 1;
        let is_let_in = shard.access(writer, b"x", Mode::Blind) == Verdict::Granted;
        if is_let_in {
            assert!(shard.validates(writer));
            shard.installs(writer, &[b"x"]);
        } else {
            shard.finishes(writer, Ending::Aborted);
        }
        let is_validated = shard.validates(1);
        shard.finishes(1, if is_validated { Ending::Committed(Age(1)) } else { Ending::Aborted });
        is_validated
    });
    assert_eq!(tries, Some(4));
}

#[test]
fn what_is_prepared_is_locked_in_the_next_term() {
    let mut shard = Shard::new();
    shard.granted(1, b"read", Mode::Shared);
    shard.granted(1, b"written", Mode::Exclusive);
    shard.granted(1, b"blind", Mode::Blind);
    shard.granted(2, b"read", Mode::Shared);
    assert!(shard.validates(1));
    let mut held = Vec::new();
    shard.control.held(attempt(1), &mut |target, mode| held.push((target, mode)));
    let names: Vec<Vec<u8>> = held
        .iter()
        .map(|(target, _)| match target {
            Target::Record(record) => shard.store.key(*record).1.to_vec(),
            Target::Table => panic!("it has none of the table"),
        })
        .collect();
    shard.control.clear(&mut shard.store);
    shard.check();
    for ((_, mode), name) in held.iter().zip(&names) {
        let record = shard.record(name);
        shard.control.restore(
            &mut shard.store,
            attempt(1),
            Bounds::at(Age(1)),
            Target::Record(record),
            *mode,
        );
        shard.check();
    }
    assert_eq!(shard.access(3, b"written", Mode::Shared), Verdict::Waits);
    assert_eq!(shard.access(5, b"blind", Mode::Shared), Verdict::Waits);
    shard.finishes(3, Ending::Aborted);
    shard.finishes(5, Ending::Aborted);
    shard.granted(4, b"read", Mode::Exclusive);
    assert!(!shard.validates(4));
    assert_eq!(shard.installs(1, &[b"written", b"blind"]), NOBODY);
    assert!(shard.validates(4));
    shard.finishes(4, Ending::Aborted);
    assert_eq!(shard.control.records.len(), 0);
}

#[test]
#[should_panic(expected = "conflicts with another")]
fn a_log_that_promises_one_record_to_two_is_refused() {
    let mut shard = Shard::new();
    let record = Target::Record(shard.record(b"x"));
    for n in [1, 2] {
        shard.control.restore(&mut shard.store, attempt(n), Bounds::at(Age(n)), record, Mode::Exclusive);
    }
}

/// The violation that a change of the state makes: 1 is validated and has read r and written x, for which 2 waits; 3 has read the table.
fn broken(change: impl FnOnce(&mut Shard, RecordId)) -> String {
    let mut shard = Shard::new();
    shard.granted(1, b"r", Mode::Shared);
    shard.granted(1, b"x", Mode::Exclusive);
    assert_eq!(shard.ask(3, Target::Table, Mode::Shared), Verdict::Granted);
    assert!(shard.validates(1));
    assert_eq!(shard.access(2, b"x", Mode::Shared), Verdict::Waits);
    let record = shard.record(b"x");
    change(&mut shard, record);
    shard.control.check(&shard.store, &|_| true).unwrap_err()
}

#[test]
fn a_broken_state_is_found() {
    let marks = |change: fn(&mut Marks)| {
        broken(|shard, record| change(shard.control.records.get_mut(&shard.store, record).unwrap()))
    };
    let others = "and attempts know of";
    let reports = [
        (marks(|marks| marks.holders += 1), others),
        (marks(|marks| marks.writer = None), others),
        (marks(|marks| marks.holders = 0), "marks that nobody needs"),
        (marks(|marks| marks.readers += 1), others),
        (broken(|shard, record| shard.store.set_lock(record, 0)), "is not as it was"),
        (broken(|shard, _| shard.control.waiting.add(UNKNOWN, Target::Table)), "wait for nobody"),
        (
            broken(|shard, record| shard.control.records.get_mut(&shard.store, record).unwrap().changed += 1),
            "is not as it was",
        ),
        (broken(|shard, _| shard.control.table.clear()), others),
        (
            broken(|shard, _| {
                let at = shard.control.attempts.find(attempt(2)).unwrap();
                let kept = &mut shard.control.attempts[at].kept;
                (kept.is_locked, kept.is_validated) = (true, true);
            }),
            "shares what another writes",
        ),
        (
            broken(|shard, _| {
                let at = shard.control.attempts.find(attempt(2)).unwrap();
                shard.control.attempts[at].kept.is_validated = true;
            }),
            "is validated and not locked",
        ),
    ];
    for (report, expected) in reports {
        assert!(report.contains(expected), "{report}");
    }
    let mut shard = Shard::new();
    shard.granted(1, b"x", Mode::Shared);
    let over = shard.control.check(&shard.store, &|_| false).unwrap_err();
    assert!(over.contains("is over and holds 1 locks"), "{over}");
}

#[test]
fn a_lock_that_stays_is_found() {
    let mut shard = Shard::planting(Bugs::NONE.with(Bug::LeaveLock));
    shard.granted(7, b"x", Mode::Shared);
    let found = left_behind(&mut shard.control, &mut shard.store);
    assert!(found.contains("and attempts know of"), "{found}");
}

// ---- reads that are marked while it is not decided -------------------------------------------------------------------

fn silo() -> Shard {
    Shard::of(Marked::Undecided, Bugs::NONE)
}

#[test]
fn what_is_decided_at_once_marks_no_read() {
    for (mut shard, marks) in [(silo(), false), (Shard::new(), true)] {
        shard.granted(1, b"x", Mode::Shared);
        shard.granted(1, b"y", Mode::Exclusive);
        shard.granted(2, b"x", Mode::Blind);
        shard.granted(3, b"y", Mode::Blind);
        assert!(shard.decides(1));
        assert_eq!(shard.validates(2), !marks, "1 is decided, and comes before");
        assert!(!shard.validates(3), "1 has y");
        if !marks {
            shard.installs(2, &[b"x"]);
        }
        assert_eq!(shard.installs(1, &[b"y"]), NOBODY);
        assert_eq!(shard.control.counts.unmarked, u64::from(!marks));
    }
}

/// Section 4.1 (a) of the sheet: 1 is validated here and not yet at another shard, where 2 reads what it writes.
#[test]
fn what_others_validate_yet_marks_its_reads_until_it_is_over() {
    for bug in [None, Some(Bug::UnmarkReads)] {
        let bugs = bug.map_or(Bugs::NONE, |bug| Bugs::NONE.with(bug));
        let mut shard = Shard::of(Marked::Undecided, bugs);
        shard.granted(1, b"x", Mode::Shared);
        shard.granted(2, b"x", Mode::Blind);
        assert!(shard.validates(1));
        assert_eq!(shard.validates(2), bug.is_some());
        if bug.is_none() {
            shard.control.let_reads_go(attempt(1));
            assert!(shard.validates(1) && !shard.validates(2), "it stays marked, though it is asked again");
            shard.finishes(1, Ending::Committed(Age(1)));
            assert!(shard.validates(2));
        }
    }
}

#[test]
fn what_only_reads_is_validated_against_writers_that_are_locked() {
    let mut shard = silo();
    shard.granted(1, b"x", Mode::Shared);
    shard.granted(2, b"x", Mode::Blind);
    assert!(shard.validates(2));
    assert!(!shard.decides(1), "2 may have been answered before 1 is");
    shard.finishes(2, Ending::Aborted);
    assert!(shard.decides(1));
    shard.granted(3, b"x", Mode::Exclusive);
    assert!(shard.validates(3), "1 keeps nobody away");
}

#[test]
fn its_own_lock_is_in_nobodys_way_but_others() {
    let mut shard = silo();
    shard.granted(1, b"x", Mode::Shared);
    shard.granted(1, b"x", Mode::Exclusive);
    shard.granted(2, b"x", Mode::Exclusive);
    assert!(shard.decides(1));
    assert!(!shard.decides(2));
}

/// A participant whose attempts of several regions are validated in two rounds.
fn two_rounds() -> Shard {
    let mut shard = silo();
    shard.control = std::mem::take(&mut shard.control).in_rounds(2);
    shard
}

#[test]
fn what_is_locked_first_is_seen_by_nobody_and_marks_nothing() {
    let mut shard = two_rounds();
    shard.granted(1, b"r", Mode::Shared);
    shard.granted(1, b"x", Mode::Exclusive);
    shard.granted(2, b"x", Mode::Blind);
    shard.granted(3, b"r", Mode::Blind);
    assert!(shard.locks(1) && shard.locks(1), "it may be asked again");
    assert_eq!(shard.access(4, b"x", Mode::Shared), Verdict::Waits);
    assert!(!shard.locks(2), "1 has it");
    assert!(shard.validates(1), "its own lock is in nobody's way but others");
    let mut held = Vec::new();
    shard.control.held(attempt(1), &mut |target, mode| held.push((target, mode)));
    let x = shard.record(b"x");
    assert_eq!(held, [(Target::Record(x), Mode::Exclusive)], "what it has read is not promised");
    assert!(shard.decides(3), "it comes after 1");
    assert_eq!(shard.installs(3, &[b"r"]), NOBODY);
    assert_eq!(shard.installs(1, &[b"x"]), (vec![4], vec![]));
    shard.granted(5, b"x", Mode::Shared);
    shard.granted(6, b"x", Mode::Exclusive);
    assert!(shard.locks(6) && !shard.decides(5));
    assert_eq!(shard.finishes(6, Ending::Aborted), NOBODY);
    assert!(shard.decides(5), "6 has changed nothing");
}

#[test]
fn what_was_read_is_validated_after_the_lock() {
    let mut shard = two_rounds();
    for (n, [read, written]) in [(1, [b"x", b"y"]), (2, [b"y", b"x"])] {
        shard.granted(n, read, Mode::Shared);
        shard.granted(n, written, Mode::Blind);
    }
    assert!(shard.locks(1) && shard.locks(2));
    assert!(!shard.validates(1) && !shard.validates(2), "a write skew");
    for n in [1, 2] {
        shard.finishes(n, Ending::Aborted);
    }
    shard.granted(3, b"r", Mode::Shared);
    shard.granted(3, b"x", Mode::Blind);
    shard.granted(4, b"r", Mode::Exclusive);
    assert!(shard.locks(3) && shard.decides(4));
    assert!(!shard.validates(3), "4 is about to overwrite it");
    shard.installs(4, &[b"r"]);
    assert!(!shard.validates(3), "4 has overwritten it");
    shard.finishes(3, Ending::Aborted);
    // An attempt of several shards of this region marks what it has read.
    shard.granted(5, b"r", Mode::Shared);
    shard.granted(6, b"r", Mode::Blind);
    assert!(shard.validates(5) && !shard.locks(6));
    shard.finishes(5, Ending::Committed(Age(5)));
    assert!(shard.locks(6));
    assert_eq!(shard.access(6, b"x", Mode::Shared), Verdict::Refused, "it is locked and reads no more");
    shard.finishes(6, Ending::Unknown);
    assert_eq!(shard.control.records.len(), 0);
}

#[test]
fn who_is_to_read_or_write_the_table_locks_it_first_too() {
    let mut shard = two_rounds();
    shard.granted(1, b"x", Mode::Exclusive);
    assert_eq!(shard.ask(2, Target::Table, Mode::Shared), Verdict::Granted);
    assert_eq!(shard.ask(3, Target::Table, Mode::Exclusive), Verdict::Granted);
    assert!(shard.locks(1) && shard.locks(2), "2 writes nothing");
    assert!(!shard.locks(3) && !shard.validates(2), "1 writes");
    shard.finishes(1, Ending::Aborted);
    assert!(shard.validates(2) && shard.locks(3) && shard.validates(3), "2 marks nothing");
    assert_eq!(shard.access(4, b"y", Mode::Shared), Verdict::Waits);
}

/// Scenario 22 of the sheet, at home: a read of nothing, and an insert; then a record that is removed and made again.
#[test]
fn scenario_22_an_absent_read_conflicts_with_an_insert() {
    let mut shard = silo();
    shard.granted(1, b"x", Mode::Shared);
    shard.granted(1, b"y", Mode::Blind);
    shard.granted(2, b"x", Mode::Blind);
    assert!(shard.decides(2));
    shard.installs(2, &[b"x"]);
    assert!(!shard.decides(1));
    shard.granted(3, b"x", Mode::Shared);
    for (n, cell) in
        [(4, Cell::ABSENT), (5, Cell { value: Some(Value::String(b"v".to_vec())), ..Cell::ABSENT })]
    {
        shard.granted(n, b"x", Mode::Blind);
        assert!(shard.decides(n));
        let record = shard.record(b"x");
        shard.place += 1;
        shard.control.install(&mut shard.store, record, cell, &Commitment::at(Age(n)), Gsn(shard.place));
        shard.finishes(n, Ending::Committed(Age(n)));
    }
    assert!(!shard.decides(3), "it has another version, though it is as it was");
}

#[test]
fn who_reads_the_whole_table_and_is_decided_keeps_no_insert_away() {
    let mut shard = silo();
    for n in [1, 2] {
        assert_eq!(shard.ask(n, Target::Table, Mode::Shared), Verdict::Granted);
    }
    shard.granted(1, b"y", Mode::Exclusive);
    shard.granted(3, b"x", Mode::Blind);
    assert!(shard.decides(1) && shard.validates(3), "1 comes before 3");
    shard.installs(3, &[b"x"]);
    shard.installs(1, &[b"y"]);
    assert!(!shard.decides(2));
    assert_eq!(shard.ask(4, Target::Table, Mode::Shared), Verdict::Granted);
    shard.granted(5, b"z", Mode::Blind);
    assert!(shard.validates(4) && !shard.validates(5), "others validate 4 yet");
}
