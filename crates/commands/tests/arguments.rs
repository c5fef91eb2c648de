//! Whatever the arguments are, a procedure refuses them or answers with one value, and the log holds what was
//! planned. Arity is left unchecked here: it is the table's business, and no procedure may rely on it to be
//! safe.

#![allow(clippy::unwrap_used, reason = "a test fails where it unwraps")]

mod harness;

use harness::{Client, render};
use ordain_commands::{Action, Flags, all};
use ordain_model::{Call, Chunk, ChunkNo, GatewayId};
use proptest::prelude::*;

/// Words that mean something to some command, and some that mean nothing to any.
const WORDS: &[&str] = &[
    "k",
    "k",
    "k",
    "l",
    "f",
    "0",
    "1",
    "-1",
    "7",
    "15",
    "16",
    "9223372036854775807",
    "-9223372036854775808",
    "1.5",
    "inf",
    "nan",
    "1e400",
    "NX",
    "XX",
    "GT",
    "LT",
    "GET",
    "EX",
    "PX",
    "EXAT",
    "PXAT",
    "KEEPTTL",
    "PERSIST",
    "DB",
    "REPLACE",
    "MATCH",
    "COUNT",
    "TYPE",
    "hash",
    "WITHVALUES",
    "ENCODING",
    "FREQ",
    "HELP",
    "USAGE",
    "SAMPLES",
    "PURGE",
    "ASYNC",
    "*",
    "[k",
    "\\",
    "",
    "\u{e9}\0\r\n",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn no_arguments_are_too_strange(
        calls in prop::collection::vec((any::<u16>(), prop::collection::vec(0..WORDS.len(), 0..7)), 1..60),
    ) {
        let procedures: Vec<_> = all()
            .iter()
            .filter(|command| !command.flags.has(Flags::MOVABLEKEYS))
            .filter_map(|command| match command.action {
                Action::Procedure { id, encode } => Some((command.name, id, encode)),
                Action::Function { .. } | Action::Session(_) => None,
            })
            .collect();
        let mut client = Client::new();
        for (choice, words) in calls {
            let (name, id, encode) = procedures[usize::from(choice) % procedures.len()];
            let words: Vec<&[u8]> = words.into_iter().map(|word| WORDS[word].as_bytes()).collect();
            let mut chunk = Chunk::new(GatewayId(0), ChunkNo(1));
            let pushed = chunk.push(&client.registry, Call::new(id, client.db), |args| encode(&words, args));
            if let Err(refusal) = pushed {
                let code = refusal.to_string();
                prop_assert!(code.starts_with("ERR "), "{}: {}", name, code);
                prop_assert!(chunk.txns().is_empty() && chunk.bytes() == 0);
                continue;
            }
            client.check_log(&chunk);
            // Panics unless it is exactly one value.
            render(&client.run_chunk(&chunk).reply);
        }
    }
}
