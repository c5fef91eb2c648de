//! The graph of waits over all shards of a node, for engines whose waits may close a cycle (sheet regions.md, 4.5 and G1).
//!
//! Each participant reports a wait that has begun or changed, and an attempt that is over there and was named in such a report. Its reports
//! arrive in their order, so the graph has of each shard the waits of a moment ago. Waits that close a cycle stay until one of them is refused:
//! the report that comes last finds all of them, and no deadlock is missed. A wait of another shard may be over already when a cycle is found:
//! then the refusal was not needed, which is counted.
//!
//! - **Cycles.** The youngest transaction of a cycle is refused. Its next attempt keeps the age, so the oldest transaction is never refused.
//! - **Regions.** No path leads from one transaction of several regions to another one: those would wait for each other by way of regions
//!   that do not see it. With `U` all that wait for a requester by any path, `D` all that it waits for, the requester included in both, it is
//!   refused if `U` has one and `D` another one. Direct waits alone, or the way forward alone, miss cycles over two regions.
//!
//! An attempt that is refused counts no more, unless its participant says that it did not wait any more; then it is judged anew.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ordain_role::{Bug, Bugs};

use crate::concurrency::Seniority;
use crate::ids::{Age, AttemptId};

#[cfg(test)]
mod tests;

/// A refusal of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    /// The participant's number.
    pub shard: u16,
    /// The attempt that waits there.
    pub who: AttemptId,
    /// The attempt for which it must not wait.
    pub behind: AttemptId,
}

/// Figures of a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Waits that closed a cycle.
    pub cycles: u64,
    /// Waits that led from one transaction of several regions to another one.
    pub regions: u64,
    /// Refusals that came when the wait was over.
    pub spared: u64,
    /// Refusals for cycles that another attempt has opened before the refused one was over.
    pub unneeded: u64,
}

/// An attempt that waits, or for which others wait.
#[derive(Clone, Debug, Default)]
struct Node {
    /// Known of those that wait.
    age: Age,
    /// The attempts that it waits for, by shard. No set is empty.
    waits: BTreeMap<u16, BTreeSet<AttemptId>>,
    /// The attempts that wait for it, by shard. No set is empty.
    waiters: BTreeMap<u16, BTreeSet<AttemptId>>,
}

impl Node {
    fn is_alone(&self) -> bool {
        self.waits.is_empty() && self.waiters.is_empty()
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct WaitsFor {
    nodes: BTreeMap<AttemptId, Node>,
    /// Attempts of transactions of several regions.
    multi: BTreeSet<AttemptId>,
    /// Attempts that are refused and not over yet, with the others of the cycle while that is not open.
    refused: BTreeMap<AttemptId, Vec<AttemptId>>,
    counts: Refusals,
    bugs: Bugs,
}

fn add(sets: &mut BTreeMap<u16, BTreeSet<AttemptId>>, shard: u16, who: AttemptId) {
    sets.entry(shard).or_default().insert(who);
}

fn remove(sets: &mut BTreeMap<u16, BTreeSet<AttemptId>>, shard: u16, who: AttemptId) {
    if let Some(set) = sets.get_mut(&shard) {
        set.remove(&who);
        if set.is_empty() {
            sets.remove(&shard);
        }
    }
}

/// The direction in which paths are followed.
#[derive(Clone, Copy)]
enum Way {
    /// To those that are waited for.
    Forward,
    /// To those that wait.
    Back,
}

impl WaitsFor {
    /// The graph with planted bugs, for tests of those that find them.
    #[must_use]
    pub fn planting(self, bugs: Bugs) -> WaitsFor {
        WaitsFor { bugs, ..self }
    }

    /// An attempt of this age waits at a shard for exactly these. Answers which waits are refused.
    pub fn wait(&mut self, shard: u16, who: AttemptId, age: Age, behind: &[AttemptId]) -> Vec<Refusal> {
        self.drop_waits(shard, who);
        for other in behind.iter().filter(|other| **other != who) {
            add(&mut self.nodes.entry(*other).or_default().waiters, shard, who);
            add(&mut self.nodes.entry(who).or_default().waits, shard, *other);
        }
        self.nodes.entry(who).or_default().age = age;
        self.forget_if_alone(who);
        self.judge(who)
    }

    /// An attempt is over at a shard: nobody waits for it there, and it waits for nobody.
    pub fn over(&mut self, shard: u16, who: AttemptId) {
        for (victim, cycle) in &mut self.refused {
            let opens = *victim != who && cycle.contains(&who);
            self.counts.unneeded += u64::from(opens);
            if opens || *victim == who {
                cycle.clear();
            }
        }
        self.drop_waits(shard, who);
        let waiters = self.nodes.get_mut(&who).and_then(|node| node.waiters.remove(&shard));
        for waiter in waiters.unwrap_or_default() {
            if let Some(node) = self.nodes.get_mut(&waiter) {
                remove(&mut node.waits, shard, who);
            }
            self.forget_if_alone(waiter);
        }
        self.forget_if_alone(who);
    }

    /// A refused attempt goes on: it did not wait any more when the refusal came. Answers which waits are refused now.
    pub fn spare(&mut self, who: AttemptId) -> Vec<Refusal> {
        self.refused.remove(&who);
        self.counts.spared += 1;
        self.judge(who)
    }

    /// An attempt turns out to be of a transaction of several regions. Answers whether it must abort, before it does anything else.
    pub fn become_multi(&mut self, who: AttemptId) -> bool {
        self.multi.insert(who);
        let aborts = !self.refused.contains_key(&who) && self.joins_regions(who).is_some();
        if aborts {
            self.counts.regions += 1;
            self.refused.insert(who, Vec::new());
        }
        aborts
    }

    /// An attempt of a transaction of several regions is over.
    pub fn end_multi(&mut self, who: AttemptId) {
        self.multi.remove(&who);
    }

    /// Forgets everything, since the term has changed.
    pub fn clear(&mut self) {
        self.nodes.clear();
        self.multi.clear();
        self.refused.clear();
    }

    /// The number of attempts that wait, or for which others wait.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True if nobody waits.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Figures.
    pub const fn counts(&self) -> Refusals {
        self.counts
    }

    // ---- edges ---------------------------------------------------------------------------------------------

    fn drop_waits(&mut self, shard: u16, who: AttemptId) {
        let waits = self.nodes.get_mut(&who).and_then(|node| node.waits.remove(&shard));
        for other in waits.unwrap_or_default() {
            if let Some(node) = self.nodes.get_mut(&other) {
                remove(&mut node.waiters, shard, who);
            }
            self.forget_if_alone(other);
        }
    }

    fn forget_if_alone(&mut self, who: AttemptId) {
        if self.nodes.get(&who).is_some_and(Node::is_alone) {
            self.nodes.remove(&who);
            self.refused.remove(&who);
        }
    }

    /// The attempts at the ends of an attempt's edges, but for those that are refused.
    fn next(&self, who: AttemptId, way: Way) -> impl Iterator<Item = AttemptId> {
        let edges = self.nodes.get(&who).map(|node| match way {
            Way::Forward => &node.waits,
            Way::Back => &node.waiters,
        });
        let ends = edges.into_iter().flat_map(BTreeMap::values).flatten().copied();
        ends.filter(|end| !self.refused.contains_key(end))
    }

    /// The shortest path along edges from an attempt to one that is meant, which may be the attempt itself: those after the first one.
    fn path(
        &self,
        from: AttemptId,
        way: Way,
        is_meant: impl Fn(AttemptId) -> bool,
    ) -> Option<Vec<AttemptId>> {
        let mut before: BTreeMap<AttemptId, AttemptId> = BTreeMap::new();
        let mut ahead = VecDeque::from([from]);
        while let Some(at) = ahead.pop_front() {
            for end in self.next(at, way) {
                if before.contains_key(&end) {
                    continue;
                }
                before.insert(end, at);
                if is_meant(end) {
                    let mut path = vec![end];
                    let mut at = at;
                    while at != from {
                        path.push(at);
                        at = before[&at];
                    }
                    path.reverse();
                    return Some(path);
                }
                // Planted, NO-DEADLOCK: an attempt waits for those alone that are in its way itself.
                if end != from && !self.bugs.has(Bug::DirectWaitsOnly) {
                    ahead.push_back(end);
                }
            }
        }
        None
    }

    /// The cycle that an attempt is in, from the one that it waits for to itself.
    fn cycle(&self, who: AttemptId) -> Option<Vec<AttemptId>> {
        // Planted, NO-DEADLOCK.
        if self.bugs.has(Bug::MissCycle) {
            return None;
        }
        if self.bugs.has(Bug::DirectWaitsOnly) {
            let other =
                self.next(who, Way::Forward).find(|end| self.next(*end, Way::Forward).any(|to| to == who));
            return other.map(|other| vec![other, who]);
        }
        self.path(who, Way::Forward, |end| end == who)
    }

    /// The wait by which an attempt joins two of several regions, each of which may be the attempt itself: who must not wait, and for whom.
    ///
    /// That is a wait of the attempt, unless it has none: then another such one has begun to wait for it while it was to be refused.
    fn joins_regions(&self, who: AttemptId) -> Option<(AttemptId, AttemptId)> {
        if self.multi.len() < 2 {
            return None;
        }
        let is_multi = |end: AttemptId| self.multi.contains(&end);
        let other = |than: AttemptId| move |end: AttemptId| end != than && is_multi(end);
        let ahead = match is_multi(who) {
            true => self.path(who, Way::Forward, other(who)),
            // Any that is ahead will do, as it is not the one behind: the attempt is in no cycle.
            false => {
                let behind = self.path(who, Way::Back, is_multi)?;
                return Some((who, *self.path(who, Way::Forward, other(*behind.last()?))?.first()?));
            }
        };
        if let Some(ahead) = ahead {
            return Some((who, *ahead.first()?));
        }
        Some((*self.path(who, Way::Back, other(who))?.first()?, who))
    }

    // ---- refusals ------------------------------------------------------------------------------------------

    /// Refuses waits until an attempt is in no cycle, and joins no two transactions of several regions.
    fn judge(&mut self, who: AttemptId) -> Vec<Refusal> {
        let mut refusals = Vec::new();
        while !self.refused.contains_key(&who)
            && let Some(cycle) = self.cycle(who)
        {
            self.counts.cycles += 1;
            let victim = cycle.iter().copied().max_by_key(|member| self.seniority(*member)).unwrap_or(who);
            let next =
                cycle.iter().position(|member| *member == victim).map_or(0, |at| (at + 1) % cycle.len());
            let behind = cycle[next];
            self.refuse(victim, behind, cycle, &mut refusals);
        }
        while !self.refused.contains_key(&who)
            && let Some((waiter, behind)) = self.joins_regions(who)
        {
            self.counts.regions += 1;
            self.refuse(waiter, behind, Vec::new(), &mut refusals);
        }
        refusals
    }

    fn seniority(&self, who: AttemptId) -> Seniority {
        (self.nodes.get(&who).map_or(Age(0), |node| node.age), who.transaction)
    }

    fn refuse(
        &mut self,
        who: AttemptId,
        behind: AttemptId,
        cycle: Vec<AttemptId>,
        refusals: &mut Vec<Refusal>,
    ) {
        let waits = self.nodes.get(&who).map(|node| &node.waits);
        let mut at = waits.into_iter().flatten().filter(|(_, others)| others.contains(&behind));
        refusals.extend(at.next().map(|(shard, _)| Refusal { shard: *shard, who, behind }));
        self.refused.insert(who, cycle);
    }

    /// Checks what must hold between any two reports.
    ///
    /// # Errors
    /// The first broken invariant, with the attempt.
    pub fn check(&self) -> Result<(), String> {
        for (who, node) in &self.nodes {
            if node.is_alone() {
                return Err(format!("attempt {who} is in the graph of waits and has no edge"));
            }
            for (shard, other) in
                node.waits.iter().flat_map(|(shard, all)| all.iter().map(move |one| (shard, one)))
            {
                let back = self.nodes.get(other).and_then(|other| other.waiters.get(shard));
                if !back.is_some_and(|waiters| waiters.contains(who)) {
                    return Err(format!("attempt {who} waits for {other}, which does not know it"));
                }
            }
            let mut waiters =
                node.waiters.iter().flat_map(|(shard, all)| all.iter().map(move |one| (shard, one)));
            let lacks = waiters.find(|(shard, waiter)| {
                let ahead = self.nodes.get(waiter).and_then(|waiter| waiter.waits.get(shard));
                !ahead.is_some_and(|others| others.contains(who))
            });
            if let Some((_, waiter)) = lacks {
                return Err(format!("attempt {waiter} is known to wait for {who} and does not"));
            }
        }
        if self.bugs.has(Bug::MissCycle) || self.bugs.has(Bug::DirectWaitsOnly) {
            return Ok(());
        }
        let left = self.in_cycles();
        if let Some(who) = left.first() {
            return Err(format!("attempt {who} waits in a cycle, and none of it is refused"));
        }
        let counted = self.multi.iter().filter(|who| !self.refused.contains_key(who));
        let mut joined = counted.filter(|who| {
            let other = |end: AttemptId| end != **who && self.multi.contains(&end);
            self.path(**who, Way::Forward, other).is_some()
        });
        match joined.next() {
            Some(who) => {
                Err(format!("attempt {who} of several regions waits for another such one by some path"))
            }
            None => Ok(()),
        }
    }

    /// The attempts that are in a cycle or wait for one, if those that are refused count no more.
    fn in_cycles(&self) -> BTreeSet<AttemptId> {
        // Whoever waits for nobody is taken away until nobody is left.
        let mut waits: BTreeMap<AttemptId, usize> = BTreeMap::new();
        let mut free = Vec::new();
        for who in self.nodes.keys().filter(|who| !self.refused.contains_key(who)) {
            match self.next(*who, Way::Forward).count() {
                0 => free.push(*who),
                count => _ = waits.insert(*who, count),
            }
        }
        while let Some(who) = free.pop() {
            for waiter in self.next(who, Way::Back) {
                let Some(count) = waits.get_mut(&waiter) else { continue };
                *count -= 1;
                if *count == 0 {
                    waits.remove(&waiter);
                    free.push(waiter);
                }
            }
        }
        waits.into_keys().collect()
    }
}
