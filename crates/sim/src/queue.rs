//! The happenings of a run, in the order of virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ordain_model::Micros;
use ordain_role::{Address, TimerId, WorkDone};

use crate::client::Waiter;
use crate::connections::ConnectionNo;
use crate::connections::wire::Way;
use crate::deposals::Deposal;
use crate::incidents::{Incident, Spell};
use crate::network::Packet;
use ordain_checker::RequestId;

/// Something that will happen. A life is a node's incarnation: what belongs to an earlier one is void.
#[derive(Debug)]
pub(crate) enum Happening<M> {
    /// A message arrives at another role of its node.
    Deliver { life: u32, from: Address, to: Address, message: M },
    /// A packet arrives from another node.
    Arrive { from: usize, to: usize, packet: Packet },
    /// One side of a link has a connection.
    Connect { here: usize, there: usize, life: u32 },
    /// One side of a link notices that its connection is gone.
    Part { here: usize, there: usize, life: u32 },
    /// A node looks whether another is still there.
    Beat { here: usize, there: usize, life: u32 },
    /// A node sends again what another has not acknowledged.
    Retransmit { here: usize, there: usize, life: u32 },
    /// A role handles the first event of its mailbox.
    Step { node: usize, life: u32, role: u16 },
    /// A timer fires, if this setting of it still holds.
    Timer { node: usize, life: u32, role: u16, timer: TimerId, setting: u64 },
    /// Work that a role gave away is done.
    Work { node: usize, life: u32, role: u16, done: WorkDone },
    /// A role's disk operation is carried out.
    Disk { node: usize, life: u32, role: u16, line: usize },
    /// A request reaches a front door that stood still.
    Ask { door: usize, life: u32, waiter: Waiter },
    /// A front door sends what it has gathered.
    Flush { door: usize, life: u32 },
    /// A client's loop has thought and asks.
    Think { client: usize, loop_no: usize },
    /// A client sends a request again that was rejected.
    Resend { client: usize, request: RequestId, attempt: u32 },
    /// A client has waited long enough, drops its connection and sends everything again over another.
    Impatient { client: usize, request: RequestId, attempt: u32 },
    /// A client whose node was down connects again.
    Reconnect { client: usize },
    /// Bytes of a virtual connection arrive.
    Bytes { connection: usize, way: Way, count: usize },
    /// The end of what one side of a virtual connection sends arrives.
    EndOfBytes { connection: usize, way: Way },
    /// A virtual connection breaks.
    Reset { connection: usize },
    /// A client that speaks bytes says the next thing.
    Speak { speaker: usize },
    /// It has waited long enough over a connection.
    Weary { speaker: usize, connection: ConnectionNo },
    /// The next incident is due.
    Incident,
    /// An incident that could not happen is tried again.
    TryIncident(Incident),
    /// What happened to single messages, disk operations or clients for a while is over.
    SpellEnds(Spell),
    /// A crash is due.
    CrashDue { node: usize, life: u32 },
    /// A node that catches up loses power again, now or at one of so many looks.
    Relapse { node: usize, life: u32, looks: u32 },
    /// The companion of a node goes on.
    Accompany { node: usize, life: u32 },
    /// A node starts.
    Restart { node: usize },
    /// A disk becomes full.
    Fill { node: usize },
    /// A disk has space again.
    Space { node: usize },
    /// The network falls apart.
    Cut,
    /// The network is whole again.
    Mend,
    /// A connection breaks.
    Break,
    /// Some node may lose its disk.
    Lose,
    /// A node stands still.
    Freeze { node: usize },
    /// A node that stood still goes on.
    Thaw { node: usize, life: u32 },
    /// A leader begins to lose its power.
    Depose(Deposal),
    /// The leader that is losing its power, and who leads in its place, are looked at.
    LookAtLeaders,
    /// A wall clock jumps.
    Jump { node: usize },
    /// An operator looks after the nodes that have ended, and aborts what has ended them.
    Operate,
    /// The operator looks after what he has begun.
    Tend,
}

impl<M> Happening<M> {
    /// The node that cannot let this happen while it stands still.
    pub(crate) fn node(&self) -> Option<usize> {
        match self {
            Happening::Deliver { to, .. } => Some(to.node.0 as usize),
            Happening::Arrive { to, .. } => Some(*to),
            Happening::Connect { here, .. }
            | Happening::Part { here, .. }
            | Happening::Beat { here, .. }
            | Happening::Retransmit { here, .. } => Some(*here),
            Happening::Step { node, .. }
            | Happening::Timer { node, .. }
            | Happening::Work { node, .. }
            | Happening::Accompany { node, .. }
            | Happening::Disk { node, .. } => Some(*node),
            _ => None,
        }
    }
}

/// The time of a happening and where it is kept; those of one time happen in the order in which they were scheduled.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Scheduled {
    at: Micros,
    sequence: u64,
    slot: usize,
}

/// Everything that will happen.
#[derive(Debug)]
pub(crate) struct Queue<M> {
    /// A heap moves its elements about, so that it has only times and places of what is some hundred bytes large.
    heap: BinaryHeap<Reverse<Scheduled>>,
    slots: Vec<Option<Happening<M>>>,
    free: Vec<usize>,
    sequence: u64,
}

impl<M> Queue<M> {
    pub(crate) fn new() -> Queue<M> {
        Queue { heap: BinaryHeap::new(), slots: Vec::new(), free: Vec::new(), sequence: 0 }
    }

    /// The number of happenings that were ever scheduled.
    pub(crate) fn scheduled(&self) -> u64 {
        self.sequence
    }

    pub(crate) fn push(&mut self, at: Micros, happening: Happening<M>) {
        self.sequence += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(happening);
        self.heap.push(Reverse(Scheduled { at, sequence: self.sequence, slot }));
    }

    /// The time of the next happening.
    pub(crate) fn next_at(&self) -> Option<Micros> {
        self.heap.peek().map(|Reverse(next)| next.at)
    }

    pub(crate) fn pop(&mut self) -> Option<(Micros, Happening<M>)> {
        let Reverse(Scheduled { at, slot, .. }) = self.heap.pop()?;
        self.free.push(slot);
        self.slots[slot].take().map(|happening| (at, happening))
    }
}
