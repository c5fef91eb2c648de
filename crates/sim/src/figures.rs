//! The figures by which a run says what it was like: whether it could have met a mistake at all.

use std::fmt;

use ordain_model::Micros;

use crate::load::FaultPace;

/// The size of a batch of a log. A family whose log has an entry for each transaction reports batches of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchSize {
    /// Its transactions that the log keeps.
    pub txns: u64,
    /// The fragments of those.
    pub fragments: u64,
}

/// The figures of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Requests whose fate no client knows, of a hundred.
    pub unknown_percent: f64,
    /// The number of batches with a transaction in them, of all partitions.
    pub batches: u64,
    /// The transactions of the batch that half of the others have no more than; 0 without batches.
    pub batch_txns: u64,
    /// Batches of eight transactions or more, of a hundred.
    pub large_batches_percent: f64,
    /// The fragments of the batch that half of the others have no more than; 0 without batches.
    pub batch_fragments: u64,
    /// The most fragments of a batch.
    pub batch_fragments_max: u64,
    /// The number of crashes before the faults ended.
    pub crashes: u64,
    /// The number of faults that the simulator began.
    pub faults: u64,
    /// The number of leaders that lost their power while they lived.
    pub deposed: u64,
    /// The number of leaders that got it back without having started anew.
    pub regained: u64,
    /// The number of leaders that stood still between what they had handled and what they sent for it.
    pub held: u64,
    /// The virtual time for which clients asked and faults happened.
    pub asked_for: Micros,
}

impl Figures {
    /// The number of transactions from which on a batch counts as large.
    pub const LARGE: u64 = 8;

    /// The figures of batches, with all others 0.
    pub(crate) fn of_batches(batches: &[BatchSize]) -> Figures {
        let middle = |of: &dyn Fn(&BatchSize) -> u64| {
            let mut sizes: Vec<u64> = batches.iter().map(of).collect();
            sizes.sort_unstable();
            sizes.get(sizes.len() / 2).copied().unwrap_or_default()
        };
        let large = batches.iter().filter(|size| size.txns >= Figures::LARGE).count() as u64;
        Figures {
            batches: batches.len() as u64,
            batch_txns: middle(&|size| size.txns),
            large_batches_percent: percent(large, batches.len() as u64),
            batch_fragments: middle(&|size| size.fragments),
            batch_fragments_max: batches.iter().map(|size| size.fragments).max().unwrap_or_default(),
            ..Figures::default()
        }
    }

    /// The mean virtual time between two faults; none if there were none.
    pub fn fault_every(&self) -> Option<Micros> {
        self.asked_for.0.checked_div(self.faults).map(Micros)
    }
}

/// The time for which clients asked and faults happened, given when that ended and when the first answer came. A storm is there from the start,
/// and may be over before anything is answered; other faults begin with the first answer.
pub(crate) fn lasted(pace: FaultPace, works_since: Option<Micros>, healed: Micros) -> Micros {
    let since = if pace == FaultPace::Own { Some(Micros(0)) } else { works_since };
    Micros(since.map_or(0, |since| healed.0.saturating_sub(since.0)))
}

/// The share of a number in another, of a hundred; 0 of 0.
pub(crate) fn percent(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 * 100.0 / of as f64 }
}

fn millis(of: Micros) -> f64 {
    of.0 as f64 / 1e3
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { unknown_percent, batches, batch_txns, batch_fragments, crashes, faults, .. } = self;
        write!(
            f,
            "unknown {unknown_percent:.0}% batches {batches} of {batch_txns} txns {batch_fragments} fragments \
             crashes {crashes} faults {faults}"
        )?;
        let of_leaders = [("deposed", self.deposed), ("regained", self.regained), ("held", self.held)];
        for (name, count) in of_leaders.into_iter().filter(|(_, count)| *count > 0) {
            write!(f, " {name} {count}")?;
        }
        self.fault_every().map_or(Ok(()), |every| write!(f, " every {:.1} ms", millis(every)))?;
        write!(f, " in {:.1} ms", millis(self.asked_for))
    }
}

/// The figures of many runs: the least, the middle and the most of each.
#[derive(Clone, Debug, Default)]
pub struct Summary(Vec<Figures>);

impl Summary {
    /// Takes the figures of one more run.
    pub fn add(&mut self, figures: Figures) {
        self.0.push(figures);
    }

    /// The least, the middle and the most of a figure. Runs that have none of it do not count.
    pub fn spread(&self, of: impl Fn(&Figures) -> Option<f64>) -> Option<[f64; 3]> {
        let mut values: Vec<f64> = self.0.iter().filter_map(of).collect();
        values.sort_unstable_by(f64::total_cmp);
        let middle = values.get(values.len() / 2)?;
        Some([*values.first()?, *middle, *values.last()?])
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "of {} seeds the least, the middle and the most:", self.0.len())?;
        let mut figure = |name: &str, unit: &str, digits: usize, of: &dyn Fn(&Figures) -> Option<f64>| {
            let Some(spread) = self.spread(of) else { return Ok(()) };
            let text = spread.map(|value| format!("{value:.digits$}")).join("/");
            write!(f, " {name} {text}{unit}")
        };
        figure("unknown", "%,", 0, &|run| Some(run.unknown_percent))?;
        figure("batch", " txns,", 0, &|run| Some(run.batch_txns as f64))?;
        figure("of 8 or more", "%,", 0, &|run| Some(run.large_batches_percent))?;
        figure("batch", " fragments,", 0, &|run| Some(run.batch_fragments as f64))?;
        figure("crashes", ",", 0, &|run| Some(run.crashes as f64))?;
        figure("faults", ",", 0, &|run| Some(run.faults as f64))?;
        if self.0.iter().any(|run| run.deposed + run.held > 0) {
            figure("deposed", ",", 0, &|run| Some(run.deposed as f64))?;
            figure("regained", ",", 0, &|run| Some(run.regained as f64))?;
            figure("held", ",", 0, &|run| Some(run.held as f64))?;
        }
        figure("fault every", " ms,", 1, &|run| run.fault_every().map(millis))?;
        figure("in", " ms", 1, &|run| Some(millis(run.asked_for)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sizes: &[u64]) -> Figures {
        let batches: Vec<_> =
            sizes.iter().map(|txns| BatchSize { txns: *txns, fragments: 3 * txns }).collect();
        Figures::of_batches(&batches)
    }

    #[test]
    fn the_middle_of_batches_and_the_share_of_large_ones() {
        let figures = of(&[1, 30, 8, 7, 9]);
        assert_eq!((figures.batches, figures.batch_txns, figures.batch_fragments), (5, 8, 24));
        assert_eq!(figures.large_batches_percent, 60.0);
        assert_eq!(of(&[]), Figures::default());
    }

    /// Found with several regions: nothing was answered before a storm was over, and there was a fault every 0.0 ms in 0.0 ms.
    #[test]
    fn a_storm_lasts_from_the_start() {
        let every = |pace, works_since| {
            let asked_for = lasted(pace, works_since, Micros(9_000));
            Figures { faults: 3, asked_for, ..Figures::default() }.fault_every()
        };
        assert_eq!(every(FaultPace::Own, None), Some(Micros(3_000)));
        assert_eq!(every(FaultPace::Own, Some(Micros(8_999))), Some(Micros(3_000)));
        assert_eq!(every(FaultPace::Once, Some(Micros(6_000))), Some(Micros(1_000)));
        assert_eq!(every(FaultPace::Once, None), Some(Micros(0)));
    }

    #[test]
    fn figures_are_written_with_their_units() {
        let run = Figures { faults: 4, crashes: 1, asked_for: Micros(10_000), ..of(&[8]) };
        let text = "unknown 0% batches 1 of 8 txns 24 fragments crashes 1 faults 4 every 2.5 ms in 10.0 ms";
        assert_eq!(run.to_string(), text);
        let with_leaders = Figures { deposed: 2, held: 1, ..run.clone() };
        assert!(with_leaders.to_string().contains("faults 4 deposed 2 held 1 every"));
        let mut summary = Summary::default();
        let calm = Figures { asked_for: Micros(30_000), ..of(&[2]) };
        [run, calm].into_iter().for_each(|figures| summary.add(figures));
        let text = "of 2 seeds the least, the middle and the most: unknown 0/0/0%, batch 2/8/8 txns, \
                    of 8 or more 0/100/100%, batch 6/24/24 fragments, crashes 0/1/1, faults 0/4/4, \
                    fault every 2.5/2.5/2.5 ms, in 10.0/30.0/30.0 ms";
        assert_eq!(summary.to_string(), text);
    }
}
