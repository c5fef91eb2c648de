//! How a transaction's reply is composed from its slots, and whom it is for.

use ordain_model::procedure::Slots;
use ordain_model::{
    Abort, Chunk, GatewayId, OutcomeBatch, Procedure, Registry, ReplyContext, SlotNo, Txn, Writer,
};

/// The outcomes for a gateway, among those that are being gathered.
pub(crate) fn outcomes_of(outcomes: &mut Vec<OutcomeBatch>, gateway: GatewayId) -> usize {
    outcomes.iter().position(|o| o.gateway == gateway).unwrap_or_else(|| {
        outcomes.push(OutcomeBatch::new(gateway));
        outcomes.len() - 1
    })
}

/// Writes the reply of a transaction whose slots are all there: what its procedure says, of the failure if it failed.
#[inline]
pub(crate) fn write_reply(
    procedure: &dyn Procedure,
    registry: &Registry,
    chunk: &Chunk,
    txn: &Txn,
    slots: &dyn Slots,
    failure: Option<(SlotNo, Abort)>,
    reply: &mut Vec<u8>,
) {
    let cx = ReplyContext {
        txn_args: chunk.args(txn),
        call_at: 0,
        db: txn.call.db,
        slots,
        first: 0,
        count: chunk.fragments(txn).len() as u32,
        calls: chunk.calls(txn),
        registry,
    };
    match failure {
        None => procedure.reply(&cx, reply),
        // Whatever it has answered, it was on what is not there any more.
        Some((_, Abort::Cascade)) => Writer(reply).abort(Abort::Cascade),
        Some((slot, abort)) => procedure.abort_reply(abort, slot, &cx, reply),
    }
}
