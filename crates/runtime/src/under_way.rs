//! What the shards of a node are executing, in a file that outlives the process: should a transaction end the process, the
//! file names it.
//!
//! The file is mapped into memory and shared with the system, which keeps what was stored there when the process dies, by
//! whatever signal. Storing costs no system call. A loss of power may take it; then it says less, never anything wrong
//! about what is in the log.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use ordain_model::layout::MAX_SHARDS;
use ordain_role::UnderWay;
use rustix::mm::{MapFlags, ProtFlags, mmap};

/// The name of the file in a data directory.
pub const FILE: &str = "under-way";

const MAGIC: [u8; 8] = *b"ORDAINUW";
/// Shards are on different cores, so each has a cache line of its own: first what it executes itself, then what the work
/// executes that it gave away. The first line holds the magic.
const LINE: usize = 64;
const LEN: usize = (LINE * (MAX_SHARDS + 1)).next_multiple_of(4096);

const fn place_of(shard: usize) -> usize {
    LINE * (shard + 1)
}

/// Bytes from the one to the other.
const WORK: usize = 8;
/// Bytes to what this process has executed last, which says nothing to the next one.
const LATEST: usize = 16;

/// Shards that are executing something, with the number of the transaction.
pub type Executing = Vec<(usize, u64)>;

/// Opens or makes the file of a data directory. Gives the place of every shard that there may be, and what stands there by
/// shard, where that is not 0: what the process before this one was executing when it ended.
///
/// The file stays mapped for as long as this process lives.
///
/// # Errors
/// The system's; the node can do without.
pub fn open(directory: &Path) -> io::Result<(Vec<UnderWay>, Executing)> {
    let path = directory.join(FILE);
    let options = |new| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(new).mode(0o600);
        options
    };
    let (file, former) = match options(false).open(&path) {
        Ok(file) => {
            let former = read_from(&file)?;
            (file, former)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => (options(true).open(&path)?, Vec::new()),
        Err(error) => return Err(error),
    };
    let mut head = [0; MAGIC.len()];
    let is_whole = file.metadata()?.len() >= LEN as u64;
    if !is_whole || file.read_exact_at(&mut head, 0).is_err() || head != MAGIC {
        // Every page is written, so that no store needs space that a full disk does not have.
        let mut bytes = vec![0; LEN];
        bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
        file.write_all_at(&bytes, 0)?;
    }
    let (flags, access) = (MapFlags::SHARED, ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: the address is the system's choice, so no memory of this process is replaced; `LEN` is a multiple of the page
    // and not 0. The mapping is never removed.
    let mapped = unsafe { mmap(std::ptr::null_mut(), LEN, access, flags, &file, 0) }?;
    let places = (0..MAX_SHARDS).map(|shard| {
        let at = |offset: usize| -> &'static AtomicU64 {
            // SAFETY: a shard's place, with `WORK` or `LATEST` added or not, lies within the `LEN` bytes that were mapped, which stay mapped
            // for ever, and the file is at least as long and is not made shorter by any process that respects the directory's
            // lock. It is aligned to 8, as the mapping is to a page, a line has 64 bytes and `WORK` and `LATEST` are multiples of 8. This process
            // accesses it as an atomic only; the other processes that may have the file open read it as a file.
            unsafe { AtomicU64::from_ptr(mapped.byte_add(offset).cast()) }
        };
        let latest = at(place_of(shard) + LATEST);
        latest.store(0, Ordering::Relaxed);
        UnderWay::at(at(place_of(shard)), at(place_of(shard) + WORK)).keeping(latest)
    });
    Ok((places.collect(), former))
}

/// The transactions that the shards of a node were executing when its process ended, by shard; nothing of those that executed nothing.
///
/// # Errors
/// The system's. A directory without such a file is none.
pub fn read(directory: &Path) -> io::Result<Executing> {
    match File::open(directory.join(FILE)) {
        Ok(file) => read_from(&file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn read_from(file: &File) -> io::Result<Executing> {
    let mut bytes = vec![0; LEN];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) if bytes.starts_with(&MAGIC) => {}
        // One that was being made when the machine stopped.
        Ok(()) => return Ok(Vec::new()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Vec::new()),
        Err(error) => return Err(error),
    }
    let number = |(shard, at): (usize, usize)| {
        let word = bytes.get(at..at + 8)?;
        Some((shard, u64::from_le_bytes(word.try_into().ok()?))).filter(|(_, number)| *number != 0)
    };
    let words = (0..MAX_SHARDS).flat_map(|shard| [0, WORK].map(|word| (shard, place_of(shard) + word)));
    Ok(words.filter_map(number).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Against a list of numbers: the file says what was stored last at each place, and nothing else.
        #[test]
        fn the_file_says_what_was_stored_last(
            stores in prop::collection::vec((0..MAX_SHARDS, any::<bool>(), any::<u64>()), 0..200),
        ) {
            let directory = tempfile::tempdir().unwrap();
            let (places, former) = open(directory.path()).unwrap();
            prop_assert!(former.is_empty() && places.len() == MAX_SHARDS);
            let mut model = vec![(0, 0); MAX_SHARDS];
            for (shard, is_work, number) in stores {
                let (place, modelled) = match is_work {
                    true => (places[shard].of_work(), &mut model[shard].1),
                    false => (places[shard], &mut model[shard].0),
                };
                place.begin(number);
                *modelled = number;
            }
            let both = model.into_iter().enumerate().flat_map(|(shard, (own, work))| [(shard, own), (shard, work)]);
            let expected: Vec<(usize, u64)> = both.filter(|(_, n)| *n != 0).collect();
            prop_assert_eq!(read(directory.path()).unwrap(), expected.clone());
            // The next process reads it, and reports it.
            let (places, former) = open(directory.path()).unwrap();
            prop_assert_eq!(former, expected);
            places.iter().for_each(|place| [*place, place.of_work()].iter().for_each(|place| place.end()));
            prop_assert_eq!(read(directory.path()).unwrap(), vec![]);
        }
    }

    #[test]
    fn shards_on_other_threads_do_not_disturb_each_other() {
        let directory = tempfile::tempdir().unwrap();
        let (places, _) = open(directory.path()).unwrap();
        std::thread::scope(|scope| {
            for (shard, place) in places.iter().enumerate().take(8) {
                scope.spawn(move || {
                    for n in 1..=10_000 {
                        place.begin(n * 100 + shard as u64);
                    }
                });
            }
        });
        let expected: Vec<(usize, u64)> = (0..8).map(|shard| (shard, 1_000_000 + shard as u64)).collect();
        assert_eq!(read(directory.path()).unwrap(), expected);
        places.iter().for_each(|place| place.end());
        assert_eq!(read(directory.path()).unwrap(), []);
    }

    #[test]
    fn a_file_that_was_not_finished_says_nothing_and_is_made_whole() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(read(directory.path()).unwrap(), []);
        for bytes in [&b""[..], &b"ORDAINUW and no more"[..], &[7; LEN][..]] {
            std::fs::write(directory.path().join(FILE), bytes).unwrap();
            assert_eq!(read(directory.path()).unwrap(), []);
            let (places, former) = open(directory.path()).unwrap();
            assert_eq!(former, []);
            places[1].begin(9);
            assert_eq!(read(directory.path()).unwrap(), [(1, 9)]);
        }
    }
}
