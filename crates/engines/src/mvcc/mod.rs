//! Multiversion timestamp ordering (Reed, 1978; the Q-Store paper, section 6, names it MVCC): attempts take effect in the order of
//! their stamps, and what a write replaces stays for reads with earlier stamps.
//!
//! A read is never refused but below the floor, where contents are gone. A write is refused if a read with a later stamp has seen
//! the content that it would replace. The rules stand in `docs/protocols/mvcc.md`.

mod versions;

use ordain_commit::CommitEngine;
use ordain_commit::options::{BACKOFF, SKEW_US, TS_SOURCE};
use ordain_model::{Abort, Offer};

use crate::stamp_order::StampOrder;
use versions::Versions;

/// The engine.
pub const ENGINE: CommitEngine = CommitEngine {
    name: "mvcc",
    refusal: Abort::TooLate,
    is_strict: false,
    control: |_, bugs| Box::new(StampOrder::<Versions>::new(false, bugs)),
};

/// The options of the engine.
pub(crate) static OPTIONS: [Offer; 3] = [Offer::of(&BACKOFF), Offer::of(&TS_SOURCE), Offer::of(&SKEW_US)];
