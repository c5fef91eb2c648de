//! How operators and their tools get to guarded nodes: logins, TLS of the admin servers, certificates that are replaced.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;

use crate::access::{Authority, Secured, line, private, secured, tls_address};
use crate::support::{
    Client, DEADLINE, Ended, Expect, Process, Reply, Server, http, ordain, ports, run, serve, until,
};

/// A cluster of some partitions, each a process, with this in its file before the nodes.
struct Cluster {
    file: PathBuf,
    base: u16,
    nodes: Vec<Process>,
}

impl Cluster {
    fn start(dir: &Path, partitions: u16, text: &str, tls_ports: bool) -> Cluster {
        let base = ports(4 * partitions);
        let mut all = format!(
            "cluster = \"c\"\npartitions = {partitions}\nreplicas = 1\nthreads = 1\ndurability = \"os\"\nsecret = \"{}\"\n{text}",
            "s".repeat(32)
        );
        for node in 0..partitions {
            let at = |n: u16| format!("127.0.0.1:{}", base + 4 * node + n);
            all.push_str(&format!(
                "[[node]]\nid = {node}\nresp = \"{}\"\nadmin = \"{}\"\ncluster = \"{}\"\ndata-dir = \"{}\"\n",
                at(0),
                at(1),
                at(2),
                dir.join(format!("node-{node}")).display()
            ));
        }
        let file = private(&dir.join("cluster.toml"), &all);
        let mut cluster = Cluster { file, base, nodes: Vec::new() };
        cluster.nodes = (0..partitions).map(|node| cluster.launch(node, tls_ports)).collect();
        cluster.nodes.iter().for_each(ready);
        cluster
    }

    fn launch(&self, node: u16, tls_ports: bool) -> Process {
        let words = ["serve", "--config", self.file.to_str().unwrap(), "--node", &node.to_string()];
        let mut command = ordain(words);
        if tls_ports {
            command.env("ORDAIN_TLS_PORT", (self.base + 4 * node + 3).to_string());
        }
        Process::spawn(command)
    }

    fn at(&self, node: u16, which: u16) -> SocketAddr {
        ([127, 0, 0, 1], self.base + 4 * node + which).into()
    }

    /// `ordain cluster` with these words, and with these variables.
    fn ask(words: &[&str], variables: &[(&str, &str)]) -> Ended {
        let mut command = ordain([&["cluster"], words].concat());
        command.envs(variables.iter().copied());
        run(command)
    }
}

#[track_caller]
fn ready(node: &Process) {
    let line = node.line_within(DEADLINE).unwrap_or_else(|_| panic!("{}", node.stderr()));
    assert!(line.starts_with("ready "), "{line}");
}

/// Asks an admin server as a user: the status code and the body.
fn as_user(mut stream: impl Read + Write, login: &str, path: &str) -> (u16, String) {
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {login}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// A connection to an admin server in TLS.
fn https(at: SocketAddr, trusted: &Authority) -> impl Read + Write {
    secured(at, trusted, None).into_inner()
}

/// The reason why a page's node cannot look at another one. Nodes look at each other once a second and show what they last saw, so a
/// page may still say that a node refused connections when it has listened for a while.
fn failure(other: &Value) -> Option<&str> {
    other["unreachable"].as_str().filter(|reason| !reason.contains("refused"))
}

/// `ops:look` and `default:secret`, as a browser sends them.
const OPS: &str = "b3BzOmxvb2s=";
const ROOT: &str = "ZGVmYXVsdDpzZWNyZXQ=";

const USERS: &str = "user default on >secret ~* &* +@all\nuser ops on >look +info\nuser mover on >move +info +debug\n\
                     user app on >p ~* +@read\n";

#[test]
fn clusters_are_looked_at_and_changed_as_a_user() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    private(&dir.path().join("users"), USERS);
    private(&dir.path().join("look"), "look\n");
    private(&dir.path().join("move"), "move\n");
    let text = format!(
        "users-file = \"{}\"\nadmin-user = \"ops\"\nadmin-password-file = \"{}\"\n",
        path("users"),
        path("look")
    );
    let cluster = Cluster::start(dir.path(), 2, &text, false);
    let admin = cluster.at(0, 1).to_string();
    let look = |more: &[&str], variables: &[(&str, &str)]| {
        Cluster::ask(&[&["status", "--admin", &admin], more].concat(), variables)
    };
    look(&[], &[]).fails_with(&["asks for a login", "401", "--user", "--password-file", "--config"]);
    look(&[], &[("ORDAIN_PASSWORD", "guess")]).fails_with(&["user 'default'", "refuses the login", "--user"]);
    look(&["--user", "app"], &[("ORDAIN_PASSWORD", "p")]).fails_with(&["user 'app'", "403", "'info'"]);
    look(&["--user", "ops"], &[]).fails_with(&["--user ops needs a password", "--password-file"]);
    let both = look(&["--password-file", &path("look")], &[("ORDAIN_PASSWORD", "p")]);
    both.fails_with(&["drop one"]);
    let file = cluster.file.to_str().unwrap();
    until("the nodes have met", || Cluster::ask(&["status", "--config", file], &[]).code == Some(0));
    for ended in [
        look(&["--user", "ops", "--password-file", &path("look")], &[]),
        look(&[], &[("ORDAIN_PASSWORD", "secret")]),
        Cluster::ask(&["status", "--config", file], &[]),
    ] {
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.stdout.iter().any(|line| line.contains("digests: ")), "{ended:?}");
    }
    let warned = look(&["--password", "secret"], &[]);
    assert_eq!(warned.code, Some(0), "{warned:?}");
    assert!(warned.stderr.contains("warning: --password stands in the list of processes"), "{warned:?}");

    // The page of a node shows the other one, which asks for a login too.
    until("the other node is asked", || {
        let (code, body) = as_user(TcpStream::connect(cluster.at(0, 1)).unwrap(), OPS, "/series");
        assert_eq!(code, 200);
        let series: Value = serde_json::from_str(&body).unwrap();
        let other = &series["nodes"][0];
        assert_eq!(failure(other), None, "{other}");
        other["node"] == 1 && other["role"] == "leader"
    });

    let relocate = |user: &str, variables: &[(&str, &str)]| {
        let words = ["move", "--admin", &admin, "--slots", "0-1", "--to", "1", "--step", "2", "--user", user];
        Cluster::ask(&words, variables)
    };
    relocate("ops", &[("ORDAIN_PASSWORD", "look")]).fails_with(&["NOPERM", "'debug'", "--user"]);
    let moved = relocate("mover", &[("ORDAIN_PASSWORD_FILE", &path("move"))]);
    assert_eq!((moved.code, moved.stdout.len()), (Some(0), 1), "{moved:?}");
    // Nothing was written on what a process shows of itself.
    for node in &cluster.nodes {
        let log = node.stderr();
        assert!(!log.contains("look\n") && !log.contains("secret"), "{log}");
    }
}

#[test]
fn a_node_without_a_login_for_the_others_says_what_to_set() {
    let dir = tempfile::tempdir().unwrap();
    let users = private(&dir.path().join("users"), USERS);
    let cluster = Cluster::start(dir.path(), 2, &format!("users-file = \"{}\"\n", users.display()), false);
    until("the other node is asked", || {
        let (_, body) = as_user(TcpStream::connect(cluster.at(0, 1)).unwrap(), ROOT, "/series");
        let series: Value = serde_json::from_str(&body).unwrap();
        failure(&series["nodes"][0]).is_some_and(|reason| {
            assert!(reason.contains("asks for a login"), "{reason}");
            reason.contains("admin-user") && reason.contains("admin-password-file")
        })
    });
    let words = ["serve", "--config", cluster.file.to_str().unwrap(), "--node", "0", "--admin-user", "ops"];
    run(ordain(words)).refused_with(&["--admin-user", "--admin-password-file"]);
}

#[test]
fn a_cluster_in_tls_alone_is_looked_at_and_changed() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new(dir.path(), "ours"), Authority::new(dir.path(), "other"));
    let (cert, key) = ours.certify("node");
    let password = private(&dir.path().join("password"), "secret\n");
    let text = format!(
        "password-file = \"{}\"\ntls-port = 1\ntls-only = true\nadmin-tls = true\ntls-cert-file = \"{cert}\"\n\
         tls-key-file = \"{key}\"\ntls-ca-cert-file = \"{}\"\ntls-auth-clients = \"no\"\n",
        password.display(),
        ours.ca()
    );
    let cluster = Cluster::start(dir.path(), 2, &text, true);
    let (file, admin) = (cluster.file.to_str().unwrap(), cluster.at(0, 1));
    until("the nodes have met", || Cluster::ask(&["status", "--config", file], &[]).code == Some(0));
    let moved = Cluster::ask(&["move", "--config", file, "--slots", "0", "--to", "1"], &[]);
    assert_eq!(moved.code, Some(0), "{moved:?}");
    let url = format!("https://{admin}");
    let (plain, login) = (admin.to_string(), [("ORDAIN_PASSWORD", "secret")]);
    let look = |words: &[&str]| Cluster::ask(&[&["status"], words].concat(), &login);
    let looked = look(&["--admin", &url, "--tls-ca-cert-file", &ours.ca()]);
    assert_eq!(looked.code, Some(0), "{looked:?}");
    look(&["--admin", &url]).fails_with(&["--tls-ca-cert-file"]);
    look(&["--admin", &url, "--tls-ca-cert-file", &other.ca()])
        .fails_with(&["TLS", "invalid peer certificate"]);
    look(&["--admin", &plain]).fails_with(&[&plain, "in TLS", "https://"]);

    // What Prometheus and a probe do.
    let (code, body) = as_user(https(admin, &ours), ROOT, "/metrics");
    assert!(code == 200 && body.contains("\nordain_certificates_failing"), "{code}");
    assert_eq!(as_user(https(admin, &ours), OPS, "/metrics").0, 401);
    assert_eq!(as_user(https(admin, &ours), OPS, "/readyz").0, 200);
    // Who is silent while keys are agreed on keeps nobody out.
    let silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(admin).unwrap()).collect();
    assert_eq!(as_user(https(admin, &ours), ROOT, "/healthz").0, 200);
    drop(silent);
    until("the other node is asked in TLS", || {
        let (_, body) = as_user(https(admin, &ours), ROOT, "/series");
        let series: Value = serde_json::from_str(&body).unwrap();
        let other = &series["nodes"][0];
        assert_eq!(failure(other), None, "{other}");
        other["node"] == 1 && other["role"] == "leader"
    });
}

#[test]
fn the_admin_server_is_in_tls_where_others_reach_it() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new(dir.path(), "ours");
    let (cert, key) = ours.certify("node");
    run(serve(["--ephemeral", "--admin-tls"])).refused_with(&["--admin-tls", "--tls-port"]);
    let tls = [
        "--ephemeral",
        "--tls-port",
        "0",
        "--tls-auth-clients",
        "no",
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--password",
        "secret",
    ];
    let is_in_tls = |more: &[&str]| {
        let words = ["serve", "--listen", "127.0.0.1:0"];
        let server = Server::start(ordain(words.iter().chain(&tls).chain(more)));
        let at = SocketAddr::from(([127, 0, 0, 1], server.admin.port()));
        let mut stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        // One in TLS may close the connection before it has read all of this.
        let _ = stream.read_to_end(&mut answer);
        let is_plain = answer.starts_with(b"HTTP/1.0 200");
        if !is_plain {
            assert_eq!(as_user(https(at, &ours), ROOT, "/status").0, 200);
        }
        server.stop();
        !is_plain
    };
    assert!(!is_in_tls(&["--admin", "127.0.0.1:0"]));
    assert!(is_in_tls(&["--admin", "127.0.0.1:0", "--admin-tls"]));
    assert!(is_in_tls(&["--admin", "0.0.0.0:0"]));
    assert!(!is_in_tls(&["--admin", "0.0.0.0:0", "--admin-tls=false"]));
}

/// Has files have the content of others, each at once.
fn replace(old: &(String, String), new: &(String, String)) {
    for (old, new) in [(&old.0, &new.0), (&old.1, &new.1)] {
        fs::rename(new, old).unwrap();
    }
}

#[test]
fn certificates_are_replaced_while_clients_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new(dir.path(), "ours"), Authority::new(dir.path(), "other"));
    let files = ours.certify("server");
    let server = Server::start(serve([
        "--ephemeral",
        "--threads",
        "2",
        "--tls-port",
        "0",
        "--tls-auth-clients",
        "no",
        "--tls-cert-file",
        &files.0,
        "--tls-key-file",
        &files.1,
        "--admin-tls",
    ]));
    let (at, admin) = (tls_address(&server), server.admin);
    let ping = |client: &mut Secured| line(client, b"PING\r\n");
    let trusts = |authority: &Authority| ping(&mut secured(at, authority, None)).is_ok();
    let mut early = secured(at, &ours, None);
    assert_eq!(ping(&mut early).unwrap(), "+PONG\r\n");
    assert!(trusts(&ours) && !trusts(&other));

    // A key that is not that of the certificate is of no use.
    fs::write(&files.1, fs::read(other.certify("stray").1).unwrap()).unwrap();
    until("it is said that it is not used", || {
        server.process().stderr().contains("new certificates for clients and the admin server are not used")
    });
    assert!(trusts(&ours));
    let (_, body) = as_user(https(admin, &ours), ROOT, "/status");
    let status: Value = serde_json::from_str(&body).unwrap();
    assert!(status["certificates"]["failing"].as_str().unwrap().contains("is the key"), "{status}");

    // Each loop has its share of connections, so some more than one show all of them.
    replace(&files, &other.certify("server"));
    until("the new one is shown", || trusts(&other));
    assert!((0..4).all(|_| trusts(&other) && !trusts(&ours)));
    assert_eq!(ping(&mut early).unwrap(), "+PONG\r\n", "what was there goes on");
    let (_, body) = as_user(https(admin, &other), ROOT, "/status");
    let status: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (&status["certificates"]["renewed"], &status["certificates"]["failing"]),
        (&1.into(), &Value::Null)
    );
    server.stop();
}

#[test]
fn certificates_of_links_are_replaced_while_nodes_run() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new(dir.path(), "ours"), Authority::new(dir.path(), "other"));
    let files = ours.certify("node");
    let text = format!(
        "[tls]\ncert-file = \"{}\"\nkey-file = \"{}\"\nca-cert-file = \"{}\"\n",
        files.0,
        files.1,
        ours.ca()
    );
    let mut cluster = Cluster::start(dir.path(), 3, &text, false);
    let mut client = Client::connect(cluster.at(0, 0)).unwrap();
    assert_eq!(client.insist("MSET a 1 b 2 c 3 d 4"), Reply::ok());
    // A certificate that peers would refuse is not used.
    fs::write(&files.0, fs::read(other.certify("stray").0).unwrap()).unwrap();
    until("it is refused", || {
        cluster.nodes[0].stderr().contains("new certificates for the links between nodes are not used")
    });
    fs::rename(other.ca(), ours.ca()).unwrap();
    replace(&files, &other.certify("again"));
    for node in 0..3 {
        until("the new ones are taken", || {
            let (_, _, body) = http(cluster.at(node, 1), "/status");
            let status: Value = serde_json::from_str(&body).unwrap();
            status["certificates"]["failing"].is_null()
                && status["certificates"]["renewed"].as_u64() > Some(0)
        });
    }
    // Its links begin anew: node 0 dials it and node 2 is dialled, each with what it has by now.
    cluster.nodes[1].signal(Signal::TERM);
    let stopped = cluster.nodes.remove(1).wait();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    let again = cluster.launch(1, false);
    ready(&again);
    cluster.nodes.insert(1, again);
    assert_eq!(client.insist("MSET a 5 b 6 c 7 d 8"), Reply::ok());
    let values = client.insist("MGET a b c d");
    assert_eq!(values.items().iter().map(Reply::text).collect::<Vec<_>>(), ["5", "6", "7", "8"]);
}

#[test]
fn nobody_waits_for_the_file_of_users_but_who_asked() {
    let dir = tempfile::tempdir().unwrap();
    let file = private(&dir.path().join("users"), USERS);
    let server =
        Server::start(serve(["--ephemeral", "--threads", "1", "--users-file", file.to_str().unwrap()]));
    let mut root = server.client();
    assert_eq!(root.run("AUTH secret"), Reply::ok());
    let mut other = server.client();
    assert_eq!(other.run("AUTH secret"), Reply::ok());
    // A file system that does not answer, as a pipe that nobody writes.
    fs::remove_file(&file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    root.send(b"SET before 1\r\nACL LOAD\r\nSET after 2\r\nGET before\r\n").unwrap();
    assert_eq!(root.receive().unwrap(), Reply::ok());
    assert_eq!(other.run("PING"), Reply::Status("PONG".into()));
    assert_eq!(other.run("GET after"), Reply::Nil, "what follows in the pipeline has its place after it");
    let text = "user default on >secret ~* &* +@all\nuser late on >p +@all ~*\n";
    fs::OpenOptions::new().write(true).open(&file).unwrap().write_all(text.as_bytes()).unwrap();
    let replies: Vec<Reply> = (0..3).map(|_| root.receive().unwrap()).collect();
    assert_eq!(replies, [Reply::ok(), Reply::ok(), Reply::Bulk(b"1".to_vec())]);
    assert_eq!(server.client().run("AUTH late p"), Reply::ok());
    // SAVE puts a file in the place of whatever is there, and says OK when it is.
    assert_eq!(root.run("ACL SAVE"), Reply::ok());
    let saved = fs::read_to_string(&file).unwrap();
    assert!(saved.contains("user late on #"), "{saved}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    // What cannot be written is an error, and the users are as they were.
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert!(root.run("ACL SAVE").error().contains("the ACL file was not written"));
    assert!(root.run("ACL LOAD").error().contains("the ACL file was not read"));
    assert_eq!(server.client().run("AUTH late p"), Reply::ok());
    server.stop();
}
