//! What a restore takes from a checkpoint store: the checkpoints that count, of which replica, as sources.

use std::collections::BTreeSet;

use ordain_archive::stored::{Kept, kept};
use ordain_archive::{ArchiveError, Owner, Reader, StoredCheckpoints};
use ordain_family::Replication;
use ordain_model::{Epoch, PartitionId};

use super::Source;

/// A partition of a cluster in a store.
#[derive(Clone, Debug)]
pub struct StoredPartition {
    /// Its number.
    pub partition: u16,
    /// The place of its objects, below the store's URL.
    pub place: String,
    /// The checkpoints there is something of, the oldest first.
    pub kept: Vec<Kept>,
}

/// Looks at what there is of a cluster, by partition.
///
/// # Errors
/// The store cannot be reached.
pub fn partitions(archive: &dyn Reader, cluster: &str) -> Result<Vec<StoredPartition>, ArchiveError> {
    let places = archive.list(cluster)?.1;
    let mut numbers: Vec<u16> = places.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    let of = |partition: u16| {
        let place = format!("{cluster}/{partition}");
        let kept = kept(archive, &place)?;
        Ok(StoredPartition { partition, place, kept })
    };
    numbers.into_iter().map(of).collect()
}

/// The checkpoints of a cluster that count.
#[derive(Clone, Debug)]
pub struct Counting {
    /// The owner of the newest one that was accepted.
    pub owner: Owner,
    /// Of each partition those that count.
    partitions: Vec<StoredPartition>,
}

impl Counting {
    /// Finds the checkpoints that count; `None` if there is none. Those of replicas that need not agree are taken of one.
    /// `accept` refuses owners that do not fit, and `note` hears of checkpoints that cannot be used and why.
    ///
    /// # Errors
    /// Those of `accept`.
    pub fn of<E>(
        partitions: Vec<StoredPartition>,
        accept: &mut dyn FnMut(&Owner, &str) -> Result<(), E>,
        note: &mut dyn FnMut(&StoredPartition, &Kept, &str),
    ) -> Result<Option<Counting>, E> {
        let (mut owner, mut counting) = (None, Vec::new());
        for partition in partitions {
            let mut counts = Vec::new();
            for kept in &partition.kept {
                match kept.sound() {
                    Ok(sealed) => {
                        accept(&sealed.owner, &format!("{}, epoch {}", partition.place, kept.epoch))?;
                        owner = Some(sealed.owner.clone());
                        counts.push(kept.clone());
                    }
                    Err(reason) => note(&partition, kept, &reason),
                }
            }
            counting.push(StoredPartition { kept: counts, ..partition });
        }
        let Some(owner) = owner else { return Ok(None) };
        if owner.replication == Replication::Async.name() {
            of_one_replica(&mut counting, owner.starts.len());
        }
        Ok(Some(Counting { owner, partitions: counting }))
    }

    /// The checkpoints as directories, each beside its partition.
    pub fn directories<'a>(&self, archive: &'a dyn Reader) -> Vec<(StoredPartition, StoredCheckpoints<'a>)> {
        let of = |partition: &StoredPartition| {
            let stored = StoredCheckpoints::new(archive, &partition.place, partition.kept.iter());
            (partition.clone(), stored)
        };
        self.partitions.iter().map(of).collect()
    }
}

/// Sources of those directories; `identity` is that of the log of each partition.
pub fn sources<'d>(
    directories: &'d [(StoredPartition, StoredCheckpoints<'_>)],
    store: &str,
    identity: impl Fn(u16) -> Vec<u8>,
) -> Vec<Source<'d>> {
    let of = |(partition, directory): &'d (StoredPartition, StoredCheckpoints<'_>)| Source {
        partition: PartitionId(partition.partition),
        name: format!("{store}/{}", partition.place),
        directory,
        identity: identity(partition.partition),
        checkpoints: epochs(&partition.kept).into_iter().collect(),
        log: None,
        aborts: BTreeSet::new(),
    };
    directories.iter().map(of).collect()
}

fn epochs(kept: &[Kept]) -> BTreeSet<Epoch> {
    kept.iter().map(|kept| kept.epoch).collect()
}

/// Leaves the checkpoints of one replica alone: that of which all partitions have the newest of one epoch.
fn of_one_replica(partitions: &mut [StoredPartition], of_replica: usize) {
    let replica_of = |kept: &Kept| usize::from(kept.node.0) / of_replica.max(1);
    let newest = |replica: usize| {
        let of_partition = |partition: &StoredPartition| {
            let own = partition.kept.iter().filter(|kept| replica_of(kept) == replica);
            own.map(|kept| kept.epoch).collect::<BTreeSet<Epoch>>()
        };
        let common = partitions.iter().map(of_partition).reduce(|common, other| &common & &other);
        common.and_then(|common| common.last().copied())
    };
    let kept = partitions.iter().flat_map(|partition| &partition.kept);
    let replicas: BTreeSet<usize> = kept.map(replica_of).collect();
    let Some(best) = replicas.into_iter().max_by_key(|replica| newest(*replica)) else { return };
    for partition in partitions {
        partition.kept.retain(|kept| replica_of(kept) == best);
    }
}
