//! The concurrency control with stamps alone: scenarios of the sheet by number, and random runs beside a naive model.

mod model;
mod random;
mod scenarios;
#[path = "../locks/shard.rs"]
mod shard;

use ordain_commit::AttemptId;
use shard::{Outcome, Shard};

/// Commits an attempt: what it writes is installed, and then it is over.
fn commit(shard: &mut Shard, who: AttemptId) -> Outcome {
    shard.control.committed(&shard.store, who);
    shard.finish(who)
}
