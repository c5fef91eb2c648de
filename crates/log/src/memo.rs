//! A few bytes beside a log that are replaced as a whole: what must be known before the log can be read.
//!
//! A file of two sectors, written in turn. A sector is written whole or not at all, and one that is damaged all the same
//! leaves what the other says; the larger number counts. The file is made at its full length when it is opened, so that
//! what a role writes later needs no space.

use ordain_role::{Bytes, Directory, DiskError, DiskOp};

use crate::config::LogError;

const SECTOR: u64 = 512;
const LEN: u64 = 2 * SECTOR;
const MAGIC: [u8; 8] = *b"ORDAINMM";
/// Magic, number, length and the identity's checksum stand before the bytes, the checksum of all after them.
const HEAD: usize = 22;

/// The most bytes that a memo can hold.
pub const MEMO_MAX: usize = SECTOR as usize - HEAD - 4;

/// A memo that can be written.
#[derive(Debug)]
pub struct Memo {
    file: &'static str,
    identity: Vec<u8>,
    /// The number of the sector that counts; 0 if nothing was written yet.
    number: u64,
}

impl Memo {
    /// Reads the content of a directory's memo; `None` if it was never written. Changes nothing. Without an identity
    /// any owner's memo is read.
    ///
    /// # Errors
    /// The disk's, and [`LogError::Damaged`] if there is a content that cannot be read.
    pub fn read(
        directory: &dyn Directory,
        file: &str,
        identity: Option<&[u8]>,
    ) -> Result<Option<Vec<u8>>, LogError> {
        Ok(latest(directory, file, identity)?.map(|(_, bytes)| bytes))
    }

    /// Opens the memo of this name, or makes it, and answers its content.
    ///
    /// # Errors
    /// As [`Memo::read`].
    pub fn open(
        directory: &mut dyn Directory,
        file: &'static str,
        identity: &[u8],
    ) -> Result<(Memo, Option<Vec<u8>>), LogError> {
        let found = directory.list()?.into_iter().find(|(name, _)| name == file);
        let name = || file.to_owned();
        let ops = match found {
            None => vec![DiskOp::Create { file: name(), len: LEN }, DiskOp::Sync { file: name() }],
            Some((_, len)) if len < LEN => {
                vec![DiskOp::SetLen { file: name(), len: LEN }, DiskOp::Sync { file: name() }]
            }
            Some(_) => Vec::new(),
        };
        // A name that is there may still be one that a crash takes away.
        ops.iter().chain([&DiskOp::SyncDirectory]).try_for_each(|op| directory.apply(op))?;
        let latest = latest(directory, file, Some(identity))?;
        let number = latest.as_ref().map_or(0, |(number, _)| *number);
        Ok((Memo { file, identity: identity.to_vec(), number }, latest.map(|(_, bytes)| bytes)))
    }

    /// The disk operations, for one request, that replace the content. `None` if it is too long. Until
    /// [`Memo::written`] the other sector counts, whatever becomes of the request.
    pub fn write(&self, bytes: &[u8]) -> Option<Vec<DiskOp>> {
        let number = self.number + 1;
        let sector = encode(number, &self.identity, bytes)?;
        let (file, offset) = (self.file.to_owned(), number % 2 * SECTOR);
        let write = DiskOp::Write { file: file.clone(), offset, data: vec![Bytes::from(sector)] };
        Some(vec![write, DiskOp::Sync { file }])
    }

    /// Notes that the request is done.
    pub fn written(&mut self) {
        self.number += 1;
    }
}

/// The one that counts, and its number.
fn latest(
    directory: &dyn Directory,
    file: &str,
    identity: Option<&[u8]>,
) -> Result<Option<(u64, Vec<u8>)>, LogError> {
    if !directory.list()?.iter().any(|(name, _)| name == file) {
        return Ok(None);
    }
    let sectors: Result<Vec<Vec<u8>>, DiskError> =
        [0, SECTOR].into_iter().map(|offset| directory.read(file, offset, SECTOR as usize)).collect();
    let sectors = sectors?;
    // The first attempt to write may have come to nothing.
    let is_new = sectors.iter().any(|sector| sector.iter().all(|byte| *byte == 0));
    let valid = sectors.iter().filter_map(|sector| decode(sector, identity));
    match valid.max_by_key(|(number, _)| *number) {
        None if !is_new => {
            let reason = "neither of its two sectors can be read".to_owned();
            Err(LogError::Damaged { file: file.to_owned(), offset: 0, reason })
        }
        latest => Ok(latest),
    }
}

fn encode(number: u64, identity: &[u8], bytes: &[u8]) -> Option<Vec<u8>> {
    if bytes.len() > MEMO_MAX {
        return None;
    }
    let mut sector = Vec::with_capacity(SECTOR as usize);
    sector.extend_from_slice(&MAGIC);
    sector.extend_from_slice(&number.to_le_bytes());
    sector.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
    // A checksum apart from the other: a reader that does not know the owner can still tell damage.
    sector.extend_from_slice(&crc32c::crc32c(identity).to_le_bytes());
    sector.extend_from_slice(bytes);
    sector.resize(SECTOR as usize - 4, 0);
    let crc = crc32c::crc32c(&sector);
    sector.extend_from_slice(&crc.to_le_bytes());
    Some(sector)
}

fn decode(sector: &[u8], identity: Option<&[u8]>) -> Option<(u64, Vec<u8>)> {
    let (said, crc) = sector.split_last_chunk::<4>()?;
    let (magic, rest) = said.split_first_chunk::<8>()?;
    let (number, rest) = rest.split_first_chunk::<8>()?;
    let (len, rest) = rest.split_first_chunk::<2>()?;
    let (owner, rest) = rest.split_first_chunk::<4>()?;
    let is_whole = *magic == MAGIC && crc32c::crc32c(said) == u32::from_le_bytes(*crc);
    let is_ours = identity.is_none_or(|identity| crc32c::crc32c(identity) == u32::from_le_bytes(*owner));
    let bytes = rest.get(..usize::from(u16::from_le_bytes(*len)))?;
    (is_whole && is_ours).then(|| (u64::from_le_bytes(*number), bytes.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDirectory;

    const FILE: &str = "memo";

    fn open(disk: &mut MemoryDirectory) -> (Memo, Option<Vec<u8>>) {
        Memo::open(disk, FILE, b"me").unwrap()
    }

    fn write(disk: &mut MemoryDirectory, memo: &mut Memo, bytes: &[u8]) {
        memo.write(bytes).unwrap().iter().for_each(|op| disk.apply(op).unwrap());
        memo.written();
    }

    #[test]
    fn a_memo_says_what_was_written_last() {
        let mut disk = MemoryDirectory::new();
        assert_eq!(open(&mut disk).1, None);
        for round in 1..5u8 {
            let (mut memo, _) = open(&mut disk);
            write(&mut disk, &mut memo, &[round; 9]);
            assert_eq!(open(&mut disk).1, Some(vec![round; 9]));
            assert_eq!(Memo::read(&disk, FILE, None).unwrap(), Some(vec![round; 9]));
        }
        assert_eq!(open(&mut disk).0.write(&[0; MEMO_MAX + 1]).map(|_| ()), None);
        assert_eq!(disk.list().unwrap(), [(FILE.to_owned(), LEN)]);
    }

    #[test]
    fn wherever_the_machine_stops_it_says_what_it_said_or_what_it_was_to_say() {
        let mut seen = [0; 3];
        for seed in 0..200u64 {
            let mut disk = MemoryDirectory::new();
            let mut state = seed;
            let mut random = move || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                state >> 33
            };
            let (mut memo, _) = open(&mut disk);
            let first = memo.write(b"first").unwrap();
            memo.written();
            let second = memo.write(b"second").unwrap();
            let done = (random() % 5) as usize;
            first.iter().chain(&second).take(done).for_each(|op| disk.apply(op).unwrap());
            disk.crash(&mut random);
            let said = open(&mut disk).1;
            let which = match said.as_deref() {
                None => 0,
                Some(b"first") => 1,
                Some(b"second") => 2,
                other => panic!("it says {other:?}"),
            };
            assert!((done / 2..=done.div_ceil(2)).contains(&which), "{done} operations: {said:?}");
            seen[which] += 1;
        }
        assert!(seen.iter().all(|count| *count > 10), "{seen:?}");
    }

    #[test]
    fn an_attempt_that_finds_the_disk_full_takes_nothing_away() {
        let mut disk = MemoryDirectory::new();
        let (mut memo, _) = open(&mut disk);
        for said in [None, Some(b"said")] {
            said.iter().for_each(|said| write(&mut disk, &mut memo, *said));
            for _ in 0..3 {
                let ops = memo.write(b"tried").unwrap();
                // Half of it.
                let DiskOp::Write { file, offset, data } = &ops[0] else { panic!("{ops:?}") };
                let half = vec![Bytes::from(data[0][..256].to_vec())];
                disk.apply(&DiskOp::Write { file: file.clone(), offset: *offset, data: half }).unwrap();
                assert_eq!(Memo::read(&disk, FILE, None).unwrap().as_deref(), said.map(|said| &said[..]));
            }
        }
        write(&mut disk, &mut memo, b"done");
        assert_eq!(open(&mut disk).1.unwrap(), b"done");
    }

    #[test]
    fn damage_to_one_sector_leaves_the_other_and_to_both_is_refused() {
        let mut disk = MemoryDirectory::new();
        let (mut memo, _) = open(&mut disk);
        write(&mut disk, &mut memo, b"old");
        write(&mut disk, &mut memo, b"new");
        for bit in 0..SECTOR * 8 {
            let mut damaged = disk.clone();
            damaged.damage(FILE, bit / 8, 1 << (bit % 8));
            assert_eq!(open(&mut damaged).1.unwrap(), b"old", "bit {bit}");
            damaged.damage(FILE, SECTOR + bit / 8, 1 << (bit % 8));
            assert!(matches!(Memo::open(&mut damaged, FILE, b"me"), Err(LogError::Damaged { .. })));
        }
        assert!(matches!(Memo::open(&mut disk, FILE, b"you"), Err(LogError::Damaged { .. })));
    }
}
