//! Drawing programs: forms of every data command, filled with a few keys of several partitions, in pipelines, blocks, scripts
//! and interactive transactions.
//!
//! A form is a command with placeholders. `$s` is a key that mostly holds a string, `$h` one that mostly holds a hash, `$k`
//! any key, `$f` a field, `$v` a value, `$i` an integer, `$x` a decimal number, `$t` a time to live, `$T` a time, `$o` an
//! offset, `$p` a pattern, `$d` a database, `$c` a cursor, `$S` a
//! long script.

use ordain_fuzz::Source;
use ordain_model::Reads;

use super::{Command, Program, Step};
use crate::conversation::CONNECTIONS;
use crate::reference::START;
use crate::subject::Traits;

/// Commands of keys that the plan names.
const ON_KEYS: &[&str] = &[
    "GET $s",
    "GET $k",
    "SET $s $v",
    "SET $s $i",
    "SET $s $v NX",
    "SET $s $v XX GET",
    "SET $s $v PX $t",
    "SET $s $v PXAT $T",
    "SET $s $v KEEPTTL",
    "SET $h $v",
    "SETNX $s $v",
    "SETEX $s 2 $v",
    "PSETEX $s $t $v",
    "GETSET $s $v",
    "GETDEL $s",
    "GETEX $s PX $t",
    "GETEX $s PERSIST",
    "MGET $s $s $k $s",
    "MGET $s $s $s $s $s $s",
    "MSET $s $v $s $v $s $v",
    "MSET $s $i $h $v",
    "MSETNX $s $v $s $v",
    "APPEND $s $v",
    "STRLEN $s",
    "GETRANGE $s $o $i",
    "SUBSTR $s $o $o",
    "SETRANGE $s $o $v",
    "INCR $s",
    "DECR $s",
    "INCRBY $s $i",
    "DECRBY $s $i",
    "INCRBYFLOAT $s $x",
    "DEL $k",
    "DEL $s $h $s $k",
    "UNLINK $s $s",
    "EXISTS $k $k $s $s",
    "TYPE $k",
    "TOUCH $s $h $k",
    "RENAME $k $k",
    "RENAME $s $s",
    "RENAMENX $k $s",
    "COPY $s $s",
    "COPY $k $k REPLACE",
    "COPY $h $s DB $d REPLACE",
    "MOVE $s $d",
    "EXPIRE $s 1",
    "EXPIRE $k 2 NX",
    "PEXPIRE $k $t",
    "PEXPIRE $k $t XX",
    "PEXPIRE $k $t GT",
    "PEXPIRE $k $t LT",
    "EXPIREAT $s $i",
    "PEXPIREAT $k $T",
    "TTL $k",
    "PTTL $k",
    "EXPIRETIME $k",
    "PEXPIRETIME $k",
    "PERSIST $k",
    "OBJECT ENCODING $k",
    "HSET $h $f $v",
    "HSET $h $f $v $f $i $f $v",
    "HSET $s $f $v",
    "HSETNX $h $f $v",
    "HMSET $h $f $i $f $v",
    "HGET $h $f",
    "HMGET $h $f $f nosuch",
    "HGETALL $h",
    "HDEL $h $f",
    "HDEL $h $f $f $f",
    "HEXISTS $h $f",
    "HLEN $h",
    "HKEYS $h",
    "HVALS $h",
    "HSTRLEN $h $f",
    "HINCRBY $h $f $i",
    "HINCRBYFLOAT $h $f $x",
    "HSCAN $h 0",
    "HSCAN $h 0 MATCH $p COUNT 2",
    "FCALL till.take 1 $s 3",
    "FCALL till.take 1 $s $i",
    "MEMORY USAGE $k",
];

/// Counts records whose time has come until they are removed, so that it is only drawn when none may be left.
const DBSIZE: &str = "DBSIZE";

/// Commands over the whole table, which are rare.
const ON_ALL: &[&str] = &[
    "KEYS $p",
    "KEYS *",
    "SCAN 0 COUNT 5",
    "SCAN $c COUNT 3",
    "SCAN 0 COUNT 100 MATCH $p",
    "SCAN 0 COUNT 1000 TYPE hash",
    DBSIZE,
    DBSIZE,
    "SWAPDB 0 $d",
    "FLUSHDB",
    "FLUSHALL",
];

/// Commands that run alone: they are no part of an interactive transaction.
const SCRIPTS: &[&str] = &[
    "EVAL \"return redis.call('GET', KEYS[1])\" 1 $s",
    "EVAL \"redis.call('SET', KEYS[1], ARGV[1]) return redis.call('MGET', KEYS[1], KEYS[2])\" 2 $s $s $v",
    "EVAL \"local v = redis.call('GET', KEYS[1]) if v then redis.call('SET', KEYS[2], v) end return v\" 2 $s $s",
    "EVAL \"redis.call('INCR', KEYS[1]) redis.call('APPEND', KEYS[2], ARGV[1]) return redis.call('STRLEN', KEYS[2])\" 2 $s $s x",
    "EVAL \"redis.call('SET', KEYS[1], 'lost') error('no')\" 1 $s",
    "EVAL \"redis.call('SET', KEYS[1], 'lost') return redis.call('INCR', KEYS[2])\" 2 $s $h",
    "EVAL \"return {pcall(redis.call, 'HGET', KEYS[1], 'a')}\" 1 $k",
    "EVAL \"local r = {} for i, k in ipairs(KEYS) do r[i] = redis.call('TYPE', k)['ok'] end return r\" 3 $k $k $k",
    "EVAL \"for i = 1, 20 do redis.call('HSET', KEYS[1], 'n' .. i, i) end return redis.call('HLEN', KEYS[1])\" 1 $h",
    "EVAL \"for i, k in ipairs(KEYS) do redis.call('DEL', k) end return #KEYS\" 3 $k $s $h",
    "EVAL \"return redis.call('PEXPIRE', KEYS[1], ARGV[1]) + redis.call('PTTL', KEYS[1])\" 1 $k $t",
    "EVAL \"return redis.call('GET', ARGV[1])\" 1 $s elsewhere",
    "EVAL $S 1 $s",
    "EVAL_RO \"return redis.call('MGET', KEYS[1], KEYS[2])\" 2 $s $s",
    "EVAL_RO \"return redis.call('SET', KEYS[1], 'x')\" 1 $s",
    "EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 1 $s",
    "EVALSHA_RO e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0",
    "SCRIPT LOAD \"return 1\"",
    "SCRIPT EXISTS e0e1f9fabfc9d4800c877a703b823ac0578ff8db",
    "FUNCTION LOAD REPLACE \"#!lua name=lib\\nredis.register_function('swap', function(k) local a = redis.call('GET', k[1]) \
     local b = redis.call('GET', k[2]) redis.call('MSET', k[1], b or '', k[2], a or '') return {a, b} end)\\n\
     redis.register_function{function_name='look', callback=function(k) return redis.call('GET', k[1]) end, \
     flags={'no-writes'}}\"",
    "FCALL swap 2 $s $s",
    "FCALL swap 2 $s $k",
    "FCALL_RO look 1 $s",
    "FCALL_RO swap 2 $s $s",
    "FCALL till.follow 1 $s",
];

/// Commands that are refused, each as it comes.
const REFUSED: &[&str] =
    &["GET", "SET $s", "NOSUCH $s", "INCRBY $s many", "SET $s $v FOO", "HSET $h $f", "EXPIRE $s 1 NX GT"];

/// Keys that mostly hold strings, and those that mostly hold hashes.
const STRINGS: usize = 12;
const HASHES: usize = 5;
/// The databases that are used.
pub(super) const DATABASES: [&str; 3] = ["0", "1", "2"];

const VALUES: &[&[u8]] =
    &[b"", b"a", b"12", b"-7", b"3.5", b"two words", b"\0\xff\r\n", b"9223372036854775807", b"x'\"\\"];
const FIELDS: &[&str] = &["a", "b", "c", "d", ""];
const PATTERNS: &[&str] = &["*", "s*", "h?", "[sh]1*", "nothing", "*\\1"];
const DECIMALS: &[&str] = &["0.5", "-1.25", "3", "1e3", "0x10"];

/// Draws a program of about so many steps from a seed, of what a subject can be held to byte by byte.
pub fn draw(seed: u64, steps: usize, traits: &Traits) -> Program {
    let mut drawing =
        Drawing { source: Source::new(seed), steps: Vec::new(), traits: *traits, is_swept: true };
    let speaks_resp3 = drawing.source.once_in(2);
    while drawing.steps.len() < steps {
        drawing.scene();
    }
    Program { speaks_resp3, steps: drawing.steps }
}

struct Drawing {
    source: Source,
    steps: Vec<Step>,
    traits: Traits,
    /// No record is left whose time has come.
    is_swept: bool,
}

impl Drawing {
    /// One thing that clients do: a command, a pipeline, a block, a transaction, or that time passes.
    fn scene(&mut self) {
        let connection = self.source.within(0..CONNECTIONS);
        match self.source.within(0..24) {
            0..5 => {
                let command = self.command(true);
                self.send(connection, vec![command]);
            }
            5..9 => self.pipeline(connection),
            9..14 => self.block(connection),
            14..18 => {
                let script = self.form(SCRIPTS);
                self.send(connection, vec![script]);
            }
            18 | 19 if self.traits.can.is_interactive => self.interactive(connection),
            20 => {
                let ms = *self.source.pick(&[1, 50, 100, 500, 999, 1000, 1001, 3000]);
                self.wait(ms);
                if self.source.once_in(2) {
                    self.steps.push(Step::Sweep);
                    self.is_swept = true;
                }
            }
            21 if self.traits.can.moves_slots => self.steps.push(Step::Move),
            22 => {
                let database = self.form(&["SELECT $d", "SELECT 0", "SELECT 0"]);
                self.send(connection, vec![database]);
            }
            23 if self.source.once_in(3) => self.steps.push(Step::HangUp(connection)),
            _ => self.watch(connection),
        }
    }

    fn wait(&mut self, ms: u64) {
        self.steps.push(Step::Wait(ms));
        self.is_swept = false;
    }

    fn send(&mut self, connection: usize, commands: Vec<Command>) {
        self.steps.push(Step::Send { connection, commands });
    }

    fn pipeline(&mut self, connection: usize) {
        let commands: Vec<Command> = (0..self.source.within(2..9)).map(|_| self.command(true)).collect();
        if self.traits.reads_pipelined_writes() {
            self.send(connection, commands);
        } else {
            commands.into_iter().for_each(|command| self.send(connection, vec![command]));
        }
    }

    /// MULTI to EXEC or DISCARD.
    fn block(&mut self, connection: usize) {
        let mut commands = vec![words("MULTI")];
        for _ in 0..self.source.within(1..8) {
            let command = match self.source.within(0..12) {
                0 => self.form(SCRIPTS),
                1 if self.source.once_in(3) => self.form(REFUSED),
                2 => words("PING"),
                _ => self.command(true),
            };
            commands.push(command);
        }
        commands.push(words(if self.source.once_in(12) { "DISCARD" } else { "EXEC" }));
        self.send(connection, commands);
    }

    /// WATCH, then a block, and perhaps what another connection changes between them.
    fn watch(&mut self, connection: usize) {
        let watch = self.form(&["WATCH $s", "WATCH $s $h $k", "WATCH $k"]);
        self.send(connection, vec![watch]);
        let other = (connection + self.source.within(1..CONNECTIONS)) % CONNECTIONS;
        if self.source.once_in(2) {
            let command = self.command(false);
            self.send(other, vec![command]);
        }
        if self.source.once_in(4) {
            self.wait(1000);
        }
        self.block(connection);
    }

    /// `TXN.BEGIN` to `TXN.COMMIT` or `TXN.ABORT`, and perhaps what another connection changes meanwhile, unless that would have
    /// to wait.
    fn interactive(&mut self, connection: usize) {
        if self.traits.is_direct && self.traits.partitions > 1 {
            // A lock of the transaction before may be held for a moment after its answer, and would refuse a step.
            return self.block(connection);
        }
        // A transaction that only reads a snapshot sees no later write, and fails for none.
        let may_be_read_only = self.traits.reads == Reads::Ordered;
        let begin =
            if may_be_read_only && self.source.once_in(4) { "TXN.BEGIN READONLY" } else { "TXN.BEGIN" };
        self.send(connection, vec![words(begin)]);
        let other = (connection + self.source.within(1..CONNECTIONS)) % CONNECTIONS;
        for _ in 0..self.source.within(1..6) {
            // What the one way of running them refuses, the other one runs.
            let command = if self.traits.is_direct { self.form(ON_KEYS) } else { self.command(false) };
            self.send(connection, vec![command]);
            if !self.traits.is_direct && self.source.once_in(5) {
                let command = self.command(false);
                self.send(other, vec![command]);
            }
        }
        let end = if self.source.once_in(6) { "TXN.ABORT" } else { "TXN.COMMIT" };
        self.send(connection, vec![words(end)]);
    }

    /// A command, which may be over the whole table.
    fn command(&mut self, may_be_of_all: bool) -> Command {
        if may_be_of_all && self.traits.is_whole && self.source.once_in(14) {
            // Flushed rarely: little could go wrong with what is empty.
            let most = if self.source.once_in(6) { ON_ALL.len() } else { ON_ALL.len() - 2 };
            let is_certain = |form: &&&str| self.is_swept || **form != DBSIZE;
            let forms: Vec<&str> = ON_ALL[..most].iter().filter(is_certain).copied().collect();
            return self.form(&forms);
        }
        if self.source.once_in(40) { self.form(REFUSED) } else { self.form(ON_KEYS) }
    }

    /// A form with its placeholders filled.
    fn form(&mut self, forms: &[&str]) -> Command {
        let form = *self.source.pick(forms);
        words(form).into_iter().map(|word| self.fill(word)).collect()
    }

    fn fill(&mut self, word: Vec<u8>) -> Vec<u8> {
        let [b'$', kind] = word[..] else { return word };
        let source = &mut self.source;
        match kind {
            b's' if source.once_in(30) => format!("h{}", source.within(0..HASHES)).into_bytes(),
            b's' => format!("s{}", source.within(0..STRINGS)).into_bytes(),
            b'h' => format!("h{}", source.within(0..HASHES)).into_bytes(),
            b'k' => match source.within(0..5) {
                0 => b"none".to_vec(),
                1 => format!("h{}", source.within(0..HASHES)).into_bytes(),
                _ => format!("s{}", source.within(0..STRINGS)).into_bytes(),
            },
            b'f' => source.pick(FIELDS).as_bytes().to_vec(),
            b'v' if source.once_in(12) => vec![b'v'; source.within(1..3000)],
            b'v' => source.pick(VALUES).to_vec(),
            b'i' if source.once_in(8) => source.edge().to_string().into_bytes(),
            b'i' => (source.within(0..20) as i64 - 5).to_string().into_bytes(),
            b'x' => source.pick(DECIMALS).as_bytes().to_vec(),
            b't' => source.pick(&["1", "50", "999", "1000", "1001", "100000"]).as_bytes().to_vec(),
            b'T' => (START.0 / 1000 + source.within(0..20_000) as u64).to_string().into_bytes(),
            b'o' => (source.within(0..12) as i64 - 3).to_string().into_bytes(),
            b'p' => source.pick(PATTERNS).as_bytes().to_vec(),
            b'd' => {
                source.pick(&[DATABASES[0], DATABASES[1], DATABASES[1], DATABASES[2]]).as_bytes().to_vec()
            }
            // So long that a thread of its own compiles it.
            b'S' => {
                let (pad, number) = ("x".repeat(17_000), source.within(0..4));
                format!("--{pad}{number}\nreturn redis.call('INCR', KEYS[1])").into_bytes()
            }
            b'c' => source.pick(&["0", "1", "4096", "18446744073709551615"]).as_bytes().to_vec(),
            _ => word,
        }
    }
}

/// The words of a form, quoted as inline commands are.
fn words(form: &str) -> Command {
    crate::transcript::words_of(form).unwrap_or_else(|reason| panic!("a form is no command: {reason}"))
}

/// Every key that a form may name.
pub(super) fn keys() -> impl Iterator<Item = String> {
    let strings = (0..STRINGS).map(|number| format!("s{number}"));
    strings.chain((0..HASHES).map(|number| format!("h{number}"))).chain(["none".to_owned()])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ordain_commands::{Action, all};

    use super::*;

    /// Commands whose replies are drawn from the place in the order, which differs between a cluster and the reference.
    const DRAWS: [&str; 2] = ["randomkey", "hrandfield"];

    #[test]
    fn every_data_command_has_a_form() {
        let forms = [ON_KEYS, ON_ALL, SCRIPTS].concat();
        let named: BTreeSet<String> = forms
            .iter()
            .map(|form| String::from_utf8(words(form)[0].to_ascii_lowercase()).unwrap())
            .collect();
        for command in all() {
            let is_data = matches!(command.action, Action::Procedure { .. });
            assert!(
                !is_data || named.contains(command.name) || DRAWS.contains(&command.name),
                "{}",
                command.name
            );
        }
    }
}
