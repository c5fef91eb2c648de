//! NewOrder: a customer orders 5 to 15 items (clause 2.4).
//!
//! Every key is known in advance. The order's number is not: it is the district's, and so the district covers the
//! rows of the order, and comes last, when the prices and the stocks' texts that go into its lines are there.
//!
//! One order in a hundred names an item that there is not. Then the fragment that reads it aborts, and nothing of
//! the order may show, although stocks were taken from before. The row of the item is in the home warehouse, so
//! that the verdict is the home partition's alone, as in the papers' systems.

use std::sync::Arc;

use ordain_model::{
    Abort, Access, Args, Datum, FragmentContext, PlanError, Planner, Procedure, ProcedureId, Registry,
    ReplyContext, Writer,
};

use super::random::is_original;
use super::rows::{Customer, District, Item, Order, OrderLine, Stock, Warehouse};
use super::schema::{Child, DB, Named, Row};
use super::{DAMAGED, put_child, string, write_numbers};
use crate::packed::tail;

/// Places an order. Arguments: the keys of the warehouse, the customer, the items, the stocks they come from in the
/// same order, and the district; then D_ID, 1 byte, and the quantity of each line, 1 byte each.
///
/// Answers O_ID, the time, C_LAST, C_CREDIT, C_DISCOUNT, W_TAX, D_TAX, the total, and an array of the lines: of each
/// I_NAME, S_QUANTITY, the brand (`B` or `G`), I_PRICE and OL_AMOUNT. Aborts with [`UNUSED_ITEM`].
pub const NEW_ORDER: ProcedureId = ProcedureId(1045);

/// The answer to an order of an item that there is not.
pub const UNUSED_ITEM: &str = "ERR Item number is not valid";

/// The most lines that the procedure takes.
pub const MAX_LINES: usize = 64;

/// Registers the procedure; with the mistake that the tests of the audit plant, if asked to.
pub(super) fn register(registry: &mut Registry, skip_stock_updates: bool) {
    registry.register_native(NEW_ORDER, "tpcc.new_order", Arc::new(NewOrder { skip_stock_updates }));
}

/// The arguments of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewOrderCall {
    /// The home warehouse.
    pub warehouse: u32,
    /// The district.
    pub district: u8,
    /// The customer.
    pub customer: u32,
    /// The lines of the order.
    pub lines: Vec<Line>,
}

/// A line of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The item.
    pub item: u32,
    /// The warehouse it comes from.
    pub supply_warehouse: u32,
    /// The quantity.
    pub quantity: u8,
}

/// D_ID and the quantities, if there are as many arguments as they ask for.
#[inline]
fn split(args: Args<'_>) -> Option<(u8, &[u8])> {
    let lines = args.len().checked_sub(4)? / 2;
    // The packed argument is the last: its length, which stands before it, says where it begins.
    let packed = tail(args, 4 + 1 + lines);
    let (len, packed) = packed.split_first_chunk()?;
    let (district, quantities) = packed.split_first()?;
    let sound = u32::from_le_bytes(*len) as usize == 1 + lines
        && args.len() == 4 + 2 * lines
        && (1..=MAX_LINES).contains(&lines);
    sound.then_some((*district, quantities))
}

struct NewOrder {
    /// A mistake for tests: in one transaction of some dozen, the first stock is not updated.
    skip_stock_updates: bool,
}

impl NewOrder {
    const WAREHOUSE: u16 = 0;
    const CUSTOMER: u16 = 1;
    const DISTRICT: u16 = 2;
    const ITEM: u16 = 3;
    /// The first line's; the others' follow.
    const STOCK: u16 = 4;

    fn take_from_stock(&self, line: usize, cx: &mut FragmentContext<'_>) {
        let (Some((district, quantities)), Some(mut stock)) =
            (split(cx.args), string(&cx.target).and_then(Stock::read))
        else {
            return cx.writer().nil();
        };
        let quantity = quantities.get(line).copied().unwrap_or(0);
        let left = stock.quantity.wrapping_sub(i16::from(quantity));
        stock.quantity = if left >= 10 { left } else { left.wrapping_add(91) };
        stock.ytd = stock.ytd.wrapping_add(u32::from(quantity));
        stock.orders = stock.orders.wrapping_add(1);
        if !same_warehouse(cx.key.bytes, cx.args.iter().bytes()) {
            stock.remote_orders = stock.remote_orders.wrapping_add(1);
        }
        let mut slot = Writer(cx.out);
        slot.bulk(stock.dist_info(district));
        slot.int(i64::from(stock.quantity));
        slot.bool(is_original(stock.data));
        let numbers = stock.numbers();
        if !(self.skip_stock_updates && line == 0 && cx.seed.is_multiple_of(24)) {
            write_numbers(cx, &numbers);
        }
    }

    fn insert_order(cx: &mut FragmentContext<'_>) {
        let entered_ms = cx.now.0;
        let mut keys = cx.args.iter();
        let (Some((_, quantities)), Some(mut district), Some(home), Some(customer)) =
            (split(cx.args), string(&cx.target).and_then(District::front::<0>), keys.next(), keys.next())
        else {
            return cx.writer().nil();
        };
        let Some(home) = Named::read(home.bytes) else { return cx.writer().nil() };
        let Some(Row::Customer(_, customer)) = home.prefix.row(customer.bytes) else {
            return cx.writer().nil();
        };
        let number = district.next_order;
        district.next_order = number.wrapping_add(1);
        let mut slot = Writer(cx.out);
        slot.int(i64::from(number));
        slot.int(entered_ms as i64);
        slot.int(i64::from(district.tax_bp));
        let numbers = district.numbers();
        write_numbers(cx, &numbers);

        let (inputs, count) = (cx.inputs, quantities.len());
        let lines = (1..=count).map(|line| Child::OrderLine(number, line as u8));
        for row in lines.chain([Child::Order(number), Child::NewOrder(number), Child::Newest(customer)]) {
            cx.children().expect(&row.suffix());
        }
        let mut all_local = true;
        for (i, (stock, quantity)) in keys.skip(count).zip(quantities).enumerate() {
            let Some(Named { warehouse, row: Row::Stock(item), .. }) = home.beside(stock.bytes) else {
                continue;
            };
            all_local &= warehouse == home.warehouse;
            let row = OrderLine {
                item,
                supply_warehouse: warehouse,
                delivered_ms: 0,
                quantity: *quantity,
                amount_cents: amount(inputs.raw(i), *quantity),
                dist_info: Datum::first(inputs.raw(count + i)).as_bytes().unwrap_or_default(),
            };
            put_child(cx, Child::OrderLine(number, i as u8 + 1), row.encode());
        }
        let row =
            Order { customer, entered_ms, carrier: 0, lines: count as u8, all_local: u8::from(all_local) };
        put_child(cx, Child::Order(number), row.encode());
        put_child(cx, Child::NewOrder(number), Vec::new());
        put_child(cx, Child::Newest(customer), number.to_le_bytes().to_vec());
    }
}

/// True if two keys are of one warehouse.
#[inline]
fn same_warehouse(a: &[u8], b: &[u8]) -> bool {
    a.iter().zip(b).find(|(a, b)| a != b || **a == b'}').is_some_and(|(a, b)| a == b)
}

/// OL_AMOUNT, from the slot of the item.
#[inline]
fn amount(item: &[u8], quantity: u8) -> i64 {
    Datum::first(item).as_int().unwrap_or(0).wrapping_mul(i64::from(quantity))
}

impl Procedure for NewOrder {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let (district, quantities) = split(args).ok_or(DAMAGED)?;
        let count = quantities.len();
        let mut keys = args.iter();
        let key = keys.next().ok_or(DAMAGED)?;
        let home = Named::read(key.bytes).filter(|home| home.row == Row::Warehouse).ok_or(DAMAGED)?;
        planner.key_in(DB, NewOrder::WAREHOUSE, Access::Read, key)?;
        let mut next_at_home = || {
            let key = keys.next().ok_or(DAMAGED)?;
            home.prefix.row(key.bytes).map(|row| (key, row)).ok_or(DAMAGED)
        };
        let (key, row) = next_at_home()?;
        row.customer_of(district).ok_or(DAMAGED)?;
        let first = planner.key_in(DB, NewOrder::CUSTOMER, Access::Read, key)?.0 + 1;
        let mut items = [0; MAX_LINES];
        for item in &mut items[..count] {
            let (key, Row::Item(number)) = next_at_home()? else { return Err(DAMAGED) };
            *item = number;
            planner.key_in(DB, NewOrder::ITEM, Access::Read, key)?;
            planner.abortable();
        }
        for (item, code) in items[..count].iter().zip(NewOrder::STOCK..) {
            let key = keys.next().ok_or(DAMAGED)?;
            if home.beside(key.bytes).is_none_or(|named| named.row != Row::Stock(*item)) {
                return Err(DAMAGED);
            }
            planner.key_in(DB, code, Access::Write, key)?;
        }
        let key = keys.next().ok_or(DAMAGED)?;
        if home.prefix.row(key.bytes) != Some(Row::District(district)) {
            return Err(DAMAGED);
        }
        planner.key_in(DB, NewOrder::DISTRICT, Access::Write, key)?;
        planner.with_children();
        (0..2 * count as u32).for_each(|slot| planner.input(ordain_model::SlotNo(first + slot)));
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        match code {
            NewOrder::WAREHOUSE => {
                let tax = string(&cx.target).and_then(Warehouse::front::<0>).map_or(0, |row| row.tax_bp);
                Writer(cx.out).int(i64::from(tax));
            }
            NewOrder::CUSTOMER => {
                let row = string(&cx.target).and_then(Customer::front::<10>).unwrap_or_default();
                let mut slot = Writer(cx.out);
                slot.bulk(row.last);
                slot.bulk(row.credit);
                slot.int(i64::from(row.discount_bp));
            }
            NewOrder::DISTRICT => NewOrder::insert_order(cx),
            NewOrder::ITEM => {
                let Some(row) = string(&cx.target).and_then(Item::read) else {
                    Writer(cx.out).error(UNUSED_ITEM);
                    return Err(Abort::Logic);
                };
                let mut slot = Writer(cx.out);
                slot.int(row.price_cents);
                slot.bulk(row.name);
                slot.bool(is_original(row.data));
            }
            _ => self.take_from_stock(usize::from(code - NewOrder::STOCK), cx),
        }
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        let (_, quantities) = split(cx.args()).unwrap_or_default();
        let count = quantities.len() as u32;
        let mut writer = Writer(out);
        let Some((Datum::Int(order), rest)) = Datum::split(cx.slot(2 + 2 * count)) else {
            return writer.error("ERR the district is not loaded");
        };
        let (entered, rest) = Datum::split(rest).unwrap_or((Datum::Nil, &[]));
        let district_tax = Datum::first(rest).as_int().unwrap_or(0);
        let warehouse_tax = Datum::first(cx.slot(0)).as_int().unwrap_or(0);
        let [last, credit, discount] = datums(cx.slot(1));
        let discount = discount.as_int().unwrap_or(0);
        let sum = quantities.iter().zip(2..).map(|(quantity, i)| amount(cx.slot(i), *quantity)).sum();
        writer.array(9);
        writer.int(order);
        writer.int(entered.as_int().unwrap_or(0));
        writer.bulk(last.as_bytes().unwrap_or_default());
        writer.bulk(credit.as_bytes().unwrap_or_default());
        writer.int(discount);
        writer.int(warehouse_tax);
        writer.int(district_tax);
        writer.int(total(sum, discount, warehouse_tax + district_tax));
        writer.array(quantities.len());
        for (quantity, i) in quantities.iter().zip(2..) {
            let [price, name, item_original] = datums(cx.slot(i));
            let [_, left, stock_original] = datums(cx.slot(i + count));
            let branded = item_original == Datum::Bool(true) && stock_original == Datum::Bool(true);
            writer.array(5);
            writer.bulk(name.as_bytes().unwrap_or_default());
            writer.int(left.as_int().unwrap_or(0));
            writer.bulk(if branded { b"B" } else { b"G" });
            writer.int(price.as_int().unwrap_or(0));
            writer.int(amount(cx.slot(i), *quantity));
        }
    }
}

/// The first values of a slot.
fn datums<const N: usize>(mut slot: &[u8]) -> [Datum<'_>; N] {
    std::array::from_fn(|_| match Datum::split(slot) {
        Some((datum, rest)) => {
            slot = rest;
            datum
        }
        None => Datum::Nil,
    })
}

/// The total of an order in cents, rounded: what its lines amount to, less the discount, plus the taxes.
fn total(sum_cents: i64, discount_bp: i64, taxes_bp: i64) -> i64 {
    const WHOLE: i128 = 10_000;
    let exact = i128::from(sum_cents) * (WHOLE - i128::from(discount_bp)) * (WHOLE + i128::from(taxes_bp));
    ((exact + WHOLE * WHOLE / 2) / (WHOLE * WHOLE)) as i64
}

/// The number of lines of an order that was answered; `None` for another answer.
pub(super) fn read_reply(reply: &[u8]) -> Option<u32> {
    let (Datum::Array(9), mut rest) = Datum::split(reply)? else { return None };
    for _ in 0..8 {
        rest = Datum::split(rest)?.1;
    }
    let Datum::Array(lines) = Datum::first(rest) else { return None };
    Some(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl NewOrderCall {
        /// Reads the arguments of [`NEW_ORDER`]; `None` if they are none.
        pub fn decode(args: Args<'_>) -> Option<NewOrderCall> {
            let (district, quantities) = split(args)?;
            let mut names = args.iter().map(|arg| Named::read(arg.bytes));
            let home = names.next()??;
            let customer = names.next()??.row.customer_of(district)?;
            let at_home = |named: Named<'_>| named.prefix == home.prefix;
            let mut lines = Vec::with_capacity(quantities.len());
            for quantity in quantities {
                let Row::Item(item) = names.next()?.filter(|named| at_home(*named))?.row else { return None };
                lines.push(Line { item, supply_warehouse: home.warehouse, quantity: *quantity });
            }
            for line in &mut lines {
                let named = names.next()??;
                (named.row == Row::Stock(line.item)).then_some(())?;
                line.supply_warehouse = named.warehouse;
            }
            let district_is_there = names.next()?? == Named { row: Row::District(district), ..home };
            let sound = home.row == Row::Warehouse && district_is_there;
            sound.then_some(NewOrderCall { warehouse: home.warehouse, district, customer, lines })
        }
    }

    #[test]
    fn totals_are_discounted_taxed_and_rounded() {
        assert_eq!(total(10_000, 0, 0), 10_000);
        assert_eq!(total(10_000, 5_000, 2_000), 6_000);
        // 3.33 less 12.34%, plus 7.65%: 3.142396…
        assert_eq!(total(333, 1_234, 765), 314);
        assert_eq!(total(1, 5_000, 0), 1);
    }

    #[test]
    fn keys_of_one_warehouse_differ_from_others() {
        assert!(same_warehouse(b"{1a}w", b"{1a}sxx"));
        for other in [&b"{1b}w"[..], b"{1}w", b"{11a}w", b"{1aa}w", b"", b"{1a"] {
            assert!(!same_warehouse(b"{1a}w", other), "{other:?}");
        }
    }
}
