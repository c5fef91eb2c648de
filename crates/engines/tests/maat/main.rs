//! The concurrency control with dynamic timestamp ranges alone: scenarios of the sheet by number, and random runs beside a naive model.

mod model;
mod random;
mod scenarios;
#[path = "../locks/shard.rs"]
mod shard;

use ordain_commit::options::{CAP, PREWRITE};
use ordain_commit::{Age, AttemptId, Bounds, Commitment};
use ordain_engines::maat::ENGINE;
use ordain_execution::TableChange;
use ordain_model::{Cell, Db, Gsn, KeyHash, Offer, OptionValue, Options, Value};
use ordain_role::Bugs;
use ordain_store::RecordStore;
use shard::Shard;

static OPTIONS: [Offer; 2] = [Offer::of(&PREWRITE), Offer::of(&CAP)];

/// The options of the engine.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// The time at which a write takes its soft lock: `deferred` or `access`.
    prewrite: &'static str,
    /// The most stamps that a validated attempt keeps; 0 for all.
    cap: u64,
}

/// A shard in its first term.
fn shard(rules: Rules, bugs: Bugs) -> Shard {
    let options = Options::new(ENGINE.name, &OPTIONS)
        .with(&PREWRITE, OptionValue::Name(rules.prewrite))
        .with(&CAP, OptionValue::Integer(rules.cap));
    let mut shard = Shard::new(&ENGINE, bugs);
    shard.control = (ENGINE.control)(&options, bugs);
    shard.control.begin(Age(0));
    shard
}

/// The stamps from one to before another.
fn bounds(from: u64, until: u64) -> Bounds {
    Bounds { from: Age(from), until: Age(until) }
}

/// Validates an attempt within bounds, while stamps before and after others are not given.
fn validate(shard: &mut Shard, who: AttemptId, asked: Bounds, given: Bounds) -> Option<Bounds> {
    let left = shard.control.validate(&mut shard.store, who, asked, given);
    (!left.is_empty()).then_some(left)
}

/// The writer of a key's content; none if the key is absent.
fn seen(shard: &Shard, key: u8) -> Option<u64> {
    let hash = KeyHash::of_record(Db(0), &[key]);
    let record = RecordStore::find(&shard.store, Db(0), &[key], hash)?;
    match &shard.store.cell(record).value {
        Some(Value::String(bytes)) => {
            Some(u64::from_le_bytes(bytes.as_slice().try_into().expect("a writer")))
        }
        None => None,
        other => panic!("{other:?}"),
    }
}

/// Installs the content of a writer with its stamp; none if it deletes the key, or clears the table, which is the key `None`.
fn install(shard: &mut Shard, key: Option<u8>, writer: Option<u64>, stamp: u64) {
    let (with, version) = (&Commitment::at(Age(stamp)), Gsn(writer.unwrap_or(1)));
    let Some(key) = key else {
        return shard.control.change(&mut shard.store, TableChange::Clear(None), with, version);
    };
    let value = writer.map(|writer| Value::String(writer.to_le_bytes().to_vec()));
    let record = shard.record(key);
    shard.control.install(&mut shard.store, record, Cell { value, ..Cell::ABSENT }, with, version);
    shard.store.release_if_absent(record);
}
