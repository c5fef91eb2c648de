//! `ordain bench` and `ordain lab` as they are run: every workload with its checks, engines behind sockets, servers that
//! were there before, one that dies in the middle, and what is refused before anything runs.

use std::path::Path;

use serde_json::Value;

use crate::support::{Client, Ended, Expect, Process, Reply, Server, ordain, serve, until};

fn run(words: &str, more: &[&str]) -> Ended {
    Process::spawn(ordain(words.split_whitespace().chain(more.iter().copied()))).wait()
}

/// The runs in a report, all of whose checks passed.
#[track_caller]
fn runs(ended: &Ended, json: &Path) -> Vec<Value> {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let runs = report["runs"].as_array().unwrap().clone();
    for run in &runs {
        let checks = run["checks"].as_object().unwrap();
        assert!(!checks.is_empty() && checks.values().all(|check| check == "pass"), "{run}");
    }
    runs
}

#[test]
fn every_workload_runs_and_is_checked() {
    let directory = tempfile::tempdir().unwrap();
    for (workload, check) in [
        ("ycsb --records 500 --theta 0.9 --multi-partition 0.3 --partitions 4 --read-only 0.2", "increments"),
        ("tpcc --scale-down 100 --warehouses 2", "condition_12"),
        ("micro --records-per-partition 200 --contention-index 0.1 --multi-partition 0.3", "increments"),
        ("micro --paper regions --records 50 --read-only 0.5", "increments"),
        ("bank --accounts 50 --balance 100 --totals 0.05", "total"),
        ("append --lists 3", "no_g2"),
    ] {
        let json = directory.path().join("r.json");
        let words =
            format!("bench {workload} --threads 2 --clients 20 --txns 500 --durability os --duration 0.01");
        let ended = run(&words, &["--replay", "--json", json.to_str().unwrap()]);
        let runs = runs(&ended, &json);
        let [ceiling, calvin] = &runs[..] else { panic!("{workload}: {runs:?}") };
        assert_eq!((&ceiling["engine"], &calvin["engine"]), (&"ceiling".into(), &"calvin".into()));
        let ended: u64 = ["committed", "aborted"].iter().map(|how| calvin[how].as_u64().unwrap()).sum();
        assert_eq!(ended, 500, "{calvin}");
        for check in [check, "digest", "replay", "all_answered"] {
            assert_eq!(calvin["checks"][check], "pass", "{workload}: {check} of {calvin}");
        }
    }
}

#[test]
fn an_engine_behind_sockets_is_compared_with_itself_and_with_a_server_that_was_there() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("r.json");
    let other = Server::start(serve(["--ephemeral"]));
    let target = format!("redis://{}", other.resp);
    let words = "bench ycsb --engine calvin --records 300 --ops-per-txn 4 --txns 400 --threads 1 --durability ephemeral \
                 --via embedded,resp --clients 20 --connections 4 --pipeline 2 --repeat 2 --no-ceiling";
    let ended = run(words, &["--target", &target, "--json", json.to_str().unwrap()]);
    let runs = runs(&ended, &json);
    let told: Vec<_> =
        runs.iter().map(|run| (run["params"]["via"].clone(), run["params"]["form"].clone())).collect();
    let turn = [
        ("embedded".into(), Value::Null),
        ("resp".into(), "native".into()),
        ("resp".into(), "script".into()),
    ];
    assert_eq!(told, [&turn[..], &turn[..]].concat(), "in turns");
    for run in &runs {
        assert_eq!(run["committed"], 400);
        let cpu = run["cpu_us_per_txn"].as_object().unwrap();
        let client = cpu.keys().any(|part| part.starts_with("driver: "));
        let server = cpu.keys().any(|part| !part.starts_with("driver: "));
        assert!(client && server, "the client's time is told apart: {run}");
    }
    assert_eq!(other.client().run("DBSIZE"), Reply::Int(0), "what the benchmark put there is gone again");

    // Somebody's data are nobody's to delete.
    other.client().run("SET mine 1");
    let ended = run("bench ycsb --records 300 --txns 10 --no-ceiling", &["--target", &target]);
    ended.refused_with(&["holds 1 keys", "--flush"]);
    assert_eq!(other.client().run("GET mine").text(), "1");
    other.stop();
}

#[test]
fn a_run_that_commits_too_little_is_a_failed_check_without_a_ratio() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("r.json");
    let words = "bench tpcc --scale-down 100 --warehouses 1 --warmup 0 --duration 0.05 --no-ceiling";
    let ended = run(words, &["--json", json.to_str().unwrap()]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("measure for longer"), "{ended:?}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let (run, ratios) = (&report["runs"][0], &report["ratios"][0]);
    assert_eq!((&run["checks"]["enough"], &run["share_of_ceiling"]), (&"fail".into(), &Value::Null), "{run}");
    assert!(ratios["to_first"]["value"].is_null() && ratios["to_first"]["why"].is_string(), "{ratios}");
    // The conditions are named, and so is the use of the machine by others.
    assert!(
        report["conditions"].as_str().unwrap().starts_with("durability fsync; logged and synced"),
        "{report}"
    );
    assert!(run["disturbance"]["state"].is_string(), "{run}");
    let told = ended.stdout.join("\n");
    assert!(told.contains("Conditions: durability fsync") && told.contains("FAIL: enough"), "{told}");
}

#[test]
fn a_server_that_dies_ends_the_run_with_what_was_measured() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("r.json");
    let other = Server::start(serve(["--ephemeral"]));
    let target = format!("redis://{}", other.resp);
    let words = "bench ycsb --records 300 --ops-per-txn 4 --duration 1000 --warmup 0 --no-ceiling";
    let bench = ["--target", &target, "--json", json.to_str().unwrap()];
    let bench = Process::spawn(ordain(words.split_whitespace().chain(bench)));
    let mut client = other.client();
    // Loaded, and then under way.
    until("loading", || client.run("DBSIZE") == Reply::Int(300));
    let commands = |client: &mut Client| client.run("INFO stats").text().to_owned();
    let before = commands(&mut client);
    until("a command", || commands(&mut client) != before);
    other.kill();
    let ended = bench.wait();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("ended before its time"), "{ended:?}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report["runs"][0]["checks"]["completed"], "fail", "{report}");
}

#[test]
fn a_cluster_in_one_process_runs_and_is_compared() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("r.json");
    let words = "bench micro --nodes 2 --replicas 3 --records-per-partition 300 --contention-index 0.1 --multi-partition \
                 0.5 --clients 20 --txns 400 --durability fsync --against independent --no-ceiling";
    let ended = run(words, &["--json", json.to_str().unwrap()]);
    let runs = runs(&ended, &json);
    let [cluster, apart] = &runs[..] else { panic!("{runs:?}") };
    for run in [cluster, apart] {
        assert_eq!((&run["nodes"], &run["committed"]), (&2.into(), &400.into()), "{run}");
    }
    assert_eq!(
        (&cluster["params"]["replication"], &apart["params"]["apart"]),
        (&"sync".into(), &true.into())
    );
    assert_eq!(cluster["checks"]["replicas_agree"], "pass", "{cluster}");
    assert_eq!(cluster["cpu_us_per_txn_by_node"].as_array().unwrap().len(), 6);
    let told = ended.stdout.join("\n");
    assert!(told.contains("throughput at equal processor time") && told.contains("nodes apart"), "{told}");
}

#[test]
fn replication_modes_are_compared_with_one_another() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("r.json");
    let words = "bench micro --nodes 2 --replication none,async,sync --records-per-partition 300 --contention-index 0.1 \
                 --multi-partition 0.5 --clients 20 --txns 400 --durability os --no-ceiling";
    let ended = run(words, &["--json", json.to_str().unwrap()]);
    let runs = runs(&ended, &json);
    let modes: Vec<_> = runs.iter().map(|run| run["params"]["replication"].as_str().unwrap()).collect();
    assert_eq!(modes, ["none", "async", "sync"]);
    let shipped = &runs[1];
    assert_eq!(
        (&shipped["committed"], &shipped["params"]["replicas"]),
        (&400.into(), &3.into()),
        "{shipped}"
    );
    for check in ["replicas_agree", "same_primaries"] {
        assert_eq!(shipped["checks"][check], "pass", "{shipped}");
    }
    assert!(ended.stdout.join("\n").contains("replication none"), "{ended:?}");
}

#[test]
fn a_figure_of_clusters_has_the_papers_number_beside_ours() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("figures");
    let ended = run("lab run calvin-2 --quick --out", &[out.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let figure: Value =
        serde_json::from_str(&std::fs::read_to_string(out.join("calvin-2.json")).unwrap()).unwrap();
    let text = figure.to_string();
    for said in ["sync, three data centres", "async, three data centres", "not affected by the mode"] {
        assert!(text.contains(said), "{said} is not in {text}");
    }
    assert!(std::fs::read_to_string(out.join("index.html")).unwrap().contains("calvin-2"));
}

#[test]
fn nonsense_is_refused_before_anything_runs() {
    for (words, said) in [
        ("bench ycsb --theta 1", "theta"),
        ("bench ycsb --partitions 2 --multi-partition 0.5 --partitions-per-txn 3", "partitions_per_txn"),
        ("bench ycsb --clients 0", "--clients"),
        ("bench ycsb --nodes 64 --threads 3", "at most 128 shards"),
        ("bench ycsb --nodes 2 --replication async --durability none", "fsync or os"),
        ("bench ycsb --replicas 2 --replication async", "three of them have to agree"),
        ("bench tpcc --warehouses 0", "warehouses"),
        ("bench micro --contention-index 0", "contention"),
        ("bench append --fails 2", "fails"),
        ("bench bank --json /proc/no/r.json", "--json"),
        ("lab run nope --out /tmp", "nope"),
        ("lab run calvin-5 --out /proc/no", "/proc/no"),
    ] {
        run(words, &[]).refused_with(&[said]);
    }
    let ended = run("bench tpcc --mix 50/40/0/0/0", &[]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("add up"), "{ended:?}");
}

#[test]
fn the_papers_figures_are_listed_with_what_they_need() {
    let ended = run("lab list", &[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let list = ended.stdout.join("\n");
    for name in ["calvin-5", "paxflow-2", "qstore-6", "fwkv-5", "needs"] {
        assert!(list.contains(name), "{name} is not in\n{list}");
    }
}

#[test]
fn a_leader_is_killed_and_frozen_and_nothing_acknowledged_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    for blow in ["kill", "freeze"] {
        let json = directory.path().join("failover.json");
        let words = format!("bench failover --partitions 2 --repeat 2 --blow {blow} --json");
        let ended = run(&words, &[json.to_str().unwrap()]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let found: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        let outcomes = found["outcomes"].as_array().unwrap();
        let hit: Vec<_> = outcomes.iter().map(|outcome| outcome["partition"].as_u64().unwrap()).collect();
        assert_eq!((&found["lost"], hit), (&0.into(), vec![0, 1]), "{found}");
        // Nobody else takes over before silence has been noticed.
        let waited = |outcome: &Value| outcome["hit_ms"].as_f64().unwrap() > 100.0;
        assert!(outcomes.iter().all(waited), "{found}");
    }
    let refused = run("bench failover --replicas 2", &[]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
}

#[test]
fn pauses_are_measured_around_work_that_is_done() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("r.json");
    let ended = run(
        "bench pauses --records 4000 --work digest,flush,move --durability none --json",
        &[json.to_str().unwrap()],
    );
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let found: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let outcomes = found["outcomes"].as_array().unwrap();
    let works: Vec<&str> = outcomes.iter().map(|it| it["work"].as_str().unwrap()).collect();
    assert_eq!(works, ["digest", "flush", "move"]);
    for it in outcomes {
        let waited = ["ping_ms", "write_ms"].map(|kind| it[kind].as_f64().unwrap());
        assert!(waited.iter().all(|ms| *ms > 0.0), "{it}: whoever asks waits for something");
    }
}
