//! The load of regions: clients ask mostly for what is at home in their own.

use std::sync::Arc;

use ordain_model::{Args, Call, Chunk, ChunkNo, GatewayId, ProcedureId, Random, Registry};
use ordain_role::{NodeId, Topology};
use ordain_sim::Workload;

/// The chance, in a million, that a request is asked for wherever it belongs. Most such are refused.
const ANYWHERE: u32 = 120_000;
/// A request is drawn anew so often until it is one of the client's region.
const DRAWS: u32 = 40;

/// A mix of requests, those of a client of its region.
pub(super) struct Regional<W> {
    mix: W,
    topology: Topology,
    registry: Arc<Registry>,
}

impl<W: Workload> Regional<W> {
    /// The mix in these regions.
    pub(super) fn new(mix: W, topology: Topology, registry: Arc<Registry>) -> Regional<W> {
        Regional { mix, topology, registry }
    }

    /// True if all that a request touches is of the region of a node.
    fn is_of(&self, node: NodeId, (call, args): &(Call, Vec<u8>)) -> bool {
        let layout = &self.topology.layout;
        let mut chunk = Chunk::new(GatewayId::of(0, 0), ChunkNo(0)).in_cluster(0, layout.clone());
        let Some(args) = Args::parse(args) else { return false };
        let pushed =
            chunk.push(&self.registry, *call, |to| args.iter().for_each(|arg| _ = to.push(arg.bytes)));
        let home = self.topology.partition_of(node);
        pushed.is_ok()
            && chunk.txns().iter().all(|txn| {
                let own = |of: usize| layout.partition_of(of) == home;
                !txn.table && chunk.fragments(txn).iter().all(|fragment| own(fragment.hash.slot()))
            })
    }
}

impl<W: Workload> Workload for Regional<W> {
    fn next(&mut self, random: &mut Random) -> (Call, Vec<u8>) {
        self.mix.next(random)
    }

    fn next_at(&mut self, node: NodeId, random: &mut Random) -> (Call, Vec<u8>) {
        let mut drawn = self.mix.next(random);
        if random.chance(ANYWHERE) {
            return drawn;
        }
        for _ in 0..DRAWS {
            if self.is_of(node, &drawn) {
                break;
            }
            drawn = self.mix.next(random);
        }
        drawn
    }

    fn audits(&self) -> Vec<ProcedureId> {
        self.mix.audits()
    }
}
