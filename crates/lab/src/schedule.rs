//! Times of an open loop: they are fixed beforehand, whether or not the system keeps up.
//!
//! Latency counts from the intended time. A system that stalls for a second is so charged for every request that
//! should have been made in that second, not just for the one that waited (coordinated omission).

use ordain_model::{Micros, Random};
use ordain_workload::{Made, Source};

use crate::stage::Stage;

/// Intended times with exponential gaps: independent clients of a given rate together, as a seed has them.
#[derive(Clone, Debug)]
pub struct Schedule {
    gap_us: f64,
    next_us: f64,
    random: Random,
}

impl Schedule {
    /// `rate` requests a second on average, from a point in time on. The rate must be above 0.
    pub fn new(rate: f64, from: Micros, seed: u64, stream: u64) -> Schedule {
        let random = Random::stream(seed ^ 0x5c4e_d01e, stream);
        let mut schedule = Schedule { gap_us: 1e6 / rate, next_us: from.0 as f64, random };
        schedule.advance();
        schedule
    }

    /// The time of the next request.
    pub fn next(&self) -> Micros {
        Micros(self.next_us as u64)
    }

    /// The next request has been made.
    pub fn advance(&mut self) {
        // 1 - unit is in (0, 1], whose logarithm is finite.
        self.next_us += -(1.0 - self.random.unit()).ln() * self.gap_us;
    }

    /// About how many requests are due and have not been made.
    pub fn behind(&self, now: Micros) -> u64 {
        ((now.0 as f64 - self.next_us) / self.gap_us).max(0.0).ceil() as u64
    }

    /// Waits of the first `count` of those that are due and have not been made, about: in groups of so
    /// many, the longest first.
    pub fn waiting(&self, now: Micros, count: u64) -> impl Iterator<Item = (Micros, u64)> {
        const GROUPS: u64 = 1_000;
        let groups = count.min(GROUPS);
        let longest = (now.0 as f64 - self.next_us).max(0.0);
        let span = (count as f64 * self.gap_us).min(longest);
        (0..groups).map(move |group| {
            let waited = longest - span * (group as f64 + 0.5) / groups as f64;
            (Micros(waited as u64), count / groups + u64::from(group < count % groups))
        })
    }
}

/// Makes up the next transaction of a population, of a class if one is given, unless none is due: what it is, and the time at which
/// it is due. One that is not of the load takes its share of the budget.
pub fn next_request(
    stage: Stage,
    source: &mut dyn Source,
    class: Option<usize>,
    schedule: Option<&mut Schedule>,
    budget: &mut Option<u64>,
    now: Micros,
) -> Option<(Made, Micros)> {
    if stage == Stage::Load {
        return source.load().map(|procedure| (Made { procedure, kind: 0 }, now));
    }
    let mut due = now;
    if let Some(schedule) = schedule {
        due = schedule.next();
        if due > now {
            return None;
        }
        schedule.advance();
    }
    *budget = budget.map(|left| left - 1);
    let made = match class {
        Some(class) => source.next_of(class),
        None => source.next(),
    };
    Some((made, due))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_the_gaps_are_exponential_and_a_seed_repeats() {
        let times = |seed, stream| {
            let mut schedule = Schedule::new(1_000.0, Micros(500), seed, stream);
            let mut times = Vec::new();
            for _ in 0..20_000 {
                times.push(schedule.next().0);
                schedule.advance();
            }
            times
        };
        let all = times(1, 0);
        assert!(all.is_sorted() && all[0] >= 500);
        let mean = (all[19_999] - 500) as f64 / 20_000.0;
        assert!((970.0..1_030.0).contains(&mean), "{mean}");
        // The share of exponential gaps beyond the mean is 1/e.
        let long = all.windows(2).filter(|pair| pair[1] - pair[0] > 1_000).count() as f64 / 19_999.0;
        assert!((0.35..0.385).contains(&long), "{long}");
        assert_eq!(all, times(1, 0));
        assert_ne!(all, times(1, 1));
        assert_ne!(all, times(2, 0));
    }

    #[test]
    fn what_is_due_and_not_made_is_counted() {
        let schedule = Schedule::new(1e6, Micros(0), 3, 0);
        assert_eq!(schedule.behind(Micros(0)), 0);
        let behind = schedule.behind(Micros(1_000_000));
        assert!((999_900..=1_000_001).contains(&behind), "{behind}");
        let waiting: Vec<_> = schedule.waiting(Micros(1_000_000), behind).collect();
        assert_eq!((waiting.len(), waiting.iter().map(|(_, count)| count).sum::<u64>()), (1_000, behind));
        assert!(waiting[0].0.0 > 998_000 && waiting[999].0.0 < 1_000, "{waiting:?}");
        // The first ones have waited longest.
        assert!(
            schedule.waiting(Micros(1_000_000), 3).all(|(waited, count)| waited.0 > 999_900 && count == 1)
        );
        assert_eq!(schedule.waiting(Micros(0), 0).count(), 0);
    }
}
