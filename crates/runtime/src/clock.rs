//! The clocks of a node.

use std::time::{Duration, Instant, SystemTime};

use ordain_model::Micros;
use ordain_role::Now;

/// Tells all loops of a node the same time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    /// The time, from both clocks.
    pub fn now(&self) -> Now {
        // A wall clock before 1970 is taken for 1970.
        let wall = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Now { elapsed: self.elapsed(), wall: micros(wall) }
    }

    /// A moment after `now`: cheaper than [`Clock::now`], because only one clock is read.
    pub fn since(&self, now: Now) -> Now {
        let elapsed = self.elapsed();
        Now { elapsed, wall: now.wall.plus(elapsed.since(now.elapsed)) }
    }

    fn elapsed(&self) -> Micros {
        micros(self.start.elapsed())
    }
}

/// Whole microseconds, saturating after half a million years.
pub(crate) fn micros(duration: Duration) -> Micros {
    Micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_readings_advance_together() {
        let clock = Clock::start();
        let before = clock.now();
        let after = clock.since(before);
        assert!(after.elapsed >= before.elapsed);
        assert_eq!(after.wall.since(before.wall), after.elapsed.since(before.elapsed));
        // The year is between 2020 and 2286, so the unit is right.
        assert!((1_577_836_800_000_000..9_999_999_999_999_999).contains(&before.wall.0));
    }
}
