//! Transactions that answer the sum of what they have read: how the sum is composed, and that none answers without
//! having read everything.

use ordain_model::{Datum, OutcomeStatus, ReplyContext, Writer};

use crate::aggregate::sums;
use crate::{Finding, Results};

/// The answer in place of the sum where a record that was to be read is not there.
const MISSING: &str = "ERR a record that was to be read is not there";

/// Composes the answer: the sum of the numbers in the slots of the fragments `reads`, or an error if one of them has none.
#[inline]
pub fn answer_sum(cx: &ReplyContext<'_>, reads: impl Iterator<Item = u32>, out: &mut Vec<u8>) {
    let mut numbers = reads.map(|i| Datum::first(cx.slot(i)).as_int());
    match numbers.try_fold(0i64, |sum, number| Some(sum.wrapping_add(number?))) {
        Some(sum) => Writer(out).int(sum),
        None => Writer(out).error(MISSING),
    }
}

sums! {
    /// The number of transactions of a population that committed and answered an error all the same. Of another
    /// server's answers nothing else is asked.
    pub struct Answers {
        errors: u64,
    }
}

impl Answers {
    /// Counts an answer.
    #[inline]
    pub fn count(&mut self, status: OutcomeStatus, reply: &[u8]) {
        let is_error = matches!(Datum::first(reply), Datum::Error(_));
        self.errors += u64::from(status == OutcomeStatus::Committed && is_error);
    }

    /// Checks that there was none in all of a run.
    pub fn finding(results: &Results) -> Finding {
        let (Answers { errors }, unreadable) = results.merged();
        let errors = errors.saturating_add(unreadable);
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
    use crate::aggregate::Aggregate;

    #[test]
    fn an_error_of_a_committed_transaction_is_found() {
        let (mut answers, mut reply) = (Answers::default(), Vec::new());
        Writer(&mut reply).int(3);
        answers.count(OutcomeStatus::Committed, &reply);
        let results = |summary| Results {
            summaries: vec![Answers::default().encoded(), summary],
            ..Results::default()
        };
        assert_eq!(Answers::finding(&results(answers.encoded())).wrong, None);
        reply.clear();
        Writer(&mut reply).error(MISSING);
        answers.count(OutcomeStatus::Busy, &reply);
        assert_eq!(Answers::finding(&results(answers.encoded())).wrong, None);
        answers.count(OutcomeStatus::Committed, &reply);
        assert!(Answers::finding(&results(answers.encoded())).wrong.is_some());
        assert!(Answers::finding(&results(vec![0; 7])).wrong.is_some());
    }
}
