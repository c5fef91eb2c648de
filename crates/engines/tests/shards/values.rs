//! Values on disk: who looks at none reads none (decision 58).

use ordain_engines::{calvin, qstore};
use ordain_model::{Call, Db};

use crate::random::command;
use crate::support::cluster::{Cluster, Shape};
use crate::support::render;

const MISSES: &str = "ordain_values_misses_total";

fn ask(cluster: &mut Cluster, words: &[&[u8]]) -> String {
    let (procedure, db, args) = command(words, Db(0));
    let reply = cluster.ask(Call::new(procedure, db), &args).reply;
    cluster.settle();
    render(&reply)
}

#[test]
fn what_looks_at_no_value_reads_none_from_disk() {
    for scheduling in [calvin::SCHEDULING, qstore::SCHEDULING] {
        let shape = Shape { scheduling, memory_budget: Some(0), ..Shape::default() };
        let mut cluster = Cluster::new(shape);
        let keys = [0, 1].map(|partition| cluster.key_in("k", partition));
        let [a, b] = [&keys[0][..], &keys[1]];
        let misses = |cluster: &Cluster| (0..2).map(|node| cluster.gauge(node, MISSES)).sum::<f64>();
        assert_eq!(ask(&mut cluster, &[b"mset", a, b"value", b, b"value"]), "OK");
        assert_eq!(ask(&mut cluster, &[b"mget", a, b]), "[\"value\" \"value\"]");
        let read = misses(&cluster);
        assert!(read >= 2.0, "{read} values were on disk");
        for (words, expected) in [
            (&[&b"exists"[..], a, b][..], "2"),
            (&[b"ttl", a], "-1"),
            (&[b"pexpiretime", b], "-1"),
            (&[b"type", a], "string"),
            (&[b"set", a, b"other"], "OK"),
            (&[b"del", a, b], "2"),
            (&[b"exists", a, b], "0"),
        ] {
            assert_eq!(ask(&mut cluster, words), expected, "{}", words[0].escape_ascii());
        }
        assert_eq!(misses(&cluster), read);
        cluster.verify();
    }
}
