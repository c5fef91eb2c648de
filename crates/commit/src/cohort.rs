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
