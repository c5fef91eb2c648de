//! OrderStatus: what has become of a customer's newest order (clause 2.6). It only reads.
//!
//! The customer is found as by Payment; the order and its lines are below the district.

use std::sync::Arc;

use ordain_model::{
    Abort, Access, Args, Datum, FragmentContext, Known, PlanError, Planner, Procedure, ProcedureId,
    Reconnaissance, Registry, ReplyContext, SlotNo, Writer, system,
};

use super::by_name;
use super::payment::Who;
use super::rows::{Customer, Order, OrderLine};
use super::schema::{Child, DB, Named, Row};
use super::{DAMAGED, child, string};

/// Looks an order up. Arguments: the keys of the customer, or of the customers of a last name, and of the district.
///
/// Answers an array of C_ID, C_FIRST, C_MIDDLE, C_LAST and C_BALANCE, and an array of O_ID, O_ENTRY_D, O_CARRIER_ID and
/// an array of the lines: of each OL_I_ID, OL_SUPPLY_W_ID, OL_QUANTITY, OL_AMOUNT and OL_DELIVERY_D. Nil in place of
/// the order for a customer who has none.
pub const ORDER_STATUS: ProcedureId = ProcedureId(1047);

pub(super) fn register(registry: &mut Registry) {
    registry.register_native(ORDER_STATUS, "tpcc.order_status", Arc::new(OrderStatus));
}

/// The arguments of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderStatusCall {
    /// The warehouse.
    pub warehouse: u32,
    /// The district.
    pub district: u8,
    /// The customer.
    pub customer: Who,
}

impl OrderStatusCall {
    /// Reads the arguments of [`ORDER_STATUS`], as a client gives them; `None` if they are none.
    pub fn decode(args: Args<'_>) -> Option<OrderStatusCall> {
        let named = Named::read(args.get(0)?)?;
        let (district, customer) = Who::read(named.row)?;
        let sound =
            args.len() == 2 && Named::read(args.get(1)?)? == Named { row: Row::District(district), ..named };
        sound.then_some(OrderStatusCall { warehouse: named.warehouse, district, customer })
    }
}

struct OrderStatus;

impl OrderStatus {
    const VALIDATE: u16 = 0;
    const CUSTOMER: u16 = 1;
    const DISTRICT: u16 = 2;

    fn newest_order(cx: &mut FragmentContext<'_>) -> Option<()> {
        let Row::Customer(_, customer) = Named::read(cx.args.get(0)?)?.row else { return None };
        let rows = cx.children.as_deref()?;
        let number = u32::from_le_bytes(child(rows, Child::Newest(customer))?.try_into().ok()?);
        let order = Order::read(child(rows, Child::Order(number))?)?;
        let mut slot = Writer(cx.out);
        slot.array(4);
        slot.int(i64::from(number));
        slot.int(order.entered_ms as i64);
        slot.int(i64::from(order.carrier));
        slot.array(usize::from(order.lines));
        for line in 1..=order.lines {
            let row = child(rows, Child::OrderLine(number, line)).and_then(OrderLine::front::<0>);
            let row = row.unwrap_or_default();
            slot.array(5);
            slot.int(i64::from(row.item));
            slot.int(i64::from(row.supply_warehouse));
            slot.int(i64::from(row.quantity));
            slot.int(row.amount_cents);
            slot.int(row.delivered_ms as i64);
        }
        Some(())
    }
}

impl Procedure for OrderStatus {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        let (Some(customer), Some(district)) = (items.next(), items.next()) else { return Err(DAMAGED) };
        let who = Named::read(customer.bytes).ok_or(DAMAGED)?;
        let Row::Customer(number, _) = who.row else { return Err(DAMAGED) };
        if Named::read(district.bytes) != Some(Named { row: Row::District(number), ..who }) {
            return Err(DAMAGED);
        }
        by_name::plan_validation(args, 2, planner, OrderStatus::VALIDATE)?;
        planner.key_in(DB, OrderStatus::CUSTOMER, Access::Read, customer)?;
        planner.key_in(DB, OrderStatus::DISTRICT, Access::Read, district)?;
        planner.with_children();
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        match code {
            OrderStatus::VALIDATE => return system::validate_read(cx, Abort::Restart),
            OrderStatus::CUSTOMER => {
                let id = Named::read(cx.key.bytes).map(|named| named.row);
                let (Some(Row::Customer(_, id)), Some(row)) =
                    (id, string(&cx.target).and_then(Customer::front::<3>))
                else {
                    return Ok(());
                };
                let mut slot = Writer(cx.out);
                slot.array(5);
                slot.int(i64::from(id));
                slot.bulk(row.first);
                slot.bulk(row.middle);
                slot.bulk(row.last);
                slot.int(row.balance_cents);
            }
            _ => {
                if OrderStatus::newest_order(cx).is_none() {
                    Writer(cx.out).nil();
                }
            }
        }
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        let first = cx.count.saturating_sub(2);
        let (customer, order) = (cx.slot(first), cx.slot(first + 1));
        let mut writer = Writer(out);
        if !matches!(Datum::first(customer), Datum::Array(_)) {
            return writer.error("ERR the customer is not loaded");
        }
        writer.array(2);
        writer.raw(customer);
        writer.raw(order);
    }

    fn abort_reply(&self, abort: Abort, slot: SlotNo, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        by_name::abort_reply(abort, slot, cx, out);
    }

    fn is_dependent(&self) -> bool {
        true
    }

    fn reconnoitre(&self, args: Args<'_>, known: &Known) -> Result<Reconnaissance, PlanError> {
        OrderStatusCall::decode(args).ok_or(DAMAGED)?;
        by_name::reconnoitre(args, 0, known)
    }
}

/// True for the reply of an OrderStatus that found its customer.
pub(super) fn is_reply(reply: &[u8]) -> bool {
    Datum::first(reply) == Datum::Array(2)
}
