//! The optimistic baseline with two-phase commit (Kung and Robinson, 1981; the FW-KV paper, section 5, names it 2PC-baseline): an attempt
//! reads without locks, and is validated when it is to commit.
//!
//! A read takes note of the record's version. When the attempt is to commit, each of its partitions locks what it has read and written there,
//! without waiting, and refuses it if a record has another version by then. The locks are held until the outcome is known, so that all that
//! was read is still so at one moment: what commits is strictly serializable. The rules stand in `docs/protocols/occ-2pc.md`.

use ordain_commit::CommitEngine;
use ordain_model::Abort;

use crate::optimistic::{Marked, Optimistic};

/// The engine.
pub const ENGINE: CommitEngine = CommitEngine {
    name: "occ-2pc",
    refusal: Abort::Validation,
    is_strict: true,
    control: |_, bugs| Box::new(Optimistic::new(Marked::ToTheEnd, bugs)),
};
