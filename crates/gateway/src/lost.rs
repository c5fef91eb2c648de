//! Lost nodes: which requests are asked again, sent again, or given up.

use ordain_model::{Chunk, ChunkNo, PartitionId, View};

use crate::streams::Held;
use crate::{Asker, Departure, Finished, Gateway, Path, Submitted, Waiter};

/// A node from which answers to what was asked before may not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owed {
    /// The node.
    pub node: u16,
    /// Its replica.
    pub replica: u16,
    /// Its partition.
    pub partition: PartitionId,
    /// What was on its way to it or from it is gone. If not, an answer may be long in coming, and others could give it.
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
}

impl Gateway {
    /// A node cannot be reached, or has lost what was under way. What only reads is asked again, and so is what has a
    /// session: it takes effect once. The chunk of every other request is sent again if the node has members and may not have
    /// come to it, or may have turned it away in words that are gone: members agree on a chunk once, and whoever has turned
    /// it away says so again. A request whose outcome may have been on its way is reported as
    /// [`OutcomeStatus::Unknown`](ordain_model::OutcomeStatus::Unknown) once that is gone.
    pub fn give_up(&mut self, owed: Owed, mut done: impl FnMut(&mut Gateway, Finished<'_>)) {
        let waiting = self.flows.get_mut(&owed.node).map(|flow| flow.give_up(owed.is_gone));
        self.leave_first(waiting.unwrap_or_default());
        let mut lost = Vec::new();
        for (number, submitted) in (self.oldest.0..).zip(&mut self.submitted) {
            let Some(chunk) = submitted.chunk.clone() else { continue };
            let mut tickets = std::mem::take(&mut submitted.tickets);
            let is_held = owed.holds(submitted);
            let may_be_away = owed.is_gone && owed.turned_away(submitted);
            let mut is_sent_again = false;
            for (index, waiter) in (0..).zip(&mut tickets).filter(|(_, waiter)| waiter.ticket.is_some()) {
                let txn = &chunk.txns()[index as usize];
                let answers = owed.answers(submitted, &chunk, waiter);
                let may_repeat = (txn.read_only && !waiter.is_fixed) || txn.call.session.is_some();
                let is_lost = match may_repeat {
                    true => {
                        let is_there = is_held || owed.turned_away(submitted);
                        is_there || answers || owed.led(submitted, waiter)
                    }
                    false => owed.is_gone && (answers || is_held && !owed.has_members),
                };
                if is_lost {
                    let again = may_repeat.then(|| chunk.clone());
                    let (late, seat, view) = (waiter.late, waiter.seat, submitted.view.clone());
                    let asker = waiter.ticket.take().map(|ticket| Asker { ticket, late, seat });
                    lost.extend(asker.map(|asker| (ChunkNo(number), index, (asker, view), again)));
                } else {
                    is_sent_again |= (is_held || may_be_away) && !may_repeat;
                }
            }
            submitted.left = tickets.iter().filter(|waiter| waiter.ticket.is_some()).count();
            submitted.tickets = tickets;
            // If nobody is asked, it is on its way again already.
            if is_sent_again && owed.has_members && submitted.asked.take().is_some() {
                if !submitted.formerly.contains(&chunk.replica) {
                    submitted.formerly.push(chunk.replica);
                }
                self.closed.push_back(Departure::Order(submitted.home, chunk));
            }
        }
        for (number, index, (asker, view), again) in lost {
            let dependent = self.dependents.remove(&(number, index));
            let is_write = again.as_ref().is_some_and(|chunk| !chunk.txns()[index as usize].read_only);
            if let (Some(seat), Some(chunk)) = (asker.seat, &again) {
                self.come_back(seat, view.is_some(), Held::of(asker, view, chunk, index, is_write));
                continue;
            }
            let (is_read, view) = (view.is_some(), view.unwrap_or(View::Ordered));
            let asked = again.and_then(|chunk| self.ask_again(asker, view, &chunk, index));
            if let Some((number, index)) = asked {
                let submitted = &mut self.submitted[(number.0 - self.oldest.0) as usize];
                submitted.tickets[index as usize].is_again = is_write;
            }
            match (asked, dependent) {
                (Some(at), dependent) => _ = dependent.map(|dependent| self.dependents.insert(at, dependent)),
                (None, dependent) => {
                    self.outstanding -= 1;
                    let is_read = is_read && dependent.is_none();
                    let seat = dependent.map_or(asker.seat, |dependent| dependent.seat);
                    let unknown = Finished::unknown(asker.ticket, Path::Order);
                    self.leave_seat(seat, is_read, &unknown);
                    done(self, unknown);
                }
            }
        }
        self.go_on_with_held(&mut done);
        self.forget_finished();
    }

    /// Nobody waits any longer: every request that is not finished is reported as [`OutcomeStatus::Unknown`](ordain_model::OutcomeStatus::Unknown).
    pub fn abandon(&mut self, mut done: impl FnMut(&mut Gateway, Finished<'_>)) {
        let mut left = Vec::with_capacity(self.outstanding);
        for submitted in &mut self.submitted {
            let is_read = submitted.view.is_some();
            let path = |late: u8| if is_read || late > 0 { Path::Snapshot } else { Path::Order };
            let waiters = submitted.tickets.iter_mut();
            left.extend(waiters.filter_map(|waiter| Some((waiter.ticket.take()?, path(waiter.late)))));
            submitted.left = 0;
        }
        let held = std::mem::take(&mut self.lines).into_iter().flat_map(|line| line.held);
        left.extend(held.map(|held| (held.asker.ticket, Path::Order)));
        self.dependents.clear();
        self.outstanding -= left.len();
        for (ticket, path) in left {
            done(self, Finished::unknown(ticket, path));
        }
        self.forget_finished();
    }
}
