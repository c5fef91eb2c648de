//! What `ordain` refuses to do, and how it says so: one line, the reason, and the right exit code.

use std::fs;

use crate::support::{Client, Reply, Server, ordain, run, serve, serve_dir};

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
    for engine in ["no-wait", "wait-die", "timestamp", "mvcc", "maat", "walter", "fwkv", "occ-2pc"] {
        let words = [&format!("engine '{engine}' is not built yet"), "calvin"];
        run(serve_dir(&data, ["--engine", engine])).refused_with(&words);
    }
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
    assert_eq!(guarded.http("/readyz").0, 200);
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
