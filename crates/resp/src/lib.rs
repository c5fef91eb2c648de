//! The front door's language: RESP2 and RESP3, and what a connection means by its commands.

pub mod codec;
