//! Which lines are durable, by what replicas have synced.

use ordain_role::NodeId;

use super::StorageMode;

/// A line that needs a majority of all replicas, and in full mode all of a configuration: the first of a ballot, or a
/// configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Barrier {
    pub lsn: u64,
    /// The configuration from this line on.
    pub configuration: Vec<NodeId>,
}

/// The smallest majority of so many.
pub(super) fn majority(of: usize) -> usize {
    of / 2 + 1
}

/// The line that so many of the replicas have at least.
fn reached_by(synced: &[(NodeId, u64)], count: usize) -> u64 {
    let mut lines: Vec<u64> = synced.iter().map(|(_, line)| *line).collect();
    lines.sort_unstable_by(|a, b| b.cmp(a));
    count.checked_sub(1).and_then(|at| lines.get(at)).copied().unwrap_or(0)
}

/// The line that all of a configuration have at least.
fn reached_by_all(synced: &[(NodeId, u64)], configuration: &[NodeId]) -> u64 {
    let line_of = |node: &NodeId| synced.iter().find(|(of, _)| of == node).map_or(0, |(_, line)| *line);
    configuration.iter().map(line_of).min().unwrap_or(0)
}

/// What counts for a leader.
#[derive(Clone, Debug)]
pub(super) struct Counting {
    pub mode: StorageMode,
    /// How many replicas have to have a line in quorum mode, and a barrier in any.
    pub majority: usize,
    /// The configuration in force: that of the last barrier that is durable.
    pub configuration: Vec<NodeId>,
    /// The barriers that are not durable, in their order. Until the first of the ballot is, nothing of it is.
    pub barriers: Vec<Barrier>,
    /// No line of the ballot is durable.
    pub is_beginning: bool,
}

impl Counting {
    /// The newest configuration, durable or not.
    pub fn newest(&self) -> &[NodeId] {
        self.barriers.last().map_or(&self.configuration, |barrier| &barrier.configuration)
    }

    /// Tells whether replicas that have synced so much have a barrier. Those before it count with it.
    fn has(&self, synced: &[(NodeId, u64)], barrier: &Barrier) -> bool {
        let is_full = self.mode == StorageMode::Full;
        reached_by(synced, self.majority) >= barrier.lsn
            && (!is_full || reached_by_all(synced, &barrier.configuration) >= barrier.lsn)
    }

    /// Finds the last durable line, given how far the replicas have synced this leader's log, and takes note of barriers that are
    /// durable now. `None` if none of the ballot is.
    pub fn count(&mut self, synced: &[(NodeId, u64)]) -> Option<u64> {
        let passed = self.barriers.iter().rposition(|barrier| self.has(synced, barrier));
        let mut durable = None;
        if let Some(passed) = passed
            && let Some(barrier) = self.barriers.drain(..=passed).next_back()
        {
            self.configuration = barrier.configuration;
            self.is_beginning = false;
            durable = Some(barrier.lsn);
        }
        if self.is_beginning {
            return None;
        }
        let all = match self.mode {
            StorageMode::Quorum => reached_by(synced, self.majority),
            StorageMode::Full => reached_by_all(synced, &self.configuration),
        };
        let before_next = self.barriers.first().map_or(u64::MAX, |barrier| barrier.lsn - 1);
        durable.max(Some(all.min(before_next)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(of: &[u16]) -> Vec<NodeId> {
        of.iter().copied().map(NodeId).collect()
    }

    fn synced(lines: &[u64]) -> Vec<(NodeId, u64)> {
        lines.iter().enumerate().map(|(node, line)| (NodeId(node as u16), *line)).collect()
    }

    fn counting(mode: StorageMode, of: &[u16], barriers: &[(u64, &[u16])]) -> Counting {
        let barriers = barriers.iter();
        let barriers =
            barriers.map(|(lsn, of)| Barrier { lsn: *lsn, configuration: nodes(of) }).collect::<Vec<_>>();
        Counting { mode, majority: 2, configuration: nodes(of), is_beginning: !barriers.is_empty(), barriers }
    }

    #[test]
    fn a_majority_is_more_than_half() {
        assert_eq!((1..=7).map(majority).collect::<Vec<_>>(), [1, 2, 2, 3, 3, 4, 4]);
    }

    #[test]
    fn a_quorum_counts_the_second_largest_of_three_once_the_ballot_has_begun() {
        let mut counting = counting(StorageMode::Quorum, &[0, 1, 2], &[(5, &[0, 1, 2])]);
        assert_eq!(counting.count(&synced(&[9, 4, 3])), None, "the first line of the ballot is on one");
        assert_eq!(counting.count(&synced(&[9, 5, 3])), Some(5));
        assert_eq!(counting.count(&synced(&[9, 7, 3])), Some(7));
        assert_eq!(counting.count(&synced(&[9, 7, 11])), Some(9));
    }

    #[test]
    fn in_full_mode_the_smallest_of_the_configuration_counts() {
        let mut counting = counting(StorageMode::Full, &[0, 1, 2], &[(5, &[0, 1, 2])]);
        assert_eq!(counting.count(&synced(&[9, 5, 4])), None);
        assert_eq!(counting.count(&synced(&[9, 7, 6])), Some(6));
        // The third is left out by line 8, which needs a majority and both that are left.
        counting.barriers.push(Barrier { lsn: 8, configuration: nodes(&[0, 1]) });
        assert_eq!(counting.count(&synced(&[9, 7, 6])), Some(6));
        assert_eq!(
            counting.count(&synced(&[9, 7, 9])),
            Some(7),
            "line 8 is on two, and not on both of its own"
        );
        assert_eq!(counting.count(&synced(&[9, 10, 6])), Some(9));
        assert_eq!(counting.newest(), nodes(&[0, 1]));
    }

    #[test]
    fn a_configuration_counts_together_with_those_before_it() {
        let mut counting = counting(StorageMode::Full, &[0, 1, 2], &[]);
        counting.majority = 2;
        counting.barriers.push(Barrier { lsn: 4, configuration: nodes(&[0, 1]) });
        counting.barriers.push(Barrier { lsn: 6, configuration: nodes(&[0, 2]) });
        assert_eq!(counting.count(&synced(&[9, 3, 6])), Some(6));
        assert!(counting.barriers.is_empty());
        assert_eq!(counting.count(&synced(&[9, 3, 8])), Some(8));
    }

    #[test]
    fn a_configuration_that_no_majority_has_does_not_count() {
        let mut counting = counting(StorageMode::Full, &[0, 1], &[]);
        counting.majority = 3;
        counting.barriers.push(Barrier { lsn: 4, configuration: nodes(&[0, 1]) });
        assert_eq!(counting.count(&synced(&[9, 9, 3, 3, 3])), Some(3));
        assert_eq!(counting.count(&synced(&[9, 9, 4, 3, 3])), Some(9));
    }
}
