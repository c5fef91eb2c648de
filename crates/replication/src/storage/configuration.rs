//! Which storage replicas count: each in one generation, the one that began when its directory was made.
//!
//! A replica that has lost its disk has forgotten what it had promised and acknowledged. It comes back in another generation, which
//! counts for nothing until a line of the log says so ([decision 57](../../../../docs/decisions/0057-emptied-storage-nodes.md)).
//!
//! The rule of *both majorities*: a line that changes which generations count is *open* until it is known to be durable. While
//! it is, whatever needs a majority needs one of the members that counted before and one of those that count by it: seals, the
//! first line of a ballot, the line itself, confirmations.
//!
//! Why a candidate finds all that is durable. Take the smallest ballot that seals by the rule and takes a log without some line e that a
//! smaller ballot has made durable. All ballots between have e, by choice of the smallest. The candidate takes the newest log of
//! all who answer; let c be the newest configuration in it, open or not.
//! 1. e was durable by members of c, or of the configuration before c while c is open. Both majorities were sealed, so a replica that had
//!    synced e has answered, in the generation in which it did: nothing was forgotten. It synced e before it promised, so its log has
//!    e, and a newer log has it too: it ends in the same ballot or one between.
//! 2. e was durable by members of a later configuration d, which the log that was taken has not. The leader that wrote d had a majority
//!    of the members before d take that line, before anything counted by d. Going back from d in that leader's log one meets c, or the
//!    configuration before it, since c itself was written behind that one; so by case 1 the line of d has been found. It was not.
//! 3. e was durable by members of a configuration that is older than those: c, or the one before it, is durable then, and its line
//!    stands behind e in the log that was taken, or its leader had e by choice of the smallest.
//!
//! Only one change is open at a time, since a leader writes none before its last is durable. And a line behind which another change
//! stands is durable for that reason.
//!
//! The first line of the log says which generations count first. It needs all replicas, whatever their generation is by then, so that one
//! disk that is kept is enough to know that the region has begun: with two of three disks lost no majority comes about, and
//! never a new beginning.

use ordain_model::codec;
use ordain_role::NodeId;
use raft::eraftpb::ConfState;

/// Generations are below this.
const GENERATIONS: u64 = 1 << 48;

/// A storage replica in one of its generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageMember {
    /// The storage node.
    pub node: NodeId,
    /// The number that was drawn when its directory was made; never 0.
    pub generation: u64,
}

codec!(struct StorageMember { node, generation });

impl StorageMember {
    /// The generation that a drawn number comes to.
    pub fn generation_of(drawn: u64) -> u64 {
        (drawn % GENERATIONS).max(1)
    }

    /// The number by which the journal knows it.
    fn id(self) -> u64 {
        self.generation << 16 | u64::from(self.node.0)
    }

    fn of(id: u64) -> StorageMember {
        StorageMember { node: NodeId(id as u16), generation: id >> 16 }
    }
}

/// Which replicas count, and for what. Empty before the first line of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageConfiguration {
    /// The replicas of the region in the generations that count for majorities.
    pub counted: Vec<StorageMember>,
    /// Those that must have what counts as durable in full mode.
    pub required: Vec<NodeId>,
    /// Those that counted before and do not any more, if that may not be durable yet.
    pub before: Vec<StorageMember>,
    /// It is the first: with it the region begins.
    pub is_first: bool,
}

codec!(struct StorageConfiguration { counted, required, before, is_first });

impl StorageConfiguration {
    /// Tells whether the region has begun.
    pub fn has_begun(&self) -> bool {
        !self.counted.is_empty()
    }

    /// Tells whether a replica counts in this generation.
    pub fn counts(&self, node: NodeId, generation: u64) -> bool {
        self.counted.contains(&StorageMember { node, generation })
    }

    /// The generation of a replica that counts.
    pub fn generation(&self, node: NodeId) -> Option<u64> {
        self.counted.iter().find(|member| member.node == node).map(|member| member.generation)
    }

    /// The configuration with some members in other generations.
    #[must_use]
    pub fn with(&self, members: &[StorageMember]) -> StorageConfiguration {
        let other = |member: &StorageMember| members.iter().find(|of| of.node == member.node);
        let counted = self.counted.iter().map(|member| *other(member).unwrap_or(member)).collect();
        StorageConfiguration { counted, required: self.required.clone(), ..StorageConfiguration::default() }
    }

    /// The configuration whose members counted before this one.
    #[must_use]
    pub fn previous(&self) -> StorageConfiguration {
        self.with(&self.before)
    }

    /// The configuration, written while another one is in force.
    #[must_use]
    pub fn after(self, in_force: &StorageConfiguration) -> StorageConfiguration {
        let is_other = |member: &&StorageMember| !self.counted.contains(member);
        let before = in_force.counted.iter().filter(is_other).copied().collect();
        StorageConfiguration { before, ..self }
    }

    /// As the base of a journal keeps it: it is durable then.
    pub(super) fn to_members(&self) -> ConfState {
        let is_required = |member: &&StorageMember| self.required.contains(&member.node);
        let (voters, learners): (Vec<&StorageMember>, Vec<&StorageMember>) =
            self.counted.iter().partition(is_required);
        let ids = |members: Vec<&StorageMember>| members.into_iter().map(|member| member.id()).collect();
        ConfState { voters: ids(voters), learners: ids(learners), ..ConfState::default() }
    }

    /// Reads what the base of a journal keeps.
    pub(super) fn of_members(members: &ConfState) -> StorageConfiguration {
        let of = |ids: &[u64]| ids.iter().map(|id| StorageMember::of(*id)).collect::<Vec<_>>();
        let required = of(&members.voters).into_iter().map(|member| member.node).collect();
        let mut counted = of(&members.voters);
        counted.extend(of(&members.learners));
        counted.sort_by_key(|member| member.node);
        StorageConfiguration { counted, required, ..StorageConfiguration::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(of: &[(u16, u64)]) -> Vec<StorageMember> {
        of.iter()
            .map(|(node, generation)| StorageMember { node: NodeId(*node), generation: *generation })
            .collect()
    }

    #[test]
    fn what_counted_before_is_told_until_it_is_durable() {
        let first = StorageConfiguration {
            counted: members(&[(3, 7), (4, 8), (5, 9)]),
            required: vec![NodeId(3), NodeId(5)],
            ..StorageConfiguration::default()
        };
        let second = first.with(&members(&[(4, 11)])).after(&first);
        assert_eq!(second.counted, members(&[(3, 7), (4, 11), (5, 9)]));
        assert_eq!(second.before, members(&[(4, 8)]));
        assert_eq!(second.previous(), first);
        assert!(
            second.counts(NodeId(4), 11) && !second.counts(NodeId(4), 8) && !second.counts(NodeId(6), 11)
        );
        // Another one that is written before the second is durable tells the same.
        let third = StorageConfiguration { required: vec![NodeId(3)], ..second.clone() }.after(&first);
        assert_eq!((&third.before, third.previous().counted), (&second.before, first.counted.clone()));
        assert_eq!(first.clone().after(&first), first);
    }

    #[test]
    fn a_base_keeps_who_counts_and_who_is_required() {
        let configuration = StorageConfiguration {
            counted: members(&[(3, 1), (4, GENERATIONS - 1), (5, 9)]),
            required: vec![NodeId(3), NodeId(5)],
            ..StorageConfiguration::default()
        };
        assert_eq!(StorageConfiguration::of_members(&configuration.to_members()), configuration);
        assert!(!StorageConfiguration::of_members(&ConfState::default()).has_begun());
        let drawn = [0, 7, GENERATIONS, GENERATIONS + 5].map(StorageMember::generation_of);
        assert_eq!(drawn, [1, 7, 1, 5]);
    }
}
