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
}

/// Why a data directory is refused.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Something about the file system.
    #[error("cannot use data directory {}: {source}: check its owner and permissions, or choose --data-dir", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
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
        let io = |source| IdentityError::Io { path: path.clone(), source };
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
                let identity = Identity { format: FORMAT, engine: engine.name().into(), cluster, node: 0 };
                let text = serde_json::to_string_pretty(&identity).map_err(|e| io(e.into()))?;
                // Written aside and renamed, so that a crash leaves either none or all of it.
                let aside = directory.join("ordain.json.new");
                let mut file = fs::File::create(&aside).map_err(io)?;
                file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io)?;
                fs::rename(&aside, &path).map_err(io)?;
                fs::File::open(directory).and_then(|d| d.sync_all()).map_err(io)?;
                Ok(identity)
            }
            Err(error) => Err(io(error)),
        }
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
        let first = Identity::open(dir.path(), Engine::Calvin).unwrap();
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
