//! The system that the suite puts to the test: a server of bytes in virtual time.

use std::cell::Cell;
use std::fmt::Debug;
use std::sync::Arc;

use ordain_engines::registry::Abilities;
use ordain_model::{Isolation, Layout, Reads};

/// The answers that a reference executor is told to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// Each request is run.
    Fair,
    /// Each request is turned away: too much is under way.
    Busy,
    /// Each write is turned away: nothing can be made durable.
    Refused,
    /// Each request is run, and the answers come in the opposite order.
    Reversed,
}

impl Weather {
    /// The weather of a name.
    pub fn named(name: &str) -> Option<Weather> {
        Some(match name {
            "fair" => Weather::Fair,
            "busy" => Weather::Busy,
            "refused" => Weather::Refused,
            "reversed" => Weather::Reversed,
            _ => return None,
        })
    }
}

/// A server under test. Connections are numbered from 0 in the order in which they were opened.
pub trait Subject: Debug {
    /// The words by which transcripts ask whether a passage is for this subject ([`Traits`]).
    fn traits(&self) -> Traits;

    /// The layout of its records, whose placement decides the order in which SCAN shows keys.
    fn layout(&self) -> Arc<Layout> {
        Arc::new(Layout::single(1))
    }

    /// Opens a connection to the node of a seat: a cluster's nodes take turns.
    fn open(&mut self, seat: usize) -> usize;

    /// Gives a connection bytes, as its client would send them. What follows from them may happen later.
    fn send(&mut self, connection: usize, bytes: &[u8]);

    /// Lets all that is under way end, so that every reply that can come has come.
    ///
    /// # Errors
    /// What does not end, or which invariant is broken.
    fn settle(&mut self) -> Result<(), String>;

    /// Lets what was answered become visible to every read ([`Traits::sight`]), wherever it is asked.
    ///
    /// # Errors
    /// As [`settle`](Subject::settle).
    fn rest(&mut self) -> Result<(), String>;

    /// Takes what a connection has received since it was last asked.
    fn take(&mut self, connection: usize) -> Vec<u8>;

    /// True once the server has closed a connection.
    fn is_closed(&self, connection: usize) -> bool;

    /// Breaks a connection off at the client's end.
    fn close(&mut self, connection: usize);

    /// Lets virtual time pass, milliseconds, and with it what was to happen meanwhile. The wall clock moves by nothing else.
    ///
    /// # Errors
    /// An invariant that is broken.
    fn advance(&mut self, ms: u64) -> Result<(), String>;

    /// Has the records removed whose time has come: until then DBSIZE counts them, as in Redis. The wall clock stands.
    ///
    /// # Errors
    /// As [`settle`](Subject::settle).
    fn sweep(&mut self) -> Result<(), String>;

    /// Has slots move to other shards and partitions, as far as there are any, while clients go on: no reply may change by it.
    ///
    /// # Errors
    /// The reason why those that were to move before have not.
    fn move_slots(&mut self) -> Result<(), String>;

    /// Has the server find so many bytes of memory in use, and waits until every node knows.
    ///
    /// # Errors
    /// As [`advance`](Subject::advance).
    fn set_used(&mut self, bytes: u64) -> Result<(), String>;

    /// Changes what a reference executor answers from here on. A passage for other subjects never asks for it.
    fn set_weather(&mut self, weather: Weather);
}

/// The writes that a read is sure to see of those that were answered before it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// All.
    All,
    /// Those of its own connection.
    Own,
    /// None: it may see a state of a moment ago.
    Late,
}

/// The properties of a subject that decide what its replies have to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// The subject is the reference executor behind sessions, and no cluster.
    pub is_reference: bool,
    /// The number of partitions.
    pub partitions: usize,
    /// How transactions that only read are run.
    pub reads: Reads,
    /// What transactions see of each other.
    pub isolation: Isolation,
    /// No record is at home in another region: a command may be about all records, and an interactive transaction sees the newest of them.
    pub is_whole: bool,
    /// Interactive transactions hold what they have read and written between their commands.
    pub is_direct: bool,
    /// What the engine can do.
    pub can: Abilities,
}

impl Traits {
    /// What a read is sure to see.
    pub fn sight(&self) -> Sight {
        match (self.reads, self.isolation) {
            (_, Isolation::ReadCommitted) if self.partitions > 1 => Sight::Late,
            (Reads::Previous, _) => Sight::Late,
            (Reads::Session, _) => Sight::Own,
            _ if self.can.shows_past && self.partitions > 1 => Sight::Own,
            (Reads::Ordered | Reads::Strict, _) => Sight::All,
        }
    }

    /// True if a read sees what was sent before it on its connection, even if that was not answered yet.
    pub fn reads_pipelined_writes(&self) -> bool {
        self.isolation == Isolation::Serializable
    }

    /// Whether a word of a transcript's `where` line holds for the subject; with `no-` before it, whether it does not.
    /// `None`: no such word.
    pub fn has(&self, word: &str) -> Option<bool> {
        if let Some(word) = word.strip_prefix("no-") {
            return self.has(word).map(|has| !has);
        }
        Some(match word {
            "reference" => self.is_reference,
            "pipelined-reads" => self.reads_pipelined_writes(),
            "ordered-reads" => self.reads == Reads::Ordered,
            "cluster" => self.partitions > 1,
            "whole" => self.is_whole,
            "sessions" => self.can.has_sessions,
            "interactive" => self.can.is_interactive,
            "direct" => self.is_direct,
            "checkpoints" => self.can.takes_checkpoints,
            "digests" => self.can.has_digests,
            "moves" => self.can.moves_slots,
            _ => return None,
        })
    }
}

thread_local! {
    /// The bytes of memory that the servers of this test find in use.
    static USED: Cell<u64> = const { Cell::new(0) };
}

/// What measures the memory of every subject.
pub(crate) fn used() -> u64 {
    USED.get()
}

/// Sets what [`used`] finds.
pub(crate) fn note_used(bytes: u64) {
    USED.set(bytes);
}
