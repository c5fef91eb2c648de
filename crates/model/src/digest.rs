//! The order-free digest of a state (calvin.md, section 8).
//!
//! A record contributes a 128-bit hash of (database, key, value, expiry); a state's digest is the wrapping
//! sum, so that each write costs a subtraction and an addition, and shards and replicas can be compared or
//! added up in any order.

use std::fmt;

use crate::Epoch;

/// The sum over the records of a state, and how many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Digest {
    /// Wrapping sum of the records' hashes.
    pub sum: u128,
    /// Number of records, modulo 2^32.
    pub records: u32,
}

crate::codec!(struct Digest { sum, records });

impl Digest {
    /// Adds one record.
    #[inline]
    pub fn add(&mut self, record: u128) {
        self.sum = self.sum.wrapping_add(record);
        self.records = self.records.wrapping_add(1);
    }

    /// Takes one record away.
    #[inline]
    pub fn remove(&mut self, record: u128) {
        self.sum = self.sum.wrapping_sub(record);
        self.records = self.records.wrapping_sub(1);
    }

    /// The difference to another digest: added to that one it makes this one.
    #[must_use]
    pub fn minus(self, other: Digest) -> Digest {
        Digest { sum: self.sum.wrapping_sub(other.sum), records: self.records.wrapping_sub(other.records) }
    }

    /// The digest of two disjoint states together.
    #[must_use]
    pub fn plus(self, other: Digest) -> Digest {
        Digest { sum: self.sum.wrapping_add(other.sum), records: self.records.wrapping_add(other.records) }
    }
}

/// The digest of a state that held from the end of one epoch to the end of another: nothing changed between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestSpan {
    /// The first epoch at whose end the state was this.
    pub first: Epoch,
    /// The last of which that is known; not before `first`.
    pub last: Epoch,
    /// The state's digest.
    pub digest: Digest,
}

impl DigestSpan {
    /// The epochs at whose ends both states held, with the digest of the two disjoint states together.
    pub fn meet(self, other: DigestSpan) -> Option<DigestSpan> {
        let (first, last) = (self.first.max(other.first), self.last.min(other.last));
        (first <= last).then(|| DigestSpan { first, last, digest: self.digest.plus(other.digest) })
    }

    /// The spans of two disjoint states together, from the spans of each, both in order of epochs.
    pub fn meet_all(one: &[DigestSpan], other: &[DigestSpan]) -> Vec<DigestSpan> {
        let (mut i, mut k, mut found) = (0, 0, Vec::new());
        while let (Some(a), Some(b)) = (one.get(i), other.get(k)) {
            found.extend(a.meet(*b));
            if a.last <= b.last {
                i += 1;
            } else {
                k += 1;
            }
        }
        found
    }
}

/// Forty hexadecimal digits: the count, then the sum.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}{:032x}", self.records, self.sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_does_not_matter_and_removal_undoes() {
        let (mut a, mut b) = (Digest::default(), Digest::default());
        a.add(u128::MAX);
        a.add(7);
        b.add(7);
        b.add(9);
        b.add(u128::MAX);
        b.remove(9);
        assert_eq!(a, b);
        assert_eq!(a.to_string().len(), 40);
        assert_eq!(b.minus(Digest::default().minus(a)), a.plus(a));
    }

    #[test]
    fn spans_meet_where_both_hold() {
        let span = |first, last, sum| DigestSpan {
            first: Epoch(first),
            last: Epoch(last),
            digest: Digest { sum, records: 1 },
        };
        let one = [span(1, 4, 10), span(5, 5, 20), span(9, 12, 30)];
        let other = [span(2, 2, 1), span(3, 9, 2), span(13, 20, 3)];
        let both: Vec<(u64, u64, u128)> = DigestSpan::meet_all(&one, &other)
            .into_iter()
            .map(|span| (span.first.0, span.last.0, span.digest.sum))
            .collect();
        assert_eq!(both, [(2, 2, 11), (3, 4, 12), (5, 5, 22), (9, 9, 32)]);
        assert_eq!(DigestSpan::meet_all(&one, &[]), []);
    }
}
