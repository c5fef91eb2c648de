//! Logs that ship: driven by hand.
