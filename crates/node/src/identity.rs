//! What a data directory says about itself: who may open it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::engine::Engine;

/// The version of everything in a data directory but the log, which has its own.
const FORMAT: u32 = 1;
const FILE: &str = "ordain.json";

/// The content of `ordain.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The version of the directory.
    pub format: u32,
    /// The engine whose results the directory holds.
    pub engine: String,
    /// Made up at first start; the log's segments carry it.
    pub cluster: String,
    /// The node's number.
    pub node: u16,
    /// The log has been made: from now on a directory without one has lost it.
    pub has_log: bool,
}

/// Why a data directory is refused.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Something about the file system.
    #[error("cannot use data directory {}: {reason}: check its owner and permissions, or choose --data-dir", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system says.
        reason: std::io::Error,
    },
    /// `ordain.json` is not what was written.
    #[error("{}: damaged: {reason}: restore it from a copy of the data directory", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Another format.
    #[error("{}: the data directory has format {found} and this program reads format {FORMAT}: use the program that wrote it", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// Another engine.
    #[error("{}: the data directory belongs to engine '{found}', not '{asked}': start with --engine {found}, or choose another --data-dir", path.display())]
    Engine {
        /// The file.
        path: PathBuf,
        /// Its engine.
        found: String,
        /// The engine asked for.
        asked: String,
    },
}

impl Identity {
    /// Reads the identity of a directory, which must be for `engine`, or gives it one if it has none.
    ///
    /// # Errors
    /// [`IdentityError`]; the directory is unchanged then.
    pub fn open(directory: &Path, engine: Engine) -> Result<Identity, IdentityError> {
        let path = directory.join(FILE);
        let io = |reason| IdentityError::Io { path: path.clone(), reason };
        match fs::read(&path) {
            Ok(bytes) => {
                let damaged = |e: serde_json::Error| IdentityError::Damaged {
                    path: path.clone(),
                    reason: e.to_string(),
                };
                let identity: Identity = serde_json::from_slice(&bytes).map_err(damaged)?;
                if identity.format != FORMAT {
                    return Err(IdentityError::Format { path, found: identity.format });
                }
                if identity.engine != engine.name() {
                    let (found, asked) = (identity.engine, engine.name().into());
                    return Err(IdentityError::Engine { path, found, asked });
                }
                Ok(identity)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let cluster = format!("{:032x}", rand::random::<u128>());
                let (engine, node, has_log) = (engine.name().into(), 0, false);
                let identity = Identity { format: FORMAT, engine, cluster, node, has_log };
                identity.write(directory).map_err(io)?;
                Ok(identity)
            }
            Err(error) => Err(io(error)),
        }
    }

    /// Notes that the log has been made.
    ///
    /// # Errors
    /// [`IdentityError::Io`].
    pub fn note_log(&mut self, directory: &Path) -> Result<(), IdentityError> {
        if self.has_log {
            return Ok(());
        }
        self.has_log = true;
        self.write(directory).map_err(|reason| IdentityError::Io { path: directory.join(FILE), reason })
    }

    /// Written aside and renamed, so that a crash leaves either the old content or the new.
    fn write(&self, directory: &Path) -> std::io::Result<()> {
        let aside = directory.join("ordain.json.new");
        let mut file = fs::File::create(&aside)?;
        file.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
        file.sync_all()?;
        fs::rename(&aside, directory.join(FILE))?;
        fs::File::open(directory)?.sync_all()
    }

    /// What the log's segments carry.
    pub fn for_log(&self) -> Vec<u8> {
        format!("{}/{}/{}", self.cluster, self.engine, self.node).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_stays_and_a_damaged_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = Identity::open(dir.path(), Engine::Calvin).unwrap();
        assert!(!first.has_log);
        first.note_log(dir.path()).unwrap();
        assert_eq!(Identity::open(dir.path(), Engine::Calvin).unwrap(), first);
        let path = dir.path().join(FILE);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("\"format\": 1", "\"format\": 9")).unwrap();
        assert!(matches!(
            Identity::open(dir.path(), Engine::Calvin),
            Err(IdentityError::Format { found: 9, .. })
        ));
        fs::write(&path, text.replace("calvin", "other")).unwrap();
        assert!(matches!(Identity::open(dir.path(), Engine::Calvin), Err(IdentityError::Engine { .. })));
        fs::write(&path, &text[..10]).unwrap();
        assert!(matches!(Identity::open(dir.path(), Engine::Calvin), Err(IdentityError::Damaged { .. })));
    }
}
