//! Commands about what this server has nothing of, or nothing of its own: modules, publish and subscribe, replicas
//! that lag behind. They answer as a Redis server does that has none, or refuse with the reason.

use ordain_model::Writer;

use super::Words;
use super::dispatch::{help_or_wrong_arity, wrong_words};
use crate::shared::{Context, NOT_INTEGER, parse_int};

/// MODULE LIST and MODULE HELP.
pub(super) fn module(words: &Words<'_>, out: &mut Vec<u8>) {
    let mut w = Writer(out);
    let sub = words[1].to_ascii_lowercase();
    match (&*sub, &words[2..]) {
        (b"list", []) => w.array(0),
        _ => help_or_wrong_arity(
            "module",
            words,
            &["LIST: the modules that are loaded. This server takes none."],
            &mut w,
        ),
    }
}

/// PUBSUB and its subcommands: there are no subscriptions.
pub(super) fn pubsub(words: &Words<'_>, out: &mut Vec<u8>) {
    let mut w = Writer(out);
    let sub = words[1].to_ascii_lowercase();
    match (&*sub, &words[2..]) {
        (b"channels" | b"shardchannels", [] | [_]) => w.array(0),
        (b"numpat", []) => w.int(0),
        (b"numsub" | b"shardnumsub", channels) => {
            w.array(2 * channels.len());
            for channel in channels {
                w.bulk(channel);
                w.int(0);
            }
        }
        (b"channels" | b"shardchannels", _) => {
            w.error(wrong_words("pubsub", &String::from_utf8_lossy(words[1])));
        }
        _ => help_or_wrong_arity(
            "pubsub",
            words,
            &["CHANNELS, NUMPAT, NUMSUB, SHARDCHANNELS, SHARDNUMSUB: accepted; there are no subscriptions."],
            &mut w,
        ),
    }
}

/// SUBSCRIBE and its kin. Refused, as a client that got OK would wait for messages that never come.
pub(super) fn subscribe(words: &Words<'_>, out: &mut Vec<u8>) {
    let name = String::from_utf8_lossy(words[0]).to_ascii_uppercase();
    Writer(out).error(format!(
        "ERR {name} is not supported: this server has no publish and subscribe (PUBLISH reaches nobody and answers 0)"
    ));
}

/// WAIT. What is answered is already held by as many members as it ever will be waited for, so it never waits; and its
/// answer leaves after those to the commands before it.
pub(super) fn wait(words: &Words<'_>, cx: &Context<'_>, out: &mut Vec<u8>) {
    let mut w = Writer(out);
    let (wanted, timeout) = (parse_int(words[1]), parse_int(words[2]));
    match (wanted, timeout) {
        (None, _) => w.error(NOT_INTEGER),
        (_, None) => w.error("ERR timeout is not an integer or out of range"),
        (_, Some(..0)) => w.error("ERR timeout is negative"),
        _ => w.int(i64::from(cx.shared.node.members_that_hold)),
    }
}

/// ROLE: every node takes reads and writes, as a master does.
pub(super) fn role(cx: &Context<'_>, out: &mut Vec<u8>) {
    let node = &cx.shared.node;
    let mut w = Writer(out);
    w.array(3);
    w.bulk(b"master");
    w.int(i64::try_from(node.epoch).unwrap_or(i64::MAX));
    w.array(node.members.len());
    for (host, port) in &node.members {
        w.array(3);
        w.bulk(host.as_bytes());
        w.bulk(port.to_string().as_bytes());
        w.bulk(node.epoch.to_string().as_bytes());
    }
}
