//! Configurations that are taken, and those that are refused with the words that name the cause.

use super::*;

/// A file of so many partitions and replicas, with these lines at its head.
fn file(partitions: u16, replicas: u16, head: &str) -> String {
    let nodes: String = (0..partitions * replicas).map(|id| node(id, "127.0.0.1")).collect();
    format!("cluster = \"c\"\npartitions = {partitions}\nreplicas = {replicas}\nthreads = 2\n{head}\n{nodes}")
}

fn node(id: u16, host: &str) -> String {
    let port = |kind: u16| format!("\"{host}:{}\"", 7000 + kind * 100 + id);
    format!("[[node]]\nid = {id}\ncluster = {}\nresp = {}\nadmin = {}\n", port(0), port(1), port(2))
}

fn check(text: &str) -> Result<ClusterConfig, ClusterError> {
    ClusterConfig::new(&ClusterFile::parse(text)?)
}

#[track_caller]
fn refused(text: &str, words: &[&str]) {
    let error = check(text).expect_err("it was taken").to_string();
    assert!(!error.contains('\n'), "more than a line: {error}");
    words.iter().for_each(|word| assert!(error.contains(word), "'{word}' is not in: {error}"));
}

#[test]
fn what_is_written_is_what_is_meant() {
    let text = file(3, 2, "durability = \"os\"\nlatency_us = 500\nstarts = [0, 300, 600]");
    let config = check(&text).unwrap();
    assert_eq!((config.topology().nodes(), config.replication), (6, Replication::Sync));
    assert_eq!((config.keep, config.latency), (Keep::Os, Micros(500)));
    assert_eq!(config.layout.starts(), [0, 300, 600]);
    let place = Membership::new(config, 4).unwrap();
    assert_eq!((place.partition(), place.replica()), (PartitionId(1), ReplicaId(1)));
    assert_eq!(place.member().resp.port(), 7104);
    let error = Membership::new(check(&text).unwrap(), 6).unwrap_err().to_string();
    assert!(error.contains("--node 6") && error.contains("0 to 5"), "{error}");
    let one = check(&file(2, 1, "latency-us = 7\nephemeral = true")).unwrap();
    assert_eq!((one.replication, one.keep, one.latency), (Replication::None, Keep::Nothing, Micros(7)));
}

#[test]
fn a_file_that_was_written_is_read_again() {
    let file = ClusterFile::parse(&file(2, 2, "secret = \"0123456789abcdef\"\nlinger-us = 3")).unwrap();
    let again = ClusterFile::parse(&toml::to_string(&file).unwrap()).unwrap();
    assert_eq!(again.secret, file.secret);
    let (a, b) = (ClusterConfig::new(&file).unwrap(), ClusterConfig::new(&again).unwrap());
    assert_eq!((a.fingerprint(), a.members), (b.fingerprint(), b.members));
    assert!(!format!("{file:?}").contains("0123456789abcdef"), "the secret shows");
}

#[test]
fn a_cluster_is_told_from_a_node_on_its_own() {
    assert!(ClusterFile::is_one(&file(1, 1, "")));
    assert!(ClusterFile::is_one("partitions = 2"));
    assert!(!ClusterFile::is_one("threads = 2\nlisten = \"127.0.0.1:1\""));
    assert!(!ClusterFile::is_one("threads = "));
}

#[test]
fn a_key_that_is_not_known_or_lacks_is_named() {
    refused(&file(1, 1, "partition = 3"), &["partition", "line 5"]);
    refused(&file(1, 1, "").replace("admin", "amdin"), &["amdin"]);
    refused(&file(1, 1, "").replace("threads = 2", ""), &["missing field", "threads"]);
    refused(&file(1, 1, "").replace("threads = 2", "threads = \"two\""), &["threads", "line 4"]);
    refused("partitions = ", &["line 1"]);
}

#[test]
fn sizes_have_limits() {
    refused(&file(65, 1, ""), &["65 partitions of 2 threads", "128", "choose fewer"]);
    refused(&file(1, 1, "").replace("partitions = 1", "partitions = 0"), &["0 partitions"]);
    refused(&file(1, 1, "").replace("threads = 2", &format!("threads = {}", i64::MAX)), &["choose fewer"]);
    refused(&file(1, 10, ""), &["replicas = 10", "1 to 9"]);
    refused(&file(1, 1, "").replace("replicas = 1", "replicas = 0"), &["replicas = 0"]);
    refused(&file(2, 1, "starts = [0]"), &["1 partitions", "there are 2"]);
    refused(&file(2, 1, "starts = [0, 1024]"), &["slot 1024"]);
    refused(&file(2, 1, "starts = [1, 5]"), &["partition 0", "slot 1"]);
}

#[test]
fn regions_have_bounds_and_no_other_replication() {
    let of = |partitions, replicas, more: &str| {
        file(partitions, replicas, &format!("engine = \"regions-silo\"\n{more}"))
    };
    let config = check(&of(2, 4, "servers = 2\nstorage = \"full\"")).unwrap();
    assert_eq!((config.servers, config.replicas, config.storage), (2, 4, Some(Storage::Full)));
    assert_eq!(check(&of(2, 4, "servers = 1")).unwrap().storage, Some(Storage::Quorum));
    refused(&of(2, 4, ""), &["2 partitions", "storage = \"quorum\""]);
    refused(&of(2, 2, "servers = 2"), &["servers = 2", "2 replicas", "at least one storage node"]);
    refused(&of(2, 9, "servers = 1"), &["8 storage nodes", "at most 7"]);
    refused(&of(17, 2, "servers = 1"), &["partitions = 17", "at most 16 regions"]);
    refused(
        &of(2, 4, "servers = 1\nreplication = \"sync\""),
        &["replication = \"sync\"", "leave replication out"],
    );
    refused(&file(2, 4, "servers = 1"), &["storage = \"quorum\"", "engine calvin", "regions-2pl"]);
}

/// Regions of these names and prefixes.
fn regions(all: &[(&str, &str)]) -> String {
    all.iter()
        .map(|(name, prefixes)| format!("[[region]]\nname = \"{name}\"\nprefixes = [{prefixes}]\n"))
        .collect()
}

#[test]
fn a_key_with_a_prefix_is_at_home_in_its_region() {
    let head = "starts = [0, 900]\n";
    let text =
        file(2, 1, &format!("{head}{}", regions(&[("eu", "\"eu:\", \"é:\""), ("us east", "\"us:\"")])));
    let config = check(&text).unwrap();
    assert_eq!(config.regions, ["eu", "us east"]);
    for n in 0..100 {
        let home = |prefix: &str| config.layout.region_of(format!("{prefix}{n}").as_bytes());
        assert_eq!([home("eu:"), home("é:"), home("us:")].map(|home| home.0), [0, 0, 1]);
    }
    // One region without a prefix: keys of others lie by their slots.
    let nameless = check(&file(2, 1, "[[region]]\nname = \"eu\"\n[[region]]\nname = \"us\"\n")).unwrap();
    assert!(nameless.layout.placement().is_none());
    let again = ClusterFile::parse(&toml::to_string(&ClusterFile::parse(&text).unwrap()).unwrap()).unwrap();
    assert_eq!(ClusterConfig::new(&again).unwrap().layout, config.layout);
    assert!(ClusterFile::is_one("[[region]]\nname = \"eu\""));
}

#[test]
fn regions_that_cannot_be_are_refused() {
    let of = |all: &[(&str, &str)]| file(2, 1, &regions(all));
    refused(&of(&[("eu", "\"eu:\"")]), &["1 regions for 2 partitions", "one region a partition"]);
    refused(&of(&[("eu", "\"a\""), ("us", "\"b\""), ("as", "")]), &["3 regions for 2 partitions"]);
    refused(&of(&[("eu", "\"a\""), ("us", "\"b\", \"a\"")]), &["prefix \"a\"", "twice", "one region"]);
    refused(&of(&[("eu", "\"\""), ("us", "\"b\"")]), &["empty", "leave it out"]);
    let long = format!("\"{}\"", "x".repeat(ordain_model::key::MAX_KEY_LEN + 1));
    refused(&of(&[("eu", &long), ("us", "")]), &["65537 bytes", "shorter"]);
    let many: Vec<String> = (0..=1024).map(|n| format!("\"{n}:\"")).collect();
    refused(&of(&[("eu", &many.join(",")), ("us", "")]), &["1025 prefixes", "1024"]);
    refused(&of(&[("eu", "\"a\""), ("eu", "\"b\"")]), &["\"eu\"", "twice", "apart"]);
    refused(&of(&[("", "\"a\""), ("us", "\"b\"")]), &["name = \"\"", "printable"]);
    refused(&of(&[("e\\n", "\"a\""), ("us", "\"b\"")]), &["name = \"e\\n\"", "printable"]);
    refused(&of(&[(&"n".repeat(65), "\"a\""), ("us", "\"b\"")]), &["1 to 64 printable"]);
    refused(&of(&[("eu", "\"a\""), ("us", "\"b\"")]).replacen("name", "nmae", 1), &["nmae"]);
    refused(&of(&[("eu", "\"a\""), ("us", "\"b\"")]).replacen("prefixes", "prefix", 1), &["prefix"]);
}

#[test]
fn nodes_agree_on_the_regions() {
    let of = |all: &[(&str, &str)]| check(&file(2, 1, &regions(all))).unwrap().fingerprint();
    let plain = check(&file(2, 1, "")).unwrap().fingerprint();
    let named = of(&[("eu", "\"eu:\""), ("us", "\"us:\"")]);
    let others = [
        plain,
        of(&[("eu", "\"eu:\""), ("us", "")]),
        of(&[("eu", "\"us:\""), ("us", "\"eu:\"")]),
        of(&[("eu", "\"eu:\""), ("asia", "\"us:\"")]),
    ];
    assert!(others.iter().all(|other| *other != named));
    assert_eq!(of(&[("eu", "\"b\", \"a\""), ("us", "")]), of(&[("eu", "\"a\", \"b\""), ("us", "")]));
}

#[test]
fn every_node_of_the_grid_is_there_once() {
    let text = file(2, 2, "");
    refused(&text.replace("id = 3", "id = 4"), &["id = 4", "nodes 0 to 3"]);
    refused(&format!("{text}{}", node(3, "127.0.0.2")), &["id = 3", "twice"]);
    let three = file(3, 1, "").replace("replicas = 1", "replicas = 2");
    refused(&three, &["no [[node]] with id = 3, 4, 5", "3 partitions times 2 replicas"]);
    refused(&file(0, 0, "").replace("= 0", "= 1"), &["no [[node]] with id = 0"]);
}

#[test]
fn addresses_are_addresses_and_differ() {
    let text = file(2, 1, "");
    refused(&text.replace("127.0.0.1:7101", "7101"), &["id = 1, resp = \"7101\"", "host:port"]);
    refused(&text.replace("127.0.0.1:7001", "127.0.0.1:70010"), &["id = 1, cluster", "host:port"]);
    refused(&text.replace("127.0.0.1:7000", "0.0.0.0:7000"), &["id = 0, cluster", "listen"]);
    refused(&text.replace("127.0.0.1:7200", "127.0.0.1:0"), &["id = 0, admin", "127.0.0.1:0"]);
    let same = text.replace("127.0.0.1:7201", "127.0.0.1:7100");
    refused(&same, &["127.0.0.1:7100", "the resp address of node 0", "the admin address of node 1"]);
}

#[test]
fn replicas_need_replication() {
    refused(&file(1, 3, "replication = \"none\""), &["3 replicas", "sync"]);
    refused(&file(1, 1, "replication = \"async\""), &["async", "one replica", "replicas = 2"]);
    refused(&file(1, 2, "replication = \"async\""), &["2 nodes", "configuration service of three", "sync"]);
    refused(&file(1, 1, "replication = \"raft\""), &["raft", "sync"]);
    assert_eq!(check(&file(1, 1, "replication = \"sync\"")).unwrap().replication, Replication::Sync);
}

#[test]
fn a_primary_keeps_what_it_has_sealed() {
    let of = |more: &str| file(2, 2, &format!("replication = \"async\"\n{more}"));
    for kept in ["", "durability = \"fsync\"", "durability = \"os\""] {
        assert_eq!(check(&of(kept)).unwrap().replication, Replication::Async, "{kept}");
    }
    assert!(check(&file(1, 3, "replication = \"async\"")).is_ok());
    refused(&of("durability = \"none\""), &["forgotten", "\"fsync\" or \"os\""]);
    refused(&of("ephemeral = true"), &["ephemeral", "forgotten"]);
    assert!(
        check_replication(Replication::Async, Keep::Nothing).is_err()
            && check_replication(Replication::Sync, Keep::Late).is_ok()
    );
}

#[test]
fn what_is_chosen_must_be_there() {
    refused(&file(1, 1, "engine = \"postgres\""), &["there is no engine 'postgres'"]);
    let unshipped = "engine = \"no-wait\"\nreplication = \"async\"";
    refused(&file(1, 3, unshipped), &["\"async\"", "engine no-wait is replicated by none or sync", "calvin"]);
    refused(&file(1, 1, "durability = \"sometimes\""), &["sometimes", "fsync, os or none"]);
    refused(&file(1, 1, "durability = \"os\"\nephemeral = true"), &["ephemeral", "drop one"]);
    refused(&file(1, 3, "ephemeral = true"), &["3 replicas", "forgotten", "durability = \"none\""]);
    for name in ["", "a b", "a/b", &"x".repeat(65)] {
        refused(&file(1, 1, "").replace("\"c\"", &format!("{name:?}")), &["a cluster's name"]);
    }
}

#[test]
fn other_machines_need_the_secret() {
    let open = file(1, 1, "").replace("127.0.0.1:7000", "192.0.2.1:7000");
    refused(&open, &["192.0.2.1:7000", "secret-file", "--insecure"]);
    assert!(check(&format!("insecure = true\n{open}")).unwrap().secret.reveal().is_empty());
    refused(&format!("secret = \"open sesame\"\n{open}"), &["11 bytes", "16"]);
    assert!(check(&format!("secret = \"open sesame 4711\"\n{open}")).is_ok());

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    std::fs::write(&path, "  open sesame 4711\n").unwrap();
    let line = format!("secret_file = {path:?}\n");
    assert_eq!(check(&format!("{line}{open}")).unwrap().secret.reveal(), "open sesame 4711");
    refused(&format!("secret = \"open sesame 4711\"\n{line}{open}"), &["secret and secret-file"]);
    std::fs::remove_file(&path).unwrap();
    refused(&format!("{line}{open}"), &["secret-file: cannot read", "this user may read it"]);
}

#[test]
fn a_fingerprint_tells_what_must_be_equal_from_what_need_not() {
    let text = file(2, 1, "");
    let of = |text: &str| check(text).unwrap().fingerprint();
    let same = text.replace("127.0.0.1", "127.0.0.2").replace("threads = 2", "threads = 2\nlatency-us = 1");
    assert_eq!(of(&text), of(&same));
    for other in [
        text.replace("\"c\"", "\"d\""),
        text.replace("threads = 2", "threads = 1"),
        text.replace("threads = 2", "threads = 2\nstarts = [0, 500]"),
        text.replace("threads = 2", "threads = 2\nreplication = \"sync\""),
        file(3, 1, ""),
        file(2, 2, ""),
    ] {
        assert_ne!(of(&text), of(&other), "{other}");
    }
}
