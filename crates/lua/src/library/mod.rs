//! The libraries, and the table of what their functions cost.

/// Declares functions that are one call of a helper each: `name = helper(what the name stands for);`.
macro_rules! functions {
    ($($name:ident = $helper:ident($of:expr);)*) => {$(
        pub(super) fn $name(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
            $helper(m, args, stringify!($name), $of)
        }
    )*};
}

mod base;
mod bit;
pub(crate) mod cjson;
mod cmsgpack;
mod format;
mod math;
mod string;
mod structs;
mod tables;

use crate::budget::{Fault, Result};
use crate::cost::{COMPUTE, COPY, Cost, SCAN, cost};
use crate::machine::{Args, Host, Machine};
use crate::value::{Str, TableRef, Value};

/// The code of a function.
#[derive(Clone, Copy)]
pub enum Body {
    /// The interpreter's own.
    Rust(fn(&mut Machine, &mut dyn Host, Args) -> Result<()>),
    /// The interpreter's own, in no library: another function gives it.
    Hidden(fn(&mut Machine, &mut dyn Host, Args) -> Result<()>),
    /// The host's, by its number.
    Host(u16),
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Body::Rust(_) => "Rust",
            Body::Hidden(_) => "Hidden",
            Body::Host(_) => "Host",
        })
    }
}

/// A function that is not written in Lua: its name, its cost, its code.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// `library.function`, or `function` for a global one.
    pub name: &'static str,
    /// The cost of a call.
    pub cost: Cost,
    /// The code.
    pub body: Body,
}

const fn row(
    name: &'static str,
    cost: Cost,
    run: fn(&mut Machine, &mut dyn Host, Args) -> Result<()>,
) -> Row {
    Row { name, cost, body: Body::Rust(run) }
}

const fn hidden(
    name: &'static str,
    cost: Cost,
    run: fn(&mut Machine, &mut dyn Host, Args) -> Result<()>,
) -> Row {
    Row { name, cost, body: Body::Hidden(run) }
}

/// Every function of the libraries: units each time, bytes to a unit, units an item.
#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    row("assert",         cost(4, COPY, 1),     base::assert),
    row("collectgarbage", cost(4, COPY, 0),     base::collectgarbage),
    row("error",          cost(20, SCAN, 0),    base::error),
    row("getmetatable",   cost(4, COPY, 0),     base::getmetatable),
    row("ipairs",         cost(4, COPY, 0),     base::ipairs),
    row("load",           cost(20, COMPUTE, 4), base::load),
    row("loadstring",     cost(20, COMPUTE, 0), base::loadstring),
    row("next",           cost(4, COPY, 1),     base::next),
    row("pairs",          cost(4, COPY, 0),     base::pairs),
    row("pcall",          cost(20, COPY, 1),    base::pcall),
    row("rawequal",       cost(4, COPY, 0),     base::rawequal),
    row("rawget",         cost(4, COPY, 0),     base::rawget),
    row("rawset",         cost(4, COPY, 0),     base::rawset),
    row("select",         cost(4, COPY, 1),     base::select),
    row("setmetatable",   cost(4, COPY, 0),     base::setmetatable),
    row("tonumber",       cost(8, COMPUTE, 0),  base::tonumber),
    row("tostring",       cost(8, COMPUTE, 0),  base::tostring),
    row("type",           cost(4, COPY, 0),     base::type_of),
    row("unpack",         cost(4, COPY, 1),     base::unpack),
    row("xpcall",         cost(20, COPY, 1),    base::xpcall),

    row("string.byte",    cost(4, COPY, 1),     string::byte),
    row("string.char",    cost(4, COPY, 1),     string::char),
    row("string.find",    cost(10, SCAN, 1),    string::find),
    row("string.format",  cost(20, SCAN, 10),   format::format),
    row("string.gfind",   cost(20, SCAN, 1),    string::gmatch),
    row("string.gmatch",  cost(20, SCAN, 1),    string::gmatch),
    row("string.gsub",    cost(20, SCAN, 10),   string::gsub),
    row("string.len",     cost(4, COPY, 0),     string::len),
    row("string.lower",   cost(4, SCAN, 0),     string::lower),
    row("string.match",   cost(10, SCAN, 1),    string::matches),
    row("string.rep",     cost(4, COPY, 0),     string::rep),
    row("string.reverse", cost(4, SCAN, 0),     string::reverse),
    row("string.sub",     cost(4, COPY, 0),     string::sub),
    row("string.upper",   cost(4, SCAN, 0),     string::upper),

    row("table.concat",   cost(8, COPY, 2),     tables::concat),
    row("table.foreach",  cost(8, COPY, 4),     tables::foreach),
    row("table.foreachi", cost(8, COPY, 4),     tables::foreachi),
    row("table.getn",     cost(4, COPY, 0),     tables::getn),
    row("table.insert",   cost(4, COPY, 2),     tables::insert),
    row("table.maxn",     cost(4, COPY, 1),     tables::maxn),
    row("table.remove",   cost(4, COPY, 2),     tables::remove),
    row("table.sort",     cost(8, COPY, 4),     tables::sort),

    row("math.abs",       cost(4, COPY, 0),     math::abs),
    row("math.acos",      cost(8, COPY, 0),     math::acos),
    row("math.asin",      cost(8, COPY, 0),     math::asin),
    row("math.atan",      cost(8, COPY, 0),     math::atan),
    row("math.atan2",     cost(8, COPY, 0),     math::atan2),
    row("math.ceil",      cost(4, COPY, 0),     math::ceil),
    row("math.cos",       cost(8, COPY, 0),     math::cos),
    row("math.cosh",      cost(8, COPY, 0),     math::cosh),
    row("math.deg",       cost(4, COPY, 0),     math::deg),
    row("math.exp",       cost(8, COPY, 0),     math::exp),
    row("math.floor",     cost(4, COPY, 0),     math::floor),
    row("math.fmod",      cost(8, COPY, 0),     math::fmod),
    row("math.frexp",     cost(8, COPY, 0),     math::frexp),
    row("math.ldexp",     cost(8, COPY, 0),     math::ldexp),
    row("math.log",       cost(8, COPY, 0),     math::log),
    row("math.log10",     cost(8, COPY, 0),     math::log10),
    row("math.max",       cost(4, COPY, 1),     math::max),
    row("math.min",       cost(4, COPY, 1),     math::min),
    row("math.mod",       cost(8, COPY, 0),     math::fmod),
    row("math.modf",      cost(8, COPY, 0),     math::modf),
    row("math.pow",       cost(8, COPY, 0),     math::pow),
    row("math.rad",       cost(4, COPY, 0),     math::rad),
    row("math.random",    cost(8, COPY, 0),     math::random),
    row("math.randomseed", cost(4, COPY, 0),    math::randomseed),
    row("math.sin",       cost(8, COPY, 0),     math::sin),
    row("math.sinh",      cost(8, COPY, 0),     math::sinh),
    row("math.sqrt",      cost(4, COPY, 0),     math::sqrt),
    row("math.tan",       cost(8, COPY, 0),     math::tan),
    row("math.tanh",      cost(8, COPY, 0),     math::tanh),

    row("bit.arshift",    cost(4, COPY, 1),     bit::arshift),
    row("bit.band",       cost(4, COPY, 1),     bit::band),
    row("bit.bnot",       cost(4, COPY, 1),     bit::bnot),
    row("bit.bor",        cost(4, COPY, 1),     bit::bor),
    row("bit.bswap",      cost(4, COPY, 1),     bit::bswap),
    row("bit.bxor",       cost(4, COPY, 1),     bit::bxor),
    row("bit.lshift",     cost(4, COPY, 1),     bit::lshift),
    row("bit.rol",        cost(4, COPY, 1),     bit::rol),
    row("bit.ror",        cost(4, COPY, 1),     bit::ror),
    row("bit.rshift",     cost(4, COPY, 1),     bit::rshift),
    row("bit.tobit",      cost(4, COPY, 1),     bit::tobit),
    row("bit.tohex",      cost(8, COPY, 1),     bit::tohex),

    row("cjson.decode",   cost(20, COMPUTE, 8), cjson::decode),
    row("cjson.encode",   cost(20, COMPUTE, 8), cjson::encode),
    row("cjson.decode_invalid_numbers",   cost(8, COPY, 0), cjson::decode_invalid_numbers),
    row("cjson.decode_max_depth",         cost(8, COPY, 0), cjson::decode_max_depth),
    row("cjson.encode_invalid_numbers",   cost(8, COPY, 0), cjson::encode_invalid_numbers),
    row("cjson.encode_keep_buffer",       cost(8, COPY, 0), cjson::encode_keep_buffer),
    row("cjson.encode_max_depth",         cost(8, COPY, 0), cjson::encode_max_depth),
    row("cjson.encode_number_precision",  cost(8, COPY, 0), cjson::encode_number_precision),
    row("cjson.encode_sparse_array",      cost(8, COPY, 0), cjson::encode_sparse_array),
    row("cjson.new",                      cost(60, COPY, 4), cjson::new),

    row("cmsgpack.pack",         cost(20, SCAN, 8), cmsgpack::pack),
    row("cmsgpack.unpack",       cost(20, SCAN, 8), cmsgpack::unpack),
    row("cmsgpack.unpack_limit", cost(20, SCAN, 8), cmsgpack::unpack_limit),
    row("cmsgpack.unpack_one",   cost(20, SCAN, 8), cmsgpack::unpack_one),

    row("struct.pack",    cost(20, SCAN, 4),    structs::pack),
    row("struct.size",    cost(20, SCAN, 4),    structs::size),
    row("struct.unpack",  cost(20, SCAN, 4),    structs::unpack),

    hidden("gmatch_step", cost(10, SCAN, 1),    string::gmatch_step),
    hidden("ipairs_step", cost(4, COPY, 0),     base::ipairs_step),
    hidden("missing",     cost(20, COPY, 0),    base::missing),
];

/// Sets what the libraries hold besides functions.
pub(crate) fn constants(m: &mut Machine) -> Result<()> {
    let globals = m.globals;
    let version = m.heap.text(b"Lua 5.1")?;
    m.heap.set_field(globals, "_VERSION", version)?;
    m.heap.set_field(globals, "_G", Value::Table(globals))?;
    let math = m.library("math")?;
    m.heap.set_field(math, "pi", Value::Number(std::f64::consts::PI))?;
    m.heap.set_field(math, "huge", Value::Number(f64::INFINITY))?;
    for (library, version) in [("cjson", "2.1.0"), ("cmsgpack", "lua-cmsgpack 0.4.0")] {
        let table = m.library(library)?;
        let name = m.heap.text(library.as_bytes())?;
        let version = m.heap.text(version.as_bytes())?;
        m.heap.set_field(table, "_NAME", name)?;
        m.heap.set_field(table, "_VERSION", version)?;
    }
    let cjson = m.library("cjson")?;
    m.heap.set_field(cjson, "null", Value::Null)?;
    let strings = m.library("string")?;
    let meta = m.string_meta;
    m.heap.set_field(meta, "__index", Value::Table(strings))?;
    m.heap.set_field(meta, "__metatable", Value::Bool(false))?;
    m.guard_globals(globals)
}

impl Machine {
    /// Has a table of globals raise an error for a name that it does not have.
    ///
    /// # Errors
    /// There is not enough memory left.
    pub fn guard_globals(&mut self, globals: TableRef) -> Result<()> {
        let meta = self.heap.table(0, 4)?;
        let missing = self.native("missing").map_or(Value::Nil, Value::Native);
        self.heap.set_field(meta, "__index", missing)?;
        self.heap.set_field(meta, "__metatable", Value::Bool(false))?;
        self.heap.tables[globals.0 as usize].meta = Some(meta);
        Ok(())
    }

    /// The error of a wrong argument. Arguments are counted from 1 on.
    pub(crate) fn bad_argument(&self, i: usize, name: &str, what: &str) -> Fault {
        match (self.is_method_call(), i) {
            (true, 1) => format!("calling '{name}' on bad self ({what})").into(),
            (true, i) => format!("bad argument #{} to '{name}' ({what})", i - 1).into(),
            (false, i) => format!("bad argument #{i} to '{name}' ({what})").into(),
        }
    }

    fn wrong_type(&self, args: Args, i: usize, name: &str, expected: &str) -> Fault {
        let got = if i < args.len() { self.arg(args, i).type_name() } else { "no value" };
        self.bad_argument(i + 1, name, &format!("{expected} expected, got {got}"))
    }

    /// An argument that is a string or a number, as a string.
    ///
    /// # Errors
    /// It is neither.
    pub fn text_arg(&mut self, args: Args, i: usize, name: &str) -> Result<Str> {
        let value = self.arg(args, i);
        match self.heap.as_str(value)? {
            Some(text) => Ok(text),
            None => Err(self.wrong_type(args, i, name, "string")),
        }
    }

    /// An argument that is a number or the text of one.
    ///
    /// # Errors
    /// It is neither.
    pub fn number_arg(&mut self, args: Args, i: usize, name: &str) -> Result<f64> {
        let value = self.arg(args, i);
        match self.as_number(value)? {
            Some(x) => Ok(x),
            None => Err(self.wrong_type(args, i, name, "number")),
        }
    }

    /// A number as an integer, cut towards zero; one out of range is at the end of the range, and NaN at its beginning.
    pub(crate) fn int_arg(&mut self, args: Args, i: usize, name: &str) -> Result<i64> {
        self.number_arg(args, i, name).map(|x| if x.is_nan() { i64::MIN } else { x as i64 })
    }

    pub(crate) fn int_or(&mut self, args: Args, i: usize, name: &str, otherwise: i64) -> Result<i64> {
        match self.arg(args, i) {
            Value::Nil => Ok(otherwise),
            _ => self.int_arg(args, i, name),
        }
    }

    /// An argument that is a table.
    ///
    /// # Errors
    /// It is none.
    pub fn table_arg(&mut self, args: Args, i: usize, name: &str) -> Result<TableRef> {
        match self.arg(args, i) {
            Value::Table(table) => Ok(table),
            _ => Err(self.wrong_type(args, i, name, "table")),
        }
    }

    pub(crate) fn any_arg(&mut self, args: Args, i: usize, name: &str) -> Result<Value> {
        if i < args.len() {
            Ok(self.arg(args, i))
        } else {
            Err(self.bad_argument(i + 1, name, "value expected"))
        }
    }

    /// Refuses to change what no script may change.
    pub(crate) fn check_writable(&mut self, table: TableRef) -> Result<()> {
        if !self.heap.is_read_only(table) {
            return Ok(());
        }
        let text = self.heap.text(b"Attempt to modify a readonly table")?;
        Err(Fault::Error(text))
    }
}
