//! Lengths that appends were answered: each says where in its list the append stands, whatever was read.

use std::collections::BTreeMap;

use super::{Violation, ViolationKind};

/// The answer to an append: the number of values in the list with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    /// The key of the list.
    pub list: u64,
    /// The value.
    pub value: u64,
    /// The number of values in the list.
    pub length: u64,
}

/// Checks that each value stands where the answer to its append has put it, by the lists at the end.
///
/// # Errors
/// [`ViolationKind::WrongAnswer`].
pub fn check(lengths: &[Length], lists: &BTreeMap<u64, Vec<u64>>) -> Result<(), Violation> {
    for Length { list, value, length } in lengths {
        let place = usize::try_from(*length).unwrap_or_default().checked_sub(1);
        let there = lists.get(list).zip(place).and_then(|(values, place)| values.get(place));
        if there != Some(value) {
            let text = format!(
                "list {list} was {length} long with the append of {value}, and has {there:?} there in the end"
            );
            return Err(Violation::new(ViolationKind::WrongAnswer, text));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_the_place_of_the_value() {
        let lists = [(1, vec![7, 8])].into();
        let verdict = |list, value, length| {
            check(&[Length { list, value, length }], &lists).map_err(|violation| violation.kind)
        };
        assert_eq!(verdict(1, 8, 2), Ok(()));
        for (list, value, length) in [(1, 8, 1), (1, 8, 3), (1, 8, 0), (2, 8, 2)] {
            assert_eq!(verdict(list, value, length), Err(ViolationKind::WrongAnswer));
        }
    }
}
