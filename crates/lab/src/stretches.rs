//! What was answered while a checkpoint was captured, beside what was answered otherwise in the same run.
//!
//! Throughput before and after is what the checkpoint is held against: the same node, data and minute. A *pause* is the
//! longest time in which no client of a loop was answered. Latency does not tell one in a closed loop of many clients,
//! where everybody waits for everybody else anyway.

use anyhow::Context;
use hdrhistogram::Histogram;
use ordain_model::Micros;

/// What was answered in a part of the time measured.
#[derive(Clone, Debug)]
pub struct Stretch {
    /// How long it was.
    pub length: Micros,
    /// Microseconds from submission to answer, of what was committed.
    pub latency_us: Histogram<u64>,
    /// The longest time without an answer that ended in it.
    pub pause: Micros,
}

impl Stretch {
    /// Adds what another population was answered at the same time.
    fn add(&mut self, other: &Stretch) -> anyhow::Result<()> {
        self.length = self.length.max(other.length);
        self.pause = self.pause.max(other.pause);
        self.latency_us.add(&other.latency_us).context("adding up latencies")
    }
}

/// The time measured, in two parts.
#[derive(Clone, Debug)]
pub struct Stretches {
    /// While no checkpoint was captured.
    pub beside: Stretch,
    /// While one was.
    pub during: Stretch,
    is_capturing: bool,
    /// Since when it has been one or the other.
    since: Micros,
    /// When there last was an answer.
    heard: Micros,
}

impl Stretches {
    /// Measuring begins; `histogram` is an empty one.
    pub fn new(now: Micros, histogram: Histogram<u64>) -> Stretches {
        let nothing = Stretch { length: Micros(0), latency_us: histogram, pause: Micros(0) };
        Stretches { beside: nothing.clone(), during: nothing, is_capturing: false, since: now, heard: now }
    }

    fn current(&mut self) -> &mut Stretch {
        if self.is_capturing { &mut self.during } else { &mut self.beside }
    }

    /// There are answers, or measuring ends; a checkpoint is being captured, or none is.
    pub fn hear(&mut self, now: Micros, is_capturing: bool) {
        let (gone, silent) = (now.since(self.since), now.since(self.heard));
        self.current().length.0 += gone.0;
        // A pause that a checkpoint may have made is charged to it.
        self.is_capturing |= is_capturing;
        let stretch = self.current();
        stretch.pause = stretch.pause.max(silent);
        (self.is_capturing, self.since, self.heard) = (is_capturing, now, now);
    }

    /// A transaction was committed, after this long.
    pub fn note(&mut self, took: Micros) {
        self.current().latency_us.saturating_record(took.0);
    }

    /// Adds what another population was answered.
    ///
    /// # Errors
    /// Never, as all histograms have the same bounds.
    pub fn add(&mut self, other: &Stretches) -> anyhow::Result<()> {
        self.beside.add(&other.beside)?;
        self.during.add(&other.during)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_pauses_belong_to_the_part_in_which_they_are() {
        let mut all = Stretches::new(Micros(0), Histogram::new(3).unwrap());
        let mut hear = |now: u64, is_capturing, answers: usize| {
            all.hear(Micros(now), is_capturing);
            (0..answers).for_each(|_| all.note(Micros(7)));
        };
        hear(1_000, false, 1);
        hear(3_000, false, 1);
        // It has begun since, and nobody was answered for long.
        hear(9_000, true, 2);
        hear(10_000, true, 2);
        // It has ended since, after this silence or in it.
        hear(18_000, false, 1);
        hear(19_000, false, 0);
        let of = |stretch: &Stretch| (stretch.length.0, stretch.latency_us.len(), stretch.pause.0);
        assert_eq!((of(&all.beside), of(&all.during)), ((10_000, 3, 2_000), (9_000, 4, 8_000)));
        let other = all.clone();
        all.add(&other).unwrap();
        assert_eq!((of(&all.beside), of(&all.during)), ((10_000, 6, 2_000), (9_000, 8, 8_000)));
    }
}
