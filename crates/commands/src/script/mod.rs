//! Scripts and functions: Lua 5.1 over declared keys (DESIGN.md, idea 2: all reads, one compute step, writes).
//!
//! A script is planned as a fragment on its own record (EVAL notes the body under its SHA-1, which is the
//! cache that EVALSHA reads and that survives a restart), one *shipped* fragment a declared key, and one compute
//! fragment that runs the script with all those records in hand. `redis.call` plans and runs ordinary commands
//! on them; a key that is not in hand is refused before it is touched. A script that raises an error is rolled
//! back whole and answers the error: that is a reply, not an abort, so no other shard waits for a verdict.
//!
//! `vm` runs the interpreter and says why a script's outcome is the same everywhere; `host` has the functions of `redis`;
//! [`functions`] are FUNCTION and FCALL.

mod convert;
pub mod functions;
mod host;
mod payload;
#[cfg(test)]
mod tests;
mod vm;

use std::collections::BTreeSet;
use std::sync::Arc;

use ordain_model::args::Arg;
use ordain_model::plan::Planner;
use ordain_model::procedure::{FragmentContext, Procedure, Registry, ReplyContext, Target};
use ordain_model::table_procedure::{TableProcedure, any_args, ok_reply};
use ordain_model::{
    Abort, Access, ArgIter, Args, ArgsBuilder, Datum, Db, PlanError, ProcedureId, SlotNo, Value, Writer,
};
use sha1::{Digest, Sha1};

use crate::ids;
use crate::rights::Rights;
use crate::table::unknown_subcommand;
use vm::{Engine, Entry, Programs, Refusal, Run, SMALL_SOURCE_MAX};

/// Writes a procedure's arguments from the words that follow a command's name.
pub type Encode = fn(&[&[u8]], &mut ArgsBuilder<'_>);

/// Adds the procedures behind EVAL, FCALL, SCRIPT and FUNCTION.
pub fn register(registry: &mut Registry) {
    let programs = Arc::new(Programs::default());
    let any = |by_sha, read_only, limited, frugal| {
        Arc::new(Eval { by_sha, read_only, limited, frugal, programs: programs.clone() })
    };
    let eval = |by_sha, read_only| any(by_sha, read_only, false, false);
    let frugal = |by_sha, limited| any(by_sha, false, limited, true);
    registry.register(ids::EVAL_FRUGAL, "eval.frugal", frugal(false, false));
    registry.register(ids::EVALSHA_FRUGAL, "evalsha.frugal", frugal(true, false));
    registry.register(ids::EVAL_LIMITED_FRUGAL, "eval.limited.frugal", frugal(false, true));
    registry.register(ids::EVALSHA_LIMITED_FRUGAL, "evalsha.limited.frugal", frugal(true, true));
    registry.register(ids::EVAL, "eval", eval(false, false));
    registry.register(ids::EVALSHA, "evalsha", eval(true, false));
    registry.register(ids::EVAL_RO, "eval_ro", eval(false, true));
    registry.register(ids::EVALSHA_RO, "evalsha_ro", eval(true, true));
    let limited = |by_sha, read_only| any(by_sha, read_only, true, false);
    registry.register(ids::EVAL_LIMITED, "eval.limited", limited(false, false));
    registry.register(ids::EVALSHA_LIMITED, "evalsha.limited", limited(true, false));
    registry.register(ids::EVAL_RO_LIMITED, "eval_ro.limited", limited(false, true));
    registry.register(ids::EVALSHA_RO_LIMITED, "evalsha_ro.limited", limited(true, true));
    registry.register(ids::SCRIPT_LOAD, "script.load", Arc::new(ScriptLoad { programs: programs.clone() }));
    registry.register(ids::SCRIPT_EXISTS, "script.exists", Arc::new(ScriptExists));
    let flush = TableProcedure::writes(any_args, flush_scripts, ok_reply);
    registry.register(ids::SCRIPT_FLUSH, "script.flush", flush);
    functions::register(registry, &programs);
}

/// The procedure that runs a script with the rights of a user before its arguments ([`Rights::carried`]), by the one that
/// runs it without; `None`: the procedure runs no script.
pub fn with_rights(procedure: ProcedureId) -> Option<ProcedureId> {
    match procedure {
        ids::EVAL => Some(ids::EVAL_LIMITED),
        ids::EVALSHA => Some(ids::EVALSHA_LIMITED),
        ids::EVAL_RO => Some(ids::EVAL_RO_LIMITED),
        ids::EVALSHA_RO => Some(ids::EVALSHA_RO_LIMITED),
        ids::FCALL => Some(ids::FCALL_LIMITED),
        ids::FCALL_RO => Some(ids::FCALL_RO_LIMITED),
        _ => None,
    }
}

/// Says that a procedure runs code of function libraries, of those that run scripts or libraries: it is FCALL or its like, or
/// loads libraries.
pub const fn is_function(procedure: ProcedureId) -> bool {
    matches!(
        procedure,
        ids::FCALL
            | ids::FCALL_RO
            | ids::FCALL_LIMITED
            | ids::FCALL_RO_LIMITED
            | ids::FCALL_FRUGAL
            | ids::FCALL_LIMITED_FRUGAL
            | ids::FUNCTION_LOAD
            | ids::FUNCTION_RESTORE
    )
}

/// The rights that stand before a script's arguments, if any do.
fn take_rights<'a>(words: &mut ArgIter<'a>, limited: bool) -> Option<&'a [u8]> {
    limited.then(|| words.bytes())
}

/// The variant of a procedure for times when memory is short: it refuses to scripts the commands that need memory (Redis's
/// flag `denyoom`), and keeps no script. It has a number of its own, so what a script was refused stands in the log. The
/// procedure itself if it runs no script that may write.
pub const fn frugal(procedure: ProcedureId) -> ProcedureId {
    match procedure {
        ids::EVAL => ids::EVAL_FRUGAL,
        ids::EVALSHA => ids::EVALSHA_FRUGAL,
        ids::FCALL => ids::FCALL_FRUGAL,
        ids::EVAL_LIMITED => ids::EVAL_LIMITED_FRUGAL,
        ids::EVALSHA_LIMITED => ids::EVALSHA_LIMITED_FRUGAL,
        ids::FCALL_LIMITED => ids::FCALL_LIMITED_FRUGAL,
        other => other,
    }
}

/// Writes the arguments of EVAL and EVAL_RO: the body's SHA-1 before it.
pub fn encode_eval(args: &[&[u8]], builder: &mut ArgsBuilder<'_>) {
    if let Some(body) = args.first() {
        builder.push(&sha1_hex(body));
    }
    push_all(args, builder);
}

fn push_all(args: &[&[u8]], builder: &mut ArgsBuilder<'_>) {
    for arg in args {
        builder.push(arg);
    }
}

/// Writes the arguments of EVALSHA and EVALSHA_RO: hexadecimal digits in lower case.
pub fn encode_evalsha(args: &[&[u8]], builder: &mut ArgsBuilder<'_>) {
    if let Some((sha, rest)) = args.split_first() {
        builder.push(&sha.to_ascii_lowercase());
        push_all(rest, builder);
    }
}

fn encode_exists(args: &[&[u8]], builder: &mut ArgsBuilder<'_>) {
    for sha in args {
        builder.push(&sha.to_ascii_lowercase());
    }
}

fn encode_nothing(_: &[&[u8]], _: &mut ArgsBuilder<'_>) {}

/// The procedure to submit for SCRIPT: `words` is what follows the name. The encoder is given the words after the
/// subcommand.
///
/// # Errors
/// The error Redis gives for an unknown subcommand or wrong arguments.
pub fn script_subcommand(words: &[&[u8]]) -> Result<(ProcedureId, Encode), PlanError> {
    let (name, rest) = words.split_first().ok_or_else(|| PlanError::arity("script"))?;
    match (&*name.to_ascii_lowercase(), rest) {
        (b"load", [_]) => Ok((ids::SCRIPT_LOAD, encode_eval)),
        (b"load", _) => Err(PlanError::arity("script|load")),
        (b"exists", []) => Err(PlanError::arity("script|exists")),
        (b"exists", _) => Ok((ids::SCRIPT_EXISTS, encode_exists)),
        (b"flush", []) => Ok((ids::SCRIPT_FLUSH, encode_nothing)),
        (b"flush", [mode]) if is_flush_mode(mode) => Ok((ids::SCRIPT_FLUSH, encode_nothing)),
        (b"flush", _) => Err(PlanError::fixed("ERR SCRIPT FLUSH only support SYNC|ASYNC option")),
        _ => Err(unknown_subcommand("script", name)),
    }
}

fn is_flush_mode(mode: &[u8]) -> bool {
    mode.eq_ignore_ascii_case(b"sync") || mode.eq_ignore_ascii_case(b"async")
}

/// A number as Redis 7.0 shows it in a reply: C's `%.17g`.
pub fn double_text(x: f64) -> String {
    ordain_lua::number::format_g(x, 17)
}

/// The SHA-1 of a text in lower-case hexadecimal digits.
pub fn sha1_hex(text: &[u8]) -> [u8; 40] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut hex = [0; 40];
    for (pair, byte) in hex.chunks_exact_mut(2).zip(Sha1::digest(text)) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    hex
}

/// The number of keys that comes first in `words`, checked against how many words follow.
fn key_count(words: &mut ArgIter<'_>, bad_number: PlanError) -> Result<usize, PlanError> {
    let number = words.bytes();
    let rest = *words;
    check_key_count(number, rest.count(), bad_number)
}

/// Reads a number of keys, which is to be followed by at least so many of `words`.
fn check_key_count(number: &[u8], words: usize, bad_number: PlanError) -> Result<usize, PlanError> {
    let number = std::str::from_utf8(number).ok().and_then(|n| n.parse::<i64>().ok());
    let number = number.ok_or(bad_number)?;
    let count = usize::try_from(number);
    let count = count.map_err(|_| PlanError::fixed("ERR Number of keys can't be negative"))?;
    if count > words {
        return Err(PlanError::fixed("ERR Number of keys can't be greater than number of args"));
    }
    Ok(count)
}

/// Plans the records that are in a script's hands, each once, and the fragment that runs it. `script` is the
/// slot that holds its code, if one does; `words` begin with the keys.
fn plan_compute(
    planner: &mut Planner<'_>,
    code: u16,
    access: Access,
    script: Option<SlotNo>,
    near: &[u8],
    words: ArgIter<'_>,
    count: usize,
) -> Result<(), PlanError> {
    /// Up to so many keys are compared with each other; more are kept in a set.
    const FEW: usize = 16;
    let mut shipped = smallvec::SmallVec::<[SlotNo; 16]>::new();
    let mut seen = BTreeSet::new();
    for (i, key) in words.take(count).enumerate() {
        let again = match count {
            0..=FEW => words.take(i).any(|earlier| earlier.bytes == key.bytes),
            _ => !seen.insert(key.bytes),
        };
        if !again {
            shipped.push(planner.ship(access, key)?);
        }
    }
    let near = words.take(count).next().map_or(near, |key| key.bytes);
    planner.compute(code, planner.hash_of(near))?;
    script.into_iter().chain(shipped).for_each(|slot| planner.input(slot));
    Ok(())
}

/// Runs what a compute fragment is to run, with the shard's interpreter.
fn execute(
    cx: &mut FragmentContext<'_>,
    programs: &Programs,
    (sha, code, entry): (&[u8], &[u8], Entry<'_>),
    words: ArgIter<'_>,
    (read_only, frugal): (bool, bool),
    rights: Option<&[u8]>,
) {
    let mut words = words;
    let rights = match rights.map(Rights::of_carried) {
        None => None,
        Some(Some(rights)) => Some(rights),
        Some(None) => return cx.writer().error("ERR the rights of this script are damaged; this is a bug"),
    };
    // Checked when the call was planned.
    let keys = key_count(&mut words, PlanError::NOT_INTEGER).unwrap_or(0);
    let run = Run {
        sha,
        code,
        entry,
        words,
        keys,
        db: cx.db,
        now: cx.now,
        seed: cx.seed,
        read_only,
        rights: rights.as_ref(),
        frugal,
        registry: cx.registry,
        programs,
    };
    let mut engine = std::mem::take(cx.locals.get(Engine::default));
    let stopwatch = cx.locals.stopwatch.clone();
    let mut run = || {
        if let Target::Compute(members) = &mut cx.target {
            engine.run(run, &mut **members, cx.locals, cx.out);
        }
        !cx.locals.has_given_up()
    };
    match stopwatch {
        Some(stopwatch) => stopwatch.time(&mut run),
        None => _ = run(),
    }
    *cx.locals.get(Engine::default) = engine;
}

/// EVAL and its kin. Arguments: the SHA-1, the body unless the script is called by its SHA-1, the number of
/// keys, keys, arguments.
struct Eval {
    by_sha: bool,
    read_only: bool,
    /// The rights that its commands need stand before all that.
    limited: bool,
    /// True if commands that need memory are refused.
    frugal: bool,
    programs: Arc<Programs>,
}

impl Eval {
    const NOTE: u16 = 0;
    const FETCH: u16 = 1;
    const COMPUTE: u16 = 2;
    const CHECK: u16 = 3;
}

impl Procedure for Eval {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut words = args.iter();
        take_rights(&mut words, self.limited);
        let sha = words.next().ok_or(PlanError::SYNTAX)?;
        let body = if self.by_sha { None } else { Some(words.bytes()) };
        let count = key_count(&mut words, PlanError::NOT_INTEGER)?;
        let script = match body {
            None => {
                let script = planner.key_in(Db::SCRIPTS, Eval::FETCH, Access::Read, sha)?;
                planner.silent();
                Some(script)
            }
            Some(body) => {
                script_flags(body)?.check(self.read_only)?;
                if !self.read_only && !self.frugal {
                    plan_note(planner, (Eval::CHECK, Eval::NOTE), sha, body)?;
                    planner.silent();
                }
                None
            }
        };
        let access = if self.read_only { Access::Read } else { Access::Write };
        plan_compute(planner, Eval::COMPUTE, access, script, sha.bytes, words, count)
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let mut words = cx.args.iter();
        let rights = take_rights(&mut words, self.limited);
        let sha = words.bytes();
        match code {
            // The run answers the error of a source that does not compile.
            Eval::NOTE => note(cx, &self.programs, sha, words.bytes()).unwrap_or(()),
            Eval::CHECK => check(cx, &self.programs, sha, words.bytes()),
            Eval::FETCH => match cx.cell().string().map(<[u8]>::to_vec) {
                Some(body) => cx.writer().bulk(&body),
                None => cx.writer().nil(),
            },
            _ => {
                let body = match self.by_sha {
                    false => words.bytes(),
                    true => match cx.inputs.get(0) {
                        Datum::Bulk(body) => body,
                        _ => {
                            cx.writer().error("NOSCRIPT No matching script. Please use EVAL.");
                            return Ok(());
                        }
                    },
                };
                let manner =
                    script_flags(body).and_then(|manner| manner.check(self.read_only).map(|()| manner));
                match manner {
                    Ok(manner) => {
                        let how = (self.read_only || manner == Manner::ReadsOnly, self.frugal);
                        execute(cx, &self.programs, (sha, body, Entry::Script), words, how, rights);
                    }
                    Err(refusal) => cx.writer().error(&refusal.0),
                }
            }
        }
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(cx.slot(cx.count - 1));
    }
}

/// Plans the fragment that keeps a script's body ([`note`]). A large one is compiled first, by a fragment that may be given
/// away ([`check`]): a fragment on a record may not.
fn plan_note(
    planner: &mut Planner<'_>,
    (check, note): (u16, u16),
    sha: Arg<'_>,
    body: &[u8],
) -> Result<(), PlanError> {
    if body.len() <= SMALL_SOURCE_MAX {
        return planner.key_in(Db::SCRIPTS, note, Access::Write, sha).map(drop);
    }
    let checked = planner.compute_alone(check, planner.hash_of(sha.bytes))?;
    planner.silent();
    planner.key_in(Db::SCRIPTS, note, Access::Write, sha)?;
    planner.input(checked);
    Ok(())
}

/// Answers OK if a script compiles, else the error to show.
fn check(cx: &mut FragmentContext<'_>, programs: &Programs, sha: &[u8], body: &[u8]) {
    let is_bounded = cx.locals.patience().is_some();
    match cx.locals.get(Engine::default).check(programs, sha, body, is_bounded) {
        Ok(()) => cx.writer().ok(),
        Err(Refusal::Error(text)) => cx.writer().error(text),
        Err(Refusal::Patience) => cx.locals.give_up(),
    }
}

/// Keeps a script's body in its record, if it compiles and is not there yet.
fn note(cx: &mut FragmentContext<'_>, programs: &Programs, sha: &[u8], body: &[u8]) -> Result<(), Vec<u8>> {
    if cx.cell().string().is_some() {
        return Ok(());
    }
    let checked = match cx.inputs.is_empty() {
        true => cx.locals.get(Engine::default).check(programs, sha, body, false),
        false => match cx.inputs.get(0) {
            Datum::Error(text) => Err(Refusal::Error(text.to_vec())),
            _ => Ok(()),
        },
    };
    match checked {
        Ok(()) => cx.cell_mut().put(Value::String(body.to_vec())),
        Err(Refusal::Error(text)) => return Err(text),
        Err(Refusal::Patience) => {
            return Err(b"ERR a script was to be compiled elsewhere; this is a bug".to_vec());
        }
    }
    Ok(())
}

/// SCRIPT LOAD. Arguments: the SHA-1, the body.
struct ScriptLoad {
    programs: Arc<Programs>,
}

impl ScriptLoad {
    const NOTE: u16 = 0;
    const CHECK: u16 = 1;
}

impl Procedure for ScriptLoad {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut words = args.iter();
        let sha = words.next().ok_or(PlanError::SYNTAX)?;
        let body = words.bytes();
        script_flags(body)?;
        plan_note(planner, (ScriptLoad::CHECK, ScriptLoad::NOTE), sha, body)
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let mut words = cx.args.iter();
        let (sha, body) = (words.bytes(), words.bytes());
        if code == ScriptLoad::CHECK {
            check(cx, &self.programs, sha, body);
            return Ok(());
        }
        match note(cx, &self.programs, sha, body) {
            Ok(()) => cx.writer().bulk(sha),
            Err(text) => cx.writer().error(text),
        }
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(cx.slot(cx.count - 1));
    }
}

/// SCRIPT EXISTS. Arguments: the SHA-1s.
struct ScriptExists;

impl Procedure for ScriptExists {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        args.iter().try_for_each(|sha| planner.key_in(Db::SCRIPTS, 0, Access::Read, sha).map(drop))
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let there = cx.cell().value.is_some();
        cx.writer().int(there.into());
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).array(cx.count as usize);
        (0..cx.count).for_each(|i| out.extend_from_slice(cx.slot(i)));
    }
}

/// Runs SCRIPT FLUSH on one shard.
fn flush_scripts(cx: &mut FragmentContext<'_>) {
    if let Target::Table(table) = &mut cx.target {
        table.clear(Some(Db::SCRIPTS));
    }
    cx.writer().ok();
}

/// The manner of a script, by its first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// There is no such line: the script may do what its command lets it.
    Plain,
    /// `#!lua`, without a flag that keeps it from writing.
    Writes,
    /// `#!lua flags=no-writes`.
    ReadsOnly,
}

impl Manner {
    /// Refuses a script that may write where none may.
    fn check(self, read_only: bool) -> Result<(), PlanError> {
        if read_only && self == Manner::Writes { Err(WRITES) } else { Ok(()) }
    }
}

const WRITES: PlanError =
    PlanError::fixed("ERR Can not execute a script with write flag using *_ro command.");

/// The flags that the first line of a script gives it: `#!lua flags=no-writes`.
///
/// # Errors
/// The error Redis gives.
fn script_flags(body: &[u8]) -> Result<Manner, PlanError> {
    if !body.starts_with(b"#!") {
        return Ok(Manner::Plain);
    }
    let line = body.split(|b| *b == b'\n').next().unwrap_or_default();
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let engine = words.next().unwrap_or_default();
    if engine != b"#!lua" {
        return Err(PlanError::quoting("ERR Unexpected engine in script shebang: ", engine, ""));
    }
    let mut manner = Manner::Writes;
    for option in words {
        let flags = option
            .strip_prefix(b"flags=")
            .ok_or_else(|| PlanError::quoting("ERR Unknown lua shebang option: ", option, ""))?;
        for flag in flags.split(|byte| *byte == b',').filter(|flag| !flag.is_empty()) {
            if !host::is_flag(flag) {
                return Err(PlanError::quoting("ERR Unexpected flag in script shebang: ", flag, ""));
            }
            if flag == b"no-writes" {
                manner = Manner::ReadsOnly;
            }
        }
    }
    Ok(manner)
}
