//! Procedures that no workload has: the odd corners of what a plan may say.

use std::sync::Arc;

use ordain_model::args::Args;
use ordain_model::{
    Abort, Access, FragmentContext, KeyHash, PlanError, Planner, Procedure, ProcedureId, Registry, Target,
    Value, Writer,
};

/// Writes its first key, then checks silently that the second is absent: an abortable fragment whose slot the
/// reply does without. Arguments: two keys.
pub const GUARDED: ProcedureId = ProcedureId(61_000);
/// A record is lent, another read, and one computes on both. Arguments: lent key, read key.
pub const GATHER: ProcedureId = ProcedureId(61_001);
/// Touches two keys by compute, with the second only lent to read. Arguments: written key, read key, where to run.
pub const PEEK: ProcedureId = ProcedureId(61_002);
/// Sets when its key expires, and answers who wrote it last. Arguments: key, milliseconds from now.
pub const EXPIRE_IN: ProcedureId = ProcedureId(61_003);

/// Counts up a key by what a check of another says, and takes for granted that it has passed. Arguments: checked
/// key, which must be absent, and counted key.
pub const TRUSTING: ProcedureId = ProcedureId(61_004);

/// Adds them.
pub fn register(registry: &mut Registry) {
    registry.register(GUARDED, "test.guarded", Arc::new(Guarded));
    registry.register(GATHER, "test.gather", Arc::new(Gather));
    registry.register(PEEK, "test.peek", Arc::new(Peek));
    registry.register(EXPIRE_IN, "test.expire-in", Arc::new(ExpireIn));
    registry.register(TRUSTING, "test.trusting", Arc::new(Trusting));
}

const ARITY: PlanError = PlanError::fixed("ERR wrong number of arguments for a procedure of the tests");

fn bump(old: Option<&[u8]>) -> Value {
    let n = old.and_then(|bytes| std::str::from_utf8(bytes).ok()?.parse::<i64>().ok()).unwrap_or(0);
    Value::String((n + 1).to_string().into_bytes())
}

struct Guarded;

impl Procedure for Guarded {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        let (Some(written), Some(checked), None) = (items.next(), items.next(), items.next()) else {
            return Err(ARITY);
        };
        planner.key(0, Access::Write, written)?;
        planner.key(1, Access::Read, checked)?;
        planner.abortable();
        planner.silent();
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if code == 0 {
            let new = bump(cx.cell().string());
            cx.cell_mut().put(new);
            cx.writer().ok();
            return Ok(());
        }
        if cx.cell().value.is_some() {
            cx.writer().error("ERR the guard is there");
            return Err(Abort::Logic);
        }
        Ok(())
    }
}

struct Gather;

impl Procedure for Gather {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        let (Some(lent), Some(read), None) = (items.next(), items.next(), items.next()) else {
            return Err(ARITY);
        };
        let lent_slot = planner.lend(Access::Write, lent)?;
        let read_slot = planner.key(0, Access::Read, read)?;
        planner.compute(1, KeyHash::of(read.bytes))?;
        planner.input(lent_slot);
        planner.input(read_slot);
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if code == 0 {
            let held = cx.cell().string().unwrap_or_default().to_vec();
            cx.writer().bulk(&held);
            return Ok(());
        }
        let read = cx.inputs.get(1).as_bytes().unwrap_or_default().to_vec();
        if let Target::Compute(members) = &mut cx.target
            && let Some(mut cell) = members.cell_mut(0)
        {
            let held = cell.string().unwrap_or_default();
            let new = [held, b"+", &read].concat();
            cell.put(Value::String(new[..new.len().min(64)].to_vec()));
        }
        Writer(cx.out).bulk(&read);
        Ok(())
    }

    fn reply(&self, cx: &ordain_model::ReplyContext<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(cx.slot(2));
    }
}

struct Peek;

impl Procedure for Peek {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        let (Some(written), Some(read), Some(near)) = (items.next(), items.next(), items.next()) else {
            return Err(ARITY);
        };
        let written = planner.lend(Access::Write, written)?;
        let read = planner.lend(Access::Read, read)?;
        planner.compute(0, KeyHash::of(near.bytes))?;
        planner.input(written);
        planner.input(read);
        Ok(())
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let Target::Compute(members) = &mut cx.target else { return Ok(()) };
        let seen = (members.cell(1).value.is_some(), members.version(1));
        if seen.0
            && let Some(mut cell) = members.cell_mut(0)
        {
            let new = bump(cell.string());
            cell.put(new);
        }
        Writer(cx.out).int(seen.1.0 as i64);
        Ok(())
    }

    fn reply(&self, cx: &ordain_model::ReplyContext<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(cx.slot(2));
    }
}

struct ExpireIn;

impl Procedure for ExpireIn {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let (Some(key), 2) = (args.iter().next(), args.len()) else { return Err(ARITY) };
        planner.key(0, Access::Write, key).map(drop)
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let delay = std::str::from_utf8(cx.rest().bytes()).ok().and_then(|ms| ms.parse::<u64>().ok());
        let at = ordain_model::Millis(cx.now.0 + delay.unwrap_or(0));
        if cx.cell().value.is_some() {
            cx.cell_mut().set_expiry(at);
        }
        let version = cx.version;
        cx.writer().int(version.0 as i64);
        Ok(())
    }
}

struct Trusting;

impl Procedure for Trusting {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        let (Some(checked), Some(counted), None) = (items.next(), items.next(), items.next()) else {
            return Err(ARITY);
        };
        let verdict = planner.key(0, Access::Read, checked)?;
        planner.abortable();
        planner.key(1, Access::Write, counted)?;
        planner.input(verdict);
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if code == 0 {
            if cx.cell().value.is_some() {
                cx.writer().error("ERR not now");
                return Err(Abort::Logic);
            }
            cx.writer().int(1);
            return Ok(());
        }
        assert_eq!(cx.inputs.get(0).as_int(), Some(1), "run on the answer of a check that failed");
        let new = bump(cx.cell().string());
        cx.cell_mut().put(new);
        cx.writer().ok();
        Ok(())
    }
}
