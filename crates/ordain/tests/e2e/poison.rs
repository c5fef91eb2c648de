//! A transaction that ends every process which executes it: an operator finds it and aborts it by its place in the order.
//!
//! The transaction is one of a procedure that only builds for tests have, and only if the environment says so.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::faults::grid::Grid;
use crate::support::{Client, Ended, Expect, Process, Reply, Server, ordain, run, serve_dir};

const KILLS: (&str, &str) = ("ORDAIN_TEST_FATAL", "kill");

fn poisoned(mut command: Command) -> Command {
    command.env(KILLS.0, KILLS.1);
    command
}

fn log(words: &[&str]) -> Ended {
    run(poisoned(ordain([&["log"], words].concat())))
}

/// What `ordain log inspect` says of a directory.
fn inspect(dir: &Path) -> (Vec<String>, Value) {
    let json = tempfile::NamedTempFile::new().unwrap();
    let path = json.path().to_str().unwrap().to_owned();
    let ended = log(&["inspect", "--data-dir", dir.to_str().unwrap(), "--json", &path]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    (ended.stdout, serde_json::from_slice(&fs::read(path).unwrap()).unwrap())
}

fn abort(dir: &Path, more: &[&str]) -> Ended {
    log(&[&["abort", "--data-dir", dir.to_str().unwrap()], more].concat())
}

/// The one transaction that was under way when the node ended.
fn culprit(dir: &Path) -> Option<String> {
    let (_, json) = inspect(dir);
    let rows = json["under_way"].as_array().unwrap();
    rows.first().map(|row| row["transaction"].as_str().unwrap().to_owned())
}

/// Asks for the transaction that ends the process, and loses the connection over it.
fn poison(client: &mut Client, keys: [&str; 2]) {
    client.send(format!("FCALL test.fatal 2 {} {}\r\n", keys[0], keys[1]).as_bytes()).unwrap();
    assert!(client.receive().is_err(), "it was answered");
}

fn digest(server: &Server) -> String {
    server.client().run("DEBUG DIGEST").text().to_owned()
}

#[test]
fn a_node_on_its_own_loses_the_transaction_that_ends_it_and_nothing_else() {
    for engine in ["calvin", "calvin-paper", "qstore"] {
        let dir = tempfile::tempdir().unwrap();
        let start =
            |threads: &str| poisoned(serve_dir(dir.path(), ["--engine", engine, "--threads", threads]));
        let server = Server::start(start("2"));
        let mut client = server.client();
        assert_eq!(client.run("SET acknowledged 1"), Reply::ok());
        assert_eq!(client.run("CLIENT SESSION 77"), Reply::ok());
        assert_eq!(client.run("CLIENT REQUEST 1"), Reply::ok());
        poison(&mut client, ["a", "b"]);
        assert_eq!(server.wait().code, None, "{engine}: a signal ended it");
        // Each start executes it again.
        assert_eq!(run(start("2")).code, None, "{engine}");
        assert_eq!(run(start("1")).code, None, "{engine}");

        let (lines, json) = inspect(dir.path());
        let place = culprit(dir.path()).unwrap();
        let begin = format!("under way when the node ended: transaction {place} on shard ");
        let line = lines.iter().find(|line| line.starts_with(&begin)).unwrap_or_else(|| panic!("{lines:?}"));
        assert!(line.contains("test.fatal, keys: a b, "), "{line}");
        assert!(line.ends_with(&format!("ordain log abort {place}")), "{line}");
        let row = &json["under_way"][0];
        assert_eq!((&row["procedure"], &row["keys_count"]), (&"test.fatal".into(), &2.into()));

        let elsewhere = format!("{}.0.32767", row["epoch"]);
        abort(dir.path(), &[&elsewhere]).refused_with(&["its log holds no transaction", &elsewhere]);
        abort(dir.path(), &[&place, "--undo"]).refused_with(&["is not aborted here", &place]);
        let done = abort(dir.path(), &[&place, "--reason", "it kills"]);
        assert_eq!(done.code, Some(0), "{done:?}");
        assert!(
            done.stdout[0].contains(&format!("transaction {place} (test.fatal, keys: a b, ")),
            "{done:?}"
        );
        let again = abort(dir.path(), &[&place]);
        assert!(again.stdout[0].ends_with("was aborted already"), "{again:?}");
        // Nothing has been started since, so it can be taken back; then it is as fatal as before.
        assert_eq!(abort(dir.path(), &[&place, "--undo"]).code, Some(0));
        assert_eq!(run(start("2")).code, None, "{engine}");
        let short = place.replace(".0.", ":");
        assert_eq!(abort(dir.path(), &[&short, "--reason", "it kills"]).code, Some(0));

        let server = Server::start(start("2"));
        let mut client = server.client();
        assert_eq!(client.run("GET acknowledged").text(), "1", "{engine}");
        assert_eq!(client.run("MGET a b"), Reply::Array(vec![Reply::Nil, Reply::Nil]), "{engine}");
        // Whoever asks again in its session is told, and it is not executed.
        client.run("CLIENT SESSION 77");
        client.run("CLIENT REQUEST 1");
        let told = client.run("FCALL test.fatal 2 a b");
        assert_eq!(told.error(), "ERR transaction aborted by the operator", "{engine}");
        assert_eq!(client.run("SET later 2"), Reply::ok());
        let before = digest(&server);
        server.kill();
        let server = Server::start(start("3"));
        assert_eq!(digest(&server), before, "{engine}");
        let (lines, json) = {
            // It is held by the node that runs.
            abort(dir.path(), &[&place]).refused_with(&["is in use by process"]);
            server.stop();
            inspect(dir.path())
        };
        assert_eq!(json["under_way"], Value::Array(Vec::new()), "{engine}: it was stopped cleanly");
        let row = &json["aborted"][0];
        assert_eq!((&row["transaction"], &row["in_force"]), (&place.as_str().into(), &true.into()));
        let line = format!("aborted by the operator: transaction {place}: test.fatal, keys: a b, ");
        assert!(lines.iter().any(|l| l.starts_with(&line) && l.ends_with("; it kills")), "{lines:?}");
        abort(dir.path(), &[&place, "--undo"]).refused_with(&["before the last start", &place]);

        // What a checkpoint has is done.
        let server = Server::start(start("2"));
        let last = {
            let (mut client, (_, json)) = (server.client(), (lines, json));
            assert_eq!(client.run("BGSAVE").text(), "Background saving started");
            crate::support::until("there is a checkpoint", || client.run("LASTSAVE").int() > 0);
            json["last_epoch"].as_u64().unwrap()
        };
        assert_eq!(digest(&server), before, "{engine}");
        server.stop();
        abort(dir.path(), &[&format!("{last}:0")])
            .refused_with(&["the checkpoint of epoch", "cannot be aborted"]);
        let server = Server::start(start("2"));
        assert_eq!(digest(&server), before, "{engine}");
        server.stop();
    }
}

#[test]
fn all_nodes_of_a_cluster_lose_the_transaction_that_ends_them_and_nothing_else() {
    let mut grid = Grid::start_with_env(2, 3, "", &[KILLS]);
    let (one, two) = (grid.key_in(0, "a"), grid.key_in(1, "b"));
    let mut client = grid.client(0);
    assert_eq!(client.insist(&format!("SET {one} acknowledged")), Reply::ok());
    assert_eq!(client.insist(&format!("SET {two} acknowledged")), Reply::ok());
    client.send(format!("FCALL test.fatal 2 {one} {two}\r\n").as_bytes()).unwrap();
    // Who leads the partition that has it in its log dies, then the next one who does; the third cannot lead alone. Those of the
    // other partition may not have heard of it before.
    let dead = |partition: usize| {
        (0..3).map(|replica| replica * 2 + partition).filter(|id| grid.has_ended(*id)).count()
    };
    crate::support::until("it has ended two nodes of a partition", || dead(0).max(dead(1)) >= 2);
    drop(client);
    (0..grid.len()).for_each(|id| grid.kill(id));

    let places: Vec<String> = (0..grid.len()).filter_map(|id| culprit(&grid.directory(id))).collect();
    assert!(places.len() >= 2 && places.iter().all(|place| *place == places[0]), "{places:?}");
    let place = places[0].as_str();
    let config = grid.config();
    let config = ["--config", config.to_str().unwrap()];
    let partial = place.rsplit_once('.').unwrap().1;
    log(&[&["abort", &format!("1:{partial}")], &config[..]].concat())
        .refused_with(&["belongs to a cluster", "EPOCH.PARTITION.INDEX"]);
    let done = log(&[&["abort", place], &config[..]].concat());
    assert_eq!((done.code, done.stdout.len()), (Some(0), grid.len()), "{done:?}");

    (0..grid.len()).for_each(|id| grid.launch(id));
    (0..grid.len()).for_each(|id| grid.await_line(id));
    grid.await_ready();
    let mut client = grid.client(3);
    assert_eq!(client.insist(&format!("GET {one}")).text(), "acknowledged");
    assert_eq!(client.insist(&format!("GET {two}")).text(), "acknowledged");
    assert_eq!(client.insist(&format!("SET {one} later")), Reply::ok());
    grid.await_equal_digests();
    // A node that is away meanwhile executes its log again, and has it in its directory too.
    grid.kill(5);
    assert_eq!(client.insist(&format!("SET {two} later")), Reply::ok());
    grid.restart(5);
    grid.await_equal_digests();
    // Empty ones that join hear of it before all else: the logs of both partitions reach back to it.
    for id in [5, 4] {
        grid.replace(id);
        grid.await_equal_digests();
        let noted = fs::read_to_string(grid.directory(id).join("operator-aborts.json")).unwrap();
        assert!(noted.contains("\"in_force\": true"), "node {id}: {noted}");
        let epoch = place.split('.').next().unwrap();
        assert!(noted.contains(&format!("\"epoch\": {epoch},")), "node {id}, {place}: {noted}");
        assert_eq!(client.insist(&format!("SET {one} later")), Reply::ok());
    }
    assert_eq!(grid.client(5).insist(&format!("GET {two}")).text(), "later");
    grid.await_equal_digests();
    grid.stop();
}

#[test]
fn a_node_that_was_given_another_abort_than_its_members_takes_itself_out() {
    let mut grid = Grid::start(1, 3, "");
    let mut client = grid.client(0);
    for word in ["first", "victim", "last"] {
        assert_eq!(client.insist(&format!("SET {word} 1")), Reply::ok());
    }
    grid.await_equal_digests();
    grid.kill(2);
    let dir = grid.directory(2);
    let (_, json) = inspect(&dir);
    let batches = json["entries"].as_array().unwrap().iter().filter(|row| row["epoch"].is_u64());
    let is_victim = |place: &String| {
        let done = abort(&dir, &[place]);
        let found = done.stdout.first().is_some_and(|line| line.contains("keys: victim"));
        if done.code == Some(0) && !found {
            assert_eq!(abort(&dir, &[place, "--undo"]).code, Some(0));
        }
        found
    };
    let places: Vec<String> = batches
        .flat_map(|row| {
            (0..row["indices"].as_u64().unwrap()).map(move |index| format!("{}.0.{index}", row["epoch"]))
        })
        .collect();
    let place = places.iter().find(|place| is_victim(place));
    let place = place.unwrap_or_else(|| panic!("the transaction is not in its log: {json:#}"));
    let process = grid.launch_apart(2);
    // What it has executed is compared with the next batch.
    let ended = loop {
        client.insist("INCR counter");
        if let Some(ended) = process_ended(&process) {
            break ended;
        }
    };
    assert!(ended.contains("has diverged from its members and takes itself out"), "{place}: {ended}");
    assert_eq!(client.insist("GET victim").text(), "1");
    // The others go on, and so does it without the abort; it was started with it, so its directory begins anew.
    grid.await_same_digests(2);
    drop(process);
    grid.stop();
}

/// What a process has said, once it has ended.
fn process_ended(process: &Process) -> Option<String> {
    process.has_ended().then(|| process.stderr())
}
