//! Overlays of views (regions.md, 4.12): the initiator tells its views what it has committed in other regions, before their logs do, and a
//! region is asked for parts whose reads name such a transaction in place of a version.
//!
//! ```text
//!  initiator:  Part to the other region, Asked to its view ─▶ all have voted yes: Committed ─▶ Known, with the place there: Placed
//!  validator:  Part that names a transaction ─▶ its outcome is in the log ─▶ the part runs, with that place as the version
//! ```

use std::collections::BTreeMap;

use ordain_execution::Write;
use ordain_model::{Epoch, Gsn, Micros, PartitionId};

use super::parts::{Does, Part};
use super::{ATTEMPT_MAX, Coordinator};
use crate::desk::Desk;
use crate::ids::{AttemptId, Lead};
use crate::message::{Own, PartRequest};
use crate::viewing::Laid;

/// The most requests that wait. A further one runs at once, and is refused for what it has read.
const NAMED_MAX: usize = 1_024;

/// Requests for parts by the transactions for whose outcomes they wait, each with its sender and the time at which that gives the attempt up.
#[derive(Debug, Default)]
pub struct Named(BTreeMap<AttemptId, Vec<(Micros, Lead, PartRequest)>>);

impl Named {
    fn add(&mut self, by: AttemptId, from: Lead, request: PartRequest, now: Micros) {
        self.0.retain(|_, all| {
            all.retain(|(until, ..)| *until > now);
            !all.is_empty()
        });
        self.0.entry(by).or_default().push((now.plus(ATTEMPT_MAX), from, request));
    }

    fn is_full(&self) -> bool {
        self.0.values().map(Vec::len).sum::<usize>() >= NAMED_MAX
    }

    /// Takes the requests that wait for a transaction.
    fn take(&mut self, by: AttemptId) -> Vec<(Micros, Lead, PartRequest)> {
        self.0.remove(&by).unwrap_or_default()
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl Desk<'_> {
    /// Tells the view of a region of a transaction of this one.
    pub fn lay(&mut self, region: PartitionId, news: Laid) {
        if self.site.overlays && self.site.is_foreign(region) {
            self.out.send(self.site.view(region), Own::Lay(news));
        }
    }

    /// Tells all views of a transaction of this region.
    pub fn lay_everywhere(&mut self, news: &Laid) {
        let regions = self.site.layout.partitions();
        (0..regions).for_each(|region| self.lay(PartitionId(region), news.clone()));
    }
}

impl Coordinator {
    // ---- the initiator -------------------------------------------------------------------------------------

    /// Another region is about to be asked for its part, which writes there.
    pub(super) fn lay_part(of: AttemptId, region: PartitionId, writes: &[Write], desk: &mut Desk<'_>) {
        if desk.site.overlays && !writes.is_empty() {
            desk.lay(region, Laid::Asked(of, writes.to_vec()));
        }
    }

    /// The end of a transaction that this region has initiated is known: it has committed, or has not and never will.
    pub(super) fn lay_end(part: &Part, has_committed: bool, desk: &mut Desk<'_>) {
        if part.does != Does::Initiate {
            return;
        }
        let news = if has_committed { Laid::Committed(part.of) } else { Laid::Dropped(part.of) };
        part.participants.iter().for_each(|lead| desk.lay(lead.partition, news.clone()));
    }

    /// Another region has told where the outcome of a transaction of this one stands in its log.
    pub(super) fn lay_place(from: Lead, of: AttemptId, place: Epoch, desk: &mut Desk<'_>) {
        if of.home().partition == desk.site.partition {
            desk.lay(from.partition, Laid::Placed(of, place));
        }
    }

    // ---- the regions that are asked ------------------------------------------------------------------------

    /// Puts the versions in place of the transactions that a request names; answers nothing if the request waits for the outcome of one. Of one
    /// that is not known here no version is known: then what was read is not the newest, as far as this region can tell.
    pub(super) fn with_versions(
        &mut self,
        from: Lead,
        mut request: PartRequest,
        desk: &Desk<'_>,
    ) -> Option<PartRequest> {
        let named = request.reads.iter().filter_map(|read| read.by);
        let awaited = named.filter(|by| desk.agreed.decided(*by).is_none());
        let awaited = awaited.into_iter().find(|by| self.voting.awaits(*by));
        if let Some(by) = awaited.filter(|_| !self.named.is_full()) {
            self.named.add(by, from, request, desk.elapsed());
            return None;
        }
        for read in request.reads.iter_mut().filter(|read| read.version != Gsn::NONE) {
            let decided = read.by.and_then(|by| desk.agreed.decided(by));
            if let Some(decided) = decided {
                read.version = Gsn(decided.place.0);
            }
        }
        Some(request)
    }

    /// The outcome of a transaction stands in the log: requests that have named it go on, unless their senders have given them up.
    pub(super) fn go_on_named(&mut self, of: AttemptId, desk: &mut Desk<'_>) {
        for (until, from, request) in self.named.take(of) {
            if desk.elapsed() < until && desk.leaders.holds(from) {
                self.take_part(from, request, desk);
            }
        }
    }
}
