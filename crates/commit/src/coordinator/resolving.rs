//! Snapshots of what only reads in its own region, with which nothing has to be waited for that is in doubt (regions.md, 4.7, `ro_local=resolved`).
//!
//! A part of a transaction of several regions takes effect between the promise of the last region and the outcome of the first (4.1), so at
//! any time between its validation and its outcome here. The *quiet stamp* is one that was given when no part was between the two: all parts
//! with smaller stamps had their outcomes by then, and all with larger ones were validated later. So no transaction that a snapshot at this stamp
//! shows comes after one that it does not show, by way of whatever regions.
//!
//! The sheet has the snapshot just below the smallest stamp that is in doubt. That is not serializable: of two parts whose times here overlap,
//! the one with the smaller stamp may follow the other one by way of a third region, and be over here while the other is in doubt.

use std::collections::BTreeMap;

use ordain_model::Millis;
use ordain_role::Bug;

use super::Coordinator;
use super::stamping::Stamping;
use crate::desk::Desk;
use crate::ids::{Age, AttemptId};

/// Parts of transactions of several regions of this term that were given their second stamps.
#[derive(Debug, Default)]
pub struct Doubts {
    /// The parts under way, by their numbers. One whose outcome is on its way into the log is not among them.
    parts: BTreeMap<u64, Age>,
    /// The quiet stamp: none if there was none in this term, or nothing was in doubt since.
    quiet: Option<Age>,
}

impl Doubts {
    /// A part has its second stamp.
    pub(super) fn begin(&mut self, number: u64, stamp: Age) {
        self.parts.insert(number, stamp);
    }

    /// A part is over, or its attempt is.
    pub(super) fn end(&mut self, number: u64) {
        self.parts.remove(&number);
    }

    /// The quiet stamp.
    pub(super) const fn quiet(&self) -> Option<Age> {
        self.quiet
    }

    /// True if something is in doubt, or may be: it is promised in the log, or about to be.
    fn are_there(&self, desk: &Desk<'_>) -> bool {
        !self.parts.is_empty() || desk.agreed.prepared_among().next().is_some()
    }

    /// The smallest stamp in doubt.
    fn smallest(&self, desk: &Desk<'_>) -> Option<Age> {
        let of = |part: AttemptId| desk.agreed.promised(part).map(|bounds| bounds.from);
        let promised = desk.agreed.prepared_among().filter_map(|(part, _)| of(part));
        self.parts.values().copied().chain(promised).min()
    }
}

impl Stamping {
    /// A part is about to be given its second stamp: if nothing else is in doubt, this moment is a quiet one. Answers whether there is a stamp for that
    /// below the ceiling.
    pub(super) fn note_quiet(&mut self, number: u64, now: Millis, desk: &Desk<'_>) -> bool {
        if !desk.site.resolves || self.doubts.are_there(desk) {
            return true;
        }
        self.doubts.quiet = self.stamp(number, now, desk);
        self.doubts.quiet.is_some()
    }

    /// Forgets the quiet stamp once nothing is in doubt: a snapshot of now is as good, and what only that one shows may go.
    pub(super) fn pass_quiet(&mut self, desk: &Desk<'_>) {
        if self.doubts.quiet.is_some() && !self.doubts.are_there(desk) {
            self.doubts.quiet = None;
        }
    }
}

impl Coordinator {
    /// The stamp of a snapshot with which the next attempt at a transaction waits for nothing that is in doubt; nothing if it is to have a stamp of
    /// now. An attempt that was refused has found something in doubt, or may.
    pub(super) fn resolved(&mut self, number: u64, desk: &Desk<'_>) -> Option<Age> {
        let live = self.live.get(&number).filter(|live| desk.site.resolves && live.attempt > 0)?;
        let reads_at_home = live.reads_at_home(desk.site);
        self.stamping.pass_quiet(desk);
        let quiet = self.stamping.doubts.quiet.filter(|_| reads_at_home)?;
        // Planted, STAMP-ORDER: as the sheet has it.
        if desk.site.bugs.has(Bug::ResolveBelow) {
            return self.stamping.doubts.smallest(desk).map(|stamp| Age(stamp.0 - 1));
        }
        // Contents of long ago are forgotten: then it waits, as with `strict`.
        desk.is_remembered(quiet).then_some(quiet)
    }
}
