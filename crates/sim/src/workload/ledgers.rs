//! Ledgers: procedures whose records come to have names only as they run.
//!
//! A ledger's record holds how many entries there are, and the entries are its children, each with the balance that
//! it leaves ([`ordain_model::children`]). What one ledger is charged another is credited, so that all balances
//! together are nothing at any place in the order; and every entry that a ledger's record counts is there, and no other.

use std::sync::Arc;

use ordain_model::args::{Args, ArgsBuilder, encode};
use ordain_model::procedure::{Known, Reconnaissance};
use ordain_model::table_procedure::{TableProcedure, any_args, sum_reply};
use ordain_model::{
    Abort, Access, Datum, Db, FragmentContext, PlanError, Planner, Position, Procedure, ProcedureId,
    Registry, ReplyContext, SlotNo, Target, Writer, split_child_key,
};

use super::procedures::{ARITY, COUNTERS, OfKeys, Takes, arg_number, held, number, text};

/// Charges an amount to one ledger and credits it to another; aborts if the first is charged too much, when it is
/// written already. Arguments: two ledgers, amount.
pub const POST: ProcedureId = ProcedureId(60_018);
/// Answers how many entries a ledger has, and the balance. Arguments: ledger.
pub const STATEMENT: ProcedureId = ProcedureId(60_019);
/// Adds to the counter that the balance of a ledger names, as [`STATEMENT`] tells it. Arguments: ledger, amount.
pub const SETTLE: ProcedureId = ProcedureId(60_020);
/// Answers the balances of ledgers together. Arguments: ledgers.
pub const AUDIT_LEDGERS: ProcedureId = ProcedureId(60_021);
/// Answers how many more entries the ledgers count than there are, by a scan of the whole table. No arguments.
pub const AUDIT_ENTRIES: ProcedureId = ProcedureId(60_022);

/// The database of the ledgers.
pub const LEDGERS: Db = Db(7);

/// A ledger must not be charged below this.
const FLOOR: i64 = -60;
/// So many entries are replaced by one with their balance.
const FULL: i64 = 6;
/// The balance of an entry that is counted and not there: no audit comes out right with it.
const LOST: i64 = 1 << 40;
/// The number of counters that balances name.
const COUNTERS_NAMED: i64 = 3;

pub(super) fn register(registry: &mut Registry) {
    registry.register(POST, "sim.post", Arc::new(Post));
    registry.register(
        STATEMENT,
        "sim.statement",
        OfKeys::new(Takes::Key, Access::Read, statement).of(LEDGERS).with_children().shared(),
    );
    registry.register(SETTLE, "sim.settle", Arc::new(Settle));
    let audit_ledgers = OfKeys::new(Takes::Keys, Access::Read, audit_ledger).of(LEDGERS).with_children();
    registry.register(AUDIT_LEDGERS, "sim.audit-ledgers", audit_ledgers.answering_sum().shared());
    registry.register(
        AUDIT_ENTRIES,
        "sim.audit-entries",
        TableProcedure::reads_values(any_args, audit_entries, sum_reply),
    );
}

/// The suffix of an entry.
fn entry(n: i64) -> [u8; 8] {
    n.to_be_bytes()
}

/// The number of entries of a ledger, and the balance that the last of them leaves.
fn standing(cx: &mut FragmentContext<'_>) -> (i64, i64) {
    let count = held(cx.cell(), 0);
    let balance = if count == 0 { 0 } else { held(cx.children().read(&entry(count - 1)), LOST) };
    (count, balance)
}

/// Answers the standing of a ledger, and returns the answer.
fn answer_standing(cx: &mut FragmentContext<'_>) -> Vec<u8> {
    let (count, balance) = standing(cx);
    let answer = format!("{count} {balance}").into_bytes();
    cx.writer().bulk(&answer);
    answer
}

struct Post;

impl Post {
    const CHARGE: u16 = 0;
    const CREDIT: u16 = 1;
}

impl Procedure for Post {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        let (Some(from), Some(to), 3) = (items.next(), items.next(), args.len()) else { return Err(ARITY) };
        arg_number(args, 2)?;
        planner.key_in(LEDGERS, Post::CHARGE, Access::Write, from)?;
        planner.with_children();
        planner.abortable();
        planner.key_in(LEDGERS, Post::CREDIT, Access::Write, to)?;
        planner.with_children();
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let amount = arg_number(cx.args, 2).unwrap_or(0);
        let (mut count, balance) = standing(cx);
        let balance = if code == Post::CHARGE { balance - amount } else { balance + amount };
        if count == FULL {
            let children = cx.children();
            (0..count).for_each(|n| children.edit(&entry(n), &mut |cell| cell.delete()));
            count = 0;
        }
        cx.children().edit(&entry(count), &mut |cell| cell.put(text(balance)));
        cx.cell_mut().put(text(count + 1));
        if code == Post::CHARGE && balance < FLOOR {
            cx.writer().error(format!("ERR charged down to {balance}"));
            return Err(Abort::Logic);
        }
        cx.writer().int(balance);
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).array(2);
        out.extend_from_slice(cx.slot(0));
        out.extend_from_slice(cx.slot(1));
    }
}

fn statement(cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
    answer_standing(cx);
    Ok(())
}

struct Settle;

impl Settle {
    const CHECK: u16 = 0;
    const ADD: u16 = 1;
}

impl Procedure for Settle {
    /// Plans what [`Settle::reconnoitre`] made of the caller's arguments: ledger, its statement, counter, amount.
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        let ledger = items.next().ok_or(ARITY)?;
        let counter = items.nth(1).ok_or(ARITY)?;
        arg_number(args, 3)?;
        planner.key_in(LEDGERS, Settle::CHECK, Access::Read, ledger)?;
        planner.with_children();
        planner.abortable();
        planner.key_in(COUNTERS, Settle::ADD, Access::Write, counter).map(drop)
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if code == Settle::CHECK {
            // The slot is what STATEMENT would answer, right or wrong: the reply of a restart.
            let standing = answer_standing(cx);
            return if cx.args.get(1) == Some(&*standing) { Ok(()) } else { Err(Abort::Restart) };
        }
        let n = held(cx.cell(), 0).wrapping_add(arg_number(cx.args, 3).unwrap_or(0));
        cx.cell_mut().put(text(n));
        cx.writer().int(n);
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(cx.slot(1));
    }

    fn abort_reply(&self, _abort: Abort, slot: SlotNo, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(cx.slots.slot(slot));
    }

    fn is_dependent(&self) -> bool {
        true
    }

    fn reconnoitre(&self, args: Args<'_>, known: &Known) -> Result<Reconnaissance, PlanError> {
        let (Some(ledger), Some(amount), 2) = (args.get(0), args.get(1), args.len()) else {
            return Err(ARITY);
        };
        let Some(answer) = known.answers.last() else {
            return Ok(Reconnaissance::Ask(STATEMENT, encode(&[ledger])));
        };
        let statement = Datum::first(answer).as_bytes().ok_or(ARITY)?;
        let balance = statement.split(|byte| *byte == b' ').next_back().and_then(number).ok_or(ARITY)?;
        let counter = format!("n{}", balance.rem_euclid(COUNTERS_NAMED));
        let mut ready = Vec::new();
        ArgsBuilder::new(&mut ready).push(ledger).push(statement).push(counter.as_bytes()).push(amount);
        Ok(Reconnaissance::Ready(ready))
    }
}

fn audit_ledger(cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
    let (_, balance) = standing(cx);
    cx.writer().int(balance);
    Ok(())
}

fn audit_entries(cx: &mut FragmentContext<'_>) {
    let mut missing = 0;
    if let Target::Table(table) = &cx.target {
        table.scan(LEDGERS, Position::default(), &mut |_, _, cell| {
            missing += held(cell, 0);
            true
        });
        table.scan(LEDGERS.children(), Position::default(), &mut |_, key, _| {
            missing -= i64::from(split_child_key(key).is_some());
            true
        });
    }
    cx.writer().int(missing);
}
