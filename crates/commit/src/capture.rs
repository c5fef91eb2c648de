//! A participant's part of a checkpoint: its records as they were at a cut, given away in pieces while it goes on.
//!
//! The store keeps aside what is replaced behind the cut, as it does for any past state: versions are places of the log, and a
//! cut lies between two eras of them (`cuts.rs`).

use std::sync::Arc;

use ordain_checkpoint::{Filling, Kind, Piece};
use ordain_execution::PastValues;
use ordain_model::Table as _;
use ordain_model::{Digest, Epoch, Evicted, Micros, Position};
use ordain_replication::Saving;
use ordain_role::{Bug, Bugs, Outbox};
use ordain_store::{Keep, MemoryStore, RecordStore, Snapshot as _};

use crate::cuts::era_before;
use crate::image::{Remembered, remembered};
use crate::message::Message;
use crate::participant::{Values, Waiter};
use crate::saving::{Giving, Sending};

/// The most older contents for which what was given is compared with the digest of the state, which takes 0.15 µs for each.
const COMPARED_MAX: u64 = 16 << 10;
/// Records that are settled with each piece, so that few are left when it is compared: a millisecond's.
const SETTLED: usize = 16 << 10;
/// Records that were cleared together and are freed at once: half a millisecond's.
const FREED: usize = 4096;
/// The pause between two steps in which contents that were kept for a checkpoint are freed.
const FREES_AFTER: Micros = Micros::from_millis(1);

/// See the module.
#[derive(Debug, Default)]
pub struct Capture {
    giving: Option<Giving>,
    /// The node runs: what it did before it was stopped has been applied again, and checkpoints of then are not made.
    is_live: bool,
    cut: Option<Cut>,
    /// Values of the next piece that have come from the disk.
    past: PastValues,
    /// Cuts whose state was not kept, because one was under way.
    skipped: Vec<Epoch>,
    /// The number of entries that were applied.
    applied: u64,
    /// A timer is set that frees contents which are not needed any more.
    frees: bool,
}

/// The state at a cut, while it is kept and given away.
#[derive(Debug)]
struct Cut {
    sending: Sending,
    /// Stamps of records, those that are not given yet.
    remembered: Vec<Remembered>,
    next: Position,
    /// So much is kept that contents given away are not kept any more, and nothing is compared in the end.
    is_large: bool,
    /// The digest of the records given away.
    digest: Digest,
}

impl Capture {
    /// Gives checkpoints away from now on.
    pub fn set(&mut self, giving: Giving) {
        self.giving = Some(giving);
    }

    /// The node runs.
    pub const fn go_live(&mut self) {
        self.is_live = true;
    }

    /// An entry is applied.
    pub const fn applied(&mut self) {
        self.applied += 1;
    }

    /// The cut of a checkpoint is applied.
    pub fn cut(
        &mut self,
        place: Epoch,
        store: &mut MemoryStore,
        remembered: impl FnOnce(&MemoryStore) -> Vec<Remembered>,
    ) {
        if self.giving.is_none() || !self.is_live {
            return;
        }
        if self.cut.is_some() {
            return self.skipped.push(place);
        }
        let remembered = remembered(store);
        let (next, digest) = (Position::default(), Digest::default());
        self.cut = Some(Cut { sending: Sending::of(place), remembered, next, is_large: false, digest });
        self.keep(store);
    }

    /// Has the store keep what is to be given yet, and nothing else.
    fn keep(&self, store: &mut MemoryStore) {
        let cut = self.cut.as_ref();
        let given = cut.filter(|cut| cut.is_large).map_or(Position::default(), |cut| cut.next);
        store.keep(Keep { since: None, cut: cut.map(|cut| era_before(cut.sending.place)), given });
    }

    /// The checkpointer has written a piece, or given the checkpoint up.
    pub fn take(&mut self, saving: &Saving, store: &mut MemoryStore, values: Option<&mut Values>) {
        if self.cut.take_if(|cut| cut.sending.is_dropped(saving)).is_some() {
            self.keep(store);
            self.past.clear();
            values.into_iter().for_each(|tier| tier.forget(&Waiter::Checkpoint));
        }
    }

    /// Values of the next piece have come from the disk.
    pub fn take_values(&mut self, past: PastValues) {
        self.past.extend(past);
    }

    /// Giving has rested: what is not needed any more is freed, some at a time.
    pub fn rested(&mut self, store: &mut MemoryStore) {
        self.frees = false;
        self.cut.iter_mut().for_each(|cut| cut.sending.rested());
        if self.cut.is_none() {
            self.keep(store);
        }
    }

    /// Gives the next piece away, unless it rests or values of it are still to come from the disk; answers after which time there is more
    /// to do, if there is.
    ///
    /// # Errors
    /// The records that were given are not the state at the cut: the node must stop.
    pub fn give(
        &mut self,
        store: &mut MemoryStore,
        values: Option<&mut Values>,
        bugs: Bugs,
        out: &mut Outbox<Message>,
    ) -> Result<Option<Micros>, String> {
        for place in self.skipped.drain(..) {
            self.giving.iter().for_each(|giving| out.send(giving.to, Saving::Skipped(place)));
        }
        let (Some(Giving { to, piece: enough }), Some(cut)) = (self.giving, &mut self.cut) else {
            let has_more = !self.frees && (store.older() > 0 || store.free_some(FREED));
            self.frees |= has_more;
            return Ok(has_more.then_some(FREES_AFTER));
        };
        let is_coming = values.as_ref().is_some_and(|tier| tier.awaits(&Waiter::Checkpoint));
        if !cut.sending.may_send() || is_coming {
            return Ok(None);
        }
        let place = cut.sending.place;
        if let Some(piece) = remembered(&mut cut.remembered, enough) {
            cut.sending.send(to, piece, out);
            let pause = cut.sending.rest(self.applied);
            return Ok(Some(pause));
        }
        // Planted, CUT.
        let at = if bugs.has(Bug::CutLate) { Epoch(u64::MAX) } else { era_before(place) };
        cut.is_large |= store.older() > COMPARED_MAX;
        if !cut.is_large {
            store.settle(SETTLED);
        }
        let (piece, rest) = match records(store, (at, &self.past), cut.next, enough) {
            Ok(piece) => piece,
            Err(lacking) => {
                if let Some(tier) = values {
                    lacking.iter().for_each(|evicted| tier.want(evicted, None, Waiter::Checkpoint));
                }
                return Ok(None);
            }
        };
        self.past.clear();
        cut.digest = cut.digest.plus(piece.digest());
        if rest.is_none() && !cut.is_large && cut.digest != store.as_of(at).digest() {
            return Err(format!("what was given of the checkpoint at {place} is another state"));
        }
        cut.sending.send(to, piece, out);
        let pause = match rest {
            Some(next) => {
                cut.next = next;
                cut.sending.rest(self.applied)
            }
            None => {
                out.send(to, Saving::Last(place));
                self.cut = None;
                self.frees = true;
                FREES_AFTER
            }
        };
        self.keep(store);
        Ok(Some(pause))
    }
}

/// The next piece of the records at the end of an era, and the position where the one after it begins.
///
/// # Errors
/// Values that have to come from the disk first.
fn records(
    store: &MemoryStore,
    (at, past): (Epoch, &PastValues),
    from: Position,
    enough: usize,
) -> Result<(Piece, Option<Position>), Vec<Arc<Evicted>>> {
    let mut filling = Filling::new(Kind::Records, enough);
    let mut lacking = Vec::new();
    store.as_of(at).visit(from, |entry| {
        let takes = filling.takes(entry.position);
        if takes && let Some(evicted) = past.lacks(entry.cell) {
            filling.leave_out(Piece::record_len(entry.key, entry.cell));
            lacking.push(evicted.clone());
        } else if takes {
            filling.piece.push_record(entry.db, entry.key, &past.with(entry.cell), entry.version);
        }
        takes
    });
    if lacking.is_empty() { Ok((filling.piece, filling.rest)) } else { Err(lacking) }
}

#[cfg(test)]
mod tests {
    use ordain_model::{Cell, Db, Gsn, KeyHash, Layout, Value};
    use ordain_role::{Address, NodeId};

    use super::*;
    use crate::cuts::SPACING;
    use crate::message::Message;

    const TO: Address = Address { node: NodeId(0), role: 2 };

    fn write(store: &mut MemoryStore, place: u64, key: u64, value: Option<u64>) {
        let name = key.to_le_bytes();
        let record = store.find_or_reserve(Db(0), &name, KeyHash::of_record(Db(0), &name));
        let value = value.map(|value| Value::String(value.to_le_bytes().to_vec()));
        store.put_back(record, Cell { value, ..Cell::ABSENT }, Gsn(place));
        store.release_if_absent(record);
    }

    /// A store with some records, and a capture of a cut behind them.
    fn cut(records: u64, enough: usize) -> (MemoryStore, Capture) {
        let mut store = MemoryStore::new(Layout::single(1).slots_of_shard(0));
        (0..records).for_each(|key| write(&mut store, 1 + key, key, Some(key)));
        let mut capture = Capture::default();
        capture.set(Giving { to: TO, piece: enough });
        capture.go_live();
        capture.cut(Epoch(SPACING), &mut store, |_| Vec::new());
        (store, capture)
    }

    /// Takes the next step; answers the digest of the piece that it sends, and whether it says that this was the last.
    fn give(store: &mut MemoryStore, capture: &mut Capture) -> (Digest, bool) {
        let mut out = Outbox::default();
        capture.give(store, None, Bugs::NONE, &mut out).unwrap();
        let (mut digest, mut is_last) = (Digest::default(), false);
        for (to, message) in out.sends {
            assert_eq!(to, TO);
            match message {
                Message::Saving(Saving::Piece { epoch, piece }) => {
                    assert_eq!(epoch, Epoch(SPACING));
                    digest = digest.plus(piece.digest());
                    capture.take(&Saving::Taken(epoch), store, None);
                }
                Message::Saving(Saving::Last(_)) => is_last = true,
                other => panic!("{other:?}"),
            }
        }
        (digest, is_last)
    }

    #[test]
    fn the_records_at_a_cut_are_given_while_they_are_changed_removed_and_added() {
        for enough in [1, 100, 1 << 20] {
            let (mut store, mut capture) = cut(300, enough);
            let (at_cut, mut given, mut place) = (store.digest(), Digest::default(), SPACING);
            loop {
                let (digest, is_last) = give(&mut store, &mut capture);
                given = given.plus(digest);
                if is_last {
                    break;
                }
                for key in (place % 7..400).step_by(41) {
                    place += 1;
                    write(&mut store, place, key, (key % 3 > 0).then_some(place));
                }
            }
            assert_eq!(given, at_cut, "{enough}");
            while store.older() > 0 {
                capture.rested(&mut store);
            }
            assert_eq!(store.digest(), store.recompute_digest());
        }
    }

    #[test]
    fn a_cut_under_another_is_skipped_and_one_that_is_dropped_is_forgotten() {
        let (mut store, mut capture) = cut(50, 1);
        give(&mut store, &mut capture);
        capture.cut(Epoch(2 * SPACING), &mut store, |_| Vec::new());
        let mut out = Outbox::default();
        capture.give(&mut store, None, Bugs::NONE, &mut out).unwrap();
        let is_skip = |message: &Message| matches!(message, Message::Saving(Saving::Skipped(Epoch(p))) if *p == 2 * SPACING);
        assert!(out.sends.iter().any(|(_, message)| is_skip(message)));
        capture.take(&Saving::Dropped(Epoch(SPACING)), &mut store, None);
        assert_eq!(give(&mut store, &mut capture), (Digest::default(), false));
        write(&mut store, 3 * SPACING, 1, None);
        assert_eq!(store.older(), 0, "nothing is kept for it any more");
    }

    #[test]
    fn what_is_applied_again_at_the_start_is_not_captured() {
        let mut store = MemoryStore::new(Layout::single(1).slots_of_shard(0));
        let mut capture = Capture::default();
        capture.set(Giving { to: TO, piece: 1 });
        capture.cut(Epoch(SPACING), &mut store, |_| Vec::new());
        assert_eq!(give(&mut store, &mut capture), (Digest::default(), false));
    }
}
