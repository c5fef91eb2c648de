//! The view that the clients of a node have seen, and which readers are over (sheet fwkv.md, 4.1, 4.5 and E8; commit.md, R-TOKEN).
//!
//! A connection sees what its node's clients have seen: whatever takes its next request follows that. So the order of a session holds, and
//! requests need not say what each connection has seen of it.
//!
//! An attempt that only reads is named in the sets of writes that it must not see. It is over for a partition once its log has it that the
//! home has none with so low a number, or is led in a later term: what it had read in the earlier one is not confirmed any more. So members
//! of a partition agree on it.

use std::collections::BTreeMap;

use ordain_model::{PartitionId, codec};
use ordain_role::{Bug, Bugs};

use crate::concurrency::Snapshots;
use crate::ids::{AttemptId, Lead, Term};
use crate::view::{Seen, View};

/// The readers that may be under way: of each home those from a number on, in its latest term.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Living(BTreeMap<PartitionId, (Term, u64)>);

codec!(struct Living(_));

impl Living {
    /// Attempts of a home before this term are over, and those in it whose transactions have lower numbers; answers whether that is news.
    pub fn outlive(&mut self, home: Lead, number: u64) -> bool {
        let known = self.0.entry(home.partition).or_default();
        let is_news = *known < (home.term, number);
        *known = (home.term, number).max(*known);
        is_news
    }

    /// True if an attempt may be under way.
    #[inline]
    pub fn has(&self, who: AttemptId) -> bool {
        let home = who.home();
        let known = self.0.get(&home.partition);
        known.is_none_or(|(term, low)| {
            home.term > *term || home.term == *term && who.transaction.number >= *low
        })
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Known {
    seen: Seen,
    /// Planted, FORK-ALONE (sheet E10): nothing of it is kept.
    forgets: bool,
}

impl Known {
    /// Nothing was seen yet; with bugs that a test has planted.
    pub fn planting(bugs: Bugs) -> Known {
        Known { seen: Seen::default(), forgets: bugs.has(Bug::ForgetSeen) }
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
        assert!(!living.outlive(lead(2), 4) && !living.outlive(lead(1), 9), "it is older");
        assert!(living.outlive(lead(3), 0));
        assert!(!living.has(who(2, 5)) && living.has(who(3, 0)));
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
