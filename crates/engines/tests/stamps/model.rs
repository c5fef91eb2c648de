//! The order of stamps as naively as can be: lists of all that was ever read, written and announced.

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

/// The rules in which engines differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Contents that are replaced stay for earlier readers.
    pub(crate) keeps: bool,
    /// A write that looks at nothing is let in below a later one.
    pub(crate) thomas: bool,
}

/// All of one participant.
#[derive(Debug)]
pub(crate) struct Model {
    rules: Rules,
    reads: Vec<Read>,
    /// Committed writes, by their stamps.
    written: Vec<(u64, Resource)>,
    prewrites: BTreeMap<AttemptId, BTreeMap<Resource, Mode>>,
    waiting: BTreeMap<AttemptId, (Resource, Mode)>,
    /// The stamp of each attempt that was seen.
    stamps: BTreeMap<AttemptId, u64>,
    floor: u64,
    /// An access with a smaller stamp may be refused: what was before is forgotten.
    horizon: u64,
    /// Refused accesses to the whole table in this term, by transaction.
    table_refusals: BTreeMap<TransactionId, u32>,
}

impl Model {
    pub(crate) fn new(rules: Rules) -> Model {
        Model {
            rules,
            reads: Vec::new(),
            written: Vec::new(),
            prewrites: BTreeMap::new(),
            waiting: BTreeMap::new(),
            stamps: BTreeMap::new(),
            floor: 0,
            horizon: 0,
            table_refusals: BTreeMap::new(),
        }
    }

    pub(crate) fn is_waiting(&self, who: AttemptId) -> bool {
        self.waiting.contains_key(&who)
    }

    fn written_after(&self, stamp: u64, of: Resource) -> bool {
        self.written.iter().any(|(written, at)| *written > stamp && overlap(*at, of))
    }

    /// True if the whole table was written after a stamp.
    fn cleared_after(&self, stamp: u64) -> bool {
        self.written.iter().any(|(written, at)| *written > stamp && at.is_none())
    }

    /// The latest write that a stamp sees.
    pub(crate) fn seen(&self, stamp: u64, of: Resource) -> u64 {
        let before = self.written.iter().filter(|(written, at)| *written <= stamp && overlap(*at, of));
        before.map(|(written, _)| *written).max().unwrap_or_default()
    }

    /// True if the latest write that a stamp sees was of the whole table, which leaves nothing, or if there is none.
    pub(crate) fn is_empty_at(&self, stamp: u64, key: u8) -> bool {
        let seen = self.seen(stamp, Some(key));
        !self.written.contains(&(seen, Some(key)))
    }

    /// True if the gate of another transaction may keep an attempt away: one that was refused often, or one that took the gate over.
    fn may_be_stopped(&self, who: AttemptId) -> bool {
        self.table_refusals.values().any(|refusals| *refusals >= 4)
            && self.table_refusals.keys().any(|owner| *owner != who.transaction)
    }

    fn note_refused(&mut self, who: AttemptId, of: Resource) {
        if of.is_none() {
            *self.table_refusals.entry(who.transaction).or_default() += 1;
        }
    }

    /// True if a new prewrite comes too late.
    fn is_too_late(&self, stamp: u64, of: Resource, mode: Mode) -> bool {
        let misses = |read: &Read| {
            let is_missed = !self.rules.keeps || read.seen < stamp || read.of.is_none() || of.is_none();
            read.stamp > stamp && overlap(read.of, of) && is_missed
        };
        let is_after = match of {
            None => self.written_after(stamp, of) || self.is_announced_after(stamp),
            Some(_) if self.rules.keeps || self.rules.thomas && mode == Mode::Blind => {
                self.cleared_after(stamp)
            }
            Some(_) => self.written_after(stamp, of),
        };
        stamp < self.floor || self.reads.iter().any(misses) || is_after
    }

    fn is_announced_after(&self, stamp: u64) -> bool {
        self.prewrites.keys().any(|other| self.stamps[other] > stamp)
    }

    /// The verdict about an access whose prewrite is there, if it has one.
    fn judge(&self, who: AttemptId, (of, mode): (Resource, Mode)) -> Verdict {
        let stamp = self.stamps[&who];
        let is_gone = match of {
            _ if mode == Mode::Blind => self.cleared_after(stamp),
            None if mode != Mode::Shared => self.written_after(stamp, of),
            _ if self.rules.keeps => self.cleared_after(stamp),
            _ => self.written_after(stamp, of),
        };
        if stamp < self.floor || is_gone {
            return Verdict::Refused;
        }
        let seen = self.seen(stamp, of);
        let hides = |other: u64, held: Resource| match (of, held) {
            (_, None) => true,
            (None, _) => mode != Mode::Blind,
            _ => mode != Mode::Blind && held == of && other > seen,
        };
        let before = |(other, held): (&AttemptId, &BTreeMap<Resource, Mode>)| {
            self.stamps[other] < stamp && held.keys().any(|held| hides(self.stamps[other], *held))
        };
        if self.prewrites.iter().any(before) { Verdict::Waits } else { Verdict::Granted }
    }

    /// Compares a verdict, and takes it in.
    pub(crate) fn access(&mut self, who: AttemptId, stamp: u64, of: Resource, mode: Mode, verdict: Verdict) {
        self.stamps.insert(who, stamp);
        let held = self.prewrites.get(&who).and_then(|held| held.get(&of)).copied();
        let is_held = held == Some(Mode::Exclusive) || held == Some(mode);
        if mode != Mode::Shared && !is_held && self.is_too_late(stamp, of, mode) {
            assert_eq!(verdict, Verdict::Refused, "{who} comes too late to write {of:?}");
            return self.note_refused(who, of);
        }
        let expected = self.judge(who, (of, mode));
        let may_differ = verdict == Verdict::Refused && (stamp < self.horizon || self.may_be_stopped(who));
        assert!(
            verdict == expected || may_differ,
            "{who} {of:?} {mode:?}: {verdict:?}, and not {expected:?}"
        );
        if verdict == Verdict::Refused {
            return self.note_refused(who, of);
        }
        if mode != Mode::Shared && !is_held {
            let mode = if of.is_none() { Mode::Exclusive } else { mode };
            self.prewrites.entry(who).or_default().insert(of, mode);
        }
        match verdict {
            Verdict::Waits => _ = self.waiting.insert(who, (of, mode)),
            _ => self.read(stamp, (of, mode)),
        }
    }

    fn read(&mut self, stamp: u64, (of, mode): (Resource, Mode)) {
        if mode != Mode::Blind {
            self.reads.push(Read { stamp, of, seen: self.seen(stamp, of) });
        }
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
            held.into_keys().for_each(|of| self.write(self.stamps[&who], of));
        }
        refused.iter().for_each(|who| _ = self.prewrites.remove(who));
        for other in refused {
            let access = self.waiting.remove(other).expect("it has waited");
            self.note_refused(*other, access.0);
            let is_late = self.stamps[other] < self.horizon || self.judge(*other, access) == Verdict::Refused;
            assert!(is_late, "{other} is refused after the end of {who}");
        }
        for other in granted {
            let access = self.waiting.remove(other).expect("it has waited");
            assert_eq!(self.judge(*other, access), Verdict::Granted, "{other} after the end of {who}");
            self.read(self.stamps[other], access);
        }
        for (other, access) in &self.waiting {
            assert_eq!(self.judge(*other, *access), Verdict::Waits, "{other} after the end of {who}");
        }
    }

    /// A write is installed: nobody who comes after it in the order of stamps has missed it (B2), and one of the whole table is the latest.
    fn write(&mut self, stamp: u64, of: Resource) {
        let missed = self.reads.iter().find(|r| overlap(r.of, of) && r.seen < stamp && stamp < r.stamp);
        assert!(missed.is_none(), "{missed:?} has missed the write of {stamp}");
        let is_late = of.is_none() && self.written_after(stamp, of) || self.cleared_after(stamp);
        assert!(!is_late, "{stamp} is installed after a later write of {of:?}");
        self.written.push((stamp, of));
    }

    /// What an attempt may write.
    pub(crate) fn held(&self, who: AttemptId) -> BTreeMap<Resource, Mode> {
        self.prewrites.get(&who).cloned().unwrap_or_default()
    }

    /// The stamps from which on reads see what they should: nothing is forgotten, and contents are there.
    pub(crate) fn readable(&self) -> u64 {
        let cleared = self.written.iter().filter(|(_, of)| of.is_none()).map(|(stamp, _)| *stamp).max();
        self.floor.max(self.horizon).max(cleared.unwrap_or_default())
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

    /// True if nothing of a stamp is forgotten: else no attempt with it is promised or committed.
    pub(crate) fn is_remembered(&self, stamp: u64) -> bool {
        stamp >= self.horizon
    }

    /// The keys that were written.
    pub(crate) fn keys(&self) -> BTreeSet<u8> {
        self.written.iter().filter_map(|(_, of)| *of).collect()
    }
}
