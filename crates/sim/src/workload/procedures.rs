//! The simulator's own procedures: each is small, and each goes a way through an engine that a checker can
//! see the end of.
//!
//! The procedures work in databases of their own so that what one conserves the others do not touch. Numbers are kept
//! as decimal text; a record that is absent counts as its database's starting value.

use std::sync::Arc;

use ordain_model::args::{Args, ArgsBuilder};
use ordain_model::procedure::{Known, Reconnaissance};
use ordain_model::table_procedure::{TableProcedure, any_args, sum_reply};
use ordain_model::{
    Abort, Access, Cell, Datum, Db, FragmentContext, Millis, PlanError, Planner, Position, Procedure,
    ProcedureId, Registry, ReplyContext, SlotNo, Target, Value, Writer, system,
};

/// Moves an amount from one account to another; aborts if there is not enough. Arguments: from, to, amount.
pub const TRANSFER: ProcedureId = ProcedureId(60_000);
/// Moves a share of one account to another. Arguments: from, to, percent.
pub const SKIM: ProcedureId = ProcedureId(60_001);
/// Each key takes the value of the one before it. Arguments: keys.
pub const ROTATE: ProcedureId = ProcedureId(60_002);
/// Appends to a list and answers all of it. Arguments: key, item.
pub const APPEND: ProcedureId = ProcedureId(60_003);
/// Adds one to each key. Arguments: keys.
pub const INCREMENT: ProcedureId = ProcedureId(60_004);
/// Writes to all its keys in one compute step, then may abort. Arguments: a number, keys.
pub const COMPUTE: ProcedureId = ProcedureId(60_005);
/// Adds one to each key, and panics after some of the additions. Arguments: a number, keys.
pub const PANIC: ProcedureId = ProcedureId(60_006);
/// Ends the process that executes it; in runs with an operator alone. Arguments: keys.
pub const FATAL: ProcedureId = ProcedureId(60_099);
/// Adds to whatever counter a pointer names. Arguments: pointer, amount.
pub const DEPENDENT: ProcedureId = ProcedureId(60_007);
/// Makes a pointer name another counter. Arguments: pointer, target.
pub const REPOINT: ProcedureId = ProcedureId(60_008);
/// Creates an object; aborts if it is there. Arguments: key, value.
pub const INSERT: ProcedureId = ProcedureId(60_009);
/// Deletes an object. Arguments: key.
pub const DELETE: ProcedureId = ProcedureId(60_010);
/// Overwrites an object without reading it. Arguments: key, value.
pub const PUT: ProcedureId = ProcedureId(60_011);
/// Reads keys of the call's database. Arguments: keys.
pub const GET: ProcedureId = ProcedureId(60_012);
/// Answers how far all the accounts together are from what they started with, key by key. Arguments: keys.
pub const AUDIT: ProcedureId = ProcedureId(60_013);
/// Answers the same as [`AUDIT`], by a scan of the whole table. No arguments.
pub const AUDIT_TABLE: ProcedureId = ProcedureId(60_014);
/// Counts the records of the call's database by a scan. No arguments.
pub const COUNT: ProcedureId = ProcedureId(60_015);
/// Deletes all objects. No arguments.
pub const CLEAR: ProcedureId = ProcedureId(60_016);
/// Reads keys and answers their sum, or aborts if it is odd: a read that may abort. Arguments: keys.
pub const EVEN: ProcedureId = ProcedureId(60_017);

/// The database of the accounts.
pub const ACCOUNTS: Db = Db(1);
/// The database of [`ROTATE`], [`COMPUTE`] and [`PANIC`].
pub const CELLS: Db = Db(2);
/// The database of the lists.
pub const LISTS: Db = Db(3);
/// The database of the counters.
pub const COUNTERS: Db = Db(4);
/// The database of the pointers.
pub const POINTERS: Db = Db(5);
/// The database of objects that come and go.
pub const OBJECTS: Db = Db(6);

/// The balance of an account without a record.
pub const OPENING_BALANCE: i64 = 100;

/// Adds the procedures.
pub fn register(registry: &mut Registry) {
    use Access::{Read, Write};
    use Takes::{Key, KeyAndWord, Keys, NumberAndKeys};
    let share = |balance: i64, percent: i64| balance * percent.clamp(0, 100) / 100;
    registry.register(
        TRANSFER,
        "sim.transfer",
        Arc::new(Pay { taken: |_, amount| amount, is_checked: true }),
    );
    registry.register(SKIM, "sim.skim", Arc::new(Pay { taken: share, is_checked: false }));
    registry.register(ROTATE, "sim.rotate", Arc::new(Rotate));
    registry.register(APPEND, "sim.append", OfKeys::new(KeyAndWord, Write, append).shared());
    registry.register(INCREMENT, "sim.increment", OfKeys::new(Keys, Write, increment).shared());
    registry.register(COMPUTE, "sim.compute", Arc::new(Compute));
    registry.register(PANIC, "sim.panic", OfKeys::new(NumberAndKeys, Write, panic).abortable().shared());
    registry.register(DEPENDENT, "sim.dependent", Arc::new(Dependent));
    registry.register(REPOINT, "sim.repoint", OfKeys::new(KeyAndWord, Write, repoint).shared());
    registry.register(INSERT, "sim.insert", OfKeys::new(KeyAndWord, Write, insert).abortable().shared());
    registry.register(DELETE, "sim.delete", OfKeys::new(Key, Write, delete).shared());
    registry.register(PUT, "sim.put", OfKeys::new(KeyAndWord, Write, put).blind().shared());
    registry.register(GET, "sim.get", OfKeys::new(Keys, Read, get).shared());
    registry.register(
        AUDIT,
        "sim.audit",
        OfKeys::new(Keys, Read, audit).of(ACCOUNTS).answering_sum().shared(),
    );
    registry.register(
        AUDIT_TABLE,
        "sim.audit-table",
        TableProcedure::reads_values(any_args, audit_table, sum_reply),
    );
    registry.register(COUNT, "sim.count", TableProcedure::reads(any_args, count, sum_reply));
    registry.register(CLEAR, "sim.clear", TableProcedure::writes(any_args, clear, sum_reply));
    registry.register(EVEN, "sim.even", Arc::new(Even));
    super::ledgers::register(registry);
}

/// Adds [`FATAL`], which says so to `ends` whenever it is executed.
pub fn register_fatal(registry: &mut Registry, ends: impl Fn() + Send + Sync + 'static) {
    registry.register(FATAL, "sim.fatal", Arc::new(Fatal { ends: Box::new(ends) }));
}

pub(super) const ARITY: PlanError =
    PlanError::fixed("ERR wrong number of arguments for a procedure of the simulator");

pub(super) fn number(bytes: &[u8]) -> Option<i64> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

pub(super) fn held(cell: &Cell, absent: i64) -> i64 {
    cell.string().and_then(number).unwrap_or(absent)
}

pub(super) fn text(n: i64) -> Value {
    Value::String(n.to_string().into_bytes())
}

pub(super) fn arg_number(args: Args<'_>, i: usize) -> Result<i64, PlanError> {
    args.get(i).and_then(number).ok_or(PlanError::NOT_INTEGER)
}

/// A fragment for each argument from `first` on; one at least.
pub(super) fn each_key(
    args: Args<'_>,
    first: usize,
    mut plan: impl FnMut(ordain_model::args::Arg<'_>) -> Result<(), PlanError>,
) -> Result<(), PlanError> {
    if args.len() <= first {
        return Err(ARITY);
    }
    args.iter().skip(first).try_for_each(&mut plan)
}

/// Answers every slot of the call, as an array.
fn all_slots(cx: &ReplyContext<'_>, slots: std::ops::Range<u32>, out: &mut Vec<u8>) {
    Writer(out).array(slots.len());
    slots.for_each(|i| out.extend_from_slice(cx.slot(i)));
}

/// Answers the sum of the call's slots.
fn sum_slots(cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
    let sum = (0..cx.count).filter_map(|i| Datum::first(cx.slot(i)).as_int()).sum();
    Writer(out).int(sum);
}

/// The arguments of a procedure of keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// One key.
    Key,
    /// One key, and a word behind it.
    KeyAndWord,
    /// One key or several.
    Keys,
    /// A number, and then one key or several.
    NumberAndKeys,
}

/// A procedure of equal fragments, one for each key. It answers the slot of its only key, or those of all its keys.
pub(super) struct OfKeys {
    takes: Takes,
    access: Access,
    run: fn(&mut FragmentContext<'_>) -> Result<(), Abort>,
    /// The database of the keys, if it is not the call's.
    db: Option<Db>,
    is_abortable: bool,
    with_children: bool,
    is_blind: bool,
    answers_sum: bool,
}

impl OfKeys {
    pub(super) fn new(
        takes: Takes,
        access: Access,
        run: fn(&mut FragmentContext<'_>) -> Result<(), Abort>,
    ) -> OfKeys {
        OfKeys {
            takes,
            access,
            run,
            db: None,
            is_abortable: false,
            with_children: false,
            is_blind: false,
            answers_sum: false,
        }
    }

    fn abortable(self) -> OfKeys {
        OfKeys { is_abortable: true, ..self }
    }

    pub(super) fn of(self, db: Db) -> OfKeys {
        OfKeys { db: Some(db), ..self }
    }

    pub(super) fn with_children(self) -> OfKeys {
        OfKeys { with_children: true, ..self }
    }

    fn blind(self) -> OfKeys {
        OfKeys { is_blind: true, ..self }
    }

    pub(super) fn answering_sum(self) -> OfKeys {
        OfKeys { answers_sum: true, ..self }
    }

    pub(super) fn shared(self) -> Arc<OfKeys> {
        Arc::new(self)
    }
}

impl Procedure for OfKeys {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let (first, count) = match (self.takes, args.len()) {
            (Takes::Key, 1) | (Takes::KeyAndWord, 2) => (0, 1),
            (Takes::Keys, keys @ 1..) => (0, keys),
            (Takes::NumberAndKeys, arguments @ 2..) => (1, arguments - 1),
            _ => return Err(ARITY),
        };
        if self.takes == Takes::NumberAndKeys {
            arg_number(args, 0)?;
        }
        for key in args.iter().skip(first).take(count) {
            match self.db {
                Some(db) => planner.key_in(db, 0, self.access, key)?,
                None => planner.key(0, self.access, key)?,
            };
            if self.with_children {
                planner.with_children();
            }
            planner.blind_if(self.is_blind);
            if self.is_abortable {
                planner.abortable();
            }
        }
        Ok(())
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        (self.run)(cx)
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        match self.takes {
            _ if self.answers_sum => sum_slots(cx, out),
            Takes::Key | Takes::KeyAndWord => out.extend_from_slice(cx.slot(0)),
            Takes::Keys | Takes::NumberAndKeys => all_slots(cx, 0..cx.count, out),
        }
    }
}

/// Takes money from one account and gives it to another.
struct Pay {
    /// The money to take from a balance, by the number behind the accounts.
    taken: fn(i64, i64) -> i64,
    /// Aborts if there is not enough, and answers for both accounts.
    is_checked: bool,
}

impl Procedure for Pay {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        let (Some(from), Some(to), 3) = (items.next(), items.next(), args.len()) else { return Err(ARITY) };
        arg_number(args, 2)?;
        let taken = planner.key(0, Access::Write, from)?;
        if self.is_checked {
            planner.abortable();
        }
        planner.key(1, Access::Write, to)?;
        planner.input(taken);
        planner.silent_if(!self.is_checked);
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let balance = held(cx.cell(), OPENING_BALANCE);
        if code == 0 {
            let taken = (self.taken)(balance, cx.args.get(2).and_then(number).unwrap_or(0));
            // Written before it is checked, so that an abort has something to undo.
            cx.cell_mut().put(text(balance - taken));
            if self.is_checked && balance < taken {
                cx.writer().error(format!("ERR insufficient funds: {balance}"));
                return Err(Abort::Logic);
            }
            cx.writer().int(taken);
        } else {
            let balance = balance + cx.inputs.get(0).as_int().unwrap_or(0);
            cx.cell_mut().put(text(balance));
            if self.is_checked {
                cx.writer().int(balance);
            }
        }
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        if self.is_checked { all_slots(cx, 0..2, out) } else { out.extend_from_slice(cx.slot(0)) }
    }
}

struct Rotate;

impl Procedure for Rotate {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut slots = Vec::new();
        each_key(args, 0, |key| {
            slots.push(planner.key(0, Access::Read, key)?);
            Ok(())
        })?;
        slots.rotate_right(1);
        let mut from = slots.into_iter();
        each_key(args, 0, |key| {
            planner.key(1, Access::Write, key)?;
            planner.silent();
            planner.blind();
            from.next().into_iter().for_each(|slot| planner.input(slot));
            Ok(())
        })
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if code == 0 {
            let old = cx.cell().string().unwrap_or_default().to_vec();
            cx.writer().bulk(&old);
        } else {
            let new = cx.inputs.get(0).as_bytes().unwrap_or_default().to_vec();
            if new.is_empty() {
                // A place where nothing was: give it a value that tells where it came from.
                let key = cx.key.bytes.to_vec();
                cx.cell_mut().put(Value::String(key));
            } else {
                cx.cell_mut().put(Value::String(new));
            }
        }
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        all_slots(cx, 0..cx.count / 2, out);
    }
}

fn append(cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
    let item = cx.rest().bytes().to_vec();
    cx.cell_mut().change_string(|list| {
        // Long lists would make long runs slow: start over, which shows in the answer as well.
        if list.len() > 512 {
            list.clear();
        }
        list.extend_from_slice(&item);
        list.push(b',');
    });
    let list = cx.cell().string().unwrap_or_default().to_vec();
    cx.writer().bulk(&list);
    Ok(())
}

fn increment(cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
    let n = held(cx.cell(), 0).wrapping_add(1);
    cx.cell_mut().put(text(n));
    cx.writer().int(n);
    Ok(())
}

/// Has every third compute fragment give up where it stands on an event loop, as one does that takes long.
fn takes_long(cx: &mut FragmentContext<'_>) -> bool {
    let is_long = cx.locals.patience().is_some() && cx.seed.is_multiple_of(3);
    if is_long {
        cx.locals.give_up();
    }
    is_long
}

struct Compute;

impl Procedure for Compute {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        arg_number(args, 0)?;
        let mut shipped: Vec<SlotNo> = Vec::new();
        let mut near = None;
        each_key(args, 1, |key| {
            // The first of several members is only read.
            let access = if shipped.is_empty() && args.len() > 2 { Access::Read } else { Access::Write };
            shipped.push(planner.ship(access, key)?);
            near = Some(planner.hash_of(key.bytes));
            Ok(())
        })?;
        planner.compute(0, near.unwrap_or_default())?;
        planner.abortable();
        shipped.into_iter().for_each(|slot| planner.input(slot));
        Ok(())
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if takes_long(cx) {
            return Ok(());
        }
        let salt = cx.args.get(0).and_then(number).unwrap_or(0);
        let Target::Compute(members) = &mut cx.target else { return Err(Abort::Logic) };
        let mut sum = salt;
        for member in 0..members.len() {
            sum = sum.wrapping_add(held(members.cell(member), 0));
            if let Some(mut cell) = members.cell_mut(member) {
                cell.put(text(sum % 1000));
            }
        }
        let mut w = Writer(cx.out);
        if sum % 5 == 0 {
            w.error(format!("ERR the sum {sum} is a multiple of five"));
            return Err(Abort::Logic);
        }
        w.int(sum);
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(cx.slot(cx.count - 1));
    }
}

fn panic(cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
    let salt = cx.args.get(0).and_then(number).unwrap_or(0);
    let n = held(cx.cell(), 0).wrapping_add(1);
    cx.cell_mut().put(text(n));
    cx.writer().int(n);
    if n.wrapping_add(salt) % 4 == 0 {
        // A panic like any other, but for the message that a panic's hook would print.
        std::panic::resume_unwind(Box::new("a panic that was asked for"));
    }
    Ok(())
}

/// Ends the process that executes it.
struct Fatal {
    ends: Box<dyn Fn() + Send + Sync>,
}

impl Procedure for Fatal {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        each_key(args, 0, |key| {
            planner.key(0, Access::Write, key)?;
            planner.abortable();
            Ok(())
        })
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        (self.ends)();
        // The process has ended: this has no effect.
        cx.cell_mut().put(text(666));
        Err(Abort::Logic)
    }

    fn reply(&self, _: &ReplyContext<'_>, _: &mut Vec<u8>) {}
}

struct Dependent;

impl Dependent {
    const CHECK: u16 = 0;
    const ADD: u16 = 1;
    /// The counter that an absent pointer names.
    const NOWHERE: &'static [u8] = b"nowhere";
}

impl Procedure for Dependent {
    /// Plans what [`Dependent::reconnoitre`] made of the caller's arguments: validated read, target, amount.
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        system::plan_validation(planner, &mut items, Dependent::CHECK)?;
        let target = items.next().ok_or(ARITY)?;
        items.next().and_then(|amount| number(amount.bytes)).ok_or(PlanError::NOT_INTEGER)?;
        planner.key_in(COUNTERS, Dependent::ADD, Access::Write, target).map(drop)
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if code == Dependent::CHECK {
            return system::validate_read(cx, Abort::Restart);
        }
        let amount = number(cx.rest().bytes()).unwrap_or(0);
        let n = held(cx.cell(), 0).wrapping_add(amount);
        cx.cell_mut().put(text(n));
        cx.writer().int(n);
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(cx.slot(cx.count - 1));
    }

    fn abort_reply(&self, abort: Abort, _slot: SlotNo, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        match abort {
            Abort::Restart => system::restart_reply(cx, 0, cx.count - 1, out),
            _ => Writer(out).abort(abort),
        }
    }

    fn is_dependent(&self) -> bool {
        true
    }

    fn reconnoitre(&self, args: Args<'_>, known: &Known) -> Result<Reconnaissance, PlanError> {
        let (Some(pointer), Some(amount), 2) = (args.get(0), args.get(1), args.len()) else {
            return Err(ARITY);
        };
        let Some(seen) = known.reads.iter().find(|e| e.key == pointer) else {
            return Ok(Reconnaissance::Read(vec![(POINTERS, pointer.to_vec())]));
        };
        let mut ready = Vec::new();
        let mut real = ArgsBuilder::new(&mut ready);
        system::validation_args([(seen.db, &*seen.key, seen.version)].into_iter(), &mut real);
        real.push(seen.cell.string().unwrap_or(Dependent::NOWHERE)).push(amount);
        Ok(Reconnaissance::Ready(ready))
    }
}

fn insert(cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
    if cx.cell().value.is_some() {
        cx.writer().error("ERR the object exists");
        return Err(Abort::Logic);
    }
    let value = cx.rest().bytes().to_vec();
    cx.cell_mut().put(Value::String(value));
    cx.writer().ok();
    Ok(())
}

fn delete(cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
    let there = cx.cell().value.is_some();
    if there {
        cx.cell_mut().delete();
    }
    cx.writer().int(i64::from(there));
    Ok(())
}

fn put(cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
    cx.writer().ok();
    replace(cx);
    Ok(())
}

fn repoint(cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
    let old = cx.cell().string().unwrap_or_default().to_vec();
    cx.writer().bulk(&old);
    replace(cx);
    Ok(())
}

fn replace(cx: &mut FragmentContext<'_>) {
    let value = cx.rest().bytes().to_vec();
    // An expiry far ahead, so that it is part of what is compared and never of what happens.
    let expires_at = Millis(if value.len().is_multiple_of(2) { 0 } else { 1 << 50 });
    cx.cell_mut().replace(Cell { value: Some(Value::String(value)), expires_at: expires_at.into() });
}

fn get(cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
    match cx.cell().string().map(<[u8]>::to_vec) {
        Some(bytes) => cx.writer().bulk(&bytes),
        None => cx.writer().nil(),
    }
    Ok(())
}

fn audit(cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
    let off = held(cx.cell(), OPENING_BALANCE) - OPENING_BALANCE;
    cx.writer().int(off);
    Ok(())
}

fn audit_table(cx: &mut FragmentContext<'_>) {
    let mut off = 0;
    if let Target::Table(table) = &cx.target {
        table.scan(ACCOUNTS, Position::default(), &mut |_, _, cell| {
            off += held(cell, OPENING_BALANCE) - OPENING_BALANCE;
            true
        });
    }
    cx.writer().int(off);
}

fn count(cx: &mut FragmentContext<'_>) {
    let mut count = 0;
    if let Target::Table(table) = &cx.target {
        table.scan(cx.db, Position::default(), &mut |_, _, _| {
            count += 1;
            true
        });
    }
    cx.writer().int(count);
}

fn clear(cx: &mut FragmentContext<'_>) {
    let mut removed = 0;
    if let Target::Table(table) = &mut cx.target {
        removed = table.len(OBJECTS) as i64;
        table.clear(Some(OBJECTS));
    }
    cx.writer().int(removed);
}

struct Even;

impl Procedure for Even {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut read: Vec<SlotNo> = Vec::new();
        let mut near = None;
        each_key(args, 0, |key| {
            near = Some(planner.hash_of(key.bytes));
            read.push(planner.key(0, Access::Read, key)?);
            planner.silent();
            Ok(())
        })?;
        planner.compute(1, near.unwrap_or_default())?;
        planner.abortable();
        read.into_iter().for_each(|slot| planner.input(slot));
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if code == 0 {
            let n = held(cx.cell(), 0);
            cx.writer().int(n);
            return Ok(());
        }
        if takes_long(cx) {
            return Ok(());
        }
        let sum: i64 = (0..cx.inputs.len()).filter_map(|i| cx.inputs.get(i).as_int()).sum();
        if sum % 2 != 0 {
            cx.writer().error(format!("ERR the sum {sum} is odd"));
            return Err(Abort::Logic);
        }
        cx.writer().int(sum);
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(cx.slot(cx.count - 1));
    }
}
