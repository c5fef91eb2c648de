//! Fuzz target of the front door: connections that send commands of the whole table with arguments that mean something,
//! damaged, cut and mixed.

use ordain_commands::{all, lookup};
use ordain_fuzz::{Source, target};
use ordain_resp::Fate;

use ordain_conformance::Weather;
use ordain_conformance::reference::Server;
use ordain_conformance::reply::count;
use ordain_resp::client::command;

/// Arguments that some command gives a meaning to.
const WORDS: &[&str] = &[
    "k",
    "k",
    "k",
    "l",
    "h",
    "h",
    "s",
    "f",
    "g",
    "0",
    "1",
    "-1",
    "2",
    "3",
    "16",
    "1.5",
    "0x10",
    "inf",
    "nan",
    "1e400",
    "NX",
    "XX",
    "GT",
    "LT",
    "GET",
    "SET",
    "EX",
    "PX",
    "EXAT",
    "KEEPTTL",
    "PERSIST",
    "DB",
    "REPLACE",
    "MATCH",
    "COUNT",
    "TYPE",
    "hash",
    "string",
    "WITHVALUES",
    "ENCODING",
    "FREQ",
    "IDLETIME",
    "HELP",
    "USAGE",
    "SAMPLES",
    "DOCTOR",
    "ASYNC",
    "SYNC",
    "*",
    "**",
    "[k-",
    "\\",
    "k*",
    "",
    "\u{e9}\0\r\n",
    "ID",
    "INFO",
    "LIST",
    "KILL",
    "SETNAME",
    "SETINFO",
    "LIB-NAME",
    "LIB-VER",
    "TRACKING",
    "ON",
    "OFF",
    "REPLY",
    "SKIP",
    "AUTH",
    "default",
    "WHOAMI",
    "CAT",
    "GETUSER",
    "SETUSER",
    "DRYRUN",
    "LOAD",
    "DELETE",
    "FLUSH",
    "STATS",
    "DUMP",
    "RESTORE",
    "EXISTS",
    "DEBUG",
    "NO",
    "YES",
    "docs",
    "getkeys",
    "getkeysandflags",
    "count",
    "keyspace",
    "everything",
    "timeout",
    "maxclients",
    "maxmemory",
    "save",
    "notify-keyspace-events",
    "digest",
    "RESET",
    "LEN",
    "LATEST",
    "HISTORY",
    "HISTOGRAM",
    "GRAPH",
    "SESSION",
    "REQUEST",
    "EPOCH",
    "READONLY",
    "till.take",
    "till.follow",
    "f1",
    "lib",
    "return 1",
    "return redis.call('get',KEYS[1])",
    "return redis.call('set',KEYS[1],ARGV[1])",
    "return {1,'a',{2},redis.status_reply('x')}",
    "error('no')",
    "#!lua flags=no-writes\nreturn KEYS",
    "#!lua name=lib\nredis.register_function('f1',function(k,a) return k end)",
];

/// Commands that change what those after them mean.
const TURNS: &[&[&str]] = &[
    &["MULTI"],
    &["EXEC"],
    &["DISCARD"],
    &["WATCH", "k"],
    &["UNWATCH"],
    &["TXN.BEGIN"],
    &["TXN.BEGIN", "READONLY"],
    &["TXN.COMMIT"],
    &["TXN.ABORT"],
    &["HELLO", "2"],
    &["HELLO", "3"],
    &["RESET"],
    &["SELECT", "1"],
    &["SELECT", "0"],
    &["SET", "k", "1"],
    &["HSET", "h", "f", "1", "g", "2"],
    &["GET", "k"],
    &["INCR", "k"],
];

fn word(source: &mut Source) -> Vec<u8> {
    match source.within(0..10) {
        0 => source.edge().to_string().into_bytes(),
        1 => source.bytes(0..20),
        2 => b"x".repeat(source.within(0..3000)),
        _ => source.pick(WORDS).as_bytes().to_vec(),
    }
}

fn drawn(source: &mut Source) -> Vec<Vec<u8>> {
    if source.once_in(3) {
        return source.pick(TURNS).iter().map(|word| word.as_bytes().to_vec()).collect();
    }
    let command = source.pick(all());
    let mut words = vec![command.name.as_bytes().to_vec()];
    let fewest = usize::from(command.arity.unsigned_abs());
    // The right number of words most of the time: what is refused by arity alone is soon known.
    let count = if source.once_in(6) { source.within(1..8) } else { fewest + source.within(0..4) };
    words.extend((1..count).map(|_| word(source)));
    words
}

/// Whether a command may leave requests without replies or end the connection, so that replies cannot be counted.
fn is_uncounted(words: &[Vec<u8>]) -> bool {
    let name = words[0].to_ascii_lowercase();
    matches!(&*name, b"client" | b"quit" | b"post" | b"host:") || lookup(&name).is_none()
}

#[test]
fn fuzz_sessions() {
    target("sessions", 1500, |source| {
        let clients = source.within(1..4);
        let mut server = Server::new(clients);
        let mut sent = vec![Some(0usize); clients];
        let mut received = vec![Vec::new(); clients];
        for _ in 0..source.within(1..50) {
            let client = source.within(0..clients);
            let words = drawn(source);
            let mut bytes = command(&words);
            if source.once_in(20) {
                source.damage(&mut bytes);
                sent[client] = None;
            } else if is_uncounted(&words) {
                sent[client] = None;
            }
            sent[client] = sent[client].map(|count| count + 1);
            let cut = source.within(0..bytes.len());
            server.send(client, &bytes[..cut]);
            server.send(client, &bytes[cut..]);
            if source.once_in(4) {
                server.weather =
                    *source.pick(&[Weather::Fair, Weather::Fair, Weather::Reversed, Weather::Busy]);
                server.settle();
            }
        }
        server.settle();
        assert_eq!(server.gateway.outstanding(), 0);
        for client in 0..clients {
            received[client].append(&mut server.clients[client].output);
            let session = &server.clients[client].session;
            assert_eq!(session.pending(), 0, "client {client}");
            let count = count(&received[client])
                .unwrap_or_else(|e| panic!("{e}: {}", received[client].escape_ascii()));
            if let Some(sent) = sent[client]
                && session.fate() == Fate::Open
            {
                assert_eq!(count, sent, "{}", received[client].escape_ascii());
            }
        }
    });
}
