//! A partition's part of a restored cluster: the state at a cut, of which nothing is in doubt any more.
//!
//! What a partition had promised before the cut counts if its home had decided to commit it before the cut, or all regions that vote on it
//! had promised it: all that stands in checkpoints of the same cut. What is left are records, outcomes of sessions and times. Terms begin anew: nobody will ask for
//! anything of before.
//!
//! The view of another region gathers that region's checkpoint here too, and then [shows](Restoring::into_view) what there is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use ordain_checkpoint::{Item, Outcome, Outcomes};
use ordain_model::key::SLOTS;
use ordain_model::wire::Codec as _;
use ordain_model::{Cell, Db, Epoch, Gsn, OutcomeStatus, PartitionId, Placement, Position};
use ordain_store::{MemoryStore, RecordStore};

use crate::entry::{Content, Prepare};
use crate::ids::{Age, AttemptId};
use crate::image::{Image, Part, Remembered, Standing};

/// See the module.
#[derive(Debug)]
pub struct Restoring {
    cut: Epoch,
    store: MemoryStore,
    outcomes: Outcomes,
    image: Image,
    placement: Placement,
    /// Outcomes of sessions are taken.
    has_sessions: bool,
}

/// What all partitions have decided before a cut.
#[derive(Debug, Default)]
pub struct Decisions {
    committed: BTreeMap<AttemptId, Age>,
    /// Of transactions of several regions the regions that have not promised their part.
    unpromised: BTreeMap<AttemptId, BTreeSet<PartitionId>>,
}

impl Decisions {
    /// Adds those of a partition, of which the image alone matters.
    pub fn add(&mut self, part: &Restoring) {
        let decided = part.image.decided.iter();
        let commits = decided.filter_map(|(attempt, of)| Some((*attempt, of.commit.as_ref()?.stamp)));
        self.committed.extend(commits);
        for entry in &part.image.prepared {
            let Content::Prepare(prepare) = &entry.content else { continue };
            let Some(among) = &prepare.among else { continue };
            let all = || among.participants.iter().map(|lead| lead.partition).collect();
            let unpromised = self.unpromised.entry(among.of).or_insert_with(all);
            unpromised.remove(&prepare.attempt.home().partition);
        }
    }

    /// The stamp with which a promise has committed, if it has: its home has decided so, or a region that takes part, or all of those have
    /// promised it.
    fn stamp_of(&self, prepare: &Prepare) -> Option<Age> {
        let Some(among) = &prepare.among else { return self.committed.get(&prepare.attempt).copied() };
        let is_promised = self.unpromised.get(&among.of).is_some_and(BTreeSet::is_empty);
        (is_promised || self.committed.contains_key(&among.of)).then_some(prepare.bounds.from)
    }
}

impl Restoring {
    /// Nothing of a partition's state at a cut yet, whose records are placed like this.
    pub fn new(cut: Epoch, placement: &Placement) -> Restoring {
        Restoring::of_slots(cut, 0..SLOTS, placement)
    }

    /// Nothing yet of the state at a cut that a view is to show, whose records are in these slots. Requests of the region's sessions are
    /// no concern of others.
    pub(crate) fn of_view(cut: Epoch, slots: Range<usize>, placement: &Placement) -> Restoring {
        Restoring { has_sessions: false, ..Restoring::of_slots(cut, slots, placement) }
    }

    fn of_slots(cut: Epoch, slots: Range<usize>, placement: &Placement) -> Restoring {
        let (store, placement) = (MemoryStore::placed(slots, placement.clone()), placement.clone());
        let (outcomes, image) = (Outcomes::default(), Image::default());
        Restoring { cut, store, outcomes, image, placement, has_sessions: true }
    }

    /// The place of the cut.
    pub(crate) const fn cut(&self) -> Epoch {
        self.cut
    }

    /// Takes an item of the partition's checkpoint.
    ///
    /// # Errors
    /// The item is none of this family's.
    pub fn take(&mut self, item: &Item<'_>) -> Result<(), String> {
        match item {
            // A version beyond the cut is of another history, in which versions were counted in another way: it counts as the cut's.
            Item::Record { db, key, cell, version } => {
                self.put(*db, key, cell.clone(), (*version).min(Gsn(self.cut.0)));
            }
            Item::Outcome(outcome) if self.has_sessions => self.outcomes.put(outcome),
            Item::Outcome(_) => {}
            Item::Input(input) => self.image.put(&self.placement, input)?,
            Item::Map(_) => return Err("slots have moved, which they do not with this engine".to_owned()),
        }
        Ok(())
    }

    fn put(&mut self, db: Db, key: &[u8], cell: Cell, version: Gsn) {
        let record = self.store.find_or_reserve(db, key, self.placement.hash_of_record(db, key));
        self.store.put_back(record, cell, version);
        self.store.release_if_absent(record);
    }

    /// The records, and the rest of the state.
    pub(crate) fn into_view(self) -> (MemoryStore, Image) {
        (self.store, self.image)
    }

    /// Installs what is promised and has committed, given what all partitions have decided; the rest never does. Answers how many promises
    /// there were.
    pub fn resolve(&mut self, decisions: &Decisions) -> usize {
        let prepared = std::mem::take(&mut self.image.prepared);
        let count = prepared.len();
        let remembered = std::mem::take(&mut self.image.remembered).into_iter();
        let mut written: BTreeMap<(Db, Vec<u8>), Age> =
            remembered.map(|Remembered { db, key, stamp }| ((db, key), stamp)).collect();
        for entry in prepared {
            let Content::Prepare(prepare) = &entry.content else { continue };
            let Some(stamp) = decisions.stamp_of(prepare) else { continue };
            let version = Gsn(self.cut.0);
            if let Some(among) = &prepare.among
                && let Some((session, request)) = among.session
            {
                let (gsn, status) = (version, OutcomeStatus::Committed);
                self.outcomes.put(&Outcome { session, request, gsn, status, reply: &among.reply });
            }
            prepare.changes.iter().for_each(|change| change.apply(&mut self.store.table(version)));
            for write in &prepare.writes {
                // A later write in the order of stamps stays.
                let written = written.entry((write.db, write.key.clone())).or_default();
                if stamp >= *written {
                    *written = stamp;
                    self.put(write.db, &write.key, write.cell.clone(), version);
                }
            }
        }
        self.image.decided.clear();
        count
    }

    /// Gives the state away: what the checkpoint holds that the restored partition begins with.
    ///
    /// # Errors
    /// Those of `visit`.
    pub fn give<E>(&self, mut visit: impl FnMut(&Item<'_>) -> Result<(), E>) -> Result<(), E> {
        let mut ended = Ok(());
        self.store.visit(Position::default(), |entry| {
            let (db, key, cell, version) = (entry.db, entry.key, entry.cell.clone(), entry.version);
            ended = visit(&Item::Record { db, key, cell, version });
            ended.is_ok()
        });
        ended?;
        self.outcomes.iter().try_for_each(|outcome: Outcome<'_>| visit(&Item::Outcome(outcome)))?;
        // Nobody who is under way has seen anything: no vector is needed.
        let Standing { now, ceiling, .. } = self.image.standing;
        let standing = Standing { now, ceiling, ..Standing::default() };
        visit(&Item::Input(&Part::Standing(standing).to_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ordain_execution::Write;
    use ordain_model::{Millis, OutcomeStatus, PartitionId, RequestNo, SessionId, Value};

    use super::*;
    use crate::agreed::Decided;
    use crate::cuts::SPACING;
    use crate::entry::{Commitment, Entry, Prepare};
    use crate::ids::{Bounds, Lead, Term, TransactionId};
    use crate::view::View;

    fn who(number: u64) -> AttemptId {
        let home = Lead { partition: PartitionId(0), term: Term(4) };
        AttemptId { transaction: TransactionId { home, number }, attempt: 1 }
    }

    fn cell(text: &str) -> Cell {
        Cell { value: Some(Value::String(text.into())), ..Cell::ABSENT }
    }

    fn promise(number: u64, key: &str, cell: Cell) -> Arc<Entry> {
        let writes = vec![Write::new(&ordain_model::Placement::NONE, Db(0), key.into(), cell)];
        let (attempt, bounds, ceiling) = (who(number), Bounds::at(Age(number)), Millis(0));
        let prepare = Prepare {
            attempt,
            bounds,
            view: View::NONE,
            ceiling,
            changes: Vec::new(),
            writes,
            holds: Vec::new(),
            among: None,
        };
        let (place, term, content) = (Epoch(number), Term(9), Content::Prepare(prepare));
        Arc::new(Entry { place, term, now: Millis(0), content, agreed: None })
    }

    #[test]
    fn what_is_promised_counts_if_its_home_has_committed_it_and_nothing_is_in_doubt_then() {
        let mut home = Restoring::new(Epoch(SPACING), &Placement::NONE);
        let decided = |commit| Decided { commit, participants: vec![PartitionId(1)], place: Epoch(2) };
        home.image.decided =
            [(who(1), decided(Some(Commitment::at(Age(1))))), (who(2), decided(None))].into();
        let mut other = Restoring::new(Epoch(SPACING), &Placement::NONE);
        for (key, text) in [("a", "old"), ("b", "old"), ("c", "old")] {
            let (db, key, version) = (Db(0), key.as_bytes(), Gsn(7));
            other.take(&Item::Record { db, key, cell: cell(text), version }).unwrap();
        }
        let (session, request, gsn) = (SessionId(5), RequestNo(6), Gsn(7));
        let outcome = Outcome { session, request, gsn, status: OutcomeStatus::Committed, reply: b"r" };
        other.take(&Item::Outcome(outcome)).unwrap();
        other.image.standing.now = Millis(44);
        other.image.prepared = [
            promise(1, "a", cell("new")),
            promise(2, "b", cell("denied")),
            promise(3, "c", cell("unknown")),
            promise(1, "d", Cell::ABSENT),
        ]
        .into();
        let mut committed = Decisions::default();
        committed.add(&home);
        assert_eq!(other.resolve(&committed), 4);
        let (mut records, mut outcomes, mut image) = (Vec::new(), 0, Image::default());
        let given = other.give(|item| {
            match item {
                Item::Record { key, cell, version, .. } => {
                    let Some(Value::String(text)) = &cell.value else { return Err("no string".to_owned()) };
                    records.push((key.to_vec(), text.to_vec(), version.0));
                }
                Item::Outcome(_) => outcomes += 1,
                Item::Input(input) => image.put(&Placement::NONE, input)?,
                Item::Map(_) => return Err("a map".to_owned()),
            }
            Ok(())
        });
        assert_eq!((given, outcomes), (Ok(()), 1));
        records.sort();
        let expected = [("a", "new", SPACING), ("b", "old", 7), ("c", "old", 7)];
        assert_eq!(records, expected.map(|(key, text, version)| (key.into(), text.into(), version)));
        assert_eq!((image.standing.now, image.prepared.len(), image.decided.len()), (Millis(44), 0, 0));
        assert_eq!(image.standing.term, Term(0));
    }
}
