//! Checkpoints, as far as they are a shard's: keeping the state at the end of an epoch while it goes on, giving it away
//! in pieces between its other work, and beginning from it (calvin.md, section 4.14).
//!
//! The sheet has a record's content of before the cut beside that of after it, in the record itself. Here the one of
//! before goes aside when it is replaced, which the store does anyway for readers of past states; so there is nothing to
//! prepare before the cut, nothing to fold together after it, and a record that nobody changes meanwhile costs nothing.

use ordain_checkpoint::{Kind, Outcome, Piece};
use ordain_model::{Cell, Db, Epoch, Gsn, KeyHash, Map, Micros, PartitionId, Position, Table};
use ordain_role::{Address, Bug, Outbox, TimerId};
use ordain_sequencer::Saving;
use ordain_store::{Keep, RecordStore, Snapshot};

use super::super::Message;
use super::super::capture::{Cut, Filling, Next, ON_THEIR_WAY};
use super::Shard;

/// Goes on giving away.
pub(super) const GIVE: TimerId = TimerId(3);

/// What was given is compared with the digest of the state if no more older contents are kept than this. That digest takes
/// a look at each of them, 0.15 µs, so this is a pause of some 2 ms at most. More are kept only of a large store under much
/// load; there this guard against a mistake of ours would hold everybody up.
const COMPARED_MAX: u64 = 16 << 10;

impl<S: RecordStore> Shard<S> {
    /// The same, on a node with a checkpointer.
    #[must_use]
    pub fn with_checkpointer(mut self, checkpointer: Address) -> Shard<S> {
        self.capture.to = Some(checkpointer);
        self
    }

    /// Takes a record from a checkpoint.
    pub fn restore(&mut self, db: Db, key: &[u8], cell: Cell, version: Gsn) {
        let record = self.store.find_or_reserve(db, key, KeyHash::of_record(db, key));
        self.store.put_back(record, cell, version);
    }

    /// Takes an outcome from a checkpoint.
    pub fn restore_outcome(&mut self, outcome: &Outcome<'_>) {
        self.sessions.put(outcome);
    }

    /// All of a checkpoint of this epoch has been taken: the order goes on after it.
    pub fn begin_after(&mut self, epoch: Epoch) {
        let turn = (epoch, PartitionId(self.places.layout.partitions() - 1));
        self.started = Gsn::new(epoch, turn.1, Gsn::MAX_BATCH - 1);
        self.backlog.begin_after(turn);
        self.witness.begin(turn, self.store.digest());
    }

    /// A checkpoint is cut here: from now on the state at the end of this epoch is kept. Nothing of a later one has been
    /// started.
    pub(crate) fn cut(&mut self, epoch: Epoch) {
        if self.capture.to.is_none() || !self.capture.is_live {
            return;
        }
        if self.capture.cut.is_some() {
            return self.capture.skipped.push(epoch);
        }
        self.capture.cut = Some(Cut::new(epoch));
        self.hold(Some(epoch));
    }

    /// Keeps the state at the end of an epoch for a checkpoint, or does not any more.
    fn hold(&mut self, cut: Option<Epoch>) {
        self.keep_states();
        self.sessions.hold(cut);
    }

    /// The checkpointer has written a piece, or given up.
    pub(super) fn take_saving(&mut self, saving: &Saving) {
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

    /// Gives away the next piece of the state that is kept, once all of it is there.
    pub(super) fn give(&mut self, out: &mut Outbox<Message>) {
        let Some(to) = self.capture.to else { return };
        for epoch in self.capture.skipped.drain(..) {
            out.send(to, Saving::Skipped(epoch));
        }
        let Some(Cut { epoch, next, on_their_way, digest }) = self.capture.cut else { return };
        if on_their_way >= ON_THEIR_WAY || self.backlog.published() < epoch {
            return;
        }
        let (piece, next) = match next {
            Next::Map => {
                let map = self.maps.as_of(epoch).map();
                let piece = if *map == Map::FIRST { Piece::new(Kind::Map) } else { Piece::map(map) };
                (piece, Some(Next::Records(Position::default())))
            }
            Next::Records(from) => {
                let mut filling = Filling::new(Kind::Records, self.settings.piece);
                let state = self.store.as_of(epoch);
                state.visit(from, |entry| {
                    let takes = filling.takes(entry.position);
                    if takes {
                        filling.piece.push_record(entry.db, entry.key, entry.cell, entry.version);
                    }
                    takes
                });
                let Filling { piece, rest, .. } = filling;
                let digest = digest.plus(piece.digest());
                let compares = rest.is_none() && self.store.older() <= COMPARED_MAX;
                if compares && digest != state.digest() {
                    self.broken.get_or_insert(format!(
                        "shard {} was to give away the state after epoch {epoch}, and what it gave is another",
                        self.number
                    ));
                    return;
                }
                (piece, Some(rest.map_or(Next::Outcomes(Default::default()), Next::Records)))
            }
            // A reply may be composed here although everything has been done to the records.
            _ if self.first_under_way().is_some_and(|gsn| gsn.epoch() <= epoch) => return,
            Next::Outcomes(from) => {
                let mut filling = Filling::new(Kind::Outcomes, self.settings.piece);
                self.sessions.visit(from, epoch, &mut filling);
                let Filling { piece, rest, .. } = filling;
                (piece, Some(rest.map_or(Next::Replaced(Default::default()), Next::Outcomes)))
            }
            Next::Replaced(from) => {
                let mut filling = Filling::new(Kind::Outcomes, self.settings.piece);
                self.sessions.visit_replaced(from, &mut filling);
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
        match (next, &mut self.capture.cut) {
            (Some(next), Some(cut)) => {
                cut.next = next;
                out.set_timer(GIVE, Micros(0));
            }
            _ => {
                out.send(to, Saving::Last(epoch));
                self.capture.cut = None;
                self.hold(None);
            }
        }
    }
}
