//! Clusters that speak bytes, without faults.

use std::sync::Arc;

use ordain_engines::family::{EngineVisitor, with_family};
use ordain_engines::registry::Engine;
use ordain_family::{Family, NodeSettings};
use ordain_model::{Layout, Micros};
use ordain_node::procedures;
use ordain_resp::client::Reply;
use ordain_role::{NodeId, Topology};
use ordain_sim::{FamilySystem, VirtualCluster};

/// What a test does with a cluster.
trait Script {
    fn run<F: Family>(self, cluster: VirtualCluster<FamilySystem<F>>);
}

struct Opened<T> {
    settings: NodeSettings,
    script: T,
}

impl<T: Script> EngineVisitor for Opened<T> {
    type Output = ();

    fn visit<F: Family>(self, family: F) {
        let cluster = VirtualCluster::of(family, self.settings, procedures::all(), 2);
        self.script.run(cluster.expect("a cluster without faults opens"));
    }
}

/// Runs a script on a cluster of an engine.
fn on(engine: &str, partitions: usize, replicas: u16, script: impl Script) {
    let engine: Engine = engine.parse().expect("the engine is finished");
    let options = engine.options(std::iter::empty()).expect("there are defaults");
    let layout = Arc::new(Layout::even(partitions, 2).expect("two shards a node"));
    let topology = Topology::replicated(layout, replicas);
    let settings = NodeSettings { topology, ..NodeSettings::new(options) };
    with_family(engine, Opened { settings, script });
}

fn ok() -> Reply {
    Reply::Status(b"OK".to_vec())
}

/// Plain commands, a transaction over all partitions, expiry in virtual time, a script, and a retry over another node.
struct Session;

impl Script for Session {
    fn run<F: Family>(self, mut cluster: VirtualCluster<FamilySystem<F>>) {
        let mut ask = |node: u16, words: &[&str]| {
            let client = cluster.connect(NodeId(node)).expect("the node is up");
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            let reply = cluster.ask(client, &words).expect("a reply");
            cluster.close(client);
            reply
        };
        assert_eq!(ask(0, &["SET", "a", "1", "PX", "50"]), ok());
        assert_eq!(
            ask(0, &["EVAL", "return redis.call('GET', KEYS[1])", "1", "a"]),
            Reply::Bulk(b"1".to_vec())
        );
        cluster.advance(Micros::from_millis(60)).expect("time passes");
        let client = cluster.connect(NodeId(0)).expect("the node is up");
        assert_eq!(cluster.ask(client, &[b"GET", b"a"]).expect("a reply"), Reply::Nil);
        cluster.send(client, b"MULTI\r\nAPPEND x 1\r\nAPPEND y 2\r\nEXEC\r\nQUIT\r\n");
        cluster.settle().expect("all is answered");
        let bytes = cluster.received(client);
        assert_eq!(
            bytes.escape_ascii().to_string(),
            "+OK\\r\\n+QUEUED\\r\\n+QUEUED\\r\\n*2\\r\\n:1\\r\\n:1\\r\\n+OK\\r\\n"
        );
        assert!(cluster.is_over(client), "the server closes what quits");
    }
}

#[test]
fn a_cluster_without_faults_answers_bytes() {
    for (engine, partitions, replicas) in [("calvin", 1, 1), ("paxflow", 2, 1), ("qstore", 1, 3)] {
        on(engine, partitions, replicas, Session);
    }
}
