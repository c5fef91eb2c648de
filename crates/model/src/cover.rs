//! Covered records: those whose names come to be known only as a transaction runs.
//!
//! A deterministic engine locks what a plan names, and it plans before it executes. But the key of a TPC-C order
//! holds a number that is read from the district's record. So the plan names the district, as the *cover* of all
//! orders below it: a lock on the cover is a lock on everything below it, there or not (calvin.md, section 4.8;
//! qstore.md, section 4.2, rule 2). Under an exclusive lock a [covering](crate::Planner::covering) fragment may
//! insert, change and delete below its record, under a shared one it may read.
//!
//! **Why there are no phantoms.** A covered record has exactly one cover, which is written in its key, and it lies
//! in a database ([`Db::below`](crate::Db::below)) that no fragment can name. So there is no way to it but a
//! fragment on its cover, and that fragment holds the cover's lock: of two transactions that touch anything below
//! one cover, present or absent, one of them changing it, one waits for the whole of the other. The exception are
//! fragments over the whole table, and those have the table for themselves.
//!
//! A change below a record is no change of the record: the version of a cover says nothing of what lies below.
//!
//! A covered record is named by its cover and a suffix; it never expires. It does not go with its cover: who
//! deletes a record that covers others leaves them where they are, to be found when a record of that name is there
//! again, or is not (an absent record covers as well as any).

use std::fmt;

use smallvec::SmallVec;

use crate::cell::{Cell, CellMut};
use crate::key::MAX_KEY_LEN;

/// What lies below the record of a covering fragment.
///
/// The methods panic on a mistake of the procedure, the same on every replica, which aborts the transaction if the
/// fragment is abortable: a suffix that makes the key longer than a key may be, a change under
/// [`Access::Read`](crate::Access::Read), an expiry.
pub trait Below {
    /// The record below the fragment's key with this suffix, as the transaction sees it.
    fn read(&self, suffix: &[u8]) -> &Cell;

    /// Says that it will be asked for soon, so that its memory can be on its way.
    fn expect(&self, _suffix: &[u8]) {}

    /// Changes it. Only under [`Access::Write`](crate::Access::Write).
    fn edit(&mut self, suffix: &[u8], change: &mut dyn FnMut(&mut CellMut<'_>));
}

impl fmt::Debug for dyn Below + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Below")
    }
}

/// The panic of [`Below::edit`] under a shared lock.
pub const READ_ONLY_COVER: &str = "a record below one that is only read was to be changed";

/// The key of a covered record: the cover's, the suffix, and the suffix's length as two bytes, so that it can be
/// taken apart.
pub type CoveredKey = SmallVec<[u8; 64]>;

/// Composes the key of a covered record.
///
/// # Panics
/// If it would be longer than [`MAX_KEY_LEN`]: a mistake of the procedure.
#[inline]
pub fn covered_key(cover: &[u8], suffix: &[u8]) -> CoveredKey {
    let len = cover.len() + suffix.len() + 2;
    assert!(len <= MAX_KEY_LEN, "the key of a covered record would be {len} bytes long");
    let mut key = CoveredKey::with_capacity(len);
    key.extend_from_slice(cover);
    key.extend_from_slice(suffix);
    // It fits: it is less than the longest key, which is 2^16 bytes.
    key.extend_from_slice(&(suffix.len() as u16).to_le_bytes());
    key
}

/// Takes the key of a covered record apart, as a scan of [`Db::below`](crate::Db::below) finds it: the cover's key
/// and the suffix. `None` for bytes that are no such key.
#[inline]
pub fn split_covered(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let (names, len) = key.split_last_chunk::<2>()?;
    names.split_at_checked(names.len().checked_sub(usize::from(u16::from_le_bytes(*len)))?)
}

/// Runs the change of a covered record and holds it to the rule that it does not expire.
///
/// # Panics
/// If it has been given an expiry: a mistake of the procedure.
#[inline]
pub fn change_covered(mut cell: CellMut<'_>, change: &mut dyn FnMut(&mut CellMut<'_>)) {
    change(&mut cell);
    assert!(cell.expires_at.is_never(), "a covered record was given an expiry");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_composed_and_taken_apart_without_doubt() {
        let mut seen = std::collections::BTreeSet::new();
        for cover in [&b""[..], b"a", b"ab", b"a\x01\0", b"{t}:7"] {
            for suffix in
                [&b""[..], b"b", b"\x01\0", b"a long suffix that does not lie in the small vector's line"]
            {
                let key = covered_key(cover, suffix);
                assert_eq!(split_covered(&key), Some((cover, suffix)));
                assert!(seen.insert(key), "two names with one key");
            }
        }
        for no_key in [&b""[..], b"\0", b"ab\x03\0"] {
            assert_eq!(split_covered(no_key), None);
        }
    }

    #[test]
    fn the_longest_key_is_a_key_and_the_next_is_a_mistake() {
        let cover = vec![1; 10];
        let key = covered_key(&cover, &vec![2; MAX_KEY_LEN - 12]);
        assert_eq!(key.len(), MAX_KEY_LEN);
        assert_eq!(
            split_covered(&key).map(|(cover, suffix)| (cover.len(), suffix.len())),
            Some((10, MAX_KEY_LEN - 12))
        );
        assert!(std::panic::catch_unwind(|| covered_key(&cover, &vec![2; MAX_KEY_LEN - 11])).is_err());
    }
}
