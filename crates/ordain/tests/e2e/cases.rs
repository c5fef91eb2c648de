//! Inputs that once ended a node, stopped it or were answered wrongly, and that need a whole node to be tried.

use crate::support::{Client, Expect, Reply, Server, command, serve, serve_dir, until};

/// Ranges of `unpack` for which the interpreter of Redis, as it was before it was mended, writes past its stack.
const RANGES: [&str; 4] = ["-1,2147483647", "0,2147483647", "-2147483648,0", "-2147483648,2147483647"];

/// Sends a range through every way into the interpreter. Each is an error, but where the script catches it.
fn unpack(client: &mut Client, range: &str) {
    let refused = |reply: &Reply, how: &str| {
        let text = format!("{reply:?}");
        assert!(text.contains("too many results to unpack"), "{how} {range}: {text}");
    };
    let plain = format!("return unpack({{}},{range})");
    let caught = format!("return {{pcall(unpack,{{}},{range})}}");
    let spread = format!("return redis.call('MGET', unpack(KEYS,{range}))");
    let written = format!("redis.call('SET', KEYS[1], 'lost') return #{{unpack({{}},{range})}}");
    for script in [&plain, &caught, &spread, &written] {
        for command in ["EVAL", "EVAL_RO"] {
            // The last of them is refused earlier where nothing may be written.
            let reply = client.call(&[command, script, "1", "acknowledged"]);
            if command == "EVAL" || script != &written {
                refused(&reply, command);
            }
        }
    }
    client.run("MULTI");
    client.run("INCR blocks");
    client.call(&["EVAL", &plain, "0"]);
    client.call(&["EVAL", &caught, "0"]);
    client.run("INCR blocks");
    let block = client.run("EXEC");
    refused(&block.items()[1], "MULTI");
    refused(&block.items()[2], "MULTI, pcall");
    assert_eq!((block.items().len(), block.items()[3].int() % 2), (4, 0));
    for word in ["1", "2"] {
        let library = format!(
            "#!lua name=u{word}\nredis.register_function{{function_name='f{word}', flags={{'no-writes'}}, \
             callback=function() {} end}}",
            if word == "1" { &plain } else { &caught },
        );
        assert_eq!(client.call(&["FUNCTION", "LOAD", "REPLACE", &library]).text(), format!("u{word}"));
        refused(&client.call(&["FCALL", &format!("f{word}"), "0"]), "FCALL");
        refused(&client.call(&["FCALL_RO", &format!("f{word}"), "0"]), "FCALL_RO");
    }
    let library = format!("#!lua name=u3\nlocal x = {{unpack({{}},{range})}}");
    refused(&client.call(&["FUNCTION", "LOAD", &library]), "FUNCTION LOAD");
}

#[test]
fn ranges_of_unpack_that_do_not_fit_are_errors_and_the_node_keeps_its_data() {
    for engine in ["calvin", "qstore", "paxflow"] {
        let dir = tempfile::tempdir().unwrap();
        let start = || Server::start(serve_dir(dir.path(), ["--engine", engine, "--threads", "2"]));
        let server = start();
        let mut client = server.client();
        assert_eq!(client.run("SET acknowledged 1"), Reply::ok());
        for range in RANGES {
            unpack(&mut client, range);
        }
        assert_eq!(client.run("GET acknowledged").text(), "1", "{engine}");
        let digest = client.run("DEBUG DIGEST").text().to_owned();
        server.kill();
        // All of it is in the log, and executed again.
        let server = start();
        let mut client = server.client();
        assert_eq!(client.run("GET acknowledged").text(), "1", "{engine}");
        assert_eq!(client.run("GET blocks").text(), (2 * RANGES.len()).to_string());
        assert_eq!(client.run("DEBUG DIGEST").text(), digest, "{engine}");
        assert!(client.run("FCALL f1 0").error().contains("too many results to unpack"));
        server.stop();
    }
}

#[test]
fn a_block_that_asks_for_a_large_hash_a_hundred_times_is_one_error() {
    const MIB: u64 = 1 << 20;
    let server = Server::start(serve(["--ephemeral", "--threads", "1"]));
    let (mut client, mut other) = (server.client(), server.client());
    other.run("SET small v");
    let value = "x".repeat(300);
    for batch in 0..10 {
        let mut words = vec!["HSET".to_owned(), "large".to_owned()];
        words.extend((0..1_000).flat_map(|field| [format!("{batch}:{field}"), value.clone()]));
        assert_eq!(client.call(&words), Reply::Int(1_000));
    }
    let before = server.resident();
    let mut block = command(&["MULTI"]);
    block.extend(command(&["INCR", "written"]));
    block.extend(command(&["HGETALL", "large"]).repeat(100));
    block.extend(command(&["EXEC"]));
    client.send(&block).unwrap();
    // Others are served before it, beside it and after it.
    for _ in 0..20 {
        assert_eq!(other.run("GET small").text(), "v");
    }
    let replies: Vec<Reply> = (0..103).map(|_| client.receive().unwrap()).collect();
    let text = replies.last().unwrap().error();
    assert!(text.starts_with("ERR the reply exceeds the limit of 256 MiB"), "{text}");
    assert_eq!(other.run("GET written").text(), "1");
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 1_024 * MIB, "{} MiB", grown / MIB);
    // A block that fits is answered.
    client.run("MULTI");
    client.run("HLEN large");
    client.run("HGETALL large");
    let reply = client.run("EXEC");
    assert_eq!((&reply.items()[0], reply.items()[1].items().len()), (&Reply::Int(10_000), 20_000));
    server.stop();
}

#[test]
fn others_are_answered_while_a_library_function_works_on_much() {
    let server = Server::start(serve(["--ephemeral", "--threads", "1"]));
    let (mut caller, mut other) = (server.client(), server.client());
    let script = "local t = {} for i = 1, 1e5 do t[i] = i end for i = 1, 2e7 do table.maxn(t) end";
    caller.send(&command(&["EVAL", script, "1", "k"])).unwrap();
    caller.socket().set_nonblocking(true).unwrap();
    let mut answered = 0;
    let reply = loop {
        assert_eq!(other.run("PING").text(), "PONG");
        match caller.receive() {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => answered += 1,
            reply => break reply.unwrap(),
        }
    };
    assert!(reply.error().contains("ran past its budget"), "{reply:?}");
    assert!(answered > 0, "nobody was answered before it");
    server.stop();
}

/// The encodings of what differs from what its bytes tell.
fn encodings(client: &mut Client) -> Vec<String> {
    let keys = ["whole", "text", "buffer", "copy", "long", "table"];
    keys.iter().map(|key| client.run(&format!("OBJECT ENCODING {key}")).text().to_owned()).collect()
}

#[test]
fn the_encoding_tells_how_a_value_was_written_after_a_kill_and_from_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let start = || Server::start(serve_dir(dir.path(), ["--threads", "2"]));
    let server = start();
    let mut client = server.client();
    for words in [
        "SET whole 12",
        "INCRBYFLOAT text 12",
        "SET buffer 1",
        "APPEND buffer 2",
        "COPY buffer copy",
        "SET long 12 EX 100000",
        "SETRANGE long 0 3",
        &format!("HSET table f {} g v", "v".repeat(65)),
        "HDEL table f",
    ] {
        client.run(words);
    }
    // What fails in a script leaves it as it was.
    let script = "redis.call('APPEND', KEYS[1], '3') redis.call('SET', KEYS[2], '4') error('undone')";
    client.call(&["EVAL", script, "2", "whole", "buffer"]).error();
    let kept = ["int", "embstr", "raw", "raw", "raw", "hashtable"];
    assert_eq!(encodings(&mut client), kept);
    server.kill();
    let server = start();
    assert_eq!(encodings(&mut server.client()), kept);
    crate::checkpoint::save(&server);
    server.kill();
    let server = start();
    assert!(server.process().stderr().contains("begins from a checkpoint"), "{}", server.process().stderr());
    let mut client = server.client();
    assert_eq!(encodings(&mut client), kept);
    assert!((1..=100_000).contains(&client.run("TTL long").int()));
    for key in ["text", "buffer", "copy", "long"] {
        client.run(&format!("SET {key} 12"));
    }
    assert_eq!(encodings(&mut client), ["int", "int", "int", "int", "int", "hashtable"]);
    server.stop();
}

fn field(client: &mut Client, section: &str, name: &str) -> String {
    let info = client.run(&format!("INFO {section}"));
    let line = info.text().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("INFO {section} has no {name}: {info:?}")).to_owned()
}

#[test]
fn the_figures_that_exporters_read_are_there_and_are_reset() {
    let server = Server::start(serve(["--ephemeral", "--threads", "2"]));
    // Connections go to one event loop after the other.
    let mut clients = [(); 4].map(|()| server.client());
    let client = &mut clients[0];
    assert_eq!(client.run("SET a v EX 100"), Reply::ok());
    assert_eq!(client.run("SET b v PX 1"), Reply::ok());
    assert_eq!(client.run("EVAL return(1) 0"), Reply::Int(1));
    until("b is removed", || field(client, "stats", "expired_keys") == "1");
    until("the keyspace is told", || {
        let keyspace = field(client, "keyspace", "db0");
        let ttl = keyspace.strip_prefix("keys=1,expires=1,avg_ttl=").unwrap_or("0");
        (1..=100_000).contains(&ttl.parse::<u64>().unwrap())
    });
    assert_eq!(field(client, "memory", "number_of_cached_scripts"), "1");
    assert!(field(client, "memory", "mem_fragmentation_ratio").parse::<f64>().unwrap() > 0.0);
    for client in &mut clients {
        assert_eq!(client.run("GET a").text(), "v");
        assert_eq!(client.run("GET nokey"), Reply::Nil);
        assert!(client.run("GET").error().starts_with("ERR wrong number"));
    }
    let client = &mut clients[0];
    // Half a second old at most.
    until("hits are counted", || field(client, "stats", "keyspace_hits") == "4");
    assert_eq!(field(client, "stats", "keyspace_misses"), "4");
    assert_eq!(field(client, "stats", "total_error_replies"), "4");
    assert_eq!(field(client, "errorstats", "errorstat_ERR"), "count=4");
    let get = field(client, "commandstats", "cmdstat_get");
    assert!(get.starts_with("calls=8,usec=") && get.ends_with(",rejected_calls=4,failed_calls=0"), "{get}");
    // Of all event loops, whichever is asked.
    assert_eq!(clients[1].run("CONFIG RESETSTAT"), Reply::ok());
    for client in &mut clients {
        until("all loops have begun anew", || {
            !client.run("INFO commandstats").text().contains("cmdstat_get")
        });
        until("the node has begun anew", || field(client, "stats", "keyspace_hits") == "0");
        assert_eq!(field(client, "stats", "total_error_replies"), "0");
    }
    server.stop();
}
