//! A member of the configuration service: whoever leads it decides which configuration entry is next
//! (docs/protocols/calvin.md, primaries that change).

use std::collections::{BTreeMap, BTreeSet};

use ordain_model::{Epoch, Micros, PartitionId};
use ordain_role::{Bug, Bugs, NodeId, Topology};

use super::configuration_entry::ConfigurationEntry;
use super::leadership_records::{Arrival, Eviction, Fence, LeadershipRecords};
use super::{Ending, Kept, PREPARATION, SILENCE};

/// A member's part of the service: what was decided, what nodes report, and so what is to be decided next.
#[derive(Debug)]
pub(super) struct Decider {
    pub(super) pace: Micros,
    /// The leadership records as of the last configuration entry in the log of this member.
    pub(super) leadership_records: LeadershipRecords,
    pub(super) leads: bool,
    pub(super) last: Epoch,
    /// A configuration entry is in the log and not decided.
    pub(super) is_open: bool,
    /// Since when it leads.
    pub(super) since: Micros,
    /// The lives of nodes that have arrived, and others after them.
    pub(super) earlier_lives: BTreeSet<(NodeId, u64)>,
    /// The latest report of each node.
    pub(super) reports: BTreeMap<NodeId, Report>,
    /// Members that a primary has named as in sync and no configuration entry has, with its log's last epoch when it
    /// named them first.
    pub(super) joining: BTreeMap<(PartitionId, u64, NodeId), Epoch>,
    /// Since when each term is being prepared, as far as this member has seen.
    pub(super) fenced: BTreeMap<(PartitionId, u64), Micros>,
}

/// The latest report of a node.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) at: Micros,
    pub(super) arrival: Arrival,
    /// The version of the leadership records.
    pub(super) version: u64,
    pub(super) kept: Kept,
    pub(super) conclusion: Option<Ending>,
}

impl Decider {
    /// Takes a decision into account.
    pub(super) fn apply(&mut self, entry: &ConfigurationEntry) {
        if let ConfigurationEntry::Arrive { node, .. } = entry
            && let Some(before) = self.leadership_records.arrivals.get(node)
        {
            self.earlier_lives.insert((*node, before.life));
        }
        self.leadership_records.apply(entry);
        if let ConfigurationEntry::Arrive { node, .. } = entry
            && let Some(now) = self.leadership_records.arrivals.get(node)
        {
            self.earlier_lives.remove(&(*node, now.life));
        }
    }

    pub(super) fn is_live(&self, node: NodeId, now: Micros) -> bool {
        let heard = self.reports.get(&node).map(|report| report.at);
        // A member that has just begun to lead has heard from no node yet.
        now.since(heard.unwrap_or(self.since).max(self.since)) < Micros(self.pace.0 * SILENCE)
    }

    /// The configuration entry that is to be decided next, if there is one.
    pub(super) fn next_configuration_entry(
        &self,
        topology: &Topology,
        now: Micros,
    ) -> Option<ConfigurationEntry> {
        let is_new = |(node, report): (&NodeId, &Report)| {
            let known = self.leadership_records.arrivals.get(node);
            let is_known = known.is_some_and(|known| {
                *known == report.arrival || known.incarnation > report.arrival.incarnation
            });
            // Reports of an earlier life may reach a leader of the service late.
            let is_known = is_known || self.earlier_lives.contains(&(*node, report.arrival.life));
            (!is_known).then_some(ConfigurationEntry::Arrive { node: *node, arrival: report.arrival })
        };
        let partitions = (0..topology.layout.partitions()).map(PartitionId);
        let arrival = self.reports.iter().find_map(is_new);
        arrival
            .or_else(|| partitions.into_iter().find_map(|partition| self.next_for(partition, topology, now)))
    }

    pub(super) fn next_for(
        &self,
        partition: PartitionId,
        topology: &Topology,
        now: Micros,
    ) -> Option<ConfigurationEntry> {
        let leadership_record = self.leadership_records.of(partition);
        let heir = || {
            let able = leadership_record.heirs().filter(|node| {
                self.reports.contains_key(node)
                    && self.is_live(*node, now)
                    && !self.leadership_records.is_out(*node)
            });
            able.max_by_key(|node| (self.reports[node].kept.through, std::cmp::Reverse(*node)))
        };
        let term = leadership_record.latest() + 1;
        let fence = |candidate| ConfigurationEntry::Fence { partition, fence: Fence { term, candidate } };
        if let Some(prepared) = leadership_record.fence {
            let report = self.reports.get(&prepared.candidate);
            let ending = report.and_then(|report| report.conclusion.as_ref());
            if let Some(ending) = ending.filter(|e| (e.partition, e.term) == (partition, prepared.term)) {
                return Some(self.leadership_record(ending, topology));
            }
            let since =
                self.fenced.get(&(partition, prepared.term)).copied().unwrap_or_default().max(self.since);
            let is_late = now.since(since) >= Micros(self.pace.0 * PREPARATION);
            let is_able =
                self.is_live(prepared.candidate, now) && !self.leadership_records.is_out(prepared.candidate);
            return heir().filter(|_| is_late || !is_able).map(fence);
        }
        if !self.is_live(leadership_record.primary, now)
            || self.leadership_records.is_out(leadership_record.primary)
        {
            return heir().filter(|heir| *heir != leadership_record.primary).map(fence);
        }
        let report = self.reports.get(&leadership_record.primary)?;
        let is_current = report.version >= self.leadership_records.version;
        let may_follow = |member: &NodeId| {
            leadership_record.in_sync.contains(member) || self.has_joined(partition, *member)
        };
        let in_sync: Vec<NodeId> = report.kept.in_sync.iter().copied().filter(may_follow).collect();
        (is_current && in_sync != leadership_record.in_sync).then_some(ConfigurationEntry::Sync {
            partition,
            term: leadership_record.term,
            in_sync,
        })
    }

    /// A node has reported. If it is a primary and names members that are not heirs yet, how far it is now is noted.
    pub(super) fn note_joining(&mut self, node: NodeId) {
        let Some(report) = self.reports.get(&node) else { return };
        for (leadership_record, partition) in
            self.leadership_records.leadership_records.iter().zip((0..).map(PartitionId))
        {
            if leadership_record.primary == node {
                let named = |member: &NodeId| {
                    report.kept.in_sync.contains(member) && !leadership_record.in_sync.contains(member)
                };
                self.joining.retain(|(of, term, member), _| {
                    *of != partition || *term == leadership_record.term && named(member)
                });
                for member in report.kept.in_sync.iter().filter(|member| named(member)) {
                    self.joining
                        .entry((partition, leadership_record.term, *member))
                        .or_insert(report.kept.through);
                }
            }
        }
    }

    /// Tells whether a member that its primary has named has on its disk all that may have been below the [low
    /// watermark](Decider::low_watermark) without it: only then may it be an heir. Entries below the watermark are
    /// stable, whichever node is primary next.
    pub(super) fn has_joined(&self, partition: PartitionId, member: NodeId) -> bool {
        let named_at = self.joining.get(&(partition, self.leadership_records.of(partition).term, member));
        // A member that began anew may have lost with its log what it reported before.
        let is_it = |report: &&Report| self.leadership_records.arrivals.get(&member) == Some(&report.arrival);
        let report = self.reports.get(&member).filter(is_it);
        named_at.zip(report).is_some_and(|(named_at, report)| report.kept.through >= *named_at)
    }

    /// The configuration entry that makes the candidate primary, by what it has come to.
    pub(super) fn leadership_record(&self, ending: &Ending, topology: &Topology) -> ConfigurationEntry {
        let Ending { partition, term, end, first, ref absent, ref suspects } = *ending;
        let nodes = (0..topology.nodes()).map(NodeId);
        let out =
            nodes.filter(|node| absent.contains(node) || suspects.contains(&topology.replica_of(*node)));
        let evicted = out.map(|node| {
            let without_log = absent.contains(&node) && topology.partition_of(node) == partition;
            (node, Eviction { incarnation: self.leadership_records.last_incarnation_of(node), without_log })
        });
        ConfigurationEntry::LeadershipRecord { partition, term, end, first, evicted: evicted.collect() }
    }

    /// The epoch up to which all of a partition's heirs have everything: no node will ever ask for slices of it. A
    /// member counts as soon as its primary names it: until that is decided, no more of what it lacks may be
    /// forgotten.
    pub(super) fn low_watermark(&self, topology: &Topology, partition: PartitionId, bugs: Bugs) -> Epoch {
        let leadership_record = self.leadership_records.of(partition);
        let reported =
            self.reports.get(&leadership_record.primary).map_or(&[][..], |report| &report.kept.in_sync);
        let counts = |node: &NodeId| {
            leadership_record.heirs().chain(reported.iter().copied()).any(|heir| heir == *node)
        };
        let through = |node| self.reports.get(&node).map_or(Epoch(0), |report| report.kept.through);
        let through = topology.group(partition).filter(counts).map(through);
        // Planted, STABLE.
        let watermark = if bugs.has(Bug::ForgetUnstable) { through.max() } else { through.min() };
        watermark.unwrap_or_default()
    }
}
