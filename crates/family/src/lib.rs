//! What a family of engines is to those who run its nodes: the node, the simulator and the benchmark.
//!
//! A *family* is a set of engines whose roles speak one language ([`Message`]). Whoever runs nodes is generic over a
//! [`Family`] and knows no engine: it opens a node's roles from its directory and [`NodeSettings`], gives each role its
//! events, carries messages, and lets clients in through gateways whose [`Router`](ordain_gateway::Router) the family
//! makes.

mod emptied;
mod family;
mod message;
mod settings;

pub use emptied::Emptied;
pub use family::{Family, Notice, Opened, Roles};
pub use message::{Incoming, Message};
pub use ordain_gateway::Services;
pub use settings::{Keep, NodeSettings, Replication, Storage, TAKES_TRANSACTIONS, places};
