//! Waits at the participants of this node, as the manager judges them ([`WaitsFor`](crate::waits_for::WaitsFor)).

use ordain_role::Outbox;

use super::Manager;
use crate::ids::Term;
use crate::message::{Message, Own, Wait};
use crate::waits_for::{Refusal, Refusals};

impl Manager {
    /// Takes what a participant tells of waits, and has those refused that must not be.
    pub(super) fn take_waits(&mut self, told: Own, out: &mut Outbox<Message>) {
        // A report of another term is stale: the graph of waits is of one term.
        let is_now = |term: Term| self.lead.is_some_and(|lead| lead.term == term);
        let refusals = match told {
            Own::Waits(Wait { term, shard, who, age, behind }) if is_now(term) => {
                self.waits.wait(shard, who, age, &behind)
            }
            Own::Over(term, shard, who) if is_now(term) => {
                self.waits.over(shard, who);
                Vec::new()
            }
            Own::Spared(term, who) if is_now(term) => self.waits.spare(who),
            _ => Vec::new(),
        };
        for Refusal { shard, who, behind } in refusals {
            let participant = self.site.participant(self.site.node, usize::from(shard));
            out.send(participant, Own::Refuse(who, behind));
        }
    }

    pub(super) fn report_waits(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let Refusals { cycles, regions, spared, unneeded } = self.waits.counts();
        report("ordain_waits_attempts", self.waits.len() as f64);
        report("ordain_waits_refused_total{reason=\"cycle\"}", cycles as f64);
        report("ordain_waits_refused_total{reason=\"regions\"}", regions as f64);
        report("ordain_waits_spared_total", spared as f64);
        report("ordain_waits_unneeded_total", unneeded as f64);
    }
}
