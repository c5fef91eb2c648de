//! What all threads of a node share: whether to go on, and why not.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use ordain_role::Rebuild;

use crate::mailbox::Party;
use crate::running::Stopped;

/// The phase of a node, which only ever advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Phase {
    /// It works.
    Running,
    /// Edges finish what was begun and begin nothing new.
    Draining,
    /// Roles know that the node stops, and bring what they have left to disk.
    Closing,
    /// Loops end.
    Stopping,
}

/// The switch of a node.
#[derive(Debug)]
pub(crate) struct Control {
    phase: AtomicU8,
    /// The reason why the node ends by itself; the first reason stands.
    ended: Mutex<Option<Stopped>>,
    /// Wakes the threads that wait for the node to end.
    ending: Condvar,
    /// Loops with edges that have not finished.
    undrained: AtomicUsize,
    /// Loops with roles that have not finished.
    unclosed: AtomicUsize,
    /// Loops that have not ended.
    alive: AtomicUsize,
    /// All threads, to wake them when the phase changes.
    parties: Vec<Arc<Party>>,
}

impl Control {
    /// For a node of so many loops and these threads.
    pub(crate) fn new(loops: usize, parties: Vec<Arc<Party>>) -> Control {
        Control {
            phase: AtomicU8::new(Phase::Running as u8),
            ended: Mutex::new(None),
            ending: Condvar::new(),
            undrained: AtomicUsize::new(loops),
            unclosed: AtomicUsize::new(loops),
            alive: AtomicUsize::new(loops),
            parties,
        }
    }

    /// The phase of the node.
    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Running,
            1 => Phase::Draining,
            2 => Phase::Closing,
            _ => Phase::Stopping,
        }
    }

    /// Advances the phase, and makes sure that every thread sees it.
    pub(crate) fn advance(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
        // With the lock, so that no thread has read the phase and does not wait yet.
        drop(self.reason());
        self.ending.notify_all();
        self.wake_all();
    }

    /// Stops the node at once, for a reason.
    pub(crate) fn halt(&self, reason: String) {
        tracing::error!(%reason, "the node halts");
        self.reason().get_or_insert(Stopped::Halted { reason });
        self.advance(Phase::Stopping);
    }

    /// Stops the node at once, so that it is rebuilt.
    pub(crate) fn rebuild(&self, how: Rebuild) {
        self.reason().get_or_insert(Stopped::Rebuilds(how));
        self.advance(Phase::Stopping);
    }

    /// Stops the node at once, so that it is started again from what it has on disk.
    pub(crate) fn restart(&self, reason: String) {
        self.reason().get_or_insert(Stopped::Restarts { reason });
        self.advance(Phase::Stopping);
    }

    /// Waits until the node is asked to stop, or halts.
    pub(crate) fn await_end(&self) {
        let runs = |_: &mut Option<Stopped>| self.phase() == Phase::Running;
        drop(self.ending.wait_while(self.reason(), runs).unwrap_or_else(PoisonError::into_inner));
    }

    /// The reason why the node has ended by itself, if it has.
    pub(crate) fn ended(&self) -> Option<Stopped> {
        self.reason().clone()
    }

    /// Tells whether the node has halted, or is to be rebuilt.
    pub(crate) fn is_halted(&self) -> bool {
        self.phase() == Phase::Stopping && self.reason().is_some()
    }

    fn reason(&self) -> MutexGuard<'_, Option<Stopped>> {
        // A panic of a holder would leave the reason whole.
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A loop's edges have finished. When all have, the roles get [`Event::Stop`](ordain_role::Event::Stop).
    pub(crate) fn loop_drained(&self) {
        if self.undrained.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.advance(Phase::Closing);
        }
    }

    /// A loop's roles have finished. When all have, the loops end.
    pub(crate) fn loop_closed(&self) {
        if self.unclosed.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.advance(Phase::Stopping);
        }
    }

    /// A loop has ended; nothing comes from it any more.
    pub(crate) fn loop_ended(&self) {
        if self.alive.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.wake_all();
        }
    }

    /// Tells whether all loops have ended.
    pub(crate) fn loops_have_ended(&self) -> bool {
        self.alive.load(Ordering::Acquire) == 0
    }

    fn wake_all(&self) {
        self.parties.iter().for_each(|party| party.wake());
    }
}
