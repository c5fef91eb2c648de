//! Schedule 17: what has expired for one transaction is gone for all that come after it (R-TIME, R-CEILING).

use ordain_commands::ids;
use ordain_commit::CommitEngine;
use ordain_model::datum::DatumReader;
use ordain_model::{Datum, ProcedureId};
use ordain_role::{Bug, Bugs};

use crate::world::World;
use crate::{OPTIMISTIC, demand, demand_of, hold_accesses, millis};

/// Looks for k at B, by the clock there, and shows nothing if k is gone.
const LOOKS: [(ProcedureId, &[&[u8]], Datum<'static>); 3] = [
    (ids::GET, &[b"k"], Datum::Nil),
    (ids::EXISTS, &[b"k"], Datum::Int(0)),
    (ids::KEYS, &[b"*"], Datum::Array(0)),
];

/// Expiry: T1 at A, whose clock is ahead, finds k at B gone; T2 at B asks after that, and B's clock says that k is there. B's leader may
/// change between them: its successor does not know which times were used.
fn schedule_17(engine: CommitEngine, bugs: Bugs, changes: bool) -> Result<(), String> {
    for (look, args, gone) in LOOKS {
        let mut w = World::new(engine, 2, bugs);
        let (k, other) = (w.key_in(1, 0), w.key_in(0, 0));
        let (a, b1) = (w.led_by(0), w.led_by(1));
        w.set_ahead(a, millis(60_000));
        let written = w.command(b1, ids::SET, &[&k, b"v", b"PX", b"30000"]);
        w.committed(written);
        w.run(millis(20));
        // It writes nothing, so that no entry of B's log tells of its time.
        let t1 = w.command(a, ids::MGET, &[&other, &k]);
        w.committed(t1);
        let nils = [Datum::Array(2), Datum::Nil, Datum::Nil];
        assert!(DatumReader(&w.answered(t1).reply).eq(nils), "it has expired for A");
        let mut b = b1;
        if changes {
            w.depose(b1);
            b = w.another_leads(1, b1);
        }
        let args: Vec<&[u8]> = args.iter().map(|arg| if *arg == b"k" { &k } else { *arg }).collect();
        let t2 = w.command(b, look, &args);
        w.committed(t2);
        let seen = w.answered(t2).reply;
        if Datum::first(&seen) != gone {
            return Err(format!("it was gone, and then there was {:?}", Datum::first(&seen)));
        }
        w.end()?;
    }
    Ok(())
}

/// A read of before: T2 at B has found k there, and its access to z at C is on its way. T1 at A, whose clock is ahead, finds k gone and is
/// answered; then z is written, and T2 reads it. Nobody has changed k, and yet T2 must not show it.
pub(crate) fn read_before_it_was_gone(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::new(engine, 3, bugs);
    let (other, k, z) = (w.key_in(0, 0), w.key_in(1, 0), w.key_in(2, 0));
    let (a, b, c) = (w.led_by(0), w.led_by(1), w.led_by(2));
    w.set_ahead(a, millis(60_000));
    let written = w.command(b, ids::SET, &[&k, b"v", b"PX", b"30000"]);
    w.committed(written);
    let late = hold_accesses(&mut w, b, c);
    let t2 = w.command(b, ids::MGET, &[&k, &z]);
    w.until("T2's access", World::holds_something);
    w.run(millis(5));
    let t1 = w.command(a, ids::MGET, &[&other, &k]);
    w.committed(t1);
    let after = w.command(c, ids::SET, &[&z, b"1"]);
    w.committed(after);
    w.release(late);
    w.committed(t2);
    let seen = w.answered(t2).reply;
    if !DatumReader(&seen).eq([Datum::Array(2), Datum::Nil, Datum::Bulk(b"1")]) {
        return Err("it was gone, and then it was there".to_owned());
    }
    w.end()
}

pub(crate) fn with_one_leader(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    schedule_17(engine, bugs, false)
}

pub(crate) fn over_a_change_of_leaders(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    schedule_17(engine, bugs, true)
}

#[test]
fn schedule_17_what_has_expired_for_one_is_gone_for_all_who_come_after() {
    demand(with_one_leader, Bug::LookBack);
}

#[test]
fn schedule_17_what_was_read_before_it_was_gone_is_not_shown_after() {
    demand_of(&OPTIMISTIC, read_before_it_was_gone, Bug::LookBack);
}

#[test]
fn schedule_17_times_that_a_former_leader_may_have_used_are_used() {
    demand(over_a_change_of_leaders, Bug::ForgetCeiling);
}
