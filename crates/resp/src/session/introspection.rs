//! COMMAND: the command table, shown to clients that want to know.

use ordain_commands::{Action, Command, Flags, SessionCommand, all, check_arity, lookup};
use ordain_model::Writer;

use super::Words;
use super::dispatch::{unknown_subcommand, wrong_arity};

/// COMMAND and its subcommands.
pub(super) fn command(words: &Words<'_>, out: &mut Vec<u8>) {
    let mut w = Writer(out);
    let Some(sub) = words.get(1) else {
        w.array(all().len());
        return all().iter().for_each(|command| info(command, &mut w));
    };
    let sub_lower = sub.to_ascii_lowercase();
    match (&*sub_lower, &words[2..]) {
        (b"count", []) => w.int(all().len() as i64),
        (b"count", _) => w.error(wrong_arity("command", "count")),
        (b"info", []) => {
            w.array(all().len());
            all().iter().for_each(|command| info(command, &mut w));
        }
        (b"info", names) => {
            w.array(names.len());
            for name in names {
                match lookup(name) {
                    Some(command) => info(command, &mut w),
                    None => w.nil(),
                }
            }
        }
        (b"docs", []) => {
            w.map(all().len());
            all().iter().for_each(|command| docs(command, &mut w));
        }
        (b"docs", names) => {
            let known: Vec<&Command> = names.iter().filter_map(|name| lookup(name)).collect();
            w.map(known.len());
            known.iter().for_each(|command| docs(command, &mut w));
        }
        (b"list", filter) => list(filter, &mut w),
        (b"getkeys", [] | [_]) => w.error(wrong_arity("command", "getkeys")),
        (b"getkeys", words) => match keys_of(words) {
            Ok(keys) => {
                w.array(keys.len());
                keys.iter().for_each(|key| w.bulk(key));
            }
            Err(text) => w.error(text),
        },
        (b"help", []) => super::server::help(
            &mut w,
            "COMMAND",
            &[
                "(no subcommand): details of all commands.",
                "COUNT: how many commands there are.",
                "DOCS [<name> ...]: what they do.",
                "GETKEYS <full command>: the keys that a command names.",
                "INFO [<name> ...]: arity, flags and key positions.",
                "LIST [FILTERBY ACLCAT <category> | PATTERN <pattern> | MODULE <name>]: their names.",
            ],
        ),
        _ => w.error(unknown_subcommand("command", sub)),
    }
}

fn list(filter: &Words<'_>, w: &mut Writer<'_>) {
    let is = |word: &[u8], name: &str| word.eq_ignore_ascii_case(name.as_bytes());
    let chosen: Vec<&Command> = match filter {
        [] => all().iter().collect(),
        [by, kind, _] if is(by, "filterby") && is(kind, "module") => Vec::new(),
        [by, kind, category] if is(by, "filterby") && is(kind, "aclcat") => {
            all().iter().filter(|c| categories(c).any(|have| is(category, &have[1..]))).collect()
        }
        [by, kind, pattern] if is(by, "filterby") && is(kind, "pattern") => {
            let pattern = pattern.to_ascii_lowercase();
            all().iter().filter(|c| super::server::matches(&pattern, c.name.as_bytes())).collect()
        }
        _ => return w.error("ERR syntax error"),
    };
    w.array(chosen.len());
    chosen.iter().for_each(|command| w.bulk(command.name.as_bytes()));
}

/// What COMMAND INFO says of one command: as Redis 7, without key specifications and subcommands.
fn info(command: &Command, w: &mut Writer<'_>) {
    w.array(10);
    w.bulk(command.name.as_bytes());
    w.int(i64::from(command.arity));
    w.set(command.flags.names().count());
    command.flags.names().for_each(|flag| w.status(flag));
    w.int(i64::from(command.first_key));
    w.int(i64::from(command.last_key));
    w.int(i64::from(command.step));
    w.set(categories(command).count());
    categories(command).for_each(|category| w.status(category));
    w.array(0);
    w.array(0);
    w.array(0);
}

/// The access categories of a command, as Redis derives them.
fn categories(command: &Command) -> impl Iterator<Item = &'static str> {
    let flag = |flag, name| command.flags.has(flag).then_some(name);
    let is_client = matches!(command.action, Action::Session(SessionCommand::Auth | SessionCommand::Hello));
    [
        flag(Flags::WRITE, "@write"),
        flag(Flags::READONLY, "@read"),
        match command.group {
            "string" => Some("@string"),
            "hash" => Some("@hash"),
            "generic" => Some("@keyspace"),
            "connection" => Some("@connection"),
            "transactions" => Some("@transaction"),
            "scripting" => Some("@scripting"),
            _ => None,
        },
        flag(Flags::ADMIN, "@admin"),
        (command.flags.has(Flags::ADMIN) && !is_client).then_some("@dangerous"),
        Some(if command.flags.has(Flags::FAST) { "@fast" } else { "@slow" }),
    ]
    .into_iter()
    .flatten()
}

fn docs(command: &Command, w: &mut Writer<'_>) {
    w.bulk(command.name.as_bytes());
    w.map(2);
    w.bulk(b"summary");
    w.bulk(command.summary.as_bytes());
    w.bulk(b"group");
    w.bulk(command.group.as_bytes());
}

/// The keys that a command names, by the table's key positions.
fn keys_of<'a>(words: &Words<'a>) -> Result<Vec<&'a [u8]>, &'static str> {
    let command = words.first().and_then(|name| lookup(name)).ok_or("ERR Invalid command specified")?;
    if check_arity(command, words.len()).is_err() {
        return Err("ERR Invalid number of arguments specified for command");
    }
    let none = "ERR The command has no key arguments";
    if command.flags.has(Flags::MOVABLEKEYS) {
        let count =
            words.get(2).and_then(|n| crate::shared::parse_int(n)).and_then(|n| usize::try_from(n).ok());
        let count = count.ok_or("ERR Invalid arguments specified for command")?;
        let keys = words.get(3..).and_then(|rest| rest.get(..count));
        return match keys {
            Some([]) => Err(none),
            Some(keys) => Ok(keys.to_vec()),
            None => Err("ERR Invalid arguments specified for command"),
        };
    }
    if command.first_key <= 0 {
        return Err(none);
    }
    let last = match command.last_key {
        last if last < 0 => words.len().saturating_sub(usize::from(last.unsigned_abs())),
        last => last as usize,
    };
    let step = usize::from(command.step.unsigned_abs()).max(1);
    let keys = (command.first_key as usize..=last).step_by(step).filter_map(|at| words.get(at).copied());
    let keys: Vec<&[u8]> = keys.collect();
    if keys.is_empty() { Err(none) } else { Ok(keys) }
}
