//! Commands that carry a record from one key to another: RENAME, RENAMENX, MOVE and COPY.
//!
//! A record travels from the fragment that reads it to the fragment that writes it as that fragment's input:
//! an encoded [`Cell`] inside a bulk. Nil in its place says that there is no record, an integer that there is
//! one which has to stay where it is, an error that there is one which is too large to be carried.

use std::sync::Arc;

use ordain_model::args::Arg;
use ordain_model::wire::Codec as _;
use ordain_model::{
    Abort, Access, ArgIter, Args, Cell, Datum, Db, FragmentContext, PlanError, Planner, Procedure, Registry,
    ReplyContext, SlotNo, Target, Writer,
};

use crate::ids;
use crate::number::parse_i64;
use crate::shape::{BAD_DB, NO_SUCH_KEY, NOT_INTEGER, Refusal, SYNTAX, TOO_FEW};

const SAME_OBJECT: Refusal = Refusal("ERR source and destination objects are the same");

pub(super) fn register(registry: &mut Registry) {
    registry.register(ids::RENAME, "rename", Arc::new(Relocate(Kind::Rename)));
    registry.register(ids::RENAMENX, "renamenx", Arc::new(Relocate(Kind::RenameIfFree)));
    registry.register(ids::MOVE, "move", Arc::new(Relocate(Kind::Move)));
    registry.register(ids::COPY, "copy", Arc::new(Copy));
}

const NO_INT: Refusal = Refusal("ERR value is out of range, value must between -2147483648 and 2147483647");

/// The number of a database that a client may name. `invalid` is the answer to what is no number or does not
/// fit 32 bits.
pub(super) fn database(text: &[u8], invalid: (Refusal, Refusal)) -> Result<Db, Refusal> {
    let n = parse_i64(text).ok_or(invalid.0)?;
    let n = i32::try_from(n).map_err(|_| invalid.1)?;
    u8::try_from(n).ok().filter(|n| *n < Db::COUNT).map(Db).ok_or(BAD_DB)
}

/// Answers with a record, unless it is more than may be carried. Says whether it is not.
fn write_cell(cell: &Cell, share: usize, out: &mut Vec<u8>) -> bool {
    let may_be_carried = cell.weight() <= share;
    if may_be_carried {
        Writer(out).bulk(&cell.to_bytes());
    } else {
        Writer(out).too_much();
    }
    may_be_carried
}

/// The record that an earlier fragment answered with.
fn read_cell(datum: Datum<'_>) -> Option<Cell> {
    match datum {
        Datum::Bulk(image) => Cell::from_bytes(image),
        _ => None,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rename,
    RenameIfFree,
    Move,
}

/// Takes a record from one place and puts it in another: look at the other place if it must be free, take,
/// put. Each step has the answer of the one before as its input, and the last one's is the reply.
struct Relocate(Kind);

impl Relocate {
    const LOOK: u16 = 0;
    const TAKE: u16 = 1;
    const PUT: u16 = 2;
    /// In place of all of them where both places are one.
    const STAY: u16 = 3;

    fn parse<'a>(&self, args: Args<'a>, db: Db) -> Result<(Arg<'a>, Arg<'a>, Db), Refusal> {
        let mut items = args.iter();
        let (key, second) = (items.next().ok_or(TOO_FEW)?, items.next().ok_or(TOO_FEW)?);
        if self.0 != Kind::Move {
            return Ok((key, second, db));
        }
        let to = database(second.bytes, (NOT_INTEGER, NO_INT))?;
        if to == db { Err(SAME_OBJECT) } else { Ok((key, key, to)) }
    }
}

impl Procedure for Relocate {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let (from, to, to_db) = self.parse(args, planner.db())?;
        if from.bytes == to.bytes && to_db == planner.db() {
            return planner.key(Self::STAY, Access::Read, from).map(drop);
        }
        let look = match self.0 {
            Kind::Rename => None,
            _ => {
                let look = planner.key_in(to_db, Self::LOOK, Access::Read, to)?;
                planner.silent();
                Some(look)
            }
        };
        let take = planner.key(Self::TAKE, Access::Write, from)?;
        planner.silent();
        look.into_iter().for_each(|slot: SlotNo| planner.input(slot));
        planner.key_in(to_db, Self::PUT, Access::Write, to)?;
        planner.carries();
        planner.input(take);
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let input = cx.inputs.get(0);
        let present = cx.cell().value.is_some();
        let moved = match code {
            Self::LOOK => {
                cx.writer().int(i64::from(present));
                return Ok(());
            }
            Self::TAKE => {
                match &mut cx.target {
                    Target::Write(cell) if present && input != Datum::Int(1) => {
                        if write_cell(cell, cx.share, cx.out) {
                            cell.delete();
                        }
                    }
                    _ if present => cx.writer().int(0),
                    _ => cx.writer().nil(),
                }
                return Ok(());
            }
            Self::PUT if matches!(input, Datum::Error(_)) => {
                cx.out.extend_from_slice(cx.inputs.raw(0));
                return Ok(());
            }
            Self::PUT => match (read_cell(input), &mut cx.target) {
                (Some(record), Target::Write(cell)) => {
                    cell.replace(record);
                    Some(true)
                }
                _ => (input != Datum::Nil).then_some(false),
            },
            _ => present.then_some(self.0 == Kind::Rename),
        };
        let mut w = cx.writer();
        match (moved, self.0) {
            (None, Kind::Rename | Kind::RenameIfFree) => w.error(NO_SUCH_KEY.0),
            (Some(_), Kind::Rename) => w.ok(),
            (moved, _) => w.int(i64::from(moved == Some(true))),
        }
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(cx.slot(cx.count.saturating_sub(1)));
    }
}

/// COPY: reads the source, then writes the destination.
struct Copy;

impl Copy {
    const READ: u16 = 0;
    const WRITE: u16 = 1;
    const REPLACE: u16 = 2;

    fn options(mut rest: ArgIter<'_>, db: Db) -> Result<(Db, bool), Refusal> {
        let (mut to, mut replace) = (db, false);
        while let Some(word) = rest.next() {
            if word.bytes.eq_ignore_ascii_case(b"REPLACE") {
                replace = true;
            } else if word.bytes.eq_ignore_ascii_case(b"DB") {
                to = database(rest.next().ok_or(SYNTAX)?.bytes, (NOT_INTEGER, NO_INT))?;
            } else {
                return Err(SYNTAX);
            }
        }
        Ok((to, replace))
    }
}

impl Procedure for Copy {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        let (from, to) = (items.next().ok_or(TOO_FEW)?, items.next().ok_or(TOO_FEW)?);
        let (to_db, replace) = Copy::options(items, planner.db())?;
        if from.bytes == to.bytes && to_db == planner.db() {
            return Err(SAME_OBJECT.into());
        }
        let source = planner.key(Copy::READ, Access::Read, from)?;
        planner.silent();
        let code = if replace { Copy::REPLACE } else { Copy::WRITE };
        planner.key_in(to_db, code, Access::Write, to)?;
        planner.carries();
        planner.input(source);
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let input = cx.inputs.get(0);
        let record = read_cell(input);
        match (&mut cx.target, record) {
            (Target::Read(cell), _) if cell.value.is_some() => _ = write_cell(cell, cx.share, cx.out),
            (Target::Read(_), _) => cx.writer().nil(),
            (Target::Write(cell), Some(record)) if code == Copy::REPLACE || cell.value.is_none() => {
                cell.replace(record);
                cx.writer().int(1);
            }
            _ if matches!(input, Datum::Error(_)) => cx.out.extend_from_slice(cx.inputs.raw(0)),
            _ => cx.writer().int(0),
        }
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(cx.slot(1));
    }
}
