//! The messages of the family's roles.

use std::sync::Arc;

use ordain_execution::Write;
use ordain_family::Incoming;
use ordain_model::wire::Codec as _;
use ordain_model::{Abort, Chunk, Front, Millis, SlotNo, codec};
use ordain_replication::{Configuration, GroupMessage, Log, Ship};
use ordain_role::{Bytes, PeerChange, Wire, from_variants};

use crate::concurrency::AttemptId;
use crate::decision::Decision;

/// A message between the roles of the family.
#[derive(Clone, Debug)]
pub enum Message {
    /// Between a front door and a coordinator.
    Front(Front),
    /// Coordinator to participant: run these fragments for an attempt.
    Access(Access),
    /// Participant to coordinator: what came of them.
    Accessed(Accessed),
    /// Coordinator to participant: the attempt is over and has written nothing.
    Finish(AttemptId),
    /// Appender and log of decisions, to each other.
    Log(Log<Arc<Decision>>),
    /// Driver to roles: the stream to another node has changed.
    Peer(PeerChange),
}

/// A coordinator's request to a participant.
#[derive(Clone, Debug)]
pub struct Access {
    /// The attempt.
    pub attempt: AttemptId,
    /// The chunk that the transaction is in, and where.
    pub chunk: Arc<Chunk>,
    /// The place of the transaction in the chunk's list.
    pub at: usize,
    /// Which of the plan's fragments the participant runs, in ascending order.
    pub fragments: Vec<u32>,
    /// The results that these fragments need, of earlier ones.
    pub inputs: Vec<(SlotNo, Vec<u8>)>,
    /// The time that the attempt sees.
    pub now: Millis,
    /// The attempt's seed.
    pub seed: u64,
}

/// A participant's answer to an [`Access`].
#[derive(Clone, Debug)]
pub struct Accessed {
    /// The attempt.
    pub attempt: AttemptId,
    /// The results of the fragments that were run.
    pub slots: Vec<(SlotNo, Vec<u8>)>,
    /// The reason why the participant has not run all fragments, if it has not.
    pub failure: Option<Failure>,
    /// Writes of the attempt at this participant so far; none after a failure.
    pub writes: Vec<Write>,
}

/// A reason why a participant has not run all fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The concurrency control has refused an access: the attempt is over, the transaction is not.
    Refused,
    /// A fragment aborts the transaction.
    Aborted(SlotNo, Abort),
}

from_variants!(Message { Front(Front), Log(Log<Arc<Decision>>), Peer(PeerChange) });

impl ordain_family::Message for Message {
    fn incoming(self) -> Incoming<Message> {
        match self {
            Message::Front(front) => Incoming::Front(front),
            Message::Peer(change) => Incoming::Peer(change),
            other => Incoming::Role(other),
        }
    }
}

// A node of the miniature is alone: only what front doors say crosses nodes.
codec!(enum Message {
    0 => Front(front),
}, local Access | Accessed | Finish | Log | Peer);

impl Wire for Message {
    /// # Panics
    /// If the message is one that stays on its node.
    fn encode_shared(&self, out: &mut Vec<u8>) -> Bytes {
        assert!(
            matches!(self, Message::Front(_)),
            "a message that stays on its node was sent to another: {self:?}"
        );
        self.encode(out);
        Bytes::new()
    }
}

/// The message that a node without replicas was never to send.
fn has_no_members(message: impl std::fmt::Debug) -> Message {
    unreachable!("a log without members sent {message:?}")
}

impl From<GroupMessage> for Message {
    fn from(message: GroupMessage) -> Message {
        has_no_members(message)
    }
}

impl From<Ship> for Message {
    fn from(message: Ship) -> Message {
        has_no_members(message)
    }
}

impl From<Configuration> for Message {
    fn from(message: Configuration) -> Message {
        has_no_members(message)
    }
}

impl TryFrom<Message> for ordain_replication::Message<Arc<Decision>> {
    type Error = Message;

    fn try_from(message: Message) -> Result<Self, Message> {
        match message {
            Message::Log(log) => Ok(ordain_replication::Message::Log(log)),
            Message::Peer(change) => Ok(ordain_replication::Message::Peer(change)),
            other => Err(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::PauseNo;

    use super::*;

    #[test]
    fn a_message_of_a_front_door_travels() {
        let mut bytes = Message::Front(Front::Pause(PauseNo(3))).to_bytes();
        assert!(matches!(Message::from_bytes(&bytes), Some(Message::Front(Front::Pause(PauseNo(3))))));
        bytes.push(0);
        assert!(Message::from_bytes(&bytes).is_none());
    }

    #[test]
    #[should_panic(expected = "a message that stays on its node was sent to another")]
    fn a_message_that_stays_on_its_node_is_not_sent() {
        Message::Log(Log::Writable).encode_shared(&mut Vec::new());
    }
}
