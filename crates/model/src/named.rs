//! Choices that people make by name, on command lines and in files.

/// Lets a choice be written and read by its name in `ALL`, and says what is wrong with another name.
macro_rules! named {
    ($choice:ident, $unknown:ident, $wrong:literal) => {
        impl $choice {
            /// The names alone.
            pub const NAMES: [&'static str; Self::ALL.len()] = {
                let mut names = [""; Self::ALL.len()];
                let mut i = 0;
                while i < names.len() {
                    names[i] = Self::ALL[i].0;
                    i += 1;
                }
                names
            };
            /// What an error says of any other name: "no such thing: the names".
            pub const WRONG: &'static str = $wrong;
        }

        impl std::fmt::Display for $choice {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(
                    $choice::ALL.iter().find(|(_, choice)| choice == self).map_or("", |(name, _)| name),
                )
            }
        }

        #[doc = concat!("A name that is no [`", stringify!($choice), "`].")]
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        #[error("'{0}' is {wrong}", wrong = $wrong)]
        pub struct $unknown(pub String);

        impl std::str::FromStr for $choice {
            type Err = $unknown;

            fn from_str(name: &str) -> Result<$choice, $unknown> {
                let known = $choice::ALL.iter().find(|(known, _)| *known == name);
                known.map(|(_, choice)| *choice).ok_or_else(|| $unknown(name.into()))
            }
        }
    };
}

pub(crate) use named;
