//! A node's limit of memory, and what its connections may hold together.

use std::fmt::Write as _;

use crate::cluster::Cluster;
use crate::support::{Client, Expect, Reply, Server, command, serve, until};

const MIB: u64 = 1 << 20;
const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// Asks for so many values of 16 MB, each by a few bytes, all at once; how many were made, and how many refused for want
/// of memory.
fn fill(client: &mut Client, keys: usize) -> (usize, usize) {
    let commands = (0..keys).flat_map(|n| command(&["SETRANGE", &format!("k{n}"), "16000000", "x"]));
    client.send(&commands.collect::<Vec<u8>>()).unwrap();
    let (mut made, mut refused) = (0, 0);
    for _ in 0..keys {
        match client.receive().unwrap() {
            Reply::Int(16_000_001) => made += 1,
            Reply::Error(text) if text == OOM.as_bytes() => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    (made, refused)
}

fn memory_of(client: &mut Client, field: &str) -> u64 {
    let info = client.run("INFO memory");
    let line = info.text().lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap().parse().unwrap()
}

#[test]
fn a_node_stays_below_its_limit_and_goes_on_when_there_is_room_again() {
    let server = Server::start(serve(["--ephemeral", "--threads", "2", "--maxmemory", "200mb"]));
    let (mut client, mut other) = (server.client(), server.client());
    let (made, refused) = fill(&mut client, 2000);
    assert!((10..=14).contains(&made), "{made} made, {refused} refused");
    let resident = server.resident();
    assert!(resident < 300 * MIB, "{} MiB", resident / MIB);
    assert_eq!(memory_of(&mut other, "maxmemory"), 200 * MIB);
    assert!(memory_of(&mut other, "used_memory") > 200 * MIB);
    assert_eq!(other.run("SET small v"), Reply::Error(OOM.into()));
    assert_eq!(other.run("STRLEN k0"), Reply::Int(16_000_001));
    assert_eq!(other.run("EXPIRE k0 1000"), Reply::Int(1));
    assert_eq!(other.run("DEL k0 k1 k2"), Reply::Int(3));
    until("what was deleted is free", || other.run("SET small v") == Reply::ok());
    assert_eq!(fill(&mut client, 100).1, 100 - 3);
    assert_eq!(other.run("FLUSHALL"), Reply::ok());
    until("what was flushed is free", || other.run("SET small v") == Reply::ok());
    // With twice as much there is room for twice as many.
    assert_eq!(other.run("CONFIG SET maxmemory 400mb"), Reply::ok());
    let (made, _) = fill(&mut client, 100);
    assert!((24..=27).contains(&made), "{made} made");
    assert!(server.resident() < 600 * MIB, "{} MiB", server.resident() / MIB);
    server.stop();
}

#[test]
fn on_a_cluster_the_partition_that_is_full_refuses_and_the_other_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--partitions", "2", "--replicas", "1", "--maxmemory", "200mb", "--threads", "1"];
    let cluster = Cluster::start(dir.path(), &args);
    let mut clients = [cluster.client(0), cluster.client(1)];
    // A key of each partition, as the node that holds it says: the other one hears of it.
    let full = "{full}";
    let keys = (0..60).flat_map(|n| command(&["SETRANGE", &format!("{full}{n}"), "16000000", "x"]));
    clients[0].send(&keys.collect::<Vec<u8>>()).unwrap();
    let answers: Vec<Reply> = (0..60).map(|_| clients[0].receive().unwrap()).collect();
    let made = answers.iter().filter(|answer| **answer == Reply::Int(16_000_001)).count();
    assert!((8..=30).contains(&made), "{made} made");
    let [first, second] = &mut clients;
    for client in [&mut *first, &mut *second] {
        until("both nodes know", || client.run("SET {full}small v") == Reply::Error(OOM.into()));
        assert_eq!(client.run("STRLEN {full}0"), Reply::Int(16_000_001));
    }
    // Of some keys the most belong to either partition, and those of one of them can be written.
    let written = (0..40).filter(|n| second.run(&format!("SET key{n} v")) == Reply::ok()).count();
    assert!((1..40).contains(&written), "{written} of 40 written");
    assert_eq!(first.run("FLUSHALL"), Reply::ok());
    for client in [first, second] {
        until("there is room again", || client.run("SET {full}small v") == Reply::ok());
    }
    cluster.stop();
}

/// Waits until the server answers another client; a server that is held up does not for long.
fn is_served(other: &mut Client) {
    assert_eq!(other.run("PING").text(), "PONG");
    assert_eq!(other.run("GET small").text(), "v");
}

#[test]
fn clients_that_ask_for_much_and_read_nothing() {
    let server = Server::start(serve(["--ephemeral", "--threads", "2"]));
    let mut other = server.client();
    assert_eq!(other.run("SET small v"), Reply::ok());
    assert_eq!(other.run("SETRANGE large 15999999 x"), Reply::Int(16_000_000));
    assert_eq!(other.run("CONFIG SET maxmemory-clients 256mb"), Reply::ok());
    let before = server.resident();
    let asked = command(&["GET", "large"]).repeat(100);
    let mut block = command(&["MULTI"]);
    block.extend(command(&["GET", "large"]).repeat(15));
    block.extend(command(&["EXEC"]));
    let mut deaf = Vec::new();
    for asked in std::iter::repeat_n(&asked, 30).chain(std::iter::repeat_n(&block, 6)) {
        let mut client = server.client();
        client.send(asked).unwrap();
        deaf.push(client);
        is_served(&mut other);
    }
    until("those that hold most are closed", || {
        is_served(&mut other);
        memory_of(&mut other, "mem_clients_normal") < 256 * MIB
            && server.process().stderr().contains("maxmemory-clients")
    });
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 1200 * MIB, "{} MiB", grown / MIB);
    drop(deaf);
    until("what they held is given back", || memory_of(&mut other, "mem_clients_normal") == 0);
    server.stop();
}

#[test]
fn half_sent_requests_are_bounded_together() {
    let server = Server::start(serve(["--ephemeral", "--threads", "2"]));
    let mut other = server.client();
    assert_eq!(other.run("SET small v"), Reply::ok());
    assert_eq!(other.run("CONFIG SET maxmemory-clients 64mb"), Reply::ok());
    let before = server.resident();
    let mut half = b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$16000000\r\n".to_vec();
    half.resize(15_000_000, b'x');
    let mut clients = Vec::new();
    for _ in 0..12 {
        let mut client = server.client();
        // It may be closed before all is sent.
        let _ = client.send(&half);
        clients.push(client);
        is_served(&mut other);
    }
    until("no more is held than may be", || memory_of(&mut other, "mem_clients_normal") <= 64 * MIB);
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 256 * MIB, "{} MiB", grown / MIB);
    assert!(server.process().stderr().contains("maxmemory-clients"));
    drop(clients);
    until("what they held is given back", || memory_of(&mut other, "mem_clients_normal") == 0);
    server.stop();
}

#[test]
fn a_pattern_of_many_stars_and_a_command_that_asks_for_one_value_often() {
    let server = Server::start(serve(["--ephemeral", "--threads", "1"]));
    let mut client = server.client();
    let name = "a".repeat(65_000);
    for n in 0..20 {
        assert_eq!(client.run(&format!("SET {n:03}{name} v")), Reply::ok());
    }
    let pattern = format!("*{}b", "a*".repeat(32_000));
    assert_eq!(client.run(&format!("KEYS {pattern}")), Reply::Array(Vec::new()));
    let mut cursor = String::from("0");
    loop {
        let Reply::Array(step) = client.run(&format!("SCAN {cursor} MATCH {pattern} COUNT 1000000")) else {
            panic!("no array");
        };
        cursor = step[0].text().to_owned();
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(client.call(&[&b"HSET"[..], b"h", b"f", &vec![b'x'; 16_000_000]]), Reply::Int(1));
    let before = server.resident();
    let mut often = String::from("HMGET h");
    (0..100_000).for_each(|_| write!(often, " f").unwrap());
    for ask in [&*often, "HRANDFIELD h -1000000 WITHVALUES"] {
        let reply = client.run(ask);
        assert!(reply.is_error("ERR the reply exceeds"), "{reply:?}");
    }
    let grown = server.resident().saturating_sub(before);
    // A reply is cut at 256 MiB, and a buffer that grows to that exists twice for a moment. The allocator gives what the first
    // request had back when it comes to it. Unbounded, these two were 12 GB.
    assert!(grown < 1024 * MIB, "{} MiB", grown / MIB);
    server.stop();
}
