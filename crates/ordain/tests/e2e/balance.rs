//! Slots of which much is asked go to threads that have less to do, with what is in them, while clients go on; and are there
//! again after kill -9, whatever the number of threads.

use ordain_model::KeyHash;
use ordain_model::key::SLOTS;

use crate::support::{Expect, Reply, Server, serve_dir, until};

/// How many keys lie below each hash tag.
const KEYS: usize = 25;

/// Hash tags whose slots all are of the first of two threads.
fn crowded() -> Vec<String> {
    let tags = (0..).map(|n| format!("{{tag:{n}}}"));
    tags.filter(|tag| KeyHash::of(tag.as_bytes()).slot() < SLOTS / 2).take(20).collect()
}

fn map_version(server: &Server) -> u64 {
    let (_, _, status) = server.http("/status");
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    status["map_version"].as_u64().unwrap()
}

/// Writes round by round, all keys in one transaction each time, until something is so. Answers how many rounds.
fn write_until(server: &Server, mut is_so: impl FnMut(usize) -> bool) -> usize {
    let mut client = server.client();
    let keys: Vec<String> =
        crowded().iter().flat_map(|tag| (0..KEYS).map(move |key| format!("{tag}:{key}"))).collect();
    let mut round = 0;
    until("it is so", || {
        for _ in 0..20 {
            round += 1;
            let value = round.to_string();
            let pairs = keys.iter().flat_map(|key| [key.as_str(), &value]);
            assert_eq!(client.call(&std::iter::once("MSET").chain(pairs).collect::<Vec<_>>()), Reply::ok());
        }
        is_so(round)
    });
    round
}

fn has_all(server: &Server, round: usize) {
    let mut client = server.client();
    for tag in crowded() {
        let keys: Vec<String> = (0..KEYS).map(|key| format!("{tag}:{key}")).collect();
        let words: Vec<&str> = std::iter::once("MGET").chain(keys.iter().map(String::as_str)).collect();
        let values = client.call(&words);
        assert!(values.items().iter().all(|value| value.text() == round.to_string()), "{tag} after {round}");
    }
}

#[test]
fn slots_of_which_much_is_asked_go_to_the_other_thread_and_stay_there() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(serve_dir(dir.path(), ["--threads", "2", "--durability", "os"]));
    assert_eq!(map_version(&server), 0);
    let round = write_until(&server, |_| map_version(&server) > 0);
    has_all(&server, round);
    let version = map_version(&server);
    let digest = server.client().run("DEBUG DIGEST");
    server.kill();

    for threads in ["3", "1", "2"] {
        let server = Server::start(serve_dir(dir.path(), ["--threads", threads]));
        until("slots are where they were", || map_version(&server) >= version);
        assert_eq!(server.client().run("DEBUG DIGEST"), digest, "{threads} threads");
        has_all(&server, round);
        server.kill();
    }
}

#[test]
fn slots_stay_where_they_are_if_they_are_to() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--threads", "2", "--durability", "os", "--balance", "false"];
    let server = Server::start(serve_dir(dir.path(), args));
    // Twice as much as it takes to be noticed.
    let round = write_until(&server, |round| round * KEYS * 20 > 2 * 61 * 2 * 2048);
    has_all(&server, round);
    assert_eq!(map_version(&server), 0);
    server.stop();
}
