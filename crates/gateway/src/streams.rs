//! Streams: the requests of a connection take effect in the order in which they are submitted.
//!
//! A sequencer puts the transactions of a chunk into its batch as they stand there, whichever partitions they touch. So all
//! requests of a stream that are under way are in *one* chunk, at the partition where the first of them was at home, and
//! what does not fit in there is held here until they are answered: a chunk that has left may be turned away, passed on, lost
//! or sent again, and no other could be sure of its place behind it. While a chunk is under way what comes
//! next gathers, and leaves together: a stream pays a round trip for what gathers in one, not for each request. On a node
//! that has no others chunks come to the one sequencer in order and cannot be lost, so there several may be under way, but
//! not of reads on snapshots: the node's shards have come to different epochs.
//!
//! What could still fall behind, and why it does not:
//!
//! - *Moved.* A transaction that joins others under way [follows](ordain_model::Txn::follows) them: it is turned back by
//!   any other map than its chunk's, wherever its own slots are. So all behind the first that is turned back are
//!   turned back too, and are held and planned again in order. What is planned by a newer map waits for what was planned by an older one.
//! - *Reads that are run again.* Reads that are not logged are run again if a chunk is passed on again. Those of a stream that has
//!   writes in the chunk are logged, and given up like writes. Of one that only reads, the first outcome tells where the chunk stands, and
//!   one that stands elsewhere is not taken.
//! - *Reads on snapshots* have a place that nobody knows before it is answered: what is to be sequenced waits for them, and
//!   they wait for what is sequenced, or go through the order behind it.
//! - *Requests that may have to start over* (reconnaissance, numbered requests of a session) have nothing under way
//!   before them or behind them.
//! - One that has to be asked again although a later one has a place already cannot have its own any more: it is
//!   answered as [`OutcomeStatus::Busy`], as it had no effect.

use std::collections::VecDeque;

use ordain_model::{
    Abort, Args, ArgsBuilder, Call, Chunk, ChunkNo, OutcomeStatus, PartitionId, PlanError, Stamp, Token,
    View, Writer,
};
use ordain_role::Bug;

use crate::pending::{Asker, Place, Waiter};
use crate::reconnaissance::Dependent;
use crate::submit::{Admitted, check_number};
use crate::{Finished, Gateway, Path, Ticket};

/// A connection, by a small number of the caller's: its requests take effect in the order in which they are submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream(pub u32);

/// The place of a request in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamPlace {
    stream: Stream,
    /// Consecutive in a stream, modulo 2^32.
    number: u32,
}

/// The connections whose requests are kept in order.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// By the number of the stream.
    lines: Vec<Line>,
    /// The streams that may go on with what they hold.
    ready: Vec<Stream>,
    /// The number of requests that all of them hold.
    held: usize,
}

/// A stream: which of its requests are under way, and which wait for those.
#[derive(Debug)]
struct Line {
    /// The number of its next request.
    next: u32,
    /// How many of its requests are under way to be sequenced, and on snapshots; never both.
    ordered: u32,
    reading: u32,
    /// The chunk that its last request was put into, with what else of it is under way unless there is no other node.
    chunk: ChunkNo,
    /// The first of its requests there, and whether any of them writes.
    first: u32,
    writes: bool,
    /// The partition that sequences that chunk.
    home: PartitionId,
    /// By which map it was planned: [`Gateway::plans`].
    plans: u32,
    /// The requests under way have to be answered before anything else is submitted.
    is_exclusive: bool,
    /// The last request that has a place in the order.
    last: Option<u32>,
    /// The token of all that it was told of.
    seen: Token,
    /// The requests that wait for those under way, in order.
    held: VecDeque<Held>,
}

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) asker: Asker,
    pub(crate) call: Call,
    view: View,
    args: Vec<u8>,
    /// The request writes, and was submitted before, in another chunk.
    is_again: bool,
}

impl Held {
    /// A transaction of a chunk, to be asked for again.
    pub(crate) fn of(asker: Asker, view: Option<View>, chunk: &Chunk, index: u32, is_again: bool) -> Held {
        let txn = &chunk.txns()[index as usize];
        let args = chunk.args(txn).encoded().to_vec();
        Held { asker, call: txn.call, view: view.unwrap_or(View::Ordered), args, is_again }
    }
}

impl Line {
    const fn new() -> Line {
        Line {
            next: 0,
            ordered: 0,
            reading: 0,
            chunk: ChunkNo(0),
            first: 0,
            writes: false,
            home: PartitionId(0),
            plans: 0,
            is_exclusive: false,
            last: None,
            seen: Token::NOTHING,
            held: VecDeque::new(),
        }
    }

    const fn is_idle(&self) -> bool {
        self.ordered == 0 && self.reading == 0
    }

    /// Counts a request out that is not under way any more.
    fn leave(&mut self, is_read: bool) {
        let under_way = if is_read { &mut self.reading } else { &mut self.ordered };
        *under_way = under_way.saturating_sub(1);
        self.is_exclusive &= !self.is_idle();
    }

    /// The view of a request that is submitted now, if it only reads.
    fn view(&self, view: View) -> View {
        match view {
            _ if self.ordered > 0 => View::Ordered,
            View::Since(token) => View::Since(token.merged(&self.seen)),
            View::Open(token) => View::Open(token.merged(&self.seen)),
            View::Ordered | View::At(..) | View::Within(_) => view,
        }
    }

    /// The view of a request that is held now. One that was sent behind a write is to see it, and a snapshot may be too early
    /// for that even once the write is answered. One that opens a state waits until nothing is ordered before it.
    fn view_of_held(&self, view: View) -> View {
        if matches!(view, View::Open(_) | View::Within(_)) { view } else { self.view(view) }
    }
}

impl Streams {
    /// Knows a stream from now on.
    fn open(&mut self, stream: Stream) {
        let at = stream.0 as usize;
        if self.lines.len() <= at {
            self.lines.resize_with(at + 1, Line::new);
        }
    }

    fn get(&self, stream_place: StreamPlace) -> Option<&Line> {
        self.lines.get(stream_place.stream.0 as usize)
    }

    fn get_mut(&mut self, stream_place: StreamPlace) -> Option<&mut Line> {
        self.lines.get_mut(stream_place.stream.0 as usize)
    }

    /// A stream that is [open](Streams::open).
    fn line(&self, stream: Stream) -> &Line {
        &self.lines[stream.0 as usize]
    }

    fn line_mut(&mut self, stream: Stream) -> &mut Line {
        &mut self.lines[stream.0 as usize]
    }

    /// The number of requests that are held.
    pub(crate) const fn held(&self) -> usize {
        self.held
    }

    fn hold(&mut self, stream: Stream, held: Held) {
        self.line_mut(stream).held.push_back(held);
        self.held += 1;
    }

    fn hold_first(&mut self, stream: Stream, held: Held) {
        self.line_mut(stream).held.push_front(held);
        self.held += 1;
    }

    /// Takes the first request that a stream holds.
    fn pop_held(&mut self, stream: Stream) -> Option<Held> {
        let held = self.lines.get_mut(stream.0 as usize)?.held.pop_front()?;
        self.held -= 1;
        Some(held)
    }

    /// Forgets all streams; answers the tickets of what they held.
    pub(crate) fn abandon(&mut self) -> impl Iterator<Item = Ticket> + use<> {
        let lines = std::mem::take(self).lines;
        lines.into_iter().flat_map(|line| line.held).map(|held| held.asker.ticket)
    }

    /// Checks the streams against the requests that wait: of each its place in its stream, and whether it is under
    /// way on a snapshot.
    ///
    /// # Errors
    /// What is broken.
    pub(crate) fn check(&self, places: impl Iterator<Item = (StreamPlace, bool)>) -> Result<(), String> {
        let mut under_way = vec![(0u32, 0u32); self.lines.len()];
        for (stream_place, is_read) in places {
            let Some((ordered, reading)) = under_way.get_mut(stream_place.stream.0 as usize) else {
                return Err(format!(
                    "a request of stream {} is under way, which is not known",
                    stream_place.stream.0
                ));
            };
            *(if is_read { reading } else { ordered }) += 1;
        }
        let mut held = 0;
        for (stream, (line, counted)) in self.lines.iter().zip(under_way).enumerate() {
            if (line.ordered, line.reading) != counted {
                let (ordered, reading) = (line.ordered, line.reading);
                return Err(format!(
                    "stream {stream} counts {ordered} and {reading} under way; there are {counted:?}"
                ));
            }
            if line.ordered > 0 && line.reading > 0 {
                return Err(format!("stream {stream} has requests in the order and on snapshots at once"));
            }
            if line.is_idle() && !line.held.is_empty() {
                return Err(format!("stream {stream} holds requests, and nothing is under way of it"));
            }
            held += line.held.len();
        }
        if held != self.held {
            return Err(format!("{} held requests are counted and there are {held}", self.held));
        }
        Ok(())
    }
}

/// Whether a number comes before another in a stream.
const fn is_before(number: u32, other: u32) -> bool {
    (number.wrapping_sub(other) as i32) < 0
}

impl Gateway {
    /// Adds a request of a stream: it takes effect after those that were submitted in it before, and before those to come.
    /// If it only reads it is to see what the view says, and those before it. A view of one fixed state has no place among
    /// them. Answers which way the request takes, as far as that is known.
    ///
    /// # Errors
    /// As [`Gateway::submit`].
    #[inline]
    pub fn submit_in_order(
        &mut self,
        stream: Stream,
        ticket: Ticket,
        mut call: Call,
        view: View,
        write_args: impl FnOnce(&mut ArgsBuilder<'_>),
    ) -> Result<Path, PlanError> {
        if matches!(view, View::At(..)) {
            return self.submit_to(ticket, call, view, write_args);
        }
        check_number(&mut call)?;
        self.streams.open(stream);
        let is_dependent = self.is_dependent(&call);
        let line = self.streams.line(stream);
        let stream_place = StreamPlace { stream, number: line.next };
        let asker = Asker { ticket, late: 0, stream_place: Some(stream_place) };
        let must_wait = !line.held.is_empty() || !self.may_begin(line, &call, &view, is_dependent);
        let (waits, path) = if must_wait && !self.bugs.has(Bug::ForgetStay) {
            (Some(self.look_at(call, is_dependent, write_args)?), Path::Order)
        } else if is_dependent {
            let mut args = Vec::new();
            write_args(&mut ArgsBuilder::new(&mut args));
            self.begin_dependent(
                stream_place,
                Dependent::new((ticket, Some(stream_place)), call, args, line.view(view.clone())),
            )
            .map_err(|(_, refusal)| refusal)?;
            (None, Path::Order)
        } else {
            let near =
                if line.ordered > 0 && !self.bugs.has(Bug::ForgetStay) { line.home } else { self.last_home };
            match self.admit_near(near, asker, call, line.view(view.clone()), write_args)? {
                Admitted::Placed(_, path) => (None, path),
                Admitted::NotYet(args) => (Some(args), Path::Order),
            }
        };
        let line = self.streams.line_mut(stream);
        line.next = line.next.wrapping_add(1);
        if let Some(args) = waits {
            let view = line.view_of_held(view);
            self.streams.hold(stream, Held { asker, call, view, args, is_again: false });
        }
        #[cfg(test)]
        assert_eq!(self.check(), Ok(()));
        Ok(path)
    }

    /// The arguments of a request that is not submitted yet, unless they are refused.
    fn look_at(
        &mut self,
        call: Call,
        is_dependent: bool,
        write_args: impl FnOnce(&mut ArgsBuilder<'_>),
    ) -> Result<Vec<u8>, PlanError> {
        if is_dependent {
            // What it is refused for shows when its keys are looked for.
            let mut args = Vec::new();
            write_args(&mut ArgsBuilder::new(&mut args));
            return Ok(args);
        }
        let args = self.aside.push(&self.registry, call, write_args).map(drop);
        let args = args.map(|()| {
            let chunk = &self.aside;
            chunk.txns().last().map(|txn| chunk.args(txn).encoded().to_vec()).unwrap_or_default()
        });
        self.aside.clear();
        args
    }

    /// Whether a request of a stream may be submitted, as far as that can be told before it is planned.
    fn may_begin(&self, line: &Line, call: &Call, view: &View, is_dependent: bool) -> bool {
        let is_exclusive = is_dependent || call.session.is_some() || matches!(view, View::Within(_));
        let opens_late = matches!(view, View::Open(_)) && line.ordered > 0;
        line.is_idle() || !(line.is_exclusive || is_exclusive || opens_late || line.plans != self.plans)
    }

    /// Whether what was put last into the chunk of a stream is not on its way yet, so that more can be.
    fn is_open(&self, chunk: ChunkNo) -> bool {
        self.pending.get(chunk).is_some_and(|submitted| submitted.is_open)
    }

    /// Whether a request may be sequenced now, behind what is under way of its stream.
    #[inline]
    pub(crate) fn may_order(&self, asker: Asker) -> bool {
        let Some(line) = asker.stream_place.and_then(|stream_place| self.streams.get(stream_place)) else {
            return true;
        };
        let may_join =
            || self.keeps_order && line.reading == 0 && (self.is_alone || self.is_open(line.chunk));
        line.is_idle() || self.bugs.has(Bug::ForgetStay) || may_join()
    }

    /// Whether a request may be run on a snapshot now, behind what is under way of its stream.
    #[inline]
    pub(crate) fn may_read(&self, asker: Asker) -> bool {
        let Some(line) = asker.stream_place.and_then(|stream_place| self.streams.get(stream_place)) else {
            return true;
        };
        // The later of two chunks of reads may be answered as of an earlier epoch, also on a node without peers: its shards
        // have come to different epochs.
        let may_join = || line.ordered == 0 && self.is_open(line.chunk);
        line.is_idle() || self.bugs.has(Bug::ForgetStay) || may_join()
    }

    /// The home of a request for which one partition is best.
    #[inline]
    pub(crate) fn home_in_order(&self, asker: Asker, best: PartitionId) -> PartitionId {
        let line = asker.stream_place.and_then(|stream_place| self.streams.get(stream_place));
        line.filter(|line| line.ordered > 0 && !self.bugs.has(Bug::ForgetStay)).map_or(best, |line| line.home)
    }

    /// Seats a request of a stream that was put last into a chunk which is to be sequenced at a home.
    pub(crate) fn sit_down(
        &mut self,
        stream_place: StreamPlace,
        (number, index): Place,
        (home, best): (PartitionId, PartitionId),
    ) {
        let Some(line) = self.streams.get_mut(stream_place) else { return };
        let chunk = &mut self.building[usize::from(home.0)];
        let Some(txn) = chunk.txns().last() else { return };
        let (is_write, is_numbered) = (!txn.read_only, txn.call.session.is_some());
        let follows = line.ordered > 0;
        if !follows || line.chunk != number {
            (line.chunk, line.first, line.writes) = (number, index, false);
        }
        line.ordered += 1;
        (line.home, line.plans, line.is_exclusive) = (home, self.plans, is_numbered);
        if follows && !self.bugs.has(Bug::ForgetStay) {
            chunk.mark_follower();
        }
        if self.is_alone || self.bugs.has(Bug::ForgetStay) && home == best {
            return;
        }
        let Some(submitted) = self.pending.get_mut(number) else { return };
        // Reads before the first write of the stream have its fate, as those behind it have.
        let is_first_write = is_write && !line.writes;
        line.writes |= is_write;
        let first = if is_first_write { line.first } else { index };
        let is_of_stream =
            |waiter: &&mut Waiter| waiter.stream_place.is_some_and(|s| s.stream == stream_place.stream);
        for waiter in submitted.waiters[first as usize..].iter_mut().filter(is_of_stream) {
            let is_foreign = home != best && !line.writes;
            if is_numbered || !line.writes && !is_foreign {
                continue;
            }
            waiter.is_fixed |= line.writes;
            // It may be sequenced elsewhere than where it is read, or must not be read again elsewhere in the order.
            submitted.logs_reads |= std::mem::replace(&mut waiter.may_be_led, false);
        }
    }

    /// Seats a request of a stream that was put last into the chunk of reads.
    pub(crate) fn wait_as_read(&mut self, stream_place: StreamPlace, (number, _): Place) {
        let Some(line) = self.streams.get_mut(stream_place) else { return };
        let follows = line.reading > 0;
        line.reading += 1;
        (line.chunk, line.plans, line.is_exclusive) = (number, self.plans, false);
        if follows && !self.bugs.has(Bug::ForgetStay) {
            self.reading.mark_follower();
        }
    }

    fn begin_dependent(
        &mut self,
        stream_place: StreamPlace,
        dependent: Dependent,
    ) -> Result<(), (Ticket, PlanError)> {
        self.go_on(dependent)?;
        if let Some(line) = self.streams.get_mut(stream_place) {
            line.ordered += 1;
            (line.plans, line.is_exclusive) = (self.plans, true);
        }
        Ok(())
    }

    /// Ends the place of a request in its stream.
    #[inline]
    pub(crate) fn leave_stream(
        &mut self,
        stream_place: Option<StreamPlace>,
        is_read: bool,
        finished: &Finished<'_>,
    ) {
        let Some(stream_place) = stream_place else { return };
        let Some(line) = self.streams.get_mut(stream_place) else { return };
        let number = stream_place.number;
        line.leave(is_read);
        if finished.stamp != Stamp::NONE {
            line.seen.merge(finished.token);
            line.last = Some(line.last.filter(|last| is_before(number, *last)).unwrap_or(number));
        }
        if line.is_idle() && !line.held.is_empty() {
            self.streams.ready.push(stream_place.stream);
        }
    }

    /// Takes back a request of a stream that was under way: it is submitted again, in its order.
    pub(crate) fn come_back(&mut self, stream_place: StreamPlace, is_read: bool, held: Held) {
        let Some(line) = self.streams.get_mut(stream_place) else { return };
        line.leave(is_read);
        let is_ahead = |other: &Held| {
            other.asker.stream_place.is_some_and(|other| is_before(other.number, stream_place.number))
        };
        let at = line.held.iter().take_while(|other| is_ahead(other)).count();
        line.held.insert(at, held);
        let is_idle = line.is_idle();
        self.streams.held += 1;
        if is_idle {
            self.streams.ready.push(stream_place.stream);
        }
    }

    /// Submits what streams have held that nothing is under way of any more.
    pub(crate) fn go_on_with_held(&mut self, done: &mut impl FnMut(&mut Gateway, Finished<'_>)) {
        while let Some(stream) = self.streams.ready.pop() {
            while let Some(held) = self.streams.pop_held(stream) {
                let (ticket, last) = (held.asker.ticket, self.streams.line(stream).last);
                let is_overtaken = held
                    .asker
                    .stream_place
                    .zip(last)
                    .is_some_and(|(stream_place, last)| is_before(stream_place.number, last));
                let path = if held.asker.late > 0 { Path::Snapshot } else { Path::Order };
                let (status, mut reply) = (OutcomeStatus::Aborted(Abort::Logic), Vec::new());
                let finished = Finished::nowhere(ticket, status, path);
                if is_overtaken {
                    // Somebody may have it still, if it writes.
                    let status = if held.is_again { OutcomeStatus::Unknown } else { OutcomeStatus::Busy };
                    done(self, Finished { status, ..finished });
                    continue;
                }
                match self.submit_held(held) {
                    Ok(None) => {}
                    Ok(Some(held)) => {
                        self.streams.hold_first(stream, held);
                        break;
                    }
                    Err(refusal) => {
                        Writer(&mut reply).error(&refusal.0);
                        done(self, Finished { reply: &reply, ..finished });
                    }
                }
            }
        }
    }

    /// Submits a request that was held; gives it back if it has to wait longer.
    fn submit_held(&mut self, held: Held) -> Result<Option<Held>, PlanError> {
        let Held { asker, call, ref view, .. } = held;
        let Some(stream_place) = asker.stream_place else { return Ok(None) };
        let line = self.streams.line(stream_place.stream);
        let is_dependent = self.is_dependent(&call);
        if !self.may_begin(line, &call, view, is_dependent) {
            let view = line.view_of_held(view.clone());
            return Ok(Some(Held { view, ..held }));
        }
        let seen = line.view(view.clone());
        if is_dependent {
            let dependent = Dependent::new((asker.ticket, asker.stream_place), call, held.args, seen);
            return self
                .begin_dependent(stream_place, dependent)
                .map(|()| None)
                .map_err(|(_, refusal)| refusal);
        }
        let near = if line.ordered > 0 { line.home } else { self.last_home };
        let args = Args::parse(&held.args).ok_or(PlanError::fixed("ERR damaged arguments"))?;
        let write = |out: &mut ArgsBuilder<'_>| args.iter().for_each(|arg| _ = out.push(arg.bytes));
        match self.admit_near(near, asker, call, seen, write)? {
            Admitted::NotYet(args) => {
                let view = self.streams.line(stream_place.stream).view_of_held(held.view);
                Ok(Some(Held { view, args, ..held }))
            }
            Admitted::Placed(place, _) => {
                self.pending.mark_again(place, held.is_again);
                Ok(None)
            }
        }
    }
}
