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

use ordain_model::{Install, Micros, Millis, PartitionId};
use ordain_replication::Log;
use ordain_role::Bug;

use crate::desk::Desk;
use crate::entry::{Commitment, Content, Prepare};
use crate::ids::{Age, AttemptId, Bounds};
use crate::message::{ConfirmRequest, Gathered, Own, PrepareRequest, Protocol, Snapshot, Validation};
use crate::stamps::LATEST;
use crate::view::View;

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
    /// Of each home the number up to which all its decisions are told, and those that concern this partition are on their way into its log.
    in_order: BTreeMap<PartitionId, u64>,
    /// When the homes are asked next.
    asks_at: Option<Micros>,
    /// Attempts that were aborted before they were promised here: a request to promise them is too late.
    aborted: BTreeSet<AttemptId>,
    confirming: Confirming,
    /// The latest time of a stamp that was wanted in this turn and is above the ceiling.
    wanted: Option<Millis>,
}

/// Attempts that only read here, and wait for a proof that the node leads.
#[derive(Debug, Default)]
struct Confirming {
    /// The number of the last question to the log. It rises over terms.
    asked: u64,
    /// The question that is under way, if one is: no attempt that came later is answered by it.
    under_way: Option<u64>,
    /// The attempts of each question, with the stamps that they may have.
    waiting: VecDeque<(u64, AttemptId, Bounds)>,
    /// Attempts whose participants here are asked first with which stamps they may commit.
    validating: BTreeMap<AttemptId, Validating>,
    /// Attempts of which each stamp that they may have is above the ceiling.
    unreserved: Vec<(AttemptId, Bounds)>,
}

#[derive(Debug)]
struct Validating {
    bounds: Bounds,
    awaited: BTreeSet<u16>,
}

#[derive(Debug)]
struct Gathering {
    request: PrepareRequest,
    awaited: usize,
    gathered: Gathered,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Concluding {
    commit: Option<Commitment>,
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
            return vote(who, desk);
        }
        if self.gathering.contains_key(&who) || self.promising.contains(&who) {
            return;
        }
        if self.aborted.contains(&who) || desk.appender.is_full() {
            return self.refuse(&request, (None, View::NONE), desk);
        }
        if request.shards.is_empty() || !is_sound((request.bounds, &request.snapshot), &request.shards, desk)
        {
            return self.refuse(&request, (None, View::NONE), desk);
        }
        let bounds = request.bounds;
        for shard in &request.shards {
            let participant = desk.site.participant(desk.site.node, usize::from(*shard));
            desk.out.send(participant, Own::Gather(who, bounds, request.snapshot.clone()));
        }
        let awaited = request.shards.len();
        let gathered = Gathered { bounds, ..Gathered::default() };
        self.gathering.insert(who, Gathering { request, awaited, gathered });
    }

    /// Promises nothing: no stamp is left, if `may` is empty, or there is another reason.
    fn refuse(&mut self, request: &PrepareRequest, (may, view): (Option<Bounds>, View), desk: &mut Desk<'_>) {
        let who = request.attempt;
        for shard in &request.shards {
            desk.out.send(desk.site.participant(desk.site.node, usize::from(*shard)), Own::Drop(who));
        }
        desk.tell_manager(who.home().partition, Protocol::Vote(who, may, view));
    }

    /// Takes what a participant of this node has handed over.
    pub fn gathered(&mut self, who: AttemptId, part: Option<Gathered>, desk: &mut Desk<'_>) {
        let Some(gathering) = self.gathering.get_mut(&who) else { return };
        let part = part.map(|part| (gathering.gathered.bounds.with(part.bounds), part));
        let left = part.as_ref().map(|(bounds, _)| *bounds);
        part.iter().for_each(|(_, part)| gathering.gathered.view.join(&part.view));
        let Some((bounds, part)) = part.filter(|(bounds, _)| !bounds.is_empty()) else {
            let gathering = self.gathering.remove(&who).expect("it was found above");
            return self.refuse(&gathering.request, (left, gathering.gathered.view), desk);
        };
        // A fragment over the whole table does the same on every shard.
        gathering.gathered.changes = part.changes;
        gathering.gathered.bounds = bounds;
        gathering.gathered.writes.extend(part.writes);
        gathering.gathered.holds.extend(part.holds);
        gathering.awaited -= 1;
        if gathering.awaited > 0 {
            return;
        }
        let Gathering { request, gathered, .. } = self.gathering.remove(&who).expect("it was found above");
        if !desk.is_remembered(bounds.from) {
            return self.refuse(&request, (None, gathered.view), desk);
        }
        let Gathered { bounds, view, changes, mut writes, holds } = gathered;
        writes.extend(request.returned);
        self.promising.insert(who);
        let ceiling = desk.ceiling_above(bounds);
        let prepare = Prepare { attempt: who, bounds, view, ceiling, changes, writes, holds, among: None };
        // Planted, PROMISE: the vote goes out before the promise stands in the log.
        if desk.site.bugs.has(Bug::VoteBeforeLog) {
            let vote = Protocol::Vote(who, Some(bounds), prepare.view.clone());
            desk.tell_manager(who.home().partition, vote);
        }
        desk.append(request.now, Content::Prepare(prepare));
    }

    /// Takes a question whether the node leads: all that an attempt reads here has been read. Where that decides, participants say first
    /// with which stamps it may commit.
    pub fn confirm(&mut self, request: ConfirmRequest, desk: &mut Desk<'_>) {
        let ConfirmRequest { attempt: who, bounds, shards, snapshot } = request;
        if !is_sound((bounds, &snapshot), &shards, desk) {
            desk.tell_manager(who.home().partition, Protocol::Confirmed(who, None));
            return;
        }
        if shards.is_empty() {
            return self.ask(who, bounds, desk);
        }
        for shard in &shards {
            let participant = desk.site.participant(desk.site.node, usize::from(*shard));
            let snapshot = snapshot.clone();
            let validation = Validation {
                bounds,
                snapshot,
                has_effect: false,
                lets_reads_go: true,
                is_promised: false,
                oldest: Age(0),
            };
            desk.out.send(participant, Own::Validate(who, validation));
        }
        let awaited = shards.into_iter().collect();
        self.confirming.validating.insert(who, Validating { bounds, awaited });
    }

    /// Takes the answer of a participant with which stamps an attempt may commit that has only read.
    ///
    /// Nothing of it stands in the log, so its stamp has to be below the ceiling that was agreed on: whoever leads next gives later ones.
    pub fn validated(&mut self, who: AttemptId, shard: u16, may: Option<Bounds>, desk: &mut Desk<'_>) {
        let Some(validating) = self.confirming.validating.get_mut(&who) else { return };
        let bounds = validating.bounds.with(may.unwrap_or_default());
        validating.bounds = bounds;
        validating.awaited.remove(&shard);
        if !bounds.is_empty() && !validating.awaited.is_empty() {
            return;
        }
        self.confirming.validating.remove(&who);
        match bounds.is_empty() {
            true => _ = desk.tell_manager(who.home().partition, Protocol::Confirmed(who, Some(bounds))),
            false => self.ask_if_reserved(who, bounds, desk),
        }
    }

    /// Asks for a proof that the node leads, once the ceiling is above one of the stamps that an attempt may have.
    fn ask_if_reserved(&mut self, who: AttemptId, bounds: Bounds, desk: &mut Desk<'_>) {
        if !desk.site.stamps.are_chosen_late() {
            return self.ask(who, bounds, desk);
        }
        let reserved = Bounds { from: Age(0), until: Age::first_at(desk.agreed.ceiling()) };
        let below = bounds.with(reserved);
        if !below.is_empty() {
            return self.ask(who, below, desk);
        }
        self.wanted = self.wanted.max(Some(Bounds::at(bounds.from).ceiling()));
        self.confirming.unreserved.push((who, bounds));
    }

    /// The ceiling may have risen: goes on with what waits for it.
    pub fn go_on_reserved(&mut self, desk: &mut Desk<'_>) {
        for (who, bounds) in std::mem::take(&mut self.confirming.unreserved) {
            self.ask_if_reserved(who, bounds, desk);
        }
    }

    /// The latest time of a stamp that was wanted in this turn: the ceiling should be above it.
    pub fn take_wanted(&mut self) -> Option<Millis> {
        self.wanted.take()
    }

    /// Asks for a proof that the node leads. Attempts that ask while one is under way share the next one.
    fn ask(&mut self, who: AttemptId, bounds: Bounds, desk: &mut Desk<'_>) {
        let Confirming { asked, under_way, waiting, .. } = &mut self.confirming;
        waiting.push_back((*asked + 1, who, bounds));
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
        while let Some((_, who, bounds)) = self.confirming.waiting.pop_front_if(|(of, ..)| *of <= question) {
            // Without a proof nothing is said: a coordinator hears of the next leader, or gives the attempt up.
            if is_sound {
                desk.tell_manager(who.home().partition, Protocol::Confirmed(who, Some(bounds)));
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
            vote(who, desk);
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
        desk.tell_manager(who.home().partition, Protocol::Vote(who, None, View::NONE));
    }

    /// Takes the outcome of an attempt.
    pub fn decide(
        &mut self,
        from: PartitionId,
        who: AttemptId,
        commit: Option<Commitment>,
        desk: &mut Desk<'_>,
    ) {
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
            self.concluding.entry(who).or_insert(Concluding { commit, is_appended: false });
            if desk.agreed.is_prepared(who) {
                self.append_outcome(who, desk);
            }
            return;
        } else if commit.is_none() {
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
        let home = who.home().partition;
        let commit = concluding.commit.clone();
        if commit.as_ref().is_some_and(|with| waits(home, with, &self.in_order, desk)) {
            return;
        }
        let partitions = desk.site.layout.partitions();
        let is_promised = |with: &Commitment| {
            let has = desk.agreed.promised(who).is_some_and(|bounds| bounds.has(with.stamp));
            has && with.view.fits(partitions)
        };
        if commit.as_ref().is_some_and(|with| !is_promised(with)) {
            // No sound home says so: it is asked again.
            self.concluding.remove(&who);
            return;
        }
        concluding.is_appended = true;
        if let Some(with) = commit.as_ref().filter(|_| desk.site.propagation.install == Install::Paper) {
            let known = self.in_order.entry(home).or_default();
            *known = with.view.seen().vector.of(home).max(*known);
        }
        desk.append(desk.clock, Content::Outcome(who, commit));
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

    /// A home has told of its decisions up to a number: outcomes that wait for them are appended.
    pub fn told(&mut self, home: PartitionId, number: u64, desk: &mut Desk<'_>) {
        if desk.site.propagation.install == Install::Paper {
            let known = self.in_order.entry(home).or_default();
            *known = number.max(*known);
            self.go_on(desk);
        }
    }

    /// The log has heard of further decisions: outcomes that wait for them are appended.
    pub fn go_on_in_order(&mut self, desk: &mut Desk<'_>) {
        if desk.site.propagation.install == Install::Paper {
            self.go_on(desk);
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
        self.ask_homes(|_| true, desk);
    }

    /// The node serves its partition no more.
    pub fn stand(&mut self) {
        let asked = self.confirming.asked;
        *self = Cohort { confirming: Confirming { asked, ..Confirming::default() }, ..Cohort::default() };
    }

    /// A home has a new leader, or messages to it may be lost: what is promised to it is asked for.
    pub fn disturbed(&mut self, home: PartitionId, desk: &mut Desk<'_>) {
        self.ask_homes(|who| who.home().partition == home, desk);
    }

    fn ask_homes(&mut self, is_meant: impl Fn(AttemptId) -> bool, desk: &mut Desk<'_>) {
        // Parts of this region are voted on.
        let own = desk.site.partition;
        let prepared = desk.agreed.prepared().filter(|who| who.home().partition != own);
        let unknown = prepared.filter(|who| !self.concluding.contains_key(who));
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
            self.ask_homes(|_| true, desk);
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
        if let Some((who, _)) = self.confirming.validating.iter().find(|(_, of)| of.awaited.is_empty()) {
            return Err(format!("attempt {who} is validated and not confirmed"));
        }
        match self.gathering.iter().find(|(_, gathering)| gathering.awaited == 0) {
            Some((who, _)) => Err(format!("attempt {who} is gathered and not promised")),
            None if self.confirming.under_way.is_none() && !self.confirming.waiting.is_empty() => {
                Err("attempts wait for a proof of leadership that is not asked for".to_owned())
            }
            None => Ok(()),
        }
    }
}

/// True if an attempt is installed only after earlier decisions of its home, and not all of those are known here.
///
/// The home tells of all that it has decided, acknowledged or not, and tells it again if messages are lost, so the wait ends. Its word counts
/// before it is in the log: that an outcome waits for another there is [`crate::heard`]'s part.
fn waits(
    home: PartitionId,
    with: &Commitment,
    in_order: &BTreeMap<PartitionId, u64>,
    desk: &Desk<'_>,
) -> bool {
    let known = in_order.get(&home).copied().unwrap_or(0).max(desk.agreed.heard().of(home));
    desk.site.propagation.install == Install::Paper && with.after > known
}

/// Tells a coordinator what is promised of its attempt.
fn vote(who: AttemptId, desk: &mut Desk<'_>) {
    let promise = desk.agreed.promise(who).map(|(bounds, view)| (bounds, view.clone()));
    let (bounds, view) = promise.unzip();
    desk.tell_manager(who.home().partition, Protocol::Vote(who, bounds, view.unwrap_or_default()));
}

/// True if the shards of a request are the partition's, and its bounds are such as a coordinator names: it may come from another node.
fn is_sound((bounds, snapshot): (Bounds, &Snapshot), shards: &[u16], desk: &Desk<'_>) -> bool {
    let own = desk.site.layout.shards_of(desk.site.partition);
    let fits = snapshot.vector.fits(desk.site.layout.partitions());
    fits && !bounds.is_empty()
        && bounds.from <= LATEST
        && shards.iter().all(|s| own.contains(&usize::from(*s)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ordain_model::Epoch;
    use ordain_role::NodeId;

    use super::*;
    use crate::bench::Bench;
    use crate::entry::{Announced, Entry};
    use crate::ids::{Lead, Term, TransactionId};
    use crate::known::Readers;
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
        Validate,
        /// The log is asked whether the node leads.
        Question,
        Confirmed(bool),
    }
    use Sent::{Ack, Ask, Confirmed, Drop, Gather, Promise, Question, Validate, Vote};

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
                Message::Own(Own::Gather(WHO, ..)) => Gather,
                Message::Own(Own::Drop(WHO)) => Drop,
                Message::Own(Own::Validate(WHO, ..)) => Validate,
                Message::Log(Log::Confirm(_)) => Question,
                Message::Termed(Termed { content: Protocol::Confirmed(WHO, may), .. }) => {
                    Confirmed(may.is_some_and(|bounds| !bounds.is_empty()))
                }
                Message::Termed(Termed { content: Protocol::Vote(WHO, may, _), .. }) => Vote(may.is_some()),
                Message::Termed(Termed { content: Protocol::Ack(WHO), .. }) => Ack,
                Message::Termed(Termed { content: Protocol::Ask(WHO), .. }) => Ask,
                Message::Log(Log::Append(entry)) => {
                    appended.push_back(entry.clone());
                    match entry.content {
                        Content::Prepare(_) => Promise,
                        Content::Outcome(WHO, ref commit) => Sent::Outcome(commit.is_some()),
                        _ => panic!("{entry:?}"),
                    }
                }
                other => panic!("{other:?}"),
            });
            sent.collect()
        }

        fn prepare(&mut self) -> Vec<Sent> {
            let (shards, returned) = (vec![1], Vec::new());
            let request = PrepareRequest {
                attempt: WHO,
                bounds: Bounds::at(Age(7)),
                shards,
                returned,
                now: Millis(3),
                snapshot: Snapshot::default(),
            };
            self.tell(|cohort, desk| cohort.prepare(request, desk))
        }

        fn gathered(&mut self) -> Vec<Sent> {
            self.tell(|cohort, desk| {
                cohort.gathered(
                    WHO,
                    Some(Gathered { bounds: Bounds::at(Age(7)), ..Gathered::default() }),
                    desk,
                )
            })
        }

        fn decide(&mut self, is_commit: bool) -> Vec<Sent> {
            self.tell(|cohort, desk| {
                let commit = is_commit.then(|| Commitment::at(Age(7)));
                cohort.decide(HOME.partition, WHO, commit, desk);
            })
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

    /// The home of an attempt that only reads asks, and participants have left these stamps.
    fn confirm(hand: &mut Hand, left: Bounds) -> [Vec<Sent>; 2] {
        let request = ConfirmRequest {
            attempt: WHO,
            bounds: Bounds::from(Age(7)),
            shards: vec![1],
            snapshot: Snapshot::default(),
        };
        let asked = hand.tell(|cohort, desk| cohort.confirm(request, desk));
        [asked, hand.tell(|cohort, desk| cohort.validated(WHO, 1, Some(left), desk))]
    }

    /// Nothing of what only reads is in the log: its stamp has to be below the ceiling that the log has agreed on (R-CEILING).
    #[test]
    fn a_stamp_of_what_only_reads_waits_for_a_ceiling_above_it() {
        let mut hand = Hand::new();
        hand.at.site.stamps = crate::Stamps::AtCommit;
        let stamp = Age::first_at(Millis(30));
        assert_eq!(confirm(&mut hand, Bounds::from(stamp)), [vec![Validate], vec![]]);
        assert_eq!(hand.cohort.take_wanted(), Some(Millis(31)));
        assert_eq!(hand.tell(Cohort::go_on_reserved), [], "it has not risen");
        let reserve = Entry {
            place: Epoch(2),
            term: OWN.term,
            now: Millis(0),
            content: Content::Reserve(Millis(31)),
            agreed: None,
        };
        hand.at.agreed.apply(&Arc::new(reserve)).unwrap();
        assert_eq!(hand.tell(Cohort::go_on_reserved), [Question]);
        assert_eq!(hand.tell(|cohort, desk| cohort.confirmed(1, Some(0), desk)), [Confirmed(true)]);
        assert_eq!(confirm(&mut hand, Bounds::default()), [vec![Validate], vec![Confirmed(false)]]);
        // The partition has no such shard, or no such stamp is given.
        for (bounds, shards) in [(Bounds::from(Age(7)), vec![0]), (Bounds::from(Age(u64::MAX - 1)), vec![1])]
        {
            let request = ConfirmRequest { attempt: WHO, bounds, shards, snapshot: Snapshot::default() };
            assert_eq!(hand.tell(|cohort, desk| cohort.confirm(request, desk)), [Confirmed(false)]);
        }
    }

    /// A home that is not sound cannot have this partition's log hold a stamp that was not promised.
    #[test]
    fn an_outcome_with_a_stamp_that_was_not_promised_is_not_written() {
        let mut hand = Hand::new();
        assert_eq!(
            (hand.prepare(), hand.gathered(), hand.agree()),
            (vec![Gather], vec![Promise], vec![Vote(true)])
        );
        let tell = |hand: &mut Hand, stamp| {
            hand.tell(|cohort, desk| {
                cohort.decide(HOME.partition, WHO, Some(Commitment::at(Age(stamp))), desk);
            })
        };
        assert_eq!((tell(&mut hand, 6), tell(&mut hand, 8)), (vec![], vec![]));
        assert_eq!(tell(&mut hand, 7), [Sent::Outcome(true)]);
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

    /// Sheet fwkv.md, 4.9 and E16: as in the paper what is decided keeps its locks until all earlier decisions of its home are known.
    #[test]
    fn an_outcome_waits_for_earlier_decisions_if_it_is_asked_for() {
        let decided = |install| {
            let mut hand = Hand::new();
            hand.at.site.propagation.install = install;
            assert_eq!((hand.prepare(), hand.gathered()), (vec![Gather], vec![Promise]));
            assert_eq!(hand.agree(), [Vote(true)]);
            let view = View::of(crate::Seen::NOTHING).decided(HOME.partition, 9);
            let commit = Commitment { view, after: 5, ..Commitment::at(Age(7)) };
            let sent = hand.tell(|cohort, desk| cohort.decide(HOME.partition, WHO, Some(commit), desk));
            (hand, sent)
        };
        assert_eq!(decided(Install::Decoupled).1, [Sent::Outcome(true)]);
        let (mut hand, sent) = decided(Install::Paper);
        assert_eq!(sent, []);
        for (place, number, sent) in [(20, 4, vec![]), (21, 8, vec![Sent::Outcome(true)])] {
            let said = Announced { home: HOME, number, readers: Readers::default() };
            let (place, content) = (Epoch(place), Content::Announce(vec![said]));
            let entry = Entry { place, term: OWN.term, now: Millis(0), content, agreed: None };
            hand.at.agreed.apply(&Arc::new(entry)).unwrap();
            assert_eq!(hand.tell(Cohort::go_on_in_order), sent);
        }
        // The home's word is enough, before it is in the log.
        let (mut hand, _) = decided(Install::Paper);
        assert_eq!(hand.tell(|cohort, desk| cohort.told(HOME.partition, 4, desk)), []);
        assert_eq!(hand.tell(|cohort, desk| cohort.told(HOME.partition, 5, desk)), [Sent::Outcome(true)]);
        assert_eq!(hand.cohort.in_order[&HOME.partition], 9, "what comes next need not wait for the log");
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
