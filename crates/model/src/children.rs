//! Child records: records that a fragment names only as it runs, below the record that its plan names.
//!
//! A deterministic engine locks the keys of a plan before it executes, but the key of a TPC-C order holds a number that
//! is read from the district's record. So the plan names the district, the *parent record* of all its orders: a lock on
//! the parent is a lock on all of its children, present or absent (`docs/protocols/calvin.md`, C32). Under an exclusive
//! lock a fragment [with children](crate::Planner::with_children) may insert, change and delete children of its record,
//! under a shared one it may read them.
//!
//! **No phantoms.** A child record has exactly one parent, which is written in its key, and lies in a database
//! ([`Db::children`](crate::Db::children)) that no fragment can name. The only way to it is a fragment on its parent,
//! which holds the parent's lock: of two transactions that touch children of one parent, one of them changing them, one
//! waits for the whole of the other. Fragments over the whole table are the exception, and those run alone.
//!
//! A change of a child is no change of its parent: the parent's version does not move.
//!
//! A child record is named by its parent and a suffix, and never expires. It stays when its parent is deleted, and an
//! absent record may have children as well as any.

use std::fmt;

use smallvec::SmallVec;

use crate::cell::{Cell, CellMut};
use crate::key::MAX_KEY_LEN;

/// The child records of a fragment's record.
///
/// The methods panic on a mistake of the procedure, the same on every replica, which aborts the transaction if the
/// fragment is abortable: a suffix that makes the key longer than a key may be, a change under
/// [`Access::Read`](crate::Access::Read), an expiry.
pub trait Children {
    /// The child record with this suffix, as the transaction sees it.
    fn read(&self, suffix: &[u8]) -> &Cell;

    /// Prefetches the child record with this suffix.
    fn expect(&self, _suffix: &[u8]) {}

    /// Changes the child record with this suffix. Only under [`Access::Write`](crate::Access::Write).
    fn edit(&mut self, suffix: &[u8], change: &mut dyn FnMut(&mut CellMut<'_>));
}

impl fmt::Debug for dyn Children + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Children")
    }
}

/// The panic of [`Children::edit`] under a shared lock.
pub const READ_ONLY_PARENT: &str = "a child record of one that is only read was to be changed";

/// The key of a child record: the parent's, the suffix, and the suffix's length as two bytes, so that it can be
/// taken apart.
pub type ChildKey = SmallVec<[u8; 64]>;

/// Composes the key of a child record.
///
/// # Panics
/// If it would be longer than [`MAX_KEY_LEN`]: a mistake of the procedure.
#[inline]
pub fn child_key(parent: &[u8], suffix: &[u8]) -> ChildKey {
    let len = parent.len() + suffix.len() + 2;
    assert!(len <= MAX_KEY_LEN, "the key of a child record would be {len} bytes long");
    let mut key = ChildKey::with_capacity(len);
    key.extend_from_slice(parent);
    key.extend_from_slice(suffix);
    // It fits: it is less than the longest key, which is 2^16 bytes.
    key.extend_from_slice(&(suffix.len() as u16).to_le_bytes());
    key
}

/// Takes the key of a child record apart, as a scan of [`Db::children`](crate::Db::children) finds it: the parent's key
/// and the suffix. `None` for bytes that are no such key.
#[inline]
pub fn split_child_key(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let (names, len) = key.split_last_chunk::<2>()?;
    names.split_at_checked(names.len().checked_sub(usize::from(u16::from_le_bytes(*len)))?)
}

/// Runs the change of a child record and holds it to the rule that it does not expire.
///
/// # Panics
/// If it has been given an expiry: a mistake of the procedure.
#[inline]
pub fn change_child(mut cell: CellMut<'_>, change: &mut dyn FnMut(&mut CellMut<'_>)) {
    change(&mut cell);
    assert!(cell.expires_at.is_never(), "a child record was given an expiry");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_composed_and_taken_apart_without_doubt() {
        let mut seen = std::collections::BTreeSet::new();
        for parent in [&b""[..], b"a", b"ab", b"a\x01\0", b"{t}:7"] {
            for suffix in
                [&b""[..], b"b", b"\x01\0", b"a long suffix that does not lie in the small vector's line"]
            {
                let key = child_key(parent, suffix);
                assert_eq!(split_child_key(&key), Some((parent, suffix)));
                assert!(seen.insert(key), "two names with one key");
            }
        }
        for no_key in [&b""[..], b"\0", b"ab\x03\0"] {
            assert_eq!(split_child_key(no_key), None);
        }
    }

    #[test]
    fn the_longest_key_is_a_key_and_the_next_is_a_mistake() {
        let parent = vec![1; 10];
        let key = child_key(&parent, &vec![2; MAX_KEY_LEN - 12]);
        assert_eq!(key.len(), MAX_KEY_LEN);
        assert_eq!(
            split_child_key(&key).map(|(parent, suffix)| (parent.len(), suffix.len())),
            Some((10, MAX_KEY_LEN - 12))
        );
        assert!(std::panic::catch_unwind(|| child_key(&parent, &vec![2; MAX_KEY_LEN - 11])).is_err());
    }
}
