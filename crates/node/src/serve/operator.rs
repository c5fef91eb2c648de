//! What an operator has aborted, and what a node was executing when it ended: noted in the directory, told to other nodes.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ordain_model::{Epoch, Gsn};
use ordain_role::{NodeId, UnderWay};
use ordain_runtime::{Greeting, Heeded, under_way};

use super::ServeError;
use crate::aborts::Aborts;

/// Where the shards of a node say what they are executing. Says what the process before this one was at, if it died of it
/// or in the middle of it.
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

/// From now on others hear what follows from what an operator has aborted here: it cannot be undone any more. Nor is the
/// directory for everybody's eyes.
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

/// Says to every other node what an operator has aborted here, and takes over what one has been aborted there that this node
/// has not come to yet: see [`aborts`](crate::aborts). `begun` is the epoch of the checkpoint that the node begins from.
pub(super) fn greeting(
    directory: &Path,
    begun: Epoch,
    under_way: Vec<UnderWay>,
) -> Result<Greeting, ServeError> {
    let words = Aborts::read(directory)?.greeting();
    let directory = directory.to_owned();
    let heed = move |peer: NodeId, words: &[u8]| {
        let latest = || under_way.iter().map(|place| Gsn(place.latest()).epoch()).max();
        // If that is not noted, nobody knows.
        let is_past = |epoch: Epoch| latest().is_none_or(|latest| epoch <= latest.max(begun));
        let taken = Aborts::read(&directory).and_then(|mut aborts| {
            let taken = aborts.heed(words, is_past)?;
            if !taken.is_empty() {
                aborts.write(&directory)?;
            }
            Ok(taken)
        });
        match taken {
            Ok(taken) if taken.is_empty() => Heeded::Nothing,
            Ok(taken) => Heeded::Restart(format!(
                "node {} has said that an operator has aborted {}, which this node has not come to: it is noted here too",
                peer.0,
                taken.iter().map(Gsn::to_string).collect::<Vec<_>>().join(", ")
            )),
            Err(error) => Heeded::Halt(format!(
                "node {} has said what an operator has aborted, and it cannot be noted here: {error}",
                peer.0
            )),
        }
    };
    Ok(Greeting { words: words.into(), heed: Box::new(heed) })
}
