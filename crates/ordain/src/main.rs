//! Placeholder crate root.
fn main() {}
