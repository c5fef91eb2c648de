//! The numbers of what happened in a run.

/// What happened in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub appended: usize,
    pub confirmed: usize,
    pub refused: usize,
    pub restarted: usize,
    pub lost: usize,
    pub rejected: usize,
    pub copied: usize,
    pub emptied: usize,
    pub leaders: usize,
    pub reconfigured: usize,
    pub relayed: usize,
}

impl Tally {
    /// The sum of two.
    pub fn and(self, other: &Tally) -> Tally {
        Tally {
            appended: self.appended + other.appended,
            confirmed: self.confirmed + other.confirmed,
            refused: self.refused + other.refused,
            restarted: self.restarted + other.restarted,
            lost: self.lost + other.lost,
            rejected: self.rejected + other.rejected,
            copied: self.copied + other.copied,
            emptied: self.emptied + other.emptied,
            leaders: self.leaders + other.leaders,
            reconfigured: self.reconfigured + other.reconfigured,
            relayed: self.relayed + other.relayed,
        }
    }
}
