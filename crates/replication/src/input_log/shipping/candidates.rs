//! While a term is being prepared: a log tells the candidate what it has.

use ordain_model::Epoch;
use ordain_role::{Address, Outbox};

use super::super::tail::Content;
use super::primary::take_piece;
use super::{Collect, Shipping, View};
use crate::entry::EntryType;
use crate::message::{Carrier, Held, Ship};

impl<T: EntryType> Shipping<T> {
    /// A candidate wants to know what there is after an epoch.
    pub(in crate::input_log) fn collect(&mut self, from: Address, term: u64, after: Epoch) {
        if self.fence().is_some_and(|fence| fence.term == term) {
            self.collects.insert(from, Collect { term, after, is_being_read: false });
        }
    }

    pub(in crate::input_log) fn answer_candidates<M: Carrier<T::Entry>>(
        &mut self,
        view: View<'_, T::Entry>,
        out: &mut Outbox<M>,
    ) {
        if !view.is_clean {
            return;
        }
        // The candidate's own configuration service counts entries here as decided, so they have to be on disk too.
        let me = self.settings.me.node;
        let may_tell = |who: &Address| who.node != me || view.is_at_rest();
        let open = self.collects.iter().filter(|(who, collect)| !collect.is_being_read && may_tell(who));
        let open: Vec<(Address, Epoch)> = open.map(|(who, collect)| (*who, collect.after)).collect();
        for (who, after) in open {
            let coming = view.queue.iter().filter_map(|queued| Some((queued.epoch, queued.content.clone()?)));
            let coming: Vec<_> = coming.filter(|(epoch, _)| *epoch > after).collect();
            let piece =
                self.tail.after(after).map(|rest| take_piece(rest.chain(&coming), self.settings.piece));
            if let Some((entries, is_all)) = piece {
                self.collects.remove(&who);
                self.send_to_candidate(who, entries, is_all, view, out);
            } else {
                self.collects.entry(who).and_modify(|collect| collect.is_being_read = true);
                self.read(who, after, view, out);
            }
        }
    }

    pub(in crate::input_log) fn send_to_candidate<M: Carrier<T::Entry>>(
        &self,
        who: Address,
        entries: Vec<(Epoch, Content)>,
        is_all: bool,
        view: View<'_, T::Entry>,
        out: &mut Outbox<M>,
    ) {
        let Some(fence) = self.fence() else { return };
        let mut held = Vec::new();
        for (epoch, content) in entries {
            match self.read_entry(epoch, Some(&content)) {
                Ok(entry) => held.push(Held { epoch, parts: T::count_parts(&entry), content: Some(content) }),
                Err(reason) => {
                    return out.halt(format!("epoch {epoch} of the log cannot be read again: {reason}"));
                }
            }
        }
        let (partition, term) = (self.settings.partition, fence.term);
        let (since, through, executed) = (Epoch(0), view.last(), view.dispatched);
        out.send(who, Ship::Collected { partition, term, since, through, executed, held, is_all });
    }
}
