//! The log that one node writes: no entry is handed on before it is durable (the Calvin paper, section 3.1;
//! docs/protocols/calvin.md, section 4.1).
//!
//! Entries leave in the order in which they came. An entry that need not be durable waits for those before it all the same:
//! what it shows must not be lost after somebody has seen it.
//!
//! Where a log has members, it ships to them what it hands on, or takes what its primary ships (module `shipping`).

mod shipping;
mod tail;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use ordain_log::{LogWriter, Progress};
use ordain_model::{Epoch, Micros};
use ordain_role::{Address, Bug, Bugs, Event, Now, Outbox, Rebuild, Role, TimerId, shared};

use crate::catch_up;
use crate::entry::EntryType;
use crate::message::{Carrier, Covered, Log, Message};

pub use shipping::ShippingSettings;

use shipping::{ASK, Shipping};
use tail::Content;

/// The settings of an input log.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogSettings {
    /// Entries are dispatched without waiting for the disk: acknowledged writes may be lost.
    pub dispatch_early: bool,
    /// The epoch up to which a checkpoint has everything already.
    pub executed: Epoch,
    /// The bytes, about, beyond which entries that a checkpoint covers go, though members that are away may want them.
    pub keep_bytes: u64,
    /// Bugs that a test has planted.
    pub bugs: Bugs,
}

/// The number of epochs after the last logged one that unlogged entries may use. A restart skips as many, so that no
/// epoch is ever used twice.
pub const RESERVE: u64 = 1 << 24;

/// Makes entries durable and dispatches them.
#[derive(Debug)]
pub struct InputLog<T: EntryType, M> {
    settings: LogSettings,
    /// None: nothing is kept (`--ephemeral`).
    writer: Option<LogWriter>,
    appender: Address,
    /// The roles that are handed sealed entries: those that apply them, or an exchange for them.
    sinks: Vec<Address>,
    /// Entries not dispatched yet.
    queue: VecDeque<Queued<T::Entry>>,
    /// Entries that found the disk full and are being wiped from it.
    refused: Vec<T::Entry>,
    /// The largest epoch that the log names.
    named: Epoch,
    dispatched: u64,
    /// The last epoch that was dispatched, or of the last entry there was at the start.
    dispatched_through: Epoch,
    /// The last epoch that a mark stands behind.
    marked: Epoch,
    covered: Covered,
    /// The node stops: a mark is the last that is written.
    is_stopping: bool,
    /// The shipping to members, if there are any.
    shipping: Option<Box<Shipping<T>>>,
    marker: std::marker::PhantomData<fn() -> M>,
}

/// An entry that is not dispatched yet.
#[derive(Debug)]
struct Queued<E> {
    entry: E,
    epoch: Epoch,
    /// The entry has to be durable first.
    waits: bool,
    /// The entry, if there are members to ship it to.
    content: Option<Content>,
    /// The entry comes from this node's appender, which waits for it.
    is_own: bool,
}

/// A full disk is tried again.
const PROBE: TimerId = TimerId(1);
const PROBE_EVERY: Micros = Micros::from_millis(500);
/// The timer of the mark: a log that has been idle for a while, or whose node stops, is marked as synced. Damage to
/// its last entry is refused at the next start then, and not taken for a torn write.
const MARK: TimerId = TimerId(2);
const MARK_AFTER: Micros = Micros::from_millis(200);

/// The number after which a writer may go on, given the last one that the log names.
pub fn resume_after(last_logged: Epoch) -> Epoch {
    Epoch(last_logged.0 + RESERVE)
}

impl<T: EntryType, M: Carrier<T::Entry>> InputLog<T, M> {
    /// An input log that writes with `writer`, which has recovered up to its last entry.
    pub fn new(
        settings: LogSettings,
        writer: Option<LogWriter>,
        appender: Address,
        sinks: Vec<Address>,
    ) -> InputLog<T, M> {
        let named = writer.as_ref().map_or(Epoch(0), LogWriter::appended);
        InputLog {
            settings,
            writer,
            appender,
            sinks,
            queue: VecDeque::new(),
            refused: Vec::new(),
            named,
            dispatched: 0,
            dispatched_through: named.max(settings.executed),
            marked: Epoch(0),
            covered: Covered::default(),
            is_stopping: false,
            shipping: None,
            marker: std::marker::PhantomData,
        }
    }

    fn append(&mut self, entry: T::Entry, out: &mut Outbox<M>) {
        if self.is_stopping {
            // The entries were given up, and nothing may stand behind the mark.
            return;
        }
        if let Some((shipping, view)) = self.shipping()
            && !shipping.may_append(T::epoch(&entry), view)
        {
            out.send(self.appender, Log::Lost(entry));
            return;
        }
        let is_kept = self.writer.is_some() || self.shipping.is_some();
        let epoch = T::epoch(&entry);
        let is_logged = is_kept && (T::must_be_durable(&entry) || epoch.0 - self.named.0 >= RESERVE);
        let content = (is_logged && self.shipping.is_some()).then(|| Arc::new(T::encode(&entry)));
        self.enqueue(Queued { entry, epoch, waits: false, content, is_own: true }, is_logged, out);
    }

    /// Answers the appender's question whether this node leads. Nobody else can write a log without members. A primary
    /// that ships its log asks no quorum, so it cannot know.
    fn confirm(&self, n: u64, out: &mut Outbox<M>) {
        let is_alone = self.shipping.is_none() && !self.is_stopping;
        let answer = if is_alone { Log::Confirmed { n, term: 0 } } else { Log::NotConfirmed { n } };
        out.send(self.appender, answer);
    }

    /// Gives an entry its log entry, if it is to have one, and queues it.
    fn enqueue(&mut self, mut queued: Queued<T::Entry>, is_logged: bool, out: &mut Outbox<M>) {
        let Queued { entry, epoch, content, .. } = &queued;
        if is_logged && let Some(writer) = &mut self.writer {
            let parts = match content {
                Some(content) => vec![shared(content.clone())],
                None => T::encode_parts(entry),
            };
            if let Err(refusal) = writer.append(*epoch, 0, parts) {
                out.halt(format!("the input log refused an entry: {refusal}"));
                return;
            }
            queued.waits =
                !self.settings.dispatch_early && !self.settings.bugs.has(Bug::DispatchBeforeDurable);
        }
        if is_logged {
            self.named = queued.epoch;
        }
        self.queue.push_back(queued);
    }

    fn dispatch(&mut self, out: &mut Outbox<M>) {
        let durable = self.writer.as_ref().map_or(Epoch(u64::MAX), LogWriter::durable);
        let mut bytes = 0;
        let is_next = |queued: &mut Queued<T::Entry>| !queued.waits || queued.epoch <= durable;
        while let Some(Queued { entry, epoch, content, is_own, .. }) = self.queue.pop_front_if(is_next) {
            if is_own {
                out.send(self.appender, Log::Logged(epoch));
            }
            for sink in &self.sinks {
                out.send(*sink, Log::Sealed(entry.clone()));
            }
            self.dispatched += 1;
            self.dispatched_through = epoch;
            if let Some(shipping) = &mut self.shipping {
                bytes += content.as_ref().map_or(0, |content| content.len());
                shipping.dispatched(epoch, content, out);
            }
        }
        if bytes > 0
            && let (Some(shipping), Some(writer)) = (&mut self.shipping, &self.writer)
        {
            shipping.note_place(bytes, writer);
        }
    }

    /// Takes back all that is not durable, as the disk is full. Remains of it on the disk are overwritten before any
    /// role hears of the refusal, so that no crash can bring them back.
    ///
    /// Entries that members have shipped, or know to be here, are kept until there is space: it is not for this log to
    /// refuse them.
    fn take_back(&mut self, out: &mut Outbox<M>) {
        out.set_timer(PROBE, PROBE_EVERY);
        if self.shipping.as_ref().is_some_and(|shipping| !shipping.takes()) {
            return;
        }
        if let Some(writer) = &mut self.writer {
            writer.give_up();
            self.named = writer.durable();
        }
        let (refused, kept) = std::mem::take(&mut self.queue).into_iter().partition(|queued| queued.waits);
        self.queue = kept;
        self.refused.extend(refused.into_iter().map(|queued: Queued<T::Entry>| queued.entry));
    }

    fn reject_if_clean(&mut self, out: &mut Outbox<M>) {
        if self.refused.is_empty() || self.writer.as_ref().is_some_and(|writer| !writer.is_idle()) {
            return;
        }
        for entry in self.refused.drain(..) {
            out.send(self.appender, Log::Rejected(entry));
        }
    }

    /// Marks the log as synced, if something is new and all of it durable: soon, or at once if there will be no later.
    fn mark(&mut self, out: &mut Outbox<M>, is_due: bool) {
        let Some(writer) = &mut self.writer else { return };
        if !writer.is_idle() || writer.durable() <= self.marked {
            return;
        }
        if is_due {
            self.marked = writer.durable();
            writer.mark();
            self.ask_disk(out);
        } else {
            out.set_timer(MARK, MARK_AFTER);
        }
    }

    /// Lets go the segments that a checkpoint covers and that no member is being given.
    fn trim(&mut self, out: &mut Outbox<M>) {
        let Some(writer) = &mut self.writer else { return };
        let spared = self.shipping.as_ref().map_or(Epoch(u64::MAX), |shipping| shipping.spared());
        let covered = self.covered.through(writer.stats().bytes, self.settings.keep_bytes);
        let through = covered.min(spared).min(self.dispatched_through).min(writer.durable());
        writer.truncate_before(through.next());
        if let Some(shipping) = &mut self.shipping {
            shipping.trim(writer.begins(), through, out);
        }
    }

    /// The epoch up to which everything is on disk.
    fn reach(&self) -> Epoch {
        let durable = self.writer.as_ref().map_or(Epoch(0), LogWriter::durable);
        if durable >= self.named { self.dispatched_through } else { durable.min(self.dispatched_through) }
    }

    fn ask_disk(&mut self, out: &mut Outbox<M>) {
        while let Some(request) = self.writer.as_mut().and_then(LogWriter::next_request) {
            out.disk(request);
        }
    }
}

impl<T: EntryType, M: Carrier<T::Entry>> Role for InputLog<T, M> {
    type Message = M;

    fn handle(&mut self, _now: Now, event: Event<M>, out: &mut Outbox<M>) {
        match event {
            Event::Message { from, message } => match message.try_into() {
                Ok(Message::Log(Log::Append(entry))) => self.append(entry, out),
                Ok(Message::Log(Log::Confirm(n))) => self.confirm(n, out),
                Ok(Message::Log(Log::Trim(covered))) => self.covered = covered,
                Ok(Message::Log(Log::BeginAgain(epoch))) => {
                    out.rebuild(Rebuild { without_log: self.reach() < epoch, without_receive_journal: true })
                }
                Ok(message) => {
                    if let Err(reason) = self.receive(from, message, out) {
                        out.halt(format!("the input log was sent a message that is not for it: {reason}"));
                    }
                }
                Err(_) => out.halt("the input log was sent a message that is for no log"),
            },
            Event::Disk(done) if catch_up::is_read(&done) => self.was_read(&done, out),
            Event::Disk(done) => match self.writer.as_mut().and_then(|writer| writer.done(&done)) {
                Some(Progress::Full { .. }) => self.take_back(out),
                Some(Progress::Failed { reason }) => out.halt(format!("the input log failed: {reason}")),
                Some(Progress::Durable(_)) | None => {}
            },
            Event::Timer(PROBE) => {
                // Only a write can tell whether there is space again: the next one is let through.
                self.writer.iter_mut().for_each(LogWriter::retry);
                if self.refused.is_empty() {
                    out.send(self.appender, Log::Writable);
                } else {
                    out.set_timer(PROBE, PROBE_EVERY);
                }
            }
            Event::Timer(MARK) => self.mark(out, true),
            Event::Timer(ASK) => self.shipping.iter_mut().for_each(|shipping| shipping.ask_again()),
            Event::Stop => self.is_stopping = true,
            Event::Start => {
                if self.writer.as_ref().is_some_and(LogWriter::is_full) {
                    out.set_timer(PROBE, PROBE_EVERY);
                }
            }
            Event::Timer(_) | Event::Work(_) => {}
        }
        self.trim(out);
        self.ask_disk(out);
        self.reject_if_clean(out);
        self.dispatch(out);
        let appender = self.appender;
        let sealed =
            self.shipping().and_then(|(shipping, view)| shipping.report_progress(appender, view, out));
        sealed.into_iter().for_each(|epoch| self.seal_through(epoch, out));
        self.mark(out, self.is_stopping);
    }

    fn name(&self) -> &'static str {
        "input-log"
    }

    fn check(&self) -> Result<(), String> {
        let epochs =
            std::iter::once(self.dispatched_through).chain(self.queue.iter().map(|queued| queued.epoch));
        if !epochs.is_sorted_by(|a, b| a < b) {
            return Err(format!("entries wait out of order behind epoch {}", self.dispatched_through));
        }
        let durable = self.writer.as_ref().map_or(Epoch(u64::MAX), LogWriter::durable);
        if let Some(queued) = self.queue.front().filter(|queued| !queued.waits || queued.epoch <= durable) {
            return Err(format!("epoch {} waits although it may be handed on", queued.epoch));
        }
        if self.marked > durable {
            return Err(format!("a mark says that epoch {} is durable, and {durable} is", self.marked));
        }
        self.shipping.as_ref().map_or(Ok(()), |shipping| shipping.check())
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        if let Some(shipping) = &self.shipping {
            shipping.gauges(self.dispatched_through, report);
        }
        report("ordain_log_dispatched_batches_total", self.dispatched as f64);
        report("ordain_log_waiting_batches", self.queue.len() as f64);
        if let Some(writer) = &self.writer {
            report("ordain_log_durable_epoch", writer.durable().0 as f64);
            let stats = writer.stats();
            report("ordain_log_segments", stats.segments as f64);
            report("ordain_log_pending_entries", stats.pending_entries as f64);
            report("ordain_log_bytes", stats.bytes as f64);
            report("ordain_log_full", f64::from(u8::from(writer.is_full())));
        }
    }
}
