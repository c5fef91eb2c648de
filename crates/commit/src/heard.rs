//! The decisions of all partitions, as far as one has heard of them (`siteVC`, sheet fwkv.md, 2): a function of its log.
//!
//! The number of a home is that of a decision up to which all are known here: every decision of that home with this number or a lower one is
//! agreed on, and is installed in this log if this partition takes part in it. Two kinds of entries move it:
//!
//! - OUTCOME, of a transaction in which this partition takes part. It names the decision's number, and the last one before it that
//!   concerns this partition too and that the home had not known to be installed here. If that is not installed yet, the step waits for it.
//! - ANNOUNCE, of a number up to which nothing concerns this partition that is not installed here.
//!
//! So a number never waits for what concerns others, and no message that is lost leaves a gap: who announces goes on until it is heard.

use std::collections::BTreeMap;

use ordain_model::{PartitionId, codec};

use crate::entry::Commitment;
use crate::ids::AttemptId;
use crate::view::Vector;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    vector: Vector,
    /// Steps that wait: home and number, with the number that has to be reached before.
    ahead: BTreeMap<(PartitionId, u64), u64>,
}

codec!(struct Heard { vector, ahead });

impl Heard {
    /// The numbers.
    pub const fn vector(&self) -> &Vector {
        &self.vector
    }

    /// This partition has decided.
    pub fn decided(&mut self, own: PartitionId, number: u64) {
        self.vector.raise(own, number);
    }

    /// A decision of another home is installed.
    pub fn concluded(&mut self, who: AttemptId, with: &Commitment) {
        let home = who.home().partition;
        if with.view.is_some() {
            self.ahead.insert((home, with.view.seen().vector.of(home)), with.after);
            self.step(home);
        }
    }

    /// A home has announced a number.
    pub fn announced(&mut self, home: PartitionId, number: u64) {
        self.vector.raise(home, number);
        self.step(home);
    }

    /// Takes the steps of a home that wait no more.
    fn step(&mut self, home: PartitionId) {
        while let Some(((of, number), after)) =
            self.ahead.range((home, 0)..).next().map(|(key, after)| (*key, *after))
            && of == home
            && (after <= self.vector.of(home) || number <= self.vector.of(home))
        {
            self.ahead.remove(&(of, number));
            self.vector.raise(home, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Age, Lead, Term, TransactionId};
    use crate::view::{Seen, View};

    const HOME: PartitionId = PartitionId(2);

    fn concluded(heard: &mut Heard, number: u64, after: u64) -> u64 {
        let home = Lead { partition: HOME, term: Term(1) };
        let who = AttemptId { transaction: TransactionId { home, number }, attempt: 1 };
        let view = View::of(Seen::NOTHING).decided(HOME, number);
        heard.concluded(who, &Commitment { view, after, ..Commitment::at(Age(1)) });
        heard.vector().of(HOME)
    }

    /// Sheet fwkv.md, scenario 9: a later decision comes before an earlier one.
    #[test]
    fn a_step_waits_for_the_decision_before_it() {
        let mut heard = Heard::default();
        assert_eq!(concluded(&mut heard, 5, 0), 5);
        assert_eq!(concluded(&mut heard, 9, 7), 5, "7 is not installed");
        assert_eq!(concluded(&mut heard, 12, 9), 5);
        heard.announced(PartitionId(1), 40);
        assert_eq!(heard.vector().of(HOME), 5);
        assert_eq!(concluded(&mut heard, 7, 5), 12);
        heard.announced(HOME, 11);
        assert_eq!(heard.vector().of(HOME), 12, "it was announced late");
        heard.announced(HOME, 30);
        assert_eq!(heard.vector().of(HOME), 30);
        assert_eq!(heard, Heard { vector: heard.vector().clone(), ahead: BTreeMap::new() });
    }

    #[test]
    fn outcomes_of_engines_without_snapshots_say_nothing() {
        let mut heard = Heard::default();
        let who = AttemptId::default();
        heard.concluded(who, &Commitment::at(Age(3)));
        assert_eq!(heard, Heard::default());
    }
}
