//! Expiry: looks for records that have outlived their time and asks the sequencer for a transaction that removes them.

use crate::sequencing::Sequencing;
use ordain_model::Position;
use ordain_role::{Now, Outbox};
use ordain_store::RecordStore;

use super::Core;
use crate::shard::messages::Message;

/// How many records are looked at in one go, about a millisecond, and covered by one expiry transaction.
const A_SWEEP: usize = 16 << 10;

impl<S: RecordStore> Core<S> {
    /// Looks whether some of the next records have outlived their time. That is only looking: removing them is
    /// a transaction like any other, so that every replica does it at the same point.
    pub(in crate::shard) fn look_for_expired(&mut self, now: Now, out: &mut Outbox<Message>) {
        let (found, rest) = self.store.expired(now.wall.to_millis(), self.upkeep.swept, A_SWEEP);
        self.upkeep.swept = if rest < Position::END { rest } else { Position::default() };
        if let Some(positions) = found {
            out.send(self.site.places.sequencer, Sequencing::Expired { positions });
        }
    }
}
