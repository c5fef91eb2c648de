//! Random commands against a model that a reader can check at a glance: a map of strings and ordered maps.

#![allow(clippy::unwrap_used, reason = "a test fails where it unwraps")]

mod harness;

use std::collections::BTreeMap;

use harness::Client;
use ordain_model::{Db, Millis};
use proptest::prelude::*;

const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";
const NO_SUCH_KEY: &str = "-ERR no such key";
const NOT_INTEGER: &str = "-ERR value is not an integer or out of range";

#[derive(Clone, Debug)]
enum Held {
    Text(String),
    Fields(BTreeMap<String, String>),
}

/// What each key holds and when it ends, if ever.
#[derive(Default)]
struct Model {
    records: BTreeMap<String, (Held, Option<u64>)>,
    now: u64,
}

fn int(n: impl TryInto<i64>) -> String {
    format!(":{}", n.try_into().ok().unwrap())
}

fn bulk(text: Option<&str>) -> String {
    text.map_or("_".into(), |text| format!("\"{}\"", text.as_bytes().escape_ascii()))
}

impl Model {
    fn text(&self, key: &str) -> Result<Option<&str>, String> {
        match self.records.get(key) {
            Some((Held::Text(text), _)) => Ok(Some(text)),
            Some(_) => Err(WRONG_TYPE.into()),
            None => Ok(None),
        }
    }

    fn fields(&mut self, key: &str) -> Result<Option<&mut BTreeMap<String, String>>, String> {
        match self.records.get_mut(key) {
            Some((Held::Fields(fields), _)) => Ok(Some(fields)),
            Some(_) => Err(WRONG_TYPE.into()),
            None => Ok(None),
        }
    }

    fn set(&mut self, key: &str, text: String) {
        self.records.insert(key.into(), (Held::Text(text), None));
    }

    /// Replaces the text and keeps the end.
    fn change(&mut self, key: &str, text: String) {
        let end = self.records.get(key).and_then(|(_, end)| *end);
        self.records.insert(key.into(), (Held::Text(text), end));
    }

    fn run(&mut self, words: &[String]) -> Result<String, String> {
        let now = self.now;
        self.records.retain(|_, (_, end)| end.is_none_or(|end| end >= now));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[0] {
            "DEL" | "EXISTS" | "TYPE" | "RENAME" | "RENAMENX" | "COPY" | "PEXPIRE" | "PTTL" | "PERSIST" => {
                self.run_on_key(&words, now)
            }
            name if name.starts_with('H') => self.run_on_hash(&words),
            _ => self.run_on_string(&words, now),
        }
    }

    fn run_on_string(&mut self, words: &[&str], now: u64) -> Result<String, String> {
        Ok(match *words {
            ["SET", key, value] => {
                self.set(key, value.into());
                "+OK".into()
            }
            ["SET", key, value, "NX"] if !self.records.contains_key(key) => {
                self.set(key, value.into());
                "+OK".into()
            }
            ["SET", key, value, "XX"] if self.records.contains_key(key) => {
                self.set(key, value.into());
                "+OK".into()
            }
            ["SET", _, _, "NX" | "XX"] => "_".into(),
            ["SET", key, value, "KEEPTTL", "GET"] => {
                let old = bulk(self.text(key)?);
                self.change(key, value.into());
                old
            }
            ["GETSET", key, value] => {
                let old = bulk(self.text(key)?);
                self.set(key, value.into());
                old
            }
            ["SETNX", key, value] => {
                let free = !self.records.contains_key(key);
                if free {
                    self.set(key, value.into());
                }
                int(u8::from(free))
            }
            ["PSETEX", key, ms, value] => {
                let end = now + ms.parse::<u64>().unwrap();
                self.records.insert(key.into(), (Held::Text(value.into()), Some(end)));
                "+OK".into()
            }
            ["GET", key] => bulk(self.text(key)?),
            ["GETDEL", key] => {
                let old = bulk(self.text(key)?);
                self.records.remove(key);
                old
            }
            ["STRLEN", key] => int(self.text(key)?.map_or(0, str::len)),
            ["APPEND", key, tail] => {
                let new = self.text(key)?.unwrap_or("").to_string() + tail;
                let len = new.len();
                self.change(key, new);
                int(len)
            }
            ["SETRANGE", key, offset, patch] => {
                let offset: usize = offset.parse().unwrap();
                let mut new = self.text(key)?.unwrap_or("").to_string();
                while new.len() < offset + patch.len() {
                    new.push('\0');
                }
                new.replace_range(offset..offset + patch.len(), patch);
                let len = new.len();
                self.change(key, new);
                int(len)
            }
            ["GETRANGE", key, from, to] => {
                let text = self.text(key)?.unwrap_or("");
                let (len, from, to): (i64, i64, i64) =
                    (text.len() as i64, from.parse().unwrap(), to.parse().unwrap());
                let at = |n: i64| if n < 0 { (n + len).max(0) } else { n };
                let kept = text.chars().zip(0i64..).filter(|(_, i)| at(from) <= *i && *i <= at(to));
                let backwards = from < 0 && to < 0 && from > to;
                let kept: String = kept.filter(|_| !backwards).map(|(c, _)| c).collect();
                bulk(Some(&kept))
            }
            ["INCRBY", key, by] => {
                let old = self.text(key)?.unwrap_or("0");
                let old: i64 = old.parse().ok().filter(|n: &i64| n.to_string() == old).ok_or(NOT_INTEGER)?;
                let new = old + by.parse::<i64>().unwrap();
                self.change(key, new.to_string());
                int(new)
            }
            ["MSET", a, x, b, y] => {
                self.set(a, x.into());
                self.set(b, y.into());
                "+OK".into()
            }
            ["MSETNX", a, x, b, y] => {
                let free = !self.records.contains_key(a) && !self.records.contains_key(b);
                if free {
                    self.set(a, x.into());
                    self.set(b, y.into());
                }
                int(u8::from(free))
            }
            ["MGET", a, b] => {
                let get = |key| bulk(self.text(key).unwrap_or(None));
                format!("[{} {}]", get(a), get(b))
            }
            _ => panic!("no model of {words:?}"),
        })
    }

    fn run_on_key(&mut self, words: &[&str], now: u64) -> Result<String, String> {
        Ok(match *words {
            ["DEL", a, b] => int([a, b].iter().filter(|key| self.records.remove(**key).is_some()).count()),
            ["EXISTS", a, b] => int([a, b].iter().filter(|key| self.records.contains_key(**key)).count()),
            ["TYPE", key] => match self.records.get(key) {
                Some((Held::Text(_), _)) => "+string".into(),
                Some((Held::Fields(_), _)) => "+hash".into(),
                None => "+none".into(),
            },
            ["RENAME", from, to] => {
                let record = self.records.remove(from).ok_or(NO_SUCH_KEY)?;
                self.records.insert(to.into(), record);
                "+OK".into()
            }
            ["RENAMENX", from, to] => {
                let record = self.records.get(from).ok_or(NO_SUCH_KEY)?.clone();
                let free = !self.records.contains_key(to);
                if free {
                    self.records.remove(from);
                    self.records.insert(to.into(), record);
                }
                int(u8::from(free))
            }
            ["COPY", from, to, ..] if from == to => {
                return Err("-ERR source and destination objects are the same".into());
            }
            ["COPY", from, to, ref replace @ ..] => match self.records.get(from).cloned() {
                Some(record) if !replace.is_empty() || !self.records.contains_key(to) => {
                    self.records.insert(to.into(), record);
                    int(1)
                }
                _ => int(0),
            },
            ["PEXPIRE", key, ms] => {
                let end = now + ms.parse::<u64>().unwrap();
                let found = self.records.get_mut(key).map(|(_, old)| *old = Some(end));
                int(u8::from(found.is_some()))
            }
            ["PTTL", key] => match self.records.get(key) {
                Some((_, Some(end))) => int(end - now),
                Some((_, None)) => int(-1),
                None => int(-2),
            },
            ["PERSIST", key] => {
                let had = self.records.get_mut(key).and_then(|(_, end)| end.take());
                int(u8::from(had.is_some()))
            }
            _ => panic!("no model of {words:?}"),
        })
    }

    fn run_on_hash(&mut self, words: &[&str]) -> Result<String, String> {
        Ok(match *words {
            ["HSET", key, field, value] => {
                if self.fields(key)?.is_none() {
                    self.records.insert(key.into(), (Held::Fields(BTreeMap::new()), None));
                }
                let fields = self.fields(key)?.unwrap();
                int(u8::from(fields.insert(field.into(), value.into()).is_none()))
            }
            ["HDEL", key, a, b] => {
                let Some(fields) = self.fields(key)? else { return Ok(int(0)) };
                let n = [a, b].iter().filter(|field| fields.remove(**field).is_some()).count();
                if fields.is_empty() {
                    self.records.remove(key);
                }
                int(n)
            }
            ["HGET", key, field] => bulk(self.fields(key)?.and_then(|f| f.get(field)).map(String::as_str)),
            ["HLEN", key] => int(self.fields(key)?.map_or(0, |fields| fields.len())),
            ["HINCRBY", key, field, by] => {
                let old = self.fields(key)?.and_then(|f| f.get(field).cloned()).unwrap_or("0".into());
                let parsed = old.parse().ok().filter(|n: &i64| n.to_string() == old);
                let new = parsed.ok_or("-ERR hash value is not an integer")? + by.parse::<i64>().unwrap();
                if self.fields(key)?.is_none() {
                    self.records.insert(key.into(), (Held::Fields(BTreeMap::new()), None));
                }
                self.fields(key)?.unwrap().insert(field.into(), new.to_string());
                int(new)
            }
            _ => panic!("no model of {words:?}"),
        })
    }

    /// The state, as text.
    fn state(&self) -> BTreeMap<String, String> {
        let live = self.records.iter().filter(|(_, (_, end))| end.is_none_or(|end| end >= self.now));
        live.map(|(key, (held, end))| {
            let held = match held {
                Held::Text(text) => format!("{text:?}"),
                Held::Fields(fields) => format!("{fields:?}"),
            };
            (key.clone(), format!("{held} until {}", end.unwrap_or(0)))
        })
        .collect()
    }
}

fn state(client: &Client) -> BTreeMap<String, String> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let live = client.executor.records().filter(|(_, _, cell)| cell.is_live(client.now));
    live.map(|(db, key, cell)| {
        assert_eq!(db, Db(0));
        let held = match (cell.string(), cell.hash()) {
            (Some(bytes), _) => format!("{:?}", text(bytes)),
            (_, Some(hash)) => {
                assert!(!hash.is_empty());
                let fields: BTreeMap<_, _> = hash.iter().map(|(f, v)| (text(f), text(v))).collect();
                format!("{fields:?}")
            }
            _ => unreachable!("live records hold something"),
        };
        (text(key), format!("{held} until {}", cell.expires_at.time()))
    })
    .collect()
}

/// A command, with `$k` for a key, `$f` for a field, `$v` for a value, `$n` for a small number, `$i` for an
/// index that may count from the end, and `$t` for a time in milliseconds.
const TEMPLATES: &[&str] = &[
    "SET $k $v",
    "SET $k $v NX",
    "SET $k $v XX",
    "SET $k $v KEEPTTL GET",
    "GETSET $k $v",
    "SETNX $k $v",
    "PSETEX $k $t $v",
    "GET $k",
    "GETDEL $k",
    "STRLEN $k",
    "APPEND $k $v",
    "SETRANGE $k $n $v",
    "GETRANGE $k $i $i",
    "INCRBY $k $i",
    "INCRBY $k $i",
    "MSET $k $v $k $v",
    "MSETNX $k $v $k $v",
    "MGET $k $k",
    "DEL $k $k",
    "EXISTS $k $k",
    "TYPE $k",
    "RENAME $k $k",
    "RENAMENX $k $k",
    "COPY $k $k",
    "COPY $k $k REPLACE",
    "PEXPIRE $k $t",
    "PTTL $k",
    "PERSIST $k",
    "HSET $k $f $v",
    "HSET $k $f $v",
    "HSET $k $f $v",
    "HDEL $k $f $f",
    "HGET $k $f",
    "HLEN $k",
    "HINCRBY $k $f $i",
];

fn command() -> impl Strategy<Value = Vec<String>> {
    (0..TEMPLATES.len(), prop::collection::vec(any::<u16>(), 6)).prop_map(|(template, choices)| {
        let mut choices = choices.into_iter();
        let mut pick = |n: u16| choices.next().unwrap_or(0) % n;
        let word = |word: &str| match word {
            "$k" => format!("key{}", pick(4)),
            "$f" => format!("field{}", pick(3)),
            "$v" => ["7", "-12", "text", "x", "01"][usize::from(pick(5))].into(),
            "$n" => pick(8).to_string(),
            "$i" => (i32::from(pick(14)) - 7).to_string(),
            "$t" => (pick(40) + 1).to_string(),
            word => word.into(),
        };
        TEMPLATES[template].split(' ').map(word).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn replies_and_state_are_the_models(commands in prop::collection::vec((command(), 0u64..6), 1..120)) {
        let mut client = Client::new();
        let mut model = Model { now: client.now.0, ..Model::default() };
        for (command, pause) in commands {
            client.now = Millis(client.now.0 + pause);
            model.now = client.now.0;
            let expected = model.run(&command).unwrap_or_else(|error| error);
            prop_assert_eq!(client.run(&command), expected, "{:?}", command);
            prop_assert_eq!(state(&client), model.state(), "after {:?}", command);
        }
    }

    /// Inside MULTI every command answers what it answers alone, and leaves the same state: no fragment loses
    /// its arguments, its inputs or its place among the others.
    #[test]
    fn a_transaction_of_commands_is_the_commands(commands in prop::collection::vec(command(), 1..40)) {
        let (mut alone, mut together) = (Client::new(), Client::new());
        let (mut replies, mut calls) = (Vec::new(), Vec::new());
        for words in commands {
            // What is refused before it is sequenced has no place in a transaction.
            if let Ok(reply) = alone.reply(&words) {
                replies.push(harness::render(&reply));
                calls.push(words);
            }
        }
        prop_assert_eq!(together.multi(&calls), format!("[{}]", replies.join(" ")));
        prop_assert_eq!(together.executor.digest(), alone.executor.digest());
    }
}
