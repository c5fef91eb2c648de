//! The last entries of an input log, kept in memory for members that are not far behind.

use std::collections::VecDeque;
use std::sync::Arc;

use ordain_model::Epoch;

/// The bytes of an entry, as its entry type encodes it.
pub(super) type Content = Arc<Vec<u8>>;

/// The last entries of what was dispatched, without a gap.
#[derive(Debug, Default)]
pub(super) struct Tail {
    kept: VecDeque<(Epoch, Content)>,
    bytes: usize,
    /// The epoch after which everything is here. It is that of an entry, or none is before.
    since: Epoch,
    /// The last entry's.
    last: Epoch,
}

impl Tail {
    /// The tail of a log with this last entry, of which nothing is in memory.
    pub fn new(last: Epoch) -> Tail {
        Tail { since: last, last, ..Tail::default() }
    }

    /// The last entry of all.
    pub fn last(&self) -> Epoch {
        self.last
    }

    /// The epoch after which everything is here.
    pub fn since(&self) -> Epoch {
        self.since
    }

    /// Bytes of the entries in memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds an entry that was dispatched.
    pub fn push(&mut self, epoch: Epoch, content: Content) {
        self.bytes += content.len();
        self.kept.push_back((epoch, content));
        self.last = epoch;
    }

    /// Lets go what all members have, and beyond `most` bytes whatever is the oldest; but nothing that cannot be read from
    /// the disk.
    pub fn shrink(&mut self, all_have: Epoch, most: usize, durable: Epoch) {
        let may_go =
            |(epoch, _): &(Epoch, Content), bytes| *epoch <= durable && (*epoch <= all_have || bytes > most);
        while self.kept.front().is_some_and(|first| may_go(first, self.bytes)) {
            let Some((epoch, content)) = self.kept.pop_front() else { return };
            self.bytes -= content.len();
            self.since = epoch;
        }
    }

    /// The entries after an epoch, if all of them are in memory.
    pub fn after(&self, after: Epoch) -> Option<impl Iterator<Item = &(Epoch, Content)>> {
        let skip = self.kept.partition_point(|(epoch, _)| *epoch <= after);
        (after >= self.since).then(|| self.kept.range(skip..))
    }

    /// The bytes of the entries here that come after an epoch.
    pub fn bytes_after(&self, after: Epoch) -> usize {
        let skip = self.kept.partition_point(|(epoch, _)| *epoch <= after);
        self.kept.range(skip..).map(|(_, content)| content.len()).sum()
    }

    /// Checks the invariants of the fields.
    pub fn check(&self) -> Result<(), String> {
        let epochs: Vec<Epoch> = self.kept.iter().map(|(epoch, _)| *epoch).collect();
        let bytes: usize = self.kept.iter().map(|(_, content)| content.len()).sum();
        let is_in_order = std::iter::once(&self.since).chain(&epochs).is_sorted_by(|a, b| a < b);
        let is_all = epochs.last().is_none_or(|last| *last == self.last);
        match is_in_order && is_all && bytes == self.bytes {
            true => Ok(()),
            false => Err(format!("the log's tail since epoch {} is not in order: {epochs:?}", self.since)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail() -> Tail {
        let mut tail = Tail::new(Epoch(2));
        [4, 6, 8, 10].into_iter().for_each(|epoch| tail.push(Epoch(epoch), Arc::new(vec![0; 10])));
        tail
    }

    fn epochs(tail: &Tail, after: u64) -> Option<Vec<u64>> {
        tail.check().unwrap();
        Some(tail.after(Epoch(after))?.map(|(epoch, _)| epoch.0).collect())
    }

    #[test]
    fn what_comes_after_an_epoch_is_given_only_as_a_whole() {
        let tail = tail();
        assert_eq!(epochs(&tail, 1), None, "something may be between");
        assert_eq!(epochs(&tail, 2).unwrap(), [4, 6, 8, 10]);
        assert_eq!(epochs(&tail, 7).unwrap(), [8, 10]);
        assert_eq!(epochs(&tail, 11).unwrap(), []);
        assert_eq!((tail.bytes_after(Epoch(7)), tail.bytes_after(Epoch(0))), (20, 40));
    }

    #[test]
    fn what_all_have_goes_and_the_oldest_if_there_is_too_much_but_nothing_that_is_not_on_disk() {
        let gone = |all, most, durable| {
            let mut tail = tail();
            tail.shrink(Epoch(all), most, Epoch(durable));
            assert_eq!(tail.last(), Epoch(10));
            (tail.since().0, tail.bytes())
        };
        assert_eq!(gone(0, 100, 10), (2, 40));
        assert_eq!(gone(7, 100, 10), (6, 20));
        assert_eq!(gone(0, 25, 10), (6, 20));
        assert_eq!(gone(0, 25, 5), (4, 30));
        assert_eq!(gone(20, 0, 10), (10, 0));
        assert_eq!(gone(20, 0, 3), (2, 40));
    }
}
