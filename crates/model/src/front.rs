//! Messages between a gateway and the engine behind it, whichever it is.

use std::sync::Arc;

use crate::chunk::Chunk;
use crate::flow::PauseNo;
use crate::ids::{ChunkNo, GatewayId};
use crate::outcome::OutcomeBatch;
use crate::procedure::Registry;
use crate::reads::Snapshot;
use crate::wire::{self, Reader};

/// A message of the front door.
#[derive(Clone, Debug)]
pub enum Front {
    /// Gateway to engine: run these.
    Submit(Arc<Chunk>),
    /// Gateway to engine: run these on a snapshot. They only read.
    Read(Arc<Chunk>, Snapshot),
    /// Gateway to engine: whoever waited for this chunk of reads has been answered, or does not wait any more.
    ReadDone(GatewayId, ChunkNo),
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

impl Front {
    /// Appends the bytes by which it travels to another node.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Front::Submit(chunk) => {
                wire::u8(out, 0);
                chunk.encode(out);
            }
            Front::Outcomes(batch) => {
                wire::u8(out, 1);
                batch.encode(out);
            }
            Front::Read(chunk, snapshot) => {
                wire::u8(out, 2);
                snapshot.encode(out);
                chunk.encode(out);
            }
            Front::ReadDone(gateway, number) => {
                wire::u8(out, 3);
                wire::u32(out, gateway.0);
                wire::u64(out, number.0);
            }
            Front::Pause(number) => {
                wire::u8(out, 4);
                wire::u64(out, number.0);
            }
            Front::Continue(number) => {
                wire::u8(out, 5);
                wire::u64(out, number.0);
            }
            Front::Memory { is_over, room } => {
                wire::u8(out, 6);
                wire::u8(out, u8::from(*is_over));
                wire::u64(out, *room);
            }
        }
    }

    /// The message that the bytes are, if they are one.
    pub fn decode(registry: &Registry, bytes: &mut Reader<'_>) -> Option<Front> {
        match bytes.u8()? {
            0 => Chunk::decode_whole(registry, bytes).map(|chunk| Front::Submit(Arc::new(chunk))),
            1 => OutcomeBatch::decode(bytes).map(Front::Outcomes),
            2 => {
                let snapshot = Snapshot::decode(bytes)?;
                Chunk::decode_whole(registry, bytes).map(|chunk| Front::Read(Arc::new(chunk), snapshot))
            }
            3 => Some(Front::ReadDone(GatewayId(bytes.u32()?), ChunkNo(bytes.u64()?))),
            4 => bytes.u64().map(|number| Front::Pause(PauseNo(number))),
            5 => bytes.u64().map(|number| Front::Continue(PauseNo(number))),
            6 => Some(Front::Memory { is_over: bytes.u8()? != 0, room: bytes.u64()? }),
            _ => None,
        }
    }
}
