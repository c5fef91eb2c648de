//! Tests of the control alone: its rules (docs/protocols/regions-mvocc.md), and the violations that its check finds.

use ordain_commit::Vector;
use ordain_model::children::child_key;
use ordain_model::{Db, KeyHash, Placement, Value};

use super::*;
use crate::testing::{UNKNOWN, attempt, left_behind};

fn cell(text: &str) -> Cell {
    let value = (!text.is_empty()).then(|| Value::String(text.into()));
    Cell { value, ..Cell::ABSENT }
}

fn write(db: Db, key: &[u8], text: &str) -> Write {
    Write::new(&Placement::NONE, db, key.to_vec(), cell(text))
}

/// A participant. Transaction n begins with the stamp n.
struct Shard {
    store: MemoryStore,
    control: Mvocc,
    place: u64,
    /// No attempt is under way with an earlier stamp.
    oldest: u64,
}

impl Shard {
    fn new() -> Shard {
        Shard::planting(Bugs::NONE)
    }

    fn planting(bugs: Bugs) -> Shard {
        let mut control = Mvocc { bugs, ..Mvocc::default() };
        control.begin(Age(0));
        Shard { store: MemoryStore::new(0..ordain_model::key::SLOTS), control, place: 0, oldest: 0 }
    }

    fn record(&mut self, key: &[u8]) -> RecordId {
        self.store.find_or_reserve(Db(0), key, KeyHash::of_record(Db(0), key))
    }

    /// An attempt comes that reads these versions.
    fn enter(&mut self, n: u64, reads: Reads) {
        self.enters_at(n, n, reads);
    }

    fn enters_at(&mut self, n: u64, age: u64, reads: Reads) {
        let snapshot = Snapshot { reads, vector: Vector::default() };
        self.control.enter(attempt(n), Age(age), &snapshot);
    }

    fn access(&mut self, n: u64, key: &[u8], mode: Mode) -> Verdict {
        let record = self.record(key);
        self.ask(n, n, Target::Record(record), mode)
    }

    fn ask(&mut self, n: u64, age: u64, target: Target, mode: Mode) -> Verdict {
        let verdict = self.control.access(&mut self.store, attempt(n), Age(age), target, mode);
        self.check();
        verdict
    }

    fn granted(&mut self, n: u64, key: &[u8], mode: Mode) {
        assert_eq!(self.access(n, key, mode), Verdict::Granted, "{n}");
    }

    fn hands_over(&mut self, n: u64, writes: &[Write]) {
        self.control.hand_over(&mut self.store, attempt(n), writes);
        self.check();
    }

    /// An attempt is to commit with a stamp; answers whether it may.
    fn validates(&mut self, n: u64, stamp: u64) -> bool {
        let bounds = Bounds::at(Age(stamp));
        let left = self.control.validate(&mut self.store, attempt(n), bounds, Bounds::from(Age(self.oldest)));
        self.check();
        assert!(left == bounds || left.is_empty(), "{left:?}");
        !left.is_empty()
    }

    /// An attempt writes keys, hands them over and is validated.
    fn prepares(&mut self, n: u64, stamp: u64, keys: &[&[u8]]) {
        self.enter(n, Reads::Newest);
        keys.iter().for_each(|key| self.granted(n, key, Mode::Exclusive));
        let writes: Vec<Write> = keys.iter().map(|key| write(Db(0), key, &n.to_string())).collect();
        self.hands_over(n, &writes);
        assert!(self.validates(n, stamp), "{n}");
    }

    /// The log has come to the writes of an attempt, which is over.
    fn installs(&mut self, n: u64, stamp: u64, keys: &[&[u8]]) -> Over {
        self.place += 1;
        let with = &Commitment::at(Age(stamp));
        for key in keys {
            let record = self.record(key);
            self.control.install(&mut self.store, record, cell(&n.to_string()), with, Gsn(self.place));
        }
        self.finishes(n, Ending::Committed(Age(stamp)))
    }

    /// An attempt writes keys and commits.
    fn commits(&mut self, n: u64, stamp: u64, keys: &[&[u8]]) {
        self.prepares(n, stamp, keys);
        assert_eq!(self.installs(n, stamp, keys), Over::default());
    }

    fn finishes(&mut self, n: u64, ending: Ending) -> Over {
        let mut ended = Ended::default();
        self.control.finish(&mut self.store, attempt(n), ending, &mut ended);
        self.check();
        let numbers = |list: Vec<AttemptId>| list.iter().map(|who| who.transaction.number).collect();
        let settled = ended.settled.iter().map(|(who, stands)| (who.transaction.number, *stands)).collect();
        Over { granted: numbers(ended.granted), refused: numbers(ended.refused), settled }
    }

    /// The content of a key that an attempt sees.
    fn sees(&mut self, n: u64, key: &[u8]) -> String {
        let record = self.record(key);
        let seen = self.control.seen(&self.store, record, (attempt(n), Age(n)));
        let cell = seen.map_or(self.store.cell(record), |(cell, _)| cell);
        match &cell.value {
            Some(Value::String(text)) => String::from_utf8(text.clone()).unwrap(),
            None => String::new(),
            other => panic!("{other:?}"),
        }
    }

    fn check(&self) {
        self.control.check(&self.store, &|_| true).unwrap();
    }
}

/// Those who are granted an access, are refused one, and hear of their validation, as another is over.
#[derive(Debug, Default, PartialEq, Eq)]
struct Over {
    granted: Vec<u64>,
    refused: Vec<u64>,
    settled: Vec<(u64, bool)>,
}

/// Scenario 16 of regions.md.
#[test]
fn of_two_that_write_one_record_the_first_wins_and_the_other_leaves_nothing() {
    let mut shard = Shard::new();
    shard.granted(1, b"x", Mode::Exclusive);
    assert_eq!(shard.access(2, b"x", Mode::Exclusive), Verdict::Refused, "1 has its end");
    assert_eq!(shard.access(3, b"x", Mode::Blind), Verdict::Refused);
    [2, 3].into_iter().for_each(|n| assert_eq!(shard.finishes(n, Ending::Aborted), Over::default()));
    shard.granted(1, b"x", Mode::Exclusive);
    shard.hands_over(1, &[write(Db(0), b"x", "1")]);
    assert!(shard.validates(1, 10));
    // The end of who is validated is near.
    assert_eq!(shard.access(4, b"x", Mode::Exclusive), Verdict::Waits);
    assert_eq!(shard.access(5, b"x", Mode::Blind), Verdict::Waits);
    let over = shard.installs(1, 10, &[b"x"]);
    assert_eq!((over.granted, over.refused), (vec![4], vec![5]), "now 4 is the first");
    assert_eq!(shard.sees(4, b"x"), "1");
    shard.finishes(5, Ending::Aborted);
    shard.finishes(4, Ending::Aborted);
    shard.commits(6, 12, &[b"x"]);
    assert_eq!((shard.control.records.len(), shard.control.installed.len()), (1, 2));
}

#[test]
fn a_read_stands_until_its_stamp_unless_somebody_has_written_the_record_before() {
    let mut shard = Shard::new();
    shard.commits(1, 2, &[b"x"]);
    [3, 4, 5].into_iter().for_each(|n| shard.granted(n, b"x", Mode::Shared));
    shard.granted(6, b"x", Mode::Blind);
    assert!(shard.validates(3, 10), "6 runs, and will have a later stamp");
    assert!(shard.validates(6, 12));
    assert!(!shard.validates(4, 14), "6 is ahead of it");
    shard.installs(6, 12, &[b"x"]);
    assert!(!shard.validates(5, 16), "and has committed");
    assert_eq!(shard.access(5, b"x", Mode::Shared), Verdict::Refused, "it is not as 5 has seen it");
    assert!(shard.validates(3, 10), "a question may come twice");
    shard.finishes(3, Ending::Committed(Age(10)));
    // Bug `pass-prepared`.
    let mut shard = Shard::planting(Bugs::NONE.with(Bug::PassPrepared));
    shard.granted(4, b"x", Mode::Shared);
    shard.granted(6, b"x", Mode::Blind);
    assert!(shard.validates(6, 12) && shard.validates(4, 14));
}

#[test]
fn what_only_reads_sees_its_stamp_and_waits_for_no_later_one() {
    let mut shard = Shard::new();
    shard.commits(1, 2, &[b"x"]);
    for n in [5, 9, 15] {
        shard.enter(n, Reads::Fixed);
    }
    shard.granted(5, b"x", Mode::Shared);
    shard.prepares(6, 10, &[b"x", b"y"]);
    shard.granted(9, b"x", Mode::Shared);
    assert_eq!(shard.access(15, b"x", Mode::Shared), Verdict::Waits, "6 may have to be seen");
    assert_eq!(shard.installs(6, 10, &[b"x", b"y"]).granted, [15]);
    let all = |shard: &mut Shard, n| (shard.sees(n, b"x"), shard.sees(n, b"y"));
    assert_eq!(all(&mut shard, 5), ("1".to_owned(), String::new()));
    assert_eq!(all(&mut shard, 9), ("1".to_owned(), String::new()));
    assert_eq!(all(&mut shard, 15), ("6".to_owned(), "6".to_owned()));
    shard.granted(9, b"y", Mode::Shared);
    assert_eq!(shard.control.replaced((attempt(9), Age(9))).len(), 2);
    assert!(shard.control.replaced((attempt(15), Age(15))).is_empty());
    // A later stamp is validated here than the one of a reader, or none is.
    shard.granted(11, b"z", Mode::Exclusive);
    assert!(!shard.validates(11, 15), "15 has missed it");
    assert!(shard.validates(11, 16));
}

#[test]
fn a_read_of_what_is_validated_stands_on_its_writer() {
    let mut shard = Shard::new();
    shard.prepares(1, 10, &[b"x"]);
    shard.enter(3, Reads::Newest);
    shard.granted(3, b"x", Mode::Shared);
    shard.granted(3, b"y", Mode::Exclusive);
    assert_eq!((shard.sees(3, b"x"), shard.control.begins(attempt(3))), ("1".to_owned(), Age(10)));
    assert!(shard.control.stands_on_others(attempt(3)));
    shard.granted(4, b"y", Mode::Shared);
    assert!(shard.validates(3, 12));
    assert!(!shard.validates(4, 14));
    let over = shard.installs(1, 10, &[b"x"]);
    assert_eq!(over.settled, [(3, true)]);
    assert!(!shard.control.stands_on_others(attempt(3)));
    assert_eq!(shard.sees(3, b"x"), "1");
    shard.installs(3, 12, &[b"y"]);
    // Nothing is known yet of what it leaves, or is never before the log has it.
    shard.granted(5, b"x", Mode::Exclusive);
    assert!(shard.validates(5, 20));
    assert_eq!(shard.access(6, b"x", Mode::Shared), Verdict::Waits);
    assert_eq!(shard.finishes(5, Ending::Aborted).granted, [6]);
    assert_eq!(shard.sees(6, b"x"), "1");
    // An attempt that has handed over its writes leaves other records as they are.
    shard.granted(7, b"x", Mode::Exclusive);
    shard.granted(7, b"y", Mode::Exclusive);
    shard.hands_over(7, &[write(Db(0), b"y", "7")]);
    assert!(shard.validates(7, 22) && shard.validates(6, 24));
    assert_eq!(shard.access(8, b"x", Mode::Exclusive), Verdict::Waits, "but its claim stands");
    assert_eq!(shard.finishes(7, Ending::Aborted).granted, [8]);
}

/// Five attempts, each of which has read from the one before and is validated or runs.
fn chain(bugs: Bugs) -> Shard {
    let mut shard = Shard::planting(bugs);
    let keys: [&[u8]; 5] = [b"1", b"2", b"3", b"4", b"5"];
    shard.prepares(1, 10, &[keys[0]]);
    for n in 2..=5 {
        shard.enter(n, Reads::Newest);
        shard.granted(n, keys[n as usize - 2], Mode::Shared);
        assert_eq!(shard.sees(n, keys[n as usize - 2]), (n - 1).to_string());
        if n < 5 {
            shard.prepares(n, 10 * n, &[keys[n as usize - 1]]);
        }
    }
    shard
}

/// Scenario 15 of regions.md.
#[test]
fn a_chain_of_five_comes_to_nothing_with_its_first() {
    let mut shard = chain(Bugs::NONE);
    assert_eq!(shard.finishes(1, Ending::Aborted).settled, [(2, false)]);
    assert!(!shard.validates(2, 20) && shard.control.stands_on_others(attempt(3)));
    assert_eq!(shard.finishes(2, Ending::Aborted).settled, [(3, false)]);
    assert_eq!(shard.finishes(3, Ending::Aborted).settled, [(4, false)]);
    assert_eq!(shard.finishes(4, Ending::Aborted), Over::default());
    assert_eq!(shard.access(5, b"other", Mode::Shared), Verdict::Refused, "it has read what never was");
    assert!(!shard.validates(5, 50));
    shard.finishes(5, Ending::Aborted);
    assert_eq!((shard.control.records.len(), shard.control.counts.by_cascade), (0, 5));
    // And it commits with it.
    let mut shard = chain(Bugs::NONE);
    for n in 1..=3 {
        let key = [b'0' + n as u8];
        assert_eq!(shard.installs(n, 10 * n, &[&key]).settled, [(n + 1, true)], "{n}");
    }
    assert_eq!(shard.installs(4, 40, &[b"4"]), Over::default());
    assert!(shard.validates(5, 50) && !shard.control.stands_on_others(attempt(5)));
    // Bug `forget-dependency`.
    let mut shard = chain(Bugs::NONE.with(Bug::ForgetDependency));
    assert_eq!(shard.finishes(1, Ending::Aborted).settled, [(2, true)]);
}

#[test]
fn an_access_that_waits_is_refused_with_what_it_stands_on() {
    let mut shard = Shard::new();
    shard.prepares(1, 10, &[b"x"]);
    shard.prepares(2, 12, &[b"y"]);
    shard.enter(3, Reads::Newest);
    shard.granted(3, b"x", Mode::Shared);
    assert_eq!(shard.access(3, b"y", Mode::Exclusive), Verdict::Waits);
    assert_eq!(shard.finishes(1, Ending::Aborted).refused, [3]);
    shard.finishes(3, Ending::Aborted);
    assert_eq!(shard.finishes(2, Ending::Aborted), Over::default(), "it waits no more");
}

#[test]
fn a_read_goes_on_to_a_later_stamp_if_what_was_read_is_as_it_was() {
    for (bug, expected) in [(None, Verdict::Refused), (Some(Bug::ExtendBlindly), Verdict::Granted)] {
        let mut shard = Shard::planting(bug.map_or(Bugs::NONE, |bug| Bugs::NONE.with(bug)));
        for n in [1, 2] {
            shard.enter(n, Reads::Newest);
            shard.granted(n, b"x", Mode::Shared);
        }
        shard.commits(3, 10, &[b"y"]);
        shard.granted(1, b"y", Mode::Shared);
        assert_eq!((shard.control.begins(attempt(1)), shard.control.counts.extended), (Age(10), 1));
        shard.commits(4, 12, &[b"x", b"z"]);
        assert_eq!(shard.access(2, b"z", Mode::Shared), expected, "it has read x as it was before 4");
        // Another participant has taken 1 on to 4's stamp.
        let record = shard.record(b"never");
        assert_eq!(shard.ask(1, 12, Target::Record(record), Mode::Shared), expected);
        assert!(!shard.validates(1, 14), "whatever it was shown");
    }
}

#[test]
fn the_first_read_of_an_interactive_attempt_fixes_its_stamp() {
    let mut shard = Shard::new();
    shard.commits(1, 10, &[b"x"]);
    shard.enter(2, Reads::First);
    shard.granted(2, b"blind", Mode::Blind);
    assert_eq!(shard.control.view(attempt(2)).0, Reads::First);
    shard.granted(2, b"x", Mode::Shared);
    assert_eq!((shard.control.view(attempt(2)).0, shard.control.begins(attempt(2))), (Reads::Fixed, Age(10)));
    shard.commits(3, 12, &[b"x", b"y"]);
    shard.granted(2, b"y", Mode::Shared);
    assert_eq!((shard.sees(2, b"x"), shard.sees(2, b"y")), ("1".to_owned(), String::new()));
    assert_eq!(shard.access(2, b"y", Mode::Exclusive), Verdict::Refused, "its stamp is not the newest");
    shard.finishes(2, Ending::Aborted);
    // Nothing is shown that is not decided.
    shard.prepares(4, 20, &[b"x"]);
    shard.enter(5, Reads::First);
    assert_eq!(shard.access(5, b"x", Mode::Shared), Verdict::Waits);
    assert_eq!(shard.installs(4, 20, &[b"x"]).granted, [5]);
    // A stamp that another participant has fixed counts here.
    shard.enter(6, Reads::First);
    shard.granted(6, b"other", Mode::Blind);
    shard.enters_at(6, 21, Reads::Fixed);
    assert_eq!(shard.control.begins(attempt(6)), Age(21));
}

/// Scenario 22 of regions.md, within a region.
#[test]
fn absent_records_are_read_too_and_inserts_of_two_meet() {
    let mut shard = Shard::new();
    shard.granted(1, b"absent", Mode::Shared);
    shard.granted(1, b"other", Mode::Exclusive);
    shard.granted(2, b"absent", Mode::Exclusive);
    assert_eq!(shard.access(3, b"absent", Mode::Exclusive), Verdict::Refused);
    shard.finishes(3, Ending::Aborted);
    assert!(shard.validates(2, 10));
    assert!(!shard.validates(1, 12), "2 inserts what 1 has missed");
    shard.installs(2, 10, &[b"absent"]);
    assert!(!shard.validates(1, 12));
    shard.finishes(1, Ending::Aborted);
    // A deletion is a version: who reads at an earlier stamp sees what was there.
    shard.enter(11, Reads::Fixed);
    shard.granted(11, b"absent", Mode::Shared);
    shard.granted(12, b"absent", Mode::Exclusive);
    assert!(shard.validates(12, 14));
    let record = shard.record(b"absent");
    shard.control.install(&mut shard.store, record, Cell::ABSENT, &Commitment::at(Age(14)), Gsn(9));
    shard.finishes(12, Ending::Committed(Age(14)));
    assert_eq!(shard.sees(11, b"absent"), "2");
    shard.finishes(11, Ending::Committed(Age(11)));
    shard.granted(15, b"never", Mode::Shared);
    shard.finishes(15, Ending::Aborted);
    shard.control.advance(&mut shard.store, Age(20));
    shard.check();
    for key in [&b"never"[..], b"absent"] {
        assert!(RecordStore::find(&shard.store, Db(0), key, KeyHash::of_record(Db(0), key)).is_none());
    }
}

/// Scenario 21 of regions.md, within a region: the record is as it was, and is another one.
#[test]
fn a_record_that_is_deleted_and_made_again_is_another_one() {
    let mut shard = Shard::new();
    shard.commits(1, 2, &[b"x"]);
    shard.enter(3, Reads::Newest);
    shard.granted(3, b"x", Mode::Shared);
    for (n, stamp, content) in [(4, 10, Cell::ABSENT), (11, 12, cell("1"))] {
        shard.granted(n, b"x", Mode::Blind);
        assert!(shard.validates(n, stamp));
        let record = shard.record(b"x");
        shard.control.install(&mut shard.store, record, content, &Commitment::at(Age(stamp)), Gsn(stamp));
        shard.finishes(n, Ending::Committed(Age(stamp)));
    }
    assert!(!shard.validates(3, 14));
}

#[test]
fn who_reads_the_whole_table_misses_no_write() {
    let mut shard = Shard::new();
    let table = Target::Table;
    shard.enter(1, Reads::Newest);
    assert_eq!(shard.ask(1, 1, table, Mode::Shared), Verdict::Granted);
    shard.enter(8, Reads::Fixed);
    shard.prepares(2, 10, &[b"new"]);
    assert!(!shard.validates(1, 12), "2 writes, whatever it is");
    assert_eq!(shard.ask(8, 8, table, Mode::Shared), Verdict::Granted, "2 is later");
    for n in [3, 11] {
        shard.enter(n, if n == 3 { Reads::Newest } else { Reads::Fixed });
        assert_eq!(shard.ask(n, n, table, Mode::Shared), Verdict::Waits, "{n}");
    }
    assert_eq!(shard.installs(2, 10, &[b"new"]).granted, [3, 11]);
    assert!(!shard.validates(1, 12), "what 2 has written was missed");
    assert_eq!(
        (shard.control.replaced((attempt(8), Age(8))).len(), shard.sees(11, b"new")),
        (1, "2".to_owned())
    );
    assert!(shard.validates(3, 12));
    // The newest of all records is not shown beside an overwritten one.
    shard.enter(4, Reads::Newest);
    shard.granted(4, b"new", Mode::Shared);
    shard.commits(5, 20, &[b"new"]);
    assert_eq!(shard.ask(4, 4, table, Mode::Shared), Verdict::Refused);
}

#[test]
fn a_change_of_whole_databases_meets_everything() {
    let mut shard = Shard::new();
    shard.commits(1, 2, &[b"x"]);
    for n in [3, 4, 30] {
        shard.enter(n, if n == 3 { Reads::Newest } else { Reads::Fixed });
    }
    shard.granted(3, b"x", Mode::Shared);
    shard.granted(4, b"x", Mode::Shared);
    shard.enter(5, Reads::Newest);
    assert_eq!(shard.ask(5, 5, Target::Table, Mode::Exclusive), Verdict::Granted);
    shard.prepares(6, 10, &[b"y"]);
    assert!(!shard.validates(5, 12), "6 writes");
    shard.finishes(5, Ending::Aborted);
    shard.installs(6, 10, &[b"y"]);
    shard.enter(7, Reads::Newest);
    assert_eq!(shard.ask(7, 7, Target::Table, Mode::Exclusive), Verdict::Granted);
    assert!(shard.validates(7, 20));
    assert_eq!(shard.access(8, b"z", Mode::Shared), Verdict::Waits);
    assert_eq!(shard.access(30, b"x", Mode::Shared), Verdict::Waits);
    shard.granted(4, b"y", Mode::Shared);
    assert!(!shard.validates(3, 22), "its record may stand in another database then");
    let with = &Commitment::at(Age(20));
    shard.control.change(&mut shard.store, TableChange::Clear(None), with, Gsn(9));
    let over = shard.finishes(7, Ending::Committed(Age(20)));
    assert_eq!((over.granted, over.refused), (vec![], vec![8, 30]), "they came before");
    assert_eq!(shard.access(4, b"x", Mode::Shared), Verdict::Refused, "and 4 sees what is gone");
    for n in [3, 4, 8, 30] {
        shard.finishes(n, Ending::Aborted);
    }
    shard.enter(15, Reads::Fixed);
    assert_eq!(shard.access(15, b"x", Mode::Shared), Verdict::Refused, "so would 15");
    shard.finishes(15, Ending::Aborted);
    shard.enter(31, Reads::Fixed);
    shard.granted(31, b"x", Mode::Shared);
    assert_eq!((shard.sees(31, b"x"), shard.control.begins(attempt(31))), (String::new(), Age(31)));
    shard.enter(16, Reads::Newest);
    shard.granted(16, b"x", Mode::Exclusive);
    assert_eq!(shard.control.begins(attempt(16)), Age(20));
    // Found by a seed of the simulator: what is there after a change begins with it, and stays so when it is overwritten.
    shard.granted(32, b"w", Mode::Shared);
    assert!(shard.validates(32, 34));
    shard.commits(33, 36, &[b"w"]);
    // It is shown to no stamp before the change, though its record had begun before that.
    shard.finishes(16, Ending::Aborted);
    shard.commits(17, 38, &[b"x"]);
    for n in [14, 18] {
        shard.enter(n, Reads::Fixed);
        assert_eq!(shard.access(n, if n == 14 { b"w" } else { b"x" }, Mode::Shared), Verdict::Refused, "{n}");
        shard.finishes(n, Ending::Aborted);
    }
    shard.enter(35, Reads::Fixed);
    shard.granted(35, b"x", Mode::Shared);
    assert_eq!(shard.sees(35, b"x"), "", "as it was between the change and the write");
}

#[test]
fn the_gate_lets_a_reader_of_the_table_through() {
    let mut shard = Shard::new();
    let mut writer = 100;
    // Each time that it has read the table a record is written, until writes are refused.
    let tries = (0..50).find(|_| {
        shard.enter(1, Reads::Newest);
        assert_eq!(shard.ask(1, 1, Target::Table, Mode::Shared), Verdict::Granted);
        writer += 2;
        let is_let_in = shard.access(writer, b"x", Mode::Blind) == Verdict::Granted;
        if is_let_in {
            assert!(shard.validates(writer, writer));
            shard.installs(writer, writer, &[b"x"]);
        } else {
            shard.finishes(writer, Ending::Aborted);
        }
        let is_validated = shard.validates(1, writer + 1);
        shard.finishes(1, if is_validated { Ending::Committed(Age(writer + 1)) } else { Ending::Aborted });
        is_validated
    });
    assert_eq!(tries, Some(4));
}

#[test]
fn who_has_no_effect_keeps_nobody_from_what_it_has_written() {
    let mut shard = Shard::new();
    shard.granted(1, b"x", Mode::Exclusive);
    shard.granted(2, b"x", Mode::Shared);
    shard.hands_over(1, &[write(Db(0), b"x", "1")]);
    shard.control.forgo(attempt(1));
    assert!(shard.validates(1, 10));
    shard.enter(20, Reads::Fixed);
    shard.enter(21, Reads::Newest);
    for n in [20, 21] {
        shard.granted(n, b"x", Mode::Shared);
        assert_eq!(shard.sees(n, b"x"), "", "{n}");
    }
    assert!(shard.validates(2, 22) && !shard.control.stands_on_others(attempt(21)));
    assert_eq!(shard.access(23, b"x", Mode::Exclusive), Verdict::Waits, "its end is near");
    assert_eq!(shard.finishes(1, Ending::Committed(Age(10))).granted, [23]);
}

#[test]
fn a_child_is_seen_as_its_parent_is() {
    let mut shard = Shard::new();
    let child = child_key(b"p", b"c");
    let db = Db(0).children();
    let see = |shard: &mut Shard, n| {
        let record = shard.store.find_or_reserve(db, &child, KeyHash::of_record(db, &child));
        let seen = shard.control.seen(&shard.store, record, (attempt(n), Age(n)));
        seen.map_or(shard.store.cell(record), |(cell, _)| cell).value.is_some()
    };
    shard.enter(1, Reads::Newest);
    shard.granted(1, b"p", Mode::Exclusive);
    shard.hands_over(1, &[Write::new(&Placement::NONE, db, child.to_vec(), cell("c"))]);
    assert!(shard.validates(1, 10));
    shard.enter(2, Reads::Newest);
    shard.enter(5, Reads::Fixed);
    shard.granted(2, b"p", Mode::Shared);
    shard.granted(5, b"p", Mode::Shared);
    assert_eq!((see(&mut shard, 2), see(&mut shard, 5)), (true, false));
    let record = shard.store.find_or_reserve(db, &child, KeyHash::of_record(db, &child));
    shard.control.install(&mut shard.store, record, cell("c"), &Commitment::at(Age(10)), Gsn(1));
    // As the participant does.
    assert!(shard.control.versions_parents());
    shard.installs(1, 10, &[b"p"]);
    assert_eq!((see(&mut shard, 2), see(&mut shard, 5)), (true, false));
    assert!(shard.validates(2, 12));
}

#[test]
fn versions_are_kept_for_as_long_as_a_stamp_may_see_them() {
    let mut shard = Shard::new();
    for (n, stamp) in [(1, 10), (11, 20), (21, 30)] {
        shard.commits(n, stamp, &[b"x"]);
    }
    for n in [15, 25] {
        shard.enter(n, Reads::Fixed);
    }
    assert!(shard.control.remembers());
    shard.control.advance(&mut shard.store, Age(22));
    shard.check();
    shard.granted(25, b"x", Mode::Shared);
    assert_eq!(shard.sees(25, b"x"), "11");
    assert_eq!(shard.access(15, b"x", Mode::Shared), Verdict::Refused, "what it would see is gone");
    shard.finishes(15, Ending::Aborted);
    shard.control.advance(&mut shard.store, Age(31));
    shard.finishes(25, Ending::Aborted);
    assert_eq!((shard.control.records.len(), shard.control.remembers()), (0, false));
    shard.enter(15, Reads::Fixed);
    assert_eq!(shard.access(15, b"x", Mode::Shared), Verdict::Refused, "nothing is remembered of x");
    // Bug `show-newest`.
    let mut shard = Shard::planting(Bugs::NONE.with(Bug::ShowNewest));
    shard.enter(15, Reads::Fixed);
    shard.commits(1, 20, &[b"x"]);
    shard.control.advance(&mut shard.store, Age(31));
    shard.granted(15, b"x", Mode::Shared);
}

#[test]
fn versions_go_with_the_last_attempt_that_may_see_them() {
    let mut shard = Shard::new();
    let mut stamp = 10;
    for oldest in [0, 12, 22, 24, 50] {
        shard.oldest = oldest;
        shard.commits(stamp - 1, stamp + 1, &[b"x"]);
        stamp += 10;
    }
    // Versions began at 11, 21, 31, 41 and 51, and the last one was validated when nobody read before 50.
    let begins: Vec<u64> =
        shard.control.records.iter().flat_map(|of| &of.marks.older).map(|older| older.begin.0).collect();
    assert_eq!((begins, shard.control.installed.len()), (vec![41], 1));
}

#[test]
fn a_hot_record_keeps_so_many_versions() {
    let mut shard = Shard::new();
    shard.enter(1, Reads::Fixed);
    for n in 1..=1_500 {
        let record = shard.record(b"x");
        let with = &Commitment::at(Age(2 * n + 2));
        shard.control.install(&mut shard.store, record, cell("x"), with, Gsn(n));
    }
    shard.check();
    assert_eq!(shard.control.records.iter().map(|of| of.marks.older.len()).sum::<usize>(), 1_024);
    assert_eq!(shard.access(1, b"x", Mode::Shared), Verdict::Refused);
}

#[test]
fn a_term_begins_with_nothing_but_what_is_promised() {
    let mut shard = Shard::new();
    shard.commits(1, 10, &[b"x"]);
    shard.granted(2, b"read", Mode::Shared);
    shard.granted(2, b"written", Mode::Exclusive);
    shard.granted(2, b"blind", Mode::Blind);
    assert!(shard.validates(2, 12));
    let mut held = Vec::new();
    shard.control.held(attempt(2), &mut |target, mode| held.push((target, mode)));
    assert_eq!(held.len(), 3);
    let name = |shard: &Shard, target| match target {
        Target::Record(record) => shard.store.key(record).1.to_vec(),
        Target::Table => panic!("it has none of the table"),
    };
    let named: Vec<(Vec<u8>, Mode)> =
        held.into_iter().map(|(target, mode)| (name(&shard, target), mode)).collect();
    shard.control.clear(&mut shard.store);
    shard.check();
    assert_eq!(shard.control.records.len(), 0);
    // A member that does not serve keeps no versions.
    shard.installs(1, 11, &[b"x"]);
    assert_eq!(shard.control.records.len(), 0);
    shard.control.begin(Age(100));
    for (key, mode) in &named {
        let record = Target::Record(shard.record(key));
        shard.control.restore(&mut shard.store, attempt(2), Bounds::at(Age(12)), record, *mode);
        shard.check();
    }
    shard.enter(50, Reads::Fixed);
    assert_eq!(
        shard.access(50, b"x", Mode::Shared),
        Verdict::Refused,
        "an earlier term may have let it miss anything"
    );
    shard.finishes(50, Ending::Aborted);
    for n in [101, 102] {
        shard.enter(n, if n == 101 { Reads::Fixed } else { Reads::Newest });
        assert_eq!(shard.access(n, b"written", Mode::Shared), Verdict::Waits);
    }
    assert_eq!(shard.installs(2, 12, &[b"written", b"blind"]).granted, [101, 102]);
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

/// The violation that a change of the state makes: 1 is validated and has read r and written x, from which 3 has read, and for which 2 waits.
fn broken(change: impl FnOnce(&mut Shard, RecordId)) -> String {
    let mut shard = Shard::new();
    shard.commits(9, 9, &[b"x"]);
    shard.granted(1, b"r", Mode::Shared);
    shard.prepares(1, 10, &[b"x"]);
    shard.enter(3, Reads::Newest);
    shard.granted(3, b"x", Mode::Shared);
    assert_eq!(shard.access(2, b"x", Mode::Exclusive), Verdict::Waits);
    let record = shard.record(b"x");
    change(&mut shard, record);
    shard.control.check(&shard.store, &|_| true).unwrap_err()
}

#[test]
fn a_broken_state_is_found() {
    let marks = |change: fn(&mut Marks)| {
        broken(|shard, record| change(shard.control.records.get_mut(&shard.store, record).unwrap()))
    };
    let kept = |n: u64, change: fn(&mut Kept)| {
        broken(|shard, _| {
            let at = shard.control.attempts.find(attempt(n)).unwrap();
            change(&mut shard.control.attempts[at].kept);
        })
    };
    let others = "and attempts know of";
    let reports = [
        (marks(|marks| marks.holders += 1), others),
        (marks(|marks| marks.claim = Some(7)), others),
        (marks(|marks| marks.claim = None), "wait for nobody"),
        (marks(|marks| marks.next = None), others),
        (marks(|marks| marks.queued += 1), others),
        (marks(|marks| marks.begin = Age(0)), "has read another version"),
        (marks(|marks| marks.older[0].begin = Age(9)), "do not begin one after the other"),
        (broken(|shard, record| shard.store.set_lock(record, 0)), "has marks and the lock word"),
        (broken(|shard, _| shard.control.table.writing.clear()), "and the table has"),
        (broken(|shard, _| shard.control.latest = Age(1)), "and the table has"),
        (broken(|shard, _| shard.control.waiting.add(UNKNOWN, Target::Table)), "knows nothing of it"),
        (kept(3, |kept| kept.stands_on.clear()), "does not stand on it"),
        (kept(1, |kept| kept.carries.clear()), "which carries it not"),
        (kept(3, |kept| kept.at = Age(3)), "which carries it not"),
        (
            broken(|shard, _| {
                let r = shard.record(b"r");
                shard.control.records.get_mut(&shard.store, r).unwrap().begin = Age(9);
            }),
            "has read another version",
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
fn a_claim_that_stays_is_found() {
    let mut shard = Shard::planting(Bugs::NONE.with(Bug::LeaveLock));
    shard.granted(7, b"x", Mode::Shared);
    let found = left_behind(&mut shard.control, &mut shard.store);
    assert!(found.contains("and attempts know of"), "{found}");
}
