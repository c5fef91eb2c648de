//! Checkpoints of the commit family, judged by the logs: that each holds the state at its place, and that those of one cut fit
//! together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_checker::{Violation, ViolationKind};
use ordain_checkpoint::{Found, Header, Item, file_name, read};
use ordain_commit::{
    Agreed, AttemptId, CommitEngine, CommitFamily, Content, Decisions, Entry, Holding, Image, Participant,
    Restoring, Stamps, Terms, remembered,
};
use ordain_family::{Family as _, NodeSettings, Opened as _};
use ordain_log::MemoryDirectory;
use ordain_model::{Digest, Epoch, PartitionId, Registry};
use ordain_node::restore::Restored;
use ordain_role::{Address, Bugs, Directory, NodeId};

use super::commit::{Entries, Logs, Records, committed, records};

fn wrong(text: String) -> Violation {
    Violation::new(ViolationKind::WrongState, text)
}

/// Checks every complete checkpoint on the disks, and every cut that all partitions have marked.
pub(super) fn check(
    disks: &[(NodeId, Box<dyn Directory>)],
    logs: &Logs,
    (registry, engine): (&Arc<Registry>, &CommitEngine),
    settings: &dyn Fn(NodeId) -> NodeSettings,
    is_damaged: &dyn Fn(NodeId, Epoch) -> bool,
) -> Result<(), Violation> {
    let mut files: BTreeMap<Epoch, BTreeMap<PartitionId, (&dyn Directory, NodeSettings)>> = BTreeMap::new();
    for (node, disk) in disks {
        let settings = settings(*node);
        let Some(entries) = logs.get(&settings.partition()) else { continue };
        let found = ordain_checkpoint::list(&**disk).map_err(|error| wrong(error.to_string()))?;
        let complete = found.iter().filter(|found| found.is_complete()).map(|found: &Found| found.epoch);
        for place in complete.filter(|place| !is_damaged(*node, *place)) {
            let expected = expected(entries, place, (registry, engine, &settings)).map_err(wrong)?;
            let held = held(&**disk, &settings, place).map_err(wrong)?;
            let parts = [expected.0 == held.0, expected.1 == held.1, expected.2 == held.2];
            if let Some(part) = parts.iter().position(|is_equal| !is_equal) {
                let part = ["the records", "the image", "the outcomes of sessions"][part];
                let name = file_name(place);
                return Err(wrong(format!("node {}: {part} in {name} are not those at its place", node.0)));
            }
            files.entry(place).or_default().insert(settings.partition(), (&**disk, settings.clone()));
        }
    }
    let marks = logs.values().map(marks_of);
    let common = marks.reduce(|all, of| all.intersection(&of).copied().collect()).unwrap_or_default();
    for cut in common {
        fits(logs, cut).map_err(wrong)?;
        if let Some(files) = files.get(&cut).filter(|files| files.len() == logs.len()) {
            restores(logs, cut, (files, engine.stamps())).map_err(wrong)?;
        }
    }
    Ok(())
}

/// Checks that a cluster which is restored from the checkpoints of a cut has what its logs come to before that.
fn restores(
    logs: &Logs,
    cut: Epoch,
    (files, stamps): (&BTreeMap<PartitionId, (&dyn Directory, NodeSettings)>, Stamps),
) -> Result<(), String> {
    let mut parts = BTreeMap::new();
    for (partition, (disk, settings)) in files {
        let header = Header::new(&settings.identity, &settings.topology.layout, *partition, cut);
        let mut part = Restoring::new(cut, settings.topology.layout.placement());
        read(*disk, &header, |item| part.take(&item)).map_err(|error| error.to_string())?;
        parts.insert(*partition, part);
    }
    let mut decided = Decisions::default();
    parts.values().for_each(|part| decided.add(part));
    let before = records_before(logs, cut, stamps);
    for (partition, mut part) in parts {
        part.resolve(&decided);
        let mut restored = BTreeMap::new();
        part.give(|item| -> Result<(), String> {
            if let Item::Record { db, key, cell, .. } = item {
                restored.insert((*db, key.to_vec()), cell.clone());
            }
            Ok(())
        })?;
        if restored != before[&partition] {
            let reason = "is not restored as its log has it before that, with what the others have decided";
            return Err(format!("partition {} at the cut {cut} {reason}", partition.0));
        }
    }
    Ok(())
}

/// The records of each partition before a cut, with what was decided before it.
fn records_before(logs: &Logs, cut: Epoch, stamps: Stamps) -> BTreeMap<PartitionId, Records> {
    let before = |entries: &Entries| entries.range(..cut).map(|(at, entry)| (*at, entry.clone())).collect();
    let before: Logs = logs.iter().map(|(partition, entries)| (*partition, before(entries))).collect();
    let all = committed(&before);
    let of = |entries: &Entries| {
        let mut records = records(entries, &all, stamps);
        records.retain(|_, cell| cell.value.is_some());
        records
    };
    before.iter().map(|(partition, entries)| (*partition, of(entries))).collect()
}

/// Checks that the nodes of a cluster which was restored to a cut start, and have what the logs of the former come to before that.
pub(super) fn check_restored(
    logs: &Logs,
    restored: &Restored,
    disks: Vec<MemoryDirectory>,
    (family, settings, registry): (&CommitFamily, &NodeSettings, &Arc<Registry>),
) -> Result<(), String> {
    let before = records_before(logs, restored.from, family.engine.stamps());
    for (node, mut disk) in (0..).map(NodeId).zip(disks) {
        let settings = NodeSettings { node, life: 1, ..settings.clone() };
        let partition = settings.partition();
        let header = Header::new(&settings.identity, &settings.topology.layout, partition, restored.begins);
        let mut records = Records::new();
        let totals = read(&disk, &header, |item| {
            if let Item::Record { db, key, cell, .. } = item {
                records.insert((db, key.to_vec()), cell.clone());
            }
            Ok(())
        });
        let totals = totals.map_err(|error| format!("node {} of the restored cluster: {error}", node.0))?;
        if records != before[&partition] {
            let cut = restored.from;
            return Err(format!(
                "node {} is restored with other records than there were at the cut {cut}",
                node.0
            ));
        }
        let opened = family.open(Some(&mut disk), &settings, registry);
        let opened = opened.map_err(|error| format!("node {} of the restored cluster: {error}", node.0))?;
        if opened.is_waiting() || opened.digest() != totals.digest {
            return Err(format!(
                "node {} of the restored cluster does not begin with what it was given",
                node.0
            ));
        }
    }
    Ok(())
}

/// What a checkpoint holds: the digest of the records, the image in one piece each, the outcomes of sessions.
type State = (Digest, Vec<Vec<u8>>, Vec<String>);

fn pieces(mut image: Image) -> Vec<Vec<u8>> {
    let mut pieces = vec![image.first().bytes().to_vec()];
    image.remembered.sort_by(|a, b| (a.db, &a.key).cmp(&(b.db, &b.key)));
    pieces.extend(remembered(&mut image.remembered, usize::MAX).map(|piece| piece.bytes().to_vec()));
    while let Some(piece) = image.next(usize::MAX) {
        pieces.push(piece.bytes().to_vec());
    }
    pieces
}

/// The state behind a place, by the log.
fn expected(
    entries: &Entries,
    place: Epoch,
    (registry, engine, settings): (&Arc<Registry>, &CommitEngine, &NodeSettings),
) -> Result<State, String> {
    let mut agreed = Agreed::default();
    let whole = Arc::new(settings.topology.layout.whole());
    let control = (engine.control)(&settings.options, Bugs::NONE);
    let mut all =
        Participant::new(Holding::of_shard(whole, 0), Address::default(), registry.clone(), control);
    for entry in entries.range(..=place).map(|(_, entry)| entry) {
        agreed.apply(entry)?;
        all.apply(entry);
    }
    if agreed.cut() != place {
        return Err(format!("a checkpoint is of {place}, where the log has no mark"));
    }
    let outcomes = agreed.outcomes().iter().map(|outcome| format!("{outcome:?}"));
    let image = Image { remembered: all.remembered(), ..agreed.image() };
    Ok((all.digest(), pieces(image), outcomes.collect()))
}

/// The state that a file holds.
fn held(disk: &dyn Directory, settings: &NodeSettings, place: Epoch) -> Result<State, String> {
    let header = Header::new(&settings.identity, &settings.topology.layout, settings.partition(), place);
    let (mut image, mut outcomes) = (Image::default(), BTreeMap::new());
    let totals = read(disk, &header, |item| {
        match item {
            Item::Input(input) => image.put(settings.topology.layout.placement(), input)?,
            Item::Outcome(outcome) => _ = outcomes.insert(outcome.session, format!("{outcome:?}")),
            Item::Record { .. } | Item::Map(_) => {}
        }
        Ok(())
    });
    let totals = totals.map_err(|error| error.to_string())?;
    Ok((totals.digest, pieces(image), outcomes.into_values().collect()))
}

/// The entries of a log that count.
fn counting(entries: &Entries) -> impl Iterator<Item = &Arc<Entry>> {
    let mut terms = Terms::default();
    entries.values().filter(move |entry| terms.take(entry))
}

fn marks_of(entries: &Entries) -> BTreeSet<Epoch> {
    let marks = counting(entries).filter(|entry| matches!(entry.content, Content::Mark));
    marks.map(|entry| entry.place).collect()
}

/// Checks that what the partitions have before a cut is a whole: an attempt that has committed before it was promised before it by
/// all that take part, and none has its outcome before it whose decision is behind.
fn fits(logs: &Logs, cut: Epoch) -> Result<(), String> {
    let mut committed: BTreeMap<AttemptId, &[PartitionId]> = BTreeMap::new();
    let mut promised: BTreeSet<(PartitionId, AttemptId)> = BTreeSet::new();
    let mut installed: BTreeSet<(PartitionId, AttemptId)> = BTreeSet::new();
    for (partition, entries) in logs {
        for entry in counting(entries).take_while(|entry| entry.place < cut) {
            match &entry.content {
                Content::Commit(commit) => _ = committed.insert(commit.attempt, &commit.participants),
                Content::Prepare(prepare) => _ = promised.insert((*partition, prepare.attempt)),
                // Regions are not restored together.
                Content::Outcome(part, Some(_)) if part.home().partition == *partition => {}
                Content::Outcome(attempt, Some(_)) => _ = installed.insert((*partition, *attempt)),
                _ => {}
            }
        }
    }
    for (attempt, participants) in &committed {
        if let Some(partition) = participants.iter().find(|p| !promised.contains(&(**p, *attempt))) {
            return Err(format!(
                "before the cut at {cut} attempt {attempt} has committed, and partition {} has not promised it",
                partition.0
            ));
        }
    }
    match installed.iter().find(|(_, attempt)| !committed.contains_key(attempt)) {
        Some((partition, attempt)) => Err(format!(
            "before the cut at {cut} partition {} has installed attempt {attempt}, which has not committed",
            partition.0
        )),
        None => Ok(()),
    }
}
