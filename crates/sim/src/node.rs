//! A node of the simulated cluster: its roles with their receive journals and timers, its disk, its clock.

use std::collections::{BTreeMap, VecDeque};

use ordain_log::MemoryDirectory;
use ordain_model::Micros;
use ordain_role::{Directory, DiskDone, DiskError, DiskOp, DiskRequest, Event, Role, TimerId};

use crate::clock::Clock;
use crate::companion::Companion;
use crate::deposals::HeldStep;
use crate::network::End;
use crate::queue::Happening;

/// A node, up or down. Its disk and the offset of its wall clock outlive a crash; nothing else does.
pub(crate) struct Node<M> {
    pub(crate) up: bool,
    /// The number of starts. What was under way for an earlier life is void.
    pub(crate) incarnation: u32,
    pub(crate) roles: BTreeMap<u16, Slot<M>>,
    pub(crate) disk: MemoryDirectory,
    pub(crate) is_full: bool,
    /// A sync has failed in this life: the node may stop itself.
    pub(crate) sync_failed: bool,
    /// The next sync fails.
    pub(crate) fails_sync: bool,
    /// The node loses power when its disk has been asked for this many operations.
    pub(crate) crash_at_op: Option<u64>,
    pub(crate) clock: Clock,
    /// The time from which on its core is free, nanoseconds, where steps take that.
    pub(crate) core_free_ns: u64,
    /// The node's side of the links to the others, by their number.
    pub(crate) ends: BTreeMap<usize, End>,
    /// The node stands still.
    pub(crate) is_frozen: bool,
    /// The happenings that have come due for it meanwhile.
    pub(crate) held: Vec<Happening<M>>,
    /// The step in which it stands still, if it does so in one.
    pub(crate) held_step: Option<HeldStep<M>>,
    /// It is about to stop in good order: no client connects, and none asks for anything new.
    pub(crate) is_closing: bool,
    /// The disk that it had before an empty one was put there by mistake, under its old identity.
    pub(crate) aside: Option<MemoryDirectory>,
    /// What runs in its process beside the roles.
    pub(crate) companion: Option<Box<dyn Companion>>,
}

impl<M> Node<M> {
    pub(crate) fn new(disk: MemoryDirectory) -> Node<M> {
        Node {
            up: false,
            incarnation: 0,
            roles: BTreeMap::new(),
            disk,
            is_full: false,
            sync_failed: false,
            fails_sync: false,
            crash_at_op: None,
            clock: Clock::new(Micros(0), 0, 0),
            core_free_ns: 0,
            ends: BTreeMap::new(),
            is_frozen: false,
            held: Vec::new(),
            held_step: None,
            is_closing: false,
            aside: None,
            companion: None,
        }
    }

    /// Everything that a loss of power takes is gone.
    pub(crate) fn lose_power(&mut self, draw: impl FnMut() -> u64) {
        self.up = false;
        self.incarnation += 1;
        self.roles.clear();
        self.ends.clear();
        self.held.clear();
        self.held_step = None;
        self.companion = None;
        self.is_closing = false;
        self.is_frozen = false;
        self.crash_at_op = None;
        self.sync_failed = false;
        self.fails_sync = false;
        self.disk.crash(draw);
    }

    /// True once every role has handled the stop, and all that it asked of the disk is answered.
    pub(crate) fn has_closed(&self) -> bool {
        let waits = |event: &Event<M>| matches!(event, Event::Stop | Event::Disk(_));
        self.roles
            .values()
            .all(|slot| !slot.disk.iter().any(DiskQueue::is_busy) && !slot.mailbox.iter().any(waits))
    }

    /// There is an empty disk in the place of the one that was there.
    pub(crate) fn replace_disk(&mut self) {
        self.disk = MemoryDirectory::new();
        self.fill(self.is_full);
    }

    /// Makes the disk full, or gives it space again.
    pub(crate) fn fill(&mut self, full: bool) {
        self.is_full = full;
        let from = full.then(|| self.disk.ops());
        self.disk.set_full_from(from);
    }
}

/// A role and what is waiting for it.
pub(crate) struct Slot<M> {
    pub(crate) role: Box<dyn Role<Message = M>>,
    pub(crate) mailbox: VecDeque<Event<M>>,
    /// For each change of a stream in the receive journal, the node to which a fresh one has begun.
    pub(crate) news: VecDeque<Option<usize>>,
    /// A step is scheduled.
    pub(crate) awake: bool,
    /// Busy with the step before until then.
    pub(crate) ready_at: Micros,
    /// The cost of the next step, nanoseconds, once the core has been taken for it.
    pub(crate) paid_ns: Option<u64>,
    /// The longest time of a step: some roles are slow for a whole life, so that others run far ahead.
    pub(crate) step_us_max: u64,
    /// The valid setting of each timer.
    pub(crate) timers: BTreeMap<TimerId, u64>,
    /// The disk requests in order, and those in the background.
    pub(crate) disk: [DiskQueue; 2],
}

impl<M> Slot<M> {
    pub(crate) fn new(role: Box<dyn Role<Message = M>>, step_us_max: u64) -> Slot<M> {
        Slot {
            role,
            mailbox: VecDeque::from([Event::Start]),
            news: VecDeque::new(),
            awake: false,
            ready_at: Micros(0),
            paid_ns: None,
            step_us_max,
            timers: BTreeMap::new(),
            disk: Default::default(),
        }
    }
}

impl<M> std::fmt::Debug for Slot<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("role", &self.role.name()).finish_non_exhaustive()
    }
}

/// Disk requests of one role, carried out one operation at a time.
#[derive(Debug, Default)]
pub(crate) struct DiskQueue {
    requests: VecDeque<DiskRequest>,
    /// The operations of the first request that are done.
    done: usize,
}

impl DiskQueue {
    /// Appends a request; true if nothing was under way.
    pub(crate) fn push(&mut self, request: DiskRequest) -> bool {
        self.requests.push_back(request);
        self.requests.len() == 1
    }

    /// The operation to be carried out next; `None` if the first request has none left, or there is none.
    pub(crate) fn current(&self) -> Option<&DiskOp> {
        self.requests.front()?.ops.get(self.done)
    }

    /// Notes how the current operation ended; the answer to its request, if that ends it.
    pub(crate) fn advance(&mut self, result: Result<(), DiskError>) -> Option<DiskDone> {
        let request = self.requests.front()?;
        self.done += 1;
        if result.is_ok() && self.done < request.ops.len() {
            return None;
        }
        let token = request.token;
        self.done = 0;
        self.requests.pop_front();
        Some(DiskDone { token, result })
    }

    /// True while a request is under way.
    pub(crate) fn is_busy(&self) -> bool {
        !self.requests.is_empty()
    }
}

/// A directory whose machine loses power after some operations: what recovery works on when it is interrupted.
pub(crate) struct FailingDirectory<'a> {
    pub(crate) disk: &'a mut MemoryDirectory,
    /// The number of operations that are still carried out; `None` for all.
    pub(crate) left: Option<u64>,
}

impl FailingDirectory<'_> {
    /// True once power was lost.
    pub(crate) fn has_failed(&self) -> bool {
        self.left == Some(0)
    }
}

impl Directory for FailingDirectory<'_> {
    fn list(&self) -> Result<Vec<(String, u64)>, DiskError> {
        self.disk.list()
    }

    fn read(&self, file: &str, offset: u64, len: usize) -> Result<Vec<u8>, DiskError> {
        self.disk.read(file, offset, len)
    }

    fn apply(&mut self, op: &DiskOp) -> Result<(), DiskError> {
        match &mut self.left {
            Some(0) => {
                return Err(DiskError::Io { file: String::new(), reason: "power was lost".to_owned() });
            }
            Some(left) => *left -= 1,
            None => {}
        }
        self.disk.apply(op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(file: &str) -> DiskOp {
        DiskOp::Create { file: file.to_owned(), len: 0 }
    }

    #[test]
    fn a_request_is_answered_once_and_stops_at_the_first_failure() {
        let mut queue = DiskQueue::default();
        assert!(queue.push(DiskRequest::new(1, vec![create("a"), create("b"), create("c")])));
        assert!(!queue.push(DiskRequest::new(2, vec![create("d")])));
        assert_eq!(queue.advance(Ok(())), None);
        assert!(matches!(queue.current(), Some(DiskOp::Create { file, .. }) if file == "b"));
        let full = DiskError::Full { file: "b".to_owned() };
        assert_eq!(queue.advance(Err(full.clone())), Some(DiskDone { token: 1, result: Err(full) }));
        assert_eq!(queue.advance(Ok(())), Some(DiskDone { token: 2, result: Ok(()) }));
        assert!(!queue.is_busy());
        queue.push(DiskRequest::new(3, Vec::new()));
        assert_eq!(queue.advance(Ok(())), Some(DiskDone { token: 3, result: Ok(()) }));
    }

    #[test]
    fn power_is_lost_between_two_operations_of_recovery() {
        let mut disk = MemoryDirectory::new();
        let mut failing = FailingDirectory { disk: &mut disk, left: Some(1) };
        assert!(failing.apply(&create("a")).is_ok());
        assert!(failing.has_failed());
        assert!(failing.apply(&create("b")).is_err());
        assert_eq!(disk.list().unwrap(), [("a".to_owned(), 0)]);
    }
}
