//! The sleep and wake protocol under a model checker: the very source of `src/wake.rs`, compiled against loom's
//! atomics, in every interleaving and with every value that weak memory may show.

#![expect(clippy::unwrap_used, reason = "a test may fail where it likes")]

#[path = "../src/wake.rs"]
mod wake;

/// What `src/wake.rs` finds in place of the standard library's.
mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicBool, Ordering, fence};
}

use std::sync::atomic::Ordering;

use loom::sync::atomic::AtomicUsize;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use wake::Doorbell;

/// Stands for the eventfd: a wake-up is remembered until the next sleep.
struct Eventfd {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Eventfd {
    fn new() -> Eventfd {
        Eventfd { woken: Mutex::new(false), changed: Condvar::new() }
    }

    fn wake(&self) {
        *self.woken.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn sleep(&self) {
        let mut woken = self.woken.lock().unwrap();
        while !*woken {
            woken = self.changed.wait(woken).unwrap();
        }
        *woken = false;
    }
}

/// What sender and receiver share: a ring is as far filled as its sender says.
struct Shared {
    bell: Doorbell,
    fd: Eventfd,
    rings: [AtomicUsize; 2],
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared {
        bell: Doorbell::new(),
        fd: Eventfd::new(),
        rings: [AtomicUsize::new(0), AtomicUsize::new(0)],
    })
}

impl Shared {
    fn filled(&self) -> usize {
        self.rings.iter().map(|ring| ring.load(Ordering::Acquire)).sum()
    }

    fn send(&self, ring: usize, count: usize) {
        for n in 1..=count {
            self.rings[ring].store(n, Ordering::Release);
            if self.bell.ring() {
                self.fd.wake();
            }
        }
    }

    fn receive(&self, total: usize) {
        let mut seen = 0;
        while seen < total {
            if self.bell.listen(|| self.filled() == seen) {
                self.fd.sleep();
            }
            self.bell.ignore();
            seen = self.filled();
        }
    }
}

/// Runs every interleaving of up to three preemptions; one sender without a bound passes too, in ten seconds.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut checker = loom::model::Builder::new();
    checker.preemption_bound = Some(3);
    checker.check(model);
}

/// A lost wake-up would leave the receiver asleep for ever: the checker reports that as a deadlock.
#[test]
fn one_sender_never_leaves_the_receiver_asleep() {
    explore(|| {
        let shared = shared();
        let sender = thread::spawn({
            let shared = shared.clone();
            move || shared.send(0, 2)
        });
        shared.receive(2);
        sender.join().unwrap();
    });
}

#[test]
fn two_senders_never_leave_the_receiver_asleep() {
    explore(|| {
        let shared = shared();
        let senders = [0, 1].map(|ring| {
            let shared = shared.clone();
            thread::spawn(move || shared.send(ring, 1))
        });
        shared.receive(2);
        for sender in senders {
            sender.join().unwrap();
        }
    });
}

/// Whether the checker finds a run in which the receiver goes to sleep, there is something to do, and nobody
/// wakes it. `sleeps` is what the receiver does, and `wakes` what the sender does once it has published.
fn a_wake_up_can_be_lost(
    sleeps: impl Fn(&Shared) -> bool + Send + Sync + 'static,
    wakes: impl Fn(&Shared) -> bool + Send + Sync + Copy + 'static,
) -> bool {
    let lost = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let found = lost.clone();
    loom::model(move || {
        let shared = shared();
        let sender = thread::spawn({
            let shared = shared.clone();
            move || {
                shared.rings[0].store(1, Ordering::Release);
                wakes(&shared)
            }
        });
        let slept = sleeps(&shared);
        let woken = sender.join().unwrap();
        if slept && !woken {
            found.store(true, Ordering::Relaxed);
        }
    });
    lost.load(Ordering::Relaxed)
}

/// The test of the tests: leave one step of the protocol out, and the checker finds the lost wake-up.
#[test]
fn the_second_look_and_the_fences_are_needed() {
    let rings = |shared: &Shared| shared.bell.ring();
    assert!(!a_wake_up_can_be_lost(|s| s.bell.listen(|| s.filled() == 0), rings));
    assert!(a_wake_up_can_be_lost(|s| s.filled() == 0 && s.bell.listen(|| true), rings), "no second look");
    let announce = |s: &Shared| s.rings[1].store(1, Ordering::Release);
    let no_fences = a_wake_up_can_be_lost(
        move |s| {
            announce(s);
            s.rings[0].load(Ordering::Acquire) == 0
        },
        |s| s.rings[1].load(Ordering::Acquire) == 1,
    );
    assert!(no_fences, "no fences");
}
