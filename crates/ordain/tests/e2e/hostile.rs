//! Clients that mean ill, or are broken: memory stays bounded, they get a precise error, everybody else is served.

use std::io::Write;
use std::net::Shutdown;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::{Client, Expect, Reply, Server, clean, command, serve, until};

const MIB: u64 = 1 << 20;

/// Lets this process, and those that it starts, open as many files as it may. Returns how many.
fn files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    limit.maximum.unwrap_or(u64::MAX)
}

#[test]
fn ten_thousand_connections_that_send_half_a_command() {
    // A few are left for the rest of this test program.
    let count = files().saturating_sub(500).min(10_000);
    if count < 10_000 {
        println!("only {count} connections: the system permits no more open files");
    }
    let server = Server::start(serve(["--ephemeral", "--threads", "2"]));
    let mut other = server.client();
    assert_eq!(other.run("CONFIG SET maxclients 20000"), Reply::ok());
    assert_eq!(other.run("SET key value"), Reply::ok());
    let before = server.resident();

    let halves: [&[u8]; 6] = [
        b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$16777216\r\nhalf a value",
        b"*65536\r\n$4\r\nMSET\r\n$1\r\n",
        b"*2\r\n$3\r\nGET\r\n$3\r\nke",
        b"*",
        b"GET ke",
        b"*1\r\n$4\r\nPING\r",
    ];
    let mut clients: Vec<Client> = Vec::new();
    for i in 0..count as usize {
        let mut client = server.client();
        client.send(halves[i % halves.len()]).unwrap();
        clients.push(client);
        if i % 1000 == 0 {
            assert_eq!(other.run("GET key").text(), "value");
        }
    }
    until("all are connected", || {
        let info = other.run("INFO clients");
        let line = info.text().lines().find_map(|line| line.strip_prefix("connected_clients:")).unwrap();
        line.parse::<u64>().unwrap() > count
    });
    assert_eq!(other.run("GET key").text(), "value");
    let each = server.resident().saturating_sub(before) / count;
    assert!(each < 24 << 10, "{each} bytes a connection");

    // The other half is heard, too.
    for (client, (rest, reply)) in clients[2..].iter_mut().zip([
        (&b"y\r\n"[..], Reply::Bulk("value".into())),
        (b"1\r\n$4\r\nPING\r\n", Reply::Status("PONG".into())),
        (b"y\r\n", Reply::Bulk("value".into())),
        (b"\n", Reply::Status("PONG".into())),
    ]) {
        client.send(rest).unwrap();
        assert_eq!(client.receive().unwrap(), reply);
    }
    drop(clients);
    assert_eq!(other.run("GET key").text(), "value");
    server.stop();
}

#[test]
fn connections_beyond_the_soft_limit_of_open_files() {
    files();
    let inner = serve(["--ephemeral", "--threads", "2"]);
    let mut shell = clean(std::process::Command::new("sh"), ["-c", "ulimit -Sn 128; exec \"$0\" \"$@\""]);
    shell.arg(inner.get_program()).args(inner.get_args());
    let server = Server::start(shell);
    let mut clients: Vec<Client> = (0..400).map(|_| server.client()).collect();
    for client in &mut clients {
        assert!(client.run("INCR counter").int() > 0);
    }
    assert_eq!(clients[0].run("GET counter").text(), "400");
}

#[test]
fn more_connections_than_permitted_are_told_so() {
    let server = Server::start(serve(["--ephemeral", "--threads", "2"]));
    let mut first = server.client();
    assert_eq!(first.run("CONFIG SET maxclients 2"), Reply::ok());
    let mut second = server.client();
    assert_eq!(second.run("PING").text(), "PONG");
    let third = server.client().rest();
    assert_eq!(third, [Reply::Error("ERR max number of clients reached".into())]);
    drop(second);
    until("there is room again", || Client::connect(server.resp).unwrap().rest_of_ping());
    assert_eq!(first.run("PING").text(), "PONG");
}

#[test]
fn a_client_that_never_reads_its_replies() {
    let server = Server::start(serve(["--ephemeral", "--threads", "2"]));
    let mut other = server.client();
    assert_eq!(other.call(&[&b"SET"[..], b"large", &vec![b'x'; 1 << 20]]), Reply::ok());
    let before = server.resident();

    let mut deaf = server.client();
    // Replies of 4 GiB are asked for until the server takes no more, or ends the connection.
    let asked = command(&["GET", "large"]).repeat(4096);
    let socket = deaf.socket();
    socket.set_nonblocking(true).unwrap();
    let mut at = 0;
    let mut answered = 0;
    until("the server takes no more", || {
        match socket.write(&asked[at..]) {
            Ok(n) => at += n,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return true,
        }
        // Meanwhile others are served, and not slowly: this many in between.
        assert_eq!(other.run("INCR served").int(), answered + 1);
        answered += 1;
        answered >= 2000
    });
    // The requests under way before the first reply shows its size, each reply held twice on its way.
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 512 * MIB, "{} MiB for one client", grown / MIB);
    assert_eq!(other.run("STRLEN large"), Reply::Int(1 << 20));
    drop(deaf);
    server.stop();
}

/// What a server answers to these bytes, up to the end that it makes.
fn answers(server: &Server, bytes: &[u8]) -> Vec<Reply> {
    let mut client = server.client();
    // It may be closed before all is sent.
    let _ = client.send(bytes);
    let _ = client.socket().shutdown(Shutdown::Write);
    client.rest()
}

#[test]
fn malformed_and_oversized_requests_are_told_so() {
    let server = Server::start(serve(["--ephemeral"]));
    let protocol = |text: &str| vec![Reply::Error(format!("ERR Protocol error: {text}").into_bytes())];
    for (bytes, text) in [
        (&b"*x\r\n"[..], "invalid multibulk length"),
        (b"*99999999999\r\n", "invalid multibulk length"),
        (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$x\r\n", "invalid bulk length"),
        (b"*1\r\n$99999999999\r\n", "invalid bulk length"),
        (b"SET key \"value\r\n", "unbalanced quotes in request"),
    ] {
        assert_eq!(answers(&server, bytes), protocol(text), "{}", bytes.escape_ascii());
    }
    assert_eq!(answers(&server, &vec![b'x'; 70_000]), protocol("too big inline request"));
    // What came whole before it is answered.
    let mut bytes = command(&["SET", "key", "value"]);
    bytes.extend_from_slice(b"*1\r\n%");
    let replies = answers(&server, &bytes);
    assert_eq!(replies[0], Reply::ok());
    assert!(replies[1].error().starts_with("ERR Protocol error: expected '$', got '%'"));

    // Limits of keys and values are errors of one command, and the connection goes on.
    let mut client = server.client();
    let (key, value) = (vec![b'k'; (64 << 10) + 1], vec![b'v'; (16 << 20) + 1]);
    assert!(client.call(&[&b"SET"[..], &key, b"value"]).error().starts_with("ERR"));
    assert!(client.call(&[&b"SET"[..], b"key", &value]).error().starts_with("ERR"));
    assert_eq!(client.call(&[&b"SET"[..], b"key", &value[1..]]), Reply::ok());
    assert!(client.run("APPEND key x").error().starts_with("ERR"));
    assert_eq!(client.run("STRLEN key"), Reply::Int(16 << 20));
    let mut words = vec!["DEL".to_owned()];
    words.extend((0..65_537).map(|i| i.to_string()));
    assert!(client.call(&words).error().starts_with("ERR"));
    assert!(matches!(client.call(&words[..65_537]), Reply::Int(0)));
    assert_eq!(
        client.run("NO-SUCH-COMMAND a").error(),
        "ERR unknown command 'NO-SUCH-COMMAND', with args beginning with: 'a' "
    );
    assert_eq!(client.run("GET").error(), "ERR wrong number of arguments for 'get' command");
    assert_eq!(client.run("PING").text(), "PONG");
    server.stop();
}

#[test]
fn a_connection_that_ends_with_half_a_command_is_closed() {
    let server = Server::start(serve(["--ephemeral", "--threads", "2"]));
    for half in [&b"*"[..], b"GET ke", b"*2\r\n$3\r\nGET\r\n$3\r\nke", b"\r\n", b""] {
        // The end may arrive together with the bytes, or after them.
        for _ in 0..20 {
            assert_eq!(answers(&server, half), [], "{}", half.escape_ascii());
        }
    }
    // Whole commands before the end are answered.
    let pipeline = command(&["INCR", "counter"]).repeat(5000);
    assert_eq!(answers(&server, &pipeline), (1..=5000).map(Reply::Int).collect::<Vec<_>>());
    server.stop();
}

#[test]
fn random_bytes_break_one_connection_at_most() {
    let server = Server::start(serve(["--ephemeral", "--threads", "2"]));
    let mut numbers = crate::support::Random(7);
    let pieces: [&[u8]; 12] =
        [b"*", b"$", b"\r\n", b"3", b"-1", b"GET", b"MULTI", b"EXEC", b"key", b"\0\xff", b"\"", b"999999999"];
    for _ in 0..300 {
        let bytes: Vec<u8> =
            (0..numbers.below(40)).flat_map(|_| pieces[numbers.below(12) as usize]).copied().collect();
        answers(&server, &bytes);
    }
    assert_eq!(server.client().run("PING").text(), "PONG");
    server.stop();
}

#[test]
fn scripts_that_do_not_end_or_want_all_memory_are_stopped() {
    let server = Server::start(serve(["--ephemeral", "--threads", "2"]));
    let mut client = server.client();
    client.run("SET key before");
    for body in [
        "redis.call('SET', KEYS[1], 'after') while true do end",
        "redis.call('SET', KEYS[1], 'after') local t = {} for i = 1, 1e9 do t[i] = { i } end",
        "redis.call('SET', KEYS[1], 'after') return ('x'):rep(2^31)",
        "redis.call('SET', KEYS[1], 'after') redis.call('SET', 'undeclared', 'x')",
    ] {
        client.call(&["EVAL", body, "1", "key"]).error();
        assert_eq!(client.run("GET key").text(), "before", "{body}");
    }
    assert_eq!(client.run("EXISTS undeclared"), Reply::Int(0));
    server.stop();
}

impl Client {
    /// Whether this connection is one that is served.
    fn rest_of_ping(mut self) -> bool {
        self.send(&command(&["PING"])).is_ok()
            && self.receive().is_ok_and(|reply| reply == Reply::Status("PONG".into()))
    }
}
