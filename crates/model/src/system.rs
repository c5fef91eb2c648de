//! Procedures that the database itself needs: reads with versions, validated commits, composite
//! transactions and the expiry sweep.
//!
//! They are ordinary procedures. WATCH, interactive transactions and reconnaissance are all built on two of
//! them: [`READ`] says what a record holds and which write that is of, and a *validated read* checks that
//! this is still so (calvin.md, section 4.7).

use std::iter;
use std::ops::Range;
use std::sync::Arc;

use crate::args::{Arg, ArgIter, Args, ArgsBuilder};
use crate::cell::Cell;
use crate::datum::{Datum, DatumReader, Writer};
use crate::digest::Digest;
use crate::error::{Abort, PlanError};
use crate::ids::{Db, Millis, PartitionId, ProcedureId, SlotNo};
use crate::key::{Position, SLOTS};
use crate::layout::{Layout, MAX_SHARDS};
use crate::map::{VIRTUAL_SHARDS, VirtualShard, VirtualShards};
use crate::plan::{Access, Planner, encode_call};
use crate::procedure::{FragmentContext, Procedure, Registry, ReplyContext, Target, ValidatedRead};
use crate::stamp::Version;
use crate::table::Expiring;
use crate::table_procedure::{TableProcedure, any_args, ok_reply, run_ok, sum_reply};
use crate::wire::{Codec as _, Reader};

/// Reads records with their versions, and tells the time as of which. Arguments: database and key, alternately.
pub const READ: ProcedureId = ProcedureId(1);
/// Validates reads, then writes whole records. See [`commit_args`].
pub const COMMIT: ProcedureId = ProcedureId(2);
/// Validates reads, then runs calls in order. See [`multi_args`].
pub const MULTI: ProcedureId = ProcedureId(3);
/// Removes the expired records of some slots. Arguments: first slot, slot after the last; then, for a part of these slots
/// alone, the first position and the one after the last. See [`expire_args`].
pub const EXPIRE: ProcedureId = ProcedureId(4);
/// Answers the digest of the whole state as 40 hexadecimal digits. No arguments.
pub const DIGEST: ProcedureId = ProcedureId(6);
/// Answers how many records there are in each database, and what their expiries add up to ([`lengths_reply`]). No
/// arguments.
pub const LENGTHS: ProcedureId = ProcedureId(5);

/// Cuts a checkpoint: the state at the end of the epoch in which this is. No arguments.
pub const CHECKPOINT: ProcedureId = ProcedureId(7);

/// The answer to [`CHECKPOINT`].
pub const CHECKPOINT_ANSWER: &str = "Background saving started";

/// Moves slots to a partition. Arguments: first slot, slot after the last, partition. The state does not change, nor does any
/// result: it is other shards that own the records from here on.
pub const MOVE: ProcedureId = ProcedureId(8);

/// Moves slots of a partition between its virtual shards (qstore.md, section 2: the range balancer): other shards of a node
/// own the records from here on. Arguments: partition, then slot and virtual shard, alternately; the number of virtual
/// shards for none of them.
pub const BALANCE: ProcedureId = ProcedureId(9);

/// Copies some records of a slot to the partition that it is to [move](MOVE) to. Arguments: see [`CopyPart`]. Neither the
/// state nor any result changes, but for the answer: the position from which the next part goes on, or -1 if there is none.
pub const COPY: ProcedureId = ProcedureId(10);

/// Removes those of some records whose time has come. Arguments: those of [`READ`].
pub const REMOVE: ProcedureId = ProcedureId(11);

/// Answers what the clients of a node have seen as a token, or has them see what a token holds. Arguments: none, or the token. The
/// node that is asked answers it, where nodes keep tokens. It is no transaction there, and with other engines reads nothing.
pub const SEEN: ProcedureId = ProcedureId(12);

/// The part of one region in a transaction of several: checks what was read there, and writes whole records. See [`part_args`].
pub const PART: ProcedureId = ProcedureId(13);

/// Checks what a transaction that only reads has read in a region. The arguments are those of [`PART`], and nothing is written.
pub const CHECK: ProcedureId = ProcedureId(14);

/// Answers a refusal, and does nothing else. Arguments: its text. What a session asked for and could not be planned is this in
/// the order: an earlier attempt at it may have been planned, and then it is answered what that one was.
pub const REFUSE: ProcedureId = ProcedureId(15);

/// Adds the system's procedures.
pub fn register(registry: &mut Registry) {
    registry.register(READ, "ordain.read", Arc::new(Read));
    registry.register(COMMIT, "ordain.commit", Arc::new(Commit));
    registry.register(MULTI, "ordain.multi", Arc::new(Multi));
    registry.register(REMOVE, "ordain.remove", Arc::new(Remove));
    registry.register(PART, "ordain.part", Arc::new(Part));
    registry.register(CHECK, "ordain.check", Arc::new(Part));
    registry.register(REFUSE, "ordain.refuse", Arc::new(Refuse));
    let reads = TableProcedure::reads;
    registry.register(LENGTHS, "ordain.lengths", reads(any_args, run_lengths, reply_lengths));
    registry.register(DIGEST, "ordain.digest", reads(any_args, run_digest, reply_digest));
    registry.register(SEEN, "ordain.seen", reads(any_args, run_ok, ok_reply));
    // But for EXPIRE they write nothing themselves: the shards see to what follows from their places in the order.
    let writes = TableProcedure::writes;
    registry.register(EXPIRE, "ordain.expire", writes(check_expire, expire, sum_reply));
    registry.register(CHECKPOINT, "ordain.checkpoint", writes(any_args, run_ok, reply_checkpoint));
    registry.register(MOVE, "ordain.move", writes(check_move, run_ok, ok_reply));
    registry.register(BALANCE, "ordain.balance", writes(check_balance, run_ok, ok_reply));
    registry.register(COPY, "ordain.copy", writes(check_copy, run_copy, reply_copy));
}

const DAMAGED: PlanError = PlanError::fixed("ERR damaged arguments of a system procedure");

/// Writes the arguments of [`READ`].
pub fn read_args<'k>(keys: impl IntoIterator<Item = (Db, &'k [u8])>, args: &mut ArgsBuilder<'_>) {
    for (db, key) in keys {
        args.push(&[db.0]).push(key);
    }
}

/// The records that a [`READ`] has found.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordsRead {
    /// The time of the transaction: a record that had expired by then is absent.
    pub at: Millis,
    /// The records, in the order of the keys.
    pub records: Vec<ValidatedRead>,
}

/// Reads the reply of [`READ`], record by record; `None` for damaged bytes.
pub fn read_reply<'k>(keys: impl IntoIterator<Item = (Db, &'k [u8])>, reply: &[u8]) -> Option<RecordsRead> {
    let (at, mut values) = begin_read_reply(reply)?;
    let mut read = |(db, key): (Db, &[u8])| {
        let (version, cell) = read_image(&mut values)?;
        Some(ValidatedRead { db, key: key.to_vec(), version, cell })
    };
    let records: Option<_> = keys.into_iter().map(&mut read).collect();
    Some(RecordsRead { at, records: records? })
}

/// The time that the reply of a [`READ`] tells; `None` for damaged bytes.
pub fn read_time(reply: &[u8]) -> Option<Millis> {
    begin_read_reply(reply).map(|(at, _)| at)
}

/// Reads the time in the reply of a [`READ`]: its records follow.
fn begin_read_reply(reply: &[u8]) -> Option<(Millis, DatumReader<'_>)> {
    let mut values = DatumReader(reply);
    values.array()?;
    Some((Millis(u64::try_from(values.int()?).ok()?), values))
}

/// Writes a record's version and content as two values.
fn write_image(version: Version, cell: &Cell, out: &mut Vec<u8>) {
    let image = cell.to_bytes();
    let mut w = Writer(out);
    match version.number() {
        Some(number) => w.int(number as i64),
        None => version.with_bytes(|bytes| w.bulk(bytes)),
    }
    w.bulk(&image);
}

fn read_image(values: &mut DatumReader<'_>) -> Option<(Version, Cell)> {
    let version = match values.next()? {
        Datum::Int(number) => Version::of(number as u64),
        Datum::Bulk(bytes) => Version::from_bytes(bytes)?,
        _ => return None,
    };
    let cell = Cell::decode(&mut Reader::new(values.bulk()?))?;
    Some((version, cell))
}

struct Read;

impl Read {
    /// A fragment that answers its record.
    const RECORD: u16 = 0;
    /// The first one: it answers the transaction's time before its record.
    const FIRST: u16 = 1;
}

impl Procedure for Read {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let (mut items, mut code) = (args.iter(), Read::FIRST);
        while let Some(db) = items.next() {
            let key = items.next().ok_or(DAMAGED)?;
            planner.key_in(db_of(db)?, code, Access::Read, key)?;
            code = Read::RECORD;
        }
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if code == Read::FIRST {
            Writer(cx.out).int(cx.now.0 as i64);
        }
        if let Target::Read(cell) = &cx.target {
            write_image(cx.version, cell, cx.out);
        }
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).array(1 + 2 * cx.count as usize);
        for i in 0..cx.count {
            out.extend_from_slice(cx.slot(i));
        }
    }
}

struct Refuse;

impl Procedure for Refuse {
    fn plan(&self, args: Args<'_>, _planner: &mut Planner<'_>) -> Result<(), PlanError> {
        if args.len() == 1 { Ok(()) } else { Err(DAMAGED) }
    }

    /// Never called: it has no fragments.
    fn run(&self, _code: u16, _cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).error(cx.args().get(0).unwrap_or_default());
    }

    /// The request that it stands for is.
    fn is_dependent(&self) -> bool {
        true
    }
}

struct Remove;

impl Procedure for Remove {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        while let Some(db) = items.next() {
            let key = items.next().ok_or(DAMAGED)?;
            planner.key_in(db_of(db)?, 0, Access::Write, key)?;
            planner.silent();
        }
        Ok(())
    }

    /// A record that is written and whose time has come is removed first: nothing is left to do.
    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        cx.locals.counts.expired += u64::from(cx.cell().value.is_none());
        Ok(())
    }

    fn reply(&self, _cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).ok();
    }
}

fn db_of(arg: Arg<'_>) -> Result<Db, PlanError> {
    match arg.bytes {
        [db] => Ok(Db(*db)),
        _ => Err(DAMAGED),
    }
}

/// Writes validated reads as arguments: how many, then database, key and version of each.
pub fn validation_args<'e>(
    reads: impl ExactSizeIterator<Item = (Db, &'e [u8], Version)>,
    args: &mut ArgsBuilder<'_>,
) {
    args.push(&(reads.len() as u32).to_le_bytes());
    for (db, key, version) in reads {
        version.with_bytes(|bytes| _ = args.push(&[db.0]).push(key).push(bytes));
    }
}

/// Plans the validated reads written by [`validation_args`]: abortable fragments with `code`. Answers how many there are.
///
/// # Errors
/// Damaged arguments, or a limit exceeded.
pub fn plan_validation(
    planner: &mut Planner<'_>,
    items: &mut ArgIter<'_>,
    code: u16,
) -> Result<u32, PlanError> {
    let count = items.next().and_then(|n| n.bytes.try_into().ok()).map(u32::from_le_bytes).ok_or(DAMAGED)?;
    for _ in 0..count {
        let db = db_of(items.next().ok_or(DAMAGED)?)?;
        let key = items.next().ok_or(DAMAGED)?;
        if items.next().and_then(|version| Version::from_bytes(version.bytes)).is_none() {
            return Err(DAMAGED);
        }
        planner.key_in(db, code, Access::Read, key)?;
        planner.abortable();
    }
    Ok(count)
}

/// True if the record is still of the write that is named.
fn is_as_seen(cx: &FragmentContext<'_>) -> bool {
    let expected = cx.rest().next().and_then(|version| Version::from_bytes(version.bytes));
    expected == Some(cx.version)
}

/// Runs a validated read of a transaction that is not planned again: its answer is the abort.
fn check_version(cx: &FragmentContext<'_>) -> Result<(), Abort> {
    if is_as_seen(cx) { Ok(()) } else { Err(Abort::Conflict) }
}

/// Runs a validated read: the record must still be of the write that is named. The slot
/// is the fresh image either way, so that a restart has something to go on from.
///
/// # Errors
/// `otherwise`, if the record has changed.
pub fn validate_read(cx: &mut FragmentContext<'_>, otherwise: Abort) -> Result<(), Abort> {
    let is_as_seen = is_as_seen(cx);
    let version = cx.version;
    if let Target::Read(cell) = &cx.target {
        let mut w = Writer(cx.out);
        w.int(i64::from(cx.db.0));
        w.bulk(cx.key.bytes);
        write_image(version, cell, cx.out);
    }
    if is_as_seen { Ok(()) } else { Err(otherwise) }
}

/// Writes the fresh images of the `count` validated reads from `first` on: the reply of a restart.
pub fn restart_reply(cx: &ReplyContext<'_>, first: u32, count: u32, out: &mut Vec<u8>) {
    Writer(out).array(4 * count as usize);
    for i in first..first + count {
        out.extend_from_slice(cx.slot(i));
    }
}

/// Reads what [`restart_reply`] wrote; `None` for damaged bytes.
pub fn restart_reads(reply: &[u8]) -> Option<Vec<ValidatedRead>> {
    let mut values = DatumReader(reply);
    let reads = (0..values.array()? / 4).map(|_| {
        let (db, key) = (values.int()?, values.bulk()?.to_vec());
        let (version, cell) = read_image(&mut values)?;
        Some(ValidatedRead { db: Db(u8::try_from(db).ok()?), key, version, cell })
    });
    reads.collect()
}

/// Writes the arguments of [`COMMIT`]: validated reads, then database, key and new content of each record written.
pub fn commit_args<'e>(
    reads: impl ExactSizeIterator<Item = (Db, &'e [u8], Version)>,
    writes: impl IntoIterator<Item = (Db, &'e [u8], &'e Cell)>,
    args: &mut ArgsBuilder<'_>,
) {
    validation_args(reads, args);
    let mut image = Vec::new();
    for (db, key, cell) in writes {
        image.clear();
        cell.encode(&mut image);
        args.push(&[db.0]).push(key).push(&image);
    }
}

struct Commit;

impl Commit {
    const CHECK: u16 = 0;
    const WRITE: u16 = 1;
}

impl Procedure for Commit {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        plan_validation(planner, &mut items, Commit::CHECK)?;
        while let Some(db) = items.next() {
            let key = items.next().ok_or(DAMAGED)?;
            let image = items.next().ok_or(DAMAGED)?;
            if Cell::from_bytes(image.bytes).is_none() {
                return Err(DAMAGED);
            }
            planner.key_in(db_of(db)?, Commit::WRITE, Access::Write, key)?;
            planner.blind();
        }
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if code == Commit::CHECK {
            return check_version(cx);
        }
        if let Some(cell) = Cell::decode(&mut Reader::new(cx.rest().bytes())) {
            cx.cell_mut().replace(cell);
        }
        Ok(())
    }

    fn reply(&self, _cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).ok();
    }

    fn abort_reply(&self, abort: Abort, _slot: SlotNo, _cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).abort(abort);
    }
}

/// A record of another region that a transaction has read or written.
#[derive(Clone, Debug)]
pub struct PartItem<'e> {
    /// Its database.
    pub db: Db,
    /// Its key.
    pub key: &'e [u8],
    /// The version that was read, if the record was.
    pub read: Option<Version>,
    /// The content that it is to have, if it was written.
    pub write: Option<&'e Cell>,
    /// Its child records that were written, by their suffixes, with their new contents.
    pub children: Vec<(&'e [u8], &'e Cell)>,
}

/// Child records as [`PART`] has them in its arguments.
type ChildImages = Vec<(Vec<u8>, Cell)>;

/// Writes the arguments of [`PART`]: database, key, version that was read, new content and written child records of each record, each once.
/// What was not read or not written has an empty argument there.
pub fn part_args<'e>(items: impl IntoIterator<Item = PartItem<'e>>, args: &mut ArgsBuilder<'_>) {
    let mut image = Vec::new();
    for PartItem { db, key, read, write, children } in items {
        image.clear();
        write.into_iter().for_each(|cell| cell.encode(&mut image));
        args.push(&[db.0]).push(key);
        match read {
            Some(version) => version.with_bytes(|bytes| _ = args.push(bytes)),
            None => _ = args.push(&[]),
        }
        args.push(&image);
        image.clear();
        if !children.is_empty() {
            let own = |(suffix, cell): (&[u8], &Cell)| (suffix.to_vec(), cell.clone());
            children.into_iter().map(own).collect::<ChildImages>().encode(&mut image);
        }
        args.push(&image);
    }
}

struct Part;

impl Part {
    const CHECK: u16 = 0;
    const WRITE: u16 = 1;
    const BOTH: u16 = 2;
}

impl Procedure for Part {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        while let Some(db) = items.next() {
            let key = items.next().ok_or(DAMAGED)?;
            let version = items.next().ok_or(DAMAGED)?;
            let image = items.next().ok_or(DAMAGED)?;
            let children = items.next().ok_or(DAMAGED)?;
            let is_damaged = !version.bytes.is_empty() && Version::from_bytes(version.bytes).is_none()
                || !image.bytes.is_empty() && Cell::from_bytes(image.bytes).is_none()
                || !children.bytes.is_empty() && ChildImages::from_bytes(children.bytes).is_none();
            let (code, access) = match (version.bytes.is_empty(), image.bytes.is_empty()) {
                _ if is_damaged => return Err(DAMAGED),
                // What is written of a record's children rests on what was read of it.
                (true, _) if !children.bytes.is_empty() => return Err(DAMAGED),
                (true, true) => return Err(DAMAGED),
                (false, true) if children.bytes.is_empty() => (Part::CHECK, Access::Read),
                (true, false) => (Part::WRITE, Access::Write),
                // One lock for both: two that hold it shared would wait for each other.
                (false, _) => (Part::BOTH, Access::Write),
            };
            planner.key_in(db_of(db)?, code, access, key)?;
            if !children.bytes.is_empty() {
                planner.with_children();
            }
            match code {
                Part::WRITE => planner.blind(),
                _ => planner.abortable(),
            }
        }
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if code != Part::WRITE && !is_as_seen(cx) {
            return Err(Abort::StaleView);
        }
        if code == Part::CHECK {
            return Ok(());
        }
        let image = cx.rest().nth(1).map(|image| image.bytes).unwrap_or_default();
        if let Some(cell) = Cell::from_bytes(image) {
            cx.cell_mut().replace(cell);
        }
        let children = cx.rest().nth(2).map(|children| children.bytes).unwrap_or_default();
        for (suffix, cell) in ChildImages::from_bytes(children).unwrap_or_default() {
            let mut cell = Some(cell);
            cx.children().edit(&suffix, &mut |child| {
                cell.take().into_iter().for_each(|cell| child.replace(cell));
            });
        }
        Ok(())
    }

    fn reply(&self, _cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).ok();
    }
}

/// Writes the arguments of [`MULTI`]: the validated reads of WATCH, then the calls, each made by [`encode_call`].
pub fn multi_args<'e>(
    watched: impl ExactSizeIterator<Item = (Db, &'e [u8], Version)>,
    calls: impl IntoIterator<Item = (ProcedureId, Db, &'e [u8])>,
    args: &mut ArgsBuilder<'_>,
) {
    validation_args(watched, args);
    for (procedure, db, call) in calls {
        args.push(&encode_call(procedure, db, call));
    }
}

struct Multi;

impl Procedure for Multi {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        plan_validation(planner, &mut items, 0)?;
        items.try_for_each(|item| planner.call(item))
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        check_version(cx)
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).array(cx.calls.len());
        cx.calls.iter().for_each(|call| cx.call_reply(call, out));
    }

    fn abort_reply(&self, abort: Abort, slot: SlotNo, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        match (abort, cx.slots.slot(slot)) {
            (Abort::Conflict, _) => Writer(out).nil_array(),
            (_, []) => Writer(out).abort(abort),
            (_, answer) => out.extend_from_slice(answer),
        }
    }
}

fn check_expire(args: Args<'_>) -> Result<(), PlanError> {
    expired_of(args).map(drop).ok_or(DAMAGED)
}

fn expire(cx: &mut FragmentContext<'_>) {
    let positions = expired_of(cx.args).unwrap_or_default();
    let removed = match &mut cx.target {
        Target::Table(table) => table.expire(cx.now, positions),
        _ => 0,
    };
    cx.locals.counts.expired += removed;
    cx.writer().int(removed as i64);
}

/// Writes the arguments of [`EXPIRE`] for some positions.
pub fn expire_args(positions: &Range<Position>, args: &mut ArgsBuilder<'_>) {
    let end = positions.end.min(Position::END);
    let slots = positions.start.slot()..end.slot() + usize::from(end.tag() > 0);
    args.push_int(slots.start as i64).push_int(slots.end as i64);
    args.push_int(positions.start.0 as i64).push_int(end.0 as i64);
}

/// At which positions a sweep looks.
fn expired_of(args: Args<'_>) -> Option<Range<Position>> {
    let (first, end) = (number(args, 0)?, number(args, 1)?);
    let slots = Position::of_slot(first)..Position::of_slot(end);
    let positions = match args.len() {
        // As it was before, and is in older logs.
        2 => slots.clone(),
        4 => Position(number(args, 2)? as u64)..Position(number(args, 3)? as u64),
        _ => return None,
    };
    let is_within = slots.start <= positions.start && positions.end <= slots.end;
    (first <= end && end <= SLOTS && positions.start <= positions.end && is_within).then_some(positions)
}

fn number(args: Args<'_>, at: usize) -> Option<usize> {
    std::str::from_utf8(args.get(at)?).ok()?.parse().ok()
}

/// The sum of the integers that shards answered to a table fragment.
pub fn sum_parts(slot: &[u8]) -> i64 {
    let mut values = DatumReader(slot);
    (0..values.array().unwrap_or(0)).map_while(|_| values.int()).fold(0, i64::wrapping_add)
}

/// Walks the parts that shards answered to a table fragment, in shard order, each a whole value.
pub fn parts(slot: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (n, mut rest) = match Datum::split(slot) {
        Some((Datum::Array(n), rest)) => (n, rest),
        _ => (0, &[][..]),
    };
    (0..n).map_while(move |_| {
        let (whole, tail) = Datum::split_whole(rest)?;
        rest = tail;
        Some(whole)
    })
}

/// The answer of [`LENGTHS`] for a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Length {
    /// The number of its records.
    pub records: u64,
    /// The sum of their expiries.
    pub expiring: Expiring,
}

/// The databases of [`LENGTHS`]: those that clients can select, in order, then that of the scripts.
fn lengths_of() -> impl Iterator<Item = Db> {
    (0..Db::COUNT).map(Db).chain([Db::SCRIPTS])
}

/// Reads what [`LENGTHS`] has answered: the databases that clients can select, in order, then that of the scripts;
/// nothing, if it is something else.
pub fn lengths_reply(reply: &[u8]) -> Vec<Length> {
    let mut values = DatumReader(reply);
    match values.array() {
        Some(_) => iter::from_fn(|| read_length(&mut values)).collect(),
        None => Vec::new(),
    }
}

fn read_length(values: &mut DatumReader<'_>) -> Option<Length> {
    let (records, expiring) = (values.int()? as u64, values.int()? as u64);
    let at_sum_ms = u128::from_le_bytes(*values.bulk()?.first_chunk()?);
    Some(Length { records, expiring: Expiring { records: expiring, at_sum_ms } })
}

fn write_lengths(lengths: &[Length], w: &mut Writer<'_>) {
    w.array(3 * lengths.len());
    for Length { records, expiring } in lengths {
        w.int(*records as i64);
        w.int(expiring.records as i64);
        w.bulk(&expiring.at_sum_ms.to_le_bytes());
    }
}

fn run_lengths(cx: &mut FragmentContext<'_>) {
    let lengths: Vec<Length> = match &cx.target {
        Target::Table(table) => {
            lengths_of().map(|db| Length { records: table.len(db), expiring: table.expiring(db) }).collect()
        }
        _ => Vec::new(),
    };
    write_lengths(&lengths, &mut cx.writer());
}

fn reply_lengths(cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
    let mut totals = vec![Length::default(); lengths_of().count()];
    for part in parts(cx.slot(0)) {
        for (total, length) in totals.iter_mut().zip(lengths_reply(part)) {
            total.records += length.records;
            total.expiring.records += length.expiring.records;
            total.expiring.at_sum_ms += length.expiring.at_sum_ms;
        }
    }
    write_lengths(&totals, &mut Writer(out));
}

fn run_digest(cx: &mut FragmentContext<'_>) {
    if let Target::Table(table) = &mut cx.target {
        let digest = table.digest();
        let mut bytes = digest.sum.to_le_bytes().to_vec();
        bytes.extend_from_slice(&digest.records.to_le_bytes());
        Writer(cx.out).bulk(&bytes);
    }
}

fn reply_digest(cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
    let mut total = Digest::default();
    for part in parts(cx.slot(0)) {
        let Datum::Bulk(bytes) = Datum::first(part) else { continue };
        let Some((sum, records)) = bytes.split_first_chunk::<16>() else { continue };
        let records = records.first_chunk::<4>().map_or(0, |n| u32::from_le_bytes(*n));
        total = total.plus(Digest { sum: u128::from_le_bytes(*sum), records });
    }
    Writer(out).status(&total.to_string());
}

fn reply_checkpoint(_cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
    Writer(out).status(CHECKPOINT_ANSWER);
}

/// Writes the arguments of [`MOVE`].
pub fn move_args(slots: &std::ops::Range<usize>, to: PartitionId, args: &mut ArgsBuilder<'_>) {
    args.push_int(slots.start as i64).push_int(slots.end as i64).push_int(i64::from(to.0));
}

fn move_of(args: Args<'_>) -> Option<(std::ops::Range<usize>, PartitionId)> {
    let (first, end) = (number(args, 0)?, number(args, 1)?);
    (args.len() == 3 && first < end && end <= SLOTS).then_some((first..end, partition(args, 2)?))
}

/// Writes the arguments of [`BALANCE`].
pub fn balance_args(
    of: PartitionId,
    virtual_shards: &[(usize, Option<VirtualShard>)],
    args: &mut ArgsBuilder<'_>,
) {
    args.push_int(i64::from(of.0));
    for (slot, virtual_shard) in virtual_shards {
        args.push_int(*slot as i64).push_int(
            virtual_shard.map_or(VIRTUAL_SHARDS as i64, |virtual_shard| i64::from(virtual_shard.0)),
        );
    }
}

fn balance_of(args: Args<'_>) -> Option<(PartitionId, VirtualShards)> {
    let slot = |at| number(args, at).filter(|slot| *slot < SLOTS);
    let virtual_shard = |at| {
        let virtual_shard = number(args, at).filter(|virtual_shard| *virtual_shard <= VIRTUAL_SHARDS)?;
        Some((virtual_shard < VIRTUAL_SHARDS).then_some(VirtualShard(virtual_shard as u8)))
    };
    let pairs = (1..args.len()).step_by(2).map(|at| Some((slot(at)?, virtual_shard(at + 1)?)));
    Some((partition(args, 0)?, pairs.collect::<Option<_>>()?))
}

fn partition(args: Args<'_>, at: usize) -> Option<PartitionId> {
    let to = u16::try_from(number(args, at)?).ok()?;
    (usize::from(to) < MAX_SHARDS).then_some(PartitionId(to))
}

/// The layout in force after a transaction that moves slots; none if it moves none, or they are there already.
pub fn rearranged(procedure: ProcedureId, args: Args<'_>, layout: &Layout) -> Option<Layout> {
    match procedure {
        MOVE => move_of(args).and_then(|(slots, to)| layout.moved(&slots, to)),
        BALANCE => balance_of(args)
            .and_then(|(partition, virtual_shards)| layout.balanced(partition, &virtual_shards)),
        _ => None,
    }
}

/// A part of a slot that is copied to where it is to move to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyPart {
    /// The partition.
    pub to: PartitionId,
    /// The beginning of the part: at the beginning of a slot, or where the part before it ended. At the slot's [last](CopyPart::last)
    /// position once all of it is copied: then the part is of what has changed since.
    pub from: Position,
    /// The most records of the part, but for those at one position. As many that were copied earlier, and have changed,
    /// are copied anew.
    pub records: usize,
    /// The most bytes of keys and cells, about.
    pub bytes: usize,
}

impl CopyPart {
    /// Writes the arguments of [`COPY`].
    pub fn write(&self, args: &mut ArgsBuilder<'_>) {
        args.push_int(i64::from(self.to.0)).push_int(self.from.0 as i64);
        args.push_int(self.records as i64).push_int(self.bytes as i64);
    }

    /// The part that a transaction copies, if it is one that does.
    pub fn of(procedure: ProcedureId, args: Args<'_>) -> Option<CopyPart> {
        let is_one = procedure == COPY && args.len() == 4;
        let (to, from) = (partition(args, 0)?, Position(number(args, 1)? as u64));
        let (records, bytes) = (number(args, 2)?, number(args, 3)?);
        (is_one && from < Position::END).then_some(CopyPart { to, from, records, bytes })
    }

    /// The slot.
    pub const fn slot(&self) -> usize {
        self.from.slot()
    }

    /// The last position of a slot.
    pub const fn last(slot: usize) -> Position {
        Position(Position::of_slot(slot + 1).0 - 1)
    }

    /// True if the part begins at the last position of its slot.
    pub fn is_last(&self) -> bool {
        self.from == CopyPart::last(self.slot())
    }
}

/// The position from which the next part goes on, by the answer of [`COPY`]; none if there is none.
pub fn copy_reply(reply: &[u8]) -> Option<Position> {
    match Datum::split(reply)? {
        (Datum::Int(position), []) => u64::try_from(position).ok().map(Position),
        _ => None,
    }
}

fn check_copy(args: Args<'_>) -> Result<(), PlanError> {
    CopyPart::of(COPY, args).map(drop).ok_or(DAMAGED)
}

fn run_copy(cx: &mut FragmentContext<'_>) {
    let after = match (CopyPart::of(COPY, cx.args), &cx.target) {
        (Some(part), Target::Table(table)) => table.after(part.from, part.records, part.bytes),
        _ => Position::END,
    };
    cx.writer().int(if after < Position::END { after.0 as i64 } else { -1 });
}

/// Composes the reply of [`COPY`]: one shard has records of the slot.
fn reply_copy(cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
    let next = parts(cx.slot(0)).filter_map(copy_reply).min();
    Writer(out).int(next.map_or(-1, |next| next.0 as i64));
}

const MOVE_ARGS: PlanError =
    PlanError::fixed("ERR slots are moved from one of 0 to 1023 to another not before it, to a partition");
const BALANCE_ARGS: PlanError =
    PlanError::fixed("ERR slots of 0 to 1023 are balanced over virtual shards of 0 to 127 of a partition");

fn check_move(args: Args<'_>) -> Result<(), PlanError> {
    move_of(args).map(drop).ok_or(MOVE_ARGS)
}

fn check_balance(args: Args<'_>) -> Result<(), PlanError> {
    balance_of(args).map(drop).ok_or(BALANCE_ARGS)
}
