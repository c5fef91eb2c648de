//! The reader of another region's log: it hands on what is durable there, in order, and nothing else of it (regions.md, 4.3 and G6).
//!
//! It asks one of that region's storage nodes at a time, and the next if that is silent. A line that one of them knows to be durable is the
//! same on all of them, so it may go on anywhere. While there is nothing new the storage node keeps the question, and answers as soon as
//! there is.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use ordain_model::{Epoch, Micros, PartitionId};
use ordain_role::{Address, ByRegion, Event, NodeId, Now, Outbox, PeerState, Role, TimerId, by_region};

use super::message::{After, Content, Storage, Written};
use crate::entry::{EntryType, epoch_of};
use crate::message::{Carrier, Log, Message};

const TICK: TimerId = TimerId(1);
const TICK_EVERY: Micros = Micros::from_millis(100);
/// Without an answer for so long the next storage node is asked: this one may have nothing new, or be behind, or gone.
const PATIENCE: Micros = Micros::from_millis(2_000);

// The metrics of the readers of a node, of which there is one for each other region.
const EPOCH: ByRegion = by_region!("ordain_view_log_epoch");
const ENTRIES: ByRegion = by_region!("ordain_view_log_entries_total");
const QUESTIONS: ByRegion = by_region!("ordain_view_log_questions_total");
const TURNS: ByRegion = by_region!("ordain_view_log_turns_total");

/// The settings of a reader.
#[derive(Clone, Debug)]
pub struct StorageReaderSettings {
    /// The address of this role.
    pub me: Address,
    /// The region whose log it reads.
    pub region: PartitionId,
    /// The logs of the region's storage nodes.
    pub replicas: Vec<Address>,
    /// The role that is told how far the log is out of reach ([`Log::Behind`]), and says where to begin again ([`Log::BeginAgain`]).
    pub keeper: Address,
    /// The roles that are handed the entries.
    pub sinks: Vec<Address>,
}

/// Reads the log of a region to which this node does not belong.
pub struct StorageReader<T: EntryType, M> {
    settings: StorageReaderSettings,
    context: Arc<T::Context>,
    /// The epoch of the last entry that was handed on, or that the sinks have had before.
    sealed: Epoch,
    /// The last line that was read, once it is known.
    line: Option<u64>,
    /// The storage node that is asked.
    turn: usize,
    /// The last question: its number, the place that it names, and when it was asked; `None` if it was answered.
    number: u64,
    asked: Option<(After, Micros)>,
    /// The sinks need a checkpoint: nothing is read until they have one.
    is_behind: bool,
    counts: Counts,
    marker: PhantomData<fn() -> M>,
}

#[derive(Debug, Default)]
struct Counts {
    entries: u64,
    questions: u64,
    turns: u64,
}

impl<T: EntryType, M: Carrier<T::Entry>> StorageReader<T, M> {
    /// A reader whose sinks have nothing yet.
    ///
    /// # Panics
    /// If the region has no storage node.
    pub fn new(settings: StorageReaderSettings, context: Arc<T::Context>) -> StorageReader<T, M> {
        assert!(!settings.replicas.is_empty(), "a region has a storage node at least");
        // Readers of one region begin at different ones.
        let turn = usize::from(settings.me.node.0) % settings.replicas.len();
        StorageReader {
            settings,
            context,
            sealed: Epoch(0),
            line: None,
            turn,
            number: 0,
            asked: None,
            is_behind: false,
            counts: Counts::default(),
            marker: PhantomData,
        }
    }

    fn asked_of(&self) -> Address {
        self.settings.replicas[self.turn]
    }

    fn ask(&mut self, now: Micros, out: &mut Outbox<M>) {
        if self.is_behind {
            return;
        }
        self.number += 1;
        let after = self.line.map_or(After::Epoch(self.sealed), After::Lsn);
        self.asked = Some((after, now));
        self.counts.questions += 1;
        out.send(self.asked_of(), Storage::Watch { number: self.number, after });
    }

    /// Asks the next storage node.
    fn turn_to_next(&mut self, now: Micros, out: &mut Outbox<M>) {
        self.turn = (self.turn + 1) % self.settings.replicas.len();
        self.counts.turns += 1;
        self.ask(now, out);
    }

    /// Hands on what is new of some lines that follow a line.
    fn take(&mut self, previous: u64, lines: Vec<Written>, out: &mut Outbox<M>) -> Result<(), String> {
        for Written { ballot, content } in &lines {
            let Content::Entry(bytes) = content else { continue };
            let epoch = epoch_of(bytes).ok_or("an entry without a number")?;
            if epoch <= self.sealed {
                continue;
            }
            let mut entry = T::decode(&self.context, bytes)?;
            T::note_term(&mut entry, ballot.term());
            self.sealed = epoch;
            self.counts.entries += 1;
            self.settings.sinks.iter().for_each(|sink| out.send(*sink, Log::Sealed(entry.clone())));
        }
        self.line = Some(previous + lines.len() as u64);
        Ok(())
    }

    fn storage(&mut self, from: Address, message: Storage, now: Micros, out: &mut Outbox<M>) {
        // An answer to an earlier life of this node may have the number of the question, and not its place.
        let is_its = |number: u64, after: After| {
            from == self.asked_of()
                && number == self.number
                && self.asked.is_some_and(|(asked, _)| asked == after)
        };
        match message {
            Storage::Fetched { number, after, previous, lines, .. } if is_its(number, after) => {
                if self.line.is_some_and(|line| line != previous.lsn) {
                    // It has not got that line yet, or not any more.
                    self.line = None;
                    return self.turn_to_next(now, out);
                }
                if let Err(reason) = self.take(previous.lsn, lines, out) {
                    return out.halt(format!("the log of another region cannot be read: {reason}"));
                }
                self.ask(now, out);
            }
            Storage::Trimmed { number, after, base } if is_its(number, after) => {
                self.asked = None;
                self.line = None;
                match base.epoch > self.sealed {
                    true => {
                        self.is_behind = true;
                        out.send(self.settings.keeper, Log::<T::Entry>::Behind(base.epoch));
                    }
                    false => self.ask(now, out),
                }
            }
            // An answer to an earlier question.
            _ => {}
        }
    }

    /// The sinks have everything up to an epoch, from a checkpoint.
    fn begin_again(&mut self, epoch: Epoch, now: Micros, out: &mut Outbox<M>) {
        (self.sealed, self.line, self.is_behind) = (self.sealed.max(epoch), None, false);
        self.ask(now, out);
    }

    fn peer(&mut self, node: NodeId, state: PeerState, now: Micros, out: &mut Outbox<M>) {
        if node == self.asked_of().node && state != PeerState::Back && self.asked.is_some() {
            self.turn_to_next(now, out);
        }
    }
}

impl<T: EntryType, M: Carrier<T::Entry>> Role for StorageReader<T, M> {
    type Message = M;

    fn handle(&mut self, now: Now, event: Event<M>, out: &mut Outbox<M>) {
        let now = now.elapsed;
        match event {
            Event::Start => {
                self.ask(now, out);
                out.set_timer(TICK, TICK_EVERY);
            }
            Event::Timer(_) => {
                if self.asked.is_some_and(|(_, asked)| now.since(asked) > PATIENCE) {
                    self.turn_to_next(now, out);
                }
                out.set_timer(TICK, TICK_EVERY);
            }
            Event::Message { from, message } => match message.try_into() {
                Ok(Message::Storage(message)) => self.storage(from, message, now, out),
                Ok(Message::Log(Log::BeginAgain(epoch))) => self.begin_again(epoch, now, out),
                Ok(Message::Peer(change)) => self.peer(change.node, change.state, now, out),
                Ok(_) | Err(_) => {
                    out.halt("the reader of a region's log was sent a message that is not for it")
                }
            },
            Event::Disk(_) | Event::Work(_) | Event::Stop => {}
        }
    }

    fn name(&self) -> &'static str {
        "storage-reader"
    }

    fn check(&self) -> Result<(), String> {
        match self.is_behind && self.asked.is_some() {
            true => Err("it asks for lines that its sinks cannot follow".to_owned()),
            false => Ok(()),
        }
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let mut of = |series: &ByRegion, value| {
            series.get(usize::from(self.settings.region.0)).into_iter().for_each(|name| report(name, value));
        };
        of(&EPOCH, self.sealed.0 as f64);
        of(&ENTRIES, self.counts.entries as f64);
        of(&QUESTIONS, self.counts.questions as f64);
        of(&TURNS, self.counts.turns as f64);
    }
}

impl<T: EntryType, M> fmt::Debug for StorageReader<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageReader")
            .field("me", &self.settings.me)
            .field("sealed", &self.sealed)
            .field("line", &self.line)
            .field("asked", &self.asked)
            .finish_non_exhaustive()
    }
}
