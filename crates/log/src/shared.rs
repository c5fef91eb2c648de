//! A directory that several use in turns: a log that is replayed, and those who execute it and have values on the same disk.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use ordain_role::{Directory, DiskError, DiskOp};

/// A handle to a directory that others have handles to. None of them holds it for longer than a call.
#[derive(Default)]
pub struct SharedDirectory<D>(Rc<RefCell<D>>);

impl<D> SharedDirectory<D> {
    /// Shares a directory.
    pub fn new(directory: D) -> SharedDirectory<D> {
        SharedDirectory(Rc::new(RefCell::new(directory)))
    }

    /// Does something with the directory itself, while no other handle does.
    ///
    /// # Panics
    /// If another one does.
    pub fn with<R>(&self, run: impl FnOnce(&mut D) -> R) -> R {
        run(&mut self.0.borrow_mut())
    }
}

impl<D> Clone for SharedDirectory<D> {
    fn clone(&self) -> Self {
        SharedDirectory(self.0.clone())
    }
}

impl<D> fmt::Debug for SharedDirectory<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedDirectory").finish_non_exhaustive()
    }
}

impl<D: Directory> Directory for SharedDirectory<D> {
    fn list(&self) -> Result<Vec<(String, u64)>, DiskError> {
        self.0.borrow().list()
    }

    fn read(&self, file: &str, offset: u64, len: usize) -> Result<Vec<u8>, DiskError> {
        self.0.borrow().read(file, offset, len)
    }

    fn apply(&mut self, op: &DiskOp) -> Result<(), DiskError> {
        self.0.borrow_mut().apply(op)
    }
}
