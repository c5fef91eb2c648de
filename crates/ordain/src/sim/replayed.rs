//! Replay in the order of stamps (baselines.md, section 8): the reference executor runs what has a stamp, one after the other, and
//! must come to the same answers and writes.
//!
//! Three things have a stamp. An attempt of the logs whose request is known is run, with its seed, and both its answers and what
//! it left are compared. An attempt whose request nobody knows leaves what the logs say that it left. An answer without an attempt
//! in any log is one that has changed nothing: its transaction is tried, and taken back. The seed of such an answer is not known; one
//! that depends on it is left out, unless a draw explains it.
//!
//! Where stamps are chosen when attempts commit, several attempts that do not conflict may have one, and the time that an attempt has seen is
//! in the log alone: an answer that is in no log is tried at each time at which something expires.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use ordain_checker::history::{Answer, History, Request};
use ordain_checker::sessions::clients_number;
use ordain_checker::{RequestId, Violation, ViolationKind};
use ordain_commit::{Age, AttemptId, Commit, Content, Prepare, Stamps, TableChange, Terms, Write};
use ordain_model::args::{Args, ArgsBuilder};
use ordain_model::reference::{Circumstances, Result as Expected};
use ordain_model::serial::key_of;
use ordain_model::{
    Abort, Access, Cell, Chunk, ChunkNo, Db, Epoch, GatewayId, Gsn, Millis, OutcomeStatus, PartitionId,
    ReferenceExecutor, Registry, RequestNo, SessionId, Stamp, Table as _, Txn, system,
};

use super::commit::{Logs, Records, committed, install, records};

/// The seeds that are tried for an answer whose seed is not known.
const SEEDS: u64 = 64;

/// The number of things that were replayed, by what was known of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Replayed {
    /// Attempts that were run.
    pub(super) run: u64,
    /// Attempts that are known by what they left alone.
    pub(super) left: u64,
    /// Answers without an attempt in any log.
    pub(super) tried: u64,
    /// Answers of which nothing can be said: their seed decides, or they have no stamp and are in no log.
    pub(super) unjudged: u64,
}

/// The replay of a run, and what came of it.
#[derive(Debug, Default)]
pub(super) struct Replays {
    counts: Rc<RefCell<Replayed>>,
    are_alone: bool,
}

impl Replays {
    /// Replays a run.
    ///
    /// # Errors
    /// As [`check`].
    pub(super) fn check(
        &self,
        registry: &Arc<Registry>,
        history: &History,
        (logs, stamps): (&Logs, Stamps),
    ) -> Result<(), Violation> {
        *self.counts.borrow_mut() = check(registry, history, (logs, stamps))?;
        Ok(())
    }

    /// True if the run is held to nothing else.
    pub(super) const fn are_alone(&self) -> bool {
        self.are_alone
    }

    /// Where the numbers of what was replayed will stand. The run is held to nothing else from now on.
    #[cfg(test)]
    pub(super) fn alone(&mut self) -> Rc<RefCell<Replayed>> {
        self.are_alone = true;
        self.counts.clone()
    }
}

/// An attempt that the logs have committed.
struct Attempt<'a> {
    who: AttemptId,
    commit: &'a Commit,
    /// The time that it has seen.
    now: Millis,
    parts: Vec<Part<'a>>,
}

/// The effects of an attempt at a partition.
struct Part<'a> {
    changes: &'a [TableChange],
    writes: &'a [Write],
    /// The place of its installation: the version of what it writes.
    place: Gsn,
}

/// A request with the answers that it was given at one stamp.
struct Asked<'a> {
    request: (RequestId, &'a Request),
    answers: Vec<&'a Answer>,
}

/// Attempts and requests of one stamp.
#[derive(Default)]
struct AtStamp<'a> {
    attempts: Vec<&'a Attempt<'a>>,
    asked: Vec<Asked<'a>>,
}

/// Replays a run.
///
/// # Errors
/// [`ViolationKind::WrongAnswer`], [`ViolationKind::WrongState`], [`ViolationKind::WrongPlace`] and
/// [`ViolationKind::AcknowledgedLost`].
pub(super) fn check(
    registry: &Arc<Registry>,
    history: &History,
    (logs, stamps): (&Logs, Stamps),
) -> Result<Replayed, Violation> {
    let attempts = attempts(logs)?;
    let mut all: BTreeMap<Age, AtStamp<'_>> = BTreeMap::new();
    let mut sessions: BTreeMap<(SessionId, RequestNo), Vec<RequestId>> = BTreeMap::new();
    let mut again: Vec<(RequestId, &Request, &Answer)> = Vec::new();
    for (id, request) in history.requests().filter(|(_, request)| is_known(registry, request)) {
        request.call.session.iter().for_each(|session| sessions.entry(*session).or_default().push(id));
        for answer in &request.answers {
            if answer.stamp == Stamp::NONE {
                again.push((id, request, answer));
                continue;
            }
            let there = &mut all.entry(Age(answer.stamp.number())).or_default().asked;
            match there.iter_mut().find(|asked| asked.request.0 == id) {
                Some(asked) => asked.answers.push(answer),
                None => there.push(Asked { request: (id, request), answers: vec![answer] }),
            }
        }
    }
    let mut replay = Replay {
        registry,
        stamps,
        reference: ReferenceExecutor::new(registry.clone()),
        counts: Replayed::default(),
    };
    replay.answered_again(&again, &attempts)?;
    attempts.iter().for_each(|attempt| all.entry(attempt.commit.age).or_default().attempts.push(attempt));
    for (stamp, there) in &mut all {
        replay.demand_unique(*stamp, there)?;
        let mut readers = Vec::new();
        for asked in std::mem::take(&mut there.asked) {
            let (id, request) = asked.request;
            let is_of = |attempt: &&Attempt<'_>| replay.is_of(attempt, &asked);
            match there.attempts.iter().position(is_of) {
                Some(at) => replay.run(there.attempts.remove(at), (id, request), &asked.answers)?,
                None => readers.push(asked),
            }
        }
        for attempt in &there.attempts {
            let of_session = attempt.session().and_then(|number| sessions.get(&number));
            match of_session.map(|requests| &requests[..]) {
                Some([sole]) => replay.run(attempt, (*sole, history.get(*sole)), &[])?,
                _ => replay.leave(attempt)?,
            }
        }
        for Asked { request, answers } in readers {
            answers.iter().try_for_each(|answer| replay.try_answer(*stamp, request, answer))?;
        }
    }
    let last = match stamps {
        Stamps::OfAttempt => all.keys().next_back().map_or(Millis(0), |stamp| stamp.time()),
        Stamps::OfTransaction | Stamps::AtCommit | Stamps::TwoOfAttempt => {
            attempts.iter().map(|attempt| attempt.now).max().unwrap_or_default()
        }
    };
    replay.compare_end(logs, last)?;
    Ok(replay.counts)
}

/// True if a request is a call whose transaction its procedure and arguments make: no reconnaissance has to find its keys.
fn is_known(registry: &Registry, request: &Request) -> bool {
    let procedure = request.call.procedure;
    procedure != system::CHECKPOINT && registry.get(procedure).is_some_and(|p| !p.is_dependent())
}

/// The attempts that the logs have committed, each with what it has left at all partitions. Those of several regions are not among them.
fn attempts(logs: &Logs) -> Result<Vec<Attempt<'_>>, Violation> {
    let wrong = |text: String| Err(Violation::new(ViolationKind::WrongState, text));
    let mut attempts: Vec<Attempt<'_>> = Vec::new();
    let mut promises: BTreeMap<(AttemptId, PartitionId), (&Prepare, Option<Epoch>)> = BTreeMap::new();
    for (partition, entries) in logs {
        let mut terms = Terms::default();
        for entry in entries.values().filter(|entry| terms.take(entry)) {
            match &entry.content {
                Content::Commit(commit) => {
                    let (changes, writes, place) =
                        (&commit.changes[..], &commit.writes[..], Gsn(entry.place.0));
                    let part = Part { changes, writes, place };
                    let (who, now) = (commit.attempt, entry.now);
                    attempts.push(Attempt { who, commit, now, parts: vec![part] });
                }
                Content::Prepare(prepare) => {
                    promises.insert((prepare.attempt, *partition), (prepare, None));
                }
                Content::Outcome(who, Some(_)) => {
                    if let Some((_, place)) = promises.get_mut(&(*who, *partition)) {
                        *place = Some(entry.place);
                    }
                }
                _ => {}
            }
        }
    }
    for attempt in &mut attempts {
        for partition in &attempt.commit.participants {
            let Some((prepare, place)) = promises.get(&(attempt.who, *partition)) else {
                let text =
                    format!("{} has committed without a promise of partition {}", attempt.who, partition.0);
                return wrong(text);
            };
            let (changes, writes) = (&prepare.changes[..], &prepare.writes[..]);
            // Nobody has seen the version of what is not installed.
            let place = place.map_or(Gsn::NONE, |place| Gsn(place.0));
            attempt.parts.push(Part { changes, writes, place });
        }
    }
    Ok(attempts)
}

impl Attempt<'_> {
    /// The client's own request that was decided.
    fn session(&self) -> Option<(SessionId, RequestNo)> {
        self.commit.session.map(|(session, number)| (session, clients_number(number)))
    }

    fn changes(&self) -> &[TableChange] {
        self.parts.iter().map(|part| part.changes).find(|changes| !changes.is_empty()).unwrap_or_default()
    }

    /// The records that it has left; of one that is there twice the later counts.
    fn writes(&self) -> BTreeMap<(Db, &[u8]), (&Cell, Gsn)> {
        let all = self.parts.iter().flat_map(|part| part.writes.iter().map(move |write| (write, part.place)));
        all.map(|(write, place)| ((write.db, &write.key[..]), (&write.cell, place))).collect()
    }

    fn wrong(&self, kind: ViolationKind, text: &str) -> Violation {
        Violation::new(kind, format!("{text} [attempt {} with stamp {}]", self.who, self.commit.age.0))
    }
}

/// A state, and how much of the run it has seen.
struct Replay<'a> {
    registry: &'a Arc<Registry>,
    stamps: Stamps,
    reference: ReferenceExecutor,
    counts: Replayed,
}

impl Replay<'_> {
    /// Answers that a session was given again have no stamp: each is that of the attempt that the log has decided.
    fn answered_again(
        &mut self,
        again: &[(RequestId, &Request, &Answer)],
        attempts: &[Attempt<'_>],
    ) -> Result<(), Violation> {
        let of_sessions: BTreeMap<_, _> =
            attempts.iter().filter_map(|attempt| Some((attempt.session()?, attempt))).collect();
        for (id, request, answer) in again {
            let decided = request.call.session.and_then(|session| of_sessions.get(&session));
            match decided.filter(|_| answer.status == OutcomeStatus::Committed) {
                Some(attempt) if attempt.commit.reply == answer.reply => {}
                Some(attempt) => {
                    let text = self.differ(
                        request,
                        (answer.status, &answer.reply),
                        "the log",
                        (answer.status, &attempt.commit.reply),
                    );
                    return Err(attempt.wrong(ViolationKind::WrongAnswer, &text).of(*id));
                }
                None => self.counts.unjudged += 1,
            }
        }
        Ok(())
    }

    /// Demands that a stamp of attempts is that of one attempt or request.
    fn demand_unique(&self, stamp: Age, there: &AtStamp<'_>) -> Result<(), Violation> {
        // An interactive transaction that has only read may have the stamp of an attempt that it has read from.
        if matches!(self.stamps, Stamps::AtCommit | Stamps::TwoOfAttempt) {
            return Ok(());
        }
        if let [one, two, ..] = &there.attempts[..] {
            let text = format!("{} and {} have committed with stamp {}", one.who, two.who, stamp.0);
            return Err(Violation::new(ViolationKind::WrongState, text));
        }
        if let [one, two, ..] = &there.asked[..] {
            let text = format!("two requests were answered with stamp {}", stamp.0);
            return Err(Violation::new(ViolationKind::WrongPlace, text).of(one.request.0).of(two.request.0));
        }
        Ok(())
    }

    /// True if an attempt may be that of a request which was answered with its stamp. Of several with one stamp it has the same session and reply,
    /// and has written nothing but what the request may write.
    fn is_of(&self, attempt: &Attempt<'_>, asked: &Asked<'_>) -> bool {
        if self.stamps == Stamps::OfAttempt {
            return true;
        }
        let (_, request) = asked.request;
        // The log keeps the replies to requests of sessions alone.
        let is_answer = |answer: &&Answer| {
            let is_logged = attempt.commit.session.is_none() || answer.reply == attempt.commit.reply;
            answer.status == OutcomeStatus::Committed && is_logged
        };
        let may_write = || match planned(self.registry, request) {
            Some(chunk) if !chunk.txns()[0].table => {
                let fragments = chunk.fragments(&chunk.txns()[0]).iter();
                let written = fragments.filter(|fragment| fragment.access == Access::Write);
                let args = chunk.args(&chunk.txns()[0]);
                let may: BTreeSet<_> =
                    written.map(|fragment| (fragment.db, key_of(args, fragment).bytes)).collect();
                attempt.writes().keys().all(|name| may.contains(name))
            }
            _ => true,
        };
        attempt.session() == request.call.session && asked.answers.iter().all(is_answer) && may_write()
    }

    /// The times of an answer without an attempt in any log: that of its stamp, or those before and after which something expires.
    fn times(&self, stamp: Age) -> Vec<Millis> {
        if self.stamps == Stamps::OfAttempt {
            return vec![stamp.time()];
        }
        let expires = self.reference.records().map(|(_, _, cell)| cell.expires_at);
        let around = expires.filter(|expiry| !expiry.is_never()).map(|expiry| expiry.time());
        let around = around.flat_map(|time| [time, Millis(time.0 + 1)]);
        let times: BTreeSet<Millis> = around.chain([Millis(0)]).collect();
        times.into_iter().collect()
    }

    /// Runs an attempt of the logs, and compares what it answers and leaves.
    fn run(
        &mut self,
        attempt: &Attempt<'_>,
        (id, request): (RequestId, &Request),
        answers: &[&Answer],
    ) -> Result<(), Violation> {
        if !answers.is_empty() && attempt.session() != request.call.session {
            let text = "a request was acknowledged where the log holds one of another session";
            return Err(attempt.wrong(ViolationKind::WrongPlace, text).of(id));
        }
        let Some(chunk) = planned(self.registry, request) else {
            self.counts.unjudged += answers.len() as u64;
            return self.leave(attempt);
        };
        let (txn, now, commit) = (&chunk.txns()[0], attempt.now, attempt.commit);
        let whole = (txn.table && !txn.read_only).then(|| self.whole());
        let before = self.written(&chunk, txn, now);
        let gsn = attempt.parts[0].place;
        let under = Circumstances { gsn, now, seed: attempt.who.seed() };
        let expected = self.reference.run_under(under, &chunk, txn);
        self.counts.run += 1;
        let logged = commit.session.map(|_| (OutcomeStatus::Committed, &commit.reply));
        for (status, reply) in answers.iter().map(|answer| (answer.status, &answer.reply)).chain(logged) {
            if !is_as(&expected, status, reply) {
                let text = self.differ(request, (status, reply), REPLAY, (expected.status, &expected.reply));
                return Err(attempt.wrong(ViolationKind::WrongAnswer, &text).of(id));
            }
        }
        self.compare_writes(attempt, (whole, before)).map_err(|violation| violation.of(id))?;
        for ((db, key), (cell, version)) in attempt.writes() {
            self.reference.leave(db, key, cell.clone(), version);
        }
        Ok(())
    }

    /// Compares what an attempt has left, by the logs, with what its run has. A record that has expired is as absent as any.
    fn compare_writes(
        &self,
        attempt: &Attempt<'_>,
        (whole, before): (Option<Records>, Records),
    ) -> Result<(), Violation> {
        let (now, writes) = (attempt.now, attempt.writes());
        if let Some(mut after) = whole {
            install((attempt.changes(), &[]), &mut after);
            let left = writes.iter().map(|((db, key), (cell, _))| ((*db, key.to_vec()), (*cell).clone()));
            after.extend(left);
            return self
                .compare_all(&after, now)
                .map_err(|text| attempt.wrong(ViolationKind::WrongState, &text));
        }
        let logged = writes.iter().map(|((db, key), (cell, _))| ((*db, *key), *cell));
        let kept = before.iter().map(|((db, key), cell)| ((*db, &key[..]), cell));
        let kept = kept.filter(|(name, _)| !writes.contains_key(name));
        for ((db, key), cell) in logged.chain(kept) {
            let (left, found) = (alive(cell, now), self.reference.record(db, key, now));
            if left != found {
                let text = unequal((db, key), left, found);
                return Err(attempt.wrong(ViolationKind::WrongState, &text));
            }
        }
        Ok(())
    }

    /// An attempt whose request is not known has left what the logs say. The database itself removes what has expired and nothing else.
    fn leave(&mut self, attempt: &Attempt<'_>) -> Result<(), Violation> {
        self.counts.left += 1;
        let (now, writes, gsn) = (attempt.now, attempt.writes(), attempt.parts[0].place);
        let is_removal = attempt.commit.session.is_none()
            && attempt.changes().is_empty()
            && writes.values().all(|(cell, _)| cell.value.is_none());
        for change in attempt.changes() {
            let mut table = self.reference.table(gsn);
            match *change {
                TableChange::Clear(db) => table.clear(db),
                TableChange::Swap(a, b) => table.swap(a, b),
            }
        }
        for ((db, key), (cell, version)) in writes {
            if is_removal && self.reference.record(db, key, now).value.is_some() {
                let text = format!("{} was removed before its time", shown(db, key));
                return Err(attempt.wrong(ViolationKind::WrongState, &text));
            }
            self.reference.leave(db, key, cell.clone(), version);
        }
        Ok(())
    }

    /// Tries a transaction that was answered and is in no log: it has changed nothing.
    fn try_answer(
        &mut self,
        stamp: Age,
        (id, request): (RequestId, &Request),
        answer: &Answer,
    ) -> Result<(), Violation> {
        let Some(chunk) = planned(self.registry, request) else {
            self.counts.unjudged += 1;
            return Ok(());
        };
        self.counts.tried += 1;
        let txn = &chunk.txns()[0];
        let wrong = |kind, text: String| Violation::new(kind, format!("{text} [stamp {}]", stamp.0)).of(id);
        let is_commit = answer.status == OutcomeStatus::Committed;
        let times = self.times(stamp);
        let under = |now, seed| Circumstances { gsn: Gsn::NONE, now, seed };
        let (expected, has_changed) = self.reference.try_under(under(times[0], 0), &chunk, txn);
        // A session's update is logged, even if it changes nothing.
        if is_commit && !txn.read_only && (has_changed || request.call.session.is_some()) {
            let text = format!("{} was acknowledged and is in no log", self.name(request));
            return Err(wrong(ViolationKind::AcknowledgedLost, text));
        }
        let fits = |expected: &Expected| is_as(expected, answer.status, &answer.reply);
        if fits(&expected) {
            return Ok(());
        }
        let seeds = (1..SEEDS).map(|seed| (times[0], seed));
        let circumstances = seeds.chain(times[1..].iter().map(|time| (*time, 0)));
        let drawn: Vec<Expected> = circumstances
            .map(|(time, seed)| self.reference.try_under(under(time, seed), &chunk, txn).0)
            .collect();
        if drawn.iter().any(fits) {
            return Ok(());
        }
        if drawn.iter().any(|other| *other != expected) {
            self.counts.unjudged += 1;
            return Ok(());
        }
        let text =
            self.differ(request, (answer.status, &answer.reply), REPLAY, (expected.status, &expected.reply));
        Err(wrong(ViolationKind::WrongAnswer, text))
    }

    /// Compares the records at the end with those that the logs come to, partition by partition.
    fn compare_end(&self, logs: &Logs, last: Millis) -> Result<(), Violation> {
        let committed = committed(logs);
        let all = logs.values().flat_map(|entries| records(entries, &committed, self.stamps));
        let text = |text| format!("at the end {text}");
        let violation = |found| Violation::new(ViolationKind::WrongState, text(found));
        self.compare_all(&all.collect(), last).map_err(violation)
    }

    fn compare_all(&self, left: &Records, now: Millis) -> Result<(), String> {
        let here = self.whole();
        let names: BTreeSet<_> = left.keys().chain(here.keys()).collect();
        for name in names {
            let of =
                |records: &Records| records.get(name).map_or(Cell::ABSENT, |cell| alive(cell, now).clone());
            let (left, found) = (of(left), of(&here));
            if left != found {
                return Err(unequal((name.0, &name.1), &left, &found));
            }
        }
        Ok(())
    }

    fn whole(&self) -> Records {
        self.reference.records().map(|(db, key, cell)| ((db, key.to_vec()), cell.clone())).collect()
    }

    /// The records that a transaction may write, as they are.
    fn written(&self, chunk: &Chunk, txn: &Txn, now: Millis) -> Records {
        let written = chunk.fragments(txn).iter().filter(|fragment| fragment.access == Access::Write);
        let name = |fragment| key_of(chunk.args(txn), fragment).bytes.to_vec();
        let here = |(db, key): (Db, Vec<u8>)| {
            let cell = self.reference.record(db, &key, now).clone();
            ((db, key), cell)
        };
        written.map(|fragment| here((fragment.db, name(fragment)))).collect()
    }

    fn name(&self, request: &Request) -> &str {
        self.registry.name(request.call.procedure).unwrap_or("a call")
    }

    fn differ(
        &self,
        request: &Request,
        (status, reply): (OutcomeStatus, &[u8]),
        whose: &str,
        (other, expected): (OutcomeStatus, &[u8]),
    ) -> String {
        let (name, reply, expected) = (self.name(request), reply.escape_ascii(), expected.escape_ascii());
        format!("{name} was answered {status:?} {reply}, {whose} answers {other:?} {expected}")
    }
}

const REPLAY: &str = "a replay in the order of stamps";

/// A request as a transaction; none if it cannot be planned.
fn planned(registry: &Registry, request: &Request) -> Option<Chunk> {
    let mut chunk = Chunk::new(GatewayId(0), ChunkNo(0));
    let args = Args::parse(&request.args)?;
    let write = |out: &mut ArgsBuilder<'_>| args.iter().for_each(|arg| _ = out.push(arg.bytes));
    chunk.push(registry, request.call, write).is_ok().then_some(chunk)
}

/// True if an answer is the expected one. The gateway answers a client that may retry in words of its own.
fn is_as(expected: &Expected, status: OutcomeStatus, reply: &[u8]) -> bool {
    let in_words = status == OutcomeStatus::Aborted(Abort::Restart);
    expected.status == status && (in_words || expected.reply == reply)
}

fn alive(cell: &Cell, now: Millis) -> &Cell {
    if cell.is_live(now) { cell } else { &Cell::ABSENT }
}

fn shown(db: Db, key: &[u8]) -> String {
    format!("{} of database {}", key.escape_ascii(), db.0)
}

fn unequal((db, key): (Db, &[u8]), left: &Cell, found: &Cell) -> String {
    format!("{} was left as {left:?}, {REPLAY} leaves {found:?}", shown(db, key))
}
