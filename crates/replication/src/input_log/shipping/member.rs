//! A member's log: it takes what its primary ships, and asks for what it has not.

use ordain_model::Epoch;
use ordain_role::{NodeId, Outbox, PeerChange, PeerState};

use super::super::tail::Content;
use super::{ASK, ASK_EVERY, Shipping, View};
use crate::entry::EntryType;
use crate::message::{Carrier, Log, Ship};

impl<T: EntryType> Shipping<T> {
    /// Tells whether a shipped entry is to be taken: it comes from the primary, and next.
    pub(in crate::input_log) fn expects(
        &mut self,
        from: NodeId,
        term: u64,
        (after, through): (Epoch, Epoch),
        has_content: bool,
        view: View<'_, T::Entry>,
    ) -> bool {
        if self.follows() != Some((from, term)) || self.wants {
            return false;
        }
        if after > view.last() {
            // The answer to what was asked is still to come, or there is a gap that is new.
            self.wants = self.asked.is_none();
            return false;
        }
        self.asked.take_if(|asked| through > *asked || !has_content);
        self.behind = None;
        if through <= view.last() {
            return false;
        }
        // The entry is asked for again when there is room.
        self.wants = view.pending > self.settings.kept_bytes as u64;
        self.counts.taken += u64::from(!self.wants);
        !self.wants
    }

    /// The entry that was shipped. What need not be kept is not shipped: then it is empty here.
    pub(in crate::input_log) fn read_entry(
        &self,
        through: Epoch,
        content: Option<&Content>,
    ) -> Result<T::Entry, String> {
        let partition = self.settings.partition;
        let Some(content) = content else { return Ok(T::empty(through, partition)) };
        let entry = T::decode(&self.context, content)?;
        match (T::epoch(&entry), T::partition(&entry)) {
            of if of == (through, partition) => Ok(entry),
            (epoch, partition) => Err(format!("it is of epoch {epoch} of partition {}", partition.0)),
        }
    }

    /// Tells the primary what is on the disk of this node, and asks for what is not.
    pub(in crate::input_log) fn report<M: Carrier<T::Entry>>(
        &mut self,
        view: View<'_, T::Entry>,
        out: &mut Outbox<M>,
    ) {
        let Some((primary, term)) = self.follows() else { return };
        if self.wants && view.queue.is_empty() {
            let after = view.dispatched;
            (self.wants, self.asked, self.reported) = (false, Some(after), after);
            out.send(self.at(primary), Ship::Want { term, after });
            out.set_timer(ASK, ASK_EVERY);
        } else if view.dispatched > self.reported {
            self.reported = view.dispatched;
            out.send(self.at(primary), Ship::Have { term, through: view.dispatched });
        }
    }

    /// The primary does not keep any more what this node wants.
    pub(in crate::input_log) fn trimmed<M: Carrier<T::Entry>>(
        &mut self,
        from: NodeId,
        term: u64,
        through: Epoch,
        out: &mut Outbox<M>,
    ) {
        if self.follows() == Some((from, term)) && self.asked.is_some_and(|asked| asked < through) {
            self.behind = Some(through);
            self.settings.checkpointer.into_iter().for_each(|to| out.send(to, Log::Behind(through)));
        }
    }

    /// Asks again after a silence: the question may have come too early.
    pub(in crate::input_log) fn ask_again(&mut self) {
        self.wants |= self.asked.take().is_some();
    }

    pub(in crate::input_log) fn peer<M: Carrier<T::Entry>>(
        &mut self,
        PeerChange { node, state }: PeerChange,
        out: &mut Outbox<M>,
    ) {
        let at = self.at(node);
        if let Some(member) = self.members.get_mut(&node) {
            // While it is away nothing has to be kept for it but what is kept in any case.
            member.is_live = false;
            if state != PeerState::Lost {
                self.readers.leave(at);
                self.pause(node, out);
            }
        }
        if state == PeerState::Fresh {
            self.collects.retain(|who, _| who.node != node);
            if self.follows().is_some_and(|(primary, _)| primary == node) {
                (self.wants, self.asked) = (true, None);
            }
        }
    }
}
