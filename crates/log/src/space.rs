//! Several logs in one directory: each sees the files whose names begin with its prefix, by the rest of their names.

use ordain_role::{Directory, DiskError, DiskOp, DiskRequest};

/// The part of a directory that belongs to one prefix.
pub struct Space<'a> {
    directory: &'a mut dyn Directory,
    prefix: &'static str,
}

impl<'a> Space<'a> {
    /// The files of a directory that begin with `prefix`.
    pub fn new(directory: &'a mut dyn Directory, prefix: &'static str) -> Space<'a> {
        Space { directory, prefix }
    }
}

impl std::fmt::Debug for Space<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Space").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Directory for Space<'_> {
    fn list(&self) -> Result<Vec<(String, u64)>, DiskError> {
        let mine = |(file, len): (String, u64)| Some((file.strip_prefix(self.prefix)?.to_owned(), len));
        Ok(self.directory.list()?.into_iter().filter_map(mine).collect())
    }

    fn read(&self, file: &str, offset: u64, len: usize) -> Result<Vec<u8>, DiskError> {
        self.directory.read(&format!("{}{file}", self.prefix), offset, len)
    }

    fn apply(&mut self, op: &DiskOp) -> Result<(), DiskError> {
        let mut op = op.clone();
        rename(&mut op, self.prefix);
        self.directory.apply(&op)
    }
}

/// A request of a writer that was opened in a [`Space`], as the directory itself takes it.
pub fn in_space(mut request: DiskRequest, prefix: &str) -> DiskRequest {
    request.ops.iter_mut().for_each(|op| rename(op, prefix));
    request
}

fn rename(op: &mut DiskOp, prefix: &str) {
    op.names_mut().for_each(|file| file.insert_str(0, prefix));
}

#[cfg(test)]
mod tests {
    use ordain_model::Epoch;
    use ordain_role::Bytes;

    use super::*;
    use crate::{LogConfig, LogWriter, MemoryDirectory, carry_out};

    #[test]
    fn two_logs_in_a_directory_do_not_see_each_other() {
        let mut directory = MemoryDirectory::new();
        let config = || LogConfig::new(*b"both");
        for round in 1..4u64 {
            for (prefix, byte) in [("", 1u8), ("inbox-", 2)] {
                let mut seen = Vec::new();
                let mut space = Space::new(&mut directory, prefix);
                let (mut writer, _) = LogWriter::open(&mut space, config(), |entry| {
                    seen.push(entry.payload);
                    Ok(())
                })
                .unwrap();
                assert_eq!(seen, vec![vec![byte]; round as usize - 1]);
                writer.append(Epoch(round), 0, vec![Bytes::from(vec![byte])]).unwrap();
                while let Some(request) = writer.next_request() {
                    let done = carry_out(&mut directory, &in_space(request, prefix));
                    writer.done(&done);
                }
                assert_eq!(writer.durable(), Epoch(round));
            }
        }
        let receive_journals =
            directory.list().unwrap().iter().filter(|(file, _)| file.starts_with("inbox-")).count();
        assert_eq!((receive_journals, directory.list().unwrap().len()), (1, 2));
    }
}
