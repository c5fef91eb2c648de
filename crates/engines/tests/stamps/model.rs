//! Basic timestamp ordering as naively as can be: lists of all that was ever read, written and announced.

use std::collections::{BTreeMap, BTreeSet};

use ordain_commit::{AttemptId, Mode, TransactionId, Verdict};

/// A key, or the table for `None`.
pub(crate) type Resource = Option<u8>;

/// True if an access to the one is an access to the other.
fn overlap(a: Resource, b: Resource) -> bool {
    a == b || a.is_none() || b.is_none()
}

/// A read that was granted, of any term.
#[derive(Clone, Copy, Debug)]
struct Read {
    stamp: u64,
    of: Resource,
    /// The stamp of the latest write that it has seen.
    seen: u64,
}

/// All of one participant.
#[derive(Debug, Default)]
pub(crate) struct Model {
    reads: Vec<Read>,
    /// Committed writes, by their stamps.
    written: Vec<(u64, Resource)>,
    prewrites: BTreeMap<AttemptId, BTreeSet<Resource>>,
    waiting: BTreeMap<AttemptId, Resource>,
    /// The stamp of each attempt that was seen.
    stamps: BTreeMap<AttemptId, u64>,
    floor: u64,
    /// An access with a smaller stamp may be refused: what was before is forgotten.
    horizon: u64,
    /// Refused accesses to the whole table in this term, by transaction.
    table_refusals: BTreeMap<TransactionId, u32>,
}

impl Model {
    pub(crate) fn is_waiting(&self, who: AttemptId) -> bool {
        self.waiting.contains_key(&who)
    }

    fn written_after(&self, stamp: u64, of: Resource) -> bool {
        self.written.iter().any(|(written, at)| *written > stamp && overlap(*at, of))
    }

    /// True if the gate of an older transaction may keep an attempt away: one that was refused often, or one that took the gate over.
    fn may_be_stopped(&self, who: AttemptId) -> bool {
        self.table_refusals.values().any(|refusals| *refusals >= 4)
            && self.table_refusals.keys().any(|owner| *owner < who.transaction)
    }

    fn note_refused(&mut self, who: AttemptId, of: Resource) {
        if of.is_none() {
            *self.table_refusals.entry(who.transaction).or_default() += 1;
        }
    }

    /// The verdict about a read.
    fn judge(&self, who: AttemptId, of: Resource) -> Verdict {
        let stamp = self.stamps[&who];
        if stamp < self.floor || self.written_after(stamp, of) {
            return Verdict::Refused;
        }
        let before = |(other, held): (&AttemptId, &BTreeSet<Resource>)| {
            self.stamps[other] < stamp && held.iter().any(|held| overlap(*held, of))
        };
        if self.prewrites.iter().any(before) { Verdict::Waits } else { Verdict::Granted }
    }

    /// Compares a verdict, and takes it in.
    pub(crate) fn access(&mut self, who: AttemptId, stamp: u64, of: Resource, mode: Mode, verdict: Verdict) {
        self.stamps.insert(who, stamp);
        let is_held = self.prewrites.get(&who).is_some_and(|held| held.contains(&of));
        if mode == Mode::Exclusive && !is_held {
            let is_read = self.reads.iter().any(|read| read.stamp > stamp && overlap(read.of, of));
            if stamp < self.floor || is_read || self.written_after(stamp, of) {
                assert_eq!(verdict, Verdict::Refused, "{who} comes too late to write {of:?}");
                return self.note_refused(who, of);
            }
        }
        let expected = self.judge(who, of);
        let may_differ = verdict == Verdict::Refused && (stamp < self.horizon || self.may_be_stopped(who));
        assert!(
            verdict == expected || may_differ,
            "{who} {of:?} {mode:?}: {verdict:?}, and not {expected:?}"
        );
        if verdict == Verdict::Refused {
            return self.note_refused(who, of);
        }
        if mode == Mode::Exclusive {
            self.prewrites.entry(who).or_default().insert(of);
        }
        match verdict {
            Verdict::Waits => _ = self.waiting.insert(who, of),
            _ => self.read(stamp, of),
        }
    }

    fn read(&mut self, stamp: u64, of: Resource) {
        let seen = self.written.iter().filter(|(_, at)| overlap(*at, of)).map(|(written, _)| *written).max();
        self.reads.push(Read { stamp, of, seen: seen.unwrap_or_default() });
    }

    /// Takes in the end of an attempt, and compares who is granted and refused for it.
    pub(crate) fn finish(
        &mut self,
        who: AttemptId,
        commits: bool,
        granted: &[AttemptId],
        refused: &[AttemptId],
    ) {
        self.waiting.remove(&who);
        let held = self.prewrites.remove(&who).unwrap_or_default();
        if commits {
            held.into_iter().for_each(|of| self.write(self.stamps[&who], of));
        }
        refused.iter().for_each(|who| _ = self.prewrites.remove(who));
        for other in refused {
            let of = self.waiting.remove(other).expect("it has waited");
            self.note_refused(*other, of);
            let is_late = self.stamps[other] < self.horizon || self.judge(*other, of) == Verdict::Refused;
            assert!(is_late, "{other} is refused after the end of {who}");
        }
        for other in granted {
            let of = self.waiting.remove(other).expect("it has waited");
            assert_eq!(self.judge(*other, of), Verdict::Granted, "{other} after the end of {who}");
            self.read(self.stamps[other], of);
        }
        for (other, of) in &self.waiting {
            assert_eq!(self.judge(*other, *of), Verdict::Waits, "{other} after the end of {who}");
        }
    }

    /// A write is installed: nobody who comes after it in the order of stamps has missed it (B2), and it is the latest there.
    fn write(&mut self, stamp: u64, of: Resource) {
        let missed = self.reads.iter().find(|r| overlap(r.of, of) && r.seen < stamp && stamp < r.stamp);
        assert!(missed.is_none(), "{missed:?} has missed the write of {stamp}");
        assert!(!self.written_after(stamp, of), "{stamp} is installed after a later write of {of:?}");
        self.written.push((stamp, of));
    }

    /// What an attempt may write.
    pub(crate) fn held(&self, who: AttemptId) -> BTreeMap<Resource, Mode> {
        let held = self.prewrites.get(&who).into_iter().flatten();
        held.map(|of| (*of, Mode::Exclusive)).collect()
    }

    /// A term begins: of attempts before it only those are left that are promised.
    pub(crate) fn change_term(&mut self, floor: u64, promised: &[AttemptId]) {
        self.waiting.clear();
        self.table_refusals.clear();
        self.prewrites.retain(|who, _| promised.contains(who));
        self.floor = floor;
    }

    /// What is before a stamp may be forgotten.
    pub(crate) fn advance(&mut self, to: u64) {
        self.horizon = self.horizon.max(to);
    }
}
