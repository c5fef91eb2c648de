//! Silo (Tu and others, SOSP 2013), as the control of a region (the regions paper, "OCC"; sheet regions.md, 4.6): an attempt reads without locks,
//! locks what it writes when it is to commit, and validates what it has read.
//!
//! An attempt of one shard locks, validates and is decided in one step there, so nothing that it has read is marked. One of several shards
//! is validated at each in any order: what it has read is marked where it is validated, until it is over. What only reads marks nothing. One of
//! several regions may be validated in two rounds: all lock what it writes, and then all validate what it has read, and mark nothing. The rules stand in
//! `docs/protocols/regions.md`, section "Silo".

use ordain_commit::CommitEngine;
use ordain_commit::options::OCC_ROUNDS;
use ordain_model::Abort;

use crate::optimistic::{Marked, Optimistic};

/// The engine.
pub const ENGINE: CommitEngine = CommitEngine {
    name: "regions-silo",
    refusal: Abort::Validation,
    is_strict: true,
    control: |options, bugs| {
        Box::new(Optimistic::new(Marked::Undecided, bugs).in_rounds(options.number(&OCC_ROUNDS)))
    },
};
