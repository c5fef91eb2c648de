//! Strictness (calvin.md, section 8, oracle 5): if the answer to T1 came before T2 was asked, T1 stands before
//! T2 in the serial order.

use ordain_model::Gsn;

use super::{Violation, ViolationKind};
use crate::history::{History, Moment, RequestId};

/// Checks the real-time order of every pair of requests, in one pass over their moments.
///
/// # Errors
/// [`ViolationKind::RealTime`].
pub fn check(history: &History) -> Result<(), Violation> {
    enum Step {
        Asked,
        Answered(Gsn),
    }
    let mut steps: Vec<(Moment, RequestId, Step)> = Vec::new();
    for (id, request) in history.requests() {
        if request.answers.is_empty() {
            continue;
        }
        steps.push((request.moment, id, Step::Asked));
        steps.extend(request.answers.iter().map(|a| (a.moment, id, Step::Answered(a.gsn))));
    }
    steps.sort_unstable_by_key(|(moment, ..)| *moment);
    // The latest place that anybody has been told of, and who.
    let mut latest: Option<(Gsn, RequestId)> = None;
    // The same, as it was when each request was asked.
    let mut known: std::collections::BTreeMap<RequestId, (Gsn, RequestId)> =
        std::collections::BTreeMap::new();
    for (_, id, step) in steps {
        match step {
            Step::Asked => latest.into_iter().for_each(|latest| _ = known.insert(id, latest)),
            Step::Answered(gsn) => {
                if let Some((earlier, by)) = known.get(&id)
                    && *earlier >= gsn
                {
                    let text = format!("stands at {gsn}, but was asked after {earlier} had been answered");
                    let violation = Violation::new(ViolationKind::RealTime, text);
                    return Err(violation.at(*earlier).at(gsn).of(*by).of(id));
                }
                if latest.is_none_or(|(known, _)| known < gsn) {
                    latest = Some((gsn, id));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::procedures as p;
    use ordain_model::{Call, Db, Epoch, Micros, OutcomeStatus, PartitionId};

    fn gsn(epoch: u64) -> Gsn {
        Gsn::new(Epoch(epoch), PartitionId(0), 0)
    }

    fn sent(history: &mut History) -> RequestId {
        history.sent(Micros(0), Call::new(p::GET, Db(0)), Vec::new())
    }

    #[test]
    fn an_answer_from_the_past_is_caught() {
        let mut history = History::default();
        let first = sent(&mut history);
        history.answered(first, OutcomeStatus::Committed, gsn(5), b"");
        let second = sent(&mut history);
        history.answered(second, OutcomeStatus::Committed, gsn(4), b"");
        let violation = check(&history).unwrap_err();
        assert_eq!(violation.kind, ViolationKind::RealTime);
        assert_eq!((violation.gsns, violation.requests), (vec![gsn(5), gsn(4)], vec![first, second]));
    }

    #[test]
    fn concurrent_requests_may_stand_in_any_order() {
        let mut history = History::default();
        let (first, second) = (sent(&mut history), sent(&mut history));
        history.answered(first, OutcomeStatus::Committed, gsn(5), b"");
        history.answered(second, OutcomeStatus::Committed, gsn(4), b"");
        assert_eq!(check(&history), Ok(()));
        let third = sent(&mut history);
        history.answered(third, OutcomeStatus::Committed, gsn(5), b"");
        assert!(check(&history).is_err(), "the same place is not a later one");
    }

    /// The definition, pair by pair.
    fn by_definition(history: &History) -> bool {
        history.answers().all(|(first, _, answer)| {
            history.answers().all(|(second, request, other)| {
                first == second || answer.moment > request.moment || answer.gsn < other.gsn
            })
        })
    }

    proptest::proptest! {
        #[test]
        fn one_pass_finds_what_the_definition_says(
            steps in proptest::collection::vec((proptest::bool::ANY, 0u64..8), 1..12),
        ) {
            let mut history = History::default();
            let mut open = Vec::new();
            for (asks, n) in steps {
                if asks || open.is_empty() {
                    open.push(sent(&mut history));
                } else {
                    let id = open.remove(n as usize % open.len());
                    history.answered(id, OutcomeStatus::Committed, gsn(n), b"");
                }
            }
            proptest::prop_assert_eq!(check(&history).is_ok(), by_definition(&history));
        }
    }
}
