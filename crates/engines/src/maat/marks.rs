//! Marks of one record, or of the whole table: the latest stamps of reads and writes, and the attempts that read and write it.

use ordain_commit::Age;

use crate::marked_records::Marks;

/// See the module. Attempts are named by their places in the table of attempts, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Soft {
    /// The latest stamp with which an attempt that has read it has committed.
    pub(super) read: Age,
    /// The latest stamp of a write that is installed.
    pub(super) written: Age,
    /// Attempts that have read it: the soft read locks.
    pub(super) readers: Vec<u32>,
    /// Attempts that write it, once they are validated, or from their access on: the soft write locks.
    pub(super) writers: Vec<u32>,
    /// The number of attempts that have accessed it, those included that will write it when they are validated.
    pub(super) holders: u32,
}

/// Puts an attempt into a list, once.
pub(super) fn put(list: &mut Vec<u32>, at: u32) {
    if !list.contains(&at) {
        list.push(at);
    }
}

/// Takes an attempt out of a list.
pub(super) fn take(list: &mut Vec<u32>, at: u32) {
    list.retain(|other| *other != at);
}

impl Soft {
    /// True if its lists are those that attempts know of.
    pub(super) fn is_as(&self, (readers, writers, holders): &mut (Vec<u32>, Vec<u32>, u32)) -> bool {
        let sorted = |list: &Vec<u32>| {
            let mut sorted = list.clone();
            sorted.sort_unstable();
            sorted
        };
        readers.sort_unstable();
        writers.sort_unstable();
        let are_same = sorted(&self.readers) == *readers && sorted(&self.writers) == *writers;
        are_same && self.holders == *holders
    }
}

impl Marks for Soft {
    fn latest(&self) -> Age {
        self.read.max(self.written)
    }

    fn written(&self) -> Age {
        self.written
    }

    fn are_in_use(&self) -> bool {
        self.holders > 0
    }

    fn clear(&mut self) {
        self.read = Age(0);
        self.readers.clear();
        self.writers.clear();
        self.holders = 0;
    }
}
