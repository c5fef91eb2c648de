//! Scripts that run for long, and the operators who end them.

use std::time::Instant;

use crate::faults::grid::Grid;
use crate::support::{Client, Expect, Reply, Server, command, serve, serve_dir, until};

/// Sends a command until it is answered otherwise than that no script runs.
fn kill(client: &mut Client, words: &[&str; 2]) -> Reply {
    loop {
        let reply = client.call(words);
        if !reply.is_error("NOTBUSY") {
            return reply;
        }
    }
}

fn ended(client: &mut Client, place: &str) {
    let reply = client.receive().unwrap();
    let text = reply.error();
    assert!(text.starts_with("ERR Script killed by user with SCRIPT KILL... script: "), "{text}");
    // One that ends before its first instruction has come to no line.
    assert!(text.ends_with(place) || !text.contains(", on @"), "{text}");
}

#[test]
fn an_operator_ends_scripts_that_only_read() {
    const ENDLESS: &str = "\nwhile true do pcall(function() while true do end end) end";
    const LIBRARY: &str = "#!lua name=l\nredis.register_function{function_name='f', flags={'no-writes'}, \
                           callback=function() while true do end end}";
    for engine in ["calvin", "qstore", "paxflow"] {
        let server = Server::start(serve(["--ephemeral", "--threads", "2", "--engine", engine]));
        let (mut caller, mut operator) = (server.client(), server.client());
        assert!(operator.call(&["SCRIPT", "KILL"]).error().starts_with("NOTBUSY"));
        assert_eq!(operator.call(&["FUNCTION", "LOAD", LIBRARY]).text(), "l");
        operator.run("SET k before");

        caller.send(&command(&["EVAL_RO", ENDLESS, "1", "k"])).unwrap();
        assert!(kill(&mut operator, &["FUNCTION", "KILL"]).error().starts_with("BUSY"));
        assert_eq!(kill(&mut operator, &["SCRIPT", "KILL"]), Reply::ok());
        ended(&mut caller, ", on @user_script:2.");
        assert_eq!(caller.run("GET k").text(), "before");

        caller.send(&command(&["FCALL_RO", "f", "1", "k"])).unwrap();
        assert!(kill(&mut operator, &["SCRIPT", "KILL"]).error().starts_with("BUSY"));
        assert_eq!(kill(&mut operator, &["FUNCTION", "KILL"]), Reply::ok());
        ended(&mut caller, " script: f, on @user_function:2.");
        assert!(operator.call(&["FUNCTION", "KILL"]).error().starts_with("NOTBUSY"));
        server.stop();
    }
}

#[test]
fn what_is_in_the_log_cannot_be_ended_alone() {
    let server = Server::start(serve(["--ephemeral", "--threads", "2", "--engine", "calvin"]));
    let (mut caller, mut operator) = (server.client(), server.client());
    caller.send(&command(&["EVAL", "redis.call('SET', KEYS[1], 'x') while true do end", "1", "k"])).unwrap();
    let refused = kill(&mut operator, &["SCRIPT", "KILL"]);
    assert!(refused.error().starts_with("UNKILLABLE The script is in the log"), "{refused:?}");
    assert!(caller.receive().unwrap().error().contains("ran past its budget"));
    assert_eq!(operator.run("EXISTS k"), Reply::Int(0));
    server.stop();
}

/// What `/metrics` says of run times: runs, seconds in all, and by upper bound of a bucket the runs up to it.
fn run_times(server: &Server) -> (f64, f64, Vec<(f64, f64)>) {
    let metrics = server.http("/metrics").2;
    let of = |name: &str| -> Vec<(String, f64)> {
        let lines = metrics.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
        lines.map(|(label, value)| (label.to_owned(), value.parse().unwrap())).collect()
    };
    let bound = |label: &str| {
        label.trim_matches(|c| "{}".contains(c)).trim_start_matches("le=").trim_matches('"').to_owned()
    };
    let buckets = of("ordain_script_seconds_bucket").into_iter().map(|(label, count)| {
        let bound = bound(&label);
        (if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap() }, count)
    });
    let only = |name: &str| of(name).first().map(|(_, value)| *value).unwrap();
    let (count, sum) = (only("ordain_script_seconds_count"), only("ordain_script_seconds_sum"));
    (count, sum, buckets.collect())
}

#[test]
fn the_run_time_of_a_script_is_in_the_metrics() {
    const LONG: &str = "local n = 0 for i = 1, 5e6 do n = n + i end return redis.call('INCR', KEYS[1])";
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    let server = Server::start(serve(["--data-dir", data, "--threads", "2"]));
    let mut client = server.client();
    assert_eq!(run_times(&server).0, 0.0);
    assert_eq!(client.call(&["EVAL", "return 1", "0"]), Reply::Int(1));
    let (count, short, buckets) = run_times(&server);
    assert_eq!((count, buckets.len()), (1.0, 22));
    // Longer than an event loop may stand still, so the work thread runs it: once, as far as is counted.
    let begun = Instant::now();
    assert_eq!(client.call(&["EVAL", LONG, "1", "k"]), Reply::Int(1));
    let waited = begun.elapsed().as_secs_f64();
    let (count, both, buckets) = run_times(&server);
    let long = both - short;
    assert_eq!(count, 2.0);
    assert!(short < long && long <= waited, "{short} {long} {waited}");
    // It is in the bucket whose bounds are about its time, and the short one is below. Times are whole microseconds, cut off: one
    // that is shown as long as a bound is longer.
    for (bound, up_to) in buckets {
        let expected = if bound <= short {
            0.0
        } else if bound <= long {
            1.0
        } else {
            2.0
        };
        assert!(up_to == expected, "{up_to} of {short} and {long} seconds took up to {bound}");
    }
    // Commands are no scripts.
    client.run("INCR k");
    assert_eq!(run_times(&server).0, 2.0);
    server.kill();
    // What is executed again at a start was not asked for.
    let server = Server::start(serve(["--data-dir", data, "--threads", "2"]));
    assert_eq!(server.client().run("GET k").text(), "2");
    assert_eq!(run_times(&server).0, 0.0);
    server.stop();
}

/// Writes, and is then given to the work thread for a second or so.
const WRITES_LONG: &str =
    "redis.call('INCR', KEYS[1]) for i = 1, 5e7 do end return redis.call('INCR', KEYS[1])";

/// Waits until the node of a client computes what is in its log.
fn await_computing(client: &mut Client) {
    until("the node computes", || {
        let reply = client.call(&["SCRIPT", "KILL"]);
        reply.error().starts_with("UNKILLABLE")
    });
}

#[test]
fn a_node_that_is_killed_while_it_computes_does_it_again() {
    for engine in ["calvin", "qstore"] {
        let dir = tempfile::tempdir().unwrap();
        let start = || Server::start(serve_dir(dir.path(), ["--engine", engine, "--threads", "2"]));
        let server = start();
        let (mut caller, mut other) = (server.client(), server.client());
        assert_eq!(other.run("SET acknowledged 1"), Reply::ok());
        caller.send(&command(&["EVAL", WRITES_LONG, "1", "count"])).unwrap();
        await_computing(&mut other);
        // Of another record, so it does not wait.
        assert_eq!(other.run("SET meanwhile 1"), Reply::ok(), "{engine}");
        server.kill();
        assert!(caller.receive().is_err(), "{engine}: it was answered");
        let server = start();
        let reply = server.client().run("MGET acknowledged meanwhile count");
        let values = ["1", "1", "2"].map(|text| Reply::Bulk(text.into()));
        assert_eq!(reply, Reply::Array(values.into()), "{engine}");
        server.stop();
    }
}

#[test]
fn a_member_that_is_killed_while_it_computes_agrees_with_the_others() {
    let mut grid = Grid::start(1, 3, "");
    let leader = grid.leader(0);
    for (killed, count) in [((leader + 1) % 3, "2"), (leader, "4")] {
        let asked = (killed + 1) % 3;
        let mut client = grid.client(asked);
        assert_eq!(client.insist(&format!("SET acknowledged {count}")), Reply::ok());
        let mut caller = grid.client(asked);
        caller.send(&command(&["EVAL", WRITES_LONG, "1", "count"])).unwrap();
        await_computing(&mut grid.client(killed));
        grid.kill(killed);
        // Its answer may be lost with a leader; its effect is in the logs of all.
        if let Ok(Reply::Int(answer)) = caller.receive() {
            assert_eq!(answer.to_string(), count);
        }
        grid.restart(killed);
        grid.await_equal_digests();
        for node in 0..3 {
            let mut client = grid.client(node);
            assert_eq!(client.insist("GET count").text(), count, "node {node}");
            assert_eq!(client.insist("GET acknowledged").text(), count, "node {node}");
        }
    }
    grid.stop();
}
