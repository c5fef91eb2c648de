//! The limits of a request, and of memory: what is over one is an error without effect, and the connection lives on.

use crate::cluster::Shape;
use crate::conversation::{CONNECTIONS, Conversation};
use crate::drawn::{Command, Program, Step};

/// The longest key, bytes.
const KEY: usize = 64 << 10;
/// The longest value, bytes.
const VALUE: usize = 16 << 20;
/// The most keys of a transaction.
const KEYS: usize = 65_536;

const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.";
const EXEC_OOM: &str =
    "-EXECABORT Transaction discarded because of: OOM command not allowed when used memory > 'maxmemory'.";

fn command(words: &[&[u8]]) -> Command {
    words.iter().map(|word| word.to_vec()).collect()
}

fn at_once(connection: usize, commands: Vec<Command>) -> Step {
    Step::Send { connection, commands }
}

/// The first keys of many.
fn of_keys(name: &[u8], count: usize) -> Command {
    let keys = (0..count).map(|n| format!("key:{n}").into_bytes());
    std::iter::once(name.to_vec()).chain(keys).collect()
}

/// Keys, values and transactions at their limits and beyond them, alone, in pipelines and in blocks.
///
/// # Errors
/// An answer that the reference does not give.
pub fn limits(shape: &Shape) -> Result<(), String> {
    let (longest, too_long) = (vec![b'k'; KEY], vec![b'k'; KEY + 1]);
    let too_large = vec![b'v'; VALUE + 1];
    let ping = || command(&[b"PING"]);
    let steps = vec![
        at_once(0, vec![command(&[b"SET", &longest, b"1"]), command(&[b"INCR", &longest]), ping()]),
        at_once(1, vec![command(&[b"SET", &too_long, b"1"]), command(&[b"MGET", b"a", &too_long]), ping()]),
        at_once(
            2,
            vec![
                command(&[b"MULTI"]),
                command(&[b"SET", b"a", b"1"]),
                command(&[b"SET", &too_long, b"1"]),
                command(&[b"EXEC"]),
                command(&[b"EXISTS", b"a"]),
            ],
        ),
        at_once(
            3,
            vec![command(&[b"EVAL", b"return redis.call('SET', KEYS[1], '1')", b"1", &too_long]), ping()],
        ),
        at_once(0, vec![command(&[b"SET", b"a", &too_large]), command(&[b"EXISTS", b"a"]), ping()]),
        at_once(
            0,
            vec![
                command(&[b"SETRANGE", b"a", b"16777215", b"x"]),
                command(&[b"APPEND", b"a", b"y"]),
                command(&[b"SETRANGE", b"a", b"16777216", b"x"]),
                command(&[b"STRLEN", b"a"]),
                command(&[b"DEL", b"a"]),
            ],
        ),
        at_once(1, vec![of_keys(b"EXISTS", KEYS), of_keys(b"EXISTS", KEYS + 1), ping()]),
        at_once(
            2,
            vec![
                command(&[b"MULTI"]),
                of_keys(b"DEL", KEYS),
                command(&[b"SET", b"another", b"1"]),
                command(&[b"EXEC"]),
                command(&[b"EXISTS", b"another"]),
            ],
        ),
    ];
    let program = Program { speaks_resp3: false, steps };
    program.compare(&mut *shape.open()).map_err(|difference| difference.to_string())
}

/// While memory is short, what needs some is refused on every node, and all else goes on.
///
/// # Errors
/// An answer that is not so.
pub fn memory(shape: &Shape) -> Result<(), String> {
    let mut subject = shape.open();
    let mut talk = Conversation::new(&mut *subject);
    let expect = |talk: &mut Conversation<'_>, number: usize, line: &str, expected: &str| {
        let reply = talk.run(number, line)?;
        if reply == expected { Ok(()) } else { Err(format!("{line} on {number}: {reply}, not {expected}")) }
    };
    expect(&mut talk, 0, "MSET a 1 b 2 c 3 d 4", "+OK")?;
    for number in 0..CONNECTIONS {
        expect(&mut talk, number, "CONFIG SET maxmemory 1mb", "+OK")?;
    }
    talk.subject.set_used(2 << 20)?;
    for number in 0..CONNECTIONS {
        for line in [
            "SET a x",
            "MSET a x n x",
            "INCR b",
            "HSET h f v",
            "EVAL return{redis.call('SET',KEYS[1],1)} 1 n",
        ] {
            let is_script = line.starts_with("EVAL");
            let reply = talk.run(number, line)?;
            if !(reply == OOM || is_script && reply.contains("OOM")) {
                return Err(format!("{line} on {number}: {reply}"));
            }
        }
        expect(&mut talk, number, "MULTI", "+OK")?;
        expect(&mut talk, number, "SET a x", OOM)?;
        let reply = talk.run(number, "EXEC")?;
        if !reply.starts_with("-EXECABORT") {
            return Err(format!("EXEC on {number}: {reply}, and not as {EXEC_OOM}"));
        }
        expect(&mut talk, number, "MGET a b c n", "[\"1\" \"2\" \"3\" _]")?;
        expect(&mut talk, number, "EXPIRE c 100", ":1")?;
        expect(&mut talk, number, "EXISTS n h", ":0")?;
    }
    expect(&mut talk, 1, "DEL d", ":1")?;
    talk.subject.set_used(0)?;
    for number in 0..CONNECTIONS {
        expect(&mut talk, number, "SET a x", "+OK")?;
    }
    Ok(())
}
