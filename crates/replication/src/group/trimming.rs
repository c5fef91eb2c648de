//! What memory and disk need not hold any more, and members that need what is gone.

use ordain_model::Epoch;
use ordain_role::{NodeId, Now, Outbox};
use raft::StateRole;
use raft::eraftpb::{Message as RaftMessage, MessageType};

use super::membership::Member;
use super::wire::Wire;
use super::{BEHIND_EVERY, GroupLog, MARK, MARK_AFTER};
use crate::entry::EntryType;
use crate::journal::base::Base;
use crate::message::{Carrier, Log};

impl<T: EntryType, M: Carrier<T::Entry>> GroupLog<T, M> {
    /// Keeps house after everything else: the journal is written, memory is freed, entries that members want are read
    /// from disk.
    pub(super) fn housekeeping(&mut self, now: Now, out: &mut Outbox<M>) {
        // Dispatched entries are durable here.
        let (dispatched, bytes) = (self.dispatched.0, self.settings.tail_bytes);
        self.raft.mut_store().shrink(dispatched, bytes, self.journal.is_on_disk());
        if self.is_stopping && self.waiting.is_empty() {
            self.journal.write_commit(&self.raft.store().hard);
        }
        let spared = self.spared(now);
        let keep_bytes = self.settings.keep_bytes;
        self.journal.trim(self.raft.store(), spared.min(dispatched), keep_bytes, out);
        self.counts.fetches += u64::from(self.journal.fetch(self.raft.store(), out));
        self.journal.ask_disk(out);
        if self.journal.mark(false, self.is_stopping) {
            out.set_timer(MARK, MARK_AFTER);
        }
        self.journal.ask_disk(out);
    }

    /// The last entry that may go as far as members are concerned that can be reached and are catching up. Only a leader
    /// knows how far they are.
    pub(super) fn spared(&self, now: Now) -> u64 {
        let (raft, store) = (&self.raft.raft, self.raft.store());
        if raft.state != StateRole::Leader {
            return u64::MAX;
        }
        let others = raft.prs().iter().filter(|(id, _)| **id != self.member.id());
        let reached =
            others.filter(|(id, _)| !self.is_silent(**id, now)).map(|(_, progress)| progress.matched);
        let most = self.settings.kept_max;
        let is_near = |at: &u64| *at >= store.base().index && store.bytes_after(*at) <= most;
        reached.filter(is_near).min().unwrap_or(u64::MAX)
    }

    /// Tells members that are too far behind, now and then.
    pub(super) fn send_behind(&mut self, out: &mut Outbox<M>) {
        let base = self.raft.store().base().clone();
        self.late.append(&mut self.raft.mut_store().take_behind());
        if self.raft.raft.state != StateRole::Leader || !self.journal.is_on_disk() {
            self.late.clear();
        }
        if self.ticks.is_multiple_of(BEHIND_EVERY) {
            for member in std::mem::take(&mut self.late).into_iter().filter_map(Member::of) {
                self.send_to(member.node, &Wire::Behind(base.clone()), out);
            }
        }
    }

    /// The leader does not keep any more what this member needs next.
    pub(super) fn receive_behind(&mut self, from: NodeId, base: Base, out: &mut Outbox<M>) {
        let raft = &self.raft.raft;
        if Member::of(raft.leader_id).is_none_or(|leader| leader.node != from) {
            return;
        }
        if base.index <= self.dispatched.0 {
            // The member has come back with a checkpoint, or its log, and the leader does not know.
            let (to, from, term) = (raft.leader_id, self.member.id(), raft.term);
            let (index, commit) = (self.dispatched.0, raft.raft_log.committed);
            let msg_type = MessageType::MsgAppendResponse;
            let answer = RaftMessage { msg_type, to, from, term, index, commit, ..RaftMessage::default() };
            self.send(answer, out);
        } else {
            let epoch = base.epoch;
            self.behind = Some(epoch);
            if self.journal.offer(base, self.raft.store(), out) {
                self.ask_for_checkpoint(epoch, out);
            }
        }
    }

    /// Asks for a checkpoint, with which this member can go on, if it still needs one.
    pub(super) fn ask_for_checkpoint(&self, epoch: Epoch, out: &mut Outbox<M>) {
        let checkpointer = self.settings.checkpointer.filter(|_| self.behind.is_some());
        checkpointer.into_iter().for_each(|to| out.send(to, Log::Behind(epoch)));
    }
}
