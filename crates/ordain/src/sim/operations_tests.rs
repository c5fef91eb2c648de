//! Seeds with an operator and with the workloads of benchmarks, and judges that are shown what must not be.

use super::tests::{args, demand_sound};
use super::*;
use ordain_checker::ViolationKind;
use ordain_checker::history::History;
use ordain_sim::Counts;

/// Runs seeds, which must be sound, and adds up what has happened.
fn counts(flags: &[&str], seeds: std::ops::Range<u64>) -> Counts {
    let args = args(&[&["--txns", "200"], flags].concat());
    let mut sum = Counts::default();
    for seed in seeds {
        let report = simulate(&args, seed, None).unwrap();
        assert!(report.verdict.is_ok(), "{report}\nreproduce: {}", reproduce(&args, seed));
        let of = report.counts;
        sum.rolls += of.rolls;
        sum.stops += of.stops;
        sum.replacements += of.replacements;
        sum.mistakes += of.mistakes;
        sum.refusals += of.refusals;
        sum.archived += of.archived;
        sum.store_failures += of.store_failures;
        sum.restores += of.restores;
        sum.asked_again += of.asked_again;
    }
    sum
}

const MEMBERS: [&str; 4] = ["--partitions", "2", "--replicas", "3"];
const PRIMARIES: [&str; 6] = ["--partitions", "2", "--replicas", "3", "--replication", "async"];

#[test]
fn the_command_that_reproduces_a_seed_names_its_operations() {
    let given = args(&["--operations", "rolling,restore"]);
    assert!(reproduce(&given, 1).contains(" --operations restore,rolling "));
    assert!(!reproduce(&args(&[]), 1).contains("--operations"));
}

#[test]
fn clusters_are_restored_from_stores_and_directories_and_serve_on() {
    let mut all = Counts::default();
    for (flags, engine) in [
        (&[][..], "calvin"),
        (&["--partitions", "3"], "qstore"),
        (&MEMBERS, "paxflow"),
        (&PRIMARIES, "calvin"),
    ] {
        let of = counts(&[flags, &["--operations", "restore", "--engine", engine]].concat(), 0..5);
        all.restores += of.restores;
        all.archived += of.archived;
        all.store_failures += of.store_failures;
        all.asked_again += of.asked_again;
    }
    assert!(all.restores > 14 && all.archived > 20 && all.store_failures > 1, "{all:?}");
    assert!(all.asked_again > 30, "{all:?}");
}

/// What an operator has aborted has no effect when the log is executed again.
#[test]
fn a_restore_leaves_out_what_an_operator_has_aborted() {
    assert!(counts(&["--operations", "restore", "--operator", "--partitions", "2"], 0..4).restores > 2);
}

#[test]
fn a_restored_cluster_with_another_state_is_found() {
    let args = args(&["--operations", "restore", "--txns", "200"]);
    let mut found = Vec::new();
    for seed in 0..6 {
        let mut system = DeterministicSystem::new(&args, seed).unwrap();
        let mut asked = workload(&mut system, &args, seed).unwrap();
        let remains = system.remains();
        let report = held_to(Promise::Strict, system, config(&args, seed), &mut *asked, None);
        assert!(report.verdict.is_ok(), "{report}");
        let mut remains = remains.take().unwrap();
        let Ok(Some(Begun { restored, .. })) = restored::begin(&args, seed, &remains).unwrap() else {
            continue;
        };
        // One batch is missing in what is held to have come before.
        let at = remains.log.iter().position(|batch| batch.epoch > restored.until);
        remains.log.remove(at.unwrap_or(remains.log.len()) / 2);
        let Ok(Some(Begun { system, args, .. })) = restored::begin(&args, seed, &remains).unwrap() else {
            continue;
        };
        let config = Config { sessions_before: 1 << 32, ..config(&args, seed) };
        let verdict = held_to(Promise::Strict, system, config, &mut *asked, None).verdict;
        found.push(verdict.err().map(|violation| violation.kind));
    }
    assert!(found.iter().flatten().count() > 2, "{found:?}");
}

#[test]
fn a_store_that_has_lost_all_checkpoints_is_found() {
    let args = args(&["--operations", "restore", "--txns", "200", "--faults", "crash"]);
    let seed = (0..10).find(|seed| {
        let mut system = DeterministicSystem::new(&args, *seed).unwrap();
        let mut asked = workload(&mut system, &args, *seed).unwrap();
        let remains = system.remains();
        held_to(Promise::Strict, system, config(&args, *seed), &mut *asked, None).verdict.unwrap();
        let remains = remains.take().unwrap();
        let Some(store) = remains.store.as_ref().filter(|store| store.was_whole()) else { return false };
        store.remove_seals();
        let Err(violation) = restored::begin(&args, *seed, &remains).unwrap() else {
            panic!("seed {seed}: nobody has missed them")
        };
        violation.kind == ViolationKind::Recovery
    });
    assert_ne!(seed, None, "no seed has had a checkpoint in its store");
}

#[test]
fn nodes_are_restarted_in_good_order_with_other_settings() {
    let mut all = Counts::default();
    for (flags, engine) in [(&[][..], "calvin"), (&MEMBERS, "qstore"), (&PRIMARIES, "paxflow")] {
        let of = counts(&[flags, &["--operations", "rolling", "--engine", engine]].concat(), 0..5);
        all.rolls += of.rolls;
        all.stops += of.stops;
    }
    assert!(all.rolls > 6 && all.stops > 12, "{all:?}");
}

/// Seed 116: the faults end while clients are let go by the only node, which stops no more.
#[test]
fn clients_that_were_let_go_by_a_node_that_stays_come_back() {
    let flags = ["--engine", "paxflow", "--profile", "steady", "--operations", "all", "--txns", "600"];
    demand_sound(&flags, 116..117);
}

/// Where a majority would be missing, and where there is one replica, an empty directory under the old identity is refused.
#[test]
fn nodes_are_replaced_where_nothing_is_lost_and_refused_elsewhere() {
    let quiet = ["--operations", "replace", "--faults", "delay"];
    let members = counts(&[&MEMBERS[..], &quiet].concat(), 0..6);
    assert!(members.replacements > 0, "{members:?}");
    // The other partitions' nodes know it, where there is no member.
    let one = counts(&[&["--partitions", "3"][..], &quiet].concat(), 0..4);
    assert!(one.replacements == 0 && one.mistakes > 0 && one.refusals > 0, "{one:?}");
    let two = counts(&[&["--partitions", "2", "--replicas", "2"][..], &quiet].concat(), 0..4);
    assert!(two.replacements == 0 && two.mistakes > 0 && two.refusals > 0, "{two:?}");
}

#[test]
fn slots_move_by_the_steps_of_the_command_line() {
    for engine in ["calvin", "qstore"] {
        demand_sound(&["--partitions", "3", "--operations", "relocate", "--engine", engine], 0..4);
    }
}

/// One seed of three has clients that send FLUSHALL while slots move.
#[test]
fn all_records_may_go_while_slots_move() {
    let flags = ["--partitions", "2", "--operations", "relocate", "--clients-speak", "resp", "--txns", "800"];
    demand_sound(&[&flags[..], &["--engine", "paxflow"]].concat(), 2..3);
    demand_sound(&[&flags[..], &["--engine", "qstore"]].concat(), 5..6);
}

#[test]
fn the_workloads_of_benchmarks_are_loaded_run_and_audited() {
    for (workload, engine) in [
        ("ycsb", "qstore"),
        ("tpcc", "calvin"),
        ("tpcc", "paxflow"),
        ("bank", "paxflow"),
        ("micro", "calvin-paper"),
        ("append", "qstore"),
        ("append", "calvin"),
    ] {
        let flags = ["--workload", workload, "--engine", engine, "--txns", "200"];
        demand_sound(&flags, 0..2);
        demand_sound(&[&flags[..], &["--partitions", "2"]].concat(), 2..4);
    }
}

/// The audit is asked of the cluster; what it is held to is another history than that which made it.
#[test]
fn an_audit_that_does_not_fit_what_happened_is_found() {
    for name in ["ycsb", "tpcc", "bank", "micro"] {
        let args = args(&["--workload", name, "--txns", "200", "--faults", "none"]);
        let mut system = DeterministicSystem::new(&args, 1).unwrap();
        let mut asked = workload(&mut system, &args, 1).unwrap();
        let (remains, measured) = (system.remains(), system.measured.clone().unwrap());
        let (layout, isolation) = (system.settings.topology.layout.clone(), system.isolation());
        let report = held_to(Promise::Strict, system, config(&args, 1), &mut *asked, None);
        assert!(report.verdict.is_ok(), "{report}");
        let mut remains = remains.take().unwrap();
        let place = (&*layout, isolation, &remains.aborted);
        // An answer of the cluster that is not that of its records.
        let mut wrong = remains.audits.clone();
        wrong[0].reverse();
        let verdict = measured.check(&wrong, &remains.log, place, &History::default());
        assert!(verdict.is_err(), "{name}: an audit that is none");
        remains.audits.pop();
        let verdict = measured.check(&remains.audits, &remains.log, place, &History::default());
        assert!(verdict.is_err(), "{name}: without a digest");
    }
}

#[test]
fn lists_that_nobody_has_appended_to_are_found() {
    let args = args(&["--workload", "append", "--txns", "200", "--faults", "none"]);
    let mut system = DeterministicSystem::new(&args, 1).unwrap();
    let mut asked = workload(&mut system, &args, 1).unwrap();
    let remains = system.remains();
    assert!(held_to(Promise::Strict, system, config(&args, 1), &mut *asked, None).verdict.is_ok());
    let audits = remains.take().unwrap().audits;
    let verdict = appends::check_audited(&History::default(), audits.first());
    assert!(verdict.is_err(), "values of transactions that nobody has asked for");
    assert!(appends::check_audited(&History::default(), None).is_err(), "no answer");
}

/// The commit family under the same operations. A cluster that is restored has what the logs come to before the cut.
#[test]
fn clusters_of_the_commit_family_are_archived_restored_restarted_and_replaced() {
    let restored = ["--profile", "steady", "--operations", "restore"];
    let rolled = ["--operations", "rolling,replace"];
    let (mut kept, mut stopped) = (Counts::default(), Counts::default());
    for (flags, engine, seeds) in [
        (&["--partitions", "2"][..], "no-wait", 0..4),
        (&MEMBERS, "wait-die", 0..4),
        // Stamps and what they order come back from checkpoints too.
        (&["--partitions", "2"], "mvcc", 0..2),
        (&["--partitions", "2"], "timestamp", 0..2),
        (&MEMBERS, "maat", 0..2),
        (&["--partitions", "2"], "occ-2pc", 0..2),
    ] {
        let engine = ["--engine", engine];
        let of = counts(&[flags, &restored, &engine].concat(), seeds.clone());
        kept.restores += of.restores;
        kept.archived += of.archived;
        let of = counts(&[flags, &rolled, &engine].concat(), seeds);
        stopped.rolls += of.rolls;
        stopped.stops += of.stops;
    }
    assert!(kept.restores > 3 && kept.archived > 20, "{kept:?}");
    assert!(stopped.rolls > 3 && stopped.stops > 6, "{stopped:?}");
    let quiet = ["--engine", "no-wait", "--operations", "replace", "--faults", "delay"];
    let members = counts(&[&MEMBERS[..], &quiet].concat(), 0..3);
    assert!(members.replacements > 0, "{members:?}");
    for flags in [["--replicas", "2"], ["--partitions", "3"]] {
        let of = counts(&[&flags[..], &quiet].concat(), 0..3);
        assert!(of.replacements == 0 && of.mistakes > 0 && of.refusals > 0, "{flags:?}: {of:?}");
    }
}

#[test]
fn an_engine_that_moves_no_slots_is_not_asked_to() {
    let args = args(&["--engine", "no-wait", "--partitions", "2", "--operations", "all"]);
    let refused = simulate(&args, 1, None).unwrap_err().to_string();
    assert!(refused.contains("relocate") && refused.contains("no-wait moves no slots"), "{refused}");
}
