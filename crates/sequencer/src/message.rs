//! The messages of the sequencing layer, and how an engine's own are carried beside them.

use std::sync::Arc;

use ordain_model::{Batch, Epoch, Front};

/// What the roles of a sequenced engine say to each other; `X` are the messages of the engine's own roles.
#[derive(Clone, Debug)]
pub enum Message<X> {
    /// Between a gateway and the engine.
    Front(Front),
    /// Between the sequencer, the input log and the shards.
    Sequencing(Sequencing),
    /// Between the engine's own roles.
    Engine(X),
}

/// Between the sequencer, the input log and the shards.
#[derive(Clone, Debug)]
pub enum Sequencing {
    /// Sequencer to input log: make this durable, then dispatch it.
    Append(Arc<Batch>),
    /// Input log to shards: this is decided; execute it. In epoch order, without exception.
    Sealed(Arc<Batch>),
    /// Input log to sequencer: the log has taken the batch of this epoch; the next may come.
    Logged(Epoch),
    /// Input log to sequencer: the disk is full. This batch was not made durable and nobody will execute it.
    Rejected(Arc<Batch>),
    /// Input log to sequencer: the disk has space again.
    Writable,
    /// Shard to sequencer: everything of this epoch and before it is executed here.
    Applied {
        /// The epoch.
        epoch: Epoch,
    },
    /// Shard to sequencer: records of these slots have outlived their time.
    Expired {
        /// The slots, of the 1,024.
        slots: std::ops::Range<usize>,
    },
}

impl<X> From<Front> for Message<X> {
    fn from(message: Front) -> Self {
        Message::Front(message)
    }
}

impl<X> From<Sequencing> for Message<X> {
    fn from(message: Sequencing) -> Self {
        Message::Sequencing(message)
    }
}

impl<X> TryFrom<Message<X>> for Front {
    type Error = Message<X>;

    fn try_from(message: Message<X>) -> Result<Front, Message<X>> {
        match message {
            Message::Front(front) => Ok(front),
            other => Err(other),
        }
    }
}
