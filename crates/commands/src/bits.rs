//! Sets of named bits: the flags and the categories of commands.

/// Declares a set of named bits from one table: each bit with its place and its name in Redis.
macro_rules! bits {
    ($(#[$doc:meta])* $set:ident { $($(#[$bit_doc:meta])* $bit:ident = $at:literal, $name:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $set(u32);

        impl $set {
            /// The empty set.
            pub const NONE: $set = $set(0);
            $($(#[$bit_doc])* pub const $bit: $set = $set(1 << $at);)*
            /// The bits by name, in Redis's order.
            const NAMES: &'static [(&'static str, $set)] = &[$(($name, $set::$bit)),*];

            /// The union with another set.
            #[must_use]
            pub const fn and(self, more: $set) -> $set {
                $set(self.0 | more.0)
            }

            /// True if all of `other` are in the set.
            pub const fn has(self, other: $set) -> bool {
                self.0 & other.0 == other.0
            }

            /// The names of the bits that are set, in Redis's order.
            pub fn names(self) -> impl Iterator<Item = &'static str> {
                $set::NAMES.iter().filter(move |(_, bit)| self.has(*bit)).map(|(name, _)| *name)
            }
        }
    };
}

pub(crate) use bits;
