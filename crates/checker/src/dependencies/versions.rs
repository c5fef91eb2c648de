//! The values of a history: who wrote each, what each read saw of their order, and what is wrong with single
//! transactions.
//!
//! A read of a list and a read of a register come to the same: a *position* in the order of the key's values, the number
//! of those that it saw. From positions follow the dependencies.

use std::collections::{BTreeMap, BTreeSet};

use super::graph::{Edge, Graph, Kind};
use super::history::{History, Observed, Op, Outcome, base_of};
use super::levels::{Anomaly, Bound, Rules};
use super::{Findings, Name};

/// What is known of a value.
#[derive(Clone, Copy, Debug)]
struct Written {
    /// Its transaction, by its place in the history.
    by: usize,
    /// Whether its transaction writes the key no more.
    is_last: bool,
}

/// A read that saw the first values of a key's order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) reader: usize,
    pub(super) key: u64,
    /// The number of values that it saw.
    pub(super) position: usize,
    /// Whether it is the first read of its transaction, or, if that only reads, its first at the key's site.
    pub(super) is_first: bool,
}

/// A history with what its values tell.
pub(super) struct Versions<'a> {
    pub(super) history: &'a History,
    /// Whether each transaction has taken effect.
    pub(super) happened: Vec<bool>,
    written: BTreeMap<u64, Written>,
    /// The place of each value in the order of its key.
    places: BTreeMap<u64, (u64, usize)>,
    pub(super) seen: Vec<Seen>,
}

/// The writes of a transaction: key, value, and whether it is the last to the key.
fn writes(txn: &Observed) -> impl Iterator<Item = (&Op, u64, bool)> {
    let ops = &txn.txn.ops;
    ops.iter().enumerate().filter_map(move |(at, op)| {
        let is_last = !ops[at + 1..].iter().any(|later| later.key() == op.key() && later.written().is_some());
        Some((op, op.written()?, is_last))
    })
}

impl<'a> Versions<'a> {
    /// Reads the values of a history and reports what is wrong with single transactions.
    pub(super) fn new(history: &'a History, findings: &mut Findings) -> Versions<'a> {
        let mut places = BTreeMap::new();
        for (key, order) in &history.orders {
            for (at, value) in order.iter().enumerate() {
                if places.insert(*value, (*key, at)).is_some() {
                    let name = Name(*value);
                    findings.add(Anomaly::LostWrite, &[], || {
                        format!("the write {value:#x} of {name} is there twice")
                    });
                }
            }
        }
        let is_there = |txn: &Observed| writes(txn).any(|(_, value, _)| places.contains_key(&value));
        let happened = |txn: &Observed| match txn.outcome {
            Outcome::Committed => true,
            Outcome::Unknown => is_there(txn),
            Outcome::Aborted => false,
        };
        let happened: Vec<bool> = history.txns.iter().map(happened).collect();
        let mut versions = Versions { history, happened, written: BTreeMap::new(), places, seen: Vec::new() };
        versions.writes(findings);
        for (reader, txn) in history.txns.iter().enumerate() {
            if txn.outcome == Outcome::Committed {
                versions.reads(reader, txn, findings);
            }
        }
        versions
    }

    fn order(&self, key: u64) -> &'a [u64] {
        self.history.orders.get(&key).map_or(&[], |order| order)
    }

    /// Every write that has happened is in its order once, and nothing else is.
    fn writes(&mut self, findings: &mut Findings) {
        for (by, txn) in self.history.txns.iter().enumerate().filter(|(by, _)| self.happened[*by]) {
            for (op, value, is_last) in writes(txn) {
                let key = op.key();
                let name = Name(value);
                if self.written.insert(value, Written { by, is_last }).is_some() {
                    findings.add(Anomaly::LostWrite, &[by], || {
                        format!("two transactions claim the write {value:#x} of {name}")
                    });
                }
                // Of a register the last value is installed.
                let is_installed = is_last || matches!(op, Op::Append { .. });
                match self.places.get(&value) {
                    Some((of, _)) if *of == key => {}
                    None if !is_installed => {}
                    Some((other, _)) => findings.add(Anomaly::LostWrite, &[by], || {
                        format!("a write of {name} to {key} is among those to {other}")
                    }),
                    None => findings
                        .add(Anomaly::LostWrite, &[by], || format!("a write of {name} to {key} is lost")),
                }
            }
        }
        self.own_order(findings);
        for (value, (key, _)) in &self.places {
            if !self.written.contains_key(value) {
                let (name, origin) = (Name(*value), self.origin(*value));
                findings.add(Anomaly::LostWrite, &[], || format!("{key} has a write of {name}, {origin}"));
            }
        }
    }

    /// What one transaction has written to a key is in the order in which it wrote that.
    fn own_order(&self, findings: &mut Findings) {
        for (by, txn) in self.history.txns.iter().enumerate().filter(|(by, _)| self.happened[*by]) {
            let mut last: BTreeMap<u64, usize> = BTreeMap::new();
            for (op, value, _) in writes(txn) {
                let Some((_, place)) = self.places.get(&value) else { continue };
                let before = last.insert(op.key(), *place);
                if before.is_some_and(|before| before > *place) {
                    let (name, key) = (Name(txn.txn.base), op.key());
                    findings.add(Anomaly::OrderOfWrites, &[by], || {
                        format!("the writes of {name} to {key} are not in the order in which it made them")
                    });
                }
            }
        }
    }

    /// The origin of a value that was not committed.
    fn origin(&self, value: u64) -> &'static str {
        let base = base_of(value);
        let is_it = |txn: &Observed| txn.outcome == Outcome::Aborted && txn.txn.base == base;
        match self.history.aborted.contains(&base) || self.history.txns.iter().any(is_it) {
            true => "which aborted",
            false => "which never committed",
        }
    }

    /// The reads of a committed transaction see what is committed, finished, its own, and in the order of the key.
    fn reads(&mut self, reader: usize, txn: &Observed, findings: &mut Findings) {
        let is_update = txn.txn.is_update();
        let mut sites = BTreeSet::new();
        for (at, op) in txn.txn.ops.iter().enumerate() {
            let values = match op {
                Op::Read { values, .. } => &values[..],
                Op::Get { value, .. } => value.as_slice(),
                // The list of an append may be the first record that an update looks at, and its answer does not show the content.
                Op::Append { .. } => {
                    sites.insert(0);
                    continue;
                }
                Op::Put { .. } => continue,
            };
            let (key, name) = (op.key(), Name(txn.txn.base));
            self.own(reader, at, values, findings);
            if let Some(value) = values.iter().find(|value| !self.written.contains_key(value)) {
                let (writer, origin) = (Name(*value), self.origin(*value));
                findings.add(Anomaly::AbortedRead, &[reader], || {
                    format!("{name} read in {key} a write of {writer}, {origin}")
                });
            }
            let last = values.last().and_then(|last| self.written.get(last));
            if let Some(last) = last.filter(|last| last.by != reader && !last.is_last) {
                let writer = Name(self.history.txns[last.by].txn.base);
                findings.add(Anomaly::IntermediateRead, &[reader, last.by], || {
                    format!("{name} read in {key} a write of {writer} before its last")
                });
            }
            let Some(position) = self.position(reader, op) else {
                let (held, whole) = (values.len(), self.order(key).len());
                if !(matches!(op, Op::Get { .. })
                    && values.iter().any(|value| !self.written.contains_key(value)))
                {
                    findings.add(Anomaly::OrderOfWrites, &[reader], || {
                        format!("{name} read {held} values of {key}, not the first of its {whole} at the end")
                    });
                }
                continue;
            };
            let site = self.history.sites.get(&key).copied().unwrap_or(0);
            // A register that the transaction has put itself is not read from its site.
            let is_own = matches!(op, Op::Get { .. })
                && txn.txn.ops[..at].iter().any(|before| before.key() == key && before.written().is_some());
            let is_first = !is_own && sites.insert(if is_update { 0 } else { site });
            self.seen.push(Seen { reader, key, position, is_first });
        }
    }

    /// The number of values that a read has seen of the key's order; `None` if it saw something else.
    fn position(&self, reader: usize, op: &Op) -> Option<usize> {
        match op {
            Op::Read { key, values } => self.order(*key).starts_with(values).then_some(values.len()),
            Op::Get { value: None, .. } => Some(0),
            Op::Get { key, value: Some(value) } => match self.places.get(value) {
                Some((of, at)) => (of == key).then_some(at + 1),
                // What its writer has overwritten stands where the writer's last value does.
                None => {
                    let by = self.written.get(value)?.by;
                    let last =
                        writes(&self.history.txns[by]).find(|(op, _, is_last)| op.key() == *key && *is_last);
                    let (_, at) = self.places.get(&last?.1)?;
                    Some(if by == reader { at + 1 } else { *at })
                }
            },
            Op::Append { .. } | Op::Put { .. } => None,
        }
    }

    /// A read sees of its own transaction's writes all before it, the last of them as the last, and none behind it.
    fn own(&self, reader: usize, at: usize, values: &[u64], findings: &mut Findings) {
        let ops = &self.history.txns[reader].txn.ops;
        let key = ops[at].key();
        let of_key = |op: &&Op| op.key() == key;
        let before: Vec<u64> = ops[..at].iter().filter(of_key).filter_map(Op::written).collect();
        let after: Vec<u64> = ops[at..].iter().filter(of_key).filter_map(Op::written).collect();
        let is_right = match &ops[at] {
            Op::Read { .. } => {
                let own: Vec<u64> = values.iter().copied().filter(|value| before.contains(value)).collect();
                own == before && (before.is_empty() || values.last() == before.last())
            }
            _ => before.is_empty() || values.last() == before.last(),
        };
        if !is_right || values.iter().any(|value| after.contains(value)) {
            let (name, held) = (Name(self.history.txns[reader].txn.base), values.len());
            findings.add(Anomaly::OwnWrites, &[reader], || {
                format!("{name} read {held} values of {key}: not what it had written before")
            });
        }
    }

    /// First reads have every value that was answered before their transaction was asked.
    pub(super) fn fresh(&self, findings: &mut Findings) {
        // By key and place: the soonest answer to a transaction that wrote this value or a later one.
        let mut soonest: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (key, order) in &self.history.orders {
            let mut least = u64::MAX;
            let mut of_key: Vec<u64> = order
                .iter()
                .rev()
                .map(|value| {
                    let writer = self.written.get(value).map(|written| &self.history.txns[written.by]);
                    least = least.min(writer.and_then(|writer| writer.answered).unwrap_or(u64::MAX));
                    least
                })
                .collect();
            of_key.reverse();
            soonest.insert(*key, of_key);
        }
        for seen in self.seen.iter().filter(|seen| seen.is_first) {
            let missed = soonest.get(&seen.key).and_then(|of_key| of_key.get(seen.position));
            let asked = self.history.txns[seen.reader].asked;
            if let (Some(missed), Some(asked)) = (missed, asked)
                && *missed < asked
            {
                let (name, key) = (Name(self.history.txns[seen.reader].txn.base), seen.key);
                findings.add(Anomaly::StaleRead, &[seen.reader], || {
                    format!("{name} was asked at {asked} and misses a write to {key} that was answered at {missed}")
                });
            }
        }
    }

    /// The dependencies: writes on the writes before them, reads on the last write that they saw, the write after that on
    /// the reads; and as far as a level says, transactions on what was before them in their session and in real time.
    pub(super) fn dependencies(&self, rules: Rules) -> Graph {
        let txns = &self.history.txns;
        let mut instants: Vec<u64> = match rules.time {
            Bound::Nobody => Vec::new(),
            _ => (0..txns.len()).filter(|at| self.happened[*at]).filter_map(|at| txns[at].answered).collect(),
        };
        instants.sort_unstable();
        instants.dedup();
        let mut graph = Graph::new(txns.len(), instants.len());
        let writer = |value: &u64| self.written.get(value).map(|written| written.by);
        let mut add = |from: Option<usize>, to: Option<usize>, kind, key| {
            if let (Some(from), Some(to)) = (from, to) {
                graph.add(Edge { from, to, kind, key });
            }
        };
        for (key, order) in &self.history.orders {
            for pair in order.windows(2) {
                add(writer(&pair[0]), writer(&pair[1]), Kind::WriteWrite, *key);
            }
        }
        for Seen { reader, key, position, .. } in &self.seen {
            let order = self.order(*key);
            let last = position.checked_sub(1).and_then(|last| order.get(last));
            add(last.and_then(writer), Some(*reader), Kind::WriteRead, *key);
            let mut next = order[*position..].iter().filter_map(writer).take(2).filter(|by| by != reader);
            add(Some(*reader), next.next(), Kind::ReadWrite, *key);
        }
        self.sessions(rules.sessions, &mut graph);
        if rules.stamps {
            self.stamps(&mut graph);
        }
        self.real_time(rules, &instants, &mut graph);
        graph
    }

    /// Adds the order of sessions.
    fn sessions(&self, bound: Bound, graph: &mut Graph) {
        let mut sessions: BTreeMap<u64, Vec<(u64, usize)>> = BTreeMap::new();
        for (at, txn) in self.history.txns.iter().enumerate().filter(|(at, _)| self.happened[*at]) {
            if let Some((session, place)) = txn.session {
                sessions.entry(session).or_default().push((place, at));
            }
        }
        sessions.into_values().for_each(|asked| self.chain(asked, bound, Kind::Session, graph));
    }

    /// Adds the order of stamps.
    fn stamps(&self, graph: &mut Graph) {
        let txns = self.history.txns.iter().enumerate().filter(|(at, _)| self.happened[*at]);
        let stamped = txns.filter_map(|(at, txn)| Some((txn.stamp?, at))).collect();
        self.chain(stamped, Bound::All, Kind::Stamp, graph);
    }

    /// Adds dependencies of bound transactions on those in places before their own; in one place there is no order.
    fn chain(&self, mut txns: Vec<(u64, usize)>, bound: Bound, kind: Kind, graph: &mut Graph) {
        let is_bound = |at: usize| match bound {
            Bound::Nobody => false,
            Bound::Updates => self.history.txns[at].txn.is_update(),
            Bound::All => true,
        };
        let holds_back = |at: &usize| kind != Kind::Session || !self.history.txns[*at].may_be_overtaken;
        txns.sort_unstable();
        // The transactions on which those of the next place depend at once.
        let mut before: Vec<usize> = Vec::new();
        for of_place in txns.chunk_by(|(first, _), (second, _)| first == second) {
            let here: Vec<usize> = of_place.iter().map(|(_, at)| *at).collect();
            for to in here.iter().filter(|at| is_bound(**at)) {
                before.iter().for_each(|from| graph.add(Edge { from: *from, to: *to, kind, key: 0 }));
            }
            let holding: Vec<usize> = here.into_iter().filter(holds_back).collect();
            // One that all others are before stands for them.
            if holding.iter().any(|at| is_bound(*at)) {
                before.clear();
            }
            before.extend(holding);
        }
    }

    /// Adds the order of real time, through its instants.
    fn real_time(&self, rules: Rules, instants: &[u64], graph: &mut Graph) {
        let bound = rules.time;
        let count = self.history.txns.len();
        let mut add = |from, to| graph.add(Edge { from, to, kind: Kind::RealTime, key: 0 });
        (1..instants.len()).for_each(|at| add(count + at - 1, count + at));
        for (at, txn) in self.history.txns.iter().enumerate().filter(|(at, _)| self.happened[*at]) {
            if let Some(answered) = txn.answered.filter(|_| bound != Bound::Nobody) {
                add(at, count + instants.partition_point(|instant| *instant < answered));
            }
            let is_bound = bound == Bound::All || (bound == Bound::Updates && txn.txn.is_update());
            if let Some(asked) = txn.asked.filter(|_| is_bound) {
                let before = instants.partition_point(|instant| instant.saturating_add(rules.slack) < asked);
                before.checked_sub(1).into_iter().for_each(|last| add(count + last, at));
            }
        }
    }
}
