//! Every engine, held to the suite in clusters of some shapes: one line each.

use ordain_conformance::cluster::Shape;
use ordain_conformance::{conforms, on, suite};
use ordain_role::Bug;

/// Prefixes of the keys that the suite uses: such as begin with each other, in regions by turns.
const REGIONS: &[&[&str]] = &[&["s", "key:", "h1", "a"], &["s1", "h", "key:1", "b"], &["key:11", "none"]];

conforms! {
    calvin = on("calvin");
    calvin_2x2 = on("calvin").partitions(2).shards(2);
    calvin_strict_3x1 = on("calvin").partitions(3).option("reads", "strict");
    calvin_replicated = on("calvin").partitions(2).replicas(3);
    calvin_asynchronous = on("calvin").replicas(3).asynchronous().shards(2).option("checkpoint-mode", "naive");
    calvin_paper = on("calvin-paper").option("checkpoint-mode", "zigzag");
    calvin_paper_2x2 = on("calvin-paper").partitions(2).shards(2);
    calvin_paper_replicated = on("calvin-paper").replicas(3);
    paxflow_2x2 = on("paxflow").partitions(2).shards(2);
    paxflow_replicated = on("paxflow").replicas(3).shards(2);
    paxflow_previous = on("paxflow").partitions(2).option("reads", "previous");
    paxflow_strict = on("paxflow").partitions(2).option("reads", "strict");
    paxflow_ordered = on("paxflow").shards(3).option("reads", "ordered");
    qstore = on("qstore").shards(4);
    qstore_2x2 = on("qstore").partitions(2).shards(2);
    qstore_speculative = on("qstore").partitions(2).shards(2).option("execution", "speculative");
    qstore_cascading = on("qstore").partitions(2).option("execution", "speculative").option("cascade", "abort");
    qstore_conservative = on("qstore").partitions(2).shards(2).option("execution", "conservative");
    qstore_read_committed = on("qstore").shards(2).option("isolation", "read-committed");
    qstore_read_committed_2x1 = on("qstore").partitions(2).option("isolation", "read-committed");
    no_wait = on("no-wait").shards(2).option("backoff", "none");
    no_wait_2x2 = on("no-wait").partitions(2).shards(2);
    no_wait_replicated = on("no-wait").partitions(2).replicas(3);
    wait_die = on("wait-die");
    wait_die_2x2 = on("wait-die").partitions(2).shards(2).option("backoff", "deneva");
    wait_die_replicated = on("wait-die").partitions(2).replicas(3);
    timestamp = on("timestamp").shards(2).option("twr", "true").option("ts-source", "clock");
    timestamp_2x2 = on("timestamp").partitions(2).shards(2);
    timestamp_replicated = on("timestamp").partitions(2).replicas(3);
    mvcc = on("mvcc").option("backoff", "none");
    mvcc_2x2 = on("mvcc").partitions(2).shards(2);
    mvcc_counted = on("mvcc").partitions(2).option("ts-source", "counter");
    mvcc_replicated = on("mvcc").partitions(2).replicas(3);
    maat = on("maat").shards(2).option("prewrite", "access");
    maat_2x2 = on("maat").partitions(2).shards(2).option("cap", "0");
    maat_replicated = on("maat").partitions(2).replicas(3).option("backoff", "none");
    occ_2pc = on("occ-2pc").shards(2).option("backoff", "none");
    occ_2pc_2x2 = on("occ-2pc").partitions(2).shards(2);
    occ_2pc_replicated = on("occ-2pc").partitions(2).replicas(3);
    walter = on("walter").shards(2).option("fresh-begin", "true");
    walter_2x2 = on("walter").partitions(2).shards(2).option("propagate-delay-us", "3000");
    walter_replicated = on("walter").partitions(2).replicas(3);
    fwkv = on("fwkv").option("gc-ids", "remove");
    fwkv_2x2 = on("fwkv").partitions(2).shards(2).option("install", "paper").option("gc-ids", "remove");
    fwkv_replicated = on("fwkv").partitions(2).replicas(3);
    no_wait_regions = on("no-wait").shards(2).regions(REGIONS);
    calvin_regions = on("calvin").shards(2).regions(REGIONS);
    calvin_paper_regions = on("calvin-paper").shards(2).regions(REGIONS);
    regions_2pl = on("regions-2pl").shards(2).option("backoff", "deneva");
    regions_2pl_stored = on("regions-2pl").storage(3);
    regions_2pl_between = on("regions-2pl").storage(1).shards(2).regions(REGIONS).option("overlay", "true");
    regions_silo = on("regions-silo").shards(2).option("backoff", "none").option("ro-mode", "stale");
    regions_silo_stored = on("regions-silo").storage(3).shards(2).option("early-apply", "false");
    regions_silo_between = on("regions-silo").storage(3).regions(REGIONS).option("occ-rounds", "2");
    regions_mvocc = on("regions-mvocc").shards(2);
    regions_mvocc_stored = on("regions-mvocc").storage(3).shards(2).option("ro-local", "resolved");
    regions_mvocc_between = on("regions-mvocc").storage(1).partitions(2).shards(2);
    qstore_session = on("qstore").partitions(2).replicas(2).option("reads", "session");
}

/// An engine that joins the registry joins here too.
#[test]
fn every_engine_shape_and_mode_is_held_to_the_suite() {
    let all: Vec<_> = shapes().into_iter().map(|(_, shape)| shape).collect();
    assert_eq!(suite::uncovered(&all), Vec::<String>::new());
    let others: Vec<_> = all.into_iter().filter(|shape| shape.engine().name() != "qstore").collect();
    let missing = suite::uncovered(&others);
    assert!(missing.contains(&"qstore: Partitioned".to_owned()), "{missing:?}");
    assert!(missing.contains(&"isolation=read-committed".to_owned()), "{missing:?}");
}

/// Slots of regions stay, and a client is told why.
#[test]
fn slots_of_regions_do_not_move() {
    let mut subject = on("calvin").shards(2).regions(REGIONS).open();
    let connection = subject.open(0);
    for words in ["DEBUG MOVE-SLOTS 0 9 1\r\n", "DEBUG COPY-SLOT 0 1\r\n"] {
        subject.send(connection, words.as_bytes());
        subject.settle().unwrap();
        let reply = String::from_utf8(subject.take(connection)).unwrap();
        assert!(reply.starts_with("-ERR regions have prefixes") && reply.contains("stay"), "{reply}");
    }
}

/// Mistakes of one line in an engine or a gateway, and the transcripts that must not come true then.
#[test]
fn planted_bugs_are_found() {
    let calvin = || on("calvin").partitions(2).shards(2);
    let speculative = || on("qstore").partitions(2).shards(2).option("execution", "speculative");
    let found: [(Shape, Bug, &str); 7] = [
        (calvin(), Bug::KeepAbortedWrite, "interactive"),
        (calvin(), Bug::ForgetSession, "sessions"),
        (calvin(), Bug::IgnoreRemoteVote, "interactive"),
        (calvin(), Bug::ForgetStay, "keyspace"),
        (calvin(), Bug::StaleLayout, "keyspace"),
        (speculative(), Bug::SkipRankOrder, "keyspace"),
        (speculative(), Bug::LoseUndo, "sessions"),
    ];
    for (shape, bug, folder) in found {
        let held = suite::transcripts(folder, &shape.planted(bug));
        assert!(held.is_err(), "{bug:?} is not found by {folder}");
    }
    assert!(
        suite::memory(&calvin()).is_ok() && suite::memory(&calvin().planted(Bug::ForgetShortage)).is_err()
    );
}
