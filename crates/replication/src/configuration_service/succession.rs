//! Succession: a candidate gathers what is left of the terms before its own, and decides what of it counts
//! (docs/protocols/calvin.md, section 4.12).
//!
//! It asks the logs of its members for whole entries, and the exchanges of all nodes for their shares. An entry that no log
//! has whole is decided all the same if its shares make a whole one ([`EntryType::merge`]). The first entry of which a part
//! is missing ends what is decided: that entry and everything after it is lost.
//!
//! What is lost may have been executed. Every node that may have done so has to be rebuilt: the replicas of nodes that hold
//! some of it, or that were told a result by a node that may have executed it, and every node that does not answer, as
//! nobody knows what it has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_model::{Epoch, Micros, PartitionId};
use ordain_role::{Address, NodeId, ReplicaId, Topology};

use crate::entry::EntryType;
use crate::message::Held;

/// The state of a candidate's gathering.
#[derive(Debug)]
pub(super) struct Succession {
    pub partition: PartitionId,
    pub term: u64,
    /// The time of the last answer; before that, of the beginning.
    pub last_answer: Micros,
    /// The last epoch of the candidate's own log, once that has answered.
    own: Option<Epoch>,
    others: BTreeMap<Address, Respondent>,
    /// The parts found of each epoch's entry.
    remains: BTreeMap<Epoch, Remains>,
    /// The conclusion, once there is one.
    pub conclusion: Option<Conclusion>,
}

/// A log or an exchange that is asked.
#[derive(Debug, Default)]
struct Respondent {
    /// The epoch up to which it has answered.
    answered: Epoch,
    is_done: bool,
    knows: Knowledge,
}

/// The knowledge that a node has of the partition's epochs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Knowledge {
    /// The epoch up to which it knows nothing.
    pub since: Epoch,
    /// The epoch up to which everything is sealed.
    pub through: Epoch,
    /// A node of its replica has executed something of this epoch.
    pub executed: Epoch,
}

/// The parts found of one entry.
#[derive(Debug, Default)]
struct Remains {
    parts: u32,
    whole: Option<Arc<Vec<u8>>>,
    shares: Vec<Arc<Vec<u8>>>,
}

/// The fate of the terms before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conclusion {
    /// Entries that the candidate's log has not.
    pub entries: Vec<Arc<Vec<u8>>>,
    /// The last epoch that is decided.
    pub end: Epoch,
    /// The first of the new term.
    pub first: Epoch,
    /// The nodes that did not answer.
    pub absent: BTreeSet<NodeId>,
    /// The replicas whose nodes may have executed what is lost.
    pub suspects: BTreeSet<ReplicaId>,
}

impl Succession {
    /// A candidate who is to ask all these logs and exchanges.
    pub fn new(
        (partition, term): (PartitionId, u64),
        others: impl Iterator<Item = Address>,
        now: Micros,
    ) -> Succession {
        Succession {
            partition,
            term,
            last_answer: now,
            own: None,
            others: others.map(|at| (at, Respondent::default())).collect(),
            remains: BTreeMap::new(),
            conclusion: None,
        }
    }

    /// The candidate's own log has everything up to here.
    pub fn begin(&mut self, own: Epoch) {
        self.own.get_or_insert(own);
    }

    /// The last epoch of the candidate's own log.
    pub fn own(&self) -> Option<Epoch> {
        self.own
    }

    /// The nodes to ask, each with the epoch after which it is asked; once the candidate's own log is known.
    pub fn questions(&self) -> Vec<(Address, Epoch)> {
        let Some(own) = self.own.filter(|_| self.conclusion.is_none()) else { return Vec::new() };
        let open = self.others.iter().filter(|(_, respondent)| !respondent.is_done);
        open.map(|(at, respondent)| (*at, own.max(respondent.answered))).collect()
    }

    /// Takes an answer; a log's has whole entries. True if the node has more.
    pub fn take_answer(
        &mut self,
        (from, is_log, now): (Address, bool, Micros),
        knows: Knowledge,
        held: Vec<Held>,
        is_all: bool,
    ) -> bool {
        let Some(own) = self.own.filter(|_| self.conclusion.is_none()) else { return false };
        let Some(respondent) = self.others.get_mut(&from).filter(|respondent| !respondent.is_done) else {
            return false;
        };
        self.last_answer = now;
        (respondent.is_done, respondent.knows) = (is_all, knows);
        respondent.answered = respondent.answered.max(held.last().map_or(Epoch(0), |held| held.epoch));
        for Held { epoch, parts, content } in held.into_iter().filter(|held| held.epoch > own) {
            let remains = self.remains.entry(epoch).or_default();
            remains.parts = remains.parts.max(parts);
            match is_log {
                true => remains.whole = remains.whole.take().or(content),
                false => remains.shares.extend(content),
            }
        }
        !is_all
    }

    /// Tells whether a node has answered. The candidate's own has to: it may have executed something itself.
    pub fn has_answer_of(&self, node: NodeId) -> bool {
        self.own.is_some() && self.others.iter().all(|(at, respondent)| at.node != node || respondent.is_done)
    }

    /// Tells whether all nodes have answered.
    pub fn has_all_answers(&self) -> bool {
        self.own.is_some() && self.others.values().all(|respondent| respondent.is_done)
    }

    /// Concludes from the answers.
    pub fn conclude<T: EntryType>(
        &mut self,
        topology: &Topology,
        context: &T::Context,
    ) -> Option<&Conclusion> {
        let own = self.own?;
        let answered = || {
            self.others
                .iter()
                .filter(|(_, respondent)| respondent.is_done)
                .map(|(at, respondent)| (at, respondent.knows))
        };
        let known = answered().map(|(_, knows)| knows.through).fold(own, Epoch::max);
        let seen = answered().map(|(_, knows)| knows.executed).fold(known, Epoch::max);
        // The epoch up to which every epoch is known to be empty or not.
        let mut reach = own;
        while let Some((_, further)) =
            answered().find(|(_, knows)| knows.since <= reach && knows.through > reach)
        {
            reach = further.through;
        }
        let absent = self.others.iter().filter(|(_, respondent)| !respondent.is_done).map(|(at, _)| at.node);
        let (mut entries, mut end, mut lost) = (Vec::new(), own, None);
        for (epoch, remains) in self.remains.range(..=reach) {
            match remains.restore::<T>(context) {
                Some(entry) => {
                    entries.push(entry);
                    end = *epoch;
                }
                None => {
                    lost = Some(*epoch);
                    break;
                }
            }
        }
        let lost = lost.or((known > reach).then(|| reach.next()));
        // A node that knows the epoch of a lost entry as sealed may have gone beyond it. If an epoch later than all
        // that answers know was executed, a node that does not answer has executed it.
        let is_suspect = |knows: &Knowledge| {
            lost.is_some_and(|lost| knows.through.max(knows.executed) >= lost) || knows.executed > known
        };
        let suspects = answered().filter(|(_, knows)| is_suspect(knows));
        let suspects = suspects.map(|(at, _)| topology.replica_of(at.node)).collect();
        let conclusion = Conclusion { entries, end, first: seen.next(), absent: absent.collect(), suspects };
        self.remains.clear();
        Some(self.conclusion.insert(conclusion))
    }
}

impl Remains {
    /// The whole entry, if it is there.
    fn restore<T: EntryType>(&self, context: &T::Context) -> Option<Arc<Vec<u8>>> {
        self.whole.clone().or_else(|| T::merge(context, &self.shares, self.parts).map(Arc::new))
    }
}
