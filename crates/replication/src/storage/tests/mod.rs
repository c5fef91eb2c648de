//! The log of a region in a virtual world.

mod property;
mod scenarios;
mod tally;
mod words;
mod world;
