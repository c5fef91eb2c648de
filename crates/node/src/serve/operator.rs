//! Transactions that an operator has aborted, and those that a node was executing when it ended: noted in the directory,
//! sent to other nodes.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ordain_model::{Epoch, Gsn};
use ordain_role::{NodeId, UnderWay};
use ordain_runtime::{Greeted, Greeting, under_way};

use super::ServeError;
use crate::aborts::Aborts;

/// Opens the places where the shards of a node note what they execute. Logs the transactions that the process before this
/// one was executing when it ended.
pub(super) fn open_under_way(directory: &Path) -> Vec<UnderWay> {
    match under_way::open(directory) {
        Ok((places, former)) => {
            for (shard, gsn) in former {
                tracing::warn!(
                    shard,
                    "the process before this one ended while it executed transaction {}: if that is what ends it, \
                     ordain log inspect describes it and ordain log abort aborts it",
                    Gsn(gsn)
                );
            }
            places
        }
        Err(error) => {
            tracing::warn!(%error, "what is executed is not noted in the file {}", under_way::FILE);
            Vec::new()
        }
    }
}

/// Puts the aborts of a directory in force: from now on they cannot be undone, as other nodes get what follows from them.
/// Closes the directory to other users.
pub(super) fn begin_with_aborts(directory: &Path) -> Result<(), ServeError> {
    let mut aborts = Aborts::read(directory)?;
    if aborts.take_effect() {
        aborts.write(directory)?;
    }
    for (gsn, aborted) in aborts.iter() {
        tracing::info!(reason = aborted.reason, "transaction {gsn} is aborted by the operator");
    }
    let close = || {
        let mode = std::fs::metadata(directory)?.permissions().mode();
        match mode & 0o007 {
            0 => Ok(()),
            _ => std::fs::set_permissions(directory, Permissions::from_mode(mode & 0o7770)),
        }
    };
    if let Err(error) = close() {
        tracing::warn!(%error, "other users of this machine can look into {}", directory.display());
    }
    Ok(())
}

/// The greeting that exchanges operators' aborts between nodes, as far as their transactions are not executed: see
/// [`aborts`](crate::aborts). `begun` is the epoch of the checkpoint that the node begins from.
pub(super) fn greeting(
    directory: &Path,
    begun: Epoch,
    under_way: Vec<UnderWay>,
) -> Result<Greeting, ServeError> {
    let content = Aborts::read(directory)?.greeting();
    let directory = directory.to_owned();
    let take = move |peer: NodeId, content: &[u8]| {
        let latest = || under_way.iter().map(|place| Gsn(place.latest()).epoch()).max();
        // Without such notes everything may be executed already.
        let is_past = |epoch: Epoch| latest().is_none_or(|latest| epoch <= latest.max(begun));
        let taken = Aborts::read(&directory).and_then(|mut aborts| {
            let taken = aborts.take(content, is_past)?;
            if !taken.is_empty() {
                aborts.write(&directory)?;
            }
            Ok(taken)
        });
        match taken {
            Ok(taken) if taken.is_empty() => Greeted::Nothing,
            Ok(taken) => Greeted::Restart(format!(
                "node {} reports that an operator has aborted {}, which this node has not executed yet: it is noted here too",
                peer.0,
                taken.iter().map(Gsn::to_string).collect::<Vec<_>>().join(", ")
            )),
            Err(error) => Greeted::Halt(format!(
                "node {} reports what an operator has aborted, and it cannot be noted here: {error}",
                peer.0
            )),
        }
    };
    Ok(Greeting { content: content.into(), take: Box::new(take) })
}
