//! The queue of one lock: who holds it, who waits, and who may come next.

use std::collections::VecDeque;

use ordain_commit::{Age, AttemptId, Seniority, Verdict};

use crate::two_phase_locking::{Counts, Modes};

/// What requests do that conflict.
#[derive(Debug)]
pub(crate) struct Discipline {
    /// True if a request may wait for one that it conflicts with. Else it is refused.
    pub(crate) may_wait: fn(&Request, &Request) -> bool,
    /// True if a holder that wants more goes ahead of the requests that wait, given one of those that it conflicts with.
    pub(crate) goes_ahead: Ahead,
    /// Waits may close a cycle: those that begin or change are noted.
    pub(crate) tells_waits: bool,
    /// The name of the counter of requests that were refused, if some are.
    pub(crate) refused: Option<&'static str>,
}

/// The requests that a holder which wants more goes ahead of: all that wait, or none.
#[derive(Debug)]
pub(crate) enum Ahead {
    /// All, if this holds for each that it conflicts with.
    OfAll(fn(&Request, &Request) -> bool),
    /// All, if this holds for one that it conflicts with.
    OfOne(fn(&Request, &Request) -> bool),
}

/// An attempt that holds a lock, or waits for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) who: AttemptId,
    pub(crate) age: Age,
    /// The modes that it held when it asked.
    pub(crate) own: Modes,
    /// The modes that it has when the request is granted, `own` included.
    pub(crate) modes: Modes,
}

impl Request {
    fn seniority(&self) -> Seniority {
        (self.age, self.who.transaction)
    }

    pub(crate) fn is_older_than(&self, other: &Request) -> bool {
        self.seniority() < other.seniority()
    }

    fn conflicts_with(&self, other: &Request) -> bool {
        self.who != other.who && self.modes.conflicts_with(other.modes)
    }
}

/// The lock of a record or of the table.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Pairwise compatible.
    holders: Vec<Request>,
    counts: Counts,
    /// Each is older than every holder, and every one before it, that it conflicts with; there is at least one.
    waiters: VecDeque<Request>,
}

impl Queue {
    /// Decides about a request, and notes whose waits begin or change by it. `passes_writers` is the planted bug of a request that does not look
    /// at who waits.
    pub(super) fn request(
        &mut self,
        request: Request,
        passes_writers: bool,
        discipline: &Discipline,
        noted: &mut Vec<AttemptId>,
    ) -> Verdict {
        let conflicts = |other: &&Request| other.conflicts_with(&request);
        let waiters = self.waiters.iter().filter(conflicts);
        let is_ahead = match (request.own, &discipline.goes_ahead) {
            (Modes::NONE, _) => passes_writers,
            (_, Ahead::OfAll(is_behind)) => waiters.clone().all(|waiter| is_behind(&request, waiter)),
            (_, Ahead::OfOne(is_behind)) => waiters.clone().any(|waiter| is_behind(&request, waiter)),
        };
        let mut waiters = waiters.filter(|_| !is_ahead).peekable();
        if waiters.peek().is_none() && !self.counts.conflict(request.own, request.modes) {
            drop(waiters);
            self.hold(request);
            if is_ahead && discipline.tells_waits {
                self.note_from(0, noted);
            }
            return Verdict::Granted;
        }
        let mut blockers = self.holders.iter().filter(conflicts).chain(waiters);
        if !blockers.all(|other| (discipline.may_wait)(&request, other)) {
            return Verdict::Refused;
        }
        match is_ahead {
            true => self.waiters.push_front(request),
            false => self.waiters.push_back(request),
        }
        if discipline.tells_waits {
            noted.push(request.who);
            if is_ahead {
                self.note_from(1, noted);
            }
        }
        Verdict::Waits
    }

    /// Notes the requests from a place on whose waits change if one before them comes or goes: up to the first that wants the lock for itself, for
    /// which those behind it wait.
    fn note_from(&self, at: usize, noted: &mut Vec<AttemptId>) {
        for waiter in self.waiters.iter().skip(at) {
            noted.push(waiter.who);
            if waiter.modes == Modes::EXCLUSIVE {
                break;
            }
        }
    }

    /// The attempts that a waiting one waits for: the requests before it that it conflicts with, back to the last that wants the lock for itself,
    /// which waits for all before it; without such a one, the holders too.
    pub(super) fn waits_for(&self, who: AttemptId) -> Vec<AttemptId> {
        let mut all = Vec::new();
        let Some(at) = self.waiters.iter().position(|waiter| waiter.who == who) else { return all };
        let request = &self.waiters[at];
        for before in self.waiters.range(..at).rev().filter(|before| before.conflicts_with(request)) {
            all.push(before.who);
            if before.modes == Modes::EXCLUSIVE {
                return all;
            }
        }
        all.extend(
            self.holders.iter().filter(|holder| holder.conflicts_with(request)).map(|holder| holder.who),
        );
        all
    }

    /// Grants a lock that was granted in an earlier term. Returns whether it is compatible, and nobody waits.
    pub(super) fn restore(&mut self, request: Request) -> bool {
        let is_free = self.waiters.is_empty() && !self.counts.conflict(request.own, request.modes);
        if is_free {
            self.hold(request);
        }
        is_free
    }

    fn hold(&mut self, request: Request) {
        self.counts.remove(request.own);
        self.counts.add(request.modes);
        let known = match request.own {
            Modes::NONE => None,
            _ => self.holders.iter_mut().find(|holder| holder.who == request.who),
        };
        match known {
            Some(holder) => *holder = request,
            None => self.holders.push(request),
        }
    }

    /// Takes a waiting request out, and notes whose waits change by that where waits are told.
    pub(super) fn cancel(&mut self, who: AttemptId, discipline: &Discipline, noted: &mut Vec<AttemptId>) {
        if let Some(at) = self.waiters.iter().position(|waiter| waiter.who == who)
            && let Some(gone) = self.waiters.remove(at)
            && discipline.tells_waits
            && gone.modes == Modes::EXCLUSIVE
        {
            self.note_from(at, noted);
        }
    }

    /// Takes a holder out.
    pub(super) fn release(&mut self, who: AttemptId) {
        if let Some(at) = self.holders.iter().position(|holder| holder.who == who) {
            let holder = self.holders.swap_remove(at);
            self.counts.remove(holder.modes);
        }
    }

    /// Grants every waiting request that conflicts with no holder and with nobody before it, and reports it.
    pub(super) fn grant(&mut self, mut granted: impl FnMut(Request)) {
        let (mut at, mut passed) = (0, Counts::default());
        while let Some(waiter) = self.waiters.get(at).copied() {
            let Request { own, modes, .. } = waiter;
            if !passed.conflict(Modes::NONE, modes) && !self.counts.conflict(own, modes) {
                self.waiters.remove(at);
                self.hold(waiter);
                granted(waiter);
                continue;
            }
            if modes == Modes::EXCLUSIVE {
                // Requests behind it all conflict with it.
                break;
            }
            passed.add(modes);
            at += 1;
        }
    }

    /// Returns whether nobody holds the lock or waits for it.
    pub(super) fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty()
    }

    /// Returns how many wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Visits the holders.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Request> {
        self.holders.iter()
    }

    /// Visits the waiting requests in their order.
    pub(super) fn waiters(&self) -> impl Iterator<Item = &Request> {
        self.waiters.iter()
    }

    /// Drops everybody.
    pub(super) fn clear(&mut self) {
        self.holders.clear();
        self.waiters.clear();
        self.counts = Counts::default();
    }

    /// Checks that holders are compatible, and that whoever waits does so for somebody, and for those alone for whom it may.
    ///
    /// # Errors
    /// The first violation.
    pub(super) fn check(&self, discipline: &Discipline) -> Result<(), String> {
        let mut counts = Counts::default();
        for (at, holder) in self.holders.iter().enumerate() {
            counts.add(holder.modes);
            if let Some(other) = self.holders[..at]
                .iter()
                .find(|other| other.who == holder.who || other.modes.conflicts_with(holder.modes))
            {
                return Err(format!("{holder:?} and {other:?} hold the lock together"));
            }
        }
        if counts != self.counts {
            return Err(format!("the lock counts {:?} and is held by {counts:?}", self.counts));
        }
        for (at, waiter) in self.waiters.iter().enumerate() {
            let others = self.holders.iter().chain(self.waiters.range(..at));
            let mut blockers = others.filter(|other| other.conflicts_with(waiter)).peekable();
            if blockers.peek().is_none() {
                return Err(format!("{waiter:?} waits for nobody"));
            }
            if let Some(other) = blockers.find(|other| !(discipline.may_wait)(waiter, other)) {
                return Err(format!("{waiter:?} waits for {other:?}, for which it may not"));
            }
        }
        Ok(())
    }
}
