//! Long computations that a role gives away, so that what stands beside it on its event loop is served meanwhile.

use std::any::Any;
use std::fmt;

/// The outcome of a [`Work`]; the role that gave it away knows the type.
pub type Product = Box<dyn Any + Send>;

/// A computation that takes longer than an event loop may stand still.
///
/// It is a function of what it holds: no clock, no randomness, nothing that another thread changes. So where and when
/// a driver runs it shows in nothing but the time at which its [`WorkDone`] comes.
pub struct Work {
    /// The role's own name for it; comes back with its outcome.
    pub token: u64,
    run: Box<dyn FnOnce() -> Product + Send>,
}

impl Work {
    /// Work that is done by calling `run`.
    pub fn new<T: Send + 'static>(token: u64, run: impl FnOnce() -> T + Send + 'static) -> Work {
        Work { token, run: Box::new(move || Box::new(run())) }
    }

    /// Does it.
    pub fn run(self) -> WorkDone {
        WorkDone { token: self.token, product: (self.run)() }
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("token", &self.token).finish_non_exhaustive()
    }
}

/// A [`Work`] that is done.
pub struct WorkDone {
    /// The number that the work had.
    pub token: u64,
    /// The outcome of the work.
    pub product: Product,
}

impl fmt::Debug for WorkDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkDone").field("token", &self.token).finish_non_exhaustive()
    }
}
