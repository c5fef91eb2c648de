//! The simulator: whole clusters on one thread, in virtual time, from one seed.
//!
//! The simulator drives the very roles that the runtime drives (DESIGN.md, idea 1), with everything around them that can
//! go wrong going wrong: late, lost, doubled and reordered packets, cut networks and broken connections, nodes that
//! stand still, slow and full disks, clocks that drift and jump, and the loss of power between any two disk
//! operations. It knows the roles' trait and no engine.
//!
//! A run goes: faults while clients ask; then everything is healed and all that is outstanding must end
//! within a bound ([`Simulator::transition_to_liveness`]); then every node loses power once more and must
//! come back; then the checkers compare what the clients saw with a serial execution of the durable log.
//! [`run_seed`] does all of that and the same seed does the same, to the byte of its event trace.
//!
//! The way to read it: [`system`] is what is driven; [`simulator`] is the driver, [`faults`] what it does to
//! the system and [`load`] how much of it; [`workload`] is what clients ask for, and a [`History`](ordain_checker::History) what they saw;
//! [`mod@run`] puts it together.

mod client;
mod clock;
pub mod companion;
pub mod connections;
mod deposals;
pub mod faults;
pub mod figures;
mod incidents;
pub mod load;
mod loading;
mod network;
mod node;
pub mod operations;
mod outages;
mod queue;
pub mod run;
mod serve;
pub mod simulator;
mod steps;
pub mod system;
mod tending;
#[cfg(test)]
mod tests;
pub mod trace;
pub mod verdict;
pub mod workload;

pub use clock::START_WALL;
pub use companion::Companion;
pub use connections::ConnectionNo;
pub use connections::cluster::{FamilySystem, VirtualCluster, virtual_servers};
pub use connections::server::VirtualHost;
pub use faults::{Fault, Faults};
pub use figures::{BatchSize, Figures, Summary};
pub use load::{FaultPace, Load, Profile};
pub use operations::{Operation, Operations};
pub use ordain_model::Random;
pub use run::{Config, Report, run_seed};
pub use simulator::{Counts, Simulator};
pub use system::{FrontDoor, Roles, System};
pub use verdict::{Ending, Verdict};
pub use workload::{Mix, Workload};
