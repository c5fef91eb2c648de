//! StockLevel: how many of the items that a district sold of late are nearly sold out (clause 2.8). It only reads.
//!
//! The items are not known in advance. So one transaction reads them ([`PEEK`]), and the real one, which names their
//! stocks, reads them again, and restarts if an order that came between has an item that it does not name (OLLP;
//! calvin.md, section 4.7). In a district that sells faster than transactions pass, that would go on. So one that
//! restarts takes the orders as they were found then, which do not change any more: the specification asks no more
//! than that what is read was committed, and was the newest when the client asked (clause 2.8.2.3).

use std::collections::BTreeSet;
use std::sync::Arc;

use ordain_model::{
    Abort, Access, Args, ArgsBuilder, Datum, FragmentContext, Known, PlanError, Planner, Procedure,
    ProcedureId, Reconnaissance, Registry, ReplyContext, Writer,
};

use super::rows::{District, Order, OrderLine, Stock};
use super::schema::{Child, DB, Named, Row};
use super::{DAMAGED, child, last, split_packed, string};

/// Counts. Arguments: the key of the district; then the threshold, 1 byte. Answers how many items there are whose
/// stock is below it.
pub const STOCK_LEVEL: ProcedureId = ProcedureId(1050);
/// The items that a district sold of late. Arguments: its key. Answers one bulk: 0, 4 bytes, and the I_IDs of the newest 20
/// orders, each once and in order, 4 bytes each. The answer of a StockLevel that restarts is alike, but begins with
/// D_NEXT_O_ID as it was then.
pub const PEEK: ProcedureId = ProcedureId(1051);

/// The number of orders that count.
const ORDERS: u32 = 20;

pub(super) fn register(registry: &mut Registry) {
    registry.register_native(STOCK_LEVEL, "tpcc.stock_level", Arc::new(StockLevel));
    registry.register_native(PEEK, "tpcc.stock_level_peek", Arc::new(Peek));
}

/// The arguments of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StockLevelCall {
    /// The warehouse.
    pub warehouse: u32,
    /// The district.
    pub district: u8,
    /// The stock below which an item is nearly sold out.
    pub threshold: u8,
}

impl StockLevelCall {
    /// Reads the arguments of [`STOCK_LEVEL`], as a client gives them; `None` if they are none.
    pub fn decode(args: Args<'_>) -> Option<StockLevelCall> {
        let Named { warehouse, row: Row::District(district), .. } = Named::read(args.get(0)?)? else {
            return None;
        };
        let ([threshold], 2) = (args.get(1)?, args.len()) else { return None };
        Some(StockLevelCall { warehouse, district, threshold: *threshold })
    }
}

/// The items that a district sold of late.
#[derive(Debug, Default)]
struct Sold {
    /// D_NEXT_O_ID at that time, or 0 for now, whenever that is.
    next_order: u32,
    items: BTreeSet<u32>,
}

impl Sold {
    /// The items of the newest orders before this one, or, for 0, of the district.
    fn before(cx: &FragmentContext<'_>, next_order: u32) -> Sold {
        let (Some(district), Some(rows)) =
            (string(&cx.target).and_then(District::front::<0>), cx.children.as_deref())
        else {
            return Sold::default();
        };
        let next_order =
            if next_order == 0 { district.next_order } else { next_order.min(district.next_order) };
        let mut items = BTreeSet::new();
        for number in next_order.saturating_sub(ORDERS).max(1)..next_order {
            let order = child(rows, Child::Order(number)).and_then(Order::read);
            for line in 1..=order.map_or(0, |order| order.lines) {
                let row = child(rows, Child::OrderLine(number, line)).and_then(OrderLine::front::<0>);
                items.extend(row.map(|row| row.item));
            }
        }
        Sold { next_order, items }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let words = [self.next_order].into_iter().chain(self.items.iter().copied());
        let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        Writer(out).bulk(&bytes);
    }

    fn read(slot: &[u8]) -> Option<Sold> {
        let (words, []) = Datum::first(slot).as_bytes()?.as_chunks() else { return None };
        let (next_order, items) = words.split_first()?;
        let items = items.iter().map(|item| u32::from_le_bytes(*item)).collect();
        Some(Sold { next_order: u32::from_le_bytes(*next_order), items })
    }
}

/// The last argument of the real transaction, behind the keys of the district and the stocks: the threshold, and
/// before which order the orders are that count, 4 bytes, 0 for the newest.
fn read_packed(packed: &[u8]) -> Option<(u8, u32)> {
    let (threshold, next_order) = packed.split_first()?;
    Some((*threshold, u32::from_le_bytes(next_order.try_into().ok()?)))
}

/// The packed argument of a transaction.
fn packed_of(args: Args<'_>) -> Option<(u8, u32)> {
    read_packed(last(args))
}

/// The items whose stocks the real transaction names, between the district's key and the threshold.
fn named_items(args: Args<'_>) -> impl Iterator<Item = u32> + '_ {
    let keys = args.iter().skip(1).take(args.len().saturating_sub(2));
    keys.filter_map(|key| match Named::read(key.bytes)?.row {
        Row::Stock(item) => Some(item),
        _ => None,
    })
}

struct StockLevel;

impl StockLevel {
    const DISTRICT: u16 = 0;
    const STOCK: u16 = 1;
}

impl Procedure for StockLevel {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let (mut keys, packed) = split_packed(args)?;
        let (Some(key), Some(_)) = (keys.next(), read_packed(packed)) else { return Err(DAMAGED) };
        let district = Named::read(key.bytes).ok_or(DAMAGED)?;
        let Row::District(_) = district.row else { return Err(DAMAGED) };
        planner.key_in(DB, StockLevel::DISTRICT, Access::Read, key)?;
        planner.with_children();
        planner.abortable();
        for key in keys {
            match Named::read(key.bytes) {
                Some(Named { prefix, row: Row::Stock(_), .. }) if prefix == district.prefix => {}
                _ => return Err(DAMAGED),
            }
            planner.key_in(DB, StockLevel::STOCK, Access::Read, key)?;
        }
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if code == StockLevel::STOCK {
            let quantity = string(&cx.target).and_then(Stock::front::<0>).map(|row| row.quantity);
            match quantity {
                Some(quantity) => Writer(cx.out).int(i64::from(quantity)),
                None => Writer(cx.out).nil(),
            }
            return Ok(());
        }
        let sold = Sold::before(cx, packed_of(cx.args).map_or(0, |(_, next_order)| next_order));
        sold.write(cx.out);
        let named: BTreeSet<u32> = named_items(cx.args).collect();
        if sold.items.is_subset(&named) { Ok(()) } else { Err(Abort::Restart) }
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        let args = cx.args();
        let (threshold, _) = packed_of(args).unwrap_or_default();
        // A stock that is named for an order which is not among the newest any more does not count.
        let sold = Sold::read(cx.slot(0)).unwrap_or_default();
        let mut low = 0;
        for (item, slot) in named_items(args).zip(1..) {
            let is_low = Datum::first(cx.slot(slot)).as_int().is_some_and(|left| left < i64::from(threshold));
            low += i64::from(is_low && sold.items.contains(&item));
        }
        Writer(out).int(low);
    }

    fn is_dependent(&self) -> bool {
        true
    }

    fn reconnoitre(&self, args: Args<'_>, known: &Known) -> Result<Reconnaissance, PlanError> {
        let StockLevelCall { threshold, .. } = StockLevelCall::decode(args).ok_or(DAMAGED)?;
        let key = args.get(0).ok_or(DAMAGED)?;
        let prefix = Named::read(key).ok_or(DAMAGED)?.prefix;
        let mut bytes = Vec::new();
        let mut builder = ArgsBuilder::new(&mut bytes);
        builder.push(key);
        let Some(answer) = known.answers.last() else { return Ok(Reconnaissance::Ask(PEEK, bytes)) };
        let Sold { next_order, items } = Sold::read(answer).ok_or(DAMAGED)?;
        items.into_iter().for_each(|item| _ = builder.push(&prefix.key(Row::Stock(item))));
        let [a, b, c, d] = next_order.to_le_bytes();
        builder.push(&[threshold, a, b, c, d]);
        Ok(Reconnaissance::Ready(bytes))
    }
}

struct Peek;

impl Procedure for Peek {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let (Some(key), 1) = (args.iter().next(), args.len()) else { return Err(DAMAGED) };
        let Some(Named { row: Row::District(_), .. }) = Named::read(key.bytes) else { return Err(DAMAGED) };
        planner.key_in(DB, 0, Access::Read, key)?;
        planner.with_children();
        Ok(())
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        Sold { next_order: 0, ..Sold::before(cx, 0) }.write(cx.out);
        Ok(())
    }
}

/// True for the reply of a StockLevel.
pub(super) fn is_reply(reply: &[u8]) -> bool {
    Datum::first(reply).as_int().is_some()
}
