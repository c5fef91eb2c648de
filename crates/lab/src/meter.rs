//! Meters of processor time: a role, wrapped so that the time of its thread that it uses is added up.
//!
//! The clock is the thread's own, so a core that is taken away in the middle of an event does not count. Reading it
//! costs a system call. Roles handle batches, so there are few events for many transactions; where there are many
//! nevertheless, as between nodes, only some of them are timed, drawn at random, and each counts for as many.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ordain_model::random::mix;
use ordain_role::{Event, Now, Outbox, Role};
use rustix::time::{ClockId, clock_gettime};

/// Processor time of the calling thread.
pub fn thread_cpu() -> Duration {
    read(ClockId::ThreadCPUTime)
}

/// Processor time of the whole process.
pub fn process_cpu() -> Duration {
    read(ClockId::ProcessCPUTime)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// Adds up processor time. Written by one thread, read by any.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    nanoseconds: Arc<AtomicU64>,
    /// Number of times that work was done.
    done: Arc<AtomicU64>,
}

/// So often at first, everything is timed.
const TIMED_ALL: u64 = 256;
/// After that, one in so many.
const TIMED_ONE_IN: u64 = 8;

impl Meter {
    /// Does some work and adds the time that it took, or an estimate of it.
    #[inline]
    pub fn time<R>(&self, work: impl FnOnce() -> R) -> R {
        let done = self.done.load(Ordering::Relaxed);
        self.done.store(done + 1, Ordering::Relaxed);
        let weight = match done {
            ..TIMED_ALL => 1,
            _ if mix(done).is_multiple_of(TIMED_ONE_IN) => TIMED_ONE_IN,
            _ => return work(),
        };
        let before = thread_cpu();
        let result = work();
        let spent = thread_cpu().saturating_sub(before);
        self.nanoseconds.fetch_add(weight * spent.as_nanos() as u64, Ordering::Relaxed);
        result
    }

    /// The sum so far.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }
}

/// A role whose processor time is metered.
pub struct Metered<M> {
    role: Box<dyn Role<Message = M>>,
    meter: Meter,
}

impl<M> Metered<M> {
    /// Wraps a role.
    pub fn new(role: Box<dyn Role<Message = M>>, meter: Meter) -> Metered<M> {
        Metered { role, meter }
    }
}

impl<M> Role for Metered<M> {
    type Message = M;

    fn handle(&mut self, now: Now, event: Event<M>, out: &mut Outbox<M>) {
        self.meter.time(|| self.role.handle(now, event, out));
    }

    fn name(&self) -> &'static str {
        self.role.name()
    }

    fn check(&self) -> Result<(), String> {
        self.role.check()
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        self.role.gauges(report);
        report("ordain_role_cpu_seconds_total", self.meter.total().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Works;

    impl Role for Works {
        type Message = ();

        fn handle(&mut self, _now: Now, _event: Event<()>, out: &mut Outbox<()>) {
            let until = thread_cpu() + Duration::from_millis(2);
            while thread_cpu() < until {
                std::hint::spin_loop();
            }
            out.halt("done");
        }

        fn name(&self) -> &'static str {
            "works"
        }
    }

    #[test]
    fn what_is_timed_now_and_then_counts_for_all() {
        let weights = |from: u64, to: u64| -> u64 {
            let timed = (from..to).filter(|done| mix(*done).is_multiple_of(TIMED_ONE_IN));
            timed.count() as u64 * TIMED_ONE_IN
        };
        for (from, to) in [(TIMED_ALL, 10_000), (50_000, 60_000)] {
            let share = weights(from, to) as f64 / (to - from) as f64;
            assert!((0.9..1.1).contains(&share), "{share}");
        }
        let meter = Meter::default();
        let answers: u64 = (0..1000).map(|n| meter.time(|| n)).sum();
        assert_eq!(answers, 499_500);
    }

    #[test]
    fn a_metered_role_does_what_it_did_and_its_time_is_added_up() {
        let meter = Meter::default();
        let mut role = Metered::new(Box::new(Works), meter.clone());
        let mut out = Outbox::default();
        for _ in 0..3 {
            role.handle(Now::default(), Event::Start, &mut out);
        }
        assert_eq!((role.name(), out.halt.as_deref()), ("works", Some("done")));
        assert!(meter.total() >= Duration::from_millis(6), "{:?}", meter.total());
        let mut gauges = Vec::new();
        role.gauges(&mut |name, _| gauges.push(name));
        assert_eq!(gauges, ["ordain_role_cpu_seconds_total"]);
    }
}
