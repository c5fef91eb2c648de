//! Tests of overlays: what is laid over a view, shown, and taken away.

use ordain_model::{Cell, Db, Epoch, Gsn, KeyHash, Placement, Value};
use ordain_role::{Bug, Bugs};
use ordain_store::{MemoryStore, RecordId, RecordStore};

use super::super::Viewing;
use super::*;
use crate::concurrency::{ConcurrencyControl, Ended, Ending, Mode, Target, Verdict};
use crate::entry::Commitment;
use crate::ids::{Age, TransactionId};

const READER: AttemptId = AttemptId { transaction: TransactionId::of(1), attempt: 1 };
const M1: AttemptId = AttemptId { transaction: TransactionId::of(2), attempt: 1 };
const M2: AttemptId = AttemptId { transaction: TransactionId::of(3), attempt: 1 };

/// A view of another region, and its store.
struct Hand {
    view: Viewing,
    store: MemoryStore,
    bugs: Bugs,
}

fn cell(text: &str) -> Cell {
    Cell { value: Some(Value::String(text.into())), ..Cell::ABSENT }
}

fn write(key: &str, cell: Cell) -> Write {
    Write::new(&Placement::NONE, Db(0), key.as_bytes().to_vec(), cell)
}

impl Hand {
    fn new() -> Hand {
        Hand::planting(Bugs::NONE)
    }

    fn planting(bugs: Bugs) -> Hand {
        Hand { view: Viewing::planting(bugs), store: MemoryStore::new(0..1024), bugs }
    }

    fn find(&mut self, key: &str) -> RecordId {
        self.store.find_or_reserve(Db(0), key.as_bytes(), KeyHash::of_record(Db(0), key.as_bytes()))
    }

    fn lay(&mut self, news: Laid) {
        let mut ended = Ended::default();
        self.view.lay(&mut self.store, news, &mut ended);
        ended.released.into_iter().for_each(|record| self.store.release_if_absent(record));
        let checked = self.view.check(&self.store, &|_| true);
        assert!(checked.is_ok() || self.bugs != Bugs::NONE, "{checked:?}");
    }

    fn ask(&mut self, of: AttemptId, writes: &[(&str, Cell)]) {
        self.lay(Laid::Asked(of, writes.iter().map(|(key, cell)| write(key, cell.clone())).collect()));
    }

    /// A transaction of the region that owns the view has written this.
    fn own(&mut self, of: AttemptId, writes: &[(&str, Cell)]) {
        self.ask(of, writes);
        self.lay(Laid::Committed(of));
    }

    /// The log tells of something at a place, which is the outcome of a transaction if there is one.
    fn tell(&mut self, place: u64, of: Option<AttemptId>, writes: &[(&str, Cell)]) {
        for (key, cell) in writes {
            let record = self.find(key);
            let with = Commitment::at(Age(0));
            self.view.install(&mut self.store, record, cell.clone(), &with, Gsn(place));
            self.store.release_if_absent(record);
        }
        of.into_iter().for_each(|of| self.lay(Laid::Told(of, Epoch(place))));
    }

    /// The content that is shown of a record, and its version.
    fn shown(&mut self, key: &str) -> (Option<String>, Gsn) {
        let record = self.find(key);
        let seen = self.view.seen(&self.store, record, (READER, Age(0)));
        let (cell, version) = seen.unwrap_or_else(|| (self.store.cell(record), self.store.version(record)));
        let text = cell.value.as_ref().map(|value| match value {
            Value::String(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => format!("{other:?}"),
        });
        self.store.release_if_absent(record);
        (text, version)
    }

    fn reads(&mut self, key: &str) -> bool {
        let record = self.find(key);
        let Hand { view, store, .. } = self;
        let verdict = view.access(store, READER, Age(0), Target::Record(record), Mode::Shared);
        view.check(store, &|_| true).unwrap();
        verdict == Verdict::Granted
    }

    /// The versions that the reader has read, in order of keys, with the transactions that it names.
    fn read(&self) -> Vec<(String, Gsn, Option<AttemptId>)> {
        let mut read = Vec::new();
        self.view.read_so_far(READER, &mut |record, version, by| {
            let key = String::from_utf8_lossy(self.store.key(record).1).into_owned();
            read.push((key, version, by));
        });
        read.sort();
        read
    }

    fn finish(&mut self) {
        let mut ended = Ended::default();
        self.view.finish(&mut self.store, READER, Ending::Aborted, &mut ended);
        ended.released.into_iter().for_each(|record| self.store.release_if_absent(record));
        self.view.check(&self.store, &|_| false).unwrap();
    }
}

#[test]
fn own_writes_are_shown_from_the_commit_until_the_log_tells_of_them() {
    let mut hand = Hand::new();
    hand.tell(3, None, &[("x", cell("old")), ("z", cell("z"))]);
    hand.ask(M1, &[("x", cell("new")), ("y", cell("new"))]);
    assert_eq!(hand.shown("x"), (Some("old".to_owned()), Gsn(3)), "it has not committed");
    hand.lay(Laid::Committed(M1));
    assert!(hand.reads("x") && hand.reads("y") && hand.reads("z"));
    let [x, y, z] = &hand.read()[..] else { panic!("three are read") };
    assert_eq!((x.2, y.2, z), (Some(M1), Some(M1), &("z".to_owned(), Gsn(3), None)));
    assert!(x.1 != Gsn::NONE && x.1 == y.1, "an absent record alone has no version");
    hand.lay(Laid::Placed(M1, Epoch(7)));
    assert_eq!(hand.shown("y"), (Some("new".to_owned()), Gsn(7)));
    assert_eq!(hand.read()[0], ("x".to_owned(), Gsn(7), None), "the version is known now");
    // Something comes before it in the log.
    hand.tell(5, None, &[("x", cell("between"))]);
    assert_eq!(hand.shown("x").0, Some("new".to_owned()));
    hand.tell(7, Some(M1), &[("x", cell("new")), ("y", cell("new"))]);
    assert!(hand.reads("z"), "what has been read is as it was");
    assert_eq!(hand.read()[..2].iter().map(|read| (read.1, read.2)).collect::<Vec<_>>(), [(Gsn(7), None); 2]);
    hand.finish();
    hand.tell(9, None, &[("x", cell("later"))]);
    assert_eq!(hand.shown("x"), (Some("later".to_owned()), Gsn(9)));
    assert_eq!(hand.store.lock(hand.store.find(Db(0), b"x", KeyHash::of_record(Db(0), b"x")).unwrap()), 0);
}

/// A commit of the own region is a change of what is shown: who has read what it changes begins anew.
#[test]
fn a_commit_changes_what_is_shown_at_once() {
    let mut hand = Hand::new();
    hand.tell(3, None, &[("x", cell("old")), ("z", cell("z"))]);
    assert!(hand.reads("z"));
    hand.own(M1, &[("x", cell("new")), ("y", cell("new"))]);
    assert!(hand.reads("y"), "z is as it was");
    hand.own(M2, &[("z", cell("new"))]);
    assert!(!hand.reads("x"), "z is not");
    hand.finish();
    assert!(hand.reads("x"));
    hand.lay(Laid::Cleared);
    assert!(!hand.reads("z"), "what x had is not shown any more");
    hand.finish();
    assert_eq!(hand.shown("x"), (Some("old".to_owned()), Gsn(3)));
    assert_eq!(hand.shown("y"), (None, Gsn::NONE));
}

#[test]
fn of_two_writes_of_a_record_the_later_is_shown() {
    let mut hand = Hand::new();
    hand.own(M1, &[("x", cell("1"))]);
    hand.own(M2, &[("x", cell("2"))]);
    assert!(hand.reads("x"));
    hand.lay(Laid::Placed(M2, Epoch(6)));
    hand.tell(5, Some(M1), &[("x", cell("1"))]);
    assert_eq!(hand.shown("x"), (Some("2".to_owned()), Gsn(6)));
    assert!(hand.reads("y"), "x is as it was");
    hand.tell(6, Some(M2), &[("x", cell("2"))]);
    assert!(hand.reads("z"));
    assert_eq!(hand.read()[0], ("x".to_owned(), Gsn(6), None));
}

/// An absent record has no version, and a read that names its writer waits for that one's outcome all the same.
#[test]
fn a_removal_is_shown_and_so_is_what_is_made_anew() {
    let mut hand = Hand::new();
    hand.tell(3, None, &[("x", cell("old"))]);
    hand.own(M1, &[("x", Cell::ABSENT)]);
    assert_eq!(hand.shown("x"), (None, Gsn::NONE));
    assert!(hand.reads("x"));
    assert_eq!(hand.read(), [("x".to_owned(), Gsn::NONE, Some(M1))]);
    hand.finish();
    hand.own(M2, &[("x", cell("new"))]);
    assert_eq!(hand.shown("x").0, Some("new".to_owned()));
    hand.tell(4, Some(M1), &[("x", Cell::ABSENT)]);
    assert_eq!(hand.shown("x").0, Some("new".to_owned()));
    hand.tell(5, Some(M2), &[("x", cell("new"))]);
    assert_eq!(hand.shown("x"), (Some("new".to_owned()), Gsn(5)));
}

#[test]
fn what_comes_to_nothing_was_never_shown_and_nothing_is_left_of_it() {
    let mut hand = Hand::new();
    hand.ask(M1, &[("x", cell("1"))]);
    hand.lay(Laid::Dropped(M1));
    // Its commit cannot come then; a word of it changes nothing.
    hand.lay(Laid::Committed(M1));
    assert_eq!((hand.shown("x"), hand.store.records()), ((None, Gsn::NONE), 0));
    // The log has told of it before its own region has heard of all votes.
    hand.ask(M2, &[("x", cell("2"))]);
    hand.tell(4, Some(M2), &[("x", cell("2"))]);
    hand.lay(Laid::Committed(M2));
    hand.tell(5, None, &[("x", cell("3"))]);
    assert_eq!(hand.shown("x"), (Some("3".to_owned()), Gsn(5)));
}

/// A word of the place may come when the log has told of it already, whatever has delayed the rest.
#[test]
fn a_place_of_which_the_log_has_told_ends_the_transaction() {
    let mut hand = Hand::new();
    hand.tell(6, None, &[("z", cell("z"))]);
    hand.own(M1, &[("x", cell("1"))]);
    hand.lay(Laid::Placed(M1, Epoch(5)));
    assert_eq!(hand.shown("x"), (None, Gsn::NONE));
}

#[test]
fn an_overlay_is_bounded_and_holds_no_children() {
    let mut hand = Hand::new();
    let large = vec![0; BYTES_MAX + 1];
    hand.own(M1, &[("x", Cell { value: Some(Value::String(large)), ..Cell::ABSENT })]);
    assert_eq!(hand.shown("x"), (None, Gsn::NONE));
    let many: Vec<Write> = (0..=RECORDS_MAX).map(|n| write(&n.to_string(), Cell::ABSENT)).collect();
    hand.lay(Laid::Asked(M1, many));
    let child = ordain_model::children::child_key(b"y", b"part").to_vec();
    let child = Write::new(&Placement::NONE, Db(0).children(), child, cell("part"));
    hand.lay(Laid::Asked(M2, vec![write("y", cell("1")), child]));
    hand.lay(Laid::Committed(M2));
    assert_eq!((hand.shown("y"), hand.store.records()), ((None, Gsn::NONE), 0));
    let mut left_out = 0.0;
    hand.view.gauges(&mut |name, value| {
        left_out += if name == "ordain_view_overlay_left_out_total" { value } else { 0.0 };
    });
    assert_eq!(left_out, 2.0);
}

#[test]
fn an_overlay_that_outlives_what_the_log_tells_is_found() {
    let mut hand = Hand::planting(Bugs::NONE.with(Bug::KeepOverlay));
    hand.own(M1, &[("x", cell("1"))]);
    hand.lay(Laid::Placed(M1, Epoch(4)));
    hand.tell(4, Some(M1), &[("x", cell("1"))]);
    hand.tell(5, None, &[("x", cell("2"))]);
    assert_eq!(hand.shown("x").0, Some("1".to_owned()), "the past is shown");
    let found = hand.view.check(&hand.store, &|_| true);
    assert!(found.is_err_and(|reason| reason.contains("older than the view")));
}
