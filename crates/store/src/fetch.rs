//! Has the lines of a content on their way to the cache ([`fetch`]).

pub(crate) use ordain_model::fetch::fetch;

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
