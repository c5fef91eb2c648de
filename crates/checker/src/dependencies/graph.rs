//! Cycles in a graph of dependencies between transactions.

use std::collections::VecDeque;

/// Why one transaction comes before another (Adya, "Weak consistency", 1999).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Its value is followed by the other's.
    WriteWrite,
    /// The other saw its value last.
    WriteRead,
    /// It did not see the other's value, which came next.
    ReadWrite,
}

impl Kind {
    /// Its short name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::WriteWrite => "ww",
            Kind::WriteRead => "wr",
            Kind::ReadWrite => "rw",
        }
    }
}

/// A dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Which transaction comes before.
    pub from: usize,
    /// Which comes after.
    pub to: usize,
    /// Why.
    pub kind: Kind,
    /// On whose list.
    pub key: u64,
}

/// Transactions by number, and what depends on them.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    edges: Vec<Vec<Edge>>,
}

/// The kinds of dependencies that a search follows.
pub type Allowed = fn(Kind) -> bool;

impl Graph {
    /// So many transactions that do not depend on each other.
    pub fn new(txns: usize) -> Graph {
        Graph { edges: vec![Vec::new(); txns] }
    }

    /// Adds a dependency; none of a transaction on itself.
    pub fn add(&mut self, edge: Edge) {
        if edge.from != edge.to {
            self.edges[edge.from].push(edge);
        }
    }

    /// The strongly connected components of more than one transaction: every cycle lies inside one. Tarjan's
    /// algorithm, with a stack of its own instead of recursion.
    pub fn components(&self, allowed: Allowed) -> Vec<Vec<usize>> {
        const UNSEEN: usize = usize::MAX;
        let count = self.edges.len();
        let (mut index, mut low) = (vec![UNSEEN; count], vec![0; count]);
        let mut is_open = vec![false; count];
        let (mut open, mut path) = (Vec::new(), Vec::new());
        let (mut next, mut components) = (0, Vec::new());
        for root in 0..count {
            if index[root] != UNSEEN {
                continue;
            }
            // The transactions on the way from the root, each with the edge that is next.
            path.push((root, 0));
            while let Some((at, edge)) = path.last_mut() {
                let node = *at;
                if *edge == 0 {
                    (index[node], low[node]) = (next, next);
                    next += 1;
                    open.push(node);
                    is_open[node] = true;
                }
                let Some(found) = self.edges[node].get(*edge) else {
                    path.pop();
                    if let Some((parent, _)) = path.last() {
                        low[*parent] = low[*parent].min(low[node]);
                    }
                    if low[node] == index[node] {
                        let start = open.iter().rposition(|n| *n == node).unwrap_or(0);
                        let component = open.split_off(start);
                        component.iter().for_each(|n| is_open[*n] = false);
                        if component.len() > 1 {
                            components.push(component);
                        }
                    }
                    continue;
                };
                *edge += 1;
                if allowed(found.kind) {
                    if index[found.to] == UNSEEN {
                        path.push((found.to, 0));
                    } else if is_open[found.to] {
                        low[node] = low[node].min(index[found.to]);
                    }
                }
            }
        }
        components
    }

    /// The dependencies inside a component.
    pub fn inside<'a>(
        &'a self,
        component: &'a [usize],
        is_member: &'a [bool],
    ) -> impl Iterator<Item = &'a Edge> {
        component.iter().flat_map(|node| &self.edges[*node]).filter(|edge| is_member[edge.to])
    }

    /// Which transactions are in a component.
    pub fn membership(&self, component: &[usize]) -> Vec<bool> {
        let mut is_member = vec![false; self.edges.len()];
        component.iter().for_each(|node| is_member[*node] = true);
        is_member
    }

    /// A shortest cycle that begins with `first` and goes on inside a component along allowed dependencies.
    /// `budget` is lowered by each dependency on the way; a search that would exceed it finds nothing.
    pub fn cycle(
        &self,
        first: &Edge,
        allowed: Allowed,
        is_member: &[bool],
        budget: &mut usize,
    ) -> Option<Vec<Edge>> {
        let mut came_by: Vec<Option<Edge>> = vec![None; self.edges.len()];
        let mut queue = VecDeque::from([first.to]);
        came_by[first.to] = Some(*first);
        while let Some(node) = queue.pop_front() {
            for edge in &self.edges[node] {
                *budget = budget.checked_sub(1)?;
                if !allowed(edge.kind) || !is_member[edge.to] || came_by[edge.to].is_some() {
                    continue;
                }
                came_by[edge.to] = Some(*edge);
                if edge.to == first.from {
                    let mut cycle = vec![*edge];
                    while let Some(step) = cycle.last().and_then(|step| came_by[step.from]) {
                        cycle.push(step);
                        if step == *first {
                            break;
                        }
                    }
                    cycle.reverse();
                    return Some(cycle);
                }
                queue.push_back(edge.to);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_sim::Random;

    fn graph(txns: usize, edges: &[(usize, usize, Kind)]) -> Graph {
        let mut graph = Graph::new(txns);
        edges
            .iter()
            .for_each(|(from, to, kind)| graph.add(Edge { from: *from, to: *to, kind: *kind, key: 0 }));
        graph
    }

    const ALL: Allowed = |_| true;

    #[test]
    fn components_are_those_of_mutual_reachability() {
        let mut random = Random::new(5);
        for round in 0..300u64 {
            let txns = 2 + random.below(9) as usize;
            let edges: Vec<_> = (0..random.below(2 * txns as u64 + 1))
                .map(|_| {
                    let kind = if random.below(3) == 0 { Kind::ReadWrite } else { Kind::WriteWrite };
                    (random.below(txns as u64) as usize, random.below(txns as u64) as usize, kind)
                })
                .collect();
            for allowed in [ALL, |kind| kind == Kind::WriteWrite] {
                let mut reach = vec![vec![false; txns]; txns];
                edges
                    .iter()
                    .filter(|edge| allowed(edge.2))
                    .for_each(|(from, to, _)| reach[*from][*to] = true);
                for via in 0..txns {
                    for from in 0..txns {
                        for to in 0..txns {
                            reach[from][to] |= reach[from][via] && reach[via][to];
                        }
                    }
                }
                let mut found = graph(txns, &edges).components(allowed);
                found.iter_mut().for_each(|component| component.sort_unstable());
                found.sort();
                let mut expected: Vec<Vec<usize>> = (0..txns)
                    .map(|a| (0..txns).filter(|b| *b == a || (reach[a][*b] && reach[*b][a])).collect())
                    .filter(|component: &Vec<usize>| component.len() > 1)
                    .collect();
                expected.sort();
                expected.dedup();
                assert_eq!(found, expected, "round {round}: {edges:?}");
            }
        }
    }

    #[test]
    fn a_long_chain_needs_no_recursion_and_its_cycle_is_found_whole() {
        use Kind::{ReadWrite, WriteWrite};
        let mut graph = Graph::new(200_000);
        for from in 0..199_999 {
            graph.add(Edge { from, to: from + 1, kind: WriteWrite, key: 1 });
        }
        assert!(graph.components(ALL).is_empty());
        let back = Edge { from: 199_999, to: 0, kind: ReadWrite, key: 2 };
        graph.add(back);
        let components = graph.components(ALL);
        assert_eq!((components.len(), components[0].len()), (1, 200_000));
        assert!(graph.components(|kind| kind != ReadWrite).is_empty());
        let is_member = graph.membership(&components[0]);
        let cycle = graph.cycle(&back, |kind| kind == WriteWrite, &is_member, &mut 1_000_000).unwrap();
        assert_eq!((cycle.len(), cycle[0]), (200_000, back));
        assert!(cycle.windows(2).all(|pair| pair[0].to == pair[1].from));
        assert_eq!(graph.cycle(&back, ALL, &is_member, &mut 10), None);
    }

    #[test]
    fn a_cycle_is_a_shortest_one_of_allowed_dependencies() {
        use Kind::{ReadWrite, WriteRead, WriteWrite};
        let graph = graph(
            4,
            &[
                (0, 1, ReadWrite),
                (1, 0, ReadWrite),
                (1, 2, WriteWrite),
                (2, 3, WriteRead),
                (3, 0, WriteWrite),
                (2, 2, WriteWrite),
            ],
        );
        let is_member = vec![true; 4];
        let first = Edge { from: 0, to: 1, kind: ReadWrite, key: 0 };
        let length = |allowed| graph.cycle(&first, allowed, &is_member, &mut 100).map(|cycle| cycle.len());
        assert_eq!(length(ALL), Some(2));
        assert_eq!(length(|kind| kind != ReadWrite), Some(4));
        assert_eq!(length(|kind| kind == WriteWrite), None);
    }
}
