//! A node is one whatever its engine's family: an engine of the commit family serves clients over real sockets, and finds
//! everything again after a restart.

#![allow(clippy::unwrap_used, reason = "a test fails where it unwraps")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use ordain_engines::registry::Engine;
use ordain_family::Keep;
use ordain_node::serve::{Node, ServeConfig};
use ordain_resp::client::{ReplyReader, command};

fn start(directory: &Path) -> Node {
    let engine: Engine = "no-wait".parse().unwrap();
    let config =
        ServeConfig { data_dir: directory.to_owned(), keep: Keep::Fsync, ..ServeConfig::on_loopback(engine) };
    Node::start(&config).unwrap()
}

struct Client {
    stream: TcpStream,
    replies: ReplyReader,
}

impl Client {
    fn connect(to: SocketAddr) -> Client {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Client { stream, replies: ReplyReader::default() }
    }

    /// Sends commands of words, all at once.
    fn send(&mut self, commands: &[String]) {
        let words = |text: &String| command(&text.split(' ').collect::<Vec<_>>());
        let bytes: Vec<u8> = commands.iter().flat_map(words).collect();
        self.stream.write_all(&bytes).unwrap();
    }

    /// Sends a command of words, and answers its reply in one line.
    fn ask(&mut self, command: &str) -> String {
        self.send(&[command.to_owned()]);
        self.reply()
    }

    fn reply(&mut self) -> String {
        self.replies.read_from(&mut self.stream).unwrap().to_string()
    }
}

/// What the admin server answers.
fn admin(node: &Node, path: &str) -> String {
    let mut stream = TcpStream::connect(node.admin).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Health and status come from what the roles report, whatever the family.
fn until_ready(node: &Node) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let answer = admin(node, "/readyz");
        if answer.starts_with("HTTP/1.1 200") {
            break;
        }
        assert!(Instant::now() < deadline, "{answer}");
        std::thread::yield_now();
    }
    let status = admin(node, "/status");
    assert!(status.contains("\"engine\":\"no-wait\"") && status.contains("\"not_ready\":null"), "{status}");
    assert!(admin(node, "/metrics").contains("ordain_takes_transactions{"), "the metric of readiness");
    let least = [
        (1.0, "ordain_coordinator_committed_total"),
        (0.0, "ordain_coordinator_failed_total"),
        (1.0, "ordain_manager_records_total"),
        (1.0, "ordain_shard_applied_epoch"),
        (1.0, "ordain_store_records"),
    ];
    // Loops report now and then.
    loop {
        let metrics = admin(node, "/metrics");
        let short = least.iter().find(|(count, name)| {
            let lines = metrics.lines().filter(|line| line.starts_with(&format!("{name}{{")));
            let values: Vec<f64> = lines.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
            values.is_empty() || values.iter().sum::<f64>() < *count
        });
        assert!(!metrics.contains("No description"), "every metric is described");
        let Some((_, name)) = short else {
            // A counter is described without its suffix.
            let described = least.iter().map(|(_, name)| name.strip_suffix("_total").unwrap_or(name));
            described.for_each(|name| assert!(metrics.contains(&format!("# HELP {name} ")), "{name}"));
            return;
        };
        assert!(Instant::now() < deadline, "{name}: {metrics}");
        std::thread::yield_now();
    }
}

#[test]
fn an_engine_of_the_commit_family_serves_clients_and_restarts() {
    let directory = tempfile::tempdir().unwrap();
    let node = start(directory.path());
    assert!(node.ready_line().contains("engine=no-wait"));
    let mut client = Client::connect(node.resp);
    for (command, reply) in [
        ("SET a 1", "+OK"),
        ("INCR a", ":2"),
        ("MSET b x c y", "+OK"),
        ("MGET a b c d", r#"["2" "x" "y" _]"#),
        ("MULTI", "+OK"),
        ("INCR a", "+QUEUED"),
        ("HSET h f v", "+QUEUED"),
        ("DEL b", "+QUEUED"),
        ("EXEC", "[:3 :1 :1]"),
        ("HGET h f", r#""v""#),
        ("INCR h", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("GET b", "_"),
    ] {
        assert_eq!(client.ask(command), reply, "{command}");
    }
    // A pipeline of reads and writes: one answer each, in order.
    let pipeline: Vec<String> =
        (0..40).map(|n| format!("{} a b n{n}", if n % 4 == 3 { "DEL" } else { "MGET" })).collect();
    client.send(&pipeline);
    let replies: Vec<String> = pipeline.iter().map(|_| client.reply()).collect();
    assert_eq!((&*replies[0], &*replies[3], &*replies[4]), (r#"["3" _ _]"#, ":1", "[_ _ _]"), "{replies:?}");
    assert_eq!(client.ask("SET a 3"), "+OK");
    for (command, reply) in [
        ("TXN.BEGIN", "+OK"),
        ("GET a", r#""3""#),
        ("SET t 1", "+OK"),
        ("TXN.COMMIT", "+OK"),
        ("WATCH t", "+OK"),
        ("MULTI", "+OK"),
        ("INCR t", "+QUEUED"),
        ("EXEC", "[:2]"),
    ] {
        assert_eq!(client.ask(command), reply, "{command}");
    }
    assert_eq!((&*client.ask("DBSIZE"), client.ask("DEBUG DIGEST").len()), (":4", 41));
    assert_eq!(client.ask("BGSAVE"), "+Background saving started");
    until_ready(&node);
    // Many clients on few keys: what is refused is attempted again, and nothing is lost.
    let adders: Vec<_> = (0..8)
        .map(|_| {
            let mut client = Client::connect(node.resp);
            std::thread::spawn(move || (0..50).for_each(|_| assert!(client.ask("INCR n").starts_with(':'))))
        })
        .collect();
    adders.into_iter().for_each(|adder| adder.join().unwrap());
    assert_eq!(client.ask("GET n"), r#""400""#);
    drop(client);
    node.handle().stop();
    node.wait().unwrap();

    let node = start(directory.path());
    assert!(node.replayed >= 400, "{} transactions were replayed", node.replayed);
    assert_eq!(Client::connect(node.resp).ask("MGET a b c n"), r#"["3" _ "y" "400"]"#);
    node.handle().stop();
    node.wait().unwrap();
}
