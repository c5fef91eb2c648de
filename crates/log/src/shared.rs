//! A directory that several use in turns: a log that is replayed, and those who execute it and have values on the same disk.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use ordain_role::{Directory, DiskError, DiskOp};

/// One of those who share a directory. None of them holds it for longer than a call.
#[derive(Clone)]
pub struct SharedDirectory<'a>(Rc<RefCell<&'a mut dyn Directory>>);

impl<'a> SharedDirectory<'a> {
    /// Shares a directory.
    pub fn new(directory: &'a mut dyn Directory) -> SharedDirectory<'a> {
        SharedDirectory(Rc::new(RefCell::new(directory)))
    }
}

impl fmt::Debug for SharedDirectory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedDirectory").finish_non_exhaustive()
    }
}

impl Directory for SharedDirectory<'_> {
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
