//! A shard's digests at the ends of epochs, by which operators compare replicas without a transaction.
//!
//! Inspected at different moments, two replicas are hardly ever at the same epoch. So a shard keeps the digests of several
//! epochs: of the last that is complete, and of those whose numbers are multiples of powers of two. However far apart two
//! shards are, they have one of these in common.
//!
//! Where replicas compare digests after every batch, the digest of any late epoch is known (`digest_exchange`). Without
//! replicas it costs a hash for each record that was changed ([decision 27]), and is computed only while nothing is under way:
//! under load it is that of an older epoch.
//!
//! [decision 27]: ../../../../docs/decisions/0027-late-digest.md

use std::collections::BTreeMap;

use ordain_model::{Digest, DigestSpan, Epoch};

/// How many spans are kept.
const KEPT: usize = 96;
/// The powers of two at whose multiples digests are kept.
const POWERS: std::ops::Range<u32> = 4..24;
/// The power of two at whose multiples the digest is computed while batches come, without replicas.
const STEP: u32 = 10;
/// How many records may have to be hashed for that, at most: a fraction of a millisecond.
pub(crate) const HASHED_MAX: usize = 2048;

/// The digests of a shard's state at the ends of late epochs.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    /// By the first epoch: the last one, and the digest.
    kept: BTreeMap<Epoch, (Epoch, Digest)>,
}

impl Spans {
    /// From the end of the first epoch to that of the last the state had this digest.
    pub(crate) fn note(&mut self, span: DigestSpan) {
        if span.first > span.last {
            return;
        }
        let kept = self.kept.entry(span.first).or_insert((span.last, span.digest));
        kept.0 = kept.0.max(span.last);
        if self.kept.len() > KEPT {
            self.kept.pop_first();
        }
    }

    /// Those kept, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = DigestSpan> {
        self.kept.iter().map(|(first, (last, digest))| DigestSpan {
            first: *first,
            last: *last,
            digest: *digest,
        })
    }
}

/// Returns the epochs whose digests are kept once everything up to this one is complete, the latest first.
pub(crate) fn marks(complete: Epoch) -> impl Iterator<Item = Epoch> {
    let marks = POWERS.map(move |power| Epoch(complete.0 >> power << power));
    let mut last = None;
    [complete].into_iter().chain(marks).filter(move |mark| last.replace(*mark) != Some(*mark))
}

/// Returns whether a state that holds from the end of `first` until the batch of epoch `next` holds at the end of an
/// epoch whose digest is kept.
pub(crate) fn has_mark(first: Epoch, next: Epoch) -> bool {
    next.0.saturating_sub(1) >> STEP > first.0.saturating_sub(1) >> STEP
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(first: u64, last: u64, sum: u128) -> DigestSpan {
        DigestSpan { first: Epoch(first), last: Epoch(last), digest: Digest { sum, records: 0 } }
    }

    #[test]
    fn a_state_that_lasts_is_one_span_and_old_ones_go() {
        let mut spans = Spans::default();
        spans.note(span(3, 5, 1));
        spans.note(span(3, 9, 1));
        spans.note(span(3, 7, 1));
        spans.note(span(11, 10, 2));
        assert_eq!(spans.iter().collect::<Vec<_>>(), [span(3, 9, 1)]);
        (20..400).for_each(|epoch| spans.note(span(epoch, epoch, 5)));
        assert_eq!((spans.iter().count(), spans.iter().last()), (KEPT, Some(span(399, 399, 5))));
    }

    #[test]
    fn shards_at_different_epochs_have_a_mark_in_common() {
        for (one, other) in [(1000, 1001), (4095, 4097), (70_000, 99_999)] {
            let theirs: Vec<Epoch> = marks(Epoch(other)).collect();
            assert!(marks(Epoch(one)).any(|mark| theirs.contains(&mark)), "{one} {other}");
        }
        assert!(marks(Epoch(4097)).count() < 20, "each once");
        assert!(has_mark(Epoch(1023), Epoch(1025)) && has_mark(Epoch(5), Epoch(5000)));
        assert!(!has_mark(Epoch(1025), Epoch(1026)) && !has_mark(Epoch(1024), Epoch(1024)));
    }
}
