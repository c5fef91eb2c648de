//! The view that the clients of a node have seen, and which readers are over (sheet fwkv.md, 4.1, 4.5 and E8; commit.md, R-TOKEN).
//!
//! A connection sees what its node's clients have seen: whatever takes its next request follows that. So the order of a session holds, and
//! requests need not say what each connection has seen of it.
//!
//! An attempt that only reads is named in the sets of writes that it must not see. It is over for a partition once its log has it that the
//! home has said so ([`Readers`]), or is led in a later term: what it had read in the earlier one is not confirmed any more. So members
//! of a partition agree on it.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use ordain_model::{PartitionId, codec};
use ordain_role::{Bug, Bugs};

use crate::concurrency::Snapshots;
use crate::entry::Commitment;
use crate::ids::{AttemptId, Lead, Term};
use crate::message::{Accessed, Protocol};
use crate::view::{Seen, Vector, View};

/// A home's word of its readers: transactions with these numbers may be under way in its term, and all that have a lower number than `next`
/// and are not among them are over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readers {
    next: u64,
    /// In ascending order, each lower than `next`.
    live: Vec<u64>,
}

codec!(struct Readers { next, live });

impl From<u64> for Readers {
    /// Readers with lower numbers are over.
    fn from(next: u64) -> Readers {
        Readers { next, live: Vec::new() }
    }
}

impl Readers {
    /// The most readers that a word names. From the next one on all may be under way.
    pub const MAX: usize = 1 << 10;

    /// The word that transactions of `live` are under way, and that the next to begin has the number `next`.
    pub fn among(live: &BTreeSet<u64>, next: u64) -> Readers {
        Readers {
            next: live.iter().nth(Readers::MAX).copied().unwrap_or(next),
            live: live.iter().take(Readers::MAX).copied().collect(),
        }
    }

    /// True if a home writes such a word: it comes from another node, and goes into the log.
    pub fn is_sound(&self) -> bool {
        self.live.len() <= Readers::MAX
            && self.live.is_sorted_by(|a, b| a < b)
            && self.live.last().is_none_or(|last| *last < self.next)
    }

    /// True if a reader may be under way.
    #[inline]
    fn has(&self, number: u64) -> bool {
        number >= self.next || !self.live.is_empty() && self.live.binary_search(&number).is_ok()
    }

    /// Adds what another word of the same term says: whoever is over by one of them is over.
    pub fn join(&mut self, other: &Readers) {
        let earlier = match other.next > self.next {
            true => &std::mem::replace(self, other.clone()),
            false => other,
        };
        self.live.retain(|number| earlier.has(*number));
    }
}

/// The readers that may be under way: of each home those of its last word, in its latest term.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Living(BTreeMap<PartitionId, (Term, Readers)>);

codec!(struct Living(_));

impl Living {
    /// Attempts of a home before this term are over, and those in it that its word says; answers whether that is news.
    pub fn outlive(&mut self, home: Lead, readers: impl Into<Readers>) -> bool {
        let readers = readers.into();
        let (term, known) = self.0.entry(home.partition).or_default();
        let was = (*term, known.next, known.live.len());
        match home.term.cmp(term) {
            Ordering::Less => {}
            Ordering::Equal => known.join(&readers),
            Ordering::Greater => (*term, *known) = (home.term, readers),
        }
        was != (*term, known.next, known.live.len())
    }

    /// True if an attempt may be under way.
    #[inline]
    pub fn has(&self, who: AttemptId) -> bool {
        let home = who.home();
        let known = self.0.get(&home.partition);
        known.is_none_or(|(term, readers)| {
            home.term > *term || home.term == *term && readers.has(who.transaction.number)
        })
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Known {
    seen: Seen,
    /// Planted, FORK-ALONE (sheet E10): nothing of it is kept.
    forgets: bool,
    /// The decisions that messages have told of, if attempts are to begin with them (`known` of sheet fwkv.md, 4.10).
    told: Vector,
    tells: bool,
}

impl Known {
    /// Nothing was seen yet; with bugs that a test has planted.
    pub fn planting(bugs: Bugs) -> Known {
        Known { forgets: bugs.has(Bug::ForgetSeen), ..Known::default() }
    }

    /// The same; if asked for, attempts begin with all that messages have told of.
    #[must_use]
    pub fn telling(self, is_asked_for: bool) -> Known {
        Known { tells: is_asked_for, ..self }
    }

    /// The decisions that messages have told of; none unless attempts are to begin with them.
    pub const fn told(&self) -> &Vector {
        &self.told
    }

    /// A message of another partition has come. What it names is decided, so a read that is after it finds it installed or locked.
    pub fn tell(&mut self, own: PartitionId, from: Lead, message: &Protocol, partitions: u16) {
        match message {
            _ if !self.tells => {}
            Protocol::Announce(_, number, _) => self.told.raise(from.partition, *number),
            Protocol::Accessed(Accessed { view, .. })
            | Protocol::Vote(_, _, view)
            | Protocol::Decide(_, Some(Commitment { view, .. }))
                if view.fits(partitions) =>
            {
                self.told.join(&view.seen().vector.clone().without(own));
            }
            _ => {}
        }
    }

    /// The view that clients of this node have seen.
    pub const fn seen(&self) -> &Seen {
        &self.seen
    }

    /// The view that goes along with requests that the node passes on, and with its answers.
    pub fn view(&self, snapshots: Snapshots) -> View {
        match snapshots {
            Snapshots::Never => View::NONE,
            _ => View::of(self.seen.clone()),
        }
    }

    /// Clients of this node see this from now on.
    pub fn see(&mut self, view: &View, living: &Living) {
        if view.is_some() && !self.forgets {
            self.seen.join(view.seen());
            self.outlive(living);
        }
    }

    /// Some readers are over.
    pub fn outlive(&mut self, living: &Living) {
        self.seen.anti.retain(|who| living.has(who));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TransactionId;
    use crate::view::Anti;

    const HOME: PartitionId = PartitionId(1);

    fn lead(term: u64) -> Lead {
        Lead { partition: HOME, term: Term(term) }
    }

    fn who(term: u64, number: u64) -> AttemptId {
        AttemptId { transaction: TransactionId { home: lead(term), number }, attempt: 1 }
    }

    #[test]
    fn readers_are_over_by_their_homes_word_or_its_next_term() {
        let mut living = Living::default();
        assert!(living.has(who(1, 1)), "nothing was heard");
        assert!(living.outlive(lead(2), 5));
        assert!(!living.has(who(1, 9)) && !living.has(who(2, 4)));
        assert!(living.has(who(2, 5)) && living.has(who(3, 1)));
        assert!(!living.outlive(lead(2), 4) && !living.outlive(lead(1), 9));
        assert!(living.outlive(lead(3), 0));
        assert!(!living.has(who(2, 5)) && living.has(who(3, 0)));
    }

    /// A reader that is over by one word is over, in whatever order the words come.
    #[test]
    fn words_of_one_term_are_joined() {
        let words: Vec<Readers> = vec![
            Readers::from(0),
            Readers::from(2),
            Readers::from(5),
            Readers { next: 4, live: vec![1, 3] },
            Readers { next: 6, live: vec![3, 4] },
            Readers { next: 6, live: vec![4, 5] },
        ];
        for first in &words {
            for second in &words {
                let mut both = first.clone();
                both.join(second);
                assert!(both.is_sound());
                for number in 0..8 {
                    let expected = first.has(number) && second.has(number);
                    assert_eq!(both.has(number), expected, "{number} of {first:?} and {second:?}");
                }
                let (mut living, mut other) = (Living::default(), Living::default());
                [first, second].iter().for_each(|word| _ = living.outlive(lead(1), (*word).clone()));
                [second, first].iter().for_each(|word| _ = other.outlive(lead(1), (*word).clone()));
                assert_eq!(living, other);
            }
        }
    }

    #[test]
    fn a_word_names_so_many_and_is_held_to_its_order() {
        let all: BTreeSet<u64> = (10..5_000).collect();
        let word = Readers::among(&all, 6_000);
        assert_eq!((word.live.len(), word.next), (Readers::MAX, 10 + Readers::MAX as u64));
        assert!(word.is_sound() && word.has(4_999) && word.has(10) && !word.has(9));
        assert_eq!(Readers::among(&[3].into(), 9), Readers { next: 9, live: vec![3] });
        let many: Vec<u64> = (0..=Readers::MAX as u64).collect();
        for live in [vec![4, 3], vec![3, 3], vec![9_999], many] {
            assert!(!Readers { next: 9_999, live }.is_sound());
        }
    }

    /// Option `fresh-begin`: numbers of others count as messages tell of them, and this home's are those of its log.
    #[test]
    fn what_messages_tell_of_is_kept_if_it_is_asked_for() {
        let view = View::of(Seen::NOTHING).decided(HOME, 7).decided(PartitionId(0), 9);
        let vote = Protocol::Vote(who(2, 3), None, view);
        let told = |is_asked_for| {
            let mut known = Known::default().telling(is_asked_for);
            known.tell(PartitionId(0), lead(2), &vote, 2);
            known.tell(PartitionId(0), lead(2), &Protocol::Announce(2, 8, Readers::default()), 2);
            known.tell(PartitionId(0), lead(2), &Protocol::Announce(2, 5, Readers::default()), 2);
            known.told().clone()
        };
        assert_eq!(told(false), Vector::NOTHING);
        let mut expected = Vector::default();
        expected.raise(HOME, 8);
        assert_eq!(told(true), expected);
        // A vector of more partitions than there are would have every attempt refused.
        let mut known = Known::default().telling(true);
        known.tell(PartitionId(0), lead(2), &vote, 1);
        assert_eq!(known.told(), &Vector::NOTHING);
    }

    /// Sheet fwkv.md, scenario 10: the word that a reader is over comes before the write that names it.
    #[test]
    fn a_reader_that_is_over_is_not_taken_in_again() {
        let (mut known, mut living) = (Known::default(), Living::default());
        let view = |numbers: [u64; 2]| {
            let mut anti = Anti::default();
            numbers.into_iter().for_each(|number| anti.add(who(2, number)));
            View::of(Seen { anti, ..Seen::NOTHING }).decided(HOME, numbers[0])
        };
        known.see(&view([3, 7]), &living);
        assert_eq!((known.seen().anti.len(), known.seen().vector.of(HOME)), (2, 3));
        assert!(living.outlive(lead(2), 6));
        known.see(&view([4, 5]), &living);
        assert_eq!((known.seen().anti.len(), known.seen().vector.of(HOME)), (1, 4));
        assert!(living.outlive(lead(2), 8));
        known.outlive(&living);
        assert!(known.seen().anti.is_empty(), "though clients see nothing more");
    }
}
