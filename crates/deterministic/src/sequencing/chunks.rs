//! Chunks whose fate is decided: those that members have agreed on, and those that one sequencer has turned away.
//!
//! A chunk that is passed on again, because the leader has gone, takes effect once by it. What members have agreed on is a
//! function of the sealed batches and nothing else, so every member has it.

use std::collections::{BTreeMap, BTreeSet};

use ordain_model::{Batch, Chunk, ChunkNo, GatewayId, codec};

/// The last chunks by gateway.
#[derive(Debug, Default)]
pub(crate) struct Chunks(BTreeMap<GatewayId, BTreeSet<ChunkNo>>);

codec!(struct Chunks(_));

impl Chunks {
    /// The number of chunks of each gateway that are remembered. A chunk that is so old that it was forgotten counts
    /// as known.
    pub(crate) const MAX: usize = 1 << 12;

    /// Tells whether a chunk's logged part was agreed on, or may have been too long ago to tell.
    pub(crate) fn is_known(&self, chunk: &Chunk) -> bool {
        self.is_there(chunk) || self.is_forgotten(chunk)
    }

    /// Tells whether a chunk is older than all that are remembered.
    pub(crate) fn is_forgotten(&self, chunk: &Chunk) -> bool {
        let is_before = |known: &BTreeSet<ChunkNo>| known.first().is_some_and(|first| chunk.number < *first);
        self.0.get(&chunk.gateway).is_some_and(|known| known.len() >= Chunks::MAX && is_before(known))
    }

    fn is_there(&self, chunk: &Chunk) -> bool {
        self.0.get(&chunk.gateway).is_some_and(|known| known.contains(&chunk.number))
    }

    /// Notes the chunks of a sealed batch.
    pub(crate) fn note(&mut self, batch: &Batch) {
        batch.logged().for_each(|placed| self.note_chunk(&placed.chunk));
    }

    /// Notes a chunk whose fate is decided: nothing of it is to be kept from now on.
    pub(crate) fn note_chunk(&mut self, chunk: &Chunk) {
        if chunk.gateway == GatewayId::HOUSE {
            return;
        }
        let known = self.0.entry(chunk.gateway).or_default();
        known.insert(chunk.number);
        if known.len() > Chunks::MAX {
            known.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::wire::Codec as _;

    use super::*;

    #[test]
    fn chunks_are_in_a_checkpoint_as_they_always_were() {
        let numbers = |numbers: [u64; 2]| BTreeSet::from(numbers.map(ChunkNo));
        let chunks = [(GatewayId(0x11), numbers([0x12, 0x13])), (GatewayId(0x21), numbers([0x22, 0x23]))];
        let bytes = Chunks(BTreeMap::from(chunks)).to_bytes();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = "02000000110000000200000012000000000000001300000000000000210000000200000022000000000000002300000000\
                        000000";
        assert_eq!(hex, expected);
        assert_eq!(Chunks::from_bytes(&bytes).map(|chunks| chunks.0.len()), Some(2));
    }
}
