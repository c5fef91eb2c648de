//! The connection server of an event loop, whatever carries its bytes.
//!
//! A [`ConnectionServer`] has connections with a [`Session`](ordain_resp::Session) each, and the gateway of its loop. It is a
//! role: messages and timers come in as for every other one. A [`Host`] gives it sockets and what else only a process has.
//! The node's host has TCP, TLS and files; the simulator's has byte queues in virtual time. The servers of a node share
//! [`Mailboxes`].

mod connections;
mod host;
mod mailboxes;
mod requests;
mod server;
mod setup;

pub use host::{Ends, Event as HostEvent, Host, Socket, UsersFileAction, UsersFileDone};
pub use mailboxes::Mailboxes;
pub use server::ConnectionServer;
pub use setup::{Parts, Setup, servers};
