//! Transactions of several regions (regions.md, 4.4 to 4.9): the initiator's side, and the parts that others ask for.
//!
//! ```text
//!  initiator:  Executing, on own records and views ─▶ Part to each other region ─▶ own part: Validating ─▶ Deciding
//!  validator:  Part ─▶ Executing, on the newest records ─▶ Validating ─▶ Deciding
//!  both:       Deciding: PREPARE in the log ─▶ a vote to all ─▶ all have voted: OUTCOME in the log ─▶ answered
//! ```
//!
//! With two rounds both come from Executing to Locking, and all go on to Validating once all have locked ([`rounds`]).
//!
//! [`rounds`]: super::rounds
//!
//! A part is a transaction of its region like any other, with the engine's concurrency control, up to its decision: there it is promised,
//! and [`Voting`] sees to the rest. What only reads is checked by each region that it has read, and nobody votes.
//!
//! [`Voting`]: crate::voting::Voting

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_execution::Write;
use ordain_model::children::split_child_key;
use ordain_model::system::{CHECK, PART, PartItem, part_args};
use ordain_model::{
    Abort, Call, Chunk, ChunkNo, Db, Doubt, Doubts, Epoch, Fragment, GatewayId, Micros, Millis,
    OutcomeStatus, PartitionId, Version,
};

use super::{Asker, Coordinator, GIVE_UP_AFTER, Live, NOWHERE, State};
use crate::agreed::Agreed;
use crate::desk::Desk;
use crate::entry::{Among, Content, Entry, Hold, Prepare};
use crate::ids::{AttemptId, Bounds, Lead};
use crate::message::{PartRequest, Protocol, Read, Returned};
use crate::stamps::Stamps;
use crate::view::View;
use crate::voting::{Ballot, End, No, Requested, Said, Verdict};

/// The clock of another region is followed so far ahead of the own one.
const FOLLOWED_MS: u64 = 24 * 60 * 60 * 1_000;

/// The side of a region in a transaction of several.
#[derive(Debug)]
pub struct Part {
    /// The attempt of the initiator.
    pub of: AttemptId,
    /// The region's task.
    pub does: Does,
    /// The regions that vote, in the terms in which the initiator knew them.
    pub participants: Vec<Lead>,
    /// All regions have locked what the transaction writes there, where they lock first.
    pub is_locked: bool,
}

/// The task of a region in a transaction of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// It runs the transaction, and votes as any other.
    Initiate,
    /// It validates its part, and votes.
    Validate,
    /// It says whether what was read of it is the newest.
    Check,
}

/// The reads and writes of a transaction in the view of another region.
#[derive(Debug, Default)]
pub struct Elsewhere {
    /// The records that it has read.
    pub reads: Vec<Read>,
    /// The records as it leaves them.
    pub writes: Vec<Write>,
}

impl Coordinator {
    /// Takes note of whether the attempt is of several regions: then it must not wait for another that is, by any path (4.5).
    pub(super) fn note_regions(&mut self, number: u64, desk: &Desk<'_>) {
        if desk.site.regions.is_none() {
            return;
        }
        let Some(live) = self.live.get_mut(&number).filter(|live| !live.is_regional) else { return };
        let fragments = live.chunk.fragments(&live.chunk.txns()[live.at]);
        let is_elsewhere = |fragment: &Fragment| {
            fragment.is_keyed() && desk.site.is_foreign(desk.site.layout.partition_of(fragment.hash.slot()))
        };
        // A check holds nothing of another region.
        let votes = live.part.as_ref().is_some_and(|part| part.does == Does::Validate);
        if votes || fragments.iter().any(is_elsewhere) {
            live.is_regional = true;
            let who = live.who(number);
            self.regional.push((who, true));
        }
    }

    /// Takes the attempts that have turned out to be of several regions, with true, or are over, with false.
    pub fn take_regional(&mut self) -> Vec<(AttemptId, bool)> {
        std::mem::take(&mut self.regional)
    }

    /// An attempt must not be of several regions: it waits for another that is, or is waited for.
    pub fn refuse_regional(&mut self, who: AttemptId, desk: &mut Desk<'_>) {
        let number = who.transaction.number;
        if self.live.get(&number).is_some_and(|live| live.who(number) == who) {
            self.retry_later(number, desk.site.refusal, desk);
        }
    }

    /// The next attempts see what has expired at the time of another region. A clock that is far ahead is not followed: what has expired by it
    /// alone is refused here until it has expired here too.
    fn adopt(&mut self, time: Millis, desk: &Desk<'_>) {
        let own = desk.clock.max(Millis(desk.now.wall.0 / 1_000));
        let most = Millis(own.0.saturating_add(FOLLOWED_MS));
        self.latest = self.latest.max(time.min(most));
    }

    // ---- the initiator -------------------------------------------------------------------------------------

    /// Asks other regions for their parts of an attempt that has run; answers whether all are known. The own part follows.
    pub(super) fn ask_for_parts(
        &mut self,
        number: u64,
        elsewhere: BTreeMap<PartitionId, Elsewhere>,
        desk: &mut Desk<'_>,
    ) -> bool {
        let Some(live) = self.live.get_mut(&number) else { return false };
        let Some(own) = desk.lead else { return false };
        let mut participants = vec![own];
        for by in elsewhere.keys().copied() {
            // A promise holds its keys until every participant has voted, so none is made while one of them is unreachable.
            let Some((_, lead)) = desk.leaders.reached(by) else {
                live.no = Some(No { by, reason: Abort::Unavailable });
                return false;
            };
            participants.push(lead);
        }
        let (of, age, now) = (live.who(number), live.age, desk.clock.max(self.latest));
        let part = Part { of, does: Does::Initiate, participants: participants.clone(), is_locked: false };
        live.part = Some(Box::new(part));
        self.voting.run(of, of, &participants);
        // One that waits between two attempts has no votes to come, and will ask again under its number.
        let first = self.live.first_key_value().map_or(number, |(first, _)| *first);
        let low = self.voting.lowest(own, number).min(first);
        for (partition, Elsewhere { reads, writes }) in elsewhere {
            let participants = participants.clone();
            Coordinator::lay_part(of, partition, &writes, desk);
            let request = PartRequest { of, age, now, participants, low, reads, writes };
            desk.tell_manager(partition, Protocol::Part(Box::new(request)));
        }
        true
    }

    /// Asks other regions whether what an attempt has read of them is the newest; answers whether all of them are known.
    pub(super) fn ask_for_checks(
        &mut self,
        number: u64,
        elsewhere: BTreeMap<PartitionId, Elsewhere>,
        desk: &mut Desk<'_>,
    ) -> bool {
        let Some(live) = self.live.get_mut(&number) else { return false };
        let (of, age, now) = (live.who(number), live.age, desk.clock.max(self.latest));
        elsewhere.into_iter().all(|(partition, Elsewhere { reads, .. })| {
            let (participants, writes) = (Vec::new(), Vec::new());
            let request = PartRequest { of, age, now, participants, low: 0, reads, writes };
            let is_there = desk.tell_manager(partition, Protocol::Part(Box::new(request)));
            if !is_there {
                live.no = Some(No { by: partition, reason: Abort::Unavailable });
            }
            is_there
        })
    }

    /// Takes the word of a region whether what was read of it is the newest: the reason why not, if it is not.
    fn checked(&mut self, from: Lead, of: AttemptId, no: Option<Abort>, desk: &mut Desk<'_>) {
        let number = of.transaction.number;
        let Some(live) = self.live.get_mut(&number).filter(|live| live.who(number) == of) else { return };
        let State::Confirming { awaited, .. } = &mut live.state else { return };
        if let Some(reason) = no {
            live.no = Some(No { by: from.partition, reason });
            live.losses += 1;
            return self.retry_later(number, reason, desk);
        }
        awaited.remove(&from.partition);
        if awaited.is_empty() {
            self.confirmed_by_all(number, desk);
        }
    }

    // ---- the parts of others -------------------------------------------------------------------------------

    /// Takes a request for this region's part.
    pub fn take_part(&mut self, from: Lead, request: PartRequest, desk: &mut Desk<'_>) {
        // A peer of another version may send anything.
        let partitions = desk.site.layout.partitions();
        let is_of_regions = request.participants.iter().all(|lead| lead.partition.0 < partitions);
        let has_home = request.participants.is_empty() || request.participants.contains(&from);
        if desk.site.regions.is_none() || request.of.home() != from || !is_of_regions || !has_home {
            return;
        }
        let Some(request) = self.with_versions(from, request, desk) else { return };
        let PartRequest { of, age, now, participants, low, reads, writes } = request;
        // What the initiator has found expired has expired here too.
        self.adopt(now, desk);
        let does = if participants.is_empty() { Does::Check } else { Does::Validate };
        let mut is_known = || self.voting.requested(of, &participants, low, desk) == Requested::Known;
        if does == Does::Validate && is_known() {
            return self.take_verdicts(desk);
        }
        let asker = Asker { gateway: GatewayId::HOUSE, chunk: ChunkNo(0), index: 0 };
        let chunk = part_chunk(does, &reads, &writes, desk);
        if let Some(chunk) = chunk.as_ref().filter(|_| does == Does::Validate)
            && self.is_reserved_from(of.transaction, chunk.fragments(&chunk.txns()[0]), desk.elapsed())
        {
            return self.refuse_part(of, does, Abort::Wounded, desk);
        }
        let number = chunk.and_then(|chunk| self.add(&Arc::new(chunk), 0, asker, None, desk));
        let Some((number, live)) = number.and_then(|number| Some((number, self.live.get_mut(&number)?)))
        else {
            return self.refuse_part(of, does, Abort::Unavailable, desk);
        };
        if desk.site.stamps == Stamps::OfTransaction {
            live.age = age;
        }
        let part = Part { of, does, participants: participants.clone(), is_locked: false };
        live.part = Some(Box::new(part));
        if does == Does::Validate {
            // Its first attempt, which is the only one unless it begins again at a later time.
            let first = AttemptId { attempt: 1, ..live.who(number) };
            self.voting.run(of, first, &participants);
        }
        self.begin_attempt(number, desk);
    }

    /// A part of another region's transaction cannot be promised, or what was read is not the newest.
    fn refuse_part(&mut self, of: AttemptId, does: Does, reason: Abort, desk: &mut Desk<'_>) {
        match does {
            Does::Check => {
                desk.tell_manager(
                    of.home().partition,
                    Protocol::Ballot(Ballot::Checked(of, Some((reason, desk.clock)))),
                );
            }
            Does::Initiate | Does::Validate => self.voting.refuse(of, reason, desk),
        }
    }

    /// An attempt that is not promised has ended for a reason: other regions hear of it, if it is of several.
    pub(super) fn drop_part(&mut self, number: u64, reason: Abort, desk: &mut Desk<'_>) {
        if let Some(part) = self.live.get_mut(&number).and_then(|live| live.part.take()) {
            Coordinator::lay_end(&part, false, desk);
            self.refuse_part(part.of, part.does, reason, desk);
        }
    }

    /// A part of another region's transaction ends without a promise, or has not read the newest.
    pub(super) fn end_part(&mut self, number: u64, reason: Abort, desk: &mut Desk<'_>) {
        self.abort_attempt(number, desk);
        self.drop_part(number, reason, desk);
        self.remove(number);
    }

    /// A part that only checks has come to its end.
    pub(super) fn answer_check(&self, of: AttemptId, status: OutcomeStatus, desk: &mut Desk<'_>) {
        let no = match status {
            OutcomeStatus::Committed => None,
            OutcomeStatus::Aborted(reason) => Some(reason),
            _ => Some(Abort::Unavailable),
        };
        let no = no.map(|reason| (reason, desk.clock));
        desk.tell_manager(of.home().partition, Protocol::Ballot(Ballot::Checked(of, no)));
    }

    // ---- promises and outcomes -----------------------------------------------------------------------------

    /// Proposes to promise the part of this region: it is validated.
    pub(super) fn promise_part(&mut self, number: u64, desk: &mut Desk<'_>) {
        let Some(live) = self.live.get_mut(&number) else { return };
        let (State::Voting { shards, ready, .. } | State::Validating { shards, ready, .. }) =
            std::mem::replace(&mut live.state, State::Waiting)
        else {
            return;
        };
        let Some(part) = &mut live.part else { return };
        let stamp = ready.bounds.from;
        live.age = stamp;
        let (session, reply) = match part.does {
            Does::Initiate => {
                self.agenda.set(number, desk.elapsed().plus(GIVE_UP_AFTER));
                (ready.commit.session, ready.commit.reply)
            }
            Does::Validate | Does::Check => {
                self.agenda.cancel(number);
                (None, Vec::new())
            }
        };
        // Nobody asks again for the reply of what is of no session.
        let kept = if session.is_some() { reply.clone() } else { Vec::new() };
        live.state = State::Deciding { shards, reply };
        let (of, participants) = (part.of, part.participants.clone());
        let among = Some(Box::new(Among { of, participants, session, reply: kept }));
        let (bounds, ceiling) = (Bounds::at(stamp), desk.ceiling_above(Bounds::at(stamp)));
        let (changes, writes, holds) = (ready.commit.changes, ready.commit.writes, ready.holds);
        let attempt = ready.commit.attempt;
        let prepare = Prepare { attempt, bounds, view: View::NONE, ceiling, changes, writes, holds, among };
        desk.append(ready.now, Content::Prepare(prepare));
        self.voting.promise(of, desk);
        self.take_verdicts(desk);
    }

    /// Answers `UNKNOWN` to the clients of a transaction that has been in doubt for [`GIVE_UP_AFTER`]. The transaction goes on, and a client that
    /// repeats its request joins it.
    pub(super) fn leave_in_doubt(&mut self, number: u64) {
        let askers = self.live.get_mut(&number).map(|live| std::mem::take(&mut live.askers));
        for asker in askers.into_iter().flatten() {
            self.answer(asker, OutcomeStatus::Unknown, NOWHERE, |_| {});
        }
    }

    /// Adds a client to a transaction that is under way; answers `false` if it is not.
    pub(super) fn join(&mut self, number: u64, asker: Asker, now: Micros) -> bool {
        let Some(live) = self.live.get_mut(&number) else { return false };
        if live.askers.is_empty() && live.is_in_doubt() {
            self.agenda.set(number, now.plus(GIVE_UP_AFTER));
        }
        live.askers.push(asker);
        true
    }

    /// A promise of this region stands in the log.
    pub fn promised(&mut self, entry: &Entry, prepare: &Prepare, among: &Among, desk: &mut Desk<'_>) {
        let durable = self.answers.durable();
        self.voting.promised(among, prepare.attempt, entry.place, durable, desk);
        self.take_verdicts(desk);
    }

    /// A promise of this region is not in the log and never will be: the disk is full.
    pub fn unpromised(&mut self, prepare: &Prepare, among: &Among, desk: &mut Desk<'_>) {
        self.voting.unpromised(among.of, desk);
        let number = prepare.attempt.transaction.number;
        self.abort_attempt(number, desk);
        if let Some(part) = self.live.get(&number).and_then(|live| live.part.as_ref()) {
            Coordinator::lay_end(part, false, desk);
        }
        self.end(number, OutcomeStatus::Refused, (Epoch(0), Epoch(0)), &[], desk);
        self.take_verdicts(desk);
    }

    /// The outcome of a part is not in the log: the disk is full, and it has to be there.
    pub fn unconcluded(&mut self, part: AttemptId) {
        self.voting.unwritten(part);
    }

    /// A forgetting of what all regions know is not in the log and never will be.
    pub fn unforgotten(&mut self, attempts: &[AttemptId], now: Micros) {
        self.voting.unforgotten(attempts, now);
    }

    /// The outcome of a part of this region stands in the log.
    pub fn concluded(&mut self, part: AttemptId, place: Epoch, desk: &mut Desk<'_>) {
        let durable = self.answers.durable();
        let of = self.voting.concluded(part, place, durable, desk);
        self.take_verdicts(desk);
        let Some(of) = of else { return };
        if desk.agreed.decided(of).is_some() {
            self.release(of.transaction, desk);
        }
        for (_, chunk, at) in self.doubting.remove(&of).into_iter().flatten() {
            self.take(&chunk, [at], desk);
        }
        self.go_on_named(of, desk);
    }

    /// The log is durable up to a place: what waits for that leaves.
    pub fn durable(&mut self, place: Epoch, desk: &mut Desk<'_>) {
        self.answers.release(place);
        self.voting.durable(place, desk);
        self.take_verdicts(desk);
    }

    /// The disk has space: outcomes that wait are appended.
    pub fn go_on_voting(&mut self, desk: &mut Desk<'_>) {
        self.voting.go_on(desk);
        self.take_verdicts(desk);
    }

    /// Takes a message about votes.
    pub fn take_ballot(&mut self, from: Lead, ballot: Ballot, desk: &mut Desk<'_>) {
        // The next attempt sees nothing that has expired there.
        if let Ballot::Say(_, Said::No(_, now), _) | Ballot::Checked(_, Some((_, now))) = &ballot {
            self.adopt(*now, desk);
        }
        match ballot {
            Ballot::Say(of, said, others) => self.voting.hear(from, of, said, &others, desk),
            Ballot::Ask(of) => self.voting.asked(from, of, desk),
            Ballot::Known(of, place) => {
                Coordinator::lay_place(from, of, place, desk);
                self.voting.acknowledged(from, of, desk);
            }
            Ballot::Forget(attempts) => self.voting.forget(from, &attempts, desk),
            Ballot::Checked(of, no) => self.checked(from, of, no.map(|(reason, _)| reason), desk),
            Ballot::Locked(of) => {
                let part = self.voting.locked(from, of, desk);
                part.into_iter().for_each(|part| self.locked_by_all(part, desk));
            }
            Ballot::Validate(of) => {
                let part = self.voting.called(from, of);
                part.into_iter().for_each(|part| self.locked_by_all(part, desk));
            }
        }
        self.take_verdicts(desk);
    }

    /// Goes on with what has come out about parts.
    pub(super) fn take_verdicts(&mut self, desk: &mut Desk<'_>) {
        for Verdict { of, part, end } in self.voting.take_verdicts() {
            let number = part.transaction.number;
            let is_its =
                self.live.get(&number).and_then(|live| live.part.as_ref()).is_some_and(|its| its.of == of);
            if !is_its {
                // It is of an earlier term: no client has asked this node for it.
                continue;
            }
            match end {
                // Another region has said no, and this one with it.
                End::Dropped(no) => {
                    self.live.entry(number).and_modify(|live| {
                        live.no = Some(no);
                        live.losses += 1;
                    });
                    self.retry_later(number, no.reason, desk);
                }
                End::Committed(place) => self.part_committed(number, place, desk),
                End::Aborted(no) => self.part_aborted(number, no, desk),
            }
        }
    }

    fn part_committed(&mut self, number: u64, place: Epoch, desk: &mut Desk<'_>) {
        let Some(part) = self.live.get_mut(&number).and_then(|live| live.part.take()) else { return };
        Coordinator::lay_end(&part, true, desk);
        if part.does != Does::Initiate {
            self.remove(number);
            return;
        }
        self.counts.distributed += 1;
        // All votes are durable, and so is the outcome that follows from them, whatever becomes of this node.
        let reply = self.take_reply(number);
        self.end(number, OutcomeStatus::Committed, (place, Epoch(0)), &reply, desk);
    }

    /// Takes the reply of a transaction whose end is on its way.
    fn take_reply(&mut self, number: u64) -> Vec<u8> {
        match self.live.get_mut(&number).map(|live| &mut live.state) {
            Some(State::Deciding { reply, .. }) => std::mem::take(reply),
            _ => Vec::new(),
        }
    }

    /// The outcome in the log frees what the attempt holds.
    fn part_aborted(&mut self, number: u64, no: No, desk: &mut Desk<'_>) {
        let Some(live) = self.live.get_mut(&number) else { return };
        let part = live.part.take();
        live.state = State::Waiting;
        part.iter().for_each(|part| Coordinator::lay_end(part, false, desk));
        let does = part.map(|part| part.does);
        live.no = Some(no);
        live.losses += 1;
        if does != Some(Does::Initiate) {
            self.remove(number);
            return;
        }
        self.retry_later(number, no.reason, desk);
    }

    /// The outcome of a part is in the log of a node that serves no more, at a place if it has committed: a client that waits here hears of it.
    pub fn concluded_elsewhere(
        &mut self,
        part: AttemptId,
        place: Option<Epoch>,
        desk: &mut Desk<'_>,
    ) -> Vec<Returned> {
        let number = part.transaction.number;
        let is_its = |live: &&mut Box<Live>| live.who(number) == part && live.part.is_some();
        let Some(live) = self.live.get_mut(&number).filter(is_its) else { return Vec::new() };
        live.part = None;
        match place {
            None => self.lost(number),
            Some(place) => {
                let reply = self.take_reply(number);
                self.end(number, OutcomeStatus::Committed, (place, place), &reply, desk);
                Vec::new()
            }
        }
    }

    // ---- what operators see --------------------------------------------------------------------------------

    /// The numbers of transactions of several regions: with votes to come, promised here and in doubt, and commits that not all are known to
    /// know.
    pub fn votes(&self, own: PartitionId) -> [usize; 3] {
        [self.voting.open(), self.voting.in_doubt(own).count(), self.voting.untold()]
    }

    /// The transactions in doubt, with the keys that their parts here hold.
    pub fn doubts(&self, agreed: &Agreed, own: PartitionId) -> Vec<Doubt> {
        let named = self.voting.in_doubt(own).take(Doubts::NAMED);
        named
            .map(|(of, waits_for)| {
                let part = agreed.prepared_among().find(|(_, among)| among.of == of);
                let holds = part.map(|(part, _)| agreed.holds(part)).unwrap_or_default();
                let records = holds.iter().filter_map(|hold| match hold {
                    Hold::Record { db, key, .. } => Some((*db, key.clone())),
                    Hold::Table { .. } => None,
                });
                let (name, keys) = (of.to_string(), records.take(Doubts::KEYS).collect());
                Doubt { name, waits_for, keys, held: holds.len() }
            })
            .collect()
    }

    // ---- requests of sessions ------------------------------------------------------------------------------

    /// Has a request of a session wait for an earlier attempt at it that is promised and in doubt; answers whether there is one.
    pub(super) fn waits_for_doubt(&mut self, chunk: &Arc<Chunk>, at: usize, desk: &Desk<'_>) -> bool {
        let Some(request) = super::session_of(&chunk.txns()[at]) else { return false };
        let in_doubt = desk.agreed.prepared_among().find(|(_, among)| among.session == Some(request));
        // One of this term is under way, and its client is answered there.
        let Some(of) = in_doubt.map(|(_, among)| among.of) else { return false };
        self.doubting.entry(of).or_default().push((desk.lead.unwrap_or_default(), chunk.clone(), at));
        true
    }
}

/// The transaction that a region runs as its part; `None` for what no sound initiator asks for.
fn part_chunk(does: Does, reads: &[Read], writes: &[Write], desk: &Desk<'_>) -> Option<Chunk> {
    let mut items: BTreeMap<(Db, &[u8]), PartItem<'_>> = BTreeMap::new();
    let none = |db, key| PartItem { db, key, read: None, write: None, children: Vec::new() };
    for Read { db, key, version, .. } in reads {
        let read = Some(Version::of(version.0));
        items.insert((*db, key), PartItem { read, ..none(*db, key) });
    }
    for Write { db, key, cell, .. } in writes {
        if !db.holds_children() {
            items.entry((*db, key)).or_insert(none(*db, key)).write = Some(cell);
            continue;
        }
        // Children go with their parent, which was read. One that is not there has no version by which they could be checked.
        let (parent, suffix) = split_child_key(key)?;
        let of = items.get_mut(&(db.home(), parent))?;
        if of.read.is_none_or(|read| read == Version::NONE) {
            return None;
        }
        of.children.push((suffix, cell));
    }
    let mut chunk = Chunk::new(GatewayId::HOUSE, ChunkNo(0));
    let procedure = if does == Does::Check { CHECK } else { PART };
    let call = Call::new(procedure, Db(0));
    chunk.push(&desk.site.registry, call, |args| part_args(items.into_values(), args)).ok()?;
    let fragments = chunk.fragments(chunk.txns().first()?);
    let homes: BTreeSet<PartitionId> =
        fragments.iter().map(|fragment| desk.site.layout.partition_of(fragment.hash.slot())).collect();
    homes.iter().all(|home| *home == desk.site.partition).then_some(chunk)
}
