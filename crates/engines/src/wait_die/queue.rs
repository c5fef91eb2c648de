//! The queue of one lock: who holds it, who waits, and who may come next (baselines.md, 4.5; rules D1 to D5).

use std::collections::VecDeque;

use ordain_commit::{Age, AttemptId, Seniority, Verdict};

use crate::two_phase_locking::{Counts, Modes};

/// An attempt that holds a lock, or waits for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) who: AttemptId,
    pub(super) age: Age,
    /// The modes that it held when it asked.
    pub(super) own: Modes,
    /// The modes that it has when the request is granted, `own` included.
    pub(super) modes: Modes,
}

impl Request {
    fn seniority(&self) -> Seniority {
        (self.age, self.who.transaction)
    }

    fn is_older_than(&self, other: &Request) -> bool {
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
    /// Decides about a request. `passes_writers` is the planted bug of a request that does not look at who waits.
    ///
    /// An upgrade goes ahead of the queue if all waiters that it conflicts with are older, because they wait for it then. For
    /// shared and exclusive modes that is always so. In a queue of intention modes a younger waiter may be compatible with
    /// what the attempt holds: the upgrade is a request like any other then.
    pub(super) fn request(&mut self, request: Request, passes_writers: bool) -> Verdict {
        let conflicts = |other: &&Request| other.conflicts_with(&request);
        let waiters = self.waiters.iter().filter(conflicts);
        let is_ahead = match request.own {
            Modes::NONE => passes_writers,
            _ => waiters.clone().all(|waiter| waiter.is_older_than(&request)),
        };
        let mut waiters = waiters.filter(|_| !is_ahead).peekable();
        if waiters.peek().is_none() && !self.counts.conflict(request.own, request.modes) {
            drop(waiters);
            self.hold(request);
            return Verdict::Granted;
        }
        let mut blockers = self.holders.iter().filter(conflicts).chain(waiters);
        if !blockers.all(|other| request.is_older_than(other)) {
            return Verdict::Refused;
        }
        match is_ahead {
            true => self.waiters.push_front(request),
            false => self.waiters.push_back(request),
        }
        Verdict::Waits
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

    /// Takes a waiting request out.
    pub(super) fn cancel(&mut self, who: AttemptId) {
        if let Some(at) = self.waiters.iter().position(|waiter| waiter.who == who) {
            self.waiters.remove(at);
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

    /// Checks that holders are compatible, that whoever waits is older than whom it waits for, and that it waits for somebody.
    ///
    /// # Errors
    /// The first violation.
    pub(super) fn check(&self) -> Result<(), String> {
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
            if let Some(older) = blockers.find(|other| !waiter.is_older_than(other)) {
                return Err(format!("{waiter:?} waits for {older:?}, which is not younger"));
            }
        }
        Ok(())
    }
}
