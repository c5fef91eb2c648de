//! The Redis commands: a table of what clients may say, and the procedures behind it.
//!
//! Every data command is an [`ordain_model::Procedure`] of its own: it is planned at the front door, ordered
//! and executed by whatever engine runs, and answers with a [`ordain_model::Datum`] that is turned into RESP2
//! or RESP3 where the connection is known. Nothing here knows a socket, a clock or an engine.
//!
//! [`table`] is the way in: [`lookup`] finds a command, [`check_arity`] refuses a wrong number of words, and
//! the command's [`Action`] says which procedure to submit or that the session answers itself. [`ids`] are the
//! procedures' numbers in the log.

mod bits;
mod expiry;
mod extended;
mod glob;
mod hashes;
pub mod ids;
mod keys;
mod number;
mod random;
pub mod rights;
mod scan;
pub mod script;
mod shape;
mod strings;
pub mod table;
pub mod words;

use ordain_model::Registry;

pub use glob::glob_matches;
pub use table::{Action, Command, Flags, SessionCommand, all, check_arity, check_subcommand, lookup};

/// Adds the procedures behind all commands.
pub fn register(registry: &mut Registry) {
    strings::register(registry);
    keys::register(registry);
    hashes::register(registry);
    script::register(registry);
}
