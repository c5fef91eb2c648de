//! The real driver of roles: threads, event loops, sockets, files and clocks.
//!
//! A node is a few event loops, one thread each. Roles and [edges](Edge) sit on loops and send messages to each other; the
//! runtime carries out what they ask for and keeps what a driver promises (see [`ordain_role`]):
//!
//! - messages within a loop go through a plain queue, messages between two loops through one single-producer
//!   ring of that ordered pair of loops, so any two roles see each other's messages in order and once; a full
//!   ring spills into memory of the sender, which never blocks (`mailbox.rs`);
//! - a loop without work sleeps in `mio` until a socket, a timer or another loop wakes it (`wake.rs`);
//! - messages to other nodes go to the [network edge](Network), which takes them there over TCP and keeps order and
//!   count across reconnects (`net/`);
//! - a disk thread does what has to be waited for, in the order in which each role asked, and another one does it for
//!   roles in the background (`disk.rs`);
//! - an invariant that breaks, or a panic, stops the whole node and says why ([`Running::wait`]).
//!
//! What is not here: any knowledge of an engine or a protocol. What a message means is the roles' business.
//! The runtime is for Linux: it uses `timerfd`, `fallocate` and thread CPU clocks.

mod clock;
mod control;
mod disk;
mod edge;
mod fs;
mod loops;
mod mailbox;
mod memory;
mod net;
mod poller;
mod run_times;
mod running;
mod service;
mod timers;
mod tls;
pub mod under_way;
mod wake;

/// The atomics that `wake.rs` is written with. The model checker's test compiles that file against its own.
mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, Ordering, fence};
}

pub use clock::Clock;
pub use disk::Disk;
pub use edge::{Departing, Edge, Tokens, Turn};
pub use fs::{DirLock, FsDirectory, LockError, OpenError};
pub use loops::{LoopSnapshot, RoleSnapshot};
pub use net::{
    Greeted, Greeting, LinkTls, NetConfig, NetLimits, NetStatus, Network, PeerStatus, Reach, Refusal,
    TakeGreeting,
};
pub use run_times::RunTimes;
pub use running::{Handle, LoopSpec, Options, Running, Runtime, StartError, Stopped};
pub use tls::{Current, Stream};
