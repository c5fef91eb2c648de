//! Validation in two rounds (regions.md, 4.6): all regions lock what a transaction writes before any of them validates what it has read.
//!
//! ```text
//!  initiator:  Executing ─▶ Part to each other region ─▶ Locking ─▶ all have locked: Validate to each ─▶ Validating ─▶ Deciding
//!  validator:  Part ─▶ Executing ─▶ Locking ─▶ Locked to the initiator ─▶ Validate from it ─▶ Validating ─▶ Deciding
//! ```
//!
//! A region that has locked has not voted: it says no if another one does, if the initiator is gone, or when its time is up. [`Voting`] counts those
//! who have locked.
//!
//! [`Voting`]: crate::voting::Voting

use std::collections::BTreeSet;

use super::{ATTEMPT_MAX, Coordinator, State};
use crate::desk::Desk;
use crate::ids::AttemptId;
use crate::message::Own;

impl Coordinator {
    /// Locks what an attempt has written at these participants of this node: the first round.
    pub(super) fn lock(&mut self, number: u64, own: BTreeSet<usize>, desk: &mut Desk<'_>) {
        let Some(live) = self.live.get_mut(&number) else { return };
        let State::Voting { shards, ready, .. } = std::mem::replace(&mut live.state, State::Waiting) else {
            return;
        };
        let who = live.who(number);
        for shard in &own {
            desk.out.send(desk.site.participant(desk.site.node, *shard), Own::Lock(who));
        }
        self.agenda.set(number, desk.elapsed().plus(ATTEMPT_MAX));
        let is_locked = own.is_empty();
        live.state = State::Locking { awaited: own, shards, ready };
        if is_locked {
            self.locked_here(number, desk);
        }
    }

    /// Takes the word of a participant of this node whether it has locked what an attempt has written.
    pub fn locked_at(&mut self, who: AttemptId, (shard, is_locked): (usize, bool), desk: &mut Desk<'_>) {
        let number = who.transaction.number;
        let Some(live) = self.live.get_mut(&number).filter(|live| live.who(number) == who) else { return };
        let State::Locking { awaited, .. } = &mut live.state else { return };
        if !is_locked {
            return self.retry_later(number, desk.site.refusal, desk);
        }
        if awaited.remove(&shard) && awaited.is_empty() {
            self.locked_here(number, desk);
        }
    }

    /// All that a part writes is locked here.
    fn locked_here(&mut self, number: u64, desk: &mut Desk<'_>) {
        let Some(of) = self.live.get(&number).and_then(|live| Some(live.part.as_ref()?.of)) else { return };
        let part = self.voting.lock(of, desk);
        part.into_iter().for_each(|part| self.locked_by_all(part, desk));
    }

    /// All regions have locked what the transaction of a part writes: the second round begins.
    pub(super) fn locked_by_all(&mut self, part: AttemptId, desk: &mut Desk<'_>) {
        let number = part.transaction.number;
        let Some(live) = self.live.get_mut(&number) else { return };
        let State::Locking { shards, ready, .. } = std::mem::replace(&mut live.state, State::Waiting) else {
            return;
        };
        live.part.iter_mut().for_each(|part| part.is_locked = true);
        live.state = State::Voting { awaited: BTreeSet::new(), shards, ready };
        self.validate(number, desk);
    }
}
