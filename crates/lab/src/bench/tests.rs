//! Whole runs, small: what is measured, what is checked, what is refused.

use clap::Parser;
use ordain_role::Bug;

use super::*;
use crate::workloads::bank::BankKnobs;
use crate::workloads::ycsb::YcsbKnobs;

#[derive(Parser)]
struct Line<K: Knobs> {
    #[command(flatten)]
    args: BenchArgs<K>,
}

fn parse<K: Knobs>(line: &str) -> BenchArgs<K> {
    Line::try_parse_from(line.split_whitespace()).unwrap_or_else(|error| panic!("{line}: {error}")).args
}

fn ycsb(line: &str) -> BenchArgs<YcsbKnobs> {
    parse(line)
}

const SMALL: &str = "x --records 300 --ops-per-txn 5 --write-ratio 0.6 --theta 0.9 --clients 20 --txns 400 ";

fn measured<K: Knobs>(args: &BenchArgs<K>) -> Report {
    let mut report = Report::new();
    args.common.check().unwrap();
    measure_all(args, args.terms.check().unwrap(), &points(args).unwrap(), &mut report).unwrap();
    report
}

#[test]
fn small_runs_pass_their_checks_whatever_the_threads_and_the_log() {
    let line = SMALL.to_owned()
        + "--threads 1,2,3 --durability ephemeral,none,os,fsync --replay --duration 0.01 --partitions 2";
    let report = measured(&ycsb(&line));
    assert!(report.passed(), "{:?}", report.runs);
    let runs: Vec<&Run> = report.runs.iter().filter(|run| run.engine == "calvin").collect();
    assert_eq!((runs.len(), report.runs.len()), (12, 15));
    for run in runs {
        assert_eq!((run.committed, run.aborted), (400, 0));
        assert_eq!(run.checks.contains_key("replay"), run.params["durability"] != "ephemeral");
        assert!(run.share_of_ceiling.is_some() && run.cpu_us_per_txn.contains_key("runtime"), "{run:?}");
    }
    assert!(report.machine.contains_key("fdatasync_us"));
}

#[test]
fn a_timed_run_warms_up_measures_and_ends() {
    let line = "x --records 100 --ops-per-txn 2 --clients 4 --threads 2 --durability ephemeral --warmup 0.01 \
                --duration 0.25 --repeat 2 --no-ceiling";
    let report = measured(&ycsb(line));
    assert!(report.passed() && report.runs.len() == 2, "{:?}", report.runs);
    for run in &report.runs {
        assert!(run.seconds >= 0.2, "{run:?}");
        assert!(run.timeline.len() >= 2 && run.timeline.iter().all(|(_, commits)| *commits > 0), "{run:?}");
    }
}

#[test]
fn an_open_loop_keeps_its_rate_and_charges_for_what_is_late() {
    let line = "x --records 100 --ops-per-txn 2 --threads 2 --durability ephemeral --warmup 0 --duration 0.3 \
                --no-ceiling --clients 200 --rate 2000";
    let run = measured(&ycsb(line)).runs.remove(0);
    assert!(run.passed() && run.offered_txn_per_s == Some(2000.0), "{run:?}");
    assert!((1_400.0..2_600.0).contains(&run.txn_per_s), "{run:?}");
    // One client cannot keep up with this: the others are late, and their lateness is told.
    let line = line.replace("--clients 200 --rate 2000", "--clients 1 --rate 10000000");
    let run = measured(&ycsb(&line)).runs.remove(0);
    assert!(run.behind.unwrap() > 10_000, "{run:?}");
    assert!(run.latency_us.p99 > 10 * run.latency_us.p50.min(5_000) || run.latency_us.p50 > 5_000, "{run:?}");
}

#[test]
fn a_bank_has_kinds_and_aborts() {
    let line = "x --accounts 50 --balance 100 --totals 0.05 --clients 20 --txns 3000 --threads 2 \
                --durability ephemeral --duration 0.01";
    let report = measured(&parse::<BankKnobs>(line));
    assert!(report.passed(), "{:?}", report.runs);
    let run = report.runs.iter().find(|run| run.engine == "calvin").unwrap();
    assert_eq!(run.committed + run.aborted, 3000);
    assert!(run.aborted > 0 && run.kinds.len() > 1, "{run:?}");
    assert_eq!(run.kinds.values().map(|kind| kind.committed).sum::<u64>(), run.committed);
    assert!(kinds_table(&report.runs).is_some());
}

#[test]
fn a_skipped_transaction_is_caught_by_the_checks() {
    for threads in [1, 2] {
        let line =
            SMALL.replace("--txns 400", &format!("--txns 4000 --threads {threads} --durability ephemeral"));
        let mut args = ycsb(&(line + "--no-ceiling"));
        args.terms.bugs = Bugs::NONE.with(Bug::SkipTransaction);
        let report = measured(&args);
        assert!(!report.passed() && !report.runs[0].wrong.is_empty(), "{:?}", report.runs[0].checks);
    }
}

#[test]
fn a_report_is_written_wherever_it_is_wanted() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).display().to_string();
    let line = format!(
        "{SMALL} --durability ephemeral --threads 1 --duration 0.01 --json {} --plot {} --report {}",
        file("r.json"),
        file("r.svg"),
        file("r.html")
    );
    assert!(run(&ycsb(&line)).unwrap());
    let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
    let json: serde_json::Value = serde_json::from_str(&read("r.json")).unwrap();
    assert_eq!(json["runs"][1]["engine"], "calvin");
    assert!(read("r.svg").contains("</svg>"));
    assert!(read("r.html").contains("calvin") && read("r.html").contains("</html>"));
}

#[test]
fn nonsense_and_what_is_not_built_are_refused_by_name() {
    for (line, name) in [
        ("x --theta 1", "theta"),
        ("x --ops-per-txn 20 --records 10", "records"),
        ("x --multi-partition 0.5 --partitions 1", "partition"),
        ("x --partitions 0", "--partitions"),
        ("x --clients 0", "--clients"),
        ("x --clients 100001", "--clients"),
        ("x --rate 0", "--rate"),
        ("x --nodes 2", "--nodes 2"),
        ("x --latency-us 5", "--latency-us 5"),
        ("x --txns 0", "--txns"),
        ("x --duration 0", "--duration"),
        ("x --warmup nan", "--warmup"),
        ("x --json /proc/no/r.json", "--json"),
        ("x --plot /proc/no/r.svg", "--plot"),
        ("x --report /proc/no/r.html", "--report"),
    ] {
        let refusal = run(&ycsb(line)).unwrap_err().to_string();
        assert!(refusal.contains(name), "{line}: {refusal}");
    }
    let refusal =
        Line::<YcsbKnobs>::try_parse_from(["x", "--engine", "calvin,maat"]).err().unwrap().to_string();
    assert!(refusal.contains("engine 'maat' is not built yet"), "{refusal}");
}
