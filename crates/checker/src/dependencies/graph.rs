//! Dependencies between transactions as a graph: components, shortest ways, and what is reached from where.

use std::collections::VecDeque;

/// The reason why one transaction comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Its value is followed by the other's.
    WriteWrite,
    /// The other saw its value last.
    WriteRead,
    /// It did not see the other's value, which came next.
    ReadWrite,
    /// The session that both are of asked for it before.
    Session,
    /// It was answered before the other was asked.
    RealTime,
    /// Its stamp is less.
    Stamp,
}

impl Kind {
    /// The short name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::WriteWrite => "ww",
            Kind::WriteRead => "wr",
            Kind::ReadWrite => "rw",
            Kind::Session => "so",
            Kind::RealTime => "rt",
            Kind::Stamp => "stamp",
        }
    }
}

/// A dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edge {
    /// The transaction that comes before.
    pub from: usize,
    /// The transaction that comes after.
    pub to: usize,
    /// The reason.
    pub kind: Kind,
    /// The key whose values are the reason; 0 where the reason is another.
    pub key: u64,
}

/// The kinds of dependencies that a search follows.
pub type Allowed = fn(Kind) -> bool;

/// Transactions by number, and what depends on them. Behind them in the numbering there may be *instants*, which only carry
/// dependencies in real time on: a way through them costs nothing.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    edges: Vec<Vec<Edge>>,
    txns: usize,
}

impl Graph {
    /// A graph of `txns` transactions and `instants` instants without dependencies.
    pub fn new(txns: usize, instants: usize) -> Graph {
        Graph { edges: vec![Vec::new(); txns + instants], txns }
    }

    /// Adds a dependency; none of a transaction on itself.
    pub fn add(&mut self, edge: Edge) {
        if edge.from != edge.to {
            self.edges[edge.from].push(edge);
        }
    }

    /// All dependencies.
    pub fn edges(&self) -> impl Iterator<Item = &Edge> {
        self.edges.iter().flatten()
    }

    /// The number of transactions and instants.
    pub fn nodes(&self) -> usize {
        self.edges.len()
    }

    /// A graph in which every way of this one is a way that never misses two writes in a row: a node n stands for
    /// transaction n, a node n + [`nodes`](Graph::nodes) for the same when the last dependency on the way was a missed write.
    pub fn apart(&self, allowed: Allowed) -> Graph {
        let count = self.nodes();
        let mut graph = Graph::new(2 * count, 0);
        graph.txns = 2 * count;
        for edge in self.edges().filter(|edge| allowed(edge.kind) || edge.kind == Kind::ReadWrite) {
            if edge.kind == Kind::ReadWrite {
                graph.edges[edge.from].push(Edge { to: edge.to + count, ..*edge });
            } else {
                graph.edges[edge.from].push(*edge);
                graph.edges[edge.from + count].push(Edge { from: edge.from + count, ..*edge });
            }
        }
        graph
    }

    /// The number of each node's strongly connected component, as far as allowed dependencies go, and how many there are.
    /// A node is reached from none of a smaller number but its own component's. Tarjan's algorithm, with a stack of its
    /// own instead of recursion.
    pub fn components(&self, allowed: Allowed) -> (Vec<usize>, usize) {
        const UNSEEN: usize = usize::MAX;
        let count = self.edges.len();
        let (mut index, mut low) = (vec![UNSEEN; count], vec![0; count]);
        let mut component = vec![UNSEEN; count];
        let (mut open, mut path) = (Vec::new(), Vec::new());
        let (mut next, mut found) = (0, 0);
        for root in 0..count {
            if index[root] != UNSEEN {
                continue;
            }
            // The nodes on the way from the root, each with the edge that is next.
            path.push((root, 0));
            while let Some((at, edge)) = path.last_mut() {
                let node = *at;
                if *edge == 0 {
                    (index[node], low[node]) = (next, next);
                    next += 1;
                    open.push(node);
                }
                let Some(step) = self.edges[node].get(*edge) else {
                    path.pop();
                    if let Some((parent, _)) = path.last() {
                        low[*parent] = low[*parent].min(low[node]);
                    }
                    if low[node] == index[node] {
                        while let Some(member) = open.pop() {
                            component[member] = found;
                            if member == node {
                                break;
                            }
                        }
                        found += 1;
                    }
                    continue;
                };
                *edge += 1;
                if allowed(step.kind) {
                    if index[step.to] == UNSEEN {
                        path.push((step.to, 0));
                    } else if component[step.to] == UNSEEN {
                        low[node] = low[node].min(index[step.to]);
                    }
                }
            }
        }
        (component, found)
    }

    /// Reachability along allowed dependencies: true for each pair (from, to) where `to` is reached. `order` are the
    /// components' numbers along the same dependencies.
    pub fn reaches(&self, allowed: Allowed, order: &[usize], pairs: &[(usize, usize)]) -> Vec<bool> {
        const WORDS: usize = 8;
        const LANES: usize = 64 * WORDS;
        let mut reached = vec![false; pairs.len()];
        // Ways lead from larger numbers to smaller ones.
        let mut nodes: Vec<usize> = (0..self.nodes()).collect();
        nodes.sort_by_key(|node| std::cmp::Reverse(order[*node]));
        let mut place = vec![0; nodes.len()];
        nodes.iter().enumerate().for_each(|(at, node)| place[*node] = at);
        let mut sorted: Vec<usize> = (0..pairs.len()).collect();
        sorted.sort_by_key(|pair| place[pairs[*pair].0]);
        let mut marks = vec![[0u64; WORDS]; self.nodes()];
        for batch in sorted.chunks(LANES) {
            let first = batch.iter().map(|pair| place[pairs[*pair].0]).min().unwrap_or(0);
            let last = batch.iter().map(|pair| place[pairs[*pair].1]).max().unwrap_or(0);
            if first > last {
                continue;
            }
            nodes[first..=last].iter().for_each(|node| marks[*node] = [0; WORDS]);
            for (lane, pair) in batch.iter().enumerate() {
                marks[pairs[*pair].0][lane / 64] |= 1 << (lane % 64);
            }
            for node in &nodes[first..=last] {
                let mark = marks[*node];
                if mark == [0; WORDS] {
                    continue;
                }
                let later = place[*node] + 1..=last;
                for edge in self.edges[*node]
                    .iter()
                    .filter(|edge| allowed(edge.kind) && later.contains(&place[edge.to]))
                {
                    marks[edge.to].iter_mut().zip(mark).for_each(|(to, from)| *to |= from);
                }
            }
            for (lane, pair) in batch.iter().enumerate() {
                let (from, to) = pairs[*pair];
                let is_between = place[from] <= place[to];
                reached[*pair] = is_between && marks[to][lane / 64] >> (lane % 64) & 1 == 1;
            }
        }
        reached
    }
}

/// Searches of shortest ways in one graph, with their memory.
pub struct Ways<'a> {
    graph: &'a Graph,
    /// The dependency by which each node was reached, and in which search.
    came_by: Vec<Option<(u32, Edge, u32)>>,
    searches: u32,
    /// The dependencies that may still be looked at, over all searches.
    budget: usize,
}

impl<'a> Ways<'a> {
    /// Searches that look at so many dependencies at most.
    pub fn new(graph: &'a Graph, budget: usize) -> Ways<'a> {
        Ways { graph, came_by: vec![None; graph.nodes()], searches: 0, budget }
    }

    /// A shortest cycle that begins with a dependency and goes on along allowed ones inside a component; `None` too if the
    /// budget is used up. Instants on the way do not count for its length and are left out of it.
    pub fn cycle(&mut self, first: &Edge, allowed: Allowed, component: &[usize]) -> Option<Vec<Edge>> {
        self.searches += 1;
        let Ways { graph, came_by, searches, budget } = self;
        let (search, home) = (*searches, component[first.from]);
        let cost = |to: usize| u32::from(to < graph.txns);
        let mut queue = VecDeque::from([(first.to, cost(first.to))]);
        came_by[first.to] = Some((search, *first, cost(first.to)));
        while let Some((node, length)) = queue.pop_front() {
            if came_by[node].is_none_or(|(_, _, least)| least < length) {
                continue;
            }
            if node == first.from {
                break;
            }
            for edge in &graph.edges[node] {
                *budget = budget.checked_sub(1)?;
                let length = length + cost(edge.to);
                let is_known = came_by[edge.to].is_some_and(|(of, _, least)| of == search && least <= length);
                if is_known || !allowed(edge.kind) || component[edge.to] != home {
                    continue;
                }
                came_by[edge.to] = Some((search, *edge, length));
                // Edges to instants cost nothing, and are searched first.
                if edge.to < graph.txns {
                    queue.push_back((edge.to, length))
                } else {
                    queue.push_front((edge.to, length))
                }
            }
        }
        let mut cycle = Vec::new();
        let mut at = first.from;
        loop {
            let (_, edge, _) = came_by[at].filter(|(of, ..)| *of == search)?;
            cycle.push(edge);
            if edge == *first {
                break;
            }
            at = edge.from;
        }
        cycle.reverse();
        Some(join(&cycle, graph.txns))
    }
}

/// A cycle without the instants on it.
fn join(cycle: &[Edge], txns: usize) -> Vec<Edge> {
    // A cycle has a transaction, because time does not go back.
    let start = cycle.iter().position(|edge| edge.from < txns).unwrap_or(0);
    let mut joined: Vec<Edge> = Vec::new();
    for edge in cycle[start..].iter().chain(&cycle[..start]) {
        match joined.last_mut() {
            Some(last) if last.to >= txns => last.to = edge.to,
            _ => joined.push(*edge),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_model::Random;

    fn graph(txns: usize, edges: &[(usize, usize, Kind)]) -> Graph {
        let mut graph = Graph::new(txns, 0);
        edges
            .iter()
            .for_each(|(from, to, kind)| graph.add(Edge { from: *from, to: *to, kind: *kind, key: 0 }));
        graph
    }

    const ALL: Allowed = |_| true;

    /// Which node is reached from which, over one edge at least.
    fn reach(txns: usize, edges: &[(usize, usize, Kind)], allowed: Allowed) -> Vec<Vec<bool>> {
        let mut reach = vec![vec![false; txns]; txns];
        edges.iter().filter(|edge| allowed(edge.2)).for_each(|(from, to, _)| reach[*from][*to] = true);
        for via in 0..txns {
            for from in 0..txns {
                for to in 0..txns {
                    reach[from][to] |= reach[from][via] && reach[via][to];
                }
            }
        }
        reach
    }

    #[test]
    fn components_are_those_of_mutual_reachability_and_ways_lead_to_smaller_numbers() {
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
                let reach = reach(txns, &edges, allowed);
                let graph = graph(txns, &edges);
                let (component, count) = graph.components(allowed);
                assert_eq!(component.iter().max().map(|most| most + 1), Some(count));
                let pairs: Vec<(usize, usize)> =
                    (0..txns).flat_map(|a| (0..txns).map(move |b| (a, b))).filter(|(a, b)| a != b).collect();
                for (a, b) in &pairs {
                    let is_one = reach[*a][*b] && reach[*b][*a];
                    assert_eq!(component[*a] == component[*b], is_one, "round {round}: {edges:?}");
                    assert!(!reach[*a][*b] || component[*a] >= component[*b], "round {round}: {edges:?}");
                }
                // Many pairs at a time; what is asked of a graph has no cycles.
                if count == txns {
                    let reached = graph.reaches(allowed, &component, &pairs.repeat(9));
                    let expected: Vec<bool> = pairs.repeat(9).iter().map(|(a, b)| reach[*a][*b]).collect();
                    assert_eq!(reached, expected, "round {round}: {edges:?}");
                }
            }
        }
    }

    #[test]
    fn a_long_chain_needs_no_recursion_and_its_cycle_is_found_whole() {
        use Kind::{ReadWrite, WriteWrite};
        const COUNT: usize = 200_000;
        let mut graph = Graph::new(COUNT, 0);
        for from in 0..COUNT - 1 {
            graph.add(Edge { from, to: from + 1, kind: WriteWrite, key: 1 });
        }
        assert_eq!(graph.components(ALL).1, COUNT);
        let back = Edge { from: COUNT - 1, to: 0, kind: ReadWrite, key: 2 };
        graph.add(back);
        let (component, count) = graph.components(ALL);
        assert_eq!(count, 1);
        assert_eq!(graph.components(|kind| kind != ReadWrite).1, COUNT);
        let cycle = Ways::new(&graph, 1_000_000).cycle(&back, |kind| kind == WriteWrite, &component).unwrap();
        assert_eq!((cycle.len(), cycle[0]), (COUNT, back));
        assert!(cycle.windows(2).all(|pair| pair[0].to == pair[1].from));
        assert_eq!(Ways::new(&graph, 10).cycle(&back, ALL, &component), None);
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
        let first = Edge { from: 0, to: 1, kind: ReadWrite, key: 0 };
        let mut ways = Ways::new(&graph, 100);
        let mut length = |allowed| ways.cycle(&first, allowed, &[0; 4]).map(|cycle| cycle.len());
        assert_eq!(length(ALL), Some(2));
        assert_eq!(length(|kind| kind != ReadWrite), Some(4));
        assert_eq!(length(|kind| kind == WriteWrite), None);
    }

    #[test]
    fn a_way_through_instants_costs_as_much_as_a_dependency() {
        let mut graph = Graph::new(3, 3);
        let mut add = |from, to, kind| graph.add(Edge { from, to, kind, key: 0 });
        add(0, 3, Kind::RealTime);
        add(3, 4, Kind::RealTime);
        add(4, 5, Kind::RealTime);
        add(5, 1, Kind::RealTime);
        add(0, 2, Kind::WriteWrite);
        add(2, 1, Kind::WriteWrite);
        add(1, 0, Kind::ReadWrite);
        let back = Edge { from: 1, to: 0, kind: Kind::ReadWrite, key: 0 };
        let cycle = Ways::new(&graph, 100).cycle(&back, ALL, &[0; 6]).unwrap();
        assert_eq!(cycle, [back, Edge { from: 0, to: 1, kind: Kind::RealTime, key: 0 }]);
        let chain = Edge { from: 3, to: 4, kind: Kind::RealTime, key: 0 };
        assert_eq!(Ways::new(&graph, 100).cycle(&chain, ALL, &[0; 6]).map(|cycle| cycle.len()), Some(2));
    }

    #[test]
    fn ways_apart_never_miss_two_writes_in_a_row() {
        use Kind::{ReadWrite, WriteRead};
        let skew = graph(2, &[(0, 1, ReadWrite), (1, 0, ReadWrite)]);
        assert_eq!(skew.apart(|kind| kind != ReadWrite).components(ALL).1, 4);
        let fork = graph(4, &[(0, 2, WriteRead), (2, 1, ReadWrite), (1, 3, WriteRead), (3, 0, ReadWrite)]);
        assert_eq!(fork.apart(|kind| kind != ReadWrite).components(ALL).1, 5);
    }
}
