//! Transactions that answer the sum of what they have read: how the sum is composed, and that none answers without
//! having read everything.

use ordain_model::{Datum, OutcomeStatus, ReplyContext, Writer};

use crate::{Finding, Seen};

/// What stands in place of the sum where a record that was to be read is not there.
const MISSING: &str = "ERR a record that was to be read is not there";

/// Composes the answer: the sum of the numbers in the slots of the fragments that read, which are told by number, or an
/// error if one of them has none.
#[inline]
pub fn answer_sum(cx: &ReplyContext<'_>, reads: impl Iterator<Item = u32>, out: &mut Vec<u8>) {
    let mut numbers = reads.map(|i| Datum::first(cx.slot(i)).as_int());
    match numbers.try_fold(0i64, |sum, number| Some(sum.wrapping_add(number?))) {
        Some(sum) => Writer(out).int(sum),
        None => Writer(out).error(MISSING),
    }
}

/// How many transactions of a population committed and answered an error all the same. What a protocol of another
/// server's answers is no concern of ours, as long as it is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    errors: u64,
}

impl Answers {
    /// Hears an answer.
    #[inline]
    pub fn hear(&mut self, status: OutcomeStatus, reply: &[u8]) {
        let is_error = matches!(Datum::first(reply), Datum::Error(_));
        self.errors += u64::from(status == OutcomeStatus::Committed && is_error);
    }

    /// What a population says.
    pub fn testimony(&self) -> Vec<u8> {
        self.errors.to_le_bytes().to_vec()
    }

    /// Whether there was none in all of a run.
    pub fn finding(seen: &Seen) -> Finding {
        let told = seen.testimonies.iter().map(|told| (&**told).try_into().map_or(1, u64::from_le_bytes));
        let errors = told.fold(0, u64::saturating_add);
        Finding::new("answers", errors == 0, || {
            format!(
                "{errors} transactions committed and answered an error: a record was not there to be read"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_committed_transaction_is_found() {
        let (mut answers, mut reply) = (Answers::default(), Vec::new());
        Writer(&mut reply).int(3);
        answers.hear(OutcomeStatus::Committed, &reply);
        let seen = |told| Seen { testimonies: vec![Answers::default().testimony(), told], ..Seen::default() };
        assert_eq!(Answers::finding(&seen(answers.testimony())).wrong, None);
        reply.clear();
        Writer(&mut reply).error(MISSING);
        answers.hear(OutcomeStatus::Busy, &reply);
        assert_eq!(Answers::finding(&seen(answers.testimony())).wrong, None);
        answers.hear(OutcomeStatus::Committed, &reply);
        assert!(Answers::finding(&seen(answers.testimony())).wrong.is_some());
        assert!(Answers::finding(&seen(vec![0; 7])).wrong.is_some());
    }
}
