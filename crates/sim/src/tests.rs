//! Whole runs: a right toy system passes under every fault, a seed runs the same twice, and every mistake
//! that can be planted in the toy is found within a bounded number of seeds.

mod promises;
mod toy;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ordain_checker::ViolationKind;
use ordain_model::{Known, ReferenceExecutor};

use crate::workload::procedures;
use crate::{Config, Counts, Fault, Faults, Load, Mix, Profile, Report, Simulator, System, run_seed};
use toy::{Mistake, Toy};

fn small(seed: u64, faults: Faults) -> Config {
    Config { txns: 150, faults, load: Load::of(Profile::Storm, 1), ..Config::new(seed) }
}

fn run(config: &Config, mistake: Option<Mistake>) -> Report {
    run_seed(config, Toy::new(mistake), &mut Mix::standard(6), None)
}

#[test]
fn a_right_system_passes_without_faults() {
    for seed in 0..10 {
        let report = run(&small(seed, Faults::NONE), None);
        assert_eq!(report.verdict, Ok(()), "seed {seed}");
        assert_eq!((report.unknown, report.rejected), (0, 0));
        assert_eq!(report.counts.crashes, 1, "the power cycle at the end");
        assert!(report.committed > 100 && report.aborted > 0, "{report:?}");
    }
}

#[test]
fn steps_that_cost_something_take_the_one_core_of_their_node_in_turns() {
    let (config, costs) = (Config { power_cycle: false, ..small(1, Faults::NONE) }, Arc::default());
    let system = Toy::new(None).costing(Arc::clone(&costs));
    let report = run_seed(&config, system, &mut Mix::standard(6), None);
    assert_eq!(report.verdict, Ok(()));
    let (used, gone) = (costs.load(Ordering::Relaxed), 1_000 * report.virtual_time.0);
    // Two roles want the core nearly all the time, and never have it both.
    assert!(used <= gone && used * 2 > gone, "{used} of {gone} ns");
}

#[test]
fn a_right_system_passes_under_each_fault_and_under_all() {
    let mut seen = Counts::default();
    let (mut unknown, mut rejected) = (0, 0);
    let single = Fault::ALL.iter().map(|(fault, _)| Faults::NONE.with(*fault));
    for faults in single.chain([Faults::ALL, Faults::ALL]) {
        for seed in 0..20 {
            let report = run(&small(seed, faults), None);
            assert_eq!(report.verdict, Ok(()), "seed {seed} faults {faults}");
            seen.crashes += report.counts.crashes - 1;
            seen.shortages += report.counts.shortages;
            seen.jumps += report.counts.jumps;
            seen.sync_failures += report.counts.sync_failures;
            unknown += report.unknown;
            rejected += report.rejected;
        }
    }
    assert!(seen.crashes > 100 && seen.shortages > 100 && seen.jumps > 100, "{seen:?}");
    assert!(seen.sync_failures > 5, "{seen:?}");
    assert!(unknown > 100, "crashes leave requests of unknown end: {unknown}");
    assert!(rejected > 20, "full disks refuse requests: {rejected}");
}

/// A run of a seed on a cluster. Its clients think longer, so that a run lasts long enough for nodes to be missed and to be
/// replaced; how long is drawn from the seed.
fn cluster(seed: u64, nodes: u16, faults: Faults) -> Config {
    let storm = Load::of(Profile::Storm, 1);
    let load = Load { clients: 8 + u32::from(nodes), think_us_max: 4_000 << (seed % 7), ..storm };
    Config { nodes, load, ..small(seed, faults) }
}

#[test]
fn a_right_cluster_passes_without_faults() {
    for seed in 0..10 {
        let report = run(&cluster(seed, 3, Faults::NONE), None);
        assert_eq!(report.verdict, Ok(()), "seed {seed}");
        assert_eq!((report.unknown, report.rejected), (0, 0), "seed {seed}");
        let counts = report.counts;
        assert_eq!((counts.crashes, counts.packets_lost, counts.freezes, counts.breaks), (3, 0, 0, 0));
    }
}

#[test]
fn a_right_cluster_passes_under_each_fault_and_under_all() {
    let mut seen = Counts::default();
    let (mut unknown, mut committed) = (0, 0);
    let single = Fault::ALL.iter().map(|(fault, _)| Faults::NONE.with(*fault));
    for faults in single.chain([Faults::ALL, Faults::ALL]) {
        for seed in 0..18 {
            let nodes = [2, 3, 6][seed as usize % 3];
            let report = run(&cluster(seed, nodes, faults), None);
            assert_eq!(report.verdict, Ok(()), "seed {seed} nodes {nodes} faults {faults}");
            let counts = report.counts;
            seen.crashes += counts.crashes - u32::from(nodes);
            seen.partitions += counts.partitions;
            seen.breaks += counts.breaks;
            seen.freezes += counts.freezes;
            seen.losses += counts.losses;
            seen.packets_lost += counts.packets_lost;
            unknown += report.unknown;
            committed += report.committed;
        }
    }
    assert!(seen.crashes > 100 && seen.partitions > 100 && seen.breaks > 100, "{seen:?}");
    assert!(seen.freezes > 100 && seen.losses > 20, "{seen:?}");
    assert!(seen.packets_lost > 1_000, "{seen:?}");
    assert!(unknown > 50 && committed > 5_000, "{unknown} {committed}");
}

/// Clients that think for long keep a run going until nodes are called lost and come back. A run of the usual length ends within
/// 40 ms of virtual time, before most seeds call a node lost at all: of 198 runs four saw one return.
#[test]
fn nodes_are_called_lost_and_come_back_in_runs_that_last() {
    for faults in ["partition", "delay", "partition,delay,reorder,duplicate"] {
        let mut seen = Counts::default();
        for seed in 0..30 {
            let nodes = [2, 3, 6][seed as usize % 3];
            let mut config = cluster(seed, nodes, faults.parse().unwrap());
            config.load.think_us_max = 1 << 20;
            let report = run(&config, None);
            assert_eq!(report.verdict, Ok(()), "seed {seed} nodes {nodes} faults {faults}");
            seen.losses += report.counts.losses;
            seen.returns += report.counts.returns;
        }
        assert!(seen.losses > 20 && seen.returns > 10, "{faults} {seen:?}");
    }
}

#[test]
fn every_mistake_planted_in_a_cluster_is_found() {
    for (mistake, faults, expected) in Mistake::CLUSTER {
        let faults: Faults = faults.parse().unwrap();
        let found = (0..60).find_map(|seed| run(&cluster(seed, 3, faults), Some(mistake)).verdict.err());
        let Some(violation) = found else { panic!("{mistake:?} was not found in 60 seeds") };
        assert!(expected.contains(&violation.kind), "{mistake:?} was found as {violation}");
    }
}

/// Clients of sessions go to another node when theirs is gone, and what they ask for again has one effect.
#[test]
fn clients_change_nodes_and_requests_take_effect_once() {
    let mut moved = 0;
    for seed in 0..10 {
        let faults = "crash,partition,delay".parse().unwrap();
        let mut config = cluster(seed, 3, faults);
        config.load.session_chance = 1_000_000;
        let mut lines = Vec::new();
        let mut sink = |line: &str| lines.push(line.to_owned());
        let report = run_seed(&config, Toy::new(None), &mut Mix::standard(6), Some(&mut sink));
        assert_eq!((report.verdict, report.unknown), (Ok(()), 0), "seed {seed}");
        let mut doors: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for line in &lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [_, "ask", request, "attempt", _, "door", door, ..] = words[..] {
                doors.entry(request).or_default().insert(door);
            }
        }
        // Doors 0 and 1 are of node 0, and so on.
        let nodes = |doors: &BTreeSet<&str>| {
            doors.iter().map(|door| door.parse::<u32>().unwrap() / 2).collect::<BTreeSet<_>>().len()
        };
        moved += doors.values().filter(|doors| nodes(doors) > 1).count();
    }
    assert!(moved > 30, "{moved}");
}

#[test]
fn a_seed_of_a_cluster_runs_the_same_to_the_last_byte() {
    for seed in 0..6 {
        let traced = |lines: &mut Vec<String>| {
            let config = cluster(seed, 6, Faults::ALL);
            let mut sink = |line: &str| lines.push(line.to_owned());
            run_seed(&config, Toy::new(None), &mut Mix::standard(6), Some(&mut sink))
        };
        let (mut first, mut second) = (Vec::new(), Vec::new());
        assert_eq!(traced(&mut first), traced(&mut second));
        assert!(first == second, "the texts of two runs of seed {seed} differ");
    }
}

#[test]
fn a_seed_runs_the_same_to_the_last_byte() {
    for seed in [0, 1, 77, u64::MAX] {
        let traced = |lines: &mut Vec<String>| {
            let config = small(seed, Faults::ALL);
            let mut sink = |line: &str| lines.push(line.to_owned());
            run_seed(&config, Toy::new(None), &mut Mix::standard(6), Some(&mut sink))
        };
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let (one, two) = (traced(&mut first), traced(&mut second));
        assert_eq!(one, two);
        assert!(first == second, "the texts of two runs of seed {seed} differ");
        assert_eq!(first.len() as u64, one.events);
        assert_eq!(run(&small(seed, Faults::ALL), None), one, "looking changes nothing");
    }
    let hashes: BTreeSet<u128> = (0..20).map(|s| run(&small(s, Faults::ALL), None).trace_hash).collect();
    assert_eq!(hashes.len(), 20, "other seeds are other runs");
}

#[test]
fn every_planted_mistake_is_found() {
    for (mistake, faults, expected) in Mistake::ALL {
        let faults: Faults = faults.parse().unwrap();
        let found = (0..60).find_map(|seed| run(&small(seed, faults), Some(mistake)).verdict.err());
        let Some(violation) = found else { panic!("{mistake:?} was not found in 60 seeds") };
        assert!(expected.contains(&violation.kind), "{mistake:?} was found as {violation}");
    }
}

#[test]
fn transactions_end_in_every_way_that_there_is() {
    let mut ends = BTreeSet::new();
    for seed in 0..8 {
        let config = small(seed, Faults::NONE.with(Fault::Delay));
        let mut mix = Mix::standard(6);
        let mut simulator = Simulator::new(Toy::new(None), &mut mix, &config, None);
        simulator.run(config.faults_last, |s| (s.history().len() as u64) < config.txns);
        let mut disk = simulator.nodes[0].disk.clone();
        let log = simulator.system.log(&mut disk).unwrap();
        let mut reference = ReferenceExecutor::new(simulator.system.registry());
        let results = log.iter().flat_map(|batch| reference.run(batch));
        ends.extend(results.map(|result| format!("{:?}", result.status)));
    }
    let wanted = ["Aborted(Logic)", "Aborted(Panic)", "Aborted(Restart)", "Committed"];
    assert!(ends.iter().map(String::as_str).eq(wanted), "{ends:?}");
}

#[test]
fn a_system_that_does_not_answer_is_stuck_and_not_wrong() {
    let verdict = run(&small(3, Faults::NONE), Some(Mistake::LoseOutcomes)).verdict;
    let violation = verdict.unwrap_err();
    assert_eq!(violation.kind, ViolationKind::Stuck);
    assert!(violation.kind.is_liveness() && !violation.requests.is_empty());
}

#[test]
fn a_log_damaged_at_rest_is_a_violation_of_recovery() {
    let report = run(&small(5, Faults::NONE), Some(Mistake::DamageLog));
    assert_eq!(report.verdict.unwrap_err().kind, ViolationKind::Recovery);
}

#[test]
fn the_standard_mix_reaches_every_procedure_and_plans_without_refusal() {
    use crate::Workload;
    let registry = toy::registry();
    let mut mix = Mix::standard(6);
    let mut random = crate::Random::new(1);
    let mut called = BTreeSet::new();
    for _ in 0..4000 {
        let (call, args) = mix.next(&mut random);
        called.insert(call.procedure);
        let procedure = registry.get(call.procedure).unwrap();
        let args = ordain_model::args::Args::parse(&args).unwrap();
        if procedure.is_dependent() {
            assert!(procedure.reconnoitre(args, &Known::default()).is_ok());
        } else {
            let mut plans = ordain_model::plan::Plans::default();
            ordain_model::Planner::plan(&registry, call.procedure, call.db, args, &mut plans).unwrap();
        }
    }
    let all: BTreeSet<_> =
        registry.names().filter(|(n, _)| n.starts_with("sim.")).map(|(_, id)| id).collect();
    assert_eq!(all.len(), 23);
    assert!(called.is_superset(&all), "{:?}", all.difference(&called));
    assert!(called.contains(&ordain_model::system::MULTI) && called.contains(&procedures::EVEN));
}
