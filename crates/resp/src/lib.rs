//! The front door's language: RESP2 and RESP3, and what a connection means by its commands.
//!
//! Bytes in, bytes out: no socket, clock or thread. [`codec`] turns bytes into requests and replies into bytes,
//! and [`client`] does it the other way round;
//! [`Session`] is one connection's state machine between them and the [gateway](ordain_gateway::Gateway), where
//! its commands become transactions; [`Shared`] and [`Control`] are what an event loop lends its sessions.

mod acl;
pub mod client;
pub mod codec;
pub mod diagnostics;
pub mod memory;
mod session;
mod shared;

pub use acl::{
    Access, Attempt, DEFAULT, FileError, ModifierError, ModifiersError, Reason, Refusal, User, Users,
    UsersFileError,
};
pub use session::{ClientId, ConnectionId, Fate, LARGE_REPLY, Received, Session};
pub use shared::{
    ClientFilter, Context, Control, ControlRequest, Counters, Foreign, Limits, NodeInfo, Notice, Observed,
    SettingError, Settings, Shared,
};
