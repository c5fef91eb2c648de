//! A cluster that is put together from what another one has left: from a store's checkpoints, or from the directories of its
//! nodes. It starts in the simulator, and is judged by the serial execution of all that came before and of its own log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_checker::{Violation, ViolationKind};
use ordain_family::NodeSettings;
use ordain_log::{MemoryDirectory, SharedDirectory};
use ordain_model::{Batch, Call, Epoch, Gsn, Millis, PartitionId, Random, Registry};
use ordain_node::restore::stored::{Counting, partitions, sources};
use ordain_node::restore::{How, RestoreError, Restored, Source, found, restore, share};
use ordain_role::{Directory, NodeId, ReplicaId, Topology};

use super::deterministic::{CLUSTER, DeterministicSystem};
use super::object_store::VirtualStore;
use super::{Replication, SimArgs};

/// What a cluster leaves behind when all of its nodes have lost power.
pub(super) struct Remains {
    /// The batches of all partitions, in their order.
    pub(super) log: Vec<Batch>,
    /// What an operator has aborted.
    pub(super) aborted: BTreeSet<Gsn>,
    /// The directories of the nodes.
    pub(super) disks: Vec<(NodeId, Box<dyn Directory>)>,
    /// The nodes that are about to be rebuilt: what they hold is void.
    pub(super) pending: BTreeSet<NodeId>,
    /// The last request of each session of the clients that call.
    pub(super) asked_last: Vec<(Call, Vec<u8>)>,
    /// The latest time that a wall clock has shown.
    pub(super) wall: Option<Millis>,
    /// Where their checkpoints went.
    pub(super) store: Option<VirtualStore>,
    pub(super) topology: Topology,
    /// The answers to the workload's audits.
    #[cfg(test)]
    pub(super) audits: Vec<Vec<u8>>,
}

/// What came before a cluster that was restored.
#[derive(Clone, Default)]
pub(super) struct Former {
    pub(super) log: Vec<Batch>,
    pub(super) aborted: BTreeSet<Gsn>,
    pub(super) disks: Vec<MemoryDirectory>,
}

/// A cluster that is being put together.
pub(super) struct Target<'t> {
    /// The settings of its nodes.
    settings: &'t NodeSettings,
    registry: &'t Arc<Registry>,
    how: How,
    /// The directories of its nodes.
    directories: Vec<SharedDirectory<MemoryDirectory>>,
}

impl<'t> Target<'t> {
    /// A cluster whose nodes have empty directories.
    pub(super) fn new(settings: &'t NodeSettings, registry: &'t Arc<Registry>, how: How) -> Target<'t> {
        let directories = (0..settings.topology.nodes()).map(|_| SharedDirectory::default()).collect();
        Target { settings, registry, how, directories }
    }

    /// What the directories hold.
    pub(super) fn disks(&self) -> Vec<MemoryDirectory> {
        self.directories.iter().map(|directory| directory.with(|disk| disk.clone())).collect()
    }

    /// Writes the state to the first directory of each partition.
    fn put_together(&self, sources: &[Source<'_>], until: Option<Epoch>) -> Result<Restored, RestoreError> {
        let what = (&self.settings.topology.layout, self.registry, self.how);
        restore(sources, what, (until, Millis(1)), &mut |partition| {
            let target = self.directories.get(usize::from(partition.0));
            Ok(target.map(|target| Box::new(target.clone()) as Box<dyn Directory>))
        })
    }

    /// Takes the checkpoints of a store.
    pub(super) fn of_store(
        &self,
        store: &VirtualStore,
        until: Option<Epoch>,
    ) -> Result<Restored, RestoreError> {
        let out_of_reach = |reason: String| RestoreError::OutOfReach(reason);
        let stored = partitions(store, CLUSTER).map_err(|error| out_of_reach(error.to_string()))?;
        let mut accept = |_: &_, _: &str| Ok::<(), RestoreError>(());
        let counting = Counting::of(stored, &mut accept, &mut |_, _, _| {})?;
        let counting = counting.ok_or_else(|| out_of_reach("no checkpoint counts".to_owned()))?;
        let directories = counting.directories(store);
        let identity = |_| self.settings.identity.clone();
        self.put_together(&sources(&directories, "the virtual store", identity), until)
    }

    /// Takes the directories of one node of each partition, with async all of one replica, as `ordain checkpoint restore` has it.
    pub(super) fn of_directories(
        &self,
        left: &Left<'_>,
        until: Option<Epoch>,
        random: &mut Random,
    ) -> Result<Restored, RestoreError> {
        let Topology { layout, servers, .. } = left.topology;
        let of_one = self.settings.replication() == ordain_family::Replication::Async;
        let mut replica = random.below(u64::from(*servers)) as u16;
        let mut sources = Vec::new();
        for partition in (0..layout.partitions()).map(PartitionId) {
            if !of_one {
                replica = random.below(u64::from(*servers)) as u16;
            }
            let node = left.topology.node(ReplicaId(replica), partition);
            if left.pending.contains(&node) {
                return Err(RestoreError::OutOfReach(format!("node {} is about to be rebuilt", node.0)));
            }
            let (_, disk) = &left.disks[usize::from(node.0)];
            let place = (partition, format!("node {}", node.0));
            sources.push(Source::of_files(&**disk, place, (self.settings.identity.clone(), true))?);
        }
        self.put_together(&sources, until)
    }

    /// Gives the other replicas what the first has, and has groups begin.
    pub(super) fn finish(&self, restored: &Restored) -> Result<(), RestoreError> {
        let topology = &self.settings.topology;
        for (number, target) in self.directories.iter().enumerate() {
            let (node, mut target) = (NodeId(number as u16), target.clone());
            let first = usize::from(topology.partition_of(node).0);
            if first != number {
                share(&self.directories[first], &mut target, restored.begins)?;
            }
            let members: Vec<NodeId> = topology.group(topology.partition_of(node)).collect();
            let group = (&members[..], self.settings.replication());
            let founded = found(&mut target, &self.settings.identity, group, restored.begins);
            founded.map_err(|reason| RestoreError::Log { name: format!("node {number}"), reason })?;
        }
        Ok(())
    }
}

/// The directories that nodes have left.
pub(super) struct Left<'a> {
    pub(super) disks: &'a [(NodeId, Box<dyn Directory>)],
    /// The nodes that are about to be rebuilt: what they hold is void.
    pub(super) pending: &'a BTreeSet<NodeId>,
    pub(super) topology: &'a Topology,
}

/// A cluster that is to be started.
pub(super) struct Begun {
    pub(super) system: DeterministicSystem,
    /// The flags that describe it.
    pub(super) args: SimArgs,
    pub(super) restored: Restored,
}

pub(super) fn wrong(text: String) -> Violation {
    Violation::new(ViolationKind::Recovery, text)
}

/// A store that has no checkpoint of all partitions any more, and had one.
pub(super) fn lost(store: &VirtualStore) -> Option<Violation> {
    let text = || {
        format!("the store has no checkpoint of all partitions any more, and had one: {:?}", store.counts())
    };
    (store.was_whole() && store.whole().is_empty()).then(|| wrong(text()))
}

/// Puts a cluster together as the seed has it: from the store or from directories, to the end or to an epoch, with as many
/// replicas and threads as it draws. `None`: the product refuses, and may.
pub(super) fn begin(
    args: &SimArgs,
    seed: u64,
    remains: &Remains,
) -> anyhow::Result<Result<Option<Begun>, Violation>> {
    let mut random = Random::stream(seed, 0x4e5702e);
    let replicas = match args.replication {
        Replication::Sync => [1, 2, 3][random.index(3)],
        Replication::Async => args.replicas,
    };
    let args = SimArgs { replicas, shards: None, plant: None, ..args.clone() };
    let mut system = DeterministicSystem::limited(&args, seed.wrapping_mul(31).wrapping_add(7), seed)?;
    let target = Target::new(&system.settings, &system.registry, How::Executes(system.isolation()));
    if let Some(violation) = remains.store.as_ref().and_then(lost) {
        return Ok(Err(violation));
    }
    let from_store =
        remains.store.as_ref().filter(|store| !store.whole().is_empty() && random.chance(600_000));
    let until = random.chance(250_000).then(|| remains.log.get(random.index(remains.log.len().max(1))));
    let until = until.flatten().map(|batch| batch.epoch);
    let put_together = match from_store {
        Some(store) => target.of_store(store, until),
        None => {
            let Remains { disks, pending, topology, .. } = remains;
            target.of_directories(&Left { disks, pending, topology }, until, &mut random)
        }
    };
    let restored = match put_together {
        Ok(restored) => restored,
        // An epoch that is asked for may be out of reach, and so may all with logs that were trimmed at different places.
        Err(RestoreError::OutOfReach(_)) if until.is_some() || from_store.is_none() => {
            return Ok(Ok(None));
        }
        Err(error) => return Ok(Err(wrong(format!("nothing can be restored: {error}")))),
    };
    if from_store.is_some() && !restored.refused.is_empty() {
        return Ok(Err(wrong(format!(
            "what counts in the store is damaged: {}",
            restored.refused.join("; ")
        ))));
    }
    if let Some(until) = until.filter(|until| restored.until > *until) {
        let text = format!("the state is that of epoch {}, where {until} was asked for", restored.until);
        return Ok(Err(wrong(text)));
    }
    target.finish(&restored).map_err(|error| anyhow::anyhow!("{error}"))?;
    let log = remains.log.iter().filter(|batch| batch.epoch <= restored.until).cloned().collect();
    let disks = target.disks();
    system.former = Former { log, aborted: remains.aborted.clone(), disks };
    Ok(Ok(Some(Begun { system, args, restored })))
}

/// What partitions hold, for messages.
pub(super) fn described(restored: &Restored) -> String {
    let totals: BTreeMap<u16, u64> =
        restored.totals.iter().map(|(partition, totals)| (partition.0, totals.records)).collect();
    let Restored { from, until, begins, executed, .. } = restored;
    format!("from a checkpoint of epoch {from} to {until}, {executed} executed, begins {begins}: {totals:?}")
}
