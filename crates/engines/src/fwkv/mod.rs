//! FW-KV (Javidi Kishi, Hassan and Palmieri, Middleware 2021): parallel snapshot isolation, with reads that are fresh. What only reads sees the newest
//! version of each record; writes name the readers that must not see them.
//!
//! The rules, and where they differ from the paper, stand in `docs/protocols/fwkv.md`; the parts are those of
//! `parallel_snapshots`.

use ordain_commit::{CommitEngine, Snapshots};
use ordain_model::Abort;

use crate::parallel_snapshots::ParallelSnapshots;

/// The engine.
pub const ENGINE: CommitEngine = CommitEngine {
    name: "fwkv",
    refusal: Abort::Validation,
    is_strict: false,
    control: |_, bugs| Box::new(ParallelSnapshots::new(Snapshots::AtFirstRead, bugs)),
};
