//! Aggregates: what shards or populations have counted apart, merged and encoded.

/// A partial result that others are merged into.
pub trait Aggregate: Default {
    /// Adds what was found elsewhere.
    fn merge(&mut self, other: Self);

    /// Appends an encoding.
    fn encode(&self, out: &mut Vec<u8>);

    /// The encoding by itself.
    fn encoded(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }

    /// Decodes what [`Aggregate::encode`] wrote from the front of some bytes, which go on behind it; `None` for
    /// anything else.
    fn decode_front(bytes: &mut &[u8]) -> Option<Self>;

    /// Decodes what [`Aggregate::encode`] wrote; `None` for anything else.
    fn decode(mut bytes: &[u8]) -> Option<Self> {
        let decoded = Self::decode_front(&mut bytes)?;
        bytes.is_empty().then_some(decoded)
    }
}

/// Takes a little-endian word from the front of some bytes.
pub(crate) fn word(bytes: &mut &[u8]) -> Option<u64> {
    let (word, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*word))
}

/// Declares a struct of numbers as an [`Aggregate`]: merging adds, wrapping, and a number is encoded as a word.
macro_rules! sums {
    ($(#[$doc:meta])* $vis:vis struct $name:ident {
        $($(#[$field_doc:meta])* $field_vis:vis $field:ident: $type:ty,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $vis struct $name {
            $($(#[$field_doc])* $field_vis $field: $type,)*
        }

        impl $crate::aggregate::Aggregate for $name {
            fn merge(&mut self, other: $name) {
                $(self.$field = self.$field.wrapping_add(other.$field);)*
            }

            fn encode(&self, out: &mut Vec<u8>) {
                $(out.extend_from_slice(&(self.$field as u64).to_le_bytes());)*
            }

            fn decode_front(bytes: &mut &[u8]) -> Option<$name> {
                Some($name { $($field: $crate::aggregate::word(bytes)? as $type,)* })
            }
        }
    };
}
pub(crate) use sums;

#[cfg(test)]
mod tests {
    use super::*;

    sums! {
        struct Money {
            cents: i64,
            payments: u32,
        }
    }

    #[test]
    fn numbers_survive_encoding_and_damage_is_refused() {
        let money = Money { cents: -5, payments: 3 };
        let bytes = money.encoded();
        assert_eq!((bytes.len(), Money::decode(&bytes)), (16, Some(money)));
        for damaged in [&bytes[..15], &[&bytes[..], &[0]].concat()] {
            assert_eq!(Money::decode(damaged), None);
        }
    }

    #[test]
    fn merging_adds_and_wraps() {
        let mut sum = Money { cents: i64::MAX, payments: 1 };
        sum.merge(Money { cents: 1, payments: 2 });
        assert_eq!(sum, Money { cents: i64::MIN, payments: 3 });
    }
}
