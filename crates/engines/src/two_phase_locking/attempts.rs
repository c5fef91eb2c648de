//! The attempts that hold locks at a participant, each with what it holds.

use std::collections::BTreeMap;

use hashbrown::HashTable;
use ordain_commit::{Age, AttemptId, Mode, Target, TransactionId};
use ordain_role::{Bug, Bugs};
use ordain_store::RecordId;

use super::Modes;

/// Locks on records that stay in a vector. An attempt with more of them has a tree, which inserts in any order without
/// moving thousands of others.
const FEW: usize = 64;

/// The records that one attempt holds, each with its mode or with something else.
#[derive(Debug)]
pub(crate) struct Held<V = Mode> {
    few: Vec<(RecordId, V)>,
    many: BTreeMap<RecordId, V>,
}

impl<V> Default for Held<V> {
    fn default() -> Held<V> {
        Held { few: Vec::new(), many: BTreeMap::new() }
    }
}

impl<V: Copy> Held<V> {
    /// Returns what a record is held with.
    #[inline]
    pub(crate) fn get(&self, record: RecordId) -> Option<V> {
        match self.few.binary_search_by_key(&record, |(record, _)| *record) {
            Ok(at) => Some(self.few[at].1),
            Err(_) => self.many.get(&record).copied(),
        }
    }

    /// Sets what a record is held with.
    #[inline]
    pub(crate) fn insert(&mut self, record: RecordId, with: V) {
        if !self.many.is_empty() {
            self.many.insert(record, with);
            return;
        }
        match self.few.binary_search_by_key(&record, |(record, _)| *record) {
            Ok(at) => self.few[at].1 = with,
            Err(at) if self.few.len() < FEW => self.few.insert(at, (record, with)),
            Err(_) => {
                self.many.extend(self.few.drain(..));
                self.many.insert(record, with);
            }
        }
    }

    /// Forgets the last record, for a planted bug.
    fn forget_last(&mut self) {
        if self.few.pop().is_none() {
            self.many.pop_last();
        }
    }

    /// Visits the records in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (RecordId, V)> + '_ {
        let many = self.many.iter().map(|(record, with)| (*record, *with));
        self.few.iter().copied().chain(many)
    }

    /// Returns how many records are held.
    pub(crate) fn len(&self) -> usize {
        self.few.len() + self.many.len()
    }

    fn clear(&mut self) {
        self.few.clear();
        self.many.clear();
    }
}

/// Returns the mode in which an attempt has accessed a target, given that of before: who reads it and writes it blindly has both.
pub(crate) fn both(held: Option<Mode>, mode: Mode) -> Mode {
    match held {
        Some(held) if held != mode => Mode::Exclusive,
        _ => mode,
    }
}

/// An attempt with locks. `K` is what the engine keeps of it beside them.
#[derive(Debug)]
pub(crate) struct Attempt<K> {
    pub(crate) id: AttemptId,
    pub(crate) age: Age,
    /// Its lock on the table.
    pub(crate) table: Modes,
    /// Its locks on records.
    pub(crate) held: Held,
    /// The engine's own part: an access that waits, or bounds.
    pub(crate) kept: K,
}

impl<K> Attempt<K> {
    /// Reports the locks as [`held`](ordain_commit::ConcurrencyControl::held) does.
    pub(crate) fn show(&self, show: &mut dyn FnMut(Target, Mode)) {
        if let Some(mode) = self.table.whole() {
            show(Target::Table, mode);
        }
        self.held.iter().for_each(|(record, mode)| show(Target::Record(record), mode));
    }

    /// Checks that the attempt is under way, and has the lock on the table that each of its locks on records implies.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check(&self, is_live: &dyn Fn(AttemptId) -> bool) -> Result<(), String> {
        let Attempt { id, table, held, .. } = self;
        if !is_live(*id) {
            return Err(format!(
                "attempt {id} is over and holds {} locks, and {table:?} of the table",
                held.len()
            ));
        }
        match held.iter().find(|(_, mode)| !table.covers(Modes::intention(*mode))) {
            Some((record, mode)) => {
                Err(format!("attempt {id} holds {record:?} {mode:?} and only {table:?} of the table"))
            }
            None => Ok(()),
        }
    }
}

/// The attempts of a participant, found by their ids. Memory of attempts that are over is used again.
#[derive(Debug)]
pub(crate) struct Attempts<K> {
    /// Places in `all`, by the ids there.
    places: HashTable<u32>,
    all: Vec<Attempt<K>>,
    free: Vec<u32>,
}

impl<K> Default for Attempts<K> {
    fn default() -> Attempts<K> {
        Attempts { places: HashTable::new(), all: Vec::new(), free: Vec::new() }
    }
}

/// Mixes an id into a hash with a fixed seed, so that equal runs lay the table out equally.
#[inline]
fn hash_of(id: AttemptId) -> u64 {
    let TransactionId { home, number } = id.transaction;
    let claim = u64::from(home.partition.0) << 32 ^ home.term.0 << 40;
    let mixed = (number ^ claim ^ u64::from(id.attempt) << 48).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ mixed >> 32
}

impl<K: Default> Attempts<K> {
    /// Returns the place of an attempt.
    #[inline]
    pub(crate) fn find(&self, id: AttemptId) -> Option<usize> {
        let place = self.places.find(hash_of(id), |place| self.all[*place as usize].id == id)?;
        Some(*place as usize)
    }

    /// Returns the place of an attempt, which is made if it is new.
    #[inline]
    pub(crate) fn find_or_add(&mut self, id: AttemptId, age: Age) -> usize {
        if let Some(place) = self.find(id) {
            return place;
        }
        let place = match self.free.pop() {
            Some(place) => {
                let attempt = &mut self.all[place as usize];
                (attempt.id, attempt.age) = (id, age);
                place
            }
            None => {
                let held = Held::default();
                self.all.push(Attempt { id, age, table: Modes::NONE, held, kept: K::default() });
                self.all.len() as u32 - 1
            }
        };
        let Attempts { places, all, .. } = self;
        places.insert_unique(hash_of(id), place, |place| hash_of(all[*place as usize].id));
        place as usize
    }

    /// Takes note of an access. Returns the record, if the attempt had not accessed it before.
    #[inline]
    pub(crate) fn enlist(&mut self, place: usize, target: Target, mode: Mode) -> Option<RecordId> {
        let attempt = &mut self.all[place];
        match target {
            Target::Record(record) => {
                let held = attempt.held.get(record);
                attempt.held.insert(record, both(held, mode));
                held.is_none().then_some(record)
            }
            Target::Table => {
                attempt.table = attempt.table.with(Modes::of(mode));
                None
            }
        }
    }

    /// Takes an attempt out, and returns its place. What it holds can be read there until [`Attempts::reuse`].
    #[inline]
    pub(crate) fn take_out(&mut self, id: AttemptId, bugs: Bugs) -> Option<usize> {
        let Attempts { places, all, .. } = self;
        let entry = places.find_entry(hash_of(id), |place| all[*place as usize].id == id).ok()?;
        let place = entry.remove().0 as usize;
        // Planted, IDLE-CLEAN.
        if bugs.has(Bug::LeaveLock) && id.transaction.number % 31 == 7 {
            self.all[place].held.forget_last();
        }
        Some(place)
    }

    /// Gives the place of an attempt that was taken out to another one.
    #[inline]
    pub(crate) fn reuse(&mut self, place: usize) {
        let attempt = &mut self.all[place];
        attempt.table = Modes::NONE;
        attempt.held.clear();
        attempt.kept = K::default();
        self.free.push(place as u32);
    }

    /// Returns whether the attempt at a place is under way and has accessed a target.
    pub(crate) fn holds(&self, place: u32, target: Target) -> bool {
        let Some(attempt) = self.all.get(place as usize) else { return false };
        let has_accessed = match target {
            Target::Record(record) => attempt.held.get(record).is_some(),
            Target::Table => attempt.table.whole().is_some(),
        };
        has_accessed && self.find(attempt.id) == Some(place as usize)
    }

    /// Takes every attempt out.
    pub(crate) fn clear(&mut self) {
        self.places.clear();
        self.free.clear();
        self.all.clear();
    }

    /// Returns how many attempts there are.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns the places of all attempts.
    pub(crate) fn places(&self) -> impl Iterator<Item = u32> + '_ {
        self.places.iter().copied()
    }

    /// Returns the attempts, in the order of their ids.
    pub(crate) fn sorted(&self) -> Vec<&Attempt<K>> {
        let mut all: Vec<_> = self.places.iter().map(|place| &self.all[*place as usize]).collect();
        all.sort_unstable_by_key(|attempt| attempt.id);
        all
    }
}

impl<K> std::ops::Index<usize> for Attempts<K> {
    type Output = Attempt<K>;

    #[inline]
    fn index(&self, place: usize) -> &Attempt<K> {
        &self.all[place]
    }
}

impl<K> std::ops::IndexMut<usize> for Attempts<K> {
    #[inline]
    fn index_mut(&mut self, place: usize) -> &mut Attempt<K> {
        &mut self.all[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_locks_are_held_as_few_are() {
        let mut held = Held::default();
        let numbers = (0..1_000_u32).map(|n| RecordId(n * 7_919 % 1_000));
        for (n, record) in numbers.enumerate() {
            assert_eq!(held.get(record), None, "{n}");
            held.insert(record, Mode::Shared);
            held.insert(record, Mode::Exclusive);
            assert_eq!((held.get(record), held.len()), (Some(Mode::Exclusive), n + 1));
        }
        assert!(held.iter().eq((0..1_000).map(|n| (RecordId(n), Mode::Exclusive))));
        held.forget_last();
        assert_eq!((held.len(), held.get(RecordId(999))), (999, None));
        held.clear();
        assert_eq!((held.len(), held.get(RecordId(0))), (0, None));
    }
}
