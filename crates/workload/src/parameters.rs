//! Parameters of workloads: how they are declared, and how those that make no sense are refused.

use std::fmt::Display;
use std::ops::RangeInclusive;

/// A parameter that makes no sense: its name, what it was given, and what it may be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParameterError(String);

impl ParameterError {
    pub(crate) fn new(refusal: String) -> ParameterError {
        ParameterError(refusal)
    }
}

/// Refuses what is not sound.
pub(crate) fn require(is_sound: bool, refusal: impl FnOnce() -> String) -> Result<(), ParameterError> {
    if is_sound { Ok(()) } else { Err(ParameterError(refusal())) }
}

/// Refuses a number outside its range.
pub(crate) fn require_in<T: PartialOrd + Display>(
    name: &str,
    given: T,
    range: RangeInclusive<T>,
) -> Result<(), ParameterError> {
    require(range.contains(&given), || {
        format!("{name} must be {} to {}, not {given}", range.start(), range.end())
    })
}

/// Refuses what is no share.
pub(crate) fn require_share(name: &str, share: f64) -> Result<(), ParameterError> {
    require((0.0..=1.0).contains(&share), || format!("{name} must be from 0 to 1, not {share}"))
}

/// Declares a struct of parameters, each with its default.
macro_rules! parameters {
    ($(#[$doc:meta])* pub struct $name:ident {
        $($(#[$field_doc:meta])* pub $field:ident: $type:ty = $default:expr,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> $name {
                $name { $($field: $default,)* }
            }
        }
    };
}
pub(crate) use parameters;
