//! Customers by their last name: the reconnaissance that Payment and OrderStatus share.
//!
//! The arguments of the real transaction are those of the client, with the customer's key in the place of the
//! name's, and behind them the validated read: the record of the name, and its version.

use ordain_model::procedure::ValidatedRead;
use ordain_model::{
    Abort, Args, ArgsBuilder, Known, PlanError, Planner, Reconnaissance, ReplyContext, SlotNo, Writer, system,
};

use super::DAMAGED;
use super::rows::customers_of_name;
use super::schema::{DB, Key, Named, Row};

const NOBODY: PlanError = PlanError::fixed("ERR no customer has this last name");

/// What is known about the customer.
pub(super) enum Found<'a> {
    /// The client has named it by its number: nothing is to be found.
    AsItIs,
    /// This is to be found out first.
    Wanted(Reconnaissance),
    /// The key of the customer, and what shows that it is the one.
    Customer(Key, Shown<'a>),
}

/// The record of the name, as it was read.
pub(super) struct Shown<'a>(&'a ValidatedRead);

impl Shown<'_> {
    /// Writes it behind the arguments of the real transaction.
    pub(super) fn push(&self, args: &mut ArgsBuilder<'_>) {
        let ValidatedRead { db, key, version, .. } = self.0;
        system::validation_args([(*db, &**key, *version)].into_iter(), args);
    }
}

/// Finds the customer whose key, or that of whose name, is argument `at`: of all who have the name the middle one,
/// rounded up, in the order of C_FIRST (clause 2.5.2.2).
pub(super) fn find<'k>(args: Args<'_>, at: usize, known: &'k Known) -> Result<Found<'k>, PlanError> {
    let key = args.get(at).ok_or(DAMAGED)?;
    let named = Named::read(key).ok_or(DAMAGED)?;
    let Row::Names(district, _) = named.row else { return Ok(Found::AsItIs) };
    let Some(read) = known.reads.iter().find(|read| read.key == key) else {
        return Ok(Found::Wanted(Reconnaissance::Read(vec![(DB, key.to_vec())])));
    };
    let mut customers = customers_of_name(read.cell.string().unwrap_or_default());
    let middle = customers.len().div_ceil(2).checked_sub(1).ok_or(NOBODY)?;
    let customer = customers.nth(middle).ok_or(NOBODY)?;
    Ok(Found::Customer(named.prefix.key(Row::Customer(district, customer)), Shown(read)))
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
