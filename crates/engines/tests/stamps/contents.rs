//! Scenarios of the shared sheet (baselines.md, section 8), by number, that are about contents: writes that look at nothing, and
//! contents that stay. An attempt has the number of its stamp.

use ordain_commit::Mode::{Blind, Exclusive, Shared};
use ordain_commit::Verdict::{Granted, Refused, Waits};
use ordain_commit::{Age, AttemptId, CommitEngine, Mode, Verdict};
use ordain_engines::{mvcc, timestamp};
use ordain_model::Value;
use ordain_role::{Bug, Bugs};
use ordain_store::RecordStore;

use crate::shard::{Shard, first};

const X: u8 = 1;

/// A shard, and what happens there in turn.
struct Story {
    shard: Shard,
}

impl Story {
    fn of(engine: &CommitEngine, thomas: bool, bugs: Bugs) -> Story {
        Story { shard: crate::shard(engine, thomas, bugs) }
    }

    /// Asks for access to the key, or to the table for `None`. An attempt that is refused is over.
    fn ask(&mut self, stamp: u64, of: impl Into<Option<u8>>, mode: Mode) -> Verdict {
        let verdict = self.shard.access(first(stamp), stamp, of.into(), mode);
        if verdict == Refused {
            self.shard.finish(first(stamp));
        }
        self.shard.check();
        verdict
    }

    /// Commits an attempt; answers which are granted for it, and which are refused.
    fn commit(&mut self, stamp: u64) -> (Vec<u64>, Vec<u64>) {
        let outcome = crate::commit(&mut self.shard, first(stamp), stamp);
        self.shard.check();
        let numbers = |all: Vec<ordain_commit::AttemptId>| {
            all.into_iter().map(|who| who.transaction.number).collect::<Vec<u64>>()
        };
        (numbers(outcome.granted), numbers(outcome.refused))
    }

    /// The stamp of the write that an attempt sees at the key; 0 if it sees none.
    fn seen(&mut self, stamp: u64) -> u64 {
        let record = self.shard.record(X);
        let Shard { store, control, .. } = &self.shard;
        let cell = control
            .seen(store, record, (AttemptId::default(), Age(stamp)))
            .map_or(store.cell(record), |(cell, _)| cell);
        match &cell.value {
            Some(Value::String(bytes)) => u64::from_le_bytes(bytes.as_slice().try_into().expect("a stamp")),
            None => 0,
            other => panic!("{other:?}"),
        }
    }
}

const NO_ONE: (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());

#[test]
fn scenario_7_writes_that_look_at_nothing_commit_in_any_order() {
    for engine in [timestamp::ENGINE, mvcc::ENGINE] {
        let mut story = Story::of(&engine, false, Bugs::NONE);
        for stamp in [7, 5, 9] {
            assert_eq!(story.ask(stamp, X, Blind), Granted, "{stamp}");
        }
        assert_eq!((story.ask(6, X, Shared), story.ask(8, X, Shared)), (Waits, Waits));
        // Those that wait for 5 and 7 are judged anew when 9 is there, and with `mvcc` they have what they wait for yet.
        let keeps = engine.name == "mvcc";
        let refused = if keeps { vec![] } else { vec![6, 8] };
        assert_eq!(story.commit(9), (vec![], refused));
        assert_eq!(story.commit(5), (if keeps { vec![6] } else { vec![] }, vec![]));
        assert_eq!(story.commit(7), (if keeps { vec![8] } else { vec![] }, vec![]));
        assert_eq!((story.ask(10, X, Shared), story.seen(10)), (Granted, 9), "the latest stays");
        if keeps {
            assert_eq!([4, 5, 6, 7, 8, 9].map(|stamp| story.seen(stamp)), [0, 5, 5, 7, 7, 9]);
            assert_eq!(story.shard.gauge("ordain_stamps_contents"), 3.0);
        }
    }
}

/// Sheet B-4: of several writes that are ready the smallest stays, and the rest is lost.
#[test]
fn a_write_that_replaces_a_later_one_is_lost_data() {
    for engine in [timestamp::ENGINE, mvcc::ENGINE] {
        let mut story = Story::of(&engine, false, Bugs::NONE.with(Bug::InstallLate));
        [5, 7].into_iter().for_each(|stamp| assert_eq!(story.ask(stamp, X, Blind), Granted));
        assert_eq!((story.commit(7), story.commit(5)), (NO_ONE, NO_ONE));
        assert_eq!(story.seen(10), 5, "the planted mistake");
    }
}

#[test]
fn thomass_rule_lets_a_write_in_that_no_read_has_missed() {
    for (thomas, late) in [(false, Refused), (true, Granted)] {
        let mut story = Story::of(&timestamp::ENGINE, thomas, Bugs::NONE);
        assert_eq!((story.ask(7, X, Blind), story.commit(7)), (Granted, NO_ONE));
        assert_eq!(story.ask(5, X, Blind), late, "{thomas}");
        assert_eq!(story.commit(5), NO_ONE);
        assert_eq!(story.seen(8), 7, "what 5 has written is dropped");
        assert_eq!(story.ask(6, X, Exclusive), Refused, "it would have to read that");
        assert_eq!((story.ask(9, X, Shared), story.ask(8, X, Blind)), (Granted, Refused), "9 has missed it");
    }
}

#[test]
fn scenario_9_what_is_older_than_the_floor_is_refused() {
    for (bugs, verdict) in [(Bugs::NONE, Refused), (Bugs::NONE.with(Bug::ShowNewest), Granted)] {
        let mut story = Story::of(&mvcc::ENGINE, false, bugs);
        for stamp in [10, 20, 30] {
            assert_eq!((story.ask(stamp, X, Exclusive), story.commit(stamp)), (Granted, NO_ONE));
        }
        assert_eq!((story.ask(15, X, Shared), story.seen(15)), (Granted, 10));
        story.shard.finish(first(15));
        story.shard.control.advance(&mut story.shard.store, Age(25));
        assert_eq!(story.shard.gauge("ordain_stamps_contents"), 1.0, "25 sees that of 20");
        assert_eq!((story.ask(26, X, Shared), story.seen(26)), (Granted, 20));
        // Sheet B-5: the public code shows the base row then, which holds a newer content.
        assert_eq!(story.ask(16, X, Shared), verdict);
        assert_eq!(story.seen(16), 30);
        assert!(verdict == Granted || story.ask(17, X, Blind) == Refused);
    }
}

#[test]
fn scenario_10_a_content_comes_between_others() {
    let mut story = Story::of(&mvcc::ENGINE, false, Bugs::NONE);
    for stamp in [10, 40] {
        assert_eq!((story.ask(stamp, X, Blind), story.commit(stamp)), (Granted, NO_ONE));
    }
    assert_eq!((story.ask(25, X, Shared), story.seen(25)), (Granted, 10));
    assert_eq!(story.ask(20, X, Blind), Refused, "25 has read what is before it");
    assert_eq!((story.ask(30, X, Blind), story.commit(30)), (Granted, NO_ONE));
    assert_eq!([9, 10, 29, 30, 39, 40].map(|stamp| story.seen(stamp)), [0, 10, 10, 30, 30, 40]);
    assert_eq!(story.ask(35, X, Exclusive), Granted, "it reads that of 30");
    assert_eq!(story.ask(32, X, Blind), Refused, "35 has read");
    assert_eq!(story.ask(45, X, Shared), Granted, "what is before the newest does not concern it");
    assert_eq!(story.ask(38, X, Shared), Waits, "for 35");
    assert_eq!(story.commit(35), (vec![38], vec![]));
    assert_eq!([34, 35, 39, 40].map(|stamp| story.seen(stamp)), [30, 35, 35, 40]);
}

/// Whoever only reads is never refused but below the floor.
#[test]
fn a_reader_of_the_whole_table_sees_what_its_stamp_sees() {
    let mut story = Story::of(&mvcc::ENGINE, false, Bugs::NONE);
    for stamp in [10, 20] {
        assert_eq!((story.ask(stamp, X, Exclusive), story.commit(stamp)), (Granted, NO_ONE));
    }
    assert_eq!(story.ask(15, None, Shared), Granted);
    let record = story.shard.record(X);
    let replaced = story.shard.control.replaced((AttemptId::default(), Age(15)));
    assert_eq!(replaced.iter().map(|(record, _)| *record).collect::<Vec<_>>(), [record]);
    assert_eq!(story.ask(12, X, Blind), Refused, "it has read all");
    assert_eq!((story.ask(30, None, Exclusive), story.commit(30)), (Granted, NO_ONE));
    assert_eq!(story.ask(25, None, Shared), Refused, "what the table held before is gone");
    assert_eq!((story.seen(31), story.shard.control.replaced((AttemptId::default(), Age(31))).len()), (0, 0));
}
