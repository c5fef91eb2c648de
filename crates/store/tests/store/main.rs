//! The store as the other crates see it. One program, so that the longest of its tests run side by side.

mod handover;
mod model;
mod past;
mod placement;
