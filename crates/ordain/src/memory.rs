//! The allocator, and when it gives memory back to the system.
//!
//! By itself it gives back all that is free a second after something was freed, within whatever thread asks for memory or
//! frees some next. That thread is a loop, which stands still for some 20 us for each MiB. What goes back is often wanted
//! again the next moment, and the system clears each page and may have to find it first; and a node that has become idle
//! keeps what it will not need. So a thread of its own gives back all that is free, every ten seconds (as long as Redis
//! with jemalloc keeps what is not used), and nobody else does.

use std::ffi::{c_int, c_long};
use std::thread;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long memory that is free is kept at most.
const KEPT: Duration = Duration::from_secs(10);

/// How long after something was freed the allocator gives memory back by itself, milliseconds: `purge_delay`, whose number
/// is its place among the options of `mimalloc.h`.
const PURGE_DELAY: c_int = 15;
/// An hour: with [`KEPT`] between two times that all is given back, never.
const NEVER_MS: c_long = 60 * 60 * 1000;

/// Has free memory given back to the system every [`KEPT`], beside whatever the process does. Whoever sets
/// `MIMALLOC_PURGE_DELAY` has the allocator do that by itself too, after so many milliseconds, or nobody ever (-1).
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
