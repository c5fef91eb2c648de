//! Which checkpoints there are in a directory.

use std::collections::BTreeMap;

use ordain_model::Epoch;
use ordain_role::{Directory, DiskError};

use crate::format::{Seal, file_name, parse_name, seal_name};

/// A checkpoint of which there is a file, or a seal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The checkpoint's epoch.
    pub epoch: Epoch,
    /// The length of the file with the state, bytes; `None` if there is none.
    pub bytes: Option<u64>,
    /// The seal, if there is one and it is whole.
    pub seal: Option<Seal>,
    /// The files that there are.
    pub files: Vec<String>,
}

impl Found {
    /// Tells whether the checkpoint is complete: it was written to its end, and every partition had one. Damage since
    /// then only [reading](crate::read) finds.
    pub fn is_complete(&self) -> bool {
        self.bytes.is_some() && self.seal.is_some()
    }
}

/// The checkpoints of a directory, the oldest first. Looks into seals only.
///
/// # Errors
/// [`DiskError`].
pub fn list(directory: &dyn Directory) -> Result<Vec<Found>, DiskError> {
    let mut found: BTreeMap<Epoch, Found> = BTreeMap::new();
    for (file, len) in directory.list()? {
        let Some((epoch, is_seal)) = parse_name(&file) else { continue };
        let entry = found.entry(epoch).or_insert(Found { epoch, bytes: None, seal: None, files: Vec::new() });
        if is_seal {
            let seal = Seal::decode(&directory.read(&seal_name(epoch), 0, SEAL_MAX)?);
            entry.seal = seal.filter(|seal| seal.epoch == epoch);
        } else {
            debug_assert_eq!(file, file_name(epoch));
            entry.bytes = Some(len);
        }
        entry.files.push(file);
    }
    Ok(found.into_values().collect())
}

/// More than a seal has.
const SEAL_MAX: usize = 64;
