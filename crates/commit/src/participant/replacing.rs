//! A view begins anew with a checkpoint of its region, which comes in pieces.
//!
//! The pieces are put into a store of their own. Meanwhile the view goes on showing what it has, which is of one moment; once all have come and
//! add up, it shows what they hold. So none of a checkpoint is shown before all of it is there, whatever ends the node, and no event takes longer
//! than a piece. What was shown before is cleared, and its memory given back some records at a time.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use ordain_checkpoint::{Arriving, Header};
use ordain_model::Epoch;
use ordain_replication::Log;
use ordain_role::{Bug, Outbox};
use ordain_store::{MemoryStore, RecordStore as _};

use super::{Holding, Participant};
use crate::entry::Entry;
use crate::ids::AttemptId;
use crate::message::{Message, Own};
use crate::proxy::{Come, Progress, Taken};
use crate::restoring::Restoring;
use crate::viewing::Laid;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Replacing {
    next: Option<Box<Next>>,
    /// The place of the last checkpoint that was shown.
    shown: Epoch,
    /// Cleared stores, whose memory is not given back yet.
    gone: Vec<MemoryStore>,
    /// Attempts that have read what was shown before: none of them reads on, as the two are of different moments.
    ended: BTreeSet<AttemptId>,
}

/// The checkpoint that is coming.
#[derive(Debug)]
struct Next {
    arriving: Arriving,
    /// The number of bytes that have come.
    through: u64,
    restoring: Restoring,
}

impl Next {
    fn take(&mut self, come: &Come, holding: &Holding) -> Result<(), String> {
        let Next { arriving, through, restoring } = self;
        let accept = |header: &Header| match header.partition == holding.partition()
            && header.slots == (holding.slots().start as u16..holding.slots().end as u16)
            && header.placement == *holding.placement()
        {
            true => Ok(()),
            false => Err(format!("it is of partition {} or of another layout", header.partition)),
        };
        let taken = arriving.take(&come.bytes, accept, |item| restoring.take(&item));
        taken.map_err(|error| error.to_string())?;
        *through += come.bytes.len() as u64;
        if come.is_last {
            arriving.end().map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

impl Replacing {
    /// Begins with a checkpoint, in place of one that has not come to its end.
    fn begin(&mut self, come: &Come, holding: &Holding) {
        self.abandon();
        let restoring = Restoring::of_view(come.epoch, holding.slots(), holding.placement());
        self.next = Some(Box::new(Next { arriving: Arriving::new(come.epoch), through: 0, restoring }));
    }

    /// Gives up the checkpoint that was coming.
    fn abandon(&mut self) {
        if let Some(next) = self.next.take() {
            self.retire(next.restoring.into_view().0);
        }
    }

    /// Has a store that nobody uses freed some at a time.
    fn retire(&mut self, mut store: MemoryStore) {
        store.retire();
        self.gone.push(store);
    }

    /// Gives back the memory of about so many records.
    pub(super) fn free_some(&mut self, most: usize) {
        if let Some(store) = self.gone.last_mut()
            && !store.free_some(most)
        {
            self.gone.pop();
        }
    }

    /// True if the last checkpoint has what the entry of a place says. The reader was at that place before it found that it is behind; the entry has
    /// come later than the checkpoint, as two roles have sent them.
    pub(super) fn has(&self, place: Epoch) -> bool {
        place <= self.shown
    }

    /// True if an attempt has read what was shown before a checkpoint took its place.
    pub(super) fn has_ended(&self, who: AttemptId) -> bool {
        self.ended.contains(&who)
    }

    /// An attempt is over.
    pub(super) fn finish(&mut self, who: AttemptId) {
        self.ended.remove(&who);
    }

    /// Attempts are over, but for some.
    pub(super) fn keep(&mut self, is_kept: impl Fn(&AttemptId) -> bool) {
        self.ended.retain(is_kept);
    }

    /// Checks the invariants of the fields.
    pub(super) fn check(&self) -> Result<(), String> {
        match self.gone.iter().find(|store| store.records() > 0) {
            Some(store) => {
                Err(format!("{} records of a store that nobody uses are not cleared", store.records()))
            }
            None => Ok(()),
        }
    }
}

impl Participant {
    /// Takes the next bytes of a checkpoint, and answers how far that has come.
    pub(super) fn take_come(&mut self, come: &Come, out: &mut Outbox<Message>) {
        let Some(reader) = self.shows else {
            return out.halt("a participant that is no view was given a checkpoint of another region");
        };
        let progress = self.take_bytes(come, out);
        if let Progress::All = progress {
            // The reader goes on behind it, or behind what the view has if that is more.
            out.send(reader, Log::<Arc<Entry>>::BeginAgain(self.applied));
            self.show(out);
        }
        let (epoch, through) = (come.epoch, come.offset + come.bytes.len() as u64);
        out.send(come.proxy, Own::Taken(Taken { epoch, through, progress }));
    }

    fn take_bytes(&mut self, come: &Come, out: &mut Outbox<Message>) -> Progress {
        if come.epoch <= self.applied {
            self.replacing.abandon();
            return Progress::All;
        }
        if come.offset == 0 {
            self.replacing.begin(come, &self.holding);
        }
        let next = self.replacing.next.as_mut();
        let Some(next) =
            next.filter(|next| (next.restoring.cut(), next.through) == (come.epoch, come.offset))
        else {
            return Progress::Unfit("it is not what comes next".to_owned());
        };
        if let Err(reason) = next.take(come, &self.holding) {
            self.replacing.abandon();
            return Progress::Unfit(reason);
        }
        // Planted, ONE-MOMENT: what has come is shown before the rest has.
        if !come.is_last && !self.bugs.has(Bug::ShowPieces) {
            return Progress::More;
        }
        self.show_next();
        out.send(self.manager, Own::Replaced(self.holding.partition()));
        if come.is_last { Progress::All } else { Progress::More }
    }

    /// Shows the checkpoint that has come.
    fn show_next(&mut self) {
        let Some(next) = self.replacing.next.take() else { return };
        let cut = next.restoring.cut();
        self.replacing.shown = cut;
        self.replacing.ended.extend(self.attempts.keys());
        let (store, image) = next.restoring.into_view();
        self.stand();
        // The checkpoint may hold the outcomes of what is laid over.
        self.lay(Laid::Cleared);
        // Promises of before the cut are in the checkpoint, or over.
        self.prepared.clear();
        self.promised.clear();
        let shown = std::mem::replace(&mut self.store, store);
        self.replacing.retire(shown);
        self.begin_from(cut, &image);
        self.serves = Some(self.terms.last());
    }
}
