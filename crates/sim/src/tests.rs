//! Whole runs: a right toy system passes under every fault, a seed runs the same twice, and every mistake
//! that can be planted in the toy is found within a bounded number of seeds.

mod promises;
mod toy;

use std::collections::BTreeSet;

use ordain_model::{Known, ReferenceExecutor};
use ordain_role::NodeId;

use crate::workload::procedures;
use crate::{Config, Fault, Faults, Mix, Report, Simulator, System, ViolationKind, run_seed};
use toy::{Mistake, Toy};

fn small(seed: u64, faults: Faults) -> Config {
    Config { txns: 150, faults, ..Config::new(seed) }
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
fn a_right_system_passes_under_each_fault_and_under_all() {
    let mut seen = crate::Counts::default();
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
    assert!(unknown > 100, "crashes leave requests of which nobody knows: {unknown}");
    assert!(rejected > 20, "full disks refuse requests: {rejected}");
}

#[test]
fn clients_of_several_nodes_share_one_order() {
    for seed in 0..10 {
        let faults = "delay,clock".parse().unwrap();
        let config = Config { nodes: 3, clients: 9, ..small(seed, faults) };
        assert_eq!(run(&config, None).verdict, Ok(()), "seed {seed}");
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
        let log = simulator.system.log(NodeId(0), &mut disk).unwrap();
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
    let registry = crate::check::fixture::registry();
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
