//! COMMAND: the command table, for clients.

use ordain_commands::table::{Reference, Shown, reference, subcommand, subcommands};
use ordain_commands::{Command, Flags, all, glob_matches, lookup};
use ordain_model::Writer;

use super::Words;
use super::dispatch::help_or_wrong_arity;
use crate::shared::parse_int;

/// A command or subcommand, and its full name: `get`, `config|get`.
struct Named {
    name: String,
    reference: &'static Reference,
}

impl Named {
    fn command(name: &str) -> Option<Named> {
        Some(Named { name: name.to_string(), reference: reference(name)? })
    }

    /// The command, or subcommand as `container|subcommand`, that a client names.
    fn find(name: &[u8]) -> Option<Named> {
        let Some(at) = name.iter().position(|byte| *byte == b'|') else {
            return Named::command(lookup(name)?.name);
        };
        let container = Named::command(lookup(&name[..at])?.name)?;
        let found = subcommand(container.reference.name, &name[at + 1..])?;
        Some(container.subcommand(found))
    }

    fn subcommand(&self, reference: &'static Reference) -> Named {
        Named { name: format!("{}|{}", self.reference.name, reference.name), reference }
    }

    /// Subcommands, which subcommands have none of.
    fn subcommands(&self) -> impl Iterator<Item = Named> {
        let container = if self.name.contains('|') { "" } else { self.reference.name };
        subcommands(container).map(|found| self.subcommand(found))
    }
}

fn everything() -> impl Iterator<Item = Named> {
    all().iter().filter_map(|command| Named::command(command.name))
}

/// COMMAND and its subcommands.
pub(super) fn command(words: &Words<'_>, out: &mut Vec<u8>) {
    let mut w = Writer(out);
    let Some(sub) = words.get(1) else {
        w.array(all().len());
        return everything().for_each(|command| info(&command, &mut w));
    };
    let sub_lower = sub.to_ascii_lowercase();
    match (&*sub_lower, &words[2..]) {
        (b"count", []) => w.int(all().len() as i64),
        (b"info", []) => {
            w.array(all().len());
            everything().for_each(|command| info(&command, &mut w));
        }
        (b"info", names) => {
            w.array(names.len());
            for name in names {
                match Named::find(name) {
                    Some(command) => info(&command, &mut w),
                    None => w.nil(),
                }
            }
        }
        (b"docs", []) => {
            w.map(all().len());
            everything().for_each(|command| docs(&command, &mut w));
        }
        (b"docs", names) => {
            let known: Vec<Named> = names.iter().filter_map(|name| Named::find(name)).collect();
            w.map(known.len());
            known.iter().for_each(|command| docs(command, &mut w));
        }
        (b"list", filter) => list(filter, &mut w),
        (b"getkeys", words @ [_, ..]) => match keys_of(words) {
            Ok(keys) => {
                w.array(keys.len());
                keys.iter().for_each(|(key, _)| w.bulk(key));
            }
            Err(text) => w.error(text),
        },
        (b"getkeysandflags", words @ [_, ..]) => match keys_of(words) {
            Ok(keys) => {
                w.array(keys.len());
                for (key, flags) in keys {
                    w.array(2);
                    w.bulk(key);
                    w.set(flags.len());
                    flags.iter().for_each(|flag| w.status(flag));
                }
            }
            Err(text) => w.error(text),
        },
        _ => help_or_wrong_arity(
            "command",
            words,
            &[
                "(no subcommand): details of all commands.",
                "COUNT: how many commands there are.",
                "DOCS [<name> ...]: what they do.",
                "GETKEYS <full command>: the keys that a command names.",
                "GETKEYSANDFLAGS <full command>: the keys that a command names, and what it does to them.",
                "INFO [<name> ...]: arity, flags and key positions.",
                "LIST [FILTERBY ACLCAT <category> | PATTERN <pattern> | MODULE <name>]: their names.",
            ],
            &mut w,
        ),
    }
}

fn list(filter: &Words<'_>, w: &mut Writer<'_>) {
    let is = |word: &[u8], name: &str| word.eq_ignore_ascii_case(name.as_bytes());
    let with_subcommands = everything().flat_map(|command| {
        let below: Vec<Named> = command.subcommands().collect();
        std::iter::once(command).chain(below)
    });
    let chosen: Vec<Named> = match filter {
        [] => with_subcommands.collect(),
        [by, kind, _] if is(by, "filterby") && is(kind, "module") => Vec::new(),
        [by, kind, category] if is(by, "filterby") && is(kind, "aclcat") => {
            let is_in = |named: &Named| named.reference.categories.iter().any(|c| is(category, &c[1..]));
            with_subcommands.filter(is_in).collect()
        }
        [by, kind, pattern] if is(by, "filterby") && is(kind, "pattern") => {
            let pattern = pattern.to_ascii_lowercase();
            with_subcommands.filter(|c| glob_matches(&pattern, c.name.as_bytes())).collect()
        }
        _ => return w.error("ERR syntax error"),
    };
    w.array(chosen.len());
    chosen.iter().for_each(|command| w.bulk(command.name.as_bytes()));
}

/// An entry of COMMAND INFO, as Redis 7.
fn info(command: &Named, w: &mut Writer<'_>) {
    let Named { name, reference } = command;
    let statuses = |w: &mut Writer<'_>, words: &[&str]| {
        w.set(words.len());
        words.iter().for_each(|word| w.status(word));
    };
    w.array(10);
    w.bulk(name.as_bytes());
    w.int(i64::from(reference.arity));
    statuses(w, reference.flags);
    let (first, last, step) = reference.keys;
    [first, last, step].iter().for_each(|position| w.int(i64::from(*position)));
    statuses(w, reference.categories);
    w.set(reference.tips.len());
    reference.tips.iter().for_each(|tip| w.bulk(tip.as_bytes()));
    w.set(reference.key_specs.len());
    reference.key_specs.iter().for_each(|spec| show(spec, w));
    let below: Vec<Named> = command.subcommands().collect();
    if below.is_empty() {
        w.set(0);
    } else {
        w.array(below.len());
        below.iter().for_each(|subcommand| info(subcommand, w));
    }
}

fn docs(command: &Named, w: &mut Writer<'_>) {
    let Named { name, reference } = command;
    let below: Vec<Named> = command.subcommands().collect();
    w.bulk(name.as_bytes());
    w.map(reference.docs.len() + usize::from(!below.is_empty()));
    for (field, value) in reference.docs {
        w.bulk(field.as_bytes());
        show(value, w);
    }
    if !below.is_empty() {
        w.bulk(b"subcommands");
        w.map(below.len());
        below.iter().for_each(|subcommand| docs(subcommand, w));
    }
}

fn show(shown: &Shown, w: &mut Writer<'_>) {
    match shown {
        Shown::Bulk(text) => w.bulk(text.as_bytes()),
        Shown::Status(word) => w.status(word),
        Shown::Int(number) => w.int(*number),
        Shown::Map(fields) => {
            w.map(fields.len());
            for (name, value) in *fields {
                w.bulk(name.as_bytes());
                show(value, w);
            }
        }
        Shown::Array(items) => {
            w.array(items.len());
            items.iter().for_each(|item| show(item, w));
        }
        Shown::Set(items) => {
            w.set(items.len());
            items.iter().for_each(|item| show(item, w));
        }
    }
}

/// A key that a command names, and what is done to it.
type KeyUse<'a> = (&'a [u8], Vec<&'static str>);

/// The keys that a command names, each with what is done to it, by the command's key specifications.
fn keys_of<'a>(words: &Words<'a>) -> Result<Vec<KeyUse<'a>>, &'static str> {
    let invalid = "ERR Invalid command specified";
    let command: &Command = words.first().and_then(|name| lookup(name)).ok_or(invalid)?;
    let found = match words.get(1) {
        Some(word) if command.flags.has(Flags::CONTAINER) => subcommand(command.name, word).ok_or(invalid)?,
        _ => reference(command.name).ok_or(invalid)?,
    };
    let specs: Vec<&'static Shown> =
        found.key_specs.iter().filter(|spec| !flags_of(spec).any(|flag| flag == "not_key")).collect();
    if specs.is_empty() {
        return Err("ERR The command has no key arguments");
    }
    let wanted = usize::from(found.arity.unsigned_abs());
    if words.len() != wanted && (found.arity > 0 || words.len() < wanted) {
        return Err("ERR Invalid number of arguments specified for command");
    }
    let mut keys = Vec::new();
    for spec in specs {
        let flags: Vec<&str> = match found.name {
            // With GET it reads what it overwrites.
            "set" if words[3..].iter().any(|word| word.eq_ignore_ascii_case(b"get")) => {
                vec!["RW", "access", "update"]
            }
            "set" => vec!["OW", "update"],
            _ => flags_of(spec).collect(),
        };
        let places = match places_of(spec, words) {
            Some(places) => places,
            None if found.flags.contains(&"no_mandatory_keys") => return Ok(Vec::new()),
            None => return Err("ERR Invalid arguments specified for command"),
        };
        keys.extend(places.into_iter().map(|place| (words[place], flags.clone())));
    }
    Ok(keys)
}

fn flags_of(spec: &'static Shown) -> impl Iterator<Item = &'static str> {
    let flags: &'static [Shown] = match field(spec, "flags") {
        Some(Shown::Set(flags)) => flags,
        _ => &[],
    };
    flags.iter().filter_map(|flag| match flag {
        Shown::Status(word) => Some(*word),
        _ => None,
    })
}

fn field<'a>(shown: &'a Shown, name: &str) -> Option<&'a Shown> {
    match shown {
        Shown::Map(fields) => fields.iter().find(|(field, _)| *field == name).map(|(_, value)| value),
        _ => None,
    }
}

/// The places of the words that a key specification means; none if these words do not fit it.
fn places_of(spec: &Shown, words: &Words<'_>) -> Option<Vec<usize>> {
    let number = |shown: &Shown, name: &str| match field(shown, name) {
        Some(Shown::Int(number)) => Some(*number),
        _ => None,
    };
    let begin = number(field(field(spec, "begin_search")?, "spec")?, "index")?;
    let find = field(spec, "find_keys")?;
    let how = field(find, "spec")?;
    let step = number(how, "keystep")?.max(1);
    let words_len = words.len() as i64;
    let (first, last) = match field(find, "type")? {
        Shown::Bulk("range") => match number(how, "lastkey")? {
            last if last < 0 => (begin, words_len + last),
            last => (begin, begin + last),
        },
        _ => {
            let count = words.get(usize::try_from(begin + number(how, "keynumidx")?).ok()?)?;
            let count = parse_int(count).filter(|count| (0..words_len).contains(count))?;
            let first = begin + number(how, "firstkey")?;
            (first, first + (count - 1) * step)
        }
    };
    if last >= words_len {
        return None;
    }
    Some((first..=last).step_by(step as usize).map(|place| place as usize).collect())
}
