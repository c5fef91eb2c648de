//! What a history of appends and reads proves about isolation, as in Elle (Kingsbury and Alvaro, VLDB 2020).
//!
//! Every value is appended once, so a list has its writers in their order. The lists at the end give
//! the order of all writes; a read gives what its transaction saw of it. From that the dependencies between
//! transactions follow (Adya, 1999), and a history is serializable if and only if every read is of committed,
//! final and whole writes and the dependencies have no cycle.

pub mod graph;
pub mod history;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::named;
use graph::{Allowed, Edge, Graph, Kind};
use history::{History, Op, Txn, base_of};

named! {
    /// The classes of anomalies, in the order of reports; the name is that of the finding that there is none.
    pub enum Class {
        /// A committed append is missing, or there twice, or one is there that was not committed.
        Appends = "appends",
        /// A transaction does not see its own appends, or sees a list change under it.
        Internal = "internal",
        /// A read saw what was not committed: G1a.
        AbortedRead = "no_g1a",
        /// A read saw what its writer had not finished: G1b.
        IntermediateRead = "no_g1b",
        /// A read saw another order of writes than the list has in the end.
        Order = "prefixes",
        /// A cycle of writes: G0.
        WriteCycle = "no_g0",
        /// A cycle of writes, and reads of them: G1c.
        InformationCycle = "no_g1c",
        /// A cycle with one read that did not see a write: lost updates, read skew; G-single.
        ReadSkew = "no_g_single",
        /// A cycle with several of them: write skew, long forks; G2.
        WriteSkew = "no_g2",
    }
}

/// The anomalies of a history: of each class the number, and one example.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Anomalies {
    found: BTreeMap<Class, (usize, String)>,
}

impl Anomalies {
    /// The number of anomalies of a class, and an example.
    pub fn of(&self, class: Class) -> Option<&(usize, String)> {
        self.found.get(&class)
    }

    fn add(&mut self, class: Class, example: impl FnOnce() -> String) {
        self.found.entry(class).or_insert_with(|| (0, example())).0 += 1;
    }
}

/// The name of a transaction in reports: its population, and its number there.
struct Name(u64);

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "T{}.{}", self.0 >> 48, self.0 << 16 >> 24)
    }
}

/// Finds the anomalies of a history by the lists at its end.
pub fn check(history: &History, lists: &BTreeMap<u64, Vec<u64>>) -> Anomalies {
    let mut analysis = Analysis::new(history, lists);
    analysis.appends();
    for txn in &history.committed {
        analysis.internal(txn);
        analysis.reads(txn);
    }
    let graph = analysis.dependencies();
    analysis.cycles(&graph);
    analysis.anomalies
}

struct Analysis<'a> {
    history: &'a History,
    lists: &'a BTreeMap<u64, Vec<u64>>,
    /// Who appended each value, by its place in the history, and to which list.
    writers: BTreeMap<u64, (usize, u64)>,
    anomalies: Anomalies,
}

impl<'a> Analysis<'a> {
    fn new(history: &'a History, lists: &'a BTreeMap<u64, Vec<u64>>) -> Analysis<'a> {
        let mut writers = BTreeMap::new();
        for (at, txn) in history.committed.iter().enumerate() {
            for op in &txn.ops {
                if let Op::Append { key, value } = op {
                    writers.insert(*value, (at, *key));
                }
            }
        }
        Analysis { history, lists, writers, anomalies: Anomalies::default() }
    }

    fn list(&self, key: u64) -> &'a [u64] {
        self.lists.get(&key).map_or(&[], |list| list)
    }

    /// The origin of a value that was not committed.
    fn origin(&self, value: u64) -> &'static str {
        if self.history.aborted.contains(&base_of(value)) { "which aborted" } else { "which never committed" }
    }

    /// Every committed append is in its list once, and nothing else is.
    fn appends(&mut self) {
        let mut missing = self.writers.clone();
        for (key, list) in self.lists {
            for value in list {
                match missing.remove(value) {
                    Some((_, of)) if of == *key => {}
                    _ => {
                        let (name, origin) = (Name(*value), self.origin(*value));
                        let is_known = self.writers.contains_key(value);
                        self.anomalies.add(Class::Appends, || match is_known {
                            true => format!(
                                "an append of {name} is twice in the lists, or in that of {key} by mistake"
                            ),
                            false => format!("the list of {key} has an append of {name}, {origin}"),
                        });
                    }
                }
            }
        }
        for (value, (_, key)) in missing {
            let name = Name(value);
            self.anomalies
                .add(Class::Appends, || format!("an append of {name} to the list of {key} is lost"));
        }
    }

    /// Inside a transaction, a list changes by its own appends only.
    fn internal(&mut self, txn: &Txn) {
        // What is known of a list: the whole of it from a read on, and what was appended since.
        let mut known: BTreeMap<u64, (Option<&[u64]>, Vec<u64>)> = BTreeMap::new();
        for op in &txn.ops {
            let (read, own) = known.entry(op.key()).or_default();
            match op {
                Op::Append { value, .. } => own.push(*value),
                Op::Read { key, values } => {
                    let before = values.strip_suffix(&own[..]);
                    if before.is_none() || read.is_some_and(|read| before != Some(read)) {
                        let (name, held) = (Name(txn.base), values.len());
                        self.anomalies.add(Class::Internal, || {
                            format!(
                                "{name} read {held} values of {key}: not what it had seen and appended before"
                            )
                        });
                    }
                    *read = Some(values);
                    own.clear();
                }
            }
        }
    }

    /// What is read is committed, finished, and in the order of the list.
    fn reads(&mut self, txn: &Txn) {
        for op in &txn.ops {
            let Op::Read { key, values } = op else { continue };
            let reader = Name(txn.base);
            if let Some(value) = values.iter().find(|value| !self.writers.contains_key(value)) {
                let (writer, origin) = (Name(*value), self.origin(*value));
                self.anomalies.add(Class::AbortedRead, || {
                    format!("{reader} read in {key} an append of {writer}, {origin}")
                });
            }
            if !self.list(*key).starts_with(values) {
                let (held, whole) = (values.len(), self.list(*key).len());
                self.anomalies.add(Class::Order, || {
                    format!("{reader} read {held} values of {key}, not the first of its {whole} at the end")
                });
            }
            // The last value read must be its writer's last to this list, unless the reader is the writer.
            let Some(last) = values.last() else { continue };
            let Some((writer, _)) = self.writers.get(last).copied() else { continue };
            let writer = &self.history.committed[writer];
            let is_last = |op: &Op| matches!(op, Op::Append { key: of, value } if of == key && value > last);
            if writer.base != txn.base && writer.ops.iter().any(is_last) {
                let writer = Name(writer.base);
                self.anomalies.add(Class::IntermediateRead, || {
                    format!("{reader} read in {key} an append of {writer} before its last")
                });
            }
        }
    }

    /// What depends on what: writes on the writes before them in a list, reads on the last write that they
    /// saw, and the write after that on the reads.
    fn dependencies(&self) -> Graph {
        let mut graph = Graph::new(self.history.committed.len());
        let writer = |value: &u64| self.writers.get(value).map(|(at, _)| *at);
        let mut add = |from: Option<usize>, to: Option<usize>, kind, key| {
            if let (Some(from), Some(to)) = (from, to) {
                graph.add(Edge { from, to, kind, key });
            }
        };
        for (key, list) in self.lists {
            for pair in list.windows(2) {
                add(writer(&pair[0]), writer(&pair[1]), Kind::WriteWrite, *key);
            }
        }
        for (reader, txn) in self.history.committed.iter().enumerate() {
            for op in &txn.ops {
                let Op::Read { key, values } = op else { continue };
                let list = self.list(*key);
                if !list.starts_with(values) {
                    continue;
                }
                add(values.last().and_then(writer), Some(reader), Kind::WriteRead, *key);
                add(Some(reader), list.get(values.len()).and_then(writer), Kind::ReadWrite, *key);
            }
        }
        graph
    }

    /// Looks for cycles of each class: one in each component of transactions that depend on each other.
    fn cycles(&mut self, graph: &Graph) {
        let mut budget = BUDGET;
        let mut search = |search: Search, spare: &BTreeSet<usize>| {
            let mut reported = BTreeSet::new();
            for component in graph.components(search.within).into_iter().take(COMPONENTS) {
                if component.iter().any(|txn| spare.contains(txn)) {
                    continue;
                }
                let is_member = graph.membership(&component);
                let firsts = graph.inside(&component, &is_member).filter(|edge| (search.first)(edge.kind));
                let cycle = firsts
                    .take(ATTEMPTS)
                    .find_map(|first| graph.cycle(first, search.further, &is_member, &mut budget));
                if let Some(cycle) = cycle {
                    self.anomalies.add(class_of(&cycle), || describe(&cycle, self.history));
                    reported.extend(component);
                }
            }
            reported
        };
        let none = BTreeSet::new();
        search(Search::WRITES, &none);
        search(Search::INFORMATION, &none);
        let skewed = search(Search::ONE_MISSED, &none);
        search(Search::SOME_MISSED, &skewed);
    }
}

/// A system that is broken is known to be so after so many components, first dependencies in each, and
/// dependencies.
const COMPONENTS: usize = 64;
const ATTEMPTS: usize = 256;
const BUDGET: usize = 20_000_000;

/// Which dependencies make up the components, which of them a cycle begins with, and which it may go on with.
struct Search {
    within: Allowed,
    first: Allowed,
    further: Allowed,
}

impl Search {
    const WRITES: Search = {
        const WRITE: Allowed = |kind| matches!(kind, Kind::WriteWrite);
        Search { within: WRITE, first: WRITE, further: WRITE }
    };
    const INFORMATION: Search = Search {
        within: |kind| !matches!(kind, Kind::ReadWrite),
        first: |kind| matches!(kind, Kind::WriteRead),
        further: |kind| !matches!(kind, Kind::ReadWrite),
    };
    const ONE_MISSED: Search = Search {
        within: |_| true,
        first: |kind| matches!(kind, Kind::ReadWrite),
        further: |kind| !matches!(kind, Kind::ReadWrite),
    };
    const SOME_MISSED: Search = Search { further: |_| true, ..Search::ONE_MISSED };
}

fn class_of(cycle: &[Edge]) -> Class {
    let count = |kind| cycle.iter().filter(|edge| edge.kind == kind).count();
    match (count(Kind::ReadWrite), count(Kind::WriteRead)) {
        (0, 0) => Class::WriteCycle,
        (0, _) => Class::InformationCycle,
        (1, _) => Class::ReadSkew,
        _ => Class::WriteSkew,
    }
}

/// A cycle in words: each transaction, and why the next comes after it.
fn describe(cycle: &[Edge], history: &History) -> String {
    /// No reader goes on.
    const STEPS: usize = 12;
    let name = |txn: usize| Name(history.committed.get(txn).map_or(0, |txn| txn.base));
    let mut text = String::new();
    for edge in cycle.iter().take(STEPS) {
        let _ = write!(text, "{} -{} {}-> ", name(edge.from), edge.kind.name(), edge.key);
    }
    let last = if cycle.len() > STEPS { "...".to_owned() } else { name(cycle[0].from).to_string() };
    text + &last
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_sim::Random;

    /// The base of transaction n, and of its operation i.
    const fn base(n: u64) -> u64 {
        n << 8
    }

    fn read(key: u64, values: &[u64]) -> Op {
        Op::Read { key, values: values.to_vec() }
    }

    fn append(key: u64, value: u64) -> Op {
        Op::Append { key, value }
    }

    fn txn(n: u64, ops: &[Op]) -> Txn {
        Txn { base: base(n), ops: ops.to_vec() }
    }

    fn anomalies(committed: &[Txn], lists: &[(u64, &[u64])]) -> Vec<(Class, String)> {
        let history =
            History { committed: committed.to_vec(), aborted: [base(9)].into(), ..History::default() };
        let lists = lists.iter().map(|(key, list)| (*key, list.to_vec())).collect();
        check(&history, &lists).found.into_iter().map(|(class, (_, example))| (class, example)).collect()
    }

    fn classes(committed: &[Txn], lists: &[(u64, &[u64])]) -> Vec<Class> {
        anomalies(committed, lists).into_iter().map(|(class, _)| class).collect()
    }

    const A: u64 = base(1);
    const B: u64 = base(2);

    #[test]
    fn a_serial_history_has_nothing_wrong() {
        let history = [
            txn(1, &[append(1, A), append(1, A + 1), read(1, &[A, A + 1])]),
            txn(2, &[read(1, &[A, A + 1]), append(2, B + 1), read(3, &[])]),
            txn(3, &[read(1, &[A, A + 1]), read(2, &[B + 1])]),
        ];
        assert_eq!(anomalies(&history, &[(1, &[A, A + 1]), (2, &[B + 1])]), []);
    }

    #[test]
    fn lost_and_doubled_and_phantom_appends_are_found() {
        let history = [txn(1, &[append(1, A)]), txn(2, &[append(1, B)])];
        assert_eq!(classes(&history, &[(1, &[A, B])]), []);
        let example = |list: &[u64]| match &anomalies(&history, &[(1, list)])[..] {
            [(Class::Appends, example)] => example.clone(),
            other => panic!("{other:?}"),
        };
        assert!(example(&[B]).contains("T0.1 to the list of 1 is lost"));
        assert!(example(&[A, B, base(9)]).contains("T0.9, which aborted"));
        assert!(example(&[A, B, base(8)]).contains("T0.8, which never committed"));
        assert!(
            anomalies(&history, &[(1, &[A, B, A])])
                .iter()
                .any(|(class, text)| { *class == Class::Appends && text.contains("twice") })
        );
        assert_eq!(classes(&history, &[(1, &[A]), (2, &[B])]), [Class::Appends]);
    }

    #[test]
    fn a_lost_update_is_read_skew() {
        // Both read the empty list and then append.
        let history = [txn(1, &[read(1, &[]), append(1, A + 1)]), txn(2, &[read(1, &[]), append(1, B + 1)])];
        let found = anomalies(&history, &[(1, &[A + 1, B + 1])]);
        assert_eq!(found, [(Class::ReadSkew, "T0.2 -rw 1-> T0.1 -ww 1-> T0.2".to_owned())]);
    }

    #[test]
    fn reads_of_aborted_and_of_unfinished_writes_are_found() {
        // G1a: the value is not in the list at the end, nor is the read one of its beginnings.
        let history = [txn(1, &[append(1, A)]), txn(2, &[read(1, &[A, base(9)])])];
        assert_eq!(classes(&history, &[(1, &[A])]), [Class::AbortedRead, Class::Order]);
        // G1b: the first of two appends; the reader is before and after the writer.
        let history = [txn(1, &[append(1, A), append(1, A + 1)]), txn(2, &[read(1, &[A])])];
        let found = classes(&history, &[(1, &[A, A + 1])]);
        assert_eq!(found, [Class::IntermediateRead, Class::ReadSkew]);
    }

    #[test]
    fn a_list_that_changes_under_a_transaction_or_hides_its_own_appends_is_found() {
        let history = [txn(1, &[append(1, A)]), txn(2, &[read(1, &[]), read(1, &[A])])];
        assert!(classes(&history, &[(1, &[A])]).contains(&Class::Internal));
        let history = [txn(1, &[append(1, A), read(1, &[])])];
        assert!(classes(&history, &[(1, &[A])]).contains(&Class::Internal));
    }

    #[test]
    fn reads_that_disagree_on_the_order_are_found() {
        let history = [txn(1, &[append(1, A)]), txn(2, &[append(1, B)]), txn(3, &[read(1, &[B])])];
        assert_eq!(classes(&history, &[(1, &[A, B])]), [Class::Order]);
    }

    #[test]
    fn write_cycles_and_information_cycles_are_found() {
        let history = [txn(1, &[append(1, A), append(2, A + 1)]), txn(2, &[append(1, B), append(2, B + 1)])];
        let lists: [(u64, &[u64]); 2] = [(1, &[A, B]), (2, &[B + 1, A + 1])];
        assert_eq!(classes(&history, &lists), [Class::WriteCycle]);
        let history = [txn(1, &[append(1, A), read(2, &[B])]), txn(2, &[append(2, B), read(1, &[A])])];
        assert_eq!(classes(&history, &[(1, &[A]), (2, &[B])]), [Class::InformationCycle]);
    }

    #[test]
    fn read_skew_and_write_skew_and_long_forks_differ() {
        // Read skew: one of two appends of a transaction is seen, the other is not.
        let history = [txn(1, &[append(1, A), append(2, A + 1)]), txn(2, &[read(1, &[]), read(2, &[A + 1])])];
        let found = anomalies(&history, &[(1, &[A]), (2, &[A + 1])]);
        assert_eq!(found, [(Class::ReadSkew, "T0.2 -rw 1-> T0.1 -wr 2-> T0.2".to_owned())]);
        // Write skew: each reads what the other writes.
        let history = [txn(1, &[read(1, &[]), append(2, A + 1)]), txn(2, &[read(2, &[]), append(1, B + 1)])];
        let found = anomalies(&history, &[(1, &[B + 1]), (2, &[A + 1])]);
        assert_eq!(found, [(Class::WriteSkew, "T0.1 -rw 1-> T0.2 -rw 2-> T0.1".to_owned())]);
        // A long fork: two readers see two writers in opposite orders. Parallel snapshot isolation allows it.
        let history = [
            txn(1, &[append(1, A)]),
            txn(2, &[append(2, B)]),
            txn(3, &[read(1, &[A]), read(2, &[])]),
            txn(4, &[read(1, &[]), read(2, &[B])]),
        ];
        assert_eq!(classes(&history, &[(1, &[A]), (2, &[B])]), [Class::WriteSkew]);
    }

    /// Whether some order of the transactions, one after the other, gives these answers and these lists.
    fn is_serializable(txns: &[Txn], lists: &BTreeMap<u64, Vec<u64>>, done: &mut Vec<usize>) -> bool {
        let mut state: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for op in done.iter().flat_map(|at| &txns[*at].ops) {
            let list = state.entry(op.key()).or_default();
            match op {
                Op::Append { value, .. } => list.push(*value),
                Op::Read { values, .. } if values == list => {}
                Op::Read { .. } => return false,
            }
        }
        if done.len() == txns.len() {
            state.retain(|_, list| !list.is_empty());
            return state == *lists;
        }
        (0..txns.len()).any(|at| {
            if done.contains(&at) {
                return false;
            }
            done.push(at);
            let found = is_serializable(txns, lists, done);
            done.pop();
            found
        })
    }

    #[test]
    fn the_verdict_is_that_of_trying_every_order() {
        let mut random = Random::new(21);
        let (mut sound, mut unsound) = (0, 0);
        for _ in 0..6_000 {
            // Two to four transactions, of which the operations take turns as they happen to: no isolation at
            // all.
            let count = 2 + random.below(3);
            let mut txns: Vec<Txn> = (1..=count).map(|n| txn(n, &[])).collect();
            let mut left: Vec<u64> = (0..count).map(|_| 1 + random.below(3)).collect();
            let mut lists: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            while left.iter().any(|n| *n > 0) {
                let at = random.below(count) as usize;
                if left[at] == 0 {
                    continue;
                }
                left[at] -= 1;
                let key = 1 + random.below(2);
                let value = txns[at].base + txns[at].ops.len() as u64;
                let list = lists.entry(key).or_default();
                if random.below(2) == 0 {
                    list.push(value);
                    txns[at].ops.push(append(key, value));
                } else {
                    txns[at].ops.push(read(key, list));
                }
            }
            lists.retain(|_, list| !list.is_empty());
            let history = History { committed: txns.clone(), ..History::default() };
            let verdict = check(&history, &lists);
            let expected = is_serializable(&txns, &lists, &mut Vec::new());
            assert_eq!(verdict.found.is_empty(), expected, "{txns:?} {lists:?} {verdict:?}");
            if expected { sound += 1 } else { unsound += 1 }
        }
        assert!(sound > 1_000 && unsound > 1_000, "{sound} {unsound}");
    }
}
