//! A node: roles wired together, and nothing else.
//!
//! [`assembly`] builds the roles of a node from what its
//! directory holds, the same for the runtime and for the simulator. [`cluster`] is what a cluster's file says,
//! [`given`] options of an engine as people write them, [`identity`] what a data directory says of itself, [`aborts`] what an operator has aborted of its log. [`front`] is
//! where clients connect, [`admin`] is where operators look, [`serve`] starts all of it.

pub mod aborts;
pub mod admin;
mod admin_access;
pub mod admin_client;
pub mod assembly;
mod certificates;
pub mod cluster;
pub mod family;
pub mod front;
pub mod given;
pub mod identity;
mod notices;
pub mod procedures;
pub mod rebuild;
mod sealed;
pub mod secrets;
pub mod serve;
pub mod size;
pub mod tls;
mod users_file;
