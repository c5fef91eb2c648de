//! The key space as a whole, over partitions and shards, while slots move: SCAN, KEYS, RANDOMKEY, DBSIZE, FLUSHALL, SWAPDB.

use std::collections::BTreeSet;

use crate::cluster::Shape;
use crate::conversation::{CONNECTIONS, Conversation};
use crate::reference::Server;
use crate::subject::Subject;

/// The number of keys.
const KEYS: usize = 150;

/// The answer to a command that is about the records of several regions, whichever they are.
const REFUSED: &str = "-ERR transaction aborted: it concerns the keys of all regions";

/// Asks for the key space as a whole where that is refused, alone and in blocks.
///
/// # Errors
/// A command that is answered, or that has an effect.
fn refusals(subject: &mut dyn Subject) -> Result<(), String> {
    let mut talk = Conversation::new(subject);
    talk.run(0, "MSET key:1 1 key:2 2")?;
    for number in 0..CONNECTIONS {
        for line in
            ["KEYS *", "SCAN 0", "RANDOMKEY", "DBSIZE", "FLUSHDB", "FLUSHALL", "SWAPDB 0 1", "DEBUG DIGEST"]
        {
            let reply = talk.run(number, line)?;
            if !reply.starts_with(REFUSED) {
                return Err(format!("{line} on {number}: {reply}"));
            }
            for words in ["MULTI", "SET key:1 lost", line] {
                talk.run(number, words)?;
            }
            let reply = talk.run(number, "EXEC")?;
            if !reply.starts_with(REFUSED) && !reply.starts_with("-EXECABORT") {
                return Err(format!("a block with {line} on {number}: {reply}"));
            }
            let left = talk.run(number, "MGET key:1 key:2")?;
            if left != "[\"1\" \"2\"]" {
                return Err(format!("after {line} on {number}: {left}"));
            }
        }
    }
    Ok(())
}

/// Fills a key space and looks at it whole and in parts, on every connection.
///
/// # Errors
/// A record that is not seen, is seen twice, or is not as the reference has it; a command on all records that is not refused between regions.
pub fn keyspace(shape: &Shape) -> Result<(), String> {
    let mut subject = shape.open();
    if !subject.traits().is_whole {
        return refusals(&mut *subject);
    }
    let mut reference = Server::placed(0, &subject.layout());
    let mut real = Conversation::new(&mut *subject);
    let mut model = Conversation::new(&mut reference);
    let mut fill: Vec<String> = vec!["MSET".to_owned()];
    fill.extend((0..KEYS).flat_map(|n| [format!("key:{n}"), n.to_string()]));
    let same = |real: &mut Conversation<'_>, model: &mut Conversation<'_>, number: usize, words: &[&str]| {
        let (found, expected) = (real.ask(number, words)?, model.ask(number, words)?);
        if found == expected {
            Ok(found)
        } else {
            Err(format!("{words:?}: {found}\n    expected {expected}"))
        }
    };
    let words: Vec<&str> = fill.iter().map(String::as_str).collect();
    same(&mut real, &mut model, 0, &words)?;
    let all: BTreeSet<String> = (0..KEYS).map(|n| format!("key:{n}")).collect();
    for number in 0..CONNECTIONS {
        // In a walk of the canonical order each key comes once, wherever it is by then.
        let mut seen = BTreeSet::new();
        let mut cursor = "0".to_owned();
        loop {
            let reply = same(&mut real, &mut model, number, &["SCAN", &cursor, "COUNT", "20"])?;
            let mut texts = reply.split('"').skip(1).step_by(2);
            cursor = texts.next().ok_or("a reply of SCAN has a cursor")?.to_owned();
            for key in texts {
                if !seen.insert(key.to_owned()) {
                    return Err(format!("SCAN shows {key} twice"));
                }
            }
            if cursor == "0" {
                break;
            }
            real.subject.move_slots()?;
        }
        if seen != all {
            return Err(format!("SCAN does not show {:?}", all.difference(&seen).collect::<Vec<_>>()));
        }
        for words in [&["KEYS", "*"][..], &["KEYS", "key:?"], &["DBSIZE"], &["SCAN", "0", "COUNT", "1000"]] {
            same(&mut real, &mut model, number, words)?;
        }
        let drawn = real.run(number, "RANDOMKEY")?;
        if !all.contains(drawn.trim_matches('"')) {
            return Err(format!("RANDOMKEY is {drawn}"));
        }
    }
    for (number, words) in [
        (0, &["SWAPDB", "0", "3"][..]),
        (1, &["DBSIZE"]),
        (1, &["RANDOMKEY"]),
        (2, &["SELECT", "3"]),
        (2, &["DBSIZE"]),
        (2, &["KEYS", "*1"]),
        (3, &["SET", "left", "1"]),
        (2, &["FLUSHDB"]),
        (2, &["DBSIZE"]),
        (1, &["KEYS", "*"]),
        (0, &["FLUSHALL"]),
        (3, &["DBSIZE"]),
        (1, &["SCAN", "0"]),
    ] {
        same(&mut real, &mut model, number, words)?;
        real.subject.move_slots()?;
    }
    Ok(())
}
