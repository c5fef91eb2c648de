//! When a batch closes, and what goes into it (docs/protocols/calvin.md, the sequencer).

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_model::{Batch, Chunk, Epoch, Gsn, Lookup, Micros, Placed, RequestNo, SessionId, Txn};
use ordain_role::{Bug, Now, Outbox};

use super::members::Leader;
use super::saving::LAG_STANDING;
use super::{InLog, LINGER, PACE, PACE_MIN, Sequencer};
use crate::sequencing::message::{ExchangeMessage, Log, Message};

impl<X> Sequencer<X> {
    /// Tells whether batches of this sequencer may go to the log, and it has room.
    pub(super) fn has_turn(&self) -> bool {
        let has_room = self.in_log.len() < self.settings.in_log_max;
        has_room && self.leader == Leader::Me && !self.pausing && !self.is_unfounded
    }

    /// Tells whether there is something to close and the pipeline can take it.
    pub(super) fn may_close(&self) -> bool {
        !self.waiting.is_empty() && self.has_turn() && self.has_room()
    }

    /// Tells whether execution is not too far behind what the log has let go.
    pub(super) fn has_room(&self) -> bool {
        let is_let_go = |epoch: &&Epoch| self.in_log.front().is_none_or(|first| **epoch < first.batch.epoch);
        let lag_max = if self.checkpoints.stands_still { LAG_STANDING } else { self.settings.lag_max };
        (self.under_way.iter().take_while(is_let_go).count() as u64) < lag_max
    }

    /// The time for which it is too soon to let a batch follow the last one into the log.
    pub(super) fn too_soon(&self, now: Now) -> Micros {
        let Some(last) = self.in_log.back() else { return Micros(0) };
        let pace = Micros(self.log_takes.0 / self.settings.in_log_max as u64).max(PACE_MIN);
        pace.since(now.elapsed.since(last.since))
    }

    /// Closes the open batch if the pipeline can take it. An epoch that others have opened is sealed even if there is
    /// nothing to put in it, or nothing may.
    pub(super) fn try_close(&mut self, now: Now, out: &mut Outbox<Message<X>>) {
        let is_awaited = self.reached > self.epoch;
        let may_close = self.may_close();
        let is_wanted = !self.snapshots.wanted.is_empty();
        let must_seal = (is_awaited || is_wanted) && self.has_turn();
        if !may_close && !must_seal {
            return;
        }
        let too_soon = self.too_soon(now);
        if too_soon > Micros(0) {
            if !self.pacing {
                self.pacing = true;
                out.set_timer(PACE, too_soon);
            }
            return;
        }
        if !may_close {
            let empty = self.open(now);
            self.announce(empty.epoch, out);
            return self.append(now, empty, BTreeMap::new(), out);
        }
        let enough = is_awaited || is_wanted || self.waiting.txns() >= self.settings.batch_cap as usize;
        if self.settings.linger.0 > 0 && !enough {
            if !self.lingering {
                self.lingering = true;
                out.set_timer(LINGER, self.settings.linger);
            }
            return;
        }
        self.close(now, out);
    }

    /// The next batch, with nothing in it.
    pub(super) fn open(&mut self, now: Now) -> Batch {
        let wall = now.wall.to_millis();
        // Planted, TIME-FORWARD.
        self.now = if self.settings.bugs.has(Bug::TimeGoesBack) { wall } else { self.now.max(wall) };
        Batch {
            epoch: self.epoch.next().max(self.reached),
            partition: self.settings.partition,
            layout: self.settings.layout,
            choice: None,
            now: self.now,
            total: 0,
            chunks: Vec::new(),
            lookups: Vec::new(),
        }
    }

    /// Tells the other partitions of an epoch that this one is the first to open.
    pub(super) fn announce(&self, epoch: Epoch, out: &mut Outbox<Message<X>>) {
        if let Some(exchange) = self.neighbours.exchange.filter(|_| epoch > self.reached) {
            out.send(exchange, ExchangeMessage::Opened(epoch));
        }
    }

    pub(super) fn close(&mut self, now: Now, out: &mut Outbox<Message<X>>) {
        let mut batch = self.open(now);
        self.announce(batch.epoch, out);
        let mut requests = BTreeMap::new();
        let mut bytes = 0;
        while let Some(chunk) = self.waiting.first() {
            let end = batch.total + chunk.span();
            bytes += chunk.bytes();
            let is_full = end > self.settings.batch_cap || bytes > self.settings.batch_bytes;
            if end > Gsn::MAX_BATCH || (batch.total > 0 && is_full) {
                break;
            }
            let Some(chunk) = self.waiting.pop() else { break };
            let mut skipped = Vec::new();
            let is_known = self.members.as_ref().is_some_and(|members| members.sealed.is_known(&chunk));
            if self.full && self.turn_away(&chunk, out) {
                continue;
            }
            for txn in chunk.txns() {
                if let Some(lookup) = self.lookup(&chunk, txn, !is_known, &mut requests) {
                    batch.lookups.push(lookup);
                    skipped.push(txn.index);
                } else if txn.logged && (self.full || is_known) {
                    skipped.push(txn.index);
                }
            }
            if self.full && !is_known {
                self.refuse_writes(&chunk, &batch.lookups, out);
            }
            batch.chunks.push(Placed { base: batch.total, chunk, skipped });
            batch.total = end;
        }
        batch.choice = self.speculation.choose(now.elapsed, &batch, &self.neighbours.readers.layout);
        self.sweeps.clear();
        self.counts.batches += 1;
        self.counts.txns += u64::from(batch.total);
        self.counts.duplicates += batch.lookups.len() as u64;
        self.under_way.push_back(batch.epoch);
        if batch.total > 0 {
            let since = self.waits_since.take().unwrap_or(now.elapsed);
            self.stages.waiting.record_time(now.elapsed.since(since));
            self.stages.txns.record_size(u64::from(batch.total));
            let bytes = batch.chunks.iter().map(|placed| placed.chunk.bytes() as u64).sum();
            self.stages.bytes.record_size(bytes);
        }
        self.append(now, batch, requests, out);
    }

    pub(super) fn append(
        &mut self,
        now: Now,
        batch: Batch,
        requests: BTreeMap<SessionId, RequestNo>,
        out: &mut Outbox<Message<X>>,
    ) {
        let batch = Arc::new(batch);
        self.epoch = batch.epoch;
        let wanted = std::mem::take(&mut self.snapshots.wanted);
        self.in_log.push_back(InLog { batch: batch.clone(), since: now.elapsed, requests, wanted });
        out.send(self.neighbours.log, Log::Append(batch));
    }

    /// A batch in the log is durable: from now on its requests are known.
    pub(super) fn logged(&mut self, now: Now, epoch: Epoch, out: &mut Outbox<Message<X>>) {
        if let Some(InLog { batch, since, wanted, .. }) = self.leaves_log(epoch) {
            let took = now.elapsed.since(since);
            self.log_takes = Micros((self.log_takes.0 + took.0) / 2);
            if batch.total > 0 {
                self.stages.log.record_time(took);
                self.stages.executing.push_back((epoch, now.elapsed));
            }
            self.sessions.note(&batch);
            if self.members.is_none() {
                self.note_durable(&batch);
            }
            wanted.into_iter().for_each(|wanted| self.grant(now, wanted, epoch, out));
        }
    }

    pub(super) fn leaves_log(&mut self, epoch: Epoch) -> Option<InLog> {
        let at = self.in_log.iter().position(|entry| entry.batch.epoch == epoch)?;
        self.in_log.remove(at)
    }

    /// Has reads as of a lost batch wait for another: for one of the leader's, if another node leads by now.
    pub(super) fn want_again(&mut self, epoch: Epoch, out: &mut Outbox<Message<X>>) {
        let wanted = self.leaves_log(epoch).map(|entry| entry.wanted);
        self.snapshots.wanted.extend(wanted.into_iter().flatten());
        self.ask_leader(out);
    }

    /// Looks a request up instead of sequencing it again: it was sequenced before, here, in a batch that is in the log
    /// or earlier in this very one. Should the batch in the log be lost, the lookup is answered when the request is
    /// sequenced again.
    pub(super) fn lookup(
        &mut self,
        chunk: &Chunk,
        txn: &Txn,
        may_be_first: bool,
        requests: &mut BTreeMap<SessionId, RequestNo>,
    ) -> Option<Lookup> {
        let (session, request) = txn.call.session?;
        if txn.read_only || self.settings.bugs.has(Bug::ForgetSession) {
            return None;
        }
        let is_in_log = |entry: &InLog| entry.requests.get(&session).is_some_and(|last| *last >= request);
        let mut known = self.sessions.is_known(session, request) || self.in_log.iter().any(is_in_log);
        // While writes are refused, an earlier one of this batch is no first attempt either; nor is one that was turned
        // away before.
        if !known && !self.full && may_be_first {
            known = requests.get(&session).is_some_and(|latest| *latest >= request);
            if !known {
                requests.insert(session, request);
            }
        }
        let Chunk { gateway, number, .. } = *chunk;
        known.then_some(Lookup { session, request, gateway, chunk: number, index: txn.index })
    }
}
