//! What Redis 7.0 answered, command by command, is what we answer.
//!
//! A file of `golden/` is a session: a line with a command, then a line with its reply in RESP3. `>` is a
//! command whose reply was recorded from Redis by `golden/record.py`; `s>` the same, with the items of the
//! reply sorted where Redis promises no order; `!>` one that we answer differently on purpose, with the reason
//! in a comment.

#![allow(clippy::unwrap_used, reason = "a test fails where it unwraps")]

mod harness;

use harness::{Client, words};

fn replay(name: &str, session: &str) {
    let mut client = Client::new();
    let mut lines = session.lines().enumerate().filter(|(_, l)| !l.is_empty() && !l.starts_with('#'));
    let mut commands = 0;
    while let Some((n, line)) = lines.next() {
        let (mark, command) = line.split_once("> ").expect("a command line");
        let (_, expected) = lines.next().expect("a reply line");
        let mut reply = client.run(&words(command));
        if mark == "s" {
            let mut items: Vec<&str> = reply[1..reply.len() - 1].split(' ').collect();
            items.sort_unstable();
            reply = format!("[{}]", items.join(" "));
        }
        assert_eq!(reply, expected, "{name}, line {}: {command}", n + 1);
        commands += 1;
    }
    assert!(commands > 10, "{name} has hardly any commands");
}

macro_rules! sessions {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name), include_str!(concat!("golden/", stringify!($name), ".txt")));
        })*
    };
}

sessions! { encodings judged set strings counters keys expiry relocate databases hashes hash_counters scans introspection arity }
