//! Batches: what the sequencer decided for one epoch (the Calvin paper, section 3.1).

use std::sync::Arc;

use crate::chunk::{Chunk, ChunkError, Txn};
use crate::ids::{ChunkNo, Epoch, GatewayId, Gsn, Millis, PartitionId, RequestNo, SessionId};
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
    /// Its transactions.
    pub chunks: Vec<Placed>,
    /// Outcomes asked for again by clients that retry.
    pub lookups: Vec<Lookup>,
}

/// A chunk in a batch.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The batch index of a transaction is this plus its index in the chunk.
    pub base: u32,
    /// The transactions.
    pub chunk: Arc<Chunk>,
    /// Transactions that are not part of the batch, by index in the chunk, ascending: retries of what was
    /// sequenced before, and writes that a full disk refused.
    pub skipped: Vec<u32>,
}

/// A retried request: whoever keeps its session answers with the outcome of the first attempt, once there is
/// one (calvin.md, section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The session.
    pub session: SessionId,
    /// The request.
    pub request: RequestNo,
    /// Who asks.
    pub gateway: GatewayId,
    /// The chunk in which the retry came.
    pub chunk: ChunkNo,
    /// Its index there.
    pub index: u32,
}

impl Placed {
    /// A chunk all of whose transactions count.
    pub fn whole(base: u32, chunk: Arc<Chunk>) -> Placed {
        Placed { base, chunk, skipped: Vec::new() }
    }

    /// Its transactions that are part of the batch.
    #[inline]
    pub fn txns(&self) -> impl Iterator<Item = &Txn> {
        self.chunk.txns().iter().filter(|txn| self.skipped.is_empty() || !self.is_skipped(txn.index))
    }

    /// Whether a transaction of the chunk is left out.
    pub fn is_skipped(&self, index: u32) -> bool {
        self.skipped.binary_search(&index).is_ok()
    }

    fn has_writes(&self) -> bool {
        !self.chunk.logged().is_empty() && self.txns().any(|txn| !txn.read_only)
    }
}

impl Batch {
    /// The transactions in serial order.
    pub fn txns(&self) -> impl Iterator<Item = (Gsn, &Arc<Chunk>, &Txn)> {
        self.chunks.iter().flat_map(move |placed| {
            placed.txns().map(move |txn| (self.gsn(placed.base, txn), &placed.chunk, txn))
        })
    }

    /// The sequence number of a transaction of the chunk that begins at `base`.
    #[inline]
    pub fn gsn(&self, base: u32, txn: &Txn) -> Gsn {
        Gsn::new(self.epoch, self.partition, base + txn.index)
    }

    /// Whether anything in the batch may change the state; only then is it logged.
    pub fn has_writes(&self) -> bool {
        self.chunks.iter().any(Placed::has_writes)
    }

    /// The chunks whose bytes a log entry holds, in order.
    pub fn logged(&self) -> impl Iterator<Item = &Placed> {
        self.chunks.iter().filter(|placed| placed.has_writes())
    }

    /// The part of a log entry before the bytes of the [`Batch::logged`] chunks, which follow in order.
    pub fn encode_head(&self) -> Vec<u8> {
        let mut head = Vec::with_capacity(28 + 12 * self.chunks.len());
        head.extend_from_slice(&self.epoch.0.to_le_bytes());
        head.extend_from_slice(&self.now.0.to_le_bytes());
        head.extend_from_slice(&u32::from(self.partition.0).to_le_bytes());
        head.extend_from_slice(&self.total.to_le_bytes());
        head.extend_from_slice(&(self.logged().count() as u32).to_le_bytes());
        for placed in self.logged() {
            head.extend_from_slice(&placed.base.to_le_bytes());
            head.extend_from_slice(&(placed.chunk.logged().len() as u32).to_le_bytes());
            head.extend_from_slice(&(placed.skipped.len() as u32).to_le_bytes());
            for index in &placed.skipped {
                head.extend_from_slice(&index.to_le_bytes());
            }
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
        fn number(bytes: &mut &[u8]) -> Option<u32> {
            word(bytes).map(u32::from_le_bytes)
        }
        type Head = (u32, usize, Vec<u32>);
        let parse = || -> Option<(Batch, Vec<Head>, &[u8])> {
            let mut rest = entry;
            let epoch = Epoch(u64::from_le_bytes(word(&mut rest)?));
            let now = Millis(u64::from_le_bytes(word(&mut rest)?));
            let partition = PartitionId(number(&mut rest)?.try_into().ok()?);
            let total = number(&mut rest)?;
            let mut heads = Vec::new();
            for _ in 0..number(&mut rest)? {
                let (base, len) = (number(&mut rest)?, number(&mut rest)? as usize);
                let mut skipped = Vec::new();
                for _ in 0..number(&mut rest)? {
                    skipped.push(number(&mut rest)?);
                }
                skipped.is_sorted().then(|| heads.push((base, len, skipped)))?;
            }
            let batch = Batch { epoch, partition, now, total, chunks: Vec::new(), lookups: Vec::new() };
            (total <= Gsn::MAX_BATCH && partition.0 < 256).then_some((batch, heads, rest))
        };
        let (mut batch, heads, mut rest) = parse().ok_or(BatchError::Head)?;
        for (base, len, skipped) in heads {
            let (bytes, tail) = rest.split_at_checked(len).ok_or(BatchError::Head)?;
            let chunk = Chunk::decode(registry, GatewayId::default(), bytes.to_vec())
                .map_err(|source| BatchError::Chunk { epoch: batch.epoch, source })?;
            let after_last = batch.chunks.last().map_or(0, |p| p.base + p.chunk.span());
            if base < after_last || base.checked_add(chunk.span()).is_none_or(|end| end > batch.total) {
                return Err(BatchError::Head);
            }
            batch.chunks.push(Placed { base, chunk: Arc::new(chunk), skipped });
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
