//! The search for cycles that a level forbids: the worse ones first, each as short as can be found.

use std::collections::{BTreeMap, BTreeSet};

use super::graph::{Allowed, Edge, Graph, Kind, Ways};
use super::levels::{Anomaly, Bound, Missed, Rests, Rules};

/// A system that is broken is known to be so after so many components, first dependencies in each, and dependencies.
const COMPONENTS: usize = 64;
const ATTEMPTS: usize = 256;
const BUDGET: usize = 20_000_000;

/// A search for cycles of one form.
#[derive(Clone, Copy, Debug)]
enum Search {
    /// Writes after writes.
    Writes,
    /// No write is missed.
    Direct(Rests),
    /// One write is missed.
    One(Rests),
    /// Some writes are missed, never two in a row.
    Apart(Rests),
    /// Any dependencies on the same.
    Any(Rests),
}

/// The dependencies that are no missed writes.
fn direct(rests: Rests) -> Allowed {
    match rests {
        Rests::Data => |kind| matches!(kind, Kind::WriteWrite | Kind::WriteRead),
        Rests::Session => |kind| matches!(kind, Kind::WriteWrite | Kind::WriteRead | Kind::Session),
        Rests::Time => |kind| !matches!(kind, Kind::ReadWrite | Kind::Stamp),
        Rests::Stamps => |kind| matches!(kind, Kind::WriteWrite | Kind::WriteRead | Kind::Stamp),
    }
}

/// All dependencies.
fn whole(rests: Rests) -> Allowed {
    match rests {
        Rests::Data => |kind| !matches!(kind, Kind::Session | Kind::RealTime | Kind::Stamp),
        Rests::Session => |kind| !matches!(kind, Kind::RealTime | Kind::Stamp),
        Rests::Time => |kind| kind != Kind::Stamp,
        Rests::Stamps => |kind| !matches!(kind, Kind::Session | Kind::RealTime),
    }
}

/// The dependency without which a cycle would not rest on this.
fn mark(rests: Rests) -> Option<Kind> {
    match rests {
        Rests::Data => None,
        Rests::Session => Some(Kind::Session),
        Rests::Time => Some(Kind::RealTime),
        Rests::Stamps => Some(Kind::Stamp),
    }
}

/// Finds cycles that the rules forbid: of every form, one in each component. With `only_first` the search ends with the
/// first form that has any.
pub(super) fn find(graph: &Graph, rules: Rules, only_first: bool) -> Vec<(Anomaly, Vec<Edge>)> {
    // Most histories have no cycle at all.
    let all: Allowed = if rules.missed == Missed::None { |kind| kind != Kind::ReadWrite } else { |_| true };
    if graph.components(all).1 == graph.nodes() {
        return Vec::new();
    }
    let mut found: Vec<(Anomaly, Vec<Edge>)> = Vec::new();
    // The transactions of components in which a worse cycle was found.
    let mut known = BTreeSet::new();
    for search in searches(rules) {
        for (cycle, component) in run(graph, search, &known) {
            found.push((anomaly_of(&cycle), cycle));
            known.extend(component);
        }
        if only_first && !found.is_empty() {
            break;
        }
    }
    found
}

/// The searches for what the rules forbid, in their order.
fn searches(rules: Rules) -> Vec<Search> {
    let mut searches = vec![Search::Writes];
    let mut add = |rests| {
        let forms = [
            (Missed::None, Search::Direct(rests)),
            (Missed::One, Search::One(rests)),
            (Missed::Apart, Search::Apart(rests)),
            (Missed::Any, Search::Any(rests)),
        ];
        searches.extend(
            forms.into_iter().filter(|(missed, _)| *missed <= rules.missed).map(|(_, search)| search),
        );
    };
    add(Rests::Data);
    if rules.sessions != Bound::Nobody {
        add(Rests::Session);
    }
    if rules.time != Bound::Nobody {
        // A cycle on real time has one name, however many writes are missed.
        searches.push(Search::Any(Rests::Time));
    }
    if rules.stamps {
        searches.push(Search::Any(Rests::Stamps));
    }
    searches
}

/// The cycles of one search, each with the members of its component.
fn run(graph: &Graph, search: Search, known: &BTreeSet<usize>) -> Vec<(Vec<Edge>, Vec<usize>)> {
    match search {
        Search::Writes => in_components(graph, |kind| kind == Kind::WriteWrite, None, known),
        Search::Direct(rests) => {
            in_components(graph, direct(rests), mark(rests).or(Some(Kind::WriteRead)), known)
        }
        Search::One(rests) => with_one_missed(graph, rests, known),
        Search::Apart(rests) => {
            let count = graph.nodes();
            let apart = graph.apart(direct(rests));
            let both: BTreeSet<usize> = known.iter().flat_map(|txn| [*txn, txn + count]).collect();
            let found = in_components(&apart, |_| true, Some(Kind::ReadWrite), &both);
            let single = |edge: &Edge| Edge { from: edge.from % count, to: edge.to % count, ..*edge };
            let found = found.into_iter().map(|(cycle, component)| {
                (cycle.iter().map(single).collect(), component.into_iter().map(|txn| txn % count).collect())
            });
            found.collect()
        }
        Search::Any(rests) => {
            in_components(graph, whole(rests), mark(rests).or(Some(Kind::ReadWrite)), known)
        }
    }
}

/// A shortest cycle in each component along allowed dependencies; it has one of the kind `first`, if that is asked.
fn in_components(
    graph: &Graph,
    allowed: Allowed,
    first: Option<Kind>,
    known: &BTreeSet<usize>,
) -> Vec<(Vec<Edge>, Vec<usize>)> {
    let (component, _) = graph.components(allowed);
    let firsts = graph.edges().filter(|edge| {
        let is_first = first.is_none_or(|kind| edge.kind == kind) && allowed(edge.kind);
        is_first && component[edge.from] == component[edge.to]
    });
    shortest(graph, allowed, &component, firsts, known)
}

/// A shortest cycle with one missed write in each component.
fn with_one_missed(graph: &Graph, rests: Rests, known: &BTreeSet<usize>) -> Vec<(Vec<Edge>, Vec<usize>)> {
    let (component, _) = graph.components(whole(rests));
    let (order, _) = graph.components(direct(rests));
    // A way back leads from larger numbers to smaller ones.
    let firsts: Vec<&Edge> = graph
        .edges()
        .filter(|edge| edge.kind == Kind::ReadWrite && component[edge.from] == component[edge.to])
        .filter(|edge| order[edge.to] >= order[edge.from])
        .collect();
    let pairs: Vec<(usize, usize)> = firsts.iter().map(|edge| (edge.to, edge.from)).collect();
    let reaches = graph.reaches(direct(rests), &order, &pairs);
    let firsts = firsts.into_iter().zip(reaches).filter_map(|(edge, is_cycle)| is_cycle.then_some(edge));
    shortest(graph, direct(rests), &component, firsts, known)
}

/// A shortest cycle of each component, of those that begin with one of the first dependencies.
fn shortest<'a>(
    graph: &Graph,
    allowed: Allowed,
    component: &[usize],
    firsts: impl Iterator<Item = &'a Edge>,
    known: &BTreeSet<usize>,
) -> Vec<(Vec<Edge>, Vec<usize>)> {
    let mut by_component: BTreeMap<usize, Vec<&Edge>> = BTreeMap::new();
    firsts.for_each(|edge| by_component.entry(component[edge.from]).or_default().push(edge));
    known.iter().for_each(|txn| _ = by_component.remove(&component[*txn]));
    let mut ways = Ways::new(graph, BUDGET.max(4 * graph.edges().count()));
    let mut found = Vec::new();
    for (number, firsts) in by_component.into_iter().take(COMPONENTS) {
        let mut least: Option<Vec<Edge>> = None;
        let step = firsts.len().div_ceil(ATTEMPTS);
        for first in firsts.into_iter().step_by(step) {
            let cycle = ways.cycle(first, allowed, component);
            if let Some(cycle) =
                cycle.filter(|cycle| least.as_ref().is_none_or(|least| cycle.len() < least.len()))
            {
                // There is none of one transaction.
                let is_least = cycle.len() <= 2;
                least = Some(cycle);
                if is_least {
                    break;
                }
            }
        }
        if let Some(cycle) = least {
            let members = (0..component.len()).filter(|txn| component[*txn] == number).collect();
            found.push((cycle, members));
        }
    }
    found
}

/// The name of a cycle.
fn anomaly_of(cycle: &[Edge]) -> Anomaly {
    let count = cycle.len();
    let has = |kind| cycle.iter().any(|edge| edge.kind == kind);
    let is_missed = |at: usize| cycle[at % count].kind == Kind::ReadWrite;
    let missed = (0..count).filter(|at| is_missed(*at)).count();
    let is_in_a_row = count > 1 && (0..count).any(|at| is_missed(at) && is_missed(at + 1));
    // True if a session order follows a read of a write: the session had seen what it stands behind.
    let had_read = |at: usize| {
        cycle[at % count].kind == Kind::WriteRead && cycle[(at + 1) % count].kind == Kind::Session
    };
    let had_read = (0..count).any(had_read);
    match (missed, is_in_a_row) {
        _ if has(Kind::RealTime) => Anomaly::RealTime,
        _ if has(Kind::Stamp) => Anomaly::StampOrder,
        (0, _) if has(Kind::Session) && had_read => Anomaly::WritesFollowReads,
        (0, _) if has(Kind::Session) => Anomaly::MonotonicWrites,
        (1, _) if has(Kind::Session) && had_read => Anomaly::MonotonicReads,
        (1, _) if has(Kind::Session) => Anomaly::ReadYourWrites,
        (_, false) if has(Kind::Session) => Anomaly::SessionFork,
        (_, true) if has(Kind::Session) => Anomaly::SessionSkew,
        (0, _) if has(Kind::WriteRead) => Anomaly::InformationCycle,
        (0, _) => Anomaly::WriteCycle,
        (1, _) => with_one(cycle),
        (_, false) => Anomaly::LongFork,
        (_, true) => Anomaly::WriteSkew,
    }
}

/// The name of a cycle of data with one missed write.
fn with_one(cycle: &[Edge]) -> Anomaly {
    let [first, second] = cycle else { return Anomaly::ReadSkew };
    let (missed, direct) = if first.kind == Kind::ReadWrite { (first, second) } else { (second, first) };
    match (direct.kind, direct.key == missed.key) {
        (Kind::WriteWrite, true) => Anomaly::LostUpdate,
        (Kind::WriteRead, true) => Anomaly::FuzzyRead,
        (Kind::WriteRead, false) => Anomaly::FracturedRead,
        _ => Anomaly::ReadSkew,
    }
}
