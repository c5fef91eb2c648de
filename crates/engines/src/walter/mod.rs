//! Walter (Sovran, Power, Aguilera and Li, SOSP 2011), as the FW-KV paper compares itself with it: parallel snapshot isolation, with snapshots of
//! what the home has heard when a transaction begins.
//!
//! The rules, and where they differ from the paper, stand in `docs/protocols/walter.md`; the parts are those of
//! `parallel_snapshots`.

use ordain_commit::{CommitEngine, Snapshots};
use ordain_model::Abort;

use crate::parallel_snapshots::ParallelSnapshots;

/// The engine.
pub const ENGINE: CommitEngine = CommitEngine {
    name: "walter",
    refusal: Abort::Validation,
    is_strict: false,
    control: |_, bugs| Box::new(ParallelSnapshots::new(Snapshots::AtBegin, bugs)),
};
