//! Times of expiry: the units and bounds that all commands with a time share.

use ordain_model::{ArgIter, CellMut, Millis, PlanError};

use crate::number::parse_i64;
use crate::shape::{NOT_INTEGER, Refusal, SYNTAX};

/// In what a time is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeUnit {
    /// Seconds rather than milliseconds.
    pub(crate) seconds: bool,
    /// Counted from the Unix epoch rather than from the transaction's time.
    pub(crate) absolute: bool,
}

impl TimeUnit {
    pub(crate) const EX: TimeUnit = TimeUnit { seconds: true, absolute: false };
    pub(crate) const PX: TimeUnit = TimeUnit { seconds: false, absolute: false };
    pub(crate) const EXAT: TimeUnit = TimeUnit { seconds: true, absolute: true };
    pub(crate) const PXAT: TimeUnit = TimeUnit { seconds: false, absolute: true };

    /// The option of SET and GETEX with this name.
    fn named(option: &[u8]) -> Option<TimeUnit> {
        [
            (&b"EX"[..], TimeUnit::EX),
            (b"PX", TimeUnit::PX),
            (b"EXAT", TimeUnit::EXAT),
            (b"PXAT", TimeUnit::PXAT),
        ]
        .into_iter()
        .find(|(name, _)| option.eq_ignore_ascii_case(name))
        .map(|(_, unit)| unit)
    }

    /// The point in time that `n` of this unit means, milliseconds since the Unix epoch; `None` if that
    /// does not fit 64 bits. It may lie in the past, even before 1970.
    pub(crate) fn instant(self, n: i64, now: Millis) -> Option<i64> {
        let n = if self.seconds { n.checked_mul(1000)? } else { n };
        if self.absolute { Some(n) } else { n.checked_add(i64::try_from(now.0).ok()?) }
    }

    /// As [`TimeUnit::instant`], of a text, for commands that want a positive number.
    ///
    /// `invalid` is the error that names the command.
    pub(crate) fn positive(self, text: &[u8], now: Millis, invalid: Refusal) -> Result<i64, Refusal> {
        let n = parse_i64(text).ok_or(NOT_INTEGER)?;
        if n <= 0 {
            return Err(invalid);
        }
        self.instant(n, now).ok_or(invalid)
    }

    /// As [`TimeUnit::positive`], of a text that a transaction is to be planned from. True if the text means a time then whenever
    /// that is.
    pub(crate) fn check(self, text: &[u8], invalid: Refusal) -> Result<bool, Refusal> {
        self.positive(text, Millis(0), invalid)?;
        Ok(self.positive(text, NEVER_YET, invalid).is_ok())
    }
}

/// A time that no transaction has: the year 146,140,482.
const NEVER_YET: Millis = Millis(1 << 62);

/// Lets the record exist through `at`, or deletes it if that is now or past, as Redis does.
pub(crate) fn expire_at(cell: &mut CellMut<'_>, at: i64, now: Millis) {
    match u64::try_from(at) {
        Ok(at) if at > now.0 => cell.set_expiry(Millis(at)),
        _ => cell.delete(),
    }
}

/// The options of SET and GETEX.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StringOptions<'a> {
    pub(crate) only_if_absent: bool,
    pub(crate) only_if_present: bool,
    pub(crate) get: bool,
    pub(crate) keep_ttl: bool,
    pub(crate) persist: bool,
    pub(crate) expiry: Option<(TimeUnit, &'a [u8])>,
}

impl<'a> StringOptions<'a> {
    /// True if one of them concerns the record as it is.
    pub(crate) const fn look(&self) -> bool {
        self.only_if_absent || self.only_if_present || self.get || self.keep_ttl || self.persist
    }

    /// Reads the options of SET.
    pub(crate) fn of_set(rest: ArgIter<'a>) -> Result<StringOptions<'a>, Refusal> {
        StringOptions::parse(rest, |options, word| {
            let place = if word.eq_ignore_ascii_case(b"NX") && !options.only_if_present {
                &mut options.only_if_absent
            } else if word.eq_ignore_ascii_case(b"XX") && !options.only_if_absent {
                &mut options.only_if_present
            } else if word.eq_ignore_ascii_case(b"GET") {
                &mut options.get
            } else if word.eq_ignore_ascii_case(b"KEEPTTL") && options.expiry.is_none() {
                &mut options.keep_ttl
            } else {
                return false;
            };
            *place = true;
            true
        })
    }

    /// Reads the options of GETEX.
    pub(crate) fn of_getex(rest: ArgIter<'a>) -> Result<StringOptions<'a>, Refusal> {
        StringOptions::parse(rest, |options, word| {
            let persist = word.eq_ignore_ascii_case(b"PERSIST") && options.expiry.is_none();
            options.persist |= persist;
            persist
        })
    }

    fn parse(
        mut rest: ArgIter<'a>,
        mut flag: impl FnMut(&mut StringOptions<'a>, &[u8]) -> bool,
    ) -> Result<StringOptions<'a>, Refusal> {
        let mut options = StringOptions::default();
        while let Some(word) = rest.next() {
            if flag(&mut options, word.bytes) {
                continue;
            }
            let unit = TimeUnit::named(word.bytes).ok_or(SYNTAX)?;
            let taken = options.expiry.is_some_and(|(other, _)| other != unit);
            if taken || options.keep_ttl || options.persist {
                return Err(SYNTAX);
            }
            options.expiry = Some((unit, rest.next().ok_or(SYNTAX)?.bytes));
        }
        Ok(options)
    }
}

/// The conditions of EXPIRE and its relatives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Conditions {
    only_without: bool,
    only_with: bool,
    only_later: bool,
    only_sooner: bool,
}

impl Conditions {
    /// Reads the conditions.
    pub(crate) fn parse(rest: ArgIter<'_>) -> Result<Conditions, PlanError> {
        let mut c = Conditions::default();
        for word in rest {
            let place = match word.bytes.to_ascii_uppercase().as_slice() {
                b"NX" => &mut c.only_without,
                b"XX" => &mut c.only_with,
                b"GT" => &mut c.only_later,
                b"LT" => &mut c.only_sooner,
                _ => {
                    return Err(PlanError::quoting("ERR Unsupported option ", word.bytes, ""));
                }
            };
            *place = true;
        }
        if c.only_without && (c.only_with || c.only_later || c.only_sooner) {
            return Err(PlanError::fixed(
                "ERR NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if c.only_later && c.only_sooner {
            return Err(PlanError::fixed("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(c)
    }

    /// True if an expiry may be changed from `old` to `new`. No expiry counts as one that never comes.
    pub(crate) fn allow(self, old: Millis, new: i64) -> bool {
        let old = i64::try_from(old.0).ok().filter(|at| *at != 0);
        !(self.only_without && old.is_some()
            || self.only_with && old.is_none()
            || self.only_later && old.is_none_or(|old| new <= old)
            || self.only_sooner && old.is_some_and(|old| new >= old))
    }
}
