//! `ordain cluster up` and `status`, and nodes that are started by hand from a cluster's file.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;

use ordain_model::KeyHash;
use ordain_model::key::SLOTS;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{
    Client, DEADLINE, Ended, Expect, Process, Reply, http, ordain, ports, run, serve_dir, until,
};

/// A cluster that runs.
pub struct Cluster {
    process: Process,
    /// What cluster.json said when it was ready.
    record: Value,
}

fn up(dir: &Path, args: &[&str]) -> Process {
    // One that was there before stays where it was.
    let port = if dir.join("cluster.toml").exists() { 0 } else { ports(32) };
    let words = ["cluster", "up", "--base-port", &port.to_string(), "--data-dir", dir.to_str().unwrap()];
    let mut command = ordain(words);
    command.args(args);
    Process::spawn(command)
}

fn record(dir: &Path) -> Value {
    serde_json::from_slice(&fs::read(dir.join("cluster.json")).unwrap()).unwrap()
}

impl Cluster {
    #[track_caller]
    pub fn start(dir: &Path, args: &[&str]) -> Cluster {
        let process = up(dir, args);
        loop {
            match process.line_within(DEADLINE) {
                Ok(line) if line.starts_with("ready cluster=") => break,
                Ok(_) => {}
                Err(_) => panic!("does not get ready; stderr:\n{}", process.stderr()),
            }
        }
        Cluster { process, record: record(dir) }
    }

    pub fn nodes(&self) -> &[Value] {
        self.record["nodes"].as_array().unwrap()
    }

    pub fn address(&self, node: usize, which: &str) -> SocketAddr {
        self.nodes()[node][which].as_str().unwrap().parse().unwrap()
    }

    pub fn client(&self, node: usize) -> Client {
        Client::connect(self.address(node, "resp")).unwrap()
    }

    pub fn kill(&self, node: usize) {
        let pid = self.nodes()[node]["pid"].as_i64().unwrap();
        kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    }

    /// Holds every node to being gone.
    fn is_gone(&self) -> bool {
        (0..self.nodes().len()).all(|node| TcpStream::connect(self.address(node, "resp")).is_err())
    }

    #[track_caller]
    pub fn stop(self) -> Ended {
        self.process.signal(Signal::TERM);
        let addresses: Vec<SocketAddr> =
            (0..self.nodes().len()).map(|node| self.address(node, "resp")).collect();
        let ended = self.process.wait();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        for address in addresses {
            assert!(TcpStream::connect(address).is_err(), "something still listens on {address}");
        }
        ended
    }
}

/// What `ordain cluster status` says, and writes.
pub fn status(dir: &Path) -> (Ended, Value) {
    let file = dir.join("status.json");
    let words = ["cluster", "status", "--data-dir", dir.to_str().unwrap(), "--json", file.to_str().unwrap()];
    let ended = run(ordain(words));
    let found = fs::read(&file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    (ended, found.unwrap_or(Value::Null))
}

#[test]
fn a_cluster_comes_up_stops_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let cluster = Cluster::start(&data, &["--partitions", "2", "--replicas", "1", "--threads", "1"]);
    let ids: Vec<(u64, u64, u64)> = cluster
        .nodes()
        .iter()
        .map(|node| ["id", "partition", "replica"].map(|key| node[key].as_u64().unwrap()).into())
        .collect();
    assert_eq!(ids, [(0, 0, 0), (1, 1, 0)]);
    // One transaction over all partitions, by one node; read by the other.
    let pairs: Vec<String> = (0..50).flat_map(|i| [format!("key:{i}"), format!("value:{i}")]).collect();
    assert_eq!(cluster.client(0).insist(&format!("MSET {}", pairs.join(" "))), Reply::ok());
    assert_eq!(cluster.client(1).insist("GET key:7").text(), "value:7");
    assert_eq!(cluster.client(1).insist("DBSIZE").int(), 50);

    until("both nodes show what they have executed", || {
        let (ended, found) = status(&data);
        ended.code == Some(0) && found["digests"] == "equal"
    });
    let (_, found) = status(&data);
    assert_eq!(found["ok"], true, "{found}");
    let digest = cluster.client(1).insist("DEBUG DIGEST").text().to_owned();
    for (id, node) in found["nodes"].as_array().unwrap().iter().enumerate() {
        assert_eq!(
            (&node["node"], &node["partition"], &node["state"]),
            (&id.into(), &id.into(), &"ok".into())
        );
        assert_eq!((&node["links_up"], &node["links"]), (&1.into(), &1.into()), "{node}");
        assert_eq!(node["digest"].as_str().map(str::len), Some(40), "{node}");
    }
    // The digests of both nodes' data add up to that of all.
    until("the digest is that of what was written", || status(&data).1["digest"] == *digest);
    let (code, _, body) = http(cluster.address(1, "admin"), "/status");
    let seen: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, &seen["members"].as_array().unwrap().len()), (200, &2));
    assert_eq!((&seen["peers"][0]["node"], &seen["peers"][0]["state"]), (&0.into(), &"connected".into()));
    let metrics = http(cluster.address(1, "admin"), "/metrics").2;
    assert!(metrics.lines().any(|line| line == "ordain_link_up{peer=\"0\"} 1.0"), "{metrics}");

    let again = run(ordain(["cluster", "up", "--data-dir", data.to_str().unwrap()]));
    again.refused_with(&["in use by process"]);
    let before = cluster.nodes().to_vec();
    cluster.stop();
    assert!(record(&data)["nodes"].as_array().unwrap().iter().all(|node| node["pid"].is_null()));

    let other = run(ordain(["cluster", "up", "--partitions", "3", "--data-dir", data.to_str().unwrap()]));
    other.refused_with(&["--partitions 2, not 3", "--data-dir"]);
    let cluster = Cluster::start(&data, &[]);
    for (now, then) in cluster.nodes().iter().zip(before) {
        assert_eq!([&now["resp"], &now["admin"]], [&then["resp"], &then["admin"]]);
    }
    assert_eq!(cluster.client(1).insist("DBSIZE").int(), 50);
    cluster.stop();
}

#[test]
fn a_node_that_dies_is_told_and_left_down() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(dir.path(), &["--partitions", "2", "--threads", "1"]);
    cluster.kill(1);
    until("its death is told", || cluster.process.stderr().contains("node 1 has ended"));
    let said = cluster.process.stderr();
    assert!(said.contains("signal 9") && said.contains("--node 1") && said.contains("node-1.log"), "{said}");
    assert_eq!(record(dir.path())["nodes"][1]["pid"], Value::Null);
    let (ended, found) = status(dir.path());
    ended.fails_with(&["node 1 at", "is unreachable"]);
    assert_eq!((&found["ok"], &found["nodes"][1]["state"]), (&false.into(), &"unreachable".into()));
    cluster.stop();
}

#[test]
fn a_node_that_dies_is_started_again_if_that_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(dir.path(), &["--partitions", "2", "--threads", "1", "--restart"]);
    let mut client = cluster.client(0);
    for i in 0..20 {
        assert_eq!(client.insist(&format!("SET key:{i} value")), Reply::ok());
    }
    cluster.kill(1);
    until("it is ready again", || cluster.process.stderr().contains("node 1 is ready again"));
    let pid = &record(dir.path())["nodes"][1]["pid"];
    assert!(pid.is_u64() && *pid != cluster.nodes()[1]["pid"], "{pid}");
    assert_eq!(cluster.client(1).insist("DBSIZE").int(), 20);
    cluster.stop();
}

#[test]
fn no_node_outlives_the_command_that_started_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(dir.path(), &["--partitions", "3", "--threads", "1"]);
    assert!(!cluster.is_gone());
    // Even if there was no time to tell them.
    let empty = Process::spawn(ordain(["--version"]));
    std::mem::replace(&mut cluster.process, empty).kill();
    until("all are gone", || cluster.is_gone());
}

#[test]
fn a_node_that_cannot_start_ends_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let port = ports(3);
    let _taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let words = ["cluster", "up", "--partitions", "1", "--base-port", &port.to_string(), "--data-dir"];
    let mut command = ordain(words);
    command.arg(dir.path());
    run(command).refused_with(&["node 0 did not start", "cannot listen on", "--listen", "node-0.log"]);
}

/// A file of a cluster of one node, and where that node is.
fn lone_file(dir: &Path) -> (std::path::PathBuf, String) {
    let port = ports(3);
    let at: Vec<String> = (port..port + 3).map(|port| format!("127.0.0.1:{port}")).collect();
    let data = dir.join("data");
    let text = format!(
        "cluster = \"c\"\npartitions = 1\nreplicas = 1\nthreads = 1\n\n[[node]]\nid = 0\ncluster = {:?}\nresp = {:?}\n\
         admin = {:?}\ndata-dir = {:?}\n",
        at[0],
        at[1],
        at[2],
        data.to_str().unwrap()
    );
    let path = dir.join("cluster.toml");
    fs::write(&path, &text).unwrap();
    (path, text)
}

#[test]
fn a_cluster_with_a_mistake_in_its_file_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let (path, text) = lone_file(dir.path());
    let file = path.to_str().unwrap();
    let serve = |args: &[&str]| run(ordain(["serve", "--config", file].iter().chain(args)));
    serve(&[]).refused_with(&[file, "--node"]);
    serve(&["--node", "1"]).refused_with(&["--node 1", "nodes 0 to 0"]);
    serve(&["--node", "0", "--engine", "postgres"]).refused_with(&["there is no engine 'postgres'"]);
    for (from, to, words) in [
        ("partitions", "partition", &["partition"][..]),
        ("threads = 1", "threads = 1\nreplication = \"async\"", &["one replica", "replicas = 2"]),
        ("replicas = 1", "replicas = 2", &["no [[node]] with id = 1"]),
        ("cluster = \"127.0.0.1", "cluster = \"192.0.2.1", &["192.0.2.1", "secret-file", "--insecure"]),
        ("threads = 1", "threads = 1\nsecret-file = \"/nowhere/secret\"", &["/nowhere/secret"]),
    ] {
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let words: Vec<&str> = [file].iter().chain(words).copied().collect();
        serve(&["--node", "0"]).refused_with(&words);
    }
    fs::write(&path, "threads = 1").unwrap();
    serve(&["--node", "0"]).refused_with(&["--node", "--config"]);
    assert!(!dir.path().join("data").exists());
}

#[test]
fn a_data_directory_belongs_to_one_node_of_one_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let (path, text) = lone_file(dir.path());
    let start = || {
        let process = Process::spawn(ordain(["serve", "--node", "0", "--config", path.to_str().unwrap()]));
        process.line_within(DEADLINE).map(|line| (process, line))
    };
    let (process, line) = start().unwrap();
    assert!(line.ends_with("engine=calvin node=0"), "{line}");
    process.signal(Signal::TERM);
    assert_eq!(process.wait().code, Some(0));

    let data = dir.path().join("data");
    run(serve_dir(&data, [""; 0])).refused_with(&["belongs to node 0 of cluster 'c'", "a node on its own"]);
    for (from, to, words) in [
        ("\"c\"", "\"d\"", &["of cluster 'c'", "of cluster 'd'"][..]),
        ("threads = 1", "threads = 2", &["threads = 1", "threads = 2"]),
    ] {
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        run(ordain(["serve", "--node", "0", "--config", path.to_str().unwrap()])).refused_with(words);
    }
    fs::write(&path, text).unwrap();
    let (process, _) = start().unwrap();
    process.signal(Signal::TERM);
    assert_eq!(process.wait().code, Some(0));
}

/// A slot with many records is copied while clients change what is in it; what they were told is there afterwards, on both sides
/// of a restart.
#[test]
fn a_large_slot_moves_by_copies_while_it_is_written_to() {
    const RECORDS: usize = 9000;
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("c");
    let cluster = Cluster::start(&data, &["--partitions", "2", "--threads", "1"]);
    let slot = KeyHash::of(b"{tag}").slot();
    let to = 1 - slot * 2 / SLOTS;
    let mut client = cluster.client(0);
    for from in (0..RECORDS).step_by(500) {
        let pairs = (from..from + 500).flat_map(|n| [format!("{{tag}}:{n}"), "0".to_owned()]);
        let words: Vec<String> = ["MSET".to_owned()].into_iter().chain(pairs).collect();
        assert_eq!(client.insist_on(&words), Reply::ok());
    }
    let (slots, to) = (slot.to_string(), to.to_string());
    let words = ["cluster", "move", "--data-dir", data.to_str().unwrap(), "--slots", &slots, "--to", &to];
    let mover = Process::spawn(ordain(words));
    let mut told = vec!["0".to_owned(); RECORDS];
    let (mut serial, mut deleted) = (0, 0);
    while !mover.has_ended() {
        serial += 1;
        let n = serial * 7919 % RECORDS;
        match serial % 5 {
            0 => {
                client.insist(&format!("DEL {{tag}}:{n}"));
                told[n].clear();
                deleted += 1;
            }
            _ => {
                client.insist(&format!("SET {{tag}}:{n} {serial}"));
                told[n] = serial.to_string();
            }
        }
    }
    let ended = mover.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let sum = |cluster: &Cluster, name: &str, node: usize| {
        let metrics = http(cluster.address(node, "admin"), "/metrics").2;
        let values = metrics.lines().filter(|line| line.starts_with(name)).map(|line| {
            line.rsplit_once(' ').and_then(|(_, value)| value.parse::<f64>().ok()).unwrap_or_default()
        });
        values.sum::<f64>() as usize
    };
    // Records that a client deleted may have been gone before the copies began.
    until("all records that were there throughout were copied", || {
        let copied: usize = (0..2).map(|node| sum(&cluster, "ordain_shard_copied_total", node)).sum();
        copied >= RECORDS.saturating_sub(deleted)
    });
    let there = told.iter().filter(|value| !value.is_empty()).count();
    let receiver: usize = to.parse().unwrap();
    until("all records are there", || sum(&cluster, "ordain_store_records", receiver) == there);
    let demand_told = |cluster: &Cluster| {
        let mut client = cluster.client(1);
        for from in (0..RECORDS).step_by(500) {
            let keys = (from..from + 500).map(|n| format!("{{tag}}:{n}"));
            let words: Vec<String> = ["MGET".to_owned()].into_iter().chain(keys).collect();
            let Reply::Array(values) = client.insist_on(&words) else { panic!("no array") };
            for (n, value) in values.iter().enumerate() {
                let value = if *value == Reply::Nil { "" } else { value.text() };
                assert_eq!(value, told[from + n], "record {}", from + n);
            }
        }
    };
    demand_told(&cluster);
    cluster.stop();
    let cluster = Cluster::start(&data, &[]);
    demand_told(&cluster);
    cluster.stop();
}

#[test]
fn status_of_a_cluster_that_is_not_there_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let words = ["cluster", "status", "--admin", &nobody, "--data-dir", dir.path().to_str().unwrap()];
    run(ordain(words)).refused_with(&["no node answers", &nobody, "--admin"]);
}

#[test]
fn a_replica_that_is_lost_is_not_missed_and_catches_up() {
    let dir = tempfile::tempdir().unwrap();
    let cluster =
        Cluster::start(dir.path(), &["--partitions", "2", "--replicas", "3", "--threads", "1", "--restart"]);
    assert_eq!(cluster.client(5).insist("MSET a 1 b 2 c 3"), Reply::ok());
    // Node 0 is as good as any: it may lead or not.
    cluster.kill(0);
    let mut client = cluster.client(3);
    assert_eq!(client.insist("MSET a 4 b 5 c 6"), Reply::ok(), "writes go on");
    assert_eq!(cluster.client(4).insist("GET b").text(), "5");
    until("it is ready again", || cluster.process.stderr().contains("node 0 is ready again"));
    until("all is well", || status(dir.path()).0.code == Some(0));
    let (_, found) = status(dir.path());
    assert_eq!(found["digests"], "equal", "{found}");
    for partition in [0, 1] {
        let nodes = found["nodes"].as_array().unwrap().iter();
        let leaders = nodes.filter(|node| node["partition"] == partition && node["role"] == "leader").count();
        assert_eq!(leaders, 1, "{found}");
    }
    assert_eq!(cluster.client(0).insist("GET c").text(), "6");
    cluster.stop();
}

#[test]
fn a_cluster_with_primaries_comes_up_and_shows_who_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["--partitions", "2", "--replicas", "2", "--threads", "1", "--replication", "async"];
    let cluster = Cluster::start(dir.path(), &words);
    for node in 0..4 {
        let (words, mut client) = (format!("MSET a:{node} 1 b:{node} 2 c:{node} 3"), cluster.client(node));
        assert_eq!(client.insist(&words), Reply::ok());
    }
    until("all is well, and every partition has its primary", || {
        let (ended, found) = status(dir.path());
        let nodes = found["nodes"].as_array().cloned().unwrap_or_default();
        let primaries: Vec<&Value> = nodes.iter().filter(|node| node["role"] == "primary").collect();
        let are_apart = primaries.len() == 2 && primaries[0]["partition"] != primaries[1]["partition"];
        let is_follower = |node: &Value| {
            let its = primaries.iter().find(|primary| primary["partition"] == node["partition"]);
            its.is_some_and(|primary| node["leader"] == primary["node"] && node["term"] == primary["term"])
        };
        ended.code == Some(0)
            && found["digests"] == "equal"
            && are_apart
            && nodes.iter().all(|node| is_follower(node) && node["started_over"].is_u64())
    });
    cluster.stop();
    let other =
        run(ordain(["cluster", "up", "--replication", "sync", "--data-dir", dir.path().to_str().unwrap()]));
    other.refused_with(&["--replication async, not sync"]);
    let cluster = Cluster::start(dir.path(), &[]);
    (0..4).for_each(|node| assert_eq!(cluster.client(node).insist("DBSIZE").int(), 12));
    cluster.stop();
}

/// Without members the nodes of other partitions know what it had: it is refused, and comes back with a copy alone.
#[test]
fn an_emptied_node_is_refused_where_there_is_one_replica() {
    ["calvin", "no-wait"].into_iter().for_each(an_emptied_node_is_refused);
}

fn an_emptied_node_is_refused(engine: &str) {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--partitions", "2", "--replicas", "1", "--threads", "1", "--engine", engine];
    let cluster = Cluster::start(dir.path(), &flags);
    let mut client = cluster.client(0);
    for i in 0..20 {
        assert_eq!(client.insist(&format!("SET key:{i} value:{i}")), Reply::ok());
    }
    cluster.kill(1);
    until("it is gone", || TcpStream::connect(cluster.address(1, "resp")).is_err());
    let (directory, copy) = (dir.path().join("node-1"), dir.path().join("copy-1"));
    fs::rename(&directory, &copy).unwrap();
    let config = dir.path().join("cluster.toml");
    let serve = || ordain(["serve", "--node", "1", "--config", config.to_str().unwrap()]);
    // Each time: what it writes meanwhile does not make it another.
    for _ in 0..2 {
        run(serve()).fails_with(&["has nothing on its disk", "node 0 knows", "restore the whole cluster"]);
    }
    fs::remove_dir_all(&directory).unwrap();
    fs::rename(&copy, &directory).unwrap();
    let back = Process::spawn(serve());
    assert!(back.line_within(DEADLINE).unwrap().starts_with("ready "));
    for i in 0..20 {
        assert_eq!(client.insist(&format!("GET key:{i}")).text(), format!("value:{i}"));
    }
    back.signal(Signal::TERM);
    assert_eq!(back.wait().code, Some(0));
}

/// Kills a node, takes its data away, and has a new one join in its place; then does without another.
fn replace_a_node(partitions: &str, lost: usize, next: usize) {
    let dir = tempfile::tempdir().unwrap();
    let cluster =
        Cluster::start(dir.path(), &["--partitions", partitions, "--replicas", "3", "--threads", "1"]);
    let write = |client: &mut Client, round: usize| {
        let pairs: Vec<String> = (0..40).flat_map(|i| [format!("key:{i}"), format!("{round}:{i}")]).collect();
        client.insist(&format!("MSET {}", pairs.join(" ")))
    };
    let elsewhere = (0..cluster.nodes().len()).find(|node| *node != lost && *node != next).unwrap();
    let mut client = cluster.client(elsewhere);
    (0..50).for_each(|round| assert_eq!(write(&mut client, round), Reply::ok(), "round {round}"));
    cluster.kill(lost);
    until("it is gone", || TcpStream::connect(cluster.address(lost, "resp")).is_err());
    fs::remove_dir_all(dir.path().join(format!("node-{lost}"))).unwrap();
    assert_eq!(write(&mut client, 50), Reply::ok(), "writes go on");

    let config = dir.path().join("cluster.toml");
    let serve = |more: &[&str]| {
        let mut command =
            ordain(["serve", "--node", &lost.to_string(), "--config", config.to_str().unwrap()]);
        command.args(more);
        command
    };
    // As who it was it must not come back: it would have forgotten what the others count on.
    run(serve(&[])).fails_with(&["it has lost what it had", "--join"]);
    run(serve(&["--join"])).refused_with(&["holds", "empty the directory"]);
    fs::remove_dir_all(dir.path().join(format!("node-{lost}"))).unwrap();
    let joined = Process::spawn(serve(&["--join"]));
    assert!(joined.line_within(DEADLINE).unwrap().starts_with("ready "));
    (51..60).for_each(|round| assert_eq!(write(&mut client, round), Reply::ok(), "round {round}"));
    until("it is ready", || http(cluster.address(lost, "admin"), "/readyz").0 == 200);
    until("all is well", || status(dir.path()).0.code == Some(0));
    assert_eq!(status(dir.path()).1["digests"], "equal");

    // What comes in at a node over several partitions is in the log of its own.
    assert_eq!(write(&mut cluster.client(lost), 59), Reply::ok(), "writes through the new one");

    // It counts: the others would be no majority without it.
    cluster.kill(next);
    assert_eq!(write(&mut client, 60), Reply::ok(), "writes go on");
    assert_eq!(cluster.client(lost).insist("GET key:7").text(), "60:7");
    joined.signal(Signal::TERM);
    assert_eq!(joined.wait().code, Some(0));
    cluster.stop();
    let data = dir.path().join(format!("node-{lost}"));
    look_at_log(&data, lost);
}

/// What `ordain log` says of the log of a node that has joined.
fn look_at_log(data: &Path, node: usize) {
    let file = data.join("log.json");
    let log = |command| {
        let words = ["log", command, "--data-dir", data.to_str().unwrap(), "--json", file.to_str().unwrap()];
        let ended = run(ordain(words));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        (ended, serde_json::from_slice::<Value>(&fs::read(&file).unwrap()).unwrap())
    };
    let (ended, verified) = log("verify");
    assert!(ended.stdout[0].starts_with("sound: ") && ended.stdout[0].contains(" records, "), "{ended:?}");
    let (ended, found) = log("inspect");
    assert_eq!(found["batches"], verified["batches"]);
    assert!(ended.stdout.iter().any(|line| line.contains("  vote node ")), "{ended:?}");
    let entries = found["entries"].as_array().unwrap();
    let joined = |what: &str| {
        entries
            .iter()
            .any(|entry| entry["change"] == what && entry["node"] == node && entry["generation"] != 0)
    };
    assert!(joined("learner") && joined("voter"), "{found}");
    assert!(entries.iter().any(|entry| entry["change"] == "removed" && entry["generation"] == 0), "{found}");
    assert!(entries.iter().any(|entry| entry["transactions"].as_u64() >= Some(1)), "{found}");
    let (last, commit) = (found["last"].as_u64().unwrap(), found["commit"].as_u64().unwrap());
    assert!(commit > 0 && commit <= last, "{found}");
}

#[test]
fn an_empty_node_joins_in_place_of_a_dead_one() {
    replace_a_node("1", 1, 0);
}

#[test]
fn an_empty_node_of_several_partitions_joins_too() {
    replace_a_node("2", 3, 1);
}

/// One read of much more than a reply may be, over two nodes: it used to be in memory many times over before it was found
/// to be too much. Blocks that carry too much from node to node are refused as well, and nothing of them is done.
#[test]
fn what_is_too_much_for_one_transaction_is_an_error_and_the_nodes_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(dir.path(), &["--partitions", "2", "--durability", "os"]);
    let mut client = cluster.client(0);
    let value = vec![b'x'; 16 << 20];
    // Two lie on each node.
    let keys = ["a", "b", "c", "d"].map(str::as_bytes);
    for key in keys {
        assert_eq!(client.insist_on(&[b"SET", key, &value]), Reply::ok());
    }
    let of_four = |times: usize| [&[&b"MGET"[..]], keys.repeat(times).as_slice()].concat();
    let answer = client.insist_on(&of_four(6));
    assert!(answer.error().contains("the reply exceeds the limit of 256 MiB"), "{answer:?}");
    // What fits is told, and large ones one after the other do not add up.
    for _ in 0..2 {
        let values = client.insist_on(&of_four(3));
        let values = values.items();
        assert!(values.len() == 12 && values.iter().all(|got| got.bytes() == value));
    }
    let mut copies = client.insist_on(&[b"MULTI"]);
    for _ in 0..40 {
        copies = client.insist_on(&["COPY", "a", "b", "REPLACE"]);
    }
    assert_eq!(copies.text(), "QUEUED");
    let copies = client.insist_on(&[b"EXEC"]);
    assert!(
        copies.items().iter().all(|copy| copy.error().contains("go from key to key exceed the limit")),
        "{copies:?}"
    );
    for node in 0..2 {
        let mut client = cluster.client(node);
        let one: Vec<&[u8]> = keys.iter().flat_map(|key| [*key, b"1"]).collect();
        assert_eq!(client.insist_on(&[&[&b"MSET"[..]], &one[..]].concat()), Reply::ok());
    }
    cluster.stop();
}

/// More is under way from one node to another than a link may keep. That used to end the stream, and all of it was asked
/// for again at once, which ended the next.
#[test]
fn large_values_under_way_at_once_all_arrive() {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--partitions", "2", "--replicas", "2", "--durability", "os"];
    let cluster = Cluster::start(dir.path(), &flags);
    std::thread::scope(|scope| {
        for number in 0..16 {
            let mut client = cluster.client(0);
            scope.spawn(move || {
                let (key, value) = (format!("large:{number}"), vec![number; 12 << 20]);
                assert_eq!(client.insist_on(&[b"SET", key.as_bytes(), &value]), Reply::ok());
                assert!(client.insist_on(&[b"GET", key.as_bytes()]).bytes() == value, "{key}");
            });
        }
    });
    for node in 0..4 {
        let log = fs::read_to_string(dir.path().join(format!("node-{node}.log"))).unwrap();
        assert!(!log.contains("the stream is given up"), "node {node}: {log}");
    }
    cluster.stop();
}
