//! SCAN's promise; the number of shards shows in no answer.

#![allow(clippy::unwrap_used, reason = "a test fails where it unwraps")]

mod harness;

use std::collections::BTreeSet;
use std::ops::Range;

use harness::Client;
use ordain_commands::ids;
use ordain_model::key::{SLOTS, shard_of_slot};
use ordain_model::procedure::{Inputs, Locals};
use ordain_model::{
    Args, Cell, Datum, Db, Digest, FragmentContext, Millis, Position, ReplyContext, Table, Target, Value,
    Version, Writer, args,
};
use proptest::prelude::*;

/// The records of some slots, in canonical order.
struct Shard(Vec<(Position, Vec<u8>, Cell)>);

impl Table for Shard {
    fn len(&self, _db: Db) -> u64 {
        self.0.len() as u64
    }

    fn scan(&self, _db: Db, from: Position, visit: &mut dyn FnMut(Position, &[u8], &Cell) -> bool) {
        let from = self.0.partition_point(|(position, ..)| *position < from);
        let _ = self.0[from..].iter().all(|(position, key, cell)| visit(*position, key, cell));
    }

    fn clear(&mut self, _db: Option<Db>) {
        self.0.clear();
    }

    fn swap(&mut self, _a: Db, _b: Db) {}

    fn expire(&mut self, _now: Millis, _positions: Range<Position>) -> u64 {
        0
    }

    fn digest(&mut self) -> Digest {
        Digest::default()
    }
}

/// The reply to a command over the whole table, of records divided among `shards`.
fn answer(
    client: &Client,
    records: &[(Position, Vec<u8>, Cell)],
    shards: usize,
    id: ordain_model::ProcedureId,
    seed: u64,
    words: &[&str],
) -> String {
    let encoded = args::encode(words);
    let args = Args::parse(&encoded).unwrap();
    let procedure = client.registry.get(id).unwrap();
    let mut slot = Vec::new();
    Writer(&mut slot).array(shards);
    for shard in 0..shards {
        let own = records.iter().filter(|(p, ..)| shard_of_slot(p.slot(), shards) == shard);
        let mut table = Shard(own.cloned().collect());
        let mut cx = FragmentContext {
            args,
            db: Db(0),
            key: args::Arg { bytes: &[], at: 0 },
            now: client.now,
            seed,
            version: Version::NONE,
            inputs: Inputs::none(),
            target: Target::Table(&mut table),
            children: None,
            locals: &mut Locals::default(),
            registry: &client.registry,
            share: client.registry.limits().carried,
            most: client.registry.limits().reply,
            out: &mut slot,
        };
        procedure.run(0, &mut cx).unwrap();
    }
    let cx = ReplyContext {
        txn_args: args,
        call_at: 0,
        db: Db(0),
        slots: &vec![slot],
        first: 0,
        count: 1,
        calls: &[],
        registry: &client.registry,
    };
    let mut reply = Vec::new();
    procedure.reply(&cx, &mut reply);
    harness::render(&reply)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_number_of_shards_does_not_show(
        // Positions drawn from few, so that some are equal; a few records have expired.
        records in prop::collection::btree_map((0u64..40, 0u32..2000), 0u8..5, 0..60),
        count in 1usize..12,
        seed: u64,
        filter: bool,
    ) {
        let client = Client::new();
        let records: Vec<_> = records
            .into_iter()
            .map(|((place, name), age)| {
                let position = Position::of_slot(place as usize * (SLOTS / 40)).0 + place % 3;
                let cell = Cell {
                    value: Some(Value::String(b"v".to_vec())),
                    expires_at: if age == 0 { Millis(1) } else { Millis(0) }.into(),
                };
                (Position(position), format!("k{name:04}").into_bytes(), cell)
            })
            .collect();
        let count = count.to_string();
        let pattern = if filter { "k*[02468]" } else { "*" };
        let mut cursors = vec![0u64];
        cursors.extend(records.iter().map(|(p, ..)| p.0));
        for shards in [2, 3, 8] {
            let same = |id, words: &[&str]| {
                let one = answer(&client, &records, 1, id, seed, words);
                prop_assert_eq!(answer(&client, &records, shards, id, seed, words), one);
                Ok(())
            };
            for cursor in &cursors {
                same(ids::SCAN, &[&cursor.to_string(), "COUNT", &count, "MATCH", pattern])?;
            }
            same(ids::KEYS, &[pattern])?;
            same(ids::RANDOMKEY, &[])?;
            same(ids::DBSIZE, &[])?;
        }
    }

    #[test]
    fn what_stays_is_returned(
        before in prop::collection::btree_set(0u32..500, 1..200),
        changes in prop::collection::vec((any::<bool>(), 0u32..1000), 0..200),
        count in 1usize..40,
    ) {
        let mut client = Client::new();
        for n in &before {
            client.run(&["SET".into(), n.to_string(), "v".into()]);
        }
        let mut stays = before;
        let (mut seen, mut cursor) = (BTreeSet::new(), 0u64);
        let mut changes = changes.chunks(7);
        loop {
            let (next, keys) = scan(&mut client, cursor, count);
            if next != 0 {
                prop_assert!(keys.len() >= count, "a step that is not the last looks at what it was asked to");
                prop_assert!(next > cursor);
            }
            seen.extend(keys);
            if next == 0 {
                break;
            }
            cursor = next;
            for (insert, n) in changes.next().unwrap_or_default() {
                if *insert {
                    client.run(&["SET".into(), n.to_string(), "v".into()]);
                } else {
                    client.run(&["DEL".into(), n.to_string()]);
                    stays.remove(n);
                }
            }
        }
        for n in stays {
            prop_assert!(seen.contains(&n.to_string().into_bytes()), "{} was missed", n);
        }
    }

    #[test]
    fn hscan_returns_what_stays(
        fields in 1u32..400,
        changes in prop::collection::vec((any::<bool>(), 0u32..800), 0..200),
        count in 1usize..40,
    ) {
        let mut client = Client::new();
        let mut words = vec!["HSET".to_string(), "h".into()];
        words.extend((0..fields).flat_map(|n| [n.to_string(), "v".into()]));
        client.run(&words);
        let mut stays: BTreeSet<u32> = (0..fields).collect();
        let (mut seen, mut cursor) = (String::new(), "0".to_string());
        let mut changes = changes.chunks(7);
        loop {
            let reply = client.run(&["HSCAN", "h", &cursor, "COUNT", &count.to_string()]);
            cursor = reply.split('"').nth(1).unwrap().to_string();
            seen += &reply[reply.find(" [").unwrap()..];
            if cursor == "0" {
                break;
            }
            for (insert, n) in changes.next().unwrap_or_default() {
                if *insert {
                    client.run(&["HSET".into(), "h".into(), n.to_string(), "v".into()]);
                } else {
                    client.run(&["HDEL".into(), "h".into(), n.to_string()]);
                    stays.remove(n);
                }
            }
        }
        for n in stays {
            prop_assert!(seen.contains(&format!("\"{n}\"")), "{} was missed", n);
        }
    }
}

/// Records with names of 60,000 bytes each.
fn long_names(count: usize) -> Vec<(Position, Vec<u8>, Cell)> {
    let cell = Cell { value: Some(Value::String(b"v".to_vec())), expires_at: Millis(0).into() };
    let record = |n: usize| {
        let name = format!("{n:03}{}", "a".repeat(59_997));
        (Position::of_slot(n * (SLOTS / count)), name.into_bytes(), cell.clone())
    };
    (0..count).map(record).collect()
}

#[test]
fn one_scan_looks_at_so_many_bytes_of_names_whatever_its_count() {
    let (client, records) = (Client::new(), long_names(40));
    for filter in ["*", "*x*"] {
        let ask = |shards| {
            answer(&client, &records, shards, ids::SCAN, 1, &["0", "COUNT", "1000000", "MATCH", filter])
        };
        let one = ask(1);
        // 18 names make a MiB.
        assert!(one.contains(&records[18].0.0.to_string()), "{}", &one[..60]);
        assert_eq!(one.matches("aaaa\"").count(), if filter == "*" { 18 } else { 0 });
        for shards in [2, 3, 8] {
            assert!(ask(shards) == one, "{shards} shards");
        }
    }
}

#[test]
fn keys_is_refused_where_pattern_times_names_is_too_much() {
    let (client, records) = (Client::new(), long_names(40));
    let complex = format!("*{}b*", "?".repeat(4_095));
    for shards in [1, 2, 8] {
        let ask = |pattern: &str| answer(&client, &records, shards, ids::KEYS, 1, &[pattern]);
        let refused = ask(&complex);
        assert!(refused.contains("KEYS would look at more"), "{shards} shards: {}", &refused[..60]);
        assert_eq!(ask("0*aa").matches("aaaa\"").count(), 40, "{shards} shards");
        assert_eq!(ask(&format!("*{}b", "a*".repeat(32_000))), "[]", "{shards} shards");
    }
}

#[test]
fn a_count_has_a_bound() {
    let mut client = Client::new();
    for n in 0..10_010 {
        client.run(&["SET".to_string(), n.to_string(), "v".into()]);
    }
    let (next, keys) = scan(&mut client, 0, 1 << 40);
    assert!(next != 0 && keys.len() == 10_000, "{next} {}", keys.len());
    let (next, keys) = scan(&mut client, next, 1 << 40);
    assert_eq!((next, keys.len()), (0, 10));
}

fn scan(client: &mut Client, cursor: u64, count: usize) -> (u64, Vec<Vec<u8>>) {
    let reply = client.reply(&["SCAN", &cursor.to_string(), "COUNT", &count.to_string()]).unwrap();
    let (_, rest) = Datum::split(&reply).unwrap();
    let (next, rest) = Datum::split(rest).unwrap();
    let (_, mut rest) = Datum::split(rest).unwrap();
    let mut keys = Vec::new();
    while let Some((Datum::Bulk(key), tail)) = Datum::split(rest) {
        keys.push(key.to_vec());
        rest = tail;
    }
    let next = std::str::from_utf8(next.as_bytes().unwrap()).unwrap().parse().unwrap();
    (next, keys)
}

#[test]
fn random_keys_and_fields_reach_every_one() {
    let mut client = Client::new();
    for n in 0..8 {
        client.run(&["SET".to_string(), format!("k{n}"), "v".into()]);
        client.run(&["HSET".to_string(), "small".into(), format!("f{n}"), "v".into()]);
    }
    client.run(&["SELECT", "1"]);
    for n in 0..200 {
        client.run(&["HSET".to_string(), "large".into(), format!("f{n}"), "v".into()]);
    }
    let mut seen = BTreeSet::new();
    for _ in 0..2000 {
        seen.insert(client.run(&["HRANDFIELD", "large"]));
        client.run(&["SELECT", "0"]);
        seen.insert(client.run(&["RANDOMKEY"]));
        seen.insert(client.run(&["HRANDFIELD", "small"]));
        client.run(&["SELECT", "1"]);
    }
    // Eight keys and the small hash; its eight fields are among the large one's.
    assert!(seen.len() > 9 + 150, "{}", seen.len());
    assert!((0..8).all(|n| seen.contains(&format!("\"k{n}\"")) && seen.contains(&format!("\"f{n}\""))));
}

#[test]
fn several_random_fields_are_distinct_unless_repeats_are_asked_for() {
    let mut client = Client::new();
    for n in 0..20 {
        client.run(&["HSET".to_string(), "h".into(), format!("f{n}"), n.to_string()]);
    }
    for _ in 0..50 {
        let reply = client.run(&["HRANDFIELD", "h", "7"]);
        let fields: BTreeSet<&str> = reply[1..reply.len() - 1].split(' ').collect();
        assert_eq!(fields.len(), 7);
        let repeated = client.run(&["HRANDFIELD", "h", "-50"]);
        assert_eq!(repeated.split(' ').count(), 50);
        let pairs = client.run(&["HRANDFIELD", "h", "3", "WITHVALUES"]);
        let pairs: Vec<&str> = pairs[2..pairs.len() - 2].split("] [").collect();
        assert_eq!(pairs.len(), 3);
        for pair in pairs {
            let (field, value) = pair.split_once(' ').unwrap();
            assert_eq!(field.replace('f', ""), value);
        }
    }
    assert_eq!(client.run(&["HRANDFIELD", "h", "-1048577"]), "-ERR value is out of range");
}
