//! Stamps, tokens and versions: what the parts above an engine know of its order.
//!
//! A gateway, a session, a benchmark and the simulator carry these values and never look inside, so they serve engines
//! that count in epochs, in clock stamps and in vectors alike. Only the engine that made a value takes it apart. The
//! deterministic family counts in [`Gsn`]s and [`Epoch`]s; its conversions stand at the end of this file.

use std::fmt;

use crate::codec;
use crate::ids::{Epoch, Gsn};
use crate::wire::{Codec, Reader};

/// A stamp: where a transaction has taken effect, as its engine counts (a place in the order, a commit stamp, a sequence
/// number).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(u64);

codec!(struct Stamp(_));

impl Stamp {
    /// The stamp of a transaction that has taken effect nowhere.
    pub const NONE: Stamp = Stamp(0);

    /// The stamp with this number, which its engine has chosen and is not 0.
    pub const fn new(number: u64) -> Stamp {
        Stamp(number)
    }

    /// The number, for the engine that chose it.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The stamp before those of a chunk, given that of its transaction `index`, where an engine numbers the transactions
    /// of a chunk consecutively. Two runs of one chunk differ in it.
    #[must_use]
    pub const fn before_chunk(self, index: u32) -> Stamp {
        Stamp(self.0.wrapping_sub(index as u64))
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A token: what a connection has seen. Each of its requests carries it and sees no less, whatever node takes it.
///
/// A token is a vector of numbers, each of which only grows, and a set of marks (the anti-dependencies
/// of parallel snapshot isolation).
/// A vector of one number without marks, which is what most engines have, needs no memory of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Token {
    first: u64,
    /// The rest; none if it would be empty, so that equal tokens have one form.
    rest: Option<Box<Rest>>,
}

/// The parts of a token beyond its first number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rest {
    /// The numbers from the second on; the last is not 0.
    numbers: Vec<u64>,
    /// In ascending order, each once.
    marks: Vec<u128>,
}

codec!(struct Rest { numbers, marks });

impl Token {
    /// The token of a connection that has seen nothing.
    pub const NOTHING: Token = Token { first: 0, rest: None };

    /// A token of one number.
    pub const fn of(number: u64) -> Token {
        Token { first: number, rest: None }
    }

    /// A token of a vector of numbers with marks.
    pub fn of_vector(numbers: &[u64], marks: impl IntoIterator<Item = u128>) -> Token {
        let (first, numbers) = numbers.split_first().map_or((0, &[][..]), |(first, rest)| (*first, rest));
        let mut marks: Vec<u128> = marks.into_iter().collect();
        marks.sort_unstable();
        marks.dedup();
        Token::in_one_form(first, Rest { numbers: numbers.to_vec(), marks })
    }

    fn in_one_form(first: u64, mut rest: Rest) -> Token {
        let used = rest.numbers.iter().rposition(|number| *number > 0).map_or(0, |last| last + 1);
        rest.numbers.truncate(used);
        let is_empty = rest.numbers.is_empty() && rest.marks.is_empty();
        Token { first, rest: (!is_empty).then(|| Box::new(rest)) }
    }

    /// The number of a token of one number, for the engine that chose it.
    #[inline]
    pub const fn number(&self) -> u64 {
        self.first
    }

    /// The numbers of the vector, for the engine that chose them; those that are missing at the end are 0.
    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        std::iter::once(self.first).chain(self.rest.iter().flat_map(|rest| rest.numbers.iter().copied()))
    }

    /// The marks, in ascending order, for the engine that made them.
    pub fn marks(&self) -> &[u128] {
        self.rest.as_ref().map_or(&[], |rest| &rest.marks)
    }

    /// Adds what another token has seen: of each number the larger, and the marks of both.
    #[inline]
    pub fn merge(&mut self, other: &Token) {
        self.first = self.first.max(other.first);
        if let Some(rest) = &other.rest {
            self.merge_rest(rest);
        }
    }

    fn merge_rest(&mut self, other: &Rest) {
        let rest = self.rest.get_or_insert_default();
        if rest.numbers.len() < other.numbers.len() {
            rest.numbers.resize(other.numbers.len(), 0);
        }
        for (mine, theirs) in rest.numbers.iter_mut().zip(&other.numbers) {
            *mine = (*mine).max(*theirs);
        }
        if !other.marks.is_empty() {
            rest.marks.extend_from_slice(&other.marks);
            rest.marks.sort_unstable();
            rest.marks.dedup();
        }
    }

    /// The token of all that this one and another have seen.
    #[must_use]
    pub fn merged(mut self, other: &Token) -> Token {
        self.merge(other);
        self
    }

    /// True if merging another token would change nothing.
    #[inline]
    pub fn covers(&self, other: &Token) -> bool {
        self.first >= other.first && other.rest.as_ref().is_none_or(|rest| self.covers_rest(rest))
    }

    fn covers_rest(&self, other: &Rest) -> bool {
        let Some(rest) = &self.rest else { return false };
        let is_covered =
            |(at, number): (usize, &u64)| rest.numbers.get(at).is_some_and(|mine| mine >= number);
        // A number of 0 is covered by one that is missing, and the last number is not 0.
        rest.numbers.len() >= other.numbers.len()
            && other.numbers.iter().enumerate().all(is_covered)
            && other.marks.iter().all(|mark| rest.marks.binary_search(mark).is_ok())
    }
}

impl Codec for Token {
    const LEAST: usize = 9;

    fn encode(&self, out: &mut Vec<u8>) {
        self.rest.is_some().encode(out);
        self.first.encode(out);
        self.rest.iter().for_each(|rest| Rest::encode(rest, out));
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Token> {
        let (has_rest, first) = <(bool, u64)>::decode(bytes)?;
        if !has_rest {
            return Some(Token::of(first));
        }
        let rest = Rest::decode(bytes)?;
        let is_in_order = rest.marks.is_sorted_by(|one, next| one < next);
        let token = Token::in_one_form(first, rest.clone());
        (is_in_order && token.rest.as_deref() == Some(&rest)).then_some(token)
    }
}

/// The effect of a transaction: its place, and what a client that knows of it has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// The place of the effect.
    pub stamp: Stamp,
    /// The token of what its client has seen by its answer.
    pub token: Token,
}

impl Effect {
    /// No effect, which no client has seen.
    pub const NONE: Effect = Effect { stamp: Stamp::NONE, token: Token::NOTHING };
}

/// A version: the write that a record's content is of, as its engine names its writers. WATCH, interactive transactions and reconnaissance
/// compare versions for equality, and nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Version {
    high: u64,
    low: u64,
}

impl Version {
    /// The version of an absent record.
    pub const NONE: Version = Version { high: 0, low: 0 };

    /// The version named by one number.
    pub const fn of(number: u64) -> Version {
        Version { high: 0, low: number }
    }

    /// The version written by an attempt at a transaction, named by two numbers of which the first is not 0.
    pub const fn of_writer(id: u64, attempt: u64) -> Version {
        Version { high: id, low: attempt }
    }

    /// The number, if the version is named by one.
    pub const fn number(self) -> Option<u64> {
        if self.high == 0 { Some(self.low) } else { None }
    }

    /// The bytes of a version as arguments and replies hold it: 8 or 16, as it is named by one number or two.
    #[inline]
    pub fn with_bytes<T>(self, with: impl FnOnce(&[u8]) -> T) -> T {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.low.to_le_bytes());
        bytes[8..].copy_from_slice(&self.high.to_le_bytes());
        with(if self.high == 0 { &bytes[..8] } else { &bytes })
    }

    /// The version that the bytes are, if they are one.
    #[inline]
    pub fn from_bytes(bytes: &[u8]) -> Option<Version> {
        let (low, rest) = bytes.split_first_chunk()?;
        let low = u64::from_le_bytes(*low);
        if rest.is_empty() {
            return Some(Version::of(low));
        }
        let high = u64::from_le_bytes(rest.try_into().ok()?);
        (high > 0).then_some(Version { high, low })
    }
}

// How the deterministic family counts. Nothing above the engines uses what follows, but for tools that ask for that family.

impl From<Gsn> for Stamp {
    #[inline]
    fn from(gsn: Gsn) -> Stamp {
        Stamp(gsn.0)
    }
}

impl From<Stamp> for Gsn {
    #[inline]
    fn from(stamp: Stamp) -> Gsn {
        Gsn(stamp.0)
    }
}

impl From<Epoch> for Token {
    #[inline]
    fn from(epoch: Epoch) -> Token {
        Token::of(epoch.0)
    }
}

impl From<&Token> for Epoch {
    #[inline]
    fn from(token: &Token) -> Epoch {
        Epoch(token.first)
    }
}

impl From<Gsn> for Effect {
    #[inline]
    fn from(gsn: Gsn) -> Effect {
        Effect { stamp: gsn.into(), token: gsn.epoch().into() }
    }
}

impl From<Gsn> for Version {
    #[inline]
    fn from(gsn: Gsn) -> Version {
        Version::of(gsn.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token() -> impl Strategy<Value = Token> {
        let vector = (prop::collection::vec(0..4u64, 0..4), prop::collection::vec(0..4u128, 0..3));
        prop_oneof![
            (0..4u64).prop_map(Token::of),
            vector.prop_map(|(numbers, marks)| Token::of_vector(&numbers, marks)),
        ]
    }

    fn travelled(token: &Token) -> Token {
        let mut bytes = Vec::new();
        token.encode(&mut bytes);
        let mut reader = Reader::new(&bytes);
        let back = Token::decode(&mut reader).unwrap();
        for cut in 0..bytes.len() {
            assert!(Token::from_bytes(&bytes[..cut]).is_none());
        }
        reader.end(back).unwrap()
    }

    proptest! {
        #[test]
        fn tokens_merge_in_any_order_and_grouping(a in token(), b in token(), c in token()) {
            prop_assert_eq!(a.clone().merged(&b), b.clone().merged(&a));
            prop_assert_eq!(a.clone().merged(&b).merged(&c), a.clone().merged(&b.clone().merged(&c)));
            prop_assert_eq!(a.clone().merged(&a), a.clone());
            prop_assert_eq!(a.clone().merged(&Token::NOTHING), a);
        }

        #[test]
        fn a_token_covers_what_merging_does_not_change(a in token(), b in token()) {
            prop_assert_eq!(a.covers(&b), a.clone().merged(&b) == a);
            let both = a.clone().merged(&b);
            prop_assert!(both.covers(&a) && both.covers(&b) && a.covers(&Token::NOTHING));
        }

        #[test]
        fn a_merged_token_is_the_least_that_covers_both(a in token(), b in token(), c in token()) {
            prop_assert!(!(c.covers(&a) && c.covers(&b)) || c.covers(&a.merged(&b)));
        }

        #[test]
        fn tokens_travel(token in token()) {
            prop_assert_eq!(travelled(&token), token);
        }

        #[test]
        fn bytes_that_are_a_token_are_the_bytes_of_that_token(bytes in prop::collection::vec(0..3u8, 0..80)) {
            let mut reader = Reader::new(&bytes);
            if let Some(token) = Token::decode(&mut reader) {
                let mut again = Vec::new();
                token.encode(&mut again);
                prop_assert_eq!(&bytes[..bytes.len() - reader.rest().len()], &again[..]);
            }
        }

        #[test]
        fn versions_are_read_as_they_are_written(high in 0..3u64, low in any::<u64>()) {
            let version = Version { high, low };
            prop_assert_eq!(version.with_bytes(Version::from_bytes), Some(version));
            prop_assert_eq!(version.with_bytes(<[u8]>::len), if high == 0 { 8 } else { 16 });
        }
    }

    #[test]
    fn a_vector_of_one_number_is_that_number() {
        assert_eq!(Token::of_vector(&[7, 0, 0], []), Token::of(7));
        assert_eq!(Token::of_vector(&[], []), Token::NOTHING);
        assert_eq!(Token::of_vector(&[7, 8], [3, 1, 3]).marks(), [1, 3]);
        assert_eq!(Token::of_vector(&[7, 8], [3]).numbers().collect::<Vec<_>>(), [7, 8]);
        assert_eq!(size_of::<Token>(), 16);
    }

    #[test]
    fn a_version_is_8_bytes_or_16_and_nothing_else() {
        for len in (0..20).filter(|len| *len != 8) {
            assert_eq!(Version::from_bytes(&vec![0; len]), None);
        }
        assert_eq!(Version::from_bytes(&[0; 8]), Some(Version::NONE));
        assert_ne!(Version::of_writer(1, 7), Version::of(7));
    }

    #[test]
    fn a_place_in_the_order_is_a_stamp_and_its_epoch_a_token() {
        let gsn = Gsn::new(Epoch(7), crate::ids::PartitionId(1), 9);
        let effect = Effect::from(gsn);
        assert_eq!((Gsn::from(effect.stamp), Epoch::from(&effect.token)), (gsn, Epoch(7)));
        assert_eq!(Effect::from(Gsn::NONE), Effect::NONE);
        assert_eq!(effect.stamp.before_chunk(9), Gsn::new(Epoch(7), crate::ids::PartitionId(1), 0).into());
    }
}
