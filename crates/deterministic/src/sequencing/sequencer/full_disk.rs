//! A full disk: reads are sequenced, writes are refused, and a batch that the log has refused is sequenced again without
//! them.

use std::collections::{BTreeMap, BTreeSet};

use ordain_model::{Batch, Chunk, Epoch, Front, Gsn, Lookup, OutcomeBatch, OutcomeStatus, Txn};
use ordain_role::{Now, Outbox};

use super::Sequencer;
use crate::sequencing::message::Message;

impl<X> Sequencer<X> {
    /// Refuses the writes of a chunk that are not retries of something that was done before.
    pub(super) fn refuse_writes(&mut self, chunk: &Chunk, lookups: &[Lookup], out: &mut Outbox<Message<X>>) {
        let refused = |txn: &Txn| {
            let asked =
                |l: &Lookup| (l.gateway, l.chunk, l.index) == (chunk.gateway, chunk.number, txn.index);
            txn.logged && !lookups.iter().any(asked)
        };
        self.counts.refused += chunk.txns().iter().filter(|txn| refused(txn)).count() as u64;
        self.answer_all(chunk, OutcomeStatus::Refused, refused, out);
    }

    /// The disk was full: the reads of the batch are sequenced again, its writes are refused.
    pub(super) fn rejected(&mut self, now: Now, batch: &Batch, out: &mut Outbox<Message<X>>) {
        self.full = true;
        self.want_again(batch.epoch, out);
        // The epoch is given to another batch below. No later one may have been given away, so a log that refuses
        // batches is given one at a time (`Settings::in_log_max`); the log that members agree on takes several and
        // refuses none.
        if let Some(entry) = self.in_log.front() {
            let later = entry.batch.epoch;
            return out
                .halt(format!("the log refused epoch {} although it has epoch {later} too", batch.epoch));
        }
        if !batch.is_logged() {
            // Not even a mark fits on the disk, and the epochs that need none are used up. This epoch can be used
            // again: no role has seen it.
            self.epoch = Epoch(batch.epoch.0 - 1);
            self.under_way.retain(|epoch| *epoch != batch.epoch);
            batch.chunks.iter().for_each(|placed| {
                self.answer_all(
                    &placed.chunk,
                    OutcomeStatus::Refused,
                    |txn| !placed.is_skipped(txn.index),
                    out,
                );
            });
            batch.lookups.iter().for_each(|lookup| self.refuse_lookup(lookup, out));
            if let Some(members) = &mut self.members {
                batch.chunks.iter().for_each(|placed| members.turn_away(&placed.chunk));
            }
            return;
        }
        // The epoch can be used again too: to use it up would count as a lag that is never made up for.
        let mut reads = batch.clone();
        // A choice that is not in the log binds no other node.
        reads.choice = None;
        let away = batch.chunks.iter().filter(|placed| self.turn_away(&placed.chunk, out));
        let away: BTreeSet<_> = away.map(|placed| (placed.chunk.gateway, placed.chunk.number)).collect();
        reads.chunks.retain(|placed| !away.contains(&(placed.chunk.gateway, placed.chunk.number)));
        reads.lookups.retain(|lookup| !away.contains(&(lookup.gateway, lookup.chunk)));
        for placed in &mut reads.chunks {
            let chunk = placed.chunk.clone();
            let already = std::mem::take(&mut placed.skipped);
            let writes = |txn: &Txn| txn.logged && already.binary_search(&txn.index).is_err();
            self.counts.refused += chunk.txns().iter().filter(|t| writes(t)).count() as u64;
            self.answer_all(&chunk, OutcomeStatus::Refused, writes, out);
            placed.skipped = chunk
                .txns()
                .iter()
                .filter(|txn| txn.logged || already.binary_search(&txn.index).is_ok())
                .map(|txn| txn.index)
                .collect();
        }
        let (known, lost): (Vec<_>, Vec<_>) =
            reads.lookups.iter().partition(|l| self.sessions.is_known(l.session, l.request));
        reads.lookups = known;
        for lookup in lost {
            self.refuse_lookup(&lookup, out);
        }
        self.append(now, reads, BTreeMap::new(), out);
    }

    /// Answers a retry whose first attempt cannot be looked up now, or was refused as well.
    pub(super) fn refuse_lookup(&self, lookup: &Lookup, out: &mut Outbox<Message<X>>) {
        let Some(gateway) = self.neighbours.gateway(lookup.gateway) else { return };
        let mut outcomes = OutcomeBatch::new(lookup.gateway);
        outcomes.push(lookup.chunk, lookup.index, Gsn::NONE, OutcomeStatus::Refused, |_| {});
        out.send(gateway, Front::Outcomes(outcomes));
    }
}
