//! Commands that set or answer the last millisecond in which a record exists.

use std::sync::Arc;

use ordain_model::{ArgIter, Cell, CellMut, Millis, PlanError, ProcedureId, Registry, Writer};

use crate::expiry::{Conditions, TimeUnit, expire_at};
use crate::ids;
use crate::shape::{Input, ReadKey, Refusal, Sparing, WriteKey, any, integer};

pub(super) fn register(registry: &mut Registry) {
    let mut setter = |id: ProcedureId, name: &'static str, unit: TimeUnit, invalid: Refusal| {
        let check = move |rest: ArgIter<'_>| check_expire(rest, unit, invalid);
        let run = move |input: Input<'_>, cell: CellMut<'_>, w: &mut Writer<'_>| {
            expire(input, cell, w, unit, invalid)
        };
        registry.register(id, name, Arc::new(WriteKey { check, run }));
    };
    const EXPIRE: Refusal = Refusal("ERR invalid expire time in 'expire' command");
    const PEXPIRE: Refusal = Refusal("ERR invalid expire time in 'pexpire' command");
    const EXPIREAT: Refusal = Refusal("ERR invalid expire time in 'expireat' command");
    const PEXPIREAT: Refusal = Refusal("ERR invalid expire time in 'pexpireat' command");
    setter(ids::EXPIRE, "expire", TimeUnit::EX, EXPIRE);
    setter(ids::PEXPIRE, "pexpire", TimeUnit::PX, PEXPIRE);
    setter(ids::EXPIREAT, "expireat", TimeUnit::EXAT, EXPIREAT);
    setter(ids::PEXPIREAT, "pexpireat", TimeUnit::PXAT, PEXPIREAT);

    let mut teller = |id: ProcedureId, name: &'static str, unit: TimeUnit| {
        let run = move |input: Input<'_>, cell: &Cell, w: &mut Writer<'_>| {
            w.int(time_to_live(cell, input.now, unit));
            Ok(())
        };
        registry.register(id, name, Arc::new(Sparing(ReadKey { check: any, run })));
    };
    teller(ids::TTL, "ttl", TimeUnit::EX);
    teller(ids::PTTL, "pttl", TimeUnit::PX);
    teller(ids::EXPIRETIME, "expiretime", TimeUnit::EXAT);
    teller(ids::PEXPIRETIME, "pexpiretime", TimeUnit::PXAT);
    registry.register(ids::PERSIST, "persist", Arc::new(WriteKey { check: any, run: persist }));
}

fn check_expire(mut rest: ArgIter<'_>, unit: TimeUnit, invalid: Refusal) -> Result<(), PlanError> {
    let mut options = rest;
    options.next();
    Conditions::parse(options)?;
    unit.instant(integer(&mut rest)?, Millis(0)).ok_or(invalid)?;
    Ok(())
}

fn expire(
    mut input: Input<'_>,
    mut cell: CellMut<'_>,
    w: &mut Writer<'_>,
    unit: TimeUnit,
    invalid: Refusal,
) -> Result<(), Refusal> {
    let at = unit.instant(integer(&mut input.rest)?, input.now).ok_or(invalid)?;
    // The conditions were checked when this was planned.
    let conditions = Conditions::parse(input.rest).unwrap_or_default();
    let applies = cell.value.is_some() && conditions.allow(cell.expires_at.time(), at);
    if applies {
        expire_at(&mut cell, at, input.now);
    }
    w.int(i64::from(applies));
    Ok(())
}

/// -2: no record; -1: no expiry.
fn time_to_live(cell: &Cell, now: Millis, unit: TimeUnit) -> i64 {
    if cell.value.is_none() {
        return -2;
    }
    if cell.expires_at.is_never() {
        return -1;
    }
    let from = if unit.absolute { 0 } else { now.0 };
    let time = cell.expires_at.time().0.saturating_sub(from) as i64;
    if unit.seconds { time.saturating_add(500) / 1000 } else { time }
}

fn persist(_input: Input<'_>, mut cell: CellMut<'_>, w: &mut Writer<'_>) -> Result<(), Refusal> {
    let expires = !cell.expires_at.is_never();
    if expires {
        cell.set_expiry(Millis(0));
    }
    w.int(i64::from(expires));
    Ok(())
}
