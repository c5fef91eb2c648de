//! The concurrency controls with locks, each alone: scenarios of the sheet by number, and random runs beside a naive model.

mod in_order;
mod model;
mod random;
mod scenarios;
mod shard;
