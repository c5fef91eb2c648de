//! Lost nodes: which requests are asked again, sent again, or given up.
//!
//! Each request knows on which nodes its answer hangs: the one whose sequencer its chunk was sent to, and the one that
//! is to send the outcome ([`Gateway::give_up`]). What only reads and what has a session is asked again, as a new
//! request. Any other may take effect but once, so its *chunk* is sent again, under the number that it has: members put
//! a chunk in one of their batches at most, by whatever ways it comes to them. If it is only now put in one, the outcome
//! comes from a replica that is whole. If it had been before, its outcome was addressed to the node that is lost; as long
//! as that may still send it, it is waited for, and then the request's end is not known.

use std::sync::Arc;

use ordain_model::{Chunk, ChunkNo, PartitionId, View};

use crate::pending::{Asker, Place, Submitted, Waiter};
use crate::streams::Held;
use crate::{Departure, Finished, Gateway, Path};

/// A node from which answers to what was asked before may not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owed {
    /// The node.
    pub node: u16,
    /// Its replica.
    pub replica: u16,
    /// Its partition.
    pub partition: PartitionId,
    /// Messages on their way to it or from it are gone. If not, an answer may be long in coming, and others could give it.
    pub is_gone: bool,
    /// Its members could sequence in its place.
    pub has_members: bool,
}

impl Owed {
    /// Whether the chunk itself may be lost.
    fn holds(&self, submitted: &Submitted) -> bool {
        submitted.asked == Some(self.node)
    }

    /// Whether it is the node that sends the outcome of a request.
    fn answers(&self, submitted: &Submitted, chunk: &Chunk, waiter: &Waiter) -> bool {
        let is_to = submitted.asked.is_some() && chunk.replica == self.replica;
        if submitted.view.is_some() {
            // Anybody there may take part.
            return is_to;
        }
        waiter.answers == self.partition && (is_to || submitted.formerly.contains(&self.replica))
    }

    /// Whether it may have led where a request is sequenced, and have turned it away: nobody else says so.
    fn turned_away(&self, submitted: &Submitted) -> bool {
        submitted.was_sent() && submitted.view.is_none() && submitted.home == self.partition
    }

    /// Whether it may have led where a request was sequenced, and be the only one who could answer it.
    fn led(&self, submitted: &Submitted, waiter: &Waiter) -> bool {
        let is_there = submitted.home == self.partition || waiter.answers == self.partition;
        waiter.may_be_led && submitted.was_sent() && is_there
    }

    /// Finds what of a chunk is lost with the node: the transactions that are asked again or given up, each with whether it
    /// may be submitted once more; and whether the chunk is to be sent again for another.
    fn lost_of(&self, submitted: &Submitted, chunk: &Chunk) -> (Vec<(u32, bool)>, bool) {
        let is_held = self.holds(submitted);
        let may_be_away = self.is_gone && self.turned_away(submitted);
        let (mut lost, mut is_sent_again) = (Vec::new(), false);
        for (index, waiter) in (0..).zip(&submitted.waiters).filter(|(_, waiter)| waiter.is_waiting()) {
            let txn = &chunk.txns()[index as usize];
            let answers = self.answers(submitted, chunk, waiter);
            let may_repeat = (txn.read_only && !waiter.is_fixed) || txn.call.session.is_some();
            let is_lost = match may_repeat {
                true => {
                    let is_there = is_held || self.turned_away(submitted);
                    is_there || answers || self.led(submitted, waiter)
                }
                false => self.is_gone && (answers || is_held && !self.has_members),
            };
            if is_lost {
                lost.push((index, may_repeat));
            } else {
                is_sent_again |= (is_held || may_be_away) && !may_repeat;
            }
        }
        (lost, is_sent_again)
    }
}

/// A transaction whose outcome may be lost.
struct Lost {
    place: Place,
    asker: Asker,
    view: Option<View>,
    chunk: Arc<Chunk>,
    /// The transaction may be submitted once more.
    may_repeat: bool,
}

impl Gateway {
    /// Gives up what a node owes that cannot be reached, or has lost what was under way.
    ///
    /// What only reads is asked again, and so is what has a session: it takes effect once. The chunk of every other request
    /// is sent again if the node has members and may not have come to it, or may have turned it away in words that are gone:
    /// members agree on a chunk once, and whoever has turned it away says so again. A request whose outcome may have been on
    /// its way is reported as [`OutcomeStatus::Unknown`](ordain_model::OutcomeStatus::Unknown) once that is gone.
    pub fn give_up(&mut self, owed: Owed, mut done: impl FnMut(&mut Gateway, Finished<'_>)) {
        let waiting = self.flows.get_mut(&owed.node).map(|flow| flow.give_up(owed.is_gone));
        self.leave_first(waiting.unwrap_or_default());
        let mut lost = Vec::new();
        for number in self.pending.numbers() {
            let Some(submitted) = self.pending.get(number) else { continue };
            let Some(chunk) = submitted.chunk.clone() else { continue };
            let view = submitted.view.clone();
            let (indexes, is_sent_again) = owed.lost_of(submitted, &chunk);
            for (index, may_repeat) in indexes {
                let place = (number, index);
                let Some((asker, _)) = self.pending.take(place) else { continue };
                lost.push(Lost { place, asker, view: view.clone(), chunk: chunk.clone(), may_repeat });
            }
            if is_sent_again && owed.has_members {
                self.send_again(number, chunk);
            }
        }
        for lost in lost {
            self.ask_or_end(lost, &mut done);
        }
        self.settle(&mut done);
    }

    /// Sends a chunk again, unless it is on its way again already.
    fn send_again(&mut self, number: ChunkNo, chunk: Arc<Chunk>) {
        let Some(submitted) = self.pending.get_mut(number) else { return };
        if submitted.asked.take().is_none() {
            return;
        }
        if !submitted.formerly.contains(&chunk.replica) {
            submitted.formerly.push(chunk.replica);
        }
        self.closed.push_back(Departure::Order(submitted.home, chunk));
    }

    /// Asks again for a transaction whose outcome may be lost, or reports that its end is not known.
    fn ask_or_end(&mut self, lost: Lost, done: &mut impl FnMut(&mut Gateway, Finished<'_>)) {
        let Lost { place, asker, view, chunk, may_repeat } = lost;
        let dependent = self.dependents.remove(&place);
        let is_write = may_repeat && !chunk.txns()[place.1 as usize].read_only;
        if let Some(stream_place) = asker.stream_place.filter(|_| may_repeat) {
            return self.come_back(
                stream_place,
                view.is_some(),
                Held::of(asker, view, &chunk, place.1, is_write),
            );
        }
        let (is_read, view) = (view.is_some(), view.unwrap_or(View::Ordered));
        if may_repeat && let Some(at) = self.ask_again(asker, view, &chunk, place.1) {
            self.pending.mark_again(at, is_write);
            return self.wait_on(Some(at), dependent);
        }
        let is_read = is_read && dependent.is_none();
        let stream_place = dependent.map_or(asker.stream_place, |dependent| dependent.stream_place);
        let unknown = Finished::unknown(asker.ticket, Path::Order);
        self.leave_stream(stream_place, is_read, &unknown);
        done(self, unknown);
    }

    /// Waits no longer: every request that is not finished is reported as
    /// [`OutcomeStatus::Unknown`](ordain_model::OutcomeStatus::Unknown).
    pub fn abandon(&mut self, mut done: impl FnMut(&mut Gateway, Finished<'_>)) {
        let mut left = Vec::with_capacity(self.outstanding());
        let waiting = |(number, submitted): (ChunkNo, &Submitted)| {
            let indexes = 0..submitted.waiters.len() as u32;
            let is_read = submitted.view.is_some();
            indexes.map(move |index| ((number, index), is_read)).collect::<Vec<_>>()
        };
        let places: Vec<(Place, bool)> = self.pending.iter().flat_map(waiting).collect();
        for (place, is_read) in places {
            let Some((asker, _)) = self.pending.take(place) else { continue };
            left.push((asker.ticket, if is_read || asker.late > 0 { Path::Snapshot } else { Path::Order }));
        }
        left.extend(self.streams.abandon().map(|ticket| (ticket, Path::Order)));
        self.dependents.clear();
        for (ticket, path) in left {
            done(self, Finished::unknown(ticket, path));
        }
        self.pending.forget_finished();
    }
}
