//! The world around a connection server: what it cannot do without a process.

use std::fmt::Debug;
use std::io;

use ordain_gateway::Ticket;
use ordain_resp::{Notice, Users, UsersFileError};

/// One end of a connection, which never blocks: it answers [`io::ErrorKind::WouldBlock`] instead.
///
/// Whoever watches it says when it has become readable or takes more, and does not repeat that.
pub trait Socket: io::Read + io::Write + Debug {
    /// Tells whether bytes were taken that have not left yet.
    fn has_pending(&self) -> bool {
        false
    }

    /// Tells whether a read that is shorter than asked for may have left something behind.
    fn keeps_input(&self) -> bool {
        false
    }

    /// Tells whether both ends still agree on keys.
    fn is_handshaking(&self) -> bool {
        false
    }
}

/// The addresses of both ends of a connection, as text with their ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// The client's.
    pub peer: String,
    /// The server's.
    pub local: String,
}

/// A job on the file of users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsersFileAction {
    /// Read it.
    Load,
    /// Write the users as they are when it is begun.
    Save,
}

/// The result of a job on the file of users.
#[derive(Debug)]
pub enum UsersFileDone {
    /// It was read, and these are its users.
    Loaded(Result<Users, UsersFileError>),
    /// It was written.
    Saved(Result<(), UsersFileError>),
}

/// An event that the operator should read of in the node's log.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A session has something to say.
    Notice(Notice<'a>),
    /// A connection was closed because all together hold more than they may, and this one most.
    ClosedLargest {
        /// Its address.
        peer: &'a str,
        /// The bytes that it held.
        bytes: u64,
        /// The bytes that all held.
        all: u64,
    },
    /// A second has passed.
    Second,
}

/// What a connection server asks of its process.
pub trait Host: Debug {
    /// A connection that is served.
    type Socket: Socket;
    /// A connection that was accepted, on its way to the event loop that serves it.
    type Accepted: Debug;

    /// Opens an accepted connection and watches it under a number; `None` if that fails, and the connection is gone.
    fn open(&mut self, accepted: Self::Accepted, number: u32) -> Option<(Self::Socket, Ends)>;

    /// Closes a connection and watches it no more.
    fn close(&mut self, socket: Self::Socket);

    /// Begins a job on the file of users, of which the result comes to [`ConnectionServer::users_file_done`] under the
    /// ticket. False if there is no such file.
    ///
    /// [`ConnectionServer::users_file_done`]: crate::ConnectionServer::users_file_done
    fn ask_users_file(&mut self, action: UsersFileAction, ticket: Ticket) -> bool;

    /// Fills random bytes for secrets.
    ///
    /// # Errors
    /// The system has none.
    fn random(&mut self, bytes: &mut [u8]) -> Result<(), String>;

    /// Notes an event for the operator.
    fn note(&mut self, event: Event<'_>);
}
