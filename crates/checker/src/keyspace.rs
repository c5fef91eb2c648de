//! Keys that come and go: what a client may find under a key whose time is limited, and what an iteration over all keys
//! returns while some are written and removed.
//!
//! Each key has one writer, which waits for each answer before it writes the key again. So it is known at any moment that a key
//! is there, or is not, or may be.

use std::collections::{BTreeMap, BTreeSet};

use ordain_model::Micros;

use super::{Violation, ViolationKind};
use crate::history::Moment;

/// The times at which something was asked and answered, of one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// When it was asked.
    pub asked: Micros,
    /// When it was answered.
    pub answered: Micros,
}

/// The finding of a request that looks for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing.
    Gone,
    /// The key was there.
    There,
    /// It was there, and had so much time left.
    Left(Micros),
}

/// A key that was written once, to live for some time, and what was found under it since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mortal {
    /// The key, for reports.
    pub key: String,
    /// When it was written.
    pub written: Span,
    /// Its time to live.
    pub lives: Micros,
    /// When it was looked for, and what was found.
    pub looks: Vec<(Span, Look)>,
}

/// Checks that no key was found after its time or missed before it. Clocks may differ by `slack`; with `is_late` what is read
/// may be as of any earlier time.
///
/// # Errors
/// [`ViolationKind::WrongAnswer`].
pub fn check_mortal<'a>(
    keys: impl IntoIterator<Item = &'a Mortal>,
    slack: Micros,
    is_late: bool,
) -> Result<(), Violation> {
    for Mortal { key, written, lives, looks } in keys {
        let earliest = written.asked.plus(*lives);
        let latest = written.answered.plus(*lives).plus(slack);
        for (look, found) in looks {
            let text = match found {
                Look::There | Look::Left(_) if !is_late && look.asked > latest => "was found after its time",
                Look::Gone if look.answered.plus(slack) < earliest => "was gone before its time",
                Look::Left(left) if look.answered.plus(*left).plus(slack) < earliest => {
                    "had too little time left"
                }
                Look::Left(left) if !is_late && look.asked.plus(*left) > latest => "had too much time left",
                _ => continue,
            };
            let text = format!(
                "key {key}, written between {} and {} us to live for {} us, {text}: looked for between {} and {} us",
                written.asked, written.answered, lives, look.asked, look.answered
            );
            return Err(Violation::new(ViolationKind::WrongAnswer, text));
        }
    }
    Ok(())
}

/// Two keys that one transaction wrote with one time to live, as another transaction has found both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Together {
    /// The common part of their names, for reports.
    pub keys: String,
    /// The time that each had left, milliseconds; `None` for a key that was gone.
    pub left_ms: [Option<u64>; 2],
}

/// Checks that keys which end together were found so: a transaction sees one state as of one time.
///
/// # Errors
/// [`ViolationKind::WrongAnswer`].
pub fn check_together<'a>(found: impl IntoIterator<Item = &'a Together>) -> Result<(), Violation> {
    let Some(Together { keys, left_ms: [first, second] }) =
        found.into_iter().find(|found| found.left_ms[0] != found.left_ms[1])
    else {
        return Ok(());
    };
    let text = format!(
        "keys {keys}, written in one transaction to end together, had {first:?} and {second:?} ms left in another"
    );
    Err(Violation::new(ViolationKind::WrongAnswer, text))
}

/// A write or removal of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// When it was asked for.
    pub asked: Moment,
    /// When it was answered; `None` if its end is unknown.
    pub answered: Option<Moment>,
    /// The key is there after it.
    pub is_there: bool,
}

/// An iteration over all keys, from its first request to its last answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// When it was begun.
    pub begun: Moment,
    /// When its last answer came.
    pub ended: Moment,
    /// The keys that it returned.
    pub found: BTreeSet<String>,
}

/// Checks that an iteration has returned each key that was there throughout, and none that never was.
///
/// # Errors
/// [`ViolationKind::WrongAnswer`].
pub fn check_scans(changes: &BTreeMap<String, Vec<Change>>, scans: &[Scan]) -> Result<(), Violation> {
    for Scan { begun, ended, found } in scans {
        for (key, changes) in changes {
            if is_there_throughout(changes, (*begun, *ended)) && !found.contains(key) {
                let text =
                    format!("an iteration has missed {key}, which was there from its begin to its end");
                return Err(Violation::new(ViolationKind::WrongAnswer, text));
            }
        }
        let may_be = |key: &String| changes.get(key).is_some_and(|all| may_be_there(all, (*begun, *ended)));
        if let Some(key) = found.iter().find(|key| !may_be(key)) {
            let text = format!("an iteration has returned {key}, which was not there at any time of it");
            return Err(Violation::new(ViolationKind::WrongAnswer, text));
        }
    }
    Ok(())
}

/// The changes that may take effect at some time from `begun` on and were asked for before `ended`.
fn under_way(changes: &[Change], (begun, ended): (Moment, Moment)) -> impl Iterator<Item = &Change> {
    let is_done = move |change: &&Change| change.answered.is_some_and(|answered| answered < begun);
    changes.iter().filter(move |change| change.asked < ended && !is_done(change))
}

/// The last change that was answered before.
fn last_before(changes: &[Change], begun: Moment) -> Option<&Change> {
    changes.iter().rev().find(|change| change.answered.is_some_and(|answered| answered < begun))
}

fn is_there_throughout(changes: &[Change], span: (Moment, Moment)) -> bool {
    last_before(changes, span.0).is_some_and(|change| change.is_there)
        && under_way(changes, span).all(|change| change.is_there)
}

fn may_be_there(changes: &[Change], span: (Moment, Moment)) -> bool {
    last_before(changes, span.0).is_some_and(|change| change.is_there)
        || under_way(changes, span).any(|change| change.is_there)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(asked: u64, answered: u64) -> Span {
        Span { asked: Micros(asked), answered: Micros(answered) }
    }

    fn verdict(looks: &[(Span, Look)], is_late: bool) -> Result<(), ViolationKind> {
        let key = Mortal {
            key: "k".to_owned(),
            written: span(100, 200),
            lives: Micros(1_000),
            looks: looks.to_vec(),
        };
        check_mortal([&key], Micros(10), is_late).map_err(|violation| violation.kind)
    }

    #[test]
    fn a_key_lives_until_some_time_after_it_was_asked_for_and_before_it_was_answered() {
        // Between the earliest and the latest end of its life both answers are right.
        for found in [Look::There, Look::Gone] {
            assert_eq!(verdict(&[(span(1_050, 1_150), found)], false), Ok(()));
        }
        assert_eq!(
            verdict(&[(span(300, 400), Look::There), (span(1_300, 1_400), Look::Gone)], false),
            Ok(())
        );
    }

    #[test]
    fn a_key_that_is_found_after_its_time_or_missed_before_it_is_refused() {
        let wrong = Err(ViolationKind::WrongAnswer);
        assert_eq!(verdict(&[(span(1_211, 1_300), Look::There)], false), wrong);
        assert_eq!(verdict(&[(span(1_000, 1_089), Look::Gone)], false), wrong);
        // A read of an earlier state may still find the key, and must not miss it before its time.
        assert_eq!(verdict(&[(span(1_211, 1_300), Look::There)], true), Ok(()));
        assert_eq!(verdict(&[(span(1_000, 1_089), Look::Gone)], true), wrong);
    }

    #[test]
    fn the_time_that_is_left_ends_when_the_key_does() {
        let left = |left, is_late| verdict(&[(span(500, 600), Look::Left(Micros(left)))], is_late);
        assert_eq!((left(490, false), left(710, false)), (Ok(()), Ok(())));
        assert_eq!(left(489, false), Err(ViolationKind::WrongAnswer));
        assert_eq!(left(711, false), Err(ViolationKind::WrongAnswer));
        assert_eq!(left(711, true), Ok(()), "it may be as of an earlier time");
    }

    fn change(asked: u64, answered: Option<u64>, is_there: bool) -> Change {
        Change { asked: Moment(asked), answered: answered.map(Moment), is_there }
    }

    fn scanned(changes: &[Change], found: bool) -> Result<(), ViolationKind> {
        let found = if found { ["k".to_owned()].into() } else { BTreeSet::new() };
        let scan = Scan { begun: Moment(10), ended: Moment(20), found };
        let changes = [("k".to_owned(), changes.to_vec())].into();
        check_scans(&changes, &[scan]).map_err(|violation| violation.kind)
    }

    #[test]
    fn an_iteration_returns_what_was_there_throughout() {
        let wrong = Err(ViolationKind::WrongAnswer);
        let there = change(1, Some(2), true);
        assert_eq!(scanned(&[there], true), Ok(()));
        assert_eq!(scanned(&[there], false), wrong);
        // Written again while the iteration runs, and removed after it: it was there throughout.
        assert_eq!(scanned(&[there, change(12, Some(13), true), change(21, Some(22), false)], false), wrong);
        // Removed meanwhile, or perhaps before, or not written for certain: it may be missed.
        for may_be_gone in [change(12, Some(13), false), change(5, None, false), change(5, Some(11), false)] {
            assert_eq!(scanned(&[there, may_be_gone], false), Ok(()));
            assert_eq!(scanned(&[there, may_be_gone], true), Ok(()));
        }
        assert_eq!(scanned(&[change(1, None, true)], false), Ok(()));
    }

    #[test]
    fn an_iteration_returns_nothing_that_never_was_there() {
        let wrong = Err(ViolationKind::WrongAnswer);
        assert_eq!(scanned(&[], true), wrong);
        assert_eq!(scanned(&[change(1, Some(2), true), change(3, Some(4), false)], true), wrong);
        assert_eq!(scanned(&[change(21, Some(22), true)], true), wrong);
        assert_eq!(scanned(&[change(1, None, true)], true), Ok(()));
    }
}
