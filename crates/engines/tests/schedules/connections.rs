//! Schedule 16: requests that a connection sends without waiting for answers (R-PIPE).

use ordain_commit::{CommitEngine, Protocol};
use ordain_role::{Bug, Bugs};

use crate::world::{Do, World, values};
use crate::{demand, millis, said};

/// A pipeline: T0 holds y. P1 writes x and y, and is refused; P2, which the connection has sent behind it, writes x alone.
fn schedule_16(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 2, bugs);
    let (x, y, z) = (w.list_in(0, 0), w.list_in(1, 0), w.list_in(0, 1));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let vote = w.hold(move |from, to, message| {
        (from.node, to.node) == (b, a) && matches!(said(message), Some(Protocol::Vote(..)))
    });
    let t0 = w.ask_in(a, Some((w.session_in(0), 1)), &[Do::Append(z), Do::Append(y)]);
    w.until("T0's vote", World::holds_something);
    let connection = w.connect(b);
    let p1 = w.ask_over(connection, &[Do::Append(x), Do::Append(y)]);
    let p2 = w.ask_over(connection, &[Do::Append(x)]);
    w.run(millis(100));
    assert!(w.answer(p1).is_none(), "y is held");
    w.release(vote);
    [t0, p1, p2].into_iter().for_each(|txn| w.committed(txn));
    let seen = w.ask(a, &[Do::Read(x)]);
    w.committed(seen);
    let order = values(&w.answered(seen));
    if order != [w.value_of(p1, 0), w.value_of(p2, 0)] {
        return Err(format!("the second of a connection came before the first: {order:?}"));
    }
    w.end()
}

#[test]
fn schedule_16_what_a_connection_sends_takes_effect_in_that_order() {
    demand(schedule_16, Bug::ForgetStay);
}
