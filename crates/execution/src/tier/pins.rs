//! Names whose values stay in memory, counted by hash: where two share a place, the values of both stay.

use ordain_model::KeyHash;

/// The number of places is two to this power: a quarter of a MiB.
const BITS: u32 = 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pins {
    /// Pins by the lowest bits of their hashes; empty before the first.
    counts: Box<[u32]>,
    /// All of them.
    all: u64,
}

fn place(hash: KeyHash) -> usize {
    (hash.0 & ((1 << BITS) - 1)) as usize
}

impl Pins {
    pub(super) fn pin(&mut self, hash: KeyHash) {
        if self.counts.is_empty() {
            self.counts = vec![0; 1 << BITS].into();
        }
        self.counts[place(hash)] += 1;
        self.all += 1;
    }

    /// # Panics
    /// If it is not pinned.
    pub(super) fn unpin(&mut self, hash: KeyHash) {
        assert!(self.holds(hash), "a name is unpinned that is not pinned");
        self.counts[place(hash)] -= 1;
        self.all -= 1;
    }

    /// The number of pins.
    pub(super) const fn all(&self) -> u64 {
        self.all
    }

    #[inline]
    pub(super) fn holds(&self, hash: KeyHash) -> bool {
        self.all > 0 && self.counts[place(hash)] > 0
    }
}
