//! Answers to the clients of a population: how many transactions of each kind, how fast, and when.
//!
//! Throughput is of what was answered while measuring. So are the latencies of a closed loop. An open loop owes its
//! clients more: who asked before the end of measuring and was answered after it, or could not even ask, was late too,
//! and a system that stalls until the end must not look as if no client had waited. Those are the *late* ones: their
//! latency is recorded, until the answer or, for what was never asked, until measuring ended; they count as nothing
//! else.

use std::time::Duration;

use hdrhistogram::Histogram;
use ordain_model::{Micros, OutcomeStatus};
use ordain_workload::Counts;

use crate::host;
use crate::meter::thread_cpu;
use crate::schedule::Schedule;
use crate::stretches::{Clocks, Stretches};

/// The resolution of [`Book::timeline`].
pub const TICK: Duration = Duration::from_millis(100);

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

/// Transactions of a kind: how they ended, and the latencies of those that were committed.
#[derive(Clone, Debug)]
pub struct Tally {
    pub counts: Counts,
    /// From submission, or from when it was due, to the answer: microseconds, of what was committed.
    pub latency_us: Histogram<u64>,
}

impl Tally {
    pub fn new() -> Tally {
        Tally { counts: Counts::default(), latency_us: histogram() }
    }
}

/// An empty histogram of microseconds; longer times than an hour count as an hour.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("the bounds make sense")
}

/// Adds a histogram to another; both are of [`histogram`].
pub fn add_up(sum: &mut Histogram<u64>, other: &Histogram<u64>) {
    sum.add(other).expect("all histograms have the same bounds");
}

/// The end of one transaction.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// Number of the kind.
    pub kind: u8,
    pub status: OutcomeStatus,
    pub restarts: u32,
    /// Time at which it was submitted, or due.
    pub asked: Micros,
    /// Time of the answer.
    pub now: Micros,
}

/// Answers to a population, or to all of them, from the end of loading on.
#[derive(Clone, Debug)]
pub struct Book {
    /// Answers while measuring, by kind.
    pub kinds: Vec<Tally>,
    /// Answers from the end of loading to the end, by kind.
    pub whole_run: Vec<Counts>,
    /// Time measured, seconds; of several populations the longest.
    pub seconds: f64,
    /// Transactions that were never answered.
    pub unanswered: u64,
    /// Commits of each [`TICK`] of the time measured.
    pub timeline: Vec<u64>,
    /// Answers while a checkpoint was captured and otherwise, if one was wanted.
    pub stretches: Option<Stretches>,
    /// Requests of an open loop that were due and not made when measuring ended.
    pub behind: u64,
    /// Latencies of an open loop's requests that were not answered by then: see above.
    pub late_us: Histogram<u64>,
    is_open: bool,
    from: Option<Micros>,
    to: Option<Micros>,
}

impl Book {
    /// A book of so many kinds.
    pub fn new(kinds: usize) -> Book {
        Book {
            kinds: vec![Tally::new(); kinds],
            whole_run: vec![Counts::default(); kinds],
            seconds: 0.0,
            unanswered: 0,
            timeline: Vec::new(),
            stretches: None,
            behind: 0,
            late_us: histogram(),
            is_open: false,
            from: None,
            to: None,
        }
    }

    /// Measuring begins.
    pub fn begin(&mut self, now: Micros) {
        self.from.get_or_insert(now);
    }

    /// A checkpoint is to be captured while measuring, which begins.
    pub fn expect_checkpoint(&mut self, now: Micros) {
        self.stretches = Some(Stretches::new(now, &mut Machine));
    }

    /// There are answers; a checkpoint is being captured, or none is.
    pub fn answered(&mut self, now: Micros, is_capturing: bool) {
        if let Some(stretches) = self.stretches.as_mut().filter(|_| self.from.is_some() && self.to.is_none())
        {
            stretches.answered(now, &mut Machine, is_capturing);
        }
    }

    /// Measuring ends: at once, if it never began. Of what the schedule has due, so much at most would have been asked.
    pub fn end(&mut self, now: Micros, schedule: Option<&Schedule>, at_most: u64) {
        if self.to.is_some() {
            return;
        }
        self.begin(now);
        self.to = Some(now);
        self.seconds = self.from.map_or(0.0, |from| now.since(from).0 as f64 / 1e6);
        let Some(schedule) = schedule else { return };
        self.is_open = true;
        self.behind = schedule.behind(now).min(at_most);
        for (waited, count) in schedule.waiting(now, self.behind) {
            self.late_us.saturating_record_n(waited.0, count);
        }
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
    pub fn add(&mut self, other: &Book) {
        for (sum, tally) in self.kinds.iter_mut().zip(&other.kinds) {
            sum.counts += tally.counts;
            add_up(&mut sum.latency_us, &tally.latency_us);
        }
        self.whole_run.iter_mut().zip(&other.whole_run).for_each(|(sum, counts)| *sum += *counts);
        // All begin together, and a budget of transactions is spent when the last has spent its share.
        self.seconds = self.seconds.max(other.seconds);
        self.unanswered += other.unanswered;
        self.timeline.resize(self.timeline.len().max(other.timeline.len()), 0);
        self.timeline.iter_mut().zip(&other.timeline).for_each(|(sum, commits)| *sum += commits);
        if let Some(stretches) = &other.stretches {
            match &mut self.stretches {
                Some(sum) => sum.add(stretches),
                sum @ None => *sum = Some(stretches.clone()),
            }
        }
        self.behind += other.behind;
        add_up(&mut self.late_us, &other.late_us);
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
        let mut book = Book::new(1);
        book.note(answer(0, 900));
        book.begin(Micros(1_000));
        book.note(answer(900, 1_100));
        book.note(answer(1_000, 151_000));
        book.end(Micros(200_000), None, u64::MAX);
        book.note(answer(150_000, 250_000));
        assert_eq!((book.kinds[0].counts.committed, book.whole_run[0].committed), (2, 4));
        assert_eq!((book.timeline.as_slice(), book.kinds[0].latency_us.len()), (&[1, 1][..], 2));
        assert_eq!((book.behind, book.late_us.len()), (0, 0));
        let mut sum = Book::new(1);
        sum.add(&book);
        sum.add(&book);
        assert_eq!((sum.kinds[0].counts.committed, sum.timeline), (4, vec![2, 2]));
    }

    #[test]
    fn an_open_loop_that_stalls_to_the_end_is_charged_for_all_who_wait() {
        let (second, mut book) = (1_000_000, Book::new(1));
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
        let mut book = Book::new(1);
        book.end(Micros(1_000_000), Some(&Schedule::new(1e6, Micros(0), 1, 0)), 5);
        assert_eq!((book.behind, book.late_us.len()), (5, 5));
    }
}
