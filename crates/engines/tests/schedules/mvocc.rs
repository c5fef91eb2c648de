//! Schedules of `regions-mvocc` within one region: a partition of three members with two shards. Scenarios 15 to 17 and 22 of the shared sheet
//! (regions.md, section 8), and the anomalies that the engine must not show. Messages between two roles are held with all that follows them.

use ordain_commands::ids;
use ordain_commit::{CommitEngine, Message, Own, Protocol};
use ordain_engines::regions_mvocc::{self, ENGINE};
use ordain_engines::registry::Engine;
use ordain_family::places;
use ordain_model::{Datum, Micros, Options, OutcomeStatus};
use ordain_replication::Log;
use ordain_role::{Address, Bug, Bugs, NodeId};

use crate::world::{Do, World};
use crate::{Schedule, beginnings, millis, said, schedule_5};

const MANAGER: u16 = 0;
const REFUSED: &str = "ordain_mvocc_refused_total{reason=\"cascade\"}";

/// A region with two shards, in which refused attempts begin anew after a pause.
fn region(bugs: Bugs) -> World {
    World::sharded(regions_mvocc::ENGINE, options(&[]), (1, 2), bugs)
}

fn options(given: &[(&str, &str)]) -> Options {
    let engine = ENGINE.name.parse::<Engine>().expect("it is in the registry");
    engine.options(given.iter().copied()).expect("options of it")
}

/// Demands that a schedule is sound, and is not with a bug.
fn demand(schedule: Schedule, bug: Bug) {
    crate::demand_sound_of(&[ENGINE], schedule);
    assert!(schedule(ENGINE, Bugs::NONE.with(bug)).is_err(), "{} is not found", bug.name());
}

/// Holds what a node's shard says to its manager.
fn hold_answers(w: &mut World, node: NodeId, shard: u16) -> u32 {
    let of = Address { node, role: places::SHARDS + shard };
    w.hold(move |from, to, message| {
        let is_answer = matches!(said(message), Some(Protocol::Accessed(_)));
        (from, to) == (of, Address { node, role: MANAGER })
            && (is_answer || matches!(message, Message::Own(Own::Validated(..))))
    })
}

/// Holds the entries that a node's log tells one of its shards.
fn hold_entries(w: &mut World, node: NodeId, shard: u16) -> u32 {
    let of = Address { node, role: places::SHARDS + shard };
    w.hold(move |_, to, message| to == of && matches!(message, Message::Log(Log::Sealed(_))))
}

/// Has members of the only partition agree on nothing.
fn hold_agreement(w: &mut World, leader: NodeId) -> u32 {
    w.hold(move |from, to, message| {
        from.node == leader && to.node != leader && matches!(message, Message::Group(_))
    })
}

/// Write skew over two shards: each of two attempts has read what the other one writes before either is validated. `are_new`: the records are absent.
fn write_skew(bugs: Bugs, are_new: bool) -> Result<(), String> {
    let mut w = region(bugs);
    let (x, y, a) = (w.list_at(0, 0), w.list_at(1, 0), w.led_by(0));
    if !are_new {
        let first = w.ask(a, &[Do::Append(x), Do::Append(y)]);
        w.committed(first);
    }
    let late = hold_answers(&mut w, a, 1);
    let t1 = w.ask(a, &[Do::Read(x), Do::Append(y)]);
    let t2 = w.ask(a, &[Do::Read(y), Do::Append(x)]);
    w.until("the answers", World::holds_something);
    w.run(millis(2));
    w.release(late);
    [t1, t2].into_iter().for_each(|txn| w.committed(txn));
    w.end()
}

#[test]
fn write_skew_does_not_commit() {
    demand(|_, bugs| write_skew(bugs, false), Bug::PassPrepared);
    demand(|_, bugs| write_skew(bugs, false), Bug::SkipValidation);
}

#[test]
fn scenario_22_an_absent_read_meets_the_insert() {
    demand(|_, bugs| write_skew(bugs, true), Bug::PassPrepared);
    demand(|_, bugs| write_skew(bugs, true), Bug::SkipValidation);
}

/// Scenario 16: T1 and T2 read and write x, which T1 has claimed and cannot commit yet.
fn race(bugs: Bugs) -> Result<(), String> {
    let mut w = region(bugs);
    let (x, y, a) = (w.list_at(0, 0), w.list_at(1, 0), w.led_by(0));
    let late = hold_answers(&mut w, a, 1);
    let t1 = w.ask(a, &[Do::Read(x), Do::Append(x), Do::Read(y)]);
    w.until("T1's answer", World::holds_something);
    let t2 = w.ask(a, &[Do::Read(x), Do::Append(x)]);
    w.run(millis(2));
    assert!(w.answer(t2).is_none() || bugs != Bugs::NONE, "T1 has x");
    w.release(late);
    [t1, t2].into_iter().for_each(|txn| w.committed(txn));
    w.end()
}

#[test]
fn scenario_16_of_two_writers_the_second_is_refused_and_no_update_is_lost() {
    assert_eq!(race(Bugs::NONE), Ok(()));
    // Without the claim validation would refuse the second one yet.
    let bugs = Bugs::NONE.with(Bug::UpgradeShared).with(Bug::SkipValidation);
    assert!(race(bugs).is_err());
}

/// The anomaly of what only reads (Fekete, O'Neil and O'Neil): T2 has read x and y and will write x. T1 writes y. R sees that, and not T2.
fn reader_between(_: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = region(bugs);
    // T2 reads at the other shard too, whose answer is late.
    let (x, y, z, a) = (w.list_at(0, 0), w.list_at(0, 1), w.list_at(1, 0), w.led_by(0));
    let late = hold_answers(&mut w, a, 1);
    let t2 = w.ask(a, &[Do::Read(x), Do::Read(y), Do::Append(x), Do::Read(z)]);
    w.until("T2's answer", World::holds_something);
    let t1 = w.ask(a, &[Do::Append(y)]);
    w.committed(t1);
    let reader = w.ask(a, &[Do::Read(x), Do::Read(y)]);
    w.committed(reader);
    w.release(late);
    w.committed(t2);
    w.end()
}

#[test]
fn a_reader_between_two_writers_closes_no_cycle() {
    demand(reader_between, Bug::SkipValidation);
}

/// Scenario 15: T1 is validated at shard 0, where it writes a, and refused at shard 1, which says so late. T2 reads a and writes b there, T3 reads b
/// and writes c, T4 reads c and writes d. T5 reads d, and writes what T1 reads at its next attempt.
fn chain(_: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::sharded(ENGINE, options(&[("backoff", "deneva")]), (1, 2), bugs);
    let [a, b, c, d] = [0, 1, 2, 3].map(|nth| w.list_at(0, nth));
    let (read, leader) = (w.list_at(1, 0), w.led_by(0));
    let first = w.ask(leader, &[Do::Append(read)]);
    w.committed(first);
    // T1 has read, and its answer from shard 0 is late: another one overwrites what it has read, and is validated first.
    let answer = hold_answers(&mut w, leader, 0);
    let t1 = w.ask(leader, &[Do::Append(a), Do::Read(read)]);
    w.until("T1's answer", World::holds_something);
    let over = w.ask(leader, &[Do::Append(read)]);
    w.committed(over);
    let refusal = hold_answers(&mut w, leader, 1);
    w.release(answer);
    w.until("T1's refusal", World::holds_something);
    let pairs = [(a, b), (b, c), (c, d)];
    let mut others: Vec<_> = pairs
        .iter()
        .map(|(from, to)| {
            let txn = w.ask(leader, &[Do::Read(*from), Do::Append(*to)]);
            w.run(millis(1));
            txn
        })
        .collect();
    others.push(w.ask(leader, &[Do::Read(d), Do::Append(read)]));
    w.run(millis(5));
    assert!(others.iter().all(|txn| w.answer(*txn).is_none()), "they stand on T1");
    assert_eq!(w.gauge(leader, "ordain_mvocc_speculated_total"), 4.0);
    w.release(refusal);
    w.run(millis(100));
    if bugs == Bugs::NONE {
        assert_eq!(w.gauge(leader, REFUSED), 4.0, "they come to nothing with it");
        assert!(others.iter().all(|txn| w.answer(*txn).is_none()));
    }
    others.iter().chain([&t1]).for_each(|txn| w.committed(*txn));
    w.end()
}

#[test]
fn scenario_15_a_chain_that_stands_on_an_attempt_comes_to_nothing_with_it() {
    demand(chain, Bug::ForgetDependency);
}

/// Scenario 17: T is validated, and its partition agrees on nothing. What reads what it writes waits, for as long as that takes; what reads something
/// else is not kept.
fn long_wait(_: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = region(bugs);
    let (x, y, a) = (w.list_at(0, 0), w.list_at(1, 0), w.led_by(0));
    let first = w.ask(a, &[Do::Append(x), Do::Append(y)]);
    w.committed(first);
    let agreement = hold_agreement(&mut w, a);
    let t = w.ask(a, &[Do::Append(x), Do::Append(y)]);
    w.run(millis(2));
    let reader = w.ask(a, &[Do::Read(x), Do::Read(y)]);
    let update = w.ask(a, &[Do::Read(y), Do::Append(w.list_at(0, 1))]);
    w.run(millis(80));
    assert!([t, reader, update].iter().all(|txn| w.answer(*txn).is_none()));
    let (waits, reads) =
        (w.gauge(a, "ordain_mvocc_waited_total"), w.gauge(a, "ordain_mvocc_speculated_total"));
    assert!(bugs != Bugs::NONE || (waits, reads) == (2.0, 1.0), "{waits} {reads}");
    w.release(agreement);
    [t, reader, update].into_iter().for_each(|txn| w.committed(txn));
    w.end()
}

/// The same where T is answered and shard 0 has not heard of that. Who reads afterwards has to see it at both.
fn untold_shard(_: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = region(bugs);
    let (x, y, a) = (w.list_at(0, 0), w.list_at(1, 0), w.led_by(0));
    // Shard 0 has heard of a ceiling.
    let first = w.ask(a, &[Do::Append(x), Do::Append(y)]);
    w.committed(first);
    let entries = hold_entries(&mut w, a, 0);
    let t = w.ask(a, &[Do::Append(x), Do::Append(y)]);
    w.committed(t);
    let reader = w.ask(a, &[Do::Read(x), Do::Read(y)]);
    w.run(millis(5));
    assert!(w.answer(reader).is_none() || bugs != Bugs::NONE, "T is validated there");
    w.release(entries);
    w.committed(reader);
    w.end()
}

#[test]
fn scenario_17_a_reader_meets_an_attempt_that_is_validated_for_long() {
    assert_eq!(long_wait(ENGINE, Bugs::NONE), Ok(()));
    demand(untold_shard, Bug::GrantLockEarly);
}

/// A leader dies with attempts that are validated and stand on each other; what it has proposed and was agreed on stays.
fn next_leader(_: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = region(bugs);
    let (x, y) = (w.list_at(0, 0), w.list_at(1, 0));
    let a1 = w.led_by(0);
    let first = w.ask(a1, &[Do::Append(x), Do::Append(y)]);
    w.committed(first);
    hold_agreement(&mut w, a1);
    for ops in [[Do::Append(x), Do::Read(y)], [Do::Read(x), Do::Append(y)]] {
        w.ask(a1, &ops);
        w.run(millis(1));
    }
    w.depose(a1);
    let a2 = w.another_leads(0, a1);
    let reader = w.ask(a2, &[Do::Read(x), Do::Read(y)]);
    w.committed(reader);
    let update = w.ask(a2, &[Do::Read(y), Do::Append(x)]);
    w.committed(update);
    let again = w.ask(a2, &[Do::Read(x), Do::Read(y)]);
    w.committed(again);
    assert!(w.stamp(again) > w.stamp(update) && w.stamp(update) > w.stamp(reader));
    assert!(w.stamp(reader) > w.stamp(first), "stamps rise over terms");
    let status = w.answer(reader).map(|answer| answer.status);
    assert_eq!(status, Some(OutcomeStatus::Committed));
    w.end()
}

#[test]
fn what_is_validated_ends_with_the_term() {
    assert_eq!(next_leader(ENGINE, Bugs::NONE), Ok(()));
    demand(schedule_5, Bug::ConfirmFromBelief);
    demand(beginnings::a_beginning_that_is_lost, Bug::GuessBeginning);
}

/// Time (schedule 17 of commit.md): T sets k and y unless one of them is there. It has found k alive and its other answer is late; k expires, and
/// somebody is told so. T comes later by its second stamp, so it must not find k alive.
fn expired_meanwhile(_: CommitEngine, bugs: Bugs) -> Result<(), String> {
    // The database itself removes what has expired, ten times a second.
    [0, 33, 66].into_iter().try_for_each(|later| expired_meanwhile_at(later, bugs))
}

fn expired_meanwhile_at(later: u64, bugs: Bugs) -> Result<(), String> {
    let mut w = region(bugs);
    w.run(millis(later));
    let (k, y, a) = (w.key_on(0, 0), w.key_on(1, 0), w.led_by(0));
    let set = w.command(a, ids::SET, &[&k, b"v", b"PX", b"5"]);
    w.committed(set);
    let late = hold_answers(&mut w, a, 1);
    let t = w.command(a, ids::MSETNX, &[&y, b"1", &k, b"1"]);
    w.until("T's answer", World::holds_something);
    w.run(millis(8));
    let gone = w.command(a, ids::GET, &[&k]);
    w.committed(gone);
    assert_eq!(Datum::first(&w.answered(gone).reply), Datum::Nil);
    w.release(late);
    let answer = w.answered(t);
    if Datum::first(&answer.reply) != Datum::Int(1) {
        return Err(format!("it was gone, and was found: {:?}", Datum::first(&answer.reply)));
    }
    w.end()
}

#[test]
fn what_has_expired_by_the_second_stamp_was_not_read_alive() {
    demand(expired_meanwhile, Bug::LookBack);
}

/// Holds what a node's manager says to one of its shards.
fn hold_requests(w: &mut World, node: NodeId, shard: u16) -> u32 {
    let of = Address { node, role: places::SHARDS + shard };
    w.hold(move |from, to, message| {
        let is_termed = matches!(message, Message::Termed(_) | Message::Own(_));
        from == Address { node, role: MANAGER } && to == of && is_termed
    })
}

/// Numbers that follow from a seed (splitmix64).
struct Drawn(u64);

impl Drawn {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) % limit
    }
}

/// A drawn history over three shards: transactions of up to four operations on six lists, and streams between roles that are held for a while.
fn drawn(seed: u64, bugs: Bugs) -> Result<(), String> {
    let (mut w, mut drawn) = (World::sharded(ENGINE, options(&[]), (1, 3), bugs), Drawn(seed));
    let lists: Vec<u64> = (0..6).map(|n| w.list_at(n % 3, n / 3)).collect();
    let a = w.led_by(0);
    let mut holds = Vec::new();
    for _ in 0..100 {
        match drawn.below(10) {
            0..5 => {
                let only_reads = drawn.below(3) == 0;
                let ops: Vec<Do> = (0..=drawn.below(4))
                    .map(|_| {
                        let list = lists[drawn.below(lists.len() as u64) as usize];
                        if only_reads || drawn.below(2) == 0 { Do::Read(list) } else { Do::Append(list) }
                    })
                    .collect();
                w.ask(a, &ops);
            }
            5 if holds.len() < 3 => {
                let (shard, kind) = (drawn.below(3) as u16, drawn.below(3));
                holds.push(match kind {
                    0 => hold_answers(&mut w, a, shard),
                    1 => hold_entries(&mut w, a, shard),
                    _ => hold_requests(&mut w, a, shard),
                });
            }
            6 | 7 if !holds.is_empty() => {
                let at = drawn.below(holds.len() as u64) as usize;
                w.release(holds.remove(at));
            }
            _ => w.run(Micros(drawn.below(400))),
        }
    }
    w.end()
}

#[test]
fn drawn_histories_are_strictly_serializable() {
    for seed in 0..24 {
        assert_eq!(drawn(seed, Bugs::NONE), Ok(()), "seed {seed}");
    }
    for bug in [Bug::SkipValidation, Bug::PassPrepared, Bug::GrantLockEarly] {
        let finds = |seed: &u64| drawn(*seed, Bugs::NONE.with(bug)).is_err();
        assert!((0..60).any(|seed| finds(&seed)), "no seed finds {}", bug.name());
    }
}
