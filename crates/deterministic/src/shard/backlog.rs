//! The backlog: which batches a shard was handed, and how far they are executed.

use std::collections::VecDeque;

use ordain_model::{Epoch, PartitionId};

/// The place of a batch in the order: by epoch, then by the partition whose sequencer closed it.
pub type BatchPlace = (Epoch, PartitionId);

/// The batches not applied yet, in order.
#[derive(Debug, Default)]
pub struct Backlog {
    queue: VecDeque<Unapplied>,
    /// How many of them, in front, have nothing left to do to this shard's records.
    settled: usize,
    /// The epoch up to whose end every batch has been handed in, if there is one.
    passed: Epoch,
    /// The batch handed in last.
    handed: BatchPlace,
    /// The last batch of which, and of all before it, everything is executed.
    applied: BatchPlace,
    /// The place up to which batches have had their effect before this began.
    begun: BatchPlace,
}

#[derive(Debug)]
struct Unapplied {
    place: BatchPlace,
    /// How many of its transactions are under way.
    unfinished: usize,
    /// How many of them may still read or change records here; the others wait for the parts of a reply.
    unsettled: usize,
    /// Whether all of it has been started.
    started: bool,
}

impl Backlog {
    /// Adds a batch.
    ///
    /// # Errors
    /// The batch that was handed in before, if its place is not before that of this one.
    pub(crate) fn hand(&mut self, place: BatchPlace) -> Result<(), BatchPlace> {
        if place <= self.handed {
            return Err(self.handed);
        }
        self.handed = place;
        self.queue.push_back(Unapplied { place, unfinished: 0, unsettled: 0, started: false });
        Ok(())
    }

    /// Notes that all of a batch has been started.
    pub fn started(&mut self, place: BatchPlace) {
        if let Some(entry) = self.entry(place) {
            entry.started = true;
        }
    }

    /// Changes the number of a batch's transactions under way.
    pub fn count(&mut self, place: BatchPlace, change: isize) {
        if let Some(entry) = self.entry(place) {
            entry.unfinished = entry.unfinished.wrapping_add_signed(change);
        }
    }

    /// Changes the number of a batch's transactions that may still read or change records here.
    pub fn count_unsettled(&mut self, place: BatchPlace, change: isize) {
        if let Some(entry) = self.entry(place) {
            entry.unsettled = entry.unsettled.wrapping_add_signed(change);
        }
    }

    /// Notes that every batch up to the end of an epoch has been handed in.
    pub(crate) fn pass(&mut self, epoch: Epoch) {
        self.passed = self.passed.max(epoch);
    }

    /// Returns whether nothing of an epoch is still to be handed in.
    pub fn has_passed(&self, epoch: Epoch) -> bool {
        self.passed >= epoch
    }

    /// Returns the published epoch: everything of it and of all before it has been done to this shard's records
    /// (`publish_epoch` of the PaxFlow paper; `docs/protocols/paxflow.md`, P6).
    pub fn published(&mut self) -> Epoch {
        self.settled = self.count_settled();
        self.published_before(self.settled)
    }

    /// Returns the published epoch to one who may change nothing.
    pub(crate) fn published_by_now(&self) -> Epoch {
        self.published_before(self.count_settled())
    }

    /// Returns how many batches in front have been done to the records.
    fn count_settled(&self) -> usize {
        let mut settled = self.settled;
        while let Some(Unapplied { unsettled: 0, started: true, .. }) = self.queue.get(settled) {
            settled += 1;
        }
        settled
    }

    /// Returns the epoch that is published if so many batches in front have been done to the records.
    fn published_before(&self, settled: usize) -> Epoch {
        let next = self.queue.get(settled).map_or(Epoch(u64::MAX), |entry| entry.place.0);
        self.passed.min(Epoch(next.0 - 1))
    }

    /// Returns the complete epoch: everything of it and of all before it is executed here to the last transaction,
    /// and nothing of them is still to be handed in.
    pub(crate) fn complete(&self) -> Epoch {
        let next = self.queue.front().map_or(Epoch(u64::MAX), |entry| entry.place.0);
        self.passed.min(Epoch(next.0.saturating_sub(1)))
    }

    /// Returns whether nothing that was handed in is left to execute.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    fn entry(&mut self, place: BatchPlace) -> Option<&mut Unapplied> {
        let at = self.queue.binary_search_by_key(&place, |entry| entry.place).ok()?;
        self.queue.get_mut(at)
    }

    /// Takes out the batches that are applied, and returns the place of the last, if there is any.
    pub fn advance(&mut self) -> Option<BatchPlace> {
        let before = self.applied;
        // With peers a planning batch whose replies are composed elsewhere is not under way here, and may still have
        // to read or write.
        while let Some(Unapplied { place, unfinished: 0, unsettled: 0, started: true }) = self.queue.front() {
            self.applied = self.applied.max(*place);
            self.queue.pop_front();
            self.settled = self.settled.saturating_sub(1);
        }
        (self.applied > before).then_some(self.applied)
    }

    /// Begins after a place up to which everything was executed.
    pub(crate) fn begin_after(&mut self, place: BatchPlace) {
        self.begun = place;
        self.skip(place);
    }

    /// Returns whether a batch had its effect before this began.
    pub fn is_past(&self, place: BatchPlace) -> bool {
        place <= self.begun
    }

    /// Notes that nothing up to a place is still to come.
    pub(crate) fn skip(&mut self, place: BatchPlace) {
        self.applied = self.applied.max(place);
        self.pass(place.0);
    }

    /// Returns the place of the last applied batch.
    pub(crate) const fn applied(&self) -> BatchPlace {
        self.applied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn place(epoch: u64, partition: u16) -> BatchPlace {
        (Epoch(epoch), PartitionId(partition))
    }

    #[test]
    fn a_batch_is_applied_when_all_before_it_is() {
        let mut backlog = Backlog::default();
        for at in [place(1, 0), place(1, 2), place(2, 1)] {
            assert_eq!(backlog.hand(at), Ok(()));
        }
        backlog.count(place(1, 2), 1);
        backlog.started(place(1, 2));
        backlog.started(place(2, 1));
        assert_eq!(backlog.advance(), None);
        backlog.started(place(1, 0));
        assert_eq!((backlog.advance(), backlog.advance()), (Some(place(1, 0)), None));
        backlog.count(place(1, 2), -1);
        assert_eq!((backlog.advance(), backlog.applied()), (Some(place(2, 1)), place(2, 1)));
    }

    #[test]
    fn a_batch_that_has_still_to_read_or_write_is_neither_applied_nor_published() {
        let mut backlog = Backlog::default();
        for at in [place(1, 0), place(2, 0)] {
            assert_eq!(backlog.hand(at), Ok(()));
            backlog.started(at);
        }
        backlog.pass(Epoch(2));
        backlog.count_unsettled(place(1, 0), 1);
        assert_eq!((backlog.advance(), backlog.published()), (None, Epoch(0)));
        backlog.count_unsettled(place(1, 0), -1);
        assert_eq!((backlog.advance(), backlog.published()), (Some(place(2, 0)), Epoch(2)));
    }

    #[test]
    fn a_batch_out_of_order_is_refused() {
        let mut backlog = Backlog::default();
        assert_eq!(backlog.hand(place(3, 1)), Ok(()));
        for at in [place(3, 1), place(3, 0), place(2, 2)] {
            assert_eq!(backlog.hand(at), Err(place(3, 1)));
        }
        assert_eq!(backlog.hand(place(3, 2)), Ok(()));
    }

    #[test]
    fn what_was_skipped_does_not_go_back() {
        let mut backlog = Backlog::default();
        backlog.skip(place(9, 0));
        assert_eq!(backlog.hand(place(8, 1)), Ok(()));
        backlog.started(place(8, 1));
        assert_eq!((backlog.advance(), backlog.applied()), (None, place(9, 0)));
    }

    #[test]
    fn what_came_before_the_beginning_is_past() {
        let mut backlog = Backlog::default();
        assert!(!backlog.is_past(place(1, 0)));
        backlog.begin_after(place(5, 1));
        assert!(backlog.is_past(place(5, 1)) && !backlog.is_past(place(6, 0)));
        assert_eq!((backlog.applied(), backlog.published()), (place(5, 1), Epoch(5)));
        assert_eq!(backlog.hand(place(6, 0)), Ok(()));
    }

    #[test]
    fn an_epoch_is_published_before_its_replies_are_complete_but_not_before_its_writes() {
        let mut backlog = Backlog::default();
        for at in [place(1, 0), place(1, 1), place(3, 0)] {
            assert_eq!(backlog.hand(at), Ok(()));
        }
        assert_eq!(backlog.published(), Epoch(0), "more of epoch 1 may come");
        backlog.pass(Epoch(3));
        backlog.started(place(1, 0));
        backlog.count(place(1, 1), 1);
        backlog.count_unsettled(place(1, 1), 1);
        backlog.started(place(1, 1));
        assert_eq!(backlog.published(), Epoch(0));
        backlog.count_unsettled(place(1, 1), -1);
        assert_eq!((backlog.published(), backlog.applied()), (Epoch(2), place(0, 0)), "epoch 2 is empty");
        assert_eq!(backlog.advance(), Some(place(1, 0)));
        assert_eq!(backlog.published(), Epoch(2));
        backlog.started(place(3, 0));
        backlog.count(place(1, 1), -1);
        assert_eq!((backlog.advance(), backlog.published()), (Some(place(3, 0)), Epoch(3)));
    }
}
