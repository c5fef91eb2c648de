//! A log that is cut or has a flipped bit: the start is refused with the file, the place and the reason, or what is
//! there afterwards is exactly what some first part of the history made. Never anything else.
//!
//! A sample of places, over real files and processes; the crate `log` tries every byte of its own small segments.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::support::{Expect, Process, Random, Reply, Server, ordain, run, serve_dir};

/// How many transactions the history has, each in a batch of its own.
const HISTORY: u64 = 40;

/// The length of the log's file: the history fits, and there is little to read each time.
const SEGMENT: [&str; 2] = ["--log-segment-bytes", "65536"];

/// `ordain serve` on a directory, with a short log.
fn serve_short(dir: &Path, threads: &str) -> std::process::Command {
    let mut command = serve_dir(dir, ["--threads", threads]);
    command.args(SEGMENT);
    command
}

/// A data directory with the history, and where its entries begin.
struct Original {
    dir: tempfile::TempDir,
    segment: String,
    entries: Vec<u64>,
    end: u64,
}

fn original(is_stopped_cleanly: bool) -> Original {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(serve_short(dir.path(), "1"));
    let mut client = server.client();
    for i in 0..HISTORY {
        client.run("MULTI");
        client.run(&format!("SET key:{i} value:{i}"));
        client.run("INCR count");
        assert_eq!(client.run("EXEC").items()[1], Reply::Int(i as i64 + 1));
    }
    if is_stopped_cleanly {
        server.stop()
    } else {
        server.kill()
    }

    let json = dir.path().join("log.json");
    let inspected = log("inspect", dir.path(), &["--json", json.to_str().unwrap()]);
    assert_eq!(inspected.code, Some(0), "{inspected:?}");
    let json: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert_eq!(json["transactions"], HISTORY);
    assert_eq!(json["torn"], serde_json::Value::Null);
    let rows = json["entries"].as_array().unwrap();
    assert_eq!(rows.len() as u64, json["batches"].as_u64().unwrap());
    let last = rows.last().unwrap();
    Original {
        segment: last["file"].as_str().unwrap().to_owned(),
        entries: rows.iter().map(|row| row["offset"].as_u64().unwrap()).collect(),
        end: last["offset"].as_u64().unwrap() + 48 + last["bytes"].as_u64().unwrap(),
        dir,
    }
}

fn log(command: &str, dir: &Path, more: &[&str]) -> crate::support::Ended {
    let words = ["log", command, "--data-dir", dir.to_str().unwrap()];
    run(ordain(words.iter().chain(more)))
}

impl Original {
    /// A copy whose segment is damaged by `damage`. Only what was written is copied, the rest of the segment is
    /// the zeros that it is.
    fn damaged(&self, damage: impl FnOnce(&fs::File)) -> (tempfile::TempDir, PathBuf) {
        let copy = tempfile::tempdir().unwrap();
        fs::copy(self.dir.path().join("ordain.json"), copy.path().join("ordain.json")).unwrap();
        let from = fs::File::open(self.dir.path().join(&self.segment)).unwrap();
        let mut bytes = vec![0; 64 << 10];
        from.read_exact_at(&mut bytes, 0).unwrap();
        let path = copy.path().join(&self.segment);
        let file = fs::File::create_new(&path).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        file.set_len(from.metadata().unwrap().len()).unwrap();
        damage(&file);
        (copy, path)
    }

    /// Starts on a damaged copy and judges. The number of transactions that were there, or `None`: refused.
    fn judge(&self, what: &str, damage: impl FnOnce(&fs::File)) -> Option<u64> {
        let (copy, path) = self.damaged(damage);
        let before = fs::metadata(&path).unwrap().len();
        let verified = log("verify", copy.path(), &[]);
        let inspected = log("inspect", copy.path(), &[]);
        assert_eq!(verified.code, inspected.code, "{what}: {verified:?} {inspected:?}");
        let process = Process::spawn(serve_short(copy.path(), "2"));
        let Ok(ready) = process.line_within(crate::support::DEADLINE) else {
            let ended = process.wait();
            ended.refused_with(&[copy.path().to_str().unwrap(), &self.segment]);
            assert_eq!(verified.code, Some(1), "{what}: {verified:?}");
            // The same words, but for the directory that the one names and the other was given.
            let reason = verified.stderr.trim().trim_start_matches("ordain: ");
            assert!(ended.stderr.contains(reason), "{what}: {ended:?} {verified:?}");
            assert_eq!(fs::metadata(&path).unwrap().len(), before, "{what}: a refused log was touched");
            return None;
        };
        assert_eq!(verified.code, Some(0), "{what}: {verified:?}");
        let server = Server::ready(process, ready);
        let mut client = server.client();
        let count = match client.run("GET count") {
            Reply::Nil => 0,
            text => text.text().parse::<u64>().unwrap(),
        };
        for i in 0..HISTORY {
            let expected = if i < count { Reply::Bulk(format!("value:{i}").into()) } else { Reply::Nil };
            assert_eq!(client.run(&format!("GET key:{i}")), expected, "{what}");
        }
        assert_eq!(client.run("DBSIZE").int() as u64, if count == 0 { 0 } else { count + 1 }, "{what}");
        // It goes on from there, and what it says now stays.
        assert_eq!(client.run("SET after value"), Reply::ok());
        server.kill();
        let server = Server::start(serve_short(copy.path(), "2"));
        assert_eq!(server.client().run("GET after").text(), "value");
        server.kill();
        Some(count)
    }
}

fn flip(at: u64, bit: u64) -> impl FnOnce(&fs::File) {
    move |file| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ (1 << bit)], at).unwrap();
    }
}

#[test]
fn a_flipped_bit_is_refused_or_cuts_what_nothing_vouches_for() {
    let mut numbers = Random(1);
    for is_stopped_cleanly in [false, true] {
        let original = original(is_stopped_cleanly);
        for at in [0, 9, 17, 25, 41, 509] {
            assert_eq!(original.judge(&format!("header byte {at}"), flip(at, 0)), None);
        }
        // Any entry but the last is vouched for by a later one.
        for _ in 0..16 {
            let (first, last) = (original.entries[0], original.entries[original.entries.len() - 1]);
            let (at, bit) = (first + numbers.below(last - first), numbers.below(8));
            assert_eq!(original.judge(&format!("byte {at} bit {bit}"), flip(at, bit)), None);
        }
        let last = original.entries[original.entries.len() - 1];
        for _ in 0..6 {
            let at = last + numbers.below(original.end - last);
            let left = original.judge(&format!("last entry, byte {at}"), flip(at, numbers.below(8)));
            // After a clean stop the last entry is vouched for as well, by the mark behind it.
            let possible = if is_stopped_cleanly { &[None][..] } else { &[None, Some(HISTORY - 1)] };
            assert!(possible.contains(&left), "byte {at}: {left:?}");
        }
        if is_stopped_cleanly {
            for at in last..original.end {
                let (copy, _) = original.damaged(flip(at, numbers.below(8)));
                let verified = log("verify", copy.path(), &[]);
                assert_eq!(verified.code, Some(1), "last entry, byte {at}: {verified:?}");
            }
            // The mark itself may be taken for torn: nothing is lost with it.
            let mark = original.end.next_multiple_of(8);
            let left = original.judge("the mark", flip(mark + numbers.below(48), numbers.below(8)));
            assert_eq!(left, Some(HISTORY));
        }
    }
}

#[test]
fn a_log_that_was_cut_is_refused_or_is_a_first_part() {
    let mut numbers = Random(2);
    let original = original(false);
    for _ in 0..12 {
        let first = original.entries[0];
        let at = numbers.below(original.end - first) + first;
        // The file is not shorter than its header says by any crash.
        assert_eq!(original.judge(&format!("cut at {at}"), |file| file.set_len(at).unwrap()), None);
        // The disk has lost all from there on: as if it had not been written.
        let zeros = |file: &fs::File| {
            let len = file.metadata().unwrap().len();
            file.set_len(at).unwrap();
            file.set_len(len).unwrap();
        };
        let left = original.judge(&format!("zeros from {at}"), zeros);
        let whole = original.entries.iter().filter(|begin| **begin < at).count() as u64;
        assert!(left == Some(whole) || left == Some(whole - 1), "zeros from {at}: {left:?} of {whole}");
    }
    assert_eq!(original.judge("no damage", |_| {}), Some(HISTORY));
}

#[test]
fn a_log_that_is_gone_is_refused_and_not_begun_anew() {
    let Original { dir, segment, .. } = original(true);
    let (path, aside) = (dir.path().join(&segment), dir.path().join("aside"));
    fs::rename(&path, &aside).unwrap();
    run(serve_dir(dir.path(), ["--threads", "1"])).refused_with(&["log", "gone"]);

    fs::rename(&aside, &path).unwrap();
    let server = Server::start(serve_dir(dir.path(), ["--threads", "1"]));
    assert_eq!(server.client().run("GET count").text(), HISTORY.to_string());
    server.stop();
}
