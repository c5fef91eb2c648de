//! The judge of histories: an isolation [`Level`] and a [`History`] in, nothing or a [`Finding`] out.
//!
//! Elle's method (Kingsbury and Alvaro, VLDB 2020): every value is written once, and the order of each key's values is
//! known, of a list from what it holds in the end, of a register from what the engine tells, its stamps for example
//! ([`History::order_by_stamps`]). A read gives what its transaction saw of that order. From that the dependencies between
//! transactions follow (Adya, 1999), with them the order of sessions and of real time; a level is a bound on their cycles
//! ([`Level::forbids`]). What is judged is exact as far as the orders are: the tests compare each level with its definition
//! on small histories.
//!
//! A transaction of unknown end has happened if any of its writes is there; one that aborted must have no effect.

mod cycles;
pub mod graph;
pub mod history;
mod levels;
#[cfg(test)]
mod tests;
mod versions;

use std::collections::BTreeMap;
use std::fmt::{self, Write};

pub use graph::{Edge, Kind};
pub use history::{History, Observed, Op, Outcome, Recorded, Txn};
use levels::Rules;
pub use levels::{Anomaly, Bound, Level};
use versions::Versions;

/// An anomaly of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The anomaly.
    pub anomaly: Anomaly,
    /// The example in words, with the names of its transactions.
    pub text: String,
    /// The dependencies of a cycle, as short a one as was found, each to the transaction from which the next one leads;
    /// empty if no cycle is the reason. Transactions are numbered as in [`History::txns`].
    pub cycle: Vec<Edge>,
    /// The transactions that it is about, by their numbers.
    pub txns: Vec<usize>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.anomaly.name(), self.text)
    }
}

/// The anomalies of a history: of each the number, and one example.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    found: BTreeMap<Anomaly, (usize, Finding)>,
}

impl Findings {
    /// The number of an anomaly, and an example.
    pub fn of(&self, anomaly: Anomaly) -> Option<&(usize, Finding)> {
        self.found.get(&anomaly)
    }

    /// The anomalies that were found, the worst first.
    pub fn anomalies(&self) -> impl Iterator<Item = Anomaly> {
        self.found.keys().copied()
    }

    /// An example of the worst anomaly.
    pub fn worst(&self) -> Option<&Finding> {
        self.found.values().next().map(|(_, finding)| finding)
    }

    fn add(&mut self, anomaly: Anomaly, txns: &[usize], text: impl FnOnce() -> String) {
        let finding = || Finding { anomaly, text: text(), cycle: Vec::new(), txns: txns.to_vec() };
        self.found.entry(anomaly).or_insert_with(|| (0, finding())).0 += 1;
    }

    fn add_cycle(&mut self, anomaly: Anomaly, cycle: Vec<Edge>, history: &History) {
        let finding = || Finding {
            anomaly,
            text: describe(&cycle, history),
            txns: cycle.iter().map(|edge| edge.from).collect(),
            cycle: cycle.clone(),
        };
        self.found.entry(anomaly).or_insert_with(|| (0, finding())).0 += 1;
    }
}

/// The name of a transaction in reports: its population or client, and its number there.
struct Name(u64);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "T{}.{}", self.0 >> 48, self.0 << 16 >> 24)
    }
}

/// Judges a history at a level.
///
/// # Errors
/// The worst of the anomalies that the level forbids.
pub fn judge(level: Level, history: &History) -> Result<(), Box<Finding>> {
    worst(find(level.rules(), history, true))
}

/// Judges whether a history is serializable in the order of real time, but for transactions that are no further apart than `bound`, in the
/// unit of the history's moments: a transaction may stand before one that was answered before it was asked, if that was not
/// longer before. The order of sessions is not judged.
///
/// # Errors
/// The worst anomaly.
pub fn judge_within(bound: u64, history: &History) -> Result<(), Box<Finding>> {
    worst(find(Rules { time: Bound::All, slack: bound, ..Level::Serializable.rules() }, history, true))
}

fn worst(findings: Findings) -> Result<(), Box<Finding>> {
    match findings.worst() {
        Some(finding) => Err(Box::new(finding.clone())),
        None => Ok(()),
    }
}

/// Finds all sorts of anomalies that a level forbids. Of transactions that depend on each other both ways, the worst cycle
/// is found and no other.
pub fn findings(level: Level, history: &History) -> Findings {
    find(level.rules(), history, false)
}

fn find(rules: Rules, history: &History, only_first: bool) -> Findings {
    let mut findings = Findings::default();
    let versions = Versions::new(history, &mut findings);
    if rules.fresh {
        versions.fresh(&mut findings);
    }
    let graph = versions.dependencies(rules);
    for (anomaly, cycle) in cycles::find(&graph, rules, only_first) {
        findings.add_cycle(anomaly, cycle, history);
    }
    findings
}

/// A cycle in words: each transaction, and why the next comes after it.
fn describe(cycle: &[Edge], history: &History) -> String {
    /// No reader goes on.
    const STEPS: usize = 12;
    let name = |txn: usize| Name(history.txns.get(txn).map_or(0, |txn| txn.txn.base));
    let mut text = String::new();
    for edge in cycle.iter().take(STEPS) {
        let _ = match edge.kind {
            Kind::Session | Kind::RealTime | Kind::Stamp => {
                write!(text, "{} -{}-> ", name(edge.from), edge.kind.name())
            }
            _ => write!(text, "{} -{} {}-> ", name(edge.from), edge.kind.name(), edge.key),
        };
    }
    let last = if cycle.len() > STEPS { "...".to_owned() } else { name(cycle[0].from).to_string() };
    text + &last
}
