//! The log of a region in a virtual world.

mod property;
mod scenarios;
mod world;
