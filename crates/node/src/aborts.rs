//! Transactions that an operator has aborted by their place in the order, as a file of the data directory names them.
//!
//! A transaction that ends the process which executes it ends it again at each start, as it is in the log. `ordain log
//! abort` writes it down here, while the node is stopped, in the data directory of every node. From then on it has no
//! effect: not when the log is replayed, nor when other nodes send it.
//!
//! The file is the node's own and not part of the log, which all members of a replication group have byte for byte. A
//! checkpoint of a later epoch has the transaction as it ended, so a node that begins from that needs no file.
//!
//! A node greets every node that it meets with the content of its file. One that has not come to such a place yet writes it
//! into its own file and starts again: a node that joins, or was away, needs nothing by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ordain_model::{Epoch, Gsn, PartitionId, Stamp};
use ordain_role::{Directory, DiskError};
use serde::{Deserialize, Serialize};

use crate::sealed;

/// The name of the file.
pub const FILE: &str = "operator-aborts.json";
const FORMAT: u32 = 1;
/// The most transactions of a file. Each is looked up before it is executed.
const MOST: usize = 1024;

/// The transactions of one data directory that an operator has aborted, by place in the order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aborts {
    entries: BTreeMap<Gsn, Aborted>,
}

/// A transaction that an operator has aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aborted {
    /// The reason that the operator gave; may be empty.
    pub reason: String,
    /// The node was started with it: other nodes may have got what follows from it.
    pub in_force: bool,
}

/// The reason why aborts cannot be read, written or undone.
#[derive(Debug, thiserror::Error)]
pub enum AbortsError {
    /// The file system refuses it.
    #[error("cannot use {}: {reason}: check its owner and permissions", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        reason: std::io::Error,
    },
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The file is not what was written.
    #[error(
        "{FILE} is damaged: {0}: without it the node would execute what an operator has aborted: restore it from a copy of \
         the data directory, or write it anew with ordain log abort after removing it"
    )]
    Damaged(String),
    /// It is too late to undo it.
    #[error(
        "transaction {0} was aborted before the last start of the node, which has executed what comes after it since: undoing \
         that now would have this node differ from all others"
    )]
    InForce(Gsn),
    /// The transaction is not aborted, so there is nothing to undo.
    #[error("transaction {0} is not aborted here: see ordain log inspect")]
    Unknown(Gsn),
    /// There would be too many.
    #[error("{MOST} transactions are aborted here already, which is the most that there may be")]
    TooMany,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    format: u32,
    aborts: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    epoch: u64,
    partition: u16,
    index: u32,
    reason: String,
    in_force: bool,
}

impl Aborts {
    /// Reads the aborts of a directory; none if there is no file.
    ///
    /// # Errors
    /// [`AbortsError::Disk`], [`AbortsError::Damaged`].
    pub fn of(directory: &dyn Directory) -> Result<Aborts, AbortsError> {
        let found = directory.list()?.into_iter().find(|(file, _)| file == FILE);
        let Some((file, len)) = found else { return Ok(Aborts::default()) };
        Aborts::parse(&directory.read(&file, 0, usize::try_from(len).unwrap_or(usize::MAX))?)
    }

    /// Reads the aborts of a data directory; none if there is no file.
    ///
    /// # Errors
    /// [`AbortsError::Io`], [`AbortsError::Damaged`].
    pub fn read(directory: &Path) -> Result<Aborts, AbortsError> {
        let path = directory.join(FILE);
        match std::fs::read(&path) {
            Ok(bytes) => Aborts::parse(&bytes),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Aborts::default()),
            Err(reason) => Err(AbortsError::Io { path, reason }),
        }
    }

    fn parse(bytes: &[u8]) -> Result<Aborts, AbortsError> {
        Aborts::of_content(sealed::unseal(bytes).map_err(AbortsError::Damaged)?)
    }

    fn of_content(Content { format, aborts }: Content) -> Result<Aborts, AbortsError> {
        if format != FORMAT {
            return Err(AbortsError::Damaged(format!(
                "it has format {format}, and this program reads format {FORMAT}"
            )));
        }
        let entry = |Row { epoch, partition, index, reason, in_force }| {
            let gsn = gsn(epoch, partition, index).ok_or("it names a place that cannot be")?;
            Ok((gsn, Aborted { reason, in_force }))
        };
        let entries: Result<_, &str> = aborts.into_iter().map(entry).collect();
        Ok(Aborts { entries: entries.map_err(|reason| AbortsError::Damaged(reason.to_owned()))? })
    }

    /// Writes the aborts into a data directory, durably.
    ///
    /// # Errors
    /// [`AbortsError::Io`]; the former content is still there then.
    pub fn write(&self, directory: &Path) -> Result<(), AbortsError> {
        sealed::write(directory, FILE, &self.content())
            .map_err(|reason| AbortsError::Io { path: directory.join(FILE), reason })
    }

    /// The bytes of the file.
    ///
    /// # Errors
    /// Never for what can be in it.
    pub fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        sealed::seal(&self.content()).map(String::into_bytes)
    }

    fn content(&self) -> Content {
        let row = |(gsn, aborted): (&Gsn, &Aborted)| Row {
            epoch: gsn.epoch().0,
            partition: gsn.partition().0,
            index: gsn.index(),
            reason: aborted.reason.clone(),
            in_force: aborted.in_force,
        };
        Content { format: FORMAT, aborts: self.entries.iter().map(row).collect() }
    }

    /// The content of the greeting to other nodes; empty if there are no aborts.
    pub fn greeting(&self) -> Vec<u8> {
        if self.entries.is_empty() {
            return Vec::new();
        }
        // A list of numbers and text: it can always be written.
        serde_json::to_vec(&self.content()).unwrap_or_default()
    }

    /// Takes over the aborts of another node's greeting, but for those that are here and those whose epochs `is_past` says to
    /// be executed already: the exchange of digests finds a node that executed them otherwise. Answers what was new.
    ///
    /// # Errors
    /// [`AbortsError::Damaged`] if the content is no such list, [`AbortsError::TooMany`]; nothing is taken over then.
    pub fn take(&mut self, content: &[u8], is_past: impl Fn(Epoch) -> bool) -> Result<Vec<Gsn>, AbortsError> {
        let content =
            serde_json::from_slice(content).map_err(|error| AbortsError::Damaged(error.to_string()))?;
        let (mut all, mut taken) = (self.clone(), Vec::new());
        for (gsn, aborted) in Aborts::of_content(content)?.entries {
            if !is_past(gsn.epoch()) && all.add(gsn, &aborted.reason)? {
                taken.push(gsn);
            }
        }
        *self = all;
        Ok(taken)
    }

    /// Adds a transaction; false if it is there already, with whatever reason.
    ///
    /// # Errors
    /// [`AbortsError::TooMany`].
    pub fn add(&mut self, gsn: Gsn, reason: &str) -> Result<bool, AbortsError> {
        if self.entries.contains_key(&gsn) {
            return Ok(false);
        }
        if self.entries.len() >= MOST {
            return Err(AbortsError::TooMany);
        }
        self.entries.insert(gsn, Aborted { reason: reason.to_owned(), in_force: false });
        Ok(true)
    }

    /// Removes a transaction that the node has not been started with.
    ///
    /// # Errors
    /// [`AbortsError::InForce`], [`AbortsError::Unknown`].
    pub fn undo(&mut self, gsn: Gsn) -> Result<(), AbortsError> {
        match self.entries.get(&gsn) {
            None => Err(AbortsError::Unknown(gsn)),
            Some(aborted) if aborted.in_force => Err(AbortsError::InForce(gsn)),
            Some(_) => {
                self.entries.remove(&gsn);
                Ok(())
            }
        }
    }

    /// Marks all as in force, as the node is about to be started with them; false if they were already.
    pub fn take_effect(&mut self) -> bool {
        let new = self.entries.values_mut().filter(|aborted| !aborted.in_force);
        new.map(|aborted| aborted.in_force = true).count() > 0
    }

    /// All aborted transactions, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Gsn, &Aborted)> {
        self.entries.iter().map(|(gsn, aborted)| (*gsn, aborted))
    }

    /// The stamps of the transactions.
    pub fn stamps(&self) -> Arc<BTreeSet<Stamp>> {
        Arc::new(self.entries.keys().map(|gsn| Stamp::from(*gsn)).collect())
    }
}

/// The place in the order of these parts, if they can be any.
pub fn gsn(epoch: u64, partition: u16, index: u32) -> Option<Gsn> {
    // Partition 255 stands for what is not in the order.
    let can_be = epoch > 0 && epoch < 1 << 40 && partition < 255 && index < Gsn::MAX_BATCH;
    can_be.then(|| Gsn::new(Epoch(epoch), PartitionId(partition), index))
}

#[cfg(test)]
mod tests {
    use ordain_runtime::FsDirectory;

    use super::*;

    #[test]
    fn what_is_aborted_is_read_again_and_can_be_undone_until_the_next_start() {
        let temp = tempfile::tempdir().unwrap();
        let mut aborts = Aborts::read(temp.path()).unwrap();
        assert_eq!(aborts, Aborts::default());
        let [first, second] = [gsn(7, 0, 3).unwrap(), gsn(9, 2, 32_767).unwrap()];
        assert!(aborts.add(second, "").unwrap() && aborts.add(first, "it \"kills\"").unwrap());
        assert!(!aborts.add(first, "another reason").unwrap(), "once is enough");
        aborts.write(temp.path()).unwrap();
        let directory = FsDirectory::open(temp.path()).unwrap();
        assert_eq!(Aborts::of(&directory).unwrap(), aborts);
        assert_eq!(aborts.iter().next().unwrap().1.reason, "it \"kills\"");
        aborts.undo(second).unwrap();
        assert!(matches!(aborts.undo(second), Err(AbortsError::Unknown(_))));
        assert!(aborts.take_effect() && !aborts.take_effect());
        assert!(matches!(aborts.undo(first), Err(AbortsError::InForce(gsn)) if gsn == first));
        aborts.write(temp.path()).unwrap();
        assert_eq!(Aborts::read(temp.path()).unwrap(), aborts);
        assert_eq!(*aborts.stamps(), BTreeSet::from([Stamp::from(first)]));
    }

    #[test]
    fn a_node_takes_over_what_it_has_not_come_to_and_nothing_else() {
        let [past, known, new] = [gsn(4, 0, 1).unwrap(), gsn(6, 1, 1).unwrap(), gsn(6, 0, 2).unwrap()];
        let (mut theirs, mut mine) = (Aborts::default(), Aborts::default());
        assert!(theirs.greeting().is_empty());
        for gsn in [past, known, new] {
            theirs.add(gsn, "theirs").unwrap();
        }
        theirs.take_effect();
        mine.add(known, "mine").unwrap();
        let is_past = |epoch| epoch <= Epoch(5);
        assert_eq!(mine.take(&theirs.greeting(), is_past).unwrap(), [new]);
        let all: Vec<(Gsn, &str)> =
            mine.iter().map(|(gsn, aborted)| (gsn, aborted.reason.as_str())).collect();
        assert_eq!(all, [(new, "theirs"), (known, "mine")]);
        assert!(mine.take_effect(), "it is in force once this node has been started with it");
        assert_eq!(mine.take(&theirs.greeting(), is_past).unwrap(), []);
        assert!(matches!(mine.take(b"{", is_past), Err(AbortsError::Damaged(_))));
        let mut many = Aborts::default();
        (0..MOST as u32).for_each(|index| _ = many.add(gsn(9, 0, index).unwrap(), "").unwrap());
        let before = mine.clone();
        assert!(matches!(mine.take(&many.greeting(), is_past), Err(AbortsError::TooMany)));
        assert_eq!(mine, before);
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let mut aborts = Aborts::default();
        aborts.add(gsn(1, 0, 0).unwrap(), "why").unwrap();
        aborts.write(temp.path()).unwrap();
        let path = temp.path().join(FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[30] ^= 4;
        std::fs::write(&path, &bytes).unwrap();
        let error = Aborts::read(temp.path()).unwrap_err().to_string();
        assert!(error.contains("damaged") && error.contains("checksum"), "{error}");
    }

    #[test]
    fn only_places_in_the_order_can_be_named() {
        assert!(
            [gsn(0, 0, 0), gsn(1, 255, 0), gsn(1, 0, 32_768), gsn(1 << 40, 0, 0)].iter().all(Option::is_none)
        );
        assert_eq!(gsn(5, 1, 2).unwrap().to_string(), "5.1.2");
    }
}
