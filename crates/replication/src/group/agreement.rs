//! Agreeing: what the protocol wants done is done here, in its order, and what was agreed on is handed to those who apply it.

use ordain_model::Epoch;
use ordain_role::{Address, Bug, NodeId, Now, Outbox};
use raft::StateRole;
use raft::eraftpb::{Entry, Message as RaftMessage, MessageType};

use super::membership::Member;
use super::wire::Wire;
use super::{GroupLog, Proposal, Waiting, membership};
use crate::entry::EntryType;
use crate::journal::store::{epoch_of, is_change};
use crate::message::{Carrier, GroupMessage, Log};

impl<T: EntryType, M: Carrier<T::Entry>> GroupLog<T, M> {
    /// The largest epoch in this member's log.
    pub(super) fn last_epoch(&self) -> Epoch {
        let open = self.raft.store().from(self.dispatched.0 + 1).rev().find_map(epoch_of);
        open.unwrap_or(self.dispatched.1)
    }

    /// Tells whether this member leads, knows all that was agreed on before, and can write. While it hands its leadership over
    /// the crate drops what is proposed, also if that comes to nothing: who is told that it leads may wait for an entry.
    pub(super) fn may_propose(&self) -> bool {
        let raft = &self.raft.raft;
        raft.state == StateRole::Leader
            && raft.lead_transferee.is_none()
            && raft.apply_to_current_term()
            && !self.journal.is_full()
            && !self.is_stopping
    }

    pub(super) fn append(&mut self, entry: T::Entry, out: &mut Outbox<M>) {
        let fits = self.may_propose() && T::epoch(&entry) > self.last_epoch();
        // The crate fills in index and term.
        if !fits || self.raft.propose(Vec::new(), T::encode(&entry)).is_err() {
            self.lose(entry, out);
            return;
        }
        let (index, term) = (self.raft.raft.raft_log.last_index(), self.raft.raft.term);
        if self.settings.bugs.has(Bug::ExecuteBeforeAgreed) {
            // Planted, AGREED.
            let mut early = entry.clone();
            T::note_term(&mut early, term);
            self.sinks.iter().for_each(|sink| out.send(*sink, Log::Sealed(early.clone())));
        }
        self.proposals.insert(index, Proposal { term, entry });
    }

    pub(super) fn lose(&mut self, entry: T::Entry, out: &mut Outbox<M>) {
        self.counts.lost += 1;
        out.send(self.appender, Log::Lost(entry));
    }

    pub(super) fn receive(&mut self, now: Now, from: NodeId, message: Option<Wire>, out: &mut Outbox<M>) {
        match message {
            Some(Wire::Raft(message)) => self.step(now, from, message, out),
            Some(Wire::Join(newcomer)) if newcomer.node == from => self.let_in(now, newcomer),
            Some(Wire::Found { is_ready, has_begun }) => {
                self.receive_founding(from, (is_ready, has_begun), out)
            }
            Some(Wire::Behind(base)) => self.receive_behind(from, base, out),
            // No member of this version sends such bytes.
            Some(Wire::Join(_)) | None => {}
        }
    }

    /// Takes a message of the protocol, unless it is for another member or of a kind that no member sends.
    pub(super) fn step(&mut self, now: Now, from: NodeId, message: RaftMessage, out: &mut Outbox<M>) {
        use MessageType::*;
        let is_from_there = Member::of(message.from).is_some_and(|sender| sender.node == from);
        let is_in_order = message.entries.iter().zip(message.index + 1..).all(|(e, index)| e.index == index);
        if message.to != self.member.id() || !is_from_there || !is_in_order || self.founding.is_some() {
            return;
        }
        match message.msg_type {
            MsgAppend | MsgHeartbeat if message.term >= self.raft.raft.term => {
                if let Err(reason) = self.check_possible(&message) {
                    out.halt(reason);
                    return;
                }
            }
            MsgAppend
            | MsgHeartbeat
            | MsgAppendResponse
            | MsgHeartbeatResponse
            | MsgRequestVote
            | MsgRequestVoteResponse
            | MsgRequestPreVote
            | MsgRequestPreVoteResponse
            | MsgTimeoutNow => {}
            _ => return,
        }
        if self.raft.raft.prs().get(message.from).is_some() {
            self.last_received.insert(message.from, now.elapsed);
        }
        // The protocol refuses messages from nodes that are no members; such a message is as good as lost.
        let _ = self.raft.step(message);
    }

    /// Finds a message by which one of the two has lost what it had made durable. The crate would panic.
    pub(super) fn check_possible(&self, message: &RaftMessage) -> Result<(), String> {
        let log = &self.raft.raft.raft_log;
        if message.msg_type == MessageType::MsgHeartbeat && message.commit > log.last_index() {
            return Err(format!(
                "the leader knows that this node had entry {} and it has only {}: it has lost what it had \
                 acknowledged; start it with an empty directory and --join",
                message.commit,
                log.last_index()
            ));
        }
        // The term of a trimmed entry is not known any more.
        let known = log.first_index().saturating_sub(1)..=log.committed;
        let differs =
            |entry: &&Entry| known.contains(&entry.index) && !log.match_term(entry.index, entry.term);
        if let Some(entry) = message.entries.iter().find(differs) {
            return Err(format!(
                "the leader has something else in place of entry {}, which was agreed on: one of the two \
                 nodes has lost what it had acknowledged",
                entry.index
            ));
        }
        Ok(())
    }

    /// Carries out what the protocol wants done, until it wants nothing more.
    pub(super) fn advance(&mut self, out: &mut Outbox<M>) {
        while self.raft.has_ready() && out.halt.is_none() {
            let mut ready = self.raft.ready();
            self.counts.elections += u64::from(ready.ss().is_some_and(|s| s.raft_state == StateRole::Leader));
            let (number, must_write) = (ready.number(), ready.must_sync());
            for message in ready.take_messages() {
                self.send(message, out);
            }
            let (entries, committed) = (ready.take_entries(), ready.take_committed_entries());
            let messages = ready.take_persisted_messages();
            self.end_rounds(ready.take_read_states());
            let store = self.raft.mut_store();
            if let Some(hard) = ready.hs() {
                store.hard = hard.clone();
            }
            let mut bytes = 0;
            if must_write {
                match self.journal.write(&store.hard, &entries) {
                    Ok(len) => bytes = len,
                    Err(refusal) => out.halt(format!("the group's journal refused a record: {refusal}")),
                }
            }
            if !store.append(entries) {
                out.halt("the protocol appends entries that do not fit the log");
            }
            let last = store.last();
            self.raft.advance_append_async(ready);
            self.wait(Waiting { number, record: self.journal.written(), last, bytes, messages });
            self.commit(committed, out);
            self.release(out);
            self.answer_proved(out);
            self.begin_round();
        }
    }

    /// Messages that wait for the same record wait together.
    pub(super) fn wait(&mut self, mut waiting: Waiting) {
        if self.journal.is_full() {
            // It may be long until there is space, and the messages are old by then. Messages may always be lost.
            waiting.messages.clear();
        }
        match self.waiting.back_mut() {
            Some(back) if back.record == waiting.record => {
                back.number = waiting.number;
                back.last = waiting.last;
                back.messages.append(&mut waiting.messages);
            }
            _ => self.waiting.push_back(waiting),
        }
    }

    /// Lets go what has waited for records that are durable now.
    pub(super) fn release(&mut self, out: &mut Outbox<M>) {
        let durable = self.journal.durable();
        let (mut last, mut bytes) = (0, 0);
        while let Some(waiting) = self.waiting.pop_front_if(|waiting| waiting.record <= durable) {
            self.raft.on_persist_ready(waiting.number);
            for message in waiting.messages {
                self.send(message, out);
            }
            (last, bytes) = (waiting.last, bytes + waiting.bytes);
        }
        if bytes > 0
            && let Some(place) = self.journal.place()
        {
            self.raft.mut_store().note_place(last + 1, place, bytes);
        }
    }

    pub(super) fn send(&self, message: RaftMessage, out: &mut Outbox<M>) {
        let Some(to) = Member::of(message.to) else { return };
        self.send_to(to.node, &Wire::Raft(message), out);
    }

    pub(super) fn send_to(&self, node: NodeId, message: &Wire, out: &mut Outbox<M>) {
        let (head, tail) = message.encode_shared();
        let message = GroupMessage { from: self.settings.me.node, head: head.into(), tail };
        out.send(Address { node, ..self.settings.me }, message);
    }

    /// Takes what was agreed on, in order, and decides what becomes of this member's proposals.
    pub(super) fn commit(&mut self, entries: Vec<Entry>, out: &mut Outbox<M>) {
        let Some(last) = entries.last().map(|entry| entry.index) else { return };
        for entry in entries {
            let own = self.proposals.remove(&entry.index);
            let (own, other) = match own {
                Some(own) if own.term == entry.term => (Some(own.entry), None),
                other => (None, other),
            };
            // A log with a proposal of an earlier term here or behind cannot have this entry, and every leader from
            // now on has it.
            let lost = self.proposals.extract_if(.., |_, proposal| proposal.term < entry.term);
            let lost: Vec<Proposal<T::Entry>> =
                other.into_iter().chain(lost.map(|(_, proposal)| proposal)).collect();
            lost.into_iter().for_each(|proposal| self.lose(proposal.entry, out));
            if is_change(&entry) {
                if let Err(reason) = self.change(&entry) {
                    out.halt(reason);
                }
            } else if !entry.data.is_empty() {
                self.dispatch(&entry, own, out);
            }
            self.dispatched.0 = entry.index;
            self.raft.mut_store().dispatched(&entry, self.dispatched.1);
        }
        self.behind = None;
        self.raft.advance_apply_to(last);
    }

    pub(super) fn dispatch(&mut self, agreed: &Entry, own: Option<T::Entry>, out: &mut Outbox<M>) {
        let is_own = own.is_some();
        let mut entry = match own.map_or_else(|| T::decode(&self.context, &agreed.data), Ok) {
            Ok(entry) => entry,
            Err(error) => {
                out.halt(format!("entry {} was agreed on and cannot be read: {error}", agreed.index));
                return;
            }
        };
        let epoch = T::epoch(&entry);
        if epoch <= self.dispatched.1 {
            out.halt(format!("epoch {epoch} was agreed on after epoch {}", self.dispatched.1));
            return;
        }
        self.dispatched.1 = epoch;
        self.counts.dispatched += 1;
        if is_own {
            out.send(self.appender, Log::Logged(epoch));
        }
        if epoch <= self.settings.executed {
            return;
        }
        T::note_term(&mut entry, agreed.term);
        // Planted, AGREED: the shards have it already.
        let is_early = is_own && self.settings.bugs.has(Bug::ExecuteBeforeAgreed);
        for sink in self.sinks.iter().filter(|_| !is_early) {
            out.send(*sink, Log::Sealed(entry.clone()));
        }
    }

    /// A change of the membership was agreed on.
    pub(super) fn change(&mut self, entry: &Entry) -> Result<(), String> {
        let change = membership::parse_change(&entry.data)?;
        let members = self
            .raft
            .apply_conf_change(&change)
            .map_err(|e| format!("a change of the group's membership cannot be applied: {e}"))?;
        let store = self.raft.mut_store();
        store.members = members;
        self.journal.write_commit(&store.hard);
        self.membership_record = self.journal.written();
        Ok(())
    }
}
