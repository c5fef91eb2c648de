//! `ordain checkpoint restore`: what a new directory holds is what there was at the end of the epoch, no more and no less;
//! and what cannot be restored is refused, with the reason, and leaves nothing behind.

use std::fs;
use std::path::Path;

use crate::support::{Client, Ended, Expect, Reply, Server, ordain, run, serve_dir};

fn restore(from: &Path, to: &Path, flags: &[&str]) -> Ended {
    let mut command = ordain(["checkpoint", "restore"]);
    command.arg("--from").arg(from).arg("--data-dir").arg(to).args(flags);
    run(command)
}

fn start(dir: &Path) -> Server {
    Server::start(serve_dir(dir, ["--threads", "2"]))
}

/// Writes one thing that was not there, one that is replaced, and one that goes; answers the epoch.
fn write(client: &mut Client, round: usize) -> i64 {
    assert_eq!(client.run(&format!("SET new:{round} {round}")), Reply::ok());
    assert_eq!(client.run(&format!("SET same {round}")), Reply::ok());
    client.run(&format!("DEL new:{}", round.wrapping_sub(2)));
    client.run("CLIENT EPOCH").int()
}

/// All that `write` may have left.
fn state(server: &Server, rounds: usize) -> Vec<Reply> {
    let mut client = server.client();
    let keys =
        (0..rounds).map(|round| format!("GET new:{round}")).chain(["GET same".into(), "DBSIZE".into()]);
    keys.map(|command| client.run(&command)).collect()
}

fn the_state_at_the_end_of_an_epoch(engine: &str) {
    const ROUNDS: usize = 12;
    let (dir, copies) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let start = |dir: &Path| Server::start(serve_dir(dir, ["--threads", "2", "--engine", engine]));
    let server = start(dir.path());
    let mut client = server.client();
    let mut states = Vec::new();
    for round in 0..ROUNDS {
        let epoch = write(&mut client, round);
        states.push((epoch, state(&server, ROUNDS), client.run("DEBUG DIGEST")));
        if [3, 7].contains(&round) {
            crate::checkpoint::save(&server);
        }
    }
    restore(dir.path(), &copies.path().join("early"), &[]).refused_with(&["in use"]);
    server.stop();

    let json = copies.path().join("restored.json");
    for (n, (epoch, state_then, digest)) in states.iter().enumerate() {
        let copy = copies.path().join(n.to_string());
        let (until, json_flag) = (epoch.to_string(), json.to_str().unwrap());
        let ended = restore(dir.path(), &copy, &["--to-epoch", &until, "--json", json_flag]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let restored: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
        assert_eq!(restored["epoch"].as_i64(), Some(*epoch));
        assert_eq!(
            restored["checkpoints"].as_array().unwrap().len(),
            [4, 8].iter().filter(|at| **at <= n).count()
        );
        let server = start(&copy);
        assert_eq!(&state(&server, ROUNDS), state_then, "to epoch {epoch}");
        assert_eq!(&server.client().run("DEBUG DIGEST"), digest);
        // It goes on from there, and keeps what it does.
        write(&mut server.client(), 20);
        server.kill();
        let server = start(&copy);
        assert_eq!(server.client().run("GET same").text(), "20");
        assert_eq!(server.client().run("GET new:20").text(), "20");
        server.stop();
    }
    let whole = copies.path().join("whole");
    assert_eq!(restore(dir.path(), &whole, &[]).code, Some(0));
    // An empty directory is taken, and so is an epoch after all that there is.
    let later = tempfile::tempdir().unwrap();
    assert_eq!(restore(&whole, later.path(), &["--to-epoch", &u64::MAX.to_string()]).code, Some(0));
    for copy in [&whole, later.path()] {
        let server = start(copy);
        assert_eq!(state(&server, ROUNDS), states.last().unwrap().1);
        server.stop();
    }
    let again = start(dir.path());
    assert_eq!(state(&again, ROUNDS), states.last().unwrap().1, "the source is as it was");
    again.stop();
}

#[test]
fn what_is_restored_is_the_state_at_the_end_of_the_epoch() {
    the_state_at_the_end_of_an_epoch("calvin");
}

#[test]
fn what_is_restored_of_an_engine_with_locks_is_the_state_at_a_place_of_its_log() {
    the_state_at_the_end_of_an_epoch("no-wait");
}

#[test]
fn what_cannot_be_restored_is_refused() {
    let (dir, copies) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = start(dir.path());
    let epoch = write(&mut server.client(), 0).to_string();
    crate::checkpoint::save(&server);
    write(&mut server.client(), 1);
    server.stop();
    let target = copies.path().join("target");
    let refused = |from: &Path, flags: &[&str], words: &[&str]| {
        restore(from, &target, flags).refused_with(words);
        assert!(!target.exists(), "{words:?}");
    };
    refused(&copies.path().join("nothing"), &[], &["there is no data directory", "nothing"]);
    refused(copies.path(), &[], &["ordain.json"]);
    restore(dir.path(), dir.path(), &[]).refused_with(&["is not empty"]);
    let other = copies.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("mine"), "x").unwrap();
    restore(dir.path(), &other, &[]).refused_with(&["other is not empty", "mine"]);

    // What is damaged is named: the checkpoint, the log, and whose the directory is.
    for (what, words) in
        [(".state", "checkpoint damaged"), (".seg", "log damaged"), ("ordain.json", "damaged")]
    {
        let copy = copies.path().join(format!("of{what}"));
        assert_eq!(restore(dir.path(), &copy, &[]).code, Some(0));
        let files = fs::read_dir(&copy).unwrap().map(|entry| entry.unwrap().path());
        let file = files.into_iter().find(|file| file.to_str().unwrap().ends_with(what)).unwrap();
        let mut bytes = fs::read(&file).unwrap();
        // The first entry or frame.
        let at = 560.min(bytes.len() - 1);
        bytes[at] ^= 1;
        fs::write(&file, bytes).unwrap();
        refused(&copy, &[], &[words, file.file_name().unwrap().to_str().unwrap()]);
    }
    // A node of a cluster does not go back alone.
    let copy = copies.path().join("member");
    assert_eq!(restore(dir.path(), &copy, &[]).code, Some(0));
    let file = copy.join("ordain.json");
    let text = fs::read_to_string(&file).unwrap();
    // As it was before it had a checksum.
    let (text, _) = text.rsplit_once(",\n  \"checksum\"").unwrap();
    fs::write(&file, format!("{text}\n}}").replace("\"alone\": true", "\"alone\": false")).unwrap();
    refused(&copy, &["--to-epoch", &epoch], &["node 0 of cluster", "same epoch together"]);
    assert_eq!(restore(&copy, &target, &[]).code, Some(0));
}
