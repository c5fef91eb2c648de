//! Customers by their last name: the reconnaissance that Payment and OrderStatus share.
//!
//! The arguments of the real transaction are those of the client, with the customer's key in the place of the
//! name's, and behind them the validated read: the record of the name, and its version.

use ordain_model::{
    Abort, Args, ArgsBuilder, Known, PlanError, Planner, Reconnaissance, ReplyContext, SlotNo, Writer, system,
};

use super::DAMAGED;
use super::rows::customers_of_name;
use super::schema::{DB, Named, Row};

const UNKNOWN_NAME: PlanError = PlanError::fixed("ERR no customer has this last name");

/// Finds the customer whose key, or that of whose name, is argument `at`: of all who have the name the middle one,
/// rounded up, in the order of C_FIRST (clause 2.5.2.2).
pub(super) fn reconnoitre(args: Args<'_>, at: usize, known: &Known) -> Result<Reconnaissance, PlanError> {
    let key = args.get(at).ok_or(DAMAGED)?;
    let named = Named::read(key).ok_or(DAMAGED)?;
    let Row::Names(district, _) = named.row else {
        return Ok(Reconnaissance::Ready(args.encoded().to_vec()));
    };
    let Some(read) = known.reads.iter().find(|read| read.key == key) else {
        return Ok(Reconnaissance::Read(vec![(DB, key.to_vec())]));
    };
    let mut customers = customers_of_name(read.cell.string().unwrap_or_default());
    let middle = customers.len().div_ceil(2).checked_sub(1).ok_or(UNKNOWN_NAME)?;
    let customer = named.prefix.key(Row::Customer(district, customers.nth(middle).ok_or(UNKNOWN_NAME)?));
    let mut ready = Vec::new();
    let mut builder = ArgsBuilder::new(&mut ready);
    for (place, arg) in args.iter().enumerate() {
        builder.push(if place == at { &customer } else { arg.bytes });
    }
    system::validation_args([(read.db, &*read.key, read.version)].into_iter(), &mut builder);
    Ok(Reconnaissance::Ready(ready))
}

/// Plans the fragment that validates the read behind the first `count` arguments, if there is any.
pub(super) fn plan_validation(
    args: Args<'_>,
    count: usize,
    planner: &mut Planner<'_>,
    code: u16,
) -> Result<(), PlanError> {
    if args.len() > count {
        let mut items = args.iter();
        items.by_ref().take(count).for_each(drop);
        if system::plan_validation(planner, &mut items, code)? != 1 || items.next().is_some() {
            return Err(DAMAGED);
        }
    }
    Ok(())
}

/// The reply of an abort: of a restart, what the record of the name holds now.
pub(super) fn abort_reply(abort: Abort, slot: SlotNo, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
    match (abort, cx.slots.slot(slot)) {
        // The first fragment validates the read.
        (Abort::Restart, _) => system::restart_reply(cx, 0, 1, out),
        (_, []) => Writer(out).abort(abort),
        (_, answer) => out.extend_from_slice(answer),
    }
}
