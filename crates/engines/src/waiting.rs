//! Accesses that wait, of controls that take one up anew once what it waits for is over.

use std::collections::BTreeMap;

use ordain_commit::{Mode, Target};

/// An access that was asked for. Attempts are named by their places in the table of attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) by: u32,
    pub(crate) target: Target,
    pub(crate) mode: Mode,
}

/// Accesses that wait, each for one target. An attempt has one at most.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// By what they wait for; those of each target in the order in which they came.
    accesses: BTreeMap<Target, Vec<Access>>,
    /// What each attempt waits for.
    barriers: BTreeMap<u32, Target>,
}

impl Waiting {
    /// Has an access wait for a target.
    pub(crate) fn add(&mut self, access: Access, barrier: Target) {
        self.accesses.entry(barrier).or_default().push(access);
        self.barriers.insert(access.by, barrier);
    }

    /// Ends the wait of an attempt. Returns whether it has waited.
    pub(crate) fn remove(&mut self, by: u32) -> bool {
        let Some(barrier) = self.barriers.remove(&by) else { return false };
        if let Some(accesses) = self.accesses.get_mut(&barrier) {
            accesses.retain(|access| access.by != by);
            if accesses.is_empty() {
                self.accesses.remove(&barrier);
            }
        }
        true
    }

    /// Ends all waits for a target, and adds the accesses to others.
    pub(crate) fn wake(&mut self, barrier: Target, woken: &mut Vec<Access>) {
        let Some(mut accesses) = self.accesses.remove(&barrier) else { return };
        accesses.iter().for_each(|access| _ = self.barriers.remove(&access.by));
        woken.append(&mut accesses);
    }

    /// Ends all waits.
    pub(crate) fn clear(&mut self) {
        self.accesses.clear();
        self.barriers.clear();
    }

    /// Visits what is waited for, with the accesses that wait for it.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Target, &[Access])> {
        self.accesses.iter().map(|(barrier, accesses)| (*barrier, accesses.as_slice()))
    }

    /// Checks that whoever waits is under way, holds what it asks for, and waits for somebody.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check(
        &self,
        holds: impl Fn(Access) -> bool,
        is_barred: impl Fn(Target) -> bool,
    ) -> Result<(), String> {
        let waits =
            |access: &Access, barrier| self.barriers.get(&access.by) == Some(&barrier) && holds(*access);
        let mut count = 0;
        for (barrier, accesses) in self.iter() {
            count += accesses.len();
            if accesses.is_empty() || !is_barred(barrier) {
                return Err(format!("{accesses:?} wait for nobody at {barrier:?}"));
            }
            if let Some(access) = accesses.iter().find(|access| !waits(access, barrier)) {
                return Err(format!("{access:?} waits for {barrier:?}, and its attempt knows nothing of it"));
            }
        }
        match count == self.barriers.len() {
            true => Ok(()),
            false => Err(format!("{count} accesses wait, and attempts {:?}", self.barriers)),
        }
    }
}

#[cfg(test)]
mod tests {
    use ordain_store::RecordId;

    use super::*;

    fn access(by: u32) -> Access {
        Access { by, target: Target::Record(RecordId(by)), mode: Mode::Shared }
    }

    fn woken(waiting: &mut Waiting, barrier: Target) -> Vec<u32> {
        let mut woken = Vec::new();
        waiting.wake(barrier, &mut woken);
        waiting.check(|_| true, |_| true).unwrap();
        woken.into_iter().map(|access| access.by).collect()
    }

    #[test]
    fn waits_end_in_the_order_in_which_they_began() {
        let mut waiting = Waiting::default();
        let record = Target::Record(RecordId(9));
        for (by, barrier) in [(3, record), (1, Target::Table), (2, record), (4, record), (5, Target::Table)] {
            waiting.add(access(by), barrier);
        }
        assert!(waiting.remove(2) && !waiting.remove(2));
        assert_eq!(woken(&mut waiting, record), [3, 4]);
        assert_eq!(woken(&mut waiting, record), []);
        assert!(waiting.remove(1));
        assert_eq!(woken(&mut waiting, Target::Table), [5]);
        waiting.add(access(1), record);
        waiting.clear();
        assert_eq!((woken(&mut waiting, record), waiting.iter().count()), (vec![], 0));
    }

    #[test]
    fn a_wait_that_nobody_ends_is_found() {
        let of = |change: fn(&mut Waiting)| {
            let mut waiting = Waiting::default();
            waiting.add(access(1), Target::Table);
            change(&mut waiting);
            waiting
        };
        let sound = of(|_| {});
        assert!(sound.check(|_| true, |_| true).is_ok());
        assert!(sound.check(|_| true, |_| false).unwrap_err().contains("wait for nobody"));
        assert!(sound.check(|_| false, |_| true).unwrap_err().contains("knows nothing of it"));
        let changes: [fn(&mut Waiting); 3] = [
            |waiting| waiting.accesses.clear(),
            |waiting| waiting.barriers.clear(),
            |waiting| _ = waiting.barriers.insert(7, Target::Table),
        ];
        for change in changes {
            assert!(of(change).check(|_| true, |_| true).is_err());
        }
    }
}
