//! Batches: what the sequencer decided for one epoch (the Calvin paper, section 3.1).

use std::sync::Arc;

use crate::chunk::{Chunk, ChunkError, Txn};
use crate::ids::{Epoch, GatewayId, Gsn, Millis, PartitionId};
use crate::procedure::Registry;

/// The ordered requests of one sequencer in one epoch. Sealed: it never changes.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The epoch.
    pub epoch: Epoch,
    /// The sequencer.
    pub partition: PartitionId,
    /// The time that every transaction of the batch sees. Never smaller than the batch before's.
    pub now: Millis,
    /// One more than the largest index.
    pub total: u32,
    /// The chunks and the batch index of each one's first transaction.
    pub chunks: Vec<(u32, Arc<Chunk>)>,
}

/// Length of [`Batch::encode_head`] without the chunks' own heads.
const HEAD: usize = 30;

impl Batch {
    /// The transactions in serial order.
    pub fn txns(&self) -> impl Iterator<Item = (Gsn, &Arc<Chunk>, &Txn)> {
        self.chunks.iter().flat_map(move |(base, chunk)| {
            chunk.txns().iter().map(move |txn| (self.gsn(*base, txn), chunk, txn))
        })
    }

    /// The sequence number of a transaction of the chunk that begins at `base`.
    #[inline]
    pub fn gsn(&self, base: u32, txn: &Txn) -> Gsn {
        Gsn::new(self.epoch, self.partition, base + txn.index)
    }

    /// Whether anything in the batch may change the state; only then is it logged.
    pub fn has_writes(&self) -> bool {
        self.chunks.iter().any(|(_, chunk)| !chunk.logged().is_empty())
    }

    /// The part of a log entry before the chunks' bytes, which follow it in order, each chunk's
    /// [`Chunk::logged`]. Chunks without writes are left out.
    pub fn encode_head(&self) -> Vec<u8> {
        let written = || self.chunks.iter().filter(|(_, c)| !c.logged().is_empty());
        let mut head = Vec::with_capacity(HEAD + 8 * self.chunks.len());
        head.extend_from_slice(&self.epoch.0.to_le_bytes());
        head.extend_from_slice(&self.now.0.to_le_bytes());
        head.extend_from_slice(&u32::from(self.partition.0).to_le_bytes());
        head.extend_from_slice(&self.total.to_le_bytes());
        head.extend_from_slice(&(written().count() as u32).to_le_bytes());
        for (base, chunk) in written() {
            head.extend_from_slice(&base.to_le_bytes());
            head.extend_from_slice(&(chunk.logged().len() as u32).to_le_bytes());
        }
        head
    }

    /// Rebuilds a batch from a log entry: the head, then the chunks' bytes.
    ///
    /// # Errors
    /// [`BatchError`] if the bytes are not such an entry.
    pub fn decode(registry: &Registry, entry: &[u8]) -> Result<Batch, BatchError> {
        fn word<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
            let (head, tail) = bytes.split_first_chunk::<N>()?;
            *bytes = tail;
            Some(*head)
        }
        let parse = || -> Option<(Batch, Vec<(u32, usize)>, &[u8])> {
            let mut rest = entry;
            let epoch = Epoch(u64::from_le_bytes(word(&mut rest)?));
            let now = Millis(u64::from_le_bytes(word(&mut rest)?));
            let partition = PartitionId(u32::from_le_bytes(word(&mut rest)?).try_into().ok()?);
            let total = u32::from_le_bytes(word(&mut rest)?);
            let count = u32::from_le_bytes(word(&mut rest)?);
            let mut heads = Vec::new();
            for _ in 0..count {
                let base = u32::from_le_bytes(word(&mut rest)?);
                heads.push((base, u32::from_le_bytes(word(&mut rest)?) as usize));
            }
            let batch = Batch { epoch, partition, now, total, chunks: Vec::new() };
            (total <= Gsn::MAX_BATCH && partition.0 < 256).then_some((batch, heads, rest))
        };
        let (mut batch, heads, mut rest) = parse().ok_or(BatchError::Head)?;
        for (base, len) in heads {
            let (bytes, tail) = rest.split_at_checked(len).ok_or(BatchError::Head)?;
            let chunk = Chunk::decode(registry, GatewayId::default(), bytes.to_vec())
                .map_err(|source| BatchError::Chunk { epoch: batch.epoch, source })?;
            let after_last = batch.chunks.last().map_or(0, |(b, c): &(u32, Arc<Chunk>)| b + c.span());
            if base < after_last || base.checked_add(chunk.span()).is_none_or(|end| end > batch.total) {
                return Err(BatchError::Head);
            }
            batch.chunks.push((base, Arc::new(chunk)));
            rest = tail;
        }
        if rest.is_empty() { Ok(batch) } else { Err(BatchError::Head) }
    }
}

/// A log entry that cannot be what was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The head does not parse or does not fit the rest.
    #[error("batch header does not parse")]
    Head,
    /// A chunk is not as it was written.
    #[error("batch of epoch {epoch}: {source}")]
    Chunk {
        /// The batch's epoch.
        epoch: Epoch,
        /// What is wrong.
        source: ChunkError,
    },
}
