//! Rights: the commands that a user may run, and the keys and channels, in the syntax of Redis's access control lists.
//!
//! A [`Selector`] is one list of rules, and [`Rights`] are a first selector and any number of further ones; what one of
//! them permits whole is permitted. The front door asks them for each command of a client. A script asks them for each
//! command that it calls, and carries them in its own arguments for that ([`Rights::carried`]): it is executed on every
//! replica, and again when the log is replayed, at times when the user may have other rights or be gone. So carried rights
//! name each command, and no category, whose members a later version may change.

mod catalogue;
mod selector;

use std::fmt::Write as _;

use ordain_model::args;
use ordain_model::{Args, ArgsBuilder};

use crate::table::{Command, Flags};
use catalogue::RowNo;

pub use catalogue::{Categories, Need, Row, rows};
pub use selector::{RuleError, Selector};

/// The reason for which a command is not permitted. A later one says more of what is missing than an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denied {
    /// The command, or the subcommand.
    Command,
    /// The key that is the word with this number.
    Key(usize),
    /// The channel that is the word with this number.
    Channel(usize),
}

impl Denied {
    /// The error that a script gets, as in Redis 7.0.
    pub const fn in_script(self) -> &'static str {
        match self {
            Denied::Command => "ERR The user executing the script can't run this command or subcommand",
            Denied::Key(_) => {
                "ERR The user executing the script can't access at least one of the keys mentioned in the command \
                 arguments"
            }
            Denied::Channel(_) => {
                "ERR The user executing the script can't publish to the channel mentioned in the command"
            }
        }
    }
}

/// The name of what is called in an error: the command's, or the command's and the subcommand's.
pub fn full_name(command: &Command, words: &[&[u8]]) -> &'static str {
    RowNo::of(command, words).map_or(command.name, |row| &*row.row().name)
}

/// The rights of a user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// The first selector.
    pub root: Selector,
    /// The further ones.
    pub more: Vec<Selector>,
}

impl Rights {
    /// All commands on all keys and channels.
    pub fn everything() -> Rights {
        Rights { root: Selector::everything(), more: Vec::new() }
    }

    /// True if they refuse nothing.
    pub fn are_full(&self) -> bool {
        self.root.is_full()
    }

    /// Checks that a command may be run. Its words must be as many as it takes.
    ///
    /// # Errors
    /// Why not: of the selectors, the reason of the one that permits most.
    pub fn check(&self, command: &Command, words: &[&[u8]]) -> Result<(), Denied> {
        let mut reason = Denied::Command;
        for selector in std::iter::once(&self.root).chain(&self.more) {
            match selector.check(command, words) {
                Ok(()) => return Ok(()),
                Err(denied) => reason = reason.max(denied),
            }
        }
        Err(reason)
    }

    /// True if a command may be run on any keys at all.
    pub fn permits_on_all_keys(&self, command: &Command, words: &[&[u8]]) -> bool {
        let mut all = std::iter::once(&self.root).chain(&self.more);
        all.any(|selector| selector.has_all_keys() && selector.permits(command, words))
    }

    /// The rights of a script that is run for a user, as the script's arguments carry them.
    pub fn carried(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut list = ArgsBuilder::new(&mut out);
        for selector in std::iter::once(&self.root).chain(&self.more) {
            list.push(&args::encode(&selector.spelled_out()));
        }
        out
    }

    /// Reads what [`Rights::carried`] has written; `None` if it is damaged. A command that this version does not know is
    /// one that it cannot run either.
    pub fn of_carried(bytes: &[u8]) -> Option<Rights> {
        let mut selectors = Vec::new();
        for list in Args::parse(bytes)? {
            let mut selector = Selector::default();
            for rule in Args::parse(list.bytes)? {
                match selector.set(rule.bytes) {
                    Ok(()) | Err(RuleError::Unknown) => {}
                    Err(_) => return None,
                }
            }
            selectors.push(selector);
        }
        let mut selectors = selectors.into_iter();
        Some(Rights { root: selectors.next()?, more: selectors.collect() })
    }

    /// Appends their rules as an ACL file has them.
    pub fn describe(&self, out: &mut Vec<u8>) {
        self.root.describe(out);
        for selector in &self.more {
            out.extend_from_slice(b" (");
            selector.describe(out);
            out.push(b')');
        }
    }
}

/// The words of a command that are keys, each with the access that the command needs to it.
pub(crate) fn keys(command: &Command, words: &[&[u8]]) -> impl Iterator<Item = (usize, Need)> {
    let row = RowNo::of(command, words).map(RowNo::row);
    let (mut first, rest) = row.map_or((Need::BOTH, Need::BOTH), |row| (row.first, row.rest));
    // SET reads only where it is to answer the old value.
    if command.name == "set" {
        let reads = words.iter().skip(3).any(|word| word.eq_ignore_ascii_case(b"get"));
        first = if reads { Need::BOTH } else { Need::WRITE };
    }
    let range = if command.flags.has(Flags::MOVABLEKEYS) {
        let count =
            words.get(2).and_then(|n| std::str::from_utf8(n).ok()?.parse::<usize>().ok()).unwrap_or(0);
        3..words.len().min(count.saturating_add(3))
    } else if command.first_key <= 0 || command.flags.has(Flags::PUBSUB) {
        0..0
    } else {
        let last = match command.last_key {
            last if last < 0 => words.len().saturating_sub(usize::from(last.unsigned_abs())),
            last => usize::from(last.unsigned_abs()),
        };
        usize::from(command.first_key.unsigned_abs())..words.len().min(last + 1)
    };
    let step = usize::from(command.step.unsigned_abs()).max(1);
    range.step_by(step).enumerate().map(move |(i, at)| (at, if i == 0 { first } else { rest }))
}

/// The words of a command that are channels.
pub(crate) fn channels(command: &Command) -> std::ops::Range<usize> {
    match command.name {
        "publish" | "spublish" => 1..2,
        _ => 0..0,
    }
}

/// Shows bytes of a rule in an error.
pub fn shown(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes.escape_ascii() {
        // Writing into a string cannot fail.
        let _ = text.write_char(char::from(byte));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::lookup;

    fn rights(rules: &str) -> Rights {
        let mut selectors = rules.split('|').map(|list| {
            let mut selector = Selector::default();
            list.split_ascii_whitespace()
                .for_each(|rule| selector.set(rule.replace('/', "|").as_bytes()).unwrap());
            selector
        });
        Rights { root: selectors.next().unwrap(), more: selectors.collect() }
    }

    fn check(rights: &Rights, line: &str) -> Result<(), Denied> {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        rights.check(lookup(words[0]).unwrap(), &words)
    }

    // The same users and lines were given to Redis 7.0.15, and these are its answers.
    #[test]
    fn permits_what_redis_permits() {
        let user = rights("~a* %R~r* %W~w* +@all -keys -flushall -config +config/get|~z* +set");
        for (line, result) in [
            ("GET a1", Ok(())),
            ("GET r1", Ok(())),
            ("GET w1", Err(Denied::Key(1))),
            ("SET r1 x", Err(Denied::Key(1))),
            ("SET w1 x", Ok(())),
            ("SET w1 x GET", Err(Denied::Key(1))),
            ("SET a1 x GET", Ok(())),
            ("SET z1 x", Ok(())),
            ("GET z1", Err(Denied::Key(1))),
            ("STRLEN z1", Err(Denied::Key(1))),
            ("STRLEN r1", Ok(())),
            ("EXISTS w1", Ok(())),
            ("EXISTS w1 q", Err(Denied::Key(2))),
            ("KEYS *", Err(Denied::Command)),
            ("CONFIG GET save", Ok(())),
            ("CONFIG SET save x", Err(Denied::Command)),
            ("MGET a1 r1 q", Err(Denied::Key(3))),
            ("MSET w1 q w2 q", Ok(())),
            ("COPY r1 w1", Ok(())),
            ("COPY w1 r1", Err(Denied::Key(1))),
            ("RENAME a1 w1", Ok(())),
            ("RENAME w1 a1", Err(Denied::Key(1))),
            ("RENAME a1 r1", Err(Denied::Key(2))),
            ("EVAL s 1 a1", Ok(())),
            ("EVAL s 1 r1", Err(Denied::Key(3))),
            ("EVAL_RO s 1 r1", Ok(())),
            ("EVAL s 0 q1", Ok(())),
            ("WATCH w1", Ok(())),
            ("WATCH q1", Err(Denied::Key(1))),
            ("OBJECT ENCODING q1", Err(Denied::Key(2))),
            ("OBJECT HELP", Ok(())),
            ("MEMORY USAGE a1", Ok(())),
            ("SELECT 1", Ok(())),
            ("SCAN 0", Ok(())),
        ] {
            assert_eq!(check(&user, line), result, "{line}");
        }
    }

    #[test]
    fn nobody_needs_a_right_to_log_in() {
        let nobody = Rights::default();
        assert_eq!(check(&nobody, "AUTH a b"), Ok(()));
        assert_eq!(check(&nobody, "HELLO 3"), Ok(()));
        assert_eq!(check(&nobody, "RESET"), Ok(()));
        assert_eq!(check(&nobody, "PING"), Err(Denied::Command));
        assert!(!nobody.are_full() && Rights::everything().are_full());
    }

    #[test]
    fn a_first_argument_can_be_permitted_alone() {
        let user = rights("+select/0 -@all +select/1");
        assert_eq!(check(&user, "SELECT 1"), Ok(()));
        assert_eq!(check(&user, "SELECT 0"), Err(Denied::Command));
    }

    #[test]
    fn carried_rights_decide_alike() {
        let user = rights("~a* %R~r* %W~w* +@all -keys -flushall -config +config/get|~z* +set");
        let carried = Rights::of_carried(&user.carried()).unwrap();
        for line in
            ["GET a1", "GET w1", "SET z1 x", "KEYS *", "CONFIG GET x", "CONFIG SET x y", "FLUSHALL", "SCAN 0"]
        {
            assert_eq!(check(&carried, line), check(&user, line), "{line}");
        }
        let text = user.carried();
        assert!(!text.windows(4).any(|w| w == b"@rea"), "carried rights name no category");
        assert_eq!(Rights::of_carried(b"no list"), None);
        assert_eq!(Rights::of_carried(&args::encode(&[args::encode(&["~"]), b"x".to_vec()])), None);
    }

    #[test]
    fn a_command_of_a_later_version_in_carried_rights_is_no_damage() {
        let list = args::encode(&[args::encode(&["-@all", "+command-of-tomorrow", "+get", "~*"])]);
        let rights = Rights::of_carried(&list).unwrap();
        assert_eq!(check(&rights, "GET x"), Ok(()));
    }
}
