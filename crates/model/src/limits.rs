//! Limits on what one transaction may hold in memory of what it reads.
//!
//! Every execution of a transaction must come to the same verdict on a limit: on one shard or on a hundred, for the first
//! time or again. So no limit depends on which shard holds what. A shard may see from its own part alone that a limit is
//! exceeded, as parts only add up. That none is exceeded is known where all parts come together: at the collector for the
//! reply, at the owner of a fragment for what that is handed (decision 29).

/// Longest reply of a transaction, bytes as it is written. What a reply is made from, and nothing else uses, may together be
/// as long. A connection that leaves more than this unread is closed.
pub const MAX_REPLY: usize = 256 << 20;

/// The most bytes of records that a transaction may carry from fragments to others, as many as may come with one as arguments.
pub const MAX_CARRIED: usize = 512 << 20;

/// The limits of one transaction. All who execute the same log must have the same; only tests have others than the usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// [`MAX_REPLY`].
    pub reply: usize,
    /// [`MAX_CARRIED`].
    pub carried: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { reply: MAX_REPLY, carried: MAX_CARRIED }
    }
}

impl Limits {
    /// The share of each of so many fragments that carry records: it is known before anything is read, so none
    /// of them has to hear how much the others carry.
    pub const fn share(self, carriers: u32) -> usize {
        if carriers > 1 { self.carried / carriers as usize } else { self.carried }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_equal_and_together_no_more_than_all() {
        let limits = Limits { reply: 0, carried: 10 };
        assert_eq!([0, 1, 2, 3, 11].map(|carriers| limits.share(carriers)), [10, 10, 5, 3, 0]);
    }
}
