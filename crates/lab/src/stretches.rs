//! Answers while a checkpoint was captured, beside the answers otherwise in the same run.
//!
//! Throughput before and after is what the checkpoint is held against: the same node, data and minute. A *pause* is the
//! longest time in which no client of a loop was answered. Latency does not show one in a closed loop of many clients,
//! where all wait for one another anyway.
//!
//! Not every pause is the node's doing. A virtual machine stands still when its host gives its processors to another,
//! which the system counts as *stolen*. So beside the longest pause stand how much processor time its loop used in it, how much
//! was stolen from the machine around it, and the longest pause less that.

use std::time::Duration;

use hdrhistogram::Histogram;
use ordain_model::Micros;

use crate::tally::{add_up, histogram};

/// Answers in a part of the time measured.
#[derive(Clone, Debug)]
pub struct Stretch {
    pub length: Micros,
    /// Microseconds from submission to answer, of what was committed.
    pub latency_us: Histogram<u64>,
    /// The longest time without an answer that ended in it.
    pub pause: Pause,
    /// The longest less what was stolen around it.
    pub own_pause: Micros,
}

/// A time in which no client of a loop was answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    pub length: Micros,
    /// Processor time that the loop's thread used in it.
    pub cpu: Duration,
    /// Time stolen from all processors of the machine in it and in a tenth of a second before it.
    pub stolen: Duration,
}

impl Pause {
    fn or_longer(self, other: Pause) -> Pause {
        if other.length > self.length { other } else { self }
    }
}

/// Greatest age of the last look at stolen time. A look takes a system call of some 20 us.
const LOOK_AGAIN: Micros = Micros::from_millis(100);
/// After a time without an answer that is as long there is a look in any case.
const LONG: Micros = Micros::from_millis(5);

/// The clocks that a loop reads when there are answers.
pub trait Clocks {
    /// Processor time of this thread.
    fn thread_cpu(&mut self) -> Duration;

    /// Time stolen from the machine since it was started.
    fn stolen(&mut self) -> Duration;
}

impl Stretch {
    /// Adds what another population was answered at the same time.
    fn add(&mut self, other: &Stretch) {
        self.length = self.length.max(other.length);
        self.pause = self.pause.or_longer(other.pause);
        self.own_pause = self.own_pause.max(other.own_pause);
        add_up(&mut self.latency_us, &other.latency_us);
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
    /// Time of the last answer, and the processor time of the thread then.
    last_answer: (Micros, Duration),
    /// Time of the last look at stolen time, and its result.
    last_look: (Micros, Duration),
}

impl Stretches {
    /// Measuring begins.
    pub fn new(now: Micros, clocks: &mut impl Clocks) -> Stretches {
        let (length, own_pause) = (Micros(0), Micros(0));
        let nothing = Stretch { length, latency_us: histogram(), pause: Pause::default(), own_pause };
        Stretches {
            beside: nothing.clone(),
            during: nothing,
            is_capturing: false,
            since: now,
            last_answer: (now, clocks.thread_cpu()),
            last_look: (now, clocks.stolen()),
        }
    }

    fn current(&mut self) -> &mut Stretch {
        if self.is_capturing { &mut self.during } else { &mut self.beside }
    }

    /// There are answers, or measuring ends; a checkpoint is being captured, or none is.
    pub fn answered(&mut self, now: Micros, clocks: &mut impl Clocks, is_capturing: bool) {
        let (gone, length) = (now.since(self.since), now.since(self.last_answer.0));
        let cpu = clocks.thread_cpu();
        let mut pause = Pause { length, cpu: cpu.saturating_sub(self.last_answer.1), stolen: Duration::ZERO };
        if length >= LONG || now.since(self.last_look.0) >= LOOK_AGAIN {
            let stolen = clocks.stolen();
            pause.stolen = stolen.saturating_sub(self.last_look.1);
            self.last_look = (now, stolen);
        }
        self.current().length.0 += gone.0;
        // A pause that a checkpoint may have made is charged to it.
        self.is_capturing |= is_capturing;
        let stretch = self.current();
        stretch.pause = stretch.pause.or_longer(pause);
        let stolen = Micros(pause.stolen.as_micros() as u64);
        stretch.own_pause = stretch.own_pause.max(length.since(stolen));
        (self.is_capturing, self.since, self.last_answer) = (is_capturing, now, (now, cpu));
    }

    /// A transaction was committed, after this long.
    pub fn note(&mut self, took: Micros) {
        self.current().latency_us.saturating_record(took.0);
    }

    /// Adds what another population was answered.
    pub fn add(&mut self, other: &Stretches) {
        self.beside.add(&other.beside);
        self.during.add(&other.during);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clocks of a thread that uses half of the time, with the stolen time given.
    struct Given(Micros, u64);

    impl Clocks for Given {
        fn thread_cpu(&mut self) -> Duration {
            Duration::from_micros(self.0.0 / 2)
        }

        fn stolen(&mut self) -> Duration {
            Duration::from_millis(self.1)
        }
    }

    fn stretches() -> Stretches {
        Stretches::new(Micros(0), &mut Given(Micros(0), 0))
    }

    #[test]
    fn answers_and_pauses_belong_to_the_part_in_which_they_are() {
        let mut all = stretches();
        let mut answer = |now: u64, is_capturing, answers: usize| {
            all.answered(Micros(now), &mut Given(Micros(now), 0), is_capturing);
            (0..answers).for_each(|_| all.note(Micros(7)));
        };
        answer(1_000, false, 1);
        answer(3_000, false, 1);
        // It has begun since, and no client was answered for long.
        answer(9_000, true, 2);
        answer(10_000, true, 2);
        // It has ended since, after this silence or in it.
        answer(18_000, false, 1);
        answer(19_000, false, 0);
        let of = |stretch: &Stretch| (stretch.length.0, stretch.latency_us.len(), stretch.pause.length.0);
        assert_eq!((of(&all.beside), of(&all.during)), ((10_000, 3, 2_000), (9_000, 4, 8_000)));
        let other = all.clone();
        all.add(&other);
        assert_eq!((of(&all.beside), of(&all.during)), ((10_000, 6, 2_000), (9_000, 8, 8_000)));
    }

    #[test]
    fn what_was_stolen_around_a_pause_is_not_its_own() {
        let mut all = stretches();
        let mut answer = |now: u64, stolen| all.answered(Micros(now), &mut Given(Micros(now), stolen), false);
        answer(30_000, 20);
        answer(31_000, 20);
        // Nothing is last_look at for a short silence, but what was stolen then is seen with the next long one.
        answer(33_000, 30);
        answer(40_000, 30);
        answer(46_000, 40);
        let Stretch { pause, own_pause, .. } = all.beside;
        let [cpu, stolen] = [15, 20].map(Duration::from_millis);
        assert_eq!((pause, own_pause), (Pause { length: Micros(30_000), cpu, stolen }, Micros(10_000)));
        // A long silence is the longer one of two loops.
        let mut other = stretches();
        other.answered(Micros(50_000), &mut Given(Micros(50_000), 0), false);
        all.add(&other);
        assert_eq!((all.beside.pause.length, all.beside.own_pause), (Micros(50_000), Micros(50_000)));
    }
}
