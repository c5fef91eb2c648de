//! More data than a node may have in memory: values go to disk and come back.

use crate::support::{Client, Expect as _, Reply, Server, command, run, serve, serve_dir, until};

const MIB: u64 = 1 << 20;
/// So many records of 8,000 bytes are ten times the budget.
const RECORDS: usize = 2_500;
/// So many requests are sent before their answers are read.
const TOGETHER: usize = 100;

fn value(n: usize, round: usize) -> String {
    format!("{n:04}{round:04}").repeat(1_000)
}

/// The sum of a metric's samples.
fn metric(server: &Server, name: &str) -> f64 {
    let (_, _, text) = server.http("/metrics");
    let samples = text.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
    samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Writes all records.
fn write(client: &mut Client, round: usize) {
    for begin in (0..RECORDS).step_by(TOGETHER) {
        let names = begin..begin + TOGETHER;
        let sets = names.clone().flat_map(|n| command(&["SET", &format!("key{n}"), &value(n, round)]));
        client.send(&sets.collect::<Vec<u8>>()).unwrap();
        names.for_each(|_| assert_eq!(client.receive().unwrap(), Reply::ok()));
    }
}

/// Reads all records, in an order in which hardly any of them was used lately.
fn read(client: &mut Client, round: usize) {
    let names: Vec<usize> = (0..RECORDS).map(|n| n * 1_777 % RECORDS).collect();
    for names in names.chunks(TOGETHER) {
        let gets = names.iter().flat_map(|n| command(&["GET", &format!("key{n}")]));
        client.send(&gets.collect::<Vec<u8>>()).unwrap();
        for n in names {
            let found = client.receive().unwrap();
            assert!(found.text() == value(*n, round), "key{n}: {:.40}", found.text());
        }
    }
}

fn demand_all_of_it(engine: &str) {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--engine", engine, "--threads", "2", "--memory-budget", "2mb"];
    let server = Server::start(serve_dir(dir.path(), args));
    let mut client = server.client();
    write(&mut client, 1);
    let is_within = |server: &Server| metric(server, "ordain_store_memory_bytes") < 2.6 * MIB as f64;
    // Metrics are a moment old: what a node was before all this is within its budget too.
    let most = 0.8 * RECORDS as f64;
    until("values have gone to disk", || {
        is_within(&server) && metric(&server, "ordain_values_evicted_total") > most
    });
    read(&mut client, 1);
    until("values have come back", || metric(&server, "ordain_values_misses_total") > most);
    until("values have gone to disk again", || is_within(&server));
    let info = client.run("INFO ordain").text().to_owned();
    assert!(info.contains(&format!("ordain_values_budget_bytes:{}", 2 * MIB)), "{info}");
    // Some of several keys, which read, add and move.
    assert_eq!(client.run("APPEND key7 end"), Reply::Int(8_003));
    assert_eq!(client.run("RENAME key8 moved"), Reply::ok());
    assert_eq!(client.run("STRLEN moved"), Reply::Int(8_000));
    let joined = client.call(&[
        "EVAL",
        "return #redis.call('GET', KEYS[1]) + #redis.call('GET', KEYS[2])",
        "2",
        "key9",
        "key10",
    ]);
    assert_eq!(joined, Reply::Int(16_000));
    assert_eq!(client.run("RENAME moved key8"), Reply::ok());
    let digest = client.run("DEBUG DIGEST");
    assert_eq!(client.run("BGSAVE").text(), "Background saving started");
    write(&mut client, 2);
    let later = client.run("DEBUG DIGEST");
    assert_ne!(later, digest);
    server.kill();

    let server = Server::start(serve_dir(dir.path(), args));
    let mut client = server.client();
    assert_eq!(client.run("DEBUG DIGEST"), later);
    read(&mut client, 2);
    until("values have gone to disk", || is_within(&server));
    server.stop();
    // With all in memory it is the same.
    let server = Server::start(serve_dir(dir.path(), ["--engine", engine]));
    assert_eq!(server.client().run("DEBUG DIGEST"), later);
    server.stop();
}

#[test]
fn a_node_has_ten_times_what_it_may_have_in_memory() {
    ["calvin", "calvin-paper"].iter().for_each(|engine| demand_all_of_it(engine));
}

#[test]
fn a_node_that_plans_or_reads_snapshots_has_ten_times_what_it_may_have_in_memory() {
    ["paxflow", "qstore"].iter().for_each(|engine| demand_all_of_it(engine));
}

#[test]
fn a_node_that_locks_or_validates_has_ten_times_what_it_may_have_in_memory() {
    ["no-wait", "regions-silo"].iter().for_each(|engine| demand_all_of_it(engine));
}

#[test]
fn a_node_with_several_versions_of_a_record_has_ten_times_what_it_may_have_in_memory() {
    ["fwkv", "regions-mvocc"].iter().for_each(|engine| demand_all_of_it(engine));
}

#[test]
fn a_budget_is_refused_where_all_values_are_in_memory() {
    let refused = |args: &[&str], words: &[&str]| {
        run(serve([&["--memory-budget", "1gb"], args].concat())).refused_with(words);
    };
    refused(&["--ephemeral"], &["--ephemeral", "--memory-budget"]);
    refused(&["--checkpoint-mode", "zigzag"], &["zigzag", "--memory-budget"]);
}
