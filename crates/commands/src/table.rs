//! The command table: what a client may say, what COMMAND INFO shows of it, and who answers.
//!
//! A command is either a procedure, which becomes a transaction, or belongs to the connection's session, which
//! answers it from its own state or turns it into procedures of other names. The table is constant data;
//! finding a name costs one hash of at most sixteen bytes and one comparison.

mod entries;
mod reference;

use std::sync::OnceLock;

use ordain_model::{ArgsBuilder, PlanError, ProcedureId};

use crate::bits::bits;
use entries::COMMANDS;

pub use reference::{
    Reference, Shown, check_subcommand, quoted, reference, subcommand, subcommands, unknown_subcommand,
};

/// A command.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// Its name in lower case.
    pub name: &'static str,
    /// The number of words that it takes, its name included; negative: that many at least.
    pub arity: i16,
    /// The flags that COMMAND INFO shows.
    pub flags: Flags,
    /// The place of the first key, counted from the name; 0 if there is none to be found this way.
    pub first_key: i16,
    /// The place of the last key; negative: counted from the end.
    pub last_key: i16,
    /// From one key to the next.
    pub step: i16,
    /// The answerer.
    pub action: Action,
}

/// The answerer of a command.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// A transaction.
    Procedure {
        /// The procedure.
        id: ProcedureId,
        /// Writes the procedure's arguments from the client's, the command's name left out.
        encode: fn(args: &[&[u8]], &mut ArgsBuilder<'_>),
    },
    /// A transaction that is looked up by name: a native procedure, or a function of a library
    /// ([`function_call`](crate::script::functions::function_call)).
    Function {
        /// True if it must not write.
        read_only: bool,
    },
    /// The session of the connection.
    Session(SessionCommand),
}

/// The commands that a session answers itself. It parses their subcommands too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SessionCommand {
    Ping,
    Echo,
    Hello,
    Auth,
    Acl,
    Quit,
    Reset,
    Select,
    Client,
    Command,
    Info,
    Config,
    Time,
    Multi,
    Exec,
    Discard,
    Watch,
    Unwatch,
    TxnBegin,
    TxnCommit,
    TxnAbort,
    Debug,
    Script,
    Function,
    Save,
    BgSave,
    LastSave,
    SlowLog,
    Latency,
    Module,
    PubSub,
    /// PUBLISH and SPUBLISH: there are no subscribers.
    Publish,
    /// SUBSCRIBE and its kin.
    Subscribe,
    Wait,
    Role,
    /// MEMORY STATS and MEMORY MALLOC-STATS: the node's own figures.
    Memory,
}

/// The command or subcommand that answers these words: a container of transactions has subcommands that the node answers.
pub fn answered_by(command: &'static Command, words: &[&[u8]]) -> &'static Command {
    let is_of_node =
        |word: &&[u8]| ["stats", "malloc-stats"].iter().any(|sub| word.eq_ignore_ascii_case(sub.as_bytes()));
    if command.name == "memory" && words.get(1).is_some_and(is_of_node) {
        &entries::MEMORY_OF_NODE
    } else {
        command
    }
}

bits! {
    /// The flags of a command, as COMMAND INFO names them.
    Flags {
        /// May change the state.
        WRITE = 0, "write";
        /// Does not change the state.
        READONLY = 1, "readonly";
        /// Is refused when memory is short.
        DENYOOM = 2, "denyoom";
        /// Is for administrators.
        ADMIN = 3, "admin";
        /// Cannot be called by a script.
        NOSCRIPT = 4, "noscript";
        /// Is allowed while the database loads.
        LOADING = 5, "loading";
        /// Is allowed on a stale replica.
        STALE = 6, "stale";
        /// Is not shown by MONITOR.
        SKIP_MONITOR = 7, "skip_monitor";
        /// Is not noted in the slow log.
        SKIP_SLOWLOG = 8, "skip_slowlog";
        /// Takes constant or logarithmic time.
        FAST = 9, "fast";
        /// Is allowed before AUTH.
        NO_AUTH = 10, "no_auth";
        /// Cannot stand inside MULTI.
        NO_MULTI = 11, "no_multi";
        /// May be called without keys although it takes some.
        NO_MANDATORY_KEYS = 12, "no_mandatory_keys";
        /// Its keys are not where `first_key` says.
        MOVABLEKEYS = 13, "movablekeys";
        /// Is allowed while a script runs too long.
        ALLOW_BUSY = 14, "allow_busy";
        /// Is refused while a replica loads.
        NO_ASYNC_LOADING = 15, "no_async_loading";
        /// Is about publish and subscribe.
        PUBSUB = 16, "pubsub";
    }
}

impl Flags {
    /// Has subcommands, which [`check_subcommand`] checks. Clients are not shown it.
    pub const CONTAINER: Flags = Flags(1 << 31);

    /// The flags with these names.
    ///
    /// # Panics
    /// If there is no such flag: a mistake in the table.
    const fn of(names: &[&str]) -> Flags {
        let mut flags = Flags::NONE;
        let mut i = 0;
        while i < names.len() {
            let mut at = 0;
            while !is_same(Flags::NAMES[at].0, names[i]) {
                at += 1;
            }
            flags = flags.and(Flags::NAMES[at].1);
            i += 1;
        }
        flags
    }
}

/// True if two texts are the same, for constants.
const fn is_same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

/// The table at one address, so that a command's address gives its place.
static TABLE: &[Command] = COMMANDS;

/// The number of places of the index: a power of two, sparse enough for short probes.
const PLACES: usize = 1024;
const EMPTY: u8 = u8::MAX;
static INDEX: [u8; PLACES] = index();

const fn index() -> [u8; PLACES] {
    assert!(COMMANDS.len() < EMPTY as usize);
    let mut index = [EMPTY; PLACES];
    let mut i = 0;
    while i < COMMANDS.len() {
        let mut at = place(COMMANDS[i].name.as_bytes());
        while index[at] != EMPTY {
            at = (at + 1) % PLACES;
        }
        index[at] = i as u8;
        i += 1;
    }
    index
}

/// The place where a name's probe begins, whatever its case: names differ in their length or in up to eight
/// bytes from each end.
#[inline]
const fn place(name: &[u8]) -> usize {
    const CASE: u64 = 0x2020_2020_2020_2020;
    let len = name.len();
    let (head, tail) = if len >= 8 {
        (long(name), long(name.split_at(len - 8).1))
    } else if len >= 4 {
        (short(name), short(name.split_at(len - 4).1))
    } else if len > 0 {
        (name[0] as u64, (name[len / 2] as u64) << 8 | name[len - 1] as u64)
    } else {
        (0, 0)
    };
    let mixed = (head | CASE).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (tail | CASE).wrapping_mul(0xc2b2_ae3d_27d4_eb4f)
        ^ len as u64;
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize
}

const fn long(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(word) => u64::from_le_bytes(*word),
        None => 0,
    }
}

const fn short(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<4>() {
        Some(word) => u32::from_le_bytes(*word) as u64,
        None => 0,
    }
}

/// The command with this name, in any case.
#[inline]
pub fn lookup(name: &[u8]) -> Option<&'static Command> {
    Some(CommandNo::find(name)?.command())
}

/// A command by its place in the table, or a subcommand by its place after all commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommandNo(u16);

/// All subcommands, each with its container.
fn all_subcommands() -> &'static [(&'static Command, &'static Reference)] {
    static ALL: OnceLock<Vec<(&'static Command, &'static Reference)>> = OnceLock::new();
    ALL.get_or_init(|| {
        let of = |command: &'static Command| subcommands(command.name).map(move |found| (command, found));
        TABLE.iter().flat_map(of).collect()
    })
}

impl CommandNo {
    /// The command with this name, in any case.
    #[inline]
    pub fn find(name: &[u8]) -> Option<CommandNo> {
        let mut at = place(name);
        while INDEX[at] != EMPTY {
            let number = CommandNo(u16::from(INDEX[at]));
            if number.command().name.as_bytes().eq_ignore_ascii_case(name) {
                return Some(number);
            }
            at = (at + 1) % PLACES;
        }
        None
    }

    /// The subcommand of this command that a word names, or the command itself.
    pub fn narrowed(self, word: &[u8]) -> CommandNo {
        let command = self.command();
        let is = |(container, found): &(&'static Command, &'static Reference)| {
            container.name == command.name && found.name.as_bytes().eq_ignore_ascii_case(word)
        };
        match all_subcommands().iter().position(is) {
            Some(at) => CommandNo((TABLE.len() + at) as u16),
            None => self,
        }
    }

    /// The name of the command, or `container|subcommand`.
    pub fn name(self) -> String {
        match self.index().checked_sub(TABLE.len()).and_then(|at| all_subcommands().get(at)) {
            Some((container, found)) => format!("{}|{}", container.name, found.name),
            None => self.command().name.to_string(),
        }
    }

    #[inline]
    const fn index(self) -> usize {
        self.0 as usize
    }

    /// The command, of a subcommand its container.
    #[inline]
    pub fn command(self) -> &'static Command {
        match TABLE.get(self.index()) {
            Some(command) => command,
            None => all_subcommands()[self.index() - TABLE.len()].0,
        }
    }
}

/// All commands.
pub fn all() -> &'static [Command] {
    TABLE
}

/// Checks that a command may be called with this many words, its name included.
///
/// # Errors
/// The error Redis gives.
#[inline]
pub fn check_arity(command: &Command, argc: usize) -> Result<(), PlanError> {
    if takes(command.arity, argc) { Ok(()) } else { Err(PlanError::arity(command.name)) }
}

/// Checks a number of words, the command's name included, against an [arity](Command::arity).
#[inline]
pub(crate) fn takes(arity: i16, argc: usize) -> bool {
    let wanted = usize::from(arity.unsigned_abs());
    argc == wanted || (arity < 0 && argc > wanted)
}

/// The arity of a command of Redis 7.0 that is not here and that Redis keeps from scripts, by the words that call it.
pub(crate) fn absent_from_scripts(words: &[&[u8]]) -> Option<i16> {
    const ABSENT: [(&str, i16); 15] = [
        ("bgrewriteaof", 1),
        ("blmove", 6),
        ("blpop", -3),
        ("brpop", -3),
        ("brpoplpush", 4),
        ("bzpopmax", -3),
        ("bzpopmin", -3),
        ("failover", -1),
        ("monitor", 1),
        ("psync", -3),
        ("replconf", -1),
        ("replicaof", 3),
        ("shutdown", -1),
        ("slaveof", 3),
        ("sync", 1),
    ];
    const ABSENT_PARTS: [(&str, &str, i16); 4] =
        [("cluster", "reset", -2), ("module", "load", -3), ("module", "loadex", -3), ("module", "unload", 3)];
    let is =
        |at: usize, name: &str| words.get(at).is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()));
    let part = ABSENT_PARTS.iter().find(|(name, part, _)| is(0, name) && is(1, part));
    let whole = ABSENT.iter().find(|(name, _)| is(0, name));
    part.map(|(_, _, arity)| *arity).or(whole.map(|(_, arity)| *arity))
}

/// The usual way of writing arguments: as they are.
fn encode_all(args: &[&[u8]], builder: &mut ArgsBuilder<'_>) {
    for arg in args {
        builder.push(arg);
    }
}

/// GETSET is a SET that answers the old value.
fn encode_getset(args: &[&[u8]], builder: &mut ArgsBuilder<'_>) {
    encode_all(args, builder);
    builder.push(b"GET");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_in_any_case() {
        for command in all() {
            assert_eq!(command.name, command.name.to_ascii_lowercase());
            for name in [command.name.to_string(), command.name.to_ascii_uppercase()] {
                assert_eq!(lookup(name.as_bytes()).map(|c| c.name), Some(command.name));
            }
        }
        for unknown in ["", "g", "getx", "lpush", "a-name-that-is-longer-than-any-command"] {
            assert!(lookup(unknown.as_bytes()).is_none(), "{unknown}");
        }
    }

    #[test]
    fn numbers_name_commands_and_subcommands() {
        let config = CommandNo::find(b"CONFIG").unwrap();
        assert_eq!(config.narrowed(b"GET").name(), "config|get");
        assert_eq!(config.narrowed(b"GET").command().name, "config");
        assert_eq!(config.narrowed(b"nosuch"), config);
        let count = TABLE.len() + all_subcommands().len();
        let all = (0..count).map(|index| CommandNo(index as u16));
        assert_eq!(all.map(CommandNo::name).collect::<std::collections::BTreeSet<_>>().len(), count);
    }

    #[test]
    fn the_longest_probe_is_short() {
        let occupied: Vec<bool> = INDEX.iter().map(|&i| i != EMPTY).collect();
        let longest = occupied.split(|o| !o).map(<[bool]>::len).max();
        assert!(longest.is_some_and(|n| n <= 4), "{longest:?}");
    }

    #[test]
    fn arity_is_exact_or_a_minimum() {
        let get = lookup(b"get").unwrap();
        assert!(check_arity(get, 2).is_ok());
        assert_eq!(
            check_arity(get, 3).unwrap_err().to_string(),
            "ERR wrong number of arguments for 'get' command"
        );
        let set = lookup(b"set").unwrap();
        assert!(check_arity(set, 2).is_err());
        assert!(check_arity(set, 3).is_ok() && check_arity(set, 9).is_ok());
    }

    #[test]
    fn flags_are_named_as_redis_names_them() {
        let names: Vec<_> = lookup(b"get").unwrap().flags.names().collect();
        assert_eq!(names, ["readonly", "fast"]);
    }
}
