//! Values on disk: whoever is about to read some asks for those that are evicted, and waits (decision 58).
//!
//! | who | asks | waits |
//! |---|---|---|
//! | a transaction of the order | whenever it runs on, for some values that its next fragments here read, so [many](Tier::at_once) | before the first such fragment, blocked as for a remote result; others run |
//! | transactions that a scheduler plans apart | before they are planned | the order |
//! | a read on a snapshot | before each transaction of its chunk | aside; others are read |
//! | a move of slots, or a copy | slot by slot | blocked; it is a transaction |
//! | a checkpoint | piece by piece | until the next event |

use ordain_execution::{Arrived, Name, PastValues, Tier};
use ordain_model::serial::key_of;
use ordain_model::{Access, Chunk, Epoch, Fragment, Gsn, KeyHash, Position, Txn};
use ordain_role::{Directory, DiskDone, Outbox};
use ordain_store::{Entry, RecordId, RecordStore, Snapshot};

use super::Core;
use crate::shard::messages::Message;
use crate::shard::state::Active;

/// One who waits for values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waiter {
    /// A transaction of the order, which is blocked.
    Ordered(Gsn),
    /// A transaction of the order that is not planned.
    Planned(Gsn),
    /// A chunk of reads on a snapshot, by the reader's number for it.
    Read(u64),
    /// Reads of past states that a scheduler has planned.
    Past,
    /// The checkpoint under way.
    Checkpoint,
}

/// The tier of a shard, and what it hands to those who ask for past states.
pub(crate) type Values = Tier<Waiter>;

/// Returns whether a fragment can do without the value of its record, where it reads the newest: it does not look at it, and nobody is to
/// have it back should the write be undone.
const fn spares(fragment: &Fragment, may_be_undone: bool) -> bool {
    let is_restored = fragment.writes() && may_be_undone;
    !(fragment.reads_value() || is_restored)
}

impl<S: RecordStore> Core<S> {
    /// Returns the first fragment of a transaction, of those that are left, that has to wait for values from the disk, and asks for them; all of
    /// them run if none has to.
    #[inline]
    pub(super) fn values_until(&mut self, chunk: &Chunk, active: &Active) -> usize {
        if self.values.is_some() { self.want_values(chunk, active) } else { usize::MAX }
    }

    fn want_values(&mut self, chunk: &Chunk, active: &Active) -> usize {
        let txn = &chunk.txns()[active.at];
        let (gsn, who) = (active.gsn, Waiter::Ordered(active.called()));
        let waited = self.awaits(&who);
        let at_once = self.values.as_ref().map_or(0, Tier::at_once);
        let (mut until, mut asked) = (usize::MAX, 0);
        let fragments = chunk.fragments(txn);
        // The record of a fragment that was passed over may yet be shipped.
        let is_left = |(n, fragment): &(usize, &Fragment)| *n >= active.next || fragment.shipped;
        let mut seen = fragments.len();
        for (n, fragment) in fragments.iter().enumerate().filter(is_left) {
            if asked >= at_once {
                seen = n;
                break;
            }
            let bytes = if fragment.is_table() {
                (self.scans_values(fragment) && self.want_all(who)).then_some(at_once)
            } else if fragment.is_keyed() && self.owns(fragment) {
                let guess = active.guesses.get(n).copied().flatten();
                let past = self.is_past(fragment).then(|| self.seen_by(gsn));
                // To undo a write restores what it has replaced without a look, for others to read. A check that is still to come
                // may be what has it undone.
                let is_spared = spares(fragment, active.may_be_undone(txn, active.next));
                let key = key_of(chunk.args(txn), fragment).bytes;
                self.wants(&active.past, (fragment, key), (guess, past, is_spared), who)
            } else {
                None
            };
            if let Some(bytes) = bytes {
                asked += bytes;
                until = until.min(n.max(active.next));
            }
            if fragment.access == Access::TableWrite && n >= active.next {
                // It may give other records the names that follow: they are looked for once it has run.
                seen = n + 1;
                break;
            }
        }
        if until < usize::MAX && !waited {
            self.hold_values(fragments.iter().take(seen).enumerate().filter(is_left), who);
        }
        until
    }

    /// Has the values of fragments stay in memory while their transaction waits for some of them.
    fn hold_values<'a>(&mut self, fragments: impl Iterator<Item = (usize, &'a Fragment)>, who: Waiter) {
        for (_, fragment) in fragments {
            if fragment.is_keyed() && self.owns(fragment) {
                self.values.iter_mut().for_each(|tier| tier.hold(fragment.hash, who));
            }
        }
    }

    /// Asks for the evicted values that a transaction reads here which is not planned, and, if it may be undone, for those that it replaces
    /// without a look: to undo it restores them, for others to read. Returns whether there are any.
    pub fn wants_values_to_plan(&mut self, chunk: &Chunk, txn: &Txn, gsn: Gsn, may_be_undone: bool) -> bool {
        let who = Waiter::Planned(gsn);
        if self.awaits(&who) {
            return true;
        }
        let mut waits = false;
        for fragment in chunk.fragments(txn) {
            // The state before its epoch is not known before that is over.
            if fragment.is_keyed() && self.owns(fragment) && !self.is_past(fragment) {
                let key = key_of(chunk.args(txn), fragment).bytes;
                let how = (None, None, spares(fragment, may_be_undone));
                waits |= self.wants(&PastValues::NONE, (fragment, key), how, who).is_some();
            }
        }
        if waits {
            self.hold_values(chunk.fragments(txn).iter().enumerate(), who);
        }
        waits
    }

    /// Asks for the value that a record had at the end of an epoch, if that is evicted and is not among [`Core::past`]; returns whether it is.
    pub fn wants_past(&mut self, name: Name<'_>, epoch: Epoch) -> bool {
        let Some(tier) = &mut self.values else { return false };
        let state = self.store.as_of(epoch);
        let found = state.find(name.db, name.key, name.hash);
        let lacking = found.and_then(|(cell, _)| self.past.lacks(cell));
        lacking.into_iter().for_each(|evicted| tier.want(evicted, None, Waiter::Past));
        lacking.is_some()
    }

    /// Returns whether reads of past states that a scheduler has planned wait for values.
    pub fn past_is_coming(&self) -> bool {
        self.awaits(&Waiter::Past)
    }

    /// Returns whether values of the checkpoint's next piece are still to come from the disk.
    pub(super) fn piece_is_coming(&self) -> bool {
        self.awaits(&Waiter::Checkpoint)
    }

    /// Returns whether values of a transaction that is not planned are still to come from the disk.
    pub fn awaits_to_plan(&self, gsn: Gsn) -> bool {
        self.awaits(&Waiter::Planned(gsn))
    }

    fn awaits(&self, who: &Waiter) -> bool {
        self.values.as_ref().is_some_and(|tier| tier.awaits(who))
    }

    /// Returns whether values may be evicted.
    pub const fn has_budget(&self) -> bool {
        self.values.is_some()
    }

    /// Asks for the value that a fragment reads if it is evicted; returns the bytes of its frame then. Of an epoch that is past it is one of
    /// `values` once it has come.
    fn wants(
        &mut self,
        values: &PastValues,
        (fragment, key): (&Fragment, &[u8]),
        (guess, past, is_spared): (Option<RecordId>, Option<Epoch>, bool),
        who: Waiter,
    ) -> Option<usize> {
        let tier = self.values.as_mut()?;
        let name = Name { db: fragment.db, key, hash: fragment.hash };
        if let Some(epoch) = past {
            if is_spared {
                return None;
            }
            let state = self.store.as_of(epoch);
            let found = state.find_at(guess, name.db, name.key, name.hash);
            let lacking = found.and_then(|(cell, _)| values.lacks(cell));
            lacking.into_iter().for_each(|evicted| tier.want(evicted, None, who));
            return lacking.map(|evicted| evicted.bytes() as usize);
        }
        let guess = guess.filter(|record| self.store.is_of(*record, name.db, name.key));
        let record = guess.or_else(|| self.store.find(name.db, name.key, name.hash))?;
        self.store.touch(record);
        match self.store.cell(record).evicted().filter(|_| !is_spared) {
            Some(evicted) => {
                tier.want(evicted, Some(name), who);
                Some(evicted.bytes() as usize)
            }
            None => {
                tier.hit();
                None
            }
        }
    }

    fn scans_values(&self, fragment: &Fragment) -> bool {
        self.code.registry.get(fragment.procedure).is_some_and(|procedure| procedure.scans_values())
    }

    /// Asks for all values of this shard that are evicted; returns whether there are any.
    fn want_all(&mut self, who: Waiter) -> bool {
        self.want_some(Position::default(), Position::END, who)
    }

    /// Asks for the values of a slot that are evicted; returns whether there are any.
    pub(super) fn wants_slot(&mut self, slot: usize, gsn: Gsn) -> bool {
        self.want_some(Position::of_slot(slot), Position::of_slot(slot + 1), Waiter::Ordered(gsn))
    }

    fn want_some(&mut self, from: Position, to: Position, who: Waiter) -> bool {
        let (Some(tier), store) = (&mut self.values, &self.store) else { return false };
        let waited = tier.awaits(&who);
        let mut waits = false;
        // Values that are in memory stay there until the others have come.
        for holds in [false, true] {
            if holds && (waited || !waits) {
                break;
            }
            store.visit(from, |Entry { position, db, key, cell, .. }| {
                let is_in = position < to;
                let hash = store.placement().hash_of_record(db, key);
                if is_in && holds {
                    tier.hold(hash, who);
                } else if let Some(evicted) = cell.evicted().filter(|_| is_in) {
                    tier.want(evicted, Some(Name { db, key, hash }), who);
                    waits = true;
                }
                is_in
            });
        }
        waits
    }

    /// Has the value of a name stay in memory, if the store has a budget.
    pub fn pin_value(&mut self, hash: KeyHash) {
        self.values.iter_mut().for_each(|tier| tier.pin(hash));
    }

    /// Takes back a call of [`Core::pin_value`].
    pub fn unpin_value(&mut self, hash: KeyHash) {
        self.values.iter_mut().for_each(|tier| tier.unpin(hash));
    }

    /// Has a directory do what the disk is to do, until the store is within its budget or nothing can be evicted: while no driver runs.
    pub(in crate::shard) fn carry_out(&mut self, directory: &mut dyn Directory) {
        while let Some(tier) = &mut self.values {
            tier.keep_within(&mut self.store);
            tier.flush();
            if !tier.carry_out(directory) {
                return tier.note_settled(&self.store);
            }
            self.take_values();
        }
    }

    /// Returns whether the store holds more than its budget.
    pub(in crate::shard) fn is_over_budget(&self) -> bool {
        self.values.as_ref().is_some_and(|tier| tier.is_over(&self.store))
    }

    /// Takes an answer of the disk.
    pub(in crate::shard) fn take_disk(&mut self, done: DiskDone) {
        match &mut self.values {
            Some(tier) => tier.done(done),
            None => {
                let number = self.site.number;
                self.broken
                    .get_or_insert(format!("shard {number} was answered by a disk that it had not asked"));
            }
        }
    }

    /// Loads what has come from the disk, and has those run on who waited for it.
    pub(in crate::shard) fn take_values(&mut self) {
        let Some(tier) = &mut self.values else { return };
        let arrived = match tier.arrive(&mut self.store) {
            Ok(arrived) => arrived,
            Err(reason) => {
                self.broken.get_or_insert(reason);
                return;
            }
        };
        for Arrived { who, past } in arrived {
            match who {
                Waiter::Ordered(gsn) => {
                    let number = self.active.number(gsn.plain());
                    if let Some(active) = number.and_then(|number| self.active.get_mut(number)) {
                        active.past.extend(past);
                        active.is_fetching = false;
                    }
                    self.active.wake(vec![gsn]);
                }
                // The scheduler tries to plan the next transaction in every event.
                Waiter::Planned(_) => {}
                Waiter::Read(number) => self.reader.go_on_with(number, past),
                Waiter::Past => self.past.extend(past),
                Waiter::Checkpoint => self.capture.past.extend(past),
            }
        }
    }

    /// Evicts values if the store holds more than its budget, and hands over what the disk is to do.
    pub(in crate::shard) fn send_values(&mut self, out: &mut Outbox<Message>) {
        let Some(tier) = &mut self.values else { return };
        tier.keep_within(&mut self.store);
        out.disk.extend(tier.take_requests());
    }

    /// Some time has passed.
    pub(in crate::shard) fn tick_values(&mut self) {
        self.values.iter_mut().for_each(Tier::tick);
    }

    /// Returns whether values have come for those who wait for them.
    pub(in crate::shard) fn has_values(&self) -> bool {
        self.values.as_ref().is_some_and(Tier::has_arrived)
    }
}
