//! The order of a connection: what a client has sent over one connection stands in the serial order as it was sent, also
//! where it has not waited for the answers, over whatever partitions, and through whatever becomes of them meanwhile.
//!
//! A read on a snapshot stands behind all of its epoch; several of one epoch stand together. With `previous` it may miss
//! what is of the epoch of what was answered last, of its own connection too, but not what was under way when it was sent. A request that was sent more than once is left out:
//! its place may be that of any attempt. So is one without a place: rejected, or of an unknown end.

use std::collections::BTreeMap;

use ordain_model::Gsn;

use super::strict::Promise;
use super::{Violation, ViolationKind};
use crate::history::{History, Moment, RequestId};

/// The latest places of a connection.
#[derive(Default)]
struct Latest {
    /// The latest place of all answers.
    all: Option<(Gsn, RequestId)>,
    /// Answers that came after the last request was sent: place, request and moment.
    under_way: Vec<(Gsn, RequestId, Moment)>,
}

/// Checks the requests of each connection in the order in which they were sent.
///
/// # Errors
/// [`ViolationKind::Overtaken`].
pub fn check(history: &History, promise: Promise) -> Result<(), Violation> {
    let mut connections: BTreeMap<(usize, u32), Latest> = BTreeMap::new();
    for (id, request) in history.requests().filter(|(_, request)| request.attempts == 1) {
        let Some(client) = request.client.filter(|_| request.connection > 0) else { continue };
        let latest = connections.entry((client, request.connection)).or_default();
        latest.under_way.retain(|(.., answered)| *answered > request.moment);
        for answer in request.answers.iter().filter(|answer| answer.gsn() != Gsn::NONE) {
            let answered = latest.all.filter(|(earlier, _)| !follows(*earlier, answer.gsn(), promise));
            // A request that is sent behind a transaction under way is sequenced behind it, whatever is promised of snapshots.
            let sequenced = latest.under_way.iter().filter(|(earlier, ..)| !earlier.is_of_read());
            let mut pipelined = sequenced
                .map(|(earlier, by, _)| (*earlier, *by))
                .filter(|(earlier, _)| !follows(*earlier, answer.gsn(), Promise::Strict));
            if let Some((earlier, by)) = answered.or_else(|| pipelined.next()) {
                let text = format!("stands at {}, but was sent after what stands at {earlier}", answer.gsn());
                let violation = Violation::new(ViolationKind::Overtaken, text);
                return Err(violation.at(earlier).at(answer.gsn()).of(by).of(id));
            }
        }
        for answer in request.answers.iter().filter(|answer| answer.gsn() != Gsn::NONE) {
            latest.all = latest.all.max(Some((answer.gsn(), id)));
            latest.under_way.push((answer.gsn(), id, answer.moment));
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
            assert_eq!(check(&sent(&asks), Promise::Session).is_ok(), is_sound, "{asks:?}");
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
            check(&history, Promise::Previous).is_ok()
        };
        assert!(is_sound(gsn(6, 0, 1), read));
        assert!(!is_sound(gsn(7, 0, 1), read));
        assert!(!is_sound(read, gsn(5, 0, 1)));
        // Sent before the write is answered.
        for promise in [Promise::Previous, Promise::Serializable] {
            let is_sound = |first, second| check(&sent(&[(1, 1, first), (1, 1, second)]), promise).is_ok();
            assert!(!is_sound(gsn(6, 0, 1), read));
            assert!(is_sound(gsn(5, 0, 1), read));
        }
    }

    #[test]
    fn what_was_sent_again_may_stand_anywhere() {
        let asks = [(1, 1, gsn(5, 1, 0)), (1, 1, gsn(5, 0, 2))];
        let mut history = sent(&asks);
        assert!(check(&history, Promise::Strict).is_err());
        history.sent_again(RequestId(0));
        assert_eq!(check(&history, Promise::Strict), Ok(()));
    }
}
