//! The log of a region's storage node: lines, the promise, and which storage nodes count.

use std::path::Path;

use ordain_engines::registry::Engine;
use ordain_lab::report;
use ordain_log::{EntryInfo, Item, Kind, Report};
use ordain_node::identity::Identity;
use ordain_replication::{
    Ballot, Content, StorageConfiguration, StorageJournal, StorageMember, StorageRecord, Written, epoch_of,
};
use ordain_role::Directory;
use serde_json::{Value, json};

use super::{Printer, Which};

/// Tells whether a directory is of a node of a region with storage nodes.
pub(crate) fn is_of_region(data_dir: &Path) -> anyhow::Result<bool> {
    let Some(identity) = Identity::read(data_dir)? else { return Ok(false) };
    let has_regions = identity.engine.parse::<Engine>().is_ok_and(|engine| engine.can().has_regions);
    Ok(has_regions && !identity.alone)
}

/// Refuses to trim the log of a storage node.
pub(super) fn check_trim(data_dir: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(
        !is_of_region(data_dir)?,
        "this is the log of a region's storage node, which has to know where its log begins: it trims it itself when \
         checkpoints cover it"
    );
    Ok(())
}

/// The lines of a log read so far.
struct Found {
    printer: Printer,
    /// Each line is printed, and kept for the file.
    shows: bool,
    journal: StorageJournal,
    records: u64,
    entries: u64,
    rows: Vec<Value>,
}

impl Found {
    /// A record: the promise, then its lines.
    fn record(&mut self, at: &EntryInfo, payload: &[u8]) -> Result<(), String> {
        let record = StorageRecord::decode(payload).ok_or("it is no record of a storage node")?;
        self.records += 1;
        let (last, _) = self.journal.extent();
        let skip = self.journal.take(at.epoch, &record).ok_or("it cannot follow the records before it")?;
        let StorageRecord { promised, durable, lines, .. } = record;
        if self.shows {
            self.printer.line(format_args!(
                "  {:>12}  record {}  promised {}  durable to line {durable}  {} bytes",
                at.offset,
                at.epoch,
                ballot(promised),
                payload.len()
            ));
            let first = lines.first().map_or(last + 1, |(first, _)| *first);
            if skip > 0 {
                self.printer
                    .line(format_args!("{:>14}  {skip} lines do not count: the log begins later", ""));
            } else if first <= last {
                self.printer.line(format_args!("{:>14}  lines {first} to {last} are replaced", ""));
            }
        }
        lines.into_iter().skip(skip).try_for_each(|(lsn, line)| self.line(at, lsn, &line))
    }

    fn line(&mut self, at: &EntryInfo, lsn: u64, line: &Written) -> Result<(), String> {
        let Written { ballot: of, content } = line;
        let mut row = json!({
            "file": at.file, "offset": at.offset, "record": at.epoch.0, "line": lsn, "ballot": of.0,
        });
        let text = match content {
            Content::Entry(bytes) => {
                let place =
                    epoch_of(bytes).ok_or_else(|| format!("line {lsn} is an entry and has no place"))?;
                self.entries += 1;
                (row["kind"], row["place"], row["bytes"]) =
                    ("entry".into(), place.0.into(), bytes.len().into());
                format!("entry of place {place}  {} bytes", bytes.len())
            }
            Content::Begin => {
                row["kind"] = "begin".into();
                "a server begins to lead".to_owned()
            }
            Content::Configuration(configuration) => {
                (row["kind"], row["configuration"]) = ("configuration".into(), to_json(configuration));
                in_words(configuration)
            }
        };
        if self.shows {
            self.printer.line(format_args!("{:>14}  line {lsn}  ballot {}  {text}", "", ballot(*of)));
            self.rows.push(row);
        }
        Ok(())
    }
}

/// A ballot: its number, and the rank of the server that owns it.
fn ballot(of: Ballot) -> String {
    match of.owner() {
        Some(rank) => format!("{} of server {rank}", of.0),
        None => "none".to_owned(),
    }
}

/// Storage nodes in their generations.
fn members(of: &[StorageMember]) -> String {
    let one = |member: &StorageMember| format!("node {} (generation {})", member.node.0, member.generation);
    of.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn in_words(configuration: &StorageConfiguration) -> String {
    let StorageConfiguration { counted, required, before, is_first: _ } = configuration;
    if counted.is_empty() {
        return "no storage node counts yet".to_owned();
    }
    let required: Vec<String> = required.iter().map(|node| node.0.to_string()).collect();
    let before = if before.is_empty() { String::new() } else { format!(", no more {}", members(before)) };
    format!("{} count{before}; with full nodes {} are needed", members(counted), required.join(", "))
}

fn to_json(configuration: &StorageConfiguration) -> Value {
    let members = |of: &[StorageMember]| {
        of.iter().map(|of| json!({"node": of.node.0, "generation": of.generation})).collect::<Vec<Value>>()
    };
    json!({
        "counted": members(&configuration.counted),
        "before": members(&configuration.before),
        "required": configuration.required.iter().map(|node| node.0).collect::<Vec<u16>>(),
    })
}

/// Looks through the log of a storage node, and changes nothing.
pub(super) fn walk(which: &Which, directory: &dyn Directory, shows: bool) -> anyhow::Result<bool> {
    anyhow::ensure!(
        directory.list()?.iter().any(|(file, _)| file.starts_with("log-")),
        "{} has no log: it is of a database server of a region, whose log its storage nodes keep: name the directory of one of \
         these",
        which.data_dir.display()
    );
    let journal = StorageJournal::of(directory)?;
    let mut found =
        Found { printer: Printer(true), shows, journal, records: 0, entries: 0, rows: Vec::new() };
    let report: Report = ordain_log::inspect(directory, None, |item| match item {
        Item::Segment(segment) if shows => {
            found.printer.line(format_args!(
                "{}  first record {}  {} bytes",
                segment.file, segment.first_epoch, segment.len
            ));
            Ok(())
        }
        Item::Entry(entry, payload) if entry.kind == Kind::Data => found.record(&entry, &payload),
        Item::Segment(_) | Item::Entry(..) => Ok(()),
    })?;
    let Found { mut printer, journal, records, entries, rows, .. } = found;
    let ((last, durable), (base, epoch)) = (journal.extent(), journal.begins_after());
    anyhow::ensure!(
        records == 0 || journal.may_end(),
        "the journal of the storage node does not reach back to where its log begins, after line {}, or was written by a version \
         without generations",
        base.lsn
    );
    printer.line(format_args!(
        "sound: {} segments, {records} records, lines {} to {last} of which those to {durable} are known to be durable, {entries} \
         entries written, {} bytes",
        report.segments,
        base.lsn + 1,
        report.payload_bytes
    ));
    let (configuration, configured) = &journal.configuration;
    printer.line(format_args!(
        "generation {}, promised ballot {}",
        journal.generation,
        ballot(journal.promised)
    ));
    printer.line(format_args!("line {configured}: {}", in_words(configuration)));
    if base.lsn > 0 {
        printer.line(format_args!("trimmed: a checkpoint has to cover everything up to place {epoch}"));
    }
    if let Some(torn) = &report.torn {
        printer.line(format_args!(
            "torn tail: {} at byte {}: {}; the next start cuts it",
            torn.file, torn.offset, torn.reason
        ));
    }
    if which.json.is_some() {
        let json = json!({
            "segments": report.segments,
            "records": records,
            "first_line": base.lsn + 1,
            "last_line": last,
            "durable_line": durable,
            "entries": entries,
            "bytes": report.payload_bytes,
            "starts_after": epoch.0,
            "generation": journal.generation,
            "promised": journal.promised.0,
            "configuration": to_json(configuration),
            "torn": report.torn.as_ref().map(|t| json!({"file": t.file, "offset": t.offset, "reason": t.reason})),
            "lines": rows,
        });
        report::write_json(which.json.as_deref(), &json)?;
    }
    Ok(true)
}
