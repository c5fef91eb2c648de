//! The conformance suite: what every engine has to answer, whatever way it takes to the answer.
//!
//! A [`Subject`] is a server of bytes in virtual time: the [reference](reference::Server), which is sessions in front of the
//! reference executor, or a [cluster of an engine](cluster::Cluster) of some shape. Each module of the [`suite`] holds
//! a subject to replies that are written down (transcripts, many of them recorded from Redis) or that the reference gives.
//!
//! An engine joins by one line of `tests/engines.rs` for each shape of its clusters.

pub mod cluster;
pub mod conversation;
pub mod drawn;
pub mod natives;
pub mod reference;
pub mod reply;
mod subject;
pub mod suite;
pub mod transcript;

pub use cluster::on;
pub use subject::{Sight, Subject, Traits, Weather};
