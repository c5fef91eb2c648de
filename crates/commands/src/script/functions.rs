//! FUNCTION and FCALL.
//!
//! All libraries live in one record of [`Db::FUNCTIONS`], a hash with a field for each library (its code) and
//! one for each function (its library, flags and description). A library's functions are known only once it
//! has run, so they could not be keys of a plan; and FCALL needs no more than this record to find its code.
//!
//! FCALL of a procedure that was registered for clients to call ([`Registry::register_native`]) is a call of that very
//! procedure, with the words after the number of keys as its arguments: [`function_call`] tells the two apart where
//! words become a call, so that nothing of FCALL is left in what is planned, logged and executed.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_model::args::{self, Arg};
use ordain_model::key::KeyHash;
use ordain_model::plan::{Planner, Plans};
use ordain_model::procedure::{FragmentContext, Procedure, Registry, ReplyContext, Target};
use ordain_model::value::HashValue;
use ordain_model::{Abort, Access, Args, ArgsBuilder, Datum, Db, PlanError, ProcedureId, SlotNo, Writer};

use super::vm::{self, Engine, Entry, Left, Programs, Refusal, Registered};
use super::{
    Encode, WRITES, check_key_count, execute, host, is_flush_mode, key_count, payload, plan_compute,
    push_all, sha1_hex, take_rights,
};
use crate::glob::Glob;
use crate::ids;
use crate::table::unknown_subcommand;
use crate::words::split_words;

/// The key of the record that holds all libraries.
const RECORD: &[u8] = b"functions";
/// What a field of a library begins with; its code follows the 40 digits of the code's SHA-1.
const LIBRARY: u8 = b'l';
/// What a field of a function begins with; its value is arguments: library, description, flags.
const FUNCTION: u8 = b'f';
/// The digits in front of a library's code.
const SHA_BYTES: usize = 40;

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
    registry.register(ids::FUNCTION_LOAD, "function.load", Arc::new(Load(programs.clone())));
    registry.register(ids::FUNCTION_DELETE, "function.delete", Arc::new(Delete));
    registry.register(ids::FUNCTION_FLUSH, "function.flush", Arc::new(Flush));
    registry.register(ids::FUNCTION_LIST, "function.list", Arc::new(List));
    registry.register(ids::FUNCTION_STATS, "function.stats", Arc::new(Stats));
    registry.register(ids::FUNCTION_DUMP, "function.dump", Arc::new(Dump));
    registry.register(ids::FUNCTION_RESTORE, "function.restore", Arc::new(Restore(programs.clone())));
}

/// Writes the arguments of FCALL, FCALL_RO and the procedures of FUNCTION: the record's key before them.
fn encode_record(args: &[&[u8]], builder: &mut ArgsBuilder<'_>) {
    builder.push(RECORD);
    push_all(args, builder);
}

/// What to submit for FUNCTION: `words` is what follows the name. The encoder is given the words after the
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

/// What to submit for FCALL, or for FCALL_RO if it must not write, and the words that the encoder is given. `words`
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

fn field(kind: u8, name: &[u8]) -> Vec<u8> {
    [&[kind], name].concat()
}

/// A function as it was registered.
struct Found<'a> {
    name: Cow<'a, [u8]>,
    library: &'a [u8],
    no_writes: bool,
}

/// Finds a function by its name, whose case does not matter.
fn function_of<'a>(hash: &'a HashValue, name: &[u8]) -> Option<Found<'a>> {
    let is_it = |of: &[u8]| {
        of.split_first().is_some_and(|(kind, of)| *kind == FUNCTION && of.eq_ignore_ascii_case(name))
    };
    let (of, about) = match hash.get(&field(FUNCTION, name)) {
        Some(about) => (Cow::Owned(name.to_vec()), about),
        None => hash.iter().find(|(of, _)| is_it(of)).map(|(of, about)| (Cow::Borrowed(&of[1..]), about))?,
    };
    let mut items = Args::parse(about)?.iter();
    let library = items.bytes();
    items.bytes();
    Some(Found { name: of, library, no_writes: items.any(|flag| flag.bytes == b"no-writes") })
}

/// FCALL and FCALL_RO. Arguments: the record's key, the function, the number of keys, keys, arguments.
struct Fcall {
    read_only: bool,
    /// The rights that its commands need stand before all that.
    limited: bool,
    /// What needs memory is refused.
    frugal: bool,
    programs: Arc<Programs>,
}

impl Fcall {
    const FETCH: u16 = 0;
    const COMPUTE: u16 = 1;
    /// The number of keys is none: the function is looked for all the same, as an error about it goes before.
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
            let (Datum::Bool(no_writes), rest) = Datum::split(cx.inputs.raw(0))? else { return None };
            let (Datum::Bulk(name), rest) = Datum::split(rest)? else { return None };
            let (Datum::Bulk(sha), rest) = Datum::split(rest)? else { return None };
            let (Datum::Bulk(code), _) = Datum::split(rest)? else { return None };
            Some((no_writes, sha, code, std::str::from_utf8(name).ok()?))
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

/// Plans a fragment on the record of all libraries.
fn plan_record(args: Args<'_>, access: Access, planner: &mut Planner<'_>) -> Result<(), PlanError> {
    let record: Arg<'_> = args.iter().next().ok_or(PlanError::SYNTAX)?;
    planner.key_in(Db::FUNCTIONS, 0, access, record).map(drop)
}

/// Fragments of FUNCTION LOAD and FUNCTION RESTORE. Libraries are compiled and run by a fragment that may be given away; what
/// comes of that is put into the record by another, which may not.
const PUT: u16 = 0;
const LOAD: u16 = 1;

/// Plans the two fragments that load libraries.
fn plan_load(args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
    let record = args.iter().next().ok_or(PlanError::SYNTAX)?;
    let loaded = planner.compute_alone(LOAD, KeyHash::of(record.bytes))?;
    planner.silent();
    planner.key_in(Db::FUNCTIONS, PUT, Access::Write, record)?;
    planner.input(loaded);
    Ok(())
}

/// Writes what came of loading libraries, for the fragment that puts them into the record.
fn tell_loaded(cx: &mut FragmentContext<'_>, loaded: Result<Vec<Library>, Refusal>) {
    match loaded {
        Ok(libraries) => {
            let mut out = Vec::new();
            Writer(&mut out).ok();
            libraries.iter().for_each(|library| Writer(&mut out).bulk(&library.encode()));
            cx.writer().raw(&out);
        }
        Err(Refusal::Error(text)) => cx.writer().error(text),
        Err(Refusal::Patience) => cx.locals.give_up(),
    }
}

/// The libraries that were loaded before, in their order.
///
/// # Errors
/// The error to show.
fn take_loaded(cx: &FragmentContext<'_>) -> Result<Vec<Library>, Vec<u8>> {
    const DAMAGED: &[u8] = b"ERR what a library registers was not understood; this is a bug";
    let mut libraries = Vec::new();
    let mut rest = match Datum::split(cx.inputs.raw(0)) {
        Some((Datum::Status(_), rest)) => rest,
        Some((Datum::Error(text), _)) => return Err(text.to_vec()),
        _ => return Err(DAMAGED.to_vec()),
    };
    while let Some((Datum::Bulk(library), tail)) = Datum::split(rest) {
        libraries.push(Library::decode(library).ok_or(DAMAGED)?);
        rest = tail;
    }
    Ok(libraries)
}

/// FUNCTION LOAD. Arguments: the record's key, REPLACE or nothing, the code.
struct Load(Arc<Programs>);

/// Whether a library is to be replaced, its code and its name.
fn load_request(args: Args<'_>) -> Result<(bool, &[u8], String), PlanError> {
    let mut words = args.iter();
    words.bytes();
    let mut replace = false;
    let mut code = words.bytes();
    for next in words {
        if !code.eq_ignore_ascii_case(b"replace") {
            return Err(PlanError::quoting("ERR Unknown option given: ", code, ""));
        }
        replace = true;
        code = next.bytes;
    }
    Ok((replace, code, library_name(code)?))
}

/// The name that the first line of a library gives it: `#!lua name=…`.
fn library_name(code: &[u8]) -> Result<String, PlanError> {
    const BAD_NAME: PlanError = PlanError::fixed(
        "ERR Library names can only contain letters, numbers, or underscores(_) and must be at least one \
         character long",
    );
    const BAD_LINE: PlanError = PlanError::fixed("ERR Invalid library metadata");
    if !code.starts_with(b"#!") {
        return Err(PlanError::fixed("ERR Missing library metadata"));
    }
    let end = code.iter().position(|b| *b == b'\n').ok_or(BAD_LINE)?;
    let (mut bytes, mut spans) = (Vec::new(), Vec::new());
    split_words(&code[..end], &mut bytes, |word| spans.push(word)).ok_or(BAD_LINE)?;
    let mut words = spans.into_iter().map(|word| &bytes[word]);
    let first = words.next().unwrap_or_default();
    let engine = first.strip_prefix(b"#!").unwrap_or_default();
    let mut name = None;
    for option in words {
        match option.split_at_checked("name=".len()).filter(|(key, _)| key.eq_ignore_ascii_case(b"name=")) {
            Some(_) if name.is_some() => {
                return Err(PlanError::fixed(
                    "ERR Invalid metadata value, name argument was given multiple times",
                ));
            }
            Some((_, given)) => name = Some(given),
            None => return Err(PlanError::quoting("ERR Invalid metadata value given: ", option, "")),
        }
    }
    let name = name.ok_or(PlanError::fixed("ERR Library name was not given"))?;
    let name =
        std::str::from_utf8(name).ok().filter(|name| host::is_name(name.as_bytes())).ok_or(BAD_NAME)?;
    if !engine.eq_ignore_ascii_case(b"lua") {
        return Err(PlanError::quoting("ERR Engine '", engine, "' not found"));
    }
    Ok(name.to_string())
}

impl Procedure for Load {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        load_request(args)?;
        plan_load(args, planner)
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if code == LOAD {
            let loaded = load(cx, &self.0);
            tell_loaded(cx, loaded.map(|library| vec![library]));
            return Ok(());
        }
        match put_loaded(cx) {
            Ok(name) => cx.writer().bulk(name.as_bytes()),
            Err(text) => cx.writer().error(text),
        }
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(cx.slot(cx.count - 1));
    }
}

fn refused(refusal: PlanError) -> Vec<u8> {
    refusal.0.into_owned()
}

fn load(cx: &mut FragmentContext<'_>, programs: &Programs) -> Result<Library, Refusal> {
    let (_, code, name) = load_request(cx.args).map_err(|refusal| Refusal::Error(refused(refusal)))?;
    let mut left = Left::new(vm::LOAD_BUDGET, cx.locals);
    Library::of(cx, programs, &name, code, &mut left)
}

fn put_loaded(cx: &mut FragmentContext<'_>) -> Result<String, Vec<u8>> {
    let (replace, code, name) = load_request(cx.args).map_err(refused)?;
    let library = field(LIBRARY, name.as_bytes());
    let old = cx.cell().hash().is_some_and(|hash| hash.get(&library).is_some());
    if old && !replace {
        return Err(format!("ERR Library '{name}' already exists").into());
    }
    let loaded = take_loaded(cx)?;
    for library in &loaded {
        library.check_functions(cx, |other| other == name.as_bytes())?;
    }
    if old {
        remove(cx, &name);
    }
    loaded.iter().for_each(|library| library.put(cx, code));
    Ok(name)
}

/// A library that was loaded, and stands in no record yet.
struct Library {
    name: String,
    sha: [u8; SHA_BYTES],
    functions: Vec<Function>,
}

/// A function of a library, and what its field is to hold.
struct Function {
    name: String,
    about: Vec<u8>,
}

impl Library {
    /// Loads a library within some units of work, which are counted down.
    fn of(
        cx: &mut FragmentContext<'_>,
        programs: &Programs,
        name: &str,
        code: &[u8],
        left: &mut Left,
    ) -> Result<Library, Refusal> {
        let sha = sha1_hex(code);
        let functions = cx.locals.get(Engine::default).load(programs, &sha, code, cx.seed, left)?;
        if functions.is_empty() {
            return Err(Refusal::Error(b"ERR No functions registered".to_vec()));
        }
        let functions = functions.into_iter().map(|Registered { name: function, description, flags }| {
            let mut about: Vec<&[u8]> = vec![name.as_bytes(), description.as_deref().unwrap_or_default()];
            about.extend(flags.iter().map(String::as_bytes));
            Function { about: args::encode(&about), name: function }
        });
        Ok(Library { name: name.to_string(), sha, functions: functions.collect() })
    }

    /// All of it as arguments: name, SHA-1 of the code, then of each function its name and what its field is to hold.
    fn encode(&self) -> Vec<u8> {
        let functions = self.functions.iter().flat_map(|f| [f.name.as_bytes(), &f.about]);
        let items: Vec<&[u8]> = [self.name.as_bytes(), &self.sha].into_iter().chain(functions).collect();
        args::encode(&items)
    }

    fn decode(encoded: &[u8]) -> Option<Library> {
        let mut items = Args::parse(encoded)?.iter();
        let text = |arg: Arg<'_>| String::from_utf8(arg.bytes.to_vec()).ok();
        let (name, sha) = (text(items.next()?)?, items.bytes().try_into().ok()?);
        let mut functions = Vec::new();
        while let Some(name) = items.next() {
            functions.push(Function { name: text(name)?, about: items.bytes().to_vec() });
        }
        Some(Library { name, sha, functions })
    }

    /// Refuses functions of which the name is taken, but by libraries that give way.
    fn check_functions(
        &self,
        cx: &FragmentContext<'_>,
        gives_way: impl Fn(&[u8]) -> bool,
    ) -> Result<(), Vec<u8>> {
        for Function { name: function, .. } in &self.functions {
            let other = cx.cell().hash().and_then(|hash| function_of(hash, function.as_bytes()));
            let taken = other.is_some_and(|found| !gives_way(found.library));
            if taken || cx.registry.find_native(function.as_bytes()).is_some() {
                return Err(taken_function(function));
            }
        }
        Ok(())
    }

    fn put(&self, cx: &mut FragmentContext<'_>, code: &[u8]) {
        let library = field(LIBRARY, self.name.as_bytes());
        cx.cell_mut().set_field(&library, &[&self.sha, code].concat());
        for Function { name: function, about } in &self.functions {
            cx.cell_mut().set_field(&field(FUNCTION, function.as_bytes()), about);
        }
    }
}

fn taken_function(name: &str) -> Vec<u8> {
    format!("ERR Function {name} already exists").into()
}

/// FUNCTION DUMP. Arguments: the record's key. Libraries are in the order of their names.
struct Dump;

impl Procedure for Dump {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        plan_record(args, Access::Read, planner)
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let Target::Read(cell) = &cx.target else { return Ok(()) };
        let mut libraries: Vec<(&[u8], &[u8])> = (cell.hash().into_iter().flat_map(HashValue::iter))
            .filter(|(field, _)| field.first() == Some(&LIBRARY))
            .map(|(field, value)| (field, value.get(SHA_BYTES..).unwrap_or_default()))
            .collect();
        libraries.sort_unstable();
        let sources = libraries.iter().map(|(_, code)| *code);
        let bytes = payload::bytes(sources.clone());
        if bytes > cx.most {
            Writer(cx.out).too_long();
            return Ok(());
        }
        Writer(cx.out).bulk_of(|out| {
            // At once: a payload that grows by halves is copied as often, and may take twice the memory.
            out.reserve_exact(bytes);
            payload::write(sources, out);
        });
        Ok(())
    }
}

/// The policy of FUNCTION RESTORE towards libraries that exist.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Policy {
    /// They stay, and none of theirs may be restored.
    Append,
    /// A library of the payload replaces the one of its name.
    Replace,
    /// All of them go.
    Flush,
}

/// FUNCTION RESTORE. Arguments: the record's key, the payload, a policy or nothing.
struct Restore(Arc<Programs>);

impl Restore {
    fn request(args: Args<'_>) -> Result<(&[u8], Policy), PlanError> {
        let policy = match args.get(2).map(<[u8]>::to_ascii_lowercase).as_deref() {
            None | Some(b"append") => Policy::Append,
            Some(b"replace") => Policy::Replace,
            Some(b"flush") => Policy::Flush,
            Some(_) => {
                return Err(PlanError::fixed(
                    "ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.",
                ));
            }
        };
        Ok((args.get(1).ok_or(PlanError::SYNTAX)?, policy))
    }

    /// Loads the libraries of the payload, in its order.
    fn load(cx: &mut FragmentContext<'_>, programs: &Programs) -> Result<Vec<Library>, Refusal> {
        let refused = |refusal: PlanError| Refusal::Error(refused(refusal));
        let (payload, _) = Restore::request(cx.args).map_err(refused)?;
        let mut left = Left::new(vm::RESTORE_BUDGET, cx.locals);
        let mut libraries: Vec<Library> = Vec::new();
        let (mut names, mut functions) = (BTreeSet::new(), BTreeSet::new());
        for source in payload::read(payload) {
            let source = source.map_err(refused)?;
            let name = library_name(&source).map_err(refused)?;
            if !names.insert(name.clone()) {
                return Err(Refusal::Error(format!("ERR Library '{name}' already exists").into()));
            }
            let library = Library::of(cx, programs, &name, &source, &mut left)?;
            let lower = |function: &Function| function.name.to_ascii_lowercase();
            if let Some(taken) =
                library.functions.iter().find(|function| functions.contains(&lower(function)))
            {
                return Err(Refusal::Error(taken_function(&taken.name)));
            }
            functions.extend(library.functions.iter().map(lower));
            libraries.push(library);
        }
        Ok(libraries)
    }

    /// All of it or nothing: what is wrong is found before anything is changed.
    fn put(cx: &mut FragmentContext<'_>) -> Result<(), Vec<u8>> {
        let (payload, policy) = Restore::request(cx.args).map_err(refused)?;
        let loaded = take_loaded(cx)?;
        let sources: Vec<Cow<'_, [u8]>> =
            payload::read(payload).collect::<Result<_, _>>().map_err(refused)?;
        let libraries: BTreeMap<&str, (&Library, &[u8])> = (loaded.iter().zip(&sources))
            .map(|(library, source)| (&*library.name, (library, &**source)))
            .collect();
        let is_there = |cx: &FragmentContext<'_>, name: &str| {
            cx.cell().hash().is_some_and(|hash| hash.get(&field(LIBRARY, name.as_bytes())).is_some())
        };
        if policy == Policy::Append
            && let Some(name) = libraries.keys().find(|name| is_there(cx, name))
        {
            return Err(format!("ERR Library {name} already exists").into());
        }
        for (library, _) in libraries.values() {
            library.check_functions(cx, |other| {
                policy == Policy::Flush
                    || std::str::from_utf8(other).is_ok_and(|other| libraries.contains_key(other))
            })?;
        }
        if policy == Policy::Flush && cx.cell().value.is_some() {
            cx.cell_mut().delete();
        }
        for (name, (library, source)) in &libraries {
            remove(cx, name);
            library.put(cx, source);
        }
        Ok(())
    }
}

impl Procedure for Restore {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let (payload, _) = Restore::request(args)?;
        payload::check(payload)?;
        plan_load(args, planner)
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if code == LOAD {
            let loaded = Restore::load(cx, &self.0);
            tell_loaded(cx, loaded);
            return Ok(());
        }
        match Restore::put(cx) {
            Ok(()) => cx.writer().ok(),
            Err(text) => cx.writer().error(text),
        }
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(cx.slot(cx.count - 1));
    }
}

/// Removes a library and its functions; whether it was there.
fn remove(cx: &mut FragmentContext<'_>, name: &str) -> bool {
    let Some(hash) = cx.cell().hash() else { return false };
    let functions: Vec<Vec<u8>> =
        functions_of(hash, name.as_bytes()).map(|(function, _)| field(FUNCTION, function)).collect();
    for function in functions {
        cx.cell_mut().remove_field(&function);
    }
    cx.cell_mut().remove_field(&field(LIBRARY, name.as_bytes())).is_some()
}

/// The functions of a library with what is noted of them, in the record's order.
fn functions_of<'a>(hash: &'a HashValue, library: &[u8]) -> impl Iterator<Item = (&'a [u8], Args<'a>)> {
    hash.iter().filter_map(move |(name, about)| match name.split_first() {
        Some((&FUNCTION, name)) => {
            let about = Args::parse(about)?;
            (about.get(0) == Some(library)).then_some((name, about))
        }
        _ => None,
    })
}

/// FUNCTION DELETE. Arguments: the record's key, the library.
struct Delete;

impl Procedure for Delete {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        plan_record(args, Access::Write, planner)
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let name = cx.args.get(1).and_then(|name| std::str::from_utf8(name).ok()).unwrap_or_default();
        if remove(cx, name) {
            cx.writer().ok();
        } else {
            cx.writer().error("ERR Library not found");
        }
        Ok(())
    }
}

/// FUNCTION FLUSH. Arguments: the record's key.
struct Flush;

impl Procedure for Flush {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        plan_record(args, Access::Write, planner)
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if cx.cell().value.is_some() {
            cx.cell_mut().delete();
        }
        cx.writer().ok();
        Ok(())
    }
}

/// FUNCTION STATS. Arguments: the record's key. A transaction is over before another asks, so no script is ever running.
struct Stats;

impl Procedure for Stats {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        plan_record(args, Access::Read, planner)
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let count = |kind: u8| {
            let fields = cx.cell().hash().into_iter().flat_map(HashValue::iter);
            fields.filter(|(field, _)| field.first() == Some(&kind)).count() as i64
        };
        let (libraries, functions) = (count(LIBRARY), count(FUNCTION));
        let mut w = cx.writer();
        w.map(2);
        w.bulk(b"running_script");
        w.nil();
        w.bulk(b"engines");
        w.map(1);
        w.bulk(b"LUA");
        w.map(2);
        w.bulk(b"libraries_count");
        w.int(libraries);
        w.bulk(b"functions_count");
        w.int(functions);
        Ok(())
    }
}

/// FUNCTION LIST. Arguments: the record's key, then `LIBRARYNAME pattern` and `WITHCODE`.
struct List;

/// The pattern of library names, and whether their code is asked for.
fn list_request(args: Args<'_>) -> Result<(Option<&[u8]>, bool), PlanError> {
    let (mut pattern, mut with_code) = (None, false);
    let mut words = args.iter().skip(1);
    while let Some(word) = words.next() {
        if word.bytes.eq_ignore_ascii_case(b"withcode") && !with_code {
            with_code = true;
        } else if word.bytes.eq_ignore_ascii_case(b"libraryname") && pattern.is_none() {
            let given = words.next().ok_or(PlanError::fixed("ERR library name argument was not given"))?;
            Glob::check(given.bytes)?;
            pattern = Some(given.bytes);
        } else {
            return Err(PlanError::quoting("ERR Unknown argument ", word.bytes, ""));
        }
    }
    Ok((pattern, with_code))
}

impl Procedure for List {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        list_request(args)?;
        plan_record(args, Access::Read, planner)
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let (pattern, with_code) = list_request(cx.args).unwrap_or_default();
        let mut out = Vec::new();
        match cx.cell().hash() {
            None => Writer(&mut out).array(0),
            Some(hash) => list(hash, pattern, with_code, &mut out),
        }
        cx.writer().raw(&out);
        Ok(())
    }
}

fn list(hash: &HashValue, pattern: Option<&[u8]>, with_code: bool, out: &mut Vec<u8>) {
    // It was checked when this was planned.
    let glob = pattern.and_then(|pattern| Glob::new(pattern).ok());
    let mut libraries: Vec<(&[u8], &[u8])> = hash
        .iter()
        .filter_map(|(field, value)| match field.split_first() {
            Some((&LIBRARY, name)) if glob.as_ref().is_none_or(|glob| glob.matches(name)) => {
                Some((name, value))
            }
            _ => None,
        })
        .collect();
    libraries.sort_unstable();
    let mut w = Writer(out);
    w.array(libraries.len());
    for (library, value) in libraries {
        w.map(if with_code { 4 } else { 3 });
        w.bulk(b"library_name");
        w.bulk(library);
        w.bulk(b"engine");
        w.bulk(b"LUA");
        w.bulk(b"functions");
        let functions: Vec<(&[u8], Args<'_>)> = functions_of(hash, library).collect();
        w.array(functions.len());
        for (name, about) in functions {
            w.map(3);
            w.bulk(b"name");
            w.bulk(name);
            w.bulk(b"description");
            match about.get(1) {
                None | Some([]) => w.nil(),
                Some(text) => w.bulk(text),
            }
            w.bulk(b"flags");
            w.set(about.len().saturating_sub(2));
            about.iter().skip(2).for_each(|flag| w.bulk(flag.bytes));
        }
        if with_code {
            w.bulk(b"library_code");
            w.bulk(value.get(SHA_BYTES..).unwrap_or_default());
        }
    }
}
