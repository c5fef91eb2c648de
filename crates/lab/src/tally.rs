//! What the clients of a population were answered: how many transactions of each kind, how fast, and when.
//!
//! Throughput is of what was answered while measuring. So are the latencies of a closed loop. An open loop owes its
//! clients more: who asked before the end of measuring and was answered after it, or could not even ask, was late too,
//! and a system that stalls until the end must not look as if nobody had waited. Those are the *late* ones: their
//! latency is recorded, until the answer or, for what was never asked, until measuring ended; they count as nothing
//! else.

use std::time::Duration;

use anyhow::Context;
use hdrhistogram::Histogram;
use ordain_model::{Micros, OutcomeStatus};
use ordain_workload::Counts;

use crate::host;
use crate::meter::thread_cpu;
use crate::schedule::Schedule;
use crate::stretches::{Clocks, Stretches};

/// The resolution of [`Book::timeline`].
pub const TICK: Duration = Duration::from_millis(100);
/// The longest latency that is told apart.
const LATENCY_MAX_US: u64 = 3_600_000_000;

/// The clocks of this machine.
struct Machine;

impl Clocks for Machine {
    fn thread_cpu(&mut self) -> Duration {
        thread_cpu()
    }

    fn stolen(&mut self) -> Duration {
        host::stolen()
    }
}

/// How the transactions of a kind ended, and how long those that were committed took.
#[derive(Clone, Debug)]
pub struct Tally {
    /// How they ended.
    pub counts: Counts,
    /// From submission, or from when it was due, to the answer: microseconds, of what was committed.
    pub latency_us: Histogram<u64>,
}

impl Tally {
    /// Nothing yet.
    ///
    /// # Errors
    /// Never, as long as the bounds of the histogram make sense.
    pub fn new() -> anyhow::Result<Tally> {
        let latency_us =
            Histogram::new_with_bounds(1, LATENCY_MAX_US, 3).context("a histogram of latencies")?;
        Ok(Tally { counts: Counts::default(), latency_us })
    }

    /// Adds what another population saw.
    ///
    /// # Errors
    /// Never, as all histograms have the same bounds.
    pub fn add(&mut self, other: &Tally) -> anyhow::Result<()> {
        self.counts += other.counts;
        self.latency_us.add(&other.latency_us).context("adding up latencies")
    }
}

/// How one transaction ended.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// Which of the workload's kinds it is.
    pub kind: u8,
    /// How it ended.
    pub status: OutcomeStatus,
    /// How often it was started over.
    pub restarts: u32,
    /// When it was submitted, or due.
    pub asked: Micros,
    /// When its answer was there.
    pub now: Micros,
}

/// What a population, or all of them, were answered from the end of loading on.
#[derive(Clone, Debug)]
pub struct Book {
    /// What was answered while measuring, by kind.
    pub kinds: Vec<Tally>,
    /// What was answered from the end of loading to the end, by kind.
    pub whole_run: Vec<Counts>,
    /// Commits of each [`TICK`] of the time measured.
    pub timeline: Vec<u64>,
    /// What of it was answered while a checkpoint was captured, if one was wanted.
    pub stretches: Option<Stretches>,
    /// How many requests of an open loop were due and not made when measuring ended.
    pub behind: u64,
    /// How late an open loop's requests were that were not answered by then: see above.
    pub late_us: Histogram<u64>,
    is_open: bool,
    from: Option<Micros>,
    to: Option<Micros>,
}

impl Book {
    /// Nothing yet, of so many kinds.
    ///
    /// # Errors
    /// As [`Tally::new`].
    pub fn new(kinds: usize) -> anyhow::Result<Book> {
        Ok(Book {
            kinds: (0..kinds).map(|_| Tally::new()).collect::<anyhow::Result<_>>()?,
            whole_run: vec![Counts::default(); kinds],
            timeline: Vec::new(),
            stretches: None,
            behind: 0,
            late_us: Tally::new()?.latency_us,
            is_open: false,
            from: None,
            to: None,
        })
    }

    /// Measuring begins.
    pub fn begin(&mut self, now: Micros) {
        self.from.get_or_insert(now);
    }

    /// A checkpoint is to be captured while measuring, which begins.
    ///
    /// # Errors
    /// As [`Tally::new`].
    pub fn expect_checkpoint(&mut self, now: Micros) -> anyhow::Result<()> {
        self.stretches = Some(Stretches::new(now, &mut Machine, Tally::new()?.latency_us));
        Ok(())
    }

    /// There are answers; a checkpoint is being captured, or none is.
    pub fn hear(&mut self, now: Micros, is_capturing: bool) {
        if let Some(stretches) = self.stretches.as_mut().filter(|_| self.from.is_some() && self.to.is_none())
        {
            stretches.hear(now, &mut Machine, is_capturing);
        }
    }

    /// Measuring ends: at once, if it never began. Of what the schedule has due, so much at most would have been asked.
    pub fn end(&mut self, now: Micros, schedule: Option<&Schedule>, at_most: u64) {
        if self.to.is_some() {
            return;
        }
        self.begin(now);
        self.to = Some(now);
        let Some(schedule) = schedule else { return };
        self.is_open = true;
        self.behind = schedule.behind(now).min(at_most);
        for (waited, count) in schedule.waiting(now, self.behind) {
            self.late_us.saturating_record_n(waited.0, count);
        }
    }

    /// Whether what is answered now is measured.
    pub fn is_measuring(&self) -> bool {
        self.from.is_some() && self.to.is_none()
    }

    /// Writes an answer down.
    pub fn note(&mut self, answer: Answer) {
        let Answer { kind, status, restarts, asked, now } = answer;
        let (Some(whole), Some(tally)) =
            (self.whole_run.get_mut(usize::from(kind)), self.kinds.get_mut(usize::from(kind)))
        else {
            return;
        };
        whole.count(status);
        whole.restarts += u64::from(restarts);
        let committed = status == OutcomeStatus::Committed;
        let took = now.since(asked).0;
        match (self.from, self.to) {
            (Some(from), None) => {
                tally.counts.count(status);
                tally.counts.restarts += u64::from(restarts);
                if committed {
                    tally.latency_us.saturating_record(took);
                    let tick = (now.since(from).0 / TICK.as_micros() as u64) as usize;
                    if self.timeline.len() <= tick {
                        self.timeline.resize(tick + 1, 0);
                    }
                    self.timeline[tick] += 1;
                    self.stretches.iter_mut().for_each(|stretches| stretches.note(Micros(took)));
                }
            }
            (_, Some(to)) if self.is_open && committed && asked <= to => self.late_us.saturating_record(took),
            _ => {}
        }
    }

    /// Adds what another population was answered.
    ///
    /// # Errors
    /// Never, as all histograms have the same bounds.
    pub fn add(&mut self, other: &Book) -> anyhow::Result<()> {
        for (sum, tally) in self.kinds.iter_mut().zip(&other.kinds) {
            sum.add(tally)?;
        }
        for (sum, counts) in self.whole_run.iter_mut().zip(&other.whole_run) {
            *sum += *counts;
        }
        self.timeline.resize(self.timeline.len().max(other.timeline.len()), 0);
        self.timeline.iter_mut().zip(&other.timeline).for_each(|(sum, commits)| *sum += commits);
        match (&mut self.stretches, &other.stretches) {
            (Some(sum), Some(stretches)) => sum.add(stretches)?,
            (sum @ None, Some(stretches)) => *sum = Some(stretches.clone()),
            (_, None) => {}
        }
        self.behind += other.behind;
        self.late_us.add(&other.late_us).context("adding up latencies")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(asked: u64, now: u64) -> Answer {
        let status = OutcomeStatus::Committed;
        Answer { kind: 0, status, restarts: 0, asked: Micros(asked), now: Micros(now) }
    }

    #[test]
    fn warming_up_and_draining_are_not_measured() {
        let mut book = Book::new(1).unwrap();
        book.note(answer(0, 900));
        book.begin(Micros(1_000));
        book.note(answer(900, 1_100));
        book.note(answer(1_000, 151_000));
        book.end(Micros(200_000), None, u64::MAX);
        book.note(answer(150_000, 250_000));
        assert_eq!((book.kinds[0].counts.committed, book.whole_run[0].committed), (2, 4));
        assert_eq!((book.timeline.as_slice(), book.kinds[0].latency_us.len()), (&[1, 1][..], 2));
        assert_eq!((book.behind, book.late_us.len()), (0, 0));
        let mut sum = Book::new(1).unwrap();
        sum.add(&book).unwrap();
        sum.add(&book).unwrap();
        assert_eq!((sum.kinds[0].counts.committed, sum.timeline), (4, vec![2, 2]));
    }

    #[test]
    fn an_open_loop_that_stalls_to_the_end_is_charged_for_all_who_wait() {
        let (second, mut book) = (1_000_000, Book::new(1).unwrap());
        let mut schedule = Schedule::new(1_000.0, Micros(0), 7, 0);
        book.begin(Micros(0));
        // Five seconds of quick answers, then none: one is under way and its clients cannot ask for more.
        let mut last = Micros(0);
        while schedule.next().0 < 5 * second {
            last = schedule.next();
            schedule.advance();
            if schedule.next().0 < 5 * second {
                book.note(answer(last.0, last.0 + 100));
            }
        }
        book.end(Micros(10 * second), Some(&schedule), u64::MAX);
        book.note(answer(last.0, 30 * second));
        assert!((4_500..5_500).contains(&book.behind), "{}", book.behind);
        assert_eq!(book.late_us.len(), book.behind + 1);
        assert!(book.late_us.max() >= 24 * second && book.late_us.value_at_quantile(0.5) > 2 * second);
        let committed = book.kinds[0].counts.committed;
        assert!((4_500..5_500).contains(&committed), "{committed}");
    }

    #[test]
    fn what_is_beyond_a_budget_is_not_due() {
        let mut book = Book::new(1).unwrap();
        book.end(Micros(1_000_000), Some(&Schedule::new(1e6, Micros(0), 1, 0)), 5);
        assert_eq!((book.behind, book.late_us.len()), (5, 5));
    }
}
