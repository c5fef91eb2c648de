//! The coordinator: runs transactions whose home is this node's partition, and decides them.
//!
//! ```text
//!  Executing ──all fragments have run──▶ Voting ──all yes──▶ Deciding ──in the log──▶ answered
//!     │  ▲                        │        │                    ▲
//!     │  │                        │        └─ a no ─┐           │
//!     │  └────────── Waiting ◀────┼─────────────────┘           │
//!     │ refused          ▲        ├─ one partition ─────────────┘
//!     └──────────────────┘        └─ nothing is written ─▶ Confirming ─▶ answered
//! ```
//!
//! Where attempts are validated when they are to commit, each partition answers with the stamps that the attempt may have, and this node's
//! participants are asked last, within those of the others: between Voting and Deciding stands Validating.
//!
//! A transaction that is interactive waits for its client between its steps, with its locks ([`open`]).
//!
//! A coordinator is of one term: with it go all attempts that it has not proposed to commit. What it has proposed, the log
//! decides, whoever leads then.

mod agenda;
mod agreeing;
mod answers;
mod attempt;
mod counter;
mod counts;
mod live;
mod open;
mod outcomes;
mod overlaying;
mod parts;
mod reasons;
mod reserving;
mod resolving;
mod rounds;
mod stamping;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_model::system::{REMOVE, read_args};
use ordain_model::{
    Abort, Call, Chunk, ChunkNo, Db, Epoch, GatewayId, Micros, Millis, OutcomeStatus, PartitionId, RequestNo,
    SessionId, Txn, system,
};
use ordain_role::Bug;

use crate::agreed::Decided;
use crate::announcing::{Announcing, Reading};
use crate::concurrency::{Reads, Snapshots};
use crate::desk::{Desk, Site};
use crate::entry::{Announced, Commit, Commitment, Content};
use crate::ids::{Age, AttemptId, Bounds, Lead};
use crate::message::{Accessed, ConfirmRequest, Failure, Own, PrepareRequest, Protocol, Returned};
use crate::options::pause;
use crate::stamps::Stamps;
use crate::view::{Anti, View};
use crate::voting::Voting;
use agenda::Agenda;
use answers::Answers;
use attempt::Executing;
use counter::COUNTER;
use counts::Counts;
use live::{Live, Ready, State};
use open::{Open, Opens};
pub use outcomes::Unacknowledged;
use overlaying::Named;
use parts::{Does, Elsewhere};
use reserving::Reserving;
use stamping::Stamping;

/// Transactions under way at most: a further one is answered BUSY and has no effect.
const LIVE_MAX: usize = 1 << 18;
/// Attempts at a transaction are made for so long. Then its client is answered BUSY.
const GIVE_UP_AFTER: Micros = Micros::from_millis(5_000);
/// An attempt that has not ended by itself is given up after so long: something that it waits for does not come.
const ATTEMPT_MAX: Micros = Micros::from_millis(2_000);
/// The pace of forgetting: outcomes that nobody will ask for go together.
const FORGET_EVERY: Micros = Micros::from_millis(100);

/// The place of what has taken effect nowhere, and follows from nothing.
const NOWHERE: (Epoch, Epoch) = (Epoch(0), Epoch(0));

/// A request that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    gateway: GatewayId,
    chunk: ChunkNo,
    index: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Coordinator {
    /// Boxed, as a tree moves its values.
    live: BTreeMap<u64, Box<Live>>,
    /// The session's request that a live transaction is.
    requests: BTreeMap<(SessionId, RequestNo), u64>,
    agenda: Agenda,
    opens: Opens,
    stamping: Stamping,
    last: u64,
    /// The last removal of expired records of each shard.
    removals: BTreeMap<usize, u64>,
    /// Commits whose participants have not all said that they know.
    unacknowledged: Unacknowledged,
    announcing: Announcing,
    /// Transactions under way that only read, where others' writes name them.
    readers: Reading,
    /// Denials that are on their way into the log or not acknowledged, with who has asked.
    denied: BTreeMap<AttemptId, BTreeSet<PartitionId>>,
    /// Denials that are on their way into the log: none of the same attempt may follow them.
    denying: BTreeSet<AttemptId>,
    /// Outcomes that nobody will ask for any more.
    forgettable: Vec<AttemptId>,
    forgets_at: Option<Micros>,
    answers: Answers,
    /// The votes on transactions of several regions.
    voting: Voting,
    /// Attempts that turn out to be of several regions: true if they do, false once they are over.
    regional: Vec<(AttemptId, bool)>,
    /// Records that are kept for transactions of several regions.
    reserving: Reserving,
    /// Requests of sessions that wait for the outcome of an earlier attempt.
    doubting: BTreeMap<AttemptId, Vec<(Lead, Arc<Chunk>, usize)>>,
    /// Requests for parts that wait for the outcomes of transactions which they name.
    named: Named,
    /// The latest time that a participant has asked for: attempts see no earlier one.
    latest: Millis,
    /// Clients that ask for a checkpoint.
    savers: Vec<Asker>,
    /// Planted: a decision that comes after the next one.
    put_off: Option<(Millis, Content)>,
    /// Figures.
    pub counts: Counts,
}

impl Coordinator {
    /// The coordinator of a node that leads nothing yet.
    pub fn new(site: &Site) -> Coordinator {
        let answers = Answers::new(site.is_early, site.bugs);
        Coordinator { stamping: Stamping::new(site), answers, ..Coordinator::default() }
    }

    /// The latest time that an attempt has been asked to see.
    pub const fn latest(&self) -> Millis {
        self.latest
    }

    // ---- taking transactions -------------------------------------------------------------------------------

    /// Takes transactions of a chunk, by their places in its list.
    pub fn take(&mut self, chunk: &Arc<Chunk>, places: impl IntoIterator<Item = usize>, desk: &mut Desk<'_>) {
        for at in places {
            self.take_transaction(chunk, at, desk);
        }
    }

    fn take_transaction(&mut self, chunk: &Arc<Chunk>, at: usize, desk: &mut Desk<'_>) {
        let txn = &chunk.txns()[at];
        let asker = Asker { gateway: chunk.gateway, chunk: chunk.number, index: txn.index };
        if txn.call.procedure == system::CHECKPOINT {
            return self.savers.push(asker);
        }
        if let Some(abort) = desk.site.refuses(txn) {
            return self.answer_lost(asker, abort, None);
        }
        if session_of(txn).is_some_and(|request| self.answered_before(request, asker, desk)) {
            return;
        }
        if self.waits_for_doubt(chunk, at, desk) {
            return;
        }
        if let Some(number) = self.add(chunk, at, asker, None, desk) {
            self.begin_attempt(number, desk);
        }
    }

    /// Answers a request of a session that has taken effect before, or has it join the attempt that is under way; answers
    /// whether it was one.
    fn answered_before(
        &mut self,
        (session, request): (SessionId, RequestNo),
        asker: Asker,
        desk: &Desk<'_>,
    ) -> bool {
        // Planted, ONCE.
        if desk.site.bugs.has(Bug::ForgetSession) {
            return false;
        }
        if let Some(last) = desk.agreed.session(session).filter(|last| last.request >= request) {
            let is_it = last.request == request;
            let status = if is_it { last.status } else { OutcomeStatus::Superseded };
            let reply = if is_it { last.reply } else { &[] };
            let follows = Epoch(last.gsn.0);
            let place = self.stamping.place(follows, None);
            self.answer(asker, status, (place, follows), |out| out.extend_from_slice(reply));
            return true;
        }
        // A retry joins the attempt that is under way.
        let number = self.requests.get(&(session, request)).copied();
        number.is_some_and(|number| self.join(number, asker, desk.elapsed()))
    }

    /// Adds a transaction; answers its number, unless there are too many.
    fn add(
        &mut self,
        chunk: &Arc<Chunk>,
        at: usize,
        asker: Asker,
        open: Option<Open>,
        desk: &Desk<'_>,
    ) -> Option<u64> {
        if self.live.len() >= LIVE_MAX {
            self.answer(asker, OutcomeStatus::Busy, NOWHERE, |_| {});
            return None;
        }
        self.last += 1;
        let number = self.last;
        let since = desk.elapsed();
        // Nobody waits for what the database itself does.
        let askers = if chunk.gateway == GatewayId::HOUSE { Vec::new() } else { vec![asker] };
        let live = Live {
            home: desk.lead.unwrap_or_default(),
            askers,
            chunk: chunk.clone(),
            at,
            attempt: 0,
            age: match desk.site.stamps {
                Stamps::OfTransaction => Age(desk.now.wall.0),
                // Its first attempt has one.
                Stamps::OfAttempt | Stamps::TwoOfAttempt | Stamps::AtCommit => Age(0),
            },
            reads: Reads::Newest,
            view: View::NONE,
            since,
            state: State::Waiting,
            open: open.map(Box::new),
            part: None,
            is_regional: false,
            no: None,
            losses: 0,
            reserved: None,
        };
        if let Some(request) = live.request() {
            self.requests.insert(request, number);
        }
        self.live.insert(number, Box::new(live));
        Some(number)
    }

    /// Removes records of this partition whose time has come, unless somebody holds one or is about to remove some of
    /// the same shard. Nobody waits for it.
    pub fn remove_expired(&mut self, names: &[(Db, Vec<u8>)], desk: &mut Desk<'_>) {
        let Some((db, key)) = names.first().filter(|_| !desk.appender.is_full()) else { return };
        let shard = desk.site.layout.shard_of_key(*db, key);
        if self.removals.get(&shard).is_some_and(|number| self.live.contains_key(number)) {
            return;
        }
        let mut chunk = Chunk::new(GatewayId::HOUSE, ChunkNo(0));
        let call = Call::new(REMOVE, Db(0));
        let names = names.iter().map(|(db, key)| (*db, key.as_slice()));
        if chunk.push(&desk.site.registry, call, |args| read_args(names, args)).is_ok() {
            self.removals.insert(shard, self.last + 1);
            self.take_transaction(&Arc::new(chunk), 0, desk);
        }
    }

    // ---- executing -----------------------------------------------------------------------------------------

    fn begin_attempt(&mut self, number: u64, desk: &mut Desk<'_>) {
        self.reserve_if_starved(number, desk);
        if self.waits_for_reserved(number, desk) {
            return;
        }
        let now = desk.clock.max(self.latest);
        match desk.site.stamps {
            Stamps::OfTransaction => self.run_attempt(number, now, desk),
            Stamps::AtCommit => {
                let first = self.first_stamp(desk);
                // The last attempt may have heard that participants have no earlier ones.
                self.live.get_mut(&number).into_iter().for_each(|live| live.age = live.age.max(first));
                self.run_attempt(number, now, desk);
            }
            Stamps::OfAttempt | Stamps::TwoOfAttempt => {
                let resolved = self.resolved(number, desk);
                match resolved.or_else(|| self.stamping.stamp(number, now, desk)) {
                    Some(stamp) => self.begin_stamped(number, stamp, desk),
                    None => self.wait_for_stamp(number, desk),
                }
            }
        }
    }

    /// Begins an attempt that sees this time.
    fn run_attempt(&mut self, number: u64, now: Millis, desk: &mut Desk<'_>) {
        let Some(live) = self.live.get_mut(&number) else { return };
        if std::mem::take(&mut live.is_regional) {
            self.regional.push((live.who(number), false));
        }
        live.attempt += 1;
        live.no = None;
        (live.reads, live.view) = first_view(live, desk);
        self.stamping.doubts.end(number);
        if desk.site.snapshots == Snapshots::AtFirstRead && live.reads == Reads::Newest {
            self.readers.begin(number);
        }
        self.counts.attempts += 1;
        let seed = live.who(number).seed();
        let txn = &live.chunk.txns()[live.at];
        let executing = Executing::new(&live.chunk, txn, desk.site, now, seed);
        live.state = State::Executing(match &live.open {
            Some(open) => executing.at_step(open.step().number),
            None => executing,
        });
        self.note_regions(number, desk);
        self.go_on(number, desk);
    }

    /// Sends every fragment that can be run now; goes on to the end if there is none left.
    fn go_on(&mut self, number: u64, desk: &mut Desk<'_>) {
        let Some(live) = self.live.get_mut(&number) else { return };
        let (who, snapshot) = (live.who(number), live.snapshot());
        let State::Executing(executing) = &mut live.state else { return };
        if !executing.send(who, live.age, (&live.chunk, live.at), &snapshot, desk) {
            return self.retry_later(number, Abort::TermChanged, desk);
        }
        self.agenda.set(number, desk.elapsed().plus(ATTEMPT_MAX));
        if executing.is_done() {
            self.finish_executing(number, desk);
        }
    }

    /// Takes what a participant has answered.
    pub fn accessed(&mut self, from: Lead, accessed: Accessed, desk: &mut Desk<'_>) {
        self.stamping.hear(accessed.latest);
        let (who, failure) = (accessed.attempt, accessed.failure);
        let number = who.transaction.number;
        // Planted, OF-ITS-ATTEMPT.
        let takes_all = desk.site.bugs.has(Bug::TakeStale);
        let is_its = |live: &&mut Box<Live>| takes_all || live.attempt == who.attempt;
        let Some(live) = self.live.get_mut(&number).filter(is_its) else {
            return;
        };
        let State::Executing(executing) = &mut live.state else { return };
        let fragments = live.chunk.fragments(&live.chunk.txns()[live.at]);
        let first = accessed.from;
        let (reads, view) = (accessed.reads, accessed.view.clone());
        if !executing.take(from, accessed, fragments, desk) {
            return;
        }
        live.age = live.age.max(first);
        live.view.join(&view);
        if live.reads == Reads::First {
            live.reads = reads;
        }
        match failure {
            // A no ends the wait at once.
            Some(Failure::Refused) => self.retry_later(number, desk.site.refusal, desk),
            // A clock alone is not moved on: it has to pass that time.
            Some(Failure::TooOld(_)) if self.stamping.is_clock() => {
                self.retry_later(number, Abort::TimeTooOld, desk);
            }
            Some(Failure::TooOld(time)) => {
                self.counts.failed.count(Abort::TimeTooOld);
                self.latest = self.latest.max(time);
                if live.is_shown() {
                    return self.lose(number, Abort::TimeTooOld, desk);
                }
                self.abort_attempt(number, desk);
                self.begin_attempt(number, desk);
            }
            Some(Failure::Aborted(..)) | None => self.go_on(number, desk),
        }
    }

    /// A participant says that a fragment takes long to compute: its answer will come.
    pub fn computing(&mut self, from: Lead, who: AttemptId) {
        let number = who.transaction.number;
        let live = self.live.get(&number).filter(|live| live.attempt == who.attempt);
        if let Some(Live { state: State::Executing(executing), .. }) = live.map(|live| &**live)
            && executing.touches(from.partition)
        {
            self.agenda.cancel(number);
        }
    }

    /// Every fragment has run, or all before one that aborts the transaction.
    fn finish_executing(&mut self, number: u64, desk: &mut Desk<'_>) {
        let Some(live) = self.live.get_mut(&number) else { return };
        if live.open.as_ref().is_some_and(|open| !open.step().is_commit) {
            return self.step_done(number, desk);
        }
        let (who, session, snapshot) = (live.who(number), live.request(), live.snapshot());
        let does = live.part.as_ref().map(|part| part.does);
        let is_validated = live.is_validated(desk.site);
        let State::Executing(executing) = &mut live.state else { return };
        let txn = &live.chunk.txns()[live.at];
        let own = desk.site.partition;
        // Reads of views are promised and confirmed by the regions that these show.
        let (views, shards): (Vec<_>, Vec<_>) =
            executing.shards().into_iter().partition(|(_, lead)| desk.site.is_foreign(lead.partition));
        let partitions: BTreeSet<PartitionId> = shards.iter().map(|(_, lead)| lead.partition).collect();
        let mut failure = executing.failure();
        // Planted, ONE-VERDICT: a transaction that has aborted on one shard is installed on the others.
        if desk.site.bugs.has(Bug::IgnoreRemoteVote) && executing.has_written() {
            failure = None;
        }
        let end = executing.end(&desk.site.registry, &live.chunk, txn, failure);
        let bounds = match desk.site.stamps.are_chosen_late() {
            true => Bounds::from(live.age),
            false => Bounds::at(live.age),
        };
        let there = |partition| {
            let there = shards.iter().filter(move |(_, lead)| lead.partition == partition);
            there.map(|(shard, _)| *shard as u16).collect()
        };
        if let Some((_, reason)) = failure.filter(|_| does == Some(Does::Validate)) {
            return self.retry_later(number, reason, desk);
        }
        let has_effect = failure.is_none() && (executing.has_written() || session.is_some())
            || does == Some(Does::Validate);
        let elsewhere = executing.take_elsewhere(desk.site);
        // Views do nothing more for the attempt.
        for (shard, lead) in views {
            desk.tell_participant(shard, lead.term, Protocol::Finish(who, None));
        }
        let elsewhere = if has_effect || is_validated { elsewhere } else { BTreeMap::new() };
        if !has_effect && desk.site.stamps.are_two() && !desk.site.stamps.spare(live.reads) {
            let (now, commit) = (executing.now(), Commit::default());
            let (holds, checked) = (Vec::new(), elsewhere);
            let ready = Ready { now, bounds, commit, end: Some(end), holds, checked };
            live.state = State::Voting { awaited: BTreeSet::new(), shards, ready: Box::new(ready) };
            return self.validate(number, desk);
        }
        if !has_effect {
            live.state = State::Confirming { awaited: partitions, shards, bounds, end };
            return self.confirm_reads(number, elsewhere, desk);
        }
        let others: BTreeSet<PartitionId> =
            partitions.into_iter().filter(|partition| *partition != own).collect();
        let (changes, writes) = executing.take_writes(own);
        let commit = Commit {
            attempt: who,
            age: live.age,
            view: View::NONE,
            low: 0,
            ceiling: Millis(0),
            session,
            reply: end.reply,
            changes,
            writes,
            participants: others.iter().copied().collect(),
        };
        let (holds, checked) = (Vec::new(), BTreeMap::new());
        let ready = Box::new(Ready { now: executing.now(), bounds, commit, end: None, holds, checked });
        let prepares: Vec<(PartitionId, PrepareRequest)> = others
            .iter()
            .map(|partition| {
                let (shards, returned) = (there(*partition), executing.take_returned(*partition));
                let (snapshot, now) = (snapshot.clone(), ready.now);
                (*partition, PrepareRequest { attempt: who, bounds, shards, returned, now, snapshot })
            })
            .collect();
        let is_alone = others.is_empty();
        live.state = State::Voting { awaited: others, shards, ready };
        if !elsewhere.is_empty() && !self.ask_for_parts(number, elsewhere, desk) {
            return self.retry_later(number, Abort::Unavailable, desk);
        }
        for (partition, request) in prepares {
            desk.tell_manager(partition, Protocol::Prepare(request));
        }
        if is_alone {
            self.validate(number, desk);
        }
    }

    /// An attempt has no effect: asks the partitions where it has read, and the regions that views have shown, whether all of it may stand.
    fn confirm_reads(
        &mut self,
        number: u64,
        elsewhere: BTreeMap<PartitionId, Elsewhere>,
        desk: &mut Desk<'_>,
    ) {
        let Some(live) = self.live.get_mut(&number) else { return };
        let (attempt, snapshot) = (live.who(number), live.snapshot());
        // With other engines all that an attempt has read is as it was, or it needs no stamp.
        let validates = desk.site.validates && !desk.site.stamps.spare(live.reads);
        let State::Confirming { awaited, shards, bounds, .. } = &mut live.state else { return };
        // Others' writes name it for as long as its home says that it is under way: whether that leads nobody else knows.
        if desk.site.snapshots == Snapshots::AtFirstRead && !awaited.is_empty() {
            awaited.insert(desk.site.partition);
        }
        for partition in awaited.iter() {
            let there = shards.iter().filter(|(_, lead)| validates && lead.partition == *partition);
            let shards = there.map(|(shard, _)| *shard as u16).collect();
            let request = ConfirmRequest { attempt, bounds: *bounds, shards, snapshot: snapshot.clone() };
            desk.tell_manager(*partition, Protocol::Confirm(request));
        }
        awaited.extend(elsewhere.keys());
        let is_confirmed = awaited.is_empty();
        if !self.ask_for_checks(number, elsewhere, desk) {
            return self.retry_later(number, Abort::Unavailable, desk);
        }
        if is_confirmed {
            self.confirmed_by_all(number, desk);
        }
    }

    // ---- faults --------------------------------------------------------------------------------------------

    /// The node serves its partition from now on: who has promised something to its predecessors learns the outcome.
    ///
    /// Their denials may be forgotten: an attempt of an earlier term never commits, and who asks for it is denied anew.
    pub fn begin(&mut self, desk: &mut Desk<'_>) {
        if desk.site.regions.is_some() {
            self.voting.begin(desk);
            return self.take_verdicts(desk);
        }
        let denials = desk.agreed.all_decided().filter(|(_, decided)| decided.commit.is_none());
        self.forgettable.extend(denials.map(|(who, _)| who));
        if !self.forgettable.is_empty() {
            self.forgets_at.get_or_insert(desk.elapsed().plus(FORGET_EVERY));
        }
        let commits: Vec<(AttemptId, Commitment, BTreeSet<PartitionId>)> = desk
            .agreed
            .all_decided()
            .filter_map(|(who, Decided { commit, participants, .. })| {
                Some((who, commit.clone()?, participants.iter().copied().collect()))
            })
            .collect();
        // Whatever is told of one names those before it: all of them have to be known first.
        for (who, with, participants) in &commits {
            let number = with.view.seen().vector.of(who.home().partition);
            self.unacknowledged.add(*who, number, participants.clone());
        }
        for (who, with, participants) in commits {
            for partition in participants {
                self.tell_commit(partition, who, with.clone(), desk);
            }
        }
    }

    /// The node serves its partition no more: what it has not proposed goes back to who has passed it on. What it has proposed
    /// is decided by the log.
    pub fn stand(&mut self) -> Vec<Returned> {
        let mut returned: BTreeMap<(Lead, GatewayId, ChunkNo), Vec<u32>> = BTreeMap::new();
        let is_proposed = |live: &Live| matches!(live.state, State::Deciding { .. });
        let gone: Vec<u64> =
            self.live.iter().filter(|(_, live)| !is_proposed(live)).map(|(number, _)| *number).collect();
        for number in gone {
            let Some(live) = self.remove(number) else { continue };
            for Asker { gateway, chunk, index } in live.askers {
                returned.entry((live.home, gateway, chunk)).or_default().push(index);
            }
        }
        for (lead, chunk, at) in std::mem::take(&mut self.doubting).into_values().flatten() {
            let index = chunk.txns()[at].index;
            returned.entry((lead, chunk.gateway, chunk.number)).or_default().push(index);
        }
        self.voting.stand();
        self.named.clear();
        self.unacknowledged.clear();
        self.put_off = None;
        self.announcing.stand();
        self.denied.clear();
        self.denying.clear();
        self.opens.forget_ended();
        self.stamping.stand();
        self.reserving = Reserving::default();
        self.forgettable.clear();
        self.forgets_at = None;
        let together = |((asked, gateway, chunk), indexes)| Returned { asked, gateway, chunk, indexes };
        returned.into_iter().map(together).collect()
    }

    /// A proposed decision is lost with the term in which it was proposed: it has no effect.
    pub fn lost(&mut self, number: u64) -> Vec<Returned> {
        let Some(live) = self.remove(number) else { return Vec::new() };
        let asked = live.home;
        let returned =
            |Asker { gateway, chunk, index }| Returned { asked, gateway, chunk, indexes: vec![index] };
        live.askers.into_iter().map(returned).collect()
    }

    /// Messages to a partition or from it may be lost, or it is led in another term: attempts that touched it and are not
    /// proposed are given up, and what it has to know is said again.
    pub fn disturbed(&mut self, partition: PartitionId, desk: &mut Desk<'_>) {
        if partition == COUNTER {
            self.stamping.requests.again();
        }
        let touches = |live: &Live| match &live.state {
            State::Executing(executing) => executing.touches(partition),
            State::Confirming { shards, .. }
            | State::Voting { shards, .. }
            | State::Locking { shards, .. }
            | State::Validating { shards, .. } => shards.iter().any(|(_, lead)| lead.partition == partition),
            State::Open(_) => live.open.as_ref().is_some_and(|open| open.former.touches(partition)),
            State::Deciding { .. } | State::Waiting => false,
        };
        let asks = |live: &Live| live.needs_region(partition);
        let touched: Vec<u64> = self
            .live
            .iter()
            .filter(|(_, live)| touches(live) || asks(live))
            .map(|(number, _)| *number)
            .collect();
        for number in touched {
            self.retry_later(number, Abort::TermChanged, desk);
        }
        self.announcing.disturbed(partition);
        self.voting.disturbed(partition, desk);
        self.take_verdicts(desk);
        for who in self.unacknowledged.of(partition) {
            if let Some(with) = desk.agreed.decided(who).and_then(|decided| decided.commit.clone()) {
                self.tell_commit(partition, who, with, desk);
            }
        }
    }

    /// The attempts of this home that are under way: what else a participant has is over.
    pub fn still(&self) -> Vec<AttemptId> {
        let is_there = |live: &Live| !matches!(live.state, State::Waiting);
        let live = self.live.iter().filter(|(_, live)| is_there(live));
        live.map(|(number, live)| live.who(*number)).collect()
    }

    /// Lets everybody forget an attempt that has not been proposed.
    fn abort_attempt(&mut self, number: u64, desk: &mut Desk<'_>) {
        let Some(live) = self.live.get(&number) else { return };
        let who = live.who(number);
        let own = desk.site.partition;
        let (shards, asked): (Vec<(usize, Lead)>, BTreeSet<PartitionId>) = match &live.state {
            State::Executing(executing) => (executing.shards(), BTreeSet::new()),
            State::Confirming { shards, .. } => (shards.clone(), BTreeSet::new()),
            State::Voting { shards, .. }
            | State::Locking { shards, .. }
            | State::Validating { shards, .. }
            | State::Deciding { shards, .. } => {
                let asked = shards.iter().map(|(_, lead)| lead.partition).filter(|p| *p != own).collect();
                (shards.clone(), asked)
            }
            State::Open(_) => {
                let former = live.open.as_ref().map(|open| open.former.shards().collect());
                (former.unwrap_or_default(), BTreeSet::new())
            }
            State::Waiting => return,
        };
        let may_be_promised =
            live.part.is_some() && matches!(live.state, State::Validating { .. } | State::Deciding { .. });
        for (shard, lead) in shards.iter().filter(|(_, lead)| !asked.contains(&lead.partition)) {
            match may_be_promised {
                true => desk.out.send(desk.site.participant(desk.site.node, *shard), Own::Drop(who)),
                false => _ = desk.tell_participant(*shard, lead.term, Protocol::Finish(who, None)),
            }
        }
        for partition in asked {
            desk.tell_manager(partition, Protocol::Decide(who, None));
        }
    }

    /// Ends the attempt; the next begins after a pause, if there is time for it. An interactive transaction whose client has seen
    /// a part of it ends for this reason.
    fn retry_later(&mut self, number: u64, reason: Abort, desk: &mut Desk<'_>) {
        self.counts.failed.count(reason);
        if self.live.get(&number).is_some_and(|live| live.is_of_others()) {
            return self.end_part(number, reason, desk);
        }
        let is_reader =
            reason == desk.site.refusal && self.live.get(&number).is_some_and(|live| live.only_reads());
        self.counts.readers_refused += u64::from(is_reader);
        if self.live.get(&number).is_some_and(|live| live.is_shown()) {
            return self.lose(number, reason, desk);
        }
        // Planted, STRICT-2PL: the next attempt finds what this one holds.
        if !desk.site.bugs.has(Bug::KeepOldLocks) {
            self.abort_attempt(number, desk);
        }
        self.drop_part(number, reason, desk);
        let Some(live) = self.live.get_mut(&number) else { return };
        if live.askers.is_empty() || desk.elapsed().since(live.since) > GIVE_UP_AFTER {
            return self.give_up(number, reason, desk);
        }
        live.state = State::Waiting;
        let pause = pause(desk.site.backoff, live.who(number));
        self.agenda.set(number, desk.elapsed().plus(pause));
    }

    // ---- time ----------------------------------------------------------------------------------------------

    /// The time at which something is to be done by [`Coordinator::pass`], if any is.
    pub fn due(&self) -> Option<Micros> {
        [self.agenda.first(), self.forgets_at, self.announcing.due(), self.voting.due(), self.reserving.due()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Begins the attempts whose time has come, and gives up those that take too long.
    pub fn pass(&mut self, desk: &mut Desk<'_>) {
        while let Some(number) = self.agenda.pop(desk.elapsed()) {
            match self.live.get(&number).map(|live| &live.state) {
                Some(State::Waiting) => self.begin_attempt(number, desk),
                None => {}
                // Planted, BOUNDED.
                Some(_) if desk.site.bugs.has(Bug::WaitForEver) => {}
                Some(State::Deciding { .. }) => self.leave_in_doubt(number),
                Some(State::Open(None)) => self.lose(number, Abort::Idle, desk),
                Some(_) => self.retry_later(number, Abort::LockTimeout, desk),
            }
        }
        if self.forgets_at.is_some_and(|at| at <= desk.elapsed()) {
            self.forget(desk);
        }
        self.announcing.pass((&self.readers, self.last + 1), &self.unacknowledged, desk);
        self.reserving.expire(desk.elapsed());
        self.voting.pass(desk);
        self.take_verdicts(desk);
    }

    /// The word of this home's readers, for its own log.
    pub const fn take_own_word(&mut self) -> Option<Announced> {
        self.announcing.take_own()
    }

    /// Takes note of what was decided in this turn.
    pub fn note_decided(&mut self, desk: &Desk<'_>) {
        self.announcing.note((&self.readers, self.last + 1), desk);
    }

    /// The lowest number of a transaction under way that only reads, or of one to come.
    pub fn lowest_reader(&self) -> u64 {
        self.readers.lowest(self.last + 1)
    }

    /// True if an attempt only reads, is named by writes that it must not see, and is under way.
    pub fn is_reading(&self, who: AttemptId) -> bool {
        let number = who.transaction.number;
        let live = self.live.get(&number).filter(|_| self.readers.has(number));
        live.is_some_and(|live| live.who(number) == who)
    }

    // ---- answers -------------------------------------------------------------------------------------------

    fn remove(&mut self, number: u64) -> Option<Box<Live>> {
        let live = self.live.remove(&number)?;
        if live.is_regional {
            self.regional.push((live.who(number), false));
        }
        self.agenda.cancel(number);
        self.readers.end(number);
        self.stamping.end(number);
        self.stamping.doubts.end(number);
        if let Some(request) = live.request() {
            self.requests.remove(&request);
        }
        if let Some(open) = &live.open {
            self.opens.remove(open);
        }
        Some(live)
    }

    /// A transaction is over.
    ///
    /// It takes effect at the first of the places, and follows from the log up to the second one.
    fn end(
        &mut self,
        number: u64,
        status: OutcomeStatus,
        (place, follows): (Epoch, Epoch),
        reply: &[u8],
        desk: &mut Desk<'_>,
    ) {
        let Some(live) = self.remove(number) else { return };
        if live.reserved.is_some() {
            self.release_all(live.who(number).transaction, desk);
        }
        if let Some(part) = live.part.as_ref().filter(|part| part.does == Does::Check) {
            self.answer_check(part.of, status, desk);
        }
        match status {
            OutcomeStatus::Committed => self.counts.committed += 1,
            OutcomeStatus::Aborted(reason) => self.counts.aborted.count(reason),
            _ => {}
        }
        let place = self.stamping.place(place, Some(live.age));
        for asker in live.askers {
            self.answer(asker, status, (place, follows), |out| out.extend_from_slice(reply));
        }
    }

    /// The number of transactions under way.
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// The number of commits that wait for acknowledgements.
    pub fn unacknowledged(&self) -> usize {
        self.unacknowledged.len()
    }

    /// The number of announcements that are to come.
    pub fn untold(&self) -> usize {
        self.announcing.untold()
    }

    /// Checks what must hold between two events.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self) -> Result<(), String> {
        self.answers.check()?;
        for (request, number) in &self.requests {
            let Some(live) = self.live.get(number) else {
                return Err(format!("{request:?} is under way as transaction {number}, which is not"));
            };
            if live.request() != Some(*request) {
                return Err(format!("transaction {number} is not {request:?}"));
            }
        }
        for (number, live) in &self.live {
            let waits = match &live.state {
                State::Executing(executing) => executing.awaits(),
                State::Confirming { awaited, .. } | State::Voting { awaited, .. } => !awaited.is_empty(),
                State::Validating { awaited, .. } => !awaited.is_empty(),
                State::Deciding { .. } | State::Waiting => true,
                State::Locking { awaited, .. } => {
                    let is_locked = live.part.as_ref().is_some_and(|part| self.voting.has_locked(part.of));
                    awaited.is_empty() == is_locked
                }
                State::Open(settling) => settling.is_some() != live.askers.is_empty(),
            };
            if !waits {
                return Err(format!("transaction {number} waits for nobody and goes not on"));
            }
        }
        self.opens.check(&self.live)?;
        self.voting.check()?;
        for (of, part) in self.voting.running() {
            let live = self.live.get(&part.transaction.number);
            if live.and_then(|live| live.part.as_ref()).is_none_or(|its| its.of != of) {
                return Err(format!(
                    "others wait for the vote of this region on {of}, and its part {part} is not under way"
                ));
            }
        }
        self.reserving.check()?;
        self.stamping.requests.check()?;
        if let Some(number) = self.readers.iter().find(|number| !self.live.contains_key(number)) {
            return Err(format!("transaction {number} only reads and is not under way"));
        }
        self.unacknowledged.check()
    }
}

/// The versions that a transaction's next attempt reads, and what it has seen before it begins.
///
/// What an earlier attempt was told of is decided: the next one may well have it in its snapshot.
fn first_view(live: &Live, desk: &Desk<'_>) -> (Reads, View) {
    let txn = &live.chunk.txns()[live.at];
    let only_reads = live.only_reads();
    let reads = match desk.site.snapshots {
        Snapshots::Never => {
            let reads = desk.site.stamps.reads(only_reads, live.open.is_some());
            // The next attempt has the snapshot with which it waits for nobody, if there is one.
            let begins_anew = desk.site.resolves && live.attempt == 1 && live.reads_at_home(desk.site);
            let reads = if begins_anew && reads == Reads::Fixed { Reads::Resolved } else { reads };
            return (reads, View::NONE);
        }
        Snapshots::AtFirstRead if only_reads => Reads::Newest,
        Snapshots::AtFirstRead => Reads::First,
        Snapshots::AtBegin => {
            // What looks at nothing takes its snapshot when it commits (sheet fwkv.md, E18).
            let looks = live.chunk.fragments(txn).iter().any(attempt::reads_something);
            if looks || live.open.is_some() { Reads::Fixed } else { Reads::First }
        }
    };
    let mut seen = desk.known.seen().clone();
    if only_reads {
        seen.anti = Anti::default();
    }
    seen.vector.join(desk.agreed.heard());
    seen.vector.join(&live.view.seen().vector);
    seen.vector.join(desk.known.told());
    (reads, View::of(seen))
}

/// The session of a transaction that must take effect once.
fn session_of(txn: &Txn) -> Option<(SessionId, RequestNo)> {
    txn.call.session.filter(|_| !txn.read_only)
}
