//! Decentralized two-phase commit: the votes on transactions of several regions (regions.md, 4.8).
//!
//! A transaction of several regions has a part in each. A part is a transaction of its region alone, up to the point at which that would
//! be decided: there its region promises it, and once the promise is durable it votes, to all others. Whoever has the yes of all knows
//! that the transaction has committed. Nobody decides alone, the initiator included, and nobody waits for one who is gone unless that one
//! may have voted.
//!
//! | stage      | asked to take part   | a vote                  | nothing for a while   | a question        |
//! |------------|----------------------|-------------------------|-----------------------|-------------------|
//! | unknown    | runs and validates   | kept                    | asks the initiator    | Refused: no       |
//! | Running    | -                    | kept; a no: Refused     | - (it ends by itself) | pending           |
//! | Locked     | -                    | kept; a no: Refused     | - (it ends by itself) | pending           |
//! | Promising  | -                    | kept                    | -                     | pending           |
//! | Promised   | yes                  | all yes: Committed; a no: Aborted | asks the missing ones | yes, and those held |
//! | Refused    | no                   | -                       | -                     | no                |
//! | Concluding | its outcome          | -                       | -                     | its outcome       |
//! | Committed  | its outcome          | -                       | tells the initiator   | its outcome       |
//!
//! Once a promise is handed to the log there is a yes or silence (commit.md, schedule 8): whoever leads next may find it there. A no is not
//! in the log. It counts from the incarnation that was asked to take part, or from a later one, which has read all of the log before. An
//! earlier one may say no to what a later one has promised.
//!
//! With two rounds (4.6) a region that has run its part locks what that writes, and tells the initiator: Locked, which is no vote. Once all have
//! told it so, the initiator tells all, and each is Running again while it validates. Who is Locked for too long says no.
//!
//! What has committed is kept in the log of each region until the initiator says that all know ([`Agreed::decided`]); an attempt that a
//! region does not know has not committed there.
//!
//! [`Agreed::decided`]: crate::agreed::Agreed::decided

mod ballot;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use ordain_model::{Abort, Epoch, Micros, Millis, PartitionId};
use ordain_role::{Bug, Bugs};

use crate::desk::Desk;
use crate::entry::{Among, Commitment, Content};
use crate::ids::{AttemptId, Lead, Term};
use crate::message::Protocol;
pub use ballot::{Ballot, Said};

/// Those who have not voted are asked after so long, then after twice as long, and so on.
const ASK_AFTER: Micros = Micros::from_millis(250);
/// They are asked at least this often.
const ASK_EVERY: Micros = Micros::from_millis(4_000);
/// An initiator that has not said that all know an outcome is told of it again after so long.
const TELL_EVERY: Micros = Micros::from_millis(1_000);
/// Outcomes that all know are forgotten together, this often.
const FORGET_EVERY: Micros = Micros::from_millis(100);

/// Transactions that are kept at most. Words on further ones are not heard, as if they were lost: those who say them ask again.
const POLLS_MAX: usize = 1 << 18;

/// The point up to which a region's part of a transaction has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Others speak of it, and nobody has asked this region to take part.
    Unknown,
    /// It is run and validated, as this attempt.
    Running(AttemptId),
    /// Its writes are locked, and it is not validated before others have locked too.
    Locked(AttemptId),
    /// Its promise is on its way into the log, or in the log at this place and not durable there.
    Promising(AttemptId, Option<Epoch>),
    /// Its promise is durable.
    Promised(AttemptId),
    /// It has said no, for this reason.
    Refused(Abort),
    /// Its outcome is known: the reason why it has not committed, if it has not. It is on its way into the log, or waits for space there.
    Concluding { part: AttemptId, no: Option<No>, is_appended: bool },
}

/// The votes on a transaction, as far as a region knows them.
#[derive(Debug)]
struct Poll {
    stage: Stage,
    /// Those who take part, in the terms in which the initiator knew them; nobody while that is not known here.
    participants: Vec<Lead>,
    /// The votes of others, with the terms in which they were given: the reason for a no.
    votes: BTreeMap<PartitionId, (Term, Option<Abort>)>,
    /// The other regions that have locked what the transaction writes there, at the initiator.
    locked: BTreeSet<PartitionId>,
    asks_at: Option<Micros>,
    pause: Micros,
}

/// The effect of a request to take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requested {
    /// The part is to be run.
    New,
    /// It is known, or refused: nothing is to be done.
    Known,
}

/// Something that has come out about a region's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The transaction.
    pub of: AttemptId,
    /// The part.
    pub part: AttemptId,
    /// What has come out.
    pub end: End,
}

/// A no: the reason, and the region that has said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct No {
    /// The region.
    pub by: PartitionId,
    /// The reason.
    pub reason: Abort,
}

/// The end of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was not promised, and need not be: the transaction has not committed, for this reason.
    Dropped(No),
    /// The transaction has committed, with an outcome in this region's log at this place.
    Committed(Epoch),
    /// It was promised, and the transaction has not committed, for this reason.
    Aborted(No),
}

/// See the module.
#[derive(Debug, Default)]
pub struct Voting {
    polls: BTreeMap<AttemptId, Poll>,
    /// Promises that are in the log and not durable, by their places.
    undurable: BTreeMap<Epoch, AttemptId>,
    /// Commits of this region's transactions, with the regions that have not said that they know.
    unknown: BTreeMap<AttemptId, BTreeSet<PartitionId>>,
    /// Outcomes in the log that are to be told once they are durable.
    untold: BTreeMap<Epoch, AttemptId>,
    /// Commits that others have initiated, with the times at which they are told of them again.
    telling: BTreeMap<AttemptId, Micros>,
    /// Commits that all know.
    forgettable: Vec<AttemptId>,
    /// Commits of this region's own transactions among them, with the regions that are to hear of the forgetting once it is durable.
    forgetting: BTreeMap<AttemptId, Vec<PartitionId>>,
    /// Forgettings that are in the log and not durable, by their places.
    forgotten: BTreeMap<Epoch, Vec<AttemptId>>,
    forgets_at: Option<Micros>,
    /// Of each home in a term, the number below which all of its transactions are over.
    lows: BTreeMap<PartitionId, (Term, u64)>,
    verdicts: Vec<Verdict>,
}

impl Poll {
    fn new(stage: Stage, participants: Vec<Lead>) -> Poll {
        let (votes, locked) = (BTreeMap::new(), BTreeSet::new());
        Poll { stage, participants, votes, locked, asks_at: None, pause: ASK_AFTER }
    }

    /// The verdict of others: the reason of one who has said no, and may; `None` in it if all have said yes.
    fn verdict(&self, own: PartitionId, bugs: Bugs) -> Option<Option<No>> {
        let others = || self.participants.iter().filter(|lead| lead.partition != own);
        // An earlier incarnation may have said no to what it never was asked.
        let no = others().find_map(|lead| {
            let (term, no) = self.votes.get(&lead.partition)?;
            // Planted, ITS-INCARNATION.
            let counts = *term >= lead.term || bugs.has(Bug::CountAnyNo);
            no.filter(|_| counts).map(|reason| No { by: lead.partition, reason })
        });
        let has_yes = |lead: &Lead| self.says_yes(lead.partition);
        no.map(Some).or_else(|| (others().count() > 0 && others().all(has_yes)).then_some(None))
    }

    fn says_yes(&self, partition: PartitionId) -> bool {
        self.votes.get(&partition).is_some_and(|(_, no)| no.is_none())
    }

    /// The others that have voted yes.
    fn yes(&self) -> Vec<PartitionId> {
        self.votes.keys().copied().filter(|partition| self.says_yes(*partition)).collect()
    }

    /// The word of this region.
    const fn said(&self) -> Said {
        match self.stage {
            Stage::Unknown | Stage::Running(_) | Stage::Locked(_) | Stage::Promising(..) => Said::Pending,
            Stage::Promised(_) => Said::Yes,
            Stage::Refused(reason) => Said::No(reason, Millis(0)),
            Stage::Concluding { no: None, .. } => Said::Committed,
            Stage::Concluding { no: Some(_), .. } => Said::Aborted,
        }
    }

    fn ask_later(&mut self, now: Micros) {
        self.asks_at = Some(now.plus(self.pause));
        self.pause = self.pause.plus(self.pause).min(ASK_EVERY);
    }
}

impl Voting {
    // ---- the part of this region ---------------------------------------------------------------------------

    /// The initiator asks this region to take part in a transaction of these regions, as it knows them. All of its transactions with
    /// numbers below `low` are over.
    pub fn requested(
        &mut self,
        of: AttemptId,
        participants: &[Lead],
        low: u64,
        desk: &mut Desk<'_>,
    ) -> Requested {
        self.pass_low(of.home(), low);
        if self.is_below(of) || !self.has_room() && !self.polls.contains_key(&of) {
            return Requested::Known;
        }
        if desk.agreed.decided(of).is_some() {
            self.say(of.home().partition, of, Said::Committed, desk);
            return Requested::Known;
        }
        let own = desk.lead.unwrap_or_default();
        let poll = self.polls.entry(of).or_insert_with(|| Poll::new(Stage::Unknown, Vec::new()));
        match poll.stage {
            Stage::Unknown => {}
            Stage::Running(_) | Stage::Locked(_) | Stage::Promising(..) => return Requested::Known,
            Stage::Promised(_) | Stage::Refused(_) | Stage::Concluding { .. } => {
                let said = poll.said();
                self.say(of.home().partition, of, said, desk);
                return Requested::Known;
            }
        }
        poll.participants = participants.to_vec();
        poll.asks_at = None;
        // Another incarnation of this region was meant: it may have said no.
        let is_meant = participants.contains(&own);
        let refusal = (!is_meant).then_some(Abort::TermChanged);
        let no = poll.verdict(own.partition, desk.site.bugs).flatten();
        if let Some(reason) = refusal.or(no.map(|no| no.reason)) {
            self.refuse(of, reason, desk);
            return Requested::Known;
        }
        Requested::New
    }

    /// A part begins to run here: that of the initiator, or one that was [asked for](Voting::requested).
    pub fn run(&mut self, of: AttemptId, part: AttemptId, participants: &[Lead]) {
        let poll = self.polls.entry(of).or_insert_with(|| Poll::new(Stage::Unknown, participants.to_vec()));
        assert!(poll.stage == Stage::Unknown, "attempt {of} has a part here already: {:?}", poll.stage);
        poll.stage = Stage::Running(part);
    }

    /// The part cannot be promised: this region votes no.
    pub fn refuse(&mut self, of: AttemptId, reason: Abort, desk: &mut Desk<'_>) {
        let Some(poll) = self.polls.get_mut(&of) else { return };
        match poll.stage {
            Stage::Unknown | Stage::Running(_) | Stage::Locked(_) => {}
            // It has said so before, for what another region has said.
            Stage::Refused(_) => return,
            Stage::Promising(..) | Stage::Promised(_) | Stage::Concluding { .. } => {
                panic!("attempt {of} is refused after its promise: {:?}", poll.stage)
            }
        }
        poll.stage = Stage::Refused(reason);
        poll.asks_at = None;
        self.tell_all(of, Said::No(reason, desk.clock), desk);
        if of.home().partition == desk.site.partition {
            // Nobody asks its initiator to take part.
            self.polls.remove(&of);
        }
    }

    /// Notes that the writes of the part are locked here; answers the part if it is to be validated now, as all have locked.
    pub fn lock(&mut self, of: AttemptId, desk: &mut Desk<'_>) -> Option<AttemptId> {
        let poll = self.polls.get_mut(&of)?;
        let Stage::Running(part) = poll.stage else { return None };
        // Planted, LOCKED-FIRST: it is validated at once, whoever else has locked.
        if desk.site.bugs.has(Bug::ValidateBeforeLocked) {
            return Some(part);
        }
        poll.stage = Stage::Locked(part);
        let home = of.home().partition;
        if home != desk.site.partition {
            desk.tell_manager(home, Protocol::Ballot(Ballot::Locked(of)));
        }
        self.call(of, desk)
    }

    /// Takes the word of another region that it has locked what the transaction writes there; answers the part of this region, the initiator's, if it is
    /// to be validated now, as all have locked.
    pub fn locked(&mut self, from: Lead, of: AttemptId, desk: &mut Desk<'_>) -> Option<AttemptId> {
        let poll = self.polls.get_mut(&of)?;
        if poll.participants.contains(&from) {
            poll.locked.insert(from.partition);
        }
        self.call(of, desk)
    }

    /// Has all regions validate their parts, if this one is the initiator and all have locked; answers its own part then.
    fn call(&mut self, of: AttemptId, desk: &mut Desk<'_>) -> Option<AttemptId> {
        let own = desk.site.partition;
        let poll = self.polls.get_mut(&of).filter(|_| of.home().partition == own)?;
        let Stage::Locked(part) = poll.stage else { return None };
        let mut others = poll.participants.iter().map(|lead| lead.partition).filter(|region| *region != own);
        if !others.all(|region| poll.locked.contains(&region)) {
            return None;
        }
        poll.stage = Stage::Running(part);
        for region in std::mem::take(&mut poll.locked) {
            desk.tell_manager(region, Protocol::Ballot(Ballot::Validate(of)));
        }
        Some(part)
    }

    /// The initiator says that all regions have locked; answers the part of this region, which is to be validated now.
    pub fn called(&mut self, from: Lead, of: AttemptId) -> Option<AttemptId> {
        let poll = self.polls.get_mut(&of).filter(|_| of.home() == from)?;
        let Stage::Locked(part) = poll.stage else { return None };
        poll.stage = Stage::Running(part);
        Some(part)
    }

    /// True if what the part of this region writes is locked, and it is not validated before others have locked too.
    pub fn has_locked(&self, of: AttemptId) -> bool {
        self.polls.get(&of).is_some_and(|poll| matches!(poll.stage, Stage::Locked(_)))
    }

    /// The promise of the part is handed to the log.
    pub fn promise(&mut self, of: AttemptId, desk: &mut Desk<'_>) {
        let Some(poll) = self.polls.get_mut(&of) else { return };
        if let Stage::Running(part) = poll.stage {
            poll.stage = Stage::Promising(part, None);
        }
        // Planted, PROMISED.
        if desk.site.bugs.has(Bug::VoteBeforeLog) {
            self.tell_all(of, Said::Yes, desk);
        }
    }

    /// The promise of the part stands in the log, which is durable up to a place, if it hands on what is not.
    pub fn promised(
        &mut self,
        among: &Among,
        part: AttemptId,
        place: Epoch,
        durable: Option<Epoch>,
        desk: &mut Desk<'_>,
    ) {
        let of = among.of;
        let poll = self.polls.entry(of).or_insert_with(|| Poll::new(Stage::Unknown, Vec::new()));
        poll.participants.clone_from(&among.participants);
        poll.stage = Stage::Promising(part, Some(place));
        // Planted, ITS-INCARNATION.
        if durable.is_none_or(|durable| place <= durable) || desk.site.bugs.has(Bug::VoteUndurable) {
            self.vote_yes(of, desk);
        } else {
            self.undurable.insert(place, of);
        }
    }

    /// The promise of the part is not in the log and never will be: the disk is full.
    pub fn unpromised(&mut self, of: AttemptId, desk: &mut Desk<'_>) {
        if let Some(poll) = self.polls.get_mut(&of)
            && let Stage::Promising(part, None) = poll.stage
        {
            poll.stage = Stage::Running(part);
            self.refuse(of, Abort::Unavailable, desk);
        }
    }

    /// The log is durable up to a place.
    pub fn durable(&mut self, durable: Epoch, desk: &mut Desk<'_>) {
        while let Some(entry) = self.undurable.first_entry().filter(|entry| *entry.key() <= durable) {
            let of = entry.remove();
            self.vote_yes(of, desk);
        }
        while let Some(entry) = self.untold.first_entry().filter(|entry| *entry.key() <= durable) {
            let of = entry.remove();
            self.known_here(of, desk);
        }
        while let Some(entry) = self.forgotten.first_entry().filter(|entry| *entry.key() <= durable) {
            let attempts = entry.remove();
            self.tell_forgotten(&attempts, desk);
        }
    }

    fn vote_yes(&mut self, of: AttemptId, desk: &mut Desk<'_>) {
        let Some(poll) = self.polls.get_mut(&of) else { return };
        let Stage::Promising(part, _) = poll.stage else { return };
        poll.stage = Stage::Promised(part);
        poll.ask_later(desk.elapsed());
        self.tell_all(of, Said::Yes, desk);
        self.settle(of, desk);
    }

    // ---- the others ----------------------------------------------------------------------------------------

    /// Takes the word of another region.
    pub fn hear(
        &mut self,
        from: Lead,
        of: AttemptId,
        said: Said,
        others: &[PartitionId],
        desk: &mut Desk<'_>,
    ) {
        if self.is_over(of, desk) {
            return;
        }
        let is_known = self.polls.contains_key(&of);
        // Of what is not known here a vote alone is of use.
        // Nobody votes on what its home does not know.
        let is_of_use =
            matches!(said, Said::Yes | Said::No(..)) && of.home().partition != desk.site.partition;
        if !is_known && (!is_of_use || !self.has_room()) {
            return;
        }
        let now = desk.elapsed();
        let poll = self.polls.entry(of).or_insert_with(|| Poll::new(Stage::Unknown, Vec::new()));
        if !is_known {
            poll.ask_later(now);
        }
        let vote = match said {
            Said::Yes => Some(None),
            Said::No(reason, _) => Some(Some(reason)),
            Said::Pending => None,
            Said::Committed => return self.conclude(of, None, desk),
            Said::Aborted => {
                let no = No { by: from.partition, reason: Abort::VoteNo };
                return self.conclude(of, Some(no), desk);
            }
        };
        for partition in others {
            poll.votes.insert(*partition, (from.term, None));
        }
        if let Some(no) = vote {
            let known = poll.votes.entry(from.partition).or_insert((from.term, no));
            // A yes stands, whoever says something else later: that one has not been asked.
            if known.1.is_some() {
                *known = (from.term.max(known.0), no);
            }
        }
        // The initiator takes part in any case.
        if let Some(reason) =
            vote.flatten().filter(|_| from.partition == of.home().partition && from.term >= of.home().term)
            && poll.stage == Stage::Unknown
        {
            return self.conclude(of, Some(No { by: from.partition, reason }), desk);
        }
        self.settle(of, desk);
    }

    /// Answers a question.
    pub fn asked(&mut self, from: Lead, of: AttemptId, desk: &mut Desk<'_>) {
        if desk.agreed.decided(of).is_some() {
            return self.say(from.partition, of, Said::Committed, desk);
        }
        let has_room = self.has_room();
        let Some(poll) = self.polls.get_mut(&of) else {
            let own = desk.lead.unwrap_or_default();
            let is_own = of.home().partition == own.partition;
            if !is_own && !has_room {
                // A refusal has to be remembered.
                return;
            }
            // What this region does not know has not been promised, and the answer forbids that it will be. Attempts of this home need
            // no remembering: this node has asked nobody to take part, and under this claim it will not.
            // Planted, ITS-INCARNATION.
            if !is_own && !desk.site.bugs.has(Bug::ForgetRefusal) {
                self.polls.insert(of, Poll::new(Stage::Refused(Abort::TermChanged), Vec::new()));
            }
            return self.say(from.partition, of, Said::No(Abort::TermChanged, desk.clock), desk);
        };
        if poll.stage == Stage::Unknown {
            poll.stage = Stage::Refused(Abort::TermChanged);
            poll.asks_at = None;
        }
        let said = poll.said();
        self.say(from.partition, of, said, desk);
    }

    /// Takes the word of a region that it has a commit in its log.
    pub fn acknowledged(&mut self, from: Lead, of: AttemptId, desk: &mut Desk<'_>) {
        if of.home().partition != desk.site.partition {
            return;
        }
        if let Some(awaited) = self.unknown.get_mut(&of) {
            awaited.remove(&from.partition);
            return self.forget_if_known(of, desk);
        }
        if self.forgetting.contains_key(&of) {
            // It hears of that once it is durable: who has forgotten does not say so again.
            return;
        }
        let is_under_way = self.polls.contains_key(&of) || desk.agreed.decided(of).is_some();
        if !is_under_way {
            // All know: it was forgotten.
            desk.tell_manager(from.partition, Protocol::Ballot(Ballot::Forget(vec![of])));
            return;
        }
        self.hear(from, of, Said::Committed, &[], desk);
    }

    /// The initiator says that all know these.
    pub fn forget(&mut self, from: Lead, attempts: &[AttemptId], desk: &mut Desk<'_>) {
        let its =
            |of: &&AttemptId| of.home().partition == from.partition && desk.agreed.decided(**of).is_some();
        let known: Vec<AttemptId> = attempts.iter().filter(its).copied().collect();
        self.forgettable.extend(known.into_iter().filter(|of| self.telling.remove(of).is_some()));
        if !self.forgettable.is_empty() {
            self.forgets_at.get_or_insert(desk.elapsed().plus(FORGET_EVERY));
        }
    }

    // ---- outcomes ------------------------------------------------------------------------------------------

    /// Concludes what the votes have decided.
    fn settle(&mut self, of: AttemptId, desk: &mut Desk<'_>) {
        let verdict = self.polls.get(&of).and_then(|poll| poll.verdict(desk.site.partition, desk.site.bugs));
        if let Some(no) = verdict {
            self.conclude(of, no, desk);
        }
    }

    fn conclude(&mut self, of: AttemptId, no: Option<No>, desk: &mut Desk<'_>) {
        let Some(poll) = self.polls.get_mut(&of) else { return };
        match (poll.stage, no) {
            (Stage::Promised(part), no) => {
                poll.stage = Stage::Concluding { part, no, is_appended: false };
                poll.asks_at = None;
                self.append_outcome(of, desk);
            }
            // Nobody has this region's yes.
            (Stage::Running(part) | Stage::Locked(part), Some(no)) => {
                self.verdicts.push(Verdict { of, part, end: End::Dropped(no) });
                self.refuse(of, no.reason, desk);
            }
            (Stage::Unknown, Some(no)) => {
                poll.stage = Stage::Refused(no.reason);
                poll.asks_at = None;
            }
            // A promise that is on its way is concluded when it is there. What is promised nowhere here has not committed.
            (Stage::Promising(..) | Stage::Refused(_) | Stage::Concluding { .. }, _) => {}
            (Stage::Unknown | Stage::Running(_) | Stage::Locked(_), None) => {}
        }
    }

    fn append_outcome(&mut self, of: AttemptId, desk: &mut Desk<'_>) {
        let Some(Poll { stage: Stage::Concluding { part, no, is_appended }, .. }) = self.polls.get_mut(&of)
        else {
            return;
        };
        if *is_appended || desk.appender.is_full() {
            return;
        }
        // Each region promises with stamps of its own.
        let Some(bounds) = desk.agreed.promised(*part) else { return };
        *is_appended = true;
        let (part, no) = (*part, *no);
        let commit = no.is_none().then(|| Commitment::at(bounds.from));
        let place = desk.append(desk.clock, Content::Outcome(part, commit));
        let end = no.map_or(End::Committed(place), End::Aborted);
        self.verdicts.push(Verdict { of, part, end });
    }

    /// The outcome of a part stands in the log, which is durable up to a place, if it hands on what is not.
    ///
    /// Answers the transaction, if its votes are known here.
    pub fn concluded(
        &mut self,
        part: AttemptId,
        place: Epoch,
        durable: Option<Epoch>,
        desk: &mut Desk<'_>,
    ) -> Option<AttemptId> {
        let is_its = |stage: Stage| matches!(stage, Stage::Concluding { part: its, .. } if its == part);
        let of = self.polls.iter().find(|(_, poll)| is_its(poll.stage)).map(|(of, _)| *of)?;
        let Poll { stage: Stage::Concluding { no, .. }, .. } = self.polls.remove(&of)? else { return None };
        if let Some(No { reason, .. }) = no {
            // A request that comes twice is answered. Nobody asks the initiator.
            if of.home().partition != desk.site.partition {
                self.polls.insert(of, Poll::new(Stage::Refused(reason), Vec::new()));
            }
        } else if durable.is_none_or(|durable| place <= durable) {
            self.known_here(of, desk);
        } else {
            self.untold.insert(place, of);
        }
        Some(of)
    }

    /// The outcome of a part is not in the log: the disk is full, and it has to be there.
    pub fn unwritten(&mut self, part: AttemptId) {
        for poll in self.polls.values_mut() {
            if let Stage::Concluding { part: its, is_appended, .. } = &mut poll.stage
                && *its == part
            {
                *is_appended = false;
            }
        }
    }

    /// A commit is durable in this region's log.
    fn known_here(&mut self, of: AttemptId, desk: &mut Desk<'_>) {
        if of.home().partition != desk.site.partition {
            return self.tell_known(of, desk);
        }
        let participants = desk.agreed.decided(of).map(|decided| decided.participants.iter().copied());
        self.unknown.insert(of, participants.into_iter().flatten().collect());
        self.forget_if_known(of, desk);
    }

    /// Tells the initiator of a commit in this region's log, now and until it says that all know.
    fn tell_known(&mut self, of: AttemptId, desk: &mut Desk<'_>) {
        let Some(place) = desk.agreed.decided(of).map(|decided| decided.place) else {
            self.telling.remove(&of);
            return;
        };
        self.telling.insert(of, desk.elapsed().plus(TELL_EVERY));
        desk.tell_manager(of.home().partition, Protocol::Ballot(Ballot::Known(of, place)));
    }

    fn forget_if_known(&mut self, of: AttemptId, desk: &Desk<'_>) {
        if self.unknown.get(&of).is_some_and(BTreeSet::is_empty) {
            self.unknown.remove(&of);
            let participants = desk.agreed.decided(of).map(|decided| decided.participants.clone());
            self.forgetting.insert(of, participants.unwrap_or_default());
            self.forgettable.push(of);
            self.forgets_at.get_or_insert(desk.elapsed().plus(FORGET_EVERY));
        }
    }

    /// A forgetting is in the log, which is durable up to a place, if it hands on what is not: those whom it concerns hear of it from the
    /// initiator. Were it lost after that, the initiator would wait for them, and they do not know any more what for.
    pub fn forgotten(
        &mut self,
        attempts: &[AttemptId],
        place: Epoch,
        durable: Option<Epoch>,
        desk: &mut Desk<'_>,
    ) {
        match durable.is_none_or(|durable| place <= durable) {
            true => self.tell_forgotten(attempts, desk),
            false => _ = self.forgotten.insert(place, attempts.to_vec()),
        }
    }

    fn tell_forgotten(&mut self, attempts: &[AttemptId], desk: &mut Desk<'_>) {
        let mut told: BTreeMap<PartitionId, Vec<AttemptId>> = BTreeMap::new();
        for of in attempts {
            let participants = self.forgetting.remove(of).unwrap_or_default();
            participants.into_iter().for_each(|partition| told.entry(partition).or_default().push(*of));
        }
        for (partition, attempts) in told {
            desk.tell_manager(partition, Protocol::Ballot(Ballot::Forget(attempts)));
        }
    }

    /// A forgetting is not in the log and never will be.
    pub fn unforgotten(&mut self, attempts: &[AttemptId], now: Micros) {
        self.forgettable.extend(attempts);
        self.forgets_at.get_or_insert(now.plus(FORGET_EVERY));
    }

    /// Takes what has come out since this was asked last.
    pub fn take_verdicts(&mut self) -> Vec<Verdict> {
        std::mem::take(&mut self.verdicts)
    }

    // ---- terms, lost messages, time ------------------------------------------------------------------------

    /// The node serves its region from now on: what is promised is voted for again, and those who have not voted are asked.
    pub fn begin(&mut self, desk: &mut Desk<'_>) {
        let promised: Vec<(AttemptId, Among)> =
            desk.agreed.prepared_among().map(|(part, among)| (part, among.clone())).collect();
        for (part, among) in promised {
            // Whoever leads has all of the log before it durable.
            let mut poll = Poll::new(Stage::Promised(part), among.participants.clone());
            poll.ask_later(desk.elapsed());
            self.polls.insert(among.of, poll);
            self.tell_all(among.of, Said::Yes, desk);
            self.ask_missing(among.of, desk);
        }
        let commits: Vec<AttemptId> = desk.agreed.all_decided().map(|(of, _)| of).collect();
        commits.into_iter().for_each(|of| self.known_here(of, desk));
    }

    /// The node serves its region no more.
    pub fn stand(&mut self) {
        *self = Voting::default();
    }

    /// Repeats the yes votes of this region, and asks for the other's, as messages between the two may be lost or the other is led in another
    /// term. Refusals are not repeated: there may be more of them than a link has room for, which breaks it anew. A region that has
    /// promised asks for them.
    pub fn disturbed(&mut self, partition: PartitionId, desk: &mut Desk<'_>) {
        let is_there = |poll: &Poll| poll.participants.iter().any(|lead| lead.partition == partition);
        let promised = |poll: &Poll| is_there(poll) && matches!(poll.stage, Stage::Promised(_));
        let its: Vec<AttemptId> =
            self.polls.iter().filter(|(_, poll)| promised(poll)).map(|(of, _)| *of).collect();
        for of in its {
            self.say(partition, of, Said::Yes, desk);
            desk.tell_manager(partition, Protocol::Ballot(Ballot::Ask(of)));
        }
        let term = desk.leaders.term_of(partition);
        // Requests of a former incarnation are not heard any more, so none can come twice.
        let is_over = |of: &AttemptId| of.home().partition == partition && of.home().term < term;
        self.polls
            .retain(|of, poll| !(is_over(of) && matches!(poll.stage, Stage::Refused(_) | Stage::Unknown)));
    }

    /// The time at which something is to be done by [`Voting::pass`], if any is.
    pub fn due(&self) -> Option<Micros> {
        let asks = self.polls.values().filter_map(|poll| poll.asks_at);
        asks.chain(self.telling.values().copied()).chain(self.forgets_at).min()
    }

    /// Asks those who have not voted, tells of outcomes again, and has the log forget what all know, as far as it is time.
    pub fn pass(&mut self, desk: &mut Desk<'_>) {
        let now = desk.elapsed();
        let is_late = |poll: &Poll| poll.asks_at.is_some_and(|at| at <= now);
        let late: Vec<AttemptId> =
            self.polls.iter().filter(|(_, poll)| is_late(poll)).map(|(of, _)| *of).collect();
        for of in late {
            if let Some(poll) = self.polls.get_mut(&of) {
                poll.ask_later(now);
            }
            self.ask_missing(of, desk);
        }
        let untold: Vec<AttemptId> =
            self.telling.iter().filter(|(_, at)| **at <= now).map(|(of, _)| *of).collect();
        untold.into_iter().for_each(|of| self.tell_known(of, desk));
        if self.forgets_at.is_some_and(|at| at <= now) {
            self.forgets_at = None;
            match desk.appender.is_full() {
                true => self.forgets_at = Some(now.plus(FORGET_EVERY)),
                false if self.forgettable.is_empty() => {}
                false => {
                    let attempts = std::mem::take(&mut self.forgettable);
                    _ = desk.append(desk.clock, Content::Forget(attempts));
                }
            }
        }
        self.go_on(desk);
    }

    /// The disk has space: outcomes that wait are appended.
    pub fn go_on(&mut self, desk: &mut Desk<'_>) {
        let waits = |poll: &Poll| matches!(poll.stage, Stage::Concluding { is_appended: false, .. });
        let waiting: Vec<AttemptId> =
            self.polls.iter().filter(|(_, poll)| waits(poll)).map(|(of, _)| *of).collect();
        waiting.into_iter().for_each(|of| self.append_outcome(of, desk));
    }

    fn ask_missing(&mut self, of: AttemptId, desk: &mut Desk<'_>) {
        let Some(poll) = self.polls.get(&of) else { return };
        let own = desk.site.partition;
        let missing: Vec<PartitionId> = match poll.stage {
            Stage::Unknown => vec![of.home().partition],
            _ => {
                let others = poll.participants.iter().map(|lead| lead.partition).filter(|p| *p != own);
                others.filter(|p| !poll.says_yes(*p)).collect()
            }
        };
        for partition in missing {
            desk.tell_manager(partition, Protocol::Ballot(Ballot::Ask(of)));
        }
    }

    // ---- what is said --------------------------------------------------------------------------------------

    fn say(&self, to: PartitionId, of: AttemptId, said: Said, desk: &mut Desk<'_>) {
        let (said, others) = match said {
            Said::Yes | Said::Pending => (said, self.polls.get(&of).map(Poll::yes).unwrap_or_default()),
            Said::No(reason, _) => (Said::No(reason, desk.clock), Vec::new()),
            Said::Committed | Said::Aborted => (said, Vec::new()),
        };
        desk.tell_manager(to, Protocol::Ballot(Ballot::Say(of, said, others)));
    }

    fn tell_all(&self, of: AttemptId, said: Said, desk: &mut Desk<'_>) {
        let participants = self.polls.get(&of).map(|poll| poll.participants.clone()).unwrap_or_default();
        for lead in participants.into_iter().filter(|lead| lead.partition != desk.site.partition) {
            self.say(lead.partition, of, said, desk);
        }
    }

    // ---- what is over --------------------------------------------------------------------------------------

    /// A home says that its transactions with lower numbers are over.
    fn pass_low(&mut self, home: Lead, low: u64) {
        let known = self.lows.entry(home.partition).or_insert((home.term, 0));
        *known = (*known).max((home.term, low));
        let (term, low) = *known;
        let is_over = |of: &AttemptId| {
            of.home().partition == home.partition && (of.home().term, of.transaction.number) < (term, low)
        };
        self.polls
            .retain(|of, poll| !(is_over(of) && matches!(poll.stage, Stage::Refused(_) | Stage::Unknown)));
    }

    /// True if the home of an attempt has said that it is over.
    fn is_below(&self, of: AttemptId) -> bool {
        let low = self.lows.get(&of.home().partition);
        low.is_some_and(|low| (of.home().term, of.transaction.number) < *low) && !self.polls.contains_key(&of)
    }

    fn has_room(&self) -> bool {
        self.polls.len() < POLLS_MAX
    }

    /// True if nothing that is said of an attempt is news.
    fn is_over(&self, of: AttemptId, desk: &Desk<'_>) -> bool {
        desk.agreed.decided(of).is_some()
            || self.is_below(of)
            || !desk.leaders.holds(of.home()) && !self.polls.contains_key(&of)
    }

    /// The lowest number of this home's transactions that have votes to come, or the first to come.
    pub fn lowest(&self, home: Lead, next: u64) -> u64 {
        let its = self.polls.keys().filter(|of| of.home() == home).map(|of| of.transaction.number);
        its.min().unwrap_or(next)
    }

    // ---- what operators and tests see ----------------------------------------------------------------------

    /// The transactions whose parts here are not promised and not refused yet, each with its part.
    pub fn running(&self) -> impl Iterator<Item = (AttemptId, AttemptId)> + '_ {
        self.polls.iter().filter_map(|(of, poll)| match poll.stage {
            Stage::Running(part) | Stage::Locked(part) => Some((*of, part)),
            _ => None,
        })
    }

    /// The transactions whose parts here are promised and that are in doubt, each with the regions that have not voted.
    pub fn in_doubt(&self, own: PartitionId) -> impl Iterator<Item = (AttemptId, Vec<PartitionId>)> + '_ {
        let promised = self.polls.iter().filter(|(_, poll)| matches!(poll.stage, Stage::Promised(_)));
        promised.map(move |(of, poll)| {
            let others = poll.participants.iter().map(|lead| lead.partition).filter(|p| *p != own);
            (*of, others.filter(|p| !poll.votes.contains_key(p)).collect())
        })
    }

    /// True if this region has promised its part of a transaction, or is about to, and the outcome is not in its log.
    pub fn awaits(&self, of: AttemptId) -> bool {
        let poll = self.polls.get(&of);
        poll.is_some_and(|poll| !matches!(poll.stage, Stage::Unknown | Stage::Refused(_)))
    }

    /// The number of transactions with votes to come.
    pub fn open(&self) -> usize {
        self.polls.values().filter(|poll| !matches!(poll.stage, Stage::Refused(_))).count()
    }

    /// The number of commits of which not all are known to know.
    pub fn untold(&self) -> usize {
        self.unknown.len() + self.telling.len() + self.untold.len()
    }

    /// Checks what must hold between two events.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self) -> Result<(), String> {
        if !self.verdicts.is_empty() {
            return Err(format!("{} verdicts were not taken", self.verdicts.len()));
        }
        for (of, poll) in &self.polls {
            let asks = poll.asks_at.is_some();
            let has_to_ask = matches!(poll.stage, Stage::Unknown | Stage::Promised(_));
            if asks != has_to_ask {
                return Err(format!("attempt {of} is {:?}, and others are asked: {asks}", poll.stage));
            }
            let is_named = poll.participants.iter().any(|lead| lead.partition == of.home().partition);
            let is_under_way = !matches!(poll.stage, Stage::Unknown | Stage::Refused(_));
            if is_under_way && !is_named {
                return Err(format!("attempt {of} is under way, and its home takes no part"));
            }
        }
        if let Some((of, _)) = self.unknown.iter().find(|(_, awaited)| awaited.is_empty()) {
            return Err(format!("attempt {of} is known to all and kept"));
        }
        match self.undurable.values().find(|of| !self.polls.contains_key(of)) {
            Some(of) => Err(format!("the promise of attempt {of} is about to be durable, and is not known")),
            None => Ok(()),
        }
    }
}
