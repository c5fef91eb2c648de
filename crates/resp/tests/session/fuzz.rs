//! Fuzz target of the front door: connections that send commands of the whole table with arguments that mean something,
//! damaged, cut and mixed.

use ordain_commands::{all, lookup};
use ordain_fuzz::{Source, target};
use ordain_resp::Fate;

use crate::support::{Server, Weather};

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

fn command(source: &mut Source) -> Vec<Vec<u8>> {
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

fn encoded(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Whether a command may leave requests without replies or end the connection, so that replies cannot be counted.
fn is_uncounted(words: &[Vec<u8>]) -> bool {
    let name = words[0].to_ascii_lowercase();
    matches!(&*name, b"client" | b"quit" | b"post" | b"host:") || lookup(&name).is_none()
}

/// The number of whole values in what a client received, RESP2 or RESP3.
fn values(mut bytes: &[u8]) -> Result<usize, String> {
    let mut count = 0;
    while !bytes.is_empty() {
        bytes = value(bytes)?;
        count += 1;
    }
    Ok(count)
}

fn value(bytes: &[u8]) -> Result<&[u8], String> {
    let mut rest = bytes;
    let mut owed = 1usize;
    while owed > 0 {
        owed -= 1;
        let end = rest.windows(2).position(|pair| pair == b"\r\n").ok_or("a line does not end")?;
        let (line, tail) = (&rest[..end], &rest[end + 2..]);
        let (kind, text) = line.split_first().ok_or("an empty line")?;
        let number = || std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok());
        rest = match kind {
            b'+' | b'-' | b'(' | b',' | b'#' | b'_' => tail,
            b':' => number().map(|_| tail).ok_or("no integer")?,
            b'$' | b'=' | b'!' => match number().ok_or("no length")? {
                -1 => tail,
                len => {
                    let len = usize::try_from(len).map_err(|_| "a negative length")?;
                    let (_, after) = tail.split_at_checked(len).ok_or("a value is cut")?;
                    after.strip_prefix(b"\r\n").ok_or("a value is longer than it says")?
                }
            },
            b'*' | b'~' | b'>' | b'%' => {
                let items = number().ok_or("no count")?.max(0);
                owed += usize::try_from(items).map_err(|_| "a count")? * if *kind == b'%' { 2 } else { 1 };
                tail
            }
            other => return Err(format!("a value of type {:?}", char::from(*other))),
        };
    }
    Ok(rest)
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
            let words = command(source);
            let mut bytes = encoded(&words);
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
            let count = values(&received[client])
                .unwrap_or_else(|e| panic!("{e}: {}", received[client].escape_ascii()));
            if let Some(sent) = sent[client]
                && session.fate() == Fate::Open
            {
                assert_eq!(count, sent, "{}", received[client].escape_ascii());
            }
        }
    });
}
