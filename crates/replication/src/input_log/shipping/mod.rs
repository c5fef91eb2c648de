//! Log shipping: members take what their primary has sealed, and the primary waits for none of them
//! (docs/protocols/calvin.md, sections 4.1, `async`, and 4.12).
//!
//! ```text
//!            the primary                                      a member
//!  Append ─▶ InputLog ─▶ sinks       Entry, Pause          InputLog ─▶ sinks
//!                └────────────────────────────────────────────▶┘
//!                ▲────────────────── Want, Have ───────────────┘
//! ```
//!
//! The configuration service says who is primary, since which term ([`LeadershipRecords`]). The primary's log hands on
//! what its appender appends as soon as it is durable here, and then ships it (module `primary`). A member puts what it is
//! shipped through the same path: durable, then handed on (module `member`). So the logs of members hold the same entries,
//! and each has a beginning of what the primary's has.
//!
//! A member that is up to date is sent everything at once. A member that has found a gap, or may have missed something,
//! *wants* what comes after its last entry. It is sent that in pieces, each when the one before is on its disk: from the
//! tail that the primary keeps in memory, or else from the primary's files. From the last piece on it is sent everything
//! at once again. So no node and no link ever has to hold more than a bounded amount.
//!
//! While a term is being prepared (the *fence*) a log takes nothing, and tells the candidate what it has
//! ([`Ship::Collect`]; module `candidates`). The candidate's own log is then given what it has not ([`Ship::Decided`]).

mod candidates;
mod member;
mod primary;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ordain_log::LogWriter;
use ordain_model::{Epoch, Micros, PartitionId};
use ordain_role::{Address, DiskDone, NodeId, Outbox, TimerId};

use super::tail::{Content, Tail};
use super::{InputLog, Queued};
use crate::catch_up::{CatchUps, Index};
use crate::configuration_service::{Fence, LeadershipRecord, LeadershipRecords};
use crate::entry::{EntryType, epoch_of};
use crate::message::{Carrier, Configuration, Log, Message, Ship};

/// The settings of a log that ships to members.
#[derive(Clone, Debug)]
pub struct ShippingSettings {
    /// The address of this role; it has the same number on the members.
    pub me: Address,
    /// The log's partition.
    pub partition: PartitionId,
    /// The other nodes that hold the partition.
    pub members: Vec<NodeId>,
    /// The role that gets a checkpoint for a log that is too far behind, if there is one.
    pub checkpointer: Option<Address>,
    /// The identity in the log's files, which are read again for members that are far behind.
    pub identity: Vec<u8>,
    /// The most bytes of dispatched entries that are kept in memory for members that are behind; and of shipped
    /// entries that a member holds before its disk has taken them.
    pub kept_bytes: usize,
    /// About how many bytes a member that is behind is sent at a time. A link has room for several times as many.
    pub piece: usize,
}

/// Timer: a member asks again for what it wants if nothing has come.
pub(super) const ASK: TimerId = TimerId(3);
const ASK_EVERY: Micros = Micros::from_millis(500);

/// The state of shipping, of a primary's log and of a member's.
#[derive(Debug)]
pub(super) struct Shipping<T: EntryType> {
    settings: ShippingSettings,
    context: Arc<T::Context>,
    /// The latest decisions of the configuration service.
    leadership_records: Option<Arc<LeadershipRecords>>,
    in_touch: bool,
    /// The appender may append: this log is the primary's, and everything of the terms before is handed on.
    takes: bool,
    /// A life of this node before may have used epochs up to here that are in no log.
    reserved: Epoch,
    tail: Tail,
    index: Index,
    readers: CatchUps<Address>,
    members: BTreeMap<NodeId, Member>,
    /// The open questions of candidates.
    collects: BTreeMap<Address, Collect>,
    /// As a member: it asks its primary for what it lacks as soon as what it has is on disk.
    wants: bool,
    /// The epoch after which this member has asked for everything, while nothing has come yet.
    asked: Option<Epoch>,
    /// The epoch up to which the primary keeps nothing any more that this member has asked for.
    behind: Option<Epoch>,
    /// The last epoch that was reported to the primary as on disk here.
    reported: Epoch,
    announced: Option<Announced>,
    /// The configuration service that waits to learn how far the log is.
    asks_how_far: Option<Address>,
    counts: Counts,
}

/// Another holder of the partition, as the primary sees it.
#[derive(Debug, Default)]
struct Member {
    /// The member is sent everything at once.
    is_live: bool,
    /// The last epoch that the member has on its disk.
    have: Epoch,
    /// The term that the member knew before this node did, and the epoch after which it wanted entries.
    early: Option<(u64, Epoch)>,
}

/// A candidate's question.
#[derive(Clone, Copy, Debug)]
struct Collect {
    term: u64,
    after: Epoch,
    is_being_read: bool,
}

/// The latest word to the appender on leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Announced {
    node: Option<NodeId>,
    term: u64,
    is_me: bool,
}

#[derive(Debug, Default)]
struct Counts {
    shipped: u64,
    taken: u64,
    read_again: u64,
    not_there: u64,
}

/// The log, as its shipping sees it.
pub(super) struct View<'a, E> {
    queue: &'a VecDeque<Queued<E>>,
    dispatched: Epoch,
    /// The epoch up to which everything can be read again.
    durable: Epoch,
    /// Bytes that are not durable yet.
    pending: u64,
    /// No entry that was taken back can come back.
    is_clean: bool,
}

impl<E> Clone for View<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for View<'_, E> {}

impl<E> View<'_, E> {
    /// Tells whether all that the log has is on disk, and nothing else is there.
    fn is_at_rest(&self) -> bool {
        self.queue.is_empty() && self.is_clean
    }

    /// The last epoch that the log has taken.
    fn last(&self) -> Epoch {
        self.queue.back().map_or(self.dispatched, |queued| queued.epoch)
    }
}

impl<T: EntryType> Shipping<T> {
    /// Makes the shipping of a log with this writer, whose entries so far the index describes.
    pub fn new(
        settings: ShippingSettings,
        context: Arc<T::Context>,
        mut index: Index,
        writer: Option<&LogWriter>,
    ) -> Shipping<T> {
        let last = writer.map_or(Epoch(0), LogWriter::appended);
        if let Some(writer) = writer {
            // Without entries, all that there were are trimmed.
            index.grow(0, last);
            index.reach(last.next(), writer.place());
        }
        Shipping {
            readers: CatchUps::new("", settings.identity.clone()),
            members: settings.members.iter().map(|member| (*member, Member::default())).collect(),
            settings,
            context,
            leadership_records: None,
            in_touch: false,
            takes: false,
            reserved: writer.map_or(Epoch(0), |_| super::resume_after(last)),
            tail: Tail::new(last),
            index,
            collects: BTreeMap::new(),
            wants: false,
            asked: None,
            behind: None,
            reported: Epoch(0),
            announced: None,
            asks_how_far: None,
            counts: Counts::default(),
        }
    }

    fn leadership_record(&self) -> Option<&LeadershipRecord> {
        self.leadership_records
            .as_ref()
            .map(|leadership_records| leadership_records.of(self.settings.partition))
    }

    fn is_out(&self, node: NodeId) -> bool {
        self.leadership_records.as_ref().is_some_and(|leadership_records| leadership_records.is_out(node))
    }

    /// The leadership_record, unless a term is being prepared or this node has to be rebuilt.
    fn open_leadership_record(&self) -> Option<&LeadershipRecord> {
        let me = self.settings.me.node;
        self.leadership_record()
            .filter(|leadership_record| leadership_record.fence.is_none() && !self.is_out(me))
    }

    /// The term in which this node is primary.
    fn leads(&self) -> Option<u64> {
        self.open_leadership_record()
            .filter(|leadership_record| leadership_record.primary == self.settings.me.node)
            .map(|leadership_record| leadership_record.term)
    }

    /// The primary that this node follows, and its term.
    fn follows(&self) -> Option<(NodeId, u64)> {
        let leadership_record = self
            .open_leadership_record()
            .filter(|leadership_record| leadership_record.primary != self.settings.me.node)?;
        Some((leadership_record.primary, leadership_record.term))
    }

    fn fence(&self) -> Option<Fence> {
        self.leadership_record().and_then(|leadership_record| leadership_record.fence)
    }

    fn at(&self, node: NodeId) -> Address {
        Address { node, ..self.settings.me }
    }

    /// Tells whether an entry of the appender may be refused, rather than kept until there is space.
    pub fn takes(&self) -> bool {
        self.takes
    }

    /// Tells whether the appender may append an entry of this epoch.
    pub fn may_append(&self, epoch: Epoch, view: View<'_, T::Entry>) -> bool {
        self.takes && epoch > self.last_used(view)
    }

    /// The last epoch that the next primary here must not use.
    fn last_used(&self, view: View<'_, T::Entry>) -> Epoch {
        let before = self
            .leads()
            .and_then(|_| self.leadership_record())
            .map_or(0, |leadership_record| leadership_record.first.0.saturating_sub(1));
        let reserved = self.leads().map_or(Epoch(0), |_| self.reserved);
        view.last().max(reserved).max(Epoch(before))
    }

    /// Takes the leadership records: this node leads now, follows or waits.
    fn note_records<M: Carrier<T::Entry>>(
        &mut self,
        leadership_records: Arc<LeadershipRecords>,
        in_touch: bool,
        view: View<'_, T::Entry>,
        out: &mut Outbox<M>,
    ) {
        if self.leadership_records.as_ref().is_some_and(|known| known.version > leadership_records.version) {
            return;
        }
        self.in_touch = in_touch;
        let posture = |shipping: &Shipping<T>| (shipping.leads(), shipping.follows(), shipping.fence());
        let (before, known) = (posture(self), self.leadership_records.replace(leadership_records));
        if known.is_none() || posture(self) != before {
            self.begin(view, out);
        } else if self.leads().is_some() {
            // A member that was evicted and has come again may have asked too early.
            let was_out = |node: &NodeId| known.as_ref().is_some_and(|known| known.is_out(*node));
            let back: Vec<NodeId> = self.members.keys().copied().filter(was_out).collect();
            back.into_iter().for_each(|member| self.pause(member, out));
        }
    }

    /// Another one is primary, or a term is being prepared, or it is decided.
    fn begin<M: Carrier<T::Entry>>(&mut self, view: View<'_, T::Entry>, out: &mut Outbox<M>) {
        let fenced = self.fence().map(|fence| fence.term);
        self.collects.retain(|_, collect| Some(collect.term) == fenced);
        self.collects.values_mut().for_each(|collect| collect.is_being_read = false);
        self.readers.clear();
        (self.takes, self.asked, self.behind) = (false, None, None);
        (self.wants, self.reported) = (self.follows().is_some(), view.dispatched);
        self.members.values_mut().for_each(|member| member.is_live = false);
        let Some(term) = self.leads() else { return };
        for node in self.settings.members.clone() {
            let early = self.members.get_mut(&node).and_then(|member| member.early.take());
            match early.filter(|(wanted, _)| *wanted == term) {
                Some((_, after)) => self.wanted(node, term, after, view, out),
                None => self.pause(node, out),
            }
        }
    }

    /// Tells the appender who is primary, if that has changed.
    fn announce<M: Carrier<T::Entry>>(
        &mut self,
        appender: Address,
        view: View<'_, T::Entry>,
        out: &mut Outbox<M>,
    ) {
        let is_me = self.takes;
        let node = self.follows().map(|(primary, _)| primary).or(is_me.then_some(self.settings.me.node));
        let now = Announced {
            node,
            term: self.leadership_record().map_or(0, |leadership_record| leadership_record.term),
            is_me,
        };
        if self.announced.replace(now) != Some(now) {
            let Announced { node, term, is_me } = now;
            out.send(appender, Log::Leader { node, term, is_me, last: self.last_used(view) });
        }
    }

    /// Reports the progress, after everything else is done. Answers the epoch up to which a primary that begins has to
    /// seal empty epochs, as others may know of them.
    pub fn report_progress<M: Carrier<T::Entry>>(
        &mut self,
        appender: Address,
        view: View<'_, T::Entry>,
        out: &mut Outbox<M>,
    ) -> Option<Epoch> {
        // A primary knows what is in its log before it adds to it.
        let took = self.takes;
        self.takes = self.leads().is_some() && self.in_touch && (self.takes || view.queue.is_empty());
        self.announce(appender, view, out);
        self.shrink(view, out);
        self.report(view, out);
        self.answer_configuration_service(view, out);
        self.answer_candidates(view, out);
        let used = self.last_used(view);
        (self.takes && !took && used > view.last()).then_some(used)
    }

    /// Answers the configuration service with the log's last epoch on disk: up to there no node remembers slices for
    /// it. While a term is being prepared the answer waits until all is on disk: no node is to be primary of what it
    /// would not have after a crash.
    fn answer_configuration_service<M: Carrier<T::Entry>>(
        &mut self,
        view: View<'_, T::Entry>,
        out: &mut Outbox<M>,
    ) {
        let may_change = self.fence().is_some() && !view.is_at_rest();
        let Some(configuration_service) = self.asks_how_far.take_if(|_| !may_change) else { return };
        let leads = self.leads().is_some();
        let in_sync =
            self.members.iter().filter(|(node, member)| leads && member.is_live && !self.is_out(**node));
        let in_sync = in_sync.map(|(node, _)| *node).collect();
        out.send(configuration_service, Configuration::Kept { through: view.dispatched, in_sync });
    }

    /// Numbers for metrics.
    pub fn gauges(&self, last: Epoch, report: &mut dyn FnMut(&'static str, f64)) {
        let (leads, least) = (self.leads().is_some(), self.least());
        let live = self.members.values().filter(|member| member.is_live).count();
        report(
            "ordain_ship_term",
            self.leadership_record().map_or(0, |leadership_record| leadership_record.term) as f64,
        );
        report("ordain_ship_is_primary", f64::from(u8::from(leads)));
        report("ordain_ship_live_members", live as f64);
        report("ordain_ship_shipped_epoch", last.0 as f64);
        report("ordain_ship_behind_bytes", if leads { self.tail.bytes_after(least) as f64 } else { 0.0 });
        let behind = if leads { self.tail.last().0.saturating_sub(least.0) } else { 0 };
        report("ordain_ship_behind_epochs", behind as f64);
        report("ordain_ship_kept_bytes", self.tail.bytes() as f64);
        report("ordain_ship_shipped_batches_total", self.counts.shipped as f64);
        report("ordain_ship_taken_batches_total", self.counts.taken as f64);
        report("ordain_ship_read_again_total", self.counts.read_again as f64);
        report("ordain_ship_not_there_total", self.counts.not_there as f64);
        report("ordain_log_behind_epoch", self.behind.unwrap_or_default().0 as f64);
    }

    /// Checks the invariants of the entries that are kept.
    pub fn check(&self) -> Result<(), String> {
        self.tail.check()?;
        if self.takes && self.leads().is_none() {
            return Err("the log takes what its appender appends, and is not the primary's".to_owned());
        }
        if self.wants && self.asked.is_some() {
            return Err("the log is to ask its primary although it has asked".to_owned());
        }
        let fenced = self.fence().map(|fence| fence.term);
        match self.collects.values().find(|collect| Some(collect.term) != fenced) {
            Some(collect) => {
                Err(format!("a candidate of term {} waits, and {fenced:?} is being prepared", collect.term))
            }
            None => Ok(()),
        }
    }
}

impl<T: EntryType, M: Carrier<T::Entry>> InputLog<T, M> {
    /// Makes it a log with members, which ships what it dispatches, or is shipped it, once the configuration service
    /// has named a primary. The index has the places of the entries that the log has already.
    pub fn with_members(
        mut self,
        settings: ShippingSettings,
        context: Arc<T::Context>,
        index: Index,
    ) -> InputLog<T, M> {
        let shipping = Shipping::new(settings, context, index, self.writer.as_ref());
        self.shipping = Some(Box::new(shipping));
        self
    }

    /// The shipping, and the log as that sees it; if the log has members.
    pub(super) fn shipping(&mut self) -> Option<(&mut Shipping<T>, View<'_, T::Entry>)> {
        let durable = self.writer.as_ref().map_or(Epoch(u64::MAX), LogWriter::durable);
        let (dispatched, is_clean) = (self.dispatched_through, self.refused.is_empty());
        let pending = self.writer.as_ref().map_or(0, |writer| writer.stats().pending_bytes);
        let view = View { queue: &self.queue, dispatched, durable, pending, is_clean };
        self.shipping.as_deref_mut().map(|shipping| (shipping, view))
    }

    /// Takes a message that only a log with members gets; false if it is none.
    pub(super) fn receive(
        &mut self,
        from: Address,
        message: Message<T::Entry>,
        out: &mut Outbox<M>,
    ) -> Result<(), &'static str> {
        let Some((shipping, view)) = self.shipping() else { return Err("it has no members") };
        let me = shipping.settings.me.node;
        match message {
            Message::Configuration(Configuration::Records { leadership_records, in_touch }) => {
                shipping.note_records(leadership_records, in_touch, view, out);
                shipping.asks_how_far = Some(from);
            }
            Message::Peer(change) => shipping.peer(change, out),
            Message::Ship(Ship::Entry { term, after, through, content }) => {
                let epochs = (after, through);
                if !self.is_stopping && self.expects(from.node, term, epochs, content.is_some()) {
                    self.take(through, content, out);
                }
            }
            Message::Ship(Ship::Pause { term }) => {
                if shipping.follows() == Some((from.node, term)) && shipping.asked.is_none() {
                    shipping.wants = true;
                }
            }
            Message::Ship(Ship::Trimmed { term, through }) => shipping.trimmed(from.node, term, through, out),
            Message::Ship(Ship::Want { term, after }) => shipping.wanted(from.node, term, after, view, out),
            Message::Ship(Ship::Have { term, through }) => {
                if shipping.leads() == Some(term)
                    && let Some(member) = shipping.members.get_mut(&from.node)
                {
                    member.have = through;
                }
            }
            Message::Ship(Ship::Collect { partition, term, after }) => {
                if partition == shipping.settings.partition {
                    shipping.collect(from, term, after);
                }
            }
            Message::Ship(Ship::Decided { term, entries }) => {
                let fence = shipping.fence().filter(|_| from.node == me);
                if fence == Some(Fence { term, candidate: me }) {
                    entries.into_iter().for_each(|entry| self.take_decided(entry, out));
                }
            }
            _ => return Err("it is for somebody else"),
        }
        Ok(())
    }

    fn expects(&mut self, from: NodeId, term: u64, epochs: (Epoch, Epoch), has_content: bool) -> bool {
        let Some((shipping, view)) = self.shipping() else { return false };
        shipping.expects(from, term, epochs, has_content, view)
    }

    /// Takes what was shipped: it goes the way of everything that is appended.
    fn take(&mut self, through: Epoch, content: Option<Content>, out: &mut Outbox<M>) {
        let Some((shipping, _)) = self.shipping() else { return };
        match shipping.read_entry(through, content.as_ref()) {
            Ok(entry) => {
                let is_logged = content.is_some();
                self.enqueue(
                    Queued { entry, epoch: through, content, waits: false, is_own: false },
                    is_logged,
                    out,
                );
            }
            Err(reason) => out.halt(format!("what was shipped of epoch {through} cannot be read: {reason}")),
        }
    }

    /// Seals everything up to an epoch, with nothing in it.
    pub(super) fn seal_through(&mut self, epoch: Epoch, out: &mut Outbox<M>) {
        let Some((shipping, _)) = self.shipping() else { return };
        let entry = T::empty(epoch, shipping.settings.partition);
        self.enqueue(Queued { entry, epoch, content: None, waits: false, is_own: false }, false, out);
        self.dispatch(out);
    }

    /// Takes what was decided of the terms before, unless it is here already.
    fn take_decided(&mut self, content: Content, out: &mut Outbox<M>) {
        let Some((_, view)) = self.shipping() else { return };
        let epoch = epoch_of(&content).unwrap_or_default();
        if epoch > view.last() {
            self.take(epoch, Some(content), out);
        }
    }

    /// The disk has read something for a member.
    pub(super) fn was_read(&mut self, done: &DiskDone, out: &mut Outbox<M>) {
        if let Some((shipping, view)) = self.shipping() {
            shipping.was_read(done, view, out);
        }
    }
}
