//! Random accesses, ends and changes of the term, beside the naive model.

use std::collections::{BTreeMap, BTreeSet};

use ordain_commit::{Age, AttemptId, CommitEngine, Mode, TransactionId, Verdict, WaitsFor};
use ordain_engines::{no_wait, regions_2pl, wait_die};
use ordain_role::{Bug, Bugs};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::model::{Model, Resource, Rule};
use crate::shard::{Outcome, Shard};

const TRANSACTIONS: usize = 8;
const KEYS: u8 = 3;

/// A transaction's number, what it locks and how.
type Request = (usize, Resource, Mode);

#[derive(Clone, Debug)]
enum Op {
    Access(Request),
    Finish(usize),
    /// The term changes, and locks of prepared attempts are restored, as far as they are compatible.
    Term(Vec<Request>),
}

fn request() -> impl Strategy<Value = Request> {
    let resource = prop_oneof![6 => (0..KEYS).prop_map(Some), 1 => Just(None)];
    let mode = prop_oneof![Just(Mode::Shared), Just(Mode::Exclusive)];
    (0..TRANSACTIONS, resource, mode)
}

fn ops() -> impl Strategy<Value = (Vec<u64>, Vec<Op>)> {
    let op = prop_oneof![
        40 => request().prop_map(Op::Access),
        9 => (0..TRANSACTIONS).prop_map(Op::Finish),
        1 => vec(request(), 0..6).prop_map(Op::Term),
    ];
    // A few equal ages, so that ties are broken too.
    (vec(0..12_u64, TRANSACTIONS), vec(op, 0..80))
}

/// A control and the model, in step.
struct Run {
    shard: Shard,
    model: Model,
    ages: Vec<u64>,
    /// The attempt that each transaction makes.
    attempts: Vec<u32>,
    /// Its attempt holds something, or waits.
    live: Vec<bool>,
    /// The target that each attempt has asked for last.
    asked: BTreeMap<AttemptId, Resource>,
    /// The waits that the control has told, and the graph that judges them.
    told: BTreeMap<AttemptId, BTreeSet<AttemptId>>,
    graph: WaitsFor,
}

/// All that an attempt waits for by any path.
fn reached(edges: &BTreeMap<AttemptId, BTreeSet<AttemptId>>, from: AttemptId) -> BTreeSet<AttemptId> {
    let (mut all, mut ahead) = (BTreeSet::new(), vec![from]);
    while let Some(at) = ahead.pop() {
        ahead.extend(edges.get(&at).into_iter().flatten().filter(|to| all.insert(**to)));
    }
    all
}

impl Run {
    fn new(engine: &CommitEngine, bugs: Bugs, ages: Vec<u64>) -> Run {
        let rule = match engine.name {
            "no-wait" => Rule::NoWait,
            "wait-die" => Rule::WaitDie,
            _ => Rule::InOrder,
        };
        Run {
            shard: Shard::new(engine, bugs),
            model: Model::new(ages.clone(), rule),
            ages,
            attempts: vec![1; TRANSACTIONS],
            live: vec![false; TRANSACTIONS],
            asked: BTreeMap::new(),
            told: BTreeMap::new(),
            graph: WaitsFor::default(),
        }
    }

    fn who(&self, n: usize) -> AttemptId {
        AttemptId { transaction: TransactionId::of(n as u64), attempt: self.attempts[n] }
    }

    fn access(&mut self, (n, key, mode): Request) {
        let who = self.who(n);
        if self.model.is_waiting(who) {
            return;
        }
        self.live[n] = true;
        self.asked.insert(who, key);
        let before = self.model.clone();
        let expected = self.model.access(who, key, mode);
        let verdict = self.shard.access(who, self.ages[n], key, mode);
        if verdict != expected {
            let is_stopped = verdict == Verdict::Refused && before.may_be_stopped(who, key, mode);
            assert!(is_stopped, "{who} {key:?} {mode:?}: {verdict:?}, and not {expected:?}");
            self.model = before;
        }
        if verdict == Verdict::Refused {
            self.finish(n);
        }
    }

    fn finish(&mut self, n: usize) {
        let who = self.who(n);
        let expected = self.model.finish(who);
        let outcome = self.shard.finish(who);
        // Records are granted in the order of their numbers, which the model does not know; those of one record in turn.
        let by_target = |Outcome { granted, refused }: &Outcome| {
            let mut of: BTreeMap<Resource, Vec<AttemptId>> = BTreeMap::new();
            granted.iter().for_each(|who| of.entry(self.asked[who]).or_default().push(*who));
            (of, refused.clone())
        };
        assert_eq!(by_target(&outcome), by_target(&expected), "after the end of {who}");
        let refused = expected.refused;
        for n in [n].into_iter().chain(refused.iter().map(|who| who.transaction.number as usize)) {
            let who = self.who(n);
            self.told.remove(&who);
            self.told.values_mut().for_each(|behind| _ = behind.remove(&who));
            self.graph.over(0, who);
            self.attempts[n] += 1;
            self.live[n] = false;
        }
    }

    /// Takes the waits that the control tells of, and ends the attempts that are refused for them. What is told leads from each attempt to all for
    /// which it waits, by some path.
    fn judge(&mut self) {
        loop {
            let mut refusals = Vec::new();
            for who in self.shard.control.take_waiters() {
                let behind = self.shard.control.waits_for(&self.shard.store, who);
                if behind.is_empty() {
                    continue;
                }
                self.told.insert(who, behind.iter().copied().collect());
                let age = Age(self.ages[who.transaction.number as usize]);
                refusals.extend(self.graph.wait(0, who, age, &behind));
                assert_eq!(self.graph.check(), Ok(()));
            }
            let waits = self.model.waits();
            if self.model.rule() == Rule::InOrder {
                for who in waits.keys() {
                    assert_eq!(
                        reached(&self.told, *who),
                        reached(&waits, *who),
                        "{who} {waits:?} {:?}",
                        self.told
                    );
                }
            }
            if refusals.is_empty() {
                break;
            }
            refusals.into_iter().for_each(|refusal| self.finish(refusal.who.transaction.number as usize));
        }
    }

    fn change_term(&mut self, restored: Vec<Request>) {
        self.model.clear();
        self.shard.clear();
        self.attempts.iter_mut().for_each(|attempt| *attempt += 1);
        self.live.fill(false);
        self.told.clear();
        self.graph.clear();
        for (n, key, mode) in restored {
            let who = self.who(n);
            if self.model.restore(who, key, mode) {
                self.live[n] = true;
                self.shard.restore(who, self.ages[n], key, mode);
            }
        }
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Access(request) => self.access(request),
            Op::Finish(n) => self.finish(n),
            Op::Term(restored) => self.change_term(restored),
        }
        self.judge();
        self.check();
    }

    fn check(&self) {
        self.model.check();
        self.shard.check();
        for n in 0..TRANSACTIONS {
            assert_eq!(self.shard.held(self.who(n)), self.model.held(self.who(n)), "{}", self.who(n));
        }
        for key in 0..KEYS {
            assert_eq!(self.shard.word(key) != 0, self.model.needs(key), "{key}");
        }
    }

    /// Ends attempts that do not wait until none is left: those that wait come to an end by that.
    fn end(mut self) {
        while self.live.contains(&true) {
            let runs = |n: &usize| self.live[*n] && !self.model.is_waiting(self.who(*n));
            let n = (0..TRANSACTIONS).find(runs).expect("somebody does not wait");
            self.finish(n);
            self.judge();
            self.check();
        }
        assert!(self.graph.is_empty(), "waits are left");
        assert_eq!(self.shard.gauge("ordain_locks_attempts"), 0.0);
        let stored: BTreeMap<u8, bool> = (0..KEYS).map(|key| (key, self.shard.is_stored(key))).collect();
        assert!(stored.values().all(|is_stored| !is_stored), "absent records are left: {stored:?}");
    }
}

fn run(engine: &CommitEngine, bugs: Bugs, (ages, ops): (Vec<u64>, Vec<Op>)) {
    let mut run = Run::new(engine, bugs, ages);
    ops.into_iter().for_each(|op| run.step(op));
    run.end();
}

fn config() -> Config {
    Config { cases: 1_000, failure_persistence: None, ..Config::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_wait_is_as_the_model(drawn in ops()) {
        run(&no_wait::ENGINE, Bugs::NONE, drawn);
    }

    #[test]
    fn wait_die_is_as_the_model(drawn in ops()) {
        run(&wait_die::ENGINE, Bugs::NONE, drawn);
    }

    #[test]
    fn regions_2pl_is_as_the_model_and_tells_its_waits(drawn in ops()) {
        run(&regions_2pl::ENGINE, Bugs::NONE, drawn);
    }
}

/// The model finds what is planted in a control: it would find a mistake.
#[test]
fn the_model_finds_planted_bugs() {
    let bugs = [Bug::GrantLockEarly, Bug::UpgradeShared, Bug::PassWriter];
    let planted =
        [(&no_wait::ENGINE, &bugs[..2]), (&wait_die::ENGINE, &bugs[..]), (&regions_2pl::ENGINE, &bugs[..])];
    for (engine, bugs) in planted {
        for bug in bugs {
            let found = TestRunner::new(Config { max_shrink_iters: 0, ..config() }).run(&ops(), |drawn| {
                run(engine, Bugs::NONE.with(*bug), drawn);
                Ok(())
            });
            assert!(found.is_err(), "{} with {}", engine.name, bug.name());
        }
    }
}
