//! The concurrency control of a view: attempts read what the log of another region has told of, and all that one reads there is of one
//! moment (regions.md, 4.4). What they write stays with them: the region's own participants take it when it is promised there.
//!
//! A view keeps the newest versions alone. So an attempt that comes back for more after the log has gone on is let in only if all that it
//! has read is still as it was: then it has read all of it at this later moment. Else it begins anew. What one access reads is of one
//! moment anyhow, since nothing is applied meanwhile.
//!
//! With the option `overlay` that moment has in addition what transactions of this region have committed there since ([`overlay`]).

mod overlay;

use std::collections::BTreeMap;

use ordain_execution::TableChange;
use ordain_model::children::split_child_key;
use ordain_model::{Cell, Epoch, Gsn};
use ordain_role::{Bug, Bugs};
use ordain_store::{MemoryStore, RecordId, RecordStore};

use crate::concurrency::{ConcurrencyControl, Ended, Ending, Mode, Target, Verdict};
use crate::entry::Commitment;
use crate::ids::{Age, AttemptId, Bounds};
pub use overlay::Laid;
use overlay::{Origin, Overlay};

/// See the module.
#[derive(Debug, Default)]
pub struct Viewing {
    attempts: BTreeMap<AttemptId, Reader>,
    /// The number of records that were installed, and of transactions that the overlay has begun or ended to show.
    installed: u64,
    /// That number at the last change of what has no version: a whole database, or a child of a record that is not there.
    changed: u64,
    granted: u64,
    extended: u64,
    refused: u64,
    overlay: Overlay,
    /// Reads of what the overlay shows.
    overlaid: u64,
    bugs: Bugs,
}

/// An attempt that reads.
#[derive(Debug)]
struct Reader {
    /// The number of changes of what is shown as of which all of this is so.
    at: u64,
    /// The records that it has read, with the origins of what they held.
    read: BTreeMap<RecordId, Origin>,
}

impl Viewing {
    /// A control with planted bugs.
    pub fn planting(bugs: Bugs) -> Viewing {
        Viewing { bugs, ..Viewing::default() }
    }

    /// Lets an attempt read as of now; answers whether it may.
    fn extend(&mut self, store: &MemoryStore, who: AttemptId) -> bool {
        let (installed, changed) = (self.installed, self.changed);
        let reader = self.attempts.entry(who).or_insert(Reader { at: installed, read: BTreeMap::new() });
        if reader.at == installed {
            return true;
        }
        let overlay = &self.overlay;
        let is_as_it_was =
            |(record, origin): (&RecordId, &Origin)| origin_of(overlay, store, *record) == *origin;
        // Planted, ONE-MOMENT: what was read before may be of another moment.
        let may =
            self.bugs.has(Bug::TornView) || reader.at >= changed && reader.read.iter().all(is_as_it_was);
        if may {
            reader.at = installed;
            self.extended += 1;
        }
        may
    }

    /// The log has told of a transaction of the overlay: what has read that has read what the view has now.
    fn uncover(&mut self, store: &mut MemoryStore, of: AttemptId, ended: &mut Ended) {
        let written = self.drop_own(store, of, ended);
        for reader in self.attempts.values_mut() {
            for record in &written {
                if let Some(origin) = reader.read.get_mut(record).filter(|origin| **origin == Origin::Own(of))
                {
                    *origin = Origin::Log(store.version(*record));
                }
            }
        }
    }

    /// Drops a transaction of the overlay; answers the records that it has written.
    fn drop_own(&mut self, store: &mut MemoryStore, of: AttemptId, ended: &mut Ended) -> Vec<RecordId> {
        let written = self.overlay.drop_one(store, of, &mut ended.released);
        self.installed += u64::from(!written.is_empty());
        written
    }

    /// Takes back what an attempt has read; records that nobody reads are released.
    fn forget(&mut self, store: &mut MemoryStore, who: AttemptId, released: &mut Vec<RecordId>) {
        for (record, _) in self.attempts.remove(&who).into_iter().flat_map(|reader| reader.read) {
            let readers = store.lock(record) - 1;
            store.set_lock(record, readers);
            if readers == 0 {
                released.push(record);
            }
        }
    }
}

/// True if a record is a child of one that is not there: no version tells of what becomes of it.
fn is_orphan(store: &MemoryStore, record: RecordId) -> bool {
    let (db, key) = store.key(record);
    let parent = split_child_key(key).filter(|_| db.holds_children());
    parent.is_some_and(|(parent, _)| {
        let hash = store.placement().hash_of_record(db.home(), parent);
        store.find(db.home(), parent, hash).is_none_or(|parent| store.cell(parent).value.is_none())
    })
}

impl ConcurrencyControl for Viewing {
    fn keeps_reads(&self) -> bool {
        false
    }

    fn tells_blind(&self) -> bool {
        true
    }

    fn read_so_far(&self, who: AttemptId, show: &mut dyn FnMut(RecordId, Gsn, Option<AttemptId>)) {
        for (record, origin) in self.attempts.get(&who).into_iter().flat_map(|reader| &reader.read) {
            let (version, by) = match origin {
                Origin::Log(version) => (*version, None),
                Origin::Own(of) => self.overlay.version(*record, *of),
            };
            show(*record, version, by);
        }
    }

    fn lay(&mut self, store: &mut MemoryStore, news: Laid, ended: &mut Ended) {
        match news {
            Laid::Asked(of, writes) => self.overlay.ask(store, of, writes),
            Laid::Committed(of) => self.installed += u64::from(self.overlay.commit(of)),
            Laid::Placed(of, place) => {
                if self.overlay.place(of, place) && !overlay::stays(self.bugs) {
                    self.uncover(store, of, ended);
                }
            }
            Laid::Dropped(of) => _ = self.drop_own(store, of, ended),
            Laid::Told(of, place) => {
                self.overlay.pass(place);
                if !overlay::stays(self.bugs) {
                    self.uncover(store, of, ended);
                }
            }
            Laid::Cleared => {
                // Attempts that have read something of it are refused when they read on.
                self.overlay.all().into_iter().for_each(|of| _ = self.drop_own(store, of, ended));
            }
        }
    }

    fn seen<'a>(&'a self, _: &MemoryStore, record: RecordId, _: (AttemptId, Age)) -> Option<(&'a Cell, Gsn)> {
        let (cell, of) = self.overlay.content(record)?;
        Some((cell, self.overlay.version(record, of).0))
    }

    fn replaced(&self, _: (AttemptId, Age)) -> Vec<(RecordId, &Cell)> {
        self.overlay.contents().collect()
    }

    fn access(
        &mut self,
        store: &mut MemoryStore,
        who: AttemptId,
        _age: Age,
        target: Target,
        mode: Mode,
    ) -> Verdict {
        let Target::Record(record) = target else {
            self.refused += 1;
            return Verdict::Refused;
        };
        if !self.extend(store, who) {
            self.refused += 1;
            return Verdict::Refused;
        }
        if mode == Mode::Blind {
            return Verdict::Granted;
        }
        let origin = origin_of(&self.overlay, store, record);
        self.overlaid += u64::from(matches!(origin, Origin::Own(_)));
        if let Some(reader) = self.attempts.get_mut(&who)
            && reader.read.insert(record, origin).is_none()
        {
            store.set_lock(record, store.lock(record) + 1);
        }
        self.granted += 1;
        Verdict::Granted
    }

    fn change(&mut self, store: &mut MemoryStore, change: TableChange, _with: &Commitment, version: Gsn) {
        self.installed += 1;
        self.changed = self.installed;
        self.overlay.pass(Epoch(version.0));
        change.apply(&mut store.table(version));
    }

    fn install(
        &mut self,
        store: &mut MemoryStore,
        record: RecordId,
        cell: Cell,
        _with: &Commitment,
        version: Gsn,
    ) {
        self.installed += 1;
        self.overlay.pass(Epoch(version.0));
        if is_orphan(store, record) {
            self.changed = self.installed;
        }
        store.put_back(record, cell, version);
    }

    fn finish(&mut self, store: &mut MemoryStore, who: AttemptId, _ending: Ending, ended: &mut Ended) {
        self.forget(store, who, &mut ended.released);
    }

    fn restore(&mut self, _: &mut MemoryStore, who: AttemptId, _: Bounds, _: Target, _: Mode) {
        unreachable!("attempt {who} is promised, and views promise nothing");
    }

    /// What only reads and finds a record expired changes nothing: the record is not there for any later reader either.
    fn find_expired(&mut self, _: &mut MemoryStore, _: AttemptId, _: Age, _: Target) -> Verdict {
        Verdict::Granted
    }

    fn held(&self, _who: AttemptId, _show: &mut dyn FnMut(Target, Mode)) {}

    fn clear(&mut self, store: &mut MemoryStore) {
        let mut released = Vec::new();
        let all: Vec<AttemptId> = self.attempts.keys().copied().collect();
        all.into_iter().for_each(|who| self.forget(store, who, &mut released));
        released.into_iter().for_each(|record| store.release_if_absent(record));
    }

    fn check(&self, store: &MemoryStore, is_live: &dyn Fn(AttemptId) -> bool) -> Result<(), String> {
        if let Some(who) = self.attempts.keys().find(|who| !is_live(**who)) {
            return Err(format!("attempt {who} reads in a view, and is over"));
        }
        if self.changed > self.installed {
            return Err(format!(
                "{} records are installed, the last change was {}",
                self.installed, self.changed
            ));
        }
        let mut holders: BTreeMap<RecordId, u32> = BTreeMap::new();
        let read = self.attempts.values().flat_map(|reader| reader.read.keys().copied());
        read.chain(self.overlay.held()).for_each(|record| *holders.entry(record).or_default() += 1);
        for (record, holders) in holders {
            if store.lock(record) != holders {
                let lock = store.lock(record);
                return Err(format!(
                    "{record:?} has {holders} readers or own writers and the lock word {lock}"
                ));
            }
        }
        self.overlay.check()
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        report("ordain_view_reading", self.attempts.len() as f64);
        report("ordain_view_granted_total", self.granted as f64);
        report("ordain_view_extended_total", self.extended as f64);
        report("ordain_view_refused_total", self.refused as f64);
        report("ordain_view_installed_total", self.installed as f64);
        report("ordain_view_overlay_reads_total", self.overlaid as f64);
        self.overlay.gauges(report);
    }
}

/// The origin of what a view shows of a record.
fn origin_of(overlay: &Overlay, store: &MemoryStore, record: RecordId) -> Origin {
    overlay.content(record).map_or_else(|| Origin::Log(store.version(record)), |(_, of)| Origin::Own(of))
}

#[cfg(test)]
mod tests {
    use ordain_model::{Db, KeyHash, Value};

    use super::*;
    use crate::ids::TransactionId;

    const WHO: AttemptId = AttemptId { transaction: TransactionId::of(1), attempt: 1 };

    struct Hand {
        view: Viewing,
        store: MemoryStore,
        place: u64,
    }

    impl Hand {
        fn new(bugs: Bugs) -> Hand {
            Hand { view: Viewing::planting(bugs), store: MemoryStore::new(0..1024), place: 0 }
        }

        fn find(&mut self, db: Db, key: &str) -> RecordId {
            self.store.find_or_reserve(db, key.as_bytes(), KeyHash::of_record(db, key.as_bytes()))
        }

        fn write(&mut self, db: Db, key: &str) {
            self.place += 1;
            let record = self.find(db, key);
            let cell = Cell { value: Some(Value::String(key.into())), ..Cell::ABSENT };
            let (with, version) = (Commitment::at(Age(0)), Gsn(self.place));
            self.view.install(&mut self.store, record, cell, &with, version);
            self.store.release_if_absent(record);
        }

        fn reads(&mut self, key: &str) -> bool {
            let record = self.find(Db(0), key);
            let Hand { view, store, .. } = self;
            let verdict = view.access(store, WHO, Age(0), Target::Record(record), Mode::Shared);
            view.check(store, &|who| who == WHO).unwrap();
            verdict == Verdict::Granted
        }

        fn finish(&mut self) -> usize {
            let mut ended = Ended::default();
            self.view.finish(&mut self.store, WHO, Ending::Aborted, &mut ended);
            self.view.check(&self.store, &|_| false).unwrap();
            ended.released.len()
        }
    }

    /// An attempt that reads on reads all of it at a later moment, or begins anew (regions.md, 4.4).
    #[test]
    fn all_that_an_attempt_reads_is_of_one_moment() {
        let mut hand = Hand::new(Bugs::NONE);
        ["x", "y", "z"].into_iter().for_each(|key| hand.write(Db(0), key));
        assert!(hand.reads("x") && hand.reads("none"));
        hand.write(Db(0), "y");
        assert!(hand.reads("y"), "x and what is not there are as they were");
        hand.write(Db(0), "x");
        assert!(!hand.reads("z"), "x is not");
        assert_eq!(hand.finish(), 3, "nobody reads them any more");
        assert!(hand.reads("z"));
        hand.write(Db(0), "none");
        assert!(hand.reads("none"));
    }

    #[test]
    fn what_was_not_there_and_is_now_was_read_before() {
        let mut hand = Hand::new(Bugs::NONE);
        assert!(hand.reads("none"));
        hand.write(Db(0), "none");
        assert!(!hand.reads("x"));
        let mut torn = Hand::new(Bugs::NONE.with(Bug::TornView));
        assert!(torn.reads("none"));
        torn.write(Db(0), "none");
        assert!(torn.reads("x"), "the planted bug does not look");
    }

    /// A whole database has no version of its own.
    #[test]
    fn a_change_of_a_whole_database_ends_what_reads_on() {
        let mut hand = Hand::new(Bugs::NONE);
        hand.write(Db(0), "x");
        assert!(hand.reads("x"));
        let change = TableChange::Clear(Some(Db(9)));
        hand.view.change(&mut hand.store, change, &Commitment::at(Age(0)), Gsn(9));
        assert!(!hand.reads("y"));
    }

    #[test]
    fn what_is_read_is_told_with_its_version_and_no_table_is_read() {
        let mut hand = Hand::new(Bugs::NONE);
        hand.write(Db(0), "x");
        let (x, y, z) = (hand.find(Db(0), "x"), hand.find(Db(0), "y"), hand.find(Db(0), "z"));
        let Hand { view, store, .. } = &mut hand;
        for (record, mode) in [(x, Mode::Exclusive), (y, Mode::Shared), (z, Mode::Blind)] {
            let verdict = view.access(store, WHO, Age(0), Target::Record(record), mode);
            assert_eq!(verdict, Verdict::Granted);
        }
        let mut read = Vec::new();
        view.read_so_far(WHO, &mut |record, version, _| read.push((record, version)));
        read.sort_unstable();
        let mut expected = [(x, Gsn(1)), (y, Gsn(0))];
        expected.sort_unstable();
        assert_eq!(read, expected, "who replaces a record has not looked at it");
        assert_eq!(view.access(store, WHO, Age(0), Target::Table, Mode::Shared), Verdict::Refused);
    }
}
