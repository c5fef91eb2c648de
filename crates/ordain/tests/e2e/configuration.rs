//! Where the configuration comes from, and what beats what; what a data directory remembers of it.

use std::fs;

use crate::support::{Expect, Reply, Server, ordain, run, serve_dir};

#[test]
fn a_flag_beats_the_environment_and_the_environment_beats_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ordain.toml");
    let data = dir.path().join("from-file");
    let text = format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\ndata-dir = {:?}\nthreads = 3\n\
         durability = \"os\"\npassword = \"of the file\"\n",
        data.to_str().unwrap()
    );
    fs::write(&file, &text).unwrap();
    let start = |flags: &[&str], environment: &[(&str, &str)]| {
        let mut command = ordain(["serve", "--config", file.to_str().unwrap()]);
        command.args(flags).envs(environment.iter().copied());
        Server::start(command)
    };
    let shown = |server: &Server, password: &str, name: &str| {
        let mut client = server.client();
        assert_eq!(client.call(&["AUTH", password]), Reply::ok());
        let pair = client.run(&format!("CONFIG GET {name}"));
        pair.items()[1].text().to_owned()
    };

    let server = start(&[], &[]);
    assert_eq!(shown(&server, "of the file", "io-threads"), "3");
    assert_eq!(shown(&server, "of the file", "appendfsync"), "everysec");
    assert_eq!(shown(&server, "of the file", "dir"), data.to_str().unwrap());
    server.stop();
    assert!(data.join("ordain.json").exists());

    let environment = [("ORDAIN_THREADS", "2"), ("ORDAIN_PASSWORD", "of the environment")];
    let server = start(&[], &environment);
    assert_eq!(shown(&server, "of the environment", "io-threads"), "2");
    assert_eq!(shown(&server, "of the environment", "appendfsync"), "everysec");
    server.stop();

    // The environment's password undoes the file's, however the file gives it.
    let secret = dir.path().join("secret");
    fs::write(&secret, "of the secret file").unwrap();
    let in_file = text.replace("password = \"of the file\"", &format!("password-file = {secret:?}"));
    assert_ne!(in_file, text);
    fs::write(&file, in_file).unwrap();
    let server = start(&[], &environment);
    assert_eq!(shown(&server, "of the environment", "io-threads"), "2");
    server.stop();

    let server = start(&["--threads", "1", "--durability", "fsync"], &environment);
    assert_eq!(shown(&server, "of the environment", "io-threads"), "1");
    assert_eq!(shown(&server, "of the environment", "appendfsync"), "always");
    server.stop();
}

#[test]
fn everything_can_come_from_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let start = || {
        let mut command = ordain([""; 0]);
        let environment = [
            ("ORDAIN_LISTEN", "127.0.0.1:0"),
            ("ORDAIN_ADMIN", "127.0.0.1:0"),
            ("ORDAIN_DATA_DIR", data.to_str().unwrap()),
            ("ORDAIN_ENGINE", "calvin"),
            ("ORDAIN_LOG", "debug"),
            ("ORDAIN_LOG_JSON", "true"),
        ];
        command.envs(environment);
        command
    };
    let server = Server::start(start());
    assert_eq!(server.client().run("SET key value"), Reply::ok());
    server.process().signal(rustix::process::Signal::TERM);
    let ended = server.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for line in ended.stderr.lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect(line);
        assert!(line["level"].is_string() && line["timestamp"].is_string(), "{line}");
    }

    let mut command = start();
    command.env("ORDAIN_ENGINE", "postgres");
    run(command).refused_with(&["there is no engine 'postgres'"]);
    let mut command = start();
    command.env("ORDAIN_EPHEMERAL", "true");
    let server = Server::start(command);
    assert_eq!(server.client().run("GET key"), Reply::Nil, "nothing is read, and nothing kept");
    server.stop();
}

#[test]
fn a_configuration_file_with_a_mistake_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ordain.toml");
    for (text, reason) in [
        ("thread = 3", "thread"),
        ("threads = \"three\"", "threads"),
        ("listen = ", "line 1"),
        ("durability = \"x\"", "fsync"),
    ] {
        fs::write(&file, text).unwrap();
        let ended = run(ordain(["--config", file.to_str().unwrap()]));
        ended.refused_with(&[file.to_str().unwrap(), reason]);
    }
}

#[test]
fn a_data_directory_remembers_its_engine_and_its_format() {
    let dir = tempfile::tempdir().unwrap();
    Server::start(serve_dir(dir.path(), [""; 0])).stop();
    let path = dir.path().join("ordain.json");
    let text = fs::read_to_string(&path).unwrap();
    let identity: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(identity["engine"], "calvin");
    fs::write(&path, text.replacen("calvin", "walter", 1)).unwrap();
    run(serve_dir(dir.path(), [""; 0])).refused_with(&["ordain.json", "damaged", "checksum"]);
    // As it was before it had a checksum.
    let (text, _) = text.rsplit_once(",\n  \"checksum\"").unwrap();
    let text = format!("{text}\n}}");

    for (from, to, reason) in [
        ("calvin", "walter", "belongs to engine 'walter', not 'calvin'"),
        ("\"format\": 3", "\"format\": 99", "format 99"),
        ("}", "", "damaged"),
        // Another cluster's identity does not fit the log.
        ("\"cluster\": \"", "\"cluster\": \"0", "log-"),
    ] {
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        run(serve_dir(dir.path(), [""; 0])).refused_with(&[dir.path().to_str().unwrap(), reason]);
    }
    fs::write(&path, text).unwrap();
    Server::start(serve_dir(dir.path(), ["--engine", "calvin"])).stop();
}
