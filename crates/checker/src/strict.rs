//! Places in time (calvin.md, section 8, oracle 5; paxflow.md, section 8, oracle 3): if the answer to T1 came before T2
//! was asked, T1 stands before T2 in the serial order.
//!
//! A read on a snapshot is promised less. `strict`: it sees all that any client was answered before. `session`: all that
//! its own client was answered. A read of a transaction that reads one state all along stands where the first one stood. `previous`: it may miss the epoch of what was answered last, and nothing older, where
//! every node leads its partition.
//! A sequenced transaction stands behind every read that was answered before it was asked. That is of places; what is seen
//! from one is up to the isolation level, and to [`serial`](super::serial).

use std::collections::BTreeMap;

use ordain_model::Gsn;

use super::{Violation, ViolationKind};
use crate::history::{History, Moment, RequestId};
use crate::serial::Found;

/// The promise of a system about the place in time of reads on snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Promise {
    /// A read stands behind all that any client was answered before it was asked.
    #[default]
    Strict,
    /// A read stands behind all that its own client was answered.
    Session,
    /// A read misses nothing but the epoch of what was answered last.
    Previous,
    /// A read has some place.
    Serializable,
}

/// The latest place, with its request.
type Latest = Option<(Gsn, RequestId)>;

/// The places that were answered when a request was asked.
#[derive(Clone, Copy, Default)]
struct Known {
    sequenced: Latest,
    read: Latest,
    /// To its own client.
    own: Latest,
}

fn raise(latest: &mut Latest, gsn: Gsn, id: RequestId) {
    if latest.is_none_or(|(known, _)| known < gsn) {
        *latest = Some((gsn, id));
    }
}

/// Checks every pair of requests, in one pass over their moments. `found` are the places of those that were not answered and
/// are in the log: they stand behind what was answered before they were asked.
///
/// # Errors
/// [`ViolationKind::RealTime`].
pub fn check(history: &History, found: &Found, promise: Promise) -> Result<(), Violation> {
    enum Step {
        Asked,
        Answered(Gsn, bool),
    }
    let mut steps: Vec<(Moment, RequestId, Step)> = Vec::new();
    for (id, request) in history.requests() {
        if request.answers.is_empty() && !found.contains_key(&id) {
            continue;
        }
        steps.push((request.moment, id, Step::Asked));
        let answers = request.answers.iter();
        steps.extend(answers.map(|a| (a.moment, id, Step::Answered(a.gsn(), a.has_reached))));
    }
    steps.sort_unstable_by_key(|(moment, ..)| *moment);
    let mut latest = Known::default();
    let mut by_client: BTreeMap<usize, Latest> = BTreeMap::new();
    let mut known: BTreeMap<RequestId, Known> = BTreeMap::new();
    for (_, id, step) in steps {
        let client = history.get(id).client;
        match step {
            Step::Asked => {
                let own = client.and_then(|client| by_client.get(&client).copied().flatten());
                let before = Known { own, ..latest };
                if let Some(gsn) = found.get(&id) {
                    in_time(before, (*gsn, id), promise)?;
                }
                known.insert(id, before);
            }
            Step::Answered(gsn, has_reached) => {
                let before = known.get(&id).copied().unwrap_or_default();
                let is_of_known_state = history.get(id).snapshot_time.is_some() && gsn.is_of_read();
                if !is_of_known_state {
                    in_time(before, (gsn, id), promise)?;
                }
                raise(if gsn.is_of_read() { &mut latest.read } else { &mut latest.sequenced }, gsn, id);
                if let Some(client) = client.filter(|_| has_reached) {
                    raise(by_client.entry(client).or_default(), gsn, id);
                }
            }
        }
    }
    Ok(())
}

/// Checks that nothing stands behind a request that was answered before that was asked.
fn in_time(before: Known, (gsn, id): (Gsn, RequestId), promise: Promise) -> Result<(), Violation> {
    let Some((earlier, by)) = too_late(before, gsn, promise) else { return Ok(()) };
    let text = format!("stands at {gsn}, but was asked after {earlier} had been answered");
    Err(Violation::new(ViolationKind::RealTime, text).at(earlier).at(gsn).of(by).of(id))
}

/// What stands behind a request although it was answered before that was asked.
fn too_late(before: Known, gsn: Gsn, promise: Promise) -> Latest {
    let Known { sequenced, read, own } = before;
    if !gsn.is_of_read() {
        return sequenced.max(read).filter(|(earlier, _)| *earlier >= gsn);
    }
    let is_missed = |(earlier, _): &(Gsn, RequestId)| earlier.epoch() > gsn.epoch();
    match promise {
        Promise::Serializable => None,
        Promise::Strict => sequenced.max(read).filter(is_missed),
        Promise::Session => own.filter(is_missed),
        Promise::Previous => sequenced.filter(|(earlier, _)| earlier.epoch().0 > gsn.epoch().0 + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_model::{Call, Db, Epoch, Micros, Millis, OutcomeStatus, PartitionId};
    use ordain_sim::workload::procedures as p;

    fn gsn(epoch: u64) -> Gsn {
        Gsn::new(Epoch(epoch), PartitionId(0), 0)
    }

    fn check(history: &History, promise: Promise) -> Result<(), Violation> {
        super::check(history, &Found::new(), promise)
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
        let violation = check(&history, Promise::Strict).unwrap_err();
        assert_eq!(violation.kind, ViolationKind::RealTime);
        assert_eq!((violation.gsns, violation.requests), (vec![gsn(5), gsn(4)], vec![first, second]));
    }

    #[test]
    fn an_effect_without_an_answer_is_not_before_what_was_answered_before_it_was_asked() {
        for (place, is_sound) in [(gsn(4), false), (gsn(6), true)] {
            let mut history = History::default();
            let first = sent(&mut history);
            let early = sent(&mut history);
            history.answered(first, OutcomeStatus::Committed, gsn(5), b"");
            let late = sent(&mut history);
            for (id, is_sound) in [(early, true), (late, is_sound)] {
                let verdict = super::check(&history, &[(id, place)].into(), Promise::Strict);
                assert_eq!(verdict.is_ok(), is_sound, "{place} {id:?}");
            }
        }
    }

    #[test]
    fn concurrent_requests_may_stand_in_any_order() {
        let mut history = History::default();
        let (first, second) = (sent(&mut history), sent(&mut history));
        history.answered(first, OutcomeStatus::Committed, gsn(5), b"");
        history.answered(second, OutcomeStatus::Committed, gsn(4), b"");
        assert_eq!(check(&history, Promise::Strict), Ok(()));
        let third = sent(&mut history);
        history.answered(third, OutcomeStatus::Committed, gsn(5), b"");
        assert!(check(&history, Promise::Strict).is_err(), "the same place is not a later one");
    }

    #[test]
    fn a_read_of_a_state_that_was_read_before_may_be_old_and_what_is_sequenced_may_not() {
        let old_read = Gsn::of_read(Epoch(4), 1);
        for (place, verdict) in [(old_read, true), (gsn(4), false)] {
            let mut history = History::default();
            let first = sent(&mut history);
            history.answered(first, OutcomeStatus::Committed, gsn(5), b"");
            let again = sent(&mut history);
            history.note_snapshot_time(again, Millis(0));
            history.answered(again, OutcomeStatus::Committed, place, b"");
            assert_eq!(check(&history, Promise::Strict).is_ok(), verdict);
        }
    }

    /// The definition, pair by pair.
    fn by_definition(history: &History) -> bool {
        history.answers().all(|(first, _, answer)| {
            history.answers().all(|(second, request, other)| {
                first == second || answer.moment > request.moment || answer.gsn() < other.gsn()
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
            proptest::prop_assert_eq!(check(&history, Promise::Strict).is_ok(), by_definition(&history));
        }
    }
}
