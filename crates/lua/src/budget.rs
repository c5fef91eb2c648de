//! The budget of one run: units of work and bytes of memory.
//!
//! Both are counted by what the script asks for and by nothing else, so a run ends at the same point everywhere. The end
//! of a budget is not an error that a script can see: [`Fault::Dead`] passes every `pcall`.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::value::Value;

/// The reason for which a run was ended against its will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// The run used up its units of work.
    Work,
    /// The run asked for more memory than it may have.
    Memory,
    /// The host ended the run.
    Host,
    /// Somebody outside asked for the end of the run.
    Stopped,
    /// The interpreter broke one of its own invariants.
    Internal,
}

/// An error on its way out of a run.
#[derive(Clone, Debug)]
pub enum Fault {
    /// An error that a script can catch.
    Error(Value),
    /// An error text that still wants the line of the script where it happened.
    Text(Vec<u8>),
    /// The end of the run, which no script can catch.
    Dead,
}

impl From<String> for Fault {
    fn from(text: String) -> Fault {
        Fault::Text(text.into_bytes())
    }
}

impl From<&str> for Fault {
    fn from(text: &str) -> Fault {
        Fault::Text(text.into())
    }
}

/// A result of the interpreter.
pub type Result<T> = std::result::Result<T, Fault>;

/// Units of work between two looks at the flag that stops a run: far less than a millisecond.
const SLICE: i64 = 10_000;

/// Units of work and bytes of memory that a run may still use.
#[derive(Clone, Debug)]
pub struct Budget {
    left: Cell<i64>,
    /// Units of work besides those left, of a run that can be stopped: `left` is a slice then.
    reserve: i64,
    /// The run ends soon after this is set.
    stop: Option<Arc<AtomicBool>>,
    used: usize,
    limit: usize,
    death: Option<Death>,
}

impl Budget {
    /// A budget of `work` units and `limit` bytes.
    pub fn new(work: i64, limit: usize) -> Budget {
        Budget { left: Cell::new(work), reserve: 0, stop: None, used: 0, limit, death: None }
    }

    /// Has the run end soon after a flag is set. Until then its units of work are the same as without one.
    #[must_use]
    pub fn stopped_by(mut self, flag: Arc<AtomicBool>) -> Budget {
        self.stop = Some(flag);
        self.reserve += self.left.replace(0);
        self
    }

    /// Says that there are units of work left, of the reserve too, and that the run was not stopped.
    #[cold]
    fn refill(&mut self) -> bool {
        if self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            self.die(Death::Stopped);
            return false;
        }
        // What is overdrawn comes out of the reserve, and a slice to go on with.
        let wanted = SLICE.saturating_sub(self.left.get());
        let more = wanted.min(self.reserve);
        self.reserve -= more;
        self.left.set(self.left.get().saturating_add(more));
        self.left.get() >= 0
    }

    /// Ends the run.
    pub fn die(&mut self, death: Death) -> Fault {
        self.death.get_or_insert(death);
        Fault::Dead
    }

    /// The reason for which the run was ended, if it was.
    pub fn death(&self) -> Option<Death> {
        self.death
    }

    /// Takes units of work.
    ///
    /// # Errors
    /// [`Fault::Dead`]: there are not so many left.
    #[inline]
    pub fn work(&mut self, units: u64) -> Result<()> {
        self.left.set(self.left.get().saturating_sub_unsigned(units));
        if self.left.get() < 0 && !self.refill() { Err(self.die(Death::Work)) } else { Ok(()) }
    }

    /// Takes one unit of work; false if there is none left.
    #[inline(always)]
    pub fn tick(&mut self) -> bool {
        let left = self.left.get() - 1;
        self.left.set(left);
        left >= 0 || self.refill()
    }

    /// Takes the steps of a search in a hash table. That they are too many shows at the next unit of work.
    #[inline]
    pub(crate) fn probe(&self, steps: usize) {
        if steps > 8 {
            self.left.set(self.left.get().saturating_sub(steps as i64));
        }
    }

    /// Units of work left.
    pub fn left(&self) -> u64 {
        self.left.get().saturating_add(self.reserve).max(0) as u64
    }

    /// Takes bytes of memory for the rest of the run.
    ///
    /// # Errors
    /// [`Fault::Dead`]: there are not so many left.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> Result<()> {
        self.used = self.used.saturating_add(bytes);
        if self.used > self.limit { Err(self.die(Death::Memory)) } else { Ok(()) }
    }

    /// Checks that a buffer of so many bytes may be held for a while.
    ///
    /// # Errors
    /// [`Fault::Dead`]: there are not so many left.
    #[inline]
    pub fn fits(&mut self, bytes: usize) -> Result<()> {
        if self.used.saturating_add(bytes) > self.limit { Err(self.die(Death::Memory)) } else { Ok(()) }
    }

    /// Bytes taken.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Bytes left.
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.used)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A budget that can be stopped, and is not, ends where one that cannot does.
        #[test]
        fn slices_add_up(work in 0..60_000i64, steps in prop::collection::vec((0..3u8, 0..25_000u64), 0..40)) {
            let mut whole = Budget::new(work, 0);
            let mut sliced = Budget::new(work, 0).stopped_by(Arc::default());
            for (kind, units) in steps {
                let both = [&mut whole, &mut sliced].map(|budget| match kind {
                    0 => budget.work(units).is_ok(),
                    1 => (0..units % 50).all(|_| budget.tick()),
                    _ => {
                        budget.probe(units as usize % 500);
                        true
                    }
                });
                prop_assert_eq!(both[0], both[1]);
                prop_assert_eq!(whole.left(), sliced.left());
                if !both[0] {
                    break;
                }
            }
        }
    }

    #[test]
    fn a_flag_ends_a_run_within_a_slice() {
        let flag = Arc::new(AtomicBool::new(false));
        let mut budget = Budget::new(i64::MAX, 0).stopped_by(flag.clone());
        assert!((0..3 * SLICE).all(|_| budget.tick()));
        flag.store(true, Ordering::Relaxed);
        assert!((0..=SLICE).any(|_| !budget.tick()));
        assert!(matches!(budget.work(1), Err(Fault::Dead)));
        assert_eq!(budget.death(), Some(Death::Stopped));
    }
}
