//! The cohort: what this partition has promised to coordinators elsewhere, and how it learns the outcome.
//!
//! ```text
//!  Prepare ──▶ gathering (each of its participants hands over) ──▶ PREPARE in the log ──▶ yes
//!                                                                      │
//!  Decide, or Ask and then Decide ──▶ OUTCOME in the log ──▶ installed, released, Ack
//! ```
//!
//! A promise stands in the log, so whoever leads next keeps it. Until the outcome is known the records stay held, and the leader
//! asks the home for it: at once when the home has changed its leader, and every so often.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ordain_model::{Micros, PartitionId};
use ordain_replication::Log;
use ordain_role::Bug;

use crate::desk::Desk;
use crate::entry::{Content, Prepare};
use crate::ids::AttemptId;
use crate::message::{Gathered, Own, PrepareRequest, Protocol};

/// The home of what is promised is asked this often.
const ASK_EVERY: Micros = Micros::from_millis(250);

/// See the module.
#[derive(Debug, Default)]
pub struct Cohort {
    gathering: BTreeMap<AttemptId, Gathering>,
    /// Promises on their way into the log.
    promising: BTreeSet<AttemptId>,
    /// Outcomes on their way into the log, or waiting for space there.
    concluding: BTreeMap<AttemptId, Concluding>,
    /// When the homes are asked next.
    asks_at: Option<Micros>,
    /// Attempts that were aborted before they were promised here: a request to promise them is too late.
    aborted: BTreeSet<AttemptId>,
    confirming: Confirming,
}

/// Attempts that only read here, and wait for a proof that the node leads.
#[derive(Debug, Default)]
struct Confirming {
    /// The number of the last question to the log. It rises over terms.
    asked: u64,
    /// The question that is under way, if one is: no attempt that came later is answered by it.
    under_way: Option<u64>,
    /// The attempts of each question.
    waiting: VecDeque<(u64, AttemptId)>,
}

#[derive(Debug)]
struct Gathering {
    request: PrepareRequest,
    awaited: usize,
    gathered: Gathered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Concluding {
    is_commit: bool,
    /// True once it was appended, until the log has answered.
    is_appended: bool,
}

/// Attempts that are remembered as aborted at most; requests come over streams in order, so one that is late is late by little.
const ABORTED_MAX: usize = 1 << 12;

impl Cohort {
    /// Takes a request to promise an attempt.
    pub fn prepare(&mut self, request: PrepareRequest, desk: &mut Desk<'_>) {
        let who = request.attempt;
        if desk.agreed.is_prepared(who) {
            // A repeated question: the promise stands.
            desk.tell_manager(who.home().partition, Protocol::Vote(who, true));
            return;
        }
        if self.gathering.contains_key(&who) || self.promising.contains(&who) {
            return;
        }
        if self.aborted.contains(&who) || desk.appender.is_full() {
            return self.refuse(&request, desk);
        }
        let own = desk.site.layout.shards_of(desk.site.partition);
        let is_sound =
            !request.shards.is_empty() && request.shards.iter().all(|s| own.contains(&usize::from(*s)));
        if !is_sound {
            return self.refuse(&request, desk);
        }
        for shard in &request.shards {
            desk.out.send(desk.site.participant(desk.site.node, usize::from(*shard)), Own::Gather(who));
        }
        let awaited = request.shards.len();
        self.gathering.insert(who, Gathering { request, awaited, gathered: Gathered::default() });
    }

    fn refuse(&mut self, request: &PrepareRequest, desk: &mut Desk<'_>) {
        let who = request.attempt;
        for shard in &request.shards {
            desk.out.send(desk.site.participant(desk.site.node, usize::from(*shard)), Own::Drop(who));
        }
        desk.tell_manager(who.home().partition, Protocol::Vote(who, false));
    }

    /// Takes what a participant of this node has handed over.
    pub fn gathered(&mut self, who: AttemptId, part: Option<Gathered>, desk: &mut Desk<'_>) {
        let Some(gathering) = self.gathering.get_mut(&who) else { return };
        let Some(part) = part else {
            let gathering = self.gathering.remove(&who).expect("it was found above");
            return self.refuse(&gathering.request, desk);
        };
        // A fragment over the whole table does the same on every shard.
        gathering.gathered.changes = part.changes;
        gathering.gathered.writes.extend(part.writes);
        gathering.gathered.holds.extend(part.holds);
        gathering.awaited -= 1;
        if gathering.awaited > 0 {
            return;
        }
        let Gathering { request, gathered, .. } = self.gathering.remove(&who).expect("it was found above");
        if !desk.is_remembered(request.age) {
            return self.refuse(&request, desk);
        }
        let Gathered { changes, mut writes, holds } = gathered;
        writes.extend(request.returned);
        self.promising.insert(who);
        let prepare = Prepare { attempt: who, age: request.age, changes, writes, holds };
        // Planted, PROMISE: the vote goes out before the promise stands in the log.
        if desk.site.bugs.has(Bug::VoteBeforeLog) {
            desk.tell_manager(who.home().partition, Protocol::Vote(who, true));
        }
        desk.append(request.now, Content::Prepare(prepare));
    }

    /// Takes a question whether the node leads: all that an attempt reads here has been read. Attempts that ask while a proof is
    /// under way share the next one.
    pub fn confirm(&mut self, who: AttemptId, desk: &mut Desk<'_>) {
        let Confirming { asked, under_way, waiting } = &mut self.confirming;
        waiting.push_back((*asked + 1, who));
        if under_way.is_none() {
            self.ask_log(desk);
        }
    }

    fn ask_log(&mut self, desk: &mut Desk<'_>) {
        self.confirming.asked += 1;
        self.confirming.under_way = Some(self.confirming.asked);
        desk.out.send(desk.site.log, Log::Confirm(self.confirming.asked));
    }

    /// The log has answered a question; with the term of the group in which the node led after it was asked, if it did.
    pub fn confirmed(&mut self, question: u64, group: Option<u64>, desk: &mut Desk<'_>) {
        if self.confirming.under_way != Some(question) {
            return;
        }
        self.confirming.under_way = None;
        let is_sound = group.is_some() && group == desk.lead.map(|lead| lead.term.of_group());
        while let Some((_, who)) = self.confirming.waiting.pop_front_if(|(of, _)| *of <= question) {
            // Without a proof nothing is said: a coordinator hears of the next leader, or gives the attempt up.
            if is_sound {
                desk.tell_manager(who.home().partition, Protocol::Confirmed(who));
            }
        }
        if !self.confirming.waiting.is_empty() {
            self.ask_log(desk);
        }
    }

    /// A promise is in the log.
    pub fn promised(&mut self, who: AttemptId, desk: &mut Desk<'_>) {
        self.promising.remove(&who);
        if self.concluding.contains_key(&who) {
            // The outcome came first: it is not asked for.
            return self.append_outcome(who, desk);
        }
        if desk.leaders.holds(who.home()) {
            desk.tell_manager(who.home().partition, Protocol::Vote(who, true));
        } else {
            desk.tell_manager(who.home().partition, Protocol::Ask(who));
        }
        self.asks_at.get_or_insert(desk.elapsed().plus(ASK_EVERY));
    }

    /// A promise is not in the log and never will be: the disk is full.
    pub fn unpromised(&mut self, prepare: &Prepare, desk: &mut Desk<'_>) {
        let who = prepare.attempt;
        self.promising.remove(&who);
        self.concluding.remove(&who);
        desk.tell_own(|| Own::Drop(who));
        desk.tell_manager(who.home().partition, Protocol::Vote(who, false));
    }

    /// Takes the outcome of an attempt.
    pub fn decide(&mut self, from: PartitionId, who: AttemptId, is_commit: bool, desk: &mut Desk<'_>) {
        if who.home().partition != from {
            return;
        }
        if let Some(gathering) = self.gathering.remove(&who) {
            // No vote went out, so it cannot have committed.
            for shard in &gathering.request.shards {
                let participant = desk.site.participant(desk.site.node, usize::from(*shard));
                desk.out.send(participant, Own::Drop(who));
            }
            self.note_aborted(who);
        } else if desk.agreed.is_prepared(who) || self.promising.contains(&who) {
            self.concluding.entry(who).or_insert(Concluding { is_commit, is_appended: false });
            if desk.agreed.is_prepared(who) {
                self.append_outcome(who, desk);
            }
            return;
        } else if !is_commit {
            desk.tell_own(|| Own::Drop(who));
            self.note_aborted(who);
        }
        // The outcome is known here, or nothing of the attempt ever was.
        desk.tell_manager(from, Protocol::Ack(who));
    }

    fn note_aborted(&mut self, who: AttemptId) {
        self.aborted.insert(who);
        if self.aborted.len() > ABORTED_MAX {
            self.aborted.pop_first();
        }
    }

    fn append_outcome(&mut self, who: AttemptId, desk: &mut Desk<'_>) {
        let Some(concluding) = self.concluding.get_mut(&who).filter(|concluding| !concluding.is_appended)
        else {
            return;
        };
        if desk.appender.is_full() {
            return;
        }
        concluding.is_appended = true;
        let is_commit = concluding.is_commit;
        desk.append(desk.clock, Content::Outcome(who, is_commit));
        // Planted, ACK-AGREED: acknowledged before the outcome stands in this partition's log.
        if desk.site.bugs.has(Bug::AckEarly) {
            desk.tell_manager(who.home().partition, Protocol::Ack(who));
        }
    }

    /// An outcome is in the log.
    pub fn concluded(&mut self, who: AttemptId, desk: &mut Desk<'_>) {
        self.concluding.remove(&who);
        desk.tell_manager(who.home().partition, Protocol::Ack(who));
    }

    /// An outcome is not in the log: the disk is full, and it has to be there.
    pub fn unwritten(&mut self, who: AttemptId) {
        if let Some(concluding) = self.concluding.get_mut(&who) {
            concluding.is_appended = false;
        }
    }

    /// The disk has space: outcomes that wait are appended.
    pub fn go_on(&mut self, desk: &mut Desk<'_>) {
        let waiting: Vec<AttemptId> = self.concluding.keys().copied().collect();
        for who in waiting.into_iter().filter(|who| desk.agreed.is_prepared(*who)) {
            self.append_outcome(who, desk);
        }
    }

    /// The node serves its partition from now on: what is promised has to be asked for.
    pub fn begin(&mut self, desk: &mut Desk<'_>) {
        self.ask(|_| true, desk);
    }

    /// The node serves its partition no more.
    pub fn stand(&mut self) {
        let asked = self.confirming.asked;
        *self = Cohort { confirming: Confirming { asked, ..Confirming::default() }, ..Cohort::default() };
    }

    /// A home has a new leader, or messages to it may be lost: what is promised to it is asked for.
    pub fn disturbed(&mut self, home: PartitionId, desk: &mut Desk<'_>) {
        self.ask(|who| who.home().partition == home, desk);
    }

    fn ask(&mut self, is_meant: impl Fn(AttemptId) -> bool, desk: &mut Desk<'_>) {
        let unknown = desk.agreed.prepared().filter(|who| !self.concluding.contains_key(who));
        let unknown: Vec<AttemptId> = unknown.collect();
        self.asks_at = (!unknown.is_empty()).then(|| desk.elapsed().plus(ASK_EVERY));
        for who in unknown.into_iter().filter(|who| is_meant(*who)) {
            desk.tell_manager(who.home().partition, Protocol::Ask(who));
        }
    }

    /// The time at which homes are asked next, if something is promised.
    pub const fn due(&self) -> Option<Micros> {
        self.asks_at
    }

    /// Asks the homes of what is promised, if it is time.
    pub fn pass(&mut self, desk: &mut Desk<'_>) {
        if self.asks_at.is_some_and(|at| at <= desk.elapsed()) {
            self.ask(|_| true, desk);
        }
    }

    /// The number of attempts that are being gathered or promised.
    pub fn under_way(&self) -> usize {
        self.gathering.len() + self.promising.len()
    }

    /// Checks what must hold between two events.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self) -> Result<(), String> {
        match self.gathering.iter().find(|(_, gathering)| gathering.awaited == 0) {
            Some((who, _)) => Err(format!("attempt {who} is gathered and not promised")),
            None if self.confirming.under_way.is_none() && !self.confirming.waiting.is_empty() => {
                Err("attempts wait for a proof of leadership that is not asked for".to_owned())
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ordain_model::{Epoch, Millis};
    use ordain_role::NodeId;

    use super::*;
    use crate::bench::Bench;
    use crate::entry::Entry;
    use crate::ids::{Age, Lead, Term, TransactionId};
    use crate::message::{Message, Termed};

    const HOME: Lead = Lead { partition: PartitionId(0), term: Term(1) };
    const OWN: Lead = Lead { partition: PartitionId(1), term: Term(1) };
    const WHO: AttemptId = AttemptId { transaction: TransactionId { home: HOME, number: 1 }, attempt: 1 };

    /// An effect of the cohort.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Sent {
        Gather,
        Drop,
        Vote(bool),
        Ack,
        Ask,
        Promise,
        Outcome(bool),
    }
    use Sent::{Ack, Ask, Drop, Gather, Promise, Vote};

    /// The cohort of the second of two partitions, with one shard, and its log.
    struct Hand {
        at: Bench,
        cohort: Cohort,
        /// Entries that are on their way into the log.
        appended: VecDeque<Arc<Entry>>,
    }

    impl Hand {
        fn new() -> Hand {
            let mut at = Bench::new(1);
            at.lead = Some(OWN);
            at.leaders.note(HOME, NodeId(0));
            let (place, content) = (Epoch(1), Content::Begin);
            let begin = Entry { place, term: OWN.term, now: Millis(0), content, agreed: None };
            at.agreed.apply(&Arc::new(begin)).unwrap();
            at.appender.note(place);
            Hand { at, cohort: Cohort::default(), appended: VecDeque::new() }
        }

        /// Has the cohort do something; answers what it sends.
        fn tell(&mut self, act: impl FnOnce(&mut Cohort, &mut Desk<'_>)) -> Vec<Sent> {
            let Hand { at, cohort, appended } = self;
            let sends = at.tell(|desk| act(cohort, desk));
            cohort.check().unwrap();
            let sent = sends.into_iter().map(|(_, message)| match message {
                Message::Own(Own::Gather(WHO)) => Gather,
                Message::Own(Own::Drop(WHO)) => Drop,
                Message::Termed(Termed { content: Protocol::Vote(WHO, is_yes), .. }) => Vote(is_yes),
                Message::Termed(Termed { content: Protocol::Ack(WHO), .. }) => Ack,
                Message::Termed(Termed { content: Protocol::Ask(WHO), .. }) => Ask,
                Message::Log(Log::Append(entry)) => {
                    appended.push_back(entry.clone());
                    match entry.content {
                        Content::Prepare(_) => Promise,
                        Content::Outcome(WHO, is_commit) => Sent::Outcome(is_commit),
                        _ => panic!("{entry:?}"),
                    }
                }
                other => panic!("{other:?}"),
            });
            sent.collect()
        }

        fn prepare(&mut self) -> Vec<Sent> {
            let (shards, returned) = (vec![1], Vec::new());
            let request = PrepareRequest { attempt: WHO, age: Age(7), shards, returned, now: Millis(3) };
            self.tell(|cohort, desk| cohort.prepare(request, desk))
        }

        fn gathered(&mut self) -> Vec<Sent> {
            self.tell(|cohort, desk| cohort.gathered(WHO, Some(Gathered::default()), desk))
        }

        fn decide(&mut self, is_commit: bool) -> Vec<Sent> {
            self.tell(|cohort, desk| cohort.decide(HOME.partition, WHO, is_commit, desk))
        }

        /// The log has agreed on the next entry.
        fn agree(&mut self) -> Vec<Sent> {
            let entry = self.appended.pop_front().expect("an entry");
            self.at.agreed.apply(&entry).unwrap();
            self.tell(|cohort, desk| match entry.content {
                Content::Prepare(_) => cohort.promised(WHO, desk),
                _ => cohort.concluded(WHO, desk),
            })
        }
    }

    /// Sheet baselines.md, 4.10: a duplicate is answered as the first was, and nothing is logged twice.
    #[test]
    fn requests_to_promise_and_outcomes_may_come_twice() {
        let mut hand = Hand::new();
        assert_eq!((hand.prepare(), hand.prepare()), (vec![Gather], vec![]));
        assert_eq!((hand.gathered(), hand.prepare()), (vec![Promise], vec![]));
        assert_eq!((hand.agree(), hand.prepare()), (vec![Vote(true)], vec![Vote(true)]));
        assert_eq!((hand.decide(true), hand.decide(true)), (vec![Sent::Outcome(true)], vec![]));
        assert_eq!((hand.agree(), hand.decide(true)), (vec![Ack], vec![Ack]));
        assert!(hand.appended.is_empty());
    }

    /// Sheet baselines.md, 4.10: an abort that comes before what it undoes is remembered.
    #[test]
    fn an_abort_may_come_before_its_request_to_promise() {
        let mut hand = Hand::new();
        assert_eq!(hand.decide(false), [Drop, Ack]);
        assert_eq!(hand.prepare(), [Drop, Vote(false)]);
        assert_eq!(hand.decide(false), [Drop, Ack]);
    }

    /// The abort of what is gathered or on its way into the log needs no question, and is acknowledged once it is known for good.
    #[test]
    fn an_abort_may_come_before_the_promise_is_agreed_on() {
        let mut hand = Hand::new();
        assert_eq!(hand.prepare(), [Gather]);
        assert_eq!(hand.decide(false), [Drop, Ack]);
        assert_eq!(hand.gathered(), [], "nobody waits for it");

        let mut hand = Hand::new();
        assert_eq!((hand.prepare(), hand.gathered()), (vec![Gather], vec![Promise]));
        assert_eq!(hand.decide(false), []);
        assert_eq!(hand.agree(), [Sent::Outcome(false)], "and no vote");
        assert_eq!(hand.agree(), [Ack]);
        assert_eq!(hand.at.agreed.prepared().count(), 0);
    }

    /// A full disk: no promise is made, and the outcome of one that was made waits for space.
    #[test]
    fn a_full_disk_is_a_no_and_keeps_outcomes_waiting() {
        let mut hand = Hand::new();
        hand.at.appender.set_full(true);
        assert_eq!(hand.prepare(), [Drop, Vote(false)]);

        let mut hand = Hand::new();
        assert_eq!((hand.prepare(), hand.gathered()), (vec![Gather], vec![Promise]));
        assert_eq!(hand.agree(), [Vote(true)]);
        hand.at.appender.set_full(true);
        assert_eq!(hand.decide(true), []);
        hand.at.appender.set_full(false);
        assert_eq!(hand.tell(Cohort::go_on), [Sent::Outcome(true)]);
        // The log has refused it: it is appended again.
        assert_eq!(hand.tell(|cohort, _| cohort.unwritten(WHO)), []);
        assert_eq!(hand.tell(Cohort::go_on), [Sent::Outcome(true)]);
    }

    /// The outcome of a promise to a former leader is asked for.
    #[test]
    fn a_promise_to_a_former_leader_is_asked_for() {
        let mut hand = Hand::new();
        assert_eq!((hand.prepare(), hand.gathered()), (vec![Gather], vec![Promise]));
        hand.at.leaders.note(Lead { term: Term(2), ..HOME }, NodeId(2));
        assert_eq!(hand.agree(), [Ask]);
        assert_eq!(hand.tell(Cohort::pass), [], "not again at once");
        assert_eq!(hand.tell(|cohort, desk| cohort.disturbed(HOME.partition, desk)), [Ask]);
        assert_eq!(hand.decide(false), [Sent::Outcome(false)]);
    }
}
