//! How a group begins: once, when all its founders have met.
//!
//! A founder with an empty disk has either never taken part, or has forgotten what it acknowledged and for whom it voted;
//! it cannot tell which, and in the second case it must not take part (it could vote twice in a term, or elect a leader
//! that lacks what it had helped to agree on). But its members can tell. So it asks all of them, and is silent until it
//! knows:
//!
//! 1. it *asks* until every member has answered, and none that the group has begun; then it writes an empty record;
//! 2. once that is durable it is *ready*, and says so until every member is, or one says that the group has begun;
//! 3. then the group *has begun*, and it votes and agrees.
//!
//! Nobody begins before all are ready, and being ready is durable. So if a founder asks, and one member says that the group
//! has begun, the founder has lost its disk: it stops, and is to come back in another generation (module `membership`).
//! Whatever it took part in, a majority did; and as long as no majority has lost its disks, one of them is left to say
//! so. That is why it asks all.

use std::collections::BTreeMap;

use ordain_model::Epoch;
use ordain_role::{NodeId, Outbox};

use super::GroupLog;
use super::wire::Wire;
use crate::entry::EntryType;
use crate::message::Carrier;

/// The knowledge of a founder that does not know yet that the group has begun.
#[derive(Debug)]
pub(super) struct Founding {
    /// The record by which this founder is ready, once it is durable.
    record: Option<Epoch>,
    is_ready: bool,
    /// The founders that have answered, and whether they are ready.
    answered: BTreeMap<NodeId, bool>,
}

impl Founding {
    /// A founder whose journal holds nothing, or nothing but the record that makes it ready.
    pub fn new(is_ready: bool) -> Founding {
        Founding { record: is_ready.then_some(Epoch(0)), is_ready, answered: BTreeMap::new() }
    }
}

/// A founder asks again every so many ticks.
const ASK_EVERY: u64 = 25;

impl<T: EntryType, M: Carrier<T::Entry>> GroupLog<T, M> {
    fn others(&self) -> Vec<NodeId> {
        self.settings.members.iter().copied().filter(|node| *node != self.member.node).collect()
    }

    /// The number of members that this one has to meet before it takes part.
    pub(super) fn unfounded(&self) -> usize {
        let Some(founding) = &self.founding else { return 0 };
        self.others().len() - founding.answered.values().filter(|is_ready| **is_ready).count()
    }

    /// Tells a member how far this member is.
    pub(super) fn send_founding(&self, node: NodeId, out: &mut Outbox<M>) {
        let is_ready = self.founding.as_ref().is_none_or(|founding| founding.is_ready);
        self.send_to(node, &Wire::Found { is_ready, has_begun: self.founding.is_none() }, out);
    }

    fn send_founding_to_all(&self, out: &mut Outbox<M>) {
        self.others().into_iter().for_each(|node| self.send_founding(node, out));
    }

    /// Time passes.
    pub(super) fn tick_founding(&mut self, out: &mut Outbox<M>) {
        self.ticks += 1;
        if self.ticks.is_multiple_of(ASK_EVERY) {
            self.send_founding_to_all(out);
        }
    }

    /// Takes another founder's report.
    pub(super) fn receive_founding(
        &mut self,
        from: NodeId,
        (is_ready, has_begun): (bool, bool),
        out: &mut Outbox<M>,
    ) {
        if from == self.member.node || !self.settings.members.contains(&from) {
            return;
        }
        let Some(founding) = &mut self.founding else {
            // A newcomer that is not in yet knows nothing of the beginning.
            if !has_begun && self.is_voter() {
                self.send_founding(from, out);
            }
            return;
        };
        if has_begun {
            if founding.is_ready {
                self.founding = None;
            } else {
                out.halt(format!(
                    "this node has nothing on its disk, and its member node {} knows that the two have begun together: it \
                     has lost what it had; start it with an empty directory and --join",
                    from.0
                ));
            }
            return;
        }
        if founding.answered.insert(from, is_ready) != Some(is_ready) {
            self.send_founding(from, out);
        }
    }

    /// Takes the next step, if it is time.
    pub(super) fn found(&mut self, out: &mut Outbox<M>) {
        let others = self.others().len();
        let Some(founding) = &mut self.founding else { return };
        if founding.record.is_none() && founding.answered.len() == others {
            if let Err(refusal) = self.journal.write(&self.raft.store().hard, &[]) {
                return out.halt(format!("the group's journal refused a record: {refusal}"));
            }
            founding.record = Some(self.journal.written());
            self.journal.ask_disk(out);
        }
        if !founding.is_ready && founding.record.is_some_and(|record| record <= self.journal.durable()) {
            founding.is_ready = true;
            self.send_founding_to_all(out);
        }
        let Some(founding) = &self.founding else { return };
        let all_are =
            founding.answered.len() == others && founding.answered.values().all(|is_ready| *is_ready);
        if founding.is_ready && all_are {
            self.founding = None;
            self.send_founding_to_all(out);
        }
    }
}
