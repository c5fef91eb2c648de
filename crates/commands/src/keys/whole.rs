//! Commands over a whole database.
//!
//! Every shard answers for its part, in canonical order, and `reply` merges the parts, so that neither the number of
//! shards nor the places of slots show: shards come in the order of their slots until some are moved. Expired records
//! are never shown, whether or not they are removed yet; DBSIZE alone counts them, as in Redis.

use ordain_model::datum::DatumReader;
use ordain_model::system::parts;
use ordain_model::table_procedure::{TableProcedure, any_args, ok_reply, sum_reply};
use ordain_model::{
    ArgIter, Args, Cell, Datum, Db, FragmentContext, KeyHash, PlanError, Position, Registry, ReplyContext,
    Table, Target, Writer,
};

use super::relocate::database;
use crate::glob::Glob;
use crate::ids;
use crate::number::Decimal;
use crate::random::Random;
use crate::scan::Scan;
use crate::shape::{BAD_DB, Items, Refusal, SYNTAX, TOO_FEW, bulk_or_nil};

pub(super) fn register(registry: &mut Registry) {
    let reads = TableProcedure::reads;
    registry.register(ids::DBSIZE, "dbsize", reads(any_args, run_dbsize, sum_reply));
    registry.register(ids::KEYS, "keys", reads(check_keys, run_keys, reply_keys));
    registry.register(ids::SCAN, "scan", reads(check_scan, run_scan, reply_scan));
    registry.register(ids::RANDOMKEY, "randomkey", reads(any_args, run_randomkey, reply_randomkey));
    let writes = TableProcedure::writes;
    registry.register(ids::FLUSHALL, "flushall", writes(check_flush, |cx| flush(cx, None), ok_reply));
    registry.register(ids::FLUSHDB, "flushdb", writes(check_flush, |cx| flush(cx, Some(cx.db)), ok_reply));
    registry.register(ids::SWAPDB, "swapdb", writes(check_swapdb, swapdb, ok_reply));
}

fn read_table<'t>(cx: &'t FragmentContext<'_>) -> Option<&'t dyn Table> {
    match &cx.target {
        Target::Table(table) => Some(&**table),
        _ => None,
    }
}

fn run_dbsize(cx: &mut FragmentContext<'_>) {
    let len = read_table(cx).map_or(0, |table| table.len(cx.db));
    cx.writer().int(len as i64);
}

/// The most work of one KEYS, in comparisons of a byte: about a tenth of a second.
const MAX_WORK: u64 = 1 << 27;
/// The work of each key beside the comparison of its bytes.
const WORK_OF_KEY: u64 = 64;
const TOO_MUCH_WORK: &str = "ERR KEYS would look at more than 2097152 keys, or as much in bytes of their names times what \
                             the pattern takes for each: it would hold up all others; use SCAN";

fn check_keys(args: Args<'_>) -> Result<(), PlanError> {
    if args.is_empty() {
        return Err(TOO_FEW.into());
    }
    Ok(Glob::check(args.iter().bytes())?)
}

/// KEYS. A shard answers with how much work it was, and with each key after its position unless that was too much. As parts
/// only add up, what is too much for one shard is too much for all.
fn run_keys(cx: &mut FragmentContext<'_>) {
    let (now, mut keys, mut work) = (cx.now, Items::default(), 0u64);
    // All of them are part of the reply: with more than that it is too long, whatever else is in it.
    let (limit, mut bytes) = (cx.registry.limits().reply, 0);
    if let (Ok(glob), Some(table)) = (Glob::new(cx.args.iter().bytes()), read_table(cx)) {
        let steps = glob.steps() as u64;
        table.scan(cx.db, Position::default(), &mut |position, key, cell| {
            work += WORK_OF_KEY + key.len() as u64 * steps;
            if work <= MAX_WORK && cell.is_live(now) && glob.matches(key) {
                keys.push(|w| w.int(position.0 as i64));
                keys.push(|w| w.bulk(key));
                bytes += key.len();
            }
            bytes <= limit && work <= MAX_WORK
        });
    }
    if work > MAX_WORK {
        keys = Items::default();
    }
    let mut w = cx.writer();
    w.array(2);
    w.int(work as i64);
    keys.finish(&mut w);
}

fn reply_keys(cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
    let (mut work, mut lists) = (0u64, Vec::new());
    for part in parts(cx.slot(0)) {
        let mut values = DatumReader(part);
        let (Some(2), Some(of_part)) = (values.array(), values.int()) else { continue };
        work = work.saturating_add(of_part as u64);
        lists.push(seen_of(values.0));
    }
    let mut w = Writer(out);
    if work > MAX_WORK {
        return w.error(TOO_MUCH_WORK);
    }
    w.array(lists.iter().map(Vec::len).sum());
    merged(lists).for_each(|(_, key)| w.bulk(key.as_bytes().unwrap_or_default()));
}

/// Merges the answers of shards, each in canonical order, into one list in that order. What is at one place is on one shard.
fn merged<'a>(lists: Vec<Vec<(Position, Datum<'a>)>>) -> impl Iterator<Item = (Position, Datum<'a>)> {
    let ends = lists.iter().filter_map(|list| Some([list.first()?.0, list.last()?.0]));
    let is_in_order = ends.flatten().is_sorted();
    let mut all = lists.concat();
    if !is_in_order {
        all.sort_by_key(|(position, _)| *position);
    }
    all.into_iter()
}

/// The most bytes of names that one SCAN looks at, whatever its count: then it stops at the next position.
const SCAN_BYTES: usize = 1 << 20;

/// The progress of a walk.
struct Walk {
    count: usize,
    looked: usize,
    bytes: usize,
    last: Option<Position>,
}

impl Walk {
    const fn new(count: usize) -> Walk {
        Walk { count, looked: 0, bytes: 0, last: None }
    }

    /// True if the walk ends before a record at this position.
    fn ends_before(&self, position: Position) -> bool {
        (self.looked >= self.count || self.bytes >= SCAN_BYTES) && self.last != Some(position)
    }

    fn look_at(&mut self, position: Position, bytes: usize) {
        (self.looked, self.bytes, self.last) = (self.looked + 1, self.bytes + bytes, Some(position));
    }
}

fn check_scan(args: Args<'_>) -> Result<(), PlanError> {
    Scan::parse(args.iter(), true)?;
    Ok(())
}

/// Runs SCAN on one shard, which visits the records from the cursor's position on, as many as the count asks for of the
/// whole. It answers the position of each and its key, or the key's length if the key is not asked for.
///
/// The reply cuts the walk over all shards where a walk over one would have stopped: at the first record after the count
/// or [`SCAN_BYTES`] is reached, unless its position is that of the one before. The cursor is that record's position;
/// 0 at the end of the walk.
fn run_scan(cx: &mut FragmentContext<'_>) {
    let (now, mut seen) = (cx.now, Items::default());
    if let (Ok(scan), Some(table)) = (Scan::parse(cx.args.iter(), true), read_table(cx))
        && let Ok(filter) = scan.filter()
    {
        let mut walk = Walk::new(scan.count);
        let from = Position(scan.cursor.min(Position::END.0));
        table.scan(cx.db, from, &mut |position, key, cell| {
            if !cell.is_live(now) {
                return true;
            }
            let done = walk.ends_before(position);
            let shown = !done && is_of_type(&scan, cell) && filter.wants(key);
            seen.push(|w| w.int(position.0 as i64));
            seen.push(|w| if shown { w.bulk(key) } else { w.int(key.len() as i64) });
            walk.look_at(position, key.len());
            !done
        });
    }
    seen.finish(&mut cx.writer());
}

fn reply_scan(cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
    let count = Scan::parse(cx.args().iter(), true).map_or(0, |scan| scan.count);
    let (mut keys, mut walk, mut next) = (Items::default(), Walk::new(count), 0);
    let lists: Vec<Vec<(Position, Datum<'_>)>> = parts(cx.slot(0)).map(seen_of).collect();
    for (position, key) in merged(lists) {
        if walk.ends_before(position) {
            next = position.0;
            break;
        }
        walk.look_at(position, key.as_int().map_or_else(|| length_of(key), |bytes| bytes as usize));
        if let Datum::Bulk(key) = key {
            keys.push(|w| w.bulk(key));
        }
    }
    let mut w = Writer(out);
    w.array(2);
    w.bulk(Decimal::unsigned(next).text());
    keys.finish(&mut w);
}

/// The answer of a shard: positions and keys, alternately.
fn seen_of(part: &[u8]) -> Vec<(Position, Datum<'_>)> {
    let mut values = DatumReader(part);
    match values.array() {
        Some(_) => std::iter::from_fn(|| Some((Position(values.int()? as u64), values.next()?))).collect(),
        None => Vec::new(),
    }
}

fn length_of(key: Datum<'_>) -> usize {
    key.as_bytes().map_or(0, <[u8]>::len)
}

fn is_of_type(scan: &Scan<'_>, cell: &Cell) -> bool {
    let type_name = cell.value.as_ref().map_or("none", |value| value.type_name());
    scan.type_name.is_none_or(|wanted| wanted.eq_ignore_ascii_case(type_name.as_bytes()))
}

/// RANDOMKEY: the first key at or after a random position, around the end. A shard answers with its first key
/// from there on and with its first key of all, each after its position.
fn run_randomkey(cx: &mut FragmentContext<'_>) {
    let position = KeyHash(Random(cx.seed).number()).position();
    let now = cx.now;
    let mut found = Vec::new();
    Writer(&mut found).array(4);
    for from in [position, Position::default()] {
        let before = found.len();
        if let Some(table) = read_table(cx) {
            table.scan(cx.db, from, &mut |position, key, cell| {
                let live = cell.is_live(now);
                if live {
                    Writer(&mut found).int(position.0 as i64);
                    Writer(&mut found).bulk(key);
                }
                !live
            });
        }
        if found.len() == before {
            Writer(&mut found).nil();
            Writer(&mut found).nil();
        }
    }
    cx.writer().raw(&found);
}

fn reply_randomkey(cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
    // The lowest of what shards have found, from there on and of all.
    let mut lowest: [Option<(i64, &[u8])>; 2] = [None; 2];
    for part in parts(cx.slot(0)) {
        let mut values = DatumReader(part);
        if values.array() != Some(4) {
            continue;
        }
        for lowest in &mut lowest {
            let (Some(position), Some(key)) = (values.next(), values.next()) else { break };
            if let (Datum::Int(position), Datum::Bulk(key)) = (position, key)
                && lowest.is_none_or(|(least, _)| position < least)
            {
                *lowest = Some((position, key));
            }
        }
    }
    let [after, first] = lowest.map(|found| found.map(|(_, key)| key));
    bulk_or_nil(&mut Writer(out), after.or(first));
}

fn check_flush(args: Args<'_>) -> Result<(), PlanError> {
    // There is one way to flush; both words are understood.
    let known = |w: &[u8]| w.eq_ignore_ascii_case(b"ASYNC") || w.eq_ignore_ascii_case(b"SYNC");
    if args.len() > 1 || !args.iter().all(|word| known(word.bytes)) {
        return Err(SYNTAX.into());
    }
    Ok(())
}

fn flush(cx: &mut FragmentContext<'_>, db: Option<Db>) {
    if let Target::Table(table) = &mut cx.target {
        table.clear(db);
    }
    cx.writer().ok();
}

fn swapped(mut items: ArgIter<'_>) -> Result<(Db, Db), Refusal> {
    let (first, second) = (items.bytes(), items.bytes());
    let bad_first = Refusal("ERR invalid first DB index");
    let bad_second = Refusal("ERR invalid second DB index");
    // Both must be numbers before it matters whether there is such a database.
    let first = database(first, (bad_first, bad_first));
    let second = database(second, (bad_second, bad_second));
    match (first, second) {
        (Ok(first), Ok(second)) => Ok((first, second)),
        (Err(refusal), _) if refusal != BAD_DB => Err(refusal),
        (_, Err(refusal)) => Err(refusal),
        (Err(refusal), _) => Err(refusal),
    }
}

fn check_swapdb(args: Args<'_>) -> Result<(), PlanError> {
    swapped(args.iter())?;
    Ok(())
}

fn swapdb(cx: &mut FragmentContext<'_>) {
    if let (Ok((a, b)), Target::Table(table)) = (swapped(cx.args.iter()), &mut cx.target) {
        table.swap(a, b);
    }
    cx.writer().ok();
}
