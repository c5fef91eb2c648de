//! RESP as a client speaks it: commands out, replies in.
//!
//! [`ReplyParser`] cuts the bytes of a connection into [`Value`]s where they lie, in RESP2 and in RESP3. A [`Reply`] is a whole
//! reply as a tree; [`ReplyReader`] makes trees of bytes that come in pieces. A client that wants a reply as the server's own
//! encoding has [`ReplyParser::read_datum`]. The server is not trusted: depth, length and lines of a reply are bounded by
//! [`ReplyLimits`].

mod command;
mod parser;
mod reply;
#[cfg(test)]
mod tests;

pub use command::{Commands, command, write_command};
pub use parser::{Parsed, Read, ReplyError, ReplyLimits, ReplyParser, Value};
pub use reply::{Reply, ReplyReader};
