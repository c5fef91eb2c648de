//! How long the scripts and functions of a node run: a [`Stopwatch`] for the roles, which have no clock themselves.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ordain_model::{Histogram, Stopwatch};

use crate::clock::micros;

/// The distribution of run times, microseconds, noted by one shard and by the work thread for it. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct RunTimes(Arc<Mutex<Histogram>>);

impl RunTimes {
    /// The distribution so far.
    pub fn histogram(&self) -> Histogram {
        self.lock().clone()
    }

    /// Forgets what was noted: a replay at the start is nothing that clients have asked for.
    pub fn clear(&self) {
        *self.lock() = Histogram::default();
    }

    fn lock(&self) -> MutexGuard<'_, Histogram> {
        // Nothing panics while it is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stopwatch for RunTimes {
    fn time(&self, run: &mut dyn FnMut() -> bool) {
        let begun = Instant::now();
        if run() {
            let took = micros(begun.elapsed());
            self.lock().record_time(took);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_come_to_their_end_are_noted() {
        let times = RunTimes::default();
        let shared = times.clone();
        shared.time(&mut || true);
        shared.time(&mut || false);
        assert_eq!(times.histogram().count(), 1);
        shared.clear();
        assert_eq!(times.histogram().count(), 0);
    }
}
