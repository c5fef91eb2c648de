//! What connections hold together is bounded in bytes, and what needs memory is refused while that is short.

use std::cell::Cell;
use std::sync::Arc;

use ordain_model::Micros;
use ordain_resp::Fate;
use ordain_resp::memory::{EXPECTED_MAX, Memory, Report};

use ordain_conformance::reference::{START, Server};

const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.\n";
const EXEC_OOM: &str =
    "-EXECABORT Transaction discarded because of: OOM command not allowed when used memory > 'maxmemory'.\n";

thread_local! {
    /// What the process of this test has allocated.
    static USED: Cell<u64> = const { Cell::new(0) };
}

fn used(bytes: u64) {
    USED.set(bytes);
}

fn server(clients: usize, limit: u64) -> Server {
    let mut server = Server::new(clients);
    server.shared.memory = Arc::new(Memory::new(|| USED.get(), (0, 1), 1));
    server.shared.memory.set_limit(limit);
    server
}

#[test]
fn what_needs_memory_is_refused_while_that_is_short_and_all_else_goes_on() {
    let mut server = server(1, 0);
    for words in
        [&["MSET", "a", "1", "b", "2", "c", "3"][..], &["HSET", "h", "f", "v"], &["SET", "till", "9"]]
    {
        server.ask(0, words);
    }
    assert_eq!(server.ask(0, &["CONFIG", "SET", "maxmemory", "1mb"]), "+OK\n");
    assert_eq!(server.ask(0, &["CONFIG", "GET", "maxmemory"]), "*2\n$9\nmaxmemory\n$7\n1048576\n");
    assert_eq!(server.settings().last(), Some(&("maxmemory", "1mb".to_owned())));
    used((1 << 20) + 1);
    let before = server.transactions;
    for words in [
        &["SET", "a", "x"][..],
        &["MSET", "a", "x", "n", "x"],
        &["SETRANGE", "n", "16000000", "x"],
        &["APPEND", "a", "x"],
        &["INCR", "a"],
        &["HSET", "h", "g", "x"],
        &["COPY", "a", "n"],
        &["GETSET", "a", "x"],
        &["SCRIPT", "LOAD", "return 1"],
        &["FUNCTION", "LOAD", "#!lua name=l\nredis.register_function('f', function() end)"],
        &["FCALL", "till.take", "1", "till", "1"],
    ] {
        assert_eq!(server.ask(0, words), OOM, "{words:?}");
    }
    assert_eq!(server.transactions, before, "nothing was submitted");
    assert_eq!(server.ask(0, &["MGET", "a", "b", "till", "n"]), "*4\n$1\n1\n$1\n2\n$1\n9\n$-1\n");
    assert_eq!(server.ask(0, &["EXPIRE", "a", "100"]), ":1\n");
    assert_eq!(server.ask(0, &["GETDEL", "b"]), "$1\n2\n");
    assert_eq!(server.ask(0, &["HDEL", "h", "f"]), ":1\n");
    assert_eq!(server.ask(0, &["RENAME", "a", "d"]), "+OK\n");
    assert_eq!(server.ask(0, &["DEL", "d"]), ":1\n");
    assert!(server.ask(0, &["INFO", "memory"]).contains("maxmemory:1048576\n"));
    assert_eq!(server.ask(0, &["FLUSHALL"]), "+OK\n");
    used(1 << 20);
    assert_eq!(server.ask(0, &["SET", "a", "x"]), "+OK\n");
    used(1 << 30);
    assert_eq!(server.ask(0, &["CONFIG", "SET", "maxmemory", "0"]), "+OK\n");
    assert_eq!(server.ask(0, &["SET", "a", "x"]), "+OK\n");
}

#[test]
fn a_block_is_refused_as_redis_refuses_it() {
    let mut server = server(1, 100);
    let queue = |server: &mut Server, words: &[&[&str]]| {
        server.ask(0, &["MULTI"]);
        words.iter().for_each(|words| assert_eq!(server.ask(0, words), "+QUEUED\n"));
    };
    // Memory becomes short after it was queued: EXEC is refused if anything in the block needs some.
    queue(&mut server, &[&["GET", "k"], &["SET", "k", "v"]]);
    used(101);
    assert_eq!(server.ask(0, &["EXEC"]), EXEC_OOM);
    assert_eq!(server.ask(0, &["EXEC"]), "-ERR EXEC without MULTI\n");
    used(0);
    queue(&mut server, &[&["GET", "k"], &["DEL", "k"]]);
    used(101);
    assert_eq!(server.ask(0, &["EXEC"]), "*2\n$-1\n:0\n");
    // What is queued takes memory too, so nothing is.
    server.ask(0, &["MULTI"]);
    assert_eq!(server.ask(0, &["GET", "k"]), OOM);
    assert_eq!(server.ask(0, &["EXEC"]), "-EXECABORT Transaction discarded because of previous errors.\n");
    server.ask(0, &["MULTI"]);
    assert_eq!(server.ask(0, &["DISCARD"]), "+OK\n");
    // What is begun is refused at its end.
    used(0);
    server.ask(0, &["TXN.BEGIN"]);
    assert_eq!(server.ask(0, &["SET", "k", "v"]), "+OK\n");
    used(101);
    assert_eq!(server.ask(0, &["SET", "k", "w"]), OOM);
    assert_eq!(server.ask(0, &["TXN.COMMIT"]), OOM);
    assert_eq!(server.ask(0, &["GET", "k"]), "$-1\n");
    used(0);
}

#[test]
fn a_script_may_read_and_delete_while_memory_is_short() {
    let mut server = server(1, 100);
    server.ask(0, &["MSET", "a", "1", "b", "2"]);
    let load =
        "#!lua name=l\nredis.register_function('put', function(k) return redis.call('SET', k[1], 'x') end)";
    server.ask(0, &["FUNCTION", "LOAD", load]);
    let sha = server.ask(0, &["SCRIPT", "LOAD", "return redis.call('SET', KEYS[1], 'x')"]);
    let sha = sha.lines().nth(1).unwrap().to_owned();
    used(101);
    let script = "return {redis.call('GET', KEYS[1]), redis.call('DEL', KEYS[2])}";
    assert_eq!(server.ask(0, &["EVAL", script, "2", "a", "b"]), "*2\n$1\n1\n:1\n");
    let caught = "local r = redis.pcall('SET', KEYS[1], 'x') return r.err";
    let caught = server.ask(0, &["EVAL", caught, "1", "a"]);
    assert!(caught.contains("OOM command not allowed when used memory > 'maxmemory'."), "{caught}");
    // An error that is not caught rolls all back.
    let failing = "redis.call('DEL', KEYS[1]) redis.call('SET', KEYS[1], 'x')";
    for words in [&["EVAL", failing, "1", "a"][..], &["EVALSHA", &sha, "1", "a"], &["FCALL", "put", "1", "a"]]
    {
        let refused = server.ask(0, words);
        assert!(refused.starts_with("-OOM command not allowed"), "{words:?}: {refused}");
    }
    server.ask(0, &["GET", "a"]);
    used(0);
    assert_eq!(server.ask(0, &["GET", "a"]), "$1\n1\n");
    assert_eq!(server.ask(0, &["FCALL", "put", "1", "a"]), "+OK\n");
    // In a block, too.
    server.ask(0, &["MULTI"]);
    server.ask(0, &["EVAL", failing, "1", "a"]);
    used(101);
    let refused = server.ask(0, &["EXEC"]);
    assert!(refused.starts_with("*1\n-OOM command not allowed"), "{refused}");
    used(0);
}

#[test]
fn a_refused_request_uses_up_its_number() {
    let mut server = server(1, 100);
    server.ask(0, &["CLIENT", "SESSION", "7"]);
    server.ask(0, &["CLIENT", "REQUEST", "1"]);
    used(101);
    assert_eq!(server.ask(0, &["SET", "a", "1"]), OOM);
    used(0);
    // This is a request without a number; with the number 1 the one after it would be its retry.
    assert_eq!(server.ask(0, &["INCR", "n"]), ":1\n");
    server.ask(0, &["CLIENT", "REQUEST", "1"]);
    assert_eq!(server.ask(0, &["SET", "a", "2"]), "+OK\n");
    assert_eq!(server.ask(0, &["GET", "a"]), "$1\n2\n");
}

#[test]
fn writes_of_a_pipeline_wait_for_each_other_near_the_limit() {
    let mut server = server(2, 40 << 20);
    used(1 << 20);
    let setrange = |n: usize| {
        let key = format!("k{n}");
        format!("*4\r\n$8\r\nSETRANGE\r\n${}\r\n{key}\r\n$8\r\n16000000\r\n$1\r\nx\r\n", key.len())
    };
    for client in 0..2 {
        let pipeline: String = (0..5).map(|n| setrange(5 * client + n)).collect();
        server.send(client, pipeline.as_bytes());
    }
    // Two of 16 MB each are all that may be made of 39 MiB.
    assert_eq!(server.gateway.outstanding(), 2);
    // Whoever needs nothing does not wait.
    server.connect();
    server.send(2, b"GET k0\r\n");
    assert_eq!(server.gateway.outstanding(), 3);
    used(41 << 20);
    server.settle();
    let answers = server.take(0) + &server.take(1);
    assert_eq!((answers.matches(":16000001").count(), answers.matches(OOM).count()), (2, 8), "{answers}");
    used(0);
}

#[test]
fn blocks_of_large_values_wait_for_each_other() {
    let mut server = server(20, 0);
    server.ask(0, &["SET", "k", &"v".repeat(1000)]);
    for client in 0..20 {
        let block = format!("MULTI\r\n{}EXEC\r\n", "GET k\r\n".repeat(15));
        server.send(client, block.as_bytes());
    }
    // Each may be 15 values of which nobody knows how long they are.
    assert_eq!(server.gateway.outstanding() as u64, EXPECTED_MAX / (15 * (4 << 20)));
    assert!(server.clients[19].session.is_waiting());
    server.settle();
    for client in 0..20 {
        assert_eq!(server.take(client).matches("$1000").count(), 15, "{client}");
        assert_eq!(server.clients[client].session.held(), 0);
    }
    assert_eq!(server.shared.memory.held(), 0);
}

#[test]
fn a_client_that_leaves_while_its_command_waits_is_answered_before_it_is_closed() {
    let mut server = server(1, 0);
    server.send(0, b"GET k\r\nGET k\r\nGET k\r\nGET k\r\n");
    assert_eq!(server.gateway.outstanding(), 2);
    assert!(server.clients[0].session.is_waiting());
    server.clients[0].session.drain();
    assert_eq!(server.clients[0].session.fate(), Fate::Draining);
    server.settle();
    assert_eq!(server.take(0).matches("$-1").count(), 3, "what was taken is answered");
}

#[test]
fn what_connections_hold_is_counted_until_they_are_closed() {
    let mut server = server(2, 0);
    server.shared.memory.set_clients_max(1 << 20);
    server.send(0, format!("MULTI\r\nSET k {}\r\n", "v".repeat(60_000)).as_bytes());
    assert!((48 << 10..64 << 10).contains(&server.shared.memory.held()), "{}", server.shared.memory.held());
    server.clients[1].session.keep_input(1 << 20, &server.shared);
    assert!(server.shared.memory.is_crowded());
    server.clients[1].session.close(&server.shared);
    assert!(!server.shared.memory.is_crowded());
    server.ask(0, &["DISCARD"]);
    assert_eq!(server.shared.memory.held(), 0);
}

#[test]
fn another_node_that_is_over_its_limit_makes_its_partition_short() {
    let mut server = server(1, 0);
    server.shared.memory = Arc::new(Memory::new(|| 0, (0, 1), 2));
    let report = Report { is_over: true, room: 0 };
    server.shared.memory.report((1, 0), report, START);
    assert_eq!(server.ask(0, &["SET", "a", "1"]), OOM);
    // A block is refused for what is in it, not because this node were short.
    server.ask(0, &["MULTI"]);
    assert_eq!(server.ask(0, &["GET", "a"]), "+QUEUED\n");
    assert_eq!(server.ask(0, &["SET", "a", "1"]), OOM);
    server.ask(0, &["DISCARD"]);
    server.shared.memory.pass(START.plus(Micros(10_000_000)));
    assert_eq!(server.ask(0, &["SET", "a", "1"]), "+OK\n");
}
