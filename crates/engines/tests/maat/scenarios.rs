//! Scenarios of the shared sheet (baselines.md, section 8), by number, and what the control decides of schedule 13 (commit.md), on one
//! participant or two. A transaction writes its number.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ordain_commit::Mode::{Blind, Exclusive, Shared};
use ordain_commit::Verdict::{Granted, Refused};
use ordain_commit::{Age, AttemptId, Bounds, Ending, Mode, Verdict};
use ordain_role::{Bug, Bugs};

use crate::shard::{Outcome, Shard, first};
use crate::{Rules, bounds, install, seen, validate};

const X: u8 = 1;
const Y: u8 = 2;

const DEFERRED: Rules = Rules { prewrite: "deferred", cap: 100 };
const AT_ACCESS: Rules = Rules { prewrite: "access", cap: 100 };
const ALL: Rules = Rules { prewrite: "deferred", cap: 0 };

/// The stamps that participants give.
const GIVEN: Bounds = Bounds { from: Age(1), until: Age(1_000) };

/// A participant, and what happens there in turn.
struct Story {
    shard: Shard,
}

impl Story {
    fn of(rules: Rules) -> Story {
        Story { shard: crate::shard(rules, Bugs::NONE) }
    }

    /// Asks for access to the key, or to the table for `None`, with a first stamp. An attempt that is refused is over.
    fn ask(&mut self, n: u64, from: u64, of: impl Into<Option<u8>>, mode: Mode) -> Verdict {
        let verdict = self.shard.access(first(n), from, of.into(), mode);
        self.shard.check();
        if verdict == Refused {
            self.abort(n);
        }
        verdict
    }

    /// Validates an attempt whose coordinator has no bounds of others.
    fn validate(&mut self, n: u64) -> Option<Bounds> {
        self.validate_within(n, Bounds::from(Age(1)))
    }

    fn validate_within(&mut self, n: u64, asked: Bounds) -> Option<Bounds> {
        let left = validate(&mut self.shard, first(n), asked, GIVEN);
        self.shard.check();
        left
    }

    fn end(&mut self, n: u64, ending: Ending) {
        assert_eq!(self.shard.end(first(n), ending), Outcome::default());
        self.shard.check();
    }

    /// Installs the number of an attempt in all that it may write, and ends it.
    fn commit(&mut self, n: u64, stamp: u64) {
        for (key, mode) in self.shard.held(first(n)) {
            if mode != Shared {
                install(&mut self.shard, key, Some(n), stamp);
            }
        }
        self.end(n, Ending::Committed(Age(stamp)));
    }

    fn abort(&mut self, n: u64) {
        assert_eq!(self.shard.finish(first(n)), Outcome::default());
        self.shard.check();
    }

    fn seen(&self, key: u8) -> Option<u64> {
        seen(&self.shard, key)
    }

    /// True if nobody is under way.
    fn is_idle(&self) -> bool {
        ["attempts", "validated"].iter().all(|of| self.shard.gauge(&format!("ordain_stamps_{of}")) == 0.0)
    }
}

#[test]
fn scenario_1_two_updates_of_one_key() {
    for rules in [DEFERRED, AT_ACCESS] {
        let mut story = Story::of(rules);
        for n in [1, 2] {
            assert_eq!(story.ask(n, 1, X, Exclusive), Granted, "nobody waits");
        }
        assert_eq!(story.validate(1), Some(bounds(2, 102)), "2 has a stamp left, as if it only read");
        assert_eq!(story.validate(2), None, "it has read what 1 writes, and writes after it");
        story.abort(2);
        story.commit(1, 2);
        assert_eq!((story.ask(3, 1, X, Exclusive), story.validate(3)), (Granted, Some(bounds(3, 103))));
        story.commit(3, 3);
        assert!(story.seen(X) == Some(3) && story.is_idle());
    }
}

/// Two participants: 1 reads X at the first and writes Y at the second, 2 reads that and writes X.
fn skewed() -> (Story, Story) {
    let (mut a, mut b) = (Story::of(DEFERRED), Story::of(DEFERRED));
    assert_eq!((a.ask(1, 1, X, Shared), b.ask(1, 1, Y, Blind)), (Granted, Granted));
    assert_eq!((b.ask(2, 1, Y, Shared), a.ask(2, 1, X, Blind)), (Granted, Granted));
    (a, b)
}

#[test]
fn scenario_2_write_skew_over_two_participants() {
    let (mut a, mut b) = skewed();
    let first = a.validate(1).unwrap();
    assert_eq!(first, bounds(1, 101));
    assert_eq!(b.validate_within(1, first), Some(bounds(2, 101)), "behind 2, which runs");
    assert_eq!(b.validate(2), Some(bounds(1, 2)), "it reads what is before");
    assert_eq!(a.validate_within(2, bounds(1, 2)), None, "and would write what 1 has not read");
    a.abort(2);
    a.commit(1, 2);
    assert_eq!((a.ask(3, 1, X, Blind), a.validate(3)), (Granted, Some(bounds(3, 103))), "1 has read at 2");
}

#[test]
fn scenario_14_validators_that_cross_abort_both() {
    let (mut a, mut b) = skewed();
    assert_eq!((a.validate(1), b.validate(2)), (Some(bounds(1, 101)), Some(bounds(1, 101))));
    // Each is behind the other where it writes: neither has a stamp in both.
    assert_eq!((b.validate(1), a.validate(2)), (Some(bounds(101, 201)), Some(bounds(101, 201))));
    for story in [&mut a, &mut b] {
        [1, 2].iter().for_each(|n| story.abort(*n));
        assert!(story.is_idle());
    }
    assert_eq!(
        (a.ask(3, 1, X, Exclusive), a.validate(3)),
        (Granted, Some(bounds(1, 101))),
        "they left nothing"
    );
}

/// The cap decides: 1, which reads all, leaves 2 stamps behind it or none.
#[test]
fn scenario_14_validators_that_cross_commit_both_if_a_cap_leaves_stamps() {
    for (rules, last) in [(DEFERRED, Some(bounds(101, 102))), (ALL, None)] {
        let (mut a, mut b) = (Story::of(rules), Story::of(rules));
        for story in [&mut a, &mut b] {
            assert_eq!((story.ask(1, 1, X, Shared), story.ask(2, 1, X, Blind)), (Granted, Granted));
        }
        let of_first = a.validate(1).unwrap();
        let of_second = b.validate(2).unwrap();
        let until = if rules.cap == 0 { GIVEN.until.0 } else { 102 };
        assert_eq!((of_first.from, of_second), (Age(1), bounds(2, until)));
        assert_eq!(b.validate_within(1, of_first), Some(bounds(1, 2)), "{rules:?}");
        assert_eq!(a.validate_within(2, of_second), last, "{rules:?}");
        a.commit(1, 1);
        let Some(Bounds { from: Age(stamp), .. }) = last else { continue };
        b.commit(2, stamp);
        b.commit(1, 1);
        a.commit(2, stamp);
        assert_eq!((a.seen(X), b.seen(X)), (Some(2), Some(2)));
    }
}

#[test]
fn scenario_13_a_reader_between_validation_and_installation() {
    let mut story = Story::of(DEFERRED);
    assert_eq!((story.ask(1, 10, X, Blind), story.validate(1)), (Granted, Some(bounds(10, 110))));
    assert_eq!(story.ask(2, 20, X, Shared), Refused, "it comes after what it cannot see yet");
    assert_eq!((story.ask(3, 5, X, Shared), story.seen(X)), (Granted, None));
    assert_eq!(story.ask(4, 5, X, Shared), Granted);
    assert_eq!(story.validate(3), Some(bounds(5, 10)), "before the write");
    story.commit(1, 10);
    assert_eq!(story.ask(4, 5, X, Shared), Refused, "the content is another now");
    assert_eq!((story.ask(5, 5, X, Shared), story.seen(X)), (Granted, Some(1)));
    assert_eq!(story.validate(5), Some(bounds(11, 111)));
    story.commit(3, 5);
    story.commit(5, 11);
    assert!(story.is_idle());
}

/// A validated attempt is not moved, and takes no further access.
#[test]
fn who_is_validated_stays_as_it_is() {
    let mut story = Story::of(DEFERRED);
    assert_eq!((story.ask(1, 1, X, Shared), story.validate(1)), (Granted, Some(bounds(1, 101))));
    assert_eq!((story.ask(2, 1, X, Blind), story.validate(2)), (Granted, Some(bounds(101, 201))));
    assert_eq!((story.ask(3, 1, X, Blind), story.validate(3)), (Granted, Some(bounds(201, 301))));
    for (n, left) in [(1, bounds(1, 101)), (2, bounds(101, 201)), (3, bounds(201, 301))] {
        assert_eq!(story.validate(n), Some(left));
    }
    assert_eq!(story.shard.access(first(1), 1, Some(Y), Shared), Refused);
    story.abort(1);
    assert_eq!(story.validate_within(9, bounds(7, 50)), Some(bounds(7, 50)), "it has asked for nothing here");
    assert_eq!(story.validate_within(9, bounds(0, 1)), None, "no such stamp is given any more");
    assert_eq!((story.ask(8, 1, Y, Shared), story.ask(7, 1, Y, Blind)), (Granted, Granted));
    for n in [8, 7] {
        let left = validate(&mut story.shard, first(n), Bounds::from(Age(1)), bounds(400, 1_000));
        assert_eq!(left, Some(bounds(400 + 100 * (8 - n), 500 + 100 * (8 - n))), "no earlier one is given");
    }
    [8, 7].iter().for_each(|n| story.abort(*n));
    // Two that write one key may commit with the stamps that they have, the later one first.
    story.commit(3, 201);
    story.commit(2, 150);
    assert!(story.seen(X) == Some(3) && story.is_idle());
}

#[test]
fn scenario_15_a_write_that_is_skipped_and_then_a_reader() {
    let mut story = Story::of(DEFERRED);
    assert_eq!((story.ask(1, 10, X, Blind), story.validate(1)), (Granted, Some(bounds(10, 110))));
    assert_eq!((story.ask(2, 1, X, Blind), story.validate(2)), (Granted, Some(bounds(110, 210))));
    story.commit(2, 110);
    assert_eq!(story.ask(3, 1, X, Shared), Refused, "1 is on its way");
    story.commit(1, 10);
    assert_eq!((story.ask(4, 1, X, Shared), story.seen(X)), (Granted, Some(2)), "1 is skipped");
    assert_eq!(story.validate(4), Some(bounds(111, 211)));
}

/// Found by the simulator (`--seed 1 --profile storm --option cap=1`): the marks of two participants lie further apart than what a validated attempt
/// keeps. A refusal names the first stamp that there would be, and the next attempt begins with it.
#[test]
fn a_refusal_names_the_stamp_that_another_attempt_begins_with() {
    let mut story = Story::of(DEFERRED);
    assert_eq!((story.ask(1, 500, X, Shared), story.validate(1)), (Granted, Some(bounds(500, 600))));
    story.commit(1, 500);
    assert_eq!(story.ask(2, 1, X, Blind), Granted);
    let left = story.shard.control.validate(&mut story.shard.store, first(2), bounds(1, 101), GIVEN);
    assert!(left.is_empty() && left.from == Age(501), "{left:?}");
    story.abort(2);
    assert_eq!(story.ask(3, 501, X, Blind), Granted);
    assert_eq!(story.validate_within(3, bounds(501, 601)), Some(bounds(501, 601)));
    story.abort(3);
}

#[test]
fn scenario_16_one_that_is_validated_and_aborted_leaves_its_neighbours() {
    let mut story = Story::of(AT_ACCESS);
    assert_eq!((story.ask(1, 1, X, Shared), story.ask(2, 10, X, Exclusive)), (Granted, Granted));
    assert_eq!(story.ask(3, 1, X, Blind), Granted);
    assert_eq!(story.validate(2), Some(bounds(10, 110)));
    assert_eq!(story.shard.control.begins(first(3)), Age(110), "it writes after 2");
    story.abort(2);
    assert_eq!((story.validate(1), story.validate(3)), (Some(bounds(1, 10)), Some(bounds(110, 210))));
    story.commit(1, 1);
    story.commit(3, 110);
    assert!(story.seen(X) == Some(3) && story.is_idle());
    assert_eq!((story.ask(4, 1, X, Exclusive), story.validate(4)), (Granted, Some(bounds(111, 211))));
}

#[test]
fn scenario_20_an_older_write_goes_behind_reads_that_a_restart_has_lost() {
    for (clears, behind) in [(false, 51), (true, 500)] {
        let mut story = Story::of(DEFERRED);
        assert_eq!((story.ask(1, 50, X, Shared), story.validate(1)), (Granted, Some(bounds(50, 150))));
        story.commit(1, 50);
        if clears {
            story.shard.clear();
            story.shard.control.begin(Age(500));
        }
        for n in [2, 3] {
            assert_eq!(story.ask(n, 1, X, Blind), Granted);
        }
        assert_eq!(story.validate_within(2, bounds(1, behind)), None, "{clears}");
        assert_eq!(story.validate_within(3, bounds(1, behind + 1)), Some(bounds(behind, behind + 1)));
    }
}

#[test]
fn scenario_20_what_is_promised_keeps_its_reads_and_writes_over_a_restart() {
    for (mode, left) in [(Shared, None), (Exclusive, Some(bounds(1, 40)))] {
        let mut story = Story::of(DEFERRED);
        story.shard.control.begin(Age(1));
        story.shard.restore_within(first(1), bounds(40, 60), Some(X), mode);
        assert_eq!(story.shard.held(first(1)).into_iter().collect::<Vec<_>>(), [(Some(X), mode)]);
        assert_eq!(story.validate(1), Some(bounds(40, 60)), "it is still validated");
        assert_eq!((story.ask(2, 1, X, Blind), story.validate(2)), (Granted, Some(bounds(60, 160))));
        story.abort(2);
        assert_eq!(story.ask(3, 1, X, Shared), Granted);
        assert_eq!(story.validate(3), left.or(Some(bounds(1, 101))));
        story.commit(1, 45);
        assert_eq!(story.seen(X), left.map(|_| 1));
    }
}

/// An attempt that only reads may have been answered with any of its stamps.
#[test]
fn the_end_of_a_reader_tells_where_a_write_may_come() {
    let ends = [(Ending::Committed(Age(7)), 8), (Ending::Aborted, 1), (Ending::Unknown, 101)];
    for ((ending, behind), of) in ends.into_iter().flat_map(|end| [Some(X), None].map(|of| (end, of))) {
        let mut story = Story::of(DEFERRED);
        assert_eq!((story.ask(1, 1, of, Shared), story.validate(1)), (Granted, Some(bounds(1, 101))));
        story.end(1, ending);
        assert_eq!(story.ask(2, 1, X, Blind), Granted);
        assert_eq!(story.validate(2).unwrap().from, Age(behind), "{ending:?} {of:?}");
        // An attempt that was not validated was not answered.
        story.abort(2);
        assert_eq!(story.ask(3, 1, of, Shared), Granted);
        story.end(3, Ending::Unknown);
        assert_eq!((story.ask(4, 1, X, Blind), story.validate(4).unwrap().from), (Granted, Age(behind)));
    }
}

#[test]
fn scenario_25_a_key_read_and_written_and_read_and_deleted_and_inserted() {
    for rules in [DEFERRED, AT_ACCESS] {
        let mut story = Story::of(rules);
        assert_eq!((story.ask(1, 1, X, Blind), story.validate(1)), (Granted, Some(bounds(1, 101))));
        story.commit(1, 1);
        for (mode, held) in [
            (Shared, Shared),
            (Blind, Exclusive),
            (Shared, Exclusive),
            (Exclusive, Exclusive),
            (Blind, Exclusive),
        ] {
            assert_eq!(story.ask(2, 1, X, mode), Granted);
            assert_eq!(story.shard.held(first(2)).into_iter().collect::<Vec<_>>(), [(Some(X), held)]);
        }
        assert_eq!(story.validate(2), Some(bounds(2, 102)), "it does not meet itself");
        install(&mut story.shard, Some(X), None, 2);
        install(&mut story.shard, Some(X), Some(2), 2);
        story.end(2, Ending::Committed(Age(2)));
        assert!(story.seen(X) == Some(2) && story.is_idle());
        // A read after a write that looked at nothing counts as one.
        assert_eq!((story.ask(3, 1, X, Blind), story.ask(3, 1, X, Shared)), (Granted, Granted));
        assert_eq!((story.ask(4, 20, X, Blind), story.validate(4)), (Granted, Some(bounds(20, 120))));
        assert_eq!(story.validate(3), None, "3 has read what 4 replaces, and writes after it");
        story.abort(3);
        install(&mut story.shard, Some(X), None, 20);
        story.end(4, Ending::Committed(Age(20)));
        assert_eq!((story.ask(5, 1, X, Shared), story.seen(X)), (Granted, None), "it is deleted");
        assert_eq!(story.shard.control.begins(first(5)), Age(21));
    }
}

/// Schedule 13: the floor of one participant is far above all that a coordinator asks for.
#[test]
fn schedule_13_bounds_jump_over_a_floor_and_nothing_is_refused_for_ever() {
    const FLOOR: u64 = 1_000_000;
    for (rules, until) in [(DEFERRED, FLOOR + 100), (ALL, FLOOR + 1)] {
        let (mut a, mut b) = (Story::of(rules), Story::of(rules));
        b.shard.control.begin(Age(FLOOR));
        for story in [&mut a, &mut b] {
            assert_eq!(story.ask(1, 1, X, Exclusive), Granted);
        }
        assert_eq!(b.validate(1), Some(bounds(FLOOR, until)), "above all that is given");
        assert_eq!(a.validate(1).map(|left| left.with(bounds(FLOOR, until)).is_empty()), Some(true));
        let Age(told) = b.shard.control.begins(first(1));
        [&mut a, &mut b].into_iter().for_each(|story| story.abort(1));
        for story in [&mut a, &mut b] {
            assert_eq!(story.ask(2, told, X, Exclusive), Granted);
            assert_eq!(story.validate_within(2, Bounds::from(Age(told))), Some(bounds(FLOOR, until)));
        }
        // A writer of other records begins there too.
        assert_eq!((b.ask(3, 1, Y, Blind), b.shard.control.begins(first(3))), (Granted, Age(FLOOR)));
    }
}

#[test]
fn a_key_that_is_absent_was_read_too() {
    let mut story = Story::of(DEFERRED);
    assert_eq!((story.ask(1, 50, X, Shared), story.ask(2, 1, X, Blind)), (Granted, Granted));
    assert_eq!(story.validate(1), Some(bounds(50, 150)));
    story.commit(1, 50);
    assert!(story.shard.is_stored(X) && story.shard.word(X) != 0, "what was read is remembered");
    assert_eq!(story.validate_within(2, bounds(1, 51)), None);
    story.abort(2);
    assert_eq!((story.ask(3, 1, X, Blind), story.validate(3)), (Granted, Some(bounds(51, 151))));
    story.abort(3);
    story.shard.control.advance(&mut story.shard.store, Age(60));
    assert!(!story.shard.is_stored(X) && !story.shard.control.remembers());
    assert_eq!((story.ask(4, 1, X, Blind), story.validate(4)), (Granted, Some(bounds(51, 151))), "the floor");
}

#[test]
fn a_whole_table_that_is_read_has_no_phantoms() {
    // An insert that is validated first comes after the reader.
    let mut story = Story::of(DEFERRED);
    assert_eq!((story.ask(1, 5, None, Shared), story.ask(2, 1, Y, Blind)), (Granted, Granted));
    assert_eq!(story.validate(2), Some(bounds(6, 106)));
    assert_eq!(story.ask(3, 10, None, Shared), Refused, "it would have to see the insert");
    assert_eq!(story.ask(4, 2, None, Shared), Granted);
    assert_eq!((story.validate(1), story.validate(4)), (Some(bounds(5, 6)), Some(bounds(2, 6))));
    story.commit(2, 6);
    assert_eq!((story.ask(5, 1, None, Shared), story.validate(5)), (Granted, Some(bounds(7, 107))));
    // And one that is validated later is behind it.
    assert_eq!((story.ask(6, 1, X, Blind), story.validate(6)), (Granted, Some(bounds(107, 207))));
    story.abort(6);
    story.commit(5, 60);
    assert_eq!((story.ask(7, 1, X, Blind), story.validate(7)), (Granted, Some(bounds(61, 161))));
}

#[test]
fn a_write_of_the_whole_table_is_one_of_each_record() {
    let mut story = Story::of(DEFERRED);
    assert_eq!((story.ask(1, 1, X, Blind), story.validate(1)), (Granted, Some(bounds(1, 101))));
    story.commit(1, 30);
    assert_eq!((story.ask(2, 1, X, Shared), story.ask(3, 40, Y, Shared)), (Granted, Granted));
    assert_eq!(story.validate(3), Some(bounds(40, 140)));
    assert_eq!((story.ask(4, 1, None, Exclusive), story.validate(4)), (Granted, Some(bounds(140, 240))));
    assert_eq!(story.validate(2), Some(bounds(31, 131)));
    // Writes of records and of the table are installed in one order: the later validation is refused.
    assert_eq!((story.ask(5, 1, Y, Blind), story.validate(5)), (Granted, None));
    assert_eq!((story.ask(6, 1, None, Exclusive), story.validate(6)), (Granted, None));
    assert_eq!(story.ask(7, 200, X, Shared), Refused);
    [5, 6].iter().for_each(|n| story.abort(*n));
    story.commit(4, 140);
    assert_eq!((story.ask(8, 1, X, Shared), story.seen(X)), (Granted, None));
    assert_eq!(story.shard.control.begins(first(8)), Age(141));
    assert_eq!((story.ask(9, 1, Y, Blind), story.validate(9)), (Granted, Some(bounds(141, 241))));
    assert_eq!(story.ask(10, 1, None, Exclusive), Refused, "it would have to read what 9 writes");
    [2, 3, 8, 9].iter().for_each(|n| story.abort(*n));
    assert_eq!((story.ask(11, 1, X, Shared), story.validate(11)), (Granted, Some(bounds(141, 241))));
    story.commit(11, 150);
    assert_eq!((story.ask(12, 1, None, Exclusive), story.validate(12)), (Granted, Some(bounds(151, 251))));
    story.commit(12, 151);
    assert_eq!((story.ask(13, 1, None, Blind), story.validate(13)), (Granted, Some(bounds(152, 252))));
    let held = story.shard.held(first(13));
    assert_eq!(held.into_iter().collect::<Vec<_>>(), [(None, Exclusive)], "something is looked at");
}

#[test]
fn a_cap_leaves_later_writers_stamps() {
    for (cap, until, behind) in
        [(0, 1_000, bounds(1_000, 1_001)), (1, 11, bounds(11, 12)), (300, 310, bounds(310, 610))]
    {
        let mut story = Story::of(Rules { cap, ..DEFERRED });
        assert_eq!((story.ask(1, 10, X, Shared), story.ask(2, 1, X, Blind)), (Granted, Granted));
        assert_eq!(story.validate(1), Some(bounds(10, until)), "{cap}");
        assert_eq!(story.validate(2), Some(behind), "{cap}");
    }
}

#[test]
fn a_prewrite_at_the_access_is_seen_by_who_is_validated_before() {
    for (rules, begins) in [(DEFERRED, 2), (AT_ACCESS, 101)] {
        let mut story = Story::of(rules);
        assert_eq!((story.ask(1, 1, X, Shared), story.ask(2, 1, X, Blind)), (Granted, Granted));
        assert_eq!(story.validate(1), Some(bounds(1, 101)));
        story.commit(1, 1);
        assert_eq!(story.validate(2), Some(bounds(begins, begins + 100)), "{rules:?}");
    }
}

/// Reads of the whole table, each refused for a write that is on its way, until one is granted. Returns how many are needed.
fn tables_before_one_is_granted(bugs: Bugs) -> Option<u32> {
    let mut shard = crate::shard(DEFERRED, bugs);
    for attempt in 1..100 {
        let (who, writer) = (AttemptId { attempt, ..first(1) }, first(u64::from(attempt) + 1));
        let from = u64::from(attempt) * 1_000;
        if shard.access(writer, from, Some(X), Exclusive) == Granted {
            assert!(validate(&mut shard, writer, Bounds::from(Age(from)), GIVEN).is_some());
        }
        let of_table = shard.access(who, from + 1, None, Shared);
        [who, writer].iter().for_each(|who| _ = shard.finish(*who));
        shard.check();
        if of_table == Granted {
            return Some(attempt);
        }
    }
    None
}

#[test]
fn a_whole_table_access_comes_through_a_stream_of_writers() {
    assert_eq!(tables_before_one_is_granted(Bugs::NONE), Some(5), "the gate closes after four");
    assert_eq!(tables_before_one_is_granted(Bugs::NONE.with(Bug::PassTable)), None);
}

#[test]
fn a_restored_attempt_that_conflicts_is_refused_loudly() {
    for (of, held, mode) in [
        (Some(X), Shared, Exclusive),
        (Some(X), Blind, Blind),
        (Some(X), Exclusive, Shared),
        (None, Shared, Exclusive),
    ] {
        let mut story = Story::of(DEFERRED);
        story.shard.control.begin(Age(100));
        story.shard.restore_within(first(1), bounds(10, 20), of, held);
        story.shard.restore(first(2), 20, of, mode);
        story.shard.check();
        let restore = || story.shard.restore_within(first(3), bounds(19, 30), of, mode);
        let panic = catch_unwind(AssertUnwindSafe(restore)).unwrap_err();
        assert!(panic.downcast_ref::<String>().unwrap().contains("prepared attempt 0/0/3.1 conflicts"));
    }
}
