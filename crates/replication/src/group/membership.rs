//! Who is in a group, and how a member that has lost its disk is replaced.
//!
//! A node that comes back without what it had on disk is another member of the same node: its generation is larger.
//! It asks all members to be let in, again and again, until it sees itself among the voters. The leader answers no word
//! but takes one step each time it is asked, each a change of the membership that the group agrees on: take the new
//! member in as a learner; once that one has the log, remove the old member; make the new one a voter. So a group
//! never counts on a member that has nothing yet, and a new leader goes on where the old one was.

use ordain_log::LogError;
use ordain_model::{Epoch, Micros};
use ordain_role::{Directory, NodeId, Now, Outbox};
use protobuf::Message as _;
use raft::eraftpb::{ConfChange, ConfChangeType, ConfState};

use super::GroupLog;
use super::wire::Wire;
use crate::entry::EntryType;
use crate::journal;
use crate::message::Carrier;

/// A member of a group: a node in one of its generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub node: NodeId,
    pub generation: u32,
}

ordain_model::codec!(struct Member { node, generation });

impl Member {
    /// The number by which the protocol knows it; 0 is none.
    pub fn id(self) -> u64 {
        u64::from(self.generation) << 32 | (u64::from(self.node.0) + 1)
    }

    /// The member with a number.
    pub fn of(id: u64) -> Option<Member> {
        let node = u16::try_from((id as u32).checked_sub(1)?).ok()?;
        Some(Member { node: NodeId(node), generation: (id >> 32) as u32 })
    }
}

/// The members with which a group begins.
pub(super) fn founders(members: &[NodeId]) -> Vec<u64> {
    members.iter().map(|node| Member { node: *node, generation: 0 }.id()).collect()
}

/// The bytes of every change that a member proposes are fewer.
const CHANGE_MAX: usize = 64;

/// The change of the membership that an entry's bytes are. They may be any leader's, so they are not given to the
/// parser unless they are few (module `wire`).
pub(super) fn parse_change(bytes: &[u8]) -> Result<ConfChange, String> {
    if bytes.len() > CHANGE_MAX {
        return Err("a change of the group's membership is longer than any that a member proposes".to_owned());
    }
    ConfChange::parse_from_bytes(bytes)
        .map_err(|e| format!("a change of the group's membership cannot be read: {e}"))
}

/// Makes a change of the membership.
fn apply_change(members: &mut ConfState, change: &ConfChange) {
    let ConfState { voters, learners, .. } = members;
    voters.retain(|id| *id != change.node_id);
    learners.retain(|id| *id != change.node_id);
    match change.change_type {
        ConfChangeType::AddNode => voters.push(change.node_id),
        ConfChangeType::AddLearnerNode => learners.push(change.node_id),
        ConfChangeType::RemoveNode => {}
    }
}

/// Makes a change of the membership that was agreed on before this member came up.
pub(super) fn replay_change(members: &mut ConfState, bytes: &[u8]) -> Result<(), String> {
    apply_change(members, &parse_change(bytes)?);
    Ok(())
}

/// Gives a directory without a journal the beginning of a group whose members all have a checkpoint of everything up
/// to an epoch. Their log holds what comes after that. A member that joins later and lacks the checkpoint gets one
/// from another.
///
/// # Errors
/// The disk's.
pub fn found_after(
    directory: &mut dyn Directory,
    identity: &[u8],
    members: &[NodeId],
    epoch: Epoch,
) -> Result<(), LogError> {
    journal::begin_after(directory, identity, founders(members), epoch)
}

/// The silence after which a member is taken for dead.
const SILENCE: Micros = Micros::from_millis(5000);
/// A newcomer asks every so many ticks.
const ASK_EVERY: u64 = 25;
/// The number of entries by which a learner may be behind and still count as one that has the log.
const NEARLY: u64 = 64;

impl<T: EntryType, M: Carrier<T::Entry>> GroupLog<T, M> {
    /// Tells whether this member sees itself among the voters.
    pub(super) fn is_voter(&self) -> bool {
        self.raft.store().members.voters.contains(&self.member.id())
    }

    /// Tells whether this member sees itself among the voters and will when it starts again.
    pub(super) fn is_lasting_voter(&self) -> bool {
        self.is_voter() && self.membership_record <= self.journal.durable()
    }

    /// A newcomer asks to be let in.
    pub(super) fn ask_to_join(&mut self, out: &mut Outbox<M>) {
        self.ticks += 1;
        if self.is_voter() || self.member.generation == 0 || !self.ticks.is_multiple_of(ASK_EVERY) {
            return;
        }
        for node in self.settings.members.iter().filter(|node| **node != self.member.node) {
            self.send_to(*node, &Wire::Join(self.member), out);
        }
    }

    /// Tells whether another member has been silent for long, if this one leads.
    pub(super) fn is_silent(&self, id: u64, now: Now) -> bool {
        let heard = self.last_received.get(&id).copied().unwrap_or(self.leads_since);
        now.elapsed.since(heard) >= SILENCE
    }

    /// Takes the next step to let a newcomer in, if this member leads.
    pub(super) fn let_in(&mut self, now: Now, newcomer: Member) {
        let is_member = self.settings.members.contains(&newcomer.node);
        if !self.may_propose() || !is_member || self.raft.raft.has_pending_conf() {
            return;
        }
        let is_dead = |id| self.is_silent(id, now);
        let progress = self.raft.raft.prs().get(newcomer.id()).map_or(0, |progress| progress.matched);
        let has_log = progress + NEARLY >= self.raft.raft.raft_log.last_index();
        let Some((kind, id)) = next_step(&self.raft.store().members, newcomer, has_log, is_dead) else {
            return;
        };
        // If the protocol does not take the change now, the newcomer asks again.
        let change = ConfChange { change_type: kind, node_id: id, ..ConfChange::default() };
        let _ = self.raft.propose_conf_change(Vec::new(), change);
    }
}

/// The next change on the way to a group in which the newcomer is a voter and its node has no other member.
fn next_step(
    members: &ConfState,
    newcomer: Member,
    has_log: bool,
    is_dead: impl Fn(u64) -> bool,
) -> Option<(ConfChangeType, u64)> {
    let id = newcomer.id();
    let earlier =
        |other: &u64| *other != id && Member::of(*other).is_some_and(|member| member.node == newcomer.node);
    let others: Vec<u64> = members.voters.iter().chain(&members.learners).copied().filter(earlier).collect();
    let is_latest = others.iter().all(|other| *other < id);
    if members.voters.contains(&id) || !is_latest || !others.iter().all(|other| is_dead(*other)) {
        return None;
    }
    if !members.learners.contains(&id) {
        return Some((ConfChangeType::AddLearnerNode, id));
    }
    match others.first() {
        _ if !has_log => None,
        Some(other) => Some((ConfChangeType::RemoveNode, *other)),
        None => Some((ConfChangeType::AddNode, id)),
    }
}

#[cfg(test)]
mod tests {
    use ConfChangeType::{AddLearnerNode, AddNode, RemoveNode};

    use super::*;

    fn member(node: u16, generation: u32) -> Member {
        Member { node: NodeId(node), generation }
    }

    #[test]
    fn a_member_has_a_number_and_zero_is_none() {
        for member in [member(0, 0), member(7, 3), member(u16::MAX, u32::MAX)] {
            assert_eq!(Member::of(member.id()), Some(member));
        }
        assert_eq!(Member::of(0), None);
        assert_eq!(Member::of(5 << 32), None);
        assert_eq!(Member::of(1 << 17), None);
    }

    #[test]
    fn a_newcomer_is_let_in_step_by_step_and_only_for_a_dead_member() {
        let mut store = journal::store::Store::new(founders(&[NodeId(0), NodeId(1), NodeId(2)]), 64);
        let newcomer = member(1, 1);
        let old = member(1, 0).id();
        assert_eq!(next_step(&store.members, newcomer, false, |_| false), None, "the old one lives");
        for (has_log, step) in [
            (false, Some((AddLearnerNode, newcomer.id()))),
            (false, None),
            (true, Some((RemoveNode, old))),
            (true, Some((AddNode, newcomer.id()))),
            (true, None),
        ] {
            assert_eq!(next_step(&store.members, newcomer, has_log, |_| true), step);
            if let Some((change_type, node_id)) = step {
                apply_change(
                    &mut store.members,
                    &ConfChange { change_type, node_id, ..ConfChange::default() },
                );
            }
        }
        assert_eq!(next_step(&store.members, member(1, 0), true, |_| true), None, "an earlier generation");
    }

    #[test]
    fn a_change_moves_a_member_between_the_lists() {
        let mut members = ConfState { voters: vec![1, 2], ..ConfState::default() };
        let mut change = |kind, node_id| {
            apply_change(&mut members, &ConfChange { change_type: kind, node_id, ..ConfChange::default() });
            (members.voters.clone(), members.learners.clone())
        };
        assert_eq!(change(AddLearnerNode, 3), (vec![1, 2], vec![3]));
        assert_eq!(change(RemoveNode, 1), (vec![2], vec![3]));
        assert_eq!(change(AddNode, 3), (vec![2, 3], vec![]));
    }
}
