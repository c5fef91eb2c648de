//! Scenarios 5 to 10 of the sheet (regions.md, section 8) and its gaps G8, G9 and G16, by number. Region 0 initiates, 1 and 2 validate.

use super::*;

impl World {
    /// Region 0 initiates a transaction; answers the number by which all know it.
    fn initiated(&mut self) -> AttemptId {
        self.initiate(0);
        *self.regions[0].running.keys().next_back().unwrap()
    }

    /// A part is promised, and its promise is durable.
    fn promise(&mut self, n: u16) {
        self.finish(n, 0, true);
        self.sync(n);
    }

    /// What is on its way from one region to another arrives, in order.
    fn carry(&mut self, from: u16, to: u16) {
        let is_its = |sent: &Sent| (sent.from.partition.0, sent.to.partition.0) == (from, to);
        for _ in 0..self.links.iter().filter(|sent| is_its(sent)).count() {
            let at = self.links.iter().position(is_its).unwrap();
            self.deliver(at, false);
        }
    }

    /// What is on its way from one region to another is lost.
    fn lose(&mut self, from: u16, to: u16) {
        self.links.retain(|sent| (sent.from.partition.0, sent.to.partition.0) != (from, to));
    }

    /// The first request to a region that is on its way.
    fn request_to(&self, to: u16) -> Sent {
        let is_its =
            |sent: &&Sent| sent.to.partition == PartitionId(to) && matches!(sent.letter, Letter::Part(..));
        self.links.iter().find(is_its).unwrap().clone()
    }

    /// A message arrives that was on its way for long.
    fn arrive(&mut self, sent: Sent) {
        self.links.push(sent);
        self.deliver(self.links.len() - 1, false);
    }

    /// Time passes, for a region.
    fn wait(&mut self, n: u16, millis: u64) {
        self.now += millis;
        self.pass(n);
    }

    /// The outcomes in the logs of all regions.
    fn outcomes_of(&self, of: AttemptId) -> [Option<bool>; 3] {
        let outcomes = self.outcomes.get(&of);
        [0, 1, 2].map(|n| outcomes.and_then(|all| all.get(&PartitionId(n)).copied()))
    }

    /// The outcomes once all is at rest.
    fn end(mut self, of: AttemptId) -> Result<[Option<bool>; 3], String> {
        self.settle();
        self.judge()?;
        Ok(self.outcomes_of(of))
    }

    fn stage(&self, n: u16, of: AttemptId) -> Stage {
        self.regions[usize::from(n)].voting.polls[&of].stage
    }
}

const ALL: Result<[Option<bool>; 3], String> = Ok([Some(true); 3]);

#[test]
fn scenario_5_an_initiator_dies_after_one_of_two_requests() {
    let mut w = World::new(Bugs::NONE);
    let of = w.initiated();
    w.carry(0, 1);
    w.lose(0, 2);
    w.promise(1);
    w.carry(1, 2);
    w.begin(0);
    // Nobody has region 2 say no but region 1 and the initiator's successor.
    assert_eq!(w.end(of), Ok([None, Some(false), None]));
}

/// The validators have the yes of all, and the initiator has nobody's.
fn decided_without_its_initiator(bugs: Bugs, is_durable: bool) -> Result<[Option<bool>; 3], String> {
    let mut w = World::new(bugs);
    let of = w.initiated();
    w.finish(0, 0, true);
    if is_durable {
        w.sync(0);
    }
    [1, 2].into_iter().for_each(|n| w.carry(0, n));
    [1, 2].into_iter().for_each(|n| w.promise(n));
    w.carry(1, 2);
    w.carry(2, 1);
    [1, 2].into_iter().for_each(|n| w.lose(n, 0));
    let decided = (is_durable || bugs != Bugs::NONE).then_some(true);
    assert_eq!(w.outcomes_of(of), [None, decided, decided]);
    w.begin(0);
    w.end(of)
}

#[test]
fn scenario_6_validators_commit_alone_after_the_initiators_yes() {
    assert_eq!(decided_without_its_initiator(Bugs::NONE, true), ALL);
    assert_eq!(decided_without_its_initiator(Bugs::NONE, false), Ok([None, Some(false), Some(false)]));
    let bugs = Bugs::NONE.with(Bug::VoteUndurable);
    assert_ne!(decided_without_its_initiator(bugs, false), Ok([None, Some(false), Some(false)]));
}

/// Region 1 loses its power after its yes, which has come to the initiator at most.
fn lost_yes(bugs: Bugs, is_durable: bool, is_heard: bool) -> Result<[Option<bool>; 3], String> {
    let mut w = World::new(bugs);
    let of = w.initiated();
    [1, 2].into_iter().for_each(|n| w.carry(0, n));
    [0, 2].into_iter().for_each(|n| w.promise(n));
    w.carry(2, 0);
    w.finish(1, 0, true);
    if is_durable {
        w.sync(1);
    }
    if is_heard {
        w.carry(1, 0);
    }
    [0, 2].into_iter().for_each(|n| w.lose(1, n));
    let decided = (is_heard && (is_durable || bugs != Bugs::NONE)).then_some(true);
    assert_eq!(w.outcomes_of(of), [decided, None, None]);
    w.begin(1);
    w.end(of)
}

#[test]
fn scenario_7_a_validator_dies_after_its_yes_is_durable() {
    for is_heard in [false, true] {
        assert_eq!(lost_yes(Bugs::NONE, true, is_heard), ALL);
        assert_eq!(lost_yes(Bugs::NONE, false, is_heard), Ok([Some(false), None, Some(false)]));
    }
    let found = lost_yes(Bugs::NONE.with(Bug::VoteUndurable), false, true);
    assert!(found.as_ref().is_err_and(|found| found.contains("differ")), "{found:?}");
}

#[test]
fn scenario_8_votes_come_before_the_request() {
    let mut w = World::new(Bugs::NONE);
    let of = w.initiated();
    let late = w.request_to(2);
    w.lose(0, 2);
    w.carry(0, 1);
    [0, 1].into_iter().for_each(|n| w.promise(n));
    [0, 1].into_iter().for_each(|n| w.carry(n, 2));
    assert_eq!(w.stage(2, of), Stage::Unknown);
    w.arrive(late);
    w.promise(2);
    assert_eq!(w.outcomes_of(of)[2], Some(true), "they were kept");
    assert_eq!(w.end(of), ALL);
}

#[test]
fn scenario_8_a_request_comes_again_to_the_next_incarnation() {
    let mut w = World::new(Bugs::NONE);
    let of = w.initiated();
    let request = w.request_to(1);
    w.carry(0, 1);
    w.promise(1);
    w.begin(1);
    let part = w.stage(1, of);
    let answers = |w: &World| {
        let is_its = |sent: &&Sent| {
            matches!(sent.letter, Letter::Ballot(Ballot::Say(_, Said::Yes, _)))
                && (sent.from.partition, sent.to.partition) == (PartitionId(1), PartitionId(0))
        };
        w.links.iter().filter(is_its).count()
    };
    let before = answers(&w);
    // A link does not bring it, as it is meant for the former one.
    let to = w.regions[1].at.lead.unwrap();
    w.arrive(Sent { to, ..request });
    assert_eq!(w.stage(1, of), part, "it is promised, and not run again");
    assert!(matches!(part, Stage::Promised(_)) && w.regions[1].running.is_empty());
    assert_eq!(answers(&w), before + 1, "it repeats its yes");
    // The initiator has given up what it has not promised itself, and region 2 hears of that.
    assert_eq!(w.end(of), Ok([None, Some(false), None]));
}

#[test]
fn scenario_8_a_request_of_an_attempt_comes_after_the_next_attempt() {
    for is_over in [false, true] {
        let mut w = World::new(Bugs::NONE);
        let first = w.initiated();
        let late = w.request_to(1);
        w.lose(0, 1);
        w.finish(0, 0, false);
        [1, 2].into_iter().for_each(|n| w.carry(0, n));
        let next = w.initiated();
        [1, 2].into_iter().for_each(|n| w.carry(0, n));
        if is_over {
            w.settle();
            w.initiated();
            w.carry(0, 1);
            assert!(!w.regions[1].voting.polls.contains_key(&first), "all below is forgotten");
        }
        let running = w.regions[1].running.len();
        w.arrive(late);
        assert_eq!(w.regions[1].running.len(), running, "it is refused");
        assert_eq!(w.outcomes_of(first), [None; 3]);
        assert_eq!(w.end(next), ALL);
    }
}

/// Region 1 is promised and asks region 2, to which the request comes then. Region 1 alone hears the answer.
fn asked_before(bugs: Bugs) -> Result<[Option<bool>; 3], String> {
    let mut w = World::new(bugs);
    let of = w.initiated();
    let late = w.request_to(2);
    w.lose(0, 2);
    w.carry(0, 1);
    w.promise(1);
    w.lose(1, 2);
    w.wait(1, 300);
    w.carry(1, 2);
    w.carry(2, 1);
    w.lose(2, 0);
    assert_eq!(w.outcomes_of(of)[1], Some(false));
    w.arrive(late);
    assert_eq!(w.regions[2].running.is_empty(), bugs == Bugs::NONE);
    w.end(of)
}

#[test]
fn scenario_9_who_was_asked_before_it_knew_refuses_the_late_request() {
    assert_eq!(asked_before(Bugs::NONE), Ok([Some(false), Some(false), None]));
    assert!(asked_before(Bugs::NONE.with(Bug::ForgetRefusal)).is_err());
}

#[test]
fn scenario_10_a_no_is_lost_and_the_next_incarnation_is_asked() {
    let mut w = World::new(Bugs::NONE);
    let of = w.initiated();
    let request = w.request_to(1);
    [1, 2].into_iter().for_each(|n| w.carry(0, n));
    [0, 2].into_iter().for_each(|n| w.promise(n));
    w.finish(1, 0, false);
    // Region 2 has heard the no, and the initiator has not.
    w.carry(1, 2);
    w.carry(2, 0);
    w.lose(1, 0);
    assert_eq!(w.outcomes_of(of), [None, None, Some(false)]);
    w.begin(1);
    let to = w.regions[1].at.lead.unwrap();
    w.arrive(Sent { to, ..request });
    assert!(w.regions[1].running.is_empty(), "another incarnation was meant");
    assert_eq!(w.end(of), Ok([Some(false), None, Some(false)]));
}

/// G8, G16: region 1 has the yes of all. Region 2 has nobody's, and hears of nobody for long; the initiator is gone.
#[test]
fn gaps_8_and_16_who_has_promised_waits_and_asks_the_others() {
    let mut w = World::new(Bugs::NONE);
    let of = w.initiated();
    [1, 2].into_iter().for_each(|n| w.carry(0, n));
    (0..REGIONS).for_each(|n| w.promise(n));
    [0, 2].into_iter().for_each(|n| w.carry(n, 1));
    assert_eq!(w.outcomes_of(of), [None, Some(true), None]);
    for _ in 0..60 {
        w.links.clear();
        w.wait(2, 1_000);
        assert!(matches!(w.stage(2, of), Stage::Promised(_)), "it does not decide alone");
    }
    w.wait(2, 4_000);
    w.carry(2, 1);
    w.carry(1, 2);
    assert_eq!(w.outcomes_of(of), [None, Some(true), Some(true)], "region 1 has told it");
    w.begin(0);
    assert_eq!(w.end(of), ALL);
}

/// G9: both validators have promised, and the initiator has not: it loses its power.
fn without_the_initiator(bugs: Bugs) -> Result<[Option<bool>; 3], String> {
    let mut w = World::new(bugs);
    let of = w.initiated();
    [1, 2].into_iter().for_each(|n| w.carry(0, n));
    [1, 2].into_iter().for_each(|n| w.promise(n));
    w.finish(0, 0, true);
    for (from, to) in [(1, 2), (2, 1), (0, 1), (0, 2)] {
        w.carry(from, to);
    }
    w.begin(0);
    w.end(of)
}

#[test]
fn gap_9_the_initiator_votes_too() {
    let aborted = Ok([None, Some(false), Some(false)]);
    assert_eq!(without_the_initiator(Bugs::NONE), aborted);
    for bug in [Bug::VoteBeforeLog, Bug::VoteUndurable] {
        assert_ne!(without_the_initiator(Bugs::NONE.with(bug)), aborted, "{bug:?}");
    }
}

/// Regions that lock first: all have locked, and region 2 alone has not heard so.
fn locked() -> (World, AttemptId) {
    let mut w = World { locks_first: true, ..World::new(Bugs::NONE) };
    let of = w.initiated();
    [1, 2].into_iter().for_each(|n| w.carry(0, n));
    (0..REGIONS).for_each(|n| w.finish(n, 0, true));
    assert!((0..REGIONS).all(|n| matches!(w.stage(n, of), Stage::Locked(_))), "nobody has promised");
    [1, 2].into_iter().for_each(|n| w.carry(n, 0));
    w.carry(0, 1);
    let validates = |w: &World, n: u16| w.regions[usize::from(n)].called.contains(&of);
    assert_eq!([0, 1, 2].map(|n| validates(&w, n)), [true, true, false]);
    (w, of)
}

#[test]
fn who_has_locked_is_asked_twice_and_says_neither_yes_nor_no() {
    let (mut w, of) = locked();
    let call = w.links.iter().position(|sent| sent.to.partition == PartitionId(2)).unwrap();
    let call = w.links.remove(call);
    w.promise(1);
    w.wait(1, 300);
    w.carry(1, 2);
    assert!(matches!(w.stage(2, of), Stage::Locked(_)), "a yes and a question come");
    w.carry(2, 1);
    assert!(matches!(w.stage(1, of), Stage::Promised(_)), "it waits on");
    w.arrive(call.clone());
    w.promise(2);
    let part = w.stage(2, of);
    w.arrive(call);
    assert_eq!(w.stage(2, of), part, "and the word of the initiator comes again");
    assert_eq!(w.end(of), ALL);
}

#[test]
fn who_has_locked_for_too_long_says_no_to_all() {
    let (mut w, of) = locked();
    w.links.clear();
    [0, 1].into_iter().for_each(|n| w.promise(n));
    w.begin(0);
    w.finish(2, 0, false);
    assert_eq!(w.end(of), Ok([Some(false), Some(false), None]));
}

#[test]
fn the_next_incarnation_of_who_has_locked_is_not_called() {
    let (mut w, of) = locked();
    let call = w.links.iter().position(|sent| sent.to.partition == PartitionId(2)).unwrap();
    let call = w.links.remove(call);
    w.begin(2);
    let to = w.regions[2].at.lead.unwrap();
    w.arrive(Sent { to, ..call });
    assert!(w.regions[2].running.is_empty(), "it has locked nothing");
    assert_eq!(w.end(of).map(|outcomes| outcomes.contains(&Some(true))), Ok(false));
}

#[test]
fn refusals_are_not_repeated_over_a_link_that_was_broken() {
    let mut w = World::new(Bugs::NONE);
    // Of what the initiator has promised, region 1 refuses all but one, and all that it says is lost.
    let all: Vec<AttemptId> = (0..50).map(|_| w.initiated()).collect();
    all.iter().for_each(|_| w.finish(0, 0, true));
    w.sync(0);
    w.carry(0, 1);
    all.iter().skip(1).for_each(|_| w.finish(1, 0, false));
    w.promise(1);
    w.lose(1, 0);
    w.disturb(1, 0);
    // Repeated refusals may be more than the link has room for, which breaks it anew.
    let said = w.links.iter().filter(|sent| sent.to.partition == PartitionId(0)).count();
    assert_eq!(said, 2, "a yes, and a question");
    // The initiator asks for what it has promised.
    assert_eq!(w.end(all[0]), Ok([Some(false), None, None]));
}
