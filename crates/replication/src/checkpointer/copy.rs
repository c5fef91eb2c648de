//! A checkpoint that is got from a member: for a node that needs what nobody keeps any more, because it was away for too
//! long or has lost its disk ([decision 17](../../../../docs/decisions/0017-trimming.md)).
//!
//! It asks a member that has a complete one, a piece at a time, the next when the one before is on its disk. When it has all
//! of it, it seals it and the node begins again: with it, and without what had come in from other nodes before. Whether
//! it is what was written is looked at then, as of any checkpoint.

use ordain_checkpoint::{Seal, file_name, seal_name};
use ordain_model::{Epoch, Millis};
use ordain_role::{
    Address, Bytes, DiskDone, DiskOp, DiskRequest, Fetched, NodeId, Now, Outbox, PeerChange, PeerState,
    Rebuild,
};

use super::{Checkpointer, NeedsCheckpoint};
use crate::message::{Carrier, Log, Saving};

/// A checkpoint that is being copied.
#[derive(Debug)]
pub(super) struct Copying {
    /// The member that has it.
    from: NodeId,
    epoch: Epoch,
    /// The bytes of it that are here.
    offset: u64,
    /// The disk request that is under way.
    writing: Option<Writing>,
}

#[derive(Debug)]
struct Writing {
    token: u64,
    bytes: u64,
    what: Step,
}

/// The progress of the copy once a write is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    More,
    /// All of it is here. It became complete at that time.
    Last(Millis),
    Sealed(Seal),
}

/// A read for a member.
#[derive(Debug)]
pub(super) struct Read {
    to: Address,
    epoch: Epoch,
    offset: u64,
    into: Fetched,
}

impl<E, M: Carrier<E>> Checkpointer<E, M> {
    /// Looks for a checkpoint of this epoch or a later one: no node keeps the entries up to there that this one needs.
    pub(super) fn fetch(&mut self, now: Now, needed: Epoch, out: &mut Outbox<M>) {
        if self.newest().is_some_and(|(epoch, _)| epoch >= needed) {
            return self.begin_again(out);
        }
        let (topology, me) = (&self.settings.topology, self.settings.me);
        let members = topology.group(topology.partition_of(me.node)).filter(|node| *node != me.node);
        let have = members.filter_map(|node| Some((self.others.get(&node)?.complete, node)));
        // A checkpoint that came damaged is asked for again after a while. The newest of the others will do meanwhile.
        let is_wanted = |epoch: &Epoch| *epoch >= needed.max(Epoch(1)) && !self.refused.contains(epoch);
        let have: Vec<(Epoch, NodeId)> = have.filter(|(epoch, _)| is_wanted(epoch)).collect();
        let newest = have.iter().map(|(epoch, _)| *epoch).max();
        let of: Vec<NodeId> =
            have.iter().filter(|(e, _)| Some(*e) == newest).map(|(_, node)| *node).collect();
        // Another of the members that have it each second: damage at one need not be at the other.
        let turn = (now.wall.to_millis().0 / 1000) as usize % of.len().max(1);
        let Some((epoch, from)) = newest.zip(of.get(turn).copied()) else { return };
        if self.copying.is_some() {
            return;
        }
        self.newest = self.newest.max(epoch);
        // An attempt before this one may have left something.
        self.leftovers.extend([file_name(epoch), seal_name(epoch)]);
        self.clean(out);
        self.copying = Some(Copying { from, epoch, offset: 0, writing: None });
        out.send(Address { node: from, ..me }, Saving::Want { epoch, offset: 0 });
    }

    /// Gets a checkpoint for a node that has no usable beginning, if another member has one.
    pub(super) fn fetch_needed(&mut self, now: Now, out: &mut Outbox<M>) {
        if let Some(NeedsCheckpoint { needed, .. }) = self.needs {
            self.fetch(now, needed, out);
        }
    }

    /// Gets a checkpoint that is newer than all here, on a node that keeps copies alone.
    pub(super) fn fetch_newer(&mut self, now: Now, out: &mut Outbox<M>) {
        if self.settings.only_copies && self.needs.is_none() {
            let newest = self.newest().map_or(Epoch(0), |(epoch, _)| epoch);
            self.fetch(now, newest.next(), out);
        }
    }

    /// Looks again for a checkpoint, on a node without a usable beginning, and now and then asks for a new one.
    pub(super) fn look(&mut self, now: Now, out: &mut Outbox<M>) {
        let Some(NeedsCheckpoint { needed, .. }) = self.needs else {
            self.fetch_newer(now, out);
            return out.set_timer(super::LOOK, super::LOOK_EVERY);
        };
        self.fetch_needed(now, out);
        let (topology, me) = (&self.settings.topology, self.settings.me);
        if self.copying.is_none() && self.looks.is_multiple_of(super::WANT_EVERY) {
            for node in topology.group(topology.partition_of(me.node)).filter(|node| *node != me.node) {
                out.send(Address { node, ..me }, Saving::Want { epoch: needed, offset: 0 });
            }
        }
        self.looks = self.looks.wrapping_add(1);
        out.set_timer(super::LOOK, super::LOOK_EVERY);
    }

    /// Has the node begin again with the newest checkpoint. Where primaries may change, its log may hold the only copy
    /// of some entries: the log decides whether it goes on from there or begins anew.
    fn begin_again(&self, out: &mut Outbox<M>) {
        let Some((epoch, _)) = self.newest() else { return };
        if let Some(NeedsCheckpoint { reach, .. }) = self.needs {
            // A replication group's member must not forget its votes; any other log has nothing beyond a later checkpoint.
            let without_log = self.settings.primaries_change && reach < epoch;
            return out.rebuild(Rebuild { without_log, without_receive_journal: true });
        }
        match self.settings.primaries_change {
            true => out.send(self.settings.log, Log::<E>::BeginAgain(epoch)),
            false => out.rebuild(Rebuild { without_log: false, without_receive_journal: true }),
        }
    }

    /// Takes a part of the checkpoint.
    pub(super) fn take_part(
        &mut self,
        from: NodeId,
        (epoch, at): (Epoch, Millis),
        offset: u64,
        (bytes, is_last): (Vec<u8>, bool),
        out: &mut Outbox<M>,
    ) {
        let Some(copying) = &mut self.copying else { return };
        let is_next = (copying.from, copying.epoch, copying.offset) == (from, epoch, offset);
        if !is_next || copying.writing.is_some() {
            return;
        }
        let file = file_name(epoch);
        let create = (offset == 0).then(|| DiskOp::Create { file: file.clone(), len: 0 });
        let (len, what) = (bytes.len() as u64, if is_last { Step::Last(at) } else { Step::More });
        let data = vec![Bytes::from(bytes)];
        let write = [DiskOp::Write { file: file.clone(), offset, data }, DiskOp::Sync { file }];
        self.write_copy(len, what, create.into_iter().chain(write).collect(), out);
    }

    fn write_copy(&mut self, bytes: u64, what: Step, ops: Vec<DiskOp>, out: &mut Outbox<M>) {
        self.next_token += 1;
        let token = self.next_token;
        if let Some(copying) = &mut self.copying {
            copying.writing = Some(Writing { token, bytes, what });
            out.disk(DiskRequest::in_background(token, ops));
        }
    }

    /// Takes an answer of the disk, if it is to something of this.
    pub(super) fn copy_done(&mut self, done: &DiskDone, out: &mut Outbox<M>) {
        if let Some(read) = self.reads.remove(&done.token) {
            return self.give(read, done, out);
        }
        let Some(copying) = &mut self.copying else { return };
        let Some(writing) = copying.writing.take_if(|writing| writing.token == done.token) else { return };
        if let Err(error) = &done.result {
            let reason = error.to_string();
            return self.give_up_copy(&reason, out);
        }
        copying.offset += writing.bytes;
        let (epoch, offset) = (copying.epoch, copying.offset);
        match writing.what {
            Step::More => {
                let to = Address { node: copying.from, ..self.settings.me };
                out.send(to, Saving::Want { epoch, offset });
            }
            Step::Last(at) => {
                let seal = Seal { epoch, at };
                self.write_copy(0, Step::Sealed(seal), super::seal_ops(seal), out);
            }
            Step::Sealed(seal) => {
                self.copying = None;
                match self.settings.only_copies && self.needs.is_none() {
                    true => self.completed(seal, out),
                    false => {
                        self.complete.insert(seal.epoch, seal.at);
                        self.begin_again(out);
                    }
                }
            }
        }
    }

    /// Gives up the copy. If it is still needed, it will be asked for again.
    pub(super) fn give_up_copy(&mut self, reason: &str, out: &mut Outbox<M>) {
        let Some(Copying { from, epoch, .. }) = self.copying.take() else { return };
        self.failure =
            Some(format!("the checkpoint of epoch {epoch} was not got from node {}: {reason}", from.0));
        self.leftovers.extend([file_name(epoch), seal_name(epoch)]);
        self.clean(out);
    }

    /// The member has not got it any more.
    pub(super) fn is_gone(&mut self, from: NodeId, epoch: Epoch, out: &mut Outbox<M>) {
        if self.copying.as_ref().is_some_and(|copying| (copying.from, copying.epoch) == (from, epoch)) {
            self.give_up_copy("it has no such checkpoint any more", out);
        }
    }

    /// Messages to and from another node may be lost.
    pub(super) fn copy_peer(&mut self, PeerChange { node, state }: PeerChange, out: &mut Outbox<M>) {
        if state != PeerState::Back && self.copying.as_ref().is_some_and(|copying| copying.from == node) {
            self.give_up_copy("it cannot be reached", out);
        }
        if state == PeerState::Fresh {
            self.reads.retain(|_, read| read.to.node != node);
        }
    }

    // ---- for a member --------------------------------------------------------------------------------------

    /// A member wants some of a checkpoint.
    pub(super) fn serve(&mut self, to: Address, epoch: Epoch, offset: u64, out: &mut Outbox<M>) {
        if !self.complete.contains_key(&epoch) {
            // A member that cannot begin with what there is asks for more than there is.
            let has_older = self.newest().is_none_or(|(newest, _)| newest < epoch);
            if has_older && !self.settings.only_copies {
                out.send(self.settings.sequencer, Saving::Wanted);
            }
            out.send(to, Saving::Gone(epoch));
            return out.send(to, Saving::Has(self.has()));
        }
        self.next_token += 1;
        let (token, into) = (self.next_token, Fetched::default());
        let (file, len) = (file_name(epoch), self.settings.piece);
        out.disk(DiskRequest::in_background(
            token,
            vec![DiskOp::Read { file, offset, len, into: into.clone() }],
        ));
        self.reads.insert(token, Read { to, epoch, offset, into });
    }

    fn give(&mut self, read: Read, done: &DiskDone, out: &mut Outbox<M>) {
        let Read { to, epoch, offset, into } = read;
        let at = self.complete.get(&epoch).filter(|_| done.result.is_ok());
        let Some(at) = at.copied() else { return out.send(to, Saving::Gone(epoch)) };
        let bytes = into.bytes().to_vec();
        // Fewer than were asked for stand at the end alone.
        let is_last = bytes.len() < self.settings.piece;
        out.send(to, Saving::Part { epoch, at, offset, bytes, is_last });
    }
}
