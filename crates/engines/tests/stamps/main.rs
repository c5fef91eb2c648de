//! The concurrency control with stamps alone: scenarios of the sheet by number, and random runs beside a naive model.

mod contents;
mod model;
mod random;
mod scenarios;
#[path = "../locks/shard.rs"]
mod shard;

use ordain_commit::options::THOMAS;
use ordain_commit::{Age, AttemptId, CommitEngine, Commitment};
use ordain_execution::TableChange;
use ordain_model::{Cell, Gsn, Offer, OptionValue, Options, Value};
use ordain_role::Bugs;
use shard::{Outcome, Shard};

static OPTIONS: [Offer; 1] = [Offer::of(&THOMAS)];

/// A shard under an engine, in its first term, with Thomas's rule or without.
fn shard(engine: &CommitEngine, thomas: bool, bugs: Bugs) -> Shard {
    let options = Options::new(engine.name, &OPTIONS).with(&THOMAS, OptionValue::Bool(thomas));
    let mut shard = Shard::new(engine, bugs);
    shard.control = (engine.control)(&options, bugs);
    shard.control.begin(Age(0));
    shard
}

/// The content that an attempt with a stamp leaves.
fn content(stamp: u64) -> Value {
    Value::String(stamp.to_le_bytes().to_vec())
}

/// Commits an attempt: all that it may write is installed, and then it is over. A write of the whole table clears it.
fn commit(shard: &mut Shard, who: AttemptId, stamp: u64) -> Outcome {
    let held = shard.held(who);
    if held.contains_key(&None) {
        let clear = TableChange::Clear(None);
        shard.control.change(&mut shard.store, clear, &Commitment::at(Age(stamp)), Gsn(1));
    }
    for key in held.into_keys().flatten() {
        let record = shard.record(key);
        let cell = Cell { value: Some(content(stamp)), ..Cell::ABSENT };
        shard.control.install(&mut shard.store, record, cell, &Commitment::at(Age(stamp)), Gsn(1));
    }
    shard.finish(who)
}
