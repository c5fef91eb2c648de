//! Values that lie on disk, and what is known of them in memory: decision 58.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::xxh3_64;

use crate::value::Value;

/// A file of a value log, with the number of its bytes that are referred to.
#[derive(Debug, Default)]
pub struct ValueFile {
    number: u32,
    /// Bytes of frames that are referred to.
    needed: AtomicU64,
}

impl ValueFile {
    /// An empty file of a number.
    pub fn new(number: u32) -> Arc<ValueFile> {
        Arc::new(ValueFile { number, needed: AtomicU64::new(0) })
    }

    /// Its number in its value log.
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Bytes of its frames that are referred to.
    pub fn needed(&self) -> u64 {
        self.needed.load(Ordering::Relaxed)
    }
}

/// A reference to a value on disk: its place in a value log, and what is known of it without reading it. The frame there is kept as long as
/// a reference exists.
pub struct Evicted {
    hash: u128,
    file: Arc<ValueFile>,
    at: u32,
    len: u32,
    image_len: u32,
    /// The hash of its image, in which the order of a hash's fields and its form count too.
    image_hash: u64,
    weight: usize,
    is_hash: bool,
}

const _: () = assert!(size_of::<Evicted>() == 64);

/// The place of a frame in a value log: the number of its file, and its first byte there.
pub type FramePlace = (u32, u32);

impl Evicted {
    /// Memory of one in an `Arc`, bytes.
    pub const BYTES: usize = size_of::<Evicted>() + 2 * size_of::<usize>();

    /// Refers to a value whose frame has `len` bytes in a file, from byte `at` on.
    pub fn new(value: &Value, file: &Arc<ValueFile>, at: u32, len: u32) -> Evicted {
        file.needed.fetch_add(len.into(), Ordering::Relaxed);
        let (hash, weight, is_hash) = (value.content_hash(), value.weight(), matches!(value, Value::Hash(_)));
        // As the frame, it is shorter than a file of values.
        let mut image = Vec::new();
        value.encode(&mut image);
        let (image_len, image_hash) = (image.len() as u32, xxh3_64(&image));
        Evicted { hash, file: file.clone(), at, len, image_len, image_hash, weight, is_hash }
    }

    /// The file.
    pub fn file(&self) -> &Arc<ValueFile> {
        &self.file
    }

    /// The first byte of the frame in its file.
    pub const fn at(&self) -> u32 {
        self.at
    }

    /// The place of the frame.
    pub fn place(&self) -> FramePlace {
        (self.file.number, self.at)
    }

    /// The length of the frame, bytes.
    pub const fn bytes(&self) -> u32 {
        self.len
    }

    /// The length of the value's [image](crate::wire::Codec::encode), bytes.
    pub const fn image_len(&self) -> usize {
        self.image_len as usize
    }

    /// Compares a value with the evicted one by hashes: of a hash the order of its fields and its form too, which
    /// [`Value::content_hash`] does not see.
    pub fn is_of(&self, value: &Value) -> bool {
        if self.hash != value.content_hash() || self.type_name() != value.type_name() {
            return false;
        }
        let mut image = Vec::new();
        if self.is_hash {
            value.encode(&mut image);
        }
        !self.is_hash || self.image_hash == xxh3_64(&image)
    }

    /// [`Value::weight`] of the value.
    pub const fn weight(&self) -> usize {
        self.weight
    }

    /// [`Value::content_hash`] of the value.
    pub const fn content_hash(&self) -> u128 {
        self.hash
    }

    /// [`Value::type_name`] of the value.
    pub const fn type_name(&self) -> &'static str {
        if self.is_hash { "hash" } else { "string" }
    }
}

impl Drop for Evicted {
    fn drop(&mut self) {
        self.file.needed.fetch_sub(self.len.into(), Ordering::Relaxed);
    }
}

impl PartialEq for Evicted {
    /// Compares values by their hashes.
    fn eq(&self, other: &Evicted) -> bool {
        (self.hash, self.image_hash) == (other.hash, other.image_hash)
    }
}

impl fmt::Debug for Evicted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {} of file {}", self.len, self.at, self.file.number)
    }
}
