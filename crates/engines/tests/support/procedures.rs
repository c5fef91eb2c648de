//! Procedures that no workload has: the odd corners of what a plan may say.

use std::sync::Arc;

use ordain_model::args::{Args, ArgsBuilder};
use ordain_model::procedure::{Known, Reconnaissance};
use ordain_model::{
    Abort, Access, Db, FragmentContext, KeyHash, PlanError, Planner, Procedure, ProcedureId, Registry,
    SlotNo, Target, Value, Writer, system,
};

/// Writes its first key, then checks silently that the second is absent: an abortable fragment whose slot the
/// reply does without. Arguments: two keys.
pub const GUARDED: ProcedureId = ProcedureId(61_000);
/// A record is shipped, another read, and one computes on both. Arguments: shipped key, read key.
pub const GATHER: ProcedureId = ProcedureId(61_001);
/// Touches two keys by compute, with the second only shipped to read. Arguments: written key, read key, where to run.
pub const PEEK: ProcedureId = ProcedureId(61_002);
/// Sets when its key expires, and answers who wrote it last. Arguments: key, milliseconds from now.
pub const EXPIRE_IN: ProcedureId = ProcedureId(61_003);

/// Counts up a key by what a check of another says, and takes for granted that it has passed. Arguments: checked
/// key, which must be absent, and counted key.
pub const TRUSTING: ProcedureId = ProcedureId(61_004);

/// Reads a key, then writes another by what a third holds. Arguments: read key, key that is taken from, written key.
pub const AFTER: ProcedureId = ProcedureId(61_006);

/// Entries below two ledgers, which may be one: one is appended to the first, one moved or removed in the second,
/// and a third is looked at. Arguments: which of its fragments may abort (a byte of bits), two ledgers to write, one
/// to read, and a plain key that is counted up. What aborts it depends on the state.
pub const LEDGER: ProcedureId = ProcedureId(61_005);

/// Takes long: computes on all its keys. Arguments: whether it counts them up (1) or only reads them (0), keys.
pub const LONG: ProcedureId = ProcedureId(61_007);

/// Takes what a key points to: counts it up and removes the pointer. Of a key that points to nothing it only tells so, and
/// one that points to `!` it refuses. Arguments: key.
pub const TAKE: ProcedureId = ProcedureId(61_008);

/// Adds them.
pub fn register(registry: &mut Registry) {
    registry.register(GUARDED, "test.guarded", Arc::new(Guarded));
    registry.register(GATHER, "test.gather", Arc::new(Gather));
    registry.register(PEEK, "test.peek", Arc::new(Peek));
    registry.register(EXPIRE_IN, "test.expire-in", Arc::new(ExpireIn));
    registry.register(TRUSTING, "test.trusting", Arc::new(Trusting));
    registry.register(AFTER, "test.after", Arc::new(After));
    registry.register(LONG, "test.long", Arc::new(Long));
    registry.register(TAKE, "test.take", Arc::new(Take));
    registry.register(LEDGER, "test.ledger", Arc::new(Ledger));
}

const ARITY: PlanError = PlanError::fixed("ERR wrong number of arguments for a procedure of the tests");

fn bump(old: Option<&[u8]>) -> Value {
    let n = old.and_then(|bytes| std::str::from_utf8(bytes).ok()?.parse::<i64>().ok()).unwrap_or(0);
    Value::String((n + 1).to_string().into_bytes())
}

/// Has every other compute fragment give up where it stands on an event loop, as one does that takes long.
fn takes_long(cx: &mut FragmentContext<'_>) -> bool {
    let is_long = cx.locals.patience().is_some() && cx.seed.is_multiple_of(2);
    if is_long {
        cx.locals.give_up();
    }
    is_long
}

struct Long;

impl Procedure for Long {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut keys = args.iter();
        let how = keys.next().ok_or(ARITY)?.bytes;
        let access = if how == b"0" { Access::Read } else { Access::Write };
        if how == b"2" {
            planner.key(1, Access::Write, keys.next().ok_or(ARITY)?)?;
        }
        let near = keys.last().map_or(KeyHash::default(), |key| planner.hash_of(key.bytes));
        let shipped = keys.map(|key| planner.ship(access, key)).collect::<Result<Vec<_>, _>>()?;
        planner.compute(0, near)?;
        if how == b"2" {
            planner.abortable();
        }
        shipped.into_iter().for_each(|slot| planner.input(slot));
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if code == 1 {
            let new = bump(cx.cell().string());
            cx.cell_mut().put(new);
            return Ok(());
        }
        if cx.locals.patience().is_some() {
            cx.locals.give_up();
            return Ok(());
        }
        let Target::Compute(members) = &mut cx.target else { return Ok(()) };
        Writer(cx.out).array(members.len());
        for member in 0..members.len() {
            let held = members.cell(member).string().map(<[u8]>::to_vec);
            if let Some(mut cell) = members.cell_mut(member) {
                cell.put(bump(held.as_deref()));
            }
            Writer(cx.out).bulk(&held.unwrap_or_default());
        }
        if cx.args.get(0).is_some_and(|how| how == b"2") { Err(Abort::Logic) } else { Ok(()) }
    }

    fn reply(&self, cx: &ordain_model::ReplyContext<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(cx.slot(cx.count - 1));
    }
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
        let (Some(shipped), Some(read), None) = (items.next(), items.next(), items.next()) else {
            return Err(ARITY);
        };
        let shipped_slot = planner.ship(Access::Write, shipped)?;
        let read_slot = planner.key(0, Access::Read, read)?;
        planner.compute(1, planner.hash_of(read.bytes))?;
        planner.input(shipped_slot);
        planner.input(read_slot);
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if code == 0 {
            let held = cx.cell().string().unwrap_or_default().to_vec();
            cx.writer().bulk(&held);
            return Ok(());
        }
        if takes_long(cx) {
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
        let written = planner.ship(Access::Write, written)?;
        let read = planner.ship(Access::Read, read)?;
        planner.compute(0, planner.hash_of(near.bytes))?;
        planner.input(written);
        planner.input(read);
        Ok(())
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if takes_long(cx) {
            return Ok(());
        }
        let Target::Compute(members) = &mut cx.target else { return Ok(()) };
        let seen = (members.cell(1).value.is_some(), members.version(1));
        if seen.0
            && let Some(mut cell) = members.cell_mut(0)
        {
            let new = bump(cell.string());
            cell.put(new);
        }
        Writer(cx.out).int(seen.1.number().unwrap_or_default() as i64);
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
        cx.writer().int(version.number().unwrap_or_default() as i64);
        Ok(())
    }
}

struct After;

impl Procedure for After {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        let (Some(read), Some(taken), Some(written), None) =
            (items.next(), items.next(), items.next(), items.next())
        else {
            return Err(ARITY);
        };
        planner.key(0, Access::Read, read)?;
        let taken = planner.key(0, Access::Read, taken)?;
        planner.key(1, Access::Write, written)?;
        planner.input(taken);
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if code == 0 {
            let held = cx.cell().string().unwrap_or_default().to_vec();
            cx.writer().bulk(&held);
            return Ok(());
        }
        let taken = cx.inputs.get(0).as_bytes().unwrap_or_default().to_vec();
        cx.cell_mut().put(Value::String(taken));
        cx.writer().ok();
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

struct Ledger;

impl Ledger {
    /// So many entries; then the first are written anew.
    const ENTRIES: i64 = 8;

    /// The number of the next entry, whatever else has become of the ledger.
    fn next(cx: &FragmentContext<'_>) -> i64 {
        let text = cx.cell().string().and_then(|bytes| std::str::from_utf8(bytes).ok());
        text.and_then(|text| text.parse().ok()).unwrap_or(0i64).rem_euclid(Ledger::ENTRIES)
    }

    /// The children: the numbers and lengths of the entries.
    fn describe(cx: &mut FragmentContext<'_>) -> Vec<u8> {
        let children = cx.children();
        let mut text = Vec::new();
        for n in 0..Ledger::ENTRIES {
            match &children.read(&n.to_be_bytes()).value {
                Some(Value::String(entry)) => text.extend([n as u8, entry.len() as u8]),
                Some(Value::Hash(entry)) => text.extend([n as u8, 100 + entry.len() as u8]),
                Some(Value::Evicted(_)) => panic!("child records are not evicted"),
                None => {}
            }
        }
        text
    }
}

impl Procedure for Ledger {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        let (Some(&[bits]), 5) =
            (items.next().map(|arg| arg.bytes.first_chunk().unwrap_or(&[0])), args.len())
        else {
            return Err(ARITY);
        };
        let mut first = None;
        for (code, key) in items.enumerate() {
            let access = if code == 2 { Access::Read } else { Access::Write };
            let slot = planner.key(code as u16, access, key)?;
            if code < 3 {
                planner.with_children();
            }
            if bits & 1 << code != 0 {
                planner.abortable();
            }
            match first {
                None => first = Some(slot),
                // Half of them wait for the first.
                Some(first) if bits & 1 << 4 != 0 && code < 3 => planner.input(first),
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let may_abort =
            cx.args.get(0).and_then(|bits| bits.first()).is_some_and(|bits| bits & 1 << code != 0);
        if code == 3 {
            let new = bump(cx.cell().string());
            cx.cell_mut().put(new);
            cx.writer().ok();
            return Ok(());
        }
        let next = Ledger::next(cx);
        let given = cx.inputs.get(0).as_bytes().map_or(1, <[u8]>::len) as i64;
        match code {
            0 => {
                let entry = vec![b'e'; 1 + given as usize % 40];
                cx.children().edit(&next.to_be_bytes(), &mut |cell| cell.put_string(&entry));
                cx.cell_mut().put_string((next + 1).to_string().as_bytes());
            }
            1 if next == 5 => {
                // Entries outlive their ledger.
                cx.cell_mut().delete();
                cx.children().edit(&given.rem_euclid(Ledger::ENTRIES).to_be_bytes(), &mut |cell| {
                    if cell.value.is_some() {
                        cell.delete();
                    }
                });
            }
            1 => {
                let from = (next + given).rem_euclid(Ledger::ENTRIES).to_be_bytes();
                let mut taken = None;
                cx.children().edit(&from, &mut |cell| {
                    taken = cell.value.clone();
                    cell.delete();
                });
                cx.children().edit(&next.to_be_bytes(), &mut |cell| {
                    if cell.string().is_some() {
                        cell.delete();
                    }
                    cell.set_field(b"from", &from);
                    if taken.is_none() {
                        cell.set_field(&given.to_be_bytes(), b"nothing");
                    }
                });
            }
            _ => {}
        }
        let text = Ledger::describe(cx);
        cx.writer().bulk(&text);
        if may_abort && text.len() as i64 % 7 == next % 7 {
            return Err(Abort::Logic);
        }
        if may_abort && text.len() == 6 && next == 1 {
            // A panic like any other, but for the message that a panic's hook would print.
            std::panic::resume_unwind(Box::new("a panic that was asked for"));
        }
        Ok(())
    }

    fn reply(&self, cx: &ordain_model::ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).array(4);
        (0..4).for_each(|slot| out.extend_from_slice(cx.slot(slot)));
    }
}

struct Take;

impl Take {
    const CHECK: u16 = 0;
    const REMOVE: u16 = 1;
    const COUNT: u16 = 2;
}

impl Procedure for Take {
    /// Plans a validated read, then the pointer and its target if there is one.
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        system::plan_validation(planner, &mut items, Take::CHECK)?;
        for code in [Take::REMOVE, Take::COUNT] {
            if let Some(key) = items.next() {
                planner.key(code, Access::Write, key)?;
            }
        }
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        match code {
            Take::CHECK => return system::validate_read(cx, Abort::Restart),
            Take::REMOVE => cx.cell_mut().delete(),
            _ => {
                let new = bump(cx.cell().string());
                cx.cell_mut().put(new.clone());
                if let Value::String(text) = new {
                    Writer(cx.out).bulk(&text)
                }
            }
        }
        Ok(())
    }

    fn reply(&self, cx: &ordain_model::ReplyContext<'_>, out: &mut Vec<u8>) {
        if cx.count == 1 { Writer(out).nil() } else { out.extend_from_slice(cx.slot(cx.count - 1)) }
    }

    fn abort_reply(
        &self,
        abort: Abort,
        _slot: SlotNo,
        cx: &ordain_model::ReplyContext<'_>,
        out: &mut Vec<u8>,
    ) {
        match abort {
            Abort::Restart => system::restart_reply(cx, 0, 1, out),
            _ => Writer(out).abort(abort),
        }
    }

    fn is_dependent(&self) -> bool {
        true
    }

    fn reconnoitre(&self, args: Args<'_>, known: &Known) -> Result<Reconnaissance, PlanError> {
        let (Some(key), 1) = (args.get(0), args.len()) else { return Err(ARITY) };
        let Some(seen) = known.reads.first() else {
            return Ok(Reconnaissance::Read(vec![(Db(0), key.to_vec())]));
        };
        let target = seen.cell.string();
        if target == Some(b"!") {
            return Err(PlanError::fixed("ERR not this one"));
        }
        let mut ready = Vec::new();
        let mut real = ArgsBuilder::new(&mut ready);
        system::validation_args([(seen.db, key, seen.version)].into_iter(), &mut real);
        if let Some(target) = target {
            real.push(key).push(target);
        }
        Ok(Reconnaissance::Ready(ready))
    }
}
