//! Files that hold secrets: passwords, users, keys. What is read is checked, what is written is the owner's alone.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The longest file of users or secrets that is read, bytes.
const FILE_MAX: u64 = 16 << 20;

/// The reason why a file with secrets cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// It cannot be read.
    #[error("cannot read {}: {reason}: check that it is there and that this user may read it", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        reason: io::Error,
    },
    /// It is far longer than any such file.
    #[error("{} is longer than {FILE_MAX} bytes, so it is no file of secrets or users: check its name", .0.display())]
    TooLong(PathBuf),
    /// It has nothing in it.
    #[error("{} is empty, and an empty password is none: write the password into it", .0.display())]
    Empty(PathBuf),
    /// It is not text.
    #[error("{} is not UTF-8 text: write the password into it as text", .0.display())]
    NotText(PathBuf),
}

/// Reads a file that only its owner should be able to read; warns if others can.
///
/// # Errors
/// [`SecretError`].
pub fn read(path: &Path) -> Result<Vec<u8>, SecretError> {
    let unreadable = |reason| SecretError::Unreadable { path: path.to_owned(), reason };
    let file = File::open(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.mode();
    if mode & 0o077 != 0 {
        tracing::warn!(
            "{} holds secrets and others than its owner can use it (mode {:o}): chmod 600 it",
            path.display(),
            mode & 0o777
        );
    }
    let mut bytes = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_MAX { Err(SecretError::TooLong(path.to_owned())) } else { Ok(bytes) }
}

/// Reads such a file as text.
///
/// # Errors
/// [`SecretError`].
pub fn read_text(path: &Path) -> Result<String, SecretError> {
    String::from_utf8(read(path)?).map_err(|_| SecretError::NotText(path.to_owned()))
}

/// Reads a password from a file: all of it but a line end at its end.
///
/// # Errors
/// [`SecretError`].
pub fn read_password(path: &Path) -> Result<String, SecretError> {
    let text = read_text(path)?;
    let password = text.strip_suffix('\n').unwrap_or(&text);
    let password = password.strip_suffix('\r').unwrap_or(password);
    if password.is_empty() { Err(SecretError::Empty(path.to_owned())) } else { Ok(password.to_owned()) }
}

/// Replaces a file, whole or not at all, durably, for its owner alone to read.
///
/// # Errors
/// What the system says; the file is as it was then.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let mut aside = name.to_owned();
    aside.push(".new");
    let aside = path.with_file_name(aside);
    // One that is left over may have another mode.
    match std::fs::remove_file(&aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&aside, path)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users.acl");
        std::fs::write(&path, "old").unwrap();
        std::fs::write(dir.path().join("users.acl.new"), "left over").unwrap();
        write(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(write(&dir.path().join("nowhere/users.acl"), b"new").is_err());
    }

    #[test]
    fn a_password_is_the_file_without_its_last_line_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        let read = |text: &[u8]| {
            std::fs::write(&path, text).unwrap();
            read_password(&path)
        };
        assert_eq!(read(b"secret\n").unwrap(), "secret");
        assert_eq!(read(b"sec ret\r\n").unwrap(), "sec ret");
        assert!(matches!(read(b"\n"), Err(SecretError::Empty(_))));
        assert!(matches!(read(b""), Err(SecretError::Empty(_))));
        assert!(matches!(read(b"\xff"), Err(SecretError::NotText(_))));
        assert!(matches!(read_password(Path::new("/nowhere/x")), Err(SecretError::Unreadable { .. })));
    }
}
