//! The log that one node writes: alone, and shipped to members.

mod alone;
mod faults;
mod scenarios;
mod world;
