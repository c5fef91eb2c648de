//! A cluster whose partitions are regions: keys lie where their prefixes say, on both sides of a checkpoint and a restart, and a
//! directory is refused by a cluster with other prefixes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::support::{Client, Expect, Reply, http, ordain, ports, run, until};

const REGIONS: &str = "[[region]]\nname = \"eu\"\nprefixes = [\"eu:\", \"us:base:\"]\n\n\
                       [[region]]\nname = \"us\"\nprefixes = [\"us:\"]\n\n";

/// A file of a cluster of two nodes, a partition each, with these regions.
fn write_file(dir: &Path, engine: &str, regions: &str) -> String {
    let port = ports(6);
    let node = |id: u16| {
        let at = |kind: u16| format!("\"127.0.0.1:{}\"", port + 3 * id + kind);
        let data = dir.join(format!("node-{id}"));
        format!(
            "[[node]]\nid = {id}\ncluster = {}\nresp = {}\nadmin = {}\ndata-dir = {data:?}\n\n",
            at(0),
            at(1),
            at(2)
        )
    };
    let text = format!(
        "cluster = \"c\"\npartitions = 2\nreplicas = 1\nthreads = 2\nengine = \"{engine}\"\n\n{regions}{}{}",
        node(0),
        node(1)
    );
    fs::write(dir.join("cluster.toml"), &text).unwrap();
    text
}

/// The number of records on each node.
fn records(cluster: &Cluster) -> [usize; 2] {
    [0, 1].map(|node| {
        let metrics = http(cluster.address(node, "admin"), "/metrics").2;
        let lines = metrics.lines().filter(|line| line.starts_with("ordain_store_records"));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum::<f64>() as usize
    })
}

/// All keys, as SCAN shows them; none twice.
fn scanned(client: &mut Client) -> BTreeSet<String> {
    let (mut cursor, mut seen) = ("0".to_owned(), BTreeSet::new());
    loop {
        let Reply::Array(reply) = client.insist(&format!("SCAN {cursor} COUNT 7")) else {
            panic!("no array")
        };
        let Reply::Array(keys) = &reply[1] else { panic!("no keys") };
        keys.iter().for_each(|key| assert!(seen.insert(key.text().to_owned()), "{key:?} comes twice"));
        cursor = reply[0].text().to_owned();
        if cursor == "0" {
            return seen;
        }
    }
}

fn checkpoint_of(cluster: &Cluster, node: usize) -> u64 {
    let status: Value = serde_json::from_str(&http(cluster.address(node, "admin"), "/status").2).unwrap();
    status["checkpoint"]["epoch"].as_u64().unwrap_or(0)
}

#[test]
fn keys_lie_in_the_region_of_their_prefix_and_stay_there() {
    let dir = tempfile::tempdir().unwrap();
    let text = write_file(dir.path(), "no-wait", REGIONS);
    let cluster = Cluster::start(dir.path(), &[]);
    // 60 of the first region, of which some would be of the second by a shorter prefix, and 30 of the second.
    let keys: BTreeSet<String> =
        (0..30).flat_map(|n| [format!("eu:{n}"), format!("us:base:{n}"), format!("us:{{tag}}{n}")]).collect();
    let pairs: Vec<String> = keys.iter().flat_map(|key| [key.clone(), format!("of-{key}")]).collect();
    assert_eq!(cluster.client(1).insist(&format!("MSET {}", pairs.join(" "))), Reply::ok());
    until("each record is at home", || records(&cluster) == [60, 30]);
    for node in 0..2 {
        assert_eq!(scanned(&mut cluster.client(node)), keys);
        assert_eq!(cluster.client(node).insist("DBSIZE").int(), 90);
    }
    let refused = cluster.client(0).insist("DEBUG MOVE-SLOTS 0 9 1");
    assert!(refused.is_error("ERR"), "{refused:?}");

    assert_eq!(cluster.client(0).insist("BGSAVE").text(), "Background saving started");
    until("both have a checkpoint", || (0..2).all(|node| checkpoint_of(&cluster, node) > 0));
    // What the log alone has.
    let mut client = cluster.client(0);
    for n in 30..40 {
        assert_eq!(client.insist(&format!("SET eu:{n} of-eu:{n}")), Reply::ok());
        assert_eq!(client.insist(&format!("MSET us:{n} of-us:{n} us:base:{n} of-us:base:{n}")), Reply::ok());
    }
    let digest = client.insist("DEBUG DIGEST");
    cluster.stop();
    for node in ["node-0", "node-1"] {
        let path = dir.path().join(node);
        let verified = run(ordain(["checkpoint", "verify", "--data-dir", path.to_str().unwrap()]));
        assert_eq!(verified.code, Some(0), "{}", verified.stderr);
    }

    let others = [
        ("", "threads = 2: records"),
        (&REGIONS.replace("\"us:\"", "\"us:\", \"ca:\""), "ca:"),
        (&REGIONS.replace("\"us:base:\"", "\"us:camp:\""), "us:camp:"),
    ];
    let config = dir.path().join("cluster.toml");
    for (other, word) in others {
        fs::write(&config, text.replace(REGIONS, other)).unwrap();
        let serve = ordain(["serve", "--node", "0", "--config", config.to_str().unwrap()]);
        run(serve).refused_with(&["[[\"eu:\", \"us:base:\"], [\"us:\"]]", word, "set that again"]);
    }
    // A name is for people.
    fs::write(&config, text.replace("\"us\"", "\"america\"")).unwrap();
    let cluster = Cluster::start(dir.path(), &[]);
    until("each record is at home again", || records(&cluster) == [80, 40]);
    let mut client = cluster.client(1);
    assert_eq!(client.insist("DEBUG DIGEST"), digest);
    for key in keys.iter().chain(&["eu:39", "us:39", "us:base:39"].map(str::to_owned)) {
        assert_eq!(client.insist(&format!("GET {key}")).text(), format!("of-{key}"));
    }
    cluster.stop();
}
