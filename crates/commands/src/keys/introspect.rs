//! OBJECT and MEMORY: containers of subcommands, of which most look at one key.

use std::iter;
use std::sync::Arc;

use ordain_model::value::EVICTED;
use ordain_model::{
    Abort, Access, ArgIter, Args, Cell, FragmentContext, KeyHash, PlanError, Planner, Procedure, Registry,
    StringForm, Target, Value, Writer,
};
use smallvec::SmallVec;

use crate::ids;
use crate::number::parse_i64;
use crate::shape::{NOT_INTEGER, Refusal, SYNTAX, TOO_FEW, answer};
use crate::table::{check_subcommand, lookup};

pub(super) fn register(registry: &mut Registry) {
    registry.register(ids::OBJECT, "object", Arc::new(Container { name: "object", subcommands: OBJECT }));
    registry.register(ids::MEMORY, "memory", Arc::new(Container { name: "memory", subcommands: MEMORY }));
}

struct Container {
    name: &'static str,
    /// The subcommands by name.
    subcommands: &'static [(&'static str, Code)],
}

enum Code {
    /// Checks the arguments after the key; looks at a record, which exists, given the key's length.
    Key(fn(ArgIter<'_>) -> Result<(), Refusal>, fn(&Cell, usize, &mut Writer<'_>) -> Result<(), Refusal>),
    /// Looks at nothing.
    Text(fn(&mut Writer<'_>)),
    /// The node's own to answer, so only a script gets here.
    OfNode,
}

const OBJECT: &[(&str, Code)] = &[
    ("encoding", Code::Key(nothing_more, encoding)),
    ("refcount", Code::Key(nothing_more, refcount)),
    ("idletime", Code::Key(nothing_more, idletime)),
    ("freq", Code::Key(nothing_more, freq)),
    ("help", Code::Text(object_help)),
];

const MEMORY: &[(&str, Code)] = &[
    ("usage", Code::Key(check_samples, usage)),
    ("doctor", Code::Text(doctor)),
    ("stats", Code::OfNode),
    ("malloc-stats", Code::OfNode),
    ("purge", Code::Text(|w| w.ok())),
    ("help", Code::Text(memory_help)),
];

impl Procedure for Container {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let container = lookup(self.name.as_bytes()).ok_or(SYNTAX)?;
        let words: SmallVec<[&[u8]; 4]> =
            iter::once(self.name.as_bytes()).chain(args.iter().map(|arg| arg.bytes)).collect();
        check_subcommand(container, &words)?;
        let mut rest = args.iter();
        let word = rest.next().ok_or(TOO_FEW)?.bytes;
        let named = |(name, _): &(&str, Code)| word.eq_ignore_ascii_case(name.as_bytes());
        let at = self.subcommands.iter().position(named).ok_or(SYNTAX)?;
        match self.subcommands[at].1 {
            Code::Key(check, _) => {
                let key = rest.next().ok_or(TOO_FEW)?;
                check(rest)?;
                planner.key(at as u16, Access::Read, key).map(drop)
            }
            Code::OfNode => Err(PlanError::fixed("ERR This Redis command is not allowed from script")),
            Code::Text(_) => planner.compute(at as u16, KeyHash::default()).map(drop),
        }
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let key_len = cx.key.bytes.len();
        match (&self.subcommands[usize::from(code)].1, &cx.target) {
            (Code::Text(text), _) => text(&mut Writer(cx.out)),
            (Code::Key(_, look), Target::Read(cell)) if cell.value.is_some() => {
                answer(cx.out, |w| look(cell, key_len, w));
            }
            _ => cx.writer().nil(),
        }
        Ok(())
    }
}

fn nothing_more(_rest: ArgIter<'_>) -> Result<(), Refusal> {
    Ok(())
}

/// The encoding that Redis 7.0 would have: by how a string was written last and what it is, and by what a hash once was.
fn encoding(cell: &Cell, _key_len: usize, w: &mut Writer<'_>) -> Result<(), Refusal> {
    /// The longest string that Redis keeps beside its header.
    const EMBEDDED_MAX: usize = 44;
    let form = cell.expires_at.form();
    w.bulk(match &cell.value {
        Some(Value::String(_)) if form == StringForm::Buffer => b"raw",
        Some(Value::String(bytes)) if form == StringForm::Whole && parse_i64(bytes).is_some() => b"int",
        Some(Value::String(bytes)) if bytes.len() <= EMBEDDED_MAX => b"embstr",
        Some(Value::Hash(hash)) if hash.is_table() => b"hashtable",
        Some(Value::Hash(_)) => b"listpack",
        Some(Value::Evicted(_)) => panic!("{EVICTED}"),
        _ => b"raw",
    });
    Ok(())
}

fn refcount(_cell: &Cell, _key_len: usize, w: &mut Writer<'_>) -> Result<(), Refusal> {
    w.int(1);
    Ok(())
}

/// Reads leave no trace here, or they would have to be logged: a record is never idle.
fn idletime(_cell: &Cell, _key_len: usize, w: &mut Writer<'_>) -> Result<(), Refusal> {
    w.int(0);
    Ok(())
}

fn freq(_cell: &Cell, _key_len: usize, _w: &mut Writer<'_>) -> Result<(), Refusal> {
    Err(Refusal(
        "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when \
         switching between policies at runtime LRU and LFU data will take some time to adjust.",
    ))
}

fn check_samples(mut rest: ArgIter<'_>) -> Result<(), Refusal> {
    while let Some(word) = rest.next() {
        if !word.bytes.eq_ignore_ascii_case(b"SAMPLES") {
            return Err(SYNTAX);
        }
        let count = parse_i64(rest.next().ok_or(SYNTAX)?.bytes).ok_or(NOT_INTEGER)?;
        if count < 0 {
            return Err(SYNTAX);
        }
    }
    Ok(())
}

/// The memory of the record's content, and not what the allocator happened to give: that could differ between
/// replicas.
fn usage(cell: &Cell, key_len: usize, w: &mut Writer<'_>) -> Result<(), Refusal> {
    /// A record beside its key and value, roughly.
    const RECORD: usize = 64;
    let content = match &cell.value {
        Some(Value::String(bytes)) => bytes.len(),
        Some(value) => value.heap_bytes(),
        None => 0,
    };
    w.int((RECORD + key_len + content) as i64);
    Ok(())
}

fn doctor(w: &mut Writer<'_>) {
    w.verbatim(
        *b"txt",
        b"Nothing is diagnosed here; INFO memory and the metrics of the admin interface have the figures.\n",
    );
}

fn object_help(w: &mut Writer<'_>) {
    lines(
        w,
        &[
            "OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
            "ENCODING <key>",
            "    Return the kind of internal representation used in order to store the value",
            "    associated with a <key>.",
            "FREQ <key>",
            "    Return the access frequency index of the <key>. It is not tracked.",
            "IDLETIME <key>",
            "    Return the idle time of the <key>. It is not tracked: always 0.",
            "REFCOUNT <key>",
            "    Return the number of references of the value associated with the specified",
            "    <key>.",
            "HELP",
            "    Prints this help.",
        ],
    );
}

fn memory_help(w: &mut Writer<'_>) {
    lines(
        w,
        &[
            "MEMORY <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
            "DOCTOR",
            "    Return where figures about memory are.",
            "MALLOC-STATS",
            "    Return that the allocator has no report.",
            "PURGE",
            "    Does nothing: what is free goes back to the system every ten seconds.",
            "STATS",
            "    Return information about the memory usage of the node.",
            "USAGE <key> [SAMPLES <count>]",
            "    Return memory in bytes used by <key> and its value. Nothing is sampled.",
            "HELP",
            "    Prints this help.",
        ],
    );
}

fn lines(w: &mut Writer<'_>, lines: &[&str]) {
    w.array(lines.len());
    lines.iter().for_each(|line| w.status(line));
}
