//! BGSAVE under load and kill -9: what was acknowledged is there, from the checkpoint and what the log holds since; and a
//! checkpoint that is damaged is found, named and done without.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::support::{Client, Expect, Reply, Server, ordain, run, serve_dir, until};

fn digest(server: &Server) -> String {
    server.client().run("DEBUG DIGEST").text().to_owned()
}

/// The state files of a directory's checkpoints, the oldest first.
fn states(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut states: Vec<PathBuf> =
        files.filter(|file| file.extension().is_some_and(|e| e == "state")).collect();
    states.sort();
    states
}

fn complete(server: &Server) -> (u64, u64) {
    let (_, _, body) = server.http("/status");
    let status: serde_json::Value = serde_json::from_str(&body).unwrap();
    let number = |name: &str| status["checkpoint"][name].as_u64().unwrap();
    (number("epoch"), number("kept"))
}

/// Takes a checkpoint and waits until it is complete.
pub fn save(server: &Server) {
    let has_one = server.process().stderr().contains("begins from a checkpoint");
    until("it says which it has begun from", || !has_one || complete(server).0 > 0);
    let (before, _) = complete(server);
    assert_eq!(server.client().run("BGSAVE").text(), "Background saving started");
    until("the checkpoint is complete", || complete(server).0 > before);
}

fn what_was_acknowledged_is_there(engine: &str) {
    let dir = tempfile::tempdir().unwrap();
    let start = |threads: &str| {
        let flags = ["--engine", engine, "--threads", threads];
        Server::start(serve_dir(dir.path(), flags))
    };
    let server = start("2");
    let mut client = server.client();
    for key in 0..500 {
        client.run(&format!("SET before:{key} {key}"));
    }
    assert_eq!(client.run("CLIENT SESSION 7"), Reply::ok());
    let stop = AtomicBool::new(false);
    let counted: Vec<i64> = thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|worker| {
                let (mut client, stop): (Client, _) = (server.client(), &stop);
                scope.spawn(move || {
                    let mut counted = 0;
                    while !stop.load(Ordering::Relaxed) {
                        counted = client.run(&format!("INCR count:{worker}")).int();
                    }
                    counted
                })
            })
            .collect();
        save(&server);
        save(&server);
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let last_save = server.client().run("LASTSAVE").int();
    let before = digest(&server);
    server.kill();

    let verified = run(ordain(["checkpoint", "verify", "--data-dir", dir.path().to_str().unwrap()]));
    assert_eq!(verified.code, Some(0), "{}", verified.stderr);
    // On another number of threads: records and sessions find their shards.
    let server = start("3");
    assert!(server.process().stderr().contains("begins from a checkpoint"), "{}", server.process().stderr());
    assert_eq!(digest(&server), before);
    let mut client = server.client();
    for (worker, counted) in counted.iter().enumerate() {
        assert!(*counted > 0);
        assert_eq!(client.run(&format!("GET count:{worker}")).text(), counted.to_string());
    }
    assert_eq!(client.run("GET before:499").text(), "499");
    until("INFO knows of it", || client.run("LASTSAVE").int() >= last_save);
    server.stop();
}

#[test]
fn what_was_acknowledged_is_there_after_a_checkpoint_under_load_and_a_kill() {
    what_was_acknowledged_is_there("calvin");
}

#[test]
fn what_was_acknowledged_under_locks_is_there_after_a_checkpoint_under_load_and_a_kill() {
    what_was_acknowledged_is_there("no-wait");
}

fn a_damaged_one_is_found(engine: &str) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let start = || Server::start(serve_dir(dir.path(), ["--engine", engine, "--threads", "2"]));
    let server = start();
    for round in 0..3 {
        for key in 0..100 {
            server.client().run(&format!("SET key:{key} {round}:{key}"));
        }
        save(&server);
    }
    assert_eq!(complete(&server).1, 2, "older ones go");
    let before = digest(&server);
    server.kill();
    let states = states(dir.path());
    assert_eq!(states.len(), 2);
    let mut bytes = fs::read(&states[1]).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(&states[1], bytes).unwrap();

    let json = dir.path().join("found.json");
    let flags = ["checkpoint", "verify", "--data-dir", path, "--json", json.to_str().unwrap()];
    let verified = run(ordain(flags));
    assert_eq!(verified.code, Some(1), "{}", verified.stderr);
    let found: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(found["sound"], false);
    assert_eq!(found["checkpoints"][0]["standing"], "complete");
    assert_eq!(found["checkpoints"][1]["standing"], "damaged");

    let server = start();
    let told = server.process().stderr();
    assert!(told.contains("cannot be used") && told.contains("damaged"), "{told}");
    assert_eq!(digest(&server), before);
    // The next one takes its place.
    save(&server);
    server.stop();
    assert_eq!(run(ordain(["checkpoint", "verify", "--data-dir", path])).code, Some(0));
}

#[test]
fn a_damaged_checkpoint_is_found_and_the_one_before_is_taken() {
    a_damaged_one_is_found("calvin");
}

#[test]
fn a_damaged_checkpoint_of_an_engine_with_locks_is_found_and_the_one_before_is_taken() {
    a_damaged_one_is_found("wait-die");
}

#[test]
fn what_cannot_be_saved_is_refused() {
    let server = Server::start(crate::support::serve(["--ephemeral"]));
    let mut client = server.client();
    assert!(client.run("BGSAVE").error().contains("keeps nothing"));
    assert!(client.run("SAVE").error().contains("BGSAVE"));
    server.stop();
}
