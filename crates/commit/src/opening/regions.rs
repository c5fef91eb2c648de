//! Opens the roles that only regions have: the log of a database server, views of the other regions, and storage nodes.

use std::sync::Arc;

use ordain_checkpoint::{CheckpointError, Found};
use ordain_family::{Keep, NodeSettings, Roles, Storage};
use ordain_log::Recovered;
use ordain_model::{Epoch, PartitionId, Placement, Registry, RoLocal, RoMode};
use ordain_replication::{
    CheckpointSettings, Checkpointer, StorageError, StorageLog, StorageLogSettings, StorageMode,
    StorageReader, StorageReaderSettings, StorageReplica, StorageReplicaSettings,
};
use ordain_role::{Address, Directory, NodeId, REGIONS_MAX};

use super::{OpenError, OpenedNode, checkpoint_settings, decoded, ends};
use crate::entry::{Entries, Entry};
use crate::family::{CHECKPOINTER, FOLLOWERS, LOG, PROXY, VIEWS};
use crate::message::Message;
use crate::options::{EARLY_APPLY, OVERLAY, RO_LOCAL, RO_MODE};
use crate::participant::{Holding, Participant};
use crate::proxy::{Proxy, Region};
use crate::viewing::Viewing;

/// True if the log of a node hands entries on before they are durable.
pub fn is_early(settings: &NodeSettings) -> bool {
    settings.topology.has_storage() && settings.options.is_on(&EARLY_APPLY)
}

/// True if what only reads records of a node's own region does not wait for what is in doubt.
pub fn resolves(settings: &NodeSettings) -> bool {
    let is_asked = settings.options.choice::<RoLocal>(&RO_LOCAL) == RoLocal::Resolved;
    settings.topology.has_storage() && is_asked
}

/// True if the views of a node show what its own region has committed. Who reads without validation sees one moment of the region's log.
pub fn overlays(settings: &NodeSettings) -> bool {
    let options = &settings.options;
    settings.topology.has_storage()
        && options.choice::<RoMode>(&RO_MODE) == RoMode::Validated
        && options.is_on(&OVERLAY)
}

/// The placement of keys, with which entries are read.
fn placement_of(settings: &NodeSettings) -> Arc<Placement> {
    Arc::new(settings.topology.layout.placement().clone())
}

/// The log of a database server whose state is that at a place.
pub fn log(settings: &NodeSettings, begun: Epoch) -> Result<StorageLog<Entries, Message>, StorageError> {
    let (topology, region) = (&settings.topology, settings.partition());
    let (servers, replicas) = (topology.servers_of(region).collect(), topology.storage_of(region).collect());
    let log_settings = StorageLogSettings {
        mode: match settings.storage {
            Storage::Quorum => StorageMode::Quorum,
            Storage::Full => StorageMode::Full,
        },
        begun,
        early: is_early(settings),
        message_bytes: settings.piece,
        kept_bytes: settings.kept_max,
        checkpointer: (settings.keep != Keep::Nothing).then_some(settings.at(CHECKPOINTER)),
        bugs: settings.bugs,
        ..StorageLogSettings::new(settings.at(LOG), servers, replicas)
    };
    StorageLog::new(log_settings, placement_of(settings), ends(settings))
}

/// The regions that a database server sees from elsewhere.
fn others(settings: &NodeSettings) -> impl Iterator<Item = PartitionId> + use<> {
    let own = settings.partition();
    let all = settings.topology.layout.partitions().min(REGIONS_MAX);
    (0..all).map(PartitionId).filter(move |of| *of != own)
}

/// The roles that feed the views, of a database server: they have to know who can be reached.
pub fn feeders(settings: &NodeSettings) -> Vec<u16> {
    let readers: Vec<u16> = others(settings).map(|region| FOLLOWERS + region.0).collect();
    match readers.is_empty() {
        true => readers,
        false => readers.into_iter().chain([PROXY]).collect(),
    }
}

/// The views of the other regions, with those who feed them, on a database server.
pub fn views(settings: &NodeSettings, registry: &Arc<Registry>) -> Roles<Message> {
    let topology = &settings.topology;
    let mut roles: Roles<Message> = Vec::new();
    if !topology.has_storage() {
        return roles;
    }
    let layout = &topology.layout;
    let mut regions = Vec::new();
    for region in others(settings) {
        let (view, reader) = (settings.at(VIEWS + region.0), settings.at(FOLLOWERS + region.0));
        let storage: Vec<NodeId> = topology.storage_of(region).collect();
        let holding = Holding::of_partition(layout.clone(), region);
        let control = Box::new(Viewing::planting(settings.bugs));
        let manager = settings.at(super::MANAGER);
        let participant = Participant::new(holding, manager, registry.clone(), control)
            .with_computations(settings.computations.clone(), Default::default())
            .of_region()
            .viewing(reader);
        let reading = StorageReaderSettings {
            me: reader,
            region,
            replicas: storage.iter().map(|node| Address { node: *node, role: LOG }).collect(),
            keeper: settings.at(PROXY),
            sinks: vec![view, settings.at(PROXY)],
        };
        roles.push((view.role, Box::new(participant)));
        roles.push((
            reader.role,
            Box::new(StorageReader::<Entries, Message>::new(reading, placement_of(settings))),
        ));
        regions.push(Region { region, storage });
    }
    if !regions.is_empty() {
        roles.push((PROXY, Box::new(Proxy::new(settings.node, regions))));
    }
    roles
}

/// The settings of the log of a storage node that has a checkpoint of a place.
fn replica_settings(settings: &NodeSettings, executed: Epoch) -> StorageReplicaSettings {
    let (topology, region) = (&settings.topology, settings.partition());
    let (servers, replicas) = (topology.servers_of(region).collect(), topology.storage_of(region).collect());
    StorageReplicaSettings {
        generation: settings.life,
        executed,
        checkpointer: (settings.keep != Keep::Nothing).then_some(settings.at(CHECKPOINTER)),
        keep_bytes: settings.log_keep_bytes,
        message_bytes: settings.piece,
        bugs: settings.bugs,
        ..StorageReplicaSettings::new(settings.at(LOG), servers, replicas)
    }
}

/// Opens the log of a storage node, and shows those of its entries that it knows to be durable.
pub fn open_replica(
    directory: &mut dyn Directory,
    settings: &NodeSettings,
    executed: Epoch,
    mut visit: impl FnMut(Arc<Entry>) -> Result<(), String>,
) -> Result<(StorageReplica<Arc<Entry>, Message>, Recovered), StorageError> {
    let of_replica = replica_settings(settings, executed);
    let placement = settings.topology.layout.placement();
    StorageReplica::open_showing(directory, settings.log_config(), of_replica, |term, bytes| {
        visit(decoded(placement, term, bytes)?)
    })
}

/// Opens a storage node: its part of the log, and copies of the servers' checkpoints.
pub fn open_storage(
    directory: Option<&mut dyn Directory>,
    settings: &NodeSettings,
) -> Result<OpenedNode, OpenError> {
    let Some(directory) = directory.filter(|_| settings.keep != Keep::Nothing) else {
        let replica = StorageReplica::in_memory(replica_settings(settings, Epoch(0)))?;
        return Ok(OpenedNode::of_storage(Box::new(replica), None));
    };
    let found = ordain_checkpoint::list(directory).map_err(CheckpointError::from)?;
    let complete = found.iter().filter(|found| found.is_complete()).map(|found| found.epoch);
    // Damage is found now: a server would find it when it needs the copy.
    let refused: Vec<(Epoch, CheckpointError)> = complete
        .filter_map(|epoch| Some((epoch, ordain_checkpoint::verify(directory, epoch).err()?)))
        .collect();
    let refused_at: Vec<Epoch> = refused.iter().map(|(epoch, _)| *epoch).collect();
    let executed = newest(&found, &refused_at);
    // Nobody here makes one.
    let copying =
        CheckpointSettings { only_copies: true, shards: Vec::new(), ..checkpoint_settings(settings) };
    let checkpointer = Checkpointer::new(copying, &found, &refused_at);
    let (replica, recovered) = open_replica(directory, settings, executed, |_| Ok(()))?;
    let opened = OpenedNode::of_storage(Box::new(replica), Some(checkpointer));
    Ok(OpenedNode { recovered: Some(recovered), refused, ..opened })
}

/// The place of the newest checkpoint that can be used.
fn newest(found: &[Found], refused: &[Epoch]) -> Epoch {
    let usable = found.iter().filter(|found| found.is_complete() && !refused.contains(&found.epoch));
    usable.map(|found| found.epoch).max().unwrap_or_default()
}
