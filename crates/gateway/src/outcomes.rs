//! Outcomes: requests end, or are submitted again because theirs does not count.
//!
//! A read whose state is not kept any more is asked again for a later one, and in the end in the order. A transaction
//! that was planned by a [map](Map) under which its slots are elsewhere comes back as [`OutcomeStatus::Moved`], which says
//! where they are, and is planned again; nobody else hears of that, and it does not count as a stale reconnaissance.

use std::sync::Arc;

use ordain_model::args::ArgsBuilder;
use ordain_model::outcome::Outcome;
use ordain_model::wire::Codec as _;
use ordain_model::{Call, Chunk, Front, Map, OutcomeBatch, OutcomeStatus, View};

use crate::pending::{Asker, Place};
use crate::reconnaissance::{Dependent, Stage};
use crate::streams::Held;
use crate::submit::next_attempt;
use crate::{Departure, Finished, Gateway, Lease, Path};

/// How often a request is run on a snapshot again because the state before was not kept, before it is sequenced.
const MAX_LATE: u8 = 3;

/// A transaction that was planned under a map by which its slots were elsewhere.
#[derive(Debug)]
struct Refuted {
    place: Place,
    asker: Asker,
    /// The map that was in force at its place.
    map: Map,
}

/// The meaning of an outcome for the request that waits for it.
enum Meaning {
    /// The transaction has ended.
    Ended,
    /// The state that it was to see is not kept any more.
    Late,
    /// The transaction was planned under another map than this one, which was in force at its place.
    Refuted(Map),
    /// The transaction only reads, and was run once more, behind what follows it in this chunk: that place is not its own.
    RunAgain(Arc<Chunk>),
}

impl Gateway {
    /// Takes outcomes and reports each request that they finish. An outcome that nobody waits for (the node was
    /// restarted, or it came twice) is ignored.
    pub fn take_outcomes(&mut self, batch: &OutcomeBatch, mut done: impl FnMut(Finished<'_>)) {
        self.take_outcomes_with(batch, |_, finished| done(finished));
    }

    /// Takes outcomes as [`Gateway::take_outcomes`] does, for callers that may have something to submit at once.
    pub fn take_outcomes_with(
        &mut self,
        batch: &OutcomeBatch,
        mut done: impl FnMut(&mut Gateway, Finished<'_>),
    ) {
        let (mut late, mut refuted) = (Vec::new(), Vec::new());
        for outcome in &batch.outcomes {
            let place = (outcome.chunk, outcome.index);
            let Some((asker, is_again)) = self.pending.take(place) else { continue };
            let lease = self.end_reads(outcome);
            match self.meaning(batch, outcome, asker) {
                Meaning::Ended => self.end(batch, outcome, (asker, is_again), lease, &mut done),
                Meaning::Late => late.push((place, Asker { late: asker.late + 1, ..asker })),
                Meaning::Refuted(map) => refuted.push(Refuted { place, asker, map }),
                Meaning::RunAgain(chunk) => {
                    let Some(stream_place) = asker.stream_place else { continue };
                    self.come_back(stream_place, false, Held::of(asker, None, &chunk, outcome.index, false));
                }
            }
        }
        if !late.is_empty() {
            self.read_again(late);
        }
        refuted.into_iter().for_each(|refuted| self.plan_again(refuted));
        self.settle(&mut done);
    }

    /// Submits what streams have held and may submit now, and forgets what is finished.
    pub(crate) fn settle(&mut self, done: &mut impl FnMut(&mut Gateway, Finished<'_>)) {
        self.go_on_with_held(done);
        self.pending.forget_finished();
        #[cfg(test)]
        assert_eq!(self.check(), Ok(()));
    }

    /// Says to the sequencer that a chunk of reads is answered, once it is, unless its state is to be kept.
    #[inline]
    fn end_reads(&mut self, outcome: &Outcome) -> Option<Lease> {
        let submitted = self.pending.get(outcome.chunk)?;
        let view = submitted.view.as_ref().filter(|_| submitted.is_answered())?;
        let node = submitted.asked.unwrap_or(self.id.node());
        if matches!(view, View::Open(_)) && outcome.status == OutcomeStatus::Committed {
            return Some(Lease { node, number: outcome.chunk });
        }
        self.closed.push_back(Departure::Word(node, Front::ReadDone(self.id, outcome.chunk)));
        None
    }

    /// Sorts an outcome by what becomes of the request.
    #[inline]
    fn meaning(&mut self, batch: &OutcomeBatch, outcome: &Outcome, asker: Asker) -> Meaning {
        let Some(submitted) = self.pending.get_mut(outcome.chunk) else { return Meaning::Ended };
        match outcome.status {
            OutcomeStatus::TooOld if matches!(submitted.view, Some(View::Since(_) | View::Open(_))) => {
                return Meaning::Late;
            }
            OutcomeStatus::Moved => {
                if let Some(map) = Map::from_bytes(batch.reply(outcome)) {
                    return Meaning::Refuted(map);
                }
            }
            _ => {}
        }
        if asker.stream_place.is_some() && submitted.is_of_another_run(outcome, &*self.backend) {
            return submitted.chunk.clone().map_or(Meaning::Ended, Meaning::RunAgain);
        }
        Meaning::Ended
    }

    /// Ends a transaction: the request is finished, or goes on with its next one.
    #[inline]
    fn end(
        &mut self,
        batch: &OutcomeBatch,
        outcome: &Outcome,
        (asker, is_again): (Asker, bool),
        lease: Option<Lease>,
        done: &mut impl FnMut(&mut Gateway, Finished<'_>),
    ) {
        let Some(submitted) = self.pending.get(outcome.chunk) else { return };
        let is_read = submitted.view.is_some();
        // One sequencer has turned it away, and another may have it still.
        let is_turned_away = matches!(outcome.status, OutcomeStatus::Busy | OutcomeStatus::Refused);
        let is_elsewhere = is_turned_away && (is_again || !submitted.formerly.is_empty());
        let status = if is_elsewhere { OutcomeStatus::Unknown } else { outcome.status };
        let (token, reply) = (batch.token(outcome), batch.reply(outcome));
        self.newest.merge(token);
        let finished = Finished {
            ticket: asker.ticket,
            status,
            stamp: outcome.stamp,
            token,
            // As it was told when it was submitted.
            path: if is_read || asker.late > 0 { Path::Snapshot } else { Path::Order },
            reply,
            restarts: 0,
            lease,
            outcome: Some(outcome),
        };
        let dependent = match self.dependents.is_empty() {
            true => None,
            false => self.dependents.remove(&(outcome.chunk, outcome.index)),
        };
        match dependent {
            None => {
                self.leave_stream(asker.stream_place, is_read, &finished);
                done(self, finished);
            }
            Some(dependent) => self.take_step(dependent, Finished { path: Path::Order, ..finished }, done),
        }
    }

    /// Puts a transaction of a chunk that was submitted into another chunk.
    pub(crate) fn ask_again(&mut self, asker: Asker, view: View, chunk: &Chunk, index: u32) -> Option<Place> {
        let call = chunk.txns()[index as usize].call;
        self.ask_again_as(call, asker, view, chunk, index)
    }

    /// Puts a transaction of a chunk that was submitted into another chunk, as another call with its arguments.
    fn ask_again_as(
        &mut self,
        call: Call,
        asker: Asker,
        view: View,
        chunk: &Chunk,
        index: u32,
    ) -> Option<Place> {
        let args = chunk.args(&chunk.txns()[index as usize]);
        let write = |out: &mut ArgsBuilder<'_>| args.iter().for_each(|arg| _ = out.push(arg.bytes));
        // It was planned before, so it is not refused now.
        self.admit(asker, call, view, write).ok().map(|(place, _)| place)
    }

    /// Plans a transaction again that took no effect, because it was planned under a map by which its slots are elsewhere.
    fn plan_again(&mut self, Refuted { place, asker, map }: Refuted) {
        let Some(submitted) = self.pending.get(place.0) else { return };
        let (Some(chunk), view) = (submitted.chunk.clone(), submitted.view.clone()) else { return };
        let dependent = self.dependents.remove(&place);
        match view {
            Some(view) => self.read_under(&map, view, (asker, dependent), (&chunk, place.1)),
            None => self.order_under(&map, (asker, dependent), (&chunk, place.1)),
        }
    }

    /// Asks again for a read that was planned under another map than the one of the state that it was to see.
    fn read_under(
        &mut self,
        map: &Map,
        view: View,
        (asker, dependent): (Asker, Option<Dependent>),
        (chunk, index): (&Chunk, u32),
    ) {
        let known = self.map().clone();
        let is_newer = map.version() > known.version();
        // The state that was to be read may be of before a move that is known here.
        let is_of_one_state = matches!(view, View::At(..));
        let again = if asker.late < MAX_LATE || is_of_one_state { view } else { View::Ordered };
        let asker = Asker { late: asker.late.saturating_add(1), ..asker };
        if let Some(stream_place) = asker.stream_place {
            if is_newer {
                self.plan_by(map);
            }
            return self.come_back(stream_place, true, Held::of(asker, Some(again), chunk, index, false));
        }
        self.plan_by(if again == View::Ordered && !is_newer { &known } else { map });
        let at = self.ask_again(asker, again, chunk, index);
        self.plan_by(if is_newer { map } else { &known });
        self.wait_on(at, dependent);
    }

    /// Asks again for a transaction that was planned under another map than the one in force at its place in the order.
    fn order_under(
        &mut self,
        map: &Map,
        (asker, mut dependent): (Asker, Option<Dependent>),
        (chunk, index): (&Chunk, u32),
    ) {
        let known = self.map();
        // What is known here may be newer, or may be of a part of the order that was lost.
        if map.version() > known.version() || chunk.map == *known {
            self.plan_by(map);
        }
        let txn = &chunk.txns()[index as usize];
        let mut call = txn.call;
        if let Some((_, request)) = call.session.as_mut().filter(|_| !txn.read_only) {
            // It was sequenced under that number.
            *request = next_attempt(*request);
        }
        if let Some(Dependent { call: asked, stage: Stage::Running, .. }) = &mut dependent {
            asked.session = call.session;
        }
        if let Some(stream_place) = asker.stream_place {
            let mut held = Held::of(asker, None, chunk, index, false);
            held.call = call;
            return self.come_back(stream_place, false, held);
        }
        let at = self.ask_again_as(call, asker, View::Ordered, chunk, index);
        self.wait_on(at, dependent);
    }

    /// Has a dependent request wait for the transaction at another place.
    pub(crate) fn wait_on(&mut self, at: Option<Place>, dependent: Option<Dependent>) {
        if let Some((at, dependent)) = at.zip(dependent) {
            self.dependents.insert(at, dependent);
        }
    }

    /// Asks again for reads whose state is not kept any more: for a later one, and in the end in the order.
    fn read_again(&mut self, late: Vec<(Place, Asker)>) {
        for (place, asker) in late {
            let Some(submitted) = self.pending.get(place.0) else { continue };
            let Some(chunk) = submitted.chunk.clone() else { continue };
            let view = submitted.view.clone().filter(|_| asker.late < MAX_LATE).unwrap_or(View::Ordered);
            if let Some(stream_place) = asker.stream_place {
                self.come_back(stream_place, true, Held::of(asker, Some(view), &chunk, place.1, false));
                continue;
            }
            let dependent = self.dependents.remove(&place);
            let at = self.ask_again(asker, view, &chunk, place.1);
            self.wait_on(at, dependent);
        }
    }
}
