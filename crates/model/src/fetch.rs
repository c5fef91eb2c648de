//! Tells the processor what will be read soon.
//!
//! A load that nothing waits for does the same, as long as the processor can run ahead of it: some hundred
//! instructions, which is four or five records. A prefetch is done with as soon as it is issued, so that as many misses
//! overlap as the caches can have under way. For records that lie anywhere in memory that is most of what an access
//! costs.

/// Has the line in which something begins on its way to the cache. It changes nothing else.
#[inline]
pub fn fetch<T>(what: &T) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_fetched_stays_as_it_is() {
        let bytes: Vec<u8> = (0..200).collect();
        bytes.iter().for_each(fetch);
        assert!(bytes.into_iter().eq(0..200));
    }
}
