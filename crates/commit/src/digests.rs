//! The digests that a participant had at late places of its log, by which the members of a partition are compared.

use std::collections::VecDeque;

use ordain_model::{Digest, DigestSpan, Epoch};

/// A digest is kept at every place that is a multiple of this: making one hashes all that was written since the last.
const EVERY: u64 = 16;
/// The number of digests that are kept: a member that is not far behind finds one that it has too.
const KEPT: usize = 24;

/// Digests at some of the last places, the same places on all members.
#[derive(Clone, Debug, Default)]
pub struct Digests {
    spans: VecDeque<DigestSpan>,
}

impl Digests {
    /// Takes note of the state after the entry at `applied`, before the next one, at `next`, is applied. The digest is asked for
    /// if that is to be kept.
    pub fn pass(&mut self, applied: Epoch, next: Epoch, digest: impl FnOnce() -> Digest) {
        let last = next.0 - 1;
        if last / EVERY * EVERY < applied.0.max(1) {
            return;
        }
        if self.spans.len() == KEPT {
            self.spans.pop_front();
        }
        // Places without an entry are those of what never was agreed on.
        self.spans.push_back(DigestSpan { first: applied, last: Epoch(last), digest: digest() });
    }

    /// The digests that are kept, in order of places.
    pub fn spans(&self) -> impl Iterator<Item = DigestSpan> + '_ {
        self.spans.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_digests_of_the_same_places() {
        let digest = |sum| Digest { sum, records: 1 };
        let spans_of = |places: &[u64]| -> Vec<(u64, u64)> {
            let mut digests = Digests::default();
            for pair in places.windows(2) {
                digests.pass(Epoch(pair[0]), Epoch(pair[1]), || digest(u128::from(pair[0])));
            }
            assert!(digests.spans().all(|span| span.digest.sum == u128::from(span.first.0)));
            digests.spans().map(|span| (span.first.0, span.last.0)).collect()
        };
        assert_eq!(spans_of(&[0, 1, 15, 16, 17, 31, 32]), [(16, 16)]);
        assert_eq!(spans_of(&[0, 14, 20, 21, 40, 49]), [(14, 19), (21, 39), (40, 48)]);
        let many: Vec<u64> = (0..1_000).collect();
        let spans = spans_of(&many);
        assert_eq!((spans.len(), spans.last()), (KEPT, Some(&(992, 992))));
    }
}
