//! Messages between a gateway and the engine behind it, whichever it is.

use std::sync::Arc;

use crate::chunk::Chunk;
use crate::codec;
use crate::flow::PauseNo;
use crate::ids::{ChunkNo, GatewayId};
use crate::interactive::{OpenId, Step};
use crate::outcome::OutcomeBatch;
use crate::reads::Snapshot;

/// A message of the front door.
#[derive(Clone, Debug)]
pub enum Front {
    /// Gateway to engine: run these.
    Submit(Arc<Chunk>),
    /// Gateway to engine: run these on a snapshot. They only read.
    Read(Arc<Chunk>, Snapshot),
    /// Gateway to engine: the clients of this chunk of reads are answered, or do not wait any more.
    ReadDone(GatewayId, ChunkNo),
    /// Gateway to engine: the only transaction of this chunk is a step of an open one.
    Step(Step, Arc<Chunk>),
    /// Gateway to engine: an open transaction is over without effect, if it is not committed.
    Abandon(OpenId),
    /// Engine to gateway: these have ended.
    Outcomes(OutcomeBatch),
    /// Gateway to engine, or from where chunks are passed on: to be answered at once, as a sign that what was sent before
    /// it has come.
    Pause(PauseNo),
    /// Everything sent before this pause has arrived.
    Continue(PauseNo),
    /// Gateway to gateway of another node: how this node's memory stands.
    Memory {
        /// True if the node holds more than its limit.
        is_over: bool,
        /// The bytes left to its limit; `u64::MAX` without one.
        room: u64,
    },
}

codec!(enum Front {
    0 => Submit(chunk),
    1 => Outcomes(batch),
    2 => Read(chunk, snapshot),
    3 => ReadDone(gateway, number),
    4 => Pause(number),
    5 => Continue(number),
    6 => Memory { is_over, room },
    7 => Step(step, chunk),
    8 => Abandon(open),
});
