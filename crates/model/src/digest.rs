//! The order-free digest of a state (calvin.md, section 8).
//!
//! A record contributes a 128-bit hash of (database, key, value, expiry); a state's digest is the wrapping
//! sum, so that each write costs a subtraction and an addition, and shards and replicas can be compared or
//! added up in any order.

use std::fmt;

/// The sum over the records of a state, and how many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Digest {
    /// Wrapping sum of the records' hashes.
    pub sum: u128,
    /// Number of records, modulo 2^32.
    pub records: u32,
}

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

    /// What has to be added to another digest to make this one.
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
}
