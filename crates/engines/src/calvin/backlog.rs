//! How far a shard has come: the batches that it was handed, and those of which everything is executed.

use std::collections::VecDeque;

use ordain_model::{Epoch, PartitionId};

/// A batch's place in the order: by epoch, then by the partition whose sequencer closed it.
pub(crate) type Turn = (Epoch, PartitionId);

/// The batches not applied yet, in order.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    queue: VecDeque<Unapplied>,
    /// The batch handed in last.
    handed: Turn,
    /// The last batch of which, and of all before it, everything is executed.
    applied: Turn,
}

#[derive(Debug)]
struct Unapplied {
    turn: Turn,
    /// How many of its transactions are under way.
    unfinished: usize,
    /// Whether all of it has been started.
    started: bool,
}

impl Backlog {
    /// Adds a batch.
    ///
    /// # Errors
    /// The batch that was handed in before it and has its place after it or the same one.
    pub(crate) fn hand(&mut self, turn: Turn) -> Result<(), Turn> {
        if turn <= self.handed {
            return Err(self.handed);
        }
        self.handed = turn;
        self.queue.push_back(Unapplied { turn, unfinished: 0, started: false });
        Ok(())
    }

    /// All of a batch has been started.
    pub(crate) fn started(&mut self, turn: Turn) {
        if let Some(entry) = self.entry(turn) {
            entry.started = true;
        }
    }

    /// So many more transactions of a batch are under way.
    pub(crate) fn count(&mut self, turn: Turn, change: isize) {
        if let Some(entry) = self.entry(turn) {
            entry.unfinished = entry.unfinished.wrapping_add_signed(change);
        }
    }

    fn entry(&mut self, turn: Turn) -> Option<&mut Unapplied> {
        let at = self.queue.binary_search_by_key(&turn, |entry| entry.turn).ok()?;
        self.queue.get_mut(at)
    }

    /// Takes out what is applied, and answers the last of it if there is any.
    pub(crate) fn advance(&mut self) -> Option<Turn> {
        let before = self.applied;
        while let Some(Unapplied { turn, unfinished: 0, started: true }) = self.queue.front() {
            self.applied = self.applied.max(*turn);
            self.queue.pop_front();
        }
        (self.applied > before).then_some(self.applied)
    }

    /// Nothing up to this place is still to come.
    pub(crate) fn skip(&mut self, turn: Turn) {
        self.applied = self.applied.max(turn);
    }

    pub(crate) const fn applied(&self) -> Turn {
        self.applied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn turn(epoch: u64, partition: u16) -> Turn {
        (Epoch(epoch), PartitionId(partition))
    }

    #[test]
    fn a_batch_is_applied_when_all_before_it_is() {
        let mut backlog = Backlog::default();
        for at in [turn(1, 0), turn(1, 2), turn(2, 1)] {
            assert_eq!(backlog.hand(at), Ok(()));
        }
        backlog.count(turn(1, 2), 1);
        backlog.started(turn(1, 2));
        backlog.started(turn(2, 1));
        assert_eq!(backlog.advance(), None);
        backlog.started(turn(1, 0));
        assert_eq!((backlog.advance(), backlog.advance()), (Some(turn(1, 0)), None));
        backlog.count(turn(1, 2), -1);
        assert_eq!((backlog.advance(), backlog.applied()), (Some(turn(2, 1)), turn(2, 1)));
    }

    #[test]
    fn a_batch_out_of_order_is_refused() {
        let mut backlog = Backlog::default();
        assert_eq!(backlog.hand(turn(3, 1)), Ok(()));
        for at in [turn(3, 1), turn(3, 0), turn(2, 2)] {
            assert_eq!(backlog.hand(at), Err(turn(3, 1)));
        }
        assert_eq!(backlog.hand(turn(3, 2)), Ok(()));
    }

    #[test]
    fn what_was_skipped_does_not_go_back() {
        let mut backlog = Backlog::default();
        backlog.skip(turn(9, 0));
        assert_eq!(backlog.hand(turn(8, 1)), Ok(()));
        backlog.started(turn(8, 1));
        assert_eq!((backlog.advance(), backlog.applied()), (None, turn(9, 0)));
    }
}
