//! FUNCTION and FCALL.
//!
//! All libraries live in one record of [`Db::FUNCTIONS`], a hash with a field for each library (its code) and
//! one for each function (its library, flags and description). A library's functions are known only once it
//! has run, so they could not be keys of a plan; and FCALL needs no more than this record to find its code.
//!
//! FCALL of a procedure that was registered for clients to call ([`Registry::register_native`]) is a call of that very
//! procedure, with the words after the number of keys as its arguments: [`function_call`] distinguishes the two where
//! words become a call, so that nothing of FCALL is left in what is planned, logged and executed.

mod loading;
mod record;

use std::sync::Arc;

use ordain_model::args;
use ordain_model::datum::DatumReader;
use ordain_model::plan::{Planner, Plans};
use ordain_model::procedure::{FragmentContext, Procedure, Registry, ReplyContext};
use ordain_model::{Abort, Access, Args, ArgsBuilder, Db, PlanError, ProcedureId, SlotNo, Writer};

use super::vm::{Entry, Programs};
use super::{
    Encode, WRITES, check_key_count, execute, is_flush_mode, key_count, plan_compute, push_all, take_rights,
};
use crate::ids;
use crate::table::unknown_subcommand;
use record::{LIBRARY, SHA_BYTES, field, function_of};

/// The key of the record that holds all libraries.
const RECORD: &[u8] = b"functions";

pub(super) fn register(registry: &mut Registry, programs: &Arc<Programs>) {
    let fcall = |read_only, limited, frugal| {
        Arc::new(Fcall { read_only, limited, frugal, programs: programs.clone() })
    };
    registry.register(ids::FCALL, "fcall", fcall(false, false, false));
    registry.register(ids::FCALL_RO, "fcall_ro", fcall(true, false, false));
    registry.register(ids::FCALL_LIMITED, "fcall.limited", fcall(false, true, false));
    registry.register(ids::FCALL_RO_LIMITED, "fcall_ro.limited", fcall(true, true, false));
    registry.register(ids::FCALL_FRUGAL, "fcall.frugal", fcall(false, false, true));
    registry.register(ids::FCALL_LIMITED_FRUGAL, "fcall.limited.frugal", fcall(false, true, true));
    record::register(registry);
    loading::register(registry, programs);
}

/// Writes the arguments of FCALL, FCALL_RO and the procedures of FUNCTION: the record's key before them.
fn encode_record(args: &[&[u8]], builder: &mut ArgsBuilder<'_>) {
    builder.push(RECORD);
    push_all(args, builder);
}

/// The procedure to submit for FUNCTION: `words` is what follows the name. The encoder is given the words after the
/// subcommand.
///
/// # Errors
/// The error Redis gives for an unknown subcommand or wrong arguments.
pub fn function_subcommand(words: &[&[u8]]) -> Result<(ProcedureId, Encode), PlanError> {
    let (name, rest) = words.split_first().ok_or_else(|| PlanError::arity("function"))?;
    let id = match (&*name.to_ascii_lowercase(), rest) {
        (b"load", []) => return Err(PlanError::arity("function|load")),
        (b"load", _) => ids::FUNCTION_LOAD,
        (b"delete", [_]) => ids::FUNCTION_DELETE,
        (b"delete", _) => return Err(PlanError::arity("function|delete")),
        (b"list", _) => ids::FUNCTION_LIST,
        (b"stats", []) => ids::FUNCTION_STATS,
        (b"dump", []) => ids::FUNCTION_DUMP,
        (b"dump", _) => return Err(PlanError::arity("function|dump")),
        (b"restore", []) => return Err(PlanError::arity("function|restore")),
        (b"restore", [_] | [_, _]) => ids::FUNCTION_RESTORE,
        (b"flush", []) => ids::FUNCTION_FLUSH,
        (b"flush", [mode]) if is_flush_mode(mode) => ids::FUNCTION_FLUSH,
        (b"flush", [_]) => {
            return Err(PlanError::fixed("ERR FUNCTION FLUSH only supports SYNC|ASYNC option"));
        }
        (b"flush" | b"restore", _) => {
            let before = "ERR unknown subcommand or wrong number of arguments for '";
            return Err(PlanError::quoting(before, name, "'. Try FUNCTION HELP."));
        }
        _ => return Err(unknown_subcommand("function", name)),
    };
    Ok((id, encode_record))
}

const NOT_FOUND: PlanError = PlanError::fixed("ERR Function not found");
const BAD_COUNT: PlanError = PlanError::fixed("ERR Bad number of keys provided");

/// The procedure to submit for FCALL, or for FCALL_RO if it must not write, and the words that the encoder is given. `words`
/// is what follows the command: a name, the number of keys, keys, arguments.
///
/// # Errors
/// Of a native procedure: the error Redis gives for a wrong number of keys or for one that writes where it must
/// not, or the procedure's own refusal. What is wrong with the call of a library's function shows when it is planned
/// and run.
pub fn function_call<'w, 'a>(
    registry: &Registry,
    read_only: bool,
    words: &'w [&'a [u8]],
) -> Result<(ProcedureId, Encode, &'w [&'a [u8]]), PlanError> {
    let native = words.first().and_then(|name| registry.find_native(name));
    let (Some(id), [_, count, args @ ..]) = (native, words) else {
        return Ok((if read_only { ids::FCALL_RO } else { ids::FCALL }, encode_record, words));
    };
    check_key_count(count, args.len(), BAD_COUNT)?;
    if read_only {
        check_reads_only(registry, id, args)?;
    }
    Ok((id, push_all, args))
}

/// Refuses a call of a native procedure that is not known to leave everything as it is.
fn check_reads_only(registry: &Registry, id: ProcedureId, args: &[&[u8]]) -> Result<(), PlanError> {
    if registry.get(id).is_some_and(|procedure| procedure.is_dependent()) {
        return Err(PlanError::fixed(
            "ERR a procedure that finds its keys while it runs cannot be called with FCALL_RO: use FCALL",
        ));
    }
    let (encoded, mut plans) = (args::encode(args), Plans::default());
    let view = Args::parse(&encoded).ok_or(PlanError::SYNTAX)?;
    // What a plan reads and writes is the same in every database.
    Planner::plan(registry, id, Db(0), view, &mut plans)?;
    if plans.fragments.iter().any(|fragment| fragment.writes()) { Err(WRITES) } else { Ok(()) }
}

/// FCALL and FCALL_RO. Arguments: the record's key, the function, the number of keys, keys, arguments.
struct Fcall {
    read_only: bool,
    /// The rights that its commands need stand before all that.
    limited: bool,
    /// True if commands that need memory are refused.
    frugal: bool,
    programs: Arc<Programs>,
}

impl Fcall {
    const FETCH: u16 = 0;
    const COMPUTE: u16 = 1;
    /// The number of keys is none: the function is searched for all the same, as an error about it goes first.
    const REFUSE: u16 = 2;
}

impl Procedure for Fcall {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut words = args.iter();
        take_rights(&mut words, self.limited);
        let record = words.next().ok_or(PlanError::SYNTAX)?;
        let name = words.bytes();
        let Ok(count) = key_count(&mut words, BAD_COUNT) else {
            return planner.key_in(Db::FUNCTIONS, Fcall::REFUSE, Access::Read, record).map(drop);
        };
        let script = planner.key_in(Db::FUNCTIONS, Fcall::FETCH, Access::Read, record)?;
        planner.silent();
        let access = if self.read_only { Access::Read } else { Access::Write };
        plan_compute(planner, Fcall::COMPUTE, access, Some(script), name, words, count)
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let mut words = cx.args.iter();
        let rights = take_rights(&mut words, self.limited);
        words.bytes();
        let name = words.bytes();
        if code == Fcall::REFUSE {
            let is_there = cx.cell().hash().is_some_and(|hash| function_of(hash, name).is_some());
            let refusal = key_count(&mut words, BAD_COUNT).err().filter(|_| is_there).unwrap_or(NOT_FOUND);
            cx.writer().error(&refusal.0);
            return Ok(());
        }
        if code == Fcall::FETCH {
            let mut slot = Vec::new();
            if let Some(hash) = cx.cell().hash()
                && let Some(found) = function_of(hash, name)
                && let Some((sha, code)) =
                    hash.get(&field(LIBRARY, found.library)).and_then(|l| l.split_at_checked(SHA_BYTES))
            {
                let mut w = Writer(&mut slot);
                w.bool(found.no_writes);
                w.bulk(&found.name);
                w.bulk(sha);
                w.bulk(code);
            }
            cx.writer().raw(&slot);
            return Ok(());
        }
        let fetched = || {
            let mut values = DatumReader(cx.inputs.raw(0));
            let (no_writes, name) = (values.bool()?, std::str::from_utf8(values.bulk()?).ok()?);
            Some((no_writes, values.bulk()?, values.bulk()?, name))
        };
        match fetched() {
            None => cx.writer().error(&NOT_FOUND.0),
            Some((false, ..)) if self.read_only => {
                cx.writer().error(&WRITES.0);
            }
            Some((no_writes, sha, code, name)) => {
                let how = (self.read_only || no_writes, self.frugal);
                execute(cx, &self.programs, (sha, code, Entry::Function(name)), words, how, rights);
            }
        }
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(cx.slot(cx.count - 1));
    }

    fn abort_reply(&self, abort: Abort, _slot: SlotNo, _cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).abort(abort);
    }
}
