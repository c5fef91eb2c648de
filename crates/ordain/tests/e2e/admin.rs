//! Signals, and what the admin server tells.

use rustix::process::Signal;

use crate::support::{Expect, Reply, Server, command, serve, serve_dir, until};

#[test]
fn a_signal_drains_answers_what_was_sent_and_is_exit_0() {
    let dir = tempfile::tempdir().unwrap();
    for (round, signal) in [Signal::TERM, Signal::INT, Signal::TERM, Signal::INT].into_iter().enumerate() {
        let server = Server::start(serve_dir(dir.path(), ["--threads", ["1", "2"][round / 2]]));
        let mut idle = server.client();
        assert_eq!(idle.run("PING").text(), "PONG");
        let mut client = server.client();
        let pipeline: Vec<u8> = (0..500).flat_map(|_| command(&["INCR", "counter"])).collect();
        client.send(&pipeline).unwrap();
        let first = client.receive().unwrap().int();
        server.process().signal(signal);
        // All that the server had read is answered, in order, before the connection ends.
        let rest = client.rest();
        let answered: Vec<i64> = rest.iter().map(Reply::int).collect();
        assert!(answered.iter().enumerate().all(|(i, n)| *n == first + 1 + i as i64), "{answered:?}");
        assert_eq!(idle.rest(), []);
        let ended = server.wait();
        assert_eq!(ended.code, Some(0), "{ended:?}");

        let server = Server::start(serve_dir(dir.path(), [""; 0]));
        let count: i64 = server.client().run("GET counter").text().parse().unwrap();
        assert_eq!(count, first + answered.len() as i64, "what was not answered was not read");
        server.stop();
    }
}

#[test]
fn the_admin_server_tells_how_the_node_is() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(serve_dir(dir.path(), ["--threads", "2"]));
    let expected = format!("ready resp={} admin={} engine=calvin node=0", server.resp, server.admin);
    assert_eq!(server.ready_line, expected);
    let mut client = server.client();
    for i in 0..100 {
        client.run(&format!("SET key:{i} value"));
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!(server.http(path).0, 200, "{path}");
    }
    assert_eq!(server.http("/nowhere").0, 404);

    let (code, head, body) = server.http("/");
    assert_eq!(code, 200);
    assert!(head.contains("content-type: text/html") && body.trim_start().starts_with("<!"), "{head}");

    // Counts are as of the loops' last report.
    let is_counted = |server: &Server| {
        let status: serde_json::Value = serde_json::from_str(&server.http("/status").2).unwrap();
        // By two shards, each of which reports by itself.
        status["committed"].as_u64().unwrap() >= 100 && status["records"].as_u64().unwrap() >= 100
    };
    until("all is counted", || is_counted(&server));
    let (code, head, body) = server.http("/status");
    assert_eq!(code, 200);
    assert!(head.contains("content-type: application/json"), "{head}");
    let status: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status["node"], 0);
    assert_eq!(status["engine"], "calvin");
    assert!(status["epoch"].as_u64().unwrap() > 0, "{status}");
    assert!(status["lag"].is_u64(), "{status}");
    assert_eq!(status["peers"], serde_json::json!([]));
    // No transaction is run for it: it is of a moment ago.
    let digest = client.run("DEBUG DIGEST").text().to_owned();
    until("the digest is that of what was written", || {
        let status: serde_json::Value = serde_json::from_str(&server.http("/status").2).unwrap();
        status["digest"] == *digest
            && status["digest_epoch"].as_u64() >= status["digests"][0]["first_epoch"].as_u64()
    });
    assert_eq!(status["records"], 100);
    assert_eq!(status["resp"], server.resp.to_string());

    let (code, _, body) = server.http("/metrics");
    assert_eq!(code, 200);
    let (mut samples, mut kinds) = (0, 0);
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            kinds += usize::from(rest.starts_with("TYPE ordain_"));
            let is_known =
                ["HELP ordain_", "TYPE ordain_", "UNIT ordain_", "EOF"].iter().any(|w| rest.starts_with(w));
            assert!(is_known, "{line}");
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("ordain_"), "{line}");
        assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
        samples += 1;
    }
    assert!(samples > 10 && kinds > 10, "{body}");
    for metric in [
        "ordain_shard_committed_total{",
        "ordain_connections{",
        "ordain_process_resident_memory_bytes{",
        "ordain_memory_limit_bytes{",
    ] {
        assert!(body.lines().any(|line| line.starts_with(metric)), "{metric} is not in:\n{body}");
    }
    server.stop();
}

#[test]
fn an_ephemeral_node_keeps_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = serve(["--ephemeral"]);
    command.current_dir(dir.path());
    let server = Server::start(command);
    assert_eq!(server.client().run("SET key value"), Reply::ok());
    server.stop();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_silent_connection_is_closed_after_the_timeout_that_was_set() {
    let server = Server::start(serve(["--ephemeral", "--threads", "2"]));
    let mut silent = [server.client(), server.client()];
    silent.iter_mut().for_each(|client| assert_eq!(client.run("SET key value"), Reply::ok()));
    assert_eq!(server.client().run("CONFIG SET timeout 1"), Reply::ok());
    // The end of the stream is the event: this waits for it.
    silent.into_iter().for_each(|client| assert!(client.rest().is_empty()));
    server.stop();
}
