//! Batches: what the sequencer decided for one epoch (the Calvin paper, section 3.1).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::chunk::{Chunk, ChunkError, Txn};
use crate::codec;
use crate::execution::{Cascade, Choice};
use crate::ids::{ChunkNo, Epoch, GatewayId, Gsn, Millis, PartitionId, RequestNo, SessionId};
use crate::layout::Layouts;
use crate::map::Map;
use crate::procedure::Registry;
use crate::wire::{self, Codec, Reader};

/// The ordered requests of one sequencer in one epoch. Sealed: it never changes.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The epoch.
    pub epoch: Epoch,
    /// The sequencer.
    pub partition: PartitionId,
    /// The version of the layout of the cluster that it belongs to, by the cluster's file. Which slots have moved since, each
    /// chunk says of itself.
    pub layout: u32,
    /// The time that every transaction of the batch sees. Never smaller than the batch before's.
    pub now: Millis,
    /// The execution from here to the end of the epoch, unless an earlier batch of it has decided. Every partition has to know
    /// that, also one in which nothing of the batch takes part.
    pub choice: Option<Choice>,
    /// The largest index plus one.
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

/// A retried request: the shard that keeps its session answers with the outcome of the first attempt, once there is
/// one (calvin.md, section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The session.
    pub session: SessionId,
    /// The request.
    pub request: RequestNo,
    /// The gateway that asks.
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

    /// True if a transaction of the chunk is left out.
    pub fn is_skipped(&self, index: u32) -> bool {
        self.skipped.binary_search(&index).is_ok()
    }

    /// What a log entry says of so many bytes of the chunk.
    fn head(&self, len: usize, skipped: Vec<u32>) -> Head {
        let Chunk { gateway, number, replica, ref map, .. } = *self.chunk;
        Head { base: self.base, len: len as u32, gateway, number, replica, map: map.clone(), skipped }
    }

    fn is_logged(&self) -> bool {
        !self.chunk.logged().is_empty() && self.txns().any(|txn| txn.logged)
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

    /// True if the log has to keep anything of the batch.
    pub fn is_logged(&self) -> bool {
        self.chunks.iter().any(Placed::is_logged)
    }

    /// The chunks whose bytes a log entry holds, in order.
    pub fn logged(&self) -> impl Iterator<Item = &Placed> {
        self.chunks.iter().filter(|placed| placed.is_logged())
    }

    /// The number of the batch's transactions that the log has to keep.
    pub fn count_logged(&self) -> u32 {
        self.txns().filter(|(_, _, txn)| txn.logged).count() as u32
    }

    /// The part of a log entry before the bytes of the [`Batch::logged`] chunks, which follow in order.
    pub fn encode_head(&self) -> Vec<u8> {
        let mut head = self.encode_start(self.logged().count());
        for placed in self.logged() {
            placed.head(placed.chunk.logged().len(), placed.skipped.clone()).encode(&mut head);
        }
        head
    }

    /// The whole of a log entry.
    pub fn encode(&self) -> Vec<u8> {
        let mut entry = self.encode_head();
        self.logged().for_each(|placed| entry.extend_from_slice(placed.chunk.logged()));
        entry
    }

    /// A log entry of only those transactions in which a partition takes part; `None` if there are none and nothing else
    /// that it has to know. What is not logged stays where it was sequenced: its home takes part alone.
    pub fn encode_slice(&self, partition: PartitionId, layouts: &mut Layouts) -> Option<Vec<u8>> {
        let mut taken: Vec<(&Placed, &[u8])> = Vec::new();
        for placed in self.logged() {
            let layout = layouts.under(&placed.chunk.map);
            let takes_part = |txn: &&Txn| txn.logged && placed.chunk.takes_part(txn, layout, partition);
            taken.extend(placed.txns().filter(takes_part).map(|txn| (placed, placed.chunk.record(txn))));
        }
        let len =
            |records: &[(&Placed, &[u8])]| records.iter().map(|(_, record)| record.len()).sum::<usize>();
        let by_chunk = taken.chunk_by(|(a, _), (b, _)| std::ptr::eq(*a, *b));
        let mut slice = self.encode_start(by_chunk.clone().count());
        slice.reserve(len(&taken));
        by_chunk.for_each(|records| records[0].0.head(len(records), Vec::new()).encode(&mut slice));
        taken.iter().for_each(|(_, record)| slice.extend_from_slice(record));
        (!taken.is_empty() || self.choice.is_some()).then_some(slice)
    }

    /// Puts together what several slices of one batch hold. That is all of it if no transaction of it that is to be kept
    /// is missing from all of them: see [`Batch::count_logged`].
    ///
    /// # Errors
    /// [`BatchError`] if a slice is damaged, or is not of the same batch as the others, or there is none.
    pub fn merge(registry: &Registry, slices: &[Arc<Vec<u8>>]) -> Result<Batch, BatchError> {
        let slices = slices.iter().map(|slice| Batch::decode(registry, slice));
        let slices = slices.collect::<Result<Vec<Batch>, BatchError>>()?;
        let first = slices.first().ok_or(BatchError::Head)?;
        let head = |batch: &Batch| {
            (batch.epoch, batch.partition, batch.layout, batch.now, batch.choice, batch.total)
        };
        if slices.iter().any(|slice| head(slice) != head(first)) {
            return Err(BatchError::Head);
        }
        let mut chunks: BTreeMap<u32, (&Chunk, BTreeMap<u32, &[u8]>)> = BTreeMap::new();
        for placed in slices.iter().flat_map(|slice| &slice.chunks) {
            let (chunk, records) = chunks.entry(placed.base).or_insert((&placed.chunk, BTreeMap::new()));
            let name = |chunk: &Chunk| (chunk.gateway, chunk.number, chunk.replica, chunk.map.clone());
            if name(chunk) != name(&placed.chunk) {
                return Err(BatchError::Head);
            }
            records.extend(placed.txns().map(|txn| (txn.index, placed.chunk.record(txn))));
        }
        let mut whole = Batch { chunks: Vec::new(), lookups: Vec::new(), ..*first };
        for (base, (chunk, records)) in chunks {
            let bytes: Vec<&[u8]> = records.into_values().collect();
            let mut merged = Chunk::rebuild(registry, chunk.gateway, bytes.concat(), Vec::new())
                .map_err(|source| BatchError::Chunk { epoch: first.epoch, source })?;
            (merged.number, merged.replica, merged.map) = (chunk.number, chunk.replica, chunk.map.clone());
            whole.chunks.push(Placed::whole(base, Arc::new(merged)));
        }
        Ok(whole)
    }

    fn encode_start(&self, chunks: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(30 + Head::LEAST * chunks);
        wire::u64(&mut out, self.epoch.0);
        wire::u64(&mut out, self.now.0);
        wire::u8(&mut out, self.partition.0 as u8);
        wire::u8(
            &mut out,
            match self.choice {
                None => 0,
                Some(Choice::Speculate(Cascade::Repair)) => 1,
                Some(Choice::Speculate(Cascade::Abort)) => 2,
                Some(Choice::Wait) => 3,
            },
        );
        wire::u32(&mut out, self.layout);
        wire::u32(&mut out, self.total);
        wire::u32(&mut out, chunks as u32);
        out
    }

    /// The epoch of the batch that a log entry holds; `None` if it holds none.
    pub fn epoch_of(entry: &[u8]) -> Option<Epoch> {
        Epoch::decode(&mut Reader::new(entry))
    }

    /// Rebuilds a batch from a log entry: the head, then the chunks' bytes.
    ///
    /// # Errors
    /// [`BatchError`] if the bytes are not such an entry.
    pub fn decode(registry: &Registry, entry: &[u8]) -> Result<Batch, BatchError> {
        let mut rest = Reader::new(entry);
        let parse = |rest: &mut Reader<'_>| -> Option<(Batch, Vec<Head>)> {
            let (epoch, now) = (Epoch(rest.u64()?), Millis(rest.u64()?));
            let partition = PartitionId(u16::from(rest.u8()?));
            let choice = match rest.u8()? {
                0 => None,
                1 => Some(Choice::Speculate(Cascade::Repair)),
                2 => Some(Choice::Speculate(Cascade::Abort)),
                3 => Some(Choice::Wait),
                _ => return None,
            };
            let (layout, total) = (rest.u32()?, rest.u32()?);
            let heads = Vec::<Head>::decode(rest)?;
            let (chunks, lookups) = (Vec::new(), Vec::new());
            let batch = Batch { epoch, partition, layout, now, choice, total, chunks, lookups };
            let are_sorted = heads.iter().all(|head| head.skipped.is_sorted());
            (total <= Gsn::MAX_BATCH && are_sorted).then_some((batch, heads))
        };
        let (mut batch, heads) = parse(&mut rest).ok_or(BatchError::Head)?;
        for Head { base, len, gateway, number, replica, map, skipped } in heads {
            let bytes = rest.take(len as usize).ok_or(BatchError::Head)?;
            let mut chunk = Chunk::rebuild(registry, gateway, bytes.to_vec(), Vec::new())
                .map_err(|source| BatchError::Chunk { epoch: batch.epoch, source })?;
            (chunk.number, chunk.replica, chunk.map) = (number, replica, map);
            let after_last = batch.chunks.last().map_or(0, |p| p.base + p.chunk.span());
            if base < after_last || base.checked_add(chunk.span()).is_none_or(|end| end > batch.total) {
                return Err(BatchError::Head);
            }
            batch.chunks.push(Placed { base, chunk: Arc::new(chunk), skipped });
        }
        if rest.is_empty() { Ok(batch) } else { Err(BatchError::Head) }
    }
}

/// The part of a log entry about one of its chunks.
struct Head {
    base: u32,
    /// Bytes of its transactions.
    len: u32,
    gateway: GatewayId,
    number: ChunkNo,
    replica: u16,
    map: Map,
    skipped: Vec<u32>,
}

codec!(struct Head { base, len, gateway, number, replica, map, skipped });

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
        /// The chunk's error.
        source: ChunkError,
    },
}
