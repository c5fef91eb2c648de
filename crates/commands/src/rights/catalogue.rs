//! Categories of commands and subcommands, and the access to their keys, as in Redis 7.0's command table.
//!
//! They are those that COMMAND INFO shows, of the commands and subcommands that there are. A row's place is its number in the
//! sets of [`super::Selector`]; it is not stable from version to version, so nothing that is kept names a command by it.

use std::sync::LazyLock;

use crate::bits::bits;
use crate::table::{Command, Reference, Shown, all, reference, subcommands};

bits! {
    /// Categories of a command.
    Categories {
        /// `@keyspace`.
        KEYSPACE = 0, "keyspace";
        /// `@read`.
        READ = 1, "read";
        /// `@write`.
        WRITE = 2, "write";
        /// `@set`.
        SET = 3, "set";
        /// `@sortedset`.
        SORTEDSET = 4, "sortedset";
        /// `@list`.
        LIST = 5, "list";
        /// `@hash`.
        HASH = 6, "hash";
        /// `@string`.
        STRING = 7, "string";
        /// `@bitmap`.
        BITMAP = 8, "bitmap";
        /// `@hyperloglog`.
        HYPERLOGLOG = 9, "hyperloglog";
        /// `@geo`.
        GEO = 10, "geo";
        /// `@stream`.
        STREAM = 11, "stream";
        /// `@pubsub`.
        PUBSUB = 12, "pubsub";
        /// `@admin`.
        ADMIN = 13, "admin";
        /// `@fast`.
        FAST = 14, "fast";
        /// `@slow`.
        SLOW = 15, "slow";
        /// `@blocking`.
        BLOCKING = 16, "blocking";
        /// `@dangerous`.
        DANGEROUS = 17, "dangerous";
        /// `@connection`.
        CONNECTION = 18, "connection";
        /// `@transaction`.
        TRANSACTION = 19, "transaction";
        /// `@scripting`.
        SCRIPTING = 20, "scripting";
    }
}

impl Categories {
    /// The category with this name, in any case.
    pub fn named(name: &[u8]) -> Option<Categories> {
        let is = |(text, _): &&(&str, Categories)| text.as_bytes().eq_ignore_ascii_case(name);
        Categories::NAMES.iter().find(is).map(|(_, category)| *category)
    }

    /// The names of all categories, in Redis's order.
    pub fn all() -> impl ExactSizeIterator<Item = &'static str> {
        Categories::NAMES.iter().map(|(name, _)| *name)
    }
}

/// Access to a key that a pattern must grant: to its value (READ), to change it (WRITE). A command that answers of a key no
/// more than what it is (EXISTS, TYPE, STRLEN) needs neither, but any pattern that the key matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need(u8);

impl Need {
    /// Access to neither.
    pub const NONE: Need = Need(0);
    /// To its value.
    pub const READ: Need = Need(1);
    /// To change it.
    pub const WRITE: Need = Need(2);
    /// Access to both.
    pub const BOTH: Need = Need(3);

    /// The sign of a pattern that grants the access.
    pub(super) const fn sign(self) -> &'static [u8] {
        match self {
            Need::READ => b"%R~",
            Need::WRITE => b"%W~",
            _ => b"~",
        }
    }

    /// True if all of `other` is in this.
    pub const fn has(self, other: Need) -> bool {
        self.0 & other.0 == other.0
    }

    /// The union of two accesses.
    #[must_use]
    pub const fn and(self, more: Need) -> Need {
        Need(self.0 | more.0)
    }
}

/// A command or subcommand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name in lower case, a subcommand's after its command's and a bar.
    pub name: Box<str>,
    /// Its categories.
    pub categories: Categories,
    /// The access to its first key.
    pub first: Need,
    /// The access to its other keys.
    pub rest: Need,
}

/// The most rows that there may be.
pub(super) const ROWS_MAX: usize = 256;

/// The rows of all commands and subcommands that there are, in order of name, from what COMMAND INFO shows of them.
static ROWS: LazyLock<Box<[Row]>> = LazyLock::new(|| {
    let mut rows: Vec<Row> = Vec::new();
    for command in all() {
        let Some(described) = reference(command.name) else { continue };
        rows.push(Row::of(command.name.into(), described));
        for subcommand in subcommands(command.name) {
            rows.push(Row::of(format!("{}|{}", command.name, subcommand.name).into(), subcommand));
        }
    }
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    rows.truncate(ROWS_MAX);
    rows.into()
});

impl Row {
    fn of(name: Box<str>, described: &Reference) -> Row {
        let named = |name: &&str| Categories::named(name.trim_start_matches('@').as_bytes());
        let categories = described.categories.iter().filter_map(named);
        let need = |spec: Option<&Shown>| spec.map_or(Need::NONE, need_of);
        Row {
            name,
            categories: categories.fold(Categories::NONE, Categories::and),
            first: need(described.key_specs.first()),
            rest: need(described.key_specs.last()),
        }
    }
}

/// The access that a key specification asks for. Like Redis, it goes by what the command answers of the value or does to it.
fn need_of(spec: &Shown) -> Need {
    let Shown::Map(fields) = spec else { return Need::BOTH };
    let flags = fields.iter().find(|(name, _)| *name == "flags");
    let Some((_, Shown::Set(flags))) = flags else { return Need::BOTH };
    let has = |wanted: &str| flags.iter().any(|flag| matches!(flag, Shown::Status(word) if *word == wanted));
    let mut need = Need::NONE;
    if has("access") {
        need = need.and(Need::READ);
    }
    if has("insert") || has("update") || has("delete") {
        need = need.and(Need::WRITE);
    }
    need
}

/// The number of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowNo(pub(super) u16);

impl RowNo {
    pub(super) fn row(self) -> &'static Row {
        &ROWS[usize::from(self.0)]
    }

    /// The row with this name, in any case.
    pub(super) fn named(name: &[u8]) -> Option<RowNo> {
        let lower = |byte: &u8| byte.to_ascii_lowercase();
        let order = |row: &Row| row.name.bytes().cmp(name.iter().map(lower));
        ROWS.binary_search_by(order).ok().map(|at| RowNo(at as u16))
    }

    /// The row of a subcommand.
    fn of_subcommand(command: &str, sub: &[u8]) -> Option<RowNo> {
        let lower = |byte: &u8| byte.to_ascii_lowercase();
        let order =
            |row: &Row| row.name.bytes().cmp(command.bytes().chain([b'|']).chain(sub.iter().map(lower)));
        ROWS.binary_search_by(order).ok().map(|at| RowNo(at as u16))
    }

    /// The row of what a client has called: the subcommand's, if it is one. None: a command without a row.
    pub(super) fn of(command: &Command, words: &[&[u8]]) -> Option<RowNo> {
        let sub = words.get(1).and_then(|sub| RowNo::of_subcommand(command.name, sub));
        sub.or_else(|| RowNo::named(command.name.as_bytes()))
    }

    /// The row and those of its subcommands.
    pub(super) fn family(self) -> impl Iterator<Item = RowNo> {
        let name = &*self.row().name;
        let rest = ROWS[usize::from(self.0) + 1..].iter();
        let subs =
            rest.take_while(move |row| row.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('|')));
        (self.0..=self.0 + subs.count() as u16).map(RowNo)
    }

    /// True if the row has subcommands.
    pub(super) fn is_container(self) -> bool {
        self.family().count() > 1
    }

    /// All rows.
    pub(super) fn all() -> impl Iterator<Item = RowNo> {
        (0..ROWS.len() as u16).map(RowNo)
    }
}

/// The rows of all commands and subcommands, in order of name.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    ROWS.iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Flags, lookup};

    fn named(name: &str) -> &'static Row {
        RowNo::named(name.as_bytes()).unwrap_or_else(|| panic!("{name} has no row")).row()
    }

    #[test]
    fn every_command_has_a_row_and_the_rows_are_in_order() {
        for command in all() {
            let row = named(command.name);
            assert_eq!(
                row.categories.has(Categories::WRITE),
                command.flags.has(Flags::WRITE),
                "{}",
                command.name
            );
            assert!(
                row.categories.has(Categories::FAST) != row.categories.has(Categories::SLOW),
                "{}",
                command.name
            );
        }
        assert!(ROWS.is_sorted_by(|a, b| a.name < b.name));
        assert!(ROWS.len() < ROWS_MAX, "a set of rows has no more places");
    }

    #[test]
    fn commands_ask_for_the_access_that_redis_asks_for() {
        for (name, first, rest) in [
            ("get", Need::READ, Need::READ),
            ("setnx", Need::WRITE, Need::WRITE),
            ("getset", Need::BOTH, Need::BOTH),
            ("exists", Need::NONE, Need::NONE),
            ("strlen", Need::NONE, Need::NONE),
            ("copy", Need::READ, Need::WRITE),
            ("rename", Need::BOTH, Need::WRITE),
            ("expire", Need::WRITE, Need::WRITE),
            ("ttl", Need::READ, Need::READ),
            ("eval", Need::BOTH, Need::BOTH),
            ("fcall_ro", Need::READ, Need::READ),
            ("watch", Need::NONE, Need::NONE),
            ("object|encoding", Need::NONE, Need::NONE),
            ("hincrby", Need::BOTH, Need::BOTH),
        ] {
            assert_eq!((named(name).first, named(name).rest), (first, rest), "{name}");
        }
    }

    #[test]
    fn subcommands_are_found_by_their_words() {
        let config = lookup(b"config").unwrap();
        assert_eq!(&*RowNo::of(config, &[b"CONFIG", b"GET"]).unwrap().row().name, "config|get");
        assert_eq!(&*RowNo::of(config, &[b"CONFIG", b"NOPE"]).unwrap().row().name, "config");
        assert_eq!(&*RowNo::of(config, &[b"CONFIG"]).unwrap().row().name, "config");
        let family: Vec<&str> =
            RowNo::named(b"config").unwrap().family().map(|row| &*row.row().name).collect();
        assert_eq!(
            family,
            ["config", "config|get", "config|help", "config|resetstat", "config|rewrite", "config|set"]
        );
        assert!(!RowNo::named(b"get").unwrap().is_container());
    }

    #[test]
    fn categories_are_redis_s() {
        let names = |row: &str| named(row).categories.names().collect::<Vec<_>>();
        assert_eq!(names("get"), ["read", "string", "fast"]);
        assert_eq!(names("keys"), ["keyspace", "read", "slow", "dangerous"]);
        assert_eq!(names("config|set"), ["admin", "slow", "dangerous"]);
        assert_eq!(Categories::all().count(), 21);
        assert!(Categories::named(b"ReAd").is_some() && Categories::named(b"all").is_none());
    }
}
