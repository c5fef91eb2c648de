//! The bytes of messages between nodes and of records on disk: little-endian numbers, and counts before items.
//!
//! A type with bytes of its own is a [`Codec`]. [`codec!`](crate::codec) makes it one from a table of its fields, in the
//! order of their bytes:
//!
//! ```
//! use ordain_model::wire::Codec as _;
//! use ordain_model::{Epoch, PartitionId, codec};
//!
//! #[derive(Debug, PartialEq)]
//! struct Place {
//!     partition: PartitionId,
//!     epoch: Epoch,
//! }
//!
//! codec!(struct Place { partition, epoch });
//!
//! #[derive(Debug, PartialEq)]
//! enum Message {
//!     /// Asks for everything after some places.
//!     Want(Vec<Place>),
//!     /// Answers with what there is.
//!     Have { name: Option<u64>, content: Vec<u8> },
//!     /// Says that nothing follows.
//!     End,
//!     /// Wakes a role of this node.
//!     Wake,
//! }
//!
//! codec!(enum Message {
//!     0 => Want(places),
//!     1 => Have { name, content },
//!     2 => End,
//! }, local Wake);
//!
//! let message = Message::Want(vec![Place { partition: PartitionId(1), epoch: Epoch(7) }]);
//! let bytes = message.to_bytes();
//! assert_eq!(bytes, [0, 1, 0, 0, 0, 1, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
//! assert_eq!(Message::from_bytes(&bytes), Some(message));
//! ```
//!
//! Every field and every variant has to be named, so nothing is forgotten. A tag is written down, so a variant keeps its
//! bytes when others come or go. Variants that stay on their node are `local`: all have the tag [`LOCAL`], which nobody reads. A field whose bytes are
//! not those of its type's [`Codec`] names its [`Form`]: `content as Rest`.
//!
//! | type | bytes |
//! |---|---|
//! | numbers, ids, units | their size |
//! | `bool` | 1: 0 or 1 |
//! | `Option<T>` | a `bool`, then the value if there is one |
//! | `Vec<T>`, `BTreeSet<T>`, `BTreeMap<K, V>` | 4: the count; then the items in order |
//! | `Box<T>`, `Arc<T>`, `[T; N]`, tuples | those of their contents |
//!
//! Bytes may be damaged or hostile. Decoding answers `None` rather than panic, and takes no memory for a count that the
//! remaining bytes cannot hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::placement::Placement;
use crate::procedure::Registry;

/// A type with bytes of its own, on disk or between nodes.
pub trait Codec: Sized {
    /// The fewest bytes that a value takes, or less.
    const LEAST: usize;

    /// Appends the bytes of the value.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads a value from the front of some bytes; `None` if they begin with none.
    fn decode(bytes: &mut Reader<'_>) -> Option<Self>;

    /// The bytes of the value.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }

    /// Reads a value of which these are all the bytes.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Reader::new(bytes).whole()
    }

    /// Appends the bytes of several values.
    #[inline]
    fn encode_all(values: &[Self], out: &mut Vec<u8>) {
        values.iter().for_each(|value| value.encode(out));
    }

    /// Reads so many values.
    #[inline]
    fn decode_all(count: usize, bytes: &mut Reader<'_>) -> Option<Vec<Self>> {
        // A count is only a claim: no more room is made for it than the bytes are worth.
        let room = 2 * bytes.rest.len() / size_of::<Self>().max(1);
        let mut values = Vec::with_capacity(count.min(room));
        for _ in 0..count {
            values.push(Self::decode(bytes)?);
        }
        Some(values)
    }
}

/// Another way to write a `T` than its own [`Codec`], for the fields of [`codec!`](crate::codec) that name it.
pub trait Form<T> {
    /// The fewest bytes that a value takes, or less.
    const LEAST: usize;

    /// Appends the bytes of the value.
    fn encode(value: &T, out: &mut Vec<u8>);

    /// Reads a value from the front of some bytes; `None` if they begin with none.
    fn decode(bytes: &mut Reader<'_>) -> Option<T>;
}

/// The form of a field that names none: its type's [`Codec`].
#[derive(Debug)]
pub enum Plain {}

/// The form of bytes that go on to the end of the message. No bytes are `None`.
#[derive(Debug)]
pub enum Rest {}

/// The form of a value with its length before it, in 4 bytes.
#[derive(Debug)]
pub enum Framed {}

/// The form of a number below 65,536, in 2 bytes.
#[derive(Debug)]
pub enum Short {}

/// The tag of the variants that stay on their node. Nothing is read from it.
pub const LOCAL: u8 = u8::MAX;

/// Makes a struct, a newtype or an enum a [`Codec`](crate::wire::Codec): see [`wire`](crate::wire).
#[macro_export]
macro_rules! codec {
    (struct $name:ident { $($field:ident $(as $form:ty)?),+ $(,)? }) => {
        impl $crate::wire::Codec for $name {
            const LEAST: usize =
                0 $(+ $crate::wire::least::<$crate::codec!(@form $($form)?), _, _>(|it: &Self| &it.$field))+;

            fn encode(&self, out: &mut Vec<u8>) {
                let Self { $($field),+ } = self;
                $(<$crate::codec!(@form $($form)?) as $crate::wire::Form<_>>::encode($field, out);)+
            }

            fn decode(bytes: &mut $crate::wire::Reader<'_>) -> Option<Self> {
                Some(Self {
                    $($field: <$crate::codec!(@form $($form)?) as $crate::wire::Form<_>>::decode(bytes)?,)+
                })
            }
        }
    };
    (struct $($name:ident(_)),+ $(,)?) => {
        $(impl $crate::wire::Codec for $name {
            const LEAST: usize = $crate::wire::least::<$crate::wire::Plain, _, _>(|it: &Self| &it.0);

            #[inline]
            fn encode(&self, out: &mut Vec<u8>) {
                self.0.encode(out);
            }

            #[inline]
            fn decode(bytes: &mut $crate::wire::Reader<'_>) -> Option<Self> {
                $crate::wire::Codec::decode(bytes).map($name)
            }
        })+
    };
    (enum $name:ident $(<$param:ident>)? {
        $($tag:tt => $variant:ident
            $({ $($field:ident $(as $form:ty)?),+ $(,)? })?
            $(( $($item:ident $(as $item_form:ty)?),+ ))?,)+
    } $(, local $($local:ident)|+)?) => {
        impl $(<$param: $crate::wire::Codec>)? $crate::wire::Codec for $name $(<$param>)? {
            const LEAST: usize = 1;

            fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $({ $($field),+ })? $(( $($item),+ ))? => {
                        out.push($tag);
                        $($(<$crate::codec!(@form $($form)?) as $crate::wire::Form<_>>::encode($field, out);)+)?
                        $($(<$crate::codec!(@form $($item_form)?) as $crate::wire::Form<_>>::encode($item, out);)+)?
                    })+
                    $($(Self::$local { .. })|+ => out.push($crate::wire::LOCAL),)?
                }
            }

            fn decode(bytes: &mut $crate::wire::Reader<'_>) -> Option<Self> {
                Some(match bytes.u8()? {
                    $($tag => {
                        $($(let $field = <$crate::codec!(@form $($form)?) as $crate::wire::Form<_>>::decode(bytes)?;)+)?
                        $($(let $item = <$crate::codec!(@form $($item_form)?) as $crate::wire::Form<_>>::decode(bytes)?;)+)?
                        Self::$variant $({ $($field),+ })? $(( $($item),+ ))?
                    })+
                    _ => return None,
                })
            }
        }
    };
    (@form) => { $crate::wire::Plain };
    (@form $form:ty) => { $form };
}

/// The fewest bytes of a field in a form. The field's type is found by the function, which is not called.
#[doc(hidden)]
pub const fn least<F: Form<T>, S, T>(_field: fn(&S) -> &T) -> usize {
    F::LEAST
}

impl<T: Codec> Form<T> for Plain {
    const LEAST: usize = T::LEAST;

    #[inline]
    fn encode(value: &T, out: &mut Vec<u8>) {
        value.encode(out);
    }

    #[inline]
    fn decode(bytes: &mut Reader<'_>) -> Option<T> {
        T::decode(bytes)
    }
}

impl Form<Option<Arc<Vec<u8>>>> for Rest {
    const LEAST: usize = 0;

    fn encode(value: &Option<Arc<Vec<u8>>>, out: &mut Vec<u8>) {
        out.extend_from_slice(value.as_deref().map_or(&[], |bytes| bytes));
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Option<Arc<Vec<u8>>>> {
        let rest = bytes.take_rest();
        Some((!rest.is_empty()).then(|| Arc::new(rest.to_vec())))
    }
}

impl Form<usize> for Short {
    const LEAST: usize = 2;

    #[inline]
    fn encode(number: &usize, out: &mut Vec<u8>) {
        u16(out, *number as u16);
    }

    #[inline]
    fn decode(bytes: &mut Reader<'_>) -> Option<usize> {
        bytes.u16().map(usize::from)
    }
}

impl<T: Codec> Form<T> for Framed {
    const LEAST: usize = 4 + T::LEAST;

    fn encode(value: &T, out: &mut Vec<u8>) {
        let at = out.len();
        u32(out, 0);
        value.encode(out);
        let len = (out.len() - at - 4) as u32;
        out[at..at + 4].copy_from_slice(&len.to_le_bytes());
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<T> {
        Reader { rest: bytes.bytes()?, ..*bytes }.whole()
    }
}

/// Takes bytes apart, from their front.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    registry: Option<&'a Registry>,
    placement: Option<&'a Placement>,
}

macro_rules! numbers {
    ($($name:ident: $type:ty),*) => {
        impl<'a> Reader<'a> {$(
            /// The next number.
            #[inline]
            pub fn $name(&mut self) -> Option<$type> {
                self.array().map(<$type>::from_le_bytes)
            }
        )*}
        $(
            /// Appends a number.
            #[inline]
            pub fn $name(out: &mut Vec<u8>, number: $type) {
                out.extend_from_slice(&number.to_le_bytes());
            }
        )*
    };
}

numbers!(u8: u8, u16: u16, u32: u32, u64: u64, u128: u128);

impl<'a> Reader<'a> {
    /// Reads bytes in which no transactions stand.
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes, registry: None, placement: None }
    }

    /// Reads bytes in which records that are placed like this may stand, and no transactions.
    #[inline]
    pub const fn placed(placement: &'a Placement, bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes, registry: None, placement: Some(placement) }
    }

    /// Reads bytes in which transactions of these procedures may stand.
    #[inline]
    pub const fn of(registry: &'a Registry, bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes, registry: Some(registry), placement: Some(registry.placement()) }
    }

    /// The procedures of the transactions in the bytes; `None` if there are to be none.
    pub const fn registry(&self) -> Option<&'a Registry> {
        self.registry
    }

    /// The placement of the records in the bytes; `None` if there are to be none.
    pub const fn placement(&self) -> Option<&'a Placement> {
        self.placement
    }

    /// The bytes that were not taken yet.
    #[inline]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Takes all that is left.
    #[inline]
    pub fn take_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Takes so many bytes.
    #[inline]
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.rest.split_at_checked(len)?;
        self.rest = tail;
        Some(head)
    }

    /// Takes as many bytes as an array has.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.rest.split_first_chunk()?;
        self.rest = tail;
        Some(*head)
    }

    /// Takes bytes with their length before them.
    #[inline]
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        self.take(len)
    }

    /// Takes what `read` reads, which answers it with what it leaves.
    #[inline]
    pub fn take_by<T>(&mut self, read: impl FnOnce(&'a [u8]) -> Option<(T, &'a [u8])>) -> Option<T> {
        let (value, rest) = read(self.rest)?;
        self.rest = rest;
        Some(value)
    }

    /// The count of the items that follow, each of at least `least` bytes. A count that the rest cannot hold is damage,
    /// found before room is made for the items.
    pub fn count(&mut self, least: usize) -> Option<usize> {
        let count = self.u32()? as usize;
        (count.checked_mul(least)? <= self.rest.len()).then_some(count)
    }

    /// Whether nothing is left.
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads a value of which these are all the bytes.
    pub fn whole<T: Codec>(mut self) -> Option<T> {
        let value = T::decode(&mut self)?;
        self.end(value)
    }

    /// `value`, if nothing is left.
    pub fn end<T>(self, value: T) -> Option<T> {
        self.is_empty().then_some(value)
    }
}

/// Appends bytes with their length before them.
#[inline]
pub fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    u32(out, bytes.len() as u32);
    out.extend_from_slice(bytes);
}

macro_rules! number_codecs {
    ($($type:ident),*) => {$(
        impl Codec for $type {
            const LEAST: usize = size_of::<$type>();

            #[inline]
            fn encode(&self, out: &mut Vec<u8>) {
                $type(out, *self);
            }

            #[inline]
            fn decode(bytes: &mut Reader<'_>) -> Option<Self> {
                bytes.$type()
            }
        }
    )*};
}

number_codecs!(u16, u32, u64, u128);

impl Codec for u8 {
    const LEAST: usize = 1;

    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }

    #[inline]
    fn decode(bytes: &mut Reader<'_>) -> Option<u8> {
        bytes.u8()
    }

    #[inline]
    fn encode_all(values: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(values);
    }

    #[inline]
    fn decode_all(count: usize, bytes: &mut Reader<'_>) -> Option<Vec<u8>> {
        bytes.take(count).map(<[u8]>::to_vec)
    }
}

impl Codec for bool {
    const LEAST: usize = 1;

    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    #[inline]
    fn decode(bytes: &mut Reader<'_>) -> Option<bool> {
        match bytes.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl<T: Codec> Codec for Option<T> {
    const LEAST: usize = 1;

    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        self.is_some().encode(out);
        self.iter().for_each(|value| value.encode(out));
    }

    #[inline]
    fn decode(bytes: &mut Reader<'_>) -> Option<Option<T>> {
        match bool::decode(bytes)? {
            true => T::decode(bytes).map(Some),
            false => Some(None),
        }
    }
}

impl<T: Codec> Codec for Vec<T> {
    const LEAST: usize = 4;

    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        u32(out, self.len() as u32);
        T::encode_all(self, out);
    }

    #[inline]
    fn decode(bytes: &mut Reader<'_>) -> Option<Vec<T>> {
        let count = bytes.count(T::LEAST.max(1))?;
        T::decode_all(count, bytes)
    }
}

impl<T: Codec + Ord> Codec for BTreeSet<T> {
    const LEAST: usize = 4;

    fn encode(&self, out: &mut Vec<u8>) {
        u32(out, self.len() as u32);
        self.iter().for_each(|value| value.encode(out));
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<BTreeSet<T>> {
        Vec::decode(bytes).map(BTreeSet::from_iter)
    }
}

impl<K: Codec + Ord, V: Codec> Codec for BTreeMap<K, V> {
    const LEAST: usize = 4;

    fn encode(&self, out: &mut Vec<u8>) {
        u32(out, self.len() as u32);
        for (key, value) in self {
            key.encode(out);
            value.encode(out);
        }
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<BTreeMap<K, V>> {
        Vec::decode(bytes).map(BTreeMap::from_iter)
    }
}

impl<const N: usize> Codec for [u8; N] {
    const LEAST: usize = N;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<[u8; N]> {
        bytes.array()
    }
}

macro_rules! pointer_codecs {
    ($($pointer:ident),*) => {$(
        impl<T: Codec> Codec for $pointer<T> {
            const LEAST: usize = T::LEAST;

            fn encode(&self, out: &mut Vec<u8>) {
                T::encode(self, out);
            }

            fn decode(bytes: &mut Reader<'_>) -> Option<Self> {
                T::decode(bytes).map($pointer::new)
            }
        }
    )*};
}

pointer_codecs!(Box, Arc);

macro_rules! tuple_codecs {
    ($(($($name:ident),*)),*) => {$(
        impl<$($name: Codec),*> Codec for ($($name,)*) {
            const LEAST: usize = 0 $(+ $name::LEAST)*;

            #[inline]
            fn encode(&self, out: &mut Vec<u8>) {
                #[expect(non_snake_case, reason = "a value is named for its type")]
                let ($($name,)*) = self;
                $($name.encode(out);)*
            }

            #[inline]
            fn decode(bytes: &mut Reader<'_>) -> Option<Self> {
                Some(($($name::decode(bytes)?,)*))
            }
        }
    )*};
}

tuple_codecs!((A, B), (A, B, C));

/// Nothing: an engine without messages of its own.
impl Codec for () {
    const LEAST: usize = 0;

    fn encode(&self, _out: &mut Vec<u8>) {}

    fn decode(_bytes: &mut Reader<'_>) -> Option<()> {
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Id(u16);

    #[derive(Clone, Debug, PartialEq)]
    struct Part {
        id: Id,
        content: Option<Arc<Vec<u8>>>,
        framed: Vec<u64>,
    }

    #[derive(Clone, Debug, PartialEq)]
    enum Sample {
        Numbers(u8, u16, u32, u64, u128, bool),
        Parts { parts: Vec<Part>, last: Box<Part> },
        Sets { ids: BTreeSet<Id>, names: BTreeMap<Id, (u8, [u8; 3])> },
        Nested(Option<Arc<Sample>>),
        Tail { id: Id, content: Option<Arc<Vec<u8>>> },
        Nothing,
        Local(u64),
    }

    codec!(struct Id(_));
    codec!(struct Part { id, framed as Framed, content });
    codec!(enum Sample {
        0 => Numbers(a, b, c, d, e, f),
        1 => Parts { parts, last },
        2 => Sets { ids, names },
        4 => Nested(sample),
        7 => Tail { id, content as Rest },
        200 => Nothing,
    }, local Local);

    fn id() -> impl Strategy<Value = Id> {
        any::<u16>().prop_map(Id)
    }

    fn content() -> impl Strategy<Value = Option<Arc<Vec<u8>>>> {
        prop::option::of(prop::collection::vec(any::<u8>(), 1..9).prop_map(Arc::new))
    }

    fn part() -> impl Strategy<Value = Part> {
        let framed = prop::collection::vec(any::<u64>(), 0..4);
        (id(), content(), framed).prop_map(|(id, content, framed)| Part { id, content, framed })
    }

    /// Samples that end before their bytes do.
    fn inner() -> impl Strategy<Value = Sample> {
        let names = prop::collection::btree_map(id(), any::<(u8, [u8; 3])>(), 0..4);
        prop_oneof![
            any::<(u8, u16, u32, u64, u128, bool)>()
                .prop_map(|(a, b, c, d, e, f)| Sample::Numbers(a, b, c, d, e, f)),
            (prop::collection::vec(part(), 0..4), part())
                .prop_map(|(parts, last)| Sample::Parts { parts, last: Box::new(last) }),
            (prop::collection::btree_set(id(), 0..4), names)
                .prop_map(|(ids, names)| Sample::Sets { ids, names }),
            Just(Sample::Nothing),
        ]
    }

    fn sample() -> impl Strategy<Value = Sample> {
        let nested = prop::option::of(inner()).prop_map(|sample| Sample::Nested(sample.map(Arc::new)));
        let tail = (id(), content()).prop_map(|(id, content)| Sample::Tail { id, content });
        prop_oneof![inner(), nested, tail]
    }

    proptest! {
        #[test]
        fn a_value_is_read_as_it_was_written_and_no_part_of_it(sample in sample()) {
            let bytes = sample.to_bytes();
            prop_assert_eq!(Sample::from_bytes(&bytes), Some(sample.clone()));
            if !matches!(sample, Sample::Tail { .. }) {
                prop_assert!((0..bytes.len()).all(|cut| Sample::from_bytes(&bytes[..cut]).is_none()));
            }
        }

        #[test]
        fn a_flipped_bit_makes_another_value_or_none(sample in sample()) {
            let bytes = sample.to_bytes();
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                prop_assert_ne!(Sample::from_bytes(&flipped), Some(sample.clone()));
            }
        }

        #[test]
        fn noise_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = Sample::from_bytes(&bytes);
        }

        /// The room that is made for a list is at most twice what its bytes are worth, whatever its count claims.
        #[test]
        fn a_count_is_only_a_claim(count in any::<u32>(), bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let claimed = [&count.to_le_bytes(), &bytes[..]].concat();
            if let Some(list) = Vec::<Sample>::decode(&mut Reader::new(&claimed)) {
                prop_assert!(list.capacity() * size_of::<Sample>() <= 2 * bytes.len().max(4 * size_of::<Sample>()));
            }
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_table() {
        let part = Part { id: Id(0x0102), content: Some(Arc::new(b"abc".to_vec())), framed: vec![7] };
        let bytes = Sample::Parts { parts: Vec::new(), last: Box::new(part) }.to_bytes();
        let framed = [&[12, 0, 0, 0, 1, 0, 0, 0][..], &7u64.to_le_bytes()].concat();
        let expected = [&[1, 0, 0, 0, 0, 2, 1][..], &framed, &[1, 3, 0, 0, 0], b"abc"].concat();
        assert_eq!(bytes, expected);
        assert_eq!((Id::LEAST, Part::LEAST), (2, 2 + 4 + 4 + 1));
        assert_eq!(Sample::Local(7).to_bytes(), [LOCAL]);
        assert_eq!(Sample::from_bytes(&[LOCAL]), None);
        assert_eq!(Sample::from_bytes(&[0; 33]), Some(Sample::Numbers(0, 0, 0, 0, 0, false)));
    }

    #[test]
    fn a_reader_takes_what_is_there_and_nothing_beyond() {
        let mut out = Vec::new();
        u8(&mut out, 7);
        u16(&mut out, 300);
        bytes(&mut out, b"abc");
        u64(&mut out, u64::MAX);
        let mut reader = Reader::new(&out);
        assert_eq!((reader.u8(), reader.u16()), (Some(7), Some(300)));
        assert_eq!((reader.bytes(), reader.u64()), (Some(&b"abc"[..]), Some(u64::MAX)));
        assert_eq!((reader.u8(), reader.end(())), (None, Some(())));
        assert_eq!(Reader::new(&out[..5]).end(()), None);
        assert_eq!(Reader::new(&[9, 0, 0, 0, 1]).bytes(), None);
        assert_eq!(Reader::new(&[255, 255, 255, 255, 1]).count(8), None);
    }
}
