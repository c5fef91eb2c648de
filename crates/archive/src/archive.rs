//! What is asked of a store: each thing once, by names below a place in it.

use std::io::Read;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use tokio::runtime::Runtime;

use crate::location::{Environment, Location};
use crate::stored::Reader;
use crate::work::Content;

/// The length of a part of an upload. All but the last are equally long: some services want it so.
const PART: u64 = 8 << 20;
/// The most parts that an upload may have.
const PARTS_MAX: u64 = 9_000;

/// The failure of an archive. Everything that counted before still counts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// The store cannot be reached, refuses, or has not got it.
    #[error("cannot {what}: {reason}")]
    Store {
        /// The attempt.
        what: String,
        /// The store's message.
        reason: String,
    },
    /// Something of this machine.
    #[error("{0}")]
    Local(String),
    /// The object is not what was written, or is another cluster's.
    #[error("{name}: {reason}")]
    Unusable {
        /// The object.
        name: String,
        /// The difference.
        reason: String,
    },
}

impl ArchiveError {
    pub(crate) fn of(what: String, error: &object_store::Error) -> ArchiveError {
        // The library's errors show only the outermost cause.
        let mut reason = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(error) = source {
            let said = error.to_string();
            if !reason.contains(&said) {
                reason = format!("{reason}: {said}");
            }
            source = error.source();
        }
        ArchiveError::Store { what, reason: reason.split_whitespace().collect::<Vec<_>>().join(" ") }
    }
}

/// An object that there is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Object {
    /// The last part of its name.
    pub name: String,
    /// The length, bytes.
    pub bytes: u64,
}

/// A store, and the place in it below which everything is.
#[derive(Clone, Debug)]
pub struct Archive {
    location: Location,
    store: Arc<dyn ObjectStore>,
    root: Path,
    part: u64,
}

impl Archive {
    /// Makes a client of the store, which connects at its first use.
    ///
    /// # Errors
    /// [`ArchiveError::Store`]: the environment's values for it cannot be used.
    pub fn open(location: &Location, environment: &Environment) -> Result<Archive, ArchiveError> {
        let (store, root) = location.open(environment)?;
        Ok(Archive { location: location.clone(), store, root, part: PART })
    }

    /// Sets the length of parts, for tests.
    #[must_use]
    pub fn with_part(self, part: u64) -> Archive {
        Archive { part, ..self }
    }

    /// The store's location.
    pub fn location(&self) -> &Location {
        &self.location
    }

    fn path(&self, name: &str) -> Path {
        let parts = name.split('/').filter(|part| !part.is_empty());
        parts.fold(self.root.clone(), |path, part| path.join(part))
    }

    fn failed<T>(&self, what: &str, name: &str, result: object_store::Result<T>) -> Result<T, ArchiveError> {
        result.map_err(|error| ArchiveError::of(format!("{what} {}/{name}", self.location), &error))
    }

    /// The objects right below a place, and the places below it; both in order.
    ///
    /// # Errors
    /// [`ArchiveError::Store`].
    pub async fn list(&self, under: &str) -> Result<(Vec<Object>, Vec<String>), ArchiveError> {
        let path = self.path(under);
        let listed = self.store.list_with_delimiter(Some(&path)).await;
        let found = self.failed("list", under, listed)?;
        let last = |path: &Path| path.filename().unwrap_or_default().to_owned();
        let objects = found.objects.iter();
        let mut objects: Vec<Object> =
            objects.map(|meta| Object { name: last(&meta.location), bytes: meta.size }).collect();
        let mut places: Vec<String> = found.common_prefixes.iter().map(last).collect();
        objects.sort();
        places.sort();
        Ok((objects, places))
    }

    /// Puts a small object there, in the place of one of that name.
    ///
    /// # Errors
    /// [`ArchiveError::Store`].
    pub async fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), ArchiveError> {
        let put = self.store.put(&self.path(name), PutPayload::from(bytes)).await;
        self.failed("write", name, put).map(drop)
    }

    /// Uploads a file, part by part, and answers its length. The object is there when this returns, and not before.
    ///
    /// # Errors
    /// [`ArchiveError::Store`], and [`ArchiveError::Local`] if the file cannot be read.
    pub async fn upload(&self, name: &str, mut content: Content) -> Result<u64, ArchiveError> {
        let local =
            |error: std::io::Error| ArchiveError::Local(format!("cannot read what is to be {name}: {error}"));
        let len = content.len();
        let part = self.part.max(len.div_ceil(PARTS_MAX));
        let mut next = || -> Result<Vec<u8>, ArchiveError> {
            let mut bytes = Vec::new();
            Read::by_ref(&mut content).take(part).read_to_end(&mut bytes).map_err(local)?;
            Ok(bytes)
        };
        if len <= part {
            let bytes = next()?;
            let len = bytes.len() as u64;
            return self.put(name, bytes).await.map(|()| len);
        }
        let begun = self.store.put_multipart(&self.path(name)).await;
        let mut upload = self.failed("write", name, begun)?;
        let mut sent = 0;
        let all = async {
            loop {
                let bytes = next()?;
                if bytes.is_empty() {
                    break;
                }
                sent += bytes.len() as u64;
                self.failed("write", name, upload.put_part(PutPayload::from(bytes)).await)?;
            }
            self.failed("write", name, upload.complete().await).map(drop)
        };
        if let Err(error) = all.await {
            // Stores that charge for unfinished parts have rules for those that are left behind.
            let _ = upload.abort().await;
            return Err(error);
        }
        Ok(sent)
    }

    /// Reads so much of an object from there on; less at its end alone.
    ///
    /// # Errors
    /// [`ArchiveError::Store`], also if there is no such object.
    pub async fn read(&self, name: &str, offset: u64, len: u64) -> Result<Vec<u8>, ArchiveError> {
        let read = self.store.get_range(&self.path(name), offset..offset.saturating_add(len)).await;
        self.failed("read", name, read).map(Vec::from)
    }

    /// Reads a small object.
    ///
    /// # Errors
    /// [`ArchiveError::Store`].
    pub async fn get(&self, name: &str) -> Result<Vec<u8>, ArchiveError> {
        let got = self.failed("read", name, self.store.get(&self.path(name)).await)?;
        self.failed("read", name, got.bytes().await).map(Vec::from)
    }

    /// Removes an object; that it is gone already is well.
    ///
    /// # Errors
    /// [`ArchiveError::Store`].
    pub async fn remove(&self, name: &str) -> Result<(), ArchiveError> {
        match self.store.delete(&self.path(name)).await {
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            removed => self.failed("remove", name, removed),
        }
    }
}

/// An archive whose calls block: for the command line.
#[derive(Debug)]
pub struct Blocking {
    runtime: Runtime,
    archive: Archive,
}

impl Blocking {
    /// Makes a client as [`Archive::open`].
    ///
    /// # Errors
    /// [`ArchiveError`].
    pub fn open(location: &Location, environment: &Environment) -> Result<Blocking, ArchiveError> {
        Ok(Blocking { runtime: runtime()?, archive: Archive::open(location, environment)? })
    }

    /// The store's location.
    pub fn location(&self) -> &Location {
        self.archive.location()
    }
}

impl Reader for Blocking {
    fn list(&self, under: &str) -> Result<(Vec<Object>, Vec<String>), ArchiveError> {
        self.runtime.block_on(self.archive.list(under))
    }

    fn read(&self, name: &str, offset: u64, len: u64) -> Result<Vec<u8>, ArchiveError> {
        self.runtime.block_on(self.archive.read(name, offset, len))
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, ArchiveError> {
        self.runtime.block_on(self.archive.get(name))
    }
}

/// A runtime that works on the thread of the caller.
pub(crate) fn runtime() -> Result<Runtime, ArchiveError> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
    built.map_err(|error| ArchiveError::Local(format!("cannot set up input and output: {error}")))
}
