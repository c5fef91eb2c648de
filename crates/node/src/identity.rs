//! What a data directory says about itself: who may open it.
//!
//! A directory belongs to one node of one cluster, in one layout. To open it as anything else would mix up two logs
//! or look for records where they are not, so it is refused, with what to do about it.
//!
//! A node that has lost its directory must not come back as who it was: its members count on what it has acknowledged, and
//! on its votes. It *joins* with an empty directory, in a new generation that is written down there; so it is another
//! member of its group than the lost one.
//!
//! A node whose primary was succeeded without it may have executed what is lost: it is *rebuilt*, as another incarnation,
//! without some of what its directory holds. The identity says so before anything is removed, so that a crash at any
//! moment leaves a directory from which the next start goes on with the rebuild.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ordain_archive::Owner;
use ordain_deterministic::options::ISOLATION;
use ordain_engines::registry::{self, Engine};
use ordain_model::{Isolation, OptionInfo, Options};
use ordain_role::Rebuild;
use serde::{Deserialize, Serialize};

use ordain_family::Replication;

use crate::cluster::Membership;
use crate::sealed;

/// The version of everything in a data directory but the log, which has its own. Format 3 keeps beside an expiry how a string was
/// written: an older program would take that for a time (decision 41).
const FORMAT: u32 = 3;
/// The oldest version that is read. The first start makes it [`FORMAT`].
const OLDEST_FORMAT: u32 = 2;
/// The file that says all this.
pub const FILE: &str = "ordain.json";
/// The file that is held while a process uses the directory.
pub const LOCK: &str = ".lock";

/// The content of `ordain.json`. Unknown fields are damage: a bit of the word `checksum` may have been flipped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The version of the directory.
    pub format: u32,
    /// The engine whose results the directory holds.
    pub engine: String,
    /// At which isolation level its log is executed: at another one the same input has other results.
    #[serde(default = "default_level")]
    pub isolation: String,
    /// The other options that a log must be executed with as it was, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// The cluster's name; a node on its own has one that was made up at its first start.
    pub cluster: String,
    /// The node belongs to no cluster.
    pub alone: bool,
    /// The node's number.
    pub node: u16,
    /// The partition that it holds.
    pub partition: u16,
    /// The replica that it belongs to.
    pub replica: u16,
    /// The version of the layout.
    pub layout: u32,
    /// The first slot of each partition.
    pub starts: Vec<usize>,
    /// The prefixes of each region, as text; none if no region has any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<Vec<String>>,
    /// Event loops, each with a shard. A node on its own may change that from start to start.
    pub threads: usize,
    /// In which generation the node is: 0 since the cluster began, or when it joined in place of one that was lost.
    #[serde(default)]
    pub generation: u32,
    /// The number of rebuilds in that generation.
    #[serde(default, rename = "started_over")]
    pub rebuilds: u32,
    /// A rebuild that is not carried out: what is to be removed before anything of the directory is used.
    #[serde(default, rename = "starts_over", skip_serializing_if = "Option::is_none")]
    pending_rebuild: Option<Without>,
    /// The log has been made: from now on a directory without one has lost it.
    pub has_log: bool,
    /// It is not what the file says any more.
    #[serde(skip)]
    is_changed: bool,
}

fn default_level() -> String {
    Isolation::default().to_string()
}

/// A [`Rebuild`] as the file has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Without {
    without_log: bool,
    #[serde(default)]
    without_receive_journal: bool,
}

/// The part of an identity that is always first to be read: another format may have no more in common.
#[derive(Deserialize)]
struct Version {
    format: u32,
    #[serde(default)]
    checksum: Option<String>,
}

/// The reason why a data directory is refused.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Something about the file system.
    #[error("cannot use data directory {}: {reason}: check its owner and permissions, or choose --data-dir", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        reason: std::io::Error,
    },
    /// `ordain.json` is not what was written.
    #[error("{}: damaged: {reason}: restore it from a copy of the data directory", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Another format.
    #[error("{}: the data directory has format {found} and this program reads formats {OLDEST_FORMAT} to {FORMAT}: use the program that wrote it", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The version.
        found: u32,
    },
    /// Another engine.
    #[error("{}: the data directory belongs to engine '{found}', not '{asked}': start with --engine {found}, or choose another --data-dir", path.display())]
    Engine {
        /// The file.
        path: PathBuf,
        /// The engine.
        found: String,
        /// The engine asked for.
        asked: String,
    },
    /// Another value of an option that stays.
    #[error("{}: the log in the data directory was executed with {found}, and with {asked} it would have other results: start with {found}, or choose another --data-dir", path.display())]
    Option {
        /// The file.
        path: PathBuf,
        /// The value, as it is given on a command line.
        found: String,
        /// The value asked for.
        asked: String,
    },
    /// Another node, or one of another cluster.
    #[error("{}: the data directory belongs to {found}, not to {asked}: start it as that, or choose another --data-dir", path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        found: String,
        /// Who asked.
        asked: String,
    },
    /// A node that is to join has something already.
    #[error("{}: --join is for a node that has lost what it had, and this directory holds {found}: start it without --join if that is what the node had or has joined with, or empty the directory", path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
        /// A file in it.
        found: String,
    },
    /// Another layout of the cluster.
    #[error("{}: the data directory was written with {found}, not {asked}: records would be looked for where they are not: set that again in the cluster's file on all nodes, or begin an empty cluster with another --data-dir", path.display())]
    Layout {
        /// The file.
        path: PathBuf,
        /// The layout that it holds.
        found: String,
        /// The layout asked for.
        asked: String,
    },
}

impl Identity {
    /// Gives an empty directory the identity of a node that comes in a new generation.
    ///
    /// # Errors
    /// [`IdentityError`]; the directory is unchanged then.
    pub fn join(directory: &Path, place: &Membership, generation: u32) -> Result<Identity, IdentityError> {
        let io = |reason| IdentityError::Io { path: directory.to_owned(), reason };
        for entry in fs::read_dir(directory).map_err(io)? {
            let found = entry.map_err(io)?.file_name().to_string_lossy().into_owned();
            // Held by this process, or left behind by another.
            if found != LOCK {
                return Err(IdentityError::NotEmpty { path: directory.to_owned(), found });
            }
        }
        let threads = place.cluster.layout.threads();
        let identity = Identity { generation, ..Identity::of(&place.cluster.options, threads, Some(place)) };
        identity.write(directory).map_err(io)?;
        Ok(identity)
    }

    /// Gives an empty directory the identity of a node that begins with a checkpoint: of this cluster, or on its own under the
    /// name that it had.
    ///
    /// # Errors
    /// [`IdentityError::Io`].
    pub fn begin(
        directory: &Path,
        place: Result<&Membership, (Engine, &str)>,
    ) -> Result<Identity, IdentityError> {
        let identity = match place {
            Ok(place) => Identity::of(&place.cluster.options, place.cluster.layout.threads(), Some(place)),
            // While there is no log, it may be begun with at any level.
            Err((engine, name)) => {
                Identity { cluster: name.to_owned(), ..Identity::of(&engine.defaults(), 1, None) }
            }
        };
        identity
            .write(directory)
            .map_err(|reason| IdentityError::Io { path: directory.to_owned(), reason })?;
        Ok(identity)
    }

    /// Reads the identity of a directory, which must be for this engine and this place in a cluster (or none), or
    /// gives it one if it has none. What may change from start to start is written by [`Identity::note_log`], once
    /// everything else was found to be in order.
    ///
    /// # Errors
    /// [`IdentityError`]; the directory is unchanged then.
    pub fn open(
        directory: &Path,
        options: &Options,
        threads: usize,
        place: Option<&Membership>,
    ) -> Result<Identity, IdentityError> {
        let path = directory.join(FILE);
        let io = |reason| IdentityError::Io { path: path.clone(), reason };
        let asked = Identity::of(options, threads, place);
        let Some(mut found) = Identity::read(directory)? else {
            asked.write(directory).map_err(io)?;
            return Ok(asked);
        };
        found.check(&asked, path.clone())?;
        let may_change = |identity: &Identity| {
            let Identity { format, threads, isolation, options, .. } = identity;
            (*format, *threads, isolation.clone(), options.clone())
        };
        if may_change(&found) != may_change(&asked) {
            (found.format, found.threads, found.isolation, found.options) = may_change(&asked);
            found.is_changed = true;
        }
        Ok(found)
    }

    /// Reads the identity of a directory, whosever it is; `None` if it has none.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn read(directory: &Path) -> Result<Option<Identity>, IdentityError> {
        let path = directory.join(FILE);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(reason) => return Err(IdentityError::Io { path, reason }),
        };
        let damaged = |reason: String| IdentityError::Damaged { path: path.clone(), reason };
        let Version { format, checksum } =
            serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        let has_checksum = checksum.is_some();
        if has_checksum {
            sealed::unseal::<serde_json::Value>(&bytes).map_err(damaged)?;
        }
        if !(OLDEST_FORMAT..=FORMAT).contains(&format) {
            return Err(IdentityError::Format { path, found: format });
        }
        // Of before there were checksums.
        let plain = || serde_json::from_slice(&bytes).map_err(|error| error.to_string());
        let read = if has_checksum { sealed::unseal(&bytes) } else { plain() };
        read.map(Some).map_err(damaged)
    }

    /// The identity for an empty directory.
    fn of(options: &Options, threads: usize, place: Option<&Membership>) -> Identity {
        let stays = options.iter().filter(|(info, _)| info.is_identity && info.name != ISOLATION.name);
        let alone = Identity {
            format: FORMAT,
            engine: options.engine().into(),
            isolation: options.value(&ISOLATION).to_string(),
            options: stays.map(|(info, value)| (info.name.to_owned(), value.to_string())).collect(),
            cluster: format!("{:032x}", rand::random::<u128>()),
            alone: true,
            node: 0,
            partition: 0,
            replica: 0,
            layout: 1,
            starts: vec![0],
            regions: Vec::new(),
            threads,
            generation: 0,
            rebuilds: 0,
            pending_rebuild: None,
            has_log: false,
            is_changed: false,
        };
        let Some(place) = place else { return alone };
        let layout = &place.cluster.layout;
        Identity {
            cluster: place.cluster.id.clone(),
            alone: false,
            node: place.node.0,
            partition: place.partition().0,
            replica: place.replica().0,
            layout: layout.version(),
            starts: layout.starts().to_vec(),
            regions: layout.placement().texts(),
            ..alone
        }
    }

    /// Holds what was found to what is asked for.
    fn check(&self, asked: &Identity, path: PathBuf) -> Result<(), IdentityError> {
        if self.engine != asked.engine {
            return Err(IdentityError::Engine {
                path,
                found: self.engine.clone(),
                asked: asked.engine.clone(),
            });
        }
        for (info, asked) in asked.stays().filter(|_| self.has_log) {
            // A log that is older than the option was executed as every engine without it does.
            let found = self.stays().find(|(of, _)| of.name == info.name);
            let found = found.map_or_else(|| info.default.to_string(), |(_, found)| found.to_owned());
            if found != asked {
                let (found, asked) = (info.written(&found), info.written(asked));
                return Err(IdentityError::Option { path, found, asked });
            }
        }
        if self.alone && asked.alone {
            return Ok(());
        }
        if self.owner() != asked.owner() {
            return Err(IdentityError::Owner { path, found: self.owner(), asked: asked.owner() });
        }
        if self.division() != asked.division() {
            return Err(IdentityError::Layout { path, found: self.division(), asked: asked.division() });
        }
        Ok(())
    }

    /// The options that a log must be executed with as it was, and their values.
    fn stays(&self) -> impl Iterator<Item = (&'static OptionInfo, &str)> {
        let others =
            self.options.iter().filter_map(|(name, value)| Some((registry::option(name)?, value.as_str())));
        std::iter::once((&ISOLATION, self.isolation.as_str())).chain(others)
    }

    /// Whose the directory is, in words.
    pub fn owner(&self) -> String {
        if self.alone {
            return "a node on its own".to_owned();
        }
        format!(
            "node {} of cluster '{}' (partition {}, replica {})",
            self.node, self.cluster, self.partition, self.replica
        )
    }

    fn division(&self) -> String {
        let (layout, partitions, threads) = (self.layout, self.starts.len(), self.threads);
        let regions = match &*self.regions {
            [] => String::new(),
            regions => format!(", prefixes of regions = {regions:?}"),
        };
        format!(
            "layout {layout}, partitions = {partitions}, starts = {:?}, threads = {threads}{regions}",
            self.starts
        )
    }

    /// Notes that the log has been made, and what else has changed.
    ///
    /// # Errors
    /// [`IdentityError::Io`].
    pub fn note_log(&mut self, directory: &Path) -> Result<(), IdentityError> {
        if self.has_log && !self.is_changed {
            return Ok(());
        }
        (self.has_log, self.is_changed) = (true, false);
        self.write(directory).map_err(|reason| IdentityError::Io { path: directory.join(FILE), reason })
    }

    /// Notes that the node is to be rebuilt: from now on it is another incarnation, and what it does without is void.
    ///
    /// # Errors
    /// [`IdentityError::Io`]; nothing is changed then.
    pub fn note_rebuild(&mut self, directory: &Path, how: Rebuild) -> Result<(), IdentityError> {
        let Rebuild { without_log, without_receive_journal } = how.and(self.pending());
        let noted = Identity {
            rebuilds: self.rebuilds + 1,
            pending_rebuild: Some(Without { without_log, without_receive_journal }),
            has_log: self.has_log && !without_log,
            ..self.clone()
        };
        noted.write(directory).map_err(|reason| IdentityError::Io { path: directory.join(FILE), reason })?;
        *self = noted;
        Ok(())
    }

    /// The rebuild that is not carried out, if there is one.
    pub fn pending(&self) -> Option<Rebuild> {
        let Without { without_log, without_receive_journal } = self.pending_rebuild?;
        Some(Rebuild { without_log, without_receive_journal })
    }

    /// Notes that the pending rebuild has removed what it does without.
    ///
    /// # Errors
    /// [`IdentityError::Io`].
    pub fn note_removed(&mut self, directory: &Path) -> Result<(), IdentityError> {
        self.pending_rebuild = None;
        self.write(directory).map_err(|reason| IdentityError::Io { path: directory.join(FILE), reason })
    }

    fn write(&self, directory: &Path) -> std::io::Result<()> {
        sealed::write(directory, FILE, self)
    }

    /// Whose its checkpoints are, wherever they are taken to.
    pub fn for_archive(&self, replication: Replication) -> Owner {
        Owner {
            cluster: self.cluster.clone(),
            alone: self.alone,
            engine: self.engine.clone(),
            layout: self.layout,
            starts: self.starts.clone(),
            regions: self.regions.clone(),
            partition: self.partition,
            replication: replication.name().to_owned(),
        }
    }

    /// The identity in the log's segments: the same on all nodes that hold the partition, whose logs are the same.
    pub fn for_log(&self) -> Vec<u8> {
        log_identity(&self.cluster, &self.engine, self.partition)
    }
}

/// The identity in the segments of a partition's log, and in its checkpoints.
pub fn log_identity(cluster: &str, engine: &str, partition: u16) -> Vec<u8> {
    format!("{cluster}/{engine}/{partition}").into_bytes()
}
