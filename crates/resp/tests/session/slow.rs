//! SLOWLOG, LATENCY and the statistics of commands, with shapes and texts as redis-server 7.0 has them.

use ordain_model::Micros;

use ordain_conformance::reference::Server;

/// Sends words as client 0, lets so many microseconds pass before they are executed, and gives the reply.
fn ask_slowly(server: &mut Server, words: &[&str], took_us: u64) -> String {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    server.command(0, &words);
    server.pass(Micros(took_us));
    server.settle();
    server.take(0)
}

fn config(server: &mut Server, name: &str, value: &str) {
    assert_eq!(server.ask(0, &["CONFIG", "SET", name, value]), "+OK\n");
}

#[test]
fn a_slow_request_is_noted_with_its_words_its_client_and_the_time_it_waited() {
    let mut server = Server::new(2);
    server.ask(0, &["CLIENT", "SETNAME", "me"]);
    ask_slowly(&mut server, &["SET", "fast", "1"], 9_999);
    ask_slowly(&mut server, &["SET", "key", "value"], 10_000);
    let long = "x".repeat(130);
    ask_slowly(&mut server, &["GETSET", "key", &long], 12_345);
    let at = server.now.0 / 1_000_000;
    let longs = format!("$146\n{}... (2 more bytes)\n", "x".repeat(128));
    let (peer, name) = ("$15\n127.0.0.1:50000\n", "$2\nme\n");
    let second = format!("*6\n:1\n:{at}\n:12345\n*3\n$6\nGETSET\n$3\nkey\n{longs}{peer}{name}");
    let first = format!("*6\n:0\n:{at}\n:10000\n*3\n$3\nSET\n$3\nkey\n$5\nvalue\n{peer}{name}");
    assert_eq!(server.ask(1, &["SLOWLOG", "LEN"]), ":2\n");
    assert_eq!(server.ask(1, &["SLOWLOG", "GET"]), format!("*2\n{second}{first}"));
    assert_eq!(server.ask(1, &["SLOWLOG", "GET", "1"]), format!("*1\n{second}"));
    assert_eq!(server.ask(1, &["SLOWLOG", "GET", "-1"]), format!("*2\n{second}{first}"));
    assert_eq!(server.ask(1, &["SLOWLOG", "GET", "0"]), "*0\n");
    for count in ["x", "-2"] {
        let refusal = "-ERR count should be greater than or equal to -1\n";
        assert_eq!(server.ask(1, &["SLOWLOG", "GET", count]), refusal);
    }
    assert_eq!(server.ask(1, &["SLOWLOG", "RESET"]), "+OK\n");
    assert_eq!(server.ask(1, &["SLOWLOG", "LEN"]), ":0\n");
}

#[test]
fn requests_that_wait_together_keep_their_own_words() {
    let mut server = Server::new(1);
    config(&mut server, "slowlog-log-slower-than", "1");
    for key in ["a", "b", "c"] {
        server.command(0, &[b"INCR", key.as_bytes()]);
        server.pass(Micros(100));
    }
    server.command(0, &[b"PING"]);
    server.settle();
    server.take(0);
    let shown = server.ask(0, &["SLOWLOG", "GET"]);
    for part in [":300\n*2\n$4\nINCR\n$1\na\n", ":200\n*2\n$4\nINCR\n$1\nb\n", ":100\n*2\n$4\nINCR\n$1\nc\n"]
    {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    assert!(shown.starts_with("*3\n"), "{shown}");
}

#[test]
fn the_slow_log_obeys_its_parameters_and_shows_no_secret() {
    let mut server = Server::new(1);
    config(&mut server, "slowlog-log-slower-than", "-1");
    ask_slowly(&mut server, &["SET", "key", "value"], 1_000_000);
    assert_eq!(server.ask(0, &["SLOWLOG", "LEN"]), ":0\n");
    config(&mut server, "slowlog-log-slower-than", "0");
    server.ask(0, &["AUTH", "hunter2"]);
    server.ask(0, &["HELLO", "2", "AUTH", "default", "hunter2"]);
    server.ask(0, &["SET", "key", "value"]);
    let shown = server.ask(0, &["SLOWLOG", "GET"]);
    assert!(!shown.contains("hunter2") && !shown.contains("default"), "{shown}");
    for part in
        ["$4\nAUTH\n$10\n(redacted)\n", "$10\n(redacted)\n$10\n(redacted)\n", "$3\nSET\n$3\nkey\n$5\nvalue\n"]
    {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    config(&mut server, "slowlog-max-len", "2");
    server.ask(0, &["PING"]);
    assert_eq!(server.ask(0, &["SLOWLOG", "LEN"]), ":2\n");
    for (name, value, range) in [
        ("slowlog-log-slower-than", "-2", "-1"),
        ("slowlog-max-len", "-1", "0"),
        ("latency-monitor-threshold", "-1", "0"),
    ] {
        let refusal = format!(
            "-ERR CONFIG SET failed (possibly related to argument '{name}') - argument must be between {range} and \
             9223372036854775807 inclusive\n"
        );
        assert_eq!(server.ask(0, &["CONFIG", "SET", name, value]), refusal);
    }
}

#[test]
fn a_block_is_one_slow_request() {
    let mut server = Server::new(1);
    server.ask(0, &["MULTI"]);
    server.ask(0, &["SET", "key", "value"]);
    ask_slowly(&mut server, &["EXEC"], 20_000);
    let shown = server.ask(0, &["SLOWLOG", "GET"]);
    assert!(shown.contains(":20000\n*1\n$4\nEXEC\n"), "{shown}");
    let stats = server.ask(0, &["INFO", "commandstats"]);
    assert!(stats.contains("cmdstat_exec:calls=1,usec=20000,") && !stats.contains("cmdstat_set"), "{stats}");
}

#[test]
fn spikes_beyond_the_threshold_are_events_of_the_latency_monitor() {
    let mut server = Server::new(1);
    assert!(server.ask(0, &["LATENCY", "DOCTOR"]).contains("CONFIG SET latency-monitor-threshold"));
    config(&mut server, "latency-monitor-threshold", "50");
    assert!(server.ask(0, &["LATENCY", "DOCTOR"]).contains("Nothing has taken 50 milliseconds"));
    ask_slowly(&mut server, &["SET", "key", "value"], 49_999);
    assert_eq!(server.ask(0, &["LATENCY", "LATEST"]), "*0\n");
    ask_slowly(&mut server, &["SET", "key", "value"], 80_000);
    let first = server.now.0 / 1_000_000;
    server.pass(Micros(2_000_000));
    ask_slowly(&mut server, &["SET", "key", "value"], 60_000);
    let second = server.now.0 / 1_000_000;
    ask_slowly(&mut server, &["GET", "key"], 51_000);
    let latest = server.ask(0, &["LATENCY", "LATEST"]);
    assert!(latest.contains(&format!("*4\n$7\ncommand\n:{second}\n:60\n:80\n")), "{latest}");
    assert!(latest.starts_with("*2\n") && latest.contains("$12\nfast-command\n"), "{latest}");
    let history = server.ask(0, &["LATENCY", "HISTORY", "command"]);
    assert_eq!(history, format!("*2\n*2\n:{first}\n:80\n*2\n:{second}\n:60\n"));
    assert_eq!(server.ask(0, &["LATENCY", "HISTORY", "none"]), "*0\n");
    let graph = server.ask(0, &["LATENCY", "GRAPH", "command"]);
    assert!(graph.contains("command - high 80 ms, low 60 ms (all time high 80 ms)"), "{graph}");
    let none = server.ask(0, &["LATENCY", "GRAPH", "none"]);
    assert_eq!(none, "-ERR No samples available for event 'none'\n");
    let doctor = server.ask(0, &["LATENCY", "DOCTOR"]);
    assert!(doctor.contains("1. command: 2 latency spikes (average 70 ms"), "{doctor}");
    assert_eq!(server.ask(0, &["LATENCY", "RESET", "command", "none"]), ":1\n");
    assert_eq!(server.ask(0, &["LATENCY", "RESET"]), ":1\n");
    assert_eq!(server.ask(0, &["LATENCY", "LATEST"]), "*0\n");
}

#[test]
fn times_of_commands_are_shown_as_redis_shows_them() {
    let mut server = Server::new(1);
    assert_eq!(server.ask(0, &["LATENCY", "HISTOGRAM", "set"]), "*0\n");
    for took in [10, 12, 100] {
        ask_slowly(&mut server, &["SET", "key", "value"], took);
    }
    ask_slowly(&mut server, &["INCR", "key"], 5);
    server.ask(0, &["SET", "key"]);
    let histogram = server.ask(0, &["LATENCY", "HISTOGRAM", "set", "nothing", "get"]);
    assert_eq!(histogram, "*2\n$3\nset\n*4\n$5\ncalls\n:3\n$14\nhistogram_usec\n*4\n:16\n:2\n:128\n:3\n");
    assert!(server.ask(0, &["LATENCY", "HISTOGRAM"]).contains("$4\nincr\n"));
    let info = server.ask(0, &["INFO", "commandstats", "latencystats"]);
    for line in [
        "cmdstat_set:calls=3,usec=122,usec_per_call=40.67,rejected_calls=1,failed_calls=0",
        "cmdstat_incr:calls=1,usec=5,usec_per_call=5.00,rejected_calls=0,failed_calls=1",
        "latency_percentiles_usec_incr:p50=5.000,p99=5.000,p99.9=5.000",
    ] {
        assert!(info.contains(line), "{line} is not in {info}");
    }
    assert!(!server.ask(0, &["INFO"]).contains("cmdstat_"), "not by default");
    assert!(server.ask(0, &["INFO", "all"]).contains("cmdstat_set"));
    server.ask(0, &["CONFIG", "RESETSTAT"]);
    assert_eq!(server.ask(0, &["LATENCY", "HISTOGRAM", "set"]), "*0\n");
}
