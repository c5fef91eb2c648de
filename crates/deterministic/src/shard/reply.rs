//! Replies: composed from the slots of a transaction, and gathered for its gateway.

use ordain_model::datum::bounded_reply;
use ordain_model::procedure::Slots;
use ordain_model::{
    Abort, Chunk, Fragment, GatewayId, OutcomeBatch, Procedure, Registry, ReplyContext, SlotNo, Txn, Writer,
};

/// The bytes of replies that are enough for one message: large ones do not add up to one that is too large.
const ENOUGH_BYTES: usize = 1 << 20;
/// So many answers leave also in the middle of a batch.
const ENOUGH: usize = 1024;

/// Returns the place of a gateway's outcomes among those that are gathered.
pub(crate) fn outcomes_of(outcomes: &mut Vec<OutcomeBatch>, gateway: GatewayId) -> usize {
    let has_room = |batch: &OutcomeBatch| batch.gateway == gateway && batch.bytes() < ENOUGH_BYTES;
    outcomes.iter().rposition(has_room).unwrap_or_else(|| {
        outcomes.push(OutcomeBatch::new(gateway));
        outcomes.len() - 1
    })
}

/// Returns whether outcomes are worth a message although more will follow soon.
pub(crate) fn are_enough(outcomes: &OutcomeBatch) -> bool {
    outcomes.outcomes.len() >= ENOUGH || outcomes.bytes() >= ENOUGH_BYTES
}

/// The slots of a transaction, without those that [only the reply](Fragment::only_answers) is made from.
struct Uncut<'a> {
    slots: &'a dyn Slots,
    fragments: &'a [Fragment],
}

impl Slots for Uncut<'_> {
    fn slot(&self, slot: SlotNo) -> &[u8] {
        let is_there = self.fragments.get(slot.0 as usize).is_some_and(|fragment| !fragment.only_answers());
        if is_there { self.slots.slot(slot) } else { &[] }
    }
}

/// Writes the reply of a transaction whose slots are complete: its procedure's, or that of its failure. If it is cut,
/// because what only the reply is made from is together beyond the limit, none of that shows.
#[inline]
pub(crate) fn write_reply(
    procedure: &dyn Procedure,
    registry: &Registry,
    chunk: &Chunk,
    txn: &Txn,
    (slots, is_cut): (&dyn Slots, bool),
    failure: Option<(SlotNo, Abort)>,
    reply: &mut Vec<u8>,
) {
    let fragments = chunk.fragments(txn);
    let uncut = Uncut { slots, fragments };
    let cx = ReplyContext {
        txn_args: chunk.args(txn),
        call_at: 0,
        db: txn.call.db,
        slots: if is_cut { &uncut } else { slots },
        first: 0,
        count: fragments.len() as u32,
        calls: chunk.calls(txn),
        registry,
    };
    if let Some((_, Abort::Cascade)) = failure {
        // Its answers were made on changes that are undone.
        return Writer(reply).abort(Abort::Cascade);
    }
    bounded_reply(registry.limits().reply, reply, |reply| match failure {
        None if is_cut => Writer(reply).too_long(),
        None => procedure.reply(&cx, reply),
        Some((slot, abort)) => procedure.abort_reply(abort, slot, &cx, reply),
    });
}

#[cfg(test)]
mod tests {
    use ordain_model::{ChunkNo, Gsn, OutcomeStatus};

    use super::*;

    #[test]
    fn large_answers_do_not_add_up_to_one_message() {
        let (one, other) = (GatewayId::of(1, 0), GatewayId::of(2, 0));
        let mut outcomes = Vec::new();
        let mut answer = |gateway, bytes: usize| {
            let at = outcomes_of(&mut outcomes, gateway);
            outcomes[at].push(ChunkNo(1), 0, Gsn::NONE, OutcomeStatus::Committed, |reply| {
                reply.extend(std::iter::repeat_n(0, bytes))
            });
            at
        };
        assert_eq!((answer(one, 10), answer(other, 10), answer(one, 3 * ENOUGH_BYTES)), (0, 1, 0));
        assert_eq!((answer(one, 10), answer(other, 10), answer(one, 10)), (2, 1, 2));
        let enough: Vec<bool> = outcomes.iter().map(are_enough).collect();
        assert_eq!(enough, [true, false, false]);
    }
}
