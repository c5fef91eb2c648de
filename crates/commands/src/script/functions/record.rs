//! The record that holds all function libraries, and the procedures of FUNCTION that read or change it as it is.

use std::borrow::Cow;
use std::sync::Arc;

use ordain_model::procedure::{FragmentContext, Procedure, Registry, Target};
use ordain_model::table_procedure::any_args;
use ordain_model::value::HashValue;
use ordain_model::{Abort, Access, Args, Db, PlanError, Planner, Writer};

use crate::glob::Glob;
use crate::ids;
use crate::script::payload;

/// The first byte of a library's field; its code follows the 40 digits of the code's SHA-1.
pub(super) const LIBRARY: u8 = b'l';
/// The first byte of a function's field; its value is arguments: library, description, flags.
pub(super) const FUNCTION: u8 = b'f';
/// The digits in front of a library's code.
pub(super) const SHA_BYTES: usize = 40;

/// Adds the procedures.
pub(super) fn register(registry: &mut Registry) {
    registry.register(ids::FUNCTION_DELETE, "function.delete", writes(any_args, delete));
    registry.register(ids::FUNCTION_FLUSH, "function.flush", writes(any_args, flush));
    registry.register(ids::FUNCTION_LIST, "function.list", reads(check_list, list));
    registry.register(ids::FUNCTION_STATS, "function.stats", reads(any_args, stats));
    registry.register(ids::FUNCTION_DUMP, "function.dump", reads(any_args, dump));
}

/// A procedure of one fragment on the record. Its arguments begin with the record's key.
struct OnRecord {
    access: Access,
    check: Check,
    run: fn(&mut FragmentContext<'_>),
}

type Check = fn(Args<'_>) -> Result<(), PlanError>;

fn reads(check: Check, run: fn(&mut FragmentContext<'_>)) -> Arc<OnRecord> {
    Arc::new(OnRecord { access: Access::Read, check, run })
}

fn writes(check: Check, run: fn(&mut FragmentContext<'_>)) -> Arc<OnRecord> {
    Arc::new(OnRecord { access: Access::Write, check, run })
}

impl Procedure for OnRecord {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        (self.check)(args)?;
        let record = args.iter().next().ok_or(PlanError::SYNTAX)?;
        planner.key_in(Db::FUNCTIONS, 0, self.access, record).map(drop)
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        (self.run)(cx);
        Ok(())
    }
}

pub(super) fn field(kind: u8, name: &[u8]) -> Vec<u8> {
    [&[kind], name].concat()
}

/// A function as it was registered.
pub(super) struct Found<'a> {
    pub(super) name: Cow<'a, [u8]>,
    pub(super) library: &'a [u8],
    pub(super) no_writes: bool,
}

/// Finds a function by its name, whose case does not matter.
pub(super) fn function_of<'a>(hash: &'a HashValue, name: &[u8]) -> Option<Found<'a>> {
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

/// Removes a library and its functions; whether it was there.
pub(super) fn remove(cx: &mut FragmentContext<'_>, name: &str) -> bool {
    let Some(hash) = cx.cell().hash() else { return false };
    let functions: Vec<Vec<u8>> =
        functions_of(hash, name.as_bytes()).map(|(function, _)| field(FUNCTION, function)).collect();
    for function in functions {
        cx.cell_mut().remove_field(&function);
    }
    cx.cell_mut().remove_field(&field(LIBRARY, name.as_bytes())).is_some()
}

/// FUNCTION DELETE. Arguments: the record's key, the library.
fn delete(cx: &mut FragmentContext<'_>) {
    let name = cx.args.get(1).and_then(|name| std::str::from_utf8(name).ok()).unwrap_or_default();
    if remove(cx, name) {
        cx.writer().ok();
    } else {
        cx.writer().error("ERR Library not found");
    }
}

/// FUNCTION FLUSH. Arguments: the record's key.
fn flush(cx: &mut FragmentContext<'_>) {
    if cx.cell().value.is_some() {
        cx.cell_mut().delete();
    }
    cx.writer().ok();
}

/// FUNCTION STATS. Arguments: the record's key. A transaction is over before another asks, so no script is ever running.
fn stats(cx: &mut FragmentContext<'_>) {
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
}

/// FUNCTION DUMP. Arguments: the record's key. Libraries are in the order of their names.
fn dump(cx: &mut FragmentContext<'_>) {
    let Target::Read(cell) = &cx.target else { return };
    let mut libraries: Vec<(&[u8], &[u8])> = (cell.hash().into_iter().flat_map(HashValue::iter))
        .filter(|(field, _)| field.first() == Some(&LIBRARY))
        .map(|(field, value)| (field, value.get(SHA_BYTES..).unwrap_or_default()))
        .collect();
    libraries.sort_unstable();
    let sources = libraries.iter().map(|(_, code)| *code);
    let bytes = payload::bytes(sources.clone());
    if bytes > cx.most {
        Writer(cx.out).too_long();
        return;
    }
    Writer(cx.out).bulk_of(|out| {
        // At once: a payload that grows by halves is copied as often, and may take twice the memory.
        out.reserve_exact(bytes);
        payload::write(sources, out);
    });
}

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

fn check_list(args: Args<'_>) -> Result<(), PlanError> {
    list_request(args).map(drop)
}

/// FUNCTION LIST. Arguments: the record's key, then `LIBRARYNAME pattern` and `WITHCODE`.
fn list(cx: &mut FragmentContext<'_>) {
    let (pattern, with_code) = list_request(cx.args).unwrap_or_default();
    let mut out = Vec::new();
    match cx.cell().hash() {
        None => Writer(&mut out).array(0),
        Some(hash) => write_list(hash, pattern, with_code, &mut out),
    }
    cx.writer().raw(&out);
}

fn write_list(hash: &HashValue, pattern: Option<&[u8]>, with_code: bool, out: &mut Vec<u8>) {
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
