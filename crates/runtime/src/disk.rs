//! Disk requests of roles: carried out in the order in which each role made them, and answered once each.
//!
//! A request that only writes goes to the page cache and back in microseconds; the loop does it itself, so that
//! durability by the operating system costs no hand-off. Everything else may wait for the device, so the node's
//! disk thread does it while the loop goes on. With one exception: where syncs take well under a millisecond, the
//! loop also syncs a *little* itself. There is next to nothing to do meanwhile, what comes in gathers in the sockets
//! and is one batch afterwards, and two hand-offs are saved, which cost as much as a third of such a sync.
//!
//! Order within a role is kept by one rule: as long as a request of a role is at the disk thread, its later ones
//! follow it there.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ordain_role::{Directory, DiskDone, DiskError, DiskOp, DiskRequest};

use crate::control::Control;
use crate::lane::{Inlet, Outlet, Party};
use crate::poller::Poller;

/// How many requests the disk thread takes from one loop before it looks at the next.
const TURN: usize = 64;

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
    /// The seat of the role on its loop.
    seat: usize,
    request: DiskRequest,
}

/// An answer on its way back.
#[derive(Debug)]
pub(crate) struct Answer {
    /// As in the job.
    pub(crate) seat: usize,
    /// What to tell the role.
    pub(crate) done: DiskDone,
    /// How long it took, if it synced a little.
    took: Option<Duration>,
}

/// A loop's way to the disk.
pub(crate) struct DiskPort {
    directory: Box<dyn Directory + Send>,
    jobs: Outlet<Job>,
    answers: Inlet<Answer>,
    /// How many requests of each seat are at the disk thread.
    queued: Vec<usize>,
    pace: SyncPace,
}

/// How long it takes to sync a little; unknown until it has been done.
#[derive(Debug, Default)]
struct SyncPace(Option<Duration>);

impl SyncPace {
    /// The longest that a loop may stand still for a sync.
    const QUICK: Duration = Duration::from_micros(700);

    fn is_quick(&self) -> bool {
        self.0.is_some_and(|takes| takes < SyncPace::QUICK)
    }

    /// A moving average, so that one hiccup does not count for much and a slow disk is noticed within a few syncs.
    fn learn(&mut self, took: Duration) {
        self.0 = Some(self.0.map_or(took, |takes| (takes * 7 + took) / 8));
    }
}

/// A loop that syncs this much or less itself keeps nobody waiting who would not wait anyway: for this very batch.
const LITTLE: usize = 16 << 10;

/// Whether a request writes a little and syncs it, and no more.
fn syncs_a_little(request: &DiskRequest) -> bool {
    let mut bytes = 0;
    request.ops.iter().all(|op| match op {
        DiskOp::Write { data, .. } => {
            bytes += data.iter().map(|part| part.as_ref().len()).sum::<usize>();
            bytes <= LITTLE
        }
        DiskOp::Sync { .. } => true,
        _ => false,
    })
}

impl DiskPort {
    pub(crate) fn new(
        directory: Box<dyn Directory + Send>,
        jobs: Outlet<Job>,
        answers: Inlet<Answer>,
        seats: usize,
    ) -> DiskPort {
        DiskPort { directory, jobs, answers, queued: vec![0; seats], pace: SyncPace::default() }
    }

    /// Carries a request out, if that can be done here and now; otherwise hands it over.
    pub(crate) fn submit(&mut self, seat: usize, request: DiskRequest) -> Option<DiskDone> {
        if self.queued[seat] == 0 {
            if request.ops.iter().all(|op| matches!(op, DiskOp::Write { .. })) {
                return Some(perform(&mut *self.directory, request));
            }
            if self.pace.is_quick() && syncs_a_little(&request) {
                let begun = Instant::now();
                let done = perform(&mut *self.directory, request);
                self.pace.learn(begun.elapsed());
                return Some(done);
            }
        }
        self.queued[seat] += 1;
        self.jobs.send(Job { seat, request });
        None
    }

    /// Tells the disk thread what was handed over.
    pub(crate) fn announce(&mut self) {
        self.jobs.announce();
    }

    /// Takes what has been answered.
    pub(crate) fn answers(&mut self, mut each: impl FnMut(Answer)) {
        let queued = &mut self.queued;
        let mut took = None;
        self.answers.take(usize::MAX, |answer| {
            queued[answer.seat] -= 1;
            took = answer.took.or(took);
            each(answer);
        });
        took.into_iter().for_each(|took| self.pace.learn(took));
    }

    /// Whether no answer is waiting to be taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// See [`Outlet::may_sleep`].
    pub(crate) fn may_sleep(&self) -> bool {
        self.jobs.may_sleep()
    }

    /// See [`Outlet::awake`].
    pub(crate) fn awake(&self) {
        self.jobs.awake();
    }

    /// Hands over everything that is still waiting, for a loop that ends.
    pub(crate) fn close(&mut self) {
        loop {
            self.jobs.announce();
            if self.jobs.is_flushed() || self.jobs.is_abandoned() {
                return;
            }
            // The disk thread may be waiting for room for its answers, which nobody reads any more.
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

/// The answer to a request on a node that was given no directory.
pub(crate) fn no_disk(request: &DiskRequest) -> DiskDone {
    let error = DiskError::Io { file: String::new(), reason: "this node keeps nothing on disk".to_owned() };
    DiskDone { token: request.token, result: Err(error) }
}

/// The disk thread.
pub(crate) struct DiskThread {
    pub(crate) poller: Poller,
    pub(crate) me: Arc<Party>,
    pub(crate) control: Arc<Control>,
    pub(crate) directory: Box<dyn Directory + Send>,
    /// To and from each loop.
    pub(crate) ports: Vec<(Inlet<Job>, Outlet<Answer>)>,
}

impl DiskThread {
    /// Works until all loops have ended and what they asked for is done, or until the node halts.
    pub(crate) fn run(&mut self) {
        loop {
            // Read before looking at the lanes: the last jobs were sent before the last loop ended.
            let last = self.control.loops_have_ended();
            if self.control.is_halted() || !self.turn() && last {
                return;
            }
        }
    }

    /// Does some of what there is, or sleeps until there is something; says whether anything was done.
    fn turn(&mut self) -> bool {
        let mut done = 0;
        for (jobs, answers) in &mut self.ports {
            let directory = &mut *self.directory;
            done += jobs.take(TURN, |job| {
                let little = syncs_a_little(&job.request);
                let begun = Instant::now();
                let done = perform(directory, job.request);
                answers.send(Answer { seat: job.seat, done, took: little.then(|| begun.elapsed()) });
                answers.announce();
            });
            answers.announce();
        }
        if done == 0 && self.may_sleep() {
            self.poller.wait_forever();
        }
        self.me.bell().ignore();
        self.ports.iter().for_each(|(_, answers)| answers.awake());
        done > 0
    }

    fn may_sleep(&self) -> bool {
        let idle = || {
            self.ports.iter().all(|(jobs, _)| jobs.is_empty())
                && !self.control.loops_have_ended()
                && !self.control.is_halted()
        };
        self.me.bell().listen(idle) && self.ports.iter().all(|(_, answers)| answers.may_sleep())
    }
}

#[cfg(test)]
mod tests {
    use ordain_role::Bytes;

    use super::*;

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
    fn a_little_is_a_few_writes_and_a_sync_and_nothing_else() {
        let write =
            |len| DiskOp::Write { file: "f".into(), offset: 0, data: vec![Bytes::Owned(vec![0; len])] };
        let sync = || DiskOp::Sync { file: "f".into() };
        let remove = || DiskOp::Remove { file: "f".into() };
        let little = |ops: Vec<DiskOp>| syncs_a_little(&DiskRequest { token: 0, ops });
        assert!(little(vec![write(LITTLE), sync()]));
        assert!(!little(vec![write(LITTLE / 2), write(LITTLE / 2 + 1), sync()]));
        assert!(!little(vec![write(1), sync(), remove()]));
    }
}
