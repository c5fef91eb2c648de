//! Choices that people make by name, on command lines and in files.

use crate::options::any_of;

/// A name that is none of a choice's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{name}' is {wrong}: {}", any_of(known))]
pub struct UnknownName {
    /// The name.
    pub name: String,
    /// The verdict: "no such thing".
    pub wrong: &'static str,
    /// The choice's names.
    pub known: &'static [&'static str],
}

/// Declares a choice from one table: each of its values with its name. The text says what any other name is.
macro_rules! named {
    ($(#[$doc:meta])* $choice:ident, $wrong:literal { $($(#[$about:meta])* $value:ident = $name:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $choice {
            $($(#[$about])* $value,)*
        }

        impl $choice {
            /// All values, by name.
            pub const ALL: [(&'static str, $choice); [$($name),*].len()] = [$(($name, $choice::$value)),*];
            /// The names alone.
            pub const NAMES: [&'static str; Self::ALL.len()] = [$($name),*];
            /// The verdict on any other name, for an error: "no such thing".
            pub const WRONG: &'static str = $wrong;
        }

        impl std::fmt::Display for $choice {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str($choice::NAMES[*self as usize])
            }
        }

        impl std::str::FromStr for $choice {
            type Err = $crate::named::UnknownName;

            fn from_str(name: &str) -> Result<$choice, Self::Err> {
                let known = $choice::ALL.iter().find(|(known, _)| *known == name);
                known.map(|(_, value)| *value).ok_or_else(|| $crate::named::UnknownName {
                    name: name.to_owned(),
                    wrong: $choice::WRONG,
                    known: &$choice::NAMES,
                })
            }
        }
    };
}

pub(crate) use named;

#[cfg(test)]
mod tests {
    use std::fmt::{Debug, Display};
    use std::str::FromStr;

    use super::UnknownName;
    use crate::{Backoff, Cascade, CheckpointMode, Execution, Isolation, Reads, StampSource};

    fn check<T: FromStr<Err = UnknownName> + Display + Debug + PartialEq>(all: &[(&str, T)], wrong: &str) {
        for (name, value) in all {
            assert_eq!(name.parse().as_ref(), Ok(value));
            assert_eq!(value.to_string(), *name);
        }
        assert_eq!("other".parse::<T>().unwrap_err().to_string(), format!("'other' is {wrong}"));
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        check(&Isolation::ALL, "no isolation level: serializable or read-committed");
        check(&CheckpointMode::ALL, "no way to take a checkpoint: multiversion, naive or zigzag");
        check(&Execution::ALL, "no way to execute transactions: speculative, conservative or auto");
        check(&Backoff::ALL, "no way to back off: exp, none or deneva");
        check(&StampSource::ALL, "no source of stamps: hlc, clock or counter");
        check(&Cascade::ALL, "no way to handle a cascade: repair or abort");
        check(&Reads::ALL, "no way to run reads: ordered, previous, session or strict");
    }
}
