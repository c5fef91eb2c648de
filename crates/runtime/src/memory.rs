//! Memory in small pages, while much of it is new.
//!
//! Where the allocator asks for it the system hands out memory 2 MiB at a time. That is good for what is to stay (with
//! pages of 4 KiB a shard takes up to a third longer), but the thread that touches one first stands still until all of it is cleared:
//! 0.1 ms, and 4 to 10 where the host of a virtual machine has yet to find it. A loop that keeps aside all that it replaces
//! asks for one every few milliseconds, so some turns have two of these. Pages of 4 KiB cost as much together, but each
//! turn has its share of them.

use std::sync::{Mutex, PoisonError};

use rustix::thread::{disable_transparent_huge_pages, transparent_huge_pages_are_disabled};

/// For as long as there is one of these, new memory of this process comes in small pages.
#[derive(Debug)]
pub(crate) struct SmallPages(());

/// The state of the whole process, which may hold several nodes.
struct Process {
    /// The number of them.
    begun: usize,
    /// Pages are small without any of them too, as another part of the process asked for that.
    were_small: bool,
}

static PROCESS: Mutex<Process> = Mutex::new(Process { begun: 0, were_small: false });

/// Sets the size of pages, where the system can.
fn set(small: bool) {
    if let Err(error) = disable_transparent_huge_pages(small) {
        tracing::debug!(%error, small, "the size of new memory's pages stays");
    }
}

impl SmallPages {
    pub(crate) fn begin() -> SmallPages {
        let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        if process.begun == 0 {
            process.were_small = transparent_huge_pages_are_disabled().unwrap_or(true);
            if !process.were_small {
                set(true);
            }
        }
        process.begun += 1;
        SmallPages(())
    }
}

impl Drop for SmallPages {
    fn drop(&mut self) {
        let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        process.begun -= 1;
        if process.begun == 0 && !process.were_small {
            set(false);
        }
    }
}
