//! The files of the values of a node's shards: `values-`, the shard's number, `-`, the file's number.

use ordain_role::{Directory, DiskError, DiskOp};

const VALUES: &str = "values-";

/// The beginning of the names of a shard's files of values.
pub fn values_prefix(shard: usize) -> String {
    format!("{VALUES}{shard}-")
}

fn is_of_values(file: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = file.strip_prefix(VALUES).and_then(|rest| rest.split_once('-'));
    numbers.is_some_and(|(shard, number)| is_number(shard) && is_number(number))
}

/// Removes the values that an earlier life of a node had on disk: they are in its checkpoint and its log.
///
/// # Errors
/// The disk refuses.
pub fn discard_values(directory: &mut dyn Directory) -> Result<(), DiskError> {
    for (file, _) in directory.list()?.into_iter().filter(|(file, _)| is_of_values(file)) {
        directory.apply(&DiskOp::Remove { file })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_files_of_values_are_told_from_others() {
        assert!(is_of_values(&format!("{}12", values_prefix(3))));
        for other in ["values-3", "values-3-", "values--1", "values-3-1x", "values-x-1", "old-values-3-1"] {
            assert!(!is_of_values(other), "{other}");
        }
    }
}
