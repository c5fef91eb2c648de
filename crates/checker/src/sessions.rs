//! Exactly once (calvin.md, section 4.1, rule 5): a request of a session takes effect at most once however
//! often it is sent, and every retry is answered like the first attempt.

use std::collections::BTreeMap;

use ordain_model::{Abort, Batch, Gsn, OutcomeStatus, RequestNo, SessionId};

use super::{Violation, ViolationKind};
use crate::history::History;

/// A client's own number of a logged request.
pub fn clients_number(logged: RequestNo) -> RequestNo {
    RequestNo(logged.0 >> RequestNo::RESTART_BITS)
}

/// Checks that no attempt of a request is logged twice, and that all answers to a request of a session that
/// may have had an effect are one answer.
///
/// # Errors
/// [`ViolationKind::EffectTwice`], [`ViolationKind::AnswersDiffer`].
pub fn check(log: &[Batch], history: &History) -> Result<(), Violation> {
    let mut places: BTreeMap<(SessionId, RequestNo), Gsn> = BTreeMap::new();
    for (gsn, _, txn) in log.iter().flat_map(Batch::txns) {
        // A read that was sent twice is two reads, logged or not.
        let Some(session) = txn.call.session.filter(|_| !txn.read_only) else { continue };
        if let Some(first) = places.insert(session, gsn) {
            let text = format!("request {} of session {} is in the log twice", session.1, session.0);
            return Err(Violation::new(ViolationKind::EffectTwice, text).at(first).at(gsn));
        }
    }
    for (id, request) in history.requests() {
        // Two reads may see two states; so may a reconnaissance that gave up, which had no effect.
        let lasting = |gsn: Gsn, status| {
            let logged =
                log.binary_search_by_key(&(gsn.epoch(), gsn.partition()), |b| (b.epoch, b.partition));
            status != OutcomeStatus::Aborted(Abort::Restart)
                && logged.is_ok_and(|at| log[at].txns().any(|(g, _, txn)| g == gsn && !txn.read_only))
        };
        let mut answers = request.answers.iter().filter(|a| lasting(a.gsn(), a.status));
        let Some(first) = answers.next() else { continue };
        for other in answers {
            if (first.gsn(), first.status, &first.reply) != (other.gsn(), other.status, &other.reply) {
                let text = format!(
                    "a request was answered {:?} {:?} and then {:?} {:?}",
                    first.status, first.reply, other.status, other.reply
                );
                let violation = Violation::new(ViolationKind::AnswersDiffer, text);
                return Err(violation.at(first.gsn()).at(other.gsn()).of(id));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Answer, Moment, batch, good, registry, run, tampered};
    use super::*;
    use ordain_sim::workload::procedures as p;

    #[test]
    fn a_request_that_was_sequenced_twice_is_caught() {
        let registry = registry();
        let ask: super::super::fixture::Ask<'_> = (p::INCREMENT, p::COUNTERS, &["n"], Some((7, 3)));
        let (log, history) = good(&registry, &[batch(&registry, 1, &[ask]), batch(&registry, 2, &[ask])]);
        assert_eq!(run(&registry, &log, &history), Err(ViolationKind::EffectTwice));
    }

    #[test]
    fn retries_with_different_answers_are_caught() {
        let registry = registry();
        let ask: super::super::fixture::Ask<'_> = (p::INCREMENT, p::COUNTERS, &["n"], Some((7, 3)));
        let (log, history) = good(&registry, &[batch(&registry, 1, &[ask])]);
        let again = |reply: Option<Vec<u8>>| {
            tampered(&history, 0, |request| {
                let first = request.answers[0].clone();
                let reply = reply.unwrap_or_else(|| first.reply.clone());
                request.answers.push(Answer { moment: Moment(9), reply, ..first });
            })
        };
        assert!(run(&registry, &log, &again(None)).is_ok(), "the same answer twice is right");
        let wrong = again(Some(super::super::fixture::reply_int(2)));
        assert_eq!(run(&registry, &log, &wrong), Err(ViolationKind::AnswersDiffer));
    }

    #[test]
    fn the_gateway_keeps_eight_bits() {
        assert_eq!(RequestNo::RESTART_BITS, 8);
        assert_eq!(clients_number(RequestNo(5 << 8 | 3)), RequestNo(5));
    }
}
