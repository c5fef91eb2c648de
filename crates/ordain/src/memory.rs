//! The allocator, and when it gives memory back to the system.
//!
//! By itself it gives back all that is free a second after something was freed, within whatever thread asks for memory or
//! frees some next. That thread is a loop, which stands still for some 20 us for each MiB. What goes back is often wanted
//! again the next moment, and the system clears each page and may have to find it first; and a node that has become idle
//! keeps what it will not need. So a thread of its own gives back all that is free, every ten seconds (as long as Redis
//! with jemalloc keeps what is not used), and no other part of the program does.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ffi::{c_int, c_long};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The allocator, which counts what it has given out: data, queues, buffers and interpreters alike. The system's figure would
/// not do for a limit: what is free again stays with the process for a while, and its amount is not known.
struct Counting;

/// The bytes that all threads have reported as allocated, less those freed.
static ALLOCATED: AtomicI64 = AtomicI64::new(0);
/// So many bytes a thread allocates or frees before it says so: an atomic operation each time would cost more than the rest.
const SAID_AFTER: i64 = 64 << 10;

thread_local! {
    /// The bytes that this thread has not reported. It needs no destructor, so it can be used for as long as the thread lives.
    static UNREPORTED: Cell<i64> = const { Cell::new(0) };
}

#[inline]
fn count(bytes: i64) {
    UNREPORTED.with(|unreported| {
        let now = unreported.get() + bytes;
        if now.abs() < SAID_AFTER {
            unreported.set(now);
        } else {
            ALLOCATED.fetch_add(now, Relaxed);
            unreported.set(0);
        }
    });
}

/// Bytes that the process has allocated and not freed, to 64 KiB a thread.
pub(crate) fn allocated() -> u64 {
    u64::try_from(ALLOCATED.load(Relaxed)).unwrap_or(0)
}

// SAFETY: all is done by mimalloc, which is given each call as it came; what is counted beside it is a number of the thread's
// own and an atomic one, so it allocates nothing and cannot unwind.
unsafe impl GlobalAlloc for Counting {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promises are those that mimalloc asks for.
        unsafe { mimalloc::MiMalloc.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: as above.
        unsafe { mimalloc::MiMalloc.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as above; it comes from mimalloc.
        unsafe { mimalloc::MiMalloc.dealloc(at, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: as above; it comes from mimalloc.
        unsafe { mimalloc::MiMalloc.realloc(at, layout, size) }
    }
}

/// How long memory that is free is kept at most.
const KEPT: Duration = Duration::from_secs(10);

/// How long after something was freed the allocator gives memory back by itself, milliseconds: `purge_delay`, whose number
/// is its place among the options of `mimalloc.h`.
const PURGE_DELAY: c_int = 15;
/// An hour: with [`KEPT`] between two times that all is given back, never.
const NEVER_MS: c_long = 60 * 60 * 1000;

/// Has free memory given back to the system every [`KEPT`], beside all that the process does. With
/// `MIMALLOC_PURGE_DELAY` set, the allocator does that by itself too, after so many milliseconds, or never (-1).
pub(crate) fn give_back_now_and_then() -> std::io::Result<()> {
    // SAFETY: it takes any number. An option that the environment has set stays as it is: that was read before `main`. The
    // options are plain words, and this is before there is another thread.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, NEVER_MS) };
    let give_back = || loop {
        thread::sleep(KEPT);
        // SAFETY: any thread may ask for this at any time; what it touches is free.
        unsafe { libmimalloc_sys::mi_collect(true) };
    };
    thread::Builder::new().name("memory".to_owned()).spawn(give_back).map(drop)
}

#[cfg(test)]
mod tests {
    use std::ffi::{CStr, c_char, c_void};

    use super::*;

    unsafe extern "C" {
        fn mi_options_print_out(out: libmimalloc_sys::mi_output_fun, all: *mut c_void);
    }

    unsafe extern "C" fn append(text: *const c_char, all: *mut c_void) {
        // SAFETY: `all` is what was given with this function, and the text ends with a zero.
        let (all, text) = unsafe { (&mut *all.cast::<String>(), CStr::from_ptr(text)) };
        all.push_str(&text.to_string_lossy());
    }

    /// Other tests of this program allocate too, but far less than this.
    #[test]
    fn what_is_allocated_is_counted_and_what_is_freed_is_not() {
        const LARGE: usize = 1 << 30;
        let near = |bytes: u64, expected: usize| bytes.abs_diff(expected as u64) < LARGE as u64 / 4;
        let before = allocated();
        let mut zeros: Vec<u8> = vec![0; LARGE];
        assert!(near(allocated() - before, LARGE));
        zeros.reserve_exact(2 * LARGE);
        assert!(near(allocated() - before, 3 * LARGE));
        zeros.truncate(1);
        zeros.shrink_to_fit();
        assert!(near(allocated(), before as usize));
        std::thread::spawn(move || drop(zeros)).join().unwrap();
        let with_room: Vec<u8> = Vec::with_capacity(LARGE);
        assert!(near(allocated() - before, LARGE));
        drop(with_room);
        assert!(near(allocated(), before as usize));
    }

    #[test]
    fn the_option_is_the_one_that_is_meant() {
        // SAFETY: as above; nothing else in this process sets it, and its value is of no matter to a test.
        unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, 123_456) };
        let mut all = String::new();
        // SAFETY: `append` takes what is given with it, which lives longer than the call.
        unsafe { mi_options_print_out(Some(append), (&raw mut all).cast()) };
        assert!(all.contains("'purge_delay': 123456 "), "{all}");
    }
}
