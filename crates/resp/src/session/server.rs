//! CONFIG, BGSAVE, DEBUG, SCRIPT and FUNCTION: commands about the server.

use ordain_commands::glob_matches;
use ordain_commands::script::is_function;
use ordain_gateway::Service;
use ordain_model::key::SLOTS;
use ordain_model::system::CopyPart;
use ordain_model::{
    ArgsBuilder, Call, Computations, Ending, PartitionId, PlanError, Position, ProcedureId, Writer, system,
};

use super::connection::number;
use super::dispatch::{Answered, Place, help_or_wrong_arity, refuse, wrong_arity};
use super::info::has_log;
use super::{Session, Words};
use crate::shared::{Context, NOT_INTEGER, SettingError};

impl Session {
    /// Submits a transaction that a command is outside of MULTI alone; `what` names the command in the refusal.
    fn submit_alone(
        &mut self,
        procedure: ProcedureId,
        what: &str,
        place: Place,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
        write_args: impl FnOnce(&mut ArgsBuilder<'_>),
    ) -> Answered {
        if place != Place::Alone {
            return refuse(
                format!("ERR {what} is a transaction of its own: run it outside of MULTI and TXN.BEGIN"),
                out,
            );
        }
        match self.submit(Call::new(procedure, self.db), cx, write_args) {
            Ok(_) => Answered::Later,
            Err(refusal) => refuse(&refusal.0, out),
        }
    }

    /// BGSAVE: a transaction that cuts a checkpoint. Its answer comes when that is cut; when it is complete LASTSAVE tells.
    pub(super) fn bgsave(
        &mut self,
        words: &Words<'_>,
        place: Place,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Answered {
        match &words[1..] {
            [] => {}
            [schedule] if schedule.eq_ignore_ascii_case(b"schedule") => {}
            _ => return refuse("ERR syntax error", out),
        }
        if let Err(refusal) = cx.gateway.require(Service::Checkpoints) {
            return refuse(refusal.to_string(), out);
        }
        if place == Place::Alone && !has_log(cx) {
            return refuse("ERR this node keeps nothing (--ephemeral), so there is nothing to save", out);
        }
        self.submit_alone(system::CHECKPOINT, "BGSAVE", place, cx, out, |_| {})
    }

    /// DEBUG MOVE-SLOTS first last partition: a transaction that moves slots to a partition, with what is in them.
    pub(super) fn move_slots(
        &mut self,
        words: &Words<'_>,
        place: Place,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Answered {
        let [_, _, first, last, to] = words else {
            return refuse(wrong_arity("debug", "move-slots"), out);
        };
        if let Err(refusal) = require_moves(cx) {
            return refuse(refusal, out);
        }
        let (Some(first), Some(last), Some(to)) = (number(first), number(last), number(to)) else {
            return refuse(NOT_INTEGER, out);
        };
        if first > last || last >= SLOTS as u64 {
            return refuse("ERR slots are 0 to 1023, the first not after the last", out);
        }
        let to = match partition(to, cx) {
            Ok(to) => to,
            Err(text) => return refuse(text, out),
        };
        self.submit_alone(system::MOVE, "a move of slots", place, cx, out, |args| {
            system::move_args(&(first as usize..last as usize + 1), to, args);
        })
    }

    /// DEBUG COPY-SLOT slot partition [position]: a transaction that copies a part of a slot to where it is to move. Answers the
    /// position of the next part.
    pub(super) fn copy_slot(
        &mut self,
        words: &Words<'_>,
        place: Place,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Answered {
        let (slot, to, from) = match words[2..] {
            [slot, to] => (number(slot), number(to), None),
            [slot, to, from] => (number(slot), number(to), Some(number(from))),
            _ => return refuse(wrong_arity("debug", "copy-slot"), out),
        };
        if let Err(refusal) = require_moves(cx) {
            return refuse(refusal, out);
        }
        let (Some(slot), Some(to), false) = (slot, to, from == Some(None)) else {
            return refuse(NOT_INTEGER, out);
        };
        let from = from.flatten().map_or(Position::of_slot(slot.min(SLOTS as u64) as usize), Position);
        if slot >= SLOTS as u64 || from.slot() as u64 != slot {
            return refuse("ERR slots are 0 to 1023, and a part begins in its slot", out);
        }
        let to = match partition(to, cx) {
            Ok(to) => to,
            Err(text) => return refuse(text, out),
        };
        self.submit_alone(system::COPY, "a copy of a slot", place, cx, out, |args| {
            CopyPart { to, from, records: COPIED_RECORDS, bytes: COPIED_BYTES }.write(args);
        })
    }
}

/// Why no slot can go to another partition, if none can.
fn require_moves(cx: &Context<'_>) -> Result<(), String> {
    cx.gateway.require(Service::Moves).map_err(|refusal| refusal.to_string())?;
    if cx.gateway.layout().moves_slots() {
        return Ok(());
    }
    Err("ERR regions have prefixes in the cluster's file, and their keys would leave their region with the slots: slots of such a \
         cluster stay"
        .to_owned())
}

/// The partition of a number, if there is one.
fn partition(number: u64, cx: &Context<'_>) -> Result<PartitionId, String> {
    let partitions = cx.gateway.partitions();
    match u16::try_from(number) {
        Ok(number) if number < partitions => Ok(PartitionId(number)),
        _ => Err(format!("ERR there is no partition {number}: this cluster has {partitions}, from 0 on")),
    }
}

/// A part of a slot that is copied has so many records at most, and about so many bytes: some milliseconds' work.
const COPIED_RECORDS: usize = 2048;
const COPIED_BYTES: usize = 512 << 10;

/// The encoding of the integer 0.
pub(super) fn zero() -> Vec<u8> {
    let mut datum = Vec::new();
    Writer(&mut datum).int(0);
    datum
}

/// CONFIG and its subcommands.
pub(super) fn config(words: &Words<'_>, cx: &mut Context<'_>, out: &mut Vec<u8>) {
    let mut w = Writer(out);
    let sub = words[1].to_ascii_lowercase();
    match (&*sub, &words[2..]) {
        (b"get", patterns @ [_, ..]) => {
            let patterns: Vec<Vec<u8>> = patterns.iter().map(|p| p.to_ascii_lowercase()).collect();
            let chosen: Vec<(&str, &str)> = (cx.shared.settings.iter())
                .filter(|(name, _)| patterns.iter().any(|pattern| glob_matches(pattern, name.as_bytes())))
                .collect();
            w.map(chosen.len());
            for (name, value) in chosen {
                w.bulk(name.as_bytes());
                w.bulk(value.as_bytes());
            }
        }
        (b"set", pairs @ [_, _, ..]) if pairs.len() % 2 == 0 => config_set(pairs, cx, &mut w),
        (b"set", [_, _, ..]) => w.error("ERR syntax error"),
        (b"resetstat", []) => {
            cx.shared.observed.diagnostics.reset_commands();
            cx.control.reset_statistics();
            w.ok();
        }
        (b"rewrite", []) => w.error("ERR this server does not write its config file"),
        _ => help_or_wrong_arity(
            "config",
            words,
            &[
                "GET <pattern> ...: parameters and their values.",
                "RESETSTAT: sets the counters of INFO to zero.",
                "SET <parameter> <value> ...: changes parameters, until the next start.",
            ],
            &mut w,
        ),
    }
}

/// All or nothing, as in Redis.
fn config_set(words: &Words<'_>, cx: &mut Context<'_>, w: &mut Writer<'_>) {
    let pairs: Vec<(String, String)> = (words.as_chunks::<2>().0.iter())
        .map(|[name, value]| {
            let name = String::from_utf8_lossy(name).to_ascii_lowercase();
            (name, String::from_utf8_lossy(value).into_owned())
        })
        .collect();
    // Errors about a name quote it as it was sent, as in Redis.
    let mut failed = |name: &[u8], reason: &str| {
        let before = "ERR CONFIG SET failed (possibly related to argument '";
        w.error(PlanError::quoting(before, name, &format!("') - {reason}")).0);
    };
    // Redis looks at all names first, then at the values.
    for (at, (name, value)) in pairs.iter().enumerate() {
        match cx.shared.settings.check(name, value) {
            Err(SettingError::Unknown) => {
                let before = "ERR Unknown option or number of arguments for CONFIG SET - '";
                return w.error(PlanError::quoting(before, words[2 * at], "'").0);
            }
            Err(SettingError::Fixed) => return failed(words[2 * at], "can't set immutable config"),
            _ if pairs[..at].iter().any(|(earlier, _)| earlier == name) => {
                return failed(words[2 * at], "duplicate parameter");
            }
            _ => {}
        }
    }
    for (name, value) in &pairs {
        match cx.shared.settings.check(name, value) {
            Ok(_) => {}
            Err(SettingError::Refused(reason)) => return failed(name.as_bytes(), reason),
            Err(SettingError::OutOfRange(range)) => {
                let (least, most) = range.into_inner();
                return failed(
                    name.as_bytes(),
                    &format!("argument must be between {least} and {most} inclusive"),
                );
            }
            Err(SettingError::NotSize) => return failed(name.as_bytes(), "argument must be a memory value"),
            Err(_) => return failed(name.as_bytes(), "argument couldn't be parsed into an integer"),
        }
    }
    for (name, value) in &pairs {
        if let Ok(name) = cx.shared.settings.set(name, value) {
            cx.shared.apply(name);
            cx.control.setting_changed(name, value);
        }
    }
    w.ok();
}

/// DEBUG, but for DIGEST, COPY-SLOT and MOVE-SLOTS, which are transactions.
pub(super) fn debug(words: &Words<'_>, out: &mut Vec<u8>) {
    let mut w = Writer(out);
    if words[1].eq_ignore_ascii_case(b"sleep") {
        return w.error("ERR DEBUG SLEEP is not supported: it would stop every connection of its event loop");
    }
    help_or_wrong_arity(
        "debug",
        words,
        &[
            "COPY-SLOT <slot> <partition> [<position>]: copies a part of a hash slot to a partition that it is to move to; \
             answers the position of the next, or -1.",
            "DIGEST: 40 hexadecimal digits over the whole committed state.",
            "MOVE-SLOTS <first> <last> <partition>: moves hash slots to a partition; see ordain cluster move.",
        ],
        &mut w,
    );
}

/// SCRIPT DEBUG, SCRIPT KILL and SCRIPT HELP; the others are transactions.
pub(super) fn script(words: &Words<'_>, computations: &Computations, out: &mut Vec<u8>) {
    if let [_, sub, mode] = words
        && sub.eq_ignore_ascii_case(b"debug")
    {
        let mut w = Writer(out);
        return match &*mode.to_ascii_lowercase() {
            b"no" => w.ok(),
            b"yes" | b"sync" => {
                w.error("ERR SCRIPT DEBUG is not supported: there is no debugger for scripts here")
            }
            _ => w.error("ERR Use SCRIPT DEBUG YES/SYNC/NO"),
        };
    }
    scripting(
        "script",
        words,
        &[
            "DEBUG (YES|SYNC|NO): NO is accepted; there is no debugger.",
            "EXISTS <sha1> ...: which scripts are known.",
            "FLUSH [ASYNC|SYNC]: forgets all scripts.",
            "KILL: ends the script that this node is executing, if it only reads.",
            "LOAD <script>: remembers a script without running it.",
        ],
        computations,
        out,
    );
}

/// FUNCTION KILL and FUNCTION HELP; the others are transactions.
pub(super) fn function(words: &Words<'_>, computations: &Computations, out: &mut Vec<u8>) {
    scripting(
        "function",
        words,
        &[
            "DELETE <library>: removes a library and its functions.",
            "DUMP: all libraries as a payload for RESTORE.",
            "FLUSH [ASYNC|SYNC]: removes all libraries.",
            "KILL: ends the function that this node is executing, if it only reads.",
            "LIST [LIBRARYNAME <pattern>] [WITHCODE]: the libraries and their functions.",
            "LOAD [REPLACE] <code>: adds a library.",
            "RESTORE <payload> [FLUSH|APPEND|REPLACE]: adds the libraries of a payload.",
        ],
        computations,
        out,
    );
}

/// KILL and HELP of a container of scripts or functions.
fn scripting(
    container: &str,
    words: &Words<'_>,
    lines: &[&str],
    computations: &Computations,
    out: &mut Vec<u8>,
) {
    let mut w = Writer(out);
    if !words[1].eq_ignore_ascii_case(b"kill") || words.len() > 2 {
        return help_or_wrong_arity(container, words, lines, &mut w);
    }
    let functions = container == "function";
    match computations.end(|procedure| is_function(procedure) == functions) {
        Ending::Nothing => w.error("NOTBUSY No scripts in execution right now."),
        Ending::Soon => w.ok(),
        Ending::Repeated => w.error(UNKILLABLE),
        Ending::OtherKind if functions => w.error("BUSY an EVAL script is running: use SCRIPT KILL"),
        Ending::OtherKind => w.error("BUSY a function is running: use FUNCTION KILL"),
    }
}

const UNKILLABLE: &str = "UNKILLABLE The script is in the log, as it may write or reads on several partitions: every \
                          replica executes it to the same end, which is that of its budget of work at the latest.";
