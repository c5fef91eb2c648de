//! `ordain log`: look at, verify and trim the log of a stopped node: batches, or, where members agree on them, the records
//! of a member of their group. And abort a transaction in it. The lines of a region's storage node are in module [`storage`].

mod abort;
mod storage;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, Subcommand};
use ordain_engines::registry::{Engine, Family};
use ordain_lab::report;
use ordain_log::{EntryInfo, Item, Kind, Report, SegmentInfo};
use ordain_model::{Batch, Epoch, Gsn, Registry};
use ordain_node::aborts::Aborts;
use ordain_node::identity::Identity;
use ordain_node::procedures;
use ordain_replication::{GroupContent, GroupEntry, GroupJournal, GroupRecord};
use ordain_role::{Directory, NodeId};
use ordain_runtime::{DirLock, FsDirectory, under_way};
use serde_json::{Value, json};

use abort::{AbortArgs, Described};
pub(crate) use storage::is_of_region;

/// The subcommands of `ordain log`.
#[derive(Debug, Subcommand)]
pub enum LogCommand {
    /// Print every entry: file, offset, epoch, transactions, bytes; of a replication group also terms, votes, members; of a
    /// region's storage node lines, ballots, and which storage nodes count. Then which transactions were under way when the
    /// node ended, and which an operator has aborted.
    Inspect(Which),
    /// Check every byte that was written, and that every batch can be executed; change nothing. Of a storage node: every byte, and
    /// that its lines follow each other.
    Verify(Which),
    /// Remove the segments that hold nothing but epochs before one. Without a checkpoint that covers them the
    /// node cannot start any more, so this asks for --yes.
    Trim {
        #[command(flatten)]
        which: Which,
        /// Keep this epoch and all after it.
        #[arg(long, value_name = "EPOCH")]
        before: u64,
        /// Do it.
        #[arg(long)]
        yes: bool,
    },
    /// Abort a transaction that ends the process which executes it: from the next start on it has no effect and is
    /// answered with an error. On a cluster all nodes must be given the same. Nothing else is lost.
    Abort(AbortArgs),
}

/// The flags that name a log.
#[derive(Debug, Args)]
pub struct Which {
    /// The node's data directory.
    #[arg(long, env = "ORDAIN_DATA_DIR", default_value = "ordain-data", value_name = "DIR")]
    data_dir: PathBuf,
    /// Write what was found to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command. True: the log is sound.
///
/// # Errors
/// The log is damaged or cannot be read.
pub fn run(command: &LogCommand) -> anyhow::Result<bool> {
    match command {
        LogCommand::Inspect(which) => walk(which, true),
        LogCommand::Verify(which) => walk(which, false),
        LogCommand::Abort(args) => abort::run(args, &procedures::all()),
        LogCommand::Trim { which, before, yes } => {
            anyhow::ensure!(
                *yes,
                "trimming removes transactions for good, and a node trims its log itself when checkpoints stand for \
                 them: say --yes if you have a copy"
            );
            let (_lock, mut directory) = open(which)?;
            storage::check_trim(&which.data_dir)?;
            anyhow::ensure!(
                !GroupJournal::is_in(&directory)?,
                "this is the log of a replication group, which has to know where its log begins: its nodes trim it \
                 themselves when checkpoints cover it"
            );
            for file in ordain_log::trim(&mut directory, None, Epoch(*before))? {
                println!("removed {file}");
            }
            Ok(true)
        }
    }
}

fn open(which: &Which) -> anyhow::Result<(DirLock, FsDirectory)> {
    // Opening would make a directory where there is none.
    anyhow::ensure!(
        which.data_dir.is_dir(),
        "there is no data directory {}: name it with --data-dir",
        which.data_dir.display()
    );
    let lock = DirLock::acquire(&which.data_dir)?;
    Ok((lock, FsDirectory::open(&which.data_dir)?))
}

/// Prints until the pipe is closed.
struct Printer(bool);

impl Printer {
    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        // `| head` closes the pipe when it has seen enough; that is no failure.
        self.0 = self.0 && writeln!(std::io::stdout(), "{text}").is_ok();
    }
}

/// The entries of a log read so far.
struct Found {
    registry: Arc<Registry>,
    printer: Printer,
    /// Each entry is printed, and kept for the file.
    shows: bool,
    /// The identity of the log, once an entry has it.
    form: Option<Form>,
    records: u64,
    batches: u64,
    transactions: u64,
    /// Of a group.
    journal: GroupJournal,
    rows: Vec<Value>,
    /// Transactions that are to be described, and those that were.
    wanted: BTreeSet<Gsn>,
    described: BTreeMap<Gsn, Described>,
    /// The largest epoch of a batch.
    last_epoch: Epoch,
}

/// The form of a log's entries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Batches.
    Input,
    /// Records of a member of a replication group.
    Group,
}

impl Found {
    fn segment(&mut self, segment: &SegmentInfo) {
        if self.shows {
            self.printer.line(format_args!(
                "{}  first epoch {}  {} bytes",
                segment.file, segment.first_epoch, segment.len
            ));
        }
    }

    fn entry(&mut self, entry: &EntryInfo, payload: &[u8]) -> Result<(), String> {
        // The first record of a member is shorter than any batch, so the first entry tells what all are.
        let is_group =
            || Batch::decode(&self.registry, payload).is_err() && GroupRecord::decode(payload).is_some();
        let form = self.form.unwrap_or_else(|| if is_group() { Form::Group } else { Form::Input });
        self.form = Some(form);
        match form {
            Form::Input => {
                let place = format!("  {:>12}", entry.offset);
                let row = json!({"file": entry.file, "offset": entry.offset});
                self.batch(&place, row, payload)
            }
            Form::Group => self.record(entry, payload),
        }
    }

    fn batch(&mut self, place: &str, mut row: Value, payload: &[u8]) -> Result<(), String> {
        let batch = Batch::decode(&self.registry, payload).map_err(|e| e.to_string())?;
        let count = batch.txns().count();
        self.batches += 1;
        self.transactions += count as u64;
        self.last_epoch = self.last_epoch.max(batch.epoch);
        if self.wanted.iter().any(|gsn| (gsn.epoch(), gsn.partition()) == (batch.epoch, batch.partition)) {
            for (gsn, chunk, txn) in batch.txns().filter(|(gsn, ..)| self.wanted.contains(gsn)) {
                self.described.insert(gsn, Described::of(&self.registry, chunk, txn));
            }
        }
        if self.shows {
            self.printer.line(format_args!(
                "{place}  epoch {}  {count} transactions  {} bytes  time {}",
                batch.epoch,
                payload.len(),
                batch.now
            ));
            row["epoch"] = batch.epoch.0.into();
            row["transactions"] = count.into();
            // Their indices are less than this.
            row["indices"] = batch.total.into();
            row["bytes"] = payload.len().into();
            row["now_ms"] = batch.now.0.into();
            self.rows.push(row);
        }
        Ok(())
    }

    /// A record of a replication group: what it says, then its entries.
    fn record(&mut self, entry: &EntryInfo, payload: &[u8]) -> Result<(), String> {
        let record = GroupRecord::decode(payload).ok_or("it is no record of a replication group")?;
        self.records += 1;
        let (last, _) = self.journal.extent();
        let first = record.entries.first().map_or(last + 1, |first| first.index);
        let skip = self.journal.take(entry.epoch, &record).ok_or("it cannot follow the records before it")?;
        if self.shows {
            let vote = record.vote.map_or("none".to_owned(), |(node, generation)| member(node, generation));
            self.printer.line(format_args!(
                "  {:>12}  record {}  term {}  vote {vote}  agreed on to {}  {} bytes",
                entry.offset,
                entry.epoch,
                record.term,
                record.commit,
                payload.len()
            ));
            if skip > 0 {
                self.printer
                    .line(format_args!("{:>14}  {skip} entries do not count: the log begins later", ""));
            } else if first <= last {
                self.printer.line(format_args!("{:>14}  entries {first} to {last} are replaced", ""));
            }
        }
        for GroupEntry { index, term, content } in record.entries.into_iter().skip(skip) {
            let place = format!("{:>14}  entry {index}  term {term}", "");
            let mut row = json!({
                "file": entry.file, "offset": entry.offset, "record": entry.epoch.0, "index": index, "term": term,
            });
            match content {
                GroupContent::Entry(payload) => self.batch(&place, row, &payload)?,
                _ if !self.shows => {}
                GroupContent::Beginning => {
                    self.printer.line(format_args!("{place}  a leader begins"));
                    row["change"] = "leader".into();
                    self.rows.push(row);
                }
                GroupContent::Change { becomes, node, generation } => {
                    let (who, what) = (member(node, generation), becomes.name());
                    self.printer.line(format_args!("{place}  {who} becomes {what}"));
                    row["change"] = what.into();
                    row["node"] = node.0.into();
                    row["generation"] = generation.into();
                    self.rows.push(row);
                }
            }
        }
        Ok(())
    }
}

/// A member of a group, in words.
fn member(node: NodeId, generation: u32) -> String {
    match generation {
        0 => format!("node {}", node.0),
        generation => format!("node {} (generation {generation})", node.0),
    }
}

/// The result of reading a log.
struct Inspection {
    found: Found,
    report: Report,
}

/// Looks through a log, describes the transactions that are wanted, and changes nothing.
fn look(
    directory: &dyn Directory,
    shows: bool,
    wanted: &BTreeSet<Gsn>,
    registry: &Arc<Registry>,
) -> anyhow::Result<Inspection> {
    let mut found = Found {
        registry: registry.clone(),
        printer: Printer(true),
        shows,
        form: None,
        records: 0,
        batches: 0,
        transactions: 0,
        journal: GroupJournal::of(directory)?,
        rows: Vec::new(),
        wanted: wanted.clone(),
        described: BTreeMap::new(),
        last_epoch: Epoch(0),
    };
    let report: Report = ordain_log::inspect(directory, None, |item| match item {
        Item::Segment(segment) => {
            found.segment(&segment);
            Ok(())
        }
        Item::Entry(entry, payload) if entry.kind == Kind::Data => found.entry(&entry, &payload),
        Item::Entry(..) => Ok(()),
    })?;
    Ok(Inspection { found, report })
}

/// Refuses the directory of an engine whose log holds other entries than batches.
fn check_engine(which: &Which) -> anyhow::Result<()> {
    let Some(identity) = Identity::read(&which.data_dir)? else { return Ok(()) };
    let decides =
        identity.engine.parse::<Engine>().is_ok_and(|engine| engine.info().family == Family::Commit);
    anyhow::ensure!(
        !decides,
        "{} holds the log of engine {}, which logs decisions and no batches, and this command reads batches: to have every byte \
         of it checked start the node; ordain checkpoint verify reads its checkpoints",
        which.data_dir.display(),
        identity.engine
    );
    Ok(())
}

fn walk(which: &Which, shows: bool) -> anyhow::Result<bool> {
    let (_lock, directory) = open(which)?;
    if is_of_region(&which.data_dir)? {
        return storage::walk(which, &directory, shows);
    }
    check_engine(which)?;
    let aborts = Aborts::read(&which.data_dir)?;
    let under_way = under_way::read(&which.data_dir)
        .with_context(|| format!("cannot read {} in {}", under_way::FILE, which.data_dir.display()))?;
    let under_way: Vec<(usize, Gsn)> = under_way.into_iter().map(|(shard, gsn)| (shard, Gsn(gsn))).collect();
    let wanted = under_way.iter().map(|(_, gsn)| *gsn).chain(aborts.iter().map(|(gsn, _)| gsn)).collect();
    let Inspection { found, report } = look(&directory, shows, &wanted, &procedures::all())?;
    let Found { mut printer, form, records, batches, transactions, journal, rows, described, .. } = found;
    let is_group = form == Some(Form::Group);
    anyhow::ensure!(
        !is_group || journal.may_end(),
        "the journal of the replication group does not reach back to where its log begins, after entry {}",
        journal.begins_after().0
    );
    let ((last, commit), (base, base_epoch)) = (journal.extent(), journal.begins_after());
    let starts_after = if is_group { base_epoch } else { report.starts_after };
    let (group, what) = if is_group {
        let entries = last - base;
        let agreed = commit - base;
        let group =
            format!("{records} records, {entries} entries of which {agreed} are known to be agreed on, ");
        (group, "record")
    } else {
        (String::new(), "epoch")
    };
    printer.line(format_args!(
        "sound: {} segments, {group}{batches} batches, {transactions} transactions, {} bytes, last {what} {}",
        report.segments, report.payload_bytes, report.last_epoch
    ));
    if starts_after > Epoch(0) {
        printer
            .line(format_args!("trimmed: a checkpoint has to cover everything up to epoch {starts_after}"));
    }
    if let Some(torn) = &report.torn {
        printer.line(format_args!(
            "torn tail: {} at byte {}: {}; the next start cuts it",
            torn.file, torn.offset, torn.reason
        ));
    }
    let describe = |gsn: &Gsn| match described.get(gsn) {
        Some(what) => what.to_string(),
        None => format!(
            "not in this log: only read, or of partition {}, whose nodes have it in theirs",
            gsn.partition().0
        ),
    };
    for (shard, gsn) in &under_way {
        let what = describe(gsn);
        printer.line(format_args!(
            "under way when the node ended: transaction {gsn} on shard {shard}: {what}; if that is what ended it: ordain log \
             abort {gsn}"
        ));
    }
    for (gsn, aborted) in aborts.iter() {
        let since = if aborted.in_force { "" } else { " from the next start on" };
        let reason = if aborted.reason.is_empty() { "no reason given" } else { &aborted.reason };
        let what = describe(&gsn);
        printer.line(format_args!("aborted by the operator{since}: transaction {gsn}: {what}; {reason}"));
    }
    if which.json.is_some() {
        let mut json = json!({
            "segments": report.segments,
            "batches": batches,
            "transactions": transactions,
            "bytes": report.payload_bytes,
            "starts_after": starts_after.0,
            "torn": report.torn.as_ref().map(|t| json!({"file": t.file, "offset": t.offset, "reason": t.reason})),
            "entries": rows,
            "under_way": under_way.iter().map(|(shard, gsn)| {
                let mut row = transaction(*gsn, described.get(gsn));
                row["shard"] = (*shard).into();
                row
            }).collect::<Vec<Value>>(),
            "aborted": aborts.iter().map(|(gsn, aborted)| {
                let mut row = transaction(gsn, described.get(&gsn));
                row["reason"] = aborted.reason.as_str().into();
                row["in_force"] = aborted.in_force.into();
                row
            }).collect::<Vec<Value>>(),
        });
        json[format!("last_{what}")] = report.last_epoch.0.into();
        if is_group {
            json["records"] = records.into();
            json["last"] = last.into();
            json["commit"] = commit.into();
        }
        report::write_json(which.json.as_deref(), &json)?;
    }
    Ok(true)
}

/// A transaction as JSON: its place, and more if this log has it.
fn transaction(gsn: Gsn, what: Option<&Described>) -> Value {
    json!({
        "transaction": gsn.to_string(),
        "epoch": gsn.epoch().0,
        "partition": gsn.partition().0,
        "index": gsn.index(),
        "procedure": what.map(|what| &what.procedure),
        "keys": what.map(|what| &what.keys),
        "keys_count": what.map(|what| what.keys_count),
        "bytes": what.map(|what| what.bytes),
    })
}
