//! The agreed state of a partition beside its records: what its log says, the same on every member.
//!
//! [`Agreed::apply`] takes an entry and answers what it comes to. It is the only way in which this state changes, and asks
//! nobody: so members that have applied the same entries agree, and a proposer decides nothing before its entry is applied.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_checkpoint::{Outcome, Outcomes};
use ordain_model::{Epoch, Gsn, Millis, OutcomeStatus, PartitionId, RequestNo, SessionId};

use ordain_role::Bugs;

use crate::entry::{Among, Announced, Commit, Commitment, Content, Entry, Hold, Terms};
use crate::founding::Met;
use crate::heard::Heard;
use crate::ids::{Age, AttemptId, Bounds, Lead, Term};
use crate::image::{Image, Standing};
use crate::known::{Living, Readers};
use crate::view::{Seen, Vector, View};

/// The outcome of an attempt with this home, for participants that may ask.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// The stamp and view with which it has committed; none if it is denied.
    pub commit: Option<Commitment>,
    /// The participants. Those of a denied attempt are not known.
    pub participants: Vec<PartitionId>,
    /// The place of the entry that says so: the version of the records that the attempt has written here.
    pub place: Epoch,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Agreed {
    place: Epoch,
    terms: Terms,
    now: Millis,
    /// The outcome of the last committed request of each session, by the place of its decision.
    sessions: Outcomes,
    decided: BTreeMap<AttemptId, Decided>,
    /// Attempts of other homes that this partition has promised, and whose outcome it has not learnt.
    prepared: BTreeMap<AttemptId, Arc<Entry>>,
    /// The last cut.
    cut: Epoch,
    /// Times before this one may have been used to tell what has expired.
    ceiling: Millis,
    /// The decisions of all partitions, as far as this one has heard of them.
    heard: Heard,
    /// The readers that may be under way.
    living: Living,
    /// No version of the partition follows more than this, nor must more readers not see it.
    followed: Seen,
    /// The part of the node in the first meeting of all.
    met: Met,
    /// Entries that did not count.
    void: u64,
}

/// The effect of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The entry counts.
    Applied,
    /// The entry says what its proposer could not say any more: nothing has changed.
    Void,
}

impl Agreed {
    /// The state with planted bugs, for tests of the checkers.
    #[must_use]
    pub fn planting(self, bugs: Bugs) -> Agreed {
        Agreed { terms: self.terms.planting(bugs), ..self }
    }

    /// Applies the next entry.
    ///
    /// # Errors
    /// The entry contradicts what was agreed on before, which no sound leader proposes: the node must stop.
    pub fn apply(&mut self, entry: &Arc<Entry>) -> Result<Effect, String> {
        if entry.place <= self.place {
            return Err(format!("entry {} came after entry {}", entry.place, self.place));
        }
        self.place = entry.place;
        if !self.terms.take(entry) {
            self.void += 1;
            return Ok(Effect::Void);
        }
        self.now = self.now.max(entry.now);
        match &entry.content {
            Content::Begin => Ok(Effect::Applied),
            Content::Commit(commit) => self.commit(entry, commit),
            Content::Prepare(prepare) => {
                self.ceiling = self.ceiling.max(prepare.ceiling);
                match self.prepared.insert(prepare.attempt, entry.clone()) {
                    None => Ok(Effect::Applied),
                    Some(_) => Err(format!("attempt {} was prepared twice", prepare.attempt)),
                }
            }
            Content::Outcome(attempt, commit) => {
                let Some(bounds) = self.promised(*attempt) else {
                    return Err(format!("attempt {attempt} has an outcome and was not prepared"));
                };
                let promise = self.prepared.remove(attempt);
                if let Some(with) = commit {
                    self.heard.concluded(*attempt, with);
                    self.follow(with.view.seen());
                    if let Some(among) = promise.as_ref().and_then(|promise| promise.among()) {
                        self.concluded_among(entry.place, attempt.home().partition, among, with)?;
                    }
                }
                match commit.as_ref().map(|with| with.stamp).filter(|stamp| !bounds.has(*stamp)) {
                    None => Ok(Effect::Applied),
                    Some(Age(stamp)) => Err(format!(
                        "attempt {attempt} has committed with stamp {stamp}, promised were {bounds:?}"
                    )),
                }
            }
            Content::Meet(met) => {
                self.met = *met;
                Ok(Effect::Applied)
            }
            Content::Mark => {
                self.cut = entry.place;
                Ok(Effect::Applied)
            }
            Content::Announce(numbers) => {
                for Announced { home, number, readers } in numbers {
                    self.heard.announced(home.partition, *number);
                    self.outlive(*home, readers.clone());
                }
                Ok(Effect::Applied)
            }
            Content::Deny(attempt) => {
                self.decide(*attempt, Decided { commit: None, participants: Vec::new(), place: entry.place })
            }
            Content::Forget(attempts) => {
                attempts.iter().for_each(|attempt| _ = self.decided.remove(attempt));
                Ok(Effect::Applied)
            }
            Content::Reserve(ceiling) => {
                self.ceiling = self.ceiling.max(*ceiling);
                Ok(Effect::Applied)
            }
        }
    }

    fn commit(&mut self, entry: &Entry, commit: &Commit) -> Result<Effect, String> {
        if commit.attempt.home().term != entry.term {
            return Err(format!("attempt {} was committed in term {}", commit.attempt, entry.term.0));
        }
        self.ceiling = self.ceiling.max(commit.ceiling);
        self.answered(entry.place, commit.session, &commit.reply);
        let mut with = commit.commitment(entry.place);
        if with.view.is_some() {
            let home = commit.attempt.home();
            with.after = self.heard().of(home.partition);
            self.heard.decided(home.partition, entry.place.0);
            self.outlive(home, commit.low.into());
            self.follow(with.view.seen());
        }
        if commit.participants.is_empty() {
            return Ok(Effect::Applied);
        }
        let participants = commit.participants.clone();
        self.decide(commit.attempt, Decided { commit: Some(with), participants, place: entry.place })
    }

    /// A request of a session, if it is one, has taken effect with the entry at this place.
    fn answered(&mut self, place: Epoch, request: Option<(SessionId, RequestNo)>, reply: &[u8]) {
        if let Some((session, request)) = request
            && self.sessions.get(session).is_none_or(|last| last.request < request)
        {
            // Requests of a session that come over several connections may commit out of order; the last one counts.
            let (gsn, status) = (Gsn(place.0), OutcomeStatus::Committed);
            self.sessions.put(&Outcome { session, request, gsn, status, reply });
        }
    }

    /// The regions among which this one, `own`, has promised a part have committed the transaction.
    fn concluded_among(
        &mut self,
        place: Epoch,
        own: PartitionId,
        among: &Among,
        with: &Commitment,
    ) -> Result<(), String> {
        self.answered(place, among.session, &among.reply);
        let participants = among.others(own);
        self.decide(among.of, Decided { commit: Some(with.clone()), participants, place }).map(|_| ())
    }

    /// A version follows this.
    fn follow(&mut self, seen: &Seen) {
        self.followed.vector.join(&seen.vector);
        let Agreed { living, followed, .. } = self;
        seen.anti.iter().filter(|who| living.has(*who)).for_each(|who| followed.anti.add(who));
    }

    /// A home has said which readers are under way.
    fn outlive(&mut self, home: Lead, readers: Readers) {
        let Agreed { living, followed, .. } = self;
        if living.outlive(home, readers) {
            followed.anti.retain(|who| living.has(who));
        }
    }

    fn decide(&mut self, attempt: AttemptId, decided: Decided) -> Result<Effect, String> {
        match self.decided.insert(attempt, decided) {
            None => Ok(Effect::Applied),
            Some(_) => Err(format!("attempt {attempt} was decided twice")),
        }
    }

    /// The part of the node in the first meeting of all nodes; none once it has served, or begun from a checkpoint of when it had.
    pub fn meets(&self) -> Option<Met> {
        (self.term() == Term(0) && self.cut == Epoch(0)).then_some(self.met)
    }

    /// The place of the last entry.
    pub const fn place(&self) -> Epoch {
        self.place
    }

    /// The last term that has begun.
    pub const fn term(&self) -> Term {
        self.terms.last()
    }

    /// The latest time that a transaction of an entry has seen.
    pub const fn now(&self) -> Millis {
        self.now
    }

    /// Times before this one may have been used to tell what has expired.
    pub const fn ceiling(&self) -> Millis {
        self.ceiling
    }

    /// The decisions of all partitions, this one's included, as far as it has heard of them.
    pub const fn heard(&self) -> &Vector {
        self.heard.vector()
    }

    /// The view that all versions of the partition follow.
    pub const fn followed(&self) -> &Seen {
        &self.followed
    }

    /// The readers that may be under way.
    pub const fn living(&self) -> &Living {
        &self.living
    }

    /// The last committed request of a session.
    pub fn session(&self, session: SessionId) -> Option<Outcome<'_>> {
        self.sessions.get(session)
    }

    /// The outcomes of sessions.
    pub const fn outcomes(&self) -> &Outcomes {
        &self.sessions
    }

    /// Keeps the outcomes of sessions at the end of an era for a checkpoint, or does not any more.
    pub fn hold(&mut self, era: Option<Epoch>) {
        self.sessions.hold(era);
    }

    /// The last cut.
    pub const fn cut(&self) -> Epoch {
        self.cut
    }

    /// The outcome of an attempt, if a participant may yet ask for it.
    pub fn decided(&self, attempt: AttemptId) -> Option<&Decided> {
        self.decided.get(&attempt)
    }

    /// The outcomes that participants may yet ask for.
    pub fn all_decided(&self) -> impl Iterator<Item = (AttemptId, &Decided)> {
        self.decided.iter().map(|(attempt, decided)| (*attempt, decided))
    }

    /// True if an attempt of another home is promised and its outcome not known.
    pub fn is_prepared(&self, attempt: AttemptId) -> bool {
        self.prepared.contains_key(&attempt)
    }

    /// The stamps with which such an attempt may commit.
    pub fn promised(&self, attempt: AttemptId) -> Option<Bounds> {
        self.promise(attempt).map(|(bounds, _)| bounds)
    }

    /// The stamps with which such an attempt may commit, and what it has seen.
    pub fn promise(&self, attempt: AttemptId) -> Option<(Bounds, &View)> {
        match &self.prepared.get(&attempt)?.content {
            Content::Prepare(prepare) => Some((prepare.bounds, &prepare.view)),
            _ => None,
        }
    }

    /// The promises on which regions vote, by the attempts that are promised, while their outcomes are not known.
    pub fn prepared_among(&self) -> impl Iterator<Item = (AttemptId, &Among)> {
        self.prepared.iter().filter_map(|(attempt, promise)| Some((*attempt, promise.among()?)))
    }

    /// The locks of an attempt that is promised.
    pub fn holds(&self, attempt: AttemptId) -> &[Hold] {
        match self.prepared.get(&attempt).map(|entry| &entry.content) {
            Some(Content::Prepare(prepare)) => &prepare.holds,
            _ => &[],
        }
    }

    /// The attempts that are promised and whose outcomes are not known.
    pub fn prepared(&self) -> impl Iterator<Item = AttemptId> {
        self.prepared.keys().copied()
    }

    /// The image of all but the outcomes of sessions.
    pub fn image(&self) -> Image {
        let standing = Standing {
            term: self.term(),
            now: self.now,
            ceiling: self.ceiling,
            heard: self.heard.clone(),
            living: self.living.clone(),
            followed: self.followed.clone(),
        };
        let decided = self.decided.iter().map(|(attempt, decided)| (*attempt, decided.clone()));
        Image {
            standing,
            prepared: self.prepared.values().cloned().collect(),
            decided: decided.collect(),
            remembered: Vec::new(),
        }
    }

    /// The state behind a cut, from its image. Outcomes of sessions are [put in](Agreed::put) beside it.
    ///
    /// # Errors
    /// A promise of the image is none.
    pub fn begin(&mut self, cut: Epoch, image: &Image) -> Result<(), String> {
        let Standing { term, now, ceiling, heard, living, followed } = image.standing.clone();
        (self.place, self.cut) = (cut, cut);
        (self.heard, self.living, self.followed) = (heard, living, followed);
        (self.terms, self.now, self.ceiling) = (self.terms.after(term), now, ceiling);
        for entry in &image.prepared {
            let Content::Prepare(prepare) = &entry.content else {
                return Err(format!("the entry at {} is no promise", entry.place));
            };
            self.prepared.insert(prepare.attempt, entry.clone());
        }
        self.decided = image.decided.iter().cloned().collect();
        Ok(())
    }

    /// Puts in the outcome of a session's last request, as a checkpoint holds it.
    pub fn put(&mut self, outcome: &Outcome<'_>) {
        self.sessions.put(outcome);
    }

    /// The number of entries that did not count.
    pub const fn void(&self) -> u64 {
        self.void
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::RequestNo;

    use super::*;
    use crate::entry::Prepare;
    use crate::ids::TransactionId;

    fn who(partition: u16, term: u64, number: u64) -> AttemptId {
        let home = Lead { partition: PartitionId(partition), term: Term(term) };
        AttemptId { transaction: TransactionId { home, number }, attempt: 1 }
    }

    fn entry(place: u64, term: u64, content: Content) -> Arc<Entry> {
        let (place, term, now) = (Epoch(place), Term(term), Millis(place * 10));
        Arc::new(Entry { place, term, now, content, agreed: None })
    }

    fn commit(attempt: AttemptId, session: Option<(u64, u64)>, participants: &[u16]) -> Content {
        Content::Commit(Commit {
            attempt,
            age: Age(1),
            session: session.map(|(session, request)| (SessionId(session), RequestNo(request))),
            reply: b"r".to_vec(),
            participants: participants.iter().map(|p| PartitionId(*p)).collect(),
            ..Commit::default()
        })
    }

    fn prepare(attempt: AttemptId) -> Content {
        Content::Prepare(Prepare {
            attempt,
            bounds: Bounds::at(Age(1)),
            view: View::NONE,
            ceiling: Millis(0),
            changes: Vec::new(),
            writes: Vec::new(),
            holds: Vec::new(),
            among: None,
        })
    }

    /// The state after the beginning of a term, at place 0.
    fn begun(term: u64) -> Agreed {
        let mut terms = Terms::default();
        assert!(terms.take(&entry(0, term, Content::Begin)));
        Agreed { terms, ..Agreed::default() }
    }

    #[test]
    fn outcomes_are_kept_until_all_who_may_ask_know_them() {
        let mut agreed = begun(1);
        let (a, b) = (who(0, 1, 1), who(0, 1, 2));
        for (place, content) in
            [(1, commit(a, None, &[1, 2])), (2, commit(b, None, &[])), (3, Content::Deny(who(0, 0, 9)))]
        {
            assert_eq!(agreed.apply(&entry(place, 1, content)), Ok(Effect::Applied));
        }
        let decided = Decided {
            commit: Some(Commitment::at(Age(1))),
            participants: vec![PartitionId(1), PartitionId(2)],
            place: Epoch(1),
        };
        assert_eq!(
            (agreed.decided(a), agreed.decided(b)),
            (Some(&decided), None),
            "nobody else takes part in b"
        );
        assert!(agreed.decided(who(0, 0, 9)).is_some_and(|decided| decided.commit.is_none()));
        agreed.apply(&entry(4, 1, Content::Forget(vec![a]))).unwrap();
        assert_eq!((agreed.decided(a), agreed.all_decided().count()), (None, 1));
        assert_eq!((agreed.place(), agreed.term(), agreed.now()), (Epoch(4), Term(1), Millis(40)));
    }

    #[test]
    fn a_promise_stands_until_its_outcome() {
        let mut agreed = begun(1);
        agreed.apply(&entry(1, 1, prepare(who(1, 5, 1)))).unwrap();
        agreed.apply(&entry(2, 2, Content::Begin)).unwrap();
        assert!(agreed.is_prepared(who(1, 5, 1)));
        agreed.apply(&entry(3, 2, Content::Outcome(who(1, 5, 1), Some(Commitment::at(Age(1)))))).unwrap();
        assert_eq!(agreed.prepared().count(), 0);
    }

    #[test]
    fn an_entry_that_was_agreed_on_in_another_term_has_no_effect() {
        let mut agreed = begun(2);
        let mut late = entry(1, 2, commit(who(0, 2, 1), Some((7, 4)), &[1]));
        Arc::make_mut(&mut late).agreed = Some(3);
        assert_eq!(agreed.apply(&late), Ok(Effect::Void));
        assert_eq!(
            (agreed.session(SessionId(7)), agreed.decided(who(0, 2, 1)), agreed.void()),
            (None, None, 1)
        );
        assert_eq!(agreed.place(), Epoch(1), "its place is used");
    }

    #[test]
    fn a_later_request_of_a_session_is_not_forgotten_for_an_earlier_one_that_commits_after_it() {
        let mut agreed = begun(1);
        for (place, request) in [(1, 6), (2, 5)] {
            agreed.apply(&entry(place, 1, commit(who(0, 1, place), Some((3, request)), &[]))).unwrap();
        }
        assert_eq!(
            agreed.session(SessionId(3)).map(|last| (last.request, last.gsn)),
            Some((RequestNo(6), Gsn(1)))
        );
    }

    #[test]
    fn contradictions_are_refused() {
        let base = || {
            let mut agreed = begun(2);
            agreed.apply(&entry(5, 2, commit(who(0, 2, 1), None, &[1]))).unwrap();
            agreed.apply(&entry(6, 2, prepare(who(1, 1, 1)))).unwrap();
            agreed
        };
        for (refused, reason) in [
            (entry(6, 2, Content::Begin), "came after entry 6"),
            (entry(7, 2, commit(who(0, 1, 1), None, &[])), "was committed in term 2"),
            (entry(7, 2, Content::Deny(who(0, 2, 1))), "was decided twice"),
            (entry(7, 2, prepare(who(1, 1, 1))), "was prepared twice"),
            (entry(7, 2, Content::Outcome(who(1, 1, 2), Some(Commitment::at(Age(1))))), "was not prepared"),
        ] {
            let error = base().apply(&refused).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn the_state_behind_a_cut_comes_back_and_goes_on() {
        let mut agreed = begun(1);
        let cut = crate::cuts::SPACING;
        let (a, b) = (who(0, 1, 1), who(1, 7, 1));
        for (place, content) in [
            (1, commit(a, Some((3, 9)), &[1])),
            (2, prepare(b)),
            (3, Content::Deny(who(0, 0, 5))),
            (cut, Content::Mark),
        ] {
            agreed.apply(&entry(place, 1, content)).unwrap();
        }
        let mut restored = Agreed::default();
        restored.begin(Epoch(cut), &agreed.image()).unwrap();
        agreed.session(SessionId(3)).iter().for_each(|outcome| restored.put(outcome));
        assert_eq!(restored, agreed);
        for (place, content) in [
            (1, Content::Outcome(b, Some(Commitment::at(Age(1))))),
            (2, Content::Forget(vec![a])),
            (3, commit(who(0, 1, 2), None, &[])),
        ] {
            let entry = entry(cut + place, 1, content);
            assert_eq!(
                (restored.apply(&entry), agreed.apply(&entry)),
                (Ok(Effect::Applied), Ok(Effect::Applied))
            );
        }
        assert_eq!(restored, agreed);
    }
}
