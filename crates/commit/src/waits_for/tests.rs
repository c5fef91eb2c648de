//! Tests of the graph alone: who is refused, what is counted, and random lock requests over shards and regions until all have ended.

use std::collections::VecDeque;

use ordain_model::Random;

use super::*;
use crate::ids::TransactionId;

fn attempt(number: u64) -> AttemptId {
    AttemptId { transaction: TransactionId::of(number), attempt: 1 }
}

/// A graph in which transactions are as old as their numbers are small.
#[derive(Default)]
struct Told(WaitsFor);

impl Told {
    fn planted(bug: Bug) -> Told {
        Told(WaitsFor::default().planting(Bugs::NONE.with(bug)))
    }

    fn wait(&mut self, shard: u16, who: u64, behind: &[u64]) -> Vec<Refusal> {
        let behind: Vec<AttemptId> = behind.iter().map(|other| attempt(*other)).collect();
        let refusals = self.0.wait(shard, attempt(who), Age(who), &behind);
        self.0.check().unwrap();
        refusals
    }

    fn over(&mut self, shard: u16, who: u64) {
        self.0.over(shard, attempt(who));
        self.0.check().unwrap();
    }
}

fn refusal(shard: u16, who: u64, behind: u64) -> Refusal {
    Refusal { shard, who: attempt(who), behind: attempt(behind) }
}

#[test]
fn the_youngest_of_a_cycle_over_shards_is_refused() {
    let mut told = Told::default();
    assert_eq!(told.wait(0, 1, &[2]), []);
    assert_eq!(told.wait(1, 2, &[3]), []);
    assert_eq!(told.wait(2, 3, &[1]), [refusal(2, 3, 1)]);
    assert_eq!(told.0.counts(), Refusals { cycles: 1, ..Refusals::default() });
    [2, 0, 1].into_iter().for_each(|shard| told.over(shard, 3));
    told.over(0, 2);
    assert!(told.0.is_empty());

    let mut told = Told::default();
    assert_eq!(told.wait(0, 3, &[1]), []);
    assert_eq!(told.wait(1, 2, &[3]), []);
    assert_eq!(told.wait(2, 1, &[2]), [refusal(0, 3, 1)], "not the one that closes it");
    assert_eq!(told.0.counts().unneeded, 0);
}

#[test]
fn each_cycle_of_a_request_is_opened_once() {
    let mut told = Told::default();
    assert_eq!(told.wait(0, 5, &[1]), []);
    assert_eq!(told.wait(0, 6, &[1]), []);
    assert_eq!(told.wait(1, 1, &[5, 6, 7]), [refusal(0, 5, 1), refusal(0, 6, 1)]);
    assert_eq!(told.wait(1, 9, &[5, 6]), [], "those are about to end");
    assert_eq!(told.0.counts().cycles, 2);
}

#[test]
fn two_that_upgrade_one_lock_are_a_cycle() {
    let mut told = Told::default();
    assert_eq!(told.wait(0, 1, &[2]), []);
    assert_eq!(told.wait(0, 2, &[1]), [refusal(0, 2, 1)]);
}

#[test]
fn an_attempt_that_did_not_wait_any_more_is_judged_anew() {
    let mut told = Told::default();
    told.wait(0, 2, &[1]);
    assert_eq!(told.wait(1, 1, &[2]), [refusal(0, 2, 1)]);
    // The wait at shard 0 was over; meanwhile another cycle has come about, which nobody was refused for.
    assert_eq!(told.wait(2, 2, &[3]), []);
    assert_eq!(told.wait(3, 3, &[2]), []);
    told.over(0, 1);
    assert_eq!(told.0.spare(attempt(2)), [refusal(3, 3, 2)]);
    let counts = Refusals { cycles: 2, spared: 1, unneeded: 1, ..Refusals::default() };
    assert_eq!(told.0.counts(), counts);
    told.0.check().unwrap();
}

#[test]
fn no_path_leads_between_two_transactions_of_several_regions() {
    // Scenario 1: what a region sees of M1 → L1 → M2, in either order of the two waits.
    for order in [[(11, 1), (1, 12)], [(1, 12), (11, 1)]] {
        let mut told = Told::default();
        [11, 12].into_iter().for_each(|multi| assert!(!told.0.become_multi(attempt(multi))));
        let [(first, before), (second, behind)] = order;
        assert_eq!(told.wait(0, first, &[before]), []);
        assert_eq!(told.wait(0, second, &[behind]), [refusal(0, second, behind)]);
        assert_eq!(told.0.counts(), Refusals { regions: 1, ..Refusals::default() });
    }
    let mut told = Told::default();
    [11, 12].into_iter().for_each(|multi| assert!(!told.0.become_multi(attempt(multi))));
    assert_eq!(told.wait(0, 11, &[12]), [refusal(0, 11, 12)]);
    let mut told = Told::default();
    [11, 12].into_iter().for_each(|multi| assert!(!told.0.become_multi(attempt(multi))));
    told.0.end_multi(attempt(12));
    assert_eq!(told.wait(0, 11, &[12]), []);
    // One alone waits, and is waited for.
    let mut told = Told::default();
    assert!(!told.0.become_multi(attempt(11)));
    assert_eq!((told.wait(0, 1, &[11]), told.wait(0, 11, &[2])), (vec![], vec![]));
}

/// Scenario 19: a local transaction turns out to be of several regions while another such one waits for it.
#[test]
fn an_attempt_that_becomes_one_of_several_regions_is_judged_anew() {
    for (waiter, holder) in [(11, 1), (1, 11)] {
        let mut told = Told::default();
        assert!(!told.0.become_multi(attempt(11)));
        assert_eq!(told.wait(0, waiter, &[2]), []);
        assert_eq!(told.wait(0, 2, &[holder]), []);
        assert!(told.0.become_multi(attempt(1)));
        assert_eq!(told.wait(0, 3, &[2]), [], "it is about to end");
    }
}

#[test]
fn a_broken_graph_is_found() {
    let broken = |change: fn(&mut WaitsFor)| {
        let mut told = Told::default();
        told.wait(0, 1, &[2]);
        change(&mut told.0);
        told.0.check().unwrap_err()
    };
    assert!(
        broken(|graph| graph.nodes.extend([(attempt(7), Node::default())])).contains("7.1 is in the graph")
    );
    assert!(broken(|graph| drop(graph.nodes.remove(&attempt(2)))).contains("1.1 waits for"));
    assert!(broken(|graph| drop(graph.nodes.remove(&attempt(1)))).contains("1.1 is known to wait"));
    let looped = |graph: &mut WaitsFor| {
        graph.bugs = Bugs::NONE.with(Bug::MissCycle);
        graph.wait(1, attempt(2), Age(2), &[attempt(1)]);
        graph.bugs = Bugs::NONE;
    };
    assert!(broken(looped).contains("1.1 waits in a cycle"));
    let joined = |graph: &mut WaitsFor| graph.multi.extend([attempt(1), attempt(2)]);
    assert!(broken(joined).contains("of several regions waits"));
}

// ---- random requests -----------------------------------------------------------------------------------------

const REGIONS: u64 = 2;
const SHARDS: u64 = 2;
const KEYS: u64 = 3;

/// A lock of a region's shard, by its number over all.
type Key = u64;

fn region_of(key: Key) -> usize {
    (key / (SHARDS * KEYS)) as usize
}

fn shard_of(key: Key) -> u16 {
    (key / KEYS % SHARDS) as u16
}

#[derive(Debug, Default)]
struct Lock {
    holders: Vec<(AttemptId, bool)>,
    queue: Vec<(AttemptId, bool)>,
}

impl Lock {
    /// Those that an entry of the queue waits for.
    fn behind(&self, at: usize) -> Vec<AttemptId> {
        let (_, is_exclusive) = self.queue[at];
        let others = self.holders.iter().chain(&self.queue[..at]);
        others.filter(|(_, other)| is_exclusive || *other).map(|(who, _)| *who).collect()
    }
}

/// A transaction: its locks in the order in which it asks for them.
#[derive(Debug)]
struct Script {
    who: AttemptId,
    wants: Vec<(Key, bool)>,
    next: usize,
    waits: bool,
    is_done: bool,
}

/// A report of a shard that has not arrived, or a refusal on its way to it.
enum Word {
    Waits(AttemptId, Vec<AttemptId>),
    Over(AttemptId),
    Spared(AttemptId),
}

struct Regions {
    scripts: Vec<Script>,
    locks: Vec<Lock>,
    graphs: Vec<WaitsFor>,
    /// What each shard of each region has told and its manager has not heard.
    told: Vec<VecDeque<Word>>,
    refusals: Vec<VecDeque<Refusal>>,
    is_late: bool,
}

impl Regions {
    fn new(random: &mut Random, bugs: Bugs) -> Regions {
        let count = 4 + random.below(5);
        let keys = REGIONS * SHARDS * KEYS;
        let mut graphs = vec![WaitsFor::default().planting(bugs); REGIONS as usize];
        let scripts = (1..=count).map(|number| {
            let who = attempt(number);
            let is_multi = random.chance(500_000);
            let home = random.below(REGIONS);
            if is_multi {
                graphs.iter_mut().for_each(|graph| _ = graph.become_multi(who));
            }
            let mut wants: Vec<(Key, bool)> = Vec::new();
            for _ in 0..2 + random.below(3) {
                let key = match is_multi {
                    true => random.below(keys),
                    false => home * SHARDS * KEYS + random.below(SHARDS * KEYS),
                };
                if wants.iter().all(|(other, _)| *other != key) {
                    wants.push((key, random.chance(700_000)));
                }
            }
            Script { who, wants, next: 0, waits: false, is_done: false }
        });
        let scripts = scripts.collect();
        let shards = (REGIONS * SHARDS) as usize;
        Regions {
            scripts,
            locks: (0..keys).map(|_| Lock::default()).collect(),
            graphs,
            told: (0..shards).map(|_| VecDeque::new()).collect(),
            refusals: (0..shards).map(|_| VecDeque::new()).collect(),
            is_late: random.chance(500_000),
        }
    }

    fn tell(&mut self, key: Key, word: Word) {
        self.told[region_of(key) * SHARDS as usize + usize::from(shard_of(key))].push_back(word);
    }

    /// A transaction asks for its next lock, or ends if it has all.
    fn step(&mut self, n: usize) {
        let Script { who, wants, next, .. } = &mut self.scripts[n];
        let who = *who;
        let Some((key, is_exclusive)) = wants.get(*next).copied() else {
            self.scripts[n].is_done = true;
            return self.release(who);
        };
        let lock = &mut self.locks[key as usize];
        lock.queue.push((who, is_exclusive));
        let behind = lock.behind(lock.queue.len() - 1);
        if behind.is_empty() {
            lock.holders.extend(lock.queue.pop());
            self.scripts[n].next += 1;
        } else {
            self.scripts[n].waits = true;
            self.tell(key, Word::Waits(who, behind));
        }
    }

    fn release(&mut self, who: AttemptId) {
        for key in 0..self.locks.len() {
            let lock = &mut self.locks[key];
            let before = lock.holders.len() + lock.queue.len();
            lock.holders.retain(|(other, _)| *other != who);
            lock.queue.retain(|(other, _)| *other != who);
            if lock.holders.len() + lock.queue.len() == before {
                continue;
            }
            let mut at = 0;
            while at < lock.queue.len() {
                if !lock.behind(at).is_empty() {
                    at += 1;
                    continue;
                }
                let granted = lock.queue.remove(at);
                lock.holders.push(granted);
                let script = self.scripts.iter_mut().find(|script| script.who == granted.0).unwrap();
                (script.next, script.waits) = (script.next + 1, false);
            }
            self.tell(key as Key, Word::Over(who));
        }
    }

    /// A manager hears the next word of one of its shards.
    fn hear(&mut self, at: usize) {
        let (region, shard) = (at / SHARDS as usize, (at % SHARDS as usize) as u16);
        let Some(word) = self.told[at].pop_front() else { return };
        let graph = &mut self.graphs[region];
        let refusals = match word {
            Word::Waits(who, behind) => graph.wait(shard, who, Age(who.transaction.number), &behind),
            Word::Over(who) => {
                graph.over(shard, who);
                Vec::new()
            }
            Word::Spared(who) => graph.spare(who),
        };
        graph.check().unwrap();
        for refusal in refusals {
            self.refusals[region * SHARDS as usize + usize::from(refusal.shard)].push_back(refusal);
        }
    }

    /// A shard hears its next refusal.
    fn refuse(&mut self, at: usize) {
        let Some(Refusal { who, behind, .. }) = self.refusals[at].pop_front() else { return };
        let keys = (at as u64 * KEYS) as usize..((at as u64 + 1) * KEYS) as usize;
        let waits = self.locks[keys].iter().any(|lock| {
            let entry = lock.queue.iter().position(|(other, _)| *other == who);
            entry.is_some_and(|entry| lock.behind(entry).contains(&behind))
        });
        if !waits {
            return self.told[at].push_back(Word::Spared(who));
        }
        // The next attempt has the age of the first; here it also has its id, so that it comes when nothing is left of the former.
        let script = self.scripts.iter_mut().find(|script| script.who == who).unwrap();
        (script.next, script.waits) = (0, false);
        self.release(who);
        self.settle();
    }

    fn settle(&mut self) {
        (0..self.told.len()).for_each(|at| (0..self.told[at].len()).for_each(|_| self.hear(at)));
    }

    /// True if every transaction has ended within so many steps.
    fn run(&mut self, random: &mut Random) -> bool {
        for _ in 0..3_000 {
            let runs: Vec<usize> = (0..self.scripts.len())
                .filter(|n| !self.scripts[*n].waits && !self.scripts[*n].is_done)
                .collect();
            let is_quiet =
                self.told.iter().all(VecDeque::is_empty) && self.refusals.iter().all(VecDeque::is_empty);
            if runs.is_empty() && is_quiet {
                break;
            }
            let shard = random.index(self.told.len());
            match random.below(if self.is_late { 9 } else { 3 }) {
                0 => self.hear(shard),
                1 => self.refuse(shard),
                _ if runs.is_empty() => self.hear(shard),
                _ => self.step(runs[random.index(runs.len())]),
            }
        }
        self.scripts.iter().all(|script| script.is_done)
    }
}

/// The seeds, of so many, under which some transactions wait for ever.
fn stuck(seeds: u64, bugs: Bugs) -> u64 {
    let is_stuck = |seed| {
        let mut random = Random::stream(seed, 0x2b1);
        let mut regions = Regions::new(&mut random, bugs);
        let ended = regions.run(&mut random);
        if ended {
            regions.settle();
            assert!(regions.graphs.iter().all(WaitsFor::is_empty), "seed {seed}: waits are left");
        }
        !ended
    };
    (0..seeds).filter(|seed| is_stuck(*seed)).count() as u64
}

/// Random transactions of one region and of two, with locks at two shards of each: each region sees its own waits alone, and some of them late.
#[test]
fn nobody_waits_for_ever_over_shards_and_regions() {
    assert_eq!(stuck(800, Bugs::NONE), 0);
}

#[test]
fn what_is_planted_lets_some_wait_for_ever() {
    for bug in [Bug::MissCycle, Bug::DirectWaitsOnly] {
        let found = stuck(800, Bugs::NONE.with(bug));
        assert!(found > 10, "{}: {found} of 800", bug.name());
    }
    let mut told = Told::planted(Bug::DirectWaitsOnly);
    assert_eq!((told.wait(0, 1, &[2]), told.wait(0, 2, &[1])), (vec![], vec![refusal(0, 2, 1)]));
}
