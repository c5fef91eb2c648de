//! A primary's log: it sends members what it has sealed, from memory or from its files.

use std::sync::Arc;

use ordain_log::{LogWriter, Place};
use ordain_model::Epoch;
use ordain_role::{Address, DiskDone, NodeId, Outbox};

use super::super::tail::Content;
use super::{Member, Shipping, View};
use crate::catch_up::Piece;
use crate::entry::EntryType;
use crate::message::{Carrier, Ship};

impl<T: EntryType> Shipping<T> {
    /// An entry was dispatched, with this as its entry.
    pub(in crate::input_log) fn dispatched<M: Carrier<T::Entry>>(
        &mut self,
        epoch: Epoch,
        content: Option<Content>,
        out: &mut Outbox<M>,
    ) {
        let after = self.tail.last();
        if let Some(content) = &content {
            self.tail.push(epoch, content.clone());
        }
        let Some(term) = self.leads() else { return };
        for (node, _) in self.members.iter().filter(|(_, member)| member.is_live) {
            self.counts.shipped += 1;
            out.send(self.at(*node), Ship::Entry { term, after, through: epoch, content: content.clone() });
        }
    }

    /// Notes that so many bytes of entries were handed on, and that the durable ones end at the writer's place.
    pub(in crate::input_log) fn note_place(&mut self, bytes: usize, writer: &LogWriter) {
        self.index.grow(bytes, writer.durable());
        self.index.reach(writer.durable().next(), writer.place());
    }

    /// A member wants everything after an epoch, up to which it has everything on its disk.
    pub(in crate::input_log) fn wanted<M: Carrier<T::Entry>>(
        &mut self,
        node: NodeId,
        term: u64,
        after: Epoch,
        view: View<'_, T::Entry>,
        out: &mut Outbox<M>,
    ) {
        let (leads, is_out) = (self.leads() == Some(term), self.is_out(node));
        let is_new = self.leadership_record().is_none_or(|leadership_record| leadership_record.term < term);
        let Some(member) = self.members.get_mut(&node) else { return };
        if is_new {
            member.early = Some((term, after));
        }
        if !leads || is_out {
            return;
        }
        (member.is_live, member.have) = (false, after);
        let to = self.at(node);
        let piece = self.tail.after(after).map(|rest| take_piece(rest, self.settings.piece));
        if let Some((entries, is_last)) = piece {
            self.readers.leave(to);
            let before = self.ship(to, (term, after), entries, out);
            if !is_last {
                return out.send(to, Ship::Pause { term });
            }
            if before == after || view.dispatched > before {
                let (after, through) = (self.tail.last(), view.dispatched);
                out.send(to, Ship::Entry { term, after, through, content: None });
            }
            self.members.entry(node).and_modify(|member| member.is_live = true);
        } else {
            self.read(to, after, view, out);
        }
    }

    /// Sends a member some entries that follow an epoch; the last one's.
    pub(in crate::input_log) fn ship<M: Carrier<T::Entry>>(
        &mut self,
        to: Address,
        (term, mut after): (u64, Epoch),
        entries: Vec<(Epoch, Content)>,
        out: &mut Outbox<M>,
    ) -> Epoch {
        for (through, content) in entries {
            self.counts.shipped += 1;
            out.send(to, Ship::Entry { term, after, through, content: Some(content) });
            after = through;
        }
        after
    }

    /// Tells a member to ask.
    pub(in crate::input_log) fn pause<M: Carrier<T::Entry>>(&self, node: NodeId, out: &mut Outbox<M>) {
        if let Some(term) = self.leads().filter(|_| !self.is_out(node)) {
            out.send(self.at(node), Ship::Pause { term });
        }
    }

    pub(in crate::input_log) fn least(&self) -> Epoch {
        self.members.values().map(|member| member.have).min().unwrap_or(Epoch(u64::MAX))
    }

    /// Lets go what need not be in memory. A member that has not even got that on its disk is not kept up with.
    pub(in crate::input_log) fn shrink<M: Carrier<T::Entry>>(
        &mut self,
        view: View<'_, T::Entry>,
        out: &mut Outbox<M>,
    ) {
        let all_have = self.leads().map_or(Epoch(0), |_| self.least());
        self.tail.shrink(all_have, self.settings.kept_bytes, view.durable);
        let since = self.tail.since();
        let is_behind = |member: &Member| member.is_live && member.have < since;
        let behind: Vec<NodeId> =
            self.members.iter().filter(|(_, member)| is_behind(member)).map(|(node, _)| *node).collect();
        for node in behind {
            self.members.entry(node).and_modify(|member| member.is_live = false);
            self.pause(node, out);
        }
    }

    /// Reads the files for a reader that wants what comes after an epoch and is not in memory any more.
    pub(in crate::input_log) fn read<M: Carrier<T::Entry>>(
        &mut self,
        who: Address,
        after: Epoch,
        view: View<'_, T::Entry>,
        out: &mut Outbox<M>,
    ) {
        // A log that is kept nowhere, or does not go back as far, has nothing for them.
        let is_kept = view.durable < Epoch(u64::MAX);
        if is_kept && self.readers.ask(who, &self.index, (after.next(), after)).is_some() {
            self.read_on(who, view, out);
        } else {
            self.refuse(who, if is_kept { self.index.begins_after() } else { self.tail.since() }, out);
        }
    }

    /// Tells a reader that the log does not keep any more what it wants up to an epoch.
    pub(in crate::input_log) fn refuse<M: Carrier<T::Entry>>(
        &mut self,
        who: Address,
        through: Epoch,
        out: &mut Outbox<M>,
    ) {
        self.counts.not_there += 1;
        // A candidate has all that a checkpoint covers, or it would not be one.
        if let Some(term) = self.leads().filter(|_| who.role == self.settings.me.role) {
            out.send(who, Ship::Trimmed { term, through });
        }
    }

    /// The last epoch that may go: what comes after it a member is being given from the files, and is not too far behind for
    /// that.
    pub(in crate::input_log) fn spared(&self) -> Epoch {
        let is_near = |next: &Epoch| self.index.bytes_from(*next) <= self.settings.kept_bytes;
        self.readers.least().filter(is_near).map_or(Epoch(u64::MAX), |next| Epoch(next.0 - 1))
    }

    /// Notes that the log begins at a place, behind which all entries after an epoch stand.
    pub(in crate::input_log) fn trim<M: Carrier<T::Entry>>(
        &mut self,
        begins: Place,
        after: Epoch,
        out: &mut Outbox<M>,
    ) {
        self.index.trim(begins, (after.next(), after));
        self.readers.trim(begins);
        let through = self.index.begins_after();
        self.readers.late().into_iter().for_each(|who| self.refuse(who, through, out));
    }

    /// Gives a member what was read, or reads more.
    pub(in crate::input_log) fn read_on<M: Carrier<T::Entry>>(
        &mut self,
        who: Address,
        view: View<'_, T::Entry>,
        out: &mut Outbox<M>,
    ) {
        let piece = self.readers.next_piece(who, self.settings.piece, view.durable, out);
        let Some(Piece { asked, entries, .. }) = piece else { return };
        self.counts.read_again += entries.len() as u64;
        if entries.is_empty() {
            self.counts.not_there += 1;
            return;
        }
        let entries: Vec<_> = entries.into_iter().map(|(epoch, bytes)| (epoch, Arc::new(bytes))).collect();
        if who.role != self.settings.me.role {
            self.collects.remove(&who);
            self.send_to_candidate(who, entries, false, view, out);
        } else if let Some(term) = self.leads() {
            self.ship(who, (term, Epoch(asked.0 - 1)), entries, out);
            out.send(who, Ship::Pause { term });
        }
    }

    /// The disk has read something.
    pub(in crate::input_log) fn was_read<M: Carrier<T::Entry>>(
        &mut self,
        done: &DiskDone,
        view: View<'_, T::Entry>,
        out: &mut Outbox<M>,
    ) {
        match self.readers.was_read(done, view.durable) {
            Ok(Some(who)) => self.read_on(who, view, out),
            Ok(None) => {}
            Err(reason) => out.halt(format!("the input log cannot be read again: {reason}")),
        }
    }
}

/// About so many bytes of entries, and whether there are no more.
pub(super) fn take_piece<'a>(
    rest: impl Iterator<Item = &'a (Epoch, Content)>,
    most: usize,
) -> (Vec<(Epoch, Content)>, bool) {
    let (mut entries, mut bytes) = (Vec::new(), 0);
    for (epoch, content) in rest {
        if bytes >= most {
            return (entries, false);
        }
        bytes += content.len();
        entries.push((*epoch, content.clone()));
    }
    (entries, true)
}
