//! Values: strings and hashes, with room for more kinds.
//!
//! A hash keeps the digest of its content as it changes, so that writing one field of a million costs one
//! field. It iterates in an order that is a function of the operations applied: insertion order while small,
//! hash order once large (and it stays large, so that the order never depends on a detour). It keeps too which
//! encoding of Redis it would have, which goes one way as well; the digest does not see either.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::compact;
use crate::evicted::Evicted;
use crate::wire::Reader;

/// The value of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Bytes.
    String(Vec<u8>),
    /// Fields and their values. Shared, so that shipping it to a reader on another shard costs nothing; the
    /// holder of the exclusive lock is the only owner and changes it in place.
    Hash(Arc<HashValue>),
    /// A value that lies on disk, with what is known of it. It has to be loaded before it is read or changed.
    Evicted(Arc<Evicted>),
}

/// The panic of code that reads an evicted value: its caller has not loaded it.
pub const EVICTED: &str = "an evicted value was to be read or changed: it has to be loaded before";

impl Value {
    /// The name TYPE answers.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::String(_) => "string",
            Value::Hash(_) => "hash",
            Value::Evicted(evicted) => evicted.type_name(),
        }
    }

    /// A hash of the content, for the digest of the state.
    pub fn content_hash(&self) -> u128 {
        match self {
            Value::String(bytes) => xxh3_128(bytes),
            // The constant distinguishes a hash whose sum is 0 from a string.
            Value::Hash(hash) => hash.content.wrapping_add(0x6861_7368),
            Value::Evicted(evicted) => evicted.content_hash(),
        }
    }

    /// Appends an encoding of the value, order and representation included.
    ///
    /// # Panics
    /// Here and in [`Value::encode_compact`], if the value is [evicted](Value::Evicted).
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.encode_with(out, |out, len| out.extend_from_slice(&(len as u32).to_le_bytes()));
    }

    /// As [`Value::encode`], with lengths in as many bytes as they need ([`compact`]).
    pub fn encode_compact(&self, out: &mut Vec<u8>) {
        self.encode_with(out, |out, len| compact::number(out, len as u64));
    }

    fn encode_with(&self, out: &mut Vec<u8>, length: impl Fn(&mut Vec<u8>, usize)) {
        let text = |out: &mut Vec<u8>, bytes: &[u8]| {
            length(out, bytes.len());
            out.extend_from_slice(bytes);
        };
        match self {
            Value::String(bytes) => {
                out.push(1);
                text(out, bytes);
            }
            Value::Hash(hash) => {
                let [compact, table] = if hash.is_small() { [2, 4] } else { [3, 5] };
                out.push(if hash.is_table { table } else { compact });
                length(out, hash.len());
                for (field, value) in hash.iter() {
                    text(out, field);
                    text(out, value);
                }
            }
            Value::Evicted(_) => panic!("{EVICTED}"),
        }
    }

    /// Decodes the value at the start of `bytes` and returns what follows; `None` for damaged bytes.
    pub fn decode(bytes: &[u8]) -> Option<(Value, &[u8])> {
        let mut reader = Reader::new(bytes);
        let value = Value::decode_with(&mut reader, |bytes| bytes.u32().map(|len| len as usize))?;
        Some((value, reader.rest()))
    }

    /// Reads a value that [`Value::encode_compact`] has written; `None` for damaged bytes.
    pub fn decode_compact(bytes: &mut Reader<'_>) -> Option<Value> {
        Value::decode_with(bytes, compact::read_count)
    }

    fn decode_with(
        bytes: &mut Reader<'_>,
        length: impl Fn(&mut Reader<'_>) -> Option<usize>,
    ) -> Option<Value> {
        match bytes.u8()? {
            1 => {
                let len = length(bytes)?;
                bytes.take(len).map(|text| Value::String(text.to_vec()))
            }
            tag @ 2..=5 => {
                let fields = length(bytes)?;
                let mut hash = HashValue { is_table: tag > 3, ..HashValue::default() };
                if tag % 2 == 1 {
                    hash.grow();
                }
                for _ in 0..fields {
                    let len = length(bytes)?;
                    let field = bytes.take(len)?;
                    let len = length(bytes)?;
                    hash.set(field, bytes.take(len)?);
                }
                // One that has grown is written as such: no other bytes stand for it.
                (hash.is_small() == (tag % 2 == 0)).then(|| Value::Hash(Arc::new(hash)))
            }
            _ => None,
        }
    }

    /// The weight of the value as it is carried from one fragment to another: about as many bytes as its encoding
    /// has, at no cost. It depends on the content alone.
    pub fn weight(&self) -> usize {
        match self {
            Value::String(bytes) => bytes.len(),
            Value::Hash(hash) => hash.bytes + 8 * hash.len,
            Value::Evicted(evicted) => evicted.weight(),
        }
    }

    /// Bytes of memory that the value holds beside itself, roughly; at no cost, whatever the size.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Value::String(bytes) => bytes.capacity(),
            Value::Hash(hash) => size_of::<HashValue>() + hash.bytes + 48 * hash.len,
            Value::Evicted(_) => Evicted::BYTES,
        }
    }
}

type Entry = (Box<[u8]>, Box<[u8]>);

#[derive(Clone, Debug, PartialEq)]
enum Fields {
    Small(Vec<Entry>),
    /// By the hash of the field; equal hashes share a bucket in insertion order.
    Large(BTreeMap<u64, SmallVec<[Entry; 1]>>),
}

/// A map from field to value.
#[derive(Clone, Debug, PartialEq)]
pub struct HashValue {
    fields: Fields,
    len: usize,
    /// Sum of the lengths of all fields and values.
    bytes: usize,
    /// Wrapping sum over the fields of a hash of (field, value).
    content: u128,
    /// True if the hash had more fields than [`HashValue::COMPACT_MAX`], or one longer than [`HashValue::COMPACT_BYTES_MAX`], since it was
    /// made.
    is_table: bool,
}

impl Default for HashValue {
    fn default() -> Self {
        HashValue { fields: Fields::Small(Vec::new()), len: 0, bytes: 0, content: 0, is_table: false }
    }
}

impl HashValue {
    /// The most fields that are kept in insertion order and answered by one HSCAN.
    pub const SMALL_MAX: usize = 128;
    /// The most fields that Redis keeps in a list (`hash-max-listpack-entries`).
    pub const COMPACT_MAX: usize = 512;
    /// The most bytes of a field, and of a value, that Redis keeps in a list (`hash-max-listpack-value`).
    pub const COMPACT_BYTES_MAX: usize = 64;

    /// The number of fields.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without fields; the database deletes a hash that becomes empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True if the fields are still in insertion order.
    pub fn is_small(&self) -> bool {
        matches!(self.fields, Fields::Small(_))
    }

    /// True if Redis would keep the hash in a table rather than in a list: from then on for as long as the hash exists.
    pub fn is_table(&self) -> bool {
        self.is_table
    }

    /// The value of a field.
    pub fn get(&self, field: &[u8]) -> Option<&[u8]> {
        let found = match &self.fields {
            Fields::Small(entries) => entries.iter().find(|(f, _)| **f == *field),
            Fields::Large(map) => map.get(&xxh3_64(field))?.iter().find(|(f, _)| **f == *field),
        };
        found.map(|(_, v)| &**v)
    }

    /// Sets a field and returns what it held.
    pub fn set(&mut self, field: &[u8], value: &[u8]) -> Option<Box<[u8]>> {
        self.content = self.content.wrapping_add(entry_hash(field, value));
        if self.grows_with(field) {
            self.grow();
        }
        self.is_table |= self.becomes_table_with(field, value);
        let old = match &mut self.fields {
            Fields::Small(entries) => put(entries, field, value),
            Fields::Large(map) => {
                let bucket = map.entry(xxh3_64(field)).or_default();
                match bucket.iter_mut().find(|(f, _)| **f == *field) {
                    Some((_, v)) => Some(std::mem::replace(v, value.into())),
                    None => {
                        bucket.push((field.into(), value.into()));
                        None
                    }
                }
            }
        };
        self.bytes += value.len();
        match &old {
            Some(old) => {
                self.bytes -= old.len();
                self.content = self.content.wrapping_sub(entry_hash(field, old));
            }
            None => {
                self.bytes += field.len();
                self.len += 1;
            }
        }
        old
    }

    /// Says whether to set this field changes more than the field, so that removing it does not undo that.
    pub(crate) fn converts_with(&self, field: &[u8], value: &[u8]) -> bool {
        self.grows_with(field) || self.becomes_table_with(field, value)
    }

    /// Says whether [`is_table`](Self::is_table) begins to hold as this field is set.
    fn becomes_table_with(&self, field: &[u8], value: &[u8]) -> bool {
        let is_long = field.len().max(value.len()) > Self::COMPACT_BYTES_MAX;
        !self.is_table && (is_long || self.len >= Self::COMPACT_MAX && self.get(field).is_none())
    }

    /// Says whether to set this field changes how all of them are kept, and with it their order.
    fn grows_with(&self, field: &[u8]) -> bool {
        self.is_small() && self.len >= Self::SMALL_MAX && self.get(field).is_none()
    }

    /// Removes a field and returns what it held.
    pub fn remove(&mut self, field: &[u8]) -> Option<Box<[u8]>> {
        self.take(field).map(|(_, value)| value)
    }

    /// Removes a field and returns its place, for [`put_back`](Self::put_back), and what it held.
    pub(crate) fn take(&mut self, field: &[u8]) -> Option<(usize, Box<[u8]>)> {
        let (place, (_, value)) = match &mut self.fields {
            Fields::Small(entries) => {
                let i = entries.iter().position(|(f, _)| **f == *field)?;
                (i, entries.remove(i))
            }
            Fields::Large(map) => {
                let hash = xxh3_64(field);
                let bucket = map.get_mut(&hash)?;
                let i = bucket.iter().position(|(f, _)| **f == *field)?;
                let entry = bucket.remove(i);
                if bucket.is_empty() {
                    map.remove(&hash);
                }
                (i, entry)
            }
        };
        self.len -= 1;
        self.bytes -= field.len() + value.len();
        self.content = self.content.wrapping_sub(entry_hash(field, &value));
        Some((place, value))
    }

    /// Puts a field that is not there back in the place from which it was taken. All that was changed since is undone.
    pub(crate) fn put_back(&mut self, field: &[u8], value: &[u8], place: usize) {
        let entry = (field.into(), value.into());
        match &mut self.fields {
            Fields::Small(entries) => entries.insert(place.min(entries.len()), entry),
            Fields::Large(map) => {
                let bucket = map.entry(xxh3_64(field)).or_default();
                bucket.insert(place.min(bucket.len()), entry);
            }
        }
        self.len += 1;
        self.bytes += field.len() + value.len();
        self.content = self.content.wrapping_add(entry_hash(field, value));
    }

    /// Walks the fields in the value's order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let (small, large) = match &self.fields {
            Fields::Small(entries) => (Some(entries), None),
            Fields::Large(map) => (None, Some(map)),
        };
        small
            .into_iter()
            .flatten()
            .chain(large.into_iter().flat_map(|map| map.values().flatten()))
            .map(|(f, v)| (&**f, &**v))
    }

    /// Visits about `count` fields from `cursor` on and returns the cursor to go on from, 0 when done. A
    /// field that is there from the first call (cursor 0) to the last is visited at least once.
    pub fn scan(&self, cursor: u64, count: usize, mut visit: impl FnMut(&[u8], &[u8])) -> u64 {
        match &self.fields {
            Fields::Small(entries) => {
                // A cursor of a hash that has shrunk since: whatever is left is visited again.
                entries.iter().for_each(|(f, v)| visit(f, v));
                0
            }
            Fields::Large(map) => {
                let mut seen = 0;
                for (&hash, bucket) in map.range(cursor..) {
                    if seen >= count {
                        return hash;
                    }
                    bucket.iter().for_each(|(f, v)| visit(f, v));
                    seen += bucket.len();
                }
                0
            }
        }
    }

    fn grow(&mut self) {
        if let Fields::Small(entries) = &mut self.fields {
            let mut map: BTreeMap<u64, SmallVec<[Entry; 1]>> = BTreeMap::new();
            for entry in entries.drain(..) {
                map.entry(xxh3_64(&entry.0)).or_default().push(entry);
            }
            self.fields = Fields::Large(map);
        }
    }
}

fn put(entries: &mut Vec<Entry>, field: &[u8], value: &[u8]) -> Option<Box<[u8]>> {
    match entries.iter_mut().find(|(f, _)| **f == *field) {
        Some((_, v)) => Some(std::mem::replace(v, value.into())),
        None => {
            entries.push((field.into(), value.into()));
            None
        }
    }
}

fn entry_hash(field: &[u8], value: &[u8]) -> u128 {
    mix(xxh3_64(field), xxh3_128(value))
}

/// The contribution of one record to the digest of a state.
///
/// Members hash what they write, before and after: that is most of what replication costs a short transaction. So what is
/// long, the content, is hashed to all 128 bits, its name to 64, and the two are mixed by hand.
#[inline]
pub fn record_hash(db: crate::Db, key: &[u8], value: &Value, expires_at: crate::Expiry) -> u128 {
    named_hash(name_hash(db, key), value, expires_at)
}

/// The part of a record's hash that is of its name: for those who hash several contents of one record.
#[inline]
pub fn name_hash(db: crate::Db, key: &[u8]) -> u64 {
    xxh3_64(key).wrapping_add(u64::from(db.0).wrapping_mul(0xc2b2_ae3d_27d4_eb4f))
}

/// The [hash of a record](record_hash) whose [name's hash](name_hash) is known. How the content was written is not in it: like the
/// order of a hash's fields, it is no content (decision 41).
#[inline]
pub fn named_hash(name: u64, value: &Value, expires_at: crate::Expiry) -> u128 {
    mix(name.wrapping_add(expires_at.time().0.wrapping_mul(0x9e37_79b9_7f4a_7c15)), value.content_hash())
}

/// Mixes the hashes of a record's name and content. Contributions are added up, so the mix must not be a sum of a part of
/// the name and a part of the content: otherwise two records could exchange their contents unnoticed. Each step can be
/// undone, so different contents of one name never come out the same.
#[inline]
fn mix(name: u64, content: u128) -> u128 {
    let mut mixed = content ^ u128::from(name).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    mixed = mixed.wrapping_mul(0xda94_2042_e4dd_58b5_2360_ed05_1fc6_5da5);
    mixed ^= mixed >> 64;
    mixed.wrapping_mul(0xda94_2042_e4dd_58b5_d1b5_4a32_d192_ed03)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(n: u32) -> HashValue {
        let mut hash = HashValue::default();
        for i in 0..n {
            hash.set(format!("f{i}").as_bytes(), b"v");
        }
        hash
    }

    #[test]
    fn the_content_digest_depends_on_the_content_alone() {
        let mut a = filled(300);
        let b = filled(300);
        a.set(b"x", b"1");
        a.set(b"x", b"2");
        a.remove(b"x");
        assert_eq!(a.content, b.content);
        assert_eq!(a.len(), 300);
        let texts = |h: &HashValue| h.iter().map(|(f, v)| f.len() + v.len()).sum::<usize>();
        assert_eq!((a.bytes, b.bytes), (texts(&a), texts(&a)));
        a.remove(b"f7");
        assert_ne!(a.content, b.content);
        assert_eq!(a.bytes, texts(&a));
    }

    #[test]
    fn the_digest_tells_what_belongs_to_what() {
        let hash = |db, key: &str, value: &str, expires_at| {
            let value = Value::String(value.as_bytes().to_vec());
            record_hash(crate::Db(db), key.as_bytes(), &value, crate::Millis(expires_at).into())
        };
        // Two records exchange contents, databases or expiries; keys and values exchange their bytes.
        let sum = |records: [(u8, &str, &str, u64); 2]| {
            let hashes = records.map(|(db, key, value, expires_at)| hash(db, key, value, expires_at));
            hashes[0].wrapping_add(hashes[1])
        };
        for value in ["", "1", "some longer text that is no counter"] {
            let before = sum([(0, "a", value, 0), (1, "b", "2", 7)]);
            for after in [
                [(0, "a", "2", 0), (1, "b", value, 7)],
                [(1, "a", value, 0), (0, "b", "2", 7)],
                [(0, "a", value, 7), (1, "b", "2", 0)],
                [(0, "b", value, 0), (1, "a", "2", 7)],
                [(0, value, "a", 0), (1, "2", "b", 7)],
            ] {
                assert_ne!(sum(after), before, "{after:?}");
            }
        }
        // Neighbouring numbers in any of them do not come out the same, in either half.
        let mut seen = std::collections::BTreeSet::new();
        let mut count = 0;
        for (db, expires_at) in [(0, 0), (1, 0), (0, 1), (1, 1), (0, 1000)] {
            for key in 0..40 {
                for value in 0..40 {
                    let hash = hash(db, &format!("key:{key}"), &value.to_string(), expires_at);
                    assert!(seen.insert(hash as u64) && seen.insert((hash >> 64) as u64));
                    count += 1;
                }
            }
        }
        assert_eq!(count, 5 * 40 * 40);
    }

    #[test]
    fn a_scan_visits_every_field_that_stays() {
        for n in [5, 1000] {
            let mut hash = filled(n);
            let (mut cursor, mut seen, mut rounds) = (0, std::collections::BTreeSet::new(), 0);
            loop {
                cursor = hash.scan(cursor, 10, |f, _| {
                    seen.insert(f.to_vec());
                });
                rounds += 1;
                hash.remove(format!("f{}", n - 1 - rounds % 2).as_bytes());
                hash.set(format!("new{rounds}").as_bytes(), b"");
                if cursor == 0 {
                    break;
                }
            }
            assert!((0..n - 2).all(|i| seen.contains(format!("f{i}").as_bytes())));
        }
    }

    #[test]
    fn an_image_restores_order_and_representation() {
        for n in [3, 200] {
            let value = Value::Hash(Arc::new(filled(n)));
            let mut bytes = Vec::new();
            value.encode(&mut bytes);
            let (back, rest) = Value::decode(&bytes).unwrap();
            assert!(rest.is_empty());
            assert_eq!(back, value);
            assert!(Value::decode(&bytes[..bytes.len() - 1]).is_none());
            let mut compact = Vec::new();
            value.encode_compact(&mut compact);
            assert!(compact.len() < bytes.len());
            let read = |bytes| Value::decode_compact(&mut Reader::new(bytes));
            assert_eq!((read(&compact), read(&compact[..compact.len() - 1])), (Some(value), None));
        }
    }

    #[test]
    fn a_hash_that_became_a_table_stays_one() {
        let long = [7; HashValue::COMPACT_BYTES_MAX + 1];
        let most = HashValue::COMPACT_MAX as u32;
        let (mut by_field, mut by_value, mut by_number) = (filled(3), filled(3), filled(most));
        let before = by_number.content;
        for hash in [&by_field, &by_value, &by_number] {
            assert!(!hash.is_table());
        }
        by_field.set(&long[1..], &long[1..]);
        by_value.set(b"f0", &long[1..]);
        by_number.set(b"f0", b"v");
        for hash in [&by_field, &by_value, &by_number] {
            assert!(!hash.is_table());
        }
        by_field.set(&long, b"");
        by_value.set(b"f0", &long);
        by_number.set(b"one more", b"");
        by_field.remove(&long);
        by_value.set(b"f0", b"v");
        by_number.remove(b"one more");
        // It is no content.
        assert_eq!(by_number.content, before);
        for hash in [by_field, by_value, by_number] {
            assert!(hash.is_table());
            let mut bytes = Vec::new();
            Value::Hash(Arc::new(hash.clone())).encode(&mut bytes);
            assert_eq!(Value::decode(&bytes), Some((Value::Hash(Arc::new(hash)), &[][..])));
        }
        // As it was encoded before this was kept: what it is tells.
        for (value, is_table) in [(&long[..], true), (&long[1..], false)] {
            let mut old = vec![2, 1, 0, 0, 0, 1, 0, 0, 0, b'f', value.len() as u8, 0, 0, 0];
            old.extend_from_slice(value);
            let Some((Value::Hash(hash), [])) = Value::decode(&old) else { panic!("it is whole") };
            assert_eq!(hash.is_table(), is_table);
        }
    }

    #[test]
    fn a_value_fits_three_words() {
        assert_eq!(size_of::<Option<Value>>(), 24);
    }
}
