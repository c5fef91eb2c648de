//! What a shard does for reads on snapshots: its [reader](crate::paxflow) works between its other turns.

use ordain_model::Micros;
use ordain_role::{Bug, Outbox};
use ordain_sequencer::Reading;
use ordain_store::{Keep, RecordStore};

use super::super::Message;
use super::{Desk, IDLE_TURN, READ_TURN, Shard};

impl<S: RecordStore> Shard<S> {
    /// What was done before the node was started is all there; from now on past states are kept.
    pub(super) fn begin_reads(&mut self) {
        if self.settings.snapshots {
            // Some of a later epoch may have been executed already.
            self.reader.begin(self.backlog.published().max(self.started.epoch()));
            self.keep_states();
        }
    }

    /// Has the store keep what somebody may want to see.
    pub(super) fn keep_states(&mut self) {
        let cut = self.capture.cut.as_ref().map(|cut| cut.epoch);
        let since = self.reader.kept();
        self.store.keep(Keep { since, cut });
        self.maps.forget_before([since, cut].into_iter().flatten().min());
    }

    pub(super) fn take_reading(&mut self, since: Micros, reading: Reading) {
        let published = self.backlog.published();
        match reading {
            Reading::Run { chunk, at, now } => {
                let is_early = self.settings.bugs.has(Bug::ReadEarly);
                self.reader.take(chunk, (at, now), since, if is_early { at } else { published });
            }
            Reading::Parts(parts) => {
                let Shard { reader, store, places, maps, layouts, registry, locals, .. } = self;
                reader.take_parts(&mut Desk { store, places, maps, layouts, registry, locals }, parts);
            }
            Reading::Floor { partition, epoch } => {
                let partitions = self.places.layout.partitions();
                if self.reader.note_floor((partition, epoch), partitions, published) {
                    self.keep_states();
                }
            }
            Reading::Ask(..) | Reading::Stamp(..) => {
                self.broken.get_or_insert(format!("shard {} was asked for an epoch", self.number));
            }
        }
    }

    /// Reads for a turn; says whether there is more to read.
    pub(super) fn read(&mut self, out: &mut Outbox<Message>) -> bool {
        let published = self.backlog.published();
        let is_idle = self.stream.is_empty() && self.ready.is_empty();
        let turn = if is_idle { IDLE_TURN } else { READ_TURN };
        let Shard { reader, store, places, maps, layouts, registry, locals, .. } = self;
        let mut desk = Desk { store, places, maps, layouts, registry, locals };
        let more = reader.run(&mut desk, published, turn, out);
        reader.send(places, out);
        more
    }
}
