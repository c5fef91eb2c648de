//! Who gets in and who does not: other protocols, passwords, users, TLS for clients and between nodes.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::support::{
    Client, DEADLINE, Expect, Process, Reply, Server, command, ordain, ports, run, serve, until,
};

/// What curl sends for `curl http://127.0.0.1:6379/ --data-binary $'\r\nSET pwned 1\r\n'`.
const CURL: &[u8] = b"POST / HTTP/1.1\r\nHost: 127.0.0.1:6379\r\nUser-Agent: curl/8.14.1\r\nAccept: */*\r\n\
    Content-Length: 15\r\nContent-Type: application/x-www-form-urlencoded\r\n\r\n\r\nSET pwned 1\r\n";

/// A file that only its owner can use.
pub fn private(path: &Path, text: &str) -> PathBuf {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    path.to_owned()
}

#[test]
fn a_web_page_cannot_write_to_a_node() {
    let server = Server::start(serve(["--ephemeral", "--threads", "2"]));
    let mut browser = server.client();
    browser.send(CURL).unwrap();
    assert_eq!(browser.rest(), []);
    let mut secured = server.client();
    secured.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").unwrap();
    assert_eq!(secured.rest(), []);
    assert_eq!(server.client().run("GET pwned"), Reply::Nil);
    until("it is logged", || {
        let log = server.process().stderr();
        log.contains("possible attack: HTTP") && log.contains("TLS on a port that does not offer it")
    });
}

#[test]
fn an_empty_secret_is_none_and_both_ports_are_protected() {
    let dir = tempfile::tempdir().unwrap();
    let empty = private(&dir.path().join("empty"), "\n");
    let empty = empty.to_str().unwrap();
    run(serve(["--ephemeral", "--password", ""])).refused_with(&["empty password is none"]);
    run(serve(["--ephemeral", "--password-file", empty])).refused_with(&["empty password is none"]);
    run(serve(["--ephemeral", "--password-file", "/nowhere/secret"])).refused_with(&["/nowhere/secret"]);
    let mut by_environment = serve(["--ephemeral"]);
    by_environment.env("ORDAIN_PASSWORD", "");
    run(by_environment).refused_with(&["empty password is none"]);
    for (listen, admin, flag) in
        [("0.0.0.0:0", "127.0.0.1:0", "--listen"), ("127.0.0.1:0", "0.0.0.0:0", "--admin")]
    {
        let words = ["serve", "--ephemeral", "--listen", listen, "--admin", admin];
        run(ordain(words)).refused_with(&["refusing to listen", flag, "--password-file"]);
    }
    let users = private(&dir.path().join("users"), "user default on >secret\n");
    let users = users.to_str().unwrap();
    run(serve(["--ephemeral", "--users-file", users, "--password", "x"])).refused_with(&["drop one"]);
    private(&dir.path().join("users"), "user a +nope\n");
    run(serve(["--ephemeral", "--users-file", users]))
        .refused_with(&["line 1", "Unknown command or category"]);
}

#[test]
fn users_have_their_rights_and_the_admin_server_asks_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let file = private(
        &dir.path().join("users.acl"),
        "user default on >secret ~* &* +@all\nuser app on >p ~a* +@all -@dangerous\n",
    );
    let start =
        || Server::start(serve(["--ephemeral", "--threads", "2", "--users-file", file.to_str().unwrap()]));
    let server = start();
    let mut app = server.client();
    assert_eq!(app.run("GET a"), Reply::Error("NOAUTH Authentication required.".into()));
    assert_eq!(app.run("AUTH app p"), Reply::ok());
    assert_eq!(app.run("SET a 1"), Reply::ok());
    assert!(app.run("SET b 1").error().starts_with("NOPERM"));
    let script = |key: &str| command(&["EVAL", "return redis.call('keys', '*')", "1", key]);
    app.send(&script("a")).unwrap();
    assert!(app.receive().unwrap().error().contains("can't run this command or subcommand"));
    app.send(&script("b")).unwrap();
    assert!(app.receive().unwrap().error().starts_with("NOPERM"));

    let mut root = server.client();
    assert_eq!(root.run("AUTH secret"), Reply::ok());
    assert_eq!(root.run("ACL SETUSER other on >q ~* +info +get"), Reply::ok());
    assert_eq!(root.run("ACL SAVE"), Reply::ok());
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    // The connections of a user that is removed are closed, on whichever loop they are.
    let mut others: Vec<Client> = (0..4).map(|_| server.client()).collect();
    others.iter_mut().for_each(|other| assert_eq!(other.run("AUTH other q"), Reply::ok()));
    assert_eq!(root.run("ACL DELUSER other"), Reply::Int(1));
    others.into_iter().for_each(|other| assert_eq!(other.rest(), []));
    assert_eq!(root.run("ACL LOAD"), Reply::ok());
    assert_eq!(server.client().run("AUTH other q"), Reply::ok());

    let http = |login: Option<&str>, path: &str| {
        let mut stream = TcpStream::connect(server.admin).unwrap();
        let login = login.map(|login| format!("Authorization: Basic {login}\r\n")).unwrap_or_default();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n{login}Connection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };
    // :secret, other:q, app:p, :guess
    let (root, other, app, guess) = ("OnNlY3JldA==", "b3RoZXI6cQ==", "YXBwOnA=", "Omd1ZXNz");
    assert_eq!((http(None, "/healthz"), http(None, "/status"), http(None, "/metrics")), (200, 401, 401));
    assert_eq!(
        (http(Some(root), "/status"), http(Some(other), "/metrics"), http(Some(root), "/")),
        (200, 200, 200)
    );
    // INFO is dangerous.
    assert_eq!((http(Some(app), "/status"), http(Some(guess), "/status")), (403, 401));
    server.stop();
    // What was saved is there again.
    assert_eq!(start().client().run("AUTH other q"), Reply::ok());
}

#[test]
fn guesses_are_slowed_down_by_where_they_come_from() {
    let mut command = serve(["--ephemeral", "--threads", "2"]);
    command.env("ORDAIN_PASSWORD", "secret");
    let server = Server::start(command);
    let begun = Instant::now();
    for i in 0..8 {
        // A connection for each does not help.
        assert!(server.client().run(&format!("AUTH guess{i}")).error().starts_with("WRONGPASS"));
    }
    assert!(begun.elapsed() >= Duration::from_millis(700), "{:?}", begun.elapsed());
    let mut root = server.client();
    assert_eq!(root.run("AUTH secret"), Reply::ok());
    assert!(root.run("INFO stats").text().contains("acl_access_denied_auth:8\r\n"));
    until("it is logged", || server.process().stderr().contains("a login failed"));
    let log = server.process().stderr();
    assert!(!log.contains("guess") && !log.contains("secret"), "{log}");
}

/// An authority for certificates, and files of those.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: PathBuf,
}

impl Authority {
    pub fn new(dir: &Path, name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = dir.join(name);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("ca.pem"), issuer.pem()).unwrap();
        Authority { issuer, dir }
    }

    pub fn ca(&self) -> String {
        self.dir.join("ca.pem").display().to_string()
    }

    /// A certificate for this machine and its key.
    pub fn certify(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let (cert, key_file) = (self.dir.join(format!("{name}.pem")), self.dir.join(format!("{name}.key")));
        fs::write(&cert, params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        private(&key_file, &key.serialize_pem());
        (cert.display().to_string(), key_file.display().to_string())
    }
}

pub type Secured = BufReader<StreamOwned<ClientConnection, TcpStream>>;

/// A client in TLS that trusts an authority, with a certificate of its own if one is given.
pub fn secured(address: SocketAddr, trusted: &Authority, own: Option<&(String, String)>) -> Secured {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(trusted.ca()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match own {
        None => config.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = vec![CertificateDer::from_pem_file(cert).unwrap()];
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap()
        }
    };
    let tls = ClientConnection::new(Arc::new(config), address.ip().into()).unwrap();
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    BufReader::new(StreamOwned::new(tls, socket))
}

/// Sends bytes and reads a line; an error if the other side does not like this client.
pub fn line(client: &mut Secured, bytes: &[u8]) -> std::io::Result<String> {
    client.get_mut().write_all(bytes)?;
    client.get_mut().flush()?;
    let mut line = String::new();
    client.read_line(&mut line)?;
    Ok(line)
}

pub fn tls_address(server: &Server) -> SocketAddr {
    let field = server.ready_line.split(' ').find_map(|word| word.strip_prefix("tls="));
    field.expect("the ready line has the address for TLS").parse().unwrap()
}

#[test]
fn clients_in_tls() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new(dir.path(), "ours"), Authority::new(dir.path(), "other"));
    let (cert, key) = ours.certify("server");
    let files = [
        "--ephemeral",
        "--threads",
        "2",
        "--tls-port",
        "0",
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
    ];
    let start = |more: &[&str]| Server::start(serve(files.iter().chain(more)));
    run(serve(files)).refused_with(&["--tls-ca-cert-file", "--tls-auth-clients no"]);
    run(serve(["--ephemeral", "--tls-only"])).refused_with(&["--tls-port"]);
    run(serve(["--ephemeral", "--tls-port", "0"])).refused_with(&["--tls-cert-file", "--tls-key-file"]);

    let server = start(&["--tls-auth-clients", "no"]);
    let at = tls_address(&server);
    let mut client = secured(at, &ours, None);
    assert_eq!(line(&mut client, b"PING\r\n").unwrap(), "+PONG\r\n");
    // Both ways more than fits into buffers, and in a pipeline.
    let value = vec![b'v'; 3 << 20];
    let mut bytes = command(&[&b"SET"[..], b"k", &value]);
    (0..3).for_each(|_| bytes.extend_from_slice(b"GET k\r\n"));
    assert_eq!(line(&mut client, &bytes).unwrap(), "+OK\r\n");
    for _ in 0..3 {
        let mut reply = vec![0; b"$3145728\r\n".len() + value.len() + 2];
        client.read_exact(&mut reply).unwrap();
        assert!(reply.starts_with(b"$3145728\r\nvvv") && reply.ends_with(b"vvv\r\n"));
    }
    // QUIT ends it in order: its answer arrives, and the end is said.
    assert_eq!(line(&mut client, b"QUIT\r\n").unwrap(), "+OK\r\n");
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    // Data of the plain port are the same ones.
    assert_eq!(server.client().run("STRLEN k"), Reply::Int(3 << 20));
    // Who trusts somebody else does not come in, and what is no TLS does not.
    assert!(line(&mut secured(at, &other, None), b"PING\r\n").is_err());
    let mut plain = Client::connect(at).unwrap();
    plain.send(b"PING\r\nPING\r\nPING\r\nPING\r\nPING\r\n").unwrap();
    assert!(!plain.rest().contains(&Reply::Status("PONG".into())));
    server.stop();

    // With certificates of clients, and no other port.
    let server = start(&["--tls-only", "--tls-ca-cert-file", &ours.ca()]);
    let at = tls_address(&server);
    assert_eq!(server.resp, at);
    assert_eq!(
        line(&mut secured(at, &ours, Some(&ours.certify("client"))), b"PING\r\n").unwrap(),
        "+PONG\r\n"
    );
    for own in [None, Some(other.certify("client"))] {
        let answer = line(&mut secured(at, &ours, own.as_ref()), b"PING\r\n");
        assert!(answer.is_err() || answer.is_ok_and(|line| line.is_empty()));
    }
    server.stop();
}

#[test]
fn nodes_in_mutual_tls() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new(dir.path(), "ours");
    let (cert, key) = ours.certify("node");
    let base = ports(6);
    let secret = "s".repeat(32);
    let mut text = format!(
        "cluster = \"tls\"\nsecret = \"{secret}\"\npartitions = 2\nreplicas = 1\nthreads = 1\nephemeral = true\n\
         [tls]\ncert-file = \"{cert}\"\nkey-file = \"{key}\"\nca-cert-file = \"{}\"\n",
        ours.ca()
    );
    for node in 0..2 {
        let port = |n: u16| base + 3 * node + n;
        text.push_str(&format!(
            "[[node]]\nid = {node}\nresp = \"127.0.0.1:{}\"\nadmin = \"127.0.0.1:{}\"\ncluster = \"127.0.0.1:{}\"\n",
            port(0),
            port(1),
            port(2)
        ));
    }
    let file = private(&dir.path().join("cluster.toml"), &text);
    let nodes: Vec<Process> = (0..2)
        .map(|node| {
            let node = node.to_string();
            Process::spawn(ordain(["serve", "--config", file.to_str().unwrap(), "--node", &node]))
        })
        .collect();
    for node in &nodes {
        let line = node.line_within(DEADLINE).unwrap_or_else(|_| panic!("{}", node.stderr()));
        assert!(line.starts_with("ready "), "{line}");
    }
    let mut client = Client::connect(([127, 0, 0, 1], base).into()).unwrap();
    for i in 0..20 {
        assert_eq!(client.insist(&format!("SET key{i} {i}")), Reply::ok());
    }
    let keys: Vec<String> =
        ["MGET".to_owned()].into_iter().chain((0..20).map(|i| format!("key{i}"))).collect();
    let values = client.insist_on(&keys);
    let expected: Vec<String> = (0..20).map(|i| i.to_string()).collect();
    assert_eq!(values.items().iter().map(|value| value.text().to_owned()).collect::<Vec<_>>(), expected);
}
