//! Random accesses, ends and changes of the term, beside the naive model.

use std::collections::BTreeMap;

use ordain_commit::{Age, AttemptId, CommitEngine, Mode, TransactionId, Verdict};
use ordain_engines::{mvcc, timestamp};
use ordain_role::{Bug, Bugs};
use ordain_store::RecordStore;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::model::{Model, Resource, Rules};
use crate::shard::{Outcome, Shard};

const TRANSACTIONS: usize = 8;
const KEYS: u8 = 3;
/// A stamp is a time, and a place below this number.
const PLACES: u64 = 16;

#[derive(Clone, Debug)]
enum Op {
    Access(usize, Resource, Mode),
    /// The attempt commits if it does not wait, and is over.
    Finish(usize, bool),
    /// The term changes. Those of the attempts that are drawn are promised, unless they wait.
    Term(u8),
    /// The same, and the next leader has begun with a checkpoint.
    Restart(u8),
    /// What is so far in the past may be forgotten.
    Advance(u64),
}

/// A write of the whole table reads it too.
fn access((n, of, mode): (usize, Resource, Mode)) -> Op {
    let may_be = of.is_some() || mode != Mode::Blind;
    Op::Access(n, of, if may_be { mode } else { Mode::Exclusive })
}

fn ops() -> impl Strategy<Value = (Vec<u64>, Vec<Op>)> {
    let resource = || prop_oneof![8 => (0..KEYS).prop_map(Some), 1 => Just(None)];
    let mode = || prop_oneof![2 => Just(Mode::Shared), 2 => Just(Mode::Exclusive), 1 => Just(Mode::Blind)];
    let op = prop_oneof![
        40 => (0..TRANSACTIONS, resource(), mode()).prop_map(access),
        12 => (0..TRANSACTIONS, prop::bool::weighted(0.7)).prop_map(|(n, commits)| Op::Finish(n, commits)),
        1 => any::<u8>().prop_map(Op::Term),
        1 => any::<u8>().prop_map(Op::Restart),
        2 => (0..12_u64).prop_map(Op::Advance),
    ];
    // By how much each clock is ahead.
    (vec(0..9_u64, TRANSACTIONS), vec(op, 0..100))
}

/// An engine, as the runs take it.
#[derive(Clone, Copy, Debug)]
struct Tested {
    engine: CommitEngine,
    rules: Rules,
}

const TIMESTAMP: Tested = Tested { engine: timestamp::ENGINE, rules: Rules { keeps: false, thomas: false } };
const THOMAS: Tested = Tested { engine: timestamp::ENGINE, rules: Rules { keeps: false, thomas: true } };
const MVCC: Tested = Tested { engine: mvcc::ENGINE, rules: Rules { keeps: true, thomas: false } };

/// A control and the model, in step.
struct Run {
    tested: Tested,
    bugs: Bugs,
    shard: Shard,
    model: Model,
    time: u64,
    ahead: Vec<u64>,
    /// The attempt that each transaction makes, with its stamp once it has one.
    attempts: Vec<(u32, Option<u64>)>,
    /// Stamps that were given are below.
    ceiling: u64,
}

impl Run {
    fn new(tested: Tested, bugs: Bugs, ahead: Vec<u64>) -> Run {
        let attempts = vec![(1, None); TRANSACTIONS];
        Run {
            tested,
            bugs,
            shard: crate::shard(&tested.engine, tested.rules.thomas, bugs),
            model: Model::new(tested.rules),
            time: 0,
            ahead,
            attempts,
            ceiling: 0,
        }
    }

    fn who(&self, n: usize) -> AttemptId {
        AttemptId { transaction: TransactionId::of(n as u64), attempt: self.attempts[n].0 }
    }

    fn access(&mut self, n: usize, of: Resource, mode: Mode) {
        let who = self.who(n);
        if self.model.is_waiting(who) {
            return;
        }
        let stamp = (self.time + self.ahead[n]) * PLACES + n as u64;
        let stamp = *self.attempts[n].1.get_or_insert(stamp);
        self.ceiling = self.ceiling.max(stamp + 1);
        let verdict = self.shard.access(who, stamp, of, mode);
        self.model.access(who, stamp, of, mode, verdict);
        if verdict == Verdict::Refused {
            // Scenario 12: the next attempt is not refused for what it has heard of.
            self.time = self.time.max(self.shard.control.latest().0 / PLACES + 1);
            self.finish(n, false);
        }
    }

    fn finish(&mut self, n: usize, commits: bool) {
        let who = self.who(n);
        if self.attempts[n].1.is_none() {
            return;
        }
        let stamp = self.attempts[n].1.unwrap_or_default();
        let commits = commits && !self.model.is_waiting(who) && self.model.is_remembered(stamp);
        let Outcome { granted, refused } = match commits {
            true => crate::commit(&mut self.shard, who, stamp),
            false => self.shard.finish(who),
        };
        self.model.finish(who, commits, &granted, &refused);
        for n in [n].into_iter().chain(refused.iter().map(|who| who.transaction.number as usize)) {
            self.attempts[n] = (self.attempts[n].0 + 1, None);
        }
    }

    /// The next leader begins with the records and what a checkpoint says of them.
    fn replace(&mut self) {
        let mut shard = crate::shard(&self.tested.engine, self.tested.rules.thomas, self.bugs);
        for key in 0..KEYS {
            let before = self.shard.record(key);
            let (cell, version) = (self.shard.store.cell(before).clone(), self.shard.store.version(before));
            let record = shard.record(key);
            shard.store.put_back(record, cell, version);
            shard.store.release_if_absent(record);
        }
        let mut remembered = Vec::new();
        let Shard { store, control, .. } = &self.shard;
        control.remembered(&mut |record, stamp| remembered.push((store.key(record).1[0], stamp)));
        for (key, stamp) in remembered {
            let record = shard.record(key);
            shard.control.remember(&mut shard.store, record, stamp);
        }
        self.shard = shard;
    }

    fn change_term(&mut self, promised: u8, is_replaced: bool) {
        let is_kept = |n: &usize| {
            let stamp = self.attempts[*n].1;
            promised >> n & 1 == 1
                && stamp.is_some_and(|stamp| self.model.is_remembered(stamp))
                && !self.model.is_waiting(self.who(*n))
        };
        let kept: Vec<usize> = (0..TRANSACTIONS).filter(is_kept).collect();
        let held: BTreeMap<usize, _> = kept.iter().map(|n| (*n, self.shard.held(self.who(*n)))).collect();
        self.shard.clear();
        if is_replaced {
            self.replace();
        }
        self.shard.control.begin(Age(self.ceiling));
        let whos: Vec<AttemptId> = kept.iter().map(|n| self.who(*n)).collect();
        self.model.change_term(self.ceiling, &whos);
        for (n, held) in held {
            let stamp = self.attempts[n].1.expect("it has one");
            held.into_iter().for_each(|(of, mode)| self.shard.restore(self.who(n), stamp, of, mode));
        }
        for n in (0..TRANSACTIONS).filter(|n| !kept.contains(n)) {
            self.attempts[n] = (self.attempts[n].0 + 1, None);
        }
    }

    fn step(&mut self, op: Op) {
        self.time += 1;
        match op {
            Op::Access(n, of, mode) => self.access(n, of, mode),
            Op::Finish(n, commits) => self.finish(n, commits),
            Op::Term(promised) => self.change_term(promised, false),
            Op::Restart(promised) => self.change_term(promised, true),
            Op::Advance(ago) => {
                // Promised writes are yet to be installed.
                let live = self.attempts.iter().filter_map(|(_, stamp)| *stamp);
                let to = live.fold(self.time.saturating_sub(ago) * PLACES, u64::min);
                self.shard.control.advance(&mut self.shard.store, Age(to));
                self.model.advance(to);
            }
        }
        self.check();
    }

    /// Checks what stamps see: all that may be asked for yet if contents are kept, and the newest.
    fn check_contents(&mut self) {
        let first = if self.tested.rules.keeps { self.model.readable() } else { self.ceiling };
        for key in 0..KEYS {
            let record = self.shard.record(key);
            for stamp in (first..=self.ceiling).chain([u64::MAX]) {
                let Shard { store, control, .. } = &self.shard;
                let cell = control
                    .seen(store, record, (AttemptId::default(), Age(stamp)))
                    .map_or(store.cell(record), |(cell, _)| cell);
                let expected =
                    (!self.model.is_empty_at(stamp, key)).then(|| self.model.seen(stamp, Some(key)));
                assert_eq!(cell.value, expected.map(crate::content), "key {key} at {stamp}");
                let is_newest = store.cell(record) == cell;
                let replaced = control.replaced((AttemptId::default(), Age(stamp)));
                assert!(is_newest || replaced.contains(&(record, cell)), "{replaced:?} at {stamp}");
            }
            self.shard.store.release_if_absent(record);
        }
    }

    fn check(&mut self) {
        self.check_contents();
        self.shard.check();
        for n in 0..TRANSACTIONS {
            assert_eq!(self.shard.held(self.who(n)), self.model.held(self.who(n)), "{}", self.who(n));
        }
    }

    /// Ends attempts that do not wait until none is left: those that wait come to an end by that.
    fn end(mut self) {
        let is_live = |run: &Run, n: &usize| run.attempts[*n].1.is_some();
        while (0..TRANSACTIONS).any(|n| is_live(&self, &n)) {
            let runs = |n: &usize| is_live(&self, n) && !self.model.is_waiting(self.who(*n));
            let n = (0..TRANSACTIONS).find(runs).expect("somebody does not wait");
            self.finish(n, true);
            self.check();
        }
        // Idle records are forgotten, in two looks at most.
        for _ in 0..2 {
            self.shard.control.advance(&mut self.shard.store, Age(self.ceiling.max(1 << 40)));
        }
        for gauge in ["attempts", "waiting", "remembered", "contents"] {
            assert_eq!(self.shard.gauge(&format!("ordain_stamps_{gauge}")), 0.0, "{gauge}");
        }
        let is_empty = |key: &u8| self.model.is_empty_at(u64::MAX, *key);
        let is_left = |key: &u8| self.shard.is_stored(*key) && is_empty(key) || self.shard.word(*key) != 0;
        let left: Vec<u8> = (0..KEYS).filter(is_left).collect();
        assert!(left.is_empty(), "absent records are left: {left:?}");
        let written = self.model.keys();
        assert!(written.iter().all(|key| is_empty(key) || self.shard.is_stored(*key)));
    }
}

fn run(tested: Tested, bugs: Bugs, (ahead, ops): (Vec<u64>, Vec<Op>)) {
    let mut run = Run::new(tested, bugs, ahead);
    ops.into_iter().for_each(|op| run.step(op));
    run.end();
}

fn config() -> Config {
    Config { cases: 2_000, failure_persistence: None, ..Config::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn timestamp_is_as_the_model(drawn in ops()) {
        run(TIMESTAMP, Bugs::NONE, drawn);
    }

    #[test]
    fn timestamp_with_thomass_rule_is_as_the_model(drawn in ops()) {
        run(THOMAS, Bugs::NONE, drawn);
    }

    #[test]
    fn mvcc_is_as_the_model(drawn in ops()) {
        run(MVCC, Bugs::NONE, drawn);
    }
}

/// The model finds what is planted in the control: it would find a mistake.
#[test]
fn the_model_finds_planted_bugs() {
    let planted =
        [Bug::GrantLockEarly, Bug::UpgradeShared, Bug::ForgetIntention, Bug::LeaveLock, Bug::InstallLate];
    for (tested, bug) in [TIMESTAMP, MVCC].into_iter().flat_map(|tested| planted.map(|bug| (tested, bug))) {
        let found = TestRunner::new(Config { max_shrink_iters: 0, ..config() }).run(&ops(), |drawn| {
            run(tested, Bugs::NONE.with(bug), drawn);
            Ok(())
        });
        assert!(found.is_err(), "{} is not found with {}", bug.name(), tested.engine.name);
    }
}
