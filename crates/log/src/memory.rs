//! A directory in memory that forgets at a crash what was not synced. For tests and for the simulator.
//!
//! What it models, as pessimistically as real file systems allow:
//! - **Data.** A write is seen by reads at once. At a crash, each 512-byte sector written since the file's last
//!   `Sync` is, independently of all others, as it was after any one of those writes or before all of them. A
//!   sector is never torn inside.
//! - **Length.** At a crash the file has any of the lengths it had since its last `Sync`. Bytes beyond are gone.
//! - **Names.** A `Create`, `Rename` or `Remove` holds for certain only after `SyncDirectory`; syncing the file is not
//!   enough. At a crash each of those since then happened or did not, independently, in their order: a new file
//!   may vanish and a removed one may return, with the data that was synced to it. A renamed file has one of its names if
//!   its creation happened.
//! - **A failed `Sync`** (see [`MemoryDirectory::fail_syncs`]) forgets that anything needed writing: reads still
//!   show it, a later `Sync` succeeds without having written it, and a crash loses it.
//! - **A full disk.** A `Write` that runs out of space has written half of its bytes, and of what the file had
//!   before only whole sectors: space is given out in blocks. A `Create` leaves an empty file behind.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_role::{Directory, DiskError, DiskOp};

const SECTOR: u64 = 512;

type Sector = Arc<[u8; SECTOR as usize]>;

/// The directory. A clone is a copy of the whole disk.
#[derive(Clone, Debug, Default)]
pub struct MemoryDirectory {
    /// Every file ever made that a name, or a change that a crash may undo, still leads to.
    files: BTreeMap<u64, File>,
    next_file: u64,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    /// The changes of names since the last sync.
    changes: Vec<Change>,
    ops: u64,
    capacity: Option<u64>,
    full_from: Option<u64>,
    read_only: bool,
    failing_syncs: bool,
}

#[derive(Clone, Debug)]
enum Change {
    Created(String, u64),
    Renamed(String, String),
    Removed(String),
}

#[derive(Clone, Debug, Default)]
struct Image {
    len: u64,
    /// Sectors that were written; the others are zero.
    sectors: BTreeMap<u64, Sector>,
}

#[derive(Clone, Debug, Default)]
struct File {
    live: Image,
    durable: Image,
    /// The contents of each sector after each write since the last sync; `None` is zeros.
    dirty: BTreeMap<u64, Vec<Option<Sector>>>,
    /// The lengths since the last sync.
    lens: Vec<u64>,
}

impl File {
    fn write(&mut self, mut offset: u64, mut data: &[u8]) {
        while !data.is_empty() {
            let (number, at) = (offset / SECTOR, (offset % SECTOR) as usize);
            let (now, rest) = data.split_at(data.len().min(SECTOR as usize - at));
            let sector = self.live.sectors.entry(number).or_insert_with(|| Arc::new([0; SECTOR as usize]));
            Arc::make_mut(sector)[at..at + now.len()].copy_from_slice(now);
            self.dirty.entry(number).or_default().push(Some(Arc::clone(sector)));
            offset += now.len() as u64;
            data = rest;
        }
        if offset > self.live.len {
            self.live.len = offset;
            self.lens.push(offset);
        }
    }

    fn set_len(&mut self, len: u64) {
        let gone: Vec<u64> = self.live.sectors.range(len / SECTOR..).map(|(number, _)| *number).collect();
        self.live.cut(len);
        for number in gone {
            let sector = self.live.sectors.get(&number).cloned();
            self.dirty.entry(number).or_default().push(sector);
        }
        self.live.len = len;
        self.lens.push(len);
    }

    fn sync(&mut self) {
        self.durable.len = self.live.len;
        for number in std::mem::take(&mut self.dirty).into_keys() {
            self.durable.set(number, self.live.sectors.get(&number).cloned());
        }
        self.lens.clear();
    }

    fn forget(&mut self) {
        self.dirty.clear();
        self.lens.clear();
    }

    fn crash(&mut self, random: &mut impl FnMut() -> u64) {
        for (number, mut versions) in std::mem::take(&mut self.dirty) {
            let pick = (random() % (versions.len() as u64 + 1)) as usize;
            if pick > 0 {
                self.durable.set(number, versions.swap_remove(pick - 1));
            }
        }
        if !self.lens.is_empty() {
            let pick = (random() % (self.lens.len() as u64 + 1)) as usize;
            if pick > 0 {
                self.durable.len = self.lens[pick - 1];
            }
            self.lens.clear();
        }
        self.durable.cut(self.durable.len);
        self.live = self.durable.clone();
    }
}

impl Image {
    fn set(&mut self, number: u64, sector: Option<Sector>) {
        match sector {
            Some(sector) => self.sectors.insert(number, sector),
            None => self.sectors.remove(&number),
        };
    }

    /// Zeroes everything from `len` on.
    fn cut(&mut self, len: u64) {
        let mut beyond = self.sectors.split_off(&(len / SECTOR));
        let keep = (len % SECTOR) as usize;
        if keep > 0
            && let Some(mut last) = beyond.remove(&(len / SECTOR))
        {
            Arc::make_mut(&mut last)[keep..].fill(0);
            self.sectors.insert(len / SECTOR, last);
        }
    }

    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let end = self.len.min(offset.saturating_add(len as u64));
        let mut out = vec![0; end.saturating_sub(offset) as usize];
        if out.is_empty() {
            return out;
        }
        for (number, sector) in self.sectors.range(offset / SECTOR..end.div_ceil(SECTOR)) {
            let start = number * SECTOR;
            let from = offset.max(start);
            let to = end.min(start + SECTOR);
            out[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&sector[(from - start) as usize..(to - start) as usize]);
        }
        out
    }
}

impl MemoryDirectory {
    /// An empty directory on an endless disk.
    pub fn new() -> MemoryDirectory {
        MemoryDirectory::default()
    }

    /// The number of operations so far, failed ones included. A simulator that crashes in the middle of a request
    /// stops applying its operations when this reaches a number.
    pub fn ops(&self) -> u64 {
        self.ops
    }

    /// Limits the bytes of all files together; `None` for no limit.
    pub fn set_capacity(&mut self, bytes: Option<u64>) {
        self.capacity = bytes;
    }

    /// Fails every operation that needs space, from the one with this number on (the first is 0). Writes into reserved
    /// space fail too, as on file systems that copy on write. `None` ends it.
    pub fn set_full_from(&mut self, op: Option<u64>) {
        self.full_from = op;
    }

    /// Refuses everything but reading, or takes it again.
    pub fn set_read_only(&mut self, read_only: bool) {
        self.read_only = read_only;
    }

    /// Fails every `Sync` and `SyncDirectory`, or none.
    pub fn fail_syncs(&mut self, failing: bool) {
        self.failing_syncs = failing;
    }

    /// Flips the bits of `mask` in one byte, on the disk itself; what decay does. Nothing happens beyond the
    /// file's end.
    pub fn damage(&mut self, file: &str, offset: u64, mask: u8) {
        let Some(file) = self.names.get(file).and_then(|id| self.files.get_mut(id)) else { return };
        for image in [&mut file.live, &mut file.durable] {
            if offset < image.len {
                let sector =
                    image.sectors.entry(offset / SECTOR).or_insert_with(|| Arc::new([0; SECTOR as usize]));
                Arc::make_mut(sector)[(offset % SECTOR) as usize] ^= mask;
            }
        }
    }

    /// The machine loses power and comes back: only what is durable is sure to be there; of the rest, what
    /// `random` decides.
    pub fn crash(&mut self, mut random: impl FnMut() -> u64) {
        let names = &mut self.durable_names;
        for change in std::mem::take(&mut self.changes) {
            if random().is_multiple_of(2) {
                match change {
                    Change::Created(name, file) => names.insert(name, file),
                    Change::Renamed(name, to) => names.remove(&name).and_then(|file| names.insert(to, file)),
                    Change::Removed(name) => names.remove(&name),
                };
            }
        }
        self.names = self.durable_names.clone();
        self.forget_unnamed();
        for file in self.files.values_mut() {
            file.crash(&mut random);
        }
    }

    fn forget_unnamed(&mut self) {
        let named =
            |id: &u64| self.names.values().chain(self.durable_names.values()).any(|named| named == id);
        let gone: Vec<u64> = self.files.keys().copied().filter(|id| !named(id)).collect();
        for id in gone {
            self.files.remove(&id);
        }
    }

    fn live(&mut self, file: &str) -> Result<&mut File, DiskError> {
        self.names.get(file).and_then(|id| self.files.get_mut(id)).ok_or_else(|| io(file, "no such file"))
    }

    fn is_full(&self, more: u64) -> bool {
        let used: u64 =
            self.names.values().filter_map(|id| self.files.get(id)).map(|file| file.live.len).sum();
        self.full_from.is_some_and(|from| self.ops > from)
            || self.capacity.is_some_and(|capacity| more > 0 && used + more > capacity)
    }

    fn len(&self, file: &str) -> u64 {
        self.names.get(file).and_then(|id| self.files.get(id)).map_or(0, |file| file.live.len)
    }
}

fn io(file: &str, reason: &str) -> DiskError {
    DiskError::Io { file: file.to_owned(), reason: reason.to_owned() }
}

/// The bytes of a write that a disk still takes when it becomes full in its midst.
fn half(offset: u64, bytes: u64, len: u64) -> u64 {
    let end = offset + bytes / 2;
    let torn = if end < len { end % SECTOR } else { 0 };
    (bytes / 2).saturating_sub(torn)
}

/// The name of the directory itself in errors.
const ITSELF: &str = ".";

impl Directory for MemoryDirectory {
    fn list(&self) -> Result<Vec<(String, u64)>, DiskError> {
        Ok(self.names.keys().map(|name| (name.clone(), self.len(name))).collect())
    }

    fn read(&self, file: &str, offset: u64, len: usize) -> Result<Vec<u8>, DiskError> {
        let found = self.names.get(file).and_then(|id| self.files.get(id));
        Ok(found.ok_or_else(|| io(file, "no such file"))?.live.read(offset, len))
    }

    fn apply(&mut self, op: &DiskOp) -> Result<(), DiskError> {
        self.ops += 1;
        let file = match op {
            DiskOp::Create { file, .. }
            | DiskOp::Write { file, .. }
            | DiskOp::Sync { file }
            | DiskOp::SetLen { file, .. }
            | DiskOp::Rename { file, .. }
            | DiskOp::Remove { file }
            | DiskOp::Read { file, .. } => file.as_str(),
            DiskOp::SyncDirectory => ITSELF,
        };
        if let DiskOp::Read { offset, len, into, .. } = op {
            into.put(self.read(file, *offset, *len)?);
            return Ok(());
        }
        if self.read_only {
            return Err(DiskError::ReadOnly { file: file.to_owned() });
        }
        let full = || Err(DiskError::Full { file: file.to_owned() });
        match op {
            DiskOp::Create { len, .. } => {
                if self.names.contains_key(file) {
                    return Err(io(file, "file exists"));
                }
                let is_full = self.is_full(*len);
                let mut created = File::default();
                created.set_len(if is_full { 0 } else { *len });
                self.files.insert(self.next_file, created);
                self.names.insert(file.to_owned(), self.next_file);
                self.changes.push(Change::Created(file.to_owned(), self.next_file));
                self.next_file += 1;
                if is_full { full() } else { Ok(()) }
            }
            DiskOp::Write { offset, data, .. } => {
                let bytes: u64 = data.iter().map(|part| part.len() as u64).sum();
                let is_full = self.is_full((offset + bytes).saturating_sub(self.len(file)));
                let mut left = if is_full { half(*offset, bytes, self.len(file)) } else { bytes };
                let target = self.live(file)?;
                let mut at = *offset;
                for part in data {
                    let now = part.len().min(left as usize);
                    target.write(at, &part[..now]);
                    at += now as u64;
                    left -= now as u64;
                }
                if is_full { full() } else { Ok(()) }
            }
            DiskOp::Sync { .. } => {
                let failing = self.failing_syncs;
                let target = self.live(file)?;
                if failing {
                    target.forget();
                    return Err(io(file, "sync failed"));
                }
                target.sync();
                Ok(())
            }
            DiskOp::SetLen { len, .. } => {
                if self.is_full(len.saturating_sub(self.len(file))) {
                    return full();
                }
                self.live(file)?.set_len(*len);
                Ok(())
            }
            DiskOp::Rename { to, .. } => {
                if self.is_full(0) {
                    return full();
                }
                if self.names.contains_key(to) {
                    return Err(io(to, "file exists"));
                }
                let id = self.names.remove(file).ok_or_else(|| io(file, "no such file"))?;
                self.names.insert(to.clone(), id);
                self.changes.push(Change::Renamed(file.to_owned(), to.clone()));
                Ok(())
            }
            DiskOp::Remove { .. } => {
                self.live(file)?;
                self.names.remove(file);
                self.changes.push(Change::Removed(file.to_owned()));
                Ok(())
            }
            DiskOp::SyncDirectory => {
                if self.failing_syncs {
                    return Err(io(file, "sync failed"));
                }
                self.changes.clear();
                self.durable_names = self.names.clone();
                self.forget_unnamed();
                Ok(())
            }
            // A read was carried out above: a full or read-only disk can be read.
            DiskOp::Read { .. } => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use ordain_role::Bytes;

    use super::*;

    fn create(file: &str, len: u64) -> DiskOp {
        DiskOp::Create { file: file.into(), len }
    }

    fn write(file: &str, offset: u64, data: &[u8]) -> DiskOp {
        DiskOp::Write { file: file.into(), offset, data: vec![Bytes::from(data.to_vec())] }
    }

    fn sync(file: &str) -> DiskOp {
        DiskOp::Sync { file: file.into() }
    }

    fn disk(ops: &[DiskOp]) -> MemoryDirectory {
        let mut disk = MemoryDirectory::new();
        ops.iter().for_each(|op| disk.apply(op).unwrap());
        disk
    }

    /// Every state that a crash can leave one file in, by many draws.
    fn after_crashes(disk: &MemoryDirectory, file: &str) -> Vec<Option<Vec<u8>>> {
        let mut seen = Vec::new();
        let mut seed = 1_u64;
        for _ in 0..300 {
            let mut copy = disk.clone();
            copy.crash(|| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                seed >> 40
            });
            let state = copy.read(file, 0, 1 << 20).ok();
            if !seen.contains(&state) {
                seen.push(state);
            }
        }
        seen.sort();
        seen
    }

    #[test]
    fn what_was_synced_survives_and_each_other_sector_may_or_may_not() {
        let mut disk =
            disk(&[create("a", 1024), write("a", 0, &[1; 1024]), sync("a"), DiskOp::SyncDirectory]);
        assert_eq!(after_crashes(&disk, "a"), [Some(vec![1; 1024])]);
        disk.apply(&write("a", 500, &[2; 20])).unwrap();
        let mut states = Vec::new();
        for (first, second) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            let mut state = vec![1; 1024];
            state[500..512].fill(first);
            state[512..520].fill(second);
            states.push(Some(state));
        }
        assert_eq!(after_crashes(&disk, "a"), states);
    }

    #[test]
    fn a_name_is_durable_only_when_the_directory_is_synced() {
        let mut disk = disk(&[create("a", 8), write("a", 0, &[1; 8]), sync("a")]);
        assert_eq!(after_crashes(&disk, "a"), [None, Some(vec![1; 8])]);
        disk.apply(&DiskOp::SyncDirectory).unwrap();
        disk.apply(&DiskOp::Remove { file: "a".into() }).unwrap();
        assert!(disk.read("a", 0, 8).is_err());
        assert_eq!(after_crashes(&disk, "a"), [None, Some(vec![1; 8])]);
        disk.apply(&DiskOp::SyncDirectory).unwrap();
        assert_eq!(after_crashes(&disk, "a"), [None]);
    }

    #[test]
    fn a_length_that_was_not_synced_may_be_any_since() {
        let mut disk = disk(&[create("a", 8), write("a", 0, &[1; 8]), sync("a"), DiskOp::SyncDirectory]);
        disk.apply(&DiskOp::SetLen { file: "a".into(), len: 3 }).unwrap();
        disk.apply(&DiskOp::SetLen { file: "a".into(), len: 6 }).unwrap();
        assert_eq!(disk.read("a", 0, 99).unwrap(), [1, 1, 1, 0, 0, 0]);
        disk.apply(&sync("a")).unwrap();
        assert_eq!(after_crashes(&disk, "a"), [Some(vec![1, 1, 1, 0, 0, 0])]);
    }

    #[test]
    fn a_failed_sync_loses_what_reads_still_show() {
        let mut disk = disk(&[create("a", 4), sync("a"), DiskOp::SyncDirectory, write("a", 0, &[1; 4])]);
        disk.fail_syncs(true);
        assert!(disk.apply(&sync("a")).is_err());
        disk.fail_syncs(false);
        disk.apply(&sync("a")).unwrap();
        assert_eq!(disk.read("a", 0, 4).unwrap(), [1; 4]);
        assert_eq!(after_crashes(&disk, "a"), [Some(vec![0; 4])]);
    }

    #[test]
    fn a_full_disk_writes_half_and_a_read_only_one_nothing() {
        let mut disk = disk(&[create("a", 0)]);
        disk.set_capacity(Some(6));
        assert_eq!(disk.apply(&write("a", 0, &[1; 8])), Err(DiskError::Full { file: "a".into() }));
        assert_eq!(disk.read("a", 0, 8).unwrap(), [1; 4]);
        assert_eq!(disk.apply(&create("b", 9)), Err(DiskError::Full { file: "b".into() }));
        assert_eq!(disk.list().unwrap(), [("a".to_owned(), 4), ("b".to_owned(), 0)]);
        disk.set_read_only(true);
        assert_eq!(disk.apply(&write("a", 0, &[2])), Err(DiskError::ReadOnly { file: "a".into() }));
        assert_eq!(disk.read("a", 0, 8).unwrap(), [1; 4]);
    }

    #[test]
    fn a_full_disk_tears_no_sector_that_the_file_had() {
        let mut disk = disk(&[create("a", 1536), write("a", 0, &[1; 1536]), sync("a")]);
        disk.set_full_from(Some(3));
        let half_of = |disk: &mut MemoryDirectory, offset, bytes: usize| {
            let full = DiskError::Full { file: "a".into() };
            assert_eq!(disk.apply(&write("a", offset, &vec![2; bytes])), Err(full));
            let now = disk.read("a", 0, 4096).unwrap();
            let written = |byte: &u8| *byte == 2;
            (now.iter().position(written), now.iter().filter(|byte| written(byte)).count())
        };
        assert_eq!(half_of(&mut disk, 0, 512), (None, 0));
        assert_eq!(half_of(&mut disk, 300, 400), (None, 0));
        assert_eq!(half_of(&mut disk, 300, 500), (Some(300), 212));
        assert_eq!(half_of(&mut disk, 300, 2600), (Some(300), 1300));
    }
}
