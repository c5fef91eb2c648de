//! Delivery: the oldest new order of each district of a warehouse is delivered (clause 2.7).
//!
//! Whose orders these are is not known in advance. So a read-only transaction reads them ([`PEEK`]), and the real one,
//! which names these customers, reads them again: if the next order of a district is that of a customer it does not name, it restarts
//! with what it found (OLLP; calvin.md, section 4.7). What counts is the keys: another order of the same
//! customer will do.
//!
//! Deliveries to one warehouse are each other's only disturbance, and each makes all others stale. So one that restarts
//! names twice as many customers of each district as before, those who are next, and has to restart again
//! only if more deliveries than that came first.

use std::sync::Arc;

use ordain_model::{
    Abort, Access, Args, ArgsBuilder, Datum, FragmentContext, Known, PlanError, Planner, Procedure,
    ProcedureId, Reconnaissance, Registry, ReplyContext, SlotNo, Writer,
};

use super::rows::{Customer, District, Order, OrderLine};
use super::schema::{Child, DB, MAX_DISTRICTS, Named, Row};
use super::{DAMAGED, child, last, put_child_numbers, split_packed, string, write_numbers};

/// Delivers. Arguments: the keys of the warehouse's districts, D_ID 1 first; then O_CARRIER_ID, 1 byte.
///
/// Answers the O_ID of each district, nil where there was nothing to deliver.
pub const DELIVERY: ProcedureId = ProcedureId(1048);
/// The next customers to be delivered to. Arguments: the keys of districts. Answers one bulk: of each district the O_C_ID of the
/// smallest NO_O_ID, 4 bytes, 0 if there is none. The answer of a delivery that restarts is alike, but has several
/// of each district, those of the next orders.
pub const PEEK: ProcedureId = ProcedureId(1049);

pub(super) fn register(registry: &mut Registry) {
    registry.register_native(DELIVERY, "tpcc.delivery", Arc::new(Delivery));
    registry.register_native(PEEK, "tpcc.delivery_peek", Arc::new(Peek));
}

/// The arguments of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryCall {
    /// The warehouse.
    pub warehouse: u32,
    /// The number of its districts.
    pub districts: u8,
    /// The carrier.
    pub carrier: u8,
}

impl DeliveryCall {
    /// Reads the arguments of [`DELIVERY`], as a client gives them; `None` if they are none.
    pub fn decode(args: Args<'_>) -> Option<DeliveryCall> {
        let (keys, packed) = split_packed(args).ok()?;
        let [carrier] = packed else { return None };
        let first = Named::read(args.get(0)?)?;
        for (key, district) in keys.zip(1..) {
            if Named::read(key.bytes)? != (Named { row: Row::District(district), ..first }) {
                return None;
            }
        }
        let districts = u8::try_from(args.len() - 1).ok().filter(|n| (1..=MAX_DISTRICTS).contains(n))?;
        (1..=MAX_CARRIER).contains(carrier).then_some(DeliveryCall {
            warehouse: first.warehouse,
            districts,
            carrier: *carrier,
        })
    }
}

/// The largest O_CARRIER_ID.
pub const MAX_CARRIER: u8 = 10;

/// The most customers of a district that a delivery names.
const MAX_WINDOW: usize = 16;

/// Whose the order `number` of the district is.
fn due(cx: &FragmentContext<'_>, number: u32) -> Option<u32> {
    Some(Order::read(child(cx.children.as_deref()?, Child::Order(number))?)?.customer)
}

/// The customers of the next orders to be delivered, 0 where there is none.
fn window(cx: &FragmentContext<'_>, length: usize) -> Vec<u32> {
    let numbers = string(&cx.target)
        .and_then(District::front::<0>)
        .map_or(0..0, |district| district.oldest_new_order..district.next_order);
    let mut customers: Vec<u32> = numbers.take(length).map_while(|number| due(cx, number)).collect();
    customers.resize(length, 0);
    customers
}

fn write_window(customers: &[u32], out: &mut Vec<u8>) {
    customers.iter().for_each(|customer| out.extend_from_slice(&customer.to_le_bytes()));
}

/// The last argument of the real transaction, behind the keys of the districts and of the customers: O_CARRIER_ID, the
/// number of districts, and of each of them equally many C_IDs, 4 bytes each. A 0 is none; no C_ID is there twice.
#[derive(Clone, Copy)]
struct Packed<'a> {
    carrier: u8,
    districts: usize,
    customers: &'a [[u8; 4]],
}

impl<'a> Packed<'a> {
    fn read(packed: &'a [u8]) -> Option<Packed<'a>> {
        let ([carrier, districts], rest) = packed.split_first_chunk()?;
        let (customers, []) = rest.as_chunks() else { return None };
        let packed = Packed { carrier: *carrier, districts: usize::from(*districts), customers };
        let sound = (1..=MAX_CARRIER).contains(carrier)
            && (1..=MAX_DISTRICTS).contains(districts)
            && customers.len().is_multiple_of(packed.districts)
            && (1..=MAX_WINDOW).contains(&packed.length());
        sound.then_some(packed)
    }

    /// Reads the last argument of a transaction.
    fn of(args: Args<'a>) -> Option<Packed<'a>> {
        Packed::read(last(args))
    }

    /// The number of customers of each district.
    fn length(&self) -> usize {
        self.customers.len() / self.districts
    }

    /// The customers of a district, counted from 0, that are named.
    fn of_district(&self, district: usize) -> impl Iterator<Item = u32> + Clone {
        let from = (district * self.length()).min(self.customers.len());
        let customers = self.customers[from..].iter().take(self.length());
        customers.map(|id| u32::from_le_bytes(*id)).filter(|customer| *customer != 0)
    }
}

struct Delivery;

impl Delivery {
    const CUSTOMER: u16 = 0;
    /// The first district's; the others' follow.
    const DISTRICT: u16 = 1;

    /// Delivers the oldest order of a district, if there is one and its customer is named.
    fn deliver(cx: &mut FragmentContext<'_>, district: usize) -> Result<(), Abort> {
        let delivered_ms = cx.now.0;
        let Some(packed) = Packed::of(cx.args) else { return Ok(()) };
        let Some(mut row) = string(&cx.target).and_then(District::front::<0>) else { return Ok(()) };
        let number = row.oldest_new_order;
        let Some(customer) = (number < row.next_order).then(|| due(cx, number)).flatten() else {
            return Ok(());
        };
        if !packed.of_district(district).any(|named| named == customer) {
            let mut fresh = Vec::new();
            write_window(&window(cx, (2 * packed.length()).min(MAX_WINDOW)), &mut fresh);
            Writer(cx.out).bulk(&fresh);
            return Err(Abort::Restart);
        }
        row.oldest_new_order = number + 1;
        let numbers = row.numbers();
        write_numbers(cx, &numbers);
        let rows = cx.children();
        let Some(mut order) = child(rows, Child::Order(number)).and_then(Order::read) else {
            return Ok(());
        };
        order.carrier = packed.carrier;
        put_child_numbers(rows, Child::Order(number), &order.numbers());
        rows.edit(&Child::NewOrder(number).suffix(), &mut |cell| cell.delete());
        let mut amount_cents = 0i64;
        for line in 1..=order.lines {
            let name = Child::OrderLine(number, line);
            let Some(mut row) = child(rows, name).and_then(OrderLine::front::<0>) else { continue };
            row.delivered_ms = delivered_ms;
            amount_cents = amount_cents.wrapping_add(row.amount_cents);
            let numbers = row.numbers();
            put_child_numbers(rows, name, &numbers);
        }
        let mut slot = Writer(cx.out);
        slot.int(i64::from(number));
        slot.int(i64::from(customer));
        slot.int(amount_cents);
        Ok(())
    }

    /// Credits a customer who is named, if the order that was delivered is its.
    fn credit(cx: &mut FragmentContext<'_>) {
        let Some((_, customer, amount_cents)) = read_slot(cx.inputs.raw(0)) else { return };
        let Some(Named { row: Row::Customer(_, named), .. }) = Named::read(cx.key.bytes) else { return };
        if named == customer
            && let Some(mut row) = string(&cx.target).and_then(Customer::front::<0>)
        {
            row.balance_cents = row.balance_cents.wrapping_add(amount_cents);
            row.deliveries = row.deliveries.wrapping_add(1);
            let numbers = row.numbers();
            write_numbers(cx, &numbers);
        }
    }
}

/// The delivery of a district's fragment: the order, its customer, and the amount.
fn read_slot(slot: &[u8]) -> Option<(u32, u32, i64)> {
    let (Datum::Int(order), rest) = Datum::split(slot)? else { return None };
    let (Datum::Int(customer), rest) = Datum::split(rest)? else { return None };
    Some((order as u32, customer as u32, Datum::first(rest).as_int()?))
}

impl Procedure for Delivery {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let (mut keys, packed) = split_packed(args)?;
        let packed = Packed::read(packed).ok_or(DAMAGED)?;
        let first = args.get(0).and_then(Named::read).ok_or(DAMAGED)?;
        let mut next = |row| {
            let key = keys.next().ok_or(DAMAGED)?;
            if Named::read(key.bytes) == Some(Named { row, ..first }) { Ok(Some(key)) } else { Err(DAMAGED) }
        };
        let mut slots = [SlotNo(0); MAX_DISTRICTS as usize];
        for (i, slot) in slots[..packed.districts].iter_mut().enumerate() {
            let Some(key) = next(Row::District(i as u8 + 1))? else { continue };
            *slot = planner.key_in(DB, Delivery::DISTRICT + i as u16, Access::Write, key)?;
            planner.with_children();
            planner.abortable();
        }
        for (i, slot) in slots[..packed.districts].iter().enumerate() {
            let named = packed.of_district(i);
            for (n, customer) in named.clone().enumerate() {
                if named.clone().take(n).any(|other| other == customer) {
                    return Err(DAMAGED);
                }
                let Some(key) = next(Row::Customer(i as u8 + 1, customer))? else { continue };
                planner.key_in(DB, Delivery::CUSTOMER, Access::Write, key)?;
                planner.input(*slot);
                planner.silent();
            }
        }
        if keys.next().is_some() { Err(DAMAGED) } else { Ok(()) }
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        match code.checked_sub(Delivery::DISTRICT) {
            Some(district) => Delivery::deliver(cx, usize::from(district)),
            None => {
                Delivery::credit(cx);
                Ok(())
            }
        }
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        let districts = Packed::of(cx.args()).map_or(0, |packed| packed.districts);
        let mut writer = Writer(out);
        writer.array(districts);
        for i in 0..districts as u32 {
            match read_slot(cx.slot(i)) {
                Some((order, ..)) => writer.int(i64::from(order)),
                None => writer.nil(),
            }
        }
    }

    /// Of a restart: who is next in the districts that were found changed, and who was named in the others.
    fn abort_reply(&self, abort: Abort, slot: SlotNo, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        match (abort, Packed::of(cx.args())) {
            (Abort::Restart, Some(packed)) => {
                let length = (2 * packed.length()).min(MAX_WINDOW);
                let mut bytes = Vec::with_capacity(4 * length * packed.districts);
                for (i, district) in (0..packed.districts).enumerate() {
                    match Datum::first(cx.slot(i as u32)) {
                        Datum::Bulk(fresh) => bytes.extend_from_slice(fresh),
                        _ => write_window(&packed.of_district(district).collect::<Vec<_>>(), &mut bytes),
                    }
                    bytes.resize(4 * length * (i + 1), 0);
                }
                Writer(out).bulk(&bytes);
            }
            _ => match cx.slots.slot(slot) {
                [] => Writer(out).abort(abort),
                answer => out.extend_from_slice(answer),
            },
        }
    }

    fn is_dependent(&self) -> bool {
        true
    }

    fn reconnoitre(&self, args: Args<'_>, known: &Known) -> Result<Reconnaissance, PlanError> {
        let call = DeliveryCall::decode(args).ok_or(DAMAGED)?;
        let prefix = args.get(0).and_then(Named::read).ok_or(DAMAGED)?.prefix;
        let mut bytes = Vec::new();
        let mut builder = ArgsBuilder::new(&mut bytes);
        args.iter().take(args.len() - 1).for_each(|key| _ = builder.push(key.bytes));
        let Some(answer) = known.answers.last() else { return Ok(Reconnaissance::Ask(PEEK, bytes)) };
        let (customers, []) = Datum::first(answer).as_bytes().ok_or(DAMAGED)?.as_chunks::<4>() else {
            return Err(DAMAGED);
        };
        let length = customers.len() / usize::from(call.districts);
        let mut packed = vec![call.carrier, call.districts];
        for (named, district) in customers.chunks(length.max(1)).zip(1..) {
            for (i, customer) in named.iter().enumerate() {
                let number = u32::from_le_bytes(*customer);
                if number == 0 || named[..i].contains(customer) {
                    packed.extend_from_slice(&[0; 4]);
                    continue;
                }
                packed.extend_from_slice(customer);
                builder.push(&prefix.key(Row::Customer(district, number)));
            }
        }
        builder.push(&packed);
        Ok(Reconnaissance::Ready(bytes))
    }
}

struct Peek;

impl Procedure for Peek {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        for key in args {
            let Some(Named { row: Row::District(_), .. }) = Named::read(key.bytes) else {
                return Err(DAMAGED);
            };
            planner.key_in(DB, 0, Access::Read, key)?;
            planner.with_children();
        }
        Ok(())
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let mut bytes = Vec::with_capacity(4);
        write_window(&window(cx, 1), &mut bytes);
        Writer(cx.out).bulk(&bytes);
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        let slots = (0..cx.count).map(|i| Datum::first(cx.slot(i)).as_bytes().unwrap_or_default());
        Writer(out).bulk(&slots.collect::<Vec<_>>().concat());
    }
}

/// The number of orders that an answered delivery delivered; `None` for another answer.
pub(super) fn read_reply(reply: &[u8]) -> Option<u64> {
    let (Datum::Array(districts), mut rest) = Datum::split(reply)? else { return None };
    let mut delivered = 0;
    for _ in 0..districts {
        let (order, tail) = Datum::split(rest)?;
        delivered += u64::from(order.as_int().is_some());
        rest = tail;
    }
    Some(delivered)
}
