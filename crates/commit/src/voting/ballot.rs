//! Messages between regions about votes.

use ordain_model::{Abort, Epoch, Millis, PartitionId, codec};

use crate::ids::AttemptId;

/// A message about the votes on a transaction, between the servers of regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ballot {
    /// The sender's region says this of it, and knows the yes of these others.
    Say(AttemptId, Said, Vec<PartitionId>),
    /// Asks for the receiver's word on it.
    Ask(AttemptId),
    /// To the initiator: the sender's region has this outcome in its log, at this place, and it is a commit.
    Known(AttemptId, Epoch),
    /// The initiator's word that all have these in their logs.
    Forget(Vec<AttemptId>),
    /// To the initiator of what only reads: what it has read of the sender's region is the newest, or not for this reason, at a time there. No vote.
    Checked(AttemptId, Option<(Abort, Millis)>),
    /// To the initiator: what the transaction writes in the sender's region is locked. No vote.
    Locked(AttemptId),
    /// Of the initiator: all regions have locked, and the receiver is to validate its part and to vote.
    Validate(AttemptId),
}

codec!(enum Ballot {
    0 => Say(of, said, others),
    1 => Ask(of),
    2 => Known(of, place),
    3 => Forget(attempts),
    4 => Checked(of, no),
    5 => Locked(of),
    6 => Validate(of),
});

/// The word of a region on a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// It has promised its part: a vote.
    Yes,
    /// It has not, for this reason, and never will under this claim or a later one: a vote. It tells the time there: what a later attempt sees
    /// must not have expired there by then.
    No(Abort, Millis),
    /// Neither yet.
    Pending,
    /// The transaction has committed: all have voted yes.
    Committed,
    /// The transaction has not committed and never will: one has voted no.
    Aborted,
}

codec!(enum Said {
    0 => Yes,
    1 => No(reason, now),
    2 => Pending,
    3 => Committed,
    4 => Aborted,
});
