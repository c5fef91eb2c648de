//! The checkpoints of a partition in an archive, read as if they were files of a directory.
//!
//! So whoever reads a checkpoint reads it in the same way wherever it is, and refuses it for the same reasons.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use ordain_checkpoint::file_name;
use ordain_model::Epoch;
use ordain_role::{Directory, DiskError, DiskOp, NodeId};

use crate::archive::{ArchiveError, Object};
use crate::names::{Kind, Name};
use crate::seal::Sealed;

/// The bytes asked for at a time: a checkpoint is read from its beginning to its end.
const AHEAD: u64 = 8 << 20;

/// Longest seal that is read.
const SEAL_MAX: u64 = 1 << 20;

/// The requests of a restore to a store. Each blocks until it is answered.
pub trait Reader {
    /// Lists the objects right below a place, and the places below it; both in order.
    ///
    /// # Errors
    /// [`ArchiveError::Store`].
    fn list(&self, under: &str) -> Result<(Vec<Object>, Vec<String>), ArchiveError>;

    /// Reads so much of an object from there on; less at its end alone.
    ///
    /// # Errors
    /// [`ArchiveError::Store`], also if there is no such object.
    fn read(&self, name: &str, offset: u64, len: u64) -> Result<Vec<u8>, ArchiveError>;

    /// Reads a small object.
    ///
    /// # Errors
    /// [`ArchiveError::Store`].
    fn get(&self, name: &str) -> Result<Vec<u8>, ArchiveError>;
}

/// A partition's part of an archive.
pub struct StoredCheckpoints<'a> {
    archive: &'a dyn Reader,
    /// The place where its objects are.
    place: String,
    /// The states in the store, by epoch; of each that of one node.
    states: BTreeMap<Epoch, (Name, u64)>,
    /// The part that is here of the object that is being read.
    ahead: RefCell<Ahead>,
}

#[derive(Debug, Default)]
struct Ahead {
    file: String,
    offset: u64,
    bytes: Vec<u8>,
}

/// A checkpoint that there is something of.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The checkpoint's epoch.
    pub epoch: Epoch,
    /// The node that it was copied from.
    pub node: NodeId,
    /// The length of the state, bytes, if it is there.
    pub bytes: Option<u64>,
    /// The seal, or why it cannot be used; `None`: there is no seal.
    pub sealed: Option<Result<Sealed, String>>,
}

impl Kept {
    /// The seal, if the checkpoint counts by it.
    ///
    /// # Errors
    /// The reason why it does not, in words.
    pub fn sound(&self) -> Result<&Sealed, String> {
        let sealed = match &self.sealed {
            None => return Err("it was never finished: there is no seal".to_owned()),
            Some(Err(reason)) => return Err(format!("its seal cannot be used: {reason}")),
            Some(Ok(sealed)) => sealed,
        };
        match self.bytes {
            None => Err("its state is gone".to_owned()),
            Some(bytes) if bytes != sealed.bytes => {
                Err(format!("its state has {bytes} bytes, and had {}", sealed.bytes))
            }
            Some(_) if sealed.epoch != self.epoch.0 => Err("its seal is of another epoch".to_owned()),
            Some(_) => Ok(sealed),
        }
    }
}

/// Lists the checkpoints below a place, the oldest first, and those of one epoch by node.
///
/// # Errors
/// The store cannot be reached.
pub fn kept(archive: &dyn Reader, place: &str) -> Result<Vec<Kept>, ArchiveError> {
    let mut found: BTreeMap<(Epoch, NodeId), Kept> = BTreeMap::new();
    for Object { name, bytes } in archive.list(place)?.0 {
        let Some(Name { epoch, node, kind }) = Name::parse(&name) else { continue };
        let entry = found.entry((epoch, node)).or_insert(Kept { epoch, node, bytes: None, sealed: None });
        match kind {
            Kind::State => entry.bytes = Some(bytes),
            Kind::Seal if bytes > SEAL_MAX => entry.sealed = Some(Err(format!("it has {bytes} bytes"))),
            Kind::Seal => entry.sealed = Some(Sealed::decode(&archive.get(&format!("{place}/{name}"))?)),
        }
    }
    Ok(found.into_values().collect())
}

impl fmt::Debug for StoredCheckpoints<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredCheckpoints").field("place", &self.place).finish_non_exhaustive()
    }
}

impl<'a> StoredCheckpoints<'a> {
    /// The checkpoints below a place, of which these count.
    pub fn new<'k>(
        archive: &'a dyn Reader,
        place: &str,
        kept: impl Iterator<Item = &'k Kept>,
    ) -> StoredCheckpoints<'a> {
        let states = kept.filter_map(|kept| {
            let name = Name { epoch: kept.epoch, node: kept.node, kind: Kind::State };
            Some((kept.epoch, (name, kept.bytes?)))
        });
        StoredCheckpoints {
            archive,
            place: place.to_owned(),
            states: states.collect(),
            ahead: RefCell::default(),
        }
    }

    fn find(&self, file: &str) -> Option<(Name, u64)> {
        self.states.iter().find(|(epoch, _)| file_name(**epoch) == file).map(|(_, found)| *found)
    }
}

impl Directory for StoredCheckpoints<'_> {
    fn list(&self) -> Result<Vec<(String, u64)>, DiskError> {
        Ok(self.states.iter().map(|(epoch, (_, len))| (file_name(*epoch), *len)).collect())
    }

    fn read(&self, file: &str, offset: u64, len: usize) -> Result<Vec<u8>, DiskError> {
        let failed = |reason: String| DiskError::Io { file: file.to_owned(), reason };
        let (name, size) = self.find(file).ok_or_else(|| failed("there is no such checkpoint".to_owned()))?;
        let end = offset.saturating_add(len as u64).min(size);
        if offset >= end {
            return Ok(Vec::new());
        }
        let mut ahead = self.ahead.borrow_mut();
        let is_here =
            ahead.file == file && ahead.offset <= offset && end <= ahead.offset + ahead.bytes.len() as u64;
        if !is_here {
            let want = (end - offset).max(AHEAD).min(size - offset);
            let object = format!("{}/{name}", self.place);
            let bytes =
                self.archive.read(&object, offset, want).map_err(|error| failed(error.to_string()))?;
            if (bytes.len() as u64) < want {
                return Err(failed(format!("{} bytes came of {want}", bytes.len())));
            }
            *ahead = Ahead { file: file.to_owned(), offset, bytes };
        }
        let from = (offset - ahead.offset) as usize;
        Ok(ahead.bytes[from..from + (end - offset) as usize].to_vec())
    }

    fn apply(&mut self, _: &DiskOp) -> Result<(), DiskError> {
        let reason = "an archive is only read here".to_owned();
        Err(DiskError::Io { file: self.place.clone(), reason })
    }
}
