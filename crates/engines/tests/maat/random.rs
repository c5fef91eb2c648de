//! Random transactions over two participants, with a coordinator as the real one is: bounds from accesses, validation in any order, the first
//! stamp that all have left, installation at different times, changes of the term of one participant.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use ordain_commit::{Age, AttemptId, Bounds, Ending, Mode, TransactionId, Verdict};
use ordain_role::{Bug, Bugs};
use ordain_store::RecordStore;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::model::{Committed, History, Place};
use crate::shard::{Outcome, Shard};
use crate::{Rules, seen};

const TRANSACTIONS: usize = 6;
const PARTICIPANTS: usize = 2;
const KEYS: u8 = 3;
/// Keys that have a content from the beginning, so that reads tell whether the table was cleared.
const FILLED: Range<u8> = 0..2;
/// The number of the first transaction. A planted bug is about one of number 7.
const FIRST: u64 = 2;

#[derive(Clone, Debug)]
enum Op {
    Access(usize, Place, Mode),
    /// An access to one key of each participant.
    Both(usize, u8, Mode),
    /// The next participant validates the attempt, the first or second of those that may be next, with what the coordinator knows of bounds
    /// or with what it began with.
    Validate(usize, usize, bool),
    /// The attempt commits if it is validated everywhere, or is given up.
    Decide(usize, bool),
    /// A participant hears of the end of an attempt, or gives up to wait for it where that is possible.
    End(usize, usize, bool),
    /// The term of a participant changes.
    Term(usize),
    /// The same, and the next leader has begun with a checkpoint.
    Restart(usize),
    /// The ceiling rises.
    Reserve(usize, u64),
    /// Stamps so far before the ceiling are forgotten.
    Advance(usize, u64),
}

/// A write of the whole table reads it too.
fn access((n, place, mode): (usize, Place, Mode)) -> Op {
    let may_be = place.1.is_some() || mode != Mode::Blind;
    Op::Access(n, place, if may_be { mode } else { Mode::Exclusive })
}

/// By how much the first stamp of each transaction is ahead, and what happens.
type Drawn = (Vec<u64>, Vec<Op>);

fn ops() -> impl Strategy<Value = Drawn> {
    let (n, at) = (0..TRANSACTIONS, 0..PARTICIPANTS);
    let key = prop_oneof![12 => (0..KEYS).prop_map(Some), 1 => Just(None)];
    let mode = prop_oneof![4 => Just(Mode::Shared), 2 => Just(Mode::Exclusive), 2 => Just(Mode::Blind)];
    let op = prop_oneof![
        40 => (n.clone(), (at.clone(), key), mode.clone()).prop_map(access),
        12 => (n.clone(), 0..KEYS, mode).prop_map(|(n, key, mode)| Op::Both(n, key, mode)),
        36 => (n.clone(), 0..2_usize, any::<bool>()).prop_map(|(n, which, all)| Op::Validate(n, which, all)),
        20 => (n.clone(), prop::bool::weighted(0.96)).prop_map(|(n, commits)| Op::Decide(n, commits)),
        24 => (n, at.clone(), any::<bool>()).prop_map(|(n, at, is_told)| Op::End(n, at, is_told)),
        2 => at.clone().prop_map(Op::Term),
        1 => at.clone().prop_map(Op::Restart),
        2 => (at.clone(), 1..30_u64).prop_map(|(at, by)| Op::Reserve(at, by)),
        2 => (at, 1..40_u64).prop_map(|(at, ago)| Op::Advance(at, ago)),
    ];
    (vec(0..20_u64, TRANSACTIONS), vec(op, 0..240))
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum State {
    /// It runs, or is validated at some of its participants.
    #[default]
    Open,
    Committed(u64),
    Aborted,
}

/// An attempt at a transaction, as its coordinator has it.
#[derive(Debug, Default)]
struct Attempt {
    number: u32,
    state: State,
    /// The first stamp that it may have; none before its first access.
    age: Option<u64>,
    reads: Vec<(Place, u8, Option<u64>)>,
    writes: BTreeMap<Place, Option<u64>>,
    /// The participants that it has accessed.
    touched: BTreeSet<usize>,
    /// Participants that have not heard of its end.
    open: BTreeSet<usize>,
    /// Participants that have validated it.
    validated: BTreeSet<usize>,
    /// The stamps that it may have by what they have answered.
    bounds: Bounds,
    /// The stamps that participants have promised in their logs.
    promised: BTreeMap<usize, Bounds>,
}

/// A participant: its control, and what its log has agreed on.
struct Participant {
    shard: Shard,
    ceiling: u64,
    /// Nothing with an earlier stamp is promised or committed.
    floor: u64,
    /// It gives stamps from the floor on only. Else it leaves that to its control.
    is_gentle: bool,
}

impl Participant {
    fn given(&self) -> Bounds {
        crate::bounds(if self.is_gentle { self.floor } else { 0 }, self.ceiling)
    }
}

struct Run {
    rules: Rules,
    bugs: Bugs,
    participants: [Participant; PARTICIPANTS],
    ahead: Vec<u64>,
    attempts: Vec<Attempt>,
    /// The latest stamp that a coordinator has heard of.
    heard: u64,
    /// Attempts so far.
    made: u64,
    history: History,
}

impl Run {
    fn new(rules: Rules, bugs: Bugs, ahead: Vec<u64>) -> Run {
        let participant = |is_gentle| {
            let mut shard = crate::shard(rules, bugs);
            FILLED.for_each(|key| crate::install(&mut shard, Some(key), Some(1), 0));
            Participant { shard, ceiling: 40, floor: 0, is_gentle }
        };
        let places = (0..PARTICIPANTS).flat_map(|at| FILLED.map(move |key| ((at, Some(key)), Some(1))));
        let mut history = History::default();
        history.add(Committed { number: 1, stamp: 0, reads: Vec::new(), writes: places.collect() });
        Run {
            rules,
            bugs,
            participants: [true, false].map(participant),
            ahead,
            attempts: (0..TRANSACTIONS).map(|_| Attempt { number: 1, ..Attempt::default() }).collect(),
            heard: 0,
            made: 0,
            history,
        }
    }

    fn who(&self, n: usize) -> AttemptId {
        AttemptId { transaction: TransactionId::of(n as u64 + FIRST), attempt: self.attempts[n].number }
    }

    /// The participant on whose node the coordinator is.
    fn home(n: usize) -> usize {
        n % PARTICIPANTS
    }

    /// The number of an attempt's contents.
    fn writer(&self, n: usize) -> u64 {
        (n as u64 + FIRST) * 1_000 + u64::from(self.attempts[n].number)
    }

    fn access(&mut self, n: usize, (at, key): Place, mode: Mode) {
        let (who, writer) = (self.who(n), self.writer(n));
        let attempt = &mut self.attempts[n];
        if attempt.state != State::Open || !attempt.validated.is_empty() {
            return;
        }
        // Some coordinators take note of what they hear of stamps, as the real one does, and others do not: the control is sound without.
        let hears = n.is_multiple_of(3);
        let heard = if hears { self.heard } else { 0 };
        let begins = self.participants[Run::home(n)].given().from.0.max(heard) + self.ahead[n];
        let given = self.participants[at].given();
        let Participant { shard, .. } = &mut self.participants[at];
        let age = *attempt.age.get_or_insert(begins);
        attempt.touched.insert(at);
        let verdict = shard.access(who, age.max(given.from.0), key, mode);
        assert_ne!(verdict, Verdict::Waits);
        if verdict == Verdict::Refused {
            attempt.state = State::Aborted;
            attempt.open.insert(at);
            return self.end(n, at, true);
        }
        if hears {
            attempt.age = Some(age.max(shard.control.begins(who).0));
        }
        attempt.open.insert(at);
        if mode != Mode::Blind {
            let keys = key.map_or(0..KEYS, |key| key..key + 1);
            attempt.reads.extend(keys.map(|key| ((at, Some(key)), key, seen(shard, key))));
        }
        if mode != Mode::Shared {
            // Some delete what they write.
            let deletes = key.is_none_or(|key| (writer + u64::from(key)).is_multiple_of(5));
            attempt.writes.insert((at, key), (!deletes).then_some(writer));
        }
    }

    fn abort(&mut self, n: usize) {
        self.attempts[n].state = State::Aborted;
        self.go_on(n);
    }

    fn validate(&mut self, n: usize, which: usize, knows: bool) {
        let who = self.who(n);
        let attempt = &mut self.attempts[n];
        if attempt.state != State::Open {
            return;
        }
        let mut next: Vec<usize> = attempt.touched.difference(&attempt.validated).copied().collect();
        let is_update = !attempt.writes.is_empty();
        if is_update && next.len() > 1 {
            next.retain(|at| *at != Run::home(n));
        }
        let (Some(at), Some(age)) = (next.get(which.min(next.len().saturating_sub(1))).copied(), attempt.age)
        else {
            return;
        };
        let began = Bounds::from(Age(age));
        if attempt.validated.is_empty() {
            attempt.bounds = began;
        }
        let asked = if knows || at == Run::home(n) { attempt.bounds } else { began };
        let given = self.participants[at].given();
        let Participant { shard, ceiling, floor, .. } = &mut self.participants[at];
        let Some(left) = crate::validate(shard, who, asked, given) else { return self.abort(n) };
        assert_eq!(crate::validate(shard, who, asked, given), Some(left), "it was validated once");
        let mut left = left.with(asked);
        if !is_update {
            // Confirmed stamps are below the ceiling, which rises for the next attempt.
            let from = left.from.0;
            left = left.with(crate::bounds(0, *ceiling));
            *ceiling = if left.is_empty() { from + 20 } else { *ceiling };
        } else if at != Run::home(n) && !left.is_empty() && left.from.0 >= *floor {
            attempt.promised.insert(at, left);
            *ceiling = left.until.0.max(*ceiling);
        } else if at != Run::home(n) {
            return self.abort(n);
        }
        attempt.validated.insert(at);
        attempt.bounds = attempt.bounds.with(left);
        if attempt.bounds.is_empty() {
            self.abort(n);
        }
    }

    fn decide(&mut self, n: usize, commits: bool) {
        let attempt = &self.attempts[n];
        if attempt.state != State::Open || attempt.touched.is_empty() {
            return;
        }
        if !commits {
            return self.abort(n);
        }
        if attempt.touched != attempt.validated {
            return;
        }
        let (stamp, home) = (attempt.bounds.from.0, Run::home(n));
        let is_update = !attempt.writes.is_empty();
        if is_update {
            let Participant { ceiling, floor, .. } = &mut self.participants[home];
            if stamp < *floor {
                return self.abort(n);
            }
            *ceiling = (*ceiling).max(stamp + 1);
        }
        self.heard = self.heard.max(stamp);
        let Attempt { reads, writes, .. } = attempt;
        let committed =
            Committed { number: self.writer(n), stamp, reads: reads.clone(), writes: writes.clone() };
        self.history.add(committed);
        self.attempts[n].state = State::Committed(stamp);
        if is_update && self.attempts[n].open.contains(&home) {
            // The decision is a record of the home's log, which installs it.
            self.end(n, home, true);
        }
        self.go_on(n);
    }

    fn end(&mut self, n: usize, at: usize, is_told: bool) {
        let who = self.who(n);
        let Attempt { state, writes, open, validated, .. } = &mut self.attempts[n];
        if *state == State::Open || !open.remove(&at) {
            return;
        }
        let shard = &mut self.participants[at].shard;
        // Outcomes of promises are asked for, and the home of its own node does not go without it.
        let is_asked_for = !writes.is_empty() && (validated.contains(&at) || *state != State::Aborted);
        let ending = match state {
            _ if !is_told && !is_asked_for => Ending::Unknown,
            State::Committed(stamp) => Ending::Committed(Age(*stamp)),
            _ => Ending::Aborted,
        };
        if let State::Committed(stamp) = *state {
            let here = writes.iter().filter(|((participant, _), _)| *participant == at);
            here.for_each(|((_, key), writer)| crate::install(shard, *key, *writer, stamp));
        }
        assert_eq!(shard.end(who, ending), Outcome::default(), "nobody waits");
        self.go_on(n);
    }

    /// The next attempt is made when all have heard of the end of this one.
    fn go_on(&mut self, n: usize) {
        let attempt = &mut self.attempts[n];
        if attempt.state != State::Open && attempt.open.is_empty() {
            *attempt = Attempt { number: attempt.number + 1, ..Attempt::default() };
            self.made += 1;
        }
    }

    /// The next leader begins with the records and what a checkpoint says of them.
    fn replace(&mut self, at: usize) {
        let mut shard = crate::shard(self.rules, self.bugs);
        let before = &mut self.participants[at].shard;
        for key in 0..KEYS {
            let old = before.record(key);
            let (cell, version) = (before.store.cell(old).clone(), before.store.version(old));
            before.store.release_if_absent(old);
            let record = shard.record(key);
            shard.store.put_back(record, cell, version);
            shard.store.release_if_absent(record);
        }
        let mut remembered = Vec::new();
        let Shard { store, control, .. } = &*before;
        control.remembered(&mut |record, stamp| remembered.push((store.key(record).1[0], stamp)));
        for (key, stamp) in remembered {
            let record = shard.record(key);
            shard.control.remember(&mut shard.store, record, stamp);
        }
        *before = shard;
    }

    fn change_term(&mut self, at: usize, is_replaced: bool) {
        let is_kept = |n: &usize| {
            let attempt = &self.attempts[*n];
            attempt.open.contains(&at) && attempt.promised.contains_key(&at)
        };
        let kept: Vec<usize> = (0..TRANSACTIONS).filter(is_kept).collect();
        let shard = &self.participants[at].shard;
        let held: Vec<_> = kept.iter().map(|n| (*n, shard.held(self.who(*n)))).collect();
        self.participants[at].shard.clear();
        if is_replaced {
            self.replace(at);
        }
        let ceiling = Age(self.participants[at].ceiling);
        self.participants[at].shard.control.begin(ceiling);
        for (n, held) in held {
            let (who, bounds) = (self.who(n), self.attempts[n].promised[&at]);
            for (key, mode) in held {
                self.participants[at].shard.restore_within(who, bounds, key, mode);
            }
        }
        for n in 0..TRANSACTIONS {
            let is_kept = kept.contains(&n);
            let attempt = &mut self.attempts[n];
            if !is_kept {
                attempt.open.remove(&at);
            }
            // A confirmation of an attempt that only reads stands.
            let is_lost = attempt.touched.contains(&at) && !is_kept && !attempt.validated.contains(&at);
            if attempt.state == State::Open && (is_lost || Run::home(n) == at) && attempt.age.is_some() {
                attempt.state = State::Aborted;
            }
            self.go_on(n);
        }
    }

    fn advance(&mut self, at: usize, ago: u64) {
        let Participant { shard, ceiling, floor, .. } = &mut self.participants[at];
        *floor = (*floor).max(ceiling.saturating_sub(ago));
        // Promised writes are yet to be installed.
        let yet = self.attempts.iter().filter(|attempt| attempt.open.contains(&at));
        let promised = yet.filter_map(|attempt| attempt.promised.get(&at)).map(|bounds| bounds.from.0);
        let to = promised.fold(*floor, u64::min);
        shard.control.advance(&mut shard.store, Age(to));
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Access(n, place, mode) => self.access(n, place, mode),
            Op::Both(n, key, mode) => {
                (0..PARTICIPANTS).for_each(|at| self.access(n, (at, Some(key)), mode));
            }
            Op::Validate(n, which, knows) => self.validate(n, which, knows),
            Op::Decide(n, commits) => self.decide(n, commits),
            Op::End(n, at, is_told) => self.end(n, at, is_told),
            Op::Term(at) => self.change_term(at, false),
            Op::Restart(at) => self.change_term(at, true),
            Op::Reserve(at, by) => self.participants[at].ceiling += by,
            Op::Advance(at, ago) => self.advance(at, ago),
        }
        self.check();
    }

    fn check(&self) {
        self.participants.iter().for_each(|participant| participant.shard.check());
    }

    /// Ends what is under way.
    fn settle(&mut self) {
        for n in 0..TRANSACTIONS {
            self.decide(n, true);
            self.decide(n, false);
            (0..PARTICIPANTS).for_each(|at| self.end(n, at, true));
            assert_eq!(self.attempts[n].age, None, "{}", self.who(n));
        }
        self.check();
    }

    fn end_all(mut self) -> (usize, u64) {
        self.settle();
        // Nothing is refused for ever: who comes alone commits once it begins with a stamp that is late everywhere, as time has it.
        let committed = self.history.len();
        let ceilings = self.participants.iter().map(|participant| participant.ceiling);
        let late = ceilings.fold(self.heard, u64::max) + self.rules.cap;
        for n in 0..2 {
            for at in 0..PARTICIPANTS {
                self.participants[at].ceiling = late + 100 * (n + 1);
                self.advance(at, 40);
                self.access(0, (at, Some(0)), Mode::Exclusive);
                self.access(0, (at, None), Mode::Exclusive);
            }
            (0..PARTICIPANTS).for_each(|_| self.validate(0, 0, true));
            self.settle();
        }
        assert!(self.history.len() > committed, "one that comes alone is refused");
        let contents = self.history.replay();
        for (at, Participant { shard, .. }) in self.participants.iter_mut().enumerate() {
            for key in 0..KEYS {
                let expected = contents.get(&(at, key)).copied();
                assert_eq!(seen(shard, key), expected, "key {key} of participant {at}");
            }
            // Idle records are forgotten, in two looks at most.
            (0..2).for_each(|_| shard.control.advance(&mut shard.store, Age(1 << 40)));
            for gauge in ["attempts", "remembered", "validated"] {
                assert_eq!(shard.gauge(&format!("ordain_stamps_{gauge}")), 0.0, "{gauge}");
            }
            for key in 0..KEYS {
                assert_eq!((shard.word(key), shard.is_stored(key)), (0, seen(shard, key).is_some()));
            }
        }
        (committed, self.made)
    }
}

fn run(rules: Rules, bugs: Bugs, (ahead, ops): Drawn) -> (usize, u64) {
    let mut run = Run::new(rules, bugs, ahead);
    ops.into_iter().for_each(|op| run.step(op));
    run.end_all()
}

fn config() -> Config {
    Config { cases: 2_000, failure_persistence: None, ..Config::default() }
}

fn caps() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(4), Just(1_000)]
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn deferred_prewrites_are_serializable(cap in caps(), drawn in ops()) {
        run(Rules { prewrite: "deferred", cap }, Bugs::NONE, drawn);
    }

    #[test]
    fn prewrites_at_the_access_are_serializable(cap in caps(), drawn in ops()) {
        run(Rules { prewrite: "access", cap }, Bugs::NONE, drawn);
    }
}

/// The runs find what is planted in the control: they would find a mistake.
#[test]
fn planted_bugs_are_found() {
    let planted = [
        Bug::GrantLockEarly,
        Bug::UpgradeShared,
        Bug::ForgetIntention,
        Bug::LeaveLock,
        Bug::InstallLate,
        Bug::TearRead,
        Bug::WriteOnlyUpdates,
        Bug::MoveValidated,
    ];
    for (prewrite, bug) in ["deferred", "access"].into_iter().flat_map(|p| planted.map(|bug| (p, bug))) {
        let runs = &(caps(), ops());
        let found = TestRunner::new(Config { max_shrink_iters: 0, ..config() }).run(runs, |(cap, drawn)| {
            run(Rules { prewrite, cap }, Bugs::NONE.with(bug), drawn);
            Ok(())
        });
        assert!(found.is_err(), "{} is not found with {prewrite}", bug.name());
    }
}
