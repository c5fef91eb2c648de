//! The input log's role: nothing is executed before it is durable (the Calvin paper, section 3.1; calvin.md,
//! section 2: "entry e durable before B(e,p) is dispatched").
//!
//! Batches leave in the order in which they came. One that only reads has nothing to make durable, but it waits
//! for those before it: what it will see must not be lost after it was seen.

use std::collections::VecDeque;
use std::sync::Arc;

use ordain_log::{LogWriter, Progress};
use ordain_model::{Batch, Epoch, Micros};
use ordain_role::{Address, Bug, Bugs, Bytes, Event, Now, Outbox, Role, TimerId};

use crate::message::{Message, Sequencing};

/// How the input log is set up.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogSettings {
    /// Batches are dispatched without waiting for the disk: acknowledged writes may be lost.
    pub dispatch_early: bool,
    /// Bugs that a test has planted.
    pub bugs: Bugs,
}

/// How many epochs after the last logged one may be given to batches that are not logged. A restart skips as
/// many, so that no epoch is ever used twice.
pub const RESERVE: u64 = 1 << 24;

/// Makes batches durable and dispatches them.
#[derive(Debug)]
pub struct InputLog<X> {
    settings: LogSettings,
    /// None: nothing is kept (`--ephemeral`).
    writer: Option<LogWriter>,
    sequencer: Address,
    /// Who is told of what was decided: the shards, or the courier for them.
    sinks: Vec<Address>,
    /// Batches not dispatched yet, and whether each has an entry to wait for.
    queue: VecDeque<(Arc<Batch>, bool)>,
    /// Batches that found the disk full and are being wiped from it.
    refused: Vec<Arc<Batch>>,
    /// The largest epoch that the log names.
    named: Epoch,
    dispatched: u64,
    /// The last epoch that a mark stands behind.
    marked: Epoch,
    /// The node stops: a mark is the last that is written.
    is_stopping: bool,
    marker: std::marker::PhantomData<fn() -> X>,
}

/// A full disk is tried again.
const PROBE: TimerId = TimerId(1);
const PROBE_EVERY: Micros = Micros::from_millis(500);
/// A log that has been idle for a while is marked as synced, and so is one whose node stops, so that damage to its
/// last batch is refused at the next start and not taken for a torn write.
const MARK: TimerId = TimerId(2);
const MARK_AFTER: Micros = Micros::from_millis(200);

impl<X> InputLog<X> {
    /// An input log that writes with `writer`, which has recovered up to its last entry.
    pub fn new(
        settings: LogSettings,
        writer: Option<LogWriter>,
        sequencer: Address,
        sinks: Vec<Address>,
    ) -> InputLog<X> {
        let named = writer.as_ref().map_or(Epoch(0), LogWriter::appended);
        InputLog {
            settings,
            writer,
            sequencer,
            sinks,
            queue: VecDeque::new(),
            refused: Vec::new(),
            named,
            dispatched: 0,
            marked: Epoch(0),
            is_stopping: false,
            marker: std::marker::PhantomData,
        }
    }

    /// The epoch after which a sequencer may go on, given the last one that the log names.
    pub fn resume_after(last_logged: Epoch) -> Epoch {
        Epoch(last_logged.0 + RESERVE)
    }

    fn append(&mut self, batch: Arc<Batch>, out: &mut Outbox<Message<X>>) {
        if self.is_stopping {
            // Whoever asked for it has been given up, and nothing may stand behind the mark.
            return;
        }
        let mut waits = false;
        if let Some(writer) = &mut self.writer
            && (batch.is_logged() || batch.epoch.0 - self.named.0 >= RESERVE)
        {
            let mut parts = vec![Bytes::Owned(batch.encode_head())];
            parts.extend(batch.logged().map(|placed| Bytes::Shared(placed.chunk.clone())));
            if let Err(refusal) = writer.append(batch.epoch, 0, parts) {
                out.halt(format!("the input log refused a batch: {refusal}"));
                return;
            }
            self.named = batch.epoch;
            waits = !self.settings.dispatch_early && !self.settings.bugs.has(Bug::DispatchBeforeDurable);
        }
        self.queue.push_back((batch, waits));
    }

    fn dispatch(&mut self, out: &mut Outbox<Message<X>>) {
        let durable = self.writer.as_ref().map_or(Epoch(u64::MAX), LogWriter::durable);
        while let Some((batch, waits)) = self.queue.front() {
            if *waits && batch.epoch > durable {
                return;
            }
            let Some((batch, _)) = self.queue.pop_front() else { return };
            out.send(self.sequencer, Sequencing::Logged(batch.epoch));
            for sink in &self.sinks {
                out.send(*sink, Sequencing::Sealed(batch.clone()));
            }
            self.dispatched += 1;
        }
    }

    /// The disk is full: whatever is not durable is taken back. What of it has reached the disk is overwritten
    /// before anybody is told that it was refused, so that no crash can bring it back.
    fn take_back(&mut self, out: &mut Outbox<Message<X>>) {
        if let Some(writer) = &mut self.writer {
            writer.give_up();
            self.named = writer.durable();
        }
        let (refused, kept) = std::mem::take(&mut self.queue).into_iter().partition(|(_, waits)| *waits);
        self.queue = kept;
        self.refused.extend(refused.into_iter().map(|(batch, _): (Arc<Batch>, bool)| batch));
        out.set_timer(PROBE, PROBE_EVERY);
    }

    fn reject_if_clean(&mut self, out: &mut Outbox<Message<X>>) {
        if self.refused.is_empty() || self.writer.as_ref().is_some_and(|writer| !writer.is_idle()) {
            return;
        }
        for batch in self.refused.drain(..) {
            out.send(self.sequencer, Sequencing::Rejected(batch));
        }
    }

    /// If there is something new and all of it is durable, says so: soon, or at once if there will be no later.
    fn mark(&mut self, out: &mut Outbox<Message<X>>, is_due: bool) {
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

    fn ask_disk(&mut self, out: &mut Outbox<Message<X>>) {
        if let Some(request) = self.writer.as_mut().and_then(LogWriter::next_request) {
            out.disk(request);
        }
    }
}

impl<X: Send> Role for InputLog<X> {
    type Message = Message<X>;

    fn handle(&mut self, _now: Now, event: Event<Message<X>>, out: &mut Outbox<Message<X>>) {
        match event {
            Event::Message { message: Message::Sequencing(Sequencing::Append(batch)), .. } => {
                self.append(batch, out)
            }
            Event::Message { .. } => out.halt("the input log was sent a message that is not for it"),
            Event::Disk(done) => match self.writer.as_mut().and_then(|writer| writer.done(&done)) {
                Some(Progress::Full { .. }) => self.take_back(out),
                Some(Progress::Failed { reason }) => out.halt(format!("the input log failed: {reason}")),
                Some(Progress::Durable(_)) | None => {}
            },
            Event::Timer(PROBE) => {
                // Whether there is space again only a write can tell: the next one is let through.
                self.writer.iter_mut().for_each(LogWriter::retry);
                if self.refused.is_empty() {
                    out.send(self.sequencer, Sequencing::Writable);
                } else {
                    out.set_timer(PROBE, PROBE_EVERY);
                }
            }
            Event::Timer(MARK) => self.mark(out, true),
            Event::Stop => self.is_stopping = true,
            Event::Start => {
                if self.writer.as_ref().is_some_and(LogWriter::is_full) {
                    out.set_timer(PROBE, PROBE_EVERY);
                }
            }
            Event::Timer(_) => {}
        }
        self.ask_disk(out);
        self.reject_if_clean(out);
        self.dispatch(out);
        self.mark(out, self.is_stopping);
    }

    fn name(&self) -> &'static str {
        "input-log"
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        report("ordain_log_dispatched_batches_total", self.dispatched as f64);
        report("ordain_log_waiting_batches", self.queue.len() as f64);
        if let Some(writer) = &self.writer {
            report("ordain_log_durable_epoch", writer.durable().0 as f64);
            let stats = writer.stats();
            report("ordain_log_segments", stats.segments as f64);
            report("ordain_log_pending_entries", stats.pending_entries as f64);
        }
    }
}
