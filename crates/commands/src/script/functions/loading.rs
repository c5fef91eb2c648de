//! FUNCTION LOAD and FUNCTION RESTORE: libraries are compiled and run, and what they register is put into the record.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_model::args::{self, Arg};
use ordain_model::datum::DatumReader;
use ordain_model::procedure::{FragmentContext, Procedure, Registry, ReplyContext};
use ordain_model::{Abort, Access, Args, Datum, Db, PlanError, Planner, Writer};

use super::record::{FUNCTION, LIBRARY, SHA_BYTES, field, function_of, remove};
use crate::ids;
use crate::script::vm::{self, Engine, Left, Programs, Refusal, Registered};
use crate::script::{host, payload, sha1_hex};
use crate::words::split_words;

/// Adds the procedures.
pub(super) fn register(registry: &mut Registry, programs: &Arc<Programs>) {
    let loading = |check, load, put| Arc::new(Loading { programs: programs.clone(), check, load, put });
    let load = loading(|args| load_request(args).map(drop), load_one, put_one);
    registry.register(ids::FUNCTION_LOAD, "function.load", load);
    registry.register(ids::FUNCTION_RESTORE, "function.restore", loading(check_restore, load_all, put_all));
}

/// A procedure that loads libraries. They are compiled and run by a fragment that may be given away; what comes of that is
/// put into the record by another, which may not.
struct Loading {
    programs: Arc<Programs>,
    check: fn(Args<'_>) -> Result<(), PlanError>,
    load: fn(&mut FragmentContext<'_>, &Programs) -> Result<Vec<Library>, Refusal>,
    /// Puts what was loaded into the record and answers, or gives the error to show.
    put: fn(&mut FragmentContext<'_>) -> Result<(), Vec<u8>>,
}

impl Loading {
    const PUT: u16 = 0;
    const LOAD: u16 = 1;
}

impl Procedure for Loading {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        (self.check)(args)?;
        let record = args.iter().next().ok_or(PlanError::SYNTAX)?;
        let loaded = planner.compute_alone(Loading::LOAD, planner.hash_of(record.bytes))?;
        planner.silent();
        planner.key_in(Db::FUNCTIONS, Loading::PUT, Access::Write, record)?;
        planner.input(loaded);
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if code == Loading::LOAD {
            let loaded = (self.load)(cx, &self.programs);
            write_loaded(cx, loaded);
        } else if let Err(text) = (self.put)(cx) {
            cx.writer().error(text);
        }
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(cx.slot(cx.count - 1));
    }
}

/// Writes what came of loading libraries, for the fragment that puts them into the record.
fn write_loaded(cx: &mut FragmentContext<'_>, loaded: Result<Vec<Library>, Refusal>) {
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
    let mut values = DatumReader(cx.inputs.raw(0));
    match values.next() {
        Some(Datum::Status(_)) => {}
        Some(Datum::Error(text)) => return Err(text.to_vec()),
        _ => return Err(DAMAGED.to_vec()),
    }
    while let Some(library) = values.bulk() {
        libraries.push(Library::decode(library).ok_or(DAMAGED)?);
    }
    Ok(libraries)
}

/// The request of FUNCTION LOAD: whether a library is to be replaced, its code and its name.
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

fn refused(refusal: PlanError) -> Vec<u8> {
    refusal.0.into_owned()
}

/// Loads the library of FUNCTION LOAD.
fn load_one(cx: &mut FragmentContext<'_>, programs: &Programs) -> Result<Vec<Library>, Refusal> {
    let (_, code, name) = load_request(cx.args).map_err(|refusal| Refusal::Error(refused(refusal)))?;
    let mut left = Left::new(vm::LOAD_BUDGET, cx.locals);
    Ok(vec![Library::of(cx, programs, &name, code, &mut left)?])
}

fn put_one(cx: &mut FragmentContext<'_>) -> Result<(), Vec<u8>> {
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
    cx.writer().bulk(name.as_bytes());
    Ok(())
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

    /// The library as arguments: name, SHA-1 of the code, then of each function its name and what its field is to hold.
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

/// The policy of FUNCTION RESTORE towards libraries that exist.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Policy {
    /// Libraries that exist stay, and none of their names may be restored.
    Append,
    /// A library of the payload replaces the one of its name.
    Replace,
    /// All libraries that exist go.
    Flush,
}

fn restore_request(args: Args<'_>) -> Result<(&[u8], Policy), PlanError> {
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
fn load_all(cx: &mut FragmentContext<'_>, programs: &Programs) -> Result<Vec<Library>, Refusal> {
    let refused = |refusal: PlanError| Refusal::Error(refused(refusal));
    let (payload, _) = restore_request(cx.args).map_err(refused)?;
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
        if let Some(taken) = library.functions.iter().find(|function| functions.contains(&lower(function))) {
            return Err(Refusal::Error(taken_function(&taken.name)));
        }
        functions.extend(library.functions.iter().map(lower));
        libraries.push(library);
    }
    Ok(libraries)
}

/// Puts all libraries or none: what is wrong is found before anything is changed.
fn put_all(cx: &mut FragmentContext<'_>) -> Result<(), Vec<u8>> {
    let (payload, policy) = restore_request(cx.args).map_err(refused)?;
    let loaded = take_loaded(cx)?;
    let sources: Vec<Cow<'_, [u8]>> = payload::read(payload).collect::<Result<_, _>>().map_err(refused)?;
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
    cx.writer().ok();
    Ok(())
}

fn check_restore(args: Args<'_>) -> Result<(), PlanError> {
    payload::check(restore_request(args)?.0)
}
