//! Schedule 16: requests that a connection sends without waiting for answers (R-PIPE).

use ordain_commit::{CommitEngine, Protocol};
use ordain_role::{Bug, Bugs};

use crate::world::{Do, World};
use crate::{demand, millis, said};

/// A pipeline: T0 holds y. P1 asks for x and y, and is refused; P2, which the connection has sent behind it, asks for x alone.
pub(crate) fn schedule_16(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    pipeline(engine, bugs, Do::Append)?;
    pipeline(engine, bugs, Do::Read)
}

/// The same of updates alone: a read of a snapshot does not wait for T0.
pub(crate) fn updates_in_a_pipeline(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    pipeline(engine, bugs, Do::Append)
}

fn pipeline(engine: CommitEngine, bugs: Bugs, op: fn(u64) -> Do) -> Result<(), String> {
    let mut w = World::new(engine, 3, bugs);
    let (x, y, z) = (w.list_in(0, 0), w.list_in(1, 0), w.list_in(0, 1));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    let vote = w.hold(move |from, to, message| {
        (from.node, to.node) == (b, a) && matches!(said(message), Some(Protocol::Vote(..)))
    });
    let t0 = w.ask_in(a, Some((w.session_in(0), 1)), &[Do::Append(z), Do::Append(y)]);
    w.until("T0's vote", World::holds_something);
    let connection = w.connect(c);
    let p1 = w.ask_over(connection, &[op(x), op(y)]);
    let p2 = w.ask_over(connection, &[op(x)]);
    w.run(millis(100));
    assert!(w.answer(p1).is_none(), "y is held");
    if w.answer(p2).is_some() {
        return Err("the second of a connection came before the first".to_owned());
    }
    w.release(vote);
    [t0, p1, p2].into_iter().for_each(|txn| w.committed(txn));
    w.end()
}

#[test]
fn schedule_16_what_a_connection_sends_takes_effect_in_that_order() {
    demand(schedule_16, Bug::ForgetStay);
}
