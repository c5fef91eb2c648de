//! Small whole runs: measurements, checks and refusals.

use clap::Parser;
use ordain_role::{Bug, Bugs};

use super::*;
use crate::report::{Check, KeptOfRun, Run};
use crate::workloads::append::AppendKnobs;
use crate::workloads::bank::BankKnobs;
use crate::workloads::micro::MicroKnobs;
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
fn a_checkpoint_is_taken_in_the_middle_in_every_mode() {
    let line = "x --records 2000 --ops-per-txn 4 --clients 20 --threads 2 --durability none --warmup 0.01 --duration 2 \
                --no-ceiling --checkpoint-mode multiversion,naive,zigzag --replay";
    let report = measured(&ycsb(line));
    assert!(report.passed() && report.runs.len() == 3, "{:?}", report.runs);
    for run in &report.runs {
        let checkpoint = run.checkpoint.unwrap();
        assert!(
            checkpoint.took().is_some_and(|took| took > 0.0) && checkpoint.asked_s >= 0.5,
            "{checkpoint:?}"
        );
        let (during, beside) = (checkpoint.during, checkpoint.beside);
        assert!(during.seconds > 0.0 && beside.txn_per_s > 0.0, "{checkpoint:?}");
        assert!(during.cpu_us_per_txn > 0.0 && beside.cpu_us_per_txn > 0.0, "{checkpoint:?}");
        let all = during.seconds * during.txn_per_s + beside.seconds * beside.txn_per_s;
        assert!((all / run.committed as f64 - 1.0).abs() < 0.05, "{all} of {}", run.committed);
    }
    let table = checkpoints_table(&report.runs).unwrap().to_string();
    assert!(table.contains("zigzag") && table.contains("naive") && table.contains("pass"), "{table}");
    for (line, said) in [
        ("x --durability ephemeral --checkpoint-mode naive", "cannot take a checkpoint on demand"),
        ("x --via resp --checkpoint-mode naive", "cannot take a checkpoint on demand"),
    ] {
        let refusal = run(&ycsb(line)).unwrap_err().to_string();
        assert!(refusal.contains(said), "{line}: {refusal}");
    }
    let both = Line::<YcsbKnobs>::try_parse_from(["x", "--txns", "5", "--checkpoint-mode", "naive"]);
    assert!(both.err().unwrap().to_string().contains("--txns"));
}

#[test]
fn staleness_and_contents_kept_are_measured() {
    let line = "x --engine paxflow --reads ordered,previous,session,strict --records 2000 --ops-per-txn 4 --read-only 0.3 \
                --read-only-ops 500 --clients 40 --threads 2 --durability none --warmup 0.05 --duration 0.5 --no-ceiling \
                --watch-reads";
    let report = measured(&ycsb(line));
    assert!(report.passed(), "{:?}", report.runs.iter().map(|run| &run.wrong).collect::<Vec<_>>());
    let watched = |reads: &str| {
        let run = report.runs.iter().find(|run| run.param("reads") == reads).unwrap();
        (run.snapshots.clone(), run.checks.contains_key("strict_is_fresh"))
    };
    assert_eq!(watched("ordered"), (None, false));
    for (reads, is_checked) in [("previous", false), ("session", false), ("strict", true)] {
        let (snapshots, checked) = watched(reads);
        let snapshots = snapshots.unwrap();
        assert!(snapshots.reads > 0 && checked == is_checked, "{reads}: {snapshots:?}");
        assert_eq!(snapshots.staleness_cdf.last().map(|(_, share)| *share), Some(1.0), "{snapshots:?}");
        let KeptOfRun { looks, per_record, max, epochs, .. } = snapshots.kept;
        assert!(looks >= 4 && per_record > 0.0 && max >= 1.0 && epochs >= 1.0, "{snapshots:?}");
    }
    assert!(snapshots_table(&report.runs).unwrap().to_string().contains("strict"));
    for line in ["x --watch-reads", "x --engine paxflow --via resp --watch-reads"] {
        let refusal = run(&ycsb(line)).unwrap_err().to_string();
        assert!(refusal.contains("--watch-reads is for"), "{line}: {refusal}");
    }
}

/// The checks of a run that failed.
fn failed(run: &Run) -> Vec<&'static str> {
    run.checks.iter().filter(|(_, check)| **check == Check::Fail).map(|(name, _)| *name).collect()
}

#[test]
fn a_run_that_commits_nothing_fails_and_has_no_ratio() {
    // Half a second lies between the two nodes of every transaction, and measuring ends long before. All operations read: a
    // write whose answer does not depend on the other node is answered as soon as its place in the order is known.
    let line = "x --records 300 --ops-per-txn 2 --multi-partition 1 --nodes 2 --latency-us 500000 --clients 2 --warmup 0 \
                --duration 0.05 --durability ephemeral --write-ratio 0";
    let report = measured(&ycsb(line));
    let [ceiling, run] = &report.runs[..] else { panic!("{:?}", report.runs) };
    assert!(ceiling.passed() && run.committed == 0 && !report.passed(), "{run:?}");
    assert!(failed(run).contains(&"enough"), "{run:?}");
    assert_eq!(run.share_of_ceiling, None);
    assert!(run.wrong.iter().any(|wrong| wrong.starts_with("enough: nothing was committed")), "{run:?}");
    let table = runs_table("", &report.runs, whole).to_string();
    assert!(table.contains("-  nothing committed") && table.contains("FAIL: enough"), "{table}");
}

#[test]
fn a_few_commits_are_no_rate() {
    let line = "x --records 100 --ops-per-txn 2 --threads 1 --durability ephemeral --clients 30 --no-ceiling --txns ";
    let run = |txns: &str| measured(&ycsb(&format!("{line}{txns}"))).runs.remove(0);
    let few = run("299");
    assert_eq!((few.committed, failed(&few)), (299, vec!["enough"]), "{few:?}");
    let enough = run("300");
    assert!(enough.passed(), "{enough:?}");
    let conditions = &enough.conditions;
    assert_eq!(
        (conditions.durability.as_str(), conditions.log.as_str(), conditions.members),
        ("ephemeral", "no log", 1)
    );
}

#[test]
fn a_loop_that_never_sees_the_time_of_measuring_ends_and_fails() {
    // What measures for no time at all is over before a loop looks, or before all of so many clients are answered often
    // enough if this thread is held up just then.
    let args = ycsb(
        "x --records 100 --ops-per-txn 2 --threads 2 --durability ephemeral --clients 4000 --no-ceiling",
    );
    let point = points(&args).unwrap().remove(0);
    let length = Length::Time { warmup: Duration::ZERO, measure: Duration::ZERO };
    let run = Bench::embedded(length, None).measure(&point, 1, 1, &Progress::silent()).unwrap();
    assert!(!run.passed() && failed(&run).contains(&"enough"), "{run:?}");
    assert_eq!(run.checks.get("audited"), Some(&Check::Pass), "what was loaded is there: {run:?}");
    // Where a run may measure for longer, it does until there is enough.
    let mut bench = Bench::embedded(length, None);
    bench.longest = Duration::from_secs(20);
    let run = bench.measure(&point, 1, 1, &Progress::silent()).unwrap();
    assert!(run.passed() && run.committed >= 40_000 && run.seconds > 0.05, "{run:?}");
}

#[test]
fn appends_are_judged_at_the_level_of_the_engine() {
    let line = "x --lists 2 --ops-max 4 --read-only 0.5 --clients 40 --threads 2 --txns 3000 --durability ephemeral \
                --engine qstore --no-ceiling --option isolation=";
    let of = |level: &str| measured(&parse::<AppendKnobs>(&format!("{line}{level}"))).runs.remove(0);
    let committed = of("read-committed");
    assert!(committed.passed(), "{committed:?}");
    assert!(
        !committed.checks.contains_key("no_g2") && committed.checks.contains_key("no_g1c"),
        "{committed:?}"
    );
    // The run is one of those that are not serializable: what was found is told.
    assert!(!committed.allowed.is_empty(), "{committed:?}");
    let serializable = of("serializable");
    assert!(serializable.passed() && serializable.checks.contains_key("no_g2"), "{serializable:?}");
    assert!(serializable.allowed.is_empty(), "{serializable:?}");
}

#[test]
fn audits_wait_for_what_homes_tell_late() {
    let line = SMALL.to_owned()
        + "--nodes 2 --partitions 2 --threads 1 --repeat 8 --durability ephemeral --no-ceiling --engine walter --option propagate-delay-us=50000";
    let report = measured(&ycsb(&line));
    assert!(report.passed(), "{:?}", report.runs);
}

#[test]
fn what_parallel_snapshots_allow_is_told_and_fresh_reads_miss_nothing() {
    let line = "x --lists 2 --ops-max 4 --read-only 0.3 --clients 20 --threads 1 --nodes 2 --latency-us 200 --txns 2000 \
                --durability ephemeral --no-ceiling --engine ";
    for engine in ["walter", "fwkv"] {
        let args = parse::<AppendKnobs>(&format!("{line}{engine} --option propagate-delay-us=20000"));
        let mut point = points(&args).unwrap().remove(0);
        point.watch = true;
        let mut bench = Bench::embedded(Length::Txns(2_000), None);
        let run = bench.measure(&point, 1, 1, &Progress::silent()).unwrap();
        assert!(run.passed(), "{run:?}");
        assert!(run.checks.contains_key("no_g_single") && !run.checks.contains_key("no_g2"), "{run:?}");
        assert!(run.allowed.values().all(|allowed| allowed.times > 0), "{run:?}");
        let snapshots = run.snapshots.unwrap();
        assert!(snapshots.reads > 100, "{snapshots:?}");
        let is_fresh = snapshots.fresh == 1.0;
        assert_eq!(is_fresh, engine == "fwkv", "{engine}: {snapshots:?}");
    }
}

#[test]
fn an_open_loop_keeps_its_rate_and_charges_for_what_is_late() {
    let line = "x --records 100 --ops-per-txn 2 --threads 2 --durability ephemeral --warmup 0 --duration 0.3 \
                --no-ceiling --clients 200 --rate 2000";
    let run = measured(&ycsb(line)).runs.remove(0);
    assert!(run.passed() && run.offered_txn_per_s == Some(2000.0), "{run:?}");
    assert!((1_400.0..2_600.0).contains(&run.txn_per_s), "{run:?}");
    // One client cannot keep up with this: the others are late, and their lateness counts.
    let line = line.replace("--clients 200 --rate 2000", "--clients 1 --rate 10000000");
    let run = measured(&ycsb(&line)).runs.remove(0);
    assert!(run.behind.unwrap() > 10_000, "{run:?}");
    // Most were never asked: half of all had been due for long when measuring ended.
    assert!(run.latency_us.p50 > 50_000, "{run:?}");
}

#[test]
fn a_cluster_is_driven_on_every_node_and_compared_with_nodes_that_are_apart() {
    let line = "x --records-per-partition 300 --contention-index 0.1 --multi-partition 0.5 --nodes 2 --replication \
                none,sync --against independent --clients 40 --txns 600 --durability ephemeral,os --no-ceiling";
    let args = parse::<MicroKnobs>(line);
    let report = measured(&args);
    assert!(report.passed(), "{:?}", report.runs);
    // Of each durability: none, its nodes apart, sync, and the same nodes apart.
    assert_eq!(report.runs.len(), 8);
    for run in &report.runs {
        assert_eq!((run.nodes, run.threads, run.committed), (2, 1, 600), "{run:?}");
        let replicas = run.params["replicas"].as_u64().unwrap() as usize;
        assert_eq!(run.cpu_us_per_txn_by_node.len(), 2 * replicas, "{run:?}");
        let is_apart = run.params["apart"] == true;
        assert_eq!(run.cpu_us_per_txn.contains_key("network"), !is_apart, "{run:?}");
        assert_eq!(run.checks.contains_key("replicas_agree"), replicas > 1, "{run:?}");
        // Clients of every node of the first replica ask, so every such node plans.
        let plans = |node: &std::collections::BTreeMap<String, f64>| node["gateway: plan"] > 0.0;
        assert!(run.cpu_us_per_txn_by_node.iter().take(2).all(plans), "{run:?}");
    }
    let ratios = ratios::ratios(&report.runs);
    let beside: Vec<&str> = ratios.iter().map(|ratio| ratio.what).collect();
    assert_eq!(beside.iter().filter(|what| **what == "nodes apart").count(), 4, "{ratios:?}");
    assert_eq!(beside.iter().filter(|what| **what == "replication none").count(), 2, "{ratios:?}");
    assert!(ratios.iter().all(|ratio| ratio.per_cpu.value.is_some()), "{ratios:?}");
}

#[test]
fn what_is_shipped_is_driven_with_all_members_in_sync_and_every_replica_comes_to_the_same() {
    let line = "x --records-per-partition 300 --contention-index 0.1 --multi-partition 0.5 --nodes 2 --replication \
                none,async,sync --clients 40 --txns 600 --durability os --no-ceiling";
    let report = measured(&parse::<MicroKnobs>(line));
    assert!(report.passed(), "{:?}", report.runs);
    let modes: Vec<_> = report.runs.iter().map(|run| run.params["replication"].as_str().unwrap()).collect();
    assert_eq!(modes, ["none", "async", "sync"]);
    let shipped = &report.runs[1];
    assert_eq!((shipped.committed, &shipped.params["replicas"]), (600, &3.into()), "{shipped:?}");
    for check in ["replicas_agree", "same_primaries"] {
        assert!(shipped.checks.contains_key(check), "{shipped:?}");
    }
    assert!(shipped.cpu_us_per_txn.contains_key("configuration_service"), "{shipped:?}");
    // Both modes are compared with doing without.
    assert_eq!(ratios::ratios(&report.runs).len(), 2);
}

#[test]
fn what_goes_from_node_to_node_is_as_late_as_was_asked_for() {
    let line = "x --records 300 --ops-per-txn 2 --multi-partition 1 --nodes 2 --latency-us 20000 --clients 1 --txns 10 \
                --durability ephemeral --no-ceiling";
    let run = measured(&ycsb(line)).runs.remove(0);
    assert_eq!(failed(&run), ["enough"], "{run:?}");
    assert!(run.latency_us.p50 >= 20_000, "{run:?}");
}

#[test]
fn partitions_of_workloads_are_those_of_nodes() {
    for (nodes, partitions) in [(2, 2), (3, 3), (3, 6), (4, 8), (7, 7)] {
        let layout = ordain_model::Layout::even(nodes, 1).unwrap();
        for slot in 0..ordain_model::key::SLOTS {
            let counted = ordain_model::key::shard_of_slot(slot, partitions);
            assert_eq!(
                usize::from(layout.partition_of(slot).0),
                counted * nodes / partitions,
                "{nodes}, {partitions}"
            );
        }
    }
}

#[test]
fn fewer_clients_than_loops_ask_for_everything_there_is_to_ask_for() {
    let line = "x --records 100 --ops-per-txn 2 --threads 3 --durability ephemeral --no-ceiling --clients 1 --txns 120";
    let run = measured(&ycsb(line)).runs.remove(0);
    assert!(run.passed() && run.committed == 120, "{run:?}");
    let few = measured(&ycsb(&line.replace("--clients 1 --txns 120", "--clients 5 --txns 2"))).runs.remove(0);
    assert!(
        failed(&few) == ["enough"] && few.committed == 2,
        "those with nothing to ask load their share: {few:?}"
    );
    // The time of those who had nothing to do does not shorten that of the one who had.
    assert!(run.seconds * 1e6 >= run.latency_us.mean * 119.0, "{run:?}");
    let line = "x --records 100 --ops-per-txn 2 --threads 2 --durability ephemeral --warmup 0 --duration 0.3 --no-ceiling \
                --clients 1 --rate 500";
    let run = measured(&ycsb(line)).runs.remove(0);
    // A machine that is busy answers less of what was due; a rate that loops without clients had a share of is half as high.
    let due = (run.committed + run.behind.unwrap()) as f64 / (run.seconds * 500.0);
    assert!((0.65..1.4).contains(&due), "{due}: {run:?}");
}

#[test]
fn what_only_reads_is_run_in_every_way() {
    let line = "x --records 300 --ops-per-txn 6 --write-ratio 1 --hot-records 10 --hot-ops 6 --read-only 0.5 \
                --read-only-ops 20 --read-only-hot-ops 1 --clients 20 --txns 600 --threads 2 --durability ephemeral \
                --no-ceiling ";
    let ways = |more: &str| {
        let report = measured(&ycsb(&format!("{line}{more}")));
        assert!(report.passed(), "{:?}", report.runs);
        for run in &report.runs {
            assert_eq!((run.committed, run.kinds.len()), (600, 2), "{run:?}");
            assert!(kinds_table(&report.runs).is_some_and(|table| table.to_string().contains("p99 us")));
        }
        let reads = |run: &Run| format!("{} {}", run.engine, run.param("reads"));
        report.runs.iter().map(reads).collect::<Vec<_>>()
    };
    assert_eq!(ways("--engine calvin,paxflow"), ["calvin ordered", "paxflow session"]);
    assert_eq!(
        ways("--engine paxflow --reads ordered,previous,session,strict"),
        ["paxflow ordered", "paxflow previous", "paxflow session", "paxflow strict"]
    );
    let refusal = ycsb("x --target redis://h:1 --reads strict").terms.check().unwrap_err().to_string();
    assert!(refusal.contains("--reads is for engines of ours"), "{refusal}");
    let refusal = Line::<YcsbKnobs>::try_parse_from(["x", "--reads", "fresh"]).err().unwrap().to_string();
    assert!(refusal.contains("fresh"), "{refusal}");
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
        let mut args = ycsb(&(line + "--duration 0.01"));
        args.terms.bugs = Bugs::NONE.with(Bug::SkipTransaction);
        let report = measured(&args);
        let [ceiling, run] = &report.runs[..] else { panic!("{:?}", report.runs) };
        assert!(ceiling.passed() && !run.passed() && !run.wrong.is_empty(), "{:?}", run.checks);
        assert_eq!(run.share_of_ceiling, None, "no ratio from a run whose checks failed");
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
        ("x --nodes 0", "--nodes must be"),
        ("x --nodes 129", "--nodes must be"),
        ("x --nodes 65 --threads 2", "at most 128 shards"),
        ("x --nodes 64 --threads 2 --replicas 3", "384 event loops"),
        ("x --nodes 2 --replicas 10", "--replicas must be"),
        ("x --nodes 1 --replicas 2 --replication async", "async on 2 nodes: three of them"),
        ("x --nodes 2 --replicas 1 --replication async", "no member to ship to"),
        ("x --nodes 2 --replication async --durability fsync,none", "async with --durability none"),
        ("x --nodes 2 --replication none,async --durability ephemeral", "async with --durability ephemeral"),
        ("x --nodes 2 --replicas 3 --replication none", "nothing would ever reach"),
        (
            "x --nodes 2 --engine calvin,no-wait --replication async",
            "engine no-wait is replicated by none or sync",
        ),
        ("x --engine wait-die --checkpoint-mode zigzag", "engine wait-die has no such option"),
        ("x --nodes 2 --replicas 1 --replication sync", "no member to agree with"),
        ("x --nodes 2 --partitions 3", "on two nodes: say a multiple of 2"),
        ("x --latency-us 5", "--latency-us 5"),
        ("x --nodes 2 --latency-us 1000001", "--latency-us must be at most"),
        ("x --against independent", "--against independent compares clusters"),
        ("x --nodes 2 --via resp", "ordain cluster up"),
        ("x --nodes 2 --replay", "--replay is for one node"),
        ("x --txns 0", "--txns"),
        ("x --duration 0", "--duration"),
        ("x --warmup nan", "--warmup"),
        ("x --json /proc/no/r.json", "--json"),
        ("x --plot /proc/no/r.svg", "--plot"),
        ("x --report /proc/no/r.html", "--report"),
        ("x --json /tmp --theta 0.5", "--json"),
        ("x --plot /dev/null --report /dev/null", "--report /dev/null is wanted for another"),
        ("x --data-dir /proc/no", "--data-dir"),
        ("x --form script", "--form is for clients behind sockets"),
        ("x --connections 5", "--connections is for"),
        ("x --pipeline 5", "--pipeline is for"),
        ("x --client-threads 1", "--client-threads is for"),
        ("x --flush", "--flush is for"),
        ("x --via resp --connections 0", "--connections"),
        ("x --via resp --pipeline 0", "--pipeline"),
        ("x --via resp --client-threads 65", "--client-threads"),
        ("x --via resp --connections 2 --client-threads 3", "--connections 2 is fewer"),
        ("x --via resp --clients 3", "--clients"),
        ("x --via resp --replay", "--replay"),
    ] {
        let refusal = run(&ycsb(line)).unwrap_err().to_string();
        assert!(refusal.contains(name), "{line}: {refusal}");
    }
    for (line, name) in [
        ("x --paper regions --contention-index 0.5", "--contention-index is a knob of --paper calvin"),
        ("x --paper regions --no-constraint", "--no-constraint"),
        ("x --paper regions --partitions 2", "--partitions 2"),
        ("x --read-only 0.5", "--read-only is a knob of --paper regions"),
        ("x --records 50", "--records"),
        ("x --hot-records 0", "--hot-records"),
    ] {
        let refusal = run(&parse::<MicroKnobs>(line)).unwrap_err().to_string();
        assert!(refusal.contains(name), "{line}: {refusal}");
    }
    for line in ["x --partitions 3", "x --history 0"] {
        let refusal = run(&parse::<AppendKnobs>(line)).unwrap_err().to_string();
        assert!(refusal.contains(line.split(' ').nth(1).unwrap()), "{line}: {refusal}");
    }
    let refusal =
        Line::<YcsbKnobs>::try_parse_from(["x", "--engine", "calvin,postgres"]).err().unwrap().to_string();
    assert!(refusal.contains("there is no engine 'postgres'"), "{refusal}");
}

#[test]
fn all_engines_are_those_that_have_what_is_asked_for() {
    let engines = |line: &str| -> Vec<&str> {
        let systems = ycsb(line).terms.systems_of_ours().unwrap();
        systems.into_iter().map(|ours| ours.engine.name()).collect()
    };
    let all = [
        "calvin",
        "calvin-paper",
        "paxflow",
        "qstore",
        "no-wait",
        "wait-die",
        "timestamp",
        "mvcc",
        "maat",
        "walter",
        "fwkv",
        "occ-2pc",
        "regions-2pl",
        "regions-silo",
        "regions-mvocc",
    ];
    assert_eq!(engines("x --engine all"), all);
    assert_eq!(engines("x --engine all --nodes 1,2"), all[..12], "regions have clients of their own");
    assert_eq!(engines("x --engine all --nodes 2 --replication async"), all[..4]);
    assert_eq!(engines("x --engine all --checkpoint-mode zigzag"), all[..4]);
    assert_eq!(engines("x --engine occ-2pc,all"), [&all[11..12], &all[..11], &all[12..]].concat());
    assert_eq!(engines("x --engine no-wait --option backoff=exp,none").len(), 2);
}

/// An engine that agrees on each transaction says what that took, on one node and between two.
#[test]
fn agreement_is_measured_where_there_is_some() {
    let run = |line: &str| {
        let mut report = measured(&ycsb(line));
        assert!(report.passed(), "{:?}", report.runs[0].wrong);
        report.runs.remove(0).agreement
    };
    let small =
        "x --records 2000 --clients 20 --duration 1 --warmup 0.1 --threads 1 --durability none --no-ceiling";
    assert_eq!(run(&format!("{small} --engine calvin")), None);
    let alone = run(&format!("{small} --engine no-wait --theta 0.99")).unwrap();
    assert_eq!(alone.messages_per_txn, 0.0);
    assert!(alone.attempts_per_txn > 1.0 && alone.failed["lock_refused"] > 0.0, "{alone:?}");
    let across = "--engine wait-die --nodes 2 --partitions-per-txn 2 --multi-partition 1";
    let both = run(&format!("{small} {across}")).unwrap();
    // An access and its answer, a request to promise and a vote, an outcome and its acknowledgement.
    assert!(both.messages_per_txn > 4.0 && both.records_per_txn > 2.5, "{both:?}");
}
