//! Single scenarios.
