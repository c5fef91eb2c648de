//! Stages of a run: all populations of clients go through them together, led by one thread.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// The stage of a run, which only advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Stage {
    /// Loading the data.
    Load,
    /// Running, not measured yet.
    WarmUp,
    /// Running, measured.
    Measure,
    /// Asking for nothing more.
    Drain,
    /// Checking the data, with nothing under way any more.
    Audit,
}

/// State that populations share with the leading thread.
#[derive(Debug, Default)]
pub struct Stages {
    stage: AtomicU8,
    /// Commits so far, for the progress line.
    pub answered: AtomicU64,
    /// A population is to ask for a checkpoint.
    wants_checkpoint: AtomicBool,
    /// A checkpoint is being captured, as far as is known.
    is_capturing: AtomicBool,
}

impl Stages {
    /// Goes on to a stage.
    pub fn enter(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Release);
    }

    /// Makes a population ask for a checkpoint.
    pub fn ask_for_checkpoint(&self) {
        self.is_capturing.store(true, Ordering::Release);
        self.wants_checkpoint.store(true, Ordering::Release);
    }

    /// The checkpoint is complete.
    pub fn end_checkpoint(&self) {
        self.is_capturing.store(false, Ordering::Release);
    }

    /// True if a checkpoint was asked for that is not complete.
    pub fn is_capturing(&self) -> bool {
        self.is_capturing.load(Ordering::Relaxed)
    }

    /// Takes the request for a checkpoint, if there is one.
    pub fn takes_checkpoint(&self) -> bool {
        self.wants_checkpoint.load(Ordering::Relaxed) && self.wants_checkpoint.swap(false, Ordering::Acquire)
    }

    /// The stage of the run.
    pub fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::Load,
            1 => Stage::WarmUp,
            2 => Stage::Measure,
            3 => Stage::Drain,
            _ => Stage::Audit,
        }
    }
}

/// The share of population `number`, counted from 0, of something that is divided among all.
pub fn share(total: u64, number: usize, populations: usize) -> u64 {
    let (number, populations) = (number as u64, populations.max(1) as u64);
    if number >= populations { 0 } else { total / populations + u64::from(number < total % populations) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_seen_by_all() {
        let stages = Stages::default();
        for stage in [Stage::Load, Stage::WarmUp, Stage::Measure, Stage::Drain, Stage::Audit] {
            stages.enter(stage);
            assert_eq!(stages.stage(), stage);
        }
    }

    #[test]
    fn a_checkpoint_is_asked_for_once() {
        let stages = Stages::default();
        assert!(!stages.takes_checkpoint());
        stages.ask_for_checkpoint();
        assert!(stages.takes_checkpoint() && !stages.takes_checkpoint() && stages.is_capturing());
        stages.end_checkpoint();
        assert!(!stages.is_capturing());
    }

    #[test]
    fn shares_add_up_and_differ_by_one_at_most() {
        for (total, populations) in [(0, 1), (1, 2), (7, 3), (100, 7), (2, 5)] {
            let shares: Vec<u64> = (0..populations).map(|i| share(total, i, populations)).collect();
            assert_eq!(shares.iter().sum::<u64>(), total);
            assert!(shares[0] - shares[populations - 1] <= 1, "{shares:?}");
        }
        assert_eq!(share(9, 2, 2), 0);
    }
}
