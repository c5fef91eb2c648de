//! Catch-up: a node reads what its senders do not keep any more in the journal of a member.
//!
//! A node that has lost its disk, or was away for longer than the others keep things for it, hears that from those that
//! it asks to send something again. Its members have received the same and have it on their disks. So it asks one of them
//! for its journal, a piece at a time, the next when it has written the one before into its own; and at the end, up to
//! which epoch that is complete. From there on it asks its senders again.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_model::Epoch;
use ordain_role::{NodeId, Outbox};

use super::journal::JournalRecord;
use super::{Exchange, FETCH, FETCH_EVERY};
use crate::sequencing::message::{ExchangeMessage, Log, Message, RemoteResult};

/// The state of catching up: what this node misses, and from which member it reads that.
#[derive(Debug, Default)]
pub(super) struct CatchUp {
    /// The epoch up to which everything that has come in is here, executed or not.
    covered: Epoch,
    /// The senders that keep nothing any more up to an epoch that is not covered.
    by: BTreeMap<NodeId, Epoch>,
    reading: Option<JournalRequest>,
    /// Which member was asked last.
    last: Option<NodeId>,
    /// Members that could not help: up to which epoch their journals are not there any more, or 0 if they miss the same.
    no_help: BTreeMap<NodeId, Epoch>,
}

/// A journal that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JournalRequest {
    /// The member whose journal it is.
    pub member: NodeId,
    /// The entry that comes next.
    pub from: Epoch,
    /// The epoch up to which nothing is of any use.
    pub after: Epoch,
}

impl CatchUp {
    /// The epoch up to which everything that comes in is here, on a node with this progress.
    pub fn reach(&self, progress: Epoch) -> Epoch {
        self.covered.max(progress)
    }

    /// The largest epoch that is not covered and that no sender keeps any more; 0 if nothing is missing.
    pub fn up_to(&self) -> Epoch {
        self.by.values().max().copied().unwrap_or_default()
    }

    /// Notes that a node keeps nothing any more up to an epoch.
    pub fn note(&mut self, node: NodeId, epoch: Epoch) {
        self.by.insert(node, epoch);
    }

    /// A new stream has begun to a node, which will be asked anew.
    pub fn drop(&mut self, node: NodeId) {
        self.by.remove(&node);
        self.no_help.remove(&node);
        self.leave(node);
    }

    /// A node cannot be reached: if it is the one whose journal is read, another will have to do.
    pub fn leave(&mut self, node: NodeId) {
        if self.reading.is_some_and(|reading| reading.member == node) {
            self.reading = None;
        }
    }

    /// Begins to read a member's journal, if there is need, none is being read and there is a member. The next one is taken
    /// each time.
    pub fn begin(&mut self, members: &[NodeId], progress: Epoch) -> Option<JournalRequest> {
        if self.by.is_empty() || self.reading.is_some() {
            return None;
        }
        let next =
            members.iter().find(|member| self.last.is_none_or(|last| **member > last)).or(members.first());
        self.last = next.copied();
        let reading = JournalRequest { member: *next?, from: Epoch(1), after: self.reach(progress) };
        self.reading = Some(reading);
        self.reading
    }

    /// Takes a piece, and answers what comes next, if there is more; `Err` if it was not asked for.
    pub fn take(
        &mut self,
        member: NodeId,
        (from, next): (Epoch, Epoch),
        covers: Option<Epoch>,
    ) -> Result<Option<JournalRequest>, ()> {
        let reading =
            self.reading.as_mut().filter(|reading| (reading.member, reading.from) == (member, from));
        let Some(reading) = reading else { return Err(()) };
        reading.from = next;
        if covers.is_some_and(|covers| covers <= reading.after) {
            self.no_help.entry(member).or_default();
        } else {
            self.no_help.clear();
        }
        if let Some(covers) = covers {
            self.covered = self.covered.max(covers);
            self.reading = None;
        }
        Ok(self.reading)
    }

    /// Notes that the journal does not go back as far as this epoch. `Err` if it was not asked for.
    pub fn refused(&mut self, member: NodeId, up_to: Epoch) -> Result<(), ()> {
        self.reading.take_if(|reading| reading.member == member).ok_or(())?;
        self.no_help.insert(member, up_to);
        Ok(())
    }

    /// The epoch up to which what is missing is in the journals of none of these members, if none can help.
    pub fn beyond_help(&self, members: &[NodeId]) -> Option<Epoch> {
        let can_none = !members.is_empty() && members.iter().all(|member| self.no_help.contains_key(member));
        let gone = self.no_help.values().copied().filter(|epoch| *epoch > Epoch(0)).min();
        gone.filter(|_| can_none && !self.by.is_empty())
    }

    /// The senders that can be asked again now.
    pub fn settled(&mut self, progress: Epoch) -> Vec<NodeId> {
        let reach = self.reach(progress);
        self.by.extract_if(.., |_, epoch| *epoch <= reach).map(|(node, _)| node).collect()
    }
}

impl<X: RemoteResult> Exchange<X> {
    /// Gets what is missing from a member, and asks those again who keep what comes after.
    pub(super) fn go_on_catching_up(&mut self, out: &mut Outbox<Message<X>>) {
        let reach = self.catch_up.reach(self.progress);
        for node in self.catch_up.settled(self.progress) {
            out.send(self.at(node), ExchangeMessage::Resume(reach));
        }
        let members = self.members();
        if let Some(JournalRequest { member, from, after }) = self.catch_up.begin(&members, self.progress) {
            out.send(self.at(member), ExchangeMessage::Fetch { from, after });
        }
    }

    /// A member wants some of the journal.
    pub(super) fn serve(&mut self, member: NodeId, wanted: (Epoch, Epoch), out: &mut Outbox<Message<X>>) {
        if self.settings.topology.partition_of(member) != self.partition {
            return out.halt(format!("node {} asks for a journal, and is no member", member.0));
        }
        self.counts.served += 1;
        // From a member that misses something itself, this one would get what it has sent, and the other way round,
        // for ever.
        let journal = self.journal.as_mut().filter(|_| self.catch_up.up_to() == Epoch(0));
        let piece = match journal {
            Some(journal) => journal.read(member, wanted, (&self.registry, self.settings.piece), out),
            None => {
                let (from, _) = wanted;
                let (covers, journal_records) = (Some(Epoch(0)), Arc::default());
                Ok(Some(ExchangeMessage::Fetched { from, next: from, covers, journal_records }))
            }
        };
        match piece {
            Ok(piece) => piece.into_iter().for_each(|piece| out.send(self.at(member), piece)),
            Err(reason) => out.halt(format!("the journal cannot be read again: {reason}")),
        }
    }

    /// A piece of a member's journal has come.
    pub(super) fn take_fetched(
        &mut self,
        member: NodeId,
        numbers: (Epoch, Epoch),
        covers: Option<Epoch>,
        journal_records: &[u8],
        out: &mut Outbox<Message<X>>,
    ) {
        let Ok(more) = self.catch_up.take(member, numbers, covers) else { return };
        let Some(journal_records) = JournalRecord::<X>::read(&self.registry, journal_records) else {
            return out.halt(format!("node {} sent a journal that cannot be read", member.0));
        };
        self.counts.fetched += journal_records.len() as u64;
        for journal_record in journal_records {
            match journal_record {
                JournalRecord::Message(
                    from,
                    ExchangeMessage::Slot { sequencer, after, through, logged, content },
                ) => {
                    self.take_slot(from, sequencer, (after, through), (logged, content), out);
                }
                JournalRecord::Message(from, ExchangeMessage::RemoteResult { to, remote_result }) => {
                    self.take_remote_result(from, to, remote_result, out)
                }
                // The others' progress of then is not that of now, and this node learns by itself what is stable.
                JournalRecord::Message(..)
                | JournalRecord::Progress(..)
                | JournalRecord::Stable(_)
                | JournalRecord::Incarnation(..)
                | JournalRecord::Ready
                | JournalRecord::Begun => {}
            }
        }
        match more {
            Some(JournalRequest { from, after, .. }) => {
                self.send_when_durable(member, ExchangeMessage::Fetch { from, after }, out)
            }
            None => {
                // A member that has no more may have some later, and another one may have more.
                for node in self.catch_up.settled(self.progress) {
                    out.send(self.at(node), ExchangeMessage::Resume(self.catch_up.reach(self.progress)));
                }
                self.ask_for_checkpoint(out);
                out.set_timer(FETCH, FETCH_EVERY);
            }
        }
    }

    /// A member's journal does not go back as far as this node needs it to. Another one's may.
    pub(super) fn note_trimmed(&mut self, member: NodeId, epoch: Epoch, out: &mut Outbox<Message<X>>) {
        if self.catch_up.refused(member, epoch).is_ok() {
            self.ask_for_checkpoint(out);
            out.set_timer(FETCH, FETCH_EVERY);
        }
    }

    /// Asks for a checkpoint, if no member that can be reached has what is missing.
    pub(super) fn ask_for_checkpoint(&self, out: &mut Outbox<Message<X>>) {
        if let (Some(epoch), Some(to)) =
            (self.catch_up.beyond_help(&self.members()), self.settings.checkpointer)
        {
            out.send(to, Log::Behind(epoch));
        }
    }

    /// The other nodes of this partition that can be reached.
    pub(super) fn members(&self) -> Vec<NodeId> {
        let me = self.settings.me.node;
        let members = self.settings.topology.group(self.partition);
        members.filter(|member| *member != me && !self.lost.contains(member)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_read_to_its_end_and_another_if_that_was_not_enough() {
        let members = [NodeId(3), NodeId(6)];
        let mut catch_up = CatchUp::default();
        assert_eq!(catch_up.begin(&members, Epoch(5)), None, "nothing is missing");
        catch_up.note(NodeId(1), Epoch(20));
        catch_up.note(NodeId(2), Epoch(9));
        let first = catch_up.begin(&members, Epoch(5)).unwrap();
        assert_eq!(first, JournalRequest { member: NodeId(3), from: Epoch(1), after: Epoch(5) });
        assert_eq!(catch_up.begin(&members, Epoch(5)), None, "one at a time");
        assert_eq!(catch_up.take(NodeId(6), (Epoch(1), Epoch(4)), None), Err(()));
        let more = catch_up.take(NodeId(3), (Epoch(1), Epoch(4)), None).unwrap().unwrap();
        assert_eq!((more.from, catch_up.settled(Epoch(5))), (Epoch(4), vec![]));
        assert_eq!(catch_up.take(NodeId(3), (Epoch(4), Epoch(7)), Some(Epoch(12))), Ok(None));
        assert_eq!((catch_up.settled(Epoch(5)), catch_up.up_to()), (vec![NodeId(2)], Epoch(20)));
        let second = catch_up.begin(&members, Epoch(5)).unwrap();
        assert_eq!(second, JournalRequest { member: NodeId(6), from: Epoch(1), after: Epoch(12) });
        catch_up.drop(NodeId(6));
        assert_eq!(catch_up.begin(&members, Epoch(5)).unwrap().member, NodeId(3));
        assert_eq!(catch_up.take(NodeId(3), (Epoch(1), Epoch(1)), Some(Epoch(20))), Ok(None));
        assert_eq!((catch_up.settled(Epoch(5)), catch_up.up_to()), (vec![NodeId(1)], Epoch(0)));
        assert_eq!(catch_up.reach(Epoch(5)), Epoch(20));
    }

    #[test]
    fn without_a_member_it_stays_lacking() {
        let mut catch_up = CatchUp::default();
        catch_up.note(NodeId(1), Epoch(20));
        assert_eq!((catch_up.begin(&[], Epoch(5)), catch_up.up_to()), (None, Epoch(20)));
    }
}
