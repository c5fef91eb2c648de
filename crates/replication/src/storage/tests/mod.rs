//! The log of a region in a virtual world.

mod broadcast;
mod generations;
mod property;
mod reading;
mod scenarios;
mod tally;
mod words;
mod world;
