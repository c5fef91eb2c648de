//! Payment: a customer pays, and warehouse, district and customer keep account of it (clause 2.5).
//!
//! Six customers in ten are found by their last name: the record of the name is read in advance, and is a
//! validated read of the real transaction (OLLP; calvin.md, section 4.7). Since these records never change, that never
//! fails. A row of history is below its customer, wherever the payment was made.

use std::io::Write;
use std::sync::Arc;

use ordain_model::args::Arg;
use ordain_model::{
    Abort, Access, Args, Datum, FragmentContext, Known, PlanError, Planner, Procedure, ProcedureId,
    Reconnaissance, Registry, ReplyContext, SlotNo, Value, Writer, system,
};

use super::by_name;
use super::rows::{Customer, District, History, Warehouse};
use super::schema::{Child, DB, Named, Row};
use super::{DAMAGED, put_child, string, write_numbers};

/// Makes a payment. Arguments: the keys of the warehouse, the district, and the customer or the customers of a last
/// name; then the amount in cents, 8 bytes.
///
/// Answers the amount, arrays of name and address of the warehouse and of the district, and an array of
/// what the specification displays of the customer.
pub const PAYMENT: ProcedureId = ProcedureId(1046);

/// The longest C_DATA, and the part of it that is displayed.
const DATA_MAX: usize = 500;
const DATA_DISPLAYED: usize = 200;

pub(super) fn register(registry: &mut Registry) {
    registry.register_native(PAYMENT, "tpcc.payment", Arc::new(Payment));
}

/// The arguments of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaymentCall {
    /// The warehouse where the payment is made.
    pub warehouse: u32,
    /// The district where the payment is made.
    pub district: u8,
    /// The warehouse of the customer.
    pub customer_warehouse: u32,
    /// The district of the customer.
    pub customer_district: u8,
    /// The customer who pays.
    pub customer: Who,
    /// The amount.
    pub amount_cents: i64,
}

/// The name of a customer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// By C_ID.
    Id(u32),
    /// By C_LAST.
    Name(Vec<u8>),
}

impl Who {
    /// Reads a key: the district, and who.
    pub(super) fn read(row: Row<'_>) -> Option<(u8, Who)> {
        match row {
            Row::Customer(district, customer) => Some((district, Who::Id(customer))),
            Row::Names(district, name) => Some((district, Who::Name(name.to_vec()))),
            _ => None,
        }
    }

    /// The row to look for first.
    pub(super) fn row(&self, district: u8) -> Row<'_> {
        match self {
            Who::Id(customer) => Row::Customer(district, *customer),
            Who::Name(name) => Row::Names(district, name),
        }
    }
}

impl PaymentCall {
    /// Reads the arguments of [`PAYMENT`], as a client gives them; `None` if they are none.
    pub fn decode(args: Args<'_>) -> Option<PaymentCall> {
        let mut items = args.iter();
        let home = Named::read(items.next()?.bytes)?;
        let district = Named::read(items.next()?.bytes)?;
        let named = Named::read(items.next()?.bytes)?;
        let amount_cents = i64::from_le_bytes(items.next()?.bytes.try_into().ok()?);
        let (customer_district, customer) = Who::read(named.row)?;
        let Row::District(number) = district.row else { return None };
        let sound = home.row == Row::Warehouse && district.prefix == home.prefix && items.next().is_none();
        sound.then_some(PaymentCall {
            warehouse: home.warehouse,
            district: number,
            customer_warehouse: named.warehouse,
            customer_district,
            customer,
            amount_cents,
        })
    }
}

struct Payment;

impl Payment {
    const VALIDATE: u16 = 0;
    const WAREHOUSE: u16 = 1;
    const DISTRICT: u16 = 2;
    const CUSTOMER: u16 = 3;

    fn pay(cx: &mut FragmentContext<'_>, amount_cents: i64) {
        let at_ms = cx.now.0;
        let mut keys = cx.args.iter().map(|key| key.bytes);
        let Some(home) = keys.next().and_then(Named::read) else { return Writer(cx.out).nil() };
        let district = keys.next().and_then(|key| home.prefix.row(key));
        let (
            Some(Row::District(district)),
            Some(Named {
                warehouse: customer_warehouse,
                row: Row::Customer(customer_district, customer),
                ..
            }),
        ) = (district, home.beside(cx.key.bytes))
        else {
            return Writer(cx.out).nil();
        };
        let Some(mut row) = string(&cx.target).and_then(Customer::read) else { return Writer(cx.out).nil() };
        row.balance_cents = row.balance_cents.wrapping_sub(amount_cents);
        row.ytd_payment_cents = row.ytd_payment_cents.wrapping_add(amount_cents);
        row.payments = row.payments.wrapping_add(1);
        let number = row.payments;
        let bad_credit = row.credit == b"BC";
        let mut data = Vec::new();
        if bad_credit {
            let payer = (customer_warehouse, customer_district, customer);
            note(payer, (home.warehouse, district), amount_cents, &mut data);
            data.extend_from_slice(row.data);
            data.truncate(DATA_MAX);
            row.data = &data;
        }
        let mut slot = Writer(cx.out);
        slot.array(16);
        slot.int(i64::from(customer));
        for text in [
            row.first,
            row.middle,
            row.last,
            row.street_1,
            row.street_2,
            row.city,
            row.state,
            row.zip,
            row.phone,
            row.credit,
        ] {
            slot.bulk(text);
        }
        slot.int(row.since_ms as i64);
        slot.int(row.credit_limit_cents);
        slot.int(i64::from(row.discount_bp));
        slot.int(row.balance_cents);
        slot.bulk(if bad_credit { &row.data[..row.data.len().min(DATA_DISPLAYED)] } else { b"" });
        if bad_credit {
            let whole = row.encode();
            cx.cell_mut().put(Value::String(whole));
        } else {
            let numbers = row.numbers();
            write_numbers(cx, &numbers);
        }

        let name = |slot| match Datum::split(slot) {
            Some((Datum::Array(_), rest)) => Datum::first(rest).as_bytes().unwrap_or_default(),
            _ => &[],
        };
        let (warehouse_name, district_name) = (name(cx.inputs.raw(0)), name(cx.inputs.raw(1)));
        let data = [warehouse_name, b"    ", district_name].concat();
        let row = History { warehouse: home.warehouse, district, at_ms, amount_cents, data: &data };
        put_child(cx, Child::History(number), row.encode());
    }
}

/// The note in C_DATA of a payment of a customer with bad credit, in front of what it kept before (clause 2.5.2.2):
/// who has paid, warehouse, district and number, where, warehouse and district, and how much.
pub(super) fn note(payer: (u32, u8, u32), at: (u32, u8), amount_cents: i64, out: &mut Vec<u8>) {
    let ((customer_warehouse, customer_district, customer), (warehouse, district)) = (payer, at);
    let (whole, cents) = (amount_cents / 100, amount_cents.unsigned_abs() % 100);
    // Writing to memory does not fail.
    let _ = write!(
        out,
        "{customer} {customer_district} {customer_warehouse} {district} {warehouse} {whole}.{cents:02} "
    );
}

/// The amount, from the arguments of the real transaction: the one behind the keys.
fn amount(args: Args<'_>) -> Option<i64> {
    Some(i64::from_le_bytes(args.get(3)?.try_into().ok()?))
}

fn address(out: &mut Vec<u8>, texts: [&[u8]; 6]) {
    let mut slot = Writer(out);
    slot.array(texts.len());
    texts.iter().for_each(|text| slot.bulk(text));
}

impl Procedure for Payment {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        let mut next = || items.next().ok_or(DAMAGED);
        let (warehouse, district, customer) = (next()?, next()?, next()?);
        let home = Named::read(warehouse.bytes).ok_or(DAMAGED)?;
        let sound = home.row == Row::Warehouse
            && matches!(home.prefix.row(district.bytes), Some(Row::District(_)))
            && matches!(home.beside(customer.bytes), Some(Named { row: Row::Customer(..), .. }));
        if !sound || amount(args).is_none_or(|cents| cents <= 0) {
            return Err(DAMAGED);
        }
        by_name::plan_validation(args, 4, planner, Payment::VALIDATE)?;
        let mut write = |code, key: Arg<'_>| planner.key_in(DB, code, Access::Write, key);
        let inputs: [SlotNo; 2] =
            [write(Payment::WAREHOUSE, warehouse)?, write(Payment::DISTRICT, district)?];
        write(Payment::CUSTOMER, customer)?;
        planner.with_children();
        inputs.iter().for_each(|slot| planner.input(*slot));
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if code == Payment::VALIDATE {
            return system::validate_read(cx, Abort::Restart);
        }
        let amount_cents = amount(cx.args).unwrap_or(0);
        match code {
            Payment::WAREHOUSE => {
                let Some(mut row) = string(&cx.target).and_then(Warehouse::read) else { return Ok(()) };
                row.ytd_cents = row.ytd_cents.wrapping_add(amount_cents);
                address(cx.out, [row.name, row.street_1, row.street_2, row.city, row.state, row.zip]);
                let numbers = row.numbers();
                write_numbers(cx, &numbers);
            }
            Payment::DISTRICT => {
                let Some(mut row) = string(&cx.target).and_then(District::read) else { return Ok(()) };
                row.ytd_cents = row.ytd_cents.wrapping_add(amount_cents);
                address(cx.out, [row.name, row.street_1, row.street_2, row.city, row.state, row.zip]);
                let numbers = row.numbers();
                write_numbers(cx, &numbers);
            }
            _ => Payment::pay(cx, amount_cents),
        }
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        let first = cx.count.saturating_sub(3);
        let slots = [0, 1, 2].map(|i| cx.slot(first + i));
        let mut writer = Writer(out);
        if slots.iter().any(|slot| !matches!(Datum::first(slot), Datum::Array(_))) {
            return writer.error("ERR the warehouse, the district or the customer is not loaded");
        }
        writer.array(4);
        writer.int(amount(cx.args()).unwrap_or(0));
        slots.iter().for_each(|slot| writer.raw(slot));
    }

    fn abort_reply(&self, abort: Abort, slot: SlotNo, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        by_name::abort_reply(abort, slot, cx, out);
    }

    fn is_dependent(&self) -> bool {
        true
    }

    fn reconnoitre(&self, args: Args<'_>, known: &Known) -> Result<Reconnaissance, PlanError> {
        PaymentCall::decode(args).ok_or(DAMAGED)?;
        by_name::reconnoitre(args, 2, known)
    }
}

/// The amount of a payment that was answered; `None` for another answer.
pub(super) fn read_reply(reply: &[u8]) -> Option<i64> {
    let (Datum::Array(4), rest) = Datum::split(reply)? else { return None };
    Datum::first(rest).as_int()
}
