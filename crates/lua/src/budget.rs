//! The budget of one run: units of work and bytes of memory.
//!
//! Both are counted by what the script asks for and by nothing else, so a run ends at the same point everywhere. The end
//! of a budget is not an error that a script can see: [`Fault::Dead`] passes every `pcall`.

use std::cell::Cell;

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

/// Units of work and bytes of memory that a run may still use.
#[derive(Clone, Debug)]
pub struct Budget {
    left: Cell<i64>,
    used: usize,
    limit: usize,
    death: Option<Death>,
}

impl Budget {
    /// A budget of `work` units and `limit` bytes.
    pub fn new(work: i64, limit: usize) -> Budget {
        Budget { left: Cell::new(work), used: 0, limit, death: None }
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
        if self.left.get() < 0 { Err(self.die(Death::Work)) } else { Ok(()) }
    }

    /// Takes one unit of work; false if there is none left.
    #[inline(always)]
    pub fn tick(&mut self) -> bool {
        let left = self.left.get() - 1;
        self.left.set(left);
        left >= 0
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
        self.left.get().max(0) as u64
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
