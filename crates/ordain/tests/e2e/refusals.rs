//! What `ordain` refuses to do, and how it says so: one line, the reason, and the right exit code.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::support::{Client, Expect, Reply, Server, ordain, ports, run, serve, serve_dir, until};

#[test]
fn help_and_version_are_there_for_every_command() {
    for command in [
        &[][..],
        &["serve"],
        &["cluster"],
        &["cluster", "up"],
        &["cluster", "status"],
        &["sim"],
        &["bench"],
        &["bench", "ycsb"],
        &["bench", "ceiling"],
        &["log"],
        &["log", "inspect"],
        &["log", "verify"],
        &["log", "trim"],
    ] {
        let ended = run(ordain(command.iter().chain(&["--help"])));
        assert_eq!(ended.code, Some(0), "{command:?} {ended:?}");
        assert!(ended.stdout.iter().any(|line| line.starts_with("Usage: ordain")), "{command:?} {ended:?}");
        assert!(ended.stderr.is_empty(), "{ended:?}");
    }
    let ended = run(ordain(["--version"]));
    assert_eq!(ended.stdout, [format!("ordain {}", env!("CARGO_PKG_VERSION"))]);
}

#[test]
fn wrong_usage_is_exit_2() {
    for words in [
        &["serve", "--no-such-flag"][..],
        &["serve", "--listen", "nowhere"],
        &["serve", "--threads", "many"],
        &["serve", "--durability", "sometimes"],
        &["no-such-command"],
        &["log"],
        &["log", "trim"],
        &["cluster"],
        &["cluster", "up", "--partitions", "many"],
        &["sim", "--seed", "red"],
    ] {
        let ended = run(ordain(words));
        assert_eq!(ended.code, Some(2), "{words:?} {ended:?}");
        assert!(ended.stdout.is_empty(), "{words:?} {ended:?}");
        assert!(ended.stderr.contains("Usage: ordain") || ended.stderr.starts_with("error: "), "{ended:?}");
    }
}

#[test]
fn an_engine_that_is_not_there_is_refused_by_name_and_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    run(serve_dir(&data, ["--engine", "postgres"]))
        .refused_with(&["there is no engine 'postgres'", "calvin"]);
    assert!(!data.exists());
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    run(serve_dir(dir.path(), ["--threads", "0"])).refused_with(&["--threads"]);
    run(serve_dir(dir.path(), ["--threads", "100000"])).refused_with(&["--threads"]);
    run(serve(["--ephemeral", "--durability", "os"])).refused_with(&["--ephemeral", "--durability"]);
    run(serve(["--ephemeral", "--log", "=,="])).refused_with(&["--log"]);
    run(serve(["--config", "/nowhere/ordain.toml"])).refused_with(&["/nowhere/ordain.toml"]);
}

#[test]
fn a_data_directory_has_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let first = Server::start(serve_dir(dir.path(), [""; 0]));
    assert_eq!(first.client().run("SET key value"), Reply::ok());
    run(serve_dir(dir.path(), [""; 0])).refused_with(&[dir.path().to_str().unwrap(), "process"]);
    for command in ["inspect", "verify"] {
        let words = ["log", command, "--data-dir", dir.path().to_str().unwrap()];
        run(ordain(words)).refused_with(&[dir.path().to_str().unwrap()]);
    }
    assert_eq!(first.client().run("GET key").text(), "value");
    first.kill();
    // The lock goes with the process, however that ends.
    Server::start(serve_dir(dir.path(), [""; 0])).stop();
}

#[test]
fn an_address_that_is_taken_is_refused() {
    let first = Server::start(serve(["--ephemeral"]));
    for (flag, taken) in [("--listen", first.resp), ("--admin", first.admin)] {
        let other = if flag == "--listen" { "--admin" } else { "--listen" };
        let ended = run(ordain(["--ephemeral", flag, &taken.to_string(), other, "127.0.0.1:0"]));
        ended.refused_with(&[&taken.to_string(), flag]);
    }
}

#[test]
fn other_machines_come_in_with_a_password_or_not_at_all() {
    let open = |words: &[&str]| {
        let mut command = ordain(["--ephemeral", "--listen", "0.0.0.0:0", "--admin", "127.0.0.1:0"]);
        command.args(words);
        command
    };
    run(open(&[])).refused_with(&["0.0.0.0", "--password", "--insecure"]);
    let local = |server: &Server| Client::connect(([127, 0, 0, 1], server.resp.port()).into()).unwrap();

    let insecure = Server::start(open(&["--insecure"]));
    assert_eq!(local(&insecure).run("PING").text(), "PONG");

    let guarded = Server::start(open(&["--password", "open sesame"]));
    let mut client = local(&guarded);
    for refused in ["GET key", "SET key value", "DEBUG DIGEST", "MULTI", "CLIENT LIST"] {
        assert_eq!(client.run(refused).error(), "NOAUTH Authentication required.", "{refused}");
    }
    assert!(client.call(&["AUTH", "wrong"]).error().starts_with("WRONGPASS"));
    assert_eq!(client.run("GET key").error(), "NOAUTH Authentication required.");
    assert_eq!(client.call(&["AUTH", "open sesame"]), Reply::ok());
    assert_eq!(client.run("SET key value"), Reply::ok());
    let mut other = local(&guarded);
    assert_eq!(other.run("GET key").error(), "NOAUTH Authentication required.");
    assert!(matches!(other.call(&["HELLO", "2", "AUTH", "default", "open sesame"]), Reply::Array(_)));
    assert_eq!(other.run("GET key").text(), "value");
    // The admin server's own questions get in too.
    until("the admin server has an answer", || guarded.http("/readyz").0 == 200);
}

#[test]
fn a_log_that_is_not_there_is_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("nowhere");
    for command in ["inspect", "verify"] {
        let ended = run(ordain(["log", command, "--data-dir", nowhere.to_str().unwrap()]));
        ended.refused_with(&[nowhere.to_str().unwrap(), "--data-dir"]);
    }
    assert!(fs::exists(&nowhere).is_ok_and(|there| !there));
}

/// The bytes of all files of a directory and when they were changed; but of the two that say which process uses the
/// directory and what that does.
fn snapshot(dir: &Path) -> BTreeMap<String, (Vec<u8>, SystemTime)> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let named = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
    let ours = named.filter(|(name, _)| name != ".lock" && name != "under-way");
    let read = |path: PathBuf| (fs::read(&path).unwrap(), fs::metadata(&path).unwrap().modified().unwrap());
    ours.map(|(name, path)| (name, read(path))).collect()
}

#[test]
fn a_refused_start_changes_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--threads", "2", "--log-segment-bytes", "1048576"];
    let server = Server::start(serve_dir(dir.path(), flags));
    assert_eq!(server.client().run("SET key value"), Reply::ok());
    server.stop();
    // So that the log ends with something that a start would make durable.
    let server = Server::start(serve_dir(dir.path(), flags));
    assert_eq!(server.client().run("SET other value"), Reply::ok());
    server.kill();
    let (identity, aborts) = (dir.path().join("ordain.json"), dir.path().join("operator-aborts.json"));
    let [text, segment] = ["ordain.json", "log-"].map(|begin| {
        let files = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut files = files.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(begin));
        files.next().unwrap()
    });
    let text = fs::read(text).unwrap();
    let refused = |more: &[&str], words: &[&str]| {
        let before = snapshot(dir.path());
        // With other settings than before, which would be written down.
        let mut command = serve_dir(dir.path(), ["--threads", "3", "--log-segment-bytes", "1048576"]);
        command.args(more);
        run(command).refused_with(words);
        assert!(snapshot(dir.path()) == before, "{words:?}: something was changed");
    };
    refused(&["--engine", "qstore"], &["belongs to engine 'calvin'"]);

    let plain = String::from_utf8(text.clone()).unwrap();
    let (plain, _) = plain.rsplit_once(",\n  \"checksum\"").unwrap();
    fs::write(&identity, format!("{plain}\n}}").replace("\"format\": 3", "\"format\": 7")).unwrap();
    refused(&[], &["has format 7"]);
    let mut flipped = text.clone();
    flipped[text.len() / 2] ^= 1;
    fs::write(&identity, flipped).unwrap();
    refused(&[], &["ordain.json: damaged"]);
    fs::write(&identity, &text).unwrap();

    fs::write(&aborts, "{}").unwrap();
    refused(&[], &["operator-aborts.json is damaged"]);
    fs::remove_file(&aborts).unwrap();

    let log = fs::read(&segment).unwrap();
    let mut damaged = log.clone();
    damaged[560] ^= 1;
    fs::write(&segment, damaged).unwrap();
    refused(&[], &["log damaged"]);
    fs::write(&segment, &log).unwrap();

    let cluster = tempfile::NamedTempFile::new().unwrap();
    let ports = ports(6);
    let nodes: String = (0..2)
        .map(|id| {
            let at = |kind: u16| format!("\"127.0.0.1:{}\"", ports + 3 * id + kind);
            format!("[[node]]\nid = {id}\ncluster = {}\nresp = {}\nadmin = {}\n", at(0), at(1), at(2))
        })
        .collect();
    fs::write(cluster.path(), format!("cluster = \"c\"\npartitions = 2\nreplicas = 1\nthreads = 3\n{nodes}"))
        .unwrap();
    let before = snapshot(dir.path());
    let config = cluster.path().to_str().unwrap();
    let words = ["serve", "--config", config, "--node", "0", "--data-dir", dir.path().to_str().unwrap()];
    run(ordain(words)).refused_with(&["belongs to a node on its own, not to node 0 of cluster 'c'"]);
    assert!(snapshot(dir.path()) == before, "another cluster: something was changed");

    // Whoever uses the directory is not driven out by removing the file that names him.
    let lock = ordain_runtime::DirLock::acquire(dir.path()).unwrap();
    refused(&[], &["is in use by process"]);
    fs::remove_file(dir.path().join(".lock")).unwrap();
    refused(&[], &["is in use by another process"]);
    assert!(!dir.path().join(".lock").exists());
    drop(lock);

    // And none of this has done any harm.
    let server = Server::start(serve_dir(dir.path(), flags));
    assert_eq!(server.client().run("GET key").text(), "value");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(dir.path()) & 0o007, 0);
    let made = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    // Those that the test has written have the mode that the test gave them.
    let open: Vec<PathBuf> = made.filter(|path| mode(path) & 0o077 != 0 && *path != segment).collect();
    assert!(open.is_empty(), "{open:?}");
    server.stop();
}
