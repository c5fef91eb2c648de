//! Reads on snapshots: the shard's [snapshot reader](crate::shard::snapshot_reader) runs between what is ordered.

use crate::sequencing::Reading;
use ordain_model::{CheckpointMode, Isolation, Micros, Position};
use ordain_role::{Address, Bug, Outbox};
use ordain_store::{Keep, RecordStore};

use super::{Code, Core, IDLE_READ_BUDGET, READ_BUDGET, ShardView, Site, SnapshotReader};
use crate::shard::capture::Cut;
use crate::shard::messages::Message;

impl<S: RecordStore> Core<S> {
    /// Has the store keep the past states that may be read or captured.
    pub(in crate::shard) fn keep_states(&mut self) {
        let cut = self.capture.cut.as_ref().map(|cut| cut.epoch);
        let given = self.capture.cut.as_ref().map_or(Position::default(), Cut::given);
        // With read committed, reads see the state before their epoch, and of no unpublished epoch have all been
        // read.
        let is_past = self.settings.isolation == Isolation::ReadCommitted;
        let before = is_past.then(|| self.order.backlog.published());
        let since = self.reader.kept().into_iter().chain(before).min();
        let is_kept_so = self.capture.mode == CheckpointMode::Multiversion;
        self.store.keep(Keep { since, cut: cut.filter(|_| is_kept_so), given });
        self.maps.forget_before([since, cut].into_iter().flatten().min());
    }

    pub(in crate::shard) fn take_reading(
        &mut self,
        since: Micros,
        from: Address,
        reading: Reading,
        out: &mut Outbox<Message>,
    ) {
        let published = self.order.backlog.published();
        match reading {
            Reading::Run { chunk, at, now } => {
                let is_early = self.settings.bugs.has(Bug::ReadEarly);
                self.reader.take(chunk, (at, now), since, if is_early { at } else { published });
            }
            Reading::Parts(parts) => {
                let (reader, mut shard) = self.reading();
                reader.take_parts(&mut shard, parts);
            }
            Reading::LowWatermark { partition, epoch } => {
                if self.reader.note_low_watermark((partition, epoch), published) {
                    self.keep_states();
                }
            }
            Reading::Keep(partition) => {
                // Transactions of later epochs than the published one may have been executed already.
                let is_late = self.settings.bugs.has(Bug::KeepLate);
                let begun = if is_late { published } else { published.max(self.order.started.epoch()) };
                let kept = self.reader.begin(partition, begun);
                self.keep_states();
                out.send(from, Reading::Kept(kept));
            }
            Reading::Forget(partition) => {
                if self.reader.end(partition, published) {
                    self.keep_states();
                }
            }
            Reading::Kept(_) | Reading::Ask(..) | Reading::Stamp(..) => {
                self.broken.get_or_insert(format!("shard {} was asked for an epoch", self.site.number));
            }
        }
    }

    /// Splits off the snapshot reader, and what it needs of the shard.
    pub(super) fn reading(&mut self) -> (&mut SnapshotReader, ShardView<'_, S>) {
        let Core { reader, store, values, site: Site { places, .. }, maps, code, away, settings, .. } = self;
        let Code { registry, locals, .. } = code;
        (
            reader,
            ShardView {
                store,
                values,
                places,
                maps,
                registry,
                locals,
                patience: away.patience,
                bugs: settings.bugs,
            },
        )
    }

    /// Runs reads on snapshots for a budget; returns whether there are more.
    pub(in crate::shard) fn read(&mut self, out: &mut Outbox<Message>) -> bool {
        let published = self.order.backlog.published();
        let is_idle = self.order.batches.is_empty() && !self.active.has_ready();
        let budget = if is_idle { IDLE_READ_BUDGET } else { READ_BUDGET };
        let (reader, mut shard) = self.reading();
        let more = reader.run(&mut shard, published, budget, out);
        reader.send(shard.places, out);
        self.send_work(out);
        more
    }
}
