//! Tests of the control alone: its rules by the scenarios of the sheet, and the violations that its check finds.

use ordain_commit::{Lead, Term, TransactionId};
use ordain_model::{Db, KeyHash, PartitionId, Value};

use super::*;
use crate::testing::UNKNOWN;

const HOME: PartitionId = PartitionId(0);

fn attempt(number: u64) -> AttemptId {
    let home = Lead { partition: HOME, term: Term(1) };
    AttemptId { transaction: TransactionId { home, number }, attempt: 1 }
}

fn vector(numbers: &[u64]) -> Vector {
    let mut vector = Vector::default();
    numbers.iter().zip(0..).for_each(|(number, at)| vector.raise(PartitionId(at), *number));
    vector
}

/// A participant, and the number of the last decision.
struct Shard {
    store: MemoryStore,
    control: ParallelSnapshots,
    number: u64,
}

impl Shard {
    fn new(takes: Snapshots) -> Shard {
        Shard::planting(takes, Bugs::NONE)
    }

    fn planting(takes: Snapshots, bugs: Bugs) -> Shard {
        let store = MemoryStore::new(0..ordain_model::key::SLOTS);
        Shard { store, control: ParallelSnapshots::new(takes, bugs), number: 0 }
    }

    fn record(&mut self, key: &[u8]) -> RecordId {
        self.store.find_or_reserve(Db(0), key, KeyHash::of_record(Db(0), key))
    }

    /// An attempt begins that only reads.
    fn reads(&mut self, n: u64) {
        self.enters(n, Reads::Newest, &[]);
    }

    /// An attempt begins that writes, with what its home has heard.
    fn writes(&mut self, n: u64, heard: &[u64]) {
        self.enters(n, Reads::First, heard);
    }

    fn enters(&mut self, n: u64, reads: Reads, heard: &[u64]) {
        self.control.enter(attempt(n), Age(n), &Snapshot { reads, vector: vector(heard) });
    }

    fn ask(&mut self, n: u64, target: Target, mode: Mode) -> Verdict {
        let verdict = self.control.access(&mut self.store, attempt(n), Age(n), target, mode);
        self.check();
        verdict
    }

    fn access(&mut self, n: u64, key: &[u8], mode: Mode) -> Verdict {
        let record = self.record(key);
        self.ask(n, Target::Record(record), mode)
    }

    /// Reads a record; answers the number of the decision that has written it, 0 if it is absent.
    fn read(&mut self, n: u64, key: &[u8]) -> u64 {
        assert_eq!(self.access(n, key, Mode::Shared), Verdict::Granted, "{n}");
        self.sees(n, key)
    }

    fn sees(&mut self, n: u64, key: &[u8]) -> u64 {
        let record = self.record(key);
        let seen = self.control.seen(&self.store, record, (attempt(n), Age(n)));
        let cell = seen.map_or(self.store.cell(record), |(cell, _)| cell);
        match &cell.value {
            Some(Value::String(bytes)) => u64::from_le_bytes(bytes.as_slice().try_into().unwrap()),
            _ => 0,
        }
    }

    fn validates(&mut self, n: u64) -> bool {
        let bounds = Bounds::at(Age(n));
        let left = self.control.validate(&mut self.store, attempt(n), bounds, bounds);
        self.check();
        !left.is_empty()
    }

    fn view(&self, n: u64) -> View {
        self.control.view(attempt(n)).1
    }

    /// A validated attempt is decided with the next number, and installs these records; answers who is granted what it waits for.
    fn installs(&mut self, n: u64, keys: &[&[u8]]) -> Vec<u64> {
        self.number += 1;
        let at = self.control.attempts.find(attempt(n)).unwrap();
        let mut seen = self.control.attempts[at].kept.seen.clone();
        seen.vector.join(&self.control.attempts[at].kept.snapshot);
        self.arrives(View::of(seen).decided(HOME, self.number), keys);
        self.finishes(n, Ending::Committed(Age(n)))
    }

    /// The log has come to a decision with this view.
    fn arrives(&mut self, view: View, keys: &[&[u8]]) {
        let number = view.seen().vector.of(HOME);
        self.control.hear(&vector(&[number]));
        let with = Commitment { view, ..Commitment::at(Age(1)) };
        for key in keys {
            let record = self.record(key);
            let value = Some(Value::String(number.to_le_bytes().to_vec()));
            self.control.install(&mut self.store, record, Cell { value, ..Cell::ABSENT }, &with, Gsn(number));
        }
    }

    fn finishes(&mut self, n: u64, ending: Ending) -> Vec<u64> {
        let mut ended = Ended::default();
        self.control.finish(&mut self.store, attempt(n), ending, &mut ended);
        self.check();
        assert_eq!(ended.refused, []);
        ended.granted.iter().map(|who| who.transaction.number).collect()
    }

    /// Another attempt writes these records, from the newest versions on.
    fn overwrites(&mut self, n: u64, keys: &[&[u8]]) {
        self.writes(n, &[self.number]);
        for key in keys {
            self.access(n, key, Mode::Exclusive);
        }
        assert!(self.validates(n), "{n}");
        self.installs(n, keys);
    }

    fn kept(&mut self, n: u64) -> &mut Kept {
        let at = self.control.attempts.find(attempt(n)).unwrap();
        &mut self.control.attempts[at].kept
    }

    fn check(&self) {
        self.control.check(&self.store, &|_| true).unwrap();
    }
}

/// Sheet fwkv.md, scenarios 1 and 3: a reader goes on with what it has seen.
#[test]
fn a_reader_that_has_missed_a_write_sees_nothing_that_follows_it() {
    let mut shard = Shard::new(Snapshots::AtFirstRead);
    shard.overwrites(1, &[b"x", b"y"]);
    shard.reads(10);
    assert_eq!(shard.read(10, b"x"), 1);
    shard.overwrites(2, &[b"x", b"y"]);
    assert_eq!((shard.read(10, b"y"), shard.read(10, b"x"), shard.sees(10, b"x")), (1, 1, 1));
    // Another one reads what is newest.
    shard.reads(11);
    assert_eq!((shard.read(11, b"x"), shard.read(11, b"y")), (2, 2));
    assert_eq!(shard.finishes(10, Ending::Committed(Age(0))), [0u64; 0]);
}

/// Sheet fwkv.md, E6: who reads what a reader must not see takes that along, over any number of steps.
#[test]
fn what_follows_a_missed_write_by_reading_it_is_missed_too() {
    let mut shard = Shard::new(Snapshots::AtFirstRead);
    shard.overwrites(1, &[b"x", b"y", b"z"]);
    shard.reads(10);
    assert_eq!(shard.read(10, b"x"), 1);
    shard.overwrites(2, &[b"x"]);
    for (n, reads, writes) in [(3, b"x", b"y"), (4, b"y", b"z")] {
        shard.writes(n, &[shard.number]);
        shard.read(n, reads);
        shard.access(n, writes, Mode::Exclusive);
        assert!(shard.validates(n) && shard.view(n).seen().anti.has(attempt(10)), "{n}");
        shard.installs(n, &[writes]);
    }
    assert_eq!((shard.read(10, b"y"), shard.read(10, b"z")), (1, 1));
    // Once it is over nothing names it any more.
    shard.finishes(10, Ending::Committed(Age(0)));
    let mut living = Living::default();
    living.outlive(attempt(10).home(), 11);
    shard.control.outlive(&living);
    shard.overwrites(5, &[b"z"]);
    let z = shard.record(b"z");
    assert!(shard.control.newest(&shard.store, z).anti.is_empty());
}

/// Sheet fwkv.md, E7: a read waits for who is validated, and sees what it leaves.
#[test]
fn a_read_waits_for_a_validated_writer() {
    let mut shard = Shard::new(Snapshots::AtFirstRead);
    shard.writes(1, &[]);
    shard.access(1, b"x", Mode::Exclusive);
    assert!(shard.validates(1) && shard.validates(1), "a question may come twice");
    shard.reads(10);
    shard.writes(2, &[]);
    assert_eq!(shard.access(10, b"x", Mode::Shared), Verdict::Waits);
    assert_eq!(shard.access(2, b"x", Mode::Exclusive), Verdict::Waits);
    shard.reads(11);
    assert_eq!(shard.access(11, b"x", Mode::Shared), Verdict::Waits);
    assert_eq!(shard.finishes(11, Ending::Aborted), [0u64; 0], "it waits no more");
    assert_eq!(shard.installs(1, &[b"x"]), [10, 2]);
    assert_eq!((shard.sees(10, b"x"), shard.sees(2, b"x")), (1, 1));
    assert!(shard.validates(2), "its first read was the newest");
    assert!(shard.view(2).seen().anti.has(attempt(10)));
}

/// Sheet fwkv.md, 4.4: a read of a snapshot passes by who is decided after it was taken, and waits for who may be decided before.
#[test]
fn a_snapshot_does_not_wait_for_later_decisions() {
    let mut shard = Shard::new(Snapshots::AtBegin);
    shard.overwrites(1, &[b"x"]);
    shard.writes(2, &[1]);
    shard.access(2, b"x", Mode::Exclusive);
    assert!(shard.validates(2));
    shard.enters(10, Reads::Fixed, &[1]);
    assert_eq!(shard.read(10, b"x"), 1);
    // The home of this one has heard of a decision that is not applied here: it may be that of 2.
    shard.enters(11, Reads::Fixed, &[2]);
    assert_eq!(shard.access(11, b"x", Mode::Shared), Verdict::Waits);
    // What would write the record waits, since it would come to nothing, and then it does.
    shard.enters(12, Reads::Fixed, &[1]);
    assert_eq!(shard.access(12, b"x", Mode::Exclusive), Verdict::Waits);
    shard.number = 1;
    let mut ended = Ended::default();
    let with = View::of(Seen { vector: vector(&[1]), ..Seen::NOTHING }).decided(HOME, 2);
    shard.arrives(with, &[b"x"]);
    shard.control.finish(&mut shard.store, attempt(2), Ending::Committed(Age(0)), &mut ended);
    assert_eq!((ended.granted, ended.refused), (vec![attempt(11)], vec![attempt(12)]));
    assert_eq!((shard.sees(10, b"x"), shard.sees(11, b"x")), (1, 2));
    assert_eq!(shard.view(12).seen().vector, Vector::NOTHING, "its home has to hear of it");
}

/// Sheet fwkv.md, E1, E2 and scenario 6: of two that read and write one record one commits.
#[test]
fn a_write_over_a_version_that_was_not_seen_is_refused() {
    for takes in [Snapshots::AtBegin, Snapshots::AtFirstRead] {
        let mut shard = Shard::new(takes);
        shard.overwrites(1, &[b"x", b"y"]);
        for n in [2, 3] {
            shard.writes(n, &[1]);
            shard.access(n, b"x", Mode::Exclusive);
        }
        assert!(shard.validates(2));
        assert!(!shard.validates(3), "2 has it");
        shard.installs(2, &[b"x"]);
        assert!(!shard.validates(3), "2 has written it");
        let learnt = if takes == Snapshots::AtFirstRead { [2] } else { [1] };
        assert_eq!(shard.view(3).seen().vector, vector(&learnt));
        // A write without a look at anything takes its snapshot now; one after a look does not (E18).
        shard.writes(4, &[]);
        shard.access(4, b"x", Mode::Blind);
        assert!(shard.validates(4) && shard.view(4).seen().vector == vector(&[2]));
        shard.finishes(4, Ending::Aborted);
        shard.enters(5, Reads::Fixed, &[1]);
        shard.read(5, b"y");
        assert_eq!(shard.access(5, b"x", Mode::Blind), Verdict::Refused);
        // It looked at something elsewhere after this participant was asked.
        shard.writes(6, &[1]);
        shard.access(6, b"x", Mode::Blind);
        shard.enters(6, Reads::Fixed, &[1]);
        assert!(!shard.validates(6));
    }
}

/// R-VERSION: what is checked has to be the newest, and stays that.
#[test]
fn what_is_checked_is_locked() {
    let mut shard = Shard::new(Snapshots::AtFirstRead);
    shard.overwrites(1, &[b"x", b"y"]);
    let x = shard.record(b"x");
    for n in [2, 3] {
        shard.writes(n, &[1]);
        shard.read(n, b"x");
        shard.control.note_check(attempt(n), x);
        shard.access(n, b"y", Mode::Blind);
    }
    shard.finishes(3, Ending::Aborted);
    assert!(shard.validates(2));
    shard.writes(4, &[1]);
    shard.access(4, b"x", Mode::Exclusive);
    assert!(!shard.validates(4), "2 stands on it");
    shard.reads(10);
    assert_eq!(shard.read(10, b"x"), 1, "readers do not wait for checks");
    let mut held = Vec::new();
    shard.control.held(attempt(2), &mut |target, mode| held.push((target, mode)));
    let y = shard.record(b"y");
    let expected = [(Target::Record(x), Mode::Shared), (Target::Record(y), Mode::Exclusive)];
    assert!(held.len() == 2 && expected.iter().all(|one| held.contains(one)), "{held:?}");
    // Its promise is kept in the next term.
    shard.control.clear(&mut shard.store);
    shard.check();
    for (target, mode) in held {
        shard.control.restore(&mut shard.store, attempt(2), Bounds::at(Age(2)), target, mode);
        shard.check();
    }
    shard.writes(5, &[1]);
    assert_eq!(shard.access(5, b"y", Mode::Exclusive), Verdict::Waits);
    shard.arrives(View::of(Seen { vector: vector(&[1]), ..Seen::NOTHING }).decided(HOME, 2), &[b"y"]);
    assert_eq!(shard.finishes(2, Ending::Committed(Age(0))), [5]);
    assert!(shard.validates(5));
}

/// Sheet fwkv.md, 4.13 and scenario 14: what is absent is read too.
#[test]
fn readers_of_what_is_absent_and_of_all_records_are_taken_along() {
    let mut shard = Shard::new(Snapshots::AtFirstRead);
    shard.overwrites(1, &[b"y"]);
    for n in [10, 11] {
        shard.reads(n);
    }
    assert_eq!(shard.read(10, b"absent"), 0);
    assert_eq!(shard.ask(11, Target::Table, Mode::Shared), Verdict::Granted);
    shard.overwrites(2, &[b"absent", b"y"]);
    for n in [10, 11] {
        assert_eq!((shard.read(n, b"y"), shard.read(n, b"absent")), (1, 0), "{n}");
    }
    let replaced = shard.control.replaced((attempt(11), Age(0)));
    assert_eq!(replaced.len(), 2);
    // A reader of all records waits for each writer, and others do not come before it for ever.
    shard.writes(3, &[2]);
    shard.access(3, b"y", Mode::Exclusive);
    assert!(shard.validates(3));
    shard.reads(12);
    assert_eq!(shard.ask(12, Target::Table, Mode::Shared), Verdict::Waits);
    assert_eq!(shard.installs(3, &[b"y"]), [12]);
    assert_eq!(shard.sees(12, b"y"), 3);
}

/// A change of whole databases ends all snapshots of before.
#[test]
fn nobody_sees_through_a_change_of_whole_databases() {
    let mut shard = Shard::new(Snapshots::AtFirstRead);
    shard.overwrites(1, &[b"x", b"y"]);
    shard.reads(10);
    shard.read(10, b"x");
    shard.enters(11, Reads::Fixed, &[1]);
    shard.writes(2, &[1]);
    assert_eq!(shard.ask(2, Target::Table, Mode::Exclusive), Verdict::Granted);
    assert!(shard.validates(2) && shard.view(2).seen().anti.has(attempt(10)));
    shard.reads(12);
    assert_eq!(shard.access(12, b"x", Mode::Shared), Verdict::Waits);
    shard.number = 2;
    let with = Commitment { view: shard.view(2).decided(HOME, 2), ..Commitment::at(Age(0)) };
    shard.control.change(&mut shard.store, TableChange::Swap(Db(0), Db(1)), &with, Gsn(2));
    shard.check();
    assert_eq!(shard.finishes(2, Ending::Committed(Age(0))), [12]);
    assert_eq!(
        shard.access(10, b"x", Mode::Shared),
        Verdict::Refused,
        "it begins anew, though it has read it"
    );
    assert_eq!(shard.access(10, b"y", Mode::Shared), Verdict::Refused);
    assert_eq!(shard.access(11, b"y", Mode::Shared), Verdict::Refused);
    shard.writes(13, &[1]);
    shard.access(13, b"x", Mode::Exclusive);
    assert!(shard.validates(13), "its first read is of after the change");
}

/// Versions are forgotten by the time of the log, unless a reader under way may need them.
#[test]
fn versions_are_forgotten_with_time() {
    let time = |millis: u64| Age::first_at(ordain_model::Millis(1_000_000 + millis));
    let mut shard = Shard::new(Snapshots::AtFirstRead);
    shard.control.advance(&mut shard.store, time(0));
    shard.overwrites(1, &[b"x", b"y"]);
    shard.reads(10);
    shard.read(10, b"x");
    shard.overwrites(2, &[b"x", b"y"]);
    shard.enters(11, Reads::Fixed, &[1]);
    assert_eq!(shard.read(11, b"y"), 1);
    shard.control.advance(&mut shard.store, time(5_000));
    assert_eq!((shard.read(10, b"x"), shard.read(11, b"y")), (1, 1));
    shard.control.advance(&mut shard.store, time(5_001));
    shard.check();
    assert_eq!(shard.read(10, b"x"), 1, "2 names it, and it is under way");
    assert_eq!(shard.access(11, b"x", Mode::Shared), Verdict::Granted, "so that is there yet");
    shard.finishes(10, Ending::Committed(Age(0)));
    shard.finishes(11, Ending::Committed(Age(0)));
    let mut living = Living::default();
    living.outlive(attempt(10).home(), 12);
    shard.control.outlive(&living);
    for millis in [20_000, 25_001] {
        shard.control.advance(&mut shard.store, time(millis));
        shard.check();
    }
    assert!(!shard.control.remembers() && shard.control.records.len() == 0);
    assert_eq!(shard.control.floor, Seen { vector: vector(&[2]), ..Seen::NOTHING });
    shard.enters(12, Reads::Fixed, &[1]);
    assert_eq!(shard.access(12, b"x", Mode::Shared), Verdict::Refused, "it is too old");
    shard.writes(13, &[1]);
    assert_eq!(shard.read(13, b"x"), 2);
    // A node that begins from a checkpoint knows as much.
    let mut begun = Shard::new(Snapshots::AtFirstRead);
    let mut followed = Seen { vector: vector(&[4]), ..Seen::NOTHING };
    followed.anti.add(attempt(20));
    begun.control.assume(&followed);
    begun.reads(20);
    assert_eq!(begun.access(20, b"x", Mode::Shared), Verdict::Refused);
    begun.reads(21);
    assert_eq!(begun.read(21, b"x"), 0);
}

/// Sheet fwkv.md, scenario 18: x and y are written each second while a reader of x sleeps for ten. Its y is there yet, however many have
/// overwritten it; what an update with an old snapshot would see is not.
#[test]
fn what_a_sleeping_reader_may_see_is_kept() {
    let time = |seconds: u64| Age::first_at(ordain_model::Millis(1_000_000 + 1_000 * seconds));
    let older = |shard: &mut Shard| {
        let y = shard.record(b"y");
        shard.control.records.get(&shard.store, y).map_or(0, |marks| marks.versions.older.len())
    };
    for takes in [Snapshots::AtFirstRead, Snapshots::AtBegin] {
        let mut shard = Shard::new(takes);
        shard.control.advance(&mut shard.store, time(0));
        shard.overwrites(1, &[b"x", b"y"]);
        let reads = if takes == Snapshots::AtBegin { Reads::Fixed } else { Reads::Newest };
        shard.enters(100, reads, &[1]);
        assert_eq!(shard.read(100, b"x"), 1);
        for second in 1..=10 {
            shard.overwrites(1 + second, &[b"x", b"y"]);
            shard.control.advance(&mut shard.store, time(second));
            shard.check();
        }
        match takes {
            Snapshots::AtFirstRead => assert_eq!((shard.read(100, b"y"), shard.sees(100, b"x")), (1, 1)),
            _ => assert_eq!(
                shard.access(100, b"y", Mode::Shared),
                Verdict::Refused,
                "never told that it is absent"
            ),
        }
        shard.finishes(100, Ending::Committed(Age(0)));
        let mut living = Living::default();
        living.outlive(attempt(100).home(), 101);
        shard.control.outlive(&living);
        // Those that another one would need come first, and go first.
        for second in [11, 17, 23] {
            shard.overwrites(100 + second, &[b"x", b"y"]);
            shard.control.advance(&mut shard.store, time(second));
            shard.check();
        }
        assert!(older(&mut shard) <= 2, "{}", older(&mut shard));
    }
}

/// Sheet fwkv.md, scenario 21: a hundred thousand readers of one record, five at a time, and an overwrite after each ten.
#[test]
fn readers_of_a_hot_record_leave_nothing() {
    let mut shard = Shard::new(Snapshots::AtFirstRead);
    let (x, mut ended, mut most) = (shard.record(b"x"), Ended::default(), 0);
    for n in 1..=100_000u64 {
        let who = attempt(1_000_000 + n);
        shard.control.enter(who, Age(n), &Snapshot { reads: Reads::Newest, vector: Vector::NOTHING });
        let verdict = shard.control.access(&mut shard.store, who, Age(n), Target::Record(x), Mode::Shared);
        assert_eq!(verdict, Verdict::Granted);
        if n > 5 {
            let over = attempt(1_000_000 + n - 5);
            shard.control.finish(&mut shard.store, over, Ending::Committed(Age(n)), &mut ended);
        }
        if n % 10 == 0 {
            // The number of its last decision is as old as the word of its readers.
            let mut living = Living::default();
            living.outlive(who.home(), 1_000_000 + n - 10);
            shard.control.outlive(&living);
            shard.control.advance(&mut shard.store, Age::first_at(ordain_model::Millis(1_000_000 + n)));
            shard.overwrites(n, &[b"x"]);
            let marks = shard.control.records.get(&shard.store, x).unwrap();
            let named = marks.versions.newest(&shard.control.floor).anti.len();
            most = most.max(named).max(marks.readers.len());
            assert!((1..=11).contains(&named), "after {n} readers {named} are named");
        }
    }
    assert!(most <= 11 && shard.control.attempts.len() <= 5);
    assert!(shard.control.check_at_rest().is_err(), "the last ones are under way");
    let mut living = Living::default();
    living.outlive(attempt(1).home(), 2_000_000);
    shard.control.outlive(&living);
    for millis in [1_200_000, 1_206_000] {
        shard.control.advance(&mut shard.store, Age::first_at(ordain_model::Millis(millis)));
    }
    (99_996..=100_000).for_each(|n| _ = shard.finishes(1_000_000 + n, Ending::Aborted));
    assert_eq!(shard.control.check_at_rest(), Ok(()));
}

/// Sheet fwkv.md, E4 and invariant I7: a snapshot that is fixed stays as it is, whatever later accesses come with.
#[test]
fn what_was_fixed_once_stays() {
    let mut shard = Shard::new(Snapshots::AtFirstRead);
    shard.overwrites(1, &[b"x", b"y"]);
    for (n, reads) in [(10, Reads::Fixed), (11, Reads::First)] {
        shard.enters(n, reads, &[1]);
        assert_eq!(shard.read(n, b"x"), 1);
    }
    shard.overwrites(2, &[b"y", b"z"]);
    for n in [10, 11] {
        for reads in [Reads::Fixed, Reads::First] {
            shard.enters(n, reads, &[2]);
            assert_eq!((shard.read(n, b"z"), shard.read(n, b"y")), (0, 1), "{n}");
        }
    }
}

/// Who finds a record expired takes along who has seen it there.
#[test]
fn an_expired_record_counts_as_removed() {
    let mut shard = Shard::new(Snapshots::AtFirstRead);
    shard.overwrites(1, &[b"x"]);
    shard.reads(10);
    shard.read(10, b"x");
    shard.writes(2, &[1]);
    shard.read(2, b"x");
    let x = Target::Record(shard.record(b"x"));
    let found = shard.control.find_expired(&mut shard.store, attempt(2), Age(2), x);
    assert_eq!(found, Verdict::Granted);
    shard.access(2, b"y", Mode::Blind);
    assert!(shard.validates(2) && shard.view(2).seen().anti.has(attempt(10)));
}

#[test]
#[should_panic(expected = "conflicts with another")]
fn a_log_that_promises_one_record_to_two_is_refused() {
    let mut shard = Shard::new(Snapshots::AtBegin);
    let record = Target::Record(shard.record(b"x"));
    for n in [1, 2] {
        shard.control.restore(&mut shard.store, attempt(n), Bounds::at(Age(n)), record, Mode::Exclusive);
    }
}

/// The violation that a change of the state makes: 1 has written x, 10 has read it, 2 is validated and writes it, and 11 waits for that.
fn broken(change: impl FnOnce(&mut Shard, RecordId)) -> String {
    let mut shard = Shard::new(Snapshots::AtFirstRead);
    shard.overwrites(1, &[b"x"]);
    shard.reads(10);
    shard.read(10, b"x");
    shard.writes(2, &[1]);
    shard.access(2, b"x", Mode::Exclusive);
    assert!(shard.validates(2));
    shard.reads(11);
    assert_eq!(shard.access(11, b"x", Mode::Shared), Verdict::Waits);
    let x = shard.record(b"x");
    change(&mut shard, x);
    shard.control.check(&shard.store, &|_| true).unwrap_err()
}

#[test]
fn a_broken_state_is_found() {
    let marks = |change: fn(&mut Marks)| {
        broken(|shard, x| change(shard.control.records.get_mut(&shard.store, x).unwrap()))
    };
    let others = "and attempts know of";
    let reports = [
        (marks(|marks| marks.holders += 1), others),
        (marks(|marks| marks.writer = None), others),
        (marks(|marks| marks.checkers += 1), others),
        (marks(|marks| marks.readers.push(marks.readers[0])), "or twice"),
        (marks(|marks| marks.queued = 0), "are queued"),
        (marks(|marks| marks.versions.older[0].seen = marks.versions.newest.clone()), "does not follow"),
        (broken(|shard, x| shard.store.set_lock(x, 0)), "has marks and the lock word"),
        (
            broken(|shard, _| shard.kept(2).seen.vector = Vector::NOTHING),
            "does not follow what it overwrites",
        ),
        (
            marks(|marks| marks.versions.newest.iter_mut().for_each(|newest| newest.anti.add(attempt(12)))),
            "does not follow what it overwrites",
        ),
        (broken(|shard, _| shard.control.waiting.add(UNKNOWN, Target::Table)), "knows nothing of it"),
    ];
    for (report, expected) in reports {
        assert!(report.contains(expected), "{report}");
    }
}

#[test]
fn a_name_that_is_left_is_found_at_rest() {
    let mut shard = Shard::new(Snapshots::AtFirstRead);
    shard.overwrites(1, &[b"x"]);
    assert_eq!(shard.control.check_at_rest(), Ok(()));
    shard.reads(10);
    shard.read(10, b"x");
    assert!(shard.control.check_at_rest().unwrap_err().contains("names readers"));
    shard.overwrites(2, &[b"x"]);
    shard.finishes(10, Ending::Committed(Age(0)));
    assert!(shard.control.check_at_rest().unwrap_err().contains("names readers"), "2 does");
    let mut shard = Shard::new(Snapshots::AtFirstRead);
    shard.control.floor.anti.add(attempt(10));
    assert!(shard.control.check_at_rest().unwrap_err().contains("are named"));
}

/// Each planted bug of the rules shows what its rule prevents.
#[test]
fn planted_bugs_break_their_rules() {
    let planting = |bug| Shard::planting(Snapshots::AtFirstRead, Bugs::NONE.with(bug));
    let mut shard = planting(Bug::GrantLockEarly);
    shard.writes(1, &[]);
    shard.access(1, b"x", Mode::Exclusive);
    assert!(shard.validates(1));
    shard.reads(10);
    assert_eq!(shard.read(10, b"x"), 0, "it does not wait");
    let mut shard = planting(Bug::ForgetReaders);
    shard.overwrites(1, &[b"x", b"y"]);
    shard.reads(10);
    shard.read(10, b"x");
    shard.overwrites(2, &[b"x"]);
    shard.writes(3, &[2]);
    shard.read(3, b"x");
    shard.access(3, b"y", Mode::Blind);
    assert!(shard.validates(3) && !shard.view(3).seen().anti.has(attempt(10)));
    let mut shard = planting(Bug::SkipValidation);
    shard.overwrites(1, &[b"x"]);
    shard.enters(2, Reads::Fixed, &[]);
    assert_eq!(shard.access(2, b"x", Mode::Blind), Verdict::Granted);
    assert!(shard.validates(2));
    let mut shard = planting(Bug::LeaveLock);
    shard.reads(7);
    assert_eq!(shard.access(7, b"x", Mode::Shared), Verdict::Granted);
    let mut ended = Ended::default();
    shard.control.finish(&mut shard.store, attempt(7), Ending::Aborted, &mut ended);
    assert!(shard.control.check(&shard.store, &|_| true).is_err());
}

/// A transaction may have one record twice among its writes: the later one counts, and nobody sees the first.
#[test]
fn a_record_that_one_transaction_writes_twice_has_one_version_of_it() {
    let mut shard = Shard::new(Snapshots::AtFirstRead);
    shard.overwrites(1, &[b"x"]);
    shard.overwrites(2, &[b"x", b"x"]);
    let x = shard.record(b"x");
    let versions = shard.control.records.get(&shard.store, x).map(|marks| &marks.versions);
    assert_eq!(versions.map(|versions| versions.older.len()), Some(2), "the absent one, and that of 1");
    shard.enters(10, Reads::Fixed, &[1]);
    assert_eq!(shard.read(10, b"x"), 1);
}
