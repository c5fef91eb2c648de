//! Tells the processor what will be read soon.
//!
//! A load that nothing waits for does the same, as long as the processor can run ahead of it: some hundred
//! instructions, which is four or five records. A prefetch is done with as soon as it is issued, so that as many misses
//! overlap as the caches can have under way. For records that lie anywhere in memory that is most of what an access
//! costs.

/// Has the line in which something begins on its way to the cache. It changes nothing else.
#[inline]
pub(crate) fn fetch<T>(what: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the instruction is a hint: it reads nothing that the program can see, and never faults, whatever the
    // address. This one is that of a reference.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(what).cast());
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    std::hint::black_box(std::ptr::from_ref(what));
}

/// How many lines of a content are asked for one by one. Of a longer one only the last is beside these: whoever reads all of
/// that goes from the front, and the processor goes ahead of him by itself.
const LINES: usize = 6;

/// The same for the lines of some bytes.
#[inline]
pub(crate) fn fetch_bytes(bytes: &[u8]) {
    bytes.iter().step_by(64).take(LINES).for_each(fetch);
    bytes.last().into_iter().for_each(fetch);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_fetched_stays_as_it_is() {
        for len in [0, 1, 2, 64, 65, 5000] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            fetch_bytes(&bytes);
            fetch(&bytes);
            assert!(bytes.iter().zip(0..).all(|(byte, i): (&u8, usize)| *byte == i as u8));
        }
    }
}
