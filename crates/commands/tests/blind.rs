//! Blind writes: what a command does to a record that it does not look at is the same whatever was there.

#![allow(clippy::unwrap_used, reason = "a test fails where it unwraps")]

mod harness;

use std::collections::BTreeSet;

use harness::Client;
use ordain_commands::{Action, all, check_arity, lookup};
use ordain_model::reference::Result as TxnResult;
use ordain_model::{
    Access, Call, Cell, Chunk, ChunkNo, Db, Epoch, GatewayId, Gsn, HashValue, Millis, PartitionId, Value,
};
use proptest::prelude::*;

const NOW: Millis = Millis(1_700_000_000_000);

/// Words that some command takes for an option or a time, and values.
const WORDS: &[&str] = &[
    "k",
    "l",
    "v",
    "",
    "a value that is somewhat longer than the ones that a record has in its place",
    "12",
    "1",
    "1700000000",
    "9000000000000000",
    "9223372036854775807",
    "-1",
    "NX",
    "XX",
    "GET",
    "KEEPTTL",
    "EX",
    "PX",
    "EXAT",
    "PXAT",
    "REPLACE",
];

/// The transaction of a command; none if its arguments are refused.
fn planned(client: &Client, words: &[&str]) -> Option<Chunk> {
    let command = lookup(words[0].as_bytes()).unwrap();
    check_arity(command, words.len()).ok()?;
    let Action::Procedure { id, encode } = command.action else { return None };
    let words: Vec<&[u8]> = words[1..].iter().map(|word| word.as_bytes()).collect();
    let mut chunk = Chunk::new(GatewayId(0), ChunkNo(1));
    chunk.push(&client.registry, Call::new(id, Db(0)), |args| encode(&words, args)).ok()?;
    Some(chunk)
}

/// True if each fragment that writes a record does so without a look at it; none if no fragment writes one.
fn is_blind(chunk: &Chunk) -> Option<bool> {
    let mut fragments = chunk.fragments(&chunk.txns()[0]).iter().peekable();
    fragments.peek()?;
    let mut writing = fragments.filter(|fragment| fragment.access == Access::Write).peekable();
    writing.peek()?;
    Some(writing.all(|fragment| fragment.is_blind))
}

/// A record of each kind, and of each with regard to time.
fn content() -> impl Strategy<Value = Cell> {
    let hash = |fields: Vec<(u8, u8)>| {
        let mut hash = HashValue::default();
        fields.iter().for_each(|(field, value)| _ = hash.set(&[*field], &[*value]));
        Value::Hash(hash.into())
    };
    let value = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..80).prop_map(Value::String),
        (-20..20_i64).prop_map(|n| Value::String(n.to_string().into_bytes())),
        prop::collection::vec(any::<(u8, u8)>(), 1..5).prop_map(hash),
    ];
    let expires_at = prop_oneof![
        2 => Just(Millis(0)),
        1 => Just(Millis(NOW.0 + 1_000)),
        1 => Just(NOW),
        1 => Just(Millis(NOW.0 - 1)),
    ];
    prop::option::weighted(0.9, (value, expires_at)).prop_map(|record| match record {
        Some((value, expires_at)) => Cell { value: Some(value), expires_at: expires_at.into() },
        None => Cell::ABSENT,
    })
}

/// The keys that the commands of these tests write.
const KEYS: [&[u8]; 2] = [b"k", b"l"];

/// Runs a transaction on some contents of [`KEYS`]; returns its answer and the records that it leaves.
fn outcome(chunk: &Chunk, before: &[Cell; 2]) -> (TxnResult, Vec<(Vec<u8>, Cell, Gsn)>) {
    let mut client = Client::new();
    let gsn = |epoch| Gsn::new(Epoch(epoch), PartitionId(0), 0);
    for (version, (key, cell)) in (1..).zip(KEYS.iter().zip(before)) {
        if cell.value.is_some() {
            client.executor.put_back(Db(0), key, cell.clone(), gsn(version));
        }
    }
    let result = client.executor.run_txn(gsn(9), NOW, chunk, &chunk.txns()[0]);
    let left =
        client.executor.versions().map(|(_, key, cell, version)| (key.to_vec(), cell.clone(), version));
    (result, left.collect())
}

/// The commands whose plans are blind with some arguments, as far as these words make them.
const BLIND: [&str; 4] = ["mset", "psetex", "set", "setex"];

/// Commands whose outcome depends on the record that they write.
const LOOKING: [&str; 12] = [
    "set k v NX",
    "set k v XX",
    "set k v GET",
    "set k v KEEPTTL",
    "setnx k v",
    "getset k v",
    "msetnx k v",
    "append k v",
    "setrange k 0 v",
    "incr k",
    "del k",
    "hset k f v",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn what_is_blind_does_not_depend_on_what_was_there(
        which in 0..BLIND.len(),
        words in prop::collection::vec(prop::sample::select(WORDS), 0..5),
        before in [content(), content()],
        other in [content(), content()],
    ) {
        let words: Vec<&str> = [BLIND[which], "k"].into_iter().chain(words).collect();
        let Some(chunk) = planned(&Client::new(), &words) else { return Ok(()) };
        if is_blind(&chunk) != Some(true) {
            return Ok(());
        }
        let written: BTreeSet<u64> =
            chunk.fragments(&chunk.txns()[0]).iter().map(|fragment| fragment.hash.0).collect();
        // A key that is not written keeps what it has.
        let keep = |before: [Cell; 2]| {
            let is_written = |key: &[u8]| written.contains(&ordain_model::KeyHash::of(key).0);
            let [k, l] = before;
            [if is_written(b"k") { k } else { Cell::ABSENT }, if is_written(b"l") { l } else { Cell::ABSENT }]
        };
        let absent = outcome(&chunk, &[Cell::ABSENT, Cell::ABSENT]);
        for before in [before, other] {
            prop_assert_eq!(&outcome(&chunk, &keep(before)), &absent, "{:?}", words);
        }
    }

    /// Every command of the table, with whatever arguments.
    #[test]
    fn no_other_command_is_blind(
        which in any::<prop::sample::Index>(),
        words in prop::collection::vec(prop::sample::select(WORDS), 0..6),
    ) {
        let command = which.get(all());
        let words: Vec<&str> = [command.name].into_iter().chain(words).collect();
        let blind = planned(&Client::new(), &words).and_then(|chunk| is_blind(&chunk));
        prop_assert!(blind != Some(true) || BLIND.contains(&command.name));
    }
}

#[test]
fn options_that_look_at_the_record_are_not_blind() {
    let client = Client::new();
    let blind = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        is_blind(&planned(&client, &words).unwrap())
    };
    for line in [
        "set k v",
        "set k v EX 10",
        "set k v PX 10",
        "set k v EXAT 1",
        "set k v PXAT 9223372036854775807",
        "setex k 10 v",
        "psetex k 10 v",
        "mset k v l v k w",
    ] {
        assert_eq!(blind(line), Some(true), "{line}");
    }
    for line in [
        "set k v EX 10 NX",
        // Times that the transaction may find out of bounds by its own time: then the record stays.
        "set k v PX 9223372036854775807",
        "psetex k 9223372036854775807 v",
        "getdel k",
        "getex k",
        "unlink k",
        "rename k l",
        "copy k l REPLACE",
        "expire k 1",
        "persist k",
    ]
    .into_iter()
    .chain(LOOKING)
    {
        assert_eq!(blind(line), Some(false), "{line}");
    }
    assert_eq!(blind("get k"), None);
}

/// Content that no command of these leaves: what looks at it gives itself away.
#[test]
fn commands_that_look_at_their_record_are_told_by_their_outcome() {
    let hash = {
        let mut hash = HashValue::default();
        hash.set(b"poison", b"poison");
        Cell { value: Some(Value::Hash(hash.into())), expires_at: Millis(NOW.0 + 5).into() }
    };
    let text = Cell { value: Some(Value::String(b"17".to_vec())), expires_at: Millis(NOW.0 + 5).into() };
    let client = Client::new();
    let depends = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let chunk = planned(&client, &words).unwrap();
        let absent = outcome(&chunk, &[Cell::ABSENT, Cell::ABSENT]);
        [&hash, &text].into_iter().any(|cell| outcome(&chunk, &[cell.clone(), Cell::ABSENT]) != absent)
    };
    for line in ["set k v", "set k v PX 9", "setex k 10 v", "psetex k 10 v", "mset k v k w"] {
        assert!(!depends(line), "{line}");
    }
    for line in LOOKING {
        assert!(depends(line), "{line}");
    }
}
