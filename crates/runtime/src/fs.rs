//! A node's directory on a real file system, and the lock that keeps a second process out of it.
//!
//! What is assumed of the system: a file's bytes and length are durable when `fdatasync` on it has succeeded,
//! and names when `fsync` on the directory has. Nothing is assumed of a failed sync: the kernel may have
//! dropped what it could not write and call the next sync a success, so a file whose sync has failed once
//! fails every sync from then on.

use std::collections::BTreeMap;
use std::fmt;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ordain_role::{Bytes, Directory, DiskError, DiskOp};
use rustix::fs::{AtFlags, CWD, Dir, FallocateFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, retry_on_intr};

/// The modes of files and of the directory: they are for the owner alone.
const MODE: Mode = Mode::from_raw_mode(0o600);
const DIRECTORY_MODE: u32 = 0o700;
/// The most buffers that one `pwritev` takes (`IOV_MAX` of Linux).
const BUFFERS_MAX: usize = 1024;
/// What the errors about the directory as a whole name.
const WHOLE: &str = "the data directory";
/// The lock file. Names with a leading dot are reserved: the directory neither lists nor takes such.
const LOCK: &str = ".lock";

/// The reason why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the data directory {}: {reason}; name another one, or mend its permissions", path.display())]
pub struct OpenError {
    /// The directory.
    pub path: PathBuf,
    /// The error of the system.
    pub reason: std::io::Error,
}

/// A flat directory of files. A clone is another handle on the same directory, for another thread.
#[derive(Clone)]
pub struct FsDirectory {
    shared: Arc<Shared>,
}

struct Shared {
    dir: OwnedFd,
    /// The files written so far, kept open. Held for a look-up only, never while the disk works.
    files: Mutex<BTreeMap<String, Arc<OpenFile>>>,
}

struct OpenFile {
    fd: OwnedFd,
    /// A sync has failed: what was written before it may be lost, whatever later syncs say.
    damaged: AtomicBool,
}

impl OpenFile {
    fn new(fd: OwnedFd) -> Arc<OpenFile> {
        Arc::new(OpenFile { fd, damaged: AtomicBool::new(false) })
    }
}

impl FsDirectory {
    /// Opens a directory, which is created if it is missing.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn open(path: &Path) -> Result<FsDirectory, OpenError> {
        let refused = |reason| OpenError { path: path.to_owned(), reason };
        create(path).map_err(refused)?;
        let dir = open_dir(path).map_err(|errno| refused(errno.into()))?;
        Ok(FsDirectory { shared: Arc::new(Shared { dir, files: Mutex::default() }) })
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<String, Arc<OpenFile>>> {
        // A panic of a holder leaves it whole: each use is one map operation.
        self.shared.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_at(&self, file: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        retry_on_intr(|| rustix::fs::openat(&self.shared.dir, file, flags | OFlags::CLOEXEC, MODE))
    }

    /// The open file for writing.
    fn writable(&self, file: &str) -> Result<Arc<OpenFile>, DiskError> {
        if let Some(open) = self.files().get(file) {
            return Ok(open.clone());
        }
        plain(file)?;
        let fd = self.open_at(file, OFlags::RDWR | OFlags::NOFOLLOW).map_err(|errno| error(file, errno))?;
        // Another thread may have been faster: what it knows of the file counts.
        Ok(self.files().entry(file.to_owned()).or_insert_with(|| OpenFile::new(fd)).clone())
    }

    fn create(&self, file: &str, len: u64) -> Result<(), DiskError> {
        plain(file)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let fd = self.open_at(file, flags).map_err(|errno| error(file, errno))?;
        match reserve(&fd, len) {
            Ok(()) => {
                self.files().insert(file.to_owned(), OpenFile::new(fd));
                Ok(())
            }
            Err(errno) => {
                // Nothing is left behind, so that the same request may be made again when there is space. If
                // the removal fails too, the next attempt fails because the file exists.
                let _ = rustix::fs::unlinkat(&self.shared.dir, file, AtFlags::empty());
                Err(error(file, errno))
            }
        }
    }

    fn sync(&self, file: &str) -> Result<(), DiskError> {
        let open = self.writable(file)?;
        if open.damaged.load(Ordering::Relaxed) {
            return Err(io(file, "an earlier sync of it failed, so what it holds is not known"));
        }
        retry_on_intr(|| rustix::fs::fdatasync(&open.fd)).map_err(|errno| {
            open.damaged.store(true, Ordering::Relaxed);
            // Also when there was no space: it is too late to say "try again".
            io(file, format!("sync failed: {}", std::io::Error::from(errno)))
        })
    }

    fn rename(&self, file: &str, to: &str) -> Result<(), DiskError> {
        plain(file)?;
        plain(to)?;
        let dir = &self.shared.dir;
        let renamed = match retry_on_intr(|| {
            rustix::fs::renameat_with(dir, file, dir, to, RenameFlags::NOREPLACE)
        }) {
            // Not every file system looks whether the new name is free.
            Err(Errno::INVAL | Errno::NOSYS) => retry_on_intr(|| rustix::fs::renameat(dir, file, dir, to)),
            done => done,
        };
        renamed.map_err(|errno| error(file, errno))?;
        let mut files = self.files();
        let open = files.remove(file);
        files.extend(open.map(|open| (to.to_owned(), open)));
        Ok(())
    }

    fn remove(&self, file: &str) -> Result<(), DiskError> {
        plain(file)?;
        retry_on_intr(|| rustix::fs::unlinkat(&self.shared.dir, file, AtFlags::empty()))
            .map_err(|errno| error(file, errno))?;
        self.files().remove(file);
        Ok(())
    }
}

impl fmt::Debug for FsDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FsDirectory").field("open", &self.files().keys()).finish_non_exhaustive()
    }
}

impl Directory for FsDirectory {
    fn list(&self) -> Result<Vec<(String, u64)>, DiskError> {
        let failed = |errno| error(WHOLE, errno);
        let mut files = Vec::new();
        for entry in Dir::read_from(&self.shared.dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if plain(name).is_err() {
                continue;
            }
            let stat =
                rustix::fs::statat(&self.shared.dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
                files.push((name.to_owned(), stat.st_size as u64));
            }
        }
        files.sort();
        Ok(files)
    }

    fn read(&self, file: &str, offset: u64, len: usize) -> Result<Vec<u8>, DiskError> {
        plain(file)?;
        let failed = |errno| error(file, errno);
        let fd = self.open_at(file, OFlags::RDONLY | OFlags::NOFOLLOW).map_err(failed)?;
        // Whatever is asked for, memory is taken for what there is.
        let rest = (rustix::fs::fstat(&fd).map_err(failed)?.st_size as u64).saturating_sub(offset);
        let mut data = vec![0; len.min(usize::try_from(rest).unwrap_or(usize::MAX))];
        let mut filled = 0;
        while filled < data.len() {
            let part = &mut data[filled..];
            match retry_on_intr(|| rustix::io::pread(&fd, &mut *part, offset + filled as u64)) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(errno) => return Err(failed(errno)),
            }
        }
        data.truncate(filled);
        Ok(data)
    }

    fn apply(&mut self, op: &DiskOp) -> Result<(), DiskError> {
        match op {
            DiskOp::Create { file, len } => self.create(file, *len),
            DiskOp::Write { file, offset, data } => {
                let open = self.writable(file)?;
                write_all(&open.fd, *offset, data).map_err(|errno| error(file, errno))
            }
            DiskOp::Sync { file } => self.sync(file),
            DiskOp::SyncDirectory => {
                retry_on_intr(|| rustix::fs::fsync(&self.shared.dir)).map_err(|errno| error(WHOLE, errno))
            }
            DiskOp::SetLen { file, len } => {
                let open = self.writable(file)?;
                retry_on_intr(|| rustix::fs::ftruncate(&open.fd, *len)).map_err(|errno| error(file, errno))
            }
            DiskOp::Rename { file, to } => self.rename(file, to),
            DiskOp::Remove { file } => self.remove(file),
            DiskOp::Read { file, offset, len, into } => {
                into.put(self.read(file, *offset, *len)?);
                Ok(())
            }
        }
    }
}

/// Creates a directory and those above it, and makes their names durable.
fn create(path: &Path) -> std::io::Result<()> {
    let missing: Vec<&Path> =
        path.ancestors().take_while(|p| !p.as_os_str().is_empty() && !p.exists()).collect();
    std::fs::DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)?;
    for made in missing {
        let parent = made.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        rustix::fs::fsync(open_dir(parent)?)?;
    }
    Ok(())
}

fn open_dir(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry_on_intr(|| rustix::fs::openat(CWD, path, flags, Mode::empty()))
}

/// Gives a new file its length, with space behind it where the file system can promise that.
fn reserve(fd: &OwnedFd, len: u64) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    match retry_on_intr(|| rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, len)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
            retry_on_intr(|| rustix::fs::ftruncate(fd, len))
        }
        done => done,
    }
}

/// Writes all parts one after the other, with as few calls as there can be.
fn write_all(fd: &OwnedFd, mut offset: u64, data: &[Bytes]) -> Result<(), Errno> {
    let mut parts: Vec<IoSlice<'_>> =
        data.iter().map(|part| IoSlice::new(part)).filter(|part| !part.is_empty()).collect();
    let mut rest = &mut parts[..];
    while !rest.is_empty() {
        let some = &rest[..rest.len().min(BUFFERS_MAX)];
        match retry_on_intr(|| rustix::io::pwritev(fd, some, offset))? {
            // No system writes nothing of something without saying why; were one to, this must not spin.
            0 => return Err(Errno::IO),
            written => {
                offset += written as u64;
                IoSlice::advance_slices(&mut rest, written);
            }
        }
    }
    Ok(())
}

/// Refuses names that would leave the directory, or are ours.
fn plain(file: &str) -> Result<(), DiskError> {
    if file.is_empty() || file.starts_with('.') || file.contains(['/', '\0']) {
        return Err(io(file, "not a plain file name"));
    }
    Ok(())
}

fn error(file: &str, errno: Errno) -> DiskError {
    let file = file.to_owned();
    match errno {
        Errno::NOSPC | Errno::DQUOT => DiskError::Full { file },
        Errno::ROFS | Errno::ACCESS | Errno::PERM => DiskError::ReadOnly { file },
        _ => DiskError::Io { file, reason: std::io::Error::from(errno).to_string() },
    }
}

fn io(file: &str, reason: impl Into<String>) -> DiskError {
    DiskError::Io { file: file.to_owned(), reason: reason.into() }
}

/// The reason why a data directory cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process uses it.
    #[error(
        "the data directory {} is in use by {}: stop that process, or name another directory",
        path.display(),
        pid.map_or("another process".to_owned(), |pid| format!("process {pid}")),
    )]
    Held {
        /// The directory.
        path: PathBuf,
        /// Which process, where its number could be read.
        pid: Option<u32>,
    },
    /// The lock file cannot be created, read or written.
    #[error("cannot lock the data directory {}: {reason}", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// The error of the system.
        reason: std::io::Error,
    },
}

/// The exclusive right to a data directory, for as long as this value lives.
///
/// It is an advisory lock on the directory itself, which cannot be removed while there are files in it, and on a file in
/// it that names the process. The system takes both back from a process that dies, and the file that stays behind
/// means nothing.
#[derive(Debug)]
pub struct DirLock {
    /// None where the file system does not lock directories: then it is the file alone that counts.
    _directory: Option<OwnedFd>,
    _file: OwnedFd,
}

impl DirLock {
    /// Takes the lock of an existing directory.
    ///
    /// # Errors
    /// Another process holds it, or the lock file cannot be used.
    pub fn acquire(path: &Path) -> Result<DirLock, LockError> {
        let failed = |errno: Errno| LockError::Io { path: path.to_owned(), reason: errno.into() };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock =
            |fd: &OwnedFd| retry_on_intr(|| rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive));
        let held = |pid| LockError::Held { path: path.to_owned(), pid };
        let directory = open_dir(path).map_err(failed)?;
        let directory = match lock(&directory) {
            Ok(()) => Some(directory),
            Err(Errno::WOULDBLOCK) => {
                // The file may have been removed meanwhile. It is not made again: a refusal changes nothing.
                let look = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                let file = retry_on_intr(|| rustix::fs::open(path.join(LOCK), look, MODE)).ok();
                return Err(held(file.and_then(|fd| read_pid(&fd))));
            }
            // Network file systems lock what is open for writing only.
            Err(Errno::BADF | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => None,
            Err(errno) => return Err(failed(errno)),
        };
        let fd = retry_on_intr(|| rustix::fs::open(path.join(LOCK), flags, MODE)).map_err(failed)?;
        match lock(&fd) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(held(read_pid(&fd))),
            Err(errno) => return Err(failed(errno)),
        }
        retry_on_intr(|| rustix::fs::ftruncate(&fd, 0)).map_err(failed)?;
        let pid = Bytes::from(format!("{}\n", std::process::id()).into_bytes());
        write_all(&fd, 0, &[pid]).map_err(failed)?;
        Ok(DirLock { _directory: directory, _file: fd })
    }
}

fn read_pid(fd: &OwnedFd) -> Option<u32> {
    let mut text = [0; 16];
    let len = retry_on_intr(|| rustix::io::pread(fd, &mut text, 0)).ok()?;
    std::str::from_utf8(&text[..len]).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_role::Fetched;
    use proptest::prelude::*;
    use tempfile::TempDir;

    fn fresh() -> (TempDir, FsDirectory) {
        let temp = TempDir::new().unwrap();
        let directory = FsDirectory::open(&temp.path().join("a/b")).unwrap();
        (temp, directory)
    }

    fn create(file: &str, len: u64) -> DiskOp {
        DiskOp::Create { file: file.to_owned(), len }
    }

    fn write(file: &str, offset: u64, parts: &[&[u8]]) -> DiskOp {
        let data = parts.iter().map(|part| Bytes::from(part.to_vec())).collect();
        DiskOp::Write { file: file.to_owned(), offset, data }
    }

    fn set_len(file: &str, len: u64) -> DiskOp {
        DiskOp::SetLen { file: file.to_owned(), len }
    }

    fn remove(file: &str) -> DiskOp {
        DiskOp::Remove { file: file.to_owned() }
    }

    fn names(directory: &FsDirectory) -> Vec<(String, u64)> {
        directory.list().unwrap()
    }

    #[test]
    fn a_created_file_reads_as_zeros_and_is_not_created_twice() {
        let (_temp, mut d) = fresh();
        d.apply(&create("log-1", 100_000)).unwrap();
        assert_eq!(names(&d), [("log-1".to_owned(), 100_000)]);
        assert_eq!(d.read("log-1", 0, usize::MAX).unwrap(), vec![0; 100_000]);
        assert!(matches!(d.apply(&create("log-1", 1)), Err(DiskError::Io { file, .. }) if file == "log-1"));
        assert_eq!(names(&d), [("log-1".to_owned(), 100_000)]);
    }

    #[test]
    fn what_is_written_is_read_back_by_another_handle() {
        let (_temp, mut d) = fresh();
        d.apply(&create("f", 8)).unwrap();
        d.apply(&write("f", 6, &[b"", b"one", b"", b"two"])).unwrap();
        d.apply(&DiskOp::Sync { file: "f".to_owned() }).unwrap();
        d.apply(&DiskOp::SyncDirectory).unwrap();
        let other = d.clone();
        assert_eq!(other.read("f", 0, 100).unwrap(), b"\0\0\0\0\0\0onetwo");
        assert_eq!(other.read("f", 7, 3).unwrap(), b"net");
        assert_eq!(other.read("f", 12, 3).unwrap(), b"");
        assert_eq!(other.read("f", 99, 3).unwrap(), b"");
        let into = Fetched::default();
        d.apply(&DiskOp::Read { file: "f".to_owned(), offset: 9, len: 9, into: into.clone() }).unwrap();
        assert_eq!(into.bytes(), b"two");
        let lost = DiskOp::Read { file: "g".to_owned(), offset: 0, len: 9, into: into.clone() };
        assert!(d.apply(&lost).is_err());
    }

    #[test]
    fn more_parts_than_one_call_takes_are_written_whole() {
        let (_temp, mut d) = fresh();
        let parts: Vec<Vec<u8>> = (0..3000u32).map(|i| i.to_le_bytes().to_vec()).collect();
        let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        d.apply(&create("f", 0)).unwrap();
        d.apply(&write("f", 5, &slices)).unwrap();
        assert_eq!(d.read("f", 5, usize::MAX).unwrap(), parts.concat());
    }

    #[test]
    fn a_removed_file_is_gone_for_every_handle_and_may_be_made_anew() {
        let (_temp, mut d) = fresh();
        let mut other = d.clone();
        d.apply(&create("f", 3)).unwrap();
        other.apply(&write("f", 0, &[b"old"])).unwrap();
        d.apply(&remove("f")).unwrap();
        assert!(names(&d).is_empty());
        assert!(other.read("f", 0, 1).is_err());
        assert!(other.apply(&write("f", 0, &[b"lost"])).is_err());
        assert!(d.apply(&remove("f")).is_err());
        d.apply(&create("f", 3)).unwrap();
        other.apply(&write("f", 0, &[b"new"])).unwrap();
        assert_eq!(d.read("f", 0, 9).unwrap(), b"new");
    }

    #[test]
    fn a_renamed_file_is_the_same_by_its_new_name_only_which_was_free() {
        let (_temp, mut d) = fresh();
        let mut other = d.clone();
        let rename = |file: &str, to: &str| DiskOp::Rename { file: file.to_owned(), to: to.to_owned() };
        d.apply(&create("f", 3)).unwrap();
        d.apply(&create("taken", 1)).unwrap();
        assert!(d.apply(&rename("f", "taken")).is_err());
        assert!(d.apply(&rename("g", "h")).is_err());
        d.apply(&write("f", 0, &[b"old"])).unwrap();
        other.apply(&rename("f", "g")).unwrap();
        assert_eq!(names(&d), [("g".to_owned(), 3), ("taken".to_owned(), 1)]);
        assert!(d.apply(&write("f", 0, &[b"lost"])).is_err());
        d.apply(&write("g", 0, &[b"new"])).unwrap();
        d.apply(&create("f", 1)).unwrap();
        d.apply(&write("f", 0, &[b"x"])).unwrap();
        assert_eq!(
            (d.read("f", 0, 9).unwrap(), other.read("g", 0, 9).unwrap()),
            (b"x".to_vec(), b"new".to_vec())
        );
    }

    #[test]
    fn files_of_an_earlier_run_are_found_and_listed_in_order_of_name() {
        let (temp, mut d) = fresh();
        let path = temp.path().join("a/b");
        let _lock = DirLock::acquire(&path).unwrap();
        for name in ["b", "c", "a"] {
            d.apply(&create(name, 1)).unwrap();
        }
        std::fs::create_dir(path.join("folder")).unwrap();
        let mut again = FsDirectory::open(&path).unwrap();
        assert_eq!(names(&again), [("a".to_owned(), 1), ("b".to_owned(), 1), ("c".to_owned(), 1)]);
        again.apply(&write("b", 0, &[b"x"])).unwrap();
        assert_eq!(d.read("b", 0, 1).unwrap(), b"x");
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let (_temp, mut d) = fresh();
        for name in ["", ".", "..", ".lock", "a/b", "/etc/passwd", "a\0b"] {
            assert!(d.apply(&create(name, 0)).is_err(), "{name:?}");
            assert!(d.apply(&write(name, 0, &[b"x"])).is_err(), "{name:?}");
            assert!(d.read(name, 0, 1).is_err(), "{name:?}");
            assert!(d.apply(&remove(name)).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_file_too_large_leaves_nothing_behind() {
        let (_temp, mut d) = fresh();
        assert!(d.apply(&create("f", i64::MAX as u64)).is_err());
        assert!(names(&d).is_empty());
        d.apply(&create("f", 10)).unwrap();
    }

    #[test]
    fn a_full_disk_and_a_read_only_one_are_told_apart() {
        let file = || "f".to_owned();
        assert_eq!(error("f", Errno::NOSPC), DiskError::Full { file: file() });
        assert_eq!(error("f", Errno::DQUOT), DiskError::Full { file: file() });
        assert_eq!(error("f", Errno::ROFS), DiskError::ReadOnly { file: file() });
        assert_eq!(error("f", Errno::ACCESS), DiskError::ReadOnly { file: file() });
        assert!(matches!(error("f", Errno::IO), DiskError::Io { .. }));
    }

    #[test]
    fn a_failed_sync_is_not_forgotten() {
        let (_temp, mut d) = fresh();
        d.apply(&create("f", 1)).unwrap();
        d.writable("f").unwrap().damaged.store(true, Ordering::Relaxed);
        assert!(d.apply(&DiskOp::Sync { file: "f".to_owned() }).is_err());
    }

    #[test]
    fn the_directory_must_be_a_directory() {
        let (temp, _) = fresh();
        let path = temp.path().join("file");
        std::fs::write(&path, "").unwrap();
        assert!(FsDirectory::open(&path).unwrap_err().to_string().contains("file"));
    }

    #[test]
    fn a_second_holder_is_refused_by_the_first_ones_number() {
        let temp = TempDir::new().unwrap();
        let first = DirLock::acquire(temp.path()).unwrap();
        let refused = DirLock::acquire(temp.path()).unwrap_err();
        assert!(matches!(refused, LockError::Held { pid: Some(pid), .. } if pid == std::process::id()));
        assert!(refused.to_string().contains(&format!("process {}", std::process::id())));
        // Nor does it help to remove what names it; that is not made again by a process that is refused.
        std::fs::remove_file(temp.path().join(LOCK)).unwrap();
        let refused = DirLock::acquire(temp.path()).unwrap_err();
        assert!(matches!(refused, LockError::Held { pid: None, .. }), "{refused}");
        assert!(refused.to_string().contains("in use by another process"), "{refused}");
        assert!(!temp.path().join(LOCK).exists());
        drop(first);
        DirLock::acquire(temp.path()).unwrap();
    }

    #[test]
    fn only_the_owner_may_read_what_is_made() {
        use std::os::unix::fs::PermissionsExt;
        let temp = TempDir::new().unwrap();
        let path = temp.path().join("a").join("b");
        let mut directory = FsDirectory::open(&path).unwrap();
        let _lock = DirLock::acquire(&path).unwrap();
        directory.apply(&create("x", 4)).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode(&path), mode(&temp.path().join("a"))], [0o700, 0o700]);
        assert_eq!([mode(&path.join("x")), mode(&path.join(LOCK))], [0o600, 0o600]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Against files that are byte vectors in a map.
        #[test]
        fn behaves_as_a_map_of_byte_vectors(
            steps in prop::collection::vec((0usize..3, 0u8..5, 0u64..40, any::<u8>()), 1..40)
        ) {
            let (_temp, mut d) = fresh();
            let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
            for (name, kind, n, byte) in steps {
                let name = ["x", "y", "z"][name].to_owned();
                let known = model.contains_key(&name);
                let content = model.entry(name.clone()).or_default();
                let (op, fine) = match kind {
                    0 => {
                        if !known {
                            content.resize(n as usize, 0);
                        }
                        (create(&name, n), !known)
                    }
                    1 | 2 => {
                        if known {
                            let end = n as usize + 3;
                            content.resize(content.len().max(end), 0);
                            content[n as usize..end].fill(byte);
                        }
                        (write(&name, n, &[&[byte], &[byte, byte]]), known)
                    }
                    3 => {
                        content.resize(n as usize, 0);
                        (set_len(&name, n), known)
                    }
                    _ => (remove(&name), known),
                };
                if kind == 4 || (!known && kind != 0) {
                    model.remove(&name);
                }
                prop_assert_eq!(d.apply(&op).is_ok(), fine, "{:?}", op);
                let listed: Vec<(String, u64)> =
                    model.iter().map(|(name, content)| (name.clone(), content.len() as u64)).collect();
                prop_assert_eq!(names(&d), listed);
            }
            for (name, content) in model {
                prop_assert_eq!(d.read(&name, 0, usize::MAX).unwrap(), content);
            }
        }
    }
}
