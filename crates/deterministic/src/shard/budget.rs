//! How much a shard may do while it handles one event, before other roles of its event loop go on.

/// The budget of one event, in fragments. It counts only while a request waits.
#[derive(Debug, Default)]
pub struct Budget {
    /// How many fragments may still be started.
    left: usize,
    /// Whether something counted for more than one fragment.
    is_heavy: bool,
}

impl Budget {
    /// Returns whether nothing may be started any more.
    #[inline]
    pub const fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// Takes off so many fragments.
    #[inline]
    pub const fn spend(&mut self, fragments: usize) {
        self.left = self.left.saturating_sub(fragments);
    }

    /// Takes off what some bytes count for, if one fragment stands for `per_fragment` of them; with 0 bytes of any number use
    /// all of it up.
    pub(crate) fn charge(&mut self, bytes: usize, per_fragment: usize) {
        let fragments = bytes.checked_div(per_fragment).unwrap_or(usize::MAX);
        self.spend(fragments);
        self.is_heavy |= fragments > 0;
    }

    /// Returns whether it is used up by many small things: the next event goes on with more of them.
    pub(crate) const fn is_spent_on_small_things(&self) -> bool {
        self.left == 0 && !self.is_heavy
    }

    /// Begins another event with so many fragments.
    pub const fn begin(&mut self, fragments: usize) {
        (self.left, self.is_heavy) = (fragments, false);
    }

    /// Goes on with the same event for so many fragments more.
    pub(crate) const fn renew(&mut self, fragments: usize) {
        self.left = fragments;
    }
}
