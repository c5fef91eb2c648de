//! Logs that ship to each other.

mod faults;
mod scenarios;
mod world;
