//! ACL and its subcommands.

use ordain_commands::rights::{Categories, Denied, Rights, Selector, full_name, rows};
use ordain_commands::{check_arity, lookup};
use ordain_model::Writer;

use super::dispatch::{Answered, Place, help_or_wrong_arity, wrong_words};
use super::{Awaiting, Session, Words};
use crate::acl::{DEFAULT, User, is_name};
use crate::shared::{Context, ControlRequest, NOT_INTEGER, parse_int};

/// How many bits a password of ACL GENPASS has by default, and at most.
const BITS: (i64, i64) = (256, 4096);
/// How many entries ACL LOG shows by default.
const ENTRIES: usize = 10;

impl Session {
    /// ACL and its subcommands.
    pub(super) fn acl(
        &mut self,
        words: &Words<'_>,
        place: Place,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Answered {
        let sub = words.get(1).copied().unwrap_or_default().to_ascii_lowercase();
        let request = match (&*sub, words.len()) {
            (b"load", 2) => ControlRequest::LoadUsers,
            (b"save", 2) => ControlRequest::SaveUsers,
            _ => {
                self.acl_now(&sub, words, cx, out);
                return Answered::Now;
            }
        };
        self.ask(request, Awaiting::UsersFile, place, cx, out)
    }

    /// The subcommands that need no file.
    fn acl_now(&mut self, sub: &[u8], words: &Words<'_>, cx: &mut Context<'_>, out: &mut Vec<u8>) {
        let mut w = Writer(out);
        match (sub, words.get(2..).unwrap_or_default()) {
            (b"whoami", []) => w.bulk(self.user.name()),
            (b"users", []) => cx.shared.access.users(|users| {
                w.array(users.iter().len());
                users.iter().for_each(|user| w.bulk(user.name()));
            }),
            (b"list", []) => cx.shared.access.users(|users| {
                w.array(users.iter().len());
                for user in users.iter() {
                    let mut line = Vec::new();
                    user.describe(&mut line);
                    w.bulk(&line);
                }
            }),
            (b"getuser", [name]) => match cx.shared.access.users(|users| users.get(name).cloned()) {
                Some(user) => show(&user, &mut w),
                None => w.nil(),
            },
            (b"setuser", [name, modifiers @ ..]) => set_user(name, modifiers, cx, &mut w),
            (b"deluser", names @ [_, ..]) => {
                if names.contains(&DEFAULT) {
                    return w.error("ERR The 'default' user cannot be removed");
                }
                let gone = cx
                    .shared
                    .access
                    .change(|users| Ok::<_, ()>(names.iter().filter(|name| users.remove(name)).count()));
                w.int(gone.unwrap_or(0) as i64);
                cx.control.users_changed();
                self.leave_if_gone(cx.shared);
            }
            (b"cat", []) => {
                w.array(Categories::all().len());
                Categories::all().for_each(|name| w.bulk(name.as_bytes()));
            }
            (b"cat", [name]) => match Categories::named(name) {
                Some(category) => {
                    let names: Vec<&str> =
                        rows().filter(|row| row.categories.has(category)).map(|row| &*row.name).collect();
                    w.array(names.len());
                    names.iter().for_each(|name| w.bulk(name.as_bytes()));
                }
                None => w.error([b"ERR Unknown category '", *name, b"'"].concat()),
            },
            (b"dryrun", [name, command @ ..]) if !command.is_empty() => dry_run(name, command, cx, &mut w),
            (b"genpass", bits @ ([] | [_])) => generate(bits.first().copied(), cx, &mut w),
            (b"log", options @ ([] | [_])) => log(options.first().copied(), cx, &mut w),
            (b"cat" | b"genpass" | b"log", _) => {
                w.error(wrong_words("acl", &String::from_utf8_lossy(words[1])));
            }
            _ => help_or_wrong_arity(
                "acl",
                words,
                &[
                    "CAT [<category>]: the categories of commands, or the commands of one.",
                    "DELUSER <username> [<username> ...]: removes users and closes their connections.",
                    "DRYRUN <username> <command> [<arg> ...]: whether a user may run a command.",
                    "GENPASS [<bits>]: a random password, of 256 bits by default.",
                    "GETUSER <username>: what a user may do.",
                    "LIST: the users, as in the ACL file.",
                    "LOAD: reads the ACL file again.",
                    "LOG [<count> | RESET]: what was refused lately.",
                    "SAVE: writes the ACL file.",
                    "SETUSER <username> <attribute> [<attribute> ...]: makes or changes a user.",
                    "USERS: the names of the users.",
                    "WHOAMI: the user of this connection.",
                ],
                &mut w,
            ),
        }
    }
}

/// Writes what ACL GETUSER answers.
fn show(user: &User, w: &mut Writer<'_>) {
    w.map(6);
    w.bulk(b"flags");
    w.set(1 + usize::from(user.has_no_pass()));
    w.bulk(if user.is_on() { b"on" } else { b"off" });
    if user.has_no_pass() {
        w.bulk(b"nopass");
    }
    w.bulk(b"passwords");
    w.array(user.hashes().len());
    user.hashes().for_each(|hash| w.bulk(hash.as_bytes()));
    let Rights { root, more } = user.rights();
    show_selector(root, w);
    w.bulk(b"selectors");
    w.array(more.len());
    for selector in more {
        w.map(3);
        show_selector(selector, w);
    }
}

fn show_selector(selector: &Selector, w: &mut Writer<'_>) {
    type Describe = fn(&Selector, &mut Vec<u8>);
    let parts: [(&[u8], Describe); 3] = [
        (b"commands", Selector::describe_commands),
        (b"keys", Selector::describe_keys),
        (b"channels", Selector::describe_channels),
    ];
    for (name, describe) in parts {
        let mut text = Vec::new();
        describe(selector, &mut text);
        w.bulk(name);
        w.bulk(&text);
    }
}

fn set_user(name: &[u8], modifiers: &Words<'_>, cx: &mut Context<'_>, w: &mut Writer<'_>) {
    if !is_name(name) {
        return w.error("ERR Usernames can't contain spaces or null characters");
    }
    match cx.shared.access.change(|users| users.set(name, modifiers)) {
        Ok(()) => {
            cx.control.users_changed();
            w.ok();
        }
        Err(error) => w.error(error.reply()),
    }
}

/// Tells whether a user may run a command, without running it.
fn dry_run(name: &[u8], words: &Words<'_>, cx: &Context<'_>, w: &mut Writer<'_>) {
    let Some(user) = cx.shared.access.users(|users| users.get(name).cloned()) else {
        return w.error([b"ERR User '", name, b"' not found"].concat());
    };
    let Some(command) = lookup(words[0]) else {
        return w.error([b"ERR Command '", words[0], b"' not found"].concat());
    };
    if let Err(error) = check_arity(command, words.len()) {
        return w.error(&error.0);
    }
    let word = |at: usize| words.get(at).copied().unwrap_or_default();
    let text = match user.rights().check(command, words) {
        Ok(()) => return w.ok(),
        Err(Denied::Command) => {
            let name = full_name(command, words);
            format!("This user has no permissions to run the '{name}' command").into_bytes()
        }
        Err(Denied::Key(at)) => {
            [b"This user has no permissions to access the '", word(at), b"' key"].concat()
        }
        Err(Denied::Channel(at)) => {
            [b"This user has no permissions to access the '", word(at), b"' channel"].concat()
        }
    };
    w.bulk(&text);
}

fn generate(bits: Option<&[u8]>, cx: &mut Context<'_>, w: &mut Writer<'_>) {
    let bits = match bits.map(parse_int) {
        None => BITS.0,
        Some(Some(bits)) if (1..=BITS.1).contains(&bits) => bits,
        Some(Some(_)) => {
            return w.error(
                "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to \
                 4096",
            );
        }
        Some(None) => return w.error(NOT_INTEGER),
    };
    // Four bits a digit, rounded up.
    let digits = (bits as usize).div_ceil(4);
    let mut bytes = vec![0; digits.div_ceil(2)];
    match cx.control.random(&mut bytes) {
        Ok(()) => {
            let mut text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            text.truncate(digits);
            w.bulk(text.as_bytes());
        }
        Err(reason) => w.error(format!("ERR no randomness: {reason}")),
    }
}

fn log(option: Option<&[u8]>, cx: &Context<'_>, w: &mut Writer<'_>) {
    let count = match option {
        None => ENTRIES,
        Some(word) if word.eq_ignore_ascii_case(b"reset") => {
            cx.shared.access.clear_log();
            return w.ok();
        }
        Some(word) => match parse_int(word) {
            Some(count) => usize::try_from(count).unwrap_or(0),
            None => return w.error(NOT_INTEGER),
        },
    };
    let entries = cx.shared.access.log(count);
    w.array(entries.len());
    for entry in entries {
        w.map(7);
        w.bulk(b"count");
        w.int(entry.count as i64);
        w.bulk(b"reason");
        w.bulk(entry.reason.name().as_bytes());
        w.bulk(b"context");
        w.bulk(if entry.in_multi { b"multi" } else { b"toplevel" });
        w.bulk(b"object");
        w.bulk(&entry.object);
        w.bulk(b"username");
        w.bulk(&entry.user);
        w.bulk(b"age-seconds");
        w.double(cx.now.since(entry.at).0 as f64 / 1e6);
        w.bulk(b"client-info");
        w.bulk(entry.client.as_bytes());
    }
}
