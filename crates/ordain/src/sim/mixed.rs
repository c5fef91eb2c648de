//! The mix of the commit family: lists that are appended to by every kind of plan, whole databases that come and go, and leases
//! that expire. It is judged by the answers, by the lists at the end, and by what the logs tell of registers.
//!
//! The lists are those of [`AppendMix`]. Beside its transactions there are [`COMPUTED`] ones, which do the same in one compute
//! fragment and read everything again after it, and a [`SURVEY`] of all lists at once. [`CLEAR`] and [`SWAP`] write whole
//! databases in which no list is: they lock everything, and what the logs say of them is held against each member's state.
//! [`registers`] are overwritten, mostly without a look at them.
//!
//! A *lease* is a record that is written once and expires. Once a client has seen that it is gone, nobody may see it
//! who asks after that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_checker::dependencies::history::{Txn, values_of};
use ordain_checker::history::{Answer, History, Moment, Request};
use ordain_checker::{Violation, ViolationKind};
use ordain_model::args::encode;
use ordain_model::procedure::Target;
use ordain_model::system::parts;
use ordain_model::table_procedure::{TableProcedure, any_args, ok_reply, run_ok};
use ordain_model::{
    Abort, Access, Args, Call, Datum, Db, FragmentContext, Millis, OutcomeStatus, PlanError, Planner,
    Position, Procedure, ProcedureId, Random, Registry, ReplyContext, SlotNo, Value, Writer,
};
use ordain_sim::Workload;
use ordain_workload::append;

use super::appends::{AppendMix, LISTS, list_of};
use super::registers;

/// As `append.run`, in one compute fragment, and reads its lists again in the end. The arguments are the same.
const COMPUTED: ProcedureId = ProcedureId(60_060);
/// Reads all lists at once. Argument: the base, 8 bytes.
const SURVEY: ProcedureId = ProcedureId(60_061);
/// Removes all records of [`FIRST`].
const CLEAR: ProcedureId = ProcedureId(60_062);
/// Exchanges [`FIRST`] and [`SECOND`].
const SWAP: ProcedureId = ProcedureId(60_063);
/// Writes a lease. Arguments: its key, and how long it lasts, milliseconds, 8 bytes.
const LEASE: ProcedureId = ProcedureId(60_064);
/// Reads leases: 1 for each that is there, or else 0. Arguments: their keys.
const LOOK: ProcedureId = ProcedureId(60_065);

/// Two databases without lists, to which leases are copied so that they are not empty.
const FIRST: Db = Db(5);
const SECOND: Db = Db(6);
/// The database of the leases.
const LEASES: Db = Db(7);
/// Leases last up to two to this power of milliseconds: many end at once, and some survive a change of leaders.
const LONGEST: usize = 13;
/// The leases that are looked at are among so many last ones, and so many at once.
const RECENT: usize = 12;
const LOOKED_AT: usize = 6;

/// Adds the procedures.
pub(super) fn register(registry: &mut Registry) {
    registry.register(COMPUTED, "sim.computed", Arc::new(Computed));
    registry.register(SURVEY, "sim.survey", TableProcedure::reads_values(any_args, survey, survey_reply));
    registry.register(CLEAR, "sim.clear-first", TableProcedure::writes(any_args, clear, ok_reply));
    registry.register(SWAP, "sim.swap", TableProcedure::writes(any_args, swap, ok_reply));
    registry.register(LEASE, "sim.lease", Arc::new(Lease));
    registry.register(LOOK, "sim.look", Arc::new(Look));
    registers::register(registry);
}

/// True if a procedure answers with a transaction of lists or of registers.
pub(super) fn is_of_lists(procedure: ProcedureId) -> bool {
    [append::RUN, COMPUTED, SURVEY, registers::RUN].contains(&procedure)
}

/// The transaction of a survey, as far as its arguments say.
pub(super) fn surveyed(request: &Request) -> Option<Txn> {
    let base = Args::parse(&request.args)?.iter().next()?.bytes.first_chunk().copied()?;
    (request.call.procedure == SURVEY).then(|| Txn { base: u64::from_le_bytes(base), ops: Vec::new() })
}

/// See the module.
#[derive(Default)]
pub(super) struct CommitMix {
    appends: AppendMix,
    leases: u64,
}

impl Workload for CommitMix {
    fn next(&mut self, random: &mut Random) -> (Call, Vec<u8>) {
        let of_lists = |procedure| Call::new(procedure, append::DB);
        match random.index(100) {
            0..36 => self.appends.next(random),
            36..52 => {
                let (_, args) = self.appends.next(random);
                (of_lists(COMPUTED), args)
            }
            52..55 => (of_lists(SURVEY), encode(&[&self.appends.next_base().to_le_bytes()[..]])),
            55..57 => (of_lists(CLEAR), encode::<&[u8]>(&[])),
            57..59 => (of_lists(SWAP), encode::<&[u8]>(&[])),
            59..62 => {
                self.leases += 1;
                let longest = 1 << (1 + random.index(LONGEST));
                let millis = 1 + random.index(longest) as u64;
                let args = [self.leases.to_le_bytes(), millis.to_le_bytes()];
                (Call::new(LEASE, LEASES), encode(&[&args[0][..], &args[1][..]]))
            }
            62..88 => registers::draw(self.appends.next_base(), random),
            _ => {
                let looked_at = (0..1 + random.index(LOOKED_AT)).map(|_| random.index(RECENT) as u64);
                let keys: BTreeSet<[u8; 8]> =
                    looked_at.map(|ago| self.leases.saturating_sub(ago).to_le_bytes()).collect();
                let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
                (Call::new(LOOK, LEASES), encode(&keys))
            }
        }
    }
}

/// The keys of a transaction of lists, one for each operation, then its mask and base.
fn operations(args: Args<'_>) -> Option<(Vec<&[u8]>, u8, u64)> {
    let mut keys: Vec<&[u8]> = args.iter().map(|arg| arg.bytes).collect();
    let [mask, _, base @ ..] = keys.pop()? else { return None };
    Some((keys, *mask, u64::from_le_bytes(base.try_into().ok()?)))
}

pub(super) const DAMAGED: PlanError = PlanError::fixed("ERR damaged arguments of the simulator's mix");

struct Computed;

impl Procedure for Computed {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let (keys, mask, _) = operations(args).filter(|(keys, ..)| !keys.is_empty()).ok_or(DAMAGED)?;
        let mut shipped: Vec<(&[u8], SlotNo)> = Vec::new();
        let all: Vec<_> = args.iter().take(keys.len()).collect();
        for key in &all {
            if shipped.iter().any(|(other, _)| *other == key.bytes) {
                continue;
            }
            let is_appended = (0..).zip(&keys).any(|(op, of)| *of == key.bytes && mask >> op & 1 == 1);
            let access = if is_appended { Access::Write } else { Access::Read };
            shipped.push((key.bytes, planner.ship(access, *key)?));
        }
        planner.compute(0, planner.hash_of(all[0].bytes))?;
        planner.abortable();
        shipped.iter().for_each(|(_, slot)| planner.input(*slot));
        all.into_iter().try_for_each(|key| planner.key(1, Access::Read, key).map(drop))
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if code == 1 {
            let list = cx.cell().string().unwrap_or_default().to_vec();
            cx.writer().bulk(&list);
            return Ok(());
        }
        // Some take long, and are given to a work thread.
        if cx.locals.patience().is_some() && cx.seed.is_multiple_of(3) {
            cx.locals.give_up();
            return Ok(());
        }
        let (args, db) = (cx.args, cx.db);
        let Some((keys, mask, base)) = operations(args) else { return Err(Abort::Logic) };
        let Target::Compute(members) = &mut cx.target else { return Err(Abort::Logic) };
        for (op, key) in (0..).zip(keys) {
            let list = list_of(key).unwrap_or_default();
            let member = members.find(db, key).ok_or(Abort::Logic)?;
            if mask >> op & 1 == 1 {
                let value = (base + op).to_le_bytes();
                let mut cell = members.cell_mut(member).ok_or(Abort::Logic)?;
                cell.change_string(|list| list.extend_from_slice(&value));
                Txn::encode_append(list, cx.out);
            } else {
                Txn::encode_read(list, members.cell(member).string().unwrap_or_default(), cx.out);
            }
        }
        if base.is_multiple_of(7) { Err(Abort::Logic) } else { Ok(()) }
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        let Some((keys, _, base)) = operations(cx.args()) else { return };
        let (mut txn, again) = (Vec::new(), cx.count - keys.len() as u32);
        Txn::encode_head(base, 2 * keys.len(), &mut txn);
        txn.extend_from_slice(cx.slot(again - 1));
        for (slot, key) in (again..).zip(keys) {
            let list = Datum::first(cx.slot(slot)).as_bytes().unwrap_or_default();
            Txn::encode_read(list_of(key).unwrap_or_default(), list, &mut txn);
        }
        Writer(out).bulk(&txn);
    }

    fn abort_reply(&self, abort: Abort, _: SlotNo, _: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).abort(abort);
    }
}

/// A shard's lists: key and content, alternately.
fn survey(cx: &mut FragmentContext<'_>) {
    let mut lists: Vec<(u64, Vec<u8>)> = Vec::new();
    if let Target::Table(table) = &cx.target {
        table.scan(append::DB, Position::default(), &mut |_, key, cell| {
            lists.extend(list_of(key).map(|list| (list, cell.string().unwrap_or_default().to_vec())));
            true
        });
    }
    cx.writer().array(2 * lists.len());
    for (list, content) in lists {
        cx.writer().bulk(&list.to_le_bytes());
        cx.writer().bulk(&content);
    }
}

fn survey_reply(cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
    let mut found: BTreeMap<u64, Vec<u8>> = (0..LISTS).map(|list| (list, Vec::new())).collect();
    for part in parts(cx.slot(0)) {
        let mut values = ordain_model::datum::DatumReader(part);
        for _ in 0..values.array().unwrap_or(0) / 2 {
            let list = values.bulk().and_then(|list| list.first_chunk().copied());
            let content = values.bulk().unwrap_or_default();
            _ = list.map(|list| found.insert(u64::from_le_bytes(list), content.to_vec()));
        }
    }
    let base = cx.args().iter().next().and_then(|base| base.bytes.first_chunk().copied());
    let mut txn = Vec::new();
    Txn::encode_head(u64::from_le_bytes(base.unwrap_or_default()), found.len(), &mut txn);
    found.iter().for_each(|(list, content)| Txn::encode_read(*list, content, &mut txn));
    Writer(out).bulk(&txn);
}

fn clear(cx: &mut FragmentContext<'_>) {
    if let Target::Table(table) = &mut cx.target {
        table.clear(Some(FIRST));
    }
    run_ok(cx);
}

fn swap(cx: &mut FragmentContext<'_>) {
    if let Target::Table(table) = &mut cx.target {
        table.swap(FIRST, SECOND);
    }
    run_ok(cx);
}

struct Lease;

impl Procedure for Lease {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let key = args.iter().next().ok_or(DAMAGED)?;
        planner.key(0, Access::Write, key)?;
        planner.blind();
        planner.key_in(FIRST, 0, Access::Write, key)?;
        planner.blind();
        planner.silent();
        Ok(())
    }

    fn run(&self, _: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let millis = cx.args.get(1).and_then(|millis| millis.first_chunk().copied());
        let until = cx.now.0 + u64::from_le_bytes(millis.unwrap_or_default());
        let mut cell = cx.cell_mut();
        cell.put(Value::String(b"leased".to_vec()));
        cell.set_expiry(Millis(until));
        cx.writer().ok();
        Ok(())
    }
}

struct Look;

impl Procedure for Look {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        args.iter().try_for_each(|key| planner.key(0, Access::Read, key).map(drop))
    }

    fn run(&self, _: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let is_there = cx.cell().value.is_some();
        cx.writer().int(i64::from(is_there));
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).array(cx.count as usize);
        (0..cx.count).for_each(|slot| out.extend_from_slice(cx.slot(slot)));
    }
}

/// A look at one lease.
struct Looked {
    lease: u64,
    is_there: bool,
    asked: Moment,
    answered: Moment,
}

/// Checks that nobody sees a lease who asks after a client has seen that it is gone.
///
/// # Errors
/// [`ViolationKind::RealTime`].
pub(super) fn check_leases(history: &History) -> Result<(), Violation> {
    let (mut written, mut looks): (BTreeMap<u64, Moment>, Vec<Looked>) = Default::default();
    for (_, request) in history.requests() {
        let done = request.answers.iter().filter(|answer| answer.status == OutcomeStatus::Committed);
        let keys = || Args::parse(&request.args).into_iter().flatten().map(|arg| arg.bytes);
        let number = |key: &[u8]| key.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        match request.call.procedure {
            LEASE => {
                let lease = keys().next().map_or(0, number);
                done.for_each(|answer| _ = written.insert(lease, answer.moment));
            }
            LOOK => {
                for answer in done {
                    let look = |(key, is_there)| Looked {
                        lease: number(key),
                        is_there,
                        asked: request.moment,
                        answered: answer.moment,
                    };
                    looks.extend(keys().zip(seen(answer)).map(look));
                }
            }
            _ => {}
        }
    }
    let mut gone: BTreeMap<u64, Moment> = BTreeMap::new();
    for look in looks.iter().filter(|look| !look.is_there) {
        // Before its answer the lease may not have been there yet.
        if written.get(&look.lease).is_some_and(|written| *written < look.asked) {
            let first = gone.entry(look.lease).or_insert(look.answered);
            *first = look.answered.min(*first);
        }
    }
    let came_back =
        |look: &&Looked| look.is_there && gone.get(&look.lease).is_some_and(|at| *at < look.asked);
    match looks.iter().find(came_back) {
        Some(look) => {
            let text = format!("lease {} was seen after a client had seen that it had expired", look.lease);
            Err(Violation::new(ViolationKind::RealTime, text))
        }
        None => Ok(()),
    }
}

/// The leases that a look has found, in the order of its keys.
fn seen(answer: &Answer) -> Vec<bool> {
    let mut values = ordain_model::datum::DatumReader(&answer.reply);
    let count = values.array().unwrap_or(0);
    (0..count).map_while(|_| values.int()).map(|found| found == 1).collect()
}

/// The values of a list.
pub(super) fn list_values(value: Option<&Value>) -> Option<Vec<u64>> {
    match value {
        Some(Value::String(bytes)) => values_of(bytes),
        _ => None,
    }
}
