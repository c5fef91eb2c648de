//! The bytes of an entry in the log (docs/protocols/regions.md, "Bytes of a record").
//!
//! A log is kept by every member, and in a region by every storage node, so its bytes count. Numbers take as many as they need
//! ([`compact`]). What most entries have alike is told as a difference: an attempt is of the term of the entry, stamps and ceilings are close to its time.
//! What is not there in most entries, a view or a reply, has a flag. What follows from something else is not there: the hashes of keys, and
//! keys of locks on what is written.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | place |
//! | 1 | tag of the content |
//! | 2 numbers | term: that of the group, and the number within |
//! | number | time, ms |
//! | … | content |

use std::collections::BTreeMap;

use ordain_execution::TableChange;
use ordain_model::wire::{Codec as _, Reader};
use ordain_model::{Db, Epoch, Millis, PartitionId, Placement, RequestNo, SessionId, compact};

use super::{Among, Announced, Commit, Commitment, Content, Entry, Hold, Prepare, writes};
use crate::concurrency::Mode;
use crate::founding::Met;
use crate::ids::{Age, AttemptId, Bounds, Lead, Term, TransactionId};
use crate::known::Readers;
use crate::view::{Seen, View};

// Tags below 32 were those of contents with numbers of a fixed size, before which the whole term stood: such a log is refused.
const BEGIN: u8 = 32;
const COMMIT: u8 = 33;
const PREPARE: u8 = 34;
const OUTCOME: u8 = 35;
const DENY: u8 = 36;
const FORGET: u8 = 37;
const RESERVE: u8 = 38;
const MEET: u8 = 39;
const MARK: u8 = 40;
const ANNOUNCE: u8 = 41;

// What a commit, a promise or an outcome has beside what each has.
const HAS_VIEW: u8 = 1;
const HAS_LOW: u8 = 1 << 1;
const HAS_CEILING: u8 = 1 << 2;
const HAS_SESSION: u8 = 1 << 3;
const HAS_REPLY: u8 = 1 << 4;
const HAS_CHANGES: u8 = 1 << 5;
const HAS_PARTICIPANTS: u8 = 1 << 6;
const HAS_COMMITTED: u8 = 1 << 7;

/// The bytes that an entry begins with.
pub(super) fn encode(entry: &Entry) -> Vec<u8> {
    let Entry { place, term, now, content, agreed: _ } = entry;
    let mut out = Vec::with_capacity(entry.weight() as usize);
    place.encode(&mut out);
    out.push(tag(content));
    compact::number(&mut out, term.of_group());
    compact::number(&mut out, term.within());
    compact::number(&mut out, now.0);
    Encoder { out: &mut out, term: *term, now: *now }.content(content);
    out
}

/// The entry that the bytes are, if they are one.
pub(super) fn decode(placement: &Placement, bytes: &[u8]) -> Option<Entry> {
    let mut bytes = Reader::new(bytes);
    let (place, tag) = (Epoch::decode(&mut bytes)?, bytes.u8()?);
    let [group, within] = [compact::read_number(&mut bytes)?, compact::read_number(&mut bytes)?];
    let term = Term::of(group, within)?;
    let now = Millis(compact::read_number(&mut bytes)?);
    let mut decoder = Decoder { bytes, term, now, placement };
    let content = decoder.content(tag)?;
    decoder.bytes.end(Entry { place, term, now, content, agreed: None })
}

const fn tag(content: &Content) -> u8 {
    match content {
        Content::Begin => BEGIN,
        Content::Commit(_) => COMMIT,
        Content::Prepare(_) => PREPARE,
        Content::Outcome(..) => OUTCOME,
        Content::Deny(_) => DENY,
        Content::Forget(_) => FORGET,
        Content::Reserve(_) => RESERVE,
        Content::Meet(_) => MEET,
        Content::Mark => MARK,
        Content::Announce(_) => ANNOUNCE,
    }
}

/// The flags that are set.
fn flags<const N: usize>(all: [(u8, bool); N]) -> u8 {
    all.into_iter().filter(|(_, is_set)| *is_set).fold(0, |flags, (flag, _)| flags | flag)
}

/// The form of a stamp, in the lowest two bits of its first number; the others are the number itself, or how much the time of the
/// stamp differs from that of the entry.
const ANY: u64 = 0;
/// A begin stamp: a time in microseconds.
const TIME: u64 = 1;
/// The stamp of one attempt: a time in microseconds, and the partition that has given it, as a number of its own.
const TIME_OF_HOME: u64 = 2;
/// A stamp that is small.
const SMALL: u64 = 3;
/// Times that differ by less, microseconds, and small stamps.
const NEAR: u64 = 1 << 40;

/// How much a time in microseconds differs from that of an entry, if it is near.
fn near(time: u64, now: Millis) -> Option<u64> {
    let by = time.wrapping_sub(now.0.wrapping_mul(1_000)) as i64;
    (by.unsigned_abs() < NEAR).then_some((by << 1 ^ by >> 63) as u64)
}

/// The form of a stamp in an entry of this time, and the number beside it.
fn form_of(stamp: Age, now: Millis) -> (u64, u64) {
    let of_home = near(stamp.micros().0, now).map(|by| (TIME_OF_HOME, by));
    let form = of_home.or_else(|| near(stamp.0, now).map(|by| (TIME, by)));
    form.unwrap_or(if stamp.0 < NEAR { (SMALL, stamp.0) } else { (ANY, 0) })
}

/// Writes contents as differences from the entry's term and time.
struct Encoder<'a> {
    out: &'a mut Vec<u8>,
    term: Term,
    now: Millis,
}

impl Encoder<'_> {
    fn number(&mut self, number: u64) {
        compact::number(self.out, number);
    }

    fn content(&mut self, content: &Content) {
        match content {
            Content::Begin | Content::Mark => {}
            Content::Commit(commit) => self.commit(commit),
            Content::Prepare(prepare) => self.prepare(prepare),
            Content::Outcome(attempt, commit) => self.outcome(attempt, commit.as_ref()),
            Content::Deny(attempt) => self.attempt(attempt),
            Content::Forget(attempts) => {
                self.number(attempts.len() as u64);
                attempts.iter().for_each(|attempt| self.attempt(attempt));
            }
            Content::Reserve(ceiling) => self.time(*ceiling),
            Content::Meet(met) => met.encode(self.out),
            Content::Announce(numbers) => {
                self.number(numbers.len() as u64);
                for Announced { home, number, readers } in numbers {
                    self.home(*home);
                    self.number(*number);
                    readers.encode(self.out);
                }
            }
        }
    }

    fn home(&mut self, Lead { partition, term }: Lead) {
        self.number(partition.0.into());
        compact::difference(self.out, term.0, self.term.0);
    }

    fn attempt(&mut self, AttemptId { transaction: TransactionId { home, number }, attempt }: &AttemptId) {
        self.home(*home);
        self.number(*number);
        self.number((*attempt).into());
    }

    fn time(&mut self, time: Millis) {
        compact::difference(self.out, time.0, self.now.0);
    }

    fn stamp(&mut self, stamp: Age) {
        let (form, rest) = form_of(stamp, self.now);
        self.number(rest << 2 | form);
        match form {
            TIME_OF_HOME => self.number(stamp.home()),
            ANY => self.number(stamp.0),
            _ => {}
        }
    }

    fn changes(&mut self, changes: &[TableChange]) {
        self.number(changes.len() as u64);
        TableChange::encode_all(changes, self.out);
    }

    fn commit(&mut self, commit: &Commit) {
        let Commit { attempt, age, view, low, ceiling, session, reply, changes, writes, participants } =
            commit;
        let flags = flags([
            (HAS_VIEW, view.is_some()),
            (HAS_LOW, *low > 0),
            (HAS_CEILING, ceiling.0 > 0),
            (HAS_SESSION, session.is_some()),
            (HAS_REPLY, !reply.is_empty()),
            (HAS_CHANGES, !changes.is_empty()),
            (HAS_PARTICIPANTS, !participants.is_empty()),
        ]);
        self.out.push(flags);
        self.attempt(attempt);
        self.stamp(*age);
        if view.is_some() {
            view.seen().put_compact(self.out);
        }
        if *low > 0 {
            compact::difference(self.out, *low, attempt.transaction.number);
        }
        if ceiling.0 > 0 {
            self.time(*ceiling);
        }
        if let Some((session, request)) = session {
            self.number(session.0);
            self.number(request.0);
        }
        if !reply.is_empty() {
            compact::bytes(self.out, reply);
        }
        if !changes.is_empty() {
            self.changes(changes);
        }
        if !participants.is_empty() {
            self.number(participants.len() as u64);
            participants.iter().for_each(|partition| self.number(partition.0.into()));
        }
        writes::put(self.out, writes);
    }

    fn prepare(&mut self, prepare: &Prepare) {
        let Prepare { attempt, bounds, view, ceiling, changes, writes, holds, among } = prepare;
        let flags = flags([
            (HAS_VIEW, view.is_some()),
            (HAS_CEILING, ceiling.0 > 0),
            (HAS_CHANGES, !changes.is_empty()),
            (HAS_PARTICIPANTS, among.is_some()),
        ]);
        self.out.push(flags);
        self.attempt(attempt);
        self.bounds(*bounds);
        among.iter().for_each(|among| self.among(among));
        if view.is_some() {
            view.seen().put_compact(self.out);
        }
        if ceiling.0 > 0 {
            self.time(*ceiling);
        }
        if !changes.is_empty() {
            self.changes(changes);
        }
        writes::put(self.out, writes);
        let numbered = writes.iter().zip(0..).map(|(write, at)| ((write.db, &write.key[..]), at));
        let numbered: BTreeMap<(Db, &[u8]), u64> = numbered.collect();
        self.number(holds.len() as u64);
        let mut before = &[][..];
        for hold in holds {
            before = self.hold(hold, &numbered, before);
        }
    }

    fn among(&mut self, Among { of, participants, session, reply }: &Among) {
        self.attempt(of);
        self.number(participants.len() as u64);
        participants.iter().for_each(|lead| self.home(*lead));
        self.out.push(flags([(HAS_SESSION, session.is_some()), (HAS_REPLY, !reply.is_empty())]));
        if let Some((session, request)) = session {
            self.number(session.0);
            self.number(request.0);
        }
        if !reply.is_empty() {
            compact::bytes(self.out, reply);
        }
    }

    fn bounds(&mut self, Bounds { from, until }: Bounds) {
        let form = match until {
            _ if until == from.next() => AT,
            Age(u64::MAX) => FROM,
            _ => BETWEEN,
        };
        self.out.push(form);
        self.stamp(from);
        if form == BETWEEN {
            self.stamp(until);
        }
    }

    /// Appends a lock; answers the key that the next one stands beside.
    fn hold<'k>(
        &mut self,
        hold: &'k Hold,
        writes: &BTreeMap<(Db, &[u8]), u64>,
        before: &'k [u8],
    ) -> &'k [u8] {
        match hold {
            Hold::Table { shard, mode } => {
                self.out.push(OF_TABLE | mode_bits(*mode));
                self.number(u64::from(*shard));
                before
            }
            Hold::Record { db, key, mode } => {
                if let Some(write) = writes.get(&(*db, &key[..])) {
                    self.out.push(OF_WRITE | mode_bits(*mode));
                    self.number(*write);
                    return before;
                }
                let zeros = compact::zeros_at_end(key);
                self.out.push(OF_RECORD | mode_bits(*mode) | (zeros as u8) << 4);
                self.out.push(db.0);
                compact::text(self.out, key, zeros, before);
                key
            }
        }
    }

    fn outcome(&mut self, attempt: &AttemptId, commit: Option<&Commitment>) {
        let has_view = commit.is_some_and(|with| with.view.is_some());
        self.out.push(flags([(HAS_COMMITTED, commit.is_some()), (HAS_VIEW, has_view)]));
        self.attempt(attempt);
        let Some(Commitment { stamp, view, after }) = commit else { return };
        self.stamp(*stamp);
        if has_view {
            view.seen().put_compact(self.out);
        }
        self.number(*after);
    }
}

// The forms of bounds: one stamp, all from one on, and any others.
const AT: u8 = 0;
const FROM: u8 = 1;
const BETWEEN: u8 = 2;

// A lock: its mode is in the lowest two bits of its head, what it is on in the next two, and the zeros of a key in the highest four.
const MODE: u8 = 3;
const OF: u8 = 3 << 2;
const OF_RECORD: u8 = 0;
/// On a record that is written: its key is there already.
const OF_WRITE: u8 = 1 << 2;
const OF_TABLE: u8 = 2 << 2;

const fn mode_bits(mode: Mode) -> u8 {
    match mode {
        Mode::Shared => 0,
        Mode::Exclusive => 1,
        Mode::Blind => 2,
    }
}

const fn mode_of(head: u8) -> Option<Mode> {
    Some(match head & MODE {
        0 => Mode::Shared,
        1 => Mode::Exclusive,
        2 => Mode::Blind,
        _ => return None,
    })
}

/// Reads what [`Encoder`] has written.
struct Decoder<'a> {
    bytes: Reader<'a>,
    term: Term,
    now: Millis,
    placement: &'a Placement,
}

impl Decoder<'_> {
    fn number(&mut self) -> Option<u64> {
        compact::read_number(&mut self.bytes)
    }

    /// A number that is an id, or another one that is small.
    fn small<T: TryFrom<u64>>(&mut self) -> Option<T> {
        T::try_from(self.number()?).ok()
    }

    fn content(&mut self, tag: u8) -> Option<Content> {
        Some(match tag {
            BEGIN => Content::Begin,
            COMMIT => Content::Commit(self.commit()?),
            PREPARE => Content::Prepare(self.prepare()?),
            OUTCOME => {
                let (attempt, commit) = self.outcome()?;
                Content::Outcome(attempt, commit)
            }
            DENY => Content::Deny(self.attempt()?),
            FORGET => Content::Forget(self.all(Decoder::attempt)?),
            RESERVE => Content::Reserve(self.time()?),
            MEET => Content::Meet(Met::decode(&mut self.bytes)?),
            MARK => Content::Mark,
            ANNOUNCE => Content::Announce(self.all(Decoder::announced)?),
            _ => return None,
        })
    }

    /// Items with their count before them.
    fn all<T>(&mut self, mut read: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.small()?;
        let mut items = Vec::with_capacity(compact::room_for::<T>(&self.bytes, count));
        for _ in 0..count {
            items.push(read(self)?);
        }
        Some(items)
    }

    fn announced(&mut self) -> Option<Announced> {
        let (home, number) = (self.home()?, self.number()?);
        Some(Announced { home, number, readers: Readers::decode(&mut self.bytes)? })
    }

    fn home(&mut self) -> Option<Lead> {
        let partition = PartitionId(self.small()?);
        Some(Lead { partition, term: Term(compact::read_difference(&mut self.bytes, self.term.0)?) })
    }

    fn attempt(&mut self) -> Option<AttemptId> {
        let transaction = TransactionId { home: self.home()?, number: self.number()? };
        Some(AttemptId { transaction, attempt: self.small()? })
    }

    fn time(&mut self) -> Option<Millis> {
        compact::read_difference(&mut self.bytes, self.now.0).map(Millis)
    }

    fn stamp(&mut self) -> Option<Age> {
        let first = self.number()?;
        let (form, rest) = (first & 3, first >> 2);
        let by = (rest >> 1) as i64 ^ -((rest & 1) as i64);
        let time = self.now.0.wrapping_mul(1_000).wrapping_add(by as u64);
        let stamp = match form {
            ANY => Age(self.number()?),
            TIME => Age(time),
            TIME_OF_HOME => Age::of_parts(time, self.number()?)?,
            _ => Age(rest),
        };
        // There is one form of each.
        (form_of(stamp, self.now) == (form, rest)).then_some(stamp)
    }

    fn changes(&mut self, has: bool) -> Option<Vec<TableChange>> {
        match has {
            true => self.all(|all| TableChange::decode(&mut all.bytes)),
            false => Some(Vec::new()),
        }
    }

    fn view(&mut self, has: bool) -> Option<View> {
        match has {
            true => Seen::read_compact(&mut self.bytes).map(View::of),
            false => Some(View::NONE),
        }
    }

    fn commit(&mut self) -> Option<Commit> {
        let flags = self.bytes.u8().filter(|flags| flags & HAS_COMMITTED == 0)?;
        let has = |flag| flags & flag != 0;
        let (attempt, age) = (self.attempt()?, self.stamp()?);
        let view = self.view(has(HAS_VIEW))?;
        let low = match has(HAS_LOW) {
            true => compact::read_difference(&mut self.bytes, attempt.transaction.number)?,
            false => 0,
        };
        let ceiling = if has(HAS_CEILING) { self.time()? } else { Millis(0) };
        let session = match has(HAS_SESSION) {
            true => Some((SessionId(self.number()?), RequestNo(self.number()?))),
            false => None,
        };
        let reply = if has(HAS_REPLY) { compact::read_bytes(&mut self.bytes)? } else { Vec::new() };
        let changes = self.changes(has(HAS_CHANGES))?;
        let participants = match has(HAS_PARTICIPANTS) {
            true => self.all(|all| all.small().map(PartitionId))?,
            false => Vec::new(),
        };
        let writes = writes::read(&mut self.bytes, self.placement)?;
        Some(Commit { attempt, age, view, low, ceiling, session, reply, changes, writes, participants })
    }

    fn prepare(&mut self) -> Option<Prepare> {
        let known = HAS_VIEW | HAS_CEILING | HAS_CHANGES | HAS_PARTICIPANTS;
        let flags = self.bytes.u8().filter(|flags| flags & !known == 0)?;
        let has = |flag| flags & flag != 0;
        let (attempt, bounds) = (self.attempt()?, self.bounds()?);
        let among = if has(HAS_PARTICIPANTS) { Some(Box::new(self.among()?)) } else { None };
        let view = self.view(has(HAS_VIEW))?;
        let ceiling = if has(HAS_CEILING) { self.time()? } else { Millis(0) };
        let changes = self.changes(has(HAS_CHANGES))?;
        let writes = writes::read(&mut self.bytes, self.placement)?;
        let mut before = Vec::new();
        let holds = self.all(|all| {
            let head = all.bytes.u8()?;
            let mode = mode_of(head)?;
            Some(match head & OF {
                OF_RECORD => {
                    let db = Db(all.bytes.u8()?);
                    let key = compact::read_text(&mut all.bytes, usize::from(head >> 4), &before)?;
                    before.clone_from(&key);
                    Hold::Record { db, key, mode }
                }
                OF_WRITE if head >> 4 == 0 => {
                    let write = writes.get(all.small::<usize>()?)?;
                    Hold::Record { db: write.db, key: write.key.clone(), mode }
                }
                OF_TABLE if head >> 4 == 0 => Hold::Table { shard: all.small()?, mode },
                _ => return None,
            })
        })?;
        Some(Prepare { attempt, bounds, view, ceiling, changes, writes, holds, among })
    }

    fn among(&mut self) -> Option<Among> {
        let (of, participants) = (self.attempt()?, self.all(Decoder::home)?);
        let flags = self.bytes.u8().filter(|flags| flags & !(HAS_SESSION | HAS_REPLY) == 0)?;
        let session = match flags & HAS_SESSION != 0 {
            true => Some((SessionId(self.number()?), RequestNo(self.number()?))),
            false => None,
        };
        let reply = if flags & HAS_REPLY != 0 { compact::read_bytes(&mut self.bytes)? } else { Vec::new() };
        Some(Among { of, participants, session, reply })
    }

    fn bounds(&mut self) -> Option<Bounds> {
        let (form, from) = (self.bytes.u8()?, self.stamp()?);
        let until = match form {
            AT => from.next(),
            FROM => Age(u64::MAX),
            BETWEEN => self.stamp()?,
            _ => return None,
        };
        Some(Bounds { from, until })
    }

    fn outcome(&mut self) -> Option<(AttemptId, Option<Commitment>)> {
        let flags = self.bytes.u8()?;
        let attempt = self.attempt()?;
        let commit = match flags & HAS_COMMITTED {
            0 if flags == 0 => None,
            HAS_COMMITTED if flags & !(HAS_COMMITTED | HAS_VIEW) == 0 => {
                let (stamp, view) = (self.stamp()?, self.view(flags & HAS_VIEW != 0)?);
                Some(Commitment { stamp, view, after: self.number()? })
            }
            _ => return None,
        };
        Some((attempt, commit))
    }
}
