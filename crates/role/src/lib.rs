//! What a role is: a state machine with one entry point, and everything it can ask of the world.
//!
//! A role takes an [`Event`] and the time and appends [effects](Outbox) to an outbox. It owns no thread,
//! clock, socket, file or random source. Two drivers run the very same roles: the runtime on real threads,
//! sockets and files, and the simulator on virtual ones (DESIGN.md, idea 1).
//!
//! What a driver promises a role:
//! - events of one role are handled one at a time; messages between two roles of one node arrive in order and
//!   once; time never goes back;
//! - messages to another node arrive in order and once from one [`PeerState::Fresh`] of that node to the next. What
//!   was under way when a stream ended may be lost, and does not arrive in the next;
//! - a disk request is carried out in the order of its operations, requests of one role in the order in which
//!   they were made, and each is answered by exactly one [`Event::Disk`];
//! - what a [`DiskOp::Sync`] reported done survives a crash; what was only written may survive in part;
//! - work that is given away is done once and answered by one [`Event::Work`], in any order, unless the node ends before;
//! - a node that stops in good order tells each role once, by [`Event::Stop`], and goes on until the disk requests
//!   of all of them are answered.

pub mod bugs;
pub mod by_region;
pub mod disk;
pub mod topology;
pub mod under_way;
pub mod work;

use ordain_model::wire::{Codec, Reader};
pub use ordain_model::{DigestSpan, Histogram};
use ordain_model::{Micros, Registry, codec};

pub use bugs::{Bug, Bugs, UnknownBug};
pub use by_region::{ByRegion, REGIONS_MAX};
pub use bytes::Bytes;
pub use disk::{Directory, DiskDone, DiskError, DiskOp, DiskRequest, Fetched, shared};
pub use topology::{ReplicaId, Topology};
pub use under_way::UnderWay;
pub use work::{Work, WorkDone};

/// A node of the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

codec!(struct NodeId(_));

/// The receiver of a message: a role of a node. Roles learn the addresses of their peers when they are built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The node.
    pub node: NodeId,
    /// The role's number on that node.
    pub role: u16,
}

/// The time at which an event is handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Time since the node started; never goes back. For pacing.
    pub elapsed: Micros,
    /// Wall-clock time since the Unix epoch; may jump. For the time that transactions see.
    pub wall: Micros,
}

/// A role's own name for a timer. Setting it again replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerId(pub u32);

/// A change of the stream of messages between this node and another. The driver sends it, as a message, to the roles
/// that were named for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerChange {
    /// The other node.
    pub node: NodeId,
    /// The new state.
    pub state: PeerState,
}

/// The state of the stream of messages between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// A new stream has begun: one of the two was started, or more had to be kept than there is room for. Messages
    /// of the stream before are lost unless they have arrived.
    Fresh,
    /// The nodes have not reached each other for a while. The stream is kept and may go on.
    Lost,
    /// The nodes reach each other again, and the stream goes on: nothing was lost.
    Back,
}

/// A message that can travel to another node.
pub trait Wire: Codec {
    /// Appends the bytes but for a large end, which is answered instead, without a copy.
    fn encode_shared(&self, out: &mut Vec<u8>) -> Bytes {
        self.encode(out);
        Bytes::new()
    }

    /// The message of which these are all the bytes, which it may keep instead of a copy; `None` if they are none.
    /// Damaged and hostile bytes are possible. Transactions in them are of the procedures of `registry`.
    fn decode_shared(registry: &Registry, bytes: &Bytes) -> Option<Self> {
        Reader::of(registry, bytes).whole()
    }
}

/// Makes an enum of messages from the contents of its variants, each of another type.
///
/// ```
/// #[derive(Debug, PartialEq)]
/// enum Message {
///     Number(u64),
///     Text(String),
/// }
///
/// ordain_role::from_variants!(Message { Number(u64), Text(String) });
///
/// assert_eq!(Message::from(7), Message::Number(7));
/// ```
#[macro_export]
macro_rules! from_variants {
    (<$param:ident> $name:ty { $($variant:ident($content:ty)),+ $(,)? }) => {
        $($crate::from_variants!(@one [<$param>] $name, $variant, $content);)+
    };
    ($name:ident { $($variant:ident($content:ty)),+ $(,)? }) => {
        $($crate::from_variants!(@one [] $name, $variant, $content);)+
    };
    (@one [$($params:tt)*] $name:ty, $variant:ident, $content:ty) => {
        impl $($params)* From<$content> for $name {
            fn from(content: $content) -> Self {
                Self::$variant(content)
            }
        }
    };
}

/// An event for a role.
#[derive(Debug)]
pub enum Event<M> {
    /// The node has started; the first event of every role.
    Start,
    /// A message has arrived.
    Message {
        /// The sender.
        from: Address,
        /// The message.
        message: M,
    },
    /// A timer has fired.
    Timer(TimerId),
    /// A disk request is done.
    Disk(DiskDone),
    /// Work that was given away is done.
    Work(WorkDone),
    /// The node stops in good order: what clients had begun is finished or given up. Roles leave things on disk as the
    /// next start would like to find them. The driver waits for the disk requests made now and upon their answers; not
    /// for messages and timers. A node that halts or loses power sends no such event.
    Stop,
}

/// The effects that a role asks for, in order.
#[derive(Debug)]
pub struct Outbox<M> {
    /// Messages to other roles.
    pub sends: Vec<(Address, M)>,
    /// Messages from other nodes, with sender and receiver, set only by the runtime's network edge. They are delivered
    /// as if their senders were here.
    pub relayed: Vec<(Address, Address, M)>,
    /// Timers to set: fire after this long, or never if `None`.
    pub timers: Vec<(TimerId, Option<Micros>)>,
    /// Disk work.
    pub disk: Vec<DiskRequest>,
    /// Computations that are too long to be done here and now.
    pub work: Vec<Work>,
    /// What an operator should know: lines for the node's log.
    pub notices: Vec<String>,
    /// Set when from now on the node's memory grows fast for a while, or does not any more: see [`Outbox::memory_grows`].
    pub memory_grows: Option<bool>,
    /// Set when an invariant is broken: the node stops with this reason rather than diverge silently.
    pub halt: Option<String>,
    /// Set when some of what the node has is not to be trusted, although nothing is broken.
    pub rebuild: Option<Rebuild>,
    /// Set, with the reason, when the node has to be started again from all that it has on disk: what it has in memory is not to
    /// be trusted, although nothing is broken. Nothing else that was asked for in the same step is done.
    pub restart: Option<String>,
}

/// A rebuild of the node: it stops, discards some of what it has on disk, and starts in the next incarnation. A node
/// that is stopped in the middle of that goes on there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rebuild {
    /// The log is discarded: it may hold what does not count.
    pub without_log: bool,
    /// The receive journal is discarded, as the node begins from a checkpoint that it has got; else its stable part is
    /// kept.
    pub without_receive_journal: bool,
}

impl Rebuild {
    /// The rebuild that discards what either of two does, given one that has not been carried out.
    #[must_use]
    pub fn and(self, pending: Option<Rebuild>) -> Rebuild {
        let Some(pending) = pending else { return self };
        Rebuild {
            without_log: self.without_log || pending.without_log,
            without_receive_journal: self.without_receive_journal || pending.without_receive_journal,
        }
    }
}

impl<M> Default for Outbox<M> {
    fn default() -> Self {
        Outbox {
            sends: Vec::new(),
            relayed: Vec::new(),
            timers: Vec::new(),
            disk: Vec::new(),
            work: Vec::new(),
            notices: Vec::new(),
            memory_grows: None,
            halt: None,
            rebuild: None,
            restart: None,
        }
    }
}

impl<M> Outbox<M> {
    /// Sends a message.
    pub fn send(&mut self, to: Address, message: impl Into<M>) {
        self.sends.push((to, message.into()));
    }

    /// Sets a timer to fire after `delay`.
    pub fn set_timer(&mut self, timer: TimerId, delay: Micros) {
        self.timers.push((timer, Some(delay)));
    }

    /// Cancels a timer.
    pub fn cancel_timer(&mut self, timer: TimerId) {
        self.timers.push((timer, None));
    }

    /// Asks for disk work.
    pub fn disk(&mut self, request: DiskRequest) {
        self.disk.push(request);
    }

    /// Gives a long computation away.
    pub fn work(&mut self, work: Work) {
        self.work.push(work);
    }

    /// Tells the operator something. Seldom: each is a line of the node's log.
    pub fn notice(&mut self, text: impl Into<String>) {
        self.notices.push(text.into());
    }

    /// Announces that full speed needs new memory all the time from now on, or does so no more. A driver may then
    /// prepare memory ahead, so that no role waits long for any, at the cost of somewhat slower memory.
    pub fn memory_grows(&mut self, grows: bool) {
        self.memory_grows = Some(grows);
    }

    /// Stops the node: an invariant is broken. The first reason stands.
    pub fn halt(&mut self, reason: impl Into<String>) {
        self.halt.get_or_insert(reason.into());
    }

    /// Has the node be rebuilt.
    pub fn rebuild(&mut self, how: Rebuild) {
        self.rebuild = Some(how);
    }

    /// Tells whether the role has asked for nothing.
    pub fn is_empty(&self) -> bool {
        self.sends.is_empty()
            && self.relayed.is_empty()
            && self.timers.is_empty()
            && self.disk.is_empty()
            && self.work.is_empty()
            && self.notices.is_empty()
            && self.memory_grows.is_none()
            && self.halt.is_none()
            && self.rebuild.is_none()
            && self.restart.is_none()
    }
}

/// The name of a role's histogram in metrics, and the unit of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series {
    /// The metric's name: `ordain_…_seconds` if the values are microseconds, else it ends in the values' own unit.
    pub name: &'static str,
    /// The label, and its value, that tells this histogram from others of the same name.
    pub label: Option<(&'static str, &'static str)>,
}

impl Series {
    /// The only histogram of its name.
    pub const fn new(name: &'static str) -> Series {
        Series { name, label: None }
    }

    /// A stage of the way of a transaction, in microseconds.
    pub const fn stage(stage: &'static str) -> Series {
        Series { name: "ordain_stage_seconds", label: Some(("stage", stage)) }
    }
}

/// A state machine of a protocol.
pub trait Role: Send {
    /// The messages it takes and sends.
    type Message;

    /// Handles one event.
    fn handle(&mut self, now: Now, event: Event<Self::Message>, out: &mut Outbox<Self::Message>);

    /// The role's name in traces and metrics.
    fn name(&self) -> &'static str;

    /// Checks the invariants that are too dear to check on every step; called by the simulator after each.
    ///
    /// # Errors
    /// What is broken.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Checks that nothing is kept of what is over; called by the simulator when nothing was under way for some seconds.
    ///
    /// # Errors
    /// The first thing that is kept, with its place.
    fn check_at_rest(&self) -> Result<(), String> {
        Ok(())
    }

    /// Numbers that an operator may want to see, by metric name (`_total` for counters), which may end in one label:
    /// `name{label="value"}`.
    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let _ = report;
    }

    /// Distributions that an operator may want to see.
    fn histograms(&self, report: &mut dyn FnMut(Series, &Histogram)) {
        let _ = report;
    }

    /// Digests of the role's state at the ends of epochs, in order of epochs: what replicas are compared by.
    fn digests(&self, report: &mut dyn FnMut(DigestSpan)) {
        let _ = report;
    }
}

/// Writes the methods by which a role reports on itself, in the implementation of [`Role`] for one that wraps another: name,
/// checks, gauges, histograms and digests are those of the role inside.
#[macro_export]
macro_rules! reports_of {
    ($me:ident => $inner:expr) => {
        fn name(&$me) -> &'static str {
            $inner.name()
        }

        fn check(&$me) -> Result<(), String> {
            $inner.check()
        }

        fn check_at_rest(&$me) -> Result<(), String> {
            $inner.check_at_rest()
        }

        fn gauges(&$me, report: &mut dyn FnMut(&'static str, f64)) {
            $inner.gauges(report);
        }

        fn histograms(&$me, report: &mut dyn FnMut($crate::Series, &$crate::Histogram)) {
            $inner.histograms(report);
        }

        fn digests(&$me, report: &mut dyn FnMut($crate::DigestSpan)) {
            $inner.digests(report);
        }
    };
}

impl<R: Role + ?Sized> Role for Box<R> {
    type Message = R::Message;

    fn handle(&mut self, now: Now, event: Event<Self::Message>, out: &mut Outbox<Self::Message>) {
        (**self).handle(now, event, out);
    }

    reports_of!(self => **self);
}
