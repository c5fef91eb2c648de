//! Chunks that wait for a batch, in order, and how many transactions they hold.

use std::collections::VecDeque;
use std::sync::Arc;

use ordain_model::Chunk;

/// The chunks.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    chunks: VecDeque<Arc<Chunk>>,
    /// The transactions of all of them.
    txns: usize,
    /// The number of chunks in front that are of batches that were lost: those of the next lost batch come behind
    /// them.
    returned: usize,
}

impl Waiting {
    /// Tells whether no chunk waits.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The transactions of all chunks.
    pub fn txns(&self) -> usize {
        self.txns
    }

    /// The chunk that is next.
    pub fn first(&self) -> Option<&Arc<Chunk>> {
        self.chunks.front()
    }

    /// Takes the chunk that is next.
    pub fn pop(&mut self) -> Option<Arc<Chunk>> {
        let chunk = self.chunks.pop_front()?;
        self.txns -= chunk.txns().len();
        self.returned = self.returned.saturating_sub(1);
        Some(chunk)
    }

    /// Adds a chunk behind all others.
    pub fn push(&mut self, chunk: Arc<Chunk>) {
        self.txns += chunk.txns().len();
        self.chunks.push_back(chunk);
    }

    /// Adds a chunk of a batch that was lost: before those that have never left, behind those that came back earlier.
    pub fn put_back(&mut self, chunk: Arc<Chunk>) {
        self.txns += chunk.txns().len();
        self.chunks.insert(self.returned, chunk);
        self.returned += 1;
    }

    /// Takes all chunks.
    pub fn take(&mut self) -> VecDeque<Arc<Chunk>> {
        std::mem::take(self).chunks
    }

    /// Returns the chunks, in order.
    pub fn chunks(&self) -> impl Iterator<Item = &Arc<Chunk>> {
        self.chunks.iter()
    }

    /// Checks that the counts fit the chunks.
    pub fn check(&self) -> Result<(), String> {
        let txns: usize = self.chunks.iter().map(|chunk| chunk.txns().len()).sum();
        if txns != self.txns || self.returned > self.chunks.len() {
            return Err(format!(
                "{} chunks of {txns} transactions wait, and {} transactions and {} returned chunks are counted",
                self.chunks.len(),
                self.txns,
                self.returned
            ));
        }
        Ok(())
    }
}
