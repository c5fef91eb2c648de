//! One participant's records under a concurrency control, driven by a test in the participant's place.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ordain_commit::{
    Age, AttemptId, Bounds, CommitEngine, ConcurrencyControl, Ended, Ending, Mode, Target, TransactionId,
    Verdict,
};
use ordain_model::{Db, KeyHash, Options};
use ordain_role::Bugs;
use ordain_store::{MemoryStore, RecordId, RecordStore};

/// A first attempt.
pub(crate) fn first(transaction: u64) -> AttemptId {
    AttemptId { transaction: TransactionId::of(transaction), attempt: 1 }
}

/// The records and locks of a participant. All records are absent, so a record is there only while its lock word is not 0.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) store: MemoryStore,
    pub(crate) control: Box<dyn ConcurrencyControl>,
    /// Attempts that hold something or wait.
    live: BTreeSet<AttemptId>,
}

/// The consequences of one call, those of attempts that had to be finished for it included.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) granted: Vec<AttemptId>,
    pub(crate) refused: Vec<AttemptId>,
}

impl Shard {
    pub(crate) fn new(engine: &CommitEngine, bugs: Bugs) -> Shard {
        Shard {
            store: MemoryStore::new(0..ordain_model::key::SLOTS),
            control: (engine.control)(&Options::default(), bugs),
            live: BTreeSet::new(),
        }
    }

    /// The record of a key, which is reserved if it is not there.
    pub(crate) fn record(&mut self, key: u8) -> RecordId {
        self.store.find_or_reserve(Db(0), &[key], KeyHash::of_record(Db(0), &[key]))
    }

    /// The lock word of a key's record.
    pub(crate) fn word(&self, key: u8) -> u32 {
        let record = RecordStore::find(&self.store, Db(0), &[key], KeyHash::of_record(Db(0), &[key]));
        record.map_or(0, |record| self.store.lock(record))
    }

    /// True if a key has a record, which is an absent one.
    pub(crate) fn is_stored(&self, key: u8) -> bool {
        RecordStore::find(&self.store, Db(0), &[key], KeyHash::of_record(Db(0), &[key])).is_some()
    }

    /// Asks for an access to a key, or to the table for `None`. An attempt that is refused is not finished yet.
    pub(crate) fn access(&mut self, who: AttemptId, age: u64, key: Option<u8>, mode: Mode) -> Verdict {
        let target = key.map_or(Target::Table, |key| Target::Record(self.record(key)));
        self.live.insert(who);
        let verdict = self.control.access(&mut self.store, who, Age(age), target, mode);
        if let (Verdict::Refused, Target::Record(record)) = (verdict, target) {
            self.store.release_if_absent(record);
        }
        verdict
    }

    /// Ends an attempt that has no effect, and each that is refused by that.
    pub(crate) fn finish(&mut self, who: AttemptId) -> Outcome {
        self.end(who, Ending::Aborted)
    }

    /// Ends an attempt, and each that is refused by that.
    pub(crate) fn end(&mut self, who: AttemptId, ending: Ending) -> Outcome {
        let (mut outcome, mut over) = (Outcome::default(), VecDeque::from([(who, ending)]));
        while let Some((who, ending)) = over.pop_front() {
            let mut ended = Ended::default();
            self.live.remove(&who);
            self.control.finish(&mut self.store, who, ending, &mut ended);
            for record in ended.released {
                assert_eq!(self.store.lock(record), 0);
                self.store.release_if_absent(record);
            }
            outcome.granted.extend(ended.granted);
            outcome.refused.extend(&ended.refused);
            over.extend(ended.refused.into_iter().map(|who| (who, Ending::Aborted)));
        }
        outcome
    }

    /// Gives a promised attempt of one stamp what it held.
    pub(crate) fn restore(&mut self, who: AttemptId, age: u64, key: Option<u8>, mode: Mode) {
        self.restore_within(who, Bounds::at(Age(age)), key, mode);
    }

    /// Gives a promised attempt what it held.
    pub(crate) fn restore_within(&mut self, who: AttemptId, bounds: Bounds, key: Option<u8>, mode: Mode) {
        let target = key.map_or(Target::Table, |key| Target::Record(self.record(key)));
        self.live.insert(who);
        self.control.restore(&mut self.store, who, bounds, target, mode);
    }

    pub(crate) fn clear(&mut self) {
        self.live.clear();
        self.control.clear(&mut self.store);
    }

    /// The locks that an attempt holds, records by their keys.
    pub(crate) fn held(&self, who: AttemptId) -> BTreeMap<Option<u8>, Mode> {
        let mut held = BTreeMap::new();
        let mut last = None;
        self.control.held(who, &mut |target, mode| {
            assert!(last < Some(target), "locks are reported in order");
            last = Some(target);
            let key = match target {
                Target::Table => None,
                Target::Record(record) => Some(self.store.key(record).1[0]),
            };
            assert_eq!(held.insert(key, mode), None, "{who} {target:?}");
        });
        held
    }

    pub(crate) fn check(&self) {
        let checked = self.control.check(&self.store, &|who| self.live.contains(&who));
        assert_eq!(checked, Ok(()));
    }

    pub(crate) fn gauge(&self, name: &str) -> f64 {
        let mut found = None;
        self.control.gauges(&mut |gauge, value| {
            if gauge == name {
                found = Some(value);
            }
        });
        found.unwrap_or_else(|| panic!("no gauge {name}"))
    }
}
