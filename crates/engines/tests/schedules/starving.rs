//! Transactions of several regions that lose again and again go first in the end (regions.md, G21).

use ordain_commit::CommitEngine;
use ordain_engines::registry::Engine;
use ordain_engines::{regions_2pl, regions_mvocc, regions_silo};
use ordain_model::OutcomeStatus;
use ordain_role::{Bugs, NodeId};

use crate::world::{Do, Ticket, World};
use crate::{demand_sound_of, millis};

const ENGINES: [CommitEngine; 3] = [regions_2pl::ENGINE, regions_silo::ENGINE, regions_mvocc::ENGINE];

/// Two regions with 200 ms between question and answer, which reserve records after so many refusals.
fn far(engine: CommitEngine, m_retries: &str, bugs: Bugs) -> World {
    let known = engine.name.parse::<Engine>().expect("it is in the registry");
    let options = known.options([("m-retries", m_retries)]).expect("options of it");
    let mut w = World::regions_with(engine, options, 2, bugs);
    w.set_apart(millis(100));
    w
}

/// A client of a server that writes a list again and again, with a pause of some 10 ms.
struct Writer {
    node: NodeId,
    list: u64,
    asked: Vec<Ticket>,
}

impl Writer {
    fn go_on(&mut self, w: &mut World) {
        if self.asked.last().is_none_or(|last| w.answer(*last).is_some()) {
            self.asked.push(w.ask(self.node, &[Do::Append(self.list)]));
        }
    }
}

/// M of A writes a list of B, where two clients write it all the time. Answers M's end, and how many writes there were.
fn contended(engine: CommitEngine, m_retries: &str, bugs: Bugs) -> Result<(OutcomeStatus, usize), String> {
    let mut w = far(engine, m_retries, bugs);
    let (x, y, other) = (w.list_in(0, 0), w.list_in(1, 0), w.list_in(1, 1));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let mut writers = [y, y, other].map(|list| Writer { node: b, list, asked: Vec::new() });
    let m = w.ask(a, &[Do::Append(x), Do::Append(y)]);
    while w.answer(m).is_none() {
        writers.iter_mut().for_each(|writer| writer.go_on(&mut w));
        w.run(millis(10));
    }
    let status = w.answered(m).status;
    // Four attempts, and the first after that of which the view shows all.
    if status == OutcomeStatus::Committed && w.took(m) > millis(2_000) {
        return Err(format!("it took {:?} to go first", w.took(m)));
    }
    for asked in writers.iter().flat_map(|writer| &writer.asked) {
        w.committed(*asked);
    }
    let writes = writers.map(|writer| writer.asked.len()).into_iter().sum();
    w.end().map(|()| (status, writes))
}

fn goes_first(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    assert_eq!(contended(engine, "0", bugs)?.0, OutcomeStatus::Busy, "it loses for ever");
    let (status, writes) = contended(engine, "4", bugs)?;
    assert!(writes > 100, "others went on: {writes}");
    match status {
        OutcomeStatus::Committed => Ok(()),
        status => Err(format!("a transaction of two regions was answered {status:?}")),
    }
}

#[test]
fn a_transaction_that_local_writers_have_beaten_often_goes_first() {
    demand_sound_of(&ENGINES, goes_first);
}

/// Three transactions of A and two of B write the same lists of both, while a client of each region writes one.
fn crowded(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = far(engine, "2", bugs);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let mut writers = [(a, x), (b, y)].map(|(node, list)| Writer { node, list, asked: Vec::new() });
    let all = [a, a, a, b, b].map(|node| w.ask(node, &[Do::Append(x), Do::Append(y)]));
    while all.iter().any(|txn| w.answer(*txn).is_none()) {
        writers.iter_mut().for_each(|writer| writer.go_on(&mut w));
        w.run(millis(10));
    }
    let local = writers.iter().flat_map(|writer| writer.asked.clone()).collect::<Vec<_>>();
    all.into_iter().chain(local).for_each(|txn| w.committed(txn));
    w.end()
}

#[test]
fn of_those_that_go_first_one_goes_after_the_other() {
    demand_sound_of(&ENGINES, crowded);
}

/// M loses to a client of B for a while. Between its attempts other transactions of A ask B for their parts.
///
/// Found by the schedule above: B heard that M was over, and left its next attempt without an answer until A asked for its vote.
fn asks_again(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = far(engine, "0", bugs);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let mut writer = Writer { node: b, list: y, asked: Vec::new() };
    let m = w.ask(a, &[Do::Append(x), Do::Append(y)]);
    for nth in 1..400 {
        writer.go_on(&mut w);
        let lists = [0, 1].map(|region| w.list_in(region, nth));
        _ = w.ask(a, &lists.map(Do::Append));
        w.run(millis(4));
    }
    w.committed(m);
    let failed = w.gauge(a, "ordain_coordinator_failed_total{reason=\"term_changed\"}");
    w.end()?;
    match failed {
        0.0 => Ok(()),
        failed => Err(format!("{failed} attempts were not heard of")),
    }
}

#[test]
fn an_attempt_is_heard_of_though_a_later_transaction_has_asked_first() {
    demand_sound_of(&ENGINES, asks_again);
}

/// The server that has reserved a record is gone: who waits for it goes on when the time is over.
fn gone(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = far(engine, "1", bugs);
    let (x, y) = (w.list_in(0, 0), w.list_in(1, 0));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let mut writer = Writer { node: b, list: y, asked: Vec::new() };
    _ = w.ask(a, &[Do::Append(x), Do::Append(y)]);
    while w.gauge(b, "ordain_reserving_transactions") == 0.0 {
        writer.go_on(&mut w);
        w.run(millis(10));
    }
    w.isolate(0);
    let held = w.ask(b, &[Do::Append(y)]);
    w.run(millis(1_000));
    assert!(w.answer(held).is_none(), "the record is kept");
    w.run(millis(1_500));
    w.committed(held);
    w.heal(0);
    w.end()
}

#[test]
fn what_nobody_renews_is_kept_no_longer() {
    demand_sound_of(&ENGINES, gone);
}
