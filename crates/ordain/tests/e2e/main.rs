//! End to end: the built `ordain`, its real processes, sockets, files and signals.
//!
//! One test binary, one module a subject. Nothing here waits for time to pass: a test waits for a line, a reply,
//! the end of a process or of a connection, and a deadline far away only turns a hang into a failure. Every server
//! has a directory of its own and the ports that the system gives it, so all tests run side by side.

#![allow(clippy::unwrap_used, reason = "all of this is test code")]

mod support;

mod access;
mod admin;
mod archive;
mod async_replication;
mod balance;
mod bench;
mod bounded_log;
mod budget;
mod cases;
mod checkpoint;
mod cluster;
mod configuration;
mod damage;
mod engines;
mod faults;
mod full_disk;
mod hostile;
mod interactive;
mod kill;
mod levels;
mod memory;
mod natives;
mod operators;
mod options;
mod page;
mod pipelines;
mod poison;
mod recovery;
mod refusals;
mod region_nodes;
mod regions;
mod restore;
mod retries;
mod scripts;
mod snapshots;
mod tokens;
