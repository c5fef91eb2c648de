//! Records that have outlived their time.

use ordain_role::{Now, Outbox};
use ordain_sequencer::Sequencing;
use ordain_store::RecordStore;

use super::Core;
use crate::shard::messages::Message;

/// How many slots are looked at in one go, and covered by one expiry transaction.
const SLOTS_A_SWEEP: usize = 32;

impl<S: RecordStore> Core<S> {
    /// Looks whether records of the next slots have outlived their time. That is only looking: removing them is
    /// a transaction like any other, so that every replica does it at the same point.
    pub(in crate::shard) fn look_for_expired(&mut self, now: Now, out: &mut Outbox<Message>) {
        let std::ops::Range { start: first, end } = self.store.slots();
        if first >= end {
            return;
        }
        let from = first + self.swept % (end - first);
        let slots = from..(from + SLOTS_A_SWEEP).min(end);
        self.swept = slots.end - first;
        if self.store.has_expired(now.wall.to_millis(), slots.clone()) {
            out.send(self.places.sequencer, Sequencing::Expired { slots });
        }
    }
}
