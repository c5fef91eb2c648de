//! What a log holds, whichever kind it is: an input log, whose entries are batches that count; or the journal of a
//! replication group, whose records say as they go which of their entries do.

use std::collections::BTreeMap;

use ordain_log::{Item, Kind, LogError, inspect};
use ordain_model::{Batch, Epoch};
use ordain_replication::{GroupContent, GroupJournal, GroupRecord};
use ordain_role::Directory;

/// From where to where a log reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// It holds what comes after this epoch.
    pub begins_after: Epoch,
    /// The last epoch that is known to count.
    pub last: Epoch,
    /// The first epoch of which it has something that may count or not: the members know.
    pub undecided: Option<Epoch>,
}

/// Shows the batches that are known to count, in order, as they stand in the log; changes nothing.
pub fn visit(
    directory: &dyn Directory,
    identity: &[u8],
    show: &mut dyn FnMut(Epoch, Vec<u8>) -> Result<(), String>,
) -> Result<Extent, LogError> {
    if GroupJournal::is_in(directory)? {
        return visit_group(directory, identity, show);
    }
    let report = inspect(directory, Some(identity), |item| match item {
        Item::Entry(entry, payload) if entry.kind == Kind::Data => show(entry.epoch, payload),
        _ => Ok(()),
    })?;
    Ok(Extent { begins_after: report.starts_after, last: report.last_epoch, undecided: None })
}

fn visit_group(
    directory: &dyn Directory,
    identity: &[u8],
    show: &mut dyn FnMut(Epoch, Vec<u8>) -> Result<(), String>,
) -> Result<Extent, LogError> {
    let mut journal = GroupJournal::of(directory)?;
    let begins_after = journal.begins_after().1;
    let mut extent = Extent { begins_after, last: begins_after, undecided: None };
    // What has been met and may still be replaced, by index.
    let mut open: BTreeMap<u64, GroupContent> = BTreeMap::new();
    inspect(directory, Some(identity), |item| {
        let Item::Entry(entry, payload) = item else { return Ok(()) };
        if entry.kind != Kind::Data {
            return Ok(());
        }
        let record = GroupRecord::decode(&payload).ok_or("it is no record of a replication group")?;
        let skip = journal.take(entry.epoch, &record).ok_or("it cannot follow the records before it")?;
        for entry in record.entries.into_iter().skip(skip) {
            open.split_off(&entry.index);
            open.insert(entry.index, entry.content);
        }
        let (last, commit) = journal.extent();
        // The last of them have been replaced by others that are to come.
        open.split_off(&(last + 1));
        while let Some(first) = open.first_entry().filter(|first| *first.key() <= commit) {
            if let GroupContent::Entry(bytes) = first.remove() {
                let epoch = Batch::epoch_of(&bytes).ok_or("a batch without an epoch")?;
                extent.last = epoch;
                show(epoch, bytes)?;
            }
        }
        Ok(())
    })?;
    extent.undecided = open.values().find_map(|content| match content {
        GroupContent::Entry(bytes) => Batch::epoch_of(bytes),
        _ => None,
    });
    Ok(extent)
}
