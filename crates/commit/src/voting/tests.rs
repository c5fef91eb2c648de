//! The votes of regions whose servers crash, whose logs lag and whose links lose and reorder what they carry.

mod scenarios;

use std::sync::Arc;

use ordain_model::Millis;
use ordain_role::{Bugs, NodeId};
use proptest::prelude::*;

use super::*;
use crate::agreed::Agreed;
use crate::bench::Bench;
use crate::entry::{Entry, Prepare};
use crate::ids::{Age, Bounds, TransactionId};
use crate::message::{Message, Termed};
use crate::view::View;

/// The regions of the world.
const REGIONS: u16 = 3;

/// What a request to take part is in this world: everything that the coordinators send is in it.
#[derive(Clone, Debug)]
enum Letter {
    Ballot(Ballot),
    Part(AttemptId, Vec<Lead>, u64),
}

/// A message on its way.
#[derive(Clone, Debug)]
struct Sent {
    from: Lead,
    to: Lead,
    letter: Letter,
}

/// The server of a region, with its log: entries that are handed on, of which some first ones are durable.
struct Region {
    at: Bench,
    voting: Voting,
    log: Vec<Arc<Entry>>,
    durable: usize,
    parts: u64,
    transactions: u64,
    /// What the clients of this region have been told: true if it has committed.
    told: BTreeMap<AttemptId, bool>,
    /// Parts that run here.
    running: BTreeMap<AttemptId, AttemptId>,
    /// Those that are to be validated, as all regions have locked.
    called: BTreeSet<AttemptId>,
}

struct World {
    regions: Vec<Region>,
    links: Vec<Sent>,
    /// Each region's outcome of each transaction, as any log has ever said it.
    outcomes: BTreeMap<AttemptId, BTreeMap<PartitionId, bool>>,
    /// All regions lock before any of them validates.
    locks_first: bool,
    /// The regions that have ever locked for a transaction.
    locked: BTreeMap<AttemptId, BTreeSet<u16>>,
    now: u64,
    found: Option<String>,
}

impl World {
    fn new(bugs: Bugs) -> World {
        let region = |n: u16| {
            let mut at = Bench::new(n);
            at.site.partition = PartitionId(n);
            at.site.layout = Arc::new(ordain_model::Layout::even(usize::from(REGIONS), 1).unwrap());
            let reading = ordain_model::RoMode::Validated;
            at.site.regions = Some(crate::desk::Regional { reading, m_retries: 0 });
            at.site.bugs = bugs;
            Region {
                at,
                voting: Voting::default(),
                log: Vec::new(),
                durable: 0,
                parts: 0,
                transactions: 0,
                told: BTreeMap::new(),
                running: BTreeMap::new(),
                called: BTreeSet::new(),
            }
        };
        let regions = (0..REGIONS).map(region).collect();
        let mut world = World {
            regions,
            links: Vec::new(),
            outcomes: BTreeMap::new(),
            locks_first: false,
            locked: BTreeMap::new(),
            now: 0,
            found: None,
        };
        (0..REGIONS).for_each(|n| world.begin(n));
        world
    }

    /// The server of a region begins anew with what is durable of its log, and all hear of it.
    fn begin(&mut self, n: u16) {
        let region = &mut self.regions[usize::from(n)];
        region.log.truncate(region.durable);
        region.at.agreed = Agreed::default();
        for entry in &region.log {
            region.at.agreed.apply(entry).unwrap();
        }
        let term = Term(region.at.lead.map_or(0, |lead| lead.term.0) + 1);
        let lead = Lead { partition: PartitionId(n), term };
        region.at.lead = Some(lead);
        region.at.appender = crate::desk::Appender::default();
        region.at.appender.note(region.at.agreed.place());
        region.voting.stand();
        region.running.clear();
        region.called.clear();
        self.write(n, Content::Begin);
        self.sync(n);
        for other in 0..REGIONS {
            let node = NodeId(n);
            let known = self.regions[usize::from(n)].at.leaders.clone();
            let region = &mut self.regions[usize::from(other)];
            region.at.leaders.note(lead, node);
            _ = known;
        }
        for other in 0..REGIONS {
            let claim = self.regions[usize::from(other)].at.lead;
            claim.into_iter().for_each(|claim| {
                self.regions[usize::from(n)].at.leaders.note(claim, NodeId(other));
            });
        }
        self.act(n, |voting, desk| voting.begin(desk));
        for other in (0..REGIONS).filter(|other| *other != n) {
            self.disturb(other, n);
            self.disturb(n, other);
        }
    }

    /// Messages between two regions may have been lost: those of the first one do what that takes.
    fn disturb(&mut self, n: u16, other: u16) {
        if self.regions[usize::from(n)].at.lead.is_none() {
            return;
        }
        let asked = |polls: &BTreeMap<AttemptId, Poll>| -> Vec<AttemptId> {
            let its = polls.iter().filter(|(of, poll)| {
                let is_own = of.home().partition == PartitionId(n);
                is_own && matches!(poll.stage, Stage::Running(_) | Stage::Locked(_))
            });
            its.map(|(of, _)| *of).collect()
        };
        // An initiator gives up what it has not promised.
        for of in asked(&self.regions[usize::from(n)].voting.polls) {
            self.regions[usize::from(n)].running.remove(&of);
            self.act(n, |voting, desk| voting.refuse(of, Abort::TermChanged, desk));
            self.told(n, of, false);
        }
        self.act(n, |voting, desk| voting.disturbed(PartitionId(other), desk));
    }

    /// Adds an entry to a region's log, which hands it on at once.
    fn write(&mut self, n: u16, content: Content) {
        let region = &mut self.regions[usize::from(n)];
        let (place, term) = (region.at.agreed.place().next(), region.at.lead.unwrap().term);
        let entry = Arc::new(Entry { place, term, now: Millis(0), content, agreed: None });
        region.at.agreed.apply(&entry).unwrap();
        region.at.appender.note(place);
        region.log.push(entry.clone());
        match &entry.content {
            Content::Prepare(prepare) => {
                let among = prepare.among.clone().unwrap();
                let durable = self.durable(n);
                self.act(n, |voting, desk| voting.promised(&among, prepare.attempt, place, durable, desk));
            }
            Content::Outcome(part, commit) => {
                let durable = self.durable(n);
                self.act(n, |voting, desk| _ = voting.concluded(*part, place, durable, desk));
                _ = commit;
            }
            Content::Forget(attempts) => {
                let durable = self.durable(n);
                self.act(n, |voting, desk| voting.forgotten(attempts, place, durable, desk));
            }
            _ => {}
        }
    }

    fn durable(&self, n: u16) -> Option<Epoch> {
        let region = &self.regions[usize::from(n)];
        Some(region.durable.checked_sub(1).map_or(Epoch(0), |last| region.log[last].place))
    }

    /// All of a region's log is durable.
    fn sync(&mut self, n: u16) {
        let region = &mut self.regions[usize::from(n)];
        region.durable = region.log.len();
        let durable = self.durable(n).unwrap();
        self.act(n, |voting, desk| voting.durable(durable, desk));
    }

    /// Has the votes of a region do something, and does what follows from it.
    fn act(&mut self, n: u16, act: impl FnOnce(&mut Voting, &mut Desk<'_>)) {
        let now = Micros::from_millis(self.now);
        let region = &mut self.regions[usize::from(n)];
        region.at.elapsed = now;
        let Region { at, voting, .. } = region;
        let mut verdicts = Vec::new();
        let sends = at.tell(|desk| {
            act(voting, desk);
            verdicts = voting.take_verdicts();
        });
        if let Err(found) = voting.check() {
            self.found.get_or_insert(format!("region {n}: {found}"));
        }
        let mut contents = Vec::new();
        for (_, message) in sends {
            match message {
                Message::Termed(Termed { from, to, content: Protocol::Ballot(ballot) }) => {
                    self.links.push(Sent { from, to, letter: Letter::Ballot(ballot) });
                }
                Message::Log(ordain_replication::Log::Append(entry)) => contents.push(entry.content.clone()),
                other => panic!("{other:?}"),
            }
        }
        for Verdict { of, part, end } in verdicts {
            self.regions[usize::from(n)].running.remove(&of);
            let outcome = match end {
                End::Dropped(_) => None,
                End::Committed(_) => Some(true),
                End::Aborted(_) => Some(false),
            };
            if let Some(outcome) = outcome {
                self.conclude(of, n, outcome);
            }
            if of == part {
                self.told(n, of, outcome == Some(true));
            }
        }
        contents.into_iter().for_each(|content| self.write(n, content));
    }

    /// A region has come to an outcome. It may forget it and come to one again: that has to be the same.
    fn conclude(&mut self, of: AttemptId, n: u16, outcome: bool) {
        let outcomes = self.outcomes.entry(of).or_default();
        outcomes.insert(PartitionId(n), outcome);
        if outcomes.values().any(|other| *other != outcome) {
            self.found.get_or_insert(format!("regions differ about {of}: {outcomes:?}"));
        }
    }

    fn told(&mut self, n: u16, of: AttemptId, outcome: bool) {
        self.regions[usize::from(n)].told.insert(of, outcome);
        let outcomes = self.outcomes.entry(of).or_default();
        if outcomes.values().any(|other| *other != outcome) {
            self.found.get_or_insert(format!("a client was told {outcome} of {of}: {outcomes:?}"));
        }
    }

    /// A transaction of a region and all others is initiated.
    fn initiate(&mut self, n: u16) {
        let region = &mut self.regions[usize::from(n)];
        region.transactions += 1;
        let home = region.at.lead.unwrap();
        let number = region.transactions;
        let of = AttemptId { transaction: TransactionId { home, number }, attempt: 1 };
        let leads: Vec<Lead> = (0..REGIONS)
            .filter_map(|other| region.at.leaders.of(PartitionId(other)))
            .map(|of| of.1)
            .collect();
        if leads.len() < usize::from(REGIONS) {
            return;
        }
        region.running.insert(of, of);
        region.voting.run(of, of, &leads);
        let low = region.voting.lowest(home, number);
        for to in leads.iter().filter(|lead| **lead != home) {
            let letter = Letter::Part(of, leads.clone(), low);
            self.links.push(Sent { from: home, to: *to, letter });
        }
    }

    /// What a part writes is locked in its region.
    fn lock(&mut self, n: u16, of: AttemptId) {
        if self.regions[usize::from(n)].voting.has_locked(of) {
            return;
        }
        self.locked.entry(of).or_default().insert(n);
        let mut called = None;
        self.act(n, |voting, desk| called = voting.lock(of, desk));
        if called.is_some() {
            self.call(n, of);
        }
    }

    /// A region is to validate its part.
    fn call(&mut self, n: u16, of: AttemptId) {
        self.regions[usize::from(n)].called.insert(of);
        if self.locked[&of].len() < usize::from(REGIONS) {
            self.found.get_or_insert(format!("region {n} validates {of}, and not all have locked"));
        }
    }

    /// A part that runs in a region comes to its end: it is promised, or refused. Where all lock first, it may come no further than that.
    fn finish(&mut self, n: u16, which: usize, promises: bool) {
        let region = &mut self.regions[usize::from(n)];
        let running: Vec<(AttemptId, AttemptId)> =
            region.running.iter().map(|(of, part)| (*of, *part)).collect();
        let Some((of, part)) = running.get(which % running.len().max(1)).copied() else { return };
        if promises && self.locks_first && !region.called.contains(&of) {
            return self.lock(n, of);
        }
        region.running.remove(&of);
        if !promises {
            self.act(n, |voting, desk| voting.refuse(of, Abort::StaleView, desk));
            if of == part {
                self.told(n, of, false);
            }
            return;
        }
        let participants = region.voting.polls[&of].participants.clone();
        self.act(n, |voting, desk| voting.promise(of, desk));
        let among = Among { of, participants, session: None, reply: Vec::new() };
        let prepare = Prepare {
            attempt: part,
            bounds: Bounds::at(Age(1)),
            view: View::NONE,
            ceiling: Millis(0),
            changes: Vec::new(),
            writes: Vec::new(),
            holds: Vec::new(),
            among: Some(Box::new(among)),
        };
        self.write(n, Content::Prepare(prepare));
    }

    /// A message arrives.
    fn deliver(&mut self, which: usize, is_kept: bool) {
        let Sent { from, to, letter } = match is_kept {
            true => self.links[which].clone(),
            false => self.links.remove(which),
        };
        let n = to.partition.0;
        let region = &mut self.regions[usize::from(n)];
        if region.at.lead != Some(to) || !region.at.leaders.holds(from) {
            return;
        }
        match letter {
            Letter::Part(of, leads, low) => {
                region.parts += 1;
                let (home, number) = (to, 1_000_000 + region.parts);
                let part = AttemptId { transaction: TransactionId { home, number }, attempt: 1 };
                let mut is_new = false;
                self.act(n, |voting, desk| {
                    is_new = voting.requested(of, &leads, low, desk) == Requested::New;
                    if is_new {
                        voting.run(of, part, &leads);
                    }
                });
                if is_new {
                    self.regions[usize::from(n)].running.insert(of, part);
                }
            }
            Letter::Ballot(Ballot::Locked(of)) => {
                let mut called = None;
                self.act(n, |voting, desk| called = voting.locked(from, of, desk));
                called.into_iter().for_each(|_| self.call(n, of));
            }
            Letter::Ballot(Ballot::Validate(of)) => {
                if region.voting.called(from, of).is_some() {
                    self.call(n, of);
                }
            }
            Letter::Ballot(ballot) => self.act(n, |voting, desk| match ballot {
                Ballot::Say(of, said, others) => voting.hear(from, of, said, &others, desk),
                Ballot::Ask(of) => voting.asked(from, of, desk),
                Ballot::Known(of, _) => voting.acknowledged(from, of, desk),
                Ballot::Forget(attempts) => voting.forget(from, &attempts, desk),
                Ballot::Checked(..) | Ballot::Locked(_) | Ballot::Validate(_) => {}
            }),
        }
    }

    fn pass(&mut self, n: u16) {
        self.act(n, |voting, desk| voting.pass(desk));
    }

    /// No fault comes any more, and everything has time.
    fn settle(&mut self) {
        for round in 0..200 {
            if self.found.is_some() {
                return;
            }
            for n in 0..REGIONS {
                for which in (0..self.regions[usize::from(n)].running.len()).rev() {
                    self.finish(n, which, true);
                }
                // Who has locked waits for a while alone.
                while round % 8 == 7 && !self.regions[usize::from(n)].running.is_empty() {
                    self.finish(n, 0, false);
                }
                self.sync(n);
            }
            while !self.links.is_empty() && self.found.is_none() {
                self.deliver(0, false);
            }
            self.now += 500;
            (0..REGIONS).for_each(|n| self.pass(n));
        }
    }

    /// Nothing is in doubt, nothing is kept, and what clients were told is so everywhere.
    fn judge(&mut self) -> Result<(), String> {
        if let Some(found) = self.found.take() {
            return Err(found);
        }
        for (n, region) in self.regions.iter().enumerate() {
            if let Some((of, missing)) = region.voting.in_doubt(PartitionId(n as u16)).next() {
                return Err(format!("region {n} is in doubt about {of}, for want of {missing:?}"));
            }
            if region.voting.open() > 0 || region.voting.untold() > 0 {
                return Err(format!("region {n} keeps {:?}", region.voting));
            }
            if let Some((of, _)) = region.at.agreed.all_decided().next() {
                return Err(format!("the log of region {n} keeps the outcome of {of}"));
            }
        }
        for region in &self.regions {
            for (of, outcome) in region.told.iter().filter(|(_, outcome)| **outcome) {
                let everywhere = self.outcomes.get(of).map_or(0, BTreeMap::len);
                if everywhere != usize::from(REGIONS) {
                    return Err(format!("{of} was told as {outcome} and has {everywhere} outcomes"));
                }
            }
        }
        Ok(())
    }
}

/// A step of a plan.
#[derive(Clone, Copy, Debug)]
enum Step {
    Initiate(u16),
    Finish(u16, usize, bool),
    Deliver(usize),
    Repeat(usize),
    Lose(usize),
    Sync(u16),
    Crash(u16),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let region = 0..REGIONS;
    prop_oneof![
        3 => region.clone().prop_map(Step::Initiate),
        8 => (region.clone(), any::<usize>(), prop::bool::weighted(0.9)).prop_map(|(n, which, yes)| Step::Finish(n, which, yes)),
        16 => any::<usize>().prop_map(Step::Deliver),
        1 => any::<usize>().prop_map(Step::Repeat),
        1 => any::<usize>().prop_map(Step::Lose),
        6 => region.clone().prop_map(Step::Sync),
        1 => region.prop_map(Step::Crash),
        1 => (1_u64..600).prop_map(Step::Wait),
    ]
}

fn run(steps: &[Step], bugs: Bugs, locks_first: bool) -> Result<(), String> {
    let mut world = World { locks_first, ..World::new(bugs) };
    for step in steps {
        let letters = world.links.len();
        match *step {
            Step::Initiate(n) => world.initiate(n),
            Step::Finish(n, which, promises) => world.finish(n, which, promises),
            Step::Deliver(which) if letters > 0 => world.deliver(which % letters, false),
            Step::Repeat(which) if letters > 0 => world.deliver(which % letters, true),
            Step::Lose(which) if letters > 0 => _ = world.links.remove(which % letters),
            Step::Deliver(_) | Step::Repeat(_) | Step::Lose(_) => {}
            Step::Sync(n) => world.sync(n),
            Step::Crash(n) => world.begin(n),
            Step::Wait(by) => {
                world.now += by;
                (0..REGIONS).for_each(|n| world.pass(n));
            }
        }
        if let Some(found) = world.found {
            return Err(found);
        }
    }
    world.settle();
    world.judge()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn regions_agree_whatever_is_lost_and_whoever_crashes(steps in prop::collection::vec(step(), 1..120)) {
        run(&steps, Bugs::NONE, false).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn regions_that_lock_first_agree_and_validate_when_all_have_locked(steps in prop::collection::vec(step(), 1..160)) {
        run(&steps, Bugs::NONE, true).map_err(TestCaseError::fail)?;
    }
}

/// An initiator told the others to forget what all knew before its own log had that safely. It crashed, and waited for ever for those who
/// had forgotten.
#[test]
fn others_forget_what_the_log_of_the_initiator_has_forgotten_safely() {
    use Step::{Crash, Deliver, Finish, Initiate, Sync, Wait};
    let mut steps =
        vec![Initiate(1), Deliver(0), Finish(1, 0, true), Deliver(0), Finish(0, 0, true), Finish(2, 0, true)];
    steps.extend([Sync(2), Sync(1), Sync(0)]);
    steps.extend([Deliver(0); 6]);
    steps.extend([Sync(0), Sync(1), Sync(2), Deliver(0), Deliver(0), Wait(100), Deliver(0), Crash(1)]);
    assert_eq!(run(&steps, Bugs::NONE, false), Ok(()));
}

/// Each planted bug is found by some plan.
#[test]
fn planted_bugs_are_found() {
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    for (bug, locks_first) in [
        (Bug::VoteUndurable, false),
        (Bug::VoteBeforeLog, false),
        (Bug::ForgetRefusal, false),
        (Bug::ValidateBeforeLocked, true),
    ] {
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
        let mut runner = TestRunner::new_with_rng(Config::default(), rng);
        let plans = prop::collection::vec(step(), 1..120);
        let found = (0..4_000).any(|_| {
            let steps = plans.new_tree(&mut runner).unwrap().current();
            run(&steps, Bugs::NONE.with(bug), locks_first).is_err()
        });
        assert!(found, "{bug:?} is not found");
    }
}

/// A server that was replaced says no to what its successor has promised (commit.md, schedule 8): whoever asks both counts the yes.
#[test]
fn a_no_counts_from_the_incarnation_that_was_asked_or_a_later_one() {
    let committed = |bugs: Bugs| {
        let mut world = World::new(bugs);
        // The initiator knows the successor, whose word has not come to region 2 yet.
        let old = world.regions[1].at.lead.unwrap();
        let next = Lead { term: old.term.next(), ..old };
        world.regions[0].at.leaders.note(next, NodeId(1));
        world.initiate(0);
        let to_second = world.links.iter().position(|sent| sent.to.partition == PartitionId(2)).unwrap();
        world.deliver(to_second, false);
        world.finish(2, 0, true);
        world.sync(2);
        let of = *world.regions[2].voting.polls.keys().next().unwrap();
        let home = of.home();
        world.act(2, |voting, desk| voting.hear(old, of, Said::No(Abort::TermChanged, Millis(0)), &[], desk));
        world.act(2, |voting, desk| voting.hear(home, of, Said::Yes, &[], desk));
        world.act(2, |voting, desk| voting.hear(next, of, Said::Yes, &[], desk));
        world.outcomes[&of][&PartitionId(2)]
    };
    assert!(committed(Bugs::NONE));
    assert!(!committed(Bugs::NONE.with(Bug::CountAnyNo)));
}

/// A peer may name what there is not: no more than so much of it is kept, and no refusal is forgotten for it.
#[test]
fn what_peers_name_fills_no_memory() {
    let World { mut regions, .. } = World::new(Bugs::NONE);
    let Region { at, voting, .. } = &mut regions[0];
    let peer = Lead { partition: PartitionId(1), term: Term(1) };
    let of = |number| AttemptId { transaction: TransactionId { home: peer, number }, attempt: 1 };
    let first = POLLS_MAX as u64 / 2;
    at.tell(|desk| {
        (0..first).for_each(|number| voting.asked(peer, of(number), desk));
        (first..2 * first + 9).for_each(|number| voting.hear(peer, of(number), Said::Yes, &[], desk));
        voting.asked(peer, of(2 * first + 9), desk);
        assert_eq!(voting.polls.len(), POLLS_MAX);
        assert_eq!(voting.requested(of(2 * first + 9), &[peer], 0, desk), Requested::Known);
        assert_eq!(voting.requested(of(0), &[peer], 0, desk), Requested::Known, "it was refused");
        assert_eq!(voting.polls.len(), POLLS_MAX);
    });
}
