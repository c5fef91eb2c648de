//! What passes between a gateway and whatever engine stands behind it, whichever it is.

use std::sync::Arc;

use crate::chunk::Chunk;
use crate::ids::{ChunkNo, GatewayId};
use crate::outcome::OutcomeBatch;
use crate::procedure::Registry;
use crate::wire::{self, Reader};

/// A message of the front door.
#[derive(Clone, Debug)]
pub enum Front {
    /// Gateway to engine: run these.
    Submit(Arc<Chunk>),
    /// Engine to gateway: these have ended.
    Outcomes(OutcomeBatch),
}

impl Front {
    /// Appends the bytes by which it travels to another node.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Front::Submit(chunk) => {
                wire::u8(out, 0);
                wire::u32(out, chunk.gateway.0);
                wire::u64(out, chunk.number.0);
                wire::u16(out, chunk.replica);
                wire::bytes(out, chunk.logged());
                wire::bytes(out, chunk.unlogged());
            }
            Front::Outcomes(batch) => {
                wire::u8(out, 1);
                batch.encode(out);
            }
        }
    }

    /// What the bytes are, if they are one.
    pub fn decode(registry: &Registry, bytes: &mut Reader<'_>) -> Option<Front> {
        match bytes.u8()? {
            0 => {
                let (gateway, number) = (GatewayId(bytes.u32()?), ChunkNo(bytes.u64()?));
                let (replica, logged) = (bytes.u16()?, bytes.bytes()?.to_vec());
                let mut chunk = Chunk::decode(registry, gateway, logged, bytes.bytes()?.to_vec()).ok()?;
                (chunk.number, chunk.replica) = (number, replica);
                Some(Front::Submit(Arc::new(chunk)))
            }
            1 => OutcomeBatch::decode(bytes).map(Front::Outcomes),
            _ => None,
        }
    }
}
