//! Reads of other regions, which may be of the past: all that one transaction has read of a region was there at one moment of that
//! region's log (regions.md, sections 1 and 8). They are left out of the check of real time.

use std::collections::{BTreeMap, BTreeSet};

use ordain_checker::dependencies::history::{Op, Txn};
use ordain_checker::history::{Answer, History, Request, RequestId};
use ordain_checker::{Violation, ViolationKind};
use ordain_commit::{Content, Terms};
use ordain_model::{Epoch, PartitionId};
use ordain_workload::append;

use super::appends::{self, list_of};
use super::commit::{Entries, Logs};
use super::{mixed, registers};

/// The contents of a list or of a register, each with the place from which on it was that.
type Contents = Vec<(Epoch, Seen)>;

/// The content of a list or of a register.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    List(Vec<u64>),
    Register(Option<u64>),
}

/// The region of each list and register, and what it held when.
#[derive(Debug, Default)]
struct Past(BTreeMap<u64, (PartitionId, Contents)>);

impl Past {
    fn of(logs: &Logs) -> Result<Past, String> {
        let mut past = Past::default();
        for (region, entries) in logs {
            past.note(*region, entries)?;
        }
        Ok(past)
    }

    fn note(&mut self, region: PartitionId, entries: &Entries) -> Result<(), String> {
        let (mut terms, mut promised) = (Terms::default(), BTreeMap::new());
        for entry in entries.values().filter(|entry| terms.take(entry)) {
            let writes = match &entry.content {
                Content::Commit(commit) => &commit.writes,
                Content::Prepare(prepare) => {
                    promised.insert(prepare.attempt, &prepare.writes);
                    continue;
                }
                Content::Outcome(part, Some(_)) => promised.remove(part).ok_or("an outcome of no promise")?,
                _ => continue,
            };
            for write in writes {
                let value = write.cell.value.as_ref();
                let (key, seen) = if write.db == append::DB {
                    let list = list_of(&write.key).ok_or("a key of no list")?;
                    (list, Seen::List(mixed::list_values(value).ok_or("a list of something else")?))
                } else if write.db == registers::DB {
                    let register = registers::register_of(&write.key).ok_or("a key of no register")?;
                    let value = registers::value_of(value).ok_or("a register of something else")?;
                    (register, Seen::Register(Some(value)))
                } else {
                    continue;
                };
                self.0.entry(key).or_insert((region, Vec::new())).1.push((entry.place, seen));
            }
        }
        Ok(())
    }

    /// The places of a region's log behind which a list or register held something, as ranges: from, and the first after.
    fn moments(&self, key: u64, seen: &Seen) -> Option<(PartitionId, Vec<(Epoch, Epoch)>)> {
        let (region, contents) = self.0.get(&key)?;
        let nothing = match seen {
            Seen::List(_) => Seen::List(Vec::new()),
            Seen::Register(_) => Seen::Register(None),
        };
        let from = std::iter::once(&(Epoch(0), nothing)).chain(contents).cloned().collect::<Contents>();
        let until = from.iter().skip(1).map(|(place, _)| *place).chain([Epoch::MAX]);
        let all = from.iter().zip(until).filter(|((_, held), _)| held == seen);
        Some((*region, all.map(|((place, _), until)| (*place, until)).collect()))
    }
}

/// Checks the stale reads of a history, each known by its request, and answers the history without them.
///
/// # Errors
/// Some that are of no moment.
pub(super) fn check(
    history: &History,
    logs: &Logs,
    is_stale: &dyn Fn(&Request) -> bool,
) -> Result<History, Violation> {
    let stale = history.requests().filter(|(_, request)| is_stale(request));
    let stale: BTreeSet<RequestId> = stale.map(|(id, _)| id).collect();
    let past = Past::of(logs).map_err(|text| Violation::new(ViolationKind::WrongState, text))?;
    let answers = history.answers().filter(|(id, ..)| stale.contains(id));
    for (id, _, answer) in answers {
        if let Some(txn) = appends::committed(answer).filter(|txn: &Txn| !txn.is_update()) {
            check_one(&past, &txn).map_err(|text| Violation::new(ViolationKind::WrongAnswer, text).of(id))?;
        }
    }
    Ok(without(history, &stale))
}

/// A history that has no answers of some requests.
pub(super) fn without(history: &History, these: &BTreeSet<RequestId>) -> History {
    let mut rest = history.clone();
    rest.forget(|id, _: &Answer| these.contains(&id));
    rest
}

/// Checks that what a transaction has read of each region was there at one moment.
fn check_one(past: &Past, txn: &Txn) -> Result<(), String> {
    let mut common: BTreeMap<PartitionId, Vec<(Epoch, Epoch)>> = BTreeMap::new();
    for op in &txn.ops {
        let (key, seen) = match op {
            Op::Read { key, values } => (*key, Seen::List(values.clone())),
            Op::Get { key, value } => (*key, Seen::Register(*value)),
            Op::Append { .. } | Op::Put { .. } => continue,
        };
        // What nobody has written is empty at any moment.
        let Some((region, moments)) = past.moments(key, &seen) else {
            let is_empty = matches!(&seen, Seen::Register(None)) || seen == Seen::List(Vec::new());
            if is_empty {
                continue;
            }
            return Err(format!("{key} was never written, and is read as {seen:?}"));
        };
        let together = match common.get(&region) {
            None => moments,
            Some(before) => before
                .iter()
                .flat_map(|(from, until)| {
                    moments.iter().map(move |(other, end)| (*from.max(other), *until.min(end)))
                })
                .filter(|(from, until)| from < until)
                .collect(),
        };
        if together.is_empty() {
            return Err(format!(
                "transaction {} has read {seen:?} of {key}, which region {region} never held together with what it has read there before",
                txn.base
            ));
        }
        common.insert(region, together);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Contents of a list, each with the place of the entry that made it.
    type Lists<'a> = &'a [(u64, &'a [u64])];

    /// Lists by key, each with its region.
    fn past(of: &[(u64, u16, Lists<'_>)]) -> Past {
        let contents = |all: Lists<'_>| {
            all.iter().map(|(place, list)| (Epoch(*place), Seen::List(list.to_vec()))).collect()
        };
        Past(of.iter().map(|(key, region, all)| (*key, (PartitionId(*region), contents(all)))).collect())
    }

    fn reads(all: &[(u64, &[u64])]) -> Txn {
        let read = |(key, values): &(u64, &[u64])| Op::Read { key: *key, values: values.to_vec() };
        Txn { base: 256, ops: all.iter().map(read).collect() }
    }

    #[test]
    fn reads_of_a_region_are_of_one_moment() {
        let past = past(&[
            (0, 0, &[(3, &[1]), (7, &[1, 2])]),
            (1, 0, &[(5, &[9])]),
            (2, 1, &[(4, &[8]), (6, &[8, 8])]),
        ]);
        let is_right = |all| check_one(&past, &reads(all)).is_ok();
        assert!(is_right(&[(0, &[1]), (1, &[])]) && is_right(&[(0, &[1]), (1, &[9])]));
        assert!(is_right(&[(0, &[1, 2]), (1, &[9]), (2, &[])]), "regions are apart");
        assert!(!is_right(&[(0, &[1, 2]), (1, &[])]), "a torn view");
        assert!(!is_right(&[(0, &[]), (1, &[9])]));
        assert!(!is_right(&[(0, &[2])]), "it never was");
        assert!(is_right(&[(5, &[])]) && !is_right(&[(5, &[1])]));
    }
}
