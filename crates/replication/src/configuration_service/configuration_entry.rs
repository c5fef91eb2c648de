//! The configuration service's decisions, one at a time. What they make of [`LeadershipRecords`] is a function of their
//! order alone.

use ordain_model::wire::Codec as _;
use ordain_model::{Epoch, PartitionId, codec};
use ordain_role::NodeId;

use super::frame;
use super::leadership_records::{Arrival, Eviction, Fence, LeadershipRecords};
use crate::entry::EntryType;

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigurationEntry {
    /// A node has started.
    Arrive {
        /// The node.
        node: NodeId,
        /// The node's introduction.
        arrival: Arrival,
    },
    /// The members of a partition that have all that its primary has, but for what is on its way.
    Sync {
        /// The partition.
        partition: PartitionId,
        /// The primary's term.
        term: u64,
        /// The members.
        in_sync: Vec<NodeId>,
    },
    /// A term is to be prepared: what comes from those before is refused from now on.
    Fence {
        /// The partition.
        partition: PartitionId,
        /// The term.
        fence: Fence,
    },
    /// The candidate is primary.
    LeadershipRecord {
        /// The partition.
        partition: PartitionId,
        /// The term that was prepared.
        term: u64,
        /// The last epoch that was decided of the terms before. What any node has sealed between it and `first` is
        /// lost.
        end: Epoch,
        /// The first epoch of the new term.
        first: Epoch,
        /// The nodes that have to be rebuilt.
        evicted: Vec<(NodeId, Eviction)>,
    },
}

impl LeadershipRecords {
    /// Takes a decision into account, if it still fits what was decided before.
    pub fn apply(&mut self, configuration_entry: &ConfigurationEntry) {
        self.version += 1;
        match configuration_entry {
            ConfigurationEntry::Arrive { node, arrival } => {
                let known = self.arrivals.entry(*node).or_insert(*arrival);
                if arrival.incarnation >= known.incarnation {
                    *known = *arrival;
                }
            }
            ConfigurationEntry::Sync { partition, term, in_sync } => {
                if let Some(leadership_record) = self.leadership_records.get_mut(usize::from(partition.0))
                    && (leadership_record.term, leadership_record.fence) == (*term, None)
                {
                    leadership_record.in_sync.clone_from(in_sync);
                }
            }
            ConfigurationEntry::Fence { partition, fence } => {
                if let Some(leadership_record) = self.leadership_records.get_mut(usize::from(partition.0))
                    && fence.term > leadership_record.latest()
                {
                    leadership_record.fence = Some(*fence);
                }
            }
            ConfigurationEntry::LeadershipRecord { partition, term, first, evicted, .. } => {
                let Some(leadership_record) = self.leadership_records.get_mut(usize::from(partition.0))
                else {
                    return;
                };
                let Some(fence) = leadership_record.fence.take_if(|fence| fence.term == *term) else {
                    return;
                };
                let primary = fence.candidate;
                let is_out = |node: &NodeId| evicted.iter().any(|(out, _)| out == node);
                leadership_record.in_sync.retain(|member| *member != primary && !is_out(member));
                (leadership_record.term, leadership_record.primary, leadership_record.first) =
                    (*term, primary, *first);
                self.evict(evicted);
            }
        }
    }

    fn evict(&mut self, evicted: &[(NodeId, Eviction)]) {
        for (node, eviction) in evicted {
            // A node that was to discard its log, and has been silent since, still is.
            let still_out = self.is_out(*node);
            let known = self.evicted.entry(*node).or_insert(*eviction);
            known.without_log = eviction.without_log || (still_out && known.without_log);
            known.incarnation = known.incarnation.max(eviction.incarnation);
        }
    }
}

/// A configuration entry in the service's log, with its number there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The entry's number.
    pub epoch: Epoch,
    /// The decision.
    pub entry: ConfigurationEntry,
}

/// The entry type of the configuration service's log.
#[derive(Clone, Copy, Debug)]
pub enum Decisions {}

impl EntryType for Decisions {
    type Entry = Decision;
    type Context = ();

    fn epoch(decision: &Decision) -> Epoch {
        decision.epoch
    }

    fn must_be_durable(_decision: &Decision) -> bool {
        true
    }

    fn encode(decision: &Decision) -> Vec<u8> {
        frame::encode(decision.epoch, &decision.entry.to_bytes())
    }

    fn decode(_context: &(), bytes: &[u8]) -> Result<Decision, String> {
        let parse = || {
            let (epoch, text) = frame::decode(bytes)?;
            Some(Decision { epoch, entry: ConfigurationEntry::from_bytes(text)? })
        };
        parse().ok_or_else(|| "it is no configuration entry".to_owned())
    }
}

codec!(enum ConfigurationEntry {
    0 => Arrive { node, arrival },
    1 => Sync { partition, term, in_sync },
    2 => Fence { partition, fence },
    3 => LeadershipRecord { partition, term, end, first, evicted },
});
