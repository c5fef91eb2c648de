//! What regions have beside other partitions: the log of a database server, views of the other regions, and storage nodes.

use std::sync::Arc;

use ordain_checkpoint::{CheckpointError, Found};
use ordain_family::{Keep, NodeSettings, Roles, Storage};
use ordain_model::{Epoch, PartitionId, Registry};
use ordain_replication::{
    CheckpointSettings, Checkpointer, StorageError, StorageLog, StorageLogSettings, StorageMode,
    StorageReader, StorageReaderSettings, StorageReplica, StorageReplicaSettings,
};
use ordain_role::{Address, Directory, NodeId};

use super::{OpenError, OpenedNode, checkpoint_settings, ends};
use crate::entry::{Entries, Entry};
use crate::family::{CHECKPOINTER, FOLLOWERS, LOG, PROXY, REGIONS_MAX, VIEWS};
use crate::message::Message;
use crate::participant::{Holding, Participant};
use crate::proxy::{Proxy, Region};
use crate::viewing::Viewing;

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
        message_bytes: settings.piece,
        kept_bytes: settings.kept_max,
        checkpointer: (settings.keep != Keep::Nothing).then_some(settings.at(CHECKPOINTER)),
        bugs: settings.bugs,
        ..StorageLogSettings::new(settings.at(LOG), servers, replicas)
    };
    StorageLog::new(log_settings, Arc::new(()), ends(settings))
}

/// The views of the other regions, with those who feed them, on a database server.
pub fn views(settings: &NodeSettings, registry: &Arc<Registry>) -> Roles<Message> {
    let topology = &settings.topology;
    let mut roles: Roles<Message> = Vec::new();
    if !topology.has_storage() {
        return roles;
    }
    let layout = &topology.layout;
    let others = (0..layout.partitions()).map(PartitionId).filter(|of| *of != settings.partition());
    let mut regions = Vec::new();
    for region in others.filter(|of| of.0 < REGIONS_MAX) {
        let (view, reader) = (settings.at(VIEWS + region.0), settings.at(FOLLOWERS + region.0));
        let storage: Vec<NodeId> = topology.storage_of(region).collect();
        let holding = Holding::of_partition(layout.clone(), region);
        let control = Box::new(Viewing::planting(settings.bugs));
        let manager = settings.at(super::MANAGER);
        let participant = Participant::new(holding, manager, registry.clone(), control)
            .with_computations(settings.computations.clone(), Default::default())
            .viewing(reader);
        let reading = StorageReaderSettings {
            me: reader,
            replicas: storage.iter().map(|node| Address { node: *node, role: LOG }).collect(),
            keeper: settings.at(PROXY),
            sinks: vec![view, settings.at(PROXY)],
        };
        roles.push((view.role, Box::new(participant)));
        roles.push((reader.role, Box::new(StorageReader::<Entries, Message>::new(reading, Arc::new(())))));
        regions.push(Region { region, storage });
    }
    if !regions.is_empty() {
        roles.push((PROXY, Box::new(Proxy::new(settings.node, regions))));
    }
    roles
}

/// Opens a storage node: its part of the log, and copies of the servers' checkpoints.
pub fn open_storage(
    directory: Option<&mut dyn Directory>,
    settings: &NodeSettings,
) -> Result<OpenedNode, OpenError> {
    let topology = &settings.topology;
    let region = settings.partition();
    let (servers, replicas) = (topology.servers_of(region).collect(), topology.storage_of(region).collect());
    let keeps = settings.keep != Keep::Nothing;
    let replica = StorageReplicaSettings {
        checkpointer: keeps.then_some(settings.at(CHECKPOINTER)),
        keep_bytes: settings.log_keep_bytes,
        message_bytes: settings.piece,
        bugs: settings.bugs,
        ..StorageReplicaSettings::new(settings.at(LOG), servers, replicas)
    };
    let Some(directory) = directory.filter(|_| keeps) else {
        let replica = StorageReplica::<Arc<Entry>, Message>::in_memory(replica)?;
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
    let copying = CheckpointSettings {
        only_copies: true,
        // Nobody here makes one.
        shards: Vec::new(),
        ..checkpoint_settings(settings)
    };
    let checkpointer = Checkpointer::new(copying, &found, &refused_at);
    let replica = StorageReplicaSettings { executed, ..replica };
    let (replica, recovered) =
        StorageReplica::<Arc<Entry>, Message>::open(directory, settings.log_config(), replica)?;
    let opened = OpenedNode::of_storage(Box::new(replica), Some(checkpointer));
    Ok(OpenedNode { recovered: Some(recovered), refused, ..opened })
}

/// The place of the newest checkpoint that can be used.
fn newest(found: &[Found], refused: &[Epoch]) -> Epoch {
    let usable = found.iter().filter(|found| found.is_complete() && !refused.contains(&found.epoch));
    usable.map(|found| found.epoch).max().unwrap_or_default()
}
