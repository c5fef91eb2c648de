//! The reference of COMMAND for commands and subcommands: documentation, key specifications, tips, access categories.
//!
//! For what Redis has too, the table is recorded from a server of version 7.0 (`reference/record.py`); what is our own
//! is written by hand. The subcommands listed here are those that are answered, and a word that names none of them is
//! refused before the command is queued or run.

mod own;
mod redis;

use ordain_model::PlanError;

use super::{Command, is_same, takes};

/// A command or subcommand as COMMAND INFO and COMMAND DOCS describe it.
#[derive(Debug)]
pub struct Reference {
    /// Its name in lower case, without its container's.
    pub name: &'static str,
    /// The number of words that it takes, its name and its container's included; negative: that many at least.
    pub arity: i16,
    /// The flags, as COMMAND INFO names them.
    pub flags: &'static [&'static str],
    /// The places of the first and the last key, and the step from one key to the next.
    pub keys: (i16, i16, i16),
    /// The access categories, each with `@` in front.
    pub categories: &'static [&'static str],
    /// The tips for clients and proxies.
    pub tips: &'static [&'static str],
    /// The places of the keys, as maps.
    pub key_specs: &'static [Shown],
    /// The fields that COMMAND DOCS shows, without subcommands.
    pub docs: &'static [(&'static str, Shown)],
    /// The subcommands that Redis has too, in order of name.
    pub subcommands: &'static [Reference],
}

/// A part of a reply that is written down in the table.
#[derive(Debug)]
pub enum Shown {
    /// A text.
    Bulk(&'static str),
    /// A word such as a flag.
    Status(&'static str),
    /// A number.
    Int(i64),
    /// Fields and their values.
    Map(&'static [(&'static str, Shown)]),
    /// Items in an order.
    Array(&'static [Shown]),
    /// Items in no order.
    Set(&'static [Shown]),
}

/// The description of a command that there is, for constants.
pub(super) const fn of_command(name: &str) -> &'static Reference {
    let (mut table, mut at) = (redis::REDIS, 0);
    while !is_same(table[at].name, name) {
        at += 1;
        if at == redis::REDIS.len() {
            (table, at) = (own::COMMANDS, 0);
        }
    }
    &table[at]
}

/// True if a command has subcommands.
pub(super) const fn is_container(reference: &Reference) -> bool {
    !reference.subcommands.is_empty()
}

/// The description of a command, by its name in lower case.
pub fn reference(name: &str) -> Option<&'static Reference> {
    let find = |table: &'static [Reference]| {
        table.binary_search_by(|reference| reference.name.cmp(name)).ok().map(|at| &table[at])
    };
    find(redis::REDIS).or_else(|| find(own::COMMANDS))
}

/// The subcommands of a command that are answered, in no order.
pub fn subcommands(name: &str) -> impl Iterator<Item = &'static Reference> {
    let of_redis = reference(name).map_or(&[][..], |reference| reference.subcommands);
    let own = own::SUBCOMMANDS.iter().filter(move |(container, _)| *container == name);
    of_redis.iter().chain(own.map(|(_, subcommand)| subcommand))
}

/// The subcommand of a command with this name, in any case.
pub fn subcommand(name: &str, word: &[u8]) -> Option<&'static Reference> {
    subcommands(name).find(|subcommand| subcommand.name.as_bytes().eq_ignore_ascii_case(word))
}

/// Checks that a container of subcommands may be called with these words, its name first: what Redis checks before it
/// runs or queues a command.
///
/// # Errors
/// The error Redis gives for a subcommand that there is not, or for too many or too few words.
pub fn check_subcommand(command: &Command, words: &[&[u8]]) -> Result<(), PlanError> {
    let Some(word) = words.get(1) else { return Ok(()) };
    let Some(found) = subcommand(command.name, word) else {
        return Err(unknown_subcommand(command.name, word));
    };
    if takes(found.arity, words.len()) {
        return Ok(());
    }
    Err(PlanError::arity(&format!("{}|{}", command.name, found.name)))
}

/// The error Redis gives for a subcommand that it does not know.
pub fn unknown_subcommand(container: &str, word: &[u8]) -> PlanError {
    let after = format!("'. Try {} HELP.", container.to_ascii_uppercase());
    PlanError::quoting("ERR unknown subcommand '", quoted(word, 128), &after)
}

/// The part of a word that Redis quotes in an error: up to `most` bytes, and up to a zero byte.
pub fn quoted(word: &[u8], most: usize) -> &[u8] {
    let shown = &word[..word.len().min(most)];
    shown.split(|byte| *byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Flags, all, lookup};

    #[test]
    fn every_command_is_described_and_described_as_it_is() {
        for table in [redis::REDIS, own::COMMANDS] {
            assert!(table.is_sorted_by(|a, b| a.name < b.name));
        }
        for command in all() {
            let described = reference(command.name).unwrap_or_else(|| panic!("{}", command.name));
            let keys = (command.first_key, command.last_key, command.step);
            if matches!(command.name, "object" | "memory") {
                // Theirs are those of the subcommands that look at a key.
                continue;
            }
            assert_eq!((described.arity, described.keys), (command.arity, keys), "{}", command.name);
            let mut flags: Vec<&str> = command.flags.names().collect();
            let mut redis = described.flags.to_vec();
            flags.sort_unstable();
            redis.sort_unstable();
            assert_eq!(flags, redis, "{}", command.name);
            let is_container = subcommands(command.name).next().is_some();
            assert_eq!(command.flags.has(Flags::CONTAINER), is_container, "{}", command.name);
            for field in ["summary", "since", "group"] {
                assert!(described.docs.iter().any(|(name, _)| *name == field), "{} {field}", command.name);
            }
        }
    }

    #[test]
    fn subcommands_are_checked_as_redis_checks_them() {
        let check = |words: &[&str]| {
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            check_subcommand(lookup(words[0]).unwrap(), &words).map_err(|error| error.to_string())
        };
        for good in [&["object", "ENCODING", "k"][..], &["command"], &["config", "get", "a", "b"]] {
            assert_eq!(check(good), Ok(()));
        }
        for (words, error) in [
            (&["object", "BAD", "k"][..], "ERR unknown subcommand 'BAD'. Try OBJECT HELP."),
            (&["config", "GET"], "ERR wrong number of arguments for 'config|get' command"),
            (&["command", "getkeys", "SET"], "ERR wrong number of arguments for 'command|getkeys' command"),
            (&["object", "a\0b"], "ERR unknown subcommand 'a'. Try OBJECT HELP."),
            (&["client", "id", "x"], "ERR wrong number of arguments for 'client|id' command"),
        ] {
            assert_eq!(check(words), Err(error.to_string()));
        }
    }
}
