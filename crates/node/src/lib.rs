//! A node: roles wired together, and nothing else.
//!
//! [`cluster`] is what a cluster's file says,
//! [`given`] options of an engine as people write them, [`identity`] what a data directory says of itself, [`aborts`] what an operator has aborted of its log. [`admin`] is where operators look, [`serve`] starts all of it.

pub mod aborts;
pub mod admin;
pub mod admin_client;
mod certificates;
pub mod cluster;
mod front;
pub mod given;
pub mod identity;
mod notices;
pub mod procedures;
pub mod restore;
mod sealed;
pub mod secrets;
pub mod serve;
pub mod size;
pub mod tls;
mod users_file;
