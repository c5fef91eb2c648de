//! What sessions do beyond single scenarios: limits, slow clients, late answers, every command of the table, and
//! any input at all.

use ordain_commands::all;
use ordain_conformance::Weather;
use ordain_conformance::reference::{START, Server};
use ordain_gateway::{Finished, Path, Ticket};
use ordain_model::{Gsn, OutcomeBatch, OutcomeStatus, RequestNo, SessionId, Writer};
use ordain_resp::client::command;
use ordain_resp::{ClientId, ConnectionId, Context, Fate, Limits, Session};
use proptest::collection::vec;
use proptest::prelude::*;

#[test]
fn every_command_refuses_a_wrong_number_of_words() {
    let mut server = Server::new(1);
    for command in all() {
        let wanted = usize::from(command.arity.unsigned_abs());
        let mut counts = vec![wanted - 1];
        if command.arity > 0 {
            counts.push(wanted + 1);
        }
        for count in counts.into_iter().filter(|count| *count > 0) {
            let words: Vec<&str> =
                std::iter::once(command.name).chain(std::iter::repeat("1")).take(count).collect();
            let expected = format!("-ERR wrong number of arguments for '{}' command\n", command.name);
            assert_eq!(server.ask(0, &words), expected);
        }
    }
}

#[test]
fn every_command_answers_once_whatever_it_is_told() {
    // In each of the three modes of a connection.
    for opening in [None, Some("MULTI"), Some("TXN.BEGIN")] {
        for command in all().iter().filter(|c| !matches!(c.name, "quit" | "hello" | "client")) {
            let mut server = Server::new(1);
            if let Some(opening) = opening {
                assert_eq!(server.ask(0, &[opening]), "+OK\n");
            }
            let least = usize::from(command.arity.unsigned_abs());
            for count in least..least + 4 {
                let words: Vec<&str> =
                    std::iter::once(command.name).chain(std::iter::repeat("7")).take(count).collect();
                let reply = server.ask(0, &words);
                assert!(!reply.is_empty(), "{words:?}");
                assert_eq!(server.clients[0].session.pending(), 0, "{words:?}");
            }
            server.ask(0, &["RESET"]);
            assert_eq!(server.ask(0, &["PING"]), "+PONG\n", "after {}", command.name);
        }
    }
}

#[test]
fn a_value_that_is_too_long_is_refused_and_the_connection_goes_on() {
    let mut server = Server::new(1);
    let head = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$16777217\r\n";
    server.send(0, head);
    for _ in 0..256 {
        server.send(0, &[b'v'; 1 << 16]);
    }
    server.send(0, b"v\r\n*1\r\n$4\r\nPING\r\n");
    server.settle();
    assert_eq!(server.take(0), "-ERR value exceeds the limit of 16 MiB\n+PONG\n");
    assert_eq!(
        server.ask(0, &["SET", &"k".repeat(64 * 1024 + 1), "v"]),
        "-ERR key exceeds the limit of 64 KiB\n"
    );
    assert_eq!(server.ask(0, &["SET", &"k".repeat(64 * 1024), &"v".repeat(1 << 20)]), "+OK\n");

    // In a block it counts as a command that was refused.
    server.ask(0, &["MULTI"]);
    server.send(0, head);
    server.send(0, &vec![b'v'; (16 << 20) + 1]);
    server.send(0, b"\r\n");
    server.settle();
    assert_eq!(server.take(0), "-ERR value exceeds the limit of 16 MiB\n");
    assert!(server.ask(0, &["EXEC"]).starts_with("-EXECABORT "));
}

#[test]
fn a_client_that_does_not_read_is_not_listened_to() {
    let mut server = Server::new(1);
    server.shared.limits = Limits { output_pause: 1000, output_max: 1 << 20, ..Limits::default() };
    server.ask(0, &["SET", "k", &"v".repeat(600)]);
    for _ in 0..10 {
        server.send(0, &command(&["ECHO", &"v".repeat(600)]));
    }
    // Two replies are more than enough; the rest of the input stays with the edge.
    let session = &server.clients[0].session;
    assert!(!session.wants_input(&server.shared));
    assert!(session.output().len() < 2000);
    server.settle();
    // As it reads, the rest is taken and answered.
    let mut seen = String::new();
    for _ in 0..10 {
        server.settle();
        seen += &server.take(0);
    }
    assert_eq!(seen, format!("$600\n{}\n", "v".repeat(600)).repeat(10));
}

#[test]
fn a_client_that_asks_for_more_than_it_may_hold_is_closed() {
    let mut server = Server::new(1);
    server.shared.limits = Limits { output_pause: 1000, output_max: 5000, ..Limits::default() };
    server.ask(0, &["SET", "k", &"v".repeat(600)]);
    // It is known for short replies, so that many requests may be under way.
    (0..20).for_each(|_| drop(server.ask(0, &["GET", "none"])));
    for _ in 0..10 {
        server.send(0, &command(&["GET", "k"]));
    }
    assert_eq!(server.clients[0].session.fate(), Fate::Open);
    server.settle();
    assert_eq!(server.clients[0].session.fate(), Fate::Close);
    assert!(server.take(0).is_empty());
    assert_eq!(server.shared.counters.output_limit_total, 1);
}

#[test]
fn requests_under_way_are_bounded() {
    let mut server = Server::new(1);
    server.shared.limits.pending_max = 10;
    for _ in 0..25 {
        server.send(0, &command(&["INCR", "k"]));
    }
    assert_eq!((server.gateway.outstanding(), server.clients[0].session.pending()), (10, 10));
    server.settle();
    let expected: String = (1..=25).map(|n| format!(":{n}\n")).collect();
    assert_eq!(server.take(0), expected);
}

#[test]
fn an_answer_that_comes_late_does_not_reach_the_next_connection_of_the_slot() {
    let mut server = Server::new(1);
    server.send(0, &command(&["INCR", "k"]));
    let peers = ("127.0.0.1:1", "127.0.0.1:2");
    server.clients[0].session =
        Session::new(ConnectionId::new(0, 1), ClientId(9), peers, server.now, &server.shared);
    server.send(0, &command(&["ECHO", "new"]));
    server.send(0, &command(&["STRLEN", "k"]));
    server.settle();
    assert_eq!(server.take(0), "$3\nnew\n:1\n");
}

#[test]
fn a_connection_that_goes_away_abandons_its_transaction() {
    let mut server = Server::new(2);
    server.ask(0, &["TXN.BEGIN"]);
    server.ask(0, &["SET", "k", "v"]);
    server.ask(0, &["QUIT"]);
    assert_eq!(server.clients[0].session.fate(), Fate::Close);
    assert_eq!(server.ask(1, &["EXISTS", "k"]), ":0\n");
}

#[test]
fn a_request_number_names_one_transaction() {
    let mut server = Server::new(1);
    for words in [
        &["CLIENT", "SESSION", "77"][..],
        &["CLIENT", "REQUEST", "5"],
        &["PING"],
        &["INCR", "k"],
        &["INCR", "k"],
        &["CLIENT", "REQUEST", "6"],
        &["MULTI"],
        &["SET", "a", "1"],
        &["EXEC"],
    ] {
        server.send(0, &command(words));
    }
    // The gateway keeps the low byte for restarts. A request that may be sent again has nothing under way behind it.
    let named = |n: u64| Some((SessionId(77), RequestNo(n << 8)));
    let mut sessions = Vec::new();
    while let Some(chunk) = server.gateway.flush().and_then(|departure| departure.chunk().cloned()) {
        sessions.push(chunk.txns().iter().map(|txn| txn.call.session).collect::<Vec<_>>());
        let mut outcomes = OutcomeBatch::new(chunk.gateway);
        let index = chunk.txns()[0].index;
        outcomes.push(chunk.number, index, Gsn(sessions.len() as u64), OutcomeStatus::Committed, |_| {});
        server.gateway.take_outcomes(&outcomes, |_| ());
    }
    assert_eq!(sessions, [[named(5)], [None], [named(6)]]);
}

#[test]
fn an_interactive_transaction_submits_what_it_read_and_wrote_and_nothing_else() {
    let mut server = Server::new(1);
    server.ask(0, &["MSET", "a", "1", "b", "2"]);
    let before = server.transactions;
    server.ask(0, &["TXN.BEGIN"]);
    server.ask(0, &["MGET", "a", "b"]);
    server.ask(0, &["INCR", "a"]);
    server.ask(0, &["GET", "b"]);
    assert_eq!(server.transactions - before, 1);
    assert_eq!(server.ask(0, &["TXN.COMMIT"]), "+OK\n");
    assert_eq!(server.transactions - before, 2);
    // Only what was changed was written: b's version is still that of MSET.
    server.ask(0, &["WATCH", "b"]);
    server.ask(0, &["TXN.BEGIN"]);
    assert_eq!(server.ask(0, &["GET", "a"]), "$1\n2\n");
}

#[test]
fn an_interactive_transaction_holds_only_so_much() {
    let mut server = Server::new(1);
    server.shared.limits.transaction_bytes_max = 10_000;
    server.ask(0, &["TXN.BEGIN"]);
    let value = "v".repeat(3000);
    let replies: Vec<String> = (0..5).map(|n| server.ask(0, &["SET", &format!("k{n}"), &value])).collect();
    assert!(replies[..3].iter().all(|r| r == "+OK\n"), "{replies:?}");
    assert!(replies[4].starts_with("-ERR the interactive transaction is too large"), "{replies:?}");
    assert_eq!(server.ask(0, &["TXN.COMMIT"]), "+OK\n");
    assert_eq!(server.ask(0, &["EXISTS", "k0", "k2", "k4"]), ":2\n");
}

#[test]
fn a_block_holds_only_so_much() {
    let mut server = Server::new(1);
    server.shared.limits.transaction_bytes_max = 10_000;
    server.ask(0, &["MULTI"]);
    let value = "v".repeat(3000);
    let replies: Vec<String> = (0..6).map(|_| server.ask(0, &["SET", "k", &value])).collect();
    assert_eq!(replies[5], "-ERR the MULTI block is too large\n");
    assert!(server.ask(0, &["EXEC"]).starts_with("-EXECABORT "));
}

#[test]
fn many_keys_can_be_watched_and_no_more() {
    let mut server = Server::new(1);
    let keys: Vec<String> = (0..40_000).map(|n| format!("k{n}")).collect();
    let watch: Vec<&str> = std::iter::once("WATCH").chain(keys.iter().map(|k| &**k)).collect();
    assert_eq!(server.ask(0, &watch), "+OK\n");
    // The same again are none more.
    assert_eq!(server.ask(0, &watch), "+OK\n");
    let others: Vec<String> = keys.iter().map(|k| format!("other:{k}")).collect();
    let watch: Vec<&str> = std::iter::once("WATCH").chain(others.iter().map(|k| &**k)).collect();
    assert_eq!(server.ask(0, &watch), "-ERR transaction exceeds the limit of 65536 keys\n");
    server.ask(0, &["MULTI"]);
    server.ask(0, &["SET", "k1", "v"]);
    assert_eq!(server.ask(0, &["EXEC"]), "*1\n+OK\n");
}

/// Large replies are encoded as a connection takes them, of single commands and of blocks; those after them follow.
#[test]
fn large_replies_come_whole_and_in_their_order() {
    const MB: usize = 1_100_000;
    let mut server = Server::new(1);
    // As it reads, the rest is taken and answered.
    let read = |server: &mut Server| -> String {
        let mut seen = String::new();
        for _ in 0..10 {
            server.settle();
            seen += &server.take(0);
        }
        seen
    };
    let value = "v".repeat(MB);
    server.ask(0, &["SET", "large", &value]);
    let bulk = format!("${MB}\n{value}\n");
    let mut pipeline = Vec::new();
    let words: [&[&str]; 9] = [
        &["GET", "large"],
        &["STRLEN", "large"],
        &["MULTI"],
        &["GET", "large"],
        &["INCR", "large"],
        &["GET", "large"],
        &["EXEC"],
        &["MGET", "large", "none", "large"],
        &["PING"],
    ];
    words.iter().for_each(|words| pipeline.extend(command(words)));
    server.send(0, &pipeline);
    let refused = "-ERR value is not an integer or out of range\n";
    let expected = format!(
        "{bulk}:{MB}\n+OK\n+QUEUED\n+QUEUED\n+QUEUED\n*3\n{bulk}{refused}{bulk}*3\n{bulk}$-1\n{bulk}+PONG\n"
    );
    assert!(read(&mut server) == expected);
    // A block with what the session answers itself is put together.
    for words in [&["MULTI"][..], &["GET", "large"], &["PING"], &["INCR", "large"], &["EXEC"]] {
        server.send(0, &command(words));
    }
    let expected = format!("+OK\n+QUEUED\n+QUEUED\n+QUEUED\n*3\n{bulk}+PONG\n{refused}");
    assert!(read(&mut server) == expected);
}

#[test]
fn an_idle_connection_holds_next_to_nothing() {
    assert!(size_of::<Session>() <= 608, "{}", size_of::<Session>());
}

#[test]
fn answers_to_nobody_are_ignored() {
    let mut server = Server::new(1);
    let mut reply = Vec::new();
    Writer(&mut reply).ok();
    for ticket in [Ticket(0), Ticket(5), Ticket(u64::MAX)] {
        let status = OutcomeStatus::Committed;
        let nowhere = Finished::nowhere(ticket, status, Path::Snapshot);
        let finished = Finished { reply: &reply, ..nowhere };
        let mut control = NoControl;
        let Server { gateway, shared, clients, .. } = &mut server;
        let mut cx = Context { gateway, shared, control: &mut control, now: START };
        clients[0].session.finished(&finished, &mut cx);
    }
    assert_eq!(server.ask(0, &["PING"]), "+PONG\n");
}

struct NoControl;

impl ordain_resp::Control for NoControl {
    fn request(&mut self, _: Ticket, request: ordain_resp::ControlRequest) {
        panic!("nobody asked for {request:?}");
    }

    fn setting_changed(&mut self, name: &'static str, _: &str) {
        panic!("nobody changed {name}");
    }

    fn reset_statistics(&mut self) {}

    fn notice(&mut self, _: ordain_resp::Notice<'_>) {}

    fn users_changed(&mut self) {}

    fn random(&mut self, _: &mut [u8]) -> Result<(), String> {
        Err("nobody asked".to_owned())
    }
}

#[test]
fn a_changed_setting_is_told_to_the_node() {
    let mut server = Server::new(1);
    assert_eq!(server.ask(0, &["CONFIG", "SET", "timeout", "5", "maxclients", "100"]), "+OK\n");
    assert_eq!(server.settings(), [("timeout", "5".to_string()), ("maxclients", "100".to_string())]);
    assert_eq!(server.shared.settings.number("maxclients"), 100);
}

#[test]
fn command_shows_the_whole_table() {
    let mut server = Server::new(1);
    let count = all().len();
    assert_eq!(server.ask(0, &["COMMAND", "COUNT"]), format!(":{count}\n"));
    assert!(server.ask(0, &["COMMAND"]).starts_with(&format!("*{count}\n*10\n")));
    assert!(server.ask(0, &["COMMAND", "DOCS"]).starts_with(&format!("*{}\n", 2 * count)));
    let fitting: Vec<&str> = all().iter().map(|c| c.name).filter(|name| name.starts_with("get")).collect();
    let items: String = fitting.iter().map(|name| format!("${}\n{name}\n", name.len())).collect();
    let listed = server.ask(0, &["COMMAND", "LIST", "FILTERBY", "PATTERN", "GET*"]);
    assert_eq!(listed, format!("*{}\n{items}", fitting.len()));
}

/// Words that commands are made of, and some that they are not.
fn word() -> impl Strategy<Value = String> {
    let names: Vec<&'static str> = all().iter().map(|c| c.name).filter(|name| *name != "quit").collect();
    let others = vec![
        "k",
        "k2",
        "h",
        "f",
        "1",
        "0",
        "-1",
        "2",
        "3",
        "15",
        "100",
        "*",
        "NX",
        "XX",
        "GET",
        "EX",
        "PX",
        "READONLY",
        "ON",
        "SKIP",
        "LIST",
        "ID",
        "INFO",
        "SETNAME",
        "AUTH",
        "default",
        "keyspace",
        "docs",
        "getkeys",
        "count",
        "get",
        "set",
        "timeout",
        "digest",
        "help",
        "",
        "9999999999999999999",
        "WITHVALUES",
        "MATCH",
        "COUNT",
    ];
    prop_oneof![
        3 => proptest::sample::select(names).prop_map(str::to_string),
        6 => proptest::sample::select(others).prop_map(str::to_string),
        1 => "[ -~]{0,12}",
    ]
}

/// Commands that change what comes after them, so that a random stream reaches them often enough.
fn turning_point() -> impl Strategy<Value = Vec<String>> {
    let lines = vec![
        "multi",
        "exec",
        "discard",
        "watch k",
        "txn.begin",
        "txn.commit",
        "txn.abort",
        "set k 1",
        "get k",
        "incr k",
    ];
    proptest::sample::select(lines).prop_map(|line| line.split(' ').map(str::to_string).collect())
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    let words = prop_oneof![vec(word(), 1..6), turning_point()];
    vec(words, 0..30).prop_map(|commands| {
        let arrays = commands.iter().map(|words| command(&words.iter().map(|w| &**w).collect::<Vec<_>>()));
        arrays.collect::<Vec<_>>().concat()
    })
}

/// What a client receives that sends these pieces, the engine running between them or not.
fn run(pieces: &[(&[u8], bool)], weather: Weather) -> String {
    let mut server = Server::new(1);
    server.weather = weather;
    for (piece, settle) in pieces {
        server.send(0, piece);
        if *settle {
            server.settle();
        }
    }
    server.settle();
    assert_eq!((server.gateway.outstanding(), server.clients[0].session.pending()), (0, 0));
    server.take(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// However the bytes are cut and the answers ordered, the client sees the same.
    #[test]
    fn cuts_and_the_order_of_answers_do_not_show(
        bytes in stream(),
        cuts in vec((any::<prop::sample::Index>(), any::<bool>()), 0..20),
    ) {
        // Random fields and keys depend on where in the order a transaction stands, which cuts may change; so do the errors that
        // INFO has counted, of what was sent before it.
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        prop_assume!(!["rand", "client", "info"].iter().any(|word| text.contains(word)));
        let mut cuts: Vec<(usize, bool)> = cuts.iter().map(|(c, s)| (c.index(bytes.len() + 1), *s)).collect();
        cuts.push((bytes.len(), true));
        cuts.sort_unstable();
        let (mut pieces, mut at) = (Vec::new(), 0);
        for (cut, settle) in cuts {
            pieces.push((&bytes[at..cut], settle));
            at = cut;
        }
        let whole = run(&[(&bytes, true)], Weather::Fair);
        prop_assert_eq!(run(&pieces, Weather::Fair), &*whole);
        prop_assert_eq!(run(&pieces, Weather::Reversed), whole);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// Nothing that a client can send makes a session panic, owe a reply, or hold on to much.
    #[test]
    fn any_input_is_survived(
        bytes in prop_oneof![
            3 => stream(),
            1 => vec(any::<u8>(), 0..300),
            2 => (stream(), vec((any::<prop::sample::Index>(), any::<u8>()), 1..5)).prop_map(|(mut bytes, flips)| {
                for (at, byte) in flips {
                    if !bytes.is_empty() {
                        let at = at.index(bytes.len());
                        bytes[at] = byte;
                    }
                }
                bytes
            }),
        ],
        weather in proptest::sample::select(vec![Weather::Fair, Weather::Reversed, Weather::Busy, Weather::Refused]),
    ) {
        run(&[(&bytes, true)], weather);
    }
}
