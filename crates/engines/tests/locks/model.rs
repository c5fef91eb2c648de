//! Locks as naively as can be: lists of who holds and who waits, and the graph of waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ordain_commit::{AttemptId, Mode, TransactionId, Verdict};

use crate::shard::Outcome;

/// A lock on a key, or on the table for `None`.
pub(crate) type Resource = Option<u8>;

/// A mode of a lock: intentions are those of the table alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lock {
    Is,
    Ix,
    S,
    X,
}

impl Lock {
    fn conflicts_with(self, other: Lock) -> bool {
        use Lock::{Ix, S, X};
        matches!((self, other), (X, _) | (_, X) | (Ix, S) | (S, Ix))
    }

    fn of(mode: Mode) -> Lock {
        if mode == Mode::Shared { Lock::S } else { Lock::X }
    }

    fn intention(mode: Mode) -> Lock {
        if mode == Mode::Shared { Lock::Is } else { Lock::Ix }
    }
}

type Locks = BTreeSet<Lock>;

fn conflict(a: &Locks, b: &Locks) -> bool {
    a.iter().any(|a| b.iter().any(|b| a.conflicts_with(*b)))
}

fn covers(held: &Locks, lock: Lock) -> bool {
    held.contains(&Lock::X)
        || held.contains(&lock)
        || lock == Lock::Is && held.iter().any(|held| matches!(held, Lock::S | Lock::Ix))
}

/// An attempt that holds a resource or waits for it, and when it asked.
#[derive(Clone, Debug)]
struct Entry {
    who: AttemptId,
    locks: Locks,
    asked: u64,
}

#[derive(Clone, Debug, Default)]
struct Line {
    holders: Vec<Entry>,
    queue: Vec<Entry>,
}

impl Line {
    fn held_by(&self, who: AttemptId) -> Locks {
        let holder = self.holders.iter().find(|holder| holder.who == who);
        holder.map(|holder| holder.locks.clone()).unwrap_or_default()
    }
}

/// What a request does that conflicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// It is refused.
    NoWait,
    /// It waits for younger ones, or is refused.
    WaitDie,
    /// It waits.
    InOrder,
}

/// All locks of one participant.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    /// The age of each transaction.
    ages: Vec<u64>,
    rule: Rule,
    lines: BTreeMap<Resource, Line>,
    /// Locks that each waiting attempt has still to get, the one that it waits for first.
    pending: BTreeMap<AttemptId, VecDeque<(Resource, Lock)>>,
    asked: u64,
    /// Refused accesses to the whole table, or of an attempt that has it, by transaction.
    table_refusals: BTreeMap<TransactionId, u32>,
}

impl Model {
    pub(crate) fn new(ages: Vec<u64>, rule: Rule) -> Model {
        Model {
            ages,
            rule,
            lines: BTreeMap::new(),
            pending: BTreeMap::new(),
            asked: 0,
            table_refusals: BTreeMap::new(),
        }
    }

    pub(crate) fn rule(&self) -> Rule {
        self.rule
    }

    fn is_older(&self, a: AttemptId, b: AttemptId) -> bool {
        let seniority = |who: AttemptId| (self.ages[who.transaction.number as usize], who.transaction);
        seniority(a) < seniority(b)
    }

    pub(crate) fn is_waiting(&self, who: AttemptId) -> bool {
        self.pending.contains_key(&who)
    }

    fn steps(key: Resource, mode: Mode) -> VecDeque<(Resource, Lock)> {
        match key {
            None => [(None, Lock::of(mode))].into(),
            Some(_) => [(None, Lock::intention(mode)), (key, Lock::of(mode))].into(),
        }
    }

    pub(crate) fn access(&mut self, who: AttemptId, key: Resource, mode: Mode) -> Verdict {
        let has_table = self.held(who).contains_key(&None);
        self.pending.insert(who, Model::steps(key, mode));
        let verdict = self.go_on(who);
        if (key.is_none() || has_table) && verdict == Verdict::Refused {
            *self.table_refusals.entry(who.transaction).or_default() += 1;
        }
        verdict
    }

    /// Asks for what an attempt needs until it has to wait.
    fn go_on(&mut self, who: AttemptId) -> Verdict {
        while let Some((resource, lock)) = self.pending.get(&who).and_then(|steps| steps.front().copied()) {
            let verdict = self.ask(who, resource, lock);
            if verdict == Verdict::Refused {
                self.pending.remove(&who);
            }
            if verdict != Verdict::Granted {
                return verdict;
            }
            self.pending.entry(who).or_default().pop_front();
        }
        self.pending.remove(&who);
        Verdict::Granted
    }

    fn ask(&mut self, who: AttemptId, resource: Resource, lock: Lock) -> Verdict {
        self.asked += 1;
        let line = self.lines.entry(resource).or_default().clone();
        let mut locks = line.held_by(who);
        if covers(&locks, lock) {
            return Verdict::Granted;
        }
        let (is_upgrade, own) = (!locks.is_empty(), locks.clone());
        locks.insert(lock);
        let conflicting = |entries: &[Entry]| -> Vec<AttemptId> {
            let others = entries.iter().filter(|e| e.who != who && conflict(&e.locks, &locks));
            others.map(|e| e.who).collect()
        };
        let (holders, queue) = (conflicting(&line.holders), conflicting(&line.queue));
        let waits_for_own = |waiter: &AttemptId| {
            let entry = line.queue.iter().find(|entry| entry.who == *waiter);
            entry.is_some_and(|entry| conflict(&entry.locks, &own))
        };
        let is_ahead = is_upgrade
            && match self.rule {
                Rule::InOrder => queue.iter().any(waits_for_own),
                _ => queue.iter().all(|waiter| self.is_older(*waiter, who)),
            };
        let blockers = if is_ahead { holders } else { [holders, queue].concat() };
        let entry = Entry { who, locks: locks.clone(), asked: self.asked };
        if blockers.is_empty() {
            self.hold(resource, entry);
            return Verdict::Granted;
        }
        let may_wait = match self.rule {
            Rule::NoWait => false,
            Rule::WaitDie => blockers.iter().all(|other| self.is_older(who, *other)),
            Rule::InOrder => true,
        };
        if !may_wait {
            return Verdict::Refused;
        }
        let queue = &mut self.lines.entry(resource).or_default().queue;
        queue.insert(if is_ahead { 0 } else { queue.len() }, entry);
        Verdict::Waits
    }

    /// Gives a lock. Nobody who asked before for something that conflicts may be passed, but by an upgrade.
    fn hold(&mut self, resource: Resource, entry: Entry) {
        let line = self.lines.entry(resource).or_default();
        let is_upgrade = !line.held_by(entry.who).is_empty();
        let passed = line.queue.iter().find(|e| e.asked < entry.asked && conflict(&e.locks, &entry.locks));
        assert!(is_upgrade || passed.is_none(), "{entry:?} passes {passed:?}");
        line.holders.retain(|holder| holder.who != entry.who);
        line.holders.push(entry);
    }

    /// Ends an attempt and those that are refused for it.
    pub(crate) fn finish(&mut self, who: AttemptId) -> Outcome {
        let (mut outcome, mut over) = (Outcome::default(), VecDeque::from([who]));
        while let Some(who) = over.pop_front() {
            self.pending.remove(&who);
            for line in self.lines.values_mut() {
                line.holders.retain(|holder| holder.who != who);
                line.queue.retain(|waiter| waiter.who != who);
            }
            // Records first, then the table: `None` is the first of the resources.
            let resources: Vec<Resource> = self.lines.keys().rev().copied().collect();
            for resource in resources {
                for granted in self.grant(resource) {
                    self.pending.entry(granted).or_default().pop_front();
                    match self.go_on(granted) {
                        Verdict::Granted => outcome.granted.push(granted),
                        Verdict::Waits => {}
                        Verdict::Refused => {
                            outcome.refused.push(granted);
                            over.push_back(granted);
                        }
                    }
                }
            }
        }
        outcome
    }

    /// Grants what can be granted, one after the other, until nothing can be.
    fn grant(&mut self, resource: Resource) -> Vec<AttemptId> {
        let mut granted = Vec::new();
        loop {
            let line = &self.lines[&resource];
            let next = (0..line.queue.len()).find(|at| self.blockers(line, *at).is_empty());
            let Some(at) = next else { return granted };
            let entry = self.lines.entry(resource).or_default().queue.remove(at);
            granted.push(entry.who);
            self.hold(resource, entry);
        }
    }

    /// Whom a waiting request waits for.
    fn blockers(&self, line: &Line, at: usize) -> Vec<AttemptId> {
        let waiter = &line.queue[at];
        let others = line.holders.iter().chain(&line.queue[..at]);
        let blockers = others.filter(|e| e.who != waiter.who && conflict(&e.locks, &waiter.locks));
        blockers.map(|e| e.who).collect()
    }

    pub(crate) fn clear(&mut self) {
        *self = Model::new(std::mem::take(&mut self.ages), self.rule);
    }

    /// Gives a lock without waiting; returns whether it conflicts with none.
    pub(crate) fn restore(&mut self, who: AttemptId, key: Resource, mode: Mode) -> bool {
        let mut next = self.clone();
        let is_free = next.access(who, key, mode) == Verdict::Granted;
        if is_free {
            *self = next;
        }
        is_free
    }

    /// True if the gate of an older transaction may keep an attempt from a lock that it has not got: one that was refused often,
    /// or one that took the gate over.
    pub(crate) fn may_be_stopped(&self, who: AttemptId, key: Resource, mode: Mode) -> bool {
        let table = self.lines.get(&None).map(|line| line.held_by(who)).unwrap_or_default();
        let lock = if key.is_none() { Lock::of(mode) } else { Lock::intention(mode) };
        let is_closed = self.table_refusals.values().any(|refusals| *refusals >= 4);
        let of = |transaction: TransactionId| AttemptId { transaction, attempt: 1 };
        let is_behind = self.table_refusals.keys().any(|owner| self.is_older(of(*owner), who));
        !covers(&table, lock) && is_closed && is_behind
    }

    /// Locks of an attempt, intentions left out.
    pub(crate) fn held(&self, who: AttemptId) -> BTreeMap<Resource, Mode> {
        let held = self.lines.iter().map(|(resource, line)| (*resource, line.held_by(who)));
        let whole = held.filter_map(|(resource, locks)| {
            let mode = if locks.contains(&Lock::X) {
                Mode::Exclusive
            } else if locks.contains(&Lock::S) {
                Mode::Shared
            } else {
                return None;
            };
            Some((resource, mode))
        });
        whole.collect()
    }

    /// True if anybody holds a key, waits for it, or will ask for it.
    pub(crate) fn needs(&self, key: u8) -> bool {
        let line = self.lines.get(&Some(key));
        line.is_some_and(|line| !line.holders.is_empty() || !line.queue.is_empty())
            || self.pending.values().flatten().any(|(resource, _)| *resource == Some(key))
    }

    /// All that each waiting attempt waits for.
    pub(crate) fn waits(&self) -> BTreeMap<AttemptId, BTreeSet<AttemptId>> {
        let mut edges: BTreeMap<AttemptId, BTreeSet<AttemptId>> = BTreeMap::new();
        for line in self.lines.values() {
            for (at, waiter) in line.queue.iter().enumerate() {
                edges.entry(waiter.who).or_default().extend(self.blockers(line, at));
            }
        }
        edges
    }

    /// Checks the locks and the graph of waits.
    pub(crate) fn check(&self) {
        for (resource, line) in &self.lines {
            for (at, a) in line.holders.iter().enumerate() {
                let other = line.holders[..at].iter().find(|b| conflict(&a.locks, &b.locks));
                assert!(other.is_none(), "{resource:?}: {a:?} beside {other:?}");
            }
        }
        let mut edges = self.waits();
        assert!(self.rule != Rule::NoWait || edges.is_empty(), "nobody waits");
        for (waiter, blockers) in &edges {
            assert!(!blockers.is_empty(), "{waiter} waits for nobody");
            let older = blockers.iter().find(|other| !self.is_older(*waiter, **other));
            assert!(self.rule != Rule::WaitDie || older.is_none(), "{waiter} waits for {older:?}");
        }
        // Without a cycle, whoever waits for nobody can be taken away until nobody is left.
        while !edges.is_empty() {
            let waiters: BTreeSet<AttemptId> = edges.keys().copied().collect();
            let before = edges.len();
            edges.retain(|_, others| others.iter().any(|other| waiters.contains(other)));
            assert!(edges.len() < before, "a cycle of waits: {edges:?}");
        }
    }
}
