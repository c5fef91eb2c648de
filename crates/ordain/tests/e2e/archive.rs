//! Checkpoints in a store: they get there while the server serves, also when the store was not there at first; and what is
//! built from them, or from the directories of a cluster, is what there was at the end of an epoch, all of it and no more.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::checkpoint::save;
use crate::cluster::{self, Cluster};
use crate::support::{Client, Ended, Expect, Reply, Server, http, ordain, run, serve_dir, try_http, until};

#[path = "../../../archive/tests/archive/bucket.rs"]
#[allow(dead_code, reason = "its own crate's tests ask more of it")]
mod bucket;

use bucket::Bucket;

/// A program that finds a bucket.
fn with(mut command: Command, bucket: &Bucket) -> Command {
    command.envs(bucket.environment());
    command
}

const STORE: &str = "s3://ordain-test/backups";

fn store_of(server: &Server) -> Value {
    serde_json::from_str::<Value>(&server.http("/status").2).unwrap()["checkpoint_store"].clone()
}

/// Waits until the newest checkpoint is in the store.
fn archived(server: &Server) {
    let newest =
        || serde_json::from_str::<Value>(&server.http("/status").2).unwrap()["checkpoint"]["epoch"].clone();
    until("it is archived", || {
        store_of(server)["epoch"] == newest() && store_of(server)["uploading"].is_null()
    });
}

fn restore(bucket: &Bucket, words: &[&str]) -> Ended {
    let mut command = ordain(["checkpoint", "restore"]);
    command.args(words);
    run(with(command, bucket))
}

#[test]
fn checkpoints_get_to_a_store_that_is_away_at_first_and_back_from_there() {
    let bucket = Bucket::start();
    let (dir, copies) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let start = |dir: &Path| {
        Server::start(with(serve_dir(dir, ["--threads", "2", "--checkpoint-store", STORE]), &bucket))
    };
    bucket.refuse(true);
    let server = start(dir.path());
    let mut client = server.client();
    for key in 0..200 {
        client.run(&format!("SET key:{key} first:{key}"));
    }
    client.run("CLIENT SESSION 9");
    client.run("CLIENT REQUEST 1");
    assert_eq!(client.run("INCR counted").int(), 1);
    save(&server);
    let before = server.client().run("DEBUG DIGEST");
    // The store is away: everything goes on, and it is said.
    until("it fails", || store_of(&server)["failing"].as_str().is_some_and(|said| said.contains("503")));
    assert_eq!(server.client().run("SET key:0 second"), Reply::ok());
    assert!(server.http("/metrics").2.contains("ordain_archive_failing{"));
    assert!(server.process().stderr().contains("was not archived"), "{}", server.process().stderr());
    bucket.refuse(false);
    archived(&server);
    assert_eq!(store_of(&server)["failing"], Value::Null);
    assert_eq!(store_of(&server)["url"], STORE);
    save(&server);
    archived(&server);
    assert_eq!(store_of(&server)["kept"], 2);
    assert_eq!(server.client().run("SET late value"), Reply::ok());
    server.stop();

    let look = |what: &str| run(with(ordain(["checkpoint", what, "--store", STORE]), &bucket));
    let listed = look("list");
    assert_eq!(listed.code, Some(0), "{listed:?}");
    assert!(listed.stdout.join("\n").contains("2 checkpoints, 2 complete"), "{listed:?}");
    assert_eq!(look("verify").code, Some(0));

    let data = |name: &str| copies.path().join(name);
    let target = |name: &str| data(name).to_str().unwrap().to_owned();
    let ended = restore(&bucket, &["--from", STORE, "--data-dir", &target("newest")]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let server = start(&data("newest"));
    let mut client = server.client();
    assert_eq!(client.run("GET key:0").text(), "second");
    assert_eq!(client.run("DBSIZE").int(), 201, "nothing of after");
    client.run("CLIENT SESSION 9");
    client.run("CLIENT REQUEST 1");
    assert_eq!(client.run("INCR counted").int(), 1, "it was answered before");
    // It goes on in the same store, after all that is there.
    save(&server);
    archived(&server);
    assert_eq!(store_of(&server)["failing"], Value::Null);
    assert_eq!(store_of(&server)["kept"], 4, "that it began with, too");
    server.kill();
    let server = start(&data("newest"));
    assert_eq!(server.client().run("GET key:0").text(), "second");
    server.stop();

    // The oldest: all that there was by then. Epochs that no checkpoint is of are refused.
    let json = data("listed.json");
    let mut command = ordain(["checkpoint", "list", "--store", STORE, "--json"]);
    command.arg(&json);
    run(with(command, &bucket));
    let listed: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let first = listed["checkpoints"][0]["epoch"].as_u64().unwrap();
    let (exact, other) = (first.to_string(), (first + 1).to_string());
    let ended = restore(&bucket, &["--from", STORE, "--data-dir", &target("first"), "--to-epoch", &exact]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let server = Server::start(serve_dir(&data("first"), ["--threads", "1"]));
    assert_eq!(server.client().run("DEBUG DIGEST"), before);
    server.stop();
    let ended = restore(&bucket, &["--from", STORE, "--data-dir", &target("none"), "--to-epoch", &other]);
    ended.refused_with(&["possible are the epochs", &exact]);
    assert!(!data("none").exists());

    // A damaged newest one is named, and the one before is taken.
    let newest = bucket.names().into_iter().rfind(|name| name.ends_with(".state")).unwrap();
    bucket.damage(&newest, |bytes| {
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
    });
    let verified = look("verify");
    assert_eq!(verified.code, Some(1), "{verified:?}");
    assert!(verified.stdout.join("\n").contains("damaged"), "{verified:?}");
    let ended = restore(&bucket, &["--from", STORE, "--data-dir", &target("before")]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("note: a checkpoint cannot be used, so the one before it is"), "{ended:?}");
    let server = Server::start(serve_dir(&data("before"), ["--threads", "1"]));
    assert_eq!(server.client().run("GET key:0").text(), "second");
    server.stop();
    bucket.refuse(true);
    restore(&bucket, &["--from", STORE, "--data-dir", &target("none")]).refused_with(&["cannot list", STORE]);
}

/// All that a cluster has, as any of its nodes sees it.
fn state(client: &mut Client) -> BTreeMap<String, String> {
    let keys = client.insist("KEYS *");
    let keys: Vec<String> = keys.items().iter().map(|key| key.text().to_owned()).collect();
    keys.into_iter()
        .map(|key| (key.clone(), client.insist(&format!("GET {key}")).text().to_owned()))
        .collect()
}

/// Sends a numbered request of a session, which counts the requests that took effect.
fn count_in_session(client: &mut Client, request: usize) {
    client.run("CLIENT SESSION 77");
    client.run(&format!("CLIENT REQUEST {request}"));
    assert_eq!(client.run("INCR session").int(), request as i64);
    client.run("CLIENT SESSION 0");
}

/// Writes over all partitions; answers the epoch of the last of it.
fn write(client: &mut Client, round: usize) -> i64 {
    let pairs: Vec<String> =
        (0..20).flat_map(|key| [format!("key:{}", key + round), format!("{round}:{key}")]).collect();
    assert_eq!(client.insist(&format!("MSET {}", pairs.join(" "))), Reply::ok());
    for key in 0..5 {
        client.insist(&format!("INCR counted:{key}"));
    }
    client.insist(&format!("DEL key:{round}"));
    client.insist("CLIENT EPOCH").int()
}

fn of_node(cluster: &Cluster, node: usize, what: &str) -> Value {
    serde_json::from_str::<Value>(&http(cluster.address(node, "admin"), "/status").2).unwrap()[what].clone()
}

/// Has all nodes take a checkpoint.
fn save_all(cluster: &Cluster) {
    let epoch = |node| of_node(cluster, node, "checkpoint")["epoch"].as_u64().unwrap();
    let before: Vec<u64> = (0..cluster.nodes().len()).map(epoch).collect();
    cluster.client(0).insist("BGSAVE");
    until("all have one", || before.iter().enumerate().all(|(node, before)| epoch(node) > *before));
}

/// Moves the directories of all nodes elsewhere, and says where they are.
fn move_away(data: &Path, to: &Path, nodes: usize) -> Vec<PathBuf> {
    fs::create_dir_all(to).unwrap();
    let moved = (0..nodes).map(|node| {
        let name = format!("node-{node}");
        fs::rename(data.join(&name), to.join(&name)).unwrap();
        to.join(&name)
    });
    moved.collect()
}

/// Checks that a restored cluster begins with this state, and goes on from there. `counted`: the last request of the session.
fn goes_on_restored(
    start: impl Fn() -> Cluster,
    data: &Path,
    (state_then, digest): (&BTreeMap<String, String>, &Reply),
    counted: usize,
) {
    let cluster = start();
    for node in [0, 3] {
        assert_eq!(&state(&mut cluster.client(node)), state_then, "node {node}");
    }
    let mut client = cluster.client(1);
    assert_eq!(&client.insist("DEBUG DIGEST"), digest);
    // What a session was answered last holds, and the next is new.
    count_in_session(&mut client, counted);
    // It goes on from there, keeps what it does, and its replicas agree.
    write(&mut client, 40);
    let after = state(&mut client);
    save_all(&cluster);
    cluster.stop();
    let cluster = start();
    assert_eq!(state(&mut cluster.client(2)), after);
    until("its replicas agree", || cluster::status(data).1["digests"] == "equal");
    cluster.stop();
}

#[test]
fn a_cluster_goes_back_to_a_past_epoch_all_together() {
    let home = tempfile::tempdir().unwrap();
    let (data, archive) = (home.path().join("data"), home.path().join("store"));
    let store = format!("file://{}", archive.display());
    let flags = ["--partitions", "2", "--replicas", "2", "--threads", "1", "--checkpoint-store", &store];
    let start = || Cluster::start(&data, &flags);
    let cluster = start();
    let mut client = cluster.client(0);
    let mut states = Vec::new();
    for round in 0..6 {
        count_in_session(&mut client, round + 1);
        let epoch = write(&mut client, round);
        states.push((epoch, state(&mut client), client.insist("DEBUG DIGEST")));
        if [1, 3].contains(&round) {
            save_all(&cluster);
        }
    }
    let last_saved = of_node(&cluster, 0, "checkpoint")["epoch"].clone();
    until("both partitions are archived", || {
        [0, 1].iter().all(|node| of_node(&cluster, *node, "checkpoint_store")["epoch"] == last_saved)
    });
    assert_eq!(
        of_node(&cluster, 2, "checkpoint_store")["uploaded"],
        0,
        "members leave it to the first replica"
    );
    cluster.stop();

    let config = data.join("cluster.toml");
    let moved = move_away(&data, &home.path().join("old"), 4);
    let from = |nodes: &[usize]| -> Vec<String> {
        nodes.iter().flat_map(|node| ["--from".to_owned(), moved[*node].display().to_string()]).collect()
    };
    let restore = |from: &[String], flags: &[&str]| {
        let mut command = ordain(["checkpoint", "restore", "--config"]);
        command.arg(&config).args(from).args(flags);
        run(command)
    };
    restore(&from(&[0]), &[]).refused_with(&["nothing of partition 1"]);
    let early = restore(&from(&[0, 1]), &["--to-epoch", "1"]);
    assert!(early.code == Some(0) || early.stderr.contains("possible are the epochs"), "{early:?}");
    if early.code == Some(0) {
        move_away(&data, &home.path().join("early"), 4);
    }
    for (n, (epoch, state_then, digest)) in states.iter().enumerate().skip(1) {
        let sources = if n % 2 == 0 { from(&[0, 1]) } else { from(&[2, 1, 3]) };
        let ended = restore(&sources, &["--to-epoch", &epoch.to_string()]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.stdout.join("\n").contains(&format!("at the end of epoch {epoch}:")), "{ended:?}");
        goes_on_restored(start, &data, (state_then, digest), n + 1);
        move_away(&data, &home.path().join(format!("then-{n}")), 4);
    }

    // All of it is lost but the store.
    let ended = restore(&["--from".into(), store.clone()], &["--to-epoch", &last_saved.to_string()]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let cluster = start();
    let last = &states[3];
    assert_eq!(
        (&state(&mut cluster.client(3)), &cluster.client(0).insist("DEBUG DIGEST")),
        (&last.1, &last.2)
    );
    cluster.stop();

    // What does not fit is refused, and nothing is left behind.
    move_away(&data, &home.path().join("last"), 4);
    let text = fs::read_to_string(&config).unwrap();
    let name = text.lines().find(|line| line.starts_with("cluster = ")).unwrap().to_owned();
    for (change, words) in [
        ((name.as_str(), "cluster = \"other\""), ["belongs to cluster", "not to 'other'"]),
        (("partitions = 2", "partitions = 2\nstarts = [0, 100]"), ["divided in another way", "[0, 100]"]),
        (("threads = 1", "threads = 1\nengine = \"paxflow\""), ["engine 'calvin'", "paxflow"]),
    ] {
        fs::write(&config, text.replace(change.0, change.1).replace("engine = \"calvin\"\n", "")).unwrap();
        restore(&from(&[0, 1]), &[]).refused_with(&words);
        assert!(!data.join("node-0").exists());
    }
    fs::write(&config, text).unwrap();
    fs::create_dir(data.join("node-2")).unwrap();
    fs::write(data.join("node-2/mine"), "x").unwrap();
    restore(&from(&[0, 1]), &[]).refused_with(&["is not empty", "mine"]);
}

/// The logs of partitions that order for themselves have no common end: such a cluster goes back to a cut, with all of it.
#[test]
fn a_cluster_with_locks_goes_back_to_a_cut_all_together() {
    let home = tempfile::tempdir().unwrap();
    let (data, archive) = (home.path().join("data"), home.path().join("store"));
    let store = format!("file://{}", archive.display());
    let layout = ["--partitions", "2", "--replicas", "2", "--threads", "1", "--engine", "no-wait"];
    let flags: Vec<&str> = layout.into_iter().chain(["--checkpoint-store", &store]).collect();
    let start = || Cluster::start(&data, &flags);
    let cluster = start();
    let mut client = cluster.client(0);
    let mut cuts = Vec::new();
    for round in 0..4 {
        count_in_session(&mut client, round + 1);
        write(&mut client, round);
        if [1, 3].contains(&round) {
            save_all(&cluster);
            let cut = of_node(&cluster, 0, "checkpoint")["epoch"].clone();
            cuts.push((round, cut, state(&mut client), client.insist("DEBUG DIGEST")));
        }
    }
    let last = &cuts[1].1;
    until("both partitions are archived", || {
        [0, 1].iter().all(|node| of_node(&cluster, *node, "checkpoint_store")["epoch"] == *last)
    });
    write(&mut client, 30);
    cluster.stop();

    let config = data.join("cluster.toml");
    let moved = move_away(&data, &home.path().join("old"), 4);
    let files = |nodes: [usize; 2]| nodes.map(|node| moved[node].display().to_string()).to_vec();
    let restore = |from: &[String], flags: &[&str]| {
        let mut command = ordain(["checkpoint", "restore", "--config"]);
        command.arg(&config).args(from.iter().flat_map(|from| ["--from", from])).args(flags);
        run(command)
    };
    let between = cuts[0].1.as_u64().unwrap() + 1;
    restore(&files([0, 1]), &["--to-epoch", &between.to_string()]).refused_with(&[&cuts[0].1.to_string()]);
    for (n, from) in [files([2, 1]), vec![store.clone()]].iter().enumerate() {
        for (round, cut, state_then, digest) in &cuts {
            let ended = restore(from, &["--to-epoch", &cut.to_string()]);
            assert_eq!(ended.code, Some(0), "{ended:?}");
            goes_on_restored(start, &data, (state_then, digest), round + 1);
            move_away(&data, &home.path().join(format!("then-{n}-{round}")), 4);
        }
    }
}

/// A region that is restored from a store: its server begins with the checkpoint, and its storage nodes with a log behind it. From their
/// directories it is not put together, and says what to do.
#[test]
fn a_region_is_restored_from_a_store() {
    let home = tempfile::tempdir().unwrap();
    let (data, archive) = (home.path().join("data"), home.path().join("store"));
    let store = format!("file://{}", archive.display());
    let setting = ["--engine", "regions-silo", "--regions", "1", "--replicas", "3", "--threads", "1"];
    let flags: Vec<&str> = setting.into_iter().chain(["--checkpoint-store", &store]).collect();
    let start = || Cluster::start(&data, &flags);
    let cluster = start();
    assert_eq!(cluster.client(0).insist("MSET a 1 b 2"), Reply::ok());
    cluster.client(0).insist("BGSAVE");
    until("it is archived", || {
        let saved = of_node(&cluster, 0, "checkpoint")["epoch"].clone();
        saved.as_u64() > Some(0) && of_node(&cluster, 0, "checkpoint_store")["epoch"] == saved
    });
    assert_eq!(cluster.client(0).insist("SET a later"), Reply::ok());
    cluster.stop();
    let moved = move_away(&data, &home.path().join("old"), 4);
    let restore = |from: &str, flags: &[&str]| {
        let mut command = ordain(["checkpoint", "restore", "--from", from]);
        command.args(flags);
        run(command)
    };
    let (config, other) = (data.join("cluster.toml"), home.path().join("other"));
    let (config, other) = (config.to_str().unwrap(), other.to_str().unwrap());
    restore(moved[1].to_str().unwrap(), &["--config", config])
        .refused_with(&["from a checkpoint store", "--from"]);
    restore(moved[1].to_str().unwrap(), &["--data-dir", other])
        .refused_with(&["of a region with storage nodes", "an empty one"]);
    let ended = restore(&store, &["--config", config]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for _ in 0..2 {
        let cluster = start();
        assert_eq!(
            cluster.client(0).insist("MGET a b").items(),
            [Reply::Bulk("1".into()), Reply::Bulk("2".into())]
        );
        assert_eq!(cluster.client(0).insist("SET c 3"), Reply::ok());
        cluster.stop();
    }
    // A server that has lost everything gets it from the storage nodes.
    fs::remove_dir_all(data.join("node-0")).unwrap();
    let cluster = start();
    let get = |key: &str| {
        // It begins again when it has got the checkpoint.
        let mut client = Client::connect(cluster.address(0, "resp")).ok()?;
        client.send(format!("GET {key}\r\n").as_bytes()).ok()?;
        client.receive().ok()
    };
    until("it has what came after the checkpoint", || get("c") == Some(Reply::Bulk("3".into())));
    assert_eq!(get("b"), Some(Reply::Bulk("2".into())));
    cluster.stop();
}

/// Three replicas that are restored from a store, of which one is lost then: it gets what came before from a member.
fn a_replica_joins_what_was_restored(engine: &str, replication: &str) {
    let home = tempfile::tempdir().unwrap();
    let (data, archive) = (home.path().join("data"), home.path().join("store"));
    let store = format!("file://{}", archive.display());
    let setting = ["--replicas", "3", "--threads", "1", "--replication", replication, "--engine", engine];
    let flags: Vec<&str> = setting.into_iter().chain(["--checkpoint-store", &store]).collect();
    let cluster = Cluster::start(&data, &flags);
    write(&mut cluster.client(0), 0);
    save_all(&cluster);
    let digest = cluster.client(0).insist("DEBUG DIGEST");
    let saved = of_node(&cluster, 0, "checkpoint")["epoch"].clone();
    until("it is archived", || of_node(&cluster, 0, "checkpoint_store")["epoch"] == saved);
    write(&mut cluster.client(0), 30);
    cluster.stop();
    move_away(&data, &home.path().join("old"), 3);
    let mut command = ordain(["checkpoint", "restore", "--from", &store, "--config"]);
    command.arg(data.join("cluster.toml"));
    let ended = run(command);
    assert_eq!(ended.code, Some(0), "{ended:?}");

    let cluster = Cluster::start(&data, &flags);
    assert_eq!(cluster.client(2).insist("DEBUG DIGEST"), digest);
    cluster.stop();
    fs::remove_dir_all(data.join("node-2")).unwrap();
    let cluster = Cluster::start(&data, &flags);
    write(&mut cluster.client(0), 60);
    until("the newcomer has it all", || {
        // It begins again when it has got a checkpoint: it may just not be there.
        let Ok((_, _, body)) = try_http(cluster.address(2, "admin"), "/status") else { return false };
        let Ok(status) = serde_json::from_str::<Value>(&body) else { return false };
        status["digest"].is_string() && status["digest"] == of_node(&cluster, 0, "digest")
    });
    cluster.stop();
}

#[test]
fn a_replica_joins_what_was_restored_and_agrees() {
    a_replica_joins_what_was_restored("calvin", "sync");
}

#[test]
fn a_replica_joins_what_was_restored_of_an_engine_with_locks() {
    a_replica_joins_what_was_restored("wait-die", "sync");
}

#[test]
fn a_replica_joins_what_was_restored_and_follows_a_primary() {
    a_replica_joins_what_was_restored("calvin", "async");
}
