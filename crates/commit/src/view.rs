//! Views: what a transaction has seen of all partitions, as engines with snapshots name it (sheet fwkv.md, 1 and 2).
//!
//! A home numbers its decisions by their places in its log. So no number is shown that is not agreed on, and none is given twice
//! (commit.md, schedule 14). A *vector* has one such number of each partition, and a version carries the vector of the transaction that has written it:
//! the decisions that it follows, its own included. A *view* is a vector with anti-dependencies, and is empty where an engine has no snapshots.

use ordain_model::wire::{Codec, Reader};
use ordain_model::{PartitionId, codec, compact};
use smallvec::SmallVec;

use crate::ids::{AttemptId, Lead, TransactionId};
use crate::known::Living;

/// A number for each partition: the place of a decision in its log. Numbers that are missing at the end are 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vector(SmallVec<[u64; 4]>);

impl Vector {
    /// The vector that follows nothing.
    pub const NOTHING: Vector = Vector(SmallVec::new_const());

    /// The number of a partition.
    #[inline]
    pub fn of(&self, partition: PartitionId) -> u64 {
        self.0.get(usize::from(partition.0)).copied().unwrap_or(0)
    }

    /// Raises the number of a partition, if it is lower.
    pub fn raise(&mut self, partition: PartitionId, number: u64) {
        let at = usize::from(partition.0);
        if self.of(partition) < number {
            if self.0.len() <= at {
                self.0.resize(at + 1, 0);
            }
            self.0[at] = number;
        }
    }

    /// Raises each number to that of another vector, if it is lower.
    #[inline]
    pub fn join(&mut self, other: &Vector) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// The same without the number of a partition.
    #[must_use]
    pub fn without(mut self, partition: PartitionId) -> Vector {
        self.0.get_mut(usize::from(partition.0)).into_iter().for_each(|number| *number = 0);
        self.trimmed()
    }

    /// One vector has one form: without numbers that are 0 at its end.
    fn trimmed(mut self) -> Vector {
        let used = self.0.iter().rposition(|number| *number > 0).map_or(0, |last| last + 1);
        self.0.truncate(used);
        self
    }

    /// True if no number is lower than that of another vector.
    #[inline]
    pub fn covers(&self, other: &Vector) -> bool {
        other.0.len() <= self.0.len() && other.0.iter().zip(&self.0).all(|(theirs, mine)| theirs <= mine)
    }

    /// True if it has no number of a partition beyond so many.
    pub fn fits(&self, partitions: u16) -> bool {
        self.0.len() <= usize::from(partitions)
    }
}

impl Codec for Vector {
    const LEAST: usize = 2;

    fn encode(&self, out: &mut Vec<u8>) {
        (self.0.len() as u16).encode(out);
        u64::encode_all(&self.0, out);
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Vector> {
        let count = u16::decode(bytes)?;
        Some(Vector(u64::decode_all(usize::from(count), bytes)?.into()).trimmed())
    }
}

/// Attempts that only read and must not see a write: they have read something that it follows as it was before. In ascending order, one of each
/// transaction: when its next attempt begins the one before is over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Anti(Vec<AttemptId>);

impl Anti {
    /// True if an attempt is in it.
    #[inline]
    pub fn has(&self, who: AttemptId) -> bool {
        !self.0.is_empty() && self.0.binary_search(&who).is_ok()
    }

    /// Adds an attempt.
    pub fn add(&mut self, who: AttemptId) {
        match self.0.binary_search_by_key(&who.transaction, |other| other.transaction) {
            Ok(at) => self.0[at] = who.max(self.0[at]),
            Err(at) => self.0.insert(at, who),
        }
    }

    /// Adds those of another set.
    #[inline]
    pub fn join(&mut self, other: &Anti) {
        if self.0.is_empty() {
            self.0.clone_from(&other.0);
        } else {
            other.0.iter().for_each(|who| self.add(*who));
        }
    }

    /// Drops those that are over.
    #[inline]
    pub fn retain(&mut self, is_meant: impl Fn(AttemptId) -> bool) {
        self.0.retain(|who| is_meant(*who));
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of them.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Visits them in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = AttemptId> {
        self.0.iter().copied()
    }
}

/// A set may be long and stands in each message about its writer, so its bytes are few: the claim of each home once, and of each transaction
/// how much its number is above the one before, and the attempt, in as many bytes as they need.
impl Codec for Anti {
    const LEAST: usize = 1;

    fn encode(&self, out: &mut Vec<u8>) {
        let homes = || self.0.chunk_by(|a, b| a.home() == b.home());
        compact::number(out, homes().count() as u64);
        for its in homes() {
            its[0].home().encode(out);
            compact::number(out, its.len() as u64);
            let mut last = 0;
            for who in its {
                compact::number(out, who.transaction.number - last);
                compact::number(out, who.attempt.into());
                last = who.transaction.number;
            }
        }
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Anti> {
        let mut anti = Anti::default();
        for _ in 0..compact::read_number(bytes)? {
            let home = Lead::decode(bytes)?;
            let mut number = 0u64;
            for _ in 0..compact::read_number(bytes)? {
                number = number.checked_add(compact::read_number(bytes)?)?;
                let attempt = u32::try_from(compact::read_number(bytes)?).ok()?;
                let who = AttemptId { transaction: TransactionId { home, number }, attempt };
                // In another order each would have to be put before others, however many there are.
                if anti.0.last().is_some_and(|last| last.transaction >= who.transaction) {
                    return None;
                }
                anti.0.push(who);
            }
        }
        Some(anti)
    }
}

/// A vector with anti-dependencies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The decisions that were seen, or are followed.
    pub vector: Vector,
    /// The readers that must not see what follows.
    pub anti: Anti,
}

codec!(struct Seen { vector, anti });

impl Seen {
    /// Nothing.
    pub const NOTHING: Seen = Seen { vector: Vector::NOTHING, anti: Anti(Vec::new()) };

    /// Appends its bytes in the log.
    pub(crate) fn put_compact(&self, out: &mut Vec<u8>) {
        let Seen { vector, anti } = self;
        compact::number(out, vector.0.len() as u64);
        vector.0.iter().for_each(|number| compact::number(out, *number));
        anti.encode(out);
    }

    /// Reads its bytes in the log.
    pub(crate) fn read_compact(bytes: &mut Reader<'_>) -> Option<Seen> {
        let count = u16::try_from(compact::read_number(bytes)?).ok()?;
        let numbers = compact::read_items(bytes, usize::from(count), compact::read_number)?;
        Some(Seen { vector: Vector(numbers.into()).trimmed(), anti: Anti::decode(bytes)? })
    }

    /// Adds what another has.
    pub fn join(&mut self, other: &Seen) {
        self.vector.join(&other.vector);
        self.anti.join(&other.anti);
    }
}

/// The view of an attempt, in messages and entries of the log; nothing with engines that have no snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View(Option<Box<Seen>>);

codec!(struct View(_));

impl View {
    /// The view of an attempt that has no snapshot.
    pub const NONE: View = View(None);

    /// The view that has this.
    pub fn of(seen: Seen) -> View {
        View(Some(Box::new(seen)))
    }

    /// True if the attempt has a snapshot.
    pub const fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// The vector and the anti-dependencies; nothing if the attempt has no snapshot.
    pub fn seen(&self) -> &Seen {
        static NOTHING: Seen = Seen::NOTHING;
        self.0.as_deref().unwrap_or(&NOTHING)
    }

    /// Adds what another one has.
    pub fn join(&mut self, other: &View) {
        if let Some(other) = &other.0 {
            self.0.get_or_insert_default().join(other);
        }
    }

    /// The view of an attempt that was decided by its home with this number, if it has one.
    #[must_use]
    pub fn decided(mut self, home: PartitionId, number: u64) -> View {
        self.0.iter_mut().for_each(|seen| seen.vector.raise(home, number));
        self
    }

    /// The view without the anti-dependencies of readers that are over.
    #[must_use]
    pub fn living(&self, living: &Living) -> View {
        let mut view = self.clone();
        view.0.iter_mut().for_each(|seen| seen.anti.retain(|who| living.has(who)));
        view
    }

    /// True if it names no partition beyond so many: it may come from another node.
    pub fn fits(&self, partitions: u16) -> bool {
        self.seen().vector.fits(partitions)
    }

    /// About how many bytes it has.
    pub fn weight(&self) -> usize {
        self.0.as_ref().map_or(1, |seen| 8 + seen.vector.0.len() * 8 + seen.anti.len() * 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Term;

    fn vector(numbers: &[u64]) -> Vector {
        let mut vector = Vector::default();
        numbers.iter().zip(0..).for_each(|(number, at)| vector.raise(PartitionId(at), *number));
        vector
    }

    fn who(number: u64) -> AttemptId {
        AttemptId { transaction: TransactionId::of(number), attempt: 1 }
    }

    #[test]
    fn vectors_are_ordered_entry_by_entry() {
        let (low, other, high) = (vector(&[1, 5]), vector(&[2, 4]), vector(&[2, 5, 1]));
        assert!(!low.covers(&other) && !other.covers(&low));
        assert!(high.covers(&low) && high.covers(&other) && !low.covers(&high) && low.covers(&low));
        assert!(low.covers(&Vector::NOTHING) && !Vector::NOTHING.covers(&low));
        let mut both = low.clone();
        both.join(&other);
        assert_eq!(both, vector(&[2, 5]));
        both.raise(PartitionId(2), 1);
        both.raise(PartitionId(0), 1);
        assert_eq!(both, high);
        assert_eq!(
            (both.of(PartitionId(2)), both.of(PartitionId(9)), both.fits(3), both.fits(2)),
            (1, 0, true, false)
        );
    }

    #[test]
    fn a_vector_has_one_form_and_comes_back() {
        for vector in [Vector::NOTHING, vector(&[7]), vector(&[0, 0, 0, 0, 0, 3])] {
            assert_eq!(Vector::from_bytes(&vector.to_bytes()), Some(vector));
        }
        let mut bytes = Vec::new();
        2u16.encode(&mut bytes);
        u64::encode_all(&[4, 0], &mut bytes);
        assert_eq!(Vector::from_bytes(&bytes), Some(vector(&[4])));
    }

    #[test]
    fn a_view_gathers_what_was_seen() {
        let mut anti = Anti::default();
        [5, 3, 5].into_iter().for_each(|number| anti.add(who(number)));
        let mut view = View::of(Seen { vector: vector(&[1]), anti: anti.clone() });
        view.join(&View::NONE);
        let mut others = Anti::default();
        others.add(who(4));
        view.join(&View::of(Seen { vector: vector(&[0, 2]), anti: others }));
        let numbers = |anti: &Anti| anti.iter().map(|who| who.transaction.number).collect::<Vec<_>>();
        assert_eq!((&view.seen().vector, numbers(&view.seen().anti)), (&vector(&[1, 2]), vec![3, 4, 5]));
        assert!(view.seen().anti.has(who(4)) && !view.seen().anti.has(who(6)));
        assert_eq!(View::from_bytes(&view.to_bytes()), Some(view.clone()));
        assert_eq!(view.decided(PartitionId(0), 9).seen().vector, vector(&[9, 2]));
        assert_eq!((View::NONE.to_bytes().len(), View::NONE.decided(PartitionId(0), 9)), (1, View::NONE));
        // One attempt of a transaction, the last.
        anti.add(AttemptId { attempt: 7, ..who(5) });
        anti.add(AttemptId { attempt: 6, ..who(5) });
        assert!(anti.has(AttemptId { attempt: 7, ..who(5) }) && anti.len() == 2);
        anti.retain(|who| who.transaction.number > 3);
        assert_eq!((numbers(&anti), anti.len(), anti.is_empty()), (vec![5], 1, false));
    }

    #[test]
    fn a_long_set_has_few_bytes_and_comes_back() {
        let mut anti = Anti::default();
        assert_eq!(Anti::from_bytes(&anti.to_bytes()), Some(anti.clone()));
        for number in 0..300u64 {
            let home = Lead { partition: PartitionId(number as u16 % 3), term: Term(1 << (number % 3 * 20)) };
            let transaction = TransactionId { home, number: (1 << 40) + number * 5 };
            anti.add(AttemptId { transaction, attempt: number as u32 % 200 });
        }
        let bytes = anti.to_bytes();
        assert!(bytes.len() < 300 * 3 + 60, "{}", bytes.len());
        assert_eq!(Anti::from_bytes(&bytes), Some(anti));
        assert!((0..bytes.len()).all(|cut| Anti::from_bytes(&bytes[..cut]).is_none()));
        assert_eq!(Anti::from_bytes(&[0xff; 40]), None);
        // Out of order, or one twice.
        let home = |partition| Lead { partition: PartitionId(partition), term: Term(1) }.to_bytes();
        let of = |first: u16, second: u16| {
            [&[2], &home(first)[..], &[1, 5, 1], &home(second), &[1, 4, 1]].concat()
        };
        assert_eq!(Anti::from_bytes(&of(1, 2)).map(|anti| anti.len()), Some(2));
        assert_eq!((Anti::from_bytes(&of(2, 1)), Anti::from_bytes(&of(2, 2))), (None, None));
        let twice = [&[1], &home(1)[..], &[2, 5, 1, 0, 2]].concat();
        assert_eq!(Anti::from_bytes(&twice), None);
    }
}
