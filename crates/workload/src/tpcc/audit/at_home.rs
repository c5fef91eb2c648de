//! The audit of a warehouse by the names of its rows, where no transaction reads a whole table: warehouses are at home in regions.
//!
//! One read-only transaction names all rows of the warehouse that were loaded. The rows below them follow from what these say: the
//! orders of a district are numbered up to its D_NEXT_O_ID, the payments of a customer up to its C_PAYMENT_CNT. What an audit of the
//! table would find beside them is not found.

use std::sync::Arc;

use ordain_model::{
    Abort, Access, Args, ArgsBuilder, Datum, FragmentContext, PlanError, Planner, Procedure, ProcedureId,
    ReplyContext,
};

use super::super::population::Scale;
use super::super::random::last_name;
use super::super::rows::{Customer, District};
use super::super::schema::{Child, DB, Named, ORDER_LINES, Prefix, Row};
use super::super::{DAMAGED, last, split_packed, string};
use super::{Join, Rows};
use crate::audit::Audited;

/// Reads the rows of a warehouse. Arguments: their keys, then the number of customers of a district, 4 bytes. Answers an [`Audited`]
/// with [`Rows`], without a digest.
pub const AUDIT_HOME: ProcedureId = ProcedureId(1056);

/// The procedure.
pub(super) fn procedure() -> Arc<dyn Procedure> {
    Arc::new(AuditHome)
}

/// Writes the arguments of the audit of a warehouse.
pub(in super::super) fn write_args(prefix: &Prefix, scale: &Scale, args: &mut ArgsBuilder<'_>) {
    let mut push = |row: Row<'_>| _ = args.push(&prefix.key(row));
    push(Row::Warehouse);
    for district in 1..=scale.districts {
        push(Row::District(district));
        (1..=scale.customers).for_each(|customer| push(Row::Customer(district, customer)));
        (0..scale.last_names()).for_each(|name| push(Row::Names(district, &last_name(name))));
    }
    (1..=scale.items).for_each(|item| push(Row::Item(item)));
    (1..=scale.items).for_each(|item| push(Row::Stock(item)));
    args.push(&scale.customers.to_le_bytes());
}

struct AuditHome;

impl AuditHome {
    fn customers(packed: &[u8]) -> Option<u32> {
        packed.try_into().ok().map(u32::from_le_bytes)
    }

    /// The suffixes of the rows that may be below a row.
    fn below(row: Row<'_>, bytes: &[u8], customers: u32) -> Vec<Child> {
        let mut below = Vec::new();
        match row {
            Row::District(_) => {
                let orders = District::read(bytes).map_or(0, |district| district.next_order);
                for order in 1..=orders {
                    below.extend([Child::Order(order), Child::NewOrder(order)]);
                    // One more than there may be.
                    below.extend((1..=ORDER_LINES.1 as u8 + 1).map(|line| Child::OrderLine(order, line)));
                }
                below.extend((1..=customers).map(Child::Newest));
            }
            Row::Customer(..) => {
                let payments = Customer::read(bytes).map_or(0, |customer| customer.payments);
                below.extend((1..=payments.saturating_add(1)).map(Child::History));
            }
            _ => {}
        }
        below
    }
}

/// Appends a row below another, or that itself, whose suffix is empty.
fn put(suffix: &[u8], bytes: &[u8], out: &mut Vec<u8>) {
    out.push(suffix.len() as u8);
    out.extend_from_slice(suffix);
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Takes a row off what a fragment has answered: its suffix and its bytes.
fn take<'a>(bytes: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let (len, rest) = bytes.split_first()?;
    let (suffix, rest) = rest.split_at_checked(usize::from(*len))?;
    let (len, rest) = rest.split_first_chunk()?;
    let (row, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    *bytes = rest;
    Some((suffix, row))
}

impl Procedure for AuditHome {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let (keys, packed) = split_packed(args)?;
        AuditHome::customers(packed).ok_or(DAMAGED)?;
        for key in keys {
            let named = Named::read(key.bytes).ok_or(DAMAGED)?;
            planner.key_in(DB, 0, Access::Read, key)?;
            if matches!(named.row, Row::District(_) | Row::Customer(..)) {
                planner.with_children();
            }
        }
        Ok(())
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let mut found = Vec::new();
        let named = Named::read(cx.key.bytes);
        if let Some((bytes, named)) = string(&cx.target).zip(named) {
            put(&[], bytes, &mut found);
            let customers = AuditHome::customers(last(cx.args)).unwrap_or_default();
            for child in AuditHome::below(named.row, bytes, customers) {
                let suffix = child.suffix();
                if let Some(bytes) = cx.children().read(&suffix).string() {
                    put(&suffix, bytes, &mut found);
                }
            }
        }
        cx.writer().bulk(&found);
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        let mut join = Join::default();
        // ORDER-LINE when all other rows are known.
        for lines in [false, true] {
            for (number, key) in cx.args().iter().take(cx.count as usize).enumerate() {
                let Datum::Bulk(mut found) = Datum::first(cx.slot(number as u32)) else { continue };
                while let Some((suffix, bytes)) = take(&mut found) {
                    join.add_found(key.bytes, suffix, bytes, lines);
                }
            }
        }
        Audited { found: join.close(), ..Audited::<Rows>::default() }.write(out);
    }
}

impl Join {
    /// Adds a row, or one below it, if it is the turn of such rows.
    fn add_found(&mut self, key: &[u8], suffix: &[u8], bytes: &[u8], lines: bool) {
        let parent = Named::read(key);
        let added = match (parent, suffix.is_empty(), Child::read(suffix)) {
            (Some(parent), false, Some(Child::OrderLine(number, _))) if lines => {
                self.add_line(parent, number, bytes)
            }
            (_, false, Some(Child::OrderLine(..))) => Some(()),
            _ if lines => Some(()),
            (Some(named), true, _) => self.add_row(named, bytes),
            (Some(parent), false, Some(child)) => self.add_child(parent, child, bytes),
            _ => None,
        };
        if added.is_none() {
            self.rows
                .wrong(super::DAMAGED, || format!("row {} of {}", suffix.escape_ascii(), key.escape_ascii()));
        }
    }
}
