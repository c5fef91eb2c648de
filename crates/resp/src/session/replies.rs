//! The replies a connection is owed, in the order of its requests.
//!
//! Answers may come in any order. The one that is next in line is translated straight into the output; one that
//! comes early is translated into a stash and moved when those before it are there.
//!
//! Each request that waits has its [`Cost`]: how many bytes it came in, how long its reply is expected to be, and what a
//! write may need. So what is under way is bounded in bytes, however many requests that are.

use std::collections::VecDeque;

use ordain_gateway::Ticket;
use ordain_model::limits::MAX_REPLY;
use ordain_model::{Datum, KeptReply};

use crate::codec::{Encoding, Protocol, encode};
use crate::memory::UNKNOWN_REPLY;

/// From so many bytes on a reply is large: it is kept as it came, and encoded in pieces, each when the one before has been
/// sent. What came with it is kept too, which is less than that.
pub const LARGE_REPLY: usize = 1 << 20;
/// The bytes of such a piece.
const PIECE: usize = 256 << 10;

/// How far below its peak a buffer may stay allocated.
const KEPT: usize = 64 << 10;

const SEQUENCE_BITS: u32 = 20;
const GENERATION_BITS: u32 = 24;

/// A connection of an event loop: its slot in the loop's table, and how often the slot was used before. So an
/// answer that comes when its connection is gone does not reach the one that came after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    slot: u32,
    generation: u32,
}

impl ConnectionId {
    /// The most connections that one event loop can have.
    pub const SLOTS: u32 = 1 << (64 - SEQUENCE_BITS - GENERATION_BITS);

    /// The connection in a slot below [`ConnectionId::SLOTS`]; generations wrap around after 2^24.
    pub const fn new(slot: u32, generation: u32) -> ConnectionId {
        assert!(slot < ConnectionId::SLOTS);
        ConnectionId { slot, generation: generation & ((1 << GENERATION_BITS) - 1) }
    }

    /// The connection whose request a ticket is.
    pub const fn of(ticket: Ticket) -> ConnectionId {
        let rest = (ticket.0 >> SEQUENCE_BITS) as u32 & ((1 << GENERATION_BITS) - 1);
        ConnectionId { slot: (ticket.0 >> (SEQUENCE_BITS + GENERATION_BITS)) as u32, generation: rest }
    }

    /// The slot in the event loop's table.
    pub const fn slot(self) -> usize {
        self.slot as usize
    }

    pub(crate) const fn ticket(self, sequence: Sequence) -> Ticket {
        let connection = (self.slot as u64) << GENERATION_BITS | self.generation as u64;
        Ticket(connection << SEQUENCE_BITS | sequence.0 as u64)
    }
}

/// The number of a request on its connection, modulo 2^20.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sequence(u32);

impl Sequence {
    const MASK: u32 = (1 << SEQUENCE_BITS) - 1;
    /// More requests than this may never wait at once, lest their numbers be confused.
    pub(crate) const WINDOW: usize = 1 << (SEQUENCE_BITS - 1);

    pub(crate) const fn of(ticket: Ticket) -> Sequence {
        Sequence(ticket.0 as u32 & Sequence::MASK)
    }

    const fn plus(self, n: usize) -> Sequence {
        Sequence(self.0.wrapping_add(n as u32) & Sequence::MASK)
    }

    const fn since(self, earlier: Sequence) -> usize {
        (self.0.wrapping_sub(earlier.0) & Sequence::MASK) as usize
    }
}

/// The form in which a reply is written: fixed when the request is taken, because a later one may change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Style {
    pub(crate) protocol: Protocol,
    /// CLIENT REPLY OFF or SKIP: it is not written at all.
    pub(crate) silent: bool,
}

impl Style {
    #[inline]
    fn write(self, reply: &[u8], out: &mut Vec<u8>) {
        if !self.silent {
            encode(self.protocol, reply, out);
        }
    }
}

/// The cost of a request under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Bytes of the request.
    pub(crate) request: usize,
    /// The most values of its answer.
    pub(crate) values: usize,
    /// The most bytes of memory that a write may make, while there is a limit of memory.
    pub(crate) need: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    style: Style,
    /// Of so many values.
    values: u32,
    request_kib: u32,
    expected_kib: u32,
    need_kib: u32,
}

#[derive(Clone, Copy, Debug)]
enum Pending {
    Waiting(Waiting),
    /// Where its translation stands in the stash.
    Early {
        at: u32,
        len: u32,
    },
}

/// A request under way, for the measurement of its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The command's place in the command table.
    pub(crate) command: u16,
    /// Bytes of its words among those that are kept.
    words: u16,
    /// The time at which it was taken, microseconds since the node started, modulo 2^32.
    since: u32,
}

impl Request {
    /// The entry of a request that is not measured.
    const NONE: Request = Request { command: u16::MAX, words: 0, since: 0 };
}

/// A request that has been answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) command: usize,
    /// The time at which it was taken, microseconds since the node started, modulo 2^32.
    pub(crate) since: u32,
    pub(crate) failed: bool,
}

/// The number of bytes of the words of requests under way that are kept, for the slow ones among them.
const WORDS_MAX: usize = 64 << 10;

/// Replies to come and replies to send.
#[derive(Debug)]
pub(crate) struct Replies {
    first: Sequence,
    pending: VecDeque<(Pending, Request)>,
    /// The words of the requests under way, in order; those before `words_from` are of requests that are answered.
    words: Vec<u8>,
    words_from: usize,
    stash: Vec<u8>,
    early: usize,
    /// The last reply that was there at once was an error.
    last_failed: bool,
    out: Vec<u8>,
    sent: usize,
    /// What is to be sent after that, in order.
    behind: VecDeque<Behind>,
    /// How long a value is taken to be: as the last ones were, half as long with each that is shorter.
    value: usize,
    /// Sums over what waits, KiB.
    requests: u64,
    expected: u64,
    needed: u64,
}

/// Replies that are to be sent when those before them have been.
#[derive(Debug)]
enum Behind {
    /// Encoded ones.
    Encoded(Vec<u8>),
    /// A large one.
    Large(Encoding),
}

impl Behind {
    fn bytes(&self) -> usize {
        match self {
            Behind::Encoded(bytes) => bytes.len(),
            Behind::Large(encoding) => encoding.left(),
        }
    }
}

/// The number of bytes of replies that the requests under way may come to, if they are as large as the last ones.
const UNDER_WAY: u64 = 8 << 20;
/// The number of bytes of requests that may be under way.
const REQUESTS_MAX: u64 = 64 << 20;

/// Whole KiB: what is shorter is bounded by how many may wait.
fn kib(bytes: u64) -> u32 {
    u32::try_from(bytes >> 10).unwrap_or(u32::MAX)
}

impl Replies {
    pub(crate) fn new() -> Replies {
        Replies {
            first: Sequence(0),
            pending: VecDeque::new(),
            words: Vec::new(),
            words_from: 0,
            stash: Vec::new(),
            early: 0,
            last_failed: false,
            out: Vec::new(),
            sent: 0,
            behind: VecDeque::new(),
            value: UNKNOWN_REPLY,
            requests: 0,
            expected: 0,
            needed: 0,
        }
    }

    /// The expected length of a reply of so many values, bytes.
    #[inline]
    pub(crate) fn expected_of(&self, values: usize) -> u64 {
        self.value.saturating_mul(values).min(MAX_REPLY) as u64
    }

    /// The expected length of all replies under way, bytes.
    #[inline]
    pub(crate) fn expected(&self) -> u64 {
        self.expected << 10
    }

    /// The bytes of memory that the writes under way may need.
    #[inline]
    pub(crate) fn needed(&self) -> u64 {
        self.needed << 10
    }

    /// Tells whether there is room for a request whose reply is expected to be so long. A client that asks for large values and
    /// reads none has few requests under way, so that what is on its way to it when its output is full stays small.
    #[inline]
    pub(crate) fn can_expect(&self, bytes: u64) -> bool {
        self.expected == 0 || self.expected() + bytes <= UNDER_WAY
    }

    /// Tells whether the requests under way came in as many bytes as they may.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.requests << 10 > REQUESTS_MAX
    }

    #[inline]
    fn adapt(&mut self, reply: usize, values: usize) {
        if let Some(value) = reply.checked_div(values) {
            self.value = value.max(self.value / 2);
        }
    }

    /// The number of the next request.
    #[inline]
    pub(crate) fn next(&self) -> Sequence {
        self.first.plus(self.pending.len())
    }

    /// Notes a request that was submitted under [`Replies::next`].
    #[inline]
    pub(crate) fn expect(&mut self, style: Style, cost: Cost) {
        let Cost { request, values, need } = cost;
        let expected_kib = if values == 0 { 0 } else { kib(self.expected_of(values)) };
        let (request_kib, need_kib) = (kib(request as u64), kib(need));
        self.requests += u64::from(request_kib);
        self.expected += u64::from(expected_kib);
        self.needed += u64::from(need_kib);
        let values = u32::try_from(values).unwrap_or(u32::MAX);
        let waiting = Waiting { style, values, request_kib, expected_kib, need_kib };
        self.pending.push_back((Pending::Waiting(waiting), Request::NONE));
    }

    /// Notes what the request is that was submitted last, if it waits for its answer; `pack` appends its words, if
    /// they are to be kept. Says whether it waits.
    #[inline]
    pub(crate) fn describe(
        &mut self,
        command: usize,
        since: u32,
        pack: Option<impl FnOnce(&mut Vec<u8>)>,
    ) -> bool {
        let Some((Pending::Waiting(_), request)) = self.pending.back_mut() else { return false };
        if *request != Request::NONE {
            return false;
        }
        let before = self.words.len();
        if let Some(pack) = pack
            && before - self.words_from < WORDS_MAX
        {
            pack(&mut self.words);
        }
        let words = (self.words.len() - before) as u16;
        *request = Request { command: command as u16, words, since };
        true
    }

    /// The words of a request that waits for its answer, as far as they are kept.
    pub(crate) fn words_of(&self, sequence: Sequence) -> &[u8] {
        let at = sequence.since(self.first);
        let before =
            self.pending.iter().take(at).map(|(_, request)| usize::from(request.words)).sum::<usize>();
        let from = self.words_from + before;
        let len = self.pending.get(at).map_or(0, |(_, request)| usize::from(request.words));
        self.words.get(from..from + len).unwrap_or_default()
    }

    /// The request that waits for its answer under a number, and whether this answer is an error.
    #[inline]
    pub(crate) fn done(&self, sequence: Sequence, reply: &[u8]) -> Option<Done> {
        let (Pending::Waiting(_), request) = self.pending.get(sequence.since(self.first))? else {
            return None;
        };
        let failed = Datum::is_error(reply);
        (*request != Request::NONE).then_some(Done {
            command: usize::from(request.command),
            since: request.since,
            failed,
        })
    }

    /// Takes the answer of a request that was answered at once.
    pub(crate) fn answer(&mut self, style: Style, reply: &[u8]) {
        self.last_failed = Datum::is_error(reply);
        if self.pending.is_empty() {
            style.write(reply, self.end());
        } else {
            let early = self.put_by(style, reply);
            self.pending.push_back((early, Request::NONE));
        }
    }

    /// Takes the answer to a request that was submitted. One that is not awaited is ignored.
    #[inline]
    pub(crate) fn finish(&mut self, sequence: Sequence, reply: &[u8]) {
        self.finish_with(sequence, reply, None);
    }

    /// Takes the answer to a request that was submitted, which may be kept to be encoded as room comes.
    pub(crate) fn finish_kept(&mut self, sequence: Sequence, reply: KeptReply) {
        let kept = (reply.len() >= LARGE_REPLY).then(|| reply.clone());
        self.finish_with(sequence, &reply, kept);
    }

    #[inline]
    fn finish_with(&mut self, sequence: Sequence, reply: &[u8], kept: Option<KeptReply>) {
        let at = sequence.since(self.first);
        let Some(&(Pending::Waiting(waiting), _)) = self.pending.get(at) else { return };
        let Waiting { style, values, request_kib, expected_kib, need_kib } = waiting;
        self.requests -= u64::from(request_kib);
        self.expected -= u64::from(expected_kib);
        self.needed -= u64::from(need_kib);
        self.adapt(reply.len(), values as usize);
        if at > 0 {
            self.pending[at].0 = self.put_by(style, reply);
            return;
        }
        match kept.filter(|_| !style.silent) {
            Some(kept) => {
                self.behind.push_back(Behind::Large(Encoding::new(style.protocol, kept)));
                self.refill();
            }
            None => style.write(reply, self.end()),
        }
        self.pop();
        while let Some(&(Pending::Early { at, len }, _)) = self.pending.front() {
            let Replies { out, behind, stash, .. } = self;
            end_of(out, behind).extend_from_slice(&stash[at as usize..(at + len) as usize]);
            self.early -= 1;
            self.pop();
        }
        if self.early == 0 {
            clear(&mut self.stash);
        }
    }

    /// Has the answer to a request written in the protocol that its connection has changed to since.
    pub(crate) fn write_in(&mut self, sequence: Sequence, protocol: Protocol) {
        if let Some((Pending::Waiting(waiting), _)) = self.pending.get_mut(sequence.since(self.first)) {
            waiting.style.protocol = protocol;
        }
    }

    /// Tells whether the last reply that was there at once was an error.
    pub(crate) const fn last_failed(&self) -> bool {
        self.last_failed
    }

    /// The buffer to which the next reply is appended.
    #[inline]
    fn end(&mut self) -> &mut Vec<u8> {
        end_of(&mut self.out, &mut self.behind)
    }

    /// Takes what is to be sent next, if all before it has been sent.
    fn refill(&mut self) {
        while self.out.is_empty() {
            match self.behind.front_mut() {
                None => return,
                Some(Behind::Encoded(bytes)) => self.out = std::mem::take(bytes),
                Some(Behind::Large(large)) => {
                    self.out.reserve(PIECE);
                    if !large.write(PIECE, &mut self.out) {
                        continue;
                    }
                }
            }
            self.behind.pop_front();
        }
    }

    fn pop(&mut self) {
        if let Some((_, request)) = self.pending.pop_front() {
            self.words_from += usize::from(request.words);
        }
        if self.words_from == self.words.len() {
            clear(&mut self.words);
            self.words_from = 0;
        } else if self.words_from > WORDS_MAX {
            self.words.drain(..self.words_from);
            self.words_from = 0;
        }
        self.first = self.first.plus(1);
    }

    fn put_by(&mut self, style: Style, reply: &[u8]) -> Pending {
        let at = self.stash.len();
        style.write(reply, &mut self.stash);
        self.early += 1;
        Pending::Early { at: at as u32, len: (self.stash.len() - at) as u32 }
    }

    /// Requests not answered.
    #[inline]
    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Bytes translated and not sent.
    #[inline]
    pub(crate) fn unsent(&self) -> usize {
        self.out.len() - self.sent + self.stash.len() + self.behind.iter().map(Behind::bytes).sum::<usize>()
    }

    pub(crate) fn output(&self) -> &[u8] {
        &self.out[self.sent..]
    }

    pub(crate) fn sent(&mut self, bytes: usize) {
        self.sent = (self.sent + bytes).min(self.out.len());
        if self.sent == self.out.len() {
            clear(&mut self.out);
            self.sent = 0;
            self.refill();
        } else if self.sent > KEPT && self.sent > self.out.len() / 2 {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Gives all memory back: nothing will be sent any more.
    pub(crate) fn abandon(&mut self) {
        let next = self.next();
        *self = Replies { first: next, ..Replies::new() };
    }

    /// Gives memory back that is not in use.
    pub(crate) fn trim(&mut self) {
        if self.pending.is_empty() && self.unsent() == 0 {
            (self.pending, self.stash, self.out) = (VecDeque::new(), Vec::new(), Vec::new());
        }
    }

    pub(crate) fn memory(&self) -> usize {
        self.out.capacity()
            + self.stash.capacity()
            + self.words.capacity()
            + self.behind.iter().map(Behind::bytes).sum::<usize>()
            + self.pending.capacity() * size_of::<(Pending, Request)>()
    }
}

#[inline]
fn end_of<'a>(out: &'a mut Vec<u8>, behind: &'a mut VecDeque<Behind>) -> &'a mut Vec<u8> {
    if behind.is_empty() {
        return out;
    }
    if !matches!(behind.back(), Some(Behind::Encoded(_))) {
        behind.push_back(Behind::Encoded(Vec::new()));
    }
    match behind.back_mut() {
        Some(Behind::Encoded(bytes)) => bytes,
        _ => out,
    }
}

fn clear(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > KEPT {
        buffer.shrink_to(KEPT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_model::{ChunkNo, GatewayId, Gsn, OutcomeBatch, OutcomeStatus, Writer};
    use proptest::prelude::*;
    use std::sync::Arc;

    const PLAIN: Style = Style { protocol: Protocol::Resp2, silent: false };

    fn int(i: i64) -> Vec<u8> {
        let mut datum = Vec::new();
        Writer(&mut datum).int(i);
        datum
    }

    #[test]
    fn tickets_name_connection_and_request() {
        let id = ConnectionId::new(ConnectionId::SLOTS - 1, (1 << 24) + 5);
        let ticket = id.ticket(Sequence(Sequence::MASK));
        assert_eq!(ConnectionId::of(ticket), id);
        assert_eq!(Sequence::of(ticket), Sequence(Sequence::MASK));
        assert_ne!(ConnectionId::of(ticket), ConnectionId::new(id.slot, 6));
    }

    #[test]
    fn the_style_is_that_of_the_request() {
        let mut replies = Replies::new();
        let mut nil = Vec::new();
        Writer(&mut nil).nil();
        let first = replies.next();
        replies.expect(PLAIN, Cost::default());
        replies.answer(Style { silent: true, ..PLAIN }, &nil);
        replies.answer(Style { protocol: Protocol::Resp3, ..PLAIN }, &nil);
        replies.finish(first, &nil);
        assert_eq!(replies.output(), b"$-1\r\n_\r\n");
    }

    #[test]
    fn large_replies_narrow_what_may_be_under_way_and_small_ones_widen_it() {
        let mut replies = Replies::new();
        let ask = |replies: &mut Replies, values| {
            let sequence = replies.next();
            replies.expect(PLAIN, Cost { values, ..Cost::default() });
            sequence
        };
        let mut large = Vec::new();
        ordain_model::Writer(&mut large).bulk(&vec![0; 6 << 20]);
        // Nothing is known of the first.
        let first = ask(&mut replies, 1);
        assert!(replies.can_expect(replies.expected_of(1)) && !replies.can_expect(replies.expected_of(2)));
        replies.finish(first, &int(1));
        assert_eq!((replies.expected(), replies.expected_of(1)), (0, 2 << 20));
        // One goes on however long it may be.
        assert!(replies.can_expect(u64::MAX));
        let second = ask(&mut replies, 1);
        replies.finish(second, &large);
        let third = ask(&mut replies, 1);
        assert!(!replies.can_expect(replies.expected_of(1)));
        replies.finish(third, &int(1));
        for _ in 0..10 {
            let small = ask(&mut replies, 1);
            replies.finish(small, &int(1));
        }
        ask(&mut replies, 500);
        assert!(replies.can_expect(replies.expected_of(500)));
        assert_eq!(replies.expected_of(usize::MAX), MAX_REPLY as u64);
    }

    #[test]
    fn requests_under_way_are_bounded_in_bytes() {
        let mut replies = Replies::new();
        let first = replies.next();
        for _ in 0..5 {
            assert!(!replies.is_full());
            replies.expect(PLAIN, Cost { request: 16 << 20, need: 1 << 20, ..Cost::default() });
        }
        assert!(replies.is_full() && replies.needed() == 5 << 20);
        replies.finish(first.plus(3), &int(1));
        assert!(!replies.is_full() && replies.needed() == 4 << 20);
    }

    fn kept(reply: &[u8]) -> KeptReply {
        let mut batch = OutcomeBatch::new(GatewayId::of(0, 0));
        batch.push(ChunkNo(1), 0, Gsn::NONE, OutcomeStatus::Committed, |out| out.extend_from_slice(reply));
        let batch = Arc::new(batch);
        KeptReply::new(&batch, &batch.outcomes[0])
    }

    #[test]
    fn a_large_reply_is_encoded_as_room_comes_and_those_after_it_follow() {
        let mut large = Vec::new();
        Writer(&mut large).array(3);
        (0..3).for_each(|n| Writer(&mut large).bulk(&vec![b'0' + n; 3 * PIECE]));
        let mut replies = Replies::new();
        let asked: Vec<Sequence> = (0..4)
            .map(|n| {
                let next = replies.next();
                replies.expect(Style { silent: n == 2, ..PLAIN }, Cost::default());
                next
            })
            .collect();
        replies.finish(asked[3], &int(4));
        replies.finish(asked[0], &int(1));
        replies.finish_kept(asked[1], kept(&large));
        assert_eq!(replies.output(), b":1\r\n", "a piece is encoded when those before it are sent");
        replies.finish_kept(asked[2], kept(&large));
        replies.answer(PLAIN, &int(5));
        let mut expected = b":1\r\n".to_vec();
        encode(Protocol::Resp2, &large, &mut expected);
        expected.extend_from_slice(b":4\r\n:5\r\n");
        assert!(replies.unsent().abs_diff(expected.len()) < 100);
        let mut left = Vec::new();
        while !replies.output().is_empty() {
            assert!(replies.output().len() < PIECE + 100 && replies.out.capacity() < 2 * PIECE);
            let n = replies.output().len().min(100_000);
            left.extend_from_slice(&replies.output()[..n]);
            replies.sent(n);
        }
        assert!(left == expected);
        assert_eq!((replies.unsent(), replies.behind.len(), replies.pending()), (0, 0, 0));
    }

    #[test]
    fn words_are_those_of_their_request_whatever_the_order_of_answers() {
        let mut replies = Replies::new();
        let submit = |replies: &mut Replies, text: &'static [u8]| {
            let sequence = replies.next();
            replies.expect(PLAIN, Cost::default());
            let pack = Some(|out: &mut Vec<u8>| out.extend_from_slice(text));
            assert!(replies.describe(text.len(), 7, pack));
            assert!(!replies.describe(9, 9, None::<fn(&mut Vec<u8>)>), "it is described already");
            sequence
        };
        for round in 0..3 {
            let one = submit(&mut replies, b"a");
            let two = submit(&mut replies, b"bb");
            replies.answer(PLAIN, &int(0));
            assert!(!replies.describe(5, 5, None::<fn(&mut Vec<u8>)>), "it was answered at once");
            let three = submit(&mut replies, b"ccc");
            assert_eq!((replies.words_of(two), replies.words_of(three)), (&b"bb"[..], &b"ccc"[..]));
            assert_eq!(replies.done(two, &int(1)), Some(Done { command: 2, since: 7, failed: false }));
            replies.finish(two, &int(1));
            assert_eq!(replies.done(two, &int(1)), None);
            replies.finish(one, &int(1));
            assert_eq!((replies.words_of(three), replies.pending()), (&b"ccc"[..], 1), "{round}");
            let mut error = Vec::new();
            ordain_model::Writer(&mut error).error("ERR x");
            assert!(replies.done(three, &error).unwrap().failed);
            replies.finish(three, &error);
            assert_eq!((replies.words.len(), replies.words_from), (0, 0));
        }
    }

    #[test]
    fn words_that_are_kept_are_bounded() {
        let mut replies = Replies::new();
        let mut sequences = Vec::new();
        for _ in 0..100 {
            sequences.push(replies.next());
            replies.expect(PLAIN, Cost::default());
            replies.describe(1, 0, Some(|out: &mut Vec<u8>| out.resize(out.len() + 5000, 1)));
        }
        assert!(replies.words.len() < WORDS_MAX + 5000);
        assert_eq!((replies.words_of(sequences[0]).len(), replies.words_of(sequences[99]).len()), (5000, 0));
        sequences.into_iter().for_each(|sequence| replies.finish(sequence, &int(1)));
        assert_eq!((replies.words.len(), replies.pending()), (0, 0));
    }

    #[test]
    fn answers_that_are_not_awaited_are_ignored() {
        let mut replies = Replies::new();
        let first = replies.next();
        replies.finish(first, &int(1));
        replies.expect(PLAIN, Cost::default());
        replies.expect(PLAIN, Cost::default());
        replies.finish(first.plus(1), &int(2));
        replies.finish(first.plus(1), &int(3));
        replies.finish(first, &int(1));
        replies.finish(first, &int(4));
        assert_eq!(replies.output(), b":1\r\n:2\r\n");
        assert_eq!(replies.pending(), 0);
    }

    proptest! {
        /// Whatever the order of answers and sends, what leaves is in the order of the requests.
        #[test]
        fn replies_leave_in_order(script in proptest::collection::vec((0..4u8, any::<prop::sample::Index>()), 0..300)) {
            let mut replies = Replies::new();
            // Near the wrap-around of the sequence.
            replies.first = Sequence(Sequence::MASK - 3);
            let (mut asked, mut waiting, mut left) = (0i64, Vec::new(), Vec::new());
            for (step, which) in script {
                match step {
                    0 | 1 => {
                        waiting.push((replies.next(), asked));
                        replies.expect(PLAIN, Cost::default());
                        asked += 1;
                    }
                    2 => {
                        replies.answer(PLAIN, &int(asked));
                        asked += 1;
                    }
                    _ if !waiting.is_empty() => {
                        let (sequence, n) = waiting.swap_remove(which.index(waiting.len()));
                        replies.finish(sequence, &int(n));
                        let n = which.index(replies.output().len() + 1);
                        left.extend_from_slice(&replies.output()[..n]);
                        replies.sent(n);
                    }
                    _ => {}
                }
            }
            for (sequence, n) in waiting {
                replies.finish(sequence, &int(n));
            }
            left.extend_from_slice(replies.output());
            let expected: String = (0..asked).map(|n| format!(":{n}\r\n")).collect();
            prop_assert_eq!(String::from_utf8(left).unwrap(), expected);
            prop_assert_eq!((replies.pending(), replies.early, replies.stash.len()), (0, 0, 0));
        }
    }
}
