//! The commands and subcommands that Redis 7.0 does not have.

use super::Reference;
use super::Shown::{self, Array, Bulk, Map, Set, Status};

const fn own(
    name: &'static str,
    arity: i16,
    flags: &'static [&'static str],
    categories: &'static [&'static str],
    docs: &'static [(&'static str, Shown)],
) -> Reference {
    Reference {
        name,
        arity,
        flags,
        keys: (0, 0, 0),
        categories,
        tips: &[],
        key_specs: &[],
        docs,
        subcommands: &[],
    }
}

const TRANSACTION: &[&str] = &["@fast", "@transaction"];
const CONNECTION: &[&str] = &["@slow", "@connection"];
const IN_CLIENT: &[&str] = &["noscript", "loading", "stale"];

/// In order of name.
#[rustfmt::skip]
pub(super) static COMMANDS: &[Reference] = &[
    own("txn.abort", 1, &["noscript", "fast", "no_multi"], TRANSACTION, &[("summary", Bulk("Abandon the interactive transaction")), ("since", Bulk("7.0.0")), ("group", Bulk("transactions")), ("complexity", Bulk("O(1)"))]),
    own("txn.begin", -1, &["noscript", "fast", "no_multi"], TRANSACTION, &[("summary", Bulk("Start an interactive transaction")), ("since", Bulk("7.0.0")), ("group", Bulk("transactions")), ("complexity", Bulk("O(1)")), ("arguments", Array(&[Map(&[("name", Bulk("readonly")), ("type", Bulk("pure-token")), ("token", Bulk("READONLY")), ("flags", Set(&[Status("optional")]))])]))]),
    own("txn.commit", 1, &["noscript", "fast", "no_multi"], TRANSACTION, &[("summary", Bulk("Commit the interactive transaction")), ("since", Bulk("7.0.0")), ("group", Bulk("transactions")), ("complexity", Bulk("O(N) where N is the number of records that the transaction has read or written"))]),
];

/// The subcommands, each with its container's name.
#[rustfmt::skip]
pub(super) static SUBCOMMANDS: &[(&str, Reference)] = &[
    ("client", own("epoch", -2, IN_CLIENT, CONNECTION, &[("summary", Bulk("Tell what the connection has seen, or have it see what another one has")), ("since", Bulk("7.0.0")), ("group", Bulk("connection")), ("complexity", Bulk("O(1)")), ("arguments", Array(&[Map(&[("name", Bulk("epoch")), ("type", Bulk("string")), ("flags", Set(&[Status("optional")]))])]))])),
    ("client", own("no-touch", 3, IN_CLIENT, CONNECTION, &[("summary", Bulk("Set no-touch mode for the current connection, which changes nothing")), ("since", Bulk("7.2.0")), ("group", Bulk("connection")), ("complexity", Bulk("O(1)")), ("arguments", Array(&[Map(&[("name", Bulk("enabled")), ("type", Bulk("oneof")), ("arguments", Array(&[Map(&[("name", Bulk("on")), ("type", Bulk("pure-token")), ("token", Bulk("ON"))]), Map(&[("name", Bulk("off")), ("type", Bulk("pure-token")), ("token", Bulk("OFF"))])]))])]))])),
    ("client", own("request", 3, IN_CLIENT, CONNECTION, &[("summary", Bulk("Number the next transaction in its session, so that it can be retried")), ("since", Bulk("7.0.0")), ("group", Bulk("connection")), ("complexity", Bulk("O(1)")), ("arguments", Array(&[Map(&[("name", Bulk("number")), ("type", Bulk("integer"))])]))])),
    ("client", own("session", 3, IN_CLIENT, CONNECTION, &[("summary", Bulk("Name the durable session that request numbers belong to")), ("since", Bulk("7.0.0")), ("group", Bulk("connection")), ("complexity", Bulk("O(1)")), ("arguments", Array(&[Map(&[("name", Bulk("session")), ("type", Bulk("integer"))])]))])),
    ("client", own("setinfo", 4, IN_CLIENT, CONNECTION, &[("summary", Bulk("Set client or connection specific info")), ("since", Bulk("7.2.0")), ("group", Bulk("connection")), ("complexity", Bulk("O(1)")), ("arguments", Array(&[Map(&[("name", Bulk("attr")), ("type", Bulk("oneof")), ("arguments", Array(&[Map(&[("name", Bulk("libname")), ("type", Bulk("string")), ("token", Bulk("LIB-NAME"))]), Map(&[("name", Bulk("libver")), ("type", Bulk("string")), ("token", Bulk("LIB-VER"))])]))])]))])),
];
