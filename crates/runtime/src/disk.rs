//! Disk requests of roles: carried out in the order in which each role made them, and answered once each.
//!
//! A request that only writes goes to the page cache and back in microseconds; the loop does it itself, so that
//! durability by the operating system costs no hand-off. Everything else may wait for the device, so the node's
//! disk thread does it while the loop goes on. With one exception: where syncs take well under a millisecond, the
//! loop also syncs a *little* itself. There is next to nothing to do meanwhile, what comes in gathers in the sockets
//! and is one batch afterwards, and two hand-offs are saved, which cost as much as a third of such a sync.
//!
//! What is asked for in the background, such as to write a checkpoint, is done by a disk thread of its own: a large write,
//! a sync of it, the removal of a file take as long as many small writes, and clients wait for those. Nothing of it is done
//! by a loop: a file system may hold up a write to a file behind the sync of another.
//!
//! Order within a role is kept by one rule: as long as a request of a role is at its disk thread, its later ones
//! follow it there.

use std::fmt;
use std::time::{Duration, Instant};

use ordain_model::Histogram;
use ordain_role::{Directory, DiskDone, DiskError, DiskOp, DiskRequest};

use crate::clock::micros;
use crate::service::Line;

/// The directory that a node's roles write to.
pub struct Disk {
    handle: Box<dyn FnMut() -> Box<dyn Directory + Send>>,
}

impl Disk {
    /// A disk on any directory of which a clone is another handle, for another thread. Tests wrap the real one
    /// to make it fail or to watch it.
    pub fn new<D: Directory + Clone + Send + 'static>(directory: D) -> Disk {
        Disk { handle: Box::new(move || Box::new(directory.clone())) }
    }

    /// One thread's handle.
    pub(crate) fn handle(&mut self) -> Box<dyn Directory + Send> {
        (self.handle)()
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").finish_non_exhaustive()
    }
}

/// A request on its way to the disk thread.
#[derive(Debug)]
pub(crate) struct Job {
    /// The place of the role on its loop.
    place: usize,
    request: DiskRequest,
}

/// An answer on its way back.
#[derive(Debug)]
pub(crate) struct Answer {
    /// As in the job.
    pub(crate) place: usize,
    /// The answer for the role.
    pub(crate) done: DiskDone,
    /// The time that it took, if that tells the disk's pace.
    took: Option<Duration>,
    /// The time that it took, if it synced something and did not fail.
    synced: Option<Duration>,
}

/// A loop's way to the disk.
pub(crate) struct DiskPort {
    directory: Box<dyn Directory + Send>,
    lines: [DiskLine; LINES],
    /// The number of requests of each role that are at the disk thread, those in the background not counted.
    queued: Vec<usize>,
    pace: SyncPace,
    /// The time that requests took that sync, those in the background not counted.
    syncs: Histogram,
}

/// How many disk threads a node has: the second is for what is done in the background.
pub(crate) const LINES: usize = 2;
const BACKGROUND: usize = 1;

/// A loop's way to one disk thread.
pub(crate) type DiskLine = Line<Job, Answer>;

/// The time that a small sync takes, on average; unknown until it has been done.
#[derive(Debug, Default)]
struct SyncPace(Option<Duration>);

impl SyncPace {
    /// The time that a loop may stand still for a sync, on average. No single sync is bounded: one that hangs holds up
    /// this loop once, and the many that follow are the disk thread's.
    const QUICK: Duration = Duration::from_micros(700);

    fn is_quick(&self) -> bool {
        self.0.is_some_and(|takes| takes < SyncPace::QUICK)
    }

    /// A moving average, so that one hiccup does not count for much, a slow disk is noticed within a few syncs, and a
    /// stall is remembered for the longer, the longer it was.
    fn learn(&mut self, took: Duration) {
        self.0 = Some(self.0.map_or(took, |takes| (takes.saturating_mul(7).saturating_add(took)) / 8));
    }
}

/// The most bytes that a loop syncs itself: what else it serves would wait for this very batch anyway.
const LITTLE: usize = 16 << 10;

/// Tells whether a request writes a little and then syncs it, once, and no more.
fn syncs_a_little(request: &DiskRequest) -> bool {
    let Some((DiskOp::Sync { .. }, writes)) = request.ops.split_last() else { return false };
    let mut bytes = 0;
    writes.iter().all(|op| match op {
        DiskOp::Write { data, .. } => {
            bytes += data.iter().map(|part| part.as_ref().len()).sum::<usize>();
            bytes <= LITTLE
        }
        _ => false,
    })
}

impl DiskPort {
    pub(crate) fn new(
        directory: Box<dyn Directory + Send>,
        lines: [DiskLine; LINES],
        actors: usize,
    ) -> DiskPort {
        DiskPort {
            directory,
            lines,
            queued: vec![0; actors],
            pace: SyncPace::default(),
            syncs: Histogram::default(),
        }
    }

    /// The time that requests took that sync, in microseconds, without those in the background.
    pub(crate) const fn syncs(&self) -> &Histogram {
        &self.syncs
    }

    /// Carries a request out, if that can be done here and now; otherwise hands it over.
    pub(crate) fn submit(&mut self, place: usize, request: DiskRequest) -> Option<DiskDone> {
        if request.in_background {
            self.lines[BACKGROUND].jobs.send(Job { place, request });
            return None;
        }
        if self.queued[place] == 0 {
            if request.ops.iter().all(|op| matches!(op, DiskOp::Write { .. })) {
                return Some(perform(&mut *self.directory, request));
            }
            if self.pace.is_quick() && syncs_a_little(&request) {
                let (done, took, synced) = timed(&mut *self.directory, request);
                took.into_iter().for_each(|took| self.pace.learn(took));
                synced.into_iter().for_each(|took| self.syncs.record_time(micros(took)));
                return Some(done);
            }
        }
        self.queued[place] += 1;
        self.lines[0].jobs.send(Job { place, request });
        None
    }

    /// Tells the disk threads what was handed over.
    pub(crate) fn announce(&mut self) {
        self.lines.iter_mut().for_each(|line| line.jobs.announce());
    }

    /// Takes what has been answered.
    pub(crate) fn answers(&mut self, mut each: impl FnMut(Answer)) {
        let DiskPort { lines, queued, pace, syncs, .. } = self;
        for (number, line) in lines.iter_mut().enumerate() {
            line.answers.take(usize::MAX, |answer| {
                if number != BACKGROUND {
                    queued[answer.place] -= 1;
                    answer.took.into_iter().for_each(|took| pace.learn(took));
                    answer.synced.into_iter().for_each(|took| syncs.record_time(micros(took)));
                }
                each(answer);
            });
        }
    }

    /// Tells whether no answer is waiting to be taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| line.answers.is_empty())
    }

    /// See [`Outlet::may_sleep`].
    pub(crate) fn may_sleep(&self) -> bool {
        self.lines.iter().all(|line| line.jobs.may_sleep())
    }

    /// See [`Outlet::awake`].
    pub(crate) fn awake(&self) {
        self.lines.iter().for_each(|line| line.jobs.awake());
    }

    /// Hands over everything that is still waiting, for a loop that ends.
    pub(crate) fn close(&mut self) {
        loop {
            self.announce();
            if self.lines.iter().all(|line| line.jobs.is_flushed() || line.jobs.is_abandoned()) {
                return;
            }
            // A disk thread may be waiting for room for its answers, which no loop reads any more.
            self.answers(drop);
            std::thread::yield_now();
        }
    }
}

/// Carries out the operations of a request in order, up to the first that fails.
fn perform(directory: &mut dyn Directory, request: DiskRequest) -> DiskDone {
    let result = request.ops.iter().try_for_each(|op| directory.apply(op));
    DiskDone { token: request.token, result }
}

/// The same, and how long it took: first if it is one that tells the disk's pace, that is, it synced a little, and did not
/// fail, which may be quick on the slowest disk; then if it synced anything.
fn timed(
    directory: &mut dyn Directory,
    request: DiskRequest,
) -> (DiskDone, Option<Duration>, Option<Duration>) {
    let tells = syncs_a_little(&request);
    let syncs = request.ops.iter().any(|op| matches!(op, DiskOp::Sync { .. }));
    let begun = Instant::now();
    let done = perform(directory, request);
    let took = Some(begun.elapsed()).filter(|_| done.result.is_ok());
    (done, took.filter(|_| tells), took.filter(|_| syncs))
}

/// The answer to a request on a node that was given no directory.
pub(crate) fn no_disk(request: &DiskRequest) -> DiskDone {
    let error = DiskError::Io { file: String::new(), reason: "this node keeps nothing on disk".to_owned() };
    DiskDone { token: request.token, result: Err(error) }
}

/// Does what a disk thread does, with its handle on the directory.
pub(crate) fn serve(mut directory: Box<dyn Directory + Send>) -> Box<dyn FnMut(Job) -> Answer + Send> {
    Box::new(move |job| {
        let (done, took, synced) = timed(&mut *directory, job.request);
        Answer { place: job.place, done, took, synced }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex, PoisonError};

    use ordain_role::Bytes;

    use super::*;
    use crate::control::Control;
    use crate::poller::Poller;
    use crate::service::{Debt, Service};

    #[test]
    fn quick_syncs_are_learnt_and_a_slow_disk_is_noticed() {
        let mut pace = SyncPace::default();
        assert!(!pace.is_quick(), "nothing is known yet");
        pace.learn(Duration::from_micros(300));
        assert!(pace.is_quick());
        pace.learn(Duration::from_millis(3));
        assert!(pace.is_quick(), "one hiccup");
        (0..3).for_each(|_| pace.learn(Duration::from_millis(3)));
        assert!(!pace.is_quick());
        (0..30).for_each(|_| pace.learn(Duration::from_micros(300)));
        assert!(pace.is_quick());
    }

    #[test]
    fn a_stall_is_remembered_and_forgiven_in_the_end() {
        let mut pace = SyncPace::default();
        pace.learn(Duration::from_micros(100));
        pace.learn(Duration::from_secs(30));
        let mut quick_again = 0;
        while !pace.is_quick() {
            pace.learn(Duration::from_micros(100));
            quick_again += 1;
        }
        assert!((50..100).contains(&quick_again), "{quick_again}");
        pace.learn(Duration::MAX);
        assert!(!pace.is_quick());
    }

    fn write(len: usize) -> DiskOp {
        DiskOp::Write { file: "f".into(), offset: 0, data: vec![Bytes::from(vec![0; len])] }
    }

    fn sync() -> DiskOp {
        DiskOp::Sync { file: "f".into() }
    }

    #[test]
    fn a_little_is_a_few_writes_and_a_sync_and_nothing_else() {
        let remove = || DiskOp::Remove { file: "f".into() };
        let little = |ops: Vec<DiskOp>| syncs_a_little(&DiskRequest::new(0, ops));
        assert!(little(vec![write(LITTLE), sync()]));
        assert!(little(vec![sync()]));
        assert!(!little(vec![write(LITTLE / 2), write(LITTLE / 2 + 1), sync()]));
        assert!(!little(vec![write(1), sync(), remove()]));
        assert!(!little(vec![remove(), sync()]));
        // Two syncs take twice as long, and none tells nothing about syncs.
        assert!(!little(vec![write(1), sync(), sync()]));
        assert!(!little(vec![write(1), sync(), write(1)]));
        assert!(!little(vec![write(1)]) && !little(Vec::new()));
    }

    /// A directory that notes the threads of writes and syncs, and fails on demand.
    #[derive(Clone)]
    struct Tape {
        place: &'static str,
        ops: Arc<Mutex<Vec<&'static str>>>,
        fails: Arc<AtomicBool>,
    }

    impl Directory for Tape {
        fn list(&self) -> Result<Vec<(String, u64)>, DiskError> {
            Ok(Vec::new())
        }

        fn read(&self, _file: &str, _offset: u64, _len: usize) -> Result<Vec<u8>, DiskError> {
            Ok(Vec::new())
        }

        fn apply(&mut self, _op: &DiskOp) -> Result<(), DiskError> {
            if self.fails.load(Ordering::Relaxed) {
                return Err(DiskError::Full { file: "f".into() });
            }
            self.ops.lock().unwrap_or_else(PoisonError::into_inner).push(self.place);
            Ok(())
        }
    }

    /// A loop's port and the disk's threads, on one thread.
    struct Bench {
        port: DiskPort,
        threads: [Service<Job, Answer>; LINES],
        tape: Tape,
    }

    impl Bench {
        fn new() -> Bench {
            let tape = |place| Tape { place, ops: Arc::default(), fails: Arc::default() };
            let there = tape("disk");
            let here = Tape { place: "loop", ..there.clone() };
            let (_, loop_party) = Poller::new().unwrap();
            let (lines, threads): (Vec<_>, Vec<_>) = ["disk", "background"]
                .map(|place| {
                    let (poller, me) = Poller::new().unwrap();
                    let (line, port) = DiskLine::new(8, &loop_party, &me);
                    let thread = Service {
                        poller,
                        me,
                        control: Arc::new(Control::new(1, Vec::new())),
                        debt: Debt::Paid,
                        serve: serve(Box::new(Tape { place, ..there.clone() })),
                        ports: vec![port],
                    };
                    (line, thread)
                })
                .into_iter()
                .unzip();
            let (lines, threads) = (lines.try_into().ok().unwrap(), threads.try_into().ok().unwrap());
            Bench { port: DiskPort::new(Box::new(here), lines, 2), threads, tape: there }
        }

        /// One that has seen a quick sync.
        fn quick() -> Bench {
            let mut bench = Bench::new();
            bench.port.pace.learn(Duration::ZERO);
            bench
        }

        /// The places where a request's operations were carried out, if they were at once.
        fn submit(&mut self, place: usize, token: u64, ops: &[DiskOp]) -> Option<Vec<&'static str>> {
            let done = self.port.submit(place, DiskRequest::new(token, ops.to_vec()))?;
            assert_eq!(done.token, token);
            Some(self.ops())
        }

        fn ops(&self) -> Vec<&'static str> {
            std::mem::take(&mut *self.tape.ops.lock().unwrap())
        }

        /// Lets the disk thread do what it was given.
        fn disk(&mut self) -> Vec<(usize, u64, bool)> {
            self.line(0)
        }

        /// The same of either thread.
        fn line(&mut self, line: usize) -> Vec<(usize, u64, bool)> {
            self.port.announce();
            assert!(self.threads[line].turn());
            let mut answers = Vec::new();
            self.port.answers(|a| answers.push((a.place, a.done.token, a.done.result.is_ok())));
            answers
        }
    }

    #[test]
    fn nothing_is_synced_on_the_loop_before_the_pace_is_known() {
        let mut bench = Bench::new();
        assert_eq!(bench.submit(0, 1, &[write(1), sync()]), None);
        assert_eq!(bench.disk(), [(0, 1, true)]);
        assert_eq!(bench.ops(), ["disk", "disk"]);
        assert!(bench.port.pace.0.is_some(), "the disk thread has reported its pace");
    }

    #[test]
    fn where_syncs_are_quick_the_loop_does_them_and_where_they_are_not_any_more_it_does_not() {
        let mut bench = Bench::quick();
        assert_eq!(bench.submit(0, 1, &[write(1), sync()]), Some(vec!["loop", "loop"]));
        assert_eq!(bench.submit(0, 2, &[write(LITTLE + 1), sync()]), None);
        assert_eq!(bench.disk(), [(0, 2, true)]);
        bench.ops();
        // The disk has become slow.
        bench.port.pace.learn(Duration::from_secs(1));
        for token in 3..9 {
            assert_eq!(bench.submit(0, token, &[write(1), sync()]), None);
            assert_eq!(bench.disk(), [(0, token, true)]);
            assert_eq!(bench.ops(), ["disk", "disk"]);
        }
        // Writes alone do not wait for the device.
        assert_eq!(bench.submit(0, 9, &[write(LITTLE + 1)]), Some(vec!["loop"]));
    }

    #[test]
    fn what_is_behind_a_request_at_the_disk_follows_it_there_and_other_roles_go_on() {
        let mut bench = Bench::quick();
        let create = DiskOp::Create { file: "g".into(), len: 1 };
        assert_eq!(bench.submit(0, 1, &[create, sync()]), None);
        assert_eq!(bench.submit(0, 2, &[write(1), sync()]), None);
        assert_eq!(bench.submit(0, 3, &[write(1)]), None);
        assert_eq!(bench.submit(1, 1, &[write(1), sync()]), Some(vec!["loop", "loop"]));
        assert_eq!(bench.disk(), [(0, 1, true), (0, 2, true), (0, 3, true)]);
        assert_eq!(bench.ops(), ["disk"; 5]);
        assert_eq!(bench.submit(0, 4, &[write(1), sync()]), Some(vec!["loop", "loop"]));
    }

    #[test]
    fn work_in_the_background_holds_up_no_other() {
        let mut bench = Bench::quick();
        let in_background = |bench: &mut Bench, token, ops| {
            let done = bench.port.submit(0, DiskRequest::in_background(token, ops));
            assert_eq!(done, None, "not even a write is the loop's");
        };
        in_background(&mut bench, 1, vec![write(1)]);
        in_background(&mut bench, 2, vec![write(1), sync()]);
        assert_eq!(bench.submit(0, 3, &[write(1), sync()]), Some(vec!["loop", "loop"]), "of the same role");
        assert_eq!(bench.submit(0, 4, &[write(LITTLE + 1), sync()]), None);
        in_background(&mut bench, 5, vec![DiskOp::Remove { file: "f".into() }]);
        assert_eq!(bench.submit(0, 6, &[write(1)]), None, "behind what it has at the disk thread");
        assert_eq!(bench.disk(), [(0, 4, true), (0, 6, true)], "while the others still wait");
        assert_eq!(bench.ops(), ["disk"; 3]);
        let pace = bench.port.pace.0;
        assert_eq!(bench.line(BACKGROUND), [(0, 1, true), (0, 2, true), (0, 5, true)]);
        assert_eq!(bench.ops(), ["background"; 4]);
        assert_eq!(bench.port.pace.0, pace, "it tells nothing of the syncs that clients wait for");
    }

    #[test]
    fn every_answer_of_the_disk_counts_and_what_tells_nothing_does_not() {
        let mut bench = Bench::new();
        bench.port.pace.learn(Duration::from_secs(1));
        let slow = bench.port.pace.0;
        // Quick, but no sync; behind one that is too large to tell.
        assert_eq!(bench.submit(0, 1, &[write(LITTLE + 1), sync()]), None);
        assert_eq!(bench.submit(0, 2, &[write(1)]), None);
        assert_eq!(bench.submit(0, 3, &[]), None);
        bench.disk();
        assert_eq!(bench.port.pace.0, slow);
        // A fault is quick on the slowest disk.
        bench.tape.fails.store(true, Ordering::Relaxed);
        assert_eq!(bench.submit(0, 4, &[write(1), sync()]), None);
        assert_eq!(bench.disk(), [(0, 4, false)]);
        assert_eq!(bench.port.pace.0, slow);
        bench.tape.fails.store(false, Ordering::Relaxed);
        // Two at once are two.
        assert_eq!(bench.submit(0, 5, &[write(1), sync()]), None);
        assert_eq!(bench.submit(0, 6, &[write(1), sync()]), None);
        bench.disk();
        assert_eq!(bench.port.syncs().count(), 3, "one too large to tell the pace, and two");
        let takes = bench.port.pace.0.unwrap();
        assert!(takes < Duration::from_millis(830), "{takes:?} after two quick syncs");
    }

    #[test]
    fn a_fault_on_the_loop_is_told_as_one_at_the_disk() {
        let mut bench = Bench::quick();
        bench.tape.fails.store(true, Ordering::Relaxed);
        let done = bench.port.submit(0, DiskRequest::new(1, vec![write(1), sync()]));
        let full = DiskError::Full { file: "f".into() };
        assert_eq!(done, Some(DiskDone { token: 1, result: Err(full) }));
        assert_eq!(bench.port.pace.0, Some(Duration::ZERO));
    }
}
