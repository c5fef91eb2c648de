//! What a connection has sent without waiting for answers takes effect in the order in which it was sent, whichever partitions it
//! touches, through whichever node: on real processes. Every engine is held to it by the conformance suite.

use ordain_model::KeyHash;
use ordain_model::key::SLOTS;

use crate::cluster::Cluster;
use crate::support::{Client, Reply, command, until};

/// Sends commands in one piece, one a line, and answers their replies as text.
#[track_caller]
fn pipeline(client: &mut Client, lines: &[String]) -> Vec<String> {
    let words = |line: &String| line.split(' ').map(|word| word.replace('_', " ")).collect::<Vec<_>>();
    let bytes: Vec<u8> = lines.iter().flat_map(|line| command(&words(line))).collect();
    client.send(&bytes).unwrap();
    lines.iter().map(|_| shown(&client.receive().unwrap())).collect()
}

fn shown(reply: &Reply) -> String {
    format!("{reply:?}")
}

/// Whether a cluster has turned a request away, or cannot tell how it ended: on a machine that is busy, a node may be taken
/// for lost although nothing has become of it. Where a request stands that has no place, nothing can be said.
fn is_disturbed(replies: &[String]) -> bool {
    replies.iter().any(|reply| ["-BUSY", "-UNKNOWN"].iter().any(|word| reply.starts_with(word)))
}

/// A run that was disturbed is over, and nothing was found.
struct Disturbed;

type Sound = Result<(), Disturbed>;

/// The inputs of the case, and others of their kind, over keys of all partitions.
fn demand_order(client: &mut Client, what: &str, rounds: u32, session: &mut u64) -> Sound {
    for round in 0..rounds {
        *session += 1;
        let named = |text: &&str| text.replace('#', &round.to_string()).replace('@', &session.to_string());
        let mut demand = |lines: &[&str], expected: &[&str]| {
            let lines: Vec<String> = lines.iter().map(named).collect();
            let expected: Vec<String> = expected.iter().map(named).collect();
            let replies = pipeline(client, &lines);
            if is_disturbed(&replies) {
                return Err(Disturbed);
            }
            assert_eq!(replies, expected, "{what}: {lines:?}");
            Ok(())
        };
        demand(
            &["SET k# 1", "RENAME k# r#", "EXISTS k#", "EXISTS r#", "DEL r#"],
            &["+OK", "+OK", ":0", ":1", ":1"],
        )?;
        let script = "EVAL return_redis.call('GET',KEYS[1]) 1 k#";
        demand(&["SET k# v#", script, "DEL k#", script], &["+OK", "\"v#\"", ":1", "_"])?;
        demand(
            &["FLUSHALL", "SET k# v", "DBSIZE", "SET j# v", "DBSIZE"],
            &["+OK", "+OK", ":1", "+OK", ":2"],
        )?;
        demand(
            &["FLUSHALL", "SET k# v", "KEYS *", "DEL k#", "KEYS *"],
            &["+OK", "+OK", "[\"k#\"]", ":1", "[]"],
        )?;
        demand(
            &["INCR k0", "MGET k0 k1 k2 k3", "INCR k1", "MGET k0 k1 k2 k3", "INCR k2", "MGET k0 k1 k2 k3"],
            &[":1", "[\"1\" _ _ _]", ":1", "[\"1\" \"1\" _ _]", ":1", "[\"1\" \"1\" \"1\" _]"],
        )?;
        demand(
            &["SET a# 1", "MULTI", "INCR a#", "INCR b#", "EXEC", "MGET a# b#", "DEL a# b#", "GET b#"],
            &["+OK", "+OK", "+QUEUED", "+QUEUED", "[:2 :1]", "[\"2\" \"1\"]", ":2", "_"],
        )?;
        // A large source is compiled beside the loop.
        let large = format!("EVAL --{}@-#\nreturn_redis.call('INCR',KEYS[1]) 1 k#", "x".repeat(17_000));
        demand(
            &["SET k# 1", &large, "GET k#", "MULTI", &large, "GET k#", "EXEC", &large, "DEL k#"],
            &["+OK", ":2", "\"2\"", "+OK", "+QUEUED", "+QUEUED", "[:3 \"3\"]", ":4", ":1"],
        )?;
        // An interactive transaction sees what was sent before it, and what is sent after it sees what it has done.
        demand(
            &["SET a# 5", "TXN.BEGIN", "INCR a#", "SET b# x", "TXN.COMMIT", "MGET a# b#"],
            &["+OK", "+OK", ":6", "+OK", "+OK", "[\"6\" \"x\"]"],
        )?;
        demand(
            &["SET b# y", "TXN.BEGIN READONLY", "GET b#", "TXN.COMMIT", "SET b# z", "GET b#"],
            &["+OK", "+OK", "\"y\"", "+OK", "+OK", "\"z\""],
        )?;
        // Requests of a session have their home there, and are of the same order.
        demand(
            &[
                "CLIENT SESSION @",
                "SET a# 1",
                "CLIENT REQUEST 1",
                "INCR a#",
                "GET a#",
                "CLIENT REQUEST 2",
                "INCR a#",
                "MGET a# b#",
                "CLIENT SESSION 0",
                "INCR a#",
            ],
            &["+OK", "+OK", "+OK", ":2", "\"2\"", "+OK", ":3", "[\"3\" \"z\"]", "+OK", ":4"],
        )?;
        // WATCH looks at what was sent before it.
        demand(
            &["SET a# 1", "WATCH a# b#", "MULTI", "INCR a#", "EXEC", "GET a#"],
            &["+OK", "+OK", "+OK", "+QUEUED", "[:2]", "\"2\""],
        )?;
    }
    Ok(())
}

/// A slot moves in the middle of a pipeline that was planned before: what uses it is turned back, and what was sent behind that
/// does not overtake it.
fn demand_moves(client: &mut Client, what: &str, rounds: usize) -> Sound {
    let slot = KeyHash::of(b"moves").slot();
    for round in 0..rounds {
        let to = (slot * 2 / SLOTS + round + 1) % 2;
        let lines = [
            "SET moves 5",
            "SET stays 1",
            &format!("DEBUG MOVE-SLOTS {slot} {slot} {to}"),
            "MGET moves stays",
            "SET stays 2",
            "INCR moves",
            "SET stays 3",
            "MGET stays moves",
        ];
        let mut replies = pipeline(client, &lines.map(str::to_owned));
        if is_disturbed(&replies) {
            return Err(Disturbed);
        }
        replies.remove(2);
        let expected = ["+OK", "+OK", "[\"5\" \"1\"]", "+OK", ":6", "+OK", "[\"3\" \"6\"]"];
        assert_eq!(replies, expected, "{what}, round {round}: {lines:?}");
    }
    Ok(())
}

/// All of it, once without a disturbance.
fn demand_all(connect: impl Fn() -> Client, what: &str, (rounds, moves): (u32, usize), session: &mut u64) {
    until("a run is not disturbed", || {
        connect().insist("FLUSHALL");
        let mut client = connect();
        let sound = demand_order(&mut client, what, rounds, session);
        sound.and_then(|()| demand_moves(&mut client, what, moves)).is_ok()
    });
}

fn demand_of_cluster(flags: &[&str], rounds: u32) {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&dir.path().join("c"), flags);
    let mut session = 0;
    for node in 0..cluster.nodes().len() {
        demand_all(|| cluster.client(node), &format!("{flags:?}, node {node}"), (rounds, 4), &mut session);
    }
    cluster.stop();
}

#[test]
fn a_pipeline_is_executed_in_order_over_two_partitions() {
    for engine in ["paxflow", "qstore"] {
        let cheap = ["--durability", "os"];
        demand_of_cluster(
            &[&["--partitions", "2", "--replicas", "1", "--engine", engine], &cheap[..]].concat(),
            3,
        );
    }
}

#[test]
fn a_pipeline_is_executed_in_order_where_replicas_agree_or_follow() {
    for flags in [
        &["--partitions", "2", "--replicas", "3"][..],
        &["--partitions", "2", "--replicas", "2", "--replication", "async"],
    ] {
        demand_of_cluster(flags, 3);
    }
}
