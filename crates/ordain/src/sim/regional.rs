//! The load of regions: clients ask mostly for what is at home in their own, and now and then for what is elsewhere.

use std::sync::Arc;

use ordain_checker::history::Request;
use ordain_model::{Args, Call, Chunk, ChunkNo, GatewayId, PartitionId, ProcedureId, Random, Registry};
use ordain_role::{NodeId, Topology};
use ordain_sim::Workload;

/// The chance, in a million, that a request is asked for wherever it belongs: mostly it is of several regions, or of another one.
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
        let home = self.topology.partition_of(node);
        reach(&self.topology, &self.registry, home, (*call, args))
            .is_some_and(|reach| matches!(reach, Reach::Home | Reach::ReadsHome))
    }
}

/// The reach of a request from a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// It touches keys of that region alone.
    Home,
    /// It only reads, keys of that region alone.
    ReadsHome,
    /// It only reads, and keys of other regions among others.
    ReadsElsewhere,
    /// Anything else.
    Elsewhere,
}

/// The reach of a request from a region, if it can be planned.
fn reach(
    topology: &Topology,
    registry: &Registry,
    home: PartitionId,
    (call, args): (Call, &[u8]),
) -> Option<Reach> {
    let layout = &topology.layout;
    let mut chunk = Chunk::new(GatewayId::of(0, 0), ChunkNo(0)).in_cluster(0, layout.clone());
    let args = Args::parse(args)?;
    let txn =
        chunk.push(registry, call, |to| args.iter().for_each(|arg| _ = to.push(arg.bytes))).ok()?.clone();
    let is_own = |slot: usize| layout.partition_of(slot) == home;
    let is_home = !txn.table && chunk.fragments(&txn).iter().all(|fragment| is_own(fragment.hash.slot()));
    Some(match (is_home, txn.read_only && !txn.table) {
        (true, true) => Reach::ReadsHome,
        (true, false) => Reach::Home,
        (false, true) => Reach::ReadsElsewhere,
        (false, false) => Reach::Elsewhere,
    })
}

/// The reach of a request from the region of its client, who keeps to the region of the first of so many doors.
pub(super) fn reach_of(
    topology: &Topology,
    registry: &Registry,
    doors: usize,
    request: &Request,
) -> Option<Reach> {
    let servers: Vec<NodeId> = topology.all_servers().collect();
    let home = topology.partition_of(servers[request.client? / doors.max(1) % servers.len()]);
    reach(topology, registry, home, (request.call, &request.args[..]))
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
