//! Partitions as regions: each has a server that executes, and sees the others' records as their logs have told of them (regions.md,
//! sections 1 and 4.4).
//!
//! A transaction runs in the region whose server has taken it. Its accesses to records of another region go to a participant of that
//! very node, the *view*: it applies that region's log, and lets nobody write.

use std::collections::BTreeMap;

use ordain_model::{Abort, Access, Chunk, Fragment, PartitionId, RoMode, Txn, system};
use ordain_role::Address;

use crate::desk::Site;
use crate::ids::{Lead, Term};

/// The views of a node: the term of each region's log, as far as it is applied here.
#[derive(Clone, Debug, Default)]
pub struct Views(BTreeMap<PartitionId, Term>);

impl Views {
    /// A view goes on with entries of a term; answers whether that is news.
    pub fn note(&mut self, lead: Lead) -> bool {
        let known = self.0.insert(lead.partition, lead.term);
        known != Some(lead.term)
    }

    /// The claim under which a view answers; `None` before it has said so.
    pub fn of(&self, region: PartitionId) -> Option<Lead> {
        Some(Lead { partition: region, term: *self.0.get(&region)? })
    }
}

impl Site {
    /// True if a partition is a region that this node sees from elsewhere.
    pub fn is_foreign(&self, partition: PartitionId) -> bool {
        self.regions.is_some() && partition != self.partition
    }

    /// The number of the participant that holds a slot: its shard's, or that of the view of its region.
    pub fn holder_of(&self, slot: usize) -> usize {
        let shard = self.layout.shard_of(slot);
        match self.layout.partition_of_shard(shard) {
            region if self.is_foreign(region) => self.layout.shards_of(region).start,
            _ => shard,
        }
    }

    /// The role that is the view of a region on this node.
    pub const fn view(&self, region: PartitionId) -> Address {
        self.at(crate::family::VIEWS + region.0)
    }

    /// The reason for which a transaction is refused that could write besides reading records of other regions.
    pub fn reads_elsewhere(&self, chunk: &Chunk, txn: &Txn) -> Option<Abort> {
        self.regions?;
        let fragments = chunk.fragments(txn).iter().filter(|fragment| !fragment.is_table());
        let mut partitions = fragments.map(|fragment| self.layout.partition_of(fragment.hash.slot()));
        partitions.any(|of| self.is_foreign(of)).then_some(Abort::RegionsRead)
    }

    /// The reason for which a transaction is refused that touches records of other regions; none if it may run.
    pub fn refuses(&self, chunk: &Chunk, txn: &Txn) -> Option<Abort> {
        let mode = self.regions?;
        if txn.table {
            return (self.layout.partitions() > 1).then_some(Abort::RegionsTable);
        }
        let is_there = |fragment: &&Fragment| self.is_foreign(self.layout.partition_of(fragment.hash.slot()));
        let mut foreign = chunk.fragments(txn).iter().filter(is_there);
        if foreign.any(|fragment| fragment.access == Access::Write) {
            return Some(Abort::RegionsWrite);
        }
        // Evidence is held to the newest version, which is not known here.
        let is_shown = mode == RoMode::Stale && txn.read_only && txn.call.procedure != system::READ;
        self.reads_elsewhere(chunk, txn).filter(|_| !is_shown)
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::{Call, Cell, ChunkNo, Db, GatewayId, KeyHash, Registry};

    use super::*;
    use crate::bench::Bench;

    /// The refusal, if any, of a transaction by a server of the first of two regions; `reads` and `writes` are regions of its keys.
    fn refusal(mode: Option<RoMode>, reads: &[u16], writes: &[u16]) -> Option<Abort> {
        let mut bench = Bench::new(0);
        bench.site.regions = mode;
        let mut registry = Registry::default();
        system::register(&mut registry);
        let layout = bench.site.layout.clone();
        let key = |region: u16| {
            let is_there =
                |key: &String| layout.partition_of(KeyHash::of(key.as_bytes()).slot()) == PartitionId(region);
            (0..).map(|n| n.to_string()).find(is_there).unwrap()
        };
        let mut chunk = Chunk::new(GatewayId::of(0, 0), ChunkNo(1)).in_cluster(0, layout.clone());
        let keys: Vec<String> = reads.iter().chain(writes).map(|region| key(*region)).collect();
        let (read, written) = keys.split_at(reads.len());
        if writes.is_empty() {
            let names = read.iter().map(|key| (Db(0), key.as_bytes()));
            chunk
                .push(&registry, Call::new(system::READ, Db(0)), |args| system::read_args(names, args))
                .unwrap();
        } else {
            let read = read.iter().map(|key| (Db(0), key.as_bytes(), ordain_model::Version::NONE));
            let written = written.iter().map(|key| (Db(0), key.as_bytes(), &Cell::ABSENT));
            let call = Call::new(system::COMMIT, Db(0));
            chunk.push(&registry, call, |args| system::commit_args(read, written, args)).unwrap();
        }
        bench.site.refuses(&chunk, &chunk.txns()[0])
    }

    #[test]
    fn a_transaction_is_refused_for_the_first_thing_that_would_have_to_be_validated_elsewhere() {
        let validated = Some(RoMode::Validated);
        assert_eq!(refusal(None, &[0, 1], &[1]), None, "partitions that are no regions agree");
        assert_eq!(refusal(validated, &[0], &[0]), None);
        assert_eq!(refusal(validated, &[0], &[0, 1]), Some(Abort::RegionsWrite));
        assert_eq!(refusal(validated, &[1], &[0]), Some(Abort::RegionsRead));
        assert_eq!(refusal(validated, &[1], &[]), Some(Abort::RegionsRead));
        assert_eq!(refusal(validated, &[0], &[]), None);
        // Evidence has to be of now, whatever the mode is.
        assert_eq!(refusal(Some(RoMode::Stale), &[1], &[]), Some(Abort::RegionsRead));
        assert_eq!(refusal(Some(RoMode::Stale), &[1], &[0]), Some(Abort::RegionsRead));
    }

    #[test]
    fn records_of_another_region_are_those_of_its_view() {
        let mut bench = Bench::new(0);
        bench.site.layout = std::sync::Arc::new(ordain_model::Layout::even(2, 3).unwrap());
        let holders = |bench: &Bench| -> std::collections::BTreeSet<usize> {
            (0..ordain_model::key::SLOTS).map(|slot| bench.site.holder_of(slot)).collect()
        };
        assert_eq!(holders(&bench).len(), 6);
        bench.site.regions = Some(RoMode::Stale);
        assert_eq!(holders(&bench).into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
        bench.tell(|desk| assert_eq!(desk.participant(4), None, "its view has not said anything yet"));
        let lead = Lead { partition: PartitionId(1), term: Term(7) };
        assert!(bench.views.note(lead) && !bench.views.note(lead));
        bench.tell(|desk| {
            assert_eq!(desk.participant(3), Some((desk.site.view(PartitionId(1)), lead)));
        });
    }
}
