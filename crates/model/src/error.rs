//! The two kinds of error a transaction can meet, kept apart by type.
//!
//! [`PlanError`] is bad input: refused before it is sequenced, with no effect. [`Abort`] is deterministic: a
//! function of the state and the input, the same on every replica, part of the transaction's result. Local
//! errors (this node cannot go on) are the roles' and drivers' own and never appear in a result.

use std::borrow::Cow;

/// Why a call was refused before it was sequenced. The text is the error a Redis client is shown, byte by byte: it may quote
/// words that are not UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", String::from_utf8_lossy(.0))]
pub struct PlanError(pub Cow<'static, [u8]>);

impl PlanError {
    /// The error Redis gives for a wrong number of arguments.
    pub fn arity(command: &str) -> PlanError {
        PlanError::quoting("ERR wrong number of arguments for '", command.as_bytes(), "' command")
    }

    /// An error that quotes a word of the client's, as C quotes one: up to its first zero byte.
    pub fn quoting(before: &str, word: &[u8], after: &str) -> PlanError {
        let word = word.split(|byte| *byte == 0).next().unwrap_or_default();
        PlanError([before.as_bytes(), word, after.as_bytes()].concat().into())
    }

    /// The text without the common code in front, for an error of another code that gives it as its reason.
    pub fn reason(&self) -> &[u8] {
        self.0.strip_prefix(b"ERR ").unwrap_or(&self.0)
    }

    /// An error with a fixed text, which begins with its code (`ERR …`).
    pub const fn fixed(text: &'static str) -> PlanError {
        PlanError(Cow::Borrowed(text.as_bytes()))
    }

    /// `ERR syntax error`.
    pub const SYNTAX: PlanError = PlanError::fixed("ERR syntax error");
    /// `ERR value is not an integer or out of range`.
    pub const NOT_INTEGER: PlanError = PlanError::fixed("ERR value is not an integer or out of range");
}

/// Why a transaction had no effect although it was sequenced (calvin.md, section 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Abort {
    /// The transaction's own logic; its reply is what the failing fragment answered.
    Logic,
    /// Something that was read before is not as it was: WATCH, or an interactive transaction's validation.
    Conflict,
    /// The reconnaissance is out of date: run again with the fresh evidence in the reply (calvin.md, 4.7).
    Restart,
    /// The procedure panicked.
    Panic,
    /// The procedure ran past its budget of work, memory or fragments.
    Budget,
    /// It used what another transaction had written that aborted ([`Cascade::Abort`](crate::Cascade)).
    Cascade,
    /// An operator has aborted the transaction by its place in the order, on all nodes that take part in it.
    Operator,
}

impl Abort {
    /// Every kind.
    pub const ALL: [Abort; 7] = [
        Abort::Logic,
        Abort::Conflict,
        Abort::Restart,
        Abort::Panic,
        Abort::Budget,
        Abort::Cascade,
        Abort::Operator,
    ];

    /// The wire code; see [`Abort::from_code`].
    pub const fn code(self) -> u8 {
        match self {
            Abort::Logic => 1,
            Abort::Conflict => 2,
            Abort::Restart => 3,
            Abort::Panic => 4,
            Abort::Budget => 5,
            Abort::Cascade => 6,
            Abort::Operator => 7,
        }
    }

    /// The abort with this wire code, if there is one.
    pub const fn from_code(code: u8) -> Option<Abort> {
        Some(match code {
            1 => Abort::Logic,
            2 => Abort::Conflict,
            3 => Abort::Restart,
            4 => Abort::Panic,
            5 => Abort::Budget,
            6 => Abort::Cascade,
            7 => Abort::Operator,
            _ => return None,
        })
    }
}
