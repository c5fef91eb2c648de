//! Commands on strings.

mod multi;

use std::sync::Arc;

use ordain_model::key::MAX_VALUE_LEN;
use ordain_model::{
    ArgIter, Args, Cell, CellMut, Millis, PlanError, ProcedureId, Registry, StringForm, Value, Writer,
};

use crate::expiry::{StringOptions, TimeUnit, expire_at};
use crate::extended::Extended;
use crate::ids;
use crate::number::Decimal;
use crate::shape::{
    Input, NOT_FLOAT, NOT_INTEGER, PutKey, ReadEach, ReadKey, Refusal, TOO_LONG, Together, WriteEach,
    WriteKey, any, bulk_or_nil, increment, increment_float, integer, string,
};

const BAD_SET_EXPIRY: Refusal = Refusal("ERR invalid expire time in 'set' command");
const BAD_SETEX_EXPIRY: Refusal = Refusal("ERR invalid expire time in 'setex' command");
const BAD_PSETEX_EXPIRY: Refusal = Refusal("ERR invalid expire time in 'psetex' command");
const BAD_GETEX_EXPIRY: Refusal = Refusal("ERR invalid expire time in 'getex' command");
const DECREMENT_OVERFLOW: Refusal = Refusal("ERR decrement would overflow");
const BAD_OFFSET: Refusal = Refusal("ERR offset is out of range");

/// Adds the procedures.
pub(crate) fn register(registry: &mut Registry) {
    registry.register(ids::GET, "get", Arc::new(ReadKey { check: any, run: get }));
    registry.register(ids::SET, "set", Arc::new(PutKey { check: check_set, run: set }));
    registry.register(ids::SETNX, "setnx", Arc::new(WriteKey { check: check_value, run: setnx }));
    let mut setter = |id: ProcedureId, name: &'static str, unit: TimeUnit, invalid: Refusal| {
        let check = move |rest: ArgIter<'_>| check_setex(rest, unit, invalid);
        let run = move |input: Input<'_>, cell: CellMut<'_>, w: &mut Writer<'_>| {
            setex(input, cell, w, unit, invalid)
        };
        registry.register(id, name, Arc::new(PutKey { check, run }));
    };
    setter(ids::SETEX, "setex", TimeUnit::EX, BAD_SETEX_EXPIRY);
    setter(ids::PSETEX, "psetex", TimeUnit::PX, BAD_PSETEX_EXPIRY);
    registry.register(ids::GETDEL, "getdel", Arc::new(WriteKey { check: any, run: getdel }));
    registry.register(ids::GETEX, "getex", Arc::new(WriteKey { check: check_getex, run: getex }));
    registry.register(ids::MGET, "mget", Arc::new(ReadEach { run: mget, together: Together::Array }));
    registry.register(
        ids::MSET,
        "mset",
        Arc::new(WriteEach { step: 2, check: check_mset, is_blind: true, run: mset, together: Together::Ok }),
    );
    registry.register(ids::MSETNX, "msetnx", Arc::new(multi::SetAllIfAbsent));
    registry.register(ids::APPEND, "append", Arc::new(WriteKey { check: any, run: append }));
    registry.register(ids::STRLEN, "strlen", Arc::new(ReadKey { check: any, run: strlen }));
    registry.register(ids::GETRANGE, "getrange", Arc::new(ReadKey { check: check_range, run: getrange }));
    registry.register(ids::SETRANGE, "setrange", Arc::new(WriteKey { check: check_offset, run: setrange }));
    registry.register(ids::INCR, "incr", Arc::new(WriteKey { check: any, run: incr }));
    registry.register(ids::DECR, "decr", Arc::new(WriteKey { check: any, run: decr }));
    registry.register(ids::INCRBY, "incrby", Arc::new(WriteKey { check: check_incrby, run: incrby }));
    registry.register(ids::DECRBY, "decrby", Arc::new(WriteKey { check: check_decrby, run: decrby }));
    registry.register(ids::INCRBYFLOAT, "incrbyfloat", Arc::new(WriteKey { check: any, run: incrbyfloat }));
}

/// Refuses a value longer than a value may be.
pub(crate) fn check_length(value: &[u8]) -> Result<(), Refusal> {
    if value.len() > MAX_VALUE_LEN { Err(TOO_LONG) } else { Ok(()) }
}

fn check_value(mut rest: ArgIter<'_>) -> Result<(), PlanError> {
    Ok(check_length(rest.bytes())?)
}

/// Puts a string into a record that holds one or nothing, as a whole, and keeps its expiry.
#[inline]
fn overwrite(cell: &mut CellMut<'_>, value: &[u8]) {
    cell.change_string(|bytes| {
        bytes.clear();
        bytes.extend_from_slice(value);
    });
}

fn get(_input: Input<'_>, cell: &Cell, w: &mut Writer<'_>) -> Result<(), Refusal> {
    bulk_or_nil(w, string(cell)?);
    Ok(())
}

fn check_set(mut rest: ArgIter<'_>) -> Result<bool, PlanError> {
    check_length(rest.bytes())?;
    let options = StringOptions::of_set(rest)?;
    // A bound that depends on the time is tested by the transaction. Where it finds the time out of bounds, the record stays.
    let check = |(unit, text): (TimeUnit, &[u8])| unit.check(text, BAD_SET_EXPIRY);
    let is_set = options.expiry.map_or(Ok(true), check)?;
    Ok(is_set && !options.look())
}

fn set(input: Input<'_>, mut cell: CellMut<'_>, w: &mut Writer<'_>) -> Result<(), Refusal> {
    let mut rest = input.rest;
    let value = rest.bytes();
    let mut words = rest;
    if words.next().is_none() {
        cell.put_string(value);
        w.ok();
        return Ok(());
    }
    let options = StringOptions::of_set(rest)?;
    let expiry = options.expiry.map(|(unit, text)| unit.positive(text, input.now, BAD_SET_EXPIRY));
    let expiry = expiry.transpose()?;
    if options.get {
        bulk_or_nil(w, string(&cell)?);
    }
    let present = cell.value.is_some();
    if (options.only_if_absent && present) || (options.only_if_present && !present) {
        if !options.get {
            w.nil();
        }
        return Ok(());
    }
    if options.keep_ttl {
        cell.put_keep_expiry(Value::String(value.to_vec()));
    } else {
        cell.put_string(value);
    }
    if let Some(at) = expiry {
        expire_at(&mut cell, at, input.now);
    }
    if !options.get {
        w.ok();
    }
    Ok(())
}

fn setnx(mut input: Input<'_>, mut cell: CellMut<'_>, w: &mut Writer<'_>) -> Result<(), Refusal> {
    let absent = cell.value.is_none();
    if absent {
        cell.put_string(input.rest.bytes());
    }
    w.int(i64::from(absent));
    Ok(())
}

fn check_setex(mut rest: ArgIter<'_>, unit: TimeUnit, invalid: Refusal) -> Result<bool, PlanError> {
    let is_set = unit.check(rest.bytes(), invalid)?;
    check_value(rest)?;
    Ok(is_set)
}

fn setex(
    mut input: Input<'_>,
    mut cell: CellMut<'_>,
    w: &mut Writer<'_>,
    unit: TimeUnit,
    invalid: Refusal,
) -> Result<(), Refusal> {
    let at = unit.positive(input.rest.bytes(), input.now, invalid)?;
    cell.put_string(input.rest.bytes());
    expire_at(&mut cell, at, input.now);
    w.ok();
    Ok(())
}

fn getdel(_input: Input<'_>, mut cell: CellMut<'_>, w: &mut Writer<'_>) -> Result<(), Refusal> {
    let value = string(&cell)?;
    bulk_or_nil(w, value);
    if value.is_some() {
        cell.delete();
    }
    Ok(())
}

fn check_getex(rest: ArgIter<'_>) -> Result<(), PlanError> {
    // Redis looks at the time only if there is a string to give it to.
    StringOptions::of_getex(rest)?;
    Ok(())
}

fn getex(input: Input<'_>, mut cell: CellMut<'_>, w: &mut Writer<'_>) -> Result<(), Refusal> {
    let options = StringOptions::of_getex(input.rest)?;
    let value = string(&cell)?;
    bulk_or_nil(w, value);
    if value.is_none() {
        return Ok(());
    }
    if let Some((unit, text)) = options.expiry {
        let at = unit.positive(text, input.now, BAD_GETEX_EXPIRY)?;
        expire_at(&mut cell, at, input.now);
    } else if options.persist && !cell.expires_at.is_never() {
        cell.set_expiry(Millis(0));
    }
    Ok(())
}

fn mget(cell: &Cell, w: &mut Writer<'_>) {
    bulk_or_nil(w, cell.string());
}

/// Refuses a key without a value, and values that are too long.
fn check_pairs(args: Args<'_>, command: &str) -> Result<(), PlanError> {
    if args.is_empty() || args.len() % 2 == 1 {
        return Err(PlanError::arity(command));
    }
    Ok(args.iter().skip(1).step_by(2).try_for_each(|value| check_length(value.bytes))?)
}

fn check_mset(args: Args<'_>) -> Result<(), PlanError> {
    check_pairs(args, "mset")
}

fn mset(mut input: Input<'_>, mut cell: CellMut<'_>, w: &mut Writer<'_>) -> Result<(), Refusal> {
    cell.put_string(input.rest.bytes());
    w.ok();
    Ok(())
}

fn append(mut input: Input<'_>, mut cell: CellMut<'_>, w: &mut Writer<'_>) -> Result<(), Refusal> {
    let tail = input.rest.bytes();
    let old_len = string(&cell)?.map(<[u8]>::len);
    let len = old_len.unwrap_or(0) + tail.len();
    if len > MAX_VALUE_LEN {
        return Err(TOO_LONG);
    }
    match old_len {
        Some(old_len) => cell.write_at(old_len, tail),
        // To append to nothing is SET.
        None => cell.put(Value::String(tail.to_vec())),
    }
    w.int(len as i64);
    Ok(())
}

fn strlen(_input: Input<'_>, cell: &Cell, w: &mut Writer<'_>) -> Result<(), Refusal> {
    w.int(string(cell)?.map_or(0, |s| s.len() as i64));
    Ok(())
}

fn check_range(mut rest: ArgIter<'_>) -> Result<(), PlanError> {
    integer(&mut rest)?;
    integer(&mut rest)?;
    Ok(())
}

fn getrange(mut input: Input<'_>, cell: &Cell, w: &mut Writer<'_>) -> Result<(), Refusal> {
    let (start, end) = (integer(&mut input.rest)?, integer(&mut input.rest)?);
    let bytes = string(cell)?.unwrap_or_default();
    let len = bytes.len() as i64;
    let from_end = |at: i64| if at < 0 { at.saturating_add(len).max(0) } else { at };
    let (first, last) = (from_end(start), from_end(end).min(len - 1));
    // Both before the beginning and the wrong way round: nothing, though clamping would leave a byte.
    let backwards = start < 0 && end < 0 && start > end;
    w.bulk(if backwards || first > last { b"" } else { &bytes[first as usize..=last as usize] });
    Ok(())
}

fn check_offset(mut rest: ArgIter<'_>) -> Result<(), PlanError> {
    if integer(&mut rest)? < 0 {
        return Err(BAD_OFFSET.into());
    }
    Ok(())
}

fn setrange(mut input: Input<'_>, mut cell: CellMut<'_>, w: &mut Writer<'_>) -> Result<(), Refusal> {
    let offset = usize::try_from(integer(&mut input.rest)?).map_err(|_| BAD_OFFSET)?;
    let patch = input.rest.bytes();
    let len = string(&cell)?.map_or(0, <[u8]>::len);
    if patch.is_empty() {
        w.int(len as i64);
        return Ok(());
    }
    let end = offset.checked_add(patch.len()).filter(|end| *end <= MAX_VALUE_LEN).ok_or(TOO_LONG)?;
    cell.write_at(offset, patch);
    w.int(len.max(end) as i64);
    Ok(())
}

#[inline]
fn add(cell: &mut CellMut<'_>, by: i64, w: &mut Writer<'_>) -> Result<(), Refusal> {
    let new = increment(string(cell)?, by, NOT_INTEGER)?;
    overwrite(cell, Decimal::of(new).text());
    w.int(new);
    Ok(())
}

fn incr(_input: Input<'_>, mut cell: CellMut<'_>, w: &mut Writer<'_>) -> Result<(), Refusal> {
    add(&mut cell, 1, w)
}

fn decr(_input: Input<'_>, mut cell: CellMut<'_>, w: &mut Writer<'_>) -> Result<(), Refusal> {
    add(&mut cell, -1, w)
}

fn check_incrby(mut rest: ArgIter<'_>) -> Result<(), PlanError> {
    integer(&mut rest)?;
    Ok(())
}

fn incrby(mut input: Input<'_>, mut cell: CellMut<'_>, w: &mut Writer<'_>) -> Result<(), Refusal> {
    add(&mut cell, integer(&mut input.rest)?, w)
}

fn decrement(rest: &mut ArgIter<'_>) -> Result<i64, Refusal> {
    integer(rest)?.checked_neg().ok_or(DECREMENT_OVERFLOW)
}

fn check_decrby(mut rest: ArgIter<'_>) -> Result<(), PlanError> {
    decrement(&mut rest)?;
    Ok(())
}

fn decrby(mut input: Input<'_>, mut cell: CellMut<'_>, w: &mut Writer<'_>) -> Result<(), Refusal> {
    add(&mut cell, decrement(&mut input.rest)?, w)
}

fn incrbyfloat(mut input: Input<'_>, mut cell: CellMut<'_>, w: &mut Writer<'_>) -> Result<(), Refusal> {
    let old = string(&cell)?;
    let by = Extended::parse(input.rest.bytes()).ok_or(NOT_FLOAT)?;
    let text = increment_float(old, by, NOT_FLOAT)?;
    overwrite(&mut cell, &text);
    cell.set_form(StringForm::Text);
    w.bulk(&text);
    Ok(())
}
