//! Contents that lie on disk, and what is known of them in memory: decision 58.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::value::Value;

/// A file of a value log, as those know it whose contents lie there.
#[derive(Debug, Default)]
pub struct ValueFile {
    number: u32,
    /// Bytes of contents that somebody refers to.
    needed: AtomicU64,
}

impl ValueFile {
    /// The file of a number, in which nothing lies.
    pub fn new(number: u32) -> Arc<ValueFile> {
        Arc::new(ValueFile { number, needed: AtomicU64::new(0) })
    }

    /// Its number in its value log.
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Bytes of its contents that somebody refers to.
    pub fn needed(&self) -> u64 {
        self.needed.load(Ordering::Relaxed)
    }
}

/// A content that is not in memory: its place in a value log, and what can be told of it without reading it. The place is needed as long
/// as somebody has this.
pub struct Away {
    hash: u128,
    file: Arc<ValueFile>,
    at: u32,
    len: u32,
    weight: u32,
    type_name: &'static str,
}

impl Away {
    /// Bytes of memory that one takes, with the counter that it is shared by.
    pub const BYTES: usize = size_of::<Away>() + 2 * size_of::<usize>();

    /// The content of a value that lies, or is about to, in so many bytes of a file from a place on.
    pub fn new(value: &Value, file: &Arc<ValueFile>, at: u32, len: u32) -> Away {
        // One that is released without having been referred to would free what others need.
        file.needed.fetch_add(len.into(), Ordering::Relaxed);
        let weight = u32::try_from(value.weight()).unwrap_or(u32::MAX);
        Away { hash: value.content_hash(), file: file.clone(), at, len, weight, type_name: value.type_name() }
    }

    /// The file.
    pub fn file(&self) -> &Arc<ValueFile> {
        &self.file
    }

    /// The first byte there.
    pub const fn at(&self) -> u32 {
        self.at
    }

    /// The number of bytes there.
    pub const fn bytes(&self) -> u32 {
        self.len
    }

    /// Whether a value is this content.
    pub fn is_of(&self, value: &Value) -> bool {
        (self.hash, self.type_name) == (value.content_hash(), value.type_name())
    }

    /// [`Value::weight`] of the content.
    pub const fn weight(&self) -> usize {
        self.weight as usize
    }

    /// [`Value::content_hash`] of the content.
    pub const fn content_hash(&self) -> u128 {
        self.hash
    }

    /// [`Value::type_name`] of the content.
    pub const fn type_name(&self) -> &'static str {
        self.type_name
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        self.file.needed.fetch_sub(self.len.into(), Ordering::Relaxed);
    }
}

impl PartialEq for Away {
    /// Compares contents.
    fn eq(&self, other: &Away) -> bool {
        (self.hash, self.type_name) == (other.hash, other.type_name)
    }
}

impl fmt::Debug for Away {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {} of file {}", self.len, self.at, self.file.number)
    }
}
