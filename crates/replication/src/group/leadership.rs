//! Who leads: the writer is told when that changes, and a leader that stops or cannot write lets another one lead.

use ordain_role::{Now, Outbox, PeerChange, PeerState};
use raft::StateRole;

use super::membership::Member;
use super::{Announced, GroupLog};
use crate::entry::EntryType;
use crate::message::{Carrier, Log};

impl<T: EntryType, M: Carrier<T::Entry>> GroupLog<T, M> {
    /// Tells the appender who leads, if that has changed. A leader leads when it has dispatched an entry of its own
    /// term: then it knows what was agreed on before.
    pub(super) fn announce(&mut self, at: Now, out: &mut Outbox<M>) {
        let raft = &self.raft.raft;
        let is_me = self.may_propose();
        let node = match raft.state {
            StateRole::Leader => is_me.then_some(self.settings.me.node),
            _ => Member::of(raft.leader_id).map(|leader| leader.node),
        };
        let now = Announced { node, term: raft.term, is_me };
        if self.announced == Some(now) {
            return;
        }
        self.announced = Some(now);
        if is_me {
            // A leader hears from all members, a follower only from leaders.
            self.leads_since = at.elapsed;
            self.last_received.clear();
        }
        let Announced { node, term, is_me } = now;
        out.send(self.appender, Log::Leader { node, term, is_me, last: self.last_epoch() });
    }

    /// Yields the leadership, as the disk is full, to a member that can write; if that comes to nothing, gives it up
    /// all the same, and the others elect a leader.
    pub(super) fn yield_leadership(&mut self) {
        let raft = &self.raft.raft;
        if raft.state != StateRole::Leader || self.raft.store().members.voters.len() < 2 {
            self.gives_way = false;
            return;
        }
        match self.successor().filter(|_| !self.gives_way) {
            Some(successor) => self.raft.transfer_leader(successor),
            None => {
                let term = raft.term;
                self.raft.raft.become_follower(term, raft::INVALID_ID);
            }
        }
        self.gives_way = !self.gives_way;
    }

    /// The other voter that has most of the log, among those that answered lately.
    pub(super) fn successor(&self) -> Option<u64> {
        let raft = &self.raft.raft;
        let voters = &self.raft.store().members.voters;
        let able = raft.prs().iter().filter(|(id, progress)| {
            **id != self.member.id() && voters.contains(*id) && progress.recent_active
        });
        able.max_by_key(|(id, progress)| (progress.matched, std::cmp::Reverse(**id))).map(|(id, _)| *id)
    }

    pub(super) fn peer(&mut self, change: PeerChange, out: &mut Outbox<M>) {
        if !self.settings.members.contains(&change.node) {
            return;
        }
        if change.state == PeerState::Fresh && self.founding.is_some() {
            self.send_founding(change.node, out);
        }
        // Messages on their way may be lost: go back to what is known to have arrived.
        if matches!(change.state, PeerState::Lost | PeerState::Fresh) {
            let of_node = |id: &u64| Member::of(*id).is_some_and(|member| member.node == change.node);
            let ids: Vec<u64> = self.raft.raft.prs().iter().map(|(id, _)| *id).filter(of_node).collect();
            ids.into_iter().for_each(|id| self.raft.report_unreachable(id));
        }
    }
}
