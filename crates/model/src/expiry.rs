//! Expiry: the last millisecond in which a record exists, and beside it the way in which its string was written.
//!
//! OBJECT ENCODING of Redis depends on how a string was written last, which its bytes do not show: `12` is an integer after SET, a short
//! text after INCRBYFLOAT, and a buffer after APPEND. A record fills a cache line (`store/src/slab.rs`), so this lies in bits that
//! no time uses.

use std::fmt;

use crate::ids::Millis;

/// The way in which a string was written last: OBJECT ENCODING needs it beside the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StringForm {
    /// Written as a whole: the bytes alone decide the encoding.
    #[default]
    Whole,
    /// Written as a text, though it may look like an integer: INCRBYFLOAT.
    Text,
    /// In place, into a buffer that can grow: APPEND, SETRANGE.
    Buffer,
}

/// The last millisecond in which a record exists, if there is one, with the [form](StringForm) of its string.
///
/// One word: the time alone, or with bit 63 set a form in bit 62 and a time in the lower bits. A time of 2^62 ms or later (the
/// year 146,140,482) leaves no room for a form, which is [`StringForm::Whole`] then.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Expiry(u64);

const HAS_FORM: u64 = 1 << 63;
const IS_BUFFER: u64 = 1 << 62;
const TIME: u64 = IS_BUFFER - 1;

impl Expiry {
    /// No expiry, and no form but the usual one.
    pub const NEVER: Expiry = Expiry(0);

    /// The last transaction time at which the record exists, in milliseconds; 0 for no last one.
    #[inline]
    pub const fn time(self) -> Millis {
        Millis(if self.0 & HAS_FORM == 0 { self.0 } else { self.0 & TIME })
    }

    /// True if the record never expires.
    #[inline]
    pub const fn is_never(self) -> bool {
        self.time().0 == 0
    }

    /// The way in which the record's string was written last.
    #[inline]
    pub const fn form(self) -> StringForm {
        match (self.0 & HAS_FORM, self.0 & IS_BUFFER) {
            (0, _) => StringForm::Whole,
            (_, 0) => StringForm::Text,
            _ => StringForm::Buffer,
        }
    }

    /// The expiry with the same time and another form.
    #[inline]
    #[must_use]
    pub const fn with_form(self, form: StringForm) -> Expiry {
        let Millis(time) = self.time();
        Expiry(match form {
            StringForm::Text if time <= TIME => time | HAS_FORM,
            StringForm::Buffer if time <= TIME => time | HAS_FORM | IS_BUFFER,
            _ => time,
        })
    }

    /// The expiry with the same form and another time; 0 for never. A time of 2^63 ms or later is that much less one.
    #[inline]
    #[must_use]
    pub const fn with_time(self, time: Millis) -> Expiry {
        let time = if time.0 < HAS_FORM { time.0 } else { HAS_FORM - 1 };
        Expiry(time).with_form(self.form())
    }

    /// The word, as encodings of a cell hold it.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The expiry that a word of an encoding stands for. Each has a meaning; those of before there were forms have only times.
    pub const fn from_bits(bits: u64) -> Expiry {
        Expiry(bits)
    }
}

impl From<Millis> for Expiry {
    /// The time with the usual form.
    fn from(time: Millis) -> Expiry {
        Expiry::NEVER.with_time(time)
    }
}

impl fmt::Debug for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.form() {
            StringForm::Whole => write!(f, "{:?}", self.time()),
            form => write!(f, "{:?} {form:?}", self.time()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FORMS: [StringForm; 3] = [StringForm::Whole, StringForm::Text, StringForm::Buffer];

    proptest! {
        #[test]
        fn time_and_form_do_not_disturb_each_other(
            times in prop::collection::vec(prop_oneof![Just(0), any::<u64>(), 0..=TIME], 1..20), form in 0..3_usize,
        ) {
            let mut expiry = Expiry::NEVER.with_form(FORMS[form]);
            for time in times {
                let at = expiry.with_time(Millis(time));
                prop_assert_eq!(at.time().0, time.min(i64::MAX as u64));
                prop_assert_eq!(at.is_never(), time == 0);
                prop_assert_eq!(at.form(), if time <= TIME { expiry.form() } else { StringForm::Whole });
                for form in FORMS {
                    prop_assert_eq!(at.with_form(form).time(), at.time());
                    prop_assert_eq!(at.with_form(form).form(), if time <= TIME { form } else { StringForm::Whole });
                }
                prop_assert_eq!(Expiry::from_bits(at.to_bits()), at);
                expiry = at;
            }
        }

        #[test]
        fn words_of_before_there_were_forms_are_times(time in 0..HAS_FORM) {
            let expiry = Expiry::from_bits(time);
            prop_assert_eq!((expiry.time(), expiry.form()), (Millis(time), StringForm::Whole));
            prop_assert_eq!(Expiry::from(Millis(time)).to_bits(), time);
        }
    }
}
