//! Transactions that an operator has aborted by their place in the order, because they end the process that executes them.
//!
//! Each shard that takes part in such a transaction ends it in its place, without a message: the abort is in the data directory
//! of every node. A node that lacks it executes something else than the others, and the digest exchange takes it out; or it
//! sends a remote result of the transaction to a node that has the abort, and that one stops.

use std::sync::Arc;

use ordain_model::{Abort, Chunk, Gsn, OutcomeStatus, Txn, Writer};
use ordain_role::Bug;
use ordain_store::RecordStore;

use super::Core;

impl<S: RecordStore> Core<S> {
    /// Returns whether an operator has aborted a transaction that is about to be started. It ends without any effect;
    /// the shard that would have composed its reply reports that, and remembers it for the transaction's session.
    pub fn is_aborted_by_operator(&mut self, gsn: Gsn, chunk: &Arc<Chunk>, txn: &Txn) -> bool {
        if self.operator.aborted.is_empty() || !self.operator.aborted.contains(&gsn) {
            return false;
        }
        // Planted, SAME-ABORTS.
        if self.settings.bugs.has(Bug::IgnoreAbort)
            && self.site.places.replica + 1 == self.site.places.replicas
        {
            return false;
        }
        if self.remote.out_of_order.holds(gsn) {
            self.broken.get_or_insert(format!(
                "shard {} was sent something of transaction {gsn}, which the operator has aborted here and not on the \
                 node that executed it: run ordain log abort on all nodes of the cluster",
                self.site.number
            ));
        }
        if chunk.collector(txn, self.maps.planned.under(&chunk.map)) == self.site.number {
            self.counts.aborted += 1;
            self.counts.aborts[usize::from(Abort::Operator.code()) - 1] += 1;
            let status = OutcomeStatus::Aborted(Abort::Operator);
            self.replies.conclude(&self.site.places, (gsn, chunk, txn), status, |reply| {
                Writer(reply).abort(Abort::Operator)
            });
        }
        true
    }
}
