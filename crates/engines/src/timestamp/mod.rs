//! Basic timestamp ordering (Bernstein and Goodman, 1981; the Q-Store paper, section 6): attempts take effect in the order of their
//! stamps, and of a record's contents only the newest is there.
//!
//! A read below the stamp of a write is refused. The rules stand in `docs/protocols/timestamp.md`.

use ordain_commit::CommitEngine;
use ordain_commit::options::{BACKOFF, SKEW_US, THOMAS, TS_SOURCE};
use ordain_model::{Abort, Offer};

use crate::stamp_order::{Latest, StampOrder};

/// The engine.
pub const ENGINE: CommitEngine = CommitEngine {
    name: "timestamp",
    refusal: Abort::TooLate,
    is_strict: false,
    control: |options, bugs| Box::new(StampOrder::<Latest>::new(options.is_on(&THOMAS), bugs)),
};

/// The options of the engine.
pub(crate) static OPTIONS: [Offer; 4] =
    [Offer::of(&BACKOFF), Offer::of(&THOMAS), Offer::of(&TS_SOURCE), Offer::of(&SKEW_US)];
