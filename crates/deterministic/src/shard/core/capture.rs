//! Checkpoints on a shard: keeps the state at the end of an epoch, gives it away in pieces, and begins from one
//! (`docs/protocols/calvin.md`, C46 and C47).
//!
//! The state is kept in one of three modes (the Calvin paper, section 5). What is given away is the same, to the byte.
//!
//! - *Multiversion*: a replaced content is kept aside, which the store does anyway for reads on snapshots.
//! - *Zig-Zag*: a record that is changed has two copies until it is [captured](RecordStore::capture).
//! - *Naive*: nothing of a later epoch is executed until all of the state is written, so that nothing has to be kept. One
//!   replica does that, the one that was to answer the transaction which asks for the checkpoint; its clients are sent to
//!   another replica, as they are when a node cannot be reached.

use std::sync::Arc;

use ordain_checkpoint::{Filling, Kind, ON_THEIR_WAY, Piece};
use ordain_model::{Batch, Cell, CheckpointMode, Db, Digest, Epoch, Gsn, Map, PartitionId, Position, Table};
use ordain_replication::Saving;
use ordain_role::{Address, Bug, Outbox, PeerChange, PeerState, TimerId};
use ordain_store::{Entry, Keep, RecordStore, Snapshot};

use super::Core;
use super::values::Waiter;
use crate::shard::capture::{Cut, Next};
use crate::shard::messages::Message;

/// Goes on giving away.
pub(in crate::shard) const GIVE: TimerId = TimerId(3);

/// The most older contents for which the given state is compared with its digest. That digest takes 0.15 µs for each
/// of them, so this is a pause of some 2 ms at most. More are kept only of a large store under much load; there this
/// guard against a mistake of ours would hold up everything.
const COMPARED_MAX: u64 = 16 << 10;
/// Records that are settled with each piece that is given away, so that few are left when it is compared: a
/// millisecond's.
pub(super) const SETTLED: usize = 16 << 10;

impl<S: RecordStore> Core<S> {
    pub(in crate::shard) fn set_checkpointer(&mut self, checkpointer: Address) {
        self.capture.to = Some(checkpointer);
        self.capture.mode = self.settings.checkpoints;
    }

    /// Takes a record from a checkpoint.
    pub(in crate::shard) fn restore(&mut self, db: Db, key: &[u8], cell: Cell, version: Gsn) {
        let record = self.store.find_or_reserve(db, key, self.store.placement().hash_of_record(db, key));
        self.store.put_back(record, cell, version);
    }

    /// All of a checkpoint of this epoch has been taken: the order goes on after it.
    pub(in crate::shard) fn begin_after(&mut self, epoch: Epoch) {
        let place = (epoch, PartitionId(self.site.places.layout.partitions() - 1));
        self.order.started = Gsn::new(epoch, place.1, Gsn::MAX_BATCH - 1);
        self.order.backlog.begin_after(place);
        self.digests.exchange.begin(place, self.store.digest());
    }

    /// The node runs: what it did before it was stopped has been executed again, and checkpoints of then are not made.
    pub(in crate::shard) fn go_live(&mut self, out: &mut Outbox<Message>) {
        self.capture.is_live = true;
        if let Some(to) = self.capture.to.filter(|_| self.order.started != Gsn::NONE) {
            out.send(to, Saving::Past(self.order.started.epoch()));
        }
    }

    /// Cuts a checkpoint: from now on the state at the end of this epoch is kept. Nothing of a later one has been
    /// started. `replica` is the one that answers the transaction which asks for the checkpoint.
    pub fn cut(&mut self, epoch: Epoch, replica: u16) {
        // On this node there may be copies for which another node's state is kept all the same, as none are there.
        self.relocation.copies.cut_in = epoch;
        let is_others = self.capture.mode == CheckpointMode::Naive && replica != self.site.places.replica;
        if self.capture.to.is_none() || !self.capture.is_live || is_others {
            return;
        }
        if self.capture.cut.is_some() || self.has_copies() {
            return self.capture.skipped.push(epoch);
        }
        self.capture.cut = Some(Cut::new(epoch));
        self.hold(Some(epoch));
    }

    /// Returns the batch that is next in the order, unless this shard stands still before it.
    #[inline]
    pub fn next_batch(&self) -> Option<Arc<Batch>> {
        self.order.batches.front().filter(|batch| !self.capture.freezes(batch.epoch)).cloned()
    }

    /// Keeps the state at the end of an epoch for a checkpoint, or does not any more.
    fn hold(&mut self, cut: Option<Epoch>) {
        if self.capture.mode == CheckpointMode::ZigZag {
            self.store.point(cut);
        }
        self.keep_states();
        self.replies.sessions.outcomes.hold(cut);
    }

    /// Sends the clients of this node to another replica while this one stands still, or back.
    fn turn_away(&mut self, away: bool, out: &mut Outbox<Message>) {
        let is_first = self.site.number == self.site.partition.start;
        if self.capture.turned_away == away || !is_first || self.site.places.replicas == 1 {
            return;
        }
        self.capture.turned_away = away;
        let sequencer = self.site.places.sequencer;
        let state = if away { PeerState::Lost } else { PeerState::Back };
        for gateway in self.site.places.gateways.values() {
            out.send(*gateway, PeerChange { node: sequencer.node, state });
        }
        out.send(sequencer, Saving::StandsStill(away));
    }

    /// Giving away has rested.
    pub(in crate::shard) fn rested(&mut self) {
        self.capture.cut.iter_mut().for_each(|cut| cut.rests = false);
    }

    /// The checkpointer has written a piece, or given up.
    pub(in crate::shard) fn take_saving(&mut self, saving: &Saving) {
        let Some(cut) = &mut self.capture.cut else { return };
        match saving {
            Saving::Taken(epoch) if *epoch == cut.epoch => {
                cut.on_their_way -= 1;
                if self.settings.bugs.has(Bug::ForgetVersion) {
                    self.store.keep(Keep::default());
                    self.keep_states();
                }
            }
            Saving::Dropped(epoch) if *epoch == cut.epoch => {
                self.capture.cut = None;
                self.hold(None);
            }
            _ => {}
        }
    }

    /// Gives away the next piece of the state that is kept, once all of it is there. Says whether what stood still may go on.
    ///
    /// `planned` is the first transaction that is under way and not known by number.
    pub(in crate::shard) fn give(&mut self, planned: Option<Gsn>, out: &mut Outbox<Message>) -> bool {
        let Some(to) = self.capture.to else { return false };
        for epoch in self.capture.skipped.drain(..) {
            out.send(to, Saving::Skipped(epoch));
        }
        if self.capture.cut.is_none() {
            // It may have been given up.
            let stood_still = self.capture.turned_away;
            self.turn_away(false, out);
            return stood_still;
        }
        let Some(Cut { epoch, next, on_their_way, digest, rests, .. }) = self.capture.cut else {
            return false;
        };
        if rests || on_their_way >= ON_THEIR_WAY || self.order.backlog.published() < epoch {
            return false;
        }
        self.turn_away(self.capture.mode == CheckpointMode::Naive, out);
        let (piece, next) = match next {
            Next::Map => {
                let map = self.maps.as_of(epoch).map();
                let piece = if *map == Map::FIRST { Piece::new(Kind::Map) } else { Piece::map(map) };
                (piece, Some(Next::Records(Position::default())))
            }
            Next::Records(_) if self.piece_is_coming() => return false,
            Next::Records(from) => {
                if !self.note_size() {
                    self.store.settle(SETTLED);
                }
                let Some((piece, rest)) = self.records(epoch, from) else { return false };
                if rest.is_none() && !self.gave_all(epoch, digest.plus(piece.digest())) {
                    return false;
                }
                (piece, Some(rest.map_or(Next::Outcomes(Default::default()), Next::Records)))
            }
            Next::Written if on_their_way > 0 => return false,
            Next::Written => {
                self.end_cut(out);
                return true;
            }
            // A reply may be composed here although everything has been done to the records.
            _ if self.is_answering(epoch, planned) => return false,
            Next::Outcomes(from) => {
                let mut filling = Filling::new(Kind::Outcomes, self.settings.piece);
                self.replies.sessions.outcomes.visit(from, epoch, &mut filling);
                let Filling { piece, rest, .. } = filling;
                (piece, Some(rest.map_or(Next::Replaced(Default::default()), Next::Outcomes)))
            }
            Next::Replaced(from) => {
                let mut filling = Filling::new(Kind::Outcomes, self.settings.piece);
                self.replies.sessions.outcomes.visit_replaced(from, &mut filling);
                (filling.piece, filling.rest.map(Next::Replaced))
            }
        };
        let is_empty = piece.is_empty();
        if let Some(cut) = &mut self.capture.cut {
            cut.digest = digest.plus(piece.digest());
            cut.on_their_way += u32::from(!is_empty);
        }
        if !is_empty {
            out.send(to, Saving::Piece { epoch, piece });
        }
        let is_naive = self.capture.mode == CheckpointMode::Naive;
        if next.is_none() {
            out.send(to, Saving::Last(epoch));
        }
        match (next.or(is_naive.then_some(Next::Written)), &mut self.capture.cut) {
            (Some(next), Some(cut)) => {
                cut.next = next;
                out.set_timer(GIVE, cut.rest(self.counts.committed + self.counts.aborted));
            }
            _ => self.end_cut(out),
        }
        false
    }

    /// The next piece of the records as they were at the end of an epoch, and where the one after it begins. `None` until all values of it have
    /// come from the disk.
    fn records(&mut self, epoch: Epoch, from: Position) -> Option<(Piece, Option<Position>)> {
        let mut filling = Filling::new(Kind::Records, self.settings.piece);
        let (past, mut lacking) = (&self.capture.past, Vec::new());
        let fill = |entry: Entry<'_>| {
            let takes = filling.takes(entry.position);
            if takes && let Some(evicted) = past.lacks(entry.cell) {
                filling.leave_out(Piece::record_len(entry.key, entry.cell));
                lacking.push(evicted.clone());
            } else if takes {
                filling.piece.push_record(entry.db, entry.key, &past.with(entry.cell), entry.version);
            }
            takes
        };
        match self.capture.mode {
            CheckpointMode::ZigZag => _ = self.store.capture(fill),
            // Of a store that stands still that is what it holds.
            CheckpointMode::Multiversion | CheckpointMode::Naive => {
                self.store.as_of(self.cut_at(epoch)).visit(from, fill)
            }
        }
        if let Some(tier) = self.values.as_mut().filter(|_| !lacking.is_empty()) {
            lacking.iter().for_each(|evicted| tier.want(evicted, None, Waiter::Checkpoint));
            return None;
        }
        self.capture.past.clear();
        Some((filling.piece, filling.rest))
    }

    /// Returns the epoch as of whose end a checkpoint of an epoch is given the records: the same.
    fn cut_at(&self, epoch: Epoch) -> Epoch {
        // Planted, CUT.
        if self.settings.bugs.has(Bug::CutLate) { Epoch(u64::MAX) } else { epoch }
    }

    /// Notes whether much is kept: then it is not compared in the end, and no more of it need be kept than what is
    /// still to be given. Returns whether it is much.
    fn note_size(&mut self) -> bool {
        let Some(cut) = &mut self.capture.cut else { return false };
        cut.is_large |= self.store.older() > COMPARED_MAX;
        cut.is_large
    }

    /// Returns whether all that was given is the state, where that can be determined.
    fn gave_all(&mut self, epoch: Epoch, given: Digest) -> bool {
        let is_large = self.note_size();
        let can_tell = self.capture.mode != CheckpointMode::ZigZag && !is_large;
        if !can_tell || given == self.store.as_of(self.cut_at(epoch)).digest() {
            return true;
        }
        self.broken.get_or_insert(format!(
            "shard {} was to give away the state after epoch {epoch}, and what it gave is another",
            self.site.number
        ));
        false
    }

    /// Returns whether a reply of an epoch, or of one before it, is still to be composed here.
    fn is_answering(&self, epoch: Epoch, planned: Option<Gsn>) -> bool {
        self.active.first().into_iter().chain(planned).any(|gsn| gsn.epoch() <= epoch)
    }

    /// Ends the checkpoint: all of the state was given away.
    fn end_cut(&mut self, out: &mut Outbox<Message>) {
        self.capture.cut = None;
        self.hold(None);
        self.turn_away(false, out);
    }
}
