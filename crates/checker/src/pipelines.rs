//! The order of a connection: what a client has sent over one connection stands in the serial order as it was sent, also
//! where it has not waited for the answers, over whatever partitions, and through whatever becomes of them meanwhile.
//!
//! A read on a snapshot stands behind all of its epoch; several of one epoch stand together. With `previous` it may miss
//! what is of the epoch of what was answered last, of its own connection too, but not what was under way when it was sent.
//!
//! A request that was sent more than once may be overtaken, since its place may be that of any attempt. So may one that its
//! gateway has given up as of unknown end: what was sent behind it goes on meanwhile. Both stand behind what was sent before
//! them. A request that was neither answered nor given up keeps its place: its gateway is gone, and had sent nothing behind it
//! that could overtake it. Where such a request has taken effect, the log tells ([`serial`](crate::serial)).

use std::collections::BTreeMap;

use ordain_model::Gsn;

use super::strict::Promise;
use super::{Violation, ViolationKind};
use crate::history::{History, Moment, RequestId};
use crate::serial::Found;

/// The latest places of a connection.
#[derive(Default)]
struct Latest {
    /// The latest place of all answers.
    all: Option<(Gsn, RequestId)>,
    /// Answers that came after the last request was sent: place, request and moment.
    under_way: Vec<(Gsn, RequestId, Moment)>,
}

/// The moment at which a request is answered that never is.
const NEVER: Moment = Moment(u64::MAX);

/// Checks the requests of each connection in the order in which they were sent. `found` are the places of those that were
/// not answered and are in the log.
///
/// # Errors
/// [`ViolationKind::Overtaken`].
pub fn check(history: &History, found: &Found, promise: Promise) -> Result<(), Violation> {
    let mut connections: BTreeMap<(usize, u32), Latest> = BTreeMap::new();
    for (id, request) in history.requests() {
        let Some(client) = request.client.filter(|_| request.connection > 0) else { continue };
        let latest = connections.entry((client, request.connection)).or_default();
        latest.under_way.retain(|(.., answered)| *answered > request.moment);
        let answers = request.answers.iter().map(|answer| (answer.gsn(), answer.moment));
        let unanswered = found.get(&id).map(|gsn| (*gsn, NEVER));
        let places: Vec<(Gsn, Moment)> =
            answers.filter(|(gsn, _)| *gsn != Gsn::NONE).chain(unanswered).collect();
        for (gsn, _) in &places {
            let answered = latest.all.filter(|(earlier, _)| !follows(*earlier, *gsn, promise));
            // A request that is sent behind a transaction under way is sequenced behind it, whatever is promised of snapshots.
            let sequenced = latest.under_way.iter().filter(|(earlier, ..)| !earlier.is_of_read());
            let mut pipelined = sequenced
                .map(|(earlier, by, _)| (*earlier, *by))
                .filter(|(earlier, _)| !follows(*earlier, *gsn, Promise::Strict));
            if let Some((earlier, by)) = answered.or_else(|| pipelined.next()) {
                let text = format!("stands at {gsn}, but was sent after what stands at {earlier}");
                let violation = Violation::new(ViolationKind::Overtaken, text);
                return Err(violation.at(earlier).at(*gsn).of(by).of(id));
            }
        }
        let is_given_up = request.answers.is_empty() && request.unknowns > 0;
        if request.attempts > 1 || is_given_up {
            continue;
        }
        for (gsn, answered) in places {
            latest.all = latest.all.max(Some((gsn, id)));
            latest.under_way.push((gsn, id, answered));
        }
    }
    Ok(())
}

/// Whether a place is behind another, as far as that is promised.
fn follows(earlier: Gsn, gsn: Gsn, promise: Promise) -> bool {
    let may_miss = match promise {
        _ if !gsn.is_of_read() => return earlier < gsn,
        Promise::Serializable => return true,
        Promise::Previous => 1,
        Promise::Strict | Promise::Session => 0,
    };
    earlier.epoch().0 <= gsn.epoch().0 + may_miss
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_model::{Call, Db, Epoch, Micros, OutcomeStatus, PartitionId};
    use ordain_sim::workload::procedures as p;

    /// A history of requests by client, connection and place, all sent before any is answered; the last is answered first.
    fn sent(asks: &[(usize, u32, Gsn)]) -> History {
        let mut history = History::default();
        let ask = |(client, connection, gsn): &(usize, u32, Gsn)| {
            let by = (Some(*client), *connection);
            (history.sent_over(by, Micros(0), Call::new(p::GET, Db(0)), Vec::new()), *gsn)
        };
        let all: Vec<(RequestId, Gsn)> = asks.iter().map(ask).collect();
        for (id, gsn) in all.into_iter().rev() {
            history.answered(id, OutcomeStatus::Committed, gsn, b"");
        }
        history
    }

    fn gsn(epoch: u64, partition: u16, index: u32) -> Gsn {
        Gsn::new(Epoch(epoch), PartitionId(partition), index)
    }

    fn verdict(history: &History, promise: Promise) -> Result<(), Violation> {
        check(history, &Found::new(), promise)
    }

    #[test]
    fn what_overtakes_is_found_and_nothing_else() {
        let read = |epoch| Gsn::of_read(Epoch(epoch), 7);
        for (asks, is_sound) in [
            (vec![(1, 1, gsn(5, 0, 1)), (1, 1, gsn(5, 0, 2)), (1, 1, gsn(5, 1, 0))], true),
            (vec![(1, 1, gsn(5, 1, 0)), (1, 1, gsn(5, 0, 2))], false),
            (vec![(1, 1, gsn(5, 0, 2)), (1, 1, gsn(5, 0, 2))], false),
            // Of two clients, or over two connections, there is no order.
            (vec![(1, 1, gsn(5, 1, 0)), (2, 1, gsn(5, 0, 2))], true),
            (vec![(1, 1, gsn(5, 1, 0)), (1, 2, gsn(5, 0, 2))], true),
            (vec![(1, 1, gsn(5, 0, 2)), (1, 2, gsn(4, 0, 0)), (1, 1, gsn(5, 0, 1))], false),
            // A read of a state is behind all that this holds, and before what it does not.
            (vec![(1, 1, gsn(5, 1, 0)), (1, 1, read(5)), (1, 1, read(5)), (1, 1, gsn(6, 0, 0))], true),
            (vec![(1, 1, read(5)), (1, 1, gsn(5, 1, 0))], false),
            (vec![(1, 1, gsn(6, 1, 0)), (1, 1, read(5))], false),
            (vec![(1, 1, read(6)), (1, 1, read(5))], false),
            // A request without a place shows nothing.
            (vec![(1, 1, gsn(5, 0, 1)), (1, 1, Gsn::NONE), (1, 1, gsn(5, 0, 2))], true),
            (vec![(1, 1, gsn(5, 0, 2)), (1, 1, Gsn::NONE), (1, 1, gsn(5, 0, 1))], false),
        ] {
            assert_eq!(verdict(&sent(&asks), Promise::Session).is_ok(), is_sound, "{asks:?}");
        }
    }

    #[test]
    fn previous_misses_one_epoch_and_never_sees_what_is_sent_after() {
        let read = Gsn::of_read(Epoch(5), 7);
        let is_sound = |first: Gsn, second: Gsn| {
            let mut history = History::default();
            for gsn in [first, second] {
                let by = (Some(1), 1);
                let id = history.sent_over(by, Micros(0), Call::new(p::GET, Db(0)), Vec::new());
                history.answered(id, OutcomeStatus::Committed, gsn, b"");
            }
            verdict(&history, Promise::Previous).is_ok()
        };
        assert!(is_sound(gsn(6, 0, 1), read));
        assert!(!is_sound(gsn(7, 0, 1), read));
        assert!(!is_sound(read, gsn(5, 0, 1)));
        // Sent before the write is answered.
        for promise in [Promise::Previous, Promise::Serializable] {
            let is_sound = |first, second| verdict(&sent(&[(1, 1, first), (1, 1, second)]), promise).is_ok();
            assert!(!is_sound(gsn(6, 0, 1), read));
            assert!(is_sound(gsn(5, 0, 1), read));
        }
    }

    #[test]
    fn what_was_sent_again_may_be_overtaken_and_does_not_overtake() {
        let asks = [(1, 1, gsn(5, 1, 0)), (1, 1, gsn(5, 0, 2))];
        for (again, is_sound) in [(None, false), (Some(0), true), (Some(1), false)] {
            let mut history = sent(&asks);
            again.into_iter().for_each(|again| history.sent_again(RequestId(again)));
            assert_eq!(verdict(&history, Promise::Strict).is_ok(), is_sound, "{again:?}");
        }
    }

    #[test]
    fn what_is_not_answered_keeps_its_place_until_it_is_given_up() {
        let (early, late) = (gsn(5, 0, 2), gsn(5, 1, 0));
        for (first, second, gives_up, is_sound) in [
            // The first has no answer.
            ((late, false), (early, true), false, false),
            ((late, false), (early, true), true, true),
            ((early, false), (late, true), false, true),
            // Nor has the second.
            ((late, false), (early, false), false, false),
            ((late, false), (early, false), true, true),
            // The second alone has none: it never overtakes.
            ((late, true), (early, false), false, false),
            ((late, true), (early, false), true, false),
            ((early, true), (late, false), true, true),
        ] {
            let (mut history, mut found) = (History::default(), Found::new());
            let by = (Some(1), 1);
            let call = Call::new(p::INCREMENT, Db(0));
            let ids = [(); 2].map(|()| history.sent_over(by, Micros(0), call, Vec::new()));
            for (id, (gsn, is_answered)) in ids.into_iter().zip([first, second]) {
                match is_answered {
                    true => history.answered(id, OutcomeStatus::Committed, gsn, b""),
                    false => _ = found.insert(id, gsn),
                }
                if !is_answered && gives_up {
                    history.answered(id, OutcomeStatus::Unknown, Gsn::NONE, b"");
                }
            }
            let verdict = check(&history, &found, Promise::Strict);
            assert_eq!(verdict.is_ok(), is_sound, "{first:?} {second:?} {gives_up}");
        }
    }
}
