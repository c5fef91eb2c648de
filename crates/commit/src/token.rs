//! Tokens: what the clients of a node have seen, as a word that a client takes along to another node (commit.md, R-TOKEN).
//!
//! ```text
//! version 1 byte | checksum 4 | database 4 | vector | readers        in the letters A-Z a-z 0-9 - _, six bits each
//! ```
//!
//! The checksum (CRC-32C, over the version and all behind the checksum) finds what a client has cut short or mixed up. It is no proof: whoever
//! wants to may make a token that names any number. So nothing of a token is believed that no log bears out ([`crate::tokens`]).
//!
//! A token has one form: what is read is what was written, letter by letter.

use ordain_gateway::TOKEN_MAX;
use ordain_model::wire::Codec as _;

use crate::view::Seen;

/// The version of the form.
const VERSION: u8 = 1;
/// The version, the checksum and the database, bytes.
const HEAD: usize = 9;
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The reason why a word is not heeded as a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is longer than any token.
    #[error(
        "ERR a token of CLIENT EPOCH has {TOKEN_MAX} bytes at most: pass on what CLIENT EPOCH has answered, as it is"
    )]
    TooLong,
    /// It is no word that a node writes.
    #[error(
        "ERR this is no token that CLIENT EPOCH has answered with this engine: pass on its answer, as it is"
    )]
    NotOne,
    /// It is of another version.
    #[error(
        "ERR this token has version {0} and this node reads version {VERSION}: ask for another one at a node of this \
         node's version"
    )]
    Version(u8),
    /// Its checksum is not that of its content.
    #[error(
        "ERR this token was cut short or changed, as its checksum shows: pass on what CLIENT EPOCH has answered, as it is"
    )]
    Damaged,
    /// It is of another cluster or engine, or of one with other partitions.
    #[error(
        "ERR this token is of another cluster or engine, and says nothing about this one: ask for one at a node of \
         this cluster, or go on without"
    )]
    Foreign,
}

/// A name of a cluster and its engine, of which tokens are: two may have the same one by chance, as they may have the same configuration.
pub fn database(cluster: &str, engine: &str) -> u32 {
    crc32c::crc32c(format!("{cluster}/{engine}").as_bytes())
}

/// Writes a token of a database; `None` if it would be too long.
pub fn write(seen: &Seen, database: u32) -> Option<Vec<u8>> {
    let mut bytes = vec![VERSION, 0, 0, 0, 0];
    bytes.extend_from_slice(&database.to_le_bytes());
    seen.encode(&mut bytes);
    let checksum = checksum(&bytes);
    bytes[1..5].copy_from_slice(&checksum.to_le_bytes());
    let word = to_letters(&bytes);
    (word.len() <= TOKEN_MAX).then_some(word)
}

/// Reads a token of a database with so many partitions.
///
/// # Errors
/// It is none, or of another one.
pub fn read(word: &[u8], database: u32, partitions: u16) -> Result<Seen, TokenError> {
    if word.len() > TOKEN_MAX {
        return Err(TokenError::TooLong);
    }
    let bytes = from_letters(word).filter(|bytes| bytes.len() >= HEAD).ok_or(TokenError::NotOne)?;
    if bytes[0] != VERSION {
        return Err(TokenError::Version(bytes[0]));
    }
    let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if number(1) != checksum(&bytes) {
        return Err(TokenError::Damaged);
    }
    if number(5) != database {
        return Err(TokenError::Foreign);
    }
    let seen = Seen::from_bytes(&bytes[HEAD..]).filter(|seen| seen.to_bytes() == bytes[HEAD..]);
    let seen = seen.ok_or(TokenError::Damaged)?;
    let is_here =
        seen.vector.fits(partitions) && seen.anti.iter().all(|who| who.home().partition.0 < partitions);
    if is_here { Ok(seen) } else { Err(TokenError::Foreign) }
}

fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..1]), &bytes[5..])
}

fn to_letters(bytes: &[u8]) -> Vec<u8> {
    let mut word = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let group =
            three.iter().fold(0u32, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        let letters = (0..=three.len()).map(|at| LETTERS[(group >> (18 - 6 * at) & 63) as usize]);
        word.extend(letters);
    }
    word
}

/// The bytes of a word; `None` if no bytes are written so.
fn from_letters(word: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(word.len() / 4 * 3 + 2);
    for four in word.chunks(4) {
        let mut group = 0u32;
        for letter in four {
            let value = match letter {
                b'A'..=b'Z' => letter - b'A',
                b'a'..=b'z' => letter - b'a' + 26,
                b'0'..=b'9' => letter - b'0' + 52,
                b'-' => 62,
                b'_' => 63,
                _ => return None,
            };
            group = group << 6 | u32::from(value);
        }
        let used = four.len().checked_sub(1).filter(|used| *used > 0)?;
        group <<= 6 * (4 - four.len());
        let [_, all @ ..] = group.to_be_bytes();
        // One word for the same bytes: what is left over is 0.
        if all[used..].iter().any(|byte| *byte != 0) {
            return None;
        }
        bytes.extend_from_slice(&all[..used]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use ordain_model::PartitionId;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::ids::{AttemptId, Lead, Term, TransactionId};
    use crate::view::{Anti, Vector};

    const DATABASE: u32 = 0x1234_5678;
    const PARTITIONS: u16 = 5;

    fn who(partition: u16, term: u64, number: u64, attempt: u32) -> AttemptId {
        let home = Lead { partition: PartitionId(partition), term: Term(term) };
        AttemptId { transaction: TransactionId { home, number }, attempt }
    }

    prop_compose! {
        fn seen()(
            numbers in vec(prop_oneof![Just(0), any::<u64>(), 0..300u64], 0..5),
            readers in vec((0..PARTITIONS, 0..3u64, any::<u64>(), 1..9u32), 0..20),
        ) -> Seen {
            let mut seen = Seen::NOTHING;
            numbers.iter().zip(0..).for_each(|(number, at)| seen.vector.raise(PartitionId(at), *number));
            readers.into_iter().for_each(|(p, term, number, attempt)| seen.anti.add(who(p, term, number, attempt)));
            seen
        }
    }

    /// A token with the right checksum around any content: what somebody makes who knows the form.
    fn around(content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![VERSION, 0, 0, 0, 0];
        bytes.extend_from_slice(&DATABASE.to_le_bytes());
        bytes.extend_from_slice(content);
        let checksum = checksum(&bytes).to_le_bytes();
        bytes[1..5].copy_from_slice(&checksum);
        to_letters(&bytes)
    }

    proptest! {
        #[test]
        fn a_token_is_printable_and_comes_back(seen in seen()) {
            let word = write(&seen, DATABASE).unwrap();
            prop_assert!(word.iter().all(|letter| LETTERS.contains(letter)));
            prop_assert_eq!(read(&word, DATABASE, PARTITIONS), Ok(seen));
        }

        #[test]
        fn a_token_that_was_cut_or_changed_is_refused(seen in seen(), at in any::<prop::sample::Index>(), letter in 0..64usize) {
            let word = write(&seen, DATABASE).unwrap();
            for cut in 0..word.len() {
                prop_assert!(read(&word[..cut], DATABASE, PARTITIONS).is_err());
            }
            let mut changed = word.clone();
            changed[at.index(word.len())] = LETTERS[letter];
            prop_assert_eq!(read(&changed, DATABASE, PARTITIONS).is_ok(), changed == word);
            changed.push(b'A');
            prop_assert!(read(&changed, DATABASE, PARTITIONS).is_err());
        }

        /// Any bytes are refused, or are what a node writes.
        #[test]
        fn any_bytes_are_refused_or_are_a_token(word in vec(any::<u8>(), 0..80), content in vec(any::<u8>(), 0..60)) {
            for word in [word.clone(), to_letters(&word), around(&content), around(&[])] {
                if let Ok(seen) = read(&word, DATABASE, PARTITIONS) {
                    prop_assert_eq!(write(&seen, DATABASE), Some(word));
                }
            }
        }
    }

    #[test]
    fn each_refusal_has_its_reason() {
        let seen = Seen { vector: Vector::NOTHING, anti: Anti::default() };
        let word = write(&seen, DATABASE).unwrap();
        let of = |word: &[u8]| read(word, DATABASE, PARTITIONS).unwrap_err();
        assert_eq!(of(&vec![b'A'; TOKEN_MAX + 1]), TokenError::TooLong);
        assert_eq!([of(b""), of(b"17"), of(b"not a token"), of(b"AQ==")], [TokenError::NotOne; 4]);
        let mut newer = from_letters(&word).unwrap();
        newer[0] = 2;
        assert_eq!(of(&to_letters(&newer)), TokenError::Version(2));
        assert_eq!(of(&word[..word.len() - 4]), TokenError::Damaged);
        assert_eq!(read(&word, database("other", "fwkv"), PARTITIONS), Err(TokenError::Foreign));
        assert_ne!(database("one", "fwkv"), database("one", "walter"));
        // Of partitions that are not there.
        let mut beyond = seen.clone();
        beyond.vector.raise(PartitionId(PARTITIONS), 1);
        assert_eq!(of(&write(&beyond, DATABASE).unwrap()), TokenError::Foreign);
        let mut beyond = seen;
        beyond.anti.add(who(PARTITIONS, 1, 1, 1));
        assert_eq!(of(&write(&beyond, DATABASE).unwrap()), TokenError::Foreign);
    }

    #[test]
    fn a_token_is_no_longer_than_it_may_be() {
        let mut seen = Seen::NOTHING;
        (0..3_000).for_each(|number| seen.anti.add(who(0, 1, number, 1)));
        assert!(write(&seen, DATABASE).is_some_and(|word| word.len() <= TOKEN_MAX));
        (0..9_000).for_each(|number| seen.anti.add(who(0, 1, number, 1)));
        assert_eq!(write(&seen, DATABASE), None);
    }
}
