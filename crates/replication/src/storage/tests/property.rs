//! Random faults, many plans: what the log of a region promises holds whatever happens, and it goes on once the faults end. A plan
//! that breaks something is shrunk to the few faults that do.

use ordain_role::{Bug, Bugs, Event};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use super::tally::Tally;
use super::world::{Fault as Outcome, Region, World};
use crate::storage::StorageMode;
use crate::tests::Note;

/// Something that happens to a region. Nodes are numbers of which the remainder counts.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Crash {
        node: usize,
        power: bool,
        back_ms: u64,
    },
    /// All replicas lose power.
    Blackout {
        back_ms: u64,
    },
    CrashLeader {
        back_ms: u64,
    },
    Cut {
        node: usize,
    },
    CutLeader {
        work: u8,
    },
    CutOne {
        from: usize,
        to: usize,
    },
    Heal,
    Break {
        one: usize,
        other: usize,
    },
    Full {
        replica: usize,
    },
    Space,
    Freeze {
        node: usize,
        ms: u64,
        in_step: bool,
    },
    FreezeLeader {
        ms: u64,
        in_step: bool,
    },
    Pace {
        node: usize,
        percent: u64,
    },
    Slow {
        delay_ms: u64,
        disk_ms: u64,
    },
    Checkpoint {
        server: usize,
    },
    Trim {
        replica: usize,
        alone: bool,
    },
    /// A server loses its directory.
    Forget {
        server: usize,
    },
    /// A replica loses its disk, if all others count.
    Empty {
        replica: usize,
        back_ms: u64,
    },
    Stop {
        server: usize,
        back_ms: u64,
    },
    Pause {
        ms: u64,
    },
}

fn faults() -> impl Strategy<Value = Fault> {
    let node = 0..8usize;
    let back_ms = 1..800u64;
    prop_oneof![
        3 => (node.clone(), any::<bool>(), back_ms.clone())
            .prop_map(|(node, power, back_ms)| Fault::Crash { node, power, back_ms }),
        1 => back_ms.clone().prop_map(|back_ms| Fault::Blackout { back_ms }),
        1 => back_ms.clone().prop_map(|back_ms| Fault::CrashLeader { back_ms }),
        1 => node.clone().prop_map(|node| Fault::Cut { node }),
        2 => (0..4u8).prop_map(|work| Fault::CutLeader { work }),
        2 => (node.clone(), node.clone()).prop_map(|(from, to)| Fault::CutOne { from, to }),
        3 => Just(Fault::Heal),
        1 => (node.clone(), node.clone()).prop_map(|(one, other)| Fault::Break { one, other }),
        1 => node.clone().prop_map(|replica| Fault::Full { replica }),
        2 => Just(Fault::Space),
        1 => (node.clone(), 1..3000u64, any::<bool>())
            .prop_map(|(node, ms, in_step)| Fault::Freeze { node, ms, in_step }),
        2 => (1..3000u64, any::<bool>()).prop_map(|(ms, in_step)| Fault::FreezeLeader { ms, in_step }),
        1 => (node.clone(), 40..200u64).prop_map(|(node, percent)| Fault::Pace { node, percent }),
        1 => (1..60u64, 1..150u64).prop_map(|(delay_ms, disk_ms)| Fault::Slow { delay_ms, disk_ms }),
        2 => node.clone().prop_map(|server| Fault::Checkpoint { server }),
        2 => (node.clone(), any::<bool>()).prop_map(|(replica, alone)| Fault::Trim { replica, alone }),
        1 => node.clone().prop_map(|server| Fault::Forget { server }),
        3 => (node.clone(), back_ms.clone()).prop_map(|(replica, back_ms)| Fault::Empty { replica, back_ms }),
        1 => (node, back_ms).prop_map(|(server, back_ms)| Fault::Stop { server, back_ms }),
        4 => (1..1500u64).prop_map(|ms| Fault::Pause { ms }),
    ]
}

#[derive(Clone, Debug)]
struct Plan {
    region: Region,
    seed: u64,
    faults: Vec<Fault>,
}

fn plans(early: impl Strategy<Value = bool>) -> impl Strategy<Value = Plan> {
    let mode = prop_oneof![Just(StorageMode::Quorum), Just(StorageMode::Full)];
    let region = (1..=3usize, 1..=5usize, mode, early).prop_map(|(servers, replicas, mode, early)| Region {
        servers,
        replicas,
        mode,
        early,
    });
    (region, any::<u64>(), proptest::collection::vec(faults(), 0..40))
        .prop_map(|(region, seed, faults)| Plan { region, seed, faults })
}

/// Faults for a while, then none, then everything must be in order.
fn run(plan: &Plan, bugs: Bugs) -> Result<Tally, String> {
    run_in(World::new(plan.region, plan.seed, bugs), plan).map_err(|(reason, _)| reason)
}

/// Runs a plan. What breaks comes with the world in which it does.
fn run_in(mut world: World, plan: &Plan) -> Result<Tally, (String, Box<World>)> {
    match carry_out(&mut world, plan) {
        Ok(tally) => Ok(tally),
        Err(reason) => Err((reason, Box::new(world))),
    }
}

fn carry_out(world: &mut World, plan: &Plan) -> Result<Tally, String> {
    for fault in &plan.faults {
        work(world)?;
        cause(world, *fault)?;
        world.copy_checkpoints()?;
    }
    heal(world)?;
    for node in 0..world.nodes.len() {
        world.start_later(node, 1000);
    }
    world.run(1_000_000)?;
    world.run_until(30_000_000, World::is_settled).map_err(|e| {
        match world.servers().filter(|server| world.nodes[*server].leads).count() {
            0 | 1 => format!("the region does not settle: {e}"),
            count => format!("{count} servers lead although nothing is wrong"),
        }
    })?;
    world.run(1_500_000)?;
    if world.open_questions() > 0 {
        return Err("whether a server leads is not answered although nothing is wrong".to_owned());
    }
    let before = world.agreed.len();
    for _ in 0..10 {
        let leader = world.leader().ok_or("the leader is gone although nothing happens")?;
        let confirmed = world.tally.confirmed;
        world.append(leader, 1, 100)?;
        world.ask(leader)?;
        world.run(100_000)?;
        if world.tally.confirmed != confirmed + 1 {
            return Err("the leader is not confirmed although nothing is wrong".to_owned());
        }
    }
    world.run_until(3_000_000, World::is_settled)?;
    if world.agreed.len() != before + 10 {
        return Err("the region does not take entries although nothing is wrong".to_owned());
    }
    // Whoever begins now reads the same: all from the start, if nothing was trimmed, and else from the newest checkpoint on.
    let server = (0..plan.region.servers).find(|server| !world.nodes[*server].leads).unwrap_or(0);
    world.stop(server, true);
    world.nodes[server].checkpoint = 0;
    world.start(server)?;
    world
        .run_until(10_000_000, World::is_settled)
        .map_err(|e| format!("a new server does not settle: {e}"))?;
    for (id, fate) in &world.fates {
        let is_durable = world.agreed.iter().any(|bytes| Note::id_of(bytes) == *id);
        if is_durable != (*fate == super::world::Fate::Logged) {
            return Err(format!("note {id} is {fate:?}"));
        }
    }
    let gauges = |world: &World, name: &str| -> usize {
        world.servers().map(|server| world.gauge(server, name) as usize).sum()
    };
    let reconfigured = gauges(world, "ordain_storage_reconfigured_total");
    let relayed = gauges(world, "ordain_storage_relayed_total");
    Ok(Tally { reconfigured, relayed, ..world.tally })
}

/// Some entries and questions, mostly at a leader, now and then at another server.
fn work(world: &mut World) -> Outcome {
    for _ in 0..world.random.between((1, 12)) {
        let pause = world.random.between((100, 20_000));
        world.run(pause)?;
        let any = world.random.below(world.region.servers as u64) as usize;
        let leads: Vec<usize> = world.servers().filter(|node| world.nodes[*node].leads).collect();
        let node = match leads.len() as u64 {
            0 => any,
            _ if world.random.below(20) == 0 => any,
            count => leads[world.random.below(count) as usize],
        };
        if !world.is_up(node) {
            continue;
        }
        if world.random.below(3) == 0 {
            world.ask(node)?;
        }
        if world.nodes[node].open.len() < 6 {
            let size = 1 + world.random.below(3) * world.random.below(400);
            // Now and then an epoch that is not above the last.
            let skip = world.random.below(8);
            world.append(node, skip, size)?;
        }
    }
    Ok(())
}

fn cause(world: &mut World, fault: Fault) -> Outcome {
    let (count, servers) = (world.nodes.len(), world.region.servers);
    let of = |node: usize| node % count;
    let replica_of = |node: usize| servers + node % (count - servers);
    match fault {
        Fault::Crash { node, power, back_ms } => {
            world.stop(of(node), power);
            world.start_later(of(node), back_ms * 1000);
        }
        Fault::Blackout { back_ms } => {
            for node in world.replicas() {
                world.stop(node, true);
                let back = world.random.between((1000, 1000 + back_ms * 1000));
                world.start_later(node, back);
            }
        }
        Fault::CrashLeader { back_ms } => {
            if let Some(leader) = world.leader() {
                world.stop(leader, true);
                world.start_later(leader, back_ms * 1000);
            }
        }
        Fault::Cut { node } => world.set_cut(of(node)),
        Fault::CutLeader { work } => {
            if let Some(leader) = world.leader() {
                world.set_cut(leader);
                // It does not know yet, and takes some more.
                for _ in 0..work {
                    world.append(leader, 1, 10)?;
                }
            }
        }
        Fault::CutOne { from, to } => world.cut_link(of(from), of(to)),
        Fault::Heal => world.heal_links(),
        Fault::Break { one, other } => {
            if of(one) != of(other) {
                world.break_stream(of(one), of(other));
            }
        }
        Fault::Full { replica } => world.nodes[replica_of(replica)].disk.set_full_from(Some(0)),
        Fault::Space => world.nodes.iter_mut().for_each(|node| node.disk.set_full_from(None)),
        Fault::Freeze { node, ms, in_step } => world.freeze(of(node), ms * 1000, in_step),
        Fault::FreezeLeader { ms, in_step } => {
            if let Some(leader) = world.leader() {
                world.freeze(leader, ms * 1000, in_step);
            }
        }
        Fault::Pace { node, percent } => world.nodes[of(node)].pace = percent,
        Fault::Slow { delay_ms, disk_ms } => {
            (world.delay, world.disk_delay) = ((200, 1000 * delay_ms), (100, 1000 * disk_ms));
        }
        Fault::Checkpoint { server } => world.checkpoint(server % servers),
        Fault::Trim { replica, alone } => world.trim(replica_of(replica), alone)?,
        Fault::Forget { server } => {
            world.lose_disk(server % servers);
            world.start_later(server % servers, 10_000);
        }
        Fault::Empty { replica, back_ms } => {
            let replica = replica_of(replica);
            if world.may_lose(replica) {
                world.lose_disk(replica);
                world.start_later(replica, back_ms * 1000);
            }
        }
        Fault::Stop { server, back_ms } => {
            let server = server % servers;
            world.event(server, Event::Stop)?;
            world.run(20_000)?;
            world.stop(server, false);
            world.start_later(server, back_ms * 1000);
        }
        Fault::Pause { ms } => world.run(ms * 1000)?,
    }
    Ok(())
}

fn heal(world: &mut World) -> Outcome {
    world.heal_links();
    (world.delay, world.disk_delay) = ((200, 2000), (100, 3000));
    world.nodes.iter_mut().for_each(|node| node.disk.set_full_from(None));
    world.nodes.iter_mut().for_each(|node| node.pace = 100);
    world.run(3_000_000)
}

/// Runs plans, the same ones each time. Answers what they came to, or the smallest plan found that breaks something.
fn runs(cases: u32, early: impl Strategy<Value = bool>, bugs: Bugs) -> Result<Tally, String> {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let total = std::cell::Cell::new(Tally::default());
    let found = runner.run(&plans(early), |plan| match run(&plan, bugs) {
        Ok(tally) => {
            total.set(total.get().and(&tally));
            Ok(())
        }
        // A bug has to break a promise, and not only to make a region slow.
        Err(slow) if bugs != Bugs::NONE && slow.contains("come to pass") => Ok(()),
        Err(reason) => Err(TestCaseError::fail(reason)),
    });
    match found {
        Ok(()) => Ok(total.get()),
        Err(TestError::Fail(reason, plan)) => Err(format!("{reason}: {plan:#?}")),
        Err(TestError::Abort(reason)) => Err(format!("given up: {reason}")),
    }
}

/// Plans that longer runs have found, each with what it broke.
#[test]
fn plans_that_broke_something_break_it_no_more() {
    use Fault::*;
    let region = Region { early: true, ..Region::new(3, 1) };
    // What was applied early was taken for durable.
    let early = [
        Pause { ms: 1072 },
        Freeze { node: 3, ms: 1390, in_step: false },
        CrashLeader { back_ms: 329 },
        Slow { delay_ms: 1, disk_ms: 1 },
        CrashLeader { back_ms: 1 },
        Checkpoint { server: 0 },
        CrashLeader { back_ms: 1 },
        CrashLeader { back_ms: 1 },
        Freeze { node: 0, ms: 1434, in_step: false },
        Heal,
        CutOne { from: 2, to: 7 },
        Break { one: 2, other: 3 },
        Space,
        Space,
        Freeze { node: 1, ms: 2772, in_step: false },
        Forget { server: 6 },
        Crash { node: 0, power: true, back_ms: 34 },
    ];
    let early = Plan { region, seed: 1_953_700_847_590_315_959, faults: early.to_vec() };
    // A server that could not fetch all of the newest log stood for ever, and kept the other from it.
    let trimmed = [
        CutOne { from: 4, to: 0 },
        Crash { node: 6, power: false, back_ms: 169 },
        Pace { node: 4, percent: 64 },
        Checkpoint { server: 2 },
        Break { one: 0, other: 1 },
        CrashLeader { back_ms: 1 },
        CrashLeader { back_ms: 1 },
        CrashLeader { back_ms: 1 },
        Crash { node: 0, power: false, back_ms: 1 },
        CutLeader { work: 0 },
        CutLeader { work: 0 },
        CrashLeader { back_ms: 1 },
        CrashLeader { back_ms: 1 },
        Space,
        Stop { server: 1, back_ms: 106 },
        Trim { replica: 0, alone: false },
        Trim { replica: 1, alone: true },
        Crash { node: 4, power: true, back_ms: 556 },
        Space,
    ];
    let region = Region::new(2, 2);
    let trimmed = Plan { region, seed: 10_441_624_091_541_026_844, faults: trimmed.to_vec() };
    for plan in [early, trimmed] {
        let mut world = World::new(plan.region, plan.seed, Bugs::NONE);
        world.transcript = Some(String::new());
        if let Err((reason, world)) = run_in(world, &plan) {
            panic!("{reason}\n{}", world.transcript.unwrap_or_default());
        }
    }
}

#[test]
fn a_region_keeps_its_promises() {
    let total = runs(400, Just(false), Bugs::NONE).unwrap_or_else(|e| panic!("{e}"));
    // The runs are worth something.
    assert!(total.appended > 5_000 && total.confirmed > 2_000 && total.refused > 500, "{total:?}");
    assert!(total.lost > 100 && total.leaders > 400 && total.rejected > 10, "{total:?}");
    assert!(total.reconfigured > 10 && total.relayed > 10 && total.copied > 5, "{total:?}");
    assert!(total.emptied > 50, "{total:?}");
    assert_eq!(total.restarted, 0, "{total:?}");
}

#[test]
fn a_region_that_applies_early_keeps_its_promises() {
    let total = runs(300, Just(true), Bugs::NONE).unwrap_or_else(|e| panic!("{e}"));
    assert!(total.appended > 5_000 && total.confirmed > 2_000 && total.restarted > 10, "{total:?}");
}

fn assert_found(bug: Bug) {
    let found = runs(600, any::<bool>(), Bugs::NONE.with(bug));
    assert!(found.is_err(), "{bug:?} is not found");
}

#[test]
fn a_replica_that_takes_lines_of_a_sealed_ballot_is_found_out() {
    assert_found(Bug::TakeSealed);
}

#[test]
fn a_line_that_is_durable_by_one_is_found_out() {
    assert_found(Bug::DurableByOne);
}

#[test]
fn a_leader_that_confirms_itself_is_found_out() {
    assert_found(Bug::ConfirmFromBelief);
}

#[test]
fn a_journal_that_does_not_sync_is_found_out() {
    assert_found(Bug::SkipSync);
}
