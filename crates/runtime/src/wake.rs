//! How one thread sleeps and others wake it, without a system call while it is awake and without ever losing a
//! wake-up.
//!
//! The sleeper announces that it is about to sleep, *then* looks once more whether there is something to do.
//! A thread that makes work publishes it first, *then* checks whether the sleeper has announced itself.
//! A full fence stands between the two steps on either side. Fences have one total order, so
//!
//! - if the ringer's fence comes first, the sleeper's second look sees what was published, and it does not
//!   sleep;
//! - if the sleeper's fence comes first, the ringer sees the announcement, takes it back and wakes the sleeper.
//!   Should the ringer find it taken back already, then either another ringer took it, who wakes the sleeper, or
//!   the sleeper itself, which is then awake; before it sleeps again it announces itself again, and since the
//!   ringer did not see *that*, the ringer's fence came before and the first case applies.
//!
//! In neither order do both miss each other. Waking must be sticky: a wake-up between the second look and the
//! sleep makes the sleep return at once, which is what an eventfd under `mio` does.
//!
//! This file knows neither queues nor `mio`, so that a model checker can run exactly it: `tests/wake_model.rs`
//! compiles it against the checker's atomics, and shows that either fence and the second look are needed.

use crate::atomic::{AtomicBool, Ordering, fence};

/// The announcement of one sleeper.
#[derive(Debug)]
pub(crate) struct Doorbell {
    /// Changed by exchanges only, so that its changes form one chain in which each has seen the one before.
    listening: AtomicBool,
}

impl Doorbell {
    /// The bell of a thread that is awake.
    pub(crate) fn new() -> Doorbell {
        Doorbell { listening: AtomicBool::new(false) }
    }

    /// Announces that the sleeper is about to sleep, and says whether it may. `idle` is the second look: it must
    /// read everything that ringers publish.
    pub(crate) fn listen(&self, idle: impl FnOnce() -> bool) -> bool {
        self.listening.swap(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let idle = idle();
        if !idle {
            self.ignore();
        }
        idle
    }

    /// Takes the announcement back: the sleeper is awake.
    pub(crate) fn ignore(&self) {
        self.listening.swap(false, Ordering::Relaxed);
    }

    /// To be called after publishing something. If this says so, the caller must wake the sleeper.
    #[must_use]
    pub(crate) fn ring(&self) -> bool {
        fence(Ordering::SeqCst);
        self.listening.load(Ordering::Relaxed) && self.listening.swap(false, Ordering::Relaxed)
    }
}
