//! Which lines are durable, by what replicas have synced.

use ordain_role::NodeId;

use super::StorageMode;
use super::configuration::{StorageConfiguration, StorageMember};

/// A line that needs a majority of the replicas that count, and in full mode all that are required: the first of a ballot, or a
/// configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Barrier {
    pub lsn: u64,
    /// The configuration from this line on.
    pub configuration: StorageConfiguration,
}

/// The smallest majority of so many.
pub(super) fn majority(of: usize) -> usize {
    of / 2 + 1
}

/// The line up to which a replica has synced the leader's log, in the generation in which it spoke last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Synced {
    pub member: StorageMember,
    pub line: u64,
}

/// The line that so many of some members have at least.
fn reached_by(synced: &[Synced], members: &[StorageMember], count: usize) -> u64 {
    let counts = synced.iter().filter(|synced| members.contains(&synced.member));
    let mut lines: Vec<u64> = counts.map(|synced| synced.line).collect();
    lines.sort_unstable_by(|a, b| b.cmp(a));
    count.checked_sub(1).and_then(|at| lines.get(at)).copied().unwrap_or(0)
}

/// The line that all have at least that a configuration requires.
fn reached_by_all(synced: &[Synced], configuration: &StorageConfiguration) -> u64 {
    let has = |node: &NodeId| {
        let its = synced.iter().find(|synced| synced.member.node == *node);
        let counts = its.filter(|synced| configuration.counted.contains(&synced.member));
        counts.map_or(0, |synced| synced.line)
    };
    configuration.required.iter().map(has).min().unwrap_or(0)
}

/// What counts for a leader.
#[derive(Clone, Debug)]
pub(super) struct Counting {
    pub mode: StorageMode,
    /// How many replicas have to have a line in quorum mode, and a barrier in any.
    pub majority: usize,
    /// The configuration in force: that of the last barrier that is durable.
    pub configuration: StorageConfiguration,
    /// The barriers that are not durable, in their order. Until the first of the ballot is, nothing of it is.
    pub barriers: Vec<Barrier>,
    /// No line of the ballot is durable.
    pub is_beginning: bool,
    /// The region may not have begun: all replicas must have a barrier, whatever their generations.
    pub is_founding: bool,
}

impl Counting {
    /// The newest configuration, durable or not.
    pub fn newest(&self) -> &StorageConfiguration {
        self.barriers.last().map_or(&self.configuration, |barrier| &barrier.configuration)
    }

    /// The members of which a majority has to do something: those of the configuration in force, and those that are open.
    fn electorates(&self) -> impl Iterator<Item = &[StorageMember]> {
        let open = self.barriers.iter().map(|barrier| &barrier.configuration);
        std::iter::once(&self.configuration).chain(open).map(|of| &of.counted[..])
    }

    /// Tells whether these members are a majority, of those before and after each change that is open too.
    pub fn is_majority(&self, members: &[StorageMember]) -> bool {
        self.electorates()
            .all(|of| members.iter().filter(|member| of.contains(member)).count() >= self.majority)
    }

    /// Tells whether replicas that have synced so much have a barrier. Those before it count with it.
    fn has(&self, synced: &[Synced], barrier: &Barrier) -> bool {
        let is_full = self.mode == StorageMode::Full;
        let of = [&self.configuration, &barrier.configuration];
        of.iter().all(|of| reached_by(synced, &of.counted, self.majority) >= barrier.lsn)
            && (!is_full || reached_by_all(synced, &barrier.configuration) >= barrier.lsn)
            && (!self.is_founding || synced.iter().all(|synced| synced.line >= barrier.lsn))
    }

    /// Finds the last durable line, given how far the replicas have synced this leader's log, and takes note of barriers that are
    /// durable now. `None` if none of the ballot is.
    pub fn count(&mut self, synced: &[Synced]) -> Option<u64> {
        let passed = self.barriers.iter().rposition(|barrier| self.has(synced, barrier));
        let mut durable = None;
        if let Some(passed) = passed
            && let Some(barrier) = self.barriers.drain(..=passed).next_back()
        {
            self.configuration = StorageConfiguration { before: Vec::new(), ..barrier.configuration };
            (self.is_beginning, self.is_founding) = (false, false);
            durable = Some(barrier.lsn);
        }
        if self.is_beginning {
            return None;
        }
        let all = match self.mode {
            StorageMode::Quorum => reached_by(synced, &self.configuration.counted, self.majority),
            StorageMode::Full => reached_by_all(synced, &self.configuration),
        };
        let before_next = self.barriers.first().map_or(u64::MAX, |barrier| barrier.lsn - 1);
        durable.max(Some(all.min(before_next)))
    }

    /// Finds a state that cannot be.
    pub fn check(&self) -> Result<(), String> {
        // Each barrier is held to the configuration in force and to its own: there must be no third.
        let mut others: Vec<&[StorageMember]> =
            self.electorates().filter(|of| *of != &self.configuration.counted[..]).collect();
        others.dedup();
        if others.len() > 1 {
            return Err("two changes of who counts are open at a time".to_owned());
        }
        match self.barriers.iter().map(|barrier| barrier.lsn).is_sorted_by(|a, b| a < b) {
            true => Ok(()),
            false => Err("configurations are not in the order of their lines".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(of: &[u16]) -> Vec<NodeId> {
        of.iter().copied().map(NodeId).collect()
    }

    fn member(node: u16, generation: u64) -> StorageMember {
        StorageMember { node: NodeId(node), generation }
    }

    /// What replicas have synced, all in their first generation.
    fn synced(lines: &[u64]) -> Vec<Synced> {
        let of = |(node, line): (usize, &u64)| Synced { member: member(node as u16, 1), line: *line };
        lines.iter().enumerate().map(of).collect()
    }

    /// A configuration of five replicas in their first generation.
    fn requiring(of: &[u16]) -> StorageConfiguration {
        let counted = (0..5).map(|node| member(node, 1)).collect();
        StorageConfiguration { counted, required: nodes(of), ..StorageConfiguration::default() }
    }

    fn counting(mode: StorageMode, of: &[u16], barriers: &[(u64, &[u16])]) -> Counting {
        let barriers = barriers.iter();
        let barriers =
            barriers.map(|(lsn, of)| Barrier { lsn: *lsn, configuration: requiring(of) }).collect::<Vec<_>>();
        let (configuration, is_beginning) = (requiring(of), !barriers.is_empty());
        Counting { mode, majority: 2, configuration, is_beginning, is_founding: false, barriers }
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
        counting.barriers.push(Barrier { lsn: 8, configuration: requiring(&[0, 1]) });
        assert_eq!(counting.count(&synced(&[9, 7, 6])), Some(6));
        assert_eq!(
            counting.count(&synced(&[9, 7, 9])),
            Some(7),
            "line 8 is on two, and not on both of its own"
        );
        assert_eq!(counting.count(&synced(&[9, 10, 6])), Some(9));
        assert_eq!(counting.newest().required, nodes(&[0, 1]));
    }

    #[test]
    fn a_configuration_counts_together_with_those_before_it() {
        let mut counting = counting(StorageMode::Full, &[0, 1, 2], &[]);
        counting.majority = 2;
        counting.barriers.push(Barrier { lsn: 4, configuration: requiring(&[0, 1]) });
        counting.barriers.push(Barrier { lsn: 6, configuration: requiring(&[0, 2]) });
        assert_eq!(counting.count(&synced(&[9, 3, 6])), Some(6));
        assert!(counting.barriers.is_empty());
        assert_eq!(counting.count(&synced(&[9, 3, 8])), Some(8));
    }

    #[test]
    fn a_configuration_that_no_majority_has_does_not_count() {
        let mut counting = counting(StorageMode::Full, &[0, 1], &[]);
        counting.majority = 3;
        counting.barriers.push(Barrier { lsn: 4, configuration: requiring(&[0, 1]) });
        assert_eq!(counting.count(&synced(&[9, 9, 3, 3, 3])), Some(3));
        assert_eq!(counting.count(&synced(&[9, 9, 4, 3, 3])), Some(9));
    }

    /// Three replicas, the last of which comes back without what it had.
    #[test]
    fn a_generation_counts_when_both_majorities_have_the_line_that_says_so() {
        let mut counting = counting(StorageMode::Quorum, &[0, 1, 2], &[]);
        counting.configuration.counted.truncate(3);
        let of = |generation, lines: [u64; 3]| {
            let mut synced = synced(&lines);
            synced[2].member.generation = generation;
            synced
        };
        assert_eq!(counting.count(&of(1, [5, 4, 5])), Some(5));
        assert_eq!(counting.count(&of(2, [7, 5, 7])), Some(5), "what is forgotten does not count");
        let in_force = counting.configuration.clone();
        let configuration = in_force.with(&[member(2, 2)]).after(&in_force);
        counting.barriers.push(Barrier { lsn: 8, configuration });
        assert_eq!(counting.count(&of(2, [9, 7, 9])), Some(7), "line 8 is on one of those that counted");
        assert!(!counting.is_majority(&[member(0, 1), member(2, 2)]), "one of those before");
        assert!(!counting.is_majority(&[member(0, 1), member(2, 1)]), "one of those after");
        assert!(counting.is_majority(&[member(0, 1), member(1, 1)]));
        counting.check().unwrap();
        assert_eq!(counting.count(&of(2, [9, 8, 0])), Some(8));
        assert_eq!(counting.count(&of(2, [9, 8, 9])), Some(9));
        assert!(counting.is_majority(&[member(0, 1), member(2, 2)]));
    }

    #[test]
    fn two_changes_are_not_open_at_a_time() {
        let mut counting = counting(StorageMode::Quorum, &[0, 1, 2], &[]);
        for (lsn, node) in [(4, 1), (6, 2)] {
            counting.check().unwrap();
            let configuration = counting.newest().with(&[member(node, 2)]);
            counting.barriers.push(Barrier { lsn, configuration });
        }
        assert!(counting.check().is_err());
    }

    #[test]
    fn a_region_begins_when_all_have_the_line_that_says_so() {
        let mut counting = counting(StorageMode::Quorum, &[0, 1, 2], &[(1, &[0, 1, 2])]);
        counting.is_founding = true;
        assert_eq!(counting.count(&synced(&[3, 3, 0])), None);
        let mut forgetful = synced(&[3, 3, 1]);
        forgetful[2].member.generation = 2;
        assert_eq!(counting.count(&forgetful), Some(3), "it knows that the region has begun");
        assert!(!counting.is_founding);
    }
}
