//! Commands on hashes.

mod random;

use std::sync::Arc;

use ordain_model::{ArgIter, Cell, CellMut, HashValue, PlanError, Registry, Writer};

use crate::extended::Extended;
use crate::ids;
use crate::number::Decimal;
use crate::scan::Scan;
use crate::shape::{
    Input, Items, LONG_REPLY, NOT_FLOAT, ReadKey, Refusal, WriteKey, any, bulk_or_nil, hash, increment,
    increment_float, integer, write_each,
};
use crate::strings::check_length;

const NOT_HASH_INTEGER: Refusal = Refusal("ERR hash value is not an integer");
const NOT_HASH_FLOAT: Refusal = Refusal("ERR hash value is not a float");
const INFINITE_INCREMENT: Refusal = Refusal("ERR value is NaN or Infinity");

/// Adds the procedures.
pub(crate) fn register(registry: &mut Registry) {
    let check_hset = |rest: ArgIter<'_>| check_pairs(rest, "hset");
    let check_hmset = |rest: ArgIter<'_>| check_pairs(rest, "hmset");
    registry.register(ids::HSET, "hset", Arc::new(WriteKey { check: check_hset, run: hset }));
    registry.register(ids::HMSET, "hmset", Arc::new(WriteKey { check: check_hmset, run: hmset }));
    registry.register(ids::HSETNX, "hsetnx", Arc::new(WriteKey { check: check_hsetnx, run: hsetnx }));
    registry.register(ids::HGET, "hget", Arc::new(ReadKey { check: any, run: hget }));
    registry.register(ids::HMGET, "hmget", Arc::new(ReadKey { check: any, run: hmget }));
    registry.register(ids::HGETALL, "hgetall", Arc::new(ReadKey { check: any, run: hgetall }));
    registry.register(ids::HDEL, "hdel", Arc::new(WriteKey { check: any, run: hdel }));
    registry.register(ids::HEXISTS, "hexists", Arc::new(ReadKey { check: any, run: hexists }));
    registry.register(ids::HLEN, "hlen", Arc::new(ReadKey { check: any, run: hlen }));
    registry.register(ids::HKEYS, "hkeys", Arc::new(ReadKey { check: any, run: hkeys }));
    registry.register(ids::HVALS, "hvals", Arc::new(ReadKey { check: any, run: hvals }));
    registry.register(ids::HSTRLEN, "hstrlen", Arc::new(ReadKey { check: any, run: hstrlen }));
    registry.register(ids::HINCRBY, "hincrby", Arc::new(WriteKey { check: check_hincrby, run: hincrby }));
    registry.register(
        ids::HINCRBYFLOAT,
        "hincrbyfloat",
        Arc::new(WriteKey { check: check_hincrbyfloat, run: hincrbyfloat }),
    );
    registry.register(ids::HSCAN, "hscan", Arc::new(ReadKey { check: check_hscan, run: hscan }));
    registry.register(
        ids::HRANDFIELD,
        "hrandfield",
        Arc::new(ReadKey { check: random::check, run: random::hrandfield }),
    );
}

fn fields(cell: &Cell) -> Result<impl Iterator<Item = (&[u8], &[u8])>, Refusal> {
    Ok(hash(cell)?.into_iter().flat_map(HashValue::iter))
}

fn field<'c>(cell: &'c Cell, rest: &mut ArgIter<'_>) -> Result<Option<&'c [u8]>, Refusal> {
    Ok(hash(cell)?.and_then(|hash| hash.get(rest.bytes())))
}

fn len(cell: &Cell) -> Result<usize, Refusal> {
    Ok(hash(cell)?.map_or(0, HashValue::len))
}

/// Refuses a field without a value, and values that are too long.
fn check_pairs(mut rest: ArgIter<'_>, command: &str) -> Result<(), PlanError> {
    let mut none = true;
    while let Some(field) = rest.next() {
        let value = rest.next().ok_or_else(|| PlanError::arity(command))?;
        check_length(field.bytes)?;
        check_length(value.bytes)?;
        none = false;
    }
    if none { Err(PlanError::arity(command)) } else { Ok(()) }
}

/// Sets all pairs and says how many fields are new.
fn set_all(mut rest: ArgIter<'_>, cell: &mut CellMut<'_>) -> Result<i64, Refusal> {
    hash(cell)?;
    let mut added = 0;
    while let Some(field) = rest.next() {
        added += i64::from(cell.set_field(field.bytes, rest.bytes()).is_none());
    }
    Ok(added)
}

fn hset(input: Input<'_>, mut cell: CellMut<'_>, w: &mut Writer<'_>) -> Result<(), Refusal> {
    w.int(set_all(input.rest, &mut cell)?);
    Ok(())
}

fn hmset(input: Input<'_>, mut cell: CellMut<'_>, w: &mut Writer<'_>) -> Result<(), Refusal> {
    set_all(input.rest, &mut cell)?;
    w.ok();
    Ok(())
}

fn check_hsetnx(mut rest: ArgIter<'_>) -> Result<(), PlanError> {
    check_length(rest.bytes())?;
    Ok(check_length(rest.bytes())?)
}

fn hsetnx(mut input: Input<'_>, mut cell: CellMut<'_>, w: &mut Writer<'_>) -> Result<(), Refusal> {
    let field = input.rest.bytes();
    let absent = hash(&cell)?.is_none_or(|hash| hash.get(field).is_none());
    if absent {
        cell.set_field(field, input.rest.bytes());
    }
    w.int(i64::from(absent));
    Ok(())
}

fn hget(mut input: Input<'_>, cell: &Cell, w: &mut Writer<'_>) -> Result<(), Refusal> {
    bulk_or_nil(w, field(cell, &mut input.rest)?);
    Ok(())
}

fn hmget(input: Input<'_>, cell: &Cell, w: &mut Writer<'_>) -> Result<(), Refusal> {
    let hash = hash(cell)?;
    w.array(input.rest.count());
    write_each(w, input.most, input.rest, |w, field| {
        bulk_or_nil(w, hash.and_then(|hash| hash.get(field.bytes)));
    })
}

fn hgetall(input: Input<'_>, cell: &Cell, w: &mut Writer<'_>) -> Result<(), Refusal> {
    w.map(len(cell)?);
    write_each(w, input.most, fields(cell)?, |w, (field, value)| {
        w.bulk(field);
        w.bulk(value);
    })
}

fn hdel(input: Input<'_>, mut cell: CellMut<'_>, w: &mut Writer<'_>) -> Result<(), Refusal> {
    hash(&cell)?;
    w.int(input.rest.filter(|field| cell.remove_field(field.bytes).is_some()).count() as i64);
    Ok(())
}

fn hexists(mut input: Input<'_>, cell: &Cell, w: &mut Writer<'_>) -> Result<(), Refusal> {
    w.int(i64::from(field(cell, &mut input.rest)?.is_some()));
    Ok(())
}

fn hlen(_input: Input<'_>, cell: &Cell, w: &mut Writer<'_>) -> Result<(), Refusal> {
    w.int(len(cell)? as i64);
    Ok(())
}

fn hkeys(input: Input<'_>, cell: &Cell, w: &mut Writer<'_>) -> Result<(), Refusal> {
    w.array(len(cell)?);
    write_each(w, input.most, fields(cell)?, |w, (field, _)| w.bulk(field))
}

fn hvals(input: Input<'_>, cell: &Cell, w: &mut Writer<'_>) -> Result<(), Refusal> {
    w.array(len(cell)?);
    write_each(w, input.most, fields(cell)?, |w, (_, value)| w.bulk(value))
}

fn hstrlen(mut input: Input<'_>, cell: &Cell, w: &mut Writer<'_>) -> Result<(), Refusal> {
    w.int(field(cell, &mut input.rest)?.map_or(0, |value| value.len() as i64));
    Ok(())
}

fn check_hincrby(mut rest: ArgIter<'_>) -> Result<(), PlanError> {
    check_length(rest.bytes())?;
    integer(&mut rest)?;
    Ok(())
}

fn hincrby(mut input: Input<'_>, mut cell: CellMut<'_>, w: &mut Writer<'_>) -> Result<(), Refusal> {
    let field = input.rest.bytes();
    let by = integer(&mut input.rest)?;
    let new = increment(hash(&cell)?.and_then(|hash| hash.get(field)), by, NOT_HASH_INTEGER)?;
    cell.set_field(field, Decimal::of(new).text());
    w.int(new);
    Ok(())
}

fn check_hincrbyfloat(mut rest: ArgIter<'_>) -> Result<(), PlanError> {
    check_length(rest.bytes())?;
    finite(&mut rest)?;
    Ok(())
}

fn finite(rest: &mut ArgIter<'_>) -> Result<Extended, Refusal> {
    let by = Extended::parse(rest.bytes()).ok_or(NOT_FLOAT)?;
    if by.is_finite() { Ok(by) } else { Err(INFINITE_INCREMENT) }
}

fn hincrbyfloat(mut input: Input<'_>, mut cell: CellMut<'_>, w: &mut Writer<'_>) -> Result<(), Refusal> {
    let field = input.rest.bytes();
    let by = finite(&mut input.rest)?;
    let text = increment_float(hash(&cell)?.and_then(|hash| hash.get(field)), by, NOT_HASH_FLOAT)?;
    cell.set_field(field, &text);
    w.bulk(&text);
    Ok(())
}

fn check_hscan(mut rest: ArgIter<'_>) -> Result<(), PlanError> {
    // Redis looks at the options only if there is a hash to walk.
    Scan::cursor(&mut rest)?;
    Ok(())
}

fn hscan(input: Input<'_>, cell: &Cell, w: &mut Writer<'_>) -> Result<(), Refusal> {
    let Some(hash) = hash(cell)? else {
        w.array(2);
        w.bulk(b"0");
        w.array(0);
        return Ok(());
    };
    let scan = Scan::parse(input.rest, false)?;
    let (mut found, filter) = (Items::default(), scan.filter()?);
    let next = hash.scan(scan.cursor, scan.count, |field, value| {
        if found.bytes() <= input.most && filter.wants(field) {
            found.push(|w| w.bulk(field));
            found.push(|w| w.bulk(value));
        }
    });
    if found.bytes() > input.most {
        return Err(LONG_REPLY);
    }
    w.array(2);
    w.bulk(Decimal::unsigned(next).text());
    found.finish(w);
    Ok(())
}
