//! Selectors: lists of rules about commands, keys and channels.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::catalogue::{Categories, Need, ROWS_MAX, RowNo};
use super::{Denied, channels, keys};
use crate::glob::Glob;
use crate::table::{Command, Flags};

/// The reason for which a rule is refused. The texts are Redis's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleError {
    /// The text is no rule.
    Syntax,
    /// There is no such command, subcommand or category.
    Unknown,
    /// The rule adds a key pattern to all keys.
    AfterAllKeys,
    /// The rule adds a channel pattern to all channels.
    AfterAllChannels,
}

impl RuleError {
    /// The error's text.
    pub const fn text(self) -> &'static str {
        match self {
            RuleError::Syntax => "Syntax error",
            RuleError::Unknown => "Unknown command or category name in ACL",
            RuleError::AfterAllKeys => {
                "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any \
                 effect. Try 'resetkeys' to start with an empty list of patterns"
            }
            RuleError::AfterAllChannels => {
                "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any \
                 effect. Try 'resetchannels' to start with an empty list of channels"
            }
        }
    }
}

/// A set of rows of the catalogue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RowSet([u64; ROWS_MAX / 64]);

impl RowSet {
    fn put(&mut self, row: RowNo, is_in: bool) {
        let (word, bit) = (usize::from(row.0) / 64, 1 << (row.0 % 64));
        if is_in { self.0[word] |= bit } else { self.0[word] &= !bit }
    }

    fn has(&self, row: RowNo) -> bool {
        self.0[usize::from(row.0) / 64] & 1 << (row.0 % 64) != 0
    }
}

/// A pattern of keys or channels, as it was given and ready to be matched.
#[derive(Clone, Debug)]
struct Pattern {
    text: Box<[u8]>,
    glob: Arc<Glob>,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl Pattern {
    fn new(text: &[u8]) -> Result<Pattern, RuleError> {
        if text.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0) {
            return Err(RuleError::Syntax);
        }
        let glob = Glob::new(text).map_err(|_| RuleError::Syntax)?;
        Ok(Pattern { text: text.into(), glob: Arc::new(glob) })
    }
}

/// Keys that are permitted, and for what.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyPattern {
    pattern: Pattern,
    grants: Need,
}

/// A rule about commands, as it was given: what it is about in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    permits: bool,
    what: Box<str>,
}

/// A list of rules. The one that is made by default permits nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    all_keys: bool,
    keys: Vec<KeyPattern>,
    all_channels: bool,
    channels: Vec<Pattern>,
    /// The rules about commands begin with all commands permitted.
    all_commands: bool,
    /// The rules after that, in the order given, without those that later ones have made void.
    rules: Vec<Rule>,
    /// The rows that the rules permit.
    permitted: RowSet,
    /// First arguments with which a command is permitted that otherwise is not, in lower case.
    arguments: BTreeMap<u16, BTreeSet<Box<[u8]>>>,
}

impl Selector {
    /// All commands on all keys and channels.
    pub fn everything() -> Selector {
        let mut selector = Selector { all_keys: true, all_channels: true, ..Selector::default() };
        selector.restart(true);
        selector
    }

    /// True if the selector permits everything.
    pub fn is_full(&self) -> bool {
        self.all_keys && self.all_channels && self.all_commands && self.rules.is_empty()
    }

    /// True if the selector permits all keys, for reading and writing.
    pub fn has_all_keys(&self) -> bool {
        self.all_keys
    }

    fn restart(&mut self, all: bool) {
        self.all_commands = all;
        self.rules.clear();
        self.arguments.clear();
        RowNo::all().for_each(|row| self.permitted.put(row, all));
    }

    /// Applies a rule: `~pattern %R~pattern &channel +command -command +command|sub +@category allkeys resetkeys
    /// allchannels resetchannels allcommands nocommands`.
    ///
    /// # Errors
    /// [`RuleError`]; nothing has changed then.
    pub fn set(&mut self, rule: &[u8]) -> Result<(), RuleError> {
        let is = |name: &str| rule.eq_ignore_ascii_case(name.as_bytes());
        if is("allkeys") || rule == b"~*" {
            self.all_keys = true;
            self.keys.clear();
        } else if is("resetkeys") {
            self.all_keys = false;
            self.keys.clear();
        } else if is("allchannels") || rule == b"&*" {
            self.all_channels = true;
            self.channels.clear();
        } else if is("resetchannels") {
            self.all_channels = false;
            self.channels.clear();
        } else if is("allcommands") || is("+@all") {
            self.restart(true);
        } else if is("nocommands") || is("-@all") {
            self.restart(false);
        } else {
            match rule {
                [b'~', pattern @ ..] => self.add_keys(pattern, Need::BOTH)?,
                [b'%', rest @ ..] => {
                    let tilde = rest.iter().position(|byte| *byte == b'~').ok_or(RuleError::Syntax)?;
                    let (access, pattern) = (&rest[..tilde], &rest[tilde + 1..]);
                    let grants = access.iter().try_fold(Need::NONE, |grants, letter| match letter {
                        b'R' | b'r' if !grants.has(Need::READ) => Ok(grants.and(Need::READ)),
                        b'W' | b'w' if !grants.has(Need::WRITE) => Ok(grants.and(Need::WRITE)),
                        _ => Err(RuleError::Syntax),
                    })?;
                    if grants == Need::NONE {
                        return Err(RuleError::Syntax);
                    }
                    self.add_keys(pattern, grants)?;
                }
                [b'&', pattern @ ..] => {
                    let pattern = Pattern::new(pattern)?;
                    if self.all_channels {
                        return Err(RuleError::AfterAllChannels);
                    }
                    if !self.channels.contains(&pattern) {
                        self.channels.push(pattern);
                    }
                }
                [b'+', what @ ..] => self.command(what, true)?,
                [b'-', what @ ..] => self.command(what, false)?,
                _ => return Err(RuleError::Syntax),
            }
        }
        Ok(())
    }

    fn add_keys(&mut self, pattern: &[u8], grants: Need) -> Result<(), RuleError> {
        let pattern = Pattern::new(pattern)?;
        if self.all_keys {
            return Err(RuleError::AfterAllKeys);
        }
        let grants = match self.keys.iter_mut().find(|have| have.pattern == pattern) {
            Some(have) => {
                have.grants = have.grants.and(grants);
                have.grants
            }
            None => {
                self.keys.push(KeyPattern { pattern: pattern.clone(), grants });
                grants
            }
        };
        if *pattern.text == *b"*" && grants == Need::BOTH {
            self.all_keys = true;
            self.keys.clear();
        }
        Ok(())
    }

    fn command(&mut self, what: &[u8], permits: bool) -> Result<(), RuleError> {
        let what = std::str::from_utf8(what).map_err(|_| RuleError::Unknown)?.to_ascii_lowercase();
        if let Some(category) = what.strip_prefix('@') {
            let category = Categories::named(category.as_bytes()).ok_or(RuleError::Unknown)?;
            for row in RowNo::all().filter(|row| row.row().categories.has(category)) {
                self.permit(row, permits);
            }
        } else if let Some(row) = RowNo::named(what.as_bytes()) {
            row.family().for_each(|row| self.permit(row, permits));
        } else {
            // A first argument of a command that has no subcommands: it can be permitted, and not be refused.
            let (command, argument) = what.split_once('|').ok_or(RuleError::Unknown)?;
            let row = RowNo::named(command.as_bytes()).ok_or(RuleError::Unknown)?;
            if !permits
                || row.is_container()
                || argument.contains('|')
                || argument.is_empty()
                || argument.contains(char::is_whitespace)
            {
                return Err(RuleError::Unknown);
            }
            self.arguments.entry(row.0).or_default().insert(argument.as_bytes().into());
        }
        // The rule makes void earlier ones about the same thing, and about parts of it.
        self.rules.retain(|rule| {
            let rest = rule.what.strip_prefix(&*what);
            !rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('|'))
        });
        self.rules.push(Rule { permits, what: what.into() });
        Ok(())
    }

    fn permit(&mut self, row: RowNo, permits: bool) {
        self.permitted.put(row, permits);
        self.arguments.remove(&row.0);
    }

    /// True if a command may be run, whatever its keys are.
    pub fn permits(&self, command: &Command, words: &[&[u8]]) -> bool {
        if command.flags.has(Flags::NO_AUTH) {
            return true;
        }
        let Some(row) = RowNo::of(command, words) else { return self.all_commands };
        let with_argument = || {
            let argument = words.get(1).map(|word| word.to_ascii_lowercase())?;
            self.arguments.get(&row.0).map(|list| list.contains(&*argument))
        };
        self.permitted.has(row) || with_argument().unwrap_or(false)
    }

    /// Checks that a command may be run on its keys.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check(&self, command: &Command, words: &[&[u8]]) -> Result<(), Denied> {
        if !self.permits(command, words) {
            return Err(Denied::Command);
        }
        if !self.all_keys {
            for (at, need) in keys(command, words) {
                let granted =
                    |keys: &KeyPattern| keys.grants.has(need) && keys.pattern.glob.matches(words[at]);
                if !self.keys.iter().any(granted) {
                    return Err(Denied::Key(at));
                }
            }
        }
        if !self.all_channels {
            for at in channels(command) {
                let channel = words.get(at).copied().unwrap_or_default();
                if !self.channels.iter().any(|pattern| pattern.glob.matches(channel)) {
                    return Err(Denied::Channel(at));
                }
            }
        }
        Ok(())
    }

    /// Appends its rules about keys.
    pub fn describe_keys(&self, out: &mut Vec<u8>) {
        if self.all_keys {
            out.extend_from_slice(b"~*");
        }
        for (i, KeyPattern { pattern, grants }) in self.keys.iter().enumerate() {
            if i > 0 {
                out.push(b' ');
            }
            out.extend_from_slice(grants.sign());
            out.extend_from_slice(&pattern.text);
        }
    }

    /// Appends its rules about channels.
    pub fn describe_channels(&self, out: &mut Vec<u8>) {
        if self.all_channels {
            out.extend_from_slice(b"&*");
        }
        for (i, pattern) in self.channels.iter().enumerate() {
            if i > 0 {
                out.push(b' ');
            }
            out.push(b'&');
            out.extend_from_slice(&pattern.text);
        }
    }

    /// Appends its rules about commands.
    pub fn describe_commands(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(if self.all_commands { b"+@all" } else { b"-@all" });
        for Rule { permits, what } in &self.rules {
            out.extend_from_slice(if *permits { b" +" } else { b" -" });
            out.extend_from_slice(what.as_bytes());
        }
    }

    /// Appends all of its rules as an ACL file has them.
    pub(super) fn describe(&self, out: &mut Vec<u8>) {
        if self.all_keys || !self.keys.is_empty() {
            self.describe_keys(out);
            out.push(b' ');
        }
        if !self.all_channels {
            out.extend_from_slice(b"resetchannels ");
        }
        if self.all_channels || !self.channels.is_empty() {
            self.describe_channels(out);
            out.push(b' ');
        }
        self.describe_commands(out);
    }

    /// The rules without categories: those that a script carries.
    pub(super) fn spelled_out(&self) -> Vec<Vec<u8>> {
        let mut rules: Vec<Vec<u8>> =
            vec![if self.all_commands { b"+@all".to_vec() } else { b"-@all".to_vec() }];
        let differs = |row: &RowNo| self.permitted.has(*row) != self.all_commands;
        for row in RowNo::all().filter(differs) {
            let sign = if self.all_commands { b'-' } else { b'+' };
            let mut rule = vec![sign];
            rule.extend_from_slice(row.row().name.as_bytes());
            rules.push(rule);
            // A rule about a command is one about its subcommands too, which may be permitted otherwise.
            let others = row.family().skip(1).filter(|sub| !differs(sub));
            rules.extend(others.map(|sub| {
                let sign = if self.all_commands { b'+' } else { b'-' };
                [&[sign], sub.row().name.as_bytes()].concat()
            }));
        }
        for (row, arguments) in &self.arguments {
            let name = RowNo(*row).row().name.as_bytes();
            rules.extend(arguments.iter().map(|argument| [b"+", name, b"|", argument].concat()));
        }
        match self.all_keys {
            true => rules.push(b"~*".to_vec()),
            false => {
                rules.extend(self.keys.iter().map(|keys| [keys.grants.sign(), &keys.pattern.text].concat()))
            }
        }
        match self.all_channels {
            true => rules.push(b"&*".to_vec()),
            false => rules.extend(self.channels.iter().map(|channel| [b"&", &*channel.text].concat())),
        }
        rules
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn described(selector: &Selector) -> String {
        let mut out = Vec::new();
        selector.describe(&mut out);
        String::from_utf8(out).unwrap()
    }

    fn of(rules: &str) -> Selector {
        let mut selector = Selector::default();
        rules.split_ascii_whitespace().for_each(|rule| selector.set(rule.as_bytes()).unwrap());
        selector
    }

    #[test]
    fn rules_are_shown_as_redis_shows_them() {
        for (rules, shown) in [
            ("", "resetchannels -@all"),
            ("allkeys allchannels allcommands", "~* &* +@all"),
            ("~a* %R~b* %W~c &ch +@read", "~a* %R~b* %W~c resetchannels &ch -@all +@read"),
            ("%R~a %W~a %RW~b", "~a ~b resetchannels -@all"),
            ("+@all -config|set -config", "resetchannels +@all -config"),
            ("+select|0 +config -config|get", "resetchannels -@all +select|0 +config -config|get"),
            ("+GET -get +@all", "resetchannels +@all"),
            ("~a resetkeys &a resetchannels", "resetchannels -@all"),
        ] {
            assert_eq!(described(&of(rules)), shown);
        }
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        let full = Selector::everything();
        for (rule, error) in [
            ("+foo", RuleError::Unknown),
            ("-@foo", RuleError::Unknown),
            ("+@", RuleError::Unknown),
            ("+config|nope", RuleError::Unknown),
            ("-select|0", RuleError::Unknown),
            ("foo", RuleError::Syntax),
            ("", RuleError::Syntax),
            ("%X~a", RuleError::Syntax),
            ("%~a", RuleError::Syntax),
            ("%RR~a", RuleError::Syntax),
            ("~a b", RuleError::Syntax),
            ("~x", RuleError::AfterAllKeys),
            ("&x", RuleError::AfterAllChannels),
        ] {
            let mut selector = full.clone();
            assert_eq!(selector.set(rule.as_bytes()), Err(error), "{rule}");
            assert_eq!(selector, full, "{rule}");
        }
    }

    fn rule() -> impl Strategy<Value = String> {
        let names: Vec<&str> = RowNo::all().map(|row| &*row.row().name).collect();
        let categories: Vec<&str> = Categories::all().chain(["all"]).collect();
        prop_oneof![
            (any::<bool>(), proptest::sample::select(names))
                .prop_map(|(p, n)| format!("{}{n}", if p { '+' } else { '-' })),
            (any::<bool>(), proptest::sample::select(categories))
                .prop_map(|(p, n)| format!("{}@{n}", if p { '+' } else { '-' })),
            "~[a-c*]{0,3}",
            "%(R|W|RW)~[a-c*]{1,3}",
            "&[a-c*]{0,3}",
            "\\+select\\|[0-9]",
            proptest::sample::select(vec!["resetkeys", "resetchannels", "allkeys"]).prop_map(str::to_owned),
        ]
    }

    proptest! {
        /// Described rules mean what the given ones do, and so do those that a script carries.
        #[test]
        fn printed_and_parsed_it_is_the_same(rules in prop::collection::vec(rule(), 0..12)) {
            let mut selector = Selector::default();
            for rule in &rules {
                // A pattern after all keys is refused.
                let _ = selector.set(rule.as_bytes());
            }
            let again = of(&described(&selector));
            prop_assert_eq!(&again, &selector);
            let mut carried = Selector::default();
            for rule in selector.spelled_out() {
                carried.set(&rule).unwrap();
            }
            prop_assert_eq!(carried.permitted, selector.permitted);
            prop_assert_eq!(carried.arguments, selector.arguments);
            prop_assert_eq!((carried.all_keys, carried.keys), (selector.all_keys, selector.keys));
        }
    }
}
