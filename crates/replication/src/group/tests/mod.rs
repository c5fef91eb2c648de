//! The group's log, by itself and in a virtual world.

mod confirmation;
mod safety;
mod scenarios;
mod world;
