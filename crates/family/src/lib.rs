//! What a family of engines is to those who run its nodes: the node, the simulator and the benchmark.
//!
//! A *family* is a set of engines whose roles speak one language ([`Message`]). Whoever runs nodes is generic over it and
//! knows no engine: it opens a node's roles, gives each its events, and carries messages.

mod message;

pub use message::{Incoming, Message};
