//! The one order of a replica: the sequencers' batches, epoch by epoch, within an epoch by partition (the Calvin
//! paper, section 3.1: "interleaving the sequencers' batches in a deterministic, round-robin manner").
//!
//! A slot of it is known once its sequencer has said that the epoch is sealed. Nobody skips one that is missing.

use std::collections::VecDeque;
use std::sync::Arc;

use ordain_model::{Batch, Epoch, PartitionId};

/// The batches that sequencers have sealed and the order has not passed.
#[derive(Debug)]
pub(crate) struct Interleave {
    streams: Vec<Stream>,
    /// The first slot that has not been passed.
    next: (Epoch, usize),
}

/// The sealed batches of one sequencer.
#[derive(Debug, Default)]
struct Stream {
    through: Epoch,
    batches: VecDeque<Arc<Batch>>,
}

/// The outcome of putting a batch in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// The batch is in.
    New,
    /// The batch was there already.
    Known,
    /// Something before it is missing.
    Gap,
}

impl Interleave {
    /// An order of so many sequencers, from the beginning.
    pub(crate) fn new(partitions: u16) -> Interleave {
        let streams = (0..partitions).map(|_| Stream::default()).collect();
        Interleave { streams, next: (Epoch(1), 0) }
    }

    /// An order that begins after an epoch.
    pub(crate) fn after(partitions: u16, epoch: Epoch) -> Interleave {
        let streams = (0..partitions).map(|_| Stream { through: epoch, ..Stream::default() });
        Interleave { streams: streams.collect(), next: (epoch.next(), 0) }
    }

    /// A sequencer has sealed all its epochs through one. After `after` they are empty, but perhaps the last.
    pub(crate) fn put(
        &mut self,
        sequencer: PartitionId,
        after: Epoch,
        through: Epoch,
        batch: Option<Arc<Batch>>,
    ) -> Put {
        let stream = &mut self.streams[usize::from(sequencer.0)];
        if through <= stream.through {
            return Put::Known;
        }
        if after > stream.through {
            return Put::Gap;
        }
        stream.through = through;
        stream.batches.extend(batch);
        Put::New
    }

    /// The epoch up to which a sequencer's batches are known.
    pub(crate) fn through(&self, sequencer: PartitionId) -> Epoch {
        self.streams[usize::from(sequencer.0)].through
    }

    /// The next batch of the order, if it is known that nothing comes before it.
    pub(crate) fn pop(&mut self) -> Option<Arc<Batch>> {
        loop {
            let (epoch, sequencer) = self.next;
            if sequencer == 0 {
                // No epoch before this one has anything in it: it is either known to be empty, or not known.
                let first =
                    |stream: &Stream| stream.batches.front().map_or(stream.through.next(), |b| b.epoch);
                self.next.0 = self.streams.iter().map(first).min()?.max(epoch);
            }
            let epoch = self.next.0;
            let stream = &mut self.streams[sequencer];
            if stream.through < epoch {
                return None;
            }
            self.next = match sequencer + 1 == self.streams.len() {
                true => (epoch.next(), 0),
                false => (epoch, sequencer + 1),
            };
            let stream = &mut self.streams[sequencer];
            if stream.batches.front().is_some_and(|batch| batch.epoch == epoch) {
                return stream.batches.pop_front();
            }
        }
    }

    /// The largest epoch of which, and of all before it, every slot was passed.
    pub(crate) fn passed(&self) -> Epoch {
        Epoch(self.next.0.0 - 1)
    }

    /// The number of batches that wait for others to come before them.
    pub(crate) fn waiting(&self) -> usize {
        self.streams.iter().map(|stream| stream.batches.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::Millis;
    use proptest::prelude::*;

    use super::*;

    fn batch(epoch: u64, partition: u16) -> Arc<Batch> {
        let (epoch, partition, now) = (Epoch(epoch), PartitionId(partition), Millis(0));
        Arc::new(Batch { epoch, partition, layout: 1, now, ..Batch::default() })
    }

    fn popped(order: &mut Interleave) -> Vec<(u64, u16)> {
        std::iter::from_fn(|| order.pop()).map(|batch| (batch.epoch.0, batch.partition.0)).collect()
    }

    #[test]
    fn a_batch_waits_for_the_slots_before_it_and_for_no_others() {
        let mut order = Interleave::new(3);
        let put = |order: &mut Interleave, partition, after, through, full: bool| {
            let content = full.then(|| batch(through, partition));
            order.put(PartitionId(partition), Epoch(after), Epoch(through), content)
        };
        assert_eq!(put(&mut order, 1, 0, 1, true), Put::New);
        assert_eq!(popped(&mut order), []);
        assert_eq!(put(&mut order, 0, 0, 1, true), Put::New);
        assert_eq!(popped(&mut order), [(1, 0), (1, 1)]);
        assert_eq!(order.passed(), Epoch(0));
        // A thousand empty epochs, then one of the last (docs/protocols/calvin.md, section 6, scenario 7).
        assert_eq!(put(&mut order, 2, 0, 1000, true), Put::New);
        assert_eq!((popped(&mut order), order.passed()), (vec![], Epoch(1)));
        assert_eq!(put(&mut order, 0, 1, 1 << 30, false), Put::New);
        assert_eq!(popped(&mut order), []);
        assert_eq!(put(&mut order, 1, 1, 1000, false), Put::New);
        assert_eq!((popped(&mut order), order.passed()), (vec![(1000, 2)], Epoch(1000)));
        // What is there is not taken again, and what has a gap before it not at all.
        assert_eq!(put(&mut order, 2, 0, 1000, true), Put::Known);
        assert_eq!(put(&mut order, 2, 1001, 1002, true), Put::Gap);
        assert_eq!(order.through(PartitionId(2)), Epoch(1000));
        assert_eq!(order.waiting(), 0);
    }

    proptest! {
        #[test]
        fn the_order_is_that_of_the_numbers_however_they_come(
            mut sealed in proptest::collection::vec((1u64..40, 0u16..4), 0..60),
            turns in proptest::collection::vec(0usize..4, 0..200),
        ) {
            sealed.sort_unstable();
            sealed.dedup();
            let mut left: Vec<VecDeque<u64>> = (0..4)
                .map(|p| sealed.iter().filter(|(_, q)| *q == p).map(|(e, _)| *e).collect())
                .collect();
            let mut order = Interleave::new(4);
            let mut last = [0; 4];
            let mut seen = Vec::new();
            let close = (0..4).map(|p| (p, true));
            for (p, end) in turns.into_iter().map(|p| (p, false)).chain(close.cycle().take(300)) {
                let partition = PartitionId(p as u16);
                let (after, through, content) = match left[p].pop_front() {
                    Some(epoch) => (last[p], epoch, Some(batch(epoch, p as u16))),
                    None if end => (last[p], 50, None),
                    None => continue,
                };
                order.put(partition, Epoch(after), Epoch(through), content);
                last[p] = through;
                seen.extend(popped(&mut order));
            }
            prop_assert_eq!(seen, sealed);
            prop_assert_eq!(order.passed(), Epoch(50));
        }
    }
}
