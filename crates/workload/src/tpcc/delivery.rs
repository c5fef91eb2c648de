//! Delivery: the oldest new order of each district of a warehouse is delivered (clause 2.7).
//!
//! Whose orders these are is not known in advance. So a read-only transaction looks ([`PEEK`]), and the real one,
//! which names these customers, looks again: if a customer is not the one any more, it starts over with what it
//! found (OLLP; calvin.md, section 4.7). Another order of the same customer will do: what counts is the keys.

use std::sync::Arc;

use ordain_model::{
    Abort, Access, Args, ArgsBuilder, Datum, FragmentContext, Known, PlanError, Planner, Procedure,
    ProcedureId, Reconnaissance, Registry, ReplyContext, SlotNo, Writer,
};

use super::schema::{Covered, Customer, DB, District, MAX_DISTRICTS, Named, Order, OrderLine, Row};
use super::{DAMAGED, below, below_numbers, split_packed, string, write_numbers};

/// Delivers. Arguments: the keys of the warehouse's districts, D_ID 1 first; then O_CARRIER_ID, 1 byte.
///
/// Answers the O_ID of each district, nil where there was nothing to deliver.
pub const DELIVERY: ProcedureId = ProcedureId(1048);
/// What is to be delivered. Arguments: the keys of districts. Answers one bulk: of each district the smallest
/// NO_O_ID and its O_C_ID, 4 bytes each, 0 if there is none.
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
    /// How many districts it has.
    pub districts: u8,
    /// Who delivers.
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

/// The order that a district would deliver now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Due {
    order: u32,
    customer: u32,
}

impl Due {
    fn of(cx: &FragmentContext<'_>) -> Option<Due> {
        let district = string(&cx.target).and_then(District::read)?;
        let number = district.oldest_new_order;
        let order = Order::read(below(cx.below.as_deref()?, Covered::Order(number))?)?;
        (number < district.next_order).then_some(Due { order: number, customer: order.customer })
    }

    fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.order.to_le_bytes());
        out.extend_from_slice(&self.customer.to_le_bytes());
    }

    /// Reads the answer of [`PEEK`], or of a restart.
    fn read_all(answer: &[u8]) -> Option<Vec<Due>> {
        let bytes = Datum::first(answer).as_bytes()?;
        let (dues, []) = bytes.as_chunks::<8>() else { return None };
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_le_bytes);
        let dues = dues.iter().map(|due| Due { order: word(&due[..4]), customer: word(&due[4..]) });
        Some(dues.collect())
    }
}

/// The arguments of the real transaction: the keys of the districts, those of the customers of the districts that
/// have one, and then O_CARRIER_ID and the C_ID of each district or 0.
struct Packed<'a> {
    carrier: u8,
    customers: &'a [[u8; 4]],
}

impl<'a> Packed<'a> {
    fn read(packed: &'a [u8]) -> Option<Packed<'a>> {
        let (carrier, rest) = packed.split_first()?;
        let (customers, []) = rest.as_chunks() else { return None };
        let sound = (1..=MAX_CARRIER).contains(carrier)
            && (1..=usize::from(MAX_DISTRICTS)).contains(&customers.len());
        sound.then_some(Packed { carrier: *carrier, customers })
    }

    fn customer(&self, district: usize) -> u32 {
        self.customers.get(district).map_or(0, |id| u32::from_le_bytes(*id))
    }
}

struct Delivery;

impl Delivery {
    const CUSTOMER: u16 = 0;
    /// The first district's; the others' follow.
    const DISTRICT: u16 = 1;

    /// Delivers the order of a district and returns what it amounts to.
    fn deliver(cx: &mut FragmentContext<'_>, due: Due, carrier: u8) -> i64 {
        let delivered_ms = cx.now.0;
        if let Some(mut row) = string(&cx.target).and_then(District::read) {
            row.oldest_new_order = due.order.wrapping_add(1);
            let numbers = row.numbers();
            write_numbers(cx, &numbers);
        }
        let rows = cx.below();
        let Some(mut order) = below(rows, Covered::Order(due.order)).and_then(Order::read) else { return 0 };
        order.carrier = carrier;
        below_numbers(rows, Covered::Order(due.order), &order.numbers());
        rows.edit(&Covered::NewOrder(due.order).suffix(), &mut |cell| cell.delete());
        let mut amount_cents = 0i64;
        for line in 1..=order.lines {
            let covered = Covered::OrderLine(due.order, line);
            let Some(mut row) = below(rows, covered).and_then(OrderLine::read) else { continue };
            row.delivered_ms = delivered_ms;
            amount_cents = amount_cents.wrapping_add(row.amount_cents);
            let numbers = row.numbers();
            below_numbers(rows, covered, &numbers);
        }
        amount_cents
    }
}

/// What a district's fragment has in its slot: the order and its customer, or zeros, and what was delivered.
fn read_slot(slot: &[u8]) -> Option<(Due, i64)> {
    let (Datum::Bulk(due), rest) = Datum::split(slot)? else { return None };
    let mut bulk = Vec::new();
    Writer(&mut bulk).bulk(due);
    Some((*Due::read_all(&bulk)?.first()?, Datum::first(rest).as_int()?))
}

impl Procedure for Delivery {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let (mut keys, packed) = split_packed(args)?;
        let packed = Packed::read(packed).ok_or(DAMAGED)?;
        let first = args.get(0).and_then(Named::read).ok_or(DAMAGED)?;
        let mut slots = [SlotNo(0); MAX_DISTRICTS as usize];
        for (i, slot) in slots[..packed.customers.len()].iter_mut().enumerate() {
            let key = keys.next().ok_or(DAMAGED)?;
            if Named::read(key.bytes) != Some(Named { row: Row::District(i as u8 + 1), ..first }) {
                return Err(DAMAGED);
            }
            *slot = planner.key_in(DB, Delivery::DISTRICT + i as u16, Access::Write, key)?;
            planner.covering();
            planner.abortable();
        }
        for (i, slot) in slots[..packed.customers.len()].iter().enumerate() {
            let customer = packed.customer(i);
            if customer == 0 {
                continue;
            }
            let key = keys.next().ok_or(DAMAGED)?;
            if Named::read(key.bytes) != Some(Named { row: Row::Customer(i as u8 + 1, customer), ..first }) {
                return Err(DAMAGED);
            }
            planner.key_in(DB, Delivery::CUSTOMER, Access::Write, key)?;
            planner.input(*slot);
            planner.silent();
        }
        if keys.next().is_some() { Err(DAMAGED) } else { Ok(()) }
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if code == Delivery::CUSTOMER {
            let amount_cents = read_slot(cx.inputs.raw(0)).map_or(0, |(_, amount)| amount);
            if let Some(mut row) = string(&cx.target).and_then(Customer::read) {
                row.balance_cents = row.balance_cents.wrapping_add(amount_cents);
                row.deliveries = row.deliveries.wrapping_add(1);
                let numbers = row.numbers();
                write_numbers(cx, &numbers);
            }
            return Ok(());
        }
        let due = Due::of(cx).unwrap_or_default();
        let packed = cx.args.iter().last().and_then(|packed| Packed::read(packed.bytes));
        let expected = packed.as_ref().map(|packed| packed.customer(usize::from(code - Delivery::DISTRICT)));
        let is_expected = expected == Some(due.customer);
        let amount_cents = match packed {
            Some(Packed { carrier, .. }) if is_expected && due.customer != 0 => {
                Delivery::deliver(cx, due, carrier)
            }
            _ => 0,
        };
        let mut bytes = Vec::with_capacity(8);
        due.encode(&mut bytes);
        let mut slot = Writer(cx.out);
        slot.bulk(&bytes);
        slot.int(amount_cents);
        if is_expected { Ok(()) } else { Err(Abort::Restart) }
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        let packed = cx.args().iter().last().and_then(|packed| Packed::read(packed.bytes));
        let districts = packed.map_or(0, |packed| packed.customers.len());
        let mut writer = Writer(out);
        writer.array(districts);
        for i in 0..districts as u32 {
            match read_slot(cx.slot(i)) {
                Some((Due { order, .. }, _)) if order != 0 => writer.int(i64::from(order)),
                _ => writer.nil(),
            }
        }
    }

    /// Of a restart: what [`PEEK`] would answer now.
    fn abort_reply(&self, abort: Abort, slot: SlotNo, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        let packed = cx.args().iter().last().and_then(|packed| Packed::read(packed.bytes));
        match (abort, packed) {
            (Abort::Restart, Some(packed)) => {
                let mut bytes = Vec::new();
                for i in 0..packed.customers.len() as u32 {
                    read_slot(cx.slot(i)).unwrap_or_default().0.encode(&mut bytes);
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
        let dues = Due::read_all(answer).filter(|dues| dues.len() == usize::from(call.districts));
        let dues = dues.ok_or(DAMAGED)?;
        let mut packed = vec![call.carrier];
        for (due, district) in dues.iter().zip(1..) {
            packed.extend_from_slice(&due.customer.to_le_bytes());
            if due.customer != 0 {
                builder.push(&prefix.key(Row::Customer(district, due.customer)));
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
            planner.covering();
        }
        Ok(())
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let due = Due::of(cx).unwrap_or_default();
        let mut bytes = Vec::with_capacity(8);
        due.encode(&mut bytes);
        Writer(cx.out).bulk(&bytes);
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        let slots = (0..cx.count).map(|i| Datum::first(cx.slot(i)).as_bytes().unwrap_or_default());
        Writer(out).bulk(&slots.collect::<Vec<_>>().concat());
    }
}

/// How many orders a delivery that was answered delivered; `None` for another answer.
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
