//! Staleness of reads, as clients can measure it: for how long, when a client asked, another had been answered with a
//! change that the read does not hold (paxflow.md, section 7, E3).
//!
//! A read that misses nothing is *fresh*. One that is asked in strict mode must be: so this is a check too. A read on a snapshot
//! of an epoch misses the changes of later ones. Others are held against the writes that they name, if the workload's do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ordain_model::Epoch;

use crate::tally::{add_up, histogram};

/// Times of the first answers with changes of each epoch, shared by all clients of a run.
#[derive(Debug)]
pub struct Answered {
    /// The beginning of the time by which clients tell when they asked.
    begun: Instant,
    newest: AtomicU64,
    /// Epochs and times rise.
    first: Mutex<Vec<(Epoch, Instant)>>,
}

impl Default for Answered {
    fn default() -> Answered {
        Answered { begun: Instant::now(), newest: AtomicU64::new(0), first: Mutex::default() }
    }
}

impl Answered {
    /// A moment in nanoseconds since the clients were made.
    pub fn moment(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.begun).as_nanos() as u64
    }

    /// Notes that a client is answered with a change of this epoch.
    pub fn note(&self, epoch: Epoch, at: Instant) {
        // Most answers are of an epoch of which there was one before.
        if self.newest.load(Ordering::Relaxed) >= epoch.0 {
            return;
        }
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        if first.last().is_none_or(|(newest, _)| *newest < epoch) {
            // Another loop may have been here with an earlier epoch and a later clock.
            let at = first.last().map_or(at, |(_, before)| at.max(*before));
            first.push((epoch, at));
            self.newest.store(epoch.0, Ordering::Relaxed);
        }
    }

    /// For how long, at a time, there had been an answer that the state at the end of this epoch does not hold.
    pub fn staleness(&self, epoch: Epoch, asked: Instant) -> Duration {
        if self.newest.load(Ordering::Relaxed) <= epoch.0 {
            return Duration::ZERO;
        }
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let missed = first.partition_point(|(answered, _)| *answered <= epoch);
        first.get(missed).map_or(Duration::ZERO, |(_, at)| asked.saturating_duration_since(*at))
    }
}

/// The staleness of all that a population, or several, have read.
#[derive(Clone, Debug)]
pub struct Staleness {
    /// Microseconds, rounded up: only what is fresh is 0.
    pub us: Histogram<u64>,
}

impl Staleness {
    pub fn new() -> Staleness {
        Staleness { us: histogram() }
    }

    /// Something was read.
    pub fn note(&mut self, staleness: Duration) {
        self.us.saturating_record(staleness.as_nanos().div_ceil(1000) as u64);
    }

    /// Adds what another population has read.
    pub fn add(&mut self, other: &Staleness) {
        add_up(&mut self.us, &other.us);
    }

    /// The number of fresh reads.
    pub fn fresh(&self) -> u64 {
        self.us.count_at(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_as_stale_as_the_first_answer_that_it_misses_is_old() {
        let (answered, begun) = (Answered::default(), Instant::now());
        let at = |ms| begun + Duration::from_millis(ms);
        let stale = |epoch, ms| answered.staleness(Epoch(epoch), at(ms)).as_millis();
        assert_eq!(stale(1, 100), 0);
        for (epoch, ms) in [(5, 10), (7, 20), (6, 25), (9, 15), (12, 40)] {
            answered.note(Epoch(epoch), at(ms));
        }
        assert_eq!([stale(4, 50), stale(5, 50), stale(6, 50)], [40, 30, 30]);
        // An answer that was given after it was asked is none that it had to know of.
        assert_eq!([stale(12, 90), stale(11, 90), stale(11, 39), stale(8, 50)], [0, 50, 0, 30]);
        let mut all = Staleness::new();
        [0, 1, 999, 1_001, 1_500_000].map(Duration::from_nanos).into_iter().for_each(|s| all.note(s));
        let other = all.clone();
        all.add(&other);
        assert_eq!((all.us.len(), all.fresh(), all.us.max()), (10, 2, 1_500));
    }
}
