//! What is there again after kill -9: all of it, to the digest, whatever the number of threads; and what WATCH and
//! expiry do over real connections and real time.

use crate::support::{Client, Expect, Reply, Server, serve, serve_dir, until};

fn digest(server: &Server) -> String {
    let text = server.client().run("DEBUG DIGEST").text().to_owned();
    assert!(text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit()), "{text}");
    text
}

#[test]
fn the_state_is_the_same_after_a_kill_on_any_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(serve_dir(dir.path(), ["--threads", "1"]));
    let empty = digest(&server);
    let mut client = server.client();
    for i in 0..200 {
        client.run(&format!("SET string:{i} {}", i * i));
        client.run(&format!("HSET hash:{} field:{i} {i} other {i}", i % 17));
        client.run(&format!("INCRBYFLOAT float:{} 0.1", i % 5));
        client.run(&format!("SELECT {}", i % 16));
    }
    client.run("SELECT 3");
    client.run("SWAPDB 3 4");
    client.run("PEXPIRE string:3 3600000");
    client.run("RENAME string:19 renamed");
    client.run("DEL string:35 hash:1");
    client.call(&["SET", "binary", "\0\r\n\u{ff}"]);
    client.call(&[
        "EVAL",
        "return redis.call('SET', KEYS[1], math.random() .. redis.call('TIME')[1])",
        "1",
        "random",
    ]);
    let random = client.run("GET random");
    let before = digest(&server);
    assert_ne!(before, empty);
    server.kill();

    for threads in ["2", "1", "3"] {
        let server = Server::start(serve_dir(dir.path(), ["--threads", threads]));
        assert_eq!(digest(&server), before, "{threads} threads");
        let mut client = server.client();
        client.run("SELECT 3");
        assert_eq!(client.run("GET random"), random);
        assert_eq!(client.run("GET binary").text(), "\0\r\n\u{ff}");
        server.kill();
    }

    let server = Server::start(serve_dir(dir.path(), [""; 0]));
    assert_eq!(server.client().run("FLUSHALL"), Reply::ok());
    assert_eq!(server.client().run("SCRIPT FLUSH"), Reply::ok());
    assert_eq!(digest(&server), empty, "the digest is of the state, not of its history");
    server.stop();
}

#[test]
fn scripts_and_functions_survive() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(serve_dir(dir.path(), ["--threads", "2"]));
    let mut client = server.client();
    let loaded = client.call(&["SCRIPT", "LOAD", "return redis.call('INCRBY', KEYS[1], ARGV[1])"]);
    let sha = loaded.text().to_owned();
    let library = "#!lua name=shop\nredis.register_function('sell', function(keys, args) \
                   return redis.call('DECRBY', keys[1], args[1]) end)";
    assert_eq!(client.call(&["FUNCTION", "LOAD", library]).text(), "shop");
    assert_eq!(client.run(&format!("EVALSHA {sha} 1 stock 10")), Reply::Int(10));
    assert_eq!(client.run("FCALL sell 1 stock 3"), Reply::Int(7));
    server.kill();

    let server = Server::start(serve_dir(dir.path(), ["--threads", "1"]));
    let mut client = server.client();
    assert_eq!(client.run(&format!("SCRIPT EXISTS {sha}")), Reply::Array(vec![Reply::Int(1)]));
    assert_eq!(client.run(&format!("EVALSHA {sha} 1 stock 10")), Reply::Int(17));
    assert_eq!(client.run("FCALL sell 1 stock 3"), Reply::Int(14));
    assert_eq!(client.run("FUNCTION DELETE shop"), Reply::ok());
    assert_eq!(client.run("SCRIPT FLUSH"), Reply::ok());
    server.kill();

    let server = Server::start(serve_dir(dir.path(), ["--threads", "2"]));
    let mut client = server.client();
    assert!(client.run(&format!("EVALSHA {sha} 1 stock 10")).error().starts_with("NOSCRIPT"));
    assert_eq!(client.run("FCALL sell 1 stock 3").error(), "ERR Function not found");
    assert_eq!(client.run("GET stock").text(), "14");
    server.stop();
}

#[test]
fn watched_keys_are_watched_across_flushes_and_expiry() {
    let server = Server::start(serve(["--ephemeral", "--threads", "2"]));
    let (mut watcher, mut other) = (server.client(), server.client());
    let exec = |client: &mut Client| {
        assert_eq!(client.run("MULTI"), Reply::ok());
        assert_eq!(client.run("SET seen 1").text(), "QUEUED");
        client.run("EXEC")
    };
    let done = Reply::Array(vec![Reply::ok()]);

    other.run("SET key value");
    watcher.run("WATCH key");
    assert_eq!(exec(&mut watcher), done);

    for (flush, again) in [("FLUSHALL", None), ("FLUSHDB", None), ("FLUSHALL", Some("SET key value"))] {
        other.run("SET key value");
        watcher.run("WATCH key");
        assert_eq!(other.run(flush), Reply::ok());
        again.map(|command| other.run(command));
        assert_eq!(exec(&mut watcher), Reply::Nil, "{flush} {again:?}");
        assert_eq!(other.run("EXISTS seen"), Reply::Int(0));
    }

    // There was nothing to flush.
    other.run("FLUSHALL");
    watcher.run("WATCH key");
    other.run("FLUSHALL");
    assert_eq!(exec(&mut watcher), done);

    other.run("SET key value PX 40");
    watcher.run("WATCH key");
    until("the key expires", || other.run("GET key") == Reply::Nil);
    assert_eq!(exec(&mut watcher), Reply::Nil);

    other.run("SET key value");
    watcher.run("WATCH key");
    other.run("SWAPDB 0 1");
    assert_eq!(exec(&mut watcher), Reply::Nil);
}

#[test]
fn expired_keys_are_removed_although_nobody_asks_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(serve_dir(dir.path(), ["--threads", "2"]));
    let mut client = server.client();
    for i in 0..300 {
        let life = if i % 3 == 0 { "EX 3600" } else { "PX 30" };
        client.run(&format!("SET key:{i} value {life}"));
    }
    // What metrics show takes no part in the sequence: the node does this by itself.
    let records = || {
        let (_, _, body) = server.http("/metrics");
        let lines = body.lines().filter(|line| line.starts_with("ordain_store_records{"));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum::<f64>()
    };
    until("the sweep", || records() == 100.0);
    assert_eq!(client.run("DBSIZE"), Reply::Int(100));
    let before = digest(&server);
    server.kill();
    let server = Server::start(serve_dir(dir.path(), ["--threads", "1"]));
    assert_eq!(server.client().run("DBSIZE"), Reply::Int(100));
    assert_eq!(digest(&server), before);
    server.stop();
}
