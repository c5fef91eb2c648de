//! Sessions over the real commands, the real gateway and the reference executor: everything of the front door but
//! the sockets.

mod access;
mod behaviour;
mod families;
mod fuzz;
mod info;
mod memory;
mod natives;
mod slow;
