//! The messages between the database servers of a region and its storage replicas (regions.md, section 4.10).

use ordain_model::wire::{self, Form, Reader};
use ordain_model::{Epoch, Micros, codec};
use ordain_role::Bytes;

use super::configuration::StorageConfiguration;

/// The ranks of the servers of a region are below this.
pub(super) const RANKS: u64 = 64;

/// A ballot: a number and the rank of the server that owns it. Larger ones win; 0 is none.
///
/// It is the term of its lines: number × 64 + rank, below 2^47.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ballot(pub u64);

codec!(struct Ballot(_));

impl Ballot {
    /// The ballots that a term can hold are below this one.
    pub const END: Ballot = Ballot(1 << 47);

    /// The first ballot of the server of a rank that is larger than this one.
    #[must_use]
    pub fn next_of(self, rank: usize) -> Ballot {
        Ballot((self.0 / RANKS + 1) * RANKS + rank as u64)
    }

    /// The rank of the owner; none for no ballot.
    pub fn owner(self) -> Option<usize> {
        (self.0 > 0).then_some((self.0 % RANKS) as usize)
    }

    /// The term of the lines of this ballot.
    pub fn term(self) -> u64 {
        self.0
    }
}

/// A line's place in the log and the ballot in which it was written there. What ends with a line of a larger ballot, or of the same
/// at a later place, is the newer log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    /// The ballot.
    pub ballot: Ballot,
    /// The number of the line; the first is 1, and 0 is before it.
    pub lsn: u64,
}

codec!(struct Line { ballot, lsn });

/// A line, but for its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The ballot in which it was written.
    pub ballot: Ballot,
    /// The content.
    pub content: Content,
}

codec!(struct Written { ballot, content });

/// The content of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// An entry, as its entry type encodes it.
    Entry(Bytes),
    /// The first line of a ballot: nothing.
    Begin,
    /// From here on these replicas count.
    Configuration(StorageConfiguration),
}

codec!(enum Content {
    0 => Entry(bytes as Whole),
    1 => Begin,
    2 => Configuration(configuration),
});

impl Content {
    /// About how many bytes it takes.
    pub(super) fn size(&self) -> usize {
        const OVERHEAD: usize = 64;
        match self {
            Content::Entry(bytes) => bytes.len() + OVERHEAD,
            Content::Begin | Content::Configuration(_) => OVERHEAD,
        }
    }
}

/// The form of bytes with their length before them.
enum Whole {}

impl Form<Bytes> for Whole {
    const LEAST: usize = 4;

    fn encode(value: &Bytes, out: &mut Vec<u8>) {
        wire::bytes(out, value);
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Bytes> {
        bytes.bytes().map(Bytes::copy_from_slice)
    }
}

/// The state of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaState {
    /// The generation in which it speaks: it has forgotten nothing since that began.
    pub generation: u64,
    /// The largest ballot that it has promised: it takes nothing of a smaller one.
    pub promised: Ballot,
    /// The time since the owner of that ballot has spoken, or since the replica was started; [`NEVER`](ReplicaState::NEVER) if the owner
    /// has resigned, or there is none.
    pub silence: Micros,
    /// The last line on its disk.
    pub last: Line,
    /// The line up to which it knows that all are durable.
    pub durable: u64,
    /// The newest configuration in its log.
    pub configuration: StorageConfiguration,
    /// The line of that configuration, or of a later one that is gone.
    pub configured: u64,
    /// The disk is full.
    pub is_full: bool,
}

impl ReplicaState {
    /// The silence of an owner that does not lead for certain.
    pub const NEVER: Micros = Micros(u64::MAX);
}

codec!(struct ReplicaState { generation, promised, silence, last, durable, configuration, configured, is_full });

/// The beginning of a log that was trimmed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogBase {
    /// The last line that is gone.
    pub last: Line,
    /// Epoch of the last entry up to it.
    pub epoch: Epoch,
    /// The configuration by then.
    pub configuration: StorageConfiguration,
}

codec!(struct LogBase { last, epoch, configuration });

/// The place in a log from which a reader wants lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The lines after the one of this number.
    Lsn(u64),
    /// All lines of entries after this epoch. There may be some of earlier ones before them.
    Epoch(Epoch),
}

codec!(enum After {
    0 => Lsn(lsn),
    1 => Epoch(epoch),
});

/// Between the database servers of a region and its storage replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Server to replica: what is its state?
    Ask,
    /// The answer.
    State(ReplicaState),
    /// Candidate to replica: promise to take nothing of a smaller ballot.
    Seal(Ballot),
    /// The answer: the promise is durable, and this was the replica's state then.
    Sealed {
        /// The ballot that was promised.
        ballot: Ballot,
        /// The state.
        state: ReplicaState,
    },
    /// Leader to replica: lines that follow one, perhaps none.
    Append {
        /// The leader's ballot.
        ballot: Ballot,
        /// The number of the message among those to the replica; answers name it.
        number: u64,
        /// The line before the first of these.
        previous: Line,
        /// The lines.
        lines: Vec<Written>,
        /// The line up to which all are durable.
        durable: u64,
        /// The generation of the replica, as far as the leader knows.
        generation: u64,
        /// The line up to which the replica has acknowledged all in that generation: one without it has lost something.
        acknowledged: u64,
    },
    /// The answer: the replica's log is the leader's up to this line, and that is synced.
    Appended {
        /// The leader's ballot.
        ballot: Ballot,
        /// The replica's generation.
        generation: u64,
        /// The number of the last message that counts in.
        number: u64,
        /// The line.
        through: u64,
        /// The disk is full: what was sent since is neither taken nor synced.
        is_full: bool,
    },
    /// The other answer: the line before the first is not in the replica's log, or the replica is in another generation.
    Unfit {
        /// The leader's ballot.
        ballot: Ballot,
        /// The replica's generation.
        generation: u64,
        /// The number of the message.
        number: u64,
        /// The line up to which the replica knows its log to be durable, so to be the leader's.
        durable: u64,
    },
    /// Replica to server: it has promised a larger ballot, or has promised this one before.
    Refused {
        /// The ballot of what is refused.
        ballot: Ballot,
        /// The ballot that it has promised.
        promised: Ballot,
    },
    /// Server to replica: it wants lines.
    Fetch {
        /// The number of the question.
        number: u64,
        /// The ballot that the server has had sealed: all lines are wanted. 0: those that are known to be durable.
        ballot: Ballot,
        /// The place from which on.
        after: After,
    },
    /// The answer. It repeats the question: an answer to an earlier life of the server may come late.
    Fetched {
        /// The number of the question.
        number: u64,
        /// Its ballot.
        ballot: Ballot,
        /// The place that it has named.
        after: After,
        /// The line before the first of these.
        previous: Line,
        /// The lines; none if there are no more.
        lines: Vec<Written>,
        /// The line up to which the replica knows that all are durable.
        durable: u64,
    },
    /// The other answer: what is wanted is not kept any more.
    Trimmed {
        /// The number of the question.
        number: u64,
        /// The place that it has named.
        after: After,
        /// The beginning of the replica's log.
        base: LogBase,
    },
    /// Leader to replica: has it promised no larger ballot?
    Confirm {
        /// The leader's ballot.
        ballot: Ballot,
        /// The number of the round.
        n: u64,
    },
    /// The answer: it has not.
    Confirmed {
        /// The leader's ballot.
        ballot: Ballot,
        /// The replica's generation.
        generation: u64,
        /// The number of the round.
        n: u64,
    },
    /// Leader to replica: no replica that can be reached keeps the lines that it needs next. Others' logs begin there.
    Behind {
        /// The leader's ballot.
        ballot: Ballot,
        /// The beginning.
        base: LogBase,
    },
    /// Leader to replicas and servers: it leads no more, as it stops.
    Resign(Ballot),
    /// A server of another region to a replica: it wants lines that are known to be durable, once there are any. The answers are those to
    /// [`Storage::Fetch`].
    Watch {
        /// The number of the question.
        number: u64,
        /// The place from which on.
        after: After,
    },
}

codec!(enum Storage {
    0 => Ask,
    1 => State(state),
    2 => Seal(ballot),
    3 => Sealed { ballot, state },
    4 => Append { ballot, number, previous, lines, durable, generation, acknowledged },
    5 => Appended { ballot, generation, number, through, is_full },
    6 => Unfit { ballot, generation, number, durable },
    7 => Refused { ballot, promised },
    8 => Fetch { number, ballot, after },
    9 => Fetched { number, ballot, after, previous, lines, durable },
    10 => Trimmed { number, after, base },
    11 => Confirm { ballot, n },
    12 => Confirmed { ballot, generation, n },
    13 => Behind { ballot, base },
    14 => Resign(ballot),
    15 => Watch { number, after },
});
