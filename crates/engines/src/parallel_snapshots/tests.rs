//! Tests of the control alone: its rules by the scenarios of the sheet, and the violations that its check finds.

use ordain_commit::{Lead, Term, TransactionId};
use ordain_model::{Db, KeyHash, PartitionId, Value};

use super::*;

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
        self.check();
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
